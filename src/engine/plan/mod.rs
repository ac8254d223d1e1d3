//! The planner: from a request to the sequences that it needs in each stage. It checks all that depends on the
//! checkpoint, each value once, and refuses a request before any stage has started to work on it.

mod content;
mod media;
mod omni;
mod tts;

pub(super) use media::{MediaPlanner, runs};
pub(super) use omni::{OmniPlanner, owner};
pub(super) use tts::{TtsPlanner, TtsVoice};

use super::api::{GenerateRequest, SamplingOverrides, SpeechParams, SubmitError};
use super::encoded::MediaPlan;
use super::voices::Voiceprint;
use omni_config::LimitsConfig;
use omni_core::ids::{Attempt, Content, FinishReason, Frames, Generation, RequestId, Seq, StageName};
use omni_core::ledger::Owed;
use omni_core::runaway::Guard;
use omni_core::scheduler::{Pace, SequenceParams};
use omni_core::text;
use omni_fault::FaultSite;
use omni_media::Medium;
use omni_model::hf::{GenerationDefaults, SAMPLE_RATE};
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceSpec, TalkerSpec, ThinkerMode, VocoderSpec};
use omni_model::talker::TalkerPrompt;
use omni_model::tokenizer::Tokenizer;
use omni_stage::{Admission, Outputs, Resume};
use omni_telemetry::clock;
use omni_transfer::payload::{Header, Kind, Part, Payload};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Turns requests into plans.
pub(super) struct Planner {
    pub family: FamilyPlanner,
    pub common: Common,
    /// Where a fault plan can strike.
    pub fault: FaultSite,
}

/// What only one family does.
pub(super) enum FamilyPlanner {
    Omni(Box<OmniPlanner>),
    Tts(TtsPlanner),
}

/// What both families share.
pub(super) struct Common {
    pub generation: Arc<GenerationDefaults>,
    /// Positions that the talker has.
    pub max_positions: u32,
    /// Codes of a frame.
    pub groups: usize,
    pub chunk_ramp: Vec<u32>,
    /// May change while requests come.
    pub limits: RwLock<RequestLimits>,
    /// Frames of the first chunk that a request may ask for.
    pub max_first_chunk: Frames,
    /// Units of audio that may wait for a client.
    pub audio_window: u32,
    /// Sound of a frame.
    pub frame: Duration,
    /// How often a piece of a whole answer that went astray is made anew.
    pub retries: u32,
}

/// What one request may ask for. It sees one state of this; the next one may see another.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    pub max_input_chars: usize,
    pub max_messages: usize,
    pub max_instruction_chars: usize,
    /// Frames of all pieces of a request.
    pub max_frames: Frames,
}

impl RequestLimits {
    /// As the config has them, for frames of this length.
    pub fn new(limits: &LimitsConfig, frame: Duration) -> RequestLimits {
        RequestLimits {
            max_input_chars: limits.max_input_chars,
            max_messages: limits.max_messages,
            max_instruction_chars: limits.max_instruction_chars,
            max_frames: frames_of(limits.max_audio, frame),
        }
    }
}

/// Frames of so much speech.
fn frames_of(length: Duration, frame: Duration) -> Frames {
    let frames = length.as_secs_f64() / frame.as_secs_f64().max(f64::MIN_POSITIVE);
    Frames((frames as u32).max(1))
}

/// Everything that is needed to open a request.
pub(super) struct RequestPlan {
    pub owed: Owed,
    pub seed: u64,
    /// Present when the client gets text.
    pub text: Option<Arc<Tokenizer>>,
    pub prompt_tokens: u32,
    pub samples_per_second: u32,
    /// Room for every event that the windows let through at once.
    pub max_events: usize,
    pub sequences: Vec<(StageName, SequencePlan)>,
    pub follow: Option<FollowedText>,
    /// Where the ledger writes the talker's codes, for a relay that needs them.
    pub codes: Option<CodeLog>,
    /// Ends speech that no longer says its text.
    pub guard: Option<Guard>,
    /// Sound and pictures of a chat turn.
    pub media: MediaPlan,
}

/// Longer than any listener waits.
const NOBODY_WAITS: Duration = Duration::from_secs(24 * 3600);

/// Codes that a talker has made, frame after frame.
pub(super) type CodeLog = Arc<Mutex<Vec<u32>>>;

