//! Compiled plugins on disk.
//!
//! Native code that is loaded runs with all rights of the process, so an entry
//! is believed only if it carries a MAC under a key that lies beside it, readable
//! by its owner alone, in a directory that nobody else can write into: another one
//! is not used. A damaged, cut, foreign or outdated entry counts as absent
//! and is written anew.
//!
//! | offset | bytes | field                                                                    |
//! |--------|-------|--------------------------------------------------------------------------|
//! | 0      | 8     | magic                                                                    |
//! | 8      | 32    | compatibility: engine version, contract, settings and target of wasmtime |
//! | 40     | 32    | digest of the submitted plugin                                           |
//! | 72     | 32    | HMAC-SHA256 of the fields above and the code                             |
//! | 104    |       | code, to the end of the file                                             |

use std::{
    fs,
    hash::{Hash, Hasher},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rand::RngCore;
use sha2::{Digest, Sha256};

use super::contract;
use crate::base::ids::BlobDigest;

const MAGIC: [u8; 8] = *b"engcode1";
const MAC_OFFSET: usize = 72;
const CODE_OFFSET: usize = 104;
/// Longest file that is read.
const ENTRY_BYTES_MAX: u64 = 256 << 20;
/// Entries kept; the ones written longest ago go first.
const ENTRIES_MAX: usize = 256;
const KEY_FILE: &str = "key";
/// Permissions of groups and others to write.
const WRITE_OF_OTHERS: u32 = 0o022;
/// All permissions of groups and others.
const ANY_OF_OTHERS: u32 = 0o077;
const ENTRY_SUFFIX: &str = "code";

/// The directory of compiled plugins.
#[derive(Debug)]
pub(crate) struct CodeCache {
    directory: PathBuf,
    key: [u8; 32],
    compatibility: [u8; 32],
}

/// Bytes that this process wrote under its key: what [`CodeCache::load`] vouches for.
pub(crate) struct AuthenticCode(Vec<u8>);

impl AuthenticCode {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl CodeCache {
    /// Opens the directory, and makes it and its key if they are not there.
    ///
    /// # Errors
    /// Returns an error if that fails, or if someone else could write entries and a MAC that fits.
    pub(crate) fn open(directory: &Path, engine: &wasmtime::Engine) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // Whoever this process runs as owns the files that it makes.
        let user = tempfile::tempfile_in(directory)?.metadata()?.uid();
        check_own(directory, &fs::metadata(directory)?, user, WRITE_OF_OTHERS)?;
        let key = read_or_make_key(directory, user)?;
        Ok(Self { directory: directory.to_owned(), key, compatibility: compatibility(engine) })
    }

    /// The code of a plugin, if an entry for it is there, whole and made by this engine.
    pub(crate) fn load(&self, digest: BlobDigest) -> Option<AuthenticCode> {
        let path = self.path(digest);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "could not read a compiled plugin; compiling it again");
                return None;
            }
        };
        let mut entry = Vec::new();
        if let Err(error) = file.take(ENTRY_BYTES_MAX).read_to_end(&mut entry) {
            tracing::warn!(path = %path.display(), %error, "could not read a compiled plugin; compiling it again");
            return None;
        }
        if !self.is_authentic(digest, &entry) {
            tracing::warn!(
                path = %path.display(),
                "a compiled plugin is damaged or was not made by this engine; compiling it again"
            );
            return None;
        }
        entry.drain(..CODE_OFFSET);
        Some(AuthenticCode(entry))
    }

    /// Writes an entry under a temporary name and renames it into place. It is not
    /// synced: what a crash of the machine damages is found out by the MAC.
    pub(crate) fn store(&self, digest: BlobDigest, code: &[u8]) -> io::Result<()> {
        let mut header = self.header(digest);
        let mac = hmac_sha256(&self.key, &[&header, code]);
        header.extend_from_slice(&mac);
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(&header)?;
        file.write_all(code)?;
        file.persist(self.path(digest))?;
        self.evict()
    }

    /// Removes an entry that could not be used although it was authentic.
    pub(crate) fn remove(&self, digest: BlobDigest) {
        let path = self.path(digest);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "could not remove a compiled plugin");
        }
    }

    fn is_authentic(&self, digest: BlobDigest, entry: &[u8]) -> bool {
        let (Some(header), Some(mac), Some(code)) =
            (entry.get(..MAC_OFFSET), entry.get(MAC_OFFSET..CODE_OFFSET), entry.get(CODE_OFFSET..))
        else {
            return false;
        };
        header == self.header(digest) && equal(mac, &hmac_sha256(&self.key, &[header, code]))
    }

    fn header(&self, digest: BlobDigest) -> Vec<u8> {
        let mut header = Vec::with_capacity(CODE_OFFSET);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&self.compatibility);
        header.extend_from_slice(digest.as_bytes());
        header
    }

    /// The name carries the compatibility too, so that two engines can share a directory.
    fn path(&self, digest: BlobDigest) -> PathBuf {
        let engine: String = self.compatibility[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(format!("{digest}-{engine}.{ENTRY_SUFFIX}"))
    }

    fn evict(&self) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == ENTRY_SUFFIX) {
                let modified = entry.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                entries.push((modified, entry.path()));
            }
        }
        entries.sort_unstable();
        let surplus = entries.len().saturating_sub(ENTRIES_MAX);
        entries.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// Refuses what belongs to another user, or gives one of the permissions `denied`.
