//! Element by element: one or two inputs, broadcast.

mod fill;
mod numbers;

use self::fill::{cast, copy, fill_scalar, fill_tensor, masked_fill, one, where_, zero};
use self::numbers::{
    floor_div, floor_div_i, gcd, ipow, log_add_exp, max_nan, min_nan, remainder, sign, xlogy,
};
use super::Row;
use super::complex::{self as cx, Complex};
use super::special as sp;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Scalar, Values, View};

/// The output of an operator: in place its first parameter, else its last tensor.
pub(super) fn output(k: &Call) -> Result<&View, Fault> {
    if k.decl.name.starts_with("aclnnInplace") {
        return input(k);
    }
    k.tensors().last().map(|(_, v)| *v).ok_or_else(|| Fault::from("no output"))
}

fn input(k: &Call) -> Result<&View, Fault> {
    k.t(k.decl.params[0].name)
}

/// y = f(x)
pub(super) fn un(k: &Call, f: fn(f64) -> f64) -> Outcome {
    let out = output(k)?;
    match k.spread(input(k)?, &out.dims)? {
        Values::C(x) => cx::unary(k, out, x),
        other => k.put_view(out, &Values::F(other.floats().into_iter().map(f).collect())),
    }
}

/// As [`un`], for integers in integers.
fn un_i(k: &Call, f: fn(f64) -> f64, g: fn(i64) -> i64) -> Outcome {
    let out = output(k)?;
    match k.spread(input(k)?, &out.dims)? {
        Values::I(x) => k.put_view(out, &Values::I(x.into_iter().map(g).collect())),
        other => k.put_view(out, &Values::F(other.floats().into_iter().map(f).collect())),
    }
}

/// y = whether f(x); of a complex number whether it holds for a part (both parts, if `both`).
fn test(k: &Call, both: bool, f: fn(f64) -> bool) -> Outcome {
    let out = output(k)?;
    let x = k.spread(input(k)?, &out.dims)?;
    if let Values::C(x) = x {
        let one = |(a, b): Complex| i64::from(if both { f(a) && f(b) } else { f(a) || f(b) });
        return k.put_view(out, &Values::I(x.into_iter().map(one).collect()));
    }
    let x = x.floats();
    k.put_view(out, &Values::I(x.into_iter().map(|x| i64::from(f(x))).collect()))
}

fn broadcast_dims(a: &[i64], b: &[i64]) -> Vec<i64> {
    let n = a.len().max(b.len());
    (0..n)
        .map(|i| {
            let x = if i + a.len() >= n { a[i + a.len() - n] } else { 1 };
            let y = if i + b.len() >= n { b[i + b.len() - n] } else { 1 };
            if x == 1 { y } else { x }
        })
        .collect()
}

/// The two operands of a call, broadcast to the output: tensors or scalars by the parameters' kinds.
pub(super) fn pair(k: &Call, out: &View) -> Result<(Values, Values), Fault> {
    let side = |i: usize| -> Result<Values, Fault> {
        let name = k.decl.params[i].name;
        match k.opt(name) {
            Ok(Some(view)) => k.spread(view, &out.dims),
            Ok(None) => Err(Fault::from(format!("{name} is null"))),
            Err(_) => Ok(repeat(k.scalar(name)?, out.numel())),
        }
    };
    let (a, b) = (side(0)?, side(1)?);
    // A scalar of a float type beside integers calculates in floats, and the other way about.
    Ok((a, b))
}

fn repeat(s: &Scalar, n: usize) -> Values {
    s.value.pick(std::iter::repeat_n(0, n))
}

fn kind(a: &Values, b: &Values) -> u8 {
    match (a, b) {
        (Values::C(_), _) | (_, Values::C(_)) => 2,
        (Values::I(_), Values::I(_)) => 0,
        _ => 1,
    }
}

