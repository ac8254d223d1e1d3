//! The vocoder stage: one stateful stream per sequence.
//!
//! A sequence with a context takes it in first, in pieces of the length that the scheduler plans, so that a long
//! reference does not delay other sequences. The state behind a reference is kept: a sequence whose voice was used
//! before starts at once, with the same bits.

use crate::error::not_open;
use crate::stage::{
    DeviceTimes, Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
};
use crate::vocoder::{Context, Contexts, Stream, Vocoder};
use crate::{LoadError, ModelError};
use omni_core::ids::{FinishReason, Slot};
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
        Ok(Box::new(VocoderStage { net: self.net.clone(), sequences: HashMap::new(), contexts }))
    }
}

/// Sequences of the vocoder. Units are frames; each step emits the samples of the frames that it consumed.
pub struct VocoderStage {
    net: Arc<Vocoder>,
    sequences: HashMap<Slot, Sequence>,
    contexts: Contexts,
}

struct Sequence {
    phase: Phase,
    /// Codes of frames that have not been decoded, all of them in range.
    waiting: VecDeque<u32>,
    ended: bool,
    finished: bool,
}

/// What a sequence's next units are.
enum Phase {
    /// Frames of its context; so many are done.
    Context(Rc<RefCell<Context>>, u32),
    /// Frames of its own.
    Speech(Stream),
}

impl StageModel for VocoderStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Vocoder(spec) = spec else {
            return Err(ModelError::Sequence(format!("{slot}: the vocoder cannot open {spec:?}")));
        };
        if self.sequences.contains_key(&slot) {
            return Err(ModelError::Sequence(format!("{slot} is open already")));
        }
        let goes_on = spec.goes_on;
        let phase = match spec.context.filter(|codes| !codes.is_empty()) {
            Some(codes) => {
                self.net.check(&codes).map_err(|reason| ModelError::Sequence(format!("{slot}: context: {reason}")))?;
                let context = if goes_on {
                    Rc::new(RefCell::new(Context::alone(&self.net, codes)?))
                } else {
                    self.contexts.get(&self.net, &codes)?
                };
                Phase::Context(context, 0)
            }
            None => Phase::Speech(self.net.stream()?),
        };
        self.sequences.insert(slot, Sequence { phase, waiting: VecDeque::new(), ended: false, finished: false });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.ended {
            return Err(ModelError::Sequence(format!("{slot}: frames after the end of the stream")));
        }
        if let Some(input) = input {
            sequence.waiting.extend(input.into_codes(slot, self.net.config())?);
        }
        sequence.ended = end;
        Ok(())
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        // Streams one after the other: their products are large enough to fill a CPU's pipes alone.
        let mut clock = PhaseClock::start();
        let sequences = sequences.iter().map(|work| self.advance(*work)).collect::<Result<_, _>>()?;
        clock.lap(telemetry::Phase::Vocoder);
        Ok(Launched::Done(StepOutcome { sequences, times: DeviceTimes { total: None, phases: clock.phases() } }))
    }

    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl VocoderStage {
    /// The outer error is the device's, the inner one the sequence's.
    fn advance(&mut self, work: SequenceWork) -> Result<Result<SequenceOutput, ModelError>, ModelError> {
        let Some(sequence) = self.sequences.get_mut(&work.slot) else { return Ok(Err(not_open(work.slot))) };
        if sequence.finished {
            return Ok(Ok(SequenceOutput { stale: true, ..SequenceOutput::default() }));
        }
        let stream = match &mut sequence.phase {
            Phase::Context(context, done) => {
                let frames = context.borrow().frames(&self.net) as u32;
                let left = frames - *done;
                if work.advance == 0 || work.advance > left {
                    let text = format!("{}: asked for {} of {left} frames of the context", work.slot, work.advance);
                    return Ok(Err(ModelError::Sequence(text)));
                }
                *done += work.advance;
                context.borrow_mut().reach(&self.net, *done as usize)?;
                if *done == frames {
                    let stream = context.borrow().fork()?;
                    sequence.phase = Phase::Speech(stream);
                }
                return Ok(Ok(SequenceOutput::default()));
            }
            Phase::Speech(stream) => stream,
        };
        let want = work.advance as usize * self.net.config().num_quantizers;
        if want > sequence.waiting.len() {
            let have = sequence.waiting.len() / self.net.config().num_quantizers;
            let text = format!("{}: asked for {} frames, {have} are there", work.slot, work.advance);
            return Ok(Err(ModelError::Sequence(text)));
        }
        let codes: Vec<u32> = sequence.waiting.drain(..want).collect();
        let samples = self.net.decode(stream, &codes)?;
        sequence.finished = sequence.ended && sequence.waiting.is_empty();
        Ok(Ok(SequenceOutput {
            finish: sequence.finished.then_some(FinishReason::Stop),
            emit: if samples.is_empty() { None } else { Some(StageData::Audio(samples)) },
            ..SequenceOutput::default()
        }))
    }
}
