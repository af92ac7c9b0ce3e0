//! Record types: what travels in streams, and how it is laid out in bytes.
//!
//! A [`Record`] is a family of views, so that text and records with borrowed
//! fields are read in place. [`Value`] is a value within a record, [`Key`] a
//! record that streams can be keyed by. All three come from derives and from
//! the impls in this module alone. The layout is described on
//! [`TypeDescriptor`] and, for other languages, in `wit/rows.md`.

mod value;
mod pair;
#[cfg(not(target_arch = "wasm32"))]
mod show;
mod tagged;

pub use engine_rows::descriptor::TypeDescriptor;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use self::show::show;
pub(crate) use self::value::write_bytes;

pub use self::{
    pair::Pair,
    tagged::{Either, TaggedUnion},
    value::{Bytes, KeyValue, Value},
};

/// A type of records.
///
/// Implemented by `#[derive(Record)]` on structs and enums with or without one
/// lifetime, and by this crate for text (`str`, `String`), bytes (`[u8]`,
/// [`Bytes`]), numbers, `bool`, `char`, tuples, `Option`, `Vec`, `BTreeMap` and
/// [`Pair`]. A stream of `struct Bid<'a>` is a `DataStream<Bid<'static>>`, written
/// `DataStream<Bid>`; its closures get `Bid<'_>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of records",
    label = "not a record",
    note = "a struct or enum becomes one with `#[derive(engine_sdk::Record)]`"
)]
pub trait Record: 'static {
    /// What `map`, `flat_map` and `process` consume: `&str`, an owned `T`, or `Bid<'a>`.
    type View<'a>;
    /// What `filter`, `key_by` and `sum` look at: `&str`, `&T`, `&Bid<'a>`.
    type Ref<'a>: Copy;

    /// Looks at a view.
    fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s>;

    /// Shortens the lifetime of a reference.
    fn shorten<'s, 'a: 's>(record: Self::Ref<'a>) -> Self::Ref<'s>;

    /// The structure of the type.
    fn descriptor(nesting: Nesting) -> TypeDescriptor;

    /// Lends the record that the payload of a row holds.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one such record.
    fn decode<R>(payload: &[u8], f: impl FnOnce(Self::View<'_>) -> R) -> Result<R, DecodeError>;

    /// Appends the payload of a row.
    fn encode(record: Self::Ref<'_>, payload: &mut Vec<u8>);

    /// Lends a record that is part of another one, and the reader behind it.
    ///
    /// # Errors
    /// Returns an error if the bytes do not begin with such a record.
    fn decode_within<'b, R>(
        reader: &mut Reader<'b>,
        f: impl FnOnce(Self::View<'_>, &mut Reader<'b>) -> R,
    ) -> Result<R, DecodeError>;

    /// Appends the record as a part of another one.
    fn encode_within(record: Self::Ref<'_>, out: &mut Vec<u8>);

    /// Lends the record that a line of text is; only text is one.
    fn decode_line<R>(_line: &str, _f: impl FnOnce(Self::View<'_>) -> R) -> Option<R> {
        None
    }

    /// Bytes that the record takes encoded, about, for caches that have a limit. Records with many
    /// parts override it, so that changing one of these does not cost more the more there are.
    fn weigh(record: Self::Ref<'_>, scratch: &mut Vec<u8>) -> usize {
        Self::with_encoded(record, scratch, <[u8]>::len)
    }

    /// Lends the encoded record, in `scratch` unless it lies in memory as it is encoded.
    fn with_encoded<R>(record: Self::Ref<'_>, scratch: &mut Vec<u8>, f: impl FnOnce(&[u8]) -> R) -> R {
        scratch.clear();
        Self::encode(record, scratch);
        f(scratch)
    }
}

/// A record whose views are the record itself: it owns all it holds.
///
/// A type without `#[derive(Record)]`, or a borrow that a closure returns, is none:
///
/// ```compile_fail
/// # use engine_sdk::prelude::*;
/// struct Point { x: i64 }
/// fn points(numbers: DataStream<i64>) { numbers.map(|x| Point { x }); }
/// ```
///
/// ```compile_fail
/// # use engine_sdk::prelude::*;
/// fn trimmed(lines: DataStream<str>) { lines.map(|line| line.trim()); }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an owned record",
    label = "not an owned record",
    note = "a struct or enum becomes a record with `#[derive(engine_sdk::Record)]`",
    note = "a closure cannot return a borrow such as `&str`: return an owned value, or hand the borrow on with `flat_map` and a `Collector<str>`"
)]
pub trait Owned: for<'a> Record<View<'a> = Self, Ref<'a> = &'a Self> + Sized {}

#[diagnostic::do_not_recommend]
impl<T: for<'a> Record<View<'a> = T, Ref<'a> = &'a T>> Owned for T {}

/// A record that a stream can be keyed by: two keys are the same if their
/// encodings are.
///
/// Implemented by `#[derive(Record, Key)]` and for text, bytes, integers, `bool`,
/// `char` and tuples of such. Floats are no keys, nor parts of keys:
///
/// ```compile_fail
/// # use engine_sdk::prelude::*;
/// fn by_price(prices: DataStream<f64>) { prices.key_by(|price| *price).count(); }
/// ```
///
/// ```compile_fail
/// # use engine_sdk::prelude::*;
/// #[derive(Record, Key)]
/// struct Price { amount: f64 }
/// ```
#[diagnostic::on_unimplemented(
    message = "a stream cannot be keyed by `{Self}`",
    label = "not a key",
    note = "a struct or enum becomes a key with `#[derive(engine_sdk::Record, engine_sdk::Key)]`",
    note = "`f32` and `f64` cannot be keys or parts of keys, since 0.0 and -0.0, or two NaN, are equal or not depending on whom you ask: use an integer, such as cents or `to_bits()`"
)]
pub trait Key: Record {}

