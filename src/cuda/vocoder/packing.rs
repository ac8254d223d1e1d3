//! Weights as the kernels read them: for each output taps, for each tap channels, filled up with zeros to the width that
//! activations have; then zeros to whole steps of a product.

use super::Precision;

/// Nearest F16 number, ties to even; what is beyond the largest becomes that.
pub(super) fn f16(x: f32) -> u16 {
    let largest = half::f16::MAX.to_f32();
    half::f16::from_f32(x.clamp(-largest, largest)).to_bits()
}

/// Nearest TF32 number, ties away from zero, as `cvt.rna.tf32.f32`.
pub(super) fn tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff)
}

/// A packed weight.
pub(super) struct Packed {
    pub weight: Vec<f32>,
    /// One per output; empty: none.
    pub bias: Vec<f32>,
    /// Width of the input.
    pub channels: usize,
    /// As wide as operands are, too.
    pub outputs: usize,
    pub taps: usize,
}

impl Precision {
    /// Lays out `outputs` rows of `taps` times `channels`; `at` gives the elements.
    fn pack(
        self,
        outputs: usize,
        (taps, channels): (usize, usize),
        bias: Vec<f32>,
        at: impl Fn(usize, usize, usize) -> f32,
    ) -> Packed {
        let width = self.wide(channels);
        let line = (taps * width).next_multiple_of(self.depth());
        let mut weight = vec![0.0; outputs * line];
        for (output, row) in weight.chunks_exact_mut(line).enumerate() {
            for (tap, row) in row.chunks_exact_mut(width).take(taps).enumerate() {
                for (channel, to) in row[..channels].iter_mut().enumerate() {
                    *to = at(output, tap, channel);
                }
            }
        }
        Packed { weight, bias, channels: width, outputs, taps }
    }

    /// From torch's `[out, in, taps]`.
    pub(super) fn convolution(
        self,
        weight: &[f32],
        bias: &[f32],
        (outputs, channels, taps): (usize, usize, usize),
    ) -> Packed {
        let width = self.wide(outputs);
        let mut bias = bias.to_vec();
        bias.resize(width, 0.0);
        self.pack(width, (taps, channels), bias, |o, tap, c| {
            if o < outputs { weight[(o * channels + c) * taps + tap] } else { 0.0 }
        })
    }

    /// From torch's `[in, out, kernel]`: a convolution whose row of outputs is `stride` positions.
    pub(super) fn transposed(
        self,
        weight: &[f32],
        bias: &[f32],
        (channels, outputs, kernel): (usize, usize, usize),
        stride: usize,
    ) -> Packed {
        let (taps, width) = (kernel.div_ceil(stride), self.wide(outputs));
        let mut once = bias.to_vec();
        once.resize(width, 0.0);
        // y[t * stride + p] = sum over j of x[t - j] w[p + j * stride]; tap 0 is the oldest input.
        self.pack(stride * width, (taps, channels), once.repeat(stride), |n, tap, c| {
            let (phase, o) = (n / width, n % width);
            let at = phase + (taps - 1 - tap) * stride;
            if o < outputs && at < kernel { weight[(c * outputs + o) * kernel + at] } else { 0.0 }
        })
    }

    /// From `[out, in]`, with one factor per output.
    pub(super) fn linear(
        self,
        weight: &[f32],
        bias: &[f32],
        (outputs, channels): (usize, usize),
        scale: Option<&[f32]>,
    ) -> Packed {
        let scale = |o: usize| scale.map_or(1.0, |scale| scale[o]);
        let bias = bias.iter().enumerate().map(|(o, b)| b * scale(o)).collect();
        self.pack(outputs, (1, channels), bias, |o, _, c| weight[o * channels + c] * scale(o))
    }

    /// Gate and up, `[inner, in]` each, in turns: the kernel multiplies neighbours.
    pub(super) fn gated(self, gate: &[f32], up: &[f32], (inner, channels): (usize, usize)) -> Packed {
        self.pack(2 * inner, (1, channels), Vec::new(), |o, _, c| {
            let of = if o % 2 == 0 { gate } else { up };
            of[o / 2 * channels + c]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_rounds_to_ten_bits_away_from_zero() {
        let ulp = 2f32.powi(-10);
        assert_eq!(tf32(1.0 + 0.5 * ulp), 1.0 + ulp);
        assert_eq!(tf32(-1.0 - 0.49 * ulp), -1.0);
        assert_eq!(tf32(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn f16_is_clipped_at_its_largest() {
        let large = half::f16::MAX.to_bits();
        assert_eq!([f16(65_504.0), f16(65_519.0), f16(1e9), f16(f32::INFINITY)], [large; 4]);
        assert_eq!([f16(-1e9), f16(1.0 + 2f32.powi(-11)), f16(1.0)], [large | 0x8000, 0x3c00, 0x3c00]);
        assert!(half::f16::from_bits(f16(f32::NAN)).is_nan());
    }

    #[test]
    fn a_convolution_keeps_its_taps_oldest_first() {
        for (precision, wide, line) in [(Precision::Tf32, 4, 32), (Precision::F16, 8, 64)] {
            let packed = precision.convolution(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0.5], (1, 3, 2));
            assert_eq!((packed.outputs, packed.channels, packed.taps), (wide, wide, 2));
            assert_eq!(packed.weight.len(), wide * line);
            assert_eq!(packed.weight[..3], [1.0, 3.0, 5.0]);
            assert_eq!(packed.weight[wide..wide + 3], [2.0, 4.0, 6.0]);
            assert!(packed.weight[2 * wide..].iter().all(|w| *w == 0.0));
            assert_eq!((packed.bias.len(), packed.bias[0], packed.bias[1]), (wide, 0.5, 0.0));
        }
    }

    #[test]
    fn a_transposed_convolution_gives_its_positions_side_by_side() {
        // Kernel 4, stride 2, one channel: position p of input t is w[p] x[t] + w[p + 2] x[t - 1].
        let packed = Precision::Tf32.transposed(&[1.0, 2.0, 3.0, 4.0], &[0.5], (1, 1, 4), 2);
        assert_eq!((packed.outputs, packed.taps), (8, 2));
        let row = |n: usize| [packed.weight[n * 32], packed.weight[n * 32 + 4]];
        assert_eq!([row(0), row(1), row(4)], [[3.0, 1.0], [0.0, 0.0], [4.0, 2.0]]);
        assert_eq!(packed.bias, [0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn steps_of_short_taps_are_full() {
        // 7 taps of 96 channels in steps of 64: 10.5 of them.
        let packed = Precision::F16.convolution(&[1.0; 8 * 96 * 7], &[0.0; 8], (8, 96, 7));
        assert_eq!(packed.weight.len(), 8 * 11 * 64);
        assert_eq!(packed.weight.iter().filter(|w| **w == 1.0).count(), 8 * 7 * 96);
    }
}
