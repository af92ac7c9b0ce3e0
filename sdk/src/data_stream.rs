//! Streams of records, and what can be done with them.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use crate::{
    bindings::engine::plugin::graph::{ChainingStrategy, Operator as OperatorKind, Partitioner},
    collector::{Collector, Downstream},
    connected_streams::{BroadcastConnectedStream, ConnectedStreams},
    error::{Outcome, Result},
    graph::{NodeTypes, Origin, SharedGraph},
    key::{ByRef, ByValue, ByWriter, KeySelector, KeyWriter},
    keyed_stream::KeyedStream,
    operator::{
        Context, Filter, FlatMap, Function, FunctionFactory, Identity, Map, OperatorFactory, PartitionOutput, Process,
        ProcessFunction, ProcessWithStates, SelectorFactory, StatefulFunctionFactory, TryMap, hash_output,
    },
    record::{Key, Owned, Record, descriptor_of},
    sink::{DataStreamSink, PrintSink, Sink, node_settings},
    source,
    state::{StateBackend, States},
    text::{Format, Text},
    watermark::{TimestampsAndWatermarks, WatermarkStrategy},
    window::{AllWindowedStream, NoKey, WindowAssigner},
};

/// A stream of records of type `T`.
///
/// A clone is the same stream; what is done twice with one stream is done to each record twice.
/// Closures are `Fn`: they run in each subtask anew, so what they changed in
/// captured variables would be lost, and is not allowed. (A `RefCell` would slip
/// through; what it holds belongs to no checkpoint. See [`DataStream::process_function`].)
pub struct DataStream<T: ?Sized> {
    pub(crate) graph: SharedGraph,
    pub(crate) origins: Vec<Origin>,
    pub(crate) _record: PhantomData<T>,
}

impl<T: ?Sized> Clone for DataStream<T> {
    fn clone(&self) -> Self {
        Self { graph: self.graph.clone(), origins: self.origins.clone(), _record: PhantomData }
    }
}

/// Names a side output and the type of its records.
pub struct OutputTag<X: ?Sized> {
    name: String,
    _record: PhantomData<X>,
}

impl<X: ?Sized> OutputTag<X> {
    /// A tag of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), _record: PhantomData }
    }

    /// The name of the side output.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<X: ?Sized> Clone for OutputTag<X> {
    fn clone(&self) -> Self {
        Self::new(&self.name)
    }
}

impl<T: Record + ?Sized> DataStream<T> {
    /// The main output of a node.
    pub(crate) fn of_node(graph: SharedGraph, node: u32) -> Self {
        let origin = Origin { node, side_output: None, partitioner: None, selector: None };
        Self { graph, origins: vec![origin], _record: PhantomData }
    }