/// z = f(a, b), in integers if both are.
pub(super) fn bin3(
    k: &Call,
    f: fn(f64, f64) -> f64,
    g: fn(i64, i64) -> i64,
    c: fn(Complex, Complex) -> Complex,
) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let n = out.numel();
    let v = match kind(&a, &b) {
        2 => Values::C((0..n).map(|i| c(a.c(i), b.c(i))).collect()),
        0 => Values::I((0..n).map(|i| g(a.i(i), b.i(i))).collect()),
        _ => Values::F((0..n).map(|i| f(a.f(i), b.f(i))).collect()),
    };
    k.put_view(out, &v)
}

fn bin(k: &Call, f: fn(f64, f64) -> f64, g: fn(i64, i64) -> i64) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let n = out.numel();
    let v = match kind(&a, &b) {
        0 => Values::I((0..n).map(|i| g(a.i(i), b.i(i))).collect()),
        // Of complex numbers too, which this has no answer for.
        _ => Values::F((0..n).map(|i| f(a.f(i), b.f(i))).collect()),
    };
    k.put_view(out, &v)
}

/// z = f(a, b), in floats always.
fn binf(k: &Call, f: fn(f64, f64) -> f64) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let n = out.numel();
    k.put_view(out, &Values::F((0..n).map(|i| f(a.f(i), b.f(i))).collect()))
}

/// z = a / b, of complex numbers too.
fn quotient(k: &Call) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    if kind(&a, &b) == 2 {
        return k.put_view(out, &Values::C((0..out.numel()).map(|i| cx::div(a.c(i), b.c(i))).collect()));
    }
    k.put_view(out, &Values::F((0..out.numel()).map(|i| a.f(i) / b.f(i)).collect()))
}

/// The operands of a comparison as their common type sees them: a scalar takes the tensor's element type.
fn compare(k: &Call, f: fn(f64, f64) -> bool, g: fn(i64, i64) -> bool) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let n = out.numel();
    let v: Vec<i64> = match kind(&a, &b) {
        0 => (0..n).map(|i| i64::from(g(a.i(i), b.i(i)))).collect(),
        2 => (0..n)
            // Equality or its opposite: f tells which by two equal numbers.
            .map(|i| i64::from((a.c(i) == b.c(i)) == f(0.0, 0.0)))
            .collect(),
        _ => {
            let (x, y) = (narrow(k, 0), narrow(k, 1));
            let narrow = match (x, y) {
                (Some(a), None) => Some(a),
                (None, Some(b)) => Some(b),
                _ => None,
            };
            (0..n).map(|i| i64::from(f(round_to(narrow, a.f(i)), round_to(narrow, b.f(i))))).collect()
        }
    };
    k.put_view(out, &Values::I(v))
}

fn narrow(k: &Call, i: usize) -> Option<Dtype> {
    k.opt(k.decl.params[i].name).ok().flatten().map(|v| v.dtype)
}

/// A number as an element type holds it.
pub(super) fn round_to(dtype: Option<Dtype>, v: f64) -> f64 {
    match dtype {
        Some(Dtype::F32) => f64::from(v as f32),
        Some(Dtype::F16) => f64::from(half::f16::from_f32(v as f32)),
        Some(Dtype::Bf16) => f64::from(half::bf16::from_f32(v as f32)),
        _ => v,
    }
}

fn logic(k: &Call, f: fn(bool, bool) -> bool) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    k.put_view(out, &Values::I((0..out.numel()).map(|i| i64::from(f(a.b(i), b.b(i)))).collect()))
}

