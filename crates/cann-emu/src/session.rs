//! Devices shared by processes: processes with the same `CANN_EMU_SESSION=NAME` have the same devices.
//!
//! The bytes of a device lie in one memory-backed file for all of them, each process using its own places, and a page at the
//! front records how much each process uses: what one process holds, another cannot allocate. A process that has ended holds
//! nothing.

use crate::knobs::knobs;
use std::ffi::CString;
use std::io;

const SLOTS: usize = 64;
const PAGE: usize = 4096;

/// What a process holds of a device.
#[repr(C)]
struct Slot {
    process: u64,
    used: u64,
}

/// The file of a shared device, and this process's slot in it.
#[derive(Debug)]
pub struct Shared {
    fd: i32,
    /// The mapped page, an address.
    page: usize,
    slot: usize,
}

/// Holds the file's lock.
struct Locked<'a>(&'a Shared);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: a plain call on our own descriptor.
        unsafe { libc::flock(self.0.fd, libc::LOCK_UN) };
    }
}

impl Locked<'_> {
    fn slots(&mut self) -> &mut [Slot] {
        // SAFETY: the page is mapped for as long as the process lives, holds `SLOTS` slots, and the lock keeps others out.
        unsafe { std::slice::from_raw_parts_mut(self.0.page as *mut Slot, SLOTS) }
    }
}

fn is_alive(process: u64) -> bool {
    // SAFETY: signal 0 only asks.
    let answer = unsafe { libc::kill(process as libc::pid_t, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

impl Shared {
    /// Of a device, if processes share devices: the file, with `span` bytes for each process from [`Shared::start`] on.
    ///
    /// # Errors
    /// If the file cannot be made, or too many processes share the device.
    pub fn open(device: u32, span: usize) -> io::Result<Option<Self>> {
        let name = &knobs().session;
        if name.is_empty() {
            return Ok(None);
        }
        // SAFETY: a plain call.
        let user = unsafe { libc::getuid() };
        let path = CString::new(format!("/cann-emu-{user}-{}-{device}", name.replace('/', "_")))?;
        // SAFETY: a name that ends with a zero; the file is only used through this descriptor.
        let fd =
            unsafe { libc::shm_open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let size = span as libc::off_t * (SLOTS as libc::off_t + 1);
        // SAFETY: plain calls on our own descriptor; the mapping is of the file's first page.
        let page = unsafe {
            libc::flock(fd, libc::LOCK_EX);
            if libc::ftruncate(fd, size) != 0 {
                return Err(io::Error::last_os_error());
            }
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), PAGE, rights, libc::MAP_SHARED, fd, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut shared = Self { fd, page: page as usize, slot: 0 };
        let mut locked = Locked(&shared);
        for (i, slot) in locked.slots().iter_mut().enumerate() {
            if slot.process != 0 && !is_alive(slot.process) {
                (slot.process, slot.used) = (0, 0);
                let (at, len) = ((i + 1) * span, span);
                // SAFETY: gives the bytes of a process that has gone back.
                unsafe {
                    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    libc::fallocate(fd, how, at as libc::off_t, len as libc::off_t);
                }
            }
        }
        let free = locked.slots().iter().position(|s| s.process == 0);
        if let Some(free) = free {
            locked.slots()[free].process = u64::from(std::process::id());
        }
        drop(locked);
        shared.slot = free.ok_or_else(|| io::Error::other(format!("{SLOTS} processes use the device")))?;
        Ok(Some(shared))
    }

    /// Where this process's bytes begin in the file.
    pub fn start(&self, span: usize) -> usize {
        (self.slot + 1) * span
    }

    /// The file.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    fn lock(&self) -> Locked<'_> {
        // SAFETY: a plain call on our own descriptor.
        unsafe { libc::flock(self.fd, libc::LOCK_EX) };
        Locked(self)
    }

    /// Bytes that other processes hold.
    pub fn others(&self) -> u64 {
        self.held_by_others(self.lock().slots())
    }

    fn held_by_others(&self, slots: &[Slot]) -> u64 {
        let others = slots.iter().enumerate().filter(|(i, s)| *i != self.slot && s.process != 0);
        others.filter(|(_, s)| is_alive(s.process)).map(|(_, s)| s.used).sum()
    }

    /// Says how much this process holds, if with that of the others it is at most `limit`.
    ///
    /// # Errors
    /// The bytes that other processes hold.
    pub fn hold(&self, used: u64, limit: u64) -> Result<(), u64> {
        let mut locked = self.lock();
        let held = self.held_by_others(locked.slots());
        let slot = &mut locked.slots()[self.slot];
        // Less than before is always taken.
        if used > slot.used && used + held > limit {
            return Err(held);
        }
        slot.used = used;
        Ok(())
    }
}
