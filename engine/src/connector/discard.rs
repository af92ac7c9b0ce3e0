//! A sink that takes rows and does nothing with them, and the committer of all
//! sinks whose output is visible at once.

use super::{Committable, ConnectorError, SinkCommitter, SinkWriter};
use crate::base::stream_element::RecordBatch;

/// Discards rows.
pub(super) struct DiscardWriter;

impl SinkWriter for DiscardWriter {
    fn prepare_commit(
        &mut self,
        _checkpoint_id: crate::base::stream_element::CheckpointId,
    ) -> Result<Vec<Committable>, ConnectorError> {
        todo!("connector helper")
    }

    fn write(&mut self, _batch: &RecordBatch) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        Ok(Vec::new())
    }
}

/// Has nothing to make visible.
pub(super) struct NothingToCommit;

impl SinkCommitter for NothingToCommit {
    fn recover(
        &mut self,
        _checkpoint_id: crate::base::stream_element::CheckpointId,
        _committables: Vec<Committable>,
    ) -> Result<(), ConnectorError> {
        todo!("connector helper")
    }

    fn prepare(&mut self) -> Result<(), ConnectorError> {
        Ok(())
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
