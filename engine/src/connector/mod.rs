//! Native sources and sinks, chosen by name with options.
//!
//! A source is a [`SplitEnumerator`] in the JobMaster, which deals splits, and a
//! [`SourceReader`] in each task, which reads them. A sink is a [`SinkWriter`] in
//! each task and a [`SinkCommitter`] in the JobMaster, which makes the output
//! visible when a checkpoint is complete, or when a job without checkpoints has finished.
//!
//! | connector                     | after a failure, from a checkpoint                              |
//! |-------------------------------|-----------------------------------------------------------------|
//! | sources `file`, `sequence`, `nexmark` | go on with the row behind the last one before the checkpoint |
//! | sources `socket`, `stdin`     | go on with what comes then: what was read behind the checkpoint is lost |
//! | sink `file`                   | each row stands in it once                                      |
//! | sinks `print`, `socket`       | rows behind the checkpoint come again: each at least once       |
//!
//! A file of a source must stay as it is until its job has ended; rows may be put behind its end.
//! A row that was refused may be refused again after a failure.
//!
//! Options of the sources:
//!
//! | name       | option                    | value                                                    |
//! |------------|---------------------------|----------------------------------------------------------|
//! | `file`     | `path`                    | file, directory or glob; `artifact:NAME`: an artifact of the job |
//! |            | `compression`             | `auto` (default: by content, then by name), `none`, `gzip`, `zstd` |
//! |            | `watch`                   | `true`: look for new files for ever; default `false`     |
//! |            | `watch-interval`          | pause between two looks, default `1 s`                   |
//! |            | `chunk-bytes`             | at most `8 MiB`; default: by the size of the file        |
//! |            | `read-order`              | `in-order` (default): one file after the other; `side-by-side`: together, the one furthest behind in event time first; `auto`: side by side if there are several |
//! | `socket`   | `address`                 | `host:port` to connect to; read by one subtask           |
//! | `stdin`    |                           | standard input; read by one subtask                      |
//! | these      | `format`                  | `lines` (default), `json` (lines of JSON), `csv`         |
//! |            | `csv-delimiter`           | one ASCII character or `tab`, default `,`                |
//! |            | `csv-header`              | `true`: the first line of each file names the columns    |
//! |            | `json-skip-other`         | `true`: records that become the variant marked `#[record(other)]` are left out |
//! | `sequence` | `from`, `to`              | whole numbers, both included                             |
//! | `nexmark`  | `events`                  | number of events; without it they do not end             |
//! |            | `base-time`               | event time of the first event, ms since the epoch        |
//! |            | `first-rate`, `next-rate` | events per second of event time, default 1000            |
//! |            | `out-of-order-group-size` | events that are mixed, default 1                         |
//! | all        | `rate`                    | rows per second of all subtasks together                 |
//! |            | `watermark-alignment-group` | sources of one group wait for each other in event time |
//! |            | `watermark-alignment-max-drift` | how far its watermark may be above the group's least |
//! |            | `watermark-alignment-update-interval` | time between two reports, default `1 s`        |
//!
//! Options of the sinks:
//!
//! | name      | option    | value                                          |
//! |-----------|-----------|------------------------------------------------|
//! | `file`    | `path`    | a new or empty directory, or the one that a checkpoint was written with |
//! | `print`   | `stream`  | `stdout` (default), `stderr`                   |
//! |           | `prefix`  | text before each row                           |
//! | `socket`  | `address` | `host:port` to connect to, from each subtask   |
//! | `discard` |           |                                                |
//!
//! Rows of `file` and `socket` are lines, and read as such again: a row that has a line
//! break within is refused, by the policy `execution.row-errors.policy`. `print` writes it as it is.

mod options;
mod encoding;
mod alignment;
mod rate_limiter;
mod line_blocks;
mod record_decoder;
mod text_rows;
mod split_queue;
mod file;
mod socket;
mod stream;
mod sequence;
mod nexmark;
mod print;
mod discard;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use alignment::AlignmentOptions;
pub use file::HiddenLeftovers;

use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::nearest,
        ids::JobId,
        stream_element::{CheckpointId, RecordBatch},
    },
    graph::{
        job_graph::{Artifact, Grants},
        stream_graph::ConnectorSpec,
    },
};

/// Whether a connector reads or writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It reads.
    Source,
    /// It writes.
    Sink,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
        }
    }
}

