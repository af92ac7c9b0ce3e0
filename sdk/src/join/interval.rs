//! Interval joins: pairs of records with one key whose timestamps are close.
//!
//! The records of each input are kept in buckets of time, as wide as the interval: a
//! record finds all that it can be paired with in two of them, and a bucket is dropped
//! as a whole, by one timer. Which records count as still there is decided by their own
//! timestamps, as in Flink, which has a timer for each. A record that comes at the
//! watermark itself and has no time left is there until the next watermark, with which its
//! timer fires; it is kept in a list of its own, since one with the same timestamp that
//! came before this watermark is gone.

use std::rc::Rc;

use engine_rows::row::NO_TIMESTAMP;

use super::{
    KeyedInputs,
    side::{LEFT, RIGHT, Side, settle},
};
use crate::{
    bindings::{engine::plugin::graph::StateKind, exports::engine::plugin::operator_chain::TimeDomain},
    collector::Collector,
    current,
    data_stream::{DataStream, OutputTag},
    error::{Error, Outcome},
    graph,
    key::KeySelector,
    keyed_stream::KeyedStream,
    metrics::Counter,
    operator::{Element, SideOutputs, TwoInputFunction},
    record::{Key, Pair, Record},
    state::{ListCache, Timer, Timers},
    window::{LATE_RECORDS, LATE_RECORDS_DROPPED},
};

impl<L, K, A> KeyedStream<L, K, A>
where
    L: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
{
    /// Joins records of this stream with those of another that have the same key and a
    /// timestamp within an interval around theirs.
    ///
    /// ```
    /// # use engine_sdk::prelude::*;
    /// # #[derive(Record)] struct Order { id: u64, amount: u64 }
    /// # #[derive(Record)] struct Payment { order: u64, amount: u64 }
    /// # fn paid(orders: DataStream<Order>, payments: DataStream<Payment>) -> DataStream<str> {
    /// // Payments that come within an hour.
    /// orders
    ///     .key_by(|order| order.id)
    ///     .interval_join(&payments.key_by(|payment| payment.order))
    ///     .between(0, 3_600_000)
    ///     .process(|order, payment, _, out: &mut Collector<str>| out.csv((order.id, order.amount, payment.amount)))
    /// # }
    /// ```
    ///
    /// For each stream, the records of a key are kept in parts of time as long as the interval; each
    /// part is bounded by `state.value.bytes-max` (16 MB): a key that has more of them fails the job.
    pub fn interval_join<R, B>(&self, other: &KeyedStream<R, K, B>) -> IntervalJoin<L, R, K, A, B>
    where
        R: Record + ?Sized,
        B: KeySelector<R, K>,
    {
        IntervalJoin { inputs: KeyedInputs { left: self.clone(), right: other.clone() } }
    }
}

/// Two keyed streams of which records with close timestamps are joined.
pub struct IntervalJoin<L: ?Sized, R: ?Sized, K: ?Sized, A, B> {
    inputs: KeyedInputs<L, R, K, A, B>,
}

impl<L, R, K, A, B> IntervalJoin<L, R, K, A, B>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
{
    /// Pairs a record with those of the other stream whose timestamps lie between its own
    /// plus `lower` and its own plus `upper`, both included. Milliseconds; either may be
    /// negative, `lower` not above `upper`.
    pub fn between(self, lower: i64, upper: i64) -> IntervalJoined<L, R, K, A, B> {
        if upper < lower {
            let message = format!("between: the lower bound of {lower} ms is above the upper bound of {upper} ms");
            self.inputs.left.graph.borrow_mut().error(message);
        }
        IntervalJoined { inputs: self.inputs, lower, upper, late_left: None, late_right: None }
    }
}

/// An interval join that lacks only what is done with each pair.
pub struct IntervalJoined<L: ?Sized, R: ?Sized, K: ?Sized, A, B> {
    inputs: KeyedInputs<L, R, K, A, B>,
    /// Bounds in milliseconds, both included.
    lower: i64,
    upper: i64,
    late_left: Option<OutputTag<L>>,
    late_right: Option<OutputTag<R>>,
}

impl<L, R, K, A, B> IntervalJoined<L, R, K, A, B>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
{
    /// Excludes the lower bound.
    #[must_use]
    pub fn lower_bound_exclusive(self) -> Self {
        Self { lower: self.lower.saturating_add(1), ..self }
    }

