//! Runs the planned nodes of a task: hands elements from one to the next, and
//! takes care of watermarks and of the end.
//!
//! Everything runs on the task's thread. An element is processed to its end, all
//! that follows from it included, before the next one is taken; where an output
//! is stuck, the task waits through [`Backpressure`].

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Backpressure, ChainPlan, Connectors, Destination, GateTarget, GuestSegment, OpenSegment, OperatorCounters,
    OperatorError, Origin, Outputs, PlannedKind, PlannedNode, RowErrorPolicy, RowErrors, SharedPlugin, TaskContext,
    TaskCounters,
    event_time::{self, EventTime},
    metrics::{HoldingChannel, StateCounters},
    row_errors::SharedReader,
    snapshot::{NodeState, RestoredOperators},
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        ids::BlobDigest,
        stream_element::{CheckpointId, RecordBatch, StopMode, StreamElement},
    },
    checkpoint::OperatorSubtaskState,
    connector::{
        Committable, ConnectorError, Permissions, ReaderContext, ReaderOutput, SinkWriter, SourceSplit, Verdict,
        WriterContext,
    },
    failpoint,
    graph::{
        job_graph::{ChainedOperator, JobVertex},
        stream_graph::{ConnectorSpec, Operator, StateKind, StreamNode},
    },
    state::{DiskState, StateDescriptor, StateShape, TimeDomain},
    task_manager::network::{CombinedWatermark, GateElement, ResultPartition, StatusWatermarkValve, ValveOutput},
    wasm::{CancelFlag, GuestError, Replay, SandboxLimits, SegmentContext, SourceStatus},
};

/// Pause before a source of a plugin that had nothing is polled again.
const GUEST_SOURCE_PAUSE: Duration = Duration::from_millis(10);

/// What an operator chain is made of.
pub struct ChainSetup<'a> {
    /// The vertex.
    pub vertex: &'a JobVertex,
    /// How its operators run.
    pub plan: &'a ChainPlan,
    /// The partitions, in the order of [`JobVertex::outputs`].
    pub partitions: Vec<ResultPartition>,
    /// Plugins of the plan's segments.
    pub plugins: HashMap<BlobDigest, SharedPlugin>,
    /// Native sources and sinks.
    pub connectors: &'a dyn Connectors,
    /// The task.
    pub context: TaskContext,
    /// How the operators of plugins are made again.
    pub replay: Replay,
    /// Limits of each instance.
    pub limits: SandboxLimits,
    /// Stops a guest that is running.
    pub cancel: CancelFlag,
    /// Where keyed state is kept on disk; none: it is in memory.
    pub disk_state: Option<DiskState>,
    /// What connectors may open.
    pub permissions: Arc<Permissions>,
    /// Processing time.
    pub clock: Clock,
    /// What becomes of refused rows.
    pub row_error_policy: RowErrorPolicy,
    /// Counters of the task.
    pub counters: Arc<TaskCounters>,
    /// What the operators go on from.
    pub restored: Option<RestoredOperators>,
    /// All input was processed before: no operator is opened.
    pub is_finished: bool,
    /// How the operators take part in checkpoints.
    pub checkpoints: CheckpointSettings,
}

/// How operators take part in checkpoints.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CheckpointSettings {
    /// A checkpoint behind the end of the data commits what sinks wrote last.
    pub has_final_checkpoint: bool,
    /// Snapshots may hold only what changed.
    pub is_incremental: bool,
}

/// What a source did when polled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourcePoll {
    /// It sent rows, or may do so when polled again.
    More,
    /// It needs a split.
    NeedSplit,
    /// It has nothing before the pause has passed.
    Idle(Duration),
    /// It has ended, and so did all that follows from it.
    Ended,
}

/// One input of a node.
struct Input {
    valve: StatusWatermarkValve,
    /// Channels that have not sent their end of data.
    open: usize,
}

pub(super) struct NativeSource {
    pub(super) node: u32,
    pub(super) reader: SharedReader,
    /// Its place among the readers that positions are asked of.
    place: usize,
    outputs: Outputs,
}

pub(super) struct NativeSink {
    pub(super) node: u32,
    writer: Box<dyn SinkWriter>,
    /// By checkpoint, what is complete and not known to be committed.
    committables: Vec<(CheckpointId, Vec<Committable>)>,
    /// True if something was written since the last flush.
    dirty: bool,
}

pub(super) enum NodeKind {
    Source(NativeSource),
    Segment(Box<dyn GuestSegment>),
    SourceSegment(Box<dyn GuestSegment>),
    Sink(NativeSink),
    /// An operator that had processed all its input in the checkpoint that was restored.
    Finished(Outputs),
}

