//! The loop of a task: takes messages, then elements of the gates and rows of the
//! sources in turn, and waits where there is nothing to do.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    TaskServices,
    mailbox::{Mailbox, TaskMessage, WaitFor},
    snapshot_writer::SnapshotJob,
    source_alignment::SourceAlignment,
    stream_task::Finished,
    times::Waiting,
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        stream_element::{
            CheckpointBarrier, CheckpointId, SnapshotKind, SnapshotLocation, StopMode, StreamElement, WatermarkStatus,
        },
    },
    connector::SplitAssignment,
    failpoint,
    protocol::{
        job_master::{
            CheckpointFailureReason, CheckpointMetrics, DeclineCheckpoint, MaxAllowedWatermark, SplitAnswer,
            SplitRequest, WatermarkReport,
        },
        task_executor::{TaskDeployment, TriggerCheckpoint},
    },
    task_manager::{
        TaskEvent,
        network::{AlignedCheckpoint, BarrierAction, CheckpointBarrierHandler, GateElement, GateError, InputGates},
        operator::{Interrupted, OperatorChain, OperatorError, SourcePoll, TaskCounters},
    },
};

/// Bytes that a source is asked for at once: enough rows that entering a guest
/// costs nothing beside them, few enough to stay in the cache.
const SOURCE_BATCH_BYTES: usize = 32 << 10;
/// Records after which operators make watermarks before it is time: what waits for them in windows
/// and timers would else be more than fits into the caches of a core.
pub(super) const RECORDS_PER_WATERMARK: u64 = 5_000;
/// Longest time for which a sink keeps rows to itself while the task is busy.
const SINK_FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two publications of what only the task's thread can read.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// The same when the task waits and has done something since.
const PUBLISH_INTERVAL_IDLE: Duration = Duration::from_millis(20);

/// What a source does next. All times are on the monotonic clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// It is polled.
    Ready,
    /// It waits for the answer to its request for a split.
    SplitRequested,
    /// It asks for a split again at this time.
    RequestSplitAt(Duration),
    /// It is polled again at this time.
    IdleUntil(Duration),
    /// It has ended.
    Ended,
}

pub(super) struct Source {
    /// Its place in the chain.
    pub(super) place: usize,
    /// Its node, if it gets splits.
    pub(super) node: Option<u32>,
    pub(super) phase: Phase,
    /// How it waits for other sources.
    pub(super) alignment: Option<SourceAlignment>,
}

impl Source {
    fn is_paused(&self) -> bool {
        self.alignment.as_ref().is_some_and(SourceAlignment::is_paused)
    }
}

pub(super) enum LoopError {
    Operator(OperatorError),
    Gate(GateError),
    /// The savepoint that the task has stopped for was given up.
    StopGivenUp(CheckpointId),
}

impl From<OperatorError> for LoopError {
    fn from(error: OperatorError) -> Self {
        Self::Operator(error)
    }
}

impl From<Interrupted> for LoopError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Operator(interrupted.into())
    }
}

impl From<GateError> for LoopError {
    fn from(error: GateError) -> Self {
        Self::Gate(error)
    }
}

/// How the task comes to its end.
#[derive(Debug)]
pub(super) struct Ending {
    /// A checkpoint must complete that was taken behind the end of the data.
    has_final_checkpoint: bool,
    /// The consumers were told that there is no more data.
    data_ended: bool,
    /// The first checkpoint behind the end of the data.
    final_checkpoint: Option<CheckpointId>,
    /// The savepoint that the task stops for.
    savepoint: Option<CheckpointId>,
    /// What the end waits for is complete.
    is_committed: bool,
}

impl Ending {
    pub(super) fn new(has_final_checkpoint: bool) -> Self {
        Self { has_final_checkpoint, data_ended: false, final_checkpoint: None, savepoint: None, is_committed: false }
    }

    fn may_close(&self) -> bool {
        let waits = self.has_final_checkpoint || self.savepoint.is_some();
        self.data_ended && (self.is_committed || !waits)
    }

    fn complete(&mut self, checkpoint_id: CheckpointId) {
        let is_final = self.final_checkpoint.is_some_and(|first| first <= checkpoint_id);
        self.is_committed |= is_final || self.savepoint == Some(checkpoint_id);
    }
}

