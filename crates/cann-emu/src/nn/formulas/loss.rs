//! Losses with their gradients, in all three ways of reducing.

use super::maths::{along, gradient, map, truth, zip};
use super::run::Run;
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

const D: &[i64] = &[3, 5];

type Term = fn(f64, f64) -> f64;

/// Forward, its output, backward, its output, its gradient's name; range of inputs and of targets; the term.
struct Loss {
    forward: &'static [(&'static str, &'static str)],
    backward: (&'static str, &'static str, &'static str),
    inputs: (f64, f64),
    targets: (f64, f64),
    numbers: &'static [(&'static str, f64)],
    term: Term,
}

const LOSSES: &[Loss] = &[
    Loss {
        forward: &[("MseLoss", "out"), ("MseLossOut", "out")],
        backward: ("MseLossBackward", "gradOutput", "out"),
        inputs: (-2.0, 2.0),
        targets: (-2.0, 2.0),
        numbers: &[],
        term: |x, t| x * x - 2.0 * x * t + t * t,
    },
    Loss {
        forward: &[("L1Loss", "out")],
        backward: ("L1LossBackward", "gradOutput", "gradInput"),
        inputs: (-2.0, 2.0),
        targets: (-2.0, 2.0),
        numbers: &[],
        term: |x, t| x.max(t) - x.min(t),
    },
    Loss {
        forward: &[("SmoothL1Loss", "result")],
        backward: ("SmoothL1LossBackward", "gradOut", "gradInput"),
        inputs: (-2.0, 2.0),
        targets: (-2.0, 2.0),
        numbers: &[("beta", 0.75)],
        term: |x, t| {
            let d = (x - t).abs();
            if d < 0.75 { d * d / 1.5 } else { d - 0.375 }
        },
    },
    Loss {
        forward: &[("SoftMarginLoss", "out")],
        backward: ("SoftMarginLossBackward", "gradOutput", "out"),
        inputs: (-2.0, 2.0),
        targets: (-1.0, 1.0),
        numbers: &[],
        term: |x, t| (1.0 + (-x * t).exp()).ln(),
    },
    Loss {
        forward: &[("KlDiv", "out")],
        backward: ("KlDivBackward", "gradOutput", "out"),
        inputs: (-2.0, 0.0),
        targets: (0.1, 1.0),
        numbers: &[("logTarget", 0.0)],
        term: |x, t| t * t.ln() - t * x,
    },
    Loss {
        forward: &[("KlDiv", "out")],
        backward: ("KlDivBackward", "gradOutput", "out"),
        inputs: (-2.0, 0.0),
        targets: (-2.0, 0.0),
        numbers: &[("logTarget", 1.0)],
        term: |x, t| t.exp() * t - t.exp() * x,
    },
    Loss {
        forward: &[("BinaryCrossEntropy", "out")],
        backward: ("BinaryCrossEntropyBackward", "gradOutput", "out"),
        inputs: (0.1, 0.9),
        targets: (0.0, 1.0),
        numbers: &[],
        term: |x, t| -t * x.ln() - (1.0 - t) * (1.0 - x).ln(),
    },
    Loss {
        forward: &[("BinaryCrossEntropyWithLogits", "out")],
        backward: ("BinaryCrossEntropyWithLogitsBackward", "gradOutput", "out"),
        inputs: (-2.0, 2.0),
        targets: (0.0, 1.0),
        numbers: &[],
        term: |x, t| (1.0 + x.exp()).ln() - t * x,
    },
];

fn reduced(terms: Vec<f64>, how: i32) -> Vec<f64> {
    let n = terms.len() as f64;
    match how {
        0 => terms,
        1 => vec![terms.iter().sum::<f64>() / n],
        _ => vec![terms.iter().sum()],
    }
}

fn shape(how: i32) -> &'static [i64] {
    if how == 0 { D } else { &[] }
}

