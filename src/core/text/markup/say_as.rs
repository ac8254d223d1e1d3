//! `say-as`: what a text is, written so that a voice says it. Languages differ in words, not in digits and letters, so
//! nothing here becomes a word.

/// What `interpret-as` may be.
pub(super) const KINDS: &str = "characters (or spell-out, verbatim), digits, telephone, cardinal, ordinal";

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Letter by letter.
    Characters,
    /// Digit by digit.
    Digits,
    /// Digit by digit, with a short rest between groups.
    Telephone,
    /// A number.
    Cardinal,
    /// A place in an order.
    Ordinal,
}

impl Kind {
    pub fn parse(name: &str) -> Option<Kind> {
        Some(match name {
            "characters" | "spell-out" | "verbatim" => Kind::Characters,
            "digits" => Kind::Digits,
            "telephone" => Kind::Telephone,
            "cardinal" | "number" => Kind::Cardinal,
            "ordinal" => Kind::Ordinal,
            _ => return None,
        })
    }

    /// `text`, which has white space at neither end, as it is said; or what it must be.
    pub fn say(self, text: &str) -> Result<String, &'static str> {
        let digits = |text: &str| !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
        match self {
            Kind::Characters => Ok(apart(text.chars().filter(|c| !c.is_whitespace()))),
            Kind::Digits => {
                let plain = text.chars().all(|c| c.is_ascii_digit() || c.is_whitespace());
                plain.then(|| apart(text.chars().filter(char::is_ascii_digit))).ok_or("digits")
            }
            Kind::Telephone => {
                let known = |c: char| c.is_ascii_digit() || c.is_whitespace() || "+-.()/".contains(c);
                if !text.chars().all(known) || !text.contains(|c: char| c.is_ascii_digit()) {
                    return Err("digits, and between them spaces, -, ., /, ( and ), perhaps with a + in front");
                }
                let groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
                let groups: Vec<String> = groups.map(|group| apart(group.chars())).collect();
                let plus = if text.starts_with('+') { "+ " } else { "" };
                Ok(format!("{plus}{}", groups.join(", ")))
            }
            Kind::Cardinal => {
                let (sign, number) = text.strip_prefix('-').map_or(("", text), |number| ("-", number));
                let number = number.replace([',', ' '], "");
                if digits(&number) { Ok(format!("{sign}{}", grouped(&number))) } else { Err("a whole number") }
            }
            Kind::Ordinal if digits(text) => Ok(format!("{text}{}", ending(text))),
            Kind::Ordinal => Err("a whole number"),
        }
    }
}

/// Characters with spaces between them.
fn apart(chars: impl Iterator<Item = char>) -> String {
    let mut out = String::new();
    for c in chars {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(c.to_uppercase());
    }
    out
}

/// In groups of three: four digits without a comma may be a year.
fn grouped(number: &str) -> String {
    let digits = number.len();
    let comma = |at: usize| at > 0 && (digits - at).is_multiple_of(3);
    number.chars().enumerate().flat_map(|(at, c)| comma(at).then_some(',').into_iter().chain([c])).collect()
}

/// Of an English ordinal in digits, which other languages' models read too.
fn ending(number: &str) -> &'static str {
    let teen = number.len() > 1 && number.as_bytes()[number.len() - 2] == b'1';
    match number.as_bytes().last() {
        Some(b'1') if !teen => "st",
        Some(b'2') if !teen => "nd",
        Some(b'3') if !teen => "rd",
        _ => "th",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_it_is_said() {
        for (kind, text, said) in [
            ("characters", "gif 5ß", "G I F 5 SS"),
            ("spell-out", "a-b", "A - B"),
            ("digits", "007", "0 0 7"),
            ("telephone", "+1 (212) 555-0100", "+ 1, 2 1 2, 5 5 5, 0 1 0 0"),
            ("cardinal", "1984", "1,984"),
            ("cardinal", "-1,250,000", "-1,250,000"),
            ("cardinal", "42", "42"),
            ("ordinal", "1", "1st"),
            ("ordinal", "12", "12th"),
            ("ordinal", "23", "23rd"),
        ] {
            assert_eq!(Kind::parse(kind).unwrap().say(text).as_deref(), Ok(said), "{kind} {text}");
        }
        for (kind, text) in [("digits", "a1"), ("telephone", "home"), ("cardinal", "1.5"), ("ordinal", "first")] {
            assert!(Kind::parse(kind).unwrap().say(text).is_err(), "{kind} {text}");
        }
        assert_eq!(Kind::parse("date"), None);
    }
}
