//! The normalizer spells out in English words what a small voice cannot read: digits, signs, dates, times, money and
//! abbreviations.
//!
//! A model of the size of the embedded voice has seen too few digits to know that `1,250` is "one thousand two hundred
//! and fifty". Text that holds nothing of the kind comes back unchanged, so the words of a plain sentence are never
//! touched. The rules look at one word and its neighbours; where English is ambiguous they take the commoner reading
//! (`1984` is a year, `St.` before a capital letter is "Saint").

mod numbers;
mod words;

use numbers::{cardinal, decimal, digits, grouped, ordinal_word, year};

/// `text` with numbers, signs and abbreviations spelled out.
pub fn spell_out(text: &str) -> String {
    let plain = |c: char| c.is_alphabetic() || " ,;:!?'’-\n".contains(c);
    if text.chars().all(|c| plain(c) || c == '.') && !words::may_hold_abbreviation(text) {
        return text.to_owned();
    }
    let tokens = tokens(text);
    let mut out = String::with_capacity(text.len() * 2);
    for token in &tokens {
        let core = token.spoken.as_deref().unwrap_or(&token.core);
        if core.is_empty() && token.head.is_empty() && token.tail.is_empty() {
            continue;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&token.head);
        out.push_str(core);
        out.push_str(&token.tail);
    }
    out
}

/// The words of `text` between white space, each as it is written and as [`spell_out`] has it.
pub fn spoken_words(text: &str) -> Vec<(String, String)> {
    let said = |token: &Token| {
        [&token.head, token.spoken.as_ref().unwrap_or(&token.core), &token.tail].map(String::as_str).concat()
    };
    tokens(text).into_iter().map(|token| (said(&token), token.source)).map(|(said, source)| (source, said)).collect()
}

/// The words of `text`, each with what is said for it.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = text.split_whitespace().map(Token::new).collect();
    for at in 0..tokens.len() {
        let (before, rest) = tokens.split_at_mut(at);
        let Some((token, after)) = rest.split_first_mut() else { break };
        let previous = before.last().map(|t| t.source.as_str());
        let next = after.first().map(|t| t.core.as_str());
        token.spoken = spoken(&token.core, previous, next, token.tail.starts_with('.'));
        if token.spoken.is_some() && words::swallows_stop(&token.core) && !after.is_empty() {
            // The full stop belonged to the abbreviation.
            token.tail = token.tail.trim_start_matches('.').to_owned();
        }
    }
    tokens
}

/// One word between white space: what is before it, itself, and the punctuation behind it.
struct Token {
    source: String,
    head: String,
    core: String,
    tail: String,
    spoken: Option<String>,
}

impl Token {
    fn new(source: &str) -> Token {
        let opening = |c: char| "\"“‘'([{".contains(c);
        let closing = |c: char| ".,;:!?\"”’')]}…".contains(c);
        let start = source.find(|c| !opening(c)).unwrap_or(source.len());
        let (head, rest) = source.split_at(start);
        let end = rest.char_indices().rev().find(|(_, c)| !closing(*c)).map_or(0, |(at, c)| at + c.len_utf8());
        let (core, tail) = rest.split_at(end);
        Token {
            source: source.to_owned(),
            head: head.to_owned(),
            core: core.to_owned(),
            tail: tail.to_owned(),
            spoken: None,
        }
    }
}

/// The words for one token; `None` where it is said as it is written. `stopped`: a full stop follows it at once.
fn spoken(core: &str, previous: Option<&str>, next: Option<&str>, stopped: bool) -> Option<String> {
    if core.chars().any(|c| c.is_ascii_digit()) {
        return number(core, previous, next);
    }
    words::abbreviation(core, next, stopped).or_else(|| words::signs(core))
}

/// A token with digits in it.
fn number(core: &str, previous: Option<&str>, next: Option<&str>) -> Option<String> {
    if let Some(words) = money(core, next).or_else(|| percent(core)).or_else(|| time(core)).or_else(|| date(core)) {
        return Some(words);
    }
    for (sign, word) in [('-', "minus"), ('−', "minus"), ('+', "plus"), ('#', "number")] {
        let quantity = core.strip_prefix(sign).and_then(|rest| plain(rest, None, next));
        if let Some(quantity) = quantity {
            return Some(format!("{word} {quantity}"));
        }
    }
    plain(core, previous, next)
        .or_else(|| ordinal(core))
        .or_else(|| decade(core))
        .or_else(|| range(core))
        .or_else(|| fraction(core))
        .or_else(|| Some(piecewise(core)))
}

