//! Factors of matrices, triangular systems, products of three-vectors, distances.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// Matrices of the last two dimensions, with their rows and columns.
fn matrices(k: &Call, name: &str) -> Result<(Vec<Vec<f64>>, usize, usize), Fault> {
    let v = k.t(name)?;
    let [.., m, n] = v.dims[..] else { return Err(Fault::from(format!("{name} {:?} is no matrix", v.dims))) };
    let (m, n) = (m as usize, n as usize);
    Ok((k.f(name)?.chunks((m * n).max(1)).map(<[f64]>::to_vec).collect(), m, n))
}

fn cholesky(k: &Call) -> Outcome {
    let (all, n, _) = matrices(k, "self")?;
    let upper = k.flag("upper")?;
    let mut out = Vec::new();
    for a in all {
        let mut l = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let s: f64 = (0..j).map(|p| l[i * n + p] * l[j * n + p]).sum();
                let v = if upper { a[j * n + i] } else { a[i * n + j] };
                l[i * n + j] = if i == j { (v - s).sqrt() } else { (v - s) / l[j * n + j] };
            }
        }
        out.extend(if upper { (0..n * n).map(|i| l[i % n * n + i / n]).collect() } else { l });
    }
    k.put("out", &Values::F(out))
}

/// Householder's reflections: `a` becomes the triangle, the result the full orthogonal matrix.
fn householder(a: &mut [f64], m: usize, n: usize) -> Vec<f64> {
    let mut q = vec![0.0; m * m];
    (0..m).for_each(|i| q[i * m + i] = 1.0);
    for c in 0..n.min(m.saturating_sub(1)) {
        let norm = (c..m).map(|r| a[r * n + c].powi(2)).sum::<f64>().sqrt();
        let below = (c + 1..m).any(|r| a[r * n + c] != 0.0);
        if norm == 0.0 || !below {
            continue;
        }
        let first = a[c * n + c];
        let target = if first >= 0.0 { -norm } else { norm };
        let mut v: Vec<f64> = (c..m).map(|r| a[r * n + c]).collect();
        v[0] -= target;
        let length: f64 = v.iter().map(|x| x * x).sum();
        for j in 0..n {
            let dot: f64 = (c..m).map(|r| v[r - c] * a[r * n + j]).sum();
            (c..m).for_each(|r| a[r * n + j] -= 2.0 * v[r - c] * dot / length);
        }
        for i in 0..m {
            let dot: f64 = (c..m).map(|r| v[r - c] * q[i * m + r]).sum();
            (c..m).for_each(|r| q[i * m + r] -= 2.0 * v[r - c] * dot / length);
        }
    }
    q
}

fn qr(k: &Call) -> Outcome {
    let (all, m, n) = matrices(k, "self")?;
    // 0 reduced, 1 complete, 2 the triangle alone.
    let mode = k.int("mode")?;
    let width = if mode == 1 { m } else { m.min(n) };
    let (mut qs, mut rs) = (Vec::new(), Vec::new());
    for mut a in all {
        let q = householder(&mut a, m, n);
        qs.extend((0..m * width).map(|i| q[i / width * m + i % width]));
        rs.extend((0..width * n).map(|i| if i / n > i % n { 0.0 } else { a[i] }));
    }
    if mode != 2 {
        k.put_opt("Q", &Values::F(qs))?;
    }
    k.put("R", &Values::F(rs))
}

