//! Operators by type name, the older way: only those that the vendor's adapter still runs like that.

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
    if name != "ApplyAdamW" {
        return Err(fail(
            100_024,
            &format!("aclopCompileAndExecute: the emulator has no operator of type {name}"),
        ));
    }
    let on = |key: &str| matches!(attributes.get(key), Some(Attribute::Int(v)) if *v != 0);
    let (greatest, maximize) = (on("amsgrad"), on("maximize"));
    if inputs.len() < 11 || outputs.len() < 3 {
        return Err(fail(100_000, &format!("{name}: {} inputs, {} outputs", inputs.len(), outputs.len())));
    }
    let mut accesses = Vec::new();
    for (list, write) in [(&inputs, false), (&outputs, true)] {
        for view in list.iter().filter(|v| memory::device_of(v.base).is_some()) {
            let (start, len) = view.bytes();
            accesses.push(Access { start, len, write, view: None });
        }
    }
    let who = "ApplyAdamW";
    // Numbers on the host are read now: their memory is the caller's.
    let numbers: Vec<Option<f64>> = inputs
        .iter()
        .map(|v| {
            if memory::device_of(v.base).is_none() && v.base != 0 {
                load(v, who).ok().map(|n| n.f(0))
            } else {
                None
            }
        })
        .collect();
    let run = Box::new(move || {
        let tensor = |i: usize| load(&inputs[i], who).map(Values::floats);
        let number = |i: usize| match numbers[i] {
            Some(n) => Ok(n),
            None => load(&inputs[i], who).map(|v| v.f(0)),
        };
        let (mut x, mut m, mut v, g) = (tensor(0)?, tensor(1)?, tensor(2)?, tensor(10)?);
        let (p1, p2, lr, decay) = (number(3)?, number(4)?, number(5)?, number(6)?);
        let (b1, b2, eps) = (number(7)?, number(8)?, number(9)?);
        let mut top = if greatest && inputs.len() > 11 { Some(tensor(11)?) } else { None };
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
        outputs[0].store(&Values::F(x), who)?;
        outputs[1].store(&Values::F(m), who)?;
        outputs[2].store(&Values::F(v), who)
    });
    sched::submit(stream.id, &accesses, "aclopCompileAndExecute(ApplyAdamW)", Work::Run(run)).map(drop)
}
