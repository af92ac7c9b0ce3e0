//! The operators of one task: which of them run fused in one instance of a
//! plugin, how rows go from one to the next, and what happens at the end.
//!
//! [`ChainPlan`] decides, from the job vertex alone; [`OperatorChain`] runs. A
//! guest never waits: what it emits is taken by [`Outputs`], and the chain hands
//! it on when the call has returned.

mod chain_plan;
mod event_time;
mod metrics;
mod native_connectors;
mod operator_chain;
mod outputs;
mod row_errors;
mod snapshot;
mod wasm_segment;

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    base::{
        clock::Timestamp,
        ids::JobId,
        stream_element::{CheckpointId, RecordBatch, WatermarkStatus},
    },
    connector::{ConnectorError, ReaderContext, SinkWriter, SourceReader, WriterContext},
    graph::stream_graph::ConnectorSpec,
    state::{StateUsage, TimeDomain},
    task_manager::network::{Progress, ResultPartition, RoutingError},
    wasm::{
        CancelFlag, GuestError, MetricSnapshot, Replay, SandboxLimits, SegmentContext, SegmentRestore, SegmentSnapshot,
        SourceStatus,
    },
};

pub use chain_plan::{ChainPlan, Destination, GateTarget, PlanError, PlannedKind, PlannedNode, PlannedOutput};
pub use metrics::{HoldingChannel, OperatorCounters, StateCounters, TaskCounters};
pub use native_connectors::{NativeConnectors, PrintedRows};
pub use operator_chain::{ChainSetup, CheckpointSettings, OperatorChain, SourcePoll};
pub use outputs::Outputs;
pub use row_errors::{RowErrorPolicy, RowErrors, RowErrorsError};
pub use snapshot::{ChainSnapshot, KeyedPart, KeyedPartRest, RestoredOperators};

/// A task, for contexts and messages.
#[derive(Clone, Debug)]
pub struct TaskContext {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub job_name: String,
    /// See [`task_name`](crate::task_manager::task_name).
    pub task_name: String,
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Zero-based.
    pub attempt_number: u32,
}

/// Operators of one plugin that run in one instance of it. All calls are made
/// from the thread that opened it; after an error no further call is made.
pub trait GuestSegment {
    /// Processes the rows of a batch for an input of the first operator.
    ///
    /// # Errors
    /// Returns how the guest failed, as all methods here.
    fn process_batch(&mut self, input: u32, batch: &RecordBatch) -> Result<(), GuestError>;

    /// Takes the watermark over all inputs.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn process_watermark(&mut self, watermark: Timestamp) -> Result<(), GuestError>;

    /// Takes the status over all inputs.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn process_watermark_status(&mut self, status: WatermarkStatus) -> Result<(), GuestError>;

    /// Fires the next timers of the first operator that are due at a watermark or a
    /// processing time, some thousands at most. Returns false if there were none.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn fire_timers(&mut self, domain: TimeDomain, time: Timestamp) -> Result<bool, GuestError>;

    /// Event time has ended and all its timers have fired: hands over the next of the state
    /// that the first operator takes then. Returns false if there was none.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn take_state(&mut self) -> Result<bool, GuestError>;

    /// When the next processing-time timer is to be fired.
    fn next_processing_time(&self) -> Option<Timestamp>;

    /// Asks the first operator, a source, for about `max_bytes` of rows.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn poll_source(&mut self, max_bytes: u32) -> Result<SourceStatus, GuestError>;

    /// The rows that follow come from this split of the source before the segment.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn begin_split(&mut self, split: u32) -> Result<(), GuestError>;

    /// A split was read to its end.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn end_split(&mut self, split: u32) -> Result<(), GuestError>;

    /// Tells operators that generate watermarks what time it is.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn advance_processing_time(&mut self, now: Timestamp) -> Result<(), GuestError>;

    /// Takes the state as it is now; nothing may be emitted.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn snapshot(&mut self, checkpoint_id: CheckpointId, is_full: bool) -> Result<SegmentSnapshot, GuestError>;

    /// Operator lists as the last snapshot left them, or as they were restored; by place among the states.
    fn lists(&self) -> BTreeMap<usize, Vec<Vec<u8>>>;

    /// A checkpoint that was taken is durable.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn notify_checkpoint_complete(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError>;

    /// A checkpoint that was taken was given up.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn notify_checkpoint_aborted(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError>;

