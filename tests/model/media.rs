//! What Qwen3-Omni hears and sees, as far as the thinker's ids and positions, against the reference's goldens.

use omni_actors::media::patches::Grid;
use omni_actors::model::Tokenizer;
use omni_actors::model::hf::{MediaConfig, OmniConfig};
use omni_actors::model::media::MediaKind;
use omni_actors::model::prompt::{Content, MediaItem, MediaMessage, MediaPrompt, Part, PromptError, Prompter, Role};
use omni_actors::model::template::ChatTemplate;
use omni_actors::model::weights::Files;
use omni_actors::tools::verify::{Verdict, verify};
use serde_json::json;
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

fn real() -> Files {
    Files::folder(&folder(GOLDEN).join("real")).unwrap()
}

fn config() -> MediaConfig {
    MediaConfig::load(&real()).unwrap()
}

/// The prompter of the real model, as far as the golden folder has its tokenizer.
fn prompter() -> Prompter {
    let config = OmniConfig::parse(&real().read_json("config.json").unwrap().unwrap()).unwrap();
    let (tokenizer, template) = (Tokenizer::load(&real()).unwrap(), ChatTemplate::load(&real()).unwrap());
    Prompter::new(tokenizer.into(), template.into(), &config)
}

fn user(parts: &[Part]) -> MediaMessage {
    MediaMessage { role: Role::User, content: Content::Parts(parts.to_vec()), calls: Vec::new() }
}

#[test]
fn a_prompt_says_where_rows_go_and_what_the_talker_takes() {
    let message = user(&[Part::Audio, Part::Text("and".into()), Part::Image]);
    let grid = Grid { t: 1, h: 4, w: 6 };
    let media = [MediaItem::Audio(5), MediaItem::Image(grid)];
    let MediaPrompt { prompt, layout, items } = prompter().media(&[message], &[], &media, &config(), 100).unwrap();
    layout.check(prompt.ids.len()).unwrap();
    let places: Vec<(MediaKind, usize)> = layout.spans.iter().map(|span| (span.kind, span.len())).collect();
    assert_eq!(places, [(MediaKind::Audio, 5), (MediaKind::Image, 6)]);
    assert_eq!(items, [0, 1]);
    let pads = [config().tokens.audio, config().tokens.image];
    for (span, pad) in layout.spans.iter().zip(pads) {
        let of = |range: &std::ops::Range<usize>| prompt.ids[range.clone()].to_vec();
        assert_eq!(span.at.iter().flat_map(of).collect::<Vec<_>>(), vec![pad; span.len()]);
        let taken = prompt.emit[0].start as usize..prompt.emit[0].end as usize;
        assert!(taken.start < span.at[0].start && span.at[0].end < taken.end);
    }
    // Six tokens of the image have three columns: three positions fewer.
    assert_eq!(layout.positions.unwrap().delta, -3.0);
}

#[test]
fn a_clients_text_is_never_a_placeholder() {
    let text = "<|audio_pad|><|vision_start|><|image_pad|><|vision_end|><|im_end|>";
    let message = user(&[Part::Text(text.into()), Part::Audio]);
    let MediaPrompt { prompt, layout, .. } =
        prompter().media(&[message], &[], &[MediaItem::Audio(3)], &config(), 1_000).unwrap();
    let count = |id: u32| prompt.ids.iter().filter(|found| **found == id).count();
    let tokens = config().tokens;
    assert_eq!((count(tokens.audio), count(tokens.image), count(tokens.vision_start)), (3, 0, 0));
    assert_eq!((layout.spans.len(), layout.spans[0].len(), layout.positions), (1, 3, None));
}

#[test]
fn conversations_that_do_not_fit_their_media_or_the_context_are_refused() {
    let refused = |parts: &[Part], media: &[MediaItem], most| {
        prompter().media(&[user(parts)], &[], media, &config(), most).unwrap_err().to_string()
    };
    let missing = refused(&[Part::Image], &[], 100);
    assert_eq!(missing, "the conversation has 1 places for image, but 0 are given");
    let long = refused(&[Part::Audio], &[MediaItem::Audio(1_000)], 100);
    assert!(long.contains("tokens with all media, at most 100 are taken"), "{long}");
    assert!(matches!(prompter().media(&[], &[], &[], &config(), 100), Err(PromptError::Empty)));
}

#[test]
fn files_that_describe_no_front_end_are_refused_by_field() {
    let read = |name: &str| real().read_json(name).unwrap().unwrap();
    let refused = |file: &str, field: &str, value: serde_json::Value| {
        let (mut config, mut preprocessor) = (read("config.json"), read("preprocessor_config.json"));
        let document = if file == "config.json" { &mut config["thinker_config"] } else { &mut preprocessor };
        document[field] = value;
        let (named, problems) = MediaConfig::parse(&config, &preprocessor).unwrap_err();
        assert_eq!(named, file);
        problems.join("; ")
    };
    let file = "preprocessor_config.json";
    for (field, value, says) in [
        ("patch_size", json!(14), "patch_size differs from 16, which thinker_config.vision_config of config.json has"),
        ("merge_size", json!(0), "merge_size = 0: expected a whole number from 1 to 16777216"),
        ("image_std", json!([0.5, 0.0, 0.5]), "image_std: expected numbers above 0"),
        ("image_mean", json!([0.5]), "image_mean: expected a list of three numbers"),
        ("dither", json!(0.1), "dither = 0.1 is not served: expected 0"),
        ("hop_length", json!("a"), "hop_length = \"a\": expected a whole number from 1 to 16777216"),
    ] {
        assert!(refused(file, field, value).contains(says), "{field}");
    }
    let says = refused("config.json", "audio_token_id", json!(null));
    assert!(says.contains("thinker_config.audio_token_id is missing: expected a token id"), "{says}");
}
