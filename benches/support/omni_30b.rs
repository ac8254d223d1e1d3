//! Qwen3-Omni-30B-A3B at its real size with random weights, for benches of single stages.

use omni_actors::config::WeightsKind;
use omni_actors::cuda::Gpu;
use omni_actors::model::Checkpoint;
use std::path::Path;

/// The first GPU and the checkpoint; without a GPU says so.
pub fn open() -> Option<(Gpu, Checkpoint)> {
    let gpu = Gpu::open(0).map_err(|why| println!("SKIPPED: {why}")).ok()?;
    gpu.bind().unwrap();
    let folder = Path::new("configs/models/Qwen3-Omni-30B-A3B-Instruct");
    Some((gpu, Checkpoint::open_as(folder, WeightsKind::Random { seed: 1 }, None).unwrap()))
}
