//! Which subpartitions of which partitions a subtask consumes.
//!
//! Pure arithmetic over the parallelisms of producer and consumer; the
//! ExecutionGraph and the tasks wire what it says.
//!
//! # Invariants
//! Every subpartition of a static graph has exactly one consumer.
//!
//! Source: Flink's `VertexInputInfoComputationUtils` and `EdgeManagerBuildUtil`.

use std::ops::RangeInclusive;

use super::job_graph::DistributionPattern;

/// What one subtask reads of a data set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConsumedPartitions {
    /// Indices of the partitions, zero-based. One InputChannel each.
    pub partitions: RangeInclusive<u32>,
    /// The subpartition read of each of them, zero-based.
    pub subpartition: u32,
}

impl DistributionPattern {
    /// What consumer `consumer` of `consumers` reads of `producers` partitions.
    ///
    /// # Panics
    /// If there are no producers, or no such consumer.
    pub fn consumed_partitions(self, producers: u32, consumers: u32, consumer: u32) -> ConsumedPartitions {
        assert!(producers > 0);
        assert!(consumer < consumers);
        match self {
            Self::AllToAll => ConsumedPartitions { partitions: 0..=producers - 1, subpartition: consumer },
            Self::Pointwise if producers >= consumers => {
                let start = share(consumer, producers, consumers);
                let end = share(consumer + 1, producers, consumers) - 1;
                ConsumedPartitions { partitions: start..=end, subpartition: 0 }
            }
            Self::Pointwise => {
                let partition = share(consumer, producers, consumers);
                // Not the distance from the first consumer: Flink's choice.
                let subpartition = consumer % self.subpartition_count(producers, consumers, partition);
                ConsumedPartitions { partitions: partition..=partition, subpartition }
            }
        }
    }

    /// The consumers of partition `partition`, in ascending order.
    ///
    /// # Panics
    /// If there are no consumers, or no such partition.
    pub fn consumers(self, producers: u32, consumers: u32, partition: u32) -> RangeInclusive<u32> {
        assert!(consumers > 0);
        assert!(partition < producers);
        match self {
            Self::AllToAll => 0..=consumers - 1,
            Self::Pointwise if producers >= consumers => {
                let consumer = share_up(partition + 1, consumers, producers) - 1;
                consumer..=consumer
            }
            Self::Pointwise => {
                share_up(partition, consumers, producers)..=share_up(partition + 1, consumers, producers) - 1
            }
        }
    }

    /// How many subpartitions partition `partition` has.
    ///
    /// # Panics
    /// If there are no consumers, or no such partition.
    pub fn subpartition_count(self, producers: u32, consumers: u32, partition: u32) -> u32 {
        let range = self.consumers(producers, consumers, partition);
        range.end() - range.start() + 1
    }

    /// The consumer of one subpartition: the inverse of
    /// [`DistributionPattern::consumed_partitions`].
    ///
    /// # Panics
    /// If there is no such subpartition.
    pub fn consumer(self, producers: u32, consumers: u32, partition: u32, subpartition: u32) -> u32 {
        let range = self.consumers(producers, consumers, partition);
        let count = range.end() - range.start() + 1;
        assert!(subpartition < count);
        // `count` consecutive numbers contain each remainder once.
        let first = range.start() % count;
        range.start() + (subpartition + count - first) % count
    }

    /// Channels of one edge: the subpartitions of all partitions.
    pub fn channel_count(self, producers: u32, consumers: u32) -> u64 {
        match self {
            Self::AllToAll => u64::from(producers) * u64::from(consumers),
            Self::Pointwise => u64::from(producers.max(consumers)),
        }
    }

    /// Most edges between one subtask of a vertex of parallelism `parallelism` and
    /// the subtasks of its neighbour, on either side.
    ///
    /// # Panics
    /// If `parallelism` is zero.
    pub fn edges_max(self, parallelism: u32, neighbour_parallelism: u32) -> u32 {
        match self {
            Self::AllToAll => neighbour_parallelism,
            Self::Pointwise => neighbour_parallelism.div_ceil(parallelism),
        }
    }

    /// Subpartitions of each partition where the parallelism of the consumer is
    /// decided only after the data was produced, and is at most `consumers_max`.
    ///
    /// # Panics
    /// If `producers` is zero.
    pub fn dynamic_subpartition_count(self, producers: u32, consumers_max: u32) -> u32 {
        match self {
            Self::AllToAll => consumers_max,
            Self::Pointwise => consumers_max.div_ceil(producers),
        }
    }
}

/// Subpartitions that consumer `consumer` of `consumers` reads of each partition
/// with `subpartitions` of them, where the parallelism was decided late. A
/// broadcast has one subpartition, which all read.
///
/// # Panics
/// If there is no such consumer, or there are fewer subpartitions than consumers,
/// but not one.
pub fn dynamic_subpartitions(consumer: u32, consumers: u32, subpartitions: u32) -> RangeInclusive<u32> {
    assert!(consumer < consumers);
    if subpartitions == 1 {
        return 0..=0;
    }
    assert!(consumers <= subpartitions);
    share(consumer, subpartitions, consumers)..=share(consumer + 1, subpartitions, consumers) - 1
}

/// `index * total / parts`, rounded down.
fn share(index: u32, total: u32, parts: u32) -> u32 {
    narrow(u64::from(index) * u64::from(total) / u64::from(parts))
}

/// `index * total / parts`, rounded up.
fn share_up(index: u32, total: u32, parts: u32) -> u32 {
    narrow((u64::from(index) * u64::from(total)).div_ceil(u64::from(parts)))
}