/// a + sign·alpha·b, or with the operands exchanged.
fn scaled(k: &Call, sign: f64, exchanged: bool) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let (a, b) = if exchanged { (b, a) } else { (a, b) };
    let alpha = k.opt_scalar("alpha")?;
    let n = out.numel();
    let v = match kind(&a, &b) {
        2 => {
            let s = cx::mul((sign, 0.0), alpha.map_or((1.0, 0.0), |s| s.value.c(0)));
            Values::C((0..n).map(|i| cx::add(a.c(i), cx::mul(s, b.c(i)))).collect())
        }
        0 if alpha.is_none_or(|s| matches!(s.value, Values::I(_)) || s.value.f(0).fract() == 0.0) => {
            let s = (sign as i64).wrapping_mul(alpha.map_or(1, |s| s.value.i(0)));
            if out.dtype == Dtype::Bool {
                Values::I(
                    (0..n).map(|i| i64::from(a.i(i).wrapping_add(s.wrapping_mul(b.i(i))) != 0)).collect(),
                )
            } else {
                Values::I((0..n).map(|i| a.i(i).wrapping_add(s.wrapping_mul(b.i(i)))).collect())
            }
        }
        _ => {
            let s = sign * alpha.map_or(1.0, |s| s.value.f(0));
            Values::F((0..n).map(|i| a.f(i) + s * b.f(i)).collect())
        }
    };
    k.put_view(out, &v)
}

fn pow(k: &Call) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    let n = out.numel();
    let v = match kind(&a, &b) {
        0 => Values::I((0..n).map(|i| ipow(a.i(i), b.i(i))).collect()),
        2 => Values::C((0..n).map(|i| cx::pow(a.c(i), b.c(i))).collect()),
        _ => Values::F((0..n).map(|i| a.f(i).powf(b.f(i))).collect()),
    };
    k.put_view(out, &v)
}

