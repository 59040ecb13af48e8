//! The arena: tensor memory in blocks that are kept and reused.
//!
//! Touching a fresh page costs ten times as much as writing the data to it, so a training step must not ask the system for
//! memory. The arena keeps every block it has handed out, sorted by size class; a step with the same shapes as the previous
//! one finds all its blocks there. Large blocks use huge pages.

use crate::Result;
use crate::clock::Clock;
use ms_kernels::memory::Block;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Counters of an [`Arena`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes in blocks that tensors hold now.
    pub in_use_bytes: usize,
    /// Highest value of `in_use_bytes` so far.
    pub peak_bytes: usize,
    /// Bytes requested for these tensors: blocks are up to an eighth of a power of two larger.
    pub asked_bytes: usize,
    /// Highest value of `asked_bytes` so far.
    pub peak_asked_bytes: usize,
    /// Bytes of the largest tensor so far.
    pub largest_bytes: usize,
    /// Bytes taken from the system so far, in use or kept.
    pub reserved_bytes: usize,
    /// How often a block had to be taken from the system.
    pub system_allocations: u64,
    /// Blocks that were handed out so far, those not that were [counted again](Arena::count_again).
    pub taken: u64,
}

/// The memory use of some work, relative to what was in use before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// Bytes in use after it minus those before; negative if it released more than it took.
    pub(crate) left: i64,
    /// Peak bytes in use, not counting those from before.
    pub(crate) most: i64,
}

impl MemoryUse {
    /// Starts measuring work that begins with `in_use` bytes: `peak` now counts from there, and its old value is returned.
    pub(crate) fn begin(in_use: usize, peak: &mut usize) -> (usize, usize) {
        (in_use, std::mem::replace(peak, in_use))
    }

    /// What the work took that began so; `peak` is restored to the overall maximum.
    pub(crate) fn end(begun: (usize, usize), in_use: usize, peak: &mut usize) -> Self {
        let from = |bytes: usize| bytes as i64 - begun.0 as i64;
        let taken = Self { left: from(in_use), most: from(*peak) };
        *peak = begun.1.max(*peak);
        taken
    }

    /// The use of the work without a part that took `part`: what it leaves allocated, and at most that.
    pub(crate) fn without(self, part: Self) -> Self {
        let left = self.left - part.left;
        Self { left, most: left.max(0) }
    }

    /// Counts the same work once more.
    pub(crate) fn again(&self, in_use: &mut usize, peak: &mut usize) {
        *peak = (*peak).max(in_use.saturating_add_signed(self.most as isize));
        *in_use = in_use.saturating_add_signed(self.left as isize);
    }
}

/// What some work has taken of an [`Arena`], so that it can be counted [once more](Arena::count_again).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaUse {
    blocks: MemoryUse,
    asked: MemoryUse,
}

impl ArenaUse {
    /// Peak requested bytes of tensors, not counting those from before.
    pub fn most_asked(&self) -> usize {
        usize::try_from(self.asked.most).unwrap_or(0)
    }

    /// The use of the rest of the work without `part`: bytes in use after it, without temporaries.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self { blocks: self.blocks.without(part.blocks), asked: self.asked.without(part.asked) }
    }
}

#[derive(Default)]
struct State {
    free: BTreeMap<usize, Vec<Block>>,
    stats: ArenaStats,
}

impl ArenaStats {
    fn took(&mut self, class: usize, bytes: usize) {
        self.taken += 1;
        self.in_use_bytes += class;
        self.asked_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.in_use_bytes);
        self.peak_asked_bytes = self.peak_asked_bytes.max(self.asked_bytes);
        self.largest_bytes = self.largest_bytes.max(bytes);
    }
}

/// A pool of memory blocks; cloning shares it.
#[derive(Clone, Default)]
pub struct Arena {
    shared: Arc<Shared>,
    meta: bool,
}

/// Waits for a device.
type Wait = dyn Fn() -> Result<()> + Send + Sync;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Waits for the device that writes to the memory.
    wait: OnceLock<Box<Wait>>,
    /// The clock of a delayed device.
    clock: OnceLock<Clock>,
}

impl Arena {
    /// An arena that counts tensors without giving them memory until somebody reads or writes individual values: what is
    /// computed on [`MetaBackend`](crate::MetaBackend) has only shapes.
    pub fn meta() -> Self {
        Self { meta: true, ..Self::default() }
    }

    /// Whether tensors of this arena have no memory.
    pub fn is_meta(&self) -> bool {
        self.meta
    }

    /// Declares that the memory is written by a device that `wait` waits for.
    pub(crate) fn written_by(&self, wait: impl Fn() -> Result<()> + Send + Sync + 'static) {
        self.shared.wait.get_or_init(|| Box::new(wait));
    }

