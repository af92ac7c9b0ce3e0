//! `engine upgrade`: another version of a plugin takes a running job over, with its state.
//!
//! Nothing of a new version is committed before its first checkpoint is complete. If it
//! fails until then, the old version goes on from the savepoint that it was stopped with.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::{
    CliError, GlobalOptions, JobManagerOption, Outcome, Output, list, logging, savepoint, say, settings, submit,
};
use crate::{
    base::{
        config::{Configuration, Origin, options},
        ids::JobId,
        status::JobStatus,
    },
    checkpoint::{Compatibility, ProgramSchema},
    client::{
        ClientError,
        grants::Site,
        rest_client::{RestClient, SentFile, wait},
    },
    graph::{
        job_graph::{Grants, JobGraph},
        job_graph_codec,
        plan::json_plan,
    },
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// Pause between two looks at the new job.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for a job that was cancelled to end.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(60);
/// Time for which a job that takes no checkpoints must run to count as taken over.
const PROBATION: Duration = Duration::from_secs(5);
/// Digits of a plugin's digest in the name of its copy.
const DIGEST_DIGITS: usize = 12;

/// `engine upgrade`.
#[derive(Debug, Args)]
#[command(
    override_usage = "engine upgrade [OPTIONS] JOB PLUGIN [PROGRAM ARGUMENTS]...",
    after_help = "First compares the states of both versions: where something would be lost or not fit, nothing is \
        touched (exit code 1). Then stops the job with a savepoint and starts the plugin from it, as a new job with \
        the settings of the old one. If that fails before its first checkpoint is complete, the old version is \
        started again. The old plugin is kept as a file beside the new one, the savepoint where it was written.\n\n\
        Without program arguments, those of the running job are used.\n\n\
        Examples:\n  \
        engine upgrade 1f0c words-2.wasm\n  \
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
    let old = Version { graph: rest.job_graph(job)?, plugin: rest.plugin(job)? };
    let new = upgrade.plan(&old.graph, &configuration)?;
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
    let kept = upgrade.keep_old_plugin(&old)?;
    let directory = upgrade.directory.as_deref().map(savepoint::as_text).transpose()?;
    let body = json!({ "targetDirectory": directory, "drain": false });
    let taken = rest.operate(&format!("/jobs/{job}/stop"), &body, |id| format!("/jobs/{job}/savepoints/{id}"))?;
    let Some(location) = taken["location"].as_str().map(str::to_owned) else {
        return Err(CliError::failed(anyhow::anyhow!("job {job} was stopped, but the JobManager names no savepoint")));
    };
    say(&format!("job {job} was stopped; its savepoint is {location}, its plugin {}", kept.display()));
    let successor = new.start(&rest, &location, upgrade.allow_non_restored_state);
    let outcome = successor.and_then(|successor| {
        say(&format!("the new version was submitted with JobID {successor}"));
        watch(&rest, successor).map(|()| successor)
    });
    match outcome {
        Ok(successor) => {
            say(&format!(
                "to go back: stop job {successor}, and submit {} with --from-savepoint {location}",
                kept.display()
            ));
            match global.output {
                Output::Text => super::print(&format!("job {successor} goes on in place of {job}")),
                Output::Json => super::print_json(&json!({
                    "compatibility": comparison, "upgraded": true, "job-id": successor, "savepoint": location,
                    "old-plugin": kept.to_string_lossy(),
                })),
            }
        }
        Err(problem) => {
            let back = old.start(&rest, &location, false).map_err(|error| {
                CliError::failed(anyhow::anyhow!(
                    "{problem}; and the old version could not be started again: {error}; submit {} with \
                     --from-savepoint {location}",
                    kept.display()
                ))
            })?;
            if global.output == Output::Json {
                super::print_json(&json!({
                    "compatibility": comparison, "upgraded": false, "job-id": back, "savepoint": location,
                    "failure": problem,
                }))?;
            }
            Err(CliError::failed(anyhow::anyhow!(
                "the new version failed before its first checkpoint: {problem}; nothing of it was committed, and the \
                 old version goes on from the savepoint as job {back}"
            )))
        }
    }
}

/// One version of the program, as it is submitted.
struct Version {
    graph: JobGraph,
    plugin: Bytes,
}

impl UpgradeOptions {
    /// Plans the new version with the settings and grants of the old one.
    fn plan(&self, old: &JobGraph, own: &Configuration) -> Result<Version, CliError> {
        let mut configuration = own.clone();
        let kept = |key: &str| {
            !key.starts_with("sandbox.") && !key.starts_with("plugin.") && key != options::RECOVERY_PATH.key
        };
        for (key, value, origin) in old.configuration.iter().filter(|(key, _, _)| kept(key)) {
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
        )?;
        let mut graph = prepared.planned.job_graph;
        if let Some(artifact) = old.artifacts.iter().find(|old| graph.artifacts.iter().all(|new| new.name != old.name))
        {
            return Err(CliError::usage(anyhow::anyhow!(
                "the job has an artifact \"{0}\": give it to the new version too, with --artifact {0}=PATH",
                artifact.name
            )));
        }
        add_grants(&mut graph.grants, &old.grants);
        Ok(Version { graph, plugin: prepared.program.content })
    }

