//! Memory: allocation, copies, attributes.

use super::context::need;
use super::stream::resolve;
use super::{give, take};
use crate::handles::{self, Handled};
use crate::memory;
use crate::race::{self, Access};
use crate::report::{self, broken, fail, violation};
use crate::sched::{self, Work};
use std::sync::Arc;

fn malloc(at: usize, size: u64, extra: usize, call: &str) -> Result<(), i32> {
    let place = need(call)?;
    if at == 0 {
        return Err(fail(107_000, &format!("{call}: devPtr is null")));
    }
    give(at, memory::allocate(place, size as usize, extra, call)?, call)
}

calls! {
    aclrtMalloc(at: usize, size: u64, _policy: i32) = malloc(at, size, 32, CALL);
    aclrtMallocAlign32(at: usize, size: u64, _policy: i32) = malloc(at, size, 0, CALL);
    aclrtMallocCached(at: usize, size: u64, _policy: i32) = malloc(at, size, 32, CALL);
    aclrtMallocWithCfg(at: usize, size: u64, _policy: i32, _cfg: usize) = malloc(at, size, 32, CALL);
}

fn free(at: usize, call: &str) -> Result<(), i32> {
    need(call)?;
    if let Some(alloc) = memory::find(at, 1)
        && alloc.start == at
        && let Some(user) = race::forget(at, alloc.len)
    {
        let message = format!("{call}: {} bytes while {user} uses them", alloc.asked);
        report::result(violation(&report::MEM_FREE_IN_FLIGHT, 107_000, &message))?;
    }
    memory::free(at, call).map(drop)
}

calls! {
    aclrtFree(at: usize) = free(at, CALL);

    aclrtFreeWithDevSync(at: usize) = {
        report::result(super::aclrtSynchronizeDevice())?;
        free(at, CALL)
    };
}

fn malloc_host(at: usize, size: u64, call: &str) -> Result<(), i32> {
    if size == 0 {
        return Err(fail(107_000, &format!("{call}: expected a size above 0, found 0")));
    }
    give(at, memory::allocate_host(size as usize), call)
}

calls! {
    aclrtMallocHost(at: usize, size: u64) = malloc_host(at, size, CALL);
    aclrtMallocHostWithCfg(at: usize, size: u64, _cfg: usize) = malloc_host(at, size, CALL);
    aclrtFreeHost(at: usize) = memory::free_host(at, CALL);
    aclrtFreeHostWithDevSync(at: usize) = memory::free_host(at, CALL);

    aclrtHostRegister(at: usize, size: u64, _kind: i32, device: usize) = {
        memory::register_host(at, size as usize);
        give(device, at, CALL)
    };

    aclrtHostRegisterV2(at: usize, size: u64, _flag: u32) = {
        memory::register_host(at, size as usize);
        Ok(())
    };

    aclrtHostUnregister(at: usize) = memory::free_host(at, CALL);
    aclrtMemFlush(_at: usize, _size: u64) = Ok(());
    aclrtMemInvalidate(_at: usize, _size: u64) = Ok(());

    aclrtGetMemInfo(_attr: i32, free: usize, total: usize) = {
        let (device, _) = need(CALL)?;
        let (left, all) = memory::info(device);
        give(free, left, CALL)?;
        give(total, all, CALL)
    };

    /// One row of 112 bytes: a name of 32, present and peak bytes, 8 reserved words.
    aclrtGetMemUsageInfo(device: i32, rows: usize, count: u64, written: usize) = {
        let (left, all) = memory::info(device as u32);
        if rows != 0 && count > 0 {
            super::give_text(rows, 32, "APP");
            give(rows + 32, all - left, CALL)?;
            give(rows + 40, all - left, CALL)?;
        }
        give(written, 1u64, CALL)
    };

    /// Location (id, kind: 0 host, 1 device), page size, four reserved words: 28 bytes.
    aclrtPointerGetAttributes(at: usize, out: usize) = {
        let (id, kind) = match memory::device_of(at) {
            Some(device) => (device, 1u32),
            None if memory::is_pinned(at) => (0, 0),
            None => (0, 2),
        };
        give(out, [id, kind, 4096, 0, 0, 0, 0], CALL)
    };
}

/// What one side of a copy is.
enum Side {
    Device,
    Pinned,
    Pageable,
}

