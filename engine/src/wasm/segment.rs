//! A fused segment of an operator chain: one instance of a plugin, driven by a task.
//!
//! The life of a segment is that of the instance in `wit/plugin.wit`. A segment
//! that failed keeps its target and its metrics, but its store is gone: each
//! further call answers with the same failure.

use std::{collections::BTreeMap, marker::PhantomData, sync::Arc};

use super::{
    CancelFlag, CompiledPlugin, EmitTarget, EntryPoint, GuestError, GuestFailure, MetricSnapshot, Replay,
    RestoredKeyGroup, SandboxLimits, SegmentContext, SegmentRestore, SegmentSnapshot, SourceStatus,
    contract::{WitOperatorContext, WitStatus, WitTakeStatus},
    guest_error::HostTrap,
    host::Host,
    instance::{Exports, Instance},
};
use crate::{
    base::{
        clock::Timestamp,
        stream_element::{CheckpointId, RecordBatch, WatermarkStatus},
    },
    graph::digest::graph_digest,
    state::{KeyedState, KeyedStateContext, StateUsage, TimeDomain},
};

/// A running segment. Lives on one thread, whose stack must have room for
/// `sandbox.stack.max` beyond what the host needs.
pub struct Segment<T> {
    state: State,
    /// The first operator has keyed state.
    is_keyed: bool,
    target: PhantomData<T>,
}

enum State {
    Running {
        instance: Box<Instance>,
        exports: Box<Exports>,
    },
    Failed {
        error: GuestError,
        host: Box<Host>,
    },
    /// Only while a running segment turns into a failed one.
    Failing,
}

fn keyed_state_context(context: &SegmentContext, limits: &SandboxLimits) -> KeyedStateContext {
    KeyedStateContext {
        operator: context.operator.clone(),
        is_keyed: context.is_keyed,
        states: context.states.clone(),
        subtask_index: context.subtask_index,
        parallelism: context.parallelism,
        max_parallelism: context.max_parallelism,
        bytes_max: limits.state_bytes_max,
        value_bytes_max: limits.state_value_bytes_max,
        timers_max: limits.state_timers_max,
        result_bytes_max: limits.memory_bytes_max,
    }
}

/// Elements of operator states, by place among all states.
type Lists = BTreeMap<usize, Vec<Vec<u8>>>;

/// Makes keyed state and operator states, and fills them with what was restored.
fn restored(
    context: &SegmentContext,
    state_context: KeyedStateContext,
    restore: SegmentRestore,
    now: Timestamp,
    cancel: &CancelFlag,
) -> Result<(KeyedState, Lists), (GuestFailure, String)> {
    let mut state = match &context.disk_state {
        Some(disk) if context.is_keyed => {
            KeyedState::on_disk(state_context, disk).map_err(|error| (GuestFailure::StateStorage, error.message))?
        }
        Some(_) | None => KeyedState::new(state_context),
    };
    for restored in restore.key_groups {
        if cancel.is_canceled() {
            return Err((GuestFailure::Canceled, "the task was canceled".to_owned()));
        }
        let RestoredKeyGroup { key_group, content, states } =
            restored.map_err(|message| (GuestFailure::StateStorage, message))?;
        state
            .restore(key_group, &content, &states, now)
            .map_err(|error| (GuestFailure::RestoreFailed, error.to_string()))?;
    }
    // Before anything uses them, so that they are counted from the start.
    state.end_restore();
    if restore.is_incremental {
        state.track_changes();
        state.build_upon(&restore.part_bytes);
    }
    let operator_states = context.states.iter().enumerate().filter(|(_, state)| state.shape.is_none());
    let mut lists = restore.lists;
    let lists = operator_states.map(|(place, _)| (place, lists.remove(&place).unwrap_or_default())).collect();
    Ok((state, lists))
}

impl<T: EmitTarget> Segment<T> {
    /// Makes a fresh instance, replays `plan`, compares the graph, takes over what was
    /// restored and opens the operators.
    ///
    /// # Errors
    /// Returns an error if the guest fails, the graph differs from the submitted one, or the
    /// restored state does not fit.
    pub fn open(
        plugin: &Arc<CompiledPlugin>,
        replay: &Replay,
        context: &SegmentContext,
        limits: SandboxLimits,
        cancel: CancelFlag,
        restore: SegmentRestore,
        target: T,
    ) -> Result<Self, GuestError> {
        let outputs = u32::try_from(context.outputs.len()).expect("a job graph has fewer than 2^32 edges");
        let state_context = keyed_state_context(context, &limits);
        let mut instance = plugin.instantiate(limits, outputs, cancel.clone(), Box::new(target))?;
        let graph = instance.plan(&replay.args)?;
        if graph_digest(&graph) != replay.graph_digest {
            let message = "the program declared another graph than on submission: plan must depend on nothing but \
                           its arguments"
                .to_owned();
            return Err(instance.error(GuestFailure::GraphMismatch, EntryPoint::Plan, message));
        }
        let (state, lists) = restored(context, state_context, restore, instance.host_mut().now(), &cancel)
            .map_err(|(failure, message)| instance.error(failure, EntryPoint::Open, message))?;
        instance.host_mut().set_state(state);
        instance.host_mut().set_lists(lists, &context.states);
        instance.open(&WitOperatorContext::from(context), &context.nodes)?;
        let exports = Box::new(instance.exports());
        let state = State::Running { instance: Box::new(instance), exports };
        Ok(Self { state, is_keyed: context.is_keyed, target: PhantomData })
    }

