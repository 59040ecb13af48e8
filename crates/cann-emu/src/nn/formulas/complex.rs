//! Complex numbers: what the operators that take them calculate, and that the others refuse them in their first phase.

use super::maths::truth;
use super::run::Run;
use super::{Cases, exists, forms};
use crate::nn::kernels::complex::all_able;
use crate::nn::tensor::Dtype;
use std::collections::BTreeSet;

const D: &[i64] = &[3, 5];
const BOTH: &[Dtype] = &[Dtype::C64, Dtype::C128];

type Z = (f64, f64);

fn paired(flat: &[f64]) -> Vec<Z> {
    flat.chunks(2).map(|p| (p[0], p[1])).collect()
}

fn flat(all: &[Z]) -> Vec<f64> {
    all.iter().flat_map(|z| [z.0, z.1]).collect()
}

fn times(a: Z, b: Z) -> Z {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn plus(a: Z, b: Z) -> Z {
    (a.0 + b.0, a.1 + b.1)
}

fn minus(a: Z, b: Z) -> Z {
    (a.0 - b.0, a.1 - b.1)
}

/// By the conjugate.
fn over(a: Z, b: Z) -> Z {
    let (p, d) = (times(a, (b.0, -b.1)), times(b, (b.0, -b.1)).0);
    (p.0 / d, p.1 / d)
}

/// Its series; arguments are small.
fn exp(z: Z) -> Z {
    let (mut sum, mut term) = ((1.0, 0.0), (1.0, 0.0));
    for n in 1..60 {
        term = times(term, (z.0 / f64::from(n), z.1 / f64::from(n)));
        sum = plus(sum, term);
    }
    sum
}

fn scaled(z: Z, by: f64) -> Z {
    (z.0 * by, z.1 * by)
}

/// What undoes a function is the function's inverse: w is right if f(w) is z (and w is the principal one, in a strip).
fn undone(w: Z, f: impl Fn(Z) -> Z, z: Z, what: &str) {
    let back = f(w);
    let off = (back.0 - z.0).hypot(back.1 - z.1);
    assert!(off < 2e-5 * (1.0 + z.0.hypot(z.1)), "{what}: {w:?} of {z:?} leads back to {back:?}");
}

fn cosine(z: Z) -> Z {
    scaled(plus(exp((-z.1, z.0)), exp((z.1, -z.0))), 0.5)
}

fn sine(z: Z) -> Z {
    over(minus(exp((-z.1, z.0)), exp((z.1, -z.0))), (0.0, 2.0))
}

fn hyperbolic_sine(z: Z) -> Z {
    scaled(minus(exp(z), exp((-z.0, -z.1))), 0.5)
}

fn hyperbolic_cosine(z: Z) -> Z {
    scaled(plus(exp(z), exp((-z.0, -z.1))), 0.5)
}

fn hyperbolic_tangent(z: Z) -> Z {
    over(hyperbolic_sine(z), hyperbolic_cosine(z))
}

/// Forward functions by the exponential's series.
const FORWARD: &[(&str, fn(Z) -> Z)] = &[
    ("Exp", exp),
    ("Exp2", |z| exp(scaled(z, 2f64.ln()))),
    ("Expm1", |z| minus(exp(z), (1.0, 0.0))),
    ("Sin", sine),
    ("Cos", cosine),
    ("Tan", |z| over(sine(z), cosine(z))),
    ("Sinh", hyperbolic_sine),
    ("Cosh", hyperbolic_cosine),
    ("Tanh", hyperbolic_tangent),
    ("Sigmoid", |z| over((1.0, 0.0), plus((1.0, 0.0), exp((-z.0, -z.1))))),
    ("Reciprocal", |z| over((1.0, 0.0), z)),
    ("Sinc", |z| over(sine(scaled(z, std::f64::consts::PI)), scaled(z, std::f64::consts::PI))),
];

/// Inverse functions, by the function that leads back.
const BACKWARD: &[(&str, fn(Z) -> Z)] = &[
    ("Log", exp),
    ("Log2", |w| exp(scaled(w, 2f64.ln()))),
    ("Log10", |w| exp(scaled(w, 10f64.ln()))),
    ("Log1p", |w| minus(exp(w), (1.0, 0.0))),
    ("Sqrt", |w| times(w, w)),
    ("Rsqrt", |w| over((1.0, 0.0), times(w, w))),
    ("Acos", cosine),
    ("Asin", sine),
    ("Atan", |w| over(sine(w), cosine(w))),
    ("Acosh", hyperbolic_cosine),
    ("Asinh", hyperbolic_sine),
    ("Atanh", hyperbolic_tangent),
];

/// Real parts of the principal values: the half planes and strips of the usual branches.
fn principal(name: &str, w: Z) -> bool {
    let half = std::f64::consts::FRAC_PI_2 + 1e-6;
    match name {
        "Log" | "Log1p" | "Atanh" | "Asinh" => w.1.abs() <= 2.0 * half,
        "Sqrt" | "Rsqrt" | "Acosh" => w.0 >= -1e-9,
        "Asin" | "Atan" => w.0.abs() <= half,
        "Acos" => (-1e-6..=2.0 * half).contains(&w.0),
        _ => true,
    }
}

fn z(r: &mut Run, name: &str, dims: &[i64]) -> Vec<Z> {
    let n = super::run::numel(dims);
    let v = r.values(2 * n);
    let v: Vec<f64> = v.iter().map(|v| if v.abs() < 0.2 { v + 0.4 } else { *v }).collect();
    paired(&r.t(name, dims, r.dtype, &v))
}

fn real(r: &Run) -> Dtype {
    if r.dtype == Dtype::C64 { Dtype::F32 } else { Dtype::F64 }
}

fn first(r: &Run) -> &'static str {
    r.first()
}

