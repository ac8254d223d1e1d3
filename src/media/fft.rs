//! Fourier transforms of real samples, for this crate and those above it, so that their code, which is large, is compiled
//! once: here, for f64, without instructions that only some machines have. So a spectrum has the same bits everywhere.

use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// The transform of `len` real samples to `len / 2 + 1` bins.
pub fn forward(len: usize) -> Arc<dyn RealToComplex<f64>> {
    RealFftPlanner::new().plan_fft_forward(len)
}

/// The transform of `len / 2 + 1` bins to `len` real samples, `len` times what [`forward`] was given.
pub(crate) fn inverse(len: usize) -> Arc<dyn ComplexToReal<f64>> {
    RealFftPlanner::new().plan_fft_inverse(len)
}
