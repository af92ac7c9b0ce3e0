//! Operators: user functions with their place in a segment.
//!
//! A [`Function`] is the user's closure with what an operator makes of it; an
//! [`Operator`] puts it between a row loop and a collector. The function is
//! compiled into both the row loop ([`Head`]) and the call from the operator
//! before it ([`Downstream`]).

mod stateless;
mod keyed;
mod source;

use std::{any::Any, rc::Rc};

use engine_rows::row::{NO_TIMESTAMP, Rows};

pub use self::{
    keyed::{AggregateFunction, Number},
    source::{SourceFunction, SourceStatus},
    stateless::Context,
};
pub(crate) use self::{
    keyed::{AtEnd, Count, Fold, KeyedReduce, MaxOf, MinOf, ReduceAtEnd, Running, SumOf},
    source::{Elements, SourceFactory},
    stateless::{Filter, FlatMap, FormatOutput, HashOutput, Identity, Map, PartitionOutput, Process, TryMap},
};
use crate::{
    collector::{AnyCollector, Collector, Downstream, Lifecycle, Signal},
    current,
    error::Result,
    key::KeySelector,
    record::{DecodeError, Record, descriptor_of},
};

pub(crate) use self::keyed::AggregateFold;

/// Where an operator runs.
#[derive(Clone, Debug)]
pub struct RuntimeContext {
    /// Name of the job.
    pub job_name: String,
    /// Name of the task.
    pub task_name: String,
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Zero-based number of this attempt to run the subtask.
    pub attempt: u32,
}

/// What a function knows of the record besides the record.
#[derive(Clone, Copy)]
pub(crate) struct Element {
    /// Milliseconds since the Unix epoch, or [`NO_TIMESTAMP`].
    pub(crate) timestamp: i64,
    /// Hash of its key, if the row says so.
    pub(crate) key_hash: Option<u32>,
}

/// What an operator does with each record.
pub(crate) trait Function<T: Record + ?Sized, U: Record + ?Sized>: 'static {
    /// True if the function itself sends watermarks and their status; those from before it end there.
    const GENERATES_WATERMARKS: bool = false;

    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        side_outputs: &mut SideOutputs,
    );

    /// Called with a batch of rows before each of them is processed.
    fn begin_batch(&mut self, _rows: &[u8]) {}

    /// Called before the watermark is forwarded.
    fn process_watermark(&mut self, _timestamp: i64, _out: &mut Collector<U>) {}

    /// Called before the end is forwarded.
    fn end_input(&mut self, _out: &mut Collector<U>) {}

    /// Called before the signal is forwarded.
    fn notify(&mut self, _signal: Signal, _out: &mut Collector<U>) {}

    /// Called at the end of each call of the segment, before rows are flushed.
    fn flush(&mut self) {}
}

/// Collectors of a node's side outputs, by name.
pub(crate) struct SideOutputs(pub(crate) Vec<(String, Box<dyn AnyCollector>)>);

/// A function in its place.
pub(crate) struct Operator<T: Record + ?Sized, U: Record + ?Sized, F> {
    node: u32,
    function: F,
    out: Collector<U>,
    side_outputs: SideOutputs,
    _input: std::marker::PhantomData<T>,
}

