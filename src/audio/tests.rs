//! Decodes each format with a decoder of another library.

use super::*;
use std::io::{Cursor, ErrorKind};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::formats::FormatOptions;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

pub(crate) const RATE: u32 = 24_000;

/// Something like speech: a gliding voice with harmonics, pauses, and a little breath.
pub(crate) fn speech(samples: usize) -> Vec<f32> {
    let (mut phase, mut noise) = (0.0f64, 1u32);
    (0..samples)
        .map(|i| {
            let time = i as f64 / f64::from(RATE);
            phase += (140.0 + 40.0 * (time * 3.0).sin()) / f64::from(RATE) * std::f64::consts::TAU;
            let voice: f64 = (1..12).map(|n| (phase * f64::from(n)).sin() / f64::from(n)).sum();
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let breath = f64::from(noise >> 16) / 65_536.0 - 0.5;
            let loudness = (time * 5.0).sin().max(0.0) * 0.3;
            (voice * loudness + breath * 0.01) as f32
        })
        .collect()
}

fn streamed(format: AudioFormat, samples: &[f32], piece: usize) -> (Vec<u8>, Vec<usize>) {
    let mut writer = Sound::from(format).writer(RATE).unwrap();
    let (mut bytes, mut sizes) = (Vec::new(), Vec::new());
    for piece in samples.chunks(piece) {
        bytes.extend(writer.push(piece).unwrap());
        sizes.push(bytes.len());
    }
    bytes.extend(writer.finish().unwrap());
    (bytes, sizes)
}

fn file(format: AudioFormat, samples: &[f32]) -> Vec<u8> {
    let mut writer = Sound::from(format).writer(RATE).unwrap();
    let mut bytes = Vec::new();
    for piece in samples.chunks(1920) {
        bytes.extend(writer.push(piece).unwrap());
    }
    writer.complete(&mut bytes).unwrap();
    bytes
}

/// Samples, and the frames that the file says it has.
fn decode(bytes: Vec<u8>, ending: &str) -> (Vec<f32>, Option<u64>) {
    decode_at(RATE, bytes, ending)
}

pub(crate) fn decode_at(rate: u32, bytes: Vec<u8>, ending: &str) -> (Vec<f32>, Option<u64>) {
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let mut hint = Hint::new();
    hint.with_extension(ending);
    let options = (FormatOptions::default(), MetadataOptions::default());
    let mut file = symphonia::default::get_probe().probe(&hint, source, options.0, options.1).unwrap();
    let track = file.tracks()[0].clone();
    let parameters = track.codec_params.as_ref().unwrap().audio().unwrap();
    assert_eq!(parameters.sample_rate, Some(rate));
    assert_eq!(parameters.channels.as_ref().unwrap().count(), 1);
    let mut decoder =
        symphonia::default::get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default()).unwrap();
    let mut samples = Vec::new();
    loop {
        let packet = match file.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // A wav that leaves its length open ends where the stream does.
            Err(symphonia::core::errors::Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => panic!("{error}"),
        };
        let mut piece: Vec<f32> = Vec::new();
        decoder.decode(&packet).unwrap().copy_to_vec_interleaved(&mut piece);
        samples.extend(piece);
    }
    (samples, track.num_frames)
}

/// Decibels of the signal over the difference.
pub(crate) fn fidelity(samples: &[f32], heard: &[f32]) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
    let difference = power(&mut samples.iter().zip(heard).map(|(a, b)| a - b));
    10.0 * (power(&mut samples.iter().copied()) / difference).log10()
}

pub(crate) fn pcm16(samples: &[f32]) -> Vec<i16> {
    samples.iter().copied().map(pcm::to_i16).collect()
}

