//! Matrix product of windows of a buffer with packed weights; the kernel behind [`Linear`](super::Linear).
//!
//! Weights are kept in panels of 16 outputs, `[ceil(out/16)][in][16]`: one vector load brings the weights of 16 outputs
//! for one input. Each output element is one chain of FMAs over the inputs in ascending order, whatever tile it is
//! computed in; tiles differ only in how many chains run side by side.

use super::simd::{Kernel, LANES, Simd, dispatch};
use std::ops::Range;

/// Work below this is done by the calling thread: handing it to the pool would cost more. In multiply-adds.
pub(super) const PARALLEL_MACS: usize = 4 << 20;

/// Weights `[out, in]` in panels, with an optional bias `[out]`.
pub(super) struct Packed {
    panels: Panels,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

/// Panel elements; bf16 where that loses nothing: half the memory traffic, the same results.
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
    pub fn new(weight: &[f32], outputs: usize, inputs: usize, bias: Option<Vec<f32>>) -> Packed {
        assert_eq!(weight.len(), outputs * inputs);
        let fits_bf16 = weight.iter().all(|w| w.to_bits() & 0xffff == 0);
        let panels = if fits_bf16 {
            Panels::Bf16(pack(weight, outputs, inputs, |w| (w.to_bits() >> 16) as u16))
        } else {
            Panels::F32(pack(weight, outputs, inputs, |w| w))
        };
        Packed { panels, bias, inputs, outputs }
    }

    /// `out[r][n] = bias[n] + sum_k x[window r][k] * weight[n][k]`, `out` being `[rows, outputs]`.
    pub fn product(&self, x: &[f32], windows: Windows) -> Vec<f32> {
        assert_eq!(windows.taps * windows.width, self.inputs, "window and weight differ in width");
        assert!(windows.extent() <= x.len(), "windows reach beyond the buffer");
        let macs = windows.rows * self.inputs * self.outputs;
        let jobs = if macs < PARALLEL_MACS { 1 } else { rayon::current_num_threads().min(macs / (PARALLEL_MACS / 2)) };
        self.product_in(x, windows, jobs)
    }

    /// [`Packed::product`] cut into that many jobs. The result does not depend on it.
    pub(super) fn product_in(&self, x: &[f32], windows: Windows, jobs: usize) -> Vec<f32> {
        let len = windows.rows * self.outputs;
        let mut out = Vec::with_capacity(len);
        let to = Out(out.as_mut_ptr());
        let groups = self.outputs.div_ceil(LANES);
        // Few rows: cut the panels, so that each thread reads its own part of the weights. Many: cut the rows.
        let by_rows = windows.rows >= 32 * jobs;
        if jobs <= 1 {
            self.tile_all(x, windows, 0..windows.rows, 0..groups, to);
        } else {
            rayon::scope(|scope| {
                for job in 0..jobs {
                    let part = |n: usize| n * job / jobs..n * (job + 1) / jobs;
                    let (rows, panels) =
                        if by_rows { (part(windows.rows), 0..groups) } else { (0..windows.rows, part(groups)) };
                    scope.spawn(move |_| self.tile_all(x, windows, rows, panels, to));
                }
            });
        }
        // SAFETY: the jobs cover every row and every panel, so every element has been written.
        unsafe { out.set_len(len) };
        out
    }

    fn tile_all(&self, x: &[f32], windows: Windows, rows: Range<usize>, panels: Range<usize>, out: Out) {
        match &self.panels {
            Panels::F32(w) => dispatch(Tiles { weights: w, packed: self, x, windows, rows, panels, out }),
            Panels::Bf16(w) => dispatch(Tiles { weights: w, packed: self, x, windows, rows, panels, out }),
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

/// Where the tiles are written; jobs write disjoint rows or disjoint columns.
#[derive(Clone, Copy)]
struct Out(*mut f32);
// SAFETY: see `Packed::product_in`: no element belongs to two jobs, and the buffer outlives the scope.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

/// How a stored weight becomes a lane.
trait Weight: Copy {
    fn load<S: Simd>(s: S, w: &[Self; LANES]) -> S::V;
}

impl Weight for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, w: &[f32; LANES]) -> S::V {
        s.load(w)
    }
}

impl Weight for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, w: &[u16; LANES]) -> S::V {
        s.load_bf16(w)
    }
}

