//! `omni-actors trace`: which step ran when, as a file for a Perfetto viewer.

use super::exit::{Interrupted, Usage};
use super::model::ModelArgs;
use super::signals::Signals;
use super::{EmbeddedFiles, local};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use futures::future::LocalBoxFuture;
use omni_config::Override;
use omni_core::ids::Frames;
use omni_engine::{Event, Service, SpeechParams, SpeechRequest, TextSource, VoiceChoice};
use omni_telemetry::trace::{self, Session};
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Record what each stage does when, as a file that a Perfetto viewer opens
///
/// Speaks inside this process, or listens to a running server (--url), and writes tracks for scheduler, launch thread,
/// device, copies, sampler, packager and connectors of every stage, with an arrow from each token to the launch that
/// needed it. A short summary goes to stdout.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors trace                                        the embedded voice says a sentence into trace.json
  omni-actors trace my.toml --concurrency 8 --requests 24 -o c8.json
  omni-actors trace --frames 50 --set stages.talker.run_ahead=1
  omni-actors trace --url http://127.0.0.1:8080 --seconds 5   what a server does meanwhile; it needs telemetry.trace = true

Open the file at https://ui.perfetto.dev (it stays in your browser) or chrome://tracing, or draw it:
  scripts/timeline.py trace.json -o timeline.svg")]
pub struct TraceArgs {
    /// Config file; without one the embedded voice with default settings
    #[arg(conflicts_with = "checkpoint")]
    config: Option<PathBuf>,
    /// Checkpoint folder in Hugging Face form, instead of the embedded voice
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Override one key of the config, such as stages.talker.run_ahead=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
    /// File to write; it appears when it is complete
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// What to say
    #[arg(long, default_value = "The weather is lovely today, and the launch thread never waits.")]
    text: String,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Requests in all; one for each at once if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: Option<u32>,
    /// Make every request exactly so many frames of 80 ms long, whatever the model would say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    frames: Option<u32>,
    /// Speaker, or an uploaded voice
    #[arg(long)]
    voice: Option<String>,
    /// Seed of the first request; each further one has the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Listen to a server instead, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = ["config", "checkpoint", "set", "text", "concurrency", "requests", "frames", "voice", "seed"])]
    url: Option<String>,
    /// With --url: for how long
    #[arg(long, value_name = "S", default_value_t = 5.0, requires = "url")]
    seconds: f64,
}

/// Runs the command.
pub fn execute(args: TraceArgs, embedded: Option<EmbeddedFiles>) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run(args, embedded))
}

async fn run(args: TraceArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    let working = async {
        match &args.url {
            Some(url) => fetch(url, args.seconds, &args.output).await,
            None => record(&args, embedded).await,
        }
    };
    tokio::select! {
        done = working => done?,
        () = signals.next() => return Err(Interrupted.into()),
    }
    let about = about(&args.output)?;
    crate::out!("{}", summary(&args.output, &about));
    Ok(())
}

/// Speaks in this process and writes the trace of it.
async fn record(args: &TraceArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let model = ModelArgs { config: args.config.clone(), checkpoint: args.checkpoint.clone(), set: args.set.clone() };
    let mut config = model.resolve()?;
    let at_once = usize::from(args.concurrency);
    if args.config.is_none() {
        config.limits.max_requests = config.limits.max_requests.max(at_once);
    } else if at_once > config.limits.max_requests {
        let most = config.limits.max_requests;
        return Err(Usage(format!(
            "--concurrency {at_once}: the config lets {most} requests in; raise limits.max_requests"
        ))
        .into());
    }
    let service = local::start_ready(config, embedded).await?;
    let session = Session::begin(&service.recorder());
    let spoken = speak_all(args, &service).await;
    session.settle().await;
    service.drain(Duration::ZERO).await;
    let trace = session.end();
    spoken?;
    let mut file = Unfinished::create(&args.output)?;
    trace::write(&trace, &mut file.writer).with_context(|| file.told())?;
    file.finish()
}

async fn speak_all(args: &TraceArgs, service: &Arc<dyn Service>) -> anyhow::Result<()> {
    let requests = args.requests.map_or(usize::from(args.concurrency), |requests| requests as usize);
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..args.concurrency {
        let (service, next) = (Arc::clone(service), Arc::clone(&next));
        let (text, voice, frames, seed) = (args.text.clone(), args.voice.clone(), args.frames, args.seed);
        clients.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= requests {
                    return Ok(());
                }
                let params = SpeechParams {
                    voice: VoiceChoice::named(voice.clone()),
                    max_frames: frames.map(Frames),
                    ignore_eos: frames.is_some(),
                    seed: Some(seed.wrapping_add(i as u64)),
                    ..SpeechParams::default()
                };
                speak(&*service, SpeechRequest { text: TextSource::Whole(text.clone()), params }).await?;
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.context("a client broke off")??;
    }
    Ok(())
}