pub(super) fn cases(c: &mut Cases) {
    for loss in LOSSES {
        for how in [0, 1, 2] {
            for (name, out) in loss.forward {
                c.add(name, FLOATS, move |r| {
                    let x = r.within("self", D, loss.inputs.0, loss.inputs.1);
                    let t = r.within("target", D, loss.targets.0, loss.targets.1);
                    loss.numbers.iter().for_each(|(n, v)| {
                        r.n(n, *v);
                    });
                    r.n("reduction", f64::from(how)).loose(2.0);
                    r.out(out, shape(how), reduced(zip(&x, &t, loss.term), how));
                });
            }
            let (name, grad, out) = loss.backward;
            c.add(name, FLOATS, move |r| {
                let x = r.within("self", D, loss.inputs.0, loss.inputs.1);
                let t = r.within("target", D, loss.targets.0, loss.targets.1);
                let g = r.x(grad, shape(how));
                loss.numbers.iter().for_each(|(n, v)| {
                    r.n(n, *v);
                });
                let dx = gradient(|x| reduced(zip(x, &t, loss.term), how), &x, &g);
                r.n("reduction", f64::from(how)).loose(3.0).out(out, D, dx);
            });
        }
    }
    weighted(c);
    for how in [0, 1, 2] {
        for log in [false, true] {
            c.add("KlDivTargetBackward", F32, move |r| {
                let (x, t) = (r.within("self", D, -2.0, 0.0), r.within("target", D, 0.1, 1.0));
                let g = r.x("gradOutput", shape(how));
                let term = |x: f64, t: f64| if log { t.exp() * (t - x) } else { t * t.ln() - t * x };
                let dt = gradient(|t| reduced(zip(&x, t, term), how), &t, &g);
                r.n("reduction", f64::from(how)).n("logTarget", truth(log)).loose(10.0).out(
                    "gradTarget",
                    D,
                    dt,
                );
            });
        }
        c.add("MultilabelMarginLoss", FLOATS, move |r| {
            let x = r.x("self", &[2, 4]);
            // Classes 3 and 0; class 1.
            r.t("target", &[2, 4], Dtype::I64, &[3.0, 0.0, -1.0, 1.0, 1.0, -1.0, 0.0, 0.0]);
            let hinge = |a: f64, b: f64| (1.0 - a + b).max(0.0);
            let one = hinge(x[3], x[1]) + hinge(x[3], x[2]) + hinge(x[0], x[1]) + hinge(x[0], x[2]);
            let two = hinge(x[5], x[4]) + hinge(x[5], x[6]) + hinge(x[5], x[7]);
            let dims: &[i64] = if how == 0 { &[2] } else { &[] };
            r.n("reduction", f64::from(how)).loose(2.0);
            r.out("out", dims, reduced(vec![one / 4.0, two / 4.0], how));
            r.out("isTarget", &[2, 4], vec![1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        });
    }
    classes(c);
}

/// Weights of terms and of positive terms.
fn weighted(c: &mut Cases) {
    for how in [0, 1, 2] {
        let plain = |x: f64, t: f64| -t * x.ln() - (1.0 - t) * (1.0 - x).ln();
        c.add("BinaryCrossEntropy", FLOATS, move |r| {
            let (x, t, w) = (
                r.within("self", D, 0.1, 0.9),
                r.within("target", D, 0.0, 1.0),
                r.within("weight", D, 0.2, 2.0),
            );
            let terms = zip(&zip(&x, &t, plain), &w, |a, w| a * w);
            r.n("reduction", f64::from(how)).loose(2.0).out("out", shape(how), reduced(terms, how));
        });
        let positive = |x: &[f64], t: &[f64], w: &[f64], p: &[f64]| -> Vec<f64> {
            let one = |i: usize| {
                let y = 1.0 / (1.0 + (-x[i]).exp());
                -w[i] * (p[i % 5] * t[i] * y.ln() + (1.0 - t[i]) * (1.0 - y).ln())
            };
            (0..15).map(one).collect()
        };
        let given = |r: &mut Run| {
            let (x, t) = (r.x("self", D), r.within("target", D, 0.0, 1.0));
            (x, t, r.within("weightOptional", D, 0.2, 2.0), r.within("posWeightOptional", &[5], 0.2, 3.0))
        };
        c.add("BinaryCrossEntropyWithLogits", FLOATS, move |r| {
            let (x, t, w, p) = given(r);
            r.n("reduction", f64::from(how)).loose(2.0).out(
                "out",
                shape(how),
                reduced(positive(&x, &t, &w, &p), how),
            );
        });
        c.add("BinaryCrossEntropyWithLogitsBackward", FLOATS, move |r| {
            let (x, t, w, p) = given(r);
            let g = r.x("gradOutput", shape(how));
            let dx = gradient(|x| reduced(positive(x, &t, &w, &p), how), &x, &g);
            r.n("reduction", f64::from(how)).loose(3.0).out("out", D, dx);
        });
    }
}

/// The loss by class of images `[2,3,2,2]`: weights, and a class that is left out.
fn classes(c: &mut Cases) {
    const X: &[i64] = &[2, 3, 2, 2];
    const T: [f64; 8] = [0.0, 2.0, 1.0, 1.0, 2.0, 0.0, 1.0, 0.0];
    let terms = |x: &[f64], w: &[f64]| -> Vec<f64> {
        let one = |i: usize| {
            let k = T[i] as usize;
            if k == 1 { 0.0 } else { -w[k] * x[(i / 4 * 3 + k) * 4 + i % 4] }
        };
        (0..8).map(one).collect()
    };
    let total = |w: &[f64]| T.iter().filter(|k| **k != 1.0).map(|k| w[*k as usize]).sum::<f64>();
    let reduced = move |x: &[f64], w: &[f64], how: i32| match how {
        0 => terms(x, w),
        1 => vec![terms(x, w).iter().sum::<f64>() / total(w)],
        _ => vec![terms(x, w).iter().sum()],
    };
    for how in [0, 1, 2] {
        let dims: &[i64] = if how == 0 { &[2, 2, 2] } else { &[] };
        let given = move |r: &mut Run| {
            let (x, w) = (r.within("self", X, -3.0, 0.0), r.within("weight", &[3], 0.2, 2.0));
            r.t("target", &[2, 2, 2], Dtype::I64, &T);
            r.n("reduction", f64::from(how)).n("ignoreIndex", 1.0);
            (x, w)
        };
        c.add("NLLLoss2d", FLOATS, move |r| {
            let (x, w) = given(r);
            r.loose(2.0).out("out", dims, reduced(&x, &w, how));
            let dtype = r.dtype;
            if how == 0 {
                r.any("totalWeightOut", &[], dtype);
            } else {
                r.out("totalWeightOut", &[], vec![total(&w)]);
            }
        });
        c.add("NLLLoss2dBackward", FLOATS, move |r| {
            let (x, w) = given(r);
            let g = r.x("gradOutput", dims);
            let sum = r.t("totalWeight", &[], r.dtype, &[total(&w)])[0];
            let dx = gradient(|x| reduced(x, &w, how), &x, &g);
            // The total comes rounded to the type.
            let scale = if how == 1 { total(&w) / sum } else { 1.0 };
            r.loose(2.0).out("out", X, map(&dx, |d| d * scale));
        });
    }
    // A softmax with dropped places is one over the others.
    for backward in [false, true] {
        c.add(
            if backward { "ScaledMaskedSoftmaxBackward" } else { "ScaledMaskedSoftmax" },
            FLOATS,
            move |r| {
                let d = &[1, 2, 3, 5];
                let x = if backward { r.values(30) } else { r.x("x", d) };
                let mut mask = vec![0.0; 15];
                mask.iter_mut().step_by(4).for_each(|m| *m = 1.0);
                r.t("mask", &[1, 1, 3, 5], Dtype::Bool, &mask);
                r.n("scale", 0.75);
                let soft = |x: &[f64]| -> Vec<f64> {
                    let e: Vec<f64> = (0..30).map(|i| (1.0 - mask[i % 15]) * (0.75 * x[i]).exp()).collect();
                    along(&e, d, 3, |l| map(l, |v| v / l.iter().sum::<f64>()))
                };
                if backward {
                    let (y, g) = (r.t("y", d, r.dtype, &soft(&x)), r.x("gradOutput", d));
                    // By the probabilities as they were rounded.
                    let dx = |i: usize| {
                        let row = i / 5 * 5..i / 5 * 5 + 5;
                        let dot: f64 = row.map(|j| y[j] * g[j]).sum();
                        (1.0 - mask[i % 15]) * 0.75 * (y[i] * g[i] - y[i] * dot)
                    };
                    r.loose(2.0).out("out", d, (0..30).map(dx).collect());
                } else {
                    r.loose(2.0).out("y", d, soft(&x));
                }
            },
        );
    }
}
