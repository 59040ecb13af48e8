//! Reductions along dimensions, and scans.

use super::Row;
use super::complex::{self as cx, Complex};
use super::elementwise::output;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values, View};

/// A dimension counted from the front.
pub(super) fn wrap(dim: i64, rank: usize) -> Result<usize, Fault> {
    let n = rank.max(1) as i64;
    let d = if dim < 0 { dim + n } else { dim };
    if (0..n).contains(&d) {
        Ok(d as usize)
    } else {
        Err(Fault::from(format!("no dimension {dim} of {rank}")))
    }
}

/// The view with the named dimensions moved to the end; and how many elements those hold.
pub(super) fn rows(view: &View, dims: &[i64]) -> Result<(View, usize), Fault> {
    let rank = view.dims.len();
    let mut reduced = vec![dims.is_empty(); rank];
    for d in dims {
        if rank > 0 {
            reduced[wrap(*d, rank)?] = true;
        }
    }
    let order: Vec<usize> =
        (0..rank).filter(|d| !reduced[*d]).chain((0..rank).filter(|d| reduced[*d])).collect();
    let n: i64 = (0..rank).filter(|d| reduced[*d]).map(|d| view.dims[d]).product();
    let moved = View {
        dims: order.iter().map(|d| view.dims[*d]).collect(),
        strides: order.iter().map(|d| view.strides[*d]).collect(),
        ..view.clone()
    };
    Ok((moved, n as usize))
}

fn first(k: &Call) -> Result<&View, Fault> {
    k.t(k.decl.params[0].name)
}

/// One number for each row, of floats.
fn fold(k: &Call, dims: &[i64], out: &View, f: impl Fn(&Call, &[f64]) -> f64) -> Outcome {
    let (moved, n) = rows(first(k)?, dims)?;
    let x = moved.load(k.decl.name)?.floats();
    let v: Vec<f64> =
        if n == 0 { vec![f(k, &[]); out.numel()] } else { x.chunks(n).map(|row| f(k, row)).collect() };
    k.put_view(out, &Values::F(v))
}

fn fold_i(k: &Call, dims: &[i64], out: &View, f: impl Fn(&[i64]) -> i64) -> Outcome {
    let (moved, n) = rows(first(k)?, dims)?;
    let x = moved.load(k.decl.name)?.ints();
    let v: Vec<i64> = if n == 0 { vec![f(&[]); out.numel()] } else { x.chunks(n).map(f).collect() };
    k.put_view(out, &Values::I(v))
}

fn fold_c(k: &Call, dims: &[i64], out: &View, f: impl Fn(&[Complex]) -> Complex) -> Outcome {
    let (moved, n) = rows(first(k)?, dims)?;
    let x = moved.load(k.decl.name)?;
    let x: Vec<Complex> = (0..x.len()).map(|i| x.c(i)).collect();
    let v = if n == 0 { vec![f(&[]); out.numel()] } else { x.chunks(n).map(f).collect() };
    k.put_view(out, &Values::C(v))
}

fn integers(k: &Call) -> Result<bool, Fault> {
    Ok(first(k)?.dtype.is_int() && output(k)?.dtype.is_int())
}

fn sum(k: &Call) -> Outcome {
    let dims = k.ints("dims|dim")?;
    let out = output(k)?;
    if first(k)?.dtype.is_complex() {
        return fold_c(k, &dims, out, |row| row.iter().fold((0.0, 0.0), |a, b| cx::add(a, *b)));
    }
    if integers(k)? {
        return fold_i(k, &dims, out, |row| row.iter().fold(0, |a: i64, b| a.wrapping_add(*b)));
    }
    let wide = out.dtype == Dtype::F64;
    fold(k, &dims, out, |k, row| if wide { row.iter().sum() } else { k.sum(row.iter().copied()) })
}

fn nansum(k: &Call) -> Outcome {
    let dims = k.ints("dim")?;
    fold(k, &dims, output(k)?, |k, row| k.sum(row.iter().copied().filter(|v| !v.is_nan())))
}

