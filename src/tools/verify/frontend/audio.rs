//! Files of sound to 16 kHz, spectra and token counts.

use super::checks::{Checks, floats};
use super::{Case, list, text};
use omni_media::MediaLimits;
use omni_media::hearing::{audio_tokens, samples, spectra};
use omni_media::mel::LogMel;
use omni_media::spectrum::Spectrum;

/// Largest error of a spectrum of samples that are equal.
const EQUAL_SAMPLES: f32 = 1e-4;
/// Allowed of a spectrum after another resampler than the reference's, below the filter's skirt: mean, 99th percentile,
/// largest; and the root mean square of the samples' difference.
const RESAMPLED: [f32; 4] = [5e-4, 0.01, 0.25, 1.5e-3];
/// Where the skirt begins, as a share of the lower Nyquist frequency.
const SKIRT: f64 = 0.9;
/// What a spectrum reaches up to, Hz.
const TOP: f64 = 8_000.0;

pub(super) fn run(case: &Case<'_>, notes: &mut Vec<String>) -> Result<Checks, String> {
    let mel = LogMel::new(case.config.mel).map_err(|e| e.to_string())?;
    if case.manifest.meta.contains_key("files") { batch(case, &mel) } else { one(case, &mel, notes) }
}

/// The samples of a file.
pub(super) fn pcm(case: &Case<'_>, name: &str, mel: &LogMel) -> Result<Vec<f32>, String> {
    samples(&case.file(name)?, &MediaLimits::default(), mel.config()).map_err(|e| format!("{name}: {e}"))
}

fn one(case: &Case<'_>, mel: &LogMel, notes: &mut Vec<String>) -> Result<Checks, String> {
    let pcm = pcm(case, text(case.meta("file")?, "file")?, mel)?;
    let spectrum = &spectra(&[&pcm], mel).map_err(|e| e.to_string())?[0];
    let mut checks = Checks::default();
    checks.counts("samples_16k", &[case.whole("samples_16k")?], &[pcm.len()]);
    counts(&mut checks, case, "mel_frames", "audio_tokens", std::slice::from_ref(spectrum))?;
    let rate =
        case.meta("native")?.get("rate").and_then(serde_json::Value::as_f64).ok_or("meta.native.rate is missing")?;
    if rate == f64::from(case.config.mel.rate) {
        checks.floats(case.reference, "pcm16k", &pcm, 0.0)?;
        checks.floats(case.reference, "input_features", &spectrum.features(), EQUAL_SAMPLES)?;
        return Ok(checks);
    }
    let want = floats(case.reference, "pcm16k")?;
    let squares = want.iter().zip(&pcm).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    let [mean, percentile, most, rms] = RESAMPLED;
    checks.bound("pcm16k", (squares / pcm.len() as f64).sqrt() as f32, rms);
    let want = floats(case.reference, "input_features")?;
    let got = spectrum.features();
    if want.len() != got.len() {
        return Err(format!("input_features has {} numbers, got {}", want.len(), got.len()));
    }
    let bands = mel.band_centres().into_iter().take_while(|centre| *centre < SKIRT * TOP.min(rate / 2.0)).count();
    let below = bands * spectrum.frames();
    let mut errors: Vec<f32> = want.iter().zip(&got).take(below).map(|(a, b)| (a - b).abs()).collect();
    errors.sort_by(f32::total_cmp);
    let sum: f64 = errors.iter().map(|e| f64::from(*e)).sum();
    let (average, high) = ((sum / below as f64) as f32, errors[(below - 1) * 99 / 100]);
    let largest = errors.last().copied().unwrap_or_default();
    checks.bound("input_features", largest, most);
    checks.bound("input_features, 99th percentile", high, percentile);
    checks.bound("input_features, mean", average, mean);
    notes.push(format!("resampled from {rate} Hz: log-mel mean {average:.1e}, 99th percentile {high:.1e}"));
    Ok(checks)
}

/// Several clips of one request.
fn batch(case: &Case<'_>, mel: &LogMel) -> Result<Checks, String> {
    let lengths = case.wholes("samples_16k")?;
    let mut clips = Vec::new();
    for (file, length) in list(case.meta("files")?, "files")?.iter().zip(&lengths) {
        // A remark may follow the name: how many samples were used.
        let name = text(file, "files")?.split(' ').next().unwrap_or_default();
        let mut clip = pcm(case, name, mel)?;
        clip.truncate(*length);
        clips.push(clip);
    }
    let mut checks = Checks::default();
    checks.counts("samples_16k", &lengths, &clips.iter().map(Vec::len).collect::<Vec<_>>());
    let clips: Vec<&[f32]> = clips.iter().map(Vec::as_slice).collect();
    let together = spectra(&clips, mel).map_err(|e| e.to_string())?;
    counts(&mut checks, case, "mel_frames_in_batch", "audio_tokens_in_batch", &together)?;
    let alone = clips.iter().map(|clip| mel.spectrum(clip, 0)).collect::<Result<Vec<_>, _>>();
    let alone = alone.map_err(|e| e.to_string())?;
    counts(&mut checks, case, "mel_frames_alone", "audio_tokens_alone", &alone)?;
    let columns = together.iter().map(Spectrum::frames).max().unwrap_or(0);
    let features: Vec<f32> = together.iter().flat_map(|spectrum| spectrum.features_of(0..columns)).collect();
    checks.floats(case.reference, "input_features", &features, EQUAL_SAMPLES)?;
    let mask = together.iter().flat_map(|spectrum| (0..columns).map(|t| i64::from(t < spectrum.frames())));
    checks.tensor(case.reference, "feature_attention_mask", mask)?;
    checks.floats(case.reference, "alone.0.input_features", &alone[0].features(), EQUAL_SAMPLES)?;
    Ok(checks)
}

fn counts(
    checks: &mut Checks,
    case: &Case<'_>,
    frames_key: &str,
    tokens_key: &str,
    spectra: &[Spectrum],
) -> Result<(), String> {
    let want = |key: &str| match case.meta(key)? {
        serde_json::Value::Array(_) => case.wholes(key),
        _ => Ok(vec![case.whole(key)?]),
    };
    let frames: Vec<usize> = spectra.iter().map(Spectrum::frames).collect();
    checks.counts(frames_key, &want(frames_key)?, &frames);
    let tokens: Vec<usize> = frames.iter().map(|frames| audio_tokens(*frames, case.config.n_window)).collect();
    checks.counts(tokens_key, &want(tokens_key)?, &tokens);
    Ok(())
}
