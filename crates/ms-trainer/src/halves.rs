//! A float32 stored as two 16-bit halves, of which the upper one is a bf16.
//!
//! With `w` as a signed integer and `a = w + 0x8000`, the upper half of `a` is `w` rounded to bf16, and with its lower half
//! `w` is recovered: `w = (upper · 2^16 | lower) − 0x8000`. That rounds ties away from zero. To round ties to even instead, a
//! tie with an even lower neighbour is moved down by one more subtraction, which is recorded.
//!
//! # Source
//! MindSpeed, `docs/features/reuse-fp32-param.md` and `mindspeed/optimizer/optimizer.py`, `--reuse-fp32-param`. Upstream
//! records ties in the sign of the second moment, which is lost if the moment is zero; here they have bits of their own.

/// Upper half, lower half, and whether a tie was brought to the even neighbour below.
pub(crate) fn split(value: f32, ties_to_even: bool) -> (u16, u16, bool) {
    let bits = value.to_bits();
    let lowered = ties_to_even && bits & 0x1_ffff == 0x8000;
    let a = bits.wrapping_add(0x8000).wrapping_sub(u32::from(lowered));
    ((a >> 16) as u16, a as u16, lowered)
}

/// The inverse of [`split`].
pub(crate) fn join(upper: u16, lower: u16, lowered: bool) -> f32 {
    let a = (u32::from(upper) << 16 | u32::from(lower)).wrapping_add(u32::from(lowered));
    f32::from_bits(a.wrapping_sub(0x8000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn every_pattern_comes_together_again_and_ties_go_where_they_should() {
        // All upper halves combined with the lower ones at which something changes.
        let lower = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        for word in (0..=u32::from(u16::MAX)).flat_map(|upper| lower.map(|lower| upper << 16 | lower)) {
            let value = f32::from_bits(word);
            for even in [false, true] {
                let (upper, lower, lowered) = split(value, even);
                assert_eq!(join(upper, lower, lowered).to_bits(), word, "{word:#x} {even}");
                let cast = bf16::from_f32(value).to_bits();
                let tie = word & 0xffff == 0x8000;
                match (value.is_finite(), even || !tie) {
                    (false, _) => {}
                    (_, true) => assert_eq!(upper, cast, "{word:#x} {even}"),
                    // Away from zero: one further where the even neighbour is the nearer to zero.
                    _ => assert_eq!(u32::from(upper), (word >> 16) + 1, "{word:#x}"),
                }
            }
        }
    }

    #[test]
    fn halves_are_upstreams_and_come_together_again() {
        let path = ms_testing::golden("ops/reuse_fp32_param.safetensors");
        let (golden, _) = ms_testing::read_golden(&path);
        let words: Vec<i32> = golden["fp32_bits"].i64().into_iter().map(|w| w as i32).collect();
        let halves = |name: &str| -> Vec<i16> { golden[name].i64().into_iter().map(|h| h as i16).collect() };
        let names = ["bf16_bits", "residual_bits", "bf16_bits_deterministic", "residual_bits_deterministic"];
        let [upper, lower, upper_even, lower_even] = names.map(halves);
        let ties = golden["tie_even_flag"].i64();
        let nearest = halves("bf16_rne_bits");
        assert!(ties.iter().any(|&t| t != 0));
        for (i, &word) in words.iter().enumerate() {
            let value = f32::from_bits(word as u32);
            let (u, l, lowered) = split(value, false);
            assert_eq!((u as i16, l as i16, lowered), (upper[i], lower[i], false), "{word:#x}");
            let (eu, el, lowered) = split(value, true);
            assert_eq!((eu as i16, el as i16), (upper_even[i], lower_even[i]), "{word:#x}");
            assert_eq!(lowered, ties[i] != 0, "{word:#x}");
            assert_eq!(join(u, l, false).to_bits(), word as u32);
            assert_eq!(join(eu, el, lowered).to_bits(), word as u32);
            if value.is_finite() {
                assert_eq!(eu as i16, nearest[i], "{word:#x}");
            }
        }
    }
}
