//! Exact sums of squares, many at a time.
//!
//! # Source
//! Squares of f32 are cut in two by an addition, as in J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE
//! Trans. Comput. 64 (2015).

use crate::prefetch::fetch;
use ms_operands::ExactSum;
use std::hint::black_box;
use std::ops::Range;

/// Sums that are computed side by side.
const LANES: usize = 16;
/// Most elements of a part: 2^8 in a lane.
pub(super) const PART: usize = LANES << 8;
/// Bits of an f32 below its exponent.
const MANTISSA: u32 = 23;
/// Largest biased exponent of a finite number.
const LARGEST: u32 = 254;
/// The first part of a unit is read twice, so there are many parts.
pub(super) const PARTS_PER_UNIT: usize = 64;
/// Elements that are prefetched ahead of their use, by bodies that compute so much that the processor sees few lines to come.
const AHEAD: usize = 512;
/// Up to this many elements of a part are added one by one.
const FEW: u32 = 32;
/// By how much exponents of one sum differ at most.
const SPAN: u32 = 21;

// An f32 with biased exponent `e` is below `2^(e - 126)` and a multiple of `2^(e - 150)`. A sum in f64 that begins at
// `2^(2e - 244)` takes the squares of 2^8 of them and stays below twice that, so it counts in units of `2^(2e - 296)`. What
// an addition leaves over is at most half a unit, so 2^8 of such rests are below `2^(2e - 289)`; with exponents from
// `e - SPAN` on, they are multiples of `2^(2e - 342)`, and f64 sums them without rounding.
const START: i32 = 244;
const UPPER: i32 = START + 52;
const LOWER: i32 = 300 + 2 * SPAN as i32;

/// Adds the squares of at most [`PART`] elements.
///
/// `guess`, at first 0, is what the part before says of this one: an exponent that no element exceeds, 0 for none. If it
/// holds, one pass is enough, but for zeros, which are looked for once more, and for a few elements that are too small, which
/// are added one by one; the sum is exact either way. `ask`: memory is prefetched.
#[inline(always)]
pub(super) fn add_squares(sum: &mut ExactSum, x: &[f32], guess: &mut u32, ask: bool) {
    if *guess > 0 {
        let high = *guess;
        let (sums, (most, least)) = squares::<false, true>(x, high, 0..u32::MAX, ask);
        let low = high.saturating_sub(SPAN) << MANTISSA;
        if most >> MANTISSA <= high {
            let few = if least >= low { 0 } else { small(x, low) };
            if few == 0 {
                add_parts(sum, sums, high);
                return;
            }
            if few <= FEW {
                let (sums, _) = squares::<true, false>(x, high, low..u32::MAX, false);
                add_parts(sum, sums, high);
                x.iter().filter(|v| size(**v) < low).for_each(|&v| sum.add(f64::from(v) * f64::from(v)));
                return;
            }
        }
        *guess = 0;
    }
    let (largest, least) = ends(x);
    if largest >= f32::INFINITY.to_bits() {
        return x.iter().for_each(|&v| sum.add(f64::from(v) * f64::from(v)));
    }
    let mut most = largest;
    while most > 0 {
        // Elements with the largest exponent, and with exponents that can be summed together with it.
        let high = (most >> MANTISSA).max(1);
        let low = high.saturating_sub(SPAN) << MANTISSA;
        let (sums, _) = match most == largest && least >= low {
            true => {
                *guess = (high + 1).min(LARGEST);
                squares::<false, false>(x, high, low..most + 1, ask)
            }
            false => squares::<true, false>(x, high, low..most + 1, ask),
        };
        add_parts(sum, sums, high);
        most = if least >= low { 0 } else { largest_below(x, low) };
    }
}

/// Adds what [`squares`] has found.
fn add_parts(sum: &mut ExactSum, (upper, lower): (u64, i64), high: u32) {
    sum.add_scaled(i128::from(upper), 2 * high as i32 - UPPER);
    sum.add_scaled(i128::from(lower), 2 * high as i32 - LOWER);
}

