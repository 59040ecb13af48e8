//! Activation of the gated MLP, and sums.

use super::layout::op;
use super::only;
use crate::{Activation, BackwardCx, Graph, Op, Result, Saved, Var};

struct Swiglu(Saved);
op!(Swiglu, "swiglu", |op, cx, dy| Ok(vec![Some(cx.device.swiglu_backward(&dy, &op.0.get(cx.device)?)?)]));

/// `y[T,F] = silu(gate) · up` of `x[T,2F] = [gate | up]`. Saves `x`, from which the result can be recomputed.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn swiglu(g: &mut Graph, x: &Var) -> Result<Var> {
    let y = g.device().swiglu(x.value())?;
    let y = g.apply(y, &[x], || Box::new(Swiglu(x.saved())));
    let x = x.saved();
    Ok(y.recomputed_by(move |device| device.swiglu(&x.get(device)?)))
}

struct Add;
op!(Add, "add", additive, |_op, _cx, dy| Ok(vec![Some(dy.clone()), Some(dy)]));

/// `a + b`, element by element. Saves nothing.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn add(g: &mut Graph, a: &Var, b: &Var) -> Result<Var> {
    let y = g.device().add(a.value(), b.value())?;
    Ok(g.apply(y, &[a, b], || Box::new(Add)))
}

struct Activate {
    x: Saved,
    kind: Activation,
    gated: bool,
}
op!(Activate, "activation", |op, cx, dy| {
    Ok(vec![Some(cx.device.activation_backward(&dy, &op.x.get(cx.device)?, op.kind, op.gated)?)])
});

/// `y[T,F] = f(gate) · up` of `x[T,2F] = [gate | up]`, or `f(x)` of `x[T,F]` without `gated`. Saves `x`, from which the
/// result can be recomputed.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn activation(g: &mut Graph, x: &Var, kind: Activation, gated: bool) -> Result<Var> {
    if gated && kind == Activation::Silu {
        return swiglu(g, x);
    }
    let y = g.device().activation(x.value(), kind, gated)?;
    let y = g.apply(y, &[x], || Box::new(Activate { x: x.saved(), kind, gated }));
    let x = x.saved();
    Ok(y.recomputed_by(move |device| device.activation(&x.get(device)?, kind, gated)))
}

struct Gate {
    x: Saved,
    gate: Saved,
    kind: Activation,
}
op!(Gate, "gate", |op, cx, dy| {
    let (dx, dgate) =
        cx.device.gate_backward(&dy, &op.x.get(cx.device)?, &op.gate.get(cx.device)?, op.kind)?;
    Ok(vec![Some(dx), Some(dgate)])
});

/// `x[T,W] · f(gate)` with `gate[T,W]` or `[T,1]`. Saves both.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn gate(g: &mut Graph, x: &Var, gate: &Var, kind: Activation) -> Result<Var> {
    let y = g.device().gate(x.value(), gate.value(), kind)?;
    Ok(g.apply(y, &[x, gate], || Box::new(Gate { x: x.saved(), gate: gate.saved(), kind })))
}
