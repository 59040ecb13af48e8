//! Preparation of queries and keys (norm and rotation), and attention.

use super::layout::op;
use super::only;
use crate::shard_state::{self, InputStates, OutputState};
use crate::{
    AttentionDropout, AttentionOptions, BackwardCx, Device, Digit, Error, Graph, HeadLayout, Op, QkNorm,
    QkvRows, Result, Rotary, Saved, Segment, Tensor, TensorSpec, Var,
};
use std::sync::Arc;

struct PrepareQkv {
    /// Absent without a norm: a rotation is undone from its gradient alone.
    qkv: Option<Saved>,
    rstd: Tensor,
    heads: HeadLayout,
    norm: Option<(Saved, Saved, f64)>,
    rotary: Rotary,
    positions: Tensor,
}
op!(PrepareQkv, "prepare_qkv", |op, cx, dprepared| {
    let PrepareQkv { qkv, rstd, heads, norm, rotary, positions } = op;
    let device = cx.device.clone();
    let (Some((q, k, eps)), Some(qkv)) = (norm, qkv) else {
        let d =
            device.prepare_qkv_backward(dprepared, &rstd, &rstd, heads, None, None, &rotary, &positions)?;
        return Ok(vec![Some(d), None, None]);
    };
    let (qkv, q, k) = (qkv.get(&device)?, q.get(&device)?, k.get(&device)?);
    // Two small gradients from one kernel: they go through temporaries, because the two main gradients cannot be borrowed at
    // once.
    let mut dq = Tensor::zeros(device.arena(), q.dtype().wide(), q.shape());
    let mut dk = Tensor::zeros(device.arena(), k.dtype().wide(), k.shape());
    let norm = QkNorm { q: &q, k: &k, eps };
    let d = device.prepare_qkv_backward(
        dprepared,
        &qkv,
        &rstd,
        heads,
        Some(&norm),
        Some((&mut dq, &mut dk)),
        &rotary,
        &positions,
    )?;
    for (input, dw) in [(1, dq), (2, dk)] {
        cx.accumulate(input, move |device, grad| device.accumulate(grad, &dw, 1.0))?;
    }
    Ok(vec![Some(d), None, None])
});

/// Optional per-head RMSNorm of queries and keys (scales `[D]`, eps), then rotation, on packed rows `[T,(N+2G)D]`; see
/// [`HeadLayout`]. Saves the unprepared rows and `rstd` when there is a norm.
///
/// # Errors
/// If shapes or element types do not fit, or a position is outside the tables.
pub fn prepare_qkv(
    g: &mut Graph,
    qkv: &Var,
    heads: HeadLayout,
    norm: Option<(&Var, &Var, f64)>,
    rotary: &Rotary,
    positions: &Tensor,
) -> Result<Var> {
    let scales = norm.map(|(q, k, eps)| QkNorm { q: q.value(), k: k.value(), eps });
    let (out, rstd) = g.device().prepare_qkv(qkv.value(), heads, scales.as_ref(), rotary, positions)?;
    let none = g.constant(rstd.clone());
    let (q, k) = norm.map_or((&none, &none), |(q, k, _)| (q, k));
    let op = || -> Box<dyn Op> {
        Box::new(PrepareQkv {
            qkv: norm.map(|_| qkv.saved()),
            rstd: rstd.clone(),
            heads,
            norm: norm.map(|(q, k, eps)| (q.saved(), k.saved(), eps)),
            rotary: rotary.clone(),
            positions: positions.clone(),
        })
    };
    Ok(g.apply(out, &[qkv, q, k], op))
}

struct Attention {
    qkv: Saved,
    out: Saved,
    lse: Tensor,
    /// Type and shape of the parameter, and its values, f32 or f64.
    sinks: Option<(TensorSpec, Tensor)>,
    heads: HeadLayout,
    segments: Arc<[Segment]>,
    options: AttentionOptions,
    dropout: Option<AttentionDropout>,
}
op!(Attention, "attention", sees 0..1, |op, cx, dout| {
    let Attention { qkv, out, lse, sinks, heads, segments, options, dropout } = op;
    let (qkv, out) = (qkv.get(cx.device)?, out.get(cx.device)?);
    let dropout = dropout.as_ref();
    let rows = QkvRows::Packed(&qkv);
    let d = cx.device.attention_backward(&dout, rows, &out, &lse, heads, &segments, &options, dropout)?;
    let dsinks = match sinks {
        Some((param, values)) => cx.weight_gradient(1, param, move |device, grad| {
            device.attention_sinks_backward(grad, &dout, &out, &lse, &values)
        })?,
        None => None,
    };
    Ok(d.into_parts().map(Some).chain([dsinks]).collect())
});

