//! Rounding of sixteen values at a time to the element type, with the processor's own instruction where there is one.
//!
//! Rounding to bf16 takes eleven plain operations, more than most kernels have otherwise, and no compiler turns them into the
//! single instruction. So a body that writes bf16 is generic over [`Narrow`] and is compiled once more for processors that
//! have the instruction, and for those with AVX2, where rows in 8-element registers need an explicit layout: left alone, the
//! compiler gathered elements of several blocks one by one. The bits are the same.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod instances;

use half::bf16;

use crate::element::is_bf16;
use crate::prefetch::LINE;
use crate::{Element, float};

/// Values that are treated together.
pub(crate) const LANES: usize = 16;

/// Sixteen values.
pub(crate) type Lanes = [f32; LANES];

/// A way of rounding sixteen values to bf16.
pub(crate) trait Narrow: Copy {
    /// Whether elements stay adjacent where sums use their order: with registers of sixteen lanes this costs less than
    /// reordering those of [`split_two`].
    const BESIDE: bool = false;

    /// The same for values that arithmetic in a unit has made of bf16 (and of other numbers, none of them NaN): no denormals are
    /// among them, and the lower half of a NaN is zero. What whole numbers are made to, [`float::exp2`] say, is no such value.
    #[inline(always)]
    fn of_results(self) -> impl Narrow {
        self
    }

    /// What `bf16::from_f32` of [`Element`] makes of each value.
    fn narrow(self, values: Lanes) -> [bf16; LANES];

    /// Two rows rounded and interleaved: the first row's values in the lower halves.
    fn two(self, first: Lanes, second: Lanes) -> Two;

    /// The values in element type `E`.
    #[inline(always)]
    fn store<E: Element>(self, to: &mut [E; LANES], values: Lanes) {
        if is_bf16::<E>() {
            let narrow: &mut [bf16] = bytemuck::cast_slice_mut(to);
            narrow.copy_from_slice(&self.narrow(values));
        } else {
            for l in 0..LANES {
                to[l] = E::from_f32(values[l]);
            }
        }
    }

    /// Twice sixteen values in element type `E`; past the caches if `past`, where the processor can, for an array that
    /// they do not hold. Then `to` must begin with a line, see [`lies_in_lines`], and [`Narrow::fence`] must follow the last one.
    #[inline(always)]
    fn store_two<E: Element>(self, to: &mut [E; 2 * LANES], values: [Lanes; 2], past: bool) {
        let _ = past;
        let [first, second] = values;
        if is_bf16::<E>() {
            let (two, narrow) = (self.two(first, second), bytemuck::cast_slice_mut::<E, bf16>(to));
            narrow[..LANES].copy_from_slice(&two.first);
            narrow[LANES..].copy_from_slice(&two.second);
        } else {
            for l in 0..LANES {
                (to[l], to[LANES + l]) = (E::from_f32(first[l]), E::from_f32(second[l]));
            }
        }
    }

    /// Twice sixteen values after a round trip through `E`.
    #[inline(always)]
    fn round_two<E: Element>(self, values: [Lanes; 2]) -> [Lanes; 2] {
        if !is_bf16::<E>() {
            return values;
        }
        let two = self.two(values[0], values[1]);
        [widen(&two.first), widen(&two.second)]
    }

    /// What [`split_two`] has taken apart, stored as [`Narrow::store_two`] does.
    #[inline(always)]
    fn store_split<E: Element>(self, to: &mut [E; 2 * LANES], values: [Lanes; 2], past: bool) {
        if is_bf16::<E>() {
            let pairs = self.two(values[0], values[1]).pairs;
            self.store_words(bytemuck::cast_slice_mut(to), pairs, past);
        } else {
            self.store_two(to, values, past);
        }
    }

    /// Sixteen pairs of bf16; past the caches as [`Narrow::store_two`].
    #[inline(always)]
    fn store_words(self, to: &mut [bf16], pairs: [u32; LANES], past: bool) {
        let _ = past;
        to.copy_from_slice(bytemuck::cast_slice(&pairs));
    }

    /// What [`split_two`] has taken apart, after a round trip through `E`.
    #[inline(always)]
    fn round_split<E: Element>(self, values: [Lanes; 2]) -> [Lanes; 2] {
        if is_bf16::<E>() { halves(&self.two(values[0], values[1]).pairs) } else { values }
    }

