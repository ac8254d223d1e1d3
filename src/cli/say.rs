//! `omni-actors say`: speaks a text into a file.

use super::sink::SpeechSink;
use anyhow::{Context, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use omni_audio::{AudioFormat, MAX_LOUDNESS, MAX_SPEED, MIN_LOUDNESS, MIN_SPEED, SAMPLE_RATES, Sound};
use omni_core::ids::Frames;
use omni_engine::{
    ChatMessage, Content, Detail, Event, GenerateRequest, Markup, MediaSource, Output, Part, Recording, RequestOptions,
    ResponseStream, SamplingOverrides, Service, SpeechParams, SpeechRequest, SubmitError, TextSource, VoiceChoice,
};
use omni_model::weights::EmbeddedFiles;
use omni_tools::exit::{Interrupted, Usage};
use omni_tools::local;
use omni_tools::model::ModelArgs;
use omni_tools::signals::Signals;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Speak a text, or answer it, into a file
///
/// The file appears when it is complete. A line on stderr tells time to first audio, length, real-time factor and the
/// seed that repeats the speech sample for sample.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors say \"The weather is lovely today.\" -o hello.wav
  omni-actors say \"A little faster, please.\" --speed 1.25 -o faster.mp3
  omni-actors say \"Press one.\" -o menu.ulaw                       raw G.711 for a telephone
  omni-actors say --chat \"What is the capital of France?\" -o answer.wav
  omni-actors say --audio question.wav --image photo.jpg -o answer.wav
  echo \"Read me.\" | omni-actors say - -o - | aplay            played while it is made
  omni-actors say \"Hello.\" --voice alto --seed 7 --temperature 0
  omni-actors say --markup brackets \"Ready? [pause: 1s] [voice: alto] Go!\"
  omni-actors say \"Hello.\" --checkpoint Qwen3-TTS-12Hz-0.6B-Base --ref-audio me.wav --ref-text \"What I say in it.\"")]
pub struct SayArgs {
    /// What to say; - reads it from stdin
    #[arg(required_unless_present_any = ["audio", "image", "video"])]
    text: Option<String>,
    /// File to write, its ending being its format: wav, flac, mp3, opus (or ogg), pcm, mulaw, alaw; - writes a wav to
    /// stdout while the speech is made
    #[arg(short, long, value_name = "FILE", default_value = "speech.wav")]
    output: PathBuf,
    /// Answer the text instead of repeating it; the answer is also printed on stderr
    #[arg(long)]
    chat: bool,
    /// Answer this sound, in front of the text if there is one; may be given several times, as the next two
    #[arg(long, value_name = "FILE", conflicts_with = "ref_audio")]
    audio: Vec<PathBuf>,
    /// Answer what is in this picture
    #[arg(long, value_name = "FILE", conflicts_with = "ref_audio")]
    image: Vec<PathBuf>,
    /// Answer what is in this video or animation, with its sound
    #[arg(long, value_name = "FILE", conflicts_with = "ref_audio")]
    video: Vec<PathBuf>,
    /// Format, whatever the name of the file: wav, flac, mp3, opus, pcm, mulaw, alaw
    #[arg(long, value_parser = AudioFormat::parse)]
    format: Option<AudioFormat>,
    /// How many times as fast as usual, 0.25 to 4, at the same pitch
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = speed)]
    speed: f32,
    /// Samples per second, as far as the format carries them: 8000, 16000, 22050, 24000, 44100 or 48000; by default the
    /// model's, for mulaw and alaw 8000
    #[arg(long, value_name = "HZ", value_parser = sample_rate)]
    sample_rate: Option<u32>,
    /// Make the speech so loud, in LUFS (EBU R 128), -40 to -8; it is then written at its end
    #[arg(long, value_name = "LUFS", allow_negative_numbers = true, value_parser = loudness)]
    loudness: Option<f32>,
    /// Speaker, or an uploaded voice
    #[arg(long)]
    voice: Option<String>,
    /// Recording of the voice to speak with, for Qwen3-TTS Base checkpoints
    #[arg(long, value_name = "FILE", conflicts_with_all = ["voice", "chat"])]
    ref_audio: Option<PathBuf>,
    /// Transcript of that recording; with it the speech goes on in the manner of the recording
    #[arg(long, value_name = "TEXT", requires = "ref_audio")]
    ref_text: Option<String>,
    /// How to speak, or what the voice is like, for Qwen3-TTS checkpoints that follow instructions
    #[arg(long, value_name = "TEXT", conflicts_with = "chat")]
    instructions: Option<String>,
    /// Language of the text, for Qwen3-TTS; without it the model infers it
    #[arg(long, conflicts_with = "chat")]
    language: Option<String>,
    /// What of the text is markup: ssml, or brackets for [pause: 0.5s], [voice: NAME] and [rate: 80%]
    #[arg(long, value_parser = markup, conflicts_with = "chat")]
    markup: Option<Markup>,
    /// Same seed, same speech; without one the command draws one and prints it
    #[arg(long)]
    seed: Option<u64>,
    /// End each sentence after so many frames of 80 ms at the latest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_frames: Option<u32>,
    /// How freely the speech is sampled; 0 always takes the likeliest
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    #[command(flatten)]
    model: ModelArgs,
}

