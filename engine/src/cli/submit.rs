//! `engine submit`: plans a plugin, runs it in this process or hands it to a
//! JobManager, and waits for the job's end.

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    CliError, GlobalOptions, JobManagerOption, Outcome, Output,
    embedded::{self, ClusterSize},
    logging,
    progress::{self, Progress},
    savepoint, say,
    settings::{self, ExplicitSettings},
    stored_job::StoredJob,
};
use crate::{
    base::{
        clock::Clock,
        config::{Configuration, Origin, options},
        ids::JobId,
        key_group::MAX_PARALLELISM_LIMIT,
        option_scope::Scope,
        status::JobStatus,
    },
    checkpoint::check_start,
    client::{
        ClientError,
        grants::{ExplicitGrants, Site},
        job_client::{JobClient, submit_with_retries},
        job_snapshot::{JobFailure, JobSnapshot},
        program::{PlannedJob, Program, Submission, read_plugin},
        rest_client::{RestClient, SentFile},
    },
    connector,
    graph::{
        job_graph::{Artifact, JobGraph},
        job_graph_codec, slot_sharing,
        stream_graph::Operator,
    },
    job_manager::blob_store::BlobStore,
    mini_cluster::Storage,
    protocol::dispatcher::DispatcherRequest,
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// Exit code after a second request to end: 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;
/// Threads of the control plane; tasks have their own.
const CONTROL_THREADS: usize = 2;

fn parallelism(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a parallelism is a whole number from 1 to {MAX_PARALLELISM_LIMIT}"))
}

/// Options that say which program is run, how, and what it may open; shared with `engine plan`.
#[derive(Debug, Args)]
pub(crate) struct ProgramOptions {
    /// Parallelism of operators that set none.
    #[arg(short, long, value_name = "COUNT", value_parser = parallelism)]
    pub(crate) parallelism: Option<u32>,
    /// Name of the job.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Lets the job read a file, or a directory with all below it; may be repeated.
    #[arg(long, value_name = "PATH")]
    allow_read: Vec<String>,
    /// Lets the job write into a directory; may be repeated.
    #[arg(long, value_name = "DIR")]
    allow_write: Vec<String>,
    /// Lets the job connect to an address or listen on it; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    allow_net: Vec<String>,
    /// Sends a file along, which a file source reads as artifact:NAME in any subtask; may be repeated.
    #[arg(long, value_name = "NAME=PATH")]
    artifact: Vec<String>,
}

/// `engine submit`.
#[derive(Debug, Args)]
#[command(
    override_usage = "engine submit [OPTIONS] PLUGIN [PROGRAM ARGUMENTS]...",
    after_help = "Options of the engine stand before the plugin, all behind it belongs to the program. A program \
        argument that is a path or an address, as a whole or behind `--name=`, lets the job open it: for reading if \
        a source uses it, for writing into a new or empty directory if a sink does.\n\n\
        Without a JobManager the job runs in this process, and ends with it. Ctrl-C cancels the job, a second one \
        leaves at once. With --output json, standard output holds one JSON object, and rows of print sinks go to \
        standard error.\n\n\
        Examples:\n  \
        engine submit word_count.wasm --input access.log --output counts\n  \
        engine submit -p 4 -D restart-strategy.type=fixed-delay word_count.wasm --input 'logs/*.log' --output out\n  \
        engine submit --allow-read /data/tables --name lookup lookup.wasm\n  \
        engine submit --jobmanager http://127.0.0.1:8081 --detached word_count.wasm --socket 127.0.0.1:9000\n  \
        engine submit --job-id 00000000000000000000000000000001 --state-dir state -D \
        execution.checkpointing.interval=10s word_count.wasm --input logs --output counts\n  \
        engine submit --print-config"
)]
pub(crate) struct SubmitOptions {
    #[command(flatten)]
    pub(crate) program: ProgramOptions,
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Returns when the JobManager has taken the job, and prints its id.
    #[arg(short, long)]
    detached: bool,
    /// Id of the job, 32 hexadecimal digits; without it one is drawn.
    #[arg(long, value_name = "ID")]
    job_id: Option<JobId>,
    /// Keeps what the job needs to go on after its process ended. Submitted again with the same id, plugin and
    /// arguments, a job that has not ended goes on from its latest checkpoint; one that has finished does nothing.
    #[arg(long, value_name = "DIR", requires = "job_id")]
    state_dir: Option<PathBuf>,
    /// Goes on from a savepoint.
    #[arg(short = 's', long, value_name = "PATH")]
    from_savepoint: Option<PathBuf>,
    /// Goes on from a checkpoint that was kept (…/chk-N).
    #[arg(long, value_name = "PATH", conflicts_with = "from_savepoint")]
    from_checkpoint: Option<PathBuf>,
    /// Drops state of operators that the job does not have; without it, the job is refused.
    #[arg(short = 'n', long)]
    allow_non_restored_state: bool,
    /// Prints each setting with where it came from, and runs nothing.
    #[arg(long)]
    print_config: bool,
    /// The plugin, a .wasm file; behind it, the arguments of its program.
    #[arg(trailing_var_arg = true, required_unless_present = "print_config", value_name = "PLUGIN")]
    pub(crate) plugin_and_args: Vec<String>,
}

