//! The store of checkpoints: files with checksums, metadata that is written last.
//!
//! Everything goes through `object_store`. In a local directory each file is written
//! under another name, flushed, renamed, and its directory flushed, before it counts.
//! "Checkpoint format" in `ARCHITECTURE.md` describes directories and metadata.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Write},
    ops::Range,
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use object_store::{
    Error as StoreError, MultipartUpload, ObjectStore, ObjectStoreExt as _, PutPayload, local::LocalFileSystem,
    path::Path,
};
use tokio::runtime::{Builder, Runtime};

use super::{
    CheckpointMetadata, SharedStateRegistry, StateFile,
    metadata_format::{self, FormatError},
};
use crate::{
    base::{
        failpoint,
        stream_element::{CheckpointId, SnapshotLocation},
    },
    failpoint,
};

/// Name of the file that makes a directory a checkpoint or savepoint.
const METADATA: &str = "_metadata";
/// Name of the empty file that says of a savepoint that its job stopped with it.
const STOPPED: &str = "_stopped";
/// Name of the file with the number of the last savepoint of a job, beside its checkpoints.
const LAST_SAVEPOINT: &str = "last-savepoint";
/// Begin of the name of a checkpoint's directory; its number follows.
const CHECKPOINT: &str = "chk-";
/// Begin of the name of a savepoint's directory, and of the file that a directory of savepoints is probed with.
const SAVEPOINT: &str = "savepoint-";
/// Directory of the files of checkpoints, below that of the job.
const SHARED: &str = "shared";
/// Length of what a directory is probed with: more than a file system keeps beside its name.
const PROBE_BYTES: usize = 4 << 10;
/// Bytes that are written or read at a time. Those of a file that is not larger are gathered.
const PART_BYTES: usize = 1 << 20;

/// A checkpoint cannot be stored, read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointStorageError {
    /// The store refused something.
    #[error("could not {action} {path}{}", advice(action, path, source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what: location and path.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A file is not there.
    #[error("{path} is missing")]
    Missing {
        /// Location and path.
        path: String,
    },
    /// A file is not what was written.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// Location and path.
        path: String,
        /// Length, checksum or layout.
        problem: String,
    },
    /// Metadata of something else.
    #[error("{path} is not the metadata of a checkpoint or savepoint of this engine{hint}")]
    Foreign {
        /// Location and path.
        path: String,
        /// Whose it may be.
        hint: &'static str,
    },
    /// Metadata of another version.
    #[error("{path} has format version {version}, this engine reads version {known}: use the engine that wrote it")]
    Version {
        /// Location and path.
        path: String,
        /// Its version.
        version: u32,
        /// The version that is known.
        known: u32,
    },
    /// A location or a path that is not used.
    #[error("{path} cannot be used: {problem}")]
    Refused {
        /// As given.
        path: String,
        /// Why not, and what would be right.
        problem: String,
    },
}

/// What to do about an error of the store.
fn advice(action: &str, path: &str, error: &io::Error) -> &'static str {
    let is_savepoint = path.split('/').any(|part| part.starts_with(SAVEPOINT));
    match (error.kind(), action, is_savepoint) {
        (io::ErrorKind::NotADirectory, "read", _) => ": that is no savepoint or checkpoint directory",
        (io::ErrorKind::NotADirectory, "open" | "list", _) => {
            ": a part of that path is a file; name another directory (execution.checkpointing.dir, or that of the \
             savepoint)"
        }
        (_, "read" | "list" | "open", _) => "",
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _, false) => {
            ": make room, or choose another directory (execution.checkpointing.dir)"
        }
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _, true) => {
            ": make room, or choose another directory for the savepoint"
        }
        (
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists,
            _,
            false,
        ) => ": it must be possible to write there, or choose another directory (execution.checkpointing.dir)",
        (
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists,
            _,
            true,
        ) => ": it must be possible to write there, or choose another directory for the savepoint",
        _ => "",
    }
}

