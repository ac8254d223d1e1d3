//! Why requests are not accepted, or not finished, in words for clients.

use super::voice::VoiceError;
use omni_core::ids::StageName;
use std::time::Duration;

/// A request that was accepted and could not be finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A stage that it needs failed too often and was given up.
    #[error("the {stage} stage failed while it served this request, and was given up: {reason}")]
    StageFailed {
        /// Which stage.
        stage: StageName,
        /// What was seen.
        reason: String,
    },
    /// This sequence alone failed (context full, numbers out of range), and failed again when it was readmitted.
    #[error("the {stage} stage could not go on with this request: {reason}")]
    SequenceFailed {
        /// Which stage.
        stage: StageName,
        /// What was seen.
        reason: String,
    },
    /// Its client neither read nor wrote fast enough.
    #[error("this request waited for its client {} longer than it may: read in real time, and write without long \
        pauses", crate::refusal::seconds(.0))]
    SlowClient(Duration),
    /// It waited for its client while another request needed its place.
    #[error(
        "every place was taken, and this request was waiting for its client: read in real time, and write without \
        long pauses"
    )]
    Yielded,
    /// The stage failed each time it worked on this request, and with no other: a restart does not help.
    #[error("this request brought the {stage} stage down {times} times and was ended; do not send it again: {reason}")]
    BroughtDown {
        /// Which stage.
        stage: StageName,
        /// How often.
        times: u32,
        /// What was seen last.
        reason: String,
    },
    /// What was done for this request alone failed where it should not; the text says where.
    #[error("{0}")]
    Internal(String),
    /// The request's time was up, or its client stopped reading for too long.
    #[error("the request took longer than {}", crate::refusal::seconds(.0))]
    TimedOut(Duration),
    /// The server is stopping and the grace time is over.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Text that arrived later cannot be spoken; the client's doing.
    #[error("{0}")]
    Refused(String),
}

fn seconds(limit: &Duration) -> String {
    format!("{:.1} s", limit.as_secs_f32())
}

/// A request that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The client asked for what cannot be done; the text says what to change. HTTP 400.
    #[error("{message}")]
    Invalid {
        /// The field at fault, as the HTTP API names it.
        param: &'static str,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// One of [`GenerateRequest::media`](super::api::GenerateRequest::media) cannot be heard or seen; the text says
    /// what to change. HTTP 400.
    #[error("{message}")]
    Medium {
        /// Which.
        index: usize,
        /// Which one of its list of frames, if that is at fault.
        frame: Option<usize>,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// As many requests as configured are being served. HTTP 429.
    #[error("{limit} requests are being served already; try again in {} s", retry_after.as_secs().max(1))]
    Full {
        /// The configured number.
        limit: usize,
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// It could not be served in time, or not without taking from others. HTTP 429.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil().max(1.0))]
    Later {
        /// Why.
        reason: LaterReason,
        /// When it is likely to be accepted.
        retry_after: Duration,
    },
    /// Something that the request needs has a queue that is full. HTTP 429.
    #[error("{0}")]
    Busy(String),
    /// What was done for this request alone failed where it should not. HTTP 500.
    #[error("{0}")]
    Internal(String),
    /// Stages are loading or restarting. HTTP 503.
    #[error("not ready: {0}")]
    NotReady(String),
    /// Draining before exit. HTTP 503.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Why a request should come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaterReason {
    /// One stream more would make some stutter.
    #[error("this server carries {0} streams in real time at this moment, and they are taken")]
    Streams(usize),
    /// The first sound would come too late.
    #[error("the first sound would come after {:.1} s, later than the {:.1} s that it may take", expected.as_secs_f32(), deadline.as_secs_f32())]
    FirstSound {
        /// When it would come.
        expected: Duration,
        /// When it has to.
        deadline: Duration,
    },
    /// The tenant has its fair share of the places, and other tenants ask for theirs.
    #[error("you have your share of the places, and others want theirs")]
    Share,
    /// As many as this tenant may have at once.
    #[error("{0} of your requests are being served already, which is your limit")]
    OwnPlaces(usize),
    /// As many as this tenant may have in a minute.
    #[error("you have used up your {0} requests per minute")]
    OwnRate(u32),
    /// It has no deadline, and the server expects requests that have one.
    #[error("requests without a deadline yield to streams that have one")]
    Yields,
}

impl From<VoiceError> for SubmitError {
    fn from(error: VoiceError) -> SubmitError {
        match error {
            VoiceError::Invalid { param, message } => SubmitError::Invalid { param, message },
            VoiceError::Busy => SubmitError::Busy(error.to_string()),
            VoiceError::Internal(message) => SubmitError::Internal(message),
            VoiceError::Storage(_) | VoiceError::NotReady(_) => SubmitError::NotReady(error.to_string()),
            other => SubmitError::Invalid { param: "voice", message: other.to_string() },
        }
    }
}
