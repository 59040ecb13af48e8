//! Averages and largest values of windows.

use super::maths::{along_last, transposed, truth};
use super::run::{Run, numel};
use super::shape::{at, places};
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

fn dims(n: usize, size: i64) -> Vec<i64> {
    [vec![2, 2], vec![size; n]].concat()
}

/// Part `o` of `to` nearly equal ones of a line.
fn part(n: usize, o: usize, to: usize) -> std::ops::Range<usize> {
    let start = (o as f64 * n as f64 / to as f64).floor() as usize;
    start..((o as f64 + 1.0) * n as f64 / to as f64).ceil() as usize
}

fn parts(x: &[f64], d: &[i64], n: usize, to: usize) -> Vec<f64> {
    let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
    along_last(x, d, n, |l, _| (0..to).map(|o| mean(&l[part(l.len(), o, to)])).collect()).0
}

/// The places of a window of `size` at output `p`, with a border: those inside a plane of `n`.
fn window(p: &[i64], size: i64, stride: i64, padding: i64, dilation: i64, n: i64) -> Vec<Vec<i64>> {
    let all = places(&vec![size; p.len()]);
    let moved =
        all.iter().map(|k| p.iter().zip(k).map(|(p, k)| p * stride - padding + k * dilation).collect());
    moved.filter(|q: &Vec<i64>| q.iter().all(|i| (0..n).contains(i))).collect()
}

#[derive(Clone, Copy)]
struct Average {
    n: usize,
    counts_border: bool,
    divisor: i64,
}

impl Average {
    /// Windows of 3, 2 apart, a border of 1, over planes of 5.
    fn of(self, x: &[f64]) -> Vec<f64> {
        let (xd, yd) = (dims(self.n, 5), dims(self.n, 3));
        let one = |p: &Vec<i64>| -> f64 {
            let inside = window(&p[2..], 3, 2, 1, 1, 5);
            let sum: f64 = inside.iter().map(|q| at(x, &xd, &[&p[..2], &q[..]].concat())).sum();
            let count = match (self.divisor, self.counts_border) {
                (0, true) => 3i64.pow(self.n as u32) as f64,
                (0, false) => inside.len() as f64,
                (d, _) => d as f64,
            };
            sum / count
        };
        places(&yd).iter().map(one).collect()
    }
    fn give(self, r: &mut Run) {
        let all = |v: i64| vec![v; self.n];
        let (stride, padding) =
            if r.has("strides") { ("strides", "paddings") } else { ("stride", "padding") };
        r.ints("kernelSize", &all(3)).ints(stride, &all(2)).ints(padding, &all(1));
        r.n("countIncludePad", truth(self.counts_border))
            .n("divisorOverride", self.divisor as f64)
            .loose(2.0);
    }
}

pub(super) fn cases(c: &mut Cases) {
    for n in [2usize, 3] {
        for to in [1, 2, 3] {
            c.add(&format!("AdaptiveAvgPool{n}d"), FLOATS, move |r| {
                let d = dims(n, 5);
                let x = r.x("self", &d);
                r.ints("outputSize", &vec![to; n]).loose(2.0).out(
                    "out",
                    &dims(n, to),
                    parts(&x, &d, n, to as usize),
                );
            });
            c.add(&format!("AdaptiveAvgPool{n}dBackward"), FLOATS, move |r| {
                let d = dims(n, 5);
                r.x("self", &d);
                let g = r.x("gradOutput", &dims(n, to));
                r.loose(2.0).out("out", &d, transposed(|x| parts(x, &d, n, to as usize), numel(&d), &g));
            });
        }
        for (counts_border, divisor) in [(true, 0), (false, 0), (true, 5)] {
            let of = Average { n, counts_border, divisor };
            c.add(&format!("AvgPool{n}d"), FLOATS, move |r| {
                let x = r.x("self", &dims(n, 5));
                of.give(r);
                r.out("out", &dims(n, 3), of.of(&x));
            });
            c.add(&format!("AvgPool{n}dBackward"), FLOATS, move |r| {
                let (d, name) = (dims(n, 5), if r.has("gradOutput") { "gradOutput" } else { "gradOuput" });
                r.x("self", &d);
                let g = r.x(name, &dims(n, 3));
                of.give(r);
                let out = if r.has("gradInput") { "gradInput" } else { "output" };
                r.out(out, &d, transposed(|x| of.of(x), numel(&d), &g));
            });
        }
        largest(c, n);
    }
    // One largest value of four, by the mask that the forward operator made: told by the gradient it gives.
    masked(c);
}

