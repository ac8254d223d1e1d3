//! What seeing costs on this machine's CPU: `cargo bench --bench towers`, for the small Qwen3-Omni of the tests, or
//! `cargo bench --bench towers -- FOLDER` for another checkpoint with a vision tower.
//!
//! Two tables: attention of an encoder in blocks of keys against one query at a time, and pictures through the tower.
//! Each figure is the fastest of several runs, on one thread.

use candle_core::{Device, Result, Tensor};
use omni_actors::model::ModelError;
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::model::towers::{Towers, VisionTower};
use omni_actors::ops::{attention, attention_to_all, instruction_set};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// As many as a step has, about.
const QUERIES: usize = 256;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Without `--bench` this is `cargo test`, which only wants to know that it builds and runs.
    let thorough = std::env::args().any(|a| a == "--bench");
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
    let folder = given.map_or_else(default, PathBuf::from);
    let checkpoint = Checkpoint::open(&folder)?;
    let config = &checkpoint.omni()?.thinker;
    let towers = Towers::load(&checkpoint.loader(&["thinker"], &Device::Cpu), config)?;
    println!("{}, one thread", instruction_set());
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    one.install(|| attentions(thorough))?;
    Ok(one.install(|| pictures(towers.vision()?, thorough))?)
}

/// Fastest run, in seconds, of as many as fit.
fn fastest(thorough: bool, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while (thorough && begin.elapsed().as_secs_f64() < 1.0) || best.is_infinite() {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn attentions(thorough: bool) -> Result<()> {
    println!("\nattention of {QUERIES} queries to all keys, 4 heads: nanoseconds per query, key and head");
    println!("{:>8} {:>8} {:>16} {:>12} {:>7}", "width", "keys", "query by query", "in blocks", "gain");
    for (width, keys) in [(16, 1024), (16, 16384), (64, 104), (72, 1024), (72, 16384)] {
        let keys = if thorough { keys } else { 64 };
        let of = |n: usize| Tensor::randn(0f32, 1.0, (n, 4, width), &Device::Cpu);
        let (q, k, v) = (of(QUERIES)?, of(keys)?, of(keys)?);
        let looks = (QUERIES * keys * 4) as f64;
        // Each query at the last position, so that it sees everything.
        let each =
            || (0..QUERIES).try_for_each(|i| attention(&q.narrow(0, i, 1)?, &k, &v, keys - 1, None, 0.2).map(drop));
        let before = fastest(thorough, each)? / looks * 1e9;
        let after = fastest(thorough, || attention_to_all(&q, &k, &v, 0.2).map(drop))? / looks * 1e9;
        println!("{width:>8} {keys:>8} {before:>16.2} {after:>12.3} {:>6.1}x", before / after);
    }
    Ok(())
}

fn pictures(tower: &VisionTower, thorough: bool) -> std::result::Result<(), ModelError> {
    let (config, pixels) = (tower.config(), tower.config().patch_size.pow(2));
    println!("\npictures through the vision tower: seconds");
    println!("{:>16} {:>8} {:>8}", "patches", "pixels", "seconds");
    for side in if thorough { vec![32usize, 64, 128] } else { vec![4] } {
        let side = side.next_multiple_of(config.spatial_merge_size);
        let patches = Tensor::randn(0f32, 1.0, (side * side, config.patch_width()), &Device::Cpu)?;
        let start = Instant::now();
        tower.encode(&patches, [1, side, side])?;
        let grid = format!("{side} x {side}");
        println!("{grid:>16} {:>7.2}M {:>8.2}", (side * side * pixels) as f64 / 1e6, start.elapsed().as_secs_f64());
    }
    Ok(())
}
