//! Recurrent mixers. All operands are f32, or f64; see [`super::cast`].

use super::layout::op;
use super::{all, only};
use crate::{
    BackwardCx, DeltaRule, Grads, Graph, Mamba3Shape, Op, Result, Saved, Segment, StateSpace, Tensor,
    TensorSpec, Var,
};
use std::sync::Arc;

/// Adds gradients computed by a fused kernel to the inputs from `first` on: to parameters, or as tensors.
fn weights(
    cx: &mut BackwardCx<'_>,
    first: usize,
    gradients: impl IntoIterator<Item = Tensor>,
) -> Result<Grads> {
    let each = gradients.into_iter().enumerate();
    each.map(|(i, d)| {
        let like = TensorSpec::from(&d);
        cx.weight_gradient(first + i, like, move |device, grad| device.accumulate(grad, &d, 1.0))
    })
    .collect()
}

struct Convolution {
    x: Saved,
    w: Saved,
    b: Option<Saved>,
    segments: Arc<[Segment]>,
}
op!(Convolution, "convolution", sees 0..1, |op, cx, dy| {
    let [x, w] = all([op.x, op.w], cx.device)?;
    let b = op.b.map(|b| b.get(cx.device)).transpose()?;
    let [dx, dw, db] = cx.device.convolution_backward(&dy, &x, &w, b.as_ref(), &op.segments)?;
    let mut all = vec![Some(dx)];
    all.extend(weights(cx, 1, [dw])?);
    all.extend(if b.is_some() { weights(cx, 2, [db])? } else { vec![None] });
    Ok(all)
});

/// Causal depthwise convolution of `x[T,C]` with taps `w[C,1,W]`, then SiLU, inside each segment. Saves `x` and `w`.
///
/// `history[S,W-1,C]` holds what precedes each segment and is replaced by what the next call needs; with it there is no
/// backward.
///
/// # Errors
/// If shapes, element types or segments do not fit.
pub fn convolution(
    g: &mut Graph,
    x: &Var,
    w: &Var,
    b: Option<&Var>,
    history: Option<&mut Tensor>,
    segments: &Arc<[Segment]>,
) -> Result<Var> {
    let kept = history.is_some();
    let y = g.device().convolution(x.value(), w.value(), b.map(Var::value), history, segments)?;
    if kept {
        return Ok(g.constant(y));
    }
    let none = g.constant(y.clone());
    let inputs = [x, w, b.unwrap_or(&none)];
    Ok(g.apply(y, &inputs, || {
        Box::new(Convolution { x: x.saved(), w: w.saved(), b: b.map(Var::saved), segments: segments.clone() })
    }))
}

struct Scan {
    inputs: [Saved; 4],
    weights: [Saved; 3],
    segments: Arc<[Segment]>,
    shape: StateSpace,
}
op!(Scan, "state_space", sees 0..4, |op, cx, dy| {
    let (inputs, params) = (all(op.inputs, cx.device)?, all(op.weights, cx.device)?);
    let (inputs, params) = (inputs.each_ref(), params.each_ref());
    let (by_inputs, by_weights) =
        cx.device.state_space_backward(&dy, inputs, params, &op.segments, &op.shape)?;
    let mut all: Vec<Option<Tensor>> = by_inputs.into_iter().map(Some).collect();
    all.extend(weights(cx, 4, by_weights)?);
    Ok(all)
});

/// Mamba-2's scan of `[x, b, c, dt]` with weights `[a_log, d, dt_bias]`; shapes as in
/// [`RecurrentBackend::state_space`](crate::RecurrentBackend::state_space). Saves its operands; states are recomputed.
///
/// `states[S,N,P,S']` is read and replaced; with it there is no backward.
///
/// # Errors
/// If shapes, element types or segments do not fit.
pub fn state_space(
    g: &mut Graph,
    inputs: [&Var; 4],
    params: [&Var; 3],
    states: Option<&mut Tensor>,
    segments: &Arc<[Segment]>,
    shape: &StateSpace,
) -> Result<Var> {
    let kept = states.is_some();
    let y =
        g.device().state_space(inputs.map(Var::value), params.map(Var::value), states, segments, shape)?;
    if kept {
        return Ok(g.constant(y));
    }
    let all: Vec<&Var> = inputs.into_iter().chain(params).collect();
    Ok(g.apply(y, &all, || {
        Box::new(Scan {
            inputs: inputs.map(Var::saved),
            weights: params.map(Var::saved),
            segments: segments.clone(),
            shape: *shape,
        })
    }))
}

/// Inputs of the scan of Mamba-3, its weights, and its weights by rank.
const TRAPEZOID: [usize; 3] = [8, 4, 3];

