//! Prompts as tables for kernels, and the keys that tell which prompts begin alike.

use super::table::{PLAIN_TEXT, PromptEmbedding, REFERENCE_FRAME, TOKEN, X_VECTOR};
use crate::decoder::PAGE;
use omni_core::ids::Slot;
use omni_model::talker::{CodecSide, TalkerPrompt, TextSide};
use sha2::{Digest, Sha256};

/// What a page of a prompt is known by, and all pages before it: equal keys, equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PageKey([u8; 16]);

/// Rows of the table of text that are not input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Special {
    pub pad: u32,
    pub bos: u32,
    pub eos: u32,
}

impl Special {
    /// The row of the table that holds a text side; `inputs` are the rows of the input embeddings. `None`: it has not
    /// arrived.
    pub fn embedding(&self, side: TextSide, inputs: &[u32]) -> Option<u32> {
        match side {
            TextSide::Input(at) => inputs.get(at as usize).copied(),
            TextSide::Pad => Some(self.pad),
            TextSide::Bos => Some(self.bos),
            TextSide::Eos => Some(self.eos),
        }
    }
}

/// Position `at` of a prompt for the kernel; codes of references go to the end of `codes`. `None`: its text has not
/// arrived.
pub(super) fn position(
    prompt: &TalkerPrompt,
    at: u32,
    slot: Slot,
    (inputs, special): (&[u32], Special),
    (codes, groups): (&mut Vec<u32>, usize),
) -> Option<PromptEmbedding> {
    let sequence = prompt.embedding(at)?;
    let text = special.embedding(sequence.text, inputs)?;
    let (kind, number) = match sequence.codec {
        None => (PLAIN_TEXT, 0),
        Some(CodecSide::Token(id)) => (TOKEN, id),
        Some(CodecSide::XVector) => (X_VECTOR, 0),
        Some(CodecSide::Frame(frame)) => {
            let reference = prompt.reference()?;
            let begin = codes.len() as u32;
            codes.extend_from_slice(reference.get(frame as usize * groups..(frame as usize + 1) * groups)?);
            (REFERENCE_FRAME, begin)
        }
    };
    let last = u32::from(at + 1 == prompt.positions());
    let (axes, position) = (axes(prompt, at as usize), at as i32);
    Some(PromptEmbedding { slot: slot.0, position, text, kind, codes: number, last, axes, unused: [0; 3] })
}

/// The positions that the rotation takes of position `at` of a prompt, or of what follows it.
pub(super) fn axes(prompt: &TalkerPrompt, at: usize) -> [f32; 3] {
    prompt.axes().map_or([at as f32; 3], |positions| positions.at(at))
}

/// Keys of the pages that a prompt fills without its last position, which runs with the frames. Empty where the text is
/// not made of tokens. Everything that determines the positions enters the keys, so that equal keys mean equal pages.
pub(super) fn page_keys(prompt: &TalkerPrompt, inputs: &[u32], special: Special, groups: usize) -> Vec<PageKey> {
    let pages = (prompt.positions().saturating_sub(1)) as usize / PAGE;
    let mut keys = Vec::with_capacity(pages);
    let mut chain = [0u8; 16];
    for page in 0..pages {
        let mut hash = Sha256::new();
        hash.update(chain);
        for at in page * PAGE..(page + 1) * PAGE {
            let mut codes = Vec::new();
            let Some(sequence) = position(prompt, at as u32, Slot(0), (inputs, special), (&mut codes, groups)) else {
                return keys;
            };
            hash.update(sequence.text.to_le_bytes());
            hash.update(sequence.kind.to_le_bytes());
            match sequence.kind {
                TOKEN => hash.update(sequence.codes.to_le_bytes()),
                X_VECTOR => prompt.x_vector().iter().flat_map(|v| v.iter()).for_each(|x| hash.update(x.to_le_bytes())),
                _ => codes.iter().for_each(|code| hash.update(code.to_le_bytes())),
            }
        }
        chain.copy_from_slice(&hash.finalize()[..16]);
        keys.push(PageKey(chain));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_model::talker::Trailing;
    use std::sync::Arc;

    const SPECIAL: Special = Special { pad: 900, bos: 901, eos: 902 };

    /// 40 plain positions, then 10 frames of a reference of two groups.
    fn prompt(codes: &[u32]) -> TalkerPrompt {
        let coded = (0..10).map(|frame| (TextSide::Pad, CodecSide::Frame(frame))).collect();
        TalkerPrompt::new(40, coded, Trailing::Pad).with_reference(Arc::from(codes))
    }

    #[test]
    fn prompts_that_begin_alike_share_the_keys_of_their_beginning() {
        let (mut text, codes): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (0..20).collect());
        let keys = |text: &[u32], codes: &[u32]| page_keys(&prompt(codes), text, SPECIAL, 2);
        let first = keys(&text, &codes);
        assert_eq!(first.len(), 3, "49 positions before the last fill three pages");
        assert_eq!(first, keys(&text, &codes));
        let mut other = codes.clone();
        other[15] = 99;
        assert_eq!(keys(&text, &other)[..2], first[..2]);
        assert_ne!(keys(&text, &other)[2], first[2]);
        text[0] = 7;
        assert!(keys(&text, &codes).iter().zip(&first).all(|(a, b)| a != b), "later pages see the first position");
    }

    #[test]
    fn text_that_has_not_arrived_ends_the_keys() {
        assert_eq!(page_keys(&prompt(&[0; 20]), &[1; 20], SPECIAL, 2).len(), 1);
    }
}
