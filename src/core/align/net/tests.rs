use super::*;

/// Two letters, two phonemes, one code of a frame: code 1 sounds as "a", code 2 as "b", any other as silence.
fn tensors() -> Tensors {
    let (codebook, width, phonemes) = (4, 3, 3);
    let mut tensors = Tensors::new();
    let mut put = |name: &str, shape: &[usize], values: Vec<f32>| tensors.insert(name.into(), (shape.to_vec(), values));
    // A code's vector has a one where its phoneme is; code 3 is like code 0.
    let row = |code: usize| (0..width).map(move |at| f32::from(u8::from(at == code % 3)));
    put("codes", &[1, codebook, width], (0..codebook).flat_map(row).collect());
    // The middle frame alone is looked at.
    let inputs = (2 * BESIDE + 1) * width;
    let middle = |at: usize| (0..inputs).map(move |i| f32::from(u8::from(i == BESIDE * width + at)));
    put("sound.weight", &[width, inputs], (0..width).flat_map(middle).collect());
    put("sound.bias", &[width], vec![0.0; width]);
    let certain = |at: usize| (0..width).map(move |i| if i == at % phonemes { 9.0 } else { 0.0 });
    put("score.weight", &[PARTS * phonemes, width], (0..PARTS * phonemes).flat_map(certain).collect());
    put("score.bias", &[PARTS * phonemes], vec![0.0; PARTS * phonemes]);
    put("prior", &[phonemes], vec![0.0; phonemes]);
    // Letters a and b are said as they are, others are silent.
    put(
        "letters",
        &[LETTERS, 2],
        (0..LETTERS).flat_map(|at| [at == 1, at == 2].map(u8::from).map(f32::from)).collect(),
    );
    let inputs = (2 * LETTERS_BESIDE + 1) * 2;
    let middle = |at: usize| (0..inputs).map(move |i| f32::from(u8::from(i == LETTERS_BESIDE * 2 + at)));
    put("spell.weight", &[2, inputs], (0..2).flat_map(middle).collect());
    put("spell.bias", &[2], vec![0.0; 2]);
    put("spelled.weight", &[3, 2], vec![0.0, 0.0, 9.0, 0.0, 0.0, 9.0]);
    put("spelled.bias", &[3], vec![1.0, 0.0, 0.0]);
    put("classes", &[3, 3], vec![0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
    put("penalties", &[2], vec![3.0, 0.0]);
    tensors
}

fn aligned(words: &[&str], codes: &[u32], chunk: usize) -> Vec<(usize, u64, u64)> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut alignment = CodeAligner::new(tensors(), 1).unwrap().begin(&words);
    let mut spans = Vec::new();
    for codes in codes.chunks(chunk) {
        spans.extend(alignment.hear(Heard { codes, samples: &[] }));
    }
    spans.extend(alignment.finish());
    spans.into_iter().map(|span| (span.word, span.start / QUARTERS, span.end / QUARTERS)).collect()
}

#[test]
fn words_are_where_their_codes_are() {
    let codes = [0, 0, 1, 2, 2, 0, 2, 1, 1, 0];
    assert_eq!(aligned(&["ab", "ba"], &codes, 3), [(0, 2, 5), (1, 6, 9)]);
    assert_eq!(aligned(&["Ab,", "—", "b-a!"], &codes, 3), [(0, 2, 5), (2, 6, 9)], "a dash is not spoken");
}

#[test]
fn no_pause_is_needed_between_words() {
    assert_eq!(aligned(&["ab", "ab", "ab"], &[1, 2, 1, 2, 1, 2], 6), [(0, 0, 2), (1, 2, 4), (2, 4, 6)]);
}

#[test]
fn chunks_change_nothing_and_words_come_before_the_end() {
    let codes: Vec<u32> = (0..40).flat_map(|_| [0, 1, 2, 0, 2]).collect();
    let words: Vec<&str> = (0..40).flat_map(|_| ["ab", "b"]).collect();
    let whole = aligned(&words, &codes, codes.len());
    assert_eq!(whole.len(), 80);
    for chunk in [1, 2, 7, 50] {
        assert_eq!(aligned(&words, &codes, chunk), whole);
    }
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut alignment = CodeAligner::new(tensors(), 1).unwrap().begin(&words);
    let early = alignment.hear(Heard { codes: &codes[..100], samples: &[] });
    // 20 frames of 5 hold 2 words each; the look ahead is 8 frames, the window 2 more.
    assert!(early.len() >= 34, "{}", early.len());
}

#[test]
fn words_that_were_not_spoken_have_no_length_and_every_word_is_told_once() {
    for codes in [vec![], vec![1], vec![1, 2], vec![0; 30], vec![2; 300]] {
        let spans = aligned(&["ab", "b", "ab"], &codes, 4);
        assert_eq!(spans.iter().map(|span| span.0).collect::<Vec<_>>(), [0, 1, 2], "{codes:?}");
        let end = codes.len() as u64;
        assert!(spans.windows(2).all(|pair| pair[0].2 <= pair[1].1) && spans[2].2 <= end, "{codes:?}: {spans:?}");
    }
}

#[test]
fn a_very_long_word_is_followed_to_its_end() {
    let word = "ab".repeat(400);
    let mut codes: Vec<u32> = [1, 2].repeat(400);
    codes.extend([0, 1, 2]);
    assert_eq!(aligned(&[&word, "ab"], &codes, 9), [(0, 0, 800), (1, 801, 803)]);
}

#[test]
fn a_file_of_another_shape_is_refused() {
    let broken = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors();
        change(&mut tensors);
        CodeAligner::new(tensors, 1).unwrap_err()
    };
    assert!(broken(&|t| drop(t.remove("prior"))).contains("has no tensor prior"));
    assert!(broken(&|t| t.get_mut("score.bias").unwrap().0 = vec![5]).contains("score.bias has the shape [5]"));
    assert!(broken(&|t| t.get_mut("prior").unwrap().1[0] = f32::NAN).contains("not finite"));
    assert!(broken(&|t| t.get_mut("classes").unwrap().1[0] = 7.0).contains("none of 3"));
    let two = |t: &mut Tensors| *t.get_mut("codes").unwrap() = (vec![2, 4, 3], vec![0.0; 24]);
    assert!(broken(&two).contains("reads 2 codes of a frame, and the talker makes 1"));
}

proptest::proptest! {
    #[test]
    fn any_text_and_codes_give_words_in_order(
        words in proptest::collection::vec("[abx'—1]{0,6}", 0..12),
        codes in proptest::collection::vec(0u32..9, 0..80),
        chunk in 1usize..20,
    ) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let spans = aligned(&words, &codes, chunk);
        proptest::prop_assert!(spans.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].2 <= pair[1].1));
        proptest::prop_assert!(spans.iter().all(|span| span.1 <= span.2 && span.2 <= codes.len() as u64));
        proptest::prop_assert_eq!(spans, aligned(&words, &codes, 80));
    }
}
