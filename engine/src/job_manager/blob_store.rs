//! Plugins and artifacts by their SHA-256 digest, one file each.
//!
//! A blob is kept as long as somebody refers to it: an upload that was not discarded,
//! or a job. Both are counted in memory only: after a restart the recovered jobs refer
//! to theirs again, and what nobody refers to is removed as an orphan.
//!
//! Invariants: a blob's file holds exactly the bytes of its digest, which every read
//! checks; a blob that is referred to is never removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest, Sha256};

use super::storage::{self, Durability, StorageDir, StorageError};
use crate::base::ids::{BlobDigest, JobId};

/// A blob could not be stored, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is no such blob.
    #[error("there is no blob {0}: upload it again")]
    Missing(BlobDigest),
    /// The file holds something else.
    #[error("blob {digest} is damaged: remove {} and upload it again", path.display())]
    Damaged {
        /// What it should be.
        digest: BlobDigest,
        /// Where it is.
        path: PathBuf,
    },
    /// The file cannot be used.
    #[error("could not use the blob store")]
    Storage(#[from] StorageError),
}

/// The blobs of a cluster; shared by all that store or read some.
#[derive(Debug)]
pub struct BlobStore {
    directory: PathBuf,
    durability: Durability,
    /// A lock and no message: readers are task threads as well as loops. It is held
    /// while a file is removed, so that nobody refers to it meanwhile.
    references: Mutex<References>,
}

#[derive(Debug, Default)]
struct References {
    /// Number of uploads that were not discarded.
    uploads: BTreeMap<BlobDigest, u64>,
    jobs: BTreeMap<JobId, BTreeSet<BlobDigest>>,
}

impl References {
    fn contains(&self, digest: &BlobDigest) -> bool {
        self.uploads.contains_key(digest) || self.jobs.values().any(|digests| digests.contains(digest))
    }
}

impl BlobStore {
    /// Opens the blobs in the folder `blobs` of a storage directory.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made.
    pub fn open(storage: &StorageDir) -> Result<Self, BlobError> {
        let directory = storage.path().join("blobs");
        storage::create_dir(&directory)?;
        Ok(Self { directory, durability: storage.durability(), references: Mutex::default() })
    }

    /// Digest under which bytes are stored.
    pub fn digest(bytes: &[u8]) -> BlobDigest {
        BlobDigest::from_bytes(Sha256::digest(bytes).into())
    }

    /// Stores a blob, which stays until [`BlobStore::discard_upload`] was called as
    /// often as this and no job refers to it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written; nothing is left then.
    pub fn put(&self, bytes: &[u8]) -> Result<BlobDigest, BlobError> {
        let digest = Self::digest(bytes);
        *self.lock().uploads.entry(digest).or_default() += 1;
        let stored = match self.get(digest) {
            Ok(_) => Ok(()),
            Err(BlobError::Missing(_) | BlobError::Damaged { .. } | BlobError::Storage(_)) => {
                storage::write_file(&self.directory, &digest.to_string(), bytes, self.durability)
            }
        };
        match stored {
            Ok(()) => Ok(digest),
            Err(error) => {
                self.discard_upload(digest)?;
                Err(error.into())
            }
        }
    }

    /// Reads a blob and checks it.
    ///
    /// # Errors
    /// Returns an error if it is missing, damaged or cannot be read.
    pub fn get(&self, digest: BlobDigest) -> Result<Vec<u8>, BlobError> {
        let path = self.path(digest);
        let bytes = storage::read_file(&path)?.ok_or(BlobError::Missing(digest))?;
        if Self::digest(&bytes) == digest { Ok(bytes) } else { Err(BlobError::Damaged { digest, path }) }
    }

    /// The file of a blob, for readers that take a path; [`BlobStore::get`] says
    /// whether it is there and whole.
    pub fn path(&self, digest: BlobDigest) -> PathBuf {
        self.directory.join(digest.to_string())
    }

