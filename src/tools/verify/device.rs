//! Runs cases on the stages of a device, through the trait that serving drives: prompts in, codes and samples out.
//!
//! Where a device computes in f32, its codes must equal the reference's, as on the CPU. Where it rounds, codes diverge
//! after the first close decision, so the reference's codes are *forced* on it: the verdict counts how often it would
//! have picked the same, and measures how much of the sound is lost.

use super::batch::{self, Part};
use super::case;
use super::encode::{Encode, EncoderStage};
use super::generate::{Trace, spoken, with_media};
use super::manifest::{Kind, Manifest};
use super::media::Media;
use super::nets::Nets;
use super::report::{Judgement, Picks, Verdict};
use super::thought::Answer;
use super::value::{Data, Value, Values};
use super::vocode::{self, Decoder};
use super::{VerifyError, towers, tts};
use omni_config::Precision;
use omni_core::ids::Slot;
use omni_model::hf::VocoderConfig;
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceOutput, SequenceSpec, SequenceWork, StageData, StageModel, TalkerSpec, VocoderSpec};
use omni_model::talker::TalkerPrompt;
use omni_model::{Checkpoint, LoadError, ModelError};
use std::cell::RefMut;
use std::sync::Arc;

/// Requests of a case that run at once at most; those of a larger batch follow.
pub(super) const AT_ONCE: usize = 8;
/// The vocoder's slot: streams run one after the other.
const SLOT: Slot = Slot(0);
/// Frames of a step of the vocoder.
const CHUNK: usize = 8;

/// Makes the stages that cases run on.
pub trait StageSource {
    /// Element type of weights and caches. Of [`Precision::F32`] everything must equal the reference.
    fn precision(&self) -> Precision;

    /// An encoder of sound and pictures for one sequence.
    ///
    /// # Errors
    /// When the checkpoint cannot be read or is not served, or the device has no room.
    fn encoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError>;

    /// A thinker for one sequence.
    ///
    /// # Errors
    /// When the checkpoint cannot be read or is not served, or the device has no room.
    fn thinker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError>;

    /// A talker for up to 8 sequences.
    ///
    /// # Errors
    /// When the checkpoint cannot be read or is not served, or the device has no room.
    fn talker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError>;

    /// A vocoder for one sequence.
    ///
    /// # Errors
    /// Those of [`StageSource::talker`].
    fn vocoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError>;
}

/// The stages of a checkpoint, made when a case needs them.
#[derive(Default)]
pub(super) struct Stages {
    encoder: Option<Box<dyn StageModel>>,
    thinker: Option<Box<dyn StageModel>>,
    talker: Option<Box<dyn StageModel>>,
    vocoder: Option<Box<dyn StageModel>>,
}

/// The GPU of this number.
///
/// # Errors
/// [`VerifyError::Device`] when there is no usable one, or this binary has no engine for it.
pub fn gpu(index: usize, precision: Precision) -> Result<Box<dyn StageSource>, VerifyError> {
    omni_engine::device::find(index).map_err(VerifyError::Device)?;
    open(index, precision)
}

#[cfg(not(feature = "cuda"))]
fn open(_: usize, _: Precision) -> Result<Box<dyn StageSource>, VerifyError> {
    Err(VerifyError::Device("this program runs nothing on a GPU".into()))
}

#[cfg(feature = "cuda")]
fn open(index: usize, precision: Precision) -> Result<Box<dyn StageSource>, VerifyError> {
    let gpu = omni_cuda::Gpu::open(index).map_err(|e| VerifyError::Device(e.to_string()))?;
    Ok(Box::new(super::on_gpu::OnGpu { gpu, precision }))
}

/// The token that ends a case's speech, which stages take from their config; `None` where nothing is spoken.
///
/// # Errors
/// When the manifest names none or several.
pub(super) fn end(manifest: &Manifest) -> Result<Option<u32>, String> {
    let key = match manifest.kind {
        Kind::TtsGenerate => "eos",
        Kind::OmniGenerate => "talker_eos",
        Kind::Vocoder | Kind::TtsFrontend | Kind::Frontend(_) | Kind::AudioTower | Kind::VisionTower => {
            return Ok(None);
        }
    };
    match manifest.wholes(key)?[..] {
        [end] => Ok(Some(end)),
        ref ends => Err(format!("meta.{key} has {} tokens, and a stage ends with one", ends.len())),
    }
}

