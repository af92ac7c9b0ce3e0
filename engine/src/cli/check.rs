//! `engine check`: whether a plugin can run, and whether it can go on from the state of an
//! older version of it or of a savepoint. Nothing runs but `plan`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{CliError, GlobalOptions, Outcome, Output, logging, settings, submit};
use crate::{
    base::{config::Configuration, ids::JobId, stream_element::SnapshotLocation},
    checkpoint::{CheckpointStorage, Compatibility, ProgramSchema, assign_state},
    client::{
        ClientError,
        grants::Site,
        program::{Program, read_plugin, split_args},
    },
    graph::{
        job_graph::{ChainedOperator, JobGraph},
        stream_graph::Operator,
    },
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// `engine check`.
#[derive(Debug, Args)]
#[command(
    override_usage = "engine check [OPTIONS] PLUGIN [PROGRAM ARGUMENTS]...",
    after_help = "With --upgrade-from or --savepoint, says what of the state would carry over to the plugin, what would \
        be lost, and what would not fit; exit code 1 if something would be lost or not fit. Both versions are \
        planned with the arguments behind the plugin, unless --old-args gives those of the old one.\n\n\
        Examples:\n  \
        engine check words.wasm\n  \
        engine check words.wasm --input access.log --output counts\n  \
        engine check words-1.wasm words-2.wasm --input access.log --output counts\n  \
        engine check --upgrade-from words-1.wasm --old-args '--input access.log' words-2.wasm --lines access.log\n  \
        engine check --savepoint /savepoints/savepoint-1f9d3a-7c1d words-2.wasm --input access.log --output counts"
)]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    program: submit::ProgramOptions,
    /// The version whose state the plugin is to take over; planned with the same arguments, unless there are --old-args.
    #[arg(long, value_name = "PLUGIN", conflicts_with = "savepoint")]
    upgrade_from: Option<PathBuf>,
    /// Arguments of the old version's program, if it takes others; split at blanks outside of quotes.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true, requires = "upgrade_from")]
    old_args: Option<String>,
    /// The savepoint or checkpoint that the plugin is to go on from.
    #[arg(long, value_name = "PATH")]
    savepoint: Option<String>,
    /// State of operators that the plugin does not have may be dropped.
    #[arg(long)]
    allow_non_restored_state: bool,
    /// The plugin, a .wasm file; behind it, the arguments of its program.
    #[arg(trailing_var_arg = true, required = true, value_name = "PLUGIN")]
    plugin_and_args: Vec<String>,
}

pub(crate) fn run(mut check: CheckOptions, global: &GlobalOptions) -> Outcome {
    check.take_two_plugins();
    let configuration = settings::load(global, &check.program.settings())?;
    logging::start(global, "warn", None)?;
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
    if check.upgrade_from.is_none() && check.savepoint.is_none() {
        return check.run_alone(&configuration, &plugins, global.output);
    }
    let new = check.plan(&check.plugin_and_args, &configuration, &plugins)?;
    let new_schema = ProgramSchema::from(&new);
    let mut misfit = None;
    let old_schema = match (&check.upgrade_from, &check.savepoint) {
        (Some(old), _) => {
            let args = match &check.old_args {
                None => check.plugin_and_args[1..].to_vec(),
                Some(text) => split_args(text)
                    .map_err(|problem| CliError::usage(anyhow::anyhow!("--old-args {text}: {problem}")))?,
            };
            let old_and_args = [vec![old.to_string_lossy().into_owned()], args].concat();
            let planned = check.plan(&old_and_args, &configuration, &plugins).map_err(|error| match error {
                CliError::Usage(error) => {
                    let what =
                        "the old version cannot be planned; if its program takes other arguments, give --old-args";
                    CliError::Usage(error.context(what))
                }
                other => other,
            })?;
            ProgramSchema::from(&planned)
        }
        (None, path) => {
            let location = SnapshotLocation(path.clone().unwrap_or_default());
            let (storage, metadata) = CheckpointStorage::open_snapshot(&location).map_err(CliError::usage)?;
            storage.verify(&metadata).map_err(CliError::failed)?;
            misfit = assign_state(&metadata, &location, &new.vertices, check.allow_non_restored_state).err();
            ProgramSchema::from(&metadata)
        }
    };
    let comparison = Compatibility::between(&old_schema, &new_schema);
    match global.output {
        Output::Text => super::print(comparison.to_string().trim_end())?,
        Output::Json => super::print_json(&comparison)?,
    }
    if comparison.is_refused(check.allow_non_restored_state) {
        return Err(CliError::Exit(1));
    }
    misfit.map_or(Ok(()), |misfit| Err(CliError::failed(misfit)))
}

