//! What a session is asked for, and what a response is, checked: a change that is wrong changes nothing.

use crate::client_event::{
    AudioFields, FormatFields, ResponseFields, SessionFields, TranscriptionFields, TurnFields, VoiceName,
};
use crate::refusal::{Refusal, short};
use crate::session::{Abilities, Limits};
use crate::sound::WireFormat;
use crate::tools::Tools;
use omni_audio::{MAX_SPEED, MIN_SPEED};
use serde_json::{Value, json};

/// Longest padding and silence that a client may ask for.
const LONGEST_MS: u64 = 10_000;

/// How turns of the user are found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnDetection {
    /// The eagerness, of `semantic_vad`.
    pub eagerness: Option<&'static str>,
    /// Score from which a frame is speech, 0 to 1.
    pub threshold: f32,
    /// Sound before the first frame of speech that belongs to the turn.
    pub padding_ms: u64,
    /// Silence that ends a turn.
    pub silence_ms: u64,
    /// Whether a turn is answered at its end.
    pub create: bool,
    /// Whether speech ends the answer that is being made.
    pub interrupt: bool,
}

impl Default for TurnDetection {
    fn default() -> TurnDetection {
        TurnDetection {
            eagerness: None,
            threshold: 0.5,
            padding_ms: 300,
            silence_ms: 500,
            create: true,
            interrupt: true,
        }
    }
}

impl TurnDetection {
    fn read(fields: &TurnFields) -> Result<TurnDetection, Refusal> {
        const AT: &str = "session.audio.input.turn_detection";
        let mut turns = TurnDetection::default();
        let within = |value: Option<u64>, default: u64| match value {
            Some(ms) if ms > LONGEST_MS => {
                Err(Refusal::value(AT, format!("{ms} ms are too long; at most {LONGEST_MS} ms are taken")))
            }
            other => Ok(other.unwrap_or(default)),
        };
        match fields.kind.as_deref() {
            None | Some("server_vad") => {
                let threshold = fields.threshold.unwrap_or(turns.threshold);
                if !(0.0..=1.0).contains(&threshold) {
                    return Err(Refusal::value(AT, "threshold must be from 0 to 1"));
                }
                turns.threshold = threshold;
                turns.padding_ms = within(fields.prefix_padding_ms, turns.padding_ms)?;
                turns.silence_ms = within(fields.silence_duration_ms, turns.silence_ms)?;
            }
            Some("semantic_vad") => {
                let (name, silence_ms) = match fields.eagerness.as_deref() {
                    None | Some("auto") => ("auto", 600),
                    Some("low") => ("low", 1200),
                    Some("medium") => ("medium", 600),
                    Some("high") => ("high", 300),
                    Some(other) => {
                        let message = format!("eagerness {:?} is none of low, medium, high, auto", short(other));
                        return Err(Refusal::value(AT, message));
                    }
                };
                (turns.eagerness, turns.silence_ms) = (Some(name), silence_ms);
            }
            Some(other) => {
                let message = format!("{:?} is unknown; send server_vad, semantic_vad or null", short(other));
                return Err(Refusal::value(AT, message));
            }
        }
        if fields.idle_timeout_ms.is_some() {
            return Err(Refusal::unsupported(AT, "idle_timeout_ms is not supported; leave it out"));
        }
        turns.create = fields.create_response.unwrap_or(true);
        turns.interrupt = fields.interrupt_response.unwrap_or(true);
        Ok(turns)
    }

    fn object(&self) -> Value {
        let (create, interrupt) = (self.create, self.interrupt);
        match self.eagerness {
            Some(eagerness) => json!({
                "type": "semantic_vad", "eagerness": eagerness,
                "create_response": create, "interrupt_response": interrupt,
            }),
            None => json!({
                "type": "server_vad", "threshold": self.threshold, "prefix_padding_ms": self.padding_ms,
                "silence_duration_ms": self.silence_ms, "idle_timeout_ms": null,
                "create_response": create, "interrupt_response": interrupt,
            }),
        }
    }
}

/// How answers are made; a response may have its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerSettings {
    /// Sound and its transcript, or text.
    pub speaks: bool,
    pub instructions: String,
    pub format: WireFormat,
    /// As the engine knows it; `None` is its default.
    pub voice: Option<String>,
    pub speed: f32,
    /// `None`: as many as the model may.
    pub max_tokens: Option<u32>,
    /// Of the text; `None` is the model's.
    pub temperature: Option<f32>,
    pub tools: Tools,
}

