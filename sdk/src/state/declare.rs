//! [`States`]: how a function declares its keyed states and gets hold of them.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use super::{
    StateBackend, TimeToLive,
    broadcast::BroadcastState,
    handles::{AggregatingState, ListState, MapState, ReducingState, ValueState},
    operator_list::OperatorListState,
};
use crate::{
    bindings::engine::plugin::graph::{StateDeclaration, StateKind},
    graph::state,
    operator::AggregateFunction,
    record::{Key, Owned, Record, descriptor_of},
};

/// Declares the keyed states of a function and hands out what it uses them by.
///
/// The closure that gets it is called once while the program declares its streams, to
/// learn the states, and again in each subtask. It must declare the same states each
/// time; the names are those under which state is kept, each used once.
///
/// ```
/// use engine_sdk::{TestHarness, prelude::*};
///
/// /// Passes on the first record of each key.
/// struct Deduplicate {
///     seen: ValueState<bool>,
/// }
///
/// impl KeyedProcessFunction<str, str> for Deduplicate {
///     type Output = str;
///
///     fn process_element(&self, line: &str, _: &mut KeyedContext<'_, str>, out: &mut Collector<str>) -> Result<()> {
///         if self.seen.value().is_none() {
///             self.seen.update(true);
///             out.collect(line);
///         }
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
///     lines.key_by_ref(|line| line).process(|states| Deduplicate { seen: states.value("seen") })
/// })?;
/// for line in ["a", "b", "a"] {
///     harness.push::<str>(line)?;
/// }
/// assert_eq!(harness.lines()?, ["a", "b"]);
/// # Ok(())
/// # }
/// ```
pub struct States {
    backend: StateBackend,
    declared: Rc<RefCell<Vec<StateDeclaration>>>,
    caches: Vec<Rc<dyn Cached>>,
    scope: Rc<Scope>,
}

/// The key that is being processed, encoded, and a namespace.
#[derive(Default)]
pub(crate) struct Scope {
    hash: Cell<u32>,
    /// Grows with each change, so that handles know when their slot is void.
    generation: Cell<u64>,
    has_key: Cell<bool>,
    key: RefCell<Vec<u8>>,
    namespace: RefCell<Vec<u8>>,
}

impl Scope {
    /// Makes a key the current one.
    #[inline]
    pub(crate) fn set(&self, hash: u32, key: &[u8]) {
        self.hash.set(hash);
        self.has_key.set(true);
        self.generation.set(self.generation.get() + 1);
        let own = &mut *self.key.borrow_mut();
        own.clear();
        own.extend_from_slice(key);
    }

    /// Sets the namespace of the states from here on.
    pub(crate) fn set_namespace(&self, namespace: &[u8]) {
        self.generation.set(self.generation.get() + 1);
        let own = &mut *self.namespace.borrow_mut();
        own.clear();
        own.extend_from_slice(namespace);
    }

    /// Voids the slots of the last batch.
    pub(crate) fn begin_batch(&self) {
        self.generation.set(self.generation.get() + 1);
    }

    /// There is no key until one is set.
    pub(crate) fn leave(&self) {
        self.has_key.set(false);
        self.begin_batch();
    }

    /// # Panics
    /// Panics if there is no key.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        assert!(self.has_key.get(), "keyed state was used where there is no key: it belongs to a record or a timer");
        self.generation.get()
    }

    /// Lends hash, encoded key and namespace.
    pub(crate) fn with<R>(&self, f: impl FnOnce(u32, &[u8], &[u8]) -> R) -> R {
        f(self.hash.get(), &self.key.borrow(), &self.namespace.borrow())
    }
}

