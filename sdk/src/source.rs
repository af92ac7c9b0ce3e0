//! Sources of the engine, by name with options; the engine checks the options.

use std::{fmt::Display, marker::PhantomData, time::Duration};

use crate::{Connector, record::Record, watermark::Alignment};

/// A source of the engine.
///
/// A connector of the engine that has no builder here can be used by an
/// implementation of this trait.
pub trait Source {
    /// What it reads.
    type Record: Record + ?Sized;

    /// False if only one subtask can read it.
    const PARALLEL: bool;

    /// Shown to users.
    fn name(&self) -> &str;

    /// Name and options for the engine.
    fn connector(&self) -> Connector;
}

/// Options of a connector while they are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Vec<(String, String)>);

impl Options {
    pub(crate) fn set(&mut self, option: &str, value: impl Display) {
        self.0.retain(|(known, _)| known != option);
        self.0.push((option.to_owned(), value.to_string()));
    }

    pub(crate) fn with(mut self, option: &str, value: impl Display) -> Self {
        self.set(option, value);
        self
    }

    pub(crate) fn connector(&self, name: &str) -> Connector {
        Connector { name: name.to_owned(), options: self.0.clone() }
    }
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Compression {
    /// By its name and first bytes; the default.
    Auto,
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// In which order the files of a source are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadOrder {
    /// One after the other, in the order of their names: for files that follow one another in
    /// time, and where time does not matter.
    InOrder,
    /// Together, the one that is furthest behind in event time first: for files that cover the
    /// same time, as those of several servers do. A subtask holds up to 64 files open; further
    /// ones hold the watermark back until they are opened. Each file is read by one subtask,
    /// unless there are fewer files than subtasks: then several share a file's chunks.
    ///
    /// The default for several files behind which there is a
    /// [`WatermarkStrategy`](crate::WatermarkStrategy), which must stand in the chain of the
    /// source: with a shuffle in between, nobody tells the files apart. Results are exact with both orders for
    /// one file and for files that follow one another.
    SideBySide,
}

/// Sets what a source must know of the watermark strategy behind it, unless the program did.
pub(crate) fn prepare_for_watermarks(connector: &mut Connector, alignment: Option<&Alignment>) {
    let mut set = |option: &str, value: String| {
        if connector.options.iter().all(|(known, _)| known != option) {
            connector.options.push((option.to_owned(), value));
        }
    };
    if connector.name == "file" {
        set("read-order", "auto".to_owned());
    }
    if let Some(Alignment { group, max_drift, update_interval }) = alignment {
        set("watermark-alignment-group", group.clone());
        set("watermark-alignment-max-drift", format!("{} ms", max_drift.as_millis()));
        set("watermark-alignment-update-interval", format!("{} ms", update_interval.as_millis()));
    }
}

/// Reads a file, all files of a directory, or the files that match a pattern.
///
/// The path `artifact:NAME` is the file that the job was submitted with as `--artifact NAME=PATH`: the engine
/// sends it along and keeps it with the job, so that each subtask can read it, wherever it runs and whatever
/// the job may open otherwise.
#[derive(Clone, Debug)]
pub struct FileSource<T: ?Sized> {
    options: Options,
    _record: PhantomData<T>,
}

impl FileSource<str> {
    /// Lines of text, without their ends.
    pub fn text_lines(path: impl Into<String>) -> Self {
        Self::of(path.into(), "lines")
    }

    /// Lines that are JSON objects. Each field of the record type is read from the
    /// member of its name, other members are skipped; an enum is read from an object with
    /// one member, named as the variant. [`engine_rows::json`] has a table of what each type takes.
    pub fn json_lines<T: Record + ?Sized>(path: impl Into<String>) -> FileSource<T> {
        FileSource::of(path.into(), "json")
    }

