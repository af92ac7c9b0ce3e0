//! Takes what one source or segment emits, while it runs, without ever waiting.
//!
//! Rows for result partitions are dealt at once, straight out of the emitter's
//! memory. Rows for other operators of the chain are copied and wait until the
//! chain takes them.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use engine_rows::row::Rows;

use super::{
    Backpressure, Destination, Interrupted, OperatorCounters, PlannedOutput, RowErrors, TaskContext, TaskCounters,
};
use crate::{
    base::{
        clock::Timestamp,
        ids::JobId,
        stream_element::{BatchKind, RecordBatch, StreamElement, WatermarkStatus},
    },
    connector::Verdict,
    task_manager::network::{ResultPartition, RoutingError},
    wasm::{EmitError, EmitTarget, LogLevel},
};

/// Bytes of rows at which a batch for the next operator of the chain is closed,
/// so that one call of it need not take all that one call of the operator before
/// it emitted.
const LOCAL_BATCH_BYTES_MAX: usize = 256 << 10;

/// Reports of splits that are kept for one batch, whose rows come from one split.
const SPLIT_TIMES_MAX: usize = 16;

/// One exit.
struct Output {
    /// Places in `partitions`.
    partitions: Vec<usize>,
    /// True if operators of the chain take the rows.
    local: bool,
    /// Rows for them that wait for more.
    batch: Vec<u8>,
    batch_count: u32,
    watermark: Timestamp,
    status: WatermarkStatus,
    counters: Arc<OperatorCounters>,
}

/// What one source or segment emits into.
pub struct Outputs {
    outputs: Vec<Output>,
    partitions: Vec<ResultPartition>,
    local: VecDeque<(usize, StreamElement)>,
    counters: Arc<TaskCounters>,
    /// How far splits have come, as the segment reported.
    split_times: Vec<(u32, Timestamp)>,
    row_errors: Rc<RefCell<RowErrors>>,
    job: JobId,
    task_name: String,
}

impl Outputs {
    /// For the given exits. `take_partition` gives the partition at a place of the
    /// vertex; each is asked for once.
    pub(super) fn new(
        planned: &[PlannedOutput],
        mut take_partition: impl FnMut(usize) -> ResultPartition,
        counters: &Arc<TaskCounters>,
        row_errors: &Rc<RefCell<RowErrors>>,
        context: &TaskContext,
    ) -> Self {
        let mut partitions = Vec::new();
        let mut outputs = Vec::new();
        for output in planned {
            let mut places = Vec::new();
            let mut local = false;
            for destination in &output.destinations {
                match destination {
                    Destination::Node { .. } => local = true,
                    Destination::Partition(index) => {
                        places.push(partitions.len());
                        partitions.push(take_partition(*index));
                    }
                }
            }
            outputs.push(Output {
                partitions: places,
                local,
                batch: Vec::new(),
                batch_count: 0,
                watermark: Timestamp::MIN,
                status: WatermarkStatus::Active,
                counters: counters.operator(output.exit.node),
            });
        }
        Self {
            outputs,
            partitions,
            local: VecDeque::new(),
            counters: Arc::clone(counters),
            split_times: Vec::new(),
            row_errors: Rc::clone(row_errors),
            job: context.job,
            task_name: context.task_name.clone(),
        }
    }

    /// Takes rows that were not checked.
    pub(super) fn emit_rows(&mut self, output: usize, count: u32, rows: &[u8]) -> Result<(), RoutingError> {
        let exit = &mut self.outputs[output];
        for partition in &exit.partitions {
            self.partitions[*partition].emit_rows(count, rows)?;
            self.counters.count_out(count, rows.len());
        }
        exit.counters.records_out.fetch_add(u64::from(count), Ordering::Relaxed);
        if !exit.local {
            return Ok(());
        }
        if exit.partitions.is_empty() {
            check_rows(count, rows)?;
        }
        if LOCAL_BATCH_BYTES_MAX < exit.batch.len() + rows.len() {
            self.close_batch(output);
        }
        let exit = &mut self.outputs[output];
        exit.batch.extend_from_slice(rows);
        exit.batch_count += count;
        Ok(())
    }

    fn close_batch(&mut self, output: usize) {
        let exit = &mut self.outputs[output];
        if exit.batch_count == 0 {
            return;
        }
        let count = std::mem::take(&mut exit.batch_count);
        let data = Bytes::from(std::mem::take(&mut exit.batch));
        self.local.push_back((output, StreamElement::Records(RecordBatch { kind: BatchKind::Rows, count, data })));
    }

    /// Sends a batch that the engine itself made to all exits.
    pub(super) fn emit_batch(&mut self, batch: &RecordBatch) -> Result<(), RoutingError> {
        for (index, output) in self.outputs.iter().enumerate() {
            for partition in &output.partitions {
                self.partitions[*partition].emit_batch(batch)?;
                self.counters.count_out(batch.count, batch.data.len());
            }
            output.counters.records_out.fetch_add(u64::from(batch.count), Ordering::Relaxed);
            if output.local {
                self.local.push_back((index, StreamElement::Records(batch.clone())));
            }
        }
        Ok(())
    }

