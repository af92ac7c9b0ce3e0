//! Operators: user functions with their place in a segment.
//!
//! A [`Function`] is the user's closure with what an operator makes of it; an
//! [`Operator`] puts it between a row loop and a collector. The function is
//! compiled into both the row loop ([`Head`]) and the call from the operator
//! before it ([`Downstream`]).

mod stateless;
mod keyed;
mod process;
mod connected;
mod source;

use std::{any::Any, rc::Rc};

use engine_rows::row::{NO_TIMESTAMP, Rows};

pub use self::{
    connected::{BroadcastContext, BroadcastProcessFunction, KeyedBroadcastProcessFunction},
    keyed::{AggregateFunction, Number},
    process::{
        KeyedCoProcessFunction, KeyedContext, KeyedProcessFunction, OnTimerContext, ProcessFunction, TimerService,
    },
    source::{SourceFunction, SourceStatus},
    stateless::Context,
};
pub(crate) use self::{
    connected::{BroadcastProcess, CoProcess, KeyedBroadcastProcess},
    keyed::{Count, FlatMapWithState, Fold, KeyedReduce, MaxOf, MinOf, ReduceFold, Running, SumOf, VALUE},
    process::{Keyed, KeyedCoProcess, KeyedProcess, ProcessWithStates},
    source::{Elements, SourceFactory},
    stateless::{Filter, FlatMap, FormatOutput, HashOutput, Identity, Map, PartitionOutput, Process, TryMap},
};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::{AnyCollector, Collector, Downstream, Lifecycle, Signal},
    current,
    data_stream::OutputTag,
    error::{Error, Result},
    key::KeySelector,
    record::{DecodeError, Record, descriptor_of},
    state::{StateBackend, Timer, Timers},
};

pub(crate) use self::keyed::AggregateFold;

