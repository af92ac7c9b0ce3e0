//! Keys: how a record is asked for its key.

use std::{cell::RefCell, marker::PhantomData, rc::Rc};

use engine_rows::key_hash::key_hash;

use crate::record::{Key, Owned, Record};

/// Lends the key of a record.
pub trait KeySelector<T: Record + ?Sized, K: Key + ?Sized>: 'static {
    /// Lends the key to `f`.
    fn with_key<R>(&self, record: T::Ref<'_>, f: impl FnOnce(K::Ref<'_>) -> R) -> R;
}

/// By a closure that returns the key.
pub struct ByValue<F>(pub(crate) F);

impl<T, K, F> KeySelector<T, K> for ByValue<F>
where
    T: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(T::Ref<'a>) -> K + 'static,
{
    #[inline]
    fn with_key<R>(&self, record: T::Ref<'_>, f: impl FnOnce(&K) -> R) -> R {
        f(&(self.0)(record))
    }
}

/// By a closure that borrows the key from the record.
pub struct ByRef<F>(pub(crate) F);

impl<T, K, F> KeySelector<T, K> for ByRef<F>
where
    T: for<'a> Record<Ref<'a> = &'a T> + ?Sized,
    K: for<'a> Record<Ref<'a> = &'a K> + Key + ?Sized,
    F: for<'a> Fn(&'a T) -> &'a K + 'static,
{
    #[inline]
    fn with_key<R>(&self, record: &T, f: impl FnOnce(&K) -> R) -> R {
        f((self.0)(record))
    }
}

/// By a closure that hands the key to a [`KeyWriter`].
pub struct ByWriter<K: ?Sized, F> {
    function: F,
    writer: RefCell<KeyWriter<K>>,
}

impl<K: ?Sized, F> ByWriter<K, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, writer: RefCell::new(KeyWriter { encoded: Vec::new(), is_set: false, _key: PhantomData }) }
    }
}

impl<T, K, F> KeySelector<T, K> for ByWriter<K, F>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    F: for<'a> Fn(T::Ref<'a>, &mut KeyWriter<K>) + 'static,
{
    #[inline]
    fn with_key<R>(&self, record: T::Ref<'_>, f: impl FnOnce(K::Ref<'_>) -> R) -> R {
        let writer = &mut *self.writer.borrow_mut();
        writer.is_set = false;
        (self.function)(record, writer);
        assert!(writer.is_set, "the closure of key_by_with set no key");
        K::decode(&writer.encoded, |key| f(K::peek(&key))).expect("the key was just encoded")
    }
}

/// Takes the key that a closure of `key_by_with` finds in a record.
pub struct KeyWriter<K: ?Sized> {
    encoded: Vec<u8>,
    is_set: bool,
    _key: PhantomData<K>,
}

impl<K: Key + ?Sized> KeyWriter<K> {
    /// Makes this the key of the record.
    #[inline]
    pub fn set(&mut self, key: K::Ref<'_>) {
        self.encoded.clear();
        K::encode(key, &mut self.encoded);
        self.is_set = true;
    }
}

impl<T, K, S> KeySelector<T, K> for Rc<S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    #[inline]
    fn with_key<R>(&self, record: T::Ref<'_>, f: impl FnOnce(K::Ref<'_>) -> R) -> R {
        (**self).with_key(record, f)
    }
}

/// Hash of an encoded key: the row's, if it has one.
#[inline]
pub(crate) fn hash_of(key: &[u8], from_row: Option<u32>) -> u32 {
    debug_assert!(from_row.is_none_or(|hash| hash == key_hash(key)), "the row carries the hash of another key");
    from_row.unwrap_or_else(|| key_hash(key))
}

/// Appends the encoded key of the record that a row holds; nothing if the row cannot be
/// read, which is reported when its turn comes.
pub(crate) fn encode_key_of<T, K, S>(selector: &S, payload: &[u8], out: &mut Vec<u8>)
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    let encoded = T::decode(payload, |record| selector.with_key(T::peek(&record), |key| K::encode(key, out)));
    if encoded.is_err() {
        out.clear();
    }
}
