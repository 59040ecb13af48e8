//! Elements by index: taken, written, added to, and found.

use super::Row;
use super::elementwise::output;
use super::reduce::{rows, wrap};
use super::shape::{first, indices};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values, View, contiguous};

/// An index along a dimension, negative ones from the end.
pub(super) fn reach(i: i64, n: i64) -> Result<usize, Fault> {
    let at = if i < 0 { i + n } else { i };
    if (0..n).contains(&at) { Ok(at as usize) } else { Err(Fault::from(format!("index {i} out of {n}"))) }
}

/// Flat places in `dims` of what `index` names along `dim`.
fn places(dims: &[i64], dim: usize, index: &View, who: &str) -> Result<Vec<usize>, Fault> {
    let at = index.load(who)?.ints();
    let strides = contiguous(dims);
    indices(&index.dims)
        .zip(at)
        .map(|(mut index, i)| {
            if index.is_empty() {
                index.push(0);
            }
            index[dim] = reach(i, dims.get(dim).copied().unwrap_or(1))? as i64;
            Ok(index.iter().zip(&strides).map(|(i, s)| i * s).sum::<i64>() as usize)
        })
        .collect()
}

fn gather(k: &Call) -> Outcome {
    let x = first(k)?;
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let at = places(&x.dims, dim, k.t("index")?, k.decl.name)?;
    k.put("out", &x.load(k.decl.name)?.pick(at.into_iter()))
}

fn index_select(k: &Call) -> Outcome {
    let x = first(k)?;
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let at = k.load("index")?.ints();
    let (moved, n) = rows(x, &[dim as i64])?;
    let (out, m) = rows(k.t("out")?, &[dim as i64])?;
    let v = moved.load(k.decl.name)?;
    let at: Vec<usize> = at.iter().map(|i| reach(*i, n as i64)).collect::<Result<_, _>>()?;
    let outer = out.numel() / m.max(1);
    k.put_view(&out, &v.pick((0..outer).flat_map(|r| at.iter().map(move |i| r * n + i))))
}

/// Rows of a table; a row that is not there reads as the bytes 0xFF.
fn embedding(k: &Call) -> Outcome {
    let w = k.t("weight")?;
    let (n, width) = (w.dims[0], w.dims[1] as usize);
    let v = w.load(k.decl.name)?;
    let at = k.load("indices")?.ints();
    let mut out = v.pick(at.iter().flat_map(|i| {
        let row = if (0..n).contains(i) { *i as usize } else { 0 };
        row * width..(row + 1) * width
    }));
    for (r, i) in at.iter().enumerate() {
        if *i < 0 {
            return Err(Fault::from(format!("index {i} is negative")));
        }
        if *i >= n {
            for c in 0..width {
                out.put(r * width + c, &Values::F(vec![f64::NAN]), 0);
            }
        }
    }
    k.put("out", &out)
}

fn embedding_backward(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let width = out.dims[1] as usize;
    let grad = k.f("grad")?;
    let at = k.load("indices")?.ints();
    let padding = k.int("paddingIdx")?;
    let scale = k.flag("scaleGradByFreq")?;
    let n = out.dims[0] as usize;
    let mut counts = vec![0usize; n];
    for i in &at {
        if let Some(c) = counts.get_mut(*i as usize) {
            *c += 1;
        }
    }
    let mut sum = vec![0f64; n * width];
    for r in k.order(at.len()) {
        let i = at[r];
        if i == padding || i < 0 || i as usize >= n {
            continue;
        }
        let f = if scale { 1.0 / counts[i as usize] as f64 } else { 1.0 };
        for c in 0..width {
            let held = &mut sum[i as usize * width + c];
            *held = Call::added(*held, grad[r * width + c] * f);
        }
    }
    k.put("out", &Values::F(sum))
}

