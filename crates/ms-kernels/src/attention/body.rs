//! The element-wise parts: softmax of a block of scores and its gradient.
//!
//! Blocks are transposed: a row is a key, a column a query, `BQ` columns, rows `STRIDE` apart. Maxima and sums therefore run
//! down the rows and need no sums across a vector. Exponentials are base 2; the factor `log2 e` is part of the scale.

use std::f32::consts::LOG2_E;
use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::{Options, Tilt};
use crate::Element;
use crate::float::{exp2, ln, tanh};
use crate::narrow::{self, Narrow};

/// Queries of a block.
pub(super) const BQ: usize = 128;
/// Elements from a row of a block to the next. An odd number of cache lines, so that a column's rows take all sets of the
/// first-level cache and not every eighth, which would hold a third of them.
pub(super) const STRIDE: usize = BQ + 16;
/// Keys of a block; a multiple of every kernel's rows of a tile, and of its terms.
pub(super) const BK: usize = 192;
/// Columns that are treated together.
pub(super) const LANES: usize = 64;

/// What is kept for each query of a block while keys pass by.
pub(super) struct Running {
    /// Largest score so far, less its [`factor`].
    pub(super) max: [f32; BQ],
    /// Sum of `2^(factor · (score − max))` so far.
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

/// Where the values of a block go.
pub(super) trait Write {
    /// What the values are rounded to.
    type Kept: Element;

    /// Takes sixteen columns from `c` on of two rows of `block` from `row` on.
    fn put(&mut self, how: impl Narrow, block: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]);
    /// Makes `LANES` columns of two rows zero.
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize);
}

/// They stay in the block, in f32.
pub(super) struct InPlace;

impl Write for InPlace {
    type Kept = f32;

    #[inline(always)]
    fn put(&mut self, _: impl Narrow, block: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        block[row * STRIDE + c..][..narrow::LANES].copy_from_slice(&two[0]);
        block[(row + 1) * STRIDE + c..][..narrow::LANES].copy_from_slice(&two[1]);
    }
    #[inline(always)]
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize) {
        lanes(block, row, c).fill(0.0);
        lanes(block, row + 1, c).fill(0.0);
    }
}

/// They stay in the block, rounded to bf16 in f32; neighbours change places if `S` says so, of rows or of columns.
pub(super) struct Rounded<S>(pub(super) PhantomData<S>);

/// Which neighbours change places.
pub(super) trait Swap {
    const ROWS: bool;
    const COLUMNS: bool;
}
/// None.
pub(super) struct NoSwap;
/// Rows `2n` and `2n + 1`.
pub(super) struct SwapRows;
/// Columns `2n` and `2n + 1`.
pub(super) struct SwapColumns;

impl Swap for NoSwap {
    const ROWS: bool = false;
    const COLUMNS: bool = false;
}
impl Swap for SwapRows {
    const ROWS: bool = true;
    const COLUMNS: bool = false;
}
impl Swap for SwapColumns {
    const ROWS: bool = false;
    const COLUMNS: bool = true;
}

/// Sixteen values with neighbours in each other's places.
#[inline(always)]
fn swapped(x: narrow::Lanes) -> narrow::Lanes {
    let mut out = [0f32; narrow::LANES];
    for l in 0..narrow::LANES {
        out[l] = x[l ^ 1];
    }
    out
}

impl<S: Swap> Write for Rounded<S> {
    type Kept = bf16;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, block: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let [mut first, mut second] = [how.round::<bf16>(two[0]), how.round::<bf16>(two[1])];
        if S::COLUMNS {
            (first, second) = (swapped(first), swapped(second));
        }
        if S::ROWS {
            (first, second) = (second, first);
        }
        InPlace.put(how, block, row, c, [first, second]);
    }
    #[inline(always)]
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize) {
        InPlace.clear(block, row, c);
    }
}

/// As [`Rounded`] with columns swapped, and in another block with rows swapped.
pub(super) struct RoundedTwice<'a>(pub(super) &'a mut [f32]);