fn narrow(share: u64) -> u32 {
    u32::try_from(share).expect("index <= parts, so that the share is at most the total")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests-data/pointwise.json")).unwrap()
    }

    fn number(value: &Value) -> u32 {
        u32::try_from(value.as_u64().unwrap()).unwrap()
    }

    fn range(value: &Value) -> RangeInclusive<u32> {
        number(&value[0])..=number(&value[1])
    }

    fn check(pattern: DistributionPattern, row: &Value) {
        let (producers, consumers) = (number(&row["producers"]), number(&row["consumers"]));
        let rows = row["by_consumer"].as_array().unwrap();
        assert_eq!(rows.len(), consumers as usize);
        for consumer in rows {
            let expected = ConsumedPartitions {
                partitions: range(&consumer["partitions"]),
                subpartition: number(&consumer["subpartition"]),
            };
            let subtask = number(&consumer["subtask"]);
            assert_eq!(pattern.consumed_partitions(producers, consumers, subtask), expected, "{row}");
        }
    }

    #[test]
    fn pointwise_equals_flinks() {
        let pattern = DistributionPattern::Pointwise;
        let vectors = vectors();
        let rows = vectors["pointwise"].as_array().unwrap();
        assert_eq!(rows.len(), 23);
        for row in rows {
            check(pattern, row);
            let (producers, consumers) = (number(&row["producers"]), number(&row["consumers"]));
            for producer in row["by_producer"].as_array().unwrap() {
                let partition = number(&producer["partition"]);
                let count = number(&producer["num_subpartitions"]);
                assert_eq!(pattern.subpartition_count(producers, consumers, partition), count, "{row}");
                let expected: Vec<u32> = serde_json::from_value(producer["consumers"].clone()).unwrap();
                let actual: Vec<_> = pattern.consumers(producers, consumers, partition).collect();
                assert_eq!(actual, expected, "{row}");
                for (subpartition, consumer) in producer["subpartition_to_consumer"].as_object().unwrap() {
                    let subpartition = subpartition.parse().unwrap();
                    let actual = pattern.consumer(producers, consumers, partition, subpartition);
                    assert_eq!(actual, number(consumer), "{row}");
                }
            }
        }
    }

    #[test]
    fn all_to_all_equals_flinks() {
        let pattern = DistributionPattern::AllToAll;
        for row in vectors()["all_to_all"].as_array().unwrap() {
            check(pattern, row);
            let (producers, consumers) = (number(&row["producers"]), number(&row["consumers"]));
            for partition in 0..producers {
                let count = number(&row["num_subpartitions_per_partition"]);
                assert_eq!(pattern.subpartition_count(producers, consumers, partition), count);
            }
            assert_eq!(pattern.channel_count(producers, consumers), row["total_channels"].as_u64().unwrap());
        }
    }

    #[test]
    fn dynamic_graphs_equal_flinks() {
        let vectors = vectors();
        for row in vectors["dynamic"].as_array().unwrap() {
            let consumers = number(&row["consumers"]);
            for consumer in row["by_consumer"].as_array().unwrap() {
                let subtask = number(&consumer["subtask"]);
                let subpartitions = number(&row["subpartitions_per_partition"]);
                let actual = dynamic_subpartitions(subtask, consumers, subpartitions);
                assert_eq!(actual, range(&consumer["subpartition_range"]), "{row}");
            }
        }
        for row in vectors["dynamic_num_subpartitions"].as_array().unwrap() {
            let (producers, most) = (number(&row["producers"]), number(&row["max_consumer_parallelism"]));
            let pointwise = DistributionPattern::Pointwise.dynamic_subpartition_count(producers, most);
            assert_eq!(pointwise, number(&row["pointwise_subpartitions"]), "{row}");
            let all_to_all = DistributionPattern::AllToAll.dynamic_subpartition_count(producers, most);
            assert_eq!(all_to_all, number(&row["all_to_all_subpartitions"]), "{row}");
        }
    }

    #[test]
    fn edges_of_one_subtask_equal_flinks() {
        for row in vectors()["max_edges"].as_array().unwrap() {
            let pattern = match row["pattern"].as_str().unwrap() {
                "POINTWISE" => DistributionPattern::Pointwise,
                _ => DistributionPattern::AllToAll,
            };
            let actual = pattern.edges_max(number(&row["target_parallelism"]), number(&row["source_parallelism"]));
            assert_eq!(actual, number(&row["max_edges_to_one_target"]), "{row}");
        }
    }

    #[test]
    fn the_largest_parallelism_does_not_overflow() {
        let pattern = DistributionPattern::Pointwise;
        let consumed = pattern.consumed_partitions(32_767, 32_768, 32_767);
        assert_eq!(consumed, ConsumedPartitions { partitions: 32_766..=32_766, subpartition: 0 });
        assert_eq!(pattern.consumed_partitions(u32::MAX, 2, 1).partitions, u32::MAX / 2..=u32::MAX - 1);
    }

    proptest! {
        #[test]
        fn each_subpartition_has_one_consumer(producers in 1_u32..200, consumers in 1_u32..200, all in any::<bool>()) {
            let pattern = if all { DistributionPattern::AllToAll } else { DistributionPattern::Pointwise };
            let mut channels = 0;
            for consumer in 0..consumers {
                let consumed = pattern.consumed_partitions(producers, consumers, consumer);
                for partition in consumed.partitions {
                    let found = pattern.consumer(producers, consumers, partition, consumed.subpartition);
                    prop_assert_eq!(found, consumer);
                    prop_assert!(pattern.consumers(producers, consumers, partition).contains(&consumer));
                    channels += 1;
                }
            }
            let subpartitions: u64 = (0..producers)
                .map(|partition| u64::from(pattern.subpartition_count(producers, consumers, partition)))
                .sum();
            prop_assert_eq!(channels, subpartitions);
            prop_assert_eq!(channels, pattern.channel_count(producers, consumers));
        }
    }
}
