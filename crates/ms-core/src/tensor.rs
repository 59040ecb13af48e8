//! Tensors: contiguous values on a device, without any autograd state.

use crate::arena::{Arena, Storage, Writing};
use crate::{DType, Error, Result, Scalar, Shape};
use half::slice::HalfFloatSliceExt;
use std::fmt;
use std::sync::Arc;

/// A contiguous, row-major tensor with value semantics.
///
/// Cloning shares the storage; a tensor can be written only while nothing else refers to its storage, so a value that a graph
/// saved can never change under it. Views ([`Tensor::rows`], [`Tensor::reshape`]) are free. Strided operands (a head inside a
/// packed projection) are described to the kernel instead, see [`crate::AttentionBackend`].
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    dtype: DType,
    shape: Shape,
    /// First element, counted in elements of `dtype`.
    offset: usize,
}

impl Tensor {
    /// A tensor with unspecified contents, in memory of `arena`.
    pub fn uninit(arena: &Arena, dtype: DType, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        Self { storage: Arc::new(arena.take(shape.numel() * dtype.size())), dtype, shape, offset: 0 }
    }

    /// A tensor of zeros, in memory of `arena`.
    pub fn zeros(arena: &Arena, dtype: DType, shape: impl Into<Shape>) -> Self {
        let mut t = Self::uninit(arena, dtype, shape);
        if !t.storage.is_fresh() {
            t.bytes_mut().expect("a fresh tensor is unique").fill(0);
        }
        t
    }

    /// A tensor with a copy of `values`.
    ///
    /// # Errors
    /// [`Error::Range`] if `values` does not fill `shape` exactly.
    pub fn from_slice<E: Scalar>(arena: &Arena, shape: impl Into<Shape>, values: &[E]) -> Result<Self> {
        let mut t = Self::uninit(arena, E::DTYPE, shape);
        if values.len() != t.numel() {
            return Err(Error::Range { what: "tensor values", start: 0, end: values.len(), len: t.numel() });
        }
        t.as_mut_slice::<E>()?.copy_from_slice(values);
        Ok(t)
    }

