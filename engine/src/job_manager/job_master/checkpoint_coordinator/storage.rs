//! What the coordinator has done by a thread that may wait: the JobMaster itself never waits
//! for the store of checkpoints while tasks run.

use std::{
    error::Error,
    sync::{Arc, mpsc},
    thread,
};

use crate::{
    base::stream_element::{CheckpointId, SnapshotLocation},
    checkpoint::{CheckpointMetadata, CheckpointStorage, CheckpointStorageError, SharedStateRegistry},
    protocol::job_master::{JobMasterMessage, StoreProblem},
};

/// Something that takes time.
#[derive(Clone, Debug, PartialEq)]
pub enum StorageTask {
    /// Stores metadata at the location; answered by [`JobMasterMessage::CheckpointStored`]. The number of a savepoint
    /// is first noted in the directory of the job's checkpoints.
    Store(Arc<CheckpointMetadata>, SnapshotLocation, Option<SnapshotLocation>),
    /// Deletes metadata, then files, of the job's checkpoints; answered by
    /// [`JobMasterMessage::CheckpointsDiscarded`].
    Discard {
        /// Directory of the job's checkpoints.
        location: SnapshotLocation,
        /// Whose metadata is deleted.
        checkpoints: Vec<CheckpointId>,
        /// Paths of files that nobody needs.
        files: Vec<String>,
    },
    /// Deletes what may be there of the metadata of a checkpoint that was given up when, or before, it was stored, and
    /// its files once that is gone; answered by [`JobMasterMessage::CheckpointRevoked`].
    Revoke {
        /// Directory of the job's checkpoints.
        location: SnapshotLocation,
        /// Whose metadata is deleted.
        id: CheckpointId,
        /// Paths of files that nobody else needs.
        files: Vec<String>,
    },
    /// Deletes a savepoint that was given up; answered by [`JobMasterMessage::CheckpointsDiscarded`].
    DeleteSavepoint(SnapshotLocation),
    /// Looks at all files; answered by [`JobMasterMessage::CheckpointVerified`].
    Verify(Arc<CheckpointMetadata>, SnapshotLocation),
}

impl From<CheckpointStorageError> for StoreProblem {
    fn from(error: CheckpointStorageError) -> Self {
        match error {
            CheckpointStorageError::Io { .. } => Self::Unavailable(in_a_line(error)),
            CheckpointStorageError::Version { .. } => Self::OtherVersion(in_a_line(error)),
            error => Self::Unusable(in_a_line(error)),
        }
    }
}

/// The store, as the coordinator uses it.
pub trait CheckpointStore: Send {
    /// Begins something that is answered by a message to the JobMaster; tasks are done in order.
    fn begin(&mut self, task: StorageTask);

    /// Ids of the checkpoints of a job, ascending. Waits for the store.
    ///
    /// # Errors
    /// Says why they cannot be listed.
    fn list(&self, location: &SnapshotLocation) -> Result<Vec<CheckpointId>, StoreProblem>;

    /// Number of the last savepoint of a job that takes checkpoints, 0 before the first. Waits for the store.
    ///
    /// # Errors
    /// Says why it cannot be read.
    fn last_savepoint(&self, location: &SnapshotLocation) -> Result<CheckpointId, StoreProblem>;

    /// Reads and checks a checkpoint, or, without an id, the savepoint that the location is. Waits for the store.
    ///
    /// # Errors
    /// Says what is missing or damaged, or that the store cannot be read.
    fn load(&self, location: &SnapshotLocation, id: Option<CheckpointId>) -> Result<CheckpointMetadata, StoreProblem>;

    /// Whether the job of the savepoint that the location is stopped with it. Waits for the store.
    ///
    /// # Errors
    /// Says why that cannot be read.
    fn is_stopped(&self, location: &SnapshotLocation) -> Result<bool, StoreProblem>;