impl Write for RoundedTwice<'_> {
    type Kept = bf16;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, block: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let two = [how.round::<bf16>(two[0]), how.round::<bf16>(two[1])];
        InPlace.put(how, block, row, c, [swapped(two[0]), swapped(two[1])]);
        InPlace.put(how, self.0, row, c, [two[1], two[0]]);
    }
    #[inline(always)]
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize) {
        InPlace.clear(block, row, c);
        InPlace.clear(self.0, row, c);
    }
}

/// Rounded to bf16, row by row.
pub(super) struct Rows<'a>(pub(super) &'a mut [bf16]);

impl Write for Rows<'_> {
    type Kept = bf16;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, _: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let two = how.two(two[0], two[1]);
        self.0[row * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.first);
        self.0[(row + 1) * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.second);
    }
    #[inline(always)]
    fn clear(&mut self, _: &mut [f32], row: usize, c: usize) {
        self.0[row * STRIDE + c..][..LANES].fill(bf16::ZERO);
        self.0[(row + 1) * STRIDE + c..][..LANES].fill(bf16::ZERO);
    }
}

/// Rounded to bf16, rows two by two, a row of pairs of each two, the even row in the lower half.
pub(super) struct Pairs<'a>(pub(super) &'a mut [u32]);

impl Write for Pairs<'_> {
    type Kept = bf16;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, _: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let two = how.two(two[0], two[1]);
        self.0[row / 2 * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.pairs);
    }
    #[inline(always)]
    fn clear(&mut self, _: &mut [f32], row: usize, c: usize) {
        self.0[row / 2 * STRIDE + c..][..LANES].fill(0);
    }
}

/// As [`Rows`] and as [`Pairs`].
pub(super) struct RowsAndPairs<'a>(pub(super) &'a mut [bf16], pub(super) &'a mut [u32]);

impl Write for RowsAndPairs<'_> {
    type Kept = bf16;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, _: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let two = how.two(two[0], two[1]);
        self.0[row * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.first);
        self.0[(row + 1) * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.second);
        self.1[row / 2 * STRIDE + c..][..narrow::LANES].copy_from_slice(&two.pairs);
    }
    #[inline(always)]
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize) {
        Rows(&mut *self.0).clear(block, row, c);
        Pairs(&mut *self.1).clear(block, row, c);
    }
}

/// The part of `limits` inside columns `c..c + LANES`, relative to `c`.
#[inline(always)]
fn within(limits: (u32, u32), c: usize) -> (u32, u32) {
    let clip = |v: u32| v.saturating_sub(c as u32).min(LANES as u32);
    (clip(limits.0), clip(limits.1))
}

#[inline(always)]
fn lanes(block: &mut [f32], row: usize, c: usize) -> &mut [f32; LANES] {
    (&mut block[row * STRIDE + c..][..LANES]).try_into().expect("a slice of LANES")
}

#[inline(always)]
fn sixteen(block: &[f32], row: usize, c: usize) -> narrow::Lanes {
    block[row * STRIDE + c..][..narrow::LANES].try_into().expect("a slice of sixteen")
}

/// Whether scores are nothing but products times a positive scale, so that the largest product is the largest score.
#[inline(always)]
fn plain(options: &Options, tilt: &Tilt) -> bool {
    options.softcap.is_none() && tilt.is_level() && options.scale > 0.0
}

/// What [`softmax`] multiplies a block's scores by, as powers of two: the scale, or 1 where scores had to be worked out first.
#[inline(always)]
pub(super) fn factor(options: &Options, tilt: &Tilt) -> f32 {
    if plain(options, tilt) { options.scale * LOG2_E } else { LOG2_E }
}

/// Caps and tilts a row of scaled scores.
#[inline(always)]
fn work_out(x: &mut [f32; LANES], row: usize, c: usize, options: &Options, tilt: Tilt) {
    let scale = options.scale;
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
}

