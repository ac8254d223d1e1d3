//! Why an event of a client was not followed: the `error` event of the protocol. The session goes on.

use std::fmt::Display;

/// What a client is told of an event that was not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the server is at fault, not the client.
    pub internal: bool,
    /// For programs.
    pub code: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
}

impl Refusal {
    /// The client's mistake.
    pub fn new(code: impl Into<String>, param: impl Into<Option<&'static str>>, message: impl Display) -> Refusal {
        let param = param.into().map(str::to_owned);
        Refusal { internal: false, code: code.into(), message: message.to_string(), param }
    }

    /// A field with a value that is not allowed.
    pub(crate) fn value(param: &'static str, message: impl Display) -> Refusal {
        Refusal::new("invalid_value", param, format!("{param}: {message}"))
    }

    /// A field that has to be there.
    pub(crate) fn missing(param: &'static str) -> Refusal {
        Refusal::new("missing_required_parameter", param, format!("{param} is missing"))
    }

    /// What this server or model does not do.
    pub(crate) fn unsupported(param: &'static str, message: impl Display) -> Refusal {
        Refusal::new("unsupported_parameter", param, format!("{param}: {message}"))
    }
}

/// The first characters of what a client sent, to repeat it in a message.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 64;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}
