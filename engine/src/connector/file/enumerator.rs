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

use serde::{Deserialize, Serialize};

use super::{
    Compression, DealtFiles, FILES_PER_SPLIT_MAX, FileLeft, FileSourceOptions, FileSplit, ListedFile, ReadOrder,
    io_error, listing::Listing,
};
use crate::{
    base::clock::{Clock, Timestamp},
    connector::{ConnectorError, Permissions, RestoredSource, SourceSplit, SplitAssignment, SplitEnumerator, encoding},
    failpoint,
};

const STATE: &str = "the state of a file source";

/// See the [module](self).
pub(in crate::connector) struct FileEnumerator {
    options: FileSourceOptions,
    parallelism: u32,
    listing: Listing,
    permissions: Arc<Permissions>,
    clock: Clock,
    dealing: Dealing,
    /// Dealt before, to subtasks that failed or stopped; with the subtask, to which alone they
    /// are dealt again: it had come further in event time than others may have.
    returned: VecDeque<(u32, SourceSplit)>,
    /// All files ever listed, if the directory is watched.
    known: HashSet<PathBuf>,
    /// Number of the next file that is listed.
    next_number: u64,
    listed: Timestamp,
}

/// What an enumerator writes into a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
struct EnumeratorState {
    parallelism: u32,
    shape: Shape,
    /// What was not dealt, by queue or subtask.
    queues: Vec<Vec<FileLeft>>,
    returned: Vec<(u32, SourceSplit)>,
    /// All files ever listed, if the directory is watched; sorted.
    known: Vec<String>,
    next_number: u64,
}

impl EnumeratorState {
    fn is_consistent(&self) -> bool {
        let (queues, parallelism) = (self.queues.len(), self.parallelism as usize);
        match self.shape {
            Shape::InOrder => queues == 1,
            Shape::FileForSubtasks => 0 < queues && queues < parallelism,
            Shape::FilesOfSubtask => queues == parallelism,
        }
    }
}

/// How files are dealt.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Shape {
    /// One queue, from which all subtasks take chunks.
    InOrder,
    /// A queue for each file; subtask i takes chunks from queue i mod their number.
    FileForSubtasks,
    /// A queue for each subtask.
    FilesOfSubtask,
}

/// Listed and not yet dealt.
enum Dealing {
    Chunks {
        queues: Vec<ChunkQueue>,
        shape: Shape,
    },
    /// The files of each subtask.
    SideBySide(Vec<VecDeque<FileLeft>>),
}

/// Files that are dealt in chunks, one after the other.
struct ChunkQueue {
    files: VecDeque<FileLeft>,
    /// The file that is being dealt, from its next chunk on.
    current: Option<CurrentFile>,
    /// Subtasks that take from the queue.
    subtasks: u32,
}

struct CurrentFile {
    left: FileSplit,
    chunk_bytes: u64,
}

impl FileEnumerator {
    /// Lists the files, so that a path that names nothing fails at once. What is restored was
    /// listed before: only a watched directory is looked at again.
    pub(in crate::connector) fn new(
        options: FileSourceOptions,
        parallelism: u32,
        permissions: Arc<Permissions>,
        clock: Clock,
        restored: Option<RestoredSource>,
    ) -> Result<Self, ConnectorError> {
        let mut enumerator = Self {
            listing: Listing::new(&options.path),
            dealing: Dealing::SideBySide(Vec::new()),
            parallelism,
            listed: clock.now(),
            clock,
            returned: VecDeque::new(),
            known: HashSet::new(),
            next_number: 0,
            options,
            permissions,
        };
        match restored {
            None => enumerator.list_first()?,
            Some(restored) => enumerator.restore(restored)?,
        }
        Ok(enumerator)
    }

    fn list_first(&mut self) -> Result<(), ConnectorError> {
        let files = self.listing.files(&self.permissions)?;
        failpoint!("source.listed").map_err(io_error("list", self.options.path.as_ref()))?;
        let watched = self.options.watch_interval.is_some();
        let side_by_side = match self.options.read_order {
            ReadOrder::InOrder => false,
            ReadOrder::SideBySide => watched || !files.is_empty(),
            ReadOrder::Auto => watched || 1 < files.len(),
        };
        let files = self.number(files);
        self.dealing = Dealing::new(files, side_by_side, self.parallelism, watched);
        Ok(())
    }

