//! Checks a JobGraph that came from outside: pure, names every problem it finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use crate::{
    base::{
        config::{ConfigOption, Configuration, options},
        key_group::MAX_PARALLELISM_LIMIT,
    },
    connector::canonical_destination,
    graph::job_graph::JobGraph,
};

/// Vertices of one job.
const VERTICES_MAX: usize = 10_000;
/// Operators of one job.
const OPERATORS_MAX: usize = 100_000;
/// Subtasks of one job: each is a thread.
const SUBTASKS_MAX: u64 = 100_000;
/// Bytes of any name.
const NAME_BYTES_MAX: usize = 10_000;
/// Grants and artifacts of one job.
const GRANTS_MAX: usize = 10_000;
/// Problems that are told; the rest is counted.
const PROBLEMS_MAX: usize = 100;

/// What is wrong with the graph; empty if it can be handed to the Dispatcher.
pub(crate) fn problems(job_graph: &JobGraph) -> Vec<String> {
    let mut problems = Vec::new();
    if job_graph.vertices.is_empty() {
        problems.push("the job has no vertices".to_owned());
    }
    if VERTICES_MAX < job_graph.vertices.len() {
        // The rest of the checks would cost what this limit saves.
        return vec![format!("the job has {} vertices: at most {VERTICES_MAX} are taken", job_graph.vertices.len())];
    }
    let operators: usize = job_graph.vertices.iter().map(|vertex| vertex.operators.len()).sum();
    if OPERATORS_MAX < operators {
        return vec![format!("the job has {operators} operators: at most {OPERATORS_MAX} are taken")];
    }
    check_names(job_graph, &mut problems);
    check_parallelism(job_graph, &mut problems);
    check_edges(job_graph, &mut problems);
    check_rest(job_graph, &mut problems);
    if let Some(more) = problems.len().checked_sub(PROBLEMS_MAX).filter(|more| *more != 0) {
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!("and {more} more problems"));
    }
    problems
}

fn check_names(job_graph: &JobGraph, problems: &mut Vec<String>) {
    let names = std::iter::once(&job_graph.name)
        .chain(job_graph.vertices.iter().map(|vertex| &vertex.name))
        .chain(job_graph.vertices.iter().flat_map(|vertex| vertex.operators.iter().map(|op| &op.node.name)));
    let too_long = names.filter(|name| NAME_BYTES_MAX < name.len()).count();
    if 0 < too_long {
        problems.push(format!("{too_long} names are longer than {NAME_BYTES_MAX} bytes"));
    }
}

fn check_parallelism(job_graph: &JobGraph, problems: &mut Vec<String>) {
    for vertex in &job_graph.vertices {
        let (name, id) = (shortened(&vertex.name), vertex.id);
        if !(1..=MAX_PARALLELISM_LIMIT).contains(&vertex.parallelism) {
            problems.push(format!(
                "vertex {id} \"{name}\": parallelism {} is not between 1 and {MAX_PARALLELISM_LIMIT}",
                vertex.parallelism
            ));
        } else if !(vertex.parallelism..=MAX_PARALLELISM_LIMIT).contains(&vertex.max_parallelism) {
            problems.push(format!(
                "vertex {id} \"{name}\": max parallelism {} is not between its parallelism {} and {MAX_PARALLELISM_LIMIT}",
                vertex.max_parallelism, vertex.parallelism
            ));
        }
    }
    let subtasks: u64 = job_graph.vertices.iter().map(|vertex| u64::from(vertex.parallelism)).sum();
    if SUBTASKS_MAX < subtasks {
        problems.push(format!("the job has {subtasks} subtasks: at most {SUBTASKS_MAX} are taken"));
    }
}