fn speed(text: &str) -> Result<f32, String> {
    let speed = text.parse().map_err(|_| "is not a number".to_owned())?;
    let allowed = MIN_SPEED..=MAX_SPEED;
    if allowed.contains(&speed) { Ok(speed) } else { Err(format!("is not between {MIN_SPEED} and {MAX_SPEED}")) }
}

fn markup(text: &str) -> Result<Markup, String> {
    Markup::parse(text).ok_or_else(|| "is neither ssml nor brackets".to_owned())
}

fn sample_rate(text: &str) -> Result<u32, String> {
    let rate = text.parse().ok().filter(|rate| SAMPLE_RATES.contains(rate));
    rate.ok_or_else(|| format!("is none of {}", SAMPLE_RATES.map(|rate| rate.to_string()).join(", ")))
}

fn loudness(text: &str) -> Result<f32, String> {
    let loudness = text.parse().map_err(|_| "is not a number".to_owned())?;
    let allowed = MIN_LOUDNESS..=MAX_LOUDNESS;
    let told = || format!("is not between {MIN_LOUDNESS} and {MAX_LOUDNESS}");
    allowed.contains(&loudness).then_some(loudness).ok_or_else(told)
}

/// Runs the command.
pub async fn execute(args: SayArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    tokio::select! {
        done = speak(args, embedded) => done,
        () = signals.next() => Err(Interrupted.into()),
    }
}

async fn speak(args: SayArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let text = match args.text.as_deref().unwrap_or_default() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
            text
        }
        text => text.to_owned(),
    };
    let text = text.trim();
    if text.is_empty() && !args.has_media() {
        return Err(Usage("there is nothing to say: give a text".to_owned()).into());
    }
    let sound = args.sound()?;
    let config = args.model.resolve()?;
    let service = local::start_ready(config, embedded).await?;
    let writer = sound.writer(service.info().sample_rate)?.fading_in(service.info().fade_in);
    let mut sink = SpeechSink::open(&args.output, writer)?;
    let began = Instant::now();
    let stream = args.submit(&*service, text).await?;
    let told = receive(stream, &mut sink, began, service.info().sample_rate, args.answers()).await?;
    sink.finish()?;
    service.drain(Duration::ZERO).await;
    let voice = match (&args.ref_audio, args.voice.as_deref().or(service.info().default_voice.as_deref())) {
        (Some(recording), _) => format!("of {}", recording.display()),
        (None, name) => name.unwrap_or("as described").to_owned(),
    };
    let place = if args.output.as_os_str() == "-" { "stdout".into() } else { args.output.display().to_string() };
    omni_telemetry::complain(&format!("{place}: {told}, voice {voice}"));
    Ok(())
}

impl SayArgs {
    /// What the options say about the sound.
    fn sound(&self) -> anyhow::Result<Sound> {
        let named = self.output.extension().is_some();
        let format = match self.format.or_else(|| AudioFormat::of_file(&self.output)) {
            Some(format) => format,
            None if !named => AudioFormat::Wav,
            None => {
                let name = self.output.display();
                let told = format!(
                    "{name}: the ending names no format; use .wav, .flac, .mp3, .opus, .ogg or .pcm, or give --format"
                );
                return Err(Usage(told).into());
            }
        };
        if let Some(rate) = self.sample_rate.filter(|rate| !format.carries(*rate)) {
            let carried = SAMPLE_RATES.into_iter().filter(|rate| format.carries(*rate)).map(|rate| rate.to_string());
            let carried = carried.collect::<Vec<_>>().join(", ");
            let told = format!("--sample-rate {rate}: {} carries {carried}", format.as_str());
            return Err(Usage(told).into());
        }
        Ok(Sound { speed: self.speed, sample_rate: self.sample_rate, loudness: self.loudness, ..format.into() })
    }

    fn has_media(&self) -> bool {
        [&self.audio, &self.image, &self.video].iter().any(|files| !files.is_empty())
    }

    /// Whether the text is answered, not repeated.
    fn answers(&self) -> bool {
        self.chat || self.has_media()
    }

