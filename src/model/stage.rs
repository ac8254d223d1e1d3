//! The seam between a `ModelRunner` thread and the nets: one trait, whatever the stage and the device.
//!
//! A stage model holds sequences, one per request, in slots. Work is measured in *units*: positions for the language
//! models (thinker, talker), codec frames for the vocoder, steps of a schedule for the encoder. The scheduler says how many units each sequence advances in
//! a step; it never asks for more than the sequence's input allows, and it may ask for step N+1 before the outcome of
//! step N is known (run-ahead). For a sequence that has finished on the device, later steps return `stale`.
//!
//! A step is *launched* on the runner's thread. A device that works beside the host returns a [`PendingStep`], which
//! another thread waits for; a CPU computes the step at once and returns its outcome.

use super::error::{in_vocabulary, refused};
use super::{LoadError, ModelError};
use crate::embeddings::Embeddings;
use crate::encoder::{EncoderSpec, Features};
use crate::hf::{TalkerConfig, VocoderConfig};
use crate::media::MediaLayout;
use crate::sampling::SamplingParams;
use crate::talker::TalkerPrompt;
use omni_core::ids::{FinishReason, Slot};
use omni_telemetry::Phases;
use std::sync::Arc;
use std::time::Duration;

/// The compute of one stage. It is built on its runner's thread and never leaves it (device graphs are not `Send`).
pub trait StageModel {
    /// Gives a sequence a slot that is not in use. Takes no input yet and computes nothing.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the checkpoint cannot do what the sequence asks for.
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError>;

    /// Appends input to a sequence. Data is on this device already; `end` says that nothing follows. Without input it
    /// is the news of the end alone.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for input of the wrong kind or width.
    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError>;

    /// Begins to advance sequences together. With [`Launched::Pending`] the step may still run when this returns; it
    /// runs after all earlier steps and sees all input that was pushed before. Must not wait for a device.
    ///
    /// # Errors
    /// [`ModelError::Device`] when the state of the model can no longer be trusted. An error of one sequence alone is
    /// an `Err` in [`StepOutcome::sequences`].
    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError>;

    /// [`StageModel::launch`], and waits for the step: one result per entry of `sequences`, in that order.
    ///
    /// # Errors
    /// Those of the launch and of [`PendingStep::wait`].
    fn step(&mut self, sequences: &[SequenceWork]) -> Result<Vec<Result<SequenceOutput, ModelError>>, ModelError> {
        Ok(self.launch(sequences)?.wait()?.sequences)
    }

    /// Frees a slot and all it held. Unknown slots are ignored: a sequence may be closed twice. Steps with the slot may
    /// be pending; their outcome for it is dropped, and what they write must not reach the sequence that opens the slot
    /// next.
    fn close(&mut self, slot: Slot);

    /// Sequences that hold state now.
    fn live_sequences(&self) -> usize;

    /// Breaks the device on purpose, for drills: from now on each of its calls fails, in the whole process.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] where there is no device that can be broken.
    fn break_device(&mut self) -> Result<(), ModelError> {
        refused("a CPU cannot be broken")
    }
}

/// The outcome of a launch.
pub enum Launched {
    /// The step has been computed.
    Done(StepOutcome),
    /// The device computes it.
    Pending(Box<dyn PendingStep>),
}

impl Launched {
    /// The outcome; waits for a pending step.
    ///
    /// # Errors
    /// Those of [`PendingStep::wait`].
    pub fn wait(self) -> Result<StepOutcome, ModelError> {
        match self {
            Launched::Done(outcome) => Ok(outcome),
            Launched::Pending(step) => step.wait(),
        }
    }
}

impl std::fmt::Debug for Launched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Launched::Done(_)) { "Done" } else { "Pending" })
    }
}

/// A step that a device computes. Steps are waited for in the order of their launch, on another thread than they were
/// launched from. The model outlives every step it launched; after a failure, pending steps are dropped without a wait.
pub trait PendingStep: Send {
    /// Blocks until the step is so nearly over that the next one, planned now, is launched in time. Returns at once where
    /// that cannot be told.
    fn nearly(&self) {}