    /// A tensor that holds `values`, rounded to `dtype`.
    ///
    /// # Errors
    /// [`Error::Range`] if `values` does not fill `shape` exactly, [`Error::Unsupported`] if `dtype` is not a floating-point
    /// type.
    pub fn from_reals(arena: &Arena, dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Result<Self> {
        let mut t = Self::uninit(arena, dtype, shape);
        t.bytes_mut()?;
        t.whole_mut()?.set_reals(values)?;
        Ok(t)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The arena whose memory the tensor uses.
    pub fn arena(&self) -> &Arena {
        self.storage.arena()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// The size of dimension `dim`.
    ///
    /// # Panics
    /// If the tensor has no such dimension.
    pub fn dim(&self, dim: usize) -> usize {
        self.shape[dim]
    }

    /// Rows and columns of the tensor seen as a matrix: the last dimension is the columns.
    pub fn as_matrix(&self) -> (usize, usize) {
        match self.shape.split_last() {
            Some((&cols, rows)) => (rows.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.numel() != self.numel() {
            return Err(Error::Shape { op: "reshape", name: "tensor", want: shape, got: self.shape });
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// Rows `start..start + len` of the outermost dimension, sharing storage.
    ///
    /// # Errors
    /// [`Error::Range`] if there are no such rows.
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let rows = self.shape.first().copied().unwrap_or(0);
        let end = start.saturating_add(len);
        if end > rows {
            return Err(Error::Range { what: "tensor rows", start, end, len: rows });
        }
        let row = self.numel() / rows.max(1);
        let mut dims = self.shape.to_vec();
        dims[0] = len;
        Ok(Self { shape: Shape::new(&dims), offset: self.offset + start * row, ..self.clone() })
    }

    /// Elements `start..start + shape.numel()` of the flattened tensor under `shape`, sharing storage.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not all there.
    pub fn slice_flat(&self, start: usize, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let end = start.saturating_add(shape.numel());
        if end > self.numel() {
            return Err(Error::Range { what: "tensor elements", start, end, len: self.numel() });
        }
        Ok(Self { shape, offset: self.offset + start, ..self.clone() })
    }

    fn byte_range(&self) -> std::ops::Range<usize> {
        let start = self.offset * self.dtype.size();
        start..start + self.numel() * self.dtype.size()
    }

    /// Waits until the device has written it; required before the host reads its values with any function. On a synchronous
    /// device there is nothing to wait for.
    ///
    /// # Errors
    /// If something that was started on the device has failed.
    pub fn ready(&self) -> Result<&Self> {
        self.storage.ready()?;
        Ok(self)
    }

    /// The elements as bytes, little-endian on every supported machine.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        &self.storage.bytes()[self.byte_range()]
    }

    /// The elements as writable bytes.
    ///
    /// # Errors
    /// [`Error::Shared`] while another tensor uses the same storage.
    #[track_caller]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let (bytes, writing) = self.writable()?;
        writing.begin(bytes);
        Ok(bytes)
    }

    fn writable(&mut self) -> Result<(&mut [u8], Writing<'_>)> {
        let range = self.byte_range();
        let storage = Arc::get_mut(&mut self.storage).ok_or(Error::Shared { what: "a tensor" })?;
        let (bytes, writing) = storage.writable();
        Ok((&mut bytes[range], writing))
    }

    /// Whether it has no memory, only a shape, like tensors of [`Arena::meta`] until somebody reads their values.
    pub fn is_meta(&self) -> bool {
        !self.storage.has_memory()
    }

    /// Whether nothing else refers to the storage, so that the tensor may be written in place.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DType`] if they are not of type `E`.
    #[track_caller]
    pub fn as_slice<E: Scalar>(&self) -> Result<&[E]> {
        self.expect_dtype("as_slice", E::DTYPE)?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, writable.
    ///
    /// # Errors
    /// [`Error::DType`] if they are not of type `E`; [`Error::Shared`] while another tensor uses the storage.
    #[track_caller]
    pub fn as_mut_slice<E: Scalar>(&mut self) -> Result<&mut [E]> {
        self.expect_dtype("as_mut_slice", E::DTYPE)?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    /// A writable view of elements `start..start + shape.numel()`.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Shared`].
    pub fn view_mut(&mut self, start: usize, shape: impl Into<Shape>) -> Result<TensorMut<'_>> {
        let (shape, dtype, numel) = (shape.into(), self.dtype, self.numel());
        let end = start.saturating_add(shape.numel());
        if end > numel {
            return Err(Error::Range { what: "tensor elements", start, end, len: numel });
        }
        if !self.storage.has_memory() {
            return if self.is_unique() {
                Ok(TensorMut { bytes: &mut [], dtype, shape, writing: None })
            } else {
                Err(Error::Shared { what: "a tensor" })
            };
        }
        let (bytes, writing) = self.writable()?;
        let bytes = &mut bytes[start * dtype.size()..end * dtype.size()];
        Ok(TensorMut { bytes, dtype, shape, writing: Some(writing) })
    }

    /// Overwrites the elements from `start` on with those of `values`.
    ///
    /// # Errors
    /// [`Error::Range`] if they do not lie inside, [`Error::DType`] if they are of another type, [`Error::Shared`] while
    /// another tensor uses the storage.
    #[track_caller]
    pub fn put(&mut self, start: usize, values: &Tensor) -> Result<()> {
        self.view_mut(start, [values.numel()])?.copy_from(values)
    }

    /// Overwrites row `to` with row `from` of `rows`, for all pairs `(to, from)`; a row is as long as the last dimension.
    ///
    /// # Errors
    /// [`Error::Shape`] if rows are of another length, [`Error::DType`] if they are of another type, [`Error::Range`] if
    /// there is no such row, [`Error::Shared`] while another tensor uses the storage.
    #[track_caller]
    pub fn put_rows(&mut self, rows: &Tensor, pairs: impl IntoIterator<Item = (usize, usize)>) -> Result<()> {
        rows.expect_dtype("put_rows", self.dtype)?;
        let ((all, width), (there, same)) = (self.as_matrix(), rows.as_matrix());
        if width != same {
            let want = Shape::new(&[there, width]);
            return Err(Error::Shape { op: "put_rows", name: "rows", want, got: rows.shape });
        }
        let whole = self.whole_mut()?;
        if whole.bytes.is_empty() {
            return Ok(());
        }
        let (size, from) = (width * rows.dtype.size(), whole.begin_copy(rows));
        for (to, row) in pairs {
            for (row, len) in [(to, all), (row, there)] {
                if row >= len {
                    return Err(Error::Range { what: "rows to put", start: row, end: row + 1, len });
                }
            }
            whole.bytes[to * size..][..size].copy_from_slice(&from[row * size..][..size]);
        }
        Ok(())
    }

    /// The same values in memory of their own.
    ///
    /// # Errors
    /// Never: fresh memory is written.
    #[track_caller]
    pub fn copied(&self) -> Result<Self> {
        self.copied_to(self.arena())
    }

    /// The same values in memory of `arena`.
    ///
    /// # Errors
    /// Never: fresh memory is written.
    #[track_caller]
    pub fn copied_to(&self, arena: &Arena) -> Result<Self> {
        let mut copy = Self::uninit(arena, self.dtype, self.shape);
        copy.put(0, self)?;
        Ok(copy)
    }

    /// A wide copy of float16 values; all other tensors unchanged.
    pub(crate) fn widened(&self) -> Self {
        if self.dtype != DType::F16 {
            return self.clone();
        }
        let mut wide = Self::uninit(self.arena(), self.dtype.wide(), self.shape);
        if !self.is_meta() {
            let whole = wide.whole_mut().expect("a fresh tensor is unique");
            let from: &[half::f16] = bytemuck::cast_slice(whole.begin_copy(self));
            from.convert_to_f32_slice(bytemuck::cast_slice_mut(whole.bytes));
        }
        wide
    }

    /// The whole tensor as a writable view.
    ///
    /// # Errors
    /// [`Error::Shared`] while another tensor uses the same storage.
    pub fn whole_mut(&mut self) -> Result<TensorMut<'_>> {
        self.view_mut(0, self.shape)
    }

    /// Values widened or rounded to f32, for reports and tests.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types that are not real numbers.
    #[track_caller]
    pub fn to_f32_vec(&self) -> Result<Vec<f32>> {
        Ok(match self.dtype {
            DType::F32 => self.as_slice::<f32>()?.to_vec(),
            DType::F64 => self.as_slice::<f64>()?.iter().map(|&v| v as f32).collect(),
            DType::Bf16 => self.as_slice::<half::bf16>()?.iter().map(|v| v.to_f32()).collect(),
            DType::F16 => self.as_slice::<half::f16>()?.iter().map(|v| v.to_f32()).collect(),
            dtype => return Err(Error::Unsupported { op: "to_f32_vec", dtype }),
        })
    }

    /// Values widened to f64.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types that are not real numbers.
    #[track_caller]
    pub fn to_reals(&self) -> Result<Vec<f64>> {
        Ok(match self.dtype {
            DType::F64 => self.as_slice::<f64>()?.to_vec(),
            _ => self.to_f32_vec()?.into_iter().map(f64::from).collect(),
        })
    }

    /// Refuses an operand of another element type, for devices.
    ///
    /// # Errors
    /// [`Error::DType`] with what was found.
    pub fn expect_dtype(&self, op: &'static str, want: DType) -> Result<()> {
        if self.dtype == want {
            return Ok(());
        }
        Err(Error::DType { op, name: "tensor", want, got: self.dtype })
    }

    /// Refuses an operand of another shape, for devices.
    ///
    /// # Errors
    /// [`Error::Shape`] with what was found.
    pub fn expect_shape(&self, op: &'static str, name: &'static str, want: impl Into<Shape>) -> Result<()> {
        let want = want.into();
        if self.shape == want { Ok(()) } else { Err(Error::Shape { op, name, want, got: self.shape }) }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{})", self.dtype, self.shape)
    }
}

/// A writable view into a tensor that nothing else refers to, such as one parameter's gradient inside a flat buffer.
pub struct TensorMut<'a> {
    /// None where the tensor has no memory.
    bytes: &'a mut [u8],
    dtype: DType,
    shape: Shape,
    writing: Option<Writing<'a>>,
}

impl<'a> TensorMut<'a> {
    /// Writable views of several parts, none of which begins before the end of the previous one.
    ///
    /// # Panics
    /// If one does, or ends outside.
    pub fn split(self, parts: impl IntoIterator<Item = std::ops::Range<usize>>) -> Vec<Self> {
        let Self { bytes: mut rest, dtype, writing, .. } = self;
        let (size, mut at) = (if rest.is_empty() { 0 } else { dtype.size() }, 0);
        let window = |part: std::ops::Range<usize>| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut((part.start - at) * size);
            let (bytes, behind) = from.split_at_mut(part.len() * size);
            (rest, at) = (behind, part.end);
            Self { bytes, dtype, shape: [part.len()].into(), writing }
        };
        parts.into_iter().map(window).collect()
    }

    /// A writable view of elements `start..start + shape.numel()`.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not all there.
    pub fn part(&mut self, start: usize, shape: impl Into<Shape>) -> Result<TensorMut<'_>> {
        let (shape, size, len) = (shape.into(), self.dtype.size(), self.shape.numel());
        let end = start.saturating_add(shape.numel());
        if end > len {
            return Err(Error::Range { what: "view elements", start, end, len });
        }
        let bytes = if self.bytes.is_empty() { &mut [] } else { &mut self.bytes[start * size..end * size] };
        Ok(TensorMut { bytes, dtype: self.dtype, shape, writing: self.writing })
    }

