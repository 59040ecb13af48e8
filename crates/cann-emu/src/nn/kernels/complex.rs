//! Complex numbers: arithmetic, elementary functions by their definitions over exponential and logarithm, and which operators
//! take them. Products of matrices, convolutions, norms and activations do not: their pages have no complex element type.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// Real and imaginary part.
pub(super) type Complex = (f64, f64);

/// Operators that take complex tensors, besides their forms in place.
const ABLE: &[&str] = &[
    // Moved, chosen, filled.
    "Cast",
    "Cat",
    "ConstantPadNd",
    "Copy",
    "Expand",
    "Eye",
    "FillScalar",
    "FillTensor",
    "Flip",
    "Gather",
    "GatherV2",
    "GatherV3",
    "Index",
    "IndexCopy",
    "IndexFill",
    "IndexFillTensor",
    "IndexPutImpl",
    "IndexSelect",
    "MaskedFillScalar",
    "MaskedFillTensor",
    "MaskedScatter",
    "MaskedSelect",
    "Nonzero",
    "NonzeroV2",
    "One",
    "Permute",
    "Put",
    "Repeat",
    "RepeatInterleave",
    "RepeatInterleaveInt",
    "RepeatInterleaveIntWithDim",
    "RepeatInterleaveWithDim",
    "Roll",
    "Scatter",
    "ScatterAdd",
    "ScatterValue",
    "Slice",
    "SliceV2",
    "SplitTensor",
    "SplitWithSize",
    "Stack",
    "SWhere",
    "Take",
    "Tril",
    "Triu",
    "Zero",
    // Parts.
    "Abs",
    "AngleV2",
    "Complex",
    "Polar",
    "Real",
    // Arithmetic.
    "Add",
    "Addcdiv",
    "Addcmul",
    "Adds",
    "Cumprod",
    "Cumsum",
    "CumsumV2",
    "Div",
    "Divs",
    "Lerp",
    "Lerps",
    "Mean",
    "Mul",
    "Muls",
    "Neg",
    "PowScalarTensor",
    "PowTensorScalar",
    "PowTensorTensor",
    "Prod",
    "ProdDim",
    "ReduceSum",
    "Rsub",
    "Rsubs",
    "Sub",
    "Subs",
    "Trace",
    // Compared.
    "All",
    "Any",
    "EqScalar",
    "EqTensor",
    "Equal",
    "IsClose",
    "IsFinite",
    "IsInf",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "NeScalar",
    "NeTensor",
    "Sign",
];

/// Whether an operator, named without `aclnn`, takes complex tensors.
pub fn able(name: &str) -> bool {
    let plain = name.strip_prefix("Inplace").unwrap_or(name);
    ABLE.contains(&plain) || function(plain).is_some()
}

/// Every name for [`able`] without its forms in place.
#[cfg(test)]
pub(in crate::nn) fn all_able() -> impl Iterator<Item = &'static str> {
    ABLE.iter().copied().chain(FUNCTIONS.iter().map(|f| f.0))
}

type Function = fn(Complex) -> Complex;

const FUNCTIONS: &[(&str, Function)] = &[
    ("Acos", |z| {
        let (a, b) = asin(z);
        (std::f64::consts::FRAC_PI_2 - a, -b)
    }),
    ("Acosh", |z| ln(add(z, mul(sqrt(add(z, (1.0, 0.0))), sqrt(sub(z, (1.0, 0.0))))))),
    ("Asin", asin),
    ("Asinh", asinh),
    ("Atan", |z| {
        // -i · atanh(i·z)
        let (a, b) = atanh((-z.1, z.0));
        (b, -a)
    }),
    ("Atanh", atanh),
    ("Cos", |(a, b)| (a.cos() * b.cosh(), -a.sin() * b.sinh())),
    ("Cosh", |(a, b)| (a.cosh() * b.cos(), a.sinh() * b.sin())),
    ("Exp", exp),
    ("Exp2", |z| exp((z.0 * std::f64::consts::LN_2, z.1 * std::f64::consts::LN_2))),
    ("Expm1", |z| sub(exp(z), (1.0, 0.0))),
    ("Log", ln),
    ("Log10", |z| scaled(ln(z), std::f64::consts::LN_10.recip())),
    ("Log1p", |z| ln(add(z, (1.0, 0.0)))),
    ("Log2", |z| scaled(ln(z), std::f64::consts::LN_2.recip())),
    ("Reciprocal", |z| div((1.0, 0.0), z)),
    ("Rsqrt", |z| div((1.0, 0.0), sqrt(z))),
    ("Sigmoid", |(a, b)| div((1.0, 0.0), add((1.0, 0.0), exp((-a, -b))))),
    ("Sin", |(a, b)| (a.sin() * b.cosh(), a.cos() * b.sinh())),
    ("Sinc", |z| {
        let t = scaled(z, std::f64::consts::PI);
        if z == (0.0, 0.0) { (1.0, 0.0) } else { div((t.0.sin() * t.1.cosh(), t.0.cos() * t.1.sinh()), t) }
    }),
    ("Sinh", |(a, b)| (a.sinh() * b.cos(), a.cosh() * b.sin())),
    ("Sqrt", sqrt),
    ("Tan", |z| {
        // -i · tanh(i·z)
        let (a, b) = tanh((-z.1, z.0));
        (b, -a)
    }),
    ("Tanh", tanh),
];

