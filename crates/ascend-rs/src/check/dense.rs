//! Element-wise operators, shapes, reductions, products, norms, activations, the optimizer.

use super::{Bench, Check, FLOATS, Given, gradient};
use crate::{Number, Result, View, ops};
use ms_core::DType;

const ONE: Number = Number::F32(1.0);

/// An operator of one tensor, its formula, and what brings the noise into its domain.
fn unary(
    b: &mut Bench<'_>,
    run: for<'a> fn(&'a crate::Stream, View<'a>, View<'a>) -> Result<()>,
    domain: fn(f64) -> f64,
    f: fn(f64) -> f64,
) -> Result<()> {
    let shape = [b.size.rows, b.size.columns];
    let values: Vec<f64> = b.noise(shape[0] * shape[1]).into_iter().map(domain).collect();
    let x = b.give(&shape, &values)?;
    let y = b.empty(&shape)?;
    run(b.stream, x.view()?, y.view()?)?;
    let want: Vec<f64> = x.v.iter().map(|v| f(*v)).collect();
    b.near("y", &y, &want)
}

/// An operator of two tensors, the second a row that is broadcast.
fn binary(
    b: &mut Bench<'_>,
    run: for<'a> fn(&'a crate::Stream, View<'a>, View<'a>, View<'a>) -> Result<()>,
    f: fn(f64, f64) -> f64,
) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let values: Vec<f64> = b.noise(n).into_iter().map(|v| v + 2.5).collect();
    let row = b.give(&[1, n], &values)?;
    let y = b.empty(&[m, n])?;
    run(b.stream, x.view()?, row.view()?, y.view()?)?;
    let want: Vec<f64> = x.v.iter().enumerate().map(|(i, v)| f(*v, row.v[i % n])).collect();
    b.near("y", &y, &want)?;
    // The operands transposed by strides.
    let (x, w) = (b.random(&[n, m])?, b.random(&[m, n])?);
    let shifted: Vec<f64> = w.v.iter().map(|v| v + 2.5).collect();
    let w = b.give(&[m, n], &shifted)?;
    run(b.stream, x.view()?.transposed(), w.view()?, y.view()?)?;
    let want: Vec<f64> = (0..m * n).map(|i| f(x.v[i % n * m + i / n], w.v[i])).collect();
    b.near("y of a transposed operand", &y, &want)
}

fn numbers(b: &mut Bench<'_>) -> Result<()> {
    let shape = [b.size.rows, b.size.columns];
    let x = b.random(&shape)?;
    let y = b.empty(&shape)?;
    ops::add_number(b.stream, x.view()?, Number::F32(0.5), Number::F32(2.0), y.view()?)?;
    b.near("x + 2 · 0.5", &y, &x.v.iter().map(|v| v + 1.0).collect::<Vec<_>>())?;
    ops::mul_number(b.stream, x.view()?, Number::F32(-1.5), y.view()?)?;
    b.near("x · -1.5", &y, &x.v.iter().map(|v| v * -1.5).collect::<Vec<_>>())?;
    ops::div_number(b.stream, x.view()?, Number::F32(4.0), y.view()?)?;
    b.near("x / 4", &y, &x.v.iter().map(|v| v / 4.0).collect::<Vec<_>>())
}

fn copies(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let y = b.empty_as(dtype, &[m, n])?;
        ops::cast(b.stream, x.view()?, dtype, y.view()?)?;
        b.near("cast", &y, &x.v)?;
    }
    let y = b.empty(&[n, m])?;
    ops::InplaceCopy { to: y.view()?, from: x.view()?.transposed() }.run(b.stream)?;
    let turned: Vec<f64> = (0..m * n).map(|i| x.v[i % m * n + i / m]).collect();
    b.near("copy of a transposed view", &y, &turned)?;
    ops::permute(b.stream, x.view()?, &[1, 0], y.view()?)?;
    b.near("permuted", &y, &turned)?;
    ops::zero(b.stream, y.view()?)?;
    b.near("zeros", &y, &vec![0.0; m * n])?;
    ops::fill(b.stream, y.view()?, Number::F32(0.75))?;
    b.near("filled", &y, &vec![0.75; m * n])
}

