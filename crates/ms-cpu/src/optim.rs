//! The optimizer's flat buffers on the CPU.

use super::{CpuBackend, expect, op_span, size, with_float};
use ms_core::{AdamW, DType, Error, ExactSum, OptimBackend, Result, Sgd, Tensor, TensorMut};
use ms_kernels::{adamw, elementwise, reduce, sgd};

impl OptimBackend for CpuBackend {
    fn adamw(
        &self,
        mut master: TensorMut<'_>,
        mut m: TensorMut<'_>,
        mut v: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &AdamW,
    ) -> Result<()> {
        op_span!("adamw", 14 * g.numel(), 28 * g.numel());
        let (p, m, v) = (master.as_mut_slice()?, m.as_mut_slice()?, v.as_mut_slice()?);
        adamw::step(&self.cpu, p, m, v, g.as_slice()?, grad_scale as f32, None, step)?;
        Ok(())
    }

    fn sgd(
        &self,
        mut master: TensorMut<'_>,
        mut momentum: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &Sgd,
    ) -> Result<()> {
        op_span!("sgd", 5 * g.numel(), 20 * g.numel());
        let (p, m) = (master.as_mut_slice()?, momentum.as_mut_slice()?);
        Ok(sgd::step(&self.cpu, p, m, g.as_slice()?, grad_scale as f32, step)?)
    }

    fn sum_squares(&self, x: &Tensor) -> Result<ExactSum> {
        op_span!("sum_squares", 2 * x.numel(), size(&[x]));
        Ok(reduce::sum_squares(&self.cpu, x.as_slice::<f32>()?))
    }

    fn fill_zero(&self, x: &mut Tensor) -> Result<()> {
        op_span!("fill_zero", 0, size(&[x]));
        match x.dtype() {
            DType::F32 => elementwise::zero(&self.cpu, x.as_mut_slice::<f32>()?),
            _ => x.bytes_mut()?.fill(0),
        }
        Ok(())
    }

    fn scale(&self, x: &mut Tensor, factor: f64) -> Result<()> {
        op_span!("scale", x.numel(), 2 * size(&[x]));
        with_float!(x.dtype(), "scale", E => {
            elementwise::scale(&self.cpu, x.as_mut_slice::<E>()?, factor as f32);
            Ok(())
        })
    }

    fn accumulate(&self, mut sum: TensorMut<'_>, x: &Tensor, factor: f64) -> Result<()> {
        if sum.shape().numel() != x.numel() {
            return Err(Error::Shape { op: "accumulate", name: "x", want: sum.shape(), got: x.shape() });
        }
        if sum.dtype() == DType::F64 {
            expect("accumulate", "x", x, DType::F64, &x.shape())?;
            sum.as_mut_slice::<f64>()?
                .iter_mut()
                .zip(x.as_slice::<f64>()?)
                .for_each(|(s, x)| *s += factor * x);
            return Ok(());
        }
        expect("accumulate", "x", x, DType::F32, &x.shape())?;
        op_span!("accumulate", 2 * x.numel(), 12 * x.numel());
        elementwise::axpy(&self.cpu, sum.as_mut_slice()?, x.as_slice()?, factor as f32)?;
        Ok(())
    }
}
