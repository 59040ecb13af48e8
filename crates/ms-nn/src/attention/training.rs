//! Training of an indexer: attention's weights over the keys, and a loss against them at attention's output.
//!
//! # Source
//! Megatron-LM (2026), `megatron/core/transformer/experimental_attention_variant/dsa.py`: the indexer's inputs and
//! attention's weights are detached, and the loss does not affect the output. MindSpeed-LLM (2026),
//! `mindspeed_llm/tasks/models/transformer/{dsa_indexer,multi_latent_attention,deepseek4/csa}.py`: the same with other
//! formulas.

use crate::pass::Pass;
use ms_core::{Columns, Device, Divergence, HeadLayout, Result, Tensor, Var, ops};
use ms_dist::{picks_of_documents, summed_shares};
use std::sync::{Arc, Mutex, PoisonError};

/// What an indexer makes of a pass: which keys it picks, and what it is trained by.
#[derive(Default)]
pub(super) struct Picked {
    /// The picked keys `[T,P]`; `None`: every query sees all of its keys.
    pub(super) picks: Option<Tensor>,
    pub(super) training: Option<Training>,
}

/// An indexer that waits for the weights that attention gives the keys.
pub(super) struct Training {
    /// Queries `[T,N·D]`, keys `[C,D]` and weights of heads `[T,N]`, unrounded.
    pub(super) operands: [Var; 3],
    /// The keys `[T,P]` that it picks.
    pub(super) picks: Tensor,
    /// All keys that each query sees, where these count instead.
    pub(super) all: Option<Tensor>,
    /// MindSpeed-LLM's formula for what this kind of attention picks.
    pub(super) divergence: Divergence,
}

impl Training {
    /// The keys that count.
    pub(super) fn keys(&self) -> &Tensor {
        self.all.as_ref().unwrap_or(&self.picks)
    }

    /// `out`, attention's output, with the loss tied to it, for `attention[T,P]`: what this rank's heads give the keys.
    pub(super) fn tie(&self, pass: &mut Pass<'_>, out: &Var, attention: Tensor) -> Result<Var> {
        let Some(loss) = pass.batch.indexer_loss.clone() else { return Ok(out.clone()) };
        let attention = pass.ctx.sum_over_heads(attention)?;
        let target = ops::IndexerTarget {
            picks: self.keys(),
            attention: &attention,
            divergence: loss.objective.divergence(self.divergence),
            factor: loss.factor,
        };
        let (out, sum) = ops::indexer_loss(pass.g, out, self.operands.each_ref(), target)?;
        loss.losses.add(pass.layer, loss.weight, sum);
        Ok(out)
    }

    /// One who sees the attention that the loss is to be tied to.
    pub(super) fn probe(&self) -> Arc<AttentionProbe> {
        Arc::new(AttentionProbe(Mutex::new(ProbeState::Armed(self.all.clone()))))
    }
}

/// Sees attention when it first runs, and takes from it the weights that its heads give keys.
#[derive(Debug)]
pub(super) struct AttentionProbe(Mutex<ProbeState>);

/// What has been seen so far.
#[derive(Debug)]
enum ProbeState {
    /// Nothing; with the keys that count, where they are others than those that are picked.
    Armed(Option<Tensor>),
    /// The weights.
    Captured(Tensor),
    /// They have been taken: further runs are ignored.
    Done,
}

/// Heads that each have queries, keys and values, `width` columns apart: those of `x` that begin at column `first` of a head.
fn each_head(device: &Device, x: &Tensor, heads: HeadLayout, first: usize, width: usize) -> Result<Tensor> {
    let copy = |i| Columns::Copy { start: i * width + first, len: heads.head_dim };
    device.columns(x, &(0..heads.groups).map(copy).collect::<Vec<_>>())
}

impl AttentionProbe {
    /// Attention of prepared queries `q[T,N·D]` over keys `k[C,N·D]`, from which each query has picked `picks`. If ranks have
    /// `exchanged` heads for tokens, these cover all tokens.
    fn see(
        &self,
        pass: &Pass<'_>,
        [q, k]: [&Tensor; 2],
        heads: HeadLayout,
        (picks, scale, exchanged): (&Tensor, f64, bool),
    ) -> Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ProbeState::Armed(others) = &*state else { return Ok(()) };
        let device = pass.g.device().clone();
        let sharding = pass.batch.sharding.as_ref().filter(|_| exchanged);
        let keys = match (others, sharding) {
            (Some(keys), Some(sharding)) => picks_of_documents(&device, pass.ctx, keys, sharding)?,
            (Some(keys), None) => keys.clone(),
            (None, _) => picks.clone(),
        };
        let mut weights = device.attention_weights(q, k, heads, &keys, scale)?;
        if let Some(sharding) = sharding {
            weights = summed_shares(&device, pass.ctx, &weights, sharding, "weights of attention")?;
        }
        *state = ProbeState::Captured(weights);
        Ok(())
    }

    /// Attention of packed rows `qkv[T,N·3·D]`, as [`AttentionProbe::see_apart`].
    pub(super) fn see_packed(
        &self,
        pass: &Pass<'_>,
        qkv: &Tensor,
        heads: HeadLayout,
        of: (&Tensor, f64, bool),
    ) -> Result<()> {
        let (device, dim) = (pass.g.device(), heads.head_dim);
        let q = each_head(device, qkv, heads, 0, 3 * dim)?;
        let k = each_head(device, qkv, heads, dim, 3 * dim)?;
        self.see(pass, [&q, &k], heads, of)
    }

    /// Attention of prepared queries `q[T,N·D]` over keys and values `kv[C,N·2·D]`. `of` has each query's picks, a scale, and
    /// whether ranks have exchanged heads for tokens.
    pub(super) fn see_apart(
        &self,
        pass: &Pass<'_>,
        [q, kv]: [&Tensor; 2],
        heads: HeadLayout,
        of: (&Tensor, f64, bool),
    ) -> Result<()> {
        let k = each_head(pass.g.device(), kv, heads, 0, 2 * heads.head_dim)?;
        self.see(pass, [q, &k], heads, of)
    }

    /// The weights that have been seen.
    ///
    /// # Panics
    /// If attention has not run.
    pub(super) fn take(&self) -> Tensor {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, ProbeState::Done) {
            ProbeState::Captured(weights) => weights,
            ProbeState::Armed(_) | ProbeState::Done => panic!("attention to picked keys has run once"),
        }
    }
}
