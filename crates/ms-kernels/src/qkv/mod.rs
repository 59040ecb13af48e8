//! Packed queries, keys and values: per-head normalisation and rotation in one pass.
//!
//! A token's row holds, for each group in turn, its query heads, its key head and its value head; this is the order of
//! Megatron's fused projection. `N` query heads, `G` groups, head size `D`: the row is `(N + 2G)·D` wide.

pub(crate) mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::memory::{Scratch, with_scratch};
use crate::narrow::instances::narrowing_instances;
use crate::rope::Rotary;
use crate::{Cpu, Element, Error, Result};

/// Sizes of packed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Rows.
    pub tokens: usize,
    /// Key/value groups, `G`.
    pub groups: usize,
    /// Query heads of each group; `N = G · heads_per_group`.
    pub heads_per_group: usize,
    /// Head size, `D`.
    pub head_dim: usize,
}

impl Packed {
    /// Checks that the number of elements of all rows fits `usize`, so that products of sizes below do not wrap around.
    ///
    /// # Errors
    /// [`Error::Size`] if it does not.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let sizes = [self.groups, self.heads_per_group.saturating_add(2), self.head_dim.max(1)];
        match sizes.into_iter().try_fold(self.tokens, usize::checked_mul) {
            Some(_) => Ok(()),
            None => Err(Error::Size {
                op,
                name: "tokens",
                want: "rows of fewer than 2^64 elements",
                got: self.tokens,
            }),
        }
    }
    /// Query heads, `N`.
    pub fn heads(&self) -> usize {
        self.groups * self.heads_per_group
    }
    /// Elements of a row, `(N + 2G)·D`.
    pub fn width(&self) -> usize {
        self.groups * self.group_width()
    }
    /// Elements of one group in a row.
    pub fn group_width(&self) -> usize {
        (self.heads_per_group + 2) * self.head_dim
    }
    /// Values of `rstd` per token when heads are normalised: one for each query and key head, group by group.
    pub fn norms(&self) -> usize {
        self.groups * (self.heads_per_group + 1)
    }
}

/// Per-head RMSNorm of queries and keys, as in Qwen3.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a, E> {
    /// `[D]`.
    pub q_weight: &'a [E],
    /// `[D]`.
    pub k_weight: &'a [E],
    /// Added to the mean square.
    pub eps: f32,
}

/// Tokens whose contributions to the weight gradients are summed before they join the others.
const GRADIENT_ROWS: usize = 64;

narrowing_instances! {
    fn forward_rows<E: Element>(
        out: &mut [E], rstd: &mut [f32], qkv: &[E], shape: &Packed, norm: Option<&QkNorm<'_, E>>,
        positions: &[i32], rotary: &Rotary<'_>,
    ) = body::forward;
    fn backward_rows<E: Element>(
        dqkv: &mut [E], qkv: &[E], rstd: &[f32], shape: &Packed, norm: Option<&QkNorm<'_, E>>,
        dweights: &mut [f32], positions: &[i32], rotary: &Rotary<'_>,
    ) = body::backward;
}

fn check<E: Element>(
    op: &'static str,
    shape: &Packed,
    norm: Option<&QkNorm<'_, E>>,
    rstd: usize,
    positions: &[i32],
    rotary: &Rotary<'_>,
) -> Result<()> {
    expect_len(op, "positions", shape.tokens, positions.len())?;
    rotary.check(op, shape.head_dim, positions)?;
    if let Some(norm) = norm {
        expect_len(op, "q_weight", shape.head_dim, norm.q_weight.len())?;
        expect_len(op, "k_weight", shape.head_dim, norm.k_weight.len())?;
        expect_len(op, "rstd", shape.tokens * shape.norms(), rstd)?;
    }
    Ok(())
}

