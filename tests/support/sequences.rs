//! Sequences driven through the stage trait, one step at a time.
#![allow(dead_code, clippy::unwrap_used, reason = "every user needs a part of this")]

use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::model::ModelError;
use omni_actors::model::stage::{SequenceOutput, SequenceSpec, SequenceWork, StageData, StageModel, TalkerSpec};

pub fn step(stage: &mut dyn StageModel, slot: u32, advance: u32) -> SequenceOutput {
    step_sequence(stage, slot, advance).unwrap()
}

pub fn step_sequence(stage: &mut dyn StageModel, slot: u32, advance: u32) -> Result<SequenceOutput, ModelError> {
    stage.step(&[SequenceWork { slot: Slot(slot), advance }]).unwrap().remove(0)
}

/// A talker sequence that is fed its whole input at once, its prompt in pieces of `chunk`; codes and why it ended.
pub fn speak(
    stage: &mut dyn StageModel,
    slot: u32,
    sequence: &TalkerSpec,
    input: Option<StageData>,
    chunk: u32,
) -> (Vec<Vec<u32>>, Option<FinishReason>) {
    stage.open(Slot(slot), SequenceSpec::Talker(sequence.clone())).unwrap();
    stage.push_input(Slot(slot), input, true).unwrap();
    let (mut frames, mut left) = (vec![], sequence.prefill_positions());
    loop {
        let advance = if left > 0 { chunk.min(left) } else { 1 };
        left -= advance.min(left);
        let output = step(stage, slot, advance);
        if let Some(StageData::Codes(codes)) = &output.emit {
            frames.push(codes.clone());
        }
        if output.finish.is_some() {
            return (frames, output.finish);
        }
    }
}
