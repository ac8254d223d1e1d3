//! Launches whose blocks stay on the GPU together and wait for each other, on Hopper, in bf16 and with the sizes of published
//! talkers: the layers in one launch, and the code predictor's passes behind the first one in another.
//! Everything else takes the kernels of the graph one by one, and gets the same bits.

mod layers;
mod predictor;

use super::net::TalkerNet;
use crate::buffer::{Buffer, Pinned};
use crate::kernel::{Kernel, Shape};
use crate::spinning::Spinning;
use crate::stream::Stream;
use crate::weights::Weight;
use crate::{CudaError, Gpu};
pub(super) use layers::Batch;
use layers::Layers;
use omni_config::Precision;
use predictor::Predictor;
pub(super) use predictor::Step;
use std::sync::Arc;
use std::time::Duration;

/// The constants of `kernels/persistent.cuh`.
const BLOCKS: usize = 128;
const THREADS: u32 = 256 + 128;
const STAGE: usize = 16 << 10;

/// Shared memory of a block, beside which those of all but the vocoder's largest tile find room, and how many pieces of
/// weights it holds at most.
const SHARED: usize = 150 << 10;
const MOST_RING: usize = 8;
/// What a kernel has in shared memory that no launch asks for.
const STATIC: usize = 1100;
/// Cycles from one piece of weights to the next at most.
const MOST_PACE: i32 = 1000;
/// The longest limit, in cycles: the device counts them in 32 bits.
const MOST_CYCLES: f64 = (1u32 << 31) as f64;

/// What a talker has of them.
pub(super) struct Persistent {
    layers: Option<Layers>,
    predictor: Option<Predictor>,
    stalled: Arc<Stalled>,
    _only: Spinning,
}

/// What a launch that waited in vain leaves.
pub(super) struct Stalled {
    word: Pinned<u32>,
    limit: Duration,
}

/// A kernel for so many sequences: bytes of its shared memory behind the ring of weights, and of what blocks hand to each
/// other; and that ring.
struct Sizes {
    rows: usize,
    name: &'static str,
    shared: usize,
    hops: usize,
    /// Pieces of weights in it, and the bytes of one.
    ring: (usize, usize),
}

/// The ring of pieces of [`STAGE`] bytes that finds room beside so much shared memory.
const fn fitting(shared: usize) -> (usize, usize) {
    let pieces = (SHARED - STATIC - shared) / STAGE;
    (if pieces < MOST_RING { pieces } else { MOST_RING }, STAGE)
}

/// The kernels of a kind, by the sequences that they take, ascending.
struct Launches(Vec<Launch>);

/// A kernel, and what its blocks hand to each other.
struct Launch {
    rows: usize,
    kernel: Kernel,
    hops: Buffer<u8>,
    copying: Copying,
    shape: Shape,
}

/// `Copying` of `kernels/persistent.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Copying {
    ring: i32,
    flight: i32,
    pace: i32,
}

/// What launches of a GPU have in common.
#[derive(Clone, Copy)]
struct Limits {
    /// Cycles that a launch may take.
    cycles: u32,
    /// Address of the word of [`Stalled`].
    stalled: u64,
}

impl Persistent {
    /// Room and what it holds, where the GPU, the config and the device's other users allow it. `most`: sequences of a
    /// step. `limit`: the longest time of a launch.
    ///
    /// # Errors
    /// What the driver says; a device without room for it is no error.
    pub fn new(
        net: &TalkerNet,
        most: usize,
        limit: Duration,
        stream: &Stream,
    ) -> Result<Option<Persistent>, CudaError> {
        let gpu = &net.gpu;
        let device = gpu.is_hopper() && gpu.multiprocessors() as usize >= BLOCKS;
        if !device || net.precision != Precision::Bf16 {
            return Ok(None);
        }
        let (layers, predictor) = (layers::served(net), predictor::served(net));
        if layers.is_none() && predictor.is_none() {
            return Ok(None);
        }
        let only = match Spinning::begin(gpu) {
            Ok(only) => only,
            Err(why) => {
                tracing::info!(why, "the talker runs as a graph");
                return Ok(None);
            }
        };
        let make = || -> Result<Persistent, CudaError> {
            let word = gpu.pinned(1)?;
            let cycles = limit.as_secs_f64() * gpu.clock_rate()?;
            let limits = Limits { cycles: cycles.min(MOST_CYCLES) as u32, stalled: word.device_at(0) };
            let made = Persistent {
                layers: layers.map(|of| Layers::new(net, &of, most, limits, stream)).transpose()?,
                predictor: predictor.map(|of| Predictor::new(net, &of, most, limits, stream)).transpose()?,
                stalled: Arc::new(Stalled { word, limit }),
                _only: only,
            };
            stream.synchronize()?;
            Ok(made)
        };
        match make() {
            Err(error @ (CudaError::OutOfMemory { .. } | CudaError::OverBudget(_))) => {
                tracing::warn!(%error, "the talker runs as a graph");
                Ok(None)
            }
            Ok(made) => {
                let [layers, predictor] = made.has();
                tracing::info!(layers, predictor, limit_ms = limit.as_millis() as u64, "kernels stay on the GPU");
                Ok(Some(made))
            }
            Err(error) => Err(error),
        }
    }

    /// Queues all layers over a batch, and says whether it did: not where there are none for so many sequences.
    ///
    /// # Errors
    /// What the driver says.
    pub fn layers(&self, stream: &Stream, batch: &Batch<'_>) -> Result<bool, CudaError> {
        self.layers.as_ref().map_or(Ok(false), |layers| layers.queue(stream, batch))
    }

