//! Memory for tensors and scratch: aligned, zeroed, faulted in, on huge pages where that pays.

use std::cell::RefCell;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

const HUGE_PAGE: usize = 2 << 20;
/// From here up a block is aligned to, and asks for, 2 MiB pages.
const HUGE_FROM: usize = 1 << 20;
const PAGE: usize = 4096;
/// Below a block is the allocator's, which asks the system less often than once a block.
const MAPPED_FROM: usize = 64 << 10;

/// What blocks of the allocator are made of, so that they are aligned.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

enum Storage {
    Lines(Vec<Line>),
    Map(MmapMut),
}

/// From this size on, several threads fault a block in, at most this many.
const TOUCHED_TOGETHER: usize = 64 << 20;
const TOUCHING: usize = 4;

/// Faults pages in.
fn touch(pages: &mut [u8]) {
    for page in pages.chunks_mut(PAGE) {
        // Volatile in effect: a fresh anonymous page is only mapped by a write.
        page[0] = std::hint::black_box(0);
    }
}

/// Zeroed bytes that start on a 64-byte boundary, from 1 MiB up on a 2 MiB boundary and on huge pages where the
/// system gives them.
///
/// Every page is touched at creation, so that no page fault happens during a training step.
///
/// ```
/// let mut block = ms_kernels::memory::Block::new(100);
/// assert_eq!(block.len(), 100);
/// assert_eq!(block.bytes().as_ptr() as usize % 64, 0);
/// block.bytes_mut()[99] = 1;
/// ```
pub struct Block {
    storage: Storage,
    offset: usize,
    len: usize,
}

impl Block {
    /// A block of `bytes` zero bytes.
    ///
    /// # Panics
    /// If the system has no memory left, like any allocation.
    pub fn new(bytes: usize) -> Self {
        if bytes < MAPPED_FROM {
            // Even a block of no bytes has an address, aligned like any other.
            let lines = vec![Line::zeroed(); bytes.div_ceil(size_of::<Line>()).max(1)];
            return Self { storage: Storage::Lines(lines), offset: 0, len: bytes };
        }
        let huge = bytes >= HUGE_FROM;
        let room = if huge { bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE } else { bytes };
        let mut map = MmapOptions::new().len(room).map_anon().unwrap_or_else(|e| {
            panic!("cannot allocate {bytes} bytes: {e}");
        });
        let offset = if huge { map.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        #[cfg(target_os = "linux")]
        if huge {
            // Advice only: without huge pages everything works, slower.
            let _ = map.advise_range(memmap2::Advice::HugePage, offset, bytes);
        }
        let pages = &mut map[offset..offset + bytes];
        // Asked of large blocks alone: the answer takes the system longer than a small block does.
        let threads = match bytes < TOUCHED_TOGETHER {
            true => 1,
            false => std::thread::available_parallelism().map_or(1, usize::from).min(TOUCHING),
        };
        if threads == 1 {
            touch(pages);
        } else {
            // The system clears pages at some gigabytes a second: what a model's weights wait for.
            let share = bytes.div_ceil(threads).next_multiple_of(HUGE_PAGE);
            std::thread::scope(|scope| {
                let mut shares = pages.chunks_mut(share);
                let own = shares.next();
                for part in shares {
                    // Where there can be no more threads, the pages are cleared as they are used.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, || touch(part));
                }
                own.into_iter().for_each(touch);
            });
        }
        Self { storage: Storage::Map(map), offset, len: bytes }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice(lines),
            Storage::Map(map) => &map[..],
        };
        &all[self.offset..self.offset + self.len]
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let all = match &mut self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Storage::Map(map) => &mut map[..],
        };
        &mut all[self.offset..self.offset + self.len]
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("len", &self.len).finish()
    }
}

/// Whether a call that reads and writes this many bytes in all evicts from the caches what it wrote first: its writes can
/// then bypass them.
pub(crate) fn outgrows_caches(bytes: usize) -> bool {
    static LARGEST: OnceLock<usize> = OnceLock::new();
    bytes
        >= *LARGEST.get_or_init(|| {
            let size = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok();
            let kib = size.and_then(|s| s.trim().strip_suffix('K')?.parse::<usize>().ok());
            kib.map_or(UNKNOWN_CACHE, |kib| kib << 10)
        })
}

/// Where the system does not say how large the last cache is.
const UNKNOWN_CACHE: usize = 64 << 20;

/// What a piece of scratch is for; one buffer per thread and use is kept between calls.
#[derive(Clone, Copy)]
pub(crate) enum Scratch {
    PanelsA,
    PanelsB,
    Partials,
    Rows,
    Keys,
    Queries,
    Scores,
    Weights,
    Sums,
}

const USES: usize = 9;

thread_local! {
    static KEPT: RefCell<[Option<Block>; USES]> = const { RefCell::new([const { None }; USES]) };
}

/// Runs `work` with `len` elements of this thread's scratch for `usage`; the contents are unspecified.
///
/// Allocates only when a call needs more than any before it. A nested use of the same scratch gets its own.
pub(crate) fn with_scratch<T: Pod, R>(usage: Scratch, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let bytes = len * size_of::<T>();
    let mut block = take(usage, bytes);
    let result = work(bytemuck::cast_slice_mut(&mut block.bytes_mut()[..bytes]));
    keep(usage, block);
    result
}

/// The kept scratch if it is large enough, or else new one.
fn take(usage: Scratch, bytes: usize) -> Block {
    let kept = KEPT.with_borrow_mut(|kept| kept[usage as usize].take());
    match kept {
        Some(block) if block.len() >= bytes => block,
        _ => Block::new(bytes.next_power_of_two().max(PAGE)),
    }
}

fn keep(usage: Scratch, block: Block) {
    KEPT.with_borrow_mut(|kept| kept[usage as usize] = Some(block));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_zeroed_and_aligned_for_its_size() {
        for (bytes, align) in [
            (0, 64),
            (1, 64),
            (4095, 64),
            (MAPPED_FROM - 1, 64),
            (MAPPED_FROM, 64),
            (1 << 20, HUGE_PAGE),
            ((65 << 20) + 5, HUGE_PAGE),
        ] {
            let mut block = Block::new(bytes);
            assert_eq!(block.bytes().len(), bytes);
            assert_eq!(block.bytes().as_ptr() as usize % align, 0, "{bytes} bytes");
            assert!(block.bytes().iter().all(|&b| b == 0));
            block.bytes_mut().fill(7);
            assert!(block.bytes().iter().all(|&b| b == 7));
        }
        assert!(Block::new(0).is_empty());
        assert_eq!(Block::new(0).bytes_mut(), &mut [] as &mut [u8]);
    }

    #[test]
    fn scratch_is_kept_between_calls_and_safe_to_nest() {
        let first = with_scratch::<f32, _>(Scratch::Sums, 1000, |s| {
            s.fill(1.0);
            with_scratch::<f32, _>(Scratch::Sums, 10, |inner| inner.fill(2.0));
            assert!(s.iter().all(|&v| v == 1.0));
            s.as_ptr() as usize
        });
        let second = with_scratch::<f32, _>(Scratch::Sums, 900, |s| s.as_ptr() as usize);
        assert_eq!(first, second);
    }
}
