//! Counter-based random noise: dropout and jitter values depend on a value's position, not on what ran before.
//!
//! A value is addressed by its token's key, the number of its place in the model, and its column. Ranks that share tokens
//! therefore draw the same values as a single rank would, and a recomputed pass draws the same values again.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Element, Result};
pub use ms_operands::noise::{Noise, after, beginning, mix, uniforms};

const STEP: usize = 16 * 1024;

/// `y[t,w] = x[t,w] · factor(keys[t], site, w)`. The gradient with respect to `x` is the same function of the gradient with
/// respect to `y`.
///
/// | arg    | shape   | dtype | meaning                                   |
/// |--------|---------|-------|-------------------------------------------|
/// | `y`    | `[T,W]` | `E`   | output                                    |
/// | `x`    | `[T,W]` | `E`   | input                                     |
/// | `keys` | `[T]`   | u64   | of each token                             |
/// | `site` | -       | -     | place in the model                        |
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn multiply<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    x: &[E],
    keys: &[u64],
    site: u64,
    noise: Noise,
) -> Result<()> {
    const OP: &str = "noise::multiply";
    expect_len(OP, "y", x.len(), y.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let width = x.len() / keys.len().max(1);
    let rows = expect_rows(OP, "x", width.max(1), x.len())?;
    expect_len(OP, "keys", rows, keys.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, width), |t, y| {
        for (pair, (y, x)) in y.chunks_mut(2).zip(x[t * width..][..width].chunks(2)).enumerate() {
            let drawn = uniforms(keys[t], site, pair as u64);
            for ((y, x), u) in y.iter_mut().zip(x).zip(drawn) {
                *y = E::from_f32(x.to_f32() * noise.factor(u) as f32);
            }
        }
    });
    Ok(())
}
