//! Keyed state and timers on their way to a checkpoint and back.

use std::io::{self, Write};

use super::KeyedState;
use crate::base::stream_element::CheckpointId;

/// Bytes of a snapshot cannot be restored.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct RestoreError(pub String);

/// State at one moment, to be written on another thread.
pub struct KeyedStateSnapshot {}

impl KeyedStateSnapshot {
    /// True if it holds all state, not only what changed since the last confirmed checkpoint.
    pub fn is_full(&self) -> bool {
        todo!("state helper")
    }

    /// Writes key group after key group. Returns key group and length of each that has content.
    ///
    /// # Errors
    /// Returns an error if `out` fails.
    pub fn write(self, _out: &mut dyn Write) -> io::Result<Vec<(u32, u64)>> {
        todo!("state helper")
    }
}

impl KeyedState {
    /// From here on notes what changes, so that snapshots may hold only that.
    pub fn track_changes(&mut self) {
        todo!("state helper")
    }

    /// Stands in for what the state helper writes.
    pub fn build_upon(&mut self, _part_bytes: &[u64]) {}

    /// The state as it is now. All of it if `is_full`, at the first time, and where less than
    /// all would not be less to write; else what changed since the last confirmed checkpoint.
    pub fn snapshot(&mut self, _checkpoint_id: CheckpointId, _is_full: bool) -> KeyedStateSnapshot {
        todo!("state helper")
    }

    /// What was written for this checkpoint can be built upon.
    pub fn checkpoint_completed(&mut self, _checkpoint_id: CheckpointId) {
        todo!("state helper")
    }

    /// Takes the part of one key group of a snapshot, the full one first. Key groups of other
    /// subtasks are refused. `states` maps the places of states in the snapshot to places here;
    /// none: dropped.
    ///
    /// # Errors
    /// Returns an error if the bytes are not well formed.
    pub fn restore(&mut self, _key_group: u32, _content: &[u8], _states: &[Option<usize>]) -> Result<(), RestoreError> {
        todo!("state helper")
    }
}
