use super::*;
use omni_core::ids::{FinishReason, Generation};
use omni_core::scheduler::{Pace, SequenceParams};
use omni_media::Medium;
use omni_media::spectrum::Spectrum;
use omni_model::checkpoint::Checkpoint;
use omni_model::encoder::{Encodable, EncoderSpec, Grain, Schedule};
use omni_model::hf::CodecTokens;
use omni_model::media::MediaLayout;
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceSpec, TalkerSpec, ThinkerMode, ThinkerSpec, VocoderSpec};
use omni_model::talker::TalkerPrompt;
use omni_stage::{Outputs, Resume};
use omni_transfer::payload::{Header, Kind};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

const REQUEST: RequestId = RequestId(7);
pub(crate) const GROUPS: usize = 4;
pub(crate) const UNIT: Duration = Duration::from_millis(80);
const TOKENS: CodecTokens = CodecTokens { pad: 1, bos: 2, eos: 3, think: None, nothink: 4, think_bos: 5, think_eos: 6 };

fn params(prompt: u32, pace: Pace) -> SequenceParams {
    SequenceParams { prompt, ..SequenceParams::unprompted(pace) }
}

fn speech() -> Outputs {
    Outputs { tokens: false, speech: true }
}

pub(crate) fn talker() -> (StageName, SequencePlan) {
    let prompt = TalkerPrompt::omni(0, 9, &TOKENS);
    let params = SequenceParams { prompt_input: prompt.inputs(), ..params(prompt.positions(), Pace::OnePerStep) };
    let sequence = TalkerSpec {
        prompt: prompt.into(),
        generated_len: 0,
        sampling: SamplingParams::GREEDY,
        predictor: SamplingParams::GREEDY,
        max_tokens: 100,
        min_tokens: 0,
        ignore_eos: false,
        seed: 1,
        forced: None,
        owner: None,
    };
    (StageName::Talker, SequencePlan { params, spec: SequenceSpec::Talker(sequence), deliver: speech() })
}

pub(crate) fn vocoder() -> (StageName, SequencePlan) {
    let spec = SequenceSpec::Vocoder(VocoderSpec::default());
    (StageName::Vocoder, SequencePlan { params: params(0, Pace::Chunks(vec![1, 2])), spec, deliver: speech() })
}

pub(crate) fn thinker(deliver: Outputs) -> (StageName, SequencePlan) {
    let sequence = ThinkerSpec {
        prompt: vec![10, 11, 12].into(),
        generated_len: 0,
        mode: ThinkerMode::Sample,
        emit: deliver.speech.then(|| std::iter::once(0..3).collect()),
        sampling: SamplingParams::GREEDY,
        eos: vec![0].into(),
        max_tokens: 50,
        seed: 1,
        media: None,
        reuse: None,
    };
    (StageName::Thinker, SequencePlan { params: params(3, Pace::Free), spec: SequenceSpec::Thinker(sequence), deliver })
}

/// A text of two stages, as Qwen3-TTS has.
fn spoken() -> Journal {
    Journal::new(REQUEST, vec![talker(), vocoder()], (GROUPS, 10))
}

#[test]
fn codes_end_where_the_guard_says_so_however_they_come_and_what_comes_later_is_dropped() {
    let stuck = |frames: u32| -> Vec<u32> { (0..frames).flat_map(|n| [7, n, n, n]).collect() };
    let all = stuck(300);
    let ended = |per_payload: u32| {
        let mut journal = spoken().guarded_by(Some(Guard::new("Hello.", UNIT)));
        let mut passed = Vec::new();
        let mut end = None;
        for from in (0..300).step_by(per_payload as usize) {
            let range = (from * 4) as usize..((from + per_payload).min(300) * 4) as usize;
            let new =
                journal.record(Edge::Codes, payload(Edge::Codes, from, all[range].to_vec(), GROUPS, false)).unwrap();
            let Some(new) = new else { continue };
            assert_eq!(end, None, "more behind the end");
            let [Part::U32(codes)] = new.parts.as_slice() else { panic!() };
            assert_eq!(codes.len() as u32, new.header.units * 4);
            passed.extend_from_slice(codes);
            end = new.header.end;
        }
        assert_eq!((end, journal.is_done(StageName::Talker)), (Some(FinishReason::Runaway), true));
        assert_eq!(journal.codes(), passed);
        passed
    };
    let expected = ended(1);
    assert!(expected.len() < all.len() && all.starts_with(&expected));
    for per_payload in [3, 64, 300] {
        assert_eq!(ended(per_payload), expected);
    }
}

