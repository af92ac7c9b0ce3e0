//! Makes the JobGraph of a stream graph.
//!
//! The steps and their order are those of Flink's `StreamingJobGraphGenerator`. Equal
//! input gives an equal JobGraph, byte for byte when encoded.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    chaining::{Chain, Chaining},
    error::{Errors, GraphError, InvalidGraph, NodeName},
    job_graph::{Artifact, ChainedOperator, Grants, IntermediateDataSet, JobEdge, JobGraph, JobVertex, ProgramSpec},
    operator_ids, plan,
    resolved::ResolvedStreamGraph,
    stream_graph::StreamGraph,
    validate,
};
use crate::base::{
    config::{Configuration, options},
    ids::{BlobDigest, JobId, JobVertexId, OperatorId},
};

/// Subtasks of a job.
pub const TASKS_MAX: u64 = 65_536;
/// Channels of a job: the subpartitions of all data sets.
pub const CHANNELS_MAX: u64 = 1 << 22;

/// What a submission adds to the stream graph and the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// The job's id.
    pub job_id: JobId,
    /// The name if neither the submission nor the program gives one.
    pub default_name: String,
    /// The program.
    pub program: ProgramSpec,
    /// What the job may open.
    pub grants: Grants,
    /// Files for the subtasks.
    pub artifacts: Vec<Artifact>,
}

/// Checks a stream graph and makes its JobGraph.
///
/// # Errors
/// Returns all that is wrong with the graph.
pub fn generate(
    stream_graph: &StreamGraph,
    configuration: &Configuration,
    spec: JobSpec,
) -> Result<JobGraph, InvalidGraph> {
    let graph = validate::validate(stream_graph, configuration)?;
    let chaining = Chaining::of(&graph);
    let ids = operator_ids::operator_ids(&graph, &chaining.is_chained());
    let vertices = make_vertices(&graph, &chaining, &ids, spec.program.plugin)?;
    let configuration = graph.configuration().clone();
    let name = configuration.get(&options::JOB_NAME).unwrap_or(spec.default_name);
    let mut errors = Errors::default();
    validate::check_name(|| "the job".to_owned(), "name", &name, &mut errors);
    errors.check()?;
    let mut job_graph = JobGraph {
        job_id: spec.job_id,
        name,
        vertices,
        configuration,
        program: spec.program,
        grants: spec.grants,
        artifacts: spec.artifacts,
        json_plan: String::new(),
    };
    job_graph.json_plan = plan::json_plan(&job_graph);
    Ok(job_graph)
}

/// The vertices, in topological order, of operators with the given ids.
pub(super) fn make_vertices(
    graph: &ResolvedStreamGraph,
    chaining: &Chaining,
    ids: &[OperatorId],
    plugin: BlobDigest,
) -> Result<Vec<JobVertex>, InvalidGraph> {
    check_ids(graph, ids)?;
    check_size(graph, chaining)?;
    let mut vertices = make_chains(graph, chaining, ids, plugin)?;
    connect(graph, chaining, &mut vertices);
    set_managed_memory_fractions(&mut vertices);
    Ok(sort_topologically(vertices))
}

/// No two operators may keep state under one id, be it generated or set.
fn check_ids(graph: &ResolvedStreamGraph, ids: &[OperatorId]) -> Result<(), InvalidGraph> {
    let mut errors = Errors::default();
    let mut seen: BTreeMap<OperatorId, usize> = BTreeMap::new();
    for (index, id) in ids.iter().enumerate() {
        let own = user_defined_id(graph, index).into_iter().chain([*id]);
        for id in own.collect::<BTreeSet<_>>() {
            if let Some(first) = seen.insert(id, index) {
                let (first, second) = (&graph.nodes()[first].node, &graph.nodes()[index].node);
                errors.push(GraphError::DuplicateOperatorId { id, first: first.into(), second: second.into() });
            }
        }
    }
    errors.check()
}

