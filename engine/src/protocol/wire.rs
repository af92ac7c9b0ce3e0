//! The codec of the control plane: how an [`Envelope`], or a stored value, looks as bytes.
//!
//! | offset | length | meaning |
//! |---|---|---|
//! | 0 | 4 | magic, `WSEM` for messages; stored values bring their own |
//! | 4 | 2 | version, little-endian |
//! | 6 | 2 | zero |
//! | 8 | 4 | length of the payload in bytes, little-endian |
//! | 12 | 4 | CRC-32 of the payload, little-endian |
//! | 16 | | payload, postcard |
//!
//! A decoder refuses what it does not know instead of guessing: another magic or
//! version, a length that differs from what is there, a checksum that does not fit.

use serde::{Serialize, de::DeserializeOwned};

use super::rpc::Envelope;

/// Version of the messages; changed with every change of their types.
pub const MESSAGE_VERSION: u16 = 2;
/// Longest message in bytes, its header left out: a job graph of thousands of
/// vertices takes a tenth of it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

const MESSAGE_MAGIC: [u8; 4] = *b"WSEM";
const HEADER_BYTES: usize = 16;

/// What a kind of encoded values begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Format {
    /// First four bytes.
    pub magic: [u8; 4],
    /// Version that is written, and the only one that is read.
    pub version: u16,
    /// Longest payload in bytes.
    pub bytes_max: usize,
}

const MESSAGE: Format = Format { magic: MESSAGE_MAGIC, version: MESSAGE_VERSION, bytes_max: MESSAGE_BYTES_MAX };

/// Bytes are no value of the expected format, or a value cannot be written in it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than a header has, or than it announces.
    #[error("cut off after {0} bytes")]
    CutOff(usize),
    /// Something else altogether.
    #[error("begins with {0:02x?} instead of the format's name")]
    Magic([u8; 4]),
    /// Written by another version of the engine.
    #[error("has version {found}, but this engine reads version {expected}: use the engine that wrote it")]
    Version {
        /// As read.
        found: u16,
        /// As known.
        expected: u16,
    },
    /// Longer than allowed.
    #[error("takes {0} bytes, more than the {1} allowed")]
    TooLong(usize, usize),
    /// More bytes than announced.
    #[error("has {0} bytes after its end")]
    Trailing(usize),
    /// The payload was changed after it was written.
    #[error("is damaged: its checksum does not fit")]
    Checksum,
    /// The payload is no value of the type.
    #[error("is damaged: {0}")]
    Payload(String),
}

/// Encodes a message.
///
/// # Errors
/// Returns [`WireError::TooLong`] if it is longer than [`MESSAGE_BYTES_MAX`].
pub fn encode(envelope: &Envelope) -> Result<Vec<u8>, WireError> {
    encode_as(MESSAGE, envelope)
}

/// Decodes a message.
///
/// # Errors
/// Returns an error if the bytes are not exactly one message.
pub fn decode(bytes: &[u8]) -> Result<Envelope, WireError> {
    decode_as(MESSAGE, bytes)
}

