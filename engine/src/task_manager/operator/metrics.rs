//! Counters of a task, written by its thread and read by others at any time.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::{protocol::job_master::SlowestChannel, wasm::MetricSnapshot};

/// Counters of one operator, where the host sees its rows: at the ends of a
/// fused segment, and at sources and sinks.
#[derive(Debug, Default)]
pub struct OperatorCounters {
    /// Rows that came in.
    pub records_in: AtomicU64,
    /// Rows that went out.
    pub records_out: AtomicU64,
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
    /// For each input of an operator, the channel that holds its watermark back.
    pub slowest_channels: Mutex<Vec<SlowestChannel>>,
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
            slowest_channels: Mutex::new(Vec::new()),
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
