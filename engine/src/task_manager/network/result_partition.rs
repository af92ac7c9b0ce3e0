//! What one subtask sends along one edge: deals rows into a buffer per channel
//! and sends full buffers.
//!
//! A buffer is allocated when the first row for it comes and given away when it
//! is sent: at [`NetworkConfig::segment_bytes`](super::NetworkConfig), after the
//! buffer timeout, and before every element that is not rows. Rows for all
//! channels are kept once, in the first channel's buffer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use engine_rows::row::HEADER_BYTES;
use rand::Rng;

use super::{
    ChannelSelector, NetworkConfig, Progress, ResultPartitionManager, ResultSubpartition, RoutingError,
    partitioner::next_channel,
};
use crate::{
    base::{
        ids::ResultPartitionId,
        key_group::key_group,
        stream_element::{BatchKind, RecordBatch, StreamElement},
    },
    graph::stream_graph::Partitioner,
};

/// When a partly filled buffer is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FlushPolicy {
    /// Whenever the task asks, which it does after each batch.
    EachBatch,
    /// When so much time has passed.
    After(Duration),
    /// Only when full.
    WhenFull,
}

impl FlushPolicy {
    /// Of a buffer timeout in milliseconds: 0 is after each batch, -1 only when full.
    pub fn of_buffer_timeout(millis: i64) -> Self {
        match u64::try_from(millis) {
            Ok(0) => Self::EachBatch,
            Ok(millis) => Self::After(Duration::from_millis(millis)),
            Err(_) => Self::WhenFull,
        }
    }
}

/// What makes a partition.
#[derive(Clone, Copy, Debug)]
pub struct ResultPartitionSettings {
    /// The partition.
    pub id: ResultPartitionId,
    /// How rows are dealt.
    pub partitioner: Partitioner,
    /// Number of channels.
    pub subpartitions: u32,
    /// Number of key groups of the consuming vertex.
    pub consumer_max_parallelism: u32,
    /// When a partly filled buffer is sent.
    pub flush: FlushPolicy,
    /// Sizes.
    pub network: NetworkConfig,
}

#[derive(Debug)]
struct Buffer {
    kind: BatchKind,
    count: u32,
    data: Vec<u8>,
}

impl Buffer {
    fn take(&mut self) -> Option<RecordBatch> {
        if self.count == 0 {
            return None;
        }
        let mut data = std::mem::take(&mut self.data);
        // What waits in a queue holds the memory of its capacity.
        if data.len() < data.capacity() / 2 {
            data.shrink_to_fit();
        }
        Some(RecordBatch { kind: self.kind, count: std::mem::take(&mut self.count), data: Bytes::from(data) })
    }
}

/// The channels and their buffers, apart from the choice between them.
#[derive(Debug)]
struct Channels {
    subpartitions: Vec<ResultSubpartition>,
    buffers: Vec<Buffer>,
    segment_bytes: usize,
    broadcast: bool,
}

impl Channels {
    /// Appends a row, with its header or line end, to a channel's buffer.
    #[inline]
    fn append(&mut self, channel: usize, kind: BatchKind, row: &[u8]) {
        let buffer = &mut self.buffers[channel];
        // A buffer that was sent has no capacity.
        if buffer.data.capacity() - buffer.data.len() < row.len() || buffer.kind != kind {
            self.make_room(channel, kind, row.len());
        }
        let buffer = &mut self.buffers[channel];
        buffer.data.extend_from_slice(row);
        buffer.count += 1;
    }

    #[cold]
    fn make_room(&mut self, channel: usize, kind: BatchKind, bytes: usize) {
        self.flush_channel(channel);
        let buffer = &mut self.buffers[channel];
        buffer.kind = kind;
        buffer.data = Vec::with_capacity(self.segment_bytes.max(bytes));
    }

    fn flush_channel(&mut self, channel: usize) {
        if let Some(batch) = self.buffers[channel].take() {
            self.send(channel, batch);
        }
    }

    fn send(&mut self, channel: usize, batch: RecordBatch) {
        if self.broadcast {
            for subpartition in &mut self.subpartitions {
                subpartition.enqueue(StreamElement::Records(batch.clone()));
            }
        } else {
            self.subpartitions[channel].enqueue(StreamElement::Records(batch));
        }
    }