fn user_defined_id(graph: &ResolvedStreamGraph, node: usize) -> Option<OperatorId> {
    let uid_hash = graph.nodes()[node].node.uid_hash.as_ref()?;
    Some(uid_hash.parse().expect("uid hashes of a valid graph are hexadecimal"))
}

fn check_size(graph: &ResolvedStreamGraph, chaining: &Chaining) -> Result<(), InvalidGraph> {
    let parallelism = |node: usize| graph.nodes()[node].parallelism;
    let tasks: u64 = chaining.chains.iter().map(|chain| u64::from(parallelism(chain.head()))).sum();
    let channels: u64 = chaining
        .chains
        .iter()
        .flat_map(|chain| &chain.out_edges)
        .map(|edge| &graph.edges()[*edge])
        .map(|edge| edge.partitioner.pattern().channel_count(parallelism(edge.source), parallelism(edge.target)))
        .sum();
    let mut errors = Errors::default();
    for (what, count, max) in [("subtasks", tasks, TASKS_MAX), ("channels between subtasks", channels, CHANNELS_MAX)] {
        if count > max {
            errors.push(GraphError::TooMany { what: what.to_owned(), count, max });
        }
    }
    errors.check()
}

/// The vertices without their outputs and inputs, in the order of the chains.
fn make_chains(
    graph: &ResolvedStreamGraph,
    chaining: &Chaining,
    ids: &[OperatorId],
    plugin: BlobDigest,
) -> Result<Vec<JobVertex>, InvalidGraph> {
    let mut errors = Errors::default();
    let mut vertices = Vec::with_capacity(chaining.chains.len());
    for chain in &chaining.chains {
        let head = &graph.nodes()[chain.head()];
        let operators = chain.nodes.iter().map(|index| {
            let node = &graph.nodes()[*index].node;
            ChainedOperator {
                node: node.clone(),
                operator_id: ids[*index],
                user_defined_id: user_defined_id(graph, *index),
                plugin: node.operator.is_guest().then_some(plugin),
                managed_memory_fraction: 0.0,
            }
        });
        vertices.push(JobVertex {
            id: operator_ids::vertex_id(ids[chain.head()]),
            name: chain_name(graph, chain),
            parallelism: head.parallelism,
            max_parallelism: head.max_parallelism,
            max_parallelism_configured: head.configured_max_parallelism.is_some(),
            operators: operators.collect(),
            chained_edges: chain.chained_edges.iter().map(|edge| graph.edges()[*edge].edge.clone()).collect(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            slot_sharing_group: head.slot_sharing_group.clone(),
            co_location_group: co_location_group(graph, chain, &mut errors),
            resources: None,
        });
    }
    errors.check()?;
    Ok(vertices)
}

/// The group of the chain's operators: they are one task, so that they can have one only.
fn co_location_group(graph: &ResolvedStreamGraph, chain: &Chain, errors: &mut Errors) -> Option<String> {
    let nodes = chain.nodes.iter().map(|index| &graph.nodes()[*index].node);
    let mut groups = nodes.filter_map(|node| node.co_location_group.as_ref().map(|group| (node, group)));
    let (first, first_group) = groups.next()?;
    for (second, second_group) in groups.filter(|(_, group)| *group != first_group) {
        errors.push(GraphError::CoLocationWithinChain {
            first: NodeName::from(first),
            first_group: first_group.clone(),
            second: NodeName::from(second),
            second_group: second_group.clone(),
        });
    }
    Some(first_group.clone())
}

/// "A", "A -> B" or "A -> (B, C)".
fn chain_name(graph: &ResolvedStreamGraph, chain: &Chain) -> String {
    let mut children: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for edge in chain.chained_edges.iter().map(|edge| &graph.edges()[*edge]) {
        children.entry(edge.edge.source).or_default().push(edge.target);
    }
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    // Backwards, so that the names of all that is chained to a node are there.
    for index in chain.nodes.iter().rev() {
        let node = &graph.nodes()[*index].node;
        let chained = children.get(&node.id).into_iter().flatten();
        let chained: Vec<_> = chained.filter_map(|child| names.remove(child)).collect();
        let name = match chained.as_slice() {
            [] => node.name.clone(),
            [only] => format!("{} -> {only}", node.name),
            several => format!("{} -> ({})", node.name, several.join(", ")),
        };
        names.insert(*index, name);
    }
    names.remove(&chain.head()).expect("the head was named last")
}

/// Makes the data sets, and the edges that consume them: in the order of the chains
/// and of the edges that leave each, which is the order of the gates.
fn connect(graph: &ResolvedStreamGraph, chaining: &Chaining, vertices: &mut [JobVertex]) {
    let chain_of = chaining.chain_of_nodes();
    for (producer, chain) in chaining.chains.iter().enumerate() {
        for (output, edge) in (0..).zip(chain.out_edges.iter().map(|edge| &graph.edges()[*edge])) {
            let consumer = chain_of[edge.target];
            let producer_id = vertices[producer].id;
            let id = operator_ids::data_set_id(producer_id, output);
            let pattern = edge.partitioner.pattern();
            let data_set = IntermediateDataSet {
                id,
                edge: edge.edge.clone(),
                partitioner: edge.partitioner,
                pattern,
                consumer: vertices[consumer].id,
                buffer_timeout: graph.nodes()[edge.source].buffer_timeout,
            };
            vertices[producer].outputs.push(data_set);
            vertices[consumer].inputs.push(JobEdge {
                source: id,
                producer: producer_id,
                partitioner: edge.partitioner,
                pattern,
                target_node: edge.edge.target,
                input: edge.edge.input,
            });
        }
    }
}

/// Gives equal shares of a slot's memory to the operators of its group that keep
/// state. One subtask of each vertex is in a slot, so that the shares add up to at
/// most 1: they are rounded down to a multiple of 2^-52, which sums exactly.
fn set_managed_memory_fractions(vertices: &mut [JobVertex]) {
    const UNIT: u64 = 1 << 52;
    let is_stateful = |operator: &ChainedOperator| operator.node.key_type.is_some() || !operator.node.states.is_empty();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for vertex in vertices.iter() {
        let count = vertex.operators.iter().filter(|operator| is_stateful(operator)).count() as u64;
        *counts.entry(vertex.slot_sharing_group.clone()).or_default() += count;
    }
    for vertex in vertices {
        let count = counts[&vertex.slot_sharing_group];
        for operator in vertex.operators.iter_mut().filter(|operator| is_stateful(operator)) {
            operator.managed_memory_fraction = (UNIT / count) as f64 / UNIT as f64;
        }
    }
}

/// Vertices without inputs first, then, from each of them, depth first, what has all
/// its producers. Source: Flink's `JobGraph#getVerticesSortedTopologicallyFromSources`.
fn sort_topologically(vertices: Vec<JobVertex>) -> Vec<JobVertex> {
    let index_of: BTreeMap<JobVertexId, usize> =
        vertices.iter().enumerate().map(|(index, vertex)| (vertex.id, index)).collect();
    let mut missing: Vec<usize> = vertices.iter().map(|vertex| vertex.inputs.len()).collect();
    let sources: Vec<usize> = (0..vertices.len()).filter(|index| missing[*index] == 0).collect();
    let mut order = sources.clone();
    for source in sources {
        let mut path = vec![(source, 0)];
        while let Some((index, position)) = path.pop() {
            let Some(output) = vertices[index].outputs.get(position) else { continue };
            path.push((index, position + 1));
            let consumer = index_of[&output.consumer];
            missing[consumer] -= 1;
            if missing[consumer] == 0 {
                order.push(consumer);
                path.push((consumer, 0));
            }
        }
    }
    assert_eq!(order.len(), vertices.len(), "an acyclic stream graph gives an acyclic job graph");
    let mut vertices: Vec<_> = vertices.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| vertices[index].take()).collect()
}
