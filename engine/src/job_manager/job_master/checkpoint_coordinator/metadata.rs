//! Puts what the tasks acknowledged together to the metadata of a checkpoint: by operator, not by task.

use std::collections::{BTreeMap, BTreeSet};

use super::super::operator_coordinators::EndStates;
use crate::{
    base::{
        clock::Timestamp,
        ids::ExecutionVertexId,
        stream_element::{CheckpointId, SnapshotKind},
    },
    checkpoint::{CheckpointMetadata, FinishedState, OperatorState, TaskStateSnapshot},
    graph::job_graph::{ChainedOperator, JobGraph, JobVertex},
};

/// What the parts of a job had to say.
pub struct Parts<'a> {
    /// Of the tasks that took part.
    pub tasks: &'a BTreeMap<ExecutionVertexId, TaskStateSnapshot>,
    /// Tasks that had finished before.
    pub finished: &'a BTreeSet<ExecutionVertexId>,
    /// What those left behind.
    pub end_states: &'a EndStates,
    /// State of the enumerators, by node.
    pub coordinators: &'a BTreeMap<u32, Vec<u8>>,
}

/// Makes the metadata.
pub fn assemble(
    job: &JobGraph,
    id: CheckpointId,
    triggered: Timestamp,
    kind: SnapshotKind,
    parts: &Parts<'_>,
) -> CheckpointMetadata {
    let operators = job.vertices.iter().flat_map(|vertex| {
        let states = vertex.operators.iter().map(|operator| operator_state(vertex, operator, parts));
        states.map(|state| (state.operator_id, state))
    });
    CheckpointMetadata {
        job: job.job_id,
        job_name: job.name.clone(),
        plugin: job.program.plugin,
        checkpoint_id: id,
        triggered,
        kind,
        operators: operators.collect(),
    }
}

fn operator_state(vertex: &JobVertex, operator: &ChainedOperator, parts: &Parts<'_>) -> OperatorState {
    let node = &operator.node;
    let mut subtasks = BTreeMap::new();
    let mut finished = 0;
    for subtask_index in 0..vertex.parallelism {
        let task = ExecutionVertexId { vertex: vertex.id, subtask_index };
        let snapshot = parts.tasks.get(&task);
        finished += u32::from(parts.finished.contains(&task) || snapshot.is_some_and(|snapshot| snapshot.is_finished));
        if let Some(state) = snapshot.and_then(|snapshot| snapshot.operators.get(&node.id)) {
            subtasks.insert(subtask_index, state.clone());
        }
        if let Some(state) = parts.end_states.get(&(task, node.id)) {
            subtasks.insert(subtask_index, state.clone());
        }
    }
    OperatorState {
        operator_id: operator.operator_id,
        uid: node.uid.clone(),
        name: node.name.clone(),
        parallelism: vertex.parallelism,
        max_parallelism: vertex.max_parallelism,
        subtasks,
        coordinator: parts.coordinators.get(&node.id).cloned(),
        finished: match finished {
            0 => FinishedState::None,
            all if all == vertex.parallelism => FinishedState::Fully,
            _ => FinishedState::Partly,
        },
    }
}
