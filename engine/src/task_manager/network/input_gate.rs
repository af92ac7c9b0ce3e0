//! All input gates of a task: reads the channels in the order in which they were
//! announced, one element at a time, so that no channel starves.
//!
//! All channels announce themselves in one queue, which the task waits on; it has
//! room for each channel once and so never fills.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{ChannelError, InputChannel, ResultPartitionManager};
use crate::base::{ids::ResultPartitionId, stream_element::StreamElement};

/// An element with the channel that it came through.
#[derive(Debug, Eq, PartialEq)]
pub struct GateElement {
    /// Zero-based gate of the task.
    pub gate: usize,
    /// Zero-based channel of the gate.
    pub channel: usize,
    /// The element.
    pub element: StreamElement,
}

/// A gate cannot be read further.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("input gate {gate}, channel {channel}")]
pub struct GateError {
    /// Zero-based gate.
    pub gate: usize,
    /// Zero-based channel of the gate.
    pub channel: usize,
    /// What happened.
    pub source: ChannelError,
}

#[derive(Debug)]
struct GateChannel {
    gate: usize,
    channel: usize,
    partition: ResultPartitionId,
    subpartition: u32,
    input: InputChannel,
}

/// All input gates of a task.
#[derive(Debug)]
pub struct InputGates {
    manager: Arc<ResultPartitionManager>,
    channels: Vec<GateChannel>,
    announced: Receiver<u32>,
    /// Kept so that the queue stays connected while there are no channels.
    _announcing: Sender<u32>,
    open: usize,
}

impl InputGates {
    /// Opens the channels of all gates, as `[gate][channel]`.
    ///
    /// # Panics
    /// Panics if there are 2^32 channels.
    pub fn new(
        manager: &Arc<ResultPartitionManager>,
        gates: &[Vec<(ResultPartitionId, u32)>],
        elements_max: usize,
    ) -> Self {
        let count = gates.iter().map(Vec::len).sum::<usize>();
        let (announcing, announced) = bounded(count.max(1));
        let mut channels = Vec::with_capacity(count);
        for (gate, gate_channels) in gates.iter().enumerate() {
            for (channel, (partition, subpartition)) in gate_channels.iter().enumerate() {
                let input = manager.consumer_end(*partition, *subpartition, elements_max);
                let index = u32::try_from(channels.len()).expect("channels are counted in 32 bits");
                input.attach(announcing.clone(), index);
                channels.push(GateChannel { gate, channel, partition: *partition, subpartition: *subpartition, input });
            }
        }
        Self { manager: Arc::clone(manager), channels, announced, _announcing: announcing, open: count }
    }

    /// The next element of any channel; none if there is none for the moment.
    ///
    /// # Errors
    /// Returns an error if a producer is gone or an element is missing.
    pub fn poll(&mut self) -> Result<Option<GateElement>, GateError> {
        while let Ok(index) = self.announced.try_recv() {
            let from = &mut self.channels[index as usize];
            let (gate, channel) = (from.gate, from.channel);
            let element = from.input.poll().map_err(|source| GateError { gate, channel, source })?;
            from.input.announce_rest();
            if let Some(element) = element {
                if from.input.is_ended() {
                    self.open -= 1;
                }
                return Ok(Some(GateElement { gate, channel, element }));
            }
        }
        Ok(None)
    }

    /// Adds the arrival of an element to what a task waits for.
    pub fn wait_for_element<'a>(&'a self, select: &mut crossbeam_channel::Select<'a>) {
        select.recv(&self.announced);
    }

    /// Number of channels that were not read to their end.
    pub fn open_channels(&self) -> usize {
        self.open
    }
}

impl Drop for InputGates {
    fn drop(&mut self) {
        for channel in &self.channels {
            if !channel.input.is_ended() {
                self.manager.give_up(channel.partition, channel.subpartition);
            }
        }
    }
}
