//! Clips of one request: samples to features and token counts.

use crate::limits::{MediaError, MediaLimits};
use crate::mel::{LogMel, MelConfig};
use crate::polyphase;
use crate::resample::{resample, resampled_len};
use crate::sound::{AudioLimits, Clip, decode_sound};
use crate::spectrum::Spectrum;

/// Convolutions of stride 2 in front of the audio tower: each halves the frames, rounding up.
const HALVINGS: u32 = 3;

/// Tokens of a clip of `frames` mel frames. The tower cuts a clip into windows of `2 * n_window` frames and halves each
/// three times (`_get_feat_extract_output_lengths` in transformers 5.23.0): with `n_window` 50, `13 * (L / 100) +
/// ceil((L % 100) / 8)`.
///
/// # Panics
/// When `n_window` is 0, which no config that was read has.
pub fn audio_tokens(frames: usize, n_window: usize) -> usize {
    let window = 2 * n_window;
    let halved = |frames: usize| frames.div_ceil(1 << HALVINGS);
    frames / window * halved(window) + halved(frames % window)
}

/// Decodes a file and brings it to the rate of the spectrum: mono samples, at least as many as have a spectrum.
///
/// # Errors
/// [`MediaError::Audio`] for a file that is no sound within the limits, [`MediaError::TooLittle`] for one that is too
/// short.
pub fn samples(bytes: &[u8], limits: &MediaLimits, mel: &MelConfig) -> Result<Vec<f32>, MediaError> {
    limits.check_bytes("audio", bytes)?;
    let audio = AudioLimits { max_bytes: limits.max_bytes, min_seconds: 0.0, max_seconds: limits.max_seconds };
    let clip = decode_sound(bytes, &audio)?;
    let pcm = at_rate(clip, mel.rate)?;
    let (have, least) = (pcm.len() as u64, mel.least_samples() as u64);
    match have < least {
        true => Err(MediaError::TooLittle { media: "audio", unit: "samples at 16 kHz", have, least }),
        false => Ok(pcm),
    }
}

/// A clip at another rate, as many samples as the reference makes.
///
/// # Errors
/// [`MediaError::Audio`] for a rate that no sound has.
pub fn at_rate(clip: Clip, rate: u32) -> Result<Vec<f32>, MediaError> {
    if clip.rate == rate {
        return Ok(clip.pcm);
    }
    let length = resampled_len(clip.pcm.len(), clip.rate, rate);
    match polyphase::resample(&clip.pcm, clip.rate, rate, length) {
        Some(pcm) => Ok(pcm),
        None => Ok(resample(&clip.pcm, clip.rate, rate)?),
    }
}

/// The spectra of all clips of one request, in their order. The reference pads them with zeros to the longest before
/// it computes anything, so a shorter clip may have a frame more than alone, and other numbers in its last one.
///
/// # Errors
/// [`MediaError::TooLittle`] when the longest has fewer samples than [`MelConfig::least_samples`].
pub fn spectra(clips: &[&[f32]], mel: &LogMel) -> Result<Vec<Spectrum>, MediaError> {
    let longest = clips.iter().map(|clip| clip.len()).max().unwrap_or(0);
    clips.iter().map(|clip| mel.spectrum(clip, longest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_thirteen_a_second_and_an_eighth_of_the_rest() {
        for (frames, tokens) in [(0, 0), (1, 1), (8, 1), (9, 2), (99, 13), (100, 13), (101, 14), (800, 104)] {
            assert_eq!(audio_tokens(frames, 50), tokens, "{frames}");
        }
        // Another window: 64 frames become 8.
        assert_eq!(audio_tokens(129, 32), 17);
    }

    #[test]
    fn too_short_and_too_long_sound_is_refused_with_the_limit() {
        let mel = MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 };
        let file = |samples: u32| {
            let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data".to_vec();
            file[4..8].copy_from_slice(&(36 + 2 * samples).to_le_bytes());
            file.extend((2 * samples).to_le_bytes());
            file.extend(vec![0; 2 * samples as usize]);
            file
        };
        let limits = MediaLimits { max_seconds: 1.0, ..MediaLimits::default() };
        let refused = |samples| self::samples(&file(samples), &limits, &mel).unwrap_err().to_string();
        assert_eq!(refused(200), "the audio has 200 samples at 16 kHz, at least 201 are needed");
        assert!(refused(16_001).contains("longer than 1 seconds"), "{}", refused(16_001));
        assert_eq!(samples(&file(16_000), &limits, &mel).unwrap(), vec![0.0; 16_000]);
        let limits = MediaLimits { max_bytes: 100, ..limits };
        let error = samples(&file(300), &limits, &mel).unwrap_err().to_string();
        assert_eq!(error, "the audio has 644 bytes, at most 100 are taken (max_bytes)");
        assert!(samples(&[], &limits, &mel).unwrap_err().to_string().starts_with("the audio has 0 bytes"));
    }
}
