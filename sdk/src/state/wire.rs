//! What travels between caches and host: entries, values, and where they are kept meanwhile.
//!
//! The layout is that of the interface `keyed-state` in `wit/plugin.wit`.

use engine_rows::shown_key::ShownKey;

use crate::{
    current,
    record::{DecodeError, Owned, Reader, Record, descriptor_of},
};

/// Length that stands for "absent".
const ABSENT: u32 = u32::MAX;
/// Writes are sent once they take this many bytes.
const WRITES_BYTES: usize = 256 << 10;
/// Keys with namespaces of up to this many bytes lie in their entry.
const SHORT_BYTES: usize = 26;
/// Bytes of an encoded number of 64 bits.
const NUMBER_BYTES: u8 = 8;

/// An encoded key and its namespace, one behind the other.
pub(super) struct KeyBytes {
    key_length: u32,
    bytes: ShortBytes,
}

enum ShortBytes {
    Short { length: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self { key_length: 0, bytes: ShortBytes::Short { length: 0, bytes: [0; SHORT_BYTES] } }
    }
}

/// Compares bytes of one length. Short keys are the rule, and a comparison of variable
/// length would be a call on WebAssembly.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let word = |chunk: &[u8; 8]| u64::from_le_bytes(*chunk);
    if let (Some(last_a), Some(last_b)) = (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        let (blocks_a, blocks_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
        return word(last_a) == word(last_b) && blocks_a.iter().zip(blocks_b).all(|(a, b)| word(a) == word(b));
    }
    a.iter().zip(b).all(|(a, b)| a == b)
}

impl KeyBytes {
    /// # Panics
    /// Panics if the key takes 4 GiB.
    pub(super) fn new(key: &[u8], namespace: &[u8]) -> Self {
        let key_length = u32::try_from(key.len()).expect("a key is shorter than 4 GiB");
        let length = key.len() + namespace.len();
        let bytes = match u8::try_from(length) {
            Ok(short) if length <= SHORT_BYTES => {
                let mut bytes = [0; SHORT_BYTES];
                bytes[..key.len()].copy_from_slice(key);
                bytes[key.len()..length].copy_from_slice(namespace);
                ShortBytes::Short { length: short, bytes }
            }
            _ => ShortBytes::Long([key, namespace].concat().into_boxed_slice()),
        };
        Self { key_length, bytes }
    }

    /// Bytes beside the entry.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.bytes {
            ShortBytes::Short { .. } => 0,
            ShortBytes::Long(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            ShortBytes::Short { length, bytes } => &bytes[..usize::from(*length)],
            ShortBytes::Long(bytes) => bytes,
        }
    }

    #[inline]
    fn split(&self) -> (&[u8], &[u8]) {
        self.bytes().split_at(self.key_length as usize)
    }

    /// The encoded key.
    pub(super) fn key(&self) -> &[u8] {
        self.split().0
    }

    #[inline(always)]
    pub(super) fn is(&self, key: &[u8], namespace: &[u8]) -> bool {
        // Most keys are numbers.
        if namespace.is_empty()
            && let (Ok(key), ShortBytes::Short { length: NUMBER_BYTES, bytes }) =
                (<[u8; 8]>::try_from(key), &self.bytes)
        {
            let own = bytes.first_chunk::<8>().expect("it is longer");
            return u64::from_le_bytes(*own) == u64::from_le_bytes(key) && self.key_length == u32::from(NUMBER_BYTES);
        }
        self.is_whole(key, namespace)
    }

    #[inline(never)]
    fn is_whole(&self, key: &[u8], namespace: &[u8]) -> bool {
        if namespace.is_empty() {
            let bytes = self.bytes();
            return self.key_length as usize == bytes.len() && is_same(bytes, key);
        }
        let (own_key, own_namespace) = self.split();
        is_same(own_key, key) && is_same(own_namespace, namespace)
    }

    /// Appends the entry: key and namespace with their lengths.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (key, namespace) = self.split();
        write_counted(key, out);
        write_counted(namespace, out);
    }
}