/// A source with its options, validated.
enum SourceConnector {
    File(file::FileSourceOptions),
    Stream(stream::StreamOptions),
    Sequence(sequence::SequenceOptions),
    Nexmark(nexmark::NexmarkOptions),
}

const SOURCES: [&str; 5] = ["file", "socket", "stdin", "sequence", "nexmark"];

impl SourceConnector {
    fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let connector = match spec.name.as_str() {
            "file" => file::FileSourceOptions::parse(spec).map(Self::File),
            "socket" => stream::StreamOptions::parse_socket(spec).map(Self::Stream),
            "stdin" => stream::StreamOptions::parse_stdin(spec).map(Self::Stream),
            "sequence" => sequence::SequenceOptions::parse(spec).map(Self::Sequence),
            "nexmark" => nexmark::NexmarkOptions::parse(spec).map(Self::Nexmark),
            name => Err(unknown(Role::Source, name, &SOURCES)),
        };
        AlignmentOptions::parse(spec)?;
        connector
    }

    fn check_record_type(&self, spec: &ConnectorSpec, record_type: &str) -> Result<(), ConnectorError> {
        let decodes = |format| record_decoder::RecordDecoder::new(format, record_type, spec, usize::MAX).map(drop);
        match self {
            Self::File(options) => decodes(options.format()),
            Self::Stream(options) => decodes(options.format()),
            Self::Sequence(_) => sequence::check_record_type(spec, record_type),
            Self::Nexmark(_) => nexmark::check_record_type(spec, record_type),
        }
    }

    fn check_access(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        match self {
            Self::File(options) => options.check(permissions),
            Self::Stream(options) => options.check(permissions),
            Self::Sequence(_) | Self::Nexmark(_) => Ok(()),
        }
    }
}

/// A sink with its options, validated.
enum SinkConnector {
    File(file::FileSinkOptions),
    Print(print::PrintOptions),
    Socket(socket::SocketSinkOptions),
    Discard,
}

const SINKS: [&str; 4] = ["file", "print", "socket", "discard"];

/// True for sources that can read their rows again after a failure.
pub fn can_replay(source: &str) -> bool {
    !matches!(source, "socket" | "stdin")
}

/// True for sinks that commit in two phases: what they have ready is kept in checkpoints until it is visible.
pub fn keeps_output(sink: &str) -> bool {
    sink == "file"
}

impl SinkConnector {
    fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        match spec.name.as_str() {
            "file" => file::FileSinkOptions::parse(spec).map(Self::File),
            "print" => print::PrintOptions::parse(spec).map(Self::Print),
            "socket" => socket::SocketSinkOptions::parse(spec).map(Self::Socket),
            "discard" => options::Options::new(spec, Role::Sink, &[]).map(|_| Self::Discard),
            name => Err(unknown(Role::Sink, name, &SINKS)),
        }
    }

    fn check_record_type(&self, spec: &ConnectorSpec, record_type: &str) -> Result<(), ConnectorError> {
        match self {
            Self::File(_) | Self::Print(_) | Self::Socket(_) => text_rows::TextRows::new(record_type, spec).map(drop),
            Self::Discard => Ok(()),
        }
    }

    fn check_access(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        match self {
            Self::File(options) => options.check(permissions),
            Self::Socket(options) => options.check(permissions),
            Self::Print(_) | Self::Discard => Ok(()),
        }
    }
}

fn unknown(role: Role, name: &str, known: &[&str]) -> ConnectorError {
    let hint = match nearest(name, known.iter().copied()) {
        Some(nearest) => format!("did you mean \"{nearest}\"?"),
        None => format!("there are {}", known.join(", ")),
    };
    ConnectorError::Unknown { role: role.word(), name: name.to_owned(), hint }
}

/// Checks name and options of a connector, without opening anything.
///
/// # Errors
/// Returns an error if the name or an option is unknown, missing or invalid.
pub fn validate(spec: &ConnectorSpec, role: Role) -> Result<(), ConnectorError> {
    match role {
        Role::Source => SourceConnector::parse(spec).map(drop),
        Role::Sink => SinkConnector::parse(spec).map(drop),
    }
}

