//! Cross entropy on the CPU.

use super::{CpuBackend, expect, ids, op_span, size, with_float};
use ms_core::{DType, Error, LossBackend, Result, Shape, Tensor};
use ms_kernels::cross_entropy::{self, Row};

/// Rows of the kernel, seen in a tensor `[T,3]` f32.
fn rows<'a>(op: &'static str, statistics: &'a Tensor, tokens: usize) -> Result<&'a [Row]> {
    expect(op, "statistics", statistics, DType::F32, &[tokens, 3])?;
    Ok(bytemuck::cast_slice(statistics.as_slice::<f32>()?))
}

impl LossBackend for CpuBackend {
    fn cross_entropy_statistics(&self, logits: &Tensor, targets: &Tensor, first: usize) -> Result<Tensor> {
        const OP: &str = "cross_entropy_statistics";
        let (t, v) = logits.as_matrix();
        expect(OP, "targets", targets, DType::I32, &[t])?;
        op_span!("cross_entropy_statistics", 10 * t * v, size(&[logits]));
        let mut statistics = self.uninit(DType::F32, &[t, 3]);
        let rows: &mut [Row] = bytemuck::cast_slice_mut(statistics.as_mut_slice::<f32>()?);
        with_float!(logits.dtype(), "cross_entropy_statistics", E => {
            cross_entropy::statistics(&self.cpu, rows, logits.as_slice::<E>()?, ids(targets)?, v, first)?;
        });
        Ok(statistics)
    }

    fn cross_entropy_merge(&self, statistics: &Tensor, shares: usize) -> Result<Tensor> {
        let all = statistics.as_matrix().0;
        if shares == 0 || !all.is_multiple_of(shares) {
            let (want, got) = (Shape::new(&[all / shares.max(1) * shares, 3]), statistics.shape());
            return Err(Error::Shape { op: "cross_entropy_merge", name: "statistics", want, got });
        }
        let tokens = all / shares;
        let all = rows("cross_entropy_merge", statistics, all)?;
        let mut merged: Vec<Row> = all[..tokens].to_vec();
        for share in all[tokens..].chunks_exact(tokens.max(1)) {
            for (sum, row) in merged.iter_mut().zip(share) {
                *sum = sum.merge(row);
            }
        }
        Tensor::from_slice(&self.arena, [tokens, 3], bytemuck::cast_slice::<Row, f32>(&merged))
    }

    fn cross_entropy_nll(&self, statistics: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let targets = ids(targets)?;
        let rows = rows("cross_entropy_nll", statistics, targets.len())?;
        let mut nll = self.uninit(DType::F32, &[targets.len()]);
        for ((n, row), &target) in nll.as_mut_slice::<f32>()?.iter_mut().zip(rows).zip(targets) {
            *n = if target < 0 { 0.0 } else { cross_entropy::nll(row) };
        }
        Ok(nll)
    }

    fn cross_entropy_gradient(
        &self,
        logits: &mut Tensor,
        statistics: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
        first: usize,
    ) -> Result<()> {
        const OP: &str = "cross_entropy_gradient";
        let (t, v) = logits.as_matrix();
        expect(OP, "targets", targets, DType::I32, &[t])?;
        expect(OP, "weights", weights, DType::F32, &[t])?;
        let (rows, targets, weights) = (rows(OP, statistics, t)?, ids(targets)?, weights.as_slice()?);
        op_span!("cross_entropy_gradient", 5 * t * v, 2 * size(&[logits]));
        with_float!(logits.dtype(), "cross_entropy_gradient", E => {
            let logits = logits.as_mut_slice::<E>()?;
            Ok(cross_entropy::gradient(&self.cpu, logits, rows, targets, weights, v, first)?)
        })
    }
    fn cross_entropy_whole(&self, logits: &mut Tensor, targets: &Tensor, weights: &Tensor) -> Result<Tensor> {
        const OP: &str = "cross_entropy_whole";
        let (t, v) = logits.as_matrix();
        expect(OP, "targets", targets, DType::I32, &[t])?;
        expect(OP, "weights", weights, DType::F32, &[t])?;
        let (targets, weights) = (ids(targets)?, weights.as_slice()?);
        op_span!("cross_entropy_whole", 10 * t * v, 2 * size(&[logits]));
        let mut statistics = self.uninit(DType::F32, &[t, 3]);
        let rows: &mut [Row] = bytemuck::cast_slice_mut(statistics.as_mut_slice::<f32>()?);
        with_float!(logits.dtype(), "cross_entropy_whole", E => {
            let logits = logits.as_mut_slice::<E>()?;
            cross_entropy::whole(&self.cpu, rows, logits, targets, weights, v)?;
        });
        Ok(statistics)
    }
}
