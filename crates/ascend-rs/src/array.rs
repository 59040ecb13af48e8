//! Device memory with a shape.

use crate::{Buffer, Result, Stream, View};
use ms_core::{DType, Scalar};

/// A buffer with an element type and a contiguous shape.
#[derive(Debug)]
pub struct Array {
    buffer: Buffer,
    dtype: DType,
    shape: Vec<usize>,
}

impl Array {
    /// Uninitialised elements, to be used on `stream` first.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub fn new(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Array> {
        let buffer = Buffer::new(stream, shape.iter().product::<usize>() * dtype.size())?;
        Ok(Array { buffer, dtype, shape: shape.to_vec() })
    }

    /// A copy of `values`, which fill `shape`.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    ///
    /// # Panics
    /// If there are more or fewer values than elements.
    pub fn of<E: Scalar>(stream: &Stream, shape: &[usize], values: &[E]) -> Result<Array> {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "values for an array of {shape:?}");
        let buffer = Buffer::from_bytes(stream, bytemuck::cast_slice(values))?;
        Ok(Array { buffer, dtype: E::DTYPE, shape: shape.to_vec() })
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// All elements as an operand.
    ///
    /// # Errors
    /// None that an array can have; see [`View::new`].
    pub fn view(&self) -> Result<View<'_>> {
        View::new(&self.buffer, self.dtype, &self.shape)
    }

    /// The elements on the host, after all that was enqueued on them.
    ///
    /// # Errors
    /// What the stream's tasks ended with.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn to_vec<E: Scalar>(&self) -> Result<Vec<E>> {
        assert_eq!(self.dtype, E::DTYPE, "elements of an array of {}", self.dtype);
        let mut values = vec![E::zeroed(); self.shape.iter().product()];
        self.buffer.read(0, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}
