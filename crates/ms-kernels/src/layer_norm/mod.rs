//! Layer normalisation, forward and backward.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::{Cpu, Element, Result};

mod body {
    use crate::Element;
    use crate::rms_norm::lane_sum;

    const LANES: usize = 16;

    /// `Σ f(h)` in sixteen partial sums.
    #[inline(always)]
    fn sum(width: usize, f: impl Fn(usize) -> f32) -> f32 {
        let mut acc = [0f32; LANES];
        for h in 0..width {
            acc[h % LANES] += f(h);
        }
        lane_sum(acc)
    }

    /// Normalises a row; returns mean and reciprocal standard deviation.
    #[inline(always)]
    pub(super) fn forward<E: Element>(y: &mut [E], x: &[E], w: &[E], b: &[E], eps: f32) -> [f32; 2] {
        let n = w.len();
        let mean = sum(n, |h| x[h].to_f32()) / n as f32;
        let variance = sum(n, |h| (x[h].to_f32() - mean) * (x[h].to_f32() - mean)) / n as f32;
        let rstd = 1.0 / (variance + eps).sqrt();
        for h in 0..n {
            let bias = if b.is_empty() { 0.0 } else { b[h].to_f32() };
            y[h] = E::from_f32((x[h].to_f32() - mean) * rstd * w[h].to_f32() + bias);
        }
        [mean, rstd]
    }

    #[inline(always)]
    pub(super) fn backward<E: Element>(dx: &mut [E], dy: &[E], x: &[E], w: &[E], stats: &[f32]) {
        let (n, mean, rstd) = (w.len(), stats[0], stats[1]);
        let scaled = |h: usize| dy[h].to_f32() * w[h].to_f32();
        let normal = |h: usize| (x[h].to_f32() - mean) * rstd;
        let average = sum(n, scaled) / n as f32;
        let along = sum(n, |h| scaled(h) * normal(h)) / n as f32;
        for h in 0..n {
            dx[h] = E::from_f32(rstd * (scaled(h) - average - normal(h) * along));
        }
    }

    #[inline(always)]
    pub(super) fn weights<E: Element>(sum: &mut [f32], dy: &[E], x: &[E], stats: &[f32]) {
        let (dw, db) = sum.split_at_mut(dy.len());
        for h in 0..dy.len() {
            let d = dy[h].to_f32();
            dw[h] += d * (x[h].to_f32() - stats[0]) * stats[1];
            db[h] += d;
        }
    }
}

instances! {
    fn forward_row<E: Element>(y: &mut [E], x: &[E], w: &[E], b: &[E], eps: f32) -> [f32; 2] = body::forward;
    fn backward_row<E: Element>(dx: &mut [E], dy: &[E], x: &[E], w: &[E], stats: &[f32]) = body::backward;
    fn weights_row<E: Element>(sum: &mut [f32], dy: &[E], x: &[E], stats: &[f32]) = body::weights;
}

/// Normalises each row of `x` to mean 0 and variance 1, then scales and shifts it.
///
/// `y[t,h] = (x[t,h] − mean[t]) · rstd[t] · w[h] + b[h]`, `rstd[t] = 1 / sqrt(var_h x[t,h] + eps)`
///
/// | arg     | shape          | dtype | meaning                             |
/// |---------|----------------|-------|-------------------------------------|
/// | `y`     | `[T,H]`        | `E`   | output                              |
/// | `stats` | `[T,2]`        | f32   | mean and `rstd`, for [`backward`]   |
/// | `x`     | `[T,H]`        | `E`   | activations                         |
/// | `w`     | `[H]`          | `E`   | scale                               |
/// | `b`     | `[H]` or empty | `E`   | shift                               |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit `w`.
///
/// # Source
/// Ba et al., arXiv:1607.06450, eq. 4.
pub fn forward<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    stats: &mut [f32],
    x: &[E],
    w: &[E],
    b: &[E],
    eps: f32,
) -> Result<()> {
    const OP: &str = "layer_norm::forward";
    let width = w.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    expect_len(OP, "stats", 2 * rows, stats.len())?;
    if !b.is_empty() {
        expect_len(OP, "b", width, b.len())?;
    }
    cpu.for_each_row_of_both(
        rows,
        crate::rms_norm::unit_rows(width),
        (y, width),
        (stats, 2),
        |t, y, stats| {
            stats.copy_from_slice(&forward_row(cpu.isa(), y, &x[t * width..][..width], w, b, eps));
        },
    );
    Ok(())
}

/// Gradients of [`forward`].
///
/// | arg     | shape   | dtype | meaning                                            |
/// |---------|---------|-------|----------------------------------------------------|
/// | `dx`    | `[T,H]` | `E`   | output                                             |
/// | `dwb`   | `[2,H]` | f32   | gradients of scale and shift, added to what is there |
/// | `dy`    | `[T,H]` | `E`   | gradient of `y`                                    |
/// | `x`     | `[T,H]` | `E`   | input of the forward call                          |
/// | `w`     | `[H]`   | `E`   | scale                                              |
/// | `stats` | `[T,2]` | f32   | from the forward call                              |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit `w`.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dwb: &mut [f32],
    dy: &[E],
    x: &[E],
    w: &[E],
    stats: &[f32],
) -> Result<()> {
    const OP: &str = "layer_norm::backward";
    let width = w.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    expect_len(OP, "dy", x.len(), dy.len())?;
    expect_len(OP, "dwb", 2 * width, dwb.len())?;
    expect_len(OP, "stats", 2 * rows, stats.len())?;
    let row = |t: usize| (&dy[t * width..][..width], &x[t * width..][..width], &stats[2 * t..][..2]);
    let step = crate::rms_norm::unit_rows(width);
    cpu.for_each_row(rows, step, (dx, width), |t, dx| {
        let (dy, x, stats) = row(t);
        backward_row(cpu.isa(), dx, dy, x, w, stats);
    });
    cpu.sum_rows(dwb, rows, |t, sum| {
        let (dy, x, stats) = row(t);
        weights_row(cpu.isa(), sum, dy, x, stats);
    });
    Ok(())
}
