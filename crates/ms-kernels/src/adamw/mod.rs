//! The AdamW step.

mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use half::bf16;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Result};
pub use ms_operands::AdamW as Hyper;

/// The factors that a step's loop uses, from [`Hyper`] in f64.
#[derive(Clone, Copy, Debug)]
struct Factors {
    grad_scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `1 − lr·weight_decay`.
    keep: f32,
    /// `−lr / (1 − beta1^t)`.
    step_size: f32,
    /// `1 / (1 − beta2^t)`.
    unbias2: f32,
    eps: f32,
}

/// `base^exponent` by squaring: the same bits on every machine.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

impl Factors {
    fn new(hyper: &Hyper, grad_scale: f32) -> Self {
        Self {
            grad_scale,
            beta1: hyper.beta1 as f32,
            one_minus_beta1: (1.0 - hyper.beta1) as f32,
            beta2: hyper.beta2 as f32,
            one_minus_beta2: (1.0 - hyper.beta2) as f32,
            keep: (1.0 - hyper.lr * hyper.weight_decay) as f32,
            step_size: (-hyper.lr / (1.0 - power(hyper.beta1, hyper.step))) as f32,
            unbias2: (1.0 / (1.0 - power(hyper.beta2, hyper.step))) as f32,
            eps: hyper.eps as f32,
        }
    }
}

instances! {
    fn step_f32(p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], factors: &Factors) = body::step;
}

narrowing_instances! {
    fn step_with_model(
        p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], model: &mut [bf16], factors: &Factors,
    ) = body::step_with_model;
}

const UNIT: usize = 16 * 1024;

/// One step of AdamW, and the bf16 copy of the weights that the model computes with.
///
/// With `g = grad_scale · g`:
/// `m = b1·m + (1−b1)·g`, `v = b2·v + (1−b2)·g²`,
/// `p = p·(1 − lr·wd) − lr · (m/(1−b1^t)) / (sqrt(v/(1−b2^t)) + eps)`
///
/// | arg          | shape | dtype | meaning                                             |
/// |--------------|-------|-------|-----------------------------------------------------|
/// | `p`          | `[P]` | f32   | master weights                                      |
/// | `m`, `v`     | `[P]` | f32   | moments                                             |
/// | `g`          | `[P]` | f32   | gradients                                           |
/// | `grad_scale` | -     | f32   | clip factor and inverse loss scale                  |
/// | `model`      | `[P]` | bf16  | gets the new weights rounded to nearest even, if given |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand is not as long as `p`.
///
/// # Source
/// Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, with the decay not scaled by the schedule twice, as in
/// PyTorch's `AdamW`.
pub fn step(
    cpu: &Cpu,
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    g: &[f32],
    grad_scale: f32,
    model: Option<&mut [bf16]>,
    hyper: &Hyper,
) -> Result<()> {
    const OP: &str = "adamw::step";
    let len = p.len();
    expect_len(OP, "m", len, m.len())?;
    expect_len(OP, "v", len, v.len())?;
    expect_len(OP, "g", len, g.len())?;
    if let Some(model) = &model {
        expect_len(OP, "model", len, model.len())?;
    }
    let factors = Factors::new(hyper, grad_scale);
    let (p, m, v) = (Disjoint::new(p), Disjoint::new(m), Disjoint::new(v));
    let model = model.map(Disjoint::new);
    cpu.for_each_unit(len.div_ceil(UNIT), |u| {
        let (at, n) = (u * UNIT, UNIT.min(len - u * UNIT));
        // SAFETY: a unit takes its own elements.
        let (p, m, v) = unsafe { (p.part(at, n), m.part(at, n), v.part(at, n)) };
        let g = &g[at..at + n];
        match &model {
            None => step_f32(cpu.isa(), p, m, v, g, &factors),
            Some(model) => {
                // SAFETY: as above.
                let model = unsafe { model.part(at, n) };
                step_with_model(cpu.isa(), p, m, v, g, model, &factors);
            }
        }
    });
    Ok(())
}
