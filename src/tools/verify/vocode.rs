//! Runs the vocoder alone: whole, a prefix, in the reference's overlapping chunks, and with its activations.

use super::value::{Data, Value, Values};
use candle_core::Tensor;
use omni_model::hf::VocoderConfig;
use omni_model::vocoder::Vocoder;
use std::collections::BTreeMap;

/// A vocoder on any device.
pub(super) trait Decoder {
    /// The sizes.
    fn config(&self) -> &VocoderConfig;

    /// Samples that a stream of so many frames has.
    fn samples(&self, frames: u64) -> u64;

    /// The samples of frames of codes, decoded as one stream.
    fn decode(&mut self, codes: &[u32]) -> Result<Vec<f32>, String>;
}

impl Decoder for &Vocoder {
    fn config(&self) -> &VocoderConfig {
        Vocoder::config(self)
    }

    fn samples(&self, frames: u64) -> u64 {
        Vocoder::samples(self, frames)
    }

    fn decode(&mut self, codes: &[u32]) -> Result<Vec<f32>, String> {
        let mut stream = self.stream().map_err(|e| e.to_string())?;
        Vocoder::decode(self, &mut stream, codes).map_err(|e| e.to_string())
    }
}

/// Everything that a vocoder case has and this program computes.
pub(super) fn run(reference: &Values, mut net: &Vocoder) -> Result<Values, String> {
    let mut values = waves(reference, &mut net)?;
    let codes = frames(reference.get("codes").ok_or("the tensor codes is missing")?, net.config())?;
    // The vocoder may decode a stream in pieces, each with its own activations.
    let mut activations: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    let mut stream = net.stream().map_err(|e| e.to_string())?;
    let mut probe = |name: std::fmt::Arguments<'_>, value: &Tensor| {
        activations.entry(format!("stage.{name}")).or_default().push(value.clone());
    };
    net.decode_probed(&mut stream, &codes, &mut probe).map_err(|e| e.to_string())?;
    for (name, pieces) in activations {
        if let Some(expected) = reference.get(&name) {
            let value = activation(&name, &pieces, &expected.shape).map_err(|e| format!("{name}: {e}"))?;
            values.insert(name, value);
        }
    }
    values.insert("codes".into(), reference["codes"].clone());
    Ok(values)
}

/// Every waveform of a vocoder case.
pub(super) fn waves(reference: &Values, decoder: &mut dyn Decoder) -> Result<Values, String> {
    let codes = frames(reference.get("codes").ok_or("the tensor codes is missing")?, decoder.config())?;
    let groups = decoder.config().num_quantizers;
    let total = codes.len() / groups;
    let part = |from: usize, to: usize| &codes[from * groups..to * groups];
    let mut values = Values::new();
    for name in reference.keys() {
        let wave = if name == "wav.full" {
            decode(decoder, &codes)?
        } else if let Some(first) = name.strip_prefix("wav.full.first").and_then(|n| n.parse::<usize>().ok()) {
            decode(decoder, part(0, first.min(total)))?
        } else if let Some((chunk, left)) = chunking(name) {
            chunked(decoder, total, chunk, left, &part)?
        } else {
            continue;
        };
        values.insert(name.clone(), wave);
    }
    Ok(values)
}

/// The waveform `[1, 1, samples]` of frames of codes, decoded as one stream.
pub(super) fn decode(decoder: &mut dyn Decoder, codes: &[u32]) -> Result<Value, String> {
    decoder.decode(codes).map(wave)
}

fn wave(samples: Vec<f32>) -> Value {
    Value { shape: vec![1, 1, samples.len()], data: Data::Floats(samples) }
}

/// The reference's `chunked_decode`: each chunk is decoded afresh behind some frames of left context, whose samples are
/// dropped.
fn chunked<'a>(
    decoder: &mut dyn Decoder,
    total: usize,
    chunk: usize,
    left: usize,
    part: &impl Fn(usize, usize) -> &'a [u32],
) -> Result<Value, String> {
    let mut samples = Vec::new();
    for start in (0..total).step_by(chunk) {
        let context = if start > left { left } else { start };
        let Data::Floats(piece) = decode(decoder, part(start - context, (start + chunk).min(total)))?.data else {
            continue;
        };
        samples.extend(piece.into_iter().skip(context * decoder.config().samples_per_frame()));
    }
    Ok(wave(samples))
}

/// `wav.chunked.CHUNK.LEFT`
fn chunking(name: &str) -> Option<(usize, usize)> {
    let (chunk, left) = name.strip_prefix("wav.chunked.")?.split_once('.')?;
    Some((chunk.parse().ok().filter(|chunk| *chunk > 0)?, left.parse().ok()?))
}

/// Pieces `[time, channels]` as one tensor in the layout of the reference: time first up to the transformer, channels
/// first after it, and cut where the reference was cut.
fn activation(name: &str, pieces: &[Tensor], shape: &[usize]) -> candle_core::Result<Value> {
    let whole = Tensor::cat(pieces, 0)?;
    if ["stage.embed_mean", "stage.pre_conv", "stage.pre_transformer"].contains(&name) {
        return Value::floats(&whole, 1);
    }
    let time = shape.last().map_or(0, |cut| whole.dim(0).map_or(0, |time| time.min(*cut)));
    Value::floats(&whole.narrow(0, 0, time)?.t()?.contiguous()?, 1)
}

/// `[1, groups, frames]` as frame after frame.
fn frames(codes: &Value, config: &VocoderConfig) -> Result<Vec<u32>, String> {
    let (groups, size) = (config.num_quantizers, config.codebook_size as u32);
    let [1, g, total] = codes.shape[..] else {
        return Err(format!("codes has shape {:?}: expected [1, {groups}, frames]", codes.shape));
    };
    let all = codes.tokens().map_err(|e| format!("codes: {e}"))?;
    if g != groups || total == 0 {
        return Err(format!("codes has shape {:?}: expected [1, {groups}, frames]", codes.shape));
    }
    if let Some(code) = all.iter().find(|code| **code >= size) {
        return Err(format!("codes has {code}, which is outside the codebook of {size}"));
    }
    Ok((0..total).flat_map(|frame| all.iter().skip(frame).step_by(total).copied()).collect())
}
