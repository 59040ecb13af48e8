//! Router statistics collected during training.

use ms_core::ops::{Auxiliary, Balance, DropPolicy, ExpertCapacity, TokenGroup};
use ms_core::{Arena, Routes, Tensor};
use ms_dist::{ParallelCtx, ReduceOp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The auxiliary losses of a micro-batch's routers.
#[derive(Clone, Debug, PartialEq)]
pub struct AuxiliaryLoss {
    /// Which, by their coefficients.
    pub coefficients: Auxiliary,
    /// Factor of their gradient: what the main loss is scaled by.
    pub grad_scale: f64,
    /// The biases that take part in the choice of experts are added to the scores (v2.0.0's `--seq-aux` with `noaux_tc`).
    pub biased: bool,
    /// Scores that are not a softmax are not normalised (Megatron 0.12, for one expert a token).
    pub undivided: bool,
    /// Copies count that experts take, where they have a capacity, and not all that routers pick.
    pub of_taken: bool,
    /// With a single sequence, each expert counts as having as many copies as its capacity, because it is padded to it.
    pub filled: bool,
    /// For each token of the batch `[T]`, its sequence, if every sequence has a loss of its own and their mean is taken;
    /// empty: one loss over all tokens.
    pub sequence_of: Arc<[u32]>,
    /// Number of sequences.
    pub sequences: usize,
}

/// How many copies of tokens an expert accepts (its capacity).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Of an even share, `tokens · K / E`; rounded up.
    pub factor: f64,
    /// Which copies are dropped.
    pub policy: DropPolicy,
}

impl Capacity {
    /// The capacity of an expert for `tokens` tokens, each routed to `top_k` of `experts` experts.
    pub fn copies(&self, tokens: usize, top_k: usize, experts: usize) -> usize {
        (tokens as f64 * top_k as f64 / experts as f64 * self.factor).ceil() as usize
    }
}

/// The ranks that share the tokens of a micro-batch.
pub(crate) struct MicroBatchRanks<'a>(pub(crate) &'a ParallelCtx);

impl MicroBatchRanks<'_> {
    /// The ranks other than this one.
    pub(crate) fn others(&self) -> Option<&dyn TokenGroup> {
        (self.0.cp.size() > 1 || self.spread()).then_some(self as &dyn TokenGroup)
    }

    /// Whether tensor-parallel ranks route different tokens.
    fn spread(&self) -> bool {
        self.0.router_copies() != self.0.tp.size()
    }

    /// The sum over the ranks, and how often each token is in it.
    fn summed(&self, name: &'static str, mut t: Tensor) -> ms_core::Result<(Tensor, usize)> {
        let ctx = self.0;
        if ctx.cp.size() > 1 {
            t = ctx.cp.all_reduce(name, t, ReduceOp::Sum)?.wait()?;
        }
        if self.spread() {
            t = ctx.tp.all_reduce(name, t, ReduceOp::Sum)?.wait()?;
        }
        Ok((t, if self.spread() { ctx.router_copies() } else { 1 }))
    }
}

impl TokenGroup for MicroBatchRanks<'_> {
    fn sum(&self, counts: Vec<i64>) -> ms_core::Result<Vec<i64>> {
        let t = Tensor::from_slice(&Arena::default(), [counts.len()], &counts)?;
        let (t, times) = self.summed("tokens per expert", t)?;
        Ok(t.ready()?.as_slice::<i64>()?.iter().map(|n| n / times as i64).collect())
    }

    fn sum_reals(&self, values: Vec<f64>) -> ms_core::Result<Vec<f64>> {
        let t = Tensor::from_slice(&Arena::default(), [values.len()], &values)?;
        let (t, times) = self.summed("tokens of experts", t)?;
        Ok(t.ready()?.as_slice::<f64>()?.iter().map(|n| n / times as f64).collect())
    }
}

impl AuxiliaryLoss {
    /// The loss as the router of this rank computes it; `sequence_of` are those of its tokens, `taken` what its experts take.
    pub(crate) fn of<'a>(
        &self,
        sequence_of: &'a [u32],
        bias: Option<&'a Tensor>,
        ranks: &'a MicroBatchRanks<'a>,
        taken: Option<ExpertCapacity<'a>>,
    ) -> Balance<'a> {
        Balance {
            coefficients: self.coefficients,
            // Ranks that route the same tokens have the same loss, and their gradients are summed.
            grad_scale: self.grad_scale / ranks.0.router_copies() as f64,
            group_of: sequence_of,
            groups: self.sequences.max(1),
            bias: bias.filter(|_| self.biased),
            undivided: self.undivided,
            ranks: ranks.others(),
            filled: taken.filter(|_| self.filled).map(|t| t.capacity * t.shares()),
            taken: taken.filter(|_| self.of_taken),
        }
    }
}

/// Auxiliary losses and the load of experts, summed over the passes that record.
#[derive(Debug, Default)]
pub struct RouterLoad {
    layers: Mutex<BTreeMap<usize, LayerLoad>>,
    watches_margins: bool,
}

/// The load of one layer's experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerLoad {
    /// Sums of the auxiliary losses, coefficients included.
    pub balance: Auxiliary,
    /// Passes.
    pub passes: u64,
    /// Token copies that were meant for each expert.
    pub tokens: Vec<u64>,
    /// Copies among these that each expert dropped.
    pub dropped: Vec<u64>,
    /// The least by which what was picked was ahead of what was not ([`ms_core::ops::routing_margin`]), and what an expert took
    /// of what it did not ([`ms_core::ops::drop_margin`]), where that is watched.
    pub margin: Option<f64>,
}

impl RouterLoad {
    /// One that also records how close the choices are.
    pub fn watching_margins() -> Self {
        Self { watches_margins: true, ..Self::default() }
    }

    /// Takes in how close choices in a layer are, if that is watched: what `margin` finds.
    pub(crate) fn watch(
        &self,
        layer: usize,
        margin: impl FnOnce() -> ms_core::Result<f64>,
    ) -> ms_core::Result<()> {
        if self.watches_margins {
            let margin = margin()?;
            let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
            let least = &mut layers.entry(layer).or_default().margin;
            *least = Some(least.map_or(margin, |least| least.min(margin)));
        }
        Ok(())
    }

    pub(crate) fn add(&self, layer: usize, balance: Option<Auxiliary>, routes: &Routes, dropped: &[u64]) {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let load = layers.entry(layer).or_default();
        let experts = routes.starts.len() - 1;
        load.tokens.resize(experts, 0);
        load.dropped.resize(experts, 0);
        for e in 0..experts {
            load.tokens[e] += routes.range(e).len() as u64;
        }
        if let Some(b) = balance {
            let sum = &mut load.balance;
            sum.experts += b.experts;
            sum.devices += b.devices;
            sum.communication += b.communication;
            sum.z += b.z;
        }
        load.passes += 1;
        load.dropped.iter_mut().zip(dropped).for_each(|(sum, n)| *sum += n);
    }

    /// The sums since the last call, by layer; the next ones begin at zero.
    pub fn take(&self) -> BTreeMap<usize, LayerLoad> {
        std::mem::take(&mut self.layers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
