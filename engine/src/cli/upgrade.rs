//! `engine upgrade`: another version of a plugin takes a running job over, with its state.
//!
//! Nothing of a new version is committed before its first checkpoint is complete. If it
//! fails until then, the old version goes on from the savepoint that it was stopped with.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    CliError, GlobalOptions, JobManagerOption, Outcome, Output, list, logging, savepoint, say, settings, submit,
    takeover::{self, Failure, Interruption, KeptFiles, Takeover, Version, is_handed_on},
};
use crate::{
    base::{
        config::{Configuration, Origin, options},
        ids::{BlobDigest, JobId},
    },
    checkpoint::{Compatibility, ProgramSchema},
    client::{
        ClientError,
        grants::Site,
        rest_client::{RestClientError, SentFile},
    },
    graph::job_graph::{Artifact, Grants},
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// Digits of a plugin's digest in the name of its copy.
const DIGEST_DIGITS: usize = 12;

/// `engine upgrade`.
#[derive(Debug, Args)]
#[command(
    override_usage = "engine upgrade [OPTIONS] JOB PLUGIN [PROGRAM ARGUMENTS]...",
    after_help = "First compares the states of both versions: where something would be lost or not fit, nothing is \
        touched (exit code 1). Then stops the job with a savepoint and starts the plugin from it, as a new job with \
        the settings of the old one. If that fails before its first checkpoint is complete, the old version is \
        started again. The old plugin and its artifacts are kept as files beside the new one, the savepoint where it was written, and the \
        command that starts the old version from it is printed before anything is touched.\n\n\
        Ctrl-C gives the upgrade up: the old version goes on (exit code 130), unless the new one has completed a \
        checkpoint. A second Ctrl-C leaves at once and says what there is.\n\n\
        Without program arguments, those of the running job are used; so is each artifact that --artifact does not \
        give anew. The name of the job stays, unless --name or the \
        new program sets one.\n\n\
        Examples:\n  \
        engine upgrade --savepoint /data/savepoints 1f0c words-2.wasm\n  \
        engine upgrade --savepoint /data/savepoints 1f0c words-2.wasm --input 'logs/*.log' --output counts\n  \
        engine upgrade --dry-run 1f0c words-2.wasm"
)]
pub(crate) struct UpgradeOptions {
    #[command(flatten)]
    program: submit::ProgramOptions,
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Directory below which the savepoint is written, as the JobManager sees it; without it:
    /// execution.checkpointing.savepoint-dir.
    #[arg(long = "savepoint", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// State of operators that the new version does not have may be dropped.
    #[arg(long)]
    allow_non_restored_state: bool,
    /// Only says what would become of the state.
    #[arg(long)]
    dry_run: bool,
    /// Id of the job, or how it begins; the plugin, a .wasm file; behind it, the arguments of its program.
    #[arg(trailing_var_arg = true, required = true, num_args = 2.., value_names = ["JOB", "PLUGIN"])]
    job_and_plugin: Vec<String>,
}

pub(crate) fn run(upgrade: &UpgradeOptions, global: &GlobalOptions) -> Outcome {
    let rest = list::client(&upgrade.job_manager, global)?;
    let configuration = settings::load(global, &upgrade.program.settings())?;
    logging::start(global, "warn", None)?;
    let job = rest.find_job(&upgrade.job_and_plugin[0])?;
    let graph = rest.job_graph(job)?;
    let artifact = |name: &String| Ok(SentFile { name: name.clone(), content: rest.artifact(job, name)? });
    let artifacts =
        graph.artifacts.iter().map(|known| artifact(&known.name)).collect::<Result<_, RestClientError>>()?;
    let old = Version { graph, plugin: rest.plugin(job)?, artifacts };
    let new = upgrade.plan(&old, &configuration)?;
    let comparison = Compatibility::between(&ProgramSchema::from(&old.graph), &ProgramSchema::from(&new.graph));
    let is_refused = comparison.is_refused(upgrade.allow_non_restored_state);
    if global.output == Output::Text {
        super::print(comparison.to_string().trim_end())?;
    }
    if is_refused || upgrade.dry_run {
        if global.output == Output::Json {
            super::print_json(&json!({ "compatibility": comparison, "upgraded": false }))?;
        }
        if is_refused {
            say(&format!("job {job} was not touched"));
            return Err(CliError::Exit(1));
        }
        return Ok(());
    }
    let directory = upgrade.directory.as_deref().map(savepoint::as_text).transpose()?;
    takeover::check_savepoint_directory(&rest, job, &old.graph, directory.as_deref())?;
    let kept = upgrade.keep_files(&old)?;
    let old_plugin = kept.plugin.to_string_lossy().into_owned();
    let takeover =
        Takeover { rest, job, old, new, kept, directory, allow_non_restored_state: upgrade.allow_non_restored_state };
    let takeover::Outcome { job: successor, savepoint, failure, command } =
        submit::block_on(run_interruptibly(takeover))?;
    let failure_text = failure.as_ref().map(|failure| match failure {
        Failure::New(problem) => problem.clone(),
        Failure::Interrupted => "it was given up by the user".to_owned(),
    });
    if global.output == Output::Json {
        super::print_json(&json!({
            "compatibility": comparison, "upgraded": failure.is_none(), "job-id": successor, "savepoint": savepoint,
            "old-plugin": old_plugin, "failure": failure_text, "old-command": command,
        }))?;
    }
    match failure {
        None => {
            say(&format!(
                "to go back to the state of the savepoint: engine stop {successor}, then the command printed last above"
            ));
            match global.output {
                Output::Text => super::print(&format!("job {successor} goes on in place of {job}")),
                Output::Json => Ok(()),
            }
        }
        Some(Failure::New(problem)) => Err(CliError::failed(anyhow::anyhow!(
            "the new version failed before its first checkpoint: {problem}; nothing of it was committed, and the old \
             version goes on from the savepoint as job {successor}"
        ))),
        Some(Failure::Interrupted) => {
            say(&format!(
                "the upgrade was given up; nothing of the new version was committed, and the old version goes on from \
                 the savepoint as job {successor}"
            ));
            Err(CliError::Exit(submit::INTERRUPTED))
        }
    }
}

