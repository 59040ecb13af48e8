//! Maps that give each place of a plane a weighted sum of places of another, dimension by dimension: padding, resizing,
//! averages of windows. The gradient of each is the transposed map.

use super::Row;
use super::convolution::walk;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// For each place of an output dimension: places of the input dimension with weights.
type Taps = Vec<Vec<(usize, f64)>>;

/// Sizes of the last `n` dimensions, and the number of planes before them.
fn planes(v: &View, n: usize) -> (usize, Vec<usize>) {
    let cut = v.dims.len() - n;
    let outer = v.dims[..cut].iter().product::<i64>() as usize;
    (outer, v.dims[cut..].iter().map(|d| *d as usize).collect())
}

/// Calls `f` with an output place, an input place and the weight between them, over all planes.
fn each(outer: usize, input: &[usize], taps: &[Taps], mut f: impl FnMut(usize, usize, f64)) {
    let output: Vec<usize> = taps.iter().map(Vec::len).collect();
    let mut links = Vec::new();
    let mut o = 0;
    walk(&output, |at| {
        let counts: Vec<usize> = at.iter().zip(taps).map(|(i, t)| t[*i].len()).collect();
        walk(&counts, |choice| {
            let (mut place, mut weight) = (0, 1.0);
            for d in 0..at.len() {
                let (i, w) = taps[d][at[d]][choice[d]];
                place = place * input[d] + i;
                weight *= w;
            }
            links.push((o, place, weight));
        });
        o += 1;
    });
    let (wide, narrow) = (input.iter().product::<usize>(), o);
    for n in 0..outer {
        links.iter().for_each(|(o, i, w)| f(n * narrow + o, n * wide + i, *w));
    }
}

fn forward(k: &Call, from: &str, to: &str, taps: &[Taps]) -> Outcome {
    let (x, out) = (k.t(from)?, k.t(to)?);
    let (outer, input) = planes(x, taps.len());
    let a = k.f(from)?;
    let mut y = vec![0.0; out.numel()];
    each(outer, &input, taps, |o, i, w| y[o] += a[i] * w);
    k.put(to, &Values::F(y))
}

fn backward(k: &Call, from: &str, to: &str, taps: &[Taps]) -> Outcome {
    let out = k.t(to)?;
    let (outer, input) = planes(out, taps.len());
    let g = k.f(from)?;
    let mut dx = vec![0.0; out.numel()];
    each(outer, &input, taps, |o, i, w| dx[i] += g[o] * w);
    k.put(to, &Values::F(dx))
}

/// Sizes of the last dimensions of input and output of a call.
fn both(k: &Call, input: &str, output: &str, n: usize) -> Result<(Vec<usize>, Vec<usize>), Fault> {
    Ok((planes(k.t(input)?, n).1, planes(k.t(output)?, n).1))
}

/// Padding of `n` dimensions, last first, by a rule that brings a place outside back inside.
fn padded(k: &Call, input: &str, n: usize, inside: fn(i64, i64) -> i64) -> Result<Vec<Taps>, Fault> {
    let (_, sizes) = planes(k.t(input)?, n);
    let padding = k.ints("padding")?;
    let one = |d: usize| -> Taps {
        let (before, after) = (padding[2 * (n - 1 - d)], padding[2 * (n - 1 - d) + 1]);
        let len = sizes[d] as i64;
        (-before..len + after).map(|i| vec![(inside(i, len) as usize, 1.0)]).collect()
    };
    Ok((0..n).map(one).collect())
}

fn reflected(i: i64, len: i64) -> i64 {
    let i = i.abs();
    if i >= len { 2 * (len - 1) - i } else { i }
}

fn clamped(i: i64, len: i64) -> i64 {
    i.clamp(0, len - 1)
}

fn pad(k: &Call, n: usize, inside: fn(i64, i64) -> i64) -> Outcome {
    forward(k, "self", "out", &padded(k, "self", n, inside)?)
}

fn pad_grad(k: &Call, n: usize, inside: fn(i64, i64) -> i64) -> Outcome {
    backward(k, "gradOutput", "gradInput", &padded(k, "self", n, inside)?)
}

/// How far apart the inputs of two neighbouring outputs are: what the caller's factor says, or the sizes.
fn step(input: usize, output: usize, factor: f64, corners: bool) -> f64 {
    if corners {
        return if output > 1 { (input as f64 - 1.0) / (output as f64 - 1.0) } else { 0.0 };
    }
    if factor > 0.0 { 1.0 / factor } else { input as f64 / output as f64 }
}

