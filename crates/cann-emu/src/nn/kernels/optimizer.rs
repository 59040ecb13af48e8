//! Optimizers and operators on lists of tensors.

use super::Row;
use super::special as sp;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// out[i] = f(x[i]) for each tensor.
fn each(k: &Call, f: impl Fn(f64) -> f64) -> Outcome {
    for (x, out) in k.list("x")?.iter().zip(k.list("out")?) {
        let v = x.load(k.decl.name)?.floats();
        k.put_view(out, &Values::F(v.into_iter().map(&f).collect()))?;
    }
    Ok(())
}

/// The numbers of a scalar, a one-element tensor, a list of scalars or a tensor of them: one for each of `n` tensors.
fn numbers(k: &Call, name: &str, n: usize) -> Result<Vec<f64>, Fault> {
    if let Ok(s) = k.scalar(name) {
        return Ok(vec![s.value.f(0); n]);
    }
    if let Ok(list) = k.scalars(name) {
        return Ok(list.iter().map(|s| s.value.f(0)).collect());
    }
    let v = k.f(name)?;
    if v.len() == 1 { Ok(vec![v[0]; n]) } else { Ok(v) }
}

/// out[i] = f(x[i], s[i])
fn each_scalar(k: &Call, scalar: &str, f: fn(f64, f64) -> f64) -> Outcome {
    let x = k.list("x")?;
    let s = numbers(k, scalar, x.len())?;
    for ((x, out), s) in x.iter().zip(k.list("out")?).zip(s) {
        let v = x.load(k.decl.name)?;
        k.put_view(out, &Values::F((0..v.len()).map(|i| f(v.f(i), s)).collect()))?;
    }
    Ok(())
}

/// out[i] = f(a[i], b[i], alpha)
fn each_pair(k: &Call, alpha: Option<&str>, f: fn(f64, f64, f64) -> f64) -> Outcome {
    let (a, b) = (k.list("x1")?, k.list("x2")?);
    let s = match alpha {
        Some(name) => numbers(k, name, a.len())?,
        None => vec![1.0; a.len()],
    };
    for (i, out) in k.list("out")?.iter().enumerate() {
        let (x, y) = (a[i].load(k.decl.name)?, b[i].load(k.decl.name)?);
        k.put_view(out, &Values::F((0..x.len()).map(|j| f(x.f(j), y.f(j), s[i])).collect()))?;
    }
    Ok(())
}

fn each_three(k: &Call, scalar: &str, f: fn(f64, f64) -> f64) -> Outcome {
    let (a, b, c) = (k.list("x1")?, k.list("x2")?, k.list("x3")?);
    let s = numbers(k, scalar, a.len())?;
    for (i, out) in k.list("out")?.iter().enumerate() {
        let (x, y, z) = (a[i].load(k.decl.name)?, b[i].load(k.decl.name)?, c[i].load(k.decl.name)?);
        k.put_view(out, &Values::F((0..x.len()).map(|j| x.f(j) + s[i] * f(y.f(j), z.f(j))).collect()))?;
    }
    Ok(())
}

fn lerp(a: f64, b: f64, w: f64) -> f64 {
    if w.abs() < 0.5 { a + w * (b - a) } else { b - (b - a) * (1.0 - w) }
}

fn lerp_list(k: &Call) -> Outcome {
    let (a, b, w) = (k.list("x1")?, k.list("x2")?, k.list("weight")?);
    for (i, out) in k.list("out")?.iter().enumerate() {
        let (x, y, z) = (a[i].load(k.decl.name)?, b[i].load(k.decl.name)?, w[i].load(k.decl.name)?);
        k.put_view(out, &Values::F((0..x.len()).map(|j| lerp(x.f(j), y.f(j), z.f(j))).collect()))?;
    }
    Ok(())
}

fn copy(k: &Call) -> Outcome {
    for (x, out) in k.list("x")?.iter().zip(k.list("out")?) {
        k.put_view(out, &x.load(k.decl.name)?)?;
    }
    Ok(())
}

fn zero(k: &Call) -> Outcome {
    k.list("x")?.iter().try_for_each(|x| k.put_view(x, &Values::I(vec![0; x.numel()])))
}

