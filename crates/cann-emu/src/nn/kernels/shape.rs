//! Moving elements: joining, cutting, gathering, scattering, sorting.

use super::Row;
use super::elementwise::output;
use super::index::reach;
use super::reduce::{rows, wrap};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View, contiguous};

pub(super) fn first(k: &Call) -> Result<&View, Fault> {
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

/// Pieces along several dimensions, their places counted as Python counts them.
fn slices(k: &Call) -> Outcome {
    let (mut view, out) = (first(k)?.clone(), output(k)?);
    let (starts, axes, steps) = (k.ints("starts")?, k.ints("axes")?, k.ints("steps")?);
    for ((start, axis), step) in starts.iter().zip(&axes).zip(&steps) {
        let dim = wrap(*axis, view.dims.len())?;
        let n = view.dims[dim];
        let start = (if *start < 0 { start + n } else { *start }).clamp(0, n);
        view = piece(&view, dim, start, out.dims[dim], *step);
    }
    k.put_view(out, &view.load(k.decl.name)?)
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
    match v {
        Values::F(_) => all = Values::F(all.floats()),
        Values::C(_) => all = Values::C((0..all.len()).map(|i| all.c(i)).collect()),
        Values::I(_) => {}
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
    ("Cat", "tensors:FDIBC joined(tensors,dim>out)", cat),
    ("Stack", "tensors:FDIBC", stack),
    ("SplitWithSize", "self:FDIBC type(self,out) joined(out,dim>self) out(out)", split),
    ("SplitTensor", "self:FDIBC type(self,out) joined(out,dim>self) out(out)", split),
    ("Slice", ANY, slice),
    ("SliceV2", ANY, slices),
    ("Permute", ANY, permute),
    ("Repeat", ANY, repeat),
    ("Expand", ANY, expand),
    ("Tril", ANY, |k| triangle(k, false)),
    ("Triu", ANY, |k| triangle(k, true)),
    ("InplaceTril", "selfRef:FDIBC rank(selfRef,2..8)", |k| triangle(k, false)),
    ("InplaceTriu", "selfRef:FDIBC rank(selfRef,2..8)", |k| triangle(k, true)),
    ("Arange", "out:FDI", arange),
    ("Range", "out:FDI", arange),
    ("Linspace", "out:FDI", linspace),
    ("LogSpace", "result:FDI", logspace),
    ("Eye", "out:FDIBC out[n,m]", eye),
    ("OneHot", "self:I", one_hot),
    ("Sort", ANY, |k| sorted(k, k.flag("descending")?, None, Some("valuesOut"), "indicesOut")),
    ("Argsort", ANY, |k| sorted(k, k.flag("descending")?, None, None, "out")),
    ("Topk", ANY, |k| {
        let keep = k.int("k")? as usize;
        sorted(k, k.flag("largest")?, Some(keep), Some("valuesOut"), "indicesOut")
    }),
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
    ("SearchSorted", "sortedSequence:FDI out:L null(sorter)", search_sorted),
    ("SearchSorteds", "sortedSequence:FDI out:L null(sorter)", search_sorted),
    ("IsInTensorScalar", "element:FDIB", is_in),
    ("IsInScalarTensor", "testElements:FDIB", is_in),
    ("UnfoldGrad", "gradOut:FD type(gradOut,gradIn) ends(gradIn,inputSizes) out(gradIn)", unfold_grad),
];
