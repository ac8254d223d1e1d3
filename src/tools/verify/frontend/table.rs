//! Tables of sizes, token counts and frames.

use super::checks::Checks;
use super::{Case, list, whole};
use crate::verify::value::Data;
use omni_media::hearing::audio_tokens;
use omni_media::size::{Size, SizeRule};
use omni_media::video::sample;

pub(super) fn run(case: &Case<'_>) -> Result<Checks, String> {
    let mut checks = Checks::default();
    if let Some(frames) = case.reference.get("mel_frames") {
        let frames = frames.tokens()?;
        let tokens = frames.iter().map(|frames| audio_tokens(*frames as usize, case.config.n_window) as i64);
        checks.tensor(case.reference, "audio_tokens", tokens)?;
        checks.tensor(case.reference, "mel_frames", frames.iter().map(|n| i64::from(*n)))?;
    } else if case.reference.contains_key("total_frames") {
        frames(case, &mut checks)?;
    } else {
        sizes(case, &mut checks)?;
    }
    Ok(checks)
}

/// Rows of height, width, least and most pixels, the size (0, 0 where it is refused), and two columns of other
/// programs.
fn sizes(case: &Case<'_>, checks: &mut Checks) -> Result<(), String> {
    let Some(Data::Ints(rows)) = case.reference.get("rows").map(|value| &value.data) else {
        return Err("the tensor rows is missing".into());
    };
    let factor = case.whole("factor")?;
    let mut got = Vec::with_capacity(rows.len());
    for row in rows.as_chunks::<8>().0 {
        let number = |i: usize| usize::try_from(row[i]).map_err(|_| format!("rows has {}", row[i]));
        let rule = SizeRule { factor, min_pixels: number(2)?, max_pixels: number(3)? };
        let size = rule.resized(Size { height: number(0)?, width: number(1)? });
        let [height, width] = size.map_or([0, 0], |size| [size.height as i64, size.width as i64]);
        got.extend([row[0], row[1], row[2], row[3], height, width, row[6], row[7]]);
    }
    checks.tensor(case.reference, "rows", got)
}

fn frames(case: &Case<'_>, checks: &mut Checks) -> Result<(), String> {
    let mut totals = Vec::new();
    for row in list(case.meta("rows")?, "rows")? {
        let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("meta.rows.{key}: expected a number"));
        let (total, most) = (whole(&row["total_frames"], "total_frames")?, whole(&row["max_frames"], "max_frames")?);
        let least = whole(&row["min_frames"], "min_frames")?;
        totals.push(total as i64);
        let indices = |key: &str| list(&row[key], key)?.iter().map(|i| whole(i, key)).collect::<Result<Vec<_>, _>>();
        match sample(total, number("source_fps")?, number("fps")?, least..=most) {
            Ok(sampling) => {
                checks.counts(&format!("frames of {total}"), &indices("utils_indices")?, &sampling.indices);
                let error = (sampling.frames_per_second - number("utils_sample_fps")?).abs();
                checks.bound("utils_sample_fps", error as f32, 1e-6);
                // The other way that the reference knows takes as many, from the first on and never the last.
                let count = sampling.indices.len();
                let evenly: Vec<usize> = (0..count).map(|i| i * total / count).collect();
                checks.counts(&format!("frames of {total}, evenly"), &indices("hf_indices")?, &evenly);
            }
            // An empty list is a refusal.
            Err(_) => checks.counts(&format!("frames of {total}"), &indices("utils_indices")?, &[]),
        }
    }
    checks.tensor(case.reference, "total_frames", totals)
}