fn mean(k: &Call) -> Outcome {
    let dims = k.ints("dim")?;
    if first(k)?.dtype.is_complex() {
        return fold_c(k, &dims, output(k)?, |row| {
            let sum = row.iter().fold((0.0, 0.0), |a, b| cx::add(a, *b));
            (sum.0 / row.len() as f64, sum.1 / row.len() as f64)
        });
    }
    let wide = output(k)?.dtype == Dtype::F64;
    fold(k, &dims, output(k)?, |k, row| {
        let s = if wide { row.iter().sum() } else { k.sum(row.iter().copied()) };
        s / row.len() as f64
    })
}

fn prod(k: &Call, dims: &[i64]) -> Outcome {
    if integers(k)? {
        return fold_i(k, dims, output(k)?, |row| row.iter().fold(1, |a: i64, b| a.wrapping_mul(*b)));
    }
    if first(k)?.dtype.is_complex() {
        return fold_c(k, dims, output(k)?, |row| row.iter().fold((1.0, 0.0), |a, b| cx::mul(a, *b)));
    }
    fold(k, dims, output(k)?, |_, row| row.iter().product())
}

fn extreme(k: &Call, dims: &[i64], out: &View, max: bool) -> Outcome {
    if first(k)?.dtype.is_int() {
        let pick = |row: &[i64]| if max { row.iter().max() } else { row.iter().min() }.copied().unwrap_or(0);
        return fold_i(k, dims, out, pick);
    }
    fold(k, dims, out, |_, row| best(row, max).map_or(f64::NAN, |i| row[i]))
}

/// Position of the first largest or smallest; a NaN wins.
pub(super) fn best(row: &[f64], max: bool) -> Option<usize> {
    let mut at = None;
    for (i, v) in row.iter().enumerate() {
        if v.is_nan() {
            return Some(i);
        }
        if at.is_none_or(|j: usize| if max { *v > row[j] } else { *v < row[j] }) {
            at = Some(i);
        }
    }
    at
}

fn with_index(k: &Call, max: bool) -> Outcome {
    let dim = k.int("dim")?;
    let (moved, n) = rows(first(k)?, &[dim])?;
    let x = moved.load(k.decl.name)?;
    let floats = x.clone().floats();
    let at: Vec<usize> = floats.chunks(n.max(1)).map(|row| best(row, max).unwrap_or(0)).collect();
    let values = x.pick(at.iter().enumerate().map(|(r, i)| r * n + i));
    k.put("out|valuesOut", &values)?;
    k.put("indices|indicesOut", &Values::I(at.iter().map(|i| *i as i64).collect()))
}

fn arg(k: &Call, max: bool) -> Outcome {
    let view = first(k)?;
    let out = output(k)?;
    let all = out.numel() == 1
        && view.numel() != 1
        && view.dims.len() != 1
        && view.dims.iter().filter(|d| **d > 1).count() > 1;
    let dims = if all { vec![] } else { vec![k.int("dim")?] };
    let (moved, n) = rows(view, &dims)?;
    let x = moved.load(k.decl.name)?.floats();
    let at = x.chunks(n.max(1)).map(|row| best(row, max).unwrap_or(0) as i64).collect();
    k.put_view(out, &Values::I(at))
}

fn all_any(k: &Call, all: bool) -> Outcome {
    let dims = k.ints("dim")?;
    if first(k)?.dtype.is_complex() {
        let holds = |row: &[Complex]| {
            let mut hit = row.iter().map(|v| *v != (0.0, 0.0));
            if all { hit.all(|v| v) } else { hit.any(|v| v) }
        };
        return fold_c(k, &dims, output(k)?, |row| (f64::from(u8::from(holds(row))), 0.0));
    }
    fold(k, &dims, output(k)?, |_, row| {
        f64::from(u8::from(if all { row.iter().all(|v| *v != 0.0) } else { row.iter().any(|v| *v != 0.0) }))
    })
}

