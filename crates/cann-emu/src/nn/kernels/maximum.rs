//! Largest values of windows, with their places.

use super::Row;
use super::convolution::walk;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

/// For each output place of a dimension, the input places of its window.
type Windows = Vec<Vec<usize>>;

fn windows(k: &Call, input: &[usize], output: &[usize]) -> Result<Vec<Windows>, Fault> {
    let n = input.len();
    let list = |name: &str| -> Result<Vec<i64>, Fault> {
        let v = k.ints(name)?;
        Ok(if v.len() == 1 { vec![v[0]; n] } else { v })
    };
    let (size, mut step, padding, dilation) =
        (list("kernelSize")?, list("stride")?, list("padding")?, list("dilation")?);
    if step.is_empty() {
        step.clone_from(&size);
    }
    let one = |d: usize| -> Windows {
        let place = |o: i64, t: i64| o * step[d] - padding[d] + t * dilation[d];
        let inside = |p: &i64| *p >= 0 && *p < input[d] as i64;
        (0..output[d] as i64)
            .map(|o| (0..size[d]).map(|t| place(o, t)).filter(inside).map(|p| p as usize).collect())
            .collect()
    };
    Ok((0..n).map(one).collect())
}

fn adaptive(_: &Call, input: &[usize], output: &[usize]) -> Result<Vec<Windows>, Fault> {
    let part =
        |i: usize, o: usize| (0..o).map(|p| (p * i / o..((p + 1) * i).div_ceil(o)).collect()).collect();
    Ok(input.iter().zip(output).map(|(i, o)| part(*i, *o)).collect())
}

type Cut = fn(&Call, &[usize], &[usize]) -> Result<Vec<Windows>, Fault>;

fn largest(k: &Call, n: usize, cut: Cut, names: (&str, &str)) -> Outcome {
    let (x, out) = (k.t("self")?, k.t(names.0)?);
    let tail = |d: &[i64]| d[d.len() - n..].iter().map(|v| *v as usize).collect::<Vec<usize>>();
    let (input, output) = (tail(&x.dims), tail(&out.dims));
    let windows = cut(k, &input, &output)?;
    let a = k.f("self")?;
    let plane: usize = input.iter().product();
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for values_of_plane in a.chunks(plane.max(1)) {
        walk(&output, |at| {
            let counts: Vec<usize> = at.iter().zip(&windows).map(|(o, w)| w[*o].len()).collect();
            let mut best: Option<(f64, usize)> = None;
            walk(&counts, |choice| {
                let place = (0..n).fold(0, |p, d| p * input[d] + windows[d][at[d]][choice[d]]);
                let v = values_of_plane[place];
                if best.is_none_or(|(b, _)| v > b || v.is_nan()) {
                    best = Some((v, place));
                }
            });
            let (v, place) = best.unwrap_or((f64::NEG_INFINITY, 0));
            values.push(v);
            places.push(place as i64);
        });
    }
    k.put(names.0, &Values::F(values))?;
    k.put(names.1, &Values::I(places))
}

/// The place within the window that each largest value came from, as a bit in the row of that place: the form of the mask
/// is the emulator's own, nothing but the gradient reads it.
fn masked(k: &Call) -> Outcome {
    let (x, out, mask) = (k.t("self")?, k.t("out")?, k.t("indices")?);
    let tail = |d: &[i64]| d[d.len() - 2..].iter().map(|v| *v as usize).collect::<Vec<usize>>();
    let (input, output) = (tail(&x.dims), tail(&out.dims));
    let all = windows(k, &input, &output)?;
    let a = k.f("self")?;
    let (plane, count) = (input[0] * input[1], output[0] * output[1]);
    let mut values = Vec::new();
    let taps = k.ints("kernelSize")?.iter().product::<i64>() as usize;
    let planes = a.len() / plane.max(1);
    let row = mask.numel() * mask.dtype.size() / (planes * taps).max(1);
    if row * 8 < count {
        return Err(Fault::from(format!("a mask of {row} bytes for each of {taps} places, {count} windows")));
    }
    let mut bits = vec![0u8; planes * taps * row];
    for (p, of_plane) in a.chunks(plane.max(1)).enumerate() {
        let mut o = 0;
        walk(&output, |at| {
            let counts: Vec<usize> = at.iter().zip(&all).map(|(o, w)| w[*o].len()).collect();
            let (mut best, mut choice, mut tap) = (f64::NEG_INFINITY, 0, 0);
            walk(&counts, |c| {
                let v = of_plane[all[0][at[0]][c[0]] * input[1] + all[1][at[1]][c[1]]];
                if v > best || v.is_nan() || tap == 0 {
                    (best, choice) = (v, tap);
                }
                tap += 1;
            });
            values.push(best);
            bits[(p * taps + choice) * row + o / 8] |= 1 << (o % 8);
            o += 1;
        });
    }
    k.put("out", &Values::F(values))?;
    let bytes = bits.into_iter().map(|b| i64::from(b as i8)).collect();
    k.put("indices", &Values::I(bytes))
}

