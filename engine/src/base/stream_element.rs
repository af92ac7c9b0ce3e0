//! Everything that travels on an edge of the physical graph.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::clock::Timestamp;

/// How the rows of a batch are laid out; see `wit/plugin.wit`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum BatchKind {
    /// Rows with headers, see [`engine_rows::row`].
    Rows,
    /// Lines of text, each ended by `\n`.
    Lines,
}

/// Rows laid out one behind the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordBatch {
    /// Layout of `data`.
    pub kind: BatchKind,
    /// Rows in `data`.
    pub count: u32,
    /// The rows.
    pub data: Bytes,
}

impl StreamElement {
    /// Bytes of rows in the element.
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::Records(batch) => batch.data.len(),
            Self::Watermark(_)
            | Self::WatermarkStatus(_)
            | Self::LatencyMarker(_)
            | Self::CheckpointBarrier(_)
            | Self::CancelCheckpoint(_)
            | Self::EndOfData(_)
            | Self::EndOfPartition => 0,
        }
    }
}

/// Whether an input takes part in the watermark.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum WatermarkStatus {
    /// Watermarks are expected.
    Active,
    /// The input is left out until it is active again.
    Idle,
}

/// Whether operators flush when their input ends.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StopMode {
    /// The watermark went to the end of time; operators finish.
    Drain,
    /// Stopped to go on from a savepoint; operators do not finish.
    NoDrain,
}

/// A marker that measures the way from a source to a sink.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LatencyMarker {
    /// Processing time at which the source sent it.
    pub marked: Timestamp,
    /// Node id of the source in the stream graph.
    pub source: u32,
    /// Zero-based.
    pub source_subtask_index: u32,
}

/// Number of a checkpoint or savepoint of a job, from 1; ascending, with gaps.
pub type CheckpointId = u64;

/// What a snapshot is for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SnapshotKind {
    /// Taken and deleted by the engine.
    Checkpoint,
    /// Asked for by a user, who owns it: holds all it needs.
    Savepoint,
    /// A savepoint behind which the job stops.
    StopWithSavepoint(StopMode),
}

impl SnapshotKind {
    /// True if a user owns it.
    pub fn is_savepoint(self) -> bool {
        matches!(self, Self::Savepoint | Self::StopWithSavepoint(_))
    }

    /// True of a savepoint that stops the job.
    pub fn stops_job(self) -> bool {
        matches!(self, Self::StopWithSavepoint(_))
    }
}

/// What a task does with the channels whose barrier has come before those of others.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CheckpointingMode {
    /// It reads them when all have come.
    ExactlyOnce,
    /// It goes on reading them.
    AtLeastOnce,
}

/// A directory that checkpoints or a savepoint are in: a path or a URL.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SnapshotLocation(pub String);

impl SnapshotLocation {
    /// Reads what people write: "…/chk-7", with or without "/_metadata" or "file://", is checkpoint 7 in
    /// the directory of a job's checkpoints; all else is the directory of a savepoint.
    ///
    /// What names no local directory stays as it is: whoever opens it says why not.
    pub fn resolve(path: &str) -> (Self, Option<CheckpointId>) {
        let local = Self::local_path(path);
        let path = local.as_deref().unwrap_or(path).trim_end_matches('/');
        let path = path.strip_suffix("/_metadata").unwrap_or(path);
        let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
        if let Some(Ok(id)) = name.strip_prefix("chk-").map(str::parse) {
            return (Self(directory.to_owned()), Some(id));
        }
        (Self(path.to_owned()), None)
    }

    /// The local path that a path or a URL `file:///…` names. Only what a URL says is percent-decoded, so that a path
    /// stays the same however often this is asked.
    ///
    /// # Errors
    /// Says in a line why there is none, and what would be right.
    pub fn local_path(text: &str) -> Result<String, String> {
        match url_scheme(text) {
            None if text.is_empty() => Err("it is empty: name a path or a URL file:///…".to_owned()),
            None => Ok(text.to_owned()),
            Some("file") => {
                let encoded = &text["file://".len()..];
                if !encoded.starts_with('/') {
                    return Err("a URL of a directory begins with file:/// and has no host".to_owned());
                }
                percent_decoded(encoded).ok_or_else(|| {
                    "a % in a URL is followed by two hexadecimal digits, a % of the path itself is %25, and the path is \
                     UTF-8"
                        .to_owned()
                })
            }
            Some(scheme) => Err(format!("stores of kind {scheme:?} are not known: name a path or a URL file:///…")),
        }
    }