    /// Copies the elements of `values`, which must have the same number and type; if this view has no memory there is nothing
    /// to do.
    ///
    /// # Errors
    /// [`Error::Range`] if there are more or fewer, [`Error::DType`] if they are of another type.
    #[track_caller]
    pub fn copy_from(&mut self, values: &Tensor) -> Result<()> {
        values.expect_dtype("copy", self.dtype)?;
        let (len, end) = (self.shape.numel(), values.numel());
        if len != end {
            return Err(Error::Range { what: "values of a view", start: 0, end, len });
        }
        if !self.bytes.is_empty() {
            self.bytes.copy_from_slice(self.begin_copy(values));
        }
        Ok(())
    }

    /// The bytes to be copied: the device's own work if both lie in its memory.
    #[track_caller]
    fn begin_copy<'v>(&self, values: &'v Tensor) -> &'v [u8] {
        let Some(writing) = self.writing else { return values.bytes() };
        writing.copy();
        let own = values.storage.bytes_for(writing.arena).map(|bytes| &bytes[values.byte_range()]);
        own.unwrap_or_else(|| values.bytes())
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DType`] if they are not of type `E`.
    #[track_caller]
    pub fn as_mut_slice<E: Scalar>(&mut self) -> Result<&mut [E]> {
        if self.dtype != E::DTYPE {
            return Err(Error::DType { op: "as_mut_slice", name: "view", want: E::DTYPE, got: self.dtype });
        }
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// The elements as bytes.
    #[track_caller]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if let Some(writing) = self.writing {
            writing.begin(self.bytes);
        }
        self.bytes
    }

    /// Fills the view with `values`, rounded to its element type; a view without memory stays so.
    ///
    /// # Errors
    /// [`Error::Range`] if there are more or fewer, [`Error::Unsupported`] for element types that are not real numbers.
    #[track_caller]
    pub fn set_reals(&mut self, values: &[f64]) -> Result<()> {
        if values.len() != self.shape.numel() {
            let len = self.shape.numel();
            return Err(Error::Range { what: "values of a view", start: 0, end: values.len(), len });
        }
        if self.bytes.is_empty() {
            return Ok(());
        }
        match self.dtype {
            DType::F64 => self.as_mut_slice::<f64>()?.copy_from_slice(values),
            DType::F32 => {
                self.as_mut_slice::<f32>()?.iter_mut().zip(values).for_each(|(to, v)| *to = *v as f32);
            }
            DType::Bf16 => {
                let to = self.as_mut_slice::<half::bf16>()?.iter_mut();
                to.zip(values).for_each(|(to, v)| *to = half::bf16::from_f32(*v as f32));
            }
            DType::F16 => {
                let to = self.as_mut_slice::<half::f16>()?.iter_mut();
                to.zip(values).for_each(|(to, v)| *to = half::f16::from_f32(*v as f32));
            }
            dtype => return Err(Error::Unsupported { op: "set_reals", dtype }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zero_in_memory_that_was_used_before_and_in_fresh_memory() {
        let arena = Arena::default();
        for _ in 0..2 {
            let mut t = Tensor::zeros(&arena, DType::F32, [100]);
            assert_eq!(t.to_f32_vec().unwrap(), [0.0; 100]);
            t.as_mut_slice::<f32>().unwrap().fill(7.0);
        }
        assert_eq!(arena.stats().system_allocations, 1);
    }

    #[test]
    fn views_share_and_writing_needs_uniqueness() {
        let arena = Arena::default();
        let mut t =
            Tensor::from_slice(&arena, [4, 3], &(0..12).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let mid = t.rows(1, 2).unwrap();
        assert_eq!(mid.as_slice::<f32>().unwrap(), [3., 4., 5., 6., 7., 8.]);
        assert!(matches!(t.as_mut_slice::<f32>(), Err(Error::Shared { .. })));
        drop(mid);
        t.as_mut_slice::<f32>().unwrap()[0] = 9.0;
        assert_eq!(t.as_slice::<f32>().unwrap()[0], 9.0);
        assert_eq!(t.as_matrix(), (4, 3));
    }

    #[test]
    fn a_range_outside_is_refused_and_named() {
        let arena = Arena::default();
        let t = Tensor::zeros(&arena, DType::F32, [2, 2]);
        let e = t.rows(1, 2).unwrap_err().to_string();
        assert!(e.contains("1..3") && e.contains("0..2"), "{e}");
        assert!(t.reshape([3]).is_err());
        assert!(t.as_slice::<i32>().is_err());
    }
}
