//! Parity of Qwen3-TTS with the reference, from text to waveform.
#![allow(clippy::unwrap_used)]

use omni_actors::model::verify::{Verdict, verify};
use std::path::Path;

#[test]
fn every_tensor_of_every_request_equals_the_reference() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_tts/golden");
    let mut compared = Vec::new();
    verify(&golden, None, |report| {
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
        assert!(largest.error < largest.allowed / 20.0, "{report}");
        compared.push((report.name.clone(), comparison.compared));
    })
    .unwrap();
    assert_eq!(compared.len(), 8);
    for (name, compared) in compared {
        // Ids of the text; of an instruction or a transcript; everything else.
        let ids = 1 + usize::from(name.contains("instruct") || name.contains("design") || name.contains("icl"));
        assert_eq!(compared, ids + 22, "{name}");
    }
}