/// Where an operator runs.
#[derive(Clone, Debug, Default)]
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

    /// Called once, before all else.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        side_outputs: &mut SideOutputs,
    );

    /// Called with a batch of rows before each of them is processed; the place for the
    /// first pass of the caches. Not called for lines, nor behind another operator.
    fn begin_batch(&mut self, _rows: &[u8]) {}

    /// Called with the timers of a call before each of them is fired.
    fn begin_timers(&mut self, _timers: &[Timer<'_>]) {}

    /// A timer fires; the collector's timestamp is the timer's, or none in processing time.
    fn on_timer(
        &mut self,
        _domain: TimeDomain,
        _timer: Timer<'_>,
        _out: &mut Collector<U>,
        _side_outputs: &mut SideOutputs,
    ) {
        current::fail(current::node(), NO_TIMERS);
    }

    /// As [`Head::take_state`]; the collector's timestamp is the end of event time.
    fn take_state(&mut self, _entries: &[u8], _out: &mut Collector<U>) -> bool {
        current::fail(current::node(), NOTHING_TAKEN);
        false
    }

    /// Called before the watermark is forwarded, behind the timers that it fires.
    fn process_watermark(&mut self, _timestamp: i64, _out: &mut Collector<U>) {}

    /// Called before the end is forwarded.
    fn end_input(&mut self, _out: &mut Collector<U>) {}

    /// Lets the host know all state that it does not.
    fn flush_state(&mut self) {}

    /// Called before the signal is forwarded.
    fn notify(&mut self, _signal: Signal, _out: &mut Collector<U>) {}

    /// Called at the end of each call of the segment, before rows are flushed.
    fn flush(&mut self) {}
}

/// What an operator of two inputs does with each record; as [`Function`].
pub(crate) trait TwoInputFunction<A: Record + ?Sized, B: Record + ?Sized, U: Record + ?Sized>: 'static {
    /// As [`Function::open`].
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// A record of the first input.
    fn process1(
        &mut self,
        record: A::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        side_outputs: &mut SideOutputs,
    );

    /// A record of the second input.
    fn process2(
        &mut self,
        record: B::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        side_outputs: &mut SideOutputs,
    );

    /// As [`Function::begin_batch`]; `input` is 0 or 1.
    fn begin_batch(&mut self, _input: u32, _rows: &[u8]) {}

    /// As [`Function::begin_timers`].
    fn begin_timers(&mut self, _timers: &[Timer<'_>]) {}

    /// As [`Function::on_timer`].
    fn on_timer(
        &mut self,
        _domain: TimeDomain,
        _timer: Timer<'_>,
        _out: &mut Collector<U>,
        _side_outputs: &mut SideOutputs,
    ) {
        current::fail(current::node(), NO_TIMERS);
    }

    /// As [`Function::process_watermark`].
    fn process_watermark(&mut self, _timestamp: i64, _out: &mut Collector<U>) {}

    /// Input 0 or 1 has ended.
    fn end_input(&mut self, _input: u32, _out: &mut Collector<U>) {}

    /// As [`Function::flush_state`].
    fn flush_state(&mut self) {}
}

const NO_TIMERS: &str = "a timer fires in an operator that registers none";
const NOTHING_TAKEN: &str = "state is handed over to an operator that takes none at the end";

/// Collectors of a node's side outputs, by name.
pub(crate) struct SideOutputs(pub(crate) Vec<(String, Box<dyn AnyCollector>)>);

impl SideOutputs {
    /// Hands a record to a side output, if somebody took it.
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub(crate) fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, timestamp: i64, record: X::View<'_>) {
        self.collect::<X>(tag.name(), record, timestamp);
    }

    /// As [`SideOutputs::output`], by the name of the tag.
    pub(crate) fn collect<X: Record + ?Sized>(&mut self, name: &str, record: X::View<'_>, timestamp: i64) {
        let Some((_, collector)) = self.0.iter_mut().find(|(side, _)| side == name) else {
            return;
        };
        let Some(collector) = collector.as_any().downcast_mut::<Collector<X>>() else {
            panic!("side output \"{name}\" was taken with a tag of another record type");
        };
        collector.set_timestamp(timestamp);
        collector.collect(record);
    }
}

/// Where the records of a node go.
pub(crate) struct Outputs<U: Record + ?Sized> {
    pub(crate) node: u32,
    pub(crate) main: Collector<U>,
    pub(crate) sides: SideOutputs,
}

impl<U: Record + ?Sized> Outputs<U> {
    /// Those of the node that is being built.
    pub(crate) fn new(wiring: &mut dyn Wiring) -> Self {
        Self { node: wiring.node(), main: collector(wiring, None), sides: wiring.side_outputs() }
    }

    /// Marks the node as running, on a record or timer of this timestamp.
    #[inline(always)]
    pub(crate) fn enter(&mut self, timestamp: i64) {
        current::enter(self.node);
        self.main.set_timestamp(timestamp);
    }
}

impl<U: Record + ?Sized> Outputs<U> {
    fn process_side_watermarks(&mut self, timestamp: i64) {
        self.sides.0.iter_mut().for_each(|(_, side)| side.process_watermark(timestamp));
    }

    fn process_side_watermark_status(&mut self, idle: bool) {
        self.sides.0.iter_mut().for_each(|(_, side)| side.process_watermark_status(idle));
    }
}

impl<U: Record + ?Sized> Lifecycle for Outputs<U> {
    fn process_watermark(&mut self, timestamp: i64) {
        self.main.process_watermark(timestamp);
        self.process_side_watermarks(timestamp);
    }

    fn process_watermark_status(&mut self, idle: bool) {
        self.main.process_watermark_status(idle);
        self.process_side_watermark_status(idle);
    }

    fn notify(&mut self, signal: Signal) {
        self.main.notify(signal);
        self.sides.0.iter_mut().for_each(|(_, side)| side.notify(signal));
    }

    fn end_input(&mut self) {
        self.main.end_input();
        self.sides.0.iter_mut().for_each(|(_, side)| side.end_input());
    }

    fn flush(&mut self) {
        self.main.flush();
        self.sides.0.iter_mut().for_each(|(_, side)| side.flush());
    }
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
    /// Processes the rows of a zero-based input in order until the batch ends or the call fails.
    fn process_batch(&mut self, input: u32, batch: Batch<'_>);

    /// Polls a source; none if the operator is not one.
    fn poll_source(&mut self, _bytes_max: u32) -> Option<SourceStatus> {
        None
    }

    /// Fires timers, laid out as `fire-timers` of the contract says.
    fn fire_timers(&mut self, _timers: &Timers, _domain: TimeDomain, _due: &[u8]) {
        current::fail(current::node(), NO_TIMERS);
    }

    /// Takes entries of its state when event time has ended, laid out as `take-state` of the
    /// contract says; if there are none, the next that only the plugin's memory has. Returns
    /// true if that has more.
    fn take_state(&mut self, _entries: &[u8]) -> bool {
        current::fail(current::node(), NOTHING_TAKEN);
        false
    }

    /// Ends an input, and with the last one the operator.
    fn end_input_number(&mut self, _input: u32) {
        self.end_input();
    }

    /// Lets the host know all state that it does not.
    fn flush_state(&mut self) {}
}

/// Hands each record of a batch to `process`, until it ends or the call fails.
#[inline(always)]
fn each_record<T: Record + ?Sized>(node: u32, batch: Batch<'_>, process: impl FnMut(T::View<'_>, Element)) {
    match batch {
        Batch::Rows(rows) => each_row::<T>(node, rows, process),
        Batch::Lines(lines) => each_line::<T>(node, lines, process),
    }
}

#[inline(always)]
fn each_row<T: Record + ?Sized>(node: u32, batch: &[u8], mut process: impl FnMut(T::View<'_>, Element)) {
    for (index, row) in (0_u32..).zip(Rows::new(batch)) {
        current::enter_row(index);
        let row = match row {
            Ok(row) => row,
            Err(bad) => return current::fail(node, &bad.to_string()),
        };
        let element = Element { timestamp: row.timestamp, key_hash: Some(row.key_hash) };
        let decoded = T::decode(row.payload, |record| process(record, element));
        if let Err(error) = decoded {
            return not_a_record::<T>(node, index, error);
        }
        if current::interrupted() && !current::settle(Some((index, row.payload))) {
            return;
        }
    }
}

#[inline(always)]
fn each_line<T: Record + ?Sized>(node: u32, batch: &[u8], mut process: impl FnMut(T::View<'_>, Element)) {
    let Ok(text) = std::str::from_utf8(batch) else {
        return current::fail(node, "a batch of lines is not UTF-8");
    };
    let element = Element { timestamp: NO_TIMESTAMP, key_hash: None };
    let mut start = 0;
    for (index, end) in (0_u32..).zip(memchr::memchr_iter(b'\n', batch)) {
        current::enter_row(index);
        let line = &text[start..end];
        start = end + 1;
        if T::decode_line(line, |record| process(record, element)).is_none() {
            let record_type = descriptor_of::<T>();
            return current::fail(node, &format!("got lines of text for records of type {record_type}"));
        }
        if current::interrupted() && !current::settle(Some((index, line.as_bytes()))) {
            return;
        }
    }
}

#[cold]
fn not_a_record<T: Record + ?Sized>(node: u32, row: u32, error: DecodeError) {
    let record_type = descriptor_of::<T>();
    current::fail(node, &format!("row {row} of the batch is not a record of type {record_type}: {error}"));
}

/// Fires the timers of a call: `begin` sees all of them, then `fire` each in its turn.
fn each_timer<F>(
    function: &mut F,
    timers: &Timers,
    (node, domain, due): (u32, TimeDomain, &[u8]),
    begin: impl FnOnce(&mut F, &[Timer<'_>]),
    mut fire: impl FnMut(&mut F, Timer<'_>),
) {
    let bytes = match timers.begin_firing(domain, due) {
        Ok(bytes) => bytes,
        Err(error) => return current::fail(node, &format!("the timers of a call cannot be read: {error}")),
    };
    let batch: Vec<_> = (0..timers.firing_count()).map(|number| timers.timer(&bytes, number)).collect();
    begin(function, &batch);
    let mut step = 0;
    let mut fire = |timer: Timer<'_>| {
        current::enter_row(step);
        step += 1;
        fire(function, timer);
        !current::interrupted() || current::settle(None)
    };
    let mut goes_on = !current::failed();
    let mut early_bytes = Vec::new();
    for (number, timer) in batch.iter().enumerate() {
        while goes_on && let Some(early) = timers.take_early(timer.timestamp, &mut early_bytes) {
            goes_on = fire(early);
        }
        if goes_on && timers.claim(number) {
            goes_on = fire(*timer);
        }
    }
    // Those that were registered for the time of the last one.
    while goes_on
        && let Some(last) = batch.last()
        && let Some(early) = timers.take_early(last.timestamp, &mut early_bytes)
    {
        goes_on = fire(early);
    }
    timers.end_firing();
}

/// Timestamp of what is collected when a timer fires.
fn timestamp_of(domain: TimeDomain, timer: Timer<'_>) -> i64 {
    match domain {
        TimeDomain::EventTime => timer.timestamp,
        TimeDomain::ProcessingTime => NO_TIMESTAMP,
    }
}

/// A function in its place.
pub(crate) struct Operator<T: Record + ?Sized, U: Record + ?Sized, F> {
    function: F,
    out: Outputs<U>,
    _input: std::marker::PhantomData<T>,
}

impl<T, U, F> Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    pub(crate) fn new(function: F, out: Outputs<U>) -> Self {
        Self { function, out, _input: std::marker::PhantomData }
    }
}

#[inline(always)]
fn process_element<T, U, F>(function: &mut F, out: &mut Outputs<U>, record: T::View<'_>, element: Element)
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    out.enter(element.timestamp);
    function.process(record, element, &mut out.main, &mut out.sides);
}

impl<T, U, F> Head for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process_batch(&mut self, input: u32, batch: Batch<'_>) {
        let Self { function, out, .. } = self;
        if input != 0 {
            return current::fail(out.node, &format!("got rows for input {input} of an operator with one input"));
        }
        if let Batch::Rows(rows) = batch {
            current::enter(out.node);
            function.begin_batch(rows);
            if current::failed() {
                return;
            }
        }
        each_record::<T>(out.node, batch, |record, element| process_element::<T, U, F>(function, out, record, element));
    }

    fn fire_timers(&mut self, timers: &Timers, domain: TimeDomain, due: &[u8]) {
        let Self { function, out, .. } = self;
        current::enter(out.node);
        each_timer(function, timers, (out.node, domain, due), F::begin_timers, |function, timer| {
            out.enter(timestamp_of(domain, timer));
            function.on_timer(domain, timer, &mut out.main, &mut out.sides);
        });
    }

    fn take_state(&mut self, entries: &[u8]) -> bool {
        let Self { function, out, .. } = self;
        out.enter(i64::MAX);
        function.take_state(entries, &mut out.main)
    }

    fn flush_state(&mut self) {
        self.function.flush_state();
    }
}

impl<T, U, F> Downstream<T> for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        let Self { function, out, .. } = self;
        process_element::<T, U, F>(function, out, record, Element { timestamp, key_hash: None });
    }
}

impl<T, U, F> Lifecycle for Operator<T, U, F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
{
    fn process_watermark(&mut self, timestamp: i64) {
        current::enter(self.out.node);
        self.function.process_watermark(timestamp, &mut self.out.main);
        if !F::GENERATES_WATERMARKS {
            self.out.main.process_watermark(timestamp);
        }
        self.out.process_side_watermarks(timestamp);
    }

    fn process_watermark_status(&mut self, idle: bool) {
        if !F::GENERATES_WATERMARKS {
            self.out.main.process_watermark_status(idle);
        }
        self.out.process_side_watermark_status(idle);
    }

    fn end_input(&mut self) {
        current::enter(self.out.node);
        self.function.end_input(&mut self.out.main);
        self.out.end_input();
    }

    fn notify(&mut self, signal: Signal) {
        current::enter(self.out.node);
        self.function.notify(signal, &mut self.out.main);
        self.out.notify(signal);
    }

    fn flush(&mut self) {
        self.function.flush();
        self.out.flush();
    }
}

/// A function of two inputs in its place: always the first of a segment.
pub(crate) struct TwoInputOperator<A: ?Sized, B: ?Sized, U: Record + ?Sized, F> {
    function: F,
    out: Outputs<U>,
    has_ended: [bool; 2],
    _inputs: std::marker::PhantomData<(Rc<A>, Rc<B>)>,
}

impl<A, B, U, F> TwoInputOperator<A, B, U, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
    F: TwoInputFunction<A, B, U>,
{
    pub(crate) fn new(function: F, out: Outputs<U>) -> Self {
        Self { function, out, has_ended: [false; 2], _inputs: std::marker::PhantomData }
    }
}

impl<A, B, U, F> Head for TwoInputOperator<A, B, U, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
    F: TwoInputFunction<A, B, U>,
{
    fn process_batch(&mut self, input: u32, batch: Batch<'_>) {
        let Self { function, out, .. } = self;
        if let Batch::Rows(rows) = batch {
            current::enter(out.node);
            function.begin_batch(input, rows);
            if current::failed() {
                return;
            }
        }
        match input {
            0 => each_record::<A>(out.node, batch, |record, element| {
                out.enter(element.timestamp);
                function.process1(record, element, &mut out.main, &mut out.sides);
            }),
            1 => each_record::<B>(out.node, batch, |record, element| {
                out.enter(element.timestamp);
                function.process2(record, element, &mut out.main, &mut out.sides);
            }),
            _ => current::fail(out.node, &format!("got rows for input {input} of an operator with two inputs")),
        }
    }

    fn fire_timers(&mut self, timers: &Timers, domain: TimeDomain, due: &[u8]) {
        let Self { function, out, .. } = self;
        current::enter(out.node);
        each_timer(function, timers, (out.node, domain, due), F::begin_timers, |function, timer| {
            out.enter(timestamp_of(domain, timer));
            function.on_timer(domain, timer, &mut out.main, &mut out.sides);
        });
    }

    fn end_input_number(&mut self, input: u32) {
        current::enter(self.out.node);
        self.function.end_input(input, &mut self.out.main);
        match self.has_ended.get_mut(input as usize) {
            Some(has_ended) => *has_ended = true,
            None => current::fail(self.out.node, &format!("input {input} of an operator with two inputs ended")),
        }
        if self.has_ended == [true; 2] {
            self.end_input();
        }
    }

    fn flush_state(&mut self) {
        self.function.flush_state();
    }
}

impl<A, B, U, F> Lifecycle for TwoInputOperator<A, B, U, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
    F: TwoInputFunction<A, B, U>,
{
    fn process_watermark(&mut self, timestamp: i64) {
        current::enter(self.out.node);
        self.function.process_watermark(timestamp, &mut self.out.main);
        self.out.process_watermark(timestamp);
    }

    fn process_watermark_status(&mut self, idle: bool) {
        self.out.process_watermark_status(idle);
    }

    fn end_input(&mut self) {
        self.out.end_input();
    }

    fn notify(&mut self, signal: Signal) {
        self.out.notify(signal);
    }

    fn flush(&mut self) {
        self.out.flush();
    }
}

/// Makes the operator of a node; kept in the graph, called when a segment is built.
pub(crate) trait OperatorFactory {
    /// The operator as the first of a segment, which keeps the segment's keyed state and timers.
    ///
    /// # Errors
    /// Returns an error if user code cannot open.
    fn head(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Box<dyn Head>>;

    /// The operator behind another one: a `Box<dyn Downstream<T>>`.
    ///
    /// # Errors
    /// Returns an error if the node can only be the first of a segment, or user code cannot open.
    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>>;
}

/// Where the records of the node that is being built go.
pub(crate) trait Wiring {
    /// The node that is being built.
    fn node(&self) -> u32;
    /// Where the segment runs.
    fn runtime(&self) -> &RuntimeContext;
    /// The states of the node that is being built.
    fn states(&self) -> StateBackend;
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

    fn operator<F>(&self, wiring: &mut dyn Wiring) -> Result<Operator<T, U, F>>
    where
        M: Fn() -> F,
        F: Function<T, U>,
    {
        let mut function = (self.make)();
        function.open(wiring.runtime())?;
        Ok(Operator::new(function, Outputs::new(wiring)))
    }
}

impl<T, U, F, M> OperatorFactory for FunctionFactory<T, U, M>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
    M: Fn() -> F + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, _states: &StateBackend) -> Result<Box<dyn Head>> {
        Ok(Box::new(self.operator(wiring)?))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        let operator: Box<dyn Downstream<T>> = Box::new(self.operator(wiring)?);
        Ok(Box::new(operator))
    }
}

