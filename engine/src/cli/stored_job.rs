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
    Ended(Box<JobResult>, bool),
}

impl StoredJob {
    /// Looks into a directory, which no other process may have.
    pub(crate) fn look(directory: &Path, job: JobId) -> Result<Self, CliError> {
        let storage = StorageDir::open(directory).map_err(CliError::failed)?;
        let results = JobResultStore::open(&storage).map_err(CliError::failed)?;
        if let Some(result) = results.result(job).map_err(CliError::failed)? {
            let is_clean = !results.dirty_jobs().map_err(CliError::failed)?.contains(&job);
            return Ok(Self::Ended(Box::new(result), is_clean));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::{clock::Timestamp, status::JobStatus},
        job_manager::{job_result_store::SubmittedProgram, test_graphs::job_graph},
    };

    fn message(error: CliError) -> String {
        match error {
            CliError::Usage(error) => error.to_string(),
            CliError::Failed(error) => format!("{error:#}"),
            CliError::Exit(code) => panic!("exit {code}"),
        }
    }

    #[test]
    fn a_directory_tells_of_the_jobs_that_were_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let graph = job_graph(1, &[("a", 1)]);
        let (job, other) = (graph.job_id, JobId::from_bytes([9; 16]));
        assert!(matches!(StoredJob::look(directory.path(), job), Ok(StoredJob::New)));
        let storage = StorageDir::open(directory.path()).unwrap();
        JobGraphStore::open(&storage).unwrap().put(&graph).unwrap();
        let locked = StoredJob::look(directory.path(), job).err().map(message).unwrap();
        assert!(locked.contains("is in use by another process"), "{locked}");
        drop(storage);
        let stored = StoredJob::look(directory.path(), job).ok().unwrap();
        assert!(matches!(&stored, StoredJob::Running(found) if **found == graph));
        assert!(matches!(StoredJob::look(directory.path(), other), Ok(StoredJob::New)));
        let (plugin, args) = (graph.program.plugin, graph.program.args.clone());
        assert!(stored.check_program(job, plugin, &args).is_ok());
        let refused = stored.check_program(job, BlobDigest::from_bytes([9; 32]), &args).err().map(message).unwrap();
        assert!(refused.starts_with(&format!("job {job} was submitted with another plugin:")), "{refused}");
        let refused = stored.check_program(job, plugin, &["--x".to_owned()]).err().map(message).unwrap();
        assert!(refused.contains("with other arguments ("), "{refused}");

        let storage = StorageDir::open(directory.path()).unwrap();
        let results = JobResultStore::open(&storage).unwrap();
        let program = Some(SubmittedProgram { plugin, args: vec!["--input".to_owned()] });
        let (started, ended) = (Timestamp(1), Timestamp(2));
        let (job_name, status) = ("a".to_owned(), JobStatus::Finished);
        results
            .create_dirty(JobResult {
                job_id: job,
                job_name,
                status,
                started,
                ended,
                failure: None,
                program,
                stopped_with: None,
            })
            .unwrap();
        drop(storage);
        let stored = StoredJob::look(directory.path(), job).ok().unwrap();
        assert!(matches!(&stored, StoredJob::Ended(result, false) if result.status == JobStatus::Finished));
        assert!(stored.check_program(job, plugin, &[]).is_err());
        assert!(stored.check_program(job, plugin, &["--input".to_owned()]).is_ok());
    }
}
