//! Moving elements: joining, cutting, gathering, scattering, sorting.

use super::Row;
use super::elementwise::output;
use super::reduce::{rows, wrap};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values, View};

fn first(k: &Call) -> Result<&View, Fault> {
    k.t(k.decl.params[0].name)
}

/// A piece of a view along one dimension.
fn piece(view: &View, dim: usize, start: i64, len: i64, step: i64) -> View {
    let mut out = view.clone();
    out.offset += start * view.strides[dim];
    out.dims[dim] = len;
    out.strides[dim] *= step;
    out
}

fn cat(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let dim = wrap(k.int("dim")?, out.dims.len())?;
    let mut at = 0;
    for x in k.list("tensors")? {
        if x.numel() == 0 {
            continue;
        }
        let n = x.dims[dim];
        k.put_view(&piece(out, dim, at, n, 1), &x.load(k.decl.name)?)?;
        at += n;
    }
    if at == out.dims[dim] || out.numel() == 0 {
        Ok(())
    } else {
        Err(Fault::from("the pieces do not fill the output"))
    }
}

fn stack(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let dim = wrap(k.int("dim")?, out.dims.len())?;
    for (i, x) in k.list("tensors")?.iter().enumerate() {
        k.put_view(&piece(out, dim, i as i64, 1, 1), &x.load(k.decl.name)?)?;
    }
    Ok(())
}

fn split(k: &Call) -> Outcome {
    let x = first(k)?;
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let mut at = 0;
    for out in k.list("out")? {
        let n = out.dims[dim];
        k.put_view(out, &piece(x, dim, at, n, 1).load(k.decl.name)?)?;
        at += n;
    }
    Ok(())
}

fn slice(k: &Call) -> Outcome {
    let (x, out) = (first(k)?, output(k)?);
    let dim = wrap(k.int("dim")?, x.dims.len())?;
    let n = x.dims[dim];
    let start = k.int("start")?;
    let start = (if start < 0 { start + n } else { start }).clamp(0, n);
    k.put_view(out, &piece(x, dim, start, out.dims[dim], k.int("step")?).load(k.decl.name)?)
}

fn permute(k: &Call) -> Outcome {
    let x = first(k)?;
    let order = k.ints("dims")?;
    let order: Vec<usize> = order.iter().map(|d| wrap(*d, x.dims.len())).collect::<Result<_, _>>()?;
    let moved = View {
        dims: order.iter().map(|d| x.dims[*d]).collect(),
        strides: order.iter().map(|d| x.strides[*d]).collect(),
        ..x.clone()
    };
    k.put("out", &moved.load(k.decl.name)?)
}

fn repeat(k: &Call) -> Outcome {
    let (x, out) = (first(k)?, output(k)?);
    let lead = out.dims.len() - x.dims.len();
    let dims: Vec<i64> = std::iter::repeat_n(1, lead).chain(x.dims.iter().copied()).collect();
    let v = x.load(k.decl.name)?;
    let strides = contiguous(&dims);
    let places = indices(&out.dims).map(|index| {
        index.iter().zip(&dims).zip(&strides).map(|((i, d), s)| (i % d) * s).sum::<i64>() as usize
    });
    k.put_view(out, &v.pick(places))
}

pub(super) fn contiguous(dims: &[i64]) -> Vec<i64> {
    let mut s = vec![1; dims.len()];
    for i in (0..dims.len().saturating_sub(1)).rev() {
        s[i] = s[i + 1] * dims[i + 1];
    }
    s
}

/// Every index of a shape in row-major order.
pub(super) fn indices(dims: &[i64]) -> impl Iterator<Item = Vec<i64>> {
    let n: i64 = dims.iter().product();
    let strides = contiguous(dims);
    let dims = dims.to_vec();
    (0..n.max(0)).map(move |flat| strides.iter().zip(&dims).map(|(s, d)| flat / s % d).collect())
}

fn expand(k: &Call) -> Outcome {
    let out = output(k)?;
    k.put_view(out, &k.spread(first(k)?, &out.dims)?)
}