/// A snapshot that was taken, and of which it is not known what became.
#[derive(Debug)]
pub(super) struct TakenSnapshot {
    location: SnapshotLocation,
}

pub(super) struct TaskLoop<'a> {
    pub(super) chain: OperatorChain,
    pub(super) gates: InputGates,
    pub(super) barriers: CheckpointBarrierHandler,
    pub(super) ending: Ending,
    pub(super) taken: BTreeMap<CheckpointId, TakenSnapshot>,
    /// The last checkpoint that is known to be complete.
    pub(super) last_complete: CheckpointId,
    /// State up to so many bytes is kept in the metadata of a checkpoint.
    pub(super) inline_bytes_max: u64,
    pub(super) sources: Vec<Source>,
    pub(super) mailbox: &'a mut Mailbox,
    pub(super) clock: &'a Clock,
    pub(super) services: &'a TaskServices,
    pub(super) attempt: &'a TaskDeployment,
    pub(super) sinks_flushed: Duration,
    pub(super) published: Duration,
    /// True if something was done since.
    pub(super) unpublished: bool,
    /// Time between two watermarks, if operators of the chain make them.
    pub(super) watermark_interval: Option<Duration>,
    /// When they make them next, on the monotonic clock.
    pub(super) watermarks_due: Option<Duration>,
    /// After how many records they do so, if that comes first.
    pub(super) watermarks_due_at: u64,
    pub(super) counters: &'a TaskCounters,
}