/// Checks name, options and record type of a connector, without opening anything.
///
/// # Errors
/// Returns an error if [`validate`] does, or the connector cannot have records of the type.
pub fn check_record_type(spec: &ConnectorSpec, role: Role, record_type: &str) -> Result<(), ConnectorError> {
    match role {
        Role::Source => SourceConnector::parse(spec)?.check_record_type(spec, record_type),
        Role::Sink => SinkConnector::parse(spec)?.check_record_type(spec, record_type),
    }
}

/// What the path of a file source begins with if it names an artifact of its job; the name follows.
pub const ARTIFACT_PREFIX: &str = "artifact:";

/// Checks that the artifact that a source reads, if it reads one, is among those of its job.
///
/// # Errors
/// Returns an error that names those of the job if not, or if the options are invalid.
pub fn check_artifact(spec: &ConnectorSpec, artifacts: &[Artifact]) -> Result<(), ConnectorError> {
    let SourceConnector::File(options) = SourceConnector::parse(spec)? else { return Ok(()) };
    match options.artifact() {
        Some(name) if artifacts.iter().all(|artifact| artifact.name != name) => {
            Err(no_artifact(name, artifacts.iter().map(|artifact| artifact.name.as_str())))
        }
        Some(_) | None => Ok(()),
    }
}

fn no_artifact<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> ConnectorError {
    let known: Vec<&str> = known.collect();
    let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
    ConnectorError::NoArtifact { name: name.to_owned(), known }
}

/// Looks whether there is what a source reads, and whether a sink can use its
/// destination, so that a job that cannot work is refused before it runs. Changes
/// nothing; may read directories, so that it belongs on a thread that may wait.
///
/// # Errors
/// Returns an error if not, or if it was not granted.
pub fn check_access(spec: &ConnectorSpec, role: Role, permissions: &Permissions) -> Result<(), ConnectorError> {
    match role {
        Role::Source => SourceConnector::parse(spec)?.check_access(permissions),
        Role::Sink => SinkConnector::parse(spec)?.check_access(permissions),
    }
}

/// Checks that no two of a job's file sinks, given with their names, write into one
/// directory or one inside the other.
///
/// # Errors
/// Returns the name of the second one of such a pair, and an error that names the first.
pub fn check_destinations_apart<'a>(
    sinks: impl Iterator<Item = (&'a str, &'a ConnectorSpec)>,
) -> Result<(), (&'a str, ConnectorError)> {
    let mut destinations: Vec<(&str, PathBuf)> = Vec::new();
    for (name, spec) in sinks {
        let Ok(SinkConnector::File(options)) = SinkConnector::parse(spec) else { continue };
        // What cannot be looked at is refused for that reason.
        let Ok(path) = canonical_destination(options.path()) else { continue };
        let overlaps = |(_, other): &&(&str, PathBuf)| path.starts_with(other) || other.starts_with(&path);
        if let Some((other, other_path)) = destinations.iter().find(overlaps) {
            let (other, other_path) = ((*other).to_owned(), other_path.clone());
            return Err((name, ConnectorError::SharedDestination { other, other_path, path }));
        }
        destinations.push((name, path));
    }
    Ok(())
}

/// Makes the enumerator of a source, which goes on from what was restored. May read directories, so that it belongs on a thread that may wait.
///
/// # Errors
/// Returns an error if the options are invalid, the input cannot be listed, was
/// not granted, or does not give records of the type, or what is restored is damaged.
pub fn create_enumerator(
    spec: &ConnectorSpec,
    parallelism: u32,
    record_type: &str,
    permissions: Arc<Permissions>,
    restored: Option<RestoredSource>,
) -> Result<Box<dyn SplitEnumerator>, ConnectorError> {
    let connector = SourceConnector::parse(spec)?;
    connector.check_record_type(spec, record_type)?;
    Ok(match connector {
        SourceConnector::File(options) => {
            Box::new(file::FileEnumerator::new(options, parallelism, permissions, Clock::System, restored)?)
        }
        SourceConnector::Stream(options) => {
            options.check(&permissions)?;
            Box::new(stream::enumerator(parallelism, restored.as_ref())?)
        }
        SourceConnector::Sequence(options) => {
            let mut enumerator = sequence::SequenceEnumerator::new(&options, parallelism);
            restored.map(|restored| enumerator.restore(restored)).transpose()?;
            Box::new(enumerator)
        }
        SourceConnector::Nexmark(_) => Box::new(nexmark::enumerator(parallelism, restored)?),
    })
}

