//! Hyper-connections: a residual with several streams.

use super::layout::op;
use super::{all, only};
use crate::{BackwardCx, Graph, Mixing, Op, Result, Saved, Tensor, Var};

struct Weights {
    kept: [Saved; 3],
    mixing: Mixing,
}
op!(Weights, "stream_weights", |op, cx, dy| {
    let (mixing, [mixes, base, scale]) = (op.mixing, all(op.kept, cx.device)?);
    let (dmixes, dfixed) = cx.device.stream_weights_backward(&dy, &mixes, &base, &scale, &mixing)?;
    let mut part = |input: usize, start: usize, value: &Tensor| {
        let d = dfixed.slice_flat(start, value.shape())?;
        cx.weight_gradient(input, value, move |device, grad| device.accumulate(grad, &d, 1.0))
    };
    let dbase = part(1, 0, &base)?;
    let dscale = part(2, base.numel(), &scale)?;
    Ok(vec![Some(dmixes), dbase, dscale])
});

/// The weights `[T,C]` of each token's streams, from `mixes[T,C]`, `base[C]` and `scale`, all f32; see
/// [`HyperConnectionsBackend::stream_weights`](crate::HyperConnectionsBackend::stream_weights). Saves all three.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn stream_weights(g: &mut Graph, mixes: &Var, base: &Var, scale: &Var, mixing: &Mixing) -> Result<Var> {
    let w = g.device().stream_weights(mixes.value(), base.value(), scale.value(), mixing)?;
    Ok(g.apply(w, &[mixes, base, scale], || {
        Box::new(Weights { kept: [mixes, base, scale].map(Var::saved), mixing: *mixing })
    }))
}

struct Collapse {
    kept: [Saved; 2],
    mixing: Mixing,
}
op!(Collapse, "collapse", |op, cx, dy| {
    let [x, w] = all(op.kept, cx.device)?;
    let (dx, dw) = cx.device.collapse_backward(&dy, &x, &w, &op.mixing)?;
    Ok(vec![Some(dx), Some(dw)])
});

/// The input `[T,H]` of a sublayer, from streams `x[T,n·H]` and their weights `w[T,C]`. Saves both.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn collapse(g: &mut Graph, x: &Var, w: &Var, mixing: &Mixing) -> Result<Var> {
    let y = g.device().collapse(x.value(), w.value(), mixing)?;
    Ok(g.apply(y, &[x, w], || Box::new(Collapse { kept: [x, w].map(Var::saved), mixing: *mixing })))
}

struct Expand {
    kept: [Saved; 3],
    mixing: Mixing,
}
op!(Expand, "expand", |op, cx, dy| {
    let [x, y, w] = all(op.kept, cx.device)?;
    let gradients = cx.device.expand_backward(&dy, &x, &y, &w, &op.mixing)?;
    Ok(gradients.map(Some).into())
});

/// The streams `[T,n·H]` after a sublayer that computed `y[T,H]` from the streams `x[T,n·H]`. Saves all operands.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn expand(g: &mut Graph, x: &Var, y: &Var, w: &Var, mixing: &Mixing) -> Result<Var> {
    let out = g.device().expand(x.value(), y.value(), w.value(), mixing)?;
    Ok(g.apply(out, &[x, y, w], || Box::new(Expand { kept: [x, y, w].map(Var::saved), mixing: *mixing })))
}
