//! The records that a join keeps of one input.

use std::{marker::PhantomData, rc::Rc};

use engine_rows::row::Rows;

use crate::{
    current,
    error::Outcome,
    key::{KeySelector, encode_key_of, hash_of},
    operator::Element,
    record::{Key, Pair, Record},
    state::ListCache,
};

/// Names of the states.
pub(super) const LEFT: &str = "left";
pub(super) const RIGHT: &str = "right";

/// One input of a join: how records are asked for their key, and those that came.
pub(super) struct Side<T: ?Sized, K: ?Sized, S> {
    selector: Rc<S>,
    pub(super) rows: ListCache<Pair<T, i64>>,
    _key: PhantomData<Rc<K>>,
}

impl<T, K, S> Side<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    pub(super) fn new(selector: Rc<S>, rows: ListCache<Pair<T, i64>>) -> Self {
        Self { selector, rows, _key: PhantomData }
    }

    /// Encodes the key of a record into `key`, and returns its hash.
    #[inline]
    pub(super) fn take_key(&self, record: T::Ref<'_>, element: Element, key: &mut Vec<u8>) -> u32 {
        key.clear();
        self.selector.with_key(record, |of_record| K::encode(of_record, key));
        hash_of(key, element.key_hash)
    }

    /// Begins a batch of rows of this input: what they will read of the other is read in one
    /// go. `namespaces` says by timestamp which lists that are.
    pub(super) fn begin_batch<U, N>(
        &mut self,
        other: &mut ListCache<Pair<U, i64>>,
        batch: &[u8],
        namespaces: impl Fn(i64) -> N,
    ) where
        U: Record + ?Sized,
        N: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.rows.begin_batch();
        other.begin_batch();
        if other.is_complete() {
            return;
        }
        for row in Rows::new(batch).map_while(Result::ok) {
            for namespace in namespaces(row.timestamp) {
                let key = |out: &mut Vec<u8>| encode_key_of::<T, K, S>(&self.selector, row.payload, out);
                other.prefetch(row.key_hash, namespace.as_ref(), key);
            }
        }
        other.fetch();
    }
}

/// Rejects the record that is being processed if the closure returned an error for a pair.
#[inline]
pub(super) fn settle(outcome: impl Outcome) {
    if let Err(error) = outcome.into_result() {
        current::reject(current::node(), &error);
    }
}
