//! From a plugin file and its arguments to a JobGraph: admission, compilation,
//! `plan` in the sandbox, grants, generation.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    ClientError,
    grants::{self, ExplicitGrants, Site},
};
use crate::{
    base::{
        config::{Configuration, MemorySize, nearest, options},
        ids::{BlobDigest, JobId},
    },
    connector::{self, ConnectorError, Permissions, Role},
    graph::{
        digest::graph_digest,
        job_graph::{Artifact, Grants, JobGraph, ProgramSpec},
        job_graph_generator::{self, JobSpec},
        stream_graph::{ConnectorSpec, Operator, StreamGraph, StreamNode},
        validate::validate,
    },
    wasm::{CompiledPlugin, PluginRuntime, SandboxLimits},
};

/// A plugin that was admitted and compiled.
pub struct Program {
    /// File name, for messages.
    pub name: String,
    /// Its bytes as they came.
    pub content: Bytes,
    compiled: Arc<CompiledPlugin>,
}

/// What is submitted besides the plugin.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Id of the job.
    pub job: JobId,
    /// Arguments of `plan`.
    pub args: Vec<String>,
    /// Settings of the submitter, without those of the program.
    pub configuration: Configuration,
    /// Grants beside those that the arguments make.
    pub explicit: ExplicitGrants,
    /// Where the job will run.
    pub site: Site,
    /// Files for the subtasks.
    pub artifacts: Vec<Artifact>,
}

/// A program with its graphs.
#[derive(Clone, Debug)]
pub struct PlannedJob {
    /// What the program declared.
    pub stream_graph: StreamGraph,
    /// What is submitted.
    pub job_graph: JobGraph,
}

/// Reads a plugin's file; at most `plugin.bytes-max` of it and one byte more, by
/// which admission sees that it is too long.
///
/// # Errors
/// Returns an error that names the nearest plugin if there is no such file.
pub fn read_plugin(path: &Path, configuration: &Configuration) -> Result<Bytes, ClientError> {
    use std::io::Read;
    let MemorySize(bytes_max) = configuration.get(&options::PLUGIN_BYTES_MAX);
    let unreadable = |source| ClientError::PluginUnreadable { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ClientError::NoPlugin { path: path.to_owned(), nearest: nearest_plugin(path) });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut content = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content).map_err(unreadable)?;
    Ok(Bytes::from(content))
}

/// The plugin most like `path`, in its directory and where builds leave plugins.
fn nearest_plugin(path: &Path) -> Option<PathBuf> {
    let wanted = path.file_stem()?.to_str()?.replace('-', "_");
    let own = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut plugins = Vec::new();
    for directory in [own, Path::new("."), Path::new("target/plugins")] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        plugins.extend(entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "wasm")));
    }
    let stems: Vec<&str> = plugins.iter().filter_map(|plugin| plugin.file_stem()?.to_str()).collect();
    let stem = nearest(&wanted, stems.iter().copied())?;
    plugins.iter().find(|plugin| plugin.file_stem().and_then(|own| own.to_str()) == Some(stem)).cloned()
}

impl Program {
    /// Admits and compiles a plugin, or takes its code from the cache; `name` is its file name, for messages.
    ///
    /// # Errors
    /// Returns an error if it is refused or cannot be compiled.
    pub fn load(runtime: &PluginRuntime, content: Bytes, name: &str) -> Result<Self, ClientError> {
        let compiled = runtime.load(&content, name)?;
        Ok(Self { name: name.to_owned(), content, compiled })
    }

    /// SHA-256 of the plugin.
    pub fn digest(&self) -> BlobDigest {
        self.compiled.digest()
    }

    /// What the program says of itself and its arguments.
    ///
    /// # Errors
    /// Returns an error if the program fails.
    pub fn describe(&self, configuration: &Configuration) -> Result<String, ClientError> {
        Ok(self.compiled.describe(&SandboxLimits::from_configuration(configuration))?)
    }

