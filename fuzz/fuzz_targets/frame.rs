//! Frames of an edge: the same answer whether their data is copied out or stays where it is.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let frame = Bytes::copy_from_slice(frame);
    let (stays, copied) = (omni_transfer::wire::decode(&frame, true), omni_transfer::wire::decode(&frame, false));
    assert_eq!(stays.is_ok(), copied.is_ok());
    if let Err(error) = stays {
        assert!(!error.to_string().is_empty());
    }
});