fn result(r: &mut Run, dims: &[i64], want: &[Z]) {
    let name = ["out", "result"].into_iter().find(|n| r.has(n));
    match name {
        Some(name) => drop_ref(r.out(name, dims, flat(want))),
        None => {
            let name = first(r);
            r.becomes(name, flat(want));
        }
    }
}

fn drop_ref(_: &mut Run) {}

pub(super) fn cases(c: &mut Cases) {
    for (name, f) in FORWARD {
        for name in forms(name) {
            c.add(&name, BOTH, move |r| {
                let at = first(r);
                let x = z(r, at, D);
                let want: Vec<Z> = x.iter().map(|x| f(*x)).collect();
                result(r.loose(4.0), D, &want);
            });
        }
    }
    for (name, back) in BACKWARD {
        c.add(name, BOTH, move |r| {
            let at = first(r);
            let x = z(r, at, D);
            let dtype = r.dtype;
            r.any("out", D, dtype).check(move |all| {
                for (w, x) in paired(&all["out"]).into_iter().zip(&x) {
                    undone(w, back, *x, name);
                    assert!(principal(name, w), "{name}: {w:?} of {x:?} is not the principal value");
                }
            });
        });
    }
    parts(c);
    arithmetic(c);
    sums(c);
    compared(c);
    moved(c);
    // All that take complex numbers have a case here, but those that only move elements by the same code as real ones.
    let run: BTreeSet<&str> = c.0.iter().map(|c| c.name.as_str()).collect();
    let without: Vec<&str> =
        all_able().filter(|n| exists(n) && !run.contains(n) && !MOVED.contains(n)).collect();
    assert!(without.is_empty(), "no case with complex numbers: {without:?}");
}

/// Moved whatever the type is, as the family `shape` and `index` test with other types.
const MOVED: &[&str] = &[
    "Expand",
    "Flip",
    "GatherV3",
    "IndexCopy",
    "IndexFill",
    "IndexFillTensor",
    "MaskedSelect",
    "Nonzero",
    "NonzeroV2",
    "Repeat",
    "RepeatInterleave",
    "RepeatInterleaveInt",
    "RepeatInterleaveIntWithDim",
    "RepeatInterleaveWithDim",
    "Roll",
    "ScatterValue",
    "SliceV2",
    "SplitTensor",
    "SplitWithSize",
    "Stack",
    "Take",
    "Tril",
    "Triu",
    "Eye",
    "Gather",
    "IndexSelect",
    "Slice",
    "Scatter",
    "ScatterAdd",
    "Index",
    "IndexPutImpl",
];

