//! RMSNorm on the CPU.

use super::{CpuBackend, expect, op_span, size, with_float};
use ms_core::{DType, Norm, NormBackend, Result, Tensor, TensorMut};
use ms_kernels::layer_norm;
use ms_kernels::rms_norm::{self, Options};

fn options(norm: &Norm) -> Options {
    Options { eps: norm.eps as f32, unit_offset: norm.unit_offset }
}

impl NormBackend for CpuBackend {
    fn rms_norm(&self, x: &Tensor, w: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("rms_norm", "w", w, x.dtype(), &[h])?;
        op_span!("rms_norm", 4 * t * h, 2 * size(&[x]));
        let mut y = self.uninit(x.dtype(), &[t, h]);
        let mut rstd = self.uninit(DType::F32, &[t]);
        with_float!(x.dtype(), "rms_norm", E => {
            let (y, rstd) = (y.as_mut_slice::<E>()?, rstd.as_mut_slice()?);
            rms_norm::forward(&self.cpu, y, rstd, x.as_slice()?, w.as_slice()?, &options(norm))?;
        });
        Ok((y, rstd))
    }

    fn add_rms_norm(
        &self,
        x: &Tensor,
        residual: &Tensor,
        w: &Tensor,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("add_rms_norm", "w", w, x.dtype(), &[h])?;
        expect("add_rms_norm", "residual", residual, x.dtype(), &[t, h])?;
        op_span!("add_rms_norm", 5 * t * h, 4 * size(&[x]));
        let mut sum = self.uninit(x.dtype(), &[t, h]);
        let mut y = self.uninit(x.dtype(), &[t, h]);
        let mut rstd = self.uninit(DType::F32, &[t]);
        with_float!(x.dtype(), "add_rms_norm", E => {
            rms_norm::forward_add(
                &self.cpu,
                y.as_mut_slice::<E>()?,
                sum.as_mut_slice()?,
                rstd.as_mut_slice()?,
                x.as_slice()?,
                residual.as_slice()?,
                w.as_slice()?,
                &options(norm),
            )?;
        });
        Ok((sum, y, rstd))
    }

    fn layer_norm(&self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f64) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("layer_norm", "w", w, x.dtype(), &[h])?;
        if let Some(b) = b {
            expect("layer_norm", "b", b, x.dtype(), &[h])?;
        }
        op_span!("layer_norm", 7 * t * h, 2 * size(&[x]));
        let mut y = self.uninit(x.dtype(), &[t, h]);
        let mut stats = self.uninit(DType::F32, &[t, 2]);
        with_float!(x.dtype(), "layer_norm", E => {
            let b = b.map_or(Ok(&[] as &[E]), Tensor::as_slice)?;
            let (y, stats) = (y.as_mut_slice::<E>()?, stats.as_mut_slice()?);
            layer_norm::forward(&self.cpu, y, stats, x.as_slice()?, w.as_slice()?, b, eps as f32)?;
        });
        Ok((y, stats))
    }

    fn layer_norm_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("layer_norm_backward", "dy", dy, x.dtype(), &[t, h])?;
        op_span!("layer_norm_backward", 12 * t * h, 3 * size(&[x]));
        let mut dx = self.uninit(x.dtype(), &[t, h]);
        let mut dwb = Tensor::zeros(&self.arena, DType::F32, [2, h]);
        with_float!(x.dtype(), "layer_norm_backward", E => {
            let (dx, dwb) = (dx.as_mut_slice::<E>()?, dwb.as_mut_slice()?);
            let (dy, x, w) = (dy.as_slice()?, x.as_slice()?, w.as_slice()?);
            layer_norm::backward(&self.cpu, dx, dwb, dy, x, w, stats.as_slice()?)?;
        });
        Ok((dx, dwb))
    }

    fn rms_norm_backward(
        &self,
        mut dw: Option<TensorMut<'_>>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dresidual: Option<&Tensor>,
        norm: &Norm,
    ) -> Result<Tensor> {
        let (t, h) = x.as_matrix();
        expect("rms_norm_backward", "dy", dy, x.dtype(), &[t, h])?;
        op_span!("rms_norm_backward", 8 * t * h, 3 * size(&[x]));
        if let Some(d) = dresidual {
            expect("rms_norm_backward", "dresidual", d, x.dtype(), &[t, h])?;
        }
        let mut dx = self.uninit(x.dtype(), &[t, h]);
        // The kernel forms dw in the same pass; a frozen scale's gradient goes to a scratch row.
        let mut scratch = if dw.is_none() { Some(Tensor::zeros(&self.arena, DType::F32, [h])) } else { None };
        let dw = match (&mut dw, &mut scratch) {
            (Some(dw), _) => dw.as_mut_slice::<f32>()?,
            (None, Some(scratch)) => scratch.as_mut_slice()?,
            (None, None) => &mut [],
        };
        with_float!(x.dtype(), "rms_norm_backward", E => {
            rms_norm::backward(
                &self.cpu,
                dx.as_mut_slice::<E>()?,
                dw,
                dy.as_slice()?,
                x.as_slice()?,
                w.as_slice()?,
                rstd.as_slice()?,
                dresidual.map(Tensor::as_slice).transpose()?,
                &options(norm),
            )?;
        });
        Ok(dx)
    }
}
