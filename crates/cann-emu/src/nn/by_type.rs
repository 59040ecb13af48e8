//! Operators by type name, the older way: only those that the vendor's adapter still runs in this way.

use super::kernels::{gated, memory_cell, typed};
use super::tensor::{Values, View};
use crate::api::graph::Attribute;
use crate::memory;
use crate::race::Access;
use crate::report::fail;
use crate::sched::{self, StreamHandle, Work};
use std::collections::HashMap;

/// The values of an operand on the device, or on the host, where scalars may lie.
fn load(view: &View, who: &str) -> Result<Values, i32> {
    if memory::device_of(view.base).is_some() {
        return view.load(who);
    }
    if view.numel() == 0 || view.base == 0 {
        return Ok(Values::F(Vec::new()));
    }
    // SAFETY: the program gives a host buffer of the described shape.
    let one = unsafe {
        match view.dtype {
            super::tensor::Dtype::F32 => {
                Values::F(vec![f64::from((view.base as *const f32).read_unaligned())])
            }
            super::tensor::Dtype::F64 => Values::F(vec![(view.base as *const f64).read_unaligned()]),
            super::tensor::Dtype::I32 => {
                Values::I(vec![i64::from((view.base as *const i32).read_unaligned())])
            }
            super::tensor::Dtype::I64 => Values::I(vec![(view.base as *const i64).read_unaligned()]),
            other => return Err(fail(100_026, &format!("{who}: a host operand of {other:?}"))),
        }
    };
    Ok(one)
}

/// What an operator by type name works on; a left-out input has no address.
pub(super) struct Operands {
    inputs: Vec<View>,
    outputs: Vec<View>,
    attributes: HashMap<String, Attribute>,
    /// Numbers on the host are read when the operator is entered: their memory is the caller's.
    numbers: Vec<Option<f64>>,
    who: &'static str,
}

impl Operands {
    /// The values of an input.
    pub(super) fn input(&self, i: usize) -> Result<Vec<f64>, i32> {
        match self.inputs.get(i) {
            Some(view) => load(view, self.who).map(Values::floats),
            None => Err(fail(100_000, &format!("{}: no input {i}", self.who))),
        }
    }
    /// The dims of an input.
    pub(super) fn dims(&self, i: usize) -> Vec<usize> {
        self.inputs.get(i).map(|v| v.dims.iter().map(|d| *d as usize).collect()).unwrap_or_default()
    }
    /// Whether an input is there.
    pub(super) fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|v| v.base != 0 && v.numel() > 0)
    }
    /// A number on the host or the device.
    pub(super) fn number(&self, i: usize) -> Result<f64, i32> {
        match self.numbers.get(i).copied().flatten() {
            Some(n) => Ok(n),
            None => Ok(self.input(i)?[0]),
        }
    }
    /// Whether an attribute is set.
    pub(super) fn is_on(&self, key: &str) -> bool {
        matches!(self.attributes.get(key), Some(Attribute::Int(v)) if *v != 0)
    }
    /// A float attribute, or what it is when left out.
    pub(super) fn float(&self, key: &str, other: f64) -> f64 {
        match self.attributes.get(key) {
            Some(Attribute::Float(v)) => f64::from(*v),
            _ => other,
        }
    }
    /// Elements of an output.
    pub(super) fn out_len(&self, i: usize) -> usize {
        self.outputs.get(i).map_or(0, View::numel)
    }
    /// Writes an output, if the caller wants it.
    pub(super) fn put(&self, i: usize, values: Vec<f64>) -> Result<(), i32> {
        match self.outputs.get(i).filter(|v| v.base != 0 && v.numel() > 0) {
            Some(view) => view.store(&Values::F(values), self.who),
            None => Ok(()),
        }
    }
}

type Kernel = fn(&Operands) -> Result<(), i32>;

