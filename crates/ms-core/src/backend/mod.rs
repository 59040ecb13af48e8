//! The backend traits between the graph and a device: fused operations on tensors.
//!
//! There is one trait per family of operations, so a device can be written and tested family by family. Where the methods
//! below say f32 for statistics, gradients or accumulation, a device that computes in f64 uses f64. Every method allocates
//! its results from the backend's arena. A weight gradient is accumulated into a [`TensorMut`] without rounding to the
//! weight's type (in [`DType::wide`]: f32, or f64 for f64). Shapes use the letters `T` tokens, `H` hidden, `F` feed-forward,
//! `N` query heads, `G` key/value groups, `D` head size, `V` vocabulary. `x.dtype()` decides the element type `E`: f32 or
//! bf16, or f64 on the reference device.

mod attention;
mod compressed;
mod delayed;
mod hyper_connections;
mod moe;
mod recurrent;
mod seam;

pub use attention::{
    AttentionBackend, AttentionDropout, AttentionOptions, HeadLayout, IndexerInputs, QkNorm, Rotary,
};
pub use compressed::CompressedBackend;
pub use hyper_connections::HyperConnectionsBackend;
pub use moe::MoeBackend;
pub use recurrent::RecurrentBackend;

use crate::{
    Activation, AdamW, Arena, Columns, DType, ExactSum, Noise, Result, Routes, Sgd, Tensor, TensorMut,
    VocabShare,
};
use seam::seam;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A device is its backend instance: a CPU thread pool, or an NPU ordinal with a stream. Cloning shares it.
#[derive(Clone)]
pub struct Device(Arc<dyn Backend>);

impl Device {
    /// A device that runs on `backend`.
    pub fn new(backend: impl Backend + 'static) -> Self {
        let device: Arc<dyn Backend> = Arc::new(backend);
        let weak = Arc::downgrade(&device);
        device.arena().written_by(move || weak.upgrade().map_or(Ok(()), |device| device.synchronize()));
        Self(device)
    }
}