    /// Paths of files of a job that no retained checkpoint refers to. Waits for the store.
    ///
    /// # Errors
    /// Says why they cannot be listed.
    fn unreferenced(
        &self,
        location: &SnapshotLocation,
        registry: &SharedStateRegistry,
    ) -> Result<Vec<String>, StoreProblem>;
}

/// Sends a message to the JobMaster from any thread. Waits while its queue is full.
pub type SendToItself = Arc<dyn Fn(JobMasterMessage) + Send + Sync>;

/// The store behind a thread, which is started with the first task and ends with its owner.
pub struct ThreadedStore {
    answer: SendToItself,
    tasks: Option<mpsc::Sender<StorageTask>>,
}

impl ThreadedStore {
    /// Answers go to `answer`.
    pub fn new(answer: SendToItself) -> Self {
        Self { answer, tasks: None }
    }

    fn start(&self) -> mpsc::Sender<StorageTask> {
        let (sender, tasks) = mpsc::channel::<StorageTask>();
        let answer = Arc::clone(&self.answer);
        let run = move || {
            for task in tasks {
                answer(perform(task));
            }
        };
        if let Err(error) = thread::Builder::new().name("checkpoints".to_owned()).spawn(run) {
            tracing::error!(%error, "the thread that stores checkpoints could not be started");
        }
        sender
    }
}

impl CheckpointStore for ThreadedStore {
    fn begin(&mut self, task: StorageTask) {
        let mut task = Some(task);
        let sender = self.tasks.take().unwrap_or_else(|| self.start());
        if let Some(mpsc::SendError(unsent)) = task.take().and_then(|task| sender.send(task).err()) {
            // No thread: done here, late rather than never.
            (self.answer)(perform(unsent));
        }
        self.tasks = Some(sender);
    }

    fn list(&self, location: &SnapshotLocation) -> Result<Vec<CheckpointId>, StoreProblem> {
        Ok(CheckpointStorage::open(location.clone())?.checkpoints()?)
    }

    fn last_savepoint(&self, location: &SnapshotLocation) -> Result<CheckpointId, StoreProblem> {
        Ok(CheckpointStorage::open(location.clone())?.last_savepoint()?)
    }

    fn load(&self, location: &SnapshotLocation, id: Option<CheckpointId>) -> Result<CheckpointMetadata, StoreProblem> {
        let storage = CheckpointStorage::open(location.clone())?;
        let metadata = storage.load_metadata(id)?;
        storage.verify(&metadata)?;
        Ok(metadata)
    }

    fn is_stopped(&self, location: &SnapshotLocation) -> Result<bool, StoreProblem> {
        Ok(CheckpointStorage::open(location.clone())?.is_stopped()?)
    }

    fn unreferenced(
        &self,
        location: &SnapshotLocation,
        registry: &SharedStateRegistry,
    ) -> Result<Vec<String>, StoreProblem> {
        Ok(CheckpointStorage::open(location.clone())?.unreferenced(registry)?)
    }
}

