//! [`Timed`]: a record with its timestamp, as joins keep them.

use std::marker::PhantomData;

use super::{DecodeError, Nesting, Reader, Record, TypeDescriptor, Value};

/// A record type of records with their timestamps, in milliseconds since the Unix epoch.
///
/// There are no values of this type. It is encoded as the tuple `(i64, T)` is.
pub(crate) struct Timed<T: ?Sized>(PhantomData<T>);

impl<T: Record + ?Sized> Record for Timed<T> {
    type View<'a> = (i64, T::View<'a>);
    type Ref<'a> = (i64, T::Ref<'a>);

    #[inline]
    fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
        (view.0, T::peek(&view.1))
    }

    #[inline]
    fn shorten<'s, 'a: 's>(record: Self::Ref<'a>) -> Self::Ref<'s> {
        (record.0, T::shorten(record.1))
    }

    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        TypeDescriptor::Tuple(vec![TypeDescriptor::I64, T::descriptor(nesting.inner())])
    }

    #[inline]
    fn decode<R>(payload: &[u8], f: impl FnOnce(Self::View<'_>) -> R) -> Result<R, DecodeError> {
        Self::decode_within(&mut Reader::new(payload), |view, reader| {
            reader.clone().finish()?;
            Ok(f(view))
        })?
    }

    #[inline]
    fn encode(record: Self::Ref<'_>, payload: &mut Vec<u8>) {
        record.0.write(payload);
        T::encode_within(record.1, payload);
    }

    #[inline]
    fn decode_within<'b, R>(
        reader: &mut Reader<'b>,
        f: impl FnOnce(Self::View<'_>, &mut Reader<'b>) -> R,
    ) -> Result<R, DecodeError> {
        let timestamp = i64::read(reader)?;
        T::decode_within(reader, |record, reader| f((timestamp, record), reader))
    }

    #[inline]
    fn encode_within(record: Self::Ref<'_>, out: &mut Vec<u8>) {
        Self::encode(record, out);
    }
}