/// Rows that enter a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Batch<'a> {
    /// Rows with headers.
    Rows(&'a [u8]),
    /// Lines of text, each ended by a line feed.
    Lines(&'a [u8]),
}

/// The first operator of a segment.
pub(crate) trait Head: Lifecycle {
    /// Processes the rows in order until the batch ends or the call fails.
    fn process_batch(&mut self, batch: Batch<'_>);

    /// Polls a source; none if the operator is not one.
    fn poll_source(&mut self, _bytes_max: u32) -> Option<SourceStatus> {
        None
    }
}

impl<T, U, F> Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    pub(crate) fn new(node: u32, function: F, out: Collector<U>, side_outputs: SideOutputs) -> Self {
        Self { node, function, out, side_outputs, _input: std::marker::PhantomData }
    }

    #[inline(always)]
    fn process_element(&mut self, record: T::View<'_>, element: Element) {
        current::enter(self.node);
        self.out.set_timestamp(element.timestamp);
        self.function.process(record, element, &mut self.out, &mut self.side_outputs);
    }

    fn process_rows(&mut self, batch: &[u8]) {
        self.function.begin_batch(batch);
        for (index, row) in (0_u32..).zip(Rows::new(batch)) {
            current::enter_row(index);
            let row = match row {
                Ok(row) => row,
                Err(bad) => return current::fail(self.node, &bad.to_string()),
            };
            let element = Element { timestamp: row.timestamp, key_hash: Some(row.key_hash) };
            let decoded = T::decode(row.payload, |record| self.process_element(record, element));
            if let Err(error) = decoded {
                return self.not_a_record(index, error);
            }
            if current::interrupted() && !current::settle(Some((index, row.payload))) {
                return;
            }
        }
    }

    fn process_lines(&mut self, batch: &[u8]) {
        let Ok(text) = std::str::from_utf8(batch) else {
            return current::fail(self.node, "a batch of lines is not UTF-8");
        };
        let element = Element { timestamp: NO_TIMESTAMP, key_hash: None };
        let mut start = 0;
        for (index, end) in (0_u32..).zip(memchr::memchr_iter(b'\n', batch)) {
            current::enter_row(index);
            let line = &text[start..end];
            start = end + 1;
            if T::decode_line(line, |record| self.process_element(record, element)).is_none() {
                let record_type = descriptor_of::<T>();
                return current::fail(self.node, &format!("got lines of text for records of type {record_type}"));
            }
            if current::interrupted() && !current::settle(Some((index, line.as_bytes()))) {
                return;
            }
        }
    }

    #[cold]
    fn not_a_record(&self, row: u32, error: DecodeError) {
        let record_type = descriptor_of::<T>();
        current::fail(self.node, &format!("row {row} of the batch is not a record of type {record_type}: {error}"));
    }
}

impl<T, U, F> Head for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process_batch(&mut self, batch: Batch<'_>) {
        match batch {
            Batch::Rows(rows) => self.process_rows(rows),
            Batch::Lines(lines) => self.process_lines(lines),
        }
    }
}

impl<T, U, F> Downstream<T> for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        self.process_element(record, Element { timestamp, key_hash: None });
    }
}

impl<T, U, F> Lifecycle for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process_watermark(&mut self, timestamp: i64) {
        current::enter(self.node);
        self.function.process_watermark(timestamp, &mut self.out);
        if !F::GENERATES_WATERMARKS {
            self.out.process_watermark(timestamp);
        }
        self.side_outputs.0.iter_mut().for_each(|(_, side)| side.process_watermark(timestamp));
    }

    fn process_watermark_status(&mut self, idle: bool) {
        if !F::GENERATES_WATERMARKS {
            self.out.process_watermark_status(idle);
        }
        self.side_outputs.0.iter_mut().for_each(|(_, side)| side.process_watermark_status(idle));
    }

    fn end_input(&mut self) {
        current::enter(self.node);
        self.function.end_input(&mut self.out);
        self.out.end_input();
        self.side_outputs.0.iter_mut().for_each(|(_, side)| side.end_input());
    }

    fn notify(&mut self, signal: Signal) {
        current::enter(self.node);
        self.function.notify(signal, &mut self.out);
        self.out.notify(signal);
        self.side_outputs.0.iter_mut().for_each(|(_, side)| side.notify(signal));
    }

    fn flush(&mut self) {
        self.function.flush();
        self.out.flush();
        self.side_outputs.0.iter_mut().for_each(|(_, side)| side.flush());
    }
}

/// Makes the operator of a node; kept in the graph, called when a segment is built.
pub(crate) trait OperatorFactory {
    /// The operator as the first of a segment.
    ///
    /// # Errors
    /// Returns an error if user code cannot open.
    fn head(&self, wiring: &mut dyn Wiring, context: &RuntimeContext) -> Result<Box<dyn Head>>;

