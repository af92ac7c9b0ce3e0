//! Text files as a sink: part files that are hidden until they are committed.
//!
//! Each writer writes a hidden file `.part-SUBTASK-ATTEMPT-TOKEN-NUMBER.inprogress`. At a
//! checkpoint the file is closed and made durable, and the next row begins another one. When
//! the checkpoint is complete, the committer renames it to `part-SUBTASK-CHECKPOINT-OWNER`. Without
//! checkpoints there is one file, renamed to `part-SUBTASK-ATTEMPT-OWNER-end` when the job has finished.
//! A subtask that got no rows has no part file. OWNER is eight digits that stand for the job whose
//! rows they are (see [`Owner`]): a job that goes on from the savepoint of another finds that one's
//! parts in the directory, and neither takes a file of the same number for its own nor removes it.
//!
//! A directory is claimed for a job by a hidden file `.job-ID`, so that two jobs do not write
//! into it, and a job that was killed finds it again. The claim holds the number of the last
//! checkpoint that was committed: a part up to that one may have been taken away by whoever
//! reads the output, one behind it may not. If that checkpoint is not found when the job is recovered,
//! its storage is away, and nothing here is touched. A savepoint that stopped the job is not noted: the
//! job does not come back to it.
//!
//! A savepoint commits nothing, so that its hidden parts may be committed by nobody else than a job
//! that starts from it. A hidden file `.savepoint-NUMBER-OWNER` lists them: they survive the job, and
//! its restarts, until they are committed or somebody removes them. A checkpoint that outlives its job has
//! such a list too, if not all of it could be committed.
//!
//! Invariants: what is visible holds complete rows only and never changes; a
//! committable is renamed once, however often it is committed, and never over another file.
//! A visible part goes away only if its own job is brought back to an older checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    ops::Range,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::io_error;
use crate::{
    base::{
        failpoint,
        ids::JobId,
        stream_element::{CheckpointId, RecordBatch},
    },
    connector::{
        Committable, ConnectorError, Permissions, RejectWrite, RestoredOutput, Role, SinkCommitter, SinkWriter,
        WriterContext, check_writable_directory, encoding, options::Options, text_rows::TextRows,
    },
    failpoint,
    graph::stream_graph::ConnectorSpec,
};

/// Rows gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;
/// The kernel is asked to write to the disk each time that this many bytes were written.
const WRITEBACK_BYTES: u64 = 8 << 20;
const VISIBLE_PREFIX: &str = "part-";
const END_SUFFIX: &str = "-end";
const HIDDEN_PREFIX: &str = ".part-";
const HIDDEN_SUFFIX: &str = ".inprogress";
const CLAIM_PREFIX: &str = ".job-";
const SAVEPOINT_PREFIX: &str = ".savepoint-";
/// Files that are removed are named in the log up to this number.
const LOGGED_NAMES_MAX: usize = 10;

/// Validated options of the sink.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::connector) struct FileSinkOptions {
    path: PathBuf,
}

impl FileSinkOptions {
    pub(in crate::connector) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let options = Options::new(spec, Role::Sink, &["path"])?;
        Ok(Self { path: PathBuf::from(options.required("path")?) })
    }

    /// The directory, as it was given.
    pub(in crate::connector) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks whether the directory is new or empty and can be written into.
    pub(in crate::connector) fn check(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        let directory = permissions.writable(&self.path)?;
        check_writable_directory(&directory).map_err(io_error("write into", &self.path))?;
        let found = names(&directory)?;
        if found.is_empty() { Ok(()) } else { Err(not_empty(&self.path, &found)) }
    }
}

/// Names in the directory; none if it is not there.
fn names(directory: &Path) -> Result<Vec<PathBuf>, ConnectorError> {
    match fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io_error("list", directory)(error)),
    }
}

fn not_empty(path: &Path, names: &[PathBuf]) -> ConnectorError {
    let leftovers = HiddenLeftovers::among(names.iter().filter_map(|name| name.file_name()));
    ConnectorError::DestinationNotEmpty { path: path.to_owned(), leftovers }
}

/// A part file that is complete and hidden.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Part {
    /// Where it was written, canonical.
    directory: String,
    hidden: HiddenName,
    bytes: u64,
    becomes: Becomes,
}

/// Tells the hidden files of all writers apart, also of those before a restart, whose
/// attempts have the same numbers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct HiddenName {
    subtask_index: u32,
    attempt_number: u32,
    /// Drawn by the writer.
    token: u32,
    /// Of the files of one writer.
    number: u32,
}

