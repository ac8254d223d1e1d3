//! What a drill found: counted, and as JSON for programs.

use super::drill::{Run, Stream};
use super::inject::Fault;
use super::load::{Kind, Load};
use super::outages::Outage;
use super::resources::Use;
use super::verdict::Verdict;
use crate::bench::stats::Distribution;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many faults of a sort there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Given to the engine.
    pub injected: usize,
    /// That happened.
    pub hit: usize,
}

/// How streams went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Streams {
    /// Begun.
    pub started: usize,
    /// Ended with their last event.
    pub finished: usize,
    /// Not a bit differs from the undisturbed run.
    pub identical: usize,
    /// Good, and a stage that they had a part in died meanwhile.
    pub recovered: usize,
    /// Something missing.
    pub lost: usize,
    /// Something twice.
    pub repeated: usize,
    /// Something in another order.
    pub reordered: usize,
    /// Something else.
    pub changed: usize,
    /// Ended because they bring a stage down, as they should be.
    pub ended: usize,
    /// With an error.
    pub failed: usize,
    /// Not accepted.
    pub refused: usize,
    /// Without progress for too long.
    pub hung: usize,
}

/// How conversations went, which are streams too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conversations {
    /// Those that ended, in any way.
    pub ended: usize,
    /// Not a bit differs from the undisturbed run.
    pub identical: usize,
}

/// What listeners heard that they should not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gaps {
    /// Chunks that came too late for a player, per hundred streams.
    pub underruns_per_100_streams: f64,
    /// Silence that the player of a stream filled in, ms.
    pub silence_ms: Distribution,
    /// Time to first audio, ms.
    pub ttfa_ms: Distribution,
}

/// One stage and its restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recovery {
    /// How often it was down.
    pub outages: usize,
    /// From seen to be down to seen to serve, ms.
    pub recovery_ms: Distribution,
}

/// A stream that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bad {
    /// Which request of the run.
    pub number: usize,
    /// Its name in logs.
    pub request: Option<String>,
    /// Its seed.
    pub seed: u64,
    /// Its text.
    pub text: String,
    /// When it was asked for, seconds since the run began.
    pub began_s: f64,
    /// When its last event came.
    pub ended_s: f64,
    /// What is wrong.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A whole drill.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was drilled, and how.
    #[serde(flatten)]
    pub about: About,
    /// Version of this program.
    pub version: &'static str,
    /// Seconds of the disturbed run.
    pub took_s: f64,
    /// By kind.
    pub faults_by_kind: BTreeMap<String, Count>,
    /// By place.
    pub faults_by_place: BTreeMap<String, Count>,
    /// In all.
    pub faults: Count,
    /// Disturbed.
    pub streams: Streams,
    /// Those of them that are conversations.
    pub conversations: Conversations,
    /// By stage.
    pub stages: BTreeMap<String, Recovery>,
    /// Of all stages.
    pub recovery_ms: Distribution,
    /// Of recovered streams: their longest pause from chunk to chunk while a stage was down, ms.
    pub pause_ms: Distribution,
    /// Undisturbed.
    pub undisturbed: Gaps,
    /// Disturbed.
    pub disturbed: Gaps,
    /// Memory and file descriptors of the disturbed run.
    pub resources: Use,
    /// A stage that stayed down, and why.
    pub given_up: Option<String>,
    /// The user ended it early.
    pub interrupted: bool,
    /// The streams that are not as they should be.
    pub bad: Vec<Bad>,
}

/// The settings that a report names.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// What was drilled.
    pub target: String,
    /// Of the plan and the requests.
    pub seed: u64,
    /// Streams at once.
    pub listeners: usize,
    /// Where stages ran.
    pub placement: String,
    /// Keys that the drill set, because the config did not.
    pub set: Vec<String>,
}

