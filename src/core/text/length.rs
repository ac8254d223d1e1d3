//! How long a text can take to say.

/// The seconds in which any speaker has said `text`: some four times what speech takes, and ten more for the pauses of
/// a short one. Speech that goes on for longer no longer says the text.
pub fn longest_seconds(text: &str) -> f64 {
    10.0 + text.chars().map(seconds).sum::<f64>()
}

/// The least seconds that it takes to say `text`: a hundredth for each letter, while speech takes some seven.
pub fn shortest_seconds(text: &str) -> f64 {
    0.01 * text.chars().filter(|c| c.is_alphanumeric()).count() as f64
}

/// Of one character. Digits are words, characters of scripts without an alphabet are syllables.
fn seconds(c: char) -> f64 {
    match c {
        '0'..='9' => 1.5,
        'a'..='z' | 'A'..='Z' | ' ' => 0.3,
        '\u{C0}'..='\u{10FF}' | '\u{1E00}'..='\u{1FFF}' => 0.4,
        c if c.is_alphanumeric() => 1.0,
        // Marks are pauses, signs are words.
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_several_times_the_seconds_that_it_takes_to_say() {
        // With the seconds of an ordinary speaker.
        let texts = [
            ("Hello, how are you today?", 1.7),
            ("The number is 73918424.", 4.5),
            ("今天天气真好，我们去公园散步吧。", 3.5),
            ("Добрый день, как у вас дела?", 2.0),
        ];
        for (text, ordinary) in texts {
            let longest = longest_seconds(text);
            assert!((3.0 * ordinary..30.0).contains(&longest), "{text}: {longest}");
        }
        assert!(longest_seconds(&"word ".repeat(200)) > 3.5 * 80.0);
    }
}
