//! Functions over the records of one key: reductions and aggregations, which
//! emit an update for each record or one result for each key at the end.

use std::{marker::PhantomData, rc::Rc};

use super::{Element, Function, SideOutputs};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    error::{Error, Outcome, Result},
    key::{KeySelector, encode_key_of, hash_of},
    record::{Key, Owned, Pair, Record},
    state::{Slot, StateBackend, Timer, Timers, ValueCache},
};

/// End of a window over all time, when it fires and which what it emits carries, as in Flink.
const END_OF_TIME: i64 = i64::MAX;

/// A number that can be summed.
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be summed", label = "not a number")]
pub trait Number: Owned + Copy {
    /// Zero.
    const ZERO: Self;

    /// Adds; none if the sum is out of range.
    fn checked_sum(self, other: Self) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Number for $type {
            const ZERO: Self = 0;

            #[inline]
            fn checked_sum(self, other: Self) -> Option<Self> {
                self.checked_add(other)
            }
        }
    )* };
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! floats {
    ($($type:ty),*) => { $(
        impl Number for $type {
            const ZERO: Self = 0.0;

            #[inline]
            fn checked_sum(self, other: Self) -> Option<Self> {
                Some(self + other)
            }
        }
    )* };
}

floats!(f32, f64);

/// Aggregates the records of one key; as Flink's `AggregateFunction`.
pub trait AggregateFunction<T: Record + ?Sized>: 'static {
    /// What is kept for each key.
    type Accumulator: Owned;
    /// What is emitted with the key.
    type Output: Owned;

    /// The accumulator of a key before its first record.
    fn create_accumulator(&self) -> Self::Accumulator;

    /// Adds a record.
    fn add(&self, record: T::Ref<'_>, accumulator: &mut Self::Accumulator);

    /// The result so far.
    fn get_result(&self, accumulator: &Self::Accumulator) -> Self::Output;

    /// Joins two accumulators; called where windows merge.
    fn merge(&self, accumulator: &mut Self::Accumulator, other: Self::Accumulator);
}

/// A running aggregation over the records of one key.
pub(crate) trait Fold<T: Record + ?Sized>: 'static {
    type State: Owned;
    type Output: Owned;

    fn add(&self, state: &mut Option<Self::State>, record: T::Ref<'_>) -> Result<()>;
    fn result(&self, state: &Self::State) -> Self::Output;
}

/// Number of records.
pub(crate) struct Count;

impl<T: Record + ?Sized> Fold<T> for Count {
    type State = u64;
    type Output = u64;

    #[inline]
    fn add(&self, state: &mut Option<u64>, _: T::Ref<'_>) -> Result<()> {
        *state.get_or_insert(0) += 1;
        Ok(())
    }

    #[inline]
    fn result(&self, state: &u64) -> u64 {
        *state
    }
}

/// Sum of a number of each record.
pub(crate) struct SumOf<N, F> {
    pub(crate) number: Rc<F>,
    pub(crate) _sum: PhantomData<N>,
}

impl<T, N, F> Fold<T> for SumOf<N, F>
where
    T: Record + ?Sized,
    N: Number,
    F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
{
    type State = N;
    type Output = N;

    #[inline]
    fn add(&self, state: &mut Option<N>, record: T::Ref<'_>) -> Result<()> {
        let sum = state.unwrap_or(N::ZERO).checked_sum((self.number)(record));
        *state = Some(sum.ok_or_else(|| sum_overflow::<N>())?);
        Ok(())
    }

    #[inline]
    fn result(&self, state: &N) -> N {
        *state
    }
}

#[cold]
fn sum_overflow<N: Number>() -> Error {
    Error::new(format!("the sum does not fit into {}", crate::record::descriptor_of::<N>()))
}

macro_rules! extremes {
    ($($name:ident: $replaces:ident, $what:literal;)*) => { $(
        #[doc = $what]
        pub(crate) struct $name<V, F> {
            pub(crate) value: Rc<F>,
            pub(crate) _value: PhantomData<V>,
        }

        impl<T, V, F> Fold<T> for $name<V, F>
        where
            T: Record + ?Sized,
            V: Owned + PartialOrd + Clone,
            F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
        {
            type State = V;
            type Output = V;

            #[inline]
            fn add(&self, state: &mut Option<V>, record: T::Ref<'_>) -> Result<()> {
                let value = (self.value)(record);
                if state.as_ref().is_none_or(|extreme| value.$replaces(extreme)) {
                    *state = Some(value);
                }
                Ok(())
            }

            #[inline]
            fn result(&self, state: &V) -> V {
                state.clone()
            }
        }
    )* };
}

extremes! {
    MinOf: lt, "Least value of the records.";
    MaxOf: gt, "Greatest value of the records.";
}

/// The user's aggregation.
pub(crate) struct AggregateFold<A>(pub(crate) Rc<A>);

impl<T: Record + ?Sized, A: AggregateFunction<T>> Fold<T> for AggregateFold<A> {
    type State = A::Accumulator;
    type Output = A::Output;

