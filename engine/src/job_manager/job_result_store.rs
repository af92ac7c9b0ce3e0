//! How jobs ended, one file each: a job with a result is never run again.
//!
//! A result is dirty from when the job ended until all that it left was cleaned up,
//! then clean: `<job>_DIRTY.json` is renamed to `<job>.json`. Of the clean ones the newest
//! stay, by which a job that is submitted again under its id is known.
//!
//! Source: Flink's JobResultStore.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::storage::{self, Durability, StorageDir, StorageError};
use crate::{
    base::{
        clock::Timestamp,
        ids::{BlobDigest, JobId},
        status::JobStatus,
        stream_element::SnapshotLocation,
    },
    failpoint,
    protocol::job_master::FailureCause,
};

const VERSION: u32 = 1;
/// Clean results that stay.
const CLEAN_MAX: usize = 1000;
const DIRTY_SUFFIX: &str = "_DIRTY.json";
const CLEAN_SUFFIX: &str = ".json";

/// How a job ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct JobResult {
    /// The job.
    pub job_id: JobId,
    /// Its name.
    pub job_name: String,
    /// A globally terminal state.
    pub status: JobStatus,
    /// When it was submitted.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Why it failed.
    pub failure: Option<FailureCause>,
    /// What ran.
    #[serde(default)]
    pub program: Option<SubmittedProgram>,
    /// The savepoint that it stopped with.
    #[serde(default)]
    pub stopped_with: Option<SnapshotLocation>,
}

/// What a job ran.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SubmittedProgram {
    /// The plugin.
    pub plugin: BlobDigest,
    /// Arguments of its program.
    pub args: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct StoredResult {
    version: u32,
    result: JobResult,
}

/// A result could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum JobResultStoreError {
    /// The job has a result.
    #[error("job {0} has a result already")]
    Exists(JobId),
    /// The job has no result to mark as clean.
    #[error("job {0} has no result")]
    Missing(JobId),
    /// The file is no result.
    #[error("the result of job {job} in {} is damaged: {problem}; remove it to let the job run again", path.display())]
    Damaged {
        /// The job.
        job: JobId,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The file cannot be used.
    #[error("could not use the store of job results")]
    Storage(#[from] StorageError),
}

/// The stored results.
#[derive(Debug)]
pub struct JobResultStore {
    directory: PathBuf,
    durability: Durability,
    clean_max: usize,
}

impl JobResultStore {
    /// Opens the folder `job-results` of a storage directory.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made.
    pub fn open(storage: &StorageDir) -> Result<Self, JobResultStoreError> {
        let directory = storage.path().join("job-results");
        storage::create_dir(&directory)?;
        Ok(Self { directory, durability: storage.durability(), clean_max: CLEAN_MAX })
    }

    /// Stores how a job ended, durably.
    ///
    /// # Errors
    /// Returns [`JobResultStoreError::Exists`] if it has a result, dirty or clean.
    pub fn create_dirty(&self, result: JobResult) -> Result<(), JobResultStoreError> {
        let job = result.job_id;
        if self.has_result(job) {
            return Err(JobResultStoreError::Exists(job));
        }
        let stored = StoredResult { version: VERSION, result };
        let bytes = serde_json::to_vec_pretty(&stored).expect("a result has no map with keys that are not text");
        failpoint!("job-result.dirty", infallible);
        storage::write_file(&self.directory, &dirty_name(job), &bytes, self.durability)?;
        failpoint!("job-result.stored", infallible);
        Ok(())
    }

    /// Notes that nothing is left to clean up, and forgets the oldest jobs of which that holds if they are too
    /// many. Repeating it does no harm.
    ///
    /// # Errors
    /// Returns [`JobResultStoreError::Missing`] if there is no result, or an error if a file cannot be used.
    pub fn mark_clean(&self, job: JobId) -> Result<(), JobResultStoreError> {
        if self.directory.join(clean_name(job)).exists() {
            return Ok(());
        }
        if !self.directory.join(dirty_name(job)).exists() {
            return Err(JobResultStoreError::Missing(job));
        }
        failpoint!("job-result.clean", infallible);
        storage::rename_file(&self.directory, &dirty_name(job), &clean_name(job), self.durability)?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> Result<(), JobResultStoreError> {
        let mut names = storage::list_files(&self.directory)?;
        names.retain(|name| name.strip_suffix(CLEAN_SUFFIX).is_some_and(|job| job.parse::<JobId>().is_ok()));
        let Some(surplus) = names.len().checked_sub(self.clean_max).filter(|surplus| 0 < *surplus) else {
            return Ok(());
        };
        // What cannot be looked at is as old as can be.
        names.sort_by_cached_key(|name| self.directory.join(name).metadata().and_then(|file| file.modified()).ok());
        for name in &names[..surplus] {
            storage::remove_file(&self.directory, name, self.durability)?;
        }
        Ok(())
    }

    /// True if the job ended, cleaned up or not.
    pub fn has_result(&self, job: JobId) -> bool {
        self.directory.join(clean_name(job)).exists() || self.directory.join(dirty_name(job)).exists()
    }

    /// How the job ended; none: it has not.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn result(&self, job: JobId) -> Result<Option<JobResult>, JobResultStoreError> {
        for name in [clean_name(job), dirty_name(job)] {
            let path = self.directory.join(name);
            let Some(bytes) = storage::read_file(&path)? else { continue };
            let damaged = |problem: String| JobResultStoreError::Damaged { job, path: path.clone(), problem };
            let stored: StoredResult = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
            if stored.version != VERSION {
                return Err(damaged(format!("version {}, where {VERSION} is read", stored.version)));
            }
            if stored.result.job_id != job {
                return Err(damaged(format!("it is of job {}", stored.result.job_id)));
            }
            return Ok(Some(stored.result));
        }
        Ok(None)
    }

    /// Jobs that ended and were not cleaned up.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be listed.
    pub fn dirty_jobs(&self) -> Result<Vec<JobId>, JobResultStoreError> {
        let names = storage::list_files(&self.directory)?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(DIRTY_SUFFIX)?.parse().ok()).collect())
    }
}