fn shapes(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let (x, y) = (b.random(&[m, n])?, b.random(&[m, n])?);
    let both = b.empty(&[m, 2 * n])?;
    ops::cat(b.stream, vec![x.view()?, y.view()?], 1, both.view()?)?;
    let want: Vec<f64> =
        (0..m).flat_map(|r| [&x.v[r * n..(r + 1) * n], &y.v[r * n..(r + 1) * n]].concat()).collect();
    b.near("concatenated", &both, &want)?;
    let part = b.empty(&[m, n])?;
    let (start, end) = (n as i64, 2 * n as i64);
    ops::Slice { x: both.view()?, dim: 1, start, end, step: 1, out: part.view()? }.run(b.stream)?;
    b.near("slice", &part, &y.v)?;
    let upper = b.empty(&[m, n])?;
    ops::triu(b.stream, x.view()?, 1, upper.view()?)?;
    let want: Vec<f64> = x.v.iter().enumerate().map(|(i, v)| if i % n > i / n { *v } else { 0.0 }).collect();
    b.near("upper triangle", &upper, &want)?;
    let count = b.empty_as(DType::I64, &[n])?;
    let (start, end) = (Number::I64(3), Number::I64(3 + 2 * n as i64));
    ops::Arange { start, end, step: Number::I64(2), out: count.view()? }.run(b.stream)?;
    b.near("numbers", &count, &(0..n).map(|i| 3.0 + 2.0 * i as f64).collect::<Vec<_>>())
}

fn choices(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let (x, y) = (b.random(&[m, n])?, b.random(&[m, n])?);
    let flags: Vec<f64> = b.noise(m * n).into_iter().map(|v| f64::from(u8::from(v > 0.0))).collect();
    let mask = b.give_as(DType::Bool, &[m, n], &flags)?;
    let out = b.empty(&[m, n])?;
    ops::select(b.stream, mask.view()?, x.view()?, y.view()?, out.view()?)?;
    let want: Vec<f64> = (0..m * n).map(|i| if flags[i] > 0.0 { x.v[i] } else { y.v[i] }).collect();
    b.near("selected", &out, &want)?;
    ops::masked_fill(b.stream, out.view()?, mask.view()?, Number::F32(-2.0))?;
    let want: Vec<f64> = want.iter().zip(&flags).map(|(v, f)| if *f > 0.0 { -2.0 } else { *v }).collect();
    b.near("masked", &out, &want)?;
    let mut values = x.v.clone();
    values[0] = f64::INFINITY;
    *values.last_mut().expect("a check has elements") = f64::NAN;
    let odd = b.give(&[m, n], &values)?;
    let finite = b.empty_as(DType::Bool, &[m, n])?;
    ops::is_finite(b.stream, odd.view()?, finite.view()?)?;
    b.near("finite", &finite, &values.iter().map(|v| f64::from(u8::from(v.is_finite()))).collect::<Vec<_>>())
}