impl Report {
    /// Sums both runs up.
    pub fn new(about: About, load: &Load, undisturbed: &Run, disturbed: &Run) -> Report {
        let faults: Vec<&Fault> = disturbed.faults.iter().filter(|fault| fault.injected.is_some()).collect();
        let ends: Vec<f64> = disturbed.outages.iter().filter_map(Outage::lasted).map(ms).collect();
        let mut stages: BTreeMap<String, (usize, Vec<f64>)> =
            load.stages.iter().map(|stage| (stage.to_string(), Default::default())).collect();
        for outage in &disturbed.outages {
            let (outages, lasted) = stages.entry(outage.stage.to_string()).or_default();
            *outages += 1;
            lasted.extend(outage.lasted().map(ms));
        }
        let recovery = |(outages, lasted)| Recovery { outages, recovery_ms: Distribution::of(lasted) };
        let hurt: Vec<&Stream> = disturbed.streams.iter().filter(|stream| was_hurt(stream, load, disturbed)).collect();
        let pauses = hurt.iter().filter(|stream| stream.verdict.is_good());
        let pauses = pauses.filter_map(|stream| longest_pause(stream, &disturbed.outages)).map(ms).collect();
        let mut streams = Streams { started: disturbed.begun, ..Streams::default() };
        disturbed.streams.iter().for_each(|stream| streams.count(&stream.verdict));
        streams.recovered = hurt.iter().filter(|stream| stream.verdict.is_good()).count();
        let talks = disturbed.streams.iter().filter(|stream| load.cases[stream.case].kind == Kind::Talk);
        let mut conversations = Conversations::default();
        for stream in talks {
            conversations.ended += 1;
            conversations.identical += usize::from(stream.verdict == Verdict::Identical);
        }
        Report {
            about,
            version: env!("CARGO_PKG_VERSION"),
            took_s: disturbed.took.as_secs_f64(),
            faults_by_kind: count(&faults, |fault| fault.rule.kind.as_str().to_owned()),
            faults_by_place: count(&faults, place),
            faults: Count { injected: faults.len(), hit: faults.iter().filter(|fault| fault.hits > 0).count() },
            streams,
            conversations,
            stages: stages.into_iter().map(|(stage, seen)| (stage, recovery(seen))).collect(),
            recovery_ms: Distribution::of(ends),
            pause_ms: Distribution::of(pauses),
            undisturbed: Gaps::of(undisturbed.streams.iter()),
            disturbed: Gaps::of(disturbed.streams.iter()),
            resources: Use::of(&disturbed.resources),
            given_up: disturbed.given_up.clone(),
            interrupted: disturbed.interrupted,
            bad: disturbed
                .streams
                .iter()
                .filter(|stream| !stream.verdict.is_good())
                .map(|bad| complaint(bad, load))
                .collect(),
        }
    }

    /// One line for the error that ends the command; `None` if all is good.
    pub fn failure(&self) -> Option<String> {
        let down = self.given_up.as_ref().map(|reason| format!("a stage stayed down: {reason}"));
        joined(self.streams.failure(), down)
    }
}

