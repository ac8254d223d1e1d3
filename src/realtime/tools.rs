//! The functions that a session lets the model call.

use crate::refusal::{Refusal, short};
use crate::session::{Abilities, Limits};
use serde_json::{Value, json};
use std::sync::Arc;

/// Most functions.
const MAX_TOOLS: usize = 128;
/// Longest name of a function: OpenAI's.
const MAX_NAME: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// As a client is told of them.
    list: Arc<[Value]>,
    /// As the model reads them.
    described: Arc<[String]>,
    bytes: usize,
    /// `tool_choice: "none"`: the model is told of none.
    unused: bool,
}

impl Tools {
    /// With the fields of a client that are not left out.
    pub fn updated(
        &self,
        tools: Option<&[Value]>,
        choice: Option<&Value>,
        abilities: &Abilities,
        limits: &Limits,
    ) -> Result<Tools, Refusal> {
        let mut new = self.clone();
        if let Some(tools) = tools {
            if !tools.is_empty() && !abilities.calls {
                let message =
                    format!("the chat template of {:?} has no place for tools; leave it out", abilities.model);
                return Err(Refusal::unsupported("tools", message));
            }
            if tools.len() > MAX_TOOLS {
                let message = format!("{} functions are more than the limit of {MAX_TOOLS}", tools.len());
                return Err(Refusal::value("tools", message));
            }
            let read: Vec<(Value, String)> = tools.iter().map(read).collect::<Result<_, _>>()?;
            let chars: usize = read.iter().map(|(_, described)| described.chars().count()).sum();
            if chars > limits.instruction_chars {
                let most = limits.instruction_chars;
                let message = format!("{chars} characters are more than the limit of {most} (limits.max_input_chars)");
                return Err(Refusal::value("tools", message));
            }
            new.bytes = read.iter().map(|(_, described)| 2 * described.len()).sum();
            let (list, described): (Vec<_>, Vec<_>) = read.into_iter().unzip();
            (new.list, new.described) = (list.into(), described.into());
        }
        match choice {
            None => {}
            Some(Value::String(word)) if word == "auto" => new.unused = false,
            Some(Value::String(word)) if word == "none" => new.unused = true,
            Some(Value::Null) => new.unused = false,
            Some(_) => {
                let message = "the model cannot be made to call; send \"auto\" or \"none\"";
                return Err(Refusal::unsupported("tool_choice", message));
            }
        }
        Ok(new)
    }

    /// JSON of each function that the model may call.
    pub fn offered(&self) -> Arc<[String]> {
        if self.unused { [].into() } else { Arc::clone(&self.described) }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `tools` as a client is told.
    pub fn list(&self) -> &[Value] {
        &self.list
    }

    /// `tool_choice` as a client is told.
    pub fn choice(&self) -> &'static str {
        if self.unused { "none" } else { "auto" }
    }
}

/// A function as a client is told of it, and as the model reads it: with its fields in the order in which models were
/// trained on them.
fn read(tool: &Value) -> Result<(Value, String), Refusal> {
    let refuse = |message: String| Refusal::value("tools", message);
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some(other) => return Err(refuse(format!("{:?} tools are not served; send \"function\"", short(other)))),
        None => return Err(refuse("each is an object with the type \"function\"".to_owned())),
    }
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(refuse(format!("a name has 1 to {MAX_NAME} letters, digits, _, - or ., not {:?}", short(name))));
    }
    let description = match tool.get("description") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(_) => return Err(refuse(format!("the description of {name} is no string"))),
    };
    let parameters = match tool.get("parameters") {
        None | Some(Value::Null) => None,
        Some(object @ Value::Object(_)) => Some(object),
        Some(_) => return Err(refuse(format!("the parameters of {name} are no object"))),
    };
    let mut described = format!("{{\"type\": \"function\", \"function\": {{\"name\": {}", json!(name));
    if let Some(description) = description {
        described.push_str(&format!(", \"description\": {}", json!(description)));
    }
    if let Some(parameters) = parameters {
        described.push_str(&format!(", \"parameters\": {parameters}"));
    }
    described.push_str("}}");
    let told = json!({"type": "function", "name": name, "description": description, "parameters": parameters});
    Ok((told, described))
}
