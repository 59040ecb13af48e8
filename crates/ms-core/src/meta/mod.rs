//! The device without values: results have shapes, element types and a place in the counters of an arena, and nothing is
//! computed.
//!
//! What a model, a pipeline or an optimizer takes of memory is found by running it here. Each method takes of its arena what
//! the CPU device takes. A choice that hangs on values, such as a router's, is made evenly.

mod attention;
mod experts;
mod rows;
mod states;

use crate::{
    AdamW, Arena, Backend, DType, Device, ExactSum, LossBackend, MatmulBackend, OptimBackend, Result, Routes,
    Sgd, Shape, Tensor, TensorMut,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What was sorted: its name and sizes.
type Sorted = (&'static str, [usize; 3]);

/// A device without values, for weights of one element type.
#[derive(Debug)]
pub struct MetaBackend {
    arena: Arena,
    /// Element type of what is kept unrounded.
    wide: DType,
    /// What was sorted, which is the same every time.
    routes: Mutex<BTreeMap<Sorted, Arc<Routes>>>,
}

impl Device {
    /// A device without values, for weights of type `dtype`.
    pub fn meta(dtype: DType) -> Self {
        Self::new(MetaBackend { arena: Arena::meta(), wide: dtype.wide(), routes: Mutex::default() })
    }
}

impl MetaBackend {
    fn uninit(&self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::uninit(&self.arena, dtype, shape)
    }

    /// A tensor like `t`.
    fn like(&self, t: &Tensor) -> Tensor {
        self.uninit(t.dtype(), &t.shape())
    }

    /// A tensor of the shape of `t` in the wide type.
    fn wide_like(&self, t: &Tensor) -> Tensor {
        self.uninit(self.wide, &t.shape())
    }

    /// Statistics that are kept unrounded.
    fn wide(&self, shape: &[usize]) -> Tensor {
        self.uninit(self.wide, shape)
    }
}

impl Backend for MetaBackend {
    fn name(&self) -> String {
        "meta".to_owned()
    }

    fn arithmetic(&self) -> String {
        "none".to_owned()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn table_dtype(&self) -> DType {
        self.wide
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn routes(
        &self,
        name: &'static str,
        sizes: [usize; 3],
        make: &mut dyn FnMut() -> Result<Routes>,
    ) -> Result<Arc<Routes>> {
        let mut made = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.get(&(name, sizes)) {
            return Ok(made.clone());
        }
        let new = Arc::new(make()?);
        made.insert((name, sizes), new.clone());
        Ok(new)
    }
}

impl MatmulBackend for MetaBackend {
    fn linear(&self, x: &Tensor, w: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &[x.as_matrix().0, w.as_matrix().0]))
    }

    fn quantize(&self, w: &Tensor) -> Result<Tensor> {
        let (n, k) = w.as_matrix();
        Ok(self.uninit(DType::U8, &[n, crate::int8_row_bytes(k)]))
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(dy.dtype(), &[dy.as_matrix().0, w.as_matrix().1]))
    }

    fn linear_dw(&self, _: TensorMut<'_>, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn linear_db(&self, _: TensorMut<'_>, _: &Tensor) -> Result<()> {
        Ok(())
    }
}

impl LossBackend for MetaBackend {
    fn cross_entropy_statistics(&self, logits: &Tensor, _: &Tensor, _: usize) -> Result<Tensor> {
        Ok(self.wide(&[logits.as_matrix().0, 3]))
    }

    fn cross_entropy_merge(&self, statistics: &Tensor, shares: usize) -> Result<Tensor> {
        Ok(self.wide(&[statistics.as_matrix().0 / shares.max(1), 3]))
    }

    fn cross_entropy_nll(&self, _: &Tensor, targets: &Tensor) -> Result<Tensor> {
        Ok(self.wide(&[targets.numel()]))
    }

    fn cross_entropy_whole(&self, logits: &mut Tensor, targets: &Tensor, _: &Tensor) -> Result<Tensor> {
        self.cross_entropy_statistics(logits, targets, 0)
    }

    fn cross_entropy_gradient(
        &self,
        _: &mut Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: usize,
    ) -> Result<()> {
        Ok(())
    }
}

impl OptimBackend for MetaBackend {
    fn adamw(
        &self,
        _: TensorMut<'_>,
        _: TensorMut<'_>,
        _: TensorMut<'_>,
        _: &Tensor,
        _: f64,
        _: &AdamW,
    ) -> Result<()> {
        Ok(())
    }

    fn sgd(&self, _: TensorMut<'_>, _: TensorMut<'_>, _: &Tensor, _: f64, _: &Sgd) -> Result<()> {
        Ok(())
    }

    fn sum_squares(&self, _: &Tensor) -> Result<ExactSum> {
        Ok(ExactSum::default())
    }

    fn fill_zero(&self, _: &mut Tensor) -> Result<()> {
        Ok(())
    }

    fn scale(&self, _: &mut Tensor, _: f64) -> Result<()> {
        Ok(())
    }

    fn accumulate(&self, _: TensorMut<'_>, _: &Tensor, _: f64) -> Result<()> {
        Ok(())
    }
}

/// Rows and another width.
fn with_width(t: &Tensor, width: usize) -> Shape {
    Shape::new(&[t.as_matrix().0, width])
}
