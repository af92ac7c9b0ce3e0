//! A log-structured table of byte values: one key group of one state.
//!
//! Records lie one behind the other in segments; an index of places, by the hash of
//! key and namespace, finds them, so that an entry costs 8 bytes of header
//! (20 if it is long) and 10 to 20 of index. A value of equal length is overwritten where it
//! stands; otherwise a new record is appended and the old one is garbage; once
//! it is a third of the log, what lives in the emptiest segment is moved.
//!
//! A clone is a snapshot: it shares index and segments, and from then on neither
//! side changes what is shared. An update then goes to a new record, and the first
//! one copies the index.

use std::sync::Arc;

use hashbrown::HashTable;

/// Bytes of a segment, but for one that holds a single longer record.
const SEGMENT_BYTES: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// Bytes before the key: u32 hash, and lengths: u8 of the key, u8 of the namespace, u16 of the value.
const SHORT_HEADER_BYTES: usize = 8;
/// Where one of them is longer: u32 hash, [`LONG`], and the lengths as u32.
const LONG_HEADER_BYTES: usize = 20;
/// What stands in a long header in place of the short lengths.
const LONG: u32 = u32::MAX;
/// Bytes of the index for an entry, on average.
const INDEX_BYTES: usize = 14;
/// Garbage below this is left alone.
const GARBAGE_BYTES_MIN: usize = SEGMENT_BYTES / 64;
/// A segment that a snapshot holds is copied to be filled up to this, and left as
/// it is above: so segments do not get ever smaller with each snapshot.
const COPIED_BYTES_MAX: usize = SEGMENT_BYTES / 4;
/// Bytes of a value that the clean-up reads for each of its calls, on average.
const CLEAN_UP_BYTES: usize = 512;
/// No segment is being filled.
const NO_SEGMENT: usize = usize::MAX;

/// How the place for a value is sized.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Room {
    /// As long as the value.
    Exact,
    /// The next power of two, for values that grow at their end.
    Growing,
}

impl Room {
    fn of(self, value_bytes: usize) -> usize {
        match self {
            Self::Exact => value_bytes,
            Self::Growing => value_bytes.next_power_of_two(),
        }
    }

    fn record_bytes(self, lengths: Lengths) -> usize {
        lengths.header_bytes() + lengths.key + lengths.namespace + self.of(lengths.value)
    }
}

/// What the clean-up does with a value.
#[derive(Debug)]
pub(super) enum CleanUp {
    Keep,
    Delete,
    Replace(Vec<u8>),
}

#[derive(Clone, Default)]
struct Segment {
    bytes: Arc<Vec<u8>>,
    garbage: usize,
}

/// Bytes of the parts of a record.
#[derive(Clone, Copy)]
struct Lengths {
    key: usize,
    namespace: usize,
    value: usize,
}

impl Lengths {
    fn is_short(self) -> bool {
        self.key <= usize::from(u8::MAX) && self.namespace <= usize::from(u8::MAX) && self.value < usize::from(u16::MAX)
    }

    fn header_bytes(self) -> usize {
        if self.is_short() { SHORT_HEADER_BYTES } else { LONG_HEADER_BYTES }
    }

    /// Of the record that begins here.
    fn at(record: &[u8]) -> Self {
        let short = word(record, 4);
        if short == LONG {
            let [key, namespace, value] = [8, 12, 16].map(|at| word(record, at) as usize);
            return Self { key, namespace, value };
        }
        let [key, namespace, low, high] = short.to_le_bytes();
        Self {
            key: usize::from(key),
            namespace: usize::from(namespace),
            value: usize::from(u16::from_le_bytes([low, high])),
        }
    }