    /// Exponentials of `x − shift`, which is not positive, as exact as `E` can show.
    #[inline(always)]
    fn exponentials<E: Element>(self, x: [Lanes; 2], shift: f32) -> [Lanes; 2] {
        let mut out = [[0f32; LANES]; 2];
        for (out, x) in out.iter_mut().zip(&x) {
            for l in 0..LANES {
                out[l] = float::exp_below::<E>(x[l] - shift);
            }
        }
        out
    }

    /// Powers of two of `x`, as exact as `E` can show: [`float::exp2`], or [`float::exp2_short`] for bf16.
    #[inline(always)]
    fn powers_of_two<E: Element>(self, x: [Lanes; 2]) -> [Lanes; 2] {
        let mut out = [[0f32; LANES]; 2];
        for (out, x) in out.iter_mut().zip(&x) {
            for l in 0..LANES {
                out[l] = if is_bf16::<E>() { float::exp2_short(x[l]) } else { float::exp2(x[l]) };
            }
        }
        out
    }

    /// Logistic functions, as exact as `E` can show; see [`float::sigmoid_short`] for those of NaN.
    #[inline(always)]
    fn sigmoids<E: Element>(self, x: [Lanes; 2]) -> [Lanes; 2] {
        let mut out = [[0f32; LANES]; 2];
        for (out, x) in out.iter_mut().zip(&x) {
            for l in 0..LANES {
                out[l] = if is_bf16::<E>() { float::sigmoid_short(x[l]) } else { float::sigmoid(x[l]) };
            }
        }
        out
    }

    /// Orders what was stored past the caches before what is stored later.
    #[inline(always)]
    fn fence(self) {}

    /// The values after a round trip through `E`.
    #[inline(always)]
    fn round<E: Element>(self, values: Lanes) -> Lanes {
        if is_bf16::<E>() { widen(&self.narrow(values)) } else { values }
    }
}

/// Two rows of sixteen bf16.
pub(crate) struct Two {
    pub(crate) first: [bf16; LANES],
    pub(crate) second: [bf16; LANES],
    pub(crate) pairs: [u32; LANES],
}

/// Rounds in plain operations.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Narrow for Plain {
    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        let mut narrow = [bf16::ZERO; LANES];
        for l in 0..LANES {
            narrow[l] = <bf16 as Element>::from_f32(values[l]);
        }
        narrow
    }

    #[inline(always)]
    fn two(self, first: Lanes, second: Lanes) -> Two {
        let (first, second) = (self.narrow(first), self.narrow(second));
        let mut pairs = [0u32; LANES];
        for l in 0..LANES {
            pairs[l] = u32::from(second[l].to_bits()) << 16 | u32::from(first[l].to_bits());
        }
        Two { first, second, pairs }
    }
}

/// Twice sixteen elements as f32.
#[inline(always)]
pub(crate) fn widen_two<E: Element>(from: &[E; 2 * LANES]) -> [Lanes; 2] {
    let (halves, _) = from.as_chunks();
    [widen(&halves[0]), widen(&halves[1])]
}

/// Twice sixteen elements as f32: of bf16 the even ones and the odd ones, which takes half the operations of [`widen_two`]; of
/// others as there. For what treats all elements alike; [`Narrow::store_split`] puts them together again.
#[inline(always)]
pub(crate) fn split_two<E: Element>(from: &[E; 2 * LANES]) -> [Lanes; 2] {
    if !is_bf16::<E>() {
        return widen_two(from);
    }
    let mut pairs = [0u32; LANES];
    bytemuck::cast_slice_mut::<u32, E>(&mut pairs).copy_from_slice(from);
    halves(&pairs)
}

/// Numbers in the order of [`split_two`], where it takes elements `E` apart.
#[inline(always)]
pub(crate) fn apart<E: Element>(all: &[f32; 2 * LANES]) -> [Lanes; 2] {
    let mut split = widen_two(all);
    if is_bf16::<E>() {
        for l in 0..LANES {
            (split[0][l], split[1][l]) = (all[2 * l], all[2 * l + 1]);
        }
    }
    split
}

