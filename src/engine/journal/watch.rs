//! Where speech ends that no longer says its text.

use omni_core::ids::FinishReason;
use omni_core::runaway::Guard;
use omni_transfer::payload::{Part, Payload};

/// Ends the codes of a payload, and with them the speech, behind the frame where the guard says so.
pub(super) fn watch(guard: &mut Guard, payload: &mut Payload, groups: usize) {
    let header = &mut payload.header;
    if let Some(Part::U32(codes)) = payload.parts.first_mut() {
        let last = codes.chunks_exact(groups.max(1)).position(|frame| guard.runs_away(frame[0]));
        if let Some(last) = last {
            codes.truncate((last + 1) * groups);
            (header.units, header.end) = (last as u32 + 1, Some(FinishReason::Runaway));
        }
    }
    header.end = match header.end {
        Some(FinishReason::Stop) if guard.is_unspoken() => Some(FinishReason::Unspoken),
        // The limit was that of its text.
        Some(FinishReason::Length) if guard.is_too_long() => Some(FinishReason::Runaway),
        end => end,
    };
}
