//! Text with markup: it is read, or refused with a place, and both notations read a text the same however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_core::text::markup::{Markup, MarkupReader, marks};

fuzz_target!(|text: &str| {
    for markup in Markup::ALL {
        let whole = marks(markup, text);
        let mut reader = MarkupReader::new(markup);
        let pieces: Result<Vec<_>, _> = text.split_inclusive(' ').map(|piece| reader.push(piece)).collect();
        let pieced = pieces.and_then(|_| reader.finish());
        assert_eq!(whole.as_ref().err(), pieced.as_ref().err());
    }
});
