//! What an earlier `engine submit` left of a job in its state directory: a job that runs goes on
//! from its latest checkpoint, one that has finished is not run again.

use std::path::Path;

use super::CliError;
use crate::{
    base::ids::{BlobDigest, JobId},
    graph::job_graph::JobGraph,
    job_manager::{
        job_graph_store::JobGraphStore,
        job_result_store::{JobResult, JobResultStore},
        storage::StorageDir,
    },
};

/// What there is of a job.
pub(crate) enum StoredJob {
    /// Nothing.
    New,
    /// It has not ended.
    Running(Box<JobGraph>),
    /// It has ended; if it is not clean, something is left to clean up.
    Ended(JobResult, bool),
}

impl StoredJob {
    /// Looks into a directory, which no other process may have.
    pub(crate) fn look(directory: &Path, job: JobId) -> Result<Self, CliError> {
        let storage = StorageDir::open(directory).map_err(CliError::failed)?;
        let results = JobResultStore::open(&storage).map_err(CliError::failed)?;
        if let Some(result) = results.result(job).map_err(CliError::failed)? {
            let is_clean = !results.dirty_jobs().map_err(CliError::failed)?.contains(&job);
            return Ok(Self::Ended(result, is_clean));
        }
        let mut graphs = JobGraphStore::open(&storage).map_err(CliError::failed)?;
        let graph = graphs.recover(job).map_err(CliError::failed)?;
        Ok(graph.map_or(Self::New, |graph| Self::Running(Box::new(graph))))
    }

    /// Refuses another program under the id of this one.
    pub(crate) fn check_program(&self, job: JobId, plugin: BlobDigest, args: &[String]) -> Result<(), CliError> {
        let known = match self {
            Self::New => None,
            Self::Running(graph) => Some((graph.program.plugin, &graph.program.args)),
            Self::Ended(result, _) => result.program.as_ref().map(|program| (program.plugin, &program.args)),
        };
        let Some((known_plugin, known_args)) = known else { return Ok(()) };
        let other = if known_plugin != plugin {
            "another plugin".to_owned()
        } else if known_args != args {
            format!(
                "other arguments ({})",
                if known_args.is_empty() { "none".to_owned() } else { known_args.join(" ") }
            )
        } else {
            return Ok(());
        };
        Err(CliError::usage(anyhow::anyhow!(
            "job {job} was submitted with {other}: submit the same again, or choose another --job-id"
        )))
    }
}
