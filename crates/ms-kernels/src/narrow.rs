//! Sixteen values at a time, narrowed to the element type by the instruction that the processor has for it.
//!
//! Rounding to bf16 in plain operations takes eleven of them, more than most kernels have otherwise, and no compiler makes
//! the one instruction of them. So a body that writes bf16 is generic over [`Narrow`], and is built once more for
//! processors that have the instruction; the bits are the same.

use half::bf16;

use crate::Element;
use crate::element::is_bf16;

/// Values that are treated together.
pub(crate) const LANES: usize = 16;

/// Sixteen values.
pub(crate) type Lanes = [f32; LANES];

/// A way of rounding sixteen values to bf16.
pub(crate) trait Narrow: Copy {
    /// What `bf16::from_f32` of [`Element`] makes of each value.
    fn narrow(self, values: Lanes) -> [bf16; LANES];

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

    /// The values after a round trip through `E`.
    #[inline(always)]
    fn round<E: Element>(self, values: Lanes) -> Lanes {
        if is_bf16::<E>() { widen(&self.narrow(values)) } else { values }
    }
}

/// Rounds in plain operations.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Narrow for Plain {
    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        values.map(<bf16 as Element>::from_f32)
    }
}

/// Rounds with `vcvtneps2bf16`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Convert(());

#[cfg(target_arch = "x86_64")]
impl Convert {
    /// # Safety
    /// The processor must have AVX-512 with BF16, for as long as the value lives.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Narrow for Convert {
    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        use std::arch::x86_64::{__m256bh, _mm512_cvtneps_pbh, _mm512_loadu_ps};
        // SAFETY: who made the value has the instructions; both results are 32 bytes of plain data.
        unsafe {
            let values = _mm512_loadu_ps(values.as_ptr());
            std::mem::transmute::<__m256bh, [bf16; LANES]>(_mm512_cvtneps_pbh(values))
        }
    }
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

/// At most sixteen elements, filled up with zeros.
#[inline(always)]
pub(crate) fn padded<E: Element>(from: &[E]) -> [E; LANES] {
    let mut all = [E::default(); LANES];
    all[..from.len()].copy_from_slice(from);
    all
}

/// `y = f(inputs)`, sixteen elements at a time; every input is as long as `y`.
#[inline(always)]
pub(crate) fn map<E: Element, const N: usize>(
    how: impl Narrow,
    y: &mut [E],
    inputs: [&[E]; N],
    f: impl Fn([Lanes; N]) -> Lanes,
) {
    let len = y.len();
    let (blocks, tail) = y.as_chunks_mut::<LANES>();
    let (whole, inputs) = (blocks.len(), inputs.map(|x| &x[..len]));
    let chunks = inputs.map(|x| &x.as_chunks::<LANES>().0[..whole]);
    for (n, y) in blocks.iter_mut().enumerate() {
        how.store(y, f(chunks.map(|x| widen(&x[n]))));
    }
    if !tail.is_empty() {
        let mut last = [E::default(); LANES];
        how.store(&mut last, f(inputs.map(|x| widen(&padded(&x[whole * LANES..])))));
        tail.copy_from_slice(&last[..tail.len()]);
    }
}

/// [`map`] to two results.
#[inline(always)]
pub(crate) fn map_two<E: Element, const N: usize>(
    how: impl Narrow,
    y: &mut [E],
    z: &mut [E],
    inputs: [&[E]; N],
    f: impl Fn([Lanes; N]) -> (Lanes, Lanes),
) {
    let len = y.len();
    let (y, y_tail) = y.as_chunks_mut::<LANES>();
    let (z, z_tail) = z[..len].as_chunks_mut::<LANES>();
    let (whole, inputs) = (y.len(), inputs.map(|x| &x[..len]));
    let chunks = inputs.map(|x| &x.as_chunks::<LANES>().0[..whole]);
    for (n, (y, z)) in y.iter_mut().zip(z).enumerate() {
        let (to_y, to_z) = f(chunks.map(|x| widen(&x[n])));
        how.store(y, to_y);
        how.store(z, to_z);
    }
    if !y_tail.is_empty() {
        let (mut last_y, mut last_z) = ([E::default(); LANES], [E::default(); LANES]);
        let (to_y, to_z) = f(inputs.map(|x| widen(&padded(&x[whole * LANES..]))));
        how.store(&mut last_y, to_y);
        how.store(&mut last_z, to_z);
        y_tail.copy_from_slice(&last_y[..y_tail.len()]);
        z_tail.copy_from_slice(&last_z[..z_tail.len()]);
    }
}

/// `f` of each pair of values.
#[inline(always)]
pub(crate) fn zip(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    let mut out = [0f32; LANES];
    for l in 0..LANES {
        out[l] = f(a[l], b[l]);
    }
    out
}

/// Builds a body whose first argument is a [`Narrow`] once per instruction set; otherwise as `instances`.
macro_rules! narrowing_instances {
    ($(fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;)+) => {$(
        #[inline]
        fn $name $(<$($g: $bound),+>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { $body($crate::narrow::Plain, $($arg),*) }
            $crate::isa::instances! { fn others $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? = plain; }
            #[cfg(target_arch = "x86_64")]
            if isa >= $crate::Isa::Avx512Bf16 {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
                fn converting $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: this function is only called where the instruction is.
                    $body(unsafe { $crate::narrow::Convert::new() }, $($arg),*)
                }
                // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
                return unsafe { converting($($arg),*) };
            }
            others(isa, $($arg),*)
        }
    )+};
}
pub(crate) use narrowing_instances;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_instruction_rounds_as_the_plain_operations_do() {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        fn converted(values: Lanes) -> [bf16; LANES] {
            // SAFETY: the test asks for the instruction set first.
            (unsafe { Convert::new() }).narrow(values)
        }
        if !crate::Isa::Avx512Bf16.is_available() {
            eprintln!("skipped: this processor has no vcvtneps2bf16");
            return;
        }
        // Every upper half with the lower halves around a tie, and what lies between.
        for hi in (0..=u16::MAX).step_by(4) {
            let values = std::array::from_fn(|l| {
                let lo = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xc000][l % 8];
                f32::from_bits(u32::from(hi | (l / 8 * 3) as u16) << 16 | lo)
            });
            // SAFETY: the processor has it.
            let (got, want) = (unsafe { converted(values) }, Plain.narrow(values));
            for l in 0..LANES {
                assert_eq!(got[l].to_bits(), want[l].to_bits(), "{:08x}", values[l].to_bits());
            }
        }
    }

    #[test]
    fn a_tail_is_treated_as_whole_chunks_are() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let mut y = vec![0f32; 37];
        map(Plain, &mut y, [&a, &a], |[a, b]| zip(a, b, |a, b| a * b + 1.0));
        assert!(y.iter().enumerate().all(|(i, y)| *y == (i * i + 1) as f32));
    }
}
