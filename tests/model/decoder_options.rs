//! What the goldens' configs leave out: biases, dense layers, routing weights as they are, heads that share the
//! embedding. The decoder stack against the formulas of spec section 3, written out plainly.

use candle_core::{Device, Tensor};
use omni_actors::model::Checkpoint;
use omni_actors::model::hf::DecoderConfig;
use omni_actors::model::talker::Talker;
use omni_actors::model::thinker::Thinker;
use omni_actors::model::transformer::{DecoderStack, Segment};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Tensors by name.
type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;
type Embeddings = Vec<Vec<f64>>;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni")
}

/// Repeatable numbers in [-1, 1).
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// The tiny checkpoint with other settings and the weights that they need.
fn checkpoint(overrides: &Value, weights: &Weights) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        std::fs::copy(tiny().join(file), dir.path().join(file)).unwrap();
    }
    let tensors: HashMap<String, Tensor> = weights
        .iter()
        .map(|(name, (shape, data))| {
            (name.clone(), Tensor::from_vec(data.clone(), shape.as_slice(), &Device::Cpu).unwrap())
        })
        .collect();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open_with(dir.path(), overrides.as_object().unwrap()).unwrap();
    (dir, checkpoint)
}

/// Random weights of a stack, of the size that keeps activations near 1.
fn stack_weights(config: &DecoderConfig, prefix: &str) -> Weights {
    let mut weights = Weights::new();
    let mut add = |name: String, shape: &[usize]| {
        let n = shape.iter().product();
        let seed = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let scale = if shape.len() == 2 { 1.7 / (shape[1] as f32).sqrt() } else { 0.4 };
        let base = if name.contains("norm") { 1.0 } else { 0.0 };
        let data = noise(n, seed).into_iter().map(|x| base + x * scale).collect();
        weights.insert(format!("{prefix}.{name}"), (shape.to_vec(), data));
    };
    let (hidden, d) = (config.hidden_size, config.head_dim);
    let (q, kv) = (config.num_attention_heads * d, config.num_key_value_heads * d);
    for i in 0..config.num_hidden_layers {
        let at = |name: &str| format!("layers.{i}.{name}");
        for (name, out, from) in
            [("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden), ("o_proj", hidden, q)]
        {
            add(at(&format!("self_attn.{name}.weight")), &[out, from]);
            if config.attention_bias {
                add(at(&format!("self_attn.{name}.bias")), &[out]);
            }
        }
        add(at("self_attn.q_norm.weight"), &[d]);
        add(at("self_attn.k_norm.weight"), &[d]);
        add(at("input_layernorm.weight"), &[hidden]);
        add(at("post_attention_layernorm.weight"), &[hidden]);
        let mut block = |name: &str, inner: usize| {
            add(at(&format!("mlp{name}.gate_proj.weight")), &[inner, hidden]);
            add(at(&format!("mlp{name}.up_proj.weight")), &[inner, hidden]);
            add(at(&format!("mlp{name}.down_proj.weight")), &[hidden, inner]);
        };
        let moe = config.moe.as_ref().filter(|_| config.is_sparse(i));
        let Some(moe) = moe else {
            block("", config.intermediate_size);
            continue;
        };
        (0..moe.num_experts).for_each(|e| block(&format!(".experts.{e}"), moe.moe_intermediate_size));
        if let Some(inner) = moe.shared_expert_intermediate_size {
            block(".shared_expert", inner);
            add(at("mlp.shared_expert_gate.weight"), &[1, hidden]);
        }
        add(at("mlp.gate.weight"), &[moe.num_experts, hidden]);
    }
    add("norm.weight".into(), &[hidden]);
    weights
}

/// The formulas, one position at a time, in f64.
struct Plain<'a> {
    config: &'a DecoderConfig,
    weights: &'a Weights,
    prefix: &'a str,
}

impl Plain<'_> {
    fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.weights.get(&format!("{}.{name}", self.prefix)).map(|(_, data)| data.as_slice())
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        let bias = self.tensor(&format!("{name}.bias"));
        let sequences = weight.chunks(x.len()).enumerate();
        sequences.map(|(i, sequence)| dot(sequence, x) + bias.map_or(0.0, |b| f64::from(b[i]))).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.config.rms_norm_eps).sqrt();
        x.iter().zip(weight).map(|(v, w)| v * scale * f64::from(*w)).collect()
    }

    fn rotated(&self, x: &[f64], position: usize) -> Vec<f64> {
        let half = x.len() / 2;
        (0..x.len())
            .map(|i| {
                let j = i % half;
                let angle = position as f64 * self.config.rope_theta.powf(-2.0 * j as f64 / x.len() as f64);
                let other = if i < half { -x[i + half] } else { x[j] };
                x[i] * angle.cos() + other * angle.sin()
            })
            .collect()
    }

    fn attention(&self, layer: &str, xs: &Embeddings) -> Embeddings {
        let (d, group) = (self.config.head_dim, self.config.num_attention_heads / self.config.num_key_value_heads);
        let heads = |name: &str, norm: &str| -> Vec<Embeddings> {
            let of = |(position, x): (usize, &Vec<f64>)| {
                let projected = self.linear(&format!("{layer}.self_attn.{name}"), x);
                let head = |h: &[f64]| self.rotated(&self.norm(&format!("{layer}.self_attn.{norm}"), h), position);
                projected.chunks(d).map(head).collect::<Embeddings>()
            };
            xs.iter().enumerate().map(of).collect()
        };
        let (queries, keys) = (heads("q_proj", "q_norm"), heads("k_proj", "k_norm"));
        let values: Embeddings = xs.iter().map(|x| self.linear(&format!("{layer}.self_attn.v_proj"), x)).collect();
        let mix = |t: usize| {
            let head = |h: usize| {
                let score = |s: usize| {
                    let products = queries[t][h].iter().zip(&keys[s][h / group]).map(|(q, k)| q * k);
                    products.sum::<f64>() / (d as f64).sqrt()
                };
                let weights = softmax(&(0..=t).map(score).collect::<Vec<_>>());
                let value = |s: usize, i: usize| values[s][h / group * d + i];
                (0..d).map(|i| (0..=t).map(|s| weights[s] * value(s, i)).sum::<f64>()).collect::<Vec<_>>()
            };
            let mixed = (0..self.config.num_attention_heads).flat_map(head).collect::<Vec<_>>();
            self.linear(&format!("{layer}.self_attn.o_proj"), &mixed)
        };
        (0..xs.len()).map(mix).collect()
    }

    fn block(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (gate, up) = (self.linear(&format!("{name}.gate_proj"), x), self.linear(&format!("{name}.up_proj"), x));
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        self.linear(&format!("{name}.down_proj"), &inner)
    }

    fn push_input(&self, i: usize, x: &[f64]) -> Vec<f64> {
        let name = format!("layers.{i}.mlp");
        let Some(moe) = self.config.moe.as_ref().filter(|_| self.config.is_sparse(i)) else {
            return self.block(&name, x);
        };
        let probs = softmax(&self.linear(&format!("{name}.gate"), x));
        let mut order: Vec<usize> = (0..probs.len()).collect();
        order.sort_by(|a, b| probs[*b].total_cmp(&probs[*a]));
        order.truncate(moe.num_experts_per_tok);
        let total = if moe.norm_topk_prob { order.iter().map(|e| probs[*e]).sum() } else { 1.0 };
        let mut out = vec![0.0; x.len()];
        for e in order {
            add(&mut out, &self.block(&format!("{name}.experts.{e}"), x), probs[e] / total);
        }
        if moe.shared_expert_intermediate_size.is_some() {
            let gate = self.linear(&format!("{name}.shared_expert_gate"), x)[0];
            add(&mut out, &self.block(&format!("{name}.shared_expert"), x), 1.0 / (1.0 + (-gate).exp()));
        }
        out
    }

    fn forward(&self, xs: &Embeddings) -> Embeddings {
        let mut xs = xs.clone();
        for i in 0..self.config.num_hidden_layers {
            let layer = format!("layers.{i}");
            let normed: Embeddings = xs.iter().map(|x| self.norm(&format!("{layer}.input_layernorm"), x)).collect();
            for (x, mixed) in xs.iter_mut().zip(self.attention(&layer, &normed)) {
                add(x, &mixed, 1.0);
                let fed = self.push_input(i, &self.norm(&format!("{layer}.post_attention_layernorm"), x));
                add(x, &fed, 1.0);
            }
        }
        xs.iter().map(|x| self.norm("norm", x)).collect()
    }
}

