//! Chat requests and the parts of their messages: where media are, or what is wrong with which field.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_server::media_of_chat;

fuzz_target!(|body: &str| {
    match media_of_chat(body) {
        Ok(places) => assert!(places.iter().all(|place| place.starts_with("messages["))),
        Err(error) => assert!(!error.trim().is_empty()),
    }
});