fn parts(c: &mut Cases) {
    c.add("Abs", BOTH, |r| {
        let x = z(r, "self", D);
        let dtype = real(r);
        r.out_as("out", D, dtype, x.iter().map(|z| times(*z, (z.0, -z.1)).0.sqrt()).collect());
    });
    c.add("AngleV2", BOTH, |r| {
        let x = z(r, "x", D);
        let dtype = real(r);
        r.any("out", D, dtype).check(move |all| {
            for (a, z) in all["out"].iter().zip(&x) {
                let r = z.0.hypot(z.1);
                assert!((a.cos() * r - z.0).abs() < 1e-5 && (a.sin() * r - z.1).abs() < 1e-5, "{a} of {z:?}");
            }
        });
    });
    c.add("Real", BOTH, |r| {
        let x = z(r, "self", D);
        let dtype = real(r);
        r.out_as("out", D, dtype, x.iter().map(|z| z.0).collect());
    });
    c.add("Complex", &[Dtype::F32, Dtype::F64, Dtype::F16], |r| {
        let (a, b) = (r.x("real", D), r.x("imag", D));
        let dtype = match r.dtype {
            Dtype::F16 => Dtype::C32,
            Dtype::F32 => Dtype::C64,
            _ => Dtype::C128,
        };
        r.out_as("out", D, dtype, (0..15).flat_map(|i| [a[i], b[i]]).collect());
    });
    c.add("Polar", &[Dtype::F32, Dtype::F64], |r| {
        let (a, b) = (r.within("input", D, 0.1, 2.0), r.x("angle", D));
        let dtype = if r.dtype == Dtype::F32 { Dtype::C64 } else { Dtype::C128 };
        let one = |i: usize| flat(&[scaled(exp((0.0, b[i])), a[i])]);
        r.out_as("out", D, dtype, (0..15).flat_map(one).collect());
    });
    c.add("Sign", BOTH, |r| {
        let x = z(r, "self", D);
        let want: Vec<Z> = x.iter().map(|z| scaled(*z, 1.0 / times(*z, (z.0, -z.1)).0.sqrt())).collect();
        result(r, D, &want);
    });
}

type Two = fn(Z, Z) -> Z;

const TWO: &[(&str, Two)] = &[("Mul", times), ("Muls", times), ("Div", over), ("Divs", over)];

/// The second operand, a tensor or a scalar.
fn other(r: &mut Run, name: &str) -> Vec<Z> {
    if r.is_scalar(name) {
        r.sc(name, 0.75, -0.5);
        vec![(0.75, -0.5); 15]
    } else {
        z(r, name, D)
    }
}

fn arithmetic(c: &mut Cases) {
    for (name, f) in TWO {
        for name in forms(name) {
            c.add(&name, BOTH, move |r| {
                let at = first(r);
                let (a, b) = (z(r, at, D), other(r, "other"));
                let want: Vec<Z> = a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect();
                result(r.loose(4.0), D, &want);
            });
        }
    }
    // With a complex factor.
    let s = (1.5, 0.25);
    for (name, sign, turned) in [
        ("Add", 1.0, false),
        ("Adds", 1.0, false),
        ("Sub", -1.0, false),
        ("Subs", -1.0, false),
        ("Rsub", -1.0, true),
        ("Rsubs", -1.0, true),
    ] {
        for name in forms(name) {
            c.add(&name, BOTH, move |r| {
                let at = first(r);
                let (a, b) = (z(r, at, D), other(r, "other"));
                r.sc("alpha", s.0, s.1).loose(4.0);
                let one = |i: usize| {
                    let (a, b) = if turned { (b[i], a[i]) } else { (a[i], b[i]) };
                    plus(a, scaled(times(s, b), sign))
                };
                result(r, D, &(0..15).map(one).collect::<Vec<Z>>());
            });
        }
    }
    c.add("Neg", BOTH, |r| {
        let x = z(r, "self", D);
        result(r, D, &x.iter().map(|z| scaled(*z, -1.0)).collect::<Vec<Z>>());
    });
    for (name, f) in [("Addcmul", times as Two), ("Addcdiv", over)] {
        c.add(name, BOTH, move |r| {
            let (x, a, b) = (z(r, "self", D), z(r, "tensor1", D), z(r, "tensor2", D));
            r.sc("value", 0.5, 1.5).loose(4.0);
            result(r, D, &(0..15).map(|i| plus(x[i], times((0.5, 1.5), f(a[i], b[i])))).collect::<Vec<Z>>());
        });
    }
    for name in ["Lerp", "Lerps"] {
        c.add(name, BOTH, |r| {
            let (a, b, w) = (z(r, "self", D), z(r, "end", D), other(r, "weight"));
            let one = |i: usize| plus(times(minus((1.0, 0.0), w[i]), a[i]), times(w[i], b[i]));
            result(r.loose(4.0), D, &(0..15).map(one).collect::<Vec<Z>>());
        });
    }
    // To whole powers by multiplying.
    c.add("PowTensorScalar", BOTH, |r| {
        let x = z(r, "self", D);
        r.s("exponent", 3.0).loose(8.0);
        result(r, D, &x.iter().map(|z| times(*z, times(*z, *z))).collect::<Vec<Z>>());
    });
    c.add("PowTensorTensor", BOTH, |r| {
        let x = z(r, "self", D);
        r.t("exponent", D, r.dtype, &flat(&[(-2.0, 0.0); 15]));
        result(r.loose(16.0), D, &x.iter().map(|z| over((1.0, 0.0), times(*z, *z))).collect::<Vec<Z>>());
    });
    c.add("PowScalarTensor", BOTH, |r| {
        r.s("self", 2.0);
        let x = z(r, "exponent", D);
        result(r.loose(4.0), D, &x.iter().map(|z| exp(scaled(*z, 2f64.ln()))).collect::<Vec<Z>>());
    });
}