impl fmt::Display for HiddenName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subtask_index, attempt_number, token, number } = self;
        write!(formatter, "{HIDDEN_PREFIX}{subtask_index}-{attempt_number}-{token:08x}-{number}{HIDDEN_SUFFIX}")
    }
}

/// What a part becomes when it is committed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Becomes {
    /// Output of the time before a checkpoint.
    OfCheckpoint(CheckpointId),
    /// The end of the output of a job without checkpoints.
    End,
}

/// Stands for a job in the names of its files: the CRC-32 of its id, since ids that people choose begin alike.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Owner(u32);

impl Owner {
    fn of(job_id: JobId) -> Self {
        Self(crc32fast::hash(job_id.to_string().as_bytes()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08x}", self.0)
    }
}

impl Part {
    fn visible_name(&self, owner: Owner) -> String {
        let HiddenName { subtask_index, attempt_number, .. } = self.hidden;
        match self.becomes {
            Becomes::OfCheckpoint(id) => format!("{VISIBLE_PREFIX}{subtask_index}-{id}-{owner}"),
            Becomes::End => format!("{VISIBLE_PREFIX}{subtask_index}-{attempt_number}-{owner}{END_SUFFIX}"),
        }
    }

    /// The checkpoint that it belongs to.
    fn checkpoint(&self) -> Option<CheckpointId> {
        match self.becomes {
            Becomes::OfCheckpoint(id) => Some(id),
            Becomes::End => None,
        }
    }

    fn encode(&self) -> Committable {
        Committable(encoding::encode(self))
    }

    fn decode(committable: &Committable) -> Result<Self, ConnectorError> {
        encoding::decode(&committable.0, "a committable of a file sink")
    }
}

/// Writes the part files of one subtask.
pub(in crate::connector) struct FileWriter {
    directory: PathBuf,
    /// Of the file that is written.
    name: HiddenName,
    /// Written into it.
    bytes: u64,
    /// Of those, on their way to the disk.
    bytes_sent: u64,
    /// Made for the first row behind a checkpoint.
    file: Option<File>,
    rows: TextRows,
    reject: Box<RejectWrite<'static>>,
    buffer: Vec<u8>,
}

impl FileWriter {
    pub(in crate::connector) fn new(
        options: &FileSinkOptions,
        spec: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Self, ConnectorError> {
        let directory = context.permissions.writable(&options.path)?;
        let name = HiddenName {
            subtask_index: context.subtask_index,
            attempt_number: context.attempt_number,
            token: rand::random(),
            number: 0,
        };
        let rows = TextRows::new(&context.record_type, spec)?;
        Ok(Self {
            directory,
            name,
            bytes: 0,
            bytes_sent: 0,
            file: None,
            rows,
            reject: context.reject,
            buffer: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    fn hidden_path(&self) -> PathBuf {
        self.directory.join(self.name.to_string())
    }

    fn write_out(&mut self) -> Result<(), ConnectorError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = self.hidden_path();
        if self.file.is_none() {
            failpoint!("sink.file.create").map_err(io_error("create", &path))?;
            let created = OpenOptions::new().write(true).create_new(true).open(&path);
            self.file = Some(created.map_err(io_error("create", &path))?);
            failpoint!("sink.file.created").map_err(io_error("create", &path))?;
        }
        let file = self.file.as_mut().expect("opened above");
        write_buffer(file, &mut self.buffer, &mut self.bytes).map_err(io_error("write to", &path))?;
        if WRITEBACK_BYTES <= self.bytes - self.bytes_sent {
            start_writeback(file, self.bytes_sent..self.bytes);
            self.bytes_sent = self.bytes;
        }
        failpoint!("sink.file.written").map_err(io_error("write to", &path))
    }

    /// Ends the file that is written, durably; none: there were no rows.
    fn complete(&mut self, becomes: Becomes) -> Result<Option<Committable>, ConnectorError> {
        let path = self.hidden_path();
        failpoint!("sink.prepare").map_err(io_error("write to", &path))?;
        self.write_out()?;
        let Some(file) = self.file.take() else { return Ok(None) };
        file.sync_all().map_err(io_error("write to", &path))?;
        failpoint!("sink.prepare.synced").map_err(io_error("write to", &path))?;
        sync_directory(&self.directory)?;
        failpoint!("sink.prepared").map_err(io_error("write to", &path))?;
        let directory = self.directory.to_str().ok_or(ConnectorError::Io {
            action: "write into",
            path: self.directory.clone(),
            source: io::Error::new(ErrorKind::InvalidInput, "its name is not UTF-8"),
        })?;
        let part = Part { directory: directory.to_owned(), hidden: self.name, bytes: self.bytes, becomes };
        self.name.number += 1;
        self.bytes = 0;
        self.bytes_sent = 0;
        Ok(Some(part.encode()))
    }
}

/// Has the kernel begin to write a part of a file to the disk, so that there is little left to wait for
/// when all of it must be durable. What goes wrong is told then.
#[expect(unsafe_code, reason = "neither the standard library nor rustix has this call")]
fn start_writeback(file: &File, range: Range<u64>) {
    let (Ok(offset), Ok(bytes)) = (i64::try_from(range.start), i64::try_from(range.end - range.start)) else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call touches no memory of ours.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE) };
}

fn write_buffer(to: &mut impl Write, buffer: &mut Vec<u8>, written: &mut u64) -> io::Result<()> {
    failpoint::write("sink.file.write", buffer, |bytes| to.write_all(bytes))?;
    *written += buffer.len() as u64;
    buffer.clear();
    Ok(())
}

impl SinkWriter for FileWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.rows.append_lines(batch, &mut self.buffer, &mut *self.reject)?;
        if self.buffer.len() < BUFFER_BYTES {
            return Ok(());
        }
        self.write_out()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.write_out()
    }