    /// Passes a batch on behind what is in the channel's buffer: as a whole, or,
    /// if it is small, as part of the buffer.
    fn append_whole(&mut self, channel: usize, batch: &RecordBatch) {
        let buffer = &mut self.buffers[channel];
        let small = batch.data.len() < self.segment_bytes / 2;
        if !small {
            self.flush_channel(channel);
            self.send(channel, batch.clone());
            return;
        }
        if buffer.data.capacity() - buffer.data.len() < batch.data.len() || buffer.kind != batch.kind {
            self.make_room(channel, batch.kind, batch.data.len());
        }
        let buffer = &mut self.buffers[channel];
        buffer.data.extend_from_slice(&batch.data);
        buffer.count += batch.count;
    }

    /// Deals rows that nobody checked.
    fn deal_rows(
        &mut self,
        claimed: u32,
        rows: &[u8],
        mut choose: impl FnMut(u32) -> Result<usize, RoutingError>,
    ) -> Result<(), RoutingError> {
        let mut found = 0_u64;
        let mut offset = 0;
        while let Some((header, payload)) = rows[offset..].split_first_chunk::<HEADER_BYTES>() {
            let [l0, l1, l2, l3, h0, h1, h2, h3, ..] = *header;
            let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            if payload.len() < length {
                return Err(RoutingError::BadRow(offset));
            }
            let end = offset + HEADER_BYTES + length;
            let channel = choose(u32::from_le_bytes([h0, h1, h2, h3]))?;
            self.append(channel, BatchKind::Rows, &rows[offset..end]);
            found += 1;
            offset = end;
        }
        if offset < rows.len() {
            return Err(RoutingError::BadRow(offset));
        }
        if found != u64::from(claimed) {
            return Err(RoutingError::BadCount { claimed, found });
        }
        Ok(())
    }

    fn deal_lines(
        &mut self,
        lines: &[u8],
        mut choose: impl FnMut(u32) -> Result<usize, RoutingError>,
    ) -> Result<(), RoutingError> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', lines) {
            let channel = choose(0)?;
            self.append(channel, BatchKind::Lines, &lines[start..=end]);
            start = end + 1;
        }
        Ok(())
    }
}

/// What one subtask sends along one edge.
#[derive(Debug)]
pub struct ResultPartition {
    manager: Arc<ResultPartitionManager>,
    id: ResultPartitionId,
    selector: ChannelSelector,
    channels: Channels,
    flush: FlushPolicy,
    /// On the monotonic clock; set while something waits for the timeout.
    flush_deadline: Option<Duration>,
    ended: bool,
}

/// Deals with the function that belongs to the selector: chosen once per batch,
/// compiled into the loop over the rows.
macro_rules! deal {
    ($selector:expr, |$choose:ident| $deal:expr) => {
        match $selector {
            ChannelSelector::First | ChannelSelector::Broadcast => {
                let $choose = |_| Ok(0);
                $deal
            }
            ChannelSelector::RoundRobin { last, channels } => {
                let channels = *channels;
                let $choose = |_| Ok(next_channel(last, channels));
                $deal
            }
            ChannelSelector::Random { rng, channels } => {
                let channels = *channels;
                let $choose = |_| Ok(rng.random_range(0..channels));
                $deal
            }
            ChannelSelector::KeyGroup { channel_of } => {
                let groups = u32::try_from(channel_of.len()).expect("key groups are at most 32,768");
                let $choose = |hash| Ok(channel_of[key_group(hash, groups) as usize] as usize);
                $deal
            }
            ChannelSelector::Chosen { channels } => {
                let channels = *channels;
                let $choose = |channel: u32| match channel as usize {
                    index if index < channels => Ok(index),
                    _ => Err(RoutingError::NoSuchChannel { channel, channels }),
                };
                $deal
            }
        }
    };
}

impl ResultPartition {
    /// Makes the producer's ends of all channels.
    pub fn new(manager: &Arc<ResultPartitionManager>, settings: &ResultPartitionSettings) -> Self {
        manager.supersede(settings.id);
        let elements_max = settings.network.elements_per_channel_max;
        let ends = 0..settings.subpartitions;
        let subpartitions = ends.map(|index| manager.producer_end(settings.id, index, elements_max));
        let selector =
            ChannelSelector::new(settings.partitioner, settings.subpartitions, settings.consumer_max_parallelism);
        Self::with_selector(manager, settings, selector, subpartitions.collect())
    }