/// `12`, `1,250`, `3.14`, `1984`, `007`.
fn plain(core: &str, previous: Option<&str>, next: Option<&str>) -> Option<String> {
    if let Some(value) = grouped(core) {
        return Some(cardinal(value));
    }
    if let Some(words) = decimal(core) {
        return Some(words);
    }
    if core.is_empty() || !core.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if core.len() > 9 || (core.len() > 1 && core.starts_with('0')) {
        return Some(digits(core));
    }
    let value: u64 = core.parse().ok()?;
    if words::is_month(previous) && (1..=31).contains(&value) {
        return Some(ordinal_word(value));
    }
    if core.len() == 4 && (1100..=2099).contains(&value) && !words::is_unit(next) {
        return Some(year(value));
    }
    Some(cardinal(value))
}

/// `$25`, `€3.50`, `£1,000`, `$2.5 million`.
fn money(core: &str, next: Option<&str>) -> Option<String> {
    let (one, many, cent) = match core.chars().next()? {
        '$' => ("dollar", "dollars", "cent"),
        '€' => ("euro", "euros", "cent"),
        '£' => ("pound", "pounds", "penny"),
        '¥' => ("yen", "yen", "sen"),
        _ => return None,
    };
    let amount: String = core.chars().skip(1).filter(|c| *c != ',').collect();
    if next.is_some_and(words::is_magnitude) {
        // "2.5 million dollars" would have to move a word; "dollars" is left out rather than said in the wrong place.
        return decimal(&amount).or_else(|| Some(cardinal(amount.parse().ok()?)));
    }
    let (whole, part) = amount.split_once('.').unwrap_or((&amount, ""));
    let whole: u64 = whole.parse().ok()?;
    let mut out = format!("{} {}", cardinal(whole), if whole == 1 { one } else { many });
    if part.is_empty() {
        return Some(out);
    }
    if part.len() != 2 {
        return Some(format!("{} {many}", decimal(&amount)?));
    }
    let cents: u64 = part.parse().ok()?;
    let name = match (cent, cents) {
        (name, 1) => name.to_owned(),
        ("penny", _) => "pence".to_owned(),
        (name, _) => format!("{name}s"),
    };
    match (whole, cents) {
        (_, 0) => {}
        (0, _) => out = format!("{} {name}", cardinal(cents)),
        _ => out = format!("{out} and {} {name}", cardinal(cents)),
    }
    Some(out)
}

/// `45%`, `2.5%`.
fn percent(core: &str) -> Option<String> {
    let rest = core.strip_suffix('%')?;
    let (sign, rest) = rest.strip_prefix('-').map_or(("", rest), |rest| ("minus ", rest));
    plain_quantity(rest).map(|words| format!("{sign}{words} percent"))
}

/// A quantity that is no year.
fn plain_quantity(core: &str) -> Option<String> {
    if core.is_empty() {
        return None;
    }
    grouped(core).map(cardinal).or_else(|| decimal(core)).or_else(|| core.parse().ok().map(cardinal))
}

/// `7:30`, `12:05pm`, `7pm`.
fn time(core: &str) -> Option<String> {
    let lower = core.to_ascii_lowercase().replace('.', "");
    let (clock, half) = ["am", "pm"]
        .iter()
        .find_map(|half| lower.strip_suffix(half).map(|clock| (clock.to_owned(), *half)))
        .unwrap_or((lower.clone(), ""));
    let half = match half {
        "am" => " A M",
        "pm" => " P M",
        _ => "",
    };
    let Some((hour, minute)) = clock.split_once(':') else {
        let hour: u64 = clock.parse().ok().filter(|hour| *hour <= 12)?;
        return (!half.is_empty()).then(|| format!("{}{half}", cardinal(hour)));
    };
    if minute.len() != 2 {
        return None;
    }
    let (hour, minute): (u64, u64) = (hour.parse().ok()?, minute.parse().ok()?);
    if hour > 24 || minute > 59 {
        return None;
    }
    let hour = cardinal(hour);
    Some(match minute {
        0 if half.is_empty() => format!("{hour} o'clock"),
        0 => format!("{hour}{half}"),
        1..=9 => format!("{hour} oh {}{half}", cardinal(minute)),
        _ => format!("{hour} {}{half}", cardinal(minute)),
    })
}