/// Values of a plane that are all different.
fn distinct(r: &mut Run, name: &str, d: &[i64]) -> Vec<f64> {
    let n = numel(d);
    let v: Vec<f64> = (0..n).map(|i| ((i * 37 % 101) as f64 - 50.0) / 8.0).collect();
    r.t(name, d, r.dtype, &v)
}

/// For every output the largest value of its window and the flat place in its plane.
fn tops(x: &[f64], d: &[i64], to: i64, of: impl Fn(&[i64]) -> Vec<Vec<i64>>) -> (Vec<f64>, Vec<f64>) {
    let n = d.len() - 2;
    let one = |p: &Vec<i64>| -> (f64, f64) {
        let best = of(&p[2..])
            .into_iter()
            .map(|q| (at(x, d, &[&p[..2], &q[..]].concat()), q))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        (best.0, best.1.iter().fold(0, |i, q| i * d[2] + q) as f64)
    };
    places(&dims(n, to)).iter().map(one).unzip()
}

fn largest(c: &mut Cases, n: usize) {
    // Windows of 2, 2 apart, a border of 1, over planes of 5: three each way.
    let strided = |p: &[i64]| window(p, 2, 2, 1, 1, 5);
    let give = move |r: &mut Run| {
        let all = |v: i64| vec![v; n];
        r.ints("kernelSize", &all(2))
            .ints("stride", &all(2))
            .ints("padding", &all(1))
            .ints("dilation", &all(1));
    };
    let equal = |p: &[i64]| -> Vec<Vec<i64>> {
        let ranges: Vec<_> = p.iter().map(|o| part(5, *o as usize, 3)).collect();
        let offsets = places(&ranges.iter().map(|r| r.len() as i64).collect::<Vec<_>>());
        offsets.iter().map(|k| k.iter().zip(&ranges).map(|(k, r)| k + r.start as i64).collect()).collect()
    };
    let plain = if n == 2 { "MaxPool2dWithIndices" } else { "MaxPool3dWithArgmax" };
    let index = Dtype::I32;
    c.add(plain, FLOATS, move |r| {
        let d = dims(n, 5);
        let x = distinct(r, "self", &d);
        let (y, i) = tops(&x, &d, 3, strided);
        give(r);
        r.out("out", &dims(n, 3), y).out_as("indices", &dims(n, 3), index, i);
    });
    c.add(&format!("AdaptiveMaxPool{n}d"), FLOATS, move |r| {
        let d = dims(n, 5);
        let x = distinct(r, "self", &d);
        let (y, i) = tops(&x, &d, 3, equal);
        r.ints("outputSize", &vec![3; n]).out("outputOut", &dims(n, 3), y);
        r.out_as("indicesOut", &dims(n, 3), index, i);
    });
    // The gradient goes where the value came from.
    let back = move |g: &[f64], i: &[f64], d: &[i64]| -> Vec<f64> {
        let (plane, window) = (numel(&d[2..]), 3usize.pow(n as u32));
        let mut dx = vec![0.0; numel(d)];
        (0..g.len()).for_each(|o| dx[o / window * plane + i[o] as usize] += g[o]);
        dx
    };
    for (name, adaptive) in
        [(format!("{plain}Backward"), false), (format!("AdaptiveMaxPool{n}dBackward"), true)]
    {
        c.add(&name, FLOATS, move |r| {
            let d = dims(n, 5);
            let x = distinct(r, "self", &d);
            let (_, i) = if adaptive { tops(&x, &d, 3, equal) } else { tops(&x, &d, 3, strided) };
            let g = r.x("gradOutput", &dims(n, 3));
            r.t("indices", &dims(n, 3), index, &i);
            if !adaptive {
                give(r);
            }
            r.loose(2.0).out("gradInput", &d, back(&g, &i, &d));
        });
    }
    // Back into planes of 5, zeros elsewhere; the gradient is what stands at those places.
    c.add(&format!("MaxUnpool{n}d"), FLOATS, move |r| {
        let d = dims(n, 5);
        let given = (0..numel(&d)).map(|i| (i * 37 % 101) as f64).collect::<Vec<f64>>();
        let (_, i) = tops(&given, &d, 2, |p| window(p, 2, 2, 0, 1, 5));
        let x = r.x("self", &dims(n, 2));
        r.t("indices", &dims(n, 2), Dtype::I64, &i);
        unpool(r, n);
        let mut y = vec![0.0; numel(&d)];
        let window = 2usize.pow(n as u32);
        (0..x.len()).for_each(|o| y[o / window * numel(&d[2..]) + i[o] as usize] = x[o]);
        r.out(if r.has("out") { "out" } else { "outRef" }, &d, y);
    });
    c.add(&format!("MaxUnpool{n}dBackward"), FLOATS, move |r| {
        let d = dims(n, 5);
        let given = (0..numel(&d)).map(|i| (i * 37 % 101) as f64).collect::<Vec<f64>>();
        let (_, i) = tops(&given, &d, 2, |p| window(p, 2, 2, 0, 1, 5));
        let (x, g) = (r.x("self", &dims(n, 2)), r.x("gradOutput", &d));
        r.t("indices", &dims(n, 2), Dtype::I64, &i);
        unpool(r, n);
        let window = 2usize.pow(n as u32);
        let dx = (0..x.len()).map(|o| g[o / window * numel(&d[2..]) + i[o] as usize]).collect();
        r.out("out", &dims(n, 2), dx);
    });
}

