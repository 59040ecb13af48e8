//! Activations and their gradients.

use super::Row;
use super::elementwise::{output, un};
use super::reduce::{rows, wrap};
use super::special as sp;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

fn at(k: &Call, i: usize) -> Result<&View, Fault> {
    k.t(k.decl.params[i].name)
}

/// dx = f(dy, x): the first two parameters.
fn grad(k: &Call, f: impl Fn(f64, f64) -> f64) -> Outcome {
    let out = output(k)?;
    let (g, x) = (k.spread(at(k, 0)?, &out.dims)?.floats(), k.spread(at(k, 1)?, &out.dims)?.floats());
    k.put_view(out, &Values::F(g.iter().zip(&x).map(|(g, x)| f(*g, *x)).collect()))
}

fn map(k: &Call, f: impl Fn(f64) -> f64) -> Outcome {
    let out = output(k)?;
    let x = k.spread(at(k, 0)?, &out.dims)?.floats();
    k.put_view(out, &Values::F(x.into_iter().map(f).collect()))
}

fn s(k: &Call, name: &str) -> Result<f64, Fault> {
    Ok(k.scalar(name)?.value.f(0))
}

fn elu(k: &Call) -> Outcome {
    let (a, scale, inner) = (s(k, "alpha")?, s(k, "scale")?, s(k, "inputScale")?);
    map(k, |x| if x > 0.0 { scale * x } else { scale * a * (x * inner).exp_m1() })
}

fn elu_grad(k: &Call) -> Outcome {
    let (a, scale, inner) = (s(k, "alpha")?, s(k, "scale")?, s(k, "inputScale")?);
    let result = k.flag("isResult")?;
    let out = output(k)?;
    let g = k.spread(k.t("gradOutput")?, &out.dims)?.floats();
    let x = k.spread(k.t("selfOrResult")?, &out.dims)?.floats();
    let f = |(g, x): (&f64, &f64)| {
        if result {
            if *x <= 0.0 { g * inner * (x + scale * a) } else { g * scale }
        } else if *x <= 0.0 {
            g * inner * scale * a * (x * inner).exp()
        } else {
            g * scale
        }
    };
    k.put_view(out, &Values::F(g.iter().zip(&x).map(f).collect()))
}

/// Halves along `dim`.
fn halves(k: &Call, x: &View) -> Result<(Vec<f64>, usize, i64), Fault> {
    let dim = wrap(k.int("dim")?, x.dims.len())? as i64;
    let (moved, n) = rows(x, &[dim])?;
    Ok((moved.load(k.decl.name)?.floats(), n, dim))
}

/// y = f(a, b) of the two halves of `dim`.
fn gated(k: &Call, out: &str, f: impl Fn(f64, f64) -> f64) -> Outcome {
    let (x, n, d) = halves(k, at(k, 0)?)?;
    let h = n / 2;
    let v = x.chunks(n.max(1)).flat_map(|row| (0..h).map(|i| f(row[i], row[h + i])).collect::<Vec<_>>());
    let (out, _) = rows(k.t(out)?, &[d])?;
    k.put_view(&out, &Values::F(v.collect()))
}

fn swiglu_grad(k: &Call) -> Outcome {
    gated_grad(k, "yGrad", "x", "out", |g, a, b| (g * b * sp::silu_grad(a), g * sp::silu(a)))
}

fn gated_grad(k: &Call, dy: &str, x: &str, out: &str, f: impl Fn(f64, f64, f64) -> (f64, f64)) -> Outcome {
    let (v, n, d) = halves(k, k.t(x)?)?;
    let (g, _) = rows(k.t(dy)?, &[d])?;
    let g = g.load(k.decl.name)?.floats();
    let h = n / 2;
    let mut dx = vec![0.0; v.len()];
    for (r, row) in v.chunks(n.max(1)).enumerate() {
        for i in 0..h {
            (dx[r * n + i], dx[r * n + h + i]) = f(g[r * h + i], row[i], row[h + i]);
        }
    }
    let (out, _) = rows(k.t(out)?, &[d])?;
    k.put_view(&out, &Values::F(dx))
}

/// The half that `activateLeft` names goes through GELU, the other multiplies it.
fn geglu(k: &Call) -> Outcome {
    let left = k.flag("activateLeft").unwrap_or(false);
    let gelu = if k.int("approximate")? == 1 { sp::gelu_tanh } else { sp::gelu };
    gated(k, "out", |a, b| if left { gelu(a) * b } else { a * gelu(b) })?;
    gated(k, "outGelu", |a, b| if left { gelu(a) } else { gelu(b) })
}