/// The directory of a job's checkpoints, or of one savepoint. All methods wait for the
/// store: they belong on threads that may wait, and not into a future.
#[derive(Clone)]
pub struct CheckpointStorage {
    location: SnapshotLocation,
    store: Arc<dyn ObjectStore>,
    /// Where the location is in the store.
    prefix: Path,
    /// The location, if it is a local directory.
    directory: Option<PathBuf>,
}

impl fmt::Debug for CheckpointStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CheckpointStorage({})", self.location)
    }
}

impl CheckpointStorage {
    /// Opens a directory, which need not exist: a path, or a URL `file://`.
    ///
    /// # Errors
    /// Returns an error if the location is not one that can be used.
    pub fn open(location: SnapshotLocation) -> Result<Self, CheckpointStorageError> {
        let refused = |problem: String| CheckpointStorageError::Refused { path: location.0.clone(), problem };
        let directory = SnapshotLocation::local_path(&location.0).map_err(&refused)?;
        // Without "..", which the store does not know.
        let directory = crate::connector::canonical_destination(std::path::Path::new(&directory))
            .map_err(|source| CheckpointStorageError::Io { action: "open", path: location.0.clone(), source })?;
        let prefix = Path::from_absolute_path(&directory).map_err(|error| refused(error.to_string()))?;
        let location = SnapshotLocation(directory.to_string_lossy().into_owned());
        let store = Arc::new(LocalFileSystem::new().with_fsync(true));
        Ok(Self { location, store, prefix, directory: Some(directory) })
    }

    /// Where it is: absolute, so that every process finds it.
    pub fn location(&self) -> &SnapshotLocation {
        &self.location
    }

    /// The name of a file for messages.
    fn shown(&self, path: &str) -> String {
        format!("{}/{path}", self.location)
    }

    /// The file below the location.
    fn path(&self, path: &str) -> Result<Path, CheckpointStorageError> {
        let problem = path_problem(path);
        let parsed = Path::parse(path).ok().filter(|_| problem.is_none());
        let Some(parsed) = parsed else {
            let problem = problem.unwrap_or("it is not a path of the store").to_owned();
            return Err(CheckpointStorageError::Refused { path: self.shown(path), problem });
        };
        Ok(self.prefix.parts().chain(parsed.parts()).collect())
    }

    fn error(&self, action: &'static str, path: &str, error: &StoreError) -> CheckpointStorageError {
        let path = self.shown(path);
        match error {
            StoreError::NotFound { .. } => CheckpointStorageError::Missing { path },
            error => CheckpointStorageError::Io { action, path, source: cause(error) },
        }
    }

