//! Steps that are launched before the outcome of the last one is known give the same tokens as steps one after the
//! other: random requests (sampling, penalties, limits, forced codes, ends) in random batches that sequences join and
//! leave, up to eight steps out, against each request alone and step by step.
//!
//! The real scheduler drives the real stage models of the tiny checkpoints. A die says when the host hears of a step's
//! outcome, so stops come late and sequences run in vain. `cargo test` takes some hundreds of requests; all ten
//! thousand:
//!
//! ```sh
//! cargo test --release --test engine run_ahead -- --ignored
//! ```
//!
//! On a GPU: the same with `OMNI_TEST_DEVICE=cuda` and `--features cuda`.

mod asks;
mod run;

use crate::support::stage::{next, rig, scheduler};
use asks::{Ask, Dice, Stage, on_cuda, talker, thinker};
use omni_actors::actors::{Admission, Outputs, Resume};
use omni_actors::core::ids::{Attempt, Content, FinishReason, Generation, RequestId, Seq};
use omni_actors::core::scheduler::{SchedulerConfig, Yields};
use omni_actors::model::stage::{StageFactory, StageModel};
use omni_actors::transfer::payload::{Header, Kind, Part, Payload};
use run::{Run, Said, Seen, alone};
use std::sync::Arc;

/// Requests that share a scheduler.
const GROUP: usize = 24;
/// Limits that hold on every device.
const SLOTS: u32 = 12;
const CHUNK: u32 = 40;
const RUN_AHEAD: u32 = 8;

/// Compares `count` random requests; `seed` makes them others.
fn compare(stage: &Stage, count: usize, seed: u64) {
    let mut model = stage.factory.build().unwrap();
    let (mut all, mut stopped, mut compared) = (Seen::default(), 0, 0);
    for group in 0..count.div_ceil(GROUP) {
        let dice = &mut Dice::new(seed + group as u64);
        let asks: Vec<Ask> = (0..GROUP.min(count - group * GROUP)).map(|_| (stage.ask)(dice)).collect();
        let want: Vec<Said> = asks.iter().map(|ask| alone(&mut *model, ask)).collect();
        let slots = dice.int(2, SLOTS);
        let config = SchedulerConfig {
            slots,
            max_batch: if dice.one_in(2) { slots } else { dice.int(1, slots) } as usize,
            prefill_chunk: dice.int(1, CHUNK),
            prefill_least: dice.int(0, CHUNK),
            yields: Yields::Never,
            joins_prompts: false,
            paced: false,
            run_ahead: dice.int(2, RUN_AHEAD),
            window: dice.pick(&[2, 5, 4096]),
            ..scheduler()
        };
        let leavers: Vec<usize> = (0..asks.len()).filter(|_| dice.one_in(12)).collect();
        let room = dice.int(slots, 2 * slots) as usize;
        let run = Run::new(&mut *model, &asks, config.clone(), dice);
        let (got, seen) = run.run(dice, room, &leavers);
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            if got.finish.is_none() && leavers.contains(&at) {
                // It left; what it had said until then must be right.
                assert!(want.tokens.starts_with(&got.tokens) && want.frames.starts_with(&got.frames));
                continue;
            }
            assert_eq!(
                got, want,
                "group {group}, request {at} of {:?} with {config:?}: {:?}",
                stage.name, asks[at].spec
            );
            compared += 1;
            stopped += usize::from(want.finish == Some(FinishReason::Stop));
        }
        all.deepest = all.deepest.max(seen.deepest);
        all.together = all.together.max(seen.together);
        all.stale += seen.stale;
    }
    println!(
        "{}: {compared} of {count} requests compared, {stopped} ended by themselves; up to {} steps out, {} sequences in one; \
         {} sequences run in vain",
        stage.name, all.deepest, all.together, all.stale
    );
    // Or else nothing was shown. Where few tokens can end an answer, fewer answers end.
    let least_stopped = if on_cuda() { count / 20 } else { count / 10 };
    assert!(compared * 10 >= count * 9 && stopped >= least_stopped, "{compared} compared, {stopped} stopped");
    assert!(all.deepest >= 6 && all.together >= 6, "{} steps out, {} sequences in one", all.deepest, all.together);
    assert!(all.stale as usize > count / 4, "{} sequences were run in vain: hardly a stop came late", all.stale);
}

