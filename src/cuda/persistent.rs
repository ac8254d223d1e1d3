//! What all persistent kernels have in common: their launches, whose blocks stay on the GPU together and wait for each
//! other, the ring that weights come through, and how the host hears of a wait in vain.

use crate::buffer::{Buffer, Pinned};
use crate::kernel::{Kernel, Shape};
use crate::stream::Stream;
use crate::weights::Weight;
use crate::{CudaError, Gpu};
use omni_core::ids::StageName;
use std::time::Duration;

/// The constants of `kernels/persistent.cuh`.
pub(crate) const BLOCKS: usize = 128;
const THREADS: u32 = 256 + 128;
pub(crate) const STAGE: usize = 16 << 10;

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

/// The longest time of a launch, of which each takes some 3 ms: long enough for other processes on the GPU to have their
/// turns, and short enough for a listener.
pub(crate) const LIMIT: Duration = Duration::from_millis(500);

/// What a launch that waited in vain leaves.
pub(crate) struct Stalled {
    word: Pinned<u32>,
    limit: Duration,
}

/// A kernel for so many sequences: its blocks, bytes of their shared memory behind the ring of weights, and of what they
/// hand to each other; and that ring.
pub(crate) struct Sizes {
    pub rows: usize,
    pub name: &'static str,
    pub blocks: usize,
    pub shared: usize,
    pub hops: usize,
    /// Pieces of weights in it, and the bytes of one.
    pub ring: (usize, usize),
}

/// The kernels of a kind, by the sequences that they take, ascending.
pub(crate) struct Launches(Vec<Launch>);

/// A kernel, and what its blocks hand to each other.
pub(crate) struct Launch {
    pub rows: usize,
    pub kernel: Kernel,
    pub hops: Buffer<u8>,
    pub copying: Copying,
    pub shape: Shape,
}

/// `Copying` of `kernels/persistent.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copying {
    ring: i32,
    flight: i32,
    pace: i32,
}

/// What launches of a GPU have in common.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Cycles that a launch may take.
    pub cycles: u32,
    /// Address of the word of [`Stalled`].
    pub stalled: u64,
}

/// The ring of pieces of [`STAGE`] bytes that finds room beside so much shared memory.
pub(crate) const fn fitting(shared: usize) -> (usize, usize) {
    let pieces = (SHARED - STATIC - shared) / STAGE;
    (if pieces < MOST_RING { pieces } else { MOST_RING }, STAGE)
}

impl Stalled {
    /// The word that launches of up to `limit` write to, and what they are told.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, limit: Duration) -> Result<(Stalled, Limits), CudaError> {
        let word = gpu.pinned(1)?;
        let cycles = limit.as_secs_f64() * gpu.clock_rate()?;
        let limits = Limits { cycles: cycles.min(MOST_CYCLES) as u32, stalled: word.device_at(0) };
        Ok((Stalled { word, limit }, limits))
    }

    /// Refuses the results of a step in which a block waited longer than the limit, and keeps later stages of this
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
    pub const fn dynamic(&self) -> usize {
        let (pieces, bytes) = self.ring;
        pieces * bytes + self.shared
    }
}

impl Launches {
    /// Loads kernels, with room for what their blocks hand on. `share`: see [`Copying::new`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, kernels: &[Sizes], share: f64) -> Result<Launches, CudaError> {
        let launches = kernels.iter().map(|sizes| Launch::new(gpu, sizes, share));
        launches.collect::<Result<_, CudaError>>().map(Launches)
    }

    /// The smallest that takes so many sequences.
    pub fn fitting(&self, rows: usize) -> Option<&Launch> {
        self.0.iter().find(|launch| launch.rows >= rows)
    }
}

impl Launch {
    /// Loads a kernel, as [`Launches::new`] does.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, sizes: &Sizes, share: f64) -> Result<Launch, CudaError> {
        let kernel = gpu.kernel(sizes.name)?;
        kernel.allow_shared(sizes.dynamic())?;
        kernel.prefer_shared()?;
        Ok(Launch {
            rows: sizes.rows,
            kernel,
            hops: gpu.zeros("persistent kernels", sizes.hops)?,
            copying: Copying::new(gpu, sizes.ring, share)?,
            shape: Shape::new(sizes.blocks, THREADS).shared(sizes.dynamic()).cooperative(),
        })
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

/// What a stage has made of these kernels; `None` where the device had no room for it, so that the stage runs as a graph.
///
/// # Errors
/// Any other error.
pub(crate) fn unless_full<T>(stage: StageName, made: Result<T, CudaError>) -> Result<Option<T>, CudaError> {
    match made {
        Err(error @ (CudaError::OutOfMemory { .. } | CudaError::OverBudget(_))) => {
            tracing::warn!(%error, "the {stage} runs as a graph");
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// Weights one behind the other.
pub(crate) fn stacked<'a>(
    gpu: &Gpu,
    stream: &Stream,
    parts: impl Iterator<Item = &'a Weight>,
) -> Result<Buffer<u8>, CudaError> {
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
pub(crate) mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Shared memory of a block that leaves room for the vocoder's.
    pub const BESIDE: usize = SHARED;
    /// What a block may have at most.
    pub const WHOLE: usize = 227 << 10;

    /// That blocks of all these kernels find room in `shared` bytes, for so many pieces of weights.
    pub fn fit(kernels: &[Sizes], shared: usize, rings: &[usize]) {
        for sizes in kernels {
            assert!(sizes.dynamic() + STATIC <= shared, "{}", sizes.name);
        }
        assert_eq!(kernels.iter().map(|sizes| sizes.ring.0).collect::<Vec<_>>(), rings);
        assert!(kernels.is_sorted_by_key(|sizes| sizes.rows));
    }

    /// That the source has these kernels, each made by a macro of their kind for its rows.
    pub fn made_in(kernels: &[Sizes], source: &str) {
        for sizes in kernels {
            let (kind, rows) = sizes.name.rsplit_once('_').unwrap();
            assert!(source.contains(&format!("\n{}({rows})\n", kind.to_uppercase())), "{}", sizes.name);
            assert_eq!(rows.parse(), Ok(sizes.rows));
        }
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
        agree(&[include_str!("kernels/persistent.cuh")], &ours);
    }
}
