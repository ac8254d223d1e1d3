//! What the thinker on a GPU keeps of prompts and answers, against one that keeps nothing: the same tokens and the same
//! bits for the talker.

use crate::gpu;
use crate::thinker::{Said, alone, request};
use candle_core::{Device, Tensor};
use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::Gpu;
use omni_actors::cuda::thinker::{CudaThinker, KeptMemory, ThinkerNet, ThinkerOptions};
use omni_actors::model::Checkpoint;
use omni_actors::model::embeddings::Embeddings;
use omni_actors::model::hf::ThinkerConfig;
use omni_actors::model::media::{MediaKind, MediaLayout, Positions, Span};
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    EncodedPart, Launched, Reuse, SequenceSpec, SequenceWork, StageData, StageModel, ThinkerMode, ThinkerSpec,
};
use omni_actors::telemetry::trace::Recorder;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

const OPTIONS: ThinkerOptions = ThinkerOptions {
    slots: 8,
    batch: 8,
    prefill_chunk: 32,
    run_ahead: 2,
    kv_memory: None,
    embeddings_in_step: false,
    persistent: None,
};
/// Room for whatever a test says.
const ENOUGH: usize = 64 << 20;

/// The tiny fixture on the GPU.
pub(crate) struct Fixture {
    pub(crate) gpu: Gpu,
    net: Arc<ThinkerNet>,
    pub(crate) config: ThinkerConfig,
}

pub(crate) fn fixture(precision: Precision) -> Fixture {
    let checkpoint =
        Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni")).unwrap();
    let config = checkpoint.omni().unwrap().thinker.clone();
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let gpu = gpu();
    let net = Arc::new(ThinkerNet::load(&gpu, precision, &loader, &config).unwrap());
    loader.finish().unwrap();
    Fixture { gpu, net, config }
}

impl Fixture {
    /// A stage that keeps so many bytes.
    pub(crate) fn keeps(&self, bytes: usize) -> CudaThinker {
        self.stage(&OPTIONS, &KeptMemory::new(bytes, 0))
    }

    fn stage(&self, options: &ThinkerOptions, kept: &KeptMemory) -> CudaThinker {
        CudaThinker::new(Arc::clone(&self.net), options, kept, Recorder::default()).unwrap()
    }

    /// Bytes of a page of a stage that keeps prompts: keys and values of 6 layers with 2 heads of 32 numbers, and hidden
    /// states.
    fn page_bytes(&self) -> usize {
        16 * (2 * 6 * 2 * 32 + self.config.text.hidden_size) * size_of::<f32>()
    }
}

fn reuse(owner: u8) -> Option<Reuse> {
    Some(Reuse { owner: [owner; 32], media: [].into() })
}

/// A prompt of so many tokens, all of which the talker takes, in one of the ways to sample.
fn text(way: u32, prompt: Vec<u32>, vocabulary: u32) -> ThinkerSpec {
    let emit = Some(std::iter::once(0..prompt.len() as u32).collect());
    ThinkerSpec { prompt: prompt.into(), emit, max_tokens: 21, reuse: reuse(1), ..request(way, vocabulary) }
}

