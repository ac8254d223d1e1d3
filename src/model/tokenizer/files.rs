//! Builds a tokenizer from the files of a checkpoint.

use super::bytes::{TokenBytes, alphabet};
use super::{AddedToken, Tokenizer};
use crate::LoadError;
use crate::weights::Files;
use serde_json::{Map, Value, json};

const TOKENIZER: &str = "tokenizer.json";
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const CONFIG: &str = "tokenizer_config.json";

/// How the Qwen models cut text into words before merging bytes. It is part of `tokenizer.json`, and of the class of
/// the reference when there is only a vocabulary.
const SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(super) fn load(files: &Files) -> Result<Tokenizer, LoadError> {
    let (name, mut document) = match files.read_json(TOKENIZER)? {
        Some(document) => (TOKENIZER, document),
        None => (VOCAB, from_vocabulary(files)?),
    };
    let Some(fields) = document.as_object_mut() else { return Err(files.invalid(name, "is not a JSON object")) };
    if fields.get("model").and_then(|m| m.get("type")).and_then(Value::as_str).is_some_and(|kind| kind != "BPE") {
        return Err(files.invalid(name, "holds another model than BPE, which is all that is served"));
    }
    if fields.get("decoder").and_then(|d| d.get("type")).and_then(Value::as_str) != Some("ByteLevel") {
        return Err(files.invalid(name, "has no ByteLevel decoder: only byte-level vocabularies are served"));
    }
    let added = fields.insert("added_tokens".into(), json!([])).unwrap_or_default();
    let mut added = read_added(&added).map_err(|reason| files.invalid(name, reason))?;
    if name == TOKENIZER {
        // The reference lets this file add to the other.
        merge_added(&mut added, config_added(files)?);
    }
    // It would only add tokens that chat prompts spell out.
    fields.insert("post_processor".into(), Value::Null);
    let bytes = serde_json::to_vec(&document).map_err(|e| files.invalid(name, e.to_string()))?;
    let plain = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| files.invalid(name, e.to_string()))?;
    drop(document);

    let vocabulary = plain.get_vocab(false);
    if let Some(byte) = alphabet().iter().position(|c| !vocabulary.contains_key(&c.to_string())) {
        return Err(files.invalid(name, format!("has no token for byte {byte:#04x}")));
    }
    let words = vocabulary.iter().map(|(word, id)| (word.as_str(), *id));
    let limit = 1 << 24;
    if let Some((word, id)) =
        words.clone().chain(added.iter().map(|t| (t.content.as_str(), t.id))).find(|w| w.1 > limit)
    {
        return Err(files.invalid(name, format!("gives {word:?} the id {id}: expected at most {limit}")));
    }
    let bytes = TokenBytes::new(words, added.iter().map(|t| (t.content.as_str(), t.id)));
    added.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then_with(|| a.content.cmp(&b.content)));
    Ok(Tokenizer { plain, added, bytes })
}

/// The document that `tokenizer.json` would be.
fn from_vocabulary(files: &Files) -> Result<Value, LoadError> {
    let Some(vocab) = files.read_json(VOCAB)? else {
        let reason = format!("no tokenizer: neither {TOKENIZER} nor {VOCAB} with {MERGES} is there");
        return Err(files.invalid(TOKENIZER, reason));
    };
    let Some(merges) = files.read_text(MERGES)? else {
        return Err(files.invalid(MERGES, format!("does not exist, but belongs to {VOCAB}")));
    };
    // A "#version" line may head the file; "#" may also be a token, but never a first line without the word.
    let lines = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let mut pairs = Vec::new();
    for line in lines {
        match line.split_once(' ') {
            Some((a, b)) => pairs.push(json!([a, b])),
            None => return Err(files.invalid(MERGES, format!("has the line {line:?}: expected two tokens"))),
        }
    }
    let added: Vec<Value> = config_added(files)?
        .into_iter()
        .map(|t| json!({"content": t.content, "id": t.id, "special": t.special}))
        .collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": pairs},
    }))
}

/// `added_tokens` of `tokenizer.json`.
fn read_added(list: &Value) -> Result<Vec<AddedToken>, String> {
    let empty = Vec::new();
    let list = list.as_array().unwrap_or(&empty);
    list.iter().map(|entry| read_token(entry.get("id").and_then(Value::as_u64), entry)).collect()
}

/// `added_tokens_decoder` of `tokenizer_config.json`.
fn config_added(files: &Files) -> Result<Vec<AddedToken>, LoadError> {
    let Some(config) = files.read_json(CONFIG)? else { return Ok(Vec::new()) };
    let none = Map::new();
    let map = config.get("added_tokens_decoder").and_then(Value::as_object).unwrap_or(&none);
    let tokens: Result<_, String> = map.iter().map(|(id, entry)| read_token(id.parse().ok(), entry)).collect();
    tokens.map_err(|reason| files.invalid(CONFIG, reason))
}

fn read_token(id: Option<u64>, entry: &Value) -> Result<AddedToken, String> {
    let content = entry.get("content").and_then(Value::as_str).filter(|c| !c.is_empty());
    match (id.and_then(|id| u32::try_from(id).ok()), content) {
        (Some(id), Some(content)) => {
            let special = entry.get("special").and_then(Value::as_bool).unwrap_or(false);
            Ok(AddedToken { content: content.to_owned(), id, special })
        }
        _ => Err(format!("has an added token without an id or a content: {entry}")),
    }
}

fn merge_added(added: &mut Vec<AddedToken>, more: Vec<AddedToken>) {
    for token in more {
        if added.iter().all(|t| t.id != token.id && t.content != token.content) {
            added.push(token);
        }
    }
}
