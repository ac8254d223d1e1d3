//! One condition, once.

use crate::conditions::{Condition, Trouble};
use crate::faults::Faults;
use anyhow::{Context, bail, ensure};
use omni_actors::config::Config;
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, Event, ResponseStream, Service, SpeechParams, SpeechRequest, TextSource};
use omni_actors::model::Checkpoint;
use omni_actors::telemetry::trace::{Session, StepTimes, Trace};
use omni_actors::telemetry::{catalogue, render};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Frames of each sequence before anything is measured.
const WARM_UP: u32 = 8;
/// What the vocoder may be ahead of a client.
const AUDIO_WINDOW: u32 = 16;
const AN_HOUR: Duration = Duration::from_secs(3600);
/// No step for so long: the engine is at rest.
const CALM: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(300);

/// What is measured, whatever the condition.
pub struct Bench<'a> {
    pub checkpoint: &'a Checkpoint,
    pub faults: &'a Faults,
    pub sequences: u32,
    pub frames: u32,
    pub sleepers: u32,
}

/// What came of it.
pub struct Turn {
    /// Milliseconds from the end of one decode step to the end of the next.
    pub cadence: Vec<f64>,
    /// Microseconds that the device had nothing to do between them.
    pub bubble: Vec<f64>,
    /// Steps out at a launch whose tokens the scheduler had not seen, on average.
    pub run_ahead: f64,
    /// Of all that was heard.
    pub hash: String,
}

