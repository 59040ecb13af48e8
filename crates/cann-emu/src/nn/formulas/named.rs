//! Operators by type name, which have no prototype: inputs and outputs by their order.

use super::linear::far;
use super::maths::{gradient, sigmoid};
use super::run::{encode, noise, numel, rounded};
use crate::api;
use crate::api::graph::Attribute;
use crate::nn::by_type;
use crate::nn::tensor::{Dtype, View};
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Default)]
struct Named {
    inputs: Vec<View>,
    outputs: Vec<View>,
    wanted: Vec<Option<Vec<f64>>>,
    attributes: HashMap<String, Attribute>,
    seed: u64,
}

fn view(dims: &[i64], dtype: Dtype, values: Option<&[f64]>) -> View {
    let bytes = encode(values.unwrap_or(&vec![f64::NAN; numel(dims)]), dtype);
    let (mut at, len) = (0usize, bytes.len() as u64);
    assert_eq!(api::aclrtMalloc(&raw mut at as usize, len.max(1), 0), 0);
    assert_eq!(api::aclrtMemcpy(at, len, bytes.as_ptr() as usize, len, 1), 0);
    let mut strides = vec![1; dims.len()];
    for d in (0..dims.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * dims[d + 1];
    }
    View { dims: dims.to_vec(), strides, offset: 0, dtype, format: 2, storage: dims.to_vec(), base: at }
}

impl Named {
    fn given(&mut self, dims: &[i64], values: &[f64]) -> &mut Named {
        self.inputs.push(view(dims, Dtype::F32, Some(values)));
        self
    }
    fn x(&mut self, dims: &[i64], low: f64, high: f64) -> Vec<f64> {
        self.seed += 1;
        let v: Vec<f64> =
            noise(numel(dims), self.seed, low, high).iter().map(|v| f64::from(*v as f32)).collect();
        self.given(dims, &v);
        v
    }
    /// An input that the caller leaves out.
    fn nothing(&mut self) -> &mut Named {
        let base = View {
            dims: vec![0],
            strides: vec![1],
            offset: 0,
            dtype: Dtype::F32,
            format: 2,
            storage: vec![0],
            base: 0,
        };
        self.inputs.push(base);
        self
    }
    fn out(&mut self, dims: &[i64], want: Vec<f64>) -> &mut Named {
        self.outputs.push(view(dims, Dtype::F32, None));
        self.wanted.push(Some(want));
        self
    }
    fn float(&mut self, name: &str, v: f32) -> &mut Named {
        self.attributes.insert(name.to_owned(), Attribute::Float(v));
        self
    }
    fn on(&mut self, name: &str) -> &mut Named {
        self.attributes.insert(name.to_owned(), Attribute::Int(1));
        self
    }
    fn finish(&mut self, name: &str) {
        let mut stream = 0usize;
        assert_eq!(api::aclrtCreateStream(&raw mut stream as usize), 0);
        let resolved = api::stream::resolve(stream, name).unwrap();
        by_type::launch(name, self.inputs.clone(), self.outputs.clone(), &self.attributes, &resolved)
            .unwrap();
        assert_eq!(api::aclrtSynchronizeStream(stream), 0);
        for (i, (out, want)) in self.outputs.iter().zip(&self.wanted).enumerate() {
            let Some(want) = want else { continue };
            let mut got = vec![0f32; want.len()];
            let len = 4 * want.len() as u64;
            assert_eq!(api::aclrtMemcpy(got.as_mut_ptr() as usize, len, out.base, len, 2), 0);
            for (j, (g, w)) in got.iter().zip(want).enumerate() {
                let near = (f64::from(*g) - w).abs() <= 2e-5 * (1.0 + w.abs());
                assert!(near, "output {i}[{j}] of {:?}: wanted {w}, found {g}", out.dims);
            }
        }
        for v in self.inputs.iter().chain(&self.outputs).filter(|v| v.base != 0) {
            assert_eq!(api::aclrtFree(v.base), 0);
        }
    }
}