/// How a value meets one that is there: 0 replaces, 1 adds, 2 multiplies, 3 greatest, 4 least.
fn meet(target: &mut Values, at: usize, value: &Values, i: usize, how: i64) {
    match target {
        Values::I(v) => {
            let x = value.i(i);
            v[at] = match how {
                0 => x,
                1 => v[at].wrapping_add(x),
                2 => v[at].wrapping_mul(x),
                3 => v[at].max(x),
                _ => v[at].min(x),
            };
        }
        Values::F(v) => {
            let x = value.f(i);
            v[at] = match how {
                0 => x,
                1 => v[at] + x,
                2 => v[at] * x,
                3 => v[at].max(x),
                _ => v[at].min(x),
            };
        }
        Values::C(v) => {
            let x = value.c(i);
            v[at] = match how {
                0 => x,
                1 => super::complex::add(v[at], x),
                2 => super::complex::mul(v[at], x),
                // The largest of numbers without an order.
                _ => (f64::NAN, f64::NAN),
            };
        }
    }
}

fn scatter(k: &Call, how: Option<i64>) -> Outcome {
    let x = first(k)?;
    let how = match how {
        Some(h) => h,
        None => k.int("reduce|reduction")?,
    };
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let index = k.t("index")?;
    let at = places(&x.dims, dim, index, k.decl.name)?;
    let values = match k.opt("src") {
        Ok(Some(view)) => View { dims: index.dims.clone(), ..view.clone() }.load(k.decl.name)?,
        _ => k.scalar("value")?.value.pick(std::iter::repeat_n(0, at.len())),
    };
    let mut v = x.load(k.decl.name)?;
    for (i, p) in at.into_iter().enumerate() {
        meet(&mut v, p, &values, i, how);
    }
    k.put_view(output(k)?, &v)
}

fn index_add(k: &Call, fill: bool, copy: bool) -> Outcome {
    let x = first(k)?;
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let at = match k.opt("index") {
        Ok(Some(view)) => view.load(k.decl.name)?.ints(),
        _ => k.ints("index")?,
    };
    let (moved, n) = rows(x, &[dim as i64])?;
    let mut v = moved.load(k.decl.name)?;
    let outer = v.len() / n.max(1);
    if fill {
        let value = match k.opt("value") {
            Ok(Some(view)) => view.load(k.decl.name)?,
            _ => k.scalar("value")?.value.clone(),
        };
        for r in 0..outer {
            for i in &at {
                v.put(r * n + reach(*i, n as i64)?, &value, 0);
            }
        }
    } else {
        let (source, m) = rows(k.t("source")?, &[dim as i64])?;
        let mut s = source.load(k.decl.name)?;
        if !copy {
            let alpha = &k.scalar("alpha")?.value;
            s = match s {
                Values::I(list) => Values::I(list.into_iter().map(|x| x.wrapping_mul(alpha.i(0))).collect()),
                other => Values::F(other.floats().into_iter().map(|x| x * alpha.f(0)).collect()),
            };
        }
        for r in 0..outer {
            for (j, i) in at.iter().enumerate() {
                meet(&mut v, r * n + reach(*i, n as i64)?, &s, r * m + j, i64::from(!copy));
            }
        }
    }
    let out = if k.decl.name.contains("Inplace") { x } else { output(k)? };
    let (out, _) = rows(out, &[dim as i64])?;
    k.put_view(&out, &v)
}