    /// Runs `plan` in the sandbox and makes the JobGraph of what it declares.
    ///
    /// # Errors
    /// Returns an error if `plan` fails, its graph cannot be run, or the job would
    /// open what was not granted.
    pub fn plan(&self, submission: Submission) -> Result<PlannedJob, ClientError> {
        let limits = SandboxLimits::from_configuration(&submission.configuration);
        let mut stream_graph = self.compiled.plan(&submission.args, &limits)?;
        let program = ProgramSpec {
            plugin: self.digest(),
            plugin_name: self.name.clone(),
            args: submission.args.clone(),
            // Of the graph as a replay returns it: before paths become absolute.
            graph_digest: graph_digest(&stream_graph),
        };
        let configuration = validate(&stream_graph, &submission.configuration)?.configuration().clone();
        check_connectors(&stream_graph, &submission.artifacts)?;
        let grants =
            grants::decide(&stream_graph, &submission.args, &configuration, &submission.explicit, submission.site)?;
        match submission.site {
            Site::Here => {
                let goes_on = configuration.get(&options::RECOVERY_PATH).is_some();
                check_access(&stream_graph, &grants, goes_on)?;
            }
            Site::Elsewhere => grants::make_paths_absolute(&mut stream_graph),
        }
        let spec = JobSpec {
            job_id: submission.job,
            default_name: self.name.trim_end_matches(".wasm").to_owned(),
            program,
            grants,
            artifacts: submission.artifacts,
        };
        let job_graph = job_graph_generator::generate(&stream_graph, &submission.configuration, spec)?;
        Ok(PlannedJob { stream_graph, job_graph })
    }
}

/// Checks names, options and record types of sources and sinks, before any is opened.
fn check_connectors(stream_graph: &StreamGraph, artifacts: &[Artifact]) -> Result<(), ClientError> {
    for (node, connector, role) in connectors(stream_graph) {
        let record_type = match role {
            Role::Source => node.output_type.as_deref(),
            Role::Sink => node.input_types.first().map(String::as_str),
        };
        let is_known = match role {
            Role::Source => connector::check_artifact(connector, artifacts),
            Role::Sink => Ok(()),
        };
        is_known
            .and_then(|()| connector::check_record_type(connector, role, record_type.unwrap_or_default()))
            .map_err(|source| ClientError::Connector { node: node.name.clone(), source })?;
    }
    let sinks = connectors(stream_graph).filter(|(_, _, role)| *role == Role::Sink);
    connector::check_destinations_apart(sinks.map(|(node, connector, _)| (node.name.as_str(), connector)))
        .map_err(|(node, source)| ClientError::Connector { node: node.to_owned(), source })
}

/// Looks whether what sources read is there, and whether sinks can use their destinations.
/// Those of a job that goes on from a checkpoint may have been written into.
fn check_access(stream_graph: &StreamGraph, grants: &Grants, goes_on: bool) -> Result<(), ClientError> {
    let permissions = Permissions::from(grants);
    for (node, connector, role) in connectors(stream_graph) {
        match connector::check_access(connector, role, &permissions) {
            Ok(()) => {}
            Err(ConnectorError::DestinationNotEmpty { .. }) if goes_on => {}
            Err(source) => return Err(ClientError::Connector { node: node.name.clone(), source }),
        }
    }
    Ok(())
}

fn connectors(stream_graph: &StreamGraph) -> impl Iterator<Item = (&StreamNode, &ConnectorSpec, Role)> {
    stream_graph.nodes.iter().filter_map(|node| match &node.operator {
        Operator::Source(connector) => Some((node, connector, Role::Source)),
        Operator::Sink(connector) => Some((node, connector, Role::Sink)),
        Operator::Guest(_) | Operator::GuestSource(_) => None,
    })
}

/// Splits program arguments at blanks outside of single and double quotes.
///
/// # Errors
/// Returns an error if a quote is not closed.
pub fn split_args(text: &str) -> Result<Vec<String>, String> {
    let mut args = Vec::new();
    let mut arg: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => arg.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                arg.get_or_insert_default();
            }
            None if c.is_whitespace() => args.extend(arg.take()),
            None => arg.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("the program arguments have an open quote".to_owned());
    }
    args.extend(arg);
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::Origin;

    #[test]
    fn program_arguments_are_split_at_blanks_outside_quotes() {
        let split = |text| split_args(text).expect("closed quotes");
        assert_eq!(split("--input 'a b' --x=\"c d\"  e"), ["--input", "a b", "--x=c d", "e"]);
        assert_eq!(split("''"), [""]);
        assert!(split("  ").is_empty());
        assert!(split_args("'open").is_err());
    }

    #[test]
    fn a_plugin_that_is_not_there_names_the_nearest() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("word_count.wasm"), "").expect("written");
        let error = read_plugin(&directory.path().join("wordcount.wasm"), &Configuration::default());
        let error = error.expect_err("not there").to_string();
        assert!(error.starts_with("there is no plugin ") && error.contains("did you mean "), "{error}");
        assert!(error.ends_with("word_count.wasm?"), "{error}");
    }

    #[test]
    fn no_more_of_a_plugin_is_read_than_admission_needs() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("long.wasm");
        std::fs::write(&path, vec![0; 5000]).expect("written");
        let mut configuration = Configuration::default();
        configuration.set("plugin.bytes-max", "1 kb", Origin::Dynamic).expect("valid");
        assert_eq!(read_plugin(&path, &configuration).expect("read").len(), 1025);
    }
}
