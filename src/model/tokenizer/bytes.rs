//! The byte-level alphabet: vocabularies are JSON, so each of the 256 bytes is written as a printable character.

use std::collections::HashMap;

/// The character that stands for each byte: itself where it is printable, else one from U+0100 on.
pub(super) fn alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            return byte as u8 as char;
        }
        let stand_in = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
        next += 1;
        stand_in
    })
}

/// The bytes of every token, in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Where the token's bytes begin and end.
    spans: Vec<(u32, u32)>,
}

impl TokenBytes {
    /// `model` is written in the alphabet, `added` is not.
    pub(super) fn new<'a>(
        model: impl Iterator<Item = (&'a str, u32)>,
        added: impl Iterator<Item = (&'a str, u32)>,
    ) -> TokenBytes {
        let byte_of: HashMap<char, u8> = alphabet().into_iter().zip(0..=255).collect();
        let mut table = TokenBytes::default();
        for (word, id) in model {
            let mut bytes = Vec::with_capacity(word.len());
            for c in word.chars() {
                match byte_of.get(&c) {
                    Some(byte) => bytes.push(*byte),
                    // Outside the alphabet: it stands for itself.
                    None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            table.set(id, bytes);
        }
        for (word, id) in added {
            table.set(id, word.into());
        }
        table
    }

    fn set(&mut self, id: u32, bytes: Vec<u8>) {
        let at = id as usize;
        if self.spans.len() <= at {
            self.spans.resize(at + 1, (0, 0));
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend(bytes);
        self.spans[at] = (start, self.bytes.len() as u32);
    }

    pub(super) fn get(&self, id: u32) -> &[u8] {
        self.spans.get(id as usize).map_or(&[], |(start, end)| &self.bytes[*start as usize..*end as usize])
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_a_character_of_its_own_for_every_byte() {
        let alphabet = alphabet();
        assert_eq!((alphabet[b'A' as usize], alphabet[b' ' as usize], alphabet[b'\n' as usize]), ('A', 'Ġ', 'Ċ'));
        let different: std::collections::HashSet<char> = alphabet.into_iter().collect();
        assert_eq!(different.len(), 256);
    }
}
