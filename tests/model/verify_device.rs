//! Golden cases on the stages of a device. The CPU's stages stand in for one; `cuda::verify` gives the same
//! cases to a GPU.

use crate::support::golden::{BATCH, TTS, batches_pass, passes, run};
use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
};
use omni_actors::model::stages::encoder::EncoderFactory;
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::stages::thinker::ThinkerFactory;
use omni_actors::model::stages::vocoder::VocoderFactory;
use omni_actors::model::talker::Talker;
use omni_actors::model::thinker::Thinker;
use omni_actors::model::towers::Towers;
use omni_actors::model::vocoder::Vocoder;
use omni_actors::model::{Checkpoint, LoadError, ModelError};
use omni_actors::tools::verify::{StageSource, verify};
use std::path::Path;
use std::sync::Arc;

/// The CPU's stages, said to compute in an element type, with `change` applied to what they give.
struct OnCpu {
    precision: Precision,
    change: fn(&mut SequenceOutput),
}

impl StageSource for OnCpu {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn encoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        let config = &checkpoint.omni()?.thinker;
        let loader = checkpoint.loader(&["thinker.audio_tower", "thinker.visual"], &Device::Cpu);
        let towers = Arc::new(Towers::load(&loader, config)?);
        Ok(Box::new(Changed {
            inner: EncoderFactory::new(towers, config.clone(), crate::support::golden::threads()).build()?,
            change: self.change,
        }))
    }

    fn thinker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
        let net = Thinker::load(&loader, &checkpoint.omni()?.thinker)?;
        Ok(Box::new(Changed { inner: ThinkerFactory::new(Arc::new(net)).build()?, change: self.change }))
    }

    fn talker(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        let net = Talker::load(&checkpoint.loader(&["talker"], &Device::Cpu), checkpoint.family())?;
        Ok(Box::new(Changed { inner: TalkerFactory::new(Arc::new(net)).build()?, change: self.change }))
    }

    fn vocoder(&self, checkpoint: &Checkpoint) -> Result<Box<dyn StageModel>, LoadError> {
        let net = Vocoder::load(checkpoint, &Device::Cpu)?;
        Ok(Box::new(Changed { inner: VocoderFactory::new(Arc::new(net)).build()?, change: self.change }))
    }
}

struct Changed {
    inner: Box<dyn StageModel>,
    change: fn(&mut SequenceOutput),
}

impl StageModel for Changed {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        self.inner.open(slot, spec)
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        self.inner.push_input(slot, input, end)
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let mut sequences = self.inner.step(sequences)?;
        sequences.iter_mut().flatten().for_each(self.change);
        Ok(Launched::Done(StepOutcome::from(sequences)))
    }

    fn close(&mut self, slot: Slot) {
        self.inner.close(slot);
    }

    fn live_sequences(&self) -> usize {
        self.inner.live_sequences()
    }
}

#[test]
fn requests_of_one_batch_equal_the_reference_each_by_itself() {
    let mut lines = String::new();
    let summary = verify(Path::new(BATCH), None, |report| lines.push_str(&format!("{report}\n"))).unwrap();
    assert_eq!((summary.passed, summary.failed, summary.skipped), (2, 0, 0), "{lines}");
    assert!(lines.lines().all(|line| line.contains("all tokens equal") && !line.contains("not computed")), "{lines}");
    for precision in [Precision::F32, Precision::Bf16] {
        batches_pass(&OnCpu { precision, change: |_| {} });
    }
}

#[test]
fn a_code_that_differs_in_one_request_of_a_batch_is_told_with_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let golden = folder.path().join("golden");
    std::fs::create_dir(&golden).unwrap();
    let name = |ending: &str| format!("base_batch_clone.{ending}");
    std::fs::copy(Path::new(BATCH).join(name("json")), golden.join(name("json"))).unwrap();
    let mut bytes = std::fs::read(Path::new(BATCH).join(name("safetensors"))).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    // Group 0 of frame 3 of the second request.
    let at = 8 + header + json["codes.1"]["data_offsets"][0].as_u64().unwrap() as usize + 4 * 3 * 8;
    bytes[at] ^= 1;
    std::fs::write(golden.join(name("safetensors")), bytes).unwrap();
    let mut lines = String::new();
    let base = Path::new(TTS).parent().unwrap().join("base");
    let summary = verify(&golden, Some(&base), |report| lines.push_str(&format!("{report}\n"))).unwrap();
    assert_eq!(summary.failed, 1, "{lines}");
    assert!(lines.contains("first difference codes.1[3, 0]"), "{lines}");
}

#[test]
fn stages_that_compute_as_the_reference_say_the_same() {
    passes(&OnCpu { precision: Precision::F32, change: |_| {} });
}

#[test]
fn stages_that_round_are_judged_by_what_they_would_have_picked() {
    let source = OnCpu { precision: Precision::Bf16, change: |_| {} };
    passes(&source);
    let (summary, _) = run(&source, TTS);
    assert_eq!(summary.picks.first.agreed, summary.picks.first.of);
    assert_eq!(summary.picks.all.agreed, summary.picks.all.of);
    // 160 frames of 8 codes, and the last code 0 of each of 9 requests.
    assert_eq!((summary.picks.first.of, summary.picks.all.of), (169, 160 * 8 + 9));
}

#[test]
fn picks_that_are_others_fail_all_cases_together() {
    let change = |output: &mut SequenceOutput| {
        if let Some(picked) = &mut output.picked {
            picked[0] ^= 1;
        }
    };
    let (summary, lines) = run(&OnCpu { precision: Precision::Bf16, change }, TTS);
    assert_eq!(summary.failed, 0, "{lines}");
    assert!(!summary.passed_all());
    assert!(summary.to_string().contains("at least 90 % of codes 0 wanted"), "{summary}");
}

#[test]
fn sound_that_lost_a_hundredth_of_its_amplitude_and_codes_that_differ_fail_their_cases() {
    let quieter = |output: &mut SequenceOutput| match &mut output.emit {
        Some(StageData::Audio(samples)) => samples.iter_mut().for_each(|sample| *sample *= 0.985),
        Some(StageData::Codes(codes)) => codes[3] ^= 1,
        _ => {}
    };
    let (summary, lines) = run(&OnCpu { precision: Precision::Bf16, change: quieter }, TTS);
    // But for the encoders of recordings, which are no stage.
    assert_eq!((summary.passed, summary.failed), (1, 10), "{lines}");
    assert!(lines.contains("36.5 dB above what is lost, at least 40 wanted"), "{lines}");
    let (summary, lines) = run(&OnCpu { precision: Precision::F32, change: quieter }, TTS);
    assert_eq!((summary.passed, summary.failed), (1, 10), "{lines}");
    assert!(lines.contains("first difference codes[0, 3]"), "{lines}");
}
