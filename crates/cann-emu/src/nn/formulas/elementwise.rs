//! Element by element: one operand, two, three; integers, truth values, numbers that are none.

use super::maths::{erf, ln_gamma, map, sigmoid, slope, truth, zip};
use super::run::Run;
use super::{Cases, F32, FLOATS, WHOLE, forms};
use crate::nn::tensor::Dtype;
use std::f64::consts::PI;

const D: &[i64] = &[3, 5];

/// The name of the first operand, which pages spell in several ways.
fn first(r: &Run) -> &'static str {
    ["self", "input", "x", "selfRef", "inputRef"].into_iter().find(|n| r.has(n)).unwrap()
}

/// The result of the form in place or of the other, in the case's type.
fn result(r: &mut Run, want: Vec<f64>) {
    result_as(r, r.dtype, want);
}

/// Truth values: of the form in place in the case's type.
fn verdict(r: &mut Run, want: Vec<f64>) {
    result_as(r, Dtype::Bool, want);
}

fn result_as(r: &mut Run, dtype: Dtype, want: Vec<f64>) {
    if ["out", "result"].iter().any(|n| r.has(n)) {
        let name = if r.has("out") { "out" } else { "result" };
        r.out_as(name, D, dtype, want);
    } else {
        let name = first(r);
        r.becomes(name, want);
    }
}

fn half_even(x: f64) -> f64 {
    let down = x.floor();
    match (x - down).partial_cmp(&0.5) {
        Some(std::cmp::Ordering::Less) => down,
        Some(std::cmp::Ordering::Greater) => down + 1.0,
        _ => 2.0 * (down / 2.0).ceil(),
    }
}

/// Name, range of the operand, function: elementary ones from others than the kernel's.
const ONE: &[(&str, f64, f64, fn(f64) -> f64)] = &[
    ("Acos", -0.9, 0.9, |x| (1.0 - x * x).sqrt().atan2(x)),
    ("Acosh", 1.1, 4.0, |x| (x + (x * x - 1.0).sqrt()).ln()),
    ("Asin", -0.9, 0.9, |x| x.atan2((1.0 - x * x).sqrt())),
    ("Asinh", -3.0, 3.0, |x| x.signum() * (x.abs() + (x * x + 1.0).sqrt()).ln()),
    ("Atan", -3.0, 3.0, |x| (x / (1.0 + x * x).sqrt()).asin()),
    ("Atanh", -0.9, 0.9, |x| 0.5 * ((1.0 + x) / (1.0 - x)).ln()),
    ("Cos", -6.0, 6.0, |x| (x + PI / 2.0).sin()),
    ("Cosh", -3.0, 3.0, |x| (x.exp() + (-x).exp()) / 2.0),
    ("Sin", -6.0, 6.0, |x| -(x + PI / 2.0).cos()),
    ("Sinh", -3.0, 3.0, |x| (x.exp() - (-x).exp()) / 2.0),
    ("Tan", -1.2, 1.2, |x| x.sin() / x.cos()),
    ("Tanh", -3.0, 3.0, |x| 1.0 - 2.0 / ((2.0 * x).exp() + 1.0)),
    ("Exp", -3.0, 3.0, |x| x.cosh() + x.sinh()),
    ("Exp2", -3.0, 3.0, |x| (x * std::f64::consts::LN_2).exp()),
    ("Expm1", -2.0, 2.0, |x| x.exp() - 1.0),
    ("Log", 0.1, 9.0, |x| 2.0 * ((x - 1.0) / (x + 1.0)).atanh()),
    ("Log2", 0.1, 9.0, |x| x.ln() / 2f64.ln()),
    ("Log10", 0.1, 9.0, |x| x.ln() / 10f64.ln()),
    ("Log1p", -0.5, 3.0, |x| (1.0 + x).ln()),
    ("Sqrt", 0.0, 9.0, |x| x.powf(0.5)),
    ("Rsqrt", 0.2, 9.0, |x| x.powf(-0.5)),
    ("Reciprocal", 0.2, 9.0, |x| x.powi(-1)),
    ("Erf", -2.0, 2.0, erf),
    ("Erfc", -2.0, 2.0, |x| 1.0 - erf(x)),
    ("Erfinv", -0.9, 0.9, inverse_erf),
    ("Sigmoid", -5.0, 5.0, sigmoid),
    ("Digamma", 0.3, 6.0, |x| slope(ln_gamma, x)),
    ("Lgamma", 0.3, 6.0, ln_gamma),
    ("Sinc", -3.0, 3.0, |x| (PI * x).sin() / (PI * x)),
    ("Frac", -3.0, 3.0, |x| x % 1.0),
    ("Abs", -3.0, 3.0, |x| if x < 0.0 { -x } else { x }),
    ("Neg", -3.0, 3.0, |x| 0.0 - x),
    ("Ceil", -3.0, 3.0, |x| -((-x).floor())),
    ("Floor", -3.0, 3.0, |x| x - x.rem_euclid(1.0)),
    ("Trunc", -3.0, 3.0, |x| x - x % 1.0),
    ("Round", -3.0, 3.0, half_even),
    ("Relu", -3.0, 3.0, |x| (x + x.abs()) / 2.0),
    ("Sign", -3.0, 3.0, |x| x / x.abs()),
];