/// `2024-03-14`, `3/14/2024` (month first, as in American English).
fn date(core: &str) -> Option<String> {
    let parts: Vec<&str> = core.split(['-', '/']).collect();
    let [a, b, c] = parts.as_slice() else { return None };
    let (y, m, d) = if a.len() == 4 { (a, b, c) } else { (c, a, b) };
    if y.len() != 4 || m.len() > 2 || d.len() > 2 {
        return None;
    }
    let (y, m, d): (u64, usize, u64) = (y.parse().ok()?, m.parse().ok()?, d.parse().ok()?);
    let month = words::MONTHS.get(m.checked_sub(1)?)?;
    (1..=31).contains(&d).then(|| format!("{month} {}, {}", ordinal_word(d), year(y)))
}

/// `3rd`, `21st`.
fn ordinal(core: &str) -> Option<String> {
    let end = core.find(|c: char| !c.is_ascii_digit() && c != ',')?;
    let (value, suffix) = core.split_at(end);
    let known = ["st", "nd", "rd", "th"].contains(&suffix.to_ascii_lowercase().as_str());
    let value: u64 = value.replace(',', "").parse().ok()?;
    (known && value < 1_000_000_000).then(|| ordinal_word(value))
}

/// `1990s`, `80s`.
fn decade(core: &str) -> Option<String> {
    let value = core.strip_suffix("'s").or_else(|| core.strip_suffix("’s")).or_else(|| core.strip_suffix('s'))?;
    let number: u64 = value.parse().ok()?;
    if value.len() > 4 || value.len() < 2 {
        return None;
    }
    let words = if value.len() == 4 { year(number) } else { cardinal(number) };
    Some(words.strip_suffix('y').map_or_else(|| format!("{words}s"), |stem| format!("{stem}ies")))
}

/// `5-10`, `1939–1945`, `555-0199`: a range, or a number that is read digit by digit.
fn range(core: &str) -> Option<String> {
    let parts: Vec<&str> = core.split(['-', '–']).collect();
    if parts.len() < 2 || !parts.iter().all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    let both: Option<Vec<u64>> = parts.iter().map(|p| p.parse().ok()).collect();
    match (parts.as_slice(), both.as_deref()) {
        ([a, b], Some([low, high])) if low < high && !a.starts_with('0') && (a.len() < 3 || b.len() == a.len()) => {
            Some(format!("{} to {}", plain(a, None, None)?, plain(b, None, None)?))
        }
        _ => Some(parts.iter().map(|p| digits(p)).collect::<Vec<_>>().join(", ")),
    }
}

/// `1/2`, `3/4`, `24/7`.
fn fraction(core: &str) -> Option<String> {
    let (a, b) = core.split_once('/')?;
    let (top, bottom): (u64, u64) = (a.parse().ok()?, b.parse().ok()?);
    Some(match (top, bottom) {
        (1, 2) => "one half".to_owned(),
        (1, 4) => "one quarter".to_owned(),
        (_, 4) if top < 4 => format!("{} quarters", cardinal(top)),
        (1, 3..=10) => format!("one {}", ordinal_word(bottom)),
        (_, 3..=10) if top < bottom => format!("{} {}s", cardinal(top), ordinal_word(bottom)),
        _ => format!("{} {}", cardinal(top), cardinal(bottom)),
    })
}