/// How deep a type may be nested; keeps recursive types from describing themselves for ever.
#[derive(Clone, Copy, Debug)]
pub struct Nesting(usize);

impl Nesting {
    /// The outermost type.
    pub const ROOT: Self = Self(0);

    /// One level further in.
    ///
    /// # Panics
    /// Panics at the depth that no type descriptor may have: the type is recursive.
    #[must_use]
    pub fn inner(self) -> Self {
        assert!(
            self.0 + 1 < engine_rows::descriptor::DEPTH_MAX,
            "a record type is nested deeper than {} types; recursive types cannot be records",
            engine_rows::descriptor::DEPTH_MAX
        );
        Self(self.0 + 1)
    }
}

/// Descriptor of a record type as text.
pub(crate) fn descriptor_of<T: Record + ?Sized>() -> String {
    T::descriptor(Nesting::ROOT).to_string()
}

/// True if all values of the type take the same memory: none of it lies elsewhere.
pub(crate) fn is_fixed_size(descriptor: &TypeDescriptor) -> bool {
    match descriptor {
        TypeDescriptor::String | TypeDescriptor::Bytes | TypeDescriptor::List(_) | TypeDescriptor::Map(..) => false,
        TypeDescriptor::Option(value) => is_fixed_size(value),
        TypeDescriptor::Tuple(elements) => elements.iter().all(is_fixed_size),
        TypeDescriptor::Struct { fields, .. } => fields.iter().all(|(_, field)| is_fixed_size(field)),
        TypeDescriptor::Sum { variants, .. } => variants.iter().all(|variant| variant.fields.iter().all(is_fixed_size)),
        _ => true,
    }
}

/// The bytes of a row are not a record of the expected type.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DecodeError {
    /// The bytes end within the record.
    TooShort,
    /// Bytes are left over behind the record.
    TooLong,
    /// Text is not UTF-8.
    NotUtf8,
    /// A number stands for no `bool`, `char`, option or variant.
    NoSuchValue,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::TooShort => "the bytes end within the record",
            Self::TooLong => "bytes are left over behind the record",
            Self::NotUtf8 => "text is not UTF-8",
            Self::NoSuchValue => "a number stands for no bool, char, option or variant",
        })
    }
}

impl std::error::Error for DecodeError {}

/// The bytes of a record that are still to be read.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if there are fewer.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DecodeError::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes `N` bytes.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if there are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::TooShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Takes a u32 that counts bytes or elements.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if there are fewer than four bytes.
    #[inline]
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    /// Number of bytes left.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Ends reading.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooLong`] if bytes are left.
    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::TooLong) }
    }
}

/// Reads a value that fills `payload`; what derived records decode by.
///
/// # Errors
/// Returns an error if the bytes are not exactly one such value.
#[inline]
pub fn decode_value<'a, V: Value<'a>>(payload: &'a [u8]) -> Result<V, DecodeError> {
    let mut reader = Reader::new(payload);
    let value = V::read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Implements [`Record`] for a type that owns all it holds and is a [`Value`].
macro_rules! owned_record {
    ([$($generics:tt)*] $type:ty $(, encoded: $encoded:expr)?) => {
        impl<$($generics)*> Record for $type {
            type View<'a> = Self;
            type Ref<'a> = &'a Self;

            #[inline]
            fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
                view
            }

            #[inline]
            fn shorten<'s, 'a: 's>(record: &'a Self) -> &'s Self {
                record
            }

            fn descriptor(nesting: Nesting) -> TypeDescriptor {
                <Self as Value<'_>>::descriptor(nesting)
            }

            #[inline]
            fn decode<R>(payload: &[u8], f: impl FnOnce(Self) -> R) -> Result<R, DecodeError> {
                Ok(f(decode_value(payload)?))
            }

            #[inline(always)]
            fn encode(record: &Self, payload: &mut Vec<u8>) {
                Value::write(record, payload);
            }

            #[inline]
            fn decode_within<'b, R>(
                reader: &mut Reader<'b>,
                f: impl FnOnce(Self, &mut Reader<'b>) -> R,
            ) -> Result<R, DecodeError> {
                let value = Value::read(reader)?;
                Ok(f(value, reader))
            }

            #[inline]
            fn encode_within(record: &Self, out: &mut Vec<u8>) {
                Value::write(record, out);
            }

            #[inline]
            fn weigh(record: &Self, scratch: &mut Vec<u8>) -> usize {
                Value::weigh(record, scratch)
            }

            $(
                #[inline]
                fn with_encoded<R>(record: &Self, _scratch: &mut Vec<u8>, f: impl FnOnce(&[u8]) -> R) -> R {
                    let encoded: fn(&Self) -> _ = $encoded;
                    f(&encoded(record))
                }
            )?
        }
    };
}

