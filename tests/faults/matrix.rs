//! Every kind of fault in every actor at every moment of a request, with stages in threads and in processes. Each
//! stream is the undisturbed one, sample for sample, and the engine keeps nothing of it. Where the fault comes with a
//! request, again each time that the request is tried, that request is ended and the other stream is the undisturbed one.
//! Faults of the encoder strike answers to sound and pictures, all others a text that is spoken and an answer to text.
//!
//! `cargo test --test faults matrix` runs a sample. `OMNI_MATRIX=all` runs every case, `OMNI_MATRIX=200` so many of
//! each placement, and `OMNI_MATRIX='talker runner'` those with that in their name. `OMNI_MATRIX_SEED` draws another
//! sample.

use crate::support::engine::{Answer, chat, collect, engine, frames, idle, tiny};
use crate::support::media::Golden;
use crate::support::wait::PATIENCE;
use omni_actors::config::{Config, Placement, TransportKind};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, GenerateRequest, Output, RequestError, Service};
use omni_actors::fault::{FaultCapabilities, FaultKind, FaultPoint, FaultRule, Phase};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// Cases at once: those that wait for a watchdog need no core.
const AT_ONCE: usize = 4;
/// How many cases of each placement a plain `cargo test` runs: what two busy cores do in about 20 s.
const SAMPLE: [(Placement, usize); 2] = [(Placement::Thread, 48), (Placement::Process, 8)];

/// The same for faults that come with a request.
const AGAIN: [(Placement, usize); 2] = [(Placement::Thread, 24), (Placement::Process, 6)];

/// When in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FaultEvent {
    BeforePrefill,
    MidPrefill,
    /// A step was launched and the sampler has not read its tokens.
    AfterLaunch,
    /// The tokens are known and what was made of them has not left the stage.
    AfterTokens,
    FirstChunk,
    MidStream,
    LastChunk,
    Drain,
    /// While the stage comes up again after another fault.
    ComingBack,
}

const MOMENTS: [(FaultEvent, &str); 9] = [
    (FaultEvent::BeforePrefill, "before prefill"),
    (FaultEvent::MidPrefill, "mid-prefill"),
    (FaultEvent::AfterLaunch, "after launch before tokens"),
    (FaultEvent::AfterTokens, "after tokens before delivery"),
    (FaultEvent::FirstChunk, "first chunk"),
    (FaultEvent::MidStream, "mid-stream"),
    (FaultEvent::LastChunk, "last chunk"),
    (FaultEvent::Drain, "drain"),
    (FaultEvent::ComingBack, "coming back"),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    stage: Option<StageName>,
    point: FaultPoint,
    event: FaultEvent,
    kind: FaultKind,
    placement: Placement,
    /// It strikes the first request, each time that it comes by.
    again: bool,
}

/// Long enough for others to act meanwhile.
const PAUSE: FaultKind = FaultKind::Delay(Duration::from_millis(30));

impl Case {
    fn name(&self) -> String {
        let stage = self.stage.map_or(String::new(), |stage| format!("{stage} "));
        let event = MOMENTS.iter().find(|(event, _)| *event == self.event).unwrap().1;
        let placement = if self.placement == Placement::Thread { "thread" } else { "process" };
        let again = if self.again { " again and again" } else { "" };
        format!("{placement}: {stage}{} {event} {}{again}", self.point.as_str(), self.kind.as_str())
    }