    /// Excludes the upper bound.
    #[must_use]
    pub fn upper_bound_exclusive(self) -> Self {
        Self { upper: self.upper.saturating_sub(1), ..self }
    }

    /// Hands late records of the first stream to a side output.
    #[must_use]
    pub fn side_output_left_late_data(self, tag: &OutputTag<L>) -> Self {
        Self { late_left: Some(tag.clone()), ..self }
    }

    /// Hands late records of the second stream to a side output.
    #[must_use]
    pub fn side_output_right_late_data(self, tag: &OutputTag<R>) -> Self {
        Self { late_right: Some(tag.clone()), ..self }
    }

    /// Hands each pair to the closure, which may hand any number of records to the collector.
    /// They get the greater of the timestamps of both records.
    ///
    /// A record below the watermark is late: it is dropped, and counted in
    /// `numLateRecordsDropped`, unless it is wanted on a side output. `numLateRecords` counts all
    /// that were late, in the side outputs or dropped. A record without
    /// timestamp is rejected, as is one that completes a pair for which the closure returns an
    /// error.
    pub fn process<U, F, O>(&self, function: F) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: for<'l, 'r, 'c> Fn(L::Ref<'l>, R::Ref<'r>, &mut IntervalJoinContext<'c>, &mut Collector<U>) -> O + 'static,
        O: Outcome + 'static,
    {
        let function = Rc::new(function);
        let interval = Interval { lower: self.lower, upper: self.upper };
        let (late_left, late_right) = (self.late_left.clone(), self.late_right.clone());
        let states = vec![
            graph::state::<Pair<L, i64>>(LEFT, StateKind::List),
            graph::state::<Pair<R, i64>>(RIGHT, StateKind::List),
        ];
        self.inputs.operator(("Interval Join", "IntervalJoin"), states, move |left, right, states| {
            IntervalJoinFunction {
                left: Side::<L, K, A>::new(left, states.list(LEFT)),
                right: Side::<R, K, B>::new(right, states.list(RIGHT)),
                function: Rc::clone(&function),
                interval,
                late_left: LateRecords::new(late_left.clone()),
                late_right: LateRecords::new(late_right.clone()),
                timers: states.timers(),
                key: Vec::new(),
            }
        })
    }
}

/// What the closure of an interval join is told besides the two records.
pub struct IntervalJoinContext<'c> {
    left_timestamp: i64,
    right_timestamp: i64,
    side_outputs: &'c mut SideOutputs,
}

impl IntervalJoinContext<'_> {
    /// Event time of the first stream's record, in milliseconds since the Unix epoch.
    pub fn left_timestamp(&self) -> i64 {
        self.left_timestamp
    }

    /// Event time of the second stream's record, in milliseconds since the Unix epoch.
    pub fn right_timestamp(&self) -> i64 {
        self.right_timestamp
    }

    /// The greater of both, which is that of the records collected.
    pub fn timestamp(&self) -> i64 {
        self.left_timestamp.max(self.right_timestamp)
    }

    /// Hands a record to a side output; see [`crate::Context::output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        let timestamp = self.timestamp();
        self.side_outputs.output(tag, timestamp, record);
    }
}

/// Which timestamps of the second input belong to one of the first: bounds to be added, included.
#[derive(Clone, Copy)]
struct Interval {
    lower: i64,
    upper: i64,
}

impl Interval {
    /// The same, seen from the second input.
    fn reversed(self) -> Self {
        Self { lower: self.upper.saturating_neg(), upper: self.lower.saturating_neg() }
    }

    /// Milliseconds that a bucket is wide.
    #[inline]
    fn width(self) -> i64 {
        self.upper.saturating_sub(self.lower).saturating_add(1).max(1)
    }

    /// Milliseconds that a record of the first input is kept.
    #[inline]
    fn retention(self) -> i64 {
        self.upper.max(0)
    }

    /// First and last timestamp of those records of the second input that belong to a
    /// record of the first and have time left.
    #[inline]
    fn partners(self, timestamp: i64, watermark: i64) -> (i64, i64) {
        let kept_from = watermark.saturating_sub(self.reversed().retention()).saturating_add(1);
        (timestamp.saturating_add(self.lower).max(kept_from), timestamp.saturating_add(self.upper))
    }

