//! What becomes of a row that user code or a format refuses.
//!
//! Such a row fails the task, is skipped and counted, or is put aside: appended
//! with its coordinates to a file of its subtask, one JSON object per line. One
//! instance per task, shared by its sources and segments on the task's thread.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering},
};

use super::{Origin, TaskContext, TaskCounters};
use crate::{
    base::config::{Configuration, options},
    connector::{ConnectorError, Permissions, SourceReader, Verdict},
};

/// A reader that is asked for its position when a row behind it is refused.
pub(super) type SharedReader = Rc<RefCell<Box<dyn SourceReader>>>;
/// One that is kept by its chain only: readers hold the row errors, in what they report refused rows to.
type KnownReader = Weak<RefCell<Box<dyn SourceReader>>>;

/// What becomes of a refused row.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RowErrorPolicy {
    /// The task fails.
    Fail,
    /// It is counted.
    Skip,
    /// It is counted and appended to a file in this directory.
    DeadLetter(PathBuf),
}

/// Refused rows cannot be put aside.
#[derive(Debug, thiserror::Error)]
pub enum RowErrorsError {
    /// There is no such policy.
    #[error("unknown policy \"{0}\" in \"execution.row-errors.policy\": expected fail, skip or dead-letter")]
    UnknownPolicy(String),
    /// The policy needs a directory.
    #[error(
        "\"execution.row-errors.policy\" is dead-letter, but \"execution.row-errors.dead-letter.dir\" names no directory"
    )]
    NoDirectory,
    /// The job may not write into the directory.
    #[error("the directory of dead letters cannot be used")]
    Directory(#[source] ConnectorError),
    /// Writing failed.
    #[error("could not write refused rows to {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl RowErrorPolicy {
    /// Takes the policy out of a job's configuration, and makes the directory.
    ///
    /// # Errors
    /// Returns an error if the policy is unknown, or its directory is missing,
    /// not granted or cannot be made.
    pub fn new(configuration: &Configuration, permissions: &Permissions) -> Result<Self, RowErrorsError> {
        let policy = configuration.get(&options::ROW_ERROR_POLICY);
        match policy.as_str() {
            "fail" => Ok(Self::Fail),
            "skip" => Ok(Self::Skip),
            "dead-letter" => {
                let directory = configuration.get(&options::ROW_ERROR_DEAD_LETTER_DIR);
                let directory = PathBuf::from(directory.ok_or(RowErrorsError::NoDirectory)?);
                let directory = permissions.writable(&directory).map_err(RowErrorsError::Directory)?;
                std::fs::create_dir_all(&directory)
                    .map_err(|source| RowErrorsError::Write { path: directory.clone(), source })?;
                Ok(Self::DeadLetter(directory))
            }
            _ => Err(RowErrorsError::UnknownPolicy(policy)),
        }
    }
}

/// Skipped rows of one operator of a task that the log tells of.
const TOLD_MAX: u32 = 3;

/// Decides over refused rows.
pub struct RowErrors {
    policy: RowErrorPolicy,
    context: TaskContext,
    operator_names: BTreeMap<u32, String>,
    counters: Arc<TaskCounters>,
    file: Option<(PathBuf, BufWriter<File>)>,
    failure: Option<RowErrorsError>,
    /// Skipped rows that the log tells of, by node.
    told: BTreeMap<u32, u32>,
    origin: Origin,
    /// True while rows are processed as they came from the origin, not as another
    /// operator of the chain made them.
    is_direct: bool,
    readers: Vec<KnownReader>,
}

impl RowErrors {
    /// For one task.
    pub fn new(
        policy: RowErrorPolicy,
        context: TaskContext,
        operator_names: BTreeMap<u32, String>,
        counters: Arc<TaskCounters>,
    ) -> Self {
        Self {
            policy,
            context,
            operator_names,
            counters,
            file: None,
            failure: None,
            told: BTreeMap::new(),
            origin: Origin::None,
            is_direct: true,
            readers: Vec::new(),
        }
    }

    /// Takes a native source of the task, whose position messages name.
    pub(super) fn add_reader(&mut self, reader: &SharedReader) -> usize {
        self.readers.push(Rc::downgrade(reader));
        self.readers.len() - 1
    }

    /// Notes where the rows come from that are processed next.
    pub(super) fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Notes whether the rows that are processed next are those of the origin.
    pub(super) fn set_direct(&mut self, is_direct: bool) {
        self.is_direct = is_direct;
    }

