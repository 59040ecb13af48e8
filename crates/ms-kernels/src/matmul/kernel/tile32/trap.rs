//! Emulation of tile instructions on a processor without them.
//!
//! Such a processor raises an invalid-opcode exception, which Linux delivers to the process as `SIGILL`. The handler here
//! decodes the instruction, performs it on tiles of its own, bf16 by [`super::model`], and resumes the thread after it. So
//! the tests run the exact instructions of the AMX kernels - addresses, strides, order, configuration - on any Linux machine
//! with AVX-512 and BF16, which packing needs.

use std::cell::RefCell;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::model;

/// Tiles of a thread, while they are configured.
struct Tiles {
    configured: bool,
    /// Tile, row, bytes of the row.
    rows: [[[u8; 64]; 16]; 8],
}

thread_local! {
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles { configured: false, rows: [[[0; 64]; 16]; 8] }) };
}

/// Tile instructions performed so far by the handler.
static PERFORMED: AtomicUsize = AtomicUsize::new(0);

/// Makes the AMX kernels run in this process; `false` says that the processor itself has them.
pub(crate) fn install() -> bool {
    if crate::Isa::Amx.is_available() {
        return false;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `on_illegal` has the signature that SA_SIGINFO asks for and does only what a handler may.
        let status = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_illegal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(status, 0, "a handler of SIGILL can be set");
    });
    true
}

/// Tile instructions that were performed in software since the process began.
pub(crate) fn performed() -> usize {
    PERFORMED.load(Ordering::Relaxed)
}

extern "C" fn on_illegal(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the interrupted thread's context, which nobody else uses meanwhile.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    match perform(at, registers) {
        Some(length) => {
            PERFORMED.fetch_add(1, Ordering::Relaxed);
            registers[libc::REG_RIP as usize] += length as i64;
        }
        None => {
            // Not ours, or wrong: let it kill the process as it would have.
            // SAFETY: restores the default action.
            unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        }
    }
}

/// The value of general register `n` as instructions number them.
fn register(registers: &[i64; 23], n: u8) -> u64 {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX,
        REG_RCX, REG_RDI, REG_RDX, REG_RSI, REG_RSP,
    };
    let order = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10,
        REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    registers[order[usize::from(n)] as usize].cast_unsigned()
}

/// An address of an instruction: without and with the index register, which of a tile's address is the stride.
struct Address {
    base: u64,
    index: u64,
    /// Bytes of the instruction after its `ModRM` byte.
    length: usize,
}

/// Reads a memory operand whose `ModRM` byte stands at `at`.
fn address(at: *const u8, registers: &[i64; 23], x: u8, b: u8) -> Option<Address> {
    // SAFETY: the processor has fetched these bytes as an instruction.
    let byte = |i: usize| unsafe { *at.add(i) };
    let (kind, rm) = (byte(0) >> 6, byte(0) & 7);
    let (base, index, mut length) = if rm == 4 {
        let sib = byte(1);
        let index = (sib >> 3 & 7) | x << 3;
        let scaled = if index == 4 { 0 } else { register(registers, index) << (sib >> 6) };
        if kind == 0 && sib & 7 == 5 {
            return None;
        }
        (register(registers, (sib & 7) | b << 3), scaled, 1)
    } else {
        if kind == 0 && rm == 5 {
            // Relative to the next instruction: known once its length is, so the caller adds it.
            let displacement = i32::from_le_bytes([byte(1), byte(2), byte(3), byte(4)]);
            let next = (at as u64).wrapping_add(5);
            return Some(Address {
                base: next.wrapping_add_signed(displacement.into()),
                index: 0,
                length: 4,
            });
        }
        (register(registers, rm | b << 3), 0, 0)
    };
    let displacement = match kind {
        0 => 0,
        1 => i64::from(byte(1 + length).cast_signed()),
        2 => {
            let d = [byte(1 + length), byte(2 + length), byte(3 + length), byte(4 + length)];
            i64::from(i32::from_le_bytes(d))
        }
        _ => return None,
    };
    length += [0, 1, 4][usize::from(kind)];
    Some(Address { base: base.wrapping_add_signed(displacement), index, length })
}