/// mode 0: true division, 1: towards zero, 2: towards minus infinity.
fn div_mod(k: &Call) -> Outcome {
    match k.int("mode")? {
        0 => quotient(k),
        1 => bin(k, |a, b| (a / b).trunc(), |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        _ => bin(k, floor_div, floor_div_i),
    }
}

fn addc(k: &Call, f: fn(f64, f64) -> f64, c: fn(Complex, Complex) -> Complex) -> Outcome {
    let out = output(k)?;
    let x = k.spread(input(k)?, &out.dims)?;
    let (a, b) = (k.spread(k.t("tensor1")?, &out.dims)?, k.spread(k.t("tensor2")?, &out.dims)?);
    let s = &k.scalar("value")?.value;
    if [&x, &a, &b, s].iter().any(|v| matches!(v, Values::C(_))) {
        let one = |i: usize| cx::add(x.c(i), cx::mul(s.c(0), c(a.c(i), b.c(i))));
        return k.put_view(out, &Values::C((0..out.numel()).map(one).collect()));
    }
    let s = s.f(0);
    k.put_view(out, &Values::F((0..out.numel()).map(|i| x.f(i) + s * f(a.f(i), b.f(i))).collect()))
}

fn lerp(k: &Call) -> Outcome {
    let out = output(k)?;
    let a = k.spread(input(k)?, &out.dims)?;
    let b = k.spread(k.t("end")?, &out.dims)?;
    let w = match k.opt("weight") {
        Ok(Some(view)) => k.spread(view, &out.dims)?,
        _ => repeat(k.scalar("weight")?, out.numel()),
    };
    if [&a, &b, &w].iter().any(|v| matches!(v, Values::C(_))) {
        let one = |i: usize| cx::add(a.c(i), cx::mul(w.c(i), cx::sub(b.c(i), a.c(i))));
        return k.put_view(out, &Values::C((0..out.numel()).map(one).collect()));
    }
    let f = |i: usize| {
        let (a, b, w) = (a.f(i), b.f(i), w.f(i));
        if w < 0.5 { a + w * (b - a) } else { b - (b - a) * (1.0 - w) }
    };
    k.put_view(out, &Values::F((0..out.numel()).map(f).collect()))
}

/// Limits that are scalars or tensors, each of which may be absent.
fn clamp(k: &Call, low: Option<&str>, high: Option<&str>) -> Outcome {
    let out = output(k)?;
    let x = k.spread(input(k)?, &out.dims)?;
    let n = out.numel();
    let bound = |name: Option<&str>| -> Result<Option<Values>, Fault> {
        let Some(name) = name else { return Ok(None) };
        match k.opt(name) {
            Ok(Some(view)) => Ok(Some(k.spread(view, &out.dims)?)),
            Ok(None) => Ok(None),
            Err(_) => Ok(k.opt_scalar(name)?.map(|s| repeat(s, n))),
        }
    };
    let (low, high) = (bound(low)?, bound(high)?);
    let integers = matches!(x, Values::I(_)) && out.dtype.is_int();
    if integers {
        let f = |i: usize| {
            let v = low.as_ref().map_or(x.i(i), |l| x.i(i).max(l.i(i)));
            high.as_ref().map_or(v, |h| v.min(h.i(i)))
        };
        return k.put_view(out, &Values::I((0..n).map(f).collect()));
    }
    let f = |i: usize| {
        let mut v = x.f(i);
        if let Some(l) = &low
            && !v.is_nan()
        {
            v = if l.f(i).is_nan() { f64::NAN } else { v.max(l.f(i)) };
        }
        if let Some(h) = &high
            && !v.is_nan()
        {
            v = if h.f(i).is_nan() { f64::NAN } else { v.min(h.f(i)) };
        }
        v
    };
    k.put_view(out, &Values::F((0..n).map(f).collect()))
}

fn nan_to_num(k: &Call) -> Outcome {
    let out = output(k)?;
    let (nan, pos, neg) = (k.num("nan")?, k.num("posinf")?, k.num("neginf")?);
    let x = k.spread(input(k)?, &out.dims)?.floats();
    let f = |v: f64| match v {
        v if v.is_nan() => nan,
        f64::INFINITY => pos,
        f64::NEG_INFINITY => neg,
        v => v,
    };
    k.put_view(out, &Values::F(x.into_iter().map(f).collect()))
}

fn round_decimals(k: &Call) -> Outcome {
    let out = output(k)?;
    let p = 10f64.powi(k.int("decimals")?.abs() as i32);
    let up = k.int("decimals")? >= 0;
    let x = k.spread(input(k)?, &out.dims)?.floats();
    let f = |v: f64| if up { sp::round_even(v * p) / p } else { sp::round_even(v / p) * p };
    k.put_view(out, &Values::F(x.into_iter().map(f).collect()))
}

fn is_close(k: &Call) -> Outcome {
    let out = output(k)?;
    let (rtol, atol, nan) = (k.num("rtol")?, k.num("atol")?, k.flag("equal_nan")?);
    let (a, b) = (k.spread(k.t("self")?, &out.dims)?, k.spread(k.t("other")?, &out.dims)?);
    if kind(&a, &b) == 2 {
        let one = |i: usize| {
            let (a, b) = (a.c(i), b.c(i));
            let (d, size) = (cx::sub(a, b), b.0.hypot(b.1));
            let none = |z: Complex| z.0.is_nan() || z.1.is_nan();
            let near = d.0.hypot(d.1) <= atol + rtol * size && size.is_finite();
            i64::from(a == b || (nan && none(a) && none(b)) || near)
        };
        return k.put_view(out, &Values::I((0..out.numel()).map(one).collect()));
    }
    let f = |i: usize| {
        let (a, b) = (a.f(i), b.f(i));
        i64::from(
            a == b
                || (nan && a.is_nan() && b.is_nan())
                || ((a - b).abs() <= atol + rtol * b.abs() && b.is_finite()),
        )
    };
    k.put_view(out, &Values::I((0..out.numel()).map(f).collect()))
}

fn equal(k: &Call) -> Outcome {
    let (a, b) = (k.t("self")?, k.t("other")?);
    let same = a.dims == b.dims && {
        let (x, y) = (a.load(k.decl.name)?, b.load(k.decl.name)?);
        (0..x.len()).all(|i| x.c(i) == y.c(i))
    };
    k.put("out", &Values::I(vec![i64::from(same)]))
}

fn abs(k: &Call) -> Outcome {
    let out = output(k)?;
    if let Values::C(x) = k.spread(input(k)?, &out.dims)? {
        return k.put_view(out, &Values::F(x.into_iter().map(|(a, b)| a.hypot(b)).collect()));
    }
    un_i(k, f64::abs, i64::wrapping_abs)
}

fn complex(k: &Call, f: fn(f64, f64) -> Complex) -> Outcome {
    let out = output(k)?;
    let (a, b) = pair(k, out)?;
    k.put_view(out, &Values::C((0..out.numel()).map(|i| f(a.f(i), b.f(i))).collect()))
}

fn polar(k: &Call) -> Outcome {
    complex(k, |a, b| (a * b.cos(), a * b.sin()))
}

const ANY: &str = "self:FDIBC";
const IN: &str = "selfRef:FDIBC self:FDIBC inputRef:FDIBC inout(selfRef,self,inputRef)";

macro_rules! unary {
    ($($name:literal $f:expr;)*) => {
        &[$(
            ($name, "self:FDIBC", |k| un(k, $f)),
            (concat!("Inplace", $name), IN, |k| un(k, $f)),
        )*]
    };
}

pub(super) static UNARY: &[Row] = unary! {
    "Acos" f64::acos; "Acosh" f64::acosh; "Asin" f64::asin; "Asinh" f64::asinh; "Atan" f64::atan; "Atanh" f64::atanh;
    "Cos" f64::cos; "Cosh" f64::cosh; "Sin" f64::sin; "Sinh" f64::sinh; "Tan" f64::tan; "Tanh" f64::tanh;
    "Exp" f64::exp; "Exp2" f64::exp2; "Expm1" f64::exp_m1; "Log" f64::ln; "Log2" f64::log2; "Log10" f64::log10;
    "Log1p" f64::ln_1p; "Sqrt" f64::sqrt; "Rsqrt" |x| 1.0 / x.sqrt(); "Reciprocal" |x| 1.0 / x;
    "Erf" sp::erf; "Erfc" sp::erfc; "Erfinv" sp::erfinv; "Sigmoid" sp::sigmoid; "Digamma" sp::digamma; "Lgamma" sp::lgamma;
    "Sinc" |x| if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) };
    "Frac" |x| x - x.trunc();
};

