//! Decodes what strangers send, in processes that have nothing and may do nothing else (`omni-actors decode`).
//!
//! ```text
//!  server                                      worker: the same binary, `omni-actors decode`
//!  Decoders -- Pool: keeps workers ready        sets its limits, then reads
//!     job and bytes ------------- stdin ------> decodes one file
//!     samples, or the reason <--- stdout ------ and ends
//! ```
//!
//! A worker serves one job, so what one client sends can reach nothing of the next client's. The server believes it
//! nothing either: lengths, rates and samples of its answer are checked again. Samples and pictures are the same, bit for
//! bit, as those that are decoded in the server's own process. Pictures of one request are decoded side by side, several
//! by one worker, because starting one takes longer than decoding a frame of a video.
//!
//! | file | what |
//! | --- | --- |
//! | `job.rs` | the jobs, and how each is done |
//! | `media.rs` | jobs of what a model hears and sees |
//! | `pictures.rs` | pictures of one request, side by side |
//! | `helpers.rs` | the threads that do that |
//! | `frame.rs` | the protocol: jobs, answers, their lengths |
//! | `worker.rs` | one worker, seen from the server |
//! | `pool.rs` | the workers that are kept ready, and how many may work at once |
//! | `child.rs` | the worker itself: its limits, its one job |

mod child;
mod frame;
mod helpers;
mod job;
mod media;
mod pictures;
mod pool;
mod worker;

pub use child::{DecoderArgs, DecoderError, serve};
pub(super) use job::Pictures;
pub(super) use media::most_pixels;
pub use omni_media::ffmpeg::{Confined, confine};
pub use pictures::Sight;
pub use worker::WorkerLimits;

use super::StartError;
use super::process;
use helpers::Helpers;
use job::{Answer, Job};
use omni_config::{DecodePlace, ReferenceAudioConfig};
use omni_model::frontend::{AudioLimits, Clip, MAX_RATE, check_clip, decode_audio};
use omni_telemetry::DecodeMetrics;
use pool::Pool;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use worker::Expected;

/// Memory of a worker beside the file and its samples: what a decoder keeps of a stream, buffers, the stack.
const WORKING_BYTES: u64 = 64 << 20;
/// Bytes of address space for a sample: 4, in a buffer that doubles and is copied when it grows.
const BYTES_PER_SAMPLE: u64 = 12;

/// Why there are no samples.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The file is not such a file, or not within the limits; what to send instead.
    #[error("{0}")]
    Refused(String),
    /// Its decoder ended before its time: it needed more than it may have, or a file was made to break it.
    #[error("the file cannot be decoded: {0}")]
    Ended(String),
    /// Too many wait.
    #[error("too many files are being decoded; try again in a second")]
    Busy,
    /// The machine has no room for a worker.
    #[error("no process can be started to decode the file ({0}); try again in a second")]
    Unavailable(String),
}

/// Requests that decode at the same time at least, each on a thread of its own.
const AT_ONCE: usize = 2;

/// Where files are decoded.
pub struct Decoders {
    place: Place,
    /// For those of one request.
    helpers: Helpers,
}

enum Place {
    /// On the thread that asks.
    Thread,
    /// In a worker.
    Process(Started),
}

/// A pool that is started when it is wanted first.
struct Started {
    binary: PathBuf,
    limits: WorkerLimits,
    section: &'static str,
    /// Workers that are kept ready, and that decode at the same time.
    counts: [usize; 2],
    pool: OnceLock<Pool>,
}

impl Started {
    fn get(&self) -> Result<&Pool, DecodeError> {
        if self.pool.get().is_none() {
            let pool = Pool::start(self.binary.clone(), self.limits, self.section, self.counts);
            // Of two that are started at once one is dropped, and its thread ends.
            let _ = self.pool.set(pool.map_err(|error| DecodeError::Unavailable(error.to_string()))?);
        }
        self.pool.get().ok_or(DecodeError::Busy)
    }
}

impl Decoders {
    /// As the config has it.
    ///
    /// # Errors
    /// [`StartError::Config`] where processes are asked for and there is no program to start, or no first worker.
    pub(super) fn new(config: &ReferenceAudioConfig) -> Result<Decoders, StartError> {
        let samples = config.max_length.as_secs_f64() * f64::from(MAX_RATE);
        let memory = WORKING_BYTES + config.max_bytes as u64 + BYTES_PER_SAMPLE * samples as u64;
        let limits = WorkerLimits { memory, time: config.decode_timeout };
        let decoders = Decoders::placed(config.decode, limits, "reference_audio", Helpers::new(0))?;
        if let Place::Process(started) = &decoders.place {
            // The first worker is ready before the first recording comes.
            started.get().map_err(|error| StartError::Config(format!("reference_audio.decode: {error}")))?;
        }
        Ok(decoders)
    }

