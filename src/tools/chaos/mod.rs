//! `omni-actors chaos`: injects faults into a running pipeline all the time and checks that no listener hears any.
//!
//! | file | what |
//! | --- | --- |
//! | `settings` | what a drill changes in a config |
//! | `load`, `listen` | the requests, and one listener of one of them |
//! | `talk`, `notes` | a conversation over a WebSocket; what its client hears: pure |
//! | `drill` | one run of many listeners, looked at meanwhile |
//! | `generate`, `inject` | which fault when: pure; and the rules that inject them |
//! | `compare`, `verdict` | what a listener heard against the undisturbed stream: pure |
//! | `outages`, `resources` | when stages were down; memory and file descriptors |
//! | `report`, `replay` | tables and JSON; the command line that runs the same faults again |
//! | `cluster` | the same with nodes and gateways, whose hosts die and whose network breaks |

#[cfg(feature = "cluster")]
mod cluster;
mod compare;
mod drill;
mod generate;
mod inject;
mod listen;
mod load;
mod media;
mod notes;
mod outages;
mod replay;
mod report;
mod resources;
mod settings;
mod tables;
mod talk;
mod verdict;

use super::EmbeddedFiles;
use super::bench::texts::texts;
use super::exit::{Interrupted, Usage};
use super::local::LocalServer;
use super::model;
use super::signals::Signals;
use anyhow::Context;
use clap::Args;
use drill::{Drill, Run, Until};
use futures::future::LocalBoxFuture;
use inject::Injector;
use load::{Able, Kind, Load};
use omni_config::{self as config, Config, DrillConfig, FaultFile, Override, Placement, format_duration};
use omni_core::shrink::Shrinker;
use omni_core::suspects::TRIES;
use omni_engine::{Engine, Service, model_info};
use omni_fault::FaultRule;
use omni_model::Checkpoint;
use omni_telemetry as telemetry;
use report::{About, Report};
use settings::Where;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use verdict::{End, Heard, Verdict};

/// How often a fault strikes, if the user does not say.
const EVERY: Duration = Duration::from_millis(200);
/// How long an engine that is done gets to stop.
const STOPPING: Duration = Duration::from_secs(10);

/// Break a running pipeline all the time and check that no listener hears it
///
/// Runs a fixed set of requests undisturbed, which is the truth. Then listeners ask for the same requests, with the
/// same seeds, again and again, while faults strike: actors panic, fail, hang or are slow, edges lose frames, processes
/// are killed. The drill compares each stream with the truth sample by sample. It prints the faults, the streams and
/// how fast stages recovered, and fails if a stream lost, repeated or reordered anything, failed or hung. With --cluster
/// it is hosts that die and networks that break.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors chaos                                         the embedded voice, a fault every 200 ms for a minute
  omni-actors chaos my.toml --streams 16 --duration 10m --report chaos.json
  omni-actors chaos --placement process --every 1s --shrink
                                                            every stage in a process; if it fails, which fault suffices?
  omni-actors chaos --set transfer.transport=wire           edges with frames, which get lost and damaged, too
  omni-actors chaos --plan chaos-smallest.toml --requests 12
                                                            exactly the faults of a file
  omni-actors chaos --cluster 3 --streams 64 --frames 150 --duration 4m
                                                            nodes and gateways are killed, stopped and cut off
  sudo omni-actors chaos --cluster 3 --namespaces           the same in networks of the kernel's own
docs/chaos.md explains the report.")]
pub struct ChaosArgs {
    /// Config file; without one the embedded voice with default settings
    config: Option<PathBuf>,
    /// For how long listeners ask for more; they hear every stream to its end
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    duration: Duration,
    /// Stop after so many requests instead of after a time
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    requests: Option<usize>,
    /// Listeners at once, each of which asks again when it has heard all
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4096))]
    streams: u16,
    /// Seed of requests and faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where stages run
    #[arg(long, value_enum, default_value_t = Where::AsConfig)]
    placement: Where,
    /// How often a fault strikes, drawn evenly from all kinds and places that the config allows: 200ms if not given. With
    /// --cluster: for how long all is well between two faults, 3s if not given
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    every: Option<Duration>,
    /// Run so many nodes and two gateways as processes of this machine, and have hosts killed, stopped and cut off; as many
    /// faults as fit into the duration (docs/cluster.md)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(2..=15),
        conflicts_with_all = ["requests", "placement", "guilty", "plan", "shrink"]
    )]
    cluster: Option<u16>,
    /// With --cluster: every node and gateway in a network namespace of its own, joined by a router of Linux. Needs the
    /// program `ip` and the rights of root; what needs netem is left out where the kernel has none
    #[arg(long, requires = "cluster")]
    namespaces: bool,
    /// One request in so many brings a stage down each time that it runs, and one in so many does beside any other; the
    /// same each time that it comes again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    guilty: Option<u64>,
    /// A file with `[[faults]]`: exactly these, and none that are drawn
    #[arg(long, value_name = "FILE", conflicts_with = "every")]
    plan: Option<PathBuf>,
    /// If a stream is not what it should be: find the fewest faults that suffice for that
    #[arg(long)]
    shrink: bool,
    /// Most runs that --shrink may take
    #[arg(long, value_name = "N", default_value_t = 60)]
    shrink_runs: usize,
    /// Folder for the plans of runs that failed
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// A stream for which nothing comes for so long is hung
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    hang_after: Duration,
    /// One text per line; a list of short sentences by default
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// Ask for these alone, in turn; for all that the model can by default
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',', conflicts_with = "cluster")]
    ask: Vec<Kind>,
    /// Make every answer exactly so many frames of 80 ms long, whatever the model would say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    frames: Option<u32>,
    /// Speaker
    #[arg(long)]
    voice: Option<String>,
    /// Override one key of the config, such as transfer.transport=shm
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
}

