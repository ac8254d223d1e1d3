//! Which size a picture gets before it is cut into patches.

use crate::limits::MediaError;

/// The longest picture: one side so many times as long as the other.
const MAX_ASPECT: u64 = 200;

/// Sides of a picture, pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// What sizes a vision tower takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRule {
    /// Both sides are multiples of it: patch size times merge size.
    pub factor: usize,
    /// Height times width at least.
    pub min_pixels: usize,
    /// Height times width at most.
    pub max_pixels: usize,
}

impl SizeRule {
    /// The size that a picture is resized to: `smart_resize` of transformers 5.23.0 (`image_processing_qwen2_vl.py`),
    /// in f64, halves rounded to even. A side of at most half a factor rounds to 0, and then the least size is made.
    ///
    /// # Errors
    /// [`MediaError::Aspect`] for a side more than 200 times as long as the other, [`MediaError::Number`] for a rule
    /// without a factor.
    pub fn resized(&self, from: Size) -> Result<Size, MediaError> {
        let (long, short) = (from.height.max(from.width) as u64, from.height.min(from.width) as u64);
        if short == 0 || long > short * MAX_ASPECT {
            let (width, height) = (from.width as u64, from.height as u64);
            return Err(MediaError::Aspect { width, height, most: MAX_ASPECT });
        }
        if self.factor == 0 {
            let (field, expected) = ("patch_size * merge_size", "at least 1");
            return Err(MediaError::Number { field, value: "0".into(), expected });
        }
        let (height, width, factor) = (from.height as f64, from.width as f64, self.factor as f64);
        let multiple = |parts: f64| (parts as usize).saturating_mul(self.factor);
        let round = |side: f64| multiple((side / factor).round_ties_even());
        let rounded = Size { height: round(height), width: round(width) };
        let pixels = rounded.height.saturating_mul(rounded.width);
        Ok(if pixels > self.max_pixels {
            let shrink = (height * width / self.max_pixels as f64).sqrt();
            let side = |side: f64| multiple((side / shrink / factor).floor()).max(self.factor);
            Size { height: side(height), width: side(width) }
        } else if pixels < self.min_pixels {
            let grow = (self.min_pixels as f64 / (height * width)).sqrt();
            let side = |side: f64| multiple((side * grow / factor).ceil());
            Size { height: side(height), width: side(width) }
        } else {
            rounded
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IMAGE: SizeRule = SizeRule { factor: 32, min_pixels: 3_136, max_pixels: 12_845_056 };

    #[test]
    fn halves_round_to_even_and_small_sides_grow() {
        for (height, width, to) in [
            (80, 112, (64, 128)),
            (48, 48, (64, 64)),
            (1, 1, (64, 64)),
            (9, 700, (32, 512)),
            (16, 2_000, (32, 640)),
            (1_080, 1_920, (1_088, 1_920)),
        ] {
            let size = IMAGE.resized(Size { height, width }).unwrap();
            assert_eq!((size.height, size.width), to, "{height} x {width}");
        }
    }

    #[test]
    fn strips_are_refused_with_the_limit() {
        let error = IMAGE.resized(Size { height: 1, width: 201 }).unwrap_err().to_string();
        assert_eq!(error, "the image has 201 x 1 pixels: one side may be at most 200 times as long as the other");
        assert!(IMAGE.resized(Size { height: 1, width: 200 }).is_ok());
    }

    proptest! {
        #[test]
        fn every_size_is_a_multiple_within_the_limits_or_one_factor_wide(
            height in 1usize..20_000, width in 1usize..20_000,
        ) {
            let Ok(size) = IMAGE.resized(Size { height, width }) else { return Ok(()) };
            prop_assert!(size.height % 32 == 0 && size.width % 32 == 0 && size.height > 0 && size.width > 0);
            let pixels = size.height * size.width;
            prop_assert!(pixels >= IMAGE.min_pixels && (pixels <= IMAGE.max_pixels || size.height.min(size.width) == 32));
        }
    }
}