/// One-sided Jacobi rotations on the columns of `[m,n]`, m ≥ n: columns u·σ, and v.
fn jacobi(a: &mut [f64], m: usize, n: usize) -> Vec<f64> {
    let mut v = vec![0.0; n * n];
    (0..n).for_each(|i| v[i * n + i] = 1.0);
    for _ in 0..60 {
        let mut off = 0.0f64;
        for p in 0..n {
            for q in p + 1..n {
                let dot =
                    |x: usize, y: usize, a: &[f64]| (0..m).map(|r| a[r * n + x] * a[r * n + y]).sum::<f64>();
                let (alpha, beta, gamma) = (dot(p, p, a), dot(q, q, a), dot(p, q, a));
                if gamma == 0.0 || gamma.abs() <= 1e-15 * (alpha * beta).sqrt() {
                    continue;
                }
                off = off.max(gamma.abs() / (alpha * beta).sqrt());
                let zeta = (beta - alpha) / (2.0 * gamma);
                let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let t = if zeta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (1.0 + t * t).sqrt();
                let s = c * t;
                let turn = |x: &mut [f64], rows: usize| {
                    for r in 0..rows {
                        let (a, b) = (x[r * n + p], x[r * n + q]);
                        x[r * n + p] = c * a - s * b;
                        x[r * n + q] = s * a + c * b;
                    }
                };
                turn(a, m);
                turn(&mut v, n);
            }
        }
        if off < 1e-14 {
            break;
        }
    }
    v
}

/// Left factor `[m,least]`, singular values, right factor `[n,least]` of a matrix.
pub(super) fn factors(a: &[f64], m: usize, n: usize) -> [Vec<f64>; 3] {
    // Tall: of a wide matrix the transpose, with the factors exchanged.
    let wide = m < n;
    let (rows, cols) = if wide { (n, m) } else { (m, n) };
    let mut x: Vec<f64> = if wide { (0..m * n).map(|i| a[i % m * n + i / m]).collect() } else { a.to_vec() };
    let v = jacobi(&mut x, rows, cols);
    let size = |c: usize| (0..rows).map(|r| x[r * cols + c].powi(2)).sum::<f64>().sqrt();
    let mut order: Vec<usize> = (0..cols).collect();
    order.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
    // Columns of length zero have no direction: any that is orthogonal to the others is right.
    let most = order.first().map_or(0.0, |c| size(*c));
    let rank = order.iter().take_while(|c| size(**c) > 1e-13 * most).count();
    let known: Vec<f64> =
        (0..rows * rank).map(|i| x[i / rank * cols + order[i % rank]] / size(order[i % rank])).collect();
    let left = completed(&known, rows, rank, cols);
    let right: Vec<f64> = (0..cols * cols).map(|i| v[i / cols * cols + order[i % cols]]).collect();
    let values = order.iter().map(|c| size(*c)).collect();
    let (u, w) = if wide { (right, left) } else { (left, right) };
    [u, values, w]
}

/// Further columns, orthogonal to those of `[rows,have]`, until there are `want`, at most as many as rows.
fn completed(q: &[f64], rows: usize, have: usize, want: usize) -> Vec<f64> {
    let mut columns: Vec<Vec<f64>> =
        (0..have).map(|c| (0..rows).map(|r| q[r * have + c]).collect()).collect();
    for unit in 0..rows {
        if columns.len() >= want {
            break;
        }
        let mut v: Vec<f64> = (0..rows).map(|r| f64::from(u8::from(r == unit))).collect();
        // Twice, for what rounding leaves.
        for _ in 0..2 {
            for c in &columns {
                let dot: f64 = c.iter().zip(&v).map(|(a, b)| a * b).sum();
                v.iter_mut().zip(c).for_each(|(v, c)| *v -= dot * c);
            }
        }
        let size = v.iter().map(|v| v * v).sum::<f64>().sqrt();
        if size > 1e-6 {
            columns.push(v.iter().map(|v| v / size).collect());
        }
    }
    (0..rows * want).map(|i| columns[i % want][i / want]).collect()
}

/// As [`factors`], with square outer factors.
pub(super) fn full_factors(a: &[f64], m: usize, n: usize) -> [Vec<f64>; 3] {
    let [u, s, v] = factors(a, m, n);
    let least = m.min(n);
    [completed(&u, m, least, m), s, completed(&v, n, least, n)]
}

