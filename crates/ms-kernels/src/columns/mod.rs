//! Rearranging the columns of a matrix: selecting, reordering, repeating, padding.
//!
//! The layouts of attention inputs differ between families only in the order of columns; this one kernel converts between
//! them.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Element, Error, Result};
pub use ms_operands::Columns;

/// Columns that `runs` produce, after checking that they read inside `width` columns.
fn check(op: &'static str, runs: &[Columns], width: usize) -> Result<usize> {
    for run in runs {
        if let Columns::Copy { start, len } = *run {
            let end = start.saturating_add(len);
            if end > width {
                return Err(Error::Size {
                    op,
                    name: "end of a run",
                    want: "at most the input's columns",
                    got: end,
                });
            }
        }
    }
    Ok(runs.iter().map(Columns::width).sum())
}

const STEP: usize = 16 * 1024;

/// `y[t]` is the concatenation of the runs of `x[t]`.
///
/// | arg    | shape    | dtype | meaning                                   |
/// |--------|----------|-------|-------------------------------------------|
/// | `y`    | `[T,W']` | `E`   | output; `W'` is the sum of the runs' widths |
/// | `x`    | `[T,W]`  | `E`   | input                                     |
/// | `runs` | -        | -     | output columns from left to right         |
///
/// # Errors
/// [`Error::Shape`] or [`Error::Size`] if an operand or a run does not fit.
pub fn forward<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], width: usize, runs: &[Columns]) -> Result<()> {
    const OP: &str = "columns::forward";
    let out = check(OP, runs, width)?;
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", rows * out, y.len())?;
    let step = (STEP / out.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, out), |t, y| {
        let x = &x[t * width..][..width];
        let mut at = 0;
        for run in runs {
            let to = &mut y[at..at + run.width()];
            match *run {
                Columns::Copy { start, len } => to.copy_from_slice(&x[start..start + len]),
                Columns::Zero { .. } => to.fill(E::default()),
            }
            at += run.width();
        }
    });
    Ok(())
}

/// Gradient of [`forward`] with respect to `x`: the sum over all runs that read a column; 0 where none does.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Element>(cpu: &Cpu, dx: &mut [E], dy: &[E], width: usize, runs: &[Columns]) -> Result<()> {
    const OP: &str = "columns::backward";
    let out = check(OP, runs, width)?;
    let rows = expect_rows(OP, "dx", width, dx.len())?;
    expect_len(OP, "dy", rows * out, dy.len())?;
    let mut read = vec![0u32; width];
    for run in runs {
        if let Columns::Copy { start, len } = *run {
            read[start..start + len].iter_mut().for_each(|n| *n += 1);
        }
    }
    let once = read.iter().all(|&n| n <= 1);
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (dx, width), |t, dx| {
        let dy = &dy[t * out..][..out];
        dx.fill(E::default());
        // Sums of bf16 gradients are computed in f32.
        let mut sums = if once { Vec::new() } else { vec![0f32; width] };
        let mut at = 0;
        for run in runs {
            if let Columns::Copy { start, len } = *run {
                let from = &dy[at..at + len];
                if once {
                    dx[start..start + len].copy_from_slice(from);
                } else {
                    for (s, d) in sums[start..start + len].iter_mut().zip(from) {
                        *s += d.to_f32();
                    }
                }
            }
            at += run.width();
        }
        for (d, s) in dx.iter_mut().zip(&sums) {
            *d = E::from_f32(*s);
        }
    });
    Ok(())
}

/// Puts matrices of the same number of rows side by side.
///
/// # Errors
/// [`Error::Shape`] if a part does not have `rows` rows of its width, or `y` not the sum.
pub fn concat<E: Element>(cpu: &Cpu, y: &mut [E], parts: &[(&[E], usize)], rows: usize) -> Result<()> {
    const OP: &str = "columns::concat";
    for (part, width) in parts {
        expect_len(OP, "part", rows * width, part.len())?;
    }
    let out: usize = parts.iter().map(|p| p.1).sum();
    expect_len(OP, "y", rows * out, y.len())?;
    let step = (STEP / out.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, out), |t, mut y| {
        for &(part, width) in parts {
            let (to, rest) = y.split_at_mut(width);
            to.copy_from_slice(&part[t * width..][..width]);
            y = rest;
        }
    });
    Ok(())
}

