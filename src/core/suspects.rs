//! Which request brings its stage down, told from failures that only happened to meet it.
//!
//! A failure *concerns* the sequences that the failing actor had in hand. They become suspects: the stage gets them
//! again, and each runs alone in its steps until it has passed the unit at which the stage failed. A request is *guilty*
//! after [`TRIES`] failures at one place and for one reason, the last of which concerned no other suspect; or after
//! [`TRIES_IN_ALL`] for several reasons. So it ends after at most two failures more than the first, and faults that come
//! from elsewhere end no request unless the same one meets the same request three times at the same unit.
//!
//! Where a failure concerns several suspects, as that of a process may, the stage gets them again one at a time: the next
//! one when the one before has passed its unit, or has had its time.
//!
//! Two requests that only fail together both get through alone. When they fail again as soon as they run with others,
//! they stay alone for longer.
//!
//! A stage may be taken for hung only because the machine is busy, where its watchdog is short or it had no processor for
//! most of the time: such a failure ends no request.
//!
//! Which failures count against the stage:
//!
//! - one that concerns no request, or requests that were not suspected before, counts, and so does one that may be the
//!   machine's;
//! - one that concerns a single suspect does not, for it is a trial of that suspect;
//! - a request that is found guilty counts once, however often it failed, and not at all if it asked for the same as one
//!   that counts already;
//! - that once is excused as soon as another sequence makes a unit.
//!
//! So one request, sent again and again, never makes a stage be given up, and a stage that fails for everybody is.

use crate::ids::{Content, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// Failures at one place that make a request guilty.
pub const TRIES: u32 = 3;
/// The same for failures that differ in what was seen.
pub const TRIES_IN_ALL: u32 = 8;
/// Units behind the unit of a failure that are still the same place: what a stage launches ahead of a unit differs from
/// one attempt to the next.
const NEAR: u32 = 4;
/// Units within which a request that runs with others again must fail to have relapsed.
const SOON: u32 = 16;
/// Units that it stays alone for after its first relapse; eight times as many after each further one.
const LONGER: u32 = 16;
/// Looks ([`Suspects::look`]) for which one suspect keeps others waiting.
const PATIENCE: u32 = 4;
/// Contents of requests that did not get through, kept to recognize them when they come again.
const REMEMBERED: usize = 64;

/// A sequence that a failing actor had in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concerned {
    /// Whose.
    pub request: RequestId,
    /// What the request asks for.
    pub content: Content,
    /// The unit of its output at which it was.
    pub unit: u32,
}

/// What a failure means for the requests of its stage, and for the stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The request that is found guilty, and how often it failed.
    pub guilty: Option<(RequestId, u32)>,
    /// Whether the failure counts against the stage.
    pub attribution: Attribution,
}

/// How a failure counts against its stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// Which failure of the stage this is, from 0.
    pub number: u64,
    /// Whether it counts.
    pub counts: bool,
    /// Earlier failures that counted and do not any more.
    pub excused: Vec<u64>,
}

impl Default for Attribution {
    /// A failure of which no more is known.
    fn default() -> Attribution {
        Attribution { number: 0, counts: true, excused: Vec::new() }
    }
}

#[derive(Clone, Debug)]
struct Suspect {
    content: Content,
    /// The unit at which its stage failed.
    unit: u32,
    failures: u32,
    /// How many of the latest were for one reason, and which.
    alike: (u32, u64),
    /// The failures of it that count against the stage.
    counted: Vec<u64>,
    /// It has passed the place: with so many units it was no suspect any more.
    passed: Option<u32>,
    /// How often it failed again soon after it had passed.
    relapses: u32,
    /// The stage, as it is up now, has got it.
    entered: bool,
    /// It keeps no other waiting any more.
    through: bool,
}

impl Suspect {
    /// A suspect that has passed nothing yet.
    fn new(content: Content, unit: u32, counted: Option<u64>) -> Suspect {
        let (failures, passed, relapses, entered, through) = (0, None, 0, false, false);
        let alike = (0, 0);
        Suspect {
            content,
            unit,
            failures,
            alike,
            counted: counted.into_iter().collect(),
            passed,
            relapses,
            entered,
            through,
        }
    }

    /// It has failed for this reason; `None`: perhaps the machine's.
    fn fails(&mut self, cause: Option<u64>) {
        let Some(cause) = cause else { return };
        self.failures += 1;
        self.alike = if self.alike.1 == cause { (self.alike.0 + 1, cause) } else { (1, cause) };
    }

    /// It has failed often enough.
    fn is_guilty(&self) -> bool {
        self.alike.0 >= TRIES || self.failures >= TRIES_IN_ALL
    }

    /// It fails again where it failed before, or next to that.
    fn fails_again_at(&self, unit: u32) -> bool {
        self.passed.is_none() && unit <= self.unit.saturating_add(NEAR)
    }

    /// The unit up to which it runs alone.
    fn alone(&self) -> Option<u32> {
        let longer = match self.relapses {
            0 => 0,
            relapses => LONGER.saturating_mul(8u32.saturating_pow(relapses - 1)),
        };
        self.passed.is_none().then_some(self.unit.saturating_add(longer))
    }
}

