//! Fault plans: what is taken can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match omni_config::parse_faults(text) {
    Ok(plan) => assert!(omni_config::parse_faults(&plan.to_string()).is_ok(), "{plan}"),
    Err(error) => assert!(!error.to_string().is_empty()),
});
