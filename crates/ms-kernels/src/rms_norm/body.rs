//! The fast bodies; one row at a time, 32 elements, sixteen partial sums.

use super::Options;
use crate::Element;
use crate::element::is_bf16;
use crate::narrow::{LANES, Lanes, Narrow, filled, joined, split_two, widen_two};
use crate::prefetch::{fetch, sees_streams};
use std::hint::black_box;

const TWO: usize = 2 * LANES;

/// Sums sixteen lanes in a fixed tree.
#[inline(always)]
pub(crate) fn lane_sum(mut acc: [f32; LANES]) -> f32 {
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for l in 0..n {
            acc[l] += acc[l + n];
        }
    }
    acc[0]
}

/// Elements in summation order: adjacent, or as [`split_two`] orders them.
#[inline(always)]
fn taken<E: Element, N: Narrow>(_: N, from: &[E; TWO]) -> [Lanes; 2] {
    if N::BESIDE { widen_two(from) } else { split_two(from) }
}

/// What [`taken`] gives, in the order of the elements.
#[inline(always)]
fn ordered<E: Element, N: Narrow>(_: N, taken: [Lanes; 2]) -> [Lanes; 2] {
    if N::BESIDE { taken } else { joined::<E>(taken) }
}

#[inline(always)]
fn sum_squares<E: Element, N: Narrow>(how: N, x: &[E]) -> f32 {
    let mut acc = [[0f32; LANES]; 2];
    let (blocks, tail) = x.as_chunks::<TWO>();
    for b in blocks {
        for (acc, x) in acc.iter_mut().zip(&taken(how, b)) {
            for l in 0..LANES {
                acc[l] = x[l].mul_add(x[l], acc[l]);
            }
        }
    }
    // Seen as arrays in memory the lanes stay in registers above.
    let mut acc = ordered::<E, N>(how, black_box(acc));
    for (i, v) in tail.iter().enumerate() {
        let v = v.to_f32();
        let a = &mut acc[i / LANES][i % LANES];
        *a = v.mul_add(v, *a);
    }
    let [mut both, other] = acc;
    for l in 0..LANES {
        both[l] += other[l];
    }
    lane_sum(both)
}

/// The factors that widened weights stand for.
#[inline(always)]
fn scales(mut w: [Lanes; 2], unit_offset: bool) -> [Lanes; 2] {
    if unit_offset {
        for w in &mut w {
            for l in 0..LANES {
                w[l] += 1.0;
            }
        }
    }
    w
}

/// `y = w · x · rstd`, the product of `x` and `rstd` rounded.
#[inline(always)]
pub(crate) fn scaled<E: Element>(
    how: impl Narrow,
    y: &mut [E],
    x: &[E],
    rstd: f32,
    w: &[E],
    unit_offset: bool,
) {
    let (how, width) = (how.of_results(), x.len());
    let ((y, y_rest), (x, x_rest)) = (y.as_chunks_mut::<TWO>(), x.as_chunks::<TWO>());
    let (w, w_rest) = w.as_chunks::<TWO>();
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        // The next row, whose sum of squares is computed next.
        fetch(x.as_ptr().wrapping_add(width));
        scaled_chunk(how, y, x, rstd, w, unit_offset);
    }
    if !y_rest.is_empty() {
        let mut last = [E::default(); TWO];
        scaled_chunk(how, &mut last, &filled(x_rest), rstd, &filled(w_rest), unit_offset);
        y_rest.copy_from_slice(&last[..y_rest.len()]);
    }
}

#[inline(always)]
fn scaled_chunk<E: Element>(
    how: impl Narrow,
    y: &mut [E; TWO],
    x: &[E; TWO],
    rstd: f32,
    w: &[E; TWO],
    unit_offset: bool,
) {
    let (mut x, w) = (split_two(x), scales(split_two(w), unit_offset));
    for x in &mut x {
        for l in 0..LANES {
            x[l] *= rstd;
        }
    }
    let mut normal = how.round_split::<E>(x);
    for (normal, w) in normal.iter_mut().zip(&w) {
        for l in 0..LANES {
            normal[l] *= w[l];
        }
    }
    how.store_split(y, normal, false);
}

#[inline(always)]
fn normalise<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], w: &[E], options: &Options) -> f32 {
    let rstd = 1.0 / (sum_squares(how, x) / x.len() as f32 + options.eps).sqrt();
    scaled(how, y, x, rstd, w, options.unit_offset);
    rstd
}

