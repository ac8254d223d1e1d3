//! Matrix product of windows of a buffer with packed weights; the kernel behind [`Linear`](super::Linear).
//!
//! Weights are kept in panels of 16 outputs, `[ceil(out/16)][in][16]`: one vector load brings the weights of 16 outputs
//! for one input. Each output element is one chain of FMAs over the inputs in ascending order, whatever tile it is
//! computed in; tiles differ only in how many chains run side by side.

use super::math::load_part;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::tile::{Banded, Weight, chains, in_bands};
use std::ops::Range;

/// Least work of a job, in multiply-adds: a third of a millisecond on one core. Decode steps and frames of a small
/// vocoder stay below it, on the calling thread: the stages' threads share the cores, and waking the pool costs more
/// than it saves.
const JOB_MACS: usize = 16 << 20;

/// Weights `[out, in]` in panels, with optional bias and scale `[out]`.
pub(super) struct Packed {
    panels: Panels,
    bias: Option<Vec<f32>>,
    scale: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

/// Panel elements; bf16 where that loses nothing: the same results with half the memory. A single row of a matrix that
/// is not in the cache takes a third less time; many rows of one that is, a tenth more.
enum Panels {
    F32(Vec<[f32; LANES]>),
    Bf16(Vec<[u16; LANES]>),
}

/// Which inputs the rows of a product read. Row `r` reads, for each tap `t` in order, `width` floats from
/// `r * step + t * tap_step` on. A plain matrix has one tap; a convolution over `[time, channels]` has one per kernel
/// element, and its rows overlap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub rows: usize,
    pub step: usize,
    pub taps: usize,
    pub tap_step: usize,
    pub width: usize,
}

impl Windows {
    /// The rows of a matrix.
    pub fn rows(rows: usize, width: usize) -> Windows {
        Windows { rows, step: width, taps: 1, tap_step: 0, width }
    }

    /// Floats that the buffer must have.
    fn extent(&self) -> usize {
        match self.rows {
            0 => 0,
            rows => (rows - 1) * self.step + (self.taps - 1) * self.tap_step + self.width,
        }
    }
}

impl Packed {
    /// Packs row-major weights `[outputs, inputs]`.
    pub fn new(
        weight: &[f32],
        (outputs, inputs): (usize, usize),
        bias: Option<Vec<f32>>,
        scale: Option<Vec<f32>>,
    ) -> Packed {
        assert_eq!(weight.len(), outputs * inputs);
        assert!(bias.iter().chain(&scale).all(|v| v.len() == outputs));
        let fits_bf16 = weight.iter().all(|w| w.to_bits() & 0xffff == 0);
        let panels = if fits_bf16 {
            Panels::Bf16(pack(weight, outputs, inputs, |w| (w.to_bits() >> 16) as u16))
        } else {
            Panels::F32(pack(weight, outputs, inputs, |w| w))
        };
        Packed { panels, bias, scale, inputs, outputs }
    }

    /// `out[r][n] = residual[r][n] + scale[n] * (bias[n] + sum_k x[window r][k] * weight[n][k])`; `residual` and `out`
    /// are `[rows, outputs]`.
    pub fn product(&self, x: &[f32], windows: Windows, residual: Option<&[f32]>) -> Vec<f32> {
        let macs = windows.rows * self.inputs * self.outputs;
        let jobs = if macs < 2 * JOB_MACS { 1 } else { rayon::current_num_threads().min(macs / JOB_MACS) };
        self.product_in(x, windows, residual, jobs)
    }

