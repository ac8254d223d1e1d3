//! A client of a running server: it sends a text word by word over the WebSocket, as a language model would write it,
//! and writes the speech into a wav file while it comes.
//!
//!     cargo run --release -- run                                    in one terminal
//!     cargo run --release --example client -- "Good morning." morning.wav
//!
//! `OMNI_URL` is the server (ws://127.0.0.1:8080), `OMNI_KEY` the key, where it wants one.

use anyhow::{Context, bail};
use futures::{SinkExt, StreamExt};
use hound::{SampleFormat, WavSpec, WavWriter};
use serde_json::{Value, json};
use std::time::Instant;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(text), Some(path)) = (args.next(), args.next()) else { bail!("usage: client TEXT FILE.wav") };

    let server = std::env::var("OMNI_URL").unwrap_or_else(|_| "ws://127.0.0.1:8080".to_owned());
    let mut request = format!("{server}/v1/audio/speech/stream").into_client_request()?;
    if let Ok(key) = std::env::var("OMNI_KEY") {
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse()?);
    }
    let (socket, _) = connect_async(request).await.with_context(|| format!("no server at {server}"))?;
    let (mut say, mut hear) = socket.split();

    let began = Instant::now();
    for word in text.split_inclusive(' ') {
        say.send(message(&json!({"type": "input.text", "text": word}))).await?;
    }
    // The text is complete; and nothing comes after it.
    say.send(message(&json!({"type": "input.done"}))).await?;
    say.send(message(&json!({"type": "session.close"}))).await?;

    let mut file = None;
    let mut samples = 0usize;
    while let Some(message) = hear.next().await {
        match message? {
            // 16-bit samples, little-endian.
            Message::Binary(bytes) => {
                if samples == 0 {
                    println!("first audio after {} ms", began.elapsed().as_millis());
                }
                let writer: &mut WavWriter<_> = file.as_mut().context("audio came before audio.start")?;
                for sample in bytes.chunks_exact(2) {
                    writer.write_sample(i16::from_le_bytes([sample[0], sample[1]]))?;
                }
                samples += bytes.len() / 2;
            }
            Message::Text(text) => {
                let told: Value = serde_json::from_str(&text)?;
                match told["type"].as_str() {
                    Some("audio.start") => {
                        let rate = told["sample_rate"].as_u64().context("audio.start names no sample rate")?;
                        let spec = WavSpec {
                            channels: 1,
                            sample_rate: u32::try_from(rate)?,
                            bits_per_sample: 16,
                            sample_format: SampleFormat::Int,
                        };
                        file = Some(WavWriter::create(&path, spec)?);
                    }
                    Some("audio.done") => println!("{path}: {} s of speech", told["seconds"]),
                    Some("error") => bail!("{}", told["message"]),
                    _ => {}
                }
            }
            _ => {} // pings are answered by the library
        }
    }
    file.context("the server said nothing")?.finalize()?;
    Ok(())
}

fn message(value: &Value) -> Message {
    Message::text(value.to_string())
}
