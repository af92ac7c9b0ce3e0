//! Keyed state and timers of the segment's first operator.
//!
//! The host keeps the state, by key group; the caches here keep what is in use as
//! values of Rust, and exchange with the host many entries at a time. What operators
//! are built on (the public handles, windows, joins) is one cache for each declared
//! state, made by the node's [`StateBackend`]:
//!
//! ```text
//! let mut counts: ValueCache<u64> = states.value("count");    // declared in the node
//! // each call that brings rows or timers:
//! counts.begin_batch();
//! if !counts.is_complete() {                                  // first pass
//!     for each row: counts.prefetch(row.key_hash, namespace, |out| encode its key);
//!     counts.fetch();
//! }
//! // each row:
//! let slot = counts.slot(hash, key, namespace);
//! *counts.value(slot).get_or_insert(0) += 1;
//! ```
//!
//! Keys are encoded, and `hash` is that of the key alone: the row's key-hash, or the
//! [`Timer`]'s. A namespace is empty or an encoded window ([`window_namespace`]).
//!
//! * A [`ValueCache`] keeps values, a [`ListCache`] encoded elements, which it appends
//!   without reading, a [`MapCache`] whole maps by bytes of their keys, or, of maps that
//!   are large, the pairs that were asked for.
//! * Slots are good until the next `begin_batch` of their cache. What was used since then
//!   stays; the rest may leave, what changed by one `put-many`, when the cache grows
//!   above its share of `state.cache.bytes`.
//! * A cache is complete while nothing left it and nothing was restored. Then nothing
//!   is read and the first pass is left out.
//! * With a time to live (`set_time_to_live`), what has ended is absent, here and in the host.
//! * State that belongs to no key ([`OperatorListState`], [`BroadcastState`]) lies in the
//!   plugin's memory; the host is handed it whole by a snapshot, and hands it out in `open`.
//! * `flush` is called before a barrier and at the end of the input, by way of
//!   `Function::flush_state`. Timers are sent at the end of each call by the segment, and
//!   before, if they are many.
//! * A changed value is held against `state.value.bytes-max` when another one is changed, when
//!   the next batch begins, or by the host when it is written.

mod place_index;
mod table;
mod cache_metrics;
mod wire;
mod value;
mod list;
mod map;
mod timers;
mod declare;
mod handles;
mod broadcast;
mod operator_list;
#[cfg(test)]
mod tests;

use std::{cell::Cell, rc::Rc};

pub use self::{
    broadcast::{BroadcastState, BroadcastStateWriter},
    declare::{StateTtlConfig, States, UpdateType},
    handles::{AggregatingState, ListState, MapState, ReducingState, ValueState},
    operator_list::OperatorListState,
};
use self::{cache_metrics::CacheMetrics, wire::StateId};
pub(crate) use self::{
    declare::{FunctionStates, Scope},
    list::ListCache,
    map::MapCache,
    operator_list::OperatorStates,
    table::Slot,
    timers::{Timer, Timers},
    value::ValueCache,
};
use crate::{
    bindings::{engine::plugin::graph::StreamNode, exports::engine::plugin::operator_chain::OperatorContext},
    host,
    operator::RuntimeContext,
    record::{Key, Owned, Record},
};

/// Processing time, asked for at most once in a call.
#[derive(Clone, Default)]
pub(crate) struct Clock(Rc<Cell<Option<i64>>>);

impl Clock {
    /// Milliseconds since the Unix epoch at the start of the call.
    pub(crate) fn now(&self) -> i64 {
        self.0.get().unwrap_or_else(|| {
            let now = host::processing_time();
            self.0.set(Some(now));
            now
        })
    }
}

/// How long values live.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TimeToLive {
    pub(crate) duration_ms: i64,
    /// True if reading makes a value live on, not only writing.
    pub(crate) on_read: bool,
}

/// The states of an operator at work. A clone is the same. Only the segment's first operator
/// has keyed state and timers.
#[derive(Clone)]
pub(crate) struct StateBackend(Rc<Shared>);

struct Shared {
    runtime: RuntimeContext,
    node: u32,
    /// Names of the states; their positions are what the host knows them by. None while
    /// a program declares its streams: nothing is read or written then.
    states: Option<Vec<String>>,
    /// Position of the first of them among all states of the segment.
    first_state: u32,
    /// Those of the segment that belong to no key.
    operator_states: OperatorStates,
    /// Bytes that each cache may take.
    cache_bytes: usize,
    /// Longest value, in bytes.
    value_bytes_max: usize,
    is_restored: bool,
    clock: Clock,
    timers: Timers,
    metrics: CacheMetrics,
}

impl StateBackend {
    /// For the first node of a segment.
    #[cfg(test)]
    pub(crate) fn new(context: &OperatorContext, runtime: RuntimeContext, node: &StreamNode) -> Self {
        Self::of_node(context, runtime, node, 0, OperatorStates::default())
    }

