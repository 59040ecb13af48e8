//! The fast bodies; one row at a time, sixteen partial sums.

use super::Options;
use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow, load, store};
use std::hint::black_box;

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

#[inline(always)]
fn sum_squares<E: Element>(x: &[E]) -> f32 {
    let mut acc = [[0f32; LANES]; 2];
    let (blocks, tail) = x.as_chunks::<{ 2 * LANES }>();
    for b in blocks {
        for (half, acc) in acc.iter_mut().enumerate() {
            for l in 0..LANES {
                let v = b[half * LANES + l].to_f32();
                acc[l] = v.mul_add(v, acc[l]);
            }
        }
    }
    for (i, v) in tail.iter().enumerate() {
        let v = v.to_f32();
        let a = &mut acc[i / LANES][i % LANES];
        *a = v.mul_add(v, *a);
    }
    // Seen as arrays in memory the lanes stay in registers above.
    let [mut both, other] = black_box(acc);
    for l in 0..LANES {
        both[l] += other[l];
    }
    lane_sum(both)
}

/// The factors that weights stand for.
#[inline(always)]
fn scales(w: Lanes, options: &Options) -> Lanes {
    let mut w = w;
    if options.unit_offset {
        for l in 0..LANES {
            w[l] += 1.0;
        }
    }
    w
}

#[inline(always)]
fn normalise<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], w: &[E], options: &Options) -> f32 {
    let rstd = 1.0 / (sum_squares(x) / x.len() as f32 + options.eps).sqrt();
    for n in 0..w.len().div_ceil(LANES) {
        let (mut x, w) = (load(x, n), scales(load(w, n), options));
        for l in 0..LANES {
            x[l] *= rstd;
        }
        let mut normal = how.round::<E>(x);
        for l in 0..LANES {
            normal[l] *= w[l];
        }
        store(how, y, n, normal);
    }
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
    let width = w.len();
    for (t, r) in rstd.iter_mut().enumerate() {
        let row = t * width..(t + 1) * width;
        let s = &mut sum[row.clone()];
        let (x, residual) = (&x[row.clone()], &residual[row.clone()]);
        for n in 0..width.div_ceil(LANES) {
            let (mut x, residual) = (load(x, n), load(residual, n));
            for l in 0..LANES {
                x[l] += residual[l];
            }
            store(how, s, n, x);
        }
        *r = normalise(how, &mut y[row], s, w, options);
    }
}

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
    let width = w.len();
    for (t, &r) in rstd.iter().enumerate() {
        let row = t * width..(t + 1) * width;
        let (dy, x) = (&dy[row.clone()], &x[row.clone()]);
        let mut acc = [0f32; LANES];
        for n in 0..width.div_ceil(LANES) {
            let (g, mut v, w) = (load(dy, n), load(x, n), scales(load(w, n), options));
            for l in 0..LANES {
                acc[l] = (g[l] * w[l]).mul_add(v[l], acc[l]);
                v[l] *= r;
            }
            let (mut sums, normal) = (load(dw, n), how.round::<E>(v));
            for l in 0..LANES {
                sums[l] = g[l].mul_add(normal[l], sums[l]);
            }
            store(how, dw, n, sums);
        }
        let c = -(lane_sum(black_box(acc)) * r * r * r) / width as f32;
        let dx = &mut dx[row.clone()];
        let dresidual = dresidual.map(|d| &d[row]);
        for n in 0..width.div_ceil(LANES) {
            let (g, mut v, w) = (load(dy, n), load(x, n), scales(load(w, n), options));
            for l in 0..LANES {
                v[l] = v[l].mul_add(c, g[l] * w[l] * r);
            }
            if let Some(d) = dresidual {
                let d = load(d, n);
                for l in 0..LANES {
                    v[l] += d[l];
                }
            }
            store(how, dx, n, v);
        }
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
