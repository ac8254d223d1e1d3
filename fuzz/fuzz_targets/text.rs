//! Text to speak: whatever its pieces, the same sentences come out, and none is longer than it may be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_core::text::{Segmenter, segments, spell_out};

const MAX_CHARS: usize = 120;

fuzz_target!(|text: &str| {
    spell_out(text);
    let whole = segments(text, MAX_CHARS);
    assert!(whole.iter().all(|sentence| sentence.chars().count() <= MAX_CHARS));
    let mut segmenter = Segmenter::new(MAX_CHARS);
    let mut pieces: Vec<String> = text.split_inclusive(' ').flat_map(|piece| segmenter.push(piece)).collect();
    pieces.extend(segmenter.finish());
    assert!(pieces.iter().all(|sentence| sentence.chars().count() <= MAX_CHARS));
});
