//! Softmax and cross-entropy over a vocabulary that may be sharded over ranks.
//!
//! Two passes: [`statistics`] gives each row's maximum, sum of exponentials and target logit for this shard; ranks combine
//! them with [`Row::merge`]; [`gradient`] then turns the logits into the gradient in place. [`whole`] does both for an
//! unsharded vocabulary, with the same bits and half the exponentials.

mod body;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::memory::{Scratch, with_scratch};
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Element, Result, float};

/// What a row of logits contributes to its loss.
///
/// Plain bytes, so that ranks can send it.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Row {
    /// Largest logit.
    pub max: f32,
    /// Sum of `exp(logit − max)`.
    pub sum_exp: f32,
    /// The target's logit; 0 on a shard that does not hold it.
    pub target: f32,
}

impl Row {
    /// The statistics of the row over both shards of the vocabulary.
    pub fn merge(&self, other: &Row) -> Row {
        let max = self.max.max(other.max);
        let part = |row: &Row| if row.sum_exp == 0.0 { 0.0 } else { row.sum_exp * float::exp(row.max - max) };
        Row { max, sum_exp: part(self) + part(other), target: self.target + other.target }
    }
}

/// Negative log-likelihood of a row's target, in nats: `max + ln(sum_exp) − target`.
pub fn nll(row: &Row) -> f32 {
    (f64::from(row.max) + float::ln(f64::from(row.sum_exp)) - f64::from(row.target)) as f32
}

narrowing_instances! {
    fn statistics_row<E: Element>(logits: &[E]) -> (f32, f32) = body::statistics;
    fn gradient_row<E: Element>(logits: &mut [E], max: f32, factor: f32) = body::gradient;
    fn whole_row<E: Element>(
        logits: &mut [E], kept: &mut [f32], target: Option<usize>, weight: f32,
    ) -> (f32, f32) = body::whole;
}

/// Position of a target in this shard.
fn local(target: i32, first_id: usize, vocab: usize) -> Option<usize> {
    usize::try_from(target).ok()?.checked_sub(first_id).filter(|&i| i < vocab)
}

/// First pass: per row the maximum, the sum of exponentials and the target's logit.
///
/// | arg        | shape    | dtype | meaning                                            |
/// |------------|----------|-------|----------------------------------------------------|
/// | `rows`     | `[T]`    | -     | output                                             |
/// | `logits`   | `[T,V]`  | `E`   | this shard's logits                                |
/// | `targets`  | `[T]`    | i32   | ids in the whole vocabulary; any other value means "none here" |
/// | `vocab`    | -        | -     | `V`, ids of this shard                             |
/// | `first_id` | -        | -     | id of the shard's first column                     |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn statistics<E: Element>(
    cpu: &Cpu,
    rows: &mut [Row],
    logits: &[E],
    targets: &[i32],
    vocab: usize,
    first_id: usize,
) -> Result<()> {
    const OP: &str = "cross_entropy::statistics";
    let tokens = targets.len();
    expect_len(OP, "rows", tokens, rows.len())?;
    expect_len(OP, "logits", tokens * vocab, logits.len())?;
    let step = crate::rms_norm::unit_rows(vocab);
    let rows = Disjoint::new(rows);
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(tokens - u * step));
        // SAFETY: a unit takes its own rows.
        let rows = unsafe { rows.part(t, n) };
        for (i, row) in rows.iter_mut().enumerate() {
            let logits = &logits[(t + i) * vocab..][..vocab];
            let (max, sum_exp) = statistics_row(cpu.isa(), logits);
            let target = local(targets[t + i], first_id, vocab).map_or(0.0, |id| logits[id].to_f32());
            *row = Row { max, sum_exp, target };
        }
    });
    Ok(())
}