/// One sequence, before the request has a name.
pub(super) struct SequencePlan {
    pub params: SequenceParams,
    pub spec: SequenceSpec,
    pub deliver: Outputs,
}

impl RequestPlan {
    /// Tells the scheduler that all others go first.
    pub fn yields(&mut self) {
        self.follows(NOBODY_WAITS);
    }

    /// Tells the scheduler how much sound of the piece before the listener still has.
    pub fn follows(&mut self, lead: Duration) {
        for (_, sequence) in &mut self.sequences {
            sequence.params.lead = lead;
        }
    }
}

impl SequencePlan {
    /// A sequence that begins.
    pub fn named(&self, request: RequestId) -> Admission {
        let (params, spec) = (self.params.clone(), self.spec.clone());
        Admission { request, params, spec, deliver: self.deliver, from: Resume::default(), content: Content::default() }
    }

    /// Whether it samples its tokens.
    pub fn samples(&self) -> bool {
        matches!(&self.spec, SequenceSpec::Thinker(sequence) if sequence.mode == ThinkerMode::Sample)
    }
}

/// Text that enters the first stage as given, not sampled.
pub(super) struct FollowedText {
    pub tokens: Vec<u32>,
    /// Whether nothing follows.
    pub ended: bool,
}

impl FollowedText {
    /// As the first stage's input, `before` tokens of it having gone ahead.
    pub fn payload(self, request: RequestId, before: u32) -> Payload {
        let units = self.tokens.len() as u32;
        let end = self.ended.then_some(FinishReason::Stop);
        let header = Header {
            request,
            generation: Generation(0),
            attempt: Attempt(0),
            seq: Seq(before),
            kind: Kind::Tokens,
            units,
            end,
            sent: clock::now(),
            cached: 0,
        };
        Payload { header, parts: vec![Part::U32(self.tokens)], leases: Vec::new() }
    }
}

/// What [`SpeechParams`] come to on this checkpoint: checked once, used for each sentence of the request.
#[derive(Clone, Debug)]
pub(super) struct SpeechOptions {
    pub voice: SpeechVoice,
    /// Sampling of code 0.
    pub sampling: SamplingParams,
    /// Sampling of the other codes of a frame.
    pub predictor: SamplingParams,
    /// At most this many code-0 tokens, the last of which gets no frame.
    pub max_tokens: u32,
    /// Frames that the pieces still to come may have together.
    pub frames_left: Frames,
    pub ignore_eos: bool,
    /// Whether a piece may have no more frames than its text can take.
    pub bounded_by_text: bool,
    /// Sizes of the chunks in which the speech is sent.
    pub chunk_ramp: Vec<u32>,
    pub seed: u64,
    /// How often a piece that went astray is made anew before any of it is sent.
    pub retries: u32,
}

/// The voice, as the family knows it.
#[derive(Clone, Debug)]
pub(super) enum SpeechVoice {
    /// The codec id of a speaker.
    Omni(u32),
    /// All that a prompt of Qwen3-TTS says besides the text.
    Tts(TtsVoice),
}

impl Planner {
    /// A chat turn, with the media of the request in their order.
    pub fn chat(&self, request: &GenerateRequest, media: &[Arc<Medium>]) -> Result<RequestPlan, SubmitError> {
        self.strike();
        match &self.family {
            FamilyPlanner::Omni(planner) => planner.chat(&self.common, request, media),
            FamilyPlanner::Tts(_) => {
                let message = "this model speaks but does not answer: use POST /v1/audio/speech".into();
                Err(SubmitError::Invalid { param: "model", message })
            }
        }
    }

    /// One piece of a text to be spoken.
    pub fn speech(&self, text: &str, options: &SpeechOptions) -> Result<RequestPlan, SubmitError> {
        self.strike();
        let plan = match (&self.family, &options.voice) {
            (FamilyPlanner::Omni(planner), SpeechVoice::Omni(speaker)) => {
                planner.speech(&self.common, text, *speaker, options)
            }
            (FamilyPlanner::Tts(planner), SpeechVoice::Tts(voice)) => {
                planner.speech(&self.common, text, voice, options)
            }
            _ => Err(SubmitError::NotReady("a voice of another model".into())),
        };
        let guard = (options.bounded_by_text && !options.ignore_eos).then(|| Guard::new(text, self.common.frame));
        plan.map(|plan| RequestPlan { guard, ..plan })
    }

