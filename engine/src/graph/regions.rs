//! Pipelined regions: sets of subtasks that are deployed and restarted together.
//!
//! Pure functions over a topology. The JobMaster's scheduler deploys region by
//! region, its failover restarts region by region.
//!
//! Source: Flink's `SchedulingPipelinedRegionComputeUtil`.

use std::collections::BTreeMap;

use super::job_graph::{DistributionPattern, JobGraph};
use crate::base::ids::{ExecutionVertexId, JobVertexId};

/// How the data of an edge is handed over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exchange {
    /// While it is produced: both ends run at the same time.
    Pipelined,
    /// When it is complete.
    Blocking,
}

/// An edge of a topology between vertices given by zero-based index.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TopologyEdge {
    /// Producer.
    pub source: usize,
    /// Consumer.
    pub target: usize,
    /// How data is handed over.
    pub exchange: Exchange,
}

/// Vertices `0..vertex_count` in regions: those connected by pipelined edges, and
/// regions that wait for each other by blocking edges merged. Regions in the
/// order of their first vertices, vertices ascending.
pub fn pipelined_regions(vertex_count: usize, edges: &[TopologyEdge]) -> Vec<Vec<usize>> {
    let mut sets = DisjointSets::new(vertex_count);
    for edge in edges.iter().filter(|edge| edge.exchange == Exchange::Pipelined) {
        sets.union(edge.source, edge.target);
    }
    let regions = sets.sets();
    let mut region_of = vec![0; vertex_count];
    for (region, vertices) in regions.iter().enumerate() {
        vertices.iter().for_each(|vertex| region_of[*vertex] = region);
    }
    let mut successors = vec![Vec::new(); regions.len()];
    for edge in edges {
        let (source, target) = (region_of[edge.source], region_of[edge.target]);
        if source != target {
            successors[source].push(target);
        }
    }
    for (region, component) in strong_components(&successors).into_iter().enumerate() {
        sets.union(regions[region][0], regions[component][0]);
    }
    sets.sets()
}

/// The regions of a job's subtasks: all edges are pipelined. In the order of the
/// vertices, each region's subtasks in that order too. Linear in the number of
/// subtasks and edges of the JobGraph, whatever the patterns.
///
/// # Panics
/// If an input names a vertex that is not there: the JobGraph was not validated.
pub fn job_regions(job_graph: &JobGraph) -> Vec<Vec<ExecutionVertexId>> {
    let mut first_of: BTreeMap<JobVertexId, usize> = BTreeMap::new();
    let mut subtasks = Vec::new();
    for vertex in &job_graph.vertices {
        first_of.insert(vertex.id, subtasks.len());
        let ids = (0..vertex.parallelism).map(|subtask_index| ExecutionVertexId { vertex: vertex.id, subtask_index });
        subtasks.extend(ids);
    }
    let mut sets = DisjointSets::new(subtasks.len());
    for vertex in &job_graph.vertices {
        let consumers = vertex.parallelism;
        for input in &vertex.inputs {
            let producer = job_graph.vertex(input.producer).expect("producers are vertices of the job");
            let producers = producer.parallelism;
            let (from, to) = (first_of[&producer.id], first_of[&vertex.id]);
            match input.pattern {
                DistributionPattern::AllToAll => {
                    (0..producers as usize).for_each(|index| sets.union(from + index, to));
                    (0..consumers as usize).for_each(|index| sets.union(from, to + index));
                }
                DistributionPattern::Pointwise => {
                    for consumer in 0..consumers {
                        let consumed = input.pattern.consumed_partitions(producers, consumers, consumer);
                        for partition in consumed.partitions {
                            sets.union(from + partition as usize, to + consumer as usize);
                        }
                    }
                }
            }
        }
    }
    sets.sets().into_iter().map(|region| region.into_iter().map(|index| subtasks[index]).collect()).collect()
}

/// Union-find over indices; the root of a set is its least index.
struct DisjointSets {
    parents: Vec<usize>,
}

impl DisjointSets {
    fn new(count: usize) -> Self {
        Self { parents: (0..count).collect() }
    }

    fn root(&mut self, mut index: usize) -> usize {
        while self.parents[index] != index {
            self.parents[index] = self.parents[self.parents[index]];
            index = self.parents[index];
        }
        index
    }

    fn union(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.parents[one.max(other)] = one.min(other);
    }

    fn sets(&mut self) -> Vec<Vec<usize>> {
        let mut sets: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for index in 0..self.parents.len() {
            sets.entry(self.root(index)).or_default().push(index);
        }
        sets.into_values().collect()
    }
}

