//! What is said: sequences, and a run of them whose outcomes come late.

use super::asks::{Ask, Dice};
use omni_actors::core::ids::{FinishReason, RequestId, Slot};
use omni_actors::core::scheduler::{
    Effect, Event, Plan, SchedulerConfig, SchedulerCore, SequenceDone, Start, StepDone,
};
use omni_actors::model::stage::{Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageModel};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
/// What a sequence says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    pub tokens: Vec<u32>,
    pub frames: Vec<Vec<u32>>,
    pub picked: Vec<Box<[u32]>>,
    /// Embedding sequences, bit by bit.
    pub sequences: Vec<u32>,
    pub finish: Option<FinishReason>,
}

impl Said {
    pub fn take(&mut self, output: SequenceOutput) {
        assert_eq!(self.finish, None, "a sequence that has ended says no more");
        self.tokens.extend(output.sampled);
        self.picked.extend(output.picked);
        match output.emit {
            Some(StageData::Codes(codes)) => self.frames.push(codes),
            Some(StageData::Embeddings(sequences)) => {
                let waiting = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let sequences = waiting.block_on(sequences.fetched()).unwrap().tensor().unwrap();
                self.sequences
                    .extend(sequences.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().map(|x| x.to_bits()));
            }
            _ => {}
        }
        self.finish = output.finish;
    }
}

/// The synchronous mode: one sequence, its whole prompt at once, each step known before the next.
pub fn alone(model: &mut dyn StageModel, ask: &Ask) -> Said {
    let slot = Slot(0);
    model.open(slot, ask.spec.clone()).unwrap();
    if matches!(ask.spec, SequenceSpec::Talker(_)) {
        model.push_input(slot, Some(StageData::Tokens(ask.text.clone())), true).unwrap();
    }
    let starved = (ask.text.len() as u32) < ask.params.prompt_input;
    let mut advance = if starved { 0 } else { ask.params.prompt };
    let mut said = Said::default();
    while said.finish.is_none() {
        said.take(model.step(&[SequenceWork { slot, advance }]).unwrap().remove(0).unwrap());
        advance = 1;
    }
    model.close(slot);
    said
}

/// What a run went through.
#[derive(Default)]
pub struct Seen {
    /// Steps that were out at once, at most.
    pub deepest: usize,
    pub stale: u64,
    pub together: usize,
}

