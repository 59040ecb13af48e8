//! Memory of tensors: blocks that are kept and handed out again.
//!
//! A fresh page costs ten times more than the data written to it, so a training step must not ask the system
//! for memory. The arena keeps every block it ever gave out, sorted by size class; a step of the same shapes as
//! the one before finds all its blocks in the arena. Large blocks lie on huge pages ([`ms_kernels::memory`]).

use ms_kernels::memory::Block;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counters of an [`Arena`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes in blocks that tensors hold now.
    pub in_use_bytes: usize,
    /// Highest value of `in_use_bytes` so far.
    pub peak_bytes: usize,
    /// Bytes that these tensors asked for: blocks are up to an eighth of a power of two larger.
    pub asked_bytes: usize,
    /// Bytes taken from the system so far, in use or kept.
    pub reserved_bytes: usize,
    /// How often a block had to be taken from the system.
    pub system_allocations: u64,
}

#[derive(Default)]
struct State {
    free: BTreeMap<usize, Vec<Block>>,
    stats: ArenaStats,
}

/// A pool of memory blocks; cloning shares it.
#[derive(Clone, Default)]
pub struct Arena(Arc<Mutex<State>>);

impl Arena {
    /// A block of at least `bytes` bytes. Its contents are whatever its last user left there.
    pub(crate) fn take(&self, bytes: usize) -> Storage {
        let class = size_class(bytes);
        let kept = {
            let mut state = self.lock();
            let kept = state.free.get_mut(&class).and_then(Vec::pop);
            state.stats.in_use_bytes += class;
            state.stats.asked_bytes += bytes;
            state.stats.peak_bytes = state.stats.peak_bytes.max(state.stats.in_use_bytes);
            if kept.is_none() {
                state.stats.reserved_bytes += class;
                state.stats.system_allocations += 1;
            }
            kept
        };
        let fresh = kept.is_none();
        let block = kept.unwrap_or_else(|| Block::new(class));
        Storage { block: Some(block), asked: bytes, arena: self.clone(), fresh }
    }

    /// Counters as of now.
    pub fn stats(&self) -> ArenaStats {
        self.lock().stats
    }

    /// Gives every block that no tensor holds back to the system.
    pub fn trim(&self) {
        let mut state = self.lock();
        let kept: usize = state.free.iter().map(|(class, blocks)| class * blocks.len()).sum();
        state.stats.reserved_bytes -= kept;
        state.free.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The memory of one or more tensors; goes back to its arena when the last of them is dropped.
pub(crate) struct Storage {
    block: Option<Block>,
    /// Bytes that were asked for.
    asked: usize,
    arena: Arena,
    fresh: bool,
}

impl Storage {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether the memory came from the system for this storage, and so was zero at first.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.block.as_ref().expect("a storage holds its block until it is dropped").bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.as_mut().expect("a storage holds its block until it is dropped").bytes_mut()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let mut state = self.arena.lock();
            state.stats.in_use_bytes -= block.len();
            state.stats.asked_bytes -= self.asked;
            state.free.entry(block.len()).or_default().push(block);
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
    fn size_classes_waste_at_most_an_eighth() {
        for bytes in [1usize, 64, 65, 1000, 4097, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(64));
            assert!(class <= (bytes + bytes / 4).max(128), "{bytes} -> {class}");
        }
    }
}
