//! Products, factors, triangular systems, distances, alignments.

use super::maths::{along, gradient, product, transpose, truth, zip};
use super::run::Run;
use super::{Cases, F32, FLOATS, WIDE};
use crate::nn::tensor::Dtype;

pub(super) fn cases(c: &mut Cases) {
    c.add("Mv", FLOATS, |r| {
        let (a, v) = (r.x("self", &[3, 5]), r.x("vec", &[5]));
        r.loose(2.0).out("out", &[3], product(&a, &v, 3, 5, 1));
    });
    c.add("Dot", FLOATS, |r| {
        let (a, b) = (r.x("self", &[7]), r.x("tensor", &[7]));
        r.loose(2.0).out("out", &[], product(&a, &b, 1, 7, 1));
    });
    sums(c);
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        c.add("Gemm", FLOATS, move |r| {
            let a = r.x("A", if ta { &[5, 3] } else { &[3, 5] });
            let b = r.x("B", if tb { &[2, 5] } else { &[5, 2] });
            let s = r.x("C", &[3, 2]);
            let a = if ta { transpose(&a, 5, 3) } else { a };
            let b = if tb { transpose(&b, 2, 5) } else { b };
            r.n("alpha", 1.5).n("beta", -0.5).n("transA", truth(ta)).n("transB", truth(tb));
            let want = zip(&product(&a, &b, 3, 5, 2), &s, |p, s| 1.5 * p - 0.5 * s);
            r.loose(2.0).out("out", &[3, 2], want);
        });
    }
    factors(c);
    distances(c);
    alignment(c);
}

/// β·self + α·product, of matrices, stacks, vectors.
fn sums(c: &mut Cases) {
    let scaled = |p: &[f64], s: &[f64]| zip(p, s, |p, s| 1.5 * p - 0.5 * s);
    let stacked = |a: &[f64], b: &[f64]| -> Vec<f64> {
        (0..2).flat_map(|i| product(&a[i * 15..][..15], &b[i * 10..][..10], 3, 5, 2)).collect()
    };
    let finish = |r: &mut Run, dims: &'static [i64], want: Vec<f64>| {
        r.s("alpha", 1.5).s("beta", -0.5).loose(3.0);
        if r.has("out") {
            r.out("out", dims, want);
        } else {
            r.becomes("selfRef", want);
        }
    };
    let first = |r: &mut Run, dims: &'static [i64]| {
        let name = if r.has("self") { "self" } else { "selfRef" };
        r.x(name, dims)
    };
    for name in ["Addmm", "InplaceAddmm"] {
        c.add(name, FLOATS, move |r| {
            let (s, a, b) = (first(r, &[3, 2]), r.x("mat1", &[3, 5]), r.x("mat2", &[5, 2]));
            finish(r, &[3, 2], scaled(&product(&a, &b, 3, 5, 2), &s));
        });
    }
    c.add("Addmv", FLOATS, move |r| {
        let (s, a, v) = (first(r, &[3]), r.x("mat", &[3, 5]), r.x("vec", &[5]));
        finish(r, &[3], scaled(&product(&a, &v, 3, 5, 1), &s));
    });
    for name in ["Baddbmm", "InplaceBaddbmm"] {
        c.add(name, FLOATS, move |r| {
            let (s, a, b) = (first(r, &[2, 3, 2]), r.x("batch1", &[2, 3, 5]), r.x("batch2", &[2, 5, 2]));
            finish(r, &[2, 3, 2], scaled(&stacked(&a, &b), &s));
        });
    }
    for name in ["Addbmm", "InplaceAddbmm"] {
        c.add(name, FLOATS, move |r| {
            let (s, a, b) = (first(r, &[3, 2]), r.x("batch1", &[2, 3, 5]), r.x("batch2", &[2, 5, 2]));
            let p = stacked(&a, &b);
            finish(r, &[3, 2], scaled(&zip(&p[..6], &p[6..], |a, b| a + b), &s));
        });
    }
    for name in ["Addr", "InplaceAddr"] {
        c.add(name, FLOATS, move |r| {
            let (s, a, b) = (first(r, &[3, 2]), r.x("vec1", &[3]), r.x("vec2", &[2]));
            r.s("alphaOptional", 1.5).s("betaOptional", -0.5).loose(2.0);
            let want = scaled(&product(&a, &b, 3, 1, 2), &s);
            if r.has("out") {
                r.out("out", &[3, 2], want)
            } else {
                r.becomes("selfRef", want)
            };
        });
    }
}