    /// Declares that a delayed device writes to the memory, with the given `clock`.
    pub(crate) fn delay(&self, clock: Clock) {
        self.shared.clock.get_or_init(|| clock);
    }

    /// The clock of a delayed device; `None` for other devices.
    pub(crate) fn clock(&self) -> Option<&Clock> {
        self.shared.clock.get()
    }

    /// Waits for the device that writes to the memory, if there is one.
    fn synchronize(&self) -> Result<()> {
        self.shared.wait.get().map_or(Ok(()), |wait| wait())
    }

    /// A block of at least `bytes` bytes. Its contents are whatever its last user left there.
    pub(crate) fn take(&self, bytes: usize) -> Storage {
        let class = size_class(bytes);
        let kept = {
            let mut state = self.lock();
            state.stats.took(class, bytes);
            let kept = state.free.get_mut(&class).and_then(Vec::pop);
            if kept.is_none() && !self.meta {
                state.stats.reserved_bytes += class;
                state.stats.system_allocations += 1;
            }
            kept
        };
        let fresh = kept.is_none();
        let block = OnceLock::new();
        if !self.meta {
            block.get_or_init(|| kept.unwrap_or_else(|| Block::new(class)));
        }
        let (written, unseen) = (AtomicU64::new(0), OnceLock::new());
        Storage { block, class, asked: bytes, arena: self.clone(), fresh, written, unseen }
    }

    /// Counters as of now.
    pub fn stats(&self) -> ArenaStats {
        self.lock().stats
    }

    /// Does `work`, and measures what it takes from this arena.
    pub fn measured<T>(&self, work: impl FnOnce() -> T) -> (T, ArenaUse) {
        let (blocks, asked) = {
            let s = &mut self.lock().stats;
            let blocks = MemoryUse::begin(s.in_use_bytes, &mut s.peak_bytes);
            (blocks, MemoryUse::begin(s.asked_bytes, &mut s.peak_asked_bytes))
        };
        let done = work();
        let s = &mut self.lock().stats;
        let blocks = MemoryUse::end(blocks, s.in_use_bytes, &mut s.peak_bytes);
        (done, ArenaUse { blocks, asked: MemoryUse::end(asked, s.asked_bytes, &mut s.peak_asked_bytes) })
    }

    /// Counts work with the same memory use again, without doing it: for tensors without memory, for which only sizes matter.
    pub fn count_again(&self, of: &ArenaUse) {
        let s = &mut self.lock().stats;
        of.blocks.again(&mut s.in_use_bytes, &mut s.peak_bytes);
        of.asked.again(&mut s.asked_bytes, &mut s.peak_asked_bytes);
    }

    /// Returns every unused block to the system.
    pub fn trim(&self) {
        let mut state = self.lock();
        let kept: usize = state.free.iter().map(|(class, blocks)| class * blocks.len()).sum();
        state.stats.reserved_bytes -= kept;
        state.free.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not corrupt it.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Arena").field(&self.stats()).finish()
    }
}

/// Rounds a size up so that tensors of nearly equal size share blocks: eight classes per power of two.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(64);
    let step = (bytes.next_power_of_two() / 8).max(64);
    bytes.next_multiple_of(step)
}

/// The memory of one or more tensors; returns to its arena when the last of them is dropped.
pub(crate) struct Storage {
    /// Empty in an arena without memory, until it is needed.
    block: OnceLock<Block>,
    /// Bytes of the block.
    class: usize,
    /// Requested bytes.
    asked: usize,
    arena: Arena,
    fresh: bool,
    /// The number of a delayed device's work that wrote it last.
    written: AtomicU64,
    /// What the host sees until that work has been waited for.
    unseen: OnceLock<Block>,
}

impl Storage {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether the memory was newly allocated by the system for this storage, and so is zero.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Whether it has memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.block.get().is_some()
    }

    fn block(&self) -> &Block {
        self.block.get_or_init(|| Block::new(self.class))
    }

    /// Its contents, as the host or the device sees them.
    #[track_caller]
    pub(crate) fn bytes(&self) -> &[u8] {
        let (written, place) = (self.written.load(Ordering::Relaxed), Location::caller());
        if self.arena.clock().is_some_and(|clock| clock.is_early(written, place)) {
            let unseen = || {
                let mut block = Block::new(self.class);
                block.bytes_mut().fill(UNSEEN);
                block
            };
            return self.unseen.get_or_init(unseen).bytes();
        }
        self.block().bytes()
    }

    /// Its contents, for a copy by the device itself.
    pub(crate) fn bytes_for(&self, arena: &Arena) -> Option<&[u8]> {
        (self.arena.clock().is_some() && Arc::ptr_eq(&self.arena.shared, &arena.shared))
            .then(|| self.block().bytes())
    }

    /// Its memory, and a handle that records the writer.
    pub(crate) fn writable(&mut self) -> (&mut [u8], Writing<'_>) {
        self.block();
        let Self { block, arena, written, .. } = self;
        (block.get_mut().expect("the block was made").bytes_mut(), Writing { arena, written })
    }

    /// Waits until what the device has written is there.
    pub(crate) fn ready(&self) -> Result<()> {
        let written = self.written.load(Ordering::Relaxed);
        match self.arena.clock() {
            Some(clock) if !clock.is_pending(written) => Ok(()),
            _ => self.arena.synchronize(),
        }
    }
}