/// Runs a case.
pub(super) fn run(
    manifest: &Manifest,
    reference: Values,
    nets: &Nets,
    source: &dyn StageSource,
) -> Result<Verdict, String> {
    case::complete(manifest, &reference)?;
    let mut parts = batch::split(manifest, reference)?;
    let (mut notes, mut picks) = (case::batch_note(&parts), Picks::default());
    let mut computed = Vec::new();
    match manifest.kind {
        Kind::Vocoder => computed.push(vocode::waves(&parts[0].reference, &mut Sound::new(nets, source)?)?),
        Kind::TtsGenerate | Kind::OmniGenerate => {
            let speech = |Part { manifest, reference }: &mut Part| match manifest.kind {
                Kind::TtsGenerate => Speech::tts(manifest, reference, nets),
                _ => Speech::omni(manifest, reference, (nets, source)),
            };
            let speeches = parts.iter_mut().map(speech).collect::<Result<Vec<_>, _>>()?;
            let traces = match source.precision() {
                Precision::F32 => free(&speeches, nets, source)?,
                Precision::Bf16 => forced(&speeches, nets, source, &mut picks)?,
            };
            for ((part, speech), trace) in parts.iter_mut().zip(&speeches).zip(traces) {
                let sound = || Sound::new(nets, source);
                computed.push(case::wave(trace, &speech.recording, &mut part.reference, sound, &mut notes)?);
            }
        }
        Kind::Frontend(_) => return Err("a front end has no net".into()),
        Kind::AudioTower => {
            computed.push(encoding(nets, source, |encoder| towers::audio(&mut parts[0].reference, encoder))?);
        }
        Kind::VisionTower => {
            computed.push(encoding(nets, source, |encoder| towers::vision(&mut parts[0].reference, encoder))?);
        }
        Kind::TtsFrontend => return Err("this computes on a CPU".into()),
    }
    let mut pairs: Vec<_> = parts.into_iter().map(|part| part.reference).zip(computed).collect();
    for (reference, computed) in &mut pairs {
        reference.retain(|name, _| computed.contains_key(name));
    }
    if pairs.iter().all(|(reference, _)| reference.is_empty()) && picks == Picks::default() {
        return Err(format!("{}.safetensors has no tensor that this device computes", manifest.name));
    }
    Ok(match source.precision() {
        Precision::F32 => Verdict::Compared { comparison: Box::new(batch::compare_all(&pairs)), notes },
        Precision::Bf16 => {
            let sound = pairs.iter().flat_map(|(reference, computed)| {
                reference.iter().filter_map(|(name, want)| Some((name.clone(), want.snr(&computed[name])?)))
            });
            let worst = sound.min_by(|(_, a), (_, b)| a.total_cmp(b));
            Verdict::Judged { judgement: Judgement { picks, worst }, notes }
        }
    })
}

/// Lets `with` encode by the device's stage.
fn encoding<T>(
    nets: &Nets,
    source: &dyn StageSource,
    with: impl FnOnce(&mut dyn Encode) -> Result<T, String>,
) -> Result<T, String> {
    let mut stages = nets.stages.borrow_mut();
    let stage = match &mut stages.encoder {
        Some(encoder) => encoder,
        none => none.insert(source.encoder(&nets.checkpoint).map_err(|e| e.to_string())?),
    };
    let config = &nets.checkpoint.omni().map_err(|e| e.to_string())?.thinker;
    with(&mut EncoderStage { stage: stage.as_mut(), config })
}

/// The speech of a case.
struct Speech {
    sequence: TalkerSpec,
    input: Option<StageData>,
    /// Codes of the recording that the speech continues, frame after frame.
    recording: Vec<u32>,
    /// The reference's codes, frame after frame.
    codes: Vec<u32>,
    /// The reference's codes 0, the one that has no frame included.
    first: Vec<u32>,
    /// Codes of a frame.
    groups: usize,
    /// Whether the reference keeps codes group after group.
    by_group: bool,
    /// Prompt and answer as the device's thinker gave it.
    thought: Option<Vec<u32>>,
}

impl Speech {
    fn tts(manifest: &Manifest, reference: &mut Values, nets: &Nets) -> Result<Speech, String> {
        let prompter = nets.checkpoint.tts_prompter().map_err(|e| e.to_string())?;
        let case = tts::prepare(manifest, reference, &prompter)?;
        let limits = (case.min_tokens, case.limit);
        let input = Some(StageData::Tokens(case.prompt.tokens));
        let speech = Speech::new(case.prompt.prompt, input, limits, case.repetition_penalty, (reference, nets))?;
        Ok(Speech { recording: case.recording, ..speech })
    }