    fn prepare_commit(&mut self, checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        Ok(self.complete(Becomes::OfCheckpoint(checkpoint_id))?.into_iter().collect())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        Ok(self.complete(Becomes::End)?.into_iter().collect())
    }
}

/// Makes part files visible.
pub(in crate::connector) struct FileCommitter {
    path: PathBuf,
    permissions: Arc<Permissions>,
    claim_name: String,
    owner: Owner,
    /// The last checkpoint of which all is visible; 0 before the first.
    committed: CheckpointId,
    /// The claim says so, and that survives a crash of the machine.
    claim_is_durable: bool,
    /// There are hidden parts that savepoints name.
    keeps_for_savepoints: bool,
}

/// What is in the directory, by name.
#[derive(Debug, Default)]
struct Contents {
    /// The job's own claim is there.
    claimed: bool,
    /// Hidden parts that no savepoint names.
    hidden: BTreeSet<String>,
    /// Visible parts, of this job and of others.
    visible: Vec<(VisiblePart, String)>,
    savepoints: Vec<SavepointParts>,
    /// Something that no job made.
    is_foreign: bool,
}

impl Contents {
    /// Visible parts of a job that do not belong to a checkpoint: those of later ones, and those of an
    /// end, which only a job without checkpoints has.
    fn later(&self, owner: Owner, checkpoint_id: CheckpointId) -> Vec<&String> {
        let parts = self.visible.iter().filter(|(part, _)| part.owner == owner && part.is_later(checkpoint_id));
        parts.map(|(_, name)| name).collect()
    }
}

/// The hidden parts that a savepoint names.
#[derive(Debug)]
struct SavepointParts {
    /// Of the list.
    file_name: String,
    owner: Option<Owner>,
    hidden: BTreeSet<String>,
}

impl SavepointParts {
    fn read(path: &Path, name: &str) -> Result<Self, ConnectorError> {
        let list = fs::read_to_string(path).map_err(io_error("read", path))?;
        let owner = name.rsplit_once('-').and_then(|(_, owner)| parse_owner(owner));
        Ok(Self { file_name: name.to_owned(), owner, hidden: list.lines().map(str::to_owned).collect() })
    }

    /// All lists of the directory.
    fn read_all(directory: &Path) -> Result<Vec<Self>, ConnectorError> {
        let names = names(directory)?;
        let named = names.iter().filter_map(|path| Some((path, path.file_name()?.to_str()?)));
        named
            .filter(|(_, name)| name.starts_with(SAVEPOINT_PREFIX))
            .map(|(path, name)| Self::read(path, name))
            .collect()
    }

    /// Removes the lists of which no part is hidden any more.
    fn forget_committed(directory: &Path) -> Result<(), ConnectorError> {
        for savepoint in Self::read_all(directory)? {
            if !savepoint.hidden.iter().any(|name| directory.join(name).exists()) {
                remove_file(&directory.join(&savepoint.file_name))?;
            }
        }
        Ok(())
    }
}