    /// Checks everything about a speech request but its text. `print` is the voice that the client gives, encoded.
    pub fn speech_options(
        &self,
        params: &SpeechParams,
        print: Option<&Voiceprint>,
    ) -> Result<SpeechOptions, SubmitError> {
        let voice = match &self.family {
            FamilyPlanner::Omni(planner) => SpeechVoice::Omni(planner.voice(params)?),
            FamilyPlanner::Tts(planner) => SpeechVoice::Tts(planner.voice(params, print)?),
        };
        self.common.options(voice, params)
    }

    /// Refuses conversations of more messages, or characters, than the config allows.
    pub fn check_messages(&self, messages: usize, chars: usize) -> Result<(), SubmitError> {
        let most = self.common.limits().max_messages;
        if messages > most {
            let message = format!("{messages} messages are more than the {most} that this server takes");
            return Err(SubmitError::Invalid { param: "messages", message });
        }
        self.common.check_length("messages", chars)
    }

    /// A panic is the only fault that can be planned here.
    fn strike(&self) {
        let _ = self.fault.inject(|| None, || false);
    }

    /// Refuses text that is longer than the config allows.
    pub fn check_length(&self, param: &'static str, chars: usize) -> Result<(), SubmitError> {
        self.common.check_length(param, chars)
    }
}

