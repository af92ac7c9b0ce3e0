//! Native sources and sinks, chosen by name with options.
//!
//! A source is a [`SplitEnumerator`] in the JobMaster, which deals splits, and a
//! [`SourceReader`] in each task, which reads them. A sink is a [`SinkWriter`] in
//! each task and a [`SinkCommitter`] in the JobMaster, which makes the output
//! visible when the job has finished.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::base::{clock::Clock, stream_element::RecordBatch};

/// Part of a source's input that one reader reads, in the connector's encoding.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SourceSplit(pub Vec<u8>);

/// What an enumerator answers to a reader that asks for a split.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SplitAssignment {
    /// Read this.
    Split(SourceSplit),
    /// There is nothing now; ask again after the pause (milliseconds).
    Wait(u64),
    /// There will be no more.
    NoMoreSplits,
}

/// Deals the splits of one source; lives in the JobMaster.
pub trait SplitEnumerator: Send {
    /// Answers subtask `subtask_index`, which has read all it was given.
    ///
    /// # Errors
    /// Returns an error if the input cannot be listed.
    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError>;

    /// Takes back splits of a subtask that failed; it will be read from the start.
    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>);
}

/// What a reader did when polled.
#[derive(Debug)]
pub enum ReaderOutput {
    /// Rows.
    Records(RecordBatch),
    /// The split was read to its end, or none was given yet: ask for one.
    NeedSplit,
    /// Nothing before the pause has passed or [`SourceReader::wake`] is called.
    Idle(Duration),
    /// The source ended.
    End,
}

/// Reads the splits of one subtask; lives on the task's thread.
pub trait SourceReader {
    /// Begins a split. Called when [`ReaderOutput::NeedSplit`] was answered.
    ///
    /// # Errors
    /// Returns an error if the split cannot be opened.
    fn add_split(&mut self, split: SourceSplit) -> Result<(), ConnectorError>;

    /// Reads about `max_bytes`; blocks for at most some milliseconds.
    ///
    /// # Errors
    /// Returns an error if reading or decoding fails. Rows that do not fit are
    /// handed to [`ReaderContext::rejected`] first.
    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError>;

    /// Where reading stands, for messages: "input.log line 17" or "sequence at 5".
    fn position(&self) -> String;
}

/// What becomes of a row that does not fit its type.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Counted and, if so configured, put aside; go on.
    Skip,
    /// Fail with the row's message.
    Fail,
}

/// A row that was refused, with its coordinates.
#[derive(Clone, Debug)]
pub struct RejectedRow<'a> {
    /// What is wrong.
    pub message: &'a str,
    /// File and line or the like.
    pub position: &'a str,
    /// The row as it was read.
    pub payload: &'a [u8],
}

/// What a reader is given.
pub struct ReaderContext {
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Descriptor of the records, in the grammar of `wit/rows.md`.
    pub record_type: String,
    /// What may be opened.
    pub permissions: Arc<Permissions>,
    /// Processing time.
    pub clock: Clock,
    /// Decides over a row that does not fit.
    pub reject: Box<dyn FnMut(RejectedRow<'_>) -> Verdict>,
}

/// Writes the rows of one subtask; lives on the task's thread.
pub trait SinkWriter {
    /// Writes all rows of the batch.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError>;

    /// Hands buffered rows to the outside; called when the task is idle.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    fn flush(&mut self) -> Result<(), ConnectorError>;

    /// Ends the output and returns what the committer needs to make it visible.
    ///
    /// # Errors
    /// Returns an error if the output cannot be completed.
    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError>;
}

/// Output of one writer that waits to be made visible, in the connector's encoding.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Committable(pub Vec<u8>);

/// Makes the output of a sink visible; lives in the JobMaster.
pub trait SinkCommitter: Send {
    /// Checks the destination before any task runs: a new or empty directory.
    ///
    /// # Errors
    /// Returns an error that says why the destination cannot be used.
    fn prepare(&mut self) -> Result<(), ConnectorError>;

    /// Makes the committables of all finished subtasks visible. Idempotent.
    ///
    /// # Errors
    /// Returns an error if one cannot be made visible.
    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError>;

