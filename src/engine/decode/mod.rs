//! Decodes what strangers send, in processes that have nothing and may do nothing else (`omni-actors decode`).
//!
//! ```text
//!  server                                      worker: the same binary, `omni-actors decode`
//!  Decoders -- Pool: one worker is kept ready   sets its limits, then reads
//!     job and bytes ------------- stdin ------> decodes one file
//!     samples, or the reason <--- stdout ------ and ends
//! ```
//!
//! A worker serves one job, so what one client sends can reach nothing of the next client's. The server believes it
//! nothing either: lengths, rates and samples of its answer are checked again. Samples are the same, bit for bit, as
//! those that are decoded in the server's own process.
//!
//! | file | what |
//! | --- | --- |
//! | `frame.rs` | the protocol: jobs, answers, their lengths |
//! | `worker.rs` | one worker, seen from the server |
//! | `pool.rs` | the worker that is kept ready, and how many may work at once |
//! | `child.rs` | the worker itself: its limits, its one job |

mod child;
mod frame;
mod pool;
mod worker;

pub use child::{DecoderArgs, DecoderError, serve};
pub use worker::WorkerLimits;

use super::StartError;
use super::process;
use frame::Job;
use omni_config::{DecodePlace, ReferenceAudioConfig};
use omni_model::frontend::{AudioLimits, Clip, MAX_RATE, check_clip, decode_audio};
use omni_telemetry::DecodeMetrics;
use pool::Pool;
use std::io;
use std::path::PathBuf;

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

/// Where recordings are decoded.
pub struct Decoders(Place);

enum Place {
    /// On the thread that asks.
    Thread,
    /// In a worker.
    Process(Pool),
}

impl Decoders {
    /// As the config has it.
    ///
    /// # Errors
    /// [`StartError::Config`] where processes are asked for and there is no program to start, or no first worker.
    pub(super) fn new(config: &ReferenceAudioConfig) -> Result<Decoders, StartError> {
        let key = "reference_audio.decode";
        let binary = match (config.decode, process::binary()) {
            (DecodePlace::Thread, _) | (DecodePlace::Auto, None) => {
                return Ok(Decoders::in_thread());
            }
            (DecodePlace::Process, None) => {
                let reason = "\"process\" needs the omni-actors program; a program that links the library tells where \
                              it is with engine::process::set_binary";
                return Err(StartError::Config(format!("{key}: {reason}")));
            }
            (DecodePlace::Auto | DecodePlace::Process, Some(binary)) => binary,
        };
        let samples = config.max_length.as_secs_f64() * f64::from(MAX_RATE);
        let memory = WORKING_BYTES + config.max_bytes as u64 + BYTES_PER_SAMPLE * samples as u64;
        let limits = WorkerLimits { memory, time: config.decode_timeout };
        Decoders::in_processes(binary, limits).map_err(|error| StartError::Config(format!("{key}: {error}")))
    }

    /// On the thread that asks.
    pub fn in_thread() -> Decoders {
        Decoders(Place::Thread)
    }

    /// In processes of this program, which is `omni-actors` of this very build.
    ///
    /// # Errors
    /// When the thread that starts them cannot be started.
    pub fn in_processes(binary: PathBuf, limits: WorkerLimits) -> io::Result<Decoders> {
        Ok(Decoders(Place::Process(Pool::start(binary, limits)?)))
    }

    /// Decodes a recording: mono samples within `limits`. Blocks; not for an async thread.
    ///
    /// # Errors
    /// See [`DecodeError`]. Whatever the bytes do, the next call works.
    pub fn recording(&self, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, DecodeError> {
        let decoded = match &self.0 {
            // Too large a file is refused before a byte of it is read.
            Place::Process(pool) if bytes.len() <= limits.max_bytes => apart(pool, bytes, limits),
            Place::Process(_) | Place::Thread => decode_audio(bytes, limits).map_err(refused),
        };
        DecodeMetrics::ended(
            "recording",
            match &decoded {
                Ok(_) => "decoded",
                Err(DecodeError::Refused(_)) => "refused",
                Err(DecodeError::Ended(_)) => "ended",
                Err(DecodeError::Busy | DecodeError::Unavailable(_)) => "no_worker",
            },
        );
        decoded
    }
}

fn apart(pool: &Pool, bytes: &[u8], limits: &AudioLimits) -> Result<Clip, DecodeError> {
    let frames = (limits.max_seconds * f64::from(MAX_RATE)) as u64;
    let answer = pool.run(&Job::recording(limits), bytes, frames * size_of::<f32>() as u64)?;
    let clip = Clip { pcm: answer.samples, rate: answer.rate };
    // A worker that was taken over may answer anything; what an honest one answers has passed this check.
    check_clip(clip, limits).map_err(refused)
}

fn refused(error: impl std::fmt::Display) -> DecodeError {
    DecodeError::Refused(error.to_string())
}
