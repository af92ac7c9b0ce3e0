//! The graphs of jobs that have not ended, one file each: what a next leader recovers.
//!
//! Invariant: a graph is replaced or removed only by the store that put or recovered
//! it, so that two leaders never overwrite each other's.
//!
//! Source: Flink's DefaultJobGraphStore.

use std::{collections::BTreeSet, path::PathBuf};

use super::storage::{self, Durability, StorageDir, StorageError};
use crate::{
    base::ids::JobId,
    failpoint,
    graph::job_graph::JobGraph,
    protocol::wire::{self, Format, WireError},
};

/// How a graph is stored; see [`wire`] for the header.
const FORMAT: Format = Format { magic: *b"WSEJ", version: 1, bytes_max: wire::MESSAGE_BYTES_MAX };
const SUFFIX: &str = ".graph";

/// A job graph could not be stored or recovered.
#[derive(Debug, thiserror::Error)]
pub enum JobGraphStoreError {
    /// Somebody else stored a graph under the same id.
    #[error("job {0} was stored by another leader: recover it before replacing it")]
    NotOwned(JobId),
    /// The graph is too long.
    #[error("job {job} cannot be stored: its graph {problem}")]
    Encode {
        /// The job.
        job: JobId,
        /// Why not.
        problem: WireError,
    },
    /// The file is no job graph.
    #[error("the stored graph of job {job} {problem}; remove {} to give the job up", path.display())]
    Damaged {
        /// The job.
        job: JobId,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: WireError,
    },
    /// The file holds another job.
    #[error("{} holds the graph of job {found}: rename it, or remove it to give the job up", path.display())]
    Misplaced {
        /// Id in the graph.
        found: JobId,
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be used.
    #[error("could not use the store of job graphs")]
    Storage(#[from] StorageError),
}

/// The stored graphs.
#[derive(Debug)]
pub struct JobGraphStore {
    directory: PathBuf,
    durability: Durability,
    owned: BTreeSet<JobId>,
}

impl JobGraphStore {
    /// Opens the folder `job-graphs` of a storage directory.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made.
    pub fn open(storage: &StorageDir) -> Result<Self, JobGraphStoreError> {
        let directory = storage.path().join("job-graphs");
        storage::create_dir(&directory)?;
        Ok(Self { directory, durability: storage.durability(), owned: BTreeSet::new() })
    }

    /// True if there is a graph of the job, readable or not.
    pub fn is_stored(&self, job: JobId) -> bool {
        self.directory.join(file_name(job)).exists()
    }

    /// Stores a graph durably.
    ///
    /// # Errors
    /// Returns [`JobGraphStoreError::NotOwned`] if there is one that this store
    /// neither put nor recovered.
    pub fn put(&mut self, graph: &JobGraph) -> Result<(), JobGraphStoreError> {
        let job = graph.job_id;
        let name = file_name(job);
        if !self.owned.contains(&job) && self.directory.join(&name).exists() {
            return Err(JobGraphStoreError::NotOwned(job));
        }
        let bytes = wire::encode_as(FORMAT, graph).map_err(|problem| JobGraphStoreError::Encode { job, problem })?;
        failpoint!("job-graph.put", infallible);
        storage::write_file(&self.directory, &name, &bytes, self.durability)?;
        self.owned.insert(job);
        failpoint!("job-graph.stored", infallible);
        Ok(())
    }

    /// Reads a graph, which this store owns from then on; none: there is none.
    ///
    /// # Errors
    /// Returns an error if there is something that cannot be read.
    pub fn recover(&mut self, job: JobId) -> Result<Option<JobGraph>, JobGraphStoreError> {
        let path = self.directory.join(file_name(job));
        let Some(bytes) = storage::read_file(&path)? else { return Ok(None) };
        let graph: JobGraph = wire::decode_as(FORMAT, &bytes).map_err(|problem| JobGraphStoreError::Damaged {
            job,
            path: path.clone(),
            problem,
        })?;
        if graph.job_id != job {
            return Err(JobGraphStoreError::Misplaced { found: graph.job_id, path });
        }
        self.owned.insert(job);
        Ok(Some(graph))
    }

    /// Ids of all stored graphs.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be listed.
    pub fn job_ids(&self) -> Result<Vec<JobId>, JobGraphStoreError> {
        let names = storage::list_files(&self.directory)?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(SUFFIX)?.parse().ok()).collect())
    }

