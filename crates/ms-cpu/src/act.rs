//! Activations, sums and embedding on the CPU.

use super::{CpuBackend, expect, ids, op_span, size, with_float};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ms_core::{
    ActBackend, Activation, DType, EmbedBackend, Error, Result, Scalar, Shape, Tensor, TensorMut, VocabShare,
};
use ms_kernels::{activation, elementwise, embedding, swiglu};

/// `y = as(x)`, element by element.
fn each<To: Scalar, From: Scalar>(y: &mut Tensor, x: &Tensor, to: impl Fn(&From) -> To) -> Result<()> {
    y.as_mut_slice()?.iter_mut().zip(x.as_slice()?).for_each(|(y, x)| *y = to(x));
    Ok(())
}

impl ActBackend for CpuBackend {
    fn swiglu(&self, x: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        if width % 2 != 0 {
            let want = Shape::new(&[t, width + 1]);
            return Err(Error::Shape { op: "swiglu", name: "x", want, got: x.shape() });
        }
        let mut y = self.uninit(x.dtype(), &[t, width / 2]);
        op_span!("swiglu", 10 * y.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "swiglu", E => {
            swiglu::forward(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, t, width / 2)?;
        });
        Ok(y)
    }

    fn swiglu_backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("swiglu_backward", "dy", dy, x.dtype(), &[t, width / 2])?;
        let mut dx = self.uninit(x.dtype(), &[t, width]);
        op_span!("swiglu_backward", 20 * dy.numel(), size(&[x, dy, &dx]));
        with_float!(x.dtype(), "swiglu_backward", E => {
            let (out, dy) = (dx.as_mut_slice::<E>()?, dy.as_slice()?);
            swiglu::backward(&self.cpu, out, dy, x.as_slice()?, t, width / 2)?;
        });
        Ok(dx)
    }

    fn activation(&self, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        if gated && width % 2 != 0 {
            let want = Shape::new(&[t, width + 1]);
            return Err(Error::Shape { op: "activation", name: "x", want, got: x.shape() });
        }
        let f = if gated { width / 2 } else { width };
        let mut y = self.uninit(x.dtype(), &[t, f]);
        op_span!("activation", 15 * y.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "activation", E => {
            let (y, x) = (y.as_mut_slice::<E>()?, x.as_slice()?);
            if gated {
                activation::glu(&self.cpu, y, x, f, kind)?;
            } else {
                activation::forward(&self.cpu, y, x, kind)?;
            }
        });
        Ok(y)
    }

    fn activation_backward(&self, dy: &Tensor, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let f = if gated { width / 2 } else { width };
        expect("activation_backward", "dy", dy, x.dtype(), &[t, f])?;
        let mut dx = self.uninit(x.dtype(), &[t, width]);
        op_span!("activation_backward", 25 * dy.numel(), size(&[x, dy, &dx]));
        with_float!(x.dtype(), "activation_backward", E => {
            let (dx, dy, x) = (dx.as_mut_slice::<E>()?, dy.as_slice()?, x.as_slice()?);
            if gated {
                activation::glu_backward(&self.cpu, dx, dy, x, f, kind)?;
            } else {
                activation::backward(&self.cpu, dx, dy, x, kind)?;
            }
        });
        Ok(dx)
    }

    fn gate(&self, x: &Tensor, gate: &Tensor, kind: Activation) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let mut y = self.uninit(x.dtype(), &[t, width]);
        op_span!("gate", 10 * x.numel(), size(&[x, gate, &y]));
        with_float!(x.dtype(), "gate", E => {
            let (y, x, gate) = (y.as_mut_slice::<E>()?, x.as_slice()?, gate.as_slice()?);
            activation::gate(&self.cpu, y, x, gate, t, kind)?;
        });
        Ok(y)
    }

    fn gate_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        gate: &Tensor,
        kind: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let (t, width) = x.as_matrix();
        expect("gate_backward", "dy", dy, x.dtype(), &[t, width])?;
        let mut dx = self.uninit(x.dtype(), &[t, width]);
        let mut dgate = self.uninit(x.dtype(), &gate.shape());
        op_span!("gate_backward", 20 * x.numel(), size(&[x, dy, gate, &dx, &dgate]));
        with_float!(x.dtype(), "gate_backward", E => {
            let (dx, dgate) = (dx.as_mut_slice::<E>()?, dgate.as_mut_slice()?);
            let (dy, x, gate) = (dy.as_slice()?, x.as_slice()?, gate.as_slice()?);
            activation::gate_backward(&self.cpu, dx, dgate, dy, x, gate, t, kind)?;
        });
        Ok((dx, dgate))
    }

    fn softcap(&self, x: &mut Tensor, cap: f64) -> Result<()> {
        op_span!("softcap", 10 * x.numel(), 2 * size(&[x]));
        with_float!(x.dtype(), "softcap", E => {
            elementwise::softcap(&self.cpu, x.as_mut_slice::<E>()?, cap as f32);
            Ok(())
        })
    }

    fn softcap_backward(&self, d: &mut Tensor, y: &Tensor, cap: f64) -> Result<()> {
        expect("softcap_backward", "y", y, d.dtype(), &d.shape())?;
        op_span!("softcap_backward", 4 * d.numel(), 3 * size(&[d]));
        with_float!(d.dtype(), "softcap_backward", E => {
            elementwise::softcap_backward(&self.cpu, d.as_mut_slice::<E>()?, y.as_slice()?, cap as f32)?;
            Ok(())
        })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        expect("add", "b", b, a.dtype(), &a.shape())?;
        let mut y = self.uninit(a.dtype(), &a.shape());
        op_span!("add", a.numel(), size(&[a, b, &y]));
        with_float!(a.dtype(), "add", E => {
            elementwise::add(&self.cpu, y.as_mut_slice::<E>()?, a.as_slice()?, b.as_slice()?)?;
        });
        Ok(y)
    }

    fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        expect("multiply", "b", b, a.dtype(), &a.shape())?;
        let mut y = self.uninit(a.dtype(), &a.shape());
        op_span!("multiply", a.numel(), size(&[a, b, &y]));
        with_float!(a.dtype(), "multiply", E => {
            elementwise::multiply(&self.cpu, y.as_mut_slice::<E>()?, a.as_slice()?, b.as_slice()?)?;
        });
        Ok(y)
    }

    fn add_assign(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        expect("add_assign", "b", b, a.dtype(), &a.shape())?;
        op_span!("add_assign", a.numel(), size(&[a, b, b]));
        with_float!(a.dtype(), "add_assign", E => {
            elementwise::add_assign(&self.cpu, a.as_mut_slice::<E>()?, b.as_slice()?)?;
            Ok(())
        })
    }

    fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        if x.dtype() == dtype {
            return Ok(x.clone());
        }
        let mut y = self.uninit(dtype, &x.shape());
        op_span!("cast", 0, size(&[x, &y]));
        match (x.dtype(), dtype) {
            (DType::F32, DType::Bf16) => {
                elementwise::cast(&self.cpu, y.as_mut_slice::<bf16>()?, x.as_slice::<f32>()?)?;
            }
            (DType::Bf16, DType::F32) => {
                elementwise::cast(&self.cpu, y.as_mut_slice::<f32>()?, x.as_slice::<bf16>()?)?;
            }
            (DType::F32, DType::F16) => y.as_mut_slice::<f16>()?.convert_from_f32_slice(x.as_slice()?),
            (DType::F16, DType::F32) => x.as_slice::<f16>()?.convert_to_f32_slice(y.as_mut_slice()?),
            (DType::F32, DType::F64) => each(&mut y, x, |&v: &f32| f64::from(v))?,
            (DType::Bf16, DType::F64) => each(&mut y, x, |&v: &bf16| f64::from(v))?,
            (DType::F16, DType::F64) => each(&mut y, x, |&v: &f16| f64::from(v))?,
            (DType::F64, DType::F32) => each(&mut y, x, |&v: &f64| v as f32)?,
            (DType::F64, DType::Bf16) => each(&mut y, x, |&v: &f64| bf16::from_f32(v as f32))?,
            (DType::F64, DType::F16) => each(&mut y, x, |&v: &f64| f16::from_f32(v as f32))?,
            _ => return Err(Error::Unsupported { op: "cast", dtype }),
        }
        Ok(y)
    }
}

