//! Rows as lines of text, for the sinks that write text.
//!
//! A record is text or bytes and is written as it is, with a line end behind it. Where
//! programs read the lines again, a record that has a line end within is refused: it
//! would come back as two.

use engine_rows::{
    descriptor::TypeDescriptor,
    row::{Row, Rows},
};

use super::{ConnectorError, RejectWrite, Role, options::record_type_error};
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

    /// Appends each record and a line end; hands records that are not one line to `reject`.
    ///
    /// # Errors
    /// Returns an error if the batch is damaged, or that of `reject`.
    pub(super) fn append_lines(
        self,
        batch: &RecordBatch,
        out: &mut Vec<u8>,
        reject: &mut RejectWrite<'_>,
    ) -> Result<(), ConnectorError> {
        match batch.kind {
            BatchKind::Lines => out.extend_from_slice(&batch.data),
            BatchKind::Rows => {
                let start = out.len();
                let mut count = 0;
                for row in Rows::new(&batch.data) {
                    append_line(row.map_err(|_| DAMAGED)?, out);
                    count += 1;
                }
                // All at once costs less than row by row.
                if memchr::memchr_iter(b'\n', &out[start..]).count() != count {
                    out.truncate(start);
                    append_single_lines(batch, out, reject)?;
                }
            }
        }
        Ok(())
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

fn append_single_lines(
    batch: &RecordBatch,
    out: &mut Vec<u8>,
    reject: &mut RejectWrite<'_>,
) -> Result<(), ConnectorError> {
    for (index, row) in (0..).zip(Rows::new(&batch.data)) {
        let row = row.map_err(|_| DAMAGED)?;
        match memchr::memchr(b'\n', row.payload) {
            None => append_line(row, out),
            Some(at) => reject(index, &line_end_within(at), row.payload)?,
        }
    }
    Ok(())
}

fn line_end_within(at: usize) -> String {
    format!(
        "the row has a line break at byte {}, and would become two lines: escape it in the program, as JSON does",
        at + 1
    )
}

fn append_line(row: Row<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(row.payload);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use engine_rows::row::{self, NO_TIMESTAMP};

    use super::*;

    #[test]
    fn a_row_with_a_line_end_is_not_written_as_two() {
        let mut data = Vec::new();
        for payload in [&b"a"[..], b"b\nc", b"", b"\n", b"d\r"] {
            row::append(&mut data, Row { key_hash: 1, timestamp: NO_TIMESTAMP, payload });
        }
        let batch = RecordBatch { kind: BatchKind::Rows, count: 5, data: data.into() };
        let mut out = Vec::new();
        let mut refused = Vec::new();
        let mut skip = |row: u32, message: &str, payload: &[u8]| {
            refused.push((row, message.contains("a line break at byte "), payload.to_vec()));
            Ok(())
        };
        TextRows(()).append_lines(&batch, &mut out, &mut skip).expect("skipped");
        assert_eq!(out, b"a\n\nd\r\n");
        assert_eq!(refused, [(1, true, b"b\nc".to_vec()), (3, true, b"\n".to_vec())]);
        let mut fail = |_: u32, _: &str, _: &[u8]| Err(DAMAGED);
        assert!(TextRows(()).append_lines(&batch, &mut out, &mut fail).is_err());
    }
}
