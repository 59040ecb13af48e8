//! Norms, activations, columns and embeddings without values.

use super::{MetaBackend, with_width};
use crate::{
    ActBackend, Activation, Columns, DType, EmbedBackend, LayoutBackend, Noise, Norm, NormBackend, Result,
    Tensor, TensorMut, VocabShare,
};

impl NormBackend for MetaBackend {
    fn rms_norm(&self, x: &Tensor, _: &Tensor, _: &Norm) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.wide(&[x.as_matrix().0])))
    }

    fn add_rms_norm(&self, x: &Tensor, _: &Tensor, _: &Tensor, _: &Norm) -> Result<(Tensor, Tensor, Tensor)> {
        Ok((self.like(x), self.like(x), self.wide(&[x.as_matrix().0])))
    }

    fn layer_norm(&self, x: &Tensor, _: &Tensor, _: Option<&Tensor>, _: f64) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.wide(&[x.as_matrix().0, 2])))
    }

    fn layer_norm_backward(
        &self,
        _: &Tensor,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.wide(&[2, x.as_matrix().1])))
    }

    fn rms_norm_backward(
        &self,
        _: Option<TensorMut<'_>>,
        _: &Tensor,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: Option<&Tensor>,
        _: &Norm,
    ) -> Result<Tensor> {
        Ok(self.like(x))
    }
}

impl ActBackend for MetaBackend {
    fn swiglu(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1 / 2)))
    }

    fn swiglu_backward(&self, _: &Tensor, x: &Tensor) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn activation(&self, x: &Tensor, _: Activation, gated: bool) -> Result<Tensor> {
        let width = x.as_matrix().1;
        Ok(self.uninit(x.dtype(), &with_width(x, if gated { width / 2 } else { width })))
    }

    fn activation_backward(&self, _: &Tensor, x: &Tensor, _: Activation, _: bool) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn gate(&self, x: &Tensor, _: &Tensor, _: Activation) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn gate_backward(
        &self,
        _: &Tensor,
        x: &Tensor,
        gate: &Tensor,
        _: Activation,
    ) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.like(gate)))
    }

    fn softcap(&self, _: &mut Tensor, _: f64) -> Result<()> {
        Ok(())
    }

    fn softcap_backward(&self, _: &mut Tensor, _: &Tensor, _: f64) -> Result<()> {
        Ok(())
    }

    fn add(&self, a: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.like(a))
    }

    fn multiply(&self, a: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.like(a))
    }

    fn add_assign(&self, _: &mut Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        match x.dtype() == dtype {
            true => Ok(x.clone()),
            false => Ok(self.uninit(dtype, &x.shape())),
        }
    }
}

impl LayoutBackend for MetaBackend {
    fn columns(&self, x: &Tensor, runs: &[Columns]) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, runs.iter().map(Columns::width).sum())))
    }

    fn columns_backward(&self, dy: &Tensor, width: usize, _: &[Columns]) -> Result<Tensor> {
        Ok(self.uninit(dy.dtype(), &with_width(dy, width)))
    }

    fn concat(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let width = parts.iter().map(|p| p.as_matrix().1).sum();
        Ok(match parts.first() {
            Some(first) => self.uninit(first.dtype(), &with_width(first, width)),
            None => self.wide(&[0, 0]),
        })
    }

    fn noise(&self, x: &Tensor, _: &[u64], _: u64, _: Noise) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn add_bias(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1)))
    }

    fn scale_rows(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1)))
    }

    fn row_dot(&self, a: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.wide(&[a.as_matrix().0]))
    }

    fn scale_columns(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1)))
    }

    fn scale_columns_backward(&self, _: TensorMut<'_>, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn unit_rows(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1)))
    }

    fn unit_rows_backward(&self, _: TensorMut<'_>, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }
}

impl EmbedBackend for MetaBackend {
    fn embedding(&self, table: &Tensor, ids: &Tensor, _: VocabShare) -> Result<Tensor> {
        Ok(self.uninit(table.dtype(), &[ids.numel(), table.as_matrix().1]))
    }

    fn embedding_backward(&self, _: TensorMut<'_>, _: &Tensor, _: &Tensor, _: VocabShare) -> Result<()> {
        Ok(())
    }
}
