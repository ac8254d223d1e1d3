//! The Fourier transform that other crates ask for, so that its code, which is large, is compiled once: here.

use realfft::{RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// The transform of `len` real samples to `len / 2 + 1` bins.
pub fn forward(len: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(len)
}