#[inline(always)]
pub(super) fn forward<E: Element>(
    how: impl Narrow,
    y: &mut [E],
    rstd: &mut [f32],
    x: &[E],
    w: &[E],
    options: &Options,
) {
    let width = w.len();
    for (t, r) in rstd.iter_mut().enumerate() {
        let row = t * width..(t + 1) * width;
        *r = normalise(how, &mut y[row.clone()], &x[row], w, options);
    }
}

/// `sum = x + residual`.
#[inline(always)]
fn add<E: Element>(how: impl Narrow, sum: &mut [E; TWO], x: &[E; TWO], residual: &[E; TWO]) {
    let (mut x, residual) = (split_two(x), split_two(residual));
    for (x, residual) in x.iter_mut().zip(&residual) {
        for l in 0..LANES {
            x[l] += residual[l];
        }
    }
    how.store_split(sum, x, false);
}

#[inline(always)]
pub(super) fn forward_add<E: Element>(
    how: impl Narrow,
    y: &mut [E],
    sum: &mut [E],
    rstd: &mut [f32],
    x: &[E],
    residual: &[E],
    w: &[E],
    options: &Options,
) {
    let (width, how) = (w.len(), how.of_results());
    for (t, r) in rstd.iter_mut().enumerate() {
        let row = t * width..(t + 1) * width;
        let s = &mut sum[row.clone()];
        let (chunks, rest) = s.as_chunks_mut::<TWO>();
        let (x, x_rest) = x[row.clone()].as_chunks::<TWO>();
        let (residual, residual_rest) = residual[row.clone()].as_chunks::<TWO>();
        for ((sum, x), residual) in chunks.iter_mut().zip(x).zip(residual) {
            add(how, sum, x, residual);
        }
        if !rest.is_empty() {
            let mut last = [E::default(); TWO];
            add(how, &mut last, &filled(x_rest), &filled(residual_rest));
            rest.copy_from_slice(&last[..rest.len()]);
        }
        *r = normalise(how, &mut y[row], s, w, options);
    }
}

/// The first or the second sixteen of the elements of [`taken`], of bf16 that were split the even ones first.
#[inline(always)]
fn half_of<E: Element, N: Narrow>(_: N, split: &[Lanes; 2], half: usize) -> Lanes {
    if N::BESIDE || !is_bf16::<E>() {
        return split[half];
    }
    let mut lanes = [0f32; LANES];
    let (even, odd) = lanes.split_at_mut(LANES / 2);
    even.copy_from_slice(&split[0][half * LANES / 2..][..LANES / 2]);
    odd.copy_from_slice(&split[1][half * LANES / 2..][..LANES / 2]);
    lanes
}

/// What [`half_of`] has put in its order, in that of the elements.
#[inline(always)]
fn halves_joined<E: Element, N: Narrow>(_: N, acc: Lanes) -> Lanes {
    if N::BESIDE {
        return acc;
    }
    let mut split = [acc; 2];
    if is_bf16::<E>() {
        split[1][..LANES / 2].copy_from_slice(&acc[LANES / 2..]);
    }
    joined::<E>(split)[0]
}

/// Adds to `Σ w·dy·x`, in the order of [`half_of`], and `dy · norm(x)` to the gradient of the weights, in that of [`taken`].
#[inline(always)]
fn gather<E: Element, N: Narrow>(
    how: N,
    acc: &mut Lanes,
    dw: &mut [f32; TWO],
    (dy, x, w): (&[E; TWO], &[E; TWO], &[E; TWO]),
    rstd: f32,
    unit_offset: bool,
) {
    let (g, mut v, w) = (taken(how, dy), taken(how, x), scales(taken(how, w), unit_offset));
    let mut weighted = g;
    for (g, w) in weighted.iter_mut().zip(&w) {
        for l in 0..LANES {
            g[l] *= w[l];
        }
    }
    for half in 0..2 {
        let (g, v) = (half_of::<E, N>(how, &weighted, half), half_of::<E, N>(how, &v, half));
        for l in 0..LANES {
            acc[l] = g[l].mul_add(v[l], acc[l]);
        }
    }
    for v in &mut v {
        for l in 0..LANES {
            v[l] *= rstd;
        }
    }
    let normal = if N::BESIDE { how.round_two::<E>(v) } else { how.round_split::<E>(v) };
    let (dw, _) = dw.as_chunks_mut::<LANES>();
    for ((g, normal), dw) in g.iter().zip(&normal).zip(dw) {
        let mut sums = *dw;
        for l in 0..LANES {
            sums[l] = g[l].mul_add(normal[l], sums[l]);
        }
        how.store(dw, sums);
    }
}

