//! Tiles of [`super::product`] with AMX: 32 x 32 sums of a line in four tiles, whose operands are four more.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::avx512::pack_fours;
use super::{Body, LINE, Rows, Tile};
use crate::Isa;
use crate::matmul::kernel::Kernel;
use crate::matmul::kernel::tile32::amx as bf16_tiles;

pub(in crate::int8) struct Amx;

/// Rows of a tile, and numbers of 32 bits in one of its rows.
const TILE: usize = 16;
const WIDTH: usize = 2 * TILE;

/// Whether the processor has tiles, which the system allows, and products of bytes in them.
pub(in crate::int8) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    const INT8: u32 = 1 << 25;
    // Available tiles say that there are leaves up to 7.
    *AVAILABLE.get_or_init(|| Isa::Amx.is_available() && __cpuid_count(7, 0).edx & INT8 != 0)
}

/// # Safety
/// The instruction sets must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack(panel: &mut [i8], weight: Rows<'_>, first: usize) {
    // SAFETY: the caller's promise.
    unsafe { pack_fours::<WIDTH>(panel, weight, first, _mm512_setzero_si512()) }
}

/// A line's sums in whole numbers.
#[repr(C, align(64))]
struct Whole {
    _rows: [[i32; WIDTH]; WIDTH],
}

/// # Safety
/// The instruction sets must be there, and the tiles configured.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add(tile: &mut Tile<'_, Amx>) {
    tile.check();
    let sums = tile.sums.as_mut_ptr();
    let mut whole = MaybeUninit::<Whole>::uninit();
    let whole: *mut i32 = whole.as_mut_ptr().cast();
    for l in 0..tile.depth() {
        // SAFETY: `check` has verified the lengths. Tiles are declared as clobbered; nothing else uses them meanwhile.
        unsafe {
            let codes = tile.codes.as_ptr().add(l * WIDTH * LINE);
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm6, [{b} + {w}*1]",
                "tileloadd tmm4, [{a} + {s}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {w}*1 + 64]",
                "tdpbssd tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                "tilestored [{c} + {w}*1], tmm0",
                "tilestored [{c} + {w}*1 + 64], tmm1",
                "tilestored [{c} + {w}*1 + 2048], tmm2",
                "tilestored [{c} + {w}*1 + 2112], tmm3",
                a = in(reg) codes,
                b = in(reg) tile.panel.as_ptr().add(l * LINE * WIDTH),
                c = in(reg) whole,
                s = in(reg) LINE,
                w = in(reg) 4 * WIDTH,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags),
            );
            for i in 0..WIDTH {
                let scale = _mm512_set1_ps(tile.rounded.get_unchecked(l * WIDTH + i).scale);
                for half in 0..2 {
                    let at = i * WIDTH + half * TILE;
                    let own = _mm512_cvtepi32_ps(_mm512_loadu_si512(whole.add(at).cast()));
                    let sum = _mm512_fmadd_ps(own, scale, _mm512_loadu_ps(sums.add(at)));
                    _mm512_storeu_ps(sums.add(at), sum);
                }
            }
        }
    }
}

impl Body for Amx {
    const ROWS: usize = WIDTH;
    const COLS: usize = WIDTH;
    type Code = i8;

    fn kept(code: i32) -> i8 {
        code as i8
    }

    unsafe fn begin() {
        // SAFETY: the caller's promise. All tiles have the same size there.
        unsafe { bf16_tiles::Amx::begin() };
    }

    unsafe fn end() {
        // SAFETY: the caller's promise.
        unsafe { bf16_tiles::Amx::end() };
    }

    unsafe fn pack(panel: &mut [i8], weight: Rows<'_>, first: usize) {
        // SAFETY: the caller's promise.
        unsafe { pack(panel, weight, first) }
    }

    unsafe fn add(tile: &mut Tile<'_, Self>) {
        // SAFETY: the caller's promise.
        unsafe { add(tile) }
    }
}
