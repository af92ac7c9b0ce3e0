//! Streams with a key, and windows over them.

use std::{marker::PhantomData, ops::Deref, rc::Rc};

use crate::{
    bindings::engine::plugin::graph::StateKind,
    data_stream::DataStream,
    graph::state,
    key::KeySelector,
    operator::{
        AggregateFold, AggregateFunction, AtEnd, Count, Fold, Function, KeyedReduce, MaxOf, MinOf, Number, ReduceAtEnd,
        Running, SumOf,
    },
    record::{Key, Owned, Pair, Record, descriptor_of},
};

/// A stream whose records are dealt to subtasks by their key.
///
/// All functions here emit an update for each record, as in Flink; for one result
/// at the end see [`KeyedStream::window`]. It can also be used as the
/// [`DataStream`] that it is.
pub struct KeyedStream<T: ?Sized, K: ?Sized, S> {
    stream: DataStream<T>,
    selector: Rc<S>,
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

    /// Adds an operator with one value per key.
    fn keyed_operator<U, V, F>(
        &self,
        (name, kind, state_kind): (&str, &str, StateKind),
        make: impl Fn(Rc<S>) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        V: Owned,
        F: Function<T, U>,
    {
        let selector = self.selector.clone();
        let stream = self.stream.operator(name, kind, move || make(selector.clone()));
        let mut graph = stream.graph.borrow_mut();
        let node = graph.node_mut(stream.origins[0].node);
        node.key_type = Some(descriptor_of::<K>());
        node.states = vec![state::<V>("value", state_kind)];
        drop(graph);
        stream
    }

    fn running<A: Fold<T>>(&self, name: &str, make: impl Fn() -> A + 'static) -> DataStream<Pair<K, A::Output>> {
        self.keyed_operator::<_, A::State, _>((name, "KeyedAggregate", StateKind::Aggregating), move |selector| {
            Running::<T, K, S, A>::new(selector, make())
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
        self.keyed_operator::<_, T, _>(("Keyed Reduce", "KeyedReduce", StateKind::Reducing), move |selector| {
            KeyedReduce::<T, K, S, F>::new(selector, function.clone())
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
        let number = Rc::new(number);
        self.running("Keyed Sum", move || SumOf { number: number.clone(), _sum: PhantomData })
    }

    /// Finds the least value of the records of each key.
    pub fn min<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.running("Keyed Min", move || MinOf { value: value.clone(), _value: PhantomData })
    }

    /// Finds the greatest value of the records of each key.
    pub fn max<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.running("Keyed Max", move || MaxOf { value: value.clone(), _value: PhantomData })
    }

    /// Aggregates the records of each key.
    pub fn aggregate<A: AggregateFunction<T>>(&self, function: A) -> DataStream<Pair<K, A::Output>> {
        let function = Rc::new(function);
        self.running("Keyed Aggregate", move || AggregateFold(function.clone()))
    }

    /// Groups the records of each key in one window, which ends with the stream.
    pub fn window(&self, _assigner: GlobalWindows) -> WindowedStream<T, K, S> {
        WindowedStream { keyed: self.clone() }
    }
}

/// Assigns all records of a key to one window.
#[derive(Clone, Copy, Debug)]
pub struct GlobalWindows(());

impl GlobalWindows {
    /// The window fires once, when event time or the input ends.
    pub fn end_of_stream() -> Self {
        Self(())
    }
}

/// A keyed stream in windows: one result for each key and window.
pub struct WindowedStream<T: ?Sized, K: ?Sized, S> {
    keyed: KeyedStream<T, K, S>,
}

impl<T, K, S> WindowedStream<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    fn at_end<A: Fold<T>>(&self, name: &str, make: impl Fn() -> A + 'static) -> DataStream<Pair<K, A::Output>> {
        let name = format!("Window({name})");
        let of = (name.as_str(), "WindowAggregate", StateKind::Aggregating);
        self.keyed
            .keyed_operator::<_, A::State, _>(of, move |selector| AtEnd(Running::<T, K, S, A>::new(selector, make())))
    }

    /// Reduces the records of each key and window to one.
    pub fn reduce<F>(&self, function: F) -> DataStream<T>
    where
        T: Owned,
        F: Fn(T, T) -> T + 'static,
    {
        let function = Rc::new(function);
        let of = ("Window(Reduce)", "WindowReduce", StateKind::Reducing);
        self.keyed.keyed_operator::<_, T, _>(of, move |selector| {
            ReduceAtEnd(KeyedReduce::<T, K, S, F>::new(selector, function.clone()))
        })
    }

    /// Counts the records of each key and window.
    pub fn count(&self) -> DataStream<Pair<K, u64>> {
        self.at_end("Count", || Count)
    }

    /// Sums a number of the records of each key and window; see [`KeyedStream::sum`].
    pub fn sum<N, F>(&self, number: F) -> DataStream<Pair<K, N>>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        let number = Rc::new(number);
        self.at_end("Sum", move || SumOf { number: number.clone(), _sum: PhantomData })
    }

    /// Finds the least value of the records of each key and window.
    pub fn min<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.at_end("Min", move || MinOf { value: value.clone(), _value: PhantomData })
    }

    /// Finds the greatest value of the records of each key and window.
    pub fn max<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.at_end("Max", move || MaxOf { value: value.clone(), _value: PhantomData })
    }

    /// Aggregates the records of each key and window.
    pub fn aggregate<A: AggregateFunction<T>>(&self, function: A) -> DataStream<Pair<K, A::Output>> {
        let function = Rc::new(function);
        self.at_end("Aggregate", move || AggregateFold(function.clone()))
    }
}
