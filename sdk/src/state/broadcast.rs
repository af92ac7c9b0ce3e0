//! [`BroadcastState`]: a map that each subtask keeps whole, in the plugin's memory.

use std::{cell::RefCell, collections::BTreeMap, marker::PhantomData, rc::Rc};

use crate::record::{Key, Owned};

/// Values by encoded key.
type Values<V> = Rc<RefCell<BTreeMap<Box<[u8]>, V>>>;

/// A map that all subtasks have alike, as the records of a broadcast stream made it; as
/// Flink's `BroadcastState`.
///
/// It can be read for the records of both inputs, and written for those of the broadcast
/// input alone, by [`crate::BroadcastContext::broadcast_state`]: what the other input
/// brings differs between subtasks. It must be made the same from the same broadcast
/// records. Made by [`super::States::broadcast`].
///
/// ```compile_fail
/// # use engine_sdk::prelude::*;
/// fn process_element(rules: &BroadcastState<str, u64>, number: u64) { rules.put("last", number); }
/// ```
pub struct BroadcastState<M: ?Sized, V> {
    values: Values<V>,
    _key: PhantomData<Rc<M>>,
}

impl<M: Key + ?Sized, V: Owned> BroadcastState<M, V> {
    pub(super) fn new() -> Self {
        Self { values: Rc::default(), _key: PhantomData }
    }

    /// A copy of the value under a key.
    pub fn get(&self, key: M::Ref<'_>) -> Option<V>
    where
        V: Clone,
    {
        self.with(key, |value| value.cloned())
    }

    /// Lends the value under a key.
    pub fn with<R>(&self, key: M::Ref<'_>, f: impl FnOnce(Option<&V>) -> R) -> R {
        M::with_encoded(key, &mut Vec::new(), |key| f(self.values.borrow().get(key)))
    }

    /// True if there is a value under a key.
    pub fn contains(&self, key: M::Ref<'_>) -> bool {
        self.with(key, |value| value.is_some())
    }

    /// Hands out the pairs, in the order of the bytes of their encoded keys.
    pub fn for_each(&self, mut f: impl FnMut(M::Ref<'_>, &V)) {
        for (key, value) in &*self.values.borrow() {
            M::decode(key, |key| f(M::peek(&key), value)).expect("keys of the map were encoded here");
        }
    }

    /// True if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.values.borrow().is_empty()
    }

    pub(crate) fn writer(&self) -> BroadcastStateWriter<'_, M, V> {
        BroadcastStateWriter { state: self }
    }
}

/// Writes a [`BroadcastState`].
pub struct BroadcastStateWriter<'s, M: ?Sized, V> {
    state: &'s BroadcastState<M, V>,
}

impl<M: Key + ?Sized, V: Owned> BroadcastStateWriter<'_, M, V> {
    /// Sets the value under a key.
    pub fn put(&self, key: M::Ref<'_>, value: V) {
        M::with_encoded(key, &mut Vec::new(), |key| self.state.values.borrow_mut().insert(key.into(), value));
    }

    /// Removes the value under a key.
    pub fn remove(&self, key: M::Ref<'_>) {
        M::with_encoded(key, &mut Vec::new(), |key| self.state.values.borrow_mut().remove(key));
    }

    /// Removes all pairs.
    pub fn clear(&self) {
        self.state.values.borrow_mut().clear();
    }
}
