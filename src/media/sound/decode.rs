//! Decodes the packets of a container to mono samples.

use super::container::Container;
use super::{AudioError, AudioLimits, Clip, MAX_CHANNELS, MAX_RATE, MIN_RATE, vorbis};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::CODEC_ID_VORBIS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::{formats, get_codecs};

/// Packets without a single sample that a stream may have. Real streams have one or two at their start; each of them
/// costs time that no limit on samples bounds.
const MAX_EMPTY_PACKETS: usize = 100;
/// Packets of other tracks for each second that a file may last: some tracks of sound at 50. They say nothing of their
/// length, and a table may promise any number of them.
const OTHERS_PER_SECOND: f64 = 400.0;
/// How much of the promised sound may be missing before a file counts as cut short: containers count the samples that
/// an encoder put in front and behind differently.
const SLACK_SECONDS: f64 = 0.1;

/// Decodes a container.
pub(super) fn decode(container: Container, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, AudioError> {
    // The library is free of `unsafe` and checks what it reads, but some damage still makes it panic: where overflow is
    // checked, 0.6.1 does so for channel masks of a wav and frame sizes of an aiff. Such a panic must fail the request,
    // not the thread that serves it.
    catch_unwind(AssertUnwindSafe(|| decode_checked(container, bytes, limits))).unwrap_or_else(|_| {
        Err(AudioError::Damaged { format: container.name(), reason: "its structure makes no sense".into() })
    })
}

fn decode_checked(container: Container, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, AudioError> {
    let damaged = |e| refusal(container, e);
    let mut reader = open(container, bytes).map_err(damaged)?;
    let track = audio_track(reader.as_ref())?;
    let (id, promised) = (track.id, promised_frames(container, track, bytes));
    let codec = codec(container, track)?;
    let mut decoder = get_codecs().make_audio_decoder(&codec, &AudioDecoderOptions::default()).map_err(damaged)?;
    let mut mono = Mono::new(container, limits);
    if let Some(rate) = codec.sample_rate {
        mono.set_rate(rate)?;
        mono.expect(promised.unwrap_or(0))?;
    }
    let (mut empty, mut others) = (0, 0.0);
    while let Some(packet) = next_packet(reader.as_mut()).map_err(damaged)? {
        if packet.track_id != id {
            others += 1.0;
            if others > OTHERS_PER_SECOND * (1.0 + limits.max_seconds) {
                return Err(mono.damaged("its other tracks have more packets than such a length takes"));
            }
            continue;
        }
        let before = mono.pcm.len();
        take(decoder.as_mut(), &packet, &mut mono)?;
        empty += usize::from(mono.pcm.len() == before);
        if empty > MAX_EMPTY_PACKETS {
            return Err(mono.damaged("it consists of packets without sound"));
        }
    }
    mono.finish(promised)
}

fn open(container: Container, bytes: &[u8]) -> Result<Box<dyn FormatReader + '_>, Error> {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let options = FormatOptions::default();
    Ok(match container {
        Container::Wav => Box::new(formats::WavReader::try_new(stream, options)?),
        Container::Aiff => Box::new(formats::AiffReader::try_new(stream, options)?),
        Container::Flac => Box::new(formats::FlacReader::try_new(stream, options)?),
        Container::Mp3 => Box::new(formats::MpaReader::try_new(stream, options)?),
        Container::Adts => Box::new(formats::AdtsReader::try_new(stream, options)?),
        Container::Ogg => Box::new(formats::OggReader::try_new(stream, options)?),
        Container::Mp4 => Box::new(formats::IsoMp4Reader::try_new(stream, options)?),
    })
}

/// The only audio track of a file without pictures.
fn audio_track<'a>(reader: &'a (dyn FormatReader + '_)) -> Result<&'a Track, AudioError> {
    if reader.tracks().iter().any(|track| track.track_type() == Some(TrackType::Video)) {
        return Err(AudioError::Video);
    }
    reader.default_track(TrackType::Audio).ok_or(AudioError::NoAudio)
}

/// Samples per channel that the container says it has, where that is more than a guess.
fn promised_frames(container: Container, track: &Track, bytes: &[u8]) -> Option<u64> {
    let counted = match container {
        Container::Wav | Container::Aiff | Container::Flac | Container::Mp4 => true,
        // From the size of the file, if its first frame has no count.
        Container::Mp3 => bytes.windows(4).take(256).any(|four| four == b"Xing" || four == b"Info"),
        // From the size of the file; from the last page that is there.
        Container::Adts | Container::Ogg => false,
    };
    track.num_frames.filter(|_| counted)
}

/// The parameters of the decoder, checked for those that would make it take memory.
fn codec(container: Container, track: &Track) -> Result<AudioCodecParameters, AudioError> {
    let Some(codec) = track.codec_params.as_ref().and_then(|params| params.audio()) else {
        return Err(AudioError::NoAudio);
    };
    if let Some(channels) = &codec.channels
        && !(1..=MAX_CHANNELS).contains(&channels.count())
    {
        return Err(AudioError::Channels(channels.count()));
    }
    if codec.codec == CODEC_ID_VORBIS && !codec.extra_data.as_deref().is_none_or(vorbis::is_bounded) {
        return Err(AudioError::Damaged { format: container.name(), reason: "its codebooks are too large".into() });
    }
    if get_codecs().get_audio_decoder(codec.codec).is_none() {
        return Err(AudioError::Unsupported(format!("the codec of this {}", container.name())));
    }
    Ok(codec.clone())
}

/// A file that ends where a packet should begin counts as ended; the caller compares its length with the promised one.
fn next_packet(reader: &mut (dyn FormatReader + '_)) -> Result<Option<symphonia::core::packet::Packet>, Error> {
    match reader.next_packet() {
        Err(Error::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

fn take(
    decoder: &mut dyn AudioDecoder,
    packet: &symphonia::core::packet::Packet,
    mono: &mut Mono,
) -> Result<(), AudioError> {
    match decoder.decode(packet) {
        Ok(decoded) => mono.add(&decoded),
        // A packet that makes no sense counts as one without sound: decoders lose the first ones of a stream that was
        // cut out of a longer one.
        Err(Error::DecodeError(_) | Error::IoError(_)) => Ok(()),
        Err(e) => Err(refusal(mono.container, e)),
    }
}

/// Samples so far.
struct Mono {
    container: Container,
    min_seconds: f64,
    max_seconds: f64,
    rate: u32,
    pcm: Vec<f32>,
    interleaved: Vec<f32>,
}

impl Mono {
    fn new(container: Container, limits: &AudioLimits) -> Mono {
        let AudioLimits { min_seconds, max_seconds, .. } = *limits;
        Mono { container, min_seconds, max_seconds, rate: 0, pcm: Vec::new(), interleaved: Vec::new() }
    }

    fn damaged(&self, reason: &str) -> AudioError {
        AudioError::Damaged { format: self.container.name(), reason: reason.into() }
    }

    fn set_rate(&mut self, rate: u32) -> Result<(), AudioError> {
        if !(MIN_RATE..=MAX_RATE).contains(&rate) {
            return Err(AudioError::Rate(rate));
        }
        if self.rate != 0 && self.rate != rate {
            return Err(self.damaged("its sample rate changes midway"));
        }
        self.rate = rate;
        Ok(())
    }

    fn max_frames(&self) -> u64 {
        (self.max_seconds * f64::from(self.rate)) as u64
    }

    /// Refuses a file for what its header promises, before decoding.
    fn expect(&self, frames: u64) -> Result<(), AudioError> {
        if frames > self.max_frames() { Err(AudioError::TooLong { limit: self.max_seconds }) } else { Ok(()) }
    }

    fn add(&mut self, decoded: &GenericAudioBufferRef<'_>) -> Result<(), AudioError> {
        let channels = decoded.spec().channels().count();
        if decoded.frames() == 0 {
            return Ok(());
        }
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(AudioError::Channels(channels));
        }
        self.set_rate(decoded.spec().rate())?;
        self.expect((self.pcm.len() + decoded.frames()) as u64)?;
        decoded.copy_to_vec_interleaved(&mut self.interleaved);
        for frame in self.interleaved.chunks_exact(channels) {
            let mean = frame.iter().sum::<f32>() / channels as f32;
            if !mean.is_finite() {
                return Err(AudioError::NotFinite(self.pcm.len() as f64 / f64::from(self.rate)));
            }
            self.pcm.push(mean);
        }
        Ok(())
    }

    fn finish(self, promised: Option<u64>) -> Result<Clip, AudioError> {
        if self.rate == 0 || self.pcm.is_empty() {
            return Err(AudioError::TooShort { seconds: 0.0, limit: self.min_seconds });
        }
        let seconds = |frames: u64| frames as f64 / f64::from(self.rate);
        let (have, want) = (seconds(self.pcm.len() as u64), seconds(promised.unwrap_or(0)));
        if want > have + SLACK_SECONDS {
            return Err(AudioError::CutShort { format: self.container.name(), have, want });
        }
        Ok(Clip { pcm: self.pcm, rate: self.rate })
    }
}

/// Turns an error of the library into a refusal.
fn refusal(container: Container, error: Error) -> AudioError {
    let format = container.name();
    match error {
        // The library reports a missing part of the structure with this error.
        Error::Unsupported(what) if what.contains("missing") => AudioError::Damaged { format, reason: what.into() },
        Error::Unsupported(what) => AudioError::Unsupported(format!("this {format} ({what})")),
        Error::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            AudioError::Damaged { format, reason: "it ends in the middle".into() }
        }
        Error::ResetRequired => AudioError::Damaged { format, reason: "it consists of several recordings".into() },
        Error::DecodeError(what) | Error::LimitError(what) => AudioError::Damaged { format, reason: what.into() },
        other => AudioError::Damaged { format, reason: other.to_string() },
    }
}