fn side(at: usize, len: usize, device: u32, call: &str) -> Result<Side, i32> {
    match memory::device_of(at) {
        Some(owner) => {
            if memory::find(at, len).is_none() {
                let message = format!("{call}: {len} bytes at {at:#x}, {}", memory::describe(at));
                return broken(&report::MEM_BOUNDS, 107_000, &message);
            }
            if !memory::may_reach(device, owner) && !memory::may_reach(owner, device) {
                let message =
                    format!("{call}: memory of device {owner} from device {device} without peer access");
                return broken(&report::MEM_NOT_DEVICE, 107_000, &message);
            }
            Ok(Side::Device)
        }
        None if memory::is_pinned(at) => Ok(Side::Pinned),
        None => Ok(Side::Pageable),
    }
}

fn check_kind(kind: i32, dst: &Side, src: &Side, call: &str) -> Result<(), i32> {
    let wanted = match (src, dst) {
        (Side::Device, Side::Device) => 3,
        (Side::Device, _) => 2,
        (_, Side::Device) => 1,
        _ => 0,
    };
    if kind != wanted && kind != 4 && !(5..=7).contains(&kind) {
        let names = ["host to host", "host to device", "device to host", "device to device"];
        let said = names.get(kind as usize).unwrap_or(&"unknown");
        return Err(fail(
            107_000,
            &format!("{call}: the kind says {said}, the addresses say {}", names[wanted as usize]),
        ));
    }
    Ok(())
}

fn move_bytes(dst: usize, src: usize, len: usize, call: &str) -> Result<(), i32> {
    let to = if memory::device_of(dst).is_some() { memory::alive(dst, len, call)? } else { dst };
    let from = if memory::device_of(src).is_some() { memory::alive(src, len, call)? } else { src };
    // SAFETY: device sides were found alive with `len` bytes; host sides are the caller's buffers of `len` bytes.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
    Ok(())
}

fn accesses(dst: usize, src: usize, len: usize) -> Vec<Access> {
    let mut out = Vec::new();
    if memory::device_of(src).is_some() {
        out.push(Access { start: src, len, write: false, view: None });
    }
    if memory::device_of(dst).is_some() {
        out.push(Access { start: dst, len, write: true, view: None });
    }
    out
}

fn host_order(accesses: &[Access], call: &str) -> Result<(), i32> {
    for message in race::host(accesses, call) {
        report::result(violation(&report::RACE, 507_015, &message))?;
    }
    Ok(())
}

fn checked(dst: usize, max: u64, src: usize, count: u64, call: &str) -> Result<u32, i32> {
    let (device, _) = need(call)?;
    if count > 0 && (dst == 0 || src == 0) {
        return Err(fail(107_000, &format!("{call}: an address is null")));
    }
    if count > max {
        return Err(fail(107_000, &format!("{call}: {count} bytes into a destination of {max}")));
    }
    Ok(device)
}

fn copy(dst: usize, max: u64, src: usize, count: u64, kind: i32, call: &str) -> Result<(), i32> {
    let device = checked(dst, max, src, count, call)?;
    let len = count as usize;
    let (to, from) = (side(dst, len, device, call)?, side(src, len, device, call)?);
    check_kind(kind, &to, &from, call)?;
    host_order(&accesses(dst, src, len), call)?;
    move_bytes(dst, src, len, call)
}

calls! {
    aclrtMemcpy(dst: usize, max: u64, src: usize, count: u64, kind: i32) =
        copy(dst, max, src, count, kind, CALL);
}

fn copy_async(
    dst: usize,
    max: u64,
    src: usize,
    count: u64,
    kind: i32,
    stream: usize,
    call: &'static str,
) -> Result<(), i32> {
    let device = checked(dst, max, src, count, call)?;
    let stream = resolve(stream, call)?;
    let len = count as usize;
    let (to, from) = (side(dst, len, device, call)?, side(src, len, device, call)?);
    check_kind(kind, &to, &from, call)?;
    if !matches!(to, Side::Device) && !matches!(from, Side::Device) {
        return Err(fail(207_000, &format!("{call}: host to host")));
    }
    let blocking = matches!(to, Side::Pageable) || matches!(from, Side::Pageable);
    let run = Box::new(move || move_bytes(dst, src, len, call));
    let seq = sched::submit(stream.id, &accesses(dst, src, len), call, Work::Run(run))?;
    if blocking {
        // With pageable memory the call returns when the stream has come this far.
        let clock = race::stamp(stream.id);
        sched::synchronise(stream.id, Some(seq), -1)?;
        race::synchronised(&clock);
    }
    Ok(())
}