fn payload(edge: Edge, seq: u32, values: Vec<u32>, width: usize, end: bool) -> Payload {
    let header = Header {
        request: REQUEST,
        generation: Generation(1),
        attempt: Attempt(0),
        seq: Seq(seq),
        kind: edge.kind(),
        units: (values.len() / width) as u32,
        end: end.then_some(FinishReason::Stop),
        sent: 0,
        cached: 0,
    };
    Payload { header, parts: vec![Part::U32(values)], leases: Vec::new() }
}

/// Codes of frame after frame: those of frame `n` are `4n, 4n + 1, ...`.
pub(crate) fn codes(from: u32, frames: u32, end: bool) -> Payload {
    let groups = GROUPS as u32;
    payload(Edge::Codes, from, (from * groups..(from + frames) * groups).collect(), GROUPS, end)
}

fn values(payload: &Payload) -> &[u32] {
    match payload.parts.first() {
        Some(Part::U32(values)) => values,
        _ => &[],
    }
}

#[test]
fn a_repeated_payload_is_cut_to_its_new_units() {
    let mut journal = spoken();
    let mut record = |payload| journal.record(Edge::Codes, payload).unwrap();
    assert_eq!(values(&record(codes(0, 3, false)).unwrap()), (0..12).collect::<Vec<_>>());
    assert!(record(codes(1, 2, false)).is_none(), "known");
    assert!(record(codes(5, 1, false)).is_none(), "not what follows");
    let rest = record(codes(2, 3, false)).unwrap();
    assert_eq!((rest.header.seq, rest.header.units), (Seq(3), 2));
    assert_eq!(values(&rest), (12..20).collect::<Vec<_>>());
    let end = record(codes(4, 1, true)).unwrap();
    assert_eq!((end.header.seq, end.header.units, values(&end)), (Seq(5), 0, &[][..]), "the end alone is new");
    assert!(record(codes(5, 1, true)).is_none(), "nothing comes behind the end");
}

#[test]
fn a_talker_goes_on_behind_its_frames_with_all_of_its_text() {
    let mut journal = spoken();
    let first = journal.admit(StageName::Talker, UNIT, None).unwrap();
    assert_eq!(first.admission.from, Resume { attempt: Attempt(1), ..Resume::default() });
    journal.record(Edge::Text, payload(Edge::Text, 0, (0..9).collect(), 1, true)).unwrap();
    journal.record(Edge::Codes, codes(0, 4, false)).unwrap();
    journal.acked(Edge::Codes, 3);
    // Late, from the attempt before.
    journal.acked(Edge::Codes, 2);
    let Readmission { admission, input } = journal.admit(StageName::Talker, UNIT, None).unwrap();
    let SequenceSpec::Talker(sequence) = &admission.spec else { panic!("{admission:?}") };
    assert_eq!(sequence.generated_len, 4);
    assert_eq!(sequence.prompt.reference().unwrap()[..], (0..16).collect::<Vec<_>>());
    assert_eq!((admission.params.prompt, admission.params.prompt_input), (9 + 4, 4 + 4));
    let from = admission.from;
    assert_eq!(
        (from.attempt, from.first, from.deliver_from, from.start.emitted, from.start.acked),
        (Attempt(2), 4, 4, 4, 3)
    );
    assert_eq!(input.len(), 1);
    assert_eq!((values(&input[0]), input[0].header.end), (&(0..9).collect::<Vec<_>>()[..], Some(FinishReason::Stop)));
    assert_eq!(input[0].header.attempt, Attempt(2));
}

#[test]
fn a_vocoder_gets_delivered_frames_as_context_and_the_others_as_input() {
    let mut journal = spoken();
    journal.admit(StageName::Vocoder, UNIT, None).unwrap();
    journal.record(Edge::Codes, codes(0, 5, true)).unwrap();
    let header = Header { kind: Kind::Audio, units: 2, end: None, ..codes(0, 0, false).header };
    journal.record(Edge::Audio, Payload { header, parts: vec![Part::F32(vec![0.5; 20])], leases: Vec::new() }).unwrap();
    let Readmission { admission, input } = journal.admit(StageName::Vocoder, UNIT, None).unwrap();
    let SequenceSpec::Vocoder(sequence) = &admission.spec else { panic!("{admission:?}") };
    assert_eq!((sequence.context.as_deref(), sequence.goes_on), (Some(&(0..8).collect::<Vec<_>>()[..]), true));
    assert_eq!((admission.params.prompt, admission.from.start.input, admission.from.first), (2, 2, 2));
    assert_eq!(
        (input[0].header.seq, input[0].header.units, input[0].header.end),
        (Seq(2), 3, Some(FinishReason::Stop))
    );
    assert_eq!(values(&input[0]), (8..20).collect::<Vec<_>>());
    assert!(journal.admit(StageName::Talker, UNIT, None).is_none(), "the talker has given everything");
}

