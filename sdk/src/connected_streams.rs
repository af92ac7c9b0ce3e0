//! Two streams that one operator takes together.

use std::{marker::PhantomData, rc::Rc};

use crate::{
    bindings::engine::plugin::graph::Operator as OperatorKind,
    collector::Collector,
    data_stream::DataStream,
    error::Outcome,
    graph::NodeTypes,
    key::{ByValue, KeySelector},
    keyed_stream::KeyedStream,
    operator::{
        BroadcastProcess, BroadcastProcessFunction, CoProcess, Context, Keyed, KeyedBroadcastProcess,
        KeyedBroadcastProcessFunction, KeyedCoProcess, KeyedCoProcessFunction, OperatorFactory, TwoInputFactory,
        TwoInputFunction,
    },
    record::{Key, Owned, Record, descriptor_of},
    state::{StateBackend, States},
};

/// Two streams with records of their own types, for operators that see both.
///
/// Which of two records comes first, when they are on different streams, is left open.
/// Event time is the lesser of both. Made by [`DataStream::connect`].
pub struct ConnectedStreams<A: ?Sized, B: ?Sized> {
    first: DataStream<A>,
    second: DataStream<B>,
}

impl<A: Record + ?Sized, B: Record + ?Sized> ConnectedStreams<A, B> {
    pub(crate) fn new(first: DataStream<A>, second: DataStream<B>) -> Self {
        Self { first, second }
    }

    /// Makes one record of each record of either stream.
    pub fn map<U, F1, F2>(&self, first: F1, second: F2) -> DataStream<U>
    where
        U: Owned,
        F1: for<'a> Fn(A::View<'a>) -> U + 'static,
        F2: for<'a> Fn(B::View<'a>) -> U + 'static,
    {
        self.both(
            "Co-Map",
            move |record: A::View<'_>, _: &mut Context<'_>, out: &mut Collector<U>| out.collect(first(record)),
            move |record: B::View<'_>, _: &mut Context<'_>, out: &mut Collector<U>| out.collect(second(record)),
        )
    }

    /// Makes any number of records of each record of either stream; as [`DataStream::flat_map`].
    pub fn flat_map<U, F1, F2, R1, R2>(&self, first: F1, second: F2) -> DataStream<U>
    where
        U: Record + ?Sized,
        F1: for<'a> Fn(A::View<'a>, &mut Collector<U>) -> R1 + 'static,
        F2: for<'a> Fn(B::View<'a>, &mut Collector<U>) -> R2 + 'static,
        R1: Outcome + 'static,
        R2: Outcome + 'static,
    {
        self.both(
            "Co-Flat-Map",
            move |record: A::View<'_>, _: &mut Context<'_>, out: &mut Collector<U>| first(record, out),
            move |record: B::View<'_>, _: &mut Context<'_>, out: &mut Collector<U>| second(record, out),
        )
    }

    /// As [`ConnectedStreams::flat_map`], with each record's timestamp and side outputs; as
    /// Flink's `CoProcessFunction`.
    pub fn process<U, F1, F2, R1, R2>(&self, first: F1, second: F2) -> DataStream<U>
    where
        U: Record + ?Sized,
        F1: for<'a> Fn(A::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R1 + 'static,
        F2: for<'a> Fn(B::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R2 + 'static,
        R1: Outcome + 'static,
        R2: Outcome + 'static,
    {
        self.both("Co-Process", first, second)
    }

    fn both<U, F1, F2, R1, R2>(&self, name: &str, first: F1, second: F2) -> DataStream<U>
    where
        U: Record + ?Sized,
        F1: for<'a> Fn(A::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R1 + 'static,
        F2: for<'a> Fn(B::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R2 + 'static,
        R1: Outcome + 'static,
        R2: Outcome + 'static,
    {
        let functions = (Rc::new(first), Rc::new(second));
        let make = move |_: &StateBackend| CoProcess::new(functions.clone());
        let factory = TwoInputFactory::<A, B, U, _>::new(make);
        two_input_operator(&self.first, &self.second, (name, "CoProcess"), Box::new(factory))
    }

    /// Keys both streams, so that records with one key meet, and share state and timers.
    pub fn key_by<K, F1, F2>(&self, first: F1, second: F2) -> KeyedConnectedStreams<A, B, K, ByValue<F1>, ByValue<F2>>
    where
        K: Key + Owned,
        F1: for<'a> Fn(A::Ref<'a>) -> K + 'static,
        F2: for<'a> Fn(B::Ref<'a>) -> K + 'static,
    {
        self.first.key_by(first).connect(&self.second.key_by(second))
    }
}

/// Adds an operator behind two streams.
pub(crate) fn two_input_operator<A, B, U>(
    first: &DataStream<A>,
    second: &DataStream<B>,
    (name, kind): (&str, &str),
    factory: Box<dyn OperatorFactory>,
) -> DataStream<U>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
{
    let mut graph = first.graph.borrow_mut();
    let types =
        NodeTypes { inputs: vec![descriptor_of::<A>(), descriptor_of::<B>()], output: Some(descriptor_of::<U>()) };
    let node = graph.add_node(name, OperatorKind::Guest(kind.to_owned()), types);
    graph.add_factory(node, factory);
    graph.connect(&first.origins, (node, 0), &descriptor_of::<A>());
    graph.connect(&second.origins, (node, 1), &descriptor_of::<B>());
    drop(graph);
    DataStream::of_node(first.graph.clone(), node)
}

