//! Everything that is not a matrix product: factors, their gradients, triangular systems.

use super::Step;
use crate::lanes::body::dot;
use crate::narrow::LANES;

/// `L`, rows `ld` apart, and `p`. Zero beyond a token's own rows, up to the end of the row.
#[inline(always)]
pub(super) fn factors(l: &mut [f32], ld: usize, p: &mut [f32], steps: &[Step], ranks: usize) {
    let mut product = 1.0;
    for (t, (step, p)) in steps.iter().zip(p).enumerate() {
        product *= step.decay;
        *p = product;
        let (seen, all) = (t * ranks, (t + 1) * ranks);
        let (before, rest) = l.split_at_mut(seen * ld);
        let (row, others) = rest.split_at_mut(ld);
        if t > 0 {
            let last = &before[(seen - 1) * ld..][..seen];
            for (to, from) in row.iter_mut().zip(last) {
                *to = step.decay * from;
            }
            for j in seen - ranks..seen {
                row[j] = step.decay * (last[j] + step.extra);
            }
        }
        row[seen..all].fill(step.unit);
        row[all..].fill(0.0);
        for other in others.chunks_exact_mut(ld).take(ranks - 1) {
            other.copy_from_slice(row);
        }
    }
}

/// `m = g ∘ l`, all `[n,n]` with rows `ld` apart.
#[inline(always)]
pub(super) fn weigh(m: &mut [f32], g: &[f32], l: &[f32], n: usize, ld: usize) {
    let rows = m.chunks_mut(ld).zip(g.chunks(ld)).zip(l.chunks(ld)).take(n);
    for ((m, g), l) in rows {
        for ((m, g), l) in m[..n].iter_mut().zip(&g[..n]).zip(&l[..n]) {
            *m = g * l;
        }
    }
}

/// From the gradient `d` by `g ∘ l`: `c += d ∘ g` (or `c = `, unless `add`) and `dg += d ∘ l`, all `[n,n]` with rows `ld` apart.
#[inline(always)]
pub(super) fn gather(
    c: &mut [f32],
    dg: &mut [f32],
    d: &[f32],
    g: &[f32],
    l: &[f32],
    n: usize,
    ld: usize,
    add: bool,
) {
    for i in 0..n {
        let (from, to) = (i * ld, i * ld + n);
        let (c, dg) = (&mut c[from..to], &mut dg[from..to]);
        let (d, g, l) = (&d[from..to], &g[from..to], &l[from..to]);
        if add {
            for j in 0..n {
                c[j] += d[j] * g[j];
            }
        } else {
            for j in 0..n {
                c[j] = d[j] * g[j];
            }
        }
        for j in 0..n {
            dg[j] += d[j] * l[j];
        }
    }
}

/// Gradients by the steps: `d`.
///
/// `by_row` holds those by `w`, `by_start` that by the last `p`; `c[i,j]` those by `L`, `f` those by `p`, a row each. `by_row`
/// and what is above the diagonal of `c` are used up.
#[inline(always)]
pub(super) fn adjoint(
    d: &mut [Step],
    by_row: &mut [f32],
    by_start: f32,
    c: &[f32],
    f: &[f32],
    l: &[f32],
    ld: usize,
    p: &[f32],
    steps: &[Step],
    ranks: usize,
) {
    let (mut start, n) = (by_start, by_row.len());
    for t in (0..steps.len()).rev() {
        let (seen, all, a) = (t * ranks, (t + 1) * ranks, steps[t].decay);
        for row in seen..all {
            for (g, c) in by_row[..all].iter_mut().zip(&c[row * ld..][..all]) {
                *g += c;
            }
            start += f[row];
        }
        let unit = by_row[seen..all].iter().sum();
        by_row[seen..all].fill(0.0);
        // Whole lanes: what follows is zero by now.
        let before = &mut by_row[..seen.next_multiple_of(LANES).min(n)];
        let decay = dot(before, &l[seen * ld..][..before.len()]) + start * p[t];
        before.iter_mut().for_each(|g| *g *= a);
        start *= a;
        let extra = if t > 0 { before[seen - ranks..seen].iter().sum() } else { 0.0 };
        d[t] = Step { decay, unit, extra };
    }
}

/// Rows of `x` times `by`, `ranks` rows each.
#[inline(always)]
pub(super) fn scale_rows(x: &mut [f32], width: usize, by: &[f32], ranks: usize) {
    for (rows, by) in x.chunks_mut(width * ranks).zip(by) {
        rows.iter_mut().for_each(|v| *v *= by);
    }
}

/// `to = by · from`, rows of `from` `stride` apart, `ranks` rows for each of `by`.
#[inline(always)]
pub(super) fn scaled_rows(
    to: &mut [f32],
    width: usize,
    from: &[f32],
    stride: usize,
    by: &[f32],
    ranks: usize,
) {
    for (i, to) in to.chunks_exact_mut(width).enumerate() {
        let by = by[i / ranks];
        to.iter_mut().zip(&from[i * stride..][..width]).for_each(|(to, from)| *to = by * from);
    }
}