/// Sums and products along dimension 1.
fn sums(c: &mut Cases) {
    let rows = |x: &[Z], f: &dyn Fn(&[Z]) -> Z| x.chunks(5).map(f).collect::<Vec<Z>>();
    let sum = |v: &[Z]| v.iter().fold((0.0, 0.0), |a, b| plus(a, *b));
    let product = |v: &[Z]| v.iter().fold((1.0, 0.0), |a, b| times(a, *b));
    let dtype = |r: &Run| f64::from(r.dtype.code());
    c.add("ReduceSum", BOTH, move |r| {
        let x = z(r, "self", D);
        let code = dtype(r);
        r.ints("dims", &[1]).n("keepDims", 0.0).n("dtype", code).loose(4.0);
        result(r, &[3], &rows(&x, &sum));
    });
    c.add("Mean", BOTH, move |r| {
        let x = z(r, "self", D);
        let code = dtype(r);
        r.ints("dim", &[1]).n("keepDim", 0.0).n("dtype", code).loose(4.0);
        result(r, &[3], &rows(&x, &|v| scaled(sum(v), 0.2)));
    });
    c.add("Prod", BOTH, move |r| {
        let x = z(r, "self", D);
        let code = dtype(r);
        r.n("dtype", code).loose(8.0);
        result(r, &[], &[product(&x)]);
    });
    c.add("ProdDim", BOTH, move |r| {
        let x = z(r, "self", D);
        let code = dtype(r);
        r.n("dim", 1.0).n("keepDim", 0.0).n("dtype", code).loose(8.0);
        result(r, &[3], &rows(&x, &product));
    });
    let heads = |x: &[Z], f: &dyn Fn(&[Z]) -> Z| {
        x.chunks(5).flat_map(|row| (1..=5).map(|n| f(&row[..n])).collect::<Vec<Z>>()).collect::<Vec<Z>>()
    };
    c.add("Cumsum", BOTH, move |r| {
        let x = z(r, "self", D);
        let code = dtype(r);
        r.n("dim", 1.0).n("dtype", code).loose(4.0);
        result(r, D, &heads(&x, &sum));
    });
    c.add("CumsumV2", BOTH, move |r| {
        let x = z(r, "self", D);
        r.n("dim", 1.0).loose(4.0);
        result(r, D, &heads(&x, &sum));
    });
    c.add("Cumprod", BOTH, move |r| {
        let x = z(r, "input", D);
        let code = dtype(r);
        r.si("dim", 1).n("dtype", code).loose(8.0);
        result(r, D, &heads(&x, &product));
    });
    c.add("Trace", BOTH, move |r| {
        let x = z(r, "self", D);
        result(r, &[], &[plus(x[0], plus(x[6], x[12]))]);
    });
}

