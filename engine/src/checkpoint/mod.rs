//! What a checkpoint is made of, and how it is stored.
//!
//! A task answers a checkpoint with a [`TaskStateSnapshot`]: per operator, where its
//! sources stand, what its sinks have ready to commit, its list states, and which files
//! hold its keyed state. The JobMaster puts the snapshots of all tasks together
//! ([`CheckpointMetadata`]), and that is stored last. Knows neither tasks nor masters.

mod assignment;
mod compatibility;
mod evolution;
mod export;
mod metadata_format;
mod start;
mod storage;
mod shared_state_registry;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

pub use self::{
    assignment::{AssignmentError, JobRestore, assign_state},
    compatibility::{Compatibility, ConnectorSchema, Fate, OperatorSchema, ProgramSchema, StateFate},
    evolution::{Evolution, StateConversion, conversions, convert_section, evolution},
    export::{Column, ExportError, ExportedEntry, Namespace, StateExport},
    shared_state_registry::SharedStateRegistry,
    start::check_start,
    storage::{CheckpointStorage, CheckpointStorageError},
};

use serde::{Deserialize, Serialize};

use crate::{
    base::{
        clock::Timestamp,
        ids::{BlobDigest, JobId, OperatorId},
        stream_element::{CheckpointId, SnapshotKind, SnapshotLocation},
    },
    connector::{Committable, SourceSplit},
    graph::{job_graph::JobVertex, stream_graph::StateDeclaration},
};

/// A file of a checkpoint.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct StateFile {
    /// Path below the checkpoint directory of the job, or below the savepoint, with "/"
    /// between its parts.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 (IEEE) of its content.
    pub crc32: u32,
}

/// Bytes of state: in the metadata itself if they are few, else in a file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StateData {
    /// Here.
    Inline(Vec<u8>),
    /// There.
    File(StateFile),
}

impl StateData {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::File(file) => file.bytes,
        }
    }
}

/// The part of a key group in the data of a snapshot.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KeyGroupSection {
    /// The key group.
    pub key_group: u32,
    /// Where its part begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Keyed state and timers of key groups: all of it, or what changed since the part before.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KeyedStatePart {
    /// The checkpoint that wrote it.
    pub checkpoint_id: CheckpointId,
    /// The bytes, in the layout of [`crate::state`].
    pub data: StateData,
    /// Where each key group stands in them; key groups without content are left out.
    pub sections: Vec<KeyGroupSection>,
}

/// Keyed state and timers of one subtask of an operator.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KeyedStateHandle {
    /// First and last key group, both included.
    pub key_groups: (u32, u32),
    /// Type of the key.
    pub key_type: String,
    /// The states, in the order by which the parts name them; those that are not kept by key too.
    pub states: Vec<StateDeclaration>,
    /// Read one after the other: the first holds all, each further one what changed.
    pub parts: Vec<KeyedStatePart>,
}

/// How the elements of a list state are dealt when the parallelism changes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DistributionMode {
    /// Each element goes to one subtask.
    Split,
    /// All elements go to every subtask.
    Union,
    /// Every subtask has the same elements.
    Broadcast,
}

/// One list state of one subtask of an operator.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OperatorListState {
    /// What the program declared.
    pub declaration: StateDeclaration,
    /// How elements are dealt.
    pub mode: DistributionMode,
    /// Encoded elements.
    pub elements: Vec<Vec<u8>>,
}

/// All state of one subtask of an operator.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct OperatorSubtaskState {
    /// Keyed state and timers.
    pub keyed: Option<KeyedStateHandle>,
    /// List states.
    pub lists: Vec<OperatorListState>,
    /// Of a native source: what is left to read of the splits that it was dealt.
    pub splits: Vec<SourceSplit>,
    /// Of a native sink: output that is complete and becomes visible with this checkpoint.
    pub committables: Vec<Committable>,
    /// The operator's watermark, milliseconds since the epoch; none before the first.
    pub watermark: Option<i64>,
}