macro_rules! with_in_place {
    ($($name:literal $contract:expr, $f:expr;)*) => {
        &[$(
            ($name, $contract, $f),
            (concat!("Inplace", $name), IN, $f),
        )*]
    };
}

pub(super) static BOTH: &[Row] = with_in_place! {
    "Abs" ANY, abs;
    "Neg" ANY, |k| bin_neg(k);
    "Ceil" ANY, |k| un_i(k, f64::ceil, |x| x);
    "Floor" ANY, |k| un_i(k, f64::floor, |x| x);
    "Trunc" ANY, |k| un_i(k, f64::trunc, |x| x);
    "Round" ANY, |k| un_i(k, sp::round_even, |x| x);
    "RoundDecimals" ANY, round_decimals;
    "Relu" ANY, |k| un_i(k, |x| if x.is_nan() { x } else { x.max(0.0) }, |x| x.max(0));
    "LogicalNot" ANY, |k| test(k, true, |x| x == 0.0);
    "BitwiseNot" "self:IB", bit_not;
    "NanToNum" ANY, nan_to_num;
    "Add" "self:FDIBC other:FDIBC", |k| scaled(k, 1.0, false);
    "Adds" ANY, |k| scaled(k, 1.0, false);
    "Sub" "self:FDIBC other:FDIBC", |k| scaled(k, -1.0, false);
    "Subs" ANY, |k| scaled(k, -1.0, false);
    "Rsub" ANY, |k| scaled(k, -1.0, true);
    "Rsubs" ANY, |k| scaled(k, -1.0, true);
    "Mul" "self:FDIBC other:FDIBC", mul;
    "Muls" ANY, mul;
    "Div" "self:FDIBC other:FDIBC", quotient;
    "Divs" ANY, quotient;
    "DivMod" ANY, div_mod;
    "DivMods" ANY, div_mod;
    "FloorDivide" ANY, |k| bin(k, floor_div, floor_div_i);
    "FloorDivides" ANY, |k| bin(k, floor_div, floor_div_i);
    "FmodTensor" ANY, |k| bin(k, |a, b| a % b, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) });
    "FmodScalar" ANY, |k| bin(k, |a, b| a % b, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) });
    "RemainderTensorTensor" ANY, |k| bin(k, remainder, |a, b| a - b * floor_div_i(a, b));
    "RemainderTensorScalar" ANY, |k| bin(k, remainder, |a, b| a - b * floor_div_i(a, b));
    "PowTensorScalar" ANY, pow;
    "PowTensorTensor" ANY, pow;
    "Addcmul" ANY, |k| addc(k, |a, b| a * b, cx::mul);
    "Addcdiv" ANY, |k| addc(k, |a, b| a / b, cx::div);
    "Lerp" ANY, lerp;
    "Lerps" ANY, lerp;
    "Clamp" "self:FDIB null(clipValueMin,clipValueMax)", |k| clamp(k, Some("clipValueMin"), Some("clipValueMax"));
    "ClampMin" ANY, |k| clamp(k, Some("clipValueMin"), None);
    "ClampMax" ANY, |k| clamp(k, None, Some("clipValueMax"));
    "ClampMinTensor" ANY, |k| clamp(k, Some("clipValueMin"), None);
    "ClampMaxTensor" ANY, |k| clamp(k, None, Some("max"));
    "ClampTensor" "self:FDIB clipValueMin:FDIB clipValueMax:FDIB null(clipValueMin,clipValueMax)", |k| clamp(k, Some("clipValueMin"), Some("clipValueMax"));
    "EqTensor" ANY, |k| compare(k, |a, b| a == b, |a, b| a == b);
    "EqScalar" ANY, |k| compare(k, |a, b| a == b, |a, b| a == b);
    "NeTensor" ANY, |k| compare(k, |a, b| a != b, |a, b| a != b);
    "NeScalar" ANY, |k| compare(k, |a, b| a != b, |a, b| a != b);
    "GtTensor" ANY, |k| compare(k, |a, b| a > b, |a, b| a > b);
    "GtScalar" ANY, |k| compare(k, |a, b| a > b, |a, b| a > b);
    "GeTensor" ANY, |k| compare(k, |a, b| a >= b, |a, b| a >= b);
    "GeScalar" ANY, |k| compare(k, |a, b| a >= b, |a, b| a >= b);
    "LtTensor" ANY, |k| compare(k, |a, b| a < b, |a, b| a < b);
    "LtScalar" ANY, |k| compare(k, |a, b| a < b, |a, b| a < b);
    "LeTensor" ANY, |k| compare(k, |a, b| a <= b, |a, b| a <= b);
    "LeScalar" ANY, |k| compare(k, |a, b| a <= b, |a, b| a <= b);
    "LogicalAnd" ANY, |k| logic(k, |a, b| a && b);
    "LogicalOr" ANY, |k| logic(k, |a, b| a || b);
    "LogicalXor" ANY, |k| logic(k, |a, b| a != b);
    "BitwiseAndTensor" "self:IB", |k| bin(k, |a, _| a, |a, b| a & b);
    "BitwiseAndScalar" "self:IB", |k| bin(k, |a, _| a, |a, b| a & b);
    "BitwiseOrTensor" "self:IB", |k| bin(k, |a, _| a, |a, b| a | b);
    "BitwiseOrScalar" "self:IB", |k| bin(k, |a, _| a, |a, b| a | b);
    "BitwiseXorTensor" "self:IB", |k| bin(k, |a, _| a, |a, b| a ^ b);
    "BitwiseXorScalar" "self:IB", |k| bin(k, |a, _| a, |a, b| a ^ b);
    "Atan2" ANY, |k| binf(k, f64::atan2);
    "XLogYTensor" ANY, |k| binf(k, xlogy);
    "XLogYScalarOther" ANY, |k| binf(k, xlogy);
};