/// `y[t,w] = x[t,w] + b[w]`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn add<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], b: &[E]) -> Result<()> {
    const OP: &str = "columns::add";
    let width = b.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, width), |t, y| {
        for ((y, x), b) in y.iter_mut().zip(&x[t * width..]).zip(b) {
            *y = E::from_f32(x.to_f32() + b.to_f32());
        }
    });
    Ok(())
}

/// `y[t,w] = x[t,w] · s[t]`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn scale_rows<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], s: &[f32]) -> Result<()> {
    const OP: &str = "columns::scale_rows";
    let width = expect_rows(OP, "x", s.len().max(1), x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(s.len(), step, (y, width), |t, y| {
        for (y, x) in y.iter_mut().zip(&x[t * width..]) {
            *y = E::from_f32(x.to_f32() * s[t]);
        }
    });
    Ok(())
}

/// `y[t] = Σ_w a[t,w] · b[t,w]`, in f64, rounded once.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn row_dot<E: Element>(cpu: &Cpu, y: &mut [f32], a: &[E], b: &[E]) -> Result<()> {
    const OP: &str = "columns::row_dot";
    let width = expect_rows(OP, "a", y.len().max(1), a.len())?;
    expect_len(OP, "b", a.len(), b.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(y.len(), step, (y, 1), |t, y| {
        let pairs = a[t * width..][..width].iter().zip(&b[t * width..]);
        y[0] = pairs.map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum::<f64>() as f32;
    });
    Ok(())
}

/// `y[t,w] = x[t,w] · s[w]`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn scale<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], s: &[E]) -> Result<()> {
    const OP: &str = "columns::scale";
    let width = s.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, width), |t, y| {
        for ((y, x), s) in y.iter_mut().zip(&x[t * width..]).zip(s) {
            *y = E::from_f32(x.to_f32() * s.to_f32());
        }
    });
    Ok(())
}

/// Gradient of [`scale`] with respect to `s`, added to `ds[W]`; that with respect to `x` is `scale(dy, s)`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn scale_backward<E: Element>(cpu: &Cpu, ds: &mut [f32], dy: &[E], x: &[E]) -> Result<()> {
    const OP: &str = "columns::scale_backward";
    let width = ds.len();
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "dy", x.len(), dy.len())?;
    cpu.sum_rows(ds, rows, |t, sum| {
        for ((s, d), x) in sum.iter_mut().zip(&dy[t * width..]).zip(&x[t * width..]) {
            *s += d.to_f32() * x.to_f32();
        }
    });
    Ok(())
}

/// `y[t] = x[t] / max(‖x[t]‖, 1e-12)`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn unit_rows<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], width: usize) -> Result<()> {
    const OP: &str = "columns::unit_rows";
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, width), |t, y| {
        let x = &x[t * width..][..width];
        let length = length(x);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = E::from_f32(x.to_f32() / length));
    });
    Ok(())
}

fn length<E: Element>(x: &[E]) -> f32 {
    x.iter().map(|v| v.to_f32() * v.to_f32()).sum::<f32>().sqrt().max(1e-12)
}

/// Gradient of [`unit_rows`] with respect to `x`, added to `dx[T,W]` f32.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn unit_rows_backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [f32],
    dy: &[f32],
    x: &[E],
    width: usize,
) -> Result<()> {
    const OP: &str = "columns::unit_rows_backward";
    let rows = expect_rows(OP, "x", width, x.len())?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    expect_len(OP, "dy", x.len(), dy.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (dx, width), |t, dx| {
        let (x, dy) = (&x[t * width..][..width], &dy[t * width..][..width]);
        let r = 1.0 / length(x);
        let along: f32 = x.iter().zip(dy).map(|(x, d)| x.to_f32() * d).sum();
        for ((o, x), d) in dx.iter_mut().zip(x).zip(dy) {
            *o += r * (d - x.to_f32() * r * r * along);
        }
    });
    Ok(())
}
