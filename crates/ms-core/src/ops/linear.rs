//! Linear layer.

use super::only;
use crate::{BackwardCx, Graph, Op, Result, Tensor, Var};

struct Linear {
    x: Tensor,
    w: Tensor,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { x, w } = *self;
        let dy = only(dys);
        let dx = cx.device.linear_dx(&dy, &w)?;
        let device = cx.device.clone();
        if let Some(db) = cx.main_grad(2)? {
            device.linear_db(db, &dy)?;
        }
        let dw = cx.weight_gradient(1, &w, move |device, dw| device.linear_dw(dw, &dy, &x))?;
        Ok(vec![Some(dx), dw, None])
    }
}

/// `y[T,N] = x[T,K] · w[N,K]ᵀ (+ bias[N])`. Keeps `x` and `w`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn linear(g: &mut Graph, x: &Var, w: &Var, bias: Option<&Var>) -> Result<Var> {
    let y = g.device().linear(x.value(), w.value(), bias.map(Var::value))?;
    let none = g.constant(y.clone());
    let inputs = [x, w, bias.unwrap_or(&none)];
    Ok(g.apply(y, &inputs, || Box::new(Linear { x: x.value().clone(), w: w.value().clone() })))
}
