//! Lists of tensors, and the optimizer's own operators.

use super::maths::{erf, map, sigmoid, truth, zip};
use super::run::{Run, rounded};
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

type Given = Vec<Vec<f64>>;

fn outs(r: &mut Run, want: Given) {
    let [a, b]: [Vec<f64>; 2] = want.try_into().unwrap();
    r.outs("out", &[(&[3, 5], a), (&[7], b)]);
}

fn each(x: &[Vec<f64>], f: impl Fn(f64) -> f64) -> Given {
    x.iter().map(|x| map(x, &f)).collect()
}

fn pairs(x: &[Vec<f64>], y: &[Vec<f64>], f: impl Fn(f64, f64) -> f64) -> Given {
    x.iter().zip(y).map(|(x, y)| zip(x, y, &f)).collect()
}

const ONE: &[(&str, f64, f64, fn(f64) -> f64)] = &[
    ("Abs", -3.0, 3.0, |x| if x < 0.0 { -x } else { x }),
    ("Acos", -0.9, 0.9, |x| (1.0 - x * x).sqrt().atan2(x)),
    ("Asin", -0.9, 0.9, |x| x.atan2((1.0 - x * x).sqrt())),
    ("Atan", -3.0, 3.0, |x| (x / (1.0 + x * x).sqrt()).asin()),
    ("Cos", -6.0, 6.0, |x| 1.0 - 2.0 * (x / 2.0).sin().powi(2)),
    ("Cosh", -3.0, 3.0, |x| (x.exp() + (-x).exp()) / 2.0),
    ("Erf", -2.0, 2.0, erf),
    ("Erfc", -2.0, 2.0, |x| 1.0 - erf(x)),
    ("Exp", -3.0, 3.0, |x| x.cosh() + x.sinh()),
    ("Expm1", -2.0, 2.0, |x| x.exp() - 1.0),
    ("Log", 0.1, 9.0, |x| 2.0 * ((x - 1.0) / (x + 1.0)).atanh()),
    ("Log10", 0.1, 9.0, |x| x.ln() / 10f64.ln()),
    ("Log1p", -0.5, 3.0, |x| (1.0 + x).ln()),
    ("Log2", 0.1, 9.0, |x| x.ln() / 2f64.ln()),
    ("Neg", -3.0, 3.0, |x| 0.0 - x),
    ("Reciprocal", 0.2, 9.0, |x| x.powi(-1)),
    ("Sigmoid", -5.0, 5.0, sigmoid),
    ("Sign", -3.0, 3.0, |x| truth(x > 0.0) - truth(x < 0.0)),
    ("Sin", -6.0, 6.0, |x| 2.0 * (x / 2.0).sin() * (x / 2.0).cos()),
    ("Sinh", -3.0, 3.0, |x| (x.exp() - (-x).exp()) / 2.0),
    ("Sqrt", 0.0, 9.0, |x| x.powf(0.5)),
    ("Tan", -1.2, 1.2, |x| x.sin() / x.cos()),
    ("Tanh", -3.0, 3.0, |x| 1.0 - 2.0 / ((2.0 * x).exp() + 1.0)),
];

type Two = fn(f64, f64) -> f64;

const BY_NUMBER: &[(&str, Two)] = &[
    ("Add", |x, s| x + s),
    ("Sub", |x, s| x - s),
    ("Mul", |x, s| x * s),
    ("Div", |x, s| x / s),
    ("Pow", |x, s| (s * x.ln()).exp()),
    ("Maximum", |x, s| if x < s { s } else { x }),
    ("Minimum", |x, s| if x < s { x } else { s }),
];

const BY_LIST: &[(&str, Two)] = &[
    ("ForeachMulList", |a, b| a * b),
    ("ForeachDivList", |a, b| a / b),
    ("ForeachPowList", |a, b| (b * a.ln()).exp()),
    ("ForeachMaximumList", |a, b| (a + b + (a - b).abs()) / 2.0),
    ("ForeachMinimumList", |a, b| (a + b - (a - b).abs()) / 2.0),
];

/// The number of each tensor: one for all as a scalar or a tensor of one, or one each.
fn numbers(r: &mut Run, form: &str, values: [f64; 2]) -> [f64; 2] {
    match form {
        "Scalar" => {
            let v = r.t("scalar", &[1], r.dtype, &[values[0]])[0];
            [v, v]
        }
        "ScalarV2" => {
            r.s("scalar", values[0]);
            [values[0]; 2]
        }
        _ => {
            r.scalars("scalars", &values);
            values
        }
    }
}