    /// Adds an operator behind this stream.
    pub(crate) fn operator<U, F>(&self, name: &str, kind: &str, make: impl Fn() -> F + 'static) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: Function<T, U>,
    {
        self.operator_of(name, kind, Box::new(FunctionFactory::<T, U, _>::new(make)))
    }

    /// Adds the operator that a factory makes behind this stream.
    pub(crate) fn operator_of<U: Record + ?Sized>(
        &self,
        name: &str,
        kind: &str,
        factory: Box<dyn OperatorFactory>,
    ) -> DataStream<U> {
        let mut graph = self.graph.borrow_mut();
        let node = graph.add_node(name, OperatorKind::Guest(kind.to_owned()), NodeTypes::operator::<T, U>());
        graph.add_factory(node, factory);
        graph.connect(&self.origins, (node, 0), &descriptor_of::<T>());
        drop(graph);
        DataStream::of_node(self.graph.clone(), node)
    }

    /// Gives the records timestamps, and the stream watermarks; see [`WatermarkStrategy`].
    ///
    /// The operator has the parallelism of the one before it: watermarks hold for the records of
    /// one subtask in the order in which its source gives them, so they are best made right behind
    /// the source. A native source of several files then reads these side by side, unless
    /// [`FileSource::read_order`](crate::FileSource::read_order) says otherwise.
    pub fn assign_timestamps_and_watermarks(&self, strategy: WatermarkStrategy<T>) -> Self {
        let (mistake, alignment) = (strategy.mistake(), strategy.alignment.clone());
        let strategy = Rc::new(strategy);
        let stream: Self = self.operator("Timestamps/Watermarks", "TimestampsAndWatermarks", move || {
            TimestampsAndWatermarks::new(strategy.clone())
        });
        let mut graph = self.graph.borrow_mut();
        let node = stream.origins[0].node;
        let before = self.plain_node().and_then(|before| graph.node(before)?.parallelism);
        let added = graph.node_mut(node);
        added.parallelism = before;
        added.generates_watermarks = true;
        let (sources, others) = graph.sources_before(node);
        for connector in sources {
            if let Some(connector) = graph.connector_mut(connector) {
                source::prepare_for_watermarks(connector, alignment.as_ref());
            }
        }
        if let Some(mistake) = mistake {
            graph.error(mistake.to_owned());
        }
        if others && alignment.is_some() {
            graph
                .error("with_watermark_alignment is for sources of the engine, not for those of the plugin".to_owned());
        }
        drop(graph);
        stream
    }

    /// Makes one record of each record.
    ///
    /// The closure gets the record by value, or the borrow that it is, and returns
    /// an owned record; [`DataStream::flat_map`] can hand on borrows.
    pub fn map<U, F>(&self, function: F) -> DataStream<U>
    where
        U: Owned,
        F: for<'a> Fn(T::View<'a>) -> U + 'static,
    {
        let function = Rc::new(function);
        self.operator("Map", "Map", move || Map(function.clone()))
    }