/// The rows for which some of the columns `c..c + LANES` are visible, and the rows for which all of them are. Both ends of
/// the limits ascend from row to row, except padding rows at the end.
#[inline(always)]
fn spans(limits: &[(u32, u32)], c: usize) -> (Range<usize>, Range<usize>) {
    let (left, right) = (c as u32, (c + LANES) as u32);
    let count = limits.iter().rposition(|l| l.0 < l.1).map_or(0, |last| last + 1);
    let before = |rule: &dyn Fn(&(u32, u32)) -> bool| limits[..count].partition_point(rule);
    let seen = before(&|l| l.1 <= left)..before(&|l| l.0 < right);
    let whole = before(&|l| l.1 < right)..before(&|l| l.0 <= left);
    (seen.start..seen.end.max(seen.start), whole.start..whole.end.max(whole.start))
}

/// How weights are rounded. Those that are no normal number stay so, unlike what [`Narrow::of_results`] is for, but nothing
/// other than a product takes them, and products take them for zero.
#[inline(always)]
fn of_weights(how: impl Narrow) -> impl Narrow {
    how.of_results()
}

/// Turns scores into `exp(score − max)` and updates maxima and sums.
///
/// Hidden pairs become 0. `limits` has an even number of rows. What comes out goes to `to`.
#[inline(always)]
pub(super) fn softmax<W: Write>(
    how: impl Narrow,
    block: &mut [f32],
    mut to: W,
    columns: usize,
    limits: &[(u32, u32)],
    options: &Options,
    tilt: Tilt,
    run: &mut Running,
) {
    let (plain, factor) = (plain(options, &tilt), factor(options, &tilt));
    let how = of_weights(how);
    for c in (0..columns).step_by(LANES) {
        let (seen, whole) = spans(limits, c);
        let old: [f32; LANES] = run.max[c..][..LANES].try_into().expect("a slice of LANES");
        let mut max = old;
        // The last rows were made last, so they are nearest.
        let whole = if plain { whole } else { 0..0 };
        for row in seen.clone().rev().filter(|row| !whole.contains(row)) {
            cover(lanes(block, row, c), row, c, within(limits[row], c), plain, options, tilt);
            larger(&mut max, lanes(block, row, c));
        }
        for row in whole.rev() {
            larger(&mut max, lanes(block, row, c));
        }
        // A neighbour of a row that is seen; of it no product was made, perhaps.
        let pairs = seen.start / 2 * 2..seen.end.next_multiple_of(2);
        for row in [pairs.start..seen.start, seen.end..pairs.end].into_iter().flatten() {
            lanes(block, row, c).fill(f32::NEG_INFINITY);
        }
        // A query that has seen nothing yet subtracts 0, because -inf - -inf is NaN.
        let mut sum: [f32; LANES] = run.sum[c..][..LANES].try_into().expect("a slice of LANES");
        let (mut shift, mut correction) = ([0f32; LANES], [0f32; LANES]);
        for l in 0..LANES {
            shift[l] = if max[l] == f32::NEG_INFINITY { 0.0 } else { max[l] * factor };
            correction[l] = exp2(old[l].mul_add(factor, -shift[l]));
            sum[l] *= correction[l];
        }
        for row in (0..pairs.start).chain(pairs.end..limits.len()).step_by(2) {
            to.clear(block, row, c);
        }
        for row in pairs.step_by(2) {
            for v in (0..LANES).step_by(narrow::LANES) {
                let (mut first, mut second) = (sixteen(block, row, c + v), sixteen(block, row + 1, c + v));
                for l in 0..narrow::LANES {
                    first[l] = first[l].mul_add(factor, -shift[v + l]);
                    second[l] = second[l].mul_add(factor, -shift[v + l]);
                }
                [first, second] = how.powers_of_two::<W::Kept>([first, second]);
                for l in 0..narrow::LANES {
                    sum[v + l] = sum[v + l] + first[l] + second[l];
                }
                to.put(how, block, row, c + v, [first, second]);
            }
        }
        run.max[c..][..LANES].copy_from_slice(&max);
        run.sum[c..][..LANES].copy_from_slice(&sum);
        run.correction[c..][..LANES].copy_from_slice(&correction);
    }
}