    /// The operator behind another one: a `Box<dyn Downstream<T>>`.
    ///
    /// # Errors
    /// Returns an error if the node can only be the first of a segment.
    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>>;
}

/// Where the records of the node that is being built go.
pub(crate) trait Wiring {
    /// The node that is being built.
    fn node(&self) -> u32;
    /// Targets of the main output or a side output; each is an output index
    /// for rows as they are, or a `Box<dyn Downstream<T>>`.
    fn targets(&mut self, side_output: Option<&str>) -> Vec<ErasedTarget>;
    /// The side outputs that somebody listens to.
    fn side_outputs(&mut self) -> SideOutputs;
}

/// A target whose record type is known to its producer alone.
pub(crate) enum ErasedTarget {
    /// An output of the segment, by its index.
    Output(u32),
    /// A `Box<dyn Downstream<T>>`.
    Downstream(Box<dyn Any>),
}

/// Makes a function anew for each segment.
pub(crate) struct FunctionFactory<T: ?Sized, U: ?Sized, M> {
    make: M,
    _types: std::marker::PhantomData<(Rc<T>, Rc<U>)>,
}

impl<T: Record + ?Sized, U: Record + ?Sized, M> FunctionFactory<T, U, M> {
    pub(crate) fn new(make: M) -> Self {
        Self { make, _types: std::marker::PhantomData }
    }

    fn operator<F>(&self, wiring: &mut dyn Wiring) -> Operator<T, U, F>
    where
        M: Fn() -> F,
        F: Function<T, U>,
    {
        let out = collector(wiring, None);
        Operator::new(wiring.node(), (self.make)(), out, wiring.side_outputs())
    }
}

impl<T, U, F, M> OperatorFactory for FunctionFactory<T, U, M>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
    M: Fn() -> F + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, _context: &RuntimeContext) -> Result<Box<dyn Head>> {
        Ok(Box::new(self.operator(wiring)))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        let operator: Box<dyn Downstream<T>> = Box::new(self.operator(wiring));
        Ok(Box::new(operator))
    }
}

/// A collector for an output of the node that is being built.
///
/// # Panics
/// Panics if a consumer has another record type: edges are made by typed streams only.
pub(crate) fn collector<T: Record + ?Sized>(wiring: &mut dyn Wiring, side_output: Option<&str>) -> Collector<T> {
    use crate::collector::{OutputBuffer, Target};
    let targets = wiring.targets(side_output).into_iter().map(|target| match target {
        ErasedTarget::Output(index) => Target::Output(OutputBuffer::new(index)),
        ErasedTarget::Downstream(next) => {
            Target::Downstream(*next.downcast::<Box<dyn Downstream<T>>>().expect("both ends of an edge have one type"))
        }
    });
    let targets = targets.collect();
    Collector::new(wiring.node(), Target::of(wiring.node(), targets))
}

/// What stands between an output and the engine: a key selector, a custom
/// partitioner or a text format. Kept in the graph by its number.
pub(crate) trait SelectorFactory {
    /// A `Box<dyn Downstream<T>>` that encodes for the output of this index.
    fn downstream(&self, output: u32, channels: u32) -> Box<dyn Any>;
}

impl<M: Fn(u32, u32) -> Box<dyn Any>> SelectorFactory for M {
    fn downstream(&self, output: u32, channels: u32) -> Box<dyn Any> {
        self(output, channels)
    }
}

/// Selector of an output that is dealt by key.
pub(crate) fn hash_output<T, K, S>(selector: Rc<S>) -> Rc<dyn SelectorFactory>
where
    T: Record + ?Sized,
    K: crate::record::Key + ?Sized,
    S: KeySelector<T, K>,
{
    Rc::new(move |output: u32, _channels: u32| -> Box<dyn Any> {
        let downstream: Box<dyn Downstream<T>> = Box::new(HashOutput::<K, S>::new(output, selector.clone()));
        Box::new(downstream)
    })
}
