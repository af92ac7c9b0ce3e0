//! Accepts jobs and runs them: Dispatcher, one JobMaster per job, ResourceManager,
//! and what they keep on disk. Never imports `task_manager`: the two meet in `protocol`.

pub mod leader_election;
pub mod blob_store;
pub mod job_graph_store;
pub mod job_result_store;
pub mod storage;
pub mod terminated_jobs;
pub mod job_master;
pub mod job_master_runner;
pub mod dispatcher;
pub mod resource_manager;
#[cfg(test)]
pub(crate) mod test_graphs;
