//! The encoded JobGraph: what is uploaded and what is stored.
//!
//! | offset | bytes | meaning                                            |
//! |--------|-------|----------------------------------------------------|
//! | 0      | 8     | `engineJG`                                         |
//! | 8      | 4     | version, u32 little-endian: [`VERSION`]            |
//! | 12     | 8     | length of the payload, u64 little-endian           |
//! | 20     | 32    | SHA-256 of the payload                             |
//! | 52     | …     | payload: the [`JobGraph`] in the encoding postcard |
//!
//! Nothing follows the payload. The version rises with every change of the types
//! within a [`JobGraph`]; no other version is read.

use sha2::{Digest, Sha256};

use super::job_graph::JobGraph;

/// Version of the encoding.
pub const VERSION: u32 = 1;
/// Most bytes that are decoded.
pub const ENCODED_BYTES_MAX: usize = 32 << 20;

const MAGIC: [u8; 8] = *b"engineJG";
const HEADER_BYTES: usize = 52;

/// A JobGraph cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[error("the job graph cannot be encoded")]
pub struct EncodeJobGraphError(#[from] postcard::Error);

/// Bytes are not a JobGraph.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeJobGraphError {
    /// Something else, or nothing.
    #[error("not a job graph: the file does not begin with \"engineJG\"")]
    Magic,
    /// Made by another version of the engine.
    #[error(
        "the job graph has the version {found}, this engine reads version {VERSION}: submit it with the same version"
    )]
    Version {
        /// As found.
        found: u32,
    },
    /// Too long to be looked at.
    #[error("the job graph has {bytes} bytes: at most {ENCODED_BYTES_MAX} are allowed")]
    TooLong {
        /// As found.
        bytes: usize,
    },
    /// Cut within the header.
    #[error("the job graph is cut: it has {bytes} bytes, its header alone {HEADER_BYTES}")]
    Header {
        /// As found.
        bytes: usize,
    },
    /// Cut, or followed by something.
    #[error("the job graph should have {expected} bytes behind its header, but has {found}")]
    Length {
        /// As the header says.
        expected: u64,
        /// As found.
        found: usize,
    },
    /// Changed on the way.
    #[error("the job graph is damaged: its checksum is wrong")]
    Checksum,
    /// Well kept, but not made by this engine.
    #[error("the job graph is malformed: {0}")]
    Malformed(String),
}

/// Encodes a JobGraph.
///
/// # Errors
/// Returns an error if a granted path is not UTF-8.
pub fn encode(job_graph: &JobGraph) -> Result<Vec<u8>, EncodeJobGraphError> {
    let payload = postcard::to_stdvec(job_graph)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(Sha256::digest(&payload));
    bytes.extend(payload);
    Ok(bytes)
}

/// Decodes a JobGraph, whose content is not checked; see
/// [`super::job_graph_validation::validate_job_graph`].
///
/// # Errors
/// Returns an error if the bytes are not what [`encode`] makes.
pub fn decode(bytes: &[u8]) -> Result<JobGraph, DecodeJobGraphError> {
    if bytes.len() > ENCODED_BYTES_MAX {
        return Err(DecodeJobGraphError::TooLong { bytes: bytes.len() });
    }
    let rest = bytes.strip_prefix(&MAGIC).ok_or(DecodeJobGraphError::Magic)?;
    let cut = || DecodeJobGraphError::Header { bytes: bytes.len() };
    let (version, rest) = rest.split_first_chunk().ok_or_else(cut)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(DecodeJobGraphError::Version { found });
    }
    let (length, rest) = rest.split_first_chunk().ok_or_else(cut)?;
    let (checksum, payload) = rest.split_first_chunk::<32>().ok_or_else(cut)?;
    let expected = u64::from_le_bytes(*length);
    if expected != payload.len() as u64 {
        return Err(DecodeJobGraphError::Length { expected, found: payload.len() });
    }
    if Sha256::digest(payload).as_slice() != checksum {
        return Err(DecodeJobGraphError::Checksum);
    }
    match postcard::take_from_bytes(payload) {
        Ok((job_graph, [])) => Ok(job_graph),
        Ok((_, rest)) => Err(DecodeJobGraphError::Malformed(format!("{} bytes follow it", rest.len()))),
        Err(error) => Err(DecodeJobGraphError::Malformed(error.to_string())),
    }
}
