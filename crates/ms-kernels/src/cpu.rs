//! Where kernels run: an instruction set and a pool of threads.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::{Scratch, with_scratch};
use crate::team::Team;
use crate::{Arithmetic, CpuError, Isa, Result};

/// Stretches that units are divided into, at most; more threads share them.
const STRETCHES: usize = 64;

/// An instruction set and a number of threads; every kernel takes one.
///
/// Cheap to clone; clones share the threads. Results never depend on the number of threads.
///
/// ```
/// let cpu = ms_kernels::Cpu::new(2, ms_kernels::Isa::detect())?;
/// let count = std::sync::atomic::AtomicUsize::new(0);
/// cpu.for_each_unit(10, |_unit| { count.fetch_add(1, std::sync::atomic::Ordering::Relaxed); });
/// assert_eq!(count.into_inner(), 10);
/// # Ok::<(), ms_kernels::CpuError>(())
/// ```
#[derive(Clone)]
pub struct Cpu {
    inner: Arc<Inner>,
}

struct Inner {
    threads: usize,
    isa: Isa,
    arithmetic: Arithmetic,
    /// `threads - 1` helpers; the caller is the last participant.
    team: Option<Team>,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu")
            .field("threads", &self.threads())
            .field("isa", &self.isa())
            .field("arithmetic", &self.arithmetic())
            .finish()
    }
}

impl Cpu {
    /// [`Cpu::with_arithmetic`] with the summation order that is fastest with `isa`.
    ///
    /// # Errors
    /// As there.
    pub fn new(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        Self::with_arithmetic(threads, isa, isa.arithmetic())
    }

    /// A pool of `threads` threads, the caller included, that uses `isa` and sums products of bf16 matrices in the order
    /// `arithmetic`. With 0 or 1, no thread is started.
    ///
    /// # Errors
    /// [`CpuError::Isa`] if this processor does not have `isa`, [`CpuError::Threads`] if no thread can be started.
    pub fn with_arithmetic(threads: usize, isa: Isa, arithmetic: Arithmetic) -> Result<Self, CpuError> {
        if !isa.is_available() {
            return Err(CpuError::Isa { isa });
        }
        let threads = threads.max(1);
        let started = || Team::new(threads - 1);
        let team = (threads > 1).then(started).transpose();
        let team = team.map_err(|e| CpuError::Threads { threads, reason: e.to_string() })?;
        Ok(Self { inner: Arc::new(Inner { threads, isa, arithmetic, team }) })
    }

    /// One thread, the latest instruction set and its summation order.
    pub fn single() -> Self {
        let isa = Isa::detect();
        Self { inner: Arc::new(Inner { threads: 1, isa, arithmetic: isa.arithmetic(), team: None }) }
    }

    /// Threads that take part in a call, the caller included.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.inner.isa
    }

    /// The summation order of bf16 products.
    pub fn arithmetic(&self) -> Arithmetic {
        self.inner.arithmetic
    }

    /// Calls `work(unit)` once for each unit in `0..units`, on all threads, and returns when all are done.
    ///
    /// Each thread takes the units of a stretch of its own one after the other, for what follows in memory is often asked for
    /// ahead, and then what is left of the others': a slow thread delays no other, and one that is not awake yet delays none.
    /// Denormals are flushed to zero on every participating thread for the duration. A single unit runs on the caller.
    pub fn for_each_unit(&self, units: usize, work: impl Fn(usize) + Sync) {
        self.share(units, &work);
    }

    /// [`for_each_unit`](Self::for_each_unit), compiled once for all kernels.
    fn share(&self, units: usize, work: &(dyn Fn(usize) + Sync)) {
        let stretches = self.inner.threads.min(units).clamp(1, STRETCHES);
        let start = |stretch: usize| units / stretches * stretch + (units % stretches).min(stretch);
        let next: [AtomicUsize; STRETCHES] = std::array::from_fn(|stretch| AtomicUsize::new(start(stretch)));
        let come = AtomicUsize::new(0);
        let take_all = || {
            let _flush = FlushDenormals::new();
            let own = come.fetch_add(1, Ordering::Relaxed);
            for stretch in (0..stretches).map(|after| (own + after) % stretches) {
                loop {
                    let unit = next[stretch].fetch_add(1, Ordering::Relaxed);
                    if unit >= start(stretch + 1) {
                        break;
                    }
                    work(unit);
                }
            }
        };
        match &self.inner.team {
            Some(team) if units > 1 => team.run(units - 1, &take_all),
            _ => take_all(),
        }
    }
}

/// An array that is written row by row: the rows and their width.
pub(crate) type Rows<'a, T> = (&'a mut [T], usize);

impl Cpu {
    /// Calls `work(row, a)` once for each of `rows` rows with that row of an array, `step` rows a unit.
    pub(crate) fn for_each_row<A: Send>(
        &self,
        rows: usize,
        step: usize,
        a: Rows<'_, A>,
        work: impl Fn(usize, &mut [A]) + Sync,
    ) {
        self.for_each_row_of_both(rows, step, a, (&mut [] as &mut [u8], 0), |row, a, _| work(row, a));
    }

