//! Moving tokens to their experts and back.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::routing::check_experts;
use crate::{Cpu, Element, Result};

/// The row of a copy that goes to no expert of this rank.
pub const NOWHERE: u32 = u32::MAX;

/// Where each copy of a token goes: rows sorted by expert, by token within an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// For each row its `token · K + slot`.
    pub copies: Vec<u32>,
    /// For each `token · K + slot` its row, or [`NOWHERE`].
    pub rows: Vec<u32>,
    /// First row of each expert, and last the number of rows.
    pub starts: Vec<usize>,
    /// Copies of a token, `K`.
    pub top_k: usize,
}

impl Routes {
    /// The routes of `experts[T,K]` among `count` experts.
    ///
    /// # Errors
    /// [`Error::Range`] if an expert does not exist, [`Error::Shape`] if `experts` is not `[T,K]`.
    pub fn new(experts: &[i32], top_k: usize, count: usize) -> Result<Self> {
        const OP: &str = "experts::Routes::new";
        expect_rows(OP, "experts", top_k, experts.len())?;
        check_experts(OP, experts, count)?;
        Ok(Self::of(experts.iter().map(|&e| Some(e as usize)), top_k, count))
    }

    /// The routes of copies `[T,K]` of which this rank takes those that have one of its `count` experts; the others count
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Range`] if an expert does not exist, [`Error::Shape`] if there are not `K` copies of each token.
    pub fn taking(experts: &[Option<usize>], top_k: usize, count: usize) -> Result<Self> {
        const OP: &str = "experts::Routes::taking";
        expect_rows(OP, "experts", top_k, experts.len())?;
        let taken: Vec<i32> = experts.iter().flatten().map(|&e| e as i32).collect();
        check_experts(OP, &taken, count)?;
        Ok(Self::of(experts.iter().copied(), top_k, count))
    }

    fn of(experts: impl Iterator<Item = Option<usize>> + Clone, top_k: usize, count: usize) -> Self {
        let mut starts = vec![0usize; count + 1];
        experts.clone().flatten().for_each(|e| starts[e + 1] += 1);
        for e in 0..count {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.clone();
        let (mut copies, mut rows) = (vec![0u32; starts[count]], Vec::new());
        for (copy, e) in experts.enumerate() {
            let Some(e) = e else {
                rows.push(NOWHERE);
                continue;
            };
            let row = next[e];
            next[e] += 1;
            copies[row] = copy as u32;
            rows.push(row as u32);
        }
        Self { copies, rows, starts, top_k }
    }

    /// The rows of the first `experts` experts alone, for the experts' own layers; the way back to tokens is that of the
    /// whole.
    ///
    /// # Panics
    /// If there are fewer experts.
    pub fn first(&self, experts: usize) -> Self {
        let starts = self.starts[..=experts].to_vec();
        let copies = self.copies[..starts[experts]].to_vec();
        Self { copies, rows: Vec::new(), starts, top_k: self.top_k }
    }

    /// Tokens `T`.
    pub fn tokens(&self) -> usize {
        self.rows.len().checked_div(self.top_k).unwrap_or(0)
    }

    /// The rows of expert `e`.
    pub fn range(&self, e: usize) -> std::ops::Range<usize> {
        self.starts[e]..self.starts[e + 1]
    }
}

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
/// [`Error::Shape`] if an operand does not fit.
pub fn dispatch<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], routes: &Routes) -> Result<()> {
    const OP: &str = "experts::dispatch";
    let h = width(OP, "x", routes.tokens(), x.len())?;
    expect_len(OP, "y", routes.copies.len() * h, y.len())?;
    let step = (STEP / h.max(1)).max(1);
    cpu.for_each_row(routes.copies.len(), step, (y, h), (&mut [] as &mut [u8], 0), |r, y, _| {
        y.copy_from_slice(&x[routes.copies[r] as usize / routes.top_k * h..][..h]);
    });
    Ok(())
}

/// Gradient of [`dispatch`] by `x`: the sum over a token's copies, in slot order, in f32.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
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
/// [`Error::Shape`] if an operand does not fit.
pub fn combine<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], weights: &[f32], routes: &Routes) -> Result<()> {
    const OP: &str = "experts::combine";
    let h = width(OP, "y", routes.tokens(), y.len())?;
    expect_len(OP, "x", routes.copies.len() * h, x.len())?;
    expect_len(OP, "weights", routes.rows.len(), weights.len())?;
    let (step, k) = ((STEP / h.max(1)).max(1), routes.top_k);
    cpu.for_each_row(routes.tokens(), step, (y, h), (&mut [] as &mut [u8], 0), |t, y, _| {
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

/// Gradients of [`combine`] by `x` and `weights`; weights of copies that are not taken have none.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
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
    cpu.for_each_row(n, step, (dx, h), (&mut [] as &mut [u8], 0), |r, dx, _| {
        let copy = routes.copies[r] as usize;
        let dy = &dy[copy / k * h..][..h];
        dx.iter_mut().zip(dy).for_each(|(d, g)| *d = E::from_f32(weights[copy] * g.to_f32()));
    });
    cpu.for_each_row(copies, step, (dweights, 1), (&mut [] as &mut [u8], 0), |copy, dw, _| {
        if routes.rows[copy] == NOWHERE {
            dw[0] = 0.0;
            return;
        }
        let (dy, row) = (&dy[copy / k * h..][..h], &x[routes.rows[copy] as usize * h..][..h]);
        dw[0] = dy.iter().zip(row).map(|(a, b)| a.to_f32() * b.to_f32()).sum();
    });
    Ok(())
}
