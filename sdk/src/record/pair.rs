//! [`Pair`]: a key that is lent, with an owned value.

use std::marker::PhantomData;

use super::{DecodeError, Nesting, Owned, Reader, Record, TypeDescriptor};

/// A record type of pairs whose first part is lent: closures get `(&K, V)`.
///
/// What aggregations of keyed streams emit, so that an update per record copies
/// no key: `DataStream<Pair<str, u64>>` hands out `(&str, u64)`. There are no
/// values of this type. It is encoded as the tuple `(K, V)` is.
pub struct Pair<K: ?Sized, V> {
    _key: PhantomData<K>,
    _value: PhantomData<V>,
}

impl<K: Record + ?Sized, V: Owned> Record for Pair<K, V> {
    type View<'a> = (K::Ref<'a>, V);
    type Ref<'a> = (K::Ref<'a>, &'a V);

    #[inline]
    fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
        (K::shorten(view.0), &view.1)
    }

    #[inline]
    fn shorten<'s, 'a: 's>(record: Self::Ref<'a>) -> Self::Ref<'s> {
        (K::shorten(record.0), record.1)
    }

    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        TypeDescriptor::Tuple(vec![K::descriptor(nesting.inner()), V::descriptor(nesting.inner())])
    }

    #[inline]
    fn decode<R>(payload: &[u8], f: impl FnOnce(Self::View<'_>) -> R) -> Result<R, DecodeError> {
        let mut reader = Reader::new(payload);
        K::decode_within(&mut reader, |key, reader| {
            V::decode_within(reader, |value, reader| {
                reader.clone().finish()?;
                Ok(f((K::peek(&key), value)))
            })?
        })?
    }

    #[inline]
    fn encode(record: Self::Ref<'_>, payload: &mut Vec<u8>) {
        K::encode_within(record.0, payload);
        V::encode_within(record.1, payload);
    }

    #[inline]
    fn decode_within<'b, R>(
        reader: &mut Reader<'b>,
        f: impl FnOnce(Self::View<'_>, &mut Reader<'b>) -> R,
    ) -> Result<R, DecodeError> {
        K::decode_within(reader, |key, reader| {
            V::decode_within(reader, |value, reader| f((K::peek(&key), value), reader))
        })?
    }

    #[inline]
    fn encode_within(record: Self::Ref<'_>, out: &mut Vec<u8>) {
        Self::encode(record, out);
    }
}
