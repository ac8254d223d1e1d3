//! Parity with the reference where a request has sound, pictures and video.

use crate::parity_lm::compared;

#[test]
fn requests_with_media_equal_the_reference_from_their_features_on() {
    let mut cases = compared("tests/fixtures/qwen3_omni/golden");
    cases.retain(|_, found| found.compared > 20 && !found.unknown.iter().any(|name| name.starts_with("stage.")));
    cases.retain(|name, _| !name.starts_with("text") && name != "code2wav");
    let sizes: Vec<(&str, usize)> = cases.iter().map(|(name, found)| (name.as_str(), found.compared)).collect();
    println!("{sizes:?}");
    assert_eq!(cases.len(), 9);
    for (name, found) in &cases {
        assert!(found.passed(), "{name}: {found:?}");
        assert_eq!(found.unknown, [""; 0], "{name}");
        // Waveforms and hidden states alike: more than this would be a formula and no rounding.
        let largest = found.largest.as_ref().unwrap();
        assert!(largest.error < 1e-4 && largest.error < largest.allowed / 10.0, "{name}: {found:?}");
    }
}

#[test]
fn the_towers_encode_as_the_reference_does() {
    let cases = compared("tests/fixtures/qwen3_omni/golden");
    for (name, tensors) in [("audio_tower", 3), ("vision_tower", 12)] {
        let found = &cases[name];
        assert!(found.passed(), "{name}: {found:?}");
        assert_eq!((found.compared, found.unknown.len()), (tensors, 0), "{name}: {:?}", found.unknown);
        let largest = found.largest.as_ref().unwrap();
        assert!(largest.error < 1e-5, "{name}: {found:?}");
    }
}

#[test]
fn towers_of_other_sizes_and_an_answer_to_what_they_take_equal_the_reference() {
    let cases = compared("tests/fixtures/other_sizes/other_towers/golden");
    let names: Vec<&str> = cases.keys().map(String::as_str).collect();
    assert_eq!(names, ["audio_tower", "mm_video_image_audio_otto", "vision_tower"]);
    for (name, found) in &cases {
        assert!(found.passed() && found.compared >= 3, "{name}: {found:?}");
        assert_eq!(found.unknown, [""; 0], "{name}");
        let largest = found.largest.as_ref().unwrap();
        assert!(largest.error < 1e-4 && largest.error < largest.allowed / 10.0, "{name}: {found:?}");
    }
}
