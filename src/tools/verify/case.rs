//! Runs one case and compares.

use super::batch::{self, Part};
use super::generate::{Request, Trace, generate};
use super::manifest::{Kind, Manifest};
use super::media::Media;
use super::nets::Nets;
use super::report::Verdict;
use super::value::{Data, Value, Values};
use super::vocode::Decoder;
use super::{towers, tts, vocode, voice};
use omni_model::prompt::ChatPrompt;
use omni_model::vocoder::Vocoder;

/// The reference decodes so many frames at a time and loses 23 ms of sound at each border; this program does not. Up to
/// the first border both are the same.
const REFERENCE_CHUNK: usize = 300;

/// Runs a case on its nets.
pub(super) fn run(manifest: &Manifest, reference: Values, nets: &Nets) -> Result<Verdict, String> {
    complete(manifest, &reference)?;
    let text = |e: omni_model::LoadError| e.to_string();
    let mut parts = batch::split(manifest, reference)?;
    let mut notes = batch_note(&parts);
    // Only requests of Qwen3-TTS come in batches: a case of another kind is its only part.
    let reference = &mut parts[0].reference;
    let computed = match manifest.kind {
        Kind::TtsGenerate => {
            let spoken = tts::run(&mut parts, nets)?.into_iter().zip(&mut parts);
            let waves = spoken
                .map(|((trace, recording), part)| wave(trace, &recording, &mut part.reference, cpu(nets), &mut notes));
            waves.collect::<Result<_, _>>()?
        }
        Kind::OmniGenerate => vec![omni(manifest, reference, nets, &mut notes)?],
        Kind::Vocoder => vec![vocode::run(reference, nets.vocoder().map_err(text)?)?],
        Kind::TtsFrontend => {
            let net = nets.voice().map_err(text)?.ok_or("this checkpoint has no speaker encoder")?;
            vec![voice::run(reference, net, &mut notes)?]
        }
        Kind::Frontend(_) => return Err("a front end has no net".into()),
        Kind::AudioTower => vec![towers::audio(reference, &mut nets.towers().map_err(text)?)?],
        Kind::VisionTower => vec![towers::vision(reference, &mut nets.towers().map_err(text)?)?],
    };
    let pairs: Vec<_> = parts.into_iter().map(|part| part.reference).zip(computed).collect();
    let comparison = batch::compare_all(&pairs);
    if comparison.compared == 0 {
        return Err(format!("{}.safetensors has no tensor that this program computes", manifest.name));
    }
    Ok(Verdict::Compared { comparison: Box::new(comparison), notes })
}

/// Says how many requests ran at once, where there are several.
pub(super) fn batch_note(parts: &[Part]) -> Vec<String> {
    if parts.len() < 2 { Vec::new() } else { vec![format!("{} requests at once", parts.len())] }
}

/// Everything that a request of Qwen3-Omni has and this program computes.
fn omni(manifest: &Manifest, reference: &mut Values, nets: &Nets, notes: &mut Vec<String>) -> Result<Values, String> {
    let text = |e: omni_model::LoadError| e.to_string();
    let (request, tokenized) = request(manifest, reference, nets)?;
    let (thinker, talker) = (nets.thinker().map_err(text)?, nets.talker().map_err(text)?);
    let config = nets.checkpoint.omni().map_err(text)?;
    let media = Media::read(reference, &request.prompt.ids, config.thinker.media, |media| {
        media.by(&mut nets.towers().map_err(text)?)
    })?;
    if media.as_ref().is_some_and(|media| media.layout.positions.is_some()) {
        notes.push("the positions of the prompts are the reference's own".into());
    }
    let trace = generate(config, thinker, talker, &request, media.as_ref()).map_err(|e| e.to_string())?;
    let mut values = wave(trace, &[], reference, cpu(nets), notes)?;
    // What the tokenizer gave is compared; the run started from the reference's ids.
    if let Some(ids) = tokenized {
        values.insert("input_ids".into(), Value::ints([1, ids.len()], ids));
    }
    Ok(values)
}

