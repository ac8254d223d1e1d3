//! Identities, units and small enums that every layer shares. Newtypes, so that a frame is never added to a sample.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, bincode::Encode, bincode::Decode)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One accepted request, unique for the life of its engine. Carried by every message about it.
    RequestId(u64),
    "r"
);
id!(
    /// One launched step of a stage, counted from 0 within a generation.
    StepId(u64),
    "s"
);
id!(
    /// How often a stage has been started. Actors drop messages of any generation but the current one.
    Generation(u32),
    "g"
);
id!(
    /// Which admission of a request's sequence to a stage, counted from 1 over all stages of the request; 0 for
    /// sequences that are admitted only once. A stage drops what is meant for an earlier attempt.
    Attempt(u32),
    "a"
);
id!(
    /// A sequence's place in the state of a stage model, from open to close.
    Slot(u32),
    "slot"
);
id!(
    /// Position of a payload's first unit in the stream of one request on one edge: how many units went before it.
    Seq(u32),
    "#"
);
id!(
    /// What a request asks for, as a number that is the same whenever it asks for the same; its seed is no part of it.
    Content(u64),
    "c"
);
id!(
    /// Codec frames: 80 ms of speech each at 12.5 frames per second.
    Frames(u32),
    "f"
);
id!(
    /// Audio samples of one channel.
    Samples(u64),
    "n"
);

/// The stages this runtime knows, in the order in which data flows through them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, bincode::Encode, bincode::Decode,
)]
#[serde(rename_all = "lowercase")]
pub enum StageName {
    /// Sound and pictures in, embeddings for the thinker out.
    Encoder,
    /// Text in, text out: the language model.
    Thinker,
    /// Text in, as embeddings or tokens; codec frames out: talker backbone and code predictor.
    Talker,
    /// Codec frames in, waveform out: the vocoder.
    Vocoder,
}

impl StageName {
    /// Every stage, upstream first.
    pub const ALL: [StageName; 4] = [StageName::Encoder, StageName::Thinker, StageName::Talker, StageName::Vocoder];

    /// Those that a request of text alone can need, upstream first.
    pub const OF_TEXT: [StageName; 3] = [StageName::Thinker, StageName::Talker, StageName::Vocoder];

    /// The lower-case name used in configs, logs, metrics and `/health`.
    pub fn as_str(self) -> &'static str {
        match self {
            StageName::Encoder => "encoder",
            StageName::Thinker => "thinker",
            StageName::Talker => "talker",
            StageName::Vocoder => "vocoder",
        }
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A replica of a stage: it has actors, slots and edges of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, bincode::Encode, bincode::Decode)]
pub struct Replica {
    /// Of which stage.
    pub stage: StageName,
    /// Counted from 0.
    pub number: u8,
}

impl From<StageName> for Replica {
    /// The first one, or the only one.
    fn from(stage: StageName) -> Replica {
        Replica { stage, number: 0 }
    }
}

/// What the parts of a payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, bincode::Encode, bincode::Decode)]
pub enum PayloadKind {
    /// One tensor `[units, hidden]`: embeddings for a talker.
    Embeddings,
    /// Token ids of an answer, for the client.
    Tokens,
    /// Codes, `groups` for each unit, for a vocoder.
    Codes,
    /// Samples, for the client.
    Audio,
    /// Spectra and pixels, for an encoder. A unit is a step of its work.
    Features,
    /// Embeddings of media, for a thinker.
    Media,
}

impl PayloadKind {
    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            PayloadKind::Features => "features",
            PayloadKind::Media => "media",
            PayloadKind::Embeddings => "embeddings",
            PayloadKind::Tokens => "tokens",
            PayloadKind::Codes => "codes",
            PayloadKind::Audio => "audio",
        }
    }
}

/// Why a sequence, its stream or a whole request ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, bincode::Encode, bincode::Decode)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// By itself: the model said so, or the input ended.
    Stop,
    /// At a limit on tokens or frames.
    Length,
    /// It no longer said its text: it repeated itself, or was silent, without end, or spoke for too long.
    Runaway,
    /// By itself, before it could have said its text.
    Unspoken,
}

impl FinishReason {
    /// Whether the speech does not say its text.
    pub fn is_astray(self) -> bool {
        matches!(self, FinishReason::Runaway | FinishReason::Unspoken)
    }
}
