//! Mixture of experts: a router picks a few experts for every position.

use super::ffn::SwiGlu;
use crate::LoadError;
use crate::hf::MoeConfig;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

/// A router, its experts, and the expert that every position goes through, if there is one.
pub(super) struct Moe {
    /// Logits of the experts, and of the shared expert's gate behind them.
    router: Linear,
    experts: Vec<SwiGlu>,
    shared: Option<SwiGlu>,
    top_k: usize,
    norm_topk_prob: bool,
}

impl Moe {
    pub fn load(config: &MoeConfig, hidden: usize, scope: &Scope<'_>) -> std::result::Result<Moe, LoadError> {
        let mut gates = vec![scope.at("gate").get("weight", &[config.num_experts, hidden])?];
        let shared = match config.shared_expert_intermediate_size {
            Some(intermediate) => {
                gates.push(scope.at("shared_expert_gate").get("weight", &[1, hidden])?);
                Some(SwiGlu::load(hidden, intermediate, &scope.at("shared_expert"))?)
            }
            None => None,
        };
        let expert = |e| SwiGlu::load(hidden, config.moe_intermediate_size, &scope.at("experts").at(e));
        Ok(Moe {
            router: Linear::stacked(&gates, None)?,
            experts: (0..config.num_experts).map(expert).collect::<std::result::Result<_, _>>()?,
            shared,
            top_k: config.num_experts_per_tok,
            norm_topk_prob: config.norm_topk_prob,
        })
    }

    /// `[n, hidden]` to `[n, hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let n = x.dim(0)?;
        let routes = self.route(&self.router.forward(x)?)?;
        let mut outputs = Vec::with_capacity(self.experts.len() + 1);
        for (expert, positions) in self.experts.iter().zip(&routes.positions) {
            if positions.len() == n {
                outputs.push(expert.forward(x)?);
            } else if !positions.is_empty() {
                let positions = Tensor::new(positions.as_slice(), x.device())?;
                outputs.push(expert.forward(&x.index_select(&positions, 0)?)?);
            }
        }
        if let Some(shared) = &self.shared {
            outputs.push(shared.forward(x)?);
        }
        // One row per position and expert; each position adds its own in the order of the experts, whatever the batch.
        let rows = if outputs.len() == 1 { outputs.swap_remove(0) } else { Tensor::cat(&outputs, 0)? };
        let each = routes.weights.len() / n;
        let order = Tensor::from_vec(routes.order, n * each, x.device())?;
        let weights = Tensor::from_vec(routes.weights, (n, each, 1), x.device())?;
        rows.index_select(&order, 0)?.reshape((n, each, x.dim(1)?))?.broadcast_mul(&weights)?.sum(1)
    }

    /// Softmax over all experts in f32, the best `top_k`, weights that sum to 1 if the config says so.
    fn route(&self, logits: &Tensor) -> Result<Routes> {
        let logits = logits.to_vec2::<f32>()?;
        let (n, experts) = (logits.len(), self.experts.len());
        let mut chosen = Vec::with_capacity(n);
        let mut positions = vec![Vec::new(); experts];
        for (position, logits) in (0u32..).zip(&logits) {
            let picks = pick(&logits[..experts], self.top_k, self.norm_topk_prob);
            for (expert, _) in &picks {
                positions[*expert].push(position);
            }
            chosen.push(picks);
        }
        // Where each expert's outputs begin among the concatenated rows.
        let mut next: Vec<u32> = positions
            .iter()
            .scan(0, |at, p| {
                let start = *at;
                *at += p.len() as u32;
                Some(start)
            })
            .collect();
        let mut shared_embedding = (n * self.top_k) as u32;
        let mut routes = Routes { positions, order: Vec::new(), weights: Vec::new() };
        for (picks, logits) in chosen.iter().zip(&logits) {
            for (expert, weight) in picks {
                routes.order.push(next[*expert]);
                routes.weights.push(*weight);
                next[*expert] += 1;
            }
            if self.shared.is_some() {
                routes.order.push(shared_embedding);
                routes.weights.push(1.0 / (1.0 + (-logits[experts]).exp()));
                shared_embedding += 1;
            }
        }
        Ok(routes)
    }
}

/// Which positions each expert works on, and how their outputs are added up per position.
struct Routes {
    /// Per expert, ascending.
    positions: Vec<Vec<u32>>,
    /// Per position and pick: its row among the concatenated outputs.
    order: Vec<u32>,
    /// Per position and pick: its weight.
    weights: Vec<f32>,
}

/// The experts of one position in the order of their numbers, with their weights. Of equal ones the first wins.
fn pick(logits: &[f32], top_k: usize, norm: bool) -> Vec<(usize, f32)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
    let total: f32 = exps.iter().sum();
    let mut picks: Vec<(usize, f32)> = exps.iter().map(|e| e / total).enumerate().collect();
    picks.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    picks.truncate(top_k);
    if norm {
        let total: f32 = picks.iter().map(|(_, p)| p).sum();
        for (_, p) in &mut picks {
            *p /= total;
        }
    }
    picks.sort_by_key(|(expert, _)| *expert);
    picks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_come_in_order_of_number_with_weights_that_sum_to_one() {
        let picks = pick(&[0.0, 2.0, -1.0, 3.0], 2, true);
        assert_eq!(picks.iter().map(|p| p.0).collect::<Vec<_>>(), [1, 3]);
        assert!((picks[0].1 + picks[1].1 - 1.0).abs() < 1e-6);
        assert!((picks[1].1 / picks[0].1 - 1f32.exp()).abs() < 1e-5);
    }

    #[test]
    fn without_norm_the_weights_are_the_softmax_over_all() {
        let picks = pick(&[0.0, 0.0, 0.0, 0.0], 2, false);
        assert_eq!(picks, [(0, 0.25), (1, 0.25)]);
    }
}