impl AnswerSettings {
    fn modalities(&mut self, names: Option<&[String]>, param: &'static str) -> Result<(), Refusal> {
        let Some(names) = names else { return Ok(()) };
        self.speaks = match names {
            [name] if name == "text" => false,
            [name] if name == "audio" => true,
            _ => return Err(Refusal::value(param, "send [\"text\"] or [\"audio\"]; sound has its transcript with it")),
        };
        Ok(())
    }

    fn output(&mut self, audio: Option<&AudioFields>, abilities: &Abilities) -> Result<(), Refusal> {
        let Some(output) = audio.and_then(|audio| audio.output.as_ref()) else { return Ok(()) };
        if let Some(fields) = &output.format {
            self.format = format(fields, "audio.output.format")?;
        }
        if let Some(VoiceName::Name(name) | VoiceName::Object { id: name }) = &output.voice {
            let found = (abilities.find_voice)(name);
            self.voice = found.map_err(|message| Refusal::new("invalid_value", "audio.output.voice", message))?;
        }
        if let Some(speed) = output.speed {
            if !(MIN_SPEED..=MAX_SPEED).contains(&speed) {
                let message = format!("must be from {MIN_SPEED} to {MAX_SPEED}");
                return Err(Refusal::value("audio.output.speed", message));
            }
            self.speed = speed;
        }
        Ok(())
    }

    fn max_tokens(&mut self, value: Option<&Value>) -> Result<(), Refusal> {
        self.max_tokens = match value {
            None => return Ok(()),
            Some(Value::String(word)) if word == "inf" => None,
            Some(Value::Null) => None,
            Some(other) => {
                let count = other.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
                Some(count.ok_or_else(|| Refusal::value("max_output_tokens", "send a number from 1, or \"inf\""))?)
            }
        };
        Ok(())
    }

    fn instructions(&mut self, text: Option<&String>, limits: &Limits) -> Result<(), Refusal> {
        let Some(text) = text else { return Ok(()) };
        let chars = text.chars().count();
        if chars > limits.instruction_chars {
            let most = limits.instruction_chars;
            let message = format!("{chars} characters are more than the limit of {most} (limits.max_input_chars)");
            return Err(Refusal::value("instructions", message));
        }
        self.instructions.clone_from(text);
        Ok(())
    }

    /// Those of a response.
    pub fn overridden(
        &self,
        fields: &ResponseFields,
        abilities: &Abilities,
        limits: &Limits,
    ) -> Result<AnswerSettings, Refusal> {
        let mut own = self.clone();
        own.modalities(fields.output_modalities.as_deref(), "response.output_modalities")?;
        own.instructions(fields.instructions.as_ref(), limits)?;
        own.output(fields.audio.as_ref(), abilities)?;
        own.max_tokens(fields.max_output_tokens.as_ref())?;
        let (tools, choice) = (fields.tools.as_deref(), fields.tool_choice.as_ref());
        own.tools = own.tools.updated(tools, choice, abilities, limits)?;
        if let Some(temperature) = fields.temperature {
            if !(0.0..=2.0).contains(&temperature) {
                return Err(Refusal::value("response.temperature", "must be from 0 to 2"));
            }
            own.temperature = Some(temperature);
        }
        Ok(own)
    }

    pub fn max_tokens_object(&self) -> Value {
        self.max_tokens.map_or_else(|| json!("inf"), |count| json!(count))
    }

    /// `audio.output` as a client is told.
    pub fn output_object(&self, abilities: &Abilities) -> Value {
        let voice = self.voice.as_ref().or(abilities.default_voice.as_ref());
        json!({"format": self.format.object(), "voice": voice, "speed": self.speed})
    }

    pub fn modality(&self) -> &'static str {
        if self.speaks { "audio" } else { "text" }
    }
}

/// What a session was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub answer: AnswerSettings,
    pub input: WireFormat,
    pub turns: Option<TurnDetection>,
    /// Whether the user's speech is written down, and what is asked for.
    pub transcription: Option<Transcription>,
    /// From which those of responses follow.
    pub seed: u64,
}

/// How the user's speech is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcription {
    model: Option<String>,
    language: Option<String>,
    prompt: Option<String>,
}

impl Transcription {
    fn read(fields: &TranscriptionFields) -> Result<Transcription, Refusal> {
        const AT: &str = "session.audio.input.transcription";
        let within = |text: &Option<String>, most: usize| match text {
            Some(text) if text.chars().count() > most => {
                Err(Refusal::value(AT, format!("has a text of more than {most} characters")))
            }
            other => Ok(other.clone()),
        };
        let (model, language) = (within(&fields.model, 256)?, within(&fields.language, 32)?);
        Ok(Transcription { model, language, prompt: within(&fields.prompt, 1024)? })
    }

