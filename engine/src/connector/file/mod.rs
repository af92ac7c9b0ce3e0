//! Files as source and sink.
//!
//! The source's enumerator lists files and deals them, in chunks or to be read side by
//! side; its readers decompress and decode them. The sink's writers write hidden part files, which
//! the committer makes visible.

mod enumerator;
mod listing;
mod reader;
mod sink;

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};

use super::{
    ARTIFACT_PREFIX, ConnectorError, Permissions, Role, SourceSplit, encoding,
    options::Options,
    record_decoder::{FORMAT_OPTIONS, Format},
};
use crate::{base::config::MemorySize, graph::stream_graph::ConnectorSpec};

pub(super) use enumerator::FileEnumerator;
use listing::Listing;
pub(super) use reader::FileReader;
pub use sink::HiddenLeftovers;
pub(super) use sink::{FileCommitter, FileSinkOptions, FileWriter};

/// Largest chunk: small enough that a source's watermark, which waits for the
/// slowest chunk, does not wait long.
const CHUNK_BYTES_MAX: u64 = 8 << 20;
/// Smallest chunk, unless it was asked for: below, dealing costs more than reading.
const CHUNK_BYTES_MIN: u64 = 256 << 10;
/// Smallest chunk of a source with a rate. A subtask without a chunk would leave
/// its share of the rate unused.
const CHUNK_BYTES_MIN_WITH_RATE: u64 = 4 << 10;
/// Chunks of a file for each subtask, if it is not larger than that many chunks.
const CHUNKS_PER_SUBTASK: u64 = 4;
/// Pause between two looks at a watched directory.
const WATCH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Compressed bytes read at a time.
const COMPRESSED_BYTES: usize = 64 << 10;
/// Largest window of a zstd frame, 2^27 bytes, as that of the zstd command: what
/// a file can make a reader allocate.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Files that a reader holds open together.
const OPEN_FILES_MAX: usize = 64;
/// Files that are dealt at once to be read side by side: a message of at most 4 MiB.
const FILES_PER_SPLIT_MAX: usize = 1000;

/// In which order files are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReadOrder {
    InOrder,
    SideBySide,
    /// Side by side if there are several files.
    Auto,
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Validated options of the source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FileSourceOptions {
    /// File, directory, glob or artifact.
    path: String,
    format: Format,
    /// None: found out for each file.
    compression: Option<Compression>,
    /// Rows a second of all subtasks together.
    rate: Option<u64>,
    /// Pause between two listings; none: list once.
    watch_interval: Option<Duration>,
    /// None: by the size of the file.
    chunk_bytes: Option<u64>,
    read_order: ReadOrder,
}

impl FileSourceOptions {
    pub(super) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let mut known = vec!["path", "compression", "rate", "watch", "watch-interval", "chunk-bytes", "read-order"];
        known.extend(FORMAT_OPTIONS);
        let options = Options::new(spec, Role::Source, &known)?;
        let watch = options.value::<bool>("watch")?.unwrap_or(false);
        let interval = options.value::<Duration>("watch-interval")?;
        let watch_interval = match (watch, interval) {
            (false, None) => None,
            (false, Some(_)) => return Err(options.error("watch-interval", "needs watch = true")),
            (true, Some(Duration::ZERO)) => return Err(options.error("watch-interval", "must be above 0")),
            (true, interval) => Some(interval.unwrap_or(WATCH_INTERVAL_DEFAULT)),
        };
        let chunk_bytes = options.value::<MemorySize>("chunk-bytes")?.map(|size| size.0);
        if let Some(bytes) = chunk_bytes.filter(|bytes| *bytes == 0 || CHUNK_BYTES_MAX < *bytes) {
            let problem = format!("expected 1 to {CHUNK_BYTES_MAX} bytes, found {bytes}");
            return Err(options.error("chunk-bytes", problem));
        }
        let compressions = [
            ("auto", None),
            ("none", Some(Compression::None)),
            ("gzip", Some(Compression::Gzip)),
            ("zstd", Some(Compression::Zstd)),
        ];
        Ok(Self {
            path: options.required("path")?.to_owned(),
            format: Format::parse(&options)?,
            compression: options.choice("compression", &compressions)?,
            rate: options.positive("rate")?,
            watch_interval,
            chunk_bytes,
            read_order: options.choice(
                "read-order",
                &[("in-order", ReadOrder::InOrder), ("side-by-side", ReadOrder::SideBySide), ("auto", ReadOrder::Auto)],
            )?,
        })
    }

    /// Size of the chunks of a file that `parallelism` subtasks read.
    fn chunk_bytes(&self, file_bytes: u64, parallelism: u32) -> u64 {
        let min = if self.rate.is_some() { CHUNK_BYTES_MIN_WITH_RATE } else { CHUNK_BYTES_MIN };
        let shared = file_bytes.div_ceil(CHUNKS_PER_SUBTASK * u64::from(parallelism.max(1)));
        self.chunk_bytes.unwrap_or_else(|| shared.clamp(min, CHUNK_BYTES_MAX))
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Name of the artifact that is read.
    pub(super) fn artifact(&self) -> Option<&str> {
        self.path.strip_prefix(ARTIFACT_PREFIX)
    }

    /// Looks whether there is something to read. An artifact has been read when the job was submitted.
    pub(super) fn check(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        if self.artifact().is_some() {
            return Ok(());
        }
        match Listing::new(&self.path).files(permissions)?.first() {
            Some(file) => File::open(file).map(drop).map_err(io_error("open", file)),
            None => Ok(()),
        }
    }
}

