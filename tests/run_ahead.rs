//! Steps that are launched before the last one is known say what they would have said one after the other: random requests
//! (sampling, penalties, limits, forced codes, ends) in random batches that rows join and leave, up to eight steps out,
//! against each request alone and step by step.
//!
//! The real scheduler drives the real stage models of the tiny checkpoints. A step's outcome is kept back until a die says
//! that the host hears of it, so that stops come late and rows run in vain. `cargo test` takes some hundreds of requests; all
//! ten thousand:
//!
//! ```sh
//! cargo test --release --test run_ahead -- --ignored
//! ```
//!
//! On a GPU: the same with `OMNI_TEST_DEVICE=cuda` and `--features cuda`.
#![allow(clippy::unwrap_used)]

#[path = "support/stage.rs"]
mod support;

use candle_core::Device;
use omni_actors::actors::{Admission, Resume, Wants};
use omni_actors::core::scheduler::{
    Effect, Event, Pace, Plan, RowDone, RowParams, SchedulerConfig, SchedulerCore, Start, StepDone,
};
use omni_actors::ids::{Attempt, Generation, RequestId, Seq, Slot, StageName};
use omni_actors::model::Checkpoint;
use omni_actors::model::sampling::{SamplingParams, philox};
use omni_actors::model::stage::{
    Emit, Finish, Launched, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel, TalkerRow, ThinkerMode,
    ThinkerRow,
};
use omni_actors::model::stages::{talker::TalkerFactory, thinker::ThinkerFactory};
use omni_actors::model::talker::{CodecSide, Talker, TalkerPrompt, TextSide, Trailing};
use omni_actors::model::thinker::Thinker;
use omni_actors::transfer::payload::{End, Header, Kind, Part, Payload};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Requests that share a scheduler.
const GROUP: usize = 24;
/// Limits that hold on every device.
const SLOTS: u32 = 12;
const CHUNK: u32 = 40;
const RUN_AHEAD: u32 = 8;

/// Random numbers out of a seed.
struct Dice {
    seed: u64,
    thrown: u32,
}

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice { seed, thrown: 0 }
    }

    fn word(&mut self) -> u32 {
        self.thrown += 1;
        philox::block([self.thrown, 0, 77, 0], [self.seed as u32, (self.seed >> 32) as u32])[0]
    }

    /// One of `from..=to`.
    fn int(&mut self, from: u32, to: u32) -> u32 {
        from + ((u64::from(self.word()) * u64::from(to - from + 1)) >> 32) as u32
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.int(1, count) == 1
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.int(0, from.len() as u32 - 1) as usize]
    }

    fn sampling(&mut self) -> SamplingParams {
        let penalized = !self.one_in(3);
        let mut penalty = |off: f32, choices: &[f32]| if penalized { self.pick(choices) } else { off };
        let (repetition_penalty, frequency_penalty, presence_penalty) = (
            penalty(1.0, &[0.8, 1.0, 1.05, 1.3, 3.0]),
            penalty(0.0, &[0.0, 0.1, 0.7, -0.3]),
            penalty(0.0, &[0.0, 0.2, 1.5, -0.4]),
        );
        SamplingParams {
            temperature: self.pick(&[0.0, 0.3, 0.7, 0.9, 1.0, 1.6]),
            top_k: self.pick(&[0, 1, 3, 20, 50, 400]),
            top_p: self.pick(&[0.3, 0.8, 0.95, 1.0, 1.0]),
            min_p: self.pick(&[0.0, 0.0, 0.05, 0.3]),
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
        }
    }
}

/// A request to one stage, and what it is fed.
#[derive(Clone)]
struct Ask {
    spec: RowSpec,
    params: RowParams,
    text: Vec<u32>,
}

/// What a row says.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    tokens: Vec<u32>,
    frames: Vec<Vec<u32>>,
    picked: Vec<Box<[u32]>>,
    /// Embedding rows, bit by bit.
    rows: Vec<u32>,
    finish: Option<Finish>,
}

