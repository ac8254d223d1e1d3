//! Sixteen f32 lanes, whatever the machine: AVX-512, AVX2 with FMA, or arrays that the compiler vectorises (NEON).
//!
//! A [`Kernel`] is written once against [`Simd`] and run by [`dispatch`] with the widest set that the machine has.
//! Everything inside a kernel must be `#[inline(always)]`: a call that is not inlined loses the instruction set.

/// Lanes of one vector.
pub(super) const LANES: usize = 16;

/// A token that proves that its instruction set may be used, and the operations of the set.
pub(super) trait Simd: Copy {
    type V: Copy;
    /// How many vectors of 16 lanes the registers hold.
    const REGISTERS: usize;
    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Widens bf16, given as its bits. Exact.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::V;
    fn store(self, x: Self::V, to: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine has FMA.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for integer-valued `n` in [-126, 127].
    fn pow2(self, n: Self::V) -> Self::V;
}

/// Code that runs with any instruction set.
pub(super) trait Kernel {
    type Out;
    /// Must be `#[inline(always)]` in every implementation.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Level {
    /// The best one that this machine has. Detection is cached by the standard library.
    #[inline]
    pub(super) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Level::Avx2;
            }
        }
        Level::Portable
    }

    /// As people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2",
            Level::Portable => "compiler's vectors",
        }
    }
}

/// Runs a kernel with the machine's best instruction set.
#[inline]
pub(super) fn dispatch<K: Kernel>(kernel: K) -> K::Out {
    match Level::best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `best` has detected the features.
        Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `best` has detected the features.
        Level::Avx2 => unsafe { x86::run_avx2(kernel) },
        Level::Portable => kernel.run(Portable),
    }
}

/// Runs a kernel with a given set, for tests that compare sets. `None` if the machine does not have it.
#[cfg(test)]
pub(super) fn dispatch_at<K: Kernel>(level: Level, kernel: K) -> Option<K::Out> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features are checked.
        Level::Avx512 => is_x86_feature_detected!("avx512f").then(|| unsafe { x86::run_avx512(kernel) }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"))
            // SAFETY: the features are checked.
            .then(|| unsafe { x86::run_avx2(kernel) }),
        Level::Portable => Some(kernel.run(Portable)),
    }
}

/// Arrays: the compiler's own vectors (NEON on aarch64).
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (i, o) in out.iter_mut().enumerate() {
        *o = f(i);
    }
    out
}

impl Simd for Portable {
    type V = [f32; LANES];
    /// NEON: 32 of 4 lanes.
    const REGISTERS: usize = 8;
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::V {
        each(|i| f32::from_bits(u32::from(x[i]) << 16))
    }
    #[inline(always)]
    fn store(self, x: Self::V, to: &mut [f32; LANES]) {
        *to = x;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Without the instruction `mul_add` is a slow library call; the order of additions is fixed either way.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            each(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        each(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        each(|i| f32::from_bits(((n[i] as i32 + 127) << 23) as u32))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, LANES, Simd};
    use core::arch::x86_64::*;

    // In both `impl`s below every `unsafe` block has the same reason: a value of the token type exists only inside
    // `run_avx512` or `run_avx2`, whose callers have checked the features; and loads and stores go through references
    // to whole arrays.

    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
        kernel.run(Avx512(()))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
        kernel.run(Avx2(()))
    }

    impl Simd for Avx512 {
        type V = __m512;
        const REGISTERS: usize = 32;
        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> __m512 {
            unsafe { _mm512_loadu_ps(x.as_ptr()) }
        }
        #[inline(always)]
        fn load_bf16(self, x: &[u16; LANES]) -> __m512 {
            unsafe {
                let half = _mm256_loadu_si256(x.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            }
        }
        #[inline(always)]
        fn store(self, x: __m512, to: &mut [f32; LANES]) {
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
        }
        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        fn min(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_min_ps(a, b) }
        }
        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn round(self, a: __m512) -> __m512 {
            unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        fn pow2(self, n: __m512) -> __m512 {
            unsafe {
                let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
            }
        }
    }

    #[inline(always)]
    fn both(f: impl Fn(usize) -> __m256) -> [__m256; 2] {
        [f(0), f(1)]
    }

    impl Simd for Avx2 {
        type V = [__m256; 2];
        const REGISTERS: usize = 8;
        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            unsafe { [_mm256_set1_ps(x); 2] }
        }
        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> Self::V {
            unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
        }
        #[inline(always)]
        fn load_bf16(self, x: &[u16; LANES]) -> Self::V {
            both(|i| unsafe {
                let half = _mm_loadu_si128(x.as_ptr().add(8 * i).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
            })
        }
        #[inline(always)]
        fn store(self, x: Self::V, to: &mut [f32; LANES]) {
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
            }
        }
        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_add_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn sub(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_sub_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn mul(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_mul_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn div(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_div_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn max(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_max_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn min(self, a: Self::V, b: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_min_ps(a[i], b[i]) })
        }
        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_fmadd_ps(a[i], b[i], c[i]) })
        }
        #[inline(always)]
        fn round(self, a: Self::V) -> Self::V {
            both(|i| unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[i]) })
        }
        #[inline(always)]
        fn pow2(self, n: Self::V) -> Self::V {
            both(|i| unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            })
        }
    }
}