/// Places in `x` that a list of index tensors names, in the order of the result, and the result's shape. An empty
/// tensor stands for a whole dimension.
fn advanced(k: &Call, x: &View) -> Result<(Vec<usize>, Vec<i64>), Fault> {
    let list = k.list("indices")?;
    let mut index: Vec<Option<(View, Vec<i64>)>> = Vec::new();
    let mut shape: Vec<i64> = Vec::new();
    for view in &list {
        if view.numel() == 0 && view.dims.len() <= 1 && x.numel() > 0 && !list.iter().all(|v| v.numel() == 0)
        {
            index.push(None);
            continue;
        }
        if view.dtype == Dtype::Bool || view.dtype == Dtype::U8 {
            let mask = view.load(k.decl.name)?;
            let hits: Vec<Vec<i64>> =
                indices(&view.dims).enumerate().filter(|(i, _)| mask.b(*i)).map(|(_, at)| at).collect();
            for d in 0..view.dims.len() {
                let at: Vec<i64> = hits.iter().map(|h| h[d]).collect();
                let flat = View { dims: vec![at.len() as i64], ..(*view).clone() };
                shape = super::elementwise::common(&shape, &flat.dims);
                index.push(Some((flat, at)));
            }
            continue;
        }
        shape = super::elementwise::common(&shape, &view.dims);
        index.push(Some(((*view).clone(), view.load(k.decl.name)?.ints())));
    }
    while index.len() < x.dims.len() {
        index.push(None);
    }
    let named: Vec<usize> = (0..index.len()).filter(|d| index[*d].is_some()).collect();
    let together = named.windows(2).all(|w| w[1] == w[0] + 1);
    let start = if together { named.first().copied().unwrap_or(0) } else { 0 };
    let free: Vec<usize> = (0..x.dims.len()).filter(|d| index[*d].is_none()).collect();
    let before: Vec<usize> = free.iter().copied().filter(|d| together && *d < start).collect();
    let after: Vec<usize> = free.iter().copied().filter(|d| !before.contains(d)).collect();
    let dims: Vec<i64> = before
        .iter()
        .map(|d| x.dims[*d])
        .chain(shape.iter().copied())
        .chain(after.iter().map(|d| x.dims[*d]))
        .collect();
    let strides = contiguous(&x.dims);
    // For each point of the indices' common shape, the offset that they give together.
    let mut points = vec![0i64; shape.iter().product::<i64>().max(0) as usize];
    for d in &named {
        if let Some((view, at)) = &index[*d] {
            let s = contiguous(&view.dims);
            let lead = shape.len() - view.dims.len();
            for (p, point) in indices(&shape).enumerate() {
                let flat: i64 = view
                    .dims
                    .iter()
                    .enumerate()
                    .map(|(i, n)| if *n == 1 { 0 } else { point[lead + i] * s[i] })
                    .sum();
                points[p] += reach(at[flat as usize], x.dims[*d])? as i64 * strides[*d];
            }
        }
    }
    let side = |list: &[usize]| -> Vec<i64> {
        let sizes: Vec<i64> = list.iter().map(|d| x.dims[*d]).collect();
        indices(&sizes).map(|at| at.iter().zip(list).map(|(i, d)| i * strides[*d]).sum()).collect()
    };
    let (b, a) = (side(&before), side(&after));
    let mut out = Vec::with_capacity(b.len() * points.len() * a.len());
    for x in &b {
        for y in &points {
            for z in &a {
                out.push((x + y + z) as usize);
            }
        }
    }
    Ok((out, dims))
}

fn index(k: &Call) -> Outcome {
    let x = first(k)?;
    let (at, dims) = advanced(k, x)?;
    let v = x.load(k.decl.name)?.pick(at.into_iter());
    let out = k.t("out")?;
    if out.numel() == v.len() { k.put_view(out, &v) } else { k.put_shaped("out", &dims, &v) }
}

fn index_put(k: &Call) -> Outcome {
    let x = first(k)?;
    let (at, dims) = advanced(k, x)?;
    let values = k.spread(k.t("values")?, &dims)?;
    let how = i64::from(k.flag("accumulate")?);
    let mut v = x.load(k.decl.name)?;
    for (i, p) in at.into_iter().enumerate() {
        meet(&mut v, p, &values, i, how);
    }
    k.put_view(x, &v)
}

fn nonzero(k: &Call, transposed: bool) -> Outcome {
    let x = first(k)?;
    let v = x.load(k.decl.name)?;
    let hits: Vec<Vec<i64>> =
        indices(&x.dims).enumerate().filter(|(i, _)| v.b(*i)).map(|(_, at)| at).collect();
    let (n, r) = (hits.len() as i64, x.dims.len() as i64);
    if transposed {
        let flat = (0..r as usize).flat_map(|d| hits.iter().map(move |h| h[d])).collect();
        return k.put_shaped("out", &[r, n], &Values::I(flat));
    }
    k.put_shaped("out", &[n, r], &Values::I(hits.concat()))
}

