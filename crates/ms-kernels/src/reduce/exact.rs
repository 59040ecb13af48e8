//! Sums of squares without rounding: they have one value in whatever order, and on however many ranks, they are formed.
//!
//! # Source
//! U. Kulisch, "Computer Arithmetic and Validity", 2nd ed., chapter 8: an accumulator as wide as the type. Squares of f32 are
//! cut in two by an addition before, as in J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE Trans. Comput. 64
//! (2015).

use std::hint::black_box;
use std::ops::{AddAssign, Range};

/// Bits of a digit.
const BITS: i32 = 32;
/// Exponent of the last bit of the first digit: that of the smallest f64.
const LOWEST: i32 = -1074;
/// Digits of 2^64 of the largest f64, and some for signs.
const DIGITS: usize = 70;

/// A sum of real numbers, exact: `Σ digits[i] · 2^(32 i - 1074)`. Digits are not reduced, so sums of them over ranks are digits
/// of the sum: of fewer than 2^30 additions in all.
#[derive(Clone, Debug)]
pub struct ExactSum {
    digits: [i64; DIGITS],
    /// How many numbers were infinite and how many no numbers.
    beyond: [i64; 2],
}

impl Default for ExactSum {
    fn default() -> Self {
        Self { digits: [0; DIGITS], beyond: [0; 2] }
    }
}

impl ExactSum {
    /// Adds a number.
    pub fn add(&mut self, v: f64) {
        if !v.is_finite() {
            self.beyond[usize::from(v.is_nan())] += 1;
            return;
        }
        let bits = v.to_bits();
        let (exponent, low) = ((bits >> 52 & 0x7ff) as i32, (bits & ((1 << 52) - 1)) as i128);
        let mantissa = if exponent > 0 { low | 1 << 52 } else { low };
        self.add_scaled(if v < 0.0 { -mantissa } else { mantissa }, exponent.max(1) - 1075);
    }

    /// Adds `v · 2^exponent`, of `v` below 2^90 and an exponent of at least -1074.
    fn add_scaled(&mut self, v: i128, exponent: i32) {
        let at = exponent - LOWEST;
        let (first, mut rest) = ((at / BITS) as usize, v << (at % BITS));
        for digit in &mut self.digits[first..first + 4] {
            *digit += (rest & 0xffff_ffff) as i64;
            rest >>= BITS;
        }
        // Of a number below zero, of which the digits stand above it.
        self.digits[first + 4] += rest as i64;
    }

    /// The sum, rounded once to the nearest f64, ties to even; infinite or no number if a summand was.
    pub fn value(&self) -> f64 {
        let [infinite, none] = self.beyond;
        if none > 0 || infinite > 0 {
            return if none > 0 { f64::NAN } else { f64::INFINITY };
        }
        let (digits, below) = self.reduced();
        let Some(top) = digits.iter().rposition(|&d| d != 0) else { return 0.0 };
        // Four digits hold the 53 bits and more; what is below them decides between neighbours.
        let first = top.saturating_sub(3);
        let mut whole = digits[first..=top].iter().rev().fold(0u128, |all, &d| all << BITS | u128::from(d));
        whole |= u128::from(digits[..first].iter().any(|&d| d != 0));
        // In two steps: the power of two may be no f64 though the product is one.
        let exponent = first as i32 * BITS + LOWEST;
        let (half, rest) = (exponent / 2, exponent - exponent / 2);
        let value = whole as f64 * 2f64.powi(half) * 2f64.powi(rest);
        if below { -value } else { value }
    }

    /// The digits of the size of the sum, each from 0 to 2^32, and whether the sum is below zero.
    fn reduced(&self) -> ([u32; DIGITS], bool) {
        let reduce = |sign: i64| {
            let (mut digits, mut carry) = ([0; DIGITS], 0i64);
            for (to, &digit) in digits.iter_mut().zip(&self.digits) {
                let sum = sign * digit + carry;
                (*to, carry) = ((sum & 0xffff_ffff) as u32, sum >> BITS);
            }
            (digits, carry < 0)
        };
        match reduce(1) {
            (_, true) => (reduce(-1).0, true),
            positive => positive,
        }
    }

    /// The sum as whole numbers, of which sums over ranks are those of the sum.
    pub fn to_digits(&self) -> Vec<i64> {
        // Reduced, so that many ranks can add them.
        let (digits, below) = self.reduced();
        let sign = if below { -1 } else { 1 };
        digits.iter().map(|&d| sign * i64::from(d)).chain(self.beyond).collect()
    }

    /// The way back of [`ExactSum::to_digits`]; `None` for another number of digits.
    pub fn from_digits(all: &[i64]) -> Option<Self> {
        let (digits, beyond) = all.split_at_checked(DIGITS)?;
        Some(Self { digits: digits.try_into().ok()?, beyond: beyond.try_into().ok()? })
    }

