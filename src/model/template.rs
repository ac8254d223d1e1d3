//! Chat templates: the Jinja programs of checkpoints that write a conversation as text.

use crate::LoadError;
use crate::weights::Files;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::collections::BTreeMap;
use std::io::{self, Write};

const FILES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const NAME: &str = "chat_template";
/// Instructions that a template may take: two hundred for each of a hundred thousand messages, and a bound for one that
/// loops.
const FUEL: u64 = 20_000_000;
/// Bytes that a template may write, besides four times what it is given: one byte may be four of a character.
const MAX_OUTPUT: usize = 1 << 20;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and similar names that templates use.
    tokens: Vec<(String, String)>,
}

/// A message as templates see it.
#[derive(Clone, Copy, Debug)]
pub struct TemplateMessage<'a> {
    /// `system`, `user` or `assistant`.
    pub role: &'a str,
    /// The text of the message.
    pub content: &'a str,
}

/// A message of a text or of parts.
#[derive(Clone, Debug)]
pub struct TemplateView(Value);

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub enum TemplatePart<'a> {
    /// Text.
    Text(&'a str),
    /// A medium of this kind: `audio`, `image` or `video`. Templates write its placeholder.
    Medium(&'static str),
}

/// JSON whose fields keep their order, as templates write them.
#[derive(Clone, Debug)]
pub struct Document(Value);

/// A template that failed or refused the conversation.
#[derive(Debug, thiserror::Error)]
#[error("the chat template failed: {0}")]
pub struct TemplateError(String);

impl ChatTemplate {
    /// Reads `chat_template.jinja`, `chat_template.json` or the `chat_template` of `tokenizer_config.json`, whichever
    /// comes first.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when there is none or it does not compile.
    pub fn load(files: &Files) -> Result<ChatTemplate, LoadError> {
        let config = files.read_json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let (file, source) = find(files, &config)?;
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"].into_iter().filter_map(|key| {
            let token = config.get(key)?;
            let text = token.get("content").unwrap_or(token);
            Some((key.to_owned(), text.as_str()?.to_owned()))
        });
        ChatTemplate::compile(source, tokens.collect())
            .map_err(|e| files.invalid(&file, format!("does not compile: {e:#}")))
    }

    fn compile(source: String, tokens: Vec<(String, String)>) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        // As the reference sets Jinja up.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python_method);
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_filter("tojson", python_json);
        environment.set_fuel(Some(FUEL));
        environment.add_template_owned(NAME, source)?;
        Ok(ChatTemplate { environment, tokens })
    }

    /// Whether it has a place for descriptions of tools.
    pub fn knows_tools(&self) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains("tools"))
    }

    /// The conversation as text, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// [`TemplateError`] with the template's message.
    pub fn render(&self, messages: &[TemplateMessage<'_>]) -> Result<String, TemplateError> {
        let given = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        self.render_views(messages.iter().map(|m| TemplateView::text(m.role, m.content)).collect(), Vec::new(), given)
    }

    /// [`ChatTemplate::render`] of messages that may have parts and calls, with descriptions of tools where there are
    /// any; `given` bytes of text together.
    ///
    /// # Errors
    /// [`TemplateError`] with the template's message.
    pub fn render_views(
        &self,
        messages: Vec<TemplateView>,
        tools: Vec<Document>,
        given: usize,
    ) -> Result<String, TemplateError> {
        let messages = messages.into_iter().map(|view| view.0).collect::<Value>();
        let mut values = vec![("messages", messages), ("add_generation_prompt", Value::from(true))];
        if !tools.is_empty() {
            values.push(("tools", tools.into_iter().map(|tool| tool.0).collect()));
        }
        self.render_values(values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(), given)
    }

    /// The text that the template writes of these fields: `messages`, `add_generation_prompt`, and what else templates
    /// read, such as `tools`, together made from `given` bytes of JSON.
    ///
    /// # Errors
    /// [`TemplateError`] with the template's message.
    pub fn render_document(
        &self,
        fields: impl IntoIterator<Item = (String, Document)>,
        given: usize,
    ) -> Result<String, TemplateError> {
        self.render_values(fields.into_iter().map(|(name, document)| (name, document.0)).collect(), given)
    }

    fn render_values(&self, mut context: BTreeMap<String, Value>, given: usize) -> Result<String, TemplateError> {
        let fail = |e: Error| TemplateError(format!("{e:#}"));
        let mut text =
            Text { bytes: Vec::new(), most: given.saturating_mul(4).saturating_add(MAX_OUTPUT), full: false };
        context.extend(self.tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))));
        let template = self.environment.get_template(NAME).map_err(fail)?;
        let rendered = template.render_captured_to(context, &mut text).map(drop).map_err(fail);
        if text.full {
            return Err(TemplateError(format!("it writes more than {} bytes", text.most)));
        }
        rendered?;
        String::from_utf8(text.bytes).map_err(|_| TemplateError("its text is not UTF-8".into()))
    }
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// [`TemplateError`] for text that is no JSON.
    pub fn parse(json: &str) -> Result<Document, TemplateError> {
        serde_json::from_str(json).map(Document).map_err(|e| TemplateError(format!("its document is not JSON: {e}")))
    }

    /// As JSON, in one line.
    ///
    /// # Errors
    /// [`TemplateError`] for what is no JSON, such as a number that is not finite.
    pub fn to_json(&self) -> Result<String, TemplateError> {
        python_json(self.0.clone()).map_err(|e| TemplateError(format!("its document is not JSON: {e}")))
    }

    /// A field of an object.
    pub fn get(&self, key: &str) -> Option<Document> {
        self.0.get_attr(key).ok().filter(|value| !value.is_undefined()).map(Document)
    }

    /// The names of an object's fields, in their order.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.0.try_iter().into_iter().flatten();
        keys.filter_map(|key| key.as_str().map(str::to_owned)).collect()
    }
}

