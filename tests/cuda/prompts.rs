//! A position has the same bits as a token and in a prompt, whatever the cut and the batch: what recovery, kept prompts
//! and batching stand on.

use crate::moe::real;
use omni_actors::config::Precision;
use omni_actors::cuda::decoder::{Cache, Engine, Rows, Stack};
use omni_actors::cuda::{Gpu, Priority, Stream};
use omni_actors::model::sampling::{Domain, uniform};

const PAGES: usize = 64;

/// Positions of sequences, the keys and values of which go into one cache.
struct Sequences<'a> {
    gpu: &'a Gpu,
    stack: &'a Stack,
    engine: &'a Engine,
    stream: Stream,
    hidden: usize,
}

impl Sequences<'_> {
    fn cache(&self, sequences: usize) -> Cache {
        let cache = self.stack.cache(self.gpu, Precision::Bf16, sequences * PAGES, sequences, PAGES).unwrap();
        let pages: Vec<u32> = (0..(sequences * PAGES) as u32).map(|i| i * 7919 % (sequences * PAGES) as u32).collect();
        cache.tables_buffer().write(0, &pages).unwrap();
        cache
    }

    /// What the residual stream is in front of a layer at a position of a sequence.
    fn input(&self, sequence: usize, at: usize) -> impl Iterator<Item = f32> {
        let row = (sequence * 10_000 + at) as u32;
        (0..self.hidden as u32).map(move |i| (uniform(3, Domain::Codes, row, i) * 2.0 - 1.0) * 1.7)
    }

    /// One pass over rows, each a sequence and a position; the residual stream behind it.
    fn pass(&self, cache: &Cache, rows: &[(usize, usize)], distinct: bool) -> Vec<f32> {
        let up = |data: Vec<u32>| self.gpu.upload("rows", &data).unwrap();
        let slots = up(rows.iter().map(|row| row.0 as u32).collect());
        let positions = up(rows.iter().map(|row| row.1 as u32).collect());
        let x: Vec<f32> = rows.iter().flat_map(|(sequence, at)| self.input(*sequence, *at)).collect();
        let x = self.gpu.upload("rows", &x).unwrap();
        let rows = Rows {
            count: rows.len(),
            slots: slots.address(),
            positions: positions.address(),
            axes: 0,
            distinct,
            most: None,
        };
        self.stack.run(self.engine, &self.stream, x.address(), rows, cache).unwrap();
        x.read(&self.stream).unwrap()
    }
}

fn a_position_has_the_same_bits_in_any_pass(name: &str) {
    real(name, |gpu, stack, config| {
        let hidden = config.hidden_size;
        let engine = Engine::new(gpu, Precision::Bf16, 1100, &[config], hidden).unwrap();
        let stream = gpu.stream(Priority::Normal).unwrap();
        let sequences = Sequences { gpu, stack, engine: &engine, stream, hidden };
        let lens = [1usize, 40, 129, 260, 600];
        let all: Vec<(usize, usize)> =
            lens.iter().enumerate().flat_map(|(sequence, len)| (0..*len).map(move |at| (sequence, at))).collect();
        let whole = sequences.pass(&sequences.cache(lens.len()), &all, false);
        let row = |of: (usize, usize)| {
            let number = lens[..of.0].iter().sum::<usize>() + of.1;
            &whole[number * hidden..(number + 1) * hidden]
        };
        let same = |rows: &[(usize, usize)], got: &[f32], what: &str| {
            for (number, of) in rows.iter().enumerate() {
                assert!(&got[number * hidden..(number + 1) * hidden] == row(*of), "{name}: {what}: {of:?} differs");
            }
        };
        for (sizes, what) in [([7usize, 100, 31], "small cuts"), ([256, 300, 17], "large cuts")] {
            let (cache, mut left, mut turn) = (sequences.cache(lens.len()), &all[..], 0);
            while !left.is_empty() {
                let (cut, rest) = left.split_at(sizes[turn % sizes.len()].min(left.len()));
                same(cut, &sequences.pass(&cache, cut, false), what);
                (left, turn) = (rest, turn + 1);
            }
        }
        let cache = sequences.cache(lens.len());
        for at in 0..lens[lens.len() - 1] {
            let tokens: Vec<_> = (0..lens.len()).filter(|of| lens[*of] > at).map(|of| (of, at)).collect();
            same(&tokens, &sequences.pass(&cache, &tokens, true), "tokens");
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_position_of_the_thinker_has_the_same_bits_as_a_token_and_in_any_cut_of_a_prompt() {
    a_position_has_the_same_bits_in_any_pass("thinker");
}

#[test]
#[ignore = "needs a GPU"]
fn a_position_of_the_talker_has_the_same_bits_as_a_token_and_in_any_cut_of_a_prompt() {
    a_position_has_the_same_bits_in_any_pass("talker");
}

#[test]
#[ignore = "needs a GPU"]
fn a_position_without_experts_has_the_same_bits_as_a_token_and_in_any_cut_of_a_prompt() {
    a_position_has_the_same_bits_in_any_pass("dense");
}
