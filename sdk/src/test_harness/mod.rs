//! Runs a job on the host target, without an engine, for tests of plugins.
//!
//! Operators are chained into segments and rows pass between them encoded, as in
//! the engine; every operator has one subtask. Native sources are fed by the
//! test, native sinks keep what they get.

mod chaining;
mod snapshot;
mod state;

pub use self::snapshot::TestSnapshot;

use std::collections::BTreeMap;

use engine_rows::row::{self, NO_TIMESTAMP, Row, Rows};

use self::chaining::segments_of;
use crate::{
    Connector, Error, Result,
    args::Args,
    bindings::{
        engine::plugin::graph::{Operator as OperatorKind, StreamEdge, StreamGraph},
        exports::engine::plugin::operator_chain::{OperatorContext, SegmentOutput, TimeDomain},
    },
    collector::Signal,
    current,
    data_stream::DataStream,
    environment::StreamExecutionEnvironment,
    exports::declare,
    host::{self, Call},
    operator::{Batch, SourceStatus},
    record::{Owned, Record, descriptor_of},
    segment::{Failed, Segment},
    sink::DiscardSink,
    source::Source,
};

/// A source of the plugin that does not end within this many polls fails the test.
const POLLS_MAX: usize = 1_000_000;
/// Names of the sources of [`TestHarness::of_two_streams`].
const FIRST: &str = "Source: First";
const SECOND: &str = "Source: Second";
/// Timers that one call fires.
const TIMERS_MAX: usize = 1000;
/// Number of key groups.
const MAX_PARALLELISM: u32 = 128;
/// Bytes of keyed state that a segment keeps in its own memory.
const CACHE_BYTES: u64 = 16 << 20;

/// Runs a job in a test.
///
/// ```
/// use engine_sdk::{TestHarness, prelude::*};
///
/// fn shout(lines: DataStream<str>) -> DataStream<String> {
///     lines.filter(|line| !line.is_empty()).map(str::to_uppercase)
/// }
///
/// # fn main() -> Result<()> {
/// let mut harness = TestHarness::of_stream(shout)?;
/// harness.push::<str>("hello")?;
/// harness.push::<str>("")?;
/// harness.finish()?;
/// assert_eq!(harness.records::<String>()?, ["HELLO"]);
/// # Ok(())
/// # }
/// ```
pub struct TestHarness {
    declaration: StreamGraph,
    /// In ascending order of their first nodes: each behind all that lead to it.
    segments: Vec<RunningSegment>,
    /// Rows by id of the sink.
    sinks: BTreeMap<u32, Vec<OwnedRow>>,
    /// By edge, how far its records are.
    edges: Vec<EventTime>,
    /// By id of a sink or a segment's first node, how far its input is.
    inputs: BTreeMap<u32, EventTime>,
    /// Watermarks that a sink got, by its id.
    watermarks: BTreeMap<u32, Vec<i64>>,
    rejected: Vec<String>,
    log: Vec<String>,
    skip_rejected: bool,
}

struct RunningSegment {
    segment: Segment,
    nodes: Vec<u32>,
    outputs: Vec<SegmentOutput>,
    is_source: bool,
}

/// How a job is opened.
struct Opening<'a> {
    is_chained: bool,
    cache_bytes: u64,
    /// What it goes on from.
    snapshot: Option<&'a TestSnapshot>,
    /// Index of each operator's subtask, and number of them.
    subtask: (u32, u32),
}

impl Default for Opening<'_> {
    fn default() -> Self {
        Self { is_chained: true, cache_bytes: CACHE_BYTES, snapshot: None, subtask: (0, 1) }
    }
}

/// Event time of a stream.
#[derive(Clone, Copy)]
struct EventTime {
    watermark: i64,
    idle: bool,
}

impl EventTime {
    const START: Self = Self { watermark: i64::MIN, idle: false };
}

struct OwnedRow {
    timestamp: i64,
    payload: Vec<u8>,
}