fn check_own(path: &Path, metadata: &fs::Metadata, user: u32, denied: u32) -> io::Result<()> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let path = path.display();
    if owner != user {
        return Err(io::Error::other(format!(
            "{path} belongs to the user {owner}, and this process runs as {user}: set plugin.cache-dir to a directory \
             of your own"
        )));
    }
    if mode & denied != 0 {
        return Err(io::Error::other(format!(
            "{path} has the mode {mode:o}, so that others could have the engine run code of theirs: delete the \
             directory, or set plugin.cache-dir to one that only you can write into"
        )));
    }
    Ok(())
}

fn read_or_make_key(directory: &Path, user: u32) -> io::Result<[u8; 32]> {
    let path = directory.join(KEY_FILE);
    if let Some(key) = read_key(&path, user)? {
        return Ok(key);
    }
    let mut key = [0; 32];
    rand::rng().fill_bytes(&mut key);
    // Written whole before it gets its name; whoever comes second takes the first one's.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&key)?;
    match file.persist_noclobber(&path) {
        Ok(_) => Ok(key),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => match read_key(&path, user)? {
            Some(key) => Ok(key),
            None => fs::write(&path, key).map(|()| key),
        },
        Err(error) => Err(error.error),
    }
}

/// None if there is no key or it is damaged; entries under it are then rebuilt.
fn read_key(path: &Path, user: u32) -> io::Result<Option<[u8; 32]>> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    check_own(path, &file.metadata()?, user, ANY_OF_OTHERS)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.try_into().ok())
}

/// All that must be equal for compiled code to be loaded.
fn compatibility(engine: &wasmtime::Engine) -> [u8; 32] {
    struct Sha256Hasher(Sha256);
    impl Hasher for Sha256Hasher {
        fn finish(&self) -> u64 {
            let hash: [u8; 32] = self.0.clone().finalize().into();
            u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
        }

        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
    }
    let mut hasher = Sha256Hasher(Sha256::new());
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    contract::WIT.hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.0.finalize().into()
}

