//! What an answer sounds like where a client asks for it.

use crate::tests::{RATE, decode_at, fidelity, pcm16, speech};
use crate::*;
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn every_format_carries_the_rates_that_it_says() {
    let samples = speech(24_000);
    for rate in SAMPLE_RATES {
        for format in [AudioFormat::Wav, AudioFormat::Flac, AudioFormat::Mp3] {
            let mut writer = Sound { sample_rate: Some(rate), ..format.into() }.writer(RATE).unwrap();
            let mut bytes = writer.push(&samples).unwrap();
            writer.complete(&mut bytes).unwrap();
            assert_eq!((writer.samples(), writer.sample_rate(), writer.heard()), (rate.into(), rate, 24_000));
            let (heard, length) = decode_at(rate, bytes, format.as_str());
            assert_eq!(length, Some(rate.into()), "{format:?}");
            let loudness =
                |samples: &[f32]| samples.iter().map(|sample| sample * sample).sum::<f32>() / samples.len() as f32;
            let change = loudness(&heard) / loudness(&samples);
            assert!((0.8..1.1).contains(&change), "{format:?} at {rate}: {change}");
        }
    }
    for (rate, carried) in [(8_000, true), (16_000, true), (22_050, false), (44_100, false), (48_000, true)] {
        let writer = Sound { sample_rate: Some(rate), ..AudioFormat::Opus.into() }.writer(RATE);
        assert_eq!(writer.is_ok(), carried, "{rate}");
        if let Ok(mut writer) = writer {
            let mut bytes = writer.push(&samples).unwrap();
            bytes.extend(writer.finish().unwrap());
            assert_eq!((&bytes[40..44], writer.samples()), (&rate.to_le_bytes()[..], u64::from(rate)));
        }
    }
}

#[test]
fn telephones_get_8_bits_at_8_khz() {
    let samples = speech(24_000);
    for law in [Law::Mu, Law::A] {
        let mut bare = Sound::from(AudioFormat::G711(law)).writer(RATE).unwrap();
        let mut bytes = bare.push(&samples).unwrap();
        bytes.extend(bare.finish().unwrap());
        assert_eq!((bytes.len(), bare.sample_rate()), (8_000, 8_000));
        // In a wav another library decodes it.
        let mut wav = Sound { law: Some(law), ..AudioFormat::Wav.into() }.writer(RATE).unwrap();
        let mut file = wav.push(&samples).unwrap();
        wav.complete(&mut file).unwrap();
        assert_eq!(file[58..], bytes, "{law:?}");
        let heard = decode_at(8_000, file, "wav").0;
        let mut plain = Sound { sample_rate: Some(8_000), ..AudioFormat::Wav.into() }.writer(RATE).unwrap();
        let mut file = plain.push(&samples).unwrap();
        plain.complete(&mut file).unwrap();
        let exact = decode_at(8_000, file, "wav").0;
        assert_eq!(heard.len(), exact.len());
        let fidelity = fidelity(&exact, &heard);
        assert!(fidelity > 30.0, "{law:?}: {fidelity} dB");
    }
}

#[test]
fn an_answer_of_a_loudness_comes_at_its_end_and_in_pieces_of_any_size_the_same() {
    let samples = speech(48_000);
    let sound = Sound { loudness: Some(-20.0), sample_rate: Some(16_000), ..AudioFormat::Wav.into() };
    let written = |piece: usize| {
        let mut writer = sound.writer(RATE).unwrap();
        let mut file = Vec::new();
        for piece in samples.chunks(piece) {
            assert!(writer.push(piece).unwrap().is_empty());
        }
        assert!(writer.waiting_bytes() >= samples.len() * 8 && writer.heard() == 48_000);
        writer.complete(&mut file).unwrap();
        assert_eq!((writer.samples(), writer.waiting_bytes()), (32_000, 0));
        file
    };
    let file = written(1_920);
    assert_eq!(written(77), file);
    let heard = decode_at(16_000, file, "wav").0;
    let gain = loudness::gain(&heard, 16_000, -20.0).unwrap();
    assert!((gain - 1.0).abs() < 0.05, "the loudness is off by a factor of {gain}");
}

