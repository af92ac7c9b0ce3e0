//! Rows as lines of text, for the sinks that write text.
//!
//! A record is text or bytes and is written as it is, with a line end behind it.

use engine_rows::{
    descriptor::TypeDescriptor,
    row::{Row, Rows},
};

use super::{ConnectorError, Role, options::record_type_error};
use crate::{
    base::stream_element::{BatchKind, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// Writes batches as lines; made only for records that are text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextRows(());

impl TextRows {
    /// # Errors
    /// Returns an error if the records are not text.
    pub(super) fn new(record_type: &str, spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        match TypeDescriptor::parse(record_type) {
            Ok(TypeDescriptor::String | TypeDescriptor::Bytes) => Ok(Self(())),
            _ => {
                let problem = format!("it writes text, but the records are {record_type}: map them to text first");
                Err(record_type_error(spec, Role::Sink, problem))
            }
        }
    }

    /// Appends each record and a line end.
    ///
    /// # Errors
    /// Returns an error if the batch is damaged.
    pub(super) fn append(self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), ConnectorError> {
        match batch.kind {
            BatchKind::Lines => out.extend_from_slice(&batch.data),
            BatchKind::Rows => {
                for row in Rows::new(&batch.data) {
                    append_line(row.map_err(|_| DAMAGED)?, out);
                }
            }
        }
        Ok(())
    }

    /// Appends the prefix, a record and a line end, for each record.
    ///
    /// # Errors
    /// Returns an error if the batch is damaged.
    pub(super) fn append_with_prefix(
        self,
        prefix: &str,
        batch: &RecordBatch,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectorError> {
        match batch.kind {
            BatchKind::Lines => {
                for line in batch.data.split_inclusive(|byte| *byte == b'\n') {
                    out.extend_from_slice(prefix.as_bytes());
                    out.extend_from_slice(line);
                }
            }
            BatchKind::Rows => {
                for row in Rows::new(&batch.data) {
                    out.extend_from_slice(prefix.as_bytes());
                    append_line(row.map_err(|_| DAMAGED)?, out);
                }
            }
        }
        Ok(())
    }
}

const DAMAGED: ConnectorError = ConnectorError::Damaged("a batch");

fn append_line(row: Row<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(row.payload);
    out.push(b'\n');
}
