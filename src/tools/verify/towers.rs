//! Runs the towers: log-mel frames and patches of pictures to embeddings of the thinker.

use super::encode::Encode;
use super::value::{Data, Value, Values};
use candle_core::{Device, Tensor};
use omni_model::media::MediaRows;

/// Where the second clip of an audio_tower case begins in the first, and how many frames it is shorter: its recipe.
const SECOND_CLIP: (usize, usize) = (40, 137);

/// Everything that an audio_tower case has and this program computes; takes its inputs out of the reference.
pub(super) fn audio(reference: &mut Values, tower: &mut dyn Encode) -> Result<Values, String> {
    reference.remove("pcm16k");
    let clips = clips(reference, "")?;
    let mut values = Values::new();
    let [clip] = clips.as_slice() else { return Err("input_features: expected one clip".into()) };
    let rows = MediaRows::cat(&tower.hear(std::slice::from_ref(clip))?).map_err(|e| e.to_string())?.rows;
    values.insert("audio_embeds".into(), floats(&rows)?);
    if reference.contains_key("batch2.audio_embeds") {
        let (first, (start, shorter)) = (clip.dims()[1], SECOND_CLIP);
        let len = first.checked_sub(shorter).ok_or("the clip is too short for batch2")?;
        let second = clip.narrow(1, start, len).map_err(|e| e.to_string())?;
        let both = tower.hear(&[clip.clone(), second])?;
        values.insert("batch2.lens".into(), Value::ints([2], [first as u32, len as u32]));
        let rows = MediaRows::cat(&both).map_err(|e| e.to_string())?.rows;
        values.insert("batch2.audio_embeds".into(), floats(&rows)?);
    }
    Ok(values)
}

/// Everything that a vision_tower case has and this program computes; takes its inputs out of the reference.
pub(super) fn vision(reference: &mut Values, tower: &mut dyn Encode) -> Result<Values, String> {
    let mut encoded = Vec::new();
    for name in ["image", "video"] {
        let pictures = pictures(reference, &format!("{name}.pixel_values"), &format!("{name}.grid_thw"))?;
        let rows = pictures.iter().map(|(patches, grid)| tower.see(patches, *grid));
        encoded.push((name, rows.collect::<Result<Vec<_>, _>>()?));
    }
    reference.remove("two.grid_thw");
    let both = encoded.iter().flat_map(|(_, rows)| rows.iter().cloned()).collect();
    encoded.push(("two", both));
    let mut values = Values::new();
    for (name, rows) in encoded {
        let MediaRows { rows, deepstack } = MediaRows::cat(&rows).map_err(|e| format!("{name}: {e}"))?;
        values.insert(format!("{name}.embeds"), floats(&rows)?);
        for (k, level) in deepstack.iter().enumerate() {
            values.insert(format!("{name}.deepstack.{k}"), floats(level)?);
        }
    }
    Ok(values)
}

/// The clips `[bins, frames]` of `{prefix}input_features` without their padding, taken out of the reference.
pub(super) fn clips(reference: &mut Values, prefix: &str) -> Result<Vec<Tensor>, String> {
    let name = format!("{prefix}input_features");
    let Some(features) = reference.remove(&name) else { return Ok(Vec::new()) };
    let mask = reference.remove(&format!("{prefix}feature_attention_mask"));
    let features = tensor(&features).map_err(|e| format!("{name}: {e}"))?;
    let &[clips, _, longest] = features.dims() else {
        return Err(format!("{name} has shape {:?}: expected [clips, bins, frames]", features.dims()));
    };
    let lens: Vec<usize> = match &mask {
        Some(Value { data: Data::Ints(mask), .. }) if mask.len() == clips * longest => {
            mask.chunks_exact(longest).map(|row| row.iter().filter(|kept| **kept != 0).count()).collect()
        }
        Some(_) => return Err(format!("{prefix}feature_attention_mask does not fit {name}")),
        None => vec![longest; clips],
    };
    let clip = |(i, len): (usize, &usize)| features.get(i)?.narrow(1, 0, *len);
    lens.iter().enumerate().map(clip).collect::<candle_core::Result<_>>().map_err(|e| format!("{name}: {e}"))
}

/// The pictures or videos of a call: patches `[n, width]` and grid of each, taken out of the reference.
pub(super) fn pictures(
    reference: &mut Values,
    patches: &str,
    grids: &str,
) -> Result<Vec<(Tensor, [usize; 3])>, String> {
    let (Some(values), Some(grid)) = (reference.remove(patches), reference.remove(grids)) else {
        return Ok(Vec::new());
    };
    let all = tensor(&values).map_err(|e| format!("{patches}: {e}"))?;
    let sizes = grid.tokens().map_err(|e| format!("{grids} {e}"))?;
    let mut at = 0;
    let mut picture = |sizes: &[u32; 3]| {
        let grid = sizes.map(|size| size as usize);
        let count = grid.iter().product::<usize>();
        at += count;
        Ok((all.narrow(0, at - count, count)?, grid))
    };
    let found = sizes.as_chunks::<3>().0.iter().map(&mut picture).collect::<candle_core::Result<_>>();
    found.map_err(|e| format!("{patches}: {e}"))
}

fn tensor(value: &Value) -> Result<Tensor, String> {
    match &value.data {
        Data::Floats(data) => Tensor::from_slice(data, value.shape.as_slice(), &Device::Cpu).map_err(|e| e.to_string()),
        Data::Ints(_) => Err("has whole numbers: expected floats".into()),
    }
}

fn floats(rows: &Tensor) -> Result<Value, String> {
    Value::floats(rows, 0).map_err(|e| e.to_string())
}
