//! A case whose requests the reference ran as one batch, cut into one case for each request.
//!
//! The reference pads prompts with zeros on the left, the text behind them with padding embeddings on the right, and
//! lets a sequence that has ended run on until the last one ends. None of that is speech: a part has no padding and
//! ends where its sequence ended, as if the request had been alone.

use super::compare::{Comparison, compare};
use super::manifest::{Kind, Manifest};
use super::value::{Value, Values};
use serde_json::Value as Json;

/// Tensors that the reference keeps apart for each request, as `NAME.INDEX`.
const APART: [&str; 8] =
    ["input_ids", "instruct_ids", "ref_ids", "ref_spk_embedding", "ref_code", "codes", "wav", "frame_hidden"];

/// One request of a case.
pub(super) struct Part {
    pub manifest: Manifest,
    pub reference: Values,
}

/// The requests of a case in their order; a case of one request is its own only part.
pub(super) fn split(manifest: &Manifest, reference: Values) -> Result<Vec<Part>, String> {
    let requests = (0..).take_while(|index| reference.contains_key(&format!("input_ids.{index}"))).count();
    if manifest.kind != Kind::TtsGenerate || requests == 0 {
        return Ok(vec![Part { manifest: manifest.clone(), reference }]);
    }
    let part = |index| {
        let cuts = Cuts::of(manifest, &reference, index, requests)?;
        let mut values = Values::new();
        for (name, value) in &reference {
            if let Some((name, value)) = cuts.apply(name, value).map_err(|reason| format!("{name}: {reason}"))? {
                values.insert(name.to_owned(), value);
            }
        }
        if let Some(pad) = values.get("talker.tts_pad_embed").cloned()
            && let Some(trailing) = values.get_mut("talker.trailing_text_hidden")
        {
            trim(trailing, &pad)?;
        }
        Ok(Part { manifest: only(manifest, index, requests)?, reference: values })
    };
    (0..requests).map(part).collect()
}

/// What a comparison of all parts found, where each part has the reference's values and the computed ones. With several
/// parts, the names of tensors end with the number of their request.
pub(super) fn compare_all(parts: &[(Values, Values)]) -> Comparison {
    let mut all = Comparison::default();
    for (index, (reference, computed)) in parts.iter().enumerate() {
        let mut found = compare(reference, computed);
        if parts.len() > 1 {
            found.name_request(index);
        }
        all.absorb(found);
    }
    all
}

/// Which part of a batch belongs to one request.
struct Cuts {
    index: usize,
    requests: usize,
    /// Positions of the prompt without padding.
    prompt: usize,
    /// Codes 0, the last of which has no frame.
    steps: usize,
    /// Frames that the reference kept of this request: it drops those behind the checkpoint's own end token, and keeps
    /// those behind another that the case ends with.
    frames: usize,
}

impl Cuts {
    fn of(manifest: &Manifest, reference: &Values, index: usize, requests: usize) -> Result<Cuts, String> {
        let sequence = |name: &str| -> Result<Vec<u32>, String> {
            let value = reference.get(name).ok_or_else(|| format!("the tensor {name} is missing"))?;
            if value.shape.len() != 2 || value.shape[0] != requests {
                return Err(format!("{name} has shape {:?}: expected [{requests}, time]", value.shape));
            }
            value.narrow(0, index, 1)?.tokens().map_err(|e| format!("{name}: {e}"))
        };
        let mask = sequence("talker.prefill.attention_mask")?;
        let codes = sequence("talker.codec0_sequence")?;
        let ends = manifest.wholes("eos")?;
        let end = codes.iter().position(|code| ends.contains(code));
        Ok(Cuts {
            index,
            requests,
            prompt: mask.iter().filter(|real| **real > 0).count(),
            steps: end.map_or(codes.len(), |end| end + 1),
            frames: reference.get(&format!("codes.{index}")).map_or(0, |codes| codes.shape[0]),
        })
    }

    /// This request's part of a tensor with its name; `None` for another request's tensor and for an empty part.
    fn apply<'a>(&self, name: &'a str, value: &Value) -> Result<Option<(&'a str, Value)>, String> {
        let frames = self.steps.saturating_sub(1);
        if let Some((base, number)) = name.rsplit_once('.').filter(|(base, _)| APART.contains(base)) {
            if number != self.index.to_string() {
                return Ok(None);
            }
            let time = value.shape.first().copied().unwrap_or(0);
            let kept = match base {
                "codes" | "frame_hidden" => time.min(frames),
                "wav" if frames < self.frames => time * frames / self.frames,
                _ => time,
            };
            return Ok(if kept == 0 { None } else { Some((base, value.narrow(0, 0, kept)?)) });
        }
        if name == "talker.tts_pad_embed" {
            return Ok(Some((name, value.clone())));
        }
        // Positions have axes before the batch.
        let batch = usize::from(name == "talker.prefill.position_ids");
        if value.shape.get(batch) != Some(&self.requests) || value.shape.len() < batch + 2 {
            return Err(format!("has shape {:?}: expected a batch of {}", value.shape, self.requests));
        }
        let own = value.narrow(batch, self.index, 1)?;
        let (time, length) = (batch + 1, own.shape[batch + 1]);
        let (from, kept) = match name {
            _ if name.starts_with("talker.prefill.") => (length.saturating_sub(self.prompt), self.prompt),
            "talker.codec0_sequence" | "talker.step_last_hidden" | "talker.step_logits" => (0, self.steps),
            _ if name.starts_with("talker.step_") || name.starts_with("code_predictor.") => (0, frames),
            _ => (0, length),
        };
        Ok(if kept == 0 { None } else { Some((name, own.narrow(time, from, kept)?)) })
    }
}