/// Works out the scores of a row from column `c` on, and hides those outside the limits.
#[inline(always)]
fn cover(
    x: &mut [f32; LANES],
    row: usize,
    c: usize,
    (first, end): (u32, u32),
    plain: bool,
    options: &Options,
    tilt: Tilt,
) {
    if !plain {
        work_out(x, row, c, options, tilt);
    }
    for l in 0..LANES {
        let seen = (l as u32).wrapping_sub(first) < end - first;
        x[l] = if seen { x[l] } else { f32::NEG_INFINITY };
    }
}

#[inline(always)]
fn larger(max: &mut [f32; LANES], x: &[f32; LANES]) {
    for l in 0..LANES {
        max[l] = if x[l] > max[l] { x[l] } else { max[l] };
    }
}

/// Scales rows of the accumulated output by the corrections of their queries.
#[inline(always)]
pub(super) fn rescale(out: &mut [f32], width: usize, correction: &[f32]) {
    for (row, &c) in out.chunks_exact_mut(width).zip(correction) {
        if c != 1.0 {
            for v in row {
                *v *= c;
            }
        }
    }
}

/// Turns scores into probabilities, and gradients of probabilities into gradients of scores.
///
/// `p = exp(score − lse)`, `ds = p · (dp − delta)`, times the slope of the cap; `lse` in powers of two. Hidden pairs become
/// 0. `limits` has an even number of rows.
#[inline(always)]
pub(super) fn gradient<P: Write, S: Write>(
    how: impl Narrow,
    scores: &mut [f32],
    dp: &mut [f32],
    mut p_to: P,
    mut ds_to: S,
    columns: usize,
    limits: &[(u32, u32)],
    options: &Options,
    tilt: Tilt,
    lse: &[f32; BQ],
    delta: &[f32; BQ],
) {
    let how = of_weights(how);
    let bent = options.softcap.is_some() || !tilt.is_level();
    for c in (0..columns).step_by(LANES) {
        for row in (0..limits.len()).step_by(2) {
            let edges = [within(limits[row], c), within(limits[row + 1], c)];
            if edges[0].0 >= edges[0].1 && edges[1].0 >= edges[1].1 {
                p_to.clear(scores, row, c);
                ds_to.clear(dp, row, c);
                continue;
            }
            let whole = edges[0] == (0, LANES as u32) && edges[1] == edges[0];
            for v in (0..LANES).step_by(narrow::LANES) {
                let at = c + v;
                let (lse, delta) = (sixteen(lse, 0, at), sixteen(delta, 0, at));
                let s = [sixteen(scores, row, at), sixteen(scores, row + 1, at)];
                let g = [sixteen(dp, row, at), sixteen(dp, row + 1, at)];
                if whole && !bent {
                    let (p, ds) = level_slopes::<P>(how, s, g, lse, delta, options);
                    p_to.put(how, scores, row, at, p);
                    ds_to.put(how, dp, row, at, ds);
                    continue;
                }
                let ([p0, p1], [ds0, ds1]) = match bent {
                    false => level_slopes::<P>(how, s, g, lse, delta, options),
                    true => bent_slopes::<P>(how, s, g, lse, delta, options, tilt, row, at),
                };
                let (p0, ds0) = (seen(p0, edges[0], v), seen(ds0, edges[0], v));
                let (p1, ds1) = (seen(p1, edges[1], v), seen(ds1, edges[1], v));
                p_to.put(how, scores, row, at, [p0, p1]);
                ds_to.put(how, dp, row, at, [ds0, ds1]);
            }
        }
    }
}

/// Sixteen probabilities of two rows and gradients of their scores, of products `s` and gradients `g` of probabilities, where
/// scores are products times a scale.
#[inline(always)]
fn level_slopes<P: Write>(
    how: impl Narrow,
    s: [narrow::Lanes; 2],
    g: [narrow::Lanes; 2],
    lse: narrow::Lanes,
    delta: narrow::Lanes,
    options: &Options,
) -> ([narrow::Lanes; 2], [narrow::Lanes; 2]) {
    const N: usize = narrow::LANES;
    let factor = options.scale * LOG2_E;
    let (mut x, mut ds) = (s, g);
    for r in 0..2 {
        for l in 0..N {
            x[r][l] = s[r][l].mul_add(factor, -lse[l]);
        }
    }
    let p = how.powers_of_two::<P::Kept>(x);
    for r in 0..2 {
        for l in 0..N {
            ds[r][l] = p[r][l] * (g[r][l] - delta[l]);
        }
    }
    (p, ds)
}

