//! A stream graph that was found valid, with all that the program left open decided.
//!
//! Only [`super::validate::validate`] makes one, so that what follows (chaining,
//! ids, the JobGraph) need not check anything again.
//!
//! Precedence of the job-wide settings is that of the [`Configuration`]: `-D`, an
//! option of the command line, the program, the configuration file, the default.
//! What a node sets itself wins over all of them.

use std::{collections::BTreeSet, time::Duration};

use super::{
    error::{Errors, GraphError},
    stream_graph::{Partitioner, StreamEdge, StreamGraph, StreamNode},
};
use crate::base::{
    config::{ConfigOption, Configuration, Origin, options},
    key_group,
    option_scope::Scope,
};

/// Slot sharing group of nodes that neither set nor inherit one.
pub const DEFAULT_SLOT_SHARING_GROUP: &str = "default";

/// A node with its parallelism and the like decided.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedNode {
    /// As the program declared it.
    pub node: StreamNode,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// What the program or the user set; none: `max_parallelism` was derived.
    pub configured_max_parallelism: Option<u32>,
    /// The node's own group, else the one all inputs share, else "default".
    pub slot_sharing_group: String,
    /// Milliseconds; 0: after each batch, -1: only when full.
    pub buffer_timeout: i64,
}

/// An edge with its partitioner decided and its ends found.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedEdge {
    /// As the program declared it.
    pub edge: StreamEdge,
    /// Index of the producing node.
    pub source: usize,
    /// Index of the consuming node.
    pub target: usize,
    /// The program's choice, else forward for equal parallelism, else rebalance.
    pub partitioner: Partitioner,
}

/// A valid stream graph: acyclic, every end of every edge is there.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedStreamGraph {
    nodes: Vec<ResolvedNode>,
    edges: Vec<ResolvedEdge>,
    in_edges: Vec<Vec<usize>>,
    out_edges: Vec<Vec<usize>>,
    configuration: Configuration,
    unused_sources: Vec<StreamNode>,
}

impl ResolvedStreamGraph {
    /// Decides what `stream_graph` left open. The caller has checked the graph.
    pub(super) fn resolve(stream_graph: &StreamGraph, configuration: Configuration) -> Self {
        let defaults = JobDefaults::of(&configuration);
        let read: BTreeSet<u32> = stream_graph.edges.iter().map(|edge| edge.source).collect();
        let is_unused = |node: &StreamNode| node.operator.is_source() && !read.contains(&node.id);
        let (unused_sources, mut used): (Vec<_>, Vec<_>) = stream_graph.nodes.iter().cloned().partition(is_unused);
        used.sort_by_key(|node| node.id);
        let index_of = |id: u32| used.binary_search_by_key(&id, |node| node.id).expect("both ends of an edge exist");
        let mut in_edges = vec![Vec::new(); used.len()];
        let mut out_edges = vec![Vec::new(); used.len()];
        let mut edges = Vec::with_capacity(stream_graph.edges.len());
        for (index, edge) in stream_graph.edges.iter().enumerate() {
            let (source, target) = (index_of(edge.source), index_of(edge.target));
            out_edges[source].push(index);
            in_edges[target].push(index);
            let parallelism = |node: usize| defaults.parallelism_of(&used[node]);
            let default = match parallelism(source) == parallelism(target) {
                true => Partitioner::Forward,
                false => Partitioner::Rebalance,
            };
            let partitioner = edge.partitioner.unwrap_or(default);
            edges.push(ResolvedEdge { edge: edge.clone(), source, target, partitioner });
        }
        let mut nodes: Vec<ResolvedNode> = Vec::with_capacity(used.len());
        // Inputs have lower ids, so that their groups are known.
        for (index, node) in used.into_iter().enumerate() {
            let mut inputs =
                in_edges[index].iter().map(|edge: &usize| nodes[edges[*edge].source].slot_sharing_group.as_str());
            let inherited = match (inputs.next(), &node.slot_sharing_group) {
                (_, Some(own)) => own,
                (Some(first), None) if inputs.all(|group| group == first) => first,
                (_, None) => DEFAULT_SLOT_SHARING_GROUP,
            };
            let slot_sharing_group = inherited.to_owned();
            let parallelism = defaults.parallelism_of(&node);
            let configured_max_parallelism = node.max_parallelism.or(defaults.max_parallelism);
            nodes.push(ResolvedNode {
                parallelism,
                max_parallelism: configured_max_parallelism
                    .unwrap_or_else(|| key_group::default_max_parallelism(parallelism)),
                configured_max_parallelism,
                slot_sharing_group,
                buffer_timeout: node.buffer_timeout.unwrap_or(defaults.buffer_timeout),
                node,
            });
        }
        Self { nodes, edges, in_edges, out_edges, configuration, unused_sources }
    }

