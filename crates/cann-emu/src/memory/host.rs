//! Page-locked memory of the host.

use super::{PAGE, lock, round_up, violation_code};
use crate::report;

/// Page-locked host memory.
pub fn allocate_host(size: usize) -> usize {
    let bytes = round_up(size.max(1), PAGE);
    // SAFETY: a fresh anonymous mapping.
    let got = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert!(got != libc::MAP_FAILED, "cannot map {bytes} bytes of host memory");
    // SAFETY: mapped just now.
    unsafe { std::ptr::write_bytes(got.cast::<u8>(), 0xff, bytes) };
    let process = std::process::id() as i32;
    lock().get().pinned.insert(got as usize, (bytes, process));
    got as usize
}

/// Frees page-locked host memory.
///
/// # Errors
/// A violation if the address is not the start of such memory.
pub fn free_host(address: usize, call: &str) -> Result<(), i32> {
    let found = lock().get().pinned.remove(&address);
    match found {
        Some((len, owner)) => {
            if owner == std::process::id() as i32 && len > 0 {
                // SAFETY: the mapping was made by `allocate_host` and is in no table any more.
                unsafe { libc::munmap(address as *mut libc::c_void, len) };
            }
            Ok(())
        }
        None => {
            let message = format!("{call}: {address:#x} is not page-locked memory of this library");
            Err(violation_code(&report::MEM_BAD_FREE, 107_000, &message))
        }
    }
}

/// Notes host memory of the program as page-locked.
pub fn register_host(address: usize, len: usize) {
    lock().get().pinned.insert(address, (len, 0));
}

/// Whether host memory is page-locked.
pub fn is_pinned(address: usize) -> bool {
    let mut locked = lock();
    let found = locked.get().pinned.range(..=address).next_back().map(|(s, (l, _))| (*s, *l));
    found.is_some_and(|(start, len)| address < start + len)
}
