//! Shared by the recurrent mixers: a linear recurrence with decay, computed chunk by chunk as matrix products.
//!
//! A head's state `H` is `[S,P]`. Token `t` multiplies it by `a_t` and adds `unit_t · k_t ⊗ v_t`; its output is `q_t H`.
//! Within a chunk that begins with state `H_0` this is
//!
//! `y_t = p_t q_t H_0 + Σ_{j≤t} L[t,j] (q_t·k_j) v_j`, `H = p H_0 + Σ_j w_j k_j ⊗ v_j`,
//!
//! with `p_t = Π_{i≤t} a_i`, `L[t,j] = unit_j Π_{j<i≤t} a_i`, and `p` and `w` the last of `p_t` and the last row of `L`. So
//! everything except the factors is a matrix product, and the sequential steps are chunks, not tokens. A token may also add
//! `extra_t` times what the preceding token wrote, before it multiplies, and may have several rows of queries, keys and
//! values, which see each other.
//!
//! The factors are products of the decays themselves, from row to row: none is larger than in the recurrence, nothing
//! overflows, and there is no cancellation between sums of logarithms.
//!
//! Sources: Dao and Gu, arXiv:2405.21060, section 6; Yang et al., arXiv:2412.06464, section 3.3.

pub(crate) mod body;
pub(crate) mod chunk;
pub(crate) mod product;
pub(crate) mod system;
pub(crate) mod units;

use crate::isa::instances;

/// Rows of a chunk, at most: of all tokens and their rows.
pub(crate) const ROWS: usize = 64;

/// A token's scalar effects on the state, in addition to its vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Step {
    /// `a_t`; as a gradient, that by its logarithm.
    pub(crate) decay: f32,
    /// Factor of what the token writes.
    pub(crate) unit: f32,
    /// Factor with which the token repeats what the preceding token wrote. Ignored for a chunk's first token.
    pub(crate) extra: f32,
}

impl Step {
    /// Tokens that let the state decay so, and write what they write.
    pub(crate) fn decaying(by: &[f32]) -> impl Iterator<Item = Self> {
        by.iter().map(|&decay| Self { decay, unit: 1.0, extra: 0.0 })
    }
}

instances! {
    fn factors(l: &mut [f32], ld: usize, p: &mut [f32], steps: &[Step], ranks: usize) = body::factors;
    fn weigh(m: &mut [f32], g: &[f32], l: &[f32], n: usize, ld: usize) = body::weigh;
    fn gather(
        c: &mut [f32], dg: &mut [f32], d: &[f32], g: &[f32], l: &[f32], n: usize, ld: usize, add: bool,
    ) = body::gather;
    fn adjoint(
        d: &mut [Step], by_row: &mut [f32], by_start: f32, c: &[f32], f: &[f32], l: &[f32], ld: usize, p: &[f32],
        steps: &[Step], ranks: usize,
    ) = body::adjoint;
    fn scale_rows(x: &mut [f32], width: usize, by: &[f32], ranks: usize) = body::scale_rows;
    fn scaled_rows(to: &mut [f32], width: usize, from: &[f32], stride: usize, by: &[f32], ranks: usize) = body::scaled_rows;
    fn add_scaled_rows(to: &mut [f32], width: usize, from: &[f32], by: &[f32], ranks: usize) = body::add_scaled_rows;
    fn subtract_from(x: &mut [f32], width: usize, from: &[f32], stride: usize) = body::subtract_from;
    fn negative(to: &mut [f32], from: &[f32]) = body::negative;
    fn row_dots(
        out: &mut [f32], a: &[f32], a_stride: usize, b: &[f32], b_stride: usize, width: usize,
    ) = body::row_dots;
    fn transposed(to: &mut [f32], from: &[f32], columns: usize) = body::transposed;
    fn solve(e: &mut [f32], u: &mut [f32], width: usize, n: &[f32], ld: usize, beta: &[f32]) = body::solve;
    fn solve_back(
        de: &mut [f32], dbeta: &mut [f32], e: &[f32], width: usize, n: &[f32], ld: usize, beta: &[f32],
    ) = body::solve_back;
}
