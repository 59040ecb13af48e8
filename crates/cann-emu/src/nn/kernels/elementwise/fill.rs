//! Outputs that take their values from elsewhere: a constant, another tensor, one of two by a mask.

use super::{input, kind, output, repeat};
use crate::nn::exec::{Call, Outcome};
use crate::nn::tensor::Values;

pub(super) fn zero(k: &Call) -> Outcome {
    fill_all(k, 0)
}

pub(super) fn one(k: &Call) -> Outcome {
    fill_all(k, 1)
}

fn fill_all(k: &Call, v: i64) -> Outcome {
    let out = output(k)?;
    k.put_view(out, &Values::I(vec![v; out.numel()]))
}

pub(super) fn fill_scalar(k: &Call) -> Outcome {
    let out = output(k)?;
    k.put_view(out, &repeat(k.scalar("value")?, out.numel()))
}

pub(super) fn fill_tensor(k: &Call) -> Outcome {
    let out = k.t("selfRef")?;
    let v = k.spread(k.t("value")?, &out.dims)?;
    k.put_view(out, &v)
}

pub(super) fn copy(k: &Call) -> Outcome {
    let out = k.t("selfRef")?;
    let v = k.spread(k.t("src")?, &out.dims)?;
    k.put_view(out, &v)
}

pub(super) fn cast(k: &Call) -> Outcome {
    let out = output(k)?;
    let v = k.spread(input(k)?, &out.dims)?;
    k.put_view(out, &v)
}

pub(super) fn where_(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let c = k.spread(k.t("condition")?, &out.dims)?;
    let (a, b) = (k.spread(k.t("self")?, &out.dims)?, k.spread(k.t("other")?, &out.dims)?);
    let n = out.numel();
    let v = match kind(&a, &b) {
        0 => Values::I((0..n).map(|i| if c.b(i) { a.i(i) } else { b.i(i) }).collect()),
        2 => Values::C((0..n).map(|i| if c.b(i) { a.c(i) } else { b.c(i) }).collect()),
        _ => Values::F((0..n).map(|i| if c.b(i) { a.f(i) } else { b.f(i) }).collect()),
    };
    k.put_view(out, &v)
}

pub(super) fn masked_fill(k: &Call) -> Outcome {
    let out = k.t("selfRef")?;
    let mask = k.spread(k.t("mask")?, &out.dims)?;
    let mut v = out.load(k.decl.name)?;
    let value = match k.opt("value") {
        Ok(Some(view)) => view.load(k.decl.name)?,
        _ => k.scalar("value")?.value.clone(),
    };
    for i in 0..v.len() {
        if mask.b(i) {
            v.put(i, &value, 0);
        }
    }
    k.put_view(out, &v)
}
