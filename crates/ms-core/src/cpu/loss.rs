//! Cross entropy on the CPU.

use super::{CpuBackend, expect, ids, op_span, size, with_float};
use crate::{DType, LossBackend, Result, Tensor};
use ms_kernels::cross_entropy::{self, Row};

impl LossBackend for CpuBackend {
    fn cross_entropy(
        &self,
        logits: &mut Tensor,
        targets: &Tensor,
        weights: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (t, v) = logits.as_matrix();
        expect("cross_entropy", "targets", targets, DType::I32, &[t])?;
        if let Some(w) = weights {
            expect("cross_entropy", "weights", w, DType::F32, &[t])?;
        }
        let targets = ids(targets)?;
        op_span!("cross_entropy", 15 * t * v, size(&[logits]) * if weights.is_some() { 3 } else { 1 });
        let mut nll = self.uninit(DType::F32, &[t]);
        // Three f32 numbers per token, viewed as rows of the kernel.
        let mut rows = self.uninit(DType::F32, &[t, 3]);
        let rows: &mut [Row] = bytemuck::cast_slice_mut(rows.bytes_mut()?);
        with_float!(logits.dtype(), "cross_entropy", E => {
            cross_entropy::statistics(&self.cpu, rows, logits.as_slice::<E>()?, targets, v, 0)?;
            if let Some(w) = weights {
                let (logits, w) = (logits.as_mut_slice::<E>()?, w.as_slice()?);
                cross_entropy::gradient(&self.cpu, logits, rows, targets, w, v, 0)?;
            }
            Ok(())
        })?;
        for ((n, row), &target) in nll.as_mut_slice::<f32>()?.iter_mut().zip(rows.iter()).zip(targets) {
            *n = if target < 0 { 0.0 } else { cross_entropy::nll(row) };
        }
        Ok(nll)
    }
}
