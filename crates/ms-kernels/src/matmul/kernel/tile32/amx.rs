//! AMX: 32 x 32 sums in four tiles, bf16 operands in four more.
//!
//! A panel of either operand holds, for each 32 terms of `k`, two tiles of one kilobyte: for the left operand 16 rows of 16
//! pairs, for the right one 16 pairs of 16 columns. A step of 32 terms is four tile loads and four products. The panel of `b`
//! stays in the first-level cache; `a` streams from the second at two kilobytes per 64 cycles of products.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::super::avx512::pack::{first, first32, transpose};
use super::super::{Kernel, Order, Side, Source, Store, Tile};
use super::TILE_TERMS;
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Amx;

/// Rows, pairs or columns of one tile.
const TILE: usize = 16;
/// Rows and columns of the sums: two tiles each way.
const WIDTH: usize = 2 * TILE;
/// Elements of a panel for a step of 32 terms.
const STEP: usize = 2 * TILE * TILE;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Whether the processor has bf16 tiles and the system lets this process use them; the permission is requested once.
///
/// Linux gives the eight kilobytes of tile state to processes that ask (`arch_prctl`, `ARCH_REQ_XCOMP_PERM`); threads that
/// exist by then have it too.
pub(crate) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        const OSXSAVE: u32 = 1 << 27;
        const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
        const TILE_STATES: u64 = 1 << 17 | 1 << 18;
        if __get_cpuid_max(0).0 < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return false;
        }
        if __cpuid_count(7, 0).edx & BF16_AND_TILE != BF16_AND_TILE {
            return false;
        }
        // SAFETY: OSXSAVE says that the instruction is there.
        (unsafe { enabled_states() }) & TILE_STATES == TILE_STATES && asked()
    })
}

/// States that the system saves for threads: the register XCR0.
///
/// # Safety
/// The processor must have `xgetbv`.
#[target_feature(enable = "xsave")]
unsafe fn enabled_states() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Asks the system for the tile state.
#[cfg(target_os = "linux")]
fn asked() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: a system call on numbers; an older system answers with an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// No other system has been tried.
#[cfg(not(target_os = "linux"))]
fn asked() -> bool {
    false
}

/// Eight tiles of 16 rows of 64 bytes.
static TILES: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Sums that do not lie in memory as whole tiles.
#[repr(C, align(64))]
struct Sums {
    _rows: [[f32; WIDTH]; WIDTH],
}

/// `TILE` lines from `line` on, one a register, of 16 pairs of terms from `k` on; zeros where there is nothing.
///
/// # Safety
/// The source must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn lines_of_pairs(source: &Source<u16>, line: usize, k: usize) -> [__m512i; TILE] {
    let exist = source.lines.saturating_sub(line).min(TILE);
    let terms = first32(source.terms.saturating_sub(k));
    let from = source.data.wrapping_add(line * source.stride + k);
    let mut r = [_mm512_setzero_si512(); TILE];
    for (i, r) in r.iter_mut().enumerate().take(exist) {
        // SAFETY: the line exists and has the mask's terms.
        *r = unsafe { _mm512_maskz_loadu_epi16(terms, from.wrapping_add(i * source.stride).cast()) };
    }
    r
}

/// 16 pairs of terms from `k` on, one a register, of `TILE` lines from `line` on, where terms are strided; zeros where
/// there is nothing.
///
/// # Safety
/// The source must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pairs_of_lines(source: &Source<u16>, line: usize, k: usize) -> [__m512i; TILE] {
    let lines = first(source.lines.saturating_sub(line).min(TILE));
    let mut r = [_mm512_setzero_si512(); TILE];
    for (p, r) in r.iter_mut().enumerate() {
        let k = k + 2 * p;
        let of = |k: usize| if k < source.terms { lines } else { 0 };
        let at = source.data.wrapping_add(k * source.stride + line);
        // SAFETY: the masks hold existing elements only.
        unsafe {
            let even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(of(k), at.cast()));
            let odd = _mm256_maskz_loadu_epi16(of(k + 1), at.wrapping_add(source.stride).cast());
            *r = _mm512_or_si512(even, _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(odd)));
        }
    }
    r
}