    /// An input of the first operator has ended; for a source, input 0 stands for
    /// the source itself.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn end_input(&mut self, input: u32) -> Result<(), GuestError>;

    /// The last call.
    ///
    /// # Errors
    /// Returns how the guest failed.
    fn close(&mut self) -> Result<(), GuestError>;

    /// What the segment emits into.
    fn outputs(&mut self) -> &mut Outputs;

    /// Bytes of memory that the instance holds.
    fn memory_bytes(&self) -> usize;

    /// Keyed state and timers of the first operator.
    fn state_usage(&self) -> StateUsage;

    /// Metrics of the operators.
    fn metrics(&self) -> Vec<MetricSnapshot>;

    /// Log lines that were above the rate.
    fn dropped_log_lines(&self) -> u64;
}

/// A plugin that is ready to run.
pub trait Plugin: Send + Sync {
    /// Makes an instance with the operators of a segment.
    ///
    /// # Errors
    /// Returns how the guest failed in `plan` or `open`.
    fn open(&self, request: OpenSegment<'_>) -> Result<Box<dyn GuestSegment>, GuestError>;
}

/// What [`Plugin::open`] is given.
pub struct OpenSegment<'a> {
    /// How the operators are made again.
    pub replay: &'a Replay,
    /// Where the segment runs.
    pub context: &'a SegmentContext,
    /// Limits of the instance.
    pub limits: SandboxLimits,
    /// Stops a running call.
    pub cancel: CancelFlag,
    /// What it goes on from.
    pub restore: SegmentRestore,
    /// Takes what the segment emits.
    pub outputs: Outputs,
}

/// The native sources and sinks by name.
pub trait Connectors: Send + Sync {
    /// Makes the reader of one subtask.
    ///
    /// # Errors
    /// Returns an error if the name or an option is unknown or invalid.
    fn create_reader(
        &self,
        connector: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Box<dyn SourceReader>, ConnectorError>;

    /// Makes the writer of one subtask.
    ///
    /// # Errors
    /// Returns an error if the name or an option is unknown or invalid, or the
    /// destination cannot be opened.
    fn create_writer(
        &self,
        connector: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Box<dyn SinkWriter>, ConnectorError>;
}

/// The task was told to stop while it waited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interrupted;

/// How a chain waits when an output is stuck; the task does the waiting, because
/// it has to answer its mailbox meanwhile.
pub trait Backpressure {
    /// Returns when there may be room in a channel.
    ///
    /// # Errors
    /// Returns an error if the task was told to stop.
    fn wait_for_room(
        &mut self,
        partition: &ResultPartition,
        channel: usize,
        progress: Progress,
    ) -> Result<(), Interrupted>;
}

/// Where the rows came from that an operator failed on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Origin {
    /// Nothing is being processed.
    #[default]
    None,
    /// A channel of an input gate.
    Gate {
        /// Zero-based gate.
        gate: usize,
        /// Zero-based channel of the gate.
        channel: usize,
    },
    /// A source of this task; its zero-based place among them.
    Source(usize),
}

/// An operator failed, or the task was told to stop.
#[derive(Debug)]
pub enum OperatorError {
    /// Code of a plugin failed.
    Guest {
        /// How.
        error: Box<GuestError>,
        /// Input of the segment that took the rows, if it took rows.
        input: Option<u32>,
        /// Where the rows came from, for messages; empty if there are none.
        position: String,
    },
    /// A native source or sink failed.
    Connector {
        /// Its node.
        node: u32,
        /// How.
        error: ConnectorError,
        /// Where a source stood; empty for a sink.
        position: String,
    },
    /// Rows of a native source could not be dealt.
    Routing {
        /// Node of the source.
        node: u32,
        /// Why not.
        error: RoutingError,
    },
    /// Refused rows could not be put aside.
    RowErrors(RowErrorsError),
    /// An element arrived that operators do not get.
    UnexpectedElement(String),
    /// State that was kept does not fit an operator.
    Restore {
        /// Its node.
        node: u32,
        /// One line: what, and what to do.
        message: String,
    },
    /// The task was told to stop.
    Interrupted,
}

impl From<Interrupted> for OperatorError {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl From<RowErrorsError> for OperatorError {
    fn from(error: RowErrorsError) -> Self {
        Self::RowErrors(error)
    }
}

/// A plugin that tasks share.
pub type SharedPlugin = Arc<dyn Plugin>;
