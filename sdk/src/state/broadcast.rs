//! [`BroadcastState`]: a map that each subtask keeps whole, in the plugin's memory.

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::BTreeMap,
    marker::PhantomData,
    rc::Rc,
};

use super::{
    operator_list::{OperatorState, OperatorStates, restored_elements},
    wire::{StateId, write_counted, write_counted_with},
};
use crate::{
    host,
    record::{Key, Owned, Reader},
};

struct Pairs<V> {
    /// None while a program declares its streams.
    state: Option<StateId>,
    /// Values by encoded key.
    values: RefCell<BTreeMap<Box<[u8]>, V>>,
    /// The host does not know the pairs.
    is_changed: Cell<bool>,
}

impl<V: Owned> OperatorState for Pairs<V> {
    fn snapshot(&self) {
        let Some(state) = self.state.as_ref().filter(|_| self.is_changed.take()) else { return };
        let mut bytes = Vec::new();
        for (key, value) in &*self.values.borrow() {
            // An element of a broadcast state: u32 length and bytes of the key, and the bytes of the value.
            write_counted_with(&mut bytes, |out| {
                write_counted(key, out);
                V::encode(value, out);
            });
        }
        host::put_operator_state(state.index, &bytes);
    }
}

fn restored_pairs<V: Owned>(state: &StateId) -> BTreeMap<Box<[u8]>, V> {
    let mut pairs = BTreeMap::new();
    restored_elements(state, |element| {
        let mut reader = Reader::new(element);
        let key = reader.count().and_then(|count| reader.bytes(count));
        let key = key.expect("a snapshot wrote whole pairs");
        let value = &element[element.len() - reader.remaining()..];
        pairs.extend(state.decode(key, value).map(|value| (key.into(), value)));
    });
    pairs
}

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
    pairs: Rc<Pairs<V>>,
    _key: PhantomData<Rc<M>>,
}

impl<M: Key + ?Sized, V: Owned> BroadcastState<M, V> {
    /// Takes what was restored.
    pub(super) fn new(state: Option<StateId>, states: &OperatorStates) -> Self {
        let values = state.as_ref().map(restored_pairs).unwrap_or_default();
        let has_state = state.is_some();
        let pairs = Rc::new(Pairs { state, values: RefCell::new(values), is_changed: Cell::new(false) });
        if has_state {
            states.add(pairs.clone());
        }
        Self { pairs, _key: PhantomData }
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
        M::with_encoded(key, &mut Vec::new(), |key| f(self.pairs.values.borrow().get(key)))
    }

    /// True if there is a value under a key.
    pub fn contains(&self, key: M::Ref<'_>) -> bool {
        self.with(key, |value| value.is_some())
    }

    /// Hands out the pairs, in the order of the bytes of their encoded keys.
    pub fn for_each(&self, mut f: impl FnMut(M::Ref<'_>, &V)) {
        for (key, value) in &*self.pairs.values.borrow() {
            M::decode(key, |key| f(M::peek(&key), value)).expect("keys of the map were encoded here");
        }
    }

    /// True if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.values.borrow().is_empty()
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
    fn change(&self) -> RefMut<'_, BTreeMap<Box<[u8]>, V>> {
        self.state.pairs.is_changed.set(true);
        self.state.pairs.values.borrow_mut()
    }

    /// Sets the value under a key.
    pub fn put(&self, key: M::Ref<'_>, value: V) {
        M::with_encoded(key, &mut Vec::new(), |key| self.change().insert(key.into(), value));
    }

    /// Removes the value under a key.
    pub fn remove(&self, key: M::Ref<'_>) {
        M::with_encoded(key, &mut Vec::new(), |key| self.change().remove(key));
    }

    /// Removes all pairs.
    pub fn clear(&self) {
        self.change().clear();
    }
}
