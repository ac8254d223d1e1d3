//! Parity with the reference: every tensor of the text cases, every token and code of the default voice's cases.

use omni_actors::tools::verify::{Comparison, Verdict, verify};
use std::collections::BTreeMap;
use std::path::Path;

pub fn compared(golden: &str) -> BTreeMap<String, Comparison> {
    let mut found = BTreeMap::new();
    verify(&Path::new(env!("CARGO_MANIFEST_DIR")).join(golden), None, |report| {
        println!("{report}");
        if let Verdict::Compared { comparison, .. } = &report.verdict {
            found.insert(report.name.clone(), comparison.as_ref().clone());
        }
    })
    .unwrap();
    found
}

#[test]
fn every_tensor_of_the_text_cases_equals_the_reference() {
    let mut cases = compared("tests/fixtures/qwen3_omni/golden");
    cases.retain(|name, _| name.starts_with("text") || name == "code2wav");
    let names: Vec<&str> = cases.keys().map(String::as_str).collect();
    assert_eq!(names, ["code2wav", "text_ethan", "text_ethan_eos", "text_ethan_thinker_eos"]);
    for (name, found) in &cases {
        assert!(found.passed(), "{name}: {found:?}");
        assert_eq!(found.unknown, [""; 0], "{name}");
        // Typical errors are far below what is tolerated; more than this would be a formula and no rounding.
        let largest = found.largest.as_ref().unwrap();
        assert!(largest.error < largest.allowed / 20.0, "{name}: {found:?}");
    }
    assert_eq!(cases["text_ethan"].compared, 36);
}

#[test]
fn the_default_voice_says_what_the_reference_says_to_what_is_written_and_spoken() {
    let cases = compared("assets/voice/golden");
    let of = |kind| cases.keys().filter(|name| name.starts_with(kind)).count();
    assert_eq!((of("voice_"), of("heard_"), cases.len()), (12, 3, 15));
    for (name, found) in &cases {
        assert!(found.passed(), "{name}: {found:?}");
        assert_eq!((found.compared, found.unknown.len()), (4, 0), "{name}");
    }
}

#[test]
fn a_checkpoint_with_every_size_different_equals_the_reference() {
    let cases = compared("tests/fixtures/other_sizes/five_groups/golden");
    let sizes: Vec<(&str, usize)> = cases.iter().map(|(name, found)| (name.as_str(), found.compared)).collect();
    assert_eq!(sizes, [("code2wav", 22), ("text_otto_turns", 34)]);
    for (name, found) in &cases {
        assert!(found.passed(), "{name}: {found:?}");
        assert_eq!(found.unknown, [""; 0], "{name}");
    }
}
