//! Which partitions and subpartitions each subtask reads.
//!
//! Arithmetic of a static graph of `producers` and `consumers` subtasks. Source:
//! Flink's `VertexInputInfoComputationUtils` (the integer formulas) and
//! `IntermediateResultPartition`.

use std::ops::Range;

use crate::{base::key_group::MAX_PARALLELISM_LIMIT, graph::job_graph::DistributionPattern};

/// A data set's pattern with the number of subtasks at both ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Distribution {
    /// Which subtasks are connected.
    pub pattern: DistributionPattern,
    /// Number of producing subtasks.
    pub producers: u32,
    /// Number of consuming subtasks.
    pub consumers: u32,
}

impl Distribution {
    /// The partitions that a consuming subtask reads; one channel each.
    pub fn consumed_partitions(self, consumer: u32) -> Range<u32> {
        self.assert_bounds();
        debug_assert!(consumer < self.consumers);
        let Self { pattern, producers, consumers } = self;
        match pattern {
            DistributionPattern::AllToAll => 0..producers,
            DistributionPattern::Pointwise if consumers <= producers => {
                consumer * producers / consumers..(consumer + 1) * producers / consumers
            }
            DistributionPattern::Pointwise => {
                let partition = consumer * producers / consumers;
                partition..partition + 1
            }
        }
    }

    /// The subtasks that read a partition.
    pub fn consumers_of(self, partition: u32) -> Range<u32> {
        self.assert_bounds();
        debug_assert!(partition < self.producers);
        let Self { pattern, producers, consumers } = self;
        match pattern {
            DistributionPattern::AllToAll => 0..consumers,
            DistributionPattern::Pointwise if consumers <= producers => {
                let consumer = ((partition + 1) * consumers - 1) / producers;
                consumer..consumer + 1
            }
            DistributionPattern::Pointwise => {
                (partition * consumers).div_ceil(producers)..((partition + 1) * consumers).div_ceil(producers)
            }
        }
    }

    /// The subpartition of `partition` that a consuming subtask reads. With more
    /// consumers than producers it is the subtask modulo the partition's number of
    /// subpartitions, and not the distance from its first consumer.
    pub fn subpartition(self, partition: u32, consumer: u32) -> u32 {
        match self.pattern {
            DistributionPattern::AllToAll => consumer,
            DistributionPattern::Pointwise => consumer % self.subpartitions(partition),
        }
    }

    /// Number of subpartitions of a partition.
    pub fn subpartitions(self, partition: u32) -> u32 {
        let consumers = self.consumers_of(partition);
        consumers.end - consumers.start
    }

    /// Both are at most 32,768, so that their products fit into 32 bits.
    fn assert_bounds(self) {
        debug_assert!((1..=MAX_PARALLELISM_LIMIT).contains(&self.producers));
        debug_assert!((1..=MAX_PARALLELISM_LIMIT).contains(&self.consumers));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    /// Flink's mappings; see `tests-data/job_master/pointwise.json`.
    #[derive(Deserialize)]
    struct Vectors {
        pointwise: Vec<Mapping>,
        all_to_all: Vec<AllToAll>,
        max_edges: Vec<MaxEdges>,
    }

    #[derive(Deserialize)]
    struct Mapping {
        producers: u32,
        consumers: u32,
        by_consumer: Vec<ByConsumer>,
        by_producer: Vec<ByProducer>,
    }

    #[derive(Deserialize)]
    struct ByConsumer {
        subtask: u32,
        partitions: [u32; 2],
        subpartition: u32,
    }

    #[derive(Deserialize)]
    struct ByProducer {
        partition: u32,
        num_subpartitions: u32,
        consumers: Vec<u32>,
        subpartition_to_consumer: BTreeMap<String, u32>,
    }

    #[derive(Deserialize)]
    struct AllToAll {
        producers: u32,
        consumers: u32,
        by_consumer: Vec<ByConsumer>,
        num_subpartitions_per_partition: u32,
        total_channels: u32,
    }

    #[derive(Deserialize)]
    struct MaxEdges {
        target_parallelism: u32,
        source_parallelism: u32,
        pattern: String,
        max_edges_to_one_target: u32,
    }

    fn vectors() -> Vectors {
        serde_json::from_str(include_str!("../../../../tests-data/job_master/pointwise.json")).unwrap()
    }

    #[track_caller]
    fn check_consumers(distribution: Distribution, expected: &[ByConsumer]) {
        assert_eq!(expected.len(), distribution.consumers as usize);
        for consumer in expected {
            let [first, last] = consumer.partitions;
            assert_eq!(distribution.consumed_partitions(consumer.subtask), first..last + 1, "{distribution:?}");
            for partition in first..=last {
                let subpartition = distribution.subpartition(partition, consumer.subtask);
                assert_eq!(subpartition, consumer.subpartition, "{distribution:?}");
            }
        }
    }

    #[test]
    fn pointwise_equals_flinks() {
        for Mapping { producers, consumers, by_consumer, by_producer } in vectors().pointwise {
            let distribution = Distribution { pattern: DistributionPattern::Pointwise, producers, consumers };
            check_consumers(distribution, &by_consumer);
            assert_eq!(by_producer.len(), producers as usize);
            for expected in by_producer {
                let partition = expected.partition;
                assert_eq!(distribution.subpartitions(partition), expected.num_subpartitions, "{distribution:?}");
                assert_eq!(distribution.consumers_of(partition).collect::<Vec<_>>(), expected.consumers);
                for (subpartition, consumer) in expected.subpartition_to_consumer {
                    assert_eq!(distribution.subpartition(partition, consumer).to_string(), subpartition);
                }
            }
        }
    }

    #[test]
    fn all_to_all_equals_flinks() {
        for expected in vectors().all_to_all {
            let AllToAll { producers, consumers, .. } = expected;
            let distribution = Distribution { pattern: DistributionPattern::AllToAll, producers, consumers };
            check_consumers(distribution, &expected.by_consumer);
            assert_eq!(distribution.subpartitions(0), expected.num_subpartitions_per_partition);
            let channels = (0..consumers).map(|consumer| distribution.consumed_partitions(consumer).len());
            assert_eq!(channels.sum::<usize>(), expected.total_channels as usize);
        }
    }

    #[test]
    fn the_most_edges_of_one_subtask_equal_flinks() {
        for expected in vectors().max_edges {
            let pattern = match expected.pattern.as_str() {
                "POINTWISE" => DistributionPattern::Pointwise,
                _ => DistributionPattern::AllToAll,
            };
            let (producers, consumers) = (expected.source_parallelism, expected.target_parallelism);
            let distribution = Distribution { pattern, producers, consumers };
            let most = (0..consumers).map(|consumer| distribution.consumed_partitions(consumer).len()).max();
            assert_eq!(most, Some(expected.max_edges_to_one_target as usize));
        }
    }

    #[test]
    fn both_directions_agree_for_all_ratios() {
        for producers in 1..=40 {
            for consumers in 1..=40 {
                let distribution = Distribution { pattern: DistributionPattern::Pointwise, producers, consumers };
                for consumer in 0..consumers {
                    for partition in 0..producers {
                        let reads = distribution.consumed_partitions(consumer).contains(&partition);
                        let is_read = distribution.consumers_of(partition).contains(&consumer);
                        assert_eq!(reads, is_read, "{producers}x{consumers} {partition} {consumer}");
                    }
                }
            }
        }
    }
}
