//! Reductions and running values along dimensions.

use super::maths::{along, map, truth};
use super::run::Run;
use super::{Cases, F32, FLOATS, WHOLE};
use crate::nn::tensor::Dtype;

const D: &[i64] = &[3, 5, 2];

/// Each line of dimension 1 to a number.
fn lines(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    along(x, D, 1, |line| vec![f(line)])
}

fn sorted(line: &[f64]) -> Vec<f64> {
    let mut v = line.to_vec();
    v.sort_by(f64::total_cmp);
    v
}

fn least(line: &[f64]) -> f64 {
    sorted(line)[0]
}

fn greatest(line: &[f64]) -> f64 {
    sorted(line)[line.len() - 1]
}

fn place(line: &[f64], v: f64) -> f64 {
    line.iter().position(|x| *x == v).unwrap() as f64
}

fn mean(line: &[f64]) -> f64 {
    line.iter().sum::<f64>() / line.len() as f64
}

/// By pairs: Σ (a − b)² over all pairs, by 2·n·(n − correction).
fn variance(line: &[f64], correction: f64) -> f64 {
    let n = line.len() as f64;
    let pairs: f64 = line.iter().flat_map(|a| line.iter().map(move |b| (a - b) * (a - b))).sum();
    pairs / (2.0 * n) / (n - correction)
}

type Fold = fn(&[f64]) -> f64;

/// Along dimension 1, given as a list or as a number; the shape keeps a 1 or not.
fn folds(c: &mut Cases, name: &'static str, dtypes: &'static [Dtype], out: Option<Dtype>, f: Fold) {
    for keep in [false, true] {
        c.add(name, dtypes, move |r| {
            let x = if r.dtype.is_int() { r.whole("self", D, r.dtype, -9, 9) } else { r.x("self", D) };
            along_one(r, keep);
            let dims: &[i64] = if keep { &[3, 1, 2] } else { &[3, 2] };
            let dtype = out.unwrap_or(r.dtype);
            r.loose(2.0).out_as("out", dims, dtype, lines(&x, f));
        });
    }
}

fn along_one(r: &mut Run, keep: bool) {
    if r.is_list("dim") {
        r.ints("dim", &[1]);
    } else {
        r.n("dim", -2.0);
    }
    let name = if r.has("keepDim") { "keepDim" } else { "keepdim" };
    r.n(name, truth(keep));
    if r.has("dtype") {
        r.n("dtype", f64::from(r.dtype.code()));
    }
}