/// Ctrl-C gives the upgrade up, a second one leaves at once and says what there is.
async fn run_interruptibly(takeover: Takeover) -> Result<takeover::Outcome, CliError> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let interruption = Arc::new(Interruption::default());
    let asked = Arc::clone(&interruption);
    let mut work = tokio::task::spawn_blocking(move || takeover.run(&asked));
    loop {
        tokio::select! {
            done = &mut work => {
                return done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            }
            _ = interrupts.recv() => {
                if !interruption.ask() {
                    say(&interruption.state());
                    return Err(CliError::Exit(submit::INTERRUPTED));
                }
                say("giving the upgrade up: the old version will go on; press Ctrl-C again to leave at once");
            }
        }
    }
}

impl UpgradeOptions {
    /// Plans the new version with the settings and grants of the old one, and those of its artifacts that
    /// are not given anew.
    fn plan(&self, old_version: &Version, own: &Configuration) -> Result<Version, CliError> {
        let old = &old_version.graph;
        let mut configuration = own.clone();
        for (key, value, origin) in old.configuration.iter().filter(|(key, _, _)| is_handed_on(key)) {
            let is_said_now = own.iter().any(|(own_key, _, origin)| own_key == key && Origin::CommandLine <= origin);
            // What the old program set, the new one sets itself.
            if origin != Origin::Program && !is_said_now {
                configuration.set(key, value, origin).map_err(CliError::failed)?;
            }
        }
        let mut plugin_and_args = self.job_and_plugin[1..].to_vec();
        if plugin_and_args.len() == 1 {
            plugin_and_args.extend(old.program.args.iter().cloned());
        }
        let plugins =
            PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
        let prepared = submit::prepare(
            &plugin_and_args,
            &self.program,
            &configuration,
            &plugins,
            Site::Elsewhere,
            JobId::random(),
            &old_version.artifacts,
        )?;
        let mut graph = prepared.planned.job_graph;
        add_grants(&mut graph.grants, &old.grants);
        if graph.configuration.get(&options::JOB_NAME).is_none() {
            // Neither the user nor the program names it: not that of the plugin's file, then.
            graph.name.clone_from(&old.name);
        }
        Ok(Version { graph, plugin: prepared.program.content, artifacts: prepared.artifacts })
    }

    /// Writes the plugin that runs, and its artifacts, to files beside the new one.
    fn keep_files(&self, old: &Version) -> Result<KeptFiles, CliError> {
        let directory = Path::new(&self.job_and_plugin[1]).parent().unwrap_or(Path::new(""));
        let program = &old.graph.program;
        let stem = Path::new(&program.plugin_name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let digits = |digest: BlobDigest| digest.to_string().chars().take(DIGEST_DIGITS).collect::<String>();
        let write = |what: &str, name: String, content: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, content).map_err(|error| {
                CliError::failed(anyhow::anyhow!(
                    "could not keep the old {what} as {}: {error}; the job was not touched",
                    path.display()
                ))
            })?;
            Ok::<_, CliError>(path)
        };
        let plugin = write("plugin", format!("{stem}-{}.wasm", digits(program.plugin)), &old.plugin)?;
        let artifact = |(known, file): (&Artifact, &SentFile)| {
            let digest = digits(known.digest);
            write(&format!("artifact \"{}\"", known.name), format!("{stem}-{digest}-{}", known.name), &file.content)
        };
        let artifacts = old.graph.artifacts.iter().zip(&old.artifacts).map(artifact).collect::<Result<_, _>>()?;
        Ok(KeptFiles { plugin, artifacts })
    }
}

fn add_grants(grants: &mut Grants, others: &Grants) {
    fn add<T: Clone + PartialEq>(to: &mut Vec<T>, from: &[T]) {
        for entry in from {
            if !to.contains(entry) {
                to.push(entry.clone());
            }
        }
    }
    add(&mut grants.read, &others.read);
    add(&mut grants.write, &others.write);
    add(&mut grants.net, &others.net);
}