    /// Where the rows came from that are being processed, or the one of this number in
    /// the batch; empty if unknown.
    pub fn position(&self, row: Option<u32>) -> String {
        match self.origin {
            Origin::None => String::new(),
            Origin::Gate { gate, channel } => format!("input gate {gate}, channel {channel}"),
            Origin::Source(index) => match self.readers.get(index).and_then(Weak::upgrade) {
                // A reader that is at work names the position itself.
                Some(reader) => match (reader.try_borrow_mut(), row.filter(|_| self.is_direct)) {
                    (Ok(mut reader), Some(row)) => reader.row_position(row),
                    (Ok(reader), None) => reader.position(),
                    (Err(_), _) => String::new(),
                },
                None => String::new(),
            },
        }
    }

    /// Decides over a row that user code of a node refused.
    pub fn reject_row(&mut self, node: u32, row: Option<u32>, message: &str, payload: &[u8]) -> Verdict {
        let position = self.position(row);
        self.reject(node, &position, message, payload)
    }

    /// Decides over a row with known position.
    pub fn reject(&mut self, node: u32, position: &str, message: &str, payload: &[u8]) -> Verdict {
        match &self.policy {
            RowErrorPolicy::Fail => return Verdict::Fail,
            RowErrorPolicy::Skip => self.tell_of_skipped(node, position, message),
            RowErrorPolicy::DeadLetter(directory) => {
                let directory = directory.clone();
                if let Err(error) = self.put_aside(&directory, node, position, message, payload) {
                    self.failure = Some(error);
                    return Verdict::Fail;
                }
            }
        }
        self.counters.rejected_rows.fetch_add(1, Ordering::Relaxed);
        Verdict::Skip
    }

    /// Says in the log what became of the first rows; all are counted.
    fn tell_of_skipped(&mut self, node: u32, position: &str, message: &str) {
        let told = self.told.entry(node).or_default();
        if *told == TOLD_MAX {
            return;
        }
        *told += 1;
        let further =
            if *told == TOLD_MAX { "; of further rows nothing is said, numRejectedRows counts them" } else { "" };
        let at = if position.is_empty() { String::new() } else { format!(" at {position}") };
        let operator = self.operator_names.get(&node).map_or("unknown", String::as_str);
        let TaskContext { job, task_name: task, .. } = &self.context;
        tracing::warn!(%job, task, operator, "row{at} was skipped: {message}{further}");
    }

    fn put_aside(
        &mut self,
        directory: &Path,
        node: u32,
        position: &str,
        message: &str,
        payload: &[u8],
    ) -> Result<(), RowErrorsError> {
        let mut line = serde_json::json!({
            "job": self.context.job.to_string(),
            "jobName": self.context.job_name,
            "operator": self.operator_names.get(&node).map_or("unknown", String::as_str),
            "node": node,
            "subtask": self.context.subtask_index,
            "attempt": self.context.attempt_number,
            "position": position,
            "message": message,
        });
        match std::str::from_utf8(payload) {
            Ok(text) => line["payload"] = text.into(),
            Err(_) => {
                let digits = payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                line["payloadHex"] = digits.into();
            }
        }
        let (path, file) = self.open_file(directory)?;
        writeln!(file, "{line}").map_err(|source| RowErrorsError::Write { path: path.clone(), source })
    }

    fn open_file(&mut self, directory: &Path) -> Result<&mut (PathBuf, BufWriter<File>), RowErrorsError> {
        if self.file.is_none() {
            let head = self.operator_names.keys().next().copied().unwrap_or(0);
            let name = format!("{}-{head}-{}.jsonl", self.context.job, self.context.subtask_index);
            let path = directory.join(name);
            let opened = File::options().create(true).append(true).open(&path);
            let file = opened.map_err(|source| RowErrorsError::Write { path: path.clone(), source })?;
            self.file = Some((path, BufWriter::new(file)));
        }
        Ok(self.file.as_mut().expect("it was opened above"))
    }

    /// Hands what was put aside to the operating system.
    ///
    /// # Errors
    /// Returns an error if that fails, or putting a row aside failed before.
    pub fn flush(&mut self) -> Result<(), RowErrorsError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match &mut self.file {
            Some((path, file)) => file.flush().map_err(|source| RowErrorsError::Write { path: path.clone(), source }),
            None => Ok(()),
        }
    }

    /// Why the last row could not be put aside, if that is why it was refused.
    pub fn take_failure(&mut self) -> Option<RowErrorsError> {
        self.failure.take()
    }
}
