//! Rows driven through the stage trait, one step at a time.
#![allow(dead_code, clippy::unwrap_used, reason = "every user needs a part of this")]

use omni_actors::core::ids::Slot;
use omni_actors::model::ModelError;
use omni_actors::model::stage::{Emit, Finish, RowInput, RowOutput, RowSpec, RowWork, StageModel, TalkerRow};

pub fn step(stage: &mut dyn StageModel, slot: u32, advance: u32) -> RowOutput {
    step_row(stage, slot, advance).unwrap()
}

pub fn step_row(stage: &mut dyn StageModel, slot: u32, advance: u32) -> Result<RowOutput, ModelError> {
    stage.step(&[RowWork { slot: Slot(slot), advance }]).unwrap().remove(0)
}

/// A talker row that is fed its whole input at once, its prompt in pieces of `chunk`; codes and why it ended.
pub fn speak(
    stage: &mut dyn StageModel,
    slot: u32,
    row: &TalkerRow,
    input: RowInput,
    chunk: u32,
) -> (Vec<Vec<u32>>, Option<Finish>) {
    stage.open(Slot(slot), RowSpec::Talker(row.clone())).unwrap();
    stage.feed(Slot(slot), input, true).unwrap();
    let (mut frames, mut left) = (vec![], row.prefill_positions());
    loop {
        let advance = if left > 0 { chunk.min(left) } else { 1 };
        left -= advance.min(left);
        let output = step(stage, slot, advance);
        if let Emit::Codes(codes) = &output.emit {
            frames.push(codes.clone());
        }
        if output.finish.is_some() {
            return (frames, output.finish);
        }
    }
}