    /// Removes the graph of a job that ended for good; it need not be there.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub fn remove(&mut self, job: JobId) -> Result<(), JobGraphStoreError> {
        failpoint!("job-graph.remove", infallible);
        storage::remove_file(&self.directory, &file_name(job), self.durability)?;
        self.owned.remove(&job);
        Ok(())
    }
}

fn file_name(job: JobId) -> String {
    format!("{job}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_manager::test_graphs::job_graph;

    fn store() -> (StorageDir, JobGraphStore) {
        let storage = StorageDir::temporary().unwrap();
        let store = JobGraphStore::open(&storage).unwrap();
        (storage, store)
    }

    #[test]
    fn a_stored_graph_is_recovered_by_the_next_store() {
        let (storage, mut store) = store();
        let graph = job_graph(1, &[("a", 2), ("b", 3)]);
        store.put(&graph).unwrap();
        let mut next = JobGraphStore::open(&storage).unwrap();
        assert_eq!(next.job_ids().unwrap(), [graph.job_id]);
        assert_eq!(next.recover(graph.job_id).unwrap().as_ref(), Some(&graph));
        next.remove(graph.job_id).unwrap();
        assert_eq!(next.recover(graph.job_id).unwrap(), None);
        assert_eq!(next.job_ids().unwrap(), []);
    }

    #[test]
    fn only_the_owner_replaces_a_graph() {
        let (storage, mut store) = store();
        let graph = job_graph(1, &[("a", 2)]);
        store.put(&graph).unwrap();
        store.put(&job_graph(1, &[("a", 3)])).unwrap();
        let mut next = JobGraphStore::open(&storage).unwrap();
        let refused = next.put(&graph).unwrap_err().to_string();
        let job = graph.job_id;
        assert_eq!(refused, format!("job {job} was stored by another leader: recover it before replacing it"));
        next.recover(job).unwrap();
        next.put(&graph).unwrap();
    }

    #[track_caller]
    fn check_damage(damage: impl FnOnce(&mut Vec<u8>), expected: &str) {
        let (_storage, mut store) = store();
        let graph = job_graph(1, &[("a", 2)]);
        store.put(&graph).unwrap();
        let path = store.directory.join(file_name(graph.job_id));
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let error = store.recover(graph.job_id).unwrap_err().to_string();
        let job = graph.job_id;
        let give_up = format!("remove {} to give the job up", path.display());
        assert_eq!(error, format!("the stored graph of job {job} {expected}; {give_up}"));
    }

    #[test]
    fn a_damaged_graph_is_refused_with_what_is_wrong() {
        check_damage(|bytes| bytes.truncate(7), "cut off after 7 bytes");
        check_damage(|bytes| bytes[30] ^= 1, "is damaged: its checksum does not fit");
        check_damage(
            |bytes| bytes[4] = 2,
            "has version 2, but this engine reads version 1: use the engine that wrote it",
        );
        check_damage(|bytes| bytes.push(0), "has 1 bytes after its end");
    }

    #[test]
    fn a_graph_under_another_jobs_name_is_refused() {
        let (_storage, mut store) = store();
        let graph = job_graph(1, &[("a", 2)]);
        store.put(&graph).unwrap();
        let other = JobId::from_bytes([2; 16]);
        let path = store.directory.join(file_name(other));
        std::fs::rename(store.directory.join(file_name(graph.job_id)), &path).unwrap();
        let error = store.recover(other).unwrap_err().to_string();
        assert!(error.contains(&format!("holds the graph of job {}", graph.job_id)), "{error}");
    }
}
