//! Attention without values.

use super::MetaBackend;
use crate::{
    AttentionBackend, AttentionDropout, AttentionOptions, CompressedBackend, DType, Divergence, HeadLayout,
    IndexerInputs, Pooling, QkNorm, QkvRows, Result, Rotary, Segment, Sight, Tensor, TensorMut, Window,
};

impl MetaBackend {
    /// The outputs of heads and their log-sum-exp.
    fn heads_out(&self, x: &Tensor, tokens: usize, heads: HeadLayout) -> (Tensor, Tensor) {
        let out = self.uninit(x.dtype(), &[tokens, heads.heads() * heads.head_dim]);
        (out, self.wide(&[heads.heads(), tokens]))
    }

    /// Gradients of packed rows.
    fn packed(&self, x: &Tensor, tokens: usize, heads: HeadLayout) -> Tensor {
        self.uninit(x.dtype(), &[tokens, heads.packed_width()])
    }

    /// Keys that are picked: whoever looks at their numbers finds the first key.
    fn picks(&self, tokens: usize, places: usize) -> Tensor {
        self.uninit(DType::I32, &[tokens, places])
    }
}

impl AttentionBackend for MetaBackend {
    fn prepare_qkv(
        &self,
        x: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        _: &Rotary,
        _: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let tokens = x.as_matrix().0;
        let rows = if norm.is_some() { tokens * (heads.heads() + heads.groups) } else { 0 };
        let rstd = self.wide(&[rows]);
        Ok((self.packed(x, tokens, heads), rstd))
    }

    fn prepare_qkv_backward(
        &self,
        d: Tensor,
        _: &Tensor,
        _: &Tensor,
        _: HeadLayout,
        _: Option<&QkNorm<'_>>,
        _: Option<(&mut Tensor, &mut Tensor)>,
        _: &Rotary,
        _: &Tensor,
    ) -> Result<Tensor> {
        if d.is_unique() { Ok(d) } else { d.copied() }
    }

    fn attention(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        _: &[Segment],
        _: &AttentionOptions,
        _: Option<&AttentionDropout>,
    ) -> Result<(Tensor, Tensor)> {
        Ok(self.heads_out(rows.queries(), rows.queries().as_matrix().0, heads))
    }

    fn attention_backward(
        &self,
        _: &Tensor,
        rows: QkvRows<&Tensor>,
        _: &Tensor,
        _: &Tensor,
        _: HeadLayout,
        _: &[Segment],
        _: &AttentionOptions,
        _: Option<&AttentionDropout>,
    ) -> Result<QkvRows<Tensor>> {
        Ok(rows.map(|rows| self.like(rows)))
    }

    fn attention_merge(&self, _: &mut Tensor, _: &mut Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn attention_sinks(&self, _: &mut Tensor, _: &mut Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn attention_sinks_backward(
        &self,
        _: TensorMut<'_>,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<()> {
        Ok(())
    }

    fn attention_cached(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        heads: HeadLayout,
        _: &[Segment],
        _: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        Ok(self.heads_out(x, x.as_matrix().0, heads))
    }

    fn attention_picked(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        picks: &Tensor,
        _: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        Ok(self.heads_out(rows.queries(), picks.as_matrix().0, heads))
    }

    fn attention_picked_backward(
        &self,
        _: &Tensor,
        rows: QkvRows<&Tensor>,
        _: &Tensor,
        _: &Tensor,
        _: HeadLayout,
        _: &Tensor,
        _: &AttentionOptions,
    ) -> Result<QkvRows<Tensor>> {
        Ok(rows.map(|rows| self.like(rows)))
    }

    fn attention_picked_cached(
        &self,
        x: &Tensor,
        _: (&Tensor, &Tensor),
        heads: HeadLayout,
        picks: &Tensor,
        _: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        Ok(self.heads_out(x, picks.as_matrix().0, heads))
    }

    fn cache_append(
        &self,
        _: &mut Tensor,
        _: &mut Tensor,
        _: &Tensor,
        _: HeadLayout,
        _: &[usize],
    ) -> Result<()> {
        Ok(())
    }
}

impl CompressedBackend for MetaBackend {
    fn rotate_last(&self, x: &Tensor, _: usize, _: &Rotary, _: &Tensor, _: bool) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn pool_windows(
        &self,
        kv: &Tensor,
        _: &Tensor,
        _: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<Tensor> {
        Ok(self.uninit(kv.dtype(), &[windows.len(), shape.dim]))
    }

    fn pool_windows_backward(
        &self,
        _: TensorMut<'_>,
        _: &Tensor,
        kv: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &[Window],
        _: &Pooling,
    ) -> Result<(Tensor, Tensor)> {
        Ok((self.like(kv), self.like(kv)))
    }

    fn pick_seen(&self, inputs: &IndexerInputs<'_>, _: &[Sight], places: usize) -> Result<Tensor> {
        Ok(self.picks(inputs.w.as_matrix().0, places))
    }

    fn attention_weights(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: HeadLayout,
        picks: &Tensor,
        _: f64,
    ) -> Result<Tensor> {
        Ok(self.wide_like(picks))
    }

    fn indexer_loss(
        &self,
        inputs: &IndexerInputs<'_>,
        _: &Tensor,
        _: &Tensor,
        _: Divergence,
        _: f64,
    ) -> Result<(Tensor, [Tensor; 3])> {
        let gradients = [inputs.q, inputs.k, inputs.w].map(|of| self.wide_like(of));
        Ok((self.wide(&[1]), gradients))
    }

    fn attention_shared(
        &self,
        q: &Tensor,
        near: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: f64,
    ) -> Result<(Tensor, Tensor)> {
        let ((tokens, width), (_, dim)) = (q.as_matrix(), near.as_matrix());
        let heads = width.checked_div(dim).unwrap_or(0);
        Ok((self.like(q), self.wide(&[heads, tokens])))
    }

    fn attention_shared_backward(
        &self,
        _: &Tensor,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: f64,
    ) -> Result<[Tensor; 3]> {
        let ((rows, dim), entries) = (near.as_matrix(), far.as_matrix().0);
        let dq = self.like(q);
        let dkeys = self.wide(&[rows + entries, dim]);
        let part = |start: usize, len: usize| -> Result<Tensor> {
            let d = dkeys.slice_flat(start * dim, [len, dim])?;
            Ok(if q.dtype() == self.wide { d } else { self.uninit(DType::Bf16, &[len, dim]) })
        };
        Ok([dq, part(0, rows)?, part(rows, entries)?])
    }
}