/// RFC 2104 with SHA-256, over the concatenation of `parts`.
fn hmac_sha256(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let mut inner = Sha256::new();
    inner.update(pad(0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Sha256::new();
    outer.update(pad(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// Compares in a time that does not depend on where the difference is.
fn equal(left: &[u8], right: &[u8; 32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |difference, (l, r)| difference | (l ^ r)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: BlobDigest = BlobDigest::from_bytes([7; 32]);

    fn cache(directory: &Path) -> CodeCache {
        CodeCache::open(directory, &wasmtime::Engine::default()).unwrap()
    }

    fn loaded(cache: &CodeCache, digest: BlobDigest) -> Option<Vec<u8>> {
        cache.load(digest).map(|code| code.as_bytes().to_vec())
    }

    #[test]
    fn hmac_gives_the_values_of_rfc_4231() {
        // Test case 1, its key of 20 bytes filled up with zeros as the RFC for HMAC says.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let mac: String = hmac_sha256(&key, &[b"Hi ", b"There"]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(mac, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }

    #[test]
    fn an_entry_is_found_again_by_another_process() {
        let directory = tempfile::tempdir().unwrap();
        cache(directory.path()).store(DIGEST, b"code").unwrap();
        assert_eq!(loaded(&cache(directory.path()), DIGEST), Some(b"code".to_vec()));
        assert_eq!(loaded(&cache(directory.path()), BlobDigest::from_bytes([8; 32])), None);
    }

    #[test]
    fn an_entry_with_any_bit_flipped_or_cut_short_is_absent() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        cache.store(DIGEST, b"code").unwrap();
        let whole = fs::read(cache.path(DIGEST)).unwrap();
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            fs::write(cache.path(DIGEST), damaged).unwrap();
            assert_eq!(loaded(&cache, DIGEST), None, "bit flipped at {position}");
            fs::write(cache.path(DIGEST), &whole[..position]).unwrap();
            assert_eq!(loaded(&cache, DIGEST), None, "cut at {position}");
        }
        cache.store(DIGEST, b"code").unwrap();
        assert_eq!(loaded(&cache, DIGEST), Some(b"code".to_vec()));
    }

    #[test]
    fn an_entry_of_another_key_engine_or_plugin_is_absent() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ours, theirs) = (cache(ours.path()), cache(theirs.path()));
        theirs.store(DIGEST, b"code").unwrap();
        fs::copy(theirs.path(DIGEST), ours.path(DIGEST)).unwrap();
        assert_eq!(loaded(&ours, DIGEST), None);

        let other = BlobDigest::from_bytes([8; 32]);
        ours.store(DIGEST, b"code").unwrap();
        fs::copy(ours.path(DIGEST), ours.path(other)).unwrap();
        assert_eq!(loaded(&ours, other), None);

        let newer = CodeCache { directory: ours.directory.clone(), key: ours.key, compatibility: [1; 32] };
        fs::copy(ours.path(DIGEST), newer.path(DIGEST)).unwrap();
        assert_eq!(loaded(&newer, DIGEST), None);
    }

    #[test]
    fn the_key_is_readable_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        cache(directory.path());
        let mode = fs::metadata(directory.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("cache");
        let refusal = || {
            let opened = CodeCache::open(&directory, &wasmtime::Engine::default());
            opened.err().map(|error| error.to_string())
        };
        let key = directory.join(KEY_FILE);
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(refusal(), None);
        for (path, mode) in [(&directory, 0o770), (&directory, 0o707), (&key, 0o660), (&key, 0o606), (&key, 0o644)] {
            set(path, mode);
            let refusal = refusal().expect("refused");
            assert!(refusal.starts_with(&format!("{} has the mode {mode:o}, ", path.display())), "{refusal}");
            assert!(refusal.contains("set plugin.cache-dir"), "{refusal}");
            set(&directory, 0o755);
            set(&key, 0o600);
        }
        assert_eq!(refusal(), None, "others may look");

        let metadata = fs::metadata(&directory).unwrap();
        let other = metadata.uid() + 1;
        let refusal = check_own(&directory, &metadata, other, WRITE_OF_OTHERS).unwrap_err().to_string();
        let expected = format!("belongs to the user {}, and this process runs as {other}: set ", metadata.uid());
        assert!(refusal.contains(&expected), "{refusal}");
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        for index in 0..=ENTRIES_MAX {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&index.to_le_bytes());
            cache.store(BlobDigest::from_bytes(digest), b"code").unwrap();
        }
        let entries = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(entries, ENTRIES_MAX + 1, "the entries and the key");
    }
}
