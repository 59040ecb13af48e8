//! Noise by counters: dropout and jitter whose numbers follow from where a value stands, not from what ran before.
//!
//! A token has a key, a place in the model has a number, and a column counts itself; from the three follows one number. So
//! ranks that share tokens draw what one rank would, and a pass that runs again draws the same.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Element, Result};

/// What values are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    /// 0 with probability `rate`, else `1 / (1 - rate)`.
    Dropout {
        /// In `[0, 1)`.
        rate: f64,
    },
    /// A number of `[1 - eps, 1 + eps)`.
    Jitter {
        /// Half the width.
        eps: f64,
    },
}

impl Noise {
    /// The factor that a uniform 32-bit number gives.
    pub fn factor(self, uniform: u32) -> f64 {
        const ALL: f64 = 4_294_967_296.0;
        match self {
            Self::Dropout { rate } => match f64::from(uniform) < rate * ALL {
                true => 0.0,
                false => 1.0 / (1.0 - rate),
            },
            Self::Jitter { eps } => 1.0 - eps + 2.0 * eps * (f64::from(uniform) / ALL),
        }
    }

    /// The factor of column `column` of a token with key `key` at place `site` of the model.
    pub fn at(self, key: u64, site: u64, column: u64) -> f64 {
        self.factor(uniforms(key, site, column / 2)[(column % 2) as usize])
    }
}

/// A bijection of 64 bits in which every bit of the result depends on every bit of `x`.
///
/// # Source
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, fig. 16.
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Where the numbers of a token with key `key` begin at place `site` of the model.
#[inline(always)]
pub(crate) fn beginning(key: u64, site: u64) -> u64 {
    mix(key ^ mix(site.wrapping_add(STRIDE)))
}

/// The two uniform numbers of columns `2 pair` and `2 pair + 1`, the even one in the lower half.
#[inline(always)]
pub(crate) fn after(beginning: u64, pair: u64) -> u64 {
    mix(beginning.wrapping_add(pair.wrapping_add(1).wrapping_mul(STRIDE)))
}

/// The two uniform numbers of columns `2 pair` and `2 pair + 1` of a token with key `key` at place `site` of the model.
pub fn uniforms(key: u64, site: u64, pair: u64) -> [u32; 2] {
    let drawn = after(beginning(key, site), pair);
    [drawn as u32, (drawn >> 32) as u32]
}

const STEP: usize = 16 * 1024;

/// `y[t,w] = x[t,w] · factor(keys[t], site, w)`. The gradient by `x` is the same function of the gradient by `y`.
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
    cpu.for_each_row(rows, step, (y, width), (&mut [] as &mut [u8], 0), |t, y, _| {
        for (pair, (y, x)) in y.chunks_mut(2).zip(x[t * width..][..width].chunks(2)).enumerate() {
            let drawn = uniforms(keys[t], site, pair as u64);
            for ((y, x), u) in y.iter_mut().zip(x).zip(drawn) {
                *y = E::from_f32(x.to_f32() * noise.factor(u) as f32);
            }
        }
    });
    Ok(())
}
