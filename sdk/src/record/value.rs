//! Values within records: their fixed-width little-endian encoding.

use std::collections::BTreeMap;

use super::{DecodeError, Nesting, Reader, TypeDescriptor};

/// A value that can be part of a record; `'a` is the lifetime of what it borrows
/// from the row.
///
/// `HashMap` is none, because equal maps would have different encodings.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a record",
    label = "not part of a record",
    note = "a struct or enum becomes a record, and so a part of others, with `#[derive(engine_sdk::Record)]`",
    note = "use `BTreeMap` for `HashMap`, and integers of a fixed width for `usize` and `isize`"
)]
pub trait Value<'a>: Sized {
    /// The structure of the type.
    fn descriptor(nesting: Nesting) -> TypeDescriptor;

    /// Takes a value.
    ///
    /// # Errors
    /// Returns an error if the bytes do not begin with such a value.
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Appends the value.
    fn write(&self, out: &mut Vec<u8>);

    /// As [`super::Record::weigh`].
    fn weigh(&self, scratch: &mut Vec<u8>) -> usize {
        scratch.clear();
        self.write(scratch);
        scratch.len()
    }
}

/// A value that can be part of a key: its encoding is canonical.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a key",
    label = "not part of a key",
    note = "a struct or enum becomes a key with `#[derive(engine_sdk::Record, engine_sdk::Key)]`",
    note = "`f32` and `f64` cannot be keys or parts of keys, since 0.0 and -0.0, or two NaN, are equal or not depending on whom you ask: use an integer, such as cents or `to_bits()`"
)]
pub trait KeyValue {}

/// Owned bytes; `Vec<u8>` is a list of numbers.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

macro_rules! numbers {
    ($($type:ident $descriptor:ident),*) => { $(
        impl Value<'_> for $type {
            fn descriptor(_: Nesting) -> TypeDescriptor {
                TypeDescriptor::$descriptor
            }

            #[inline]
            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.array().map($type::from_le_bytes)
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )* };
}

numbers!(u8 U8, u16 U16, u32 U32, u64 U64, i8 I8, i16 I16, i32 I32, i64 I64, f32 F32, f64 F64);

impl Value<'_> for bool {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::Bool
    }

    #[inline]
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::read(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::NoSuchValue),
        }
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Value<'_> for char {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::Char
    }

    #[inline]
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_u32(u32::read(reader)?).ok_or(DecodeError::NoSuchValue)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        u32::from(*self).write(out);
    }
}

/// Appends a number of elements or bytes.
///
/// # Panics
/// Panics if a u32 cannot hold it; a row that long could not be sent either.
#[inline]
pub(super) fn write_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).expect("a value within a record is shorter than 4 GiB").write(out);
}

#[inline]
pub(super) fn write_counted(bytes: &[u8], out: &mut Vec<u8>) {
    write_count(bytes.len(), out);
    write_bytes(bytes, out);
}

/// Appends bytes. Up to 32 are written as two overlapping halves of fixed length: a copy of
/// variable length is a call out of the plugin on WebAssembly.
#[inline]
pub(crate) fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    fn write_halves<const HALF: usize>(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let (first, last) = (bytes.first_chunk::<HALF>()?, bytes.last_chunk::<HALF>()?);
        let start = out.len();
        let end = start + bytes.len();
        out.extend_from_slice(first);
        out.extend_from_slice(last);
        out.get_mut(end - HALF..end)?.copy_from_slice(last);
        out.truncate(end);
        Some(())
    }
    let written = match bytes.len() {
        0 => Some(()),
        1 => write_halves::<1>(bytes, out),
        2..4 => write_halves::<2>(bytes, out),
        4..8 => write_halves::<4>(bytes, out),
        8..=16 => write_halves::<8>(bytes, out),
        17..=32 => write_halves::<16>(bytes, out),
        _ => {
            out.extend_from_slice(bytes);
            Some(())
        }
    };
    debug_assert!(written.is_some(), "each length has its halves");
}

#[inline]
fn read_counted<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let count = reader.count()?;
    reader.bytes(count)
}

impl<'a> Value<'a> for &'a str {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::String
    }

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        std::str::from_utf8(read_counted(reader)?).map_err(|_| DecodeError::NotUtf8)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_counted(self.as_bytes(), out);
    }
}

impl Value<'_> for String {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::String
    }

    #[inline]
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        <&str>::read(reader).map(str::to_owned)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_counted(self.as_bytes(), out);
    }
}

impl<'a> Value<'a> for &'a [u8] {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::Bytes
    }

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        read_counted(reader)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_counted(self, out);
    }
}

impl Value<'_> for Bytes {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::Bytes
    }

    #[inline]
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        read_counted(reader).map(|bytes| Self(bytes.to_owned()))
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_counted(&self.0, out);
    }
}

impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        TypeDescriptor::Option(Box::new(T::descriptor(nesting.inner())))
    }

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::read(reader)? { Some(T::read(reader)?) } else { None })
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }
}

impl<'a, T: Value<'a>> Value<'a> for Vec<T> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        TypeDescriptor::List(Box::new(T::descriptor(nesting.inner())))
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        // A count that lies must not reserve more than the row could hold.
        let mut elements = Self::with_capacity(count.min(reader.remaining()));
        for _ in 0..count {
            elements.push(T::read(reader)?);
        }
        Ok(elements)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        self.iter().for_each(|element| element.write(out));
    }
}

impl<'a, K: Value<'a> + Ord, V: Value<'a>> Value<'a> for BTreeMap<K, V> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        let nesting = nesting.inner();
        TypeDescriptor::Map(Box::new(K::descriptor(nesting)), Box::new(V::descriptor(nesting)))
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        (0..count).map(|_| Ok((K::read(reader)?, V::read(reader)?))).collect()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }
}

impl Value<'_> for () {
    fn descriptor(_: Nesting) -> TypeDescriptor {
        TypeDescriptor::Tuple(Vec::new())
    }

    fn read(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }

    fn write(&self, _: &mut Vec<u8>) {}
}

macro_rules! tuples {
    ($([$($name:ident $index:tt),+])*) => { $(
        impl<'a, $($name: Value<'a>),+> Value<'a> for ($($name,)+) {
            fn descriptor(nesting: Nesting) -> TypeDescriptor {
                TypeDescriptor::Tuple(vec![$($name::descriptor(nesting.inner())),+])
            }

            #[inline]
            fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(($($name::read(reader)?,)+))
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$index.write(out);)+
            }
        }

        impl<$($name: KeyValue),+> KeyValue for ($($name,)+) {}
    )* };
}

tuples!(
    [A 0]
    [A 0, B 1]
    [A 0, B 1, C 2]
    [A 0, B 1, C 2, D 3]
    [A 0, B 1, C 2, D 3, E 4]
    [A 0, B 1, C 2, D 3, E 4, F 5]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7]
);

macro_rules! key_values {
    ($($type:ty),*) => { $(impl KeyValue for $type {})* };
}

key_values!(u8, u16, u32, u64, i8, i16, i32, i64, bool, char, String, &str, &[u8], Bytes, ());
impl<T: KeyValue> KeyValue for Option<T> {}
impl<T: KeyValue> KeyValue for Vec<T> {}
impl<K: KeyValue, V: KeyValue> KeyValue for BTreeMap<K, V> {}