    /// [`for_each_row`](Self::for_each_row) of two arrays: `work(row, a, b)`.
    pub(crate) fn for_each_row_of_both<A: Send, B: Send>(
        &self,
        rows: usize,
        step: usize,
        (a, a_width): Rows<'_, A>,
        (b, b_width): Rows<'_, B>,
        work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let (a, b) = (Disjoint::new(a), Disjoint::new(b));
        self.for_each_unit(rows.div_ceil(step), |u| {
            for row in u * step..rows.min((u + 1) * step) {
                // SAFETY: a unit takes its own rows.
                let (a, b) = unsafe { (a.part(row * a_width, a_width), b.part(row * b_width, b_width)) };
                work(row, a, b);
            }
        });
    }

    /// `sum[w] += Σ_row contribution`: `work(row, partial)` adds one row's contribution to a partial sum.
    ///
    /// Partial sums of 64 rows each join in order, so the bits do not depend on the number of threads.
    pub(crate) fn sum_rows(&self, sum: &mut [f32], rows: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        const ROWS: usize = 64;
        let width = sum.len();
        let units = rows.div_ceil(ROWS);
        with_scratch(Scratch::Sums, units * width, |partials: &mut [f32]| {
            let parts = Disjoint::new(partials);
            self.for_each_unit(units, |u| {
                // SAFETY: a unit takes its own partial sum.
                let part = unsafe { parts.part(u * width, width) };
                part.fill(0.0);
                for row in u * ROWS..rows.min((u + 1) * ROWS) {
                    work(row, part);
                }
            });
            for part in partials.chunks_exact(width.max(1)) {
                for (s, p) in sum.iter_mut().zip(part) {
                    *s += p;
                }
            }
        });
    }
}

/// A mutable slice that units of one parallel call write disjoint parts of.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for `&mut [T]`, whose parts may be used on other threads if T may be sent there.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Where the slice begins.
    pub(crate) fn address(&self) -> *const T {
        self.start
    }

    /// The part of `len` elements from `start`.
    ///
    /// # Panics
    /// If the part is not inside the slice.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a unit's part lies inside the slice");
        // SAFETY: inside the slice by the assertion, not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Makes this thread treat denormals as zero until dropped.
struct FlushDenormals {
    before: u64,
}

impl FlushDenormals {
    fn new() -> Self {
        let before = control::read();
        control::write(before | control::FLUSH);
        Self { before }
    }
}

impl Drop for FlushDenormals {
    fn drop(&mut self) {
        control::write(self.before);
    }
}

/// The floating-point control register of this thread.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// Flush-to-zero (bit 15) and denormals-are-zero (bit 6) of MXCSR.
    pub(super) const FLUSH: u64 = 0x8040;

    pub(super) fn read() -> u64 {
        let mut value = 0u32;
        // SAFETY: stores four bytes to the address of a u32 that we own.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        u64::from(value)
    }

    pub(super) fn write(value: u64) {
        let value = value as u32;
        // SAFETY: loads a value that was read before, at most with FTZ and DAZ added: no exception is unmasked and
        // rounding stays to nearest. The compiler folds no arithmetic on denormals across this call that our
        // results depend on: operands come from memory that it cannot see through.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    /// FZ, bit 24 of FPCR.
    pub(super) const FLUSH: u64 = 1 << 24;

    pub(super) fn read() -> u64 {
        let value: u64;
        // SAFETY: reads a register that user code may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(value: u64) {
        // SAFETY: writes back a value that was read before, at most with FZ added.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) const FLUSH: u64 = 0;
    pub(super) fn read() -> u64 {
        0
    }
    pub(super) fn write(_value: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_unit_is_done_once_for_any_number_of_threads() {
        for threads in [0, 1, 2, 3, 5, STRETCHES + 2] {
            let cpu = Cpu::new(threads, Isa::Portable).unwrap();
            for units in [0usize, 1, 2, 7, 100] {
                let done: Vec<AtomicU32> = (0..units).map(|_| AtomicU32::new(0)).collect();
                cpu.for_each_unit(units, |u| {
                    done[u].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|d| d.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {units} units"
                );
            }
        }
    }

    #[test]
    fn denormals_are_flushed_inside_units_and_kept_outside() {
        let tiny = black_box(f32::MIN_POSITIVE);
        let cpu = Cpu::new(3, Isa::Portable).unwrap();
        let kept = AtomicU32::new(0);
        cpu.for_each_unit(32, |_| {
            if black_box(tiny) * black_box(0.5) != 0.0 {
                kept.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(kept.into_inner(), 0);
        assert!(black_box(tiny) * black_box(0.5) > 0.0);
    }

    #[test]
    fn an_unavailable_instruction_set_is_an_error() {
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            assert_eq!(Cpu::new(1, isa).err(), Some(CpuError::Isa { isa }));
        }
    }
}