    /// Lines of comma-separated values. The columns are the fields of the record type in
    /// their order, unless the first line names them (see [`FileSource::header`]).
    pub fn csv<T: Record + ?Sized>(path: impl Into<String>) -> FileSource<T> {
        FileSource::of(path.into(), "csv")
    }
}

impl<T: Record + ?Sized> FileSource<T> {
    fn of(path: String, format: &str) -> Self {
        Self { options: Options::default().with("path", path).with("format", format), _record: PhantomData }
    }

    /// Sets how the files are compressed.
    #[must_use]
    pub fn compression(self, compression: Compression) -> Self {
        self.with(
            "compression",
            match compression {
                Compression::Auto => "auto",
                Compression::None => "none",
                Compression::Gzip => "gzip",
                Compression::Zstd => "zstd",
            },
        )
    }

    /// Limits reading to this many rows a second over all subtasks.
    #[must_use]
    pub fn rate(self, rows_per_second: u64) -> Self {
        self.with("rate", rows_per_second)
    }

    /// Goes on looking for new files; the job does not end by itself. A subtask that has got no
    /// file yet holds the watermark back, unless the strategy has an idleness
    /// ([`WatermarkStrategy::with_idleness`](crate::WatermarkStrategy::with_idleness)).
    #[must_use]
    pub fn watch(self, interval: Duration) -> Self {
        self.with("watch", true).with("watch-interval", format_args!("{} ms", interval.as_millis()))
    }

    /// Sets in which order several files are read.
    #[must_use]
    pub fn read_order(self, order: ReadOrder) -> Self {
        self.with(
            "read-order",
            match order {
                ReadOrder::InOrder => "in-order",
                ReadOrder::SideBySide => "side-by-side",
            },
        )
    }

    /// Deals plain files in chunks of this size.
    #[must_use]
    pub fn chunk_bytes(self, bytes: u64) -> Self {
        self.with("chunk-bytes", bytes)
    }

    /// Sets the byte between the values of a CSV line.
    #[must_use]
    pub fn delimiter(self, delimiter: char) -> Self {
        self.with("csv-delimiter", delimiter)
    }

    /// Tells whether the first line of a CSV file holds the names of the columns.
    #[must_use]
    pub fn header(self, header: bool) -> Self {
        self.with("csv-header", header)
    }

    /// Leaves out the records that would become the variant marked `#[record(other)]`, before they
    /// reach the program: for lines of JSON of many kinds, of which a few are wanted.
    #[must_use]
    pub fn skip_other(self) -> Self {
        self.with("json-skip-other", true)
    }

    fn with(mut self, option: &str, value: impl Display) -> Self {
        self.options.set(option, value);
        self
    }
}

impl<T: Record + ?Sized> Source for FileSource<T> {
    type Record = T;
    const PARALLEL: bool = true;

    fn name(&self) -> &str {
        "Source: File"
    }

    fn connector(&self) -> Connector {
        self.options.connector("file")
    }
}

/// Lines that a server sends; read by one subtask.
#[derive(Clone, Debug)]
pub struct SocketSource<T: ?Sized> {
    options: Options,
    _record: PhantomData<T>,
}

impl SocketSource<str> {
    /// Connects to `host:port` and reads lines of text, without their ends.
    pub fn text_lines(address: impl Into<String>) -> Self {
        Self::of(address.into(), "lines")
    }

    /// Connects to `host:port` and reads lines that are JSON objects; see [`FileSource::json_lines`].
    pub fn json_lines<T: Record + ?Sized>(address: impl Into<String>) -> SocketSource<T> {
        SocketSource::of(address.into(), "json")
    }
}

impl<T: Record + ?Sized> SocketSource<T> {
    fn of(address: String, format: &str) -> Self {
        Self { options: Options::default().with("address", address).with("format", format), _record: PhantomData }
    }

    /// Limits reading to this many rows a second.
    #[must_use]
    pub fn rate(mut self, rows_per_second: u64) -> Self {
        self.options.set("rate", rows_per_second);
        self
    }