pub(super) struct ChainNode {
    pub(super) kind: NodeKind,
    inputs: Vec<Input>,
    pub(super) combined: CombinedWatermark,
    pub(super) state: NodeState,
    pub(super) ended: bool,
    pub(super) event_time: EventTime,
    /// By exit, the operators of the chain that take its elements.
    pub(super) locals: Vec<Rc<[LocalTarget]>>,
    counters: Arc<OperatorCounters>,
    /// Of all operators of a segment, the one that rows enter first; empty if one of them makes watermarks.
    fused: Vec<Arc<OperatorCounters>>,
}

#[derive(Clone, Copy)]
pub(super) struct LocalTarget {
    pub(super) node: usize,
    input: usize,
    channel: usize,
}

impl ChainNode {
    /// The host sees a watermark go into a segment and come out: within, it is the one that comes out.
    fn publish_watermarks(&self) {
        let Some(out) = self.fused.iter().map(|of| of.output_watermark.load(Ordering::Relaxed)).max() else { return };
        for (place, operator) in self.fused.iter().enumerate() {
            operator.output_watermark.store(out, Ordering::Relaxed);
            if 0 < place {
                operator.input_watermark.store(out, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn outputs(&mut self) -> Option<&mut Outputs> {
        match &mut self.kind {
            NodeKind::Source(source) => Some(&mut source.outputs),
            NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) => Some(segment.outputs()),
            NodeKind::Finished(outputs) => Some(outputs),
            NodeKind::Sink(_) => None,
        }
    }
}

/// The operators of one task at work.
pub struct OperatorChain {
    pub(super) nodes: Vec<ChainNode>,
    gates: Vec<GateTarget>,
    counters: Arc<TaskCounters>,
    row_errors: Rc<RefCell<RowErrors>>,
    stop_mode: StopMode,
    origin: Origin,
    pub(super) checkpoints: CheckpointSettings,
}

impl OperatorChain {
    /// Opens all operators, those at the end of the chain first.
    ///
    /// # Errors
    /// Returns an error if one cannot be opened.
    pub fn open(setup: ChainSetup<'_>) -> Result<Self, OperatorError> {
        let names = setup.vertex.operators.iter().map(|operator| (operator.node.id, operator.node.name.clone()));
        let row_errors = RowErrors::new(
            setup.row_error_policy.clone(),
            setup.context.clone(),
            names.collect::<BTreeMap<_, _>>(),
            Arc::clone(&setup.counters),
        );
        let row_errors = Rc::new(RefCell::new(row_errors));
        let mut opener = Opener { row_errors: Rc::clone(&row_errors), partitions: Vec::new(), setup };
        opener.partitions = std::mem::take(&mut opener.setup.partitions).into_iter().map(Some).collect();
        let plan = opener.setup.plan;
        let mut nodes = Vec::with_capacity(plan.nodes.len());
        for planned in plan.nodes.iter().rev() {
            nodes.push(opener.open_node(planned)?);
        }
        nodes.reverse();
        event_time::connect_sources(&mut nodes);
        Ok(Self {
            nodes,
            gates: plan.gates.clone(),
            counters: opener.setup.counters,
            row_errors,
            stop_mode: StopMode::Drain,
            origin: Origin::None,
            checkpoints: opener.setup.checkpoints,
        })
    }

    /// Places and node ids of the sources, native or not.
    pub fn sources(&self) -> Vec<(usize, Option<u32>)> {
        let source = |(place, node): (usize, &ChainNode)| match &node.kind {
            NodeKind::Source(source) => Some((place, Some(source.node))),
            NodeKind::SourceSegment(_) => Some((place, None)),
            NodeKind::Segment(_) | NodeKind::Sink(_) | NodeKind::Finished(_) => None,
        };
        self.nodes.iter().enumerate().filter_map(source).collect()
    }

    /// Lets a source read about `max_bytes`, and processes what it read.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn poll_source(
        &mut self,
        place: usize,
        max_bytes: usize,
        backpressure: &mut dyn Backpressure,
    ) -> Result<SourcePoll, OperatorError> {
        let poll = match &mut self.nodes[place].kind {
            NodeKind::Source(_) => self.poll_native_source(place, max_bytes, backpressure)?,
            NodeKind::SourceSegment(_) => self.poll_guest_source(place, max_bytes)?,
            NodeKind::Segment(_) | NodeKind::Sink(_) | NodeKind::Finished(_) => {
                unreachable!("only sources are polled")
            }
        };
        self.drain(place, backpressure)?;
        if poll == SourcePoll::Ended {
            self.end_source(place, backpressure)?;
        }
        Ok(poll)
    }

    fn poll_native_source(
        &mut self,
        place: usize,
        max_bytes: usize,
        backpressure: &mut dyn Backpressure,
    ) -> Result<SourcePoll, OperatorError> {
        let NodeKind::Source(source) = &mut self.nodes[place].kind else { unreachable!("asked for a native source") };
        let polled = source.reader.borrow_mut().poll(max_bytes);
        failpoint!("source.polled", infallible);
        let output = polled.map_err(|error| {
            // A row that could not be put aside fails the reader too; the cause is the file.
            let failure = self.row_errors.borrow_mut().take_failure();
            failure.map_or_else(|| source.failed(error), OperatorError::RowErrors)
        })?;
        self.name_splits(place, backpressure)?;
        let NodeKind::Source(source) = &mut self.nodes[place].kind else { unreachable!("it is one") };
        match output {
            ReaderOutput::Records(batch) => {
                let emitted = source.outputs.emit_batch(&batch);
                emitted.map_err(|error| OperatorError::Routing { node: source.node, error })?;
                let origin = Origin::Source(source.place);
                self.set_origin(origin);
                self.counters.count_in(batch.count, batch.data.len());
                Ok(SourcePoll::More)
            }
            ReaderOutput::NeedSplit => Ok(SourcePoll::NeedSplit),
            ReaderOutput::Idle(pause) => Ok(SourcePoll::Idle(pause)),
            ReaderOutput::End => Ok(SourcePoll::Ended),
        }
    }

    fn poll_guest_source(&mut self, place: usize, max_bytes: usize) -> Result<SourcePoll, OperatorError> {
        let node = &mut self.nodes[place];
        let NodeKind::SourceSegment(segment) = &mut node.kind else { unreachable!("asked for a guest source") };
        let status = segment.poll_source(u32::try_from(max_bytes).unwrap_or(u32::MAX));
        match status.map_err(|error| self.guest_failed(error, None))? {
            SourceStatus::More => Ok(SourcePoll::More),
            SourceStatus::Idle => Ok(SourcePoll::Idle(GUEST_SOURCE_PAUSE)),
            SourceStatus::End => Ok(SourcePoll::Ended),
        }
    }

    /// Gives a native source a split.
    ///
    /// # Errors
    /// Returns an error if the split cannot be opened.
    pub fn add_split(
        &mut self,
        place: usize,
        split: SourceSplit,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        match &mut self.nodes[place].kind {
            NodeKind::Source(source) => {
                let added = source.reader.borrow_mut().add_split(split);
                added.map_err(|error| source.failed(error))?;
                self.name_splits(place, backpressure)
            }
            NodeKind::Segment(_) | NodeKind::SourceSegment(_) | NodeKind::Sink(_) | NodeKind::Finished(_) => Ok(()),
        }
    }

    /// Ends a source: event time is over for what follows it.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn end_source(&mut self, place: usize, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        match &mut self.nodes[place].kind {
            NodeKind::Source(source) => source.outputs.emit_final_watermark(),
            NodeKind::SourceSegment(segment) => {
                let ended = segment.process_watermark(Timestamp::MAX).and_then(|()| segment.end_input(0));
                ended.map_err(|error| self.guest_failed(error, None))?;
            }
            NodeKind::Segment(_) | NodeKind::Sink(_) | NodeKind::Finished(_) => return Ok(()),
        }
        self.drain(place, backpressure)?;
        self.end_node(place, backpressure)
    }

