//! A sink that takes rows and does nothing with them, and the committer of all
//! sinks whose output is visible at once.

use super::{Committable, ConnectorError, RestoredOutput, SinkCommitter, SinkWriter};
use crate::base::stream_element::{CheckpointId, RecordBatch};

/// Discards rows.
pub(super) struct DiscardWriter;

impl SinkWriter for DiscardWriter {
    fn write(&mut self, _batch: &RecordBatch) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn prepare_commit(&mut self, _checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        Ok(Vec::new())
    }
}

/// Has nothing to make visible.
pub(super) struct NothingToCommit;

impl SinkCommitter for NothingToCommit {
    fn prepare(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn recover(&mut self, restored: RestoredOutput) -> Result<(), ConnectorError> {
        self.commit(restored.committables)
    }

    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        match committables.as_slice() {
            [] => Ok(()),
            _ => Err(ConnectorError::Damaged("a committable of a sink that makes none")),
        }
    }

    fn abort(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }
}