impl TestHarness {
    /// Runs a program with arguments.
    ///
    /// # Errors
    /// Returns the program's error, or the first mistake in its use of streams.
    pub fn new(program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>, args: &[&str]) -> Result<Self> {
        Self::open_with(program, args, Opening::default())
    }

    /// As [`TestHarness::new`], with each operator in a segment of its own.
    ///
    /// # Errors
    /// As [`TestHarness::new`].
    pub fn unchained(
        program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
        args: &[&str],
    ) -> Result<Self> {
        Self::open_with(program, args, Opening { is_chained: false, ..Opening::default() })
    }

    /// As [`TestHarness::new`], with about this many bytes of keyed state in the memory of the
    /// operators, the rest in the host's: with few, state goes to and fro as in a job with many keys.
    ///
    /// # Errors
    /// As [`TestHarness::new`].
    pub fn with_cache_bytes(
        program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
        args: &[&str],
        cache_bytes: u64,
    ) -> Result<Self> {
        Self::open_with(program, args, Opening { cache_bytes, ..Opening::default() })
    }

    /// Runs a function from stream to stream.
    ///
    /// # Errors
    /// Returns the first mistake in its use of streams.
    pub fn of_stream<T, U>(function: impl FnOnce(DataStream<T>) -> DataStream<U>) -> Result<Self>
    where
        T: Record + ?Sized,
        U: Record + ?Sized,
    {
        Self::new(
            |env, _args| {
                function(env.from_source(TestSource::new("Source: Test"))).sink_to(DiscardSink);
                Ok(())
            },
            &[],
        )
    }

    /// Runs a function from two streams to one. They are fed by [`TestHarness::push_first`] and
    /// [`TestHarness::push_second`]; their sources are called "Source: First" and "Source: Second".
    ///
    /// # Errors
    /// Returns the first mistake in its use of streams.
    pub fn of_two_streams<A, B, U>(function: impl FnOnce(DataStream<A>, DataStream<B>) -> DataStream<U>) -> Result<Self>
    where
        A: Record + ?Sized,
        B: Record + ?Sized,
        U: Record + ?Sized,
    {
        Self::new(
            |env, _args| {
                let (first, second) = (TestSource::new(FIRST), TestSource::new(SECOND));
                function(env.from_source(first), env.from_source(second)).sink_to(DiscardSink);
                Ok(())
            },
            &[],
        )
    }

    fn open_with(
        program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
        args: &[&str],
        opening: Opening<'_>,
    ) -> Result<Self> {
        current::reset();
        host::reset();
        let (graph, declaration) = declare(program, args.iter().copied().map(str::to_owned).collect())?;
        let mut segments = Vec::new();
        for nodes in segments_of(&declaration, opening.is_chained) {
            let context = context_of(&declaration, nodes, &opening);
            let head = &declaration.nodes[context.nodes[0] as usize - 1];
            host::declare_instance(segments.len(), head.states.iter().map(|state| state.kind).collect());
            if let Some(snapshot) = opening.snapshot {
                let kept = snapshot::restored(snapshot, &declaration, &context.nodes, opening.subtask);
                host::restore_instance(segments.len(), kept);
            }
            host::enter_instance(segments.len());
            let segment = Segment::open(&graph.borrow(), &context)?;
            let OperatorContext { nodes, outputs, .. } = context;
            let is_source = matches!(head.operator, OperatorKind::GuestSource(_));
            segments.push(RunningSegment { segment, nodes, outputs, is_source });
        }
        Ok(Self {
            edges: vec![EventTime::START; declaration.edges.len()],
            inputs: BTreeMap::new(),
            watermarks: BTreeMap::new(),
            declaration,
            segments,
            sinks: BTreeMap::new(),
            rejected: Vec::new(),
            log: Vec::new(),
            skip_rejected: false,
        })
    }

    /// Leaves out rows that user code rejects, as the policy "skip" does; otherwise they fail the call.
    pub fn skip_rejected(&mut self) {
        self.skip_rejected = true;
    }