    /// An answer of the device's thinker, spoken.
    fn omni(
        manifest: &Manifest,
        reference: &mut Values,
        (nets, source): (&Nets, &dyn StageSource),
    ) -> Result<Speech, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let (request, _) = case::request(manifest, reference, nets)?;
        let config = nets.checkpoint.omni().map_err(|e| text(&e))?;
        let media = Media::read(reference, &request.prompt.ids, config.thinker.media, |media| {
            encoding(nets, source, |encoder| media.by(encoder))
        })?;
        let all = reference.get("thinker.sequences").ok_or("the tensor thinker.sequences is missing")?.tokens()?;
        // Where a device rounds, the reference's answer is said up to its last token.
        let known = match source.precision() {
            Precision::F32 => &[],
            Precision::Bf16 => all.get(request.prompt.ids.len()..all.len() - 1).unwrap_or_default(),
        };
        let mut stages = nets.stages.borrow_mut();
        let stage = match &mut stages.thinker {
            Some(thinker) => thinker,
            none => none.insert(source.thinker(&nets.checkpoint).map_err(|e| text(&e))?),
        };
        let answer = Answer::of(stage.as_mut(), &request, media.as_ref(), known).map_err(|e| text(&e))?;
        drop(stages);
        let (prompt, _) = spoken(config, &request, &answer.tokens).map_err(|e| text(&e))?;
        let prompt = media.as_ref().map_or(prompt.clone(), |media| with_media(prompt, &request, media));
        let limits = (0, request.codec_tokens as u32);
        let input = Some(StageData::Embeddings(answer.embeddings.into()));
        let speech = Speech::new(prompt.into(), input, limits, request.repetition_penalty, (reference, nets))?;
        let thought = request.prompt.ids.iter().copied().chain(answer.tokens).collect();
        Ok(Speech { thought: Some(thought), ..speech })
    }

    /// The sequence of a case, greedy.
    fn new(
        prompt: Arc<TalkerPrompt>,
        input: Option<StageData>,
        (min_tokens, max_tokens): (u32, u32),
        repetition_penalty: f32,
        (reference, nets): (&Values, &Nets),
    ) -> Result<Speech, String> {
        let groups = nets.checkpoint.family().talker().num_code_groups;
        let name = "talker.codec0_sequence";
        let first = reference.get(name).ok_or_else(|| format!("the tensor {name} is missing"))?.tokens()?;
        let (codes, by_group) = match reference.get("codes") {
            None => (Vec::new(), false),
            Some(codes) => frames(codes, groups)?,
        };
        if !codes.iter().step_by(groups).zip(&first).all(|(code, first)| code == first)
            || codes.len() / groups > first.len()
        {
            return Err(format!("codes do not begin with {name}"));
        }
        let sequence = TalkerSpec {
            generated_len: 0,
            prompt,
            sampling: SamplingParams { repetition_penalty, ..SamplingParams::GREEDY },
            predictor: SamplingParams::GREEDY,
            max_tokens,
            min_tokens,
            ignore_eos: false,
            seed: 0,
            forced: None,
            owner: None,
        };
        Ok(Speech { sequence, input, recording: Vec::new(), codes, first, groups, by_group, thought: None })
    }

    /// The outputs of a run in the reference's layout.
    fn trace(&self, outputs: Vec<SequenceOutput>) -> Trace {
        let mut trace = Trace::default();
        let first: Vec<u32> = outputs.iter().filter_map(|output| output.sampled).collect();
        trace.ints("talker.codec0_sequence", [1, first.len()], first);
        if let Some(thought) = &self.thought {
            trace.ints("thinker.sequences", [1, thought.len()], thought.iter().copied());
        }
        trace.frames = outputs
            .into_iter()
            .filter_map(|output| match output.emit {
                Some(StageData::Codes(codes)) => Some(codes),
                _ => None,
            })
            .collect();
        let (frames, groups) = (&trace.frames, self.groups);
        let (count, codes) = (frames.len(), frames.concat());
        if count == 0 {
            return trace;
        }
        if self.by_group {
            let codes: Vec<u32> = (0..groups).flat_map(|g| frames.iter().map(move |frame| frame[g])).collect();
            trace.ints("codes", [1, groups, count], codes);
        } else {
            trace.ints("codes", [count, groups], codes);
        }
        trace
    }

    /// Counts how often a run that was forced would have picked the reference's codes.
    fn count(&self, outputs: &[SequenceOutput], picks: &mut Picks) -> Result<(), String> {
        let frames: Vec<&[u32]> = self.codes.chunks(self.groups).collect();
        for (at, first) in self.first.iter().enumerate() {
            // The last step has no frame and is not forced.
            let picked = outputs.get(at).map(|output| (output.picked.as_deref(), output.sampled));
            match (frames.get(at), picked) {
                (Some(frame), Some((Some(picked), _))) => {
                    frame.iter().zip(picked).enumerate().for_each(|(group, (a, b))| picks.count(group, a == b));
                }
                (None, Some((_, Some(sampled)))) => picks.count(0, sampled == *first),
                _ => return Err(format!("the speech ended before step {at}, which was forced upon it")),
            }
        }
        Ok(())
    }
}

