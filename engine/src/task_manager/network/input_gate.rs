//! All input gates of a task: reads the channels in the order in which they were
//! announced, one element at a time, so that no channel starves.
//!
//! All channels announce themselves in one queue, which the task waits on; it has
//! room for each channel twice and so never fills. A channel that is blocked is not read;
//! its announcement is put aside until it is unblocked.

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

/// A channel stands in the queue once, or twice if its producer announced it while it was
/// being attached.
const ANNOUNCEMENTS_PER_CHANNEL: usize = 2;

#[derive(Debug)]
struct GateChannel {
    gate: usize,
    channel: usize,
    partition: ResultPartitionId,
    subpartition: u32,
    input: InputChannel,
    is_blocked: bool,
    /// It was announced since it is blocked.
    was_announced: bool,
}

/// All input gates of a task.
#[derive(Debug)]
pub struct InputGates {
    manager: Arc<ResultPartitionManager>,
    channels: Vec<GateChannel>,
    announced: Receiver<u32>,
    /// Keeps the queue connected while there are no channels, too.
    announcing: Sender<u32>,
    /// By gate, the number of its channel 0 among all channels.
    first_channels: Vec<usize>,
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
        let (announcing, announced) = bounded((ANNOUNCEMENTS_PER_CHANNEL * count).max(1));
        let mut channels = Vec::with_capacity(count);
        let mut first_channels = Vec::with_capacity(gates.len());
        for (gate, gate_channels) in gates.iter().enumerate() {
            first_channels.push(channels.len());
            for (channel, (partition, subpartition)) in gate_channels.iter().enumerate() {
                let input = manager.consumer_end(*partition, *subpartition, elements_max);
                let index = u32::try_from(channels.len()).expect("channels are counted in 32 bits");
                input.attach(announcing.clone(), index);
                channels.push(GateChannel {
                    gate,
                    channel,
                    partition: *partition,
                    subpartition: *subpartition,
                    input,
                    is_blocked: false,
                    was_announced: false,
                });
            }
        }
        Self { manager: Arc::clone(manager), channels, announced, announcing, first_channels, open: count }
    }

    /// Number of all channels, those too that have ended.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Number of a gate's channel among all channels.
    pub fn channel_index(&self, gate: usize, channel: usize) -> usize {
        self.first_channels[gate] + channel
    }

    /// Reads a channel, named by its number among all, no further until it is unblocked.
    pub fn block(&mut self, index: usize) {
        self.channels[index].is_blocked = true;
    }

    /// Reads a channel again.
    pub fn unblock(&mut self, index: usize) {
        let channel = &mut self.channels[index];
        channel.is_blocked = false;
        if std::mem::take(&mut channel.was_announced) {
            let number = u32::try_from(index).expect("channels are counted in 32 bits");
            // The channel counts as announced all the while, so nobody else has announced it.
            self.announcing.try_send(number).expect("the queue has room for each channel");
        }
    }

    /// The next element of any channel that is not blocked; none if there is none for the moment.
    ///
    /// # Errors
    /// Returns an error if a producer is gone or an element is missing.
    pub fn poll(&mut self) -> Result<Option<GateElement>, GateError> {
        while let Ok(index) = self.announced.try_recv() {
            let from = &mut self.channels[index as usize];
            if from.is_blocked {
                from.was_announced = true;
                continue;
            }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        base::{
            ids::{
                ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, IntermediateDataSetId,
                IntermediateResultPartitionId, JobVertexId,
            },
            stream_element::{BatchKind, RecordBatch},
        },
        task_manager::network::{Progress, ResultSubpartition},
    };

    fn partition(partition_index: u32) -> ResultPartitionId {
        let execution_vertex =
            ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: partition_index };
        let graph = ExecutionGraphId::from_bytes([3; 16]);
        ResultPartitionId {
            partition: IntermediateResultPartitionId {
                data_set: IntermediateDataSetId::from_bytes([2; 16]),
                partition_index,
            },
            producer: ExecutionAttemptId { graph, execution_vertex, attempt_number: 0 },
        }
    }

    fn lines(text: &'static str) -> StreamElement {
        StreamElement::Records(RecordBatch {
            kind: BatchKind::Lines,
            count: 1,
            data: Bytes::from_static(text.as_bytes()),
        })
    }

    fn poll(gates: &mut InputGates) -> Option<(usize, usize, StreamElement)> {
        gates.poll().unwrap().map(|element| (element.gate, element.channel, element.element))
    }

    #[test]
    fn a_blocked_channel_is_not_read_and_what_came_meanwhile_is_not_lost() {
        let manager = Arc::new(ResultPartitionManager::default());
        let channels = [vec![(partition(0), 0)], vec![(partition(1), 0), (partition(2), 0)]];
        let mut gates = InputGates::new(&manager, &channels, 2);
        assert_eq!(gates.channel_count(), 3);
        assert_eq!((gates.channel_index(0, 0), gates.channel_index(1, 0), gates.channel_index(1, 1)), (0, 1, 2));
        let mut ends: Vec<ResultSubpartition> =
            (0..3).map(|index| manager.producer_end(partition(index), 0, 2)).collect();

        ends[1].enqueue(lines("before\n"));
        assert_eq!(poll(&mut gates), Some((1, 0, lines("before\n"))));
        // Announced while it is blocked, before and after the gates were polled.
        gates.block(1);
        ends[1].enqueue(lines("first\n"));
        assert_eq!(poll(&mut gates), None);
        ends[1].enqueue(lines("second\n"));
        ends[1].enqueue(lines("third\n"));
        assert_eq!(ends[1].advance(), Progress::Full);
        ends[2].enqueue(lines("other\n"));
        assert_eq!(poll(&mut gates), Some((1, 1, lines("other\n"))));
        assert_eq!(poll(&mut gates), None);

        gates.unblock(1);
        assert_eq!(poll(&mut gates), Some((1, 0, lines("first\n"))));
        assert_eq!(ends[1].advance(), Progress::Drained);
        assert_eq!(poll(&mut gates), Some((1, 0, lines("second\n"))));
        assert_eq!(poll(&mut gates), Some((1, 0, lines("third\n"))));
        // Nothing came while it was blocked.
        gates.block(1);
        gates.unblock(1);
        assert_eq!(poll(&mut gates), None);
        ends[1].enqueue(StreamElement::EndOfPartition);
        assert_eq!(poll(&mut gates), Some((1, 0, StreamElement::EndOfPartition)));
        assert_eq!(gates.open_channels(), 2);
    }
}
