//! Plans of Qwen3-Omni: a thinker that answers, or follows a given text, with a talker behind it.

use super::media::{MediaPlanner, PromptedMedia, runs};
use super::{
    Common, FollowedText, RequestPlan, SequencePlan, SpeechOptions, SpeechVoice, positive, random_seed, resolve,
};
use crate::api::{ChatMessage, GenerateRequest, Output, SpeechParams, SubmitError, TenantId};
use crate::voice::{TaskType, VoiceChoice};
use omni_core::ids::StageName;
use omni_core::ledger::Owed;
use omni_core::scheduler::{Pace, SequenceParams};
use omni_core::text::spell_out;
use omni_media::Medium;
use omni_model::hf::{OmniConfig, SAMPLE_RATE};
use omni_model::prompt::{ChatPrompt, Content, MediaMessage, PromptError, Prompter, SpeechPrompt};
use omni_model::sampling::SamplingParams;
use omni_model::stage::{Reuse, SequenceSpec, ThinkerMode, ThinkerSpec};
use omni_model::talker::TalkerPrompt;
use omni_stage::Outputs;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

const CLONING: &str = "voice cloning needs a Qwen3-TTS Base checkpoint; choose a voice of /v1/audio/voices";

/// See the module.
pub(crate) struct OmniPlanner {
    pub prompter: Prompter,
    pub config: Arc<OmniConfig>,
    pub default_voice: String,
    pub speech_prompt: String,
    /// Tokens that end an answer.
    pub eos: Arc<[u32]>,
    pub media: MediaPlanner,
    /// Whether spoken text has its numbers and abbreviations written out.
    pub spell_out: bool,
}

impl OmniPlanner {
    /// A chat turn.
    pub fn chat(
        &self,
        common: &Common,
        request: &GenerateRequest,
        media: &[Arc<Medium>],
    ) -> Result<RequestPlan, SubmitError> {
        let (prompt, mut media) = if media.is_empty() {
            let said = |message: &ChatMessage| {
                let text = Content::Text(message.content.texts().collect());
                self::message(message).map(|message| MediaMessage { content: text, ..message })
            };
            let messages: Vec<_> = request.messages.iter().map(said).collect::<Result<_, _>>()?;
            (
                self.prompter
                    .conversation(&messages, &request.tools)
                    .map_err(|error| refuse_prompt("messages", &error))?,
                None,
            )
        } else {
            let (prompt, media) = self.prompted(request, media)?;
            (prompt, Some(media))
        };
        let audio = request.output == Output::TextAndAudio;
        let seed = request.seed.unwrap_or_else(random_seed);

        let limit = common.generation.thinker_max_tokens;
        let max_tokens = positive("max_tokens", request.max_text_tokens)?.unwrap_or(limit);
        let room = (self.config.thinker.text.max_position_embeddings as u32).saturating_sub(prompt.ids.len() as u32);
        if room == 0 {
            let message = format!("the conversation has {} tokens, more than the model can take", prompt.ids.len());
            return Err(SubmitError::Invalid { param: "messages", message });
        }
        let sampling = resolve(common.generation.thinker, &request.text)?;
        if request.ignore_eos && max_tokens > room {
            let message = format!("{max_tokens} tokens are more than the {room} for which the model has room here");
            return Err(SubmitError::Invalid { param: "max_tokens", message });
        }
        let max_tokens = max_tokens.min(room);
        let mut thinker = self.thinker_sequence(&prompt, ThinkerMode::Sample, sampling, max_tokens, seed, audio);
        let owner = owner(request.options.tenant.id);
        if let SequenceSpec::Thinker(spec) = &mut thinker.spec {
            if request.ignore_eos {
                spec.eos = [].into();
            } else if let Some(call) = self.prompter.call_token().filter(|_| request.until_call) {
                spec.eos = self.eos.iter().copied().chain([call]).collect();
            }
            spec.media = media.as_ref().map(|media| Arc::clone(&media.layout));
            let spans = media.as_ref().map(|media| Arc::clone(&media.plan.spans)).unwrap_or_default();
            spec.reuse = Some(Reuse { owner, media: spans });
        }
        if let Some(media) = &media {
            (thinker.params.prompt_input, thinker.params.prompt_runs) = (media.rows, runs(&media.layout));
        }
        let deliver = Outputs { tokens: true, speech: audio };
        let encoder = media.as_mut().and_then(PromptedMedia::sequence);
        let mut sequences: Vec<_> =
            encoder.into_iter().chain([(StageName::Thinker, SequencePlan { deliver, ..thinker })]).collect();
        if audio {
            let params = SpeechParams {
                voice: VoiceChoice::named(request.voice.clone()),
                speech: request.speech,
                max_frames: request.max_frames,
                ignore_eos: request.ignore_eos,
                seed: Some(seed),
                ..SpeechParams::default()
            };
            let speaker = self.voice(&params)?;
            let options = common.options(SpeechVoice::Omni(speaker), &params)?;
            sequences.extend(common.speech_sequences(
                self.talker_prompt(&prompt, speaker, media.as_ref()),
                options.frames_left,
                &options,
                Some(owner),
            )?);
        }
        Ok(RequestPlan {
            owed: Owed { text: true, audio },
            seed,
            text: Some(Arc::clone(self.prompter.tokenizer())),
            prompt_tokens: prompt.ids.len() as u32,
            samples_per_second: SAMPLE_RATE,
            max_events: common.max_events(max_tokens),
            sequences,
            follow: None,
            codes: None,
            guard: None,
            media: media.map(|media| media.plan).unwrap_or_default(),
        })
    }