    /// Writes a file of state, a part at a time. When this returns, it survives a crash.
    ///
    /// # Errors
    /// Returns an error if the store or `content` fails; the file is not there then.
    pub fn write(
        &self,
        path: &str,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<StateFile, CheckpointStorageError> {
        let mut upload = Upload {
            runtime: self.runtime(path)?,
            store: &*self.store,
            path: self.path(path)?,
            buffer: Vec::new(),
            parts: None,
            bytes: 0,
            checksum: crc32fast::Hasher::new(),
        };
        let written = failpoint!("checkpoint.file.write")
            .and_then(|()| content(&mut upload))
            .and_then(|()| failpoint!("checkpoint.file.complete"))
            .and_then(|()| upload.complete())
            .and_then(|()| failpoint!("checkpoint.file.written"));
        match written {
            Ok(()) => {
                let (bytes, checksum) = (upload.bytes, upload.checksum);
                Ok(StateFile { path: path.to_owned(), bytes, crc32: checksum.finalize() })
            }
            Err(source) => {
                upload.abort();
                Err(CheckpointStorageError::Io { action: "write", path: self.shown(path), source })
            }
        }
    }

    /// Reads a file of state and checks its length and checksum.
    ///
    /// # Errors
    /// Returns an error if it is not there, or is damaged.
    pub fn read(&self, file: &StateFile) -> Result<Bytes, CheckpointStorageError> {
        let path = self.path(&file.path)?;
        let read = async {
            let found = self.store.get(&path).await?;
            let length = found.meta.size;
            // What has another length is not read: it may be of any size.
            if length == file.bytes { Ok((length, found.bytes().await?)) } else { Ok((length, Bytes::new())) }
        };
        let (length, bytes) =
            self.runtime(&file.path)?.block_on(read).map_err(|error| self.error("read", &file.path, &error))?;
        self.check(file, length, crc32fast::hash(&bytes))?;
        Ok(bytes)
    }

    /// Reads a part of a file whose whole was checked before ([`Self::verify_file`]).
    ///
    /// # Errors
    /// Returns an error if it cannot be read, or the file ends before.
    pub fn read_range(&self, file: &StateFile, range: Range<u64>) -> Result<Bytes, CheckpointStorageError> {
        let path = self.path(&file.path)?;
        let bytes = self.runtime(&file.path)?.block_on(self.store.get_range(&path, range.clone()));
        let bytes = bytes.map_err(|error| self.error("read", &file.path, &error))?;
        if bytes.len() as u64 == range.end - range.start {
            return Ok(bytes);
        }
        let problem = format!("it ends at {}", range.start + bytes.len() as u64);
        Err(CheckpointStorageError::Damaged { path: self.shown(&file.path), problem })
    }

    fn check(&self, file: &StateFile, length: u64, crc32: u32) -> Result<(), CheckpointStorageError> {
        let problem = if length != file.bytes {
            format!("it has {length} bytes, {} were written", file.bytes)
        } else if crc32 != file.crc32 {
            format!("its checksum is {crc32:08x}, that of what was written is {:08x}", file.crc32)
        } else {
            return Ok(());
        };
        Err(CheckpointStorageError::Damaged { path: self.shown(&file.path), problem })
    }

    /// Stores the metadata of checkpoint `chk-ID`, or of the savepoint that the location
    /// is: the last of its files. Returns the number of bytes.
    ///
    /// # Errors
    /// Returns an error if the store fails; the checkpoint is not there then.
    pub fn store_metadata(&self, metadata: &CheckpointMetadata) -> Result<u64, CheckpointStorageError> {
        let checkpoint = (!metadata.kind.is_savepoint()).then_some(metadata.checkpoint_id);
        let encoded = metadata_format::encode(metadata);
        let path = metadata_path(checkpoint);
        let io = |source| CheckpointStorageError::Io { action: "write", path: self.shown(&path), source };
        failpoint!("checkpoint.metadata.store").map_err(io)?;
        let file = self.write(&path, &mut |out| {
            failpoint::write("checkpoint.metadata.write", &encoded, |bytes| out.write_all(bytes))
        })?;
        failpoint!("checkpoint.metadata.stored").map_err(io)?;
        Ok(file.bytes)
    }

    /// Reads metadata of checkpoint `chk-ID`, or, without an id, of the savepoint that the
    /// location is.
    ///
    /// # Errors
    /// Returns an error if it is not there, or is damaged.
    pub fn load_metadata(
        &self,
        checkpoint: Option<CheckpointId>,
    ) -> Result<CheckpointMetadata, CheckpointStorageError> {
        let path = metadata_path(checkpoint);
        let in_store = self.path(&path)?;
        let read = async { self.store.get(&in_store).await?.bytes().await };
        let bytes = self.runtime(&path)?.block_on(read).map_err(|error| self.error("read", &path, &error))?;
        let shown = self.shown(&path);
        let metadata = metadata_format::decode(&bytes).map_err(|error| match error {
            FormatError::Damaged(problem) => CheckpointStorageError::Damaged { path: shown.clone(), problem },
            FormatError::Foreign(hint) => CheckpointStorageError::Foreign { path: shown.clone(), hint },
            FormatError::Version { version, known } => {
                CheckpointStorageError::Version { path: shown.clone(), version, known }
            }
        })?;
        if let Some(problem) = metadata.files().find_map(|file| path_problem(&file.path)) {
            return Err(CheckpointStorageError::Refused {
                path: shown,
                problem: format!("of a file it names, {problem}"),
            });
        }
        match checkpoint.filter(|id| metadata.kind.is_savepoint() || metadata.checkpoint_id != *id) {
            None => Ok(metadata),
            Some(id) => {
                let problem = format!("it is not that of checkpoint {id}, but of {}", metadata.checkpoint_id);
                Err(CheckpointStorageError::Damaged { path: shown, problem })
            }
        }
    }

    /// Opens what a user names: the directory of a savepoint, that of a checkpoint
    /// (`chk-ID`), or the `_metadata` in it. Returns the storage that its files are in too.
    ///
    /// # Errors
    /// Returns an error if there is none, or it is damaged.
    pub fn open_snapshot(location: &SnapshotLocation) -> Result<(Self, CheckpointMetadata), CheckpointStorageError> {
        let text = location.0.trim_end_matches('/');
        let text =
            text.strip_suffix(METADATA).map_or(text, |directory| if directory.is_empty() { "." } else { directory });
        let storage = Self::open(SnapshotLocation(text.to_owned()))?;
        let metadata = storage.load_metadata(None)?;
        if metadata.kind.is_savepoint() {
            return Ok((storage, metadata));
        }
        // The files of checkpoints are shared: they are beside its directory.
        let parent = storage.directory.as_deref().and_then(std::path::Path::parent);
        let parent = parent.map(|parent| SnapshotLocation(parent.to_string_lossy().into_owned()));
        Ok((Self::open(parent.unwrap_or_else(|| storage.location.clone()))?, metadata))
    }

    /// Checks all files that metadata refers to.
    ///
    /// # Errors
    /// Returns the first one that is missing or damaged.
    pub fn verify(&self, metadata: &CheckpointMetadata) -> Result<(), CheckpointStorageError> {
        metadata.files().collect::<BTreeSet<_>>().into_iter().try_for_each(|file| self.verify_file(file))
    }

    /// The errors of those files that are missing or damaged.
    pub fn broken_files<'f>(&self, files: impl Iterator<Item = &'f StateFile>) -> Vec<CheckpointStorageError> {
        files.collect::<BTreeSet<_>>().into_iter().filter_map(|file| self.verify_file(file).err()).collect()
    }