fn nearest(input: usize, output: usize, factor: f64) -> Taps {
    // In f32, as the frameworks do: places on an edge fall to the same side.
    let step = if factor > 0.0 { (1.0 / factor) as f32 } else { input as f32 / output as f32 };
    let at = |i: usize| ((i as f32 * step).floor() as usize).min(input - 1);
    (0..output).map(|i| vec![(at(i), 1.0)]).collect()
}

/// The place under the middle of each output.
fn exact(input: usize, output: usize, factor: f64, _corners: bool) -> Taps {
    let step = if factor > 0.0 { (1.0 / factor) as f32 } else { input as f32 / output as f32 };
    let at = |i: usize| (((i as f32 + 0.5) * step).floor() as usize).min(input - 1);
    (0..output).map(|i| vec![(at(i), 1.0)]).collect()
}

/// A filter as wide as the outputs are apart, at least `reach` inputs to each side.
fn smoothed(input: usize, output: usize, step: f64, reach: f64, filter: impl Fn(f64) -> f64) -> Taps {
    let scale = step.max(1.0);
    let one = |i: usize| {
        let middle = step * (i as f64 + 0.5);
        let low = (middle - reach * scale + 0.5).max(0.0) as usize;
        let high = ((middle + reach * scale + 0.5) as usize).min(input);
        let weight = |j: usize| filter((j as f64 - middle + 0.5) / scale);
        let sum: f64 = (low..high).map(weight).sum();
        (low..high).map(|j| (j, if sum == 0.0 { 0.0 } else { weight(j) / sum })).collect()
    };
    (0..output).map(one).collect()
}

fn smooth_linear(input: usize, output: usize, factor: f64, corners: bool) -> Taps {
    smoothed(input, output, step(input, output, factor, corners), 1.0, |x| (1.0 - x.abs()).max(0.0))
}

/// Keys' kernel with a = -0.5.
fn smooth_cubic(input: usize, output: usize, factor: f64, corners: bool) -> Taps {
    let keys = |x: f64| {
        let (x, a) = (x.abs(), -0.5);
        if x < 1.0 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else if x < 2.0 {
            ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
        } else {
            0.0
        }
    };
    smoothed(input, output, step(input, output, factor, corners), 2.0, keys)
}

fn linear(input: usize, output: usize, factor: f64, corners: bool) -> Taps {
    let step = step(input, output, factor, corners);
    let one = |i: usize| {
        let i = i as f64;
        let at = if corners { i * step } else { ((i + 0.5) * step - 0.5).max(0.0) };
        let low = (at as usize).min(input - 1);
        let part = (at - low as f64).min(1.0);
        vec![(low, 1.0 - part), ((low + 1).min(input - 1), part)]
    };
    (0..output).map(one).collect()
}

/// Keys' kernel with a = -0.75.
fn cubic(input: usize, output: usize, factor: f64, corners: bool) -> Taps {
    let step = step(input, output, factor, corners);
    let a = -0.75;
    let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    let one = |i: usize| {
        let i = i as f64;
        let at = if corners { i * step } else { (i + 0.5) * step - 0.5 };
        let (low, t) = (at.floor() as i64, at - at.floor());
        let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
        let place = |j: usize| clamped(low - 1 + j as i64, input as i64) as usize;
        weights.iter().enumerate().map(|(j, w)| (place(j), *w)).collect()
    };
    (0..output).map(one).collect()
}

/// Sizes of the spatial dimensions that a list of the call holds in its last `n` entries.
fn listed(k: &Call, name: &str, n: usize) -> Result<Vec<usize>, Fault> {
    let list = k.ints(name)?;
    Ok(list[list.len().saturating_sub(n)..].iter().map(|v| *v as usize).collect())
}

type Resize = fn(usize, usize, f64, bool) -> Taps;

fn resized(k: &Call, input: &[usize], output: &[usize], how: Resize) -> Result<Vec<Taps>, Fault> {
    let corners = k.flag("alignCorners").unwrap_or(false);
    let names: &[&str] = match input.len() {
        1 => &["scales|scaleL"],
        2 => &["scalesH", "scalesW"],
        _ => &["scalesD", "scalesH", "scalesW"],
    };
    let factor = |d: usize| k.num(names[d]).unwrap_or(0.0);
    Ok((0..input.len()).map(|d| how(input[d], output[d], factor(d), corners)).collect())
}

fn resize(k: &Call, n: usize, how: Resize) -> Outcome {
    let from = "self|input|x";
    let (input, output) = both(k, from, "out", n)?;
    forward(k, from, "out", &resized(k, &input, &output, how)?)
}

