//! How the sequence of each stage goes on where its output on the log ends, and the input that it is given.

use super::{Edge, Journal};
use omni_core::ids::{Attempt, FinishReason, Generation, Seq, StageName};
use omni_core::scheduler::Pace;
use omni_model::encoder::Piece;
use omni_model::stage::{SequenceSpec, TalkerSpec, ThinkerMode, ThinkerSpec, VocoderSpec};
use omni_stage::Admission;
use omni_telemetry::clock;
use omni_transfer::payload::{Header, Part, Payload};

/// Integers in one payload of a readmission.
const PIECE: usize = 1 << 16;
/// Pieces that came one by one and go as one payload, at most: half as many parts as one may have, and bytes.
const PARTS: usize = 32;
const PIECE_BYTES: usize = 4 << 20;

impl Journal {
    /// The thinker goes on behind the answer tokens on the log. Where the log holds the whole answer, the new sequence
    /// follows its tokens, only to make their embeddings.
    pub(super) fn resume_thinker(&self, admission: &mut Admission) {
        let SequenceSpec::Thinker(sequence) = &mut admission.spec else { return };
        let (tokens, embeddings) = (self.log(Edge::Tokens), self.log(Edge::Embeddings).units);
        admission.from.deliver_from = embeddings;
        if sequence.mode == ThinkerMode::Follow {
            return;
        }
        admission.from.tokens = tokens.units;
        let ended = tokens.ended.is_some();
        if ended && sequence.media.is_none() {
            *sequence = ThinkerSpec { mode: ThinkerMode::Follow, ..sequence.clone() };
            admission.params.pace = Pace::Follow;
            admission.deliver.tokens = false;
            return;
        }
        // What the talker takes at media are hidden states, so the layers run again: behind a whole answer up to its
        // last token, which is sampled once more and ends it as it did.
        admission.deliver.tokens &= !ended;
        let said = &tokens.values[..tokens.values.len() - usize::from(ended && !tokens.values.is_empty())];
        if let Some(emit) = &sequence.emit
            && !said.is_empty()
        {
            let asked = sequence.prompt.len() as u32;
            sequence.emit =
                Some(emit.iter().cloned().chain(std::iter::once(asked..asked + said.len() as u32)).collect());
        }
        sequence.prompt = [&sequence.prompt, said].concat().into();
        sequence.generated_len = said.len() as u32;
        admission.params.prompt += sequence.generated_len;
    }

    /// The encoder goes on at the first part whose embeddings are not all on the log.
    pub(super) fn resume_encoder(&mut self, admission: &mut Admission) {
        let SequenceSpec::Encoder(sequence) = &mut admission.spec else { return };
        let delivered = self.log(Edge::Media).units;
        let Some(feed) = &mut self.feed else { return };
        sequence.done = feed.schedule.parts_within(delivered);
        let Some(part) = feed.schedule.parts().get(sequence.done as usize) else { return };
        (admission.from.first, admission.from.deliver_from) = (part.row, delivered);
        admission.from.start.input = part.unit;
        let unit = part.unit;
        feed.rewind(unit);
        // What an earlier attempt used of a part that begins again is not used yet.
        self.log_mut(Edge::Features).acked = unit;
    }

    /// Input of the encoder that may be sent now.
    pub fn feed(&mut self) -> Vec<Payload> {
        let Some((_, attempt)) = self.consumer(Edge::Features) else { return Vec::new() };
        let used = self.log(Edge::Features).acked;
        let taken = self.feed.as_mut().map(|feed| feed.take(used)).unwrap_or_default();
        let payload = |(piece, part, last): (Piece, Part, bool)| {
            let end = last.then_some(FinishReason::Stop);
            let header = self.header(Edge::Features, attempt, piece.unit, piece.units, end);
            Payload { header, parts: vec![part], leases: Vec::new() }
        };
        taken.into_iter().map(payload).collect()
    }

    /// The talker goes on behind the frames on the log.
    pub(super) fn resume_talker(&self, admission: &mut Admission) -> Option<()> {
        let SequenceSpec::Talker(sequence) = &mut admission.spec else { return Some(()) };
        let said = self.codes();
        if said.is_empty() {
            // It has made nothing yet: its prompt is as planned.
            return Some(());
        }
        let text = self.log(self.edge_into(StageName::Talker));
        let prompt = sequence.prompt.resume(said, self.groups, text.units, text.ended.is_some())?;
        let frames = (said.len() / self.groups.max(1)) as u32;
        *sequence = TalkerSpec { prompt: prompt.into(), generated_len: frames, ..sequence.clone() };
        admission.params.prompt = sequence.prefill_positions();
        admission.params.prompt_input = sequence.prefill_embeddings();
        (admission.from.first, admission.from.deliver_from) = (frames, frames);
        Some(())
    }