    /// Leaves out records of other kinds; see [`FileSource::skip_other`].
    #[must_use]
    pub fn skip_other(mut self) -> Self {
        self.options.set("json-skip-other", true);
        self
    }
}

impl<T: Record + ?Sized> Source for SocketSource<T> {
    type Record = T;
    const PARALLEL: bool = false;

    fn name(&self) -> &str {
        "Source: Socket"
    }

    fn connector(&self) -> Connector {
        self.options.connector("socket")
    }
}

/// Lines from standard input, to its end; read by one subtask.
#[derive(Clone, Debug)]
pub struct StdinSource<T: ?Sized> {
    options: Options,
    _record: PhantomData<T>,
}

impl StdinSource<str> {
    /// Reads lines of text, without their ends.
    pub fn text_lines() -> Self {
        Self::of("lines")
    }

    /// Reads lines that are JSON objects; see [`FileSource::json_lines`].
    pub fn json_lines<T: Record + ?Sized>() -> StdinSource<T> {
        StdinSource::of("json")
    }
}

impl<T: Record + ?Sized> StdinSource<T> {
    fn of(format: &str) -> Self {
        Self { options: Options::default().with("format", format), _record: PhantomData }
    }

    /// Limits reading to this many rows a second.
    #[must_use]
    pub fn rate(mut self, rows_per_second: u64) -> Self {
        self.options.set("rate", rows_per_second);
        self
    }

    /// Leaves out records of other kinds; see [`FileSource::skip_other`].
    #[must_use]
    pub fn skip_other(mut self) -> Self {
        self.options.set("json-skip-other", true);
        self
    }
}

impl<T: Record + ?Sized> Source for StdinSource<T> {
    type Record = T;
    const PARALLEL: bool = false;

    fn name(&self) -> &str {
        "Source: Standard input"
    }

    fn connector(&self) -> Connector {
        self.options.connector("stdin")
    }
}

/// Numbers in ascending order, spread over the subtasks.
#[derive(Clone, Debug)]
pub struct SequenceSource {
    options: Options,
}

impl SequenceSource {
    /// From `from` to `to`, both included.
    pub fn new(from: i64, to: i64) -> Self {
        Self { options: Options::default().with("from", from).with("to", to) }
    }

    /// Limits generation to this many numbers a second over all subtasks.
    #[must_use]
    pub fn rate(mut self, rows_per_second: u64) -> Self {
        self.options.set("rate", rows_per_second);
        self
    }
}

impl Source for SequenceSource {
    type Record = i64;
    const PARALLEL: bool = true;

    fn name(&self) -> &str {
        "Source: Sequence"
    }

    fn connector(&self) -> Connector {
        self.options.connector("sequence")
    }
}

/// Events of the Nexmark benchmark, generated; decoded into records by the names of
/// their fields, as [`FileSource::json_lines`] does.
#[derive(Clone, Debug)]
pub struct NexmarkSource<T: ?Sized> {
    options: Options,
    _record: PhantomData<T>,
}

impl<T: Record + ?Sized> NexmarkSource<T> {
    /// The first `events` events.
    pub fn events(events: u64) -> Self {
        Self { options: Options::default().with("events", events), _record: PhantomData }
    }

    /// Limits generation to this many events a second over all subtasks.
    #[must_use]
    pub fn rate(self, events_per_second: u64) -> Self {
        self.option("rate", events_per_second)
    }

    /// Sets any option of the generator, for example `base-time`.
    #[must_use]
    pub fn option(mut self, option: &str, value: impl Display) -> Self {
        self.options.set(option, value);
        self
    }
}

impl<T: Record + ?Sized> Source for NexmarkSource<T> {
    type Record = T;
    const PARALLEL: bool = true;

    fn name(&self) -> &str {
        "Source: Nexmark"
    }

    fn connector(&self) -> Connector {
        self.options.connector("nexmark")
    }
}
