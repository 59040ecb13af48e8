//! Root-mean-square normalisation, forward and backward.

pub(crate) mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Element, Result};

pub(crate) use body::{lane_sum, scaled};

/// How to normalise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Added to the mean square, in squared units of `x`.
    pub eps: f32,
    /// Scale by `1 + w` instead of `w`, as Gemma does.
    pub unit_offset: bool,
}

/// Rows a unit takes at a time: about this many elements.
const UNIT_ELEMENTS: usize = 32 * 1024;
/// Rows whose contributions to the weight gradient are summed before they join the others. Fixed, for it decides
/// the order of that sum.
const GRADIENT_ROWS: usize = 64;

narrowing_instances! {
    fn forward_rows<E: Element>(y: &mut [E], rstd: &mut [f32], x: &[E], w: &[E], options: &Options) = body::forward;
    fn forward_add_rows<E: Element>(
        y: &mut [E], sum: &mut [E], rstd: &mut [f32], x: &[E], residual: &[E], w: &[E], options: &Options,
    ) = body::forward_add;
    fn backward_rows<E: Element>(
        dx: &mut [E], dw: &mut [f32], dy: &[E], x: &[E], w: &[E], rstd: &[f32], dresidual: Option<&[E]>,
        options: &Options,
    ) = body::backward;
}

instances! {
    fn add_partials(sum: &mut [f32], partials: &[f32]) = body::add_partials;
}

/// Rows of `width` elements that one unit takes.
pub(crate) fn unit_rows(width: usize) -> usize {
    (UNIT_ELEMENTS / width.max(1)).max(1)
}

/// Normalises each row of `x` and scales it by `w`.
///
/// `y[t,h] = w[h] · x[t,h] · rstd[t]`, `rstd[t] = 1 / sqrt(mean_h x[t,h]² + eps)`
///
/// | arg    | shape   | dtype | meaning                      |
/// |--------|---------|-------|------------------------------|
/// | `y`    | `[T,H]` | `E`   | output                       |
/// | `rstd` | `[T]`   | f32   | kept for [`backward`]        |
/// | `x`    | `[T,H]` | `E`   | activations, rows contiguous |
/// | `w`    | `[H]`   | `E`   | scale                        |
///
/// Sums in f32. For bf16 the normalised row is rounded to bf16 before it is scaled, as upstream does.
///
/// # Errors
/// [`crate::Error::Shape`] if the operands do not fit `w` and `rstd`.
///
/// # Source
/// Zhang and Sennrich, arXiv:1910.07467, eq. 4; order of casts: Megatron-LM `core_r0.8.0`
/// `megatron/legacy/model/rms_norm.py`.
///
/// ```
/// use ms_kernels::{Cpu, rms_norm::{self, Options}};
/// let x = [3.0f32, 4.0];
/// let (mut y, mut rstd) = ([0.0; 2], [0.0; 1]);
/// let options = Options { eps: 0.0, unit_offset: false };
/// rms_norm::forward(&Cpu::single(), &mut y, &mut rstd, &x, &[1.0, 1.0], &options)?;
/// assert!((y[0] - 0.848_528).abs() < 1e-6);
/// # Ok::<(), ms_kernels::Error>(())
/// ```
pub fn forward<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    rstd: &mut [f32],
    x: &[E],
    w: &[E],
    options: &Options,
) -> Result<()> {
    const OP: &str = "rms_norm::forward";
    let width = w.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    expect_len(OP, "rstd", rows, rstd.len())?;
    let step = unit_rows(width);
    let (y, rstd) = (Disjoint::new(y), Disjoint::new(rstd));
    cpu.for_each_unit(rows.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(rows - u * step));
        // SAFETY: a unit takes its own rows.
        let (y, rstd) = unsafe { (y.part(t * width, n * width), rstd.part(t, n)) };
        forward_rows(cpu.isa(), y, rstd, &x[t * width..][..n * width], w, options);
    });
    Ok(())
}

