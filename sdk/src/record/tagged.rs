//! [`TaggedUnion`]: the records of two streams in one.

use std::marker::PhantomData;

use super::{DecodeError, Nesting, Reader, Record, TypeDescriptor, Value};
use engine_rows::descriptor::Variant;

/// A record type of records of either of two types.
///
/// There are no values of this type; closures get [`Either`]. It is encoded as an
/// enum of two variants is.
pub struct TaggedUnion<L: ?Sized, R: ?Sized> {
    _left: PhantomData<L>,
    _right: PhantomData<R>,
}

/// A record of the first or of the second of two streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Either<L, R> {
    /// Of the first stream.
    One(L),
    /// Of the second stream.
    Two(R),
}

impl<L: Record + ?Sized, R: Record + ?Sized> Record for TaggedUnion<L, R> {
    type View<'a> = Either<L::View<'a>, R::View<'a>>;
    type Ref<'a> = Either<L::Ref<'a>, R::Ref<'a>>;

    #[inline]
    fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
        match view {
            Either::One(record) => Either::One(L::peek(record)),
            Either::Two(record) => Either::Two(R::peek(record)),
        }
    }

    #[inline]
    fn shorten<'s, 'a: 's>(record: Self::Ref<'a>) -> Self::Ref<'s> {
        match record {
            Either::One(record) => Either::One(L::shorten(record)),
            Either::Two(record) => Either::Two(R::shorten(record)),
        }
    }

    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        let variant =
            |name: &str, descriptor| Variant { name: name.to_owned(), other: false, fields: vec![descriptor] };
        let variants =
            vec![variant("One", L::descriptor(nesting.inner())), variant("Two", R::descriptor(nesting.inner()))];
        TypeDescriptor::Sum { name: "TaggedUnion".to_owned(), variants }
    }

    #[inline]
    fn decode<T>(payload: &[u8], f: impl FnOnce(Self::View<'_>) -> T) -> Result<T, DecodeError> {
        Self::decode_within(&mut Reader::new(payload), |view, reader| {
            reader.clone().finish()?;
            Ok(f(view))
        })?
    }

    #[inline]
    fn encode(record: Self::Ref<'_>, payload: &mut Vec<u8>) {
        match record {
            Either::One(record) => {
                payload.push(0);
                L::encode_within(record, payload);
            }
            Either::Two(record) => {
                payload.push(1);
                R::encode_within(record, payload);
            }
        }
    }

    #[inline]
    fn decode_within<'b, T>(
        reader: &mut Reader<'b>,
        f: impl FnOnce(Self::View<'_>, &mut Reader<'b>) -> T,
    ) -> Result<T, DecodeError> {
        match u8::read(reader)? {
            0 => L::decode_within(reader, |record, reader| f(Either::One(record), reader)),
            1 => R::decode_within(reader, |record, reader| f(Either::Two(record), reader)),
            _ => Err(DecodeError::NoSuchValue),
        }
    }

    #[inline]
    fn encode_within(record: Self::Ref<'_>, out: &mut Vec<u8>) {
        Self::encode(record, out);
    }
}
