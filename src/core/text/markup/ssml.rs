//! A subset of SSML 1.1: `speak`, `p`, `s`, `break`, `say-as`, `sub`, `voice`, and `prosody` with a rate. What a voice
//! here cannot do is an error, so that nothing is left out in silence.
//!
//! The parser pulls one event after another: depth and elements are counted before anything is kept, document types are
//! refused, and of entities there are only the five of XML.

use super::limits::{Limits, MAX_DEPTH, cut, rate};
use super::place::{Place, Places};
use super::say_as::{KINDS, Kind};
use super::{Mark, MarkupError};
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::time::Duration;

const KNOWN: &str = "speak, p, s, break, say-as, sub, voice, prosody";
const SPEAK: &[&str] = &["version", "xmlns", "xml:lang", "xmlns:xsi", "xsi:schemaLocation"];
const NO_PHONEMES: &str = "no voice of this server takes phonemes; write <sub alias=\"...\">, or give the request \
                           pronunciations";
const STRENGTHS: &str = "none, x-weak, weak, medium, strong, x-strong";

/// An element that is open.
enum Open {
    Speak,
    Paragraph,
    Sentence,
    Break,
    /// With the rate around it.
    Prosody(f32),
    /// With the voice around it.
    Voice(Option<String>),
    /// With what is said instead of its content.
    Sub(String),
    /// With its content so far.
    SayAs(Kind, String),
}

impl Open {
    fn name(&self) -> &'static str {
        match self {
            Open::Speak => "speak",
            Open::Paragraph => "p",
            Open::Sentence => "s",
            Open::Break => "break",
            Open::Prosody(_) => "prosody",
            Open::Voice(_) => "voice",
            Open::Sub(_) => "sub",
            Open::SayAs(..) => "say-as",
        }
    }
}

/// Reads one document.
pub(super) struct Ssml {
    limits: Limits,
    open: Vec<Open>,
    marks: Vec<Mark>,
    /// The words before the next mark.
    text: String,
    voice: Option<String>,
    rate: f32,
    /// Whether the one `speak` is over.
    over: bool,
}

impl Ssml {
    pub fn read(text: &str) -> Result<Vec<Mark>, MarkupError> {
        let mut parser = Reader::from_str(text);
        parser.config_mut().expand_empty_elements = true;
        let mut places = Places::of(text);
        let mut ssml = Ssml {
            limits: Limits::default(),
            open: Vec::new(),
            marks: Vec::new(),
            text: String::new(),
            voice: None,
            rate: 1.0,
            over: false,
        };
        loop {
            let place = places.at(parser.buffer_position());
            let at = |place: Place| move |message: String| MarkupError { place, message };
            let event = match parser.read_event() {
                Ok(event) => event,
                // An element that is not closed is noticed at the end of the text.
                Err(error) => {
                    let place = places.at(parser.error_position());
                    return Err(at(place)(format!("this is not XML: {}", cut_long(&error.to_string()))));
                }
            };
            if let Event::Eof = event {
                return ssml.finish().map_err(at(place));
            }
            ssml.take(event, place).map_err(at(place))?;
        }
    }

    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), String> {
        match event {
            Event::Start(element) | Event::Empty(element) => self.begin(&element, place),
            Event::End(_) => self.end(place),
            Event::Text(text) => self.words(&text.xml10_content()),
            Event::CData(text) => self.words(&text.xml10_content()),
            Event::GeneralRef(reference) => self.words(&resolved(&reference)?),
            Event::Comment(_) | Event::Decl(_) | Event::Eof => Ok(()),
            Event::DocType(_) => Err("a document type is not allowed".to_owned()),
            Event::PI(_) => Err("a processing instruction is not allowed".to_owned()),
        }
    }

    fn begin(&mut self, element: &BytesStart<'_>, place: Place) -> Result<(), String> {
        self.limits.tag()?;
        if self.open.len() == MAX_DEPTH {
            return Err(format!("elements may be {MAX_DEPTH} deep inside of each other"));
        }
        let name = element.name().into_inner();
        if self.open.is_empty() {
            if name != "speak" || self.over {
                return Err(format!("SSML is one <speak> element; found <{}>", cut(name)));
            }
            attributes(element, SPEAK)?;
            self.open.push(Open::Speak);
            return Ok(());
        }
        if let Some(open @ (Open::Break | Open::Sub(_) | Open::SayAs(..))) = self.open.last() {
            return Err(format!("<{}> has no elements inside; found <{}>", open.name(), cut(name)));
        }
        let open = match name {
            "p" => {
                attributes(element, &[])?;
                self.paragraph();
                Open::Paragraph
            }
            "s" => {
                attributes(element, &[])?;
                self.sentence();
                Open::Sentence
            }
            "break" => {
                let [time, strength] = of(element, ["time", "strength"])?;
                let pause = match (time, strength.as_deref()) {
                    (Some(time), _) => self.limits.pause(&time)?,
                    (None, strength) => self.limits.rests(rest(strength.unwrap_or("medium"))?)?,
                };
                if pause > Duration::ZERO {
                    self.mark(Mark::Pause(pause));
                }
                Open::Break
            }
            "prosody" => {
                let [speed] = of(element, ["rate"])?;
                let speed = rate(&speed.ok_or("<prosody> needs a rate, such as rate=\"80%\"")?)?;
                let around = std::mem::replace(&mut self.rate, speed);
                self.mark(Mark::Rate(speed));
                Open::Prosody(around)
            }
            "voice" => {
                let [name] = of(element, ["name"])?;
                let name = name.ok_or("<voice> needs a name")?.trim().to_owned();
                self.limits.voice(&name)?;
                let around = self.voice.replace(name);
                self.mark(Mark::Voice { name: self.voice.clone(), place });
                Open::Voice(around)
            }
            "sub" => {
                let [alias] = of(element, ["alias"])?;
                let alias = alias.filter(|alias| !alias.trim().is_empty());
                Open::Sub(alias.ok_or("<sub> needs an alias: what is said instead of its content")?)
            }
            "say-as" => {
                let [kind] = of(element, ["interpret-as"])?;
                let told = || format!("<say-as> needs interpret-as, one of {KINDS}");
                Open::SayAs(kind.as_deref().and_then(Kind::parse).ok_or_else(told)?, String::new())
            }
            "phoneme" => return Err(NO_PHONEMES.to_owned()),
            other => return Err(format!("<{}> is not supported; known are {KNOWN}", cut(other))),
        };
        self.open.push(open);
        Ok(())
    }

    /// The parser has seen that the names match.
    fn end(&mut self, place: Place) -> Result<(), String> {
        match self.open.pop() {
            None => return Err("an end tag without its element".to_owned()),
            Some(Open::Speak) => self.over = true,
            Some(Open::Paragraph) => self.paragraph(),
            Some(Open::Sentence) => self.sentence(),
            Some(Open::Break) => {}
            Some(Open::Prosody(around)) => {
                self.rate = around;
                self.mark(Mark::Rate(around));
            }
            Some(Open::Voice(around)) => {
                self.voice.clone_from(&around);
                self.mark(Mark::Voice { name: around, place });
            }
            Some(Open::Sub(alias)) => self.mark(Mark::Literal(alias)),
            Some(Open::SayAs(kind, content)) => {
                let content = content.trim();
                let told = |must| format!("{:?} cannot be said like that; it must be {must}", cut(content));
                let said = kind.say(content).map_err(told)?;
                self.mark(Mark::Literal(said));
            }
        }
        Ok(())
    }

    /// White space of XML means nothing but that words end.
    fn words(&mut self, text: &str) -> Result<(), String> {
        let blank = text.chars().all(char::is_whitespace);
        match self.open.last_mut() {
            None if blank => Ok(()),
            None => Err("SSML is one <speak> element; found text outside of it".to_owned()),
            Some(Open::Break) if !blank => Err("<break> has no text inside".to_owned()),
            Some(Open::Break | Open::Sub(_)) => Ok(()),
            Some(Open::SayAs(_, content)) => {
                content.push_str(text);
                Ok(())
            }
            Some(_) => {
                self.text.extend(text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }));
                Ok(())
            }
        }
    }

    fn mark(&mut self, mark: Mark) {
        if !self.text.is_empty() {
            self.marks.push(Mark::Text(std::mem::take(&mut self.text)));
        }
        self.marks.push(mark);
    }

    /// A paragraph begins or ends here.
    fn paragraph(&mut self) {
        self.text.push_str("\n\n");
    }

    /// A sentence begins or ends here: a border where no mark says so.
    fn sentence(&mut self) {
        let border = self.text.ends_with('\n');
        match self.text.trim_end().chars().last().filter(|_| !border) {
            None => {}
            Some('.' | '!' | '?' | '…' | '。' | '！' | '？' | '"' | '”' | '»') => self.text.push(' '),
            Some(_) => self.text.push_str("\n\n"),
        }
    }

    fn finish(mut self) -> Result<Vec<Mark>, String> {
        if let Some(open) = self.open.last() {
            return Err(format!("<{}> is not closed", open.name()));
        }
        if !self.over {
            return Err("SSML is one <speak> element, which is missing".to_owned());
        }
        if !self.text.is_empty() {
            self.marks.push(Mark::Text(self.text));
        }
        Ok(self.marks)
    }
}