    /// Ends a source behind a savepoint from which the job will go on: event time stands
    /// still, and operators do not finish.
    ///
    /// # Errors
    /// Returns an error if the task is told to stop.
    pub fn stop_source(&mut self, place: usize, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        if self.nodes[place].ended {
            return Ok(());
        }
        self.stop_mode = StopMode::NoDrain;
        self.end_node(place, backpressure)
    }

    /// Ends operators that had finished before and take rows from nobody.
    ///
    /// # Errors
    /// Returns an error if the task is told to stop.
    pub fn end_finished_sources(&mut self, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            if matches!(node.kind, NodeKind::Finished(_)) && node.inputs.is_empty() && !node.ended {
                self.end_node(place, backpressure)?;
            }
        }
        Ok(())
    }

    /// How the operators end.
    pub(super) fn stop_mode(&self) -> StopMode {
        self.stop_mode
    }

    /// Processes an element that came through a gate.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn process_element(
        &mut self,
        from: GateElement,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        let target = self.gates[from.gate];
        if let StreamElement::Records(batch) = &from.element {
            self.counters.count_in(batch.count, batch.data.len());
        }
        self.set_origin(Origin::Gate { gate: from.gate, channel: from.channel });
        let channel = target.first_channel + from.channel;
        let target = LocalTarget { node: target.node, input: target.input, channel };
        self.deliver(target, from.element, backpressure)
    }

    fn set_origin(&mut self, origin: Origin) {
        if self.origin != origin {
            self.origin = origin;
            self.row_errors.borrow_mut().set_origin(origin);
        }
    }

    fn deliver(
        &mut self,
        to: LocalTarget,
        element: StreamElement,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        match element {
            StreamElement::Records(batch) => self.process_batch(to, &batch, backpressure),
            StreamElement::Watermark(watermark) => {
                let update = self.input(to).valve.input_watermark(to.channel, watermark);
                self.update_watermark(to, [update, None], backpressure)
            }
            StreamElement::WatermarkStatus(status) => {
                let updates = self.input(to).valve.input_status(to.channel, status);
                self.update_watermark(to, updates, backpressure)
            }
            StreamElement::EndOfData(mode) => self.end_channel(to, mode, backpressure),
            StreamElement::EndOfPartition => Ok(()),
            StreamElement::LatencyMarker(_)
            | StreamElement::CheckpointBarrier(_)
            | StreamElement::CancelCheckpoint(_) => Err(OperatorError::UnexpectedElement(format!("{element:?}"))),
        }
    }

    fn input(&mut self, of: LocalTarget) -> &mut Input {
        &mut self.nodes[of.node].inputs[of.input]
    }

    fn process_batch(
        &mut self,
        to: LocalTarget,
        batch: &RecordBatch,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        let node = &mut self.nodes[to.node];
        node.counters.records_in.fetch_add(u64::from(batch.count), Ordering::Relaxed);
        match &mut node.kind {
            NodeKind::Segment(segment) => {
                let input = u32::try_from(to.input).expect("inputs are counted in 32 bits");
                segment.process_batch(input, batch).map_err(|error| self.guest_failed(error, Some(input)))?;
                self.hand_back_split_times(to.node);
                self.drain(to.node, backpressure)
            }
            NodeKind::Sink(sink) => {
                sink.writer.write(batch).map_err(|error| {
                    // A row that could not be put aside fails the writer too; the cause is the file.
                    let failure = self.row_errors.borrow_mut().take_failure();
                    failure.map_or_else(|| sink.failed(error), OperatorError::RowErrors)
                })?;
                sink.dirty = true;
                self.counters.count_out(batch.count, batch.data.len());
                Ok(())
            }
            NodeKind::Finished(_) => {
                Err(OperatorError::UnexpectedElement("a row of an operator that had finished".to_owned()))
            }
            NodeKind::Source(_) | NodeKind::SourceSegment(_) => unreachable!("a source has no inputs"),
        }
    }

    fn update_watermark(
        &mut self,
        to: LocalTarget,
        updates: [Option<ValveOutput>; 2],
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        for update in updates.into_iter().flatten() {
            for combined in self.nodes[to.node].combined.update(to.input, update).into_iter().flatten() {
                if self.gates.first().is_some_and(|gate| gate.node == to.node) {
                    let watermark = self.nodes[to.node].combined.watermark();
                    self.counters.input_watermark.store(watermark.0, Ordering::Relaxed);
                }
                // Before what it brings forth goes out.
                let node = &self.nodes[to.node];
                node.counters.input_watermark.store(node.combined.watermark().0, Ordering::Relaxed);
                if let ValveOutput::Watermark(watermark) = combined {
                    while self.fire_timers(to.node, TimeDomain::EventTime, watermark, backpressure)? {}
                    if watermark == Timestamp::MAX {
                        while self.take_state(to.node, backpressure)? {}
                    }
                }
                let NodeKind::Segment(segment) = &mut self.nodes[to.node].kind else { continue };
                let processed = match combined {
                    ValveOutput::Watermark(watermark) => segment.process_watermark(watermark),
                    ValveOutput::Status(status) => segment.process_watermark_status(status),
                };
                processed.map_err(|error| self.guest_failed(error, None))?;
                self.drain(to.node, backpressure)?;
            }
        }
        Ok(())
    }

    /// Fires the next timers of a node that are due. Returns false if there were none.
    fn fire_timers(
        &mut self,
        place: usize,
        domain: TimeDomain,
        time: Timestamp,
        backpressure: &mut dyn Backpressure,
    ) -> Result<bool, OperatorError> {
        let NodeKind::Segment(segment) = &mut self.nodes[place].kind else { return Ok(false) };
        if !segment.fire_timers(domain, time).map_err(|error| self.guest_failed(error, None))? {
            return Ok(false);
        }
        self.drain(place, backpressure)?;
        Ok(true)
    }

    /// Hands a node the next of its state that it takes when event time has ended. Returns
    /// false if there was none.
    fn take_state(&mut self, place: usize, backpressure: &mut dyn Backpressure) -> Result<bool, OperatorError> {
        let NodeKind::Segment(segment) = &mut self.nodes[place].kind else { return Ok(false) };
        if !segment.take_state().map_err(|error| self.guest_failed(error, None))? {
            return Ok(false);
        }
        self.drain(place, backpressure)?;
        Ok(true)
    }

    /// When the next processing-time timer is to be fired. Those of an operator that
    /// has ended are not fired any more.
    pub fn next_processing_time(&self) -> Option<Timestamp> {
        let next = |node: &ChainNode| match &node.kind {
            NodeKind::Segment(segment) if !node.ended => segment.next_processing_time(),
            _ => None,
        };
        self.nodes.iter().filter_map(next).min()
    }

    /// Fires processing-time timers that are due, some thousands of each operator.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn fire_processing_timers(
        &mut self,
        now: Timestamp,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        for place in 0..self.nodes.len() {
            if !self.nodes[place].ended {
                self.fire_timers(place, TimeDomain::ProcessingTime, now, backpressure)?;
            }
        }
        Ok(())
    }

    /// Hands on what a node emitted: first within the chain, then into the channels.
    pub(super) fn drain(&mut self, place: usize, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        while let Some((output, element)) = self.nodes[place].outputs().and_then(Outputs::take_local) {
            let targets = Rc::clone(&self.nodes[place].locals[output]);
            let is_source = matches!(self.nodes[place].kind, NodeKind::Source(_));
            self.row_errors.borrow_mut().set_direct(is_source);
            for target in targets.iter() {
                self.deliver(*target, element.clone(), backpressure)?;
            }
        }
        match self.nodes[place].outputs() {
            Some(outputs) => Ok(outputs.send_pending(backpressure)?),
            None => Ok(()),
        }
    }

    /// A channel of an input sent its end of data.
    fn end_channel(
        &mut self,
        to: LocalTarget,
        mode: StopMode,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        if mode == StopMode::NoDrain {
            self.stop_mode = mode;
        }
        let input = self.input(to);
        input.open = input.open.checked_sub(1).expect("each channel ends once");
        if 0 < input.open {
            return Ok(());
        }
        if self.stop_mode == StopMode::Drain
            && let NodeKind::Segment(segment) = &mut self.nodes[to.node].kind
        {
            let index = u32::try_from(to.input).expect("inputs are counted in 32 bits");
            segment.end_input(index).map_err(|error| self.guest_failed(error, None))?;
            self.drain(to.node, backpressure)?;
        }
        if self.nodes[to.node].inputs.iter().all(|input| input.open == 0) {
            self.end_node(to.node, backpressure)?;
        }
        Ok(())
    }

    /// A node has processed all it will ever get.
    fn end_node(&mut self, place: usize, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        let node = &mut self.nodes[place];
        node.ended = true;
        match &mut node.kind {
            NodeKind::Finished(outputs) => {
                outputs.emit_final_watermark();
                self.drain(place, backpressure)?;
            }
            NodeKind::Source(_) | NodeKind::Segment(_) | NodeKind::SourceSegment(_) | NodeKind::Sink(_) => {}
        }
        for targets in self.nodes[place].locals.clone() {
            for target in targets.iter() {
                self.end_channel(*target, self.stop_mode, backpressure)?;
            }
        }
        Ok(())
    }

    /// True if all operators have ended.
    pub fn is_ended(&self) -> bool {
        self.nodes.iter().all(|node| node.ended)
    }

    /// Tells the consumers that there is no more data.
    ///
    /// # Errors
    /// Returns an error if the task is told to stop.
    pub fn end_data(&mut self, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        self.broadcast(&StreamElement::EndOfData(self.stop_mode), backpressure)
    }

    /// Closes the operators, the last of the chain first, and ends the partitions. Returns
    /// what they leave behind, by node.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn finish(
        &mut self,
        backpressure: &mut dyn Backpressure,
    ) -> Result<BTreeMap<u32, OperatorSubtaskState>, OperatorError> {
        assert!(self.is_ended(), "all operators have ended");
        let mut end_states = BTreeMap::new();
        for place in (0..self.nodes.len()).rev() {
            self.keep_lists(place, &mut end_states)?;
            if let NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) = &mut self.nodes[place].kind {
                segment.close().map_err(|error| self.guest_failed(error, None))?;
            }
        }
        self.row_errors.borrow_mut().flush()?;
        let ends_without_checkpoint = self.stop_mode == StopMode::Drain && !self.checkpoints.has_final_checkpoint;
        for node in &mut self.nodes {
            if let NodeKind::Sink(sink) = &mut node.kind {
                if ends_without_checkpoint {
                    sink.finish()?;
                }
                end_states.insert(sink.node, sink.state());
            }
        }
        self.broadcast(&StreamElement::EndOfPartition, backpressure)?;
        Ok(end_states)
    }

    /// Sends partly filled buffers whose time has come, and returns when the next
    /// will be due, on the clock of `now`.
    ///
    /// # Errors
    /// Returns an error if the task is told to stop.
    pub fn flush_if_due(
        &mut self,
        now: Duration,
        backpressure: &mut dyn Backpressure,
    ) -> Result<Option<Duration>, OperatorError> {
        let mut next: Option<Duration> = None;
        for outputs in self.nodes.iter_mut().filter_map(ChainNode::outputs) {
            let due = outputs.flush_if_due(now);
            next = next.into_iter().chain(due).min();
            outputs.send_pending(backpressure)?;
        }
        Ok(next)
    }

    /// Hands what sinks buffered, and rows that were put aside, to the outside.
    ///
    /// # Errors
    /// Returns an error if an output cannot be written.
    pub fn flush_sinks(&mut self) -> Result<(), OperatorError> {
        for node in &mut self.nodes {
            if let NodeKind::Sink(sink) = &mut node.kind
                && sink.dirty
            {
                sink.writer.flush().map_err(|error| sink.failed(error))?;
                sink.dirty = false;
            }
        }
        self.flush_row_errors()
    }

    /// Hands rows that were put aside to the outside.
    pub(super) fn flush_row_errors(&mut self) -> Result<(), OperatorError> {
        Ok(self.row_errors.borrow_mut().flush()?)
    }

    /// Publishes what only this thread can read of the guests.
    ///
    /// # Panics
    /// Panics if a reader of the metrics panicked.
    pub fn publish_metrics(&self) {
        let mut bytes = 0;
        let mut dropped_log_lines = 0;
        let mut metrics = Vec::new();
        *self.counters.held_back_by.lock().expect("readers only copy") = self.held_back_by();
        for node in &self.nodes {
            node.counters.input_watermark.store(node.combined.watermark().0, Ordering::Relaxed);
            node.publish_watermarks();
            if let NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) = &node.kind {
                bytes += segment.memory_bytes() as u64;
                dropped_log_lines += segment.dropped_log_lines();
                metrics.extend(segment.metrics());
                if let Some(state) = node.counters.state.get() {
                    state.publish(&segment.state_usage());
                }
            }
        }
        self.counters.guest_memory_bytes.store(bytes, Ordering::Relaxed);
        self.counters.log_lines_dropped.store(dropped_log_lines, Ordering::Relaxed);
        *self.counters.guest_metrics.lock().expect("readers only copy") = metrics;
    }

    /// The channel of a gate that holds the watermark of its operator back.
    fn held_back_by(&self) -> Option<HoldingChannel> {
        // The operators behind the gates of one task are one, but for unions of sinks.
        let node = self.gates.first()?.node;
        let inputs = self.nodes[node].inputs.iter().enumerate();
        let inputs = inputs.filter_map(|(input, of)| Some((input, of.valve.least_and_greatest()?)));
        let (input, ((channel, watermark), _)) = inputs.clone().min_by_key(|(_, (least, _))| least.1)?;
        let greatest = inputs.map(|(_, (_, greatest))| greatest).max()?;
        let gates = self.gates.iter().enumerate();
        let of_input =
            gates.filter(|(_, gate)| (gate.node, gate.input) == (node, input) && gate.first_channel <= channel);
        let (gate, target) = of_input.max_by_key(|(_, gate)| gate.first_channel)?;
        let holds_back = watermark < greatest;
        holds_back.then_some(HoldingChannel { gate, channel: channel - target.first_channel, watermark })
    }

    pub(super) fn guest_failed(&self, error: GuestError, input: Option<u32>) -> OperatorError {
        let mut row_errors = self.row_errors.borrow_mut();
        if let Some(failure) = row_errors.take_failure() {
            return OperatorError::RowErrors(failure);
        }
        let position = row_errors.position(error.row);
        OperatorError::Guest { error: Box::new(error), input, position }
    }
}