    /// The buckets of the second input for a record of the first.
    #[inline]
    fn buckets(self, timestamp: i64, watermark: i64) -> impl Iterator<Item = [u8; 8]> {
        let (first, last) = self.partners(timestamp, watermark);
        let buckets = first.div_euclid(self.width())..=last.div_euclid(self.width());
        buckets.map(i64::to_be_bytes)
    }

    /// When the last record of a bucket of the first input is dropped.
    fn cleanup_time(self, bucket: i64) -> i64 {
        let last = bucket.saturating_add(1).saturating_mul(self.width()).saturating_sub(1);
        last.saturating_add(self.retention())
    }
}

/// Where late records go.
struct LateRecords<T: ?Sized> {
    side_output: Option<OutputTag<T>>,
    all: Counter,
    dropped: Counter,
}

impl<T: Record + ?Sized> LateRecords<T> {
    fn new(side_output: Option<OutputTag<T>>) -> Self {
        Self { side_output, all: Counter::new(LATE_RECORDS), dropped: Counter::new(LATE_RECORDS_DROPPED) }
    }

    #[cold]
    fn take(&self, record: T::View<'_>, timestamp: i64, sides: &mut SideOutputs) {
        self.all.inc();
        match &self.side_output {
            None => self.dropped.inc(),
            Some(tag) => sides.output(tag, timestamp, record),
        }
    }
}

struct IntervalJoinFunction<L: ?Sized, R: ?Sized, K: ?Sized, A, B, F> {
    left: Side<L, K, A>,
    right: Side<R, K, B>,
    function: Rc<F>,
    interval: Interval,
    late_left: LateRecords<L>,
    late_right: LateRecords<R>,
    timers: Timers,
    /// The encoded key of the record that is being processed.
    key: Vec<u8>,
}

/// Namespace of the timer that drops a bucket.
#[inline]
fn timer_namespace(input: u8, bucket: [u8; 8]) -> [u8; 9] {
    let mut namespace = [input; 9];
    namespace[1..].copy_from_slice(&bucket);
    namespace
}

/// The list of those records with a timestamp that came when it was the watermark, and have no time left.
fn list_at_watermark(timestamp: i64) -> [u8; 9] {
    let mut list = [0; 9];
    list[..8].copy_from_slice(&timestamp.to_be_bytes());
    list
}

/// Keeps a record, and finds those of the other input that belong to it: `pair` is
/// handed their timestamps. `input` is the number of the record's.
#[inline(always)]
fn join<T, U, K, S, C>(
    own: &mut Side<T, K, S>,
    other: &mut Side<U, K, C>,
    key: &mut Vec<u8>,
    (input, interval, timers): (u8, Interval, &Timers),
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
    let is_at_watermark = element.timestamp == timers.watermark();
    if is_at_watermark && interval.upper == 0 {
        keep_at_watermark(&mut own.rows, (hash, key), (input, timers), record, element.timestamp);
    } else {
        let number = element.timestamp.div_euclid(interval.width());
        let bucket = number.to_be_bytes();
        let slot = own.rows.slot(hash, key, &bucket);
        if !own.rows.has_known_elements(slot) {
            let time = interval.cleanup_time(number);
            timers.register(TimeDomain::EventTime, time, hash, key, &timer_namespace(input, bucket));
        }
        own.rows.append(slot, (T::shorten(record), &element.timestamp));
    }
    let (first, last) = interval.partners(element.timestamp, timers.watermark());
    for bucket in interval.buckets(element.timestamp, timers.watermark()) {
        if let Some(slot) = other.rows.slot_of_some(hash, key, &bucket) {
            other.rows.for_each(slot, |(other, timestamp)| {
                if (first..=last).contains(&timestamp) {
                    pair(timestamp, other);
                }
            });
        }
    }
    // With both bounds excluded, an interval may be empty.
    if is_at_watermark && interval.lower == 0 && 0 <= interval.upper {
        each_at_watermark(&mut other.rows, (hash, key), element.timestamp, pair);
    }
}

/// Keeps a record that came at the watermark and has no time left.
#[cold]
fn keep_at_watermark<T: Record + ?Sized>(
    rows: &mut ListCache<Pair<T, i64>>,
    (hash, key): (u32, &[u8]),
    (input, timers): (u8, &Timers),
    record: T::Ref<'_>,
    timestamp: i64,
) {
    let list = list_at_watermark(timestamp);
    let slot = rows.slot(hash, key, &list);
    if !rows.has_known_elements(slot) {
        let namespace = [&[input], &list[..]].concat();
        timers.register(TimeDomain::EventTime, timestamp, hash, key, &namespace);
    }
    rows.append(slot, (T::shorten(record), &timestamp));
}

