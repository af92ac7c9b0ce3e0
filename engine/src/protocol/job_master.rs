//! What a JobMaster receives from TaskExecutors.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    base::{
        clock::Timestamp,
        ids::{AllocationId, ExecutionAttemptId, ResourceId, ResourceManagerId, SlotId},
        stream_element::{CheckpointId, SnapshotLocation, StopMode},
    },
    checkpoint::{OperatorSubtaskState, TaskStateSnapshot},
    connector::SplitAssignment,
};

/// Why a job that is stopped takes no savepoint.
pub const BEING_STOPPED: &str = "the job is being stopped already";

/// State of a task as its TaskExecutor reports it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum TaskState {
    /// The thread was started; operators are opened.
    Initializing,
    /// Records are processed.
    Running,
    /// Ended at the end of its input.
    Finished,
    /// Ended because it was told to.
    Canceled,
    /// Ended by an error.
    Failed,
}

/// Whose fault a failure is, and whether a restart can help.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Recoverability {
    /// The restart strategy decides.
    Recoverable,
    /// The job fails at once.
    Unrecoverable,
}

/// Why a task failed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FailureCause {
    /// Stable name of the kind of failure, for example "guest-panic" or "connector".
    pub code: String,
    /// One line: what, where (plugin, operator, subtask, entry point, position) and what to do.
    pub message: String,
    /// Further detail, such as a backtrace; may have several lines or be empty.
    pub detail: String,
    /// Whether a restart can help.
    pub recoverability: Recoverability,
}

/// Why checkpoints cannot be listed or read, in one line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StoreProblem {
    /// The store itself: what is in it may be whole, and readable at another time.
    Unavailable(String),
    /// Something is missing, damaged, or of another kind.
    Unusable(String),
    /// Another version of the engine wrote it, and can read it.
    OtherVersion(String),
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(problem) | Self::Unusable(problem) | Self::OtherVersion(problem) => {
                formatter.write_str(problem)
            }
        }
    }
}

/// Code of the failure of a task that cannot go on from its checkpoint.
pub const RESTORE_FAILURE: &str = "restore-failed";

/// Counters of one task since its start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TaskMetrics {
    /// Rows that came in: from gates, or from the source.
    pub records_in: u64,
    /// Rows that went out: to partitions, or to sinks.
    pub records_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Milliseconds for which there was nothing to do.
    pub idle_ms: u64,
    /// Milliseconds for which the outputs were full.
    pub back_pressured_ms: u64,
    /// Milliseconds of work.
    pub busy_ms: u64,
    /// CPU time of the task's thread in nanoseconds.
    pub cpu_ns: u64,
    /// Watermark over all inputs, milliseconds since the epoch.
    pub input_watermark: Option<i64>,
    /// The subtask that holds the watermark back, if other inputs are ahead of it.
    pub held_back_by: Option<HoldingSubtask>,
    /// Rows that were refused and skipped or put aside.
    pub rejected_rows: u64,
    /// Bytes of guest memory.
    pub guest_memory_bytes: u64,
    /// Log lines that were dropped.
    pub log_lines_dropped: u64,
    /// Further metrics by operator name and metric name, the guests' among them.
    pub operators: Vec<OperatorMetric>,
}

/// A subtask whose watermark is behind those of others.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HoldingSubtask {
    /// Name of its vertex.
    pub vertex: String,
    /// Zero-based.
    pub subtask_index: u32,
    /// Its watermark, milliseconds since the epoch; none before the first.
    pub watermark: Option<i64>,
}

/// Names of operators' metrics that clients look for.
pub mod operator_metrics {
    /// Flink's: watermark over all inputs.
    pub const CURRENT_INPUT_WATERMARK: &str = "currentInputWatermark";
    /// Flink's: last watermark that went out.
    pub const CURRENT_OUTPUT_WATERMARK: &str = "currentOutputWatermark";
    /// Flink's: rows that came after their window had ended. Counted by the plugin.
    pub const NUM_LATE_RECORDS_DROPPED: &str = "numLateRecordsDropped";
    /// Bytes of keyed state.
    pub const STATE_BYTES: &str = "stateBytes";
    /// Values, lists and pairs of maps.
    pub const NUM_STATE_ENTRIES: &str = "numStateEntries";
    /// Bytes of the key group that has most state.
    pub const MAX_KEY_GROUP_STATE_BYTES: &str = "maxKeyGroupStateBytes";
    /// Event-time timers that wait.
    pub const NUM_EVENT_TIME_TIMERS: &str = "numEventTimeTimers";
    /// Processing-time timers that wait.
    pub const NUM_PROCESSING_TIME_TIMERS: &str = "numProcessingTimeTimers";
    /// Entries of keyed state that the plugin found in its own memory. Counted by the plugin.
    pub const STATE_CACHE_HITS: &str = "stateCacheHits";
    /// Entries of keyed state that the plugin had to ask for. Counted by the plugin.
    pub const STATE_CACHE_MISSES: &str = "stateCacheMisses";
    /// Bytes of keyed state in the plugin's own memory, about. Told by the plugin.
    pub const STATE_CACHE_BYTES: &str = "stateCacheBytes";
    /// Entries of keyed state in the plugin's own memory. Told by the plugin.
    pub const STATE_CACHE_ENTRIES: &str = "stateCacheEntries";
}