/// By halving the interval.
fn inverse_erf(y: f64) -> f64 {
    let (mut low, mut high) = (-4.0, 4.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if erf(middle) < y { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Of integers the same, exactly.
const ONE_WHOLE: &[(&str, fn(i64) -> i64)] = &[
    ("Abs", |x| if x < 0 { -x } else { x }),
    ("Neg", |x| 0 - x),
    ("Ceil", |x| x),
    ("Floor", |x| x),
    ("Trunc", |x| x),
    ("Round", |x| x),
    ("Relu", |x| if x > 0 { x } else { 0 }),
    ("Sign", |x| i64::from(x > 0) - i64::from(x < 0)),
    ("BitwiseNot", |x| -x - 1),
];

/// Numbers at the edges.
const EDGES: [f64; 15] = [
    0.0,
    -0.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    1.5,
    -1.5,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1.0,
    -1.0,
    100.0,
    -100.0,
];

/// Properties that are true or false of the numbers at the edges.
const TESTS: &[(&str, fn(f64) -> bool)] = &[
    ("IsFinite", |x| x.abs() < 1e300),
    ("IsInf", |x| x.abs() > 1e300),
    ("IsNegInf", |x| x < -1e300),
    ("IsPosInf", |x| x > 1e300),
    ("Signbit", |x| !x.is_nan() && (x < 0.0 || 1.0 / x < 0.0)),
    ("LogicalNot", |x| x == 0.0),
];

type Two = fn(f64, f64) -> f64;

/// Names of the forms by tensor and by number, whether in place too, range of the second operand, function.
const TWO: &[(&[&str], f64, f64, Two)] = &[
    (&["Mul", "InplaceMul", "Muls", "InplaceMuls"], -2.0, 2.0, |a, b| a * b),
    (&["Div", "InplaceDiv", "Divs", "InplaceDivs"], 0.3, 2.0, |a, b| a * b.recip()),
    (&["FloorDivide", "InplaceFloorDivide", "FloorDivides", "InplaceFloorDivides"], 0.3, 2.0, |a, b| {
        (a / b).floor()
    }),
    (&["FmodTensor", "InplaceFmodTensor", "FmodScalar", "InplaceFmodScalar"], 0.3, 2.0, |a, b| {
        a - b * (a / b).trunc()
    }),
    (
        &[
            "RemainderTensorTensor",
            "InplaceRemainderTensorTensor",
            "RemainderTensorScalar",
            "InplaceRemainderTensorScalar",
            "RemainderScalarTensor",
        ],
        0.3,
        2.0,
        |a, b| a - b * (a / b).floor(),
    ),
    (&["Maximum"], -2.0, 2.0, |a, b| (a + b + (a - b).abs()) / 2.0),
    (&["Minimum"], -2.0, 2.0, |a, b| (a + b - (a - b).abs()) / 2.0),
    (&["LogAddExp"], -2.0, 2.0, |a, b| (a.exp() + b.exp()).ln()),
    (&["LogAddExp2"], -2.0, 2.0, |a, b| (a.exp2() + b.exp2()).log2()),
    (&["Atan2", "InplaceAtan2"], -2.0, 2.0, |a, b| 2.0 * (a / ((a * a + b * b).sqrt() + b)).atan()),
    (
        &[
            "XLogYTensor",
            "InplaceXLogYTensor",
            "XLogYScalarOther",
            "InplaceXLogYScalarOther",
            "XLogYScalarSelf",
        ],
        0.3,
        2.0,
        |a, b| a * b.ln(),
    ),
];

/// Comparisons and logic, exact.
const EXACT: &[(&str, Two)] = &[
    ("Eq", |a, b| truth(a.partial_cmp(&b) == Some(std::cmp::Ordering::Equal))),
    ("Ne", |a, b| truth(a.partial_cmp(&b) != Some(std::cmp::Ordering::Equal))),
    ("Gt", |a, b| truth(b < a)),
    ("Ge", |a, b| truth(b <= a)),
    ("Lt", |a, b| truth(b > a)),
    ("Le", |a, b| truth(b >= a)),
];

const BITS: &[(&str, fn(i64, i64) -> i64)] =
    &[("BitwiseAnd", |a, b| a & b), ("BitwiseOr", |a, b| a | b), ("BitwiseXor", |a, b| a ^ b)];

/// The two operands, tensors or numbers as the prototype has them; a number is spread.
fn operands(r: &mut Run, low: f64, high: f64) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = r.first_two();
    let mut side = |name: &'static str, low: f64, high: f64, number: f64| {
        if r.is_scalar(name) {
            r.s(name, number);
            vec![number; 15]
        } else {
            r.within(name, D, low, high)
        }
    };
    (side(a, -3.0, 3.0, 1.75), side(b, low, high, 0.625))
}

fn whole_operands(r: &mut Run, low: i64, high: i64) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = r.first_two();
    let dtype = r.dtype;
    let mut side = |name: &'static str, low: i64, high: i64, number: i64| {
        if r.is_scalar(name) {
            r.si(name, number);
            vec![number as f64; 15]
        } else {
            r.whole(name, D, dtype, low, high)
        }
    };
    (side(a, -9, 9, 7), side(b, low, high, 3))
}

