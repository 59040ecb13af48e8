//! Long short-term memory in layers and directions: the formula written step by step, its gradients by differences.

use super::maths::{gradient, sigmoid, truth};
use super::run::{Run, noise};
use super::{Cases, F32};
use crate::nn::tensor::Dtype;

/// Sizes: 3 steps, 2 sequences, hidden size 2.
const T: usize = 3;
const N: usize = 2;
const H: usize = 2;

#[derive(Clone, Copy)]
struct Form {
    layers: usize,
    both: bool,
    batch_first: bool,
    /// Steps of the two sequences, the longer first.
    lengths: [usize; N],
}

/// What the network is given, flat, in one list: input, states, then each cell's weights and biases.
struct Network {
    form: Form,
    features: usize,
    params: Vec<Vec<f64>>,
    x: Vec<f64>,
    h0: Vec<f64>,
    c0: Vec<f64>,
}

/// Gates and states of every step of a cell: input, new, forget, output, hidden, cell, tanh of the cell.
type Kept = [Vec<f64>; 7];

struct Result {
    y: Vec<f64>,
    hy: Vec<f64>,
    cy: Vec<f64>,
    kept: Vec<Kept>,
}

impl Network {
    fn cells(&self) -> usize {
        self.form.layers * (1 + usize::from(self.form.both))
    }

    fn width(&self, layer: usize) -> usize {
        if layer == 0 { self.features } else { H * (1 + usize::from(self.form.both)) }
    }

    /// Of a sequence `[T,N,..]` or `[N,T,..]` the row of step `t` and sequence `n`.
    fn row(&self, t: usize, n: usize) -> usize {
        if self.form.batch_first { n * T + t } else { t * N + n }
    }

    fn run(&self) -> Result {
        let ways = 1 + usize::from(self.form.both);
        let mut kept: Vec<Kept> =
            (0..self.cells()).map(|_| std::array::from_fn(|_| vec![0.0; T * N * H])).collect();
        let (mut hy, mut cy) = (vec![0.0; self.cells() * N * H], vec![0.0; self.cells() * N * H]);
        let mut x: Vec<Vec<f64>> = (0..T * N)
            .map(|i| self.x[self.row(i / N, i % N) * self.features..][..self.features].to_vec())
            .collect();
        for layer in 0..self.form.layers {
            let mut next = vec![vec![0.0; H * ways]; T * N];
            for way in 0..ways {
                let cell = layer * ways + way;
                let [w, u, b, d] = &self.params[cell * 4..cell * 4 + 4] else {
                    panic!("four parameters a cell")
                };
                for n in 0..N {
                    let at = (cell * N + n) * H;
                    let (mut h, mut c) = (self.h0[at..at + H].to_vec(), self.c0[at..at + H].to_vec());
                    let long = self.form.lengths[n];
                    for step in 0..long {
                        let t = if way == 1 { long - 1 - step } else { step };
                        let row = &x[t * N + n];
                        // Gates in the order input, forget, new, output.
                        let z: Vec<f64> = (0..4 * H)
                            .map(|g| {
                                let from_x: f64 =
                                    row.iter().enumerate().map(|(i, v)| v * w[g * row.len() + i]).sum();
                                let from_h: f64 = h.iter().enumerate().map(|(i, v)| v * u[g * H + i]).sum();
                                from_x + from_h + b[g] + d[g]
                            })
                            .collect();
                        for e in 0..H {
                            let (i, f) = (sigmoid(z[e]), sigmoid(z[H + e]));
                            let (g, o) = (z[2 * H + e].tanh(), sigmoid(z[3 * H + e]));
                            c[e] = f * c[e] + i * g;
                            h[e] = o * c[e].tanh();
                            let place = (t * N + n) * H + e;
                            for (list, v) in kept[cell].iter_mut().zip([i, g, f, o, h[e], c[e], c[e].tanh()])
                            {
                                list[place] = v;
                            }
                            next[t * N + n][way * H + e] = h[e];
                        }
                    }
                    hy[at..at + H].copy_from_slice(&h);
                    cy[at..at + H].copy_from_slice(&c);
                }
            }
            x = next;
        }
        let mut y = vec![0.0; T * N * H * ways];
        for (i, row) in x.iter().enumerate() {
            let at = self.row(i / N, i % N) * H * ways;
            y[at..at + H * ways].copy_from_slice(row);
        }
        Result { y, hy, cy, kept }
    }

    fn sequence(&self, width: usize) -> Vec<i64> {
        let (a, b) = if self.form.batch_first { (N, T) } else { (T, N) };
        vec![a as i64, b as i64, width as i64]
    }

    fn shapes(&self) -> Vec<Vec<i64>> {
        let ways = 1 + usize::from(self.form.both);
        (0..self.cells())
            .flat_map(|cell| {
                let (g, w) = (4 * H as i64, self.width(cell / ways) as i64);
                [vec![g, w], vec![g, H as i64], vec![g], vec![g]]
            })
            .collect()
    }

    fn state(&self) -> Vec<i64> {
        vec![self.cells() as i64, N as i64, H as i64]
    }