#[test]
fn a_thinker_goes_on_behind_its_tokens_and_follows_a_whole_answer() {
    let both = Outputs { tokens: true, speech: true };
    let mut journal = Journal::new(REQUEST, vec![thinker(both), talker(), vocoder()], (GROUPS, 10));
    journal.admit(StageName::Thinker, UNIT, None).unwrap();
    journal.record(Edge::Tokens, payload(Edge::Tokens, 0, vec![20, 21], 1, false)).unwrap();
    let again = journal.admit(StageName::Thinker, UNIT, None).unwrap();
    let SequenceSpec::Thinker(sequence) = &again.admission.spec else { panic!("{:?}", again.admission) };
    assert_eq!(
        (sequence.prompt.as_ref(), sequence.generated_len, again.admission.params.prompt),
        (&[10, 11, 12, 20, 21][..], 2, 5)
    );
    assert_eq!(sequence.emit.as_deref(), Some(&[0..3, 3..5][..]));
    assert_eq!((again.admission.from.tokens, again.admission.from.deliver_from, again.input.len()), (2, 0, 0));

    journal.record(Edge::Tokens, payload(Edge::Tokens, 2, vec![22, 0], 1, true)).unwrap();
    let again = journal.admit(StageName::Thinker, UNIT, None).unwrap();
    let SequenceSpec::Thinker(sequence) = &again.admission.spec else { panic!("{:?}", again.admission) };
    assert_eq!((sequence.mode, sequence.prompt.len(), again.admission.deliver.tokens), (ThinkerMode::Follow, 3, false));
    assert_eq!((values(&again.input[0]), again.input[0].header.end), (&[20, 21, 22][..], Some(FinishReason::Stop)));
}

/// A request with a clip of three windows, whose thinker waits for its embeddings.
fn heard() -> (Journal, Schedule) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
    let config = Checkpoint::open(&folder).unwrap().omni().unwrap().thinker.clone();
    let frames = 2 * config.audio.as_ref().unwrap().window_frames() + 9;
    let medium = Arc::new(Medium::Audio(Spectrum::from_features(&vec![0.5; 128 * frames], 128).unwrap()));
    let encodable = Encodable::of(&medium, true).unwrap();
    let schedule = Schedule::new(&config, &[encodable]).unwrap();
    let spec = EncoderSpec { media: [encodable].into(), longest: frames as u32, done: 0, grain: Grain::Fine };
    let emits = SequenceParams { prompt_emits: schedule.rows(), ..params(0, Pace::Chunks(vec![1])) };
    let encoder = SequencePlan { params: emits, spec: SequenceSpec::Encoder(spec), deliver: speech() };
    let (stage, mut plan) = thinker(Outputs { tokens: true, speech: true });
    plan.params.prompt_input = schedule.rows();
    if let SequenceSpec::Thinker(sequence) = &mut plan.spec {
        sequence.media = Some(MediaLayout { positions: None, spans: Vec::new() }.into());
    }
    let sequences = vec![(StageName::Encoder, encoder), (stage, plan), talker(), vocoder()];
    let feed = Feed::new(schedule.clone(), vec![Encoding { medium, sound: true }]);
    (Journal::new(REQUEST, sequences, (GROUPS, 10)).fed_by(Some(feed)), schedule)
}

fn rows(seq: u32, units: u32, end: bool) -> Payload {
    let embeddings =
        candle_core::Tensor::zeros((units as usize, 2), candle_core::DType::F32, &candle_core::Device::Cpu);
    let part = Part::Embeddings(embeddings.unwrap().into());
    Payload { parts: vec![part], ..payload(Edge::Media, seq, vec![0; units as usize], 1, end) }
}