impl Deref for Device {
    type Target = dyn Backend;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// Everything a device must do.
pub trait Backend:
    MatmulBackend
    + NormBackend
    + AttentionBackend
    + CompressedBackend
    + ActBackend
    + LayoutBackend
    + EmbedBackend
    + MoeBackend
    + RecurrentBackend
    + HyperConnectionsBackend
    + LossBackend
    + OptimBackend
    + Send
    + Sync
{
    /// Name for messages, such as `cpu (avx512, pair, 2 threads)`.
    fn name(&self) -> String;
    /// Order in which it sums products of bf16 matrices, by name; devices that differ in it differ in their bits.
    fn arithmetic(&self) -> String;
    /// Where the device's tensors live.
    fn arena(&self) -> &Arena;
    /// Element type of tables that do not follow a weight's type, such as rotary tables.
    fn table_dtype(&self) -> DType {
        DType::F32
    }
    /// The routes that `make` computes. The meta device always makes the same choice: it reuses what it has made under this
    /// name and these sizes.
    ///
    /// # Errors
    /// Those of `make`.
    fn routes(
        &self,
        name: &'static str,
        sizes: [usize; 3],
        make: &mut dyn FnMut() -> Result<Routes>,
    ) -> Result<Arc<Routes>> {
        let _ = (name, sizes);
        make().map(Arc::new)
    }
    /// Waits until everything that was started has finished. Until then the host must not read tensors that operations have
    /// written: an asynchronous device only queues its work. Operations whose result is not a tensor wait by themselves.
    /// [`Tensor::ready`] calls this for one tensor.
    ///
    /// # Errors
    /// If something that was started has failed.
    fn synchronize(&self) -> Result<()>;
}

seam! {
    /// Matrix products of a linear layer.
    pub trait MatmulBackend;

    /// `y[T,N] = x[T,K] · w[N,K]ᵀ (+ bias[N])`, accumulated in f32, rounded to `E`. A u8 weight is one from
    /// [`MatmulBackend::quantize`]; with it, `x` is rounded to 255 levels, with a scale for every 64 elements of a row.
    deferred fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>
        = |meta| meta.uninit(x.dtype(), &[x.as_matrix().0, w.as_matrix().0]);
    /// `w[N,K]` in eight bits, each row scaled by its largest magnitude: `[N,`[`int8_row_bytes`](crate::int8_row_bytes)`(K)]`
    /// of u8, which [`MatmulBackend::linear`] takes in the weight's place.
    deferred fn quantize(&self, w: &Tensor) -> Result<Tensor> = |meta| {
        let (n, k) = w.as_matrix();
        meta.uninit(DType::U8, &[n, crate::int8_row_bytes(k)])
    }, fails "If the backend has no such products for the weight's element type.";
    /// `dx[T,K] = dy[T,N] · w[N,K]`.
    deferred fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor>
        = |meta| meta.uninit(dy.dtype(), &[dy.as_matrix().0, w.as_matrix().1]);
    /// `dw[N,K] += dy[T,N]ᵀ · x[T,K]` in f32.
    deferred fn linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
    /// `db[N] += Σ_t dy[T,N]` in f32.
    deferred fn linear_db(&self, db: TensorMut<'_>, dy: &Tensor) -> Result<()>;
}

seam! {
    /// Row normalisation.
    pub trait NormBackend;

    /// RMSNorm of the rows of `x[T,H]` with scale `w[H]`: `(y[T,H], rstd[T] f32)`.
    deferred fn rms_norm(&self, x: &Tensor, w: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)>
        = |meta| (meta.like(x), meta.wide(&[x.as_matrix().0]));
    /// `sum = x + residual`, then RMSNorm of `sum`: `(sum[T,H], y[T,H], rstd[T])`.
    deferred fn add_rms_norm(
        &self,
        x: &Tensor,
        residual: &Tensor,
        w: &Tensor,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor, Tensor)>
        = |meta| (meta.like(x), meta.like(x), meta.wide(&[x.as_matrix().0]));
    /// LayerNorm of the rows of `x[T,H]` with scale `w[H]` and shift `b[H]`: `(y[T,H], stats[T,2] f32)`.
    deferred fn layer_norm(&self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f64) -> Result<(Tensor, Tensor)>
        = |meta| (meta.like(x), meta.wide(&[x.as_matrix().0, 2]));
    /// Gradient of [`NormBackend::layer_norm`] with respect to `x`, and with respect to scale and shift as `[2,H]` f32.
    deferred fn layer_norm_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
    ) -> Result<(Tensor, Tensor)> = |meta| (meta.like(x), meta.wide(&[2, x.as_matrix().1]));
    /// Gradient with respect to the normalised input `x`, plus `dresidual` if given; `dw[H]` accumulated in f32.
    deferred fn rms_norm_backward(
        &self,
        dw: Option<TensorMut<'_>>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dresidual: Option<&Tensor>,
        norm: &Norm,
    ) -> Result<Tensor> = |meta| meta.like(x);
}

/// How rows are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Added to the mean square, in squared units of the input.
    pub eps: f64,
    /// The scale is used as `1 + w` (Gemma, Qwen3-Next).
    pub unit_offset: bool,
}

