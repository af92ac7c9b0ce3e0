//! The store of checkpoints: files with checksums, metadata that is written last.

use std::io::{self, Write};

use bytes::Bytes;

use super::{CheckpointMetadata, StateFile};
use crate::base::stream_element::{CheckpointId, SnapshotLocation};

/// A checkpoint cannot be stored, read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointStorageError {
    /// The store refused something.
    #[error("could not {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what: location and path.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what was written.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// Location and path.
        path: String,
        /// Length, checksum or layout.
        problem: String,
    },
}

/// The directory of a job's checkpoints, or of one savepoint. All methods wait for the
/// store: they belong on threads that may wait.
#[derive(Clone, Debug)]
pub struct CheckpointStorage {
    location: SnapshotLocation,
}

impl CheckpointStorage {
    /// Opens a directory, which need not exist.
    ///
    /// # Errors
    /// Returns an error if the location is not one that can be used.
    pub fn open(location: SnapshotLocation) -> Result<Self, CheckpointStorageError> {
        Ok(Self { location })
    }

    /// Where it is.
    pub fn location(&self) -> &SnapshotLocation {
        &self.location
    }

    /// Writes a file of state. When this returns, it survives a crash.
    ///
    /// # Errors
    /// Returns an error if the store or `content` fails; the file is not there then.
    pub fn write(
        &self,
        _path: &str,
        _content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<StateFile, CheckpointStorageError> {
        todo!("state helper")
    }

    /// Reads a file of state and checks its length and checksum.
    ///
    /// # Errors
    /// Returns an error if it is not there, or is damaged.
    pub fn read(&self, _file: &StateFile) -> Result<Bytes, CheckpointStorageError> {
        todo!("state helper")
    }

    /// Stores the metadata of checkpoint `chk-ID`, or of the savepoint that the location
    /// is: the last of its files. Returns the number of bytes.
    ///
    /// # Errors
    /// Returns an error if the store fails; the checkpoint is not there then.
    pub fn store_metadata(&self, _metadata: &CheckpointMetadata) -> Result<u64, CheckpointStorageError> {
        todo!("state helper")
    }

    /// Reads metadata of checkpoint `chk-ID`, or, without an id, of the savepoint or
    /// checkpoint that the location is.
    ///
    /// # Errors
    /// Returns an error if it is not there, or is damaged.
    pub fn load_metadata(
        &self,
        _checkpoint: Option<CheckpointId>,
    ) -> Result<CheckpointMetadata, CheckpointStorageError> {
        todo!("state helper")
    }

    /// Checks all files that metadata refers to.
    ///
    /// # Errors
    /// Returns the first one that is missing or damaged.
    pub fn verify(&self, _metadata: &CheckpointMetadata) -> Result<(), CheckpointStorageError> {
        todo!("state helper")
    }

    /// Ids of the checkpoints whose metadata is there, ascending.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be listed.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointId>, CheckpointStorageError> {
        todo!("state helper")
    }

    /// Deletes the metadata of a checkpoint, so that it is none any more.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete_metadata(&self, _checkpoint: CheckpointId) -> Result<(), CheckpointStorageError> {
        todo!("state helper")
    }

    /// Deletes a file of state; it need not be there.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete(&self, _path: &str) -> Result<(), CheckpointStorageError> {
        todo!("state helper")
    }

    /// Deletes everything below the location.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete_all(&self) -> Result<(), CheckpointStorageError> {
        todo!("state helper")
    }
}
