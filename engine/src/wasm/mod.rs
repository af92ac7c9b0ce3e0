//! Runs plugins: admission, compilation, instances and their limits.
//!
//! Knows nothing of tasks. One `wasmtime::Engine` per process, one
//! [`CompiledPlugin`] per digest, one [`Segment`] (a store) per subtask and
//! fused segment. Any trap drops the store.

use std::{sync::Arc, time::Duration};

use crate::base::{clock::Timestamp, ids::GraphDigest, stream_element::WatermarkStatus};

/// Limits of one instance, from the `sandbox.` options.
#[derive(Clone, Debug)]
pub struct SandboxLimits {
    /// CPU time of `plan`.
    pub plan_cpu_time: Duration,
    /// CPU time of `open`.
    pub open_cpu_time: Duration,
    /// CPU time of each other call.
    pub call_cpu_time: Duration,
    /// Bytes of memory.
    pub memory_bytes_max: usize,
    /// Elements of all tables.
    pub table_elements_max: usize,
    /// Bytes that one call may emit.
    pub emit_bytes_max: usize,
    /// Rows that one call may emit.
    pub emit_rows_max: u64,
    /// Bytes of one row.
    pub row_bytes_max: usize,
    /// Bytes of one log line.
    pub log_line_bytes: usize,
    /// Bytes of log a second.
    pub log_bytes_per_second: u64,
    /// Number of metrics.
    pub metrics_max: usize,
}

/// Receives what a segment emits, while the guest runs. Never waits.
pub trait EmitTarget: 'static {
    /// Takes `count` rows for an output. `rows` lies in the guest's memory: nothing
    /// about it was checked but its length and the output's index.
    ///
    /// # Errors
    /// Returns an error if the rows are not well formed; the guest traps.
    fn emit(&mut self, output: u32, count: u32, rows: &[u8]) -> Result<(), EmitError>;

    /// Takes a watermark for an output; lower ones than before may come.
    fn emit_watermark(&mut self, output: u32, watermark: Timestamp);

    /// Takes a watermark status for an output.
    fn emit_watermark_status(&mut self, output: u32, status: WatermarkStatus);

    /// Decides over a row that user code refused.
    fn reject_row(&mut self, node: u32, message: &str, payload: &[u8]) -> crate::connector::Verdict;

    /// Takes a log line: already cut, escaped and within the rate.
    fn log(&mut self, level: LogLevel, message: &str);
}

/// Level of a log line.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LogLevel {
    /// Finest.
    Trace,
    /// For developers.
    Debug,
    /// For operators of the job.
    Info,
    /// Something is odd.
    Warn,
    /// Something failed.
    Error,
}

/// Emitted rows are refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EmitError {
    /// Rows do not fill the list exactly, or are not as many as claimed.
    #[error("the emitted batch is not well formed: {0}")]
    BadBatch(String),
    /// A custom partitioner chose a channel that does not exist.
    #[error("the partitioner chose channel {channel} of {channels}")]
    NoSuchChannel {
        /// As chosen.
        channel: u32,
        /// How many there are.
        channels: u32,
    },
}

/// Entry point that was running.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EntryPoint {
    /// Instantiation, before any export is called.
    Instantiate,
    /// `program.plan`.
    Plan,
    /// `program.describe`.
    Describe,
    /// `operator-chain.open`.
    Open,
    /// `operator-chain.process-batch`.
    ProcessBatch,
    /// `operator-chain.poll-source`.
    PollSource,
    /// `operator-chain.process-watermark`.
    ProcessWatermark,
    /// `operator-chain.process-watermark-status`.
    ProcessWatermarkStatus,
    /// `operator-chain.end-input`.
    EndInput,
    /// `operator-chain.close`.
    Close,
}

/// Why a guest failed: machine-readable, each with a stable code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GuestFailure {
    /// The guest returned an error.
    UserError,
    /// A panic of the guest's code.
    Panic,
    /// Any other trap: unreachable, division by zero, out of bounds, indirect call.
    Trap,
    /// The CPU time was used up.
    CpuTime,
    /// The task was cancelled while the guest ran.
    Canceled,
    /// Memory or table limit.
    MemoryLimit,
    /// Stack overflow.
    StackOverflow,
    /// Too much was emitted.
    OutputLimit,
    /// A malformed batch, list, string or enum crossed the boundary.
    BadBatch,
    /// A call that is not allowed at this point or not provided by this version.
    IllegalState,
    /// The replayed graph differs from the submitted one.
    GraphMismatch,
}

/// A guest failed. `Display` is one line: what, where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GuestError {
    /// Kind of failure.
    pub failure: GuestFailure,
    /// File name of the plugin.
    pub plugin: String,
    /// What was running.
    pub entry_point: EntryPoint,
    /// Id of the node that was running, if known.
    pub node: Option<u32>,
    /// Zero-based row of the batch that was being processed, if known.
    pub row: Option<u32>,
    /// The panic's message and place, the user's error, or the trap.
    pub message: String,
    /// Demangled frames, innermost first; empty if there are none.
    pub backtrace: Vec<String>,
}

/// An exit of a segment; see `operator-chain.segment-output` in `wit/plugin.wit`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentOutput {
    /// Producing node.
    pub node: u32,
    /// Side output; none: main output.
    pub side_output: Option<String>,
    /// What shapes the rows; see `graph.stream-edge.selector`.
    pub selector: Option<u32>,
    /// Channels that a custom partitioner chooses from.
    pub channels: u32,
}

/// Where a segment runs; see `operator-chain.operator-context`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentContext {
    /// Name of the job.
    pub job_name: String,
    /// Name of the task.
    pub task_name: String,
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Zero-based.
    pub attempt: u32,
    /// Nodes of the segment, first the one that rows enter.
    pub nodes: Vec<u32>,
    /// Exits.
    pub outputs: Vec<SegmentOutput>,
}

/// How the operators of a segment are made again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replay {
    /// Arguments of `plan`.
    pub args: Vec<String>,
    /// What the replayed graph must be.
    pub graph_digest: GraphDigest,
}

/// Tells a running guest to stop; cloneable, usable from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<std::sync::atomic::AtomicBool>);

impl CancelFlag {
    /// Stops the guest within two ticks (10 ms) and all later calls at once.
    pub fn cancel(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }

    /// True once [`CancelFlag::cancel`] was called.
    pub fn is_canceled(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// What a source of the plugin did when polled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceStatus {
    /// Rows were emitted or may be on the next call.
    More,
    /// Nothing for the moment.
    Idle,
    /// The source ended.
    End,
}
