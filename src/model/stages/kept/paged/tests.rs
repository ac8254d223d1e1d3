//! Prompts and answers that are kept in pages, one after the other; [`played`] has any of them together.

mod played;

use super::*;
use crate::sampling::SamplingParams;
use crate::stage::{Reuse, ThinkerMode};

/// Bytes of a page.
const BYTES: usize = 100;

fn spec(prompt: impl IntoIterator<Item = u32>, owner: u8) -> ThinkerSpec {
    ThinkerSpec {
        prompt: prompt.into_iter().collect(),
        generated_len: 0,
        mode: ThinkerMode::Sample,
        emit: None,
        sampling: SamplingParams::GREEDY,
        eos: [].into(),
        max_tokens: 100,
        seed: 1,
        media: None,
        reuse: (owner > 0).then(|| Reuse { owner: [owner; 32], media: [].into() }),
    }
}

/// Prefills a prompt in one step; the sequence and what was found of it.
fn prefilled(pages: &mut PagedPrompts, spec: &ThinkerSpec) -> (Held, u32) {
    let mut held = pages.begin(spec).unwrap();
    let planned = pages.prompt(&mut held, spec, spec.prompt.len() as u32).unwrap();
    held.computes(&planned);
    pages.queued(&mut held, spec);
    (held, planned.found.end)
}

#[test]
fn the_longest_beginning_in_whole_pages_is_found_answers_included_by_the_same_owner() {
    let mut pages = PagedPrompts::new(40, 40, BYTES, 40 * BYTES);
    let asked = spec(0..40, 1);
    let (mut held, found) = prefilled(&mut pages, &asked);
    assert_eq!(found, 0);
    for (number, token) in (500..510).enumerate() {
        pages.answer(&mut held, 40 + number as u32).unwrap();
        pages.said(&mut held, &asked, token);
    }
    // 40 positions, and those of the tokens but for the last: 49 of them fill three pages, while it still answers.
    let next = spec((0..40).chain(500..510).chain(300..320), 1);
    let (other, found) = prefilled(&mut pages, &next);
    assert_eq!((found, &other.pages()[..3]), (48, &held.pages()[..3]));
    pages.end(other);
    pages.end(held);
    for (what, spec, expected) in [
        ("the same", next.clone(), 64),
        ("another answer", spec((0..40).chain(501..511).chain(300..320), 1), 32),
        ("another beginning", spec(1..41, 1), 0),
        ("another owner", spec(0..40, 2), 0),
        ("of no owner", spec(0..40, 0), 0),
    ] {
        let (held, found) = prefilled(&mut pages, &spec);
        assert_eq!(found, expected, "{what}");
        pages.end(held);
    }
}

#[test]
fn the_last_position_of_a_prompt_is_computed_each_time_in_a_page_of_its_own() {
    let mut pages = PagedPrompts::new(20, 20, BYTES, 20 * BYTES);
    for len in [1, 16, 17, 32, 33] {
        let spec = spec((0..len).map(|at| at + len * 100), 1);
        for expected in [0, (len - 1) / 16 * 16] {
            let (held, found) = prefilled(&mut pages, &spec);
            assert_eq!(found, expected, "{len} positions");
            pages.end(held);
        }
    }
}

#[test]
fn a_step_takes_what_it_needs_and_computes_the_rest() {
    let mut pages = PagedPrompts::new(20, 20, BYTES, 20 * BYTES);
    let spec = spec(0..70, 1);
    let (first, _) = prefilled(&mut pages, &spec);
    let mut held = pages.begin(&spec).unwrap();
    let mut step = |upto| {
        let planned = pages.prompt(&mut held, &spec, upto).unwrap();
        held.computes(&planned);
        pages.queued(&mut held, &spec);
        (planned.found, planned.compute, planned.told)
    };
    assert_eq!(step(17), (0..32, 32..32, 0..2), "all of a page, though two positions of it are asked for");
    assert_eq!(step(32), (32..32, 32..32, 2..2), "they were there");
    assert_eq!(step(33), (32..48, 48..48, 2..3));
    assert_eq!(step(70), (48..64, 64..70, 3..5));
    assert_eq!(pages.count().0, 6, "four pages are shared, each has one of its own");
    assert_eq!((held.row(63), held.row(80)), (Some(held.pages()[3] * 16 + 15), None));
    pages.end(first);
    pages.end(held);
    assert_eq!((pages.count().0, pages.idle()), (0, 4));
}

#[test]
fn a_sequence_without_room_changes_nothing_and_what_is_idle_goes_first() {
    let mut pages = PagedPrompts::new(6, 5, BYTES, 100 * BYTES);
    let (kept, other) = (spec(0..50, 1), spec(100..150, 1));
    let (held, _) = prefilled(&mut pages, &kept);
    pages.end(held);
    assert_eq!((pages.count(), pages.idle()), ((0, 6), 3));
    // Four pages: three are free, and the deepest idle one.
    let (mut held, _) = prefilled(&mut pages, &other);
    assert_eq!((pages.count(), pages.idle()), ((4, 6), 2));
    let mut third = pages.begin(&kept).unwrap();
    assert_eq!(pages.prompt(&mut third, &kept, 50), None);
    assert_eq!((pages.count(), pages.idle(), third.pages().len()), ((4, 6), 2, 0), "what it had found is given back");
    assert_eq!(pages.prompt(&mut third, &kept, 16).unwrap().found, 0..16);
    assert_eq!(pages.answer(&mut held, 80), Some(4..5));
    assert_eq!(pages.answer(&mut held, 81), None, "a sequence has five at most");
    pages.end(held);
    pages.end(third);
    assert_eq!(pages.count().0, 0);
}