    /// What people read of a checkpoint in this directory, or of the savepoint that it is.
    pub fn path_of(&self, id: Option<CheckpointId>) -> String {
        match id {
            Some(id) => format!("{self}/chk-{id}"),
            None => self.to_string(),
        }
    }
}

/// The part of a URL before "://".
fn url_scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (!scheme.is_empty() && scheme.bytes().all(is_scheme)).then_some(scheme)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

impl fmt::Display for SnapshotLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// How a checkpoint is taken.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointOptions {
    /// What it is for.
    pub kind: SnapshotKind,
    /// How barriers are waited for.
    pub mode: CheckpointingMode,
    /// Directory that files are written below: that of the job's checkpoints, or of the savepoint.
    pub location: SnapshotLocation,
    /// Write all state, not only what changed.
    pub is_full: bool,
}

/// Separates the records before a checkpoint from those after it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointBarrier {
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Processing time at which the coordinator triggered it.
    pub triggered: Timestamp,
    /// How it is taken.
    pub options: CheckpointOptions,
}

/// One thing that travels on an edge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StreamElement {
    /// Rows.
    Records(RecordBatch),
    /// No more rows at or below the timestamp are expected.
    Watermark(Timestamp),
    /// The producer became idle, or active again.
    WatermarkStatus(WatermarkStatus),
    /// Sent to one channel only.
    LatencyMarker(LatencyMarker),
    /// See [`CheckpointBarrier`].
    CheckpointBarrier(CheckpointBarrier),
    /// The checkpoint was given up; takes the place of its barrier.
    CancelCheckpoint(CheckpointId),
    /// No more rows follow.
    EndOfData(StopMode),
    /// Nothing follows.
    EndOfPartition,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_files_are_decoded_and_paths_are_not() {
        for (text, path) in [
            ("/a/b%20c", "/a/b%20c"),
            ("a b", "a b"),
            ("/a/x://y", "/a/x://y"),
            ("file:///a/b%20c", "/a/b c"),
            ("file:///%C3%A4/%2e%2E/%25", "/ä/../%"),
        ] {
            assert_eq!(SnapshotLocation::local_path(text).as_deref(), Ok(path), "{text}");
        }
        for (text, part) in [
            ("", "it is empty"),
            ("file://host/a", "has no host"),
            ("file://", "has no host"),
            ("s3://bucket/a", "stores of kind \"s3\""),
            ("file:///a%2", "two hexadecimal digits"),
            ("file:///a%+1", "two hexadecimal digits"),
            ("file:///a%äb", "two hexadecimal digits"),
            ("file:///a%ff", "is UTF-8"),
            ("file:///a%00", "is UTF-8"),
        ] {
            let refused = SnapshotLocation::local_path(text).expect_err(text);
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn a_path_says_whether_it_is_a_checkpoint() {
        let resolve = |path| {
            let (location, id) = SnapshotLocation::resolve(path);
            (location.0, id)
        };
        assert_eq!(resolve("/a/job/chk-7"), ("/a/job".to_owned(), Some(7)));
        assert_eq!(resolve("chk-7"), (".".to_owned(), Some(7)));
        assert_eq!(resolve("/a/job/chk-7/_metadata"), ("/a/job".to_owned(), Some(7)));
        assert_eq!(resolve("file:///a/job/chk-7/"), ("/a/job".to_owned(), Some(7)));
        assert_eq!(resolve("/a/savepoint-012345-6789/"), ("/a/savepoint-012345-6789".to_owned(), None));
        assert_eq!(resolve("/a/chk-x"), ("/a/chk-x".to_owned(), None));
        assert_eq!(resolve("file:///my%20data/job/chk%2D7"), ("/my data/job".to_owned(), Some(7)));
        assert_eq!(resolve("/my%20data/chk-7"), ("/my%20data".to_owned(), Some(7)), "no URL");
        assert_eq!(resolve("s3://bucket/chk-7"), ("s3://bucket".to_owned(), Some(7)));
        assert_eq!(SnapshotLocation("/a".to_owned()).path_of(Some(3)), "/a/chk-3");
    }
}
