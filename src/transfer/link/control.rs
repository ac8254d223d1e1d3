//! Control messages: what both sides of a link say to each other beside payloads. Both are the same program, so there
//! is no version to agree on.

use bincode::{Decode, Encode};
use omni_core::ids::RequestId;

/// Longest message: an admission with a text of the longest kind that a config allows is far below it.
const MAX_MESSAGE: usize = 64 << 20;

/// A control message of one direction.
pub trait Control: Encode + Decode<()> + Send + 'static {
    /// The request that cannot go on without it.
    fn request(&self) -> Option<RequestId>;
}

/// Bytes that are not what they should be.
#[derive(Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(String);

/// Appends a message to bytes that may hold others already.
///
/// # Errors
/// [`Malformed`] for what has no encoding, such as a path that is not UTF-8.
pub fn append(message: &impl Encode, to: &mut Vec<u8>) -> Result<(), Malformed> {
    bincode::encode_into_std_write(message, to, bincode::config::standard())
        .map(drop)
        .map_err(|error| Malformed(error.to_string()))
}

/// Takes one message off the front.
///
/// # Errors
/// [`Malformed`]; never panics, whatever the bytes.
pub fn take<M: Decode<()>>(from: &mut &[u8]) -> Result<M, Malformed> {
    let config = bincode::config::standard().with_limit::<MAX_MESSAGE>();
    let (message, used) = bincode::decode_from_slice(from, config).map_err(|error| Malformed(error.to_string()))?;
    *from = &from[used..];
    Ok(message)
}
