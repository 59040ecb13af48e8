//! Output layer and cross entropy, fused over chunks of tokens.

use super::only;
use crate::hold::{self, Held, Hold, Holds};
use crate::{BackwardCx, Device, Digit, Error, Graph, Like, Op, Result, Tensor, Var};

/// Tokens whose logits exist at once. A constant: it decides the order of a sum over tokens.
const CHUNK: usize = 256;

/// What the loss layer returns.
pub struct LossVar {
    /// `Σ_t weights[t] · nll[t]`, `[1]`, f32 or f64: the root of the backward pass.
    pub loss: Var,
    /// Negative log-likelihood per token, `[T]`, f32 or f64.
    pub nll: Tensor,
}

/// The ranks that share out a vocabulary, as a loss over it sees them.
pub trait VocabGroup {
    /// Id of this rank's first row of the output layer.
    fn first(&self) -> usize;

    /// The statistics `[T,3]` of all ranks, one after the other in rank order: `[ranks * T,3]`.
    ///
    /// # Errors
    /// If a rank fails.
    fn gather(&self, statistics: Tensor) -> Result<Tensor>;

    /// Number of ranks.
    fn size(&self) -> usize;
}

/// The output layer: `logits = cap(scale · (x · wᵀ + bias))`.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// This rank's rows: `[V,H]`.
    pub w: &'a Var,
    /// `[V]`.
    pub bias: Option<&'a Var>,
    /// Factor of the logits.
    pub scale: f64,
    /// `c · tanh(x / c)`.
    pub softcap: Option<f64>,
    /// The ranks that share the vocabulary; `None`: this one has all of it.
    pub group: Option<&'a dyn VocabGroup>,
    /// The gradient of the weights is formed when it is asked for, of what it is formed of, not in the forward pass.
    pub formed_later: bool,
}

impl<'a> Head<'a> {
    /// A plain matrix.
    pub fn plain(w: &'a Var) -> Self {
        Self { w, bias: None, scale: 1.0, softcap: None, group: None, formed_later: false }
    }

    fn logits(&self, device: &Device, x: &Tensor) -> Result<Tensor> {
        let mut y = device.linear(x, self.w.value(), self.bias.map(Var::value))?;
        if self.scale != 1.0 {
            device.scale(&mut y, self.scale)?;
        }
        if let Some(cap) = self.softcap {
            device.softcap(&mut y, cap)?;
        }
        Ok(y)
    }
}

/// Logits `[T,V]` of hidden states `x[T,H]`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn logits(device: &Device, x: &Tensor, head: &Head<'_>) -> Result<Tensor> {
    head.logits(device, x)
}

struct LinearCrossEntropy {
    dx: Tensor,
    dw: WeightGradient,
    db: Option<Tensor>,
    w: Like,
    /// Whether there are other ranks that hold words.
    shares_words: bool,
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn hold(&self, _: Digit, inputs: Holds<'_>) -> Held {
        match hold::projected(inputs)? {
            // Ranks exchange the statistics of their words inside.
            Some(Hold::Sharded) if self.shares_words => Ok(Some(Hold::Invariant)),
            Some(Hold::Sharded) => Err(hold::Clash),
            // A sum over a rank's own tokens.
            Some(Hold::Tokens) => Ok(Some(Hold::Partial)),
            other => Ok(other),
        }
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { mut dx, dw, db, w, .. } = *self;
        let factor = only(dys).ready()?.to_reals()?[0];
        if factor != 1.0 {
            cx.device.scale(&mut dx, factor)?;
        }
        if let Some(db) = db {
            cx.accumulate(2, move |device, grad| device.accumulate(grad, &db, factor))?;
        }
        let dw = cx.weight_gradient(1, w, move |device, grad| {
            device.accumulate(grad, &dw.formed(device)?, factor)
        })?;
        Ok(vec![Some(dx), dw, None])
    }
}

/// Gradients that form while a chunk's logits are in cache.
struct Gradients {
    dx: Tensor,
    dw: WeightGradient,
    db: Option<Tensor>,
}

/// The gradient of the output layer's weights.
enum WeightGradient {
    /// Formed with the loss, in its wide type.
    Formed(Tensor),
    /// What it is formed of: gradients by logits `[T,V]`, and the layer's input.
    Of { d: Tensor, x: Tensor },
}