/// What [`split_two`] has taken apart, in the order of the elements.
#[inline(always)]
pub(crate) fn joined<E: Element>(split: [Lanes; 2]) -> [Lanes; 2] {
    if !is_bf16::<E>() {
        return split;
    }
    let mut all = [[0f32; LANES]; 2];
    for l in 0..2 * LANES {
        all[l / LANES][l % LANES] = split[l % 2][l / 2];
    }
    all
}

/// The lower and the upper halves of pairs of bf16, as f32.
#[inline(always)]
fn halves(pairs: &[u32; LANES]) -> [Lanes; 2] {
    let (mut lower, mut upper) = ([0f32; LANES], [0f32; LANES]);
    for l in 0..LANES {
        lower[l] = f32::from_bits(pairs[l] << 16);
        upper[l] = f32::from_bits(pairs[l] & 0xffff_0000);
    }
    [lower, upper]
}

/// Sixteen elements as f32.
#[inline(always)]
pub(crate) fn widen<E: Element>(from: &[E; LANES]) -> Lanes {
    let mut wide = [0f32; LANES];
    for l in 0..LANES {
        wide[l] = from[l].to_f32();
    }
    wide
}

/// The remainder of an array after its last whole chunk, padded with zeros.
///
/// Bodies go through whole chunks and give this to the same step once more. A step that asks of every chunk whether it is
/// whole is compiled to scalars.
#[inline(always)]
pub(crate) fn filled<E: Element, const N: usize>(rest: &[E]) -> [E; N] {
    let mut all = [E::default(); N];
    all[..rest.len()].copy_from_slice(rest);
    all
}

