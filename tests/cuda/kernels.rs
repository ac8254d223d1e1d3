//! Fast kernels against plain ones, and the device's sampling against the CPU's, on random inputs.

use crate::gpu;
use candle_core::{Device, Tensor};
use omni_actors::config::Precision;
use omni_actors::cuda::linear::{Input, Linear, Mode, Norm, Products};
use omni_actors::cuda::weights::{Uploader, Weight};
use omni_actors::cuda::{Buffer, Gpu, Priority, Shape, Stream};
use omni_actors::model::sampling::{Domain, History, Sampler, SamplingParams, Suppress, uniform};
use std::ffi::c_void;

/// Numbers in `[-scale, scale)`, the same for the same seed.
fn noise(count: usize, scale: f32, seed: u64) -> Vec<f32> {
    (0..count).map(|i| (uniform(seed, Domain::Codes, i as u32, 9) * 2.0 - 1.0) * scale).collect()
}

fn on_device(up: &Uploader, data: &[f32]) -> Weight {
    up.host(&Tensor::new(data, &Device::Cpu).unwrap()).unwrap()
}

fn widened(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect()
}

/// `|got - want| / |want|`.
/// Rows whose inputs are dealt, as `dealt` of kernels/common.cuh has it: of each 32, the pair `2 i` of eight goes to where
/// the sixteen inputs of an `mma` have it.
fn dealt(rows: &[f32]) -> Vec<f32> {
    let mut to = vec![0.0; rows.len()];
    for (k, value) in rows.iter().enumerate() {
        let (step, thread, half, pair, of_pair) = (k / 32, k / 8 % 4, k / 4 % 2, k / 2 % 2, k % 2);
        to[step * 32 + half * 16 + pair * 8 + thread * 2 + of_pair] = *value;
    }
    to
}

fn error(got: &[f32], want: &[f32]) -> f64 {
    let difference: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = want.iter().map(|b| f64::from(*b).powi(2)).sum();
    (difference / size).sqrt()
}

/// Results of a product of `rows` rows, as f32.
struct Case<'a> {
    gpu: &'a Gpu,
    stream: &'a Stream,
    layer: &'a Linear,
    mode: Mode,
    /// In the engine's type, and these dealt.
    ready: [&'a Weight; 2],
    raw: &'a Buffer<f32>,
    norm: Option<Norm>,
    results: usize,
}

impl Case<'_> {
    fn run(&self, products: &Products, rows: usize) -> Vec<f32> {
        let input = match self.norm {
            Some(norm) => Input::Normed(self.raw.address(), norm),
            None => Input::Ready(self.ready[0].address()),
        };
        self.run_with(products, input, rows)
    }

    fn run_with(&self, products: &Products, input: Input, rows: usize) -> Vec<f32> {
        let count = rows * self.results;
        if matches!(self.mode, Mode::Add | Mode::StoreF32) {
            let y = self.gpu.upload("results", &noise(count, 1.0, 5)).unwrap();
            products.run(self.stream, self.mode, self.layer, input, y.address(), rows).unwrap();
            return y.read(self.stream).unwrap();
        }
        let y = self.gpu.upload("results", &vec![0xFFu8; count * 2]).unwrap();
        products.run(self.stream, self.mode, self.layer, input, y.address(), rows).unwrap();
        widened(&y.read(self.stream).unwrap())
    }
}

