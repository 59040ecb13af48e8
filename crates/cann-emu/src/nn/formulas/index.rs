//! Elements by index: taken, written, added to, found; bags of rows.

use super::maths::truth;
use super::run::Run;
use super::shape::{at, places};
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

const D: &[i64] = &[3, 5];

/// `[3,5]` written at `[2,5]` places, along dimension 0.
const ROWS: [f64; 10] = [0.0, 2.0, 1.0, 0.0, 2.0, 1.0, 2.0, 0.0, 1.0, 1.0];

fn in_place(r: &Run) -> &'static str {
    if r.has("selfRef") { "selfRef" } else { "self" }
}

fn answer(r: &mut Run, want: Vec<f64>) {
    if r.has("out") {
        r.out("out", D, want);
    } else {
        r.becomes("selfRef", want);
    }
}

/// Every value in turn to its place.
fn written(x: &[f64], to: &[(usize, f64)], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut out = x.to_vec();
    to.iter().for_each(|(i, v)| out[*i] = f(out[*i], *v));
    out
}

pub(super) fn cases(c: &mut Cases) {
    for name in ["GatherV2", "GatherV3"] {
        c.add(name, FLOATS, |r| {
            let x = r.x("self", D);
            let k = r.t("index", &[4], Dtype::I64, &[4.0, 0.0, -1.0, 2.0]);
            let from = |p: &Vec<i64>| at(&x, D, &[p[0], (k[p[1] as usize] as i64).rem_euclid(5)]);
            r.n("dim", 1.0).out("out", &[3, 4], places(&[3, 4]).iter().map(from).collect());
        });
    }
    scatters(c);
    slices(c);
    advanced(c);
    found(c);
    bags(c);
}

type Meet = fn(f64, f64) -> f64;

const MEETS: [Meet; 3] = [|_, v| v, |x, v| x + v, |x, v| x * v];

fn scatters(c: &mut Cases) {
    for (how, meet) in MEETS.into_iter().enumerate() {
        for name in ["Scatter", "InplaceScatter", "ScatterValue", "InplaceScatterValue", "ScatterAdd"] {
            if name == "ScatterAdd" && how != 1 {
                continue;
            }
            c.add(name, FLOATS, move |r| {
                let to = in_place(r);
                let x = r.x(to, D);
                // Where a later value replaces one, no place may be named twice.
                let rows = if how == 0 { [0.0, 2.0, 1.0, 0.0, 2.0, 1.0, 0.0, 2.0, 1.0, 1.0] } else { ROWS };
                r.t("index", &[2, 5], Dtype::I64, &rows);
                let values = if r.has("value") {
                    r.s("value", 1.5);
                    vec![1.5; 10]
                } else {
                    r.x("src", &[2, 5])
                };
                r.n("dim", 0.0);
                if r.has("reduce") {
                    r.n("reduce", how as f64);
                }
                let to: Vec<(usize, f64)> =
                    (0..10).map(|i| (rows[i] as usize * 5 + i % 5, values[i])).collect();
                answer(r.loose(2.0), written(&x, &to, meet));
            });
        }
    }
}

/// Whole slices along dimension 1.
fn slices(c: &mut Cases) {
    const AT: [f64; 3] = [3.0, 0.0, 3.0];
    let to = |v: &[f64], k: &[f64]| -> Vec<(usize, f64)> {
        let n = k.len();
        (0..3 * n).map(|i| (i / n * 5 + k[i % n] as usize, v[i])).collect()
    };
    for name in ["IndexAdd", "IndexAddV2"] {
        c.add(name, FLOATS, move |r| {
            let x = r.x("self", D);
            r.t("index", &[3], Dtype::I64, &AT);
            let v = r.x("source", &[3, 3]);
            r.n("dim", 1.0).s("alpha", 1.5);
            answer(r.loose(4.0), written(&x, &to(&v, &AT), |x, v| x + 1.5 * v));
        });
    }
    for name in ["IndexCopy", "InplaceIndexCopy"] {
        c.add(name, FLOATS, move |r| {
            let x = r.x("selfRef", D);
            r.t("index", &[2], Dtype::I64, &[3.0, 0.0]);
            let v = r.x("source", &[3, 2]);
            let want = written(&x, &to(&v, &[3.0, 0.0]), |_, v| v);
            r.n("dim", 1.0);
            if name == "IndexCopy" {
                r.out("outRef", D, want)
            } else {
                r.becomes("selfRef", want)
            };
        });
    }
    for name in ["IndexFill", "InplaceIndexFill", "IndexFillTensor", "InplaceIndexFillTensor"] {
        c.add(name, FLOATS, move |r| {
            let first = in_place(r);
            let x = r.x(first, D);
            if r.is_list("index") {
                r.ints("index", &[3, 0]);
            } else {
                r.t("index", &[2], Dtype::I64, &[3.0, 0.0]);
            }
            let want = (0..15).map(|i| if i % 5 == 0 || i % 5 == 3 { 1.5 } else { x[i] }).collect();
            r.n("dim", 1.0).s("value", 1.5);
            answer(r, want);
        });
    }
}

