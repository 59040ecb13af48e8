//! Device memory: addresses that the host cannot touch, over bytes that only the emulator sees.
//!
//! Each device is a range of addresses without access rights. The bytes lie in a file in memory, seen by kernels through a
//! second mapping in which only live allocations are mapped: between two allocations at least one page faults.

mod host;

pub use host::{allocate_host, free_host, is_pinned, register_host};

use crate::knobs::knobs;
use crate::places::Places;
use crate::report::{self, Site, fail, violation};
use crate::session::Shared;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Addresses of a device.
const SPAN: usize = 256 << 30;
const PAGE: usize = 4096;
const BASE: usize = 0x1000_0000_0000;

/// A live allocation.
#[derive(Clone, Debug)]
pub struct Alloc {
    /// First address.
    pub start: usize,
    /// Usable bytes.
    pub len: usize,
    /// Bytes that the program asked for.
    pub asked: usize,
    /// The context that it ends with.
    pub context: u64,
    /// The how-manieth allocation of the process.
    pub number: u64,
    /// Who made it.
    pub made: Site,
}

struct Device {
    base: usize,
    alias: usize,
    fd: i32,
    /// Where the device's bytes begin in the file.
    first: usize,
    /// The device is that of other processes too.
    shared: Option<Shared>,
    places: Places,
    live: BTreeMap<usize, Alloc>,
    freed: BTreeMap<usize, (usize, Site)>,
    /// Reserved addresses that wait for memory.
    reserved: BTreeMap<usize, usize>,
    used: u64,
}

#[derive(Default)]
struct Memory {
    devices: HashMap<u32, Device>,
    pinned: BTreeMap<usize, (usize, i32)>,
    peers: Vec<(u32, u32)>,
    count: u64,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);
static DEVICES_BASE: OnceLock<usize> = OnceLock::new();
static GUARD: Once = Once::new();
static OLD_HANDLER: AtomicUsize = AtomicUsize::new(0);