    /// For a node of a segment, the first of whose states has this position among all.
    pub(crate) fn of_node(
        context: &OperatorContext,
        runtime: RuntimeContext,
        node: &StreamNode,
        first_state: u32,
        operator_states: OperatorStates,
    ) -> Self {
        let states: Vec<_> = node.states.iter().map(|state| state.name.clone()).collect();
        let clock = Clock::default();
        let cache_bytes = usize::try_from(context.state_cache_bytes).unwrap_or(usize::MAX) / states.len().max(1);
        Self(Rc::new(Shared {
            runtime,
            node: node.id,
            states: Some(states),
            first_state,
            operator_states,
            cache_bytes,
            value_bytes_max: usize::try_from(context.state_value_bytes_max).unwrap_or(usize::MAX),
            is_restored: context.restored,
            timers: Timers::new(clock.clone()),
            clock,
            metrics: CacheMetrics::new(),
        }))
    }

    /// For functions that are made only to learn which states they declare.
    pub(crate) fn declaring() -> Self {
        let clock = Clock::default();
        Self(Rc::new(Shared {
            runtime: RuntimeContext::default(),
            node: 0,
            states: None,
            first_state: 0,
            operator_states: OperatorStates::default(),
            cache_bytes: 0,
            value_bytes_max: 0,
            is_restored: false,
            timers: Timers::new(clock.clone()),
            clock,
            metrics: CacheMetrics::new(),
        }))
    }

    /// Where the operator runs.
    pub(crate) fn runtime(&self) -> &RuntimeContext {
        &self.0.runtime
    }

    /// The timers of the operator.
    pub(crate) fn timers(&self) -> Timers {
        self.0.timers.clone()
    }

    /// The declared state of this name, of kind value, reducing or aggregating.
    ///
    /// # Panics
    /// Panics if the node declares no such state, as do the other kinds.
    pub(crate) fn value<V: Owned>(&self, name: &str) -> ValueCache<V> {
        let Shared { cache_bytes, is_restored, clock, metrics, .. } = &*self.0;
        ValueCache::new(self.state(name), (*cache_bytes, !is_restored), clock.clone(), metrics.of_cache())
    }

    /// The declared state of this name, of kind list.
    pub(crate) fn list<T: Record + ?Sized>(&self, name: &str) -> ListCache<T> {
        let Shared { cache_bytes, is_restored, clock, metrics, .. } = &*self.0;
        ListCache::new(self.state(name), (*cache_bytes, !is_restored), clock.clone(), metrics.of_cache())
    }

    /// The declared state of this name, of kind map.
    pub(crate) fn map<V: Owned>(&self, name: &str) -> MapCache<V> {
        let Shared { cache_bytes, is_restored, clock, metrics, .. } = &*self.0;
        MapCache::new(self.state(name), (*cache_bytes, !is_restored), clock.clone(), metrics.of_cache())
    }

    /// The declared list of this name, of kind operator list or operator union list.
    pub(crate) fn operator_list<T: Owned>(&self, name: &str) -> OperatorListState<T> {
        OperatorListState::new(self.operator_state(name), &self.0.operator_states)
    }

    /// The declared state of this name, of kind broadcast.
    pub(crate) fn broadcast<M: Key + ?Sized, V: Owned>(&self, name: &str) -> BroadcastState<M, V> {
        BroadcastState::new(self.operator_state(name), &self.0.operator_states)
    }

    /// The operator states of the whole segment.
    pub(crate) fn operator_states(&self) -> &OperatorStates {
        &self.0.operator_states
    }

    /// None while a program declares its streams.
    fn operator_state(&self, name: &str) -> Option<StateId> {
        self.0.states.is_some().then(|| self.state(name))
    }

    fn state(&self, name: &str) -> StateId {
        let Shared { states, node, first_state, value_bytes_max, .. } = &*self.0;
        let index = match states {
            Some(states) => (*first_state..).zip(states).find(|(_, state)| *state == name).map(|(index, _)| index),
            None => Some(0),
        };
        let index = index.expect("the node declares the states that it uses");
        StateId { index, node: *node, name: name.to_owned(), value_bytes_max: *value_bytes_max }
    }

    /// Begins a call of the host.
    pub(crate) fn begin_call(&self) {
        self.0.clock.0.set(None);
    }

    /// Ends a call of the host that did not fail.
    pub(crate) fn end_call(&self) {
        self.0.timers.end_call();
        self.0.metrics.end_call(self.0.node);
    }

    /// Has what the caches did shown at the end of this call: another one may be long in coming.
    pub(crate) fn show_metrics(&self) {
        self.0.metrics.set_due();
    }
}

/// The namespace of a window: start and end (milliseconds since the Unix epoch), so that
/// bytes sort as the numbers do.
pub(crate) fn window_namespace(start: i64, end: i64) -> [u8; 16] {
    let sortable = |time: i64| (time.cast_unsigned() ^ (1 << 63)).to_be_bytes();
    let mut namespace = [0; 16];
    namespace[..8].copy_from_slice(&sortable(start));
    namespace[8..].copy_from_slice(&sortable(end));
    namespace
}

/// The window that a namespace stands for: start and end.
pub(crate) fn window_of(namespace: &[u8]) -> Option<(i64, i64)> {
    let (start, end) = namespace.split_first_chunk::<8>()?;
    let time = |bytes: [u8; 8]| (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed();
    Some((time(*start), time(end.try_into().ok()?)))
}