#[test]
fn an_encoder_goes_on_at_the_first_part_that_was_not_delivered() {
    let (mut journal, schedule) = heard();
    let first = schedule.parts()[0].rows;
    let readmission = journal.admit(StageName::Encoder, UNIT, None).unwrap();
    let seqs: Vec<_> = readmission.input.iter().map(|payload| (payload.header.seq.0, payload.header.end)).collect();
    assert_eq!(seqs, [(0, None), (1, None), (2, Some(FinishReason::Stop))]);
    assert!(journal.feed().is_empty(), "all of it was sent");
    journal.record(Edge::Media, rows(0, first, false)).unwrap().unwrap();
    let again = journal.admit(StageName::Encoder, UNIT, None).unwrap();
    let SequenceSpec::Encoder(sequence) = &again.admission.spec else { panic!("{:?}", again.admission) };
    assert_eq!((sequence.done, again.input.len()), (1, 2));
    assert_eq!((again.admission.from.first, again.admission.from.start.input), (first, 1));
    assert!(journal.bytes() > first as usize * 8);
    journal.record(Edge::Media, rows(first, schedule.rows() - first, true)).unwrap().unwrap();
    assert!(journal.admit(StageName::Encoder, UNIT, None).is_none(), "it has given everything");
}

#[test]
fn a_thinker_with_media_samples_its_last_token_again_and_gets_all_embeddings_each_time() {
    let (mut journal, schedule) = heard();
    journal.admit(StageName::Thinker, UNIT, None).unwrap();
    journal.record(Edge::Media, rows(0, schedule.rows(), true)).unwrap().unwrap();
    journal.record(Edge::Tokens, payload(Edge::Tokens, 0, vec![20, 21, 0], 1, true)).unwrap();
    let again = journal.admit(StageName::Thinker, UNIT, None).unwrap();
    let SequenceSpec::Thinker(sequence) = &again.admission.spec else { panic!("{:?}", again.admission) };
    assert_eq!((sequence.mode, again.admission.deliver.tokens), (ThinkerMode::Sample, false));
    assert_eq!((sequence.prompt.as_ref(), sequence.generated_len), (&[10, 11, 12, 20, 21][..], 2));
    assert_eq!((again.input.len(), again.input[0].header.kind), (1, Kind::Media));
    assert_eq!((again.input[0].header.units, again.input[0].header.end), (schedule.rows(), Some(FinishReason::Stop)));
    // All that its one token says is that it ends.
    let (mut journal, _) = heard();
    journal.record(Edge::Tokens, payload(Edge::Tokens, 0, vec![0], 1, true)).unwrap();
    let again = journal.admit(StageName::Thinker, UNIT, None).unwrap();
    let SequenceSpec::Thinker(sequence) = &again.admission.spec else { panic!("{:?}", again.admission) };
    assert_eq!((sequence.generated_len, sequence.prompt.len()), (0, 3));
    // The embeddings go when the thinker has finished.
    let (mut journal, schedule) = heard();
    journal.record(Edge::Media, rows(0, schedule.rows(), true)).unwrap().unwrap();
    assert!(!journal.embeddings_of_media().is_empty());
    journal.record(Edge::Tokens, payload(Edge::Tokens, 0, vec![0], 1, true)).unwrap();
    assert!(!journal.embeddings_of_media().is_empty(), "the talker lacks what it says");
    let end = Payload { parts: Vec::new(), ..payload(Edge::Embeddings, 0, Vec::new(), 1, true) };
    journal.record(Edge::Embeddings, end).unwrap();
    assert!(journal.embeddings_of_media().is_empty());
}

#[test]
fn text_that_came_token_by_token_is_given_again_in_few_payloads() {
    let sequences = vec![thinker(Outputs { tokens: true, speech: true }), talker(), vocoder()];
    let mut journal = Journal::new(REQUEST, sequences, (GROUPS, 10));
    for seq in 0..100 {
        let one = Payload { parts: rows(seq, 1, false).parts, ..payload(Edge::Embeddings, seq, vec![0], 1, false) };
        journal.record(Edge::Embeddings, one).unwrap().unwrap();
    }
    let again = journal.admit(StageName::Talker, UNIT, None).unwrap();
    let mut next = 0;
    for payload in &again.input {
        assert_eq!((payload.header.seq.0, payload.header.units as usize), (next, payload.parts.len()));
        next += payload.header.units;
    }
    // The edge has room for the windows of all requests, and all of them may be admitted at once.
    assert_eq!((next, again.input.len()), (100, 4));
}