fn svd(k: &Call) -> Outcome {
    let (all, m, n) = matrices(k, "input")?;
    let full = k.flag("fullMatrices")? && k.flag("computeUV")?;
    let (mut us, mut ss, mut vs) = (Vec::new(), Vec::new(), Vec::new());
    if full && m * n == 0 {
        // Of nothing: identities, as many as there are matrices.
        for (name, side) in [("u", m), ("v", n)] {
            let count = k.opt(name)?.map_or(0, View::numel);
            let one = |i: usize| f64::from(u8::from(i % (side * side) / side == i % side));
            k.put_opt(name, &Values::F((0..count).map(one).collect()))?;
        }
        return Ok(());
    }
    for a in all {
        let [u, s, v] = if full { full_factors(&a, m, n) } else { factors(&a, m, n) };
        us.extend(u);
        ss.extend(s);
        vs.extend(v);
    }
    k.put("sigma", &Values::F(ss))?;
    if k.flag("computeUV")? {
        k.put_opt("u", &Values::F(us))?;
        k.put_opt("v", &Values::F(vs))?;
    }
    Ok(())
}

/// A · x = self with A triangular.
fn triangular(k: &Call) -> Outcome {
    let (b, a, out) = (k.t("self")?, k.t("A")?, k.t("xOut")?);
    let [.., n, m] = out.dims[..] else { return Err(Fault::from("xOut is no matrix".to_owned())) };
    let (n, m) = (n as usize, m as usize);
    let lead = out.dims[..out.dims.len() - 2].to_vec();
    let full = |r: usize, c: usize| [lead.clone(), vec![r as i64, c as i64]].concat();
    let load = |v: &View, d: Vec<i64>| k.spread(v, &d).map(Values::floats);
    let (bs, factors) = (load(b, full(n, m))?, load(a, full(n, n))?);
    let (turned, unit) = (k.flag("transpose")?, k.flag("unitriangular")?);
    let upper = k.flag("upper")? != turned;
    let mut xs = bs;
    for (x, a) in xs.chunks_mut((n * m).max(1)).zip(factors.chunks((n * n).max(1))) {
        let at = |i: usize, j: usize| if turned { a[j * n + i] } else { a[i * n + j] };
        for step in 0..n {
            let i = if upper { n - 1 - step } else { step };
            let known = if upper { i + 1..n } else { 0..i };
            for c in 0..m {
                let s: f64 = known.clone().map(|j| at(i, j) * x[j * m + c]).sum();
                let d = if unit { 1.0 } else { at(i, i) };
                x[i * m + c] = (x[i * m + c] - s) / d;
            }
        }
    }
    k.put("xOut", &Values::F(xs))?;
    k.put_opt("mOut", &Values::F(load(a, k.t("mOut")?.dims.clone())?))
}

fn cross(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let (a, b) = (k.spread(k.t("self")?, &out.dims)?.floats(), k.spread(k.t("other")?, &out.dims)?.floats());
    let dim = k.int("dim")?.rem_euclid(out.dims.len() as i64) as usize;
    let step = out.dims[dim + 1..].iter().product::<i64>() as usize;
    let one = |i: usize| {
        let at = i / step % 3;
        let place = |o: usize| i - at * step + (at + o) % 3 * step;
        a[place(1)] * b[place(2)] - a[place(2)] * b[place(1)]
    };
    k.put("out", &Values::F((0..a.len()).map(one).collect()))
}

/// Σ |a − b|ᵖ to the power 1/p, the largest for infinite p, the number of differences for p 0.
pub(super) fn distance(d: impl Iterator<Item = f64>, p: f64) -> f64 {
    if p == 0.0 {
        d.filter(|v| *v != 0.0).count() as f64
    } else if p.is_infinite() {
        d.fold(0.0, |m, v| m.max(v.abs()))
    } else {
        d.map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p)
    }
}

struct Pairs {
    x: Vec<f64>,
    y: Vec<f64>,
    batch: usize,
    rows: usize,
    cols: usize,
    width: usize,
}