fn unpool(r: &mut Run, n: usize) {
    r.ints("outputSize", &vec![5; n]);
    if r.has("stride") {
        r.ints("stride", &vec![2; n]).ints("padding", &vec![0; n]);
    }
}

fn masked(c: &mut Cases) {
    let give = |r: &mut Run| {
        let two = [2, 2];
        r.ints("kernelSize", &two).ints("stride", &two).ints("padding", &[0, 0]).ints("dilation", &[1, 1]);
    };
    let d = &[2, 2, 4, 4];
    // A row of bits for each place of a window, rounded up: 32 bytes, and room behind.
    let mask: &[i64] = &[2, 2, 4, 64];
    c.add("MaxPool2dWithMask", F32, move |r| {
        let x = distinct(r, "self", d);
        let (y, _) = tops(&x, d, 2, |p| window(p, 2, 2, 0, 1, 4));
        give(r);
        r.out("out", &[2, 2, 2, 2], y).any("indices", mask, Dtype::I8).check(|all| {
            let bits: u32 = all["indices"].iter().map(|b| (*b as i8 as u8).count_ones()).sum();
            assert_eq!(bits, 16, "a bit for each of 16 windows");
        });
    });
    c.add("MaxPool2dWithMaskBackward", F32, move |r| {
        let x = distinct(r, "self", d);
        let (_, i) = tops(&x, d, 2, |p| window(p, 2, 2, 0, 1, 4));
        let g = r.x("gradOutput", &[2, 2, 2, 2]);
        // Window o of plane p has its bit in the row of the place within it.
        let mut bits = vec![0u8; 2 * 2 * 4 * 64];
        for (o, i) in i.iter().enumerate() {
            let (plane, window, at) = (o / 4, o % 4, *i as usize);
            let tap = at / 4 % 2 * 2 + at % 2;
            bits[(plane * 4 + tap) * 64] |= 1 << window;
        }
        r.t("indices", mask, Dtype::I8, &bits.iter().map(|b| f64::from(*b as i8)).collect::<Vec<_>>());
        give(r);
        let mut dx = vec![0.0; 64];
        (0..16).for_each(|o| dx[o / 4 * 16 + i[o] as usize] += g[o]);
        r.out("gradInput", d, dx);
    });
}