#[test]
#[ignore = "needs a GPU"]
fn fast_products_equal_plain_ones_and_do_not_depend_on_the_batch() {
    let gpu = gpu();
    let stream = gpu.stream(Priority::Normal).unwrap();
    let up = Uploader::new(&gpu, Precision::Bf16).unwrap();
    let fast = Products::new(&gpu, Precision::Bf16, 320, 6144).unwrap();
    let plain = Products::new(&gpu, Precision::Bf16, 320, 6144).unwrap().plain();
    for (outputs, inputs) in [(4096, 2048), (2048, 6144), (1024, 3072), (6144, 1024), (2048, 512), (96, 512)] {
        let weight = on_device(&up, &noise(outputs * inputs, (3.0 / inputs as f32).sqrt(), 1));
        let bias = on_device(&up, &noise(outputs, 1.0, 2));
        let rows = noise(310 * inputs, 1.7, 3);
        let (ready, raw) = (on_device(&up, &rows), gpu.upload("rows", &rows).unwrap());
        let dealt = on_device(&up, &dealt(&rows));
        let gain = on_device(&up, &noise(inputs, 1.0, 4));
        let gated = Linear::new(weight, None, outputs, inputs);
        let weight = on_device(&up, &noise(outputs * inputs, (3.0 / inputs as f32).sqrt(), 1));
        let biased = Linear::new(weight, Some(bias), outputs, inputs);
        for mode in [Mode::Store, Mode::StoreF32, Mode::Add, Mode::SiluMul, Mode::Silu] {
            let layer = if mode == Mode::SiluMul { &gated } else { &biased };
            let results = if mode == Mode::SiluMul { outputs / 2 } else { outputs };
            for norm in [None, Some(Norm { gain: gain.address(), eps: 1e-6 })] {
                let ready = [&ready, &dealt];
                let case = Case { gpu: &gpu, stream: &stream, layer, mode, ready, raw: &raw, norm, results };
                let want = case.run(&plain, 310);
                let whole = case.run(&fast, 310);
                let what = format!("{mode:?} {outputs}x{inputs} norm {}", norm.is_some());
                assert!(error(&whole, &want) < 4e-3, "{what}: {}", error(&whole, &want));
                for rows in [1, 2, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 200] {
                    assert!(case.run(&fast, rows) == whole[..rows * results], "{what}: {rows} rows differ from 310");
                    if norm.is_none() && fast.can_deal(layer, rows) {
                        let got = case.run_with(&fast, Input::Dealt(dealt.address()), rows);
                        assert!(got == whole[..rows * results], "{what}: {rows} dealt rows differ");
                    }
                }
            }
        }
    }
}

/// `AttentionArgs` of `kernels/attention.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Attention {
    qkv: u64,
    q_norm: u64,
    k_norm: u64,
    inv_freq: u64,
    keys: u64,
    values: u64,
    out: u64,
    pages: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    axis_of: u64,
    rows: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    max_pages: i32,
    eps: f32,
    scale: f32,
    deals: i32,
}