fn dirty_name(job: JobId) -> String {
    format!("{job}{DIRTY_SUFFIX}")
}

fn clean_name(job: JobId) -> String {
    format!("{job}{CLEAN_SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(number: u8) -> JobResult {
        JobResult {
            job_id: JobId::from_bytes([number; 16]),
            job_name: "words".to_owned(),
            status: JobStatus::Finished,
            started: Timestamp(1),
            ended: Timestamp(2),
            failure: None,
            program: Some(SubmittedProgram { plugin: BlobDigest::from_bytes([1; 32]), args: vec!["--a".to_owned()] }),
            stopped_with: Some(SnapshotLocation("/points/savepoint-070707-1".to_owned())),
        }
    }

    fn store() -> (StorageDir, JobResultStore) {
        let storage = StorageDir::temporary().unwrap();
        let store = JobResultStore::open(&storage).unwrap();
        (storage, store)
    }

    #[test]
    fn a_result_is_dirty_and_then_clean_and_stays() {
        let (_storage, store) = store();
        let job = result(1).job_id;
        assert!(!store.has_result(job));
        assert_eq!(store.result(job).unwrap(), None);
        store.create_dirty(result(1)).unwrap();
        assert!(store.has_result(job));
        assert_eq!(store.dirty_jobs().unwrap(), [job]);
        store.mark_clean(job).unwrap();
        store.mark_clean(job).unwrap();
        assert!(store.has_result(job));
        assert_eq!(store.dirty_jobs().unwrap(), []);
        assert_eq!(store.result(job).unwrap(), Some(result(1)));
        let names = storage::list_files(&store.directory).unwrap();
        assert_eq!(names, ["01010101010101010101010101010101.json"]);
    }

    #[test]
    fn of_clean_results_the_newest_stay_and_of_dirty_ones_all() {
        let (_storage, mut store) = store();
        store.clean_max = 3;
        store.create_dirty(result(100)).unwrap();
        for number in 1..=10 {
            // The order of the ids is not that of the ends.
            let result = result(50 - number);
            store.create_dirty(result.clone()).unwrap();
            let file = std::fs::File::options().append(true).open(store.directory.join(dirty_name(result.job_id)));
            let ended = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(number));
            file.and_then(|file| file.set_modified(ended)).unwrap();
            store.mark_clean(result.job_id).unwrap();
        }
        let names = storage::list_files(&store.directory).unwrap();
        let expected = [40, 41, 42].map(|number| clean_name(result(number).job_id));
        assert_eq!(names, [&expected[..], &[dirty_name(result(100).job_id)]].concat());
    }

    #[test]
    fn a_second_result_and_a_cleanup_without_one_are_errors() {
        let (_storage, store) = store();
        store.create_dirty(result(1)).unwrap();
        let job = result(1).job_id;
        let exists = format!("job {job} has a result already");
        assert_eq!(store.create_dirty(result(1)).unwrap_err().to_string(), exists);
        store.mark_clean(job).unwrap();
        assert_eq!(store.create_dirty(result(1)).unwrap_err().to_string(), exists);
        let other = result(2).job_id;
        assert_eq!(store.mark_clean(other).unwrap_err().to_string(), format!("job {other} has no result"));
    }

    #[test]
    fn a_damaged_result_is_refused_with_what_is_wrong() {
        let (_storage, store) = store();
        store.create_dirty(result(1)).unwrap();
        let job = result(1).job_id;
        let path = store.directory.join(dirty_name(job));
        std::fs::write(&path, "{").unwrap();
        let error = store.result(job).unwrap_err().to_string();
        let begin = format!("the result of job {job} in {} is damaged: EOF while parsing", path.display());
        assert!(error.starts_with(&begin), "{error}");
        assert!(error.ends_with("remove it to let the job run again"), "{error}");
    }
}
