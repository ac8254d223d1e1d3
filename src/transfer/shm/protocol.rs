//! Every interleaving of the sleeping protocol: a producer and a consumer, each with a store buffer, as the processor
//! may delay what they write. A state in which neither side can move before all is done is a wake-up that got lost.

use std::collections::HashSet;

const FRAMES: u8 = 3;

/// The words that both sides share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Tail,
    Head,
    ConsumerSleeps,
    ProducerWants,
}

/// Where a side is in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Look,
    SaySleep,
    SleepFence,
    LookAgain,
    Wait,
    TakeBackSleep,
    Move,
    MoveFence,
    LookForSleeper,
    Wake,
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Side {
    at: At,
    /// Frames pushed, or popped and given back.
    count: u8,
    buffer: Vec<(Word, u8)>,
    /// The other side rang.
    bell: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    memory: [u8; 4],
    sides: [Side; 2],
}

const PRODUCER: usize = 0;
const CONSUMER: usize = 1;

#[derive(Clone, Copy)]
struct Rules {
    capacity: u8,
    fences: bool,
    looks_again: bool,
}

impl State {
    fn start() -> State {
        let side = Side { at: At::Look, count: 0, buffer: Vec::new(), bell: false };
        State { memory: [0; 4], sides: [side.clone(), side] }
    }

    fn read(&self, who: usize, word: Word) -> u8 {
        let own = self.sides[who].buffer.iter().rev().find(|(written, _)| *written == word);
        own.map_or(self.memory[word as usize], |(_, value)| *value)
    }

    /// Whether this side can go on, as far as it sees.
    fn ready(&self, who: usize, rules: Rules) -> bool {
        let count = self.sides[who].count;
        match who {
            PRODUCER => count - self.read(who, Word::Head) < rules.capacity,
            _ => self.read(who, Word::Tail) > count,
        }
    }

    /// The state after the next instruction of a side; `None` if it cannot run now.
    fn step(&self, who: usize, rules: Rules) -> Option<State> {
        let mut next = self.clone();
        let (own_word, sleep_word, other_sleep) = match who {
            PRODUCER => (Word::Tail, Word::ProducerWants, Word::ConsumerSleeps),
            _ => (Word::Head, Word::ConsumerSleeps, Word::ProducerWants),
        };
        let count = self.sides[who].count;
        let wish = if who == PRODUCER { (count + 1).saturating_sub(rules.capacity) } else { 1 };
        let mut slept = false;
        let side = &mut next.sides[who];
        let fenced = |side: &Side| !rules.fences || side.buffer.is_empty();
        side.at = match side.at {
            At::Look if self.ready(who, rules) => At::Move,
            At::Look => At::SaySleep,
            At::SaySleep => {
                side.buffer.push((sleep_word, wish));
                At::SleepFence
            }
            At::SleepFence if !fenced(side) => return None,
            At::SleepFence if rules.looks_again => At::LookAgain,
            At::SleepFence => At::Wait,
            At::LookAgain if self.ready(who, rules) => At::TakeBackSleep,
            At::LookAgain => At::Wait,
            At::Wait if !side.bell => return None,
            At::Wait => {
                side.bell = false;
                At::Look
            }
            At::TakeBackSleep => {
                side.buffer.push((sleep_word, 0));
                At::Move
            }
            At::Move => {
                side.count += 1;
                side.buffer.push((own_word, side.count));
                At::MoveFence
            }
            At::MoveFence if !fenced(side) => return None,
            At::MoveFence => At::LookForSleeper,
            At::LookForSleeper => {
                let wanted = self.read(who, other_sleep);
                let wake = wanted != 0 && (who == PRODUCER || count >= wanted);
                match (wake, count == FRAMES) {
                    (true, _) => At::Wake,
                    (false, true) => At::Done,
                    (false, false) => At::Look,
                }
            }
            // The exchange is one instruction, after what was written before it.
            At::Wake if !side.buffer.is_empty() => return None,
            At::Wake => {
                slept = std::mem::take(&mut next.memory[other_sleep as usize]) != 0;
                if count == FRAMES { At::Done } else { At::Look }
            }
            At::Done => return None,
        };
        next.sides[1 - who].bell |= slept;
        Some(next)
    }

    /// The state after the oldest write of a side has reached the memory.
    fn drain(&self, who: usize) -> Option<State> {
        let mut next = self.clone();
        if next.sides[who].buffer.is_empty() {
            return None;
        }
        let (word, value) = next.sides[who].buffer.remove(0);
        next.memory[word as usize] = value;
        Some(next)
    }
}

/// The number of states, or one in which both sides sleep.
fn explore(rules: Rules) -> Result<usize, State> {
    let mut seen = HashSet::from([State::start()]);
    let mut open = vec![State::start()];
    while let Some(state) = open.pop() {
        let mut moved = false;
        for who in [PRODUCER, CONSUMER] {
            for next in [state.step(who, rules), state.drain(who)].into_iter().flatten() {
                moved = true;
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        if !moved && state.sides.iter().any(|side| side.at != At::Done) {
            return Err(state);
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_loses_a_wake_up() {
    for capacity in 1..=3 {
        let states = explore(Rules { capacity, fences: true, looks_again: true });
        assert!(states.expect("a state in which both sleep") > 500);
    }
}

#[test]
fn without_the_fences_or_the_second_look_a_wake_up_gets_lost() {
    assert!(explore(Rules { capacity: 1, fences: false, looks_again: true }).is_err());
    assert!(explore(Rules { capacity: 1, fences: true, looks_again: false }).is_err());
}