/// Stores a tile.
///
/// # Safety
/// `to` must have room for it.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_tile(to: *mut u32, rows: &[__m512i; TILE]) {
    for (i, row) in rows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.wrapping_add(TILE * i).cast(), *row) };
    }
}

/// Packs a source whose `k` is contiguous.
///
/// # Safety
/// As for [`Kernel::pack_contiguous`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_contiguous(source: Source<u16>, side: Side, to: *mut u32) {
    let steps = source.filled / TILE_TERMS;
    for line in (0..source.lines.next_multiple_of(WIDTH)).step_by(TILE) {
        let to = to.wrapping_add(line / WIDTH * steps * STEP + line % WIDTH * TILE);
        for step in 0..steps {
            // SAFETY: the caller's promise.
            unsafe {
                let mut rows = lines_of_pairs(&source, line, step * TILE_TERMS);
                if side == Side::Right {
                    transpose(&mut rows);
                }
                store_tile(to.wrapping_add(step * STEP), &rows);
            }
        }
    }
}

/// Packs a source whose `k` is strided, in the order of memory.
///
/// # Safety
/// As for [`Kernel::pack_strided`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_strided(source: Source<u16>, side: Side, to: *mut u32) {
    let steps = source.filled / TILE_TERMS;
    for step in 0..steps {
        for line in (0..source.lines.next_multiple_of(WIDTH)).step_by(TILE) {
            let to = to.wrapping_add((line / WIDTH * steps + step) * STEP + line % WIDTH * TILE);
            // SAFETY: the caller's promise.
            unsafe {
                let mut rows = pairs_of_lines(&source, line, step * TILE_TERMS);
                if side == Side::Left {
                    transpose(&mut rows);
                }
                store_tile(to, &rows);
            }
        }
    }
}