/// Numbers lend their bytes without a detour by memory on the heap.
macro_rules! number_records {
    ($($type:ty),*) => { $(owned_record!([] $type, encoded: |number| number.to_le_bytes());)* };
}

pub(crate) use owned_record;

number_records!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
owned_record!([] bool);
owned_record!([] char);
owned_record!([T: for<'v> Value<'v> + 'static] Option<T>);
owned_record!([T: for<'v> Value<'v> + 'static] Vec<T>);
owned_record!([K: for<'v> Value<'v> + Ord + 'static, V: for<'v> Value<'v> + 'static] std::collections::BTreeMap<K, V>);
owned_record!([]());

macro_rules! tuple_records {
    ($([$($name:ident),+])*) => { $(
        owned_record!([$($name: for<'v> Value<'v> + 'static),+] ($($name,)+));
        impl<$($name: KeyValue + for<'v> Value<'v> + 'static),+> Key for ($($name,)+) {}
    )* };
}

tuple_records!([A] [A, B] [A, B, C] [A, B, C, D] [A, B, C, D, E] [A, B, C, D, E, F] [A, B, C, D, E, F, G] [A, B, C, D, E, F, G, H]);

macro_rules! keys {
    ($($type:ty),*) => { $(impl Key for $type {})* };
}

keys!(u8, u16, u32, u64, i8, i16, i32, i64, bool, char, str, String, [u8], Bytes, ());
impl<T: KeyValue + for<'v> Value<'v> + 'static> Key for Option<T> {}

/// Text and bytes have no length in front of them if they are a whole record.
macro_rules! bare_record {
    ($type:ty, view: $view:ty, descriptor: $descriptor:ident, decode: $decode:expr, bytes: $bytes:expr, line: $line:expr) => {
        impl Record for $type {
            type View<'a> = $view;
            type Ref<'a> = &'a $type;

            #[inline]
            fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
                view
            }

            #[inline]
            fn shorten<'s, 'a: 's>(record: &'a $type) -> &'s $type {
                record
            }

            fn descriptor(_: Nesting) -> TypeDescriptor {
                TypeDescriptor::$descriptor
            }

            #[inline]
            fn decode<R>(payload: &[u8], f: impl FnOnce(Self::View<'_>) -> R) -> Result<R, DecodeError> {
                let decode: fn(&[u8]) -> Result<Self::View<'_>, DecodeError> = $decode;
                Ok(f(decode(payload)?))
            }

            #[inline(always)]
            fn encode(record: &$type, payload: &mut Vec<u8>) {
                value::write_bytes($bytes(record), payload);
            }

            #[inline]
            fn decode_within<'b, R>(
                reader: &mut Reader<'b>,
                f: impl FnOnce(Self::View<'_>, &mut Reader<'b>) -> R,
            ) -> Result<R, DecodeError> {
                let count = reader.count()?;
                let bytes = reader.bytes(count)?;
                Self::decode(bytes, |view| f(view, reader))
            }

            #[inline]
            fn encode_within(record: &$type, out: &mut Vec<u8>) {
                value::write_counted($bytes(record), out);
            }

            #[inline]
            fn decode_line<R>(line: &str, f: impl FnOnce(Self::View<'_>) -> R) -> Option<R> {
                let decode: fn(&str) -> Option<Self::View<'_>> = $line;
                decode(line).map(f)
            }

            #[inline]
            fn with_encoded<R>(record: &$type, _scratch: &mut Vec<u8>, f: impl FnOnce(&[u8]) -> R) -> R {
                f($bytes(record))
            }
        }
    };
}

bare_record!(str, view: &'a str, descriptor: String,
    decode: |bytes| std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8),
    bytes: str::as_bytes,
    line: |line| Some(line));
bare_record!(String, view: String, descriptor: String,
    decode: |bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::NotUtf8),
    bytes: String::as_bytes,
    line: |line| Some(line.to_owned()));
bare_record!([u8], view: &'a [u8], descriptor: Bytes,
    decode: |bytes| Ok(bytes),
    bytes: std::convert::identity,
    line: |_| None);
bare_record!(Bytes, view: Bytes, descriptor: Bytes,
    decode: |bytes| Ok(Bytes(bytes.to_owned())),
    bytes: Bytes::as_slice,
    line: |_| None);