impl CheckOptions {
    /// Two plugins, one behind the other, are an old version and a new one.
    fn take_two_plugins(&mut self) {
        let is_plugin = |argument: &String| argument.ends_with(".wasm") && Path::new(argument).is_file();
        let are_two = self.plugin_and_args.get(1).is_some_and(is_plugin);
        if are_two && self.upgrade_from.is_none() && self.savepoint.is_none() {
            self.upgrade_from = Some(self.plugin_and_args.remove(0).into());
        }
    }

    /// Admission, and, if arguments were given, the program's plan.
    fn run_alone(&self, configuration: &Configuration, plugins: &PluginRuntime, output: Output) -> Outcome {
        let (plugin, args) = self.plugin_and_args.split_first().expect("the command line demands a plugin");
        let content = read_plugin(&PathBuf::from(plugin), configuration)?;
        let program = Program::load(plugins, content, plugin)?;
        let graph = match args {
            [] => None,
            _ => Some(self.plan(&self.plugin_and_args, configuration, plugins)?),
        };
        let operators = graph.as_ref().map(|graph| operators_of(graph).count());
        let without_uid: Vec<&str> = graph.iter().flat_map(operators_of).filter_map(state_without_uid).collect();
        match output {
            Output::Text => super::print(&match operators {
                Some(operators) if without_uid.is_empty() => format!("{plugin} can run: {operators} operators"),
                Some(operators) => format!(
                    "{plugin} can run: {operators} operators; of these have state and no uid, so that another version \
                     or parallelism may not find it: {}; .uid(\"…\") behind an operator, a source or a sink sets one",
                    without_uid.join(", ")
                ),
                None => format!("{plugin} is a plugin; give the arguments of its program to have its plan checked"),
            }),
            Output::Json => super::print_json(&json!({
                "plugin": plugin,
                "sha256": program.digest(),
                "operators": operators,
                "state-without-uid": without_uid,
            })),
        }
    }

    fn plan(
        &self,
        plugin_and_args: &[String],
        configuration: &Configuration,
        plugins: &PluginRuntime,
    ) -> Result<JobGraph, CliError> {
        // As for a JobManager elsewhere: the output of the version that runs is no obstacle.
        let prepared = submit::prepare(
            plugin_and_args,
            &self.program,
            configuration,
            plugins,
            Site::Elsewhere,
            JobId::random(),
            &[],
        )?;
        Ok(prepared.planned.job_graph)
    }
}

fn operators_of(graph: &JobGraph) -> impl Iterator<Item = &ChainedOperator> {
    graph.vertices.iter().flat_map(|vertex| &vertex.operators)
}

/// Name of an operator that keeps state under an id that comes from its place in the graph.
fn state_without_uid(operator: &ChainedOperator) -> Option<&str> {
    let node = &operator.node;
    let has_state = match &node.operator {
        Operator::Source(_) | Operator::GuestSource(_) => true,
        Operator::Sink(connector) => connector.name == "file",
        Operator::Guest(_) => !node.states.is_empty(),
    };
    (has_state && node.uid.is_none() && node.uid_hash.is_none()).then_some(node.name.as_str())
}
