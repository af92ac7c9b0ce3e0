//! Deals the files of a source in chunks, in the order of the files; lives in the JobMaster.
//!
//! Plain files are dealt in chunks, compressed ones whole, since nothing but
//! their start can be found in them. A watched directory never ends.

use std::{
    collections::{HashSet, VecDeque},
    fs,
    path::PathBuf,
    sync::Arc,
};

use super::{Compression, FileSourceOptions, FileSplit, detect_compression, io_error, listing::Listing};
use crate::{
    base::clock::{Clock, Timestamp},
    connector::{ConnectorError, Permissions, SourceSplit, SplitAssignment, SplitEnumerator},
};

/// See the [module](self).
pub(in crate::connector) struct FileEnumerator {
    options: FileSourceOptions,
    parallelism: u32,
    listing: Listing,
    permissions: Arc<Permissions>,
    clock: Clock,
    /// Listed and not yet dealt.
    files: VecDeque<PathBuf>,
    /// The file that is being dealt, from its next chunk on.
    current: Option<FileSplit>,
    /// Dealt to subtasks that failed.
    returned: VecDeque<SourceSplit>,
    /// All files ever listed, if the directory is watched.
    known: HashSet<PathBuf>,
    listed: Timestamp,
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
        let mut enumerator = Self {
            options,
            parallelism,
            listing,
            permissions,
            listed: clock.now(),
            clock,
            files: VecDeque::new(),
            current: None,
            returned: VecDeque::new(),
            known: HashSet::new(),
        };
        enumerator.list()?;
        Ok(enumerator)
    }

    fn list(&mut self) -> Result<(), ConnectorError> {
        self.listed = self.clock.now();
        let files = self.listing.files(&self.permissions)?;
        if self.options.watch_interval.is_none() {
            self.files.extend(files);
            return Ok(());
        }
        self.files.extend(files.into_iter().filter(|file| self.known.insert(file.clone())));
        Ok(())
    }

    /// The next chunk of a plain file, or the next compressed file.
    fn next_chunk(&mut self) -> Result<Option<FileSplit>, ConnectorError> {
        loop {
            if let Some(file) = &mut self.current {
                let size = file.end.unwrap_or(0);
                if file.start < size {
                    let end = size.min(file.start + self.options.chunk_bytes(size, self.parallelism));
                    let chunk = FileSplit { end: Some(end), ..file.clone() };
                    file.start = end;
                    return Ok(Some(chunk));
                }
                self.current = None;
            }
            let Some(path) = self.files.pop_front() else { return Ok(None) };
            let file = self.inspect(path)?;
            if file.compression != Compression::None {
                return Ok(Some(file));
            }
            self.current = Some(file);
        }
    }

    /// The whole file as a split.
    fn inspect(&self, path: PathBuf) -> Result<FileSplit, ConnectorError> {
        let compression = match self.options.compression {
            Some(compression) => compression,
            None => detect_compression(&path)?,
        };
        let end = match compression {
            Compression::None => Some(fs::metadata(&path).map_err(io_error("open", &path))?.len()),
            Compression::Gzip | Compression::Zstd => None,
        };
        let path = path.into_os_string().into_string().expect("listing refuses names that are not UTF-8");
        Ok(FileSplit { path, start: 0, end, compression })
    }
}

impl SplitEnumerator for FileEnumerator {
    fn next_split(&mut self, _subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        if let Some(split) = self.returned.pop_front() {
            return Ok(SplitAssignment::Split(split));
        }
        if let Some(split) = self.next_chunk()? {
            return Ok(SplitAssignment::Split(split.encode()));
        }
        let Some(interval) = self.options.watch_interval else { return Ok(SplitAssignment::NoMoreSplits) };
        // All subtasks ask; one listing an interval is enough.
        let passed = self.clock.now().since(self.listed);
        if interval <= passed {
            self.list()?;
            if let Some(split) = self.next_chunk()? {
                return Ok(SplitAssignment::Split(split.encode()));
            }
        }
        let pause = interval.saturating_sub(self.clock.now().since(self.listed));
        Ok(SplitAssignment::Wait(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    fn add_splits_back(&mut self, _subtask_index: u32, splits: Vec<SourceSplit>) {
        self.returned.extend(splits);
    }
}
