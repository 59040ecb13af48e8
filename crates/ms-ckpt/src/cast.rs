//! Conversion between element types: floating-point numbers are rounded to nearest even, integers are kept.

use half::{bf16, f16};
use ms_core::DType;

/// Whether [`cast`] can do it.
pub(crate) fn possible(from: DType, to: DType) -> bool {
    let number = |d: DType| d.is_float() || matches!(d, DType::I64 | DType::I32 | DType::I16);
    from == to || (number(from) && number(to))
}

/// Converts `from` elements in `source` and appends them to `out` as `to` elements.
///
/// # Panics
/// If the conversion is not [`possible`], or `source` is not a whole number of elements.
pub(crate) fn cast(source: &[u8], from: DType, to: DType, out: &mut Vec<u8>) {
    assert!(possible(from, to), "callers ask `possible` first");
    assert_eq!(source.len() % from.size(), 0, "whole elements");
    if from == to {
        out.extend_from_slice(source);
        return;
    }
    macro_rules! each {
        ($read:ty, $wide:ty, $widen:expr) => {{
            let elements = source
                .chunks_exact(size_of::<$read>())
                .map(|c| <$read>::from_le_bytes(c.try_into().expect("exact chunk")))
                .map($widen);
            match to {
                DType::F64 => {
                    elements.for_each(|x: $wide| out.extend_from_slice(&f64::from(x).to_le_bytes()))
                }
                DType::F32 => elements.for_each(|x: $wide| out.extend_from_slice(&(x as f32).to_le_bytes())),
                DType::F16 => elements
                    .for_each(|x: $wide| out.extend_from_slice(&narrow_f16(f64::from(x)).to_le_bytes())),
                DType::Bf16 => elements
                    .for_each(|x: $wide| out.extend_from_slice(&narrow_bf16(f64::from(x)).to_le_bytes())),
                // Numbers outside the type become its nearest.
                DType::I64 => elements
                    .for_each(|x: $wide| out.extend_from_slice(&(f64::from(x).round() as i64).to_le_bytes())),
                DType::I32 => elements
                    .for_each(|x: $wide| out.extend_from_slice(&(f64::from(x).round() as i32).to_le_bytes())),
                DType::I16 => elements
                    .for_each(|x: $wide| out.extend_from_slice(&(f64::from(x).round() as i16).to_le_bytes())),
                _ => unreachable!("callers ask `possible` first"),
            }
        }};
    }
    out.reserve(source.len() / from.size() * to.size());
    match from {
        DType::F64 => each!(f64, f64, |x| x),
        DType::F32 => each!(f32, f32, |x| x),
        DType::F16 => each!(u16, f32, |x| f16::from_bits(x).to_f32()),
        DType::Bf16 => each!(u16, f32, |x| bf16::from_bits(x).to_f32()),
        DType::I64 => each!(i64, f64, |x| x as f64),
        DType::I32 => each!(i32, f64, f64::from),
        DType::I16 => each!(i16, f64, f64::from),
        _ => unreachable!("callers ask `possible` first"),
    }
}

/// Via f32, like PyTorch's `copy_`; `from_f64` drops the last bits of values next to a tie.
fn narrow_f16(x: f64) -> f16 {
    f16::from_f32(x as f32)
}

/// As [`narrow_f16`].
fn narrow_bf16(x: f64) -> bf16 {
    bf16::from_f32(x as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(x: f32, to: DType) -> Vec<u8> {
        let mut out = Vec::new();
        cast(&x.to_le_bytes(), DType::F32, to, &mut out);
        out
    }

    #[test]
    fn values_are_rounded_to_nearest_even() {
        // 1 + 2^-8 lies between two bf16 values; the even one is 1. 1 + 3*2^-8 lies between 1+2^-7 and 1+2^-6.
        assert_eq!(one(1.0 + 2f32.powi(-8), DType::Bf16), bf16::from_f32(1.0).to_le_bytes());
        assert_eq!(
            one(1.0 + 3.0 * 2f32.powi(-8), DType::Bf16),
            bf16::from_f32(1.0 + 2f32.powi(-6)).to_le_bytes()
        );
        assert_eq!(one(1e6, DType::F16), f16::INFINITY.to_le_bytes());
        // The least above a tie goes up, the least below goes down.
        for (tie, to) in [(1.0 + 2f32.powi(-8), DType::Bf16), (1.0 + 2f32.powi(-11), DType::F16)] {
            let beside = [tie.next_down(), tie.next_up()].map(|x| one(x, to));
            let ends = [1.0, 1.0 + 2.0 * (tie - 1.0)].map(|x| one(x, to));
            assert_eq!(beside, ends, "{to}");
        }
        assert_eq!(one(0.5, DType::F64), 0.5f64.to_le_bytes());
    }

    #[test]
    fn widening_and_back_keeps_every_bf16_value() {
        let all: Vec<u8> =
            (0..=u16::MAX).filter(|b| !bf16::from_bits(*b).is_nan()).flat_map(u16::to_le_bytes).collect();
        let (mut wide, mut back) = (Vec::new(), Vec::new());
        cast(&all, DType::Bf16, DType::F32, &mut wide);
        cast(&wide, DType::F32, DType::Bf16, &mut back);
        assert_eq!(all, back);
    }

    #[test]
    fn whole_numbers_become_others_of_the_same_value_and_bytes_are_only_copied() {
        let mut out = Vec::new();
        cast(&383i64.to_le_bytes(), DType::I64, DType::F32, &mut out);
        assert_eq!(out, 383f32.to_le_bytes());
        assert_eq!(one(383.0, DType::I64), 383i64.to_le_bytes());
        assert_eq!(one(-2.0, DType::I32), (-2i32).to_le_bytes());
        assert!(possible(DType::U8, DType::U8) && !possible(DType::U8, DType::F32));
    }
}
