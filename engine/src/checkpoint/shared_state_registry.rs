//! Which files retained checkpoints share, and when one may be deleted.
//!
//! A file is deleted if no retained checkpoint refers to it, and none can any more: a
//! task builds upon the last checkpoint that it was told is complete, and one that was
//! under way when the last reference went may have been built upon an older one. So a
//! file waits until a checkpoint has completed that was triggered after that.
//! Source: Flink's `SharedStateRegistryImpl`.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckpointMetadata, StateData, TaskStateSnapshot};
use crate::base::stream_element::CheckpointId;

/// See the module. Paths are those below the directory of a job's checkpoints.
#[derive(Clone, Debug, Default)]
pub struct SharedStateRegistry {
    retained: BTreeMap<CheckpointId, BTreeSet<String>>,
    /// Number of retained checkpoints that refer to a file.
    references: BTreeMap<String, usize>,
    /// Files without references, each with the last checkpoint that may still refer to it.
    waiting: BTreeMap<String, CheckpointId>,
}

impl SharedStateRegistry {
    /// A checkpoint has completed, or was found when the job began, and is retained. Returns
    /// the files that may be deleted now.
    #[must_use]
    pub fn register(&mut self, metadata: &CheckpointMetadata) -> Vec<String> {
        let id = metadata.checkpoint_id;
        let files: BTreeSet<_> = metadata.files().map(|file| file.path.clone()).collect();
        for file in &files {
            self.waiting.remove(file);
            *self.references.entry(file.clone()).or_default() += 1;
        }
        let before = self.retained.insert(id, files);
        assert!(before.is_none(), "checkpoint {id} completes once");
        self.waiting.extract_if(.., |_, last| *last < id).map(|(file, _)| file).collect()
    }

    /// A checkpoint is not retained any more: its metadata is deleted. `last_drawn` is the
    /// last checkpoint that was triggered.
    pub fn release(&mut self, checkpoint_id: CheckpointId, last_drawn: CheckpointId) {
        for file in self.retained.remove(&checkpoint_id).into_iter().flatten() {
            let count = self.references.get_mut(&file).expect("a retained checkpoint refers to it");
            *count -= 1;
            if *count == 0 {
                self.references.remove(&file);
                self.waiting.insert(file, last_drawn);
            }
        }
    }

    /// The files that a task wrote for a checkpoint which was given up, or acknowledged
    /// after that: they may be deleted now.
    #[must_use]
    pub fn discard(&self, checkpoint_id: CheckpointId, snapshot: &TaskStateSnapshot) -> Vec<String> {
        let parts = snapshot.operators.values().flat_map(|state| &state.keyed).flat_map(|keyed| &keyed.parts);
        let own = parts.filter(|part| part.checkpoint_id == checkpoint_id).filter_map(|part| match &part.data {
            StateData::File(file) => Some(&file.path),
            StateData::Inline(_) => None,
        });
        // An acknowledgement may come twice.
        own.filter(|file| !self.references.contains_key(*file) && !self.waiting.contains_key(*file)).cloned().collect()
    }

    /// No task runs any more: all files that no retained checkpoint refers to.
    #[must_use]
    pub fn take_unreferenced(&mut self) -> Vec<String> {
        std::mem::take(&mut self.waiting).into_keys().collect()
    }