impl NativeSource {
    fn failed(&self, error: ConnectorError) -> OperatorError {
        OperatorError::Connector { node: self.node, error, position: self.reader.borrow().position() }
    }
}

/// What the end of the output completed stands under no checkpoint.
const AT_THE_END: CheckpointId = CheckpointId::MAX;

impl NativeSink {
    /// Completes what was written since the last time.
    pub(super) fn prepare_commit(&mut self, checkpoint_id: CheckpointId) -> Result<(), OperatorError> {
        let committables = self.writer.prepare_commit(checkpoint_id).map_err(|error| self.failed(error))?;
        self.dirty = false;
        if !committables.is_empty() {
            self.committables.push((checkpoint_id, committables));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), OperatorError> {
        let committables = self.writer.finish().map_err(|error| self.failed(error))?;
        self.committables.push((AT_THE_END, committables));
        self.dirty = false;
        Ok(())
    }

    /// All that is complete and not known to be committed: also that of checkpoints that
    /// were given up, and of savepoints, which commit nothing.
    pub(super) fn state(&self) -> OperatorSubtaskState {
        let committables = self.committables.iter().flat_map(|(_, committables)| committables).cloned().collect();
        OperatorSubtaskState { committables, ..OperatorSubtaskState::default() }
    }

    /// The checkpoint has committed what it and earlier ones completed.
    pub(super) fn committed(&mut self, checkpoint_id: CheckpointId) {
        self.committables.retain(|(id, _)| checkpoint_id < *id);
    }

    fn failed(&self, error: ConnectorError) -> OperatorError {
        OperatorError::Connector { node: self.node, error, position: String::new() }
    }
}

fn state_descriptors(node: &StreamNode) -> impl Iterator<Item = StateDescriptor> {
    node.states.iter().map(|state| StateDescriptor {
        operator: node.name.clone(),
        name: state.name.clone(),
        shape: match state.kind {
            StateKind::Value | StateKind::Reducing | StateKind::Aggregating => Some(StateShape::Value),
            StateKind::List => Some(StateShape::List),
            StateKind::Map => Some(StateShape::Map),
            StateKind::Broadcast | StateKind::OperatorList | StateKind::OperatorUnionList => None,
        },
        has_time_to_live: state.time_to_live.is_some(),
        taken_at_end: state.taken_at_end,
    })
}

struct Opener<'a> {
    setup: ChainSetup<'a>,
    /// By place in the vertex, until the node that sends into it takes it.
    partitions: Vec<Option<ResultPartition>>,
    row_errors: Rc<RefCell<RowErrors>>,
}