impl FileCommitter {
    pub(in crate::connector) fn new(options: FileSinkOptions, job_id: JobId, permissions: Arc<Permissions>) -> Self {
        Self {
            path: options.path,
            permissions,
            claim_name: format!("{CLAIM_PREFIX}{job_id}"),
            owner: Owner::of(job_id),
            claim_is_durable: false,
            keeps_for_savepoints: false,
            committed: 0,
        }
    }

    /// The directory, which is there.
    fn directory(&self) -> Result<PathBuf, ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        fs::create_dir_all(&directory).map_err(io_error("create", &self.path))?;
        Ok(directory)
    }

    fn contents(&self, directory: &Path) -> Result<Contents, ConnectorError> {
        let mut contents = Contents::default();
        for path in names(directory)? {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            match name {
                _ if name == self.claim_name => contents.claimed = true,
                _ if is_hidden_part(&path) => drop(contents.hidden.insert(name.to_owned())),
                _ if name.starts_with(SAVEPOINT_PREFIX) => contents.savepoints.push(SavepointParts::read(&path, name)?),
                _ => match visible_part(name) {
                    Some(part) => contents.visible.push((part, name.to_owned())),
                    None => contents.is_foreign = true,
                },
            }
        }
        for savepoint in &contents.savepoints {
            contents.hidden.retain(|name| !savepoint.hidden.contains(name));
        }
        Ok(contents)
    }

    /// Claims the directory for the job, and reads what it committed there.
    fn claim(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        let claim = directory.join(&self.claim_name);
        failpoint!("sink.claim").map_err(io_error("write to", &self.path))?;
        // Another job may claim the directory in this moment: whoever sees the other's claim gives way.
        OpenOptions::new().append(true).create(true).open(&claim).map_err(io_error("write to", &self.path))?;
        let is_foreign_claim = |name: &PathBuf| is_claim(name) && *name != claim;
        let mut others = names(directory)?;
        if others.iter().any(is_foreign_claim) {
            self.release_claim(directory)?;
            others.retain(|name| *name != claim);
            return Err(not_empty(&self.path, &others));
        }
        sync_directory(directory)?;
        self.committed = self.read_committed(directory)?.unwrap_or(0);
        self.claim_is_durable = false;
        failpoint!("sink.claimed").map_err(io_error("write to", &self.path))
    }

    /// The checkpoint up to which all is visible, as the claim says, or 0; none: there is no claim.
    fn read_committed(&self, directory: &Path) -> Result<Option<CheckpointId>, ConnectorError> {
        let claim = directory.join(&self.claim_name);
        let text = match fs::read_to_string(&claim) {
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => return Ok(None),
            read => read.map_err(io_error("read", &claim))?,
        };
        // A claim without a number says that nothing was committed: then each part must be there.
        Ok(Some(text.trim().parse().unwrap_or(0)))
    }

    /// Notes in the claim that all up to a checkpoint is visible. Of the numbers that this committer notes, the first
    /// survives a crash of the machine: that there is one tells that a checkpoint must be found. Which one matters
    /// only if somebody took parts away.
    fn note_committed(&mut self, directory: &Path, checkpoint_id: CheckpointId) -> Result<(), ConnectorError> {
        if checkpoint_id <= self.committed {
            return Ok(());
        }
        self.committed = checkpoint_id;
        let path = directory.join(&self.claim_name);
        let text = format!("{checkpoint_id}\n");
        // Written over: at no moment is there none.
        let noted = OpenOptions::new().write(true).create(true).truncate(false).open(&path).and_then(|mut claim| {
            claim.write_all(text.as_bytes())?;
            claim.set_len(text.len() as u64)?;
            if self.claim_is_durable { Ok(()) } else { claim.sync_all() }
        });
        self.claim_is_durable |= noted.is_ok();
        noted.map_err(io_error("write to", &path))
    }

    fn release_claim(&self, directory: &Path) -> Result<(), ConnectorError> {
        remove_file(&directory.join(&self.claim_name))
    }

    /// Where a part of a job is as long as it is hidden, and once it is visible.
    fn paths(&self, directory: &Path, part: &Part, owner: Owner) -> Result<(PathBuf, PathBuf), ConnectorError> {
        let in_directory =
            |directory: &Path| (directory.join(part.hidden.to_string()), directory.join(part.visible_name(owner)));
        let (hidden, visible) = in_directory(directory);
        if Path::new(&part.directory) == directory || hidden.exists() || visible.exists() {
            return Ok((hidden, visible));
        }
        // A savepoint that is restored may bring parts of a job that wrote elsewhere.
        Ok(in_directory(&self.permissions.writable(Path::new(&part.directory))?))
    }

    /// Makes a part of a job visible, unless it is. Returns where it was expected if it is nowhere.
    fn commit_part(&self, directory: &Path, part: Part, owner: Owner) -> Result<Option<PathBuf>, ConnectorError> {
        let (hidden, visible) = self.paths(directory, &part, owner)?;
        match fs::metadata(&hidden) {
            Ok(metadata) if metadata.len() == part.bytes => {
                failpoint!("sink.commit.rename").map_err(io_error("make visible", &hidden))?;
                rename_to_new(&hidden, &visible).map_err(io_error("make visible", &hidden))?;
                failpoint!("sink.commit.renamed").map_err(io_error("make visible", &hidden))?;
                Ok(None)
            }
            Ok(metadata) => {
                let problem = format!("it has {} bytes, but {} were written", metadata.len(), part.bytes);
                Err(io_error("make visible", &hidden)(io::Error::other(problem)))
            }
            // Committed before.
            Err(error) if error.kind() == ErrorKind::NotFound && visible.exists() => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound && self.was_committed(&part) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(hidden)),
            Err(error) => Err(io_error("make visible", &hidden)(error)),
        }
    }

    /// Looks whether a part is hidden or visible, or was.
    fn check_is_there(&self, directory: &Path, part: &Part, owner: Owner) -> Result<(), ConnectorError> {
        let (hidden, visible) = self.paths(directory, part, owner)?;
        if hidden.exists() || visible.exists() || self.was_committed(part) {
            return Ok(());
        }
        Err(ConnectorError::PartMissing { hidden, visible_name: part.visible_name(owner) })
    }

    /// True if the part was made visible and somebody took it away.
    fn was_committed(&self, part: &Part) -> bool {
        part.checkpoint().is_some_and(|id| id <= self.committed)
    }

    /// Makes the parts of a job visible. Those that are nowhere are an error, unless `was_committed`: then
    /// they were visible, and somebody took them away.
    fn commit_parts(
        &mut self,
        directory: &Path,
        parts: Vec<Part>,
        owner: Owner,
        was_committed: bool,
    ) -> Result<(), ConnectorError> {
        failpoint!("sink.commit").map_err(io_error("write to", directory))?;
        let mut elsewhere = BTreeSet::new();
        let mut missing = Vec::new();
        for part in parts {
            let (part_directory, visible_name) = (PathBuf::from(&part.directory), part.visible_name(owner));
            match self.commit_part(directory, part, owner) {
                Ok(None) => {}
                Ok(Some(_)) if was_committed => missing.push(visible_name),
                // It was visible there: nothing is to be done there, so that nothing need be granted.
                Err(ConnectorError::NotGranted { .. }) if was_committed => continue,
                Ok(Some(hidden)) => return Err(ConnectorError::PartMissing { hidden, visible_name }),
                Err(error) => return Err(error),
            }
            if part_directory != directory {
                elsewhere.insert(part_directory);
            }
        }
        if !missing.is_empty() {
            let (count, named) = (missing.len(), shortened(&missing));
            tracing::warn!(
                "{count} part files that were visible before the savepoint was complete are not in {} any more: {named}",
                directory.display()
            );
        }
        failpoint!("sink.commit.all-renamed").map_err(io_error("write to", directory))?;
        for other in elsewhere.iter().filter(|other| other.exists()) {
            SavepointParts::forget_committed(other)?;
            sync_directory(other)?;
        }
        sync_directory(directory)?;
        failpoint!("sink.commit.synced").map_err(io_error("write to", directory))?;
        if self.keeps_for_savepoints {
            SavepointParts::forget_committed(directory)?;
            self.keeps_for_savepoints = !SavepointParts::read_all(directory)?.is_empty();
        }
        failpoint!("sink.committed").map_err(io_error("write to", directory))
    }

    /// The parts of a savepoint without those in another directory into which a job is writing: that job makes them
    /// visible itself, or their rows again.
    fn without_those_in_use(
        &self,
        directory: &Path,
        restored: &RestoredOutput,
        parts: Vec<Part>,
    ) -> Result<Vec<Part>, ConnectorError> {
        let mut in_use = BTreeMap::new();
        let mut left = Vec::new();
        for part in parts {
            let other = Path::new(&part.directory);
            let hidden = other.join(part.hidden.to_string());
            // What is not granted is refused when it is to be made visible.
            let is_elsewhere = other != directory && self.permissions.writable(other).is_ok() && hidden.exists();
            if is_elsewhere && !in_use.contains_key(&part.directory) {
                in_use.insert(part.directory.clone(), self.is_in_use(other, &hidden, restored)?);
            }
            if !is_elsewhere || !in_use[&part.directory] {
                left.push(part);
            }
        }
        Ok(left)
    }

    /// True if a job is writing into another directory, in which a savepoint has `hidden` and other parts.
    ///
    /// # Errors
    /// Returns an error if the job of the savepoint has made their rows again.
    fn is_in_use(&self, other: &Path, hidden: &Path, restored: &RestoredOutput) -> Result<bool, ConnectorError> {
        if let Some(claim) = names(other)?.iter().find(|path| is_claim(path)) {
            tracing::info!(
                "rows of the savepoint in {} are left to the job that writes there, as {} says",
                other.display(),
                claim.display()
            );
            return Ok(true);
        }
        match self.contents(other)?.later(Owner::of(restored.job), restored.checkpoint_id).first() {
            None => Ok(false),
            Some(again) => {
                let problem = format!(
                    "the job of the savepoint went on behind it, {again} among others has its rows: start from a later \
                     savepoint, or move what came later out of that directory"
                );
                Err(io_error("make visible", hidden)(io::Error::other(problem)))
            }
        }
    }

    /// Removes what does not belong to a checkpoint, and makes visible what does.
    fn bring_to(
        &mut self,
        directory: &Path,
        restored: &RestoredOutput,
        parts: Vec<Part>,
        later: &[&String],
        unnamed: &[&String],
    ) -> Result<(), ConnectorError> {
        let checkpoint_id = restored.checkpoint_id;
        if !restored.was_committed {
            // Before anything is changed: from here, an older one may still be restored.
            parts.iter().try_for_each(|part| self.check_is_there(directory, part, Owner::of(restored.job)))?;
        }
        failpoint!("sink.recover.claimed").map_err(io_error("write to", directory))?;
        remove_files(directory, later, &format!("of checkpoints behind checkpoint {checkpoint_id}"))?;
        remove_files(directory, unnamed, &format!("that checkpoint {checkpoint_id} does not hold"))?;
        failpoint!("sink.recover.removed").map_err(io_error("write to", directory))?;
        let committed = parts.iter().filter_map(Part::checkpoint).max().unwrap_or(0);
        self.commit_parts(directory, parts, Owner::of(restored.job), restored.was_committed)?;
        self.note_committed(directory, committed)?;
        // What was committed of later checkpoints is gone.
        if checkpoint_id < self.committed {
            self.committed = 0;
            self.note_committed(directory, checkpoint_id)?;
        }
        Ok(())
    }

    fn refuse(&self, directory: &Path) -> ConnectorError {
        match names(directory) {
            Ok(found) => not_empty(&self.path, &found),
            Err(error) => error,
        }
    }
}

