//! Config files: each is read, or every problem in it has a sentence.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    if let Err(error) = omni_config::parse(text, Path::new("configs"), &[]) {
        assert!(!error.to_string().is_empty());
    }
});