/// `to += by · from`, `ranks` rows for each of `by`.
#[inline(always)]
pub(super) fn add_scaled_rows(to: &mut [f32], width: usize, from: &[f32], by: &[f32], ranks: usize) {
    for (i, (to, from)) in to.chunks_exact_mut(width).zip(from.chunks_exact(width)).enumerate() {
        let by = by[i / ranks];
        to.iter_mut().zip(from).for_each(|(to, from)| *to += by * from);
    }
}

/// `x = from − x`, rows of `from` `stride` apart.
#[inline(always)]
pub(super) fn subtract_from(x: &mut [f32], width: usize, from: &[f32], stride: usize) {
    for (i, x) in x.chunks_exact_mut(width).enumerate() {
        x.iter_mut().zip(&from[i * stride..][..width]).for_each(|(x, from)| *x = from - *x);
    }
}

/// `to = −from`.
#[inline(always)]
pub(super) fn negative(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = -from);
}

/// `out[i] = Σ_j a[i,j] · b[i,j]`.
#[inline(always)]
pub(super) fn row_dots(
    out: &mut [f32],
    a: &[f32],
    a_stride: usize,
    b: &[f32],
    b_stride: usize,
    width: usize,
) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = dot(&a[i * a_stride..][..width], &b[i * b_stride..][..width]);
    }
}

/// A matrix of rows of `columns` elements, transposed.
#[inline(always)]
pub(super) fn transposed(to: &mut [f32], from: &[f32], columns: usize) {
    let rows = from.len() / columns;
    for (i, row) in from.chunks_exact(columns).enumerate() {
        for (j, v) in row.iter().enumerate() {
            to[j * rows + i] = *v;
        }
    }
}

/// Calls `$work` for columns `$at..$at + W` of `$width`, in as wide pieces as stay in registers.
macro_rules! each_columns {
    ($width:expr, $work:ident($($arg:expr),*)) => {{
        let mut at = 0;
        while at + 64 <= $width {
            $work::<64>(at, $($arg),*);
            at += 64;
        }
        while at + LANES <= $width {
            $work::<LANES>(at, $($arg),*);
            at += LANES;
        }
        while at < $width {
            $work::<1>(at, $($arg),*);
            at += 1;
        }
    }};
}

/// Solves `e_i += −Σ_{j<i} n[i,j] u_j`, `u_i = β_i e_i` row by row; rows of `width`, those of `n` `ld` apart.
#[inline(always)]
pub(super) fn solve(e: &mut [f32], u: &mut [f32], width: usize, n: &[f32], ld: usize, beta: &[f32]) {
    each_columns!(width, solve_columns(e, u, width, n, ld, beta));
}

#[inline(always)]
fn solve_columns<const W: usize>(
    at: usize,
    e: &mut [f32],
    u: &mut [f32],
    width: usize,
    n: &[f32],
    ld: usize,
    beta: &[f32],
) {
    for (i, beta) in beta.iter().enumerate() {
        let (before, own) = u.split_at_mut(i * width);
        let e = &mut e[i * width + at..][..W];
        let mut acc = [0f32; W];
        acc.copy_from_slice(e);
        for (row, n) in before.chunks_exact(width).zip(&n[i * ld..]) {
            let row = &row[at..][..W];
            for l in 0..W {
                acc[l] = (-n).mul_add(row[l], acc[l]);
            }
        }
        e.copy_from_slice(&acc);
        for (u, e) in own[at..][..W].iter_mut().zip(&acc) {
            *u = beta * e;
        }
    }
}

/// Backward of [`solve`]: `de` holds the gradient with respect to `u`, on return that of `e`, and `dbeta` is added to.
#[inline(always)]
pub(super) fn solve_back(
    de: &mut [f32],
    dbeta: &mut [f32],
    e: &[f32],
    width: usize,
    n: &[f32],
    ld: usize,
    beta: &[f32],
) {
    each_columns!(width, solve_back_columns(de, dbeta, e, width, n, ld, beta));
}

#[inline(always)]
fn solve_back_columns<const W: usize>(
    at: usize,
    de: &mut [f32],
    dbeta: &mut [f32],
    e: &[f32],
    width: usize,
    n: &[f32],
    ld: usize,
    beta: &[f32],
) {
    for (i, beta) in beta.iter().enumerate().rev() {
        let (own, after) = de.split_at_mut((i + 1) * width);
        let own = &mut own[i * width + at..][..W];
        let mut acc = [0f32; W];
        acc.copy_from_slice(own);
        for (k, row) in after.chunks_exact(width).enumerate() {
            let n = n[(i + 1 + k) * ld + i];
            let row = &row[at..][..W];
            for l in 0..W {
                acc[l] = (-n).mul_add(row[l], acc[l]);
            }
        }
        dbeta[i] += dot(&acc, &e[i * width + at..][..W]);
        for (de, g) in own.iter_mut().zip(&acc) {
            *de = beta * g;
        }
    }
}
