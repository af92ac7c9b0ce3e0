//! State that belongs to no key: lists of a subtask, in the plugin's memory until a snapshot.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use super::wire::{StateId, write_counted_with};
use crate::{
    host,
    record::{Owned, Reader},
};

/// State that is handed to the host whole, when a snapshot is taken.
pub(crate) trait OperatorState {
    /// Lets the host know what changed.
    fn snapshot(&self);
}

/// The operator states of all operators of a segment. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct OperatorStates(Rc<RefCell<Vec<Rc<dyn OperatorState>>>>);

impl OperatorStates {
    pub(super) fn add(&self, state: Rc<dyn OperatorState>) {
        self.0.borrow_mut().push(state);
    }

    /// Lets the host know what changed of all of them.
    pub(crate) fn snapshot(&self) {
        self.0.borrow().iter().for_each(|state| state.snapshot());
    }
}

/// The elements that were restored, each as its bytes.
pub(super) fn restored_elements(state: &StateId, mut element: impl FnMut(&[u8])) {
    let elements = host::get_operator_state(state.index);
    let mut reader = Reader::new(&elements);
    while 0 < reader.remaining() {
        let bytes = reader.count().and_then(|count| reader.bytes(count));
        element(bytes.expect("the host hands out whole elements"));
    }
}

/// A list of a subtask that belongs to no key; as a `ListState` of Flink's operator state.
///
/// It lies in the plugin's memory, and a snapshot takes all of it: it is for a few elements,
/// such as the position of a source. When a job goes on with another parallelism, the elements
/// are dealt to the subtasks, or, of a union list, all of them go to each. Made by
/// [`super::States::operator_list`] and [`super::States::operator_union_list`].
pub struct OperatorListState<T>(Rc<Elements<T>>);

struct Elements<T> {
    /// None while a program declares its streams.
    state: Option<StateId>,
    elements: RefCell<Vec<T>>,
    /// The host does not know the elements.
    is_changed: Cell<bool>,
}

impl<T: Owned> OperatorListState<T> {
    /// Takes what was restored.
    pub(super) fn new(state: Option<StateId>, states: &OperatorStates) -> Self {
        let mut elements = Vec::new();
        if let Some(state) = &state {
            restored_elements(state, |bytes| elements.extend(state.decode(&[], bytes)));
        }
        let has_state = state.is_some();
        let shared = Rc::new(Elements { state, elements: RefCell::new(elements), is_changed: Cell::new(false) });
        if has_state {
            states.add(shared.clone());
        }
        Self(shared)
    }

    /// Copies of the elements.
    pub fn get(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.0.elements.borrow().clone()
    }

    /// Hands out the elements.
    pub fn for_each(&self, f: impl FnMut(&T)) {
        self.0.elements.borrow().iter().for_each(f);
    }

    /// True if there are no elements: of a job that goes on, too, if this subtask was dealt none.
    pub fn is_empty(&self) -> bool {
        self.0.elements.borrow().is_empty()
    }

    /// Appends an element.
    pub fn add(&self, element: T) {
        self.0.elements.borrow_mut().push(element);
        self.0.is_changed.set(true);
    }

    /// Replaces the elements.
    pub fn update(&self, elements: impl IntoIterator<Item = T>) {
        let mut own = self.0.elements.borrow_mut();
        own.clear();
        own.extend(elements);
        self.0.is_changed.set(true);
    }

    /// Removes all elements.
    pub fn clear(&self) {
        self.update([]);
    }
}

impl<T: Owned> OperatorState for Elements<T> {
    fn snapshot(&self) {
        let Some(state) = self.state.as_ref().filter(|_| self.is_changed.take()) else { return };
        let mut bytes = Vec::new();
        for element in &*self.elements.borrow() {
            write_counted_with(&mut bytes, |out| T::encode(element, out));
        }
        host::put_operator_state(state.index, &bytes);
    }
}