    /// The fault itself, and what brings its moment about.
    fn rules(&self) -> Vec<FaultRule> {
        let rule = FaultRule::new(self.stage, self.point, self.kind);
        // A fault of another actor of the same stage holds the moment open.
        let held = |by: FaultPoint| {
            let elsewhere = self.stage.filter(|_| by != self.point);
            elsewhere.map(|stage| FaultRule::new(stage, by, PAUSE).phase(Phase::Stream).times(3))
        };
        let (rule, with) = match self.event {
            FaultEvent::BeforePrefill => (rule.phase(Phase::Prefill), None),
            FaultEvent::MidPrefill => (rule.phase(Phase::Prefill).nth(2), None),
            FaultEvent::AfterLaunch => (rule.phase(Phase::Stream).nth(2), held(FaultPoint::Completion)),
            // The packager merges what waits: all that is sure to cross an edge is a payload of each request.
            FaultEvent::AfterTokens | FaultEvent::MidStream if self.point == FaultPoint::Edge => (rule.nth(2), None),
            FaultEvent::AfterTokens => (rule.phase(Phase::Stream).nth(2), held(FaultPoint::Outbound)),
            FaultEvent::FirstChunk => (rule.phase(Phase::First), None),
            FaultEvent::MidStream => (rule.phase(Phase::Stream).nth(3), None),
            FaultEvent::LastChunk => (rule.phase(Phase::Last), None),
            FaultEvent::Drain => (rule.phase(Phase::Drain), None),
            FaultEvent::ComingBack => {
                let first = FaultRule::new(self.stage, FaultPoint::Sampler, FaultKind::Panic).phase(Phase::Stream);
                (rule.nth(2), Some(first))
            }
        };
        let rule = if self.again { rule.request(1).times(u64::MAX) } else { rule };
        [rule].into_iter().chain(with.filter(|_| !self.again)).collect()
    }

    /// Whether it takes a stage down, and does so whenever the first request is tried again.
    fn comes_again(&self) -> bool {
        // A hang as short as the watchdog here may be the machine's, and ends nobody.
        let takes_down = matches!(self.kind, FaultKind::Panic | FaultKind::Error | FaultKind::Oom | FaultKind::Kill);
        let moment = matches!(
            self.event,
            FaultEvent::BeforePrefill | FaultEvent::FirstChunk | FaultEvent::MidStream | FaultEvent::LastChunk
        );
        // What the ledger has written down it does not take from the stage again.
        let point = !matches!(self.point, FaultPoint::Edge | FaultPoint::Handover | FaultPoint::Build);
        takes_down && moment && point
    }

    /// Whether each attempt may come further, so that the request comes to its end.
    fn may_come_through(&self) -> bool {
        // In the middle of a stream by more than counts as one place. Rows of an encoder may have left it when it dies:
        // it goes on at the next part of its few.
        let encodes = self.stage == Some(StageName::Encoder) && self.event != FaultEvent::BeforePrefill;
        encodes || self.event == FaultEvent::MidStream
    }

    /// Whether its moment may pass by on a busy machine.
    fn may_miss(&self) -> bool {
        // Outputs and payloads that wait are merged: there may be none between the first and the last.
        let merges = matches!(self.point, FaultPoint::Packager | FaultPoint::Outbound | FaultPoint::Connector);
        let between = matches!(self.event, FaultEvent::AfterLaunch | FaultEvent::AfterTokens | FaultEvent::MidStream);
        // An encoder may be done before a drain begins.
        let done = self.stage == Some(StageName::Encoder) && self.event == FaultEvent::Drain;
        // The speech alone may be too short to have a middle.
        merges && between || done || self.again && self.event == FaultEvent::MidStream
    }