/// The byte that the host sees for values that are not yet available: NaN in every floating-point type.
const UNSEEN: u8 = 0xff;

/// Records who writes to memory.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'a> {
    pub(crate) arena: &'a Arena,
    written: &'a AtomicU64,
}

impl Writing<'_> {
    /// `bytes` of the memory are about to be written: by the device, or by the host, which must have waited.
    #[track_caller]
    pub(crate) fn begin(&self, bytes: &mut [u8]) {
        let Some(clock) = self.arena.clock() else { return };
        if let Some(work) = clock.work() {
            self.written.store(work, Ordering::Relaxed);
        } else if clock.is_early(self.written.load(Ordering::Relaxed), Location::caller()) {
            bytes.fill(UNSEEN);
        }
    }

    /// The memory is about to be written by a copy, which is the device's work.
    pub(crate) fn copy(&self) {
        if let Some(clock) = self.arena.clock() {
            self.written.store(clock.next(), Ordering::Relaxed);
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let mut state = self.arena.lock();
        state.stats.in_use_bytes -= self.class;
        state.stats.asked_bytes -= self.asked;
        if let Some(block) = self.block.take().filter(|_| !self.arena.meta) {
            state.free.entry(self.class).or_default().push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_block_is_handed_out_again() {
        let arena = Arena::default();
        drop(arena.take(1000));
        drop(arena.take(1010));
        let stats = arena.stats();
        assert_eq!((stats.system_allocations, stats.in_use_bytes, stats.asked_bytes), (1, 0, 0));
        let (a, b) = (arena.take(1000), arena.take(1000));
        assert_eq!((arena.stats().in_use_bytes, arena.stats().asked_bytes), (2 * 1024, 2000));
        assert_eq!(arena.stats().system_allocations, 2);
        drop((a, b));
        arena.trim();
        assert_eq!(arena.stats().reserved_bytes, 0);
    }

    #[test]
    fn an_arena_without_memory_counts_what_another_would_take() {
        let (meta, real) = (Arena::meta(), Arena::default());
        let most = |arena: &Arena| {
            let (a, b) = (arena.take(1000), arena.take(1 << 20));
            drop(a);
            let c = arena.take(100);
            assert_eq!(b.has_memory(), !arena.is_meta());
            drop((b, c));
            let s = arena.stats();
            assert_eq!((s.in_use_bytes, s.asked_bytes), (0, 0));
            (s.peak_bytes, s.peak_asked_bytes, s.largest_bytes)
        };
        assert_eq!(most(&meta), most(&real));
        assert_eq!(most(&meta), ((1 << 20) + 1024, (1 << 20) + 1000, 1 << 20));
        // Values that are looked at are zeros.
        assert_eq!(meta.take(80).bytes()[..80], [0; 80]);
        assert_eq!(meta.stats().system_allocations, 0);
    }

    #[test]
    fn work_is_counted_again_as_if_it_were_done() {
        let (done, counted) = (Arena::meta(), Arena::meta());
        let mut kept = Vec::new();
        // Keeps one more block each time, and takes another meanwhile.
        let work = |arena: &Arena| {
            let _meanwhile = arena.take(5000);
            arena.take(1000)
        };
        let (first, measured) = counted.measured(|| work(&counted));
        kept.extend([first, work(&done)]);
        let alike = |counted: &Arena, done: &Arena| {
            let (counted, done) = (counted.stats(), done.stats());
            assert_eq!(ArenaStats { taken: done.taken, ..counted }, done);
        };
        for _ in 0..3 {
            counted.count_again(&measured);
            kept.push(work(&done));
            alike(&counted, &done);
        }
        assert_eq!((counted.stats().taken, done.stats().taken), (2, 8));
        // Released memory is counted too, and does not lower the peak.
        let ((), measured) = done.measured(|| drop(kept.pop()));
        counted.count_again(&measured);
        alike(&counted, &done);
        let most = 4 * size_class(1000) + size_class(5000);
        assert_eq!((done.stats().peak_bytes, done.stats().asked_bytes), (most, 3000));
    }

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for bytes in [1usize, 64, 65, 1000, 4097, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(64));
            assert!(class <= (bytes + bytes / 4).max(128), "{bytes} -> {class}");
        }
    }
}