impl Common {
    pub fn limits(&self) -> RequestLimits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes other limits for the requests to come.
    pub fn set_limits(&self, limits: &LimitsConfig) {
        let limits = RequestLimits::new(limits, self.frame);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    fn check_length(&self, param: &'static str, chars: usize) -> Result<(), SubmitError> {
        let most = self.limits().max_input_chars;
        if chars <= most {
            return Ok(());
        }
        let message = format!("{chars} characters are more than the {most} that this server takes");
        Err(SubmitError::Invalid { param, message })
    }

    /// What a request says besides its text and the voice.
    fn options(&self, voice: SpeechVoice, params: &SpeechParams) -> Result<SpeechOptions, SubmitError> {
        positive("max_new_tokens", params.max_frames.map(|frames| frames.0))?;
        let limits = self.limits();
        self.check_wishes(params, limits)?;
        let sampling = resolve(self.generation.talker, &params.speech)?;
        let predictor = if sampling.is_greedy() { SamplingParams::GREEDY } else { self.generation.predictor };
        // The last token has no frame (spec section 6).
        let max_tokens =
            params.max_frames.map_or(self.generation.talker_max_tokens, |frames| frames.0.saturating_add(1));
        let max_tokens = max_tokens.min(limits.max_frames.0.saturating_add(1));
        let mut chunk_ramp = self.chunk_ramp.clone();
        if let Some(first) = params.initial_chunk_frames {
            chunk_ramp.retain(|size| *size > first.0);
            chunk_ramp.insert(0, first.0.max(1));
        }
        let (ignore_eos, seed) = (params.ignore_eos, params.seed.unwrap_or_else(random_seed));
        Ok(SpeechOptions {
            voice,
            sampling,
            predictor,
            max_tokens,
            frames_left: limits.max_frames,
            ignore_eos,
            bounded_by_text: params.max_frames.is_none(),
            chunk_ramp,
            seed,
            retries: if params.whole { self.retries } else { 0 },
        })
    }

    /// Refuses what would take more work, or come later, than any request may ask for.
    fn check_wishes(&self, params: &SpeechParams, limits: RequestLimits) -> Result<(), SubmitError> {
        let refuse = |param, message| Err(SubmitError::Invalid { param, message });
        let first = params.initial_chunk_frames.map_or(0, |frames| frames.0);
        if first > self.max_first_chunk.0 {
            let most = self.max_first_chunk.0;
            let message = format!("{first} frames are more than the {most} that the first chunk may have here");
            return refuse("initial_codec_chunk_frames", message);
        }
        let asked = params.max_frames.map_or(0, |frames| frames.0);
        if params.ignore_eos && asked > limits.max_frames.0 {
            let most = limits.max_frames.0;
            let message = format!("{asked} frames are more than the {most} that one answer may have here");
            return refuse("max_new_tokens", message);
        }
        let chars = params.instructions.as_ref().map_or(0, |text| text.chars().count());
        if chars > limits.max_instruction_chars {
            let most = limits.max_instruction_chars;
            let message = format!("{chars} characters are more than the {most} that instructions may have here");
            return refuse("instructions", message);
        }
        Ok(())
    }

    /// Most frames of a piece that says `text`: a talker that does not find its end must not speak for ever.
    fn most_frames(&self, text: &str, options: &SpeechOptions) -> Frames {
        if !options.bounded_by_text {
            return options.frames_left;
        }
        let frames = text::longest_seconds(text) / self.frame.as_secs_f64().max(f64::MIN_POSITIVE);
        options.frames_left.min(Frames(frames as u32))
    }

    /// The sequences that make speech of at most `most` frames: talker and vocoder. The prompt is kept for its `owner`.
    fn speech_sequences(
        &self,
        prompt: Arc<TalkerPrompt>,
        most: Frames,
        options: &SpeechOptions,
        owner: Option<[u8; 32]>,
    ) -> Result<[(StageName, SequencePlan); 2], SubmitError> {
        let positions = prompt.positions();
        let room = self.max_positions.saturating_sub(positions);
        if room == 0 {
            let message = format!("the prompt of the speech has {positions} positions, more than the model can take");
            return Err(SubmitError::Invalid { param: "input", message });
        }
        // The vocoder begins with the same reference as the talker.
        let vocoder = VocoderSpec { context: prompt.reference().cloned(), goes_on: false };
        let sequence = TalkerSpec {
            prompt,
            generated_len: 0,
            sampling: options.sampling,
            predictor: options.predictor,
            max_tokens: options.max_tokens.min(room + 1).min(most.0.saturating_add(1)),
            min_tokens: self.generation.talker_min_tokens,
            ignore_eos: options.ignore_eos,
            seed: options.seed,
            forced: None,
            owner,
        };
        let deliver = Outputs { tokens: false, speech: true };
        let params = SequenceParams {
            prompt: positions,
            prompt_input: sequence.prefill_embeddings(),
            yields_after: options.chunk_ramp.first().copied().unwrap_or(0),
            ..SequenceParams::unprompted(Pace::OnePerStep)
        };
        let talker = SequencePlan { params, spec: SequenceSpec::Talker(sequence), deliver };
        let params = SequenceParams {
            prompt: vocoder.context_frames(self.groups),
            ..SequenceParams::unprompted(Pace::Chunks(options.chunk_ramp.clone()))
        };
        let vocoder = SequencePlan { params, spec: SequenceSpec::Vocoder(vocoder), deliver };
        Ok([(StageName::Talker, talker), (StageName::Vocoder, vocoder)])
    }

    /// A plan for a text that is spoken as it is: `sequences` of the stages, `follow` for the first of them.
    fn spoken(
        &self,
        sequences: Vec<(StageName, SequencePlan)>,
        prompt_tokens: u32,
        follow: FollowedText,
        options: &SpeechOptions,
    ) -> RequestPlan {
        RequestPlan {
            owed: Owed { text: false, audio: true },
            seed: options.seed,
            text: None,
            prompt_tokens,
            samples_per_second: SAMPLE_RATE,
            max_events: self.max_events(0),
            sequences,
            follow: Some(follow),
            codes: None,
            guard: None,
            media: MediaPlan::default(),
        }
    }

    fn max_events(&self, max_text_tokens: u32) -> usize {
        // Started, the end, one per token, one per frame in the window and the chunk that may overshoot it.
        let chunk = self.chunk_ramp.iter().copied().max().unwrap_or(1);
        2 + max_text_tokens as usize + 1 + (self.audio_window + 2 * chunk) as usize
    }
}

fn resolve(defaults: SamplingParams, overrides: &SamplingOverrides) -> Result<SamplingParams, SubmitError> {
    let params = SamplingParams {
        temperature: overrides.temperature.unwrap_or(defaults.temperature),
        top_k: overrides.top_k.unwrap_or(defaults.top_k),
        top_p: overrides.top_p.unwrap_or(defaults.top_p),
        min_p: overrides.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: overrides.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        frequency_penalty: overrides.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        presence_penalty: overrides.presence_penalty.unwrap_or(defaults.presence_penalty),
    };
    params.check().map_err(|message| SubmitError::Invalid { param: "sampling", message })?;
    Ok(params)
}

fn positive(param: &'static str, value: Option<u32>) -> Result<Option<u32>, SubmitError> {
    match value {
        Some(0) => Err(SubmitError::Invalid { param, message: format!("{param} = 0: expected at least 1") }),
        value => Ok(value),
    }
}

/// The seed of a request that gives none. Below 2^53, so that it survives JSON in every client.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}
