//! One decoder layer.

use crate::Batch;
use ms_core::{
    AttentionOptions, Graph, HeadLayout, Norm, ParamId, ParamStore, Result, Rotary, Tensor, Var, ops,
};
use ms_dist::ParallelCtx;

/// The parameters of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerIds {
    pub(crate) input_norm: ParamId,
    pub(crate) qkv: ParamId,
    pub(crate) qkv_bias: Option<ParamId>,
    pub(crate) qk_norm: Option<(ParamId, ParamId)>,
    pub(crate) proj: ParamId,
    pub(crate) proj_bias: Option<ParamId>,
    pub(crate) mlp_norm: ParamId,
    pub(crate) fc1: ParamId,
    pub(crate) fc1_bias: Option<ParamId>,
    pub(crate) fc2: ParamId,
    pub(crate) fc2_bias: Option<ParamId>,
}

/// What all layers share.
#[derive(Clone, Debug)]
pub(crate) struct LayerShape {
    pub(crate) heads: HeadLayout,
    pub(crate) norm: Norm,
    pub(crate) rotary: Rotary,
    pub(crate) attention: AttentionOptions,
}

/// Keys and values of one layer, and the rows that a pass fills.
pub(crate) struct LayerCache<'a> {
    pub(crate) keys: &'a mut Tensor,
    pub(crate) values: &'a mut Tensor,
    pub(crate) places: &'a [usize],
}

/// `x + attention(norm(x))`, then `+ mlp(norm(·))`: `[T,H]` to `[T,H]`.
pub(crate) fn forward(
    g: &mut Graph,
    store: &ParamStore,
    ctx: &ParallelCtx,
    (ids, shape): (&LayerIds, &LayerShape),
    batch: &Batch,
    cache: Option<LayerCache<'_>>,
    x: &Var,
) -> Result<Var> {
    let w = g.param(store, ids.input_norm);
    let h = ops::rms_norm(g, x, &w, shape.norm)?;
    let attended = attention(g, store, ctx, (ids, shape), batch, cache, &h)?;
    let w = g.param(store, ids.mlp_norm);
    let (x, h) = ops::add_rms_norm(g, x, &attended, &w, shape.norm)?;
    let out = mlp(g, store, ctx, ids, &h)?;
    ops::add(g, &x, &out)
}

fn linear(g: &mut Graph, store: &ParamStore, x: &Var, w: ParamId, bias: Option<ParamId>) -> Result<Var> {
    let w = g.param(store, w);
    let bias = bias.map(|b| g.param(store, b));
    ops::linear(g, x, &w, bias.as_ref())
}

/// A layer whose inputs are shared out over tensor-parallel ranks; the bias is added once, after the sum.
fn row_parallel(
    g: &mut Graph,
    store: &ParamStore,
    ctx: &ParallelCtx,
    x: &Var,
    w: ParamId,
    bias: Option<ParamId>,
) -> Result<Var> {
    if ctx.coord(ms_core::Axis::Tp) > 0 {
        let y = linear(g, store, x, w, None)?;
        return ctx.leave_tp(g, &y);
    }
    let y = linear(g, store, x, w, bias)?;
    ctx.leave_tp(g, &y)
}

fn attention(
    g: &mut Graph,
    store: &ParamStore,
    ctx: &ParallelCtx,
    (ids, shape): (&LayerIds, &LayerShape),
    batch: &Batch,
    cache: Option<LayerCache<'_>>,
    h: &Var,
) -> Result<Var> {
    let h = ctx.enter_tp(g, h)?;
    let qkv = linear(g, store, &h, ids.qkv, ids.qkv_bias)?;
    let scales = ids.qk_norm.map(|(q, k)| (g.param(store, q), g.param(store, k)));
    let norm = scales.as_ref().map(|(q, k)| (q, k, shape.norm.eps));
    let qkv = ops::prepare_qkv(g, &qkv, shape.heads, norm, &shape.rotary, &batch.positions)?;
    let out = match cache {
        None => ops::attention(g, &qkv, shape.heads, &batch.segments, shape.attention)?,
        Some(LayerCache { keys, values, places }) => {
            let device = g.device().clone();
            device.cache_append(keys, values, qkv.value(), shape.heads, places)?;
            let (heads, options) = (shape.heads, &shape.attention);
            let out = device.attention_cached(qkv.value(), keys, values, heads, &batch.segments, options)?;
            g.constant(out)
        }
    };
    row_parallel(g, store, ctx, &out, ids.proj, ids.proj_bias)
}

fn mlp(g: &mut Graph, store: &ParamStore, ctx: &ParallelCtx, ids: &LayerIds, h: &Var) -> Result<Var> {
    let h = ctx.enter_tp(g, h)?;
    let gate_up = linear(g, store, &h, ids.fc1, ids.fc1_bias)?;
    let act = ops::swiglu(g, &gate_up)?;
    row_parallel(g, store, ctx, &act, ids.fc2, ids.fc2_bias)
}