impl EmbedBackend for CpuBackend {
    fn embedding(&self, table: &Tensor, tokens: &Tensor, share: VocabShare) -> Result<Tensor> {
        let (_, h) = table.as_matrix();
        let mut y = self.uninit(table.dtype(), &[tokens.numel(), h]);
        op_span!("embedding", 0, 2 * size(&[&y]));
        with_float!(table.dtype(), "embedding", E => {
            embedding::forward(&self.cpu, y.as_mut_slice::<E>()?, table.as_slice()?, ids(tokens)?, h, share)?;
        });
        Ok(y)
    }

    fn embedding_backward(
        &self,
        mut dtable: TensorMut<'_>,
        dy: &Tensor,
        tokens: &Tensor,
        share: VocabShare,
    ) -> Result<()> {
        let (t, h) = dy.as_matrix();
        expect("embedding_backward", "ids", tokens, DType::I32, &[t])?;
        op_span!("embedding_backward", dy.numel(), size(&[dy]) + 8 * dy.numel());
        let out = dtable.as_mut_slice::<f32>()?;
        with_float!(dy.dtype(), "embedding_backward", E => {
            embedding::backward(&self.cpu, out, dy.as_slice::<E>()?, ids(tokens)?, h, share)?;
            Ok(())
        })
    }
}