    /// True if a retained checkpoint refers to the file.
    pub fn is_referenced(&self, path: &str) -> bool {
        self.references.contains_key(path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::tests::{metadata_of, part};

    /// A task that holds on to the checkpoint it was last told is complete.
    #[derive(Default)]
    struct Job {
        registry: SharedStateRegistry,
        /// Metadata by checkpoint, of the retained ones.
        retained: BTreeMap<CheckpointId, CheckpointMetadata>,
        /// What the task builds upon, and checkpoints that it has answered but that are not complete.
        confirmed: Vec<(CheckpointId, String)>,
        pending: BTreeMap<CheckpointId, Vec<(CheckpointId, String)>>,
        /// What was confirmed, with the last checkpoint that was triggered then.
        notices: Vec<(CheckpointId, Vec<(CheckpointId, String)>)>,
        last_drawn: CheckpointId,
        existing: BTreeSet<String>,
    }

    impl Job {
        fn trigger(&mut self, is_full: bool) {
            // A notice may come behind the next barrier, but not behind the one after that.
            while self.notices.first().is_some_and(|(drawn, _)| *drawn < self.last_drawn) {
                self.notice();
            }
            self.last_drawn += 1;
            let mut parts = if is_full { Vec::new() } else { self.confirmed.clone() };
            let file = format!("shared/{}", self.last_drawn);
            self.existing.insert(file.clone());
            parts.push((self.last_drawn, file));
            self.pending.insert(self.last_drawn, parts);
        }

        fn notice(&mut self) {
            if !self.notices.is_empty() {
                self.confirmed = self.notices.remove(0).1;
            }
        }

        fn complete(&mut self, id: CheckpointId, kept: usize) {
            let later = self.pending.split_off(&(id + 1));
            let parts = self.pending.remove(&id).unwrap();
            let aborted = std::mem::replace(&mut self.pending, later);
            for (id, parts) in aborted {
                let snapshot = snapshot(&parts);
                for file in self.registry.discard(id, &snapshot) {
                    assert!(self.existing.remove(&file));
                }
            }
            let metadata = metadata_of(id, parts.iter().map(|(id, file)| part(*id, file)).collect());
            let deleted = self.registry.register(&metadata);
            self.delete(deleted);
            self.retained.insert(id, metadata);
            while kept < self.retained.len() {
                let (subsumed, _) = self.retained.pop_first().unwrap();
                self.registry.release(subsumed, self.last_drawn);
            }
            self.notices.push((self.last_drawn, parts));
        }

        fn delete(&mut self, files: Vec<String>) {
            for file in files {
                assert!(self.existing.remove(&file), "{file} is deleted once");
            }
        }

        fn check(&self) {
            for file in self.retained.values().flat_map(|metadata| metadata.files()) {
                assert!(self.existing.contains(&file.path), "{} is gone", file.path);
            }
        }
    }

    fn snapshot(parts: &[(CheckpointId, String)]) -> TaskStateSnapshot {
        let metadata = metadata_of(1, parts.iter().map(|(id, file)| part(*id, file)).collect());
        let state = metadata.operators.values().next().unwrap().subtasks[&0].clone();
        TaskStateSnapshot { operators: BTreeMap::from([(1, state)]), is_finished: false }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Up to three checkpoints at once, notices that come late, one to three retained.
        #[test]
        fn what_is_retained_is_never_deleted_and_all_else_is(
            steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>()), 1..80), kept in 1_usize..4,
        ) {
            let mut job = Job::default();
            for (act, which) in steps {
                match act {
                    0..3 if job.pending.len() < 3 => job.trigger(act == 0),
                    3..5 if !job.pending.is_empty() => {
                        let id = *which.get(&job.pending.keys().copied().collect::<Vec<_>>());
                        job.complete(id, kept);
                    }
                    5 => job.notice(),
                    6 => {
                        if let Some((id, parts)) = job.pending.pop_last() {
                            let files = job.registry.discard(id, &snapshot(&parts));
                            prop_assert_eq!(files.len(), 1);
                            job.delete(files);
                        }
                    }
                    _ => {}
                }
                job.check();
            }
            // A few full ones without faults: nothing but what they need is left.
            for _ in 0..5 {
                job.trigger(true);
                let id = job.last_drawn;
                job.complete(id, 1);
                job.notice();
            }
            job.check();
            let last_two = [job.last_drawn - 1, job.last_drawn].map(|id| format!("shared/{id}"));
            prop_assert_eq!(&job.existing, &BTreeSet::from(last_two));
            let unreferenced = job.registry.take_unreferenced();
            job.delete(unreferenced);
            prop_assert_eq!(job.existing.len(), 1);
        }
    }
}