/// Appends u32 length and bytes.
///
/// # Panics
/// Panics if they take 4 GiB.
pub(super) fn write_counted(bytes: &[u8], out: &mut Vec<u8>) {
    write_counted_with(out, |out| out.extend_from_slice(bytes));
}

/// Appends u32 length and what `write` appends.
///
/// # Panics
/// Panics if it takes 4 GiB.
pub(super) fn write_counted_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = u32::try_from(out.len() - start - 4).ok().filter(|length| *length != ABSENT);
    let length = length.expect("a key or a value of state is shorter than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends "absent", which deletes.
pub(super) fn write_absent(out: &mut Vec<u8>) {
    out.extend_from_slice(&ABSENT.to_le_bytes());
}

/// Takes u32 length and bytes; none for "absent".
///
/// # Panics
/// Panics if the host's answer ends early: it was made by the contract.
pub(super) fn read_counted<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = reader.array().map(u32::from_le_bytes).expect("the host answers each entry");
    (length != ABSENT).then(|| reader.bytes(length as usize).expect("the host answers each entry"))
}

/// Entries for one call of the host, gathered.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) count: u32,
    pub(super) bytes: Vec<u8>,
}

impl Requests {
    /// True once the requests should be sent.
    pub(super) fn is_full(&self) -> bool {
        WRITES_BYTES <= self.bytes.len()
    }

    /// Sends what there is.
    pub(super) fn send<R>(&mut self, call: impl FnOnce(u32, &[u8]) -> R) -> Option<R> {
        if self.count == 0 {
            return None;
        }
        let answer = call(self.count, &self.bytes);
        self.count = 0;
        self.bytes.clear();
        Some(answer)
    }
}

/// Which state of which node.
pub(super) struct StateId {
    /// Position among the states of the segment; what the host knows it by.
    pub(super) index: u32,
    pub(super) node: u32,
    pub(super) name: String,
    /// Longest value, in bytes.
    pub(super) value_bytes_max: usize,
}

impl StateId {
    /// Reads a value under a key of the state, which is empty where there is none; fails the call if
    /// it is not one.
    pub(super) fn decode<V: Owned>(&self, key: &[u8], bytes: &[u8]) -> Option<V> {
        V::decode(bytes, |value| value).map_err(|error| self.not_a_value::<V>(key, error)).ok()
    }

    /// Takes the time at which a value with time-to-live ends.
    pub(super) fn read_end<'a, V: Record + ?Sized>(&self, key: &[u8], bytes: &'a [u8]) -> Option<(i64, &'a [u8])> {
        match bytes.split_first_chunk::<8>() {
            Some((end, value)) => Some((i64::from_le_bytes(*end), value)),
            None => {
                self.not_a_value::<V>(key, DecodeError::TooShort);
                None
            }
        }
    }

    /// Fails the call if a value is too long.
    #[inline]
    pub(super) fn check_length(&self, key: &KeyBytes, bytes: usize) {
        if self.value_bytes_max < bytes {
            self.too_long(key, bytes);
        }
    }

    #[cold]
    fn too_long(&self, key: &KeyBytes, bytes: usize) {
        let Self { node, name, value_bytes_max, .. } = self;
        let key = ShownKey(key.key());
        let message = format!(
            "state \"{name}\", key {key}: the value has {bytes} bytes, the limit is {value_bytes_max}: raise \
             state.value.bytes-max or keep less"
        );
        // It is looked at later than in the row that made it so long.
        current::enter_row(current::NO_ROW);
        current::fail(*node, &message);
    }

    #[cold]
    pub(super) fn not_a_value<V: Record + ?Sized>(&self, key: &[u8], error: DecodeError) {
        let (name, value_type) = (&self.name, descriptor_of::<V>());
        let key = if key.is_empty() { String::new() } else { format!(", key {}", ShownKey(key)) };
        let message = format!(
            "state \"{name}\"{key}: the value is not of type {value_type}: {error}; it was written under \
             another type: give the state another name"
        );
        current::fail(self.node, &message);
    }
}
