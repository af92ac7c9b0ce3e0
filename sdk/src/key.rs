//! Keys: how a record is asked for its key, and the state kept by key.

use std::{cell::RefCell, hint::black_box, marker::PhantomData, mem, rc::Rc};

use engine_rows::{key_hash::key_hash, row::Rows};
use hashbrown::{HashTable, hash_table::Entry as TableEntry};

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

/// State of more bytes is taken not to fit into the cache of a core.
const CACHED_BYTES_MAX: usize = 512 << 10;

/// State by key of one operator, in the memory of the plugin.
///
/// All access to keyed state goes through this type. Keys are kept encoded, one
/// behind the other; entries are found by the hash that rows carry, and stay in
/// the order in which their keys first came.
pub(crate) struct KeyedState<V> {
    /// Index into `entries` by hash.
    table: HashTable<u32>,
    entries: Vec<Entry<V>>,
    keys: Vec<u8>,
    /// Entries of a batch, and then where their keys start.
    ahead: Vec<usize>,
}

struct Entry<V> {
    hash: u32,
    /// Range of `keys`.
    key_start: usize,
    key_end: usize,
    value: Option<V>,
}

/// Place of a key's value until the state is drained.
#[derive(Clone, Copy)]
pub(crate) struct Slot(u32);

impl<V> KeyedState<V> {
    pub(crate) fn new() -> Self {
        Self { table: HashTable::new(), entries: Vec::new(), keys: Vec::new(), ahead: Vec::new() }
    }

    /// Loads what the rows of a batch will need into the cache, if the state is large.
    ///
    /// A lookup waits for memory three times, one after the other, and what follows it
    /// depends on what it found. Here each step is taken for all rows, whose waits overlap.
    pub(crate) fn load_ahead(&mut self, batch: &[u8]) {
        let Self { table, entries, keys, ahead } = self;
        if mem::size_of_val(&entries[..]) + keys.len() <= CACHED_BYTES_MAX {
            return;
        }
        ahead.clear();
        let rows = Rows::new(batch).map_while(Result::ok);
        // Whatever entry comes first: another key has its place and its tag only seldom.
        ahead.extend(rows.filter_map(|row| table.find(spread(row.key_hash), |_| true)).map(|index| *index as usize));
        ahead.iter_mut().for_each(|at| *at = entries[*at].key_start);
        black_box(ahead.iter().fold(0, |loaded, at| loaded ^ keys.get(*at).copied().unwrap_or(0)));
    }

    /// Finds the place of a key, and makes one if there is none.
    ///
    /// # Panics
    /// Panics if there are 2^32 keys; the memory of a plugin cannot hold them.
    #[inline]
    pub(crate) fn slot(&mut self, hash: u32, key: &[u8]) -> Slot {
        let Self { table, entries, keys, .. } = self;
        let is_same = |index: &u32| {
            let entry = &entries[*index as usize];
            entry.hash == hash && keys[entry.key_start..entry.key_end] == *key
        };
        match table.entry(spread(hash), is_same, |index| spread(entries[*index as usize].hash)) {
            TableEntry::Occupied(occupied) => Slot(*occupied.get()),
            TableEntry::Vacant(vacant) => {
                let index = u32::try_from(entries.len()).expect("a plugin has room for fewer keys");
                vacant.insert(index);
                let key_start = keys.len();
                keys.extend_from_slice(key);
                entries.push(Entry { hash, key_start, key_end: keys.len(), value: None });
                Slot(index)
            }
        }
    }

    /// The value at a place; none before it was first set.
    #[inline]
    pub(crate) fn value(&mut self, slot: Slot) -> &mut Option<V> {
        &mut self.entries[slot.0 as usize].value
    }

    /// Takes all encoded keys with their values, in the order in which the keys first came.
    pub(crate) fn drain(&mut self) -> Drained<V> {
        let Self { entries, keys, .. } = std::mem::replace(self, Self::new());
        Drained { entries, keys }
    }
}

/// What was taken out of a [`KeyedState`].
pub(crate) struct Drained<V> {
    entries: Vec<Entry<V>>,
    keys: Vec<u8>,
}

impl<V> Drained<V> {
    /// Hands out each encoded key with its value.
    pub(crate) fn for_each(self, mut f: impl FnMut(&[u8], V)) {
        for Entry { key_start, key_end, value, .. } in self.entries {
            if let Some(value) = value {
                f(&self.keys[key_start..key_end], value);
            }
        }
    }
}

/// Hash of an encoded key: the row's, if it has one.
#[inline]
pub(crate) fn hash_of(key: &[u8], from_row: Option<u32>) -> u32 {
    debug_assert!(from_row.is_none_or(|hash| hash == key_hash(key)), "the row carries the hash of another key");
    from_row.unwrap_or_else(|| key_hash(key))
}

/// Spreads a hash over all bits that the table looks at: it takes the place from the
/// low and a tag from the high bits.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use engine_rows::row;

    use super::*;

    #[test]
    fn equal_hashes_of_different_keys_are_kept_apart() {
        let mut state = KeyedState::new();
        for (hash, key, value) in [(7, "a", 1), (7, "b", 2), (8, "a", 3), (7, "a", 4)] {
            let slot = state.slot(hash, key.as_bytes());
            *state.value(slot) = Some(value);
        }
        let mut drained = Vec::new();
        state.drain().for_each(|key, value| drained.push((key.to_owned(), value)));
        assert_eq!(drained, [(b"a".to_vec(), 4), (b"b".to_vec(), 2), (b"a".to_vec(), 3)]);
        state.drain().for_each(|_, _| panic!("drained twice"));
    }

    #[test]
    fn loading_ahead_changes_nothing() {
        let keys = 0..50_000_u32;
        let mut state = KeyedState::new();
        for key in keys.clone() {
            let slot = state.slot(key, &key.to_le_bytes());
            *state.value(slot) = Some(key);
        }
        assert!(CACHED_BYTES_MAX < state.entries.len() * size_of::<Entry<u32>>());
        let mut batch = Vec::new();
        for key_hash in [7, 49_999, 50_000, u32::MAX] {
            row::append_with(&mut batch, key_hash, row::NO_TIMESTAMP, |_| {});
        }
        batch.push(0);
        state.load_ahead(&batch);
        let mut drained = Vec::new();
        state.drain().for_each(|_, value| drained.push(value));
        assert_eq!(drained, keys.collect::<Vec<_>>());
    }
}
