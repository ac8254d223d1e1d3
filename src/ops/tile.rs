//! The inner loop of all products: a tile of chains of FMAs that run side by side.

use super::simd::{LANES, Simd};
use std::ops::Range;

/// How a stored weight becomes a lane.
pub(super) trait Weight: Copy {
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

/// Sums of `ROWS` rows and `PANELS` panels of 16 columns.
pub(super) type Acc<V, const ROWS: usize, const PANELS: usize> = [[V; PANELS]; ROWS];

/// `acc[r][p][lane] += sum_i x[r * step + i] * w[p * stride + i][lane]` for `i` from 0 up to `len`, one addition after
/// the other: the bits of a sum do not depend on the tile that it is computed in.
///
/// # Safety
/// `x` has `(ROWS - 1) * step + len` floats, `w` has `(PANELS - 1) * stride + len` vectors. Bounds checks in this loop
/// would cost more than its arithmetic.
#[inline(always)]
pub(super) unsafe fn chains<S: Simd, W: Weight, const ROWS: usize, const PANELS: usize>(
    s: S,
    acc: &mut Acc<S::V, ROWS, PANELS>,
    (x, step): (*const f32, usize),
    (mut w, stride): (*const [W; LANES], usize),
    len: usize,
) {
    for i in 0..len {
        let mut wide = [s.splat(0.0); PANELS];
        for (p, v) in wide.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *v = W::load(s, unsafe { &*w.add(p * stride) });
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let x = s.splat(unsafe { *x.add(r * step + i) });
            for (acc, w) in acc.iter_mut().zip(&wide) {
                *acc = s.fma(x, *w, *acc);
            }
        }
        // A pointer that steps: one row is a fifth slower where the loop counts instead.
        // SAFETY: one behind the last vector at most.
        w = unsafe { w.add(1) };
    }
}

/// Work on rows that is done in bands of some rows side by side.
pub(super) trait Banded {
    /// Does the rows `row..row + ROWS`, `PANELS` panels of 16 columns at a time. Must be `#[inline(always)]`.
    fn band<S: Simd, const ROWS: usize, const PANELS: usize>(&mut self, s: S, row: usize);
}

/// Does all `rows`. A tile has as many chains as keep the FMA pipes busy and, with its weights, fit the registers. One
/// row needs several panels to have enough.
#[inline(always)]
pub(super) fn in_bands<S: Simd>(s: S, rows: Range<usize>, work: &mut impl Banded) {
    let mut next = rows.start;
    if S::REGISTERS >= 32 {
        bands::<S, 8, 2>(s, &mut next, rows.end, work);
        bands::<S, 4, 2>(s, &mut next, rows.end, work);
        bands::<S, 2, 4>(s, &mut next, rows.end, work);
    } else {
        bands::<S, 6, 1>(s, &mut next, rows.end, work);
        bands::<S, 4, 1>(s, &mut next, rows.end, work);
        bands::<S, 2, 2>(s, &mut next, rows.end, work);
    }
    bands::<S, 1, 4>(s, &mut next, rows.end, work);
}

/// Most rows of a band.
pub(super) const TALLEST: usize = 8;

/// As many bands of `ROWS` rows as there are from row `next` on.
#[inline(always)]
fn bands<S: Simd, const ROWS: usize, const PANELS: usize>(s: S, next: &mut usize, end: usize, work: &mut impl Banded) {
    while end - *next >= ROWS {
        work.band::<S, ROWS, PANELS>(s, *next);
        *next += ROWS;
    }
}
