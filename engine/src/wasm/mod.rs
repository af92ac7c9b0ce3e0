//! Runs plugins: admission, compilation, instances and their limits.
//!
//! Knows nothing of tasks. One `wasmtime::Engine` per process, one
//! [`CompiledPlugin`] per digest, one [`Segment`] (a store) per subtask and
//! fused segment. Any trap drops the store.

mod admission;
mod code_cache;
mod contract;
mod guest_error;
mod host;
mod instance;
mod limits;
mod log_rate;
mod metrics;
mod runtime;
mod segment;
mod structure;
mod ticker;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

pub use self::{
    admission::{AdmissionError, AdmittedPlugin, Names, PluginForm, PluginListing, Refusal},
    guest_error::{EntryPoint, GuestError, GuestFailure},
    limits::SandboxLimits,
    metrics::{HistogramStatistics, MetricKind, MetricSnapshot, MetricValue},
    runtime::{CompileError, CompiledPlugin, LoadError, PluginRuntime, PluginRuntimeConfig, RuntimeError},
    segment::Segment,
    structure::Counted,
};
use crate::{
    base::{clock::Timestamp, ids::GraphDigest, stream_element::WatermarkStatus},
    state::{DiskState, KeyedStateSnapshot, StateDescriptor},
};

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

    /// Takes the highest timestamp seen in a split of the source before the segment.
    fn report_split_time(&mut self, _split: u32, _timestamp: Timestamp) {}

    /// Decides over a row that user code refused, given its number in the batch as the
    /// guest says.
    fn reject_row(&mut self, node: u32, row: Option<u32>, message: &str, payload: &[u8]) -> crate::connector::Verdict;

    /// Takes a log line: already cut, escaped and within the rate.
    fn log(&mut self, level: LogLevel, message: &str);

    /// The least level that is kept; lines below it do not come.
    fn log_level(&self) -> LogLevel {
        LogLevel::Info
    }
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
    /// Name of the first node, which has the timers.
    pub operator: String,
    /// True if the first node declared the type of its key.
    pub is_keyed: bool,
    /// States of all nodes, in the order of the nodes.
    pub states: Vec<StateDescriptor>,
    /// Exits.
    pub outputs: Vec<SegmentOutput>,
    /// Bytes of keyed state that the guest may keep in its own memory, about.
    pub state_cache_bytes: u64,
    /// Bytes of a value of keyed state.
    pub state_value_bytes_max: u64,
    /// Where keyed state is kept on disk; none: it is in memory.
    pub disk_state: Option<DiskState>,
    /// True if an operator of the task goes on from a checkpoint.
    pub restored: bool,
}

/// What was kept of one key group: all, or what changed since the part before.
#[derive(Clone, Debug)]
pub struct RestoredKeyGroup {
    /// The key group.
    pub key_group: u32,
    /// Its bytes.
    pub content: Bytes,
    /// Place in the segment of each state that the bytes name; none: it is dropped.
    pub states: Arc<[Option<usize>]>,
}

/// Reads one key group after the other, so that they are not all in memory beside the state; or says why one
/// cannot be read.
pub type RestoredKeyGroups = Box<dyn Iterator<Item = Result<RestoredKeyGroup, String>>>;

/// What a segment goes on from.
pub struct SegmentRestore {
    /// Of each key group the part that holds all first.
    pub key_groups: RestoredKeyGroups,
    /// Elements of operator states, by place among all states of the segment.
    pub lists: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Whether snapshots may hold only what changed.
    pub is_incremental: bool,
    /// Lengths of the parts, if the next snapshot may build upon what was restored.
    pub part_bytes: Vec<u64>,
}

impl Default for SegmentRestore {
    fn default() -> Self {
        let key_groups = Box::new(std::iter::empty());
        Self { key_groups, lists: BTreeMap::new(), is_incremental: false, part_bytes: Vec::new() }
    }
}

/// State of a segment at one moment.
pub struct SegmentSnapshot {
    /// Keyed state and timers of the first operator, if it has some.
    pub keyed: Option<KeyedStateSnapshot>,
    /// How large the keyed state is, about.
    pub keyed_bytes: u64,
    /// Elements of the operator states, by place among all states of the segment.
    pub lists: BTreeMap<usize, Vec<Vec<u8>>>,
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
