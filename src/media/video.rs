//! Which frames of a video are seen, and how far apart they are.

use crate::limits::MediaError;
use std::ops::RangeInclusive;

/// Frames of a second that are seen, unless a request says otherwise.
pub const USUAL_RATE: f64 = 2.0;
/// A video becomes so many frames, if it has them.
pub const USUAL_FRAMES: RangeInclusive<usize> = 4..=768;
/// Frames that a file may have: f32 counts up to here.
const MOST_FRAMES: usize = 1 << 24;
/// Frames come in pairs.
const PAIR: usize = 2;

/// The frames of a video that are seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Their numbers, ascending, the first and the last of the video among them.
    pub indices: Vec<usize>,
    /// How many of them there are for a second.
    pub frames_per_second: f64,
}

/// Picks frames of a video of `total` frames at `source` frames per second, `rate` for a second, as the reference's own
/// utilities do (`qwen-omni-utils` 0.0.9, `smart_nframes`): `n = total / source * rate`, as many as `frames` has, of
/// those that there are, in pairs; evenly from the first to the last, rounded half to even.
///
/// # Errors
/// [`MediaError::TooLittle`] for a video of one frame, [`MediaError::Number`] for rates that are not above 0.
pub fn sample(total: usize, source: f64, rate: f64, frames: RangeInclusive<usize>) -> Result<Sampling, MediaError> {
    for (field, value) in [("the video's frame rate", source), ("fps", rate)] {
        if !(value > 0.0 && value.is_finite()) {
            return Err(MediaError::Number { field, value: value.to_string(), expected: "a number above 0" });
        }
    }
    if total > MOST_FRAMES {
        let (have, limit) = (total as u64, MOST_FRAMES as u64);
        return Err(MediaError::TooMuch { media: "video", unit: "frames", have, limit, name: "the format" });
    }
    if total < PAIR {
        let (have, least) = (total as u64, PAIR as u64);
        return Err(MediaError::TooLittle { media: "video", unit: "frames", have, least });
    }
    let pairs_down = |frames: usize| frames / PAIR * PAIR;
    let (least, most) = (frames.start().next_multiple_of(PAIR), pairs_down((*frames.end()).min(total)).max(PAIR));
    let wanted = total as f64 / source * rate;
    let count = pairs_down(wanted.max(least as f64).min(most as f64).min(total as f64) as usize).max(PAIR);
    // As `torch.linspace` has it: f32, from both ends to the middle.
    let last = (total - 1) as f32;
    let step = last / (count - 1) as f32;
    let at = |i: usize| if i < count / 2 { step * i as f32 } else { last - step * (count - 1 - i) as f32 };
    let indices = (0..count).map(|i| at(i).round_ties_even() as usize).collect();
    Ok(Sampling { indices, frames_per_second: count as f64 / total as f64 * source })
}

/// Seconds from one step of a video's grid to the next, for frames of this rate.
///
/// The reference takes the rate from its caller and 1 if it says none, also where frames were sampled at 2, so that
/// positions are twice as far apart as they should be; a server passes the rate of the sampling on.
///
/// # Errors
/// [`MediaError::Number`] for a rate that is not above 0.
pub fn second_per_grid(frames_per_second: f64, temporal_patch_size: usize) -> Result<f64, MediaError> {
    if !(frames_per_second > 0.0 && frames_per_second.is_finite()) {
        let value = frames_per_second.to_string();
        return Err(MediaError::Number { field: "fps", value, expected: "a number above 0" });
    }
    Ok(temporal_patch_size as f64 / frames_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_ends_are_seen() {
        let sampling = sample(30, 10.0, 2.0, USUAL_FRAMES).unwrap();
        assert_eq!(sampling, Sampling { indices: vec![0, 6, 12, 17, 23, 29], frames_per_second: 2.0 });
        assert_eq!(sample(2, 30.0, 2.0, USUAL_FRAMES).unwrap().indices, [0, 1]);
    }

    #[test]
    fn what_is_no_video_is_refused_with_words() {
        for (total, source, rate, says) in [
            (1, 30.0, 2.0, "the video has 1 frames, at least 2 are needed"),
            (9, 0.0, 2.0, "the video's frame rate = 0: expected a number above 0"),
            (9, 30.0, f64::NAN, "fps = NaN: expected a number above 0"),
        ] {
            assert_eq!(sample(total, source, rate, USUAL_FRAMES).unwrap_err().to_string(), says);
        }
        assert!(second_per_grid(0.0, 2).is_err());
        assert_eq!(second_per_grid(1.5, 2), Ok(2.0 / 1.5));
    }

    proptest! {
        #[test]
        fn frames_are_pairs_that_ascend_within_the_video(
            total in 2usize..5_000, source in 0.1f64..240.0, rate in 0.1f64..60.0, most in 0usize..900,
        ) {
            let Sampling { indices, .. } = sample(total, source, rate, 4..=most).unwrap();
            prop_assert!(indices.len() % 2 == 0 && indices.len() <= most.max(2) && !indices.is_empty());
            prop_assert!(indices.is_sorted() && indices[0] == 0 && indices[indices.len() - 1] == total - 1);
        }
    }
}