    /// Feeds a record to the only source of the engine.
    ///
    /// # Errors
    /// Returns an error if there is not one such source, if it has another record
    /// type, or if user code fails.
    pub fn push<T: Record + ?Sized>(&mut self, record: T::Ref<'_>) -> Result<()> {
        self.push_with_timestamp::<T>(record, NO_TIMESTAMP)
    }

    /// As [`TestHarness::push`], with an event time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// As [`TestHarness::push`].
    pub fn push_with_timestamp<T: Record + ?Sized>(&mut self, record: T::Ref<'_>, timestamp: i64) -> Result<()> {
        let source = self.only("source", |operator| matches!(operator, OperatorKind::Source(_)))?;
        self.push_into::<T>(source, record, timestamp)
    }

    /// Feeds a record to the first stream of [`TestHarness::of_two_streams`], with an event time in
    /// milliseconds since the Unix epoch if it has one.
    ///
    /// # Errors
    /// As [`TestHarness::push`].
    pub fn push_first<T: Record + ?Sized>(&mut self, record: T::Ref<'_>, timestamp: Option<i64>) -> Result<()> {
        let source = self.named(FIRST, is_source)?;
        self.push_into::<T>(source, record, timestamp.unwrap_or(NO_TIMESTAMP))
    }

    /// As [`TestHarness::push_first`], to the second stream.
    ///
    /// # Errors
    /// As [`TestHarness::push`].
    pub fn push_second<T: Record + ?Sized>(&mut self, record: T::Ref<'_>, timestamp: Option<i64>) -> Result<()> {
        let source = self.named(SECOND, is_source)?;
        self.push_into::<T>(source, record, timestamp.unwrap_or(NO_TIMESTAMP))
    }

    /// Feeds a record to the source of the engine with this name.
    ///
    /// # Errors
    /// As [`TestHarness::push`].
    pub fn push_to<T: Record + ?Sized>(&mut self, source: &str, record: T::Ref<'_>) -> Result<()> {
        let source = self.named(source, |operator| matches!(operator, OperatorKind::Source(_)))?;
        self.push_into::<T>(source, record, NO_TIMESTAMP)
    }

    /// Lets event time of all sources rise to a watermark, in milliseconds since the Unix epoch:
    /// timers and windows up to it fire. Behind an operator that makes watermarks itself
    /// (`assign_timestamps_and_watermarks`), only [`i64::MAX`], its end, is seen.
    ///
    /// # Errors
    /// Returns an error if user code fails.
    pub fn process_watermark(&mut self, timestamp: i64) -> Result<()> {
        self.sources().into_iter().try_for_each(|source| self.advance(source, timestamp))
    }

    /// The records that are pushed from here on come from this split of the source.
    ///
    /// # Errors
    /// Returns an error if user code fails.
    pub fn begin_split(&mut self, split: u32) -> Result<()> {
        self.each_segment(|segment| segment.notify(Signal::BeginSplit(split)))
    }

    /// The split was read to its end.
    ///
    /// # Errors
    /// Returns an error if user code fails.
    pub fn end_split(&mut self, split: u32) -> Result<()> {
        self.each_segment(|segment| segment.notify(Signal::EndSplit(split)))
    }

    /// The watermarks that the only sink of the engine got.
    ///
    /// # Errors
    /// Returns an error if there is not one sink.
    pub fn watermarks(&self) -> Result<Vec<i64>> {
        let sink = self.only("sink", |operator| matches!(operator, OperatorKind::Sink(_)))?;
        Ok(self.watermarks.get(&sink).cloned().unwrap_or_default())
    }

    /// True if the stream into the only sink of the engine is marked idle.
    ///
    /// # Errors
    /// Returns an error if there is not one sink.
    pub fn is_idle(&self) -> Result<bool> {
        let sink = self.only("sink", |operator| matches!(operator, OperatorKind::Sink(_)))?;
        Ok(self.inputs.get(&sink).is_some_and(|input| input.idle))
    }