pub(super) fn cases(c: &mut Cases) {
    for (name, low, high, f) in ONE {
        for name in forms(name) {
            c.add(&name, FLOATS, move |r| {
                let at = first(r);
                let x = r.within(at, D, *low, *high);
                let want = map(&x, f);
                result(r.loose(2.0), want);
            });
        }
    }
    for (name, f) in ONE_WHOLE {
        for name in forms(name) {
            c.add(&name, WHOLE, move |r| {
                let at = first(r);
                let x = r.whole(at, D, r.dtype, -9, 9);
                result(r, map(&x, |x| f(x as i64) as f64));
            });
        }
    }
    for (name, f) in TESTS {
        for name in forms(name) {
            c.add(&name, FLOATS, move |r| {
                let at = first(r);
                let x = r.t(at, D, r.dtype, &EDGES);
                verdict(r, map(&x, |x| truth(f(x))));
            });
        }
    }
    closed(c);
    for (names, low, high, f) in TWO {
        for name in *names {
            c.add(name, FLOATS, move |r| {
                let (a, b) = operands(r, *low, *high);
                result(r.loose(2.0), zip(&a, &b, f));
            });
        }
    }
    sums(c);
    for (name, f) in EXACT {
        for (form, place) in [("Tensor", ""), ("Scalar", ""), ("Tensor", "Inplace"), ("Scalar", "Inplace")] {
            c.add(&format!("{place}{name}{form}"), FLOATS, move |r| {
                let (a, b) = r.first_two();
                let x = r.t(a, D, r.dtype, &(0..15).map(|i| f64::from(i % 4) - 1.5).collect::<Vec<_>>());
                let y = if r.is_scalar(b) {
                    r.s(b, 0.5);
                    vec![0.5; 15]
                } else {
                    r.t(b, D, r.dtype, &(0..15).map(|i| f64::from(i % 3) - 1.5).collect::<Vec<_>>())
                };
                verdict(r, zip(&x, &y, f));
            });
        }
    }
    for (name, f) in [
        ("LogicalAnd", (|a, b| a && b) as fn(bool, bool) -> bool),
        ("LogicalOr", |a, b| a || b),
        ("LogicalXor", |a, b| a != b),
    ] {
        for name in forms(name) {
            c.add(&name, &[Dtype::Bool, Dtype::I32, Dtype::F32], move |r| {
                let (a, b) = r.first_two();
                let (x, y) = (r.whole(a, D, r.dtype, 0, 1), r.whole(b, D, r.dtype, 0, 1));
                verdict(r, zip(&x, &y, |a, b| truth(f(a != 0.0, b != 0.0))));
            });
        }
    }
    for (name, f) in BITS {
        for form in ["Tensor", "Scalar"] {
            for name in [format!("{name}{form}"), format!("Inplace{name}{form}")] {
                c.add(&name, WHOLE, move |r| {
                    let (a, b) = whole_operands(r, -9, 9);
                    result(r, zip(&a, &b, |a, b| f(a as i64, b as i64) as f64));
                });
            }
        }
    }
    whole(c);
    powers(c);
    three(c);
    bounds(c);
    moved(c);
}