fn reductions(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let rows = |f: &dyn Fn(&[f64]) -> f64| -> Vec<f64> { x.v.chunks(n).map(f).collect() };
    let y = b.empty(&[m, 1])?;
    ops::sum(b.stream, x.view()?, &[1], true, b.dtype, y.view()?)?;
    b.near("sums", &y, &rows(&|r| r.iter().sum()))?;
    ops::mean(b.stream, x.view()?, &[-1], true, b.dtype, y.view()?)?;
    b.near("means", &y, &rows(&|r| r.iter().sum::<f64>() / n as f64))?;
    ops::amax(b.stream, x.view()?, &[1], true, y.view()?)?;
    b.near("largest", &y, &rows(&|r| r.iter().copied().fold(f64::MIN, f64::max)))?;
    ops::vector_norm(b.stream, x.view()?, Number::F32(2.0), &[1], true, b.dtype, y.view()?)?;
    b.near("norms", &y, &rows(&|r| r.iter().map(|v| v * v).sum::<f64>().sqrt()))?;
    let whole = b.empty(&[1, 1])?;
    ops::sum(b.stream, x.view()?, &[0, 1], true, b.dtype, whole.view()?)?;
    b.near("sum", &whole, &[x.v.iter().sum()])?;
    let place = b.empty_as(DType::I64, &[m])?;
    ops::arg_max(b.stream, x.view()?, 1, false, place.view()?)?;
    let first = |r: &[f64]| {
        let best = r.iter().copied().fold(f64::MIN, f64::max);
        r.iter().position(|v| *v == best).unwrap_or(0) as f64
    };
    b.near("places of the largest", &place, &rows(&first))?;
    // Values that differ, so that their order is one.
    let values: Vec<f64> = (0..m * n).map(|i| ((i * 7 + 3) % (m * n + 1)) as f64 / 64.0).collect();
    let k = n.min(3);
    let (x, top, at) = (b.give(&[m, n], &values)?, b.empty(&[m, k])?, b.empty_as(DType::I64, &[m, k])?);
    ops::Topk {
        x: x.view()?,
        k: k as i64,
        dim: 1,
        largest: true,
        sorted: true,
        values: top.view()?,
        indices: at.view()?,
    }
    .run(b.stream)?;
    let (mut best, mut places) = (Vec::new(), Vec::new());
    for row in x.v.chunks(n) {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        best.extend(order[..k].iter().map(|i| row[*i]));
        places.extend(order[..k].iter().map(|i| *i as f64));
    }
    b.near("the largest", &top, &best)?;
    // Rounding to 16 bits may make equal neighbours, whose order is open.
    if b.dtype == DType::F32 { b.near("their places", &at, &places) } else { Ok(()) }
}

fn rows_by_index(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let count = m + 2;
    let index: Vec<f64> = (0..count).map(|i| ((i * 5 + 1) % m) as f64).collect();
    let at = b.give_as(DType::I64, &[count], &index)?;
    let want: Vec<f64> =
        index.iter().flat_map(|i| x.v[*i as usize * n..(*i as usize + 1) * n].to_vec()).collect();
    let y = b.empty(&[count, n])?;
    ops::index_select(b.stream, x.view()?, 0, at.view()?, y.view()?)?;
    b.near("rows", &y, &want)?;
    ops::embedding(b.stream, x.view()?, at.view()?, y.view()?)?;
    b.near("embedding", &y, &want)?;
    let dy = b.random(&[count, n])?;
    let dw = b.empty(&[m, n])?;
    ops::EmbeddingDenseBackward {
        grad: dy.view()?,
        indices: at.view()?,
        num_weights: m as u64,
        padding_idx: u64::MAX,
        scale_grad_by_freq: false,
        out: dw.view()?,
    }
    .run(b.stream)?;
    let mut sums = vec![0.0; m * n];
    for (i, v) in dy.v.iter().enumerate() {
        sums[index[i / n] as usize * n + i % n] += v;
    }
    b.near("gradient of the embedding", &dw, &sums)?;
    let column: Vec<f64> = (0..m).map(|r| (r % n) as f64).collect();
    let at = b.give_as(DType::I64, &[m, 1], &column)?;
    let y = b.empty(&[m, 1])?;
    ops::gather(b.stream, x.view()?, 1, at.view()?, y.view()?)?;
    b.near("gathered", &y, &(0..m).map(|r| x.v[r * n + r % n]).collect::<Vec<_>>())
}

/// `[m,k] · [k,n]` in f64.
fn product(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    (0..m * n).map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum()).collect()
}