    /// As [`TestHarness::process_watermark`], for the source of this name alone. An operator
    /// behind several sources goes by the least of their watermarks.
    ///
    /// # Errors
    /// Returns an error if there is no such source or user code fails.
    pub fn process_watermark_of(&mut self, source: &str, timestamp: i64) -> Result<()> {
        let source = self.named(source, is_source)?;
        self.advance(source, timestamp)
    }

    /// Sets the clock, in milliseconds since the Unix epoch: timers in processing time up to it
    /// fire, and watermarks are made, as the engine does every
    /// `pipeline.auto-watermark-interval`. It stands at 0 in the beginning, and moves only here.
    ///
    /// # Errors
    /// Returns an error if user code fails.
    pub fn set_processing_time(&mut self, now: i64) -> Result<()> {
        host::set_processing_time(now);
        (0..self.segments.len()).try_for_each(|index| self.fire_timers(index, TimeDomain::ProcessingTime, now))?;
        self.each_segment(|segment| segment.notify(Signal::ProcessingTime(now)))
    }

    /// Polls sources of the plugin to their ends, then ends event time and all inputs. Timers
    /// in processing time that wait are dropped.
    ///
    /// # Errors
    /// Returns an error if user code fails or a source does not end.
    pub fn finish(&mut self) -> Result<()> {
        for index in 0..self.segments.len() {
            if self.segments[index].is_source {
                self.poll_to_end(index)?;
            }
        }
        self.process_watermark(i64::MAX)?;
        for index in 0..self.segments.len() {
            let head = self.segments[index].nodes[0];
            let inputs = self.declaration.nodes[head as usize - 1].input_types.len().max(1);
            for input in (0_u32..).take(inputs) {
                self.call(index, |segment| segment.end_input(input))?;
            }
        }
        Ok(())
    }

    /// The lines that the only sink of the engine got, in the order in which they came.
    ///
    /// # Errors
    /// Returns an error if there is not one sink, or it takes no text.
    pub fn lines(&self) -> Result<Vec<String>> {
        self.records::<String>()
    }

    /// The records that the only sink of the engine got, in the order in which they came.
    ///
    /// # Errors
    /// Returns an error if there is not one sink, or it takes records of another type.
    pub fn records<T: Owned>(&self) -> Result<Vec<T>> {
        let sink = self.only("sink", |operator| matches!(operator, OperatorKind::Sink(_)))?;
        self.records_in(sink).map(|records| records.into_iter().map(|(record, _)| record).collect())
    }

    /// As [`TestHarness::records`], with the event time of each.
    ///
    /// # Errors
    /// As [`TestHarness::records`].
    pub fn records_with_timestamps<T: Owned>(&self) -> Result<Vec<(T, Option<i64>)>> {
        let sink = self.only("sink", |operator| matches!(operator, OperatorKind::Sink(_)))?;
        self.records_in(sink)
    }

    /// The records that the sink of this name or uid got, in the order in which they came.
    ///
    /// # Errors
    /// As [`TestHarness::records`].
    pub fn records_of<T: Owned>(&self, sink: &str) -> Result<Vec<T>> {
        let sink = self.named(sink, |operator| matches!(operator, OperatorKind::Sink(_)))?;
        self.records_in(sink).map(|records| records.into_iter().map(|(record, _)| record).collect())
    }

    /// Why rows were rejected, in order.
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// The log lines of user code.
    pub fn log(&self) -> &[String] {
        &self.log
    }