/// One scheduler and one model, and requests between them and the die.
pub struct Run<'a> {
    model: &'a mut dyn StageModel,
    core: SchedulerCore,
    asks: &'a [Ask],
    generated_len: Vec<Said>,
    /// Text that has not arrived, in pieces; nothing arrives before a sequence is open.
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
    pub fn new(model: &'a mut dyn StageModel, asks: &'a [Ask], config: SchedulerConfig, dice: &mut Dice) -> Run<'a> {
        let pieces = asks.iter().map(|ask| {
            let mut text = ask.text.as_slice();
            let mut pieces = VecDeque::new();
            while !text.is_empty() {
                let (piece, rest) = text.split_at(dice.int(1, text.len() as u32) as usize);
                pieces.push_back(piece.to_vec());
                text = rest;
            }
            if pieces.is_empty() && matches!(ask.spec, SequenceSpec::Talker(_)) {
                pieces.push_back(Vec::new());
            }
            pieces
        });
        Run {
            model,
            core: SchedulerCore::new(config),
            asks,
            generated_len: vec![Said::default(); asks.len()],
            pieces: pieces.collect(),
            slots: HashMap::new(),
            flying: VecDeque::new(),
            unheard: vec![0; asks.len()],
            left: vec![false; asks.len()],
            now: Duration::ZERO,
            seen: Seen::default(),
        }
    }

    fn is_over(&self, sequence: usize) -> bool {
        self.left[sequence] || self.generated_len[sequence].finish.is_some()
    }

    fn tell(&mut self, event: Event) {
        self.now += Duration::from_millis(1);
        for effect in self.core.handle(event, self.now) {
            match effect {
                Effect::Open(request, slot) => {
                    let sequence = request.0 as usize;
                    self.model.open(slot, self.asks[sequence].spec.clone()).unwrap();
                    self.slots.insert(sequence, slot);
                }
                Effect::Launch(plan) => {
                    let work = plan
                        .sequences
                        .iter()
                        .map(|sequence| SequenceWork { slot: sequence.slot, advance: sequence.advance });
                    let launched = self.model.launch(&work.collect::<Vec<_>>()).unwrap();
                    self.seen.together = self.seen.together.max(plan.sequences.len());
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

    /// The next piece of a sequence's text arrives.
    fn push_input(&mut self, sequence: usize) {
        let Some(piece) = self.pieces[sequence].pop_front() else { return };
        let (units, end) = (piece.len() as u32, self.pieces[sequence].is_empty());
        let input = if units == 0 { None } else { Some(StageData::Tokens(piece)) };
        self.model.push_input(self.slots[&sequence], input, end).unwrap();
        self.tell(Event::Input { request: RequestId(sequence as u64), units, end });
    }

    /// The host hears of the oldest step.
    fn hear(&mut self) {
        let Some((plan, launched)) = self.flying.pop_front() else { return };
        let mut sequences = Vec::new();
        for (planned, output) in plan.sequences.iter().zip(launched.wait().unwrap().sequences) {
            let (request, sequence) = (planned.request, planned.request.0 as usize);
            // A sequence that has ended has no slot any more, or another one has it: its outcome is dropped.
            if self.is_over(sequence) {
                sequences.push(SequenceDone { request, emitted: 0, finished: false });
                continue;
            }
            let output = output.unwrap();
            assert!(!output.stale, "a sequence has ended before the host knows of it");
            let before = (self.generated_len[sequence].frames.len(), self.generated_len[sequence].tokens.len());
            self.generated_len[sequence].take(output);
            let said = &self.generated_len[sequence];
            let emitted = (said.frames.len() - before.0).max(said.tokens.len() - before.1) as u32;
            self.unheard[sequence] += emitted;
            sequences.push(SequenceDone { request, emitted, finished: said.finish.is_some() });
        }
        self.tell(Event::StepDone(StepDone { step: plan.step, sequences }));
    }

    /// To the end of all requests, of which `leavers` leave before theirs.
    pub fn run(mut self, dice: &mut Dice, room: usize, leavers: &[usize]) -> (Vec<Said>, Seen) {
        let mut admitted = 0;
        loop {
            let open: Vec<usize> = (0..admitted).filter(|sequence| !self.is_over(*sequence)).collect();
            if open.is_empty() && admitted == self.asks.len() && self.flying.is_empty() {
                break;
            }
            // What may happen now; twice what shall happen more often.
            let hungry: Vec<usize> = open
                .iter()
                .copied()
                .filter(|sequence| self.slots.contains_key(sequence) && !self.pieces[*sequence].is_empty())
                .collect();
            let behind: Vec<usize> = open.iter().copied().filter(|sequence| self.unheard[*sequence] > 0).collect();
            let leaving: Vec<usize> = leavers.iter().copied().filter(|sequence| open.contains(sequence)).collect();
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
                'f' => self.push_input(dice.pick(&hungry)),
                'h' => self.hear(),
                'k' => {
                    let sequence = dice.pick(&behind);
                    self.unheard[sequence] = 0;
                    let said = &self.generated_len[sequence];
                    let upto = said.frames.len().max(said.tokens.len()) as u32;
                    self.tell(Event::Acked { request: RequestId(sequence as u64), upto });
                }
                _ => {
                    let sequence = dice.pick(&leaving);
                    self.left[sequence] = true;
                    self.tell(Event::Abort(RequestId(sequence as u64)));
                }
            }
        }
        assert_eq!(self.model.live_sequences(), 0);
        self.seen.stale = self.core.stale();
        (self.generated_len, self.seen)
    }
}