/// Renames a file, never over another one.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot check it by itself; nobody else makes files of this name.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            if to.exists() {
                Err(ErrorKind::AlreadyExists.into())
            } else {
                fs::rename(from, to)
            }
        }
        renamed => Ok(renamed?),
    }
}

/// A visible part, by its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct VisiblePart {
    /// Of a checkpoint, or of the attempt that ended a job without checkpoints.
    number: u64,
    owner: Owner,
    /// It ends the output of a job without checkpoints.
    is_end: bool,
}

impl VisiblePart {
    fn is_later(self, checkpoint_id: CheckpointId) -> bool {
        self.is_end || checkpoint_id < self.number
    }
}

fn visible_part(name: &str) -> Option<VisiblePart> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    let name = name.strip_prefix(VISIBLE_PREFIX)?;
    let (name, is_end) = name.strip_suffix(END_SUFFIX).map_or((name, false), |name| (name, true));
    let (subtask, name) = name.split_once('-')?;
    let (last, owner) = name.split_once('-')?;
    number(subtask)?;
    Some(VisiblePart { number: number(last)?, owner: parse_owner(owner)?, is_end })
}

fn parse_owner(text: &str) -> Option<Owner> {
    u32::from_str_radix(text, 16).ok().map(Owner).filter(|owner| owner.to_string() == text)
}

