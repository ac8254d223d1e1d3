//! From a request to the rows that it needs in each stage: everything that can be refused is refused here, before anybody
//! has started to work.

use super::api::{ChatMessage, GenerateRequest, Output, SamplingOverrides, SubmitError};
use crate::actors::{Admission, Wants};
use crate::core::ledger::Owed;
use crate::core::scheduler::{Pace, RowParams};
use crate::ids::{Frames, Generation, RequestId, Seq, StageName};
use crate::model::hf::{GenerationDefaults, OmniConfig};
use crate::model::prompt::{ChatPrompt, Message, PromptError, Prompter, SpeechPrompt};
use crate::model::sampling::SamplingParams;
use crate::model::stage::{RowSpec, TalkerRow, ThinkerMode, ThinkerRow, VocoderRow};
use crate::model::talker::TalkerPrompt;
use crate::model::tokenizer::Tokenizer;
use crate::transfer::payload::{End, Header, Kind, Part, Payload};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// Turns requests into plans.
pub(super) struct Planner {
    pub prompter: Prompter,
    pub config: Arc<OmniConfig>,
    pub generation: Arc<GenerationDefaults>,
    pub default_voice: String,
    pub speech_prompt: String,
    pub chunk_ramp: Vec<u32>,
    pub max_input_chars: usize,
    /// Units of audio that may wait for a client.
    pub audio_window: u32,
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
    pub rows: Vec<(StageName, RowPlan)>,
    pub follow: Option<FollowedText>,
}

/// One row, before the request has a name.
pub(super) struct RowPlan {
    params: RowParams,
    spec: RowSpec,
    wants: Wants,
}

impl RowPlan {
    pub fn named(self, request: RequestId) -> Admission {
        Admission { request, params: self.params, spec: self.spec, wants: self.wants }
    }
}

/// An answer that is given and not sampled.
pub(super) struct FollowedText(Vec<u32>);

impl FollowedText {
    /// Its tokens.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// As the thinker's input.
    pub fn payload(self, request: RequestId) -> Payload {
        let units = self.len();
        let (generation, seq, kind) = (Generation(0), Seq(0), Kind::Tokens);
        let header = Header { request, generation, seq, kind, units, end: Some(End::Stop) };
        Payload { header, parts: vec![Part::U32(self.0)], leases: Vec::new() }
    }
}

/// What a speech request says besides its text; checked once, used for each of its sentences.
#[derive(Clone, Debug)]
pub(super) struct SpeechOptions {
    pub speaker: u32,
    pub sampling: SamplingParams,
    pub max_frames: Option<Frames>,
    pub ignore_eos: bool,
    pub initial_chunk: Option<Frames>,
    pub seed: u64,
}

impl Planner {
    /// A chat turn.
    pub fn chat(&self, request: &GenerateRequest) -> Result<RequestPlan, SubmitError> {
        let chars = request.messages.iter().map(|message| message.content.chars().count()).sum();
        self.check_length("messages", chars)?;
        let messages: Vec<_> = request.messages.iter().map(message).collect::<Result<_, _>>()?;
        let prompt = self.prompter.chat(&messages).map_err(|error| refuse_prompt("messages", &error))?;
        let audio = request.output == Output::TextAndAudio;
        let seed = request.seed.unwrap_or_else(random_seed);

        let limit = self.generation.thinker_max_tokens;
        let max_tokens = positive("max_tokens", request.max_text_tokens)?.unwrap_or(limit);
        let room = (self.config.thinker.text.max_position_embeddings as u32).saturating_sub(prompt.ids.len() as u32);
        if room == 0 {
            let message = format!("the conversation has {} tokens, more than the model can take", prompt.ids.len());
            return Err(SubmitError::Invalid { param: "messages", message });
        }
        let sampling = resolve(self.generation.thinker, &request.text)?;
        let max_tokens = max_tokens.min(room);
        let thinker = self.thinker_row(&prompt, ThinkerMode::Sample, sampling, max_tokens, seed, audio);
        let wants = Wants { tokens: true, speech: audio };
        let mut rows = vec![(StageName::Thinker, RowPlan { wants, ..thinker })];
        if audio {
            let options =
                self.speech_options(request.voice.as_deref(), &request.speech, request.max_frames, Some(seed))?;
            rows.extend(self.speech_rows(&prompt, &options)?);
        }
        Ok(RequestPlan {
            owed: Owed { text: true, audio },
            seed,
            text: Some(Arc::clone(self.prompter.tokenizer())),
            prompt_tokens: prompt.ids.len() as u32,
            samples_per_second: crate::model::hf::SAMPLE_RATE,
            max_events: self.max_events(max_tokens),
            rows,
            follow: None,
        })
    }

    /// One piece of a text to be spoken.
    pub fn speech(&self, text: &str, options: &SpeechOptions) -> Result<RequestPlan, SubmitError> {
        let speech = self.prompter.speech(&self.speech_prompt, text);
        let SpeechPrompt { prompt, answer } = speech.map_err(|error| refuse_prompt("input", &error))?;
        let (seed, greedy) = (options.seed, SamplingParams::GREEDY);
        let tokens = answer.len() as u32 + 1;
        let thinker = self.thinker_row(&prompt, ThinkerMode::Follow, greedy, tokens, seed, true);
        let mut rows = vec![(StageName::Thinker, thinker)];
        rows.extend(self.speech_rows(&prompt, options)?);
        Ok(RequestPlan {
            owed: Owed { text: false, audio: true },
            seed,
            text: None,
            prompt_tokens: prompt.ids.len() as u32,
            samples_per_second: crate::model::hf::SAMPLE_RATE,
            max_events: self.max_events(0),
            rows,
            follow: Some(FollowedText(answer)),
        })
    }

