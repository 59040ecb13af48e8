//! RMSNorm, alone and behind a residual sum, and LayerNorm.

use super::only;
use crate::{BackwardCx, Graph, Norm, Op, Result, Tensor, Var};

struct RmsNorm {
    x: Tensor,
    w: Tensor,
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
        device.rms_norm_backward(cx.main_grad(weight)?, dy, &x, &w, &rstd, dsum, &norm)
    }
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let dx = self.dx(cx, 1, &only(dys), None)?;
        Ok(vec![Some(dx), None])
    }
}

struct AddRmsNorm(RmsNorm);

impl Op for AddRmsNorm {
    fn name(&self) -> &'static str {
        "add_rms_norm"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut dys = dys.into_iter();
        let (dsum, dy) = (dys.next().flatten(), dys.next().flatten());
        let d = match dy {
            Some(dy) => Some(self.0.dx(cx, 2, &dy, dsum.as_ref())?),
            None => dsum,
        };
        Ok(vec![d.clone(), d, None])
    }
}

/// RMSNorm of the rows of `x[T,H]` with scale `w[H]`. Keeps `x`, `w` and the reciprocal root mean squares `[T]`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn rms_norm(g: &mut Graph, x: &Var, w: &Var, norm: Norm) -> Result<Var> {
    let (y, rstd) = g.device().rms_norm(x.value(), w.value(), &norm)?;
    Ok(g.apply(y, &[x, w], || Box::new(RmsNorm { x: x.value().clone(), w: w.value().clone(), rstd, norm })))
}

/// `sum = x + residual` and RMSNorm of `sum`, in one pass: `(sum, y)`. Keeps `sum`, `w` and `[T]` numbers.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn add_rms_norm(g: &mut Graph, x: &Var, residual: &Var, w: &Var, norm: Norm) -> Result<(Var, Var)> {
    let (sum, y, rstd) = g.device().add_rms_norm(x.value(), residual.value(), w.value(), &norm)?;
    let keep = sum.clone();
    let [sum, y] = g.apply_n([sum, y], &[x, residual, w], || {
        Box::new(AddRmsNorm(RmsNorm { x: keep, w: w.value().clone(), rstd, norm }))
    });
    Ok((sum, y))
}

struct LayerNorm {
    x: Tensor,
    w: Tensor,
    stats: Tensor,
    shifted: bool,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { x, w, stats, shifted } = *self;
        let (dx, dwb) = cx.device.layer_norm_backward(&only(dys), &x, &w, &stats)?;
        for input in 0..1 + usize::from(shifted) {
            let d = dwb.rows(input, 1)?;
            let d = d.reshape([d.numel()])?;
            cx.accumulate(1 + input, move |device, grad| device.accumulate(grad, &d, 1.0))?;
        }
        Ok(vec![Some(dx), None, None])
    }
}

/// LayerNorm of the rows of `x[T,H]` with scale `w[H]` and shift `b[H]`. Keeps `x`, `w` and `[T,2]` numbers.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn layer_norm(g: &mut Graph, x: &Var, w: &Var, b: Option<&Var>, eps: f32) -> Result<Var> {
    let (y, stats) = g.device().layer_norm(x.value(), w.value(), b.map(Var::value), eps)?;
    let none = g.constant(y.clone());
    let inputs = [x, w, b.unwrap_or(&none)];
    Ok(g.apply(y, &inputs, || {
        Box::new(LayerNorm { x: x.value().clone(), w: w.value().clone(), stats, shifted: b.is_some() })
    }))
}