impl TaskLoop<'_> {
    pub(super) fn run(&mut self) -> Result<Finished, LoopError> {
        failpoint!("task.start", infallible);
        self.chain.restore_watermarks(self.mailbox)?;
        self.chain.end_finished_sources(self.mailbox)?;
        loop {
            self.mailbox.take_messages()?;
            while let Some(message) = self.mailbox.next_message() {
                self.handle(message)?;
            }
            let now = self.clock.monotonic();
            let next_flush = self.chain.flush_if_due(now, self.mailbox)?;
            self.take_care(now)?;
            self.align_sources(now)?;

            let mut progress = self.fire_timers()?;
            for index in 0..self.sources.len() {
                progress |= self.step_source(index, now)?;
            }
            if let Some(element) = self.gates.poll()? {
                self.process_element(element)?;
                progress = true;
            }
            if !self.ending.data_ended && self.chain.is_ended() {
                self.end_data()?;
                if self.ending.has_final_checkpoint {
                    (self.services.events)(TaskEvent::EndOfDataReached(self.attempt.attempt));
                }
            }
            if self.ending.may_close() && self.gates.open_channels() == 0 {
                failpoint!("task.finish", infallible);
                return Ok(self.chain.finish(self.mailbox)?);
            }
            self.unpublished |= progress;
            if !progress {
                self.wait(now, next_flush)?;
            }
        }
    }

    fn handle(&mut self, message: TaskMessage) -> Result<(), LoopError> {
        match message {
            TaskMessage::Stop => Ok(()),
            TaskMessage::SplitAssigned(answer) => Ok(self.split_assigned(answer)?),
            TaskMessage::AlignWatermark(max_allowed) => {
                self.align_watermark(max_allowed);
                Ok(())
            }
            TaskMessage::TriggerCheckpoint(TriggerCheckpoint { checkpoint_id, triggered, options, .. }) => {
                let barrier = CheckpointBarrier { checkpoint_id, triggered, options };
                let actions = self.barriers.process_trigger(barrier, self.clock.monotonic());
                Ok(self.settle(actions)?)
            }
            TaskMessage::CheckpointComplete(checkpoint_id) => Ok(self.checkpoint_complete(checkpoint_id)?),
            TaskMessage::CheckpointAborted(checkpoint_id) => {
                let actions = self.barriers.process_abort(checkpoint_id);
                self.settle(actions)?;
                if self.ending.savepoint == Some(checkpoint_id) && !self.ending.is_committed {
                    return Err(LoopError::StopGivenUp(checkpoint_id));
                }
                if self.taken.remove(&checkpoint_id).is_some() {
                    self.chain.notify_checkpoint_aborted(checkpoint_id)?;
                }
                Ok(())
            }
        }
    }

    fn process_element(&mut self, from: GateElement) -> Result<(), OperatorError> {
        let index = self.gates.channel_index(from.gate, from.channel);
        let actions = match from.element {
            StreamElement::CheckpointBarrier(barrier) => {
                self.barriers.process_barrier(index, barrier, self.clock.monotonic())
            }
            StreamElement::CancelCheckpoint(checkpoint_id) => self.barriers.process_cancellation(checkpoint_id),
            StreamElement::EndOfPartition => self.barriers.process_end_of_partition(index, self.clock.monotonic()),
            StreamElement::Records(_)
            | StreamElement::Watermark(_)
            | StreamElement::WatermarkStatus(_)
            | StreamElement::LatencyMarker(_)
            | StreamElement::EndOfData(_) => {
                self.barriers.process_bytes(from.element.data_bytes());
                return self.chain.process_element(from, self.mailbox);
            }
        };
        self.settle(actions)
    }

    /// Does what follows from a barrier.
    fn settle(&mut self, actions: Vec<BarrierAction>) -> Result<(), OperatorError> {
        for action in actions {
            match action {
                BarrierAction::Block(channel) => self.gates.block(channel),
                BarrierAction::Unblock(channels) => {
                    channels.into_iter().for_each(|channel| self.gates.unblock(channel))
                }
                BarrierAction::Trigger(aligned) => self.checkpoint(aligned)?,
                BarrierAction::Abort(checkpoint_id, reason) => {
                    self.chain.broadcast(&StreamElement::CancelCheckpoint(checkpoint_id), self.mailbox)?;
                    if let Some(reason) = reason {
                        self.decline(checkpoint_id, reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn decline(&self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason) {
        let what = match reason {
            CheckpointFailureReason::CheckpointSubsumed => "a barrier of a later one came first",
            CheckpointFailureReason::CheckpointDeclinedInputEndOfStream => "an input ended before its barrier came",
            _ => "a task before it gave it up",
        };
        (self.services.events)(TaskEvent::DeclineCheckpoint(DeclineCheckpoint {
            attempt: self.attempt.attempt,
            checkpoint_id,
            reason,
            message: format!("checkpoint {checkpoint_id} was not taken: {what}"),
        }));
    }

    /// Takes a snapshot and sends the barrier on; what is large is written beside.
    fn checkpoint(&mut self, aligned: AlignedCheckpoint) -> Result<(), OperatorError> {
        let AlignedCheckpoint { barrier, alignment, processed_bytes } = aligned;
        let checkpoint_id = barrier.checkpoint_id;
        let since_trigger = self.clock.now().since(barrier.triggered);
        if barrier.options.kind == SnapshotKind::StopWithSavepoint(StopMode::Drain) {
            // What the operators flush at their end is in the savepoint.
            self.end_sources()?;
        }
        let begun = self.clock.monotonic();
        failpoint!("task.snapshot", infallible);
        self.chain.prepare_snapshot(checkpoint_id)?;
        failpoint!("task.snapshot.prepared", infallible);
        let prepared = self.clock.monotonic() - begun;
        self.chain.broadcast(&StreamElement::CheckpointBarrier(barrier.clone()), self.mailbox)?;
        failpoint!("task.snapshot.barrier-sent", infallible);
        let sent = self.clock.monotonic();
        let snapshot = self.chain.take_snapshot(&barrier)?;
        failpoint!("task.snapshot.taken", infallible);
        let taken = self.clock.monotonic();

        let location = barrier.options.location.clone();
        self.taken.insert(checkpoint_id, TakenSnapshot { location });
        if self.ending.data_ended {
            self.ending.final_checkpoint.get_or_insert(checkpoint_id);
        }
        let kind = barrier.options.kind;
        let metrics = CheckpointMetrics {
            start_delay_us: micros(since_trigger.saturating_sub(alignment)),
            alignment_us: micros(alignment),
            sync_us: micros(prepared + (taken - sent)),
            async_us: 0,
            processed_bytes,
        };
        self.services.snapshots.write(SnapshotJob {
            job: self.attempt.job,
            attempt: self.attempt.attempt,
            barrier,
            snapshot,
            metrics,
            inline_bytes_max: self.inline_bytes_max,
            begun: taken,
            clock: self.clock.clone(),
            events: Arc::clone(&self.services.events),
        });
        if let SnapshotKind::StopWithSavepoint(mode) = kind {
            self.ending.savepoint = Some(checkpoint_id);
            if mode == StopMode::NoDrain {
                self.stop_sources()?;
            }
        }
        Ok(())
    }

    fn checkpoint_complete(&mut self, checkpoint_id: CheckpointId) -> Result<(), OperatorError> {
        if checkpoint_id <= self.last_complete {
            return Ok(());
        }
        self.last_complete = checkpoint_id;
        self.ending.complete(checkpoint_id);
        if let Some(taken) = self.taken.remove(&checkpoint_id) {
            self.chain.notify_checkpoint_complete(checkpoint_id, &taken.location)?;
            failpoint!("task.notified", infallible);
        }
        self.taken.retain(|id, _| checkpoint_id < *id);
        Ok(())
    }

    /// Ends all sources with the end of event time.
    fn end_sources(&mut self) -> Result<(), OperatorError> {
        for source in &mut self.sources {
            if std::mem::replace(&mut source.phase, Phase::Ended) != Phase::Ended {
                self.chain.end_source(source.place, self.mailbox)?;
            }
        }
        if !self.ending.data_ended && self.chain.is_ended() {
            self.end_data()?;
        }
        Ok(())
    }

    /// Ends all sources as they are.
    fn stop_sources(&mut self) -> Result<(), OperatorError> {
        for source in &mut self.sources {
            source.phase = Phase::Ended;
            self.chain.stop_source(source.place, self.mailbox)?;
        }
        if !self.ending.data_ended && self.chain.is_ended() {
            self.end_data()?;
        }
        Ok(())
    }

    fn end_data(&mut self) -> Result<(), OperatorError> {
        failpoint!("task.end-of-data", infallible);
        self.ending.data_ended = true;
        self.chain.end_data(self.mailbox)
    }

    /// Fires processing-time timers. Returns false if none is due.
    fn fire_timers(&mut self) -> Result<bool, OperatorError> {
        let Some(at) = self.chain.next_processing_time() else { return Ok(false) };
        let now = self.clock.now();
        if now < at {
            return Ok(false);
        }
        self.chain.fire_processing_timers(now, self.mailbox)?;
        Ok(true)
    }

    /// Does what is due from time to time.
    fn take_care(&mut self, now: Duration) -> Result<(), OperatorError> {
        if self.sinks_flushed + SINK_FLUSH_INTERVAL <= now {
            self.sinks_flushed = now;
            self.chain.flush_sinks()?;
        }
        if self.published + PUBLISH_INTERVAL <= now {
            self.published = now;
            self.publish();
        }
        let records = self.counters.records_in.load(Ordering::Relaxed);
        if self.watermarks_due.is_some_and(|due| due <= now || self.watermarks_due_at <= records) {
            self.watermarks_due = self.watermark_interval.map(|interval| now + interval);
            self.watermarks_due_at = records + RECORDS_PER_WATERMARK;
            let Self { chain, sources, mailbox, clock, .. } = self;
            let is_paused = |place| sources.iter().any(|source| source.place == place && source.is_paused());
            chain.advance_processing_time(clock.now(), is_paused, &mut **mailbox)?;
        }
        Ok(())
    }

    fn align_watermark(&mut self, max_allowed: MaxAllowedWatermark) {
        let source = self.sources.iter_mut().find(|source| source.node == Some(max_allowed.node));
        if let Some(alignment) = source.and_then(|source| source.alignment.as_mut()) {
            alignment.allow(max_allowed.watermark);
        }
    }

    /// Reports how far sources are that wait for others, and lets them pause or go on.
    fn align_sources(&mut self, now: Duration) -> Result<(), OperatorError> {
        for source in &mut self.sources {
            let (Some(alignment), Some(node)) = (&mut source.alignment, source.node) else { continue };
            let Some((watermark, status)) = self.chain.source_watermark(source.place) else { continue };
            if alignment.take_report(watermark, now) {
                // Nobody waits for a source that is idle.
                let watermark = if status == WatermarkStatus::Idle { Timestamp::MAX } else { watermark };
                let report = WatermarkReport { attempt: self.attempt.attempt, node, watermark };
                (self.services.events)(TaskEvent::ReportWatermark(report));
            }
            if alignment.update(watermark) {
                self.chain.resume_source(source.place, self.mailbox)?;
            }
        }
        Ok(())
    }

    pub(super) fn publish(&self) {
        publish_cpu_time(self.counters);
        self.chain.publish_metrics();
    }

    fn split_assigned(&mut self, answer: SplitAnswer) -> Result<(), OperatorError> {
        let source = self.sources.iter_mut().find(|source| source.node == Some(answer.node));
        let Some(source) = source.filter(|source| source.phase == Phase::SplitRequested) else {
            // An answer to a request that was answered before; splits are dealt once.
            tracing::warn!(task = %self.attempt.attempt, "a split came that was not asked for");
            return Ok(());
        };
        match answer.assignment {
            SplitAssignment::Split(split) => {
                source.phase = Phase::Ready;
                self.chain.add_split(source.place, split, self.mailbox)
            }
            SplitAssignment::Wait(millis) => {
                source.phase = Phase::RequestSplitAt(self.clock.monotonic() + Duration::from_millis(millis));
                Ok(())
            }
            SplitAssignment::NoMoreSplits => {
                source.phase = Phase::Ended;
                self.chain.end_source(source.place, self.mailbox)
            }
        }
    }

    /// Lets a source do what it can. Returns false if it can do nothing now.
    fn step_source(&mut self, index: usize, now: Duration) -> Result<bool, OperatorError> {
        let source = &mut self.sources[index];
        if source.is_paused() {
            return Ok(false);
        }
        match source.phase {
            Phase::Ready => {}
            Phase::IdleUntil(at) if at <= now => {}
            Phase::RequestSplitAt(at) if at <= now => {
                self.request_split(index);
                return Ok(true);
            }
            Phase::IdleUntil(_) | Phase::RequestSplitAt(_) | Phase::SplitRequested | Phase::Ended => return Ok(false),
        }
        let place = source.place;
        match self.chain.poll_source(place, SOURCE_BATCH_BYTES, self.mailbox)? {
            SourcePoll::More => self.sources[index].phase = Phase::Ready,
            SourcePoll::NeedSplit => self.request_split(index),
            SourcePoll::Idle(pause) => {
                self.sources[index].phase = Phase::IdleUntil(self.clock.monotonic() + pause);
                return Ok(false);
            }
            SourcePoll::Ended => self.sources[index].phase = Phase::Ended,
        }
        Ok(true)
    }

    fn request_split(&mut self, index: usize) {
        let source = &mut self.sources[index];
        let node = source.node.expect("only native sources ask for splits");
        source.phase = Phase::SplitRequested;
        (self.services.events)(TaskEvent::RequestSplit(SplitRequest { attempt: self.attempt.attempt, node }));
    }

    /// Waits until there is something to do.
    fn wait(&mut self, now: Duration, next_flush: Option<Duration>) -> Result<(), OperatorError> {
        if self.mailbox.has_messages() {
            // It came while the task waited for room.
            return Ok(());
        }
        self.chain.flush_sinks()?;
        let publish_at = self.published + PUBLISH_INTERVAL_IDLE;
        if self.unpublished && publish_at <= now {
            self.published = now;
            self.unpublished = false;
            self.publish();
        }
        let publish_at = self.unpublished.then_some(publish_at);
        let alarms = self.sources.iter().filter_map(|source| match source.phase {
            Phase::IdleUntil(at) | Phase::RequestSplitAt(at) => Some(at),
            Phase::Ready | Phase::SplitRequested | Phase::Ended => None,
        });
        let next_timer = self.chain.next_processing_time();
        let next_timer = next_timer.map(|at| self.clock.monotonic() + at.since(self.clock.now()));
        let reports = self.sources.iter().filter_map(|source| source.alignment.as_ref().map(SourceAlignment::due));
        let due = self.watermarks_due.into_iter().chain(next_timer).chain(publish_at);
        let alarm = alarms.chain(next_flush).chain(reports).chain(due).min();
        let timeout = alarm.map(|at| at.saturating_sub(self.clock.monotonic()));
        Ok(self.mailbox.wait(Waiting::Idle, timeout, WaitFor::Element(&self.gates))?)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Publishes the CPU time of the calling thread.
pub(super) fn publish_cpu_time(counters: &TaskCounters) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    counters.cpu_ns.store(seconds * 1_000_000_000 + nanos, Ordering::Relaxed);
}