calls! {
    aclrtMemcpyAsync(dst: usize, max: u64, src: usize, count: u64, kind: i32, stream: usize) =
        copy_async(dst, max, src, count, kind, stream, CALL);

    aclrtMemcpyAsyncWithCondition(dst: usize, max: u64, src: usize, count: u64, kind: i32, stream: usize) =
        copy_async(dst, max, src, count, kind, stream, CALL);
}

/// Copies rows of `width` bytes by `copy`, from places `spitch` apart to places `dpitch` apart; they must not reach into the next
/// row.
fn rows(
    (dst, dpitch): (usize, u64),
    (src, spitch): (usize, u64),
    width: u64,
    height: u64,
    call: &str,
    copy: impl Fn(usize, usize) -> Result<(), i32>,
) -> Result<(), i32> {
    let pitch = dpitch.min(spitch);
    if width > pitch {
        return Err(fail(107_000, &format!("{call}: rows of {width} bytes, {pitch} from one to the next")));
    }
    (0..height).try_for_each(|row| copy(dst + (row * dpitch) as usize, src + (row * spitch) as usize))
}

calls! {
    aclrtMemcpy2d(dst: usize, dpitch: u64, src: usize, spitch: u64, width: u64, height: u64, kind: i32) = {
        let one = |to, from| copy(to, width, from, width, kind, CALL);
        rows((dst, dpitch), (src, spitch), width, height, CALL, one)
    };

    aclrtMemcpy2dAsync(
        dst: usize, dpitch: u64, src: usize, spitch: u64, width: u64, height: u64, kind: i32, stream: usize
    ) = {
        let one = |to, from| copy_async(to, width, from, width, kind, stream, CALL);
        rows((dst, dpitch), (src, spitch), width, height, CALL, one)
    };
}

/// Copies by lists of destinations, their sizes, sources and bytes; tells which one failed, where that is asked.
fn batch(
    lists: [usize; 4],
    count: u64,
    failed: usize,
    call: &str,
    copy: impl Fn(usize, u64, usize, u64) -> Result<(), i32>,
) -> Result<(), i32> {
    let [dsts, maxs, srcs, sizes] = lists;
    let one = |i| copy(take(dsts, i), take(maxs, i), take(srcs, i), take(sizes, i));
    (0..count as usize).try_for_each(|i| {
        one(i).or_else(|code| if failed == 0 { Err(code) } else { give(failed, i, call).and(Err(code)) })
    })
}

calls! {
    aclrtMemcpyBatch(
        dsts: usize, maxs: usize, srcs: usize, sizes: usize, count: u64, _attributes: usize, _indexes: usize,
        _number: u64, failed: usize
    ) =
        batch([dsts, maxs, srcs, sizes], count, failed, CALL, |to, max, from, n| {
            copy(to, max, from, n, 4, CALL)
        });

    aclrtMemcpyBatchAsync(
        dsts: usize, maxs: usize, srcs: usize, sizes: usize, count: u64, _attributes: usize, _indexes: usize,
        _number: u64, failed: usize, stream: usize
    ) =
        batch([dsts, maxs, srcs, sizes], count, failed, CALL, |to, max, from, n| {
            copy_async(to, max, from, n, 4, stream, CALL)
        });
}

fn fill(at: usize, max: u64, count: u64, call: &str) -> Result<u32, i32> {
    let (device, _) = need(call)?;
    if count > max {
        return Err(fail(107_000, &format!("{call}: {count} bytes into {max}")));
    }
    side(at, count as usize, device, call)?;
    Ok(device)
}

fn set_bytes(at: usize, value: i32, len: usize, call: &str) -> Result<(), i32> {
    let to = if memory::device_of(at).is_some() { memory::alive(at, len, call)? } else { at };
    // SAFETY: found alive with `len` bytes, or the caller's host buffer of that size.
    unsafe { std::ptr::write_bytes(to as *mut u8, value as u8, len) };
    Ok(())
}

