//! One condition, once.

use crate::conditions::{Condition, Trouble};
use crate::record::{Recorder, Step};
use anyhow::{Context, bail, ensure};
use omni_actors::config::Config;
use omni_actors::engine::{Engine, Event, ResponseStream, Service, SpeechParams, SpeechRequest, TextSource};
use omni_actors::ids::{Frames, StageName};
use omni_actors::model::Checkpoint;
use omni_actors::telemetry;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Frames of each row before anything is measured.
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
    pub recorder: &'a Recorder,
    pub rows: u32,
    pub frames: u32,
    pub sleepers: u32,
}

/// What came of it.
pub struct Turn {
    /// Milliseconds from the end of one decode step to the end of the next.
    pub cadence: Vec<f64>,
    /// Microseconds that the device had nothing to do between them.
    pub bubble: Vec<f64>,
    /// Steps launched whose tokens the scheduler had not seen, on average over all launches.
    pub run_ahead: f64,
    /// Of all that was heard.
    pub hash: String,
}

impl Bench<'_> {
    /// Frames that a row of the talker may be ahead of the vocoder: more than a measured row makes.
    fn window(&self) -> u32 {
        self.frames + 16
    }

    /// The config of an engine for this condition.
    pub fn config(&self, mut config: Config, condition: &Condition) -> Config {
        // Room for the sleepers under every condition, and so much that slots are never scarce.
        config.limits.max_requests = (2 * (self.rows + self.sleepers) + 8) as usize;
        config.limits.request_timeout = AN_HOUR;
        config.limits.stalled_client_timeout = AN_HOUR;
        config.stages[StageName::Talker as usize].window = self.window();
        config.stages[StageName::Code2wav as usize].window = AUDIO_WINDOW;
        config.faults.extend(condition.trouble.faults(self.rows, self.frames, self.rows * WARM_UP));
        config
    }

    pub async fn measure(&self, config: &Config, condition: &Condition) -> anyhow::Result<Turn> {
        let engine = Engine::start(self.checkpoint, config).await?;
        self.hear_all(&engine, WARM_UP).await?;
        let sleepers = match condition.trouble {
            Trouble::Sleepers => self.sleepers(&engine).await?,
            _ => Vec::new(),
        };
        let ahead = RunAhead::now();
        self.recorder.take();
        let hash = self.hear_all(&engine, self.frames).await?;
        let (steps, faults) = self.recorder.take();
        let run_ahead = RunAhead::now().since(&ahead);
        ensure!(engine.load().requests >= sleepers.len(), "a client that stopped reading was let go");
        drop(sleepers);
        engine.drain(Duration::ZERO).await;
        let (cadence, bubble) = self.decode(&steps, &faults, condition)?;
        Ok(Turn { cadence, bubble, run_ahead, hash })
    }

    /// As many requests at once as there are rows, each read to its end; says what was heard.
    async fn hear_all(&self, engine: &Engine, frames: u32) -> anyhow::Result<String> {
        let heard = (0..self.rows).map(|row| async move {
            let stream = engine.speak(request(frames, u64::from(row) + 1)).await?;
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
            let mut before = usize::MAX;
            while before != self.recorder.count() {
                before = self.recorder.count();
                tokio::time::sleep(CALM).await;
            }
        };
        tokio::time::timeout(PATIENCE, at_rest).await.context("rows of clients that stopped reading go on")?;
        Ok(sleepers)
    }

    /// Cadence and bubbles of the steps in which all rows decoded, the first third left out.
    fn decode(&self, steps: &[Step], faults: &[u64], condition: &Condition) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let decodes = |step: &Step| step.rows == u64::from(self.rows) && step.prompt == 0;
        let talker: Vec<&Step> = steps.iter().filter(|step| step.stage == StageName::Talker.as_str()).collect();
        let pairs = talker.windows(2).map(|pair| (pair[0], pair[1]));
        let pairs: Vec<_> = pairs
            .filter(|(a, b)| decodes(a) && decodes(b) && a.step + 1 == b.step)
            .skip(self.frames as usize / 3)
            .collect();
        if pairs.len() < self.frames as usize / 3 {
            bail!("only {} of {} talker steps had all rows and nothing else", pairs.len(), talker.len());
        }
        match condition.trouble {
            Trouble::Stall(_) => {
                let struck = *faults.first().context("the connector did not stall")?;
                let after = pairs.iter().filter(|(before, _)| before.known >= struck).count();
                ensure!(after * 4 >= pairs.len() * 3, "the stall came late: before {after} of {} steps", pairs.len());
            }
            Trouble::SlowPackager(_) => ensure!(!faults.is_empty(), "the packager was not slowed down"),
            Trouble::None | Trouble::Sleepers => {}
        }
        let cadence = pairs.iter().map(|(a, b)| (b.known - a.known) as f64 / 1e3).collect();
        let bubble = pairs.iter().map(|(a, b)| b.bubble(a.known) as f64).collect();
        Ok((cadence, bubble))
    }
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

/// The talker's histogram of steps in flight at a launch: how many launches, and their sum.
struct RunAhead {
    launches: f64,
    sum: f64,
}

impl RunAhead {
    fn now() -> RunAhead {
        let text = telemetry::render();
        let series = |suffix: &str| {
            let name = format!("{}{suffix}{{stage=\"talker\"}} ", telemetry::catalogue::RUN_AHEAD_STEPS.name);
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0.0)
        };
        RunAhead { launches: series("_count"), sum: series("_sum") }
    }

    fn since(&self, earlier: &RunAhead) -> f64 {
        (self.sum - earlier.sum) / (self.launches - earlier.launches).max(1.0)
    }
}
