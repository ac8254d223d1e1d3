//! Parity of Qwen3-TTS with the reference, from text to waveform.

use omni_actors::tools::verify::{Verdict, verify};
use std::path::Path;

/// Requests of a golden folder and how many tensors of each were compared: all that there are.
fn compared(golden: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    verify(&Path::new(env!("CARGO_MANIFEST_DIR")).join(golden), None, |report| {
        println!("{report}");
        assert!(!report.failed(), "{report}");
        let Verdict::Compared { comparison, .. } = &report.verdict else { return };
        // These have tests of their own.
        if ["decoder12hz", "base_frontend"].contains(&report.name.as_str()) {
            return;
        }
        assert_eq!(comparison.unknown, [""; 0], "{report}");
        // Typical errors are far below what is tolerated; more than this would be a formula and no rounding.
        let largest = comparison.largest.as_ref().unwrap();
        assert!(largest.error < largest.allowed / 5.0, "{report}");
        found.push((report.name.clone(), comparison.compared));
    })
    .unwrap();
    found
}

#[test]
fn every_tensor_of_every_request_equals_the_reference() {
    let requests = compared("tests/fixtures/qwen3_tts/golden");
    assert_eq!(requests.len(), 9);
    for (name, compared) in requests {
        // Ids of the text; of an instruction or a transcript; everything else.
        let ids = 1 + usize::from(name.contains("instruct") || name.contains("design") || name.contains("icl"));
        assert_eq!(compared, ids + 22, "{name}");
    }
}

#[test]
fn a_checkpoint_with_every_size_different_equals_the_reference() {
    let requests = compared("tests/fixtures/other_sizes/tts_five_groups/golden");
    let sizes: Vec<_> = requests.iter().map(|(name, compared)| (name.as_str(), *compared)).collect();
    let wanted =
        [("base_icl_nonstreaming_german", 23), ("base_icl_streaming_auto", 23), ("base_xvector_streaming_french", 22)];
    assert_eq!(sizes, wanted);
}
