//! Regular joins: all pairs of records of two streams that have one key.

use std::rc::Rc;

use super::{
    KeyedInputs,
    side::{LEFT, RIGHT, Side, settle},
};
use crate::{
    bindings::engine::plugin::graph::{StateDeclaration, StateKind},
    collector::Collector,
    data_stream::DataStream,
    error::Outcome,
    graph,
    key::KeySelector,
    keyed_stream::KeyedStream,
    operator::{Element, SideOutputs, TwoInputFunction},
    record::{Key, Pair, Record},
    state::{ListCache, StateBackend, StateTtlConfig, TimeToLive},
};

impl<L, K, A> KeyedStream<L, K, A>
where
    L: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
{
    /// Joins all records of this stream with all of another that have the same key; as the
    /// regular inner join of Flink SQL.
    ///
    /// The records of both streams are kept for ever, or as long as
    /// [`RegularJoin::enable_time_to_live`] says. Each pair is handed out once, as soon as both of its
    /// records have come, in whatever order they do.
    ///
    /// What is kept of one key, for each stream, is one list, bounded by `state.value.bytes-max`
    /// (16 MB): a key that has more fails the job. With a time to live, what has ended is dropped by and
    /// by, and counts until then.
    ///
    /// ```
    /// # use engine_sdk::prelude::*;
    /// # #[derive(Record)] struct Order { customer: u64, amount: u64 }
    /// # #[derive(Record)] struct Customer { id: u64, name: String }
    /// # fn named(orders: DataStream<Order>, customers: DataStream<Customer>) -> DataStream<str> {
    /// orders
    ///     .key_by(|order| order.customer)
    ///     .regular_join(&customers.key_by(|customer| customer.id))
    ///     .process(|order, customer, out: &mut Collector<str>| out.csv((&*customer.name, order.amount)))
    /// # }
    /// ```
    pub fn regular_join<R, B>(&self, other: &KeyedStream<R, K, B>) -> RegularJoin<L, R, K, A, B>
    where
        R: Record + ?Sized,
        B: KeySelector<R, K>,
    {
        RegularJoin { inputs: KeyedInputs { left: self.clone(), right: other.clone() }, time_to_live: None }
    }
}

/// Two keyed streams that are joined whatever their time.
pub struct RegularJoin<L: ?Sized, R: ?Sized, K: ?Sized, A, B> {
    inputs: KeyedInputs<L, R, K, A, B>,
    time_to_live: Option<TimeToLive>,
}

impl<L, R, K, A, B> RegularJoin<L, R, K, A, B>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
{
    /// Keeps each record only this long after it came. A pair whose records come further
    /// apart is not found.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        Self { time_to_live: Some(config.time_to_live()), ..self }
    }

    /// Hands each pair to the closure, which may hand any number of records to the collector.
    /// They get the greater of the timestamps of both records, or none if neither has one.
    ///
    /// An error that the closure returns rejects the record that completed the pair.
    pub fn process<U, F, O>(&self, function: F) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: for<'l, 'r> Fn(L::Ref<'l>, R::Ref<'r>, &mut Collector<U>) -> O + 'static,
        O: Outcome + 'static,
    {
        let function = Rc::new(function);
        let time_to_live = self.time_to_live;
        let states = vec![rows_state::<L>(LEFT, time_to_live), rows_state::<R>(RIGHT, time_to_live)];
        self.inputs.operator(("Join", "RegularJoin"), states, move |left, right, states| RegularJoinFunction {
            left: Side::<L, K, A>::new(left, rows(states, LEFT, time_to_live)),
            right: Side::<R, K, B>::new(right, rows(states, RIGHT, time_to_live)),
            function: Rc::clone(&function),
            key: Vec::new(),
        })
    }
}

fn rows_state<T: Record + ?Sized>(name: &str, time_to_live: Option<TimeToLive>) -> StateDeclaration {
    let time_to_live = time_to_live.map(|ttl| ttl.duration_ms.cast_unsigned());
    StateDeclaration { time_to_live, ..graph::state::<Pair<T, i64>>(name, StateKind::List) }
}

fn rows<T: Record + ?Sized>(
    states: &StateBackend,
    name: &str,
    time_to_live: Option<TimeToLive>,
) -> ListCache<Pair<T, i64>> {
    let mut rows = states.list(name);
    if let Some(time_to_live) = time_to_live {
        rows.set_time_to_live(time_to_live);
    }
    rows
}

struct RegularJoinFunction<L: ?Sized, R: ?Sized, K: ?Sized, A, B, F> {
    left: Side<L, K, A>,
    right: Side<R, K, B>,
    function: Rc<F>,
    /// The encoded key of the record that is being processed.
    key: Vec<u8>,
}

/// Keeps a record, and finds those of the other input: `pair` is handed their timestamps.
#[inline(always)]
fn join<T, U, K, S, C>(
    own: &mut Side<T, K, S>,
    other: &mut Side<U, K, C>,
    key: &mut Vec<u8>,
    record: T::Ref<'_>,
    element: Element,
    mut pair: impl FnMut(i64, U::Ref<'_>),
) where
    T: Record + ?Sized,
    U: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    C: KeySelector<U, K>,
{
    let hash = own.take_key(record, element, key);
    let slot = own.rows.slot(hash, key, &[]);
    own.rows.append(slot, (T::shorten(record), &element.timestamp));
    if let Some(slot) = other.rows.slot_of_some(hash, key, &[]) {
        other.rows.for_each(slot, |(other, timestamp)| pair(timestamp, other));
    }
}

impl<L, R, K, A, B, U, F, O> TwoInputFunction<L, R, U> for RegularJoinFunction<L, R, K, A, B, F>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
    U: Record + ?Sized,
    F: for<'l, 'r> Fn(L::Ref<'l>, R::Ref<'r>, &mut Collector<U>) -> O + 'static,
    O: Outcome + 'static,
{
    fn begin_batch(&mut self, input: u32, rows: &[u8]) {
        let Self { left, right, .. } = self;
        match input {
            0 => left.begin_batch(&mut right.rows, rows, |_| [[]]),
            _ => right.begin_batch(&mut left.rows, rows, |_| [[]]),
        }
    }

    #[inline(always)]
    fn process1(&mut self, record: L::View<'_>, element: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { left, right, function, key } = self;
        let record = L::peek(&record);
        join(left, right, key, record, element, |timestamp, other| {
            out.set_timestamp(timestamp.max(element.timestamp));
            settle(function(record, other, out));
        });
    }

    #[inline(always)]
    fn process2(&mut self, record: R::View<'_>, element: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { left, right, function, key } = self;
        let record = R::peek(&record);
        join(right, left, key, record, element, |timestamp, other| {
            out.set_timestamp(timestamp.max(element.timestamp));
            settle(function(other, record, out));
        });
    }

    fn flush_state(&mut self) {
        self.left.rows.flush();
        self.right.rows.flush();
    }
}