/// Performs the instruction at `at`; its length, or nothing if it is not a legal tile instruction.
fn perform(at: *const u8, registers: &[i64; 23]) -> Option<usize> {
    // SAFETY: the processor has fetched these bytes as an instruction, and all of ours have five or more.
    let byte = |i: usize| unsafe { *at.add(i) };
    // Three-byte VEX, map 0F38, W 0, 128 bits.
    if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
        return None;
    }
    let (r, x, b) = (!byte(1) >> 7 & 1, !byte(1) >> 6 & 1, !byte(1) >> 5 & 1);
    let (v, prefix) = (!byte(2) >> 3 & 15, byte(2) & 3);
    let modrm = byte(4);
    let (reg, rm, is_register) = (usize::from(modrm >> 3 & 7), usize::from(modrm & 7), modrm >> 6 == 3);
    let operand = || address(at.wrapping_add(4), registers, x, b);
    TILES.with_borrow_mut(|tiles| {
        match (byte(3), prefix, is_register) {
            (0x49, 0, false) => {
                let from = operand()?;
                // SAFETY: the operand of `ldtilecfg` is 64 readable bytes.
                let config: [u8; 64] = unsafe { (from.base as *const [u8; 64]).read() };
                let rows_and_bytes = (0..8).all(|t| config[48 + t] == 16 && config[16 + 2 * t] == 64);
                if config[0] != 1 || !rows_and_bytes {
                    return None;
                }
                *tiles = Tiles { configured: true, rows: [[[0; 64]; 16]; 8] };
                return Some(5 + from.length);
            }
            (0x49, 0, true) => {
                tiles.configured = false;
                return Some(5);
            }
            _ => {}
        }
        if !tiles.configured || r != 0 {
            return None;
        }
        match (byte(3), prefix, is_register) {
            (0x49, 3, true) => {
                tiles.rows[reg] = [[0; 64]; 16];
                Some(5)
            }
            (0x4b, 3, false) => {
                let from = operand()?;
                for (i, row) in tiles.rows[reg].iter_mut().enumerate() {
                    let at = from.base.wrapping_add(from.index.wrapping_mul(i as u64)) as *const [u8; 64];
                    // SAFETY: a tile's rows are readable, or the processor too would fault here.
                    *row = unsafe { at.read_unaligned() };
                }
                Some(5 + from.length)
            }
            (0x4b, 2, false) => {
                let to = operand()?;
                for (i, row) in tiles.rows[reg].iter().enumerate() {
                    let at = to.base.wrapping_add(to.index.wrapping_mul(i as u64)) as *mut [u8; 64];
                    // SAFETY: as above, writable.
                    unsafe { at.write_unaligned(*row) };
                }
                Some(5 + to.length)
            }
            (0x5c, 2, true) => {
                let (a, b) = (tiles.rows[rm], tiles.rows[usize::from(v)]);
                let number = |row: &[u8; 64], k: usize| {
                    f32::from_bits(u32::from(u16::from_le_bytes([row[2 * k], row[2 * k + 1]])) << 16)
                };
                for (row, sums) in a.iter().zip(&mut tiles.rows[reg]) {
                    for j in 0..16 {
                        let at: &mut [u8; 4] = (&mut sums[4 * j..4 * j + 4]).try_into().ok()?;
                        let terms = (0..32).map(|k| (number(row, k), number(&b[k / 2], 2 * j + k % 2)));
                        *at = model::product(f32::from_le_bytes(*at), terms).to_le_bytes();
                    }
                }
                Some(5)
            }
            (0x5e, 3, true) => {
                let (a, b) = (tiles.rows[rm], tiles.rows[usize::from(v)]);
                let number = |row: &[u8; 64], k: usize| i32::from(row[k].cast_signed());
                for (row, sums) in a.iter().zip(&mut tiles.rows[reg]) {
                    for j in 0..16 {
                        let at: &mut [u8; 4] = (&mut sums[4 * j..4 * j + 4]).try_into().ok()?;
                        let sum: i32 =
                            (0..64).map(|k| number(row, k) * number(&b[k / 4], 4 * j + k % 4)).sum();
                        *at = i32::from_le_bytes(*at).wrapping_add(sum).to_le_bytes();
                    }
                }
                Some(5)
            }
            _ => None,
        }
    })
}