fn geglu_grad(k: &Call) -> Outcome {
    let left = k.flag("activateLeft").unwrap_or(false);
    let tanh = k.int("approximate")? == 1;
    let f = if tanh { sp::gelu_tanh } else { sp::gelu };
    let df = if tanh { sp::gelu_tanh_grad } else { sp::gelu_grad };
    gated_grad(k, "gradOutput", "self", "gradInput", |g, a, b| {
        if left { (g * b * df(a), g * f(a)) } else { (g * f(b), g * a * df(b)) }
    })
}

fn prelu_grad(k: &Call) -> Outcome {
    let dims = &k.t("self")?.dims;
    let (g, x, w) = (k.f("gradOutput")?, k.f("self")?, k.f("weight")?);
    let inner = channel(dims, w.len());
    let mut dw = vec![0.0; w.len()];
    let mut dx = g.clone();
    for i in (0..x.len()).filter(|i| x[*i] <= 0.0) {
        let c = i / inner % w.len();
        dw[c] += g[i] * x[i];
        dx[i] = g[i] * w[c];
    }
    k.put("gradInput", &Values::F(dx))?;
    k.put("gradWeight", &Values::F(dw))
}

/// Negative slopes between two bounds: at random in training (the noise holds them), their mean otherwise.
fn rrelu(k: &Call) -> Outcome {
    let (x, noise) = (k.f("self")?, k.t("noise")?);
    let (low, high) = (k.scalar("lower")?.value.f(0), k.scalar("upper")?.value.f(0));
    let training = k.flag("training")?;
    let seed = k.int("seed")? as u64;
    let slope = |i: usize| {
        let draw = crate::knobs::noise(seed ^ (i as u64) << 17) as f64 / u64::MAX as f64;
        if training { low + (high - low) * draw } else { (low + high) / 2.0 }
    };
    let slopes: Vec<f64> = (0..x.len()).map(|i| if x[i] <= 0.0 { slope(i) } else { 1.0 }).collect();
    let y = Values::F(x.iter().zip(&slopes).map(|(x, s)| x * s).collect());
    if training {
        k.put_view(noise, &Values::F(slopes))?;
    }
    if k.value("out").is_some() { k.put("out", &y) } else { k.put("self", &y) }
}

fn logit(k: &Call) -> Outcome {
    let eps = k.num("eps")?;
    let one = |x: f64| {
        let x = if eps >= 0.0 { x.clamp(eps, 1.0 - eps) } else { x };
        (x / (1.0 - x)).ln()
    };
    k.put("out", &Values::F(k.f("input")?.into_iter().map(one).collect()))
}

fn logit_grad(k: &Call) -> Outcome {
    let eps = k.num("eps")?;
    let (x, g) = (k.f("x")?, k.f("dy")?);
    let inside = |x: f64| eps < 0.0 || (eps..=1.0 - eps).contains(&x);
    let one = |(x, g): (&f64, &f64)| if inside(*x) { g / (x * (1.0 - x)) } else { 0.0 };
    k.put("out", &Values::F(x.iter().zip(&g).map(one).collect()))
}

fn prelu(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let (x, w) = (k.f("self")?, k.f("weight")?);
    let inner = channel(&out.dims, w.len());
    k.put(
        "out",
        &Values::F(
            x.iter()
                .enumerate()
                .map(|(i, x)| if *x > 0.0 { *x } else { w[i / inner % w.len()] * x })
                .collect(),
        ),
    )
}

fn channel(dims: &[i64], weights: usize) -> usize {
    if weights == 1 { 1 } else { dims.iter().skip(2).product::<i64>().max(1) as usize }
}

fn mish(x: f64) -> f64 {
    x * sp::softplus(x).tanh()
}

fn mish_grad(x: f64) -> f64 {
    let t = sp::softplus(x).tanh();
    t + x * sp::sigmoid(x) * (1.0 - t * t)
}

fn fast_gelu(x: f64) -> f64 {
    x * (0.851 * (x - x.abs())).exp() / (1.0 + (-1.702 * x.abs()).exp())
}

fn log_sigmoid(x: f64) -> f64 {
    -sp::softplus(-x)
}