pub(super) fn cases(c: &mut Cases) {
    for (name, low, high, f) in ONE {
        c.add(&format!("Foreach{name}"), FLOATS, move |r| {
            let x = r.two("x", *low, *high);
            outs(r.loose(2.0), each(&x, f));
        });
    }
    for (name, f) in BY_NUMBER {
        for form in ["Scalar", "ScalarV2", "ScalarList"] {
            c.add(&format!("Foreach{name}{form}"), FLOATS, move |r| {
                let x = r.two("x", 0.3, 3.0);
                let s = numbers(r, form, [1.75, 0.625]);
                outs(r.loose(2.0), x.iter().zip(s).map(|(x, s)| map(x, |x| f(x, s))).collect());
            });
        }
    }
    for (name, f) in BY_LIST {
        c.add(name, FLOATS, move |r| {
            let (x, y) = (r.two("x1", 0.3, 2.0), r.two("x2", 0.3, 2.0));
            outs(r.loose(2.0), pairs(&x, &y, f));
        });
    }
    for (name, sign) in [("ForeachAddList", 1.0), ("ForeachSubList", -1.0), ("ForeachSubListV2", -1.0)] {
        c.add(name, FLOATS, move |r| {
            let (x, y) = (r.two("x1", -2.0, 2.0), r.two("x2", -2.0, 2.0));
            if r.is_scalar("alpha") {
                r.s("alpha", 1.5);
            } else {
                r.t("alpha", &[1], r.dtype, &[1.5]);
            }
            outs(r.loose(2.0), pairs(&x, &y, |a, b| a + sign * 1.5 * b));
        });
    }
    c.add("ForeachLerpScalar", FLOATS, |r| {
        let (x, y) = (r.two("x1", -2.0, 2.0), r.two("x2", -2.0, 2.0));
        r.s("weight", 0.75);
        outs(r.loose(2.0), pairs(&x, &y, |a, b| 0.25 * a + 0.75 * b));
    });
    c.add("ForeachLerpList", FLOATS, |r| {
        let (x, y, w) = (r.two("x1", -2.0, 2.0), r.two("x2", -2.0, 2.0), r.two("weight", 0.0, 1.0));
        let want = pairs(&pairs(&x, &w, |a, w| (1.0 - w) * a), &pairs(&y, &w, |b, w| w * b), |a, b| a + b);
        outs(r.loose(2.0), want);
    });
    c.add("ForeachPowScalarAndTensor", FLOATS, |r| {
        let x = r.two("x", -2.0, 2.0);
        outs(r.s("scalar", 1.75).loose(2.0), each(&x, |x| (x * 1.75f64.ln()).exp()));
    });
    for (name, f) in [("Addcmul", (|a, b| a * b) as Two), ("Addcdiv", |a, b| a / b)] {
        for form in ["Scalar", "ScalarV2", "ScalarList"] {
            c.add(&format!("Foreach{name}{form}"), FLOATS, move |r| {
                let (x, y, z) = (r.two("x1", -2.0, 2.0), r.two("x2", -2.0, 2.0), r.two("x3", 0.4, 2.0));
                let s = if form == "ScalarList" {
                    // A tensor with a number for each.
                    let v = r.t("scalars", &[2], r.dtype, &[1.75, 0.625]);
                    [v[0], v[1]]
                } else {
                    numbers(r, form, [1.75, 0.625])
                };
                let by = pairs(&y, &z, f);
                let want = (0..2).map(|i| zip(&x[i], &by[i], |x, v| x + s[i] * v)).collect();
                outs(r.loose(2.0), want);
            });
        }
    }
    c.add("ForeachCopy", FLOATS, |r| {
        let x = r.two("x", -2.0, 2.0);
        outs(r, x);
    });
    c.add("ForeachZeroInplace", FLOATS, |r| {
        r.two("x", -2.0, 2.0);
        r.becomes_at("x", 0, vec![0.0; 15]).becomes_at("x", 1, vec![0.0; 7]);
    });
    scaler(c);
    c.add("ApplyAdamW", FLOATS, adamw);
}

/// The scale of a gradient scaler: halved after an overflow, doubled after enough steps without.
fn scaler(c: &mut Cases) {
    for (found, before, scale, after) in [(0.0, 1.0, 8.0, 2.0), (0.0, 2.0, 16.0, 0.0), (1.0, 2.0, 4.0, 0.0)] {
        c.add("AmpUpdateScale", F32, move |r| {
            r.t("currentScale", &[1], Dtype::F32, &[8.0]);
            r.t("growthTracker", &[1], Dtype::I32, &[before]);
            r.t("foundInf", &[1], Dtype::F32, &[found]);
            r.n("growthFactor", 2.0).n("backoffFactor", 0.5).n("growthInterval", 3.0);
            r.out_as("updatedScale", &[1], Dtype::F32, vec![scale]);
            r.out_as("updatedGrowthTracker", &[1], Dtype::I32, vec![after]);
        });
    }
}

/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2, at step 3: the powers are given.
fn adamw(r: &mut Run) {
    const D: &[i64] = &[3, 5];
    let (x, m, v) = (r.x("varRef", D), r.x("mRef", D), r.within("vRef", D, 0.1, 2.0));
    let g = r.x("grad", D);
    let (b1, b2, lr, decay, eps) = (0.75, 0.875, 0.0625, 0.125, 0.0078125);
    for (name, value) in [
        ("beta1Power", b1 * b1),
        ("beta2Power", b2 * b2),
        ("lr", lr),
        ("weightDecay", decay),
        ("beta1", b1),
        ("beta2", b2),
        ("eps", eps),
    ] {
        assert_eq!(rounded(&[value], Dtype::Bf16)[0], value, "{name} is exact in every type");
        r.t(name, &[1], r.dtype, &[value]);
    }
    let m1 = zip(&m, &g, |m, g| b1 * m + (1.0 - b1) * g);
    let v1 = zip(&v, &g, |v, g| b2 * v + (1.0 - b2) * g * g);
    let step = zip(&m1, &v1, |m, v| {
        let (m, v) = (m / (1.0 - b1.powi(3)), v / (1.0 - b2.powi(3)));
        lr * m / (v.sqrt() + eps)
    });
    let want = zip(&x, &step, |x, s| x - lr * decay * x - s);
    r.loose(2.0).becomes("varRef", want).becomes("mRef", m1).becomes("vRef", v1);
}
