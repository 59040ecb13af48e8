//! Recomputation: run now without recording, run again, recorded, in the backward pass.

use super::only;
use crate::{BackwardCx, Graph, Op, Result, Tensor, Var};
use std::sync::Arc;

/// A part of a model that can be run twice.
pub type Recomputed = Arc<dyn Fn(&mut Graph, &Var) -> Result<Var> + Send + Sync>;

struct Recompute {
    x: Tensor,
    f: Recomputed,
}

impl Op for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut g = Graph::train(cx.device);
        let x = g.input(self.x);
        let y = (self.f)(&mut g, &x)?;
        cx.backward_inner(g, &y, only(dys), &[&x])
    }
}

/// `f(x)`, of which only `x` is kept; the backward pass runs `f` again to rebuild what it needs.
///
/// # Errors
/// As `f`.
pub fn recompute(g: &mut Graph, x: &Var, f: Recomputed) -> Result<Var> {
    if !g.records() {
        return f(g, x);
    }
    let y = f(&mut Graph::inference(g.device()), x)?.value().clone();
    let keep = x.value().clone();
    Ok(g.apply_region(y, x, || Box::new(Recompute { x: keep, f })))
}