fn unscale(k: &Call) -> Outcome {
    let scale = k.f("invScale")?[0];
    let mut found = false;
    for x in k.list("scaledGrads")? {
        let v = x.load(k.decl.name)?.floats();
        found |= v.iter().any(|v| !v.is_finite());
        k.put_view(x, &Values::F(v.into_iter().map(|v| v * scale).collect()))?;
    }
    if found { k.put("foundInf", &Values::F(vec![1.0])) } else { Ok(()) }
}

fn update_scale(k: &Call) -> Outcome {
    let (scale, growth, found) =
        (k.f("currentScale")?[0], k.load("growthTracker")?.i(0), k.f("foundInf")?[0]);
    let (mut s, mut g) = (scale, growth + 1);
    if found != 0.0 {
        (s, g) = (scale * k.num("backoffFactor")?, 0);
    } else if g == k.int("growthInterval")? {
        (s, g) = (scale * k.num("growthFactor")?, 0);
    }
    k.put("updatedScale", &Values::F(vec![s]))?;
    k.put("updatedGrowthTracker", &Values::I(vec![g]))
}

struct Adam {
    lr: f64,
    beta1: f64,
    beta2: f64,
    decay: f64,
    eps: f64,
    correction1: f64,
    correction2: f64,
}

fn adamw(k: &Call, a: &Adam, greatest: Option<&View>) -> Outcome {
    let maximize = k.flag("maximize")?;
    let (mut x, mut m, mut v) = (k.f("varRef")?, k.f("mRef")?, k.f("vRef")?);
    let g = k.f("grad")?;
    let mut top = match greatest {
        Some(view) => Some(view.load(k.decl.name)?.floats()),
        None => None,
    };
    for i in 0..x.len() {
        let g = if maximize { -g[i] } else { g[i] };
        x[i] *= 1.0 - a.lr * a.decay;
        m[i] = a.beta1 * m[i] + (1.0 - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1.0 - a.beta2) * g * g;
        let second = match &mut top {
            Some(t) => {
                t[i] = t[i].max(v[i]);
                t[i]
            }
            None => v[i],
        };
        x[i] -= a.lr / a.correction1 * m[i] / ((second / a.correction2).sqrt() + a.eps);
    }
    k.put("varRef", &Values::F(x))?;
    k.put("mRef", &Values::F(m))?;
    k.put("vRef", &Values::F(v))?;
    match (top, greatest) {
        (Some(t), Some(view)) => k.put_view(view, &Values::F(t)),
        _ => Ok(()),
    }
}

fn adamw_v2(k: &Call) -> Outcome {
    // The step tensor counts the steps before this one: the vendor's adapter takes 1 from its own count.
    let step = k.f("step")?[0] + 1.0;
    let (b1, b2) = (k.num("beta1")?, k.num("beta2")?);
    let a = Adam {
        lr: k.num("lr")?,
        beta1: b1,
        beta2: b2,
        decay: k.num("weightDecay")?,
        eps: k.num("eps")?,
        correction1: 1.0 - b1.powf(step),
        correction2: 1.0 - b2.powf(step),
    };
    adamw(k, &a, if k.flag("amsgrad")? { k.opt("maxGradNormOptionalRef")? } else { None })
}

/// Hyper-parameters as tensors; the powers are those before this step.
fn adamw_v1(k: &Call) -> Outcome {
    let one = |name: &str| -> Result<f64, Fault> { Ok(k.f(name)?[0]) };
    let (b1, b2) = (one("beta1")?, one("beta2")?);
    let a = Adam {
        lr: one("lr")?,
        beta1: b1,
        beta2: b2,
        decay: one("weightDecay")?,
        eps: one("eps")?,
        correction1: 1.0 - one("beta1Power")? * b1,
        correction2: 1.0 - one("beta2Power")? * b2,
    };
    adamw(k, &a, if k.flag("amsgrad")? { k.opt("maxGradNormOptional")? } else { None })
}

const X: &str = "x:FDI out:FDI lists(x,out)";
const XX: &str = "x1:FDI x2:FDI lists(x1,x2,out)";
const XXX: &str = "x1:FD lists(x1,x2,x3,out)";

macro_rules! unary {
    ($($name:literal $f:expr;)*) => { &[$(($name, X, |k| each(k, $f)),)*] };
}
macro_rules! scalar {
    ($($name:literal $f:expr;)*) => {
        &[$(
            (concat!("Foreach", $name, "Scalar"), X, |k| each_scalar(k, "scalar", $f)),
            (concat!("Foreach", $name, "ScalarV2"), X, |k| each_scalar(k, "scalar", $f)),
            (concat!("Foreach", $name, "ScalarList"), X, |k| each_scalar(k, "scalars", $f)),
        )*]
    };
}