fn dot(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum()
}

fn add(to: &mut [f64], from: &[f64], weight: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += weight * from);
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

/// Compares one of the stacks of a checkpoint with the formulas.
fn check(overrides: &Value, prefix: &str, config: impl Fn(&Checkpoint) -> DecoderConfig) {
    let (_dir, plain) = checkpoint(overrides, &Weights::from([("thinker.none".into(), (vec![1], vec![0.0]))]));
    let config = config(&plain);
    let weights = stack_weights(&config, prefix);
    let (_dir, checkpoint) = checkpoint(overrides, &weights);
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let stack = DecoderStack::load(&config, &loader.scope(prefix)).unwrap();
    loader.finish().unwrap();

    let n = 9;
    let x = noise(n * config.hidden_size, 5);
    let sequences: Embeddings =
        x.chunks(config.hidden_size).map(|sequence| sequence.iter().map(|v| f64::from(*v)).collect()).collect();
    let wanted = Plain { config: &config, weights: &weights, prefix }.forward(&sequences);
    let x = Tensor::from_vec(x, (n, config.hidden_size), &Device::Cpu).unwrap();
    let mut cache = stack.new_cache().unwrap();
    // A piece, a step and the rest: positions count on.
    let pieces = [(0, 4), (4, 1), (5, 4)].map(|(from, len)| {
        let mut segments = [Segment { cache: &mut cache, len }];
        stack.norm(&stack.forward(&x.narrow(0, from, len).unwrap(), &mut segments).unwrap()).unwrap()
    });
    let got = Tensor::cat(&pieces, 0).unwrap().to_vec2::<f32>().unwrap();
    for (t, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        for (got, wanted) in got.iter().zip(wanted) {
            assert!((f64::from(*got) - wanted).abs() < 1e-4, "position {t}: {got}, not {wanted}");
        }
    }
}

