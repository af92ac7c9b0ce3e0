//! Plugins compiled to machine code, as the chain sees them.

use std::{collections::BTreeMap, sync::Arc};

use super::{GuestSegment, OpenSegment, Outputs, Plugin};
use crate::{
    base::{
        clock::Timestamp,
        stream_element::{CheckpointId, RecordBatch, WatermarkStatus},
    },
    state::{StateUsage, TimeDomain},
    wasm::{CompiledPlugin, GuestError, MetricSnapshot, Segment, SegmentSnapshot, SourceStatus},
};

impl Plugin for Arc<CompiledPlugin> {
    fn open(&self, request: OpenSegment<'_>) -> Result<Box<dyn GuestSegment>, GuestError> {
        let OpenSegment { replay, context, limits, cancel, restore, outputs } = request;
        Ok(Box::new(Segment::open(self, replay, context, limits, cancel, restore, outputs)?))
    }
}

impl GuestSegment for Segment<Outputs> {
    fn process_batch(&mut self, input: u32, batch: &RecordBatch) -> Result<(), GuestError> {
        self.process_batch(input, batch)
    }

    fn process_watermark(&mut self, watermark: Timestamp) -> Result<(), GuestError> {
        self.process_watermark(watermark)
    }

    fn process_watermark_status(&mut self, status: WatermarkStatus) -> Result<(), GuestError> {
        self.process_watermark_status(status)
    }

    fn fire_timers(&mut self, domain: TimeDomain, time: Timestamp) -> Result<bool, GuestError> {
        self.fire_timers(domain, time)
    }

    fn take_state(&mut self) -> Result<bool, GuestError> {
        self.take_state()
    }

    fn next_processing_time(&self) -> Option<Timestamp> {
        self.next_processing_time()
    }

    fn poll_source(&mut self, max_bytes: u32) -> Result<SourceStatus, GuestError> {
        self.poll_source(max_bytes)
    }

    fn begin_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.begin_split(split)
    }

    fn end_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.end_split(split)
    }

    fn advance_processing_time(&mut self, now: Timestamp) -> Result<(), GuestError> {
        self.advance_processing_time(now)
    }

    fn snapshot(&mut self, checkpoint_id: CheckpointId, is_full: bool) -> Result<SegmentSnapshot, GuestError> {
        self.snapshot(checkpoint_id, is_full)
    }

    fn lists(&self) -> BTreeMap<usize, Vec<Vec<u8>>> {
        self.lists().clone()
    }

    fn notify_checkpoint_complete(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.notify_checkpoint_complete(checkpoint_id)
    }

    fn notify_checkpoint_aborted(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.notify_checkpoint_aborted(checkpoint_id)
    }

    fn end_input(&mut self, input: u32) -> Result<(), GuestError> {
        self.end_input(input)
    }

    fn close(&mut self) -> Result<(), GuestError> {
        self.close()
    }

    fn outputs(&mut self) -> &mut Outputs {
        self.target_mut()
    }

    fn memory_bytes(&self) -> usize {
        self.memory_bytes()
    }

    fn state_usage(&self) -> StateUsage {
        self.state_usage()
    }

    fn metrics(&self) -> Vec<MetricSnapshot> {
        self.metrics()
    }

    fn dropped_log_lines(&self) -> u64 {
        self.dropped_log_lines()
    }
}
