//! All-gather of the rows of all ranks, in document order.
//!
//! Attention that picks or pools its keys needs more of a document than the keys that arrive around a ring: a query scores
//! all preceding keys, and a window of tokens may begin on one rank and end on another. So the rows that keys are made from
//! are gathered and numbered as on a single rank. Queries stay on their rank, or ranks exchange query heads for tokens and
//! gather the keys each query has picked.
//!
//! # Source
//! MindSpeed, `mindspeed/te/pytorch/attention/dot_product_attention/kvallgather_context_parallel.py` (`kvallgather_cp_algo`).
//! MindSpeed-LLM (2026) gathers in this way the latents of DeepSeek's sparse attention
//! (`tasks/models/transformer/dsa_indexer.py`), and rows and pooled entries of DeepSeek-V4's
//! (`tasks/models/transformer/deepseek4/g2_attention.py`); there every rank's chunks are assumed to begin with a window.

use crate::mappings::Collective;
use crate::pending_exchange::PendingExchange;
use crate::{AxisGroup, ParallelCtx, Result, TokenSharding};
use ms_core::shard_state::{InputStates, OutputState, ShardState};
use ms_core::{BackwardCx, Device, Digit, Grads, Graph, Op, Routes, Tensor, Var};
use std::sync::Arc;

/// Exchange names for one kind of rows.
#[derive(Clone, Copy, Debug)]
pub struct GatheredRows {
    /// The rows.
    pub rows: &'static str,
    /// The same in a backward pass, if they are not saved.
    pub again: &'static str,
    /// Their gradients.
    pub gradients: &'static str,
}

struct Gathered {
    ranks: AxisGroup,
    order: Arc<Routes>,
    gradients: &'static str,
}

impl Op for Gathered {
    fn name(&self) -> &'static str {
        "gather_rows"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        self.ranks.over.exchanged(along, inputs, &[ShardState::Tokens], ShardState::Replicated)
    }

    fn exchanges(&self) -> bool {
        self.ranks.overlap
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> ms_core::Result<Grads> {
        let Self { ranks, order, gradients } = *self;
        ranks.exchange_gradients(cx, dys, |device, dy| {
            let by_rank = device.dispatch_backward(&dy, &order)?;
            drop(dy);
            Ok(PendingExchange::assembled(Collective::ReduceScatter.begin(&**ranks, gradients, by_rank)?))
        })
    }
}

impl GatheredRows {
    /// All rows, gathered from the rows `x[T,W]` of each context-parallel rank, in the order of the whole micro-batch:
    /// `[A,W]`. Gradients of a row are summed over the ranks, in its element type as in tensor parallelism, and the sum goes
    /// to the rank that holds the row.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn gather(&self, g: &mut Graph, ctx: &ParallelCtx, x: &Var, sharding: &TokenSharding) -> Result<Var> {
        let order = sharding.order_of_all(g.device())?;
        let all = Collective::AllGather.apply(&*ctx.cp, self.rows, x.value().clone())?;
        let y = g.device().dispatch(&all, &order)?;
        let (ranks, gradients) = (ctx.cp_group(), self.gradients);
        Ok(g.apply(y, &[x], || Box::new(Gathered { ranks, order, gradients })))
    }

    /// The values of [`GatheredRows::gather`] again, for a backward pass.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn again(
        &self,
        device: &Device,
        ctx: &ParallelCtx,
        x: &Tensor,
        sharding: &TokenSharding,
    ) -> Result<Tensor> {
        rows_of_documents(device, ctx, x, sharding, self.again)
    }
}

/// The values of [`GatheredRows::gather`] for rows without a gradient.
///
/// # Errors
/// If a rank fails.
pub fn rows_of_documents(
    device: &Device,
    ctx: &ParallelCtx,
    x: &Tensor,
    sharding: &TokenSharding,
    name: &'static str,
) -> Result<Tensor> {
    let all = Collective::AllGather.apply(&*ctx.cp, name, x.clone())?;
    let order = sharding.order_of_all(device)?;
    Ok(device.dispatch(&all, &order)?)
}

/// The sums over context-parallel ranks of rows `x[A,W]` in the order of the whole micro-batch; the result is the rows of
/// this rank's tokens, `[T,W]`, in its order.
///
/// # Errors
/// If a rank fails.
pub fn summed_shares(
    device: &Device,
    ctx: &ParallelCtx,
    x: &Tensor,
    sharding: &TokenSharding,
    name: &'static str,
) -> Result<Tensor> {
    let by_rank = device.dispatch_backward(x, &*sharding.order_of_all(device)?)?;
    Ok(Collective::ReduceScatter.apply(&*ctx.cp, name, by_rank)?)
}

/// The picks `picks[T,P]` of each context-parallel rank's queries, gathered for all queries in the order of the whole
/// micro-batch: `[A,P]`. -1: none.
///
/// # Errors
/// If a rank fails.
pub fn picks_of_documents(
    device: &Device,
    ctx: &ParallelCtx,
    picks: &Tensor,
    sharding: &TokenSharding,
) -> Result<Tensor> {
    let all = Collective::AllGather.apply(&*ctx.cp, "picks", picks.clone())?;
    if all.is_meta() {
        return Ok(all);
    }
    let (width, rows) = (all.as_matrix().1, all.ready()?.as_slice::<i32>()?);
    let row = |&row: &u32| &rows[row as usize * width..][..width];
    let in_order: Vec<i32> = sharding.order_of_all(device)?.copies.iter().flat_map(row).copied().collect();
    Ok(Tensor::from_slice(all.arena(), all.shape(), &in_order)?)
}