fn products(b: &mut Bench<'_>) -> Result<()> {
    let (m, k) = (b.size.rows, b.size.columns);
    let n = m + 1;
    let (x, w) = (b.random(&[m, k])?, b.random(&[k, n])?);
    let y = b.empty(&[m, n])?;
    ops::mm(b.stream, x.view()?, w.view()?, y.view()?, 0)?;
    b.near("product", &y, &product(&x.v, &w.v, m, k, n))?;
    let t = b.random(&[n, k])?;
    ops::mm(b.stream, x.view()?, t.view()?.transposed(), y.view()?, 0)?;
    let turned: Vec<f64> = (0..k * n).map(|i| t.v[i % n * k + i / n]).collect();
    b.near("product with a transposed matrix", &y, &product(&x.v, &turned, m, k, n))?;
    let (x, w) = (b.random(&[2, m, k])?, b.random(&[2, k, n])?);
    let y = b.empty(&[2, m, n])?;
    ops::batch_matmul(b.stream, x.view()?, w.view()?, y.view()?, 0)?;
    let part =
        |i: usize| product(&x.v[i * m * k..(i + 1) * m * k], &w.v[i * k * n..(i + 1) * k * n], m, k, n);
    b.near("products", &y, &[part(0), part(1)].concat())?;
    let shared = b.random(&[k, n])?;
    ops::matmul(b.stream, x.view()?, shared.view()?, y.view()?, 0)?;
    b.near("products with one matrix", &y, &product(&x.v, &shared.v, 2 * m, k, n))
}

fn rms(x: &[f64], w: &[f64], n: usize, epsilon: f64) -> (Vec<f64>, Vec<f64>) {
    let rstd: Vec<f64> = x
        .chunks(n)
        .map(|r| 1.0 / (r.iter().map(|v| v * v).sum::<f64>() / n as f64 + epsilon).sqrt())
        .collect();
    (x.iter().enumerate().map(|(i, v)| v * rstd[i / n] * w[i % n]).collect(), rstd)
}

fn rms_norm(b: &mut Bench<'_>) -> Result<()> {
    let (m, n, epsilon) = (b.size.rows, b.size.columns, 1e-5);
    let (x, w, dy) = (b.random(&[m, n])?, b.random(&[n])?, b.random(&[m, n])?);
    let (y, rstd) = (b.empty(&[m, n])?, b.empty_as(DType::F32, &[m, 1])?);
    ops::rms_norm(b.stream, x.view()?, w.view()?, epsilon, y.view()?, rstd.view()?)?;
    let (want, scales) = rms(&x.v, &w.v, n, epsilon);
    b.near("y", &y, &want)?;
    b.near("rstd", &rstd, &scales)?;
    let (dx, dw) = (b.empty(&[m, n])?, b.empty_as(DType::F32, &[n])?);
    ops::RmsNormGrad {
        dy: dy.view()?,
        x: x.view()?,
        rstd: rstd.view()?,
        gamma: w.view()?,
        dx: dx.view()?,
        dgamma: dw.view()?,
    }
    .run(b.stream)?;
    let want = gradient(|x| rms(x, &w.v, n, epsilon).0, &x.v, &dy.v);
    b.near("dx", &dx, &want)?;
    b.near("dgamma", &dw, &gradient(|w| rms(&x.v, w, n, epsilon).0, &w.v, &dy.v))
}

fn layer(x: &[f64], w: &[f64], shift: &[f64], n: usize, epsilon: f64) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks(n) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let scale = 1.0 / (variance + epsilon).sqrt();
        out.extend(row.iter().enumerate().map(|(i, v)| (v - mean) * scale * w[i] + shift[i]));
    }
    out
}

