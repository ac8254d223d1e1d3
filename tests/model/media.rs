//! What Qwen3-Omni hears and sees, as far as the thinker's ids and positions, against the reference's goldens.

use omni_actors::tools::verify::{Verdict, verify};
use std::path::Path;

const GOLDEN: &str = "tests/fixtures/qwen3_omni/frontend";
/// Cases of the folder.
const CASES: usize = 61;

fn folder(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn every_front_end_does_what_the_reference_does() {
    let mut failed = Vec::new();
    let summary = verify(&folder(GOLDEN), None, |report| {
        let passed = match &report.verdict {
            // Nothing in a case may go without a comparison.
            Verdict::Compared { comparison, .. } => comparison.passed() && comparison.unknown.is_empty(),
            _ => false,
        };
        if !passed {
            failed.push(report.to_string());
        }
    })
    .unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!((summary.passed, summary.skipped, summary.other), (CASES, 0, 0));
}