    /// What is to be answered: sounds, pictures and videos, then the text.
    fn turn(&self, text: &str) -> anyhow::Result<(ChatMessage, Vec<MediaSource>)> {
        if !self.has_media() {
            return Ok((ChatMessage::text("user", text), Vec::new()));
        }
        let read = |path: &PathBuf| {
            let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok::<_, anyhow::Error>(Arc::from(file))
        };
        let mut parts = Vec::new();
        let mut media = Vec::new();
        for path in &self.audio {
            parts.push(Part::Audio);
            media.push(MediaSource::Audio(read(path)?));
        }
        for path in &self.image {
            parts.push(Part::Image);
            media.push(MediaSource::Image { file: read(path)?, detail: Detail::Auto });
        }
        for path in &self.video {
            parts.push(Part::Video);
            media.push(MediaSource::Video { file: read(path)?, hear: true, frames_per_second: None });
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        Ok((ChatMessage { role: "user".to_owned(), content: Content::Parts(parts), calls: Vec::new() }, media))
    }

    /// The file that an error of the engine is about.
    fn file(&self, index: usize) -> Option<&PathBuf> {
        self.audio.iter().chain(&self.image).chain(&self.video).nth(index)
    }

    /// The voice that the options name.
    fn speaker(&self) -> anyhow::Result<VoiceChoice> {
        let Some(path) = &self.ref_audio else { return Ok(VoiceChoice::named(self.voice.clone())) };
        let audio = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(VoiceChoice::Clone(Recording { audio: audio.into(), text: self.ref_text.clone(), x_vector_only: false }))
    }

    async fn submit(&self, service: &dyn Service, text: &str) -> anyhow::Result<ResponseStream> {
        let speech = SamplingOverrides { temperature: self.temperature, ..SamplingOverrides::default() };
        let (voice, seed) = (self.voice.clone(), self.seed);
        let accepted = if self.answers() {
            let (message, media) = self.turn(text)?;
            let request = GenerateRequest {
                messages: vec![message],
                media,
                tools: Vec::new(),
                until_call: false,
                output: Output::TextAndAudio,
                voice,
                text: speech,
                speech,
                max_text_tokens: None,
                max_frames: self.max_frames.map(Frames),
                ignore_eos: false,
                seed,
                options: RequestOptions::default(),
            };
            service.submit(request).await
        } else {
            let params = SpeechParams {
                voice: self.speaker()?,
                language: self.language.clone(),
                instructions: self.instructions.clone(),
                speech,
                max_frames: self.max_frames.map(Frames),
                seed,
                markup: self.markup,
                ..SpeechParams::default()
            };
            let request = SpeechRequest { text: TextSource::Whole(text.to_owned()), params };
            service.speak(request).await
        };
        // A refusal is about what the user typed.
        accepted.map_err(|error| {
            let file = if let SubmitError::Medium { index, .. } = &error { self.file(*index) } else { None };
            let told = file.map_or_else(|| error.to_string(), |file| format!("{}: {error}", file.display()));
            Usage(told).into()
        })
    }
}

/// Writes the speech as it comes and returns what it took, in words.
async fn receive(
    mut stream: ResponseStream,
    sink: &mut SpeechSink,
    began: Instant,
    sample_rate: u32,
    print_text: bool,
) -> anyhow::Result<String> {
    let bar = ProgressBar::new_spinner();
    // The template is a constant that parses; the default style would do too.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    let (mut samples, mut first, mut used_seed, mut answer) = (0usize, None, 0, String::new());
    let length = |samples: usize| samples as f64 / f64::from(sample_rate);
    while let Some(event) = stream.next().await {
        match event {
            Event::Started { seed, .. } => used_seed = seed,
            Event::Text(piece) => answer += &piece,
            Event::Word(_) => {}
            Event::Audio(chunk) => {
                first.get_or_insert_with(|| began.elapsed());
                sink.write(&chunk.samples)?;
                samples += chunk.samples.len();
                bar.set_message(format!("{:.1} s spoken {answer}", length(samples)));
            }
            Event::Finished { .. } => {
                bar.finish_and_clear();
                if print_text {
                    omni_telemetry::complain(&answer);
                }
                let took = began.elapsed().as_secs_f64();
                let first = first.ok_or_else(|| anyhow!("the model said nothing; try another seed or text"))?;
                return Ok(format!(
                    "{:.2} s of speech in {took:.2} s (real-time factor {:.2}), first audio after {} ms, seed {used_seed}",
                    length(samples),
                    took / length(samples),
                    first.as_millis()
                ));
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Err(anyhow!("the request ended without an answer"))
}
