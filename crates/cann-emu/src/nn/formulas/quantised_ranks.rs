//! Products of integers, or with weights of integers, that several ranks run together.
//!
//! Scales are powers of two, so that what ranks exchange and its sums are exact in every type.

use super::maths::{product, transpose};
use super::ranks::{Case, Rank, normed, total, turn, whole};
use super::run::Run;
use crate::nn::tensor::Dtype;

/// One of two scales for each of `n`.
fn steps(n: usize, seed: usize) -> Vec<f64> {
    whole(n, seed, 0, 1).iter().map(|v| 0.5 + 0.5 * v).collect()
}

/// Scales of columns as the pages want them: packed for results in f16, as they are for those in bf16.
fn columns(r: &mut Run, name: &str, values: &[f64]) {
    let dims = [values.len() as i64];
    if r.dtype == Dtype::F16 {
        let packed = |v: &f64| f64::from((*v as f32).to_bits()) + 2f64.powi(46);
        r.t(name, &dims, Dtype::U64, &values.iter().map(packed).collect::<Vec<f64>>());
    } else {
        r.t(name, &dims, Dtype::Bf16, values);
    }
}

/// The name of a parameter that some versions call optional.
fn optional(r: &Run, name: &str) -> String {
    let longer = format!("{name}Optional");
    if r.has(&longer) { longer } else { name.to_owned() }
}

/// What this rank adds of (x1·x2 + bias)·scale + x3.
struct Part {
    m: usize,
    k: usize,
    n: usize,
}

impl Part {
    fn x(&self, rank: usize) -> Vec<f64> {
        whole(self.m * self.k, rank, -1, 1)
    }
    fn y(&self, rank: usize) -> Vec<f64> {
        whole(self.k * self.n, 10 + rank, -1, 1)
    }
    fn bias(&self, rank: usize) -> Vec<f64> {
        whole(self.n, 20 + rank, -3, 3)
    }
    fn more(&self, rank: usize) -> Vec<f64> {
        whole(self.m * self.n, 30 + rank, -3, 3)
    }
    fn of(&self, rank: usize, row: impl Fn(usize) -> f64, x3: f64) -> Vec<f64> {
        let p = product(&self.x(rank), &self.y(rank), self.m, self.k, self.n);
        let (b, e, c) = (self.bias(rank), self.more(rank), steps(self.n, 40));
        let one = |i: usize| (p[i] + b[i % self.n]) * c[i % self.n] * row(i / self.n) + x3 * e[i];
        (0..p.len()).map(one).collect()
    }
    fn matrices(&self, r: &mut Run, me: usize) {
        r.t("x1", &[self.m as i64, self.k as i64], Dtype::I8, &self.x(me));
        r.t("x2", &[self.k as i64, self.n as i64], Dtype::I8, &self.y(me));
        let name = optional(r, "bias");
        r.t(&name, &[self.n as i64], Dtype::I32, &self.bias(me));
    }
}

/// The operand that is added, and what all of these operators are given alike.
fn common(r: &mut Run, w: &Rank, part: &Part) {
    let (name, dtype) = (optional(r, "x3"), r.dtype);
    r.t(&name, &[part.m as i64, part.n as i64], dtype, &part.more(w.me));
    if r.has("commMode") {
        r.text("commMode", "ai_cpu");
    }
    turn(r, w);
}

/// Scales of columns alone.
fn sums(r: &mut Run, w: &Rank) {
    let part = Part { m: 3, k: 16, n: 5 };
    part.matrices(r, w.me);
    let name = if r.has("x2Scale") { "x2Scale" } else { "dequantScale" };
    columns(r, name, &steps(part.n, 40));
    common(r, w, &part);
    let want = total(w.ranks, |rank| part.of(rank, |_| 1.0, 1.0));
    r.out("output", &[part.m as i64, part.n as i64], want);
}

/// Scales of columns and of rows.
fn scaled_rows(r: &mut Run, w: &Rank) -> (Part, Vec<f64>) {
    let part = Part { m: 3, k: 16, n: 5 };
    part.matrices(r, w.me);
    let (column, row) = match r.has("x2Scale") {
        true => ("x2Scale", "x1ScaleOptional"),
        false => ("dequantScale", "pertokenScaleOptional"),
    };
    let dtype = if r.dtype == Dtype::F16 { Dtype::F32 } else { Dtype::Bf16 };
    r.t(column, &[1, part.n as i64], dtype, &steps(part.n, 40));
    let rows = steps(part.m, 50);
    r.t(row, &[part.m as i64], Dtype::F32, &rows);
    common(r, w, &part);
    (part, rows)
}

fn sums_by_row(r: &mut Run, w: &Rank) {
    let (part, rows) = scaled_rows(r, w);
    let want = total(w.ranks, |rank| part.of(rank, |i| rows[i], 1.0));
    r.out("output", &[part.m as i64, part.n as i64], want);
}