fn resize_grad(k: &Call, n: usize, how: Resize) -> Outcome {
    let (input, output) = (listed(k, "inputSize", n)?, listed(k, "outputSize", n)?);
    backward(k, "gradOut|gradOutput", "gradInput|out", &resized(k, &input, &output, how)?)
}

fn by_nearest(input: usize, output: usize, factor: f64, _corners: bool) -> Taps {
    nearest(input, output, factor)
}

/// Windows that cut a dimension into `output` nearly equal parts.
fn adaptive(input: usize, output: usize) -> Taps {
    let one = |i: usize| {
        let (start, end) = (i * input / output, ((i + 1) * input).div_ceil(output));
        (start..end).map(|p| (p, 1.0 / (end - start) as f64)).collect()
    };
    (0..output).map(one).collect()
}

fn adaptive_average(k: &Call, n: usize) -> Outcome {
    let (input, output) = both(k, "self", "out", n)?;
    let taps: Vec<Taps> = input.iter().zip(&output).map(|(i, o)| adaptive(*i, *o)).collect();
    forward(k, "self", "out", &taps)
}

fn adaptive_average_grad(k: &Call, n: usize) -> Outcome {
    let (input, output) = both(k, "self", "gradOutput", n)?;
    let taps: Vec<Taps> = input.iter().zip(&output).map(|(i, o)| adaptive(*i, *o)).collect();
    backward(k, "gradOutput", "out", &taps)
}

/// Averages of windows; the divisor counts padding, or not, or is given.
fn averages(k: &Call, input: &[usize], output: &[usize]) -> Result<Vec<Taps>, Fault> {
    let n = input.len();
    let list = |name: &str| -> Result<Vec<i64>, Fault> {
        let v = k.ints(name)?;
        Ok(if v.len() == 1 { vec![v[0]; n] } else { v })
    };
    let (size, mut step, padding) = (list("kernelSize")?, list("stride|strides")?, list("padding|paddings")?);
    if step.is_empty() {
        step.clone_from(&size);
    }
    let counts_padding = k.flag("countIncludePad")?;
    let given = k.int("divisorOverride")?;
    let one = |d: usize| -> Taps {
        let len = input[d] as i64;
        (0..output[d] as i64)
            .map(|o| {
                let start = o * step[d] - padding[d];
                let end = (start + size[d]).min(len + padding[d]);
                let (low, high) = (start.max(0), end.min(len));
                let divisor = match given {
                    0 if counts_padding => (end - start) as f64,
                    0 => (high - low) as f64,
                    // The whole window's divisor stands at the first dimension.
                    v => {
                        if d == 0 {
                            v as f64
                        } else {
                            1.0
                        }
                    }
                };
                (low..high).map(|p| (p as usize, 1.0 / divisor)).collect()
            })
            .collect()
    };
    Ok((0..n).map(one).collect())
}

fn average(k: &Call, n: usize) -> Outcome {
    let (input, output) = both(k, "self", "out", n)?;
    forward(k, "self", "out", &averages(k, &input, &output)?)
}

fn average_grad(k: &Call, n: usize) -> Outcome {
    // The published prototype of the three-dimensional form spells it so.
    let gradient = "gradOutput|gradOuput";
    let (input, output) = both(k, "self", gradient, n)?;
    backward(k, gradient, "gradInput|output", &averages(k, &input, &output)?)
}

const X: &str = "self:FD";
const G: &str = "gradOutput:FD";

/// The contract of the gradient of resizing `n` dimensions: shapes of `rank` dimensions that end in the given sizes.
macro_rules! back {
    ($gradient:literal $out:literal $n:literal $rank:literal) => {
        clauses!(
            concat!($gradient, ":FD type(", $gradient, ",", $out, ")"),
            concat!("rank(", $gradient, ",", $rank, ") rank(", $out, ",", $rank, ")"),
            concat!("count(outputSize,", $n, ") count(inputSize,", $rank, ")"),
            concat!("ends(", $gradient, ",outputSize) ends(", $out, ",inputSize)")
        )
    };
}

