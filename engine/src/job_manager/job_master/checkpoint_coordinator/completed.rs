//! The complete checkpoints that are kept. Source: Flink's `DefaultCompletedCheckpointStore`.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    base::stream_element::{CheckpointId, SnapshotLocation},
    checkpoint::{CheckpointMetadata, SharedStateRegistry, TaskStateSnapshot},
};

/// A checkpoint or savepoint that can be restored.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedCheckpoint {
    /// What it holds.
    pub metadata: Arc<CheckpointMetadata>,
    /// Where its files are.
    pub location: SnapshotLocation,
}

impl CompletedCheckpoint {
    /// Its number.
    pub fn id(&self) -> CheckpointId {
        self.metadata.checkpoint_id
    }

    /// Where its metadata is, for people.
    pub fn external_path(&self) -> String {
        let is_savepoint = self.metadata.kind.is_savepoint();
        self.location.path_of((!is_savepoint).then(|| self.id()))
    }
}

/// What is not needed any more.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Discarded {
    /// Whose metadata can go.
    pub checkpoints: Vec<CheckpointId>,
    /// Paths of files that can go.
    pub files: Vec<String>,
}

/// The store: own checkpoints, and before there is one, what the user had the job start from.
#[derive(Debug)]
pub struct CompletedCheckpoints {
    retained_max: usize,
    /// The oldest first.
    retained: VecDeque<CompletedCheckpoint>,
    /// Owned by the user; never deleted.
    start: Option<CompletedCheckpoint>,
    registry: SharedStateRegistry,
}

impl CompletedCheckpoints {
    /// Keeps so many.
    pub fn new(retained_max: usize) -> Self {
        Self { retained_max, retained: VecDeque::new(), start: None, registry: SharedStateRegistry::default() }
    }

    /// Takes over what a former JobMaster of the job stored; called in the order of the ids. Returns
    /// files that can go.
    pub fn recover(&mut self, checkpoint: CompletedCheckpoint) -> Vec<String> {
        let files = self.registry.register(&checkpoint.metadata);
        self.retained.push_back(checkpoint);
        files
    }

    /// Paths of the files that a task wrote for a checkpoint which was given up.
    pub fn files_of_aborted(&self, id: CheckpointId, snapshot: &TaskStateSnapshot) -> Vec<String> {
        self.registry.discard(id, snapshot)
    }

    /// Notes what the user had the job start from.
    pub fn set_start(&mut self, checkpoint: CompletedCheckpoint) {
        self.start = Some(checkpoint);
    }

    /// Adds a checkpoint; those that are too many go. `last_drawn` is the last one that was begun.
    pub fn add(&mut self, checkpoint: CompletedCheckpoint, last_drawn: CheckpointId) -> Discarded {
        assert!(self.retained.back().is_none_or(|last| last.id() < checkpoint.id()), "ids strictly increase");
        self.start = None;
        let files = self.recover(checkpoint);
        let mut checkpoints = Vec::new();
        while self.retained_max < self.retained.len() {
            let Some(subsumed) = self.retained.pop_front() else { break };
            self.registry.release(subsumed.id(), last_drawn);
            checkpoints.push(subsumed.id());
        }
        Discarded { checkpoints, files }
    }

    /// The one to go on from.
    pub fn latest(&self) -> Option<&CompletedCheckpoint> {
        self.retained.back().or(self.start.as_ref())
    }

    /// Which files they refer to.
    pub fn registry(&self) -> &SharedStateRegistry {
        &self.registry
    }

    /// Own checkpoints, the oldest first.
    pub fn retained(&self) -> impl DoubleEndedIterator<Item = &CompletedCheckpoint> {
        self.retained.iter()
    }

    /// Passes over a checkpoint that turned out to be damaged; files that no other refers to go with the next one.
    pub fn remove_damaged(&mut self, id: CheckpointId, last_drawn: CheckpointId) {
        self.retained.retain(|checkpoint| checkpoint.id() != id);
        self.start.take_if(|checkpoint| checkpoint.id() == id);
        self.registry.release(id, last_drawn);
    }
}