/// `dx = x · c + w · dy · rstd`, and what comes by the residual stream.
#[inline(always)]
fn spread<E: Element>(
    how: impl Narrow,
    dx: &mut [E; TWO],
    (dy, x, w): (&[E; TWO], &[E; TWO], &[E; TWO]),
    dresidual: Option<&[E; TWO]>,
    (c, rstd): (f32, f32),
    unit_offset: bool,
) {
    let (g, mut v, w) = (split_two(dy), split_two(x), scales(split_two(w), unit_offset));
    for ((g, v), w) in g.iter().zip(&mut v).zip(&w) {
        for l in 0..LANES {
            v[l] = v[l].mul_add(c, g[l] * w[l] * rstd);
        }
    }
    if let Some(d) = dresidual {
        for (v, d) in v.iter_mut().zip(&split_two(d)) {
            for l in 0..LANES {
                v[l] += d[l];
            }
        }
    }
    how.store_split(dx, v, false);
}

/// The gradient of the weights must be zero: until the end it has the order of [`taken`].
#[inline(always)]
pub(super) fn backward<E: Element>(
    how: impl Narrow,
    dx: &mut [E],
    dw: &mut [f32],
    dy: &[E],
    x: &[E],
    w: &[E],
    rstd: &[f32],
    dresidual: Option<&[E]>,
    options: &Options,
) {
    let (width, offset, how) = (w.len(), options.unit_offset, how.of_results());
    let ask = !sees_streams();
    let (dw, dw_rest) = dw.as_chunks_mut::<TWO>();
    let (w, w_rest) = w.as_chunks::<TWO>();
    let (mut dw_last, w_last) = ([0f32; TWO], filled(w_rest));
    for (t, &r) in rstd.iter().enumerate() {
        let row = t * width..(t + 1) * width;
        let ((dy, dy_rest), (x, x_rest)) =
            (dy[row.clone()].as_chunks::<TWO>(), x[row.clone()].as_chunks::<TWO>());
        let (dy_last, x_last) = (filled(dy_rest), filled(x_rest));
        let mut acc = [0f32; LANES];
        for (((dw, dy), x), w) in dw.iter_mut().zip(dy).zip(x).zip(w) {
            gather(how, &mut acc, dw, (dy, x, w), r, offset);
        }
        if !dw_rest.is_empty() {
            gather(how, &mut acc, &mut dw_last, (&dy_last, &x_last, &w_last), r, offset);
        }
        // Seen as an array in memory the lanes stay in registers above.
        let sum = lane_sum(halves_joined::<E, _>(how, black_box(acc)));
        let c = -(sum * r * r * r) / width as f32;
        let (dx, dx_rest) = dx[row.clone()].as_chunks_mut::<TWO>();
        let operands = dx.iter_mut().zip(dy.iter().zip(x).zip(w));
        let d_last;
        let last = if let Some(d) = dresidual {
            let (d, d_rest) = d[row].as_chunks::<TWO>();
            for ((dx, ((dy, x), w)), d) in operands.zip(d) {
                spread(how, dx, (dy, x, w), Some(d), (c, r), offset);
            }
            d_last = filled(d_rest);
            Some(&d_last)
        } else {
            for (dx, ((dy, x), w)) in operands {
                if ask {
                    // The next row.
                    let lines = [dx.as_ptr(), dy.as_ptr(), x.as_ptr()];
                    lines.into_iter().for_each(|line| fetch(line.wrapping_add(width)));
                }
                spread(how, dx, (dy, x, w), None, (c, r), offset);
            }
            None
        };
        if !dx_rest.is_empty() {
            let mut to = [E::default(); TWO];
            spread(how, &mut to, (&dy_last, &x_last, &w_last), last, (c, r), offset);
            dx_rest.copy_from_slice(&to[..dx_rest.len()]);
        }
    }
    for dw in dw {
        put_in_order::<E, _>(how, dw);
    }
    put_in_order::<E, _>(how, &mut dw_last);
    dw_rest.copy_from_slice(&dw_last[..dw_rest.len()]);
}

/// [`ordered`] of two interleaved rows.
#[inline(always)]
fn put_in_order<E: Element, N: Narrow>(how: N, all: &mut [f32; TWO]) {
    if !N::BESIDE {
        let (rows, _) = all.as_chunks_mut();
        let both = ordered::<E, N>(how, [rows[0], rows[1]]);
        rows.copy_from_slice(&both);
    }
}

/// Adds rows of partial sums to `sum`, first row first.
#[inline(always)]
pub(super) fn add_partials(sum: &mut [f32], partials: &[f32]) {
    let width = sum.len();
    if width == 0 {
        return;
    }
    for part in partials.chunks_exact(width) {
        for (s, p) in sum.iter_mut().zip(part) {
            *s += p;
        }
    }
}