/// Adds a residual to `x`, then normalises the sum: `sum = x + residual`, `y = norm(sum)`.
///
/// | arg        | shape   | dtype | meaning                                        |
/// |------------|---------|-------|------------------------------------------------|
/// | `y`        | `[T,H]` | `E`   | normalised sum                                 |
/// | `sum`      | `[T,H]` | `E`   | the sum, rounded to `E`; what is normalised    |
/// | `rstd`     | `[T]`   | f32   | kept for [`backward`]                          |
/// | `x`        | `[T,H]` | `E`   | output of the block before                     |
/// | `residual` | `[T,H]` | `E`   | residual stream                                |
/// | `w`        | `[H]`   | `E`   | scale                                          |
///
/// # Errors
/// [`crate::Error::Shape`] if the operands do not fit `w` and `rstd`.
pub fn forward_add<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    sum: &mut [E],
    rstd: &mut [f32],
    x: &[E],
    residual: &[E],
    w: &[E],
    options: &Options,
) -> Result<()> {
    const OP: &str = "rms_norm::forward_add";
    let width = w.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    expect_len(OP, "sum", x.len(), sum.len())?;
    expect_len(OP, "residual", x.len(), residual.len())?;
    expect_len(OP, "rstd", rows, rstd.len())?;
    let step = unit_rows(width);
    let (y, sum, rstd) = (Disjoint::new(y), Disjoint::new(sum), Disjoint::new(rstd));
    cpu.for_each_unit(rows.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(rows - u * step));
        let (start, len) = (t * width, n * width);
        // SAFETY: a unit takes its own rows.
        let (y, sum, rstd) = unsafe { (y.part(start, len), sum.part(start, len), rstd.part(t, n)) };
        forward_add_rows(cpu.isa(), y, sum, rstd, &x[start..][..len], &residual[start..][..len], w, options);
    });
    Ok(())
}

/// Gradients of [`forward`], with the residual's gradient added on the way.
///
/// `dx = rstd · (w·dy) − x · rstd³/H · Σ_h w·dy·x + dresidual`, `dw += Σ_t dy · norm(x)`
///
/// | arg         | shape   | dtype | meaning                                                     |
/// |-------------|---------|-------|-------------------------------------------------------------|
/// | `dx`        | `[T,H]` | `E`   | gradient of `x` (of `sum` for [`forward_add`])              |
/// | `dw`        | `[H]`   | f32   | gradient of `w`, added to what is there                     |
/// | `dy`        | `[T,H]` | `E`   | gradient of `y`                                             |
/// | `x`         | `[T,H]` | `E`   | what was normalised                                         |
/// | `w`         | `[H]`   | `E`   | scale                                                       |
/// | `rstd`      | `[T]`   | f32   | from the forward call                                       |
/// | `dresidual` | `[T,H]` | `E`   | gradient that reaches `x` by the residual stream, if any    |
///
/// # Errors
/// [`crate::Error::Shape`] if the operands do not fit `w` and `rstd`.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dw: &mut [f32],
    dy: &[E],
    x: &[E],
    w: &[E],
    rstd: &[f32],
    dresidual: Option<&[E]>,
    options: &Options,
) -> Result<()> {
    const OP: &str = "rms_norm::backward";
    let width = w.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    expect_len(OP, "dy", x.len(), dy.len())?;
    expect_len(OP, "dw", width, dw.len())?;
    expect_len(OP, "rstd", rows, rstd.len())?;
    if let Some(dresidual) = dresidual {
        expect_len(OP, "dresidual", x.len(), dresidual.len())?;
    }
    let units = rows.div_ceil(GRADIENT_ROWS);
    with_scratch(Scratch::Sums, units * width, |partials: &mut [f32]| {
        let (dx, parts) = (Disjoint::new(dx), Disjoint::new(partials));
        cpu.for_each_unit(units, |u| {
            let (t, n) = (u * GRADIENT_ROWS, GRADIENT_ROWS.min(rows - u * GRADIENT_ROWS));
            let (start, len) = (t * width, n * width);
            // SAFETY: a unit takes its own rows and its own partial sum.
            let (dx, part) = unsafe { (dx.part(start, len), parts.part(u * width, width)) };
            part.fill(0.0);
            let dresidual = dresidual.map(|d| &d[start..][..len]);
            let (dy, x) = (&dy[start..][..len], &x[start..][..len]);
            backward_rows(cpu.isa(), dx, part, dy, x, w, &rstd[t..][..n], dresidual, options);
        });
        add_partials(cpu.isa(), dw, partials);
    });
    Ok(())
}