/// A cache of whatever type, as the operator that owns the function uses it.
pub(crate) trait Cached {
    /// Begins a batch; false if the cache needs no first pass.
    fn begin_batch(&self) -> bool;
    /// First pass over a batch: `each` hands out hash, namespace and what encodes the key.
    fn prefetch(&self, each: &mut dyn FnMut(&mut Prefetch<'_>));
    fn flush(&self);
}

/// Takes hash, namespace and what appends the encoded key.
pub(crate) type Prefetch<'p> = dyn FnMut(u32, &[u8], &mut dyn FnMut(&mut Vec<u8>)) + 'p;

/// The states of a function at work.
pub(crate) struct FunctionStates {
    caches: Vec<Rc<dyn Cached>>,
    pub(crate) scope: Rc<Scope>,
}

impl FunctionStates {
    /// Begins a batch; `each` hands out what the batch will need.
    pub(crate) fn begin_batch(&self, mut each: impl FnMut(&mut Prefetch<'_>)) {
        self.scope.begin_batch();
        for cache in &self.caches {
            if cache.begin_batch() {
                cache.prefetch(&mut each);
            }
        }
    }

    pub(crate) fn flush(&self) {
        self.caches.iter().for_each(|cache| cache.flush());
    }
}

impl States {
    pub(crate) fn new(backend: StateBackend) -> Self {
        Self { backend, declared: Rc::default(), caches: Vec::new(), scope: Rc::default() }
    }

    /// The states that a constructor declares.
    pub(crate) fn declared_by<F>(make: impl FnOnce(&mut Self) -> F) -> Vec<StateDeclaration> {
        let mut states = Self::new(StateBackend::declaring());
        make(&mut states);
        states.into_declared()
    }

    /// What was declared so far.
    pub(crate) fn into_declared(self) -> Vec<StateDeclaration> {
        self.declared.take()
    }

    /// Makes a function with its states.
    pub(crate) fn make<F>(backend: &StateBackend, make: impl FnOnce(&mut Self) -> F) -> (F, FunctionStates) {
        let mut states = Self::new(backend.clone());
        let function = make(&mut states);
        (function, states.into_function_states())
    }

    /// The states, for the operator that owns the function.
    pub(crate) fn into_function_states(self) -> FunctionStates {
        FunctionStates { caches: self.caches, scope: self.scope }
    }

    /// A value for each key.
    pub fn value<V: Owned>(&mut self, name: &str) -> ValueState<V> {
        let declaration = self.declare(state::<V>(name, StateKind::Value));
        let state = ValueState::new(self.backend.value(name), self.scope.clone(), declaration);
        self.caches.push(state.cached());
        state
    }

    /// A list for each key.
    pub fn list<T: Record + ?Sized>(&mut self, name: &str) -> ListState<T> {
        let declaration = self.declare(state::<T>(name, StateKind::List));
        let state = ListState::new(self.backend.list(name), self.scope.clone(), declaration);
        self.caches.push(state.cached());
        state
    }

    /// A map for each key.
    pub fn map<M: Key + ?Sized, V: Owned>(&mut self, name: &str) -> MapState<M, V> {
        let declaration =
            StateDeclaration { map_key_type: Some(descriptor_of::<M>()), ..state::<V>(name, StateKind::Map) };
        let declaration = self.declare(declaration);
        let state = MapState::new(self.backend.map(name), self.scope.clone(), declaration);
        self.caches.push(state.cached());
        state
    }

    /// A value for each key, to which what is added is reduced.
    pub fn reducing<V: Owned>(&mut self, name: &str, reduce: impl Fn(V, V) -> V + 'static) -> ReducingState<V> {
        let declaration = self.declare(state::<V>(name, StateKind::Reducing));
        let value = ValueState::new(self.backend.value(name), self.scope.clone(), declaration);
        self.caches.push(value.cached());
        ReducingState::new(value, reduce)
    }

    /// An accumulator for each key, to which records are added.
    pub fn aggregating<T, A>(&mut self, name: &str, function: A) -> AggregatingState<T, A>
    where
        T: Record + ?Sized,
        A: AggregateFunction<T>,
    {
        let declaration = self.declare(state::<A::Accumulator>(name, StateKind::Aggregating));
        let value = ValueState::new(self.backend.value(name), self.scope.clone(), declaration);
        self.caches.push(value.cached());
        AggregatingState::new(value, function)
    }

    /// A map that each subtask keeps whole, for functions behind a broadcast stream.
    pub fn broadcast<M: Key + ?Sized, V: Owned>(&mut self, name: &str) -> BroadcastState<M, V> {
        self.declare(StateDeclaration {
            map_key_type: Some(descriptor_of::<M>()),
            ..state::<V>(name, StateKind::Broadcast)
        });
        self.backend.broadcast(name)
    }

    /// A list of each subtask, which belongs to no key. With another parallelism its elements
    /// are dealt to the subtasks.
    pub fn operator_list<T: Owned>(&mut self, name: &str) -> OperatorListState<T> {
        self.declare(state::<T>(name, StateKind::OperatorList));
        self.backend.operator_list(name)
    }

    /// As [`States::operator_list`]; whenever the job goes on, each subtask has the elements of all.
    pub fn operator_union_list<T: Owned>(&mut self, name: &str) -> OperatorListState<T> {
        self.declare(state::<T>(name, StateKind::OperatorUnionList));
        self.backend.operator_list(name)
    }

    fn declare(&self, declaration: StateDeclaration) -> Declaration {
        let mut declared = self.declared.borrow_mut();
        declared.push(declaration);
        Declaration { declared: self.declared.clone(), place: declared.len() - 1 }
    }
}

/// Place of a state's declaration, for settings that follow.
#[derive(Clone)]
pub(super) struct Declaration {
    declared: Rc<RefCell<Vec<StateDeclaration>>>,
    place: usize,
}

impl Declaration {
    pub(super) fn set_time_to_live(&self, time_to_live: TimeToLive) {
        if let Some(declaration) = self.declared.borrow_mut().get_mut(self.place) {
            declaration.time_to_live = Some(time_to_live.duration_ms.unsigned_abs());
        }
    }
}

/// When an entry's time to live begins anew.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum UpdateType {
    /// When it is made or written.
    #[default]
    OnCreateAndWrite,
    /// When it is read, too. Walking over a map reads the pairs that are handed out: each is written
    /// anew, those of a large map at once. Asking a map whether it is empty reads none.
    OnReadAndWrite,
}

/// How long state is kept, in processing time; as Flink's `StateTtlConfig`.
///
/// Values, elements of a list and pairs of a map end one by one. What has ended is
/// never read, and is dropped by and by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateTtlConfig {
    duration: Duration,
    update_type: UpdateType,
}

impl StateTtlConfig {
    /// Keeps state for this long, to the millisecond, since it was made or written.
    /// A shorter time than a millisecond is refused on submission.
    pub fn new(duration: Duration) -> Self {
        Self { duration, update_type: UpdateType::default() }
    }

    /// Sets when the time begins anew.
    #[must_use]
    pub fn update_type(self, update_type: UpdateType) -> Self {
        Self { update_type, ..self }
    }

    pub(crate) fn time_to_live(self) -> TimeToLive {
        TimeToLive {
            duration_ms: i64::try_from(self.duration.as_millis()).unwrap_or(i64::MAX),
            on_read: self.update_type == UpdateType::OnReadAndWrite,
        }
    }
}