/// What is remembered of a request that did not get through.
#[derive(Clone, Copy, Debug)]
struct Record {
    content: Content,
    unit: u32,
    cause: u64,
}

/// A request that counts against the stage.
#[derive(Clone, Copy, Debug)]
struct Mark {
    content: Content,
    /// The failure that stands for it.
    number: u64,
    /// It was found guilty; if not, it left before.
    guilty: bool,
}

/// The suspects of one stage.
#[derive(Debug, Default)]
pub struct Suspects {
    /// Failures so far.
    failures: u64,
    /// Suspects enter one at a time, and for how many looks the first of them has been waited for.
    one_by_one: Option<u32>,
    suspects: BTreeMap<RequestId, Suspect>,
    /// Requests that did not get through, the latest last.
    records: VecDeque<Record>,
    /// Requests that count against the stage, until another sequence makes a unit.
    marks: Vec<Mark>,
    excused: Vec<u64>,
}

impl Suspects {
    /// The stage has failed, and these sequences were in the hands of the actor that failed. `cause` is a number for what
    /// was seen; `None`: the actor may only have been slow, so the failure is no reason to end any of them.
    pub fn failed(&mut self, concerned: &[Concerned], cause: Option<u64>) -> Judgement {
        self.failed_beside(concerned, cause, |_| false)
    }

    /// The same where the stage has other replicas, with which these sequences stay.
    pub fn failed_beside(
        &mut self,
        concerned: &[Concerned],
        cause: Option<u64>,
        stays: impl Fn(RequestId) -> bool,
    ) -> Judgement {
        let number = self.failures;
        self.failures += 1;
        let again = |one: &&Concerned| {
            let suspect = self.suspects.get(&one.request);
            suspect.is_some_and(|suspect| suspect.fails_again_at(one.unit))
        };
        let is_there = |one: &&Concerned| self.suspects.get(&one.request).is_some_and(|known| one.unit <= known.unit);
        // Others have come further than the place at which they were suspected, or were not suspected.
        let there: Vec<RequestId> = concerned.iter().filter(again).filter(is_there).map(|one| one.request).collect();
        let only = match (&there[..], concerned) {
            ([only], _) => Some(*only),
            ([], [only]) if again(&only) => Some(only.request),
            _ => None,
        };
        // A failure with one suspect is that suspect's, and one with a request that asks for the same as a suspect is a
        // trial as well. Any other is the stage's for now.
        let known = there.is_empty() && concerned.iter().any(|one| self.known(one.content).is_some());
        let mut counts = cause.is_none() || only.is_none() && !known;
        if there.len() > 1 {
            self.one_by_one = Some(0);
        }
        self.suspects.iter_mut().for_each(|(request, suspect)| suspect.entered &= stays(*request));
        for one in concerned {
            let Concerned { request, content, unit } = *one;
            let counted = counts.then_some(number);
            match self.suspects.get_mut(&request).filter(|suspect| suspect.fails_again_at(unit)) {
                // It has come further.
                Some(suspect) if only.is_some_and(|only| only != request) && unit > suspect.unit => {}
                Some(suspect) => {
                    suspect.fails(cause);
                    // One that came through alone may fail only together with another.
                    suspect.relapses += u32::from(unit > suspect.unit && only.is_none());
                    suspect.unit = suspect.unit.max(unit);
                    suspect.through = false;
                    suspect.counted.extend(counted);
                }
                None => {
                    let soon = |before: &&Suspect| before.passed.is_none_or(|at| unit <= at.saturating_add(SOON));
                    let relapses = self.suspects.get(&request).filter(soon).map_or(0, |before| before.relapses + 1);
                    let mut new = Suspect { relapses, ..Suspect::new(content, unit, counted) };
                    new.fails(cause);
                    self.suspects.insert(request, new);
                }
            }
        }
        let mut guilty = None;
        if let Some(request) = only
            && self.suspects.get(&request).is_some_and(Suspect::is_guilty)
            && let Some(suspect) = self.suspects.remove(&request)
        {
            guilty = Some((request, suspect.failures));
            counts = self.stands_for(&suspect, number, true);
        }
        let excused = std::mem::take(&mut self.excused);
        Judgement { guilty, attribution: Attribution { number, counts, excused } }
    }

    /// A request came. One that asks for the same as one that did not get through is a suspect from its first unit on.
    pub fn came(&mut self, request: RequestId, content: Content) {
        if let Some((unit, cause)) = self.known(content) {
            let mut suspect = Suspect::new(content, unit, None);
            suspect.fails(Some(cause));
            self.suspects.insert(request, suspect);
        }
    }

    /// The stage has made `units` units of a request in all; `all`: and needs to make no more.
    pub fn made(&mut self, request: RequestId, units: u32, all: bool) {
        self.excused.extend(self.marks.drain(..).map(|mark| mark.number));
        let Some(suspect) = self.suspects.get_mut(&request) else { return };
        if units > suspect.unit && !suspect.through {
            suspect.through = true;
            self.one_by_one = self.one_by_one.map(|_| 0);
        }
        let place = suspect.alone().map(|unit| unit.max(suspect.unit.saturating_add(NEAR)));
        if place.is_some_and(|unit| all || units > unit) {
            suspect.passed = Some(units);
            let content = suspect.content;
            self.records.retain(|record| record.content != content);
        }
        if all {
            self.suspects.remove(&request);
        }
    }

