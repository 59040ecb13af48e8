//! The step of stochastic gradient descent with momentum.

#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::{Cpu, Result};
pub use ms_operands::Sgd as Hyper;

mod body {
    #[inline(always)]
    pub(super) fn step(p: &mut [f32], m: &mut [f32], g: &[f32], [scale, decay, momentum, lr]: [f32; 4]) {
        let n = p.len();
        let (m, g) = (&mut m[..n], &g[..n]);
        for i in 0..n {
            let d = decay.mul_add(p[i], scale * g[i]);
            m[i] = momentum.mul_add(m[i], d);
            p[i] = (-lr).mul_add(m[i], p[i]);
        }
    }
}

instances! {
    fn step_part(p: &mut [f32], m: &mut [f32], g: &[f32], factors: [f32; 4]) = body::step;
}

const UNIT: usize = 16 * 1024;

/// One step: `d = grad_scale · g + wd · p`, `m = momentum · m + d`, `p = p − lr · m`.
///
/// | arg          | shape | dtype | meaning                                     |
/// |--------------|-------|-------|---------------------------------------------|
/// | `p`          | `[P]` | f32   | master weights                              |
/// | `m`          | `[P]` | f32   | momentum, 0 before the first step           |
/// | `g`          | `[P]` | f32   | gradients                                   |
/// | `grad_scale` | -     | f32   | clip factor and inverse loss scale          |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand is not as long as `p`.
///
/// # Source
/// PyTorch's `torch.optim.SGD` without dampening and Nesterov's look ahead, as Megatron-LM `core_r0.8.0` calls it.
pub fn step(
    cpu: &Cpu,
    p: &mut [f32],
    m: &mut [f32],
    g: &[f32],
    grad_scale: f32,
    hyper: &Hyper,
) -> Result<()> {
    const OP: &str = "sgd::step";
    let len = p.len();
    expect_len(OP, "m", len, m.len())?;
    expect_len(OP, "g", len, g.len())?;
    let factors = [grad_scale, hyper.weight_decay as f32, hyper.momentum as f32, hyper.lr as f32];
    let (p, m) = (Disjoint::new(p), Disjoint::new(m));
    cpu.for_each_unit(len.div_ceil(UNIT), |u| {
        let (at, n) = (u * UNIT, UNIT.min(len - u * UNIT));
        // SAFETY: a unit takes its own elements.
        let (p, m) = unsafe { (p.part(at, n), m.part(at, n)) };
        step_part(cpu.isa(), p, m, &g[at..at + n], factors);
    });
    Ok(())
}