pub(super) static UNARY: &[Row] = unary! {
    "ForeachAbs" f64::abs; "ForeachAcos" f64::acos; "ForeachAsin" f64::asin; "ForeachAtan" f64::atan; "ForeachCos" f64::cos;
    "ForeachCosh" f64::cosh; "ForeachErf" sp::erf; "ForeachErfc" sp::erfc; "ForeachExp" f64::exp; "ForeachExpm1" f64::exp_m1;
    "ForeachLog" f64::ln; "ForeachLog10" f64::log10; "ForeachLog1p" f64::ln_1p; "ForeachLog2" f64::log2;
    "ForeachNeg" |x| -x; "ForeachReciprocal" |x| 1.0 / x; "ForeachSigmoid" sp::sigmoid; "ForeachSign" |x| if x == 0.0 { 0.0 } else { x.signum() };
    "ForeachSin" f64::sin; "ForeachSinh" f64::sinh; "ForeachSqrt" f64::sqrt; "ForeachTan" f64::tan; "ForeachTanh" f64::tanh;
};

pub(super) static SCALAR: &[Row] = scalar! {
    "Add" |x, s| x + s; "Sub" |x, s| x - s; "Mul" |x, s| x * s; "Div" |x, s| x / s; "Pow" f64::powf;
    "Maximum" f64::max; "Minimum" f64::min;
};

pub(super) static OPS: &[Row] = &[
    ("ForeachAddList", XX, |k| each_pair(k, Some("alpha"), |a, b, s| a + s * b)),
    ("ForeachAddListV2", XX, |k| each_pair(k, Some("alpha"), |a, b, s| a + s * b)),
    ("ForeachSubList", XX, |k| each_pair(k, Some("alpha"), |a, b, s| a - s * b)),
    ("ForeachSubListV2", XX, |k| each_pair(k, Some("alpha"), |a, b, s| a - s * b)),
    ("ForeachMulList", XX, |k| each_pair(k, None, |a, b, _| a * b)),
    ("ForeachDivList", XX, |k| each_pair(k, None, |a, b, _| a / b)),
    ("ForeachPowList", XX, |k| each_pair(k, None, |a, b, _| a.powf(b))),
    ("ForeachMaximumList", XX, |k| each_pair(k, None, |a, b, _| a.max(b))),
    ("ForeachMinimumList", XX, |k| each_pair(k, None, |a, b, _| a.min(b))),
    ("ForeachLerpScalar", XX, |k| each_pair(k, Some("weight"), lerp)),
    ("ForeachLerpList", XX, lerp_list),
    ("ForeachPowScalarAndTensor", X, |k| each_scalar(k, "scalar", |x, s| s.powf(x))),
    ("ForeachAddcmulScalar", XXX, |k| each_three(k, "scalar", |a, b| a * b)),
    ("ForeachAddcmulScalarV2", XXX, |k| each_three(k, "scalar", |a, b| a * b)),
    ("ForeachAddcmulScalarList", XXX, |k| each_three(k, "scalars", |a, b| a * b)),
    ("ForeachAddcdivScalar", XXX, |k| each_three(k, "scalar", |a, b| a / b)),
    ("ForeachAddcdivScalarV2", XXX, |k| each_three(k, "scalar", |a, b| a / b)),
    ("ForeachAddcdivScalarList", XXX, |k| each_three(k, "scalars", |a, b| a / b)),
    ("ForeachCopy", "x:FDIB out:FDIB lists(x,out)", copy),
    ("ForeachZeroInplace", "x:FDIB inout(x)", zero),
    ("ForeachNonFiniteCheckAndUnscale", "scaledGrads:F inout(scaledGrads,foundInf) foundInf:S", unscale),
    (
        "AmpUpdateScale",
        "currentScale:S growthTracker:i foundInf:S updatedScale:S updatedGrowthTracker:i \
         same(currentScale,growthTracker) out(updatedScale,updatedGrowthTracker)",
        update_scale,
    ),
    ("ApplyAdamWV2", "varRef:F grad:F same(varRef,mRef,vRef,grad) null(maxGradNormOptionalRef)", adamw_v2),
    ("ApplyAdamW", "varRef:F grad:F same(varRef,mRef,vRef,grad) inout(maxGradNormOptional)", adamw_v1),
];