fn compared(c: &mut Cases) {
    const X: [Z; 4] = [(1.0, 2.0), (1.0, -2.0), (0.0, 0.0), (0.0, 3.0)];
    const Y: [Z; 4] = [(1.0, 2.0), (1.0, 2.0), (0.0, 0.0), (1.0, 3.0)];
    for (name, equal) in [("EqTensor", true), ("NeTensor", false), ("EqScalar", true), ("NeScalar", false)] {
        c.add(name, BOTH, move |r| {
            r.t("self", &[4], r.dtype, &flat(&X));
            let y = if r.is_scalar("other") {
                r.sc("other", 1.0, 2.0);
                [(1.0, 2.0); 4]
            } else {
                r.t("other", &[4], r.dtype, &flat(&Y));
                Y
            };
            let want = (0..4).map(|i| truth((X[i] == y[i]) == equal)).collect();
            r.out_as("out", &[4], Dtype::Bool, want);
        });
    }
    for (name, f) in [
        ("LogicalAnd", (|a, b| a && b) as fn(bool, bool) -> bool),
        ("LogicalOr", |a, b| a || b),
        ("LogicalXor", |a, b| a != b),
    ] {
        c.add(name, BOTH, move |r| {
            r.t("self", &[4], r.dtype, &flat(&X));
            r.t("other", &[4], r.dtype, &flat(&[(0.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0)]));
            let there = |z: Z| z.0 != 0.0 || z.1 != 0.0;
            let want =
                [true, false, true, false].iter().zip(X).map(|(b, a)| truth(f(there(a), *b))).collect();
            r.out_as("out", &[4], Dtype::Bool, want);
        });
    }
    c.add("LogicalNot", BOTH, |r| {
        r.t("self", &[4], r.dtype, &flat(&X));
        r.out_as("out", &[4], Dtype::Bool, vec![0.0, 0.0, 1.0, 0.0]);
    });
    for (name, want) in [("All", 0.0), ("Any", 1.0)] {
        c.add(name, BOTH, move |r| {
            r.t("self", &[4], r.dtype, &flat(&X));
            r.ints("dim", &[0]).n("keepdim", 0.0).out_as("out", &[], Dtype::Bool, vec![want]);
        });
    }
    let edges = [(1.0, 2.0), (f64::INFINITY, 0.0), (0.0, f64::NAN), (0.0, f64::NEG_INFINITY)];
    for (name, want) in [("IsFinite", [1.0, 0.0, 0.0, 0.0]), ("IsInf", [0.0, 1.0, 0.0, 1.0])] {
        c.add(name, BOTH, move |r| {
            let at = first(r);
            r.t(at, &[4], r.dtype, &flat(&edges));
            r.out_as("out", &[4], Dtype::Bool, want.to_vec());
        });
    }
    c.add("Equal", BOTH, |r| {
        r.t("self", &[4], r.dtype, &flat(&X));
        r.t("other", &[4], r.dtype, &flat(&Y));
        r.out_as("out", &[], Dtype::Bool, vec![0.0]);
    });
    c.add("IsClose", BOTH, |r| {
        r.t("self", &[4], r.dtype, &flat(&X));
        r.t("other", &[4], r.dtype, &flat(&[(1.0, 2.125), (1.0, -2.5), (0.0, 0.0), (0.125, 3.0)]));
        r.n("rtol", 0.0).n("atol", 0.25).out_as("out", &[4], Dtype::Bool, vec![1.0, 0.0, 1.0, 1.0]);
    });
}

