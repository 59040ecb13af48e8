//! Random numbers: a counter-based generator of the emulator's own; the device's stream is not published.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// A number of 64 bits for seed, offset and place.
fn draw(seed: i64, offset: i64, at: usize) -> u64 {
    let mut z = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (offset as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)
        ^ (at as u64).wrapping_mul(0x8cb9_2ba7_2f3d_8dd7);
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x1234_5678_9abc_def1);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

/// In [0, 1), of 24 bits: exact in f32.
fn unit(seed: i64, offset: i64, at: usize) -> f64 {
    (draw(seed, offset, at) >> 40) as f64 / f64::from(1u32 << 24)
}

fn normal(seed: i64, offset: i64, at: usize) -> f64 {
    let a = ((draw(seed, offset, 2 * at) >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
    let b = (draw(seed, offset, 2 * at + 1) >> 11) as f64 / (1u64 << 53) as f64;
    (-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()
}

/// Seed and offset, from numbers or from one-element tensors plus a number.
fn counter(k: &Call) -> Result<(i64, i64), Fault> {
    if let Ok(seed) = k.int("seed") {
        return Ok((seed, k.int("offset")?));
    }
    Ok((k.load("seedTensor")?.i(0), k.load("offsetTensor")?.i(0) + k.int("offset")?))
}

fn fill(k: &Call, out: &View, f: impl Fn(i64, i64, usize) -> f64) -> Outcome {
    let (seed, offset) = counter(k)?;
    k.put_view(out, &Values::F((0..out.numel()).map(|i| f(seed, offset, i)).collect()))
}

fn first(k: &Call) -> Result<&View, Fault> {
    k.t(k.decl.params[0].name)
}

fn uniform(k: &Call) -> Outcome {
    let (a, b) = (k.num("from")?, k.num("to")?);
    fill(k, first(k)?, |s, o, i| a + (b - a) * unit(s, o, i))
}

fn gauss(k: &Call) -> Outcome {
    let (mean, std) = (k.num("mean")?, k.num("std")?);
    fill(k, first(k)?, |s, o, i| mean + std * normal(s, o, i))
}

/// Means and deviations that are tensors or numbers.
fn gauss_of(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let side = |name: &str| -> Result<Vec<f64>, Fault> {
        match k.opt(name) {
            Ok(Some(view)) => Ok(k.spread(view, &out.dims)?.floats()),
            _ => Ok(vec![k.num(name)?; out.numel()]),
        }
    };
    let (mean, std) = (side("mean")?, side("std")?);
    fill(k, out, |s, o, i| mean[i] + std[i] * normal(s, o, i))
}

fn integers(k: &Call) -> Outcome {
    let (a, b) = (k.int("from")?, k.int("to")?);
    let (seed, offset) = counter(k)?;
    let out = first(k)?;
    let span = (b as i128 - a as i128).max(1) as u128;
    let v = (0..out.numel()).map(|i| (a as i128 + (u128::from(draw(seed, offset, i)) % span) as i128) as i64);
    k.put_view(out, &Values::I(v.collect()))
}

fn permutation(k: &Call) -> Outcome {
    let (seed, offset) = counter(k)?;
    let n = k.int("n")? as usize;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|i| draw(seed, offset, *i));
    k.put("out", &Values::I(order.into_iter().map(|i| i as i64).collect()))
}

fn multinomial(k: &Call) -> Outcome {
    let (seed, offset) = counter(k)?;
    let x = k.t("self")?;
    let n = *x.dims.last().unwrap_or(&1) as usize;
    let m = k.int("numsamples")? as usize;
    let again = k.flag("replacement")?;
    let w = x.load(k.decl.name)?.floats();
    let mut out = Vec::new();
    for (r, row) in w.chunks(n.max(1)).enumerate() {
        let mut row = row.to_vec();
        for s in 0..m {
            let total: f64 = row.iter().sum();
            let mut left = unit(seed, offset, r * m + s) * total;
            let mut pick = row.iter().rposition(|w| *w > 0.0).unwrap_or(0);
            for (i, w) in row.iter().enumerate() {
                if *w > 0.0 && left < *w {
                    pick = i;
                    break;
                }
                left -= w;
            }
            out.push(pick as i64);
            if !again {
                row[pick] = 0.0;
            }
        }
    }
    k.put("out", &Values::I(out))
}

/// One bit for each element, a one with probability 1 − prob.
fn mask(k: &Call) -> Outcome {
    let (seed, offset) = counter(k)?;
    let p = k.num("prob")?;
    let out = k.t("out")?;
    let byte = |i: usize| (0..8).map(|b| i64::from(unit(seed, offset, i * 8 + b) >= p) << b).sum();
    k.put("out", &Values::I((0..out.numel()).map(byte).collect()))
}

fn apply_mask(k: &Call) -> Outcome {
    let p = k.num("prob")?;
    let (x, bits) = (k.f("self")?, k.load("mask")?.ints());
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    let f = |(i, x): (usize, &f64)| if bits[i / 8] >> (i % 8) & 1 == 1 { x * scale } else { 0.0 };
    k.put("out", &Values::F(x.iter().enumerate().map(f).collect()))
}

fn dropout_v3(k: &Call) -> Outcome {
    let (seed, offset) = counter(k)?;
    let p = k.num("p")?;
    let x = k.f("input")?;
    let keep: Vec<bool> = (0..x.len()).map(|i| unit(seed, offset, i) >= p).collect();
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    let v = x.iter().zip(&keep).map(|(x, keep)| if *keep { x * scale } else { 0.0 });
    k.put("out", &Values::F(v.collect()))?;
    let to = k.t("maskOut")?;
    let byte = |i: usize| (0..8).map(|b| i64::from(keep.get(i * 8 + b).copied().unwrap_or(false)) << b).sum();
    k.put("maskOut", &Values::I((0..to.numel()).map(byte).collect()))
}

/// Ones with the given probability: a number, a scalar or a tensor.
fn bernoulli(k: &Call) -> Outcome {
    let out = if k.decl.name.contains("Inplace") { first(k)? } else { k.t("out")? };
    let p = match (k.opt("prob"), k.scalar("prob")) {
        (Ok(Some(view)), _) => k.spread(view, &out.dims)?.floats(),
        (_, Ok(s)) => vec![s.value.f(0); out.numel()],
        _ => k.f("self")?,
    };
    fill(k, out, |s, o, i| f64::from(u8::from(unit(s, o, i) < p[i])))
}

const IN: &str = "selfRef:FDIB self:FDIB inout(selfRef,self)";

pub(super) static OPS: &[Row] = &[
    ("InplaceUniform", IN, uniform),
    ("InplaceUniformTensor", IN, uniform),
    ("InplaceNormal", IN, gauss),
    ("InplaceNormalTensor", IN, gauss),
    ("NormalFloatFloat", "out:FD", gauss_of),
    ("NormalFloatTensor", "out:FD", gauss_of),
    ("NormalTensorFloat", "out:FD", gauss_of),
    ("NormalTensorTensor", "out:FD", gauss_of),
    ("InplaceRandom", IN, integers),
    ("InplaceRandomTensor", IN, integers),
    ("Randperm", "out:FDI", permutation),
    ("Multinomial", "self:FD", multinomial),
    ("MultinomialTensor", "self:FD", multinomial),
    ("DropoutGenMask", "out:U", mask),
    ("DropoutGenMaskV2", "out:U", mask),
    ("DropoutGenMaskV2Tensor", "out:U", mask),
    ("DropoutDoMask", "self:F mask:U", apply_mask),
    ("DropoutV3", "input:F null(optionalNoiseShape)", dropout_v3),
    ("InplaceBernoulli", IN, bernoulli),
    ("InplaceBernoulliTensor", IN, bernoulli),
    ("Bernoulli", "out:FDIB", bernoulli),
    ("BernoulliTensor", "out:FDIB", bernoulli),
];