/// Checks that every tensor of the manifest is there.
pub(super) fn complete(manifest: &Manifest, reference: &Values) -> Result<(), String> {
    let lacking: Vec<&str> =
        manifest.tensors.iter().filter(|name| !reference.contains_key(*name)).map(String::as_str).collect();
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(format!("{}.safetensors lacks {}", manifest.name, lacking.join(", "))),
    }
}

/// The request of the manifest, and the ids that this program's tokenizer makes of the prompt.
pub(super) fn request(
    manifest: &Manifest,
    reference: &Values,
    nets: &Nets,
) -> Result<(Request, Option<Vec<u32>>), String> {
    let config = nets.checkpoint.omni().map_err(|e| e.to_string())?;
    let tokenized = match manifest.meta.get("prompt") {
        Some(_) => {
            let tokenizer = nets.tokenizer().map_err(|e| e.to_string())?;
            Some(tokenizer.encode_structure(manifest.text("prompt")?).map_err(|e| e.to_string())?)
        }
        None => None,
    };
    let prompt = match (reference.get("input_ids"), &tokenized) {
        (Some(ids), _) => ids.tokens().map_err(|e| format!("input_ids: {e}"))?,
        (None, Some(ids)) => ids.clone(),
        (None, None) => return Err("neither the tensor input_ids nor meta.prompt is there".into()),
    };
    let vocabulary = config.thinker.text.vocab_size as u32;
    if let Some(id) = prompt.iter().find(|id| **id >= vocabulary) {
        return Err(format!("input_ids has {id}, which is outside the vocabulary of {vocabulary}"));
    }
    let limits = (manifest.whole("n_text")?, manifest.whole("n_frames_limit")?);
    if limits.0 == 0 || limits.1 == 0 {
        return Err("meta.n_text and meta.n_frames_limit: expected at least 1".into());
    }
    let request = Request {
        speaker: config.talker.speaker(manifest.text("speaker")?).map_err(|e| e.to_string())?,
        text_tokens: limits.0 as usize,
        thinker_eos: manifest.wholes("thinker_eos")?,
        codec_tokens: limits.1 as usize,
        talker_eos: manifest.wholes("talker_eos")?,
        repetition_penalty: manifest.number("repetition_penalty")?,
        prompt: ChatPrompt::from_ids(prompt, &config.tokens).map_err(|e| e.to_string())?,
    };
    Ok((request, tokenized))
}

fn cpu<'a>(nets: &'a Nets) -> impl FnOnce() -> Result<&'a Vocoder, String> {
    || nets.vocoder().map_err(|e| e.to_string())
}

/// Decodes the codes of a run behind those of a recording and cuts the recording's sound off. Speech beyond the
/// reference's first chunk is not compared.
pub(super) fn wave<D: Decoder>(
    trace: Trace,
    recording: &[u32],
    reference: &mut Values,
    decoder: impl FnOnce() -> Result<D, String>,
    notes: &mut Vec<String>,
) -> Result<Values, String> {
    let Trace { mut values, frames } = trace;
    let Some(expected) = reference.get_mut("wav") else { return Ok(values) };
    let mut net = decoder()?;
    let groups = net.config().num_quantizers;
    let (recorded, total) = (recording.len() / groups, recording.len() / groups + frames.len());
    // As the reference rounds it.
    let cut = (recorded as f64 / total.max(1) as f64 * net.samples(total as u64) as f64) as usize;
    let mut codes = [recording, &frames.concat()].concat();
    if total > REFERENCE_CHUNK {
        codes.truncate(REFERENCE_CHUNK * groups);
        let samples = (net.samples(REFERENCE_CHUNK as u64) as usize).saturating_sub(cut);
        if let Data::Floats(wave) = &mut expected.data {
            wave.truncate(samples);
        }
        notes.push(format!("the waveform was compared up to frame {REFERENCE_CHUNK}, where the reference cuts"));
    }
    let mut wave = vocode::decode(&mut net, &codes)?;
    for (wave, cut) in [(&mut wave, cut), (expected, 0)] {
        if let Data::Floats(samples) = &mut wave.data {
            samples.drain(..cut.min(samples.len()));
            wave.shape = vec![samples.len()];
        }
    }
    values.insert("wav".into(), wave);
    Ok(values)
}
