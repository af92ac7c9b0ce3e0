//! Streams with a key.

use std::{marker::PhantomData, ops::Deref, rc::Rc};

use crate::{
    bindings::engine::plugin::graph::{StateDeclaration, StateKind},
    collector::Collector,
    connected_streams::{KeyedBroadcastConnectedStream, KeyedConnectedStreams},
    data_stream::DataStream,
    error::Outcome,
    graph::state,
    key::KeySelector,
    operator::{
        AggregateFold, AggregateFunction, Count, FlatMapWithState, Fold, Function, Keyed, KeyedFunctionFactory,
        KeyedProcess, KeyedProcessFunction, KeyedReduce, MaxOf, MinOf, Number, Running, SumOf, VALUE,
    },
    record::{Key, Owned, Pair, Record},
    state::{StateBackend, States},
    window::{WindowAssigner, WindowedStream},
};

/// A stream whose records are dealt to subtasks by their key.
///
/// All functions here emit an update for each record, as in Flink; for one result
/// at the end see [`KeyedStream::window`]. It can also be used as the
/// [`DataStream`] that it is.
pub struct KeyedStream<T: ?Sized, K: ?Sized, S> {
    stream: DataStream<T>,
    pub(crate) selector: Rc<S>,
    _key: PhantomData<K>,
}

impl<T: ?Sized, K: ?Sized, S> Clone for KeyedStream<T, K, S> {
    fn clone(&self) -> Self {
        Self { stream: self.stream.clone(), selector: self.selector.clone(), _key: PhantomData }
    }
}

impl<T: ?Sized, K: ?Sized, S> Deref for KeyedStream<T, K, S> {
    type Target = DataStream<T>;

    fn deref(&self) -> &DataStream<T> {
        &self.stream
    }
}

