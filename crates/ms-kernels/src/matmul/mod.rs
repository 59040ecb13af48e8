//! Matrix products in the three forms of a linear layer.
//!
//! | form | product | use |
//! |------|---------|-----|
//! | [`Form::Nt`] | `Y[M,N] = A[M,K] · B[N,K]ᵀ` | forward, `A` activations, `B` weight |
//! | [`Form::Nn`] | `Y[M,N] = A[M,K] · B[K,N]`  | gradient of the input |
//! | [`Form::Tn`] | `Y[M,N] = A[K,M]ᵀ · B[K,N]` | gradient of the weight |
//!
//! Sums are in f32, in an order that does not depend on the instruction set: pairs of ascending `k`, the odd element of a
//! pair first, one fused multiply-add each (the order of the bf16 dot-product instruction), or for bf16 in another
//! order if the [`Cpu`] was made for it: [`crate::Arithmetic`]. Form `Nt` with at most eight rows, a decoding step, is bound by
//! reading the weight and is summed over 32 interleaved chains instead.

mod double;
pub(crate) mod driver;
pub(crate) mod kernel;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
pub(crate) mod vector;

use crate::error::expect_len;
use crate::{Cpu, Element, Error, Result};
pub use double::add_f64;
pub use ms_operands::FEW_ROWS;

/// Which operand is transposed; see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `A[M,K] · B[N,K]ᵀ`.
    Nt,
    /// `A[M,K] · B[K,N]`.
    Nn,
    /// `A[K,M]ᵀ · B[K,N]`.
    Tn,
}

/// Sizes of a product: `m` rows and `n` columns of the result, sums over `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
}

/// A matrix to read: rows of `data` start `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, E> {
    /// Rows one after another; the last one may end early.
    pub data: &'a [E],
    /// Elements from one row to the next, at least the row's length.
    pub stride: usize,
}

/// Where the result goes, and whether it overwrites or adds to what was there.
#[derive(Debug)]
pub enum Out<'a, E> {
    /// Overwrite, rounded to `E` once, after `bias[n]` was added in f32.
    Set {
        /// The result, rows `stride` apart.
        data: &'a mut [E],
        /// Elements from one row to the next.
        stride: usize,
        /// `[N]`, added to each row.
        bias: Option<&'a [E]>,
    },
    /// Overwrite in f32.
    SetF32 {
        /// The result, rows `stride` apart.
        data: &'a mut [f32],
        /// Elements from one row to the next.
        stride: usize,
    },
    /// Continue the sum that is there: gradient accumulation over micro-batches.
    AddF32 {
        /// The result, rows `stride` apart.
        data: &'a mut [f32],
        /// Elements from one row to the next.
        stride: usize,
    },
}

const OP: &str = "matmul";

/// Elements that `rows` rows of `width` need when they start `stride` apart.
fn span(name: &'static str, rows: usize, width: usize, stride: usize, len: usize) -> Result<()> {
    if rows == 0 || width == 0 {
        return Ok(());
    }
    if stride < width {
        return Err(Error::Size { op: OP, name, want: "a stride of at least the row's length", got: stride });
    }
    match (rows - 1).checked_mul(stride).and_then(|s| s.checked_add(width)) {
        Some(want) if want <= len => Ok(()),
        want => Err(Error::Shape { op: OP, name, want: want.unwrap_or(usize::MAX), got: len }),
    }
}

/// Computes a matrix product; see the [module](self) for forms and the order of sums.
///
/// | arg    | shape | dtype | meaning |
/// |--------|-------|-------|---------|
/// | `dims` | - | - | `M`, `N`, `K`; any may be 0, and with `K` = 0 the sums are 0 |
/// | `a`    | `[M,K]`, for `Tn` `[K,M]` | `E` | left operand |
/// | `b`    | `[K,N]`, for `Nt` `[N,K]` | `E` | right operand |
/// | `out`  | `[M,N]` | `E` or f32 | result |
///
/// # Errors
/// [`Error::Shape`] if an operand is too short for its sizes and stride, [`Error::Size`] if a stride is shorter
/// than a row.
pub fn matmul<E: Element>(
    cpu: &Cpu,
    form: Form,
    dims: Dims,
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    out: Out<'_, E>,
) -> Result<()> {
    let Dims { m, n, k } = dims;
    let (a_rows, a_width) = if form == Form::Tn { (k, m) } else { (m, k) };
    let (b_rows, b_width) = if form == Form::Nt { (n, k) } else { (k, n) };
    span("a", a_rows, a_width, a.stride, a.data.len())?;
    span("b", b_rows, b_width, b.stride, b.data.len())?;
    match &out {
        Out::Set { data, stride, bias } => {
            span("out", m, n, *stride, data.len())?;
            if let Some(bias) = bias {
                expect_len(OP, "bias", n, bias.len())?;
            }
        }
        Out::SetF32 { data, stride } | Out::AddF32 { data, stride } => {
            span("out", m, n, *stride, data.len())?;
        }
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if form == Form::Nt && m <= FEW_ROWS {
        vector::product(cpu, dims, a, b, out);
        return Ok(());
    }
    let target = driver::Target::new(out);
    // SAFETY: sizes were checked above, `out` is borrowed mutably for the call, and a `Cpu` is only made for an
    // instruction set that this processor has.
    unsafe { kernel::with_kernel!(cpu, E, K => driver::product::<K, E>(cpu, form, dims, a, b, target)) }
    Ok(())
}
