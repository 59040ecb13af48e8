//! Element by element.

use super::Row;
use crate::nn::exec::{Call, Outcome};
use crate::nn::tensor::Values;

pub(super) static OPS: &[Row] = &[("InplaceZero", "inout(selfRef)", zero), ("InplaceCopy", "inout(selfRef) bcast(src>selfRef)", copy)];

fn zero(k: &Call) -> Outcome {
    let n = k.t("selfRef")?.numel();
    k.put("selfRef", &Values::I(vec![0; n]))
}

fn copy(k: &Call) -> Outcome {
    let out = k.t("selfRef")?;
    let v = k.spread(k.t("src")?, &out.dims)?;
    k.put_view(out, &v)
}
