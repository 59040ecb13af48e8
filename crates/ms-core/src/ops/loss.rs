//! Output layer and cross entropy, fused over chunks of tokens.

use super::only;
use crate::shard_state::{self, InputStates, OutputState, ShardState};
use crate::{
    BackwardCx, Device, Digit, Digits, Error, Grads, Graph, Op, Result, Shape, Tensor, TensorSpec, Var,
};

/// Tokens whose logits exist at once. A constant: it decides the order of a sum over tokens.
const CHUNK: usize = 256;

/// What the loss layer returns.
pub struct LossVar {
    /// `Σ_t weights[t] · nll[t]`, `[1]`, f32 or f64: the root of the backward pass.
    pub loss: Var,
    /// Negative log-likelihood per token, `[T]`, f32 or f64.
    pub nll: Tensor,
}

/// A started sum over ranks; calling it waits.
pub type PendingSum = Box<dyn FnOnce() -> Result<Tensor>>;

/// The ranks over which a vocabulary is sharded, as seen by a loss.
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

    /// Number of token shards that ranks contribute: one if each contributes all tokens.
    fn shares(&self) -> usize;

    /// All tokens `[T,H]`, gathered from this rank's input, which is all of them or its shard `[T/shares,H]`.
    ///
    /// # Errors
    /// If a rank fails.
    fn enter(&self, x: Tensor) -> Result<Tensor>;

    /// Starts the sum over the ranks of gradients with respect to all tokens, `dx[R,H]`: whole, or this rank's shard
    /// `[R/shares,H]`.
    ///
    /// # Errors
    /// If a rank failed, or the tokens do not divide.
    fn begin_sum(&self, dx: Tensor) -> Result<PendingSum>;

    /// The digits that tell the ranks apart.
    fn over(&self) -> Digits;
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
    /// The weight gradient is computed later, from saved inputs, not in the forward pass.
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
    w: TensorSpec,
    /// The digits of the other ranks that hold parts of the vocabulary, if any, and the state of the input.
    words: Option<(Digits, ShardState)>,
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let (x, layer) = inputs.split_at(1);
        let entered = match self.words {
            Some((over, outside)) if over.contains(along) => {
                over.exchanged(along, x, &[outside], ShardState::Replicated)?
            }
            _ => x[0],
        };
        let inputs: Vec<_> = std::iter::once(entered).chain(layer.iter().copied()).collect();
        match shard_state::linear_layer(&inputs)? {
            // Ranks exchange the statistics of their vocabulary shards inside.
            Some(ShardState::Sharded) if self.words.is_some() => Ok(Some(ShardState::Invariant)),
            Some(ShardState::Sharded) => Err(shard_state::StateConflict),
            // A sum over a rank's own tokens.
            Some(ShardState::Tokens) => Ok(Some(ShardState::Partial)),
            other => Ok(other),
        }
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
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

/// Gradients that are computed while a chunk's logits are in cache.
struct Gradients {
    dx: Tensor,
    dw: WeightGradient,
    db: Option<Tensor>,
}

/// The gradient of the output layer's weights.
enum WeightGradient {
    /// Computed with the loss, in its wide type.
    Formed(Tensor),
    /// The inputs for computing it: gradients with respect to logits `[T,V]`, chunk by chunk, and the layer's input.
    Of { d: Tensor, x: Tensor, chunks: Chunks },
}

impl WeightGradient {
    /// The sum over chunks, in their order.
    fn formed(self, device: &Device) -> Result<Tensor> {
        let (d, x, chunks) = match self {
            Self::Formed(dw) => return Ok(dw),
            Self::Of { d, x, chunks } => (d, x, chunks),
        };
        let mut dw = Tensor::zeros(device.arena(), x.dtype().wide(), [d.dim(1), x.as_matrix().1]);
        for chunk in chunks.each() {
            let d = d.rows(chunk.first * chunks.shares, chunk.rows * chunks.shares)?;
            device.linear_dw(dw.whole_mut()?, &d, &chunks.take(&x, chunk)?)?;
        }
        Ok(dw)
    }
}

/// How tokens are processed: the same rows of every shard at once, so that their gradients are shards of a sum.
#[derive(Clone, Copy)]
struct Chunks {
    shares: usize,
    /// Tokens of a shard.
    own: usize,
}

/// Rows of every shard that are processed together.
#[derive(Clone, Copy)]
struct Chunk {
    /// The first row, in a shard.
    first: usize,
    /// Number of rows of each shard.
    rows: usize,
}

impl Chunks {
    fn each(self) -> impl Iterator<Item = Chunk> {
        let rows = (CHUNK / self.shares).max(1);
        (0..self.own).step_by(rows).map(move |first| Chunk { first, rows: rows.min(self.own - first) })
    }

    /// The positions of the rows of `chunk` among all rows.
    fn places(self, chunk: Chunk) -> impl Iterator<Item = usize> {
        (0..self.shares).map(move |share| share * self.own + chunk.first)
    }

    /// The rows of `chunk` of all rows of `t`.
    fn take(self, t: &Tensor, chunk: Chunk) -> Result<Tensor> {
        if self.shares == 1 {
            return t.rows(chunk.first, chunk.rows);
        }
        let mut shape = t.shape().to_vec();
        shape[0] = self.shares * chunk.rows;
        let mut taken = Tensor::uninit(t.arena(), t.dtype(), Shape::new(&shape));
        let width = t.numel() / t.dim(0).max(1);
        for (i, place) in self.places(chunk).enumerate() {
            taken.put(i * chunk.rows * width, &t.rows(place, chunk.rows)?)?;
        }
        Ok(taken)
    }