    /// Sum of a counter, last value of a gauge, or number of values in a histogram, over all
    /// nodes; none if no metric of this name was used.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let metrics = host::metrics().into_iter().filter(|metric| metric.name == name);
        metrics.map(|metric| metric.total()).reduce(|sum, total| sum + total)
    }

    fn push_into<T: Record + ?Sized>(&mut self, source: u32, record: T::Ref<'_>, timestamp: i64) -> Result<()> {
        let mut rows = Vec::new();
        row::append_with(&mut rows, 0, timestamp, |payload| T::encode(record, payload));
        let node = &self.declaration.nodes[source as usize - 1];
        let (expected, got) = (node.output_type.clone().unwrap_or_default(), descriptor_of::<T>());
        if expected != got {
            return Err(Error::new(format!("\"{}\" gives records of type {expected}, not {got}", node.name)));
        }
        self.deliver(source, None, None, &rows)
    }

    fn poll_to_end(&mut self, index: usize) -> Result<()> {
        for _ in 0..POLLS_MAX {
            let status = self.call(index, |segment| segment.poll_source(u32::MAX))?;
            if status == SourceStatus::End {
                return Ok(());
            }
        }
        Err(Error::new(format!("a source did not end within {POLLS_MAX} polls")))
    }

    /// The sources, of the engine and of the plugin.
    fn sources(&self) -> Vec<u32> {
        self.declaration.nodes.iter().filter(|node| is_source(&node.operator)).map(|node| node.id).collect()
    }

    /// Lets event time of a source rise: of the segment that it is, or of what it leads to.
    fn advance(&mut self, source: u32, watermark: i64) -> Result<()> {
        match self.segments.iter().position(|segment| segment.nodes[0] == source) {
            Some(index) => self.call(index, |segment| segment.process_watermark(watermark)),
            None => self.each_edge(source, None, None, |edge| edge.watermark = edge.watermark.max(watermark)),
        }
    }

    fn each_segment(&mut self, f: impl Fn(&mut Segment) -> Result<(), Failed>) -> Result<()> {
        (0..self.segments.len()).try_for_each(|index| self.call(index, &f))
    }

    /// Calls a segment, then delivers what it emitted.
    fn call<R>(&mut self, index: usize, f: impl FnOnce(&mut Segment) -> Result<R, Failed>) -> Result<R> {
        host::skip_rejected(self.skip_rejected);
        host::enter_instance(index);
        let result = f(&mut self.segments[index].segment);
        let calls = host::take_calls();
        let mut failure = None;
        for call in calls {
            match call {
                Call::Emit { output, rows, .. } => {
                    let SegmentOutput { node, side_output, selector, .. } =
                        self.segments[index].outputs[output as usize].clone();
                    self.deliver(node, side_output.as_deref(), selector, &rows)?;
                }
                Call::RejectRow { node, message, .. } => {
                    failure = Some((node, message.clone()));
                    self.rejected.push(message);
                }
                Call::Fail { node, message } => failure = Some((node, message)),
                Call::Log { message, .. } => self.log.push(message),
                Call::EmitWatermark { output, timestamp } => {
                    let SegmentOutput { node, side_output, selector, .. } =
                        self.segments[index].outputs[output as usize].clone();
                    self.each_edge(node, side_output.as_deref(), selector, |edge| {
                        edge.watermark = edge.watermark.max(timestamp);
                    })?;
                }
                Call::EmitWatermarkStatus { output, idle } => {
                    let SegmentOutput { node, side_output, selector, .. } =
                        self.segments[index].outputs[output as usize].clone();
                    self.each_edge(node, side_output.as_deref(), selector, |edge| edge.idle = idle)?;
                }
                Call::ReportSplitTime { .. } | Call::Panicked { .. } => {}
            }
        }
        result.map_err(|Failed| {
            // The next call is another instance's, as after a restart.
            current::reset();
            let (node, message) = failure.unwrap_or_default();
            match node.checked_sub(1).and_then(|index| self.declaration.nodes.get(index as usize)) {
                Some(node) => Error::new(message).context(format_args!("\"{}\"", node.name)),
                None => Error::new(message),
            }
        })
    }

    /// Delivers rows of an output to all that listen to it.
    fn deliver(&mut self, node: u32, side_output: Option<&str>, selector: Option<u32>, rows: &[u8]) -> Result<()> {
        for edge in self.edges_of(node, side_output, selector) {
            let StreamEdge { target, input, .. } = self.declaration.edges[edge];
            match self.segments.iter().position(|segment| segment.nodes[0] == target) {
                Some(index) => self.call(index, |segment| segment.process_batch(input, Batch::Rows(rows)))?,
                None if self.is_sink(target) => self.sinks.entry(target).or_default().extend(owned_rows(rows)),
                None => {}
            }
        }
        Ok(())
    }

    /// Changes the event time of all edges that listen to an output, and tells who is behind them.
    fn each_edge(
        &mut self,
        node: u32,
        side_output: Option<&str>,
        selector: Option<u32>,
        change: impl Fn(&mut EventTime),
    ) -> Result<()> {
        for index in 0..self.edges.len() {
            let edge = &self.declaration.edges[index];
            if edge.source == node && edge.side_output.as_deref() == side_output && edge.selector == selector {
                let target = edge.target;
                change(&mut self.edges[index]);
                self.combine(target)?;
            }
        }
        Ok(())
    }

    /// Hands on the least watermark of the edges into a node that are not idle.
    fn combine(&mut self, target: u32) -> Result<()> {
        let edges = self.declaration.edges.iter().zip(&self.edges).filter(|(edge, _)| edge.target == target);
        let active = edges.filter(|(_, time)| !time.idle).map(|(_, time)| time.watermark).min();
        let segment = self.segments.iter().position(|segment| segment.nodes[0] == target);
        let input = self.inputs.entry(target).or_insert(EventTime::START);
        let before = *input;
        input.idle = active.is_none();
        let EventTime { watermark, idle } =
            EventTime { watermark: active.map_or(before.watermark, |active| active.max(before.watermark)), ..*input };
        input.watermark = watermark;
        if before.idle
            && !idle
            && let Some(index) = segment
        {
            self.call(index, |segment| segment.process_watermark_status(false))?;
        }
        if before.watermark < watermark {
            match segment {
                Some(index) => {
                    self.fire_timers(index, TimeDomain::EventTime, watermark)?;
                    if watermark == i64::MAX {
                        self.take_state(index)?;
                    }
                    self.call(index, |segment| segment.process_watermark(watermark))?;
                }
                None => self.watermarks.entry(target).or_default().push(watermark),
            }
        }
        if !before.idle
            && idle
            && let Some(index) = segment
        {
            self.call(index, |segment| segment.process_watermark_status(true))?;
        }
        Ok(())
    }

    /// Fires all timers up to a time, those too that are registered meanwhile.
    fn fire_timers(&mut self, index: usize, domain: TimeDomain, time: i64) -> Result<()> {
        while let Some((_, timers)) = host::take_due_timers(index, domain, time, TIMERS_MAX) {
            self.call(index, |segment| segment.fire_timers(domain, time, &timers))?;
        }
        Ok(())
    }

    /// Hands over the state that a segment takes when event time has ended.
    fn take_state(&mut self, index: usize) -> Result<()> {
        let head = self.segments[index].nodes[0];
        let states = &self.declaration.nodes[head as usize - 1].states;
        let taken: Vec<u32> =
            (0..).zip(states).filter(|(_, state)| state.taken_at_end).map(|(state, _)| state).collect();
        for state in taken {
            while self.call(index, |segment| segment.take_state(&[]))? {}
            loop {
                let entries = host::take_entries(index, state, TIMERS_MAX);
                if entries.is_empty() {
                    break;
                }
                self.call(index, |segment| segment.take_state(&entries))?;
            }
        }
        Ok(())
    }

    /// Numbers of the edges that carry the rows of an output.
    fn edges_of(&self, node: u32, side_output: Option<&str>, selector: Option<u32>) -> Vec<usize> {
        let edges = (0..).zip(&self.declaration.edges).filter(|(_, edge)| {
            edge.source == node && edge.side_output.as_deref() == side_output && edge.selector == selector
        });
        edges.map(|(number, _)| number).collect()
    }

    fn is_sink(&self, node: u32) -> bool {
        matches!(self.declaration.nodes[node as usize - 1].operator, OperatorKind::Sink(_))
    }

    fn only(&self, what: &str, is_one: fn(&OperatorKind) -> bool) -> Result<u32> {
        let nodes: Vec<_> = self.declaration.nodes.iter().filter(|node| is_one(&node.operator)).collect();
        match nodes[..] {
            [node] => Ok(node.id),
            _ => Err(Error::new(format!(
                "the job has {} {what}s of the engine; say by name which is meant",
                nodes.len()
            ))),
        }
    }

    fn named(&self, name: &str, is_one: fn(&OperatorKind) -> bool) -> Result<u32> {
        let nodes = || self.declaration.nodes.iter().filter(|node| is_one(&node.operator));
        let mut called = nodes().filter(|node| node.name == name || node.uid.as_deref() == Some(name));
        called.next().map(|node| node.id).ok_or_else(|| {
            let names: Vec<&str> = nodes().map(|node| node.name.as_str()).collect();
            Error::new(format!("the job has no \"{name}\"; there are: {}", names.join(", ")))
        })
    }

    fn records_in<T: Owned>(&self, sink: u32) -> Result<Vec<(T, Option<i64>)>> {
        let rows = self.sinks.get(&sink).map_or(&[][..], Vec::as_slice);
        rows.iter()
            .map(|row| {
                let record = T::decode(&row.payload, |record| record)?;
                Ok((record, (row.timestamp != NO_TIMESTAMP).then_some(row.timestamp)))
            })
            .collect()
    }
}