#[test]
fn a_talker_says_the_same_however_far_it_runs_ahead() {
    compare(&talker(), 240, 1);
}

#[test]
fn a_thinker_says_the_same_however_far_it_runs_ahead() {
    compare(&thinker(), 240, 2);
}

#[test]
#[ignore = "minutes: the two above with all ten thousand requests"]
fn ten_thousand_requests_say_the_same_however_far_their_stages_run_ahead() {
    compare(&talker(), 5_000, 1_000);
    compare(&thinker(), 5_000, 2_000);
}

/// The same through the actors: the thread that launches, the one that waits, sampler, packager, connectors.
#[tokio::test(flavor = "multi_thread")]
async fn a_talker_says_the_same_through_its_actors() {
    let Stage { name, factory, ask } = talker();
    let dice = &mut Dice::new(3);
    let asks: Vec<Ask> = (0..60).map(|_| ask(dice)).collect();
    let mut model = factory.build().unwrap();
    let want: Vec<Said> = asks.iter().map(|ask| alone(&mut *model, ask)).collect();
    drop(model);
    let factory: Arc<dyn StageFactory> = factory.into();
    for run_ahead in [1, 2, 5, 8] {
        let config = SchedulerConfig { slots: SLOTS, run_ahead, prefill_chunk: CHUNK, ..scheduler() };
        let rig = rig(name, Shared(Arc::clone(&factory)), config, &[]).await;
        for (request, ask) in (0..).map(RequestId).zip(&asks) {
            let Ask { params, spec, text } = ask.clone();
            rig.admit(Admission {
                request,
                params,
                spec,
                deliver: Outputs { tokens: true, speech: true },
                from: Resume::default(),
                content: Content::default(),
            });
            let header = Header {
                request,
                generation: Generation(1),
                attempt: Attempt(0),
                seq: Seq(0),
                kind: Kind::Tokens,
                units: text.len() as u32,
                end: Some(FinishReason::Stop),
                sent: 0,
                cached: 0,
            };
            rig.input.put(Payload { header, parts: vec![Part::U32(text)], leases: Vec::new() }).unwrap();
        }
        let mut got = vec![Said::default(); asks.len()];
        let mut open = asks.len() * 2;
        while open > 0 {
            let payload = next(&rig.output).await;
            let said = &mut got[payload.header.request.0 as usize];
            for part in payload.parts {
                match (payload.header.kind, part) {
                    (Kind::Tokens, Part::U32(tokens)) => said.tokens.extend(tokens),
                    (Kind::Codes, Part::U32(codes)) => said.frames.extend(codes.chunks(8).map(<[u32]>::to_vec)),
                    (kind, _) => panic!("a talker sent {kind:?}"),
                }
            }
            if let Some(end) = payload.header.end {
                open -= 1;
                said.finish = Some(if end == FinishReason::Stop { FinishReason::Stop } else { FinishReason::Length });
            }
        }
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let want = Said { picked: Vec::new(), ..want.clone() };
            assert_eq!(*got, want, "request {at}, run-ahead {run_ahead}: {:?}", asks[at].spec);
        }
        assert!(rig.context.failed.lock().unwrap().is_empty());
        rig.stage.stop().await;
    }
}

struct Shared(Arc<dyn StageFactory>);

impl StageFactory for Shared {
    fn build(&self) -> Result<Box<dyn StageModel>, omni_actors::model::LoadError> {
        self.0.build()
    }
}
