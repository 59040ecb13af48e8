//! Linear layers on the CPU.

use super::{CpuBackend, expect, op_span, size, with_float};
use ms_core::{DType, Error, MatmulBackend, Result, Shape, Tensor, TensorMut};
use ms_kernels::matmul::{Dims, Form, Mat, Out, add_f64, matmul};
use ms_kernels::{int8, reduce};

impl MatmulBackend for CpuBackend {
    fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let ((m, k), (n, _)) = (x.as_matrix(), w.as_matrix());
        let bytes = w.dtype() == DType::U8;
        if bytes {
            expect("linear", "w", w, DType::U8, &[n, int8::row_bytes(k)])?;
        } else {
            expect("linear", "w", w, x.dtype(), &[n, k])?;
        }
        if let Some(b) = bias {
            expect("linear", "bias", b, x.dtype(), &[n])?;
        }
        op_span!("linear", 2 * m * n * k, size(&[x, w]) + m * n * x.dtype().size());
        if x.dtype() == DType::F64 {
            let mut y = Tensor::zeros(&self.arena, DType::F64, [m, n]);
            if let Some(b) = bias {
                let b = b.as_slice::<f64>()?;
                y.as_mut_slice()?.chunks_exact_mut(n.max(1)).for_each(|row| row.copy_from_slice(b));
            }
            let dims = Dims { m, n, k };
            add_f64(&self.cpu, Form::Nt, dims, x.as_slice()?, w.as_slice()?, y.as_mut_slice()?)?;
            return Ok(y);
        }
        let mut y = self.uninit(x.dtype(), &[m, n]);
        with_float!(x.dtype(), "linear", E => {
            let bias = bias.map(Tensor::as_slice::<E>).transpose()?;
            if bytes {
                let (y, x) = (y.as_mut_slice::<E>()?, x.as_slice()?);
                int8::linear(&self.cpu, y, x, w.bytes(), bias, Dims { m, n, k })?;
            } else {
                let out = Out::Set { data: y.as_mut_slice()?, stride: n, bias };
                let (a, b) = (Mat { data: x.as_slice::<E>()?, stride: k }, Mat { data: w.as_slice()?, stride: k });
                matmul(&self.cpu, Form::Nt, Dims { m, n, k }, a, b, out)?;
            }
        });
        Ok(y)
    }

    fn quantize(&self, w: &Tensor) -> Result<Tensor> {
        let (n, k) = w.as_matrix();
        let mut bytes = self.uninit(DType::U8, &[n, int8::row_bytes(k)]);
        op_span!("quantize", 2 * n * k, size(&[w, &bytes]));
        with_float!(w.dtype(), "quantize", E => {
            int8::quantize(&self.cpu, bytes.bytes_mut()?, w.as_slice::<E>()?, n, k)?;
        });
        Ok(bytes)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        let ((m, n), (_, k)) = (dy.as_matrix(), w.as_matrix());
        expect("linear_dx", "w", w, dy.dtype(), &[n, k])?;
        op_span!("linear_dx", 2 * m * n * k, size(&[dy, w]) + m * k * dy.dtype().size());
        if dy.dtype() == DType::F64 {
            let mut dx = Tensor::zeros(&self.arena, DType::F64, [m, k]);
            let dims = Dims { m, n: k, k: n };
            add_f64(&self.cpu, Form::Nn, dims, dy.as_slice()?, w.as_slice()?, dx.as_mut_slice()?)?;
            return Ok(dx);
        }
        let mut dx = self.uninit(dy.dtype(), &[m, k]);
        with_float!(dy.dtype(), "linear_dx", E => {
            let out = Out::Set { data: dx.as_mut_slice()?, stride: k, bias: None };
            let (a, b) = (Mat { data: dy.as_slice::<E>()?, stride: n }, Mat { data: w.as_slice()?, stride: k });
            matmul(&self.cpu, Form::Nn, Dims { m, n: k, k: n }, a, b, out)?;
        });
        Ok(dx)
    }

    fn linear_dw(&self, mut dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        let ((t, n), (_, k)) = (dy.as_matrix(), x.as_matrix());
        let want = Shape::new(&[n, k]);
        if dw.shape() != want {
            return Err(Error::Shape { op: "linear_dw", name: "dw", want, got: dw.shape() });
        }
        expect("linear_dw", "x", x, dy.dtype(), &[t, k])?;
        op_span!("linear_dw", 2 * t * n * k, size(&[dy, x]) + 8 * n * k);
        if dy.dtype() == DType::F64 {
            let dims = Dims { m: n, n: k, k: t };
            add_f64(&self.cpu, Form::Tn, dims, dy.as_slice()?, x.as_slice()?, dw.as_mut_slice()?)?;
            return Ok(());
        }
        let data = dw.as_mut_slice::<f32>()?;
        with_float!(dy.dtype(), "linear_dw", E => {
            let (a, b) = (Mat { data: dy.as_slice::<E>()?, stride: n }, Mat { data: x.as_slice()?, stride: k });
            matmul(&self.cpu, Form::Tn, Dims { m: n, n: k, k: t }, a, b, Out::AddF32 { data, stride: k })?;
            Ok(())
        })
    }

    fn linear_db(&self, mut db: TensorMut<'_>, dy: &Tensor) -> Result<()> {
        let (rows, cols) = dy.as_matrix();
        op_span!("linear_db", rows * cols, size(&[dy]));
        let want = Shape::new(&[cols]);
        if db.shape() != want || db.dtype() != dy.dtype().wide() {
            return Err(Error::Shape { op: "linear_db", name: "db", want, got: db.shape() });
        }
        if dy.dtype() == DType::F64 {
            let (db, dy) = (db.as_mut_slice::<f64>()?, dy.as_slice::<f64>()?);
            for row in dy.chunks_exact(cols.max(1)) {
                db.iter_mut().zip(row).for_each(|(s, d)| *s += d);
            }
            return Ok(());
        }
        with_float!(dy.dtype(), "linear_db", E => {
            reduce::column_sums(&self.cpu, db.as_mut_slice()?, dy.as_slice::<E>()?, rows, cols)?;
            Ok(())
        })
    }
}