struct Locked(MutexGuard<'static, Option<Memory>>);
impl Locked {
    fn get(&mut self) -> &mut Memory {
        self.0.get_or_insert_default()
    }
}
fn lock() -> Locked {
    Locked(MEMORY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reserves addresses that fault, near `hint`.
pub fn reserve(bytes: usize, hint: usize) -> usize {
    // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
    let got = unsafe {
        libc::mmap(
            hint as *mut libc::c_void,
            bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(got != libc::MAP_FAILED, "cannot reserve {bytes} bytes of addresses");
    got as usize
}

fn devices_base() -> usize {
    *DEVICES_BASE.get_or_init(|| reserve(SPAN * knobs().devices.max(1) as usize, BASE))
}

/// The device whose range holds an address.
pub fn device_of(address: usize) -> Option<u32> {
    let base = *DEVICES_BASE.get()?;
    let at = address.checked_sub(base)? / SPAN;
    (at < knobs().devices.max(1) as usize).then_some(at as u32)
}

impl Memory {
    fn device(&mut self, id: u32) -> &mut Device {
        self.devices.entry(id).or_insert_with(|| {
            let base = devices_base() + SPAN * id as usize;
            let shared = Shared::open(id, SPAN);
            assert!(shared.is_ok(), "cannot share device {id}: {shared:?}");
            let shared = shared.ok().flatten();
            let fd = match &shared {
                Some(shared) => shared.fd(),
                // SAFETY: a plain system call; the file is only used through `alias`.
                None => unsafe { libc::memfd_create(c"cann-emu".as_ptr(), libc::MFD_CLOEXEC) },
            };
            assert!(fd >= 0, "memfd_create failed");
            if shared.is_none() {
                // SAFETY: as above.
                let grown = unsafe { libc::ftruncate(fd, SPAN as libc::off_t) };
                assert!(grown == 0, "cannot give the device's memory its size");
            }
            Device {
                base,
                alias: reserve(SPAN, 0),
                fd,
                first: shared.as_ref().map_or(0, |s| s.start(SPAN)),
                shared,
                places: Places::new(PAGE, SPAN),
                live: BTreeMap::new(),
                freed: BTreeMap::new(),
                reserved: BTreeMap::new(),
                used: 0,
            }
        })
    }
}

impl Device {
    /// From now on so many bytes are in use.
    ///
    /// # Errors
    /// What other processes hold, if there is not so much left beside it; then nothing changes.
    fn hold(&mut self, used: u64) -> Result<(), u64> {
        if let Some(shared) = &self.shared {
            shared.hold(used, knobs().hbm_bytes)?;
        }
        self.used = used;
        Ok(())
    }
}

fn no_room(dev: &Device, device: u32, asked: u64, others: u64, call: &str) -> i32 {
    let (used, all) = (dev.used, knobs().hbm_bytes);
    let others = if others > 0 { format!(", {others} by other processes") } else { String::new() };
    fail(207_001, &format!("{call}: {asked} bytes asked of device {device}, {used} of {all} in use{others}"))
}

fn round_up(n: usize, to: usize) -> usize {
    n.div_ceil(to) * to
}

/// Allocates device memory filled with 0xFF.
///
/// # Errors
/// 107000 for size 0, 207001 beyond the device's memory or for an injected fault: the code by which public clients, the
/// vendor's adapter among them, know it; they take 207018 for a fault of the device.
pub fn allocate((device, context): (u32, u64), size: usize, extra: usize, call: &str) -> Result<usize, i32> {
    if size == 0 {
        return Err(fail(107_000, &format!("{call}: expected a size above 0, found 0")));
    }
    guard_host();
    let mut locked = lock();
    let memory = locked.get();
    memory.count += 1;
    let number = memory.count;
    if report::fault("oom", "alloc").is_some() {
        return Err(fail(
            207_001,
            &format!("{call}: out of device memory (injected at allocation {number})"),
        ));
    }
    let dev = memory.device(device);
    let len = round_up(size, 32) + extra;
    let mapped = round_up(len, PAGE);
    if dev.used + len as u64 > knobs().hbm_bytes {
        return Err(no_room(dev, device, size as u64, 0, call));
    }
    // A page between two allocations faults, and two behind large ones.
    let behind = if mapped >= 2 << 20 { 2 * PAGE } else { PAGE };
    let Some(at) = dev.places.take(mapped + behind, PAGE) else {
        return Err(fail(207_001, &format!("{call}: device {device} has no more addresses")));
    };
    if let Err(others) = dev.hold(dev.used + len as u64) {
        dev.places.give(at);
        return Err(no_room(dev, device, size as u64, others, call));
    }
    map(dev, at, mapped);
    // SAFETY: the piece was mapped just now, readable and writable.
    unsafe { std::ptr::write_bytes((dev.alias + at) as *mut u8, 0xff, mapped) };
    let start = dev.base + at;
    // What was said of these addresses when they were freed no longer holds.
    let end = start + mapped + behind;
    dev.freed.retain(|at, (len, _)| *at + *len <= start || *at >= end);
    let alloc = Alloc { start, len, asked: size, context, number, made: Site::here(call) };
    dev.live.insert(start, alloc);
    Ok(start)
}

fn map(dev: &Device, at: usize, mapped: usize) {
    // SAFETY: replaces a piece of our own reserved range.
    let got = unsafe {
        libc::mmap(
            (dev.alias + at) as *mut libc::c_void,
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            dev.fd,
            (dev.first + at) as libc::off_t,
        )
    };
    assert!(got != libc::MAP_FAILED, "cannot map {mapped} bytes of device memory");
}

/// Takes the bytes and the access rights from a piece; live tasks that still use it were reported before.
fn unmap(dev: &Device, at: usize, mapped: usize) {
    // SAFETY: a piece of our own mapping and file.
    unsafe {
        libc::fallocate(
            dev.fd,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            (dev.first + at) as libc::off_t,
            mapped as libc::off_t,
        );
        libc::mmap(
            (dev.alias + at) as *mut libc::c_void,
            mapped,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        );
    }
}

/// Frees an allocation.
///
/// # Errors
/// 107000 for null; a violation for anything that is not the start of a live allocation.
pub fn free(address: usize, call: &str) -> Result<Alloc, i32> {
    if address == 0 {
        return Err(fail(107_000, &format!("{call}: expected a device address, found null")));
    }
    let message = {
        let mut locked = lock();
        let found = device_of(address).map(|id| locked.get().device(id));
        match found {
            Some(dev) => match dev.live.remove(&address) {
                Some(alloc) => {
                    let at = address - dev.base;
                    let mapped = round_up(alloc.len, PAGE);
                    unmap(dev, at, mapped);
                    // Less than before is always taken.
                    let _ = dev.hold(dev.used - alloc.len as u64);
                    dev.places.give(at);
                    dev.freed.insert(address, (alloc.len, Site::here(call)));
                    return Ok(alloc);
                }
                None => describe_in(dev, address),
            },
            None => "no device address".to_owned(),
        }
    };
    Err(violation_code(&report::MEM_BAD_FREE, 107_000, &format!("{call}: {address:#x} is {message}")))
}

fn violation_code(rule: &'static report::Rule, code: i32, message: &str) -> i32 {
    violation(rule, code, message);
    code
}

fn describe_in(dev: &Device, address: usize) -> String {
    if let Some((_, a)) = dev.live.range(..=address).next_back()
        && address < a.start + a.len
    {
        return format!(
            "{} bytes into allocation {} of {} bytes made by {}",
            address - a.start,
            a.number,
            a.asked,
            a.made
        );
    }
    if let Some((start, (len, by))) = dev.freed.range(..=address).next_back()
        && address < start + len
    {
        return format!("memory freed by {by}");
    }
    "not inside any allocation of the device".to_owned()
}

/// Frees what a context of a device allocated, at its end.
pub fn free_all(device: u32, context: u64, call: &str) {
    let of_context = |dev: &Device| -> Vec<usize> {
        dev.live.values().filter(|a| a.context == context).map(|a| a.start).collect()
    };
    let list = of_context(lock().get().device(device));
    for address in list {
        // They were live a moment ago.
        let _ = free(address, call);
    }
}

/// Says what an address is.
pub fn describe(address: usize) -> String {
    let mut locked = lock();
    match device_of(address) {
        Some(id) => format!("device {id}: {}", describe_in(locked.get().device(id), address)),
        None => "a host address".to_owned(),
    }
}

/// The live allocation that holds `len` bytes from `address`.
pub fn find(address: usize, len: usize) -> Option<Alloc> {
    let id = device_of(address)?;
    let mut locked = lock();
    let dev = locked.get().device(id);
    let (_, alloc) = dev.live.range(..=address).next_back()?;
    (address + len <= alloc.start + alloc.len).then(|| alloc.clone())
}

/// Where kernels see a device address; the caller has checked it with [`find`].
pub fn alias(address: usize) -> usize {
    let Some(id) = device_of(address) else { return address };
    let mut locked = lock();
    let dev = locked.get().device(id);
    dev.alias + (address - dev.base)
}

/// As [`alias`], after a check that the memory is alive at this moment.
///
/// # Errors
/// `MEM-06` if it is not.
pub fn alive(address: usize, len: usize, who: &str) -> Result<usize, i32> {
    if len == 0 {
        return Ok(std::ptr::NonNull::<u64>::dangling().as_ptr() as usize);
    }
    if find(address, len).is_some() {
        return Ok(alias(address));
    }
    let message = format!("{who}: {len} bytes at {address:#x}, {}", describe(address));
    violation(&report::MEM_FREED_USE, 507_015, &message);
    Err(507_015)
}

/// Takes bytes out of a device's memory without an address (buffers of communicators); negative gives back.
///
/// # Errors
/// 207001 beyond the device's memory.
pub fn charge(device: u32, bytes: i64, call: &str) -> Result<(), i32> {
    let mut locked = lock();
    let dev = locked.get().device(device);
    let used = dev.used.saturating_add_signed(bytes);
    if bytes > 0 && used > knobs().hbm_bytes {
        return Err(no_room(dev, device, bytes as u64, 0, call));
    }
    let held = dev.hold(used);
    held.map_err(|others| no_room(dev, device, bytes.unsigned_abs(), others, call))
}

/// Free and total bytes of a device.
pub fn info(device: u32) -> (u64, u64) {
    let mut locked = lock();
    let dev = locked.get().device(device);
    let used = dev.used + dev.shared.as_ref().map_or(0, Shared::others);
    (knobs().hbm_bytes - used.min(knobs().hbm_bytes), knobs().hbm_bytes)
}

/// Live allocations, as messages.
pub fn leaks() -> Vec<String> {
    let mut locked = lock();
    let mut out: Vec<String> = Vec::new();
    for dev in locked.get().devices.values() {
        out.extend(dev.live.values().map(|a| format!("{} bytes made by {}", a.asked, a.made)));
    }
    out
}

/// Reserves addresses of a device without memory behind them.
///
/// # Errors
/// 107000 for none, 207001 if there are not so many in a row.
pub fn reserve_range(device: u32, size: usize, call: &str) -> Result<usize, i32> {
    if size == 0 {
        return Err(fail(107_000, &format!("{call}: expected a size above 0, found 0")));
    }
    guard_host();
    let mut locked = lock();
    let dev = locked.get().device(device);
    let found = size.checked_next_multiple_of(PAGE).and_then(|n| dev.places.take(n + PAGE, 2 << 20));
    let Some(at) = found else {
        return Err(fail(207_001, &format!("{call}: device {device} has not {size} addresses in a row")));
    };
    dev.reserved.insert(dev.base + at, size);
    Ok(dev.base + at)
}

/// Gives reserved addresses back.
///
/// # Errors
/// 107000 if they are not reserved, or memory is still mapped behind them.
pub fn release_range(address: usize, call: &str) -> Result<(), i32> {
    let refused = |why: &str| Err(fail(107_000, &format!("{call}: {address:#x} {why}")));
    let Some(id) = device_of(address) else { return refused("is not reserved") };
    let mut locked = lock();
    let dev = locked.get().device(id);
    let Some(size) = dev.reserved.get(&address).copied() else { return refused("is not reserved") };
    if dev.live.range(address..address + size).next().is_some() {
        return refused("still has memory mapped behind it");
    }
    dev.reserved.remove(&address);
    dev.places.give(address - dev.base);
    Ok(())
}

/// Puts memory, which has been charged, behind reserved addresses.
///
/// # Errors
/// 107000 if the addresses are not reserved, or have memory already.
pub fn back(address: usize, size: usize, call: &str) -> Result<(), i32> {
    let Some(id) = device_of(address) else {
        return Err(fail(107_000, &format!("{call}: {address:#x} is not in a reserved range")));
    };
    let mut locked = lock();
    let memory = locked.get();
    memory.count += 1;
    let number = memory.count;
    let dev = memory.device(id);
    let within = dev.reserved.range(..=address).next_back().map(|(start, len)| start + len);
    if within.is_none_or(|end| address + size > end) {
        let text = format!("{call}: {size} bytes at {address:#x} are not in one reserved range");
        return Err(fail(107_000, &text));
    }
    let before = dev.live.range(..address + size).next_back();
    if before.is_some_and(|(_, a)| a.start + a.len > address) {
        return Err(fail(107_000, &format!("{call}: {address:#x} has memory already")));
    }
    let at = address - dev.base;
    map(dev, at, round_up(size, PAGE));
    // SAFETY: mapped just now.
    unsafe { std::ptr::write_bytes((dev.alias + at) as *mut u8, 0xff, size) };
    // Pieces that follow one another are one allocation for the checks.
    let before = dev.live.range(..=address).next_back().map(|(s, a)| (*s, a.len));
    match before {
        Some((start, len)) if start + len == address => {
            if let Some(alloc) = dev.live.get_mut(&start) {
                alloc.len += size;
                alloc.asked += size;
            }
        }
        _ => {
            let made = Site::here(call);
            let alloc = Alloc { start: address, len: size, asked: size, context: 0, number, made };
            dev.live.insert(address, alloc);
        }
    }
    Ok(())
}

/// Takes the memory from behind reserved addresses.
pub fn unback(address: usize, size: usize) {
    let Some(id) = device_of(address) else { return };
    let mut locked = lock();
    let dev = locked.get().device(id);
    let Some((start, mut alloc)) = dev.live.range(..=address).next_back().map(|(s, a)| (*s, a.clone()))
    else {
        return;
    };
    let end = start + alloc.len;
    if address >= end {
        return;
    }
    dev.live.remove(&start);
    unmap(dev, address - dev.base, round_up(size, PAGE));
    if address > start {
        alloc.len = address - start;
        dev.live.insert(start, alloc.clone());
    }
    if address + size < end {
        let rest = Alloc { start: address + size, len: end - address - size, ..alloc };
        dev.live.insert(rest.start, rest);
    }
}

/// Lets a device reach another's memory, or not.
pub fn peer(from: u32, to: u32, on: bool) {
    let mut locked = lock();
    let peers = &mut locked.get().peers;
    peers.retain(|p| *p != (from, to));
    if on {
        peers.push((from, to));
    }
}

/// Whether a device may reach another's memory.
pub fn may_reach(from: u32, to: u32) -> bool {
    from == to || lock().get().peers.contains(&(from, to))
}

/// Installs the handler that names a host access to device memory.
fn guard_host() {
    GUARD.call_once(|| {
        devices_base();
        // SAFETY: a handler with the signature of SA_SIGINFO; the old one is kept for faults that are not ours.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old);
            OLD_HANDLER.store(old.sa_sigaction, Ordering::Relaxed);
        }
    });
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo.
    let address = unsafe { (*info).si_addr() } as usize;
    if device_of(address).is_some() {
        let text = match MEMORY.try_lock() {
            Ok(mut memory) => match (device_of(address), memory.as_mut()) {
                (Some(id), Some(m)) => describe_in(m.device(id), address),
                _ => "a device address".to_owned(),
            },
            Err(_) => "a device address".to_owned(),
        };
        violation(&report::MEM_HOST_TOUCH, 0, &format!("host access to device address {address:#x}, {text}"));
        std::process::abort();
    }
    let old = OLD_HANDLER.load(Ordering::Relaxed);
    if old > 1 {
        // SAFETY: the handler that was installed before ours, with the same signature.
        let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(old) };
        f(signal, info, context);
        return;
    }
    // SAFETY: back to the default action; the fault happens again on return.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}
