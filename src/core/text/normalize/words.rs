//! Abbreviations, units and signs.

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Written with a full stop, and the words for it.
const STOPPED: [(&str, &str); 32] = [
    ("mr", "Mister"),
    ("mrs", "Missus"),
    ("ms", "Miss"),
    ("dr", "Doctor"),
    ("prof", "Professor"),
    ("sr", "Senior"),
    ("jr", "Junior"),
    ("gen", "General"),
    ("col", "Colonel"),
    ("lt", "Lieutenant"),
    ("sgt", "Sergeant"),
    ("capt", "Captain"),
    ("rev", "Reverend"),
    ("mt", "Mount"),
    ("vs", "versus"),
    ("approx", "approximately"),
    ("dept", "department"),
    ("etc", "et cetera"),
    ("inc", "incorporated"),
    ("ltd", "limited"),
    ("corp", "corporation"),
    ("ave", "Avenue"),
    ("blvd", "Boulevard"),
    ("rd", "Road"),
    ("jan", "January"),
    ("feb", "February"),
    ("aug", "August"),
    ("sept", "September"),
    ("oct", "October"),
    ("nov", "November"),
    ("dec", "December"),
    ("fig", "figure"),
];
/// Written with or without a full stop, and the words for it.
const ALWAYS: [(&str, &str); 10] = [
    ("e.g", "for example"),
    ("i.e", "that is"),
    ("a.m", "A M"),
    ("p.m", "P M"),
    ("am", ""),
    ("pm", "P M"),
    ("w/o", "without"),
    ("w/", "with"),
    ("asap", "as soon as possible"),
    ("vs", "versus"),
];
/// Units behind a number, and the words for them.
const UNITS: [(&str, &str); 22] = [
    ("km", "kilometers"),
    ("m", "meters"),
    ("cm", "centimeters"),
    ("mm", "millimeters"),
    ("kg", "kilograms"),
    ("g", "grams"),
    ("mg", "milligrams"),
    ("lb", "pounds"),
    ("lbs", "pounds"),
    ("oz", "ounces"),
    ("ft", "feet"),
    ("mi", "miles"),
    ("mph", "miles per hour"),
    ("km/h", "kilometers per hour"),
    ("kB", "kilobytes"),
    ("MB", "megabytes"),
    ("GB", "gigabytes"),
    ("Hz", "hertz"),
    ("kHz", "kilohertz"),
    ("ms", "milliseconds"),
    ("°C", "degrees Celsius"),
    ("°F", "degrees Fahrenheit"),
];
/// Capitals that are said as a word, not letter by letter.
const ACRONYMS: [&str; 14] =
    ["NASA", "NATO", "UNESCO", "UNICEF", "OPEC", "AIDS", "LASER", "RADAR", "SCUBA", "COVID", "RAM", "PIN", "OK", "AM"];
/// Two-letter and three-letter words that a writer may have put in capitals to shout.
const SHOUTED: [&str; 40] = [
    "I", "A", "AN", "AS", "AT", "BE", "BY", "DO", "GO", "HE", "IF", "IN", "IS", "IT", "ME", "MY", "NO", "OF", "ON",
    "OR", "SO", "TO", "UP", "WE", "AND", "ARE", "BUT", "CAN", "FOR", "HAS", "HOW", "NOT", "NOW", "OUT", "THE", "WAS",
    "WHO", "WHY", "YES", "YOU",
];
const MAGNITUDES: [&str; 4] = ["thousand", "million", "billion", "trillion"];

/// Whether a text without digits and signs could hold anything to spell out.
pub(super) fn may_hold_abbreviation(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        let core = word.trim_matches(|c: char| !c.is_alphanumeric());
        let stopped = word.ends_with('.') || word.trim_end_matches([',', ';', ':', '!', '?', ')']).ends_with('.');
        core.contains('.') || (stopped && (find(&STOPPED, core).is_some() || core == "St")) || shouted_letters(core)
    })
}