fn p_norm(k: &Call, row: &[f64], p: f64) -> f64 {
    if p == f64::INFINITY {
        row.iter().fold(0.0, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b.abs()) })
    } else if p == f64::NEG_INFINITY {
        row.iter().fold(f64::INFINITY, |a, b| a.min(b.abs()))
    } else if p == 0.0 {
        row.iter().filter(|v| **v != 0.0).count() as f64
    } else if p == 2.0 {
        k.sum(row.iter().map(|v| v * v)).sqrt()
    } else if p == 1.0 {
        k.sum(row.iter().map(|v| v.abs()))
    } else {
        k.sum(row.iter().map(|v| v.abs().powf(p))).powf(1.0 / p)
    }
}

fn norm(k: &Call, scalar: &str, dims: &str) -> Outcome {
    let p = k.scalar(scalar)?.value.f(0);
    let dims = k.ints(dims)?;
    fold(k, &dims, output(k)?, |k, row| p_norm(k, row, p))
}

/// The norm of each tensor of a list.
fn foreach_norm(k: &Call) -> Outcome {
    let p = k.scalar("scalar")?.value.f(0);
    for (x, out) in k.list("x")?.iter().zip(k.list("out")?) {
        let row = x.load(k.decl.name)?.floats();
        k.put_view(out, &Values::F(vec![p_norm(k, &row, p)]))?;
    }
    Ok(())
}

fn variance(row: &[f64], correction: f64) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let square: f64 = row.iter().map(|v| (v - mean) * (v - mean)).sum();
    (square / (n - correction).max(0.0), mean)
}

fn var(k: &Call, root: bool) -> Outcome {
    let dims = k.ints("dim")?;
    let c = k.int("correction")? as f64;
    fold(k, &dims, output(k)?, |_, row| {
        let v = variance(row, c).0;
        if root { v.sqrt() } else { v }
    })
}

fn var_mean(k: &Call, root: bool) -> Outcome {
    let dims = k.ints("dim")?;
    let c = k.int("correction")? as f64;
    fold(k, &dims, k.t(if root { "stdOut" } else { "varOut" })?, |_, row| {
        let v = variance(row, c).0;
        if root { v.sqrt() } else { v }
    })?;
    fold(k, &dims, k.t("meanOut")?, |_, row| variance(row, c).1)
}

fn log_sum_exp(k: &Call) -> Outcome {
    let dims = k.ints("dim")?;
    fold(k, &dims, output(k)?, |k, row| {
        let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let m = if m.is_finite() { m } else { 0.0 };
        k.sum(row.iter().map(|v| (v - m).exp())).ln() + m
    })
}

fn aminmax(k: &Call, dims: &[i64]) -> Outcome {
    extreme(k, dims, k.t("minOut")?, false)?;
    extreme(k, dims, k.t("maxOut")?, true)
}

fn median(
    k: &Call,
    dims: &[i64],
    values: &str,
    indices: Option<&str>,
    at: Option<usize>,
    skip_nan: bool,
) -> Outcome {
    let (moved, n) = rows(first(k)?, dims)?;
    let x = moved.load(k.decl.name)?;
    let floats = x.clone().floats();
    let mut places = Vec::new();
    for (r, row) in floats.chunks(n.max(1)).enumerate() {
        let mut order: Vec<usize> = (0..n).filter(|i| !skip_nan || !row[*i].is_nan()).collect();
        order.sort_by(|a, b| row[*a].total_cmp(&row[*b]));
        let nan = order.iter().position(|i| row[*i].is_nan());
        let pick = match (nan, at) {
            (Some(p), None) => order[p],
            (_, Some(k)) => order[k],
            _ if order.is_empty() => 0,
            _ => order[(order.len() - 1) / 2],
        };
        places.push(r * n + pick);
    }
    k.put(values, &x.pick(places.iter().copied()))?;
    match indices {
        Some(name) => k.put(name, &Values::I(places.iter().map(|p| (p % n.max(1)) as i64).collect())),
        None => Ok(()),
    }
}