/// Finds the records of the other input that [`keep_at_watermark`] kept.
#[cold]
fn each_at_watermark<U: Record + ?Sized>(
    rows: &mut ListCache<Pair<U, i64>>,
    (hash, key): (u32, &[u8]),
    timestamp: i64,
    mut pair: impl FnMut(i64, U::Ref<'_>),
) {
    if let Some(slot) = rows.slot_of_some(hash, key, &list_at_watermark(timestamp)) {
        rows.for_each(slot, |(other, _)| pair(timestamp, other));
    }
}

/// True if the record has a timestamp at all; it is rejected otherwise.
#[inline]
fn has_timestamp(element: Element) -> bool {
    let has_timestamp = element.timestamp != NO_TIMESTAMP;
    if !has_timestamp {
        let message = "an interval join got a record without timestamp; use `assign_timestamps_and_watermarks` \
                       before `key_by`";
        current::reject(current::node(), &Error::new(message));
    }
    has_timestamp
}

fn drop_list<T: Record + ?Sized>(rows: &mut ListCache<Pair<T, i64>>, timer: Timer<'_>, bucket: &[u8]) {
    if let Some(slot) = rows.slot_of_some(timer.hash, timer.key, bucket) {
        rows.clear(slot);
    }
}

impl<L, R, K, A, B, U, F, O> TwoInputFunction<L, R, U> for IntervalJoinFunction<L, R, K, A, B, F>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
    U: Record + ?Sized,
    F: for<'l, 'r, 'c> Fn(L::Ref<'l>, R::Ref<'r>, &mut IntervalJoinContext<'c>, &mut Collector<U>) -> O + 'static,
    O: Outcome + 'static,
{
    fn begin_batch(&mut self, input: u32, rows: &[u8]) {
        let Self { left, right, timers, .. } = self;
        let watermark = timers.watermark();
        match input {
            0 => {
                let interval = self.interval;
                left.begin_batch(&mut right.rows, rows, |timestamp| interval.buckets(timestamp, watermark));
            }
            _ => {
                let interval = self.interval.reversed();
                right.begin_batch(&mut left.rows, rows, |timestamp| interval.buckets(timestamp, watermark));
            }
        }
    }

    #[inline(always)]
    fn process1(&mut self, record: L::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Self { left, right, function, interval, late_left, timers, key, .. } = self;
        let timestamp = element.timestamp;
        if !has_timestamp(element) {
            return;
        }
        if timestamp < timers.watermark() {
            return late_left.take(record, timestamp, sides);
        }
        let record = L::peek(&record);
        join(left, right, key, (0, *interval, timers), record, element, |right_timestamp, other| {
            let mut context = IntervalJoinContext { left_timestamp: timestamp, right_timestamp, side_outputs: sides };
            out.set_timestamp(context.timestamp());
            settle(function(record, other, &mut context, out));
        });
    }

    #[inline(always)]
    fn process2(&mut self, record: R::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Self { left, right, function, interval, late_right, timers, key, .. } = self;
        let timestamp = element.timestamp;
        if !has_timestamp(element) {
            return;
        }
        if timestamp < timers.watermark() {
            return late_right.take(record, timestamp, sides);
        }
        let record = R::peek(&record);
        join(right, left, key, (1, interval.reversed(), timers), record, element, |left_timestamp, other| {
            let mut context = IntervalJoinContext { left_timestamp, right_timestamp: timestamp, side_outputs: sides };
            out.set_timestamp(context.timestamp());
            settle(function(other, record, &mut context, out));
        });
    }

    fn begin_timers(&mut self, _: &[Timer<'_>]) {
        self.left.rows.begin_batch();
        self.right.rows.begin_batch();
    }

    /// Drops a bucket.
    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, _: &mut Collector<U>, _: &mut SideOutputs) {
        match timer.namespace.split_first() {
            Some((0, bucket)) => drop_list(&mut self.left.rows, timer, bucket),
            Some((_, bucket)) => drop_list(&mut self.right.rows, timer, bucket),
            None => {}
        }
    }

    fn flush_state(&mut self) {
        self.left.rows.flush();
        self.right.rows.flush();
    }
}