    /// [`Packed::product`] cut into that many jobs. The result does not depend on it.
    pub(super) fn product_in(&self, x: &[f32], windows: Windows, residual: Option<&[f32]>, jobs: usize) -> Vec<f32> {
        let len = windows.rows * self.outputs;
        assert_eq!(windows.taps * windows.width, self.inputs, "window and weight differ in width");
        assert!(windows.extent() <= x.len(), "windows reach beyond the buffer");
        assert!(residual.is_none_or(|r| r.len() == len), "residual and output differ in size");
        let mut out = Vec::with_capacity(len);
        let call = Call { x, windows, residual, out: Out(out.as_mut_ptr()) };
        let panels = self.outputs.div_ceil(LANES);
        // Few rows: cut the panels, so that each thread reads its own part of the weights. Many: cut the rows.
        let by_rows = windows.rows >= 32 * jobs;
        if jobs <= 1 {
            self.tile_all(call, 0..windows.rows, 0..panels);
        } else {
            rayon::scope(|scope| {
                for job in 0..jobs {
                    let part = |n: usize| n * job / jobs..n * (job + 1) / jobs;
                    let (rows, panels) =
                        if by_rows { (part(windows.rows), 0..panels) } else { (0..windows.rows, part(panels)) };
                    scope.spawn(move |_| self.tile_all(call, rows, panels));
                }
            });
        }
        // SAFETY: the jobs cover every row and every panel, so every element has been written.
        unsafe { out.set_len(len) };
        out
    }

    fn tile_all(&self, call: Call<'_>, rows: Range<usize>, panels: Range<usize>) {
        match &self.panels {
            Panels::F32(weights) => dispatch(Tiles { weights, packed: self, call, rows, panels }),
            Panels::Bf16(weights) => dispatch(Tiles { weights, packed: self, call, rows, panels }),
        }
    }
}

fn pack<T: Copy + Default>(w: &[f32], outputs: usize, inputs: usize, f: impl Fn(f32) -> T) -> Vec<[T; LANES]> {
    let mut panels = vec![[T::default(); LANES]; outputs.div_ceil(LANES) * inputs];
    for n in 0..outputs {
        let (panel, lane) = (n / LANES, n % LANES);
        for k in 0..inputs {
            panels[panel * inputs + k][lane] = f(w[n * inputs + k]);
        }
    }
    panels
}

/// What one product reads and writes.
#[derive(Clone, Copy)]
struct Call<'a> {
    x: &'a [f32],
    windows: Windows,
    residual: Option<&'a [f32]>,
    out: Out,
}

/// Where the tiles are written; jobs write disjoint rows or disjoint columns.
#[derive(Clone, Copy)]
struct Out(*mut f32);
// SAFETY: see `Packed::product_in`: no element belongs to two jobs, and the buffer outlives the scope.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

struct Tiles<'a, W> {
    weights: &'a [[W; LANES]],
    packed: &'a Packed,
    call: Call<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl<W: Weight> Kernel for Tiles<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        in_bands(s, self.rows.clone(), &mut self);
    }
}

impl<W: Weight> Banded for Tiles<'_, W> {
    #[inline(always)]
    fn band<S: Simd, const ROWS: usize, const PANELS: usize>(&mut self, s: S, row: usize) {
        let mut panel = self.panels.start;
        while panel + PANELS <= self.panels.end {
            self.tile::<S, ROWS, PANELS>(s, row, panel);
            panel += PANELS;
        }
        while panel < self.panels.end {
            self.tile::<S, ROWS, 1>(s, row, panel);
            panel += 1;
        }
    }
}

