//! Which files the retained checkpoints share, so that a file goes when none refers to it.
//!
//! A checkpoint that was under way when the last reference went may have been built upon an
//! older one: a file waits until one has completed that was begun after that.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    base::stream_element::CheckpointId,
    checkpoint::{CheckpointMetadata, StateData, TaskStateSnapshot},
};

/// References of retained checkpoints to files, by path.
#[derive(Debug, Default)]
pub struct SharedStateRegistry {
    retained: BTreeMap<CheckpointId, BTreeSet<String>>,
    references: BTreeMap<String, usize>,
    /// Files without references, each with the last checkpoint that may still refer to it.
    waiting: BTreeMap<String, CheckpointId>,
}

impl SharedStateRegistry {
    /// A checkpoint is retained; returns the files that can go now.
    #[must_use]
    pub fn register(&mut self, metadata: &CheckpointMetadata) -> Vec<String> {
        let id = metadata.checkpoint_id;
        let files: BTreeSet<String> = metadata.files().map(|file| file.path.clone()).collect();
        for file in &files {
            self.waiting.remove(file);
            *self.references.entry(file.clone()).or_default() += 1;
        }
        self.retained.insert(id, files);
        self.waiting.extract_if(.., |_, last| *last < id).map(|(file, _)| file).collect()
    }

    /// A checkpoint is not retained any more; `last_drawn` is the last one that was begun.
    pub fn release(&mut self, id: CheckpointId, last_drawn: CheckpointId) {
        for file in self.retained.remove(&id).into_iter().flatten() {
            let count = self.references.get_mut(&file).expect("a retained checkpoint refers to it");
            *count -= 1;
            if *count == 0 {
                self.references.remove(&file);
                self.waiting.insert(file, last_drawn);
            }
        }
    }

    /// The files that a task wrote for a checkpoint which was given up.
    #[must_use]
    pub fn discard(&self, id: CheckpointId, snapshot: &TaskStateSnapshot) -> Vec<String> {
        let parts = snapshot.operators.values().flat_map(|state| &state.keyed).flat_map(|keyed| &keyed.parts);
        let own = parts.filter(|part| part.checkpoint_id == id).filter_map(|part| match &part.data {
            StateData::File(file) => Some(&file.path),
            StateData::Inline(_) => None,
        });
        own.filter(|file| !self.references.contains_key(*file) && !self.waiting.contains_key(*file)).cloned().collect()
    }
}
