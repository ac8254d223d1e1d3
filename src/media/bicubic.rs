//! Bicubic resizing of 8-bit pictures, bit for bit as the reference does it.
//!
//! ATen's kernel for `uint8`, which torchvision 0.23 calls: a = -0.5, antialiased, the horizontal pass first, rounded
//! and clamped to 8 bits between the passes. For output `i` of an axis, with `scale = in / out`, `s = max(scale, 1)` and
//! `c = scale * (i + 0.5)`, inputs `max(trunc(c - 2s + 0.5), 0) .. min(trunc(c + 2s + 0.5), in)` weigh
//! `cubic((j - c + 0.5) / s)`, normalised to 1. Weights are 16-bit integers of the largest precision `P <= 22` that the
//! largest weight of the axis fits into.

use crate::picture::Picture;
use crate::size::Size;

const CHANNELS: usize = 3;
/// Bits of precision at most.
const MOST_PRECISION: u32 = 22;

/// The weights of one axis.
struct Axis {
    /// Of each output: the first input, and where its weights are.
    outputs: Vec<(usize, std::ops::Range<usize>)>,
    weights: Vec<i32>,
    precision: u32,
}

impl Axis {
    fn new(from: usize, to: usize) -> Axis {
        let scale = from as f64 / to as f64;
        let s = scale.max(1.0);
        let support = 2.0 * s;
        let (mut outputs, mut exact) = (Vec::with_capacity(to), Vec::new());
        for i in 0..to {
            let c = scale * (i as f64 + 0.5);
            // Casts truncate, and what is below 0 becomes 0.
            let first = (c - support + 0.5) as usize;
            let end = ((c + support + 0.5) as usize).min(from);
            let start = exact.len();
            exact.extend((first..end).map(|j| cubic((j as f64 - c + 0.5) / s)));
            let sum: f64 = exact[start..].iter().sum();
            exact[start..].iter_mut().for_each(|weight| *weight /= sum);
            outputs.push((first, start..exact.len()));
        }
        let largest = exact.iter().copied().fold(f64::MIN, f64::max);
        let fits = |precision: u32| ((0.5 + largest * f64::from(1u32 << precision)) as i64) < 1 << 15;
        let mut precision = 0;
        while precision < MOST_PRECISION && fits(precision + 1) {
            precision += 1;
        }
        // `round` takes halves away from 0.
        let weights = exact.iter().map(|weight| (weight * f64::from(1u32 << precision)).round() as i32).collect();
        Axis { outputs, weights, precision }
    }

    fn rounded(&self, sum: i32) -> u8 {
        (sum >> self.precision).clamp(0, 255) as u8
    }

    /// What a sum begins with, so that the shift rounds.
    fn half(&self) -> i32 {
        (1 << self.precision) >> 1
    }
}

fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    } else {
        0.0
    }
}

/// The picture in another size. One that has the size is returned as it is.
pub fn resize(picture: Picture, size: Size) -> Picture {
    let picture = if picture.size().width == size.width { picture } else { horizontal(&picture, size.width) };
    if picture.size().height == size.height { picture } else { vertical(&picture, size.height) }
}

fn horizontal(picture: &Picture, width: usize) -> Picture {
    let (from, axis) = (picture.size(), Axis::new(picture.size().width, width));
    let mut out = Vec::with_capacity(from.height * width * CHANNELS);
    for row in picture.rgb().chunks_exact(from.width * CHANNELS) {
        let pixels = row.as_chunks::<CHANNELS>().0;
        for (first, weights) in &axis.outputs {
            let mut sums = [axis.half(); CHANNELS];
            for (weight, pixel) in axis.weights[weights.clone()].iter().zip(&pixels[*first..]) {
                sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += weight * i32::from(*value));
            }
            out.extend(sums.map(|sum| axis.rounded(sum)));
        }
    }
    Picture::new(Size { height: from.height, width }, out)
}

fn vertical(picture: &Picture, height: usize) -> Picture {
    let (from, axis) = (picture.size(), Axis::new(picture.size().height, height));
    let stride = from.width * CHANNELS;
    let mut out = Vec::with_capacity(height * stride);
    let mut sums = vec![0; stride];
    for (first, weights) in &axis.outputs {
        sums.fill(axis.half());
        let rows = picture.rgb()[first * stride..].chunks_exact(stride);
        for (weight, row) in axis.weights[weights.clone()].iter().zip(rows) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * i32::from(*value));
        }
        out.extend(sums.iter().map(|sum| axis.rounded(*sum)));
    }
    Picture::new(Size { height, width: from.width }, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_picture_stays_plain_in_every_size() {
        for value in [0, 1, 127, 254, 255] {
            for (height, width) in [(1, 1), (3, 90), (64, 7)] {
                let plain = |size: Size| Picture::new(size, vec![value; size.height * size.width * CHANNELS]);
                let (from, to) = (Size { height, width }, Size { height: 32, width: 64 });
                assert_eq!(resize(plain(from), to), plain(to), "{value} from {height} x {width}");
            }
        }
    }

    #[test]
    fn an_edge_overshoots_and_is_clamped() {
        let size = Size { height: 1, width: 4 };
        let edge = Picture::new(size, [0, 0, 250, 250].into_iter().flat_map(|v| [v; 3]).collect());
        let wide = resize(edge, Size { height: 1, width: 16 });
        let row: Vec<u8> = wide.rgb().iter().step_by(3).copied().collect();
        assert!(row.contains(&0) && row.contains(&255), "{row:?}");
    }

    proptest! {
        #[test]
        fn weights_of_every_output_are_one_together(from in 1usize..3_000, to in 1usize..3_000) {
            let axis = Axis::new(from, to);
            let one = 1i64 << axis.precision;
            for (first, weights) in &axis.outputs {
                let sum: i64 = axis.weights[weights.clone()].iter().map(|w| i64::from(*w)).sum();
                prop_assert!((sum - one).abs() <= weights.len() as i64 && first + weights.len() <= from);
                // No sum of 8-bit values leaves 32 bits.
                let most: i64 = axis.weights[weights.clone()].iter().map(|w| i64::from(w.abs()) * 255).sum();
                prop_assert!(most + one < i64::from(i32::MAX));
            }
        }
    }
}