impl ProgramOptions {
    pub(crate) fn settings(&self) -> ExplicitSettings {
        let mut settings = ExplicitSettings::default();
        settings.add("--parallelism", &options::PARALLELISM, self.parallelism);
        settings.add("--name", &options::JOB_NAME, self.name.as_ref());
        settings
    }

    fn explicit_grants(&self) -> ExplicitGrants {
        ExplicitGrants { read: self.allow_read.clone(), write: self.allow_write.clone(), net: self.allow_net.clone() }
    }
}

/// A program with its graphs, and the files that go with it.
pub(crate) struct Prepared {
    pub(crate) planned: PlannedJob,
    pub(crate) program: Program,
    pub(crate) artifacts: Vec<SentFile>,
}

/// Reads, admits, compiles and plans a plugin. Of `more_artifacts` it gets those whose names the options do not give.
pub(crate) fn prepare(
    plugin_and_args: &[String],
    program_options: &ProgramOptions,
    configuration: &Configuration,
    runtime: &PluginRuntime,
    site: Site,
    job: JobId,
    more_artifacts: &[SentFile],
) -> Result<Prepared, CliError> {
    let (plugin, args) = plugin_and_args.split_first().expect("the command line demands a plugin");
    let path = PathBuf::from(plugin);
    let content = read_plugin(&path, configuration)?;
    let name = path.file_name().map_or_else(|| plugin.clone(), |name| name.to_string_lossy().into_owned());
    let program = Program::load(runtime, content, &name)?;
    let mut artifacts = read_artifacts(&program_options.artifact)?;
    let is_missing = |more: &&SentFile| artifacts.iter().all(|given| given.name != more.name);
    artifacts.extend(more_artifacts.iter().filter(is_missing).cloned().collect::<Vec<_>>());
    if site == Site::Here
        && let Some(problem) = missing_roots(&program_options.allow_read).next()
    {
        return Err(CliError::usage(anyhow::anyhow!(problem)));
    }
    let mut explicit = program_options.explicit_grants();
    if site == Site::Here {
        explicit.extend(ExplicitGrants::from_configuration(configuration));
    }
    let planned = program.plan(Submission {
        job,
        args: args.to_vec(),
        configuration: configuration.clone(),
        explicit,
        site,
        artifacts: artifacts
            .iter()
            .map(|artifact| Artifact { name: artifact.name.clone(), digest: BlobStore::digest(&artifact.content) })
            .collect(),
    });
    let planned = planned.map_err(|error| match (&error, misplaced_option(args, &error.to_string())) {
        (ClientError::Program(_), Some(option)) => {
            CliError::usage(anyhow::anyhow!("{error}; options of the engine stand before the plugin: {option} PLUGIN"))
        }
        _ => error.into(),
    })?;
    Ok(Prepared { planned, program, artifacts })
}

/// The option of the engine behind the plugin that the program does not know.
fn misplaced_option<'a>(args: &'a [String], refusal: &str) -> Option<&'a str> {
    let submit = SubmitOptions::augment_args(GlobalOptions::augment_args(clap::Command::new("submit")));
    args.iter().map(|arg| arg.split_once('=').map_or(arg.as_str(), |(option, _)| option)).find(|option| {
        let is_refused = refusal.contains(&format!("unexpected argument \"{option}"))
            || refusal.contains(&format!("unknown argument {option}:"));
        let is_engines = submit.get_arguments().any(|known| match option.strip_prefix("--") {
            Some(long) => known.get_long() == Some(long),
            None => option.starts_with('-') && known.get_short().is_some_and(|short| option[1..].starts_with(short)),
        });
        is_refused && is_engines
    })
}