impl Bench<'_> {
    /// Frames that a sequence of the talker may be ahead of the vocoder: more than a measured sequence makes.
    fn window(&self) -> u32 {
        self.frames + 16
    }

    /// The config of an engine for this condition.
    pub fn config(&self, mut config: Config, condition: &Condition) -> Config {
        // Room for the sleepers under every condition, and so much that slots are never scarce.
        config.limits.max_requests = (2 * (self.sequences + self.sleepers) + 8) as usize;
        config.limits.request_timeout = AN_HOUR;
        config.limits.stalled_client_timeout = AN_HOUR;
        config.stages[StageName::Talker as usize].window = self.window();
        config.stages[StageName::Vocoder as usize].window = AUDIO_WINDOW;
        config.faults.extend(condition.trouble.faults(self.sequences, self.frames, self.sequences * WARM_UP));
        config
    }

    pub async fn measure(&self, config: &Config, condition: &Condition) -> anyhow::Result<Turn> {
        let engine = Engine::start(self.checkpoint, config).await?;
        self.hear_all(&engine, WARM_UP).await?;
        let sleepers = match condition.trouble {
            Trouble::Sleepers => self.sleepers(&engine).await?,
            _ => Vec::new(),
        };
        self.faults.take();
        let session = Session::begin(&engine.recorder());
        let hash = self.hear_all(&engine, self.frames).await?;
        let trace = session.end();
        let faults = self.faults.take();
        ensure!(trace.missing == 0, "{} records of the trace were lost", trace.missing);
        ensure!(engine.load().requests >= sleepers.len(), "a client that stopped reading was let go");
        drop(sleepers);
        engine.drain(Duration::ZERO).await;
        self.decode(&trace, &faults, condition, hash)
    }

    /// As many requests at once as there are sequences, each read to its end; says what was heard.
    async fn hear_all(&self, engine: &Engine, frames: u32) -> anyhow::Result<String> {
        let heard = (0..self.sequences).map(|sequence| async move {
            let stream = engine.speak(request(frames, u64::from(sequence) + 1)).await?;
            hear(stream).await
        });
        let mut all = Sha256::new();
        for heard in futures::future::join_all(heard).await {
            all.update(heard?);
        }
        Ok(all.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Clients who have heard something and read no more. Returns when their windows have paused them.
    async fn sleepers(&self, engine: &Engine) -> anyhow::Result<Vec<ResponseStream>> {
        let mut sleepers = Vec::new();
        for client in 0..self.sleepers {
            let frames = self.window() + AUDIO_WINDOW + 64;
            let mut stream = engine.speak(request(frames, 1000 + u64::from(client))).await?;
            let first = async {
                while let Some(event) = stream.next().await {
                    match event {
                        Event::Audio(_) => return Ok(()),
                        Event::Failed(error) => return Err(error),
                        _ => {}
                    }
                }
                Ok(())
            };
            first.await?;
            sleepers.push(stream);
        }
        let at_rest = async {
            let mut before = None;
            while before != Some(steps_so_far()) {
                before = Some(steps_so_far());
                tokio::time::sleep(CALM).await;
            }
        };
        tokio::time::timeout(PATIENCE, at_rest).await.context("sequences of clients that stopped reading go on")?;
        Ok(sleepers)
    }

    /// What the steps say in which all sequences decoded, the first third left out.
    fn decode(&self, trace: &Trace, faults: &[u64], condition: &Condition, hash: String) -> anyhow::Result<Turn> {
        let steps = trace.steps();
        let talker: Vec<_> = steps.iter().filter(|((place, ..), _)| place.stage == StageName::Talker).collect();
        let decodes = |step: &StepTimes| step.sequences == self.sequences && step.prompt == 0 && step.ran.is_some();
        let mut pairs = Vec::new();
        for pair in talker.windows(2) {
            let [((_, _, number), one), ((_, _, next), two)] = pair else { continue };
            if let (true, true, Some((_, before)), Some((_, after))) = (decodes(one), decodes(two), one.ran, two.ran)
                && number.0 + 1 == next.0
            {
                pairs.push((before, after, *two));
            }
        }
        let least = self.frames as usize / 3;
        let pairs = pairs.split_off(least.min(pairs.len()));
        if pairs.len() < least {
            bail!("only {} of {} talker steps had all sequences and nothing else", pairs.len() + least, talker.len());
        }
        match condition.trouble {
            Trouble::Stall(_) => {
                let struck = *faults.first().context("the connector did not stall")?;
                let inside = pairs.iter().filter(|(before, ..)| *before >= struck).count();
                ensure!(inside * 4 >= pairs.len() * 3, "the stall came late: before {inside} of {} steps", pairs.len());
            }
            Trouble::SlowPackager(_) => ensure!(!faults.is_empty(), "the packager was not slowed down"),
            Trouble::None | Trouble::Sleepers => {}
        }
        let ahead: u32 = pairs.iter().filter_map(|(.., step)| step.ahead).sum();
        Ok(Turn {
            cadence: pairs.iter().map(|(before, after, _)| (after - before) as f64 / 1e6).collect(),
            bubble: pairs.iter().map(|(.., step)| step.bubble.unwrap_or(0) as f64 / 1e3).collect(),
            run_ahead: f64::from(ahead) / pairs.len() as f64,
            hash,
        })
    }
}

/// Steps of all stages since the process began.
fn steps_so_far() -> u64 {
    let text = render();
    let series = text.lines().filter(|line| line.starts_with(catalogue::STEPS.name));
    series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

fn request(frames: u32, seed: u64) -> SpeechRequest {
    let params = SpeechParams {
        max_frames: Some(Frames(frames)),
        ignore_eos: true,
        seed: Some(seed),
        ..SpeechParams::default()
    };
    SpeechRequest { text: TextSource::Whole("The news of the day, and what became of it.".into()), params }
}

/// The samples of one answer and how it ended. They are a function of its codes alone.
async fn hear(mut stream: ResponseStream) -> anyhow::Result<Vec<u8>> {
    let mut heard = Sha256::new();
    while let Some(event) = stream.next().await {
        match event {
            Event::Audio(chunk) => chunk.samples.iter().for_each(|sample| heard.update(sample.to_le_bytes())),
            Event::Finished { reason, usage } => heard.update(format!("{reason:?} {}", usage.frames.0)),
            Event::Failed(error) => bail!("{error}"),
            _ => {}
        }
    }
    Ok(heard.finalize().to_vec())
}