    /// Writes the plugin that runs to a file beside the new one.
    fn keep_old_plugin(&self, old: &Version) -> Result<PathBuf, CliError> {
        let directory = Path::new(&self.job_and_plugin[1]).parent().unwrap_or(Path::new(""));
        let program = &old.graph.program;
        let stem = Path::new(&program.plugin_name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let digest: String = program.plugin.to_string().chars().take(DIGEST_DIGITS).collect();
        let path = directory.join(format!("{stem}-{digest}.wasm"));
        std::fs::write(&path, &old.plugin).map_err(|error| {
            CliError::failed(anyhow::anyhow!(
                "could not keep the old plugin as {}: {error}; the job was not touched",
                path.display()
            ))
        })?;
        Ok(path)
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

impl Version {
    /// Submits it as a new job that goes on from a savepoint.
    fn start(&self, rest: &RestClient, savepoint: &str, allow_non_restored_state: bool) -> Result<JobId, String> {
        let mut graph = self.graph.clone();
        graph.job_id = JobId::random();
        graph.json_plan = json_plan(&graph);
        let allow = allow_non_restored_state.to_string();
        for (key, value) in
            [(options::RECOVERY_PATH.key, savepoint), (options::RECOVERY_IGNORE_UNCLAIMED.key, allow.as_str())]
        {
            graph.configuration.set(key, value, Origin::Dynamic).map_err(|error| error.to_string())?;
        }
        let encoded = job_graph_codec::encode(&graph).map_err(|error| error.to_string())?;
        let plugin = SentFile { name: graph.program.plugin_name.clone(), content: self.plugin.clone() };
        rest.submit(&graph, encoded, &plugin, &[]).map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        Ok(graph.job_id)
    }
}

/// Waits until a job has completed a checkpoint, or has finished.
///
/// # Errors
/// Returns why the job failed before; it has ended then.
fn watch(rest: &RestClient, job: JobId) -> Result<(), String> {
    let one_line = |error| format!("{:#}", anyhow::Error::from(error));
    let mut running_since = None;
    loop {
        let snapshot = rest.snapshot(job).map_err(one_line)?;
        let why = |rest: &RestClient| {
            let exceptions = rest.get(&format!("/jobs/{job}/exceptions")).unwrap_or_default();
            let root = exceptions["root-exception"].as_str().unwrap_or_default();
            root.lines().next().unwrap_or("no cause is known").to_owned()
        };
        match snapshot.status {
            JobStatus::Finished => return Ok(()),
            JobStatus::Failed | JobStatus::Canceled => return Err(why(rest)),
            _ if 0 < snapshot.restarts => {
                let cause = why(rest);
                end(rest, job)?;
                return Err(cause);
            }
            JobStatus::Running => {}
            _ => running_since = None,
        }
        match completed_checkpoints(rest, job) {
            Some(0) => {}
            Some(_) => return Ok(()),
            None if snapshot.status == JobStatus::Running => {
                let since = running_since.get_or_insert_with(Instant::now);
                if PROBATION <= since.elapsed() {
                    return Ok(());
                }
            }
            None => {}
        }
        wait(LOOK_PAUSE);
    }
}

/// None: the job takes no checkpoints.
fn completed_checkpoints(rest: &RestClient, job: JobId) -> Option<u64> {
    let is_periodic = rest
        .get(&format!("/jobs/{job}/checkpoints/config"))
        .is_ok_and(|config| config["interval"].as_u64().is_some_and(|interval| interval < i64::MAX.unsigned_abs()));
    let counts = || rest.get(&format!("/jobs/{job}/checkpoints")).unwrap_or(Value::Null);
    is_periodic.then(|| counts()["counts"]["completed"].as_u64().unwrap_or(0))
}

/// Cancels a job and waits for its end.
fn end(rest: &RestClient, job: JobId) -> Result<(), String> {
    let begun = Instant::now();
    // It may have ended by itself.
    drop(rest.cancel(job));
    while begun.elapsed() < CANCEL_TIME_MAX {
        let snapshot = rest.snapshot(job).map_err(|error| error.to_string())?;
        if snapshot.status.is_globally_terminal() {
            return Ok(());
        }
        wait(LOOK_PAUSE);
    }
    Err(format!("job {job} was cancelled, but has not ended within {} s", CANCEL_TIME_MAX.as_secs()))
}