#[test]
fn wav_and_flac_give_the_same_16_bits_whole_or_streamed() {
    let samples = speech(41_685);
    for (format, bytes) in [
        (AudioFormat::Wav, file(AudioFormat::Wav, &samples)),
        (AudioFormat::Wav, streamed(AudioFormat::Wav, &samples, 1000).0),
        (AudioFormat::Flac, file(AudioFormat::Flac, &samples)),
        (AudioFormat::Flac, streamed(AudioFormat::Flac, &samples, 1000).0),
    ] {
        let (heard, _) = decode(bytes, format.as_str());
        let heard: Vec<i16> = heard.iter().map(|sample| (sample * 32768.0) as i16).collect();
        assert!(heard == pcm16(&samples), "{format:?}");
    }
}

#[test]
fn whole_files_say_how_long_they_are() {
    let samples = speech(41_685);
    for format in [AudioFormat::Wav, AudioFormat::Flac, AudioFormat::Mp3] {
        assert_eq!(decode(file(format, &samples), format.as_str()).1, Some(41_685), "{format:?}");
    }
}

#[test]
fn flac_is_smaller_than_wav_and_ends_anywhere() {
    let samples = speech(24_000);
    assert!(file(AudioFormat::Flac, &samples).len() * 10 < file(AudioFormat::Wav, &samples).len() * 8);
    for length in [1, 2, 15, 16, 31, 32, 33, 63, 64, 959, 960, 961, 1921] {
        let samples = &speech(10_000)[5_000..5_000 + length];
        let (heard, told) = decode(file(AudioFormat::Flac, samples), "flac");
        let heard: Vec<i16> = heard.iter().map(|sample| (sample * 32768.0) as i16).collect();
        assert_eq!((heard, told), (pcm16(samples), Some(length as u64)), "{length} samples");
    }
}

#[test]
fn mp3_is_close_and_as_long_as_the_speech() {
    for length in [1, 575, 1920, 41_685] {
        let samples = speech(length);
        let (heard, _) = decode(file(AudioFormat::Mp3, &samples), "mp3");
        assert_eq!(heard.len(), length);
        if length > 10_000 {
            let fidelity = fidelity(&samples, &heard);
            assert!(fidelity > 20.0, "{fidelity} dB");
        }
    }
}

#[test]
fn opus_is_close_and_as_long_as_the_speech() {
    for length in [0, 1, 480, 1920, 41_685] {
        let samples = speech(length);
        let (bytes, _) = streamed(AudioFormat::Opus, &samples, 1920);
        let heard = decode_opus(&bytes);
        assert_eq!(heard.len(), length);
        if length > 10_000 {
            let fidelity = fidelity(&samples, &heard);
            assert!(fidelity > 12.0, "{fidelity} dB");
        }
    }
}

/// By the rules of RFC 7845, as strict as a player may be.
fn decode_opus(bytes: &[u8]) -> Vec<f32> {
    let mut packets = ogg::PacketReader::new(Cursor::new(bytes));
    let head = packets.read_packet().unwrap().unwrap();
    assert!(head.first_in_stream() && head.last_in_page());
    assert_eq!(head.data[..10], *b"OpusHead\x01\x01");
    let pre_skip = u64::from(u16::from_le_bytes([head.data[10], head.data[11]]));
    assert_eq!(head.data[12..16], RATE.to_le_bytes());
    assert_eq!(head.data[16..], [0, 0, 0]);
    let tags = packets.read_packet().unwrap().unwrap();
    assert!(tags.data.starts_with(b"OpusTags") && tags.last_in_page());
    let mut decoder = opus_rs::OpusDecoder::new(RATE as i32, 1).unwrap();
    let (mut heard, mut decoded, mut end) = (Vec::new(), 0u64, None);
    while let Some(packet) = packets.read_packet().unwrap() {
        assert!(end.is_none(), "a packet behind the end");
        let mut piece = vec![0.0; 480];
        assert_eq!(decoder.decode(&packet.data, 480, &mut piece).unwrap(), 480);
        heard.extend(piece);
        decoded += 960;
        if packet.last_in_stream() {
            assert!(packet.absgp_page() <= decoded && packet.absgp_page() + 960 > decoded);
            end = Some(packet.absgp_page());
        } else if packet.last_in_page() {
            assert_eq!(packet.absgp_page(), decoded);
        }
    }
    heard.truncate((end.unwrap() / 2) as usize);
    heard.split_off((pre_skip / 2) as usize)
}

