//! `chaos --cluster N`: nodes and gateways of this program as processes, whose hosts die and whose network breaks while
//! listeners play.
//!
//! | file | what |
//! | --- | --- |
//! | `plan` | which fault when: pure |
//! | `hosts` | gateways and nodes |
//! | `places` | where they are, and the [network](crate::network) between them |
//! | `listen` | a listener over HTTP that plays, and moves to another gateway when its own is killed |
//! | `drill` | one run of many listeners, and the faults meanwhile |
//! | `report` | what they heard of each fault: pure |

mod drill;
mod hosts;
mod listen;
mod places;
mod plan;
mod report;

use super::super::EmbeddedFiles;
use super::super::bench::texts::texts;
use super::super::exit::Interrupted;
use super::super::model;
use super::load::{Able, Load};
use super::report::About;
use super::settings::{self, Where};
use super::verdict::{self, Heard};
use super::{ChaosArgs, ended_by_signals, write};
use crate::network::Namespaces;
use anyhow::Context;
use drill::{Drill, Run, WHOLE};
use hosts::{Hosts, Setup};
use omni_config::{Override, format_duration};
use omni_core::ids::StageName;
use omni_engine::model_info;
use omni_telemetry as telemetry;
use places::Network;
use plan::{Field, Kind};
use report::Report;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One is killed, and the other one goes on with its streams.
const GATEWAYS: usize = 2;
/// How long nothing strikes between two faults, if the user does not say.
const REST: Duration = Duration::from_secs(3);

/// Runs the command for so many nodes. It fails if a stream differs from the truth, or the cluster does not become whole.
pub(super) async fn run(args: ChaosArgs, nodes: usize, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let listeners = usize::from(args.streams);
    let (config, set) = settings::settle(args.config.as_deref(), &args.set, Where::AsConfig, listeners)?;
    telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
    let interrupted = ended_by_signals()?;
    let checkpoint = model::open(&config, embedded)?;
    let rate = model_info(&checkpoint, &config)?.sample_rate;
    // What is asked for is speech alone.
    let able = Able { family: checkpoint.family(), stages: &StageName::ALL[2..], hears: false, talks: false };
    let load = Load::new(texts(args.texts.as_deref())?, able, &[], args.seed, args.voice.clone(), args.frames);
    let load = Arc::new(load);
    let network = match args.namespaces {
        true => Network::Namespaces(Box::new(Namespaces::new().context("--namespaces")?)),
        false => Network::Loopback(args.seed),
    };
    let holds_and_slows = network.holds_and_slows();
    let field = Field { nodes, gateways: GATEWAYS, silence: config.cluster.silence, holds_and_slows };
    let ours = set.iter().map(|text| text.parse::<Override>().map_err(anyhow::Error::msg).context("a drill's own key"));
    let setup = Setup {
        config: args.config.clone(),
        set: ours.chain(args.set.iter().cloned().map(Ok)).collect::<anyhow::Result<_>>()?,
        nodes,
        gateways: GATEWAYS,
        listeners,
        silence: field.silence,
        network,
    };
    let of = if args.namespaces { " in network namespaces" } else { "" };
    let about = About {
        target: format!("{} in {nodes} nodes and {GATEWAYS} gateways{of}", config.model.name),
        seed: args.seed,
        listeners,
        placement: "nodes".to_owned(),
        set: set.clone(),
    };
    eprintln!("{}: {listeners} listeners", about.target);
    for kind in Kind::ALL.into_iter().filter(|kind| !field.kinds().contains(kind)) {
        eprintln!("left out, because this network cannot do it: {}", kind.name());
    }
    eprintln!("set for the drill: {}", if set.is_empty() { "nothing".to_owned() } else { set.join(" ") });

    let mut hosts = tokio::select! {
        hosts = Hosts::start(setup) => hosts?,
        () = interrupted.cancelled() => return Err(Interrupted.into()),
    };
    tokio::select! {
        whole = hosts.whole(Instant::now(), WHOLE) => whole.context("the cluster does not become whole")?,
        () = interrupted.cancelled() => return Err(Interrupted.into()),
    };
    let drill = |requests, strikes| Drill {
        listeners,
        nodes,
        requests,
        strikes,
        rest: args.every.unwrap_or(REST),
        silence: field.silence,
        patience: args.hang_after,
        rate,
    };
    // Only what went well is a truth.
    let truth: Arc<Mutex<Vec<Option<Heard>>>> = Arc::new(Mutex::new(vec![None; load.cases.len()]));
    let keep = {
        let truth = Arc::clone(&truth);
        move |case: usize, heard: Heard| {
            let verdict = verdict::judge(&heard, &heard);
            truth.lock().unwrap_or_else(PoisonError::into_inner)[case] = Some(heard);
            verdict
        }
    };
    // As many at once as later.
    let once = drill(Some(load.cases.len().max(listeners)), Vec::new());
    let undisturbed = drill::run(&mut hosts, &load, once, keep, &interrupted).await?;
    let truth = complete(&load, &undisturbed, &truth)?;
    eprintln!("undisturbed: {} requests in {:.1} s", undisturbed.begun, undisturbed.took.as_secs_f64());

    let strikes = plan::plan(field, args.seed, args.every.unwrap_or(REST), args.duration);
    let judge = move |case: usize, heard: Heard| verdict::judge(&truth[case], &heard);
    let disturbed = drill::run(&mut hosts, &load, drill(None, strikes), judge, &interrupted).await?;
    let report = Report::new(about, &load, &undisturbed, &disturbed);
    crate::outln!(
        "{} for {}, {} listeners, seed {}\n",
        report.about.target,
        format_duration(Duration::from_secs(report.took_s as u64)),
        report.about.listeners,
        report.about.seed
    );
    crate::out!("{}", report.tables());
    if let Some(path) = &args.report {
        write(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    match report.failure() {
        Some(failure) => Err(anyhow::anyhow!(failure)),
        None if report.interrupted => Err(Interrupted.into()),
        None => Ok(()),
    }
}

/// What each request of the set is to be heard as.
fn complete(load: &Load, run: &Run, heard: &Mutex<Vec<Option<Heard>>>) -> anyhow::Result<Vec<Heard>> {
    if run.interrupted {
        return Err(Interrupted.into());
    }
    if let Some(bad) = run.played.iter().map(|played| &played.stream).find(|stream| !stream.verdict.is_good()) {
        let text = &load.cases[bad.case].text;
        anyhow::bail!("without any fault a stream is not what it should be, {text:?}: {}", bad.verdict);
    }
    if let Some(reason) = &run.given_up {
        anyhow::bail!("{reason}");
    }
    let heard = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
    heard.into_iter().collect::<Option<_>>().context("the undisturbed run did not come to its end")
}