/// The bits of a number's size.
#[inline(always)]
fn size(v: f32) -> u32 {
    v.to_bits() & 0x7fff_ffff
}

/// How many elements but zeros have sizes below those bits.
#[inline(always)]
fn small(x: &[f32], bits: u32) -> u32 {
    // A zero is less one the largest of all.
    x.iter().map(|&v| u32::from(size(v).wrapping_sub(1) < bits.saturating_sub(1))).sum()
}

/// Bits of the largest size, and of the smallest but zero.
#[inline(always)]
fn ends(x: &[f32]) -> (u32, u32) {
    let (mut most, mut least) = (0, u32::MAX);
    for &v in x {
        most = most.max(size(v));
        least = least.min(size(v).wrapping_sub(1));
    }
    (most, least.wrapping_add(1))
}

fn largest_below(x: &[f32], bits: u32) -> u32 {
    x.iter().map(|&v| size(v)).filter(|&size| size < bits).max().unwrap_or(0)
}

/// Of elements with biased exponents up to `high` the sum of their squares' upper bits and of the rest, in units of
/// `2^(2 high - UPPER)` and `2^(2 high - LOWER)`. If `SOME`, only those whose sizes' bits are among `sizes` count; if `ENDS`,
/// bits of the largest and the smallest size come along.
#[inline(always)]
fn squares<const SOME: bool, const ENDS: bool>(
    x: &[f32],
    high: u32,
    sizes: Range<u32>,
    ask: bool,
) -> ((u64, i64), (u32, u32)) {
    let start = 2f64.powi(2 * high as i32 - START);
    let (mut upper, mut lower) = ([start; LANES], [0.0; LANES]);
    let (mut most, mut least) = ([0u32; LANES], [u32::MAX; LANES]);
    let (blocks, tail) = x.as_chunks::<LANES>();
    let mut last = [0f32; LANES];
    last[..tail.len()].copy_from_slice(tail);
    for block in blocks {
        if ask {
            fetch(block.as_ptr().wrapping_add(AHEAD));
        }
        if ENDS {
            for l in 0..LANES {
                most[l] = most[l].max(size(block[l]));
                least[l] = least[l].min(size(block[l]));
            }
        }
        add_block::<SOME>(block, &sizes, &mut upper, &mut lower);
    }
    add_block::<SOME>(&last, &sizes, &mut upper, &mut lower);
    let mut sums = (0u64, 0i64);
    let unit = 2f64.powi(LOWER - 2 * high as i32);
    // Seen as arrays in memory the lanes stay in registers above.
    let (upper, lower, most, least) = black_box((upper, lower, most, least));
    let mut span = (0, u32::MAX);
    for l in 0..LANES {
        // The exponent stayed, so that units are counted in the lowest bits.
        sums.0 = upper[l].to_bits().wrapping_sub(start.to_bits()).wrapping_add(sums.0);
        sums.1 = sums.1.wrapping_add((lower[l] * unit) as i64);
        if ENDS {
            span = (span.0.max(most[l]), span.1.min(least[l]));
        }
    }
    if ENDS {
        for &v in tail {
            span = (span.0.max(size(v)), span.1.min(size(v)));
        }
    }
    (sums, span)
}

#[inline(always)]
fn add_block<const SOME: bool>(
    x: &[f32; LANES],
    sizes: &Range<u32>,
    upper: &mut [f64; LANES],
    lower: &mut [f64; LANES],
) {
    for l in 0..LANES {
        let counts = !SOME || (size(x[l]) >= sizes.start && size(x[l]) < sizes.end);
        let v = f64::from(if counts { x[l] } else { 0.0 });
        let sum = v.mul_add(v, upper[l]);
        lower[l] += v.mul_add(v, upper[l] - sum);
        upper[l] = sum;
    }
}