#[test]
#[ignore = "needs a GPU"]
fn fast_attention_equals_plain_attention() {
    let gpu = gpu();
    let stream = gpu.stream(Priority::Normal).unwrap();
    let up = Uploader::new(&gpu, Precision::Bf16).unwrap();
    let launch = |name: &'static str, shape: Shape, args: &Attention| {
        let mut pointers = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: the argument is what the kernel declares, and all buffers live until the results are read.
        unsafe { gpu.kernel(name).unwrap().launch(&stream, shape, &mut pointers).unwrap() };
    };
    let frequencies: Vec<f32> = (0..64).map(|j| 1e6f32.powf(-2.0 * j as f32 / 128.0)).collect();
    let frequencies = gpu.upload("frequencies", &frequencies).unwrap();
    let (q_norm, k_norm) = (on_device(&up, &noise(128, 1.5, 1)), on_device(&up, &noise(128, 1.5, 2)));
    // (heads, kv heads, longest position, pages of a sequence, kernel, query heads per block)
    let cases = [
        (16, 8, 600, 40, "attend_fast2_write", 2),
        (16, 8, 16, 2, "attend_short2_write", 2),
        (16, 16, 300, 40, "attend_fast1_write", 1),
        (32, 8, 300, 40, "attend_fast4_write", 4),
        (32, 4, 600, 40, "attend_group8_write", 8),
    ];
    for (heads, kv_heads, longest, max_pages, kernel, together) in cases {
        let rows = 50usize;
        let width = (heads + 2 * kv_heads) * 128;
        let qkv = on_device(&up, &noise(rows * width, 1.7, 3));
        let pages: Vec<u32> = (0..(rows * max_pages) as u32).map(|i| i * 7919 % (rows * max_pages) as u32).collect();
        let slots: Vec<u32> = (0..rows as u32).map(|i| i * 13 % rows as u32).collect();
        let mut positions: Vec<i32> = (0..rows as i32).map(|i| i * 131 % (longest + 1)).collect();
        positions[4] = -1;
        let cache = noise(rows * max_pages * kv_heads * 16 * 128, 1.7, 4);
        let tables = (gpu.upload("pages", &pages).unwrap(), gpu.upload("slots", &slots).unwrap());
        let places = gpu.upload("positions", &positions).unwrap();
        // Plain positions, the same on three axes, and others there.
        let axes = |of: fn(f32, usize) -> f32| -> Vec<f32> {
            positions.iter().flat_map(|at| (0..3).map(move |axis| of(*at as f32, axis))).collect()
        };
        let same = gpu.upload("positions", &axes(|at, _| at)).unwrap();
        let others = gpu.upload("positions", &axes(|at, axis| at / 2.0 + axis as f32)).unwrap();
        let axis_of = gpu.upload("axes", &(0..64u8).map(|j| j % 3).collect::<Vec<_>>()).unwrap();
        let mut results = Vec::new();
        for (fast, axes) in
            [0, same.address(), others.address()].into_iter().flat_map(|axes| [(false, axes), (true, axes)])
        {
            let (keys, values) = (on_device(&up, &cache), on_device(&up, &cache));
            let out = gpu.zeros::<u8>("results", rows * heads * 128 * 2).unwrap();
            let args = Attention {
                qkv: qkv.address(),
                q_norm: q_norm.address(),
                k_norm: k_norm.address(),
                inv_freq: frequencies.address(),
                keys: keys.address(),
                values: values.address(),
                out: out.address(),
                pages: tables.0.address(),
                slots: tables.1.address(),
                positions: places.address(),
                axes,
                axis_of: axis_of.address(),
                rows: rows as i32,
                heads: heads as i32,
                kv_heads: kv_heads as i32,
                head_dim: 128,
                max_pages: max_pages as i32,
                eps: 1e-6,
                scale: 128f32.sqrt().recip(),
                deals: 0,
            };
            if fast {
                let threads = if kernel.contains("short") { 64 } else { 256 };
                let shape = Shape::new(heads / together, threads).by(rows);
                launch(kernel, shape, &Attention { deals: 1, ..args });
                let got = widened(&out.read(&stream).unwrap());
                launch(kernel, shape, &args);
                assert!(dealt(&widened(&out.read(&stream).unwrap())) == got, "{kernel}: dealt results are others");
            } else {
                launch("kv_write_bf16", Shape::new(kv_heads, 64).by(rows), &args);
                launch("attend_plain_bf16", Shape::new(heads, 32).by(rows), &args);
            }
            let mixed = widened(&out.read(&stream).unwrap());
            results.push((mixed, keys.buffer().read(&stream).unwrap(), values.buffer().read(&stream).unwrap()));
        }
        for pair in results.chunks(2) {
            let [(plain, keys, values), (fast, fast_keys, fast_values)] = pair else { unreachable!() };
            assert!(error(fast, plain) < 4e-3, "{kernel}: {}", error(fast, plain));
            assert!(keys == fast_keys && values == fast_values, "{kernel} writes other keys or values");
        }
        assert!(results[..2] == results[2..4], "{kernel}: equal positions on three axes are no plain positions");
        assert!(results[0].1 != results[4].1, "{kernel}: positions on axes do not turn keys");
    }
}

/// `PickArgs` of `kernels/sample.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pick {
    logits: u64,
    counts: u64,
    tokens: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    unused: u32,
    size: i32,
    first_banned: i32,
    end_banned: i32,
    spared: i32,
    banned: i32,
    seed: [u32; 2],
    domain: u32,
    group: u32,
}