impl WeightGradient {
    /// The sum over chunks, in their order.
    fn formed(self, device: &Device) -> Result<Tensor> {
        let (d, x) = match self {
            Self::Formed(dw) => return Ok(dw),
            Self::Of { d, x } => (d, x),
        };
        let (tokens, hidden) = x.as_matrix();
        let mut dw = Tensor::zeros(device.arena(), x.dtype().wide(), [d.dim(1), hidden]);
        for start in (0..tokens).step_by(CHUNK) {
            let len = CHUNK.min(tokens - start);
            device.linear_dw(dw.whole_mut()?, &d.rows(start, len)?, &x.rows(start, len)?)?;
        }
        Ok(dw)
    }
}

/// Cross entropy of `softmax(logits)` of the output layer on `x[T,H]` against `targets[T]` (i32), weighted by
/// `weights[T]` (f32, or f64 as the layer).
///
/// The logits exist for 256 tokens at a time. When the graph records, the gradients by `x` and the layer are formed in
/// the same pass, while a chunk's logits are in cache; kept are these gradients (`[T,H]`, and `[V,H]` f32), never `[T,V]`, but
/// where the layer's is [`Head::formed_later`]. A target below zero marks an ignored token; its weight must be zero. Where ranks
/// share the vocabulary they exchange three numbers a token, and the gradient by `x` is this rank's summand.
///
/// # Errors
/// If shapes, element types or targets do not fit.
pub fn linear_cross_entropy(
    g: &mut Graph,
    x: &Var,
    head: &Head<'_>,
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
    let wide = x.value().dtype().wide();
    let mut nll = Tensor::uninit(arena, wide, [tokens]);
    let zeros = |shape| Tensor::zeros(arena, wide, shape);
    let mut gradients = g.records().then(|| Gradients {
        dx: Tensor::uninit(arena, x.value().dtype(), [tokens, hidden]),
        dw: match head.formed_later {
            true => WeightGradient::Of {
                d: Tensor::uninit(arena, x.value().dtype(), [tokens, head.w.value().dim(0)]),
                x: x.value().clone(),
            },
            false => WeightGradient::Formed(zeros(head.w.value().shape())),
        },
        db: head.bias.map(|b| zeros(b.value().shape())),
    });
    for start in (0..tokens).step_by(CHUNK) {
        let len = CHUNK.min(tokens - start);
        let (xc, tc, wc) =
            (x.value().rows(start, len)?, targets.rows(start, len)?, weights.rows(start, len)?);
        let mut logits = head.logits(&device, &xc)?;
        let capped = match (&gradients, head.softcap) {
            (Some(_), Some(cap)) => Some((logits.copied()?, cap)),
            _ => None,
        };
        let first = head.group.map_or(0, VocabGroup::first);
        let statistics = match (head.group, &gradients) {
            (None, Some(_)) => device.cross_entropy_whole(&mut logits, &tc, &wc)?,
            (None, None) => device.cross_entropy_statistics(&logits, &tc, first)?,
            (Some(group), _) => {
                let own = device.cross_entropy_statistics(&logits, &tc, first)?;
                device.cross_entropy_merge(&group.gather(own)?, group.size())?
            }
        };
        let part = device.cross_entropy_nll(&statistics, &tc)?;
        nll.put(start, &part)?;
        if let Some(Gradients { dx, dw, db }) = &mut gradients {
            if head.group.is_some() {
                device.cross_entropy_gradient(&mut logits, &statistics, &tc, &wc, first)?;
            }
            let mut d = logits;
            if let Some((y, cap)) = capped {
                device.softcap_backward(&mut d, &y, cap)?;
            }
            if head.scale != 1.0 {
                device.scale(&mut d, head.scale)?;
            }
            match dw {
                WeightGradient::Formed(dw) => device.linear_dw(dw.whole_mut()?, &d, &xc)?,
                WeightGradient::Of { d: all, .. } => all.put(start * all.dim(1), &d)?,
            }
            if let Some(db) = db {
                device.linear_db(db.whole_mut()?, &d)?;
            }
            dx.put(start * hidden, &device.linear_dx(&d, head.w.value())?)?;
        }
    }
    let each = nll.ready()?.to_reals()?.into_iter().zip(weights.ready()?.to_reals()?);
    let sum: f64 = each.map(|(n, w)| if w == 0.0 { 0.0 } else { n * w }).sum();
    let loss = Tensor::from_reals(arena, wide, [1], &[sum])?;
    let none = g.constant(loss.clone());
    let loss = match gradients {
        Some(Gradients { dx, dw, db }) => {
            let inputs = [x, head.w, head.bias.unwrap_or(&none)];
            let (w, shares_words) = (head.w.value().into(), head.group.is_some());
            g.apply(loss, &inputs, || Box::new(LinearCrossEntropy { dx, dw, db, w, shares_words }))
        }
        None => g.constant(loss),
    };
    Ok(LossVar { loss, nll })
}
