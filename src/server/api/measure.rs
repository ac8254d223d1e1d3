//! Measures JSON before a tree is built of it: seven bytes of text can cost hundreds in memory.
//!
//! It does not check the text. What it says is true up to the first mistake, and there the parser stops.

/// What one request or message may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonLimits {
    /// Values and names.
    pub values: usize,
    /// Arrays and objects inside of each other.
    pub depth: usize,
}

/// Which limit a text is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMuch {
    #[error("it has more than {0} values and names (server.max_json_values)")]
    Values(usize),
    #[error("more than {0} arrays and objects are inside of each other (server.max_json_depth)")]
    Depth(usize),
}

/// What a value costs in the array around it, which grows by doubling.
const VALUE: usize = 64;
/// Besides: a string's allocation, and its share of a node of the object that it is a name in.
const STRING: usize = 80;
/// Besides: the first elements of an array.
const ARRAY: usize = 128;
/// Besides: the first node of an object.
const OBJECT: usize = 640;

/// The most bytes that the tree of a text takes.
///
/// # Errors
/// When it is beyond a limit.
pub(crate) fn measure(text: &[u8], limits: JsonLimits) -> Result<usize, TooMuch> {
    let (mut bytes, mut values, mut depth) = (0, 0, 0_usize);
    let mut at = 0;
    // Whether the last byte was one of a number or a word.
    let mut inside = false;
    while let Some(byte) = text.get(at) {
        at += 1;
        let was_inside = std::mem::replace(&mut inside, false);
        bytes += match byte {
            b'"' => {
                let length = string(&text[at..]);
                at += length + 1;
                VALUE + STRING + length
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > limits.depth {
                    return Err(TooMuch::Depth(limits.depth));
                }
                VALUE + if *byte == b'[' { ARRAY } else { OBJECT }
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                continue;
            }
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => continue,
            _ => {
                inside = true;
                if was_inside {
                    continue;
                }
                VALUE
            }
        };
        values += 1;
        if values > limits.values {
            return Err(TooMuch::Values(limits.values));
        }
    }
    Ok(bytes)
}

/// Bytes up to the quote that ends a string, or to the end of the text.
fn string(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = text[at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        if text[at + found] == b'"' {
            return at + found;
        }
        // The byte behind a backslash ends nothing.
        at = (at + found + 2).min(text.len());
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const LIMITS: JsonLimits = JsonLimits { values: 1000, depth: 8 };

    #[test]
    fn limits_are_named() {
        let long = format!("[{}0]", "0,".repeat(999));
        assert_eq!(measure(long.as_bytes(), LIMITS), Err(TooMuch::Values(1000)));
        assert!(measure(&long.as_bytes()[2..], LIMITS).is_ok());
        assert_eq!(measure(&[b'['; 9], LIMITS), Err(TooMuch::Depth(8)));
        assert!(measure("[[]]".repeat(100).as_bytes(), LIMITS).is_ok());
    }

    #[test]
    fn what_stands_in_a_string_is_text() {
        let quoted = r#"{"a": "[[[[[[[[[[\\\"[[[[", "b\\": [1, "\\"]}"#;
        assert!(serde_json::from_str::<Value>(quoted).is_ok());
        assert!(measure(quoted.as_bytes(), LIMITS).is_ok());
        for cut in ["\"", "\"\\", "{\"a\\", ""] {
            assert!(measure(cut.as_bytes(), LIMITS).is_ok(), "{cut}");
        }
    }

    /// Values and names, and the deepest place.
    fn count(value: &Value) -> (usize, usize) {
        let below = |inner: Vec<(usize, usize)>, names: usize| {
            let (values, depths): (Vec<_>, Vec<_>) = inner.into_iter().unzip();
            (1 + names + values.iter().sum::<usize>(), 1 + depths.into_iter().max().unwrap_or(0))
        };
        match value {
            Value::Array(values) => below(values.iter().map(count).collect(), 0),
            Value::Object(map) => below(map.values().map(count).collect(), map.len()),
            _ => (1, 0),
        }
    }

    fn values() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f32>().prop_map(Value::from),
            "[a-z\"\\\\\\[\\]{}:,é ]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec(("[a-z\"\\\\]{0,4}", inner), 0..5)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn a_text_is_within_the_limits_exactly_if_its_tree_is(value in values(), indented: bool) {
            let text = if indented { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let (count, deepest) = count(&value);
            let measure = |values, depth| measure(text.as_bytes(), JsonLimits { values, depth });
            proptest::prop_assert!(measure(count, deepest).is_ok());
            proptest::prop_assert_eq!(measure(count - 1, deepest), Err(TooMuch::Values(count - 1)));
            if deepest > 0 {
                proptest::prop_assert_eq!(measure(usize::MAX, deepest - 1), Err(TooMuch::Depth(deepest - 1)));
            }
        }
    }
}
