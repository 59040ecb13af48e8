//! Operands and results of the reference device.

use crate::Reference;
use ms_core::{DType, Error, Result, Shape, Tensor, TensorMut};

/// The elements of an f64 operand.
pub(crate) fn reals(t: &Tensor) -> Result<&[f64]> {
    t.as_slice::<f64>()
}

/// The elements of an operand that need not be there.
pub(crate) fn optional(t: Option<&Tensor>) -> Result<Option<&[f64]>> {
    t.map(reals).transpose()
}

/// The numbers of an i32 operand.
pub(crate) fn numbers(t: &Tensor) -> Result<&[i32]> {
    t.as_slice::<i32>()
}

/// Checks the shape of an f64 operand.
pub(crate) fn expect(op: &'static str, name: &'static str, t: &Tensor, shape: &[usize]) -> Result<()> {
    if t.dtype() != DType::F64 {
        return Err(Error::DType { op, name, want: DType::F64, got: t.dtype() });
    }
    expect_shape(op, name, t.shape(), shape)
}

/// Checks the shape of an operand.
pub(crate) fn expect_shape(op: &'static str, name: &'static str, got: Shape, shape: &[usize]) -> Result<()> {
    let want = Shape::new(shape);
    if got == want { Ok(()) } else { Err(Error::Shape { op, name, want, got }) }
}

/// `sum += values`, element by element.
pub(crate) fn add_to(op: &'static str, sum: &mut TensorMut<'_>, values: &[f64]) -> Result<()> {
    expect_shape(op, "gradient", Shape::new(&[sum.shape().numel()]), &[values.len()])?;
    sum.as_mut_slice::<f64>()?.iter_mut().zip(values).for_each(|(s, v)| *s += v);
    Ok(())
}

impl Reference {
    /// A result.
    pub(crate) fn give(&self, shape: &[usize], values: &[f64]) -> Result<Tensor> {
        Tensor::from_slice(&self.arena, shape, values)
    }

    /// A result of the shape of `like`.
    pub(crate) fn give_as(&self, like: &Tensor, values: &[f64]) -> Result<Tensor> {
        Tensor::from_slice(&self.arena, like.shape(), values)
    }
}