fn triangle(k: &Call, upper: bool) -> Outcome {
    let out = output(k)?;
    let x = first(k)?;
    let diagonal = k.int("diagonal")?;
    let mut v = x.load(k.decl.name)?;
    let (r, c) = (x.dims[x.dims.len() - 2] as usize, x.dims[x.dims.len() - 1] as usize);
    let zero = Values::I(vec![0]);
    for i in 0..v.len() {
        let (row, col) = ((i / c % r) as i64, (i % c) as i64);
        if if upper { col - row < diagonal } else { col - row > diagonal } {
            v.put(i, &zero, 0);
        }
    }
    k.put_view(out, &v)
}

fn arange(k: &Call) -> Outcome {
    let out = output(k)?;
    let (start, step) = (&k.scalar("start")?.value, &k.scalar("step")?.value);
    let n = out.numel();
    if matches!((start, step), (Values::I(_), Values::I(_))) {
        return k.put_view(out, &Values::I((0..n as i64).map(|i| start.i(0) + i * step.i(0)).collect()));
    }
    k.put_view(out, &Values::F((0..n).map(|i| start.f(0) + i as f64 * step.f(0)).collect()))
}

fn linspace(k: &Call) -> Outcome {
    let out = output(k)?;
    let (a, b) = (k.scalar("start")?.value.f(0), k.scalar("end")?.value.f(0));
    let n = out.numel();
    let step = if n > 1 { (b - a) / (n - 1) as f64 } else { 0.0 };
    let f = |i: usize| if i < n / 2 { a + step * i as f64 } else { b - step * (n - 1 - i) as f64 };
    k.put_view(out, &Values::F((0..n).map(|i| if n == 1 { a } else { f(i) }).collect()))
}

fn logspace(k: &Call) -> Outcome {
    let out = output(k)?;
    let (a, b) = (k.scalar("start")?.value.f(0), k.scalar("end")?.value.f(0));
    let base = k.num("base")?;
    let n = out.numel();
    let step = if n > 1 { (b - a) / (n - 1) as f64 } else { 0.0 };
    k.put_view(out, &Values::F((0..n).map(|i| base.powf(a + step * i as f64)).collect()))
}

fn eye(k: &Call) -> Outcome {
    let out = output(k)?;
    let m = out.dims[1] as usize;
    k.put_view(out, &Values::I((0..out.numel()).map(|i| i64::from(i / m == i % m)).collect()))
}

fn one_hot(k: &Call) -> Outcome {
    let (x, out) = (first(k)?, k.t("out")?);
    let axis = k.int("axis")?;
    let axis = if axis < 0 { out.dims.len() - 1 } else { axis as usize };
    let at = x.load(k.decl.name)?.ints();
    let (on, off) = (k.load("onValue")?, k.load("offValue")?);
    let (moved, n) = rows(out, &[axis as i64])?;
    let v = (0..at.len() * n).map(|i| if at[i / n] == (i % n) as i64 { on.i(0) } else { off.i(0) });
    k.put_view(&moved, &Values::I(v.collect()))
}