fn is_source(operator: &OperatorKind) -> bool {
    matches!(operator, OperatorKind::Source(_) | OperatorKind::GuestSource(_))
}

fn owned_rows(rows: &[u8]) -> impl Iterator<Item = OwnedRow> {
    Rows::new(rows).map(|row| {
        let Row { timestamp, payload, .. } = row.expect("collectors write whole rows");
        OwnedRow { timestamp, payload: payload.to_owned() }
    })
}

/// The source of [`TestHarness::of_stream`] and its like.
struct TestSource<T: ?Sized> {
    name: &'static str,
    _record: std::marker::PhantomData<T>,
}

impl<T: ?Sized> TestSource<T> {
    fn new(name: &'static str) -> Self {
        Self { name, _record: std::marker::PhantomData }
    }
}

impl<T: Record + ?Sized> Source for TestSource<T> {
    type Record = T;
    const PARALLEL: bool = true;

    fn name(&self) -> &str {
        self.name
    }

    fn connector(&self) -> Connector {
        Connector { name: "test".to_owned(), options: Vec::new() }
    }
}

fn context_of(graph: &StreamGraph, nodes: Vec<u32>, opening: &Opening<'_>) -> OperatorContext {
    let mut outputs: Vec<SegmentOutput> = Vec::new();
    for edge in &graph.edges {
        let is_exit = nodes.contains(&edge.source) && !nodes.contains(&edge.target);
        let is_known = outputs.iter().any(|output| {
            output.node == edge.source && output.side_output == edge.side_output && output.selector == edge.selector
        });
        if is_exit && !is_known {
            let target = &graph.nodes[edge.target as usize - 1];
            outputs.push(SegmentOutput {
                node: edge.source,
                side_output: edge.side_output.clone(),
                selector: edge.selector,
                channels: target.parallelism.or(graph.parallelism).unwrap_or(1),
            });
        }
    }
    OperatorContext {
        job_name: graph.job_name.clone().unwrap_or_default(),
        task_name: graph.nodes[nodes[0] as usize - 1].name.clone(),
        subtask_index: opening.subtask.0,
        parallelism: opening.subtask.1,
        max_parallelism: MAX_PARALLELISM,
        attempt: 0,
        nodes,
        outputs,
        restored: opening.snapshot.is_some(),
        state_cache_bytes: opening.cache_bytes,
        state_value_bytes_max: 16 << 20,
    }
}
