//! Exact (unrounded) sums: the result does not depend on the order of the terms or on the number of ranks.
//!
//! # Source
//! U. Kulisch, "Computer Arithmetic and Validity", 2nd ed., chapter 8: an accumulator as wide as the type.

use std::ops::AddAssign;

/// Bits of a digit.
const BITS: i32 = 32;
/// Exponent of the last bit of the first digit: that of the smallest f64.
const LOWEST: i32 = -1074;
/// Digits of 2^64 of the largest f64, and some for signs.
const DIGITS: usize = 70;

/// An exact sum of real numbers: `Σ digits[i] · 2^(32 i - 1074)`. Digits are not reduced, so adding them element-wise over
/// ranks gives digits of the total, for fewer than 2^30 additions in all.
#[derive(Clone, Debug)]
pub struct ExactSum {
    digits: [i64; DIGITS],
    /// How many terms were infinite, and how many were NaN.
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
    pub fn add_scaled(&mut self, v: i128, exponent: i32) {
        let at = exponent - LOWEST;
        let (first, mut rest) = ((at / BITS) as usize, v << (at % BITS));
        for digit in &mut self.digits[first..first + 4] {
            *digit += (rest & 0xffff_ffff) as i64;
            rest >>= BITS;
        }
        // The remainder is negative; the digits are above it.
        self.digits[first + 4] += rest as i64;
    }

    /// The sum, rounded once to the nearest f64, ties to even; infinite or NaN if a term was.
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
        // In two steps: the power of two may not be an f64 even if the product is.
        let exponent = first as i32 * BITS + LOWEST;
        let (half, rest) = (exponent / 2, exponent - exponent / 2);
        let value = whole as f64 * 2f64.powi(half) * 2f64.powi(rest);
        if below { -value } else { value }
    }

    /// The digits of the absolute value of the sum, each from 0 to 2^32, and whether the sum is negative.
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

    /// The sum as integers, which ranks can add element by element.
    pub fn to_digits(&self) -> Vec<i64> {
        // Reduced, so that many ranks can add them.
        let (digits, below) = self.reduced();
        let sign = if below { -1 } else { 1 };
        digits.iter().map(|&d| sign * i64::from(d)).chain(self.beyond).collect()
    }

    /// The inverse of [`ExactSum::to_digits`]; `None` for another number of digits.
    pub fn from_digits(all: &[i64]) -> Option<Self> {
        let (digits, beyond) = all.split_at_checked(DIGITS)?;
        Some(Self { digits: digits.try_into().ok()?, beyond: beyond.try_into().ok()? })
    }
}

impl AddAssign<&ExactSum> for ExactSum {
    fn add_assign(&mut self, other: &ExactSum) {
        self.digits.iter_mut().zip(&other.digits).for_each(|(a, b)| *a += b);
        self.beyond.iter_mut().zip(&other.beyond).for_each(|(a, b)| *a += b);
    }
}