    fn restore(&mut self, restored: RestoredSource) -> Result<(), ConnectorError> {
        let state: EnumeratorState = encoding::decode(&restored.enumerator, STATE)?;
        if !state.is_consistent() {
            return Err(ConnectorError::Damaged(STATE));
        }
        let watched = self.options.watch_interval.is_some();
        if watched && state.known.is_empty() && 0 < state.next_number {
            let problem = "was not set when the checkpoint was taken, which does not say which files were read; leave \
                           it out, or give the source another uid to begin anew";
            return Err(ConnectorError::Option {
                connector: "file source".to_owned(),
                option: "watch".to_owned(),
                problem: problem.to_owned(),
            });
        }
        self.known = state.known.into_iter().map(PathBuf::from).collect();
        self.next_number = state.next_number;
        // What a reader held was dealt before what still waits for it.
        let held = restored.splits.into_iter().chain(state.returned);
        if state.parallelism == self.parallelism {
            self.returned.extend(held);
            self.dealing = Dealing::with_queues(state.shape, state.queues, self.parallelism);
        } else {
            let mut left: Vec<_> = state.queues.into_iter().flatten().collect();
            for (_, split) in held {
                left.extend(DealtFiles::decode(&split)?.into_files());
            }
            left.sort_by_key(FileLeft::order);
            self.dealing = Dealing::new(left, state.shape != Shape::InOrder, self.parallelism, watched);
        }
        if watched {
            self.list_again()?;
        }
        Ok(())
    }

    fn list_again(&mut self) -> Result<(), ConnectorError> {
        self.listed = self.clock.now();
        let files = self.listing.files(&self.permissions)?;
        let files = self.number(files);
        self.dealing.add_files(files);
        Ok(())
    }

    /// Numbers the files that were not known.
    fn number(&mut self, mut files: Vec<PathBuf>) -> Vec<FileLeft> {
        if self.options.watch_interval.is_some() {
            files.retain(|file| self.known.insert(file.clone()));
        }
        let mut number = |path: PathBuf| {
            self.next_number += 1;
            let path = path.into_os_string().into_string().expect("listing refuses names that are not UTF-8");
            FileLeft::Whole(ListedFile { number: self.next_number - 1, path })
        };
        files.into_iter().map(&mut number).collect()
    }

    fn next(&mut self, subtask_index: u32) -> Result<Option<SourceSplit>, ConnectorError> {
        let dealt = self.dealing.next(subtask_index, &self.options, &self.permissions)?;
        Ok(dealt.map(|dealt| dealt.encode()))
    }
}

impl Dealing {
    /// Deals files, which stand in their order, to so many subtasks.
    fn new(left: Vec<FileLeft>, side_by_side: bool, parallelism: u32, watched: bool) -> Self {
        if !side_by_side {
            return Self::with_queues(Shape::InOrder, vec![left], parallelism);
        }
        // What is left of one file may be in several parts.
        let files: Vec<_> = left.chunk_by(|one, other| one.path() == other.path()).map(<[_]>::to_vec).collect();
        if !watched && !files.is_empty() && files.len() < parallelism as usize {
            return Self::with_queues(Shape::FileForSubtasks, files, parallelism);
        }
        let mut queues = vec![Vec::new(); parallelism as usize];
        left.into_iter().enumerate().for_each(|(index, file)| queues[index % parallelism as usize].push(file));
        Self::with_queues(Shape::FilesOfSubtask, queues, parallelism)
    }

    fn with_queues(shape: Shape, queues: Vec<Vec<FileLeft>>, parallelism: u32) -> Self {
        let count = u32::try_from(queues.len()).expect("at most one for each subtask").max(1);
        match shape {
            Shape::FilesOfSubtask => Self::SideBySide(queues.into_iter().map(VecDeque::from).collect()),
            Shape::InOrder | Shape::FileForSubtasks => {
                let subtasks = |index| parallelism / count + u32::from(index < parallelism % count);
                let queue = |(index, files): (u32, Vec<_>)| ChunkQueue {
                    files: files.into(),
                    current: None,
                    subtasks: subtasks(index),
                };
                Self::Chunks { queues: (0..).zip(queues).map(queue).collect(), shape }
            }
        }
    }