    fn with_selector(
        manager: &Arc<ResultPartitionManager>,
        settings: &ResultPartitionSettings,
        selector: ChannelSelector,
        subpartitions: Vec<ResultSubpartition>,
    ) -> Self {
        let buffers = subpartitions.iter().map(|_| Buffer { kind: BatchKind::Rows, count: 0, data: Vec::new() });
        let channels = Channels {
            buffers: buffers.collect(),
            subpartitions,
            segment_bytes: settings.network.segment_bytes,
            broadcast: matches!(selector, ChannelSelector::Broadcast),
        };
        Self {
            manager: Arc::clone(manager),
            id: settings.id,
            selector,
            channels,
            flush: settings.flush,
            flush_deadline: None,
            ended: false,
        }
    }

    /// Deals rows that a guest emitted: nothing about them was checked.
    ///
    /// # Errors
    /// Returns an error if the rows are not well formed or a channel does not exist.
    pub fn emit_rows(&mut self, count: u32, rows: &[u8]) -> Result<(), RoutingError> {
        let channels = &mut self.channels;
        deal!(&mut self.selector, |choose| channels.deal_rows(count, rows, choose))
    }

    /// Deals a batch that the engine itself made.
    ///
    /// # Errors
    /// Returns an error if a custom partitioner chose a channel that does not exist.
    pub fn emit_batch(&mut self, batch: &RecordBatch) -> Result<(), RoutingError> {
        let channels = &mut self.channels;
        match (&mut self.selector, batch.kind) {
            (ChannelSelector::First | ChannelSelector::Broadcast, BatchKind::Rows | BatchKind::Lines) => {
                channels.append_whole(0, batch);
                Ok(())
            }
            (selector, BatchKind::Rows) => {
                deal!(selector, |choose| channels.deal_rows(batch.count, &batch.data, choose))
            }
            (selector, BatchKind::Lines) => deal!(selector, |choose| channels.deal_lines(&batch.data, choose)),
        }
    }

    /// Sends an element that is not rows to all channels, behind all rows.
    pub fn broadcast(&mut self, element: &StreamElement) {
        debug_assert!(!matches!(element, StreamElement::Records(_)), "rows are dealt");
        self.flush();
        self.ended |= *element == StreamElement::EndOfPartition;
        for subpartition in &mut self.channels.subpartitions {
            subpartition.enqueue(element.clone());
        }
    }

    /// Sends an element to all channels that overtakes what was not yet read.
    pub fn broadcast_priority(&mut self, element: &StreamElement) {
        self.flush();
        for subpartition in &mut self.channels.subpartitions {
            subpartition.enqueue_priority(element.clone());
        }
    }

    /// Sends all partly filled buffers.
    pub fn flush(&mut self) {
        self.flush_deadline = None;
        for channel in 0..self.channels.buffers.len() {
            self.channels.flush_channel(channel);
        }
    }

    /// Sends partly filled buffers if it is time, and returns when it will be, on
    /// the same clock as `now`. Called after each batch and at that time.
    pub fn flush_if_due(&mut self, now: Duration) -> Option<Duration> {
        let FlushPolicy::After(timeout) = self.flush else {
            if self.flush == FlushPolicy::EachBatch {
                self.flush();
            }
            return None;
        };
        if self.channels.buffers.iter().all(|buffer| buffer.count == 0) {
            self.flush_deadline = None;
            return None;
        }
        let deadline = *self.flush_deadline.get_or_insert(now + timeout);
        if now < deadline {
            return Some(deadline);
        }
        self.flush();
        None
    }

    /// Sends what waits for room, as far as there is. Returns the first channel
    /// that is stuck, and why.
    pub fn advance(&mut self) -> Option<(usize, Progress)> {
        let mut stuck = None;
        for (index, subpartition) in self.channels.subpartitions.iter_mut().enumerate() {
            let progress = subpartition.advance();
            if progress != Progress::Drained && stuck.is_none() {
                stuck = Some((index, progress));
            }
        }
        stuck
    }

    /// Adds room in a channel to what a task waits for.
    pub fn wait_for_room<'a>(&'a self, channel: usize, select: &mut crossbeam_channel::Select<'a>) {
        self.channels.subpartitions[channel].wait_for_room(select);
    }

    /// Bytes of rows that wait for room, beyond what the queues hold.
    pub fn pending_bytes(&self) -> usize {
        self.channels.subpartitions.iter().map(ResultSubpartition::pending_bytes).sum()
    }
}

impl Drop for ResultPartition {
    fn drop(&mut self) {
        if self.ended {
            // A consumer that is still to come reads the rest.
            return;
        }
        for index in (0_u32..).take(self.channels.subpartitions.len()) {
            self.manager.give_up(self.id, index);
        }
    }
}

#[cfg(test)]
mod tests;