/// Each edge must lead from a data set of an earlier vertex: so there are no cycles.
fn check_edges(job_graph: &JobGraph, problems: &mut Vec<String>) {
    let mut vertices = BTreeSet::new();
    let mut nodes = BTreeSet::new();
    let mut data_sets = BTreeMap::new();
    for vertex in &job_graph.vertices {
        let (name, id) = (shortened(&vertex.name), vertex.id);
        for edge in &vertex.inputs {
            match data_sets.get_mut(&edge.source) {
                Some((producer, consumer, consumed)) if (*producer, *consumer) == (edge.producer, id) => {
                    if std::mem::replace(consumed, true) {
                        problems.push(format!("vertex {id} \"{name}\" consumes data set {} twice", edge.source));
                    }
                }
                Some(_) => problems.push(format!(
                    "vertex {id} \"{name}\" consumes data set {}, which is meant for another vertex",
                    edge.source
                )),
                None => problems.push(format!(
                    "vertex {id} \"{name}\" consumes data set {}, which no vertex before it produces (is there a cycle?)",
                    edge.source
                )),
            }
            if !vertex.operators.iter().any(|operator| operator.node.id == edge.target_node) {
                problems.push(format!("vertex {id} \"{name}\" has no operator {} to take an input", edge.target_node));
            }
        }
        if !vertices.insert(id) {
            problems.push(format!("vertex id {id} occurs twice"));
        }
        if vertex.operators.is_empty() {
            problems.push(format!("vertex {id} \"{name}\" has no operators"));
        }
        for operator in &vertex.operators {
            if !nodes.insert(operator.node.id) {
                problems.push(format!(
                    "operator {} \"{}\" occurs twice",
                    operator.node.id,
                    shortened(&operator.node.name)
                ));
            }
            let expected = operator.node.operator.is_guest().then_some(job_graph.program.plugin);
            if operator.plugin != expected {
                problems.push(format!(
                    "operator {} \"{}\" does not belong to the job's plugin",
                    operator.node.id,
                    shortened(&operator.node.name)
                ));
            }
        }
        for edge in &vertex.chained_edges {
            let inside = |node| vertex.operators.iter().any(|operator| operator.node.id == node);
            if !inside(edge.source) || !inside(edge.target) || edge.target <= edge.source {
                problems.push(format!(
                    "vertex {id} \"{name}\": edge {} -> {} does not lead forward within the chain",
                    edge.source, edge.target
                ));
            }
        }
        for output in &vertex.outputs {
            if data_sets.insert(output.id, (id, output.consumer, false)).is_some() {
                problems.push(format!("data set id {} occurs twice", output.id));
            }
            if !vertex.operators.iter().any(|operator| operator.node.id == output.edge.source) {
                problems.push(format!("vertex {id} \"{name}\" has no operator {} to produce", output.edge.source));
            }
        }
    }
    for (data_set, (producer, consumer, consumed)) in &data_sets {
        if !consumed {
            problems.push(format!("data set {data_set} of vertex {producer} is not consumed by vertex {consumer}"));
        }
    }
}

fn check_rest(job_graph: &JobGraph, problems: &mut Vec<String>) {
    if let Err(error) = job_graph.configuration.check() {
        problems.push(error.to_string());
    }
    let grants = &job_graph.grants;
    let named = grants.read.len() + grants.write.len() + grants.net.len() + job_graph.artifacts.len();
    if GRANTS_MAX < named {
        problems.push(format!("the job names {named} grants and artifacts: at most {GRANTS_MAX} are taken"));
    }
    let mut artifacts = BTreeSet::new();
    for artifact in &job_graph.artifacts {
        if !artifacts.insert(&artifact.name) {
            problems.push(format!("artifact \"{}\" occurs twice", shortened(&artifact.name)));
        }
        let name = Path::new(&artifact.name);
        if name.file_name() != Some(name.as_os_str()) || artifact.name.contains('\0') {
            problems.push(format!("artifact \"{}\": its name is not a plain file name", shortened(&artifact.name)));
        }
    }
}

/// The first characters of a name, for messages.
fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

/// The grants of the job that the owner of the server has not configured.
pub(crate) fn ungranted(job_graph: &JobGraph, configuration: &Configuration) -> Vec<String> {
    let mut problems = Vec::new();
    let roots = |option: &ConfigOption<Option<String>>| -> Vec<PathBuf> {
        let paths = configuration.get(option).unwrap_or_default();
        paths
            .split(':')
            .filter(|path| !path.is_empty())
            .filter_map(|path| canonical_destination(Path::new(path)).ok())
            .collect()
    };
    let check = |verb: &str, flag: &str, option: &ConfigOption<Option<String>>, paths: &[PathBuf]| {
        let roots = roots(option);
        paths
            .iter()
            .filter(|path| {
                // The pattern of a glob is judged by the directory above its first wildcard.
                let concrete = without_pattern(path);
                let climbs = path.components().any(|component| component == Component::ParentDir);
                climbs
                    || !canonical_destination(&concrete)
                        .is_ok_and(|path| roots.iter().any(|root| path.starts_with(root)))
            })
            .map(|path| {
                let path = path.display();
                format!(
                    "the job may not {verb} {path} on this server; its owner can allow it with \
                     `engine cluster {flag} {path}` or {} in its configuration",
                    option.key
                )
            })
            .collect::<Vec<String>>()
    };
    problems.extend(check("read", "--allow-read", &options::ALLOW_READ, &job_graph.grants.read));
    let mut written = job_graph.grants.write.clone();
    written.extend(job_graph.configuration.get(&options::ROW_ERROR_DEAD_LETTER_DIR).map(PathBuf::from));
    problems.extend(check("write", "--allow-write", &options::ALLOW_WRITE, &written));
    let net = configuration.get(&options::ALLOW_NET).unwrap_or_default();
    let reachable: Vec<&str> = net.split(',').map(str::trim).collect();
    problems.extend(job_graph.grants.net.iter().filter(|address| !reachable.contains(&address.as_str())).map(
        |address| {
            format!(
                "the job may not connect to {address} from this server; its owner can allow it with \
                 `engine cluster --allow-net {address}` or {} in its configuration",
                options::ALLOW_NET.key
            )
        },
    ));
    problems
}

/// The part of a path before its first component with a wildcard.
pub(crate) fn without_pattern(path: &Path) -> PathBuf {
    path.components()
        .take_while(|component| !component.as_os_str().to_string_lossy().contains(['*', '?', '[']))
        .collect()
}