impl TemplateView {
    /// A message of one text.
    pub fn text(role: &str, content: &str) -> TemplateView {
        TemplateView(Value::from_pairs([("role", role), ("content", content)]))
    }

    /// A message of parts.
    pub fn parts<'a>(role: &str, parts: impl IntoIterator<Item = TemplatePart<'a>>) -> TemplateView {
        let part = |part: TemplatePart<'_>| match part {
            TemplatePart::Text(text) => Value::from_pairs([("type", "text"), ("text", text)]),
            TemplatePart::Medium(kind) => Value::from_pairs([("type", kind)]),
        };
        let parts: Value = parts.into_iter().map(part).collect();
        TemplateView(Value::from_pairs([("role", Value::from(role)), ("content", parts)]))
    }

    /// The message with calls of functions: each a name and its arguments, JSON that is written as it is.
    #[must_use]
    pub fn calling<'a>(self, calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> TemplateView {
        let call = |(name, arguments): (&str, &str)| {
            let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
            Value::from_pairs([("type", Value::from("function")), ("function", function)])
        };
        let calls: Vec<Value> = calls.into_iter().map(call).collect();
        let field = |name: &str| self.0.get_attr(name).unwrap_or_default();
        let fields = [("role", field("role")), ("content", field("content")), ("tool_calls", Value::from(calls))];
        TemplateView(Value::from_pairs(fields))
    }
}

/// What a template writes, while it is short enough.
struct Text {
    bytes: Vec<u8>,
    most: usize,
    /// It wanted to write more.
    full: bool,
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            self.full = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn find(files: &Files, config: &serde_json::Value) -> Result<(String, String), LoadError> {
    for name in FILES {
        if name.ends_with(".jinja") {
            if let Some(source) = files.read_text(name)? {
                return Ok((name.into(), source));
            }
        } else if let Some(document) = files.read_json(name)? {
            let Some(source) = template_of(&document) else {
                return Err(files.invalid(name, "has no string \"chat_template\""));
            };
            return Ok((name.into(), source));
        }
    }
    match template_of(config) {
        Some(source) => Ok((TOKENIZER_CONFIG.into(), source)),
        None => Err(files.invalid(
            FILES[1],
            format!("no chat template: neither {}, nor {TOKENIZER_CONFIG} with one, is there", FILES.join(" nor ")),
        )),
    }
}

/// One template, or the one called `default` of several.
fn template_of(document: &serde_json::Value) -> Option<String> {
    let found = document.get("chat_template")?;
    let text = match found.as_array() {
        Some(several) => {
            several.iter().find(|t| t.get("name").is_some_and(|n| n == "default"))?.get("template")?.as_str()
        }
        None => found.as_str(),
    };
    text.map(str::to_owned)
}

/// JSON as Python writes it, with spaces behind `,` and `:`, every character as it is, and fields in their order: models
/// were trained on descriptions of tools in this form.
fn python_json(value: Value) -> Result<String, Error> {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, PythonFormatter);
    let failed = |e: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, e.to_string());
    serde::Serialize::serialize(&value, &mut serializer).map_err(|e| failed(&e))?;
    String::from_utf8(text).map_err(|e| failed(&e))
}

struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The methods of Python's strings and dictionaries that the templates of this family call.
fn python_method(_: &mut State<'_, '_>, this: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let unknown = || Error::new(ErrorKind::UnknownMethod, format!("{method} is not known here"));
    if let Some(text) = this.as_str() {
        return string_method(text, method, args)?.ok_or_else(unknown);
    }
    if this.kind() == ValueKind::Map {
        return match (method, args) {
            ("get", [key]) => Ok(Some(this.get_item(key)?).filter(|v| !v.is_undefined()).unwrap_or(Value::from(()))),
            ("get", [key, other]) => {
                Ok(Some(this.get_item(key)?).filter(|v| !v.is_undefined()).unwrap_or_else(|| other.clone()))
            }
            ("keys", []) => Ok(this.try_iter()?.collect()),
            ("items", []) => {
                let mut items = Vec::new();
                for key in this.try_iter()? {
                    let value = this.get_item(&key)?;
                    items.push(Value::from(vec![key, value]));
                }
                Ok(Value::from(items))
            }
            _ => Err(unknown()),
        };
    }
    Err(unknown())
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let word = |at: usize| -> Result<Option<&str>, Error> {
        let Some(arg) = args.get(at).filter(|a| !a.is_none()) else { return Ok(None) };
        let what = || Error::new(ErrorKind::InvalidOperation, format!("{method} takes strings"));
        arg.as_str().map(Some).ok_or_else(what)
    };
    let needed = |at: usize| {
        word(at)?.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("{method} takes more arguments")))
    };
    let among = |set: Option<&str>| {
        let set: Option<Vec<char>> = set.map(|s| s.chars().collect());
        move |c: char| set.as_ref().map_or(c.is_whitespace(), |s| s.contains(&c))
    };
    Ok(Some(match method {
        "startswith" => Value::from(text.starts_with(needed(0)?)),
        "endswith" => Value::from(text.ends_with(needed(0)?)),
        "strip" => Value::from(text.trim_matches(among(word(0)?))),
        "lstrip" => Value::from(text.trim_start_matches(among(word(0)?))),
        "rstrip" => Value::from(text.trim_end_matches(among(word(0)?))),
        "lower" => Value::from(text.to_lowercase()),
        "upper" => Value::from(text.to_uppercase()),
        "replace" => Value::from(text.replace(needed(0)?, needed(1)?)),
        "split" => match word(0)? {
            Some(separator) => text.split(separator).map(Value::from).collect(),
            None => text.split_whitespace().map(Value::from).collect(),
        },
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, String> {
        let template = ChatTemplate::compile(source.into(), Vec::new()).map_err(|e| format!("{e:#}"))?;
        let messages: Vec<_> = messages.iter().map(|(role, content)| TemplateMessage { role, content }).collect();
        template.render(&messages).map_err(|e| e.to_string())
    }

    #[test]
    fn python_methods_behave_as_in_python() {
        let source = "{%- set m = messages[0] -%}
            {{- m.content.startswith('\\n') }} {{ m.content.strip() }} {{ m.content.strip('\\n ') }}|
            {{- m.content.lstrip('\\n').rstrip('b') }}|{{ m.content.split('a')[-1] }}|{{ m.content.split() | length }}|
            {{- m.content.replace('a', 'A').upper() }}|{{ m.get('role') }}|{{ m.get('x', 'y') }}|{{ m.get('x') is none }}";
        // The output of Jinja2 3.1.6.
        let got = render(source, &[("user", "\na b b\n")]).unwrap();
        assert_eq!(got, "True a b b a b b|a b b\n| b b\n|3|\nA B B\n|user|y|True");
    }

    #[test]
    fn blocks_are_trimmed_and_nothing_is_escaped() {
        let source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }};\n  {% endif %}\n{% endfor %}\nend";
        assert_eq!(render(source, &[("user", "<a> & 'b'")]).unwrap(), "<a> & 'b';\nend");
    }

    #[test]
    fn a_template_can_refuse_a_conversation() {
        let source = "{{ raise_exception('roles must alternate') }}";
        assert!(render(source, &[]).unwrap_err().contains("roles must alternate"));
    }

    #[test]
    fn a_template_that_loops_or_writes_without_end_fails() {
        let loops = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let writes = "{% for a in range(100000) %}{{ messages[0].content }}{{ messages[0].content }}{% endfor %}";
        assert!(render(loops, &[("user", "x")]).unwrap_err().contains("fuel"));
        let long = "x".repeat(1000);
        let error = render(writes, &[("user", &long)]).unwrap_err();
        assert!(error.contains("it writes more than 1052592 bytes"), "{error}");
    }

    #[test]
    fn a_hundred_thousand_messages_are_no_loop() {
        let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.strip() }}\n{% endfor %}";
        let messages = vec![("user", "hello"); 100_000];
        assert!(render(source, &messages).is_ok());
    }

    #[test]
    fn what_does_not_compile_or_does_not_exist_is_told() {
        assert!(render("{% for %}", &[]).is_err());
        assert!(render("{{ 'a'.casefold() }}", &[]).unwrap_err().contains("casefold is not known here"));
    }
}