/// A running value along a dimension.
fn scan(
    k: &Call,
    dim: i64,
    f: impl Fn(&mut [f64]),
    g: impl Fn(&mut [i64]),
    c: impl Fn(&mut [Complex]),
) -> Outcome {
    let (moved, n) = rows(first(k)?, &[dim])?;
    let (out, _) = rows(output(k)?, &[dim])?;
    let values = if integers(k)? {
        let mut x = moved.load(k.decl.name)?.ints();
        x.chunks_mut(n.max(1)).for_each(g);
        Values::I(x)
    } else {
        match moved.load(k.decl.name)? {
            Values::C(mut x) => {
                x.chunks_mut(n.max(1)).for_each(c);
                Values::C(x)
            }
            other => {
                let mut x = other.floats();
                x.chunks_mut(n.max(1)).for_each(f);
                Values::F(x)
            }
        }
    };
    k.put_view(&out, &values)
}

/// Which elements a running sum holds: those up to each, without it if `exclusive`, from the other end if `reverse`.
fn running<T: Copy>(row: &mut [T], zero: T, add: impl Fn(T, T) -> T, exclusive: bool, reverse: bool) {
    let n = row.len();
    let mut sum = zero;
    for i in 0..n {
        let at = if reverse { n - 1 - i } else { i };
        let own = row[at];
        let with = add(sum, own);
        row[at] = if exclusive { sum } else { with };
        sum = with;
    }
}

fn cumsum(k: &Call) -> Outcome {
    let (dim, exclusive) = (k.int("dim")?, k.flag("exclusive").unwrap_or(false));
    let reverse = k.flag("reverse").unwrap_or(false);
    scan(
        k,
        dim,
        |row| running(row, 0.0, |a, b| a + b, exclusive, reverse),
        |row| running(row, 0, i64::wrapping_add, exclusive, reverse),
        |row| running(row, (0.0, 0.0), cx::add, exclusive, reverse),
    )
}

fn cumprod(k: &Call) -> Outcome {
    let dim = k.scalar("dim")?.value.i(0);
    scan(
        k,
        dim,
        |row| running(row, 1.0, |a, b| a * b, false, false),
        |row| running(row, 1, i64::wrapping_mul, false, false),
        |row| running(row, (1.0, 0.0), cx::mul, false, false),
    )
}

/// The largest or smallest so far, and where it stands; the later of two equal ones.
fn cum_extreme(k: &Call, max: bool) -> Outcome {
    let dim = k.int("dim")?;
    let (moved, n) = rows(first(k)?, &[dim])?;
    let x = moved.load(k.decl.name)?;
    let f = x.clone().floats();
    let mut at = vec![0usize; f.len()];
    for (r, row) in f.chunks(n.max(1)).enumerate() {
        let mut held = 0;
        for (i, v) in row.iter().enumerate() {
            if v.is_nan() || (!row[held].is_nan() && if max { *v >= row[held] } else { *v <= row[held] }) {
                held = i;
            }
            at[r * n + i] = held;
        }
    }
    let (values, _) = rows(k.t("valuesOut")?, &[dim])?;
    let (indices, _) = rows(k.t("indicesOut")?, &[dim])?;
    k.put_view(&values, &x.pick(at.iter().enumerate().map(|(p, i)| p / n * n + i)))?;
    k.put_view(&indices, &Values::I(at.iter().map(|i| *i as i64).collect()))
}

