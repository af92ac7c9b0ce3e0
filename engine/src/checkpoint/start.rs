//! Whether a job can start from the checkpoint or savepoint that it names.

use super::{CheckpointStorage, assign_state};
use crate::{
    base::{config::options, stream_element::SnapshotLocation},
    graph::job_graph::JobGraph,
};

/// Checks that what the job is to go on from is there, can be read and fits, before the job exists: one that fails
/// for a slip of the pen would take its id with it. Reads files.
///
/// # Errors
/// Returns what is wrong and what to do, in a line.
pub fn check_start(job_graph: &JobGraph) -> Result<(), String> {
    let Some(path) = job_graph.configuration.get(&options::RECOVERY_PATH) else { return Ok(()) };
    let refused = |error: anyhow::Error| format!("the job cannot start from {path}: {error:#}");
    let (location, id) = SnapshotLocation::resolve(&path);
    let read = CheckpointStorage::open(location.clone()).and_then(|storage| {
        let metadata = storage.load_metadata(id)?;
        storage.verify(&metadata)?;
        Ok(metadata)
    });
    let unreadable = |error| anyhow::anyhow!("{error:#}; name a checkpoint (…/chk-N) or a savepoint that is whole");
    let metadata = read.map_err(|error| refused(unreadable(anyhow::Error::from(error))))?;
    let allow = job_graph.configuration.get(&options::RECOVERY_IGNORE_UNCLAIMED);
    assign_state(&metadata, &location, &job_graph.vertices, allow).map_err(|error| refused(error.into()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::config::Origin, job_manager::test_graphs::job_graph};

    #[test]
    fn a_savepoint_that_is_not_there_is_refused_before_the_job_exists() {
        let mut graph = job_graph(1, &[("a", 1)]);
        assert_eq!(check_start(&graph), Ok(()));
        graph.configuration.set(options::RECOVERY_PATH.key, "/no/such/savepoint", Origin::CommandLine).unwrap();
        let message = check_start(&graph).unwrap_err();
        assert!(message.starts_with("the job cannot start from /no/such/savepoint: "), "{message}");
        assert!(message.contains("/_metadata is missing; name a checkpoint"), "{message}");
    }
}