#[test]
fn the_first_frame_of_80_ms_is_heard_at_once() {
    let samples = speech(1920 * 3);
    for (format, first) in [
        (AudioFormat::Wav, 44 + 3840),
        (AudioFormat::Pcm, 3840),
        // The least that a whole block of noise-like sound can be, and an opus page with four packets.
        (AudioFormat::Flac, 42 + 300),
        (AudioFormat::Mp3, 4 * 288),
        (AudioFormat::Opus, 47 + 4 * 20),
    ] {
        let sizes = streamed(format, &samples, 1920).1;
        assert!(sizes[0] >= first, "{format:?}: {} bytes", sizes[0]);
        assert!(sizes[1] > sizes[0] && sizes[2] > sizes[1], "{format:?}");
    }
}

#[test]
fn the_pieces_change_no_byte_and_no_sound() {
    let samples = speech(10_000);
    for format in [AudioFormat::Wav, AudioFormat::Pcm, AudioFormat::Flac, AudioFormat::Mp3] {
        let whole = streamed(format, &samples, samples.len()).0;
        for piece in [1, 77, 960, 5000] {
            assert!(streamed(format, &samples, piece).0 == whole, "{format:?} in pieces of {piece}");
        }
    }
    // Pages end with the pieces; what is in them is the same.
    let whole = decode_opus(&streamed(AudioFormat::Opus, &samples, samples.len()).0);
    for piece in [1, 77, 480, 5000] {
        assert!(decode_opus(&streamed(AudioFormat::Opus, &samples, piece).0) == whole, "opus in pieces of {piece}");
    }
}

#[test]
fn hostile_samples_are_encoded_all_the_same() {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 2.0, -2.0, 1e-40, 0.0];
    let samples: Vec<f32> = (0..9600).map(|i| values[i * 7 % values.len()]).collect();
    for format in AudioFormat::ALL {
        assert!(!file(format, &samples).is_empty());
        let mut writer = Sound { speed: 1.7, ..format.into() }.writer(RATE).unwrap();
        writer.push(&samples).unwrap();
        writer.finish().unwrap();
    }
}

#[test]
fn an_answer_without_a_sample_is_still_a_file() {
    for (format, least) in [
        (AudioFormat::Wav, 44),
        (AudioFormat::Pcm, 0),
        (AudioFormat::Flac, 42),
        (AudioFormat::Mp3, 288),
        (AudioFormat::Opus, 100),
    ] {
        let bytes = file(format, &[]);
        assert!(bytes.len() >= least && (least > 0) != bytes.is_empty(), "{format:?}: {} bytes", bytes.len());
    }
}

