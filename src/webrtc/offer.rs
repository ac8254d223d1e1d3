//! What is asked of an offer before str0m reads it.

use str0m::RtcError;
use str0m::change::SdpOffer;

/// Sections of media and data, of which a call needs two.
const SECTIONS: usize = 8;
/// What a peer takes as one message where its offer does not say (RFC 8841).
const UNSAID: usize = 64 << 10;
/// What browsers take, and what a call sends at most.
const LARGEST: usize = 256 << 10;

/// Why an offer is not answered.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// It is no description of a session, or not one of this kind.
    #[error("this is no SDP offer: {0}")]
    Broken(String),
    /// Nobody could tell whether the peer is who sent the offer.
    #[error("the offer has no fingerprint of SHA-256 (a=fingerprint:sha-256 ...), by which its sender is known")]
    NoFingerprint,
    /// There is nothing to hear or say.
    #[error("the offer has no sound in Opus; add an audio track or transceiver to the peer connection")]
    NoSound,
    /// Too much of everything.
    #[error("the offer has {0} sections (m=); a call has at most {SECTIONS}")]
    Sections(usize),
    /// Something of ours failed.
    #[error("the call could not be prepared: {0}")]
    Internal(String),
}

impl From<RtcError> for OfferError {
    fn from(error: RtcError) -> OfferError {
        OfferError::Broken(error.to_string().chars().take(200).collect())
    }
}

/// An offer, and how many bytes its sender takes as one message.
pub(crate) fn read(text: &str) -> Result<(SdpOffer, usize), OfferError> {
    // The reader of SDP takes each of the two for an end.
    let lines = || text.split(['\r', '\n']);
    let sections = lines().filter(|line| line.starts_with("m=")).count();
    if sections > SECTIONS {
        return Err(OfferError::Sections(sections));
    }
    // Who answers checks and sends none has no use for the addresses of its peer.
    let lines = lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with("a=candidate:"));
    // str0m would also take SHA-1's word for who the peer is.
    let lines = lines.filter(|line| !line.starts_with("a=fingerprint:") || is_strong(line));
    let text: String = lines.flat_map(|line| [line, "\r\n"]).collect();
    if !text.lines().any(is_strong) {
        return Err(match text.lines().any(|line| line.starts_with("m=")) {
            true => OfferError::NoFingerprint,
            false => OfferError::Broken("it has no section of media (m=)".to_owned()),
        });
    }
    let broken = |error: str0m::error::SdpError| OfferError::Broken(error.to_string().chars().take(200).collect());
    let offer = SdpOffer::from_sdp_string(&text).map_err(broken)?;
    let said = text.lines().find_map(|line| line.strip_prefix("a=max-message-size:")?.parse().ok());
    let largest = match said {
        None => UNSAID,
        Some(0) => LARGEST,
        Some(said) => LARGEST.min(said),
    };
    Ok((offer, largest))
}

/// Whether a line has a fingerprint that no other certificate has.
fn is_strong(line: &str) -> bool {
    let hash = line.strip_prefix("a=fingerprint:").and_then(|rest| rest.split_once(' '));
    hash.is_some_and(|(name, _)| name.eq_ignore_ascii_case("sha-256"))
}
