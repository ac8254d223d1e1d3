//! One request over HTTP, timed chunk by chunk. It uses only the public routes for speech and chats, so that it can
//! measure any server.

use super::chat::{self, Length};
use super::server::Snapshot;
use super::stats::{Answer, Record};
use anyhow::Context;
use omni_core::playback::Playback;
use reqwest::{Client, Response, Url};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// What OpenAI's `pcm` format has, unless the answer's `x-sample-rate` says otherwise.
pub(super) const SAMPLE_RATE: u32 = 24_000;
/// 16-bit mono.
const BYTES_PER_SAMPLE: u64 = 2;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A text is spoken as it is.
    Speech,
    /// A question is answered in text, and in speech if it says so.
    Chat {
        /// Whether the answer is spoken, too.
        speaks: bool,
    },
}

/// Sends requests to one route of one server.
#[derive(Debug)]
pub struct LoadClient {
    http: Client,
    url: Url,
    route: Route,
    body: Map<String, Value>,
    seed: Option<u64>,
}

/// What a server tells about a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Its name.
    pub id: Option<String>,
    /// Whether it hears sound.
    pub hears: bool,
}

impl LoadClient {
    /// `base` is the server's address with or without `/v1`; `extra` goes into every body and wins; null
    /// leaves a field out.
    pub fn new(
        base: &str,
        route: Route,
        timeout: Duration,
        (voice, extra): (Option<&str>, Map<String, Value>),
        seed: Option<u64>,
    ) -> anyhow::Result<Self> {
        let base = base.trim_end_matches('/').trim_end_matches("/v1");
        let path = if route == Route::Speech { "audio/speech" } else { "chat/completions" };
        let url = Url::parse(&format!("{base}/v1/{path}"))
            .with_context(|| format!("--url {base}: write it as http://HOST:PORT"))?;
        anyhow::ensure!(url.scheme() == "http", "--url {base}: only http:// is supported");
        let http = Client::builder().timeout(timeout).no_proxy().tcp_nodelay(true).build()?;
        let mut body = match route {
            Route::Speech => speech_fields(voice),
            Route::Chat { speaks } => chat::common_fields(speaks, voice),
        };
        body.extend(extra);
        body.retain(|_, value| !value.is_null());
        Ok(LoadClient { http, url, route, body, seed })
    }

    /// Asks the server for its model's name and sends that with every request, because some servers insist on a name.
    pub async fn adopt_model(&mut self) {
        let Ok(url) = self.url.join("/v1/models") else { return };
        let Ok(answer) = self.http.get(url).send().await else { return };
        let Ok(models) = answer.json::<Value>().await else { return };
        if let Some(id) = models["data"][0]["id"].as_str() {
            self.body.entry("model").or_insert_with(|| json!(id));
        }
    }

    /// The name of the server's first model, and whether it hears; `None` if the server does not say.
    pub async fn first_model(&self) -> Option<Known> {
        let answer = self.http.get(self.url.join("/v1/models").ok()?).send().await.ok()?;
        let models: Value = answer.json().await.ok()?;
        let model = &models["data"][0];
        // Servers that do not tell what a model takes are asked in speech.
        let hears = model["input_modalities"].as_array().is_none_or(|takes| takes.contains(&json!("audio")));
        Some(Known { id: model["id"].as_str().map(str::to_owned), hears })
    }

    /// How many requests the server takes at once; `None` if its `/health` does not say.
    pub async fn places(&self) -> Option<usize> {
        let answer = self.http.get(self.url.join("/health").ok()?).send().await.ok()?;
        answer.json::<Value>().await.ok()?["max_requests"].as_u64().and_then(|places| places.try_into().ok())
    }

    /// The server's metrics; empty if it has none.
    pub async fn metrics(&self) -> Snapshot {
        let fetch = async {
            let answer = self.http.get(self.url.join("/metrics").ok()?).send().await.ok()?;
            if answer.status().is_success() { answer.text().await.ok() } else { None }
        };
        fetch.await.map(|text| Snapshot::parse(&text)).unwrap_or_default()
    }

    /// Sends the `i`-th request, due at `due`, and reads it to the end. It asks for exactly so many frames and tokens
    /// as `length` says, and any other number is a failure.
    pub async fn ask(&self, i: usize, text: &str, length: Length, began: Instant, due: Instant) -> Record {
        let result = self.stream(i, text, length, due).await;
        Record { due: due.duration_since(began), result, took: due.elapsed() }
    }

    async fn stream(&self, i: usize, text: &str, length: Length, due: Instant) -> Result<Answer, String> {
        let mut body = self.body.clone();
        match (self.route, length.frames) {
            (Route::Chat { .. }, _) => chat::ask(&mut body, text, length),
            (Route::Speech, frames) => {
                if let Some(frames) = frames {
                    body.insert("max_new_tokens".to_owned(), frames.into());
                    body.insert("ignore_eos".to_owned(), true.into());
                }
                body.insert("input".to_owned(), text.into());
            }
        }
        if let Some(seed) = self.seed {
            body.insert("seed".to_owned(), seed.wrapping_add(i as u64).into());
        }
        let mut answer = self.http.post(self.url.clone()).json(&body).send().await.map_err(|error| kind(&error))?;
        if let Route::Chat { speaks } = self.route {
            return chat::read(answer, length, speaks, due).await;
        }
        if !answer.status().is_success() {
            return Err(refusal(answer).await);
        }
        let rate = answer.headers().get("x-sample-rate").and_then(|value| value.to_str().ok()?.parse().ok());
        let rate = u64::from(rate.unwrap_or(SAMPLE_RATE).max(1));
        let mut player = Playback::default();
        let (mut bytes, mut samples) = (0u64, 0u64);
        while let Some(chunk) = answer.chunk().await.map_err(|error| kind(&error))? {
            // Half a sample may come with one chunk and half with the next.
            bytes += chunk.len() as u64;
            let fresh = bytes / BYTES_PER_SAMPLE - samples;
            samples += fresh;
            if fresh > 0 {
                player.chunk(due.elapsed(), Duration::from_secs_f64(fresh as f64 / rate as f64));
            }
        }
        let ttfa = player.time_to_first().ok_or("no audio in the answer")?;
        let (played, underruns, silence) = (player.length(), player.underruns, player.silence);
        let speech = Answer { ttfa, length: played, underruns, silence, text: None };
        match length.frames {
            Some(asked) if asked != speech.frames() => Err(format!("{} frames instead of {asked}", speech.frames())),
            _ => Ok(speech),
        }
    }
}

fn speech_fields(voice: Option<&str>) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_format".to_owned(), "audio".into());
    body.insert("response_format".to_owned(), "pcm".into());
    if let Some(voice) = voice {
        body.insert("voice".to_owned(), voice.into());
    }
    body
}

/// What a server says that refuses a request.
pub(super) async fn refusal(answer: Response) -> String {
    let status = answer.status().as_u16();
    let told = answer.json::<Value>().await.ok();
    let message = told.as_ref().and_then(|told| told["error"]["message"].as_str()).unwrap_or_default();
    format!("{status} {message}").trim().to_owned()
}

/// The kind of a failure, so that the report counts equal failures together.
pub(super) fn kind(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        "timed out".to_owned()
    } else if error.is_connect() {
        "could not connect".to_owned()
    } else {
        "connection broke".to_owned()
    }
}
