//! Column maps on the CPU.

use super::{CpuBackend, expect, op_span, size, with_float};
use ms_core::{Columns, DType, Error, LayoutBackend, Noise, Result, Tensor, TensorMut};
use ms_kernels::{columns, noise};

impl LayoutBackend for CpuBackend {
    fn columns(&self, x: &Tensor, runs: &[Columns]) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let mut y = self.uninit(x.dtype(), &[t, runs.iter().map(Columns::width).sum()]);
        op_span!("columns", 0, size(&[x, &y]));
        with_float!(x.dtype(), "columns", E => {
            columns::forward(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, width, runs)?;
        });
        Ok(y)
    }

    fn columns_backward(&self, dy: &Tensor, width: usize, runs: &[Columns]) -> Result<Tensor> {
        let t = dy.as_matrix().0;
        let mut dx = self.uninit(dy.dtype(), &[t, width]);
        op_span!("columns_backward", 0, size(&[dy, &dx]));
        with_float!(dy.dtype(), "columns_backward", E => {
            columns::backward(&self.cpu, dx.as_mut_slice::<E>()?, dy.as_slice()?, width, runs)?;
        });
        Ok(dx)
    }

    fn noise(&self, x: &Tensor, keys: &[u64], site: u64, by: Noise) -> Result<Tensor> {
        let mut y = self.uninit(x.dtype(), &x.shape());
        op_span!("noise", 8 * x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "noise", E => {
            noise::multiply(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, keys, site, by)?;
        });
        Ok(y)
    }

    fn concat(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let Some(first) = parts.first() else {
            return Err(Error::Range { what: "parts to put side by side", start: 0, end: 1, len: 0 });
        };
        let t = first.as_matrix().0;
        for part in parts {
            expect("concat", "part", part, first.dtype(), &[t, part.as_matrix().1])?;
        }
        let mut y = self.uninit(first.dtype(), &[t, parts.iter().map(|p| p.as_matrix().1).sum()]);
        op_span!("concat", 0, 2 * size(parts));
        with_float!(first.dtype(), "concat", E => {
            let slices = parts.iter().map(|p| Ok((p.as_slice::<E>()?, p.as_matrix().1))).collect::<Result<Vec<_>>>()?;
            columns::concat(&self.cpu, y.as_mut_slice()?, &slices, t)?;
        });
        Ok(y)
    }

    fn add_bias(&self, x: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("add_bias", "b", b, x.dtype(), &[width])?;
        let mut y = self.uninit(x.dtype(), &[t, width]);
        op_span!("add_bias", x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "add_bias", E => {
            columns::add(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, b.as_slice()?)?;
        });
        Ok(y)
    }

    fn scale_rows(&self, x: &Tensor, s: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("scale_rows", "s", s, DType::F32, &[t])?;
        let mut y = self.uninit(x.dtype(), &[t, width]);
        op_span!("scale_rows", x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "scale_rows", E => {
            columns::scale_rows(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, s.as_slice()?)?;
        });
        Ok(y)
    }

    fn row_dot(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (t, width) = a.as_matrix();
        expect("row_dot", "b", b, a.dtype(), &[t, width])?;
        let mut y = self.uninit(DType::F32, &[t]);
        op_span!("row_dot", 2 * a.numel(), size(&[a, b]));
        with_float!(a.dtype(), "row_dot", E => {
            columns::row_dot(&self.cpu, y.as_mut_slice()?, a.as_slice::<E>()?, b.as_slice()?)?;
        });
        Ok(y)
    }

    fn scale_columns(&self, x: &Tensor, s: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("scale_columns", "s", s, x.dtype(), &[width])?;
        let mut y = self.uninit(x.dtype(), &[t, width]);
        op_span!("scale_columns", x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "scale_columns", E => {
            columns::scale(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, s.as_slice()?)?;
        });
        Ok(y)
    }

    fn scale_columns_backward(&self, mut ds: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        op_span!("scale_columns_backward", 2 * x.numel(), size(&[x, dy]));
        with_float!(x.dtype(), "scale_columns_backward", E => {
            columns::scale_backward(&self.cpu, ds.as_mut_slice()?, dy.as_slice::<E>()?, x.as_slice()?)?;
            Ok(())
        })
    }

    fn unit_rows(&self, x: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let mut y = self.uninit(x.dtype(), &[t, width]);
        op_span!("unit_rows", 3 * x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "unit_rows", E => {
            columns::unit_rows(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, width)?;
        });
        Ok(y)
    }

    fn unit_rows_backward(&self, mut dx: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        op_span!("unit_rows_backward", 6 * x.numel(), size(&[x, dy]));
        let dy = ms_core::ActBackend::cast(self, dy, DType::F32)?;
        let width = x.as_matrix().1;
        with_float!(x.dtype(), "unit_rows_backward", E => {
            let (dx, dy) = (dx.as_mut_slice()?, dy.as_slice()?);
            columns::unit_rows_backward(&self.cpu, dx, dy, x.as_slice::<E>()?, width)?;
            Ok(())
        })
    }
}