fn function(name: &str) -> Option<Function> {
    FUNCTIONS.iter().find(|f| f.0 == name).map(|f| f.1)
}

/// y = f(x) of complex numbers by the operator's name.
pub(super) fn unary(k: &Call, out: &View, x: Vec<Complex>) -> Outcome {
    let name = k.decl.name.trim_start_matches("aclnn");
    let f = function(name.strip_prefix("Inplace").unwrap_or(name))
        .ok_or_else(|| Fault::from("it has no kernel for complex numbers in the emulator"))?;
    k.put_view(out, &Values::C(x.into_iter().map(f).collect()))
}

pub(super) fn add(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

pub(super) fn sub(a: Complex, b: Complex) -> Complex {
    (a.0 - b.0, a.1 - b.1)
}

pub(super) fn mul(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

pub(super) fn div(a: Complex, b: Complex) -> Complex {
    let d = b.0 * b.0 + b.1 * b.1;
    ((a.0 * b.0 + a.1 * b.1) / d, (a.1 * b.0 - a.0 * b.1) / d)
}

fn scaled(z: Complex, by: f64) -> Complex {
    (z.0 * by, z.1 * by)
}

fn exp((a, b): Complex) -> Complex {
    (a.exp() * b.cos(), a.exp() * b.sin())
}

/// The principal value.
fn ln((a, b): Complex) -> Complex {
    (a.hypot(b).ln(), b.atan2(a))
}

/// The root in the right half plane.
fn sqrt((a, b): Complex) -> Complex {
    let r = a.hypot(b);
    (((r + a) / 2.0).max(0.0).sqrt(), ((r - a) / 2.0).max(0.0).sqrt().copysign(b))
}

/// The principal value; of nothing to a power of nothing 1.
pub(super) fn pow(a: Complex, b: Complex) -> Complex {
    if b == (0.0, 0.0) {
        return (1.0, 0.0);
    }
    if a == (0.0, 0.0) {
        return (0.0, 0.0);
    }
    exp(mul(b, ln(a)))
}

fn tanh((a, b): Complex) -> Complex {
    let d = (2.0 * a).cosh() + (2.0 * b).cos();
    ((2.0 * a).sinh() / d, (2.0 * b).sin() / d)
}

fn asinh(z: Complex) -> Complex {
    ln(add(z, sqrt(add(mul(z, z), (1.0, 0.0)))))
}

fn asin(z: Complex) -> Complex {
    // -i · asinh(i·z)
    let (a, b) = asinh((-z.1, z.0));
    (b, -a)
}

fn atanh(z: Complex) -> Complex {
    scaled(sub(ln(add((1.0, 0.0), z)), ln(sub((1.0, 0.0), z))), 0.5)
}

/// The direction of a number: z / |z|, 0 of 0.
pub(super) fn direction(z: Complex) -> Complex {
    let r = z.0.hypot(z.1);
    if r == 0.0 { (0.0, 0.0) } else { (z.0 / r, z.1 / r) }
}

fn real(k: &Call) -> Outcome {
    let x = k.load("self")?;
    k.put("out", &Values::F((0..x.len()).map(|i| x.c(i).0).collect()))
}

pub(super) static OPS: &[Row] = &[("Real", "self:FDIBC", real)];