fn perform(task: StorageTask) -> JobMasterMessage {
    match task {
        StorageTask::Store(metadata, location, beside) => {
            let noted = beside.map(|beside| CheckpointStorage::open(beside)?.note_savepoint(metadata.checkpoint_id));
            if let Some(Err(error)) = noted {
                // No reason to refuse the savepoint: it may be what the user saves from a disk that is full.
                let id = metadata.checkpoint_id;
                tracing::warn!("the number of savepoint {id} could not be noted: {}", in_a_line(error));
            }
            let stored = CheckpointStorage::open(location).and_then(|storage| storage.store_metadata(&metadata));
            JobMasterMessage::CheckpointStored(metadata.checkpoint_id, stored.map(drop).map_err(in_a_line))
        }
        StorageTask::Discard { location, checkpoints, files } => {
            let discarded = CheckpointStorage::open(location).map(|storage| {
                let metadata = checkpoints.into_iter().map(|id| storage.delete_metadata(id));
                let files = files.iter().map(|file| storage.delete(file));
                metadata.chain(files).filter_map(Result::err).for_each(warn_of_leftover);
            });
            discarded.unwrap_or_else(warn_of_leftover);
            JobMasterMessage::CheckpointsDiscarded
        }
        StorageTask::Revoke { location, id, files } => {
            let deleted = CheckpointStorage::open(location).and_then(|storage| {
                storage.delete_metadata(id)?;
                files.iter().filter_map(|file| storage.delete(file).err()).for_each(warn_of_leftover);
                Ok(())
            });
            JobMasterMessage::CheckpointRevoked(id, deleted.map_err(in_a_line))
        }
        StorageTask::DeleteSavepoint(location) => {
            let deleted = CheckpointStorage::open(location).and_then(|storage| storage.delete_all());
            deleted.unwrap_or_else(warn_of_leftover);
            JobMasterMessage::CheckpointsDiscarded
        }
        StorageTask::Verify(metadata, location) => {
            let verified = CheckpointStorage::open(location).and_then(|storage| storage.verify(&metadata));
            JobMasterMessage::CheckpointVerified(metadata.checkpoint_id, verified.map_err(StoreProblem::from))
        }
    }
}

fn warn_of_leftover(error: CheckpointStorageError) {
    tracing::warn!("files of a checkpoint are left behind: {}", in_a_line(error));
}

/// An error with its causes in one line.
#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn in_a_line(error: CheckpointStorageError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{
        KeyedStatePart, StateData,
        tests::{metadata_of, part},
    };

    /// Whoever came next would find a checkpoint without its state.
    #[test]
    fn files_of_a_checkpoint_that_was_given_up_go_behind_its_metadata() {
        let directory = tempfile::tempdir().unwrap();
        let location = SnapshotLocation(directory.path().to_str().unwrap().to_owned());
        let storage = CheckpointStorage::open(location.clone()).unwrap();
        storage.write("shared/1-0", &mut |out| out.write_all(b"state")).unwrap();
        let revoke = || {
            let files = vec!["shared/1-0".to_owned()];
            match perform(StorageTask::Revoke { location: location.clone(), id: 1, files }) {
                JobMasterMessage::CheckpointRevoked(1, result) => {
                    (result, directory.path().join("shared/1-0").exists())
                }
                other => panic!("{other:?}"),
            }
        };
        // A link to itself: the operating system refuses to say what it is.
        std::fs::create_dir(directory.path().join("chk-1")).unwrap();
        let metadata = directory.path().join("chk-1/_metadata");
        std::os::unix::fs::symlink(&metadata, &metadata).unwrap();
        assert!(matches!(revoke(), (Err(_), true)));
        std::fs::remove_dir_all(directory.path().join("chk-1")).unwrap();
        assert_eq!(revoke(), (Ok(()), false));
    }

    #[test]
    fn files_that_cannot_be_read_are_told_from_those_that_are_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let location = SnapshotLocation(directory.path().to_str().unwrap().to_owned());
        let storage = CheckpointStorage::open(location.clone()).unwrap();
        let file = storage.write("shared/1-0", &mut |out| out.write_all(b"state")).unwrap();
        let data = StateData::File(file);
        let metadata = metadata_of(1, vec![KeyedStatePart { data, ..part(1, "") }]);
        let verify = || match perform(StorageTask::Verify(Arc::new(metadata.clone()), location.clone())) {
            JobMasterMessage::CheckpointVerified(1, result) => result,
            other => panic!("{other:?}"),
        };
        assert_eq!(verify(), Ok(()));
        let path = directory.path().join("shared/1-0");
        std::fs::write(&path, "stat").unwrap();
        assert!(matches!(verify(), Err(StoreProblem::Unusable(problem)) if problem.contains("is damaged")));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(verify(), Err(StoreProblem::Unusable(problem)) if problem.contains("is missing")));
        // A link to itself: the operating system refuses, even to its owner.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(matches!(verify(), Err(StoreProblem::Unavailable(problem)) if problem.contains("symbolic links")));
    }
}
