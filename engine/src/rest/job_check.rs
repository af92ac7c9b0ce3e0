//! Checks a JobGraph that came from outside; names every problem it finds.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use super::snapshots;
use crate::{
    base::config::{ConfigOption, Configuration, options},
    connector::{self, ConnectorError, Permissions, Role, canonical_destination},
    graph::{job_graph::JobGraph, job_graph_validation::validate_job_graph, stream_graph::Operator},
};

/// A server's standard input is not that of whoever submits to it.
const STANDARD_INPUT_REFUSED: &str = "standard input can only be read by a job that `engine submit` runs without a \
    JobManager; here, let the job read a file or a socket";

/// What is wrong with the graph; empty if it can be handed to the Dispatcher.
pub(crate) fn problems(job_graph: &JobGraph) -> Vec<String> {
    if let Err(invalid) = validate_job_graph(job_graph) {
        let mut problems: Vec<String> = invalid.errors().iter().map(ToString::to_string).collect();
        if 0 < invalid.omitted() {
            problems.push(format!("and {} more problems", invalid.omitted()));
        }
        return problems;
    }
    // The graph is sound from here on, and its numbers are within their limits.
    let mut problems = Vec::new();
    for operator in job_graph.vertices.iter().flat_map(|vertex| &vertex.operators) {
        let checked = match &operator.node.operator {
            Operator::Source(connector) if connector.name == "stdin" => {
                problems.push(format!("operator \"{}\": {STANDARD_INPUT_REFUSED}", operator.node.name));
                Ok(())
            }
            Operator::Source(connector) => connector::check_artifact(connector, &job_graph.artifacts),
            Operator::Sink(connector) => connector::validate(connector, Role::Sink),
            Operator::Guest(_) | Operator::GuestSource(_) => Ok(()),
        };
        problems.extend(checked.err().map(|error| format!("operator \"{}\": {error}", operator.node.name)));
    }
    let mut artifacts = BTreeSet::new();
    for artifact in &job_graph.artifacts {
        if !artifacts.insert(&artifact.name) {
            problems.push(format!("artifact \"{}\" occurs twice", artifact.name));
        }
        let name = Path::new(&artifact.name);
        if name.file_name() != Some(name.as_os_str()) || artifact.name.contains('\0') {
            problems.push(format!("artifact \"{}\": its name is not a plain file name", artifact.name));
        }
    }
    problems
}

/// Directories of checkpoints and savepoints that the job names and the owner of the server does not let it use.
pub(crate) fn ungranted_snapshots(job_graph: &JobGraph, server: &Configuration) -> Vec<String> {
    let configuration = &job_graph.configuration;
    let written = [&options::CHECKPOINTING_DIR, &options::SAVEPOINT_DIR].into_iter().filter_map(|option| {
        let path = configuration.get(option).filter(|path| server.get(option).as_ref() != Some(path))?;
        snapshots::check_writable(server, &path).err()
    });
    let read = configuration.get(&options::RECOVERY_PATH);
    written.chain(read.and_then(|path| snapshots::check_readable(server, &path).err())).collect()
}

/// Looks whether what the job's sources read is there, and whether its sinks can use their destinations.
///
/// # Errors
/// Returns the first thing that is not as it has to be.
pub(crate) fn check_access(job_graph: &JobGraph) -> Result<(), String> {
    let permissions = Permissions::from(&job_graph.grants);
    let problem = |node: &str, error| format!("operator \"{node}\": {:#}", anyhow::Error::from(error));
    let sinks = job_graph.vertices.iter().flat_map(|vertex| &vertex.operators).filter_map(|operator| {
        let Operator::Sink(connector) = &operator.node.operator else { return None };
        Some((operator.node.name.as_str(), connector))
    });
    connector::check_destinations_apart(sinks).map_err(|(node, error)| problem(node, error))?;
    for operator in job_graph.vertices.iter().flat_map(|vertex| &vertex.operators) {
        let checked = match &operator.node.operator {
            Operator::Source(connector) => connector::check_access(connector, Role::Source, &permissions),
            Operator::Sink(connector) => connector::check_access(connector, Role::Sink, &permissions),
            Operator::Guest(_) | Operator::GuestSource(_) => Ok(()),
        };
        match checked {
            Ok(()) => {}
            // It goes on from a checkpoint, whose job wrote there.
            Err(ConnectorError::DestinationNotEmpty { .. })
                if job_graph.configuration.get(&options::RECOVERY_PATH).is_some() => {}
            Err(error) => return Err(problem(&operator.node.name, error)),
        }
    }
    Ok(())
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