fn layer_norm(b: &mut Bench<'_>) -> Result<()> {
    // A row of one value has no variance: with this epsilon its gradient does not drown in its own rounding.
    let (m, n, epsilon) = (b.size.rows, b.size.columns, 1e-2);
    let (x, dy) = (b.random(&[m, n])?, b.random(&[m, n])?);
    let (w, c) = (b.random(&[n])?, b.random(&[n])?);
    let (y, mean, rstd) =
        (b.empty(&[m, n])?, b.empty_as(DType::F32, &[m, 1])?, b.empty_as(DType::F32, &[m, 1])?);
    let shape = [n as i64];
    ops::LayerNorm {
        input: x.view()?,
        normalized_shape: &shape,
        weight: Some(w.view()?),
        bias: Some(c.view()?),
        eps: epsilon,
        out: y.view()?,
        mean: Some(mean.view()?),
        rstd: Some(rstd.view()?),
    }
    .run(b.stream)?;
    b.near("y", &y, &layer(&x.v, &w.v, &c.v, n, epsilon))?;
    b.near("mean", &mean, &x.v.chunks(n).map(|r| r.iter().sum::<f64>() / n as f64).collect::<Vec<_>>())?;
    let (dx, dw, dc) = (b.empty(&[m, n])?, b.empty(&[n])?, b.empty(&[n])?);
    ops::LayerNormBackward {
        grad_out: dy.view()?,
        input: x.view()?,
        normalized_shape: &shape,
        mean: mean.view()?,
        rstd: rstd.view()?,
        weight: Some(w.view()?),
        bias: Some(c.view()?),
        output_mask: &[true; 3],
        grad_input: Some(dx.view()?),
        grad_weight: Some(dw.view()?),
        grad_bias: Some(dc.view()?),
    }
    .run(b.stream)?;
    b.near("dx", &dx, &gradient(|x| layer(x, &w.v, &c.v, n, epsilon), &x.v, &dy.v))?;
    b.near("dweight", &dw, &gradient(|w| layer(&x.v, w, &c.v, n, epsilon), &w.v, &dy.v))?;
    b.near("dbias", &dc, &gradient(|c| layer(&x.v, &w.v, c, n, epsilon), &c.v, &dy.v))
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The integral of the bell curve, by Simpson's rule from 0.
fn normal(x: f64) -> f64 {
    let steps = 400;
    let h = x / f64::from(steps);
    let bell = |t: f64| (-t * t / 2.0).exp();
    let inner: f64 = (1..steps).map(|i| bell(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + (bell(0.0) + inner + bell(x)) * h / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
}

fn activation(
    b: &mut Bench<'_>,
    forward: for<'a> fn(&'a crate::Stream, View<'a>, View<'a>) -> Result<()>,
    backward: for<'a> fn(&'a crate::Stream, View<'a>, View<'a>, View<'a>) -> Result<()>,
    f: fn(f64) -> f64,
) -> Result<()> {
    let shape = [b.size.rows, b.size.columns];
    let (x, dy, y, dx) = (b.random(&shape)?, b.random(&shape)?, b.empty(&shape)?, b.empty(&shape)?);
    forward(b.stream, x.view()?, y.view()?)?;
    b.near("y", &y, &x.v.iter().map(|v| f(*v)).collect::<Vec<_>>())?;
    backward(b.stream, dy.view()?, x.view()?, dx.view()?)?;
    let slope = |v: f64| (f(v + 1e-5) - f(v - 1e-5)) / 2e-5;
    b.near("dx", &dx, &x.v.iter().zip(&dy.v).map(|(v, d)| d * slope(*v)).collect::<Vec<_>>())
}

fn swiglu(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let (x, dy) = (b.random(&[m, 2 * n])?, b.random(&[m, n])?);
    let (y, dx) = (b.empty(&[m, n])?, b.empty(&[m, 2 * n])?);
    let f = |x: &[f64]| -> Vec<f64> {
        x.chunks(2 * n).flat_map(|r| (0..n).map(|i| silu(r[i]) * r[n + i]).collect::<Vec<_>>()).collect()
    };
    ops::swiglu(b.stream, x.view()?, -1, y.view()?)?;
    b.near("y", &y, &f(&x.v))?;
    ops::SwiGluGrad { y_grad: dy.view()?, x: x.view()?, dim: -1, out: dx.view()? }.run(b.stream)?;
    b.near("dx", &dx, &gradient(f, &x.v, &dy.v))
}

/// Three steps by the formula of Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.
fn adamw(b: &mut Bench<'_>) -> Result<()> {
    let n = b.size.rows * b.size.columns;
    let (lr, beta1, beta2, decay, epsilon) = (0.1f64, 0.9f64, 0.99f64, 0.01f64, 1e-8f64);
    let weight = b.random(&[n])?;
    let (m, v) = (b.give(&[n], &vec![0.0; n])?, b.give(&[n], &vec![0.0; n])?);
    let (mut w, mut wm, mut wv) = (weight.v.clone(), vec![0.0; n], vec![0.0; n]);
    for t in 1..=3 {
        let grad = b.random(&[n])?;
        // The tensor counts the steps that have been taken.
        let step = b.give_as(DType::F32, &[1], &[f64::from(t - 1)])?;
        ops::ApplyAdamWV2 {
            var: weight.view()?,
            m: m.view()?,
            v: v.view()?,
            max_grad_norm: None,
            grad: grad.view()?,
            step: step.view()?,
            lr: lr as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            weight_decay: decay as f32,
            eps: epsilon as f32,
            amsgrad: false,
            maximize: false,
        }
        .run(b.stream)?;
        for i in 0..n {
            wm[i] = beta1 * wm[i] + (1.0 - beta1) * grad.v[i];
            wv[i] = beta2 * wv[i] + (1.0 - beta2) * grad.v[i] * grad.v[i];
            let (a, c) = (wm[i] / (1.0 - beta1.powi(t)), wv[i] / (1.0 - beta2.powi(t)));
            w[i] -= lr * (a / (c.sqrt() + epsilon) + decay * w[i]);
        }
    }
    b.near("weight", &weight.a, &w)?;
    b.near("first moment", &m.a, &wm)?;
    b.near("second moment", &v.a, &wv)
}

fn lists(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let (x, y, p, q) = (b.random(&[m, n])?, b.random(&[n])?, b.random(&[m, n])?, b.random(&[n])?);
    let (u, v) = (b.empty(&[m, n])?, b.empty(&[n])?);
    ops::foreach_mul(b.stream, vec![x.view()?, y.view()?], Number::F32(0.5), vec![u.view()?, v.view()?])?;
    b.near("times a number", &u, &x.v.iter().map(|v| v / 2.0).collect::<Vec<_>>())?;
    b.near("times a number", &v, &y.v.iter().map(|v| v / 2.0).collect::<Vec<_>>())?;
    let (first, second) = (vec![x.view()?, y.view()?], vec![p.view()?, q.view()?]);
    ops::foreach_add(b.stream, first, second, Number::F32(2.0), vec![u.view()?, v.view()?])?;
    b.near("sum", &u, &x.v.iter().zip(&p.v).map(|(a, c)| a + 2.0 * c).collect::<Vec<_>>())?;
    b.near("sum", &v, &y.v.iter().zip(&q.v).map(|(a, c)| a + 2.0 * c).collect::<Vec<_>>())?;
    let (g, h) = (b.empty(&[1])?, b.empty(&[1])?);
    ops::foreach_norm(b.stream, vec![x.view()?, y.view()?], Number::F32(2.0), vec![g.view()?, h.view()?])?;
    let norm = |v: &[f64]| [v.iter().map(|v| v * v).sum::<f64>().sqrt()];
    b.near("norm", &g, &norm(&x.v))?;
    b.near("norm", &h, &norm(&y.v))
}

fn unscale(b: &mut Bench<'_>) -> Result<()> {
    let n = b.size.rows * b.size.columns;
    let (x, found) = (b.random(&[n])?, b.give_as(DType::F32, &[1], &[0.0])?);
    let scale = b.give_as(DType::F32, &[1], &[0.25])?;
    let stream = b.stream;
    let unscale = |grads: &Given| {
        ops::ForeachNonFiniteCheckAndUnscale {
            scaled_grads: vec![grads.view()?],
            found_inf: found.view()?,
            inv_scale: scale.view()?,
        }
        .run(stream)
    };
    unscale(&x)?;
    b.near("unscaled", &x.a, &x.v.iter().map(|v| v / 4.0).collect::<Vec<_>>())?;
    b.near("found", &found.a, &[0.0])?;
    let mut values = x.v.clone();
    values[n / 2] = f64::NAN;
    let odd = b.give(&[n], &values)?;
    unscale(&odd)?;
    b.near("found", &found.a, &[1.0])
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnExp"], FLOATS, |b| unary(b, ops::exp, |v| v, f64::exp)),
    Check::of(&["aclnnSqrt"], FLOATS, |b| unary(b, ops::sqrt, f64::abs, f64::sqrt)),
    Check::of(&["aclnnRsqrt"], FLOATS, |b| unary(b, ops::rsqrt, |v| v.abs() + 0.1, |v| 1.0 / v.sqrt())),
    Check::of(&["aclnnNeg"], FLOATS, |b| unary(b, ops::neg, |v| v, |v| -v)),
    Check::of(&["aclnnAdd"], FLOATS, |b| binary(b, |s, x, y, z| ops::add(s, x, y, ONE, z), |x, y| x + y)),
    Check::of(&["aclnnSub"], FLOATS, |b| binary(b, |s, x, y, z| ops::sub(s, x, y, ONE, z), |x, y| x - y)),
    Check::of(&["aclnnMul"], FLOATS, |b| binary(b, ops::mul, |x, y| x * y)),
    Check::of(&["aclnnDiv"], FLOATS, |b| binary(b, ops::div, |x, y| x / y)),
    Check::of(&["aclnnAdds", "aclnnMuls", "aclnnDivs"], FLOATS, numbers),
    Check::of(
        &["aclnnCast", "aclnnInplaceCopy", "aclnnPermute", "aclnnInplaceZero", "aclnnInplaceFillScalar"],
        FLOATS,
        copies,
    ),
    Check::of(&["aclnnCat", "aclnnSlice", "aclnnTriu", "aclnnArange"], FLOATS, shapes),
    Check::of(&["aclnnSWhere", "aclnnInplaceMaskedFillScalar", "aclnnIsFinite"], FLOATS, choices),
    Check::of(
        &["aclnnReduceSum", "aclnnMean", "aclnnAmax", "aclnnLinalgVectorNorm", "aclnnArgMax", "aclnnTopk"],
        FLOATS,
        reductions,
    ),
    Check::of(
        &["aclnnIndexSelect", "aclnnEmbedding", "aclnnEmbeddingDenseBackward", "aclnnGather"],
        FLOATS,
        rows_by_index,
    ),
    Check::of(&["aclnnMm", "aclnnBatchMatMul", "aclnnMatmul"], FLOATS, products),
    Check::of(&["aclnnRmsNorm", "aclnnRmsNormGrad"], FLOATS, rms_norm),
    Check::of(&["aclnnLayerNorm", "aclnnLayerNormBackward"], FLOATS, layer_norm),
    Check::of(&["aclnnSilu", "aclnnSiluBackward"], FLOATS, |b| {
        activation(
            b,
            ops::silu,
            |s, dy, x, dx| ops::SiluBackward { grad_output: dy, x, grad_input: dx }.run(s),
            silu,
        )
    }),
    Check::of(&["aclnnGelu", "aclnnGeluBackward"], FLOATS, |b| {
        activation(
            b,
            ops::gelu,
            |s, dy, x, dx| ops::GeluBackward { grad_output: dy, x, grad_input: dx }.run(s),
            |x| x * normal(x),
        )
    }),
    Check::of(&["aclnnSwiGlu", "aclnnSwiGluGrad"], FLOATS, swiglu),
    Check::of(&["aclnnApplyAdamWV2"], FLOATS, adamw),
    Check::of(&["aclnnForeachMulScalarV2", "aclnnForeachAddListV2", "aclnnForeachNorm"], FLOATS, lists),
    Check::of(&["aclnnForeachNonFiniteCheckAndUnscale"], FLOATS, unscale),
];