/// Causal attention inside each segment of prepared packed rows: `[T,N·D]`. Saves rows, output and the log of each row's
/// softmax sum, not the probabilities. `sinks[N]` is one extra score per head, for a key whose value is zero. What `dropout`
/// drops is drawn again in the backward pass.
///
/// # Errors
/// If shapes, element types or segments do not fit.
pub fn attention(
    g: &mut Graph,
    qkv: &Var,
    heads: HeadLayout,
    sinks: Option<&Var>,
    segments: &Arc<[Segment]>,
    options: AttentionOptions,
    dropout: Option<AttentionDropout>,
) -> Result<Var> {
    let tokens = qkv.value().as_matrix().0;
    let covered: usize = segments.iter().map(|s| s.q_len).sum();
    if covered != tokens {
        return Err(Error::Range { what: "tokens covered by segments", start: 0, end: covered, len: tokens });
    }
    let device = g.device().clone();
    let rows = QkvRows::Packed(qkv.value());
    let (mut out, mut lse) = device.attention(rows, heads, segments, &options, dropout.as_ref())?;
    let values = join_sinks(&device, &mut out, &mut lse, sinks.map(Var::value))?;
    let none = g.constant(out.clone());
    let [out] = g.apply_keeping([out], &[qkv, sinks.unwrap_or(&none)], |[out]| {
        Box::new(Attention {
            qkv: qkv.saved(),
            out: out.saved(),
            lse,
            sinks: sinks.map(|s| s.value().into()).zip(values),
            heads,
            segments: segments.clone(),
            options,
            dropout,
        })
    });
    Ok(out)
}

/// Applies sinks to an attention output; returns it unrounded: f32, or f64.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn join_sinks(
    device: &Device,
    out: &mut Tensor,
    lse: &mut Tensor,
    sinks: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let Some(sinks) = sinks else { return Ok(None) };
    let values = device.cast(sinks, sinks.dtype().wide())?;
    device.attention_sinks(out, lse, &values)?;
    Ok(Some(values))
}

struct Picked {
    rows: QkvRows<Saved>,
    out: Saved,
    lse: Tensor,
    heads: HeadLayout,
    picks: Tensor,
    options: AttentionOptions,
}

/// Tokens see each other's keys, in the last of the inputs.
fn sees_keys(along: Digit, inputs: InputStates<'_>) -> OutputState {
    let keys = inputs.len() - 1;
    shard_state::token_mixing(along, inputs, keys..keys + 1)
}
op!(Picked, "attention_picked", (sees_keys), |op, cx, dy| {
    let Picked { rows, out, lse, heads, picks, options } = op;
    let (rows, out) = (rows.try_map(|rows| rows.get(cx.device))?, out.get(cx.device)?);
    let rows = rows.as_ref();
    let d = cx.device.attention_picked_backward(&dy, rows, &out, &lse, heads, &picks, &options)?;
    Ok(d.into_parts().map(Some).collect())
});

/// Attention of prepared rows over the keys `picks[T,P]` only (row numbers, or -1): `[T,N·D]`. Saves rows, output and the log
/// of each row's softmax sum.
///
/// # Errors
/// If shapes, element types or picks do not fit.
pub fn attention_picked(
    g: &mut Graph,
    rows: QkvRows<&Var>,
    heads: HeadLayout,
    picks: &Tensor,
    options: AttentionOptions,
) -> Result<Var> {
    let (out, lse) = g.device().attention_picked(rows.map(Var::value), heads, picks, &options)?;
    let (picks, inputs): (Tensor, Vec<&Var>) = (picks.clone(), rows.into_parts().collect());
    let [out] = g.apply_keeping([out], &inputs, |[out]| {
        Box::new(Picked { rows: rows.map(Var::saved), out: out.saved(), lse, heads, picks, options })
    });
    Ok(out)
}