    /// Writes the rows `part` of `chunk` to their positions in `t`.
    fn put(self, t: &mut Tensor, part: &Tensor, chunk: Chunk) -> Result<()> {
        let width = t.numel() / t.dim(0).max(1);
        let places = self.places(chunk).enumerate();
        places
            .into_iter()
            .try_for_each(|(i, place)| t.put(place * width, &part.rows(i * chunk.rows, chunk.rows)?))
    }
}

/// The gradient of a chunk's input, in transit.
struct PendingChunk(Chunk, PendingSum);

impl PendingChunk {
    /// Writes it to its place among this rank's rows.
    fn put(of: &mut Option<Self>, dx: &mut Tensor) -> Result<()> {
        let Some(Self(chunk, pending)) = of.take() else { return Ok(()) };
        dx.put(chunk.first * dx.dim(1), &pending()?)
    }
}

/// Cross entropy of `softmax(logits)` of the output layer on `x[T,H]` against `targets[T]` (i32), weighted by `weights[T]`
/// (f32, or f64 as the layer).
///
/// The logits exist for 256 tokens at a time. If the graph records, the gradients with respect to `x` and the layer are
/// computed in the same pass, while a chunk's logits are in cache; these gradients are saved (`[T,H]`, and `[V,H]` f32),
/// never `[T,V]`, except if the layer's is [`Head::formed_later`]. A target below zero marks an ignored token; its weight
/// must be zero.
///
/// If the vocabulary is sharded, `x` is each rank's contribution ([`VocabGroup::shares`]). The ranks exchange three numbers
/// per token, and the gradient with respect to `x` is summed over them chunk by chunk: one sum is in transit while the
/// layer's gradient for the same chunk, and the logits of the next chunk, are computed.
///
/// # Errors
/// If shapes, element types or targets do not fit, or a rank fails.
pub fn linear_cross_entropy(
    g: &mut Graph,
    x: &Var,
    head: &Head<'_>,
    targets: &Tensor,
    weights: &Tensor,
) -> Result<LossVar> {
    let device = g.device().clone();
    let entered = match head.group {
        Some(group) => group.enter(x.value().clone())?,
        None => x.value().clone(),
    };
    let (tokens, hidden) = entered.as_matrix();
    for (name, t) in [("targets", targets), ("weights", weights)] {
        t.expect_shape("linear_cross_entropy", name, [tokens])?;
    }
    if tokens == 0 {
        return Err(Error::Range { what: "tokens of a loss", start: 0, end: 1, len: 0 });
    }
    let own = x.value().as_matrix().0;
    let chunks = Chunks { shares: head.group.map_or(1, VocabGroup::shares), own };
    let arena = device.arena();
    let wide = entered.dtype().wide();
    let mut nll = Tensor::uninit(arena, wide, [tokens]);
    let zeros = |shape| Tensor::zeros(arena, wide, shape);
    let mut gradients = g.records().then(|| Gradients {
        dx: Tensor::uninit(arena, entered.dtype(), [own, hidden]),
        dw: if head.formed_later {
            WeightGradient::Of {
                d: Tensor::uninit(arena, entered.dtype(), [tokens, head.w.value().dim(0)]),
                x: entered.clone(),
                chunks,
            }
        } else {
            WeightGradient::Formed(zeros(head.w.value().shape()))
        },
        db: head.bias.map(|b| zeros(b.value().shape())),
    });
    let mut on_its_way = None;
    for chunk in chunks.each() {
        let (xc, tc, wc) =
            (chunks.take(&entered, chunk)?, chunks.take(targets, chunk)?, chunks.take(weights, chunk)?);
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
        chunks.put(&mut nll, &device.cross_entropy_nll(&statistics, &tc)?, chunk)?;
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
            let part = device.linear_dx(&d, head.w.value())?;
            match head.group {
                None => dx.put(chunk.first * hidden, &part)?,
                Some(group) => {
                    PendingChunk::put(&mut on_its_way, dx)?;
                    on_its_way = Some(PendingChunk(chunk, group.begin_sum(part)?));
                }
            }
            match dw {
                WeightGradient::Formed(dw) => device.linear_dw(dw.whole_mut()?, &d, &xc)?,
                WeightGradient::Of { d: all, .. } => {
                    all.put(chunk.first * chunks.shares * all.dim(1), &d)?;
                }
            }
            if let Some(db) = db {
                device.linear_db(db.whole_mut()?, &d)?;
            }
        }
    }
    if let Some(Gradients { dx, .. }) = &mut gradients {
        PendingChunk::put(&mut on_its_way, dx)?;
    }
    let each = nll.ready()?.to_reals()?.into_iter().zip(weights.ready()?.to_reals()?);
    let sum: f64 = each.map(|(n, w)| if w == 0.0 { 0.0 } else { n * w }).sum();
    let loss = Tensor::from_reals(arena, wide, [1], &[sum])?;
    let none = g.constant(loss.clone());
    let loss = match gradients {
        Some(Gradients { dx, dw, db }) => {
            let inputs = [x, head.w, head.bias.unwrap_or(&none)];
            let outside = if chunks.shares > 1 { ShardState::Tokens } else { ShardState::Invariant };
            let words = head.group.map(|group| (group.over(), outside));
            let w = head.w.value().into();
            g.apply(loss, &inputs, || Box::new(LinearCrossEntropy { dx, dw, db, w, words }))
        }
        None => g.constant(loss),
    };
    Ok(LossVar { loss, nll })
}
