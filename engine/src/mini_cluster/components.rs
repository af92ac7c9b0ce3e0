//! The JobMasters and tasks of a real cluster: what [`MiniClusterConfig`] is given
//! outside of tests.
//!
//! [`MiniClusterConfig`]: super::MiniClusterConfig

use std::sync::Arc;

use super::TaskStarterFactory;
use crate::{
    base::{clock::Clock, config::Configuration, ids::BlobDigest},
    connector::{self, Permissions},
    job_manager::{
        blob_store::BlobStore,
        job_master::{Connectors, JobMaster, JobMasterParts},
        job_master_runner::JobMasterFactory,
    },
    protocol::{
        job_master::{FailureCause, Recoverability},
        rpc::{Endpoint, Fence},
    },
    task_manager::{
        network::ResultPartitionManager,
        operator::{NativeConnectors, SharedPlugin},
        task::{self, PluginProvider, TaskServices},
    },
    wasm::PluginRuntime,
};

/// Makes JobMasters that reach the native connectors.
pub fn job_master_factory(configuration: Configuration, clock: Clock) -> JobMasterFactory {
    Arc::new(move |job_graph, job_master_id| {
        let job_id = job_graph.job_id;
        let share = |permissions: &Permissions| Arc::new(permissions.clone());
        let connectors = Connectors {
            enumerators: Arc::new(move |spec, parallelism, record_type, permissions| {
                connector::create_enumerator(spec, parallelism, record_type, share(permissions))
            }),
            committers: Arc::new(move |spec, _, _, permissions| {
                connector::create_committer(spec, job_id, share(permissions))
            }),
        };
        let parts = JobMasterParts {
            job_graph,
            job_master_id,
            submitted: clock.now(),
            configuration: configuration.clone(),
            connectors,
            dispatcher: Fence::None,
        };
        match JobMaster::new(parts) {
            Ok(job_master) => Ok(Box::new(job_master) as Box<dyn Endpoint + Send>),
            Err(error) => Err(unrecoverable("invalid-job", &error)),
        }
    })
}

/// Starts tasks that run plugins in `runtime` and reach the native connectors. The
/// tasks of one TaskExecutor meet in a [`ResultPartitionManager`] of their own, and
/// so must those of one job: all TaskExecutors of a process share it.
pub fn task_starter_factory(runtime: Arc<PluginRuntime>) -> TaskStarterFactory {
    let partitions = Arc::new(ResultPartitionManager::default());
    Arc::new(move |context| {
        let blobs = Arc::clone(&context.blobs);
        let artifacts = Arc::clone(&context.blobs);
        let runtime = Arc::clone(&runtime);
        let services = TaskServices {
            partitions: Arc::clone(&partitions),
            plugins: Arc::new(JobPlugins {
                runtime: Arc::clone(&runtime),
                blobs: Arc::clone(&blobs),
                name: String::new(),
            }),
            connectors: Arc::new(NativeConnectors),
            artifacts: Arc::new(move |artifact| Ok(artifacts.path(artifact.digest))),
            guest_stack_bytes: runtime.stack_bytes_max(),
            clock: context.clock,
            events: context.events,
        };
        Arc::new(move |information, deployment| {
            let plugins = JobPlugins {
                runtime: Arc::clone(&runtime),
                blobs: Arc::clone(&blobs),
                name: information.program.plugin_name.clone(),
            };
            task::start(information, deployment, &TaskServices { plugins: Arc::new(plugins), ..services.clone() })
        })
    })
}

/// The plugins of one job, from the blob store.
struct JobPlugins {
    runtime: Arc<PluginRuntime>,
    blobs: Arc<BlobStore>,
    /// File name of the plugin, for messages.
    name: String,
}

impl PluginProvider for JobPlugins {
    fn plugin(&self, digest: BlobDigest) -> Result<SharedPlugin, FailureCause> {
        if let Some(compiled) = self.runtime.compiled(digest, &self.name) {
            return Ok(Arc::new(compiled));
        }
        let content = self.blobs.get(digest).map_err(|error| unrecoverable("blob", &error))?;
        let admitted = self.runtime.admit(&content, &self.name).map_err(|error| unrecoverable(error.code(), &error))?;
        let compiled = self.runtime.compile(&admitted).map_err(|error| unrecoverable(error.code(), &error))?;
        Ok(Arc::new(compiled))
    }
}

fn unrecoverable(code: &str, error: &dyn std::error::Error) -> FailureCause {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    FailureCause {
        code: code.to_owned(),
        message,
        detail: String::new(),
        recoverability: Recoverability::Unrecoverable,
    }
}
