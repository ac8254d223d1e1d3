//! The vocoder stage: one stateful stream per row.

use super::not_open;
use crate::ids::Slot;
use crate::model::stage::{Emit, Finish, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel};
use crate::model::vocoder::{Stream, Vocoder};
use crate::model::{LoadError, ModelError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

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
        Ok(Box::new(VocoderStage { net: self.net.clone(), rows: HashMap::new() }))
    }
}

/// Rows of the vocoder. Units are frames; each step emits the samples of the frames that it consumed.
pub struct VocoderStage {
    net: Arc<Vocoder>,
    rows: HashMap<Slot, Row>,
}

struct Row {
    stream: Stream,
    /// Codes of frames that have not been decoded, all of them in range.
    waiting: VecDeque<u32>,
    ended: bool,
    finished: bool,
}

impl StageModel for VocoderStage {
    fn open(&mut self, slot: Slot, spec: RowSpec) -> Result<(), ModelError> {
        let RowSpec::Vocoder = spec else {
            return Err(ModelError::Row(format!("{slot}: the vocoder cannot open {spec:?}")));
        };
        if self.rows.contains_key(&slot) {
            return Err(ModelError::Row(format!("{slot} is open already")));
        }
        let stream = self.net.stream()?;
        self.rows.insert(slot, Row { stream, waiting: VecDeque::new(), ended: false, finished: false });
        Ok(())
    }

    fn feed(&mut self, slot: Slot, input: RowInput, end: bool) -> Result<(), ModelError> {
        let row = self.rows.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if row.ended {
            return Err(ModelError::Row(format!("{slot}: frames after the end of the stream")));
        }
        match input {
            RowInput::Codes(codes) => {
                let config = self.net.config();
                if !codes.len().is_multiple_of(config.num_quantizers) {
                    let (have, want) = (codes.len(), config.num_quantizers);
                    return Err(ModelError::Row(format!("{slot}: {have} codes are no whole frames of {want}")));
                }
                if let Some(code) = codes.iter().find(|c| **c as usize >= config.codebook_size) {
                    let size = config.codebook_size;
                    return Err(ModelError::Row(format!("{slot}: code {code} is outside the codebook of {size}")));
                }
                row.waiting.extend(codes);
            }
            RowInput::Nothing => {}
            RowInput::Tokens(_) | RowInput::Rows(_) => {
                return Err(ModelError::Row(format!("{slot}: the vocoder takes codes only")));
            }
        }
        row.ended = end;
        Ok(())
    }

    fn step(&mut self, rows: &[RowWork]) -> Result<Vec<Result<RowOutput, ModelError>>, ModelError> {
        // Streams one after the other: their products are large enough to fill a CPU's pipes alone.
        rows.iter().map(|work| self.advance(*work)).collect()
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
        let want = work.advance as usize * self.net.config().num_quantizers;
        if want > row.waiting.len() {
            let have = row.waiting.len() / self.net.config().num_quantizers;
            let text = format!("{}: asked for {} frames, {have} are there", work.slot, work.advance);
            return Ok(Err(ModelError::Row(text)));
        }
        let codes: Vec<u32> = row.waiting.drain(..want).collect();
        let samples = self.net.decode(&mut row.stream, &codes)?;
        row.finished = row.ended && row.waiting.is_empty();
        Ok(Ok(RowOutput {
            finish: row.finished.then_some(Finish::Stop),
            emit: if samples.is_empty() { Emit::None } else { Emit::Audio(samples) },
            ..RowOutput::default()
        }))
    }
}