    /// Removes what unfinished attempts left behind.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    fn abort(&mut self) -> Result<(), ConnectorError>;
}

/// What a writer is given.
pub struct WriterContext {
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Distinguishes the files of different attempts.
    pub attempt_number: u32,
    /// Descriptor of the records.
    pub record_type: String,
    /// What may be opened.
    pub permissions: Arc<Permissions>,
    /// Processing time.
    pub clock: Clock,
}

/// What a job may open; the check that each connector makes before it opens anything.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    /// Canonical files and directories that may be read.
    pub read: Vec<PathBuf>,
    /// Canonical directories that may be written into.
    pub write: Vec<PathBuf>,
    /// Addresses `host:port` that may be used.
    pub net: Vec<String>,
}

impl Permissions {
    /// Returns the canonical form of a path that may be read.
    ///
    /// # Errors
    /// Returns an error if there is no such path or it was not granted.
    pub fn readable(&self, path: &Path) -> Result<PathBuf, ConnectorError> {
        let canonical = path.canonicalize().map_err(|source| ConnectorError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        if self.read.iter().any(|granted| canonical.starts_with(granted)) {
            return Ok(canonical);
        }
        Err(ConnectorError::NotGranted {
            what: format!("read {}", path.display()),
            flag: format!("--allow-read {}", path.display()),
        })
    }

    /// Returns the canonical form of a directory that may be written into; it need not exist.
    ///
    /// # Errors
    /// Returns an error if its parent does not exist or it was not granted.
    pub fn writable(&self, path: &Path) -> Result<PathBuf, ConnectorError> {
        let canonical = canonical_destination(path).map_err(|source| ConnectorError::Io {
            action: "create",
            path: path.to_owned(),
            source,
        })?;
        if self.write.iter().any(|granted| canonical.starts_with(granted)) {
            return Ok(canonical);
        }
        Err(ConnectorError::NotGranted {
            what: format!("write {}", path.display()),
            flag: format!("--allow-write {}", path.display()),
        })
    }

    /// Checks that an address may be used.
    ///
    /// # Errors
    /// Returns an error if it was not granted.
    pub fn reachable(&self, address: &str) -> Result<(), ConnectorError> {
        if self.net.iter().any(|granted| granted == address) {
            return Ok(());
        }
        Err(ConnectorError::NotGranted {
            what: format!("connect to {address}"),
            flag: format!("--allow-net {address}"),
        })
    }
}

/// Canonical form of a path whose last components need not exist.
///
/// # Errors
/// Returns an error if no ancestor can be read.
pub fn canonical_destination(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut missing = Vec::new();
    let mut existing = absolute.as_path();
    loop {
        match existing.canonicalize() {
            Ok(mut canonical) => {
                canonical.extend(missing.iter().rev());
                return Ok(canonical);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
                    return Err(error);
                };
                missing.push(name.to_owned());
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A connector failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// There is no such connector.
    #[error("unknown {role} \"{name}\": {hint}")]
    Unknown {
        /// "source" or "sink".
        role: &'static str,
        /// As given.
        name: String,
        /// The nearest name or the list of names.
        hint: String,
    },
    /// An option is missing, unknown or invalid.
    #[error("{connector}: option \"{option}\": {problem}")]
    Option {
        /// Name of the connector.
        connector: String,
        /// Name of the option.
        option: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The job may not open this.
    #[error("the job may not {what}; to allow it, submit with {flag}")]
    NotGranted {
        /// What was refused.
        what: String,
        /// The flag that would grant it.
        flag: String,
    },
    /// The destination of a sink is in use.
    #[error("{} is not empty: a file sink needs a new or empty directory", path.display())]
    DestinationNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Reading from or writing to an address failed.
    #[error("could not {action} {address}")]
    Net {
        /// What was tried.
        action: &'static str,
        /// On what.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A row does not fit its type and the policy is to fail.
    #[error("{position}: {message}")]
    BadRow {
        /// File and line or the like.
        position: String,
        /// What is wrong with which field.
        message: String,
    },
    /// A split or committable is not one of this connector's: a bug.
    #[error("{0} is damaged")]
    Damaged(&'static str),
}

/// Rows as they are handed over, without a copy.
pub type Block = Bytes;
