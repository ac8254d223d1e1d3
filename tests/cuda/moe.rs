//! Layers with experts on a GPU against the CPU's, and their fast kernels against the plain ones.

use crate::gpu;
use candle_core::{Device, Tensor};
use omni_actors::config::{Precision, WeightsKind};
use omni_actors::cuda::decoder::{Engine, Rows, Stack};
use omni_actors::cuda::weights::Uploader;
use omni_actors::cuda::{Gpu, Priority};
use omni_actors::model::Checkpoint;
use omni_actors::model::hf::DecoderConfig;
use omni_actors::model::transformer::{DecoderStack, Segment};
use omni_actors::model::weights::Scope;
use std::path::{Path, PathBuf};

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0) * 1.7).collect()
}

/// Positions of a sequence each, from the first on, as rows of one launch.
struct Launch<'a> {
    gpu: &'a Gpu,
    stack: &'a Stack,
    precision: Precision,
    /// Positions of each sequence.
    lens: &'a [usize],
    /// Rows of padding behind them.
    padding: usize,
}

const MAX_PAGES: usize = 8;

impl Launch<'_> {
    /// The residual stream behind the layers.
    fn run(&self, engine: &Engine, x: &[f32]) -> Vec<f32> {
        let Launch { gpu, stack, lens, .. } = self;
        let slots = lens.len();
        let cache = stack.cache(gpu, self.precision, slots * MAX_PAGES, slots, MAX_PAGES).unwrap();
        let pages: Vec<u32> = (0..(slots * MAX_PAGES) as u32).rev().collect();
        cache.tables_buffer().write(0, &pages).unwrap();
        let of_rows = lens.iter().enumerate().flat_map(|(slot, len)| (0..*len).map(move |at| (slot as u32, at as i32)));
        let rows: Vec<(u32, i32)> = of_rows.chain(std::iter::repeat_n((0, -1), self.padding)).collect();
        let slots = gpu.upload("slots", &rows.iter().map(|row| row.0).collect::<Vec<_>>()).unwrap();
        let positions = gpu.upload("positions", &rows.iter().map(|row| row.1).collect::<Vec<_>>()).unwrap();
        let residual = gpu.upload("rows", x).unwrap();
        let stream = gpu.stream(Priority::Normal).unwrap();
        let rows = Rows {
            count: rows.len(),
            slots: slots.address(),
            positions: positions.address(),
            axes: 0,
            distinct: false,
            most: None,
        };
        stack.run(engine, &stream, residual.address(), rows, &cache).unwrap();
        residual.read(&stream).unwrap()
    }
}

fn load(gpu: &Gpu, precision: Precision, config: &DecoderConfig, scope: &Scope<'_>) -> Stack {
    let up = Uploader::new(gpu, precision).unwrap();
    let stack = Stack::load(&up, config, scope).unwrap();
    up.finish().unwrap();
    stack
}

/// Relative error.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    let power: f64 = want.iter().map(|x| f64::from(*x).powi(2)).sum();
    let error: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (error / power).sqrt()
}

#[test]
#[ignore = "needs a GPU"]
fn layers_with_experts_say_on_a_gpu_what_they_say_on_a_cpu() {
    let gpu = gpu();
    let checkpoint = Checkpoint::open(&path("tests/fixtures/qwen3_omni")).unwrap();
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let omni = checkpoint.omni().unwrap();
    // The thinker's layers, and the talker's, of which every position visits a shared expert too.
    for (name, config) in [("thinker.model", &omni.thinker.text), ("talker.model", &omni.talker.text)] {
        assert!(config.moe.is_some(), "{name} has experts");
        let scope = loader.scope(name);
        let cpu = DecoderStack::load(config, &scope).unwrap();
        let stack = load(&gpu, Precision::F32, config, &scope);
        let lens = [5, 1, 20];
        let rows: usize = lens.iter().sum();
        let x = numbers((rows + 2) * config.hidden_size, 3);
        let engine = Engine::new(&gpu, Precision::F32, rows + 2, &[config], config.hidden_size).unwrap();
        let launch = Launch { gpu: &gpu, stack: &stack, precision: Precision::F32, lens: &lens, padding: 2 };
        let got = launch.run(&engine, &x);

        let own = rows * config.hidden_size;
        let input = Tensor::from_vec(x[..own].to_vec(), (rows, config.hidden_size), &Device::Cpu).unwrap();
        let mut caches: Vec<_> = lens.iter().map(|_| cpu.new_cache().unwrap()).collect();
        let mut segments: Vec<_> = caches.iter_mut().zip(lens).map(|(cache, len)| Segment { cache, len }).collect();
        let want = cpu.forward(&input, &mut segments).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let error = distance(&got[..own], &want);
        assert!(error < 1e-5, "{name}: {error:.1e}");
    }
}

