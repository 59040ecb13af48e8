//! Weights and their gradients in flat buffers.

use crate::{Arena, DType, Error, GradSink, Result, Shape, Tensor, TensorMut};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of a parameter: its place in the model's parameter table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// Where each parameter lies in a flat buffer; shared by the weights, the gradients and the optimizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    slots: Vec<(usize, Shape)>,
    numel: usize,
}

impl ParamLayout {
    /// A layout from `(first element, shape)` of each parameter and the size of the buffer in elements.
    ///
    /// # Errors
    /// [`Error::Range`] if a parameter does not lie inside the buffer.
    pub fn new(slots: Vec<(usize, Shape)>, numel: usize) -> Result<Self> {
        for (start, shape) in &slots {
            let end = start.saturating_add(shape.numel());
            if end > numel {
                return Err(Error::Range { what: "parameter buffer", start: *start, end, len: numel });
            }
        }
        Ok(Self { slots, numel })
    }

    /// A layout that puts parameters one after the other, each on a 64-byte border for any element type.
    pub fn sequential(shapes: impl IntoIterator<Item = Shape>) -> Self {
        let mut numel = 0usize;
        let place = |shape: Shape| {
            let start = numel.next_multiple_of(64);
            numel = start + shape.numel();
            (start, shape)
        };
        let slots = shapes.into_iter().map(place).collect();
        Self { slots, numel }
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Elements of the buffer, gaps included.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// First element of a parameter.
    pub fn start(&self, id: ParamId) -> usize {
        self.slots[id.0 as usize].0
    }

    /// Shape of a parameter.
    pub fn shape(&self, id: ParamId) -> Shape {
        self.slots[id.0 as usize].1
    }

    /// All parameter numbers.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.slots.len() as u32).map(ParamId)
    }
}

/// The weights of one model copy. A reference model is a second store; a model holds only ids.
#[derive(Clone, Debug)]
pub struct ParamStore {
    layout: Arc<ParamLayout>,
    values: Tensor,
    /// Parameters that are kept in the wide type whatever the others are.
    wide: BTreeMap<u32, Tensor>,
}

impl ParamStore {
    /// A store of zeros.
    pub fn zeros(arena: &Arena, dtype: DType, layout: Arc<ParamLayout>) -> Self {
        let values = Tensor::zeros(arena, dtype, [layout.numel()]);
        Self { layout, values, wide: BTreeMap::new() }
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// Element type of the weights.
    pub fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// Keeps one parameter as `values` (of the wide type), whatever the type of the others and whatever [`ParamStore::replace`]
    /// brings later: what no gradient moves, such as a router's biases, may move by less than a rounding.
    ///
    /// # Errors
    /// If shape or element type do not fit.
    pub fn set_wide(&mut self, id: ParamId, values: Tensor) -> Result<()> {
        values.expect_dtype("wide parameter", self.dtype().wide())?;
        values.expect_shape("wide parameter", "values", self.layout.slots[id.0 as usize].1)?;
        self.wide.insert(id.0, values);
        Ok(())
    }

    /// One weight, sharing the store's memory.
    ///
    /// # Panics
    /// If the store has no such parameter: ids come from the table the store was made of.
    pub fn get(&self, id: ParamId) -> Tensor {
        if let Some(wide) = self.wide.get(&id.0) {
            return wide.clone();
        }
        let (start, shape) = self.layout.slots[id.0 as usize];
        self.values.slice_flat(start, shape).expect("the layout was checked against the buffer")
    }

    /// One weight in the type that is computed with: float16 has no kernels, so of it a copy in f32.
    ///
    /// # Panics
    /// As [`ParamStore::get`].
    pub fn value(&self, id: ParamId) -> Tensor {
        widened(&self.get(id))
    }

    /// One weight, writable.
    ///
    /// # Errors
    /// [`Error::Shared`] while a graph or another tensor still uses the weights.
    pub fn get_mut(&mut self, id: ParamId) -> Result<TensorMut<'_>> {
        let (start, shape) = self.layout.slots[id.0 as usize];
        self.values.view_mut(start, shape).map_err(in_use)
    }

    /// The whole buffer.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The whole buffer, writable.
    ///
    /// # Errors
    /// [`Error::Shared`] while a graph or another tensor still uses the weights.
    pub fn values_mut(&mut self) -> Result<&mut Tensor> {
        if self.values.is_unique() { Ok(&mut self.values) } else { Err(Error::Shared { what: "weights" }) }
    }

    /// Puts a new buffer in place of the old one, as an all-gather of updated shards delivers it.
    ///
    /// # Errors
    /// If its size or element type differs.
    pub fn replace(&mut self, values: Tensor) -> Result<()> {
        values.expect_dtype("replace weights", self.values.dtype())?;
        values.expect_shape("replace weights", "values", self.values.shape())?;
        self.values = values;
        Ok(())
    }
}

/// A copy in f32 of float16 values; all others as they are.
pub(crate) fn widened(stored: &Tensor) -> Tensor {
    if stored.dtype() != DType::F16 {
        return stored.clone();
    }
    let mut wide = Tensor::uninit(stored.arena(), DType::F32, stored.shape());
    let to = wide.as_mut_slice().expect("a fresh tensor is unique and of the type it was made with");
    stored.as_slice::<f16>().expect("the type was looked at").convert_to_f32_slice(to);
    wide
}

fn in_use(e: Error) -> Error {
    match e {
        Error::Shared { .. } => Error::Shared { what: "weights" },
        other => other,
    }
}

/// The main gradients of one model copy, of the type [`DType::wide`] says, in the layout of its weights.
#[derive(Debug)]
pub struct GradBuffer {
    layout: Arc<ParamLayout>,
    values: Tensor,
}

impl GradBuffer {
    /// A buffer of zeros for weights of type `dtype`.
    pub fn zeros(arena: &Arena, dtype: DType, layout: Arc<ParamLayout>) -> Self {
        let values = Tensor::zeros(arena, dtype.wide(), [layout.numel()]);
        Self { layout, values }
    }

    /// The whole buffer.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The whole buffer, writable.
    pub fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// The gradient of one parameter.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn get(&self, id: ParamId) -> Tensor {
        let (start, shape) = self.layout.slots[id.0 as usize];
        self.values.slice_flat(start, shape).expect("the layout was checked against the buffer")
    }
}

impl GradBuffer {
    /// The gradient of one parameter, writable.
    ///
    /// # Errors
    /// [`Error::Shared`] while another tensor uses the buffer.
    pub fn whole(&mut self, id: ParamId) -> Result<TensorMut<'_>> {
        let (start, shape) = self.layout.slots[id.0 as usize];
        self.values.view_mut(start, shape)
    }
}

impl GradSink for GradBuffer {
    fn main_grad(&mut self, p: ParamId) -> Result<Option<TensorMut<'_>>> {
        self.whole(p).map(Some)
    }
}
