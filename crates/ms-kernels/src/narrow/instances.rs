//! How one rounding body is compiled into an instance for each instruction set.

/// Builds a body whose first argument is a [`crate::narrow::Narrow`] once per instruction set; otherwise as `instances`.
macro_rules! narrowing_instances {
    ($(fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;)+) => {$(
        #[inline]
        fn $name $(<$($g: $bound),+>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: this function is only called where the instructions are.
                    $body(unsafe { $crate::narrow::avx2::Rounded::new() }, $($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: as above.
                    $body(unsafe { $crate::narrow::avx512::Wide::<false, false>::new() }, $($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
                fn converting $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: as above.
                    $body(unsafe { $crate::narrow::avx512::Wide::<true, false>::new() }, $($arg),*)
                }
                match isa {
                    $crate::Isa::Portable | $crate::Isa::Neon | $crate::Isa::NeonBf16 => {
                        $body($crate::narrow::Plain, $($arg),*)
                    }
                    // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
                    $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx512 => unsafe { avx512($($arg),*) },
                    $crate::Isa::Avx512Convert | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx => {
                        // SAFETY: as above.
                        unsafe { converting($($arg),*) }
                    }
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = isa;
                $body($crate::narrow::Plain, $($arg),*)
            }
        }
    )+};
}
pub(crate) use narrowing_instances;