    /// The nodes that run, in ascending order of id.
    pub fn nodes(&self) -> &[ResolvedNode] {
        &self.nodes
    }

    /// The edges, in the program's order.
    pub fn edges(&self) -> &[ResolvedEdge] {
        &self.edges
    }

    /// Indices of the edges that lead to a node given by index, in the program's order.
    pub fn in_edges(&self, node: usize) -> &[usize] {
        &self.in_edges[node]
    }

    /// Indices of the edges that leave a node given by index, in the program's order.
    pub fn out_edges(&self, node: usize) -> &[usize] {
        &self.out_edges[node]
    }

    /// The settings with those of the program merged in.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Sources that no operator reads; as in Flink they are not run.
    pub fn unused_sources(&self) -> &[StreamNode] {
        &self.unused_sources
    }
}

/// The job-wide settings that nodes fall back to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct JobDefaults {
    pub(super) parallelism: u32,
    pub(super) max_parallelism: Option<u32>,
    pub(super) buffer_timeout: i64,
}

impl JobDefaults {
    pub(super) fn of(configuration: &Configuration) -> Self {
        let buffer_timeout = match configuration.get(&options::BUFFER_TIMEOUT_ENABLED) {
            true => milliseconds(configuration.get(&options::BUFFER_TIMEOUT)),
            false => -1,
        };
        Self {
            parallelism: configuration.get(&options::PARALLELISM),
            max_parallelism: configuration.get(&options::MAX_PARALLELISM),
            buffer_timeout,
        }
    }

    pub(super) fn parallelism_of(&self, node: &StreamNode) -> u32 {
        node.parallelism.unwrap_or(self.parallelism)
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Where the value of an option came from.
pub(super) fn origin_of<T>(configuration: &Configuration, option: &ConfigOption<T>) -> Origin {
    configuration.iter().find(|(key, _, _)| *key == option.key).map_or(Origin::Default, |(_, _, origin)| origin)
}

/// False for known keys that are not the program's.
pub(super) fn may_be_set_by_program(key: &str) -> bool {
    let is_known = options::ALL.iter().any(|option| option.key == key);
    !is_known || Scope::of(key) == Scope::Program
}

/// The settings of the submission with those of the program merged in, each by
/// the strength of its origin.
pub(super) fn effective_configuration(
    stream_graph: &StreamGraph,
    configuration: &Configuration,
    errors: &mut Errors,
) -> Configuration {
    let mut effective = configuration.clone();
    let fields = [
        (options::JOB_NAME.key, stream_graph.job_name.clone()),
        (options::PARALLELISM.key, stream_graph.parallelism.map(|value| value.to_string())),
        (options::MAX_PARALLELISM.key, stream_graph.max_parallelism.map(|value| value.to_string())),
    ];
    let fields = fields.iter().filter_map(|(key, value)| value.as_deref().map(|value| (*key, value)));
    // The fields come last: they win over an entry of the same key.
    for (key, value) in
        stream_graph.configuration.iter().map(|(key, value)| (key.as_str(), value.as_str())).chain(fields)
    {
        if !may_be_set_by_program(key) {
            errors.push(GraphError::ForbiddenSetting { key: key.to_owned() });
        } else if let Err(error) = effective.set(key, value, Origin::Program) {
            errors.push(GraphError::Setting(error));
        }
    }
    effective
}
