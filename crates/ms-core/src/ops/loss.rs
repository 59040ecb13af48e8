//! Output layer and cross entropy, fused over chunks of tokens.

use super::only;
use crate::{BackwardCx, DType, Error, Graph, Op, Result, Tensor, Var};

/// Tokens whose logits exist at once. A constant: it decides the order of a sum over tokens.
const CHUNK: usize = 256;

/// What the loss layer returns.
pub struct LossVar {
    /// `Σ_t weights[t] · nll[t]`, `[1]` f32: the root of the backward pass.
    pub loss: Var,
    /// Negative log-likelihood per token, `[T]` f32.
    pub nll: Tensor,
}

struct LinearCrossEntropy {
    dx: Tensor,
    dw: Tensor,
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { mut dx, dw } = *self;
        let factor = only(dys).as_slice::<f32>()?[0];
        if factor != 1.0 {
            cx.device.scale(&mut dx, factor)?;
        }
        cx.accumulate(1, move |device, grad| device.accumulate(grad, &dw, factor))?;
        Ok(vec![Some(dx), None])
    }
}

/// Cross entropy of `softmax(x[T,H] · w[V,H]ᵀ)` against `targets[T]` (i32), weighted by `weights[T]` (f32).
///
/// The logits exist for 256 tokens at a time. When the graph records, the gradients by `x` and `w` are formed in
/// the same pass, while a chunk's logits are in cache; kept are these two gradients (`[T,H]`, and `[V,H]` f32),
/// never `[T,V]`. A target below zero marks an ignored token; its weight must be zero.
///
/// # Errors
/// If shapes, element types or targets do not fit.
pub fn linear_cross_entropy(
    g: &mut Graph,
    x: &Var,
    w: &Var,
    targets: &Tensor,
    weights: &Tensor,
) -> Result<LossVar> {
    let device = g.device().clone();
    let (tokens, hidden) = x.value().as_matrix();
    for (name, t) in [("targets", targets), ("weights", weights)] {
        t.expect_shape("linear_cross_entropy", name, [tokens])?;
    }
    if tokens == 0 {
        return Err(Error::Range { what: "tokens of a loss", start: 0, end: 1, len: 0 });
    }
    let arena = device.arena();
    let mut nll = Tensor::uninit(arena, DType::F32, [tokens]);
    let mut gradients = if g.records() {
        let dx = Tensor::uninit(arena, x.value().dtype(), [tokens, hidden]);
        Some((dx, Tensor::zeros(arena, DType::F32, w.value().shape())))
    } else {
        None
    };
    for start in (0..tokens).step_by(CHUNK) {
        let len = CHUNK.min(tokens - start);
        let (xc, tc, wc) =
            (x.value().rows(start, len)?, targets.rows(start, len)?, weights.rows(start, len)?);
        let mut logits = device.linear(&xc, w.value(), None)?;
        let weights = gradients.is_some().then_some(&wc);
        let part = device.cross_entropy(&mut logits, &tc, weights)?;
        nll.as_mut_slice::<f32>()?[start..start + len].copy_from_slice(part.as_slice()?);
        if let Some((dx, dw)) = &mut gradients {
            device.linear_dw(dw.whole_mut()?, &logits, &xc)?;
            let part = device.linear_dx(&logits, w.value())?;
            let row = hidden * dx.dtype().size();
            dx.bytes_mut()?[start * row..(start + len) * row].copy_from_slice(part.bytes());
        }
    }
    let sum: f64 = nll
        .as_slice::<f32>()?
        .iter()
        .zip(weights.as_slice::<f32>()?)
        .map(|(&n, &w)| if w == 0.0 { 0.0 } else { f64::from(n) * f64::from(w) })
        .sum();
    let loss = Tensor::from_slice(arena, [1], &[sum as f32])?;
    let loss = match gradients {
        Some((dx, dw)) => g.apply(loss, &[x, w], || Box::new(LinearCrossEntropy { dx, dw })),
        None => g.constant(loss),
    };
    Ok(LossVar { loss, nll })
}