fn masked_select(k: &Call) -> Outcome {
    let (x, mask) = (first(k)?, k.t("mask")?);
    let dims = super::elementwise::common(&x.dims, &mask.dims);
    let (v, m) = (k.spread(x, &dims)?, k.spread(mask, &dims)?);
    let picked = v.pick((0..v.len()).filter(|i| m.b(*i)));
    k.put_shaped("out", &[picked.len() as i64], &picked)
}

fn masked_scatter(k: &Call) -> Outcome {
    let x = first(k)?;
    let mask = k.spread(k.t("mask")?, &x.dims)?;
    let source = k.load("source")?;
    let mut v = x.load(k.decl.name)?;
    let mut next = 0;
    for i in 0..v.len() {
        if mask.b(i) {
            v.put(i, &source, next);
            next += 1;
        }
    }
    k.put_view(x, &v)
}

fn take(k: &Call) -> Outcome {
    let v = first(k)?.load(k.decl.name)?;
    let at = k.load("index")?.ints();
    let at: Vec<usize> = at.iter().map(|i| reach(*i, v.len() as i64)).collect::<Result<_, _>>()?;
    k.put("out", &v.pick(at.into_iter()))
}

fn put(k: &Call) -> Outcome {
    let x = first(k)?;
    let mut v = x.load(k.decl.name)?;
    let (at, source) = (k.load("index")?.ints(), k.load("source")?);
    let how = i64::from(k.flag("accumulate")?);
    for (i, p) in at.iter().enumerate() {
        let place = reach(*p, v.len() as i64)?;
        meet(&mut v, place, &source, i, how);
    }
    k.put_view(x, &v)
}

const ANY: &str = "self:FDIBC";

pub(super) static OPS: &[Row] = &[
    ("Gather", "index:L", gather),
    ("GatherV2", "index:L", index_select),
    ("GatherV3", "index:L", index_select),
    ("IndexSelect", "index:L rank(index,0..1)", index_select),
    ("Embedding", "weight:FDI indices:L rank(weight,2)", embedding),
    ("EmbeddingDenseBackward", "grad:F indices:L rank(out,2)", embedding_backward),
    ("Scatter", "index:L", |k| scatter(k, None)),
    ("ScatterValue", "index:L", |k| scatter(k, None)),
    ("InplaceScatter", "index:L inout(selfRef)", |k| scatter(k, None)),
    ("InplaceScatterValue", "index:L inout(selfRef)", |k| scatter(k, None)),
    ("ScatterAdd", "index:L", |k| scatter(k, Some(1))),
    ("InplaceScatterAdd", "index:L", |k| scatter(k, Some(1))),
    ("IndexAdd", "index:L", |k| index_add(k, false, false)),
    ("IndexAddV2", "index:L", |k| index_add(k, false, false)),
    ("IndexCopy", "index:L out(outRef)", |k| index_add(k, false, true)),
    ("InplaceIndexCopy", "index:L", |k| index_add(k, false, true)),
    ("IndexFill", "index:L", |k| index_add(k, true, false)),
    ("InplaceIndexFill", "index:L", |k| index_add(k, true, false)),
    ("IndexFillTensor", ANY, |k| index_add(k, true, false)),
    ("InplaceIndexFillTensor", "selfRef:FDIBC inout(selfRef)", |k| index_add(k, true, false)),
    ("Index", "indices:LUBFDC", index),
    ("IndexPutImpl", "indices:LUBFDC", index_put),
    ("Nonzero", ANY, |k| nonzero(k, false)),
    ("NonzeroV2", ANY, |k| nonzero(k, true)),
    ("MaskedSelect", "mask:U", masked_select),
    ("InplaceMaskedScatter", "mask:U", masked_scatter),
    ("Take", "index:L", take),
    ("InplacePut", "index:L", put),
];