#[test]
fn the_stack_follows_the_formulas_for_every_option_of_the_thinker() {
    let text = |options: Value| json!({"thinker_config": {"text_config": options}});
    for options in [
        json!({}),
        json!({"attention_bias": true}),
        json!({"norm_topk_prob": false}),
        json!({"mlp_only_layers": [0, 3], "intermediate_size": 48}),
        json!({"decoder_sparse_step": 2, "intermediate_size": 48}),
        json!({"num_experts": 0, "intermediate_size": 100}),
        json!({"num_experts_per_tok": 8}),
        json!({"num_experts_per_tok": 1, "num_experts": 3}),
        json!({"head_dim": 10, "num_attention_heads": 6, "num_key_value_heads": 3, "rope_theta": 500.0,
               "rope_scaling": null, "rms_norm_eps": 1e-3}),
    ] {
        check(&text(options), "thinker.model", |c| c.omni().unwrap().thinker.text.clone());
    }
}

#[test]
fn the_talker_has_experts_in_every_layer_and_a_shared_one() {
    let options = json!({"mlp_only_layers": [0, 1], "decoder_sparse_step": 3, "norm_topk_prob": false});
    let overrides = json!({"talker_config": {"text_config": options}});
    check(&overrides, "talker.model", |c| {
        let text = c.omni().unwrap().talker.text.clone();
        assert!((0..3).all(|layer| text.is_sparse(layer)));
        assert_eq!(text.moe.as_ref().unwrap().shared_expert_intermediate_size, Some(40));
        text
    });
}

#[test]
fn a_head_that_is_not_stored_is_the_embedding_if_the_config_says_so() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        std::fs::copy(tiny().join(file), dir.path().join(file)).unwrap();
    }
    let mut tensors = candle_core::safetensors::load(tiny().join("model.safetensors"), &Device::Cpu).unwrap();
    tensors.remove("thinker.lm_head.weight").unwrap();
    tensors.remove("talker.codec_head.weight").unwrap();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    let open = |tied: bool| {
        let overrides = json!({"thinker_config.tie_word_embeddings": tied, "talker_config.tie_word_embeddings": tied});
        let checkpoint = Checkpoint::open_with(dir.path(), overrides.as_object().unwrap()).unwrap();
        let loader = checkpoint.loader(&["thinker", "talker"], &Device::Cpu);
        let thinker = Thinker::load(&loader, &checkpoint.omni().unwrap().thinker).unwrap();
        let talker = Talker::load(&loader, checkpoint.family()).unwrap();
        loader.finish().map(|()| (thinker, talker))
    };
    let refused = open(false).err().unwrap().to_string();
    assert!(refused.contains("thinker.lm_head.weight") && refused.contains("talker.codec_head.weight"), "{refused}");

    let (thinker, talker) = open(true).unwrap();
    let x = Tensor::from_vec(noise(64, 3), (1, 64), &Device::Cpu).unwrap();
    let by_table = |normed: Tensor, table: Tensor| normed.matmul(&table.t().unwrap()).unwrap();
    let text = by_table(thinker.stack().norm(&x).unwrap(), thinker.embed(&[0, 7, 511]).unwrap());
    let codec = by_table(talker.stack().norm(&x).unwrap(), talker.embed(&[0, 7, 511]).unwrap());
    for (logits, wanted) in [(thinker.logits(&x).unwrap(), text), (talker.logits(&x).unwrap().1, codec)] {
        let (logits, wanted) = (logits.to_vec2::<f32>().unwrap(), wanted.to_vec2::<f32>().unwrap());
        for (id, wanted) in [0, 7, 511].into_iter().zip(&wanted[0]) {
            assert!((logits[0][id] - wanted).abs() < 1e-4);
        }
    }
}