/// A metric of one operator.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct OperatorMetric {
    /// Node id.
    pub node: u32,
    /// Name, for example "numRecordsIn".
    pub name: String,
    /// Value.
    pub value: f64,
}

/// Report of a task's state.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskExecutionStateUpdate {
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// The state it entered.
    pub state: TaskState,
    /// Why, if it failed.
    pub cause: Option<FailureCause>,
    /// Its counters.
    pub metrics: TaskMetrics,
    /// What its operators leave behind, by node id; only with `Finished`: output that sinks completed and no
    /// checkpoint committed, how far sources of plugins have come, union lists.
    pub end_states: BTreeMap<u32, OperatorSubtaskState>,
}

/// A reader asks its source's enumerator for a split; answered by
/// [`super::task_executor::SplitAssigned`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SplitRequest {
    /// The attempt of the asking task.
    pub attempt: ExecutionAttemptId,
    /// Node id of the source.
    pub node: u32,
}

/// Answer to [`SplitRequest`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SplitAnswer {
    /// The attempt of the asking task.
    pub attempt: ExecutionAttemptId,
    /// Node id of the source.
    pub node: u32,
    /// The answer.
    pub assignment: SplitAssignment,
}

/// A source that waits for others reports how far it is in event time; answered by
/// [`super::task_executor::TaskExecutorMessage::AlignWatermark`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WatermarkReport {
    /// The attempt of the task.
    pub attempt: ExecutionAttemptId,
    /// Node id of the source.
    pub node: u32,
    /// Its watermark; [`Timestamp::MIN`] before the first, [`Timestamp::MAX`] if it is idle or
    /// at its end.
    pub watermark: Timestamp,
}

/// Answer to [`WatermarkReport`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MaxAllowedWatermark {
    /// The attempt of the task.
    pub attempt: ExecutionAttemptId,
    /// Node id of the source.
    pub node: u32,
    /// The source pauses while its watermark is above.
    pub watermark: Timestamp,
}

/// A task's part of a checkpoint is stored.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct AcknowledgeCheckpoint {
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// The state.
    pub state: TaskStateSnapshot,
    /// How it went.
    pub metrics: CheckpointMetrics,
}

/// How a checkpoint went in one task.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointMetrics {
    /// Microseconds from the trigger in the JobMaster to the first barrier.
    pub start_delay_us: u64,
    /// Microseconds from the first barrier to the last.
    pub alignment_us: u64,
    /// Microseconds for which the task did nothing else.
    pub sync_us: u64,
    /// Microseconds of writing beside the task's work.
    pub async_us: u64,
    /// Bytes that came in between the first barrier and the last.
    pub processed_bytes: u64,
}

/// Why a task, or the coordinator, gave a checkpoint up. Source: Flink's `CheckpointFailureReason`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CheckpointFailureReason {
    /// Another request of the same kind came before it.
    TooManyCheckpointRequests,
    /// The last one completed too recently.
    MinimumTimeBetweenCheckpoints,
    /// A task that must take part does not run.
    NotAllRequiredTasksRunning,
    /// Storage could not be used by the coordinator.
    IoException,
    /// A task could not store its state.
    CheckpointAsyncException,
    /// A later checkpoint completed or began before it.
    CheckpointSubsumed,
    /// A task that forwarded the barrier gave it up.
    CheckpointDeclinedOnCancellationBarrier,
    /// A task failed to take its snapshot.
    CheckpointDeclined,
    /// A task was not ready.
    CheckpointDeclinedTaskNotReady,
    /// A task was ending.
    CheckpointDeclinedTaskClosing,
    /// An input ended while barriers were waited for.
    CheckpointDeclinedInputEndOfStream,
    /// It took too long.
    CheckpointExpired,
    /// The coordinator stopped for good.
    CheckpointCoordinatorShutdown,
    /// The job is not RUNNING.
    CheckpointCoordinatorSuspend,
    /// Tasks are restarted.
    JobFailoverRegion,
    /// A task failed.
    TaskFailure,
    /// Its metadata could not be stored.
    FinalizeCheckpointFailure,
    /// It could not be begun.
    TriggerCheckpointFailure,
}