fn moved(c: &mut Cases) {
    c.add("Cast", BOTH, |r| {
        let x = z(r, "self", D);
        // The imaginary part is dropped.
        r.n("dtype", 0.0).out_as("out", D, Dtype::F32, x.iter().map(|z| z.0).collect());
    });
    c.add("InplaceCopy", BOTH, |r| {
        z(r, "selfRef", D);
        let x = z(r, "src", D);
        r.becomes("selfRef", flat(&x));
    });
    c.add("InplaceZero", BOTH, |r| {
        z(r, "selfRef", D);
        r.becomes("selfRef", vec![0.0; 30]);
    });
    c.add("InplaceOne", BOTH, |r| {
        z(r, "selfRef", D);
        r.becomes("selfRef", flat(&[(1.0, 0.0); 15]));
    });
    c.add("InplaceFillScalar", BOTH, |r| {
        z(r, "selfRef", D);
        r.sc("value", 1.5, -0.5).becomes("selfRef", flat(&[(1.5, -0.5); 15]));
    });
    c.add("InplaceFillTensor", BOTH, |r| {
        z(r, "selfRef", D);
        r.t("value", &[], r.dtype, &[1.5, -0.5]);
        r.becomes("selfRef", flat(&[(1.5, -0.5); 15]));
    });
    c.add("InplaceMaskedFillScalar", BOTH, |r| {
        let (x, mask) = (z(r, "selfRef", D), r.mask("mask", &[5]));
        let one = |i: usize| if mask[i % 5] { (1.5, -0.5) } else { x[i] };
        r.sc("value", 1.5, -0.5).becomes("selfRef", flat(&(0..15).map(one).collect::<Vec<Z>>()));
    });
    c.add("InplaceMaskedFillTensor", BOTH, |r| {
        let (x, mask) = (z(r, "selfRef", D), r.mask("mask", &[5]));
        r.t("value", &[], r.dtype, &[1.5, -0.5]);
        let one = |i: usize| if mask[i % 5] { (1.5, -0.5) } else { x[i] };
        r.becomes("selfRef", flat(&(0..15).map(one).collect::<Vec<Z>>()));
    });
    c.add("InplaceMaskedScatter", BOTH, |r| {
        let (x, mask, v) = (z(r, "selfRef", D), r.mask("mask", D), z(r, "source", &[15]));
        let one = |i: usize| if mask[i] { v[mask[..i].iter().filter(|m| **m).count()] } else { x[i] };
        r.becomes("selfRef", flat(&(0..15).map(one).collect::<Vec<Z>>()));
    });
    c.add("InplacePut", BOTH, |r| {
        let mut x = z(r, "selfRef", D);
        r.t("index", &[2], Dtype::I64, &[3.0, 8.0]);
        let v = z(r, "source", &[2]);
        (x[3], x[8]) = (plus(x[3], v[0]), plus(x[8], v[1]));
        r.n("accumulate", 1.0).loose(2.0).becomes("selfRef", flat(&x));
    });
    c.add("SWhere", BOTH, |r| {
        let mask = r.mask("condition", D);
        let (a, b) = (z(r, "self", D), z(r, "other", D));
        let one = |i: usize| if mask[i] { a[i] } else { b[i] };
        result(r, D, &(0..15).map(one).collect::<Vec<Z>>());
    });
    c.add("Permute", BOTH, |r| {
        let x = z(r, "self", D);
        r.ints("dims", &[1, 0]);
        result(r, &[5, 3], &(0..15).map(|i| x[i % 3 * 5 + i / 3]).collect::<Vec<Z>>());
    });
    c.add("GatherV2", BOTH, |r| {
        let x = z(r, "self", D);
        r.t("index", &[2], Dtype::I64, &[2.0, 0.0]);
        r.n("dim", 0.0);
        result(r, &[2, 5], &[&x[10..15], &x[..5]].concat());
    });
    c.add("Cat", BOTH, |r| {
        let v = r.values(60);
        let all = r.list("tensors", &[(D, v[..30].to_vec()), (D, v[30..].to_vec())]);
        r.n("dim", 0.0).out("out", &[6, 5], all.concat());
    });
    c.add("ConstantPadNd", BOTH, |r| {
        let x = z(r, "self", &[3]);
        r.ints("pad", &[1, 0]).sc("value", 0.5, 2.0);
        result(r, &[4], &[(0.5, 2.0), x[0], x[1], x[2]]);
    });
}

/// An operator whose page has no complex type says so in its first phase, by the rule's id.
#[test]
fn others_refuse_by_the_rule() {
    super::passes("complex-refused", "lazy");
}

/// Products, norms, activations, sorting.
pub(super) fn refused() {
    for name in
        ["Mm", "Matmul", "Convolution", "Softmax", "RmsNorm", "Gelu", "Sort", "Maximum", "GtTensor", "Erf"]
    {
        let mut r = Run::new(name, Dtype::C64, false);
        r.tensors(&[2, 2]);
        let said = r.refusal(161_002);
        assert!(said.contains("NN-09") && said.contains("C64"), "{name}: {said}");
    }
}