    /// Whether such a fault can strike an engine of this placement, and does in a request like ours.
    fn happens(&self, capabilities: &FaultCapabilities) -> bool {
        // Vocoder and encoder have no prompt: only who gives their sequences their places sees one.
        let no_prompt = matches!(self.stage, Some(StageName::Vocoder | StageName::Encoder))
            && matches!(self.point, FaultPoint::Runner | FaultPoint::Completion | FaultPoint::Sampler);
        let prefill = matches!(self.event, FaultEvent::BeforePrefill | FaultEvent::MidPrefill);
        let held_or_mid =
            matches!(self.event, FaultEvent::AfterLaunch | FaultEvent::AfterTokens | FaultEvent::MidStream);
        let in_thinker = self.stage == Some(StageName::Thinker)
            && match self.point {
                // Its text comes in one piece.
                FaultPoint::Connector => held_or_mid,
                // What it makes of its prompt is output already, and its first token that of the prompt's last step.
                FaultPoint::Sampler => self.event == FaultEvent::MidPrefill,
                FaultPoint::Completion => self.event == FaultEvent::FirstChunk,
                _ => false,
            };
        // Sequences are opened before a drain begins, and stages only come up when something else has failed.
        let early = matches!(self.point, FaultPoint::Open | FaultPoint::Build) && self.event == FaultEvent::Drain;
        let comes_up = (self.point == FaultPoint::Build) == (self.event == FaultEvent::ComingBack);
        let fits = self.rules().iter().all(|rule| capabilities.check(rule).is_ok());
        // A request that cannot be planned is refused.
        let planned = self.point.has_request() || self.point == FaultPoint::Build;
        fits && planned && comes_up && !early && !in_thinker && !(prefill && no_prompt)
    }
}

/// Every case of a placement, from the lists.
fn cases(placement: Placement) -> Vec<Case> {
    let stages = StageName::ALL.to_vec();
    let process = placement == Placement::Process;
    let capabilities = FaultCapabilities {
        apart: if process { stages.clone() } else { Vec::new() },
        framed: stages[..3].to_vec(),
        stages,
        voices: false,
        gpu: false,
    };
    let mut all = Vec::new();
    for stage in [None].into_iter().chain(StageName::ALL.map(Some)) {
        for point in FaultPoint::ALL {
            for (event, _) in MOMENTS {
                for kind in FaultKind::all(Duration::from_millis(30)) {
                    for again in [false, true] {
                        all.push(Case { stage, point: *point, event, kind, placement, again });
                    }
                }
            }
        }
    }
    all.retain(|case| case.happens(&capabilities) && (!case.again || case.comes_again()));
    all
}

/// Those that are to be run now.
fn chosen(placement: Placement, again: bool, sample: usize) -> Vec<Case> {
    let mut all = cases(placement);
    all.retain(|case| case.again == again);
    let asked = std::env::var("OMNI_MATRIX").unwrap_or_default();
    let count = match asked.as_str() {
        "all" => all.len(),
        "" => sample,
        other => match other.parse() {
            Ok(count) => count,
            Err(_) => {
                all.retain(|case| case.name().contains(other));
                all.len()
            }
        },
    };
    let seed = std::env::var("OMNI_MATRIX_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    all.sort_by_cached_key(|case| mix(seed, &case.name()));
    all.truncate(count);
    all
}

/// FNV-1a over a name, so that a sample stays what it is when the matrix grows.
fn mix(seed: u64, name: &str) -> u64 {
    let prime = 0x0100_0000_01B3u64;
    seed.to_le_bytes()
        .iter()
        .chain(name.as_bytes())
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(prime))
}

async fn started(placement: Placement, rules: Vec<FaultRule>) -> Engine {
    engine(&tiny(), |config: &mut Config| {
        config.stages.iter_mut().for_each(|stage| stage.placement = placement);
        // Prompts take several steps.
        for stage in [StageName::Thinker, StageName::Talker] {
            config.stages[stage as usize].prefill_chunk = Some(4);
        }
        if placement == Placement::Thread {
            config.transfer.transport = TransportKind::Wire;
        }
        // Each request has to be encoded.
        config.media.max_cached_embeddings = 0;
        config.supervision.backoff = Duration::from_millis(1);
        config.supervision.max_restarts = 1000;
        config.supervision.meltdown_window = Duration::from_secs(1);
        config.supervision.watchdog = Duration::from_millis(500);
        // What strikes is asked for; a case says what is wrong itself.
        "off".clone_into(&mut config.telemetry.log);
        config.faults = rules;
    })
    .await
}

/// What is asked for, two at once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    /// A text that is spoken, and a turn that is answered.
    Text,
    /// Two turns with media.
    Media,
}