calls! {
    aclrtMemset(at: usize, max: u64, value: i32, count: u64) = {
        fill(at, max, count, CALL)?;
        host_order(&[Access { start: at, len: count as usize, write: true, view: None }], CALL)?;
        set_bytes(at, value, count as usize, CALL)
    };

    aclrtMemsetAsync(at: usize, max: u64, value: i32, count: u64, stream: usize) = {
        fill(at, max, count, CALL)?;
        let stream = resolve(stream, CALL)?;
        let len = count as usize;
        let run = Box::new(move || set_bytes(at, value, len, CALL));
        let touched = [Access { start: at, len, write: true, view: None }];
        sched::submit(stream.id, &touched, CALL, Work::Run(run)).map(drop)
    };

    aclrtDeviceCanAccessPeer(can: usize, device: i32, peer: i32) = give(can, i32::from(device != peer), CALL);

    aclrtDeviceEnablePeerAccess(peer: i32, _flags: u32) = {
        let (device, _) = need(CALL)?;
        memory::peer(device, peer as u32, true);
        Ok(())
    };

    aclrtDeviceDisablePeerAccess(peer: i32) = {
        let (device, _) = need(CALL)?;
        memory::peer(device, peer as u32, false);
        Ok(())
    };

    aclrtDevicePeerAccessStatus(device: i32, peer: i32, status: usize) = {
        let on = memory::may_reach(device as u32, peer as u32);
        give(status, i32::from(on), CALL)
    };
}

/// Memory without an address. It is the device's again when its handle is gone and nothing is mapped to it.
#[derive(Debug)]
pub struct Physical {
    size: usize,
    device: u32,
}
impl Drop for Physical {
    fn drop(&mut self) {
        // There is room for what is given back.
        let _ = memory::charge(self.device, -(self.size as i64), "aclrtFreePhysical");
    }
}
impl Handled for Physical {
    const NAME: &'static str = "aclrtDrvMemHandle";
}

/// Memory that stands behind addresses.
struct Mapped {
    at: usize,
    size: usize,
    memory: Arc<Physical>,
}

static MAPPED: std::sync::Mutex<Vec<Mapped>> = std::sync::Mutex::new(Vec::new());

calls! {
    aclrtReserveMemAddress(at: usize, size: u64, _alignment: u64, _expect: usize, _flags: u64) = {
        let (device, _) = need(CALL)?;
        give(at, memory::reserve_range(device, size as usize, CALL)?, CALL)
    };

    aclrtReleaseMemAddress(at: usize) = memory::release_range(at, CALL);

    aclrtMallocPhysical(handle: usize, size: u64, _prop: usize, _flags: u64) = {
        let (device, _) = need(CALL)?;
        if size == 0 || !size.is_multiple_of(2 << 20) {
            return Err(fail(107_000, &format!("{CALL}: expected a multiple of 2 MiB, found {size}")));
        }
        memory::charge(device, size as i64, CALL)?;
        let made = handles::make(Physical { size: size as usize, device }, CALL);
        give(handle, made, CALL)
    };

    aclrtFreePhysical(handle: usize) =
        handles::destroy::<Physical>(handle, CALL, &report::NN_HANDLE, 107_017).map(drop);

    aclrtMapMem(at: usize, size: u64, offset: u64, handle: usize, _flags: u64) = {
        let physical = handles::get::<Physical>(handle, CALL, &report::NN_HANDLE, 107_017)?;
        if offset.checked_add(size).is_none_or(|end| end as usize > physical.size) {
            let text = format!("{CALL}: {size} bytes from {offset} on of a handle of {}", physical.size);
            return Err(fail(107_000, &text));
        }
        if memory::device_of(at).is_some_and(|id| id != physical.device) {
            let text = format!("{CALL}: memory of device {} at an address of another", physical.device);
            return Err(fail(107_000, &text));
        }
        let mut mapped = MAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if mapped.iter().any(|m| Arc::ptr_eq(&m.memory, &physical)) {
            // One memory at two addresses has no bytes of its own here.
            return Err(fail(207_000, &format!("{CALL}: the memory is mapped already")));
        }
        memory::back(at, size as usize, CALL)?;
        mapped.push(Mapped { at, size: size as usize, memory: physical });
        Ok(())
    };

    aclrtUnmapMem(at: usize) = {
        let mut mapped = MAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match mapped.iter().position(|m| m.at == at) {
            Some(i) => {
                memory::unback(at, mapped.swap_remove(i).size);
                Ok(())
            }
            None => Err(fail(107_000, &format!("{CALL}: {at:#x} is not mapped"))),
        }
    };

    aclrtMemGetAllocationGranularity(_prop: usize, _option: i32, granularity: usize) =
        give(granularity, 2usize << 20, CALL);

    aclrtCmoAsync(at: usize, size: u64, _kind: i32, stream: usize) = {
        let (device, _) = need(CALL)?;
        side(at, size as usize, device, CALL)?;
        resolve(stream, CALL).map(drop)
    };
}