    /// Checks length and checksum of a file, a part at a time.
    ///
    /// # Errors
    /// Returns an error if it is not there, or is damaged.
    pub fn verify_file(&self, file: &StateFile) -> Result<(), CheckpointStorageError> {
        let path = self.path(&file.path)?;
        let mut checksum = crc32fast::Hasher::new();
        let read = async {
            let length = self.store.head(&path).await?.size;
            let mut from = 0;
            while from < length && length == file.bytes {
                let to = length.min(from + PART_BYTES as u64);
                checksum.update(&self.store.get_range(&path, from..to).await?);
                from = to;
            }
            Ok(length)
        };
        let length =
            self.runtime(&file.path)?.block_on(read).map_err(|error| self.error("read", &file.path, &error))?;
        self.check(file, length, checksum.finalize())
    }

    /// Ids of the checkpoints whose metadata is there, ascending.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be listed.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointId>, CheckpointStorageError> {
        let list = async {
            let directories = self.store.list_with_delimiter(Some(&self.prefix)).await?.common_prefixes;
            let ids = directories.iter().filter_map(|path| path.filename()?.strip_prefix(CHECKPOINT)?.parse().ok());
            let mut found = Vec::new();
            for id in ids.collect::<BTreeSet<CheckpointId>>() {
                let metadata = self.prefix.clone().join(format!("{CHECKPOINT}{id}")).join(METADATA);
                match self.store.head(&metadata).await {
                    Ok(_) => found.push(id),
                    Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        };
        match self.runtime("")?.block_on(list) {
            Ok(found) => Ok(found),
            Err(error) => match self.error("list", "", &error) {
                CheckpointStorageError::Missing { .. } => Ok(Vec::new()),
                error => Err(error),
            },
        }
    }

    /// Deletes the metadata of a checkpoint, so that it is none any more. It need not be
    /// there. To be done before its files are deleted.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete_metadata(&self, checkpoint: CheckpointId) -> Result<(), CheckpointStorageError> {
        let path = metadata_path(Some(checkpoint));
        failpoint!("checkpoint.metadata.delete", infallible);
        match self.runtime(&path)?.block_on(self.store.head(&self.path(&path)?)) {
            Ok(_) => self.delete(&path)?,
            // A store that cannot be written to would refuse to delete what it does not have.
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(self.error("delete", &path, &error)),
        }
        failpoint!("checkpoint.metadata.deleted", infallible);
        let Some(directory) = &self.directory else { return Ok(()) };
        // After a crash it must not be there again, with its files gone.
        let io = |source| CheckpointStorageError::Io { action: "delete", path: self.shown(&path), source };
        let emptied = directory.join(format!("{CHECKPOINT}{checkpoint}"));
        match sync_directory(&emptied).and_then(|()| fs::remove_dir(&emptied)) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                Err(io(error))
            }
            _ => Ok(()),
        }
    }

    /// Deletes a file of state; it need not be there.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete(&self, path: &str) -> Result<(), CheckpointStorageError> {
        let in_store = self.path(path)?;
        failpoint!("checkpoint.file.delete", infallible);
        // A local store does not know what is not whole.
        if let Some(directory) = self.directory.as_ref().filter(|_| is_partial(path)) {
            return match fs::remove_file(directory.join(path)) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(CheckpointStorageError::Io { action: "delete", path: self.shown(path), source })
                }
                _ => Ok(()),
            };
        }
        match self.runtime(path)?.block_on(self.store.delete(&in_store)) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("delete", path, &error)),
        }
    }

    /// Checks that savepoints can be written below the location: makes the directory, writes a small file, and
    /// deletes it.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn probe(&self) -> Result<(), CheckpointStorageError> {
        let path = format!("{SAVEPOINT}probe-{:016x}", rand::random::<u64>());
        self.write(&path, &mut |out| out.write_all(&[0; PROBE_BYTES]))?;
        self.delete(&path)
    }

    /// Paths of files of state that no retained checkpoint refers to, those that are not whole too: what attempts
    /// left behind whose process is gone, and what attempts that run are writing. Whoever deletes them has to
    /// have asked while none ran.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn unreferenced(&self, registry: &SharedStateRegistry) -> Result<Vec<String>, CheckpointStorageError> {
        let shared = self.path(SHARED)?;
        let mut names = BTreeSet::new();
        match self.runtime(SHARED)?.block_on(self.store.list_with_delimiter(Some(&shared))) {
            Ok(listed) => {
                names.extend(listed.objects.iter().filter_map(|file| Some(file.location.filename()?.to_owned())))
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(self.error("list", SHARED, &error)),
        }
        // A local store does not list what is not whole yet.
        let entries = self.directory.as_ref().map(|directory| fs::read_dir(directory.join(SHARED)));
        let io = |source| CheckpointStorageError::Io { action: "list", path: self.shown(SHARED), source };
        match entries {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            Some(Ok(entries)) => {
                for entry in entries {
                    let entry = entry.map_err(io)?;
                    if entry.file_type().map_err(io)?.is_file() {
                        names.insert(entry.file_name().to_string_lossy().into_owned());
                    }
                }
            }
            Some(Err(_)) | None => {}
        }
        let paths = names.into_iter().map(|name| format!("{SHARED}/{name}"));
        Ok(paths.filter(|path| !registry.is_referenced(path)).collect())
    }

    /// Notes the number of a savepoint of the job whose checkpoints are here: neither it nor a lower one is drawn again.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn note_savepoint(&self, id: CheckpointId) -> Result<(), CheckpointStorageError> {
        // Savepoints that are taken side by side may be complete in another order.
        if self.last_savepoint().is_ok_and(|last| id <= last) {
            return Ok(());
        }
        self.write(LAST_SAVEPOINT, &mut |out| out.write_all(id.to_string().as_bytes())).map(drop)
    }

    /// The greatest number that was noted, or 0.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, or is none.
    pub fn last_savepoint(&self) -> Result<CheckpointId, CheckpointStorageError> {
        let path = self.path(LAST_SAVEPOINT)?;
        let read = async { self.store.get(&path).await?.bytes().await };
        let bytes = match self.runtime(LAST_SAVEPOINT)?.block_on(read) {
            Err(StoreError::NotFound { .. }) => return Ok(0),
            read => read.map_err(|error| self.error("read", LAST_SAVEPOINT, &error))?,
        };
        str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(|| CheckpointStorageError::Damaged {
            path: self.shown(LAST_SAVEPOINT),
            problem: "it is no number".to_owned(),
        })
    }

    /// True if something is there.
    fn exists(&self, path: &str) -> Result<bool, CheckpointStorageError> {
        let in_store = self.path(path)?;
        match self.runtime(path)?.block_on(self.store.head(&in_store)) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.error("read", path, &error)),
        }
    }

    /// Notes of the savepoint that the location is that its job stopped with it and will not go on: all its rows were
    /// visible. One that is not there any more is left so.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn note_stopped(&self) -> Result<(), CheckpointStorageError> {
        if self.exists(METADATA)? {
            self.write(STOPPED, &mut |_| Ok(()))?;
        }
        Ok(())
    }

    /// True if that was noted.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn is_stopped(&self) -> Result<bool, CheckpointStorageError> {
        self.exists(STOPPED)
    }

    /// Deletes the savepoint that the location is: its metadata, then the files that it lists, then the directories
    /// that are empty now. What else lies there stays.
    ///
    /// # Errors
    /// Returns an error, with everything left as it is, if the metadata is not there, is damaged, or is that of a
    /// checkpoint; or if the store fails.
    pub fn delete_savepoint(&self) -> Result<(), CheckpointStorageError> {
        let metadata = self.load_metadata(None)?;
        if !metadata.kind.is_savepoint() {
            let problem = "it is a checkpoint, which its job deletes: only savepoints can be disposed of".to_owned();
            return Err(CheckpointStorageError::Refused { path: self.location.0.clone(), problem });
        }
        let paths: BTreeSet<&str> = metadata.files().map(|file| file.path.as_str()).collect();
        self.delete(METADATA)?;
        let io = |source| CheckpointStorageError::Io { action: "delete", path: self.location.0.clone(), source };
        if let Some(directory) = &self.directory {
            // After a crash it must not be there again, with its files gone.
            sync_directory(directory).map_err(io)?;
        }
        self.delete(STOPPED)?;
        paths.iter().try_for_each(|path| self.delete(path))?;
        let Some(directory) = &self.directory else { return Ok(()) };
        let ancestors = paths.iter().flat_map(|path| std::path::Path::new(*path).ancestors().skip(1));
        // Those within others come first; the location itself is the empty path.
        let directories: BTreeSet<&std::path::Path> = ancestors.chain([std::path::Path::new("")]).collect();
        for emptied in directories.into_iter().rev() {
            match fs::remove_dir(directory.join(emptied)) {
                Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                    return Err(io(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Deletes everything below the location, and in a local store the location itself.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn delete_all(&self) -> Result<(), CheckpointStorageError> {
        failpoint!("checkpoint.delete-all", infallible);
        let removed = match &self.directory {
            Some(directory) => fs::remove_dir_all(directory),
            None => self.runtime("")?.block_on(self.delete_listed()).map_err(|error| cause(&error)),
        };
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(CheckpointStorageError::Io { action: "delete", path: self.location.0.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Deletes one level after the other.
    async fn delete_listed(&self) -> Result<(), StoreError> {
        let mut directories = vec![self.prefix.clone()];
        while let Some(directory) = directories.pop() {
            let listed = self.store.list_with_delimiter(Some(&directory)).await?;
            directories.extend(listed.common_prefixes);
            for file in listed.objects {
                self.store.delete(&file.location).await?;
            }
        }
        Ok(())
    }

    /// Drives the futures of the store on this thread.
    fn runtime(&self, path: &str) -> Result<Runtime, CheckpointStorageError> {
        Builder::new_current_thread().enable_all().build().map_err(|source| CheckpointStorageError::Io {
            action: "wait for",
            path: self.shown(path),
            source,
        })
    }
}

fn metadata_path(checkpoint: Option<CheckpointId>) -> String {
    checkpoint.map_or_else(|| METADATA.to_owned(), |id| format!("{CHECKPOINT}{id}/{METADATA}"))
}

/// True of the name that a local store gives a file while it is written.
fn is_partial(path: &str) -> bool {
    let number = path.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Why a path may not be used; none: it stays below the location.
fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() || path.starts_with('/') {
        return Some("the path is empty or absolute: files are named by paths below the directory of the checkpoint");
    }
    let leaves = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(['\\', '\0']);
    path.split('/').any(leaves).then_some("the path leaves the directory of the checkpoint, or is not normal")
}

/// What the operating system said, if it was that which failed.
fn cause(error: &StoreError) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error
                .raw_os_error()
                .map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error);
        }
        cause = error.source();
    }
    io::Error::other(error.to_string())
}

fn sync_directory(path: &std::path::Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// A file on its way to the store.
struct Upload<'a> {
    runtime: Runtime,
    store: &'a dyn ObjectStore,
    path: Path,
    /// What was not sent yet.
    buffer: Vec<u8>,
    /// Once there is more than one part.
    parts: Option<Box<dyn MultipartUpload>>,
    bytes: u64,
    checksum: crc32fast::Hasher,
}

impl Upload<'_> {
    fn send(&mut self) -> io::Result<()> {
        let part = PutPayload::from(std::mem::take(&mut self.buffer));
        let (runtime, store, path) = (&self.runtime, self.store, &self.path);
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => none.insert(runtime.block_on(store.put_multipart(path)).map_err(|error| cause(&error))?),
        };
        runtime.block_on(parts.put_part(part)).map_err(|error| cause(&error))
    }

    fn complete(&mut self) -> io::Result<()> {
        if self.parts.is_none() {
            let content = PutPayload::from(std::mem::take(&mut self.buffer));
            let put = self.runtime.block_on(self.store.put(&self.path, content));
            return put.map(drop).map_err(|error| cause(&error));
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        let Some(parts) = &mut self.parts else { return Ok(()) };
        self.runtime.block_on(parts.complete()).map(drop).map_err(|error| cause(&error))
    }

    /// Leaves nothing behind, as far as that is possible.
    fn abort(mut self) {
        if let Some(parts) = &mut self.parts
            && let Err(error) = self.runtime.block_on(parts.abort())
        {
            tracing::warn!("could not remove what was written of {}: {error}", self.path);
        }
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = &bytes[..bytes.len().min(PART_BYTES)];
        if PART_BYTES < self.buffer.len() + taken.len() {
            self.send()?;
        }
        self.buffer.extend_from_slice(taken);
        self.checksum.update(taken);
        self.bytes += taken.len() as u64;
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