struct Tiles<'a, W> {
    weights: &'a [[W; LANES]],
    packed: &'a Packed,
    x: &'a [f32],
    windows: Windows,
    rows: Range<usize>,
    panels: Range<usize>,
    out: Out,
}

impl<W: Weight> Kernel for Tiles<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Eight rows of two panels are 16 chains: they fill the FMA pipes and, with the two weight vectors, the
        // registers. One row needs four panels to have enough chains.
        let mut row = self.rows.start;
        let mut left = self.rows.len();
        while left >= 8 {
            self.band::<S, 8, 2>(s, row);
            (row, left) = (row + 8, left - 8);
        }
        if left >= 4 {
            self.band::<S, 4, 2>(s, row);
            (row, left) = (row + 4, left - 4);
        }
        if left >= 2 {
            self.band::<S, 2, 4>(s, row);
            (row, left) = (row + 2, left - 2);
        }
        if left == 1 {
            self.band::<S, 1, 4>(s, row);
        }
    }
}

impl<W: Weight> Tiles<'_, W> {
    /// All panels for `ROWS` rows from `row` on, `PANELS` at a time.
    #[inline(always)]
    fn band<S: Simd, const ROWS: usize, const PANELS: usize>(&self, s: S, row: usize) {
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

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(&self, s: S, row: usize, panel: usize) {
        let Windows { step, taps, tap_step, width, .. } = self.windows;
        let inputs = self.packed.inputs;
        let mut acc = [[s.splat(0.0); PANELS]; ROWS];
        debug_assert!((panel + PANELS) * inputs <= self.weights.len());
        // SAFETY: `product` has checked that the last window ends inside `x` and that taps * width == inputs; the
        // panels of the weights are `inputs` long. Bounds checks in this loop would cost more than its arithmetic.
        unsafe {
            let mut w = self.weights.as_ptr().add(panel * inputs);
            let x = self.x.as_ptr().add(row * step);
            for tap in 0..taps {
                let x = x.add(tap * tap_step);
                for i in 0..width {
                    let mut wide = [s.splat(0.0); PANELS];
                    for (p, v) in wide.iter_mut().enumerate() {
                        *v = W::load(s, &*w.add(p * inputs));
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let xv = s.splat(*x.add(r * step + i));
                        for (acc, w) in acc.iter_mut().zip(&wide) {
                            *acc = s.fma(xv, *w, *acc);
                        }
                    }
                    w = w.add(1);
                }
            }
        }
        let outputs = self.packed.outputs;
        for p in 0..PANELS {
            let first = (panel + p) * LANES;
            let lanes = LANES.min(outputs - first);
            let bias = match &self.packed.bias {
                Some(b) => super::math::load_part(s, &b[first..first + lanes]),
                None => s.splat(0.0),
            };
            for (r, acc) in acc.iter().enumerate() {
                let sum = s.add(acc[p], bias);
                // SAFETY: row and panel are inside the output, which has rows * outputs elements.
                let to = unsafe { self.out.0.add((row + r) * outputs + first) };
                if lanes == LANES {
                    // SAFETY: as above, and 16 outputs of this panel exist.
                    s.store(sum, unsafe { &mut *to.cast::<[f32; LANES]>() });
                } else {
                    let mut padded = [0.0; LANES];
                    s.store(sum, &mut padded);
                    // SAFETY: as above for `lanes` outputs.
                    unsafe { std::ptr::copy_nonoverlapping(padded.as_ptr(), to, lanes) };
                }
            }
        }
    }
}