    /// Blocks until the step has run, and reads its outcome.
    ///
    /// # Errors
    /// [`ModelError::Device`] when the state of the model can no longer be trusted: it ends the runner.
    fn wait(self: Box<Self>) -> Result<StepOutcome, ModelError>;
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub struct StepOutcome {
    /// One result per entry of the launched sequences, in that order. An `Err` fails that sequence alone.
    pub sequences: Vec<Result<SequenceOutput, ModelError>>,
    /// How long the device took, by phase.
    pub times: DeviceTimes,
}

/// How long a device took for a step, as it reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// From its beginning to its end on the device; `None` where the device does not report it.
    pub total: Option<Duration>,
    /// The time of each measured phase. A CPU measures these and leaves `total` to the runner, which knows when the
    /// launch began.
    pub phases: Phases,
}

impl From<Option<Duration>> for DeviceTimes {
    fn from(total: Option<Duration>) -> DeviceTimes {
        DeviceTimes { total, phases: Phases::default() }
    }
}

impl From<Vec<Result<SequenceOutput, ModelError>>> for StepOutcome {
    fn from(sequences: Vec<Result<SequenceOutput, ModelError>>) -> StepOutcome {
        StepOutcome { sequences, times: DeviceTimes::default() }
    }
}

/// Makes the stage model on the runner's thread. It holds the weights, so that they outlive a failed runner.
pub trait StageFactory: Send + Sync {
    /// A fresh model without sequences.
    ///
    /// # Errors
    /// When the device has no room for the state.
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError>;
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceWork {
    /// Which sequence.
    pub slot: Slot,
    /// Units to advance: prompt positions while the prompt lasts (a prefill may be split), then 1 per decode step;
    /// codec frames for the vocoder, those of its context first.
    pub advance: u32,
}

/// What a sequence is, fixed when it opens.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub enum SequenceSpec {
    /// An encoder sequence.
    Encoder(EncoderSpec),
    /// A thinker sequence.
    Thinker(ThinkerSpec),
    /// A talker sequence.
    Talker(TalkerSpec),
    /// A vocoder sequence.
    Vocoder(VocoderSpec),
}

/// A thinker sequence. Its prompt is known at once; its answer is sampled, or follows tokens that arrive as input.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct ThinkerSpec {
    /// Prompt token ids, up to and including the assistant header, then the tokens of the answer that are known
    /// already, where a sequence resumes.
    pub prompt: Arc<[u32]>,
    /// Tokens at the end of the prompt that are the answer's: to sampling, limits and random numbers they count as
    /// sampled. None of them ends the answer.
    pub generated_len: u32,
    /// Where the answer comes from.
    pub mode: ThinkerMode,
    /// Prompt positions whose embeddings the talker needs (spec section 5: user turns, then the 3 ids of the assistant
    /// header); `None` for text-only requests, which emit no embeddings.
    pub emit: Option<Arc<[std::ops::Range<u32>]>>,
    /// Sampling of the answer.
    pub sampling: SamplingParams,
    /// Tokens that end the answer.
    pub eos: Arc<[u32]>,
    /// At most this many answer tokens, the stop token included.
    pub max_tokens: u32,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// The media of the prompt, whose embeddings arrive as input; `None` for a prompt of text.
    pub media: Option<Arc<MediaLayout>>,
    /// Lets other sequences of the same owner begin with what this one computes, and this one with what they have
    /// computed; `None` keeps it apart.
    pub reuse: Option<Reuse>,
}

/// What the keys and values of a prompt are known by, besides its tokens and their positions.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Reuse {
    /// Whose prompt it is. It is found for no other owner.
    pub owner: [u8; 32],
    /// What was encoded for each span of the prompt, in their order.
    pub media: Arc<[Arc<[EncodedPart]>]>,
}

/// Rows of a span that were encoded together: a window of a sound, or all of a picture or a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct EncodedPart {
    /// How many.
    pub rows: u32,
    /// SHA-256 of what was encoded.
    pub hash: [u8; 32],
}

impl ThinkerSpec {
    /// The prompt without the tokens that were generated.
    pub fn asked(&self) -> &[u32] {
        &self.prompt[..self.prompt.len().saturating_sub(self.generated_len as usize)]
    }

    /// The tokens that were generated.
    pub fn answered(&self) -> &[u32] {
        &self.prompt[self.prompt.len().saturating_sub(self.generated_len as usize)..]
    }
}