/// Encodes a value with the header of `format`.
///
/// # Errors
/// Returns [`WireError::TooLong`] if the payload is longer than the format allows.
pub fn encode_as<T: Serialize>(format: Format, value: &T) -> Result<Vec<u8>, WireError> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes = postcard::to_extend(value, bytes).map_err(|error| WireError::Payload(error.to_string()))?;
    let length = bytes.len() - HEADER_BYTES;
    let too_long = WireError::TooLong(length, format.bytes_max);
    if format.bytes_max < length {
        return Err(too_long);
    }
    let checksum = crc32fast::hash(&bytes[HEADER_BYTES..]);
    bytes[0..4].copy_from_slice(&format.magic);
    bytes[4..6].copy_from_slice(&format.version.to_le_bytes());
    bytes[8..12].copy_from_slice(&u32::try_from(length).map_err(|_| too_long)?.to_le_bytes());
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// Decodes a value with the header of `format`.
///
/// # Errors
/// Returns an error if the bytes are not exactly one such value.
pub fn decode_as<T: DeserializeOwned>(format: Format, bytes: &[u8]) -> Result<T, WireError> {
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or(WireError::CutOff(bytes.len()))?;
    let word = |offset: usize| u32::from_le_bytes([0, 1, 2, 3].map(|index| header[offset + index]));
    let magic = [0, 1, 2, 3].map(|index| header[index]);
    if magic != format.magic {
        return Err(WireError::Magic(magic));
    }
    let found = u16::from_le_bytes([header[4], header[5]]);
    if found != format.version || header[6..8] != [0, 0] {
        return Err(WireError::Version { found, expected: format.version });
    }
    let length = word(8) as usize;
    if format.bytes_max < length {
        return Err(WireError::TooLong(length, format.bytes_max));
    }
    if payload.len() < length {
        return Err(WireError::CutOff(bytes.len()));
    }
    if length < payload.len() {
        return Err(WireError::Trailing(payload.len() - length));
    }
    if crc32fast::hash(payload) != word(12) {
        return Err(WireError::Checksum);
    }
    let (value, rest) = postcard::take_from_bytes(payload).map_err(|error| WireError::Payload(error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(WireError::Trailing(rest.len())) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        base::ids::{AllocationId, JobId, JobMasterId, ResourceId, ResourceManagerId, SlotId},
        protocol::{
            rpc::{Address, Fence, Message},
            task_executor::{SlotRequest, TaskExecutorMessage},
        },
    };

    fn slot_request() -> Envelope {
        let task_executor = ResourceId("tm-1".to_owned());
        Envelope {
            from: Address::ResourceManager,
            to: Address::TaskExecutor(task_executor.clone()),
            fence: Fence::ResourceManager(ResourceManagerId::from_bytes([7; 16])),
            message: Message::TaskExecutor(TaskExecutorMessage::RequestSlot(SlotRequest {
                slot: SlotId { task_executor, index: 3 },
                job: JobId::from_bytes([1; 16]),
                allocation: AllocationId::from_bytes([2; 16]),
                job_master: JobMasterId::from_bytes([3; 16]),
            })),
        }
    }

    #[test]
    fn a_message_comes_back_as_it_was() {
        let bytes = encode(&slot_request()).unwrap();
        assert_eq!(&bytes[..8], b"WSEM\x02\0\0\0");
        assert_eq!(decode(&bytes), Ok(slot_request()));
    }

    #[test]
    fn what_is_not_exactly_one_message_is_refused() {
        let bytes = encode(&slot_request()).unwrap();
        let changed = |index: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[index] = value;
            decode(&bytes)
        };
        assert_eq!(changed(0, b'X'), Err(WireError::Magic(*b"XSEM")));
        assert_eq!(changed(4, 9), Err(WireError::Version { found: 9, expected: 2 }));
        assert_eq!(changed(11, 0xff).map_err(|error| std::mem::discriminant(&error)), {
            Err(std::mem::discriminant(&WireError::TooLong(0, 0)))
        });
        let last = bytes.len() - 1;
        assert_eq!(changed(last, !bytes[last]), Err(WireError::Checksum));
        assert_eq!(decode(&bytes[..last]), Err(WireError::CutOff(last)));
        assert_eq!(decode(&bytes[..5]), Err(WireError::CutOff(5)));
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(decode(&longer), Err(WireError::Trailing(1)));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let format = Format { bytes_max: 10, ..MESSAGE };
        assert_eq!(encode_as(format, &"0123456789"), Err(WireError::TooLong(11, 10)));
        assert_eq!(encode_as(format, &"012345678").and_then(|bytes| decode_as::<String>(format, &bytes)), {
            Ok("012345678".to_owned())
        });
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = encode_as(MESSAGE, &()).unwrap();
            bytes[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            bytes[12..16].copy_from_slice(&crc32fast::hash(&payload).to_le_bytes());
            bytes.extend(payload);
            if let Ok(envelope) = decode(&bytes) {
                // Compared as bytes, since NaN differs from itself.
                let encoded = encode(&envelope).unwrap();
                prop_assert_eq!(decode(&encoded).and_then(|again| encode(&again)), Ok(encoded));
            }
        }
    }
}