fn hardswish_grad(k: &Call) -> Outcome {
    grad(k, |g, x| {
        if x <= -3.0 {
            0.0
        } else if x < 3.0 {
            g * (x / 3.0 + 0.5)
        } else {
            g
        }
    })
}

const X: &str = "self:FD";
const IN: &str = "selfRef:FD inout(selfRef)";
const G: &str = "gradOutput:FD out(gradInput)";

pub(super) static OPS: &[Row] = &[
    ("Silu", X, |k| un(k, sp::silu)),
    ("SiluBackward", G, |k| grad(k, |g, x| g * sp::silu_grad(x))),
    ("Gelu", X, |k| un(k, sp::gelu)),
    ("GeluBackward", G, |k| grad(k, |g, x| g * sp::gelu_grad(x))),
    ("GeluV2", "x:FD", |k| if k.int("approximate")? == 1 { map(k, sp::gelu_tanh) } else { map(k, sp::gelu) }),
    ("GeluBackwardV2", G, |k| {
        if k.text("approximate")? == "tanh" {
            grad(k, |g, x| g * sp::gelu_tanh_grad(x))
        } else {
            grad(k, |g, x| g * sp::gelu_grad(x))
        }
    }),
    ("FastGelu", X, |k| un(k, fast_gelu)),
    ("FastGeluBackward", G, |k| {
        grad(k, |g, x| {
            let h = 1e-5;
            g * (fast_gelu(x + h) - fast_gelu(x - h)) / (2.0 * h)
        })
    }),
    ("SigmoidBackward", G, |k| grad(k, |g, y| g * y * (1.0 - y))),
    ("TanhBackward", G, |k| grad(k, |g, y| g * (1.0 - y * y))),
    ("Elu", X, elu),
    ("InplaceElu", IN, elu),
    ("Celu", X, |k| {
        let a = s(k, "alpha")?;
        map(k, |x| x.max(0.0) + (a * (x / a).exp_m1()).min(0.0))
    }),
    ("InplaceCelu", IN, |k| {
        let a = s(k, "alpha")?;
        map(k, |x| x.max(0.0) + (a * (x / a).exp_m1()).min(0.0))
    }),
    ("Selu", X, |k| map(k, selu)),
    ("InplaceSelu", IN, |k| map(k, selu)),
    (
        "EluBackward",
        "gradOutput:FD type(gradOutput,selfOrResult,gradInput) same(gradOutput,selfOrResult,gradInput) out(gradInput)",
        elu_grad,
    ),
    ("LeakyRelu", X, |k| {
        let a = s(k, "negativeSlope")?;
        map(k, |x| if x > 0.0 { x } else { a * x })
    }),
    ("InplaceLeakyRelu", IN, |k| {
        let a = s(k, "negativeSlope")?;
        map(k, |x| if x > 0.0 { x } else { a * x })
    }),
    ("LeakyReluBackward", "gradOutput:FD", |k| {
        let a = s(k, "negativeSlope")?;
        grad(k, |g, x| if x > 0.0 { g } else { a * g })
    }),
    ("Threshold", "self:FDI", |k| {
        let (t, v) = (s(k, "threshold")?, s(k, "value")?);
        map(k, |x| if x > t || x.is_nan() { x } else { v })
    }),
    ("InplaceThreshold", "selfRef:FDI inout(selfRef)", |k| {
        let (t, v) = (s(k, "threshold")?, s(k, "value")?);
        map(k, |x| if x > t || x.is_nan() { x } else { v })
    }),
    ("ThresholdBackward", "gradOutput:FDI", |k| {
        let t = s(k, "threshold")?;
        grad(k, |g, x| if x > t { g } else { 0.0 })
    }),
    ("Hardtanh", "self:FDI", |k| {
        let (a, b) = (s(k, "clipValueMin")?, s(k, "clipValueMax")?);
        map(k, |x| x.clamp(a, b))
    }),
    ("InplaceHardtanh", "selfRef:FDI inout(selfRef)", |k| {
        let (a, b) = (s(k, "clipValueMin")?, s(k, "clipValueMax")?);
        map(k, |x| x.clamp(a, b))
    }),
    ("HardtanhBackward", "gradOutput:FD", |k| {
        let (a, b) = (s(k, "min")?, s(k, "max")?);
        grad(k, |g, x| if x > a && x < b { g } else { 0.0 })
    }),
    ("Hardsigmoid", X, |k| map(k, |x| (x / 6.0 + 0.5).clamp(0.0, 1.0))),
    ("InplaceHardsigmoid", "self:FD inout(self)", |k| map(k, |x| (x / 6.0 + 0.5).clamp(0.0, 1.0))),
    ("HardsigmoidBackward", "gradOutput:FD", |k| {
        grad(k, |g, x| if x > -3.0 && x < 3.0 { g / 6.0 } else { 0.0 })
    }),
    ("Hardswish", X, |k| map(k, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0)),
    ("InplaceHardswish", "self:FD inout(self)", |k| map(k, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0)),
    ("HardswishBackward", "gradOutput:FD", hardswish_grad),
    ("HardswishBackwardV2", "gradOutput:FD", hardswish_grad),
    ("Hardshrink", X, |k| {
        let l = s(k, "lambd")?;
        map(k, |x| if x.abs() > l { x } else { 0.0 })
    }),
    ("HardshrinkBackward", G, |k| {
        let l = s(k, "lambd")?;
        grad(k, |g, x| if x.abs() > l { g } else { 0.0 })
    }),
    ("Softshrink", X, |k| {
        let l = s(k, "lambd")?;
        map(k, |x| {
            if x > l {
                x - l
            } else if x < -l {
                x + l
            } else {
                0.0
            }
        })
    }),
    ("SoftshrinkBackward", G, |k| {
        let l = s(k, "lambda")?;
        grad(k, |g, x| if x.abs() > l { g } else { 0.0 })
    }),
    ("Softplus", X, |k| {
        let (b, t) = (s(k, "beta")?, s(k, "threshold")?);
        map(k, |x| if x * b > t { x } else { sp::softplus(x * b) / b })
    }),
    ("SoftplusBackward", G, |k| {
        let (b, t) = (s(k, "beta")?, s(k, "threshold")?);
        grad(k, |g, x| if x * b > t { g } else { g * sp::sigmoid(x * b) })
    }),
    ("Mish", X, |k| un(k, mish)),
    ("InplaceMish", IN, |k| un(k, mish)),
    ("MishBackward", G, |k| grad(k, |g, x| g * mish_grad(x))),
    ("LogSigmoid", X, |k| un(k, log_sigmoid)),
    ("LogSigmoidForward", "self:FD type(self,out) same(self,out) out(out,buffer)", |k| {
        let x = k.f("self")?;
        k.put("out", &Values::F(x.iter().map(|x| log_sigmoid(*x)).collect()))?;
        k.put_opt("buffer", &Values::F(x.iter().map(|x| (-x.abs()).exp()).collect()))
    }),
    (
        "LogSigmoidBackward",
        "gradOutput:FD type(gradOutput,self,gradInput) same(gradOutput,self,gradInput) out(gradInput) null(buffer)",
        |k| grad(k, |g, x| g * sp::sigmoid(-x)),
    ),
    ("Prelu", X, prelu),
    ("PreluBackward", "gradOutput:FD self:FD weight:FD same(gradOutput,self)", prelu_grad),
    ("RReluWithNoise", "self:F noise:F inout(noise)", rrelu),
    ("InplaceRReluWithNoise", "self:F noise:F inout(self,noise)", rrelu),
    ("Logit", "input:F", logit),
    ("LogitGrad", "x:F dy:F same(x,dy)", logit_grad),
    ("Glu", "self:FD even(self,dim)", |k| gated(k, "out", |a, b| a * sp::sigmoid(b))),
    ("GluBackward", "gradOut:FD even(self,dim) out(out)", |k| {
        gated_grad(k, "gradOut", "self", "out", |g, a, b| {
            let t = sp::sigmoid(b);
            (g * t, g * a * t * (1.0 - t))
        })
    }),
    ("SwiGlu", "x:F contig(x) even(x,dim) type(x,out)", |k| gated(k, "out", |a, b| sp::silu(a) * b)),
    ("SwiGluGrad", "x:F yGrad:F contig(x,yGrad) even(x,dim) same(x,out)", swiglu_grad),
    ("GeGlu", "self:F even(self,dim)", geglu),
    ("GeGluV3", "self:F even(self,dim)", geglu),
    ("GeGluBackward", "self:F out(gradInput)", geglu_grad),
    ("GeGluV3Backward", "self:F out(gradInput)", geglu_grad),
];

fn selu(x: f64) -> f64 {
    let (a, scale) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
    if x > 0.0 { scale * x } else { scale * a * x.exp_m1() }
}