/// Runs speeches unforced.
fn free(speeches: &[Speech], nets: &Nets, source: &dyn StageSource) -> Result<Vec<Trace>, String> {
    let sequences = speeches.iter().map(|speech| (speech, speech.sequence.clone(), u32::MAX)).collect();
    let outputs = talk(sequences, nets, source)?;
    Ok(speeches.iter().zip(outputs).map(|(speech, outputs)| speech.trace(outputs)).collect())
}

/// Forces the reference's codes and counts the device's own picks. The traces have the reference's frames.
fn forced(speeches: &[Speech], nets: &Nets, source: &dyn StageSource, picks: &mut Picks) -> Result<Vec<Trace>, String> {
    let sequences = speeches.iter().map(|speech| {
        let sequence = TalkerSpec { forced: Some(speech.codes.as_slice().into()), ..speech.sequence.clone() };
        (speech, sequence, speech.first.len() as u32)
    });
    let outputs = talk(sequences.collect(), nets, source)?;
    let mut traces = Vec::new();
    for (speech, outputs) in speeches.iter().zip(outputs) {
        speech.count(&outputs, picks)?;
        let frames = speech.codes.chunks(speech.groups).map(<[u32]>::to_vec).collect();
        traces.push(Trace { frames, ..Trace::default() });
    }
    Ok(traces)
}

/// Runs sequences, each at most so many steps, in batches as large as the stage takes.
fn talk(
    sequences: Vec<(&Speech, TalkerSpec, u32)>,
    nets: &Nets,
    source: &dyn StageSource,
) -> Result<Vec<Vec<SequenceOutput>>, String> {
    let mut stages = nets.stages.borrow_mut();
    let talker = match &mut stages.talker {
        Some(talker) => talker,
        none => none.insert(source.talker(&nets.checkpoint).map_err(|e| e.to_string())?),
    };
    let mut outputs = Vec::new();
    for batch in sequences.chunks(AT_ONCE) {
        let found = talk_at_once(talker.as_mut(), batch).map_err(|e| e.to_string());
        (0..batch.len()).for_each(|i| talker.close(Slot(i as u32)));
        outputs.extend(found?);
    }
    Ok(outputs)
}

/// Prefills one sequence after the other, then lets all that have not ended share each step.
fn talk_at_once(
    talker: &mut dyn StageModel,
    batch: &[(&Speech, TalkerSpec, u32)],
) -> Result<Vec<Vec<SequenceOutput>>, ModelError> {
    let mut outputs = Vec::new();
    for (i, (speech, sequence, _)) in batch.iter().enumerate() {
        let (slot, advance) = (Slot(i as u32), sequence.prefill_positions());
        talker.open(slot, SequenceSpec::Talker(sequence.clone()))?;
        talker.push_input(slot, speech.input.clone(), true)?;
        outputs.push(vec![step(talker, SequenceWork { slot, advance })?]);
    }
    loop {
        let speaks = |(i, (_, _, steps)): &(usize, &(&Speech, TalkerSpec, u32))| {
            let done: &[SequenceOutput] = &outputs[*i];
            let ended = done.last().is_some_and(|output| output.finish.is_some() || output.stale);
            !ended && (done.len() as u32) < *steps
        };
        let speaking: Vec<usize> = batch.iter().enumerate().filter(speaks).map(|(i, _)| i).collect();
        if speaking.is_empty() {
            return Ok(outputs);
        }
        let work: Vec<_> = speaking.iter().map(|i| SequenceWork { slot: Slot(*i as u32), advance: 1 }).collect();
        for (i, output) in speaking.into_iter().zip(talker.step(&work)?) {
            outputs[i].push(output?);
        }
    }
}