    /// One piece of a text to be spoken.
    pub fn speech(
        &self,
        common: &Common,
        text: &str,
        speaker: u32,
        options: &SpeechOptions,
    ) -> Result<RequestPlan, SubmitError> {
        let text = if self.spell_out { Cow::Owned(spell_out(text)) } else { Cow::Borrowed(text) };
        let speech = self.prompter.speech(&self.speech_prompt, &text);
        let SpeechPrompt { prompt, answer } = speech.map_err(|error| refuse_prompt("input", &error))?;
        let (mode, tokens) = (ThinkerMode::Follow, answer.len() as u32 + 1);
        let thinker = self.thinker_sequence(&prompt, mode, SamplingParams::GREEDY, tokens, options.seed, true);
        let mut sequences = vec![(StageName::Thinker, thinker)];
        let most = common.most_frames(&text, options);
        let talker_prompt = self.talker_prompt(&prompt, speaker, None);
        // No later prompt begins with a text that was to be spoken.
        sequences.extend(common.speech_sequences(talker_prompt, most, options, None)?);
        Ok(common.spoken(sequences, prompt.ids.len() as u32, FollowedText { tokens: answer, ended: true }, options))
    }

    /// The speaker of a request that asks for nothing that this family cannot do.
    pub fn voice(&self, params: &SpeechParams) -> Result<u32, SubmitError> {
        let refuse = |param, message: &str| Err(SubmitError::Invalid { param, message: message.into() });
        match params.task {
            None | Some(TaskType::CustomVoice) => {}
            Some(task) => return refuse("task_type", &format!("{task} needs a Qwen3-TTS checkpoint of that kind")),
        }
        if params.instructions.as_ref().is_some_and(|text| !text.trim().is_empty()) {
            return refuse("instructions", "this model does not follow speaking instructions; leave the field out");
        }
        let name = match &params.voice {
            VoiceChoice::Default => &self.default_voice,
            VoiceChoice::Named { name, .. } => name,
            VoiceChoice::Clone(_) => return refuse("ref_audio", CLONING),
            VoiceChoice::Embedding(_) => return refuse("speaker_embedding", CLONING),
        };
        let speaker = self.config.talker.speaker(name);
        speaker.map_err(|error| SubmitError::Invalid { param: "voice", message: error.to_string() })
    }

    fn talker_prompt(&self, prompt: &ChatPrompt, speaker: u32, media: Option<&PromptedMedia>) -> Arc<TalkerPrompt> {
        let prompt = TalkerPrompt::omni(prompt.user_embeddings, speaker, &self.config.talker.tokens);
        match media {
            None => prompt.into(),
            Some(media) => prompt.with_media(Arc::clone(&media.spoken), media.talker.clone()).into(),
        }
    }

    fn thinker_sequence(
        &self,
        prompt: &ChatPrompt,
        mode: ThinkerMode,
        sampling: SamplingParams,
        max_tokens: u32,
        seed: u64,
        speech: bool,
    ) -> SequencePlan {
        let emits = if speech { prompt.emit.iter().map(|turn| turn.end - turn.start).sum() } else { 0 };
        SequencePlan {
            params: SequenceParams {
                prompt: prompt.ids.len() as u32,
                prompt_emits: emits,
                // The talker speaks of the prompt and one token; what follows a text has no steps to wait with.
                yields_after: u32::from(speech && mode == ThinkerMode::Sample),
                ..SequenceParams::unprompted(if mode == ThinkerMode::Sample { Pace::Free } else { Pace::Follow })
            },
            spec: SequenceSpec::Thinker(ThinkerSpec {
                prompt: Arc::clone(&prompt.ids),
                generated_len: 0,
                mode,
                emit: speech.then(|| Arc::clone(&prompt.emit)),
                sampling,
                eos: Arc::clone(&self.eos),
                max_tokens,
                seed,
                media: None,
                reuse: None,
            }),
            deliver: Outputs { tokens: false, speech },
        }
    }
}

/// A tenant, as prompts and spectra are known by it.
pub(crate) fn owner(tenant: TenantId) -> [u8; 32] {
    let hash = match tenant {
        TenantId::Own => Sha256::new_with_prefix(b"own"),
        TenantId::Key(number) => Sha256::new_with_prefix(b"key").chain_update(number.to_le_bytes()),
        TenantId::Address(IpAddr::V4(address)) => Sha256::new_with_prefix(b"v4").chain_update(address.octets()),
        TenantId::Address(IpAddr::V6(address)) => Sha256::new_with_prefix(b"v6").chain_update(address.octets()),
    };
    hash.finalize().into()
}

pub(super) fn message(message: &ChatMessage) -> Result<MediaMessage, SubmitError> {
    let role = message.role.parse().map_err(|error| refuse_prompt("messages", &error))?;
    Ok(MediaMessage { role, content: message.content.clone(), calls: message.calls.clone() })
}

pub(super) fn refuse_prompt(param: &'static str, error: &PromptError) -> SubmitError {
    SubmitError::Invalid { param, message: error.to_string() }
}
