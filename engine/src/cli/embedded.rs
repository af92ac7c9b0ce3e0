//! A cluster in this process, for `engine submit` without a JobManager and for
//! `engine cluster`.

use std::sync::Arc;

use crate::{
    base::{clock::Clock, config::Configuration},
    job_manager::job_master_runner::JobMasterFactory,
    mini_cluster::{ClusterError, MiniCluster, MiniClusterConfig, Storage, TaskStarterFactory},
    protocol::rpc::Transport,
    wasm::PluginRuntime,
};

/// What of a cluster depends on plugins and connectors.
pub struct ClusterParts {
    /// Makes JobMasters.
    pub job_master_factory: JobMasterFactory,
    /// Starts tasks.
    pub task_starter_factory: TaskStarterFactory,
}

/// Makes the parts of a cluster with the given settings, whose tasks run plugins in the given runtime.
pub type ClusterWiring = fn(&Configuration, &Arc<PluginRuntime>) -> ClusterParts;

/// How large a cluster is.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSize {
    pub(crate) task_executors: u32,
    pub(crate) slots_per_task_executor: u32,
    pub(crate) storage: Storage,
}

/// Starts a cluster in the runtime of the caller.
pub(crate) async fn start(
    configuration: &Configuration,
    size: ClusterSize,
    plugins: &Arc<PluginRuntime>,
    wiring: ClusterWiring,
) -> Result<MiniCluster, ClusterError> {
    let ClusterParts { job_master_factory, task_starter_factory } = wiring(configuration, plugins);
    MiniCluster::start(MiniClusterConfig {
        configuration: configuration.clone(),
        task_executors: size.task_executors,
        slots_per_task_executor: size.slots_per_task_executor,
        clock: Clock::System,
        storage: size.storage,
        transport: Transport::Direct,
        job_master_factory,
        task_starter_factory,
    })
    .await
}
