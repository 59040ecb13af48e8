//! The fast bodies; one row at a time, sixteen partial sums.

use super::Options;
use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow, map, padded, widen, zip};
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

#[inline(always)]
fn scale<E: Element>(w: E, options: &Options) -> f32 {
    if options.unit_offset { 1.0 + w.to_f32() } else { w.to_f32() }
}

#[inline(always)]
fn normalise<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], w: &[E], options: &Options) -> f32 {
    let rstd = 1.0 / (sum_squares(x) / x.len() as f32 + options.eps).sqrt();
    let scaled = |x: Lanes, w: Lanes| zip(how.round::<E>(x.map(|x| x * rstd)), w, |x, w| x * w);
    if options.unit_offset {
        map(how, y, [x, w], |[x, w]| scaled(x, w.map(|w| 1.0 + w)));
    } else {
        map(how, y, [x, w], |[x, w]| scaled(x, w));
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
        map(how, s, [&x[row.clone()], &residual[row.clone()]], |[x, r]| zip(x, r, |x, r| x + r));
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
        let mut add = |g: &[E; LANES], v: &[E; LANES], w: &[E; LANES], dw: &mut [f32]| {
            let (g, v) = (widen(g), widen(v));
            let normal = how.round::<E>(v.map(|v| v * r));
            for l in 0..LANES {
                acc[l] = (g[l] * scale(w[l], options)).mul_add(v[l], acc[l]);
            }
            for (l, dw) in dw.iter_mut().enumerate() {
                *dw = g[l].mul_add(normal[l], *dw);
            }
        };
        let whole = width / LANES;
        let chunks = |x| <[E]>::as_chunks::<LANES>(x).0;
        let (g, v, w_chunks) = (&chunks(dy)[..whole], &chunks(x)[..whole], &chunks(w)[..whole]);
        for (n, dw) in dw.as_chunks_mut::<LANES>().0.iter_mut().enumerate().take(whole) {
            add(&g[n], &v[n], &w_chunks[n], dw);
        }
        let rest = whole * LANES;
        if rest < width {
            add(&padded(&dy[rest..]), &padded(&x[rest..]), &padded(&w[rest..]), &mut dw[rest..]);
        }
        let c = -(lane_sum(black_box(acc)) * r * r * r) / width as f32;
        let dx = &mut dx[row.clone()];
        let by_x = |g: Lanes, v: Lanes, w: Lanes| {
            let w = w.map(|w| if options.unit_offset { 1.0 + w } else { w });
            zip(zip(g, w, |g, w| g * w * r), v, |g, v| v.mul_add(c, g))
        };
        match dresidual {
            Some(dresidual) => {
                map(how, dx, [dy, x, w, &dresidual[row]], |[g, v, w, d]| zip(by_x(g, v, w), d, |x, d| x + d));
            }
            None => map(how, dx, [dy, x, w], |[g, v, w]| by_x(g, v, w)),
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
