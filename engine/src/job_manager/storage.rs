//! Files that are there whole or not at all, and the directory that holds them.
//!
//! Every file is written under a temporary name, flushed to disk and renamed, and then
//! its directory is flushed. A [`StorageDir`] is locked as long as it is open: two
//! processes that shared one would remove each other's files.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::{base::failpoint, failpoint};

const LOCK_FILE: &str = "lock";
const TEMPORARY_PREFIX: &str = ".tmp-";

/// Whether files must survive the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// They are flushed to disk before they count as written.
    Synced,
    /// They are removed with the process, and not flushed.
    Temporary,
}

/// A file or directory of the cluster could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused something.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process has the directory.
    #[error("{} is in use by another process: end it, or choose another directory", .0.display())]
    Locked(PathBuf),
}

/// A directory for what a cluster keeps; locked until it is dropped.
#[derive(Debug)]
pub struct StorageDir {
    path: PathBuf,
    durability: Durability,
    /// Held for its lock.
    _lock: File,
    /// Removes the directory when dropped.
    _temporary: Option<tempfile::TempDir>,
}

impl StorageDir {
    /// Opens a directory, making it if it is not there.
    ///
    /// # Errors
    /// Returns [`StorageError::Locked`] if another process has it.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        Self::lock(path.to_owned(), Durability::Synced, None)
    }

    /// Makes a directory that is removed when it is dropped.
    ///
    /// # Errors
    /// Returns an error if the system's temporary directory cannot be written to.
    pub fn temporary() -> Result<Self, StorageError> {
        let directory = tempfile::Builder::new().prefix("engine-").tempdir().map_err(|source| {
            let path = std::env::temp_dir();
            StorageError::Io { action: "create a directory in", path, source }
        })?;
        Self::lock(directory.path().to_owned(), Durability::Temporary, Some(directory))
    }

    fn lock(path: PathBuf, durability: Durability, temporary: Option<tempfile::TempDir>) -> Result<Self, StorageError> {
        create_dir(&path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, durability, _lock: lock, _temporary: temporary }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StorageError::Locked(path)),
            Err(error) => Err(io_error("lock", &lock_path)(error.into())),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its files are flushed to disk.
    pub fn durability(&self) -> Durability {
        self.durability
    }
}

/// Makes a directory and its parents.
pub(super) fn create_dir(path: &Path) -> Result<(), StorageError> {
    fs::create_dir_all(path).map_err(io_error("create", path))
}

/// Reads a file, or returns none if it is not there.
pub(super) fn read_file(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Writes `bytes` to `directory/name`, replacing what is there in one step.
pub(super) fn write_file(
    directory: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
) -> Result<(), StorageError> {
    let path = directory.join(name);
    let mut file =
        tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(directory).map_err(io_error("write", &path))?;
    failpoint::write("storage.write", bytes, |bytes| file.write_all(bytes)).map_err(io_error("write", &path))?;
    failpoint!("storage.written").map_err(io_error("flush", &path))?;
    if durability == Durability::Synced {
        file.as_file().sync_all().map_err(io_error("flush", &path))?;
    }
    failpoint!("storage.synced").map_err(io_error("write", &path))?;
    // An error removes the temporary file, as dropping it does.
    file.persist(&path).map_err(|error| io_error("write", &path)(error.error))?;
    failpoint!("storage.renamed").map_err(io_error("flush", directory))?;
    sync_dir(directory, durability)?;
    failpoint!("storage.stored").map_err(io_error("flush", directory))
}

/// Renames a file within a directory, replacing what has the new name.
pub(super) fn rename_file(directory: &Path, from: &str, to: &str, durability: Durability) -> Result<(), StorageError> {
    let path = directory.join(from);
    fs::rename(&path, directory.join(to)).map_err(io_error("rename", &path))?;
    sync_dir(directory, durability)
}

/// Removes a file; it need not be there.
pub(super) fn remove_file(directory: &Path, name: &str, durability: Durability) -> Result<(), StorageError> {
    let path = directory.join(name);
    failpoint!("storage.remove").map_err(io_error("remove", &path))?;
    match fs::remove_file(&path) {
        Ok(()) => {
            failpoint!("storage.removed").map_err(io_error("flush", directory))?;
            sync_dir(directory, durability)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("remove", &path)(error)),
    }
}

/// Names of all files in ascending order. Removes what an interrupted writer left.
pub(super) fn list_files(directory: &Path) -> Result<Vec<String>, StorageError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(io_error("list", directory))? {
        let entry = entry.map_err(io_error("list", directory))?;
        // A name that is not Unicode is none of ours.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(TEMPORARY_PREFIX) {
            fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn sync_dir(directory: &Path, durability: Durability) -> Result<(), StorageError> {
    match durability {
        Durability::Temporary => Ok(()),
        Durability::Synced => {
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_error("flush", directory))
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError + use<> {
    let path = path.to_owned();
    move |source| StorageError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let first = StorageDir::open(&path).unwrap();
        let refused = StorageDir::open(&path).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("{} is in use by another process: end it, or choose another directory", { path.display() })
        );
        drop(first);
        StorageDir::open(&path).unwrap();
    }

    #[test]
    fn a_temporary_directory_goes_with_its_owner() {
        let directory = StorageDir::temporary().unwrap();
        let path = directory.path().to_owned();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_is_replaced_and_an_unfinished_one_is_not_listed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_file(path, "b", b"old", Durability::Synced).unwrap();
        write_file(path, "b", b"new", Durability::Synced).unwrap();
        write_file(path, "a", b"", Durability::Temporary).unwrap();
        fs::write(path.join(".tmp-1-1"), b"half").unwrap();
        assert_eq!(list_files(path).unwrap(), ["a", "b"]);
        assert_eq!(read_file(&path.join("b")).unwrap().as_deref(), Some(b"new".as_slice()));
        assert!(!path.join(".tmp-1-1").exists());
        remove_file(path, "a", Durability::Synced).unwrap();
        remove_file(path, "a", Durability::Synced).unwrap();
        assert_eq!(read_file(&path.join("a")).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        let error = write_file(&missing, "file", b"", Durability::Synced).unwrap_err();
        assert_eq!(error.to_string(), format!("could not write {}", missing.join("file").display()));
    }
}