/// A width that is no multiple of 8 has no fast kernels, neither for one layer of it nor for experts.
#[test]
#[ignore = "needs a GPU"]
fn feed_forward_layers_of_any_width_compute_on_a_gpu_what_they_compute_on_a_cpu() {
    let gpu = gpu();
    let folder = path("configs/models/Qwen3-Omni-30B-A3B-Instruct");
    let checkpoint = Checkpoint::open_as(&folder, WeightsKind::Random { seed: 6 }, None).unwrap();
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let scope = loader.scope("talker.model");
    let mut sparse = checkpoint.omni().unwrap().talker.text.clone();
    sparse.num_hidden_layers = 1;
    let mut dense = sparse.clone();
    dense.moe = None;
    for inner in [4, 100, 1001] {
        dense.intermediate_size = inner;
        if let Some(moe) = &mut sparse.moe {
            (moe.moe_intermediate_size, moe.shared_expert_intermediate_size) = (inner, Some(inner + 2));
        }
        for (config, precision, allowed) in
            [&dense, &sparse].into_iter().flat_map(|c| [(c, Precision::F32, 1e-5), (c, Precision::Bf16, 2e-2)])
        {
            let stack = load(&gpu, precision, config, &scope);
            let cpu = DecoderStack::load(config, &scope).unwrap();
            let (lens, hidden) = ([3, 1, 20], config.hidden_size);
            let rows: usize = lens.iter().sum();
            let x = numbers(rows * hidden, 3);
            let engine = Engine::new(&gpu, precision, rows, &[config], hidden).unwrap();
            let got = Launch { gpu: &gpu, stack: &stack, precision, lens: &lens, padding: 0 }.run(&engine, &x);
            let input = Tensor::from_vec(x, (rows, hidden), &Device::Cpu).unwrap();
            let mut caches: Vec<_> = lens.iter().map(|_| cpu.new_cache().unwrap()).collect();
            let mut segments: Vec<_> = caches.iter_mut().zip(lens).map(|(cache, len)| Segment { cache, len }).collect();
            let want = cpu.forward(&input, &mut segments).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (error, experts) = (distance(&got, &want), config.moe.is_some());
            assert!(error < allowed, "width {inner}, experts {experts}, {}: {error:.1e}", precision.as_str());
        }
    }
}

/// One layer of the thinker or the talker of the 30B, or one of the talker's size without experts.
pub(crate) fn real(name: &str, test: impl Fn(&Gpu, &Stack, &DecoderConfig)) {
    let gpu = gpu();
    let folder = path("configs/models/Qwen3-Omni-30B-A3B-Instruct");
    let checkpoint = Checkpoint::open_as(&folder, WeightsKind::Random { seed: 5 }, None).unwrap();
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let omni = checkpoint.omni().unwrap();
    let mut config = if name == "thinker" { omni.thinker.text.clone() } else { omni.talker.text.clone() };
    config.num_hidden_layers = 1;
    if name == "dense" {
        (config.moe, config.intermediate_size) = (None, 3072);
    }
    let scope = if name == "thinker" { "thinker.model" } else { "talker.model" };
    let stack = load(&gpu, Precision::Bf16, &config, &loader.scope(scope));
    test(&gpu, &stack, &config);
}

fn fast_is_plain(name: &str) {
    real(name, |gpu, stack, config| {
        let hidden = config.hidden_size;
        let engine = || Engine::new(gpu, Precision::Bf16, 320, &[config], hidden).unwrap();
        let (fast, mut plain) = (engine(), engine());
        plain.experts = plain.experts.map(|experts| experts.plain());
        // By tiles of 32 pairs, of 64, and where they are there by those for Hopper.
        let grouped: Vec<Engine> = (0..3)
            .filter_map(|tile| {
                let mut engine = engine();
                engine.experts = Some(engine.experts?.grouped(tile)?);
                Some(engine)
            })
            .collect();
        assert!(grouped.len() >= 2 + usize::from(gpu.is_hopper()));
        let mut alone: Option<Vec<f32>> = None;
        for (lens, padding) in [
            (vec![1], 0),
            (vec![1, 2], 5),
            (vec![1, 15], 0),
            (vec![1, 16], 0),
            (vec![1; 41], 23),
            (vec![1, 120, 3, 100], 90),
        ] {
            let rows = lens.iter().sum::<usize>();
            let x = numbers((rows + padding) * hidden, 9);
            let launch = Launch { gpu, stack, precision: Precision::Bf16, lens: &lens, padding };
            let [got, want] = [&fast, &plain].map(|engine| launch.run(engine, &x));
            let error = distance(&got, &want);
            assert!(error < 4e-3, "{name}, {rows} rows: {error:.1e}");
            for (tile, engine) in grouped.iter().enumerate() {
                assert!(got == launch.run(engine, &x), "{name}, {rows} rows: those of tile {tile} differ");
            }
            let first = alone.get_or_insert_with(|| got[..hidden].to_vec());
            assert!(first[..] == got[..hidden], "{name}: the first of {rows} rows differs from the one alone");
            assert!(got[rows * hidden..] == want[rows * hidden..], "{name}: padding");
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn fast_kernels_of_the_thinkers_experts_agree_with_the_plain_ones_whatever_the_batch() {
    fast_is_plain("thinker");
}

#[test]
#[ignore = "needs a GPU"]
fn fast_kernels_of_the_talkers_experts_agree_with_the_plain_ones_whatever_the_batch() {
    fast_is_plain("talker");
}
