//! Activation of the gated MLP, and sums.

use super::only;
use crate::{BackwardCx, Graph, Op, Result, Tensor, Var};

struct Swiglu(Tensor);

impl Op for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.device.swiglu_backward(&only(dys), &self.0)?)])
    }
}

/// `y[T,F] = silu(gate) · up` of `x[T,2F] = [gate | up]`. Keeps `x`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn swiglu(g: &mut Graph, x: &Var) -> Result<Var> {
    let y = g.device().swiglu(x.value())?;
    Ok(g.apply(y, &[x], || Box::new(Swiglu(x.value().clone()))))
}

struct Add;

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn backward(
        self: Box<Self>,
        _: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let dy = only(dys);
        Ok(vec![Some(dy.clone()), Some(dy)])
    }
}

/// `a + b`, element by element. Keeps nothing.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn add(g: &mut Graph, a: &Var, b: &Var) -> Result<Var> {
    let y = g.device().add(a.value(), b.value())?;
    Ok(g.apply(y, &[a, b], || Box::new(Add)))
}