/// Name, least inputs, outputs, kernel.
const TYPES: [(&str, usize, usize, Kernel); 15] = [
    ("ApplyAdamW", 11, 3, adamw),
    ("BNTrainingReduce", 1, 2, typed::channel_sums),
    ("Cdist", 2, 1, typed::cdist),
    ("CdistGrad", 4, 1, typed::cdist_grad),
    ("DynamicGRUV2", 7, 6, gated::forward),
    ("DynamicGRUV2Grad", 12, 6, gated::backward),
    ("DynamicRNN", 6, 8, memory_cell::stacked),
    ("DynamicRNNGrad", 16, 5, memory_cell::stacked_grad),
    ("DynamicRNNV2", 7, 8, memory_cell::apart),
    ("DynamicRNNV2Grad", 16, 6, memory_cell::apart_grad),
    ("Fill", 2, 1, typed::fill),
    ("LeftShift", 2, 1, typed::shift_left),
    ("RightShift", 2, 1, typed::shift_right),
    ("Svd", 1, 3, typed::svd),
    ("SyncBatchNormGatherStats", 5, 4, typed::gather_sums),
];

/// Names of the types that the emulator has.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|t| t.0)
}

/// Enters an operator into a stream.
///
/// # Errors
/// 100024 for a type that the emulator does not have.
pub fn launch(
    name: &str,
    inputs: Vec<View>,
    outputs: Vec<View>,
    attributes: &HashMap<String, Attribute>,
    stream: &StreamHandle,
) -> Result<(), i32> {
    let Some((who, least, wanted, kernel)) = TYPES.into_iter().find(|t| t.0 == name) else {
        let text = format!("aclopCompileAndExecute: the emulator has no operator of type {name}");
        return Err(fail(100_024, &text));
    };
    if inputs.len() < least || outputs.len() < wanted {
        return Err(fail(100_000, &format!("{name}: {} inputs, {} outputs", inputs.len(), outputs.len())));
    }
    let mut accesses = Vec::new();
    for (list, write) in [(&inputs, false), (&outputs, true)] {
        for view in list.iter().filter(|v| memory::device_of(v.base).is_some()) {
            let (start, len) = view.bytes();
            accesses.push(Access { start, len, write, view: None });
        }
    }
    let on_host = |v: &View| memory::device_of(v.base).is_none() && v.base != 0 && v.numel() == 1;
    let numbers =
        inputs.iter().map(|v| if on_host(v) { load(v, who).ok().map(|n| n.f(0)) } else { None }).collect();
    let operands = Operands { inputs, outputs, attributes: attributes.clone(), numbers, who };
    let run = Box::new(move || kernel(&operands));
    sched::submit(stream.id, &accesses, who, Work::Run(run)).map(drop)
}

fn adamw(k: &Operands) -> Result<(), i32> {
    let (greatest, maximize) = (k.is_on("amsgrad"), k.is_on("maximize"));
    let (mut x, mut m, mut v, g) = (k.input(0)?, k.input(1)?, k.input(2)?, k.input(10)?);
    let (p1, p2, lr, decay) = (k.number(3)?, k.number(4)?, k.number(5)?, k.number(6)?);
    let (b1, b2, eps) = (k.number(7)?, k.number(8)?, k.number(9)?);
    let mut top = if greatest && k.inputs.len() > 11 { Some(k.input(11)?) } else { None };
    // The powers are those before this step.
    let (c1, c2) = (1.0 - p1 * b1, 1.0 - p2 * b2);
    for i in 0..x.len() {
        let g = if maximize { -g[i] } else { g[i] };
        x[i] *= 1.0 - lr * decay;
        m[i] = b1 * m[i] + (1.0 - b1) * g;
        v[i] = b2 * v[i] + (1.0 - b2) * g * g;
        let second = match &mut top {
            Some(t) => {
                t[i] = t[i].max(v[i]);
                t[i]
            }
            None => v[i],
        };
        x[i] -= lr / c1 * m[i] / ((second / c2).sqrt() + eps);
    }
    k.put(0, x)?;
    k.put(1, m)?;
    k.put(2, v)
}
