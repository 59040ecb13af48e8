//! Attention over nearby tokens and pooled entries of distant ones.

use super::attention::join_sinks;
use super::layout::op;
use super::{all, only};
use crate::{BackwardCx, Graph, Op, Pooling, Result, Rotary, Saved, Tensor, TensorSpec, Var, Window};
use std::sync::Arc;

struct RotateLast {
    head_dim: usize,
    rotary: Rotary,
    positions: Tensor,
    inverse: bool,
}
op!(RotateLast, "rotate_last", |op, cx, dy| {
    // The gradient of a rotation is the inverse rotation.
    let dx = cx.device.rotate_last(&dy, op.head_dim, &op.rotary, &op.positions, !op.inverse)?;
    Ok(vec![Some(dx)])
});

/// Rotation of the last elements of every head of `x[T,N·D]`, or, with `inverse`, the inverse rotation. Saves the positions.
///
/// # Errors
/// If shapes or element types do not fit, or a position is outside the tables.
pub fn rotate_last(
    g: &mut Graph,
    x: &Var,
    head_dim: usize,
    rotary: &Rotary,
    positions: &Tensor,
    inverse: bool,
) -> Result<Var> {
    let y = g.device().rotate_last(x.value(), head_dim, rotary, positions, inverse)?;
    Ok(g.apply(y, &[x], || {
        Box::new(RotateLast { head_dim, rotary: rotary.clone(), positions: positions.clone(), inverse })
    }))
}

struct Pool {
    /// Keys and values, gates, and what is added to these.
    kept: [Saved; 3],
    windows: Arc<[Window]>,
    shape: Pooling,
}
op!(Pool, "pool_windows", sees 0..2, |op, cx, dy| {
    let Pool { kept, windows, shape } = op;
    let [kv, gate, ape] = all(kept, cx.device)?;
    let device = cx.device.clone();
    let mut dape = Tensor::zeros(device.arena(), ape.dtype(), ape.shape());
    let (dkv, dgate) =
        device.pool_windows_backward(dape.whole_mut()?, &dy, &kv, &gate, &ape, &windows, &shape)?;
    let dape = cx.weight_gradient(2, &ape, move |device, grad| device.accumulate(grad, &dape, 1.0))?;
    Ok(vec![Some(dkv), Some(dgate), dape])
});

/// One entry `[B,D]` for each window of `kv` and `gate`, with `ape` (f32) added to the gates. Saves all operands.
///
/// # Errors
/// If shapes or element types do not fit, or a window reads outside the rows.
pub fn pool_windows(
    g: &mut Graph,
    kv: &Var,
    gate: &Var,
    ape: &Var,
    windows: &Arc<[Window]>,
    shape: &Pooling,
) -> Result<Var> {
    let out = g.device().pool_windows(kv.value(), gate.value(), ape.value(), windows, shape)?;
    Ok(g.apply(out, &[kv, gate, ape], || {
        Box::new(Pool { kept: [kv, gate, ape].map(Var::saved), windows: windows.clone(), shape: *shape })
    }))
}

struct AttentionShared {
    /// Queries, rows, entries and the output.
    kept: [Saved; 4],
    lse: Tensor,
    /// What the parameter is like, and its values as f32.
    sinks: Option<(TensorSpec, Tensor)>,
    picks: Tensor,
    scale: f64,
}
op!(AttentionShared, "attention_shared", sees 1..3, |op, cx, dy| {
    let AttentionShared { kept, lse, sinks, picks, scale } = op;
    let [q, near, far, out] = all(kept, cx.device)?;
    let gradients = cx.device.attention_shared_backward(&dy, &q, &near, &far, &out, &lse, &picks, scale)?;
    let dsinks = match sinks {
        Some((param, values)) => cx.weight_gradient(3, param, move |device, grad| {
            device.attention_sinks_backward(grad, &dy, &out, &lse, &values)
        })?,
        None => None,
    };
    Ok(gradients.map(Some).into_iter().chain([dsinks]).collect())
});

/// Attention of `q[T,N·D]` over `picks[T,P]` (or -1) of the rows `near[A,D]` followed by `far[B,D]`, which are both key and
/// value: `[T,N·D]`. `sinks[N]` is one extra score per head, for a key whose value is zero. Saves all operands, the output
/// and the log of each row's softmax sum.
///
/// # Errors
/// If shapes, element types or picks do not fit.
pub fn attention_shared(
    g: &mut Graph,
    q: &Var,
    [near, far]: [&Var; 2],
    picks: &Tensor,
    sinks: Option<&Var>,
    scale: f64,
) -> Result<Var> {
    let device = g.device().clone();
    let (mut out, mut lse) = device.attention_shared(q.value(), near.value(), far.value(), picks, scale)?;
    let values = join_sinks(&device, &mut out, &mut lse, sinks.map(Var::value))?;
    let none = g.constant(out.clone());
    let [out] = g.apply_keeping([out], &[q, near, far, sinks.unwrap_or(&none)], |[out]| {
        Box::new(AttentionShared {
            kept: [q, near, far, out].map(Var::saved),
            lse,
            sinks: sinks.map(|s| s.value().into()).zip(values),
            picks: picks.clone(),
            scale,
        })
    });
    Ok(out)
}
