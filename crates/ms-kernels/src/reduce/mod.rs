//! Sums in an order that does not depend on the number of threads.

mod exact;
#[cfg(test)]
mod tests;

pub use ms_operands::ExactSum;

use std::sync::{Mutex, PoisonError};

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::sees_streams;
use crate::{Cpu, Element, Isa, Result};

mod body {
    use crate::Element;

    /// `sum += row` for each row of `x`, first row first.
    #[inline(always)]
    pub(super) fn column_sums<E: Element>(sum: &mut [f32], x: &[E]) {
        let cols = sum.len();
        for row in x.chunks_exact(cols) {
            for c in 0..cols {
                sum[c] += row[c].to_f32();
            }
        }
    }
}

instances! {
    fn add_squares(sum: &mut ExactSum, x: &[f32], guess: &mut u32, ask: bool) = exact::add_squares;
    fn column_sums_part<E: Element>(sum: &mut [f32], x: &[E]) = body::column_sums;
}

/// Rows of a part of a column sum; fixed likewise.
const ROWS: usize = 64;

/// Sum of squares, without rounding.
pub fn sum_squares(cpu: &Cpu, x: &[f32]) -> ExactSum {
    let all = Mutex::new(ExactSum::default());
    let unit = exact::PART * exact::PARTS_PER_UNIT;
    let ask = cpu.isa() < Isa::Avx512 || !sees_streams();
    cpu.for_each_unit(x.len().div_ceil(unit), |u| {
        let (mut sum, mut guess) = (ExactSum::default(), 0);
        for part in x[u * unit..x.len().min((u + 1) * unit)].chunks(exact::PART) {
            add_squares(cpu.isa(), &mut sum, part, &mut guess, ask);
        }
        *all.lock().unwrap_or_else(PoisonError::into_inner) += &sum;
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the sum over rows to `out`: the gradient of a bias.
///
/// | arg   | shape         | dtype | meaning  |
/// |-------|---------------|-------|----------|
/// | `out` | `[cols]`      | f32   | added to |
/// | `x`   | `[rows,cols]` | `E`   | input    |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn column_sums<E: Element>(cpu: &Cpu, out: &mut [f32], x: &[E], rows: usize, cols: usize) -> Result<()> {
    const OP: &str = "reduce::column_sums";
    expect_len(OP, "out", cols, out.len())?;
    expect_len(OP, "x", rows * cols, x.len())?;
    if cols == 0 {
        return Ok(());
    }
    let units = rows.div_ceil(ROWS);
    with_scratch(Scratch::Sums, units * cols, |partials: &mut [f32]| {
        let parts = Disjoint::new(partials);
        cpu.for_each_unit(units, |u| {
            let (first, n) = (u * ROWS, ROWS.min(rows - u * ROWS));
            // SAFETY: a unit takes its own partial sum.
            let part = unsafe { parts.part(u * cols, cols) };
            part.fill(0.0);
            column_sums_part(cpu.isa(), part, &x[first * cols..][..n * cols]);
        });
        column_sums_part(cpu.isa(), out, partials);
    });
    Ok(())
}