/// The first names, in a line.
fn shortened(names: &[impl AsRef<str>]) -> String {
    let named: Vec<_> = names.iter().take(LOGGED_NAMES_MAX).map(AsRef::as_ref).collect();
    let further = if names.len() > named.len() { " and others" } else { "" };
    format!("{}{further}", named.join(", "))
}

fn remove_files(directory: &Path, names: &[&String], why: &str) -> Result<(), ConnectorError> {
    if names.is_empty() {
        return Ok(());
    }
    let (count, named) = (names.len(), shortened(names));
    tracing::warn!("removing {count} part files {why} from {}: {named}", directory.display());
    names.iter().try_for_each(|name| remove_file(&directory.join(name)))
}

/// Removes a file, unless it is gone.
fn remove_file(path: &Path) -> Result<(), ConnectorError> {
    failpoint!("sink.remove").map_err(io_error("remove", path))?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn is_claim(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(CLAIM_PREFIX))
}

fn is_hidden_part(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with(HIDDEN_PREFIX) && name.ends_with(HIDDEN_SUFFIX)
}

/// The hidden files of file sinks in a directory that holds nothing else; as text
/// it goes on from the message that the directory is not empty.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HiddenLeftovers(Vec<String>);

impl HiddenLeftovers {
    /// Leftovers are named up to this number.
    const NAMED_MAX: usize = 3;

