//! The files of one task's state on disk: a log-structured merge tree, and the two threads
//! that write what was put into memory to files and merge these.
//!
//! One thread writes, that of the task. Nothing is flushed for the machine's sake:
//! what must survive is in checkpoints. The first error stays: from then on nothing is
//! found and nothing written, and whoever asks is told.

use std::{
    io,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, SeqNo, SequenceNumberCounter, Slice,
    compaction::Leveled,
};
use tempfile::TempDir;

/// Longest key of an entry, with key group, namespace and map key.
const KEY_BYTES_MAX: usize = 65_535;
/// Share of the memory that blocks of files may take that were read, and that of a table in
/// memory: beside the one that is filled, two may wait to be written and two still be read.
const CACHE_SHARE: u64 = 2;
const TABLE_SHARE: u64 = 16;
const TABLE_BYTES_MIN: u64 = 4 << 10;
const TABLES_WAITING_MAX: usize = 2;
/// Files of the first level above which the task waits until they are merged.
const FIRST_LEVEL_MAX: usize = 16;
/// Open files.
const FILES_MAX: usize = 64;
/// About the length of a file.
const FILE_BYTES: u64 = 32 << 20;
/// Longest sleep before a look whether something has changed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Where and how state is kept on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskState {
    /// A directory of its own is made in here, and removed when the state is dropped.
    pub directory: PathBuf,
    /// Bytes of memory for what was read and written last, about (`state.backend.disk.memory`).
    pub memory_bytes: u64,
}

/// Entries of a range in order, as they were when it was asked for.
pub(super) type Entries = Box<dyn Iterator<Item = Result<(Slice, Slice), String>> + Send>;

#[derive(Default)]
struct Progress {
    /// Is counted up when there may be something to do.
    changes: u64,
    is_closed: bool,
    failure: Option<String>,
}

/// See the module. Is closed by its task; threads and snapshots may hold it longer.
pub(super) struct Store {
    /// Dropped before the directory is removed.
    tree: AnyTree,
    numbers: SequenceNumberCounter,
    /// Nobody who asks the tree from now on asks for what it was before this number.
    watermark: AtomicU64,
    table_bytes: u64,
    progress: Mutex<Progress>,
    changed: Condvar,
    has_failed: AtomicBool,
    workers: Mutex<Vec<JoinHandle<()>>>,
    directory: TempDir,
}