fn masked_grad(k: &Call) -> Outcome {
    let (x, dy) = (k.t("self")?, k.t("gradOutput")?);
    let tail = |d: &[i64]| d[d.len() - 2..].iter().map(|v| *v as usize).collect::<Vec<usize>>();
    let (input, output) = (tail(&x.dims), tail(&dy.dims));
    let all = windows(k, &input, &output)?;
    let g = k.f("gradOutput")?;
    let bits = k.load("indices")?.ints();
    let (plane, count) = (input[0] * input[1], output[0] * output[1]);
    let taps = k.ints("kernelSize")?.iter().product::<i64>() as usize;
    let planes = x.numel() / plane.max(1);
    let row = bits.len() / (planes * taps).max(1);
    let mut dx = vec![0.0; x.numel()];
    for p in 0..planes {
        let mut o = 0;
        walk(&output, |at| {
            let counts: Vec<usize> = at.iter().zip(&all).map(|(o, w)| w[*o].len()).collect();
            let mut tap = 0;
            walk(&counts, |c| {
                if bits[(p * taps + tap) * row + o / 8] >> (o % 8) & 1 == 1 {
                    dx[p * plane + all[0][at[0]][c[0]] * input[1] + all[1][at[1]][c[1]]] += g[p * count + o];
                }
                tap += 1;
            });
            o += 1;
        });
    }
    k.put("gradInput", &Values::F(dx))
}

/// Gradients go where the largest values came from.
fn scatter(k: &Call, n: usize) -> Outcome {
    let (x, g) = (k.t("self")?, k.f("gradOutput")?);
    let places = k.load("indices")?.ints();
    let plane = x.dims[x.dims.len() - n..].iter().product::<i64>() as usize;
    let planes = x.numel() / plane.max(1);
    let window = g.len() / planes.max(1);
    let mut dx = vec![0.0; x.numel()];
    for (i, v) in g.iter().enumerate() {
        dx[i / window.max(1) * plane + places[i] as usize] += v;
    }
    k.put("gradInput", &Values::F(dx))
}

/// Values back to the places in a plane that they came from, zeros elsewhere.
fn unpooled(k: &Call, n: usize) -> Outcome {
    let (x, out) = (k.f("self")?, k.t("out|outRef")?);
    let places = k.load("indices")?.ints();
    let plane = out.dims[out.dims.len() - n..].iter().product::<i64>() as usize;
    let window = x.len() / (out.numel() / plane.max(1)).max(1);
    let mut y = vec![0.0; out.numel()];
    for (i, v) in x.iter().enumerate() {
        y[i / window.max(1) * plane + places[i] as usize] = *v;
    }
    k.put_view(out, &Values::F(y))
}

fn unpooled_grad(k: &Call, n: usize) -> Outcome {
    let (g, from) = (k.f("gradOutput")?, k.t("gradOutput")?);
    let places = k.load("indices")?.ints();
    let plane = from.dims[from.dims.len() - n..].iter().product::<i64>() as usize;
    let window = places.len() / (g.len() / plane.max(1)).max(1);
    let dx = places.iter().enumerate().map(|(i, p)| g[i / window.max(1) * plane + *p as usize]);
    k.put("out", &Values::F(dx.collect()))
}

const POOL: (&str, &str) = ("out", "indices");
const ADAPTIVE: (&str, &str) = ("outputOut", "indicesOut");

pub(super) static OPS: &[Row] = &[
    ("MaxPool2dWithIndices", "self:FD out(indices)", |k| largest(k, 2, windows, POOL)),
    ("MaxPool2dWithMask", "self:FD out(indices)", masked),
    ("MaxPool2dWithMaskBackward", "gradOutput:FD", masked_grad),
    ("MaxPool3dWithArgmax", "self:FD out(indices)", |k| largest(k, 3, windows, POOL)),
    ("AdaptiveMaxPool2d", "self:FD", |k| largest(k, 2, adaptive, ADAPTIVE)),
    ("AdaptiveMaxPool3d", "self:FD", |k| largest(k, 3, adaptive, ADAPTIVE)),
    ("MaxUnpool2d", "self:FD indices:I", |k| unpooled(k, 2)),
    ("MaxUnpool3d", "self:FD indices:I", |k| unpooled(k, 3)),
    ("MaxUnpool2dBackward", "gradOutput:FD indices:I", |k| unpooled_grad(k, 2)),
    ("MaxUnpool3dBackward", "gradOutput:FD indices:I", |k| unpooled_grad(k, 3)),
    ("MaxPool2dWithIndicesBackward", "gradOutput:FD indices:I", |k| scatter(k, 2)),
    ("MaxPool3dWithArgmaxBackward", "gradOutput:FD indices:I", |k| scatter(k, 3)),
    ("AdaptiveMaxPool2dBackward", "gradOutput:FD indices:I", |k| scatter(k, 2)),
    ("AdaptiveMaxPool3dBackward", "gradOutput:FD indices:I", |k| scatter(k, 3)),
];