/// What is wrong with paths that may be read, but are not there: a slip of the pen.
pub(crate) fn missing_roots(allow_read: &[String]) -> impl Iterator<Item = String> {
    allow_read.iter().filter_map(|path| {
        let error = std::fs::metadata(path).err()?;
        Some(format!("--allow-read {path}: {error}; expected a file, or a directory with all below it"))
    })
}

fn read_artifacts(artifacts: &[String]) -> Result<Vec<SentFile>, CliError> {
    let mut read: Vec<SentFile> = Vec::new();
    for artifact in artifacts {
        let Some((name, path)) = artifact.split_once('=') else {
            return Err(CliError::usage(anyhow::anyhow!("--artifact {artifact}: expected NAME=PATH")));
        };
        if std::path::Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(CliError::usage(anyhow::anyhow!("--artifact {artifact}: \"{name}\" is no plain file name")));
        }
        if read.iter().any(|known| known.name == name) {
            return Err(CliError::usage(anyhow::anyhow!("--artifact {artifact}: there are two of this name")));
        }
        let content = std::fs::read(path)
            .map_err(|source| ClientError::ArtifactUnreadable { path: PathBuf::from(path), source })?;
        read.push(SentFile { name: name.to_owned(), content: Bytes::from(content) });
    }
    Ok(read)
}

pub(crate) fn run(submit: SubmitOptions, global: &GlobalOptions) -> Outcome {
    let mut explicit = submit.program.settings();
    explicit.add("--jobmanager", &options::JOB_MANAGER_URL, submit.job_manager.jobmanager.as_ref());
    for (option, path) in [("--from-savepoint", &submit.from_savepoint), ("--from-checkpoint", &submit.from_checkpoint)]
    {
        let path = path.as_deref().map(savepoint::as_text).transpose()?;
        explicit.add(option, &options::RECOVERY_PATH, path);
    }
    let allow = submit.allow_non_restored_state.then_some(true);
    explicit.add("--allow-non-restored-state", &options::RECOVERY_IGNORE_UNCLAIMED, allow);
    let configuration = settings::load(global, &explicit)?;
    logging::start(global, "warn", None)?;
    if submit.print_config && submit.plugin_and_args.is_empty() {
        return settings::print_effective(&configuration, global.output);
    }
    let remote = configuration.get(&options::JOB_MANAGER_URL).is_some();
    if submit.detached && !remote && !submit.print_config {
        return Err(CliError::usage(anyhow::anyhow!(
            "--detached needs a JobManager that goes on running the job: start one with `engine cluster`, and say \
             where it is with --jobmanager URL"
        )));
    }
    if remote && submit.state_dir.is_some() {
        return Err(CliError::usage(anyhow::anyhow!(
            "--state-dir is for a job that runs in this process: a JobManager keeps jobs in its own cluster.storage-dir"
        )));
    }
    let site = if remote { Site::Elsewhere } else { Site::Here };
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
    let job = submit.job_id.unwrap_or_else(JobId::random);
    if let (Some(directory), false) = (&submit.state_dir, submit.print_config) {
        match take_up(&submit.plugin_and_args, directory, job, &configuration, &plugins, global.output)? {
            Taken::Up(outcome) => return outcome,
            Taken::IsNew => {}
        }
    }
    let prepared = prepare(&submit.plugin_and_args, &submit.program, &configuration, &plugins, site, job, &[])?;
    if submit.print_config {
        return settings::print_effective(&prepared.planned.job_graph.configuration, global.output);
    }
    if !remote {
        check_start(&prepared.planned.job_graph).map_err(|problem| CliError::usage(anyhow::anyhow!(problem)))?;
    }
    block_on(async {
        if remote {
            let is_id_drawn = submit.job_id.is_none();
            submit_remotely(prepared, &configuration, is_id_drawn, submit.detached, global.output).await
        } else {
            let Prepared { planned: PlannedJob { job_graph, .. }, program, artifacts } = prepared;
            let artifacts = artifacts.into_iter().map(|artifact| artifact.content);
            let blobs = std::iter::once(program.content).chain(artifacts).collect();
            let start = Start::Submit { job_graph: Box::new(job_graph), blobs };
            run_here(start, submit.state_dir, &configuration, &plugins, global.output).await
        }
    })
}

/// Settings that the user gives and with which a stored job was not submitted.
fn changed_settings(stored: &Configuration, given: &Configuration) -> Vec<String> {
    let stored: BTreeMap<_, _> = stored.iter().map(|(key, value, _)| (key, value)).collect();
    let is_given = |origin| matches!(origin, Origin::Dynamic | Origin::CommandLine);
    let changed = given.iter().filter(|(key, value, origin)| is_given(*origin) && stored.get(key) != Some(value));
    changed.map(|(key, _, _)| key.to_owned()).collect()
}