/// Where a thinker sequence's answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum ThinkerMode {
    /// The model samples it.
    Sample,
    /// It arrives as [`StageData::Tokens`] and is spoken verbatim. The layers need not run, for the talker takes only
    /// embeddings of text positions.
    Follow,
}

/// A talker sequence (spec sections 5, 6 and 9). Input: embeddings of the thinker or tokens of text, in the order in
/// which its prompt counts them.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct TalkerSpec {
    /// The prompt, with the voice.
    pub prompt: Arc<TalkerPrompt>,
    /// Frames at the end of the prompt's reference that the sequence generated before it resumed: to sampling, limits
    /// and random numbers they count as generated. See [`TalkerPrompt::resume`].
    pub generated_len: u32,
    /// Sampling of code 0.
    pub sampling: SamplingParams,
    /// Sampling of the other groups.
    pub predictor: SamplingParams,
    /// At most this many code-0 tokens, the last of which gets no frame.
    pub max_tokens: u32,
    /// The end is not sampled before this many code-0 tokens.
    pub min_tokens: u32,
    /// Never stop before `max_tokens`: for measuring.
    pub ignore_eos: bool,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Codes that replace those that the sequence would pick, frame after frame of `num_code_groups` codes. Behind them
    /// it samples, as if it had sampled them. The end token ends the sequence as a code 0 here, and so do limits.
    pub forced: Option<Arc<[u32]>>,
    /// Whose prompt it is: a sequence of the same owner begins with what this one computes, and this one with what
    /// others have computed; `None` keeps it apart.
    pub owner: Option<[u8; 32]>,
}

impl TalkerSpec {
    /// Whether a talker of this size can do what the sequence asks for.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] with what does not fit, for the client.
    pub fn check(&self, config: &TalkerConfig) -> Result<(), ModelError> {
        let (len, limit) = (self.prefill_positions(), config.text.max_position_embeddings);
        if len as usize > limit {
            return Err(ModelError::Sequence(format!(
                "the speech prompt has {len} positions, the talker {limit}: shorten the conversation"
            )));
        }
        if self.max_tokens == 0 {
            return Err(ModelError::Sequence("max_tokens is 0: expected at least 1".into()));
        }
        let frames = self.prompt.reference().map_or(0, |codes| codes.len() / config.num_code_groups.max(1));
        if self.generated_len as usize > frames || self.generated_len >= self.max_tokens {
            return Err(ModelError::Sequence(format!(
                "{} frames were said, of {frames} in the prompt and at most {} tokens",
                self.generated_len, self.max_tokens
            )));
        }
        let sampling = self.sampling.check().and_then(|()| self.predictor.check());
        let prompt = || self.prompt.check(config);
        sampling.and_then(|()| prompt()).and_then(|()| self.check_forced(config)).map_err(ModelError::Sequence)
    }

    /// Checks that the forced codes are whole frames of codes inside the tables.
    ///
    /// # Errors
    /// What is wrong with them, as text.
    fn check_forced(&self, config: &TalkerConfig) -> Result<(), String> {
        let (codes, groups) = (self.forced.as_deref().unwrap_or_default(), config.num_code_groups);
        if !codes.len().is_multiple_of(groups) {
            return Err(format!("{} forced codes: expected frames of {groups}", codes.len()));
        }
        for (at, code) in codes.iter().enumerate() {
            let size = if at % groups == 0 { config.text.vocab_size } else { config.predictor.vocab_size };
            if *code as usize >= size {
                return Err(format!("forced code {code} in group {}: expected 0..{size}", at % groups));
            }
        }
        Ok(())
    }

    /// The forced codes of a frame.
    pub fn forced_frame(&self, frame: u32, groups: usize) -> Option<&[u32]> {
        let at = frame as usize * groups;
        self.forced.as_deref()?.get(at..at + groups)
    }

    /// Codes 0 of the frames in the prompt that the sequence generated, in order.
    pub fn said_codes(&self, groups: usize) -> impl Iterator<Item = u32> {
        let codes = self.prompt.reference().map_or(&[][..], |codes| codes);
        codes[codes.len().saturating_sub(self.generated_len as usize * groups)..].iter().step_by(groups.max(1)).copied()
    }

    /// Positions of the prompt.
    pub fn prefill_positions(&self) -> u32 {
        self.prompt.positions()
    }

