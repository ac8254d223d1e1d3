use super::super::simd::{Level, dispatch_at};
use super::*;
use proptest::prelude::*;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 300.0 - 1.6).collect()
}

fn tensor(shape: (usize, usize, usize), seed: usize) -> Tensor {
    Tensor::from_vec(numbers(shape.0 * shape.1 * shape.2, seed), shape, &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// A call on contiguous queries, keys and values.
fn call<'a>([q, k, v]: [&'a [f32]; 3], size: Size) -> Call<'a> {
    let heads = |data| Heads::packed(data, size.heads, size.d);
    Call { q: heads(q), k: heads(k), v: heads(v), size, scale: 0.3 }
}

proptest! {
    #[test]
    fn the_kernel_agrees_with_plain_operations(
        n in 1usize..20, all in 1usize..3 * KEYS, heads in 1usize..4, d in 1usize..90,
    ) {
        let (q, k, v) = (tensor((n, heads, d), 1), tensor((all, heads, d), 2), tensor((all, heads, d), 3));
        let scale = (d as f32).powf(-0.5);
        let (got, want) = (attention_to_all(&q, &k, &v, scale).unwrap(), plain(&q, &k, &v, scale).unwrap());
        prop_assert_eq!(got.dims(), want.dims());
        for (g, w) in flat(&got).iter().zip(flat(&want)) {
            prop_assert!((g - w).abs() < 1e-5, "{g}, not {w}");
        }
    }

    #[test]
    fn queries_have_the_same_bits_in_pieces_of_any_size(cut in 1usize..40, all in 1usize..2 * KEYS) {
        let (q, k, v) = (tensor((40, 2, 24), 1), tensor((all, 2, 24), 2), tensor((all, 2, 24), 3));
        let of = |q: Tensor| flat(&attention_to_all(&q, &k, &v, 0.2).unwrap());
        let parts = [of(q.narrow(0, 0, cut).unwrap()), of(q.narrow(0, cut, 40 - cut).unwrap())];
        prop_assert_eq!(parts.concat(), of(q));
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let size = Size { n: 5 * JOB_QUERIES + 3, all: KEYS + 77, heads: 3, d: 20 };
    let count = |rows: usize| rows * size.heads * size.d;
    let [q, k, v] = [(size.n, 1), (size.all, 2), (size.all, 3)].map(|(rows, seed)| numbers(count(rows), seed));
    let once = call([&q, &k, &v], size).run(1);
    for threads in [2, 5, 16] {
        assert!(call([&q, &k, &v], size).run(threads) == once, "{threads} threads");
    }
}

#[test]
fn every_instruction_set_gives_the_attention() {
    let size = Size { n: 23, all: 2 * KEYS + 9, heads: 1, d: 72 };
    let [q, k, v] = [(size.n, 1), (size.all, 2), (size.all, 3)].map(|(rows, seed)| numbers(rows * size.d, seed));
    let at = |level| dispatch_at(level, Job { call: call([&q, &k, &v], size), head: 0, queries: 0..size.n });
    let portable = at(Level::Portable).unwrap();
    let tensor = |data: &[f32], rows| Tensor::from_slice(data, (rows, 1, size.d), &Device::Cpu).unwrap();
    let want = plain(&tensor(&q, size.n), &tensor(&k, size.all), &tensor(&v, size.all), 0.3).unwrap();
    let close = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(close(&portable, &flat(&want)));
    #[cfg(target_arch = "x86_64")]
    {
        let (narrow, wide) = (at(Level::Avx2), at(Level::Avx512));
        if let (Some(narrow), Some(wide)) = (&narrow, &wide) {
            assert!(narrow == wide, "both have FMA, so both have the same bits");
        }
        for got in narrow.iter().chain(&wide) {
            assert!(close(got, &portable));
        }
    }
}

#[test]
fn a_later_block_with_far_larger_scores_takes_the_weight() {
    // Scores of -400 up to 400, the largest in the last block: one key has all the weight.
    let all = 3 * KEYS + 5;
    let rising: Vec<f32> = (0..all).map(|j| j as f32 - all as f32 / 2.0).collect();
    let k = Tensor::from_vec(rising.clone(), (all, 1, 1), &Device::Cpu).unwrap();
    let v = Tensor::from_vec(rising.clone(), (all, 1, 1), &Device::Cpu).unwrap();
    let q = Tensor::from_vec(vec![20f32, -20.0], (2, 1, 1), &Device::Cpu).unwrap();
    assert_eq!(flat(&attention_to_all(&q, &k, &v, 1.0).unwrap()), [rising[all - 1], rising[0]]);
}

#[test]
fn views_need_no_copy() {
    let qkv = tensor((300, 6, 16), 1);
    let part = |i: usize| qkv.narrow(1, 2 * i, 2).unwrap();
    let (q, k, v) = (part(0).narrow(0, 40, 9).unwrap(), part(1), part(2));
    let copied = [&q, &k, &v].map(|x| x.contiguous().unwrap());
    let got = attention_to_all(&q, &k, &v, 0.3).unwrap();
    assert_eq!(flat(&got), flat(&attention_to_all(&copied[0], &copied[1], &copied[2], 0.3).unwrap()));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let q = tensor((2, 2, 4), 1);
    for (k, v) in [((5, 1, 4), (5, 1, 4)), ((5, 2, 3), (5, 2, 3)), ((5, 2, 4), (6, 2, 4)), ((0, 2, 4), (0, 2, 4))] {
        assert!(attention_to_all(&q, &tensor(k, 1), &tensor(v, 1), 1.0).is_err(), "{k:?}");
    }
}
