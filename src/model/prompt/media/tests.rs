//! Expansion and positions of small prompts; whole ones are compared with the reference by `omni-actors verify`.

use super::*;
use crate::hf::MediaTokens;
use crate::media::{Positions, Span};
use omni_media::mel::MelConfig;
use omni_media::patches::PatchConfig;
use omni_media::size::SizeRule;

const PADS: MediaTokens =
    MediaTokens { audio: 1, image: 2, video: 3, vision_start: 4, vision_end: 5, audio_start: 6, audio_end: 7 };

fn config() -> MediaConfig {
    let rule = SizeRule { factor: 32, min_pixels: 1, max_pixels: 1 << 20 };
    MediaConfig {
        tokens: PADS,
        positions_per_second: 13.0,
        n_window: 50,
        mel: MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 },
        patches: PatchConfig { patch_size: 16, merge_size: 2, temporal_patch_size: 2, mean: [0.5; 3], std: [0.5; 3] },
        image: rule,
        video: rule,
    }
}

const IMAGE: MediaItem = MediaItem::Image(Grid { t: 1, h: 2, w: 6 });

fn video(t: usize, audio: Option<usize>) -> MediaItem {
    MediaItem::Video { grid: Grid { t, h: 2, w: 2 }, second_per_grid: 1.0, audio }
}

#[test]
fn placeholders_become_as_many_as_there_are_tokens_and_rows_know_their_places() {
    let ids = [9, 4, 2, 5, 6, 1, 7, 4, 3, 5, 9];
    let media = [IMAGE, MediaItem::Audio(2), video(2, Some(15))];
    let Expanded { ids, spans, items } = expand(&ids, &media, &config(), 100).unwrap();
    let pads = |id: u32, count: usize| vec![id; count];
    let heard = [vec![6, 3], pads(1, 13), vec![3], pads(1, 2), vec![7]].concat();
    assert_eq!(ids, [vec![9, 4, 2, 2, 2, 5, 6, 1, 1, 7, 4], heard, vec![5, 9]].concat());
    let of = |kind, at: &[(usize, usize)]| Span { kind, at: at.iter().map(|(start, end)| *start..*end).collect() };
    let want = [
        of(MediaKind::Image, &[(2, 5)]),
        of(MediaKind::Audio, &[(7, 9)]),
        of(MediaKind::Video, &[(12, 13), (26, 27)]),
        of(MediaKind::Audio, &[(13, 26), (27, 29)]),
    ];
    assert_eq!((spans.as_slice(), items), (&want[..], vec![0, 1, 2, 2]));
    assert_eq!(spans.iter().map(Span::len).collect::<Vec<_>>(), [3, 2, 2, 15]);
}

#[test]
fn a_prompt_that_does_not_fit_its_media_or_the_context_is_refused() {
    let refused = |ids: &[u32], media: &[MediaItem], most| expand(ids, media, &config(), most).unwrap_err().to_string();
    assert_eq!(refused(&[2], &[], 9), "the conversation has 1 places for image, but 0 are given");
    assert_eq!(refused(&[9], &[video(1, None)], 9), "the conversation has 0 places for video, but 1 are given");
    assert_eq!(
        refused(&[1, 9], &[MediaItem::Audio(usize::MAX)], 9),
        format!("the prompt has {} tokens with all media, at most 9 are taken: send less or smaller media", usize::MAX)
    );
    assert!(expand(&[1, 9], &[MediaItem::Audio(8)], &config(), 9).is_ok());
}

#[test]
fn text_goes_on_behind_the_largest_position_of_a_picture() {
    let positions = positions(&[9, 4, 2, 2, 2, 5, 9], &[IMAGE], &config(), Side::Thinker).unwrap();
    assert_eq!(positions.axes[0], [0.0, 1.0, 2.0, 2.0, 2.0, 5.0, 6.0]);
    assert_eq!(positions.axes[2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(positions.delta, 0.0);
}

#[test]
fn steps_of_a_video_are_as_far_apart_as_their_time() {
    let positions = positions(&[4, 3, 3, 5], &[video(2, None)], &config(), Side::Thinker).unwrap();
    assert_eq!(positions.axes, [vec![0.0, 1.0, 14.0, 15.0], vec![0.0, 1.0, 1.0, 15.0], vec![0.0, 1.0, 1.0, 15.0]]);
    assert_eq!(positions.delta, 12.0);
}

#[test]
fn the_talker_takes_a_heard_video_for_text_unless_an_image_is_to_come() {
    let media = [video(1, Some(2))];
    let expanded = expand(&[4, 3, 5], &media, &config(), 100).unwrap().ids;
    let thinker = positions(&expanded, &media, &config(), Side::Thinker).unwrap();
    assert_eq!(thinker.axes[0], [0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0]);
    let talker = positions(&expanded, &media, &config(), Side::Talker).unwrap();
    assert_eq!(talker, Positions::text(7));
    let media = [video(1, Some(2)), IMAGE];
    let expanded = expand(&[4, 3, 5, 4, 2, 5], &media, &config(), 100).unwrap().ids;
    let side = |side| positions(&expanded, &media, &config(), side).unwrap();
    assert_eq!(side(Side::Talker), side(Side::Thinker));
}

#[test]
fn ids_of_other_media_are_refused() {
    for (ids, media) in [
        (&[4, 2, 2, 5][..], &[IMAGE][..]),
        (&[4, 2, 2, 2, 5, 4, 2, 5], &[IMAGE]),
        (&[4, 2, 2, 2, 5], &[IMAGE, IMAGE]),
        (&[6, 1, 7, 4, 2, 2, 2, 5], &[IMAGE, MediaItem::Audio(1)]),
    ] {
        assert!(matches!(positions(ids, media, &config(), Side::Thinker), Err(PromptError::Structure(_))), "{ids:?}");
    }
}

#[test]
fn sound_alone_has_the_positions_of_text() {
    let got = positions(&[6, 1, 1, 7, 9], &[MediaItem::Audio(2)], &config(), Side::Thinker).unwrap();
    assert_eq!(got, Positions::text(5));
}
