//! RMSNorm, alone and fused with a residual addition, and LayerNorm.

use super::layout::op;
use super::{all, only};
use crate::{BackwardCx, Grads, Graph, Norm, Op, Result, Saved, Tensor, Var};

struct RmsNorm {
    x: Saved,
    w: Saved,
    rstd: Tensor,
    norm: Norm,
}

impl RmsNorm {
    fn dx(
        self,
        cx: &mut BackwardCx<'_>,
        weight: usize,
        dy: &Tensor,
        dsum: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Self { x, w, rstd, norm } = self;
        let device = cx.device.clone();
        let (x, w) = (x.get(&device)?, w.get(&device)?);
        cx.with_gradient(weight, |dw| device.rms_norm_backward(dw, dy, &x, &w, &rstd, dsum, &norm))
    }
}

op!(RmsNorm, "rms_norm", |op, cx, dy| Ok(vec![Some(op.dx(cx, 1, &dy, None)?), None]));

struct AddRmsNorm(RmsNorm);

impl Op for AddRmsNorm {
    fn name(&self) -> &'static str {
        "add_rms_norm"
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let mut dys = dys.into_iter();
        let (dsum, dy) = (dys.next().flatten(), dys.next().flatten());
        let d = match dy {
            Some(dy) => Some(self.0.dx(cx, 2, &dy, dsum.as_ref())?),
            None => dsum,
        };
        Ok(vec![d.clone(), d, None])
    }
}

/// RMSNorm of the rows of `x[T,H]` with scale `w[H]`. Saves `x`, `w`, from which the result can be recomputed, and the
/// reciprocal root mean squares `[T]`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn rms_norm(g: &mut Graph, x: &Var, w: &Var, norm: Norm) -> Result<Var> {
    let (y, rstd) = g.device().rms_norm(x.value(), w.value(), &norm)?;
    let y = g.apply(y, &[x, w], || Box::new(RmsNorm { x: x.saved(), w: w.saved(), rstd, norm }));
    Ok(normed_again(y, [x.saved(), w.saved()], norm))
}

/// `y`, which is the norm of the saved values.
fn normed_again(y: Var, [x, w]: [Saved; 2], norm: Norm) -> Var {
    y.recomputed_by(move |device| Ok(device.rms_norm(&x.get(device)?, &w.get(device)?, &norm)?.0))
}

/// `sum = x + residual` and RMSNorm of `sum`, in one pass: `(sum, y)`. Saves `sum`, `w`, from which `y` can be recomputed,
/// and `[T]` numbers.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn add_rms_norm(g: &mut Graph, x: &Var, residual: &Var, w: &Var, norm: Norm) -> Result<(Var, Var)> {
    let (sum, y, rstd) = g.device().add_rms_norm(x.value(), residual.value(), w.value(), &norm)?;
    let [sum, y] = g.apply_keeping([sum, y], &[x, residual, w], |[sum, _]| {
        Box::new(AddRmsNorm(RmsNorm { x: sum.saved(), w: w.saved(), rstd, norm }))
    });
    let kept = [sum.saved(), w.saved()];
    Ok((sum, normed_again(y, kept, norm)))
}

struct LayerNorm {
    x: Saved,
    w: Saved,
    stats: Tensor,
    shifted: bool,
}
op!(LayerNorm, "layer_norm", |op, cx, dy| {
    let [x, w] = all([op.x, op.w], cx.device)?;
    let (dx, dwb) = cx.device.layer_norm_backward(&dy, &x, &w, &op.stats)?;
    for input in 0..1 + usize::from(op.shifted) {
        let d = dwb.rows(input, 1)?;
        let d = d.reshape([d.numel()])?;
        cx.accumulate(1 + input, move |device, grad| device.accumulate(grad, &d, 1.0))?;
    }
    Ok(vec![Some(dx), None, None])
});

/// LayerNorm of the rows of `x[T,H]` with scale `w[H]` and shift `b[H]`. Saves `x`, `w`, `b`, from which the result can be
/// recomputed, and `[T,2]` numbers.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn layer_norm(g: &mut Graph, x: &Var, w: &Var, b: Option<&Var>, eps: f64) -> Result<Var> {
    let (y, stats) = g.device().layer_norm(x.value(), w.value(), b.map(Var::value), eps)?;
    let none = g.constant(y.clone());
    let inputs = [x, w, b.unwrap_or(&none)];
    let (x, w, b) = (x.saved(), w.saved(), b.map(Var::saved));
    let op = LayerNorm { x: x.clone(), w: w.clone(), stats, shifted: b.is_some() };
    let y = g.apply(y, &inputs, || Box::new(op));
    Ok(y.recomputed_by(move |device| {
        let b = b.map(|b| b.get(device)).transpose()?;
        Ok(device.layer_norm(&x.get(device)?, &w.get(device)?, b.as_ref(), eps)?.0)
    }))
}