/// One step of one sequence.
pub(super) fn step(stage: &mut dyn StageModel, work: SequenceWork) -> Result<SequenceOutput, ModelError> {
    let outputs = stage.step(&[work])?;
    outputs.into_iter().next().unwrap_or_else(|| Err(ModelError::Sequence("the step has no output".into())))
}

/// Codes as the reference keeps them, `[frames, groups]` or `[1, groups, frames]`, frame after frame; and whether it is
/// the latter.
fn frames(codes: &Value, groups: usize) -> Result<(Vec<u32>, bool), String> {
    let all = codes.tokens().map_err(|e| format!("codes: {e}"))?;
    match codes.shape[..] {
        [_, g] if g == groups => Ok((all, false)),
        [1, g, total] if g == groups => {
            Ok(((0..total).flat_map(|frame| all.iter().skip(frame).step_by(total).copied()).collect(), true))
        }
        _ => Err(format!("codes has shape {:?}: expected [frames, {groups}] or [1, {groups}, frames]", codes.shape)),
    }
}

/// The vocoder of a device.
struct Sound<'a> {
    stage: RefMut<'a, Box<dyn StageModel>>,
    config: &'a VocoderConfig,
    /// Samples that a stream loses at its start.
    lost: u64,
}

impl<'a> Sound<'a> {
    fn new(nets: &'a Nets, source: &dyn StageSource) -> Result<Sound<'a>, String> {
        let mut stages = nets.stages.borrow_mut();
        if stages.vocoder.is_none() {
            stages.vocoder = Some(source.vocoder(&nets.checkpoint).map_err(|e| e.to_string())?);
        }
        let stage = RefMut::filter_map(stages, |stages| stages.vocoder.as_mut());
        let stage = stage.map_err(|_| "the vocoder is gone".to_owned())?;
        let config = nets.checkpoint.family().vocoder();
        let mut sound = Sound { stage, config, lost: 0 };
        // The first frame is shorter by them.
        let frame = sound.decode(&vec![0; config.num_quantizers])?.len();
        sound.lost = (config.samples_per_frame() as u64).saturating_sub(frame as u64);
        Ok(sound)
    }

    fn steps(&mut self, codes: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (stage, mut samples) = (self.stage.as_mut(), Vec::new());
        stage.open(SLOT, SequenceSpec::Vocoder(VocoderSpec::default()))?;
        stage.push_input(SLOT, Some(StageData::Codes(codes.to_vec())), true)?;
        let groups = self.config.num_quantizers;
        for chunk in codes.chunks(CHUNK * groups) {
            if let Some(StageData::Audio(piece)) =
                step(stage, SequenceWork { slot: SLOT, advance: (chunk.len() / groups) as u32 })?.emit
            {
                samples.extend(piece);
            }
        }
        Ok(samples)
    }
}

impl Decoder for Sound<'_> {
    fn config(&self) -> &VocoderConfig {
        self.config
    }

    fn samples(&self, frames: u64) -> u64 {
        (frames * self.config.samples_per_frame() as u64).saturating_sub(self.lost)
    }

    fn decode(&mut self, codes: &[u32]) -> Result<Vec<f32>, String> {
        let samples = if codes.is_empty() { Ok(Vec::new()) } else { self.steps(codes) };
        self.stage.close(SLOT);
        samples.map_err(|e| e.to_string())
    }
}

impl Value {
    /// Decibels of these floats above their difference from others; `None` where there are none.
    fn snr(&self, other: &Value) -> Option<f64> {
        let (Data::Floats(want), Data::Floats(have)) = (&self.data, &other.data) else { return None };
        if want.is_empty() && have.is_empty() {
            return None;
        }
        if want.len() != have.len() {
            return Some(f64::NEG_INFINITY);
        }
        let power = |square: &mut dyn Iterator<Item = f64>| square.map(|x| x * x).sum::<f64>();
        let noise = power(&mut want.iter().zip(have).map(|(a, b)| f64::from(*a) - f64::from(*b)));
        let snr = 10.0 * (power(&mut want.iter().copied().map(f64::from)) / noise).log10();
        Some(match noise {
            0.0 => f64::INFINITY,
            // NaN counts as total loss.
            _ if snr.is_nan() => f64::NEG_INFINITY,
            _ => snr,
        })
    }
}