/// The pause of a break without a time.
fn rest(strength: &str) -> Result<Duration, String> {
    let milliseconds = match strength {
        "none" => 0,
        "x-weak" => 250,
        "weak" => 500,
        "medium" => 750,
        "strong" => 1000,
        "x-strong" => 1250,
        other => return Err(format!("the strength {:?} is unknown; choose one of {STRENGTHS}", cut(other))),
    };
    Ok(Duration::from_millis(milliseconds))
}

/// The character of a reference: one of XML's five, or a number.
fn resolved(reference: &BytesRef<'_>) -> Result<String, String> {
    let wrong = || format!("&{}; is unknown; known are &amp; &lt; &gt; &quot; &apos; and numbers", cut(reference));
    let c = match reference.as_ref() {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => reference.resolve_char_ref().ok().flatten().ok_or_else(wrong)?,
    };
    Ok(c.to_string())
}

/// The values of an element's attributes; others are an error.
fn of<const N: usize>(element: &BytesStart<'_>, known: [&str; N]) -> Result<[Option<String>; N], String> {
    let mut values = [const { None }; N];
    for (at, value) in attributes(element, &known)? {
        values[at] = Some(value);
    }
    Ok(values)
}

/// The attributes of an element: which of `known`, and its value.
fn attributes(element: &BytesStart<'_>, known: &[&str]) -> Result<Vec<(usize, String)>, String> {
    let mut found = Vec::new();
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|error| cut_long(&error.to_string()))?;
        let (name, element) = (attribute.key.into_inner(), element.name().into_inner());
        let Some(at) = known.iter().position(|known| *known == name) else {
            let allowed = if known.is_empty() { "no attributes".to_owned() } else { known.join(", ") };
            return Err(format!("<{element}> has no {:?} here; it takes {allowed}", cut(name)));
        };
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        found.push((at, value.map_err(|error| cut_long(&error.to_string()))?.into_owned()));
    }
    Ok(found)
}

/// What the parser says, which repeats what it has read.
fn cut_long(message: &str) -> String {
    message.chars().take(160).collect()
}

#[cfg(test)]
#[path = "ssml_tests.rs"]
mod tests;