    /// Checks everything about a speech request but its text.
    pub fn speech_options(
        &self,
        voice: Option<&str>,
        sampling: &SamplingOverrides,
        max_frames: Option<Frames>,
        seed: Option<u64>,
    ) -> Result<SpeechOptions, SubmitError> {
        let voice = voice.unwrap_or(&self.default_voice);
        let speaker = self.config.talker.speaker(voice);
        let speaker = speaker.map_err(|error| SubmitError::Invalid { param: "voice", message: error.to_string() })?;
        positive("max_new_tokens", max_frames.map(|frames| frames.0))?;
        let sampling = resolve(self.generation.talker, sampling)?;
        let seed = seed.unwrap_or_else(random_seed);
        Ok(SpeechOptions { speaker, sampling, max_frames, ignore_eos: false, initial_chunk: None, seed })
    }

    /// Refuses text that is longer than the config allows.
    pub fn check_length(&self, param: &'static str, chars: usize) -> Result<(), SubmitError> {
        if chars <= self.max_input_chars {
            return Ok(());
        }
        let message = format!("{chars} characters are more than the {} that this server takes", self.max_input_chars);
        Err(SubmitError::Invalid { param, message })
    }

    fn thinker_row(
        &self,
        prompt: &ChatPrompt,
        mode: ThinkerMode,
        sampling: SamplingParams,
        max_tokens: u32,
        seed: u64,
        speech: bool,
    ) -> RowPlan {
        let emits = if speech { prompt.emit.iter().map(|turn| turn.end - turn.start).sum() } else { 0 };
        RowPlan {
            params: RowParams {
                prompt: prompt.ids.len() as u32,
                prompt_input: 0,
                prompt_emits: emits,
                pace: if mode == ThinkerMode::Sample { Pace::Free } else { Pace::Follow },
            },
            spec: RowSpec::Thinker(ThinkerRow {
                prompt: Arc::clone(&prompt.ids),
                mode,
                emit: speech.then(|| Arc::clone(&prompt.emit)),
                sampling,
                eos: self.generation.thinker_eos.as_slice().into(),
                max_tokens,
                seed,
            }),
            wants: Wants { tokens: false, speech },
        }
    }

    fn speech_rows(
        &self,
        prompt: &ChatPrompt,
        options: &SpeechOptions,
    ) -> Result<[(StageName, RowPlan); 2], SubmitError> {
        let greedy = options.sampling.is_greedy();
        let predictor = if greedy { SamplingParams::GREEDY } else { self.generation.predictor };
        // The last token has no frame (spec section 6).
        let max_tokens =
            options.max_frames.map_or(self.generation.talker_max_tokens, |frames| frames.0.saturating_add(1));
        let mut row = TalkerRow {
            prompt: TalkerPrompt::omni(prompt.user_rows, options.speaker, &self.config.talker.tokens).into(),
            sampling: options.sampling,
            predictor,
            max_tokens,
            min_tokens: 0,
            ignore_eos: options.ignore_eos,
            seed: options.seed,
        };
        let (prompt, prompt_input) = (row.prefill_positions(), row.prefill_rows());
        let room = (self.config.talker.text.max_position_embeddings as u32).saturating_sub(prompt);
        if room == 0 {
            let message = format!("the prompt of the speech has {prompt} positions, more than the model can take");
            return Err(SubmitError::Invalid { param: "input", message });
        }
        row.max_tokens = row.max_tokens.min(room + 1);
        let wants = Wants { tokens: false, speech: true };
        let params = RowParams { prompt, prompt_input, prompt_emits: 0, pace: Pace::OnePerStep };
        let talker = RowPlan { params, spec: RowSpec::Talker(row), wants };
        let mut ramp = self.chunk_ramp.clone();
        if let Some(first) = options.initial_chunk {
            ramp.retain(|size| *size > first.0);
            ramp.insert(0, first.0.max(1));
        }
        let params = RowParams { prompt: 0, prompt_input: 0, prompt_emits: 0, pace: Pace::Chunks(ramp) };
        let vocoder = RowPlan { params, spec: RowSpec::Vocoder(VocoderRow::default()), wants };
        Ok([(StageName::Talker, talker), (StageName::Code2wav, vocoder)])
    }

    fn max_events(&self, max_text_tokens: u32) -> usize {
        // Started, the end, one per token, one per frame in the window and the chunk that may overshoot it.
        let chunk = self.chunk_ramp.iter().copied().max().unwrap_or(1);
        2 + max_text_tokens as usize + 1 + (self.audio_window + 2 * chunk) as usize
    }
}

fn message(message: &ChatMessage) -> Result<Message, SubmitError> {
    let role = message.role.parse().map_err(|error| refuse_prompt("messages", &error))?;
    Ok(Message { role, content: message.content.clone() })
}

fn refuse_prompt(param: &'static str, error: &PromptError) -> SubmitError {
    SubmitError::Invalid { param, message: error.to_string() }
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

/// A seed that nobody asked for. Below 2^53, so that it survives JSON in every client.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}
