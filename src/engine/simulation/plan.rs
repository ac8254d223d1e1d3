//! The plan of a request, as the planners make it from a checkpoint, for models that have none.

use super::edges::Prompts;
use super::media::{CONFIG, Prompted, prompted};
use super::model::{Asked, END, Expected, GROUPS, expect};
use super::scenario::{RequestKind, Script, Shape};
use crate::encoded::{Known, MediaPlan};
use crate::plan::{FollowedText, MediaPlanner, RequestPlan, SequencePlan, runs};
use omni_core::admission::Slo;
use omni_core::ids::StageName;
use omni_core::ledger::Owed;
use omni_core::random::{Random, mix};
use omni_core::scheduler::{Pace, SequenceParams};
use omni_model::hf::CodecTokens;
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceSpec, TalkerSpec, ThinkerMode, ThinkerSpec, VocoderSpec};
use omni_model::talker::{CodecSide, TalkerPrompt, TextSide, Trailing};
use omni_model::tokenizer::Tokenizer;
use omni_model::weights::{Content, Files};
use omni_stage::Outputs;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Samples a second: a frame of two is 80 ms.
pub(super) const SAMPLE_RATE: u32 = 25;
/// How long a listener hears a frame.
pub(super) const UNIT: Duration = Duration::from_millis(80);

const TOKENS: CodecTokens = CodecTokens { pad: 1, bos: 2, eos: 3, think: None, nothink: 4, think_bos: 5, think_eos: 6 };

/// A token for each byte.
static TOKENIZER: LazyLock<Option<Arc<Tokenizer>>> = LazyLock::new(|| {
    let mut stand_in = 0x100;
    let entries = (0..256u32).map(|byte| {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if printable { byte } else { stand_in };
        stand_in += u32::from(!printable);
        format!("\"\\u{character:04x}\": {byte}")
    });
    let vocabulary = format!("{{{}}}", entries.collect::<Vec<_>>().join(", "));
    let vocabulary = Content::Plain(Box::leak(vocabulary.into_bytes().into_boxed_slice()));
    let files = vec![("vocab.json", vocabulary), ("merges.txt", Content::Plain(b""))];
    Tokenizer::load(&Files::Embedded(Box::leak(files.into_boxed_slice()))).ok().map(Arc::new)
});

/// A request, what its client has to get, and the pieces of its text that come later.
pub(super) struct Planned {
    pub plan: RequestPlan,
    pub expected: Expected,
    /// Tokens that went before, and the piece.
    pub later: Vec<(u32, FollowedText)>,
    /// What its prompts make and use.
    pub prompts: Prompts,
}

/// The plan of a script. What it does with media is the real planner's.
pub(super) fn plan(script: &Script, shape: &Shape, encodes: &MediaPlanner) -> Option<Planned> {
    let of = &mut Random::new(mix(0x91, script.seed));
    let speech = !matches!(script.kind, RequestKind::Text);
    let mut text: Vec<u32> = Vec::new();
    if let RequestKind::Speech(tokens) | RequestKind::Pieces(tokens, _) = script.kind {
        text = (0..tokens).map(|_| of.within(0x61, 0x7B) as u32).collect();
    }
    let mut sequences = Vec::new();
    let (mut prompt_tokens, mut user) = (0, 0);
    let mut prompts = Prompts { emits: 0, uses: 0, rows: 0, known: 0 };
    let (mut media, mut plan_of_media) = (Vec::new(), MediaPlan::default());
    if !shape.two_stages {
        let mut prompt: Vec<u32> = (0..of.within(4, 40)).map(|_| of.within(0x61, 0x7B) as u32).collect();
        // A user's turn, and the header of the answer.
        user = of.below(prompt.len() as u64 - 3) as u32;
        let mut layout = None;
        if !script.media.is_empty() {
            let of = &mut Random::new(mix(0x92, script.seed));
            let with: Prompted = prompted(&prompt, (user, 3), &script.media, of)?;
            (prompt, user, media, layout) = (with.prompt, with.user, with.media, Some(Arc::new(with.layout)));
            let (rows, encoder, plan) = encodes.encoding(&CONFIG, &media, Slo::BestEffort).ok()?;
            (prompts.rows, prompts.known) = (rows, plan.known.iter().map(Known::units).sum());
            sequences.extend(encoder.map(|encoder| (StageName::Encoder, encoder)));
            plan_of_media = plan;
        }
        let len = prompt.len() as u32;
        let emit: Arc<[std::ops::Range<u32>]> = Arc::new([0..user, len - 3..len]);
        prompts.emits = if speech { user + 3 } else { 0 };
        let sample = matches!(script.kind, RequestKind::Chat | RequestKind::Text);
        let spec = ThinkerSpec {
            prompt: prompt.into(),
            generated_len: 0,
            mode: if sample { ThinkerMode::Sample } else { ThinkerMode::Follow },
            emit: speech.then_some(emit),
            sampling: SamplingParams::GREEDY,
            eos: Arc::new([END]),
            max_tokens: if sample { of.pick(&[40, 40, 6, 1]) } else { text.len() as u32 + 1 },
            seed: script.seed,
            media: layout.clone(),
            reuse: None,
        };
        let params = SequenceParams {
            prompt: len,
            prompt_input: prompts.rows,
            prompt_runs: layout.as_deref().map(runs).unwrap_or_default(),
            prompt_emits: prompts.emits,
            yields_after: u32::from(sample && speech),
            ..SequenceParams::unprompted(if sample { Pace::Free } else { Pace::Follow })
        };
        let deliver = Outputs { tokens: sample, speech };
        prompt_tokens = len;
        sequences.push((StageName::Thinker, SequencePlan { params, spec: SequenceSpec::Thinker(spec), deliver }));
    }
    if speech {
        let (prompt, context) = talker_prompt(of, shape, user, text.len() as u32);
        prompts.uses = prompt.inputs();
        sequences.extend(speech_sequences(script, shape, prompt, context, of.pick(&[100, 100, 100, 5, 1])));
    }
    let specs = |stage: StageName| sequences.iter().find(|(name, _)| *name == stage).map(|(_, plan)| &plan.spec);
    let expected = expect(&Asked {
        thinker: specs(StageName::Thinker).and_then(|spec| match spec {
            SequenceSpec::Thinker(spec) => Some(spec),
            _ => None,
        }),
        talker: specs(StageName::Talker).and_then(|spec| match spec {
            SequenceSpec::Talker(spec) => Some(spec),
            _ => None,
        }),
        vocoder: specs(StageName::Vocoder).and_then(|spec| match spec {
            SequenceSpec::Vocoder(spec) => Some(spec),
            _ => None,
        }),
        text: &text,
        media: &media,
        lengths: script.lengths,
    });
    let answers = matches!(script.kind, RequestKind::Chat | RequestKind::Text);
    let mut pieces = pieces(&text, if let RequestKind::Pieces(_, pieces) = script.kind { pieces } else { 1 });
    let follow = (!answers).then(|| pieces.remove(0).1);
    let window = shape.stage(StageName::Vocoder).window;
    let chunk = shape.ramp.iter().copied().max().unwrap_or(1);
    let max_text = if answers { 40 } else { 0 };
    let plan = RequestPlan {
        owed: Owed { text: answers, audio: speech },
        seed: script.seed,
        text: TOKENIZER.clone().filter(|_| answers),
        prompt_tokens,
        samples_per_second: SAMPLE_RATE,
        // As the planner counts them.
        max_events: 2 + max_text + 1 + (window + 2 * chunk) as usize,
        sequences,
        follow,
        codes: None,
        guard: None,
        media: plan_of_media,
    };
    Some(Planned { plan, expected, later: if answers { Vec::new() } else { pieces }, prompts })
}

