//! The vocoder stage: one stateful stream per row.
//!
//! A row with a context takes that in first, in pieces as long as the scheduler says, so that a long reference does not
//! make others wait. The state behind a reference is kept: rows of a voice that was used before start at once, with the
//! same bits.

use crate::error::not_open;
use crate::stage::{
    DeviceTimes, Emit, Finish, Launched, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel, StepOutcome,
};
use crate::vocoder::{Context, Contexts, Stream, Vocoder};
use crate::{LoadError, ModelError};
use omni_core::ids::Slot;
use omni_telemetry::{self as telemetry, PhaseClock};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// Memory for the states behind references: some 25 voices at the sizes of the real models.
const CONTEXT_BYTES: usize = 256 << 20;

/// Makes [`VocoderStage`]s that share one net.
pub struct VocoderFactory {
    net: Arc<Vocoder>,
}

impl VocoderFactory {
    /// For a loaded net.
    pub fn new(net: Arc<Vocoder>) -> VocoderFactory {
        VocoderFactory { net }
    }
}

impl StageFactory for VocoderFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        let contexts = Contexts::new(CONTEXT_BYTES);
        Ok(Box::new(VocoderStage { net: self.net.clone(), rows: HashMap::new(), contexts }))
    }
}

/// Rows of the vocoder. Units are frames; each step emits the samples of the frames that it consumed.
pub struct VocoderStage {
    net: Arc<Vocoder>,
    rows: HashMap<Slot, Row>,
    contexts: Contexts,
}

struct Row {
    phase: Phase,
    /// Codes of frames that have not been decoded, all of them in range.
    waiting: VecDeque<u32>,
    ended: bool,
    finished: bool,
}

/// What a row's next units are.
enum Phase {
    /// Frames of its context, of which it has had so many.
    Context(Rc<RefCell<Context>>, u32),
    /// Frames of its own.
    Speech(Stream),
}

impl StageModel for VocoderStage {
    fn open(&mut self, slot: Slot, spec: RowSpec) -> Result<(), ModelError> {
        let RowSpec::Vocoder(spec) = spec else {
            return Err(ModelError::Row(format!("{slot}: the vocoder cannot open {spec:?}")));
        };
        if self.rows.contains_key(&slot) {
            return Err(ModelError::Row(format!("{slot} is open already")));
        }
        let goes_on = spec.goes_on;
        let phase = match spec.context.filter(|codes| !codes.is_empty()) {
            Some(codes) => {
                self.net.check(&codes).map_err(|reason| ModelError::Row(format!("{slot}: context: {reason}")))?;
                let context = if goes_on {
                    Rc::new(RefCell::new(Context::alone(&self.net, codes)?))
                } else {
                    self.contexts.get(&self.net, &codes)?
                };
                Phase::Context(context, 0)
            }
            None => Phase::Speech(self.net.stream()?),
        };
        self.rows.insert(slot, Row { phase, waiting: VecDeque::new(), ended: false, finished: false });
        Ok(())
    }

    fn feed(&mut self, slot: Slot, input: RowInput, end: bool) -> Result<(), ModelError> {
        let row = self.rows.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if row.ended {
            return Err(ModelError::Row(format!("{slot}: frames after the end of the stream")));
        }
        row.waiting.extend(input.into_codes(slot, self.net.config())?);
        row.ended = end;
        Ok(())
    }

    fn launch(&mut self, rows: &[RowWork]) -> Result<Launched, ModelError> {
        // Streams one after the other: their products are large enough to fill a CPU's pipes alone.
        let mut clock = PhaseClock::start();
        let rows = rows.iter().map(|work| self.advance(*work)).collect::<Result<_, _>>()?;
        clock.lap(telemetry::Phase::Vocoder);
        Ok(Launched::Done(StepOutcome { rows, times: DeviceTimes { total: None, phases: clock.phases() } }))
    }

    fn close(&mut self, slot: Slot) {
        self.rows.remove(&slot);
    }

    fn live_rows(&self) -> usize {
        self.rows.len()
    }
}

impl VocoderStage {
    /// The outer error is the device's, the inner one the row's.
    fn advance(&mut self, work: RowWork) -> Result<Result<RowOutput, ModelError>, ModelError> {
        let Some(row) = self.rows.get_mut(&work.slot) else { return Ok(Err(not_open(work.slot))) };
        if row.finished {
            return Ok(Ok(RowOutput { stale: true, ..RowOutput::default() }));
        }
        let stream = match &mut row.phase {
            Phase::Context(context, done) => {
                let frames = context.borrow().frames(&self.net) as u32;
                let left = frames - *done;
                if work.advance == 0 || work.advance > left {
                    let text = format!("{}: asked for {} of {left} frames of the context", work.slot, work.advance);
                    return Ok(Err(ModelError::Row(text)));
                }
                *done += work.advance;
                context.borrow_mut().reach(&self.net, *done as usize)?;
                if *done == frames {
                    let stream = context.borrow().fork()?;
                    row.phase = Phase::Speech(stream);
                }
                return Ok(Ok(RowOutput::default()));
            }
            Phase::Speech(stream) => stream,
        };
        let want = work.advance as usize * self.net.config().num_quantizers;
        if want > row.waiting.len() {
            let have = row.waiting.len() / self.net.config().num_quantizers;
            let text = format!("{}: asked for {} frames, {have} are there", work.slot, work.advance);
            return Ok(Err(ModelError::Row(text)));
        }
        let codes: Vec<u32> = row.waiting.drain(..want).collect();
        let samples = self.net.decode(stream, &codes)?;
        row.finished = row.ended && row.waiting.is_empty();
        Ok(Ok(RowOutput {
            finish: row.finished.then_some(Finish::Stop),
            emit: if samples.is_empty() { Emit::None } else { Emit::Audio(samples) },
            ..RowOutput::default()
        }))
    }
}
