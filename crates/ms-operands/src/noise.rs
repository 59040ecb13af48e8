//! Counter-based random noise: dropout and jitter values depend on a value's position, not on what ran before.
//!
//! A value is addressed by its token's key, the number of its place in the model, and its column. Ranks that share tokens
//! therefore draw the same values as a single rank would, and a recomputed pass draws the same values again.

/// Random factors of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    /// 0 with probability `rate`, else `1 / (1 - rate)`.
    Dropout {
        /// In `[0, 1)`.
        rate: f64,
    },
    /// A number in `[1 - eps, 1 + eps)`.
    Jitter {
        /// Half the width.
        eps: f64,
    },
}

impl Noise {
    /// The factor that a uniform 32-bit number gives.
    #[inline]
    pub fn factor(self, uniform: u32) -> f64 {
        const ALL: f64 = 4_294_967_296.0;
        match self {
            Self::Dropout { rate } => {
                if f64::from(uniform) < rate * ALL {
                    0.0
                } else {
                    1.0 / (1.0 - rate)
                }
            }
            Self::Jitter { eps } => 1.0 - eps + 2.0 * eps * (f64::from(uniform) / ALL),
        }
    }

    /// The factor of column `column` of a token with key `key` at place `site` of the model.
    #[inline]
    pub fn at(self, key: u64, site: u64, column: u64) -> f64 {
        self.factor(uniforms(key, site, column / 2)[(column % 2) as usize])
    }
}

/// A bijection of 64 bits in which every bit of the result depends on every bit of `x`.
///
/// # Source
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, fig. 16.
#[inline(always)]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The start of the random sequence of a token with key `key` at place `site` of the model.
#[inline(always)]
pub fn beginning(key: u64, site: u64) -> u64 {
    mix(key ^ mix(site.wrapping_add(STRIDE)))
}

/// The two uniform numbers of columns `2 pair` and `2 pair + 1`, the even one in the lower half.
#[inline(always)]
pub fn after(beginning: u64, pair: u64) -> u64 {
    mix(beginning.wrapping_add(pair.wrapping_add(1).wrapping_mul(STRIDE)))
}

/// The two uniform numbers of columns `2 pair` and `2 pair + 1` of a token with key `key` at place `site` of the model.
#[inline]
pub fn uniforms(key: u64, site: u64, pair: u64) -> [u32; 2] {
    let drawn = after(beginning(key, site), pair);
    [drawn as u32, (drawn >> 32) as u32]
}