/// Makes a function of one input with keyed state, from the segment's states.
pub(crate) struct KeyedFunctionFactory<T: ?Sized, U: ?Sized, M> {
    make: M,
    _types: std::marker::PhantomData<(Rc<T>, Rc<U>)>,
}

impl<T: Record + ?Sized, U: Record + ?Sized, M> KeyedFunctionFactory<T, U, M> {
    pub(crate) fn new(make: M) -> Self {
        Self { make, _types: std::marker::PhantomData }
    }
}

impl<T, U, F, M> OperatorFactory for KeyedFunctionFactory<T, U, M>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
    M: Fn(&StateBackend) -> F + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Box<dyn Head>> {
        let mut function = (self.make)(states);
        function.open(states.runtime())?;
        Ok(Box::new(Operator::<T, U, F>::new(function, Outputs::new(wiring))))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        Err(not_first(wiring))
    }
}

/// Makes a function of one input with states that belong to no key.
pub(crate) struct StatefulFunctionFactory<T: ?Sized, U: ?Sized, M> {
    make: M,
    _types: std::marker::PhantomData<(Rc<T>, Rc<U>)>,
}

impl<T: Record + ?Sized, U: Record + ?Sized, M> StatefulFunctionFactory<T, U, M> {
    pub(crate) fn new(make: M) -> Self {
        Self { make, _types: std::marker::PhantomData }
    }

