//! Cuts a text that may still be arriving into pieces that are spoken one after the other.
//!
//! A piece ends where a sentence ends; a sentence that is too long is cut at a comma, else at a space, else anywhere
//! between two characters. The pieces do not depend on how the text was divided when it arrived: a border whose meaning
//! depends on what follows is decided when that is there.

/// Words whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 24] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "gen", "col", "lt", "sgt", "capt", "rev", "hon", "mt", "vs",
    "cf", "fig", "approx", "ca", "bzw", "nr", "no",
];
/// Words whose full stop ends a sentence when a capital letter follows.
const MAYBE_ABBREVIATIONS: [&str; 9] = ["etc", "inc", "ltd", "co", "corp", "a.m", "p.m", "al", "dept"];

/// Text in, pieces out. See the module for the rules.
#[derive(Clone, Debug)]
pub struct Segmenter {
    max_chars: usize,
    /// What has not become a piece. Runs of white space are one space, or one newline where they hold a blank line;
    /// there is none at the start.
    buffer: Vec<char>,
    /// Newlines in the run of white space at the end.
    newlines: usize,
}

impl Segmenter {
    /// Pieces of at most `max_chars` characters (at least 1).
    pub fn new(max_chars: usize) -> Segmenter {
        Segmenter { max_chars: max_chars.max(1), buffer: Vec::new(), newlines: 0 }
    }

    /// Takes more text and returns the pieces that are complete now, without white space around them.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        for c in text.chars() {
            self.append(c);
            // Cutting long texts on the way bounds the characters that taking a piece moves.
            if self.buffer.len() > self.max_chars.saturating_mul(4).saturating_add(64) {
                self.take_complete(&mut pieces);
            }
        }
        self.take_complete(&mut pieces);
        pieces
    }

    /// The last piece, if anything is left. The segmenter is then as new.
    pub fn finish(&mut self) -> Option<String> {
        let rest = self.take(self.buffer.len());
        self.newlines = 0;
        Some(rest).filter(|r| !r.is_empty())
    }

    /// Takes the words that are complete: for a writer who pauses inside a sentence while the listener has nothing to
    /// hear.
    pub fn pause(&mut self) -> Option<String> {
        let end = self.buffer.iter().rposition(|c| c.is_whitespace())?;
        Some(self.take(end)).filter(|words| !words.is_empty())
    }

    /// The whole words of what has not become a piece, as [`Segmenter::pause`] would return them; they stay.
    pub fn words(&self) -> String {
        let end = self.buffer.iter().rposition(|c| c.is_whitespace()).unwrap_or(0);
        self.buffer[..end].iter().map(|c| if *c == '\n' { ' ' } else { *c }).collect()
    }

    fn append(&mut self, c: char) {
        if !c.is_whitespace() {
            self.newlines = 0;
            self.buffer.push(c);
            return;
        }
        self.newlines += usize::from(c == '\n');
        let space = if self.newlines > 1 { '\n' } else { ' ' };
        match self.buffer.last_mut() {
            None => {}
            Some(last) if last.is_whitespace() => *last = space,
            Some(_) => self.buffer.push(space),
        }
    }

    fn take_complete(&mut self, pieces: &mut Vec<String>) {
        loop {
            let end = match sentence_end(&self.buffer) {
                Some(end) if end <= self.max_chars => end,
                _ if self.length() > self.max_chars => forced_end(&self.buffer, self.max_chars),
                _ => return,
            };
            pieces.push(self.take(end));
        }
    }

    /// Characters without the white space at the end.
    fn length(&self) -> usize {
        self.buffer.len() - usize::from(self.buffer.last().is_some_and(|c| c.is_whitespace()))
    }

    /// Removes the first `end` characters and the white space behind them.
    fn take(&mut self, end: usize) -> String {
        let piece: String = self.buffer[..end].iter().map(|c| if *c == '\n' { ' ' } else { *c }).collect();
        let spaces = self.buffer[end..].iter().take_while(|c| c.is_whitespace()).count();
        self.buffer.drain(..end + spaces);
        piece.trim_end().to_owned()
    }
}

/// All pieces of a text that is known as a whole.
pub fn segments(text: &str, max_chars: usize) -> Vec<String> {
    let mut segmenter = Segmenter::new(max_chars);
    let mut pieces = segmenter.push(text);
    pieces.extend(segmenter.finish());
    pieces
}

/// Where to cut `text`, of more than `max_chars` characters, when these are no sentence.
pub(super) fn forced_end(text: &[char], max_chars: usize) -> usize {
    let window = 1..=max_chars;
    let pause = |end: &usize| {
        let next = text[*end];
        match text[*end - 1] {
            ',' | ';' | ':' | '—' | '–' => next.is_whitespace(),
            '，' | '、' | '；' | '：' => true,
            _ => false,
        }
    };
    // A pause near the start would leave a snippet.
    let worthwhile = max_chars / 3;
    let at_pause = window.clone().rev().find(pause).filter(|end| *end >= worthwhile);
    let at_space = || window.clone().rev().find(|end| text[*end].is_whitespace());
    let between = || window.clone().rev().find(|end| !joins_previous(text[*end], text[*end - 1]));
    at_pause.or_else(at_space).or_else(between).unwrap_or(max_chars)
}