/// Runs the control plane of this process.
pub(crate) fn block_on<T>(run: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control-plane")
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(run);
    // A thread that reads standard input never ends by itself.
    runtime.shutdown_background();
    outcome
}

/// What became of a job that may be stored.
enum Taken {
    /// It was, and this became of it.
    Up(Outcome),
    /// It has to be submitted.
    IsNew,
}

/// Goes on with a job that an earlier process left in its state directory.
fn take_up(
    plugin_and_args: &[String],
    directory: &Path,
    job: JobId,
    configuration: &Configuration,
    plugins: &Arc<PluginRuntime>,
    output: Output,
) -> Result<Taken, CliError> {
    let stored = StoredJob::look(directory, job)?;
    let (plugin, args) = plugin_and_args.split_first().expect("the command line demands a plugin");
    if !matches!(stored, StoredJob::New) {
        let content = read_plugin(Path::new(plugin), configuration)?;
        stored.check_program(job, BlobStore::digest(&content), args)?;
    }
    let directory = || Some(directory.to_owned());
    Ok(match stored {
        StoredJob::New => Taken::IsNew,
        StoredJob::Running(job_graph) => {
            say(&format!("job {job} was left unfinished, and goes on"));
            let changed = changed_settings(&job_graph.configuration, configuration);
            if !changed.is_empty() {
                let keys = changed.join(", ");
                say(&format!(
                    "warning: the job goes on with the settings that it was submitted with: {keys} as given now is ignored"
                ));
            }
            Taken::Up(block_on(run_here(Start::GoOn(job_graph), directory(), configuration, plugins, output)))
        }
        StoredJob::Ended(result, is_clean) => {
            if !is_clean {
                block_on(run_here(Start::CleanUp(job), directory(), configuration, plugins, output))?;
            }
            Taken::Up(match result.status {
                JobStatus::Finished => {
                    say(&format!("job {job} has FINISHED already: nothing is left to do"));
                    Ok(())
                }
                status => {
                    let why = result.failure.map_or_else(String::new, |failure| format!(": {}", failure.message));
                    Err(CliError::failed(anyhow::anyhow!(
                        "job {job} has ended as {status} already{why}; to run it anew, submit it under another --job-id"
                    )))
                }
            })
        }
    })
}

/// What a cluster in this process is started for.
enum Start {
    /// A new job, with its plugin and artifacts.
    Submit { job_graph: Box<JobGraph>, blobs: Vec<Bytes> },
    /// A stored job, which the cluster finds itself.
    GoOn(Box<JobGraph>),
    /// What an ended job left is removed.
    CleanUp(JobId),
}

async fn submit_remotely(
    prepared: Prepared,
    configuration: &Configuration,
    is_id_drawn: bool,
    detached: bool,
    output: Output,
) -> Outcome {
    warn_of_owner_settings(configuration);
    let rest = RestClient::new(configuration)?;
    let Prepared { planned: PlannedJob { job_graph, .. }, program, artifacts } = prepared;
    warn_of_lost_rows(&job_graph);
    let encoded = Bytes::from(job_graph_codec::encode(&job_graph).map_err(CliError::failed)?);
    let plugin = SentFile { name: program.name, content: program.content };
    let job = job_graph.job_id;
    let retries_max = configuration.get(&options::REST_RETRY_ATTEMPTS);
    let retry_delay = configuration.get(&options::REST_RETRY_DELAY);
    let sent = Arc::new((job_graph, encoded, plugin, artifacts));
    submit_with_retries(&rest, retries_max, retry_delay, is_id_drawn, move |rest| {
        let (job_graph, encoded, plugin, artifacts) = &*sent;
        rest.submit(job_graph, encoded.clone(), plugin, artifacts)
    })
    .await?;
    if detached {
        return match output {
            Output::Text => super::print(&job.to_string()),
            Output::Json => super::print_json(&json!({ "job-id": job })),
        };
    }
    say(&format!("Job has been submitted with JobID {job}"));
    let client = JobClient::Remote { rest, retries_max, retry_delay };
    let snapshot = watch(&client, job, EndRequests::of_client()?, &Clock::System).await?;
    conclude(&snapshot, output)
}