/// What goes between ranks is whole numbers of quarters, their sum whole numbers of halves.
fn sums_in_eight_bits(r: &mut Run, w: &Rank) {
    let (part, rows) = scaled_rows(r, w);
    let (n, dtype) = (part.n as i64, r.dtype);
    r.t("commQuantScale1Optional", &[n], dtype, &vec![0.25; part.n]);
    r.t("commQuantScale2Optional", &[n], dtype, &vec![0.5; part.n]);
    let quarters = |v: &f64| (v * 4.0).clamp(-128.0, 127.0);
    let sum = total(w.ranks, |rank| part.of(rank, |i| rows[i], 1.0).iter().map(quarters).collect());
    let want = sum.iter().map(|v| (v / 2.0).round_ties_even().clamp(-128.0, 127.0) / 2.0).collect();
    r.out("output", &[part.m as i64, n], want);
}

/// A residual and the norm behind the sum, of products of integers or with weights of integers.
fn norms(r: &mut Run, w: &Rank) {
    let part = Part { m: 4, k: 16, n: 6 };
    let (n, dtype) = (part.n as i64, r.dtype);
    let light = r.has("antiquantScale");
    if light {
        r.t("x1", &[4, 16], dtype, &part.x(w.me));
        r.t("x2", &[16, n], Dtype::I8, &part.y(w.me));
        r.t("bias", &[n], dtype, &part.bias(w.me));
        r.t("antiquantScale", &[n], dtype, &steps(part.n, 40));
    } else {
        part.matrices(r, w.me);
        columns(r, "dequantScale", &steps(part.n, 40));
    }
    let residual = r.t("residual", &[2, 2, n], dtype, &whole(part.m * part.n, 60, -3, 3));
    let gamma = r.t("gamma", &[n], dtype, &whole(part.n, 61, 1, 4));
    r.n("epsilon", 1e-5);
    turn(r, w);
    let sum = total(w.ranks, |rank| match light {
        // A bias of floats is not scaled.
        true => {
            let (p, b) = (product(&part.x(rank), &part.y(rank), 4, 16, part.n), part.bias(rank));
            let c = steps(part.n, 40);
            (0..p.len()).map(|i| p[i] * c[i % part.n] + b[i % part.n]).collect()
        }
        false => part.of(rank, |_| 1.0, 0.0),
    });
    normed(r, &residual, &sum, &gamma);
}

/// Weights of integers with offsets: by column, or by column and group of rows.
fn weights(r: &mut Run, w: &Rank, groups: usize) {
    let (m, n) = (3, 5);
    let k = if groups == 1 { 16 } else { 32 * groups };
    let x = |rank| whole(m * k, rank, -1, 1);
    let y = |rank| whole(k * n, 10 + rank, -1, 1);
    let (scale, offset) = (steps(groups * n, 40), whole(groups * n, 41, -1, 1));
    let (bias, more) = (|rank| whole(n, 20 + rank, -3, 3), |rank| whole(m * n, 30 + rank, -3, 3));
    let dtype = r.dtype;
    r.t("x1", &[m as i64, k as i64], dtype, &x(w.me));
    r.t("x2", &[k as i64, n as i64], Dtype::I8, &y(w.me));
    r.t("bias", &[n as i64], dtype, &bias(w.me));
    r.t("x3", &[m as i64, n as i64], dtype, &more(w.me));
    r.t("antiquantScale", &[groups as i64, n as i64], dtype, &scale);
    r.t("antiquantOffset", &[groups as i64, n as i64], dtype, &offset);
    r.n("antiquantGroupSize", if groups == 1 { 0.0 } else { 32.0 });
    if r.has("commMode") {
        r.text("commMode", "ai_cpu");
    }
    turn(r, w);
    let widened = |(i, v): (usize, &f64)| {
        let at = i / n / (k / groups) * n + i % n;
        (v + offset[at]) * scale[at]
    };
    let want = total(w.ranks, |rank| {
        let wide: Vec<f64> = y(rank).iter().enumerate().map(widened).collect();
        let (p, b, e) = (product(&x(rank), &wide, m, k, n), bias(rank), more(rank));
        (0..m * n).map(|i| p[i] + b[i % n] + e[i]).collect()
    });
    r.out("output", &[m as i64, n as i64], want);
}

/// What the exchanges are given alike; `way` is how the left operand is quantised.
fn exchanged(r: &mut Run, w: &Rank, way: f64) {
    r.text("group", &w.groups[0]).n("x1QuantMode", way).n("x2QuantMode", 2.0).n("commQuantDtype", -1.0);
    if r.has("commMode") {
        r.text("commMode", "aiv");
    }
}

