//! What `tdpbf16ps` computes, element by element, denormals included.

/// `value` with a denormal made zero of its sign.
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// A fused multiply-add of operands without denormals, rounded to nearest even, zero where it is tiny.
///
/// "Tiny" is judged after rounding as if exponents had no end: a result that becomes the smallest normal number only
/// because denormals have fewer digits counts, which the same operation on numbers 2^64 times as large tells.
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    const SCALE: f32 = 4_294_967_296.0;
    let sum = a.mul_add(b, c);
    let tiny = sum.abs() < f32::MIN_POSITIVE
        || (sum.abs() == f32::MIN_POSITIVE
            && (a * SCALE).mul_add(b * SCALE, c * SCALE * SCALE).abs() < f32::MIN_POSITIVE * SCALE * SCALE);
    if tiny { f32::from_bits(sum.to_bits() & 0x8000_0000) } else { sum }
}

fn add(a: f32, b: f32) -> f32 {
    flush(flush(a) + flush(b))
}

/// `sum` after one tile product: `a` and `b` give the operands of up to 32 terms in ascending order; fewer are padded with
/// zeros.
pub(crate) fn product(sum: f32, terms: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut partial = [0f32; 2];
    let mut count = 0;
    for (a, b) in terms {
        partial[count % 2] = multiply_add(flush(a), flush(b), partial[count % 2]);
        count += 1;
    }
    assert!(count <= super::TILE_TERMS, "a tile has 32 terms");
    for k in count..super::TILE_TERMS {
        partial[k % 2] = multiply_add(0.0, 0.0, partial[k % 2]);
    }
    add(sum, add(partial[0], partial[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_and_odd_terms_are_summed_apart_and_denormals_are_zero() {
        let small = f32::EPSILON / 4.0;
        // In one chain 1 + small + small stays 1; separately, the odd terms add up before they are added to the 1.
        let terms = [(1.0, 1.0), (small, 1.0), (0.0, 0.0), (small, 1.0), (0.0, 0.0), (small, 1.0)];
        assert_eq!(product(0.0, terms.into_iter()), 1.0 + 3.0 * small);
        assert_eq!(product(1.0, [(0.0, 0.0), (small, 1.0)].into_iter()), 1.0);
        let denormal = f32::MIN_POSITIVE / 2.0;
        assert_eq!(product(denormal, [(1.0, 0.0)].into_iter()).to_bits(), 0);
        assert_eq!(product(-denormal, std::iter::empty()), 0.0);
        assert_eq!(product(0.0, [(f32::MIN_POSITIVE, 0.5)].into_iter()), 0.0);
        assert!(product(0.0, [(f32::INFINITY, 0.0)].into_iter()).is_nan());
        // Just below the smallest normal number, and rounded up to it with a denormal's digits: flushed.
        let below = 1.0 - f32::EPSILON / 2.0;
        assert_eq!(product(0.0, [(f32::MIN_POSITIVE, below)].into_iter()), 0.0);
    }
}