const T: &[i64] = &[3, 4, 2];

/// Lists of indices: together, apart, as a mask, with dimensions left out.
fn advanced(c: &mut Cases) {
    type Pick = fn(&[i64]) -> Vec<i64>;
    let forms: [(&'static [&'static [f64]], &'static [i64], Pick); 3] = [
        (&[&[2.0, 0.0, 1.0]], &[3, 4, 2], |p| vec![[2, 0, 1][p[0] as usize], p[1], p[2]]),
        (&[&[2.0, 0.0], &[1.0, 3.0]], &[2, 2], |p| vec![[2, 0][p[0] as usize], [1, 3][p[0] as usize], p[1]]),
        // A whole dimension first.
        (&[&[], &[1.0, 3.0, -1.0]], &[3, 3, 2], |p| vec![p[0], [1, 3, 3][p[1] as usize], p[2]]),
    ];
    for (lists, out, from) in forms {
        c.add("Index", FLOATS, move |r| {
            let x = r.x("self", T);
            indices(r, lists);
            r.out("out", out, places(out).iter().map(|p| at(&x, T, &from(p))).collect());
        });
        for accumulate in [false, true] {
            c.add("IndexPutImpl", FLOATS, move |r| {
                let x = r.x("selfRef", T);
                indices(r, lists);
                let v = r.x("values", out);
                r.n("accumulate", truth(accumulate));
                let place = |p: &[i64]| ((p[0] * 4 + p[1]) * 2 + p[2]) as usize;
                let to: Vec<(usize, f64)> =
                    places(out).iter().zip(&v).map(|(p, v)| (place(&from(p)), *v)).collect();
                let want = written(&x, &to, |x, v| if accumulate { x + v } else { v });
                r.loose(2.0).becomes("selfRef", want);
            });
        }
    }
    c.add("Index", F32, |r| {
        let x = r.x("self", D);
        let mask: Vec<f64> = x.iter().map(|v| truth(*v > 0.0)).collect();
        r.list_as("indices", Dtype::Bool, &[(D, mask)]);
        let want: Vec<f64> = x.iter().copied().filter(|v| *v > 0.0).collect();
        r.out("out", &[want.len() as i64], want);
    });
}

fn indices(r: &mut Run, lists: &[&[f64]]) {
    let dims: Vec<[i64; 1]> = lists.iter().map(|l| [l.len() as i64]).collect();
    let all: Vec<(&[i64], Vec<f64>)> = lists.iter().zip(&dims).map(|(l, d)| (&d[..], l.to_vec())).collect();
    r.list_as("indices", Dtype::I64, &all);
}

