//! The fast bodies; one row at a time, sixteen partial sums.

use super::Options;
use crate::Element;

const LANES: usize = 16;

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
    let mut both = acc[0];
    for l in 0..LANES {
        both[l] += acc[1][l];
    }
    lane_sum(both)
}

#[inline(always)]
fn scale<E: Element>(w: E, options: &Options) -> f32 {
    if options.unit_offset { 1.0 + w.to_f32() } else { w.to_f32() }
}

#[inline(always)]
fn normalise<E: Element>(y: &mut [E], x: &[E], w: &[E], options: &Options) -> f32 {
    let rstd = 1.0 / (sum_squares(x) / x.len() as f32 + options.eps).sqrt();
    let (y, x, w) = (&mut y[..w.len()], &x[..w.len()], w);
    for h in 0..w.len() {
        y[h] = E::from_f32(E::round(x[h].to_f32() * rstd) * scale(w[h], options));
    }
    rstd
}

#[inline(always)]
pub(super) fn forward<E: Element>(y: &mut [E], rstd: &mut [f32], x: &[E], w: &[E], options: &Options) {
    let width = w.len();
    for (t, r) in rstd.iter_mut().enumerate() {
        let row = t * width..(t + 1) * width;
        *r = normalise(&mut y[row.clone()], &x[row], w, options);
    }
}

#[inline(always)]
pub(super) fn forward_add<E: Element>(
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
        let (s, x, res) = (&mut sum[row.clone()], &x[row.clone()], &residual[row.clone()]);
        for h in 0..width {
            s[h] = E::from_f32(x[h].to_f32() + res[h].to_f32());
        }
        *r = normalise(&mut y[row], s, w, options);
    }
}

#[inline(always)]
pub(super) fn backward<E: Element>(
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
        let blocks = width / LANES * LANES;
        for b in (0..blocks).step_by(LANES) {
            let (gb, xb) = (&dy[b..b + LANES], &x[b..b + LANES]);
            let (wb, db) = (&w[b..b + LANES], &mut dw[b..b + LANES]);
            for l in 0..LANES {
                let (g, v) = (gb[l].to_f32(), xb[l].to_f32());
                acc[l] = (g * scale(wb[l], options)).mul_add(v, acc[l]);
                db[l] = g.mul_add(E::round(v * r), db[l]);
            }
        }
        for h in blocks..width {
            let (g, v) = (dy[h].to_f32(), x[h].to_f32());
            let l = h - blocks;
            acc[l] = (g * scale(w[h], options)).mul_add(v, acc[l]);
            dw[h] = g.mul_add(E::round(v * r), dw[h]);
        }
        let c = -(lane_sum(acc) * r * r * r) / width as f32;
        let dx = &mut dx[row.clone()];
        match dresidual {
            Some(dresidual) => {
                let dres = &dresidual[row];
                for h in 0..width {
                    let g = dy[h].to_f32() * scale(w[h], options) * r;
                    dx[h] = E::from_f32(x[h].to_f32().mul_add(c, g) + dres[h].to_f32());
                }
            }
            None => {
                for h in 0..width {
                    let g = dy[h].to_f32() * scale(w[h], options) * r;
                    dx[h] = E::from_f32(x[h].to_f32().mul_add(c, g));
                }
            }
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