/// Normalises (if requested) and rotates the queries and keys of packed rows; values are copied.
///
/// | arg         | shape        | dtype | meaning                                                          |
/// |-------------|--------------|-------|------------------------------------------------------------------|
/// | `out`       | `[T,(N+2G)D]`| `E`   | packed rows for attention                                        |
/// | `rstd`      | `[T,N+G]`    | f32   | kept for [`backward`]; untouched without `norm`, then any length |
/// | `qkv`       | `[T,(N+2G)D]`| `E`   | output of the projection                                         |
/// | `positions` | `[T]`        | i32   | position of each token                                           |
///
/// The normalised head is rounded to `E`, scaled, rounded, then rotated and rounded.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit, [`crate::Error::Range`] if a position is outside the tables.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    rstd: &mut [f32],
    qkv: &[E],
    shape: &Packed,
    norm: Option<&QkNorm<'_, E>>,
    positions: &[i32],
    rotary: &Rotary<'_>,
) -> Result<()> {
    const OP: &str = "qkv::forward";
    shape.check(OP)?;
    let (tokens, width) = (shape.tokens, shape.width());
    expect_len(OP, "qkv", tokens * width, qkv.len())?;
    expect_len(OP, "out", tokens * width, out.len())?;
    check(OP, shape, norm, rstd.len(), positions, rotary)?;
    let norms = if norm.is_some() { shape.norms() } else { 0 };
    let step = crate::rms_norm::unit_rows(width);
    let (out, rstd) = (Disjoint::new(out), Disjoint::new(rstd));
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(tokens - u * step));
        // SAFETY: a unit takes its own rows.
        let (out, rstd) = unsafe { (out.part(t * width, n * width), rstd.part(t * norms, n * norms)) };
        let qkv = &qkv[t * width..][..n * width];
        forward_rows(cpu.isa(), out, rstd, qkv, shape, norm, &positions[t..t + n], rotary);
    });
    Ok(())
}

/// Gradients of [`forward`], in place.
///
/// | arg         | shape        | dtype | meaning                                                       |
/// |-------------|--------------|-------|---------------------------------------------------------------|
/// | `dqkv`      | `[T,(N+2G)D]`| `E`   | on entry the gradient of `out`, on exit the gradient of `qkv` |
/// | `qkv`       | `[T,(N+2G)D]`| `E`   | input of the forward call; read only with `norm`              |
/// | `rstd`      | `[T,N+G]`    | f32   | from the forward call; read only with `norm`                  |
/// | `dq_weight` | `[D]`        | f32   | added to; untouched without `norm`, then any length           |
/// | `dk_weight` | `[D]`        | f32   | added to; untouched without `norm`, then any length           |
/// | `positions` | `[T]`        | i32   | position of each token                                        |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit, [`crate::Error::Range`] if a position is outside the tables.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dqkv: &mut [E],
    qkv: &[E],
    rstd: &[f32],
    shape: &Packed,
    norm: Option<&QkNorm<'_, E>>,
    dq_weight: &mut [f32],
    dk_weight: &mut [f32],
    positions: &[i32],
    rotary: &Rotary<'_>,
) -> Result<()> {
    const OP: &str = "qkv::backward";
    shape.check(OP)?;
    let (tokens, width, dim) = (shape.tokens, shape.width(), shape.head_dim);
    expect_len(OP, "dqkv", tokens * width, dqkv.len())?;
    check(OP, shape, norm, rstd.len(), positions, rotary)?;
    if norm.is_some() {
        expect_len(OP, "qkv", tokens * width, qkv.len())?;
        expect_len(OP, "dq_weight", dim, dq_weight.len())?;
        expect_len(OP, "dk_weight", dim, dk_weight.len())?;
    }
    let (norms, sums) = if norm.is_some() { (shape.norms(), 2 * dim) } else { (0, 0) };
    let units = tokens.div_ceil(GRADIENT_ROWS);
    with_scratch(Scratch::Sums, units * sums, |partials: &mut [f32]| {
        let (dqkv, parts) = (Disjoint::new(dqkv), Disjoint::new(partials));
        cpu.for_each_unit(units, |u| {
            let (t, n) = (u * GRADIENT_ROWS, GRADIENT_ROWS.min(tokens - u * GRADIENT_ROWS));
            // SAFETY: a unit takes its own rows and its own partial sum.
            let (dqkv, part) = unsafe { (dqkv.part(t * width, n * width), parts.part(u * sums, sums)) };
            part.fill(0.0);
            let (qkv, rstd) = match norm {
                Some(_) => (&qkv[t * width..][..n * width], &rstd[t * norms..][..n * norms]),
                None => (&qkv[..0], &rstd[..0]),
            };
            backward_rows(cpu.isa(), dqkv, qkv, rstd, shape, norm, part, &positions[t..t + n], rotary);
        });
        if norm.is_some() && dim > 0 {
            for part in partials.chunks_exact(sums) {
                for d in 0..dim {
                    dq_weight[d] += part[d];
                    dk_weight[d] += part[dim + d];
                }
            }
        }
    });
    Ok(())
}
