//! The imports outside of a component: each call is recorded, per thread.

use std::cell::{Cell, RefCell};

use super::{Kind, Level, Verdict};

/// A call that the plugin made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// Rows for an output.
    Emit { output: u32, count: u32, rows: Vec<u8> },
    /// A watermark for an output.
    EmitWatermark { output: u32, timestamp: i64 },
    /// A watermark status for an output.
    EmitWatermarkStatus { output: u32, idle: bool },
    /// The highest timestamp seen in a split.
    ReportSplitTime { split: u32, timestamp: i64 },
    /// A row that user code refused.
    RejectRow { node: u32, row: Option<u32>, message: String, payload: Vec<u8> },
    /// The call fails.
    Fail { node: u32, message: String },
    /// A log line.
    Log { level: Level, message: String },
    /// A panic.
    Panicked { message: String },
}

/// A metric that the plugin registered, with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metric {
    pub(crate) node: u32,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// Sum of a counter, last value of a gauge, all values of a histogram.
    pub(crate) values: Vec<f64>,
}

impl Metric {
    /// Sum of a counter, last value of a gauge, number of values of a histogram.
    pub(crate) fn total(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "tests record fewer values")]
        match self.kind {
            Kind::Counter | Kind::Gauge => self.values.last().copied().unwrap_or(0.0),
            Kind::Histogram => self.values.len() as f64,
        }
    }
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static METRICS: RefCell<Vec<Metric>> = const { RefCell::new(Vec::new()) };
    static SKIP_REJECTED: Cell<bool> = const { Cell::new(false) };
}

/// Takes the calls made on this thread since the last time.
pub(crate) fn take_calls() -> Vec<Call> {
    CALLS.take()
}

/// The metrics registered on this thread.
pub(crate) fn metrics() -> Vec<Metric> {
    METRICS.with_borrow(Clone::clone)
}

/// Decides what becomes of rejected rows on this thread.
pub(crate) fn skip_rejected(skip: bool) {
    SKIP_REJECTED.set(skip);
}

/// Forgets all that was recorded on this thread.
pub(crate) fn reset() {
    CALLS.take();
    METRICS.take();
    SKIP_REJECTED.set(false);
    super::reset_state();
}

fn call(call: Call) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

pub(crate) fn emit(output: u32, count: u32, rows: &[u8]) {
    call(Call::Emit { output, count, rows: rows.to_owned() });
}

pub(crate) fn emit_watermark(output: u32, timestamp: i64) {
    call(Call::EmitWatermark { output, timestamp });
}

pub(crate) fn emit_watermark_status(output: u32, idle: bool) {
    call(Call::EmitWatermarkStatus { output, idle });
}

pub(crate) fn report_split_time(split: u32, timestamp: i64) {
    call(Call::ReportSplitTime { split, timestamp });
}

pub(crate) fn reject_row(node: u32, row: Option<u32>, message: &str, payload: &[u8]) -> Verdict {
    call(Call::RejectRow { node, row, message: message.to_owned(), payload: payload.to_owned() });
    if SKIP_REJECTED.get() { Verdict::Skip } else { Verdict::Fail }
}

pub(crate) fn fail(node: u32, message: &str) {
    call(Call::Fail { node, message: message.to_owned() });
}

pub(crate) fn log(level: Level, message: &str) {
    call(Call::Log { level, message: message.to_owned() });
}

pub(crate) fn max_level() -> Level {
    Level::Trace
}

pub(crate) fn panicked(message: &str, _file: &str, _line: u32, _column: u32) {
    call(Call::Panicked { message: message.to_owned() });
}

pub(crate) fn register(node: u32, kind: Kind, name: &str) -> u32 {
    METRICS.with_borrow_mut(|metrics| {
        let known = metrics.iter().position(|metric| metric.node == node && metric.kind == kind && metric.name == name);
        let index = known.unwrap_or_else(|| {
            metrics.push(Metric { node, kind, name: name.to_owned(), values: Vec::new() });
            metrics.len() - 1
        });
        u32::try_from(index).expect("a test registers fewer metrics")
    })
}

pub(crate) fn add(handle: u32, delta: u64) {
    #[expect(clippy::cast_precision_loss, reason = "counters of tests are small")]
    with_values(handle, |values| match values.as_mut_slice() {
        [sum] => *sum += delta as f64,
        _ => values.push(delta as f64),
    });
}

pub(crate) fn set(handle: u32, value: f64) {
    with_values(handle, |values| *values = vec![value]);
}

pub(crate) fn record(handle: u32, value: f64) {
    with_values(handle, |values| values.push(value));
}

fn with_values(handle: u32, f: impl FnOnce(&mut Vec<f64>)) {
    METRICS.with_borrow_mut(|metrics| f(&mut metrics[handle as usize].values));
}