impl Asked {
    fn names(self) -> [&'static str; 2] {
        match self {
            Asked::Text => ["speech", "chat"],
            Asked::Media => ["sound and picture", "sound"],
        }
    }
}

/// The reference's cases of [`Asked::Media`].
static MEDIA: LazyLock<[Golden; 2]> = LazyLock::new(|| ["mm_audio_image_ethan", "audio_ethan"].map(Golden::read));

async fn ask(engine: &Engine, asked: Asked, draining: bool) -> [Answer; 2] {
    let short = |mut turn: GenerateRequest| {
        turn.max_text_tokens = Some(8);
        turn.max_frames = Some(Frames(12));
        turn
    };
    let [first, second] = match asked {
        Asked::Text => {
            let turn = short(chat("one two three four five six", Output::TextAndAudio));
            [engine.speak(frames(12, 5)).await.unwrap(), engine.submit(turn).await.unwrap()]
        }
        Asked::Media => {
            let [one, other] = &*MEDIA;
            let turn = |of: &Golden| engine.submit_decoded(short(of.request()), of.media.clone());
            [turn(one).await.unwrap(), turn(other).await.unwrap()]
        }
    };
    let drain = async {
        if draining {
            engine.drain(PATIENCE).await;
        }
    };
    let (first, second, ()) = tokio::join!(collect(first), collect(second), drain);
    [first, second]
}

/// What is wrong with a case, or whether its fault was seen to strike.
async fn run(case: Case, truths: Arc<[[Answer; 2]; 2]>) -> Result<bool, String> {
    let asked = if case.stage == Some(StageName::Encoder) { Asked::Media } else { Asked::Text };
    let truth = &truths[asked as usize];
    let engine = started(case.placement, case.rules()).await;
    let draining = case.event == FaultEvent::Drain;
    let answers =
        tokio::time::timeout(PATIENCE, ask(&engine, asked, draining)).await.map_err(|_| "hangs".to_owned())?;
    for (i, (what, (answer, truth))) in asked.names().iter().zip(answers.iter().zip(truth)).enumerate() {
        if case.again && i == 0 {
            // The first output of an attempt, and the middle, are at another unit in each attempt.
            let moves = matches!(case.event, FaultEvent::FirstChunk | FaultEvent::MidStream);
            // Of a process it is not known which actor failed: what others had in hand is suspected once more.
            let most = match case.kind {
                _ if moves => 8,
                FaultKind::Kill => 4,
                _ => 3,
            };
            match &answer.end {
                Some(Err(RequestError::BroughtDown { stage, times, .. }))
                    if case.stage.is_none_or(|of| of == *stage) && *times <= most => {}
                Some(Ok(_)) if case.may_come_through() && answer.samples == truth.samples => {}
                other => return Err(format!("{what} ended with {other:?}")),
            }
            if !truth.samples.starts_with(&answer.samples) {
                return Err(format!("{what}: other samples before its end"));
            }
            continue;
        }
        if answer.end != truth.end {
            return Err(format!("{what} ended with {:?}", answer.end));
        }
        if answer.text != truth.text {
            return Err(format!("{what}: text {:?} instead of {:?}", answer.text, truth.text));
        }
        if answer.samples != truth.samples {
            let at = answer.samples.iter().zip(&truth.samples).position(|(a, b)| a != b);
            let (heard, owed) = (answer.samples.len(), truth.samples.len());
            return Err(format!("{what}: {heard} of {owed} samples, other ones from {at:?}"));
        }
    }
    // The processes of an engine that has drained tell nothing any more.
    if !(case.may_miss() || draining && case.placement == Placement::Process) {
        let struck = async {
            while engine.faults().counts().first().is_none_or(|count| count.hits == 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, struck).await.map_err(|_| "the fault never struck".to_owned())?;
    }
    let struck = engine.faults().counts().first().is_some_and(|count| count.hits > 0);
    let left = tokio::spawn(async move { idle(&engine).await }).await;
    left.map(|()| struck).map_err(|_| "something is left of the requests".to_owned())
}

async fn all_stand(placement: Placement, again: bool) {
    mute_injected_panics();
    let samples = if again { AGAIN } else { SAMPLE };
    let sample = samples.iter().find(|(of, _)| *of == placement).unwrap().1;
    let cases = chosen(placement, again, sample);
    let count = cases.len();
    let undisturbed = started(placement, Vec::new()).await;
    let truth = Arc::new([ask(&undisturbed, Asked::Text, false).await, ask(&undisturbed, Asked::Media, false).await]);
    assert!(truth.iter().flatten().all(|answer| answer.end.as_ref().unwrap().is_ok() && !answer.samples.is_empty()));
    drop(undisturbed);
    let (waiting, failed) = (Arc::new(Mutex::new(VecDeque::from(cases))), Arc::new(Mutex::new(Vec::new())));
    let struck = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (waiting, failed, truth) = (Arc::clone(&waiting), Arc::clone(&failed), Arc::clone(&truth));
        let struck = Arc::clone(&struck);
        workers.spawn(async move {
            loop {
                let next = waiting.lock().unwrap().pop_front();
                let Some(case) = next else { return };
                match run(case, Arc::clone(&truth)).await {
                    Ok(hit) => _ = struck.fetch_add(usize::from(hit), Ordering::Relaxed),
                    Err(wrong) => failed.lock().unwrap().push(format!("{}: {wrong}", case.name())),
                }
            }
        });
    }
    workers.join_all().await;
    let mut failed = std::mem::take(&mut *failed.lock().unwrap());
    failed.sort();
    assert!(failed.is_empty(), "{} of {count} cases:\n{}", failed.len(), failed.join("\n"));
    let struck = struck.load(Ordering::Relaxed);
    assert!(struck * 2 > count, "only {struck} of {count} faults were seen to strike");
}

