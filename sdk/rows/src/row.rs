//! Layout of rows in a batch.
//!
//! | offset | bytes  | field     | meaning                                        |
//! |--------|--------|-----------|------------------------------------------------|
//! | 0      | 4      | length    | u32, bytes of payload                          |
//! | 4      | 4      | key hash  | u32, see [`crate::key_hash`]; or a channel; or 0 |
//! | 8      | 8      | timestamp | i64, ms since the Unix epoch; MIN: none        |
//! | 16     | length | payload   | one record                                     |
//!
//! Integers are little-endian. Rows follow one another without padding.

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;
/// Timestamp of a row that has none.
pub const NO_TIMESTAMP: i64 = i64::MIN;

/// A row of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Row<'a> {
    /// Hash of the key, or a channel, or 0.
    pub key_hash: u32,
    /// Milliseconds since the Unix epoch; [`NO_TIMESTAMP`]: none.
    pub timestamp: i64,
    /// The record.
    pub payload: &'a [u8],
}

/// The bytes at some offset are not a whole row.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadRow {
    /// Offset of the row's header in the batch.
    pub offset: usize,
}

impl std::fmt::Display for BadRow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "the row at byte {} runs past the end of the batch", self.offset)
    }
}

impl std::error::Error for BadRow {}

/// Walks over the rows of a batch; ends after the first damaged one.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    batch: &'a [u8],
    offset: usize,
}

impl<'a> Rows<'a> {
    /// Rows of the given batch.
    pub fn new(batch: &'a [u8]) -> Self {
        Self { batch, offset: 0 }
    }

    /// Bytes walked over so far.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, BadRow>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.batch[self.offset..];
        if rest.is_empty() {
            return None;
        }
        let Some((header, payload)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return Some(self.fail());
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(payload) = payload.get(..length) else {
            return Some(self.fail());
        };
        self.offset += HEADER_BYTES + length;
        let [.., t0, t1, t2, t3, t4, t5, t6, t7] = *header;
        Some(Ok(Row {
            key_hash: u32::from_le_bytes([header[4], header[5], header[6], header[7]]),
            timestamp: i64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            payload,
        }))
    }
}

impl<'a> Rows<'a> {
    fn fail(&mut self) -> Result<Row<'a>, BadRow> {
        let offset = std::mem::replace(&mut self.offset, self.batch.len());
        Err(BadRow { offset })
    }
}

/// Appends a row whose payload `write` appends.
///
/// # Panics
/// Panics if the payload is 4 GiB or longer.
#[inline]
pub fn append_with(batch: &mut Vec<u8>, key_hash: u32, timestamp: i64, write: impl FnOnce(&mut Vec<u8>)) {
    let start = batch.len();
    // One append, and so one check of the capacity, instead of three.
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&key_hash.to_le_bytes());
    header[8..].copy_from_slice(&timestamp.to_le_bytes());
    batch.extend_from_slice(&header);
    write(batch);
    let length = u32::try_from(batch.len() - start - HEADER_BYTES).expect("a row is shorter than 4 GiB");
    batch[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends a row.
///
/// # Panics
/// Panics if the payload is 4 GiB or longer.
#[inline]
pub fn append(batch: &mut Vec<u8>, row: Row<'_>) {
    append_with(batch, row.key_hash, row.timestamp, |batch| batch.extend_from_slice(row.payload));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_rows_are_walked_over_again() {
        let rows = [
            Row { key_hash: 7, timestamp: -1, payload: b"abc" },
            Row { key_hash: u32::MAX, timestamp: NO_TIMESTAMP, payload: b"" },
        ];
        let mut batch = Vec::new();
        rows.iter().for_each(|row| append(&mut batch, *row));
        assert_eq!(batch[..20], *b"\x03\0\0\0\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xffabc\0");
        assert_eq!(Rows::new(&batch).collect::<Result<Vec<_>, _>>(), Ok(rows.to_vec()));
    }

    #[test]
    fn a_row_past_the_end_is_refused_once() {
        let mut batch = Vec::new();
        append(&mut batch, Row { key_hash: 0, timestamp: 0, payload: b"abcd" });
        for end in 1..batch.len() {
            let walked: Vec<_> = Rows::new(&batch[..end]).collect();
            assert_eq!(walked, [Err(BadRow { offset: 0 })]);
        }
    }
}
