//! Preparation of queries and keys, and attention.

use super::layout::op;
use super::only;
use crate::hold::{self, Held, Holds};
use crate::{
    AttentionDropout, AttentionOptions, BackwardCx, Device, Digit, Error, Graph, HeadLayout, Like, Op,
    QkNorm, Result, Rotary, Saved, Segment, Tensor, Var,
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

impl Op for PrepareQkv {
    fn name(&self) -> &'static str {
        "prepare_qkv"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { qkv, rstd, heads, norm, rotary, positions } = *self;
        let device = cx.device.clone();
        let dprepared = only(dys);
        let (Some((q, k, eps)), Some(qkv)) = (norm, qkv) else {
            let d = device
                .prepare_qkv_backward(dprepared, &rstd, &rstd, heads, None, None, &rotary, &positions)?;
            return Ok(vec![Some(d), None, None]);
        };
        let (qkv, q, k) = (qkv.get(&device)?, q.get(&device)?, k.get(&device)?);
        // Two small gradients from one kernel: they go through temporaries, because the two main gradients
        // cannot be borrowed at once.
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
    }
}

/// Optional per-head RMSNorm of queries and keys (scales `[D]`, eps), then rotation, on packed rows
/// `[T,(N+2G)D]`; see [`HeadLayout`]. Keeps the unprepared rows and `rstd` when there is a norm.
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
    /// What the parameter is like, and its values, f32 or f64.
    sinks: Option<(Like, Tensor)>,
    heads: HeadLayout,
    segments: Arc<[Segment]>,
    options: AttentionOptions,
    dropout: Option<AttentionDropout>,
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn hold(&self, along: Digit, inputs: Holds<'_>) -> Held {
        hold::in_sequence(along, inputs, 0..1)
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { qkv, out, lse, sinks, heads, segments, options, dropout } = *self;
        let dout = only(dys);
        let (qkv, out) = (qkv.get(cx.device)?, out.get(cx.device)?);
        let dropout = dropout.as_ref();
        let dqkv =
            cx.device.attention_backward(&dout, &qkv, &out, &lse, heads, &segments, &options, dropout)?;
        let dsinks = match sinks {
            Some((param, values)) => cx.weight_gradient(1, param, move |device, grad| {
                device.attention_sinks_backward(grad, &dout, &out, &lse, &values)
            })?,
            None => None,
        };
        Ok(vec![Some(dqkv), dsinks])
    }
}

/// Causal attention inside each segment of prepared packed rows: `[T,N·D]`. Keeps rows, output and the log of
/// each row's softmax sum, not the probabilities. `sinks[N]` is one more score a head, of a key whose value is zero. What
/// `dropout` drops is drawn again in the backward pass.
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
    let (mut out, mut lse) = device.attention(qkv.value(), heads, segments, &options, dropout.as_ref())?;
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

/// Lets the sinks join an attention's output; returns them unrounded: f32, or f64.
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
    qkv: Saved,
    out: Saved,
    lse: Tensor,
    heads: HeadLayout,
    picks: Tensor,
    options: AttentionOptions,
}
op!(Picked, "attention_picked", sees 0..1, |op, cx, dy| {
    let Picked { qkv, out, lse, heads, picks, options } = op;
    let (qkv, out) = (qkv.get(cx.device)?, out.get(cx.device)?);
    Ok(vec![Some(cx.device.attention_picked_backward(&dy, &qkv, &out, &lse, heads, &picks, &options)?)])
});

/// Attention of prepared packed rows over `picks[T,P]` (rows of keys, or -1) alone: `[T,N·D]`. Keeps rows, output and
/// the log of each row's softmax sum.
///
/// # Errors
/// If shapes, element types or picks do not fit.
pub fn attention_picked(
    g: &mut Graph,
    qkv: &Var,
    heads: HeadLayout,
    picks: &Tensor,
    options: AttentionOptions,
) -> Result<Var> {
    let (out, lse) = g.device().attention_picked(qkv.value(), None, heads, picks, &options)?;
    let picks = picks.clone();
    let [out] = g.apply_keeping([out], &[qkv], |[out]| {
        Box::new(Picked { qkv: qkv.saved(), out: out.saved(), lse, heads, picks, options })
    });
    Ok(out)
}

struct PickedApart {
    q: Saved,
    kv: Saved,
    out: Saved,
    lse: Tensor,
    heads: HeadLayout,
    picks: Tensor,
    options: AttentionOptions,
}
op!(PickedApart, "attention_picked_apart", sees 1..2, |op, cx, dy| {
    let PickedApart { q, kv, out, lse, heads, picks, options } = op;
    let (q, kv, out) = (q.get(cx.device)?, kv.get(cx.device)?, out.get(cx.device)?);
    let device = cx.device;
    let (dq, dkv) =
        device.attention_picked_apart_backward(&dy, &q, &kv, &out, &lse, heads, &picks, &options)?;
    Ok(vec![Some(dq), Some(dkv)])
});

/// [`attention_picked`] of prepared queries `q[T,N·D]` over rows of keys and values `kv[C,2·G·D]`, of which there may be more
/// than queries: of each group the key, and behind it the value. Keeps both, the output and the log of each row's softmax sum.
///
/// # Errors
/// If shapes, element types or picks do not fit.
pub fn attention_picked_apart(
    g: &mut Graph,
    [q, kv]: [&Var; 2],
    heads: HeadLayout,
    picks: &Tensor,
    options: AttentionOptions,
) -> Result<Var> {
    let (out, lse) = g.device().attention_picked_apart(q.value(), kv.value(), heads, picks, &options)?;
    let picks = picks.clone();
    let [out] = g.apply_keeping([out], &[q, kv], |[out]| {
        let (q, kv) = (q.saved(), kv.saved());
        Box::new(PickedApart { q, kv, out: out.saved(), lse, heads, picks, options })
    });
    Ok(out)
}
