//! Router statistics, and the expert biases adjusted by them.

use super::{Engine, ExpertReport};
use crate::Result;
use ms_core::ops::Auxiliary;
use ms_core::{ParamId, Tensor, UpdatedBy};
use ms_dist::ReduceOp;
use ms_nn::LayerLoad;
use ms_spec::Place;
use std::collections::BTreeMap;

/// What `copies` ranks counted alike, by their sum. A product with the reciprocal may come out below a whole number.
fn counted_once(sum: f64, copies: f64) -> u64 {
    (sum / copies) as u64
}

impl Engine {
    /// What the routers reported since the last call, over all ranks.
    pub(super) fn experts_report(&self) -> Result<Option<ExpertReport>> {
        let config = self.model.config();
        let Some(moe) = &config.moe else { return Ok(None) };
        let (layers, choices) = (config.layers + config.mtp, moe.experts + moe.zero_experts);
        // For each layer, four auxiliary losses, passes and, for each expert, the copies and the dropped ones; zeros if
        // another stage holds it.
        let width = 5 + 2 * choices;
        let mut all = vec![0f64; layers * width];
        let mut least = f64::INFINITY;
        for (layer, LayerLoad { balance, passes, tokens, dropped, margin }) in self.load.take() {
            least = least.min(margin.unwrap_or(f64::INFINITY));
            let row = &mut all[layer * width..][..width];
            let Auxiliary { experts, devices, communication, z } = balance;
            row[..5].copy_from_slice(&[experts, devices, communication, z, passes as f64]);
            let (of_tokens, of_dropped) = row[5..].split_at_mut(choices);
            of_tokens.iter_mut().zip(&tokens).for_each(|(n, &t)| *n = t as f64);
            of_dropped.iter_mut().zip(&dropped).for_each(|(n, &t)| *n = t as f64);
        }
        let mine = Tensor::from_slice(self.device.arena(), [all.len()], &all)?;
        let sum = self.ctx.stage.all_reduce("expert load", mine, ReduceOp::Sum)?.wait()?;
        let sum = self.ctx.pp.all_reduce("expert load", sum, ReduceOp::Sum)?.wait()?;
        // Some ranks route the same tokens.
        let copies = self.ctx.router_copies() as f64;
        let sharers = (self.ctx.tp.size() * self.ctx.cp.size()) as f64;
        let coefficients = self.config.routing.auxiliary.each().map(|c| if c == 0.0 { 1.0 } else { c });
        let means = |sums: [f64; 4], passes: f64| {
            Auxiliary::of(std::array::from_fn(|i| sums[i] / passes.max(1.0) / coefficients[i]))
        };
        let (mut losses, mut passes, mut dropped) = ([0.0; 4], 0.0, 0.0);
        let (mut tokens, mut taken, mut of_layers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (layer, row) in
            sum.ready()?.as_slice::<f64>()?.chunks_exact(width).enumerate().filter(|(_, r)| r[4] > 0.0)
        {
            let (own, went) = (std::array::from_fn(|i| row[i] / copies), row[4] / sharers);
            losses.iter_mut().zip(own).for_each(|(sum, l)| *sum += l);
            passes += went;
            of_layers.insert(layer, means(own, went));
            let (of_tokens, of_dropped) = row[5..].split_at(choices);
            dropped += of_dropped.iter().sum::<f64>();
            tokens.insert(layer, of_tokens.iter().map(|&n| counted_once(n, copies)).collect());
            // Where experts are taken in turn, more can be dropped than routers picked.
            let left = of_tokens.iter().zip(of_dropped).map(|(n, d)| counted_once((n - d).max(0.0), copies));
            taken.insert(layer, left.collect());
        }
        let auxiliary = means(losses, passes);
        let mut margin = None;
        if self.config.routing.watch_margins {
            let closest = Tensor::from_slice(self.device.arena(), [1], &[-least])?;
            let closest = self.ctx.world.all_reduce("routing margin", closest, ReduceOp::Max)?.wait()?;
            margin = Some(-closest.ready()?.as_slice::<f64>()?[0]);
        }
        let dropped = counted_once(dropped, copies);
        Ok(Some(ExpertReport { auxiliary, layers: of_layers, tokens, taken, dropped, margin }))
    }

    /// Moves the biases of experts that got less than the mean up by one step, of those that got more down: of the copies that
    /// were meant for them, or that they took ([`crate::Routing::bias_of_taken`]).
    ///
    /// # Source
    /// DeepSeek-V3, arXiv:2412.19437, section 2.1.2; Megatron-LM `core_v0.12.1`,
    /// `megatron/core/transformer/moe/moe_utils.py`, `get_updated_expert_bias`.
    pub(super) fn move_expert_biases(&mut self, report: &ExpertReport) -> Result<()> {
        let rate = self.config.routing.bias_update_rate;
        if rate == 0.0 {
            return Ok(());
        }
        let layers = self.model.config().layers;
        let layer_of = |place: Place| match place {
            Place::Layer(layer) => Some(layer),
            Place::Mtp(k) => Some(layers + k),
            Place::Embedding | Place::Head => None,
        };
        let (specs, store) = (self.model.specs(), &self.store);
        let counted = if self.config.routing.bias_of_taken { &report.taken } else { &report.tokens };
        let counts_of = |id: ParamId| {
            let place = specs[id.0 as usize].slot.place;
            let bias = store.updated_by(id) == UpdatedBy::ExpertLoad;
            layer_of(place).filter(|_| bias).and_then(|layer| counted.get(&layer))
        };
        self.optimizer.change_masters(
            (&self.device, &self.store),
            |id| counts_of(id).is_some(),
            |id, range, values| {
                let Some(counts) = counts_of(id) else { return };
                let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
                for (value, e) in values.iter_mut().zip(range) {
                    let behind = mean - counts.get(e).map_or(mean, |&n| n as f64);
                    if behind != 0.0 {
                        *value += rate * behind.signum();
                    }
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_any_number_of_ranks_count_alike_is_counted_once() {
        for copies in 1..=256 {
            for tokens in [1, 2, 3, 7, 4096, 1 << 30] {
                assert_eq!(super::counted_once((tokens * copies) as f64, copies as f64), tokens);
            }
        }
    }
}