/// Two streams that are keyed alike: records with one key meet, and share state and timers.
///
/// Made by [`KeyedStream::connect`] and [`ConnectedStreams::key_by`].
pub struct KeyedConnectedStreams<A: ?Sized, B: ?Sized, K: ?Sized, S1, S2> {
    first: KeyedStream<A, K, S1>,
    second: KeyedStream<B, K, S2>,
}

impl<A, B, K, S1, S2> KeyedConnectedStreams<A, B, K, S1, S2>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    K: Key + ?Sized,
    S1: KeySelector<A, K>,
    S2: KeySelector<B, K>,
{
    pub(crate) fn new(first: KeyedStream<A, K, S1>, second: KeyedStream<B, K, S2>) -> Self {
        Self { first, second }
    }

    /// Processes the records of each key with state and timers. The closure makes the function
    /// and its states; see [`States`].
    pub fn process<F, M>(&self, make: M) -> DataStream<F::Output>
    where
        F: KeyedCoProcessFunction<K, A, B>,
        M: Fn(&mut States) -> F + 'static,
    {
        let declared = States::declared_by(&make);
        self.operator(("Keyed Co-Process", "KeyedCoProcess"), declared, move |selectors, states| {
            KeyedCoProcess::<A, B, K, S1, S2, F>::new(selectors, Keyed::make(states, &make))
        })
    }

    /// Adds an operator of both streams with keyed states.
    pub(crate) fn operator<U, F>(
        &self,
        name: (&str, &str),
        states: Vec<crate::bindings::engine::plugin::graph::StateDeclaration>,
        make: impl Fn((Rc<S1>, Rc<S2>), &StateBackend) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: TwoInputFunction<A, B, U>,
    {
        let selectors = (self.first.selector.clone(), self.second.selector.clone());
        let make = move |states: &StateBackend| make(selectors.clone(), states);
        let factory = Box::new(TwoInputFactory::<A, B, U, _>::new(make));
        let stream = two_input_operator(&self.first, &self.second, name, factory);
        self.first.graph.borrow_mut().set_keyed::<K>(stream.origins[0].node, states);
        stream
    }
}

/// A stream connected with a broadcast one, whose records each subtask gets.
///
/// Made by [`DataStream::connect_broadcast`].
pub struct BroadcastConnectedStream<A: ?Sized, B: ?Sized> {
    first: DataStream<A>,
    broadcast: DataStream<B>,
}

impl<A: Record + ?Sized, B: Record + ?Sized> BroadcastConnectedStream<A, B> {
    pub(crate) fn new(first: DataStream<A>, broadcast: DataStream<B>) -> Self {
        Self { first, broadcast }
    }

    /// Processes the records of both streams, those of the first by what those of the
    /// broadcast one left in [`crate::BroadcastState`].
    pub fn process<F, M>(&self, make: M) -> DataStream<F::Output>
    where
        F: BroadcastProcessFunction<A, B>,
        M: Fn(&mut States) -> F + 'static,
    {
        let declared = States::declared_by(&make);
        let make = move |states: &StateBackend| BroadcastProcess::<A, B, F>::new(States::make(states, &make).0);
        let factory = Box::new(TwoInputFactory::<A, B, F::Output, _>::new(make));
        let name = ("Broadcast Process", "BroadcastProcess");
        let stream = two_input_operator(&self.first, &self.broadcast, name, factory);
        self.first.graph.borrow_mut().set_unkeyed(stream.origins[0].node, declared);
        stream
    }
}

/// A keyed stream connected with a broadcast one, whose records each subtask gets.
///
/// Made by [`KeyedStream::connect_broadcast`].
pub struct KeyedBroadcastConnectedStream<A: ?Sized, B: ?Sized, K: ?Sized, S> {
    first: KeyedStream<A, K, S>,
    broadcast: DataStream<B>,
    _key: PhantomData<Rc<K>>,
}

impl<A, B, K, S> KeyedBroadcastConnectedStream<A, B, K, S>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<A, K>,
{
    pub(crate) fn new(first: KeyedStream<A, K, S>, broadcast: DataStream<B>) -> Self {
        Self { first, broadcast, _key: PhantomData }
    }

    /// Processes the records of both streams, those of the first with state and timers of their
    /// keys, and by what those of the broadcast one left in [`crate::BroadcastState`].
    pub fn process<F, M>(&self, make: M) -> DataStream<F::Output>
    where
        F: KeyedBroadcastProcessFunction<K, A, B>,
        M: Fn(&mut States) -> F + 'static,
    {
        let declared = States::declared_by(&make);
        let selector = self.first.selector.clone();
        let make = move |states: &StateBackend| {
            KeyedBroadcastProcess::<A, B, K, S, F>::new(selector.clone(), Keyed::make(states, &make))
        };
        let factory = Box::new(TwoInputFactory::<A, B, F::Output, _>::new(make));
        let name = ("Keyed Broadcast Process", "KeyedBroadcastProcess");
        let stream = two_input_operator(&self.first, &self.broadcast, name, factory);
        self.first.graph.borrow_mut().set_keyed::<K>(stream.origins[0].node, declared);
        stream
    }
}