    /// Makes one record of each record, or an error that rejects the record: the job's
    /// policy says whether the job fails or the record is left out.
    pub fn try_map<U, F>(&self, function: F) -> DataStream<U>
    where
        U: Owned,
        F: for<'a> Fn(T::View<'a>) -> Result<U> + 'static,
    {
        let function = Rc::new(function);
        self.operator("Map", "Map", move || TryMap(function.clone()))
    }

    /// Keeps the records that the predicate holds for.
    pub fn filter<F>(&self, predicate: F) -> Self
    where
        F: for<'a> Fn(T::Ref<'a>) -> bool + 'static,
    {
        let predicate = Rc::new(predicate);
        self.operator("Filter", "Filter", move || Filter(predicate.clone()))
    }

    /// Makes any number of records of each record, which leave by the collector.
    ///
    /// The closure returns nothing or a [`Result<()>`]; an error rejects the record.
    pub fn flat_map<U, F, R>(&self, function: F) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: for<'a> Fn(T::View<'a>, &mut Collector<U>) -> R + 'static,
        R: Outcome + 'static,
    {
        let function = Rc::new(function);
        self.operator("Flat Map", "FlatMap", move || FlatMap(function.clone()))
    }

    /// As [`DataStream::flat_map`], with the record's timestamp and side outputs.
    pub fn process<U, F, R>(&self, function: F) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: for<'a> Fn(T::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R + 'static,
        R: Outcome + 'static,
    {
        let function = Rc::new(function);
        self.operator("Process", "Process", move || Process::new(function.clone()))
    }

    /// As [`DataStream::process`], by a function with states of its own, which `make` declares:
    /// those of [`States::operator_list`] and [`States::operator_union_list`].
    ///
    /// ```
    /// use engine_sdk::{TestHarness, prelude::*};
    ///
    /// /// Numbers the records of each subtask.
    /// struct Number {
    ///     seen: OperatorListState<u64>,
    /// }
    ///
    /// impl ProcessFunction<str> for Number {
    ///     type Output = String;
    ///
    ///     fn process_element(&self, line: &str, _: &mut Context<'_>, out: &mut Collector<String>) -> Result<()> {
    ///         let number = self.seen.get().iter().sum::<u64>() + 1;
    ///         self.seen.update([number]);
    ///         out.collect(format!("{number} {line}"));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
    ///     lines.process_function(|states: &mut States| Number { seen: states.operator_list("seen") })
    /// })?;
    /// harness.push::<str>("a")?;
    /// harness.push::<str>("b")?;
    /// assert_eq!(harness.records::<String>()?, ["1 a", "2 b"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn process_function<F, M>(&self, make: M) -> DataStream<F::Output>
    where
        F: ProcessFunction<T>,
        M: Fn(&mut States) -> F + 'static,
    {
        let declared = States::declared_by(&make);
        let make = move |states: &StateBackend| ProcessWithStates::<T, F>::new(States::make(states, &make).0);
        let factory = StatefulFunctionFactory::<T, F::Output, _>::new(make);
        let stream = self.operator_of("Process", "Process", Box::new(factory));
        self.graph.borrow_mut().set_unkeyed(stream.origins[0].node, declared);
        stream
    }

    /// The records that the operator before this handed to a side output.
    pub fn get_side_output<X: Record + ?Sized>(&self, tag: &OutputTag<X>) -> DataStream<X> {
        let mut graph = self.graph.borrow_mut();
        let [Origin { node, side_output: None, partitioner: None, .. }] = self.origins[..] else {
            graph.error(format!("side output \"{}\" must be taken directly from its operator", tag.name()));
            drop(graph);
            return DataStream { graph: self.graph.clone(), origins: Vec::new(), _record: PhantomData };
        };
        graph.add_side_output::<X>(node, tag.name());
        drop(graph);
        let origin = Origin { node, side_output: Some(tag.name().to_owned()), partitioner: None, selector: None };
        DataStream { graph: self.graph.clone(), origins: vec![origin], _record: PhantomData }
    }

    /// The records of this and another stream.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.origins.extend(other.origins.iter().cloned());
        union
    }

    /// This and another stream, for operators that see the records of both.
    pub fn connect<B: Record + ?Sized>(&self, other: &DataStream<B>) -> ConnectedStreams<T, B> {
        ConnectedStreams::new(self.clone(), other.clone())
    }

    /// This stream and another, whose records go to each subtask of the operator that follows.
    pub fn connect_broadcast<B: Record + ?Sized>(&self, other: &DataStream<B>) -> BroadcastConnectedStream<T, B> {
        BroadcastConnectedStream::new(self.clone(), other.broadcast())
    }

    /// Keys the stream by what the closure returns, an owned key.
    ///
    /// `sum`, `min`, `max`, `count`, `reduce` and `aggregate` stand on the keyed stream:
    ///
    /// ```compile_fail,E0277
    /// # use engine_sdk::prelude::*;
    /// fn total(numbers: DataStream<u64>) { numbers.sum(|n| *n); }
    /// ```
    pub fn key_by<K, F>(&self, key: F) -> KeyedStream<T, K, ByValue<F>>
    where
        K: Key + Owned,
        F: for<'a> Fn(T::Ref<'a>) -> K + 'static,
    {
        self.keyed(ByValue(key))
    }

    /// Keys the stream by a part of the record, borrowed from it.
    pub fn key_by_ref<K, F>(&self, key: F) -> KeyedStream<T, K, ByRef<F>>
    where
        T: for<'a> Record<Ref<'a> = &'a T>,
        K: for<'a> Record<Ref<'a> = &'a K> + Key + ?Sized,
        F: for<'a> Fn(&'a T) -> &'a K + 'static,
    {
        self.keyed(ByRef(key))
    }

    /// Keys the stream by what the closure hands to the writer: for keys borrowed from
    /// records that are borrowed themselves,
    /// `bids.key_by_with(|bid: &Bid, key: &mut KeyWriter<str>| key.set(bid.channel))`.
    pub fn key_by_with<K, F>(&self, key: F) -> KeyedStream<T, K, ByWriter<K, F>>
    where
        K: Key + ?Sized,
        F: for<'a> Fn(T::Ref<'a>, &mut KeyWriter<K>) + 'static,
    {
        self.keyed(ByWriter::new(key))
    }

    pub(crate) fn keyed<K: Key + ?Sized, S: KeySelector<T, K>>(&self, selector: S) -> KeyedStream<T, K, S> {
        let selector = Rc::new(selector);
        let stream = self.with_selector("Key By", Partitioner::Hash, hash_output::<T, K, S>(selector.clone()));
        KeyedStream::new(stream, selector)
    }

    /// Groups all records in windows, whatever their key, in one subtask.
    pub fn window_all(&self, assigner: impl WindowAssigner<T>) -> AllWindowedStream<T> {
        AllWindowedStream::new(&self.keyed(NoKey), assigner)
    }

    /// Deals the records in turn to all subtasks of the next operator.
    #[must_use]
    pub fn rebalance(&self) -> Self {
        self.partitioned(Partitioner::Rebalance)
    }

    /// Deals the records in turn to the nearest subtasks of the next operator.
    #[must_use]
    pub fn rescale(&self) -> Self {
        self.partitioned(Partitioner::Rescale)
    }

    /// Deals the records at random.
    #[must_use]
    pub fn shuffle(&self) -> Self {
        self.partitioned(Partitioner::Shuffle)
    }

    /// Sends each record to all subtasks of the next operator.
    #[must_use]
    pub fn broadcast(&self) -> Self {
        self.partitioned(Partitioner::Broadcast)
    }

    /// Sends all records to the first subtask of the next operator.
    #[must_use]
    pub fn global(&self) -> Self {
        self.partitioned(Partitioner::Global)
    }

    /// Sends each record to the subtask of the same index.
    #[must_use]
    pub fn forward(&self) -> Self {
        self.partitioned(Partitioner::Forward)
    }

    /// Sends each record to the subtask that the closure returns, zero-based, given the
    /// record and the number of subtasks.
    #[must_use]
    pub fn partition_custom<F>(&self, partitioner: F) -> Self
    where
        F: for<'a> Fn(T::Ref<'a>, u32) -> u32 + 'static,
    {
        let partitioner = Rc::new(partitioner);
        let selector = Rc::new(move |output: u32, channels: u32| -> Box<dyn std::any::Any> {
            let output = PartitionOutput::new(output, channels, partitioner.clone());
            let downstream: Box<dyn Downstream<T>> = Box::new(output);
            Box::new(downstream)
        });
        self.with_selector("Partition", Partitioner::Custom, selector)
    }

    fn partitioned(&self, partitioner: Partitioner) -> Self {
        let mut stream = self.clone();
        for origin in &mut stream.origins {
            origin.partitioner = Some(partitioner);
            origin.selector = None;
        }
        stream
    }

    /// The stream with a selector on its way to the next operator. A selector is code of
    /// the plugin, so a native source gets an operator behind it to run it in.
    fn with_selector(&self, name: &str, partitioner: Partitioner, selector: Rc<dyn SelectorFactory>) -> Self {
        let mut stream = self.with_guest_origins(name);
        let selector = self.graph.borrow_mut().add_selector(selector);
        for origin in &mut stream.origins {
            origin.partitioner = Some(partitioner);
            origin.selector = Some(selector);
        }
        stream
    }

    /// The stream with an operator of the plugin behind each native source. Records are
    /// dealt as before, now by that operator, which runs beside its source.
    fn with_guest_origins(&self, name: &str) -> Self {
        let mut stream = self.clone();
        for origin in &mut stream.origins {
            if !self.graph.borrow().is_native(origin.node) {
                continue;
            }
            let beside = Origin { partitioner: None, ..origin.clone() };
            let source = Self { graph: self.graph.clone(), origins: vec![beside], _record: PhantomData };
            let identity: Self = source.operator(name, "Identity", || Identity);
            let mut graph = self.graph.borrow_mut();
            let parallelism = graph.node(origin.node).and_then(|node| node.parallelism);
            let added = identity.origins[0].node;
            graph.node_mut(added).parallelism = parallelism;
            *origin = Origin { node: added, side_output: None, partitioner: origin.partitioner, selector: None };
        }
        stream
    }

    /// Writes the records into a sink of the engine.
    pub fn sink_to<S: Sink<T>>(&self, sink: S) -> DataStreamSink {
        let (stream, record_type) = match sink.format() {
            None => (self.clone(), descriptor_of::<T>()),
            Some(format) => {
                let mut stream = self.with_guest_origins("Format");
                let selector = self.graph.borrow_mut().add_selector(format.selector);
                for origin in &mut stream.origins {
                    if origin.selector.is_some() {
                        self.graph.borrow_mut().error(format!(
                            "\"{}\" takes text; `map` the records to text before `partition_custom` or `key_by`",
                            sink.name()
                        ));
                    }
                    origin.selector = Some(selector);
                }
                (stream, "string".to_owned())
            }
        };
        let mut graph = self.graph.borrow_mut();
        let types = NodeTypes { inputs: vec![record_type.clone()], output: None };
        let node = graph.add_node(sink.name(), OperatorKind::Sink(sink.connector()), types);
        graph.connect(&stream.origins, (node, 0), &record_type);
        drop(graph);
        DataStreamSink { graph: self.graph.clone(), node }
    }

    /// Prints the records on standard output, by their `Display`.
    pub fn print(&self) -> DataStreamSink
    where
        Text: Format<T>,
    {
        self.sink_to(PrintSink::text_lines())
    }

    /// The node that settings of this stream are for, if it comes right out of an operator.
    fn plain_node(&self) -> Option<u32> {
        match self.origins[..] {
            [Origin { node, side_output: None, partitioner: None, selector: None }] => Some(node),
            _ => None,
        }
    }
}

