//! Sums in the order of the tile instruction `tdpbf16ps`, with and without that instruction.
//!
//! Terms are taken 32 at a time, padded with zeros: the even ones are summed from zero in ascending order and the odd ones
//! likewise, one fused multiply-add each; then `sum = sum + (even + odd)`, one rounding each, denormals zero. In the
//! multiply-add versions, the two partial sums of a tile stay in registers and the sums themselves in the first-level cache.
//! The order was found by comparing a model with 46 million results of the instruction on a Sapphire Rapids; these are not
//! part of this repository, so here it is taken as given.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(test)]
pub(crate) mod model;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod trap;

/// Terms that one tile sums: the order depends on it.
pub(crate) const TILE_TERMS: usize = 32;
