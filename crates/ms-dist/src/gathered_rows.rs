//! Rows of all ranks in the order of their documents.
//!
//! Attention that picks its keys, or pools them, needs more of a document than the keys that come around a ring: a query scores all
//! keys before it, and a window of tokens may begin on one rank and end on another. So the rows that keys are made of are gathered,
//! and numbered as one rank would number them; queries stay with their rank.
//!
//! # Source
//! MindSpeed, `mindspeed/core/context_parallel/kvallgather_context_parallel.py` (`kvallgather_cp_algo`); MindSpeed-LLM gathers
//! latents of DeepSeek's sparse attention, and rows and entries of DeepSeek-V4's so.

use crate::mappings::{Exchange, map};
use crate::{ParallelCtx, Result, Spread};
use ms_core::{Device, Graph, Routes, Tensor, Var, ops};
use std::sync::Arc;

/// The order of the whole micro-batch for rows that ranks hold one after the other.
fn order(ctx: &ParallelCtx, spread: &Spread) -> ms_core::Result<Routes> {
    spread.in_order(&spread.joined(&(0..ctx.cp.size()).collect::<Vec<_>>()))
}

/// Of the rows `x[T,W]` of each context-parallel rank all, in the order of the whole micro-batch: `[A,W]`. Gradients of a row are
/// summed over the ranks, and the sum goes to the rank that has the row. `name` is the exchange's, both ways.
///
/// # Errors
/// If a rank fails.
pub fn gather_rows_of_documents(
    g: &mut Graph,
    ctx: &ParallelCtx,
    x: &Var,
    spread: &Spread,
    name: &'static str,
) -> Result<Var> {
    let order = Arc::new(order(ctx, spread)?);
    let all = map(g, &ctx.cp, x, name, (Exchange::Gather, Exchange::SumShare))?;
    Ok(ops::dispatch(g, &all, &order)?)
}

/// The values of [`gather_rows_of_documents`], without a gradient.
///
/// # Errors
/// If a rank fails.
pub fn rows_of_documents(
    device: &Device,
    ctx: &ParallelCtx,
    x: &Tensor,
    spread: &Spread,
    name: &'static str,
) -> Result<Tensor> {
    let all = ctx.cp.all_gather(name, x.clone())?.wait()?;
    Ok(device.dispatch(&all, &order(ctx, spread)?)?)
}
