//! Runs cases on the stages of a device, through the trait that serving drives: prompts in, codes and samples out.
//!
//! Where a device computes in f32, what it says must equal the reference, as on the CPU. Where it rounds, codes come apart
//! after the first close call, so it is *forced* to say the reference's: what counts is how often it would have picked
//! the same, and how much of the sound is lost.

use super::case;
use super::compare::compare;
use super::generate::{Trace, spoken};
use super::manifest::{Kind, Manifest};
use super::nets::Nets;
use super::report::{Judgement, Picks, Verdict};
use super::value::{Data, Value, Values};
use super::vocode::{self, Decoder};
use super::{VerifyError, tts};
use omni_config::Precision;
use omni_core::ids::Slot;
use omni_model::hf::VocoderConfig;
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceOutput, SequenceSpec, SequenceWork, StageData, StageModel, TalkerSpec, VocoderSpec};
use omni_model::talker::TalkerPrompt;
use omni_model::{Checkpoint, LoadError, ModelError};
use std::cell::RefMut;
use std::sync::Arc;

/// The slot that cases run in, one after the other.
const SLOT: Slot = Slot(0);
/// Frames of a step of the vocoder.
const CHUNK: usize = 8;

/// Makes the stages that cases run on.
pub trait StageSource {
    /// Element type of weights and caches. Of [`Precision::F32`] everything must equal the reference.
    fn precision(&self) -> Precision;

    /// A talker for one sequence.
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

/// The stages of a checkpoint that have been needed so far.
#[derive(Default)]
pub(super) struct Stages {
    talker: Option<Box<dyn StageModel>>,
    vocoder: Option<Box<dyn StageModel>>,
}

/// The GPU of this number.
///
/// # Errors
/// [`VerifyError::Device`] when there is none that can be used, or this binary has no engine for it.
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
    Ok(Box::new(cuda::OnGpu { gpu, precision }))
}

/// The token that ends a case's speech, which stages take from their config; `None` where nothing is spoken.
///
/// # Errors
/// When the manifest names none or several.
pub(super) fn end(manifest: &Manifest) -> Result<Option<u32>, String> {
    let key = match manifest.kind {
        Kind::TtsGenerate => "eos",
        Kind::OmniGenerate => "talker_eos",
        Kind::Vocoder | Kind::TtsFrontend | Kind::NotBuilt(_) => return Ok(None),
    };
    match manifest.wholes(key)?[..] {
        [end] => Ok(Some(end)),
        ref ends => Err(format!("meta.{key} has {} tokens, and a stage ends with one", ends.len())),
    }
}

/// Runs a case.
pub(super) fn run(
    manifest: &Manifest,
    mut reference: Values,
    nets: &Nets,
    source: &dyn StageSource,
) -> Result<Verdict, String> {
    case::complete(manifest, &reference)?;
    let (mut notes, mut picks) = (Vec::new(), Picks::default());
    let computed = match manifest.kind {
        Kind::Vocoder => vocode::waves(&reference, &mut Sound::new(nets, source)?)?,
        Kind::TtsGenerate | Kind::OmniGenerate => {
            let speech = match manifest.kind {
                Kind::TtsGenerate => Speech::tts(manifest, &mut reference, nets)?,
                _ => Speech::omni(manifest, &reference, nets)?,
            };
            let trace = match source.precision() {
                Precision::F32 => speech.free(nets, source)?,
                Precision::Bf16 => {
                    let (trace, found) = speech.forced(nets, source)?;
                    picks = found;
                    trace
                }
            };
            let sound = || Sound::new(nets, source);
            case::wave(trace, &speech.recording, &mut reference, sound, &mut notes)?
        }
        Kind::TtsFrontend => return Ok(Verdict::Skipped("recordings are encoded on the CPU".into())),
        Kind::NotBuilt(kind) => return Ok(Verdict::Skipped(format!("{kind} is not built yet"))),
    };
    reference.retain(|name, _| computed.contains_key(name));
    if reference.is_empty() && picks == Picks::default() {
        return Err(format!("{}.safetensors has no tensor that this device computes", manifest.name));
    }
    Ok(match source.precision() {
        Precision::F32 => Verdict::Compared { comparison: Box::new(compare(&reference, &computed)), notes },
        Precision::Bf16 => {
            let sound = reference.iter().filter_map(|(name, want)| Some((name.clone(), want.snr(&computed[name])?)));
            let worst = sound.min_by(|(_, a), (_, b)| a.total_cmp(b));
            Verdict::Judged { judgement: Judgement { picks, worst }, notes }
        }
    })
}

/// What a case has spoken.
struct Speech {
    sequence: TalkerSpec,
    input: Option<StageData>,
    /// Codes of the recording that the speech goes on from, frame after frame.
    recording: Vec<u32>,
    /// The reference's codes, frame after frame.
    codes: Vec<u32>,
    /// The reference's codes 0, the one that has no frame included.
    first: Vec<u32>,
    /// Codes of a frame.
    groups: usize,
    /// Whether the reference keeps codes group after group.
    by_group: bool,
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