pub(super) static OPS: &[Row] = &[
    ("XLogYScalarSelf", "other:FDIB", |k| binf(k, xlogy)),
    ("AddV3", "other:FDIB", |k| scaled(k, 1.0, false)),
    ("PowScalarTensor", "exponent:FDIBC", pow),
    ("RemainderScalarTensor", "other:FDIB", |k| bin(k, remainder, |a, b| a - b * floor_div_i(a, b))),
    ("Maximum", ANY, |k| bin(k, max_nan, i64::max)),
    ("Minimum", ANY, |k| bin(k, min_nan, i64::min)),
    ("LogAddExp", ANY, |k| binf(k, log_add_exp)),
    ("LogAddExp2", ANY, |k| {
        binf(k, |a, b| a.max(b) + (-(a - b).abs()).exp2().ln_1p() / std::f64::consts::LN_2)
    }),
    ("Gcd", "self:I", |k| bin(k, |a, _| a, gcd)),
    ("LeftShift", "self:I", |k| bin(k, |a, _| a, |a, b| a.wrapping_shl(b as u32))),
    ("LeftShifts", "self:I", |k| bin(k, |a, _| a, |a, b| a.wrapping_shl(b as u32))),
    ("RightShift", "input:I", |k| bin(k, |a, _| a, |a, b| a >> b.clamp(0, 63))),
    ("Sign", "self:FDIBC same(self,result) out(result)", |k| {
        let out = output(k)?;
        if let Values::C(x) = k.spread(input(k)?, &out.dims)? {
            return k.put_view(out, &Values::C(x.into_iter().map(cx::direction).collect()));
        }
        un_i(k, sign, i64::signum)
    }),
    ("Signbit", ANY, |k| test(k, false, f64::is_sign_negative)),
    ("IsFinite", ANY, |k| test(k, true, f64::is_finite)),
    ("IsInf", "x:FDIBC", |k| test(k, false, f64::is_infinite)),
    ("IsNegInf", ANY, |k| test(k, false, |x| x == f64::NEG_INFINITY)),
    ("IsPosInf", ANY, |k| test(k, false, |x| x == f64::INFINITY)),
    ("IsClose", ANY, is_close),
    ("Equal", "self:FDIBC other:FDIBC", equal),
    ("AngleV2", "x:FDIBC", |k| {
        let out = output(k)?;
        if let Values::C(x) = k.spread(input(k)?, &out.dims)? {
            return k.put_view(out, &Values::F(x.into_iter().map(|(a, b)| b.atan2(a)).collect()));
        }
        un(k, |x| if x < 0.0 { std::f64::consts::PI } else { x * 0.0 })
    }),
    ("Complex", "real:FD", |k| complex(k, |a, b| (a, b))),
    ("Polar", "input:FD", polar),
    ("Cast", ANY, cast),
    ("InplaceZero", IN, zero),
    ("InplaceOne", IN, one),
    ("InplaceFillScalar", IN, fill_scalar),
    ("InplaceFillTensor", IN, fill_tensor),
    ("InplaceCopy", "selfRef:FDIBC src:FDIBC inout(selfRef) spread(src>selfRef)", copy),
    ("InplaceMaskedFillScalar", "inout(selfRef) mask:B", masked_fill),
    ("InplaceMaskedFillTensor", "inout(selfRef) mask:B", masked_fill),
    ("SWhere", "condition:U bcast(condition,self,other>out)", where_),
];

fn mul(k: &Call) -> Outcome {
    bin3(k, |a, b| a * b, i64::wrapping_mul, cx::mul)
}

fn bin_neg(k: &Call) -> Outcome {
    let out = output(k)?;
    if let Values::C(x) = k.spread(input(k)?, &out.dims)? {
        return k.put_view(out, &Values::C(x.into_iter().map(|(a, b)| (-a, -b)).collect()));
    }
    un_i(k, |x| -x, i64::wrapping_neg)
}

fn bit_not(k: &Call) -> Outcome {
    let out = output(k)?;
    if out.dtype == Dtype::Bool {
        return test(k, true, |x| x == 0.0);
    }
    un_i(k, |x| x, |x| !x)
}

/// The shape that two shapes broadcast to.
pub(super) fn common(a: &[i64], b: &[i64]) -> Vec<i64> {
    broadcast_dims(a, b)
}
