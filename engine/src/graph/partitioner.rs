//! What is fixed for each partitioner, whatever the records are: which subtasks
//! it connects, what REST calls it, and where data in flight goes on rescaling.
//!
//! Which channel the next record takes is decided in the tasks.

use std::fmt;

use super::{job_graph::DistributionPattern, stream_graph::Partitioner};
use crate::base::key_group::{MAX_PARALLELISM_LIMIT, key_group_range, subtask_index};

/// Which former subtasks hold the channel state that a subtask must read after
/// rescaling. Source: Flink's `SubtaskStateMapper`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SubtaskStateMapper {
    /// Any one former subtask: dealt round robin.
    Arbitrary,
    /// The first subtask reads all.
    First,
    /// Each subtask reads all and drops what is not its own.
    Full,
    /// By key group: those whose ranges overlap.
    Range,
    /// Former subtask modulo the new parallelism.
    RoundRobin,
    /// There is no state to map: the edge is never unaligned.
    Unsupported,
}

impl SubtaskStateMapper {
    /// The former subtasks, ascending, whose state the zero-based subtask `index`
    /// of `parallelism` reads; none for [`SubtaskStateMapper::Unsupported`].
    ///
    /// # Panics
    /// If `index` is not below `parallelism`, or a parallelism is out of bounds.
    pub fn former_subtasks(self, index: u32, former_parallelism: u32, parallelism: u32) -> Vec<u32> {
        assert!(index < parallelism);
        assert!(parallelism <= MAX_PARALLELISM_LIMIT);
        assert!((1..=MAX_PARALLELISM_LIMIT).contains(&former_parallelism));
        let all = 0..former_parallelism;
        match self {
            Self::First if index > 0 => Vec::new(),
            Self::First | Self::Full => all.collect(),
            Self::Arbitrary | Self::RoundRobin => all.filter(|former| former % parallelism == index).collect(),
            Self::Range => {
                let range = key_group_range(index, MAX_PARALLELISM_LIMIT, parallelism);
                let owner = |group| subtask_index(group, MAX_PARALLELISM_LIMIT, former_parallelism);
                (owner(*range.start())..=owner(*range.end())).collect()
            }
            Self::Unsupported => Vec::new(),
        }
    }
}

impl Partitioner {
    /// All partitioners, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Forward,
        Self::Rebalance,
        Self::Rescale,
        Self::Shuffle,
        Self::Broadcast,
        Self::Global,
        Self::Hash,
        Self::Custom,
    ];

    /// Which subtasks of producer and consumer are connected.
    pub fn pattern(self) -> DistributionPattern {
        match self {
            Self::Forward | Self::Rescale => DistributionPattern::Pointwise,
            Self::Rebalance | Self::Shuffle | Self::Broadcast | Self::Global | Self::Hash | Self::Custom => {
                DistributionPattern::AllToAll
            }
        }
    }

    /// True if each record goes to all channels.
    pub fn is_broadcast(self) -> bool {
        self == Self::Broadcast
    }

    /// Flink's name, as in the field `ship_strategy` of the JSON plan.
    pub fn ship_strategy(self) -> &'static str {
        match self {
            Self::Forward => "FORWARD",
            Self::Rebalance => "REBALANCE",
            Self::Rescale => "RESCALE",
            Self::Shuffle => "SHUFFLE",
            Self::Broadcast => "BROADCAST",
            Self::Global => "GLOBAL",
            Self::Hash => "HASH",
            Self::Custom => "CUSTOM",
        }
    }

    /// How a consumer finds its share of data in flight after rescaling.
    pub fn downstream_state_mapper(self) -> SubtaskStateMapper {
        match self {
            Self::Rebalance | Self::Shuffle => SubtaskStateMapper::RoundRobin,
            Self::Hash => SubtaskStateMapper::Range,
            Self::Global => SubtaskStateMapper::First,
            Self::Custom => SubtaskStateMapper::Full,
            Self::Forward | Self::Rescale | Self::Broadcast => SubtaskStateMapper::Unsupported,
        }
    }

    /// How a producer finds its share of data in flight after rescaling.
    pub fn upstream_state_mapper(self) -> SubtaskStateMapper {
        match self.downstream_state_mapper() {
            SubtaskStateMapper::Unsupported => SubtaskStateMapper::Unsupported,
            SubtaskStateMapper::Arbitrary
            | SubtaskStateMapper::First
            | SubtaskStateMapper::Full
            | SubtaskStateMapper::Range
            | SubtaskStateMapper::RoundRobin => SubtaskStateMapper::Arbitrary,
        }
    }

    /// True if a checkpoint barrier may overtake records on the edge.
    pub fn may_be_unaligned(self) -> bool {
        self.downstream_state_mapper() != SubtaskStateMapper::Unsupported
    }
}

/// The name that authors know: "forward", "hash".
impl fmt::Display for Partitioner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.ship_strategy().to_ascii_lowercase())
    }
}

/// Flink's name: "ALL_TO_ALL" or "POINTWISE".
impl fmt::Display for DistributionPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::AllToAll => "ALL_TO_ALL",
            Self::Pointwise => "POINTWISE",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests-data/partitioners.json")).unwrap()
    }

    fn mapper(name: &str) -> SubtaskStateMapper {
        match name {
            "ARBITRARY" => SubtaskStateMapper::Arbitrary,
            "FIRST" => SubtaskStateMapper::First,
            "FULL" => SubtaskStateMapper::Full,
            "RANGE" => SubtaskStateMapper::Range,
            "ROUND_ROBIN" => SubtaskStateMapper::RoundRobin,
            "UNSUPPORTED" => SubtaskStateMapper::Unsupported,
            _ => panic!("{name}"),
        }
    }

    #[test]
    fn properties_equal_flinks() {
        let vectors = vectors();
        let table = vectors["table"].as_array().unwrap();
        assert_eq!(table.len(), Partitioner::ALL.len());
        for row in table {
            let name = row["partitioner"].as_str().unwrap();
            let partitioner = Partitioner::ALL.into_iter().find(|known| known.ship_strategy() == name).unwrap();
            assert_eq!(partitioner.pattern().to_string(), row["distribution"].as_str().unwrap(), "{name}");
            assert_eq!(partitioner.is_broadcast(), row["broadcast"].as_bool().unwrap(), "{name}");
            assert_eq!(partitioner.may_be_unaligned(), row["unaligned_on_edge"].as_bool().unwrap(), "{name}");
            let downstream = mapper(row["downstream_state_mapper"].as_str().unwrap());
            assert_eq!(partitioner.downstream_state_mapper(), downstream, "{name}");
            let upstream = mapper(row["upstream_state_mapper"].as_str().unwrap());
            assert_eq!(partitioner.upstream_state_mapper(), upstream, "{name}");
        }
    }

    #[test]
    fn state_in_flight_is_mapped_as_in_flink() {
        for row in vectors()["state_mapper"].as_array().unwrap() {
            let old = u32::try_from(row["old"].as_u64().unwrap()).unwrap();
            let new = u32::try_from(row["new"].as_u64().unwrap()).unwrap();
            for name in ["ROUND_ROBIN", "RANGE", "FIRST", "FULL"] {
                let expected: Vec<Vec<u32>> = serde_json::from_value(row[name].clone()).unwrap();
                let actual: Vec<_> = (0..new).map(|index| mapper(name).former_subtasks(index, old, new)).collect();
                assert_eq!(actual, expected, "{name} {old} -> {new}");
            }
        }
    }
}
