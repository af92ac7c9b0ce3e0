//! Functions over the records of one key: reductions and aggregations, which
//! emit an update for each record.

use std::{marker::PhantomData, rc::Rc};

use super::{Element, Function, SideOutputs};
use crate::{
    collector::Collector,
    current,
    error::{Error, Outcome, Result},
    key::{KeySelector, encode_key_of, hash_of},
    record::{Key, Owned, Pair, Record},
    state::{Slot, StateBackend, ValueCache},
};

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
    type Accumulator: Owned + Clone;
    /// What is emitted with the key.
    type Output: Owned;

    /// The accumulator of a key before its first record.
    fn create_accumulator(&self) -> Self::Accumulator;

    /// Adds a record.
    fn add(&self, record: T::Ref<'_>, accumulator: &mut Self::Accumulator);

    /// The result so far.
    fn get_result(&self, accumulator: &Self::Accumulator) -> Self::Output;

    /// Joins two accumulators; called where sessions merge, and for sliding windows, which share
    /// accumulators of parts of time.
    fn merge(&self, accumulator: &mut Self::Accumulator, other: Self::Accumulator);
}

/// A running aggregation over the records of one key.
pub trait Fold<T: Record + ?Sized>: 'static {
    /// What is kept for each key.
    type State: Owned + Clone;
    /// What is emitted.
    type Output: Owned;

    /// Adds a record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be added; the state is as before then.
    fn add(&self, state: &mut Option<Self::State>, record: T::Ref<'_>) -> Result<()>;

    /// As [`Fold::add`], where the record is not needed any more.
    ///
    /// # Errors
    /// As [`Fold::add`].
    #[inline]
    fn add_view(&self, state: &mut Option<Self::State>, record: T::View<'_>) -> Result<()> {
        self.add(state, T::peek(&record))
    }

    /// Adds what other records came to.
    ///
    /// # Errors
    /// As [`Fold::add`].
    fn merge(&self, state: &mut Option<Self::State>, other: Self::State) -> Result<()>;

    /// The result so far.
    fn result(&self, state: &Self::State) -> Self::Output;

    /// What no records at all come to, if there is such a thing.
    fn of_none(&self) -> Option<Self::State> {
        None
    }
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
    fn merge(&self, state: &mut Option<u64>, other: u64) -> Result<()> {
        *state.get_or_insert(0) += other;
        Ok(())
    }

    #[inline]
    fn result(&self, state: &u64) -> u64 {
        *state
    }

    fn of_none(&self) -> Option<u64> {
        Some(0)
    }
}

/// Sum of a number of each record.
pub(crate) struct SumOf<N, F> {
    number: Rc<F>,
    _sum: PhantomData<N>,
}

impl<N, F> SumOf<N, F> {
    /// Makes sums of what a closure returns for a record.
    pub(crate) fn of(number: F) -> impl Fn() -> Self {
        let number = Rc::new(number);
        move || Self { number: Rc::clone(&number), _sum: PhantomData }
    }
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
        Fold::<T>::merge(self, state, (self.number)(record))
    }

    #[inline]
    fn merge(&self, state: &mut Option<N>, other: N) -> Result<()> {
        let sum = state.unwrap_or(N::ZERO).checked_sum(other);
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
            value: Rc<F>,
            _value: PhantomData<V>,
        }

        impl<V, F> $name<V, F> {
            /// Makes those of what a closure returns for a record.
            pub(crate) fn of(value: F) -> impl Fn() -> Self {
                let value = Rc::new(value);
                move || Self { value: Rc::clone(&value), _value: PhantomData }
            }
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
                Fold::<T>::merge(self, state, (self.value)(record))
            }

            #[inline]
            fn merge(&self, state: &mut Option<V>, other: V) -> Result<()> {
                if state.as_ref().is_none_or(|extreme| other.$replaces(extreme)) {
                    *state = Some(other);
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

    fn merge(&self, state: &mut Option<A::Accumulator>, other: A::Accumulator) -> Result<()> {
        match state {
            Some(state) => self.0.merge(state, other),
            None => *state = Some(other),
        }
        Ok(())
    }

    #[inline]
    fn result(&self, state: &A::Accumulator) -> A::Output {
        self.0.get_result(state)
    }

    fn of_none(&self) -> Option<A::Accumulator> {
        Some(self.0.create_accumulator())
    }
}

/// The user's reduction: what is kept is a record.
pub(crate) struct ReduceFold<F>(pub(crate) Rc<F>);

impl<T: Owned + Clone, F: Fn(T, T) -> T + 'static> Fold<T> for ReduceFold<F> {
    type State = T;
    type Output = T;

    #[inline]
    fn add(&self, state: &mut Option<T>, record: &T) -> Result<()> {
        self.merge(state, record.clone())
    }

    #[inline]
    fn add_view(&self, state: &mut Option<T>, record: T) -> Result<()> {
        self.merge(state, record)
    }

    #[inline]
    fn merge(&self, state: &mut Option<T>, other: T) -> Result<()> {
        *state = Some(match state.take() {
            Some(reduced) => (self.0)(reduced, other),
            None => other,
        });
        Ok(())
    }

    #[inline]
    fn result(&self, state: &T) -> T {
        state.clone()
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
            values.prefetch_rows(rows, |_| Some([]), |payload, out| encode_key_of::<T, K, S>(selector, payload, out));
        }
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
