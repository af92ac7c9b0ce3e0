//! The enumerator of sources whose splits are known from the start.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{ConnectorError, SourceSplit, SplitAssignment, SplitEnumerator, encoding};

/// Splits, each meant for one subtask.
#[derive(Debug)]
pub(super) struct SplitQueue {
    /// Subtask index and split.
    splits: VecDeque<(u32, SourceSplit)>,
    parallelism: u32,
    replayable: Replayable,
}

/// What an enumerator writes into a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct QueueState {
    pub(super) parallelism: u32,
    /// Subtask index and split of what was not dealt.
    pub(super) splits: Vec<(u32, SourceSplit)>,
}

/// Whether what a reader has read can be read again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Replayable {
    Yes,
    No,
}

impl SplitQueue {
    pub(super) fn new(
        parallelism: u32,
        splits: impl IntoIterator<Item = (u32, SourceSplit)>,
        replayable: Replayable,
    ) -> Self {
        Self { splits: splits.into_iter().collect(), parallelism, replayable }
    }

    /// Reads what [`SplitEnumerator::snapshot`] gave.
    ///
    /// # Errors
    /// Returns an error if it is damaged.
    pub(super) fn decode(state: &[u8]) -> Result<QueueState, ConnectorError> {
        encoding::decode(state, "the state of a source")
    }
}

impl SplitEnumerator for SplitQueue {
    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        let found = self.splits.iter().position(|(owner, _)| *owner == subtask_index);
        let split = found.and_then(|index| self.splits.remove(index));
        Ok(split.map_or(SplitAssignment::NoMoreSplits, |(_, split)| SplitAssignment::Split(split)))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        splits.into_iter().rev().for_each(|split| self.splits.push_front((subtask_index, split)));
    }

    fn snapshot(&self) -> Vec<u8> {
        let splits = self.splits.iter().cloned().collect();
        encoding::encode(&QueueState { parallelism: self.parallelism, splits })
    }

    fn is_replayable(&self) -> bool {
        self.replayable == Replayable::Yes
    }
}