#[test]
fn speed_one_is_the_untouched_samples() {
    let samples = speech(5000);
    let mut writer = Sound::from(AudioFormat::Pcm).writer(RATE).unwrap();
    let bytes = writer.push(&samples).unwrap();
    assert!(writer.finish().unwrap().is_empty());
    let heard: Vec<i16> = bytes.chunks(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
    assert_eq!(heard, pcm16(&samples));
    assert_eq!(writer.samples(), 5000);
}

/// The bytes of an answer that begins at a sample.
fn begun(format: AudioFormat, speed: f32, start: u64, samples: &[f32], piece: usize) -> Result<Vec<u8>, AudioError> {
    let mut writer = Sound { speed, start, sample_rate: Some(RATE), ..format.into() }.writer(RATE)?;
    let mut bytes = Vec::new();
    for piece in samples.chunks(piece) {
        bytes.extend(writer.push(piece)?);
    }
    writer.complete(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn an_answer_begins_at_any_sample_of_what_is_heard() {
    let samples = speech(12_000);
    for speed in [1.0, 1.5] {
        let whole = begun(AudioFormat::Pcm, speed, 0, &samples, 1920).unwrap();
        let heard = whole.len() as u64 / 2;
        for (start, piece) in [(1, 1920), (1919, 960), (1920, 1920), (heard / 2, 7), (heard - 1, 12_000), (heard, 1)] {
            let pcm = begun(AudioFormat::Pcm, speed, start, &samples, piece).unwrap();
            assert!(pcm == whole[start as usize * 2..], "{speed} times as fast from {start} in pieces of {piece}");
            let flac = begun(AudioFormat::Flac, speed, start, &samples, piece).unwrap();
            if start < heard {
                assert_eq!(decode(flac, "flac").1, Some(heard - start), "a file of its own");
            }
        }
        for format in AudioFormat::ALL {
            let beyond = begun(format, speed, heard + 1, &samples, 1920).unwrap_err();
            let told = format!("the answer has {heard} samples and cannot begin at sample {}", heard + 1);
            assert_eq!(beyond.to_string(), told);
        }
        assert!(begun(AudioFormat::Mp3, speed, u64::MAX, &samples, 1920).is_err());
    }
}

#[test]
fn nothing_is_written_before_an_answer_begins() {
    let samples = speech(4000);
    for format in AudioFormat::ALL {
        let mut writer = Sound { start: 3000, sample_rate: Some(RATE), ..format.into() }.writer(RATE).unwrap();
        assert!(writer.push(&samples[..2999]).unwrap().is_empty(), "{format:?}: not even a header");
        writer.push(&samples[2999..]).unwrap();
        writer.finish().unwrap();
        assert_eq!((writer.start(), writer.samples()), (3000, 1000));
    }
}

#[test]
fn speed_changes_the_length_of_any_format() {
    let samples = speech(24_000);
    let mut writer = Sound { speed: 1.5, ..AudioFormat::Flac.into() }.writer(RATE).unwrap();
    let mut bytes = Vec::new();
    for piece in samples.chunks(1920) {
        bytes.extend(writer.push(piece).unwrap());
    }
    writer.complete(&mut bytes).unwrap();
    assert_eq!(writer.samples(), 16_000);
    assert_eq!(decode(bytes, "flac").0.len(), 16_000);
}

#[test]
fn unknown_formats_are_told_what_there_is() {
    for name in ["aac", "AAC", "mp4", ""] {
        let told = AudioFormat::parse(name).unwrap_err();
        assert!(
            told.ends_with("ask for one of \"wav\", \"pcm\", \"flac\", \"mp3\", \"opus\", \"mulaw\", \"alaw\""),
            "{told}"
        );
    }
    assert_eq!(AudioFormat::parse("pcm16"), Ok(AudioFormat::Pcm));
    for name in ["mulaw", "ulaw", "g711_ulaw"] {
        assert_eq!(AudioFormat::parse(name), Ok(AudioFormat::G711(Law::Mu)));
    }
}

#[test]
fn files_tell_their_format_by_their_ending() {
    let format = |name: &str| AudioFormat::of_file(Path::new(name));
    assert_eq!(format("a/b.MP3"), Some(AudioFormat::Mp3));
    assert_eq!((format("a.ogg"), format("a.opus")), (Some(AudioFormat::Opus), Some(AudioFormat::Opus)));
    assert_eq!((format("wav"), format("a.txt")), (None, None));
}

#[test]
fn sample_rates_that_a_format_cannot_carry_are_refused() {
    let told = Sound::from(AudioFormat::Opus).writer(22_050).unwrap_err().to_string();
    assert_eq!(told, "opus cannot carry 22050 samples per second; ask for \"wav\", \"pcm\" or \"flac\"");
    assert!(Sound::from(AudioFormat::Flac).writer(22_050).is_ok());
}