#[test]
#[ignore = "needs a GPU"]
fn the_device_picks_the_tokens_that_the_cpu_picks() {
    let gpu = gpu();
    let stream = gpu.stream(Priority::Normal).unwrap();
    const PLAIN: SamplingParams = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    let all = [
        SamplingParams { temperature: 0.9, top_k: 50, repetition_penalty: 1.05, ..PLAIN },
        SamplingParams { top_k: 50, top_p: 0.8, ..PLAIN },
        SamplingParams {
            repetition_penalty: 1.3,
            frequency_penalty: 0.1,
            presence_penalty: 0.2,
            ..SamplingParams::GREEDY
        },
        SamplingParams { temperature: 1.3, top_p: 0.9, min_p: 0.02, frequency_penalty: 0.3, ..PLAIN },
        SamplingParams { temperature: 0.7, top_k: 2000, min_p: 0.1, ..PLAIN },
        SamplingParams { temperature: 0.2, top_p: 0.0, ..PLAIN },
        SamplingParams { top_k: 1, ..PLAIN },
        PLAIN,
    ];
    for size in [64usize, 2048, 3072, 4096] {
        let rows = 400usize;
        // Some logits are equal, so that ties are met.
        let logits: Vec<f32> =
            noise(rows * size, 6.0, size as u64).into_iter().map(|x| (x * 64.0).round() / 64.0).collect();
        let counts: Vec<u32> = (0..rows * size)
            .map(|i| if i * 31 % 11 == 0 { (i % 3) as u32 | ((i % 2) as u32) << 31 } else { 0 })
            .collect();
        let seen = gpu.upload("counts", &counts).unwrap();
        let raw = gpu.upload("logits", &logits).unwrap();
        let suppress =
            Suppress { range: (size as u32 / 2)..size as u32 - 3, except: Some(size as u32 / 2 + 5), also: Some(3) };
        for params in all {
            let tokens = gpu.zeros::<i32>("tokens", rows).unwrap();
            let args = Pick {
                logits: raw.address(),
                counts: seen.address(),
                tokens: tokens.address(),
                temperature: params.temperature,
                top_p: params.top_p,
                min_p: params.min_p,
                top_k: params.top_k,
                repetition: params.repetition_penalty,
                frequency: params.frequency_penalty,
                presence: params.presence_penalty,
                unused: 0,
                size: size as i32,
                first_banned: suppress.range.start as i32,
                end_banned: suppress.range.end as i32,
                spared: size as i32 / 2 + 5,
                banned: 3,
                seed: [11, 22],
                domain: 2,
                group: 4,
            };
            let mut pointers = [std::ptr::from_ref(&args).cast_mut().cast::<c_void>()];
            let shape = Shape::new(rows, 512);
            // SAFETY: the argument is what the kernel declares; the buffers live until the tokens are read.
            unsafe { gpu.kernel("pick_rows").unwrap().launch(&stream, shape, &mut pointers).unwrap() };
            let got = tokens.read(&stream).unwrap();
            let mut sampler = Sampler::new(size);
            let mut differ = 0;
            for (row, got) in got.iter().enumerate() {
                let mut history = History::default();
                for (token, count) in counts[row * size..(row + 1) * size].iter().enumerate() {
                    if *count != 0 {
                        history.push_prompt(&[token as u32]);
                        (0..count & 0x7FFF_FFFF).for_each(|_| history.push(token as u32));
                    }
                }
                let number = uniform(11 | 22 << 32, Domain::Codes, row as u32, 4);
                let logits = &logits[row * size..(row + 1) * size];
                let want = sampler.sample(logits, &params, &history, &suppress, number).unwrap();
                differ += usize::from(*got != want as i32);
            }
            // A draw that falls on a border within rounding may go either way.
            assert!(differ <= 1, "{differ} of {rows} picks differ: {params:?}, {size} tokens");
        }
    }
}