type Case = (&'static str, fn(&str));

const CASES: &[Case] = &[
    ("ApplyAdamW", adamw),
    ("BNTrainingReduce", channel_sums),
    ("SyncBatchNormGatherStats", gather_sums),
    ("Cdist", distances),
    ("CdistGrad", distances_grad),
    ("DynamicGRUV2", gated),
    ("DynamicGRUV2Grad", gated_grad),
    ("DynamicRNN", memory),
    ("DynamicRNNV2", memory),
    ("DynamicRNNGrad", memory_grad),
    ("DynamicRNNV2Grad", memory_grad),
    ("Fill", fill),
    ("LeftShift", shift),
    ("RightShift", shift),
    ("Svd", svd),
];

/// Runs every type; gives how many.
pub(super) fn run(wrong: &mut Vec<String>) -> usize {
    let names: BTreeSet<&str> = CASES.iter().map(|c| c.0).collect();
    assert_eq!(names, by_type::names().collect(), "types without a case, or cases without a type");
    for (name, case) in CASES {
        if let Err(e) = catch_unwind(AssertUnwindSafe(|| case(name))) {
            wrong.push(format!("{name}: {}", e.downcast_ref::<String>().cloned().unwrap_or_default()));
        }
    }
    CASES.len()
}

fn adamw(name: &str) {
    let mut k = Named::default();
    let (x, m, v) = (k.x(&[5], -2.0, 2.0), k.x(&[5], -1.0, 1.0), k.x(&[5], 0.1, 2.0));
    let (b1, b2, lr, decay, eps) = (0.75, 0.875, 0.0625, 0.125, 0.0078125);
    for n in [b1 * b1, b2 * b2, lr, decay, b1, b2, eps] {
        k.given(&[1], &[n]);
    }
    let g = k.x(&[5], -1.0, 1.0);
    let m1: Vec<f64> = (0..5).map(|i| b1 * m[i] + (1.0 - b1) * g[i]).collect();
    let v1: Vec<f64> = (0..5).map(|i| b2 * v[i] + (1.0 - b2) * g[i] * g[i]).collect();
    let step = |i: usize| lr * (m1[i] / (1.0 - b1.powi(3))) / ((v1[i] / (1.0 - b2.powi(3))).sqrt() + eps);
    let want = (0..5).map(|i| x[i] * (1.0 - lr * decay) - step(i)).collect();
    k.out(&[5], want).out(&[5], m1.clone()).out(&[5], v1.clone()).finish(name);
}

fn channel_sums(name: &str) {
    let mut k = Named::default();
    let x = k.x(&[3, 2, 4], -2.0, 2.0);
    let of = |ch: usize, p: i32| (0..24).filter(|i| i / 4 % 2 == ch).map(|i| x[i].powi(p)).sum();
    k.out(&[2], vec![of(0, 1), of(1, 1)]).out(&[2], vec![of(0, 2), of(1, 2)]).finish(name);
}

fn gather_sums(name: &str) {
    let mut k = Named::default();
    // Two ranks with 3 and 5 elements of one channel.
    let v = noise(8, 9, -2.0, 2.0);
    let sum = |v: &[f64], p: i32| v.iter().map(|x| x.powi(p)).sum::<f64>();
    k.given(&[2, 1], &[sum(&v[..3], 1), sum(&v[3..], 1)]).given(&[2, 1], &[sum(&v[..3], 2), sum(&v[3..], 2)]);
    k.given(&[2], &[3.0, 5.0]).given(&[1], &[0.5]).given(&[1], &[2.0]);
    let mean = sum(&v, 1) / 8.0;
    let var = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 8.0;
    k.float("eps", 0.0078125).float("momentum", 0.25);
    k.out(&[1], vec![mean]).out(&[1], vec![1.0 / (var + 0.0078125).sqrt()]);
    k.out(&[1], vec![0.75 * 0.5 + 0.25 * mean])
        .out(&[1], vec![0.75 * 2.0 + 0.25 * var * 8.0 / 7.0])
        .finish(name);
}

/// Rows of `x` `[2,4]` against rows of `y` `[3,4]`, both copied to `[1,2,3,4]`.
fn spread(k: &mut Named) -> (Vec<f64>, Vec<f64>) {
    let (x, y) = (noise(8, 20, -2.0, 2.0), noise(12, 21, -2.0, 2.0));
    let (x, y) = (rounded(&x, Dtype::F32), rounded(&y, Dtype::F32));
    let one = |i: usize| (i / 12, i / 4 % 3, i % 4);
    let a: Vec<f64> = (0..24).map(one).map(|(r, _, e)| x[r * 4 + e]).collect();
    let b: Vec<f64> = (0..24).map(one).map(|(_, p, e)| y[p * 4 + e]).collect();
    k.given(&[1, 2, 3, 4], &a).given(&[1, 2, 3, 4], &b);
    (x, y)
}

fn table(x: &[f64], y: &[f64], p: f64) -> Vec<f64> {
    x.chunks(4).flat_map(|a| y.chunks(4).map(move |b| far(a, b, p))).collect()
}

fn distances(name: &str) {
    for p in [0.0, 1.0, 2.0, 3.0, f64::INFINITY] {
        let mut k = Named::default();
        let (x, y) = spread(&mut k);
        // Minus one stands for infinity.
        k.float("p", if p.is_infinite() { -1.0 } else { p as f32 });
        k.out(&[1, 2, 3], table(&x, &y, p)).finish(name);
    }
}

fn distances_grad(name: &str) {
    for p in [1.0, 2.0, 3.0, f64::INFINITY] {
        let mut k = Named::default();
        let g = noise(6, 22, -2.0, 2.0);
        k.given(&[1, 2, 3, 4], &(0..24).map(|i| g[i / 4]).collect::<Vec<f64>>());
        let (x, y) = spread(&mut k);
        let far = table(&x, &y, p);
        k.given(&[1, 2, 3, 4], &(0..24).map(|i| far[i / 4]).collect::<Vec<f64>>());
        k.float("p", if p.is_infinite() { -1.0 } else { p as f32 });
        k.out(&[1, 2, 4], gradient(|x| table(x, &y, p), &x, &g)).finish(name);
    }
}

/// Sizes of the cells below: steps, sequences, features, hidden.
const S: [usize; 4] = [3, 2, 3, 2];

/// A gated unit's step, PyTorch's form: weights `[I,3H]`, `[H,3H]`, gates reset, update, new.
/// Gives, by step: hidden, update, reset, new, and the hidden part of new.
fn gru(x: &[f64], w: &[f64], u: &[f64], b: &[f64], c: &[f64], h0: &[f64]) -> [Vec<f64>; 5] {
    let [t, n, i, h] = S;
    let mut out: [Vec<f64>; 5] = std::array::from_fn(|_| vec![0.0; t * n * h]);
    for r in 0..n {
        let mut state = h0[r * h..][..h].to_vec();
        for step in 0..t {
            let part = |col: usize| {
                let a: f64 = (0..i).map(|p| x[(step * n + r) * i + p] * w[p * 3 * h + col]).sum();
                let z: f64 = (0..h).map(|p| state[p] * u[p * 3 * h + col]).sum();
                (a + b[col], z + c[col])
            };
            let next: Vec<[f64; 5]> = (0..h)
                .map(|e| {
                    let reset = sigmoid(part(e).0 + part(e).1);
                    let update = sigmoid(part(h + e).0 + part(h + e).1);
                    let (a, hidden) = part(2 * h + e);
                    let new = (a + reset * hidden).tanh();
                    [new + update * (state[e] - new), update, reset, new, hidden]
                })
                .collect();
            for (e, v) in next.iter().enumerate() {
                out.iter_mut().zip(v).for_each(|(list, v)| list[(step * n + r) * h + e] = *v);
                state[e] = v[0];
            }
        }
    }
    out
}

const GRU: [(&[i64], f64); 6] =
    [(&[3, 2, 3], 2.0), (&[3, 6], 1.0), (&[2, 6], 1.0), (&[6], 1.0), (&[6], 1.0), (&[1, 2, 2], 1.0)];

fn gated(name: &str) {
    let mut k = Named::default();
    let v: Vec<Vec<f64>> = GRU[..5].iter().map(|(d, m)| k.x(d, -m, *m)).collect();
    let h0 = k.nothing().x(&[1, 2, 2], -1.0, 1.0);
    let [y, update, reset, new, hidden] = gru(&v[0], &v[1], &v[2], &v[3], &v[4], &h0);
    let d = &[3, 2, 2];
    k.out(d, y.clone()).out(d, y).out(d, update).out(d, reset).out(d, new).out(d, hidden).finish(name);
}

fn gated_grad(name: &str) {
    let mut k = Named::default();
    let v: Vec<Vec<f64>> = GRU[..3].iter().map(|(d, m)| k.x(d, -m, *m)).collect();
    let (b, c, h0) = (noise(6, 31, -1.0, 1.0), noise(6, 32, -1.0, 1.0), noise(4, 33, -1.0, 1.0));
    let [y, update, reset, new, hidden] = gru(&v[0], &v[1], &v[2], &b, &c, &h0);
    let d = &[3, 2, 2];
    k.given(d, &y).given(&[1, 2, 2], &h0).given(d, &y);
    let (dy, dh) = (k.x(d, -1.0, 1.0), k.x(&[1, 2, 2], -1.0, 1.0));
    k.given(d, &update).given(d, &reset).given(d, &new).given(d, &hidden);
    let upstream = [dy, dh].concat();
    let all = [&v[0], &v[1], &v[2], &b, &c, &h0];
    let whole = |i: usize, at: &[f64]| -> Vec<f64> {
        let pick = |j: usize| if i == j { at } else { &all[j][..] };
        let [y, ..] = gru(pick(0), pick(1), pick(2), pick(3), pick(4), pick(5));
        let last = y[8..].to_vec();
        [y, last].concat()
    };
    for (i, d) in [(1, &[3, 6][..]), (2, &[2, 6]), (3, &[6]), (4, &[6]), (0, &[3, 2, 3]), (5, &[1, 2, 2])] {
        k.out(d, gradient(|at| whole(i, at), all[i], &upstream));
    }
    k.finish(name);
}

/// Long short-term memory, weights `[I,4H]` and `[H,4H]`, gates input, forget, new, output. By step: hidden, cell, input gate,
/// new, forget gate, output gate, tanh of the cell.
fn lstm(x: &[f64], w: &[f64], u: &[f64], b: &[f64], h0: &[f64], c0: &[f64]) -> [Vec<f64>; 7] {
    let [t, n, i, h] = S;
    let mut out: [Vec<f64>; 7] = std::array::from_fn(|_| vec![0.0; t * n * h]);
    for r in 0..n {
        let (mut hidden, mut cell) = (h0[r * h..][..h].to_vec(), c0[r * h..][..h].to_vec());
        for step in 0..t {
            let z: Vec<f64> = (0..4 * h)
                .map(|col| {
                    let a: f64 = (0..i).map(|p| x[(step * n + r) * i + p] * w[p * 4 * h + col]).sum();
                    b[col] + a + (0..h).map(|p| hidden[p] * u[p * 4 * h + col]).sum::<f64>()
                })
                .collect();
            for e in 0..h {
                let (open, keep) = (sigmoid(z[e]), sigmoid(z[h + e]));
                let (new, show) = (z[2 * h + e].tanh(), sigmoid(z[3 * h + e]));
                cell[e] = keep * cell[e] + open * new;
                hidden[e] = show * cell[e].tanh();
                let v = [hidden[e], cell[e], open, new, keep, show, cell[e].tanh()];
                out.iter_mut().zip(v).for_each(|(list, v)| list[(step * n + r) * h + e] = v);
            }
        }
    }
    out
}

fn memory(name: &str) {
    let mut k = Named::default();
    let x = k.x(&[3, 2, 3], -2.0, 2.0);
    let (w, u) = weights(&mut k, name);
    let b = k.x(&[8], -1.0, 1.0);
    let (h0, c0) = (k.nothing().x(&[1, 2, 2], -1.0, 1.0), k.x(&[1, 2, 2], -1.0, 1.0));
    let all = lstm(&x, &w, &u, &b, &h0, &c0);
    let d = &[3, 2, 2];
    k.out(d, all[0].clone());
    all.into_iter().for_each(|v| {
        k.out(d, v);
    });
    k.finish(name);
}

/// In one matrix, or apart in the second version.
fn weights(k: &mut Named, name: &str) -> (Vec<f64>, Vec<f64>) {
    if name.contains("V2") {
        return (k.x(&[3, 8], -1.0, 1.0), k.x(&[2, 8], -1.0, 1.0));
    }
    let all = k.x(&[5, 8], -1.0, 1.0);
    (all[..24].to_vec(), all[24..].to_vec())
}

fn memory_grad(name: &str) {
    let apart = name.contains("V2");
    let mut k = Named::default();
    let x = k.x(&[3, 2, 3], -2.0, 2.0);
    let (w, u) = weights(&mut k, name);
    let b = noise(8, 41, -1.0, 1.0);
    let (h0, c0) = (noise(4, 42, -1.0, 1.0), noise(4, 43, -1.0, 1.0));
    let [y, cell, open, new, keep, show, shown] = lstm(&x, &w, &u, &b, &h0, &c0);
    let (d, s) = (&[3, 2, 2], &[1, 2, 2]);
    if !apart {
        // The bias stands where the other form has the second weights.
        k.given(&[8], &b);
    }
    k.given(d, &y).given(s, &h0).given(s, &c0).given(d, &y).given(d, &cell);
    let (dy, dh, dc) = (k.x(d, -1.0, 1.0), k.x(s, -1.0, 1.0), k.x(s, -1.0, 1.0));
    for v in [&open, &new, &keep, &show, &shown] {
        k.given(d, v);
    }
    let upstream = [dy, dh, dc].concat();
    let all = [&x, &w, &u, &b, &h0, &c0];
    let whole = |i: usize, at: &[f64]| -> Vec<f64> {
        let pick = |j: usize| if i == j { at } else { &all[j][..] };
        let [y, c, ..] = lstm(pick(0), pick(1), pick(2), pick(3), pick(4), pick(5));
        let (h, c) = (y[8..].to_vec(), c[8..].to_vec());
        [y, h, c].concat()
    };
    let by = |i: usize| gradient(|at| whole(i, at), all[i], &upstream);
    if apart {
        k.out(&[3, 8], by(1)).out(&[2, 8], by(2));
    } else {
        k.out(&[5, 8], [by(1), by(2)].concat());
    }
    k.out(&[8], by(3)).out(&[3, 2, 3], by(0)).out(s, by(4)).out(s, by(5)).finish(name);
}

fn fill(name: &str) {
    let mut k = Named::default();
    k.given(&[2], &[2.0, 3.0]).given(&[], &[1.5]).out(&[2, 3], vec![1.5; 6]).finish(name);
}

fn shift(name: &str) {
    let mut k = Named::default();
    k.given(&[4], &[1.0, -3.0, 12.0, 0.0]).given(&[4], &[3.0, 1.0, 2.0, 5.0]);
    let left = vec![8.0, -6.0, 48.0, 0.0];
    // Towards minus infinity.
    k.out(&[4], if name == "LeftShift" { left } else { vec![0.0, -2.0, 3.0, 0.0] }).finish(name);
}

/// Of a matrix whose factors are known: a diagonal between a turn and an exchange.
fn svd(name: &str) {
    let (c, s) = (0.6, 0.8);
    let mut k = Named::default();
    // U = [[c,-s],[s,c]], Σ = (3, 2), V = [[0,1],[1,0]].
    k.given(&[2, 2], &[-2.0 * s, 3.0 * c, 2.0 * c, 3.0 * s]).on("compute_uv");
    k.out(&[2], vec![3.0, 2.0]);
    for _ in 0..2 {
        k.outputs.push(view(&[2, 2], Dtype::F32, None));
        k.wanted.push(None);
    }
    let (u, v) = (k.outputs[1].base, k.outputs[2].base);
    k.inputs.push(view(&[1], Dtype::F32, Some(&[0.0])));
    let mut stream = 0usize;
    assert_eq!(api::aclrtCreateStream(&raw mut stream as usize), 0);
    let resolved = api::stream::resolve(stream, name).unwrap();
    by_type::launch(name, k.inputs.clone(), k.outputs.clone(), &k.attributes, &resolved).unwrap();
    assert_eq!(api::aclrtSynchronizeStream(stream), 0);
    let read = |at: usize| {
        let mut got = [0f32; 4];
        assert_eq!(api::aclrtMemcpy(got.as_mut_ptr() as usize, 16, at, 16, 2), 0);
        got.map(f64::from)
    };
    let (u, v) = (read(u), read(v));
    // Up to the sign of a column.
    for (at, want) in [(0, c), (1, s), (2, s), (3, c)] {
        assert!((u[at].abs() - want).abs() < 1e-6, "u {u:?}");
    }
    for (at, want) in [(0, 0.0), (1, 1.0), (2, 1.0), (3, 0.0)] {
        assert!((v[at].abs() - want).abs() < 1e-6, "v {v:?}");
    }
    k.finish(name);
}