    /// The vocoder goes on behind the frames whose sound was delivered: it decodes a few of them again, unheard, as
    /// context.
    pub(super) fn resume_vocoder(&self, admission: &mut Admission) {
        let SequenceSpec::Vocoder(sequence) = &mut admission.spec else { return };
        let heard = self.log(Edge::Audio).units;
        let codes = &self.codes()[..(heard as usize * self.groups).min(self.codes().len())];
        if heard > 0 {
            let before = sequence.context.as_deref().unwrap_or_default();
            *sequence = VocoderSpec { context: Some([before, codes].concat().into()), goes_on: true };
        }
        admission.params.prompt = sequence.context_frames(self.groups);
        (admission.from.first, admission.from.deliver_from) = (heard, heard);
        admission.from.start.input = heard;
    }

    /// The input of a sequence that was admitted just now, from the first unit that its prompt does not hold.
    pub(super) fn input(&mut self, stage: StageName, admission: &mut Admission, attempt: Attempt) -> Vec<Payload> {
        if stage == StageName::Encoder {
            admission.from.start.consumed = admission.from.start.input;
            return self.feed();
        }
        if let SequenceSpec::Thinker(ThinkerSpec { mode: ThinkerMode::Follow, .. }) = admission.spec
            && self.log(Edge::Text).units == 0
            && self.log(Edge::Tokens).ended.is_some()
        {
            // The stop token is not spoken.
            let tokens = &self.log(Edge::Tokens).values;
            let spoken = tokens[..tokens.len().saturating_sub(1)].to_vec();
            let header = self.header(Edge::Text, attempt, 0, spoken.len() as u32, Some(FinishReason::Stop));
            return vec![Payload { header, parts: vec![Part::U32(spoken)], leases: Vec::new() }];
        }
        let samples = self.sequence(stage).is_some_and(|sequence| sequence.plan.samples());
        if stage == StageName::Thinker && samples && !self.has_media() {
            return Vec::new();
        }
        let edge = self.edge_into(stage);
        let log = self.log(edge);
        admission.from.start.consumed = log.acked.min(log.units);
        let from = admission.from.start.input;
        let mut pieces: Vec<(u32, u32, Vec<Part>)> = Vec::new();
        let (mut seq, mut bytes) = (0, 0);
        for (units, part) in &log.kept {
            bytes += part.bytes();
            // A token's each: as many payloads as tokens would fill the edge, all requests together.
            match pieces.last_mut().filter(|(_, _, parts)| parts.len() < PARTS && bytes <= PIECE_BYTES) {
                Some((_, all, parts)) => {
                    *all += units;
                    parts.push(part.clone());
                }
                None => {
                    bytes = part.bytes();
                    pieces.push((seq, *units, vec![part.clone()]));
                }
            }
            seq += units;
        }
        if log.units > 0 && !log.values.is_empty() {
            let width = log.values.len() / log.units as usize;
            let per_piece = (PIECE / width.max(1)).max(1) as u32;
            for first in (from..log.units).step_by(per_piece as usize) {
                let units = per_piece.min(log.units - first);
                let range = first as usize * width..(first + units) as usize * width;
                pieces.push((first, units, vec![Part::U32(log.values[range].to_vec())]));
            }
        }
        let last = pieces.len();
        let mut payloads: Vec<_> = pieces
            .into_iter()
            .enumerate()
            .map(|(at, (seq, units, parts))| {
                let end = log.ended.filter(|_| at + 1 == last);
                Payload { header: self.header(edge, attempt, seq, units, end), parts, leases: Vec::new() }
            })
            .collect();
        if payloads.is_empty() && log.ended.is_some() {
            let header = self.header(edge, attempt, log.units.max(from), 0, log.ended);
            payloads.push(Payload { header, parts: Vec::new(), leases: Vec::new() });
        }
        payloads
    }

    fn header(&self, edge: Edge, attempt: Attempt, seq: u32, units: u32, end: Option<FinishReason>) -> Header {
        let (request, generation) = (self.request, Generation(0));
        Header {
            request,
            generation,
            attempt,
            seq: Seq(seq),
            kind: edge.kind(),
            units,
            end,
            sent: clock::now(),
            cached: 0,
        }
    }
}