/// Makes the reader of one subtask.
///
/// # Errors
/// Returns an error if the options are invalid or do not give records of the type.
pub fn create_reader(spec: &ConnectorSpec, context: ReaderContext) -> Result<Box<dyn SourceReader>, ConnectorError> {
    Ok(match SourceConnector::parse(spec)? {
        SourceConnector::File(options) => Box::new(file::FileReader::new(&options, spec, context)?),
        SourceConnector::Stream(options) => Box::new(stream::StreamReader::new(&options, spec, context)?),
        SourceConnector::Sequence(options) => Box::new(sequence::SequenceReader::new(&options, spec, &context)?),
        SourceConnector::Nexmark(options) => Box::new(nexmark::NexmarkReader::new(&options, spec, context)?),
    })
}

/// Makes the writer of one subtask. A socket sink connects.
///
/// # Errors
/// Returns an error if the options are invalid, the records are not text, or the
/// destination was not granted or cannot be opened.
pub fn create_writer(spec: &ConnectorSpec, context: WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
    Ok(match SinkConnector::parse(spec)? {
        SinkConnector::File(options) => Box::new(file::FileWriter::new(&options, spec, context)?),
        SinkConnector::Print(options) => Box::new(print::PrintWriter::new(&options, spec, context)?),
        SinkConnector::Socket(options) => Box::new(socket::SocketWriter::new(&options, spec, context)?),
        SinkConnector::Discard => Box::new(discard::DiscardWriter),
    })
}

/// Makes the committer of a sink.
///
/// # Errors
/// Returns an error if the options are invalid or the destination was not granted.
pub fn create_committer(
    spec: &ConnectorSpec,
    job_id: JobId,
    permissions: Arc<Permissions>,
) -> Result<Box<dyn SinkCommitter>, ConnectorError> {
    Ok(match SinkConnector::parse(spec)? {
        SinkConnector::File(options) => Box::new(file::FileCommitter::new(options, job_id, permissions)),
        SinkConnector::Socket(options) => {
            options.check(&permissions)?;
            Box::new(discard::NothingToCommit)
        }
        SinkConnector::Print(_) | SinkConnector::Discard => Box::new(discard::NothingToCommit),
    })
}

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

    /// What is still to be dealt, what was given back included, in the connector's encoding.
    fn snapshot(&self) -> Vec<u8>;

    /// False if what a reader has read cannot be read again, so that a restart loses it.
    fn is_replayable(&self) -> bool {
        true
    }
}

/// What a source goes on from.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RestoredSource {
    /// See [`SplitEnumerator::snapshot`].
    pub enumerator: Vec<u8>,
    /// What the readers had left to read, each with the subtask index it had then.
    pub splits: Vec<(u32, SourceSplit)>,
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

/// A reader that holds several splits together goes from one to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SplitChange {
    /// The rows of the following batches come from this split. One that was not named
    /// before begins: it takes part in the watermark from here on, also without rows.
    Begin(u32),
    /// The split was read to its end.
    End(u32),
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

    /// What is left to read of the splits that it was given, from the row behind the last
    /// one it returned on; given back to an enumerator, all of it is read, and nothing twice.
    fn snapshot(&mut self) -> Vec<SourceSplit>;

    /// Takes what changed since the last time, which holds before the rows of the last batch. A
    /// reader that reads one split after the other, in the order of event time, names none.
    fn take_split_changes(&mut self) -> Vec<SplitChange> {
        Vec::new()
    }

    /// Takes the highest event time that was seen in a split.
    fn report_split_time(&mut self, _split: u32, _time: Timestamp) {}

    /// Where reading stands, for messages: "input.log line 17" or "sequence at 5".
    fn position(&self) -> String;

    /// Where a row of the last batch was read, by its zero-based number in it, for
    /// messages; where that is not known, where reading stands.
    fn row_position(&mut self, _row: u32) -> String {
        self.position()
    }
}

