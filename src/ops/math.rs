//! Elementary functions on lanes: polynomials, the same result for an element wherever it stands in a tensor.

use super::simd::{LANES, Simd};

/// e^x, relative error below 2e-7; results below the smallest normal number are 0 or that number.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.min(s.max(x, s.splat(-87.3)), s.splat(88.3));
    // x = n ln2 + r, |r| <= ln2/2; ln2 in two parts so that n * part is exact.
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // Cephes' expf polynomial.
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    s.mul(p, s.pow2(n))
}

/// sin(x)^2, absolute error below 3e-7 for |x| < 1e4.
#[inline(always)]
pub(super) fn sin_squared<S: Simd>(s: S, x: S::V) -> S::V {
    // The square has period pi: x = n pi + r, |r| <= pi/2; pi in three parts so that n * part is (nearly) exact.
    let n = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_1_PI)));
    let r = s.fma(n, s.splat(-3.140_625), x);
    let r = s.fma(n, s.splat(-9.675_026e-4), r);
    let r = s.fma(n, s.splat(-1.509_957_9e-7), r);
    let r2 = s.mul(r, r);
    // Taylor to r^13: the first term left out is 7e-10 at pi/2.
    let mut p = s.splat(1.605_904_4e-10);
    for c in [-2.505_210_8e-8, 2.755_731_9e-6, -1.984_127e-4, 8.333_333e-3, -1.666_666_7e-1] {
        p = s.fma(p, r2, s.splat(c));
    }
    let sin = s.fma(p, s.mul(r2, r), r);
    s.mul(sin, sin)
}

/// The sum of the lanes, halves first: one fixed tree.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, x: S::V) -> f32 {
    let mut a = [0.0; LANES];
    s.store(x, &mut a);
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] += a[i + width];
        }
        width /= 2;
    }
    a[0]
}

/// Dot product: lane i sums the elements i, i+16, ...; then [`sum`].
#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a16, a_rest) = a.as_chunks::<LANES>();
    let (b16, b_rest) = b.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for (x, y) in a16.iter().zip(b16) {
        acc = s.fma(s.load(x), s.load(y), acc);
    }
    if !a_rest.is_empty() {
        acc = s.fma(load_part(s, a_rest), load_part(s, b_rest), acc);
    }
    sum(s, acc)
}

/// Up to 16 elements, zeros behind them.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, x: &[f32]) -> S::V {
    if let Ok(all) = x.try_into() {
        return s.load(all);
    }
    let mut padded = [0.0; LANES];
    for (to, from) in padded.iter_mut().zip(x) {
        *to = *from;
    }
    s.load(&padded)
}

/// The first elements of a vector, up to 16.
#[inline(always)]
pub(super) fn store_part<S: Simd>(s: S, x: S::V, to: &mut [f32]) {
    if let Ok(all) = to.try_into() {
        return s.store(x, all);
    }
    let mut padded = [0.0; LANES];
    s.store(x, &mut padded);
    for (to, from) in to.iter_mut().zip(&padded) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Kernel, Level, Portable, dispatch_at};
    use super::*;

    struct Map<'a, F>(&'a [f32], F);
    trait LaneFn: Copy {
        fn call<S: Simd>(self, s: S, x: S::V) -> S::V;
    }
    #[derive(Clone, Copy)]
    struct Exp;
    impl LaneFn for Exp {
        #[inline(always)]
        fn call<S: Simd>(self, s: S, x: S::V) -> S::V {
            exp(s, x)
        }
    }
    #[derive(Clone, Copy)]
    struct SinSquared;
    impl LaneFn for SinSquared {
        #[inline(always)]
        fn call<S: Simd>(self, s: S, x: S::V) -> S::V {
            sin_squared(s, x)
        }
    }
    impl<F: LaneFn> Kernel for Map<'_, F> {
        type Out = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len()];
            for (x, o) in self.0.chunks(LANES).zip(out.chunks_mut(LANES)) {
                store_part(s, self.1.call(s, load_part(s, x)), o);
            }
            out
        }
    }

    fn levels() -> Vec<Level> {
        vec![
            #[cfg(target_arch = "x86_64")]
            Level::Avx512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2,
            Level::Portable,
        ]
    }

    #[test]
    fn exp_is_accurate_on_every_instruction_set() {
        let xs: Vec<f32> = (-87_000..88_000).step_by(7).map(|i| i as f32 * 1e-3).collect();
        for level in levels() {
            let Some(got) = dispatch_at(level, Map(&xs, Exp)) else { continue };
            for (x, y) in xs.iter().zip(got) {
                let want = f64::from(*x).exp();
                assert!((f64::from(y) / want - 1.0).abs() < 3e-7, "{level:?}: exp({x}) = {y}, not {want}");
            }
        }
        assert_eq!(dispatch_at(Level::Portable, Map(&[-1e9, 0.0], Exp)).unwrap()[1], 1.0);
    }

    #[test]
    fn sin_squared_is_accurate_on_every_instruction_set() {
        let xs: Vec<f32> = (-100_000..100_000).step_by(11).map(|i| i as f32 * 1e-2).collect();
        for level in levels() {
            let Some(got) = dispatch_at(level, Map(&xs, SinSquared)) else { continue };
            for (x, y) in xs.iter().zip(got) {
                let want = f64::from(*x).sin().powi(2);
                assert!((f64::from(y) - want).abs() < 5e-7, "{level:?}: sin2({x}) = {y}, not {want}");
            }
        }
    }

    #[test]
    fn dot_handles_lengths_that_are_no_multiple_of_the_lanes() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(dot(Portable, &a, &a), a.iter().map(|x| x * x).sum::<f32>());
    }
}
