//! Runs tasks: the TaskExecutor with its slots, and one OS thread per task.

pub mod network;
pub mod operator;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    base::ids::ExecutionAttemptId,
    protocol::job_master::{SplitRequest, TaskExecutionStateUpdate},
};

/// What a task tells its TaskExecutor, which passes it on to the JobMaster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum TaskEvent {
    /// The task entered a state; after a terminal one its thread has ended.
    StateChanged(TaskExecutionStateUpdate),
    /// A reader asks for a split.
    RequestSplit(SplitRequest),
}

/// How a task reaches its TaskExecutor from its own thread: never waits.
pub type TaskEventSink = Arc<dyn Fn(TaskEvent) + Send + Sync>;

/// Name of a task's thread and in messages: "Map -> Sink (3/8)#0".
pub fn task_name(vertex_name: &str, attempt: ExecutionAttemptId, parallelism: u32) -> String {
    let subtask = attempt.execution_vertex.subtask_index + 1;
    format!("{vertex_name} ({subtask}/{parallelism})#{}", attempt.attempt_number)
}