    /// Writes all of the header but the hash; it takes as many bytes as before.
    fn write(self, record: &mut [u8]) {
        let Self { key, namespace, value } = self;
        if self.is_short() {
            let short = length(key) | length(namespace) << 8 | length(value) << 16;
            record[4..SHORT_HEADER_BYTES].copy_from_slice(&short.to_le_bytes());
            return;
        }
        for (at, word) in [(4, LONG), (8, length(key)), (12, length(namespace)), (16, length(value))] {
            record[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// A record in a segment.
#[derive(Clone, Copy)]
struct Record<'a> {
    hash: u32,
    key: &'a [u8],
    namespace: &'a [u8],
    value: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c, d] = bytes[at..at + 4] else { unreachable!("a slice of four bytes") };
    u32::from_le_bytes([a, b, c, d])
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("lists of a guest are shorter than 4 GiB")
}

impl<'a> Record<'a> {
    fn at(bytes: &'a [u8]) -> Self {
        let lengths = Lengths::at(bytes);
        let (key, rest) = bytes[lengths.header_bytes()..].split_at(lengths.key);
        let (namespace, rest) = rest.split_at(lengths.namespace);
        Self { hash: word(bytes, 0), key, namespace, value: &rest[..lengths.value] }
    }

    fn lengths(self) -> Lengths {
        Lengths { key: self.key.len(), namespace: self.namespace.len(), value: self.value.len() }
    }
}

/// Where a record begins, behind the 24 highest bits of its hash: neither a search
/// that fails nor a growing index looks at records.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) struct Place(u64);

/// Bits of the byte in a segment, and of the segment.
const PLACE_BITS: u32 = 20;

impl Place {
    fn new(hash: u32, segment: usize, offset: usize) -> Self {
        assert!(segment < 1 << PLACE_BITS && offset < 1 << PLACE_BITS, "a key group has a state of less than 256 GiB");
        Self(u64::from(hash >> 8) << (2 * PLACE_BITS) | (segment as u64) << PLACE_BITS | offset as u64)
    }

    fn segment(self) -> usize {
        (self.0 >> PLACE_BITS) as usize & ((1 << PLACE_BITS) - 1)
    }

    fn offset(self) -> usize {
        self.0 as usize & ((1 << PLACE_BITS) - 1)
    }

    fn has_hash(self, hash: u32) -> bool {
        self.0 >> (2 * PLACE_BITS) == u64::from(hash >> 8)
    }

    fn spread(self) -> u64 {
        (self.0 >> (2 * PLACE_BITS)).wrapping_mul(SPREAD)
    }
}

/// Spreads the bits of a hash: the index looks at the highest and the lowest.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn spread(hash: u32) -> u64 {
    u64::from(hash >> 8).wrapping_mul(SPREAD)
}

/// See the module.
#[derive(Clone)]
pub(super) struct ValueTable {
    index: Arc<HashTable<Place>>,
    segments: Vec<Segment>,
    /// Segments that hold nothing.
    free: Vec<usize>,
    active: usize,
    room: Room,
    live_bytes: usize,
    log_bytes: usize,
    /// Segment, and place in it, at which taking goes on.
    take_at: (usize, usize),
    /// Bucket at which the clean-up goes on.
    clean_up_at: usize,
    /// Calls of the clean-up that do nothing, because it had to read much.
    clean_up_debt: usize,
}

impl ValueTable {
    pub(super) fn new(room: Room) -> Self {
        Self {
            index: Arc::default(),
            segments: Vec::new(),
            free: Vec::new(),
            active: NO_SEGMENT,
            room,
            live_bytes: 0,
            log_bytes: 0,
            take_at: (0, 0),
            clean_up_at: 0,
            clean_up_debt: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of the live entries with what it takes to find them.
    pub(super) fn bytes(&self) -> usize {
        self.live_bytes + self.len() * INDEX_BYTES
    }

    fn record(&self, place: Place) -> Record<'_> {
        Record::at(&self.segments[place.segment()].bytes[place.offset()..])
    }

    fn find(&self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<Place> {
        let is_same = |place: &Place| {
            place.has_hash(hash) && {
                let record = self.record(*place);
                record.key == key && record.namespace == namespace
            }
        };
        self.index.find(spread(hash), is_same).copied()
    }

    /// Where a record with this hash may be: a look at the index alone.
    pub(super) fn probe(&self, hash: u32) -> Option<Place> {
        self.index.iter_hash(spread(hash)).find(|place| place.has_hash(hash)).copied()
    }

    /// Reads a little of a record, so that the processor fetches it.
    pub(super) fn touch(&self, place: Place) -> u8 {
        let record = &self.segments[place.segment()].bytes[place.offset()..];
        record[0] ^ record[record.len().min(64) - 1]
    }

    pub(super) fn get(&self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<&[u8]> {
        self.find(hash, key, namespace).map(|place| self.record(place).value)
    }

    pub(super) fn put(&mut self, hash: u32, key: &[u8], namespace: &[u8], value: &[u8]) {
        match self.find(hash, key, namespace) {
            None => self.insert(hash, key, namespace, value),
            Some(place) => {
                if !self.overwrite(place, value) {
                    self.replace(place, hash, key, namespace, value);
                }
            }
        }
    }

    /// Appends to a value.
    pub(super) fn append(&mut self, hash: u32, key: &[u8], namespace: &[u8], more: &[u8]) {
        let Some(place) = self.find(hash, key, namespace) else {
            return self.insert(hash, key, namespace, more);
        };
        if !self.extend(place, more) {
            let value = [self.record(place).value, more].concat();
            self.replace(place, hash, key, namespace, &value);
        }
    }

    pub(super) fn delete(&mut self, hash: u32, key: &[u8], namespace: &[u8]) {
        if let Some(place) = self.find(hash, key, namespace) {
            self.remove(place, hash);
        }
    }

    fn remove(&mut self, place: Place, hash: u32) {
        let found = Arc::make_mut(&mut self.index).find_entry(spread(hash), |other| *other == place);
        if let Ok(entry) = found {
            entry.remove();
        }
        self.discard(place);
        self.compact_if_due();
    }

    /// Writes a value over one that takes as much room, if nobody else holds the segment.
    fn overwrite(&mut self, place: Place, value: &[u8]) -> bool {
        let kept = self.resize(place, |_| value.len());
        kept.is_some_and(|(record, at, _)| {
            record[at..][..value.len()].copy_from_slice(value);
            true
        })
    }

    /// Writes behind a value, if there is room and nobody else holds the segment.
    fn extend(&mut self, place: Place, more: &[u8]) -> bool {
        let kept = self.resize(place, |old| old + more.len());
        kept.is_some_and(|(record, at, old)| {
            record[at + old..][..more.len()].copy_from_slice(more);
            true
        })
    }

    /// Changes the length of a value where it stands; returns the bytes from the record on, where
    /// the value begins and how long it was. None: it takes another room, or somebody holds the segment.
    fn resize(&mut self, place: Place, new: impl FnOnce(usize) -> usize) -> Option<(&mut [u8], usize, usize)> {
        let bytes = Arc::get_mut(&mut self.segments[place.segment()].bytes)?;
        let record = &mut bytes[place.offset()..];
        let old = Lengths::at(record);
        let lengths = Lengths { value: new(old.value), ..old };
        // Headers of two lengths never make up for rooms of two sizes.
        if self.room.record_bytes(old) != self.room.record_bytes(lengths) {
            return None;
        }
        if old.value != lengths.value {
            lengths.write(record);
        }
        Some((record, lengths.header_bytes() + old.key + old.namespace, old.value))
    }

    fn insert(&mut self, hash: u32, key: &[u8], namespace: &[u8], value: &[u8]) {
        let place = self.write(hash, key, namespace, value);
        Arc::make_mut(&mut self.index).insert_unique(spread(hash), place, |place| place.spread());
    }

    fn replace(&mut self, old: Place, hash: u32, key: &[u8], namespace: &[u8], value: &[u8]) {
        let place = self.write(hash, key, namespace, value);
        self.point(hash, old, place);
        self.discard(old);
        self.compact_if_due();
    }

    fn point(&mut self, hash: u32, from: Place, to: Place) {
        let entry = Arc::make_mut(&mut self.index).find_mut(spread(hash), |place| *place == from);
        *entry.expect("the record was found by the index") = to;
    }

    /// Counts a record as garbage that the index does not know any more.
    fn discard(&mut self, place: Place) {
        let bytes = self.room.record_bytes(self.record(place).lengths());
        self.segments[place.segment()].garbage += bytes;
        self.live_bytes -= bytes;
    }

    fn write(&mut self, hash: u32, key: &[u8], namespace: &[u8], value: &[u8]) -> Place {
        let lengths = Lengths { key: key.len(), namespace: namespace.len(), value: value.len() };
        let record_bytes = self.room.record_bytes(lengths);
        let (segment, bytes) = self.reserve(record_bytes);
        let offset = bytes.len();
        bytes.extend_from_slice(&hash.to_le_bytes());
        bytes.resize(offset + lengths.header_bytes(), 0);
        lengths.write(&mut bytes[offset..]);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(namespace);
        bytes.extend_from_slice(value);
        bytes.resize(offset + record_bytes, 0);
        self.live_bytes += record_bytes;
        self.log_bytes += record_bytes;
        Place::new(hash, segment, offset)
    }

    /// A segment with room for so many bytes that nobody else holds.
    fn reserve(&mut self, bytes: usize) -> (usize, &mut Vec<u8>) {
        let fits = |segment: &mut Segment| {
            let filled = segment.bytes.len();
            filled + bytes <= SEGMENT_BYTES && (filled < COPIED_BYTES_MAX || Arc::get_mut(&mut segment.bytes).is_some())
        };
        if !self.segments.get_mut(self.active).is_some_and(fits) {
            self.active = self.free.pop().unwrap_or_else(|| {
                self.segments.push(Segment::default());
                self.segments.len() - 1
            });
            self.segments[self.active] = Segment::default();
        }
        let held = Arc::make_mut(&mut self.segments[self.active].bytes);
        if held.capacity() < held.len() + bytes {
            let capacity = (held.capacity() * 2).min(SEGMENT_BYTES).max(held.len() + bytes);
            held.reserve_exact(capacity - held.len());
        }
        (self.active, held)
    }

    fn compact_if_due(&mut self) {
        // A segment is at least as empty as the average: at most twice as much is moved as was
        // thrown away, and the log is at most half longer than what lives.
        let garbage = self.log_bytes - self.live_bytes;
        if GARBAGE_BYTES_MIN < garbage && self.live_bytes < 2 * garbage {
            self.compact();
        }
    }

    /// Moves the records of the segment with most garbage, and lets go of it.
    fn compact(&mut self) {
        let emptiest = (0..self.segments.len()).max_by_key(|segment| self.segments[*segment].garbage);
        let Some(victim) = emptiest else { return };
        if victim == self.active {
            self.active = NO_SEGMENT;
        }
        let bytes = Arc::clone(&self.segments[victim].bytes);
        let mut shared_index = std::mem::take(&mut self.index);
        let index = Arc::make_mut(&mut shared_index);
        let mut offset = 0;
        while offset < bytes.len() {
            let record = Record::at(&bytes[offset..]);
            let record_bytes = self.room.record_bytes(record.lengths());
            let Record { hash, key, namespace, value } = record;
            let place = Place::new(hash, victim, offset);
            if let Some(entry) = index.find_mut(spread(hash), |other| *other == place) {
                *entry = self.write(hash, key, namespace, value);
                self.live_bytes -= record_bytes;
            }
            offset += record_bytes;
        }
        self.index = shared_index;
        self.log_bytes -= bytes.len();
        // The segment may be filled anew.
        self.take_at = (0, 0);
        self.segments[victim] = Segment::default();
        self.free.push(victim);
    }

    /// Takes entries out, as they lie in the log, until `take` returns false; returns what it
    /// returned last. What is written meanwhile is taken, too.
    pub(super) fn take(&mut self, mut take: impl FnMut(&[u8], &[u8], &[u8]) -> bool) -> bool {
        let mut goes_on = true;
        while goes_on && !self.index.is_empty() {
            let (segment, mut offset) = self.take_at;
            let Some(bytes) = self.segments.get(segment).map(|segment| Arc::clone(&segment.bytes)) else {
                self.take_at = (0, 0);
                continue;
            };
            let index = Arc::make_mut(&mut self.index);
            while goes_on && offset < bytes.len() {
                let record = Record::at(&bytes[offset..]);
                let record_bytes = self.room.record_bytes(record.lengths());
                let Record { hash, key, namespace, value } = record;
                let place = Place::new(hash, segment, offset);
                if let Ok(entry) = index.find_entry(spread(hash), |other| *other == place) {
                    entry.remove();
                    self.segments[segment].garbage += record_bytes;
                    self.live_bytes -= record_bytes;
                    goes_on = take(key, namespace, value);
                }
                offset += record_bytes;
            }
            self.take_at = if offset < bytes.len() { (segment, offset) } else { (segment + 1, 0) };
        }
        if self.index.is_empty() {
            *self = Self::new(self.room);
        }
        goes_on
    }

    /// Lets `judge` look at the values in the next `buckets` places of the index; long
    /// values are looked at less often. While a snapshot holds the index, nothing is done.
    pub(super) fn clean_up(&mut self, buckets: usize, judge: impl Fn(&[u8]) -> CleanUp) {
        if 0 < self.clean_up_debt {
            self.clean_up_debt -= 1;
            return;
        }
        for _ in 0..buckets.min(self.index.num_buckets()) {
            if self.index.num_buckets() <= self.clean_up_at {
                self.clean_up_at = 0;
            }
            let place = self.index.get_bucket(self.clean_up_at).copied();
            self.clean_up_at += 1;
            let Some(place) = place else { continue };
            let Record { hash, value, .. } = self.record(place);
            let (verdict, value_bytes) = (judge(value), value.len());
            self.clean_up_debt += value_bytes / CLEAN_UP_BYTES;
            if Arc::get_mut(&mut self.index).is_none() {
                return;
            }
            match verdict {
                CleanUp::Keep => {}
                CleanUp::Delete => self.remove(place, hash),
                CleanUp::Replace(value) => {
                    let Record { key, namespace, .. } = self.record(place);
                    let (key, namespace) = (key.to_vec(), namespace.to_vec());
                    self.replace(place, hash, &key, &namespace, &value);
                }
            }
        }
    }

    /// Key, namespace and value of all entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
        self.index.iter().map(|place| {
            let record = self.record(*place);
            (record.key, record.namespace, record.value)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Lengths at which the header changes, or the room for a value.
    const KEYS: [usize; 5] = [0, 1, 255, 256, 300];
    const VALUES: [usize; 8] = [0, 1, 40, 65_533, 65_534, 65_535, 65_536, 70_000];

    #[test]
    fn entries_of_all_lengths_are_kept() {
        for room in [Room::Exact, Room::Growing] {
            let mut table = ValueTable::new(room);
            let mut model: BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>> = BTreeMap::new();
            for step in 0..3000_usize {
                let mixed = (step as u64 + 1).wrapping_mul(SPREAD).rotate_left(23) as usize;
                let key = vec![b'k'; KEYS[mixed % 5]];
                let namespace = vec![b'n'; KEYS[mixed / 5 % 5]];
                let value = vec![step as u8; VALUES[mixed / 25 % 8]];
                let hash = (key.len() * 1000 + namespace.len()) as u32;
                let entry = (key.clone(), namespace.clone());
                match mixed / 200 % 8 {
                    0 => {
                        table.delete(hash, &key, &namespace);
                        model.remove(&entry);
                    }
                    1..=3 => {
                        let more = &value[..value.len().min(2)];
                        table.append(hash, &key, &namespace, more);
                        model.entry(entry).or_default().extend_from_slice(more);
                    }
                    _ => {
                        table.put(hash, &key, &namespace, &value);
                        model.insert(entry, value);
                    }
                }
                let snapshot = (step % 100 == 0).then(|| table.clone());
                assert_eq!(table.len(), model.len(), "step {step}");
                let found = table.get(hash, &key, &namespace);
                assert_eq!(found, model.get(&(key, namespace)).map(Vec::as_slice), "step {step}");
                if let Some(snapshot) = snapshot {
                    let kept = snapshot
                        .iter()
                        .map(|(key, namespace, value)| ((key.to_vec(), namespace.to_vec()), value.to_vec()));
                    assert_eq!(kept.collect::<BTreeMap<_, _>>(), model, "step {step}");
                }
            }
            let mut taken = BTreeMap::new();
            table.take(|key, namespace, value| {
                taken.insert((key.to_vec(), namespace.to_vec()), value.to_vec());
                true
            });
            assert_eq!(taken, model);
            assert_eq!((table.len(), table.bytes()), (0, 0));
        }
    }
}
