//! Attention over tokens and pooled entries on the CPU.

use super::attention::rotary;
use super::{CpuBackend, expect, ids, op_span, size, with_float};
use ms_core::{
    CompressedBackend, DType, Divergence, HeadLayout, IndexerInputs, Pooling, Result, Rotary, Sight, Tensor,
    TensorMut, Window,
};
use ms_kernels::selected::indexer;
use ms_kernels::selected::shared::{self, Shared};
use ms_kernels::{pooling, rope, selected};

impl CompressedBackend for CpuBackend {
    fn rotate_last(
        &self,
        x: &Tensor,
        head_dim: usize,
        tables: &Rotary,
        positions: &Tensor,
        inverse: bool,
    ) -> Result<Tensor> {
        let (tokens, width) = x.as_matrix();
        op_span!("rotate_last", 3 * x.numel(), 2 * size(&[x]));
        let mut y = x.copied()?;
        let heads = width.checked_div(head_dim).unwrap_or(0);
        with_float!(x.dtype(), "rotate_last", E => {
            let (y, positions) = (y.as_mut_slice::<E>()?, ids(positions)?);
            rope::apply_to_last(&self.cpu, y, tokens, heads, head_dim, positions, &rotary(tables)?, inverse)?;
        });
        Ok(y)
    }