/// The talker's prompt, and the codes that it and the vocoder begin with.
fn talker_prompt(of: &mut Random, shape: &Shape, user: u32, text: u32) -> (TalkerPrompt, Option<Arc<[u32]>>) {
    if !shape.two_stages {
        return (TalkerPrompt::omni(user, 9, &TOKENS), None);
    }
    let reference: Vec<u32> = (0..of.pick(&[0, 0, 3]) * GROUPS as u64).map(|_| of.below(100) as u32).collect();
    let plain = of.below(3) as u32;
    let mut coded = vec![(TextSide::Pad, CodecSide::Token(4)), (TextSide::Bos, CodecSide::Token(1))];
    coded.extend((0..reference.len() / GROUPS).map(|frame| (TextSide::Pad, CodecSide::Frame(frame as u32))));
    let trailing = of.pick(&[Trailing::Text, Trailing::Pad]);
    match trailing {
        Trailing::Text => coded.push((TextSide::Input(plain), CodecSide::Token(2))),
        Trailing::Pad => {
            coded.extend((plain..text.max(plain + 1)).map(|at| (TextSide::Input(at), CodecSide::Token(2))));
            coded.push((TextSide::Eos, CodecSide::Token(2)));
        }
    }
    let prompt = TalkerPrompt::new(plain, coded, trailing);
    if reference.is_empty() {
        return (prompt, None);
    }
    let reference: Arc<[u32]> = reference.into();
    (prompt.with_reference(Arc::clone(&reference)), Some(reference))
}

fn speech_sequences(
    script: &Script,
    shape: &Shape,
    prompt: TalkerPrompt,
    context: Option<Arc<[u32]>>,
    max_tokens: u32,
) -> [(StageName, SequencePlan); 2] {
    let deliver = Outputs { tokens: false, speech: true };
    let vocoder = VocoderSpec { context, goes_on: false };
    let params = |prompt, prompt_input, pace| SequenceParams {
        prompt,
        prompt_input,
        yields_after: if pace == Pace::OnePerStep { shape.ramp.first().copied().unwrap_or(0) } else { 0 },
        ..SequenceParams::unprompted(pace)
    };
    let talker = TalkerSpec {
        prompt: prompt.into(),
        generated_len: 0,
        sampling: SamplingParams::GREEDY,
        predictor: SamplingParams::GREEDY,
        max_tokens,
        min_tokens: 0,
        ignore_eos: false,
        seed: script.seed,
        forced: None,
        owner: None,
    };
    let talks = params(talker.prefill_positions(), talker.prefill_embeddings(), Pace::OnePerStep);
    let sounds = params(vocoder.context_frames(GROUPS), 0, Pace::Chunks(shape.ramp.clone()));
    [
        (StageName::Talker, SequencePlan { params: talks, spec: SequenceSpec::Talker(talker), deliver }),
        (StageName::Vocoder, SequencePlan { params: sounds, spec: SequenceSpec::Vocoder(vocoder), deliver }),
    ]
}

/// A text in so many pieces, the last of which may be the news of the end alone.
fn pieces(text: &[u32], count: u32) -> Vec<(u32, FollowedText)> {
    let each = text.len().div_ceil(count as usize).max(1);
    let mut pieces: Vec<_> = text
        .chunks(each)
        .enumerate()
        .map(|(at, tokens)| ((at * each) as u32, FollowedText { tokens: tokens.to_vec(), ended: count == 1 }))
        .collect();
    if count > 1 || pieces.is_empty() {
        pieces.push((text.len() as u32, FollowedText { tokens: Vec::new(), ended: true }));
    }
    pieces
}