    /// Processes the rows of one batch, which came in by input `input`.
    ///
    /// # Errors
    /// Returns an error if the guest fails; the segment is of no further use.
    #[inline]
    pub fn process_batch(&mut self, input: u32, batch: &RecordBatch) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let params = (input, batch.kind.into(), batch.count, &*batch.data);
            let entry_point = EntryPoint::ProcessBatch;
            let (status,) = instance.call(entry_point, Some(batch.count), exports.process_batch, params)?;
            instance.check_status(entry_point, status)
        })
    }

    /// Forwards the watermark over all inputs.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn process_watermark(&mut self, watermark: Timestamp) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::ProcessWatermark;
            let (status,) = instance.call(entry_point, None, exports.process_watermark, (watermark.0,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// Tells that all inputs became idle, or one active again.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn process_watermark_status(&mut self, status: WatermarkStatus) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::ProcessWatermarkStatus;
            let idle = status == WatermarkStatus::Idle;
            let (status,) = instance.call(entry_point, None, exports.process_watermark_status, (idle,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// Fires the next timers that are due, some thousands at most, and returns false if
    /// there were none: event-time timers at the watermark `time`, processing-time
    /// timers at the time `time`.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn fire_timers(&mut self, domain: TimeDomain, time: Timestamp) -> Result<bool, GuestError> {
        self.run(|instance, exports| {
            let mut timers = Vec::new();
            let state = instance.host_mut().state_mut();
            let count = state.map_or(0, |state| state.take_due_timers(domain, time, &mut timers));
            if count == 0 {
                return Ok(false);
            }
            let entry_point = EntryPoint::FireTimers;
            let params = (domain.into(), time.0, count, &*timers);
            let (status,) = instance.call(entry_point, None, exports.fire_timers, params)?;
            instance.check_status(entry_point, status)?;
            Ok(true)
        })
    }

    /// Event time has ended and all its timers have fired: hands over the next entries of the
    /// states that are taken then, some thousands at most, and returns false if there were none.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn take_state(&mut self) -> Result<bool, GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::TakeState;
            let mut entries = Vec::new();
            let taken = instance.host_mut().state_mut().map_or(Ok(None), |state| state.take_entries(&mut entries));
            let taken = taken.map_err(|error| {
                let HostTrap { failure, message } = error.into();
                instance.error(failure, entry_point, message)
            })?;
            let Some((state, count)) = taken else { return Ok(false) };
            let (status,) = instance.call(entry_point, None, exports.take_state, (state, count, &*entries))?;
            let has_failed = status == WitTakeStatus::Failed;
            instance.check_status(entry_point, if has_failed { WitStatus::Failed } else { WitStatus::Ok })?;
            if status == WitTakeStatus::More
                && let Some(state) = instance.host_mut().state_mut()
            {
                state.plugin_has_more();
            }
            Ok(true)
        })
    }

    /// When the next processing-time timer is to be fired.
    pub fn next_processing_time(&self) -> Option<Timestamp> {
        self.host().state()?.next_processing_time()
    }

    /// How much keyed state and how many timers there are.
    pub fn state_usage(&self) -> StateUsage {
        self.host().state().map(KeyedState::usage).unwrap_or_default()
    }

    /// The rows that follow come from this split of the source before the segment.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn begin_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::BeginSplit;
            let (status,) = instance.call(entry_point, None, exports.begin_split, (split,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// A split was read to its end.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn end_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::EndSplit;
            let (status,) = instance.call(entry_point, None, exports.end_split, (split,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// Tells operators that generate watermarks what time it is.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn advance_processing_time(&mut self, now: Timestamp) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::AdvanceProcessingTime;
            let (status,) = instance.call(entry_point, None, exports.advance_processing_time, (now.0,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// Asks a source of the plugin for about `max_bytes` of rows.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn poll_source(&mut self, max_bytes: u32) -> Result<SourceStatus, GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::PollSource;
            let (status,) = instance.call(entry_point, None, exports.poll_source, (max_bytes,))?;
            let status = status.status();
            instance.check_status(entry_point, if status.is_some() { WitStatus::Ok } else { WitStatus::Failed })?;
            Ok(status.expect("a failed source was an error"))
        })
    }

    /// Has the guest hand its state to the host, and takes that as it is now.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn snapshot(&mut self, checkpoint_id: CheckpointId, is_full: bool) -> Result<SegmentSnapshot, GuestError> {
        let is_keyed = self.is_keyed;
        self.run(|instance, exports| {
            let entry_point = EntryPoint::Snapshot;
            let (status,) = instance.call(entry_point, None, exports.snapshot, (checkpoint_id,))?;
            instance.check_status(entry_point, status)?;
            let host = instance.host_mut();
            let lists = host.lists().clone();
            let keyed = host.state_mut().filter(|_| is_keyed);
            let keyed_bytes = keyed.as_ref().map_or(0, |state| state.bytes());
            Ok(SegmentSnapshot { keyed: keyed.map(|state| state.snapshot(checkpoint_id, is_full)), keyed_bytes, lists })
        })
    }

    /// Operator lists as the last snapshot left them, or as they were restored; by place among the states.
    pub fn lists(&self) -> &BTreeMap<usize, Vec<Vec<u8>>> {
        self.host().lists()
    }

    /// The checkpoint is durable.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn notify_checkpoint_complete(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            if let Some(state) = instance.host_mut().state_mut() {
                state.checkpoint_completed(checkpoint_id);
            }
            let entry_point = EntryPoint::NotifyCheckpointComplete;
            let (status,) = instance.call(entry_point, None, exports.notify_checkpoint_complete, (checkpoint_id,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// The checkpoint was given up.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn notify_checkpoint_aborted(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::NotifyCheckpointAborted;
            let (status,) = instance.call(entry_point, None, exports.notify_checkpoint_aborted, (checkpoint_id,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// Tells that input `input` has ended, after its last watermark.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn end_input(&mut self, input: u32) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let entry_point = EntryPoint::EndInput;
            let (status,) = instance.call(entry_point, None, exports.end_input, (input,))?;
            instance.check_status(entry_point, status)
        })
    }

    /// The last call, when the task did not fail.
    ///
    /// # Errors
    /// See [`Segment::process_batch`].
    pub fn close(&mut self) -> Result<(), GuestError> {
        self.run(|instance, exports| {
            let (status,) = instance.call(EntryPoint::Close, None, exports.close, ())?;
            instance.check_status(EntryPoint::Close, status)
        })
    }

    /// Where the rows go.
    pub fn target(&self) -> &T {
        self.host().target().as_any().downcast_ref().expect("the segment was opened with this type")
    }

    /// Where the rows go.
    pub fn target_mut(&mut self) -> &mut T {
        self.host_mut().target_mut().as_any_mut().downcast_mut().expect("the segment was opened with this type")
    }

    /// Bytes of the guest's memory; 0 after a failure.
    pub fn memory_bytes(&self) -> usize {
        match &self.state {
            State::Running { instance, .. } => instance.host().limiter.memory_bytes(),
            State::Failed { .. } | State::Failing => 0,
        }
    }

    /// Metrics of the operators, in the order of their registration.
    pub fn metrics(&self) -> Vec<MetricSnapshot> {
        self.host().metrics.snapshot()
    }

    /// Metrics, and values of metrics, that were above a limit or malformed.
    pub fn dropped_metrics(&self) -> u64 {
        self.host().metrics.dropped()
    }

    /// Log lines that were above the rate.
    pub fn dropped_log_lines(&self) -> u64 {
        self.host().dropped_log_lines
    }

    #[inline]
    fn run<R>(&mut self, call: impl FnOnce(&mut Instance, &Exports) -> Result<R, GuestError>) -> Result<R, GuestError> {
        let result = match &mut self.state {
            State::Running { instance, exports } => call(instance, exports),
            State::Failed { error, .. } => return Err(error.clone()),
            State::Failing => unreachable!("set only within fail"),
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        result
    }

    #[cold]
    fn fail(&mut self, error: &GuestError) {
        self.state = match std::mem::replace(&mut self.state, State::Failing) {
            State::Running { instance, .. } => {
                State::Failed { error: error.clone(), host: Box::new(instance.into_host()) }
            }
            State::Failed { error, host } => State::Failed { error, host },
            State::Failing => State::Failing,
        };
    }

    fn host(&self) -> &Host {
        match &self.state {
            State::Running { instance, .. } => instance.host(),
            State::Failed { host, .. } => host,
            State::Failing => unreachable!("set only within fail"),
        }
    }

    fn host_mut(&mut self) -> &mut Host {
        match &mut self.state {
            State::Running { instance, .. } => instance.host_mut(),
            State::Failed { host, .. } => host,
            State::Failing => unreachable!("set only within fail"),
        }
    }
}