    /// What the thinker is asked behind the sound.
    pub fn question(&self) -> String {
        let mut question = "Transcribe the audio into text.".to_owned();
        if let Some(language) = &self.language {
            question.push_str(&format!(" Its language is {language:?}."));
        }
        if let Some(prompt) = &self.prompt {
            question.push_str(&format!(" Hints: {prompt}"));
        }
        question
    }
}

impl Settings {
    /// Those of a session that was not told any.
    pub fn initial(seed: u64, abilities: &Abilities) -> Settings {
        Settings {
            answer: AnswerSettings {
                speaks: true,
                instructions: String::new(),
                format: WireFormat::Pcm,
                voice: None,
                speed: 1.0,
                max_tokens: None,
                temperature: None,
                tools: Tools::default(),
            },
            input: WireFormat::Pcm,
            turns: abilities.hears.then(TurnDetection::default),
            transcription: None,
            seed,
        }
    }

    /// With those of a client's that it names.
    pub fn updated(&self, fields: &SessionFields, abilities: &Abilities, limits: &Limits) -> Result<Settings, Refusal> {
        let mut new = self.clone();
        if let Some(kind) = fields.kind.as_deref().filter(|kind| *kind != "realtime") {
            let message = format!("{:?} sessions are not served; send \"realtime\"", short(kind));
            return Err(Refusal::value("session.type", message));
        }
        if let Some(model) = fields.model.as_deref().filter(|model| !(abilities.is_model)(model)) {
            let message = format!("this session is with {:?}, not {:?}", abilities.model, short(model));
            return Err(Refusal::value("session.model", message));
        }
        new.answer.modalities(fields.output_modalities.as_deref(), "session.output_modalities")?;
        new.answer.instructions(fields.instructions.as_ref(), limits)?;
        new.answer.output(fields.audio.as_ref(), abilities)?;
        new.answer.max_tokens(fields.max_output_tokens.as_ref())?;
        let (tools, choice) = (fields.tools.as_deref(), fields.tool_choice.as_ref());
        new.answer.tools = new.answer.tools.updated(tools, choice, abilities, limits)?;
        if let Some(input) = fields.audio.as_ref().and_then(|audio| audio.input.as_ref()) {
            if let Some(fields) = &input.format {
                new.input = format(fields, "audio.input.format")?;
            }
            if let Some(turns) = &input.turn_detection {
                new.turns = turns.as_ref().map(TurnDetection::read).transpose()?;
            }
            if let Some(transcription) = &input.transcription {
                new.transcription = transcription.as_ref().map(Transcription::read).transpose()?;
            }
        }
        if let Some(seed) = fields.seed {
            new.seed = seed;
        }
        Ok(new)
    }

    /// As a client is told; `id`, `model` and `expires_at` are the session's.
    pub fn object(&self, id: &str, expires_at: u64, abilities: &Abilities) -> Value {
        let transcription = self.transcription.as_ref().map(|transcription| {
            json!({
                "model": transcription.model.as_ref().unwrap_or(&abilities.model),
                "language": transcription.language, "prompt": transcription.prompt,
            })
        });
        json!({
            "type": "realtime",
            "object": "realtime.session",
            "id": id,
            "model": abilities.model,
            "output_modalities": [self.answer.modality()],
            "instructions": self.answer.instructions,
            "audio": {
                "input": {
                    "format": self.input.object(),
                    "noise_reduction": null,
                    "transcription": transcription,
                    "turn_detection": self.turns.as_ref().map(TurnDetection::object),
                },
                "output": self.answer.output_object(abilities),
            },
            "tools": self.answer.tools.list(),
            "tool_choice": self.answer.tools.choice(),
            "max_output_tokens": self.answer.max_tokens_object(),
            "tracing": null,
            "prompt": null,
            "include": null,
            "expires_at": expires_at,
            "seed": self.seed,
        })
    }
}

fn format(fields: &FormatFields, param: &'static str) -> Result<WireFormat, Refusal> {
    let format = WireFormat::named(&fields.kind).ok_or_else(|| {
        let message = format!("{:?} is no format; send audio/pcm, audio/pcmu or audio/pcma", short(&fields.kind));
        Refusal::value(param, message)
    })?;
    match fields.rate {
        Some(rate) if rate != format.rate() => {
            Err(Refusal::value(param, format!("the rate of {} is {}, not {rate}", fields.kind, format.rate())))
        }
        _ => Ok(format),
    }
}
