//! Sums in the order of aarch64's instructions on bf16, `bfdot` and `bfmmla`, with and without them.
//!
//! Terms are taken in ascending pairs, padded with zeros to a multiple of four. The two products of a pair are exact; they are
//! added, and their sum is added to the sum so far. Both additions round to odd, and denormals are zero: operands, products and
//! sums, the latter judged before rounding (`BFDotAdd` of the Arm Architecture Reference Manual, which threads keep unless they
//! set `FPCR.EBF`).

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

/// Terms that sums are padded to: those that `bfmmla` takes at once.
pub(crate) const GRANULE: usize = 4;

/// `value` with a denormal made zero of its sign.
#[inline(always)]
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// `x + y` rounded to odd: of the two numbers around an inexact sum the one whose last bit is set.
#[inline(always)]
fn add(x: f32, y: f32) -> f32 {
    /// Bits by which an f64 is longer.
    const LONGER: u64 = (1 << 29) - 1;
    let (x, y) = (f64::from(flush(x)), f64::from(flush(y)));
    let sum = x + y;
    // What the sum in f64 leaves out, exactly (Knuth, The Art of Computer Programming, vol. 2, 4.2.2, theorem B).
    let from_y = sum - x;
    let rest = (x - (sum - from_y)) + (y - from_y);
    let bits = sum.to_bits();
    let even_and_inexact = u64::from(rest.abs() > 0.0) & !bits & 1;
    // Rounded to odd in f64: where the last bit is not set, the neighbour on the side of the rest.
    let outwards = (rest > 0.0) == (sum > 0.0);
    let odd =
        if outwards { bits.wrapping_add(even_and_inexact) } else { bits.wrapping_sub(even_and_inexact) };
    let sticky = u64::from(odd & LONGER != 0) << 29;
    let odd = f64::from_bits(odd & !LONGER | sticky);
    if odd.is_nan() { f32::NAN } else { flush(odd as f32) }
}

/// `sum` and the products of a pair of terms.
#[inline(always)]
pub(crate) fn add_pair(sum: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    let product = |i: usize| flush(flush(a[i]) * flush(b[i]));
    add(sum, add(product(0), product(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inexact_sums_have_an_odd_last_bit_and_denormals_are_zero() {
        let ulp = f32::EPSILON;
        assert_eq!(add(1.0, 2.0), 3.0);
        assert_eq!(add(1.0, ulp / 1024.0), 1.0 + ulp);
        assert_eq!(add(1.0, -ulp / 1024.0), 1.0 - ulp / 2.0);
        assert_eq!(add(1.0 + ulp, ulp / 1024.0), 1.0 + ulp);
        assert_eq!(add(1.0 + ulp, -ulp / 1024.0), 1.0 + ulp);
        // Far below what an f64 beside the 1 holds.
        assert_eq!(add(1.0, 1e-30), 1.0 + ulp);
        assert_eq!(add(-1.0, 1e-30), -(1.0 - ulp / 2.0));
        assert_eq!(add(-1.0, -1e-30), -1.0 - ulp);
        assert_eq!(add(f32::MAX, 1.0), f32::MAX);
        assert_eq!(add(f32::MAX, f32::MAX), f32::INFINITY);
        assert_eq!(add(f32::MIN_POSITIVE * 1.5, -f32::MIN_POSITIVE).to_bits(), 0);
        assert_eq!(add(-f32::MIN_POSITIVE * 1.5, f32::MIN_POSITIVE).to_bits(), 0x8000_0000);
        assert_eq!(add(-f32::MIN_POSITIVE / 2.0, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(add(f32::INFINITY, -1.0), f32::INFINITY);
        assert!(add(f32::INFINITY, f32::NEG_INFINITY).is_nan());
        assert_eq!(add_pair(f32::MIN_POSITIVE, [1e-30, 0.0], [1e-30, 1.0]), f32::MIN_POSITIVE);
        // The pair is added first: alone, neither product would move the sum in any rounding to nearest.
        let small = ulp / 4.0;
        assert_eq!(add_pair(1.0, [small; 2], [1.0; 2]), 1.0 + ulp);
        assert_eq!(add_pair(1.0, [small, -small], [1.0; 2]), 1.0);
    }

    /// The instructions, where the processor has them, on numbers of all sizes.
    #[cfg(target_arch = "aarch64")]
    #[test]
    fn the_instructions_give_these_sums() {
        if !crate::Isa::NeonBf16.is_available() {
            eprintln!("skipped: this processor has no bf16 instructions");
            return;
        }
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32
        };
        for round in 0..200_000u32 {
            let mut number = || {
                // Of any size; or near to each other; or whole numbers, whose sums are often exact.
                half::bf16::from_bits(match round % 3 {
                    0 => next() as u16,
                    1 => (next() & 0x87ff) as u16 | 0x3c00,
                    _ => half::bf16::from_f32((next() % 64) as f32 - 32.0).to_bits(),
                })
            };
            let (a, b): ([half::bf16; 8], [half::bf16; 8]) =
                (std::array::from_fn(|_| number()), std::array::from_fn(|_| number()));
            let start: [f32; 4] =
                std::array::from_fn(|_| f32::from_bits(u32::from(number().to_bits()) << 16 | round));
            // SAFETY: the instructions are there.
            let [dot, matrix] = unsafe { neon::both(start, a, b) };
            let pair = |of: [half::bf16; 8], first: usize| [of[first].to_f32(), of[first + 1].to_f32()];
            for i in 0..4 {
                let want = add_pair(start[i], pair(a, 2 * i), pair(b, 2 * i));
                assert_eq!(dot[i].to_bits(), want.to_bits(), "{} {a:?} {b:?}", start[i]);
                let (row, col) = (i / 2 * 4, i % 2 * 4);
                let half = add_pair(start[i], pair(a, row), pair(b, col));
                let want = add_pair(half, pair(a, row + 2), pair(b, col + 2));
                assert_eq!(matrix[i].to_bits(), want.to_bits(), "{} {a:?} {b:?}", start[i]);
            }
        }
    }
}
