//! Attention of a device, and the descriptions of its operands.

use super::seam::seam;
use crate::{Alibi, Error, QkvRows, Result, Segment, Tensor, TensorMut};
use ms_operands::Dropout;
use std::sync::Arc;

/// Heads of an attention layer as this rank holds them.
///
/// Packed rows have Megatron's grouping: for each key/value group its query heads, its key head, its value head;
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

    /// Checks the shapes of rows, and that they have one element type; returns the number of queries and of keys.
    ///
    /// # Errors
    /// If rows have another width, or keys and values another type than queries.
    pub fn check_rows(&self, op: &'static str, rows: QkvRows<&Tensor>) -> Result<(usize, usize)> {
        let (tokens, keys) = (rows.queries().as_matrix().0, rows.keys().as_matrix().0);
        let widths = rows.widths(self.groups, self.heads_per_group, self.head_dim);
        match rows {
            QkvRows::Packed(qkv) => qkv.expect_shape(op, "qkv", [tokens, *widths.queries()])?,
            QkvRows::Apart { q, kv } => {
                q.expect_shape(op, "q", [tokens, *widths.queries()])?;
                if kv.dtype() != q.dtype() {
                    return Err(Error::DType { op, name: "kv", want: q.dtype(), got: kv.dtype() });
                }
                kv.expect_shape(op, "kv", [keys, *widths.keys()])?;
            }
        }
        Ok((tokens, keys))
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
    /// Pairs are adjacent elements `(x0,x1)` instead of halves `(x0,x[R/2])`.
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
    pub eps: f64,
}

/// Which keys a query sees and how scores are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Factor on `q·k`, usually `D^-1/2`.
    pub scale: f64,
    /// A query sees at most this many of the latest keys.
    pub window: Option<usize>,
    /// `c · tanh(s / c)` on the scaled score.
    pub softcap: Option<f64>,
    /// A penalty by distance, a slope per head.
    pub alibi: Option<Alibi>,
}

/// Dropout of attention weights in training: a [`Dropout`] that owns its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionDropout {
    /// In `[0, 1)`.
    pub rate: f64,
    /// Number of the place in the model, below 2^32.
    pub site: u64,
    /// The model's head that is head 0 of the call.
    pub first_head: usize,
    /// The random key of each query token `[T]`.
    pub keys: Arc<[u64]>,
}

impl AttentionDropout {
    /// The borrowed form.
    pub fn view(&self) -> Dropout<'_> {
        let Self { rate, site, first_head, ref keys } = *self;
        Dropout { rate, site, first_head, keys }
    }
}

/// Operands of an indexer on the device: queries `[T,N·D]`, keys `[C,D]` and head weights `[T,N]`, all f32.
#[derive(Clone, Copy, Debug)]
pub struct IndexerInputs<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys.
    pub k: &'a Tensor,
    /// Weights of the heads.
    pub w: &'a Tensor,
}

