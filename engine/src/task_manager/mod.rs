//! Runs tasks: the TaskExecutor with its slots, and one OS thread per task.

pub mod network;
pub mod operator;
pub mod task;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    base::{
        ids::{ExecutionAttemptId, JobId},
        stream_element::CheckpointId,
    },
    protocol::{
        job_master::{
            AcknowledgeCheckpoint, DeclineCheckpoint, FailureCause, MaxAllowedWatermark, SplitAnswer, SplitRequest,
            TaskExecutionStateUpdate, TaskMetrics, WatermarkReport,
        },
        task_executor::{JobInformation, TaskDeployment, TriggerCheckpoint},
    },
};

pub mod task_slot_table;
pub mod task_executor;

/// What a task tells its TaskExecutor, which passes it on to the JobMaster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::large_enum_variant, reason = "events of a task are few")]
pub enum TaskEvent {
    /// The task entered a state; after a terminal one its thread has ended.
    StateChanged(TaskExecutionStateUpdate),
    /// A reader asks for a split.
    RequestSplit(SplitRequest),
    /// A source that waits for others says how far it is.
    ReportWatermark(WatermarkReport),
    /// Its part of a checkpoint is stored.
    AcknowledgeCheckpoint(Box<AcknowledgeCheckpoint>),
    /// It gives a checkpoint up.
    DeclineCheckpoint(DeclineCheckpoint),
    /// It has processed all its input and waits for a checkpoint before it ends.
    EndOfDataReached(ExecutionAttemptId),
}

/// How a task reaches its TaskExecutor from its own thread: never waits.
pub type TaskEventSink = Arc<dyn Fn(TaskEvent) + Send + Sync>;

/// A task whose thread was started; lives as long as its TaskExecutor knows the attempt.
/// No method waits: each leaves a note in the task's mailbox.
pub trait RunningTask: Send {
    /// Tells the task to end as CANCELED; again does nothing.
    fn cancel(&self);

    /// Hands over the answer to a request for a split.
    fn split_assigned(&self, answer: SplitAnswer);

    /// Hands over how far a source's watermark may rise before it pauses.
    fn align_watermark(&self, max_allowed: MaxAllowedWatermark);

    /// Has the task take part in a checkpoint; only for tasks that get no barrier from others.
    fn trigger_checkpoint(&self, trigger: TriggerCheckpoint);

    /// A checkpoint is complete and stored.
    fn notify_checkpoint_complete(&self, checkpoint_id: CheckpointId);

    /// A checkpoint was given up.
    fn notify_checkpoint_aborted(&self, checkpoint_id: CheckpointId);

    /// Counters as they are now.
    fn metrics(&self) -> TaskMetrics;

    /// Tells the task to end as FAILED for a reason that lies outside of it.
    fn fail(&self, reason: &str);
}

/// Starts the thread of a task. Returns at once: whatever fails later arrives as a
/// [`TaskEvent`] at the sink that the starter was made with. An error says why no
/// thread could be started; no event follows then.
pub type StartTask =
    dyn Fn(Arc<JobInformation>, TaskDeployment) -> Result<Box<dyn RunningTask>, FailureCause> + Send + Sync;

/// How a TaskExecutor starts tasks, and lets go of what a job's tasks left.
pub struct TaskStarter {
    /// Starts a task.
    pub start: Box<StartTask>,
    /// Called when the TaskExecutor has neither a task of the job nor a connection to
    /// its JobMaster; again if both come back and go.
    pub job_left: Box<dyn Fn(JobId) + Send + Sync>,
}

/// Name of a task's thread and in messages: "Map -> Sink (3/8)#0".
pub fn task_name(vertex_name: &str, attempt: ExecutionAttemptId, parallelism: u32) -> String {
    let subtask = attempt.execution_vertex.subtask_index + 1;
    format!("{vertex_name} ({subtask}/{parallelism})#{}", attempt.attempt_number)
}
