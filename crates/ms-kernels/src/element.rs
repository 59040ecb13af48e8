//! The element types of activations and weights.

use bytemuck::Pod;
use half::bf16;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// A type that tensors are stored in; arithmetic is in f32.
///
/// Sealed: f32 and [`half::bf16`].
pub trait Element:
    Pod + Send + Sync + Default + PartialEq + PartialOrd + std::fmt::Debug + sealed::Sealed + 'static
{
    /// Name as in a checkpoint: `f32` or `bf16`.
    const NAME: &'static str;
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// The nearest value of this type, ties to even.
    ///
    /// For bf16 a denormal becomes zero of the same sign and a NaN becomes quiet with its upper half kept, as
    /// the processor's own conversion does (`half::bf16::from_f32` keeps denormals).
    fn from_f32(value: f32) -> Self;
    /// `value` after a round trip through this type.
    #[inline(always)]
    fn round(value: f32) -> f32 {
        Self::from_f32(value).to_f32()
    }
}

impl Element for f32 {
    const NAME: &'static str = "f32";
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    const NAME: &'static str = "bf16";
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let finite = if magnitude < 0x0080_0000 { bits & 0x8000_0000 } else { rounded };
        let all = if magnitude > 0x7f80_0000 { bits | 0x0040_0000 } else { finite };
        bf16::from_bits((all >> 16) as u16)
    }
}

/// Whether `E` is bf16 rather than f32; known when a kernel is compiled.
#[inline(always)]
pub(crate) const fn is_bf16<E: Element>() -> bool {
    size_of::<E>() == size_of::<bf16>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_conversion_rounds_to_even_and_flushes_denormals() {
        let to = |bits: u32| bf16::from_f32_ours(f32::from_bits(bits)).to_bits();
        assert_eq!(to(0x3f80_8000), 0x3f80, "tie to even, down");
        assert_eq!(to(0x3f81_8000), 0x3f82, "tie to even, up");
        assert_eq!(to(0x3f80_8001), 0x3f81);
        assert_eq!(to(0x007f_ffff), 0x0000, "denormal");
        assert_eq!(to(0x807f_ffff), 0x8000, "negative denormal");
        assert_eq!(to(0x7f7f_ffff), 0x7f80, "overflow to infinity");
        assert_eq!(to(0xff80_0000), 0xff80);
        assert_eq!(to(0x7f80_0001), 0x7fc0, "a signalling NaN becomes quiet");
        assert_eq!(to(0xffff_ffff), 0xffff);
    }

    #[test]
    fn bf16_conversion_agrees_with_half_on_every_normal_upper_half() {
        for hi in 0..=u16::MAX {
            for lo in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(hi) << 16 | lo);
                if value.is_normal() || value == 0.0 || value.is_infinite() {
                    assert_eq!(
                        bf16::from_f32_ours(value).to_bits(),
                        half::bf16::from_f32(value).to_bits(),
                        "{value:e}"
                    );
                }
            }
        }
    }

    trait Ours {
        fn from_f32_ours(value: f32) -> Self;
    }
    impl Ours for bf16 {
        fn from_f32_ours(value: f32) -> Self {
            <bf16 as Element>::from_f32(value)
        }
    }
}