    #[inline]
    fn add(&self, state: &mut Option<A::Accumulator>, record: T::Ref<'_>) -> Result<()> {
        self.0.add(record, state.get_or_insert_with(|| self.0.create_accumulator()));
        Ok(())
    }

    #[inline]
    fn result(&self, state: &A::Accumulator) -> A::Output {
        self.0.get_result(state)
    }
}

/// Name of the only state of a reduction or aggregation.
pub(crate) const VALUE: &str = "value";

/// The value of each key, with what finds it.
struct ByKey<T: ?Sized, K: ?Sized, S, V> {
    selector: Rc<S>,
    values: ValueCache<V>,
    scratch: Vec<u8>,
    _types: PhantomData<(Rc<T>, Rc<K>)>,
}

impl<T, K, S, V> ByKey<T, K, S, V>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Owned,
{
    fn new(selector: Rc<S>, states: &StateBackend) -> Self {
        Self { selector, values: states.value(VALUE), scratch: Vec::new(), _types: PhantomData }
    }

    fn begin_batch(&mut self, rows: &[u8]) {
        let Self { selector, values, .. } = self;
        values.begin_batch();
        if values.wants_prefetch() {
            values.prefetch_rows(rows, |payload, out| encode_key_of::<T, K, S>(selector, payload, out));
        }
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.values.begin_batch();
        if self.values.is_complete() {
            return;
        }
        timers.iter().for_each(|timer| self.values.prefetch(timer.hash, &[], |out| out.extend_from_slice(timer.key)));
        self.values.fetch();
    }

    /// The place of a record's key.
    #[inline(always)]
    fn slot(&mut self, record: T::Ref<'_>, element: Element) -> Slot {
        let Self { selector, values, scratch, .. } = self;
        selector.with_key(record, |key| {
            K::with_encoded(key, scratch, |encoded| values.slot(hash_of(encoded, element.key_hash), encoded, &[]))
        })
    }

    /// Lends the key of a record and its value.
    #[inline(always)]
    fn with_value<R>(
        &mut self,
        record: T::Ref<'_>,
        element: Element,
        f: impl FnOnce(K::Ref<'_>, &mut Option<V>) -> R,
    ) -> R {
        let Self { selector, values, scratch, .. } = self;
        selector.with_key(record, |key| {
            let slot =
                K::with_encoded(key, scratch, |encoded| values.slot(hash_of(encoded, element.key_hash), encoded, &[]));
            f(K::shorten(key), values.value(slot))
        })
    }

    /// Registers the timer of a key that came for the first time: it fires when event time ends.
    #[cold]
    fn register_end(&mut self, timers: &Timers, record: T::Ref<'_>, element: Element) {
        let Self { selector, scratch, .. } = self;
        selector.with_key(record, |key| {
            K::with_encoded(key, scratch, |encoded| {
                let hash = hash_of(encoded, element.key_hash);
                timers.register(TimeDomain::EventTime, END_OF_TIME, hash, encoded, &[]);
            });
        });
    }

    /// Takes the value of a timer's key.
    fn take(&mut self, timer: Timer<'_>) -> Option<V> {
        let slot = self.values.slot(timer.hash, timer.key, &[]);
        self.values.value(slot).take()
    }
}

/// Emits the key with the result so far, for each record.
pub(crate) struct Running<T: Record + ?Sized, K: ?Sized, S, A: Fold<T>> {
    by_key: ByKey<T, K, S, A::State>,
    fold: A,
}

impl<T, K, S, A> Running<T, K, S, A>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
{
    pub(crate) fn new(selector: Rc<S>, fold: A, states: &StateBackend) -> Self {
        Self { by_key: ByKey::new(selector, states), fold }
    }
}

impl<T, K, S, A> Function<T, Pair<K, A::Output>> for Running<T, K, S, A>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.by_key.begin_batch(rows);
    }

    #[inline(always)]
    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<Pair<K, A::Output>>,
        _: &mut SideOutputs,
    ) {
        let Self { by_key, fold } = self;
        let record = T::peek(&record);
        by_key.with_value(record, element, |key, value| match fold.add(value, record) {
            Ok(()) => out.collect((key, fold.result(value.as_ref().expect("the record was just added")))),
            Err(error) => current::reject(current::node(), &error),
        });
    }

    fn flush_state(&mut self) {
        self.by_key.values.flush();
    }
}

/// Emits each key with its result when event time ends.
pub(crate) struct AtEnd<T: Record + ?Sized, K: ?Sized, S, A: Fold<T>> {
    by_key: ByKey<T, K, S, A::State>,
    fold: A,
    timers: Timers,
}

impl<T, K, S, A> AtEnd<T, K, S, A>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
{
    pub(crate) fn new(selector: Rc<S>, fold: A, states: &StateBackend) -> Self {
        Self { by_key: ByKey::new(selector, states), fold, timers: states.timers() }
    }
}