/// Exactly once ends where rows cannot be read again. Who submits should know, not only the JobManager's log.
fn warn_of_lost_rows(job_graph: &JobGraph) {
    if job_graph.configuration.get(&options::CHECKPOINTING_INTERVAL).is_none() {
        return;
    }
    for operator in job_graph.vertices.iter().flat_map(|vertex| &vertex.operators) {
        if let Operator::Source(source) = &operator.node.operator
            && !connector::can_replay(&source.name)
        {
            say(&format!(
                "warning: source \"{}\" cannot read its rows again: despite checkpoints, a failure loses those that \
                 it read since the latest one",
                operator.node.name
            ));
        }
    }
}

/// The owner of a JobManager decides over its process. How its REST is reached is the client's.
fn warn_of_owner_settings(configuration: &Configuration) {
    for (key, _, origin) in configuration.iter() {
        let of_client = key.starts_with("rest.") || key.starts_with("client.");
        let owned = Scope::of(key) == Scope::Owner && !of_client;
        if owned && matches!(origin, Origin::Dynamic | Origin::CommandLine) {
            say(&format!("warning: {key} is decided by the owner of the JobManager, and is ignored here"));
        }
    }
}

/// With a state directory the job can outlive this process.
async fn run_here(
    start: Start,
    state_dir: Option<PathBuf>,
    configuration: &Configuration,
    plugins: &Arc<PluginRuntime>,
    output: Output,
) -> Outcome {
    let (job, slots_needed) = match &start {
        Start::Submit { job_graph, .. } | Start::GoOn(job_graph) => (job_graph.job_id, slots(job_graph, configuration)),
        Start::CleanUp(job) => (*job, 1),
    };
    let is_durable = state_dir.is_some();
    let size = ClusterSize {
        task_executors: 1,
        slots_per_task_executor: slots_needed,
        storage: state_dir.map_or(Storage::Temporary, |directory| Storage::OfJob(directory, job)),
        printed_rows: embedded::printed_rows(output),
    };
    // Before there is anything that would be left behind.
    let end_requests = if is_durable { EndRequests::of_client()? } else { EndRequests::of_embedded_cluster()? };
    let mut terminations = signal(SignalKind::terminate())?;
    let cluster = embedded::start(configuration, size, plugins).await.map_err(CliError::failed)?;
    let client = JobClient::Embedded { gateway: cluster.gateway(), clock: Clock::System };
    let watched = async {
        match start {
            Start::Submit { job_graph, blobs } => {
                for content in &blobs {
                    cluster.blobs().put(content).map_err(CliError::failed)?;
                }
                cluster.gateway().request(DispatcherRequest::SubmitJob(*job_graph)).await.map_err(ClientError::from)?;
            }
            Start::GoOn(_) => {}
            Start::CleanUp(_) => return Ok(None),
        }
        watch(&client, job, end_requests, &Clock::System).await.map(Some)
    };
    let outcome = tokio::select! {
        outcome = watched => outcome,
        ended = cluster.terminated() => Err(match ended {
            Err(error) => CliError::failed(error),
            Ok(()) => CliError::failed(anyhow::anyhow!("the cluster ended before the job")),
        }),
        _ = terminations.recv(), if is_durable => Err(CliError::failed(anyhow::anyhow!(
            "job {job} is suspended, since this process was told to terminate: submit it again to go on"
        ))),
    };
    // How the job ended is what counts; what could not be tidied up is only logged.
    if let Err(error) = cluster.shutdown().await {
        tracing::warn!("{:#}", anyhow::Error::from(error));
    }
    match outcome? {
        Some(snapshot) => conclude(&snapshot, output),
        None => Ok(()),
    }
}

/// As many as were configured, else as many as the job needs.
fn slots(job_graph: &JobGraph, configuration: &Configuration) -> u32 {
    if configuration.is_set(&options::SLOTS) {
        configuration.get(&options::SLOTS)
    } else {
        u32::try_from(slot_sharing::slots_needed(job_graph)).unwrap_or(u32::MAX)
    }
}

/// Signals that ask for the job's end; none is missed from when this is made.
pub(crate) struct EndRequests {
    interrupts: Signal,
    terminations: Option<Signal>,
}

impl EndRequests {
    /// Ctrl-C only: a job elsewhere outlives the process that watches it.
    pub(crate) fn of_client() -> Result<Self, CliError> {
        Ok(Self { interrupts: signal(SignalKind::interrupt())?, terminations: None })
    }