    /// Gives the operator its inputs.
    fn given(r: &mut Run, form: Form) -> Network {
        let features = 3;
        let mut net =
            Network { form, features, params: Vec::new(), x: Vec::new(), h0: Vec::new(), c0: Vec::new() };
        let shapes = net.shapes();
        if form.lengths == [T, T] {
            net.x = r.x("input", &net.sequence(features));
        } else {
            // Rows of all steps, filled up, with how many sequences take part in each.
            net.x = r.x("input", &[(T * N) as i64, features as i64]);
            let sizes = [0, 1, 2].map(|t| form.lengths.iter().filter(|l| **l > t).count() as f64);
            let name = if r.has("batchSizes") { "batchSizes" } else { "batchSizesOptional" };
            r.t(name, &[3], Dtype::I64, &sizes);
        }
        let values = |d: &[i64], seed: u64| noise(super::run::numel(d), seed, -1.0, 1.0);
        let params: Vec<(&[i64], Vec<f64>)> =
            shapes.iter().enumerate().map(|(i, d)| (&d[..], values(d, 50 + i as u64))).collect();
        net.params = r.list("params", &params);
        let state = net.state();
        let hx = r.list("hx", &[(&state, values(&state, 80)), (&state, values(&state, 81))]);
        (net.h0, net.c0) = (hx[0].clone(), hx[1].clone());
        r.n("hasBias", 1.0).n("numLayers", form.layers as f64).n("dropout", 0.0).n("train", 1.0);
        r.n("bidirectional", truth(form.both)).n("batchFirst", truth(form.batch_first)).loose(4.0);
        net
    }
}

const FORMS: [Form; 6] = [
    Form { layers: 1, both: false, batch_first: false, lengths: [T, T] },
    Form { layers: 2, both: false, batch_first: true, lengths: [T, T] },
    Form { layers: 1, both: true, batch_first: true, lengths: [T, T] },
    Form { layers: 2, both: true, batch_first: false, lengths: [T, T] },
    Form { layers: 1, both: false, batch_first: false, lengths: [T, 2] },
    Form { layers: 2, both: true, batch_first: false, lengths: [T, 1] },
];

const KEPT: [&str; 7] = ["iOut", "jOut", "fOut", "oOut", "hOut", "cOut", "tanhCOut"];

pub(super) fn cases(c: &mut Cases) {
    for form in FORMS {
        c.add("LSTM", F32, move |r| {
            let net = Network::given(r, form);
            let wanted = net.run();
            r.out("output", &net.sequence(H * (1 + usize::from(form.both))), wanted.y);
            r.out("hy", &net.state(), wanted.hy).out("cy", &net.state(), wanted.cy);
            let each = [T as i64, N as i64, H as i64];
            for (k, name) in KEPT.into_iter().enumerate() {
                let all: Vec<(&[i64], Vec<f64>)> =
                    wanted.kept.iter().map(|v| (&each[..], v[k].clone())).collect();
                r.outs(name, &all);
            }
        });
        c.add("LstmBackward", F32, move |r| backward(r, form));
    }
}

fn backward(r: &mut Run, form: Form) {
    let net = Network::given(r, form);
    let result = net.run();
    let each = [T as i64, N as i64, H as i64];
    for (k, name) in ["i", "g", "f", "o", "h", "c", "tanhc"].into_iter().enumerate() {
        let all: Vec<(&[i64], Vec<f64>)> = result.kept.iter().map(|v| (&each[..], v[k].clone())).collect();
        r.list(name, &all);
    }
    let dy = r.x("dy", &net.sequence(H * (1 + usize::from(form.both))));
    let (dh, dc) = (r.x("dh", &net.state()), r.x("dc", &net.state()));
    let upstream = [dy, dh, dc].concat();
    // All that is given, flat, so that one gradient serves.
    let lengths: Vec<usize> = net.params.iter().map(Vec::len).collect();
    let flat = [net.x.clone(), net.h0.clone(), net.c0.clone(), net.params.concat()].concat();
    let sizes = (net.x.len(), net.h0.len());
    let forward = |v: &[f64]| -> Vec<f64> {
        let (x, rest) = v.split_at(sizes.0);
        let (h0, rest) = rest.split_at(sizes.1);
        let (c0, mut rest) = rest.split_at(sizes.1);
        let mut params = Vec::new();
        for n in &lengths {
            let (one, behind) = rest.split_at(*n);
            params.push(one.to_vec());
            rest = behind;
        }
        let moved =
            Network { form, features: 3, params, x: x.to_vec(), h0: h0.to_vec(), c0: c0.to_vec() }.run();
        [moved.y, moved.hy, moved.cy].concat()
    };
    let all = gradient(forward, &flat, &upstream);
    let (dx, rest) = all.split_at(sizes.0);
    let (dh0, rest) = rest.split_at(sizes.1);
    let (dc0, mut rest) = rest.split_at(sizes.1);
    let packed = form.lengths != [T, T];
    let dims = if packed { vec![(T * N) as i64, 3] } else { net.sequence(3) };
    r.bools("outputMask", &[true; 4]).out("dxOut", &dims, dx.to_vec());
    r.out("dhPrevOut", &net.state(), dh0.to_vec()).out("dcPrevOut", &net.state(), dc0.to_vec());
    let shapes = net.shapes();
    let mut grads: Vec<(&[i64], Vec<f64>)> = Vec::new();
    for (d, n) in shapes.iter().zip(&lengths) {
        let (one, behind) = rest.split_at(*n);
        grads.push((d, one.to_vec()));
        rest = behind;
    }
    r.outs("dparamsOut", &grads);
}