#[test]
fn bare_samples_of_an_unusual_rate_say_so_in_their_type() {
    let sound =
        |format: AudioFormat, sample_rate| Sound { sample_rate, ..format.into() }.content_type(RATE).into_owned();
    assert_eq!(sound(AudioFormat::Pcm, None), "audio/pcm");
    assert_eq!(sound(AudioFormat::Pcm, Some(RATE)), "audio/pcm");
    assert_eq!(sound(AudioFormat::Pcm, Some(16_000)), "audio/pcm;rate=16000;channels=1");
    assert_eq!(sound(AudioFormat::G711(Law::Mu), None), "audio/PCMU");
    assert_eq!(sound(AudioFormat::G711(Law::A), Some(16_000)), "audio/PCMA;rate=16000;channels=1");
    assert_eq!(sound(AudioFormat::Wav, Some(16_000)), "audio/wav");
}

#[test]
fn the_beginning_fades_in_and_nothing_else_changes() {
    let samples = speech(5_000);
    let writer = |time| Sound::from(AudioFormat::Pcm).writer(RATE).unwrap().fading_in(time);
    let ten = Duration::from_millis(10);
    let heard =
        |bytes: Vec<u8>| -> Vec<i16> { bytes.chunks(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect() };
    let written = |piece: usize| {
        let mut writer = writer(ten);
        heard(samples.chunks(piece).flat_map(|piece| writer.push(piece).unwrap()).collect())
    };
    let whole = written(5_000);
    assert_eq!(whole[240..], pcm16(&samples)[240..]);
    for piece in [1, 77, 239, 241] {
        assert_eq!(written(piece), whole, "pieces of {piece}");
    }
    let step = heard(writer(ten).push(&[0.5; 480]).unwrap());
    assert!(step.is_sorted() && step[0] < 2 && step[120] > 8_000 && step[238] < 16_384 && step[240] == 16_384);
    assert_eq!(heard(writer(Duration::ZERO).push(&[0.5]).unwrap()), [16_384]);
}

fn any_sound() -> impl Strategy<Value = Sound> {
    let format = proptest::sample::select(&AudioFormat::ALL[..]);
    let rate = proptest::option::of(proptest::sample::select(&SAMPLE_RATES[..]));
    let law = proptest::sample::select(&[None, Some(Law::Mu), Some(Law::A)][..]);
    let loudness = proptest::option::of(MIN_LOUDNESS..=MAX_LOUDNESS);
    let speed = prop_oneof![Just(1.0), MIN_SPEED..=MAX_SPEED];
    (format, rate, law, loudness, speed).prop_map(|(format, sample_rate, law, loudness, speed)| {
        let sample_rate = sample_rate.filter(|rate| format.carries(*rate));
        Sound { format, speed, sample_rate, law, loudness, start: 0 }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_sound_of_any_samples_is_as_long_as_it_says_and_the_same_in_any_pieces(
        sound in any_sound(),
        samples in proptest::collection::vec(prop_oneof![4 => -1.0f32..1.0, 1 => any::<f32>()], 0..2_500),
        piece in 1usize..2_500,
    ) {
        let written = |piece: usize| {
            let mut writer = sound.writer(RATE).unwrap().fading_in(Duration::from_millis(10));
            let mut file = Vec::new();
            for piece in samples.chunks(piece) {
                file.extend(writer.push(piece).unwrap());
            }
            writer.complete(&mut file).unwrap();
            (file, writer.samples())
        };
        let (whole, length) = written(samples.len().max(1));
        let spoken = (samples.len() as f64 / f64::from(sound.speed)).round();
        let expected = (spoken * f64::from(sound.rate(RATE)) / f64::from(RATE)).round();
        prop_assert_eq!(length, expected as u64);
        let (pieces, same_length) = written(piece);
        prop_assert_eq!(same_length, length);
        // Pages of Opus end with the pieces.
        prop_assert!(sound.format == AudioFormat::Opus || pieces == whole, "{:?} in pieces of {}", sound, piece);
    }
}