/// Values known in closed form, and the functions at the edges.
fn closed(c: &mut Cases) {
    let known: [(&str, f64, f64); 9] = [
        ("Lgamma", -0.5, (2.0 * PI.sqrt()).ln()),
        ("Lgamma", 0.5, PI.sqrt().ln()),
        ("Digamma", 1.0, -0.577_215_664_901_532_9),
        ("Digamma", -0.5, 0.036_489_973_978_576_52),
        ("Sinc", 0.0, 1.0),
        ("Erfinv", 1.0, f64::INFINITY),
        ("Log", 0.0, f64::NEG_INFINITY),
        ("Sqrt", -1.0, f64::NAN),
        ("Sign", 0.0, 0.0),
    ];
    for (name, x, y) in known {
        c.add(name, FLOATS, move |r| {
            let at = first(r);
            r.t(at, D, r.dtype, &[x; 15]);
            result(r, vec![y; 15]);
        });
    }
    for (name, place) in [("RoundDecimals", "out"), ("InplaceRoundDecimals", "selfRef")] {
        for decimals in [2, -1] {
            c.add(name, F32, move |r| {
                let at = first(r);
                let x = r.within(at, D, -30.0, 30.0);
                let p = 10f64.powi(decimals);
                let want = map(&x, |x| half_even(x * p) / p);
                r.n("decimals", f64::from(decimals));
                if place == "out" {
                    r.out("out", D, want)
                } else {
                    r.becomes(place, want)
                };
            });
        }
    }
    for name in ["NanToNum", "InplaceNanToNum"] {
        c.add(name, FLOATS, |r| {
            let at = first(r);
            let x = r.t(at, D, r.dtype, &EDGES);
            r.n("nan", 1.5).n("posinf", 7.0).n("neginf", -9.0);
            let f = |x: f64| match x {
                x if x.is_nan() => 1.5,
                x if x > 1e300 => 7.0,
                x if x < -1e300 => -9.0,
                x => x,
            };
            result(r, map(&x, f));
        });
    }
    c.add("AngleV2", FLOATS, |r| {
        let x = r.x("x", D);
        r.out("out", D, map(&x, |x| 0f64.atan2(x)));
    });
    c.add("IsClose", FLOATS, |r| {
        let x = r.t("self", D, r.dtype, &EDGES);
        let other: Vec<f64> =
            x.iter().enumerate().map(|(i, v)| if i % 2 == 0 { *v } else { v + 0.25 }).collect();
        let y = r.t("other", D, r.dtype, &other);
        r.n("rtol", 0.01).n("atol", 0.125).n("equal_nan", 1.0);
        let near = |a: f64, b: f64| {
            truth(if a.is_finite() && b.is_finite() {
                (a - b).abs() - 0.01 * b.abs() <= 0.125
            } else {
                a.to_bits() == b.to_bits() || a == b
            })
        };
        r.out_as("out", D, Dtype::Bool, zip(&x, &y, near));
    });
    for same in [true, false] {
        c.add("Equal", FLOATS, move |r| {
            let mut x = r.x("self", D);
            x[7] += if same { 0.0 } else { 0.5 };
            r.t("other", D, r.dtype, &x);
            r.out_as("out", &[], Dtype::Bool, vec![truth(same)]);
        });
    }
}

