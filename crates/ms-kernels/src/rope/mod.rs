//! Rotary position embedding.

pub(crate) mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Element, Error, Result, float};

/// Angles' cosines and sines, and which elements of a head they rotate.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[positions, dim/2]`.
    pub cos: &'a [f32],
    /// `[positions, dim/2]`.
    pub sin: &'a [f32],
    /// How many leading elements of a head are rotated; even. The others pass.
    pub dim: usize,
    /// Pairs are neighbours `(2i, 2i+1)`; otherwise `(i, i + dim/2)`.
    pub interleaved: bool,
}

impl Rotary<'_> {
    /// Positions that the tables cover.
    pub fn positions(&self) -> usize {
        if self.dim == 0 { 0 } else { self.cos.len() / (self.dim / 2) }
    }

    pub(crate) fn check(&self, op: &'static str, head_dim: usize, positions: &[i32]) -> Result<()> {
        if !self.dim.is_multiple_of(2) || self.dim > head_dim {
            let want = "an even number, at most the head size";
            return Err(Error::Size { op, name: "rotary dim", want, got: self.dim });
        }
        expect_len(op, "sin", self.cos.len(), self.sin.len())?;
        if self.dim == 0 {
            return Ok(());
        }
        let limit = self.positions();
        expect_len(op, "cos", limit * (self.dim / 2), self.cos.len())?;
        for (index, &p) in positions.iter().enumerate() {
            if usize::try_from(p).map_or(true, |p| p >= limit) {
                return Err(Error::Range { op, name: "positions", index, value: i64::from(p), limit });
            }
        }
        Ok(())
    }
}

narrowing_instances! {
    fn apply_rows<E: Element>(
        x: &mut [E], heads: usize, head_dim: usize, skip: usize, positions: &[i32], rotary: &Rotary<'_>,
        inverse: bool,
    ) = body::apply;
}

/// Rotates every head of every token, in place.
///
/// For each pair `(a, b)` of a head with angle `θ = position · inv_freq[i]`:
/// `(a, b) <- (a cos θ − b sin θ, b cos θ + a sin θ)`
///
/// | arg         | shape     | dtype | meaning                                                  |
/// |-------------|-----------|-------|----------------------------------------------------------|
/// | `x`         | `[T,N,D]` | `E`   | heads, rotated in place                                  |
/// | `positions` | `[T]`     | i32   | position of each token                                   |
/// | `inverse`   | -         | -     | negate the sines: the gradient of the rotation           |
///
/// # Errors
/// [`Error::Shape`] if `x` or `positions` do not fit, [`Error::Range`] if a position is outside the tables.
///
/// # Source
/// Su et al., arXiv:2104.09864, eq. 34. Pairing as in Megatron-LM `core_r0.8.0` `rotary_pos_embedding.py`.
pub fn apply<E: Element>(
    cpu: &Cpu,
    x: &mut [E],
    tokens: usize,
    heads: usize,
    head_dim: usize,
    positions: &[i32],
    rotary: &Rotary<'_>,
    inverse: bool,
) -> Result<()> {
    apply_from(cpu, x, (tokens, heads, head_dim), 0, positions, rotary, inverse)
}

/// [`apply`] to the last elements of every head instead of the first.
///
/// # Errors
/// As [`apply`].
pub fn apply_to_last<E: Element>(
    cpu: &Cpu,
    x: &mut [E],
    tokens: usize,
    heads: usize,
    head_dim: usize,
    positions: &[i32],
    rotary: &Rotary<'_>,
    inverse: bool,
) -> Result<()> {
    let skip = head_dim.saturating_sub(rotary.dim);
    apply_from(cpu, x, (tokens, heads, head_dim), skip, positions, rotary, inverse)
}

fn apply_from<E: Element>(
    cpu: &Cpu,
    x: &mut [E],
    (tokens, heads, head_dim): (usize, usize, usize),
    skip: usize,
    positions: &[i32],
    rotary: &Rotary<'_>,
    inverse: bool,
) -> Result<()> {
    const OP: &str = "rope::apply";
    let width = heads * head_dim;
    expect_len(OP, "x", tokens * width, x.len())?;
    expect_len(OP, "positions", tokens, positions.len())?;
    rotary.check(OP, head_dim, positions)?;
    let step = crate::rms_norm::unit_rows(width);
    let x = Disjoint::new(x);
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(tokens - u * step));
        // SAFETY: a unit takes its own rows.
        let x = unsafe { x.part(t * width, n * width) };
        apply_rows(cpu.isa(), x, heads, head_dim, skip, &positions[t..t + n], rotary, inverse);
    });
    Ok(())
}

/// Cosines and sines of `position · inv_freq` for positions `0..positions`, each `[positions, inv_freq.len()]`,
/// times `scale` (`YaRN`'s attention factor; otherwise 1).
///
/// The angle is the f32 product, as upstream computes it; its cosine and sine are computed in f64 and rounded.
pub fn tables(inv_freq: &[f32], positions: usize, scale: f32) -> (Vec<f32>, Vec<f32>) {
    let mut cos = Vec::with_capacity(positions * inv_freq.len());
    let mut sin = Vec::with_capacity(positions * inv_freq.len());
    for position in 0..positions {
        for &frequency in inv_freq {
            let angle = position as f32 * frequency;
            let (s, c) = float::sin_cos(f64::from(angle));
            cos.push(c as f32 * scale);
            sin.push(s as f32 * scale);
        }
    }
    (cos, sin)
}
