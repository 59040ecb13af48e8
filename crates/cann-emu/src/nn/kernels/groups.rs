//! Runs of equal elements, equal slices, sums over groups of rows.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// The elements, or the slices along `dim`, each as a list of values.
fn slices(x: &View, v: &[f64], dim: Option<usize>) -> Vec<Vec<f64>> {
    let Some(dim) = dim else { return v.iter().map(|v| vec![*v]).collect() };
    let (n, step) = (x.dims[dim] as usize, x.dims[dim + 1..].iter().product::<i64>() as usize);
    let mut out = vec![Vec::new(); n];
    v.iter().enumerate().for_each(|(i, v)| out[i / step.max(1) % n.max(1)].push(*v));
    out
}

/// Writes the slices of `x` at `found`, with which of them each slice is equal to, and how many are.
fn answer(k: &Call, dim: Option<usize>, found: &[usize], inverse: Vec<i64>, count: Vec<i64>) -> Outcome {
    let x = k.t("self")?;
    let values = x.load(k.decl.name)?;
    let n = found.len() as i64;
    match dim {
        None => k.put_shaped("valueOut", &[n], &values.pick(found.iter().copied()))?,
        Some(d) => {
            let (len, step) = (x.dims[d] as usize, x.dims[d + 1..].iter().product::<i64>() as usize);
            let outer = x.dims[..d].iter().product::<i64>() as usize;
            let mut places = Vec::new();
            for o in 0..outer {
                for s in found {
                    places.extend((0..step).map(|i| (o * len + s) * step + i));
                }
            }
            let mut dims = x.dims.clone();
            dims[d] = n;
            k.put_shaped("valueOut", &dims, &values.pick(places.into_iter()))?;
        }
    }
    if k.flag("returnInverse")? && k.t("inverseOut")?.numel() > 0 {
        k.put("inverseOut", &Values::I(inverse))?;
    }
    if k.t("countsOut")?.numel() > 0 && k.flag("returnCounts").unwrap_or(true) {
        k.put_shaped("countsOut", &[n], &Values::I(count))?;
    }
    Ok(())
}

fn unique_consecutive(k: &Call) -> Outcome {
    let x = k.t("self")?;
    // No dimension is a number that no tensor has.
    let dim = usize::try_from(k.int("dim")?).ok().filter(|d| *d < x.dims.len() && *d < 1000);
    let (mut found, mut inverse, mut count) = (Vec::<usize>::new(), Vec::new(), Vec::new());
    let all = slices(x, &k.f("self")?, dim);
    for (i, s) in all.iter().enumerate() {
        if found.last().is_none_or(|l| all[*l] != *s) {
            found.push(i);
            count.push(0);
        }
        inverse.push(found.len() as i64 - 1);
        *count.last_mut().ok_or("no slice")? += 1;
    }
    // Of equal neighbours the first stands for all.
    answer(k, dim, &found, inverse, count)
}