    /// All names, or none if one of them is something else.
    pub fn among<'a>(names: impl IntoIterator<Item = &'a OsStr>) -> Self {
        let leftover = |name: &'a OsStr| {
            let name = name.to_str()?;
            let is_of_job = [CLAIM_PREFIX, SAVEPOINT_PREFIX].iter().any(|prefix| name.starts_with(prefix));
            (is_of_job || is_hidden_part(Path::new(name))).then(|| name.to_owned())
        };
        let mut names: Vec<String> = names.into_iter().map(leftover).collect::<Option<_>>().unwrap_or_default();
        names.sort();
        Self(names)
    }
}

impl fmt::Display for HiddenLeftovers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let named = self.0.len().min(Self::NAMED_MAX);
        write!(formatter, "; it holds only hidden files of a job: {}", self.0[..named].join(", "))?;
        if self.0.len() > named {
            write!(formatter, " and {} more", self.0.len() - named)?;
        }
        if self.0.iter().any(|name| name.starts_with(SAVEPOINT_PREFIX)) {
            return write!(
                formatter,
                "; savepoints name rows in them: if none of those is needed any more, \
                 remove {SAVEPOINT_PREFIX}*, {CLAIM_PREFIX}* and {HIDDEN_PREFIX}*{HIDDEN_SUFFIX} there"
            );
        }
        write!(
            formatter,
            "; if that job was killed and no JobManager will recover it, \
             remove {CLAIM_PREFIX}* and {HIDDEN_PREFIX}*{HIDDEN_SUFFIX} there"
        )
    }
}

/// Makes renames in the directory survive a crash.
fn sync_directory(directory: &Path) -> Result<(), ConnectorError> {
    File::open(directory).and_then(|opened| opened.sync_all()).map_err(io_error("write to", directory))
}

impl SinkCommitter for FileCommitter {
    fn committed(&self) -> Result<Option<CheckpointId>, ConnectorError> {
        self.read_committed(&self.permissions.writable(&self.path)?)
    }

    fn prepare(&mut self) -> Result<(), ConnectorError> {
        let directory = self.directory()?;
        let contents = self.contents(&directory)?;
        let is_empty = contents.hidden.is_empty() && contents.visible.is_empty();
        let is_of_others = contents.visible.iter().any(|(part, _)| part.owner != self.owner)
            || contents.savepoints.iter().any(|savepoint| savepoint.owner != Some(self.owner));
        // What this job left behind when it was prepared before is no obstacle.
        if contents.is_foreign || is_of_others || !(contents.claimed || is_empty) {
            return Err(self.refuse(&directory));
        }
        self.claim(&directory)?;
        let parts: Vec<_> = contents.hidden.iter().chain(contents.visible.iter().map(|(_, name)| name)).collect();
        remove_files(&directory, &parts, "of a job that begins anew")?;
        self.committed = 0;
        self.keeps_for_savepoints = !contents.savepoints.is_empty();
        File::create(directory.join(&self.claim_name)).map_err(io_error("write to", &self.path))?;
        sync_directory(&directory)
    }

