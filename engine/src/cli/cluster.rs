//! `engine cluster`: JobManager and TaskExecutors in one process, served over REST.

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::{
    CliError, GlobalOptions, Outcome, Output,
    embedded::{self, ClusterSize},
    logging, say,
    settings::{self, ExplicitSettings},
    submit,
};
use crate::{
    base::{
        clock::Clock,
        config::{Configuration, options},
        ids::BlobDigest,
        option_scope::Scope,
    },
    client::{
        ClientError,
        grants::{ExplicitGrants, Site},
        program::{Program, Submission},
    },
    graph::job_graph::JobGraph,
    job_manager::blob_store::BlobStore,
    mini_cluster::{MiniCluster, Storage},
    rest::{Blobs, PlanRequest, ProgramError, Programs, RestServices, log_buffer::LogBuffer, server::RestServer},
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// Least number of slots of a TaskExecutor for which none was configured.
const SLOTS_MIN: usize = 8;

/// `engine cluster`.
#[derive(Debug, Args)]
#[command(
    after_help = "Jobs open only what the options --allow-read, --allow-write and --allow-net, or sandbox.allow-* \
    in the configuration, name. REST listens on loopback unless --bind says otherwise: it asks nobody who they are. With --output json, its address is printed as a line {\"rest-url\": \"http://...\"} as \
    soon as it is served.\n\n\
    Examples:\n  \
    engine cluster --allow-read /data --allow-write /tmp/out\n  \
    engine cluster --port 0 --slots 4\n  \
    engine cluster -D cluster.storage-dir=/var/lib/engine -D heartbeat.timeout='20 s'"
)]
pub(crate) struct ClusterOptions {
    /// Address that REST listens on.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Port that REST listens on; 0: any.
    #[arg(long)]
    port: Option<u32>,
    /// Slots of each TaskExecutor.
    #[arg(long, value_name = "COUNT")]
    slots: Option<u32>,
    /// Number of TaskExecutors.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    task_executors: u32,
    /// Lets jobs read a file, or a directory with all below it; may be repeated.
    #[arg(long, value_name = "PATH")]
    allow_read: Vec<String>,
    /// Lets jobs write into directories below this one; may be repeated.
    #[arg(long, value_name = "DIR")]
    allow_write: Vec<String>,
    /// Lets jobs connect to an address or listen on it; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    allow_net: Vec<String>,
}

/// The option's values behind those of the configuration.
fn joined(configured: Option<String>, added: &[String], separator: char) -> Option<String> {
    let all: Vec<String> = configured.into_iter().chain(added.iter().cloned()).collect();
    (!added.is_empty()).then(|| all.join(&separator.to_string()))
}

pub(crate) fn run(cluster: ClusterOptions, global: &GlobalOptions) -> Outcome {
    let mut explicit = ExplicitSettings::default();
    explicit.add("--bind", &options::REST_ADDRESS, cluster.bind.as_ref());
    explicit.add("--port", &options::REST_PORT, cluster.port);
    explicit.add("--slots", &options::SLOTS, cluster.slots);
    let configured = settings::load(global, &explicit)?;
    let (read, write, net) = (&options::ALLOW_READ, &options::ALLOW_WRITE, &options::ALLOW_NET);
    explicit.add("--allow-read", read, joined(configured.get(read), &cluster.allow_read, ':'));
    explicit.add("--allow-write", write, joined(configured.get(write), &cluster.allow_write, ':'));
    explicit.add("--allow-net", net, joined(configured.get(net), &cluster.allow_net, ','));
    let configuration = settings::load(global, &explicit)?;
    for problem in submit::missing_roots(&cluster.allow_read) {
        // It may come later.
        say(&format!("warning: {problem}"));
    }
    let log = Arc::new(LogBuffer::default());
    logging::start(global, "info", Some(Arc::clone(&log)))?;
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("control-plane").enable_all().build()?;
    let outcome = runtime.block_on(serve(&configuration, cluster.task_executors, &plugins, log, global.output));
    runtime.shutdown_background();
    outcome
}

fn slots(configuration: &Configuration) -> u32 {
    if configuration.is_set(&options::SLOTS) {
        return configuration.get(&options::SLOTS);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores.max(SLOTS_MIN)).unwrap_or(u32::MAX)
}