/// Where the first sentence of `text` ends, if that is certain already.
pub(super) fn sentence_end(text: &[char]) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        if text[at] == '\n' {
            return Some(at);
        }
        if !is_terminator(text[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while text.get(at).is_some_and(|c| is_terminator(*c)) {
            at += 1;
        }
        let marks = at;
        while text.get(at).is_some_and(|c| is_closer(*c)) {
            at += 1;
        }
        match judge(text, start, marks, at) {
            Verdict::Ends => return Some(at),
            Verdict::GoesOn => {}
            Verdict::Unknown => return None,
        }
    }
    None
}

enum Verdict {
    Ends,
    GoesOn,
    /// It depends on text that is not there yet.
    Unknown,
}

/// Whether the marks at `start..marks`, with closing quotes up to `end`, end a sentence.
fn judge(text: &[char], start: usize, marks: usize, end: usize) -> Verdict {
    let Some(&next) = text.get(end) else { return Verdict::Unknown };
    if text[start..marks].iter().any(|c| is_wide_terminator(*c)) {
        return Verdict::Ends;
    }
    match next {
        '\n' => return Verdict::Ends,
        ' ' => {}
        _ => return Verdict::GoesOn,
    }
    let after = text.get(end + 1).copied();
    let if_capital = |after: Option<char>| match after {
        None => Verdict::Unknown,
        // A blank line makes the decision in `sentence_end`.
        Some(c) if c.is_lowercase() => Verdict::GoesOn,
        Some(_) => Verdict::Ends,
    };
    let ellipsis = text[start] == '…' || marks - start > 1 && text[start..marks].iter().all(|c| *c == '.');
    if ellipsis || end > marks {
        return if_capital(after);
    }
    if text[start] != '.' || marks - start > 1 {
        return Verdict::Ends;
    }
    match word_before(text, start) {
        Word::Plain => Verdict::Ends,
        Word::Abbreviation => Verdict::GoesOn,
        Word::MaybeAbbreviation => if_capital(after),
    }
}

enum Word {
    Plain,
    Abbreviation,
    MaybeAbbreviation,
}

/// What kind of word ends at the full stop at `stop`.
fn word_before(text: &[char], stop: usize) -> Word {
    let from = text[..stop].iter().rposition(|c| c.is_whitespace()).map_or(0, |space| space + 1);
    let from = text[from..stop].iter().position(|c| c.is_alphanumeric()).map_or(stop, |skip| from + skip);
    let word: String = text[from..stop].iter().flat_map(|c| c.to_lowercase()).collect();
    // The number of a list entry.
    if from == 0 && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
        return Word::Abbreviation;
    }
    if MAYBE_ABBREVIATIONS.contains(&word.as_str()) {
        return Word::MaybeAbbreviation;
    }
    // Initials, and letters with full stops between them: J., e.g., U.S.
    let spelled = word.split('.').all(|part| part.chars().count() == 1 && part.chars().all(char::is_alphabetic));
    if spelled && word != "i" || ABBREVIATIONS.contains(&word.as_str()) {
        return Word::Abbreviation;
    }
    Word::Plain
}

fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '؟' | '۔' | '।' | '॥') || is_wide_terminator(c)
}

/// Marks of scripts that put no space behind a sentence.
fn is_wide_terminator(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡')
}

fn is_closer(c: char) -> bool {
    matches!(c, '"' | '\'' | '”' | '’' | ')' | ']' | '}' | '»' | '」' | '』' | '）' | '】' | '》' | '〉')
}

