//! Pipelined regions, and which tasks restart when some fail.
//!
//! Works on a bare topology of numbered vertices. A region is a connected
//! component over pipelined edges; regions that form a cycle over blocking edges
//! are one. Source: Flink's `SchedulingPipelinedRegionComputeUtil` and
//! `RestartPipelinedRegionFailoverStrategy`.

use std::collections::{BTreeSet, VecDeque};

/// How a consumer gets at what a producer made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EdgeKind {
    /// While it is made, and only once: both ends run together.
    Pipelined,
    /// When all of it was made, as often as wanted.
    Blocking,
}

/// An edge between two vertices, by their numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TopologyEdge {
    /// The producer.
    pub from: usize,
    /// The consumer.
    pub to: usize,
    /// How they are coupled.
    pub kind: EdgeKind,
}

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
        let mut components = Components::new(vertex_count);
        for edge in edges {
            match edge.kind {
                EdgeKind::Pipelined => components.join(edge.from, edge.to),
                EdgeKind::Blocking => {}
            }
        }
        let blocking_edges = || edges.iter().filter(|edge| edge.kind == EdgeKind::Blocking);
        while let Some((left, right)) = find_cycle(&mut components, blocking_edges().copied()) {
            components.join(left, right);
        }
        let mut vertices: Vec<Vec<usize>> = Vec::new();
        let mut region_of = vec![usize::MAX; vertex_count];
        for vertex in 0..vertex_count {
            let root = components.root(vertex);
            if region_of[root] == usize::MAX {
                region_of[root] = vertices.len();
                vertices.push(Vec::new());
            }
            region_of[vertex] = region_of[root];
            vertices[region_of[vertex]].push(vertex);
        }
        let blocking = blocking_edges()
            .map(|edge| (edge.from, edge.to))
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

/// Two components that reach each other over the edges, if there are any.
fn find_cycle(components: &mut Components, edges: impl Iterator<Item = TopologyEdge>) -> Option<(usize, usize)> {
    let mut edges: Vec<(usize, usize)> =
        edges.map(|edge| (components.root(edge.from), components.root(edge.to))).collect();
    edges.retain(|(from, to)| from != to);
    edges.sort_unstable();
    edges.dedup();
    edges.iter().copied().find(|(from, to)| {
        let mut reached = BTreeSet::from([*to]);
        let mut open = vec![*to];
        while let Some(component) = open.pop() {
            let first = edges.partition_point(|edge| edge.0 < component);
            for (_, next) in edges[first..].iter().take_while(|edge| edge.0 == component) {
                if reached.insert(*next) {
                    open.push(*next);
                }
            }
        }
        reached.contains(from)
    })
}

/// Disjoint sets of vertices; the root of a set is its lowest vertex.
struct Components(Vec<usize>);

impl Components {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&mut self, vertex: usize) -> usize {
        let mut root = vertex;
        while self.0[root] != root {
            root = self.0[root];
        }
        // Later walks from here take one step.
        let mut walked = vertex;
        while self.0[walked] != root {
            walked = std::mem::replace(&mut self.0[walked], root);
        }
        root
    }

    fn join(&mut self, left: usize, right: usize) {
        let (left, right) = (self.root(left), self.root(right));
        self.0[left.max(right)] = left.min(right);
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Flink's regions and restarted sets; see `tests-data/job_master/failover.json`.
    #[derive(Deserialize)]
    struct Vectors {
        scenarios: Vec<Scenario>,
    }

    #[derive(Deserialize)]
    struct Scenario {
        name: String,
        vertices: Vec<String>,
        edges: Vec<Edge>,
        regions: Vec<BTreeSet<String>>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Edge {
        from: String,
        to: String,
        #[serde(rename = "type")]
        kind: String,
    }

    #[derive(Deserialize)]
    struct Case {
        failed: String,
        unavailable_inputs: Vec<(String, String)>,
        in_created_state: BTreeSet<String>,
        restarts: BTreeSet<String>,
    }

    #[test]
    fn regions_and_restarted_sets_equal_flinks() {
        let text = include_str!("../../../../tests-data/job_master/failover.json");
        let vectors: Vectors = serde_json::from_str(text).unwrap();
        assert_eq!(vectors.scenarios.len(), 6);
        for scenario in vectors.scenarios {
            let number = |name: &str| scenario.vertices.iter().position(|vertex| vertex == name).unwrap();
            let name = |vertex: usize| scenario.vertices[vertex].clone();
            let edges: Vec<_> = scenario
                .edges
                .iter()
                .map(|edge| TopologyEdge {
                    from: number(&edge.from),
                    to: number(&edge.to),
                    kind: if edge.kind == "PIPELINED" { EdgeKind::Pipelined } else { EdgeKind::Blocking },
                })
                .collect();
            let regions = Regions::new(scenario.vertices.len(), &edges);
            let actual: Vec<BTreeSet<_>> =
                regions.vertices.iter().map(|region| region.iter().map(|vertex| name(*vertex)).collect()).collect();
            assert_eq!(actual, scenario.regions, "{}", scenario.name);
            for case in scenario.cases {
                let is_unavailable = |producer: usize, consumer: usize| {
                    case.unavailable_inputs.contains(&(name(producer), name(consumer)))
                };
                let actual: BTreeSet<_> = regions
                    .to_restart([number(&case.failed)], is_unavailable)
                    .into_iter()
                    .flat_map(|region| regions.vertices[region].iter().map(|vertex| name(*vertex)))
                    .filter(|vertex| !case.in_created_state.contains(vertex))
                    .collect();
                assert_eq!(actual, case.restarts, "{}: {} fails", scenario.name, case.failed);
            }
        }
    }
}