fn near(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 2e-5 * (1.0 + b.abs()), "{what}: {a}, wanted {b}");
    }
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|i| truth(i / n == i % n)).collect()
}

/// Factors are judged by what they make: their product, that they are triangular or orthogonal, their order.
fn factors(c: &mut Cases) {
    for upper in [false, true] {
        c.add("LinalgCholesky", WIDE, move |r| {
            let b = r.values(25);
            let a = zip(&product(&b, &transpose(&b, 5, 5), 5, 5, 5), &identity(5), |p, i| p + 2.0 * i);
            let a = r.t("self", &[5, 5], r.dtype, &a);
            let dtype = r.dtype;
            r.n("upper", truth(upper)).any("out", &[5, 5], dtype).check(move |all| {
                let l = if upper { transpose(&all["out"], 5, 5) } else { all["out"].clone() };
                assert!((0..25).all(|i| l[i] == 0.0 || i % 5 <= i / 5), "the factor is a triangle");
                assert!((0..5).all(|i| l[i * 6] > 0.0), "its diagonal is positive");
                near(&product(&l, &transpose(&l, 5, 5), 5, 5, 5), &a, "its square");
            });
        });
    }
    for (m, n) in [(5usize, 3usize), (3, 5)] {
        for mode in [0, 1, 2] {
            c.add("LinalgQr", WIDE, move |r| {
                let (rows, cols) = (m as i64, n as i64);
                let a = r.x("self", &[rows, cols]);
                let width = if mode == 1 { m } else { m.min(n) };
                let (w, dtype) = (width as i64, r.dtype);
                r.n("mode", f64::from(mode));
                if mode != 2 {
                    r.any("Q", &[rows, w], dtype);
                }
                r.any("R", &[w, cols], dtype).check(move |all| {
                    let t = &all["R"];
                    assert!((0..width * n).all(|i| i % n >= i / n || t[i] == 0.0), "R is a triangle");
                    near(
                        &product(&transpose(t, width, n), t, n, width, n),
                        &product(&transpose(&a, m, n), &a, n, m, n),
                        "RᵀR",
                    );
                    if let Some(q) = all.get("Q") {
                        near(&product(&transpose(q, m, width), q, width, m, width), &identity(width), "QᵀQ");
                        near(&product(q, t, m, width, n), &a, "QR");
                    }
                });
            });
        }
        for full in [false, true] {
            c.add("Svd", WIDE, move |r| {
                let (rows, cols, least) = (m as i64, n as i64, m.min(n));
                let a = r.x("input", &[rows, cols]);
                let (p, q) = if full { (m, n) } else { (least, least) };
                let dtype = r.dtype;
                r.n("fullMatrices", truth(full)).n("computeUV", 1.0);
                r.any("sigma", &[least as i64], dtype).any("u", &[rows, p as i64], dtype);
                r.any("v", &[cols, q as i64], dtype).check(move |all| {
                    let (s, u, v) = (&all["sigma"], &all["u"], &all["v"]);
                    assert!(s.windows(2).all(|w| w[0] >= w[1]) && s[least - 1] >= 0.0, "{s:?} falls");
                    near(&product(&transpose(u, m, p), u, p, m, p), &identity(p), "UᵀU");
                    near(&product(&transpose(v, n, q), v, q, n, q), &identity(q), "VᵀV");
                    let made =
                        |i: usize| (0..least).map(|k| u[i / n * p + k] * s[k] * v[i % n * q + k]).sum();
                    near(&(0..m * n).map(made).collect::<Vec<f64>>(), &a, "UΣVᵀ");
                });
            });
        }
    }
    for (upper, transpose, unit) in (0..8).map(|i| (i & 1 == 1, i & 2 == 2, i & 4 == 4)) {
        c.add("TriangularSolve", WIDE, move |r| {
            let mut a = r.values(9);
            (0..3).for_each(|i| a[i * 4] += 4.0);
            let a = r.t("A", &[3, 3], r.dtype, &a);
            let b = r.x("self", &[3, 2]);
            let (dtype, given) = (r.dtype, a.clone());
            r.n("upper", truth(upper)).n("transpose", truth(transpose)).n("unitriangular", truth(unit));
            r.out("mOut", &[3, 3], given).any("xOut", &[3, 2], dtype).check(move |all| {
                let kept = |i: usize| if upper { i % 3 > i / 3 } else { i % 3 < i / 3 };
                let one = |i: usize| match i % 4 {
                    0 if unit => 1.0,
                    0 => a[i],
                    _ if kept(i) => a[i],
                    _ => 0.0,
                };
                let t: Vec<f64> = (0..9).map(one).collect();
                let t = if transpose { super::maths::transpose(&t, 3, 3) } else { t };
                near(&product(&t, &all["xOut"], 3, 3, 2), &b, "A·x");
            });
        });
    }
    c.add("LinalgCross", FLOATS, |r| {
        let (a, b) = (r.x("self", &[3, 4]), r.x("other", &[3, 4]));
        let v = |x: &[f64], i: usize, e: usize| x[i % 3 * 4 + e];
        let one = |i: usize| {
            let (d, e) = (i / 4, i % 4);
            v(&a, d + 1, e) * v(&b, d + 2, e) - v(&a, d + 2, e) * v(&b, d + 1, e)
        };
        r.n("dim", 0.0).loose(2.0).out("out", &[3, 4], (0..12).map(one).collect());
    });
}