fn unique_dim(k: &Call) -> Outcome {
    let x = k.t("self")?;
    let dim = k.int("dim")?.rem_euclid(x.dims.len() as i64) as usize;
    let all = slices(x, &k.f("self")?, Some(dim));
    let mut order: Vec<usize> = (0..all.len()).collect();
    let by_value = |a: &Vec<f64>, b: &Vec<f64>| {
        a.iter().zip(b).map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    order.sort_by(|a, b| by_value(&all[*a], &all[*b]));
    let (mut found, mut inverse, mut count) = (Vec::<usize>::new(), vec![0i64; all.len()], Vec::new());
    for i in order {
        if found.last().is_none_or(|l| all[*l] != all[i]) {
            found.push(i);
            count.push(0);
        }
        inverse[i] = found.len() as i64 - 1;
        *count.last_mut().ok_or("no slice")? += 1;
    }
    answer(k, Some(dim), &found, inverse, count)
}

/// Sums (mode 0), means (1) or largest values (2) of bags of rows.
fn embedding_bag(k: &Call) -> Outcome {
    let (w, index) = (k.t("weight")?, k.load("indices")?.ints());
    let (table, mode, pad) = (k.f("weight")?, k.int("mode")?, k.int("paddingIdx")?);
    let starts = k.load("offsets")?.ints();
    let last = k.flag("includeLastOffset")?;
    let bags = starts.len() - usize::from(last);
    let weights = k.opt_f("perSampleWeights")?;
    let n = w.dims[1] as usize;
    let end = |b: usize| starts.get(b + 1).map_or(index.len(), |e| *e as usize);
    let (mut out, mut owner) = (vec![0.0; bags * n], vec![0i64; index.len()]);
    let (mut size, mut top) = (vec![0i64; bags], vec![-1i64; bags * n]);
    for b in 0..bags {
        for i in starts[b] as usize..end(b) {
            owner[i] = b as i64;
            if index[i] == pad {
                continue;
            }
            size[b] += 1;
            for c in 0..n {
                let v = table[index[i] as usize * n + c] * weights.as_ref().map_or(1.0, |w| w[i]);
                let (o, t) = (&mut out[b * n + c], &mut top[b * n + c]);
                if mode != 2 {
                    *o += v;
                } else if *t < 0 || v > *o {
                    (*o, *t) = (v, index[i]);
                }
            }
        }
        if mode == 1 && size[b] > 0 {
            out[b * n..(b + 1) * n].iter_mut().for_each(|v| *v /= size[b] as f64);
        }
    }
    k.put("output", &Values::F(out))?;
    for (name, values) in [("offset2bag", owner), ("bagSize", size), ("maxIndices", top)] {
        if k.opt(name)?.is_some_and(|v| v.numel() == values.len()) {
            k.put(name, &Values::I(values))?;
        }
    }
    Ok(())
}

/// Sums of the copies of each slice.
fn repeat_interleave_grad(k: &Call) -> Outcome {
    let (g, out) = (k.t("yGrad")?, k.t("out")?);
    let axis = k.int("axis")?.rem_euclid(out.dims.len() as i64) as usize;
    let (v, repeats) = (k.f("yGrad")?, k.load("repeats")?.ints());
    let n = out.dims[axis] as usize;
    let step = out.dims[axis + 1..].iter().product::<i64>() as usize;
    let owner: Vec<usize> = (0..n)
        .flat_map(|i| {
            let times = if repeats.len() == 1 { repeats[0] } else { repeats[i] };
            std::iter::repeat_n(i, times as usize)
        })
        .collect();
    let long = g.dims[axis] as usize;
    if owner.len() != long {
        return Err(Fault::from(format!("{} copies for a dimension of {long}", owner.len())));
    }
    let mut dx = vec![0.0; out.numel()];
    for (i, v) in v.iter().enumerate() {
        let (o, at, e) = (i / (long * step), i / step % long, i % step);
        dx[(o * n + owner[at]) * step + e] += v;
    }
    k.put("out", &Values::F(dx))
}

fn channel_shuffle(k: &Call) -> Outcome {
    let x = k.t("self")?;
    let (v, groups) = (x.load(k.decl.name)?, k.int("groups")? as usize);
    let c = x.dims[1] as usize;
    let plane = x.dims[2..].iter().product::<i64>() as usize;
    let from = |i: usize| {
        let (n, ch, e) = (i / (c * plane), i / plane % c, i % plane);
        (n * c + ch % groups * (c / groups) + ch / groups) * plane + e
    };
    k.put("out", &v.pick((0..v.len()).map(from)))
}

/// Each tensor filled up with zeros to a multiple of the parts along `dim` and cut into them; part `i` of all, flattened, is
/// row `i` of the result.
fn chunk_cat(k: &Call) -> Outcome {
    let (dim, parts) = (k.int("dim")? as usize, k.int("numChunks")? as usize);
    let out = k.t("out")?;
    let outer: usize = out.dims[..dim].iter().product::<i64>() as usize;
    let mut rows = vec![Vec::new(); outer * parts];
    for x in k.list("tensors")? {
        let v = x.load(k.decl.name)?.floats();
        let (n, step) = (x.dims[dim] as usize, x.dims[dim + 1..].iter().product::<i64>() as usize);
        let each = n.div_ceil(parts);
        for (r, row) in rows.iter_mut().enumerate() {
            let (o, part) = (r / parts, r % parts);
            for i in part * each..(part + 1) * each {
                let from = (o * n + i) * step;
                row.extend((0..step).map(|e| if i < n { v[from + e] } else { 0.0 }));
            }
        }
    }
    k.put("out", &Values::F(rows.concat()))
}

pub(super) static OPS: &[Row] = &[
    ("ChunkCat", "tensors:F", chunk_cat),
    ("UniqueConsecutive", "self:FDIB null(inverseOut,countsOut)", unique_consecutive),
    ("UniqueDim", "self:FDIB null(inverseOut,countsOut)", unique_dim),
    (
        "EmbeddingBag",
        "weight:F indices:L offsets:L null(perSampleWeights,offset2bag,bagSize,maxIndices)",
        embedding_bag,
    ),
    ("RepeatInterleaveGrad", "yGrad:F repeats:L out(out)", repeat_interleave_grad),
    ("ChannelShuffle", "self:FDIB", channel_shuffle),
];