impl<W: Weight> Tiles<'_, W> {
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(&self, s: S, row: usize, panel: usize) {
        let Windows { step, taps, tap_step, width, .. } = self.call.windows;
        let inputs = self.packed.inputs;
        let mut acc = [[s.splat(0.0); PANELS]; ROWS];
        debug_assert!((panel + PANELS) * inputs <= self.weights.len());
        // SAFETY: `product` has checked that the last window ends inside `x` and that taps * width == inputs; the
        // panels of the weights are `inputs` long.
        unsafe {
            let w = self.weights.as_ptr().add(panel * inputs);
            let x = self.call.x.as_ptr().add(row * step);
            for tap in 0..taps {
                chains(s, &mut acc, (x.add(tap * tap_step), step), (w.add(tap * width), inputs), width);
            }
        }
        // By way of memory: a loop as large as `finish` is not unrolled, and an array that is indexed in a loop is not
        // kept in registers, not even in the loop above.
        let mut sums = [[[0.0; LANES]; PANELS]; ROWS];
        for (sums, acc) in sums.iter_mut().zip(&acc) {
            for (sum, acc) in sums.iter_mut().zip(acc) {
                s.store(*acc, sum);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (p, sum) in sums.iter().enumerate() {
                self.finish(s, row + r, (panel + p) * LANES, s.load(sum));
            }
        }
    }

    /// Bias, scale and residual of 16 outputs of one row, of which the last may not exist.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, row: usize, first: usize, mut sum: S::V) {
        let outputs = self.packed.outputs;
        let last = outputs.min(first + LANES);
        if let Some(bias) = &self.packed.bias {
            sum = s.add(sum, load_part(s, &bias[first..last]));
        }
        if let Some(scale) = &self.packed.scale {
            sum = s.mul(sum, load_part(s, &scale[first..last]));
        }
        let start = row * outputs + first;
        if let Some(residual) = self.call.residual {
            sum = s.add(load_part(s, &residual[start..start + last - first]), sum);
        }
        // SAFETY: the output has room for rows * outputs elements, and these are in one row of it. The memory is not
        // initialised yet, hence no slice of the whole.
        let to = unsafe { self.call.out.0.add(start) };
        if last - first == LANES {
            // SAFETY: as above; an array of floats has no invalid bit patterns and is written, not read.
            s.store(sum, unsafe { &mut *to.cast::<[f32; LANES]>() });
        } else {
            let mut padded = [0.0; LANES];
            s.store(sum, &mut padded);
            // SAFETY: as above, for the outputs that exist.
            unsafe { std::ptr::copy_nonoverlapping(padded.as_ptr(), to, last - first) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Level, dispatch_at};
    use super::*;

    fn numbers(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * step) % 1013) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_jobs() {
        let (inputs, outputs) = (96, 200);
        let packed = Packed::new(&numbers(inputs * outputs, 7), (outputs, inputs), None, None);
        for rows in [1, 5, 64, 131] {
            let x = numbers(rows * inputs, 11);
            let once = packed.product_in(&x, Windows::rows(rows, inputs), None, 1);
            for jobs in [2, 3, 7] {
                let got = packed.product_in(&x, Windows::rows(rows, inputs), None, jobs);
                assert!(got == once, "{rows} rows, {jobs} jobs");
            }
        }
    }

    /// One job at a given level.
    fn at(level: Level, packed: &Packed, x: &[f32], rows: usize) -> Option<Vec<f32>> {
        let (windows, mut out) = (Windows::rows(rows, packed.inputs), vec![0.0; rows * packed.outputs]);
        let call = Call { x, windows, residual: None, out: Out(out.as_mut_ptr()) };
        let panels = 0..packed.outputs.div_ceil(LANES);
        match &packed.panels {
            Panels::F32(weights) => dispatch_at(level, Tiles { weights, packed, call, rows: 0..rows, panels }),
            Panels::Bf16(weights) => dispatch_at(level, Tiles { weights, packed, call, rows: 0..rows, panels }),
        }
        .map(|()| out)
    }

    #[test]
    fn every_instruction_set_gives_the_product() {
        let (inputs, outputs, rows) = (77, 83, 15);
        let rounded: Vec<f32> =
            numbers(inputs * outputs, 7).iter().map(|w| f32::from_bits(w.to_bits() & 0xffff_0000)).collect();
        for weights in [numbers(inputs * outputs, 7), rounded] {
            let packed = Packed::new(&weights, (outputs, inputs), None, None);
            let x = numbers(rows * inputs, 11);
            let want = at(Level::Portable, &packed, &x, rows).unwrap();
            for (i, want) in want.iter().enumerate() {
                let (r, n) = (i / outputs, i % outputs);
                let sum: f64 =
                    (0..inputs).map(|k| f64::from(x[r * inputs + k]) * f64::from(weights[n * inputs + k])).sum();
                assert!((f64::from(*want) - sum).abs() < 1e-4, "portable: {want}, not {sum}");
            }
            #[cfg(target_arch = "x86_64")]
            {
                let (narrow, wide) = (at(Level::Avx2, &packed, &x, rows), at(Level::Avx512, &packed, &x, rows));
                if let (Some(narrow), Some(wide)) = (&narrow, &wide) {
                    assert!(narrow == wide, "both have FMA, so both have the same bits");
                }
                for got in narrow.iter().chain(&wide) {
                    assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4));
                }
            }
        }
    }
}
