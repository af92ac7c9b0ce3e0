//! Checks a JobGraph that comes from an untrusted client.
//!
//! The stream graph is put together again from the JobGraph's operators and edges,
//! checked as one of a plugin is, and made into vertices again, which must equal
//! those that came. What cannot be derived is only the operator ids that depend on
//! the position in the program; they must be unique.

use std::collections::BTreeMap;

use super::{
    chaining::Chaining,
    error::{Errors, GraphError, InvalidGraph},
    job_graph::{JobGraph, JobVertex, ResourceProfile},
    job_graph_generator::make_vertices,
    operator_ids, plan,
    resolved::{ResolvedStreamGraph, may_be_set_by_program},
    stream_graph::StreamGraph,
    validate::{EDGES_MAX, NODES_MAX, VALUE_BYTES_MAX, check_length, check_name, validate},
};
use crate::base::{
    config::{Configuration, Origin},
    ids::OperatorId,
};

/// Grants of one kind.
pub const GRANTS_MAX: usize = 1024;
/// Artifacts of a job.
pub const ARTIFACTS_MAX: usize = 1024;
/// Arguments of a program.
pub const ARGUMENTS_MAX: usize = 4096;

/// Checks a JobGraph. That plugin and artifacts are there, and that what is granted
/// may be, is the receiver's to check.
///
/// # Errors
/// Returns all that is wrong.
pub fn validate_job_graph(job_graph: &JobGraph) -> Result<(), InvalidGraph> {
    check_sizes(job_graph)?;
    check_configuration(&job_graph.configuration)?;
    let graph = validate(&stream_graph_of(job_graph), &job_graph.configuration)?;
    let chaining = Chaining::of(&graph);
    let ids = operator_ids_of(job_graph, &graph)?;
    let expected = make_vertices(&graph, &chaining, &ids, job_graph.program.plugin)?;
    compare(job_graph, expected)
}

fn check_sizes(job_graph: &JobGraph) -> Result<(), InvalidGraph> {
    let vertices = &job_graph.vertices;
    let sum = |count: fn(&JobVertex) -> usize| vertices.iter().map(count).sum::<usize>();
    let (grants, artifacts, program) = (&job_graph.grants, &job_graph.artifacts, &job_graph.program);
    let counts = [
        ("vertices", vertices.len(), NODES_MAX),
        ("operators", sum(|vertex| vertex.operators.len()), NODES_MAX),
        ("edges", sum(|vertex| vertex.chained_edges.len() + vertex.outputs.len()), EDGES_MAX),
        ("inputs", sum(|vertex| vertex.inputs.len()), EDGES_MAX),
        ("paths to read", grants.read.len(), GRANTS_MAX),
        ("paths to write", grants.write.len(), GRANTS_MAX),
        ("addresses", grants.net.len(), GRANTS_MAX),
        ("artifacts", artifacts.len(), ARTIFACTS_MAX),
        ("program arguments", program.args.len(), ARGUMENTS_MAX),
    ];
    let mut errors = Errors::default();
    for (what, count, max) in counts.into_iter().filter(|(_, count, max)| count > max) {
        errors.push(GraphError::TooMany { what: what.to_owned(), count: count as u64, max: max as u64 });
    }
    for argument in program.args.iter().take(ARGUMENTS_MAX) {
        check_length(|| "the program".to_owned(), "argument", argument, VALUE_BYTES_MAX, &mut errors);
    }
    check_name(|| "the job".to_owned(), "name", &job_graph.name, &mut errors);
    check_name(|| "the plugin".to_owned(), "name", &program.plugin_name, &mut errors);
    for artifact in artifacts.iter().take(ARTIFACTS_MAX) {
        check_name(|| "an artifact".to_owned(), "name", &artifact.name, &mut errors);
    }
    errors.check()
}

fn check_configuration(configuration: &Configuration) -> Result<(), InvalidGraph> {
    let mut errors = Errors::default();
    let mut checked = Configuration::default();
    for (key, value, origin) in configuration.iter() {
        if let Err(error) = checked.set(key, value, origin) {
            errors.push(GraphError::Setting(error));
        } else if origin == Origin::Program && !may_be_set_by_program(key) {
            errors.push(GraphError::ForbiddenSetting { key: key.to_owned() });
        }
    }
    errors.check()
}

