//! Which two rows are added up at each position of the talker (spec section 5). Pure: indices, no tensors.
//!
//! Input rows come from the thinker in this order: those of the user turns, the three of the assistant header, one per
//! answer token. The first answer token is part of the prompt; the others follow one per frame, then once the end-of-text
//! row, then padding for as long as the talker speaks.

/// Rows of the assistant turn inside the prompt.
const ASSISTANT_POSITIONS: u32 = 9;
/// Input rows of the assistant header: `<|im_start|>`, `assistant`, newline.
const HEADER_ROWS: u32 = 3;

/// What the text side of a position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextSide {
    /// The projection of this input row.
    Input(u32),
    /// `<tts_pad>`.
    Pad,
    /// `<tts_text_bos>`.
    Bos,
    /// `<tts_text_eod>`.
    Eos,
}

/// What the codec side of a prompt position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the config")]
pub enum CodecSide {
    Nothink,
    ThinkBos,
    ThinkEos,
    Speaker,
    Pad,
    Bos,
}

/// A position of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptRow {
    /// Always there.
    pub text: TextSide,
    /// Nothing is added in user turns and in the assistant header.
    pub codec: Option<CodecSide>,
}

/// Position `at` of a prompt with `user_rows` rows of user turns; `None` behind its end.
pub fn prompt_row(user_rows: u32, at: u32) -> Option<PromptRow> {
    let header_end = user_rows + HEADER_ROWS;
    if at < header_end {
        return Some(PromptRow { text: TextSide::Input(at), codec: None });
    }
    let (text, codec) = match at - header_end {
        0 => (TextSide::Pad, CodecSide::Nothink),
        1 => (TextSide::Pad, CodecSide::ThinkBos),
        2 => (TextSide::Pad, CodecSide::ThinkEos),
        3 => (TextSide::Pad, CodecSide::Speaker),
        4 => (TextSide::Bos, CodecSide::Pad),
        5 => (TextSide::Input(header_end), CodecSide::Bos),
        _ => return None,
    };
    Some(PromptRow { text, codec: Some(codec) })
}

/// Positions of a prompt.
pub fn prompt_len(user_rows: u32) -> u32 {
    user_rows + ASSISTANT_POSITIONS
}

/// The text side of decode step `step` (1 is the first after the prompt), when `inputs` rows have arrived and `ended`
/// says whether they are all. `None`: the row is not there yet.
pub fn text_side(user_rows: u32, step: u32, inputs: u32, ended: bool) -> Option<TextSide> {
    let row = user_rows + HEADER_ROWS + step;
    if row < inputs {
        return Some(TextSide::Input(row));
    }
    ended.then_some(if row == inputs { TextSide::Eos } else { TextSide::Pad })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_user_rows_header_and_six_coded_rows() {
        let rows: Vec<PromptRow> = (0..).map_while(|at| prompt_row(2, at)).collect();
        assert_eq!(rows.len() as u32, prompt_len(2));
        let plain = |i| PromptRow { text: TextSide::Input(i), codec: None };
        assert_eq!(rows[..5], [plain(0), plain(1), plain(2), plain(3), plain(4)]);
        let coded = |text, codec| PromptRow { text, codec: Some(codec) };
        assert_eq!(
            rows[5..],
            [
                coded(TextSide::Pad, CodecSide::Nothink),
                coded(TextSide::Pad, CodecSide::ThinkBos),
                coded(TextSide::Pad, CodecSide::ThinkEos),
                coded(TextSide::Pad, CodecSide::Speaker),
                coded(TextSide::Bos, CodecSide::Pad),
                coded(TextSide::Input(5), CodecSide::Bos),
            ]
        );
    }

    #[test]
    fn the_end_of_text_comes_exactly_once() {
        // No user rows, 3 header rows, answer tokens in rows 3, 4, 5; row 3 is part of the prompt.
        let sides: Vec<_> = (1..6).map(|step| text_side(0, step, 6, true)).collect();
        let wanted = [TextSide::Input(4), TextSide::Input(5), TextSide::Eos, TextSide::Pad, TextSide::Pad];
        assert_eq!(sides, wanted.map(Some));
    }

    #[test]
    fn a_row_that_has_not_arrived_is_waited_for() {
        assert_eq!(text_side(7, 1, 11, false), None);
        assert_eq!(text_side(7, 1, 12, false), Some(TextSide::Input(11)));
        assert_eq!(text_side(7, 1, 11, true), Some(TextSide::Eos));
    }
}
