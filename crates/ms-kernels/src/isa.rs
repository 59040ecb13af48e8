//! Instruction sets, and how one body is compiled into an instance for each.

use std::fmt;
use std::str::FromStr;

use crate::{CpuError, Result};

/// An instruction set for which kernels are compiled.
///
/// Results have the same bits on all of them, for a given [`Arithmetic`]; between the two architectures but for numbers at
/// the edge of what is normal, which x86-64 judges after rounding and aarch64 before, and for signs and digits of NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler assumes of the target; slow on x86, where it means SSE2 without fused multiply-add.
    Portable,
    /// aarch64 with vectors of four lanes, which all of its processors have.
    Neon,
    /// [`Isa::Neon`] with instructions on bf16, for bf16 products in [`Arithmetic::Bfdot`].
    NeonBf16,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// [`Isa::Avx512`] with the conversion to bf16. The dot product of the same extension stays unused: on Sapphire and Emerald
    /// Rapids it has half the rate of multiply-adds.
    Avx512Convert,
    /// [`Isa::Avx512Convert`] with the bf16 dot product.
    Avx512Bf16,
    /// [`Isa::Avx512Bf16`] with matrix tiles, for bf16 products in [`Arithmetic::Tile32`].
    Amx,
}

/// Order in which products of bf16 matrices are summed, in f32. Those of f32 matrices have one order, that of `Pair`.
///
/// Each order is implemented for every instruction set, so a run can be repeated bit for bit on another machine by naming its
/// order. The products of attention use the same order. Products of form `Nt` with at most eight rows, and attention of at
/// most four queries, have one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Pairs of terms rising, the odd one first, in one chain: the order of `vdpbf16ps`.
    Pair,
    /// 32 terms at a time, even and odd ones apart, then joined and added to the sum: the order of `tdpbf16ps`.
    Tile32,
    /// Pairs of terms rising, the two products first added to each other, all sums rounded to odd: the order of `bfdot` and
    /// `bfmmla` on aarch64.
    Bfdot,
}

impl Arithmetic {
    /// All of them.
    pub const ALL: [Arithmetic; 3] = [Arithmetic::Pair, Arithmetic::Tile32, Arithmetic::Bfdot];
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arithmetic::Pair => "pair",
            Arithmetic::Tile32 => "tile32",
            Arithmetic::Bfdot => "bfdot",
        })
    }
}

impl FromStr for Arithmetic {
    type Err = CpuError;
    fn from_str(name: &str) -> Result<Self, CpuError> {
        Self::ALL
            .into_iter()
            .find(|arithmetic| arithmetic.to_string() == name)
            .ok_or_else(|| CpuError::ArithmeticName { name: name.to_owned() })
    }
}

impl Isa {
    /// All of them, those of an architecture slowest first.
    pub const ALL: [Isa; 8] = [
        Isa::Portable,
        Isa::Neon,
        Isa::NeonBf16,
        Isa::Avx2,
        Isa::Avx512,
        Isa::Avx512Convert,
        Isa::Avx512Bf16,
        Isa::Amx,
    ];

    /// The latest instruction set of this processor; [`crate::choice`] knows which one is the fastest.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The instruction set that environment variable `MS_ISA` names, if it is set.
    ///
    /// # Errors
    /// [`CpuError::IsaName`] for an unknown name, [`CpuError::Isa`] if this processor does not have it.
    pub fn from_env() -> Result<Option<Self>, CpuError> {
        match std::env::var("MS_ISA") {
            Ok(name) if !name.is_empty() => {
                let isa: Isa = name.parse()?;
                if isa.is_available() { Ok(Some(isa)) } else { Err(CpuError::Isa { isa }) }
            }
            _ => Ok(None),
        }
    }

    /// The summation order of bf16 products that is fastest with this instruction set.
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Isa::Amx => Arithmetic::Tile32,
            Isa::NeonBf16 => Arithmetic::Bfdot,
            _ => Arithmetic::Pair,
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = || {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            };
            match self {
                Isa::Portable => true,
                Isa::Neon | Isa::NeonBf16 => false,
                Isa::Avx2 => avx2(),
                Isa::Avx512 => avx512(),
                Isa::Avx512Convert | Isa::Avx512Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
                Isa::Amx => {
                    Isa::Avx512Bf16.is_available() && crate::matmul::kernel::tile32::amx::is_allowed()
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            // Bodies take pairs of bf16 apart as they lie in memory.
            let little = cfg!(target_endian = "little");
            match self {
                Isa::Portable => true,
                Isa::Neon => little,
                Isa::NeonBf16 => little && std::arch::is_aarch64_feature_detected!("bf16"),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Portable
        }
    }

    /// Every instruction set of this processor, slowest first.
    pub fn all_available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    pub(crate) fn available_names() -> String {
        Self::all_available().iter().map(Isa::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neonbf16",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Convert => "avx512convert",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        })
    }
}

impl FromStr for Isa {
    type Err = CpuError;
    fn from_str(name: &str) -> Result<Self, CpuError> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| CpuError::IsaName { name: name.to_owned() })
    }
}

/// Builds a safe `#[inline(always)]` body once per instruction set.
///
/// `instances! { fn rows<E: Element>(y: &mut [E], x: &[E]) = body::rows; }` defines `rows(isa, y, x)`.
macro_rules! instances {
    ($(fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;)+) => {$(
        #[inline]
        fn $name $(<$($g: $bound),+>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                match isa {
                    $crate::Isa::Portable | $crate::Isa::Neon | $crate::Isa::NeonBf16 => $body($($arg),*),
                    // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
                    $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                    $crate::Isa::Avx512 | $crate::Isa::Avx512Convert | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx => {
                        // SAFETY: as above.
                        unsafe { avx512($($arg),*) }
                    }
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = isa;
                $body($($arg),*)
            }
        }
    )+};
}
pub(crate) use instances;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_an_unknown_one_is_an_error() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>(), Ok(isa));
        }
        for arithmetic in Arithmetic::ALL {
            assert_eq!(arithmetic.to_string().parse::<Arithmetic>(), Ok(arithmetic));
        }
        let error = "pairs".parse::<Arithmetic>().unwrap_err().to_string();
        assert_eq!(error, "unknown arithmetic \"pairs\", expected pair, tile32 or bfdot");
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown instruction set \"sse9\", expected portable, neon, neonbf16, avx2, avx512, avx512convert, avx512bf16 or amx"
        );
    }

    /// Who runs the tests for an instruction set names it, so that its absence does not pass for success.
    #[test]
    fn the_instruction_set_that_must_be_there_is() {
        if let Ok(name) = std::env::var("MS_REQUIRE_ISA") {
            assert!(
                name.parse::<Isa>().unwrap().is_available(),
                "{name}; there are {}",
                Isa::available_names()
            );
        }
    }

    #[test]
    fn the_detected_instruction_set_is_available() {
        assert!(Isa::detect().is_available());
        assert_eq!(Isa::all_available().last(), Some(&Isa::detect()));
        assert_eq!(Isa::all_available()[0], Isa::Portable);
    }
}