/// The same where scores are capped or tilted.
#[inline(always)]
fn bent_slopes<P: Write>(
    how: impl Narrow,
    s: [narrow::Lanes; 2],
    g: [narrow::Lanes; 2],
    lse: narrow::Lanes,
    delta: narrow::Lanes,
    options: &Options,
    tilt: Tilt,
    row: usize,
    column: usize,
) -> ([narrow::Lanes; 2], [narrow::Lanes; 2]) {
    const N: usize = narrow::LANES;
    let factor = options.scale * LOG2_E;
    let (mut x, mut slope, mut ds) = (s, [[1f32; N]; 2], g);
    for r in 0..2 {
        let most = tilt.row(row + r).unwrap_or(0.0);
        for l in 0..N {
            let added = most - tilt.slope * (column + l) as f32;
            match options.softcap {
                None => x[r][l] = s[r][l].mul_add(factor, added.mul_add(LOG2_E, -lse[l])),
                Some(cap) => {
                    let t = tanh(s[r][l] * options.scale / cap);
                    x[r][l] = (cap * t + added).mul_add(LOG2_E, -lse[l]);
                    slope[r][l] = 1.0 - t * t;
                }
            }
        }
    }
    let p = how.powers_of_two::<P::Kept>(x);
    for r in 0..2 {
        for l in 0..N {
            ds[r][l] = p[r][l] * (g[r][l] - delta[l]) * slope[r][l];
        }
    }
    (p, ds)
}

/// Sixteen values from column `v` on, zero outside the limits.
#[inline(always)]
fn seen(x: narrow::Lanes, (first, end): (u32, u32), v: usize) -> narrow::Lanes {
    let mut out = [0f32; narrow::LANES];
    for l in 0..narrow::LANES {
        let seen = ((v + l) as u32).wrapping_sub(first) < end.saturating_sub(first);
        out[l] = if seen { x[l] } else { 0.0 };
    }
    out
}

/// Writes rows of sums, each times its scale.
#[inline(always)]
pub(super) fn store_rows<E: Element>(how: impl Narrow, to: &mut [&mut [E]], sums: &[f32], scales: &[f32]) {
    let width = to.first().map_or(1, |row| row.len());
    for ((to, sums), &scale) in to.iter_mut().zip(sums.chunks_exact(width)).zip(scales) {
        let (chunks, rest) = to.as_chunks_mut::<{ narrow::LANES }>();
        let (sums, sums_rest) = sums.as_chunks();
        for (to, sums) in chunks.iter_mut().zip(sums) {
            store_scaled(how, to, sums, scale);
        }
        if !rest.is_empty() {
            let mut last = [E::default(); narrow::LANES];
            store_scaled(how, &mut last, &narrow::filled(sums_rest), scale);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

#[inline(always)]
fn store_scaled<E: Element>(how: impl Narrow, to: &mut [E; narrow::LANES], sums: &narrow::Lanes, scale: f32) {
    let mut values = *sums;
    for l in 0..narrow::LANES {
        values[l] *= scale;
    }
    how.store(to, values);
}

/// Log-sum-exps of the queries, whose largest scores wait without their factor, and the factors of their output.
#[inline(always)]
pub(super) fn finish(lse: &mut [f32; BQ], scales: &mut [f32; BQ], run: &Running, factor: f32) {
    for i in 0..BQ {
        let max = f64::from(run.max[i] * factor) * std::f64::consts::LN_2;
        lse[i] = (max + ln(f64::from(run.sum[i]))) as f32;
    }
    for i in 0..BQ {
        // Sums of hidden pairs alone are no more than denormals, which not every processor takes for 0.
        scales[i] = if run.sum[i] >= f32::MIN_POSITIVE { 1.0 / run.sum[i] } else { 0.0 };
    }
}
