//! Weights as the kernels read them: `[outputs][taps][channels]`, channels filled up with zeros to whole steps of a
//! product, and the width of activations to whole float4s.

use super::tiles::DEPTH;

/// The width that so many channels have in memory.
pub(super) fn wide(channels: usize) -> usize {
    channels.next_multiple_of(4)
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
    /// A multiple of 4.
    pub outputs: usize,
    pub taps: usize,
}

/// Lays out `outputs` rows of `taps` times `channels`; `at` gives the elements.
fn pack(
    outputs: usize,
    (taps, channels): (usize, usize),
    bias: Vec<f32>,
    at: impl Fn(usize, usize, usize) -> f32,
) -> Packed {
    let line = channels.next_multiple_of(DEPTH);
    let mut weight = vec![0.0; outputs * taps * line];
    for (output, row) in weight.chunks_exact_mut(taps * line).enumerate() {
        for (tap, row) in row.chunks_exact_mut(line).enumerate() {
            for (channel, to) in row[..channels].iter_mut().enumerate() {
                *to = at(output, tap, channel);
            }
        }
    }
    Packed { weight, bias, channels: wide(channels), outputs, taps }
}

/// From torch's `[out, in, taps]`.
pub(super) fn convolution(weight: &[f32], bias: &[f32], (outputs, channels, taps): (usize, usize, usize)) -> Packed {
    let mut bias = bias.to_vec();
    bias.resize(wide(outputs), 0.0);
    pack(
        wide(outputs),
        (taps, channels),
        bias,
        |o, tap, c| {
            if o < outputs { weight[(o * channels + c) * taps + tap] } else { 0.0 }
        },
    )
}

/// From torch's `[in, out, kernel]`: a convolution whose row of outputs is `stride` positions.
pub(super) fn transposed(
    weight: &[f32],
    bias: &[f32],
    (channels, outputs, kernel): (usize, usize, usize),
    stride: usize,
) -> Packed {
    let (taps, width) = (kernel.div_ceil(stride), wide(outputs));
    let mut once = bias.to_vec();
    once.resize(width, 0.0);
    // y[t * stride + p] = sum over j of x[t - j] w[p + j * stride]; tap 0 is the oldest input.
    pack(stride * width, (taps, channels), once.repeat(stride), |n, tap, c| {
        let (phase, o) = (n / width, n % width);
        let at = phase + (taps - 1 - tap) * stride;
        if o < outputs && at < kernel { weight[(c * outputs + o) * kernel + at] } else { 0.0 }
    })
}

/// From `[out, in]`, with one factor per output.
pub(super) fn linear(
    weight: &[f32],
    bias: &[f32],
    (outputs, channels): (usize, usize),
    scale: Option<&[f32]>,
) -> Packed {
    let scale = |o: usize| scale.map_or(1.0, |scale| scale[o]);
    let bias = bias.iter().enumerate().map(|(o, b)| b * scale(o)).collect();
    pack(outputs, (1, channels), bias, |o, _, c| weight[o * channels + c] * scale(o))
}

/// Gate and up, `[inner, in]` each, in turns: the kernel multiplies neighbours.
pub(super) fn gated(gate: &[f32], up: &[f32], (inner, channels): (usize, usize)) -> Packed {
    pack(2 * inner, (1, channels), Vec::new(), |o, _, c| {
        let of = if o % 2 == 0 { gate } else { up };
        of[o / 2 * channels + c]
    })
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
    fn a_convolution_keeps_its_taps_oldest_first() {
        let packed = convolution(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0.5], (1, 3, 2));
        assert_eq!((packed.outputs, packed.channels, packed.taps), (4, 4, 2));
        assert_eq!(packed.weight[..3], [1.0, 3.0, 5.0]);
        assert_eq!(packed.weight[DEPTH..DEPTH + 3], [2.0, 4.0, 6.0]);
        assert!(packed.weight[2 * DEPTH..].iter().all(|w| *w == 0.0));
        assert_eq!(packed.bias, [0.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_transposed_convolution_gives_its_positions_side_by_side() {
        // Kernel 4, stride 2, one channel: position p of input t is w[p] x[t] + w[p + 2] x[t - 1].
        let packed = transposed(&[1.0, 2.0, 3.0, 4.0], &[0.5], (1, 1, 4), 2);
        assert_eq!((packed.outputs, packed.taps), (8, 2));
        let row = |n: usize| [packed.weight[n * 2 * DEPTH], packed.weight[(n * 2 + 1) * DEPTH]];
        assert_eq!([row(0), row(1), row(4)], [[3.0, 1.0], [0.0, 0.0], [4.0, 2.0]]);
        assert_eq!(packed.bias, [0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]);
    }
}