    /// Ctrl-C and SIGTERM: the job ends with this process, and must not leave hidden output.
    fn of_embedded_cluster() -> Result<Self, CliError> {
        Ok(Self { terminations: Some(signal(SignalKind::terminate())?), ..Self::of_client()? })
    }

    async fn recv(&mut self) {
        let Self { interrupts, terminations } = self;
        let terminated = async {
            match terminations {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminated => {}
        }
    }
}

/// Waits for the job's end, shows progress, and cancels the job when its end is asked for.
pub(crate) async fn watch(
    client: &JobClient,
    job: JobId,
    mut end_requests: EndRequests,
    clock: &Clock,
) -> Result<JobSnapshot, CliError> {
    let mut progress = Progress::on_standard_error(clock.now());
    let mut ticks = tokio::time::interval(progress.interval());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick comes at once, when there is nothing to show.
    ticks.tick().await;
    let mut ended = std::pin::pin!(client.await_termination(job));
    let mut cancelling = std::pin::pin!(client.cancel(job));
    let (mut is_cancelling, mut is_asked) = (false, false);
    let snapshot = loop {
        tokio::select! {
            snapshot = &mut ended => break snapshot?,
            () = end_requests.recv() => {
                progress.clear();
                if is_cancelling {
                    return Err(CliError::Exit(INTERRUPTED));
                }
                is_cancelling = true;
                say("cancelling the job; press Ctrl-C again to leave at once");
            }
            asked = &mut cancelling, if is_cancelling && !is_asked => {
                is_asked = true;
                if let Err(error) = asked {
                    say(&format!("the job could not be cancelled: {:#}", anyhow::Error::from(error)));
                }
            }
            _ = ticks.tick() => {
                // Progress is a courtesy: whether the job can be asked is seen by the wait for its end.
                let asked = tokio::time::timeout(ASK_TIME_MAX, client.snapshot(job)).await;
                if let Ok(Ok(snapshot)) = asked {
                    progress.show(&snapshot, clock.now());
                }
            }
        }
    };
    progress.clear();
    Ok(snapshot)
}

/// Longest wait for numbers of progress.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);

/// Tells how the job ended, and makes it the exit code.
pub(crate) fn conclude(snapshot: &JobSnapshot, output: Output) -> Outcome {
    if output == Output::Json {
        super::print_json(&progress::summary_json(snapshot))?;
    }
    match snapshot.status {
        JobStatus::Finished => {
            say(&progress::summary(snapshot));
            Ok(())
        }
        JobStatus::Failed => {
            say(&progress::summary(snapshot));
            let failure = snapshot.failure.as_ref().map_or_else(|| "no reason is known".to_owned(), JobFailure::text);
            Err(CliError::Failed(anyhow::anyhow!("job {} failed: {failure}", snapshot.id)))
        }
        JobStatus::Canceled => {
            say(&progress::summary(snapshot));
            Err(CliError::Failed(anyhow::anyhow!("job {} was cancelled", snapshot.id)))
        }
        status => Err(CliError::Failed(anyhow::anyhow!("job {} is left {status}", snapshot.id))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_engine_behind_the_plugin_are_found() {
        let args = ["--input", "a", "--output", "b", "-p", "4", "--name=foo"].map(str::to_owned);
        assert_eq!(misplaced_option(&args, "unexpected argument \"-p\": arguments are"), Some("-p"));
        assert_eq!(misplaced_option(&args, "unknown argument --name: the program takes --input"), Some("--name"));
        // The program knows it, or the engine does not.
        assert_eq!(misplaced_option(&args, "argument --name needs a value"), None);
        assert_eq!(misplaced_option(&args, "unknown argument --input: did you mean --inputs?"), None);
    }

    #[test]
    fn settings_that_a_stored_job_does_not_take_are_named() {
        let (mut stored, mut given) = (Configuration::default(), Configuration::default());
        stored.set(options::PARALLELISM.key, "2", Origin::CommandLine).unwrap();
        given.set(options::PARALLELISM.key, "2", Origin::CommandLine).unwrap();
        given.set(options::HEARTBEAT_INTERVAL.key, "1 s", Origin::Default).unwrap();
        assert!(changed_settings(&stored, &given).is_empty());
        given.set(options::PARALLELISM.key, "4", Origin::CommandLine).unwrap();
        given.set(options::CHECKPOINTING_INTERVAL.key, "1 s", Origin::Dynamic).unwrap();
        assert_eq!(changed_settings(&stored, &given), [options::CHECKPOINTING_INTERVAL.key, options::PARALLELISM.key]);
    }
}
