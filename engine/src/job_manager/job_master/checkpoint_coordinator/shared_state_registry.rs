//! Which files the retained checkpoints refer to, so that a file goes when none does.

use std::collections::{BTreeMap, BTreeSet};

use crate::{base::stream_element::CheckpointId, checkpoint::StateFile};

/// References of retained checkpoints to files.
#[derive(Debug, Default)]
pub struct SharedStateRegistry {
    files: BTreeMap<CheckpointId, BTreeSet<StateFile>>,
    references: BTreeMap<StateFile, u32>,
    /// No retained checkpoint refers to them, but a task may still build on them.
    released: BTreeSet<StateFile>,
}

impl SharedStateRegistry {
    /// A checkpoint is kept that refers to the files.
    pub fn register(&mut self, checkpoint: CheckpointId, files: impl IntoIterator<Item = StateFile>) {
        let files: BTreeSet<StateFile> = files.into_iter().collect();
        for file in &files {
            self.released.remove(file);
            *self.references.entry(file.clone()).or_default() += 1;
        }
        self.files.insert(checkpoint, files);
    }

    /// A checkpoint is kept no longer.
    pub fn unregister(&mut self, checkpoint: CheckpointId) {
        for file in self.files.remove(&checkpoint).unwrap_or_default() {
            let count = self.references.get_mut(&file).expect("registered with its checkpoint");
            *count -= 1;
            if *count == 0 {
                self.references.remove(&file);
                self.released.insert(file);
            }
        }
    }

    /// A checkpoint completed after the last [`SharedStateRegistry::unregister`]: returns the files to delete.
    pub fn checkpoint_completed(&mut self) -> Vec<StateFile> {
        std::mem::take(&mut self.released).into_iter().collect()
    }
}