/// Minkowski's distance.
pub(super) fn far(a: &[f64], b: &[f64], p: f64) -> f64 {
    let d = zip(a, b, |a, b| (a - b).abs());
    if p.is_infinite() {
        d.into_iter().fold(0.0, f64::max)
    } else if p == 0.0 {
        d.iter().filter(|v| **v > 0.0).count() as f64
    } else {
        d.iter().map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p)
    }
}

/// Distances of each of `rows` of `x` to each of `y`, of width 4.
fn table(x: &[f64], y: &[f64], p: f64) -> Vec<f64> {
    x.chunks(4).flat_map(|a| y.chunks(4).map(move |b| far(a, b, p))).collect()
}

fn distances(c: &mut Cases) {
    for p in [0.0, 1.0, 1.5, 2.0, 3.0, f64::INFINITY] {
        c.add("Cdist", FLOATS, move |r| {
            let (x, y) = (r.x("x1", &[3, 4]), r.x("x2", &[5, 4]));
            r.n("p", p).loose(2.0).out("out", &[3, 5], table(&x, &y, p));
        });
        if p > 0.0 {
            c.add("CdistBackward", F32, move |r| {
                let (x, y) = (r.x("x1", &[3, 4]), r.x("x2", &[5, 4]));
                let g = r.x("grad", &[3, 5]);
                r.t("cdist", &[3, 5], r.dtype, &table(&x, &y, p));
                r.n("p", p).loose(10.0).out("out", &[3, 4], gradient(|x| table(x, &y, p), &x, &g));
            });
        }
        for name in ["Pdist", "PdistForward"] {
            c.add(name, FLOATS, move |r| {
                let x = r.x("self", &[4, 4]);
                if r.has("p") {
                    r.n("p", p);
                } else {
                    r.s("pScalar", p);
                }
                let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
                let want = pairs.map(|(i, j)| far(&x[i * 4..][..4], &x[j * 4..][..4], p)).to_vec();
                r.loose(2.0).out("out", &[6], want);
            });
        }
    }
    for p in [1.0, 2.0] {
        c.add("Renorm", FLOATS, move |r| {
            let x = r.x("self", &[3, 5]);
            r.s("p", p).s("maxNorm", 2.0).n("dim", 0.0);
            let shorter = |l: &[f64]| -> Vec<f64> {
                let size = far(l, &[0.0; 5], p);
                l.iter().map(|v| if size > 2.0 { v * 2.0 / size } else { *v }).collect()
            };
            r.loose(2.0).out("out", &[3, 5], along(&x, &[3, 5], 1, shorter));
        });
    }
}

