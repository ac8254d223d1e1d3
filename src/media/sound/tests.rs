//! Decoding of real files, and of files that an attacker damaged.

use super::*;
use proptest::prelude::*;
use std::f64::consts::TAU;
use std::path::Path;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/audio").join(name)).unwrap()
}

fn decoded(bytes: &[u8]) -> Result<Clip, AudioError> {
    decode_audio(bytes, &AudioLimits::default())
}

/// What the fixtures hold.
fn signal(t: f64) -> f64 {
    0.4 * (TAU * 440.0 * t).sin() + 0.1 * (TAU * 1000.0 * t).sin()
}

/// Root of the mean squared difference of a clip from the signal at `level`, `delay` samples late.
fn distance(clip: &Clip, level: f64, delay: usize) -> f64 {
    let late = &clip.pcm[delay..];
    let error = |(i, x): (usize, &f32)| f64::from(*x) - level * signal(i as f64 / f64::from(clip.rate));
    let n = late.len().min((0.55 * f64::from(clip.rate)) as usize);
    (late.iter().enumerate().take(n).map(error).map(|e| e * e).sum::<f64>() / n as f64).sqrt()
}

/// A wav of 16-bit words unless `format` (tag, bits) says otherwise.
fn wav((tag, bits): (u16, u16), channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let block = channels * bits / 8;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    file.extend([tag.to_le_bytes(), channels.to_le_bytes()].concat());
    file.extend([rate.to_le_bytes(), (rate * u32::from(block)).to_le_bytes()].concat());
    file.extend([block.to_le_bytes(), bits.to_le_bytes()].concat());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

fn floats(rate: u32, samples: impl IntoIterator<Item = f32>) -> Vec<u8> {
    wav((3, 32), 1, rate, &samples.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>())
}

fn tone(rate: u32, seconds: f64) -> impl Iterator<Item = f32> {
    (0..(f64::from(rate) * seconds) as usize).map(move |i| signal(i as f64 / f64::from(rate)) as f32)
}

#[test]
fn every_lossless_format_gives_the_samples_back() {
    for (name, rate, level, error) in [
        ("alaw.wav", 16_000, 1.0, 6e-3),
        ("ulaw.wav", 16_000, 1.0, 6e-3),
        ("ext24.wav", 16_000, 0.75, 1e-6),
        ("aiff16.aiff", 16_000, 1.0, 2e-5),
        ("mono.flac", 16_000, 1.0, 2e-5),
        ("stereo24.flac", 24_000, 0.75, 1e-6),
    ] {
        let clip = decoded(&file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((clip.rate, clip.pcm.len()), (rate, rate as usize * 6 / 10), "{name}");
        assert!(distance(&clip, level, 0) < error, "{name}: {:e}", distance(&clip, level, 0));
    }
}

#[test]
fn every_lossy_format_gives_about_the_same_sound_at_about_the_same_time() {
    for (name, rate, level, most_delay) in [
        ("mono.mp3", 16_000, 1.0, 0),
        ("stereo44.mp3", 44_100, 0.75, 0),
        ("mono.ogg", 16_000, 1.0, 0),
        ("stereo44.ogg", 44_100, 0.75, 0),
        ("aac.m4a", 44_100, 1.0, 2112),
        ("aac.aac", 44_100, 1.0, 2112),
    ] {
        let clip = decoded(&file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(clip.rate, rate, "{name}");
        assert!((clip.seconds() - 0.6).abs() < 0.09, "{name}: {} s", clip.seconds());
        let best = (0..=most_delay).map(|delay| distance(&clip, level, delay)).fold(f64::MAX, f64::min);
        assert!(best < 0.02, "{name}: {best:e}");
    }
}

#[test]
fn every_width_of_a_wav_is_read() {
    let rate = 8_000;
    let words = |bytes: fn(f64) -> Vec<u8>| -> Vec<u8> { tone(rate, 0.6).flat_map(|x| bytes(f64::from(x))).collect() };
    let cases: [(&str, u16, u16, Vec<u8>, f64); 6] = [
        ("8 bits", 1, 8, words(|x| vec![(x * 128.0 + 128.0) as u8]), 1e-2),
        ("16 bits", 1, 16, words(|x| ((x * 32768.0) as i16).to_le_bytes().to_vec()), 1e-4),
        ("24 bits", 1, 24, words(|x| ((x * 8_388_608.0) as i32).to_le_bytes()[..3].to_vec()), 1e-6),
        ("32 bits", 1, 32, words(|x| ((x * 2_147_483_648.0) as i32).to_le_bytes().to_vec()), 1e-6),
        ("floats", 3, 32, words(|x| (x as f32).to_le_bytes().to_vec()), 1e-6),
        ("doubles", 3, 64, words(|x| x.to_le_bytes().to_vec()), 1e-6),
    ];
    for (name, tag, bits, data, error) in cases {
        let clip = decoded(&wav((tag, bits), 1, rate, &data)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((clip.rate, clip.pcm.len()), (rate, 4_800), "{name}");
        assert!(distance(&clip, 1.0, 0) < error, "{name}: {:e}", distance(&clip, 1.0, 0));
    }
}

#[test]
fn a_wav_that_was_streamed_has_no_length_and_is_read_to_its_end() {
    let mut file = floats(8_000, tone(8_000, 0.6));
    file[4..8].copy_from_slice(&[0xff; 4]);
    file[40..44].copy_from_slice(&[0xff; 4]);
    assert_eq!(decoded(&file).unwrap().pcm.len(), 4_800);
}

fn refused(bytes: &[u8]) -> String {
    decoded(bytes).unwrap_err().to_string()
}

#[test]
fn each_refusal_says_what_is_wrong_and_what_to_do() {
    let rate = 8_000;
    let second = || tone(rate, 1.0);
    let mut nan = second().collect::<Vec<_>>();
    nan[4_000] = f32::NAN;
    let mut infinite = second().collect::<Vec<_>>();
    infinite[0] = f32::NEG_INFINITY;
    let whole = floats(rate, second());
    let flac = file("mono.flac");
    for (case, bytes, says) in [
        ("nothing", vec![], "the audio is empty"),
        ("no samples", floats(rate, []), "the audio lasts 0.00 seconds: send at least 0.5"),
        ("too short", floats(rate, tone(rate, 0.4)), "the audio lasts 0.40 seconds"),
        ("too long", floats(rate, tone(rate, 60.1)), "the audio is longer than 60 seconds"),
        ("not a number", floats(rate, nan), "samples that are not finite numbers (first at 0.50 s)"),
        ("infinity", floats(rate, infinite), "samples that are not finite numbers (first at 0.00 s)"),
        ("integers as floats", floats(rate, second().map(|x| x * 32_768.0)), "expected -1 to 1: scale them"),
        ("silence", floats(rate, vec![0.0; 8_000]), "the audio is silent"),
        ("almost silence", floats(rate, second().map(|x| x * 1e-4)), "the audio is silent"),
        ("a slow rate", floats(4_000, tone(4_000, 1.0)), "has 4000 samples per second: expected 8000 to 192000"),
        ("a fast rate", floats(384_000, tone(384_000, 1.0)), "has 384000 samples per second"),
        ("a rate of 0", floats(0, second()), "has 0 samples per second"),
        ("half a wav", whole[..whole.len() / 2].to_vec(), "the wav is cut short: 0.5 of 1.0 seconds are there"),
        ("a wav's head", whole[..20].to_vec(), "the wav is damaged (it ends in the middle)"),
        ("half a flac", flac[..flac.len() / 2].to_vec(), "the flac is cut short"),
        ("half an mp3", file("stereo44.mp3")[..3_000].to_vec(), "the mp3 is cut short"),
        ("half an m4a", file("aac.m4a")[..3_000].to_vec(), "the m4a is"),
        ("a codec", file("ima_adpcm.wav"), "the codec of this wav is not read here: convert it to wav, flac"),
        ("a video", file("video.mp4"), "this is a video: send only its sound"),
        ("webm", file("opus.webm"), "WebM or Matroska is not read here"),
        ("opus", file("opus.ogg"), "Opus in ogg is not read here"),
        ("noise", (0..5_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(), "not an audio file"),
    ] {
        let text = refused(&bytes);
        assert!(text.contains(says), "{case}: {text}");
        assert!(!text.contains('\n') && text.len() < 200, "{case}: {text}");
    }
    let limits = AudioLimits { max_bytes: 1_000, ..AudioLimits::default() };
    let text = decode_audio(&whole, &limits).unwrap_err().to_string();
    assert!(text.starts_with("the audio has 0.0 MB"), "{text}");
}

#[test]
fn channels_beyond_surround_are_refused() {
    for channels in [0u16, 9, 1_000] {
        let data = vec![1; 2 * 9_000 * usize::from(channels.max(1)).min(9)];
        let file = wav((1, 16), channels, 8_000, &data);
        assert!(decoded(&file).is_err(), "{channels}");
    }
}

/// A flac of constant blocks: 65535 samples in a few bytes.
fn flac_bomb(seconds: usize) -> Vec<u8> {
    const RATE: u32 = 48_000;
    const BLOCK: u16 = 65_535;
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend([BLOCK.to_be_bytes(), BLOCK.to_be_bytes()].concat());
    file.extend([0; 6]);
    // 20 bits of rate, 3 of channels - 1, 5 of width - 1, 36 of samples: unknown.
    file.extend((u64::from(RATE) << 44 | 15 << 36).to_be_bytes());
    file.extend([0; 16]);
    for n in 0..(seconds * RATE as usize).div_ceil(usize::from(BLOCK)) as u8 {
        assert!(n < 128, "frame numbers of one byte");
        // Sync and fixed blocks; size in 16 bits, rate of the stream; mono of 16 bits; number.
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08, n];
        frame.extend((BLOCK - 1).to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.extend([0, 0x20, 0]); // a constant subframe
        let sum = crc(&frame, 16, 0x8005);
        frame.extend((sum as u16).to_be_bytes());
        file.extend(frame);
    }
    file
}

fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let mask = (1 << width) - 1;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << (width - 8), |crc, _| {
            (crc << 1 ^ if crc >> (width - 1) & 1 == 1 { polynomial } else { 0 }) & mask
        })
    })
}

#[test]
fn a_small_file_that_unpacks_to_more_than_the_limit_is_refused_at_the_limit() {
    let bomb = flac_bomb(150);
    assert!(bomb.len() < 2_000);
    assert_eq!(refused(&bomb), AudioError::TooLong { limit: 60.0 }.to_string());
    let half = decode_audio(&flac_bomb(30), &AudioLimits::default()).unwrap();
    assert!(half.seconds() > 30.0);
}

#[test]
fn a_header_that_promises_hours_is_refused_before_decoding() {
    let mut file = floats(8_000, tone(8_000, 1.0));
    file[4..8].copy_from_slice(&0x7fff_0000u32.to_le_bytes());
    file[40..44].copy_from_slice(&0x7ffe_0000u32.to_le_bytes());
    assert_eq!(refused(&file), AudioError::TooLong { limit: 60.0 }.to_string());
}

/// Files to damage: every container and codec, small ones.
const SEEDS: [&str; 9] =
    ["ulaw.wav", "ext24.wav", "aiff16.aiff", "mono.flac", "mono.mp3", "mono.ogg", "aac.m4a", "aac.aac", "video.mp4"];

#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Word(usize, u32),
    Cut(usize),
    Drop(usize, usize),
    Splice(usize, usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Most positions near the start, where headers are.
    let at = || prop_oneof![0usize..200, 0usize..60_000];
    let word = prop_oneof![Just(0), Just(u32::MAX), Just(0x7fff_ffff), Just(1), any::<u32>()];
    prop_oneof![
        4 => (at(), 1u8..).prop_map(|(i, bits)| Damage::Flip(i, bits)),
        2 => (at(), word).prop_map(|(i, word)| Damage::Word(i, word)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), 0usize..300).prop_map(|(i, n)| Damage::Drop(i, n)),
        1 => (at(), at(), 0usize..3_000).prop_map(|(from, to, n)| Damage::Splice(from, to, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, other: &[u8], damage: &Damage) {
    let len = bytes.len().max(1);
    let part = |from: usize, n: usize, of: usize| (from % of.max(1)).min(of)..(from % of.max(1) + n).min(of);
    match *damage {
        Damage::Flip(i, bits) => {
            if let Some(byte) = bytes.get_mut(i % len) {
                *byte ^= bits;
            }
        }
        Damage::Word(i, word) => bytes.iter_mut().skip(i % len).zip(word.to_be_bytes()).for_each(|(b, w)| *b = w),
        Damage::Cut(at) => bytes.truncate(at % len),
        Damage::Drop(at, n) => drop(bytes.drain(part(at, n, bytes.len()))),
        Damage::Splice(from, to, n) => {
            let to = to % len;
            bytes.splice(to..to, other[part(from, n, other.len())].iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_damage_makes_the_decoder_panic_or_exceed_its_limits(
        seed in 0..SEEDS.len(), other in 0..SEEDS.len(), damages in proptest::collection::vec(damage(), 1..6),
    ) {
        let (mut bytes, other) = (file(SEEDS[seed]), file(SEEDS[other]));
        damages.iter().for_each(|d| apply(&mut bytes, &other, d));
        let limits = AudioLimits { max_seconds: 2.0, ..AudioLimits::default() };
        if let Ok(clip) = decode_audio(&bytes, &limits) {
            prop_assert!(clip.seconds() <= 2.0 && (MIN_RATE..=MAX_RATE).contains(&clip.rate));
            prop_assert!(clip.pcm.iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), head in 0..8usize) {
        let heads: [&[u8]; 8] = [
            b"", b"RIFF\xff\xff\0\0WAVEfmt ", b"fLaC\0\0\0\x22", b"OggS\0\x02", b"ID3\x04\0\0\0\0\0\x05", b"\xff\xfb\x90\x64",
            b"\0\0\0\x18ftypM4A \0\0\0\0\0\0\0\0\0\0\0\0", b"FORM\0\0\xff\xffAIFFCOMM",
        ];
        let _ = decoded(&[heads[head], &bytes].concat());
    }
}