/// The graph that the vertices were made of, as far as they tell: edges keep their
/// order among those of one node that are chained, and among those that are not.
fn stream_graph_of(job_graph: &JobGraph) -> StreamGraph {
    let mut graph = StreamGraph::default();
    for vertex in &job_graph.vertices {
        graph.nodes.extend(vertex.operators.iter().map(|operator| operator.node.clone()));
        graph.edges.extend(vertex.chained_edges.iter().cloned());
        graph.edges.extend(vertex.outputs.iter().map(|output| output.edge.clone()));
    }
    graph.nodes.sort_by_key(|node| node.id);
    graph
}

/// The ids as they came, as `[node index]`.
fn operator_ids_of(job_graph: &JobGraph, graph: &ResolvedStreamGraph) -> Result<Vec<OperatorId>, InvalidGraph> {
    let operators = job_graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let ids: BTreeMap<u32, OperatorId> = operators.map(|operator| (operator.node.id, operator.operator_id)).collect();
    if !graph.unused_sources().is_empty() {
        return Err(GraphError::JobGraph { part: "vertices", problem: "have a source that no operator reads" }.into());
    }
    let mut errors = Errors::default();
    let mut given = Vec::with_capacity(ids.len());
    for node in graph.nodes() {
        let id = ids[&node.node.id];
        if node.node.uid.as_deref().is_some_and(|uid| operator_ids::of_uid(uid) != id) {
            let problem = "its operator id is not the hash of the uid".to_owned();
            errors.push(GraphError::Vertex { vertex: id.to_string(), problem });
        }
        given.push(id);
    }
    errors.check()?;
    Ok(given)
}

fn compare(job_graph: &JobGraph, expected: Vec<JobVertex>) -> Result<(), InvalidGraph> {
    let mut errors = Errors::default();
    if expected.len() != job_graph.vertices.len() {
        return Err(GraphError::JobGraph { part: "vertices", problem: "are not the chains of its operators" }.into());
    }
    for (vertex, expected) in job_graph.vertices.iter().zip(expected) {
        let JobVertex {
            id,
            name,
            parallelism,
            max_parallelism,
            max_parallelism_configured,
            operators,
            chained_edges,
            inputs,
            outputs,
            slot_sharing_group,
            co_location_group,
            // Explicit resources are the submitter's.
            resources: _,
        } = expected;
        let parts = [
            ("id", vertex.id == id),
            ("name", vertex.name == name),
            ("parallelism", vertex.parallelism == parallelism),
            ("max parallelism", vertex.max_parallelism == max_parallelism),
            ("origin of the max parallelism", vertex.max_parallelism_configured == max_parallelism_configured),
            ("operators", vertex.operators == operators),
            ("chained edges", vertex.chained_edges == chained_edges),
            ("inputs", vertex.inputs == inputs),
            ("outputs", vertex.outputs == outputs),
            ("slot sharing group", vertex.slot_sharing_group == slot_sharing_group),
            ("co-location group", vertex.co_location_group == co_location_group),
        ];
        let wrong: Vec<_> = parts.iter().filter(|(_, is_equal)| !is_equal).map(|(part, _)| *part).collect();
        if !wrong.is_empty() {
            let problem = format!("its {} do not follow from its operators and edges", wrong.join(", "));
            errors.push(GraphError::Vertex { vertex: vertex.id.to_string(), problem });
        }
        if vertex.resources.is_some_and(|resources| !is_valid(&resources)) {
            let problem = "its resources are not numbers of at least zero".to_owned();
            errors.push(GraphError::Vertex { vertex: vertex.id.to_string(), problem });
        }
    }
    errors.check()?;
    if job_graph.json_plan != plan::json_plan(job_graph) {
        return Err(GraphError::JobGraph { part: "JSON plan", problem: "is not that of its vertices" }.into());
    }
    Ok(())
}

fn is_valid(resources: &ResourceProfile) -> bool {
    resources.cpu_cores.is_finite() && 0.0 <= resources.cpu_cores
}
