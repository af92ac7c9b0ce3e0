//! Counters of a task, written by its thread and read by others at any time.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::{base::clock::Timestamp, state::StateUsage, wasm::MetricSnapshot};

/// Counters of one operator, where the host sees its rows: at the ends of a
/// fused segment, and at sources and sinks.
#[derive(Debug)]
pub struct OperatorCounters {
    /// Rows that came in.
    pub records_in: AtomicU64,
    /// Rows that went out.
    pub records_out: AtomicU64,
    /// Watermark over all inputs, [`i64::MIN`] before the first.
    pub input_watermark: AtomicI64,
    /// Last watermark that went out, [`i64::MIN`] before the first.
    pub output_watermark: AtomicI64,
    /// There if the operator keeps state and timers by key.
    pub state: OnceLock<StateCounters>,
}

impl Default for OperatorCounters {
    fn default() -> Self {
        Self {
            records_in: AtomicU64::new(0),
            records_out: AtomicU64::new(0),
            input_watermark: AtomicI64::new(i64::MIN),
            output_watermark: AtomicI64::new(i64::MIN),
            state: OnceLock::new(),
        }
    }
}

/// Keyed state and timers of one operator, as last published.
#[derive(Debug, Default)]
pub struct StateCounters {
    /// Bytes with what it takes to find them.
    pub bytes: AtomicU64,
    /// Values, lists and pairs of maps.
    pub entries: AtomicU64,
    /// Bytes of the key group that has most.
    pub key_group_bytes_max: AtomicU64,
    /// Event-time timers that wait.
    pub event_time_timers: AtomicU64,
    /// Processing-time timers that wait.
    pub processing_time_timers: AtomicU64,
}

impl StateCounters {
    /// Takes over how much there is.
    pub fn publish(&self, usage: &StateUsage) {
        let sum = |of: fn(&crate::state::KeyGroupSize) -> u64| usage.key_groups.iter().map(of).sum();
        let largest = usage.key_groups.iter().map(|group| group.bytes).max();
        self.bytes.store(sum(|group| group.bytes), Ordering::Relaxed);
        self.entries.store(sum(|group| group.entries), Ordering::Relaxed);
        self.key_group_bytes_max.store(largest.unwrap_or(0), Ordering::Relaxed);
        self.event_time_timers.store(usage.event_time_timers, Ordering::Relaxed);
        self.processing_time_timers.store(usage.processing_time_timers, Ordering::Relaxed);
    }
}

/// A channel of an input gate, and the watermark it stands at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HoldingChannel {
    /// Zero-based gate.
    pub gate: usize,
    /// Zero-based channel of the gate.
    pub channel: usize,
    /// The channel's watermark.
    pub watermark: Timestamp,
}

/// Counters of one task.
#[derive(Debug)]
pub struct TaskCounters {
    /// Rows that came in: from gates, or from the source.
    pub records_in: AtomicU64,
    /// Rows that went out: to partitions, or to sinks.
    pub records_out: AtomicU64,
    /// Bytes that came in.
    pub bytes_in: AtomicU64,
    /// Bytes that went out.
    pub bytes_out: AtomicU64,
    /// Rows that were refused and skipped or put aside.
    pub rejected_rows: AtomicU64,
    /// Bytes of guest memory.
    pub guest_memory_bytes: AtomicU64,
    /// Log lines of the guests that were dropped.
    pub log_lines_dropped: AtomicU64,
    /// CPU time of the task's thread in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Watermark over all inputs, [`i64::MIN`] before the first.
    pub input_watermark: AtomicI64,
    /// The channel that holds the watermark back, if others are ahead of it.
    pub held_back_by: Mutex<Option<HoldingChannel>>,
    /// By node, in ascending order.
    pub operators: Vec<(u32, Arc<OperatorCounters>)>,
    /// Metrics of the guests.
    pub guest_metrics: Mutex<Vec<MetricSnapshot>>,
}

impl TaskCounters {
    /// Zeros, for a task with the given nodes.
    pub fn new(nodes: impl IntoIterator<Item = u32>) -> Self {
        let mut operators: Vec<_> = nodes.into_iter().map(|node| (node, Arc::default())).collect();
        operators.sort_by_key(|(node, _)| *node);
        Self {
            records_in: AtomicU64::new(0),
            records_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            rejected_rows: AtomicU64::new(0),
            guest_memory_bytes: AtomicU64::new(0),
            log_lines_dropped: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            input_watermark: AtomicI64::new(i64::MIN),
            held_back_by: Mutex::new(None),
            operators,
            guest_metrics: Mutex::new(Vec::new()),
        }
    }

    /// Counters of a node.
    ///
    /// # Panics
    /// Panics if the node is not one of the task's.
    pub fn operator(&self, node: u32) -> Arc<OperatorCounters> {
        let mut operators = self.operators.iter();
        let found = operators.find(|(id, _)| *id == node);
        found.map(|(_, counters)| Arc::clone(counters)).expect("the node is one of the task's")
    }

    /// Counts rows that came into the task.
    pub fn count_in(&self, records: u32, bytes: usize) {
        self.records_in.fetch_add(u64::from(records), Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts rows that left the task.
    pub fn count_out(&self, records: u32, bytes: usize) {
        self.records_out.fetch_add(u64::from(records), Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