    /// Whether the stage may get a request now; if so, it has it.
    pub fn may_enter(&mut self, request: RequestId) -> bool {
        let is_first = self.first() == Some(request);
        let Some(suspect) = self.suspects.get_mut(&request).filter(|suspect| suspect.passed.is_none()) else {
            return true;
        };
        suspect.entered |= self.one_by_one.is_none() || suspect.through || is_first;
        suspect.entered
    }

    /// The suspect that waited until now and is to enter.
    pub fn next_to_enter(&mut self) -> Option<RequestId> {
        self.one_by_one?;
        let Some(first) = self.first() else {
            let waiting = self.waiting();
            if waiting.is_none() {
                self.one_by_one = None;
            }
            return waiting;
        };
        self.suspects.get(&first).is_some_and(|suspect| !suspect.entered).then_some(first)
    }

    /// To be called from time to time: bounds how long a request is waited for.
    pub fn look(&mut self) {
        let Some(looks) = self.one_by_one else { return };
        self.one_by_one = Some(looks + 1);
        if looks >= PATIENCE
            && let Some(first) = self.first()
            && let Some(suspect) = self.suspects.get_mut(&first)
        {
            suspect.through = true;
            self.one_by_one = Some(0);
        }
    }

    /// The suspect that goes before all others.
    fn first(&self) -> Option<RequestId> {
        let waits = self.suspects.iter().filter(|(_, suspect)| suspect.passed.is_none() && !suspect.through);
        waits.min_by_key(|(request, suspect)| (suspect.failures, **request)).map(|(request, _)| *request)
    }

    /// A suspect that has not entered.
    fn waiting(&self) -> Option<RequestId> {
        let waits = |suspect: &&Suspect| suspect.passed.is_none() && !suspect.entered;
        self.suspects.iter().find(|(_, suspect)| waits(suspect)).map(|(request, _)| *request)
    }

    /// Nothing is to be told to [`Suspects::made`].
    pub fn is_idle(&self) -> bool {
        self.suspects.is_empty() && self.marks.is_empty()
    }

    /// The request is gone. Of a suspect it is not known whether it would have got through, so it is recognized when it
    /// comes again.
    pub fn gone(&mut self, request: RequestId) {
        let Some(suspect) = self.suspects.remove(&request).filter(|suspect| suspect.passed.is_none()) else { return };
        self.stands_for(&suspect, self.failures, false);
    }

    /// The unit that a suspect must pass alone.
    pub fn alone(&self, request: RequestId) -> Option<u32> {
        self.suspects.get(&request).and_then(Suspect::alone)
    }

    /// How often a request failed at the place where it is; 0 for one that is not suspected. Those that failed less often
    /// go first.
    pub fn failures_of(&self, request: RequestId) -> u32 {
        let suspect = self.suspects.get(&request).filter(|suspect| suspect.passed.is_none());
        suspect.map_or(0, |suspect| suspect.failures)
    }

    /// Where a suspect fails that asks for this, or a request did that did not get through.
    fn known(&self, content: Content) -> Option<(u32, u64)> {
        let asks = |suspect: &&Suspect| suspect.content == content && suspect.passed.is_none();
        let running = self.suspects.values().filter(asks).map(|suspect| (suspect.unit, suspect.alike.1));
        let gone = self.records.iter().filter(|record| record.content == content);
        let gone = gone.map(|record| (record.unit, record.cause));
        running.chain(gone).max()
    }

    /// Remembers a request that did not get through, for which one failure counts until another sequence makes a unit:
    /// the first one that met it, if that stands for no other guilty request. Whether it is the failure `number` that
    /// counts, beside those that did already.
    fn stands_for(&mut self, suspect: &Suspect, number: u64, guilty: bool) -> bool {
        let content = suspect.content;
        self.remember(suspect);
        let is_taken = |number: &u64| self.marks.iter().any(|mark| mark.number == *number && mark.guilty);
        let mut own: VecDeque<u64> = suspect.counted.iter().copied().filter(|number| !is_taken(number)).collect();
        if self.marks.iter().any(|mark| mark.content == content) {
            self.excused.extend(own);
            return false;
        }
        let first = own.pop_front();
        // Requests that left are less likely to be the cause.
        self.marks.retain(|mark| !guilty || Some(mark.number) != first);
        if guilty || first.is_some_and(|first| self.marks.iter().all(|mark| mark.number != first)) {
            self.marks.push(Mark { content, number: first.unwrap_or(number), guilty });
        }
        self.excused.extend(own);
        guilty && first.is_none()
    }

    fn remember(&mut self, suspect: &Suspect) {
        let Suspect { content, unit, alike: (_, cause), .. } = *suspect;
        self.records.retain(|record| record.content != content);
        self.records.push_back(Record { content, unit, cause });
        if self.records.len() > REMEMBERED {
            self.records.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