/// An index along a dimension, negative ones from the end.
fn reach(i: i64, n: i64) -> Result<usize, Fault> {
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
    for (r, i) in at.iter().enumerate() {
        if *i == padding || *i < 0 || *i as usize >= n {
            continue;
        }
        let f = if scale { 1.0 / counts[*i as usize] as f64 } else { 1.0 };
        for c in 0..width {
            sum[*i as usize * width + c] += grad[r * width + c] * f;
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
            v[at] = if how == 0 { x } else { (v[at].0 + x.0, v[at].1 + x.1) };
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

fn order_of(row: &[f64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // NaN counts as the largest, as in PyTorch.
    let key = |v: f64| if v.is_nan() { (1, 0.0) } else { (0, v) };
    order.sort_by(|a, b| {
        let (x, y) = (key(row[*a]), key(row[*b]));
        let o = x.0.cmp(&y.0).then(x.1.partial_cmp(&y.1).unwrap_or(std::cmp::Ordering::Equal));
        if descending { o.reverse() } else { o }
    });
    order
}

fn sorted(k: &Call, descending: bool, keep: Option<usize>, values: Option<&str>, places: &str) -> Outcome {
    let dim = k.int("dim")?;
    let (moved, n) = rows(first(k)?, &[dim])?;
    let x = moved.load(k.decl.name)?;
    let f = x.clone().floats();
    let m = keep.unwrap_or(n);
    let mut at = Vec::new();
    for row in f.chunks(n.max(1)) {
        at.extend(order_of(row, descending).into_iter().take(m));
    }
    if let Some(name) = values {
        let (out, _) = rows(k.t(name)?, &[dim])?;
        k.put_view(&out, &x.pick(at.iter().enumerate().map(|(i, p)| i / m * n + p)))?;
    }
    let (out, _) = rows(k.t(places)?, &[dim])?;
    k.put_view(&out, &Values::I(at.iter().map(|i| *i as i64).collect()))
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

fn unique(k: &Call, counts: bool) -> Outcome {
    let x = first(k)?;
    let v = x.load(k.decl.name)?;
    let f = v.clone().floats();
    let order = order_of(&f, false);
    let mut inverse = vec![0i64; f.len()];
    let mut found: Vec<usize> = Vec::new();
    let mut count: Vec<i64> = Vec::new();
    for i in order {
        if found.last().is_none_or(|l| v.f(*l) != v.f(i) || v.i(*l) != v.i(i)) {
            found.push(i);
            count.push(0);
        }
        inverse[i] = found.len() as i64 - 1;
        *count.last_mut().ok_or("no value")? += 1;
    }
    let n = found.len() as i64;
    k.put_shaped("valueOut", &[n], &v.pick(found.into_iter()))?;
    if k.t("inverseOut")?.numel() > 0 {
        k.put("inverseOut", &Values::I(inverse))?;
    }
    if counts && k.t("countsOut")?.numel() > 0 {
        k.put_shaped("countsOut", &[n], &Values::I(count))?;
    }
    Ok(())
}

fn bincount(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let at = first(k)?.load(k.decl.name)?.ints();
    let weights = k.opt("weights")?.map(|w| w.load(k.decl.name)).transpose()?;
    let mut sums = vec![0f64; out.numel()];
    for (i, p) in at.iter().enumerate() {
        sums[reach(*p, out.numel() as i64)?] += weights.as_ref().map_or(1.0, |w| w.f(i));
    }
    k.put("out", &Values::F(sums))
}

fn histc(k: &Call) -> Outcome {
    let x = first(k)?.load(k.decl.name)?.floats();
    let bins = k.int("bins")? as usize;
    let (mut low, mut high) = (k.scalar("min")?.value.f(0), k.scalar("max")?.value.f(0));
    if low == high {
        low = x.iter().copied().fold(f64::INFINITY, f64::min);
        high = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    }
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    let mut counts = vec![0f64; bins];
    for v in x.into_iter().filter(|v| (low..=high).contains(v)) {
        counts[(((v - low) / (high - low) * bins as f64) as usize).min(bins - 1)] += 1.0;
    }
    k.put("out", &Values::F(counts))
}

fn flip(k: &Call) -> Outcome {
    let x = first(k)?;
    let mut view = x.clone();
    for d in k.ints("dims")? {
        let d = wrap(d, x.dims.len())?;
        view.offset += (x.dims[d] - 1) * x.strides[d];
        view.strides[d] = -x.strides[d];
    }
    k.put("out", &view.load(k.decl.name)?)
}

fn roll(k: &Call) -> Outcome {
    let x = first(k)?;
    let (shifts, dims) = (k.ints("shifts")?, k.ints("dims")?);
    let v = x.load(k.decl.name)?;
    if dims.is_empty() {
        let n = v.len() as i64;
        let s = shifts.first().copied().unwrap_or(0);
        return k.put("out", &v.pick((0..n).map(|i| (i - s).rem_euclid(n) as usize)));
    }
    let strides = contiguous(&x.dims);
    let mut by = vec![0; x.dims.len()];
    for (s, d) in shifts.iter().zip(&dims) {
        by[wrap(*d, x.dims.len())?] += s;
    }
    let at = indices(&x.dims).map(|index| {
        index.iter().enumerate().map(|(d, i)| (i - by[d]).rem_euclid(x.dims[d]) * strides[d]).sum::<i64>()
            as usize
    });
    k.put("out", &v.pick(at))
}

fn pad(k: &Call) -> Outcome {
    let (x, out) = (first(k)?, k.t("out")?);
    let pads = k.ints("pad")?;
    let rank = x.dims.len();
    let mut before = vec![0; rank];
    for (i, p) in pads.chunks(2).enumerate() {
        before[rank - 1 - i] = p[0];
    }
    let v = x.load(k.decl.name)?;
    let fill = &k.scalar("value")?.value;
    let mut all = fill.pick(std::iter::repeat_n(0, out.numel()));
    if matches!(v, Values::F(_)) {
        all = Values::F(all.floats());
    }
    let strides = contiguous(&x.dims);
    for (o, index) in indices(&out.dims).enumerate() {
        let at: Vec<i64> = index.iter().zip(&before).map(|(i, b)| i - b).collect();
        if at.iter().zip(&x.dims).all(|(i, n)| (0..*n).contains(i)) {
            all.put(o, &v, at.iter().zip(&strides).map(|(i, s)| i * s).sum::<i64>() as usize);
        }
    }
    k.put_view(out, &all)
}

fn repeat_interleave(k: &Call, along: Option<i64>) -> Outcome {
    let x = first(k)?;
    let dim = along.unwrap_or(0);
    let flat = View { dims: vec![x.numel() as i64], strides: vec![1], ..x.clone() };
    let flat_values = x.load(k.decl.name)?;
    let (moved, n) = if along.is_some() { rows(x, &[dim])? } else { (flat, x.numel()) };
    let v = if along.is_some() { moved.load(k.decl.name)? } else { flat_values };
    let counts: Vec<i64> = match k.opt("repeats") {
        Ok(Some(view)) => {
            let c = view.load(k.decl.name)?.ints();
            if c.len() == 1 { vec![c[0]; n] } else { c }
        }
        _ => vec![k.int("repeats")?; n],
    };
    let line: Vec<usize> =
        counts.iter().enumerate().flat_map(|(i, c)| std::iter::repeat_n(i, *c as usize)).collect();
    let outer = v.len() / n.max(1);
    let picked = v.pick((0..outer).flat_map(|r| line.iter().map(move |i| r * n + i)));
    let out = k.t("out")?;
    let out = if along.is_some() { rows(out, &[dim])?.0 } else { out.clone() };
    k.put_view(&out, &picked)
}

/// How often each row number stands.
fn repeat_rows(k: &Call) -> Outcome {
    let counts = k.load("repeats")?.ints();
    let at =
        counts.iter().enumerate().flat_map(|(i, c)| std::iter::repeat_n(i as i64, *c as usize)).collect();
    k.put("out", &Values::I(at))
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

fn search_sorted(k: &Call) -> Outcome {
    let sequence = k.t("sortedSequence")?;
    let n = *sequence.dims.last().unwrap_or(&1) as usize;
    let s = sequence.load(k.decl.name)?.floats();
    let x = match k.opt("self") {
        Ok(Some(view)) => view.load(k.decl.name)?.floats(),
        _ => vec![k.scalar("self")?.value.f(0)],
    };
    let right = k.flag("right")?;
    let lines = s.len() / n.max(1);
    let per = x.len() / lines.max(1);
    let find = |(i, v): (usize, &f64)| {
        let line = if lines == 1 { 0 } else { i / per.max(1) };
        let row = &s[line * n..(line + 1) * n];
        row.partition_point(|e| if right { e <= v } else { e < v }) as i64
    };
    k.put("out", &Values::I(x.iter().enumerate().map(find).collect()))
}

fn is_in(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let invert = k.flag("invert")?;
    let side = |name: &str| -> Result<Vec<f64>, Fault> {
        match k.opt(name) {
            Ok(Some(view)) => Ok(view.load(k.decl.name)?.floats()),
            _ => Ok(vec![k.scalar(name)?.value.f(0)]),
        }
    };
    let (x, set) = (side("element")?, side("testElements|testElement")?);
    k.put_view(out, &Values::I(x.iter().map(|v| i64::from(set.contains(v) != invert)).collect()))
}

fn unfold_grad(k: &Call) -> Outcome {
    let out = k.t("gradIn")?;
    let dim = wrap(k.int("dim")?, out.dims.len())?;
    let step = k.int("step")?;
    let g = k.t("gradOut")?;
    let v = g.load(k.decl.name)?.floats();
    let strides = contiguous(&out.dims);
    let mut sum = vec![0f64; out.numel()];
    for (i, index) in indices(&g.dims).enumerate() {
        let last = index[index.len() - 1];
        let at: i64 = (0..out.dims.len())
            .map(|d| if d == dim { (index[d] * step + last) * strides[d] } else { index[d] * strides[d] })
            .sum();
        sum[at as usize] += v[i];
    }
    k.put("gradIn", &Values::F(sum))
}

const ANY: &str = "self:FDIBC";

pub(super) static OPS: &[Row] = &[
    ("Cat", "tensors:FDIBC", cat),
    ("Stack", "tensors:FDIBC", stack),
    ("SplitWithSize", "out(out)", split),
    ("SplitTensor", "out(out)", split),
    ("Slice", ANY, slice),
    ("SliceV2", ANY, slice),
    ("Permute", ANY, permute),
    ("Repeat", ANY, repeat),
    ("Expand", ANY, expand),
    ("Tril", ANY, |k| triangle(k, false)),
    ("Triu", ANY, |k| triangle(k, true)),
    ("InplaceTril", "rank(selfRef,2..8)", |k| triangle(k, false)),
    ("InplaceTriu", "rank(selfRef,2..8)", |k| triangle(k, true)),
    ("Arange", "out:FDI", arange),
    ("Range", "out:FDI", arange),
    ("Linspace", "out:FDI", linspace),
    ("LogSpace", "result:FDI", logspace),
    ("Eye", "rank(out,2)", eye),
    ("OneHot", "self:I", one_hot),
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
    ("InplaceIndexFillTensor", "inout(selfRef)", |k| index_add(k, true, false)),
    ("Index", "indices:LUBFDC", index),
    ("IndexPutImpl", "indices:LUBFDC", index_put),
    ("Sort", ANY, |k| sorted(k, k.flag("descending")?, None, Some("valuesOut"), "indicesOut")),
    ("Argsort", ANY, |k| sorted(k, k.flag("descending")?, None, None, "out")),
    ("Topk", ANY, |k| {
        let keep = k.int("k")? as usize;
        sorted(k, k.flag("largest")?, Some(keep), Some("valuesOut"), "indicesOut")
    }),
    ("Nonzero", ANY, |k| nonzero(k, false)),
    ("NonzeroV2", ANY, |k| nonzero(k, true)),
    ("MaskedSelect", "mask:U", masked_select),
    ("InplaceMaskedScatter", "mask:U", masked_scatter),
    ("Unique", ANY, |k| unique(k, false)),
    ("Unique2", ANY, |k| unique(k, true)),
    ("Bincount", "self:I null(weights)", bincount),
    ("Histc", "self:FDI", histc),
    ("Flip", ANY, flip),
    ("Roll", "x:FDIBC", roll),
    ("ConstantPadNd", ANY, pad),
    ("RepeatInterleave", "repeats:L", |k| repeat_interleave(k, None)),
    ("RepeatInterleaveInt", ANY, |k| repeat_interleave(k, None)),
    ("RepeatInterleaveWithDim", "repeats:L", |k| repeat_interleave(k, Some(k.int("dim")?))),
    ("RepeatInterleaveIntWithDim", ANY, |k| repeat_interleave(k, Some(k.int("dim")?))),
    ("RepeatInterleaveTensor", "repeats:L", repeat_rows),
    ("Take", "index:L", take),
    ("InplacePut", "index:L", put),
    ("SearchSorted", "null(sorter)", search_sorted),
    ("SearchSorteds", "null(sorter)", search_sorted),
    ("IsInTensorScalar", "element:FDIB", is_in),
    ("IsInScalarTensor", "testElements:FDIB", is_in),
    ("UnfoldGrad", "out(gradIn)", unfold_grad),
];
