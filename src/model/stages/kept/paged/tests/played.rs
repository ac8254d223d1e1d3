//! Sequences that share pages against a device that is played: what each row reads is what it would read alone.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Not a number.
const NAN: u64 = u64::MAX;
const LONGEST: usize = 4;
const SLOTS: usize = 4;
const AHEAD: usize = 3;

fn mixed(so_far: u64, next: u64) -> u64 {
    if so_far == NAN || next == NAN {
        return NAN;
    }
    let mixed = (so_far ^ next.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 29)) % NAN
}

/// What a device computes for a token behind these positions.
fn computed(behind: impl Iterator<Item = u64>, token: u32) -> u64 {
    mixed(behind.fold(7, mixed), u64::from(token))
}

fn sampled(state: u64) -> u32 {
    (state % 9) as u32
}

/// A token that ends an answer.
const STOP: u32 = 0;

/// The answer of a sequence alone.
fn alone(prompt: &[u32], most: usize) -> Vec<u32> {
    let (mut states, mut answer) = (Vec::new(), Vec::new());
    let mut take = |token| {
        states.push(computed(states.iter().copied(), token));
        sampled(states[states.len() - 1])
    };
    let mut last = 0;
    prompt.iter().for_each(|token| last = take(*token));
    loop {
        answer.push(last);
        if last == STOP || answer.len() == most {
            return answer;
        }
        last = take(last);
    }
}

/// A row of a step.
#[derive(Clone, Copy)]
struct Row {
    slot: usize,
    at: usize,
    /// `None`: the one sampled last.
    token: Option<u32>,
}

/// A device: positions of pages, tables, and what each slot has sampled; and the copies of pages on the host.
struct Device {
    cells: Vec<[u64; PAGE]>,
    copies: Vec<[u64; PAGE]>,
    tables: Vec<[u32; LONGEST]>,
    last: [u32; SLOTS],
    done: [bool; SLOTS],
}

impl Device {
    fn cell(&mut self, slot: usize, at: usize) -> &mut u64 {
        &mut self.cells[self.tables[slot][at / PAGE] as usize][at % PAGE]
    }

    /// Computes a row; what it comes to.
    fn run(&mut self, row: Row) -> u64 {
        let behind: Vec<u64> = (0..row.at).map(|at| *self.cell(row.slot, at)).collect();
        let state = computed(behind.into_iter(), row.token.unwrap_or(self.last[row.slot]));
        *self.cell(row.slot, row.at) = state;
        state
    }

    /// Samples behind a row. `None`: the sequence has ended; `Err`: what it saw is not a number.
    fn sample(&mut self, row: Row, state: u64, last: bool) -> Option<Result<u32, ()>> {
        if self.done[row.slot] {
            return None;
        }
        if state == NAN {
            self.done[row.slot] = true;
            return Some(Err(()));
        }
        self.last[row.slot] = sampled(state);
        self.done[row.slot] = last || self.last[row.slot] == STOP;
        Some(Ok(self.last[row.slot]))
    }
}

/// A sequence as a stage has it.
struct Sequence {
    serial: u64,
    spec: ThinkerSpec,
    held: Held,
    prefilled: usize,
    /// Tokens launched, and those that the host has heard of.
    count: usize,
    heard: Vec<u32>,
    finished: bool,
}

/// News of a step: for each sequence in it its slot, its number, and what it sampled.
type News = Vec<(usize, u64, Option<Result<u32, ()>>)>;

struct Stage {
    pages: PagedPrompts,
    device: Device,
    sequences: HashMap<usize, Sequence>,
    out: VecDeque<News>,
    serial: u64,
}

impl Stage {
    fn new(count: u32, kept: usize, host: u32) -> Stage {
        let device = Device {
            cells: vec![[0; PAGE]; count as usize],
            copies: vec![[0; PAGE]; host as usize],
            tables: vec![[0; LONGEST]; SLOTS],
            last: [0; SLOTS],
            done: [false; SLOTS],
        };
        let pages = PagedPrompts::new(count, LONGEST, BYTES, kept * BYTES).with_host(host);
        Stage { pages, device, sequences: HashMap::new(), out: VecDeque::new(), serial: 0 }
    }