    /// Folder that holds the blobs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes back one upload; removes the blob if nobody else refers to it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub fn discard_upload(&self, digest: BlobDigest) -> Result<(), BlobError> {
        let mut references = self.lock();
        match references.uploads.get_mut(&digest) {
            Some(uploads) if 1 < *uploads => {
                *uploads -= 1;
                return Ok(());
            }
            Some(_) => {
                references.uploads.remove(&digest);
            }
            None => {}
        }
        self.remove_unless_referenced(&references, digest)
    }

    /// Makes a job refer to blobs, once all of them were found whole.
    ///
    /// # Errors
    /// Returns an error if one is missing or damaged; the job refers to none then.
    pub fn reference(&self, job: JobId, digests: BTreeSet<BlobDigest>) -> Result<(), BlobError> {
        // Referred to first, so that none is removed while they are checked.
        let former = self.lock().jobs.insert(job, digests.clone());
        let checked = digests.iter().try_for_each(|digest| self.get(*digest).map(|_| ()));
        if checked.is_err() {
            let mut references = self.lock();
            match former {
                Some(former) => references.jobs.insert(job, former),
                None => references.jobs.remove(&job),
            };
        }
        checked
    }

    /// What a job refers to.
    pub fn references(&self, job: JobId) -> BTreeSet<BlobDigest> {
        self.lock().jobs.get(&job).cloned().unwrap_or_default()
    }

    /// Makes a job refer to blobs, of which some may be missing or damaged.
    pub fn keep(&self, job: JobId, digests: BTreeSet<BlobDigest>) {
        self.lock().jobs.insert(job, digests);
    }

    /// Ends a job's references and removes the blobs that nobody else refers to.
    /// Repeating it does no harm.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed; the job refers to all of them
    /// still.
    pub fn release(&self, job: JobId) -> Result<(), BlobError> {
        let mut references = self.lock();
        let Some(digests) = references.jobs.remove(&job) else { return Ok(()) };
        let removed = digests.iter().try_for_each(|digest| self.remove_unless_referenced(&references, *digest));
        if removed.is_err() {
            references.jobs.insert(job, digests);
        }
        removed
    }

    /// Removes every blob that nobody refers to and returns their digests. Called when
    /// the recovered jobs refer to theirs.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub fn remove_orphans(&self) -> Result<Vec<BlobDigest>, BlobError> {
        let references = self.lock();
        let mut removed = Vec::new();
        for name in storage::list_files(&self.directory)? {
            let Ok(digest) = name.parse::<BlobDigest>() else { continue };
            if !references.contains(&digest) {
                storage::remove_file(&self.directory, &name, self.durability)?;
                removed.push(digest);
            }
        }
        Ok(removed)
    }

    fn remove_unless_referenced(&self, references: &References, digest: BlobDigest) -> Result<(), BlobError> {
        if !references.contains(&digest) {
            storage::remove_file(&self.directory, &digest.to_string(), self.durability)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    fn store() -> (StorageDir, BlobStore) {
        let storage = StorageDir::temporary().unwrap();
        let blobs = BlobStore::open(&storage).unwrap();
        (storage, blobs)
    }

    #[test]
    fn a_blob_is_found_by_its_sha_256() {
        let (_storage, blobs) = store();
        let digest = blobs.put(b"abc").unwrap();
        // The example of FIPS 180-2, appendix B.1.
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(blobs.get(digest).unwrap(), b"abc");
    }

    #[test]
    fn a_damaged_blob_is_not_returned_and_can_be_uploaded_again() {
        let (_storage, blobs) = store();
        let digest = blobs.put(b"abc").unwrap();
        std::fs::write(blobs.path(digest), b"abd").unwrap();
        let error = blobs.get(digest).unwrap_err().to_string();
        let path = blobs.path(digest);
        assert_eq!(error, format!("blob {digest} is damaged: remove {} and upload it again", path.display()));
        assert_eq!(blobs.put(b"abc").unwrap(), digest);
        assert_eq!(blobs.get(digest).unwrap(), b"abc");
    }

    #[test]
    fn a_blob_stays_while_anybody_refers_to_it() {
        let (_storage, blobs) = store();
        let digest = blobs.put(b"abc").unwrap();
        assert_eq!(blobs.put(b"abc").unwrap(), digest);
        blobs.discard_upload(digest).unwrap();
        assert!(blobs.path(digest).exists());
        blobs.reference(job(1), [digest].into()).unwrap();
        blobs.reference(job(2), [digest].into()).unwrap();
        blobs.discard_upload(digest).unwrap();
        blobs.release(job(1)).unwrap();
        blobs.release(job(1)).unwrap();
        assert!(blobs.path(digest).exists());
        blobs.release(job(2)).unwrap();
        assert!(!blobs.path(digest).exists());
    }

    #[test]
    fn a_job_refers_to_all_its_blobs_or_to_none() {
        let (_storage, blobs) = store();
        let there = blobs.put(b"there").unwrap();
        let missing = BlobStore::digest(b"missing");
        let refused = blobs.reference(job(1), [there, missing].into()).unwrap_err();
        assert_eq!(refused.to_string(), format!("there is no blob {missing}: upload it again"));
        blobs.discard_upload(there).unwrap();
        assert!(!blobs.path(there).exists());
    }

    #[test]
    fn orphans_of_a_former_process_are_removed() {
        let (storage, blobs) = store();
        let kept = blobs.put(b"kept").unwrap();
        let orphan = blobs.put(b"orphan").unwrap();
        std::fs::write(blobs.directory().join("README"), b"not a blob").unwrap();
        let blobs = BlobStore::open(&storage).unwrap();
        blobs.reference(job(1), [kept].into()).unwrap();
        assert_eq!(blobs.remove_orphans().unwrap(), [orphan]);
        assert_eq!(blobs.get(kept).unwrap(), b"kept");
        assert!(blobs.directory().join("README").exists());
    }
}
