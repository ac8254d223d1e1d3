//! What admission is asked, what it answers, and what it is told to keep to.

use super::shares::Tenant;
use std::time::Duration;

/// The service level of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slo {
    /// No deadline: it gets the time that other streams leave.
    #[default]
    BestEffort,
    /// Nobody waits for it: it takes what is free, and ends as soon as a request of another level wants that.
    Background,
    /// A person listens: the first sound within this time, and from then on sound in real time.
    Realtime(Duration),
}

/// What admission knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The tenant that sends it.
    pub tenant: Tenant,
    /// Its service level.
    pub slo: Slo,
    /// Whether its times tell how fast this server is. They do not where the client is still writing the text, or wants
    /// what takes longer than an ordinary request.
    pub steady: bool,
    /// Whether the thinker has to answer first: first sounds of chats are another population.
    pub chat: bool,
    /// Whether the tenant was charged for it before: it was refused, not for [`Reason::OwnRate`], and asks again.
    pub charged: bool,
}

/// One admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every place is taken.
    Places,
    /// With one stream more, deadlines would be missed.
    Streams {
        /// How many the server carries.
        capacity: usize,
    },
    /// The first sound would come after its deadline.
    FirstSound {
        /// When it would come.
        expected: Duration,
        /// When it has to.
        deadline: Duration,
    },
    /// This tenant has its fair share of the places, and other tenants ask for theirs.
    Share,
    /// As many as this tenant may have at once.
    OwnPlaces(usize),
    /// As many as this tenant may have in a minute.
    OwnRate(u32),
    /// It has no deadline, and the server expects requests that have one.
    Yields,
}

impl Reason {
    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Places => "places",
            Reason::Streams { .. } => "streams",
            Reason::FirstSound { .. } => "first_sound",
            Reason::Share => "share",
            Reason::OwnPlaces(_) => "own_places",
            Reason::OwnRate(_) => "own_rate",
            Reason::Yields => "yields",
        }
    }
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When a place is expected.
    pub retry_after: Duration,
}

/// An accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its name.
    pub ticket: Ticket,
    /// A request that is to be ended, because its client has kept it waiting for longest and too many are paused.
    pub instead_of: Option<Ticket>,
}

/// Why admission ends a request. Its place is free already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It waited for its client for longer than it may.
    Slow(Duration),
    /// It lived for longer than it may, having given its client little to hear.
    Old(Duration),
}

/// What the config says.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Requests at once.
    pub places: usize,
    /// Whether deadlines decide, or places alone.
    pub by_deadlines: bool,
    /// The server's own deadline for a first sound.
    pub first_audio: Duration,
    /// How long a request may wait for its client.
    pub slow_client: Duration,
    /// How long a request may live, besides what its client hears.
    pub life: Duration,
}

/// What admission tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AdmissionStatus {
    /// Streams that the server carries in real time.
    pub capacity: usize,
    /// Requests that have a permit.
    pub held: usize,
    /// How many of those have a deadline.
    pub realtime: usize,
}

/// Whether a stream met its SLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The first sound came in time; `None` if there was none to come.
    pub first_sound: Option<bool>,
    /// The rest came in real time; `None` if there was none.
    pub playback: Option<bool>,
}
