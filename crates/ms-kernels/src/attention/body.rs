//! The element-wise parts: softmax of a block of scores and its gradient.
//!
//! Blocks are transposed: a row is a key, a column a query, `BQ` columns. So maxima and sums run down the rows and
//! need no sums across a vector.

use super::{Options, Tilt};
use crate::float::{exp, tanh};

/// Queries of a block.
pub(super) const BQ: usize = 128;
/// Keys of a block; a multiple of every kernel's rows of a tile.
pub(super) const BK: usize = 192;
/// Columns that are treated together.
pub(super) const LANES: usize = 64;

/// What is kept for each query of a block while keys pass by.
pub(super) struct Running {
    /// Largest score so far.
    pub(super) max: [f32; BQ],
    /// Sum of `exp(score − max)` so far.
    pub(super) sum: [f32; BQ],
    /// Factor of what was accumulated before the block at hand.
    pub(super) correction: [f32; BQ],
}

impl Running {
    pub(super) fn new() -> Self {
        Self { max: [f32::NEG_INFINITY; BQ], sum: [0.0; BQ], correction: [0.0; BQ] }
    }
}

/// First and one past the last visible column of each row.
pub(super) type Limits = [(u32, u32); BK];

/// The part of `limits` inside columns `c..c + LANES`, relative to `c`.
#[inline(always)]
fn within(limits: (u32, u32), c: usize) -> (u32, u32) {
    let clip = |v: u32| v.saturating_sub(c as u32).min(LANES as u32);
    (clip(limits.0), clip(limits.1))
}

#[inline(always)]
fn lanes(block: &mut [f32], row: usize, c: usize) -> &mut [f32; LANES] {
    (&mut block[row * BQ + c..][..LANES]).try_into().expect("a slice of LANES")
}

/// Turns scores into `exp(score − max)` and updates maxima and sums.
///
/// Hidden pairs become 0.
#[inline(always)]
pub(super) fn softmax(
    block: &mut [f32],
    columns: usize,
    limits: &[(u32, u32)],
    options: &Options,
    tilt: Tilt,
    run: &mut Running,
) {
    let scale = options.scale;
    for c in (0..columns).step_by(LANES) {
        let old: [f32; LANES] = run.max[c..][..LANES].try_into().expect("a slice of LANES");
        let mut max = old;
        for (row, &limit) in limits.iter().enumerate() {
            let (first, end) = within(limit, c);
            let x = lanes(block, row, c);
            if first >= end {
                // Tiles of queries may straddle two groups, so what nobody here sees must be 0 all the same.
                x.fill(0.0);
                continue;
            }
            match options.softcap {
                None => {
                    for l in 0..LANES {
                        x[l] *= scale;
                    }
                }
                Some(cap) => {
                    for l in 0..LANES {
                        x[l] = cap * tanh(x[l] * scale / cap);
                    }
                }
            }
            if let Some(most) = tilt.row(row) {
                for l in 0..LANES {
                    x[l] += most - tilt.slope * (c + l) as f32;
                }
            }
            if end - first < LANES as u32 {
                for l in 0..LANES {
                    let seen = (l as u32).wrapping_sub(first) < end - first;
                    x[l] = if seen { x[l] } else { f32::NEG_INFINITY };
                }
            }
            for l in 0..LANES {
                max[l] = if x[l] > max[l] { x[l] } else { max[l] };
            }
        }
        // A query that has seen nothing yet subtracts 0, for -inf - -inf is no number.
        let mut shift = [0f32; LANES];
        let mut sum = [0f32; LANES];
        for l in 0..LANES {
            shift[l] = if max[l] == f32::NEG_INFINITY { 0.0 } else { max[l] };
            let correction = exp(old[l] - shift[l]);
            run.correction[c + l] = correction;
            sum[l] = run.sum[c + l] * correction;
        }
        for (row, &limit) in limits.iter().enumerate() {
            let (first, end) = within(limit, c);
            if first >= end {
                continue;
            }
            let x = lanes(block, row, c);
            for l in 0..LANES {
                let p = exp(x[l] - shift[l]);
                x[l] = p;
                sum[l] += p;
            }
        }
        run.max[c..][..LANES].copy_from_slice(&max);
        run.sum[c..][..LANES].copy_from_slice(&sum);
    }
}

/// Scales rows of the accumulated output by the corrections of their queries.
#[inline(always)]
pub(super) fn rescale(out: &mut [f32], width: usize, correction: &[f32]) {
    for (row, &c) in out.chunks_exact_mut(width).zip(correction) {
        for v in row {
            *v *= c;
        }
    }
}

/// Turns scores into probabilities, and gradients of probabilities into gradients of unscaled scores.
///
/// `p = exp(score − lse)`, `ds = p · (dp − delta) · scale`, times the slope of the cap. Hidden pairs become 0.
#[inline(always)]
pub(super) fn gradient(
    scores: &mut [f32],
    dp: &mut [f32],
    columns: usize,
    limits: &[(u32, u32)],
    options: &Options,
    tilt: Tilt,
    lse: &[f32; BQ],
    delta: &[f32; BQ],
) {
    let scale = options.scale;
    for c in (0..columns).step_by(LANES) {
        let lse: [f32; LANES] = lse[c..][..LANES].try_into().expect("a slice of LANES");
        let delta: [f32; LANES] = delta[c..][..LANES].try_into().expect("a slice of LANES");
        for (row, &limit) in limits.iter().enumerate() {
            let (first, end) = within(limit, c);
            let (s, g) = (lanes(scores, row, c), lanes(dp, row, c));
            if first >= end {
                s.fill(0.0);
                g.fill(0.0);
                continue;
            }
            match options.softcap {
                None => {
                    if let Some(most) = tilt.row(row) {
                        for l in 0..LANES {
                            s[l] += (most - tilt.slope * (c + l) as f32) / scale;
                        }
                    }
                    for l in 0..LANES {
                        let p = exp(s[l].mul_add(scale, -lse[l]));
                        g[l] = p * (g[l] - delta[l]) * scale;
                        s[l] = p;
                    }
                }
                Some(cap) => {
                    let most = tilt.row(row).unwrap_or(0.0);
                    for l in 0..LANES {
                        let t = tanh(s[l] * scale / cap);
                        let p = exp(cap * t + (most - tilt.slope * (c + l) as f32) - lse[l]);
                        g[l] = p * (g[l] - delta[l]) * scale * (1.0 - t * t);
                        s[l] = p;
                    }
                }
            }
            if end - first < LANES as u32 {
                for l in 0..LANES {
                    let seen = (l as u32).wrapping_sub(first) < end - first;
                    s[l] = if seen { s[l] } else { 0.0 };
                    g[l] = if seen { g[l] } else { 0.0 };
                }
            }
        }
    }
}