/// Sums with a factor, of tensors and numbers, from either side.
fn sums(c: &mut Cases) {
    for (name, f) in [
        ("Add", (|a, b, s| a + s * b) as fn(f64, f64, f64) -> f64),
        ("Adds", |a, b, s| a + s * b),
        ("AddV3", |a, b, s| a + s * b),
        ("Sub", |a, b, s| a - s * b),
        ("Subs", |a, b, s| a - s * b),
        ("Rsub", |a, b, s| b - s * a),
        ("Rsubs", |a, b, s| b - s * a),
    ] {
        for name in forms(name) {
            c.add(&name, FLOATS, move |r| {
                let (a, b) = operands(r, -2.0, 2.0);
                result(r.s("alpha", 1.5).loose(2.0), zip(&a, &b, |a, b| f(a, b, 1.5)));
            });
            c.add(&name, WHOLE, move |r| {
                let (a, b) = whole_operands(r, -9, 9);
                result(r.si("alpha", -2), zip(&a, &b, |a, b| f(a, b, -2.0)));
            });
        }
    }
    // A row and a column are spread over each other.
    c.add("Mul", FLOATS, |r| {
        let (a, b) = (r.x("self", &[3, 1]), r.x("other", &[5]));
        r.out("out", D, (0..15).map(|i| a[i / 5] * b[i % 5]).collect());
    });
    for (mode, f) in [(0, (|q| q) as fn(f64) -> f64), (1, f64::trunc), (2, f64::floor)] {
        for name in ["DivMod", "InplaceDivMod", "DivMods", "InplaceDivMods"] {
            c.add(name, F32, move |r| {
                let (a, b) = operands(r, 0.3, 2.0);
                result(r.n("mode", f64::from(mode)), zip(&a, &b, |a, b| f(a / b)));
            });
            if mode > 0 {
                c.add(name, WHOLE, move |r| {
                    let (a, b) = whole_operands(r, 1, 4);
                    result(r.n("mode", f64::from(mode)), zip(&a, &b, |a, b| f(a / b)));
                });
            }
        }
    }
}

/// Products, remainders, divisors and shifts of integers.
fn whole(c: &mut Cases) {
    for (names, f) in [
        (&["Mul", "InplaceMuls"][..], (|a, b| a * b) as Two),
        (&["FloorDivide", "InplaceFloorDivides"], |a, b| (a / b).floor()),
        (&["FmodTensor", "InplaceFmodScalar"], |a, b| a - b * (a / b).trunc()),
        (&["RemainderTensorTensor", "RemainderTensorScalar", "RemainderScalarTensor"], |a, b| {
            a - b * (a / b).floor()
        }),
        (&["Maximum"], |a, b| if a < b { b } else { a }),
        (&["Minimum"], |a, b| if a < b { a } else { b }),
    ] {
        for name in names {
            c.add(name, WHOLE, move |r| {
                let (a, b) = whole_operands(r, 1, 4);
                result(r, zip(&a, &b, f));
            });
        }
    }
    c.add("Gcd", WHOLE, |r| {
        let (a, b) = whole_operands(r, -12, 12);
        let divides = |d: i64, v: f64| v as i64 % d == 0;
        let greatest = |a: f64, b: f64| {
            let most = a.abs().max(b.abs()) as i64;
            (1..=most).rev().find(|d| divides(*d, a) && divides(*d, b)).unwrap_or(0) as f64
        };
        result(r, zip(&a, &b, greatest));
    });
    for name in ["LeftShift", "LeftShifts", "RightShift"] {
        c.add(name, WHOLE, move |r| {
            let (a, b) = whole_operands(r, 0, 4);
            let f = |a: f64, b: f64| if name == "RightShift" { (a / b.exp2()).floor() } else { a * b.exp2() };
            result(r, zip(&a, &b, f));
        });
    }
}