impl Opener<'_> {
    fn open_node(&mut self, planned: &PlannedNode) -> Result<ChainNode, OperatorError> {
        let vertex = self.setup.vertex;
        let operator = &vertex.operators[planned.operators[0]];
        let mut state = NodeState::default();
        let kind = match (planned.kind, &operator.node.operator) {
            _ if self.setup.is_finished => NodeKind::Finished(self.outputs(planned)),
            (PlannedKind::Segment(digest), _) => {
                let (segment, of) = self.open_segment(planned, digest)?;
                state = of;
                NodeKind::Segment(segment)
            }
            (PlannedKind::SourceSegment(digest), _) => {
                let (segment, of) = self.open_segment(planned, digest)?;
                state = of;
                NodeKind::SourceSegment(segment)
            }
            (PlannedKind::Source, Operator::Source(connector)) => {
                NodeKind::Source(self.open_source(planned, operator, connector)?)
            }
            (PlannedKind::Sink, Operator::Sink(connector)) => NodeKind::Sink(self.open_sink(operator, connector)?),
            (PlannedKind::Source | PlannedKind::Sink, _) => unreachable!("the plan follows the operators"),
        };
        let input = |channels: &usize| Input { valve: StatusWatermarkValve::new(*channels), open: *channels };
        let locals = planned.outputs.iter().map(|output| {
            let local = output.destinations.iter().filter_map(|destination| match *destination {
                Destination::Node { node, input, channel } => Some(LocalTarget { node, input, channel }),
                Destination::Partition(_) => None,
            });
            local.collect::<Rc<[_]>>()
        });
        let counters = self.setup.counters.operator(operator.node.id);
        if matches!(planned.kind, PlannedKind::Segment(_)) && operator.node.key_type.is_some() {
            counters.state.get_or_init(StateCounters::default);
        }
        let of_operator = |index: &usize| self.setup.counters.operator(vertex.operators[*index].node.id);
        let event_time = EventTime::new(planned.operators.iter().map(|index| &vertex.operators[*index].node));
        let fused = match planned.kind {
            PlannedKind::Segment(_) | PlannedKind::SourceSegment(_) if !event_time.generates_watermarks => {
                planned.operators.iter().map(of_operator).collect()
            }
            _ => Vec::new(),
        };
        Ok(ChainNode {
            kind,
            inputs: planned.inputs.iter().map(input).collect(),
            combined: CombinedWatermark::new(planned.inputs.len()),
            state,
            ended: false,
            event_time,
            locals: locals.collect(),
            counters,
            fused,
        })
    }

    fn outputs(&mut self, planned: &PlannedNode) -> Outputs {
        let partitions = &mut self.partitions;
        Outputs::new(
            &planned.outputs,
            |place| partitions[place].take().expect("each partition has one producer"),
            &self.setup.counters,
            &self.row_errors,
            &self.setup.context,
        )
    }

    fn open_segment(
        &mut self,
        planned: &PlannedNode,
        digest: BlobDigest,
    ) -> Result<(Box<dyn GuestSegment>, NodeState), OperatorError> {
        let outputs = self.outputs(planned);
        let operators = planned.operators.iter().map(|index| &self.setup.vertex.operators[*index]);
        let restored = self.setup.restored.as_ref();
        let is_incremental = self.setup.checkpoints.is_incremental;
        let (state, restore) = NodeState::open(operators, &self.setup.context, restored, is_incremental)?;
        let context = &self.setup.context;
        let nodes = planned.operators.iter().map(|index| &self.setup.vertex.operators[*index].node);
        let first = &self.setup.vertex.operators[planned.operators[0]].node;
        let context = SegmentContext {
            job_name: context.job_name.clone(),
            task_name: context.task_name.clone(),
            subtask_index: context.subtask_index,
            parallelism: context.parallelism,
            max_parallelism: context.max_parallelism,
            attempt: context.attempt_number,
            nodes: nodes.clone().map(|node| node.id).collect(),
            operator: first.name.clone(),
            is_keyed: first.key_type.is_some(),
            states: nodes.flat_map(state_descriptors).collect(),
            outputs: planned.outputs.iter().map(|output| output.exit.clone()).collect(),
            state_cache_bytes: self.setup.limits.state_cache_bytes as u64,
            state_value_bytes_max: self.setup.limits.state_value_bytes_max as u64,
            disk_state: self.setup.disk_state.clone(),
            restored: restored.is_some(),
        };
        let plugin = self.setup.plugins.get(&digest).expect("the plugins of all segments were fetched");
        let opened = plugin.open(OpenSegment {
            replay: &self.setup.replay,
            context: &context,
            limits: self.setup.limits.clone(),
            cancel: self.setup.cancel.clone(),
            restore,
            outputs,
        });
        let opened = opened.map_err(|error| OperatorError::Guest {
            error: Box::new(error),
            input: None,
            position: String::new(),
        })?;
        Ok((opened, state))
    }

    fn open_source(
        &mut self,
        planned: &PlannedNode,
        operator: &ChainedOperator,
        connector: &ConnectorSpec,
    ) -> Result<NativeSource, OperatorError> {
        let node = operator.node.id;
        let row_errors = Rc::clone(&self.row_errors);
        let context = ReaderContext {
            subtask_index: self.setup.context.subtask_index,
            parallelism: self.setup.context.parallelism,
            record_type: operator.node.output_type.clone().unwrap_or_default(),
            permissions: Arc::clone(&self.setup.permissions),
            clock: self.setup.clock.clone(),
            row_bytes_max: self.setup.limits.row_bytes_max,
            reject: Box::new(move |row| row_errors.borrow_mut().reject(node, row.position, row.message, row.payload)),
        };
        let reader = self.setup.connectors.create_reader(connector, context);
        let reader = reader.map_err(|error| OperatorError::Connector { node, error, position: String::new() })?;
        let reader: SharedReader = Rc::new(RefCell::new(reader));
        let place = self.row_errors.borrow_mut().add_reader(&reader);
        Ok(NativeSource { node, reader, place, outputs: self.outputs(planned) })
    }

    fn open_sink(
        &mut self,
        operator: &ChainedOperator,
        connector: &ConnectorSpec,
    ) -> Result<NativeSink, OperatorError> {
        let node = operator.node.id;
        let row_errors = Rc::clone(&self.row_errors);
        let cancel = self.setup.cancel.clone();
        let context = WriterContext {
            subtask_index: self.setup.context.subtask_index,
            parallelism: self.setup.context.parallelism,
            attempt_number: self.setup.context.attempt_number,
            record_type: operator.node.input_types.first().cloned().unwrap_or_default(),
            permissions: Arc::clone(&self.setup.permissions),
            clock: self.setup.clock.clone(),
            reject: Box::new(move |row, message, payload| {
                let mut row_errors = row_errors.borrow_mut();
                match row_errors.reject_row(node, Some(row), message, payload) {
                    Verdict::Skip => Ok(()),
                    Verdict::Fail => {
                        let position = match row_errors.position(Some(row)) {
                            from if from.is_empty() => format!("row {row} of the batch"),
                            from => format!("row {row} of the batch, from {from}"),
                        };
                        Err(ConnectorError::BadRow { position, message: message.to_owned() })
                    }
                }
            }),
            is_canceled: Box::new(move || cancel.is_canceled()),
        };
        let writer = self.setup.connectors.create_writer(connector, context);
        let writer = writer.map_err(|error| OperatorError::Connector { node, error, position: String::new() })?;
        Ok(NativeSink { node, writer, committables: Vec::new(), dirty: false })
    }
}