/// Second pass: `logits <- weight · (softmax − onehot(target))`, in place.
///
/// | arg       | shape   | dtype | meaning                                                     |
/// |-----------|---------|-------|-------------------------------------------------------------|
/// | `logits`  | `[T,V]` | `E`   | on entry this shard's logits, on exit their gradient        |
/// | `rows`    | `[T]`   | -     | statistics over the whole vocabulary                        |
/// | `targets` | `[T]`   | i32   | as for [`statistics`]                                       |
/// | `weights` | `[T]`   | f32   | gradient of the loss by each row's [`nll`]; 0 gives exactly 0 |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn gradient<E: Element>(
    cpu: &Cpu,
    logits: &mut [E],
    rows: &[Row],
    targets: &[i32],
    weights: &[f32],
    vocab: usize,
    first_id: usize,
) -> Result<()> {
    const OP: &str = "cross_entropy::gradient";
    let tokens = targets.len();
    expect_len(OP, "rows", tokens, rows.len())?;
    expect_len(OP, "weights", tokens, weights.len())?;
    expect_len(OP, "logits", tokens * vocab, logits.len())?;
    let step = crate::rms_norm::unit_rows(vocab);
    let logits = Disjoint::new(logits);
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (first, n) = (u * step, step.min(tokens - u * step));
        for t in first..first + n {
            // SAFETY: a unit takes its own rows, one after another.
            let logits = unsafe { logits.part(t * vocab, vocab) };
            let (row, weight) = (&rows[t], weights[t]);
            if weight == 0.0 {
                logits.fill(E::default());
                continue;
            }
            let target = local(targets[t], first_id, vocab).map(|id| (id, logits[id].to_f32()));
            let factor = weight / row.sum_exp;
            gradient_row(cpu.isa(), logits, row.max, factor);
            if let Some((id, logit)) = target {
                // Before rounding, so that a target with probability near 1 keeps its small gradient.
                logits[id] = E::from_f32(float::exp_below::<E>(logit - row.max).mul_add(factor, -weight));
            }
        }
    });
    Ok(())
}

/// Both passes over rows that hold the whole vocabulary: `rows` as from [`statistics`], then `logits` as from [`gradient`].
///
/// | arg       | shape   | dtype | meaning                                              |
/// |-----------|---------|-------|------------------------------------------------------|
/// | `rows`    | `[T]`   | -     | output                                               |
/// | `logits`  | `[T,V]` | `E`   | on entry logits, on exit their gradient              |
/// | `targets` | `[T]`   | i32   | ids; any other value means "none"                    |
/// | `weights` | `[T]`   | f32   | as for [`gradient`]                                  |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn whole<E: Element>(
    cpu: &Cpu,
    rows: &mut [Row],
    logits: &mut [E],
    targets: &[i32],
    weights: &[f32],
    vocab: usize,
) -> Result<()> {
    const OP: &str = "cross_entropy::whole";
    let tokens = targets.len();
    expect_len(OP, "rows", tokens, rows.len())?;
    expect_len(OP, "weights", tokens, weights.len())?;
    expect_len(OP, "logits", tokens * vocab, logits.len())?;
    let step = crate::rms_norm::unit_rows(vocab);
    let (logits, rows) = (Disjoint::new(logits), Disjoint::new(rows));
    cpu.for_each_unit(tokens.div_ceil(step), |u| {
        let (first, n) = (u * step, step.min(tokens - u * step));
        with_scratch(Scratch::Scores, vocab, |kept: &mut [f32]| {
            for t in first..first + n {
                // SAFETY: a unit takes its own rows, one after another.
                let (logits, row) = unsafe { (logits.part(t * vocab, vocab), rows.part(t, 1)) };
                let id = local(targets[t], 0, vocab);
                let target = id.map_or(0.0, |id| logits[id].to_f32());
                let (max, sum_exp) = whole_row(cpu.isa(), logits, kept, id, weights[t]);
                row[0] = Row { max, sum_exp, target };
            }
        });
    });
    Ok(())
}