fn found(c: &mut Cases) {
    const X: [f64; 6] = [0.0, 2.0, 0.0, -1.0, 0.0, 3.0];
    c.add("Nonzero", FLOATS, |r| {
        r.t("self", &[2, 3], r.dtype, &X);
        r.found("out", &[6, 2], Dtype::I64, &[3, 2], vec![0.0, 1.0, 1.0, 0.0, 1.0, 2.0]);
    });
    c.add("NonzeroV2", FLOATS, |r| {
        r.t("self", &[2, 3], r.dtype, &X);
        r.found("out", &[2, 6], Dtype::I64, &[2, 3], vec![0.0, 1.0, 1.0, 1.0, 0.0, 2.0]);
    });
    c.add("MaskedSelect", FLOATS, |r| {
        let (x, mask) = (r.x("self", D), r.mask("mask", &[5]));
        let want: Vec<f64> = (0..15).filter(|i| mask[i % 5]).map(|i| x[i]).collect();
        assert!(!want.is_empty());
        r.found("out", &[15], r.dtype, &[want.len() as i64], want);
    });
    c.add("InplaceMaskedScatter", FLOATS, |r| {
        let (x, mask, v) = (r.x("selfRef", D), r.mask("mask", D), r.x("source", &[15]));
        let next = |i: usize| v[mask[..i].iter().filter(|m| **m).count()];
        r.becomes("selfRef", (0..15).map(|i| if mask[i] { next(i) } else { x[i] }).collect());
    });
    c.add("Take", FLOATS, |r| {
        let x = r.x("self", D);
        r.t("index", &[2, 2], Dtype::I64, &[14.0, 0.0, -2.0, 7.0]);
        r.out("out", &[2, 2], vec![x[14], x[0], x[13], x[7]]);
    });
    for accumulate in [false, true] {
        c.add("InplacePut", FLOATS, move |r| {
            let x = r.x("selfRef", D);
            let to = if accumulate { [3.0, 8.0, 3.0] } else { [3.0, 8.0, -1.0] };
            r.t("index", &[3], Dtype::I64, &to);
            let v = r.x("source", &[3]);
            let to: Vec<(usize, f64)> =
                (0..3).map(|i| ((to[i] as i64).rem_euclid(15) as usize, v[i])).collect();
            let want = written(&x, &to, |x, v| if accumulate { x + v } else { v });
            r.n("accumulate", truth(accumulate)).loose(2.0).becomes("selfRef", want);
        });
    }
}

/// Rows 2 0 1 1 3 0 of a table in bags of 2, 3 and 1; row 3 is padding.
fn bags(c: &mut Cases) {
    const K: [f64; 6] = [2.0, 0.0, 1.0, 1.0, 3.0, 0.0];
    const BAG: [f64; 6] = [0.0, 0.0, 1.0, 1.0, 1.0, 2.0];
    for mode in [0, 1, 2] {
        for weighted in [false, true] {
            if weighted && mode != 0 {
                continue;
            }
            c.add("EmbeddingBag", FLOATS, move |r| {
                let w = r.x("weight", &[4, 2]);
                r.t("indices", &[6], Dtype::I64, &K);
                r.t("offsets", &[3], Dtype::I64, &[0.0, 2.0, 5.0]);
                let scale = if weighted { r.x("perSampleWeights", &[6]) } else { vec![1.0; 6] };
                r.n("mode", f64::from(mode)).n("paddingIdx", 3.0);
                let members = |b: usize| (0..6).filter(move |i| BAG[*i] == b as f64 && K[*i] != 3.0);
                let one = |b: usize, e: usize| -> f64 {
                    let v: Vec<f64> = members(b).map(|i| w[K[i] as usize * 2 + e] * scale[i]).collect();
                    match mode {
                        0 => v.iter().sum(),
                        1 => v.iter().sum::<f64>() / v.len() as f64,
                        _ => v.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    }
                };
                r.loose(2.0).out("output", &[3, 2], (0..6).map(|i| one(i / 2, i % 2)).collect());
                r.out_as("offset2bag", &[6], Dtype::I64, BAG.to_vec());
                r.out_as("bagSize", &[3], Dtype::I64, vec![2.0, 2.0, 1.0]);
                if mode == 2 {
                    let which = |b: usize, e: usize| {
                        let best = one(b, e);
                        K[members(b).find(|i| w[K[*i] as usize * 2 + e] == best).unwrap()]
                    };
                    r.out_as(
                        "maxIndices",
                        &[3, 2],
                        Dtype::I64,
                        (0..6).map(|i| which(i / 2, i % 2)).collect(),
                    );
                }
            });
        }
    }
    c.add("RepeatInterleaveGrad", FLOATS, |r| {
        let g = r.x("yGrad", &[2, 6]);
        r.t("repeats", &[4], Dtype::I64, &[1.0, 3.0, 0.0, 2.0]);
        let owner = [0, 1, 1, 1, 3, 3];
        let one = |i: usize| (0..6).filter(|j| owner[*j] == i % 4).map(|j| g[i / 4 * 6 + j]).sum();
        r.n("axis", 1.0).loose(2.0).out("out", &[2, 4], (0..8).map(one).collect());
    });
}