fn powers(c: &mut Cases) {
    let by_logarithm = |a: f64, b: f64| (b * a.ln()).exp();
    for name in [
        "PowTensorScalar",
        "InplacePowTensorScalar",
        "PowTensorTensor",
        "InplacePowTensorTensor",
        "PowScalarTensor",
    ] {
        c.add(name, FLOATS, move |r| {
            let (a, b) = r.first_two();
            let mut side = |name: &'static str, low: f64| {
                if r.is_scalar(name) {
                    r.s(name, 1.75);
                    vec![1.75; 15]
                } else {
                    r.within(name, D, low, 2.0)
                }
            };
            let (x, y) = (side(a, 0.3), side(b, -2.0));
            result(r.loose(2.0), zip(&x, &y, by_logarithm));
        });
        c.add(name, WHOLE, move |r| {
            let (a, b) = whole_operands(r, 0, 4);
            let times = |a: f64, b: f64| (0..b as i64).fold(1.0, |p, _| p * a);
            if name == "PowScalarTensor" || b.iter().all(|b| *b >= 0.0) {
                result(r, zip(&a, &b, times));
            }
        });
    }
}

fn three(c: &mut Cases) {
    for (name, f) in [("Addcmul", (|a, b| a * b) as Two), ("Addcdiv", |a, b| a / b)] {
        for name in forms(name) {
            c.add(&name, FLOATS, move |r| {
                let at = first(r);
                let (x, a, b) = (r.x(at, D), r.x("tensor1", D), r.within("tensor2", &[5], 0.4, 2.0));
                let want = (0..15).map(|i| x[i] + 1.5 * f(a[i], b[i % 5])).collect();
                result(r.s("value", 1.5).loose(2.0), want);
            });
        }
    }
    for name in ["Lerp", "InplaceLerp", "Lerps", "InplaceLerps"] {
        c.add(name, FLOATS, |r| {
            let at = first(r);
            let (a, b) = (r.x(at, D), r.x("end", D));
            let w = if r.is_scalar("weight") {
                r.s("weight", 0.75);
                vec![0.75; 15]
            } else {
                r.within("weight", D, 0.0, 1.0)
            };
            result(r.loose(2.0), (0..15).map(|i| (1.0 - w[i]) * a[i] + w[i] * b[i]).collect());
        });
    }
}

fn bounds(c: &mut Cases) {
    for name in [
        "Clamp",
        "ClampMin",
        "ClampMax",
        "InplaceClampMax",
        "ClampMinTensor",
        "InplaceClampMinTensor",
        "ClampMaxTensor",
        "InplaceClampMaxTensor",
        "ClampTensor",
    ] {
        c.add(name, &[Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32], move |r| {
            let at = first(r);
            let x: Vec<f64> = (0..15).map(|i| f64::from(i) - 7.0).collect();
            let x = r.t(at, D, r.dtype, &x);
            let mut bound = |names: &[&'static str], number: f64| -> Option<Vec<f64>> {
                let name = names.iter().find(|n| r.has(n))?;
                if r.is_scalar(name) {
                    r.s(name, number);
                    return Some(vec![number; 15]);
                }
                Some(r.t(name, D, r.dtype, &(0..15).map(|i| number + f64::from(i % 2)).collect::<Vec<_>>()))
            };
            let (low, high) = (bound(&["clipValueMin"], -3.0), bound(&["clipValueMax", "max"], 2.0));
            let pick = |i: usize| {
                let mut three =
                    [low.as_ref().map_or(-1e9, |l| l[i]), x[i], high.as_ref().map_or(1e9, |h| h[i])];
                three.sort_by(f64::total_cmp);
                three[1]
            };
            result(r, (0..15).map(pick).collect());
        });
    }
    c.add("Clamp", F32, |r| {
        let x = r.x("self", D);
        // Without a lower bound.
        r.s("clipValueMax", 0.5).out("out", D, map(&x, |x| if x > 0.5 { 0.5 } else { x }));
    });
}

/// Filling, copying, choosing.
fn moved(c: &mut Cases) {
    c.add("InplaceOne", FLOATS, |r| {
        r.x("selfRef", D);
        r.becomes("selfRef", vec![1.0; 15]);
    });
    c.add("InplaceFillTensor", FLOATS, |r| {
        r.x("selfRef", D);
        r.t("value", &[], r.dtype, &[2.5]);
        r.becomes("selfRef", vec![2.5; 15]);
    });
    c.add("InplaceMaskedFillTensor", FLOATS, |r| {
        let (x, mask) = (r.x("selfRef", D), r.mask("mask", &[5]));
        r.t("value", &[], r.dtype, &[2.5]);
        r.becomes("selfRef", (0..15).map(|i| if mask[i % 5] { 2.5 } else { x[i] }).collect());
    });
}