/// Letters and digits mixed (`A320`, `5km`, `v2.0`): runs of digits in words, everything else as it is.
fn piecewise(core: &str) -> String {
    let mut pieces: Vec<String> = Vec::new();
    let mut kind = None;
    for c in core.chars() {
        let now = if c.is_ascii_digit() {
            0
        } else if c.is_alphabetic() {
            1
        } else {
            2
        };
        match (pieces.last_mut(), kind == Some(now)) {
            (Some(piece), true) => piece.push(c),
            _ => pieces.push(c.to_string()),
        }
        kind = Some(now);
    }
    let mut words: Vec<String> = Vec::new();
    let mut after_digits = false;
    for piece in pieces {
        let is_number = piece.bytes().all(|b| b.is_ascii_digit());
        let spoken = match piece.parse::<u64>() {
            Ok(value) if is_number && piece.len() <= 3 && !(piece.len() > 1 && piece.starts_with('0')) => {
                cardinal(value)
            }
            Ok(_) if is_number => digits(&piece),
            _ if is_number => digits(&piece),
            _ => match piece.as_str() {
                "." => "point".to_owned(),
                "," | "'" | "’" | "-" | "_" | "(" | ")" => String::new(),
                unit if after_digits => words::unit(unit).map_or_else(|| unit.to_owned(), str::to_owned),
                other => words::signs(other).unwrap_or_else(|| other.to_owned()),
            },
        };
        if !spoken.is_empty() {
            words.push(spoken);
        }
        after_digits = is_number;
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::spell_out;

    #[track_caller]
    fn becomes(from: &str, to: &str) {
        assert_eq!(spell_out(from), to);
    }

    #[test]
    fn plain_words_are_left_alone() {
        for text in
            ["The weather is lovely today.", "Who's there?  It is I.", "A well-known, old (and quiet) town.", ""]
        {
            let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(spell_out(text).split_whitespace().collect::<Vec<_>>().join(" "), spaced);
        }
        becomes("He said no.", "He said no.");
        becomes("I am in.", "I am in.");
    }

    #[test]
    fn numbers_become_words() {
        becomes("I have 2 cats.", "I have two cats.");
        becomes("42", "forty-two");
        becomes("1,250 people", "one thousand two hundred and fifty people");
        becomes("1000000", "one million");
        becomes("3.14", "three point one four");
        becomes("-5 degrees", "minus five degrees");
        becomes("Agent 007.", "Agent zero zero seven.");
        becomes("12345678901", "one two three four five six seven eight nine zero one");
        becomes("99999999999999999999999999", &["nine"; 26].join(" "));
    }

    #[test]
    fn years_and_dates_are_read_as_such() {
        becomes("In 1984, we met.", "In nineteen eighty-four, we met.");
        becomes("since 2005", "since two thousand five");
        becomes("in 2024", "in twenty twenty-four");
        becomes("the year 1900", "the year nineteen hundred");
        becomes("March 14, 1979", "March fourteenth, nineteen seventy-nine");
        becomes("on the 3rd of May", "on the third of May");
        becomes("2024-03-14", "March fourteenth, twenty twenty-four");
        becomes("7/4/1776", "July fourth, seventeen seventy-six");
        becomes("the 1990s", "the nineteen nineties");
        becomes("1939–1945", "nineteen thirty-nine to nineteen forty-five");
        becomes("1500 meters", "one thousand five hundred meters");
    }

    #[test]
    fn times_and_money_are_read_as_such() {
        becomes("at 7:30 pm", "at seven thirty P M");
        becomes("at 12:05.", "at twelve oh five.");
        becomes("9:00", "nine o'clock");
        becomes("5pm", "five P M");
        becomes("It costs $25.", "It costs twenty-five dollars.");
        becomes("$1", "one dollar");
        becomes("$9.99", "nine dollars and ninety-nine cents");
        becomes("£0.50", "fifty pence");
        becomes("$1,000,000", "one million dollars");
        becomes("45% of them", "forty-five percent of them");
    }

    #[test]
    fn abbreviations_are_written_out() {
        becomes("Dr. Smith and Mr. Jones", "Doctor Smith and Mister Jones");
        becomes("St. Mary lives on Main St.", "Saint Mary lives on Main Street.");
        becomes("apples, pears, etc.", "apples, pears, et cetera.");
        becomes("bread & butter", "bread and butter");
        becomes("e.g. this", "for example this");
        becomes("10 km", "ten kilometers");
        becomes("5kg", "five kilograms");
        becomes("the U.S. team", "the U S team");
        becomes("NASA and the FBI", "NASA and the F B I");
    }

    #[test]
    fn phone_numbers_ranges_and_mixtures_are_readable() {
        becomes("555-0199", "five five five, zero one nine nine");
        becomes("5-10 minutes", "five to ten minutes");
        becomes("3/4", "three quarters");
        becomes("gate B12", "gate B twelve");
        becomes("2 + 2 = 4", "two plus two equals four");
        becomes("#5", "number five");
        becomes("21st", "twenty-first");
    }

    #[test]
    fn anything_at_all_comes_back_without_digits() {
        let odd =
            ["1:99", "$", "%", "1..2", "--3", "€", "12:345", "0/0", "1/0", "$x5", "9'", "٣", "½", "1e9", "\u{0}7"];
        for text in odd {
            assert!(!spell_out(text).chars().any(|c| c.is_ascii_digit()), "{text}: {}", spell_out(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_fail_and_no_digit_stays(text in "\\PC{0,80}") {
            proptest::prop_assert!(!spell_out(&text).chars().any(|c| c.is_ascii_digit()));
        }

        #[test]
        fn spelled_text_is_spelled(text in "[a-zA-Z0-9 .,$%:/-]{0,60}") {
            let once = spell_out(&text);
            proptest::prop_assert!(!once.chars().any(|c| c.is_ascii_digit()));
        }
    }
}
