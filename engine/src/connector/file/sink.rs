//! Text files as a sink: part files that are hidden until the job has finished.
//!
//! Each writer writes `.part-SUBTASK-ATTEMPT.inprogress`, which the committer
//! renames to `part-SUBTASK-ATTEMPT` when the job has finished. A directory is
//! claimed for a job by a hidden file that bears the job's id, so that two jobs
//! do not write into it. A job that is prepared again, because its JobManager was
//! killed, removes the hidden parts of its former tasks. A subtask that got no rows has no part file.
//!
//! Invariants: what is visible holds complete rows only and never changes; a
//! committable is renamed once, however often it is committed.

use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::io_error;
use crate::{
    base::{ids::JobId, stream_element::RecordBatch},
    connector::{
        Committable, ConnectorError, Permissions, RejectWrite, Role, SinkCommitter, SinkWriter, WriterContext,
        check_writable_directory, options::Options, text_rows::TextRows,
    },
    graph::stream_graph::ConnectorSpec,
};

/// Rows gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;
const HIDDEN_PREFIX: &str = ".part-";
const HIDDEN_SUFFIX: &str = ".inprogress";
const CLAIM_PREFIX: &str = ".job-";

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
    subtask_index: u32,
    attempt_number: u32,
    bytes: u64,
}

impl Part {
    fn visible_name(&self) -> String {
        format!("part-{}-{}", self.subtask_index, self.attempt_number)
    }

    fn hidden_name(&self) -> String {
        format!(".{}{HIDDEN_SUFFIX}", self.visible_name())
    }
}

/// Writes the part file of one subtask.
pub(in crate::connector) struct FileWriter {
    directory: PathBuf,
    part: Part,
    /// Made for the first row.
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
        let part = Part { subtask_index: context.subtask_index, attempt_number: context.attempt_number, bytes: 0 };
        let rows = TextRows::new(&context.record_type, spec)?;
        Ok(Self { directory, part, file: None, rows, reject: context.reject, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    fn hidden_path(&self) -> PathBuf {
        self.directory.join(self.part.hidden_name())
    }

    fn write_out(&mut self) -> Result<(), ConnectorError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = self.hidden_path();
        if self.file.is_none() {
            // Not one that is there: another job or attempt writes it.
            let created = OpenOptions::new().write(true).create_new(true).open(&path);
            self.file = Some(created.map_err(io_error("create", &path))?);
        }
        let file = self.file.as_mut().expect("opened above");
        write_buffer(file, &mut self.buffer, &mut self.part.bytes).map_err(io_error("write to", &path))
    }
}

fn write_buffer(to: &mut impl Write, buffer: &mut Vec<u8>, written: &mut u64) -> io::Result<()> {
    to.write_all(buffer)?;
    *written += buffer.len() as u64;
    buffer.clear();
    Ok(())
}

impl SinkWriter for FileWriter {
    fn prepare_commit(
        &mut self,
        _checkpoint_id: crate::base::stream_element::CheckpointId,
    ) -> Result<Vec<Committable>, ConnectorError> {
        todo!("connector helper")
    }

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

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        self.write_out()?;
        let path = self.hidden_path();
        let Some(file) = self.file.take() else { return Ok(Vec::new()) };
        file.sync_all().map_err(io_error("write to", &path))?;
        Ok(vec![Committable(postcard::to_allocvec(&self.part).expect("a part is plain data"))])
    }
}

/// Makes part files visible.
pub(in crate::connector) struct FileCommitter {
    path: PathBuf,
    permissions: Arc<Permissions>,
    claim_name: String,
    /// The directory was claimed by this committer; one that was refused must not clean it.
    prepared: bool,
}

impl FileCommitter {
    pub(in crate::connector) fn new(options: FileSinkOptions, job_id: JobId, permissions: Arc<Permissions>) -> Self {
        Self { path: options.path, permissions, claim_name: format!("{CLAIM_PREFIX}{job_id}"), prepared: false }
    }

    fn release(&self, directory: &Path) -> Result<(), ConnectorError> {
        remove_file(&directory.join(&self.claim_name))
    }
}

/// Removes a file, unless it is gone.
fn remove_file(path: &Path) -> Result<(), ConnectorError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
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
            (name.starts_with(CLAIM_PREFIX) || is_hidden_part(Path::new(name))).then(|| name.to_owned())
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
    fn recover(
        &mut self,
        _checkpoint_id: crate::base::stream_element::CheckpointId,
        _committables: Vec<Committable>,
    ) -> Result<(), ConnectorError> {
        todo!("connector helper")
    }

    fn prepare(&mut self) -> Result<(), ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        fs::create_dir_all(&directory).map_err(io_error("create", &self.path))?;
        let claim = directory.join(&self.claim_name);
        let found = names(&directory)?;
        // What this job left behind when it was prepared before is no obstacle.
        let claimed = found.contains(&claim);
        if found.iter().any(|name| *name != claim && !(claimed && is_hidden_part(name))) {
            return Err(not_empty(&self.path, &found));
        }
        // Another job may claim the directory in this moment: whoever sees the other's claim gives way.
        File::create(&claim).map_err(io_error("write to", &self.path))?;
        let is_foreign_claim = |name: &PathBuf| {
            let text = name.file_name().and_then(OsStr::to_str).unwrap_or_default();
            text.starts_with(CLAIM_PREFIX) && *name != claim
        };
        let mut others = names(&directory)?;
        if others.iter().any(is_foreign_claim) {
            self.release(&directory)?;
            others.retain(|name| *name != claim);
            return Err(not_empty(&self.path, &others));
        }
        // A JobManager that was killed left them; attempts are counted from zero again and would meet them.
        for part in found.iter().filter(|name| is_hidden_part(name)) {
            remove_file(part)?;
        }
        self.prepared = true;
        Ok(())
    }

    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        for committable in committables {
            let part: Part = postcard::from_bytes(&committable.0)
                .map_err(|_| ConnectorError::Damaged("a committable of a file sink"))?;
            let hidden = directory.join(part.hidden_name());
            let visible = directory.join(part.visible_name());
            match fs::metadata(&hidden) {
                Ok(metadata) if metadata.len() == part.bytes => {
                    fs::rename(&hidden, &visible).map_err(io_error("make visible", &hidden))?;
                }
                Ok(metadata) => {
                    let problem = format!("it has {} bytes, but {} were written", metadata.len(), part.bytes);
                    return Err(io_error("make visible", &hidden)(io::Error::other(problem)));
                }
                // Committed before.
                Err(error) if error.kind() == ErrorKind::NotFound && visible.exists() => {}
                Err(error) => return Err(io_error("make visible", &hidden)(error)),
            }
        }
        sync_directory(&directory)?;
        self.release(&directory)
    }

    fn abort(&mut self) -> Result<(), ConnectorError> {
        let directory = self.permissions.writable(&self.path)?;
        // A claim without preparation was left by a JobMaster of this job that died.
        if !self.prepared && !directory.join(&self.claim_name).exists() {
            return Ok(());
        }
        for name in names(&directory)? {
            if is_hidden_part(&name) {
                remove_file(&name)?;
            }
        }
        self.release(&directory)
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