impl<T, K, S> KeyedStream<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    pub(crate) fn new(stream: DataStream<T>, selector: Rc<S>) -> Self {
        Self { stream, selector, _key: PhantomData }
    }

    /// How records are asked for their key.
    pub(crate) fn selector(&self) -> Rc<S> {
        Rc::clone(&self.selector)
    }

    /// Adds an operator with keyed states.
    pub(crate) fn keyed_operator<U, F>(
        &self,
        (name, kind): (&str, &str),
        states: Vec<StateDeclaration>,
        make: impl Fn(Rc<S>, &StateBackend) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: Function<T, U>,
    {
        let selector = self.selector.clone();
        let make = move |states: &StateBackend| make(selector.clone(), states);
        let stream = self.stream.operator_of(name, kind, Box::new(KeyedFunctionFactory::<T, U, _>::new(make)));
        self.stream.graph.borrow_mut().set_keyed::<K>(stream.origins[0].node, states);
        stream
    }

    fn running<A: Fold<T>>(&self, name: &str, make: impl Fn() -> A + 'static) -> DataStream<Pair<K, A::Output>> {
        let states = vec![state::<A::State>(VALUE, StateKind::Aggregating)];
        self.keyed_operator((name, "KeyedAggregate"), states, move |selector, states| {
            Running::<T, K, S, A>::new(selector, make(), states)
        })
    }

    /// Reduces the records of each key to one; the function gets the reduced record so
    /// far and the next.
    pub fn reduce<F>(&self, function: F) -> DataStream<T>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
    {
        let function = Rc::new(function);
        let states = vec![state::<T>(VALUE, StateKind::Reducing)];
        self.keyed_operator(("Keyed Reduce", "KeyedReduce"), states, move |selector, states| {
            KeyedReduce::<T, K, S, F>::new(selector, function.clone(), states)
        })
    }

    /// Counts the records of each key.
    pub fn count(&self) -> DataStream<Pair<K, u64>> {
        self.running("Keyed Count", || Count)
    }

    /// Sums a number of the records of each key. A record with which the sum no longer
    /// fits into its type is rejected.
    pub fn sum<N, F>(&self, number: F) -> DataStream<Pair<K, N>>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        self.running("Keyed Sum", SumOf::of(number))
    }

    /// Finds the least value of the records of each key.
    pub fn min<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.running("Keyed Min", MinOf::of(value))
    }

    /// Finds the greatest value of the records of each key.
    pub fn max<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.running("Keyed Max", MaxOf::of(value))
    }

    /// Aggregates the records of each key.
    pub fn aggregate<A: AggregateFunction<T>>(&self, function: A) -> DataStream<Pair<K, A::Output>> {
        let function = Rc::new(function);
        self.running("Keyed Aggregate", move || AggregateFold(function.clone()))
    }

    /// Processes the records of each key with state and timers. The closure makes the function
    /// and its states; see [`States`].
    pub fn process<F, M>(&self, make: M) -> DataStream<F::Output>
    where
        F: KeyedProcessFunction<K, T>,
        M: Fn(&mut States) -> F + 'static,
    {
        let declared = States::declared_by(&make);
        self.keyed_operator(("Keyed Process", "KeyedProcess"), declared, move |selector, states| {
            KeyedProcess::<T, K, S, F>::new(selector, Keyed::make(states, &make))
        })
    }

    /// This and another stream with keys of the same type: records with one key meet, and share
    /// state and timers.
    ///
    /// ```compile_fail,E0308
    /// # use engine_sdk::prelude::*;
    /// fn both(a: DataStream<u64>, b: DataStream<u64>) { a.key_by(|n| *n).connect(&b.key_by(|n| n.to_string())); }
    /// ```
    pub fn connect<B, S2>(&self, other: &KeyedStream<B, K, S2>) -> KeyedConnectedStreams<T, B, K, S, S2>
    where
        B: Record + ?Sized,
        S2: KeySelector<B, K>,
    {
        KeyedConnectedStreams::new(self.clone(), other.clone())
    }

    /// This stream and another, whose records go to each subtask of the operator that follows.
    pub fn connect_broadcast<B>(&self, other: &DataStream<B>) -> KeyedBroadcastConnectedStream<T, B, K, S>
    where
        B: Record + ?Sized,
    {
        KeyedBroadcastConnectedStream::new(self.clone(), other.broadcast())
    }

    /// Makes one record of each record and the state of its key, which the closure may change:
    /// `None` before it was first set, `None` to remove it.
    pub fn map_with_state<V, U, F>(&self, function: F) -> DataStream<U>
    where
        V: Owned,
        U: Owned,
        F: for<'a> Fn(T::View<'a>, &mut Option<V>) -> U + 'static,
    {
        self.flat_map_with_state(move |record: T::View<'_>, state: &mut Option<V>, out: &mut Collector<U>| {
            out.collect(function(record, state));
        })
    }

    /// Keeps the records that the predicate holds for, given the state of their key; see
    /// [`KeyedStream::map_with_state`].
    pub fn filter_with_state<V, F>(&self, predicate: F) -> DataStream<T>
    where
        V: Owned,
        F: for<'a> Fn(T::Ref<'a>, &mut Option<V>) -> bool + 'static,
    {
        self.flat_map_with_state(move |record: T::View<'_>, state: &mut Option<V>, out: &mut Collector<T>| {
            if predicate(T::peek(&record), state) {
                out.collect(record);
            }
        })
    }

    /// Makes any number of records of each record and the state of its key; see
    /// [`KeyedStream::map_with_state`]. An error rejects the record; what was done to the
    /// state stays.
    pub fn flat_map_with_state<V, U, F, R>(&self, function: F) -> DataStream<U>
    where
        V: Owned,
        U: Record + ?Sized,
        F: for<'a> Fn(T::View<'a>, &mut Option<V>, &mut Collector<U>) -> R + 'static,
        R: Outcome + 'static,
    {
        let function = Rc::new(function);
        let declared = vec![state::<V>(VALUE, StateKind::Value)];
        self.keyed_operator(("Keyed Flat Map", "KeyedFlatMap"), declared, move |selector, states| {
            FlatMapWithState::<T, K, S, V, F>::new(selector, function.clone(), states)
        })
    }

    /// Groups the records of each key in windows, which are evaluated one by one.
    pub fn window(&self, assigner: impl WindowAssigner<T>) -> WindowedStream<T, K, S> {
        WindowedStream::new(self, assigner)
    }
}