impl Said {
    fn take(&mut self, output: RowOutput) {
        assert_eq!(self.finish, None, "a row that has ended says no more");
        self.tokens.extend(output.sampled);
        self.picked.extend(output.picked);
        match output.emit {
            Emit::Codes(codes) => self.frames.push(codes),
            Emit::Rows(rows) => {
                let waiting = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let rows = waiting.block_on(rows.fetched()).unwrap().tensor().unwrap();
                self.rows.extend(rows.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().map(|x| x.to_bits()));
            }
            _ => {}
        }
        self.finish = output.finish;
    }
}

/// A stage, and what may be asked of it.
struct Stage {
    name: StageName,
    factory: Box<dyn StageFactory>,
    ask: Box<dyn Fn(&mut Dice) -> Ask>,
}

fn on_cuda() -> bool {
    std::env::var("OMNI_TEST_DEVICE").as_deref() == Ok("cuda")
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn talker_factory(checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    if on_cuda() {
        return cuda::talker(&loader, checkpoint);
    }
    Box::new(TalkerFactory::new(Arc::new(Talker::load(&loader, checkpoint.family()).unwrap())))
}

fn thinker_factory(checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let config = &checkpoint.omni().unwrap().thinker;
    if on_cuda() {
        return cuda::thinker(&loader, config);
    }
    Box::new(ThinkerFactory::new(Arc::new(Thinker::load(&loader, config).unwrap())))
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{CHUNK, RUN_AHEAD, SLOTS};
    use omni_actors::config::Precision;
    use omni_actors::model::Checkpoint;
    use omni_actors::model::checkpoint::Loader;
    use omni_actors::model::cuda::Gpu;
    use omni_actors::model::cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
    use omni_actors::model::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
    use omni_actors::model::hf::ThinkerConfig;
    use omni_actors::model::stage::StageFactory;
    use std::sync::Arc;

    pub fn talker(loader: &Loader, checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
        let gpu = Gpu::open(0).unwrap();
        let net = TalkerNet::load(&gpu, Precision::F32, loader, checkpoint.family()).unwrap();
        let options = TalkerOptions {
            async_h2d: true,
            slots: SLOTS as usize,
            buckets: vec![1, 2, 4, 8, 16],
            prefill_chunk: 64.max(CHUNK as usize),
            run_ahead: RUN_AHEAD as usize,
            kv_memory: None,
            text_rows: 4096,
        };
        Box::new(CudaTalkerFactory::new(Arc::new(net), options))
    }

    pub fn thinker(loader: &Loader, config: &ThinkerConfig) -> Box<dyn StageFactory> {
        let gpu = Gpu::open(0).unwrap();
        let net = ThinkerNet::load(&gpu, Precision::F32, loader, config).unwrap();
        let options = ThinkerOptions {
            rows_in_step: false,
            slots: SLOTS as usize,
            batch: SLOTS as usize,
            prefill_chunk: CHUNK as usize,
            run_ahead: RUN_AHEAD as usize,
            kv_memory: None,
        };
        Box::new(CudaThinkerFactory::new(Arc::new(net), options))
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use omni_actors::model::Checkpoint;
    use omni_actors::model::checkpoint::Loader;
    use omni_actors::model::hf::ThinkerConfig;
    use omni_actors::model::stage::StageFactory;

    pub fn talker(_: &Loader, _: &Checkpoint) -> Box<dyn StageFactory> {
        panic!("OMNI_TEST_DEVICE=cuda needs --features cuda")
    }

    pub fn thinker(_: &Loader, _: &ThinkerConfig) -> Box<dyn StageFactory> {
        panic!("OMNI_TEST_DEVICE=cuda needs --features cuda")
    }
}

/// A talker whose end is the code that it says most often: rows end early, late and never.
fn talker() -> Stage {
    let open = |overrides: &serde_json::Value| {
        let folder = fixture("qwen3_tts/base");
        let checkpoint = Checkpoint::open_with(&folder, overrides.as_object().unwrap()).unwrap();
        let tokens = checkpoint.family().talker().tokens;
        (talker_factory(&checkpoint), tokens.eos, tokens)
    };
    let (factory, ..) = open(&serde_json::json!({}));
    let (_, _, tokens) = open(&serde_json::json!({}));
    let mut model = factory.build().unwrap();
    let mut said = HashMap::<u32, u32>::new();
    let mut dice = Dice::new(1);
    for _ in 0..40 {
        let ask = talker_ask(&mut dice, &tokens, 0);
        alone(&mut *model, &ask).frames.iter().for_each(|frame| *said.entry(frame[0]).or_default() += 1);
    }
    let (end, _) = said.into_iter().max_by_key(|(code, count)| (*count, *code)).unwrap();
    drop(model);
    let (factory, eos, tokens) = open(&serde_json::json!({ "talker_config.codec_eos_token_id": end }));
    assert_eq!(eos, end);
    Stage { name: StageName::Talker, factory, ask: Box::new(move |dice| talker_ask(dice, &tokens, end)) }
}

type CodecTokens = omni_actors::model::hf::CodecTokens;

fn talker_ask(dice: &mut Dice, tokens: &CodecTokens, end: u32) -> Ask {
    const GROUPS: u32 = 8;
    const HIDDEN: u32 = 64;
    const TEXT: u32 = 512;
    let plain = dice.int(0, 8);
    let mut coded =
        vec![(TextSide::Pad, CodecSide::Token(tokens.nothink)), (TextSide::Pad, CodecSide::Token(tokens.think_bos))];
    let (x_vector, reference) = (dice.one_in(2), if dice.one_in(4) { dice.int(1, 20) } else { 0 });
    coded.extend(x_vector.then_some((TextSide::Pad, CodecSide::XVector)));
    coded.extend((0..reference).map(|frame| (TextSide::Pad, CodecSide::Frame(frame))));
    coded.push((TextSide::Bos, CodecSide::Token(tokens.pad)));
    coded.push((TextSide::Input(plain), CodecSide::Token(tokens.bos)));
    let mut prompt = TalkerPrompt::new(plain, coded, dice.pick(&[Trailing::Text, Trailing::Text, Trailing::Pad]));
    if x_vector {
        prompt = prompt.with_x_vector((0..HIDDEN).map(|_| dice.int(0, 100) as f32 * 0.01 - 0.5).collect());
    }
    if reference > 0 {
        prompt = prompt.with_reference((0..reference * GROUPS).map(|_| dice.int(0, 63)).collect());
    }
    let inputs = prompt.inputs();
    // Now and then the text is too short for the prompt: there is nothing to say.
    let len = if dice.one_in(40) { inputs - 1 } else { dice.int(inputs, inputs + 12) };
    let sampling = dice.sampling();
    let forced = dice.one_in(6).then(|| {
        let frames = dice.int(1, 8) * GROUPS;
        (0..frames).map(|at| if at % GROUPS == 0 && dice.one_in(12) { end } else { dice.int(0, 63) }).collect()
    });
    let row = TalkerRow {
        said: 0,
        prompt: Arc::new(prompt),
        sampling,
        predictor: SamplingParams {
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            ..dice.sampling()
        },
        max_tokens: dice.int(1, 16),
        min_tokens: dice.pick(&[0, 0, 2, 6, 30]),
        ignore_eos: dice.one_in(3),
        seed: u64::from(dice.word()) << 32 | u64::from(dice.word()),
        forced,
    };
    let params = RowParams {
        prompt: row.prefill_positions(),
        prompt_input: row.prefill_rows(),
        prompt_emits: 0,
        pace: Pace::OnePerStep,
        lead: Duration::ZERO,
    };
    Ask { spec: RowSpec::Talker(row), params, text: (0..len).map(|_| dice.int(0, TEXT - 1)).collect() }
}

fn thinker() -> Stage {
    let checkpoint = Checkpoint::open(&fixture("qwen3_omni")).unwrap();
    let ask = |dice: &mut Dice| {
        const TOKENS: u32 = 512;
        let len = dice.int(1, 50);
        let emit: Option<Arc<[_]>> = dice.one_in(2).then(|| vec![0..len / 2, len / 2 + len / 4..len].into());
        let prompt_emits = emit.iter().flat_map(|ranges| ranges.iter()).map(|range| range.end - range.start).sum();
        let row = ThinkerRow {
            said: 0,
            prompt: (0..len).map(|_| dice.int(0, TOKENS - 1)).collect(),
            mode: ThinkerMode::Sample,
            emit,
            sampling: dice.sampling(),
            // From none to so many that hardly an answer gets far; a GPU takes up to 12.
            eos: (0..dice.pick(if on_cuda() { &[0, 1, 8, 12] } else { &[0, 1, 20, 100] }))
                .map(|_| dice.int(0, TOKENS - 1))
                .collect(),
            max_tokens: dice.int(1, 24),
            seed: u64::from(dice.word()) << 32 | u64::from(dice.word()),
        };
        let params = RowParams { prompt: len, prompt_input: 0, prompt_emits, pace: Pace::Free, lead: Duration::ZERO };
        Ask { spec: RowSpec::Thinker(row), params, text: Vec::new() }
    };
    Stage { name: StageName::Thinker, factory: thinker_factory(&checkpoint), ask: Box::new(ask) }
}

/// The synchronous mode: one row, its whole prompt at once, each step known before the next.
fn alone(model: &mut dyn StageModel, ask: &Ask) -> Said {
    let slot = Slot(0);
    model.open(slot, ask.spec.clone()).unwrap();
    if matches!(ask.spec, RowSpec::Talker(_)) {
        model.feed(slot, RowInput::Tokens(ask.text.clone()), true).unwrap();
    }
    let starved = (ask.text.len() as u32) < ask.params.prompt_input;
    let mut advance = if starved { 0 } else { ask.params.prompt };
    let mut said = Said::default();
    while said.finish.is_none() {
        said.take(model.step(&[RowWork { slot, advance }]).unwrap().remove(0).unwrap());
        advance = 1;
    }
    model.close(slot);
    said
}

/// What a run went through.
#[derive(Default)]
struct Seen {
    /// Steps that were out at once, at most.
    deepest: usize,
    stale: u64,
    together: usize,
}

/// One scheduler and one model, and requests between them and the die.
struct Run<'a> {
    model: &'a mut dyn StageModel,
    core: SchedulerCore,
    asks: &'a [Ask],
    said: Vec<Said>,
    /// Text that has not arrived, in pieces; nothing arrives before a row is open.
    pieces: Vec<VecDeque<Vec<u32>>>,
    slots: HashMap<usize, Slot>,
    flying: VecDeque<(Plan, Launched)>,
    /// Units that the next stage has not taken over.
    unheard: Vec<u32>,
    left: Vec<bool>,
    now: Duration,
    seen: Seen,
}

impl<'a> Run<'a> {
    fn new(model: &'a mut dyn StageModel, asks: &'a [Ask], config: SchedulerConfig, dice: &mut Dice) -> Run<'a> {
        let pieces = asks.iter().map(|ask| {
            let mut text = ask.text.as_slice();
            let mut pieces = VecDeque::new();
            while !text.is_empty() {
                let (piece, rest) = text.split_at(dice.int(1, text.len() as u32) as usize);
                pieces.push_back(piece.to_vec());
                text = rest;
            }
            if pieces.is_empty() && matches!(ask.spec, RowSpec::Talker(_)) {
                pieces.push_back(Vec::new());
            }
            pieces
        });
        Run {
            model,
            core: SchedulerCore::new(config),
            asks,
            said: vec![Said::default(); asks.len()],
            pieces: pieces.collect(),
            slots: HashMap::new(),
            flying: VecDeque::new(),
            unheard: vec![0; asks.len()],
            left: vec![false; asks.len()],
            now: Duration::ZERO,
            seen: Seen::default(),
        }
    }

    fn is_over(&self, row: usize) -> bool {
        self.left[row] || self.said[row].finish.is_some()
    }

    fn tell(&mut self, event: Event) {
        self.now += Duration::from_millis(1);
        for effect in self.core.handle(event, self.now) {
            match effect {
                Effect::Open(request, slot) => {
                    let row = request.0 as usize;
                    self.model.open(slot, self.asks[row].spec.clone()).unwrap();
                    self.slots.insert(row, slot);
                }
                Effect::Launch(plan) => {
                    let work = plan.rows.iter().map(|row| RowWork { slot: row.slot, advance: row.advance });
                    let launched = self.model.launch(&work.collect::<Vec<_>>()).unwrap();
                    self.seen.together = self.seen.together.max(plan.rows.len());
                    self.flying.push_back((plan, launched));
                    self.seen.deepest = self.seen.deepest.max(self.flying.len());
                }
                Effect::Close(slot) => {
                    self.model.close(slot);
                    self.slots.retain(|_, of| *of != slot);
                }
                Effect::Consumed { .. } | Effect::Finished(_) => {}
            }
        }
    }

    /// The next piece of a row's text arrives.
    fn feed(&mut self, row: usize) {
        let Some(piece) = self.pieces[row].pop_front() else { return };
        let (units, end) = (piece.len() as u32, self.pieces[row].is_empty());
        let input = if units == 0 { RowInput::Nothing } else { RowInput::Tokens(piece) };
        self.model.feed(self.slots[&row], input, end).unwrap();
        self.tell(Event::Input { request: RequestId(row as u64), units, end });
    }

    /// The host hears of the oldest step.
    fn hear(&mut self) {
        let Some((plan, launched)) = self.flying.pop_front() else { return };
        let mut rows = Vec::new();
        for (planned, output) in plan.rows.iter().zip(launched.wait().unwrap().rows) {
            let (request, row) = (planned.request, planned.request.0 as usize);
            // Who is over has no slot any more, or somebody else has it: nobody listens.
            if self.is_over(row) {
                rows.push(RowDone { request, emitted: 0, finished: false });
                continue;
            }
            let output = output.unwrap();
            assert!(!output.stale, "a row that nobody knows the end of has ended");
            let before = (self.said[row].frames.len(), self.said[row].tokens.len());
            self.said[row].take(output);
            let said = &self.said[row];
            let emitted = (said.frames.len() - before.0).max(said.tokens.len() - before.1) as u32;
            self.unheard[row] += emitted;
            rows.push(RowDone { request, emitted, finished: said.finish.is_some() });
        }
        self.tell(Event::StepDone(StepDone { step: plan.step, rows }));
    }

    /// To the end of all requests, of which `leavers` leave before theirs.
    fn run(mut self, dice: &mut Dice, room: usize, leavers: &[usize]) -> (Vec<Said>, Seen) {
        let mut admitted = 0;
        loop {
            let open: Vec<usize> = (0..admitted).filter(|row| !self.is_over(*row)).collect();
            if open.is_empty() && admitted == self.asks.len() && self.flying.is_empty() {
                break;
            }
            // What may happen now; twice what shall happen more often.
            let hungry: Vec<usize> = open
                .iter()
                .copied()
                .filter(|row| self.slots.contains_key(row) && !self.pieces[*row].is_empty())
                .collect();
            let behind: Vec<usize> = open.iter().copied().filter(|row| self.unheard[*row] > 0).collect();
            let leaving: Vec<usize> = leavers.iter().copied().filter(|row| open.contains(row)).collect();
            let mut may = Vec::new();
            may.extend((admitted < self.asks.len() && open.len() < room).then_some('a'));
            may.extend((!hungry.is_empty()).then_some(['f', 'f']).into_iter().flatten());
            may.extend((!self.flying.is_empty()).then_some(['h', 'h']).into_iter().flatten());
            may.extend((!behind.is_empty()).then_some('k'));
            may.extend((!leaving.is_empty() && dice.one_in(8)).then_some('l'));
            assert!(!may.is_empty(), "nothing can happen any more");
            match dice.pick(&may) {
                'a' => {
                    self.tell(Event::Admit(
                        RequestId(admitted as u64),
                        self.asks[admitted].params.clone(),
                        Start::default(),
                    ));
                    admitted += 1;
                }
                'f' => self.feed(dice.pick(&hungry)),
                'h' => self.hear(),
                'k' => {
                    let row = dice.pick(&behind);
                    let units = std::mem::take(&mut self.unheard[row]);
                    self.tell(Event::Acked { request: RequestId(row as u64), units });
                }
                _ => {
                    let row = dice.pick(&leaving);
                    self.left[row] = true;
                    self.tell(Event::Abort(RequestId(row as u64)));
                }
            }
        }
        assert_eq!(self.model.live_rows(), 0);
        self.seen.stale = self.core.stale();
        (self.said, self.seen)
    }
}

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
            run_ahead: dice.int(2, RUN_AHEAD),
            window: dice.pick(&[2, 5, 4096]),
            ..support::scheduler()
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
            stopped += usize::from(want.finish == Some(Finish::Stop));
        }
        all.deepest = all.deepest.max(seen.deepest);
        all.together = all.together.max(seen.together);
        all.stale += seen.stale;
    }
    println!(
        "{}: {compared} of {count} requests compared, {stopped} ended by themselves; up to {} steps out, {} rows in one; \
         {} rows run in vain",
        stage.name, all.deepest, all.together, all.stale
    );
    // Or else nothing was shown. Where few tokens can end an answer, fewer answers end.
    let least_stopped = if on_cuda() { count / 20 } else { count / 10 };
    assert!(compared * 10 >= count * 9 && stopped >= least_stopped, "{compared} compared, {stopped} stopped");
    assert!(all.deepest >= 6 && all.together >= 6, "{} steps out, {} rows in one", all.deepest, all.together);
    assert!(all.stale as usize > count / 4, "{} rows were run in vain: hardly a stop came late", all.stale);
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
        let config = SchedulerConfig { slots: SLOTS, run_ahead, prefill_chunk: CHUNK, ..support::scheduler() };
        let rig = support::rig(name, Shared(Arc::clone(&factory)), config, &[]).await;
        for (request, ask) in (0..).map(RequestId).zip(&asks) {
            let Ask { params, spec, text } = ask.clone();
            rig.admit(Admission {
                request,
                params,
                spec,
                wants: Wants { tokens: true, speech: true },
                from: Resume::default(),
            });
            let header = Header {
                request,
                generation: Generation(1),
                attempt: Attempt(0),
                seq: Seq(0),
                kind: Kind::Tokens,
                units: text.len() as u32,
                end: Some(End::Stop),
                sent: 0,
            };
            rig.input.put(Payload { header, parts: vec![Part::U32(text)], leases: Vec::new() }).unwrap();
        }
        let mut got = vec![Said::default(); asks.len()];
        let mut open = asks.len() * 2;
        while open > 0 {
            let payload = support::next(&rig.output).await;
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
                said.finish = Some(if end == End::Stop { Finish::Stop } else { Finish::Length });
            }
        }
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let want = Said { picked: Vec::new(), ..want.clone() };
            assert_eq!(*got, want, "request {at}, run-ahead {run_ahead}: {:?}", asks[at].spec);
        }
        assert!(rig.world.failed.lock().unwrap().is_empty());
        rig.stage.stop().await;
    }
}

struct Shared(Arc<dyn StageFactory>);

impl StageFactory for Shared {
    fn build(&self) -> Result<Box<dyn StageModel>, omni_actors::model::LoadError> {
        self.0.build()
    }
}
