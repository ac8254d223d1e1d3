//! What the aligner times: words, and the characters of scripts that put no blanks between words.
//!
//! The rule is `tokenize_space_lang` of qwen-asr 0.0.6 (`inference/qwen3_forced_aligner.py`), which the reference uses
//! for all languages but two: words between white space, each Chinese character by itself, and of both only letters,
//! numbers and `'`. For Japanese and Korean the reference asks tokenizers of their own (nagisa, soynlp), which are not
//! here: Korean is timed by its words between blanks, Japanese by each kanji and by what stands between two of them.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// A part of a text that has a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// As it is written, with the punctuation around it. All of a text in their order are the text without white space.
    pub written: String,
    /// As the aligner reads it: letters, numbers and `'`. Empty for a dash between blanks, which has no time.
    pub read: String,
}

/// The units of a text. A mark goes with the word or character before it, or after it where its word begins with it.
pub fn units(text: &str) -> Vec<Unit> {
    text.split_whitespace().flat_map(of_word).collect()
}

/// The units of what stands between white space.
fn of_word(word: &str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    // What has been passed and belongs to no unit yet.
    let mut before = String::new();
    // Whether the last unit is a run that the next letter belongs to.
    let mut open = false;
    for c in word.chars() {
        match (is_read(c), units.last_mut()) {
            (true, Some(last)) if open && !is_chinese(c) => {
                last.written.push(c);
                last.read.push(c);
            }
            (true, _) => {
                let mut written = std::mem::take(&mut before);
                written.push(c);
                units.push(Unit { written, read: c.to_string() });
                open = !is_chinese(c);
            }
            // A hyphen divides no word: the reference drops it before it looks.
            (false, Some(last)) => last.written.push(c),
            (false, None) => before.push(c),
        }
    }
    if units.is_empty() {
        units.push(Unit { written: before, read: String::new() });
    }
    units
}

/// `is_kept_char`: categories L and N, and the apostrophe.
fn is_read(c: char) -> bool {
    let group = c.general_category_group();
    c == '\'' || matches!(group, GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number)
}

/// `is_cjk_char`: the blocks of Chinese characters.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F
        | 0x2B820..=0x2CEAF | 0xF900..=0xFAFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        units(text).into_iter().map(|unit| (unit.written, unit.read)).collect()
    }

    fn pair(written: &str, read: &str) -> (String, String) {
        (written.to_owned(), read.to_owned())
    }

    #[test]
    fn words_keep_their_punctuation_and_are_read_without() {
        let found = pairs("\u{201c}It's\u{201d} \u{2014} brown-fox, 12!\n");
        let wanted = [
            pair("\u{201c}It's\u{201d}", "It's"),
            pair("\u{2014}", ""),
            pair("brown-fox,", "brownfox"),
            pair("12!", "12"),
        ];
        assert_eq!(found, wanted);
        assert_eq!(pairs(" \n"), []);
    }

    #[test]
    fn each_chinese_character_is_a_unit_and_what_is_between_them_is_one() {
        let found = pairs("(用AI朗读)，v2.0版 いいね");
        let wanted = ["用", "AI", "朗", "读", "v20", "版", "いいね"];
        assert_eq!(found.iter().map(|(_, read)| read.as_str()).collect::<Vec<_>>(), wanted);
        let written: String = found.into_iter().map(|(written, _)| written).collect();
        assert_eq!(written, "(用AI朗读)，v2.0版いいね");
    }

    #[test]
    fn marks_are_written_and_not_read_as_in_the_reference() {
        assert_eq!(pairs("क्या"), [pair("क्या", "कय")]);
    }
}
