//! Chooses the channel of each row.
//!
//! Source: the StreamPartitioners of flink-streaming-java.

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{base::key_group, graph::stream_graph::Partitioner};

/// Rows cannot be dealt.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RoutingError {
    /// The row at a byte of the batch runs past the batch's end.
    #[error("the row at byte {0} runs past the end of the batch")]
    BadRow(usize),
    /// The batch holds another number of rows than claimed.
    #[error("the batch is said to have {claimed} rows but has {found}")]
    BadCount {
        /// As claimed.
        claimed: u32,
        /// As counted.
        found: u64,
    },
    /// A custom partitioner chose a channel that does not exist.
    #[error("the partitioner chose channel {channel} of {channels}")]
    NoSuchChannel {
        /// As chosen.
        channel: u32,
        /// How many there are.
        channels: usize,
    },
}

/// A partitioner at work for one subtask.
#[derive(Debug)]
pub enum ChannelSelector {
    /// Forward and global: all rows to channel 0.
    First,
    /// Each row to all channels.
    Broadcast,
    /// Rebalance and rescale: each row to the channel behind `last`.
    RoundRobin {
        /// The channel that got the last row.
        last: usize,
        /// Number of channels.
        channels: usize,
    },
    /// Shuffle: each row to a random channel.
    Random {
        /// Source of the choices.
        rng: Box<StdRng>,
        /// Number of channels.
        channels: usize,
    },
    /// Hash: each row to the owner of its key group.
    KeyGroup {
        /// Channel by key group.
        channel_of: Vec<u32>,
    },
    /// Custom: each row to the channel that stands in its key hash.
    Chosen {
        /// Number of channels.
        channels: usize,
    },
}

impl ChannelSelector {
    /// Makes the selector of one subtask. `consumer_max_parallelism` is the
    /// number of key groups of the consuming vertex.
    ///
    /// # Panics
    /// Panics if there are no channels, or fewer key groups than channels for
    /// the hash partitioner.
    pub fn new(partitioner: Partitioner, channels: u32, consumer_max_parallelism: u32) -> Self {
        assert!(channels > 0, "a partition has at least one subpartition");
        let count = channels as usize;
        match partitioner {
            Partitioner::Forward | Partitioner::Global => Self::First,
            Partitioner::Broadcast => Self::Broadcast,
            // A random start, so that short streams do not all go to consumer 0.
            Partitioner::Rebalance => Self::RoundRobin { last: rand::rng().random_range(0..count), channels: count },
            Partitioner::Rescale => Self::RoundRobin { last: count - 1, channels: count },
            Partitioner::Shuffle => Self::Random { rng: Box::new(StdRng::from_rng(&mut rand::rng())), channels: count },
            Partitioner::Hash => {
                assert!(channels <= consumer_max_parallelism, "each subtask owns a key group");
                let owner = |group| key_group::subtask_index(group, consumer_max_parallelism, channels);
                Self::KeyGroup { channel_of: (0..consumer_max_parallelism).map(owner).collect() }
            }
            Partitioner::Custom => Self::Chosen { channels: count },
        }
    }
}

/// The channel behind `last`.
#[inline]
pub(super) fn next_channel(last: &mut usize, channels: usize) -> usize {
    *last += 1;
    if *last == channels {
        *last = 0;
    }
    *last
}