    /// New files go to the subtasks in turn, by their numbers.
    fn add_files(&mut self, added: Vec<FileLeft>) {
        for file in added {
            let number = usize::try_from(file.order().0).unwrap_or(usize::MAX);
            match self {
                Self::Chunks { queues, .. } => {
                    let count = queues.len();
                    queues[number % count].files.push_back(file);
                }
                Self::SideBySide(files) => {
                    let count = files.len();
                    files[number % count].push_back(file);
                }
            }
        }
    }

    fn next(
        &mut self,
        subtask: u32,
        options: &FileSourceOptions,
        permissions: &Permissions,
    ) -> Result<Option<DealtFiles>, ConnectorError> {
        match self {
            Self::Chunks { queues, .. } => {
                let queue = subtask as usize % queues.len();
                Ok(queues[queue].next_chunk(options, permissions)?.map(DealtFiles::Chunk))
            }
            Self::SideBySide(files) => {
                let files = &mut files[subtask as usize];
                if files.is_empty() {
                    return Ok(None);
                }
                let dealt = files.drain(..files.len().min(FILES_PER_SPLIT_MAX)).collect();
                Ok(Some(DealtFiles::SideBySide { files: dealt, more: !files.is_empty() }))
            }
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Chunks { shape, .. } => *shape,
            Self::SideBySide(_) => Shape::FilesOfSubtask,
        }
    }

    /// What was not dealt, by queue or subtask.
    fn left(&self) -> Vec<Vec<FileLeft>> {
        match self {
            Self::Chunks { queues, .. } => queues.iter().map(|queue| queue.left().collect()).collect(),
            Self::SideBySide(files) => files.iter().map(|files| files.iter().cloned().collect()).collect(),
        }
    }
}

impl ChunkQueue {
    /// The next chunk of a plain file, or the next compressed file.
    fn next_chunk(
        &mut self,
        options: &FileSourceOptions,
        permissions: &Permissions,
    ) -> Result<Option<FileSplit>, ConnectorError> {
        loop {
            if let Some(CurrentFile { left, chunk_bytes }) = &mut self.current {
                let size = left.end.unwrap_or(0);
                if left.start < size {
                    let end = size.min(left.start + *chunk_bytes);
                    let chunk = FileSplit { end: Some(end), ..left.clone() };
                    left.start = end;
                    left.lines_before = None;
                    return Ok(Some(chunk));
                }
                self.current = None;
            }
            let split = match self.files.pop_front() {
                None => return Ok(None),
                Some(FileLeft::Part(split)) => split,
                Some(FileLeft::Whole(file)) => {
                    let permitted = permissions.readable(file.path.as_ref())?;
                    FileSplit::whole(file, &permitted, options)?
                }
            };
            match split.end {
                Some(size) if split.compression == Compression::None => {
                    let chunk_bytes = options.chunk_bytes(size - split.start.min(size), self.subtasks);
                    self.current = Some(CurrentFile { left: split, chunk_bytes });
                }
                _ => return Ok(Some(split)),
            }
        }
    }

    fn left(&self) -> impl Iterator<Item = FileLeft> {
        let begun = self.current.iter().map(|current| &current.left).filter(|left| Some(left.start) < left.end);
        begun.cloned().map(FileLeft::Part).chain(self.files.iter().cloned())
    }
}

impl SplitEnumerator for FileEnumerator {
    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        let returned = self.returned.iter().position(|(subtask, _)| *subtask == subtask_index);
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
            self.list_again()?;
            if let Some(split) = self.next(subtask_index)? {
                return Ok(SplitAssignment::Split(split));
            }
        }
        let pause = interval.saturating_sub(self.clock.now().since(self.listed));
        Ok(SplitAssignment::Wait(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        // They were dealt before what still waits for the subtask.
        splits.into_iter().rev().for_each(|split| self.returned.push_front((subtask_index, split)));
    }

    fn snapshot(&self) -> Vec<u8> {
        let name = |path: &PathBuf| path.to_str().expect("listing refuses names that are not UTF-8").to_owned();
        let mut known: Vec<_> = self.known.iter().map(name).collect();
        known.sort_unstable();
        encoding::encode(&EnumeratorState {
            parallelism: self.parallelism,
            shape: self.dealing.shape(),
            queues: self.dealing.left(),
            returned: self.returned.iter().cloned().collect(),
            known,
            next_number: self.next_number,
        })
    }
}
