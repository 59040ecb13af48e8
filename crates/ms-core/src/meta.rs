//! The meta device: results have shapes, element types and an entry in the arena's counters, and nothing is computed.
//!
//! Running a model, a pipeline or an optimizer here shows how much memory it needs. Each method takes the same blocks from
//! its arena as the CPU device does. Choices that depend on values, such as routing, are made evenly.

use crate::{Arena, Backend, DType, Device, HeadLayout, Result, Routes, Tensor};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What was sorted: its name and sizes.
type Sorted = (&'static str, [usize; 3]);

/// A device without values, for weights of one element type.
#[derive(Debug)]
pub struct MetaBackend {
    pub(crate) arena: Arena,
    /// Element type of what is kept unrounded.
    pub(crate) wide: DType,
    /// Sorted routes, which are the same every time.
    routes: Mutex<BTreeMap<Sorted, Arc<Routes>>>,
}

impl Device {
    /// A device without values, for weights of type `dtype`.
    pub fn meta(dtype: DType) -> Self {
        Self::new(MetaBackend { arena: Arena::meta(), wide: dtype.wide(), routes: Mutex::default() })
    }
}

impl MetaBackend {
    pub(crate) fn uninit(&self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::uninit(&self.arena, dtype, shape)
    }

    /// A tensor like `t`.
    pub(crate) fn like(&self, t: &Tensor) -> Tensor {
        self.uninit(t.dtype(), &t.shape())
    }

    /// A tensor of the shape of `t` in the wide type.
    pub(crate) fn wide_like(&self, t: &Tensor) -> Tensor {
        self.uninit(self.wide, &t.shape())
    }

    /// The rows of `t`, of another width.
    pub(crate) fn with_width(&self, t: &Tensor, width: usize) -> Tensor {
        self.uninit(t.dtype(), &[t.as_matrix().0, width])
    }

    /// Unrounded statistics.
    pub(crate) fn wide(&self, shape: &[usize]) -> Tensor {
        self.uninit(self.wide, shape)
    }

    /// The outputs of heads and their log-sum-exp.
    pub(crate) fn heads_out(&self, x: &Tensor, tokens: usize, heads: HeadLayout) -> (Tensor, Tensor) {
        let out = self.uninit(x.dtype(), &[tokens, heads.heads() * heads.head_dim]);
        (out, self.wide(&[heads.heads(), tokens]))
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