impl<T, K, S, A> Function<T, Pair<K, A::Output>> for AtEnd<T, K, S, A>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.by_key.begin_batch(rows);
    }

    #[inline(always)]
    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        _: &mut Collector<Pair<K, A::Output>>,
        _: &mut SideOutputs,
    ) {
        let Self { by_key, fold, timers } = self;
        let record = T::peek(&record);
        let (is_new, added) = by_key.with_value(record, element, |_, value| (value.is_none(), fold.add(value, record)));
        if is_new {
            by_key.register_end(timers, record, element);
        }
        if let Err(error) = added {
            current::reject(current::node(), &error);
        }
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.by_key.begin_timers(timers);
    }

    fn on_timer(
        &mut self,
        _: TimeDomain,
        timer: Timer<'_>,
        out: &mut Collector<Pair<K, A::Output>>,
        _: &mut SideOutputs,
    ) {
        if let Some(value) = self.by_key.take(timer) {
            let result = self.fold.result(&value);
            K::decode(timer.key, |key| out.collect((K::peek(&key), result))).expect("the key was encoded here");
        }
    }

    fn flush_state(&mut self) {
        self.by_key.values.flush();
    }
}

/// Emits the reduced record, for each record.
pub(crate) struct KeyedReduce<T, K: ?Sized, S, F> {
    by_key: ByKey<T, K, S, T>,
    function: Rc<F>,
}

impl<T: Owned, K: Key + ?Sized, S: KeySelector<T, K>, F: Fn(T, T) -> T> KeyedReduce<T, K, S, F> {
    pub(crate) fn new(selector: Rc<S>, function: Rc<F>, states: &StateBackend) -> Self {
        Self { by_key: ByKey::new(selector, states), function }
    }

    #[inline(always)]
    fn reduce(&mut self, slot: Slot, record: T) -> &T {
        let Self { by_key, function } = self;
        let value = by_key.values.value(slot);
        let reduced = match value.take() {
            Some(reduced) => function(reduced, record),
            None => record,
        };
        value.insert(reduced)
    }
}

impl<T, K, S, F> Function<T, T> for KeyedReduce<T, K, S, F>
where
    T: Owned + Clone,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    F: Fn(T, T) -> T + 'static,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.by_key.begin_batch(rows);
    }

    #[inline(always)]
    fn process(&mut self, record: T, element: Element, out: &mut Collector<T>, _: &mut SideOutputs) {
        let slot = self.by_key.slot(&record, element);
        let reduced = self.reduce(slot, record).clone();
        out.collect(reduced);
    }

    fn flush_state(&mut self) {
        self.by_key.values.flush();
    }
}

/// Emits each key's reduced record when event time ends.
pub(crate) struct ReduceAtEnd<T, K: ?Sized, S, F> {
    reduce: KeyedReduce<T, K, S, F>,
    timers: Timers,
}

impl<T: Owned, K: Key + ?Sized, S: KeySelector<T, K>, F: Fn(T, T) -> T> ReduceAtEnd<T, K, S, F> {
    pub(crate) fn new(selector: Rc<S>, function: Rc<F>, states: &StateBackend) -> Self {
        Self { reduce: KeyedReduce::new(selector, function, states), timers: states.timers() }
    }
}

impl<T, K, S, F> Function<T, T> for ReduceAtEnd<T, K, S, F>
where
    T: Owned,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    F: Fn(T, T) -> T + 'static,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.reduce.by_key.begin_batch(rows);
    }

    #[inline(always)]
    fn process(&mut self, record: T, element: Element, _: &mut Collector<T>, _: &mut SideOutputs) {
        let Self { reduce, timers } = self;
        let slot = reduce.by_key.slot(&record, element);
        if reduce.by_key.values.get(slot).is_none() {
            reduce.by_key.register_end(timers, &record, element);
        }
        reduce.reduce(slot, record);
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.reduce.by_key.begin_timers(timers);
    }

    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, out: &mut Collector<T>, _: &mut SideOutputs) {
        if let Some(reduced) = self.reduce.by_key.take(timer) {
            out.collect(reduced);
        }
    }

    fn flush_state(&mut self) {
        self.reduce.by_key.values.flush();
    }
}

/// The user's function of each record and its key's value.
pub(crate) struct FlatMapWithState<T: ?Sized, K: ?Sized, S, V, F> {
    by_key: ByKey<T, K, S, V>,
    function: Rc<F>,
}

impl<T, K, S, V, F> FlatMapWithState<T, K, S, V, F>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Owned,
{
    pub(crate) fn new(selector: Rc<S>, function: Rc<F>, states: &StateBackend) -> Self {
        Self { by_key: ByKey::new(selector, states), function }
    }
}

impl<T, U, K, S, V, F, R> Function<T, U> for FlatMapWithState<T, K, S, V, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Owned,
    F: for<'a> Fn(T::View<'a>, &mut Option<V>, &mut Collector<U>) -> R + 'static,
    R: Outcome,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.by_key.begin_batch(rows);
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { by_key, function } = self;
        let slot = by_key.slot(T::peek(&record), element);
        if let Err(error) = function(record, by_key.values.value(slot), out).into_result() {
            current::reject(current::node(), &error);
        }
    }

    fn flush_state(&mut self) {
        self.by_key.values.flush();
    }
}
