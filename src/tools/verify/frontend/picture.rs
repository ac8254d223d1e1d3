//! Pictures and frames of videos to patches, and the order of frames and sound.

use super::checks::Checks;
use super::{Case, list, text, whole};
use crate::verify::value::Data;
use omni_media::patches::{Grid, Patches};
use omni_media::picture::Picture;
use omni_media::size::SizeRule;
use omni_media::video::second_per_grid;
use omni_model::prompt::audio_in_video;
use serde_json::Value as Json;

/// One level of a normalised 8-bit value.
const LEVEL: f32 = 1.0 / 127.5;
/// Levels that decoders of jpeg may differ by, and channel means.
const JPEG: [f32; 2] = [4.0, 0.5];
/// Rounding of the normalisation.
const EXACT: f32 = 1e-6;

pub(super) fn image(case: &Case<'_>, notes: &mut Vec<String>) -> Result<Checks, String> {
    let name = text(case.meta("file")?, "file")?;
    let mut checks = Checks::default();
    let picture = case.picture(name)?;
    checks.counts("decoded_hw", &case.wholes("decoded_hw")?, &[picture.size().height, picture.size().width]);
    let patches = cut(case, vec![picture], &rule(case)?)?;
    checks.counts("image_tokens", &[case.whole("image_tokens")?], &[patches.tokens()]);
    let exact = !(name.ends_with(".jpg") || name.ends_with(".jpeg"));
    rows(&mut checks, case, &patches, "image_grid_thw", "pixel_values", exact)?;
    let stride = case.whole("resized_rgb_stride")?.max(1);
    let resized = &patches.frames()[0];
    let width = resized.size().width;
    let lines = resized.rgb().chunks_exact(width * 3).step_by(stride);
    let pixels: Vec<i64> = lines
        .flat_map(|line| line.as_chunks::<3>().0.iter().step_by(stride))
        .flatten()
        .map(|value| i64::from(*value))
        .collect();
    if exact {
        checks.tensor(case.reference, "resized_rgb", pixels)?;
    } else {
        let Some(Data::Ints(want)) = case.reference.get("resized_rgb").map(|value| &value.data) else {
            return Err("the tensor resized_rgb is missing".into());
        };
        let differences = want.iter().zip(&pixels).map(|(a, b)| (a - b).unsigned_abs() as f32);
        checks.bound("resized_rgb", differences.fold(0.0, f32::max), JPEG[0]);
        notes.push("a jpeg, whose decoders differ by up to 3 levels".into());
    }
    let (mut sums, count) = ([0u64; 3], (resized.rgb().len() / 3) as f64);
    resized.rgb().as_chunks::<3>().0.iter().for_each(|pixel| (0..3).for_each(|c| sums[c] += u64::from(pixel[c])));
    for (sum, want) in sums.iter().zip(list(case.meta("resized_rgb_mean")?, "resized_rgb_mean")?) {
        let want = want.as_f64().ok_or("meta.resized_rgb_mean: expected numbers")?;
        let error = (*sum as f64 / count - want).abs() as f32;
        // The means were stored in f32.
        checks.bound("resized_rgb_mean", error, if exact { 1e-3 } else { JPEG[1] });
    }
    Ok(checks)
}

pub(super) fn video(case: &Case<'_>) -> Result<Checks, String> {
    if case.manifest.meta.contains_key("rows") {
        return interleaved(case);
    }
    let mut frames = Vec::new();
    for file in list(case.meta("files")?, "files")? {
        frames.push(case.picture(text(file, "files")?)?);
    }
    let patches = cut(case, frames, &rule(case)?)?;
    let mut checks = Checks::default();
    checks.counts("video_tokens", &[case.whole("video_tokens")?], &[patches.tokens()]);
    checks.counts("resized_hw", &case.wholes("resized_hw")?, &[patches.size().height, patches.size().width]);
    rows(&mut checks, case, &patches, "video_grid_thw", "pixel_values_videos", true)?;
    checks.floats(case.reference, "video_second_per_grid", &[declared(case)? as f32], 0.0)?;
    Ok(checks)
}

