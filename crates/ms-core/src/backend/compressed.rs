//! Device operations of attention over nearby tokens and pooled entries of distant ones.

use super::seam::seam;
use super::{HeadLayout, IndexerInputs, Rotary};
use crate::{DType, Divergence, Pooling, Result, Sight, Tensor, TensorMut, Window};

seam! {
    /// Operations of DeepSeek-V4's attention that other models do not have. `A` rows of tokens, `B` pooled entries.
    pub trait CompressedBackend;

    /// Rotates the last elements of every head of `x[T,N·D]`, or rotates them back.
    deferred fn rotate_last(
        &self,
        x: &Tensor,
        head_dim: usize,
        rotary: &Rotary,
        positions: &Tensor,
        inverse: bool,
    ) -> Result<Tensor> = |meta| meta.like(x),
        fails "If shapes or element types do not fit, or a position is outside the tables.";
    /// One entry `[B,D]` for each window of rows `kv` and `gate`; `ape[ratio,·]` is f32.
    deferred fn pool_windows(
        &self,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<Tensor> = |meta| meta.uninit(kv.dtype(), &[windows.len(), shape.dim]),
        fails "If shapes or element types do not fit, or a window reads outside the rows.";
    /// Gradients of [`CompressedBackend::pool_windows`] with respect to `kv` and `gate`; that by `ape` is added in f32.
    deferred fn pool_windows_backward(
        &self,
        dape: TensorMut<'_>,
        dout: &Tensor,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<(Tensor, Tensor)> = |meta| (meta.like(kv), meta.like(kv)),
        fails "As [`CompressedBackend::pool_windows`].";
    /// The `places` best keys among those that each query sees, `[T,places]` i32: ascending rows of `inputs.k`, then -1.
    deferred fn pick_seen(&self, inputs: &IndexerInputs<'_>, sights: &[Sight], places: usize) -> Result<Tensor>
        = |meta| meta.uninit(DType::I32, &[inputs.w.as_matrix().0, places]);
    /// The weights that attention gives the keys `picks[T,P]` (or -1) of each query, summed over `heads`: `[T,P]`, unrounded; 0
    /// where there is no pick. Queries are `q[T,N·D]`, keys `k[C,G·D]`.
    deferred fn attention_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        scale: f64,
    ) -> Result<Tensor> = |meta| meta.wide_like(picks), fails "If shapes, element types or picks do not fit.";
    /// The divergence of an indexer from the `attention[T,P]` (of any positive sum) that its keys `picks[T,P]` get, summed
    /// over queries, `[1]`, and `factor` times its gradients with respect to `inputs.q`, `inputs.k` and `inputs.w`: all
    /// unrounded.
    deferred fn indexer_loss(
        &self,
        inputs: &IndexerInputs<'_>,
        picks: &Tensor,
        attention: &Tensor,
        divergence: Divergence,
        factor: f64,
    ) -> Result<(Tensor, [Tensor; 3])> = |meta| {
        let gradients = [inputs.q, inputs.k, inputs.w].map(|of| meta.wide_like(of));
        (meta.wide(&[1]), gradients)
    }, fails "If shapes, element types or picks do not fit.";
    /// Attention of `q[T,N·D]` over picked rows of `near[A,D]` followed by `far[B,D]`, which are both key and value:
    /// `(out[T,N·D], lse[N,T] f32)`.
    deferred fn attention_shared(
        &self,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<(Tensor, Tensor)> = |meta| {
        let ((tokens, width), (_, dim)) = (q.as_matrix(), near.as_matrix());
        let heads = width.checked_div(dim).unwrap_or(0);
        (meta.like(q), meta.wide(&[heads, tokens]))
    }, fails "If shapes, element types or picks do not fit.";
    /// Gradients of [`CompressedBackend::attention_shared`] with respect to `q`, `near` and `far`.
    deferred fn attention_shared_backward(
        &self,
        dout: &Tensor,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<[Tensor; 3]> = |meta| {
        let ((rows, dim), entries) = (near.as_matrix(), far.as_matrix().0);
        let dq = meta.like(q);
        let dkeys = meta.wide(&[rows + entries, dim]);
        let part = |start: usize, len: usize| -> Result<Tensor> {
            let d = dkeys.slice_flat(start * dim, [len, dim])?;
            Ok(if q.dtype() == meta.wide { d } else { meta.uninit(DType::Bf16, &[len, dim]) })
        };
        [dq, part(0, rows)?, part(rows, entries)?]
    }, fails "If shapes, element types or picks do not fit.";
}
