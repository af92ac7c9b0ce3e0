//! Deals the files of a source; lives in the JobMaster.
//!
//! In order, chunks are dealt in the order of the files to whoever asks: plain files in
//! chunks, compressed ones whole, since nothing but their start can be found in them.
//! Side by side, file f belongs to subtask f mod p; where there are fewer files than
//! subtasks, several subtasks share the chunks of one, and no other. A watched directory
//! never ends.

use std::{
    collections::{HashSet, VecDeque},
    path::PathBuf,
    sync::Arc,
};

use super::{Compression, DealtFiles, FILES_PER_SPLIT_MAX, FileSourceOptions, FileSplit, ReadOrder, listing::Listing};
use crate::{
    base::clock::{Clock, Timestamp},
    connector::{ConnectorError, Permissions, SourceSplit, SplitAssignment, SplitEnumerator},
};

/// See the [module](self).
pub(in crate::connector) struct FileEnumerator {
    options: FileSourceOptions,
    listing: Listing,
    permissions: Arc<Permissions>,
    clock: Clock,
    dealing: Dealing,
    /// Dealt to subtasks that failed; with the subtask.
    returned: VecDeque<(u32, SourceSplit)>,
    /// All files ever listed, if the directory is watched.
    known: HashSet<PathBuf>,
    listed: Timestamp,
}

/// Listed and not yet dealt.
enum Dealing {
    /// Subtask i takes from queue i mod their number.
    Chunks(Vec<ChunkQueue>),
    /// The files of each subtask.
    SideBySide { files: Vec<VecDeque<PathBuf>>, next: usize },
}

/// Files that are dealt in chunks, one after the other.
struct ChunkQueue {
    files: VecDeque<PathBuf>,
    /// The file that is being dealt, from its next chunk on.
    current: Option<FileSplit>,
    /// Subtasks that take from the queue.
    subtasks: u32,
}

impl FileEnumerator {
    /// Lists the files, so that a path that names nothing fails at once.
    pub(in crate::connector) fn new(
        options: FileSourceOptions,
        parallelism: u32,
        permissions: Arc<Permissions>,
        clock: Clock,
    ) -> Result<Self, ConnectorError> {
        let listing = Listing::new(&options.path);
        let files = listing.files(&permissions)?;
        let mut enumerator = Self {
            dealing: Dealing::new(&options, files.len(), parallelism),
            options,
            listing,
            permissions,
            listed: clock.now(),
            clock,
            returned: VecDeque::new(),
            known: HashSet::new(),
        };
        enumerator.add_files(files);
        Ok(enumerator)
    }

    fn add_files(&mut self, mut files: Vec<PathBuf>) {
        if self.options.watch_interval.is_some() {
            files.retain(|file| self.known.insert(file.clone()));
        }
        self.dealing.add_files(files);
    }

    fn next(&mut self, subtask_index: u32) -> Result<Option<SourceSplit>, ConnectorError> {
        let dealt = self.dealing.next(subtask_index, &self.options)?;
        Ok(dealt.map(|dealt| dealt.encode()))
    }
}

impl Dealing {
    fn new(options: &FileSourceOptions, files: usize, parallelism: u32) -> Self {
        let watched = options.watch_interval.is_some();
        let side_by_side = match options.read_order {
            ReadOrder::InOrder => false,
            ReadOrder::SideBySide => watched || 0 < files,
            ReadOrder::Auto => watched || 1 < files,
        };
        let queue = |subtasks| ChunkQueue { files: VecDeque::new(), current: None, subtasks };
        if !side_by_side {
            return Self::Chunks(vec![queue(parallelism)]);
        }
        match u32::try_from(files) {
            Ok(files) if files < parallelism && !watched => {
                let subtasks = |index| parallelism / files + u32::from(index < parallelism % files);
                Self::Chunks((0..files).map(|index| queue(subtasks(index))).collect())
            }
            _ => Self::SideBySide { files: vec![VecDeque::new(); parallelism as usize], next: 0 },
        }
    }

    fn add_files(&mut self, added: Vec<PathBuf>) {
        match self {
            Self::Chunks(queues) => {
                let count = queues.len();
                added.into_iter().enumerate().for_each(|(index, file)| queues[index % count].files.push_back(file));
            }
            Self::SideBySide { files, next } => {
                let count = files.len();
                for file in added {
                    files[*next % count].push_back(file);
                    *next += 1;
                }
            }
        }
    }

    fn next(&mut self, subtask: u32, options: &FileSourceOptions) -> Result<Option<DealtFiles>, ConnectorError> {
        match self {
            Self::Chunks(queues) => {
                let queue = subtask as usize % queues.len();
                Ok(queues[queue].next_chunk(options)?.map(DealtFiles::Chunk))
            }
            Self::SideBySide { files, .. } => {
                let files = &mut files[subtask as usize];
                if files.is_empty() {
                    return Ok(None);
                }
                let dealt = files.drain(..files.len().min(FILES_PER_SPLIT_MAX));
                let text = |path: PathBuf| path.into_os_string().into_string();
                let paths = dealt.map(|path| text(path).expect("listing refuses names that are not UTF-8"));
                Ok(Some(DealtFiles::SideBySide { paths: paths.collect(), more: !files.is_empty() }))
            }
        }
    }

    /// True if subtasks may read what others were dealt.
    fn is_shared(&self) -> bool {
        matches!(self, Self::Chunks(queues) if queues.len() == 1)
    }
}

impl ChunkQueue {
    /// The next chunk of a plain file, or the next compressed file.
    fn next_chunk(&mut self, options: &FileSourceOptions) -> Result<Option<FileSplit>, ConnectorError> {
        loop {
            if let Some(file) = &mut self.current {
                let size = file.end.unwrap_or(0);
                if file.start < size {
                    let end = size.min(file.start + options.chunk_bytes(size, self.subtasks));
                    let chunk = FileSplit { end: Some(end), ..file.clone() };
                    file.start = end;
                    return Ok(Some(chunk));
                }
                self.current = None;
            }
            let Some(path) = self.files.pop_front() else { return Ok(None) };
            let file = FileSplit::whole(path, options)?;
            if file.compression != Compression::None {
                return Ok(Some(file));
            }
            self.current = Some(file);
        }
    }
}

impl SplitEnumerator for FileEnumerator {
    fn snapshot(&self) -> Vec<u8> {
        todo!("connector helper")
    }

    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        let shared = self.dealing.is_shared();
        let returned = self.returned.iter().position(|(subtask, _)| shared || *subtask == subtask_index);
        if let Some((_, split)) = returned.and_then(|place| self.returned.remove(place)) {
            return Ok(SplitAssignment::Split(split));
        }
        if let Some(split) = self.next(subtask_index)? {
            return Ok(SplitAssignment::Split(split));
        }
        let Some(interval) = self.options.watch_interval else { return Ok(SplitAssignment::NoMoreSplits) };
        // All subtasks ask; one listing an interval is enough.
        let passed = self.clock.now().since(self.listed);
        if interval <= passed {
            self.listed = self.clock.now();
            let files = self.listing.files(&self.permissions)?;
            self.add_files(files);
            if let Some(split) = self.next(subtask_index)? {
                return Ok(SplitAssignment::Split(split));
            }
        }
        let pause = interval.saturating_sub(self.clock.now().since(self.listed));
        Ok(SplitAssignment::Wait(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        self.returned.extend(splits.into_iter().map(|split| (subtask_index, split)));
    }
}
