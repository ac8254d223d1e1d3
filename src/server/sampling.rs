//! The sampling fields that every route shares.

use super::error::ApiError;
use super::fields::Fields;
use omni_engine::SamplingOverrides;

/// Their names.
pub(super) const FIELDS: [&str; 7] =
    ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"];

/// Reads them. Absent ones stay `None`: the model's own values apply.
pub(super) fn overrides(fields: &Fields<'_>) -> Result<SamplingOverrides, ApiError> {
    let top_p = fields.float("top_p", 0.0..=1.0)?;
    if top_p == Some(0.0) {
        return Err(fields.invalid("top_p", "0 would keep no token; for the most likely one set temperature to 0"));
    }
    // -1 is what other servers call "all".
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?;
    Ok(SamplingOverrides {
        temperature: fields.float("temperature", 0.0..=2.0)?,
        top_k: top_k.map(|k| u32::try_from(k).unwrap_or(0)),
        top_p,
        min_p: fields.float("min_p", 0.0..=1.0)?,
        repetition_penalty: fields.float("repetition_penalty", 0.1..=10.0)?,
        frequency_penalty: fields.float("frequency_penalty", -2.0..=2.0)?,
        presence_penalty: fields.float("presence_penalty", -2.0..=2.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn minus_one_keeps_all() {
        let body = json!({"top_k": -1, "temperature": 0});
        let overrides = overrides(&Fields::top(body.as_object().unwrap())).unwrap();
        assert_eq!((overrides.top_k, overrides.temperature), (Some(0), Some(0.0)));
    }

    #[test]
    fn top_p_zero_is_refused() {
        let body = json!({"top_p": 0});
        assert!(overrides(&Fields::top(body.as_object().unwrap())).unwrap_err().message.contains("temperature"));
    }
}