/// The lines of a file that start in a range of the bytes of its content.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct FileSplit {
    /// Number of the file among all that were listed, in their order.
    number: u64,
    /// Canonical, or the name of an artifact with its prefix.
    path: String,
    /// In the decompressed content. What was read in part starts with the line that is next.
    start: u64,
    /// Exclusive; none: to the end of the file, which is compressed.
    end: Option<u64>,
    compression: Compression,
    /// Lines of the file before `start`; none: not counted.
    lines_before: Option<u64>,
}

impl FileSplit {
    /// The whole of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be looked at.
    fn whole(file: ListedFile, permitted: &Path, options: &FileSourceOptions) -> Result<Self, ConnectorError> {
        let compression = match options.compression {
            Some(compression) => compression,
            None => detect_compression(permitted)?,
        };
        let end = match compression {
            Compression::None => Some(fs::metadata(permitted).map_err(io_error("open", permitted))?.len()),
            Compression::Gzip | Compression::Zstd => None,
        };
        let ListedFile { number, path } = file;
        Ok(Self { number, path, start: 0, end, compression, lines_before: Some(0) })
    }

    /// Where it stands among all splits of the source.
    fn order(&self) -> (u64, u64) {
        (self.number, self.start)
    }
}

/// A file of which nothing was read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct ListedFile {
    /// Number among all files that were listed, in their order.
    number: u64,
    /// Canonical, or the name of an artifact with its prefix.
    path: String,
}

/// What is left to read of a file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum FileLeft {
    Whole(ListedFile),
    Part(FileSplit),
}

impl FileLeft {
    fn order(&self) -> (u64, u64) {
        match self {
            Self::Whole(file) => (file.number, 0),
            Self::Part(split) => split.order(),
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Whole(file) => &file.path,
            Self::Part(split) => &split.path,
        }
    }
}

/// What a reader is given at once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum DealtFiles {
    /// To be read after what was dealt before, to which it belongs in event time.
    Chunk(FileSplit),
    /// To be read side by side.
    SideBySide {
        /// At least one.
        files: Vec<FileLeft>,
        /// There are further ones that belong to these.
        more: bool,
    },
}

impl DealtFiles {
    fn encode(&self) -> SourceSplit {
        SourceSplit(encoding::encode(self))
    }

    fn decode(split: &SourceSplit) -> Result<Self, ConnectorError> {
        encoding::decode(&split.0, "a split of a file source")
    }

    fn into_files(self) -> Vec<FileLeft> {
        match self {
            Self::Chunk(split) => vec![FileLeft::Part(split)],
            Self::SideBySide { files, .. } => files,
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = PathBuf::from(path);
    move |source| ConnectorError::Io { action, path, source }
}

/// What the file is compressed by, by its first bytes, else by its name.
fn detect_compression(path: &Path) -> Result<Compression, ConnectorError> {
    let mut start = Vec::new();
    let file = File::open(path).map_err(io_error("open", path))?;
    file.take(4).read_to_end(&mut start).map_err(io_error("read", path))?;
    Ok(compression_of(path, &start))
}

fn compression_of(path: &Path, start: &[u8]) -> Compression {
    if start.is_empty() {
        return Compression::None;
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Compression::Gzip;
    }
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Compression::Zstd;
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match extension.as_deref() {
        Some("gz" | "gzip") => Compression::Gzip,
        Some("zst" | "zstd") => Compression::Zstd,
        _ => Compression::None,
    }
}

/// The content of a file; decompressed as it is read, never as a whole.
fn open_content(file: File, compression: Compression, path: &Path) -> Result<Box<dyn Read>, ConnectorError> {
    let buffered = |file| BufReader::with_capacity(COMPRESSED_BYTES, file);
    Ok(match compression {
        Compression::None => Box::new(file),
        Compression::Gzip => Box::new(MultiGzDecoder::new(buffered(file))),
        Compression::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(buffered(file)).map_err(io_error("decompress", path))?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(io_error("decompress", path))?;
            Box::new(decoder)
        }
    })
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod event_time_tests;

#[cfg(test)]
mod commit_tests;
