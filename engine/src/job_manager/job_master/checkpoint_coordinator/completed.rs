//! The complete checkpoints that are kept. Source: Flink's `DefaultCompletedCheckpointStore`.

use std::{collections::VecDeque, sync::Arc};

use super::shared_state_registry::SharedStateRegistry;
use crate::{
    base::stream_element::{CheckpointId, SnapshotLocation},
    checkpoint::{CheckpointMetadata, StateFile},
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
    /// Files that can go.
    pub files: Vec<StateFile>,
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

    /// Takes over what a former JobMaster of the job stored; called in the order of the ids.
    pub fn recover(&mut self, checkpoint: CompletedCheckpoint) {
        self.registry.register(checkpoint.id(), checkpoint.metadata.files().cloned());
        self.retained.push_back(checkpoint);
    }

    /// Notes what the user had the job start from.
    pub fn set_start(&mut self, checkpoint: CompletedCheckpoint) {
        self.start = Some(checkpoint);
    }

    /// Adds a checkpoint; those that are too many go.
    pub fn add(&mut self, checkpoint: CompletedCheckpoint) -> Discarded {
        assert!(self.retained.back().is_none_or(|last| last.id() < checkpoint.id()), "ids strictly increase");
        self.start = None;
        self.recover(checkpoint);
        // What was let go before this one completed is not built upon any more.
        let files = self.registry.checkpoint_completed();
        let mut checkpoints = Vec::new();
        while self.retained_max < self.retained.len() {
            let Some(subsumed) = self.retained.pop_front() else { break };
            self.registry.unregister(subsumed.id());
            checkpoints.push(subsumed.id());
        }
        Discarded { checkpoints, files }
    }

    /// The one to go on from.
    pub fn latest(&self) -> Option<&CompletedCheckpoint> {
        self.retained.back().or(self.start.as_ref())
    }

    /// Own checkpoints, the oldest first.
    pub fn retained(&self) -> impl DoubleEndedIterator<Item = &CompletedCheckpoint> {
        self.retained.iter()
    }

    /// Passes over a checkpoint that turned out to be damaged; its files are left.
    pub fn remove_damaged(&mut self, id: CheckpointId) {
        self.retained.retain(|checkpoint| checkpoint.id() != id);
        self.start.take_if(|checkpoint| checkpoint.id() == id);
        self.registry.unregister(id);
    }
}