/// Whether `c` makes one visible character with the one before it: combining marks, joiners, variants, skin tones.
fn joins_previous(c: char, previous: char) -> bool {
    let extends = |c: char| {
        matches!(c, '\u{300}'..='\u{36F}' | '\u{1AB0}'..='\u{1AFF}' | '\u{1DC0}'..='\u{1DFF}' | '\u{20D0}'..='\u{20FF}'
            | '\u{200C}' | '\u{200D}' | '\u{FE00}'..='\u{FE0F}' | '\u{3099}' | '\u{309A}' | '\u{1F3FB}'..='\u{1F3FF}')
    };
    extends(c) || previous == '\u{200D}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_who_pauses_is_heard_up_to_the_last_whole_word() {
        let mut segmenter = Segmenter::new(100);
        assert_eq!(segmenter.push("the weather is lov"), Vec::<String>::new());
        assert_eq!(segmenter.pause().as_deref(), Some("the weather is"));
        assert_eq!(segmenter.pause(), None, "half a word is not spoken");
        assert_eq!(segmenter.push("ely. Yes"), ["lovely."]);
        assert_eq!(segmenter.finish().as_deref(), Some("Yes"));
    }
    use proptest::prelude::*;

    #[test]
    fn sentences_are_separated_at_their_ends() {
        let cases: [(&str, &[&str]); 12] = [
            ("Hello there. How are you? Fine!", &["Hello there.", "How are you?", "Fine!"]),
            ("It is 3.14, or 22/7. See example.com for more.", &["It is 3.14, or 22/7.", "See example.com for more."]),
            ("Mr. Smith met Dr. J. Jones in the U.S. today.", &["Mr. Smith met Dr. J. Jones in the U.S. today."]),
            ("Use e.g. this one. So do I. Good.", &["Use e.g. this one.", "So do I.", "Good."]),
            ("At 5 p.m. we left. At 6 p.m. They came.", &["At 5 p.m. we left.", "At 6 p.m.", "They came."]),
            ("Well... maybe. Well... Maybe not?!", &["Well... maybe.", "Well...", "Maybe not?!"]),
            (
                "\"What?\" he said. \"Go!\" \"No.\" She left.",
                &["\"What?\" he said.", "\"Go!\"", "\"No.\"", "She left."],
            ),
            (
                "1. First things. 2 come next. It was 1999. Then",
                &["1. First things.", "2 come next.", "It was 1999.", "Then"],
            ),
            ("你好。今天怎么样？「很好！」走吧", &["你好。", "今天怎么样？", "「很好！」", "走吧"]),
            ("A title\n\nA text that\nis wrapped", &["A title", "A text that is wrapped"]),
            ("  lots \t of\u{a0}\n space  ", &["lots of space"]),
            (" \n\n ", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(segments(text, 200), expected, "{text}");
        }
    }

    #[test]
    fn a_sentence_leaves_as_soon_as_its_end_is_certain() {
        let mut segmenter = Segmenter::new(200);
        assert!(segmenter.push("Version 3").is_empty());
        assert!(segmenter.push(".").is_empty());
        assert!(segmenter.push("14 is out.").is_empty());
        assert_eq!(segmenter.push(" "), ["Version 3.14 is out."]);
        assert!(segmenter.push("\"Really?\" ").is_empty());
        assert_eq!(segmenter.push("Yes"), ["\"Really?\""]);
        assert_eq!(segmenter.finish().as_deref(), Some("Yes"));
        assert_eq!(segmenter.finish(), None);
    }

    #[test]
    fn long_sentences_are_cut_at_commas_then_spaces_then_anywhere() {
        assert_eq!(segments("one two, three four five", 16), ["one two,", "three four five"]);
        assert_eq!(segments("in 1,000,000 cases of ten", 12), ["in 1,000,000", "cases of ten"]);
        assert_eq!(segments("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(segments("今天，我们去公园", 5), ["今天，", "我们去公园"]);
        assert_eq!(segments("a, bcdefg hijklm", 10), ["a, bcdefg", "hijklm"]);
        // Neither an accent nor a joined emoji is torn off.
        assert_eq!(segments("abce\u{301}f", 4), ["abc", "e\u{301}f"]);
        assert_eq!(segments("ab👩\u{200D}👧c", 4), ["ab", "👩\u{200D}👧c"]);
    }

    #[test]
    fn a_sentence_that_just_fits_is_not_cut() {
        assert_eq!(segments("Four. Five!", 5), ["Four.", "Five!"]);
        assert_eq!(segments("abc de.", 7), ["abc de."]);
    }

    fn text() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just(". "),
            Just("."),
            Just("?"),
            Just("! "),
            Just("…"),
            Just("\" "),
            Just("\""),
            Just(", "),
            Just("。"),
            Just("，"),
            Just(" "),
            Just("\n"),
            Just("\n\n"),
            Just("Mr"),
            Just("etc"),
            Just("U.S"),
            Just("I"),
            Just("3"),
            Just("word"),
            Just("Word"),
            Just("é"),
            Just("e\u{301}"),
            Just("👩\u{200D}👧"),
            Just("好"),
            Just("\u{200D}"),
        ];
        prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_character_is_lost_and_no_piece_is_too_long(text in prop_oneof![text(), "\\PC{0,80}"], max in 1usize..60) {
            let pieces = segments(&text, max);
            let squeeze = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(squeeze(&pieces.concat()), squeeze(&text));
            for piece in &pieces {
                prop_assert!(!piece.is_empty() && piece.trim() == piece && piece.chars().count() <= max);
                prop_assert!(!piece.contains("  ") && !piece.contains('\n'));
            }
        }

        #[test]
        fn pieces_do_not_depend_on_how_the_text_arrives(text in text(), max in 1usize..60, cuts in prop::collection::vec(0usize..200, 0..8)) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(chars.len())).chain([0, chars.len()]).collect();
            cuts.sort_unstable();
            let mut segmenter = Segmenter::new(max);
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                pieces.extend(segmenter.push(&chars[pair[0]..pair[1]].iter().collect::<String>()));
            }
            pieces.extend(segmenter.finish());
            prop_assert_eq!(pieces, segments(&text, max));
        }
    }
}