/// What a stream without a key does not have.
#[diagnostic::on_unimplemented(
    message = "this stream has no key",
    label = "needs a keyed stream",
    note = "call `key_by` before: `stream.key_by(|record| ..).count()`"
)]
#[doc(hidden)]
pub trait HasKey {}

/// Calls that only keyed streams have. They stand here so that rustc says what is missing,
/// instead of that the stream is no iterator; nothing can call them.
macro_rules! keyed_only {
    ($($name:ident($($function:ident: $type:ident)?)),*) => {
        impl<T: Record + ?Sized> DataStream<T> {
            $(
                #[doc(hidden)]
                pub fn $name$(<$type>)?(&self $(, $function: $type)?) -> Self
                where
                    Self: HasKey,
                {
                    $(drop($function);)?
                    self.clone()
                }
            )*
        }
    };
}

keyed_only!(count(), sum(f: F), min(f: F), max(f: F), reduce(f: F), aggregate(f: F), window(f: F));

node_settings!(DataStream<T>, [T: Record + ?Sized], |stream| stream.plain_node());

impl<T: Record + ?Sized> DataStream<T> {
    /// Sets the number of key groups: the highest parallelism that keyed state of this
    /// operator can be spread over.
    pub fn set_max_parallelism(self, max_parallelism: u32) -> Self {
        self.set(|node| node.max_parallelism = Some(max_parallelism))
    }

    /// Chains the operator with none before it.
    pub fn start_new_chain(self) -> Self {
        self.set(|node| node.chaining = ChainingStrategy::Head)
    }

    /// Sets the time after which partly filled buffers are sent on; zero: after each batch.
    pub fn set_buffer_timeout(self, timeout: Duration) -> Self {
        self.set(|node| node.buffer_timeout = Some(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)))
    }
}
