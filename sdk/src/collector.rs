//! Collectors: where the records of an operator go.
//!
//! A [`Collector`] leads to an output of the segment, whose rows it encodes, to
//! the next operator, or nowhere. The encoder is compiled into each operator and
//! the operator into its row loop, so a chain pays one indirect call for each
//! operator but the first, and none for the ends.

use std::{any::Any, fmt::Write as _};

use engine_rows::row;

use crate::{current, host, record::Record, text::CsvRow};

/// Rows are handed to the engine once they take this many bytes, and at the end of each call.
const FLUSH_BYTES: usize = 32 * 1024;
/// Room behind the threshold for the row that crosses it.
const FLUSH_SLACK_BYTES: usize = 2 * 1024;

/// What operators that make watermarks are told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Signal {
    /// The rows that follow come from this split.
    BeginSplit(u32),
    /// The split was read to its end.
    EndSplit(u32),
    /// Milliseconds since the Unix epoch.
    ProcessingTime(i64),
}

/// What passes through all operators of a segment besides records.
pub(crate) trait Lifecycle {
    /// Event time rose.
    fn process_watermark(&mut self, timestamp: i64);
    /// All inputs are idle, or active again.
    fn process_watermark_status(&mut self, idle: bool);
    /// No more records will come.
    fn end_input(&mut self);
    /// Tells the operators that make watermarks what they need to know.
    fn notify(&mut self, _signal: Signal) {}
    /// Hands buffered rows to the engine.
    fn flush(&mut self);
}

/// Something that takes records of type `T` one by one.
pub(crate) trait Downstream<T: Record + ?Sized>: Lifecycle {
    /// Takes a record with its timestamp.
    fn process(&mut self, record: T::View<'_>, timestamp: i64);
}

/// Rows of one output of the segment on their way to the engine.
pub(crate) struct OutputBuffer {
    output: u32,
    count: u32,
    rows: Vec<u8>,
}

impl OutputBuffer {
    /// An empty buffer for the output of this index.
    pub(crate) fn new(output: u32) -> Self {
        Self { output, count: 0, rows: Vec::with_capacity(FLUSH_BYTES + FLUSH_SLACK_BYTES) }
    }

    /// Appends a row whose payload `write` appends.
    #[inline(always)]
    pub(crate) fn append(&mut self, key_hash: u32, timestamp: i64, write: impl FnOnce(&mut Vec<u8>)) {
        row::append_with(&mut self.rows, key_hash, timestamp, write);
        self.count += 1;
        if FLUSH_BYTES <= self.rows.len() {
            self.flush();
        }
    }
}

impl Lifecycle for OutputBuffer {
    fn process_watermark(&mut self, timestamp: i64) {
        self.flush();
        host::emit_watermark(self.output, timestamp);
    }

    fn process_watermark_status(&mut self, idle: bool) {
        self.flush();
        host::emit_watermark_status(self.output, idle);
    }

    fn end_input(&mut self) {
        self.flush();
    }

    #[cold]
    fn flush(&mut self) {
        if 0 < self.count {
            host::emit(self.output, self.count, &self.rows);
            current::add_emitted_bytes(self.rows.len());
            self.count = 0;
            self.rows.clear();
        }
    }
}

/// One destination of records.
pub(crate) enum Target<T: Record + ?Sized> {
    /// An output of the segment, rows as they are.
    Output(OutputBuffer),
    /// The next operator, an output with a selector, or several targets.
    Downstream(Box<dyn Downstream<T>>),
    /// Nobody listens.
    Discard,
}

impl<T: Record + ?Sized> Target<T> {
    fn lifecycle(&mut self) -> Option<&mut dyn Lifecycle> {
        match self {
            Self::Output(output) => Some(output),
            Self::Downstream(next) => Some(&mut **next),
            Self::Discard => None,
        }
    }

    /// Joins targets of a node into one.
    pub(crate) fn of(node: u32, mut targets: Vec<Self>) -> Self {
        match targets.len() {
            0 => Self::Discard,
            1 => targets.remove(0),
            _ => Self::Downstream(Box::new(FanOut { node, targets, scratch: Vec::new() })),
        }
    }
}

/// Takes the records of an operator, or of a side output, and hands them on.
pub struct Collector<T: Record + ?Sized> {
    /// The node whose records these are.
    node: u32,
    timestamp: i64,
    target: Target<T>,
    scratch: String,
}

impl<T: Record + ?Sized> Collector<T> {
    pub(crate) fn new(node: u32, target: Target<T>) -> Self {
        Self { node, timestamp: row::NO_TIMESTAMP, target, scratch: String::new() }
    }

    /// Hands on a record with the timestamp of the record that is being processed.
    #[inline(always)]
    pub fn collect(&mut self, record: T::View<'_>) {
        match &mut self.target {
            Target::Output(output) => {
                output.append(0, self.timestamp, |payload| T::encode(T::peek(&record), payload));
            }
            Target::Downstream(next) => {
                next.process(record, self.timestamp);
                current::enter(self.node);
            }
            Target::Discard => {}
        }
    }

