//! Gated activation of a feed-forward block: `silu(gate) · up`.

mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::memory::outgrows_caches;
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Element, Result};

narrowing_instances! {
    fn forward_rows<E: Element>(y: &mut [E], x: &[E], f: usize, past: bool) = body::forward;
    fn backward_rows<E: Element>(dx: &mut [E], dy: &[E], x: &[E], f: usize, past: bool) = body::backward;
}

/// `y[t,f] = silu(gate) · up` with `gate = x[t,f]`, `up = x[t,F+f]`, `silu(g) = g / (1 + exp(-g))`.
///
/// | arg | shape    | dtype | meaning                             |
/// |-----|----------|-------|-------------------------------------|
/// | `y` | `[T,F]`  | `E`   | output                              |
/// | `x` | `[T,2F]` | `E`   | gate, then up, as one projection gives them |
///
/// # Errors
/// [`crate::Error::Shape`] if `y` or `x` do not fit.
///
/// # Source
/// Shazeer, arXiv:2002.05202, eq. 6.
pub fn forward<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], tokens: usize, f: usize) -> Result<()> {
    const OP: &str = "swiglu::forward";
    expect_len(OP, "x", tokens * 2 * f, x.len())?;
    expect_len(OP, "y", tokens * f, y.len())?;
    let step = crate::rms_norm::unit_rows(2 * f);
    let past = outgrows_caches(size_of_val(x) + size_of_val(y));
    let y = Disjoint::new(y);
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(tokens - u * step));
        // SAFETY: a unit takes its own rows.
        let y = unsafe { y.part(t * f, n * f) };
        forward_rows(cpu.isa(), y, &x[2 * t * f..][..2 * n * f], f, past);
    });
    Ok(())
}

/// Gradient of [`forward`] with respect to `x`.
///
/// `dup = dy · silu(gate)`, `dgate = dy · up · σ(gate) · (1 + gate · (1 − σ(gate)))`
///
/// | arg  | shape    | dtype | meaning            |
/// |------|----------|-------|--------------------|
/// | `dx` | `[T,2F]` | `E`   | output             |
/// | `dy` | `[T,F]`  | `E`   | gradient of `y`    |
/// | `x`  | `[T,2F]` | `E`   | input of `forward` |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dy: &[E],
    x: &[E],
    tokens: usize,
    f: usize,
) -> Result<()> {
    const OP: &str = "swiglu::backward";
    expect_len(OP, "x", tokens * 2 * f, x.len())?;
    expect_len(OP, "dx", tokens * 2 * f, dx.len())?;
    expect_len(OP, "dy", tokens * f, dy.len())?;
    let step = crate::rms_norm::unit_rows(2 * f);
    let past = outgrows_caches(size_of_val(x) + size_of_val(dy) + size_of_val(dx));
    let dx = Disjoint::new(dx);
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(tokens - u * step));
        // SAFETY: a unit takes its own rows.
        let dx = unsafe { dx.part(2 * t * f, 2 * n * f) };
        backward_rows(cpu.isa(), dx, &dy[t * f..][..n * f], &x[2 * t * f..][..2 * n * f], f, past);
    });
    Ok(())
}
