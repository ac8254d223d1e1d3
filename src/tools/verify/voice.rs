//! Runs the front ends of a cloned voice: samples to spectrum, x-vector and codes.

use super::value::{Data, Value, Values};
use omni_model::frontend::VoiceEncoder;

/// Everything that a tts_frontend case has and this program computes.
pub(super) fn run(reference: &Values, net: &VoiceEncoder, notes: &mut Vec<String>) -> Result<Values, String> {
    let input = reference.get("pcm24k").ok_or("the tensor pcm24k is missing")?;
    let Value { data: Data::Floats(pcm), shape } = input else {
        return Err("pcm24k has whole numbers: expected samples".into());
    };
    let spectrum = net.speaker.spectrum(pcm).map_err(|e| e.to_string())?;
    let x_vector = net.speaker.embed(&spectrum).map_err(|e| e.to_string())?;
    // The cases were made with the reference's eager attention, which ignores the window of the codec.
    let config = net.codec.config();
    let mut window = config.transformer.sliding_window;
    let positions = pcm.len().div_ceil(config.hop());
    if let Some(seen) = window.take_if(|seen| positions > *seen) {
        notes.push(format!("the codec saw all {positions} positions, as the reference; served are windows of {seen}"));
    }
    let codes = net.codec.encode_seeing(pcm, window).map_err(|e| e.to_string())?;
    let frames = net.codec.frames(pcm.len());
    let mut values = Values::new();
    values.insert("pcm24k".into(), Value { shape: shape.clone(), data: Data::Floats(pcm.clone()) });
    let spectrum = spectrum.t().and_then(|s| Value::floats(&s, 1)).map_err(|e| e.to_string())?;
    values.insert("speaker_mel".into(), spectrum);
    values.insert("speaker_embedding".into(), Value { shape: vec![x_vector.len()], data: Data::Floats(x_vector) });
    values.insert("ref_code".into(), Value::ints([frames, codes.len() / frames.max(1)], codes));
    Ok(values)
}