fn duration(text: &str) -> Result<Duration, String> {
    config::parse_duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "write a duration above 0, such as 30s or 10m".to_owned())
}

/// Runs the command. It fails if a stream differs from the truth, or a stage stayed down.
pub fn execute(args: ChaosArgs, embedded: Option<EmbeddedFiles>) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        match args.cluster {
            None => run(args, embedded).await,
            #[cfg(feature = "cluster")]
            Some(nodes) => cluster::run(args, usize::from(nodes), embedded).await,
            #[cfg(not(feature = "cluster"))]
            Some(_) => Err(Usage("--cluster: this program was built without the feature `cluster`".to_owned()).into()),
        }
    })
}

async fn run(args: ChaosArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let listeners = usize::from(args.streams);
    let (mut config, set) = settings::settle(args.config.as_deref(), &args.set, args.placement, listeners)?;
    telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
    let interrupted = ended_by_signals()?;
    let given = args.plan.as_deref().map(config::load_faults).transpose()?;
    if let Some(seed) = given.as_ref().and_then(|file| file.seed) {
        config.drill.seed = seed;
    }
    mute_injected_panics();
    let checkpoint = model::open(&config, embedded)?;
    let info = model_info(&checkpoint, &config)?;
    let stages = match info.sees {
        true => checkpoint.stages(),
        false => checkpoint.family().stages(),
    };
    // An answer that is to be ended would end the conversation that it is in.
    let talks = args.guilty.is_none();
    let able = Able { family: checkpoint.family(), stages, hears: info.hears, talks };
    if let Some(kind) = args.ask.iter().find(|&&kind| !able.can(kind)) {
        let why = if *kind == Kind::Talk && !talks { "not with --guilty" } else { "the model has no stage for it" };
        return Err(Usage(format!("--ask {kind}: {why}")).into());
    }
    let load = Load::new(texts(args.texts.as_deref())?, able, &args.ask, args.seed, args.voice.clone(), args.frames);
    let about = About {
        target: format!("{} in this process", config.model.name),
        seed: args.seed,
        listeners,
        placement: placement(&config),
        set: set.clone(),
    };
    let field = Field { config, checkpoint, load: Arc::new(load), args, interrupted };
    eprintln!("{}: {listeners} listeners, stages in {}", about.target, about.placement);
    eprintln!("set for the drill: {}", if set.is_empty() { "nothing".to_owned() } else { set.join(" ") });

    let (truth, undisturbed) = field.undisturbed().await?;
    let (field, truth) = field.with_guilty(truth).await?;
    let until = field.args.requests.map_or(Until::Time(field.args.duration), Until::Requests);
    let faults = given.map_or(Faults::Generated, |file| Faults::Given(file.rules));
    let disturbed = field.disturbed(&truth, until, &faults, false, Some("disturbed")).await?;
    let report = Report::new(about, &field.load, &undisturbed, &disturbed);
    crate::outln!(
        "{} for {}, {} listeners, stages in {}, seed {}\n",
        report.about.target,
        format_duration(Duration::from_secs(report.took_s as u64)),
        report.about.listeners,
        report.about.placement,
        report.about.seed
    );
    crate::out!("{}", report.tables());
    if let Some(path) = &field.args.report {
        write(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    let failure = report.failure();
    if failure.is_some() {
        field.keep("chaos-executed.toml", &executed(&disturbed, Duration::MAX), until)?;
    }
    if failure.is_some() && field.args.shrink && !field.interrupted.is_cancelled() {
        field.shrink(&truth, &disturbed).await?;
    }
    match failure {
        Some(failure) => Err(anyhow::anyhow!(failure)),
        None if report.interrupted => Err(Interrupted.into()),
        None => Ok(()),
    }
}

/// Cancelled by Ctrl-C or SIGTERM; the next one ends the process at once.
fn ended_by_signals() -> std::io::Result<CancellationToken> {
    let interrupted = CancellationToken::new();
    let mut signals = Signals::catch()?;
    let asked_to_end = interrupted.clone();
    tokio::spawn(async move {
        signals.next().await;
        asked_to_end.cancel();
        signals.first_asks_second_ends().await;
    });
    Ok(interrupted)
}

/// Which faults a run has.
enum Faults {
    /// Drawn for the engine.
    Generated,
    /// Exactly these.
    Given(Vec<FaultRule>),
}

/// What all runs of a drill have in common.
struct Field {
    config: Config,
    checkpoint: Checkpoint,
    load: Arc<Load>,
    args: ChaosArgs,
    interrupted: CancellationToken,
}

impl Field {
    fn drill(&self, until: Until, first_ends: bool, name: Option<&'static str>) -> Drill {
        let listeners = usize::from(self.args.streams);
        Drill { listeners, until, patience: self.args.hang_after, first_ends, name }
    }

    /// Each request of the set once, without faults.
    async fn undisturbed(&self) -> anyhow::Result<(Arc<Vec<Heard>>, Run)> {
        let mut config = self.config.clone();
        config.faults.clear();
        let heard: Arc<Mutex<Vec<Option<Heard>>>> = Arc::new(Mutex::new(vec![None; self.load.cases.len()]));
        let keep = {
            let heard = Arc::clone(&heard);
            move |case: usize, answer: Heard| {
                // Only what went well is a truth.
                let verdict = verdict::judge(&answer, &answer);
                heard.lock().unwrap_or_else(PoisonError::into_inner)[case] = Some(answer);
                verdict
            }
        };
        let drill = self.drill(Until::Requests(self.load.cases.len()), true, Some("undisturbed"));
        let run = self.run(&config, drill, keep, &Faults::Given(Vec::new())).await?;
        if run.interrupted {
            return Err(Interrupted.into());
        }
        if let Some(bad) = run.streams.iter().find(|stream| !stream.verdict.is_good()) {
            let text = &self.load.cases[bad.case].text;
            anyhow::bail!("without any fault a stream is not what it should be, {text:?}: {}", bad.verdict);
        }
        let heard = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
        let truth: Option<Vec<Heard>> = heard.into_iter().collect();
        let truth = truth.context("the undisturbed run did not come to its end")?;
        eprintln!("undisturbed: {} requests in {:.1} s", truth.len(), run.took.as_secs_f64());
        Ok((Arc::new(truth), run))
    }

    /// The same field with faults that come with a request, where that is asked for, and the truth about the requests
    /// that have them: each is ended, and no other differs from what it was.
    async fn with_guilty(mut self, truth: Arc<Vec<Heard>>) -> anyhow::Result<(Field, Arc<Vec<Heard>>)> {
        let Some(one_in) = self.args.guilty else { return Ok((self, truth)) };
        self.config.faults.extend(generate::correlated(self.load.of_text(), self.args.seed, one_in));
        let ended: Arc<Mutex<Vec<(usize, End)>>> = Arc::default();
        let judge = {
            let (truth, ended) = (Arc::clone(&truth), Arc::clone(&ended));
            move |case: usize, heard: Heard| match &heard.end {
                end @ End::Ended(stage, times) if *times <= TRIES => {
                    let verdict = Verdict::Ended { stage: *stage, times: *times };
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push((case, end.clone()));
                    verdict
                }
                _ => verdict::judge(&truth[case], &heard),
            }
        };
        let drill = self.drill(Until::Requests(self.load.cases.len()), true, Some("guilty"));
        let run = self.run(&self.config, drill, judge, &Faults::Given(Vec::new())).await?;
        if run.interrupted {
            return Err(Interrupted.into());
        }
        if let Some(bad) = run.streams.iter().find(|stream| !stream.verdict.is_good()) {
            let text = &self.load.cases[bad.case].text;
            anyhow::bail!("beside requests that bring a stage down another one suffers, {text:?}: {}", bad.verdict);
        }
        let ended = std::mem::take(&mut *ended.lock().unwrap_or_else(PoisonError::into_inner));
        eprintln!("guilty: {} of {} requests bring a stage down", ended.len(), truth.len());
        let mut truth = Vec::clone(&truth);
        for (case, end) in ended {
            truth[case].end = end;
        }
        Ok((self, Arc::new(truth)))
    }

    /// The same requests, with faults.
    async fn disturbed(
        &self,
        truth: &Arc<Vec<Heard>>,
        until: Until,
        faults: &Faults,
        first_ends: bool,
        name: Option<&'static str>,
    ) -> anyhow::Result<Run> {
        let config = Config { drill: DrillConfig { enabled: true, ..self.config.drill }, ..self.config.clone() };
        let truth = Arc::clone(truth);
        let judge = move |case: usize, heard: Heard| verdict::judge(&truth[case], &heard);
        self.run(&config, self.drill(until, first_ends, name), judge, faults).await
    }

    async fn run(
        &self,
        config: &Config,
        drill: Drill,
        judge: impl Fn(usize, Heard) -> Verdict + Send + Sync + 'static,
        faults: &Faults,
    ) -> anyhow::Result<Run> {
        let engine = Engine::start(&self.checkpoint, config).await?;
        let rules = match faults {
            Faults::Given(rules) => {
                engine.faults().check(rules).map_err(|error| Usage(error.to_string()))?;
                rules.clone()
            }
            Faults::Generated => {
                let wanted = |rule: &FaultRule| rule.stage.is_none_or(|stage| self.load.stages.contains(&stage));
                let suits = |rule: &FaultRule| engine.faults().check(std::slice::from_ref(rule)).is_ok();
                let decks = generate::decks(|rule| wanted(rule) && suits(rule));
                generate::plan(&decks, self.args.seed, self.args.every.unwrap_or(EVERY), self.args.duration)
            }
        };
        let injector = Injector::new(&engine, &rules);
        let server = match self.load.talks() {
            true => Some(LocalServer::beside(&engine, config, usize::from(self.args.streams))?),
            false => None,
        };
        let on = (&engine, server.as_ref());
        let run = drill::run(on, &self.load, drill, judge, &self.interrupted, injector).await;
        if let Some(server) = server {
            server.stop().await;
        }
        engine.drain(STOPPING).await;
        run
    }

    /// Looks for the fewest faults that are enough, and writes them to a file.
    async fn shrink(&self, truth: &Arc<Vec<Heard>>, failed: &Run) -> anyhow::Result<()> {
        // A fault after the end of the first bad stream did not spoil it.
        let faults = executed(failed, failed.first_bad().unwrap_or(Duration::MAX));
        let until = Until::Requests(self.args.requests.unwrap_or_else(|| failed.needed()));
        let fails = async |faults: &[FaultRule]| {
            let run = self.disturbed(truth, until, &Faults::Given(faults.to_vec()), true, None).await?;
            if run.interrupted {
                return Err(Interrupted.into());
            }
            anyhow::Ok(run.failed())
        };
        eprintln!("shrink: {} faults, {until}", faults.len());
        if !fails(&faults).await? {
            crate::outln!("\nthe same faults did no harm when they came again: there is nothing to shrink");
            return Ok(());
        }
        if fails(&[]).await? {
            crate::outln!("\nit fails without any fault, too");
            return self.keep("chaos-smallest.toml", &[], until);
        }
        let mut shrinker = Shrinker::new(faults.len(), self.args.shrink_runs);
        while let Some(candidate) = shrinker.candidate() {
            let fewer: Vec<FaultRule> = candidate.iter().map(|i| faults[*i].clone()).collect();
            let failed = fails(&fewer).await?;
            eprintln!("shrink: {} faults: {}", fewer.len(), if failed { "enough" } else { "not enough" });
            shrinker.judged(failed);
        }
        let smallest: Vec<FaultRule> = shrinker.best().iter().map(|i| faults[*i].clone()).collect();
        self.keep("chaos-smallest.toml", &smallest, until)
    }

    /// Writes a plan and says how to run it.
    fn keep(&self, name: &str, faults: &[FaultRule], until: Until) -> anyhow::Result<()> {
        let path = self.args.out.join(name);
        let command = self.args.replay(&path, until);
        let file = FaultFile { seed: Some(self.config.drill.seed), rules: faults.to_vec() };
        let text = format!("# {} faults. To run exactly these:\n#   {command}\n{file}", faults.len());
        write(&path, &text)?;
        crate::outln!("\n{} faults are in {}; to run them:\n  {command}", faults.len(), path.display());
        Ok(())
    }
}

/// The faults that struck, of those that were given to the engine by a time.
fn executed(run: &Run, by: Duration) -> Vec<FaultRule> {
    let faults = run.faults.iter().filter(|fault| fault.hits > 0 && fault.injected.is_some_and(|at| at <= by));
    faults.map(|fault| fault.rule.clone()).collect()
}

/// What the user breaks on purpose need not be explained to them; any other panic is.
fn mute_injected_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let injected =
            panic.payload().downcast_ref::<String>().is_some_and(|message| message.starts_with("injected fault"));
        if !injected {
            usual(panic);
        }
    }));
}

fn placement(config: &Config) -> String {
    let apart = config.stages.iter().filter(|stage| stage.placement == Placement::Process).count();
    match apart {
        0 => "threads",
        all if all == config.stages.len() => "processes",
        _ => "threads and processes",
    }
    .to_owned()
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