    fn pool_windows(
        &self,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<Tensor> {
        expect("pool_windows", "gate", gate, kv.dtype(), &kv.shape())?;
        let mut out = self.uninit(kv.dtype(), &[windows.len(), shape.dim]);
        op_span!("pool_windows", 20 * out.numel() * shape.ratio, size(&[kv, gate, &out]));
        with_float!(kv.dtype(), "pool_windows", E => {
            let (to, kv, gate) = (out.as_mut_slice::<E>()?, kv.as_slice()?, gate.as_slice()?);
            pooling::forward(&self.cpu, to, kv, gate, ape.as_slice()?, windows, shape)?;
        });
        Ok(out)
    }

    fn pool_windows_backward(
        &self,
        mut dape: TensorMut<'_>,
        dout: &Tensor,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<(Tensor, Tensor)> {
        expect("pool_windows_backward", "dout", dout, kv.dtype(), &[windows.len(), shape.dim])?;
        let (mut dkv, mut dgate) =
            (self.uninit(kv.dtype(), &kv.shape()), self.uninit(kv.dtype(), &kv.shape()));
        op_span!("pool_windows_backward", 60 * dout.numel() * shape.ratio, size(&[kv, gate, &dkv, &dgate]));
        with_float!(kv.dtype(), "pool_windows_backward", E => {
            let to = (dkv.as_mut_slice::<E>()?, dgate.as_mut_slice()?, dape.as_mut_slice()?);
            let (dout, kv, gate) = (dout.as_slice()?, kv.as_slice()?, gate.as_slice()?);
            pooling::backward(&self.cpu, to, dout, kv, gate, ape.as_slice()?, windows, shape)?;
        });
        Ok((dkv, dgate))
    }

    fn pick_seen(&self, inputs: &IndexerInputs<'_>, sights: &[Sight], places: usize) -> Result<Tensor> {
        let ((tokens, heads), (_, dim)) = (inputs.w.as_matrix(), inputs.k.as_matrix());
        expect("pick_seen", "q", inputs.q, DType::F32, &[tokens, heads * dim])?;
        let seen: usize = sights.iter().map(|s| s.seen).sum();
        op_span!("pick_seen", 2 * seen * heads * dim, size(&[inputs.q, inputs.k, inputs.w]));
        let mut picks = self.uninit(DType::I32, &[tokens, places]);
        let (q, k, w) = (inputs.q.as_slice()?, inputs.k.as_slice()?, inputs.w.as_slice()?);
        let indexer = selected::Indexer { q, k, w, heads, dim };
        selected::pick_seen(&self.cpu, picks.as_mut_slice()?, places, &indexer, sights)?;
        Ok(picks)
    }

    fn attention_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        scale: f64,
    ) -> Result<Tensor> {
        let HeadLayout { groups, heads_per_group, head_dim } = heads;
        let ((tokens, width), places) = (q.as_matrix(), picks.dim(1));
        expect("attention_weights", "q", q, q.dtype(), &[tokens, heads.heads() * head_dim])?;
        expect("attention_weights", "k", k, q.dtype(), &[k.as_matrix().0, groups * head_dim])?;
        expect("attention_weights", "picks", picks, DType::I32, &[tokens, places])?;
        let mut weights = self.uninit(DType::F32, &[tokens, places]);
        op_span!("attention_weights", 2 * picks.numel() * width, size(&[q, k, &weights]));
        with_float!(q.dtype(), "attention_weights", E => {
            let (to, sizes) = (weights.as_mut_slice()?, (groups, heads_per_group, head_dim));
            let (q, k) = (q.as_slice::<E>()?, k.as_slice()?);
            indexer::attention_weights(&self.cpu, to, q, k, sizes, ids(picks)?, places, scale as f32)?;
        });
        Ok(weights)
    }

    fn indexer_loss(
        &self,
        inputs: &IndexerInputs<'_>,
        picks: &Tensor,
        attention: &Tensor,
        divergence: Divergence,
        factor: f64,
    ) -> Result<(Tensor, [Tensor; 3])> {
        let ((tokens, heads), (_, dim), places) = (inputs.w.as_matrix(), inputs.k.as_matrix(), picks.dim(1));
        expect("indexer_loss", "q", inputs.q, DType::F32, &[tokens, heads * dim])?;
        expect("indexer_loss", "picks", picks, DType::I32, &[tokens, places])?;
        expect("indexer_loss", "attention", attention, DType::F32, &[tokens, places])?;
        let mut gradients = [inputs.q, inputs.k, inputs.w].map(|of| self.uninit(DType::F32, &of.shape()));
        let moved = size(&[inputs.q, inputs.k, inputs.w, attention]);
        op_span!("indexer_loss", 6 * picks.numel() * heads * dim, 2 * moved);
        let (q, k, w) = (inputs.q.as_slice()?, inputs.k.as_slice()?, inputs.w.as_slice()?);
        let indexer = selected::Indexer { q, k, w, heads, dim };
        let [dq, dk, dw] = &mut gradients;
        let to = indexer::Gradients { q: dq.as_mut_slice()?, k: dk.as_mut_slice()?, w: dw.as_mut_slice()? };
        let (picks, attention) = ((ids(picks)?, places), attention.as_slice()?);
        let loss = indexer::loss(&self.cpu, to, &indexer, picks, attention, divergence, factor as f32)?;
        Ok((Tensor::from_slice(&self.arena, [1], &[loss as f32])?, gradients))
    }

    fn attention_shared(
        &self,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        let ((tokens, width), (_, dim), places) = (q.as_matrix(), near.as_matrix(), picks.dim(1));
        expect("attention_shared", "far", far, q.dtype(), &[far.as_matrix().0, dim])?;
        expect("attention_shared", "picks", picks, DType::I32, &[tokens, places])?;
        let heads = width.checked_div(dim).unwrap_or(0);
        let (mut out, mut lse) =
            (self.uninit(q.dtype(), &[tokens, width]), self.uninit(DType::F32, &[heads, tokens]));
        op_span!("attention_shared", 4 * picks.numel() * width, size(&[q, near, far, &out]));
        with_float!(q.dtype(), "attention_shared", E => {
            let keys = Shared { near: near.as_slice::<E>()?, far: far.as_slice()?, dim };
            let (to, lse) = (out.as_mut_slice()?, lse.as_mut_slice()?);
            shared::forward(&self.cpu, to, lse, q.as_slice()?, keys, heads, ids(picks)?, places, scale as f32)?;
        });
        Ok((out, lse))
    }

    fn attention_shared_backward(
        &self,
        dout: &Tensor,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<[Tensor; 3]> {
        let ((_, width), (rows, dim), places) = (q.as_matrix(), near.as_matrix(), picks.dim(1));
        expect("attention_shared_backward", "dout", dout, q.dtype(), &q.shape())?;
        let entries = far.as_matrix().0;
        let mut dq = self.uninit(q.dtype(), &q.shape());
        let mut dkeys = Tensor::zeros(&self.arena, DType::F32, [rows + entries, dim]);
        op_span!("attention_shared_backward", 10 * picks.numel() * width, size(&[q, dout, out, &dq, &dkeys]));
        with_float!(q.dtype(), "attention_shared_backward", E => {
            let keys = Shared { near: near.as_slice::<E>()?, far: far.as_slice()?, dim };
            let heads = width.checked_div(dim).unwrap_or(0);
            shared::backward(
                &self.cpu,
                (dq.as_mut_slice()?, dkeys.as_mut_slice()?),
                dout.as_slice()?,
                q.as_slice()?,
                (out.as_slice()?, lse.as_slice()?),
                keys,
                heads,
                ids(picks)?,
                places,
                scale as f32,
            )?;
        });
        let part = |start, len| -> Result<Tensor> {
            let d = dkeys.slice_flat(start * dim, [len, dim])?;
            ms_core::ActBackend::cast(self, &d, q.dtype())
        };
        Ok([dq, part(0, rows)?, part(rows, entries)?])
    }
}