async fn speak(service: &dyn Service, request: SpeechRequest) -> anyhow::Result<()> {
    // A refusal is about what the user typed.
    let mut stream = service.speak(request).await.map_err(|error| Usage(error.to_string()))?;
    while let Some(event) = stream.next().await {
        match event {
            Event::Finished { .. } => return Ok(()),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(anyhow!("a request ended without an answer"))
}

/// Takes a trace from a running server.
async fn fetch(base: &str, seconds: f64, output: &Path) -> anyhow::Result<()> {
    let base = base.trim_end_matches('/');
    let wrong = |why: String| Usage(format!("--url {base}: {why}; write it as http://HOST:PORT"));
    let mut url = Url::parse(&format!("{base}/debug/trace")).map_err(|error| wrong(error.to_string()))?;
    if url.scheme() != "http" {
        return Err(wrong("only http:// is supported".to_owned()).into());
    }
    url.query_pairs_mut().append_pair("seconds", &seconds.to_string());
    let http = Client::builder().no_proxy().build()?;
    let mut answer = http.get(url).send().await.with_context(|| format!("no answer from {base}"))?;
    if answer.status() == StatusCode::NOT_FOUND {
        bail!("{base} takes no traces: its config needs [telemetry] trace = true");
    }
    if !answer.status().is_success() {
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or_default();
        bail!("{base} answered {status}: {}", body["error"]["message"].as_str().unwrap_or("no reason given"));
    }
    let mut file = Unfinished::create(output)?;
    while let Some(bytes) = answer.chunk().await.context("the trace broke off")? {
        file.writer.write_all(&bytes).with_context(|| file.told())?;
    }
    file.finish()
}

/// A file that gets its name when it is complete, and leaves nothing behind if it never is.
struct Unfinished {
    writer: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    fn create(path: &Path) -> anyhow::Result<Unfinished> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Unfinished { writer: BufWriter::new(file), partial, path: path.to_owned() })
    }

    fn told(&self) -> String {
        format!("cannot write {}", self.path.display())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.writer.flush().with_context(|| self.told())?;
        std::fs::rename(&self.partial, &self.path).with_context(|| self.told())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Gone already if all went well.
        let _ = std::fs::remove_file(&self.partial);
    }
}

/// What a trace says about itself, which stands in front of its events.
fn about(path: &Path) -> anyhow::Result<Value> {
    /// Far more than the part in front of the events has.
    const HEAD: u64 = 1 << 16;
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(HEAD).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let parsed =
        head.split_once(",\"traceEvents\":").and_then(|(front, _)| serde_json::from_str(&format!("{front}}}")).ok());
    let whole: Value = parsed.ok_or_else(|| anyhow!("{}: not a trace of this program", path.display()))?;
    Ok(whole["otherData"].clone())
}

/// The summary of a trace for people.
fn summary(path: &Path, about: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let mut told = format!(
        "{}: {} records in {:.2} s, {} missing\n\n{:<10}{:>8}{:>12}{:>16}{:>20}{:>20}\n",
        path.display(),
        about["records"],
        number(&about["length_us"]) / 1e6,
        about["records_missing"],
        "stage",
        "steps",
        "run-ahead",
        "launched early",
        "a step every, ms",
        "bubble, us",
    );
    for stage in about["stages"].as_array().into_iter().flatten() {
        let pair = |field: &str, scale: f64, digits: usize| match (&stage[field]["p50_us"], &stage[field]["p99_us"]) {
            (Value::Null, _) | (_, Value::Null) => "-".to_owned(),
            (p50, p99) => format!("{:.digits$} / {:.digits$}", number(p50) / scale, number(p99) / scale),
        };
        let or_dash = |value: &Value, text: String| if value.is_null() { "-".to_owned() } else { text };
        told += &format!(
            "{:<10}{:>8}{:>12}{:>16}{:>20}{:>20}\n",
            stage["stage"].as_str().unwrap_or_default(),
            stage["steps"].as_u64().unwrap_or_default(),
            or_dash(&stage["run_ahead"], format!("{:.2}", number(&stage["run_ahead"]))),
            or_dash(&stage["launched_early"], format!("{:.0} %", 100.0 * number(&stage["launched_early"]))),
            pair("cadence", 1e3, 2),
            pair("bubble", 1.0, 1),
        );
    }
    told += "\npairs are p50 / p99; launched early: before the outcome of the step before was known\n";
    told + "open it at https://ui.perfetto.dev (it stays in your browser) or chrome://tracing\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_summary_has_a_line_per_stage_and_dashes_for_what_is_not_known() {
        let about = json!({
            "records": 120, "records_missing": 3, "length_us": 1_500_000.0,
            "stages": [{
                "stage": "talker", "steps": 40, "run_ahead": 0.975, "launched_early": 1.0,
                "cadence": { "p50_us": 2210.0, "p99_us": 2400.0 }, "bubble": null,
            }],
        });
        let told = summary(Path::new("t.json"), &about);
        assert!(told.starts_with("t.json: 120 records in 1.50 s, 3 missing\n"), "{told}");
        let line: Vec<_> = told.lines().find(|line| line.starts_with("talker")).unwrap().split_whitespace().collect();
        assert_eq!(line, ["talker", "40", "0.97", "100", "%", "2.21", "/", "2.40", "-"]);
    }
}
