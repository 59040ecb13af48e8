//! The seam between the graph and a device: fused entry points on tensors.
//!
//! One trait per family of operations, so that a device can be written and tested family by family. Every
//! method allocates its results from the backend's arena; a gradient of a weight is accumulated in f32 into a
//! [`TensorMut`]. Shapes use the letters `T` tokens, `H` hidden, `F` feed-forward, `N` query heads, `G` key/value
//! groups, `D` head size, `V` vocabulary. `x.dtype()` decides the element type `E` (f32 or bf16).

use crate::{Arena, DType, Result, Tensor, TensorMut};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A device is its backend instance: a CPU thread pool, or an NPU ordinal with a stream. Cloning shares it.
#[derive(Clone)]
pub struct Device(Arc<dyn Backend>);

impl Device {
    /// A device that runs on `backend`.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self(Arc::new(backend))
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
    + ActBackend
    + LayoutBackend
    + EmbedBackend
    + MoeBackend
    + RecurrentBackend
    + LossBackend
    + OptimBackend
    + Send
    + Sync
{
    /// Name for messages, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;
    /// Where the device's tensors live.
    fn arena(&self) -> &Arena;
    /// Waits until everything that was started has finished.
    fn synchronize(&self) -> Result<()>;
}

/// Matrix products of a linear layer.
pub trait MatmulBackend {
    /// `y[T,N] = x[T,K] · w[N,K]ᵀ (+ bias[N])`, accumulated in f32, rounded to `E`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>;
    /// `dx[T,K] = dy[T,N] · w[N,K]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor>;
    /// `dw[N,K] += dy[T,N]ᵀ · x[T,K]` in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
    /// `db[N] += Σ_t dy[T,N]` in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn linear_db(&self, db: TensorMut<'_>, dy: &Tensor) -> Result<()>;
}

/// Row normalisation.
pub trait NormBackend {
    /// RMSNorm of the rows of `x[T,H]` with scale `w[H]`: `(y[T,H], rstd[T] f32)`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn rms_norm(&self, x: &Tensor, w: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)>;
    /// `sum = x + residual`, then RMSNorm of `sum`: `(sum[T,H], y[T,H], rstd[T])`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn add_rms_norm(
        &self,
        x: &Tensor,
        residual: &Tensor,
        w: &Tensor,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor, Tensor)>;
    /// LayerNorm of the rows of `x[T,H]` with scale `w[H]` and shift `b[H]`: `(y[T,H], stats[T,2] f32)`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn layer_norm(&self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f32) -> Result<(Tensor, Tensor)>;
    /// Gradient of [`NormBackend::layer_norm`] by `x`, and by scale and shift as `[2,H]` f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn layer_norm_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
    ) -> Result<(Tensor, Tensor)>;
    /// Gradient by the normalised input `x`, plus `dresidual` if given; `dw[H]` accumulated in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn rms_norm_backward(
        &self,
        dw: Option<TensorMut<'_>>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dresidual: Option<&Tensor>,
        norm: &Norm,
    ) -> Result<Tensor>;
}

/// How rows are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Added to the mean square, in squared units of the input.
    pub eps: f32,
    /// The scale is used as `1 + w` (Gemma, Qwen3-Next).
    pub unit_offset: bool,
}

/// Heads of an attention layer as this rank holds them.
///
/// Packed rows are Megatron's grouping: for each key/value group its query heads, its key head, its value head;
/// `(N + 2 G) · D` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Key/value groups `G`.
    pub groups: usize,
    /// Query heads per group, `N / G`.
    pub heads_per_group: usize,
    /// Head size `D`.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Query heads `N`.
    pub fn heads(&self) -> usize {
        self.groups * self.heads_per_group
    }
    /// Elements of a packed row, `(N + 2 G) · D`.
    pub fn packed_width(&self) -> usize {
        self.groups * (self.heads_per_group + 2) * self.head_dim
    }
}

/// Rotary tables, shared by all layers.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Cosines `[P, R/2]` f32 for positions `0..P`.
    pub cos: Tensor,
    /// Sines `[P, R/2]` f32.
    pub sin: Tensor,
    /// Rotated dimensions `R` of a head; the rest passes through.
    pub dim: usize,
    /// Pairs are neighbours `(x0,x1)` instead of halves `(x0,x[R/2])`.
    pub interleaved: bool,
}

/// Scales of the per-head norms of queries and keys (Qwen3).
#[derive(Clone, Debug)]
pub struct QkNorm<'a> {
    /// Scale of query heads, `[D]`.
    pub q: &'a Tensor,
    /// Scale of key heads, `[D]`.
    pub k: &'a Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// One sequence of a packed run of tokens: where its queries and its keys stand.
pub type Segment = ms_kernels::attention::Segment;

