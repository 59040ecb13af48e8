//! Permuting tokens to their experts and back.

#[cfg(test)]
mod tests;

use crate::error::expect_len;
use crate::{Cpu, Element, Result};
pub use ms_operands::{NOWHERE, Routes};

const STEP: usize = 16 * 1024;

fn width(op: &'static str, name: &'static str, rows: usize, len: usize) -> Result<usize> {
    let width = len.checked_div(rows).unwrap_or(0);
    expect_len(op, name, rows * width, len).map(|()| width)
}

/// `y[r] = x[token of row r]`: a row for every copy that is taken, sorted by expert.
///
/// | arg | shape   | dtype | meaning                                       |
/// |-----|---------|-------|-----------------------------------------------|
/// | `y` | `[R,H]` | `E`   | output; `R` is `T·K` where all copies are taken |
/// | `x` | `[T,H]` | `E`   | tokens                                        |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn dispatch<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], routes: &Routes) -> Result<()> {
    const OP: &str = "experts::dispatch";
    let h = width(OP, "x", routes.tokens(), x.len())?;
    expect_len(OP, "y", routes.copies.len() * h, y.len())?;
    let step = (STEP / h.max(1)).max(1);
    cpu.for_each_row(routes.copies.len(), step, (y, h), |r, y| {
        y.copy_from_slice(&x[routes.copies[r] as usize / routes.top_k * h..][..h]);
    });
    Ok(())
}

/// Gradient of [`dispatch`] with respect to `x`: the sum over a token's copies, in slot order, in f32.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn dispatch_backward<E: Element>(cpu: &Cpu, dx: &mut [E], dy: &[E], routes: &Routes) -> Result<()> {
    let ones = vec![1f32; routes.rows.len()];
    combine(cpu, dx, dy, &ones, routes)
}

/// `y[t] = Σ_k weights[t,k] · x[row of (t,k)]`, in slot order, in f32, rounded once, over the copies that are taken.
///
/// | arg       | shape   | dtype | meaning        |
/// |-----------|---------|-------|----------------|
/// | `y`       | `[T,H]` | `E`   | output         |
/// | `x`       | `[R,H]` | `E`   | rows by expert |
/// | `weights` | `[T,K]` | f32   | of each copy   |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn combine<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], weights: &[f32], routes: &Routes) -> Result<()> {
    const OP: &str = "experts::combine";
    let h = width(OP, "y", routes.tokens(), y.len())?;
    expect_len(OP, "x", routes.copies.len() * h, x.len())?;
    expect_len(OP, "weights", routes.rows.len(), weights.len())?;
    let (step, k) = ((STEP / h.max(1)).max(1), routes.top_k);
    cpu.for_each_row(routes.tokens(), step, (y, h), |t, y| {
        let mut sum = vec![0f32; h];
        for copy in (t * k..(t + 1) * k).filter(|&copy| routes.rows[copy] != NOWHERE) {
            let row = &x[routes.rows[copy] as usize * h..][..h];
            let w = weights[copy];
            for (s, v) in sum.iter_mut().zip(row) {
                *s += w * v.to_f32();
            }
        }
        y.iter_mut().zip(&sum).for_each(|(y, s)| *y = E::from_f32(*s));
    });
    Ok(())
}

/// Gradients of [`combine`] with respect to `x` and `weights`; weights of copies that are not taken have none.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn combine_backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dweights: &mut [f32],
    dy: &[E],
    x: &[E],
    weights: &[f32],
    routes: &Routes,
) -> Result<()> {
    const OP: &str = "experts::combine_backward";
    let h = width(OP, "dy", routes.tokens(), dy.len())?;
    let (n, k, copies) = (routes.copies.len(), routes.top_k, routes.rows.len());
    expect_len(OP, "x", n * h, x.len())?;
    expect_len(OP, "dx", n * h, dx.len())?;
    expect_len(OP, "weights", copies, weights.len())?;
    expect_len(OP, "dweights", copies, dweights.len())?;
    let step = (STEP / h.max(1)).max(1);
    cpu.for_each_row(n, step, (dx, h), |r, dx| {
        let copy = routes.copies[r] as usize;
        let dy = &dy[copy / k * h..][..h];
        dx.iter_mut().zip(dy).for_each(|(d, g)| *d = E::from_f32(weights[copy] * g.to_f32()));
    });
    cpu.for_each_row(copies, step, (dweights, 1), |copy, dw| {
        if routes.rows[copy] == NOWHERE {
            dw[0] = 0.0;
            return;
        }
        let (dy, row) = (&dy[copy / k * h..][..h], &x[routes.rows[copy] as usize * h..][..h]);
        dw[0] = dy.iter().zip(row).map(|(a, b)| a.to_f32() * b.to_f32()).sum();
    });
    Ok(())
}