pub(super) static OPS: &[Row] = &[
    ("ReflectionPad1d", X, |k| pad(k, 1, reflected)),
    ("ReflectionPad2d", X, |k| pad(k, 2, reflected)),
    ("ReflectionPad3d", X, |k| pad(k, 3, reflected)),
    ("ReplicationPad1d", X, |k| pad(k, 1, clamped)),
    ("ReplicationPad2d", X, |k| pad(k, 2, clamped)),
    ("ReplicationPad3d", X, |k| pad(k, 3, clamped)),
    ("ReflectionPad1dBackward", G, |k| pad_grad(k, 1, reflected)),
    ("ReflectionPad2dBackward", G, |k| pad_grad(k, 2, reflected)),
    ("ReflectionPad3dBackward", G, |k| pad_grad(k, 3, reflected)),
    ("ReplicationPad1dBackward", G, |k| pad_grad(k, 1, clamped)),
    ("ReplicationPad2dBackward", G, |k| pad_grad(k, 2, clamped)),
    ("ReplicationPad3dBackward", G, |k| pad_grad(k, 3, clamped)),
    ("UpsampleNearest1d", X, |k| resize(k, 1, by_nearest)),
    ("UpsampleNearest1dV2", X, |k| resize(k, 1, by_nearest)),
    ("UpsampleNearest2d", X, |k| resize(k, 2, by_nearest)),
    ("UpsampleNearest2dV2", X, |k| resize(k, 2, by_nearest)),
    ("UpsampleLinear1d", X, |k| resize(k, 1, linear)),
    ("UpsampleBilinear2d", X, |k| resize(k, 2, linear)),
    ("UpsampleBicubic2d", X, |k| resize(k, 2, cubic)),
    ("UpsampleNearest1dBackward", back!("gradOut" "out" 1 3), |k| resize_grad(k, 1, by_nearest)),
    ("UpsampleNearest2dBackward", back!("gradOut" "gradInput" 2 4), |k| resize_grad(k, 2, by_nearest)),
    ("UpsampleLinear1dBackward", back!("gradOut" "out" 1 3), |k| resize_grad(k, 1, linear)),
    ("UpsampleBilinear2dBackward", back!("gradOut" "out" 2 4), |k| resize_grad(k, 2, linear)),
    ("UpsampleBilinear2dBackwardV2", back!("gradOut" "out" 2 4), |k| resize_grad(k, 2, linear)),
    ("UpsampleBicubic2dBackward", back!("gradOut" "gradInput" 2 4), |k| resize_grad(k, 2, cubic)),
    ("UpsampleNearest3d", X, |k| resize(k, 3, by_nearest)),
    ("UpsampleTrilinear3d", X, |k| resize(k, 3, linear)),
    ("UpsampleNearestExact1d", X, |k| resize(k, 1, exact)),
    ("UpsampleNearestExact2d", X, |k| resize(k, 2, exact)),
    ("UpsampleNearestExact3d", X, |k| resize(k, 3, exact)),
    ("UpsampleBilinear2dAA", "input:FD", |k| resize(k, 2, smooth_linear)),
    ("UpsampleBicubic2dAA", "x:FD", |k| resize(k, 2, smooth_cubic)),
    ("UpsampleNearest3dBackward", back!("gradOut" "gradInput" 3 5), |k| resize_grad(k, 3, by_nearest)),
    ("UpsampleTrilinear3dBackward", back!("gradOut" "gradInput" 3 5), |k| resize_grad(k, 3, linear)),
    ("UpsampleNearestExact1dBackward", back!("gradOutput" "out" 1 3), |k| resize_grad(k, 1, exact)),
    ("UpsampleNearestExact2dBackward", back!("gradOutput" "out" 2 4), |k| resize_grad(k, 2, exact)),
    ("UpsampleNearestExact3dBackward", back!("gradOut" "gradInput" 3 5), |k| resize_grad(k, 3, exact)),
    ("UpsampleBilinear2dAABackward", back!("gradOutput" "out" 2 4), |k| resize_grad(k, 2, smooth_linear)),
    ("UpsampleBicubic2dAAGrad", back!("gradOutput" "out" 2 4), |k| resize_grad(k, 2, smooth_cubic)),
    ("AdaptiveAvgPool2d", X, |k| adaptive_average(k, 2)),
    ("AdaptiveAvgPool3d", X, |k| adaptive_average(k, 3)),
    ("AdaptiveAvgPool2dBackward", G, |k| adaptive_average_grad(k, 2)),
    ("AdaptiveAvgPool3dBackward", G, |k| adaptive_average_grad(k, 3)),
    ("AvgPool2d", X, |k| average(k, 2)),
    ("AvgPool3d", X, |k| average(k, 3)),
    ("AvgPool2dBackward", G, |k| average_grad(k, 2)),
    ("AvgPool3dBackward", "self:FD", |k| average_grad(k, 3)),
];