/// Which keys a query sees and how scores are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Factor on `q·k`, usually `D^-1/2`.
    pub scale: f32,
    /// A query sees at most this many of the latest keys.
    pub window: Option<usize>,
    /// `c · tanh(s / c)` on the scaled score.
    pub softcap: Option<f32>,
    /// A penalty by distance, a slope per head.
    pub alibi: Option<Alibi>,
}

/// The slopes of attention with linear biases.
pub type Alibi = ms_kernels::attention::Alibi;

/// Operands of an indexer on the device: queries `[T,N·D]`, keys `[C,D]` and head weights `[T,N]`, all f32.
#[derive(Clone, Copy, Debug)]
pub struct IndexerInputs<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys; segments count their rows.
    pub k: &'a Tensor,
    /// Weights of the heads.
    pub w: &'a Tensor,
}

/// Attention.
pub trait AttentionBackend {
    /// Per-head norm (optional) and rotation of the queries and keys of `qkv[T,(N+2G)D]`; values are copied.
    /// Returns the prepared rows and `rstd[T,N+G]` (empty without norm).
    ///
    /// # Errors
    /// If shapes or element types do not fit, or a position is outside the tables.
    fn prepare_qkv(
        &self,
        qkv: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<(Tensor, Tensor)>;
    /// Gradient of [`AttentionBackend::prepare_qkv`] by `qkv`; `dprepared` is overwritten and returned.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn prepare_qkv_backward(
        &self,
        dprepared: Tensor,
        qkv: &Tensor,
        rstd: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        dnorm: Option<(&mut Tensor, &mut Tensor)>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<Tensor>;
    /// Causal attention inside each segment of packed rows: `(out[T,N·D], lse[N,T] f32)`.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn attention(
        &self,
        qkv: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)>;
    /// Gradient of [`AttentionBackend::attention`] by `qkv`.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn attention_backward(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
    ) -> Result<Tensor>;
    /// Lets the sinks `[N]` (f32) join the softmax of what an attention returned, `out[T,N·D]` and `lse[N,T]`: one
    /// more score a head, of a key whose value is zero.
    ///
    /// # Errors
    /// If shapes or element types do not fit, or an output is shared.
    fn attention_sinks(&self, out: &mut Tensor, lse: &mut Tensor, sinks: &Tensor) -> Result<()>;
    /// Adds the gradient by the sinks to `dsinks[N]` (f32); `out` and `lse` are those with the sinks.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn attention_sinks_backward(
        &self,
        dsinks: TensorMut<'_>,
        dout: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        sinks: &Tensor,
    ) -> Result<()>;
    /// Attention of new queries over cached keys and values: `(out[T,N·D], lse[N,T] f32)`.
    ///
    /// `keys` and `values` are `[C, G·D]` with one row per cache place; `segments[i].k_start` counts those rows.
    /// Query `i` of a segment sees keys up to `i + k_len - q_len`.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn attention_cached(
        &self,
        qkv: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)>;
    /// The `places` best keys of each query, `[T,places]` i32: rising rows of `inputs.k`, then -1.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn pick_keys(&self, inputs: &IndexerInputs<'_>, segments: &[Segment], places: usize) -> Result<Tensor>;
    /// Attention of packed rows over `picks[T,P]` alone: `(out[T,N·D], lse[N,T] f32)`. Keys and values are those of
    /// `cached` if given, `[C,G·D]` each, otherwise of the rows themselves.
    ///
    /// # Errors
    /// If shapes, element types or picks do not fit.
    fn attention_picked(
        &self,
        qkv: &Tensor,
        cached: Option<(&Tensor, &Tensor)>,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)>;
    /// Gradient of [`AttentionBackend::attention_picked`] without cache by `qkv`.
    ///
    /// # Errors
    /// If shapes, element types or picks do not fit.
    fn attention_picked_backward(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<Tensor>;
    /// Copies the key and value heads of prepared rows `qkv[T,..]` into cache rows `places[t]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit, a place is outside the cache, or the cache is shared.
    fn cache_append(
        &self,
        keys: &mut Tensor,
        values: &mut Tensor,
        qkv: &Tensor,
        heads: HeadLayout,
        places: &[usize],
    ) -> Result<()>;
}