    /// Hands on a record with a timestamp of its own, in milliseconds since the Unix epoch.
    #[inline]
    pub fn collect_with_timestamp(&mut self, record: T::View<'_>, timestamp: i64) {
        let outer = std::mem::replace(&mut self.timestamp, timestamp);
        self.collect(record);
        self.timestamp = outer;
    }

    /// Sets the timestamp of the records collected from here on.
    #[inline]
    pub(crate) fn set_timestamp(&mut self, timestamp: i64) {
        self.timestamp = timestamp;
    }
}

impl Collector<str> {
    /// Hands on formatted text, `out.write(format_args!("{word},{count}"))`, without allocating.
    pub fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.with_scratch(|scratch| {
            scratch.write_fmt(text).expect("a Display impl of the record returned an error");
        });
    }

    /// Hands on a line of comma-separated values, `out.csv((word, count))`, without
    /// allocating; text that holds a comma, a quote or a line break is quoted.
    #[inline]
    pub fn csv(&mut self, row: impl CsvRow) {
        match &mut self.target {
            Target::Output(output) => output.append(0, self.timestamp, |payload| row.append_row(payload)),
            _ => self.csv_by_scratch(&row),
        }
    }

    fn csv_by_scratch(&mut self, row: &impl CsvRow) {
        self.with_scratch(|scratch| {
            let mut bytes = std::mem::take(scratch).into_bytes();
            row.append_row(&mut bytes);
            *scratch = String::from_utf8(bytes).expect("a CSV row is made of text");
        });
    }

    fn with_scratch(&mut self, write: impl FnOnce(&mut String)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        write(&mut scratch);
        self.collect(&scratch);
        self.scratch = scratch;
    }
}

impl<T: Record + ?Sized> Lifecycle for Collector<T> {
    fn process_watermark(&mut self, timestamp: i64) {
        if let Some(target) = self.target.lifecycle() {
            target.process_watermark(timestamp);
        }
    }

    fn process_watermark_status(&mut self, idle: bool) {
        if let Some(target) = self.target.lifecycle() {
            target.process_watermark_status(idle);
        }
    }

    fn end_input(&mut self) {
        if let Some(target) = self.target.lifecycle() {
            target.end_input();
        }
    }

    fn notify(&mut self, signal: Signal) {
        if let Some(target) = self.target.lifecycle() {
            target.notify(signal);
        }
    }

    fn flush(&mut self) {
        if let Some(target) = self.target.lifecycle() {
            target.flush();
        }
    }
}

/// A collector of whatever type.
pub(crate) trait AnyCollector: Lifecycle {
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<T: Record + ?Sized> AnyCollector for Collector<T> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Several targets of the same records. All but the last get a copy by way of
/// the record's encoding, so that no operator sees what another one changed.
struct FanOut<T: Record + ?Sized> {
    /// The node before the fork, to which key selectors and the like belong.
    node: u32,
    targets: Vec<Target<T>>,
    scratch: Vec<u8>,
}

impl<T: Record + ?Sized> Downstream<T> for FanOut<T> {
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        let Self { node, targets, scratch } = self;
        scratch.clear();
        T::encode(T::peek(&record), scratch);
        let (last, others) = targets.split_last_mut().expect("a fan-out has at least two targets");
        for target in others {
            match target {
                Target::Output(output) => output.append(0, timestamp, |payload| payload.extend_from_slice(scratch)),
                Target::Downstream(next) => {
                    T::decode(scratch, |record| next.process(record, timestamp)).expect("the record was just encoded");
                    current::enter(*node);
                }
                Target::Discard => {}
            }
        }
        match last {
            Target::Output(output) => output.append(0, timestamp, |payload| payload.extend_from_slice(scratch)),
            Target::Downstream(next) => next.process(record, timestamp),
            Target::Discard => {}
        }
    }
}

impl<T: Record + ?Sized> Lifecycle for FanOut<T> {
    fn process_watermark(&mut self, timestamp: i64) {
        self.targets.iter_mut().filter_map(Target::lifecycle).for_each(|target| target.process_watermark(timestamp));
    }

    fn process_watermark_status(&mut self, idle: bool) {
        self.targets.iter_mut().filter_map(Target::lifecycle).for_each(|target| target.process_watermark_status(idle));
    }

    fn end_input(&mut self) {
        self.targets.iter_mut().filter_map(Target::lifecycle).for_each(|target| target.end_input());
    }

    fn notify(&mut self, signal: Signal) {
        self.targets.iter_mut().filter_map(Target::lifecycle).for_each(|target| target.notify(signal));
    }

    fn flush(&mut self) {
        self.targets.iter_mut().filter_map(Target::lifecycle).for_each(|target| target.flush());
    }
}
