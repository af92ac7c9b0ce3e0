//! Which regions restart when some subtasks fail.
//!
//! Works on a bare topology of numbered vertices, whose regions
//! [`pipelined_regions`] computes. Source: Flink's
//! `RestartPipelinedRegionFailoverStrategy`.

use std::collections::{BTreeSet, VecDeque};

use crate::graph::regions::{Exchange, TopologyEdge, pipelined_regions};

/// A partition of all vertices into regions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Regions {
    /// Vertices of each region, ascending; regions by their lowest vertex.
    pub vertices: Vec<Vec<usize>>,
    /// `[vertex]`: its region.
    pub region_of: Vec<usize>,
    /// `(producer, consumer)` edges that are blocking and lead to another region.
    blocking: Vec<(usize, usize)>,
}

impl Regions {
    /// Computes the regions of `vertex_count` vertices.
    pub fn new(vertex_count: usize, edges: &[TopologyEdge]) -> Self {
        let vertices = pipelined_regions(vertex_count, edges);
        let mut region_of = vec![0; vertex_count];
        for (region, members) in vertices.iter().enumerate() {
            members.iter().for_each(|vertex| region_of[*vertex] = region);
        }
        let blocking = edges
            .iter()
            .filter(|edge| edge.exchange == Exchange::Blocking)
            .map(|edge| (edge.source, edge.target))
            .filter(|(from, to)| region_of[*from] != region_of[*to])
            .collect();
        Self { vertices, region_of, blocking }
    }

    /// The regions that restart when `failed` vertices fail: their own, those that
    /// made an input which is unavailable to a restarted one, and those that consume
    /// what a restarted one makes.
    pub fn to_restart(
        &self,
        failed: impl IntoIterator<Item = usize>,
        is_unavailable: impl Fn(usize, usize) -> bool,
    ) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: VecDeque<usize> = failed.into_iter().map(|vertex| self.region_of[vertex]).collect();
        while let Some(region) = open.pop_front() {
            if !found.insert(region) {
                continue;
            }
            for (producer, consumer) in &self.blocking {
                let (from, to) = (self.region_of[*producer], self.region_of[*consumer]);
                if to == region && is_unavailable(*producer, *consumer) {
                    open.push_back(from);
                }
                if from == region {
                    open.push_back(to);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::regions::vectors;

    #[test]
    fn regions_and_restarted_sets_equal_flinks() {
        for scenario in vectors::scenarios() {
            let name = |vertex: usize| scenario.vertices[vertex].clone();
            let regions = Regions::new(scenario.vertices.len(), &scenario.edges());
            let actual: Vec<BTreeSet<_>> =
                regions.vertices.iter().map(|region| region.iter().map(|vertex| name(*vertex)).collect()).collect();
            assert_eq!(actual, scenario.regions, "{}", scenario.name);
            for case in &scenario.cases {
                let is_unavailable = |producer: usize, consumer: usize| {
                    case.unavailable_inputs.contains(&(name(producer), name(consumer)))
                };
                let actual: BTreeSet<_> = regions
                    .to_restart([scenario.number(&case.failed)], is_unavailable)
                    .into_iter()
                    .flat_map(|region| regions.vertices[region].iter().map(|vertex| name(*vertex)))
                    .filter(|vertex| !case.in_created_state.contains(vertex))
                    .collect();
                assert_eq!(actual, case.restarts, "{}: {} fails", scenario.name, case.failed);
            }
        }
    }
}