/// Activations and sums.
pub trait ActBackend {
    /// `y[T,F] = silu(gate) · up` of `x[T,2F] = [gate | up]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn swiglu(&self, x: &Tensor) -> Result<Tensor>;
    /// Gradient of [`ActBackend::swiglu`] by `x`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn swiglu_backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor>;
    /// `y[T,F] = f(gate) · up` of `x[T,2F] = [gate | up]`, or `f(x)` of `x[T,F]` without `gated`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn activation(&self, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor>;
    /// Gradient of [`ActBackend::activation`] by `x`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn activation_backward(&self, dy: &Tensor, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor>;
    /// `x[T,W] · f(gate)` with `gate[T,W]` or `[T,1]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn gate(&self, x: &Tensor, gate: &Tensor, kind: Activation) -> Result<Tensor>;
    /// Gradients of [`ActBackend::gate`] by `x` and `gate`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn gate_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        gate: &Tensor,
        kind: Activation,
    ) -> Result<(Tensor, Tensor)>;
    /// `x = c · tanh(x / c)`.
    ///
    /// # Errors
    /// If the tensor is shared or not of a floating type.
    fn softcap(&self, x: &mut Tensor, cap: f32) -> Result<()>;
    /// `d = d · (1 − (y/c)²)` with `y` the result of [`ActBackend::softcap`].
    ///
    /// # Errors
    /// If shapes or element types do not fit, or `d` is shared.
    fn softcap_backward(&self, d: &mut Tensor, y: &Tensor, cap: f32) -> Result<()>;
    /// `a + b`, element by element.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
    /// `a += b`.
    ///
    /// # Errors
    /// If shapes or element types do not fit, or `a` is shared.
    fn add_assign(&self, a: &mut Tensor, b: &Tensor) -> Result<()>;
    /// `x` with elements of another type.
    ///
    /// # Errors
    /// If there is no such conversion.
    fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor>;
}

/// An activation function.
pub type Activation = ms_kernels::activation::Activation;

/// A run of output columns: copies of input columns, or zeros.
pub type Run = ms_kernels::columns::Run;

/// Rearranging and scaling columns.
pub trait LayoutBackend {
    /// The runs of columns of each row of `x[T,W]`, one after the other.
    ///
    /// # Errors
    /// If element types do not fit or a run reads outside the row.
    fn columns(&self, x: &Tensor, runs: &[Run]) -> Result<Tensor>;
    /// Gradient of [`LayoutBackend::columns`] by `x[T,width]`.
    ///
    /// # Errors
    /// As [`LayoutBackend::columns`].
    fn columns_backward(&self, dy: &Tensor, width: usize, runs: &[Run]) -> Result<Tensor>;
    /// Matrices of as many rows side by side.
    ///
    /// # Errors
    /// If rows or element types differ.
    fn concat(&self, parts: &[&Tensor]) -> Result<Tensor>;
    /// `y[t,w] = x[t,w] · s[w]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn scale_columns(&self, x: &Tensor, s: &Tensor) -> Result<Tensor>;
    /// Gradient of [`LayoutBackend::scale_columns`] by `s`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn scale_columns_backward(&self, ds: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
    /// Rows scaled to length 1.
    ///
    /// # Errors
    /// If the element type has no kernel.
    fn unit_rows(&self, x: &Tensor) -> Result<Tensor>;
    /// Gradient of [`LayoutBackend::unit_rows`] by `x`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn unit_rows_backward(&self, dx: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
}

/// A router of a mixture of experts.
pub type Router = ms_kernels::routing::Router;
/// How logits become scores.
pub type RouterScore = ms_kernels::routing::Score;
/// How a group of experts is judged.
pub type GroupScore = ms_kernels::routing::GroupScore;
/// Where each copy of a token goes.
pub type Routes = ms_kernels::experts::Routes;

/// Mixtures of experts. `K` experts per token of `E`.
pub trait MoeBackend {
    /// Experts `[T,K]` i32 and weights `[T,K]` f32 of tokens with router logits `[T,E]` f32; `bias[E]` f32 takes part
    /// in the choice.
    ///
    /// # Errors
    /// If shapes or element types do not fit, or the router cannot pick `K` of `E`.
    fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)>;
    /// Gradient of the weights by the logits.
    ///
    /// # Errors
    /// As [`MoeBackend::route`].
    fn route_backward(
        &self,
        dweights: &Tensor,
        experts: &Tensor,
        logits: &Tensor,
        router: &Router,
    ) -> Result<Tensor>;
    /// The load-balancing loss, and `grad_scale` times its gradient added to `dlogits` if given.
    ///
    /// # Errors
    /// As [`MoeBackend::route`].
    fn balance(
        &self,
        dlogits: Option<&mut Tensor>,
        logits: &Tensor,
        experts: &Tensor,
        router: &Router,
        coeff: f32,
        grad_scale: f32,
    ) -> Result<f32>;
    /// A row of `x[T,H]` for every copy, sorted by expert: `[T·K,H]`.
    ///
    /// # Errors
    /// If shapes do not fit.
    fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradient of [`MoeBackend::dispatch`].
    ///
    /// # Errors
    /// If shapes do not fit.
    fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// The weighted sum of each token's copies: `[T,H]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradients of [`MoeBackend::combine`] by rows and weights.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn combine_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor)>;
    /// Each expert's rows of `x[R,K]` through its matrix of `w[E,N,K]`, plus its row of `bias[E,N]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn expert_linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, routes: &Routes)
    -> Result<Tensor>;
    /// Gradient of [`MoeBackend::expert_linear`] by `x`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradient by `w`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn expert_linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor, routes: &Routes) -> Result<()>;
    /// Gradient by `bias`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn expert_linear_db(&self, db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()>;
}

