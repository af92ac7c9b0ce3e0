//! The bytes of a `_metadata` file: magic, version, length, body, checksum.

use super::CheckpointMetadata;

const MAGIC: &[u8; 8] = b"EngChkpt";
const VERSION: u32 = 1;
/// Magic, version (u32) and length of the body (u64), little-endian.
const HEADER_BYTES: usize = 20;
/// CRC-32 of all before it.
const CHECKSUM_BYTES: usize = 4;
/// With which the metadata of Apache Flink begins.
const FLINK_MAGIC: [u8; 4] = [0x49, 0x60, 0x67, 0x2d];

/// Why bytes are not metadata.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum FormatError {
    /// They begin as nothing that this engine wrote; whose it may be.
    Foreign(&'static str),
    Version {
        version: u32,
        known: u32,
    },
    /// What is wrong.
    Damaged(String),
}

pub(super) fn encode(metadata: &CheckpointMetadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    let body = postcard::to_stdvec(metadata).expect("metadata has lists of known length only");
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<CheckpointMetadata, FormatError> {
    let damaged = |problem: String| Err(FormatError::Damaged(problem));
    if bytes.starts_with(&FLINK_MAGIC) {
        return Err(FormatError::Foreign(": it begins as those of Apache Flink do, which cannot be read"));
    }
    let common = bytes.len().min(MAGIC.len());
    if bytes[..common] != MAGIC[..common] {
        return Err(FormatError::Foreign(""));
    }
    let (Some(header), Some((content, checksum))) =
        (bytes.first_chunk::<HEADER_BYTES>(), bytes.split_last_chunk::<CHECKSUM_BYTES>())
    else {
        return damaged(format!("it is cut off after {} bytes", bytes.len()));
    };
    let [.., v0, v1, v2, v3, l0, l1, l2, l3, l4, l5, l6, l7] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let length = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    let expected = length.saturating_add((HEADER_BYTES + CHECKSUM_BYTES) as u64);
    if bytes.len() as u64 != expected {
        return damaged(format!("it has {} bytes, by its header {expected}", bytes.len()));
    }
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return damaged("its checksum is wrong".to_owned());
    }
    if version != VERSION {
        return Err(FormatError::Version { version, known: VERSION });
    }
    match postcard::take_from_bytes(&content[HEADER_BYTES..]) {
        Ok((metadata, [])) => Ok(metadata),
        Ok((_, rest)) => damaged(format!("{} bytes follow its body", rest.len())),
        Err(error) => damaged(format!("its body cannot be read: {error}")),
    }
}
