//! Brings producers and consumers of one process together.
//!
//! Whoever of a channel's two sides comes first makes the channel and leaves the
//! other end here; so a consumer that comes first simply finds nothing to read
//! yet. An end is left until the other side takes it, until the side that left it
//! gives it up, or until the execution graph is released.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use super::{InputChannel, ResultSubpartition};
use crate::base::ids::{ExecutionAttemptId, ExecutionGraphId, ResultPartitionId};

/// The end of a channel that waits to be taken.
#[derive(Debug)]
enum Waiting {
    ForProducer(ResultSubpartition),
    ForConsumer(InputChannel),
}

/// A partition's subpartition.
type ChannelId = (ResultPartitionId, u32);

/// Registry of the channels of one TaskExecutor.
#[derive(Debug, Default)]
pub struct ResultPartitionManager {
    waiting: Mutex<BTreeMap<ChannelId, Waiting>>,
}

impl ResultPartitionManager {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ChannelId, Waiting>> {
        self.waiting.lock().expect("no code panics while it holds the lock")
    }

    /// The producer's end of a channel. Each end is taken once.
    pub fn producer_end(&self, partition: ResultPartitionId, index: u32, elements_max: usize) -> ResultSubpartition {
        let mut waiting = self.lock();
        match waiting.remove(&(partition, index)) {
            Some(Waiting::ForProducer(subpartition)) => subpartition,
            Some(Waiting::ForConsumer(_)) | None => {
                let (subpartition, channel) = ResultSubpartition::channel(elements_max);
                waiting.insert((partition, index), Waiting::ForConsumer(channel));
                subpartition
            }
        }
    }

    /// The consumer's end of a channel. Each end is taken once.
    pub fn consumer_end(&self, partition: ResultPartitionId, index: u32, elements_max: usize) -> InputChannel {
        let mut waiting = self.lock();
        match waiting.remove(&(partition, index)) {
            Some(Waiting::ForConsumer(channel)) => channel,
            Some(Waiting::ForProducer(_)) | None => {
                let (subpartition, channel) = ResultSubpartition::channel(elements_max);
                waiting.insert((partition, index), Waiting::ForProducer(subpartition));
                channel
            }
        }
    }

    /// Forgets what waits for the other side of a channel, because this side gives it up.
    pub fn give_up(&self, partition: ResultPartitionId, index: u32) {
        // Dropped after the lock was released: an end that is dropped tells the other.
        let given_up = self.lock().remove(&(partition, index));
        drop(given_up);
    }

    /// Forgets what earlier attempts of a partition's producer left: whoever would have
    /// read it has been restarted too. Called when another attempt begins.
    pub fn supersede(&self, partition: ResultPartitionId) {
        let first = ExecutionAttemptId { attempt_number: 0, ..partition.producer };
        let earlier = (ResultPartitionId { producer: first, ..partition }, 0)..(partition, 0);
        let superseded: Vec<_> = self.lock().extract_if(earlier, |_, _| true).collect();
        drop(superseded);
    }

    /// Forgets all that an execution graph's tasks left: finished output that
    /// nobody will read. Called when no task of the graph runs and none can follow.
    pub fn release(&self, graph: ExecutionGraphId) {
        let released: Vec<_> =
            self.lock().extract_if(.., |(partition, _), _| partition.producer.graph == graph).collect();
        drop(released);
    }

    /// Number of channels of which one side is missing.
    pub fn waiting_count(&self) -> usize {
        self.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{ExecutionVertexId, IntermediateDataSetId, IntermediateResultPartitionId, JobVertexId};

    fn partition(index: u32, attempt_number: u32) -> ResultPartitionId {
        let execution_vertex = ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: index };
        let data_set = IntermediateDataSetId::from_bytes([2; 16]);
        ResultPartitionId {
            partition: IntermediateResultPartitionId { data_set, partition_index: index },
            producer: ExecutionAttemptId {
                graph: ExecutionGraphId::from_bytes([3; 16]),
                execution_vertex,
                attempt_number,
            },
        }
    }

    #[test]
    fn an_attempt_supersedes_the_earlier_ones_of_its_partition_alone() {
        let manager = ResultPartitionManager::default();
        for (index, attempt) in [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (2, 0)] {
            for subpartition in 0..2 {
                drop(manager.producer_end(partition(index, attempt), subpartition, 1));
            }
        }
        manager.supersede(partition(0, 2));
        let left: Vec<_> = manager
            .lock()
            .keys()
            .map(|(id, _)| (id.producer.execution_vertex.subtask_index, id.producer.attempt_number))
            .collect();
        assert_eq!(left, [(0, 2), (0, 2), (0, 3), (0, 3), (1, 0), (1, 0), (2, 0), (2, 0)]);
    }
}