    fn open(&mut self, slot: usize, spec: ThinkerSpec) {
        let held = self.pages.begin(&spec).unwrap();
        self.device.done[slot] = false;
        self.serial += 1;
        let sequence =
            Sequence { serial: self.serial, spec, held, prefilled: 0, count: 0, heard: Vec::new(), finished: false };
        assert!(self.sequences.insert(slot, sequence).is_none());
    }

    /// Advances sequences, prompts by `chunk`. `poison`: the row of that number comes to no number.
    fn launch(&mut self, slots: &[usize], chunk: usize, poison: Option<usize>) {
        let (mut prompts, mut tokens, mut queued) = (Vec::new(), Vec::new(), Vec::new());
        for &slot in slots {
            let Some(sequence) = self.sequences.get_mut(&slot) else { continue };
            let (len, most) = (sequence.spec.prompt.len(), sequence.spec.max_tokens as usize);
            if sequence.finished || sequence.count == most {
                continue;
            }
            let left = len - sequence.prefilled;
            let upto = if left > 0 { sequence.prefilled + chunk.min(left) } else { len + sequence.count };
            let available = self.pages.pages.available();
            let told = if left > 0 {
                let planned = self.pages.prompt(&mut sequence.held, &sequence.spec, upto as u32);
                if let Some(planned) = &planned {
                    let end = planned.compute.end.min(len as u32 - 1);
                    prompts.extend((planned.compute.start..end).map(|at| {
                        let at = at as usize;
                        Row { slot, at, token: Some(sequence.spec.prompt[at]) }
                    }));
                    sequence.held.computes(planned);
                    sequence.prefilled = upto;
                    queued.push(slot);
                }
                planned.map(|planned| planned.told)
            } else {
                self.pages.answer(&mut sequence.held, upto as u32)
            };
            let Some(told) = told else {
                assert_eq!(self.pages.pages.available(), available, "nothing has changed");
                let wanted = upto.div_ceil(PAGE) - sequence.held.pages().len();
                assert!(wanted > available || upto.div_ceil(PAGE) > LONGEST, "{wanted} of {available} pages");
                continue;
            };
            for place in told {
                self.device.tables[slot][place] = sequence.held.pages()[place];
            }
            if upto >= len {
                let token = (left > 0).then(|| sequence.spec.prompt[len - 1]);
                sequence.count += 1;
                tokens.push((Row { slot, at: upto - 1, token }, sequence.count == most));
            }
        }
        let restored = self.pages.to_restore();
        let pages: BTreeSet<u32> = restored.iter().map(|copy| copy.page).collect();
        assert_eq!(pages.len(), restored.len(), "a page is copied into twice");
        for HostCopy { page, slot } in restored {
            self.device.cells[page as usize] = self.device.copies[slot as usize];
        }
        let mut news = News::new();
        let rows =
            prompts.into_iter().map(|row| (row, None)).chain(tokens.into_iter().map(|(row, last)| (row, Some(last))));
        for (number, (row, samples)) in rows.enumerate() {
            self.check_write(row);
            let mut state = self.device.run(row);
            if poison == Some(number) {
                state = NAN;
                *self.device.cell(row.slot, row.at) = NAN;
            }
            if let Some(last) = samples {
                news.push((row.slot, self.sequences[&row.slot].serial, self.device.sample(row, state, last)));
            }
        }
        for slot in queued {
            let Sequence { held, spec, .. } = self.sequences.get_mut(&slot).unwrap();
            self.pages.queued(held, spec);
        }
        self.out.push_back(news);
    }

    /// A page is written by the only sequence that has it, before it is kept.
    fn check_write(&mut self, row: Row) {
        let page = self.device.tables[row.slot][row.at / PAGE];
        let users = self.sequences.values().filter(|sequence| sequence.held.pages().contains(&page)).count();
        assert_eq!(users, 1, "page {page} is written while others use it");
        assert!(!self.pages.pages.is_kept(page), "page {page} is written and kept");
        assert_eq!(self.sequences[&row.slot].held.pages()[row.at / PAGE], page, "the device has another table");
    }