    /// The reference's answer, spoken.
    fn omni(manifest: &Manifest, reference: &Values, nets: &Nets) -> Result<Speech, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let (request, _) = case::request(manifest, reference, nets)?;
        let all = reference.get("thinker.sequences").ok_or("the tensor thinker.sequences is missing")?.tokens()?;
        let answer = all.get(request.prompt.ids.len()..).unwrap_or_default();
        let config = nets.checkpoint.omni().map_err(|e| text(&e))?;
        let (prompt, inputs) = spoken(config, &request, answer).map_err(|e| text(&e))?;
        let sequences = nets.thinker().map_err(|e| text(&e))?.embed(&inputs).map_err(|e| text(&e))?;
        let limits = (0, request.codec_tokens as u32);
        Speech::new(
            prompt.into(),
            Some(StageData::Embeddings(sequences.into())),
            limits,
            request.repetition_penalty,
            (reference, nets),
        )
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
        };
        Ok(Speech { sequence, input, recording: Vec::new(), codes, first, groups, by_group })
    }

    /// What the device says by itself.
    fn free(&self, nets: &Nets, source: &dyn StageSource) -> Result<Trace, String> {
        let outputs = self.run(self.sequence.clone(), u32::MAX, nets, source)?;
        let mut trace = Trace::default();
        let first: Vec<u32> = outputs.iter().filter_map(|output| output.sampled).collect();
        trace.ints("talker.codec0_sequence", [1, first.len()], first);
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
            return Ok(trace);
        }
        if self.by_group {
            let codes: Vec<u32> = (0..groups).flat_map(|g| frames.iter().map(move |frame| frame[g])).collect();
            trace.ints("codes", [1, groups, count], codes);
        } else {
            trace.ints("codes", [count, groups], codes);
        }
        Ok(trace)
    }

    /// What the device would pick at every step of the reference's speech. The trace has the reference's frames.
    fn forced(&self, nets: &Nets, source: &dyn StageSource) -> Result<(Trace, Picks), String> {
        let sequence = TalkerSpec { forced: Some(self.codes.as_slice().into()), ..self.sequence.clone() };
        let outputs = self.run(sequence, self.first.len() as u32, nets, source)?;
        let frames: Vec<Vec<u32>> = self.codes.chunks(self.groups).map(<[u32]>::to_vec).collect();
        let mut picks = Picks::default();
        for (at, first) in self.first.iter().enumerate() {
            // What has no frame is not forced: it is the last step.
            let picked = outputs.get(at).map(|output| (output.picked.as_deref(), output.sampled));
            match (frames.get(at), picked) {
                (Some(frame), Some((Some(picked), _))) => {
                    frame.iter().zip(picked).enumerate().for_each(|(group, (a, b))| picks.count(group, a == b));
                }
                (None, Some((_, Some(sampled)))) => picks.count(0, sampled == *first),
                _ => return Err(format!("the speech ended before step {at}, which was forced upon it")),
            }
        }
        Ok((Trace { frames, ..Trace::default() }, picks))
    }

    /// At most so many steps of a sequence.
    fn run(
        &self,
        sequence: TalkerSpec,
        steps: u32,
        nets: &Nets,
        source: &dyn StageSource,
    ) -> Result<Vec<SequenceOutput>, String> {
        let mut stages = nets.stages.borrow_mut();
        let talker = match &mut stages.talker {
            Some(talker) => talker,
            none => none.insert(source.talker(&nets.checkpoint).map_err(|e| e.to_string())?),
        };
        let outputs = self.steps(talker.as_mut(), sequence, steps).map_err(|e| e.to_string());
        talker.close(SLOT);
        outputs
    }

    fn steps(
        &self,
        talker: &mut dyn StageModel,
        sequence: TalkerSpec,
        steps: u32,
    ) -> Result<Vec<SequenceOutput>, ModelError> {
        let mut advance = sequence.prefill_positions();
        talker.open(SLOT, SequenceSpec::Talker(sequence))?;
        talker.push_input(SLOT, self.input.clone(), true)?;
        let mut outputs = Vec::new();
        for _ in 0..steps {
            outputs.push(step(talker, advance)?);
            if outputs.last().is_some_and(|output| output.finish.is_some() || output.stale) {
                break;
            }
            advance = 1;
        }
        Ok(outputs)
    }
}

fn step(stage: &mut dyn StageModel, advance: u32) -> Result<SequenceOutput, ModelError> {
    let outputs = stage.step(&[SequenceWork { slot: SLOT, advance }])?;
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
        // The first frame tells.
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
            if let Some(StageData::Audio(piece)) = step(stage, (chunk.len() / groups) as u32)?.emit {
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
            // What is not a number is as bad as can be.
            _ if snr.is_nan() => f64::NEG_INFINITY,
            _ => snr,
        })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Checkpoint, LoadError, Precision, StageModel, StageSource};
    use candle_core::Device;
    use omni_cuda::Gpu;
    use omni_cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
    use omni_cuda::vocoder::{self, CudaVocoder, CudaVocoderFactory, Limits};
    use omni_model::stage::StageFactory;
    use std::sync::Arc;

    /// Stages as serving builds them, but for one sequence.
    pub(super) struct OnGpu {
        pub gpu: Gpu,
        pub precision: Precision,
    }

    impl StageSource for OnGpu {
        fn precision(&self) -> Precision {
            self.precision
        }

        fn talker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
            self.gpu.bind()?;
            let loader = checkpoint.loader(&["talker"], &Device::Cpu);
            let net = TalkerNet::load(&self.gpu, self.precision, &loader, checkpoint.family())?;
            loader.finish()?;
            // More slots than sequences: the cache gets its size from them.
            let options = TalkerOptions {
                slots: 8,
                buckets: vec![1],
                prefill_chunk: 64,
                run_ahead: 1,
                kv_memory: None,
                text_embeddings: 4096,
                async_h2d: true,
            };
            CudaTalkerFactory::new(Arc::new(net), options).build()
        }

        fn vocoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
            let precision = match self.precision {
                Precision::F32 => vocoder::Precision::F32,
                Precision::Bf16 => vocoder::Precision::Tf32,
            };
            let net = CudaVocoder::load(&self.gpu, checkpoint, precision, Limits::new(2, &[1, 2, 4, 8]))?;
            CudaVocoderFactory::new(Arc::new(net)).build()
        }
    }
}