/// Every way of spelling the labels over the steps, summed: what the recursion of the kernel abbreviates.
fn all_paths(
    log: &[f64],
    steps: usize,
    stride: usize,
    symbols: usize,
    labels: &[usize],
    blank: usize,
) -> f64 {
    let mut sum = 0.0;
    for code in 0..symbols.pow(steps as u32) {
        let path: Vec<usize> = (0..steps).map(|t| code / symbols.pow(t as u32) % symbols).collect();
        let mut said: Vec<usize> = path.clone();
        said.dedup();
        said.retain(|s| *s != blank);
        if said == labels {
            sum += path.iter().enumerate().map(|(t, s)| log[t * stride + s]).sum::<f64>().exp();
        }
    }
    -sum.ln()
}

/// Four steps, two sequences of 4 and 3 steps, three symbols of which 0 is the blank; labels 1 1 and 2.
fn aligned(log: &[f64]) -> Vec<f64> {
    vec![all_paths(log, 4, 6, 3, &[1, 1], 0), all_paths(&log[3..], 3, 6, 3, &[2], 0)]
}

fn alignment(c: &mut Cases) {
    let given = |r: &mut Run| {
        let x = r.values(24);
        let log: Vec<f64> = x
            .chunks(3)
            .flat_map(|row| {
                let s = row.iter().map(|v| v.exp()).sum::<f64>().ln();
                row.iter().map(move |v| v - s)
            })
            .collect();
        let log = r.t("logProbs", &[4, 2, 3], r.dtype, &log);
        r.t("targets", &[3], Dtype::I64, &[1.0, 1.0, 2.0]);
        let lengths = if r.has("targetlengths") { "targetlengths" } else { "targetLengths" };
        r.ints("inputLengths", &[4, 3]).ints(lengths, &[2, 1]);
        log
    };
    c.add("CtcLoss", WIDE, move |r| {
        let log = given(r);
        let dtype = r.dtype;
        r.loose(2.0).out("negLogLikelihoodOut", &[2], aligned(&log)).any("logAlphaOut", &[2, 4, 5], dtype);
        // A path's first step is the blank or the first label.
        r.check(move |all| {
            near(&all["logAlphaOut"][..2], &log[..2], "first step");
            assert_eq!(all["logAlphaOut"][2], f64::NEG_INFINITY);
        });
    });
    c.add("CtcLossBackward", F32, move |r| {
        let log = given(r);
        let g = r.x("gradOut", &[2]);
        r.t("negLogLikelihood", &[2], r.dtype, &aligned(&log));
        r.t("logAlpha", &[2, 4, 5], r.dtype, &alphas(&log));
        // By what a softmax before it is given, as PyTorch's gradient is: the rows stay normal.
        let normal = |x: &[f64]| -> Vec<f64> {
            x.chunks(3)
                .flat_map(|l| {
                    let s = l.iter().map(|v| v.exp()).sum::<f64>().ln();
                    l.iter().map(move |v| v - s)
                })
                .collect()
        };
        r.loose(10.0).out("out", &[4, 2, 3], gradient(|x| aligned(&normal(x)), &log, &g));
    });
}

/// Logarithms of the sums over all beginnings that stand at a state, as the forward operator gives them.
fn alphas(log: &[f64]) -> Vec<f64> {
    let mut out = vec![f64::NEG_INFINITY; 2 * 4 * 5];
    for (b, path, len) in [(0, &[0, 1, 0, 1, 0][..], 4), (1, &[0, 2, 0][..], 3)] {
        for t in 0..len {
            for s in 0..path.len() {
                let p = log[t * 6 + b * 3 + path[s]];
                let sum = if t == 0 {
                    truth(s < 2)
                } else {
                    let before = |s: usize| out[(b * 4 + t - 1) * 5 + s].exp();
                    let skip = s > 1 && path[s] != 0 && path[s] != path[s - 2];
                    before(s)
                        + if s > 0 { before(s - 1) } else { 0.0 }
                        + if skip { before(s - 2) } else { 0.0 }
                };
                out[(b * 4 + t) * 5 + s] = sum.ln() + p;
            }
        }
    }
    out
}