    /// Hears of the oldest step; the sequences that ended with it, with what they have said unless they failed.
    fn hear(&mut self) -> Vec<(usize, Option<Vec<u32>>)> {
        let mut ended = Vec::new();
        for (slot, serial, outcome) in self.out.pop_front().into_iter().flatten() {
            let Some(sequence) = self.sequences.get_mut(&slot).filter(|sequence| sequence.serial == serial) else {
                continue;
            };
            match outcome {
                None => assert!(sequence.finished, "stale, though it has not ended"),
                Some(Ok(token)) => {
                    sequence.heard.push(token);
                    self.pages.said(&mut sequence.held, &sequence.spec, token);
                    sequence.finished = token == STOP || sequence.heard.len() == sequence.spec.max_tokens as usize;
                    if sequence.finished {
                        ended.push((slot, Some(sequence.heard.clone())));
                    }
                }
                Some(Err(())) => {
                    sequence.finished = true;
                    self.pages.failed(&mut sequence.held);
                    ended.push((slot, None));
                }
            }
        }
        ended
    }

    fn close(&mut self, slot: usize) {
        if let Some(sequence) = self.sequences.remove(&slot) {
            self.pages.end(sequence.held);
        }
        for HostCopy { page, slot } in self.pages.to_save() {
            self.device.copies[slot as usize] = self.device.cells[page as usize];
        }
    }
}

/// Prompts that begin alike more or less: whole conversations, with answers, of two owners and of none.
fn family(number: u32) -> ThinkerSpec {
    let (owner, text, len, turns) = (number % 3, number / 3 % 2, 5 + number * 7 % 14, number / 6 % 3);
    let most = 1 + number * 5 % 9;
    let mut prompt: Vec<u32> = (0..len).map(|at| 1 + at * 5 % 11 + text).collect();
    for turn in 0..turns {
        let answer = alone(&prompt, most as usize);
        prompt.extend(answer.into_iter().filter(|token| *token != STOP));
        prompt.extend((0..3 + turn).map(|at| 20 + at));
    }
    prompt.truncate(LONGEST * PAGE - 10);
    ThinkerSpec { max_tokens: most, ..spec(prompt, owner as u8) }
}

#[derive(Clone, Debug)]
enum Move {
    Open(usize, u32),
    Launch(Vec<usize>, usize, Option<usize>),
    Hear,
    Cancel(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let slots = prop::collection::btree_set(0..SLOTS, 1..=SLOTS).prop_map(|slots| slots.into_iter().collect());
    // Not a number, once in a while.
    let poison = prop_oneof![12 => Just(None), 1 => (0usize..40).prop_map(Some)];
    let one = prop_oneof![
        4 => (0..SLOTS, 0u32..18).prop_map(|(slot, number)| Move::Open(slot, number)),
        8 => (slots, 1usize..50, poison).prop_map(|(slots, chunk, poison)| Move::Launch(slots, chunk, poison)),
        6 => Just(Move::Hear),
        1 => (0..SLOTS).prop_map(Move::Cancel),
    ];
    prop::collection::vec(one, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any sequences, cut anyhow, launched ahead, cancelled, failing, in any number of pages.
    #[test]
    fn sequences_that_share_pages_say_what_they_say_alone(
        moves in moves(), count in 5u32..24, kept in 0usize..12, host in 0u32..30,
    ) {
        let mut stage = Stage::new(count, kept, host);
        for step in moves {
            match step {
                Move::Open(slot, number) if !stage.sequences.contains_key(&slot) => stage.open(slot, family(number)),
                Move::Launch(slots, chunk, poison) if stage.out.len() < AHEAD => stage.launch(&slots, chunk, poison),
                Move::Open(..) | Move::Launch(..) | Move::Hear => {
                    for (slot, end) in stage.hear() {
                        if let Some(said) = end {
                            let spec = &stage.sequences[&slot].spec;
                            prop_assert_eq!(said, alone(&spec.prompt, spec.max_tokens as usize));
                        }
                        stage.close(slot);
                    }
                }
                Move::Cancel(slot) => stage.close(slot),
            }
            prop_assert!(stage.pages.idle() <= kept);
        }
        let slots: Vec<usize> = stage.sequences.keys().copied().collect();
        slots.into_iter().for_each(|slot| stage.close(slot));
        prop_assert_eq!(stage.pages.count().0, 0, "pages of sequences that are gone");
    }
}