/// Seconds of a step of the grid, of the rate that the case declared: 1 where it declared none, as the reference has it.
pub(super) fn declared(case: &Case<'_>) -> Result<f64, String> {
    let rate = case.manifest.meta.get("fps_given_to_the_processor").and_then(Json::as_f64).unwrap_or(1.0);
    second_per_grid(rate, case.config.patches.temporal_patch_size).map_err(|e| e.to_string())
}

fn rule(case: &Case<'_>) -> Result<SizeRule, String> {
    let (min_pixels, max_pixels) = (case.whole("min_pixels")?, case.whole("max_pixels")?);
    Ok(SizeRule { factor: case.config.patches.factor(), min_pixels, max_pixels })
}

/// Frames as the tower takes them.
pub(super) fn cut(case: &Case<'_>, frames: Vec<Picture>, rule: &SizeRule) -> Result<Patches, String> {
    Patches::new(frames, rule, &case.config.patches).map_err(|e| e.to_string())
}

fn rows(
    checks: &mut Checks,
    case: &Case<'_>,
    patches: &Patches,
    grid_name: &str,
    name: &str,
    exact: bool,
) -> Result<(), String> {
    let Grid { t, h, w } = patches.grid();
    checks.tensor(case.reference, grid_name, [t, h, w].map(|n| n as i64))?;
    let shape = case.wholes(&format!("{name}_shape"))?;
    checks.counts(&format!("{name}_shape"), &shape, &[patches.grid().patches(), patches.row()]);
    let index = format!("{name}.row_index");
    let wanted = case.reference.get(&index).ok_or_else(|| format!("the tensor {index} is missing"))?.tokens()?;
    if let Some(row) = wanted.iter().find(|row| **row as usize >= patches.grid().patches()) {
        return Err(format!("{index} has {row}, but there are {} rows", patches.grid().patches()));
    }
    checks.tensor(case.reference, &index, wanted.iter().map(|row| i64::from(*row)))?;
    let values: Vec<f32> = wanted.iter().flat_map(|row| patches.rows(*row as usize..*row as usize + 1)).collect();
    let allowed = if exact { EXACT } else { JPEG[0] * LEVEL + EXACT };
    checks.floats(case.reference, &format!("{name}.rows"), &values, allowed)?;
    // All rows, also those that the case does not hold.
    let all = patches.rows(0..patches.grid().patches());
    let sum: f64 = all.iter().map(|v| f64::from(v.abs())).sum();
    let want = case.meta(&format!("{name}_abs_sum"))?.as_f64().ok_or("expected a number")?;
    let allowed = if exact { 1e-5 } else { JPEG[1] * LEVEL };
    checks.bound(&format!("{name}_abs_sum, of each value"), ((sum - want).abs() / all.len() as f64) as f32, allowed);
    Ok(())
}

/// What stands for a video that is heard.
fn interleaved(case: &Case<'_>) -> Result<Checks, String> {
    let mut checks = Checks::default();
    for (number, row) in list(case.meta("rows")?, "rows")?.iter().enumerate() {
        let count = |key: &str| whole(&row[key], key);
        let grid = list(&row["grid_thw"], "rows.grid_thw")?;
        let [t, h, w] = grid else { return Err("meta.rows.grid_thw: expected three numbers".into()) };
        let grid = Grid { t: whole(t, "t")?, h: whole(h, "h")?, w: whole(w, "w")? };
        let step = row["second_per_grid"].as_f64().ok_or("meta.rows.second_per_grid: expected a number")?;
        checks.counts("video_tokens", &[count("video_tokens")?], &[grid.tokens(case.config.patches.merge_size)]);
        let ids = audio_in_video(grid, step, count("audio_tokens")?, &case.config);
        checks.tensor(case.reference, &format!("ids.{number}"), ids.into_iter().map(i64::from))?;
    }
    Ok(checks)
}
