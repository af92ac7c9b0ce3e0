//! A cluster in this process, for `engine submit` without a JobManager and for
//! `engine cluster`.

use std::sync::Arc;

use super::Output;
use crate::{
    base::{clock::Clock, config::Configuration},
    mini_cluster::{ClusterError, MiniCluster, MiniClusterConfig, Storage, components},
    protocol::rpc::Transport,
    task_manager::operator::PrintedRows,
    wasm::PluginRuntime,
};

/// How large a cluster is, and where it leaves what.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSize {
    pub(crate) task_executors: u32,
    pub(crate) slots_per_task_executor: u32,
    pub(crate) storage: Storage,
    pub(crate) printed_rows: PrintedRows,
}

/// Where print sinks write: a script that reads JSON reads nothing else.
pub(crate) fn printed_rows(output: Output) -> PrintedRows {
    match output {
        Output::Text => PrintedRows::AsConfigured,
        Output::Json => PrintedRows::ToStandardError,
    }
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
        task_starter_factory: components::task_starter_factory(Arc::clone(plugins), size.printed_rows),
    })
    .await
}
