//! What a frame of speech costs on this machine's CPU: `cargo bench --bench vocoder`, for the default voice, or
//! `cargo bench --bench vocoder -- FOLDER` for another checkpoint of either family.
//!
//! Four tables: the packed product against candle's, the stateful vocoder by chunk size, the same against decoding 25
//! frames of left context again with every chunk, and what a reference costs before the first frame behind it. Each figure is the fastest of several runs, so that other load
//! on the machine disturbs little; one thread unless the table says otherwise.

use candle_core::{DType, Device, Result, Tensor};
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::model::hf::SAMPLE_RATE;
use omni_actors::model::vocoder::{Stream, Vocoder};
use omni_actors::ops::{self, Linear};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Frames of left context that other systems decode again with every chunk.
const LEFT_CONTEXT: usize = 25;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Without `--bench` this is `cargo test`, which only wants to know that it builds and runs.
    let thorough = std::env::args().any(|a| a == "--bench");
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/voice/checkpoint");
    let folder = given.map_or_else(default, PathBuf::from);
    let checkpoint = Checkpoint::open(&folder)?;
    let net = Vocoder::load(&checkpoint, &Device::Cpu)?;
    println!("{}", folder.display());
    println!("{}, {} threads, {}", cpu(), rayon::current_num_threads(), ops::instruction_set());
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let seconds = if thorough { 1.0 } else { 0.01 };
    one.install(|| products(seconds))?;
    let alone = one.install(|| vocoder(&net, seconds))?;
    println!("\nthe same with {} threads", rayon::current_num_threads());
    vocoder(&net, seconds)?;
    one.install(|| left_context(&net, &alone, seconds))?;
    one.install(|| reference(&net, seconds))?;
    Ok(())
}

/// Fastest run, in seconds, of as many as fit.
fn fastest(seconds: f64, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed().as_secs_f64() < seconds || best.is_infinite() {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn products(seconds: f64) -> Result<()> {
    println!("\nlinear layers, one thread: microseconds (and billion multiply-adds per second); weights exact in bf16");
    println!("{:>16} {:>5} {:>18} {:>18} {:>7}", "in -> out", "sequences", "packed", "candle matmul", "gain");
    for (inputs, outputs) in [(256, 256), (256, 1024), (1024, 256), (1344, 192), (384, 1024), (1024, 3072)] {
        let weight = Tensor::randn(0f32, 0.05, (outputs, inputs), &Device::Cpu)?;
        let weight = weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let packed = Linear::new(weight.clone(), None)?;
        let transposed = weight.t()?;
        for sequences in [1, 4, 64] {
            let x = Tensor::randn(0f32, 1.0, (sequences, inputs), &Device::Cpu)?;
            let ours = fastest(seconds / 10.0, || packed.forward(&x).map(drop))?;
            let candle = fastest(seconds / 10.0, || x.matmul(&transposed).map(drop))?;
            let cell = |s: f64| format!("{:9.1} ({:5.1})", s * 1e6, (sequences * inputs * outputs) as f64 / s / 1e9);
            let name = format!("{inputs} -> {outputs}");
            println!("{name:>16} {sequences:>5} {:>18} {:>18} {:>6.1}x", cell(ours), cell(candle), candle / ours);
        }
    }
    Ok(())
}

/// Seconds per frame for every chunk size.
fn vocoder(net: &Vocoder, seconds: f64) -> Result<Vec<(usize, f64)>> {
    println!("\nstateful vocoder, {:.0} ms of speech per frame", frame_seconds(net) * 1e3);
    println!("{:>12} {:>12} {:>14}", "chunk/frames", "ms/frame", "x real time");
    let mut sequences = Vec::new();
    for chunk in [1, 2, 4, 8, 16, 25] {
        let codes = codes(net, chunk);
        let mut stream = net.stream()?;
        // Fill the window, so that attention costs what it costs in a long stream.
        for _ in 0..80usize.div_ceil(chunk) {
            net.decode(&mut stream, &codes)?;
        }
        let frame = fastest(seconds, || net.decode(&mut stream, &codes).map(drop))? / chunk as f64;
        println!("{chunk:>12} {:>12.2} {:>13.0}x", frame * 1e3, frame_seconds(net) / frame);
        sequences.push((chunk, frame));
    }
    Ok(sequences)
}

fn left_context(net: &Vocoder, stateful: &[(usize, f64)], seconds: f64) -> Result<()> {
    println!("\nstateful against decoding {LEFT_CONTEXT} frames of left context again, one thread");
    println!("{:>12} {:>18} {:>18} {:>7}", "chunk/frames", "stateful ms/frame", "again ms/frame", "gain");
    for (chunk, frame) in stateful {
        let codes = codes(net, LEFT_CONTEXT + chunk);
        let again = fastest(seconds, || net.decode(&mut net.stream()?, &codes).map(drop))? / *chunk as f64;
        println!("{chunk:>12} {:>18.2} {:>18.2} {:>6.1}x", frame * 1e3, again * 1e3, again / frame);
    }
    Ok(())
}

/// A reference taken in against decoding it, 12 frames at a time.
fn reference(net: &Vocoder, seconds: f64) -> Result<()> {
    println!("\na reference that speech goes on from, one thread: milliseconds in all");
    println!("{:>12} {:>12} {:>12} {:>12} {:>7}", "frames", "taken in", "decoded", "state again", "gain");
    for frames in [25, 75, 300] {
        let (codes, piece) = (codes(net, frames), 12 * net.config().num_quantizers);
        let absorb = || -> Result<Stream> {
            let mut stream = net.stream()?;
            for (i, piece) in codes.chunks(piece).enumerate() {
                net.absorb(&mut stream, piece, frames.saturating_sub((i + 1) * 12))?;
            }
            Ok(stream)
        };
        let taken_in = fastest(seconds, || absorb().map(drop))?;
        let decode = || -> Result<()> {
            let mut stream = net.stream()?;
            codes.chunks(piece).try_for_each(|piece| net.decode(&mut stream, piece).map(drop))
        };
        let decoded = fastest(seconds, decode)?;
        let state = absorb()?;
        let again = fastest(seconds, || state.fork().map(drop))?;
        let [a, b, c] = [taken_in, decoded, again].map(|s| s * 1e3);
        println!("{frames:>12} {a:>12.1} {b:>12.1} {c:>12.2} {:>6.1}x", b / a);
    }
    println!("a state takes {:.1} MB", net.stream()?.bytes() as f64 / 1e6);
    Ok(())
}

fn frame_seconds(net: &Vocoder) -> f64 {
    net.config().samples_per_frame() as f64 / f64::from(SAMPLE_RATE)
}

fn codes(net: &Vocoder, frames: usize) -> Vec<u32> {
    let config = net.config();
    (0..frames * config.num_quantizers).map(|i| (i * 7919 % config.codebook_size) as u32).collect()
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")).map(|l| l.trim_start_matches([' ', '\t', ':']));
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}