    /// Adds the squares of at most [`PART`] elements.
    ///
    /// `guess`, at first 0, is what the part before says of this one: an exponent that no element exceeds, 0 for none. If it
    /// holds, one pass is enough; the sum is exact either way.
    #[inline(always)]
    pub(super) fn add_squares(&mut self, x: &[f32], guess: &mut u32) {
        if *guess > 0 {
            let high = *guess;
            let (sums, (most, least)) = squares::<false, true>(x, high, 0..u32::MAX);
            let low = high.saturating_sub(SPAN) << MANTISSA;
            if most >> MANTISSA <= high && least >= low.saturating_sub(1) {
                self.add_parts(sums, high);
                return;
            }
            *guess = 0;
        }
        let (largest, least) = ends(x);
        if largest >= f32::INFINITY.to_bits() {
            return x.iter().for_each(|&v| self.add(f64::from(v) * f64::from(v)));
        }
        let mut most = largest;
        while most > 0 {
            // Elements with the largest exponent, and with those that can be summed beside it.
            let high = (most >> MANTISSA).max(1);
            let low = high.saturating_sub(SPAN) << MANTISSA;
            let (sums, _) = match most == largest && least >= low {
                true => {
                    *guess = (high + 1).min(LARGEST);
                    squares::<false, false>(x, high, low..most + 1)
                }
                false => squares::<true, false>(x, high, low..most + 1),
            };
            self.add_parts(sums, high);
            most = if least >= low { 0 } else { largest_below(x, low) };
        }
    }

    /// Adds what [`squares`] has found.
    fn add_parts(&mut self, (upper, lower): (u64, i64), high: u32) {
        self.add_scaled(i128::from(upper), 2 * high as i32 - UPPER);
        self.add_scaled(i128::from(lower), 2 * high as i32 - LOWER);
    }
}

impl AddAssign<&ExactSum> for ExactSum {
    fn add_assign(&mut self, other: &ExactSum) {
        self.digits.iter_mut().zip(&other.digits).for_each(|(a, b)| *a += b);
        self.beyond.iter_mut().zip(&other.beyond).for_each(|(a, b)| *a += b);
    }
}

/// Sums that are formed side by side.
const LANES: usize = 16;
/// Most elements of a part: 2^8 in a lane.
pub(super) const PART: usize = LANES << 8;
/// Bits of an f32 below its exponent.
const MANTISSA: u32 = 23;
/// Largest biased exponent of a finite number.
const LARGEST: u32 = 254;
/// By how much exponents of one sum differ at most.
const SPAN: u32 = 24;

// An f32 with biased exponent `e` is below `2^(e - 126)` and a multiple of `2^(e - 150)`. Of squares below `2^(2e - 252)` the
// upper 51 bits are summed as whole numbers. What is left of each is at most half of their last bit, so 2^8 of them are below
// `2^(2e - 296)`; with exponents from `e - SPAN` on, they are multiples of `2^(2e - 348)`, and f64 sums them without rounding.
const UPPER: i32 = 252 + 51;
const LOWER: i32 = 300 + 2 * SPAN as i32;

/// The bits of a number's size.
#[inline(always)]
fn size(v: f32) -> u32 {
    v.to_bits() & 0x7fff_ffff
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
/// bits of the largest size come along, and one less than those of the smallest but zero.
#[inline(always)]
fn squares<const SOME: bool, const ENDS: bool>(
    x: &[f32],
    high: u32,
    sizes: Range<u32>,
) -> ((u64, i64), (u32, u32)) {
    // What is added to it is rounded to whole units, which are counted in its lowest bits.
    let anchor = 2f64.powi(2 * high as i32 - UPPER + 52);
    let (mut upper, mut lower) = ([0; LANES], [0.0; LANES]);
    let (mut most, mut least) = ([0u32; LANES], [u32::MAX; LANES]);
    let (blocks, tail) = x.as_chunks::<LANES>();
    let mut last = [0f32; LANES];
    last[..tail.len()].copy_from_slice(tail);
    for block in blocks {
        if ENDS {
            for l in 0..LANES {
                most[l] = most[l].max(size(block[l]));
                least[l] = least[l].min(size(block[l]).wrapping_sub(1));
            }
        }
        add_block::<SOME>(block, &sizes, anchor, &mut upper, &mut lower);
    }
    add_block::<SOME>(&last, &sizes, anchor, &mut upper, &mut lower);
    let anchors = anchor.to_bits().wrapping_mul(((blocks.len() + 1) * LANES) as u64);
    let mut sums = (0u64.wrapping_sub(anchors), 0);
    let unit = 2f64.powi(LOWER - 2 * high as i32);
    // Seen as arrays in memory the lanes stay in registers above.
    let (upper, lower, most, least) = black_box((upper, lower, most, least));
    let mut span = (0, u32::MAX);
    for l in 0..LANES {
        sums.0 = sums.0.wrapping_add(upper[l]);
        sums.1 += (lower[l] * unit) as i64;
        if ENDS {
            span = (
                span.0.max(most[l]).max(size(last[l])),
                span.1.min(least[l]).min(size(last[l]).wrapping_sub(1)),
            );
        }
    }
    (sums, span)
}

#[inline(always)]
fn add_block<const SOME: bool>(
    x: &[f32; LANES],
    sizes: &Range<u32>,
    anchor: f64,
    upper: &mut [u64; LANES],
    lower: &mut [f64; LANES],
) {
    for l in 0..LANES {
        let counts = !SOME || (size(x[l]) >= sizes.start && size(x[l]) < sizes.end);
        let v = f64::from(if counts { x[l] } else { 0.0 });
        let sum = v.mul_add(v, anchor);
        upper[l] = upper[l].wrapping_add(sum.to_bits());
        lower[l] += v.mul_add(v, anchor - sum);
    }
}