#[test]
#[ignore = "needs a GPU"]
fn turns_of_text_say_what_they_say_where_nothing_is_kept_in_each_way_to_sample() {
    let fixture = fixture(Precision::F32);
    let vocabulary = fixture.net.vocabulary();
    let mut without = fixture.keeps(0);
    for chunk in [1000, 7, 40] {
        let mut keeps = fixture.keeps(ENOUGH);
        for way in 0..6 {
            let mut prompt: Vec<u32> = (0..37).map(|at| (at * 31 + way) % vocabulary).collect();
            for turn in 0..4 {
                let spec = text(way, prompt.clone(), vocabulary);
                let want = alone(&mut without, &spec, 1000);
                assert_eq!(alone(&mut keeps, &spec, chunk), want, "way {way}, turn {turn} in pieces of {chunk}");
                assert_eq!(alone(&mut keeps, &spec, chunk), want, "way {way}, turn {turn} again");
                prompt.extend(&want.tokens[..want.tokens.len() - 1]);
                prompt.extend((0..11 + turn).map(|at| (at * 7 + turn) % vocabulary));
            }
            assert!(keeps.idle_pages() > 0);
        }
        assert_eq!(keeps.kv_pages().0, 0, "no sequence is left");
    }
    assert_eq!((without.kv_pages().0, without.idle_pages()), (0, 0));
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_that_begin_alike_have_the_pages_of_their_beginning_together() {
    let fixture = fixture(Precision::F32);
    let mut stage = fixture.keeps(ENOUGH);
    let spec = text(0, (0..80).collect(), fixture.net.vocabulary());
    for (slot, expected) in [(0, 5), (1, 6), (2, 7)] {
        stage.open(Slot(slot), SequenceSpec::Thinker(spec.clone())).unwrap();
        stage.step(&[SequenceWork { slot: Slot(slot), advance: 80 }]).unwrap().remove(0).unwrap();
        assert_eq!(stage.kv_pages().0, expected, "five pages, and one of its own for each other sequence");
    }
    let other = ThinkerSpec { reuse: reuse(2), ..spec };
    stage.open(Slot(3), SequenceSpec::Thinker(other)).unwrap();
    stage.step(&[SequenceWork { slot: Slot(3), advance: 80 }]).unwrap().remove(0).unwrap();
    assert_eq!(stage.kv_pages().0, 12, "another owner finds nothing");
    (0..4).for_each(|slot| stage.close(Slot(slot)));
    assert_eq!((stage.kv_pages().0, stage.idle_pages()), (0, 10), "five pages of each owner");
}

/// A sequence, the launch before which it is opened, and that before which it is cancelled.
struct Ask {
    slot: Slot,
    from: u32,
    until: u32,
    spec: ThinkerSpec,
}

/// All of them, with two steps launched ahead; what each has said.
fn together(stage: &mut CudaThinker, asks: &[Ask], chunk: u32) -> Vec<Said> {
    let mut said: Vec<Said> = asks.iter().map(|_| Said::default()).collect();
    let mut left: Vec<u32> = asks.iter().map(|ask| ask.spec.prompt.len() as u32).collect();
    let mut running = BTreeSet::new();
    let mut pending: VecDeque<(Vec<usize>, Launched)> = VecDeque::new();
    let last = asks.iter().map(|ask| ask.from).max().unwrap();
    for launch in 0.. {
        for (number, ask) in asks.iter().enumerate() {
            if ask.until == launch && running.remove(&number) {
                stage.close(ask.slot);
            }
        }
        for (number, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.from == launch) {
            stage.open(ask.slot, SequenceSpec::Thinker(ask.spec.clone())).unwrap();
            running.insert(number);
        }
        let of: Vec<usize> = running.iter().copied().collect();
        let mut advance = |number: usize| {
            let advance = chunk.min(left[number]).max(1);
            left[number] -= advance.min(left[number]);
            SequenceWork { slot: asks[number].slot, advance }
        };
        let work: Vec<SequenceWork> = of.iter().map(|number| advance(*number)).collect();
        if !work.is_empty() {
            pending.push_back((of, stage.launch(&work).unwrap()));
        }
        while pending.len() > if work.is_empty() { 0 } else { 2 } {
            let (of, step) = pending.pop_front().unwrap();
            for (number, output) in of.into_iter().zip(step.wait().unwrap().sequences) {
                if running.contains(&number) {
                    said[number].take(output.unwrap());
                    if said[number].finish.is_some() {
                        stage.close(asks[number].slot);
                        running.remove(&number);
                    }
                }
            }
        }
        if running.is_empty() && pending.is_empty() && launch > last {
            break;
        }
    }
    said
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_that_share_pages_say_what_they_say_alone_when_one_of_them_is_cancelled() {
    let fixture = fixture(Precision::F32);
    let vocabulary = fixture.net.vocabulary();
    let (mut without, mut keeps) = (fixture.keeps(0), fixture.keeps(ENOUGH));
    let prompt = |own: u32| (0..64).chain((0..own % 20).map(|at| (at * own + 100) % vocabulary)).collect();
    let ask = |number: u32, until| {
        let spec = text(number, prompt(number * 7 + 3), vocabulary);
        Ask { slot: Slot(number), from: 2 * number, until, spec }
    };
    let mut asks: Vec<Ask> = (0..6).map(|number| ask(number, u32::MAX)).collect();
    // The one that computed what the others use, while they use it; its slot is given to another prompt at once.
    asks[0].until = 9;
    let other = text(4, (0..150).map(|at| at * 3 % vocabulary).collect(), vocabulary);
    asks.push(Ask { slot: Slot(0), from: 9, until: u32::MAX, spec: other });
    for chunk in [40, 13, 1000] {
        let blocking = fixture.gpu.blocking_calls();
        let said = together(&mut keeps, &asks, chunk);
        assert_eq!(fixture.gpu.blocking_calls(), blocking, "no launch waits for the device");
        for (number, (said, ask)) in said.iter().zip(&asks).enumerate() {
            let want = alone(&mut without, &ask.spec, 1000);
            if said.finish.is_none() {
                assert_eq!(ask.until, 9, "sequence {number} has not ended");
                assert_eq!(said.tokens, want.tokens[..said.tokens.len()], "the cancelled one, pieces of {chunk}");
            } else {
                assert_eq!(*said, want, "sequence {number} in pieces of {chunk}");
            }
        }
        assert_eq!(keeps.kv_pages().0, 0);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_is_idle_goes_before_a_sequence_fails_for_want_of_pages() {
    let fixture = fixture(Precision::F32);
    let vocabulary = fixture.net.vocabulary();
    let mut without = fixture.keeps(0);
    let kv_memory = Some(14 * fixture.page_bytes() as u64);
    let options = ThinkerOptions { kv_memory, ..OPTIONS };
    let mut keeps = fixture.stage(&options, &KeptMemory::new(ENOUGH, 0));
    assert_eq!(keeps.kv_pages(), (0, 14));
    // 7 pages each at most, two at once: all pages, so what others have left has to go.
    let spec = |number: u32| {
        text(number, (0..70 + number % 20).map(|at| (at * 13 + number / 2 * 5) % vocabulary).collect(), vocabulary)
    };
    for number in 0..12 {
        let pair = [number, (number + 5) % 12].map(spec);
        let asks = [(0, 0), (1, 1)].map(|(slot, from)| Ask {
            slot: Slot(slot),
            from,
            until: u32::MAX,
            spec: pair[slot as usize].clone(),
        });
        for (said, spec) in together(&mut keeps, &asks, 24).iter().zip(&pair) {
            assert_eq!(*said, alone(&mut without, spec, 1000), "pair {number}");
        }
        assert_eq!(keeps.kv_pages().0, 0);
    }
    assert!(keeps.idle_pages() > 7, "{} pages are kept", keeps.idle_pages());
}

/// A conversation of `turns` times a text, a sound and a picture, on three axes, of which the talker takes all. Its
/// embeddings are numbers of no meaning.
pub(crate) fn heard_and_seen(config: &ThinkerConfig, turns: u32) -> (ThinkerSpec, Vec<Tensor>) {
    const TURN: u32 = 45;
    let mut layout = MediaLayout { positions: None, spans: Vec::new() };
    let (mut rows, mut hashes) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        for (number, kind, at) in [(1, MediaKind::Audio, 7..20), (2, MediaKind::Image, 22..34)] {
            let at = (turn * TURN + at.start) as usize..(turn * TURN + at.end) as usize;
            let (count, width) = (at.len(), config.media_width(kind));
            let number = turn * 10 + number;
            let value = |i: usize| ((i as u32 * 7919 + number * 104_729) % 1009) as f32 / 500.0 - 1.0;
            rows.push(Tensor::from_vec((0..count * width).map(value).collect(), (count, width), &Device::Cpu).unwrap());
            hashes.push([EncodedPart { rows: count as u32, hash: [number as u8; 32] }].into());
            layout.spans.push(Span { kind, at: vec![at] });
        }
    }
    // Of the picture the axes differ; what is behind it goes on from there.
    let axis = |axis: u32| (0..turns * TURN).map(|at| (at - if axis > 0 { at % TURN / 9 } else { 0 }) as f32).collect();
    layout.positions = Some(Positions { axes: [0, 1, 2].map(axis), delta: 3.0 });
    let spec = ThinkerSpec {
        prompt: (0..turns * TURN).map(|at| at * 31 % 500).collect(),
        generated_len: 0,
        mode: ThinkerMode::Sample,
        emit: Some(std::iter::once(0..turns * TURN).collect()),
        sampling: SamplingParams { repetition_penalty: 1.3, ..SamplingParams::GREEDY },
        eos: [].into(),
        max_tokens: 12,
        seed: 1,
        media: Some(layout.into()),
        reuse: Some(Reuse { owner: [1; 32], media: hashes.into() }),
    };
    (spec, rows)
}

/// What a conversation is answered, the prompt in pieces of `chunk`.
fn answered(stage: &mut CudaThinker, talk: &(ThinkerSpec, Vec<Tensor>), chunk: u32) -> Said {
    answered_and_found(stage, talk, chunk).0
}

/// The same, and how many positions of the prompt were not computed.
fn answered_and_found(stage: &mut CudaThinker, (spec, rows): &(ThinkerSpec, Vec<Tensor>), chunk: u32) -> (Said, u32) {
    answered_with(stage, spec, rows.iter().cloned().map(Embeddings::from), chunk)
}

/// The same with these embeddings of the media.
pub(crate) fn answered_with(
    stage: &mut CudaThinker,
    spec: &ThinkerSpec,
    rows: impl IntoIterator<Item = Embeddings>,
    chunk: u32,
) -> (Said, u32) {
    let (slot, mut said, mut found, mut left) = (Slot(5), Said::default(), 0, spec.prompt.len() as u32);
    stage.open(slot, SequenceSpec::Thinker(spec.clone())).unwrap();
    for rows in rows {
        stage.push_input(slot, Some(StageData::Embeddings(rows)), false).unwrap();
    }
    while said.finish.is_none() {
        let advance = chunk.min(left).max(1);
        left -= advance.min(left);
        let output = stage.step(&[SequenceWork { slot, advance }]).unwrap().remove(0).unwrap();
        found += output.cached;
        said.take(output);
    }
    stage.close(slot);
    (said, found)
}

#[test]
#[ignore = "needs a GPU"]
fn conversations_that_have_left_the_device_come_back_from_the_host_bit_by_bit() {
    for precision in [Precision::F32, Precision::Bf16] {
        let fixture = fixture(precision);
        let talk = |turns, owner: u8| {
            let (mut spec, rows) = heard_and_seen(&fixture.config, turns);
            spec.reuse.as_mut().unwrap().owner = [owner; 32];
            (spec, rows)
        };
        let mut without = fixture.keeps(0);
        let expected = [1, 2, 3].map(|turns| answered(&mut without, &talk(turns, 1), 1000));
        // Three pages idle on the device; the host has room for all that follows, or for less than a conversation each.
        for slots in [60, 9] {
            let page = fixture.page_bytes();
            let kept = KeptMemory::new(3 * page, slots * page);
            for generation in 0..2 {
                let mut keeps = fixture.stage(&OPTIONS, &kept);
                let blocking = fixture.gpu.blocking_calls();
                for (turns, chunk) in [(1u32, 1000), (2, 20), (3, 33)] {
                    for owner in 0..4 {
                        let case = format!(
                            "{}, {slots} slots, generation {generation}: turn {turns} of {owner}",
                            precision.as_str()
                        );
                        let (said, found) = answered_and_found(&mut keeps, &talk(turns, owner), chunk);
                        assert_eq!(said, expected[turns as usize - 1], "{case}");
                        let whole = (turns - 1) * 45 / 16 * 16;
                        assert!(
                            found == whole || (slots == 9 && found < whole),
                            "{case}: {found} of {whole} positions"
                        );
                    }
                }
                assert_eq!(fixture.gpu.blocking_calls(), blocking, "no launch waits for the device");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_the_talker_gets_of_kept_sound_and_pictures_has_the_bits_of_what_was_computed() {
    for precision in [Precision::F32, Precision::Bf16] {
        let fixture = fixture(precision);
        let talks = [1, 2, 3].map(|turns| heard_and_seen(&fixture.config, turns));
        let mut without = fixture.keeps(0);
        let expected = talks.each_ref().map(|talk| answered(&mut without, talk, 1000));
        for chunk in [5, 33] {
            let cut = answered(&mut without, &talks[2], chunk);
            assert_eq!(cut, expected[2], "{}: where nothing is kept, in pieces of {chunk}", precision.as_str());
        }
        for chunks in [[1000, 1000, 1000], [5, 16, 1], [33, 7, 64]] {
            let mut keeps = fixture.keeps(ENOUGH);
            for (turn, chunk) in chunks.into_iter().enumerate() {
                let case = format!("{}: turn {turn} in pieces of {chunk}", precision.as_str());
                assert_eq!(answered(&mut keeps, &talks[turn], chunk), expected[turn], "{case}");
                assert_eq!(answered(&mut keeps, &talks[turn], chunk), expected[turn], "{case}, again");
            }
        }
        // With a little room some pages come and go.
        for pages in [1, 2, 4, 5] {
            let mut keeps = fixture.keeps(pages * fixture.page_bytes());
            for turn in [0, 1, 0, 2, 1, 2] {
                let case = format!("{}: turn {turn}, {pages} pages kept", precision.as_str());
                assert_eq!(answered(&mut keeps, &talks[turn], 20), expected[turn], "{case}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn embeddings_of_media_that_are_kept_need_not_come() {
    let fixture = fixture(Precision::F32);
    let mut stage = fixture.keeps(ENOUGH);
    let talks = [1, 2].map(|turns| heard_and_seen(&fixture.config, turns));
    answered(&mut stage, &talks[0], 1000);
    let slot = Slot(1);
    stage.open(slot, SequenceSpec::Thinker(talks[1].0.clone())).unwrap();
    // Two pages of the first turn are kept; the third one lacks what stands behind it.
    assert!(stage.step(&[SequenceWork { slot, advance: 32 }]).unwrap().remove(0).is_ok());
    let error = stage.step(&[SequenceWork { slot, advance: 5 }]).unwrap().remove(0).unwrap_err().to_string();
    assert!(error.contains("has not arrived"), "{error}");
    for rows in &talks[1].1 {
        stage.push_input(slot, Some(StageData::Embeddings(rows.clone().into())), false).unwrap();
    }
    assert!(stage.step(&[SequenceWork { slot, advance: 58 }]).unwrap().remove(0).is_ok(), "it can go on");
    stage.close(slot);
}