pub(super) fn cases(c: &mut Cases) {
    folds(c, "Amin", FLOATS, None, least);
    folds(c, "Amin", WHOLE, None, least);
    folds(c, "ProdDim", FLOATS, None, |l| l.iter().product());
    folds(c, "ProdDim", WHOLE, None, |l| l.iter().product());
    folds(c, "LogSumExp", FLOATS, None, |l| l.iter().map(|v| v.exp()).sum::<f64>().ln());
    folds(c, "All", WHOLE, Some(Dtype::Bool), |l| truth(!l.contains(&0.0)));
    folds(c, "Any", WHOLE, Some(Dtype::Bool), |l| truth(l.iter().filter(|v| **v != 0.0).count() > 0));
    folds(c, "ArgMin", FLOATS, Some(Dtype::I64), |l| place(l, least(l)));
    c.add("ReduceNansum", FLOATS, |r| {
        let mut x = r.values(30);
        x.iter_mut().step_by(4).for_each(|v| *v = f64::NAN);
        let x = r.t("self", D, r.dtype, &x);
        along_one(r, false);
        r.loose(2.0).out("out", &[3, 2], lines(&x, |l| l.iter().filter(|v| v.is_finite()).sum()));
    });
    for (name, f) in [("Prod", (|l| l.iter().product()) as Fold), ("Max", greatest), ("Min", least)] {
        c.add(name, FLOATS, move |r| {
            let x = r.within("self", D, 0.8, 1.2);
            if r.has("dtype") {
                r.n("dtype", f64::from(r.dtype.code()));
            }
            r.loose(2.0).out("out", &[], vec![f(&x)]);
        });
    }
    for (name, f) in [("MaxDim", greatest as Fold), ("MinDim", least)] {
        c.add(name, FLOATS, move |r| {
            let x = r.x("self", D);
            along_one(r, false);
            r.out("out", &[3, 2], lines(&x, f));
            r.out_as("indices", &[3, 2], Dtype::I64, lines(&x, |l| place(l, f(l))));
        });
    }
    for name in ["Aminmax", "AminmaxDim"] {
        c.add(name, FLOATS, |r| {
            let x = r.x("self", D);
            along_one(r, true);
            r.out("minOut", &[3, 1, 2], lines(&x, least)).out("maxOut", &[3, 1, 2], lines(&x, greatest));
        });
    }
    c.add("AminmaxAll", FLOATS, |r| {
        let x = r.x("self", D);
        r.out("minOut", &[], vec![least(&x)]).out("maxOut", &[], vec![greatest(&x)]);
    });
    for p in [0.0, 1.0, 2.0, 3.0, f64::INFINITY, f64::NEG_INFINITY] {
        c.add("Norm", FLOATS, move |r| {
            let x = r.x("self", D);
            r.ints("dim", &[1]).n("keepdim", 0.0).s("pScalar", p);
            let f = |l: &[f64]| {
                let a = map(l, f64::abs);
                if p == 0.0 {
                    a.iter().filter(|v| **v > 0.0).count() as f64
                } else if p.is_infinite() {
                    if p > 0.0 { greatest(&a) } else { least(&a) }
                } else {
                    a.iter().map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p)
                }
            };
            r.loose(2.0).out("out", &[3, 2], lines(&x, f));
        });
    }
    spread(c);
    ordered(c);
    running(c);
    c.add("Trace", FLOATS, |r| {
        let x = r.x("self", &[3, 5]);
        r.loose(2.0).out("out", &[], vec![x[0] + x[6] + x[12]]);
    });
    // Equal values: the first stands for them.
    c.add("ArgMin", F32, |r| {
        r.t("self", &[4], r.dtype, &[2.0, 1.0, 1.0, 3.0]);
        r.n("dim", 0.0).n("keepdim", 0.0).out_as("out", &[], Dtype::I64, vec![1.0]);
    });
}

fn spread(c: &mut Cases) {
    for unbiased in [0.0, 1.0] {
        c.add("Var", FLOATS, move |r| {
            let x = r.x("self", D);
            r.ints("dim", &[1]).n("unbiased", unbiased).n("keepdim", 0.0);
            r.loose(2.0).out("out", &[3, 2], lines(&x, |l| variance(l, unbiased)));
        });
        // Without dimensions it is of all elements: the page lets them be null.
        c.add("Var", FLOATS, move |r| {
            let x = r.x("self", D);
            r.n("unbiased", unbiased).n("keepdim", 0.0);
            r.loose(2.0).out("out", &[], vec![variance(&x, unbiased)]);
        });
        for name in ["VarCorrection", "Std"] {
            c.add(name, FLOATS, move |r| {
                let x = r.x("self", D);
                r.ints("dim", &[1]).n("correction", unbiased).n("keepdim", 1.0);
                let f = |l: &[f64]| {
                    let v = variance(l, unbiased);
                    if name == "Std" { v.sqrt() } else { v }
                };
                r.loose(2.0).out("out", &[3, 1, 2], lines(&x, f));
            });
        }
        for (name, out) in [("VarMean", "varOut"), ("StdMeanCorrection", "stdOut")] {
            c.add(name, FLOATS, move |r| {
                let x = r.x("self", D);
                r.ints("dim", &[1]).n("correction", unbiased).n("keepdim", 0.0);
                let f = |l: &[f64]| {
                    let v = variance(l, unbiased);
                    if out == "stdOut" { v.sqrt() } else { v }
                };
                r.loose(2.0).out(out, &[3, 2], lines(&x, f)).out("meanOut", &[3, 2], lines(&x, mean));
            });
        }
    }
}