/// Both parts of what went wrong.
pub(super) fn joined(streams: Option<String>, rest: Option<String>) -> Option<String> {
    let parts: Vec<String> = streams.into_iter().chain(rest).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

impl Streams {
    /// What went wrong with them, if anything did.
    pub(super) fn failure(&self) -> Option<String> {
        let parts = [
            (self.lost, "lost something"),
            (self.repeated, "repeated something"),
            (self.reordered, "came in another order"),
            (self.changed, "had other samples or text"),
            (self.failed, "failed"),
            (self.refused, "were refused"),
            (self.hung, "hung"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        let parts: Vec<String> = parts.collect();
        (!parts.is_empty()).then(|| format!("of {} streams {}", self.started, parts.join(", ")))
    }

    pub(super) fn count(&mut self, verdict: &Verdict) {
        use super::compare::Looks;
        let place = match verdict {
            Verdict::Identical => {
                self.finished += 1;
                &mut self.identical
            }
            Verdict::Ended { .. } => &mut self.ended,
            Verdict::Failed { .. } => &mut self.failed,
            Verdict::Refused { .. } => &mut self.refused,
            Verdict::Hung { .. } => &mut self.hung,
            Verdict::Wrong { samples, .. } => {
                self.finished += 1;
                match samples.map(|difference| difference.looks) {
                    Some(Looks::Lost { .. }) => &mut self.lost,
                    Some(Looks::Repeated { .. }) => &mut self.repeated,
                    Some(Looks::Reordered { .. }) => &mut self.reordered,
                    Some(Looks::Changed { .. }) | None => &mut self.changed,
                }
            }
        };
        *place += 1;
    }
}

impl Gaps {
    /// Of all players that had something to play.
    pub(super) fn of<'a>(streams: impl Iterator<Item = &'a Stream> + Clone) -> Gaps {
        let spoken = || streams.clone().filter(|stream| stream.timing.player.time_to_first().is_some());
        let underruns: u32 = spoken().map(|stream| stream.timing.player.underruns).sum();
        Gaps {
            underruns_per_100_streams: f64::from(underruns) * 100.0 / spoken().count().max(1) as f64,
            silence_ms: Distribution::of(spoken().map(|stream| ms(stream.timing.player.silence)).collect()),
            ttfa_ms: Distribution::of(
                spoken().filter_map(|stream| stream.timing.player.time_to_first()).map(ms).collect(),
            ),
        }
    }
}

/// Whether a stage that the stream needs died while it went on.
fn was_hurt(stream: &Stream, load: &Load, run: &Run) -> bool {
    let stages = load.stages_of(load.cases[stream.case].kind);
    let meanwhile = |outage: &&Outage| outage.touches(stream.timing.began, stream.timing.ended);
    run.outages.iter().filter(meanwhile).any(|outage| stages.contains(&outage.stage))
}

fn longest_pause(stream: &Stream, outages: &[Outage]) -> Option<Duration> {
    let in_outage = |(from, to): &&(Duration, Duration)| outages.iter().any(|outage| outage.touches(*from, *to));
    stream.timing.pauses.iter().filter(in_outage).map(|(from, to)| *to - *from).max()
}

/// What is wrong with a stream.
pub(super) fn complaint(stream: &Stream, load: &Load) -> Bad {
    let case = &load.cases[stream.case];
    Bad {
        number: stream.number,
        request: stream.request.map(|request| request.to_string()),
        seed: case.seed,
        text: case.text.clone(),
        began_s: stream.timing.began.as_secs_f64(),
        ended_s: stream.timing.ended.as_secs_f64(),
        verdict: stream.verdict.clone(),
    }
}

fn count(faults: &[&Fault], by: impl Fn(&Fault) -> String) -> BTreeMap<String, Count> {
    let mut counts = BTreeMap::<String, Count>::new();
    for fault in faults {
        let count = counts.entry(by(fault)).or_default();
        count.injected += 1;
        count.hit += usize::from(fault.hits > 0);
    }
    counts
}

fn place(fault: &Fault) -> String {
    let stage = fault.rule.stage.map(|stage| format!("{stage} ")).unwrap_or_default();
    stage + fault.rule.point.as_str()
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::super::compare::{Difference, Looks};
    use super::super::listen::Timing;
    use super::super::load::Able;
    use super::*;
    use omni_core::ids::StageName;
    use omni_model::Checkpoint;
    use std::path::Path;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Twelve requests, of which the first is spoken and the eleventh answered with text alone.
    fn load() -> Load {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
        let texts = (0..12).map(|i| format!("text {i}")).collect();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let able = Able { family: checkpoint.family(), stages: checkpoint.stages(), hears: true, talks: true };
        Load::new(texts, able, &[], 1, None, None)
    }

    fn stream(case: usize, verdict: Verdict, pauses: &[(u64, u64)]) -> Stream {
        let pauses = pauses.iter().map(|(from, to)| (ms(*from), ms(*to))).collect();
        let timing = Timing { began: ms(100), ended: ms(900), pauses, ..Timing::default() };
        Stream { number: case, case, request: None, verdict, timing }
    }

    fn report(streams: Vec<Stream>) -> Report {
        let about =
            About { target: "x".to_owned(), seed: 1, listeners: 2, placement: "threads".to_owned(), set: Vec::new() };
        let outage = Outage { stage: StageName::Talker, from: ms(400), to: Some(ms(430)) };
        let run = Run { begun: streams.len(), streams, outages: vec![outage], ..Run::default() };
        Report::new(about, &load(), &Run::default(), &run)
    }

    #[test]
    fn a_stream_has_recovered_if_a_stage_of_its_own_was_down_meanwhile() {
        let spoken = stream(0, Verdict::Identical, &[(200, 300), (390, 520), (600, 890)]);
        let report = report(vec![spoken, stream(10, Verdict::Identical, &[])]);
        assert_eq!((report.streams.identical, report.streams.recovered), (2, 1));
        assert_eq!(report.pause_ms.max, 130.0);
        assert_eq!((report.stages["talker"].outages, report.stages["thinker"].outages), (1, 0));
        assert_eq!(report.recovery_ms.p99, 30.0);
        assert_eq!(report.failure(), None);
        assert!(!report.tables().contains("conversations"));
    }

    #[test]
    fn conversations_are_counted_among_the_streams() {
        let report = report(vec![stream(0, Verdict::Identical, &[]), stream(3, Verdict::Identical, &[])]);
        assert_eq!((report.streams.identical, report.conversations), (2, Conversations { ended: 1, identical: 1 }));
        assert!(report.tables().contains("\nconversations: 1 of 1 identical\n"));
    }

    #[test]
    fn what_is_wrong_is_counted_as_what_it_is_and_named() {
        let lost = Difference { at: 5, looks: Looks::Lost { samples: 7 } };
        let lost = Verdict::Wrong { samples: Some(lost), text_at: None, end: None };
        let failed = Verdict::Failed { error: "the talker stage failed".to_owned() };
        let report = report(vec![stream(0, lost, &[]), stream(1, failed, &[]), stream(2, Verdict::Identical, &[])]);
        let s = &report.streams;
        assert_eq!((s.finished, s.identical, s.recovered, s.lost, s.failed), (2, 1, 1, 1, 1));
        assert_eq!(report.failure().unwrap(), "of 3 streams 1 lost something, 1 failed");
        let tables = report.tables();
        assert!(tables.contains("sample 5: 7 lost; \"text 0\"") && tables.contains("failed: the talker"), "{tables}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["bad"][0]["verdict"], "wrong");
        assert_eq!((&json["bad"][0]["at"], &json["bad"][0]["seed"]), (&5.into(), &1.into()));
        assert_eq!(json["bad"][1]["error"], "the talker stage failed");
    }

    #[test]
    fn a_stage_that_stays_down_is_a_failure_even_without_listeners() {
        let mut report = report(Vec::new());
        report.given_up = Some("talker: no memory".to_owned());
        assert_eq!(report.failure().unwrap(), "a stage stayed down: talker: no memory");
    }
}
