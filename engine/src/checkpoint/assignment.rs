//! Deals the state of a checkpoint to the subtasks of a job, whose parallelism may be another.
//! Source: Flink's `StateAssignmentOperation`.

use std::collections::BTreeMap;

use super::{CheckpointMetadata, TaskRestore};
use crate::{
    base::{ids::JobVertexId, stream_element::SnapshotLocation},
    connector::{Committable, RestoredSource},
    graph::job_graph::JobVertex,
};

/// A checkpoint does not fit a job: one line that says what, where and what to do.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct AssignmentError(pub String);

/// A checkpoint, dealt to the parts of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobRestore {
    /// By vertex and subtask index; vertices none of whose operators had state are left out.
    pub tasks: BTreeMap<JobVertexId, Vec<Option<TaskRestore>>>,
    /// By node id of native sources.
    pub sources: BTreeMap<u32, RestoredSource>,
    /// By node id of native sinks: what the checkpoint commits.
    pub committables: BTreeMap<u32, Vec<Committable>>,
    /// Vertices whose derived number of key groups becomes that of the checkpoint.
    pub max_parallelisms: BTreeMap<JobVertexId, u32>,
}

/// Deals the state.
///
/// # Errors
/// Returns an error if state would be lost and that is not allowed, or key groups or types do not fit.
pub fn assign_state(
    _metadata: &CheckpointMetadata,
    _location: &SnapshotLocation,
    _vertices: &[JobVertex],
    _allow_non_restored_state: bool,
) -> Result<JobRestore, AssignmentError> {
    todo!("state helper")
}