    fn recover(&mut self, restored: RestoredOutput) -> Result<(), ConnectorError> {
        let checkpoint_id = restored.checkpoint_id;
        let parts = restored.committables.iter().map(Part::decode).collect::<Result<Vec<_>, _>>()?;
        let directory = if Owner::of(restored.job) == self.owner {
            // It was there: if it is not, what it lies on may not be mounted yet.
            let directory = self.permissions.writable(&self.path)?;
            fs::metadata(&directory).map_err(io_error("go on writing into", &self.path))?;
            directory
        } else {
            self.directory()?
        };
        failpoint!("sink.recover").map_err(io_error("list", &directory))?;
        let contents = self.contents(&directory)?;
        let parts = self.without_those_in_use(&directory, &restored, parts)?;
        let named: BTreeSet<String> = parts.iter().map(|part| part.hidden.to_string()).collect();
        let unnamed: Vec<_> = contents.hidden.iter().filter(|name| !named.contains(*name)).collect();
        // Without a claim, the jobs that led to the savepoint may have left their output, and nothing else.
        let is_their_output =
            || unnamed.is_empty() && !contents.visible.iter().any(|(part, _)| part.is_later(checkpoint_id));
        if contents.is_foreign || !(contents.claimed || is_their_output()) {
            return Err(self.refuse(&directory));
        }
        self.claim(&directory)?;
        self.keeps_for_savepoints = !contents.savepoints.is_empty();
        let later = contents.later(self.owner, checkpoint_id);
        let recovered = self.bring_to(&directory, &restored, parts, &later, &unnamed);
        if recovered.is_err() && !contents.claimed {
            // It was not this job's before, and is not now.
            self.release_claim(&directory)?;
        }
        recovered?;
        failpoint!("sink.recovered").map_err(io_error("write to", &directory))
    }

    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        if committables.is_empty() {
            return Ok(());
        }
        let directory = self.permissions.writable(&self.path)?;
        let parts = committables.iter().map(Part::decode).collect::<Result<Vec<_>, _>>()?;
        self.commit_parts(&directory, parts, self.owner, false)
    }

    fn checkpoint_committed(&mut self, checkpoint_id: CheckpointId) -> Result<(), ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        self.note_committed(&directory, checkpoint_id)
    }

    fn keep(&mut self, checkpoint_id: CheckpointId, committables: &[Committable]) -> Result<(), ConnectorError> {
        if committables.is_empty() {
            return Ok(());
        }
        let directory = self.permissions.writable(&self.path)?;
        let parts = committables.iter().map(Part::decode).collect::<Result<Vec<_>, _>>()?;
        if !parts.iter().any(|part| directory.join(part.hidden.to_string()).exists()) {
            return Ok(());
        }
        let path = directory.join(format!("{SAVEPOINT_PREFIX}{checkpoint_id}-{}", self.owner));
        let list: String = parts.iter().map(|part| format!("{}\n", part.hidden)).collect();
        let mut file = File::create(&path).map_err(io_error("write to", &path))?;
        file.write_all(list.as_bytes()).and_then(|()| file.sync_all()).map_err(io_error("write to", &path))?;
        self.keeps_for_savepoints = true;
        sync_directory(&directory)
    }

    fn abort(&mut self) -> Result<(), ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        // Without a claim, what is there is not this job's. One may have been left by a JobMaster of it that died.
        if !directory.join(&self.claim_name).exists() {
            return Ok(());
        }
        for name in self.contents(&directory)?.hidden {
            remove_file(&directory.join(name))?;
        }
        SavepointParts::forget_committed(&directory)?;
        failpoint!("sink.release").map_err(io_error("write to", &directory))?;
        self.release_claim(&directory)?;
        failpoint!("sink.released").map_err(io_error("write to", &directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut buffer = b"row\n".to_vec();
        let mut written = 0;
        let error = write_buffer(&mut full, &mut buffer, &mut written).expect_err("full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!((buffer.len(), written), (4, 0));
        let error = io_error("write to", Path::new("/out/.part-0-0.inprogress"))(error);
        assert_eq!(error.to_string(), "could not write to /out/.part-0-0.inprogress");
    }
}
