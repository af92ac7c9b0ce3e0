//! The exchange of rows between tasks of one process.
//!
//! A producing task owns a [`ResultPartition`] per outgoing edge, whose
//! [`ResultSubpartition`]s are bounded queues; a consuming task owns
//! [`InputGates`], whose [`InputChannel`]s are the other ends. The
//! [`ResultPartitionManager`] brings the two together, whoever comes first.
//!
//! Invariants: nothing here waits, except where a task waits on purpose for room
//! in a queue; the elements of a channel arrive in the order in which they were
//! sent, but for those of the priority lane; what waits in a queue is bounded.

mod barrier_handler;
mod input_channel;
mod input_gate;
mod partition_manager;
mod partitioner;
mod result_partition;
mod result_subpartition;
mod watermark_valve;

pub use barrier_handler::{AlignedCheckpoint, BarrierAction, CheckpointBarrierHandler};
pub use input_channel::{ChannelError, InputChannel};
pub use input_gate::{GateElement, GateError, InputGates};
pub use partition_manager::ResultPartitionManager;
pub use partitioner::{ChannelSelector, RoutingError};
pub use result_partition::{FlushPolicy, ResultPartition, ResultPartitionSettings};
pub use result_subpartition::{Progress, ResultSubpartition};
pub use watermark_valve::{CombinedWatermark, StatusWatermarkValve, ValveOutput};

use crate::base::config::{Configuration, options};

/// Sizes of the exchange; producer and consumer of a channel use the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NetworkConfig {
    /// Bytes of rows at which a buffer is sent. A row longer than this travels alone.
    pub segment_bytes: usize,
    /// Elements queued in one channel before the producer waits.
    pub elements_per_channel_max: usize,
}

/// The smallest buffer that is of use: one header and a little payload.
const SEGMENT_BYTES_MIN: usize = 64;

impl NetworkConfig {
    /// Takes the sizes out of a job's configuration.
    pub fn new(configuration: &Configuration) -> Self {
        let segment = configuration.get(&options::SEGMENT_SIZE).0;
        let elements = configuration.get(&options::MAX_BUFFERS_PER_CHANNEL);
        Self {
            segment_bytes: usize::try_from(segment).unwrap_or(usize::MAX).max(SEGMENT_BYTES_MIN),
            elements_per_channel_max: usize::try_from(elements).unwrap_or(usize::MAX).max(1),
        }
    }
}