seam! {
    /// Activations and sums.
    pub trait ActBackend;

    /// `y[T,F] = silu(gate) · up` of `x[T,2F] = [gate | up]`.
    deferred fn swiglu(&self, x: &Tensor) -> Result<Tensor> = |meta| meta.with_width(x, x.as_matrix().1 / 2);
    /// Gradient of [`ActBackend::swiglu`] with respect to `x`.
    deferred fn swiglu_backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> = |meta| meta.like(x);
    /// `y[T,F] = f(gate) · up` of `x[T,2F] = [gate | up]`, or `f(x)` of `x[T,F]` without `gated`.
    deferred fn activation(&self, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor> = |meta| {
        let width = x.as_matrix().1;
        meta.with_width(x, if gated { width / 2 } else { width })
    };
    /// Gradient of [`ActBackend::activation`] with respect to `x`.
    deferred fn activation_backward(&self, dy: &Tensor, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor>
        = |meta| meta.like(x);
    /// `x[T,W] · f(gate)` with `gate[T,W]` or `[T,1]`.
    deferred fn gate(&self, x: &Tensor, gate: &Tensor, kind: Activation) -> Result<Tensor> = |meta| meta.like(x);
    /// Gradients of [`ActBackend::gate`] with respect to `x` and `gate`.
    deferred fn gate_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        gate: &Tensor,
        kind: Activation,
    ) -> Result<(Tensor, Tensor)> = |meta| (meta.like(x), meta.like(gate));
    /// `x = c · tanh(x / c)`.
    deferred fn softcap(&self, x: &mut Tensor, cap: f64) -> Result<()>,
        fails "If the tensor is shared or not of a floating type.";
    /// `d = d · (1 − (y/c)²)` with `y` the result of [`ActBackend::softcap`].
    deferred fn softcap_backward(&self, d: &mut Tensor, y: &Tensor, cap: f64) -> Result<()>,
        fails "If shapes or element types do not fit, or `d` is shared.";
    /// `a + b`, element by element.
    deferred fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> = |meta| meta.like(a);
    /// `a · b`, element by element.
    deferred fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> = |meta| meta.like(a);
    /// `a += b`.
    deferred fn add_assign(&self, a: &mut Tensor, b: &Tensor) -> Result<()>,
        fails "If shapes or element types do not fit, or `a` is shared.";
    /// `x` with elements of another type.
    deferred fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor>
        = |meta| if x.dtype() == dtype { x.clone() } else { meta.uninit(dtype, &x.shape()) },
        fails "If there is no such conversion.";
}

seam! {
    /// Rearranging and scaling columns.
    pub trait LayoutBackend;

    /// The runs of columns of each row of `x[T,W]`, one after the other.
    deferred fn columns(&self, x: &Tensor, runs: &[Columns]) -> Result<Tensor>
        = |meta| meta.with_width(x, runs.iter().map(Columns::width).sum()),
        fails "If element types do not fit or a run reads outside the row.";
    /// Gradient of [`LayoutBackend::columns`] with respect to `x[T,width]`.
    deferred fn columns_backward(&self, dy: &Tensor, width: usize, runs: &[Columns]) -> Result<Tensor>
        = |meta| meta.with_width(dy, width), fails "As [`LayoutBackend::columns`].";
    /// Concatenates matrices with the same number of rows along the columns.
    deferred fn concat(&self, parts: &[&Tensor]) -> Result<Tensor> = |meta| {
        let width = parts.iter().map(|p| p.as_matrix().1).sum();
        match parts.first() {
            Some(first) => meta.with_width(first, width),
            None => meta.wide(&[0, 0]),
        }
    }, fails "If rows or element types differ.";
    /// `y[t,w] = x[t,w] · noise.at(keys[t], site, w)`: dropout and jitter. The gradient with respect to `x` is the same
    /// function of that with respect to `y`.
    deferred fn noise(&self, x: &Tensor, keys: &[u64], site: u64, noise: Noise) -> Result<Tensor>
        = |meta| meta.like(x),
        fails "If there are not as many keys as rows, or the element type has no kernel.";
    /// `y[t,w] = x[t,w] + b[w]`.
    deferred fn add_bias(&self, x: &Tensor, b: &Tensor) -> Result<Tensor>
        = |meta| meta.with_width(x, x.as_matrix().1);
    /// `y[t,w] = x[t,w] · s[t]` with `s[T]` f32.
    deferred fn scale_rows(&self, x: &Tensor, s: &Tensor) -> Result<Tensor>
        = |meta| meta.with_width(x, x.as_matrix().1);
    /// `Σ_w a[t,w] · b[t,w]`: `[T]` f32.
    deferred fn row_dot(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> = |meta| meta.wide(&[a.as_matrix().0]);
    /// `y[t,w] = x[t,w] · s[w]`.
    deferred fn scale_columns(&self, x: &Tensor, s: &Tensor) -> Result<Tensor>
        = |meta| meta.with_width(x, x.as_matrix().1);
    /// Gradient of [`LayoutBackend::scale_columns`] with respect to `s`, added in f32.
    deferred fn scale_columns_backward(&self, ds: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
    /// Rows scaled to length 1.
    deferred fn unit_rows(&self, x: &Tensor) -> Result<Tensor> = |meta| meta.with_width(x, x.as_matrix().1),
        fails "If the element type has no kernel.";
    /// Gradient of [`LayoutBackend::unit_rows`] with respect to `x`, added in f32.
    deferred fn unit_rows_backward(&self, dx: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
}

seam! {
    /// Token embedding.
    pub trait EmbedBackend;

    /// Rows `ids[T]` (i32) of `table[V,H]`, which holds a `share` of the vocabulary; zeros for ids outside the share.
    deferred fn embedding(&self, table: &Tensor, ids: &Tensor, share: VocabShare) -> Result<Tensor>
        = |meta| meta.uninit(table.dtype(), &[ids.numel(), table.as_matrix().1]),
        fails "If an id is outside the vocabulary.";
    /// `dtable[ids[t] - first] += dy[t]` in f32, in token order, for the ids that the table holds.
    deferred fn embedding_backward(
        &self,
        dtable: TensorMut<'_>,
        dy: &Tensor,
        ids: &Tensor,
        share: VocabShare,
    ) -> Result<()>, fails "If an id is outside the vocabulary.";
}

seam! {
    /// Cross entropy over the vocabulary.
    pub trait LossBackend;

    /// The contribution of each row of `logits[T,V]`, this share of the vocabulary from id `first` on, to its loss: `[T,3]`
    /// f32: its largest logit, the sum of `exp(logit - largest)`, and the logit of `targets[T]` (i32), 0 where the share does
    /// not hold it.
    deferred fn cross_entropy_statistics(&self, logits: &Tensor, targets: &Tensor, first: usize) -> Result<Tensor>
        = |meta| meta.wide(&[logits.as_matrix().0, 3]);
    /// The statistics `[T,3]` of the whole vocabulary, merged from those of its shares `[shares * T,3]` in that order.
    deferred fn cross_entropy_merge(&self, statistics: &Tensor, shares: usize) -> Result<Tensor>
        = |meta| meta.wide(&[statistics.as_matrix().0 / shares.max(1), 3]),
        fails "If the rows do not divide.";
    /// Negative log-likelihood `[T]` f32 in nats of rows with `statistics[T,3]`; 0 where `targets[T]` is negative.
    deferred fn cross_entropy_nll(&self, statistics: &Tensor, targets: &Tensor) -> Result<Tensor>
        = |meta| meta.wide(&[targets.numel()]);
    /// `logits <- weights · (softmax - onehot)`, the gradient of `Σ weights · nll`, with the statistics of the whole
    /// vocabulary; a row of weight 0 becomes 0.
    deferred fn cross_entropy_gradient(
        &self,
        logits: &mut Tensor,
        statistics: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
        first: usize,
    ) -> Result<()>, fails "If shapes or element types do not fit, or `logits` is shared.";
    /// [`LossBackend::cross_entropy_statistics`] of logits over the whole vocabulary, and then
    /// [`LossBackend::cross_entropy_gradient`] with them.
    deferred fn cross_entropy_whole(&self, logits: &mut Tensor, targets: &Tensor, weights: &Tensor) -> Result<Tensor>
        = |meta| meta.cross_entropy_statistics(logits, targets, 0)?, fails "As these.";
}

seam! {
    /// Optimizer operations on flat f32 buffers.
    pub trait OptimBackend;

    /// One AdamW step on windows of the flat state, all of `g.numel()` elements, f32; `grad_scale` multiplies
    /// the gradient first.
    deferred fn adamw(
        &self,
        master: TensorMut<'_>,
        m: TensorMut<'_>,
        v: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &AdamW,
    ) -> Result<()>, fails "If sizes do not fit or a buffer is shared.";
    /// One step of gradient descent with momentum on windows of the flat state, all of `g.numel()` elements; `grad_scale`
    /// multiplies the gradient first.
    deferred fn sgd(
        &self,
        master: TensorMut<'_>,
        momentum: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &Sgd,
    ) -> Result<()>, fails "If sizes do not fit or a buffer is shared.";
    /// `Σ x²` of squares in f64, without rounding.
    blocking fn sum_squares(&self, x: &Tensor) -> Result<ExactSum>, fails "If `x` is not of the wide type.";
    /// Sets every element to zero.
    deferred fn fill_zero(&self, x: &mut Tensor) -> Result<()>, fails "If the tensor is shared.";
    /// Multiplies every element by `factor`.
    deferred fn scale(&self, x: &mut Tensor, factor: f64) -> Result<()>,
        fails "If the tensor is shared or not of a floating type.";
    /// `sum += factor · x`, both of the wide type.
    deferred fn accumulate(&self, sum: TensorMut<'_>, x: &Tensor, factor: f64) -> Result<()>,
        fails "If sizes or element types do not fit.";
}
