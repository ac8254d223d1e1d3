//! The golden cases of both families, on stages that a test chooses.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses its own part")]

use omni_actors::config::Precision;
use omni_actors::tools::verify::{StageSource, Summary, verify_on};
use std::path::Path;

pub const TTS: &str = "tests/fixtures/qwen3_tts/golden";
/// Requests that the reference ran as one batch: other prompts, voices and ends, and one that clones a recording.
pub const BATCH: &str = "tests/fixtures/qwen3_tts/golden_batch";
pub const OMNI: &str = "tests/fixtures/qwen3_omni/golden";

/// The summary and the lines of a golden folder.
pub fn run(source: &dyn StageSource, golden: &str) -> (Summary, String) {
    let mut lines = String::new();
    let summary = verify_on(source, Path::new(golden), None, |report| {
        println!("{report}");
        lines.push_str(&format!("{report}\n"));
    });
    let summary = summary.unwrap();
    println!("{summary}");
    (summary, lines)
}

/// All cases of both families pass, none is skipped, and a request has its codes and its sound compared.
pub fn passes(source: &dyn StageSource) {
    for (golden, passed) in [(TTS, 11), (OMNI, 15)] {
        let (summary, lines) = run(source, golden);
        assert!(summary.passed_all(), "{lines}");
        assert_eq!((summary.passed, summary.failed, summary.skipped), (passed, 0, 0));
        let rounds = source.precision() == Precision::Bf16;
        assert_eq!(summary.picks.first.of >= 40, rounds);
        // Of Qwen3-Omni the tokens of the answer, too.
        let wanted = match (rounds, golden) {
            (true, _) => "same code 0 in",
            (false, OMNI) => "all tokens equal; 4 of 4 tensors compared",
            (false, _) => "all tokens equal; 3 of 3 tensors compared",
        };
        assert!(lines.lines().filter(|line| line.contains(wanted)).count() >= 3, "{lines}");
    }
}

/// The requests of each batch run at once, and each has its codes and its sound compared.
pub fn batches_pass(source: &dyn StageSource) {
    let (summary, lines) = run(source, BATCH);
    assert!(summary.passed_all(), "{lines}");
    assert_eq!((summary.passed, summary.failed, summary.skipped), (2, 0, 0), "{lines}");
    assert!(lines.contains("3 requests at once") && lines.contains("2 requests at once"), "{lines}");
    match source.precision() {
        Precision::F32 => assert!(lines.contains("9 of 9 tensors compared"), "{lines}"),
        // 4, 8, 8, 7 and 7 frames, and the code 0 behind each.
        Precision::Bf16 => assert_eq!((summary.picks.first.of, summary.picks.all.of), (39, 34 * 8 + 5)),
    }
}

/// Two threads for an encoder on the CPU.
pub fn threads() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap()
}