impl CheckpointFailureReason {
    /// What people read.
    pub fn text(self) -> &'static str {
        match self {
            Self::TooManyCheckpointRequests => "too many checkpoints were asked for",
            Self::MinimumTimeBetweenCheckpoints => "the last checkpoint completed too recently",
            Self::NotAllRequiredTasksRunning => "not all tasks that must take part are RUNNING",
            Self::IoException => "the storage of checkpoints could not be used",
            Self::CheckpointAsyncException => "a task could not store its state",
            Self::CheckpointSubsumed => "a later checkpoint took its place",
            Self::CheckpointDeclinedOnCancellationBarrier => "a task before gave it up",
            Self::CheckpointDeclined => "a task failed to take its snapshot",
            Self::CheckpointDeclinedTaskNotReady => "a task was not ready",
            Self::CheckpointDeclinedTaskClosing => "a task was ending",
            Self::CheckpointDeclinedInputEndOfStream => "an input ended while barriers were awaited",
            Self::CheckpointExpired => "it expired before it was complete",
            Self::CheckpointCoordinatorShutdown => "the job ended",
            Self::CheckpointCoordinatorSuspend => "the job does not run",
            Self::JobFailoverRegion => "tasks are restarted",
            Self::TaskFailure => "a task failed",
            Self::FinalizeCheckpointFailure => "its metadata could not be stored",
            Self::TriggerCheckpointFailure => "it could not be begun",
        }
    }
}

/// A task gives a checkpoint up.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DeclineCheckpoint {
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Why.
    pub reason: CheckpointFailureReason,
    /// One line: what, where and what to do.
    pub message: String,
}

/// What a user wants to be taken.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SnapshotRequest {
    /// A checkpoint.
    Checkpoint {
        /// All state is to be written.
        is_full: bool,
    },
    /// A savepoint below a directory; none: below the configured one.
    Savepoint(Option<SnapshotLocation>),
    /// A savepoint behind which the job stops.
    StopWithSavepoint(Option<SnapshotLocation>, StopMode),
}

/// What a user wanted was taken.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TakenSnapshot {
    /// Its number.
    pub checkpoint_id: CheckpointId,
    /// The directory of its metadata.
    pub location: SnapshotLocation,
}

/// A slot that a TaskExecutor offers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotOffer {
    /// The allocation that asked for it.
    pub allocation: AllocationId,
    /// The slot.
    pub slot: SlotId,
}

/// Origin of slots.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotOffers {
    /// The offering TaskExecutor.
    pub task_executor: ResourceId,
    /// Its offers.
    pub offers: Vec<SlotOffer>,
}

/// What a JobMaster receives. The envelope's fence is the `JobMasterId`, except
/// for answers to its registration.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::large_enum_variant, reason = "control messages are few")]
pub enum JobMasterMessage {
    /// The ResourceManager accepted the registration.
    RegisteredAtResourceManager(ResourceManagerId),
    /// The ResourceManager refused the registration.
    ResourceManagerRefused(String),
    /// The ResourceManager lives.
    ResourceManagerHeartbeat,
    /// The ResourceManager cannot give the job as many slots as it needs; how many there are.
    NotEnoughSlots(u32),
    /// A TaskExecutor that has slots for this job registers.
    RegisterTaskExecutor(ResourceId),
    /// A TaskExecutor offers slots.
    OfferSlots(SlotOffers),
    /// A task entered a state.
    UpdateTaskExecutionState(TaskExecutionStateUpdate),
    /// A TaskExecutor did not take a task.
    TaskRefused(ExecutionAttemptId, String),
    /// A reader asks for a split.
    RequestSplit(SplitRequest),
    /// A source that waits for others says how far it is.
    ReportWatermark(WatermarkReport),
    /// A task's part of a checkpoint is stored.
    AcknowledgeCheckpoint(Box<AcknowledgeCheckpoint>),
    /// A task gives a checkpoint up.
    DeclineCheckpoint(DeclineCheckpoint),
    /// A task has processed all its input and waits for a checkpoint before it ends.
    EndOfDataReached(ExecutionAttemptId),
    /// A TaskExecutor lives.
    TaskExecutorHeartbeat(TaskExecutorHeartbeat),
    /// A TaskExecutor goes, or lost its slots.
    DisconnectTaskExecutor(ResourceId, String),
    /// A user wants a checkpoint or savepoint; answered by `DispatcherMessage::SnapshotTaken` with the same number.
    TriggerSnapshot(u64, SnapshotRequest),
    /// The metadata of a checkpoint was stored, or why not; from itself.
    CheckpointStored(CheckpointId, Result<(), String>),
    /// Files of checkpoints were deleted, or were left behind; from itself.
    CheckpointsDiscarded,
    /// The metadata of a checkpoint that was given up is surely not there, or why not; from itself.
    CheckpointRevoked(CheckpointId, Result<(), String>),
    /// The files of a checkpoint were looked at: what is wrong with them; from itself.
    CheckpointVerified(CheckpointId, Result<(), StoreProblem>),
    /// The Dispatcher tells to cancel the job.
    Cancel,
    /// The Dispatcher tells to cancel the job, unless it has completed a checkpoint: then it goes on.
    CancelUncommitted,
    /// The Dispatcher asks for details; answered with the same number.
    RequestDetails(u64),
    /// The Dispatcher lost its leadership or ends: suspend.
    Suspend(String),
}

/// A TaskExecutor's sign of life to a JobMaster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskExecutorHeartbeat {
    /// The TaskExecutor.
    pub task_executor: ResourceId,
    /// All attempts of the job that it has, with their counters: the deployment report.
    pub tasks: Vec<(ExecutionAttemptId, TaskMetrics)>,
}