    /// The furthest position of a step of so many sequences up to which its layers are faster as one launch; `None`: there
    /// is no bound, or no such launch.
    pub fn reach(&self, rows: usize) -> Option<usize> {
        self.layers.as_ref()?.reach(rows)
    }

    /// Queues all passes of the predictor but the first, and says whether it did, in the same way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn passes(&self, stream: &Stream, step: &Step<'_>) -> Result<bool, CudaError> {
        self.predictor.as_ref().map_or(Ok(false), |predictor| predictor.queue(stream, step))
    }

    /// Whether there are layers, and passes of the predictor.
    pub fn has(&self) -> [bool; 2] {
        [self.layers.is_some(), self.predictor.is_some()]
    }

    /// What tells a step that a launch waited in vain.
    pub fn stalled(&self) -> &Arc<Stalled> {
        &self.stalled
    }
}

impl Stalled {
    /// Refuses the results of a step in which a block waited longer than the limit, and keeps later talkers of this
    /// process from persistent kernels on the GPU.
    ///
    /// # Errors
    /// [`CudaError::Stalled`].
    pub fn check(&self, gpu: &Gpu) -> Result<(), CudaError> {
        if self.word.get(0..1) == [0] {
            return Ok(());
        }
        gpu.forbid_spinning();
        Err(CudaError::Stalled { limit: self.limit })
    }
}

impl Sizes {
    /// Dynamic shared memory of a block, in bytes.
    fn dynamic(&self) -> usize {
        let (pieces, bytes) = self.ring;
        pieces * bytes + self.shared
    }
}

impl Launches {
    /// Loads kernels, with room for what their blocks hand on. `share`: see [`Copying::new`].
    ///
    /// # Errors
    /// What the driver says.
    fn new(gpu: &Gpu, kernels: &[Sizes], share: f64) -> Result<Launches, CudaError> {
        let launches = kernels.iter().map(|sizes| {
            let kernel = gpu.kernel(sizes.name)?;
            kernel.allow_shared(sizes.dynamic())?;
            kernel.prefer_shared()?;
            Ok(Launch {
                rows: sizes.rows,
                kernel,
                hops: gpu.zeros("persistent kernels", sizes.hops)?,
                copying: Copying::new(gpu, sizes.ring, share)?,
                shape: Shape::new(BLOCKS, THREADS).shared(sizes.dynamic()).cooperative(),
            })
        });
        launches.collect::<Result<_, CudaError>>().map(Launches)
    }

    /// The smallest that takes so many sequences.
    fn fitting(&self, rows: usize) -> Option<&Launch> {
        self.0.iter().find(|launch| launch.rows >= rows)
    }
}

impl Copying {
    /// For a ring of so many pieces of so many bytes. `share` of the memory's rate is what they are asked for at: faster,
    /// they slow what blocks tell each other.
    fn new(gpu: &Gpu, (ring, bytes): (usize, usize), share: f64) -> Result<Copying, CudaError> {
        let cycles = (BLOCKS * bytes) as f64 / (gpu.memory_rate()? * share) * gpu.clock_rate()?;
        let pace = (cycles as i32).min(MOST_PACE * bytes as i32 / STAGE as i32);
        // A slower memory is full with fewer.
        let of_stage = cycles * (STAGE / bytes) as f64;
        let stages = if of_stage < 900.0 { 3 } else { 2 };
        Ok(Copying { ring: ring as i32, flight: stages * (STAGE / bytes) as i32, pace })
    }
}

/// Weights one behind the other.
fn stacked<'a>(gpu: &Gpu, stream: &Stream, parts: impl Iterator<Item = &'a Weight>) -> Result<Buffer<u8>, CudaError> {
    let parts: Vec<&Weight> = parts.collect();
    let all = gpu.alloc("persistent kernels", parts.iter().map(|part| part.buffer().len()).sum())?;
    let mut at = 0;
    for part in parts {
        let bytes = part.buffer().len();
        all.copy_async(stream, at, part.buffer(), 0, bytes)?;
        at += bytes;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// That the source has these kernels, and blocks of all of them find room in `shared` bytes for so many pieces of
    /// weights.
    pub fn fit(kernels: &[Sizes], shared: usize, source: &str, rings: &[usize]) {
        for sizes in kernels {
            assert!(sizes.dynamic() + STATIC <= shared, "{}", sizes.name);
            let (kind, rows) = sizes.name.rsplit_once('_').unwrap();
            assert!(source.contains(&format!("\n{}({rows})\n", kind.to_uppercase())), "{}", sizes.name);
            assert_eq!(rows.parse(), Ok(sizes.rows));
        }
        assert_eq!(kernels.iter().map(|sizes| sizes.ring.0).collect::<Vec<_>>(), rings);
        assert!(kernels.is_sorted_by_key(|sizes| sizes.rows));
    }

    /// That constants of kernels have these values.
    pub fn agree(sources: &[&str], ours: &[(&str, usize)]) {
        let constants: HashMap<&str, &str> = sources
            .iter()
            .flat_map(|source| source.lines())
            .filter_map(|line| line.strip_prefix("constexpr int ")?.split_once(';'))
            .flat_map(|(all, _)| all.split(", "))
            .filter_map(|one| one.split_once(" = "))
            .collect();
        for (name, value) in ours {
            assert_eq!(constants.get(name).and_then(|text| text.parse().ok()), Some(*value), "{name}");
        }
    }

    #[test]
    fn the_constants_are_those_of_the_kernels() {
        let ours = [("BLOCKS", BLOCKS), ("COMPUTING", THREADS as usize - 128), ("STAGE", STAGE)];
        agree(&[include_str!("../../kernels/persistent.cuh")], &ours);
    }
}