fn pairs(k: &Call, rows: usize, cols: usize, lead: &[i64]) -> Result<Pairs, Fault> {
    let (a, b) = (k.t("x1")?, k.t("x2")?);
    let width = *a.dims.last().unwrap_or(&1);
    let full = |r: usize| [lead.to_vec(), vec![r as i64, width]].concat();
    let (x, y) = (k.spread(a, &full(rows))?.floats(), k.spread(b, &full(cols))?.floats());
    Ok(Pairs { x, y, batch: lead.iter().product::<i64>() as usize, rows, cols, width: width as usize })
}

fn cdist(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let [lead @ .., rows, cols] = &out.dims[..] else {
        return Err(Fault::from("out is no matrix".to_owned()));
    };
    let s = pairs(k, *rows as usize, *cols as usize, lead)?;
    let p = k.num("p")?;
    let one = |i: usize| {
        let (b, r, c) = (i / (s.rows * s.cols), i / s.cols % s.rows, i % s.cols);
        let (x, y) = (&s.x[(b * s.rows + r) * s.width..], &s.y[(b * s.cols + c) * s.width..]);
        distance((0..s.width).map(|e| x[e] - y[e]), p)
    };
    k.put("out", &Values::F((0..s.batch * s.rows * s.cols).map(one).collect()))
}

fn cdist_grad(k: &Call) -> Outcome {
    let d = k.t("cdist")?;
    let [lead @ .., rows, cols] = &d.dims[..] else {
        return Err(Fault::from("cdist is no matrix".to_owned()));
    };
    let s = pairs(k, *rows as usize, *cols as usize, lead)?;
    let (g, far, p) = (k.f("grad")?, k.f("cdist")?, k.num("p")?);
    let mut dx = vec![0.0; s.x.len()];
    for i in 0..s.batch * s.rows * s.cols {
        let (b, r, c) = (i / (s.rows * s.cols), i / s.cols % s.rows, i % s.cols);
        for e in 0..s.width {
            let v = s.x[(b * s.rows + r) * s.width + e] - s.y[(b * s.cols + c) * s.width + e];
            let slope = super::typed::slope(v, far[i], p);
            dx[(b * s.rows + r) * s.width + e] += g[i] * slope;
        }
    }
    k.put("out", &Values::F(dx))
}

/// Slices along a dimension shortened to a norm.
fn renorm(k: &Call) -> Outcome {
    let x = k.t("self")?;
    let (p, most) = (k.scalar("p")?.value.f(0), k.scalar("maxNorm")?.value.f(0));
    let dim = k.int("dim")?.rem_euclid(x.dims.len() as i64) as usize;
    let mut a = k.f("self")?;
    let step = x.dims[dim + 1..].iter().product::<i64>() as usize;
    let count = x.dims[dim] as usize;
    for s in 0..count {
        let mine = |i: usize| i / step % count == s;
        let norm = distance(a.iter().enumerate().filter(|(i, _)| mine(*i)).map(|(_, v)| *v), p);
        if norm > most {
            let scale = most / (norm + 1e-7);
            a.iter_mut().enumerate().filter(|(i, _)| mine(*i)).for_each(|(_, v)| *v *= scale);
        }
    }
    k.put("out|selfRef", &Values::F(a))
}

pub(super) static OPS: &[Row] = &[
    ("LinalgCholesky", "self:FD rank(self,2..8)", cholesky),
    ("LinalgQr", "self:FD rank(self,2..8) null(Q)", qr),
    ("Svd", "input:FD rank(input,2..8) null(u,v)", svd),
    ("TriangularSolve", "self:FD A:FD rank(A,2..8)", triangular),
    ("LinalgCross", "self:FDI other:FDI", cross),
    ("Cdist", "x1:F x2:F rank(x1,2..8) rank(x2,2..8)", cdist),
    ("CdistBackward", "grad:F x1:F x2:F", cdist_grad),
    ("Renorm", "self:F", renorm),
];