    /// Sends the watermark at the end of event time to all exits.
    pub(super) fn emit_final_watermark(&mut self) {
        for output in 0..self.outputs.len() {
            self.send_watermark_status(output, WatermarkStatus::Active);
            self.send_watermark(output, Timestamp::MAX);
        }
    }

    fn send_watermark(&mut self, output: usize, watermark: Timestamp) {
        let exit = &mut self.outputs[output];
        if exit.status == WatermarkStatus::Idle || watermark <= exit.watermark {
            return;
        }
        exit.watermark = watermark;
        exit.counters.output_watermark.store(watermark.0, Ordering::Release);
        self.send(output, &StreamElement::Watermark(watermark));
    }

    fn send_watermark_status(&mut self, output: usize, status: WatermarkStatus) {
        let exit = &mut self.outputs[output];
        if exit.status != status {
            exit.status = status;
            self.send(output, &StreamElement::WatermarkStatus(status));
        }
    }

    /// Sends an element that is not rows behind all rows of an exit.
    fn send(&mut self, output: usize, element: &StreamElement) {
        for partition in &self.outputs[output].partitions {
            self.partitions[*partition].broadcast(element);
        }
        if self.outputs[output].local {
            self.close_batch(output);
            self.local.push_back((output, element.clone()));
        }
    }

    /// Sends an element to all result partitions.
    pub(super) fn broadcast(&mut self, element: &StreamElement) {
        self.partitions.iter_mut().for_each(|partition| partition.broadcast(element));
    }

    /// The next element for operators of the chain, with its exit.
    pub(super) fn take_local(&mut self) -> Option<(usize, StreamElement)> {
        if self.local.is_empty() {
            (0..self.outputs.len()).for_each(|output| self.close_batch(output));
        }
        self.local.pop_front()
    }

    /// Takes how far splits have come, as the segment reported since the last time.
    pub(super) fn take_split_times(&mut self) -> Vec<(u32, Timestamp)> {
        std::mem::take(&mut self.split_times)
    }

    /// The least watermark of all exits, and whether all are idle.
    pub(super) fn watermark(&self) -> (Timestamp, WatermarkStatus) {
        let watermark = self.outputs.iter().map(|output| output.watermark).min().unwrap_or(Timestamp::MAX);
        let active = self.outputs.iter().any(|output| output.status == WatermarkStatus::Active);
        (watermark, if active { WatermarkStatus::Active } else { WatermarkStatus::Idle })
    }

    /// Sends what waits for room in the channels.
    pub(super) fn send_pending(&mut self, backpressure: &mut dyn Backpressure) -> Result<(), Interrupted> {
        for partition in &mut self.partitions {
            while let Some((channel, progress)) = partition.advance() {
                backpressure.wait_for_room(partition, channel, progress)?;
            }
        }
        Ok(())
    }

    /// Sends partly filled buffers whose time has come, and returns when the next will be due.
    pub(super) fn flush_if_due(&mut self, now: Duration) -> Option<Duration> {
        self.partitions.iter_mut().filter_map(|partition| partition.flush_if_due(now)).min()
    }
}

fn check_rows(count: u32, rows: &[u8]) -> Result<(), RoutingError> {
    let mut found = 0_u64;
    for row in Rows::new(rows) {
        row.map_err(|error| RoutingError::BadRow(error.offset))?;
        found += 1;
    }
    if found == u64::from(count) { Ok(()) } else { Err(RoutingError::BadCount { claimed: count, found }) }
}

impl EmitTarget for Outputs {
    fn emit(&mut self, output: u32, count: u32, rows: &[u8]) -> Result<(), EmitError> {
        self.emit_rows(output as usize, count, rows).map_err(|error| match error {
            RoutingError::NoSuchChannel { channel, channels } => {
                EmitError::NoSuchChannel { channel, channels: u32::try_from(channels).unwrap_or(u32::MAX) }
            }
            RoutingError::BadRow(_) | RoutingError::BadCount { .. } => EmitError::BadBatch(error.to_string()),
        })
    }

    fn emit_watermark(&mut self, output: u32, watermark: Timestamp) {
        self.send_watermark(output as usize, watermark);
    }

    fn emit_watermark_status(&mut self, output: u32, status: WatermarkStatus) {
        self.send_watermark_status(output as usize, status);
    }

    fn report_split_time(&mut self, split: u32, timestamp: Timestamp) {
        if self.split_times.len() < SPLIT_TIMES_MAX {
            self.split_times.push((split, timestamp));
        }
    }

    fn reject_row(&mut self, node: u32, row: Option<u32>, message: &str, payload: &[u8]) -> Verdict {
        self.row_errors.borrow_mut().reject_row(node, row, message, payload)
    }

    fn log(&mut self, level: LogLevel, message: &str) {
        let (job, task) = (self.job, &self.task_name);
        match level {
            LogLevel::Trace => tracing::trace!(target: "plugin", %job, task, "{message}"),
            LogLevel::Debug => tracing::debug!(target: "plugin", %job, task, "{message}"),
            LogLevel::Info => tracing::info!(target: "plugin", %job, task, "{message}"),
            LogLevel::Warn => tracing::warn!(target: "plugin", %job, task, "{message}"),
            LogLevel::Error => tracing::error!(target: "plugin", %job, task, "{message}"),
        }
    }
}