/// A thousand panics that were asked for would hide the one that was not.
fn mute_injected_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().downcast_ref::<String>().is_some_and(|message| message.starts_with("injected fault")) {
            usual(panic);
        }
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_dies_at_whatever_moment_every_stream_in_threads_is_heard_to_its_end() {
    all_stand(Placement::Thread, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_dies_at_whatever_moment_every_stream_through_processes_is_heard_to_its_end() {
    all_stand(Placement::Process, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_request_breaks_each_time_in_threads_it_is_ended_and_the_other_is_heard_to_its_end() {
    all_stand(Placement::Thread, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_request_breaks_each_time_in_processes_it_is_ended_and_the_other_is_heard_to_its_end() {
    all_stand(Placement::Process, true).await;
}

#[test]
fn the_matrix_has_every_moment_of_every_actor_and_every_kind() {
    for placement in [Placement::Thread, Placement::Process] {
        let all = cases(placement);
        for stage in StageName::ALL {
            for point in FaultPoint::ALL.iter().filter(|point| point.has_stage() && **point != FaultPoint::Edge) {
                let here = all.iter().filter(|case| case.stage == Some(stage) && case.point == *point);
                assert!(here.clone().any(|case| case.kind == FaultKind::Panic), "{stage} {point:?}");
                let again = here.clone().any(|case| case.again);
                assert!(again || *point == FaultPoint::Build, "{stage} {point:?} again and again");
            }
            for (event, name) in MOMENTS {
                assert!(all.iter().any(|case| case.stage == Some(stage) && case.event == event), "{stage} {name}");
            }
        }
        let kinds = FaultKind::all(Duration::from_millis(30)).into_iter().filter(|kind| match kind {
            FaultKind::Full | FaultKind::Device => false,
            FaultKind::Kill => placement == Placement::Process,
            _ => true,
        });
        for kind in kinds {
            assert!(all.iter().any(|case| case.kind == kind), "{kind:?}");
        }
    }
}