impl Store {
    pub(super) fn open(config: &DiskState) -> Result<Arc<Self>, String> {
        let failed = |why: String| format!("could not make files in {}: {why}", config.directory.display());
        std::fs::create_dir_all(&config.directory).map_err(|error| failed(io_reason(&error)))?;
        let directory = tempfile::Builder::new().prefix("task-").tempdir_in(&config.directory);
        let directory = directory.map_err(|error| failed(io_reason(&error)))?;
        let numbers = SequenceNumberCounter::default();
        let cache = Cache::with_capacity_bytes(config.memory_bytes / CACHE_SHARE);
        let tree = Config::new(directory.path(), numbers.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(cache))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(FILES_MAX))))
            .open()
            .map_err(|error| failed(reason(&error)))?;
        let store = Arc::new(Self {
            tree,
            numbers,
            watermark: AtomicU64::new(0),
            table_bytes: (config.memory_bytes / TABLE_SHARE).max(TABLE_BYTES_MIN),
            progress: Mutex::default(),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            workers: Mutex::default(),
            directory,
        });
        for (name, work) in [("state-flush", Self::flush as fn(&Self) -> _), ("state-merge", Self::merge)] {
            let worker = Arc::clone(&store);
            match thread::Builder::new().name(name.to_owned()).spawn(move || worker.work(work)) {
                Ok(worker) => store.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker),
                Err(error) => {
                    store.close();
                    return Err(format!("could not start a thread: {error}"));
                }
            }
        }
        Ok(store)
    }

    /// Waits for the threads to end, which do what they are at, seconds at most. Files are
    /// removed when nobody reads them any more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            if worker.join().is_err() {
                self.fail("a thread that writes them panicked: this is a bug of the engine");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, problem: &str) {
        let path = self.directory.path().display();
        self.lock().failure.get_or_insert_with(|| format!("its files in {path}: {problem}"));
        self.has_failed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn fail_with(&self, error: &lsm_tree::Error) {
        self.fail(&reason(error));
    }

    /// What went wrong first.
    pub(super) fn failure(&self) -> Option<String> {
        if self.has_failed.load(Ordering::Acquire) { self.lock().failure.clone() } else { None }
    }

    /// Does what there is to do, again and again.
    fn work(&self, work: fn(&Self) -> lsm_tree::Result<bool>) {
        loop {
            let seen = self.lock().changes;
            match catch_unwind(AssertUnwindSafe(|| work(self))) {
                Ok(Ok(true)) => {
                    self.lock().changes += 1;
                    self.changed.notify_all();
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => return self.fail_with(&error),
                Err(_) => return self.fail("a thread that writes them panicked: this is a bug of the engine"),
            }
            let progress = self.lock();
            let is_idle = |progress: &mut Progress| progress.changes == seen && !progress.is_closed;
            let progress = self.changed.wait_while(progress, is_idle).unwrap_or_else(PoisonError::into_inner);
            if progress.is_closed || progress.failure.is_some() {
                return;
            }
        }
    }

    /// Writes tables that wait to files. Returns false if there is none.
    fn flush(&self) -> lsm_tree::Result<bool> {
        let lock = self.tree.get_flush_lock();
        Ok(self.tree.flush(&lock, self.watermark.load(Ordering::Acquire))?.is_some())
    }

    /// Merges files. Returns false if there was no need.
    fn merge(&self) -> lsm_tree::Result<bool> {
        let before = self.tree.current_version().id();
        let strategy = Leveled::default().with_table_target_size(FILE_BYTES);
        self.tree.compact(Arc::new(strategy), self.watermark.load(Ordering::Acquire))?;
        Ok(self.tree.current_version().id() != before)
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) {
        if KEY_BYTES_MAX < key.len() {
            let bytes = key.len();
            self.fail(&format!("key, namespace and map key have {bytes} bytes: more than {KEY_BYTES_MAX} do not fit"));
        }
        if !self.has_failed.load(Ordering::Acquire) {
            let (_, bytes) = self.tree.insert(key, value, self.numbers.next());
            self.begin_table_if_full(bytes);
        }
    }

    pub(super) fn delete(&self, key: &[u8]) {
        if !self.has_failed.load(Ordering::Acquire) {
            let (_, bytes) = self.tree.remove(key, self.numbers.next());
            self.begin_table_if_full(bytes);
        }
    }

    fn begin_table_if_full(&self, bytes: u64) {
        if bytes <= self.table_bytes {
            return;
        }
        let mut progress = self.lock();
        while progress.failure.is_none()
            && (TABLES_WAITING_MAX <= self.tree.sealed_memtable_count() || FIRST_LEVEL_MAX <= self.tree.l0_run_count())
        {
            let waited = self.changed.wait_timeout(progress, LOOK_INTERVAL);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.tree.rotate_memtable();
        self.watermark.store(self.numbers.get(), Ordering::Release);
        progress.changes += 1;
        drop(progress);
        self.changed.notify_all();
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Slice> {
        if self.has_failed.load(Ordering::Acquire) || KEY_BYTES_MAX < key.len() {
            return None;
        }
        self.tree.get(key, SeqNo::MAX).unwrap_or_else(|error| {
            self.fail_with(&error);
            None
        })
    }

    /// Bytes of the value of a key.
    pub(super) fn value_bytes(&self, key: &[u8]) -> Option<usize> {
        self.get(key).map(|value| value.len())
    }

    /// The entries above `from` and below `to` as they are now. What is written from here on
    /// does not change them, nor does it make them cost more than what is in memory now.
    pub(super) fn entries(&self, from: Bound<&[u8]>, to: &[u8]) -> Entries {
        // The tree keeps the version of this number: the watermark is moved by this thread alone.
        let range = self.tree.range::<&[u8], _>((from, Bound::Excluded(to)), self.numbers.get(), None);
        Box::new(range.map(|entry| entry.into_inner().map_err(|error| reason(&error))))
    }

    /// Shows the entries above `from` and below `to` until `show` returns false.
    pub(super) fn scan(&self, from: Bound<&[u8]>, to: &[u8], show: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let bound = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        if self.has_failed.load(Ordering::Acquire) || KEY_BYTES_MAX < bound.len().max(to.len()) {
            return;
        }
        for entry in self.entries(from, to) {
            match entry {
                Ok((key, value)) => {
                    if !show(&key, &value) {
                        return;
                    }
                }
                Err(problem) => return self.fail(&problem),
            }
        }
    }
}

fn io_reason(error: &io::Error) -> String {
    format!("{error}: free space, or mend the directory")
}

/// An error in words.
fn reason(error: &lsm_tree::Error) -> String {
    match error {
        lsm_tree::Error::Io(error) => io_reason(error),
        lsm_tree::Error::ChecksumMismatch { .. } => "a block has another checksum: the disk lost it".to_owned(),
        other => format!("{other:?}"),
    }
}