    /// Input embeddings that the prompt needs.
    pub fn prefill_embeddings(&self) -> u32 {
        self.prompt.inputs()
    }
}

/// A vocoder sequence.
#[derive(Clone, Debug, Default, bincode::Encode, bincode::Decode)]
pub struct VocoderSpec {
    /// Codes of a reference, frame after frame (in-context cloning). The sequence decodes them first, as its prompt:
    /// its first units are the context's frames, which emit nothing and must not share a step with its own. What is
    /// heard then begins where the reference ends, with sample `frames * samples_per_frame` of both decoded together.
    /// (The implementation that the goldens are made with cuts at a proportion of the samples, which is the same number
    /// or, by rounding, one less.)
    pub context: Option<Arc<[u32]>>,
    /// Whether the end of the context was generated by the sequence, which resumes: no other sequence can share it.
    pub goes_on: bool,
}

impl VocoderSpec {
    /// Frames of the context: the positions of the sequence's prompt.
    pub fn context_frames(&self, groups: usize) -> u32 {
        self.context.as_ref().map_or(0, |codes| (codes.len() / groups.max(1)) as u32)
    }
}

/// What travels between stages: what one sequence emits is what the next takes. The variant says what the units are, as
/// [`PayloadKind`](omni_core::ids::PayloadKind) does for a payload. On a wire this becomes parts, which know numbers
/// only.
#[derive(Clone, Debug)]
pub enum StageData {
    /// Features for an encoder, a piece each.
    Features(Features),
    /// Embeddings `[n, hidden]`, one unit each: a thinker emits those of positions that are now certain to be part of
    /// the talker's text. A thinker takes those of media, span by span; those of pictures are wider, with what each
    /// deepstack level adds behind the embedding.
    Embeddings(Embeddings),
    /// Tokens, one unit each: the answer of a [`ThinkerMode::Follow`] sequence; text for a talker that reads text
    /// itself.
    Tokens(Vec<u32>),
    /// Codes, frame after frame, `groups` codes each: a talker emits one frame a step.
    Codes(Vec<u32>),
    /// Samples in [-1, 1] at the model's rate, from the vocoder.
    Audio(Vec<f32>),
}

impl StageData {
    /// Size of the data.
    pub fn bytes(&self) -> usize {
        match self {
            StageData::Features(features) => features.bytes(),
            StageData::Embeddings(embeddings) => embeddings.bytes(),
            StageData::Tokens(numbers) | StageData::Codes(numbers) => numbers.len() * 4,
            StageData::Audio(samples) => samples.len() * 4,
        }
    }

    /// The tokens of text of a sequence that takes nothing else, all inside a vocabulary of so many.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for anything else.
    pub fn into_tokens(self, slot: Slot, vocabulary: u32) -> Result<Vec<u32>, ModelError> {
        match self {
            StageData::Tokens(tokens) => in_vocabulary(&tokens, vocabulary).map(|()| tokens),
            _ => refused(format!("{slot}: the thinker takes tokens only")),
        }
    }

    /// The codes of a sequence that takes nothing else, all inside the codebooks.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for anything else.
    pub fn into_codes(self, slot: Slot, config: &VocoderConfig) -> Result<Vec<u32>, ModelError> {
        match self {
            StageData::Codes(codes) => match config.check_codes(&codes) {
                Ok(()) => Ok(codes),
                Err(reason) => refused(format!("{slot}: {reason}")),
            },
            _ => refused(format!("{slot}: the vocoder takes codes only")),
        }
    }
}

/// The outcome of one step for one sequence.
#[derive(Clone, Debug, Default)]
pub struct SequenceOutput {
    /// The token that the scheduler waits for: thinker token or code 0. `None` inside a prompt and for the vocoder.
    pub sampled: Option<u32>,
    /// Set when the sequence ended with this step.
    pub finish: Option<FinishReason>,
    /// The sequence had already ended when this step ran: nothing happened.
    pub stale: bool,
    /// What a talker sequence would have picked in a frame whose codes are forced; code 0 alone where it ended the
    /// sequence.
    pub picked: Option<Box<[u32]>>,
    /// With the first token that a thinker samples behind a prompt: how many positions of the prompt were kept by an
    /// earlier sequence and not computed.
    pub cached: u32,
    /// What goes downstream, if anything does.
    pub emit: Option<StageData>,
}