/// The k-th by size.
fn ordered(c: &mut Cases) {
    // The lower of two middles.
    let middle = |l: &[f64]| sorted(l)[(l.len() - 1) / 2];
    c.add("Median", FLOATS, move |r| {
        let x = r.x("self", D);
        r.out("valuesOut", &[], vec![middle(&x)]);
    });
    c.add("MedianDim", FLOATS, move |r| {
        let x = r.x("self", D);
        along_one(r, false);
        r.out("valuesOut", &[3, 2], lines(&x, middle));
        r.out_as("indicesOut", &[3, 2], Dtype::I64, lines(&x, |l| place(l, middle(l))));
    });
    let known = move |l: &[f64]| middle(&l.iter().copied().filter(|v| v.is_finite()).collect::<Vec<_>>());
    for name in ["NanMedian", "NanMedianDim"] {
        c.add(name, FLOATS, move |r| {
            let mut x = r.values(30);
            x.iter_mut().step_by(7).for_each(|v| *v = f64::NAN);
            let x = r.t("self", D, r.dtype, &x);
            if name == "NanMedian" {
                r.out("out", &[], vec![known(&x)]);
                return;
            }
            along_one(r, false);
            r.out("valuesOut", &[3, 2], lines(&x, known));
            r.out_as("indicesOut", &[3, 2], Dtype::I64, lines(&x, |l| place(l, known(l))));
        });
    }
    c.add("Kthvalue", FLOATS, |r| {
        let x = r.x("self", D);
        along_one(r, false);
        r.n("k", 4.0).out("valuesOut", &[3, 2], lines(&x, |l| sorted(l)[3]));
        r.out_as("indicesOut", &[3, 2], Dtype::I64, lines(&x, |l| place(l, sorted(l)[3])));
    });
}

fn heads(l: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    (1..=l.len()).map(|n| f(&l[..n])).collect()
}

fn running(c: &mut Cases) {
    for dtypes in [FLOATS, WHOLE] {
        let given = |r: &mut Run, name: &str| {
            if r.dtype.is_int() { r.whole(name, D, r.dtype, -3, 3) } else { r.x(name, D) }
        };
        c.add("Cumsum", dtypes, move |r| {
            let x = given(r, "self");
            let code = f64::from(r.dtype.code());
            r.n("dim", 1.0).n("dtype", code);
            r.loose(2.0).out("out", D, along(&x, D, 1, |l| heads(l, |h| h.iter().sum())));
        });
        c.add("Cumprod", dtypes, move |r| {
            let x = given(r, "input");
            let code = f64::from(r.dtype.code());
            r.si("dim", 1).n("dtype", code);
            r.loose(2.0).out("out", D, along(&x, D, 1, |l| heads(l, |h| h.iter().product())));
        });
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            c.add("CumsumV2", dtypes, move |r| {
                let x = given(r, "self");
                r.n("dim", 1.0).n("exclusive", truth(exclusive)).n("reverse", truth(reverse));
                let one = |l: &[f64]| -> Vec<f64> {
                    let before = |i: usize, j: usize| if reverse { j > i } else { j < i };
                    let taken = |i: usize, j: usize| before(i, j) || (i == j && !exclusive);
                    (0..l.len()).map(|i| (0..l.len()).filter(|j| taken(i, *j)).map(|j| l[j]).sum()).collect()
                };
                r.loose(2.0).out("out", D, along(&x, D, 1, one));
            });
        }
    }
    for (name, f) in [("Cummax", greatest as Fold), ("Cummin", least)] {
        c.add(name, FLOATS, move |r| {
            // Halves: equal values come up, of which the last stands for all.
            let x = r.values(30).iter().map(|v| (v * 2.0).round() / 2.0).collect::<Vec<f64>>();
            let x = r.t("self", D, r.dtype, &x);
            let last = |h: &[f64]| h.iter().rposition(|v| *v == f(h)).unwrap() as f64;
            r.n("dim", 1.0).out("valuesOut", D, along(&x, D, 1, |l| heads(l, f)));
            r.out_as("indicesOut", D, Dtype::I64, along(&x, D, 1, |l| heads(l, last)));
        });
    }
}