async fn serve(
    configuration: &Configuration,
    task_executors: u32,
    plugins: &Arc<PluginRuntime>,
    log: Arc<LogBuffer>,
    output: Output,
) -> Outcome {
    let storage_dir = configuration.get(&options::STORAGE_DIR).map(PathBuf::from);
    // Uploads are kept where the cluster keeps its blobs, and go with a temporary directory.
    let temporary = tempfile::tempdir()?;
    let jars_dir = storage_dir.as_deref().unwrap_or(temporary.path()).join("plugins");
    let size = ClusterSize {
        task_executors,
        slots_per_task_executor: slots(configuration),
        storage: storage_dir.map_or(Storage::Temporary, Storage::Directory),
        printed_rows: embedded::printed_rows(output),
    };
    let cluster = embedded::start(configuration, size, plugins).await.map_err(CliError::failed)?;
    let services = RestServices {
        gateway: cluster.gateway(),
        blobs: Arc::new(ClusterBlobs(cluster.blobs())),
        programs: Arc::new(SandboxPrograms { plugins: Arc::clone(plugins), configuration: configuration.clone() }),
        configuration: configuration.clone(),
        jars_dir,
        clock: Clock::System,
        log,
    };
    let rest = match RestServer::start(services).await {
        Ok(rest) => rest,
        Err(error) => {
            end(cluster).await;
            return Err(CliError::failed(error));
        }
    };
    let url = format!("http://{}", rest.address());
    if output == Output::Json {
        super::print(&serde_json::json!({ "rest-url": url }).to_string())?;
    }
    say(&format!("REST is served at {url}; Ctrl-C ends the cluster"));
    let outcome = tokio::select! {
        ended = cluster.terminated() => ended.map_err(CliError::failed),
        ended = interrupted() => ended,
    };
    rest.shutdown().await;
    end(cluster).await;
    outcome
}

async fn end(cluster: MiniCluster) {
    if let Err(error) = cluster.shutdown().await {
        tracing::warn!("{:#}", anyhow::Error::from(error));
    }
}

/// Waits for Ctrl-C or a request to terminate.
async fn interrupted() -> Outcome {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map_err(CliError::from),
        _ = terminate.recv() => Ok(()),
    }
}

/// The blob store of the cluster, for REST.
struct ClusterBlobs(Arc<BlobStore>);

/// An error and its causes in a line.
fn in_a_line(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn program_error(error: ClientError) -> ProgramError {
    ProgramError { code: error.code().map(str::to_owned), message: in_a_line(error) }
}

impl Blobs for ClusterBlobs {
    fn put(&self, bytes: &[u8]) -> Result<BlobDigest, String> {
        self.0.put(bytes).map_err(in_a_line)
    }

    fn get(&self, digest: BlobDigest) -> Result<Vec<u8>, String> {
        self.0.get(digest).map_err(in_a_line)
    }

    fn discard(&self, digest: BlobDigest) -> Result<(), String> {
        self.0.discard_upload(digest).map_err(in_a_line)
    }
}

/// Plans programs with the settings and the grants of the cluster.
struct SandboxPrograms {
    plugins: Arc<PluginRuntime>,
    configuration: Configuration,
}

impl SandboxPrograms {
    fn load(&self, plugin: &[u8], name: &str) -> Result<Program, ClientError> {
        Program::load(&self.plugins, bytes::Bytes::copy_from_slice(plugin), name)
    }
}

impl Programs for SandboxPrograms {
    fn admit(&self, plugin: &[u8], name: &str) -> Result<(), ProgramError> {
        self.plugins.admit(plugin, name).map(drop).map_err(|error| program_error(error.into()))
    }

    fn describe(&self, plugin: &[u8], name: &str) -> Result<String, ProgramError> {
        let program = self.load(plugin, name).map_err(program_error)?;
        program.describe(&self.configuration).map_err(program_error)
    }

    fn plan(&self, request: PlanRequest) -> Result<JobGraph, ProgramError> {
        let program = self.load(&request.plugin, &request.plugin_name).map_err(program_error)?;
        let mut configuration = request.configuration;
        configuration.remove(|key| Scope::of(key) == Scope::Owner);
        configuration.merge(&self.configuration);
        let planned = program.plan(Submission {
            job: request.job,
            args: request.args,
            explicit: ExplicitGrants::from_configuration(&self.configuration),
            configuration,
            site: Site::Here,
            artifacts: request.artifacts,
        });
        planned.map(|planned| planned.job_graph).map_err(program_error)
    }
}
