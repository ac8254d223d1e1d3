//! The ways between stages, and what has passed over each.

use omni_core::ids::{FinishReason, StageName};
use omni_stage::Outputs;
use omni_transfer::payload::{Kind, Part};
use std::time::Duration;

/// A way that units of a request take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// Text that the client gives to the first stage.
    Text,
    /// Spectra and pixels of the client's media, for the encoder.
    Features,
    /// Embeddings of media from the encoder to the thinker.
    Media,
    /// Embeddings from the thinker to the talker.
    Embeddings,
    /// Codes from the talker to the vocoder.
    Codes,
    /// An answer's tokens from the thinker to the client.
    Tokens,
    /// Samples from the vocoder to the client.
    Audio,
}

impl Edge {
    /// Every edge.
    pub const ALL: [Edge; 7] =
        [Edge::Text, Edge::Features, Edge::Media, Edge::Embeddings, Edge::Codes, Edge::Tokens, Edge::Audio];

    /// Its producer, its consumer, and what it carries. `None` is the client; text goes to the first stage of the
    /// family.
    pub(super) fn ends(self) -> (Option<StageName>, Option<StageName>, Kind) {
        match self {
            Edge::Text => (None, Some(StageName::Thinker), Kind::Tokens),
            Edge::Features => (None, Some(StageName::Encoder), Kind::Features),
            Edge::Media => (Some(StageName::Encoder), Some(StageName::Thinker), Kind::Media),
            Edge::Embeddings => (Some(StageName::Thinker), Some(StageName::Talker), Kind::Embeddings),
            Edge::Codes => (Some(StageName::Talker), Some(StageName::Vocoder), Kind::Codes),
            Edge::Tokens => (Some(StageName::Thinker), None, Kind::Tokens),
            Edge::Audio => (Some(StageName::Vocoder), None, Kind::Audio),
        }
    }

    /// The edges that a stage sends on.
    pub fn from_stage(stage: StageName) -> impl Iterator<Item = Edge> {
        Edge::ALL.into_iter().filter(move |edge| edge.producer() == Some(stage))
    }

    /// The edge that a stage gets its input from, where a request has no media. The encoder has no other requests.
    pub fn into_stage(stage: StageName, is_first: bool) -> Edge {
        if stage == StageName::Encoder {
            return Edge::Features;
        }
        let fed = |edge: &Edge| !is_first && edge.ends().1 == Some(stage);
        Edge::ALL.into_iter().find(fed).unwrap_or(Edge::Text)
    }

    /// The edge that carries payloads of this kind.
    pub fn of(kind: Kind) -> Edge {
        match kind {
            Kind::Features => Edge::Features,
            Kind::Media => Edge::Media,
            Kind::Embeddings => Edge::Embeddings,
            Kind::Codes => Edge::Codes,
            Kind::Tokens => Edge::Tokens,
            Kind::Audio => Edge::Audio,
        }
    }

    /// The stage that sends on it; `None` for the client.
    pub fn producer(self) -> Option<StageName> {
        self.ends().0
    }

    /// What it carries.
    pub fn kind(self) -> Kind {
        self.ends().2
    }

    /// The edges that a stage with these outputs sends on.
    pub(super) fn out_of(stage: StageName, deliver: Outputs) -> impl Iterator<Item = Edge> {
        Edge::from_stage(stage).filter(move |edge| if *edge == Edge::Tokens { deliver.tokens } else { deliver.speech })
    }
}

/// What has passed over one edge for one request.
#[derive(Default)]
pub(super) struct EdgeLog {
    pub units: u32,
    pub ended: Option<FinishReason>,
    /// The consumer has acknowledged the units before this one.
    pub acked: u32,
    /// When the first unit passed.
    pub began: Option<Duration>,
    /// The data itself, until the consumer can never need it again: embeddings as they came, or integers.
    pub kept: Vec<(u32, Part)>,
    pub values: Vec<u32>,
}

impl EdgeLog {
    pub fn bytes(&self) -> usize {
        self.values.len() * 4 + self.kept.iter().map(|(_, part)| part.bytes()).sum::<usize>()
    }

    /// Units that a listener, who hears one unit per `unit`, has not heard yet.
    pub fn ahead(&self, unit: Duration, now: Duration) -> Option<u32> {
        let heard = now.saturating_sub(self.began?).as_secs_f64() / unit.as_secs_f64();
        Some(self.units.saturating_sub(heard as u32))
    }
}