/// The words for an abbreviation. `next`: the word behind it; `stopped`: a full stop follows it at once.
pub(super) fn abbreviation(core: &str, next: Option<&str>, stopped: bool) -> Option<String> {
    if core == "St" && stopped {
        let name = next.is_some_and(|word| word.starts_with(char::is_uppercase));
        return Some(if name { "Saint" } else { "Street" }.to_owned());
    }
    if stopped && let Some(words) = find(&STOPPED, core) {
        return Some(words.to_owned());
    }
    if let Some(words) = find(&ALWAYS, core).filter(|words| !words.is_empty()) {
        return Some(words.to_owned());
    }
    if let Some(words) = unit_alone(core) {
        return Some(words.to_owned());
    }
    let letters: Vec<&str> = core.split('.').filter(|part| !part.is_empty()).collect();
    let initials = core.contains('.') && letters.len() > 1;
    if initials && letters.iter().all(|part| part.len() == 1 && part.starts_with(|c: char| c.is_ascii_alphabetic())) {
        return Some(letters.join(" ").to_uppercase());
    }
    shouted_letters(core).then(|| core.chars().map(String::from).collect::<Vec<_>>().join(" "))
}

/// `FBI`: two to four capitals that are no known word.
fn shouted_letters(core: &str) -> bool {
    (2..=4).contains(&core.len())
        && core.bytes().all(|b| b.is_ascii_uppercase())
        && !ACRONYMS.contains(&core)
        && !SHOUTED.contains(&core)
        && core.len() < 4
}

/// Whether the full stop behind this abbreviation is part of it.
pub(super) fn swallows_stop(core: &str) -> bool {
    core == "St" || find(&STOPPED, core).is_some() || find(&ALWAYS, core).is_some() || core.contains('.')
}

/// Signs that stand alone or between other characters; `None` where there is nothing to say.
pub(super) fn signs(core: &str) -> Option<String> {
    let known = |c: char| {
        Some(match c {
            '&' => "and",
            '+' => "plus",
            '=' => "equals",
            '%' => "percent",
            '@' => "at",
            '#' => "number",
            '°' => "degrees",
            '€' => "euros",
            '$' => "dollars",
            '£' => "pounds",
            '<' => "less than",
            '>' => "greater than",
            '×' => "times",
            '÷' => "divided by",
            '½' => "one half",
            '¼' => "one quarter",
            '¾' => "three quarters",
            _ => return None,
        })
    };
    if !core.chars().any(|c| known(c).is_some()) {
        return None;
    }
    let mut out = String::new();
    for c in core.chars() {
        match known(c) {
            Some(word) => {
                if !out.is_empty() && !out.ends_with(' ') {
                    out.push(' ');
                }
                out.push_str(word);
                out.push(' ');
            }
            None => out.push(c),
        }
    }
    Some(out.trim().to_owned())
}

/// The unit behind a number in the same word.
pub(super) fn unit(core: &str) -> Option<&'static str> {
    UNITS.iter().find(|(short, _)| *short == core).map(|(_, words)| *words)
}

/// A unit that stands alone and cannot be mistaken for a word.
fn unit_alone(core: &str) -> Option<&'static str> {
    if ["m", "g", "ms", "oz", "mi", "ft"].contains(&core) { None } else { unit(core) }
}

pub(super) fn is_month(word: Option<&str>) -> bool {
    word.is_some_and(|word| MONTHS.iter().any(|month| word.eq_ignore_ascii_case(month)))
}

/// Whether a number before this word counts things, so that it is no year.
pub(super) fn is_unit(word: Option<&str>) -> bool {
    const COUNTED: [&str; 26] = [
        "people",
        "years",
        "days",
        "hours",
        "minutes",
        "seconds",
        "meters",
        "metres",
        "kilometers",
        "miles",
        "feet",
        "inches",
        "dollars",
        "euros",
        "pounds",
        "kilograms",
        "grams",
        "liters",
        "degrees",
        "percent",
        "times",
        "points",
        "students",
        "copies",
        "pages",
        "words",
    ];
    word.is_some_and(|word| COUNTED.contains(&word.to_ascii_lowercase().as_str()) || unit(word).is_some())
}

pub(super) fn is_magnitude(word: &str) -> bool {
    MAGNITUDES.iter().any(|m| word.eq_ignore_ascii_case(m))
}

fn find(list: &[(&str, &'static str)], core: &str) -> Option<&'static str> {
    list.iter().find(|(short, _)| core.eq_ignore_ascii_case(short)).map(|(_, words)| *words)
}
