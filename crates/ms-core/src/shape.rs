//! Shapes.

use std::fmt;
use std::ops::Deref;

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 5;

/// Dimensions of a tensor, outermost first; stored inline, so that views cost no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// A shape from its dimensions, outermost first.
    ///
    /// # Panics
    /// If there are more than [`MAX_RANK`] dimensions.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= MAX_RANK, "a shape has at most {MAX_RANK} dimensions, got {dims:?}");
        let mut inline = [0; MAX_RANK];
        inline[..dims.len()].copy_from_slice(dims);
        Self { dims: inline, rank: dims.len() as u8 }
    }

    /// Number of elements; 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.iter().product()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &**self)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &**self)
    }
}