/// "input.log line 17" after 17 lines.
fn line_position(name: &str, lines: u64) -> String {
    if lines == 0 { format!("{name} before its first line") } else { format!("{name} line {lines}") }
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
    /// Longest row in bytes (`sandbox.row.bytes-max`); longer ones do not fit.
    pub row_bytes_max: usize,
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

    /// Completes what was written since the last time, durably, and returns what the
    /// committer needs to make it visible when the checkpoint is complete. Later rows belong
    /// to the next one.
    ///
    /// The caller keeps what is returned until a checkpoint that holds it is complete: one that was
    /// aborted, and a savepoint, make nothing visible, so that the next checkpoint has to hold it
    /// too. Of a job with checkpoints, the one behind the end of the input completes the output.
    ///
    /// # Errors
    /// Returns an error if the output cannot be completed.
    fn prepare_commit(&mut self, checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError>;

    /// Ends the output of a job without checkpoints and returns what the committer needs to
    /// make it visible when the job has finished. Not called where checkpoints are taken.
    ///
    /// # Errors
    /// Returns an error if the output cannot be completed.
    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError>;
}

/// Output of one writer that waits to be made visible, in the connector's encoding.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Committable(pub Vec<u8>);

/// What a destination is brought to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RestoredOutput {
    /// The job that took the checkpoint or savepoint.
    pub job: JobId,
    /// Its number.
    pub checkpoint_id: CheckpointId,
    /// What it holds of the sink.
    pub committables: Vec<Committable>,
    /// It is a savepoint that its job stopped with, which was noted when nothing could make the job go on: all of it
    /// was committed, so that what is not there any more was taken away.
    pub was_committed: bool,
}

/// Makes the output of a sink visible; lives in the JobMaster.
///
/// Before tasks run, either [`prepare`](Self::prepare) or [`recover`](Self::recover) is called, never
/// both: a job that begins anew must not find what it wrote before, one that goes on must.
pub trait SinkCommitter: Send {
    /// The last checkpoint of the job of which the destination says that it was committed, 0 before the first: read
    /// before anything is done to it, so that it can be left alone if that checkpoint is not found. None: there is
    /// nothing of the job, or the destination does not say.
    ///
    /// # Errors
    /// Returns an error if the destination cannot be looked at.
    fn committed(&self) -> Result<Option<CheckpointId>, ConnectorError> {
        Ok(None)
    }

    /// Checks the destination before any task of a job that begins from nothing runs: a new or
    /// empty directory, or one that this job wrote into when it was killed, of which that is removed.
    ///
    /// # Errors
    /// Returns an error that says why the destination cannot be used.
    fn prepare(&mut self) -> Result<(), ConnectorError>;

    /// Makes the destination what it was at a checkpoint or savepoint, before any task runs: commits
    /// what belongs to it, as that may not have been done, and removes what came later. Idempotent.
    ///
    /// # Errors
    /// Returns an error if the destination is not this job's, or cannot be brought there.
    fn recover(&mut self, restored: RestoredOutput) -> Result<(), ConnectorError>;

    /// Makes committables visible: of a completed checkpoint, or of all finished subtasks. Each may
    /// be given several times, and is made visible once.
    ///
    /// # Errors
    /// Returns an error if one cannot be made visible.
    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError>;

    /// What a checkpoint that the job can come back to had for the sink was committed; not said of a savepoint that
    /// stops the job, nor of its end.
    ///
    /// # Errors
    /// Returns an error if that cannot be noted.
    fn checkpoint_committed(&mut self, _checkpoint_id: CheckpointId) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// A savepoint that commits nothing holds these, or a checkpoint that outlives its job: until they are committed,
    /// they must survive whatever becomes of the job, so that another one can start from it.
    ///
    /// # Errors
    /// Returns an error if that cannot be had; the savepoint or checkpoint is of no use then.
    fn keep(&mut self, _checkpoint_id: CheckpointId, _committables: &[Committable]) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// Removes what unfinished attempts left behind, and gives the destination free. Called again
    /// when the job's end is durable, until when a crash would make the job go on.
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
    /// Decides over a row that cannot be written.
    pub reject: Box<RejectWrite<'static>>,
    /// True once the task was told to stop: a writer that waits for whoever takes its rows looks often.
    pub is_canceled: Box<dyn Fn() -> bool>,
}

/// How often a writer that waits looks whether its task was told to stop.
const CANCEL_LOOK: Duration = Duration::from_millis(100);

/// Is given a row's zero-based number in the batch, what is wrong with it, and the
/// row; returns nothing if it is to be passed over, or else the error that ends writing.
pub type RejectWrite<'a> = dyn FnMut(u32, &str, &[u8]) -> Result<(), ConnectorError> + 'a;