/// Removes padding from the end of `[1, time, width]`, except a first vector: a text without trailing tokens has one of
/// padding.
fn trim(trailing: &mut Value, pad: &Value) -> Result<(), String> {
    while trailing.shape.get(1).is_some_and(|time| *time > 1) {
        let last = trailing.shape[1] - 1;
        if trailing.narrow(1, last, 1)?.data != pad.data {
            break;
        }
        *trailing = trailing.narrow(1, 0, last)?;
    }
    Ok(())
}

/// The manifest of one request: lists in `meta` that have an entry for each request become that entry.
fn only(manifest: &Manifest, index: usize, requests: usize) -> Result<Manifest, String> {
    let mut part = Manifest { tensors: Vec::new(), ..manifest.clone() };
    for key in ["text", "ref_text", "instruct", "languages", "speakers"] {
        let Some(Json::Array(list)) = manifest.meta.get(key) else { continue };
        if list.len() != requests {
            return Err(format!("meta.{key} has {} entries for {requests} requests", list.len()));
        }
        let entry = list[index].clone();
        match key {
            "languages" | "speakers" => drop(part.meta.insert(key.into(), Json::Array(vec![entry]))),
            _ if entry.is_null() => drop(part.meta.remove(key)),
            _ => drop(part.meta.insert(key.into(), entry)),
        }
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::super::value::Data;
    use super::*;

    fn manifest() -> Manifest {
        let meta =
            serde_json::json!({"eos": 9, "text": ["a", "b"], "speakers": ["x", null], "ref_text": ["said", null]});
        Manifest {
            name: "batch".into(),
            kind: Kind::TtsGenerate,
            checkpoint: ".".into(),
            overrides: serde_json::Map::new(),
            tensors: vec!["codes.0".into()],
            meta: meta.as_object().cloned().unwrap_or_default(),
        }
    }

    fn floats(shape: [usize; 3], data: &[f32]) -> Value {
        Value { shape: shape.into(), data: Data::Floats(data.to_vec()) }
    }

    /// Two requests: the first has a prompt of 1 and ends after 1 frame, the second has one of 2 and never ends.
    fn reference() -> Values {
        let ints = |shape: &[usize], data: &[u32]| Value::ints(shape, data.iter().copied());
        Values::from(
            [
                ("input_ids.0", ints(&[1, 1], &[1])),
                ("input_ids.1", ints(&[1, 1], &[2])),
                ("codes.0", ints(&[2, 2], &[5, 6, 9, 9])),
                ("codes.1", ints(&[2, 2], &[7, 8, 7, 8])),
                ("wav.0", ints(&[4], &[1, 2, 3, 4])),
                ("wav.1", ints(&[4], &[5, 6, 7, 8])),
                ("talker.prefill.attention_mask", ints(&[2, 2], &[0, 1, 1, 1])),
                ("talker.prefill.position_ids", ints(&[2, 2, 2], &[1, 0, 0, 1, 1, 0, 0, 1])),
                ("talker.prefill.hidden.1", floats([2, 2, 1], &[0.0, 1.0, 2.0, 3.0])),
                ("talker.codec0_sequence", ints(&[2, 3], &[5, 9, 9, 7, 7, 7])),
                ("talker.step_inputs_embeds", floats([2, 2, 1], &[1.0, 2.0, 3.0, 4.0])),
                ("talker.trailing_text_hidden", floats([2, 3, 1], &[1.0, 0.5, 0.5, 1.0, 2.0, 3.0])),
                ("talker.tts_pad_embed", floats([1, 1, 1], &[0.5])),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    }

    #[test]
    fn a_part_has_neither_padding_nor_what_comes_behind_its_end() {
        let parts = split(&manifest(), reference()).unwrap();
        assert_eq!(parts.len(), 2);
        let first = &parts[0].reference;
        assert_eq!(first["codes"], Value::ints([1, 2], [5, 6]));
        assert_eq!(first["wav"], Value::ints([2], [1, 2]));
        assert_eq!(first["talker.codec0_sequence"], Value::ints([1, 2], [5, 9]));
        assert_eq!(first["talker.prefill.hidden.1"], floats([1, 1, 1], &[1.0]));
        assert_eq!(first["talker.prefill.position_ids"], Value::ints([2, 1, 1], [0, 0]));
        assert_eq!(first["talker.step_inputs_embeds"], floats([1, 1, 1], &[1.0]));
        assert_eq!(first["talker.trailing_text_hidden"], floats([1, 1, 1], &[1.0]));
        let second = &parts[1].reference;
        assert_eq!(second["codes"].shape, [2, 2]);
        assert_eq!(second["wav"], Value::ints([4], [5, 6, 7, 8]));
        assert_eq!(second["talker.prefill.position_ids"], Value::ints([2, 1, 2], [0, 1, 0, 1]));
        assert_eq!(second["talker.trailing_text_hidden"].shape, [1, 3, 1]);
    }

    #[test]
    fn a_part_has_its_entry_of_every_list() {
        let parts = split(&manifest(), reference()).unwrap();
        assert_eq!((parts[0].manifest.text("text"), parts[1].manifest.text("text")), (Ok("a"), Ok("b")));
        assert_eq!(parts[0].manifest.only("speakers"), Ok(Some("x")));
        assert_eq!(parts[1].manifest.only("speakers"), Ok(None));
        assert_eq!(parts[0].manifest.text("ref_text"), Ok("said"));
        assert!(parts[1].manifest.text("ref_text").is_err());
        let mut short = manifest();
        short.meta.insert("text".into(), serde_json::json!(["a"]));
        assert_eq!(split(&short, reference()).err().unwrap(), "meta.text has 1 entries for 2 requests");
    }
}
