//! Answers that run all the time, each followed by the next, and requests with media beside them.

use anyhow::bail;
use omni_actors::core::ids::Frames;
use omni_actors::engine::{
    ChatMessage, Content, Detail, Engine, Event, GenerateRequest, MediaSource, Output, Part, RequestOptions,
    SamplingOverrides, Service,
};
use omni_actors::telemetry::clock;
use std::sync::{Mutex, PoisonError};

/// What the running answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Text alone: the thinker decodes as fast as it can.
    Text,
    /// Text and speech: the talker does.
    #[value(name = "speech")]
    Spoken,
}

/// Tokens and frames of a running answer.
const TOKENS: u32 = 600;
const FRAMES: u32 = 300;

/// See the module.
pub struct Answers<'a> {
    engine: &'a Engine,
    kind: Kind,
    pub count: u32,
    /// When each piece came to its client, and the time since the one before.
    pub gaps: Mutex<Vec<(u64, u64)>>,
}

impl Answers<'_> {
    pub fn new(engine: &Engine, kind: Kind, count: u32) -> Answers<'_> {
        Answers { engine, kind, count, gaps: Mutex::default() }
    }

    /// Runs them. It ends with an error only.
    pub async fn run(&self) -> anyhow::Result<()> {
        let each = (0..self.count).map(|client| async move {
            for round in 0.. {
                self.one(u64::from(client) << 32 | round).await?;
            }
            anyhow::Ok(())
        });
        futures::future::try_join_all(each).await.map(|_| ())
    }

    async fn one(&self, seed: u64) -> anyhow::Result<()> {
        let (output, max_text_tokens) = match self.kind {
            Kind::Text => (Output::Text, TOKENS),
            Kind::Spoken => (Output::TextAndAudio, FRAMES / 4),
        };
        let content = Content::Text("What is the news of the day?".into());
        let mut stream = self
            .engine
            .submit(GenerateRequest {
                max_frames: Some(Frames(FRAMES)),
                seed: Some(seed),
                ..request(content, output, max_text_tokens)
            })
            .await?;
        let mut last = None;
        while let Some(event) = stream.next().await {
            let counts = match event {
                Event::Text(_) => self.kind == Kind::Text,
                Event::Audio(_) => self.kind == Kind::Spoken,
                Event::Failed(error) => bail!("{error}"),
                _ => false,
            };
            if counts {
                let now = clock::now();
                if let Some(before) = last.replace(now) {
                    self.gaps.lock().unwrap_or_else(PoisonError::into_inner).push((now, now - before));
                }
            }
        }
        Ok(())
    }

    /// Asks about a clip and a picture, and waits for the answer: one token.
    pub async fn ask(&self, (clip, picture): (Vec<u8>, Vec<u8>)) -> anyhow::Result<()> {
        let mut parts = vec![Part::Text("What is it?".into())];
        let mut media = Vec::new();
        if !clip.is_empty() {
            parts.push(Part::Audio);
            media.push(MediaSource::Audio(clip.into()));
        }
        if !picture.is_empty() {
            parts.push(Part::Image);
            media.push(MediaSource::Image { file: picture.into(), detail: Detail::High });
        }
        let request = GenerateRequest { media, ..request(Content::Parts(parts), Output::Text, 1) };
        let mut stream = self.engine.submit(request).await?;
        while let Some(event) = stream.next().await {
            if let Event::Failed(error) = event {
                bail!("{error}");
            }
        }
        Ok(())
    }
}

fn request(content: Content, output: Output, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        messages: vec![ChatMessage { role: "user".into(), content, calls: Vec::new() }],
        tools: Vec::new(),
        until_call: false,
        media: Vec::new(),
        output,
        voice: None,
        text: SamplingOverrides::default(),
        speech: SamplingOverrides::default(),
        max_text_tokens: Some(tokens),
        max_frames: None,
        ignore_eos: true,
        seed: Some(1),
        options: RequestOptions::default(),
    }
}