/// `to = from + a · b` over `steps` of 32 terms, 32 x 32 sums; `from` and `to` have rows of `.1` bytes, and no `from` is
/// zero.
///
/// # Safety
/// All must be readable or writable; the tiles must be configured.
#[inline]
unsafe fn products(
    steps: usize,
    a: *const u32,
    b: *const u32,
    from: Option<(*const f32, usize)>,
    to: (*mut f32, usize),
) {
    // SAFETY: the caller's promise. Tiles are named as changed wherever an instruction changes them; between the
    // statements nothing else uses them, for no other code of this crate is called.
    unsafe {
        match from {
            Some((at, stride)) => asm!(
                "tileloadd tmm0, [{c} + {s}*1]",
                "tileloadd tmm1, [{c} + {s}*1 + 64]",
                "tileloadd tmm2, [{d} + {s}*1]",
                "tileloadd tmm3, [{d} + {s}*1 + 64]",
                c = in(reg) at,
                d = in(reg) at.wrapping_byte_add(TILE * stride),
                s = in(reg) stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, preserves_flags, readonly),
            ),
            None => asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, preserves_flags, nomem),
            ),
        }
        if steps > 0 {
            asm!(
                "2:",
                "tileloadd tmm6, [{b} + {s}*1]",
                "tileloadd tmm4, [{a} + {s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                n = inout(reg) steps => _,
                s = in(reg) 4 * TILE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
        let (to, stride) = to;
        asm!(
            "tilestored [{c} + {s}*1], tmm0",
            "tilestored [{c} + {s}*1 + 64], tmm1",
            "tilestored [{d} + {s}*1], tmm2",
            "tilestored [{d} + {s}*1 + 64], tmm3",
            c = in(reg) to,
            d = in(reg) to.wrapping_byte_add(TILE * stride),
            s = in(reg) stride,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for [`Kernel::tile`], in a thread whose tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn tile(tile: &Tile<u32>) {
    const ROW: usize = 4 * WIDTH;
    let whole = tile.rows == WIDTH && tile.cols == WIDTH;
    let masks = [first(tile.cols), first(tile.cols.saturating_sub(TILE))];
    // Rows and columns that do not exist are never stored from it: what stands there does not matter.
    let mut sums = MaybeUninit::<Sums>::uninit();
    let own: *mut f32 = sums.as_mut_ptr().cast();
    // SAFETY: masks keep loads and stores inside the columns that exist; the rest is the caller's promise.
    unsafe {
        let from = match tile.start {
            Some((from, stride)) if whole => Some((from, 4 * stride)),
            Some((from, stride)) => {
                for i in 0..tile.rows {
                    for j in 0..2 {
                        let v = _mm512_maskz_loadu_ps(masks[j], from.wrapping_add(i * stride + TILE * j));
                        _mm512_storeu_ps(own.add(i * WIDTH + TILE * j), v);
                    }
                }
                Some((own.cast_const(), ROW))
            }
            None => None,
        };
        let steps = tile.steps / TILE;
        match tile.store {
            Store::F32 { to, stride } if whole && tile.bias.is_null() => {
                products(steps, tile.a, tile.b, from, (to, 4 * stride));
                return;
            }
            _ => products(steps, tile.a, tile.b, from, (own, ROW)),
        }
        for i in 0..tile.rows {
            for j in 0..2 {
                let mut v = _mm512_loadu_ps(own.add(i * WIDTH + TILE * j));
                if !tile.bias.is_null() {
                    v = _mm512_add_ps(v, _mm512_loadu_ps(tile.bias.add(TILE * j)));
                }
                match tile.store {
                    Store::F32 { to, stride } => {
                        _mm512_mask_storeu_ps(to.wrapping_add(i * stride + TILE * j), masks[j], v);
                    }
                    Store::Bf16 { to, stride } => {
                        let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
                        let to = to.wrapping_add(i * stride + TILE * j).cast();
                        _mm256_mask_storeu_epi16(to, masks[j], rounded);
                    }
                }
            }
        }
    }
}

/// Products of tiles from registers only, on numbers that are not zero, for zeros run faster; operations done.
///
/// # Safety
/// The instruction set must be there.
pub(crate) unsafe fn tile_loop(rounds: usize) -> f64 {
    // All bf16 from 1 to 2.
    let mut data = [0u16; 4 * TILE * TILE];
    for (i, v) in data.iter_mut().enumerate() {
        *v = 0x3f80 | (i as u16).wrapping_mul(0x9e37) >> 9;
    }
    // SAFETY: the caller's promise; two tiles are loaded from 2 KiB of data.
    unsafe {
        Amx::begin();
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tileloadd tmm4, [{d} + {s}*1]",
            "tileloadd tmm5, [{d} + {s}*1 + 1024]",
            "tileloadd tmm6, [{d} + {s}*1]",
            "tileloadd tmm7, [{d} + {s}*1 + 1024]",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 2b",
            d = in(reg) data.as_ptr(),
            s = in(reg) 4 * TILE,
            n = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        );
        Amx::end();
    }
    (rounds.max(1) * 4 * TILE * TILE * TILE_TERMS * 2) as f64
}

impl Kernel for Amx {
    const MR: usize = WIDTH;
    const NR: usize = WIDTH;
    const TERMS: usize = 2;
    const GRANULE: usize = TILE_TERMS;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = 256;
    const LEFT_IN_PLACE: bool = false;
    type Packed = u32;

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: reads 64 bytes of a static; the process was allowed the state when the instruction set was found.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const TILES, options(nostack, preserves_flags, readonly));
        };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: gives back what `begin` took.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { pack_contiguous(source.bits(), side, to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { pack_strided(source.bits(), side, to) }
    }

    unsafe fn tile(t: &Tile<u32>) {
        // SAFETY: the caller's promise.
        unsafe { tile(t) }
    }
}