/// Sizes of a state-space scan.
pub type StateSpace = ms_kernels::state_space::Shape;
/// Sizes of a delta-rule scan.
pub type DeltaRule = ms_kernels::delta_rule::Shape;

/// Recurrent mixers, all f32. Segments must cover the tokens in order.
pub trait RecurrentBackend {
    /// Causal depthwise convolution and SiLU of `x[T,C]` with taps `w[C,1,W]`. `history[S,W-1,C]` is what came
    /// before each segment and is replaced by what the next call needs.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn convolution(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        history: Option<&mut Tensor>,
        segments: &[Segment],
    ) -> Result<Tensor>;
    /// Gradients by `x`, by `w` and by `b` (empty without).
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn convolution_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        segments: &[Segment],
    ) -> Result<[Tensor; 3]>;
    /// Mamba-2's scan of `[x, b, c, dt]` with weights `[a_log, d, dt_bias]`; shapes as in
    /// [`ms_kernels::state_space::Scan`]. `states[S,N,P,S']` is read and replaced.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn state_space(
        &self,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<Tensor>;
    /// Gradients by the inputs and by the weights.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn state_space_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])>;
    /// The gated delta rule of `[q, k, v, g, beta]`; shapes as in [`ms_kernels::delta_rule::Scan`].
    /// `states[S,N,K,V]` is read and replaced.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<Tensor>;
    /// Gradients by the inputs.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    fn delta_rule_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 5],
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<[Tensor; 5]>;
    /// `g[T,N] = −exp(a_log[N]) · softplus(a[T,N] + dt_bias[N])`: the logarithm of a decay.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor>;
    /// Gradients of [`RecurrentBackend::decay`] by `a`, `a_log` and `dt_bias`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    fn decay_backward(
        &self,
        dy: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]>;
}

/// Token embedding.
pub trait EmbedBackend {
    /// Rows `ids[T]` (i32) of `table[V,H]`.
    ///
    /// # Errors
    /// If an id is outside the table.
    fn embedding(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor>;
    /// `dtable[ids[t]] += dy[t]` in f32, in token order.
    ///
    /// # Errors
    /// If an id is outside the table.
    fn embedding_backward(&self, dtable: TensorMut<'_>, dy: &Tensor, ids: &Tensor) -> Result<()>;
}

/// Cross entropy over the vocabulary.
pub trait LossBackend {
    /// Negative log-likelihood `[T]` f32 of `targets[T]` (i32) under softmax of `logits[T,V]`; with `weights[T]`
    /// (f32) the logits are replaced by `weights · (softmax - onehot)`, the gradient of `Σ weights · nll`.
    /// A negative target is allowed where the weight is zero (or no gradient is asked for) and has nll 0.
    ///
    /// # Errors
    /// If shapes, element types or targets do not fit, or `logits` is shared.
    fn cross_entropy(
        &self,
        logits: &mut Tensor,
        targets: &Tensor,
        weights: Option<&Tensor>,
    ) -> Result<Tensor>;
}

/// One AdamW step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Steps taken, this one included; 1 for the first.
    pub step: u64,
}

/// What the optimizer does to flat f32 buffers.
pub trait OptimBackend {
    /// One AdamW step on windows of the flat state, all of `g.numel()` elements, f32; `grad_scale` multiplies
    /// the gradient first.
    ///
    /// # Errors
    /// If sizes do not fit or a buffer is shared.
    fn adamw(
        &self,
        master: TensorMut<'_>,
        m: TensorMut<'_>,
        v: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f32,
        step: &AdamW,
    ) -> Result<()>;
    /// `Σ x²` in f64, in a fixed order.
    ///
    /// # Errors
    /// If `x` is not f32.
    fn sum_squares(&self, x: &Tensor) -> Result<f64>;
    /// Sets every element to zero.
    ///
    /// # Errors
    /// If the tensor is shared.
    fn fill_zero(&self, x: &mut Tensor) -> Result<()>;
    /// Multiplies every element by `factor`.
    ///
    /// # Errors
    /// If the tensor is shared or not of a floating type.
    fn scale(&self, x: &mut Tensor, factor: f32) -> Result<()>;
    /// `sum += factor · x`, both f32.
    ///
    /// # Errors
    /// If sizes or element types do not fit.
    fn accumulate(&self, sum: TensorMut<'_>, x: &Tensor, factor: f32) -> Result<()>;
    /// Whether an element is infinite or not a number.
    ///
    /// # Errors
    /// If `x` is not f32.
    fn has_non_finite(&self, x: &Tensor) -> Result<bool>;
}
