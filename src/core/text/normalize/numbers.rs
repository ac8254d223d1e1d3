//! English number words.

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
/// Names of the groups of three digits, the largest first.
const GROUPS: [(u64, &str); 6] = [
    (1_000_000_000_000_000_000, "quintillion"),
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1000, "thousand"),
];

/// `1250` as "one thousand two hundred and fifty".
pub(super) fn cardinal(value: u64) -> String {
    if value < 1000 {
        return below_thousand(value);
    }
    let mut rest = value;
    let mut words = Vec::new();
    for (size, name) in GROUPS {
        if rest >= size {
            words.push(format!("{} {name}", below_thousand(rest / size)));
            rest %= size;
        }
    }
    if rest > 0 {
        words.push(below_thousand(rest));
    }
    words.join(" ")
}

fn below_thousand(value: u64) -> String {
    let (hundreds, rest) = (value / 100, value % 100);
    match (hundreds, rest) {
        (0, _) => below_hundred(rest),
        (_, 0) => format!("{} hundred", one(hundreds)),
        _ => format!("{} hundred and {}", one(hundreds), below_hundred(rest)),
    }
}

fn below_hundred(value: u64) -> String {
    if value < 20 {
        return one(value).to_owned();
    }
    let ten = TENS.get((value / 10) as usize).copied().unwrap_or_default();
    if value.is_multiple_of(10) { ten.to_owned() } else { format!("{ten}-{}", one(value % 10)) }
}

fn one(value: u64) -> &'static str {
    ONES.get(value as usize).copied().unwrap_or_default()
}

/// `1,250,000`: digits in groups of three.
pub(super) fn grouped(text: &str) -> Option<u64> {
    let (first, rest) = text.split_once(',')?;
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let whole = number(first) && first.len() <= 3 && rest.split(',').all(|part| part.len() == 3 && number(part));
    if whole { text.replace(',', "").parse().ok() } else { None }
}

/// `3.14` as "three point one four".
pub(super) fn decimal(text: &str) -> Option<String> {
    let (whole, part) = text.split_once('.')?;
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = match whole {
        "" => 0,
        whole => grouped(whole).or_else(|| whole.parse().ok())?,
    };
    Some(format!("{} point {}", cardinal(whole), digits(part)))
}

/// Every digit on its own; anything else is left out.
pub(super) fn digits(text: &str) -> String {
    let words: Vec<&str> = text.bytes().filter(u8::is_ascii_digit).map(|b| one(u64::from(b - b'0'))).collect();
    words.join(" ")
}

/// `1984` as "nineteen eighty-four", `2005` as "two thousand five".
pub(super) fn year(value: u64) -> String {
    let (century, rest) = (value / 100, value % 100);
    match rest {
        _ if !(1000..10_000).contains(&value) || value.is_multiple_of(1000) => cardinal(value),
        1..=9 if (2000..2010).contains(&value) => format!("two thousand {}", one(rest)),
        0 => format!("{} hundred", below_hundred(century)),
        1..=9 => format!("{} oh {}", below_hundred(century), one(rest)),
        _ => format!("{} {}", below_hundred(century), below_hundred(rest)),
    }
}

/// `21` as "twenty-first".
pub(super) fn ordinal_word(value: u64) -> String {
    let words = cardinal(value);
    let start = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (front, last) = words.split_at(start);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        other => other.strip_suffix('y').map_or_else(|| format!("{other}th"), |stem| format!("{stem}ieth")),
    };
    format!("{front}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cardinals_of_every_size_read_well() {
        assert_eq!(cardinal(0), "zero");
        assert_eq!(cardinal(115), "one hundred and fifteen");
        assert_eq!(cardinal(20_000), "twenty thousand");
        assert_eq!(cardinal(1_000_001), "one million one");
        assert!(cardinal(u64::MAX).starts_with("eighteen quintillion"));
    }

    #[test]
    fn ordinals_read_well() {
        let expected = [(1, "first"), (12, "twelfth"), (20, "twentieth"), (43, "forty-third"), (100, "one hundredth")];
        for (value, words) in expected {
            assert_eq!(ordinal_word(value), words);
        }
    }

    #[test]
    fn years_read_well() {
        let expected =
            [(1066, "ten sixty-six"), (1905, "nineteen oh five"), (2000, "two thousand"), (2010, "twenty ten")];
        for (value, words) in expected {
            assert_eq!(year(value), words);
        }
    }
}
