//! The enumerator of sources whose splits are known from the start.

use std::collections::VecDeque;

use super::{ConnectorError, SourceSplit, SplitAssignment, SplitEnumerator};

/// Splits, each meant for one subtask.
#[derive(Debug)]
pub(super) struct SplitQueue {
    /// Subtask index and split.
    splits: VecDeque<(u32, SourceSplit)>,
}

impl SplitQueue {
    pub(super) fn new(splits: impl IntoIterator<Item = (u32, SourceSplit)>) -> Self {
        Self { splits: splits.into_iter().collect() }
    }
}

impl SplitEnumerator for SplitQueue {
    fn snapshot(&self) -> Vec<u8> {
        todo!("connector helper")
    }

    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        let found = self.splits.iter().position(|(owner, _)| *owner == subtask_index);
        let split = found.and_then(|index| self.splits.remove(index));
        Ok(split.map_or(SplitAssignment::NoMoreSplits, |(_, split)| SplitAssignment::Split(split)))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        self.splits.extend(splits.into_iter().map(|split| (subtask_index, split)));
    }
}