    fn operator<F>(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Operator<T, U, F>>
    where
        M: Fn(&StateBackend) -> F,
        F: Function<T, U>,
    {
        let mut function = (self.make)(states);
        function.open(wiring.runtime())?;
        Ok(Operator::new(function, Outputs::new(wiring)))
    }
}

impl<T, U, F, M> OperatorFactory for StatefulFunctionFactory<T, U, M>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: Function<T, U>,
    M: Fn(&StateBackend) -> F + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Box<dyn Head>> {
        Ok(Box::new(self.operator(wiring, states)?))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        let states = wiring.states();
        let operator: Box<dyn Downstream<T>> = Box::new(self.operator(wiring, &states)?);
        Ok(Box::new(operator))
    }
}

/// Makes a function of two inputs, from the segment's states.
pub(crate) struct TwoInputFactory<A: ?Sized, B: ?Sized, U: ?Sized, M> {
    make: M,
    _types: std::marker::PhantomData<(Rc<A>, Rc<B>, Rc<U>)>,
}

impl<A: Record + ?Sized, B: Record + ?Sized, U: Record + ?Sized, M> TwoInputFactory<A, B, U, M> {
    pub(crate) fn new(make: M) -> Self {
        Self { make, _types: std::marker::PhantomData }
    }
}

impl<A, B, U, F, M> OperatorFactory for TwoInputFactory<A, B, U, M>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
    F: TwoInputFunction<A, B, U>,
    M: Fn(&StateBackend) -> F + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Box<dyn Head>> {
        let mut function = (self.make)(states);
        function.open(states.runtime())?;
        Ok(Box::new(TwoInputOperator::<A, B, U, F>::new(function, Outputs::new(wiring))))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        Err(not_first(wiring))
    }
}

/// The error of a node that cannot stand behind another one.
fn not_first(wiring: &dyn Wiring) -> Error {
    Error::new(format!(
        "node {} is not the first of its segment, but keeps keyed state or has two inputs",
        wiring.node()
    ))
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