/// Rank j's rows are those j-th of every rank side by side, in eight bits by their largest element once they are here.
fn all_to_all_product(r: &mut Run, w: &Rank) {
    let (rows, h, n) = (2, 16 / w.ranks.min(2), 3);
    let (m, inner) = (rows * w.ranks, h * w.ranks);
    let x = |rank| whole(m * h, rank, -3, 3);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, h as i64], dtype, &x(w.me));
    let y = whole(inner * n, 40, -2, 2);
    r.t("x2", &[n as i64, inner as i64], Dtype::I8, &transpose(&y, inner, n));
    let (scale, bias) = (steps(n, 41), whole(n, 42, -2, 2));
    r.t("x2Scale", &[n as i64], Dtype::F32, &scale);
    r.t("biasOptional", &[n as i64], dtype, &bias);
    let smooth = steps(inner, 43);
    r.t("x1ScaleOptional", &[inner as i64], dtype, &smooth);
    r.n("transposeX2", 1.0).ints("alltoAllAxesOptional", &[-2, -1]);
    exchanged(r, w, 7.0);
    let (mut wide, mut left) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let mut whole_row = Vec::new();
        for rank in 0..w.ranks {
            whole_row.extend_from_slice(&x(rank)[(w.me * rows + row) * h..][..h]);
        }
        let smoothed: Vec<f64> = whole_row.iter().zip(&smooth).map(|(v, s)| v * s).collect();
        let top = smoothed.iter().fold(0.0f64, |t, v| t.max(v.abs()));
        let step = f64::from((top / 127.0) as f32);
        left.extend(smoothed.iter().map(|v| (v / step).round_ties_even() * step));
        wide.extend(whole_row);
    }
    let p = product(&left, &y, rows, inner, n);
    let want = p.iter().enumerate().map(|(i, v)| v * scale[i % n] + bias[i % n]).collect();
    r.out("output", &[rows as i64, n as i64], want);
    r.out("alltoAllOutOptional", &[rows as i64, inner as i64], wide);
}

/// Rank j gets the j-th part of every rank's columns.
fn product_all_to_all(r: &mut Run, w: &Rank) {
    let (m, h, part) = (3, 7, 2);
    let n = part * w.ranks;
    let x = |rank| whole(m * h, rank, -1, 1);
    let y = |rank| whole(h * n, 10 + rank, -1, 1);
    let (rows, columns, bias) = (steps(m, 40), steps(n, 41), whole(n, 42, -3, 3));
    let dtype = r.dtype;
    r.t("x1", &[m as i64, h as i64], Dtype::I8, &x(w.me));
    r.t("x2", &[h as i64, n as i64], Dtype::I8, &y(w.me));
    r.t("x1Scale", &[m as i64], Dtype::F32, &rows);
    r.t("x2Scale", &[n as i64], Dtype::F32, &columns);
    r.t("biasOptional", &[n as i64], dtype, &bias);
    exchanged(r, w, 3.0);
    let mut want = Vec::new();
    for rank in 0..w.ranks {
        let c = product(&x(rank), &y(rank), m, h, n);
        for row in 0..m {
            let one = |col: usize| c[row * n + col] * rows[row] * columns[col] + bias[col];
            want.extend((w.me * part..(w.me + 1) * part).map(one));
        }
    }
    r.out("output", &[(m * w.ranks) as i64, part as i64], want);
}

pub(super) const CASES: &[Case] = &[
    Case("QuantMatmulAllReduce", 4, false, sums),
    Case("QuantMatmulAllReduceV2", 1, false, sums),
    Case("QuantMatmulAllReduceV2", 2, false, sums_by_row),
    Case("QuantMatmulAllReduceV3", 2, false, sums_by_row),
    Case("QuantMatmulAllReduceV3", 2, false, sums_in_eight_bits),
    Case("QuantMatmulAllReduceV4", 4, false, sums),
    Case("QuantMatmulAllReduceV4", 2, false, sums_in_eight_bits),
    Case("QuantMatmulAllReduceV5", 2, false, sums_by_row),
    Case("QuantMatmulAllReduceAddRmsNorm", 2, false, norms),
    Case("InplaceQuantMatmulAllReduceAddRmsNorm", 2, false, norms),
    Case("WeightQuantMatmulAllReduce", 2, false, |r, w| weights(r, w, 1)),
    Case("WeightQuantMatmulAllReduce", 2, false, |r, w| weights(r, w, 2)),
    Case("WeightQuantMatmulAllReduceV2", 2, false, |r, w| weights(r, w, 1)),
    Case("WeightQuantMatmulAllReduceAddRmsNorm", 2, false, norms),
    Case("InplaceWeightQuantMatmulAllReduceAddRmsNorm", 2, false, norms),
    Case("AlltoAllQuantMatmul", 2, false, all_to_all_product),
    Case("AlltoAllQuantMatmul", 4, false, all_to_all_product),
    Case("AlltoAllQuantMatmulV2", 2, false, all_to_all_product),
    Case("QuantMatmulAlltoAll", 4, false, product_all_to_all),
    Case("QuantMatmulAlltoAllV2", 2, false, product_all_to_all),
];
