//! The environment in which a program declares its streams.

use std::time::Duration;

use crate::{
    bindings::engine::plugin::graph::Operator as OperatorKind,
    data_stream::DataStream,
    graph::{NodeTypes, SharedGraph},
    operator::{Elements, OperatorFactory, SourceFactory, SourceFunction},
    record::{Owned, Record},
    source::{SequenceSource, Source},
    state::{StateBackend, States},
    watermark::WatermarkStrategy,
};

/// Where a program begins: settings of the job, and its sources.
///
/// Settings made here override the configuration file; `-D` and the options of
/// `engine submit` override them.
pub struct StreamExecutionEnvironment {
    pub(crate) graph: SharedGraph,
}

impl StreamExecutionEnvironment {
    pub(crate) fn new() -> Self {
        Self { graph: SharedGraph::default() }
    }

    /// Sets the parallelism of all operators that set none of their own.
    pub fn set_parallelism(&self, parallelism: u32) -> &Self {
        let mut graph = self.graph.borrow_mut();
        if parallelism == 0 {
            graph.error("the parallelism must be at least 1".to_owned());
        }
        graph.parallelism = Some(parallelism);
        drop(graph);
        self
    }

    /// Sets the number of key groups of all operators that set none of their own: the highest
    /// parallelism that keyed state can ever be spread over.
    pub fn set_max_parallelism(&self, max_parallelism: u32) -> &Self {
        self.graph.borrow_mut().max_parallelism = Some(max_parallelism);
        self
    }

    /// Sets the name under which the job is listed.
    pub fn set_job_name(&self, name: &str) -> &Self {
        self.graph.borrow_mut().job_name = Some(name.to_owned());
        self
    }

    /// Sets a value of the job's configuration, for example `restart-strategy.type`. A program may set what
    /// CONFIGURATION.md says is set by `program`; a job that sets another key is refused.
    pub fn configure(&self, key: &str, value: &str) -> &Self {
        self.graph.borrow_mut().configuration.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Runs each operator in a task of its own.
    pub fn disable_operator_chaining(&self) -> &Self {
        self.configure("pipeline.operator-chaining.enabled", "false")
    }

    /// Sets the time after which partly filled buffers are sent on; zero: after each batch.
    pub fn set_buffer_timeout(&self, timeout: Duration) -> &Self {
        self.configure("execution.buffer-timeout.interval", &format!("{} ms", timeout.as_millis()))
    }

    /// Reads a source of the engine.
    pub fn from_source<S: Source>(&self, source: S) -> DataStream<S::Record> {
        let mut graph = self.graph.borrow_mut();
        let types = NodeTypes::source::<S::Record>();
        let node = graph.add_node(source.name(), OperatorKind::Source(source.connector()), types);
        if !S::PARALLEL {
            graph.set_serial(node);
        }
        drop(graph);
        DataStream::of_node(self.graph.clone(), node)
    }

    /// Reads a source of the engine whose records get timestamps and watermarks beside it; see
    /// [`WatermarkStrategy`]. Settings of the stream are for the operator that assigns them, but
    /// the parallelism is for both.
    pub fn from_source_with_watermarks<S: Source>(
        &self,
        source: S,
        strategy: WatermarkStrategy<S::Record>,
    ) -> DataStream<S::Record> {
        let source = self.from_source(source);
        let stream = source.assign_timestamps_and_watermarks(strategy);
        let parts = (stream.origins[0].node, source.origins[0].node);
        self.graph.borrow_mut().parts_of_sources.extend([parts]);
        stream
    }

    /// The numbers from `from` to `to`, both included, spread over the subtasks.
    pub fn from_sequence(&self, from: i64, to: i64) -> DataStream<i64> {
        self.from_source(SequenceSource::new(from, to))
    }

    /// The elements of a list, by one subtask.
    pub fn from_elements<U: Owned + Clone>(&self, elements: Vec<U>) -> DataStream<U> {
        self.from_stateful_source("Elements", move |states| Elements::new(elements.clone(), states)).set_parallelism(1)
    }

    /// Reads a source that is part of the plugin; `make` is called once in each subtask.
    pub fn from_source_function<U, S>(&self, name: &str, make: impl Fn() -> S + 'static) -> DataStream<U>
    where
        U: Record + ?Sized,
        S: SourceFunction<U>,
    {
        self.from_stateful_source(name, move |_| make())
    }

    /// As [`StreamExecutionEnvironment::from_source_function`], for a source that declares where it
    /// keeps its position: [`States::operator_list`] or [`States::operator_union_list`].
    pub fn from_stateful_source<U, S>(&self, name: &str, make: impl Fn(&mut States) -> S + 'static) -> DataStream<U>
    where
        U: Record + ?Sized,
        S: SourceFunction<U>,
    {
        let declared = States::declared_by(&make);
        let mut graph = self.graph.borrow_mut();
        let kind = OperatorKind::GuestSource("Source".to_owned());
        let node = graph.add_node(&format!("Source: {name}"), kind, NodeTypes::source::<U>());
        let make = move |states: &StateBackend| States::make(states, &make).0;
        let factory: Box<dyn OperatorFactory> = Box::new(SourceFactory::<U, _>::new(make));
        graph.add_factory(node, factory);
        graph.set_unkeyed(node, declared);
        drop(graph);
        DataStream::of_node(self.graph.clone(), node)
    }
}
