//! The engine without a server: a text is spoken into a wav file while it is made.
//!
//!     cargo run --release --example engine_as_library -- "Good morning." morning.wav
//!
//! A third argument is the folder of another checkpoint than the voice in this repository.

use anyhow::{Context, bail};
use omni_actors::audio::{AudioFormat, Sound};
use omni_actors::config;
use omni_actors::engine::{Engine, Event, Service, SpeechParams, SpeechRequest, TextSource};
use omni_actors::model::Checkpoint;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::Duration;

const VOICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/voice/checkpoint");

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(text), Some(path)) = (args.next(), args.next()) else {
        bail!("usage: engine_as_library TEXT FILE.wav [CHECKPOINT]")
    };
    let folder = args.next().unwrap_or_else(|| VOICE.to_owned());

    // An empty config is one of defaults. Relative paths in it would start at the folder that comes second.
    let config = config::parse("", Path::new("."), &[])?;
    let checkpoint = Checkpoint::open(Path::new(&folder))?;
    // Returns when every stage can serve. Clones are handles to the same engine.
    let engine = Engine::start(&checkpoint, &config).await?;

    let params = SpeechParams { seed: Some(7), ..SpeechParams::default() };
    let mut answer = engine.speak(SpeechRequest { text: TextSource::Whole(text), params }).await?;

    let mut file = File::create(&path).with_context(|| format!("cannot write {path}"))?;
    let mut writer = Sound::from(AudioFormat::Wav).writer(engine.info().sample_rate)?;
    // Dropping the answer before it ends cancels the request.
    while let Some(event) = answer.next().await {
        match event {
            Event::Started { id, seed } => println!("{id}, seed {seed}"),
            Event::Audio(chunk) => {
                file.write_all(&writer.push(&chunk.samples)?)?;
                println!("{} samples", chunk.samples.len());
            }
            Event::Finished { usage, .. } => println!("{} frames", usage.frames.0),
            Event::Failed(error) => return Err(error.into()),
            Event::Text(_) => {} // answers to a chat have text
            Event::Word(_) => {} // requests that ask for words have their times
        }
    }
    file.write_all(&writer.finish()?)?;
    // A wav says in front how long it is, which is known now.
    if let Some(front) = writer.front() {
        file.rewind()?;
        file.write_all(&front)?;
    }

    // Open requests may go on for so long; there are none.
    engine.drain(Duration::ZERO).await;
    Ok(())
}