struct Mamba3 {
    /// As many as were given.
    operands: Vec<Saved>,
    segments: Arc<[Segment]>,
    shape: Mamba3Shape,
}
op!(Mamba3, "mamba3", sees 0..8, |op, cx, dy| {
    let none = Tensor::zeros(cx.device.arena(), dy.dtype(), [0]);
    let kept = op.operands.iter().map(|t| t.get(cx.device)).collect::<Result<Vec<_>>>()?;
    let mut operands = [&none; 15];
    operands.iter_mut().zip(&kept).for_each(|(operand, t)| *operand = t);
    let grads = cx.device.mamba3_backward(&dy, operands, &op.segments, &op.shape)?;
    let [inputs, single, by_rank] = TRAPEZOID;
    let given = if kept.len() == inputs + single { single } else { single + by_rank };
    let mut grads = grads.into_iter();
    let mut all: Vec<Option<Tensor>> = grads.by_ref().take(inputs).map(Some).collect();
    all.extend(weights(cx, inputs, grads.take(given))?);
    Ok(all)
});

/// Mamba-3's scan of `[x, z, b, c, dt, rate, trap, angle]` with weights `[dt_bias, b_bias, c_bias, d]`, and
/// `[rank_x, rank_z, rank_o]` where heads have several inputs; shapes as in [`Mamba3Operands`](ms_operands::Mamba3Operands).
/// Saves its operands; states are recomputed.
///
/// `memory` holds the state left by each document's last token `[D,N,·]` and the states `[D,N,P,S]`, read and replaced; with
/// it there is no backward.
///
/// # Errors
/// If shapes, element types or segments do not fit.
pub fn mamba3(
    g: &mut Graph,
    inputs: [&Var; 8],
    single: [&Var; 4],
    by_rank: Option<[&Var; 3]>,
    memory: Option<[&mut Tensor; 2]>,
    segments: &Arc<[Segment]>,
    shape: &Mamba3Shape,
) -> Result<Var> {
    let none = Tensor::zeros(g.device().arena(), inputs[0].value().dtype(), [0]);
    let given: Vec<&Var> = inputs.into_iter().chain(single).chain(by_rank.into_iter().flatten()).collect();
    let mut operands = [&none; 15];
    operands.iter_mut().zip(&given).for_each(|(operand, v)| *operand = v.value());
    let kept = memory.is_some();
    let y = g.device().mamba3(operands, memory, segments, shape)?;
    if kept {
        return Ok(g.constant(y));
    }
    Ok(g.apply(y, &given, || {
        Box::new(Mamba3 {
            operands: given.iter().map(|v| v.saved()).collect(),
            segments: segments.clone(),
            shape: *shape,
        })
    }))
}

struct Delta {
    inputs: [Saved; 5],
    segments: Arc<[Segment]>,
    shape: DeltaRule,
}
op!(Delta, "delta_rule", sees 0..5, |op, cx, dy| {
    let inputs = all(op.inputs, cx.device)?;
    let grads = cx.device.delta_rule_backward(&dy, inputs.each_ref(), &op.segments, &op.shape)?;
    Ok(grads.into_iter().map(Some).collect())
});

/// The gated delta rule of `[q, k, v, g, beta]`; shapes as in
/// [`RecurrentBackend::delta_rule`](crate::RecurrentBackend::delta_rule). Saves its operands; states are recomputed.
///
/// `states[S,N,K,V]` is read and replaced; with it there is no backward.
///
/// # Errors
/// If shapes, element types or segments do not fit.
pub fn delta_rule(
    g: &mut Graph,
    inputs: [&Var; 5],
    states: Option<&mut Tensor>,
    segments: &Arc<[Segment]>,
    shape: &DeltaRule,
) -> Result<Var> {
    let kept = states.is_some();
    let y = g.device().delta_rule(inputs.map(Var::value), states, segments, shape)?;
    if kept {
        return Ok(g.constant(y));
    }
    Ok(g.apply(y, &inputs, || {
        Box::new(Delta { inputs: inputs.map(Var::saved), segments: segments.clone(), shape: *shape })
    }))
}

struct Decay([Saved; 3]);
op!(Decay, "decay", |op, cx, dy| {
    let [a, a_log, dt_bias] = all(op.0, cx.device)?;
    let [da, dlog, dbias] = cx.device.decay_backward(&dy, &a, &a_log, &dt_bias)?;
    let mut all = vec![Some(da)];
    all.extend(weights(cx, 1, [dlog, dbias])?);
    Ok(all)
});

/// `g[T,N] = −exp(a_log[N]) · softplus(a[T,N] + dt_bias[N])`. Saves its operands.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn decay(g: &mut Graph, a: &Var, a_log: &Var, dt_bias: &Var) -> Result<Var> {
    let y = g.device().decay(a.value(), a_log.value(), dt_bias.value())?;
    Ok(g.apply(y, &[a, a_log, dt_bias], || Box::new(Decay([a, a_log, dt_bias].map(Var::saved)))))
}