/// Whether a row begins with a cache line.
#[inline(always)]
pub(crate) fn lies_in_lines<E>(row: &[E]) -> bool {
    row.as_ptr().addr().is_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with [`Plain`] on every upper half with the lower halves around a tie, and what lies between.
    #[cfg(target_arch = "x86_64")]
    fn check_rounding(how: impl Narrow) {
        for hi in (0..=u16::MAX).step_by(2) {
            let values = std::array::from_fn(|l| {
                let lo = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xc000][l % 8];
                f32::from_bits(u32::from(hi | (l / 8) as u16) << 16 | lo)
            });
            let (got, want) = (how.narrow(values), Plain.narrow(values));
            for l in 0..LANES {
                assert_eq!(got[l].to_bits(), want[l].to_bits(), "{:08x}", values[l].to_bits());
            }
            let mut other = values;
            other.reverse();
            let (got, want) = (how.two(values, other), Plain.two(values, other));
            assert_eq!(got.pairs, want.pairs);
            assert_eq!(got.first.map(bf16::to_bits), want.first.map(bf16::to_bits));
            assert_eq!(got.second.map(bf16::to_bits), want.second.map(bf16::to_bits));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instructions_round_as_the_plain_operations_do() {
        fn check(how: impl Narrow) {
            check_rounding(how);
            check_split(how);
            check_results(how);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
        fn converting() {
            // SAFETY: the test asks for the instruction set first.
            check(unsafe { avx512::Wide::<true, false>::new() });
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn wide() {
            // SAFETY: as above.
            check(unsafe { avx512::Wide::<false, false>::new() });
        }
        #[target_feature(enable = "avx2,fma")]
        fn rounding() {
            // SAFETY: as above.
            check(unsafe { avx2::Rounded::new() });
        }
        for isa in [crate::Isa::Avx2, crate::Isa::Avx512, crate::Isa::Avx512Convert] {
            let Ok(cpu) = crate::Cpu::new(1, isa) else {
                eprintln!("skipped: this processor has no {isa}");
                continue;
            };
            // In a unit denormals are zero.
            cpu.for_each_unit(1, |_| match isa {
                // SAFETY: there is no such `Cpu` without the instructions.
                crate::Isa::Avx2 => unsafe { rounding() },
                // SAFETY: as above.
                crate::Isa::Avx512 => unsafe { wide() },
                // SAFETY: as above.
                _ => unsafe { converting() },
            });
        }
    }

    /// Compares with [`Plain`] on all upper halves, with lower ones around a tie where the number is no denormal; and what
    /// exponentials come of them.
    #[cfg(target_arch = "x86_64")]
    fn check_results(how: impl Narrow) {
        let results = how.of_results();
        for hi in (0..=u16::MAX).step_by(2) {
            let values: Lanes = std::array::from_fn(|l| {
                let hi = u32::from(hi | (l / 8) as u16) << 16;
                let lo = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xc000][l % 8];
                f32::from_bits(match f32::from_bits(hi) {
                    v if v.is_normal() => hi | lo,
                    v if v.is_nan() => hi | 0x0040_0000,
                    v if v.is_infinite() => hi,
                    _ => hi & 0x8000_0000,
                })
            });
            let mut other = values;
            other.reverse();
            assert_eq!(results.two(values, other).pairs, Plain.two(values, other).pairs);
            let (got, want) =
                (results.round_split::<bf16>([values, other]), Plain.round_split::<bf16>([values, other]));
            assert_eq!(got.map(|g| g.map(f32::to_bits)), want.map(|w| w.map(f32::to_bits)));
            let values = [values, other].map(|v| v.map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)));
            let (got, want) = (how.sigmoids::<bf16>(values), Plain.sigmoids::<bf16>(values));
            assert_eq!(got.map(|g| g.map(f32::to_bits)), want.map(|w| w.map(f32::to_bits)));
            let (got, want) = (how.powers_of_two::<bf16>(values), Plain.powers_of_two::<bf16>(values));
            assert_eq!(got.map(|g| g.map(f32::to_bits)), want.map(|w| w.map(f32::to_bits)));
            let (got, want) = (how.powers_of_two::<f32>(values), Plain.powers_of_two::<f32>(values));
            assert_eq!(got.map(|g| g.map(f32::to_bits)), want.map(|w| w.map(f32::to_bits)));
            let below = values.map(|v| v.map(|v| if v > 1.5 { -v } else { v }));
            let (got, want) = (how.exponentials::<bf16>(below, 1.5), Plain.exponentials::<bf16>(below, 1.5));
            assert_eq!(got.map(|g| g.map(f32::to_bits)), want.map(|w| w.map(f32::to_bits)));
        }
    }

    #[repr(align(64))]
    struct Line([bf16; 2 * LANES]);

    /// The result of splitting elements, and of the round trip, compared with that of halves.
    fn check_split(how: impl Narrow) {
        let from: [bf16; 2 * LANES] = std::array::from_fn(|i| bf16::from_f32(i as f32 * 1.37 - 20.0));
        let split = split_two(&from);
        for l in 0..LANES {
            assert_eq!([split[0][l], split[1][l]], [from[2 * l].to_f32(), from[2 * l + 1].to_f32()]);
        }
        let all: [f32; 2 * LANES] = std::array::from_fn(|i| from[i].to_f32());
        assert_eq!(apart::<bf16>(&all), split);
        assert_eq!(joined::<bf16>(split), widen_two(&all));
        assert_eq!([apart::<f32>(&all), joined::<f32>(split_two(&all))], [widen_two(&all); 2]);
        let scaled = |x: [Lanes; 2]| x.map(|x| x.map(|v| v * 1.234_567));
        for past in [false, true] {
            let (mut got, mut want) = (Line([bf16::ZERO; 2 * LANES]), Line([bf16::ZERO; 2 * LANES]));
            how.store_split(&mut got.0, scaled(split), past);
            how.store_two(&mut want.0, scaled(widen_two(&from)), past);
            how.fence();
            assert_eq!(got.0, want.0);
            assert_eq!(how.round_split::<bf16>(scaled(split)), split_two(&want.0));
            assert_eq!(how.round_two::<bf16>(scaled(widen_two(&from))), widen_two(&want.0));
        }
        let wide: [f32; 2 * LANES] = std::array::from_fn(|i| i as f32 * 0.37);
        let mut to = [0f32; 2 * LANES];
        how.store_split(&mut to, how.round_split::<f32>(split_two(&wide)), false);
        assert_eq!(to, wide);
    }

    #[test]
    fn what_is_taken_apart_by_pairs_comes_together_again() {
        check_split(Plain);
    }

    #[test]
    fn a_rest_is_filled_up_with_zeros() {
        assert_eq!(filled::<f32, 4>(&[1.0, 2.0]), [1.0, 2.0, 0.0, 0.0]);
        assert_eq!(filled::<f32, 3>(&[]), [0.0; 3]);
    }
}
