//! A cluster in this process, for `engine submit` without a JobManager and for
//! `engine cluster`.

use std::sync::Arc;

use crate::{
    base::{clock::Clock, config::Configuration},
    mini_cluster::{ClusterError, MiniCluster, MiniClusterConfig, Storage, components},
    protocol::rpc::Transport,
    wasm::PluginRuntime,
};

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
) -> Result<MiniCluster, ClusterError> {
    MiniCluster::start(MiniClusterConfig {
        configuration: configuration.clone(),
        task_executors: size.task_executors,
        slots_per_task_executor: size.slots_per_task_executor,
        clock: Clock::System,
        storage: size.storage,
        transport: Transport::Direct,
        job_master_factory: components::job_master_factory(configuration.clone(), Clock::System),
        task_starter_factory: components::task_starter_factory(Arc::clone(plugins)),
    })
    .await
}