    /// In the place that a section of the config asks for.
    fn placed(
        place: DecodePlace,
        limits: WorkerLimits,
        section: &'static str,
        helpers: Helpers,
    ) -> Result<Decoders, StartError> {
        let place = match (place, process::binary()) {
            (DecodePlace::Thread, _) | (DecodePlace::Auto, None) => Place::Thread,
            (DecodePlace::Process, None) => {
                let reason = "\"process\" needs the omni-actors program; a program that links the library tells where \
                              it is with engine::process::set_binary";
                return Err(StartError::Config(format!("{section}.decode: {reason}")));
            }
            (DecodePlace::Auto | DecodePlace::Process, Some(binary)) => {
                Place::Process(Started { binary, limits, section, counts: counts(&helpers), pool: OnceLock::new() })
            }
        };
        Ok(Decoders { place, helpers })
    }

    /// On the thread that asks, and on so many others for pictures that come together.
    pub fn in_thread(helpers: usize) -> Decoders {
        Decoders { place: Place::Thread, helpers: Helpers::new(helpers) }
    }

    /// In processes of this program, which is `omni-actors` of this very build; `helpers` threads have more of them for
    /// pictures that come together.
    ///
    /// # Errors
    /// When the thread that starts them cannot be started.
    pub fn in_processes(binary: PathBuf, limits: WorkerLimits, helpers: usize) -> io::Result<Decoders> {
        let (section, helpers) = ("reference_audio", Helpers::new(helpers));
        let counts = counts(&helpers);
        let pool = Pool::start(binary.clone(), limits, section, counts)?.into();
        let place = Place::Process(Started { binary, limits, section, counts, pool });
        Ok(Decoders { place, helpers })
    }

    /// Threads that work for requests.
    pub(super) fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Requests that may decode at the same time, each on a thread of its own.
    pub(super) fn at_once(&self) -> usize {
        self.helpers.seats().max(AT_ONCE)
    }

    /// Decodes a recording: mono samples within `limits`. Blocks; not for an async thread.
    ///
    /// # Errors
    /// See [`DecodeError`]. Whatever the bytes do, the next call works.
    pub fn recording(&self, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, DecodeError> {
        let decoded = match &self.place {
            // Too large a file is refused before a byte of it is read.
            Place::Process(pool) if bytes.len() <= limits.max_bytes => {
                pool.get().and_then(|pool| apart(pool, bytes, limits))
            }
            Place::Process(_) | Place::Thread => decode_audio(bytes, limits).map_err(refused),
        };
        counted("recording", decoded)
    }
}

/// Workers that are kept ready for requests with these helpers, as many as one request has at once; and workers that
/// decode at the same time, those of helpers and of one thread for each request.
fn counts(helpers: &Helpers) -> [usize; 2] {
    let seats = helpers.seats();
    [seats, seats.max(AT_ONCE) + seats - 1]
}

/// Counts what became of a file.
fn counted<T>(kind: &'static str, decoded: Result<T, DecodeError>) -> Result<T, DecodeError> {
    let outcome = match &decoded {
        Ok(_) => "decoded",
        Err(DecodeError::Refused(_)) => "refused",
        Err(DecodeError::Ended(_)) => "ended",
        Err(DecodeError::Busy | DecodeError::Unavailable(_)) => "no_worker",
    };
    DecodeMetrics::ended(kind, outcome);
    decoded
}

fn apart(pool: &Pool, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, DecodeError> {
    let frames = (limits.max_seconds * f64::from(MAX_RATE)) as u64;
    let Answer::Samples(found) = one(pool, &Job::recording(limits), bytes, frames * size_of::<f32>() as u64)? else {
        return Err(nonsense());
    };
    let clip = Clip { pcm: found.samples, rate: found.rate };
    // A worker that was taken over may answer anything; what an honest one answers has passed this check.
    check_clip(clip, limits).map_err(refused)
}

/// The one answer to a job about one file, with at most so many bytes of samples or pictures.
fn one(pool: &Pool, job: &Job, file: &[u8], bytes: u64) -> Result<Answer, DecodeError> {
    let mut found = None;
    let take = &mut |answer| {
        found = Some(answer);
        false
    };
    pool.run(job, &[file], Expected { answers: 1, bytes }, take)?;
    found.ok_or_else(nonsense)
}

fn nonsense() -> DecodeError {
    DecodeError::Ended("its decoder answered what was not asked for".to_owned())
}

fn refused(error: impl std::fmt::Display) -> DecodeError {
    DecodeError::Refused(error.to_string())
}