impl OperatorSubtaskState {
    /// True if there is nothing to restore.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes that the snapshot holds, and those that were written for it alone.
    pub fn sizes(&self, checkpoint_id: CheckpointId) -> StateSizes {
        let mut sizes = StateSizes::default();
        for part in self.keyed.iter().flat_map(|keyed| &keyed.parts) {
            sizes.full += part.data.bytes();
            if part.checkpoint_id == checkpoint_id {
                sizes.written += part.data.bytes();
            }
        }
        let small: usize = self.lists.iter().flat_map(|list| &list.elements).map(Vec::len).sum::<usize>()
            + self.splits.iter().map(|split| split.0.len()).sum::<usize>()
            + self.committables.iter().map(|committable| committable.0.len()).sum::<usize>();
        sizes.full += small as u64;
        sizes.written += small as u64;
        sizes
    }
}

/// How large state is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateSizes {
    /// Bytes of all that the checkpoint refers to.
    pub full: u64,
    /// Bytes that were written for it.
    pub written: u64,
}

/// State of all operators of one task, by node id; operators without state are left out.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskStateSnapshot {
    /// By node id.
    pub operators: BTreeMap<u32, OperatorSubtaskState>,
    /// True if the task had processed all its input: restored, it processes none.
    pub is_finished: bool,
}

impl TaskStateSnapshot {
    /// Sums of all operators.
    pub fn sizes(&self, checkpoint_id: CheckpointId) -> StateSizes {
        self.operators.values().map(|state| state.sizes(checkpoint_id)).fold(StateSizes::default(), |sum, sizes| {
            StateSizes { full: sum.full + sizes.full, written: sum.written + sizes.written }
        })
    }
}

/// How far the subtasks of an operator had come.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum FinishedState {
    /// No subtask had finished.
    #[default]
    None,
    /// Some had.
    Partly,
    /// All had.
    Fully,
}

/// State of all subtasks of an operator.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OperatorState {
    /// Under which it is found again.
    pub operator_id: OperatorId,
    /// The program's uid, for people.
    pub uid: Option<String>,
    /// The operator's name, for people.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// By subtask index; those without state are left out.
    pub subtasks: BTreeMap<u32, OperatorSubtaskState>,
    /// Of a source: state of its enumerator.
    pub coordinator: Option<Vec<u8>>,
    /// How far its subtasks had come.
    pub finished: FinishedState,
}

impl OperatorState {
    /// True if nothing would be lost without it.
    pub fn is_empty(&self) -> bool {
        self.coordinator.is_none() && self.subtasks.values().all(OperatorSubtaskState::is_empty)
    }
}

/// A complete checkpoint or savepoint: what is stored last, in its `_metadata`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointMetadata {
    /// The job that took it.
    pub job: JobId,
    /// That job's name, for people.
    pub job_name: String,
    /// The plugin that ran.
    pub plugin: BlobDigest,
    /// Its number.
    pub checkpoint_id: CheckpointId,
    /// When it was triggered.
    pub triggered: Timestamp,
    /// Checkpoint or savepoint.
    pub kind: SnapshotKind,
    /// By operator id.
    pub operators: BTreeMap<OperatorId, OperatorState>,
}

impl CheckpointMetadata {
    /// By node: what sinks of the job that took it had ready.
    pub fn committables(&self, vertices: &[JobVertex]) -> BTreeMap<u32, Vec<Committable>> {
        let operators = vertices.iter().flat_map(|vertex| &vertex.operators);
        let known =
            operators.filter_map(|operator| Some((operator.node.id, self.operators.get(&operator.operator_id)?)));
        let of = |state: &OperatorState| {
            state.subtasks.values().flat_map(|subtask| subtask.committables.iter().cloned()).collect::<Vec<_>>()
        };
        known.map(|(node, state)| (node, of(state))).filter(|(_, committables)| !committables.is_empty()).collect()
    }

    /// Every file that it refers to; one may stand there several times.
    pub fn files(&self) -> impl Iterator<Item = &StateFile> {
        let subtasks = self.operators.values().flat_map(|operator| operator.subtasks.values());
        let parts = subtasks.flat_map(|subtask| &subtask.keyed).flat_map(|keyed| &keyed.parts);
        parts.filter_map(|part| match &part.data {
            StateData::File(file) => Some(file),
            StateData::Inline(_) => None,
        })
    }
}

/// What a task is given to go on from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskRestore {
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Where its files are.
    pub location: SnapshotLocation,
    /// By node id: all handles whose key groups meet this subtask's, and the list states that
    /// it was dealt. Splits and committables are not in here: the JobMaster has taken them.
    pub operators: BTreeMap<u32, Vec<OperatorSubtaskState>>,
    /// True if the vertex had finished: the task processes nothing.
    pub is_finished: bool,
}