/// For each vertex one representative of its strongly connected component.
/// Source: Tarjan's algorithm, with a stack of its own instead of recursion.
fn strong_components(successors: &[Vec<usize>]) -> Vec<usize> {
    const UNSEEN: usize = usize::MAX;
    let count = successors.len();
    let mut numbers = vec![UNSEEN; count];
    let mut lows = vec![UNSEEN; count];
    let mut components = vec![UNSEEN; count];
    let mut open = Vec::new();
    let mut next = 0;
    for start in 0..count {
        if numbers[start] != UNSEEN {
            continue;
        }
        let mut path = vec![(start, 0)];
        while let Some((vertex, position)) = path.pop() {
            if position == 0 {
                numbers[vertex] = next;
                lows[vertex] = next;
                next += 1;
                open.push(vertex);
            }
            if let Some(successor) = successors[vertex].get(position) {
                path.push((vertex, position + 1));
                if numbers[*successor] == UNSEEN {
                    path.push((*successor, 0));
                } else if components[*successor] == UNSEEN {
                    lows[vertex] = lows[vertex].min(numbers[*successor]);
                }
                continue;
            }
            if lows[vertex] == numbers[vertex] {
                while let Some(member) = open.pop() {
                    components[member] = vertex;
                    if member == vertex {
                        break;
                    }
                }
            }
            if let Some((parent, _)) = path.last() {
                lows[*parent] = lows[*parent].min(lows[vertex]);
            }
        }
    }
    components
}

#[cfg(test)]
pub(crate) mod vectors {
    //! Flink's regions and restarted sets; see `tests-data/job_master/failover.json`.

    use std::collections::BTreeSet;

    use serde::Deserialize;

    use super::{Exchange, TopologyEdge};

    #[derive(Deserialize)]
    struct Vectors {
        scenarios: Vec<Scenario>,
    }

    #[derive(Deserialize)]
    pub struct Scenario {
        pub name: String,
        pub vertices: Vec<String>,
        edges: Vec<Edge>,
        pub regions: Vec<BTreeSet<String>>,
        pub cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Edge {
        from: String,
        to: String,
        #[serde(rename = "type")]
        kind: String,
    }

    #[derive(Deserialize)]
    pub struct Case {
        pub failed: String,
        pub unavailable_inputs: Vec<(String, String)>,
        pub in_created_state: BTreeSet<String>,
        pub restarts: BTreeSet<String>,
    }

    impl Scenario {
        /// Number of a vertex.
        pub fn number(&self, name: &str) -> usize {
            self.vertices.iter().position(|vertex| vertex == name).unwrap()
        }

        pub fn edges(&self) -> Vec<TopologyEdge> {
            let edge = |edge: &Edge| TopologyEdge {
                source: self.number(&edge.from),
                target: self.number(&edge.to),
                exchange: if edge.kind == "PIPELINED" { Exchange::Pipelined } else { Exchange::Blocking },
            };
            self.edges.iter().map(edge).collect()
        }
    }

    pub fn scenarios() -> Vec<Scenario> {
        let text = include_str!("../../tests-data/job_master/failover.json");
        let vectors: Vectors = serde_json::from_str(text).unwrap();
        assert_eq!(vectors.scenarios.len(), 6);
        vectors.scenarios
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn regions_equal_flinks() {
        for scenario in vectors::scenarios() {
            let sorted = |region: &std::collections::BTreeSet<String>| {
                let mut numbers: Vec<_> = region.iter().map(|name| scenario.number(name)).collect();
                numbers.sort_unstable();
                numbers
            };
            let mut expected: Vec<_> = scenario.regions.iter().map(sorted).collect();
            expected.sort();
            assert_eq!(pipelined_regions(scenario.vertices.len(), &scenario.edges()), expected, "{}", scenario.name);
        }
    }

    proptest! {
        /// Two vertices are in one region exactly if each reaches the other, where
        /// pipelined edges may be walked both ways.
        #[test]
        fn regions_equal_mutual_reachability(
            edges in proptest::collection::vec((0_usize..12, 0_usize..12, any::<bool>()), 0..30),
        ) {
            let edges: Vec<_> = edges
                .into_iter()
                .map(|(source, target, blocking)| TopologyEdge {
                    source,
                    target,
                    exchange: if blocking { Exchange::Blocking } else { Exchange::Pipelined },
                })
                .collect();
            let mut reaches = [[false; 12]; 12];
            for (vertex, row) in reaches.iter_mut().enumerate() {
                row[vertex] = true;
            }
            for edge in &edges {
                reaches[edge.source][edge.target] = true;
                reaches[edge.target][edge.source] |= edge.exchange == Exchange::Pipelined;
            }
            for middle in 0..12 {
                for from in 0..12 {
                    for to in 0..12 {
                        reaches[from][to] |= reaches[from][middle] && reaches[middle][to];
                    }
                }
            }
            let regions = pipelined_regions(12, &edges);
            for (from, reached) in reaches.iter().enumerate() {
                let region = regions.iter().find(|region| region.contains(&from)).unwrap();
                let expected: Vec<_> = (0..12).filter(|to| reached[*to] && reaches[*to][from]).collect();
                prop_assert_eq!(region, &expected);
            }
        }
    }
}