#[test]
fn the_journal_keeps_only_what_a_stage_can_still_need() {
    let mut journal = spoken();
    journal.record(Edge::Text, payload(Edge::Text, 0, vec![1; 100], 1, true)).unwrap();
    assert_eq!(journal.bytes(), 400);
    journal.record(Edge::Codes, codes(0, 10, true)).unwrap();
    assert_eq!(journal.bytes(), 10 * GROUPS * 4, "the talker is done with its text");
    let header = Header { kind: Kind::Audio, units: 10, end: Some(FinishReason::Stop), ..codes(0, 0, false).header };
    journal
        .record(Edge::Audio, Payload { header, parts: vec![Part::F32(vec![0.0; 100])], leases: Vec::new() })
        .unwrap();
    assert_eq!((journal.bytes(), journal.unfinished().count()), (0, 0));
}

#[test]
fn a_talker_that_has_used_all_of_its_text_is_admitted_again_when_more_of_it_comes() {
    let mut journal = spoken();
    journal.admit(StageName::Talker, UNIT, None).unwrap();
    journal.record(Edge::Text, payload(Edge::Text, 0, vec![1; 4], 1, false)).unwrap();
    journal.record(Edge::Codes, codes(0, 1, false)).unwrap();
    assert!(
        journal.admit(StageName::Talker, UNIT, None).is_none(),
        "its next position is the first frame with the next text"
    );
    assert_eq!(journal.starved(StageName::Talker), Some((Edge::Text, 4)));
    journal.acked(Edge::Text, 4);
    assert_eq!(journal.starved(StageName::Talker), Some((Edge::Text, 4)));
    journal.record(Edge::Text, payload(Edge::Text, 4, vec![1], 1, false)).unwrap();
    let again = journal.admit(StageName::Talker, UNIT, None).unwrap();
    assert_eq!((again.admission.from.first, again.admission.from.start.consumed), (1, 4));
    assert_eq!(journal.starved(StageName::Talker), None);
}

#[test]
fn a_stage_that_gets_no_sequence_does_not_keep_its_producer_waiting() {
    let mut journal = spoken();
    journal.admit(StageName::Talker, UNIT, None).unwrap();
    journal.record(Edge::Text, payload(Edge::Text, 0, vec![1; 4], 1, false)).unwrap();
    assert_eq!(journal.used_up(StageName::Talker), None, "it has its sequence");
    journal.record(Edge::Codes, codes(0, 1, false)).unwrap();
    assert!(journal.admit(StageName::Talker, UNIT, None).is_none());
    assert_eq!(journal.used_up(StageName::Talker), Some((Edge::Text, 4)), "it is starved");
    journal.record(Edge::Codes, codes(1, 1, true)).unwrap();
    assert!(journal.admit(StageName::Talker, UNIT, None).is_none());
    assert_eq!(journal.used_up(StageName::Talker), Some((Edge::Text, RELEASED)), "it needs no text any more");
    assert_eq!(journal.used_up(StageName::Thinker), None, "it has no part in the request");
}

#[test]
fn a_sequence_that_fails_again_and_again_at_one_place_is_not_tried_for_ever() {
    let mut journal = spoken();
    let tries = |journal: &mut Journal| (0..).take_while(|_| journal.may_try_again(StageName::Talker)).count();
    assert_eq!(tries(&mut journal), 3);
    journal.record(Edge::Codes, codes(0, 1, false)).unwrap();
    assert_eq!(tries(&mut journal), 3, "it came further");
}

proptest! {
    /// Producers that die at any moment and begin again where the journal says, or go on for a while although others
    /// have taken their place: the consumer's log has each unit once and in order.
    #[test]
    fn each_unit_is_taken_once_over_any_attempts(moves in proptest::collection::vec((0..3u8, 0..4usize, 1..5u32), 1..60)) {
        let mut journal = spoken();
        journal.record(Edge::Text, payload(Edge::Text, 0, vec![1; 9], 1, true)).unwrap();
        let mut attempts: Vec<u32> = vec![0];
        let mut taken = Vec::new();
        for (kind, who, frames) in moves {
            if kind == 0 {
                let again = journal.admit(StageName::Talker, UNIT, None).unwrap();
                prop_assert_eq!(again.admission.from.first, (taken.len() / GROUPS) as u32);
                attempts.push(again.admission.from.first);
            } else {
                let at = who % attempts.len();
                if let Some(new) = journal.record(Edge::Codes, codes(attempts[at], frames, false)).unwrap() {
                    prop_assert_eq!(new.header.seq.0 as usize * GROUPS, taken.len());
                    taken.extend_from_slice(values(&new));
                }
                attempts[at] += frames;
            }
        }
        prop_assert_eq!(&taken, &(0..taken.len() as u32).collect::<Vec<_>>());
        prop_assert_eq!(journal.codes(), &taken[..]);
    }
}