fn trace(k: &Call) -> Outcome {
    let view = first(k)?;
    let n = view.dims[0].min(view.dims[1]);
    let diagonal = View { dims: vec![n], strides: vec![view.strides[0] + view.strides[1]], ..view.clone() };
    let v = diagonal.load(k.decl.name)?;
    if let Values::C(v) = &v {
        return k.put("out", &Values::C(vec![v.iter().fold((0.0, 0.0), |a, b| cx::add(a, *b))]));
    }
    if integers(k)? {
        return k.put("out", &Values::I(vec![v.ints().iter().sum()]));
    }
    k.put("out", &Values::F(vec![k.sum(v.floats().into_iter())]))
}

const ANY: &str = "self:FDIBC";

pub(super) static OPS: &[Row] = &[
    ("ReduceSum", ANY, sum),
    ("ReduceNansum", "self:FD", nansum),
    ("Mean", "self:FDIC", mean),
    ("Prod", ANY, |k| prod(k, &[])),
    ("ProdDim", ANY, |k| prod(k, &[k.int("dim")?])),
    ("Amax", ANY, |k| extreme(k, &k.ints("dim")?, output(k)?, true)),
    ("Amin", ANY, |k| extreme(k, &k.ints("dim")?, output(k)?, false)),
    ("Max", ANY, |k| extreme(k, &[], output(k)?, true)),
    ("Min", ANY, |k| extreme(k, &[], output(k)?, false)),
    ("MaxDim", ANY, |k| with_index(k, true)),
    ("MinDim", ANY, |k| with_index(k, false)),
    ("ArgMax", ANY, |k| arg(k, true)),
    ("ArgMin", ANY, |k| arg(k, false)),
    ("Aminmax", ANY, |k| aminmax(k, &k.ints("dim")?)),
    ("AminmaxDim", ANY, |k| aminmax(k, &[k.int("dim")?])),
    ("AminmaxAll", ANY, |k| aminmax(k, &[])),
    ("All", ANY, |k| all_any(k, true)),
    ("Any", ANY, |k| all_any(k, false)),
    ("Norm", "self:FD", |k| norm(k, "pScalar", "dim")),
    ("LinalgVectorNorm", "self:FD", |k| norm(k, "ord", "dims")),
    ("ForeachNorm", "x:F", foreach_norm),
    ("Var", "self:FD null(dim)", |k| var_unbiased(k, false)),
    ("VarCorrection", "self:FD null(dim)", |k| var(k, false)),
    ("Std", "self:FD null(dim)", |k| var(k, true)),
    ("VarMean", "self:FD null(dim)", |k| var_mean(k, false)),
    ("StdMeanCorrection", "self:FD null(dim)", |k| var_mean(k, true)),
    ("LogSumExp", "self:FDI", log_sum_exp),
    ("Median", "self:FDI", |k| median(k, &[], "valuesOut", None, None, false)),
    ("MedianDim", "self:FDI", |k| median(k, &[k.int("dim")?], "valuesOut", Some("indicesOut"), None, false)),
    ("NanMedian", "self:FDI", |k| median(k, &[], "out", None, None, true)),
    ("NanMedianDim", "self:FDI", |k| {
        median(k, &[k.int("dim")?], "valuesOut", Some("indicesOut"), None, true)
    }),
    ("Kthvalue", "self:FDI", |k| {
        let at = (k.int("k")? - 1) as usize;
        median(k, &[k.int("dim")?], "valuesOut", Some("indicesOut"), Some(at), false)
    }),
    ("Cumsum", ANY, cumsum),
    ("CumsumV2", ANY, cumsum),
    ("Cumprod", "input:FDIBC", cumprod),
    ("Cummax", ANY, |k| cum_extreme(k, true)),
    ("Cummin", ANY, |k| cum_extreme(k, false)),
    ("Trace", "self:FDIBC rank(self,2) rank(out,0)", trace),
];

fn var_unbiased(k: &Call, root: bool) -> Outcome {
    let dims = k.ints("dim")?;
    let c = f64::from(u8::from(k.flag("unbiased")?));
    fold(k, &dims, output(k)?, |_, row| {
        let v = variance(row, c).0;
        if root { v.sqrt() } else { v }
    })
}