seam! {
    /// Attention.
    pub trait AttentionBackend;

    /// Per-head norm (optional) and rotation of the queries and keys of `qkv[T,(N+2G)D]`; values are copied.
    /// Returns the prepared rows and `rstd[T,N+G]` (empty without norm).
    deferred fn prepare_qkv(
        &self,
        qkv: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<(Tensor, Tensor)> = |meta| {
        let tokens = qkv.as_matrix().0;
        let rows = if norm.is_some() { tokens * (heads.heads() + heads.groups) } else { 0 };
        let rstd = meta.wide(&[rows]);
        (meta.uninit(qkv.dtype(), &[tokens, heads.packed_width()]), rstd)
    }, fails "If shapes or element types do not fit, or a position is outside the tables.";
    /// Gradient of [`AttentionBackend::prepare_qkv`] with respect to `qkv`; `dprepared` is overwritten and returned.
    deferred fn prepare_qkv_backward(
        &self,
        dprepared: Tensor,
        qkv: &Tensor,
        rstd: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        dnorm: Option<(&mut Tensor, &mut Tensor)>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<Tensor> = |meta| if dprepared.is_unique() { dprepared } else { dprepared.copied()? };
    /// Causal attention of the queries of `rows` over their keys inside each segment: `(out[T,N·D], lse[N,T] f32)`. Tokens
    /// outside all segments get 0 and minus infinity. Dropped weights are included in the sums in `lse`.
    deferred fn attention(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<(Tensor, Tensor)>
        = |meta| meta.heads_out(rows.queries(), rows.queries().as_matrix().0, heads),
        fails "If shapes, element types or segments do not fit.";
    /// Gradients of [`AttentionBackend::attention`] with respect to its rows. `out` and `lse` may cover more keys, merged by
    /// [`AttentionBackend::attention_merge`]: then the result is the part of the gradient from the keys in `rows`.
    deferred fn attention_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<QkvRows<Tensor>> = |meta| rows.map(|rows| meta.like(rows)),
        fails "If shapes, element types or segments do not fit.";
    /// Merges the output `part[T,N·D]` of one more block of keys, with its `part_lse[N,T]` (f32), into `out[T,N·D]` and
    /// `lse[N,T]`, both f32.
    deferred fn attention_merge(
        &self,
        out: &mut Tensor,
        lse: &mut Tensor,
        part: &Tensor,
        part_lse: &Tensor,
    ) -> Result<()>, fails "If shapes or element types do not fit, or an output is shared.";
    /// Adds the sinks `[N]` (f32) to the softmax of an attention result, `out[T,N·D]` and `lse[N,T]`: one extra score per
    /// head, for a key whose value is zero.
    deferred fn attention_sinks(&self, out: &mut Tensor, lse: &mut Tensor, sinks: &Tensor) -> Result<()>,
        fails "If shapes or element types do not fit, or an output is shared.";
    /// Adds the gradient with respect to the sinks to `dsinks[N]` (f32); `out` and `lse` are those with the sinks.
    deferred fn attention_sinks_backward(
        &self,
        dsinks: TensorMut<'_>,
        dout: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        sinks: &Tensor,
    ) -> Result<()>;
    /// Attention of new queries over cached keys and values: `(out[T,N·D], lse[N,T] f32)`.
    ///
    /// `keys` and `values` are `[C, G·D]` with one row per cache slot; `segments[i].k_start` counts those rows. Query `i` of
    /// a segment sees keys up to `i + k_len - q_len`.
    deferred fn attention_cached(
        &self,
        qkv: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> = |meta| meta.heads_out(qkv, qkv.as_matrix().0, heads),
        fails "If shapes, element types or segments do not fit.";
    /// Attention of the queries of `rows` over the keys `picks[T,P]` only (row numbers, or -1): `(out[T,N·D], lse[N,T] f32)`.
    deferred fn attention_picked(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> = |meta| meta.heads_out(rows.queries(), picks.as_matrix().0, heads),
        fails "If shapes, element types or picks do not fit.";
    /// Gradients of [`AttentionBackend::attention_picked`] with respect to its rows.
    deferred fn attention_picked_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<QkvRows<Tensor>> = |meta| rows.map(|rows| meta.like(rows)),
        fails "If shapes, element types or picks do not fit.";
    /// [`AttentionBackend::attention_picked`] of the queries of packed rows over `cached` keys and values, `[C,G·D]` each.
    deferred fn attention_picked_cached(
        &self,
        qkv: &Tensor,
        cached: (&Tensor, &Tensor),
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> = |meta| meta.heads_out(qkv, picks.as_matrix().0, heads),
        fails "If shapes, element types or picks do not fit.";
    /// Copies the key and value heads of prepared rows `qkv[T,..]` into cache rows `places[t]`.
    deferred fn cache_append(
        &self,
        keys: &mut Tensor,
        values: &mut Tensor,
        qkv: &Tensor,
        heads: HeadLayout,
        places: &[usize],
    ) -> Result<()>,
        fails "If shapes or element types do not fit, a place is outside the cache, or the cache is shared.";
}