#[test]
fn what_failed_is_found_no_more() {
    let mut pages = PagedPrompts::new(20, 20, BYTES, 20 * BYTES);
    let spec = spec(0..50, 1);
    let (mut failing, _) = prefilled(&mut pages, &spec);
    let (sharing, found) = prefilled(&mut pages, &spec);
    assert_eq!(found, 48);
    pages.failed(&mut failing);
    pages.end(failing);
    let (held, found) = prefilled(&mut pages, &spec);
    assert_eq!(found, 0, "not even while another sequence uses it");
    pages.end(sharing);
    pages.end(held);
    assert_eq!((pages.count().0, pages.idle()), (0, 3), "those that were computed again");
}

#[test]
fn where_nothing_is_to_be_kept_nothing_is() {
    let mut pages = PagedPrompts::new(20, 20, BYTES, 0);
    for _ in 0..2 {
        let (mut held, found) = prefilled(&mut pages, &spec(0..50, 1));
        assert_eq!(found, 0);
        pages.said(&mut held, &spec(0..50, 1), 1);
        pages.end(held);
        assert_eq!((pages.count().0, pages.idle()), (0, 0));
    }
}

#[test]
fn no_more_bytes_idle_than_were_allowed_and_the_beginning_of_the_latest_stays() {
    let mut pages = PagedPrompts::new(40, 40, BYTES, 4 * BYTES + BYTES / 2);
    for owner in [1, 2, 1, 3] {
        let (held, _) = prefilled(&mut pages, &spec(0..33, owner));
        assert!(pages.idle() <= 4);
        pages.end(held);
    }
    assert_eq!(pages.idle(), 4);
    for (owner, expected) in [(1, 32), (3, 32), (2, 0)] {
        let (held, found) = prefilled(&mut pages, &spec(0..33, owner));
        assert_eq!(found, expected, "owner {owner}");
        pages.end(held);
    }
    let (held, _) = prefilled(&mut pages, &spec(0..200, 4));
    pages.end(held);
    assert_eq!(prefilled(&mut pages, &spec(0..200, 4)).1, 64, "the first four pages of a long one");
}

#[test]
fn what_has_left_the_device_comes_back_from_the_host_and_is_copied_out_once() {
    let mut pages = PagedPrompts::new(10, 10, BYTES, 2 * BYTES).with_host(5);
    let [first, other] = [spec(0..50, 1), spec(100..150, 1)];
    let ended = |pages: &mut PagedPrompts, spec: &ThinkerSpec| {
        let (held, found) = prefilled(pages, spec);
        let restored = pages.to_restore();
        assert!(restored.iter().all(|copy| held.pages().contains(&copy.page)), "into its own pages");
        pages.end(held);
        (found, restored.len(), pages.to_save().len())
    };
    assert_eq!(ended(&mut pages, &first), (0, 0, 3), "the three pages that are full");
    assert_eq!(ended(&mut pages, &first), (48, 1, 0), "two were on the device, one comes back");
    assert_eq!(ended(&mut pages, &other), (0, 0, 3), "the last page of the first conversation made room");
    assert_eq!(ended(&mut pages, &first), (32, 2, 1), "what is computed again is copied again");
    assert_eq!(ended(&mut pages, &other), (32, 2, 1));
}

#[test]
fn what_failed_is_not_found_on_the_host_either() {
    let mut pages = PagedPrompts::new(20, 20, BYTES, BYTES).with_host(20);
    let spec = spec(0..50, 1);
    let (held, _) = prefilled(&mut pages, &spec);
    pages.end(held);
    assert_eq!(pages.to_save().len(), 3);
    let (mut failing, found) = prefilled(&mut pages, &spec);
    assert_eq!((found, pages.to_restore().len()), (48, 2));
    pages.failed(&mut failing);
    pages.end(failing);
    assert_eq!(prefilled(&mut pages, &spec).1, 0);
}

#[test]
fn a_page_that_was_to_be_copied_into_and_is_given_to_another_sequence_is_left_alone() {
    let mut pages = PagedPrompts::new(4, 4, BYTES, BYTES).with_host(10);
    let kept = spec(0..60, 1);
    let (held, _) = prefilled(&mut pages, &kept);
    pages.end(held);
    assert_eq!((pages.to_save().len(), pages.idle()), (3, 1));
    let (running, _) = prefilled(&mut pages, &spec(100..116, 1));
    // Three pages are found, one of them on the device, and there is none for the rest.
    let mut failing = pages.begin(&kept).unwrap();
    assert_eq!(pages.prompt(&mut failing, &kept, 60), None);
    assert_eq!(pages.to_restore.len(), 2);
    let (taking, _) = prefilled(&mut pages, &spec(200..248, 1));
    assert_eq!((taking.pages().len(), pages.to_restore()), (3, Vec::new()));
    [running, failing, taking].into_iter().for_each(|held| pages.end(held));
}