/// What a job may open; the check that each connector makes before it opens anything.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    /// Canonical files, directories with all below them, and globs below a
    /// canonical directory, that may be read.
    pub read: Vec<PathBuf>,
    /// Canonical directories that may be written into.
    pub write: Vec<PathBuf>,
    /// Addresses `host:port` that may be used.
    pub net: Vec<String>,
    /// Files of the job's artifacts by name; they may be read.
    pub artifacts: BTreeMap<String, PathBuf>,
}

impl From<&Grants> for Permissions {
    /// Without artifacts.
    fn from(grants: &Grants) -> Self {
        let Grants { read, write, net } = grants.clone();
        Self { read, write, net, artifacts: BTreeMap::new() }
    }
}

impl Permissions {
    /// Returns the canonical form of a path that may be read, or the file of the artifact that it names.
    ///
    /// # Errors
    /// Returns an error if there is no such path or artifact, or it was not granted.
    pub fn readable(&self, path: &Path) -> Result<PathBuf, ConnectorError> {
        if let Some(name) = artifact_of(path) {
            let file = self.artifacts.get(name).cloned();
            return file.ok_or_else(|| no_artifact(name, self.artifacts.keys().map(String::as_str)));
        }
        let canonical = path.canonicalize().map_err(|source| ConnectorError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        if self.read.iter().any(|granted| canonical.starts_with(granted) || glob_holds(granted, &canonical)) {
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

/// Name of the artifact that a path stands for.
fn artifact_of(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(ARTIFACT_PREFIX)
}

/// True if a granted glob matches the path or a directory that holds it. What exists as a path is that path, even with
/// wildcards in its name.
fn glob_holds(granted: &Path, canonical: &Path) -> bool {
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let Some(pattern) = granted.to_str().filter(|text| text.contains(['*', '?', '['])) else { return false };
    if granted.symlink_metadata().is_ok() {
        return false;
    }
    glob::Pattern::new(pattern)
        .is_ok_and(|pattern| canonical.ancestors().any(|path| pattern.matches_path_with(path, options)))
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

/// Looks whether files can be made in a directory, which need not exist.
///
/// # Errors
/// Returns an error if it is no directory, or it or the nearest directory above it
/// that exists cannot be written into.
pub fn check_writable_directory(path: &Path) -> std::io::Result<()> {
    let mut existing = path;
    let metadata = loop {
        match std::fs::metadata(existing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                existing = existing.parent().ok_or(error)?;
            }
            found => break found?,
        }
    };
    if !metadata.is_dir() {
        return Err(std::io::ErrorKind::NotADirectory.into());
    }
    Ok(rustix::fs::access(existing, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?)
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
    /// A source reads an artifact that its job does not have.
    #[error("the job has no artifact \"{name}\", {known}; submit it with --artifact {name}=PATH")]
    NoArtifact {
        /// As the source names it.
        name: String,
        /// The artifacts of the job.
        known: String,
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
    #[error("{} is not empty: a file sink needs a new or empty directory{leftovers}", path.display())]
    DestinationNotEmpty {
        /// The directory.
        path: PathBuf,
        /// What is to be removed, if a killed job left all that is there.
        leftovers: HiddenLeftovers,
    },
    /// Rows that a checkpoint or savepoint holds are gone.
    #[error("{} is missing, and so is {visible_name}, which it would be if it were committed: rows would be lost; put \
             one of them back, or go on from another checkpoint or savepoint", hidden.display())]
    PartMissing {
        /// Where it was, or should be, before it was committed.
        hidden: PathBuf,
        /// What it becomes.
        visible_name: String,
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
    /// The task was told to stop while a writer waited.
    #[error("the task was told to stop")]
    Canceled,
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
    /// Output of two sinks would mix.
    #[error(
        "it writes into {} and operator \"{other}\" into {}: give each file sink a directory of its own, none within another's",
        path.display(), other_path.display()
    )]
    SharedDestination {
        /// The other sink.
        other: String,
        /// Its directory.
        other_path: PathBuf,
        /// The directory.
        path: PathBuf,
    },
    /// A split or committable is not one of this connector's: a bug.
    #[error("{0} is damaged, or that of another connector: one that takes the place of another needs another uid")]
    Damaged(&'static str),
}

/// Rows as they are handed over, without a copy.
pub type Block = Bytes;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod position_tests;

#[cfg(test)]
mod two_phase_tests;
