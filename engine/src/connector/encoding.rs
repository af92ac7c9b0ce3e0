//! How splits, states of enumerators and committables are written: a byte for the version
//! of the encoding, then the value. They stand in checkpoints and savepoints, which later
//! versions of the engine read.

use serde::{Serialize, de::DeserializeOwned};

use super::ConnectorError;

/// Raised when what is encoded changes its shape.
const VERSION: u8 = 1;

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("what connectors encode is plain data")
}

/// # Errors
/// Returns an error that names `what`, for example "a split of a file source".
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T, ConnectorError> {
    match bytes {
        [VERSION, value @ ..] => postcard::from_bytes(value).map_err(|_| ConnectorError::Damaged(what)),
        _ => Err(ConnectorError::Damaged(what)),
    }
}
