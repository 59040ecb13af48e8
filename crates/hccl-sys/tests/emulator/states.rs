//! States of the runtime: devices that failed, contexts that ended, events of every kind, copies that wait, what is left over.

use super::scenarios::{add, scalar, scenarios, three};
use super::violations::plan;
use crate::client::{Array, F32, alloc, call, cann, ints, list, message, ok, op, start, stream, sync};
use hccl_sys::types::{aclOpExecutor, aclTensor, aclrtEvent};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

scenarios! {
    after_a_device_error_every_call_fails null_arguments_have_their_own_code phases_need_a_device
    a_workspace_that_is_null_ends_its_executor a_tensor_of_another_device_needs_access events_are_limited_and_have_kinds
    a_context_ends_with_its_last_reset what_is_left_is_reported nothing_is_left_after_a_refusal
    page_locked_copies_happen_when_their_turn_comes a_copy_that_came_too_early_holds_ones
    allocations_have_their_size_and_place ten_calls_leave_a_trace a_profile_has_its_order a_scalar_destroyed_twice
    an_array_destroyed_twice an_element_of_a_destroyed_list a_destroyed_tensor_in_use a_storage_outside_its_allocation
    a_workspace_freed_before_it_is_used a_workspace_across_two_allocations a_copy_to_a_device_without_access
    phases_on_two_threads an_address_between_the_lines
}

fn event(flag: u32) -> aclrtEvent {
    let mut e = null_mut();
    ok(call!(rt.aclrtCreateEventWithFlag(&raw mut e, flag)));
    e
}

/// Runs with `async:507015@op:Add:1`.
fn after_a_device_error_every_call_fails() {
    start(0);
    let (a, b, c) = three();
    let s = stream();
    ok(add(s, &a, &b, &c));
    assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 507_015);
    let (mut at, mut e, mut host) = (null_mut(), null_mut(), [0u8; 16]);
    let after = [
        call!(rt.aclrtSynchronizeStream(s)),
        call!(rt.aclrtSynchronizeDevice()),
        call!(rt.aclrtMalloc(&raw mut at, 64, 0)),
        call!(rt.aclrtMemcpy(host.as_mut_ptr().cast(), 16, c.at, 16, 2)),
        call!(rt.aclrtMemset(c.at, 16, 0, 16)),
        call!(rt.aclrtCreateEvent(&raw mut e)),
        call!(rt.aclrtCreateStream(&raw mut at)),
        add(s, &a, &b, &c),
        op!(s, math.aclnnMul(a.tensor(), b.tensor(), c.tensor())),
    ];
    assert_eq!(after, [507_015; 9]);
    let mut info = Box::new(hccl_sys::types::HcclRootInfo { internal: [0; 4108] });
    assert_ne!(call!(hccl.HcclGetRootInfo(&raw mut *info)), 0);
}

fn null_arguments_have_their_own_code() {
    start(0);
    let (s, (a, b, c), none) = (stream(), three(), null_mut::<aclTensor>());
    assert_eq!(op!(s, math.aclnnAdd(a.tensor(), none, scalar(1.0), c.tensor())), 161_001);
    let said = message();
    assert!(said.contains("other must not be null"), "{said}");
    assert_eq!(op!(s, math.aclnnAdd(a.tensor(), b.tensor(), null_mut(), c.tensor())), 161_001);
    assert_eq!(op!(s, math.aclnnAdd(a.tensor(), b.tensor(), scalar(1.0), none)), 161_001);
    // Arrays and texts are arguments, too.
    let refused = |code: i32, name: &str| {
        let said = message();
        assert_eq!(code, 161_001, "{name}: {said}");
        assert!(said.contains(&format!("{name} must not be null")), "{said}");
    };
    let (x, y) = (a.tensor(), c.tensor());
    refused(op!(s, math.aclnnPermute(x, null_mut(), y)), "dims");
    refused(op!(s, math.aclnnReduceSum(x, null_mut(), true, F32, y)), "dims");
    refused(op!(s, math.aclnnMean(x, null_mut(), true, F32, y)), "dim");
    refused(op!(s, math.aclnnAmax(x, null_mut(), true, y)), "dim");
    refused(op!(s, nn.aclnnLayerNorm(x, null_mut(), none, none, 1e-5, y, none, none)), "normalizedShape");
    refused(op!(s, nn.aclnnGeluBackwardV2(x, b.tensor(), null_mut(), y)), "approximate");
}

fn phases_need_a_device() {
    start(0);
    let (s, (a, b, c)) = (stream() as usize, three());
    let tensors = [a.tensor() as usize, b.tensor() as usize, c.tensor() as usize];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [x, y, z] = tensors.map(|t| t as *mut aclTensor);
            assert_eq!(op!(s as _, math.aclnnMul(x, y, z)), 361_001);
            let said = message();
            assert!(said.contains("107002"), "{said}");
        });
    });
}

fn launch(workspace: *mut c_void, size: u64, executor: *mut aclOpExecutor, s: *mut c_void) -> i32 {
    let (_, second) = cann().math.aclnnAdd.unwrap();
    // SAFETY: the executor of a first phase; what is wrong with the workspace is what the emulator must name.
    unsafe { second(workspace, size, executor, s.cast()) }
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn a_workspace_that_is_null_ends_its_executor() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    assert_eq!(launch(null_mut(), size, executor, s.cast()), 161_001);
    assert_eq!(launch(alloc(size as usize), size, executor, s.cast()), 561_103);
    let said = message();
    assert!(said.contains("NN-02"), "{said}");
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn a_tensor_of_another_device_needs_access() {
    start(1);
    let far = Array::of(&[4], F32, &[1.0; 4]);
    start(0);
    let (s, (a, b, c)) = (stream(), three());
    assert_eq!(add(s, &a, &far, &c), 161_002);
    let said = message();
    assert!(said.contains("MEM-02") && said.contains("device 1"), "{said}");
    assert_ne!(call!(rt.aclrtMemcpy(c.at, 16, far.at, 16, 3)), 0);
    ok(call!(rt.aclrtDeviceEnablePeerAccess(1, 0)));
    ok(call!(rt.aclrtMemcpy(c.at, 16, far.at, 16, 3)));
    assert_eq!(c.read_now(), [1.0; 4]);
    ok(add(s, &a, &b, &c));
    sync(s);
}

/// Runs with `CANN_EMU_EVENTS=3`, another chip's name, and `CANN_EMU_VIOLATION=error`.
fn events_are_limited_and_have_kinds() {
    start(0);
    let soc = call!(rt.aclrtGetSocName());
    // SAFETY: a C string of the library.
    let soc = unsafe { CStr::from_ptr(soc.cast()) };
    assert_eq!(soc.to_str(), Ok("Ascend910_9391"));
    let s = stream();
    // 8: with a time.
    let (a, b, plain) = (event(8), event(8), event(0));
    let mut more = null_mut();
    assert_eq!(call!(rt.aclrtCreateEvent(&raw mut more)), 207_007);
    let mut ex = null_mut();
    ok(call!(rt.aclrtCreateEventExWithFlag(&raw mut ex, 8)));
    let mut ms = 0f32;
    assert_eq!(call!(rt.aclrtEventElapsedTime(&raw mut ms, a, b)), 107_006, "neither was recorded");
    for e in [a, plain, b] {
        ok(call!(rt.aclrtRecordEvent(e, s)));
    }
    sync(s);
    ok(call!(rt.aclrtEventElapsedTime(&raw mut ms, a, b)));
    assert!(ms >= 0.0);
    assert_eq!(call!(rt.aclrtEventElapsedTime(&raw mut ms, b, a)), 107_007, "the wrong way round");
    assert_eq!(call!(rt.aclrtEventElapsedTime(&raw mut ms, a, plain)), 107_006, "an event without a time");
    assert_eq!(call!(rt.aclrtResetEvent(ex, s)), 107_000, "an event of the other kind");
    ok(call!(rt.aclrtDestroyEvent(plain)));
    ok(call!(rt.aclrtCreateEvent(&raw mut more)));
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn a_context_ends_with_its_last_reset() {
    start(2);
    start(2);
    let (s, e) = (stream(), event(0));
    ok(call!(rt.aclrtResetDevice(2)));
    sync(s);
    ok(call!(rt.aclrtResetDevice(2)));
    let mut at = null_mut();
    assert_eq!(call!(rt.aclrtMalloc(&raw mut at, 64, 0)), 107_002);
    assert_ne!(call!(rt.aclrtSynchronizeStream(s)), 0);
    assert_ne!(call!(rt.aclrtRecordEvent(e, s)), 0);
    start(2);
    assert_ne!(call!(rt.aclrtSynchronizeStream(s)), 0, "a stream of the context that has ended");
}

/// Leaves one of each, and says goodbye.
fn what_is_left_is_reported() {
    start(0);
    let (_s, _e, (size, _executor)) = (stream(), event(0), plan());
    assert!(size > 0);
    ok(call!(acl.aclFinalize()));
}

/// A first phase that fails leaves nothing, if what was made for it is destroyed.
fn nothing_is_left_after_a_refusal() {
    start(0);
    let (a, b, c) = three();
    let s = stream();
    let (x, y, z, k) = (a.tensor(), b.tensor(), c.tensor(), scalar(1.0));
    assert_eq!(op!(s, math.aclnnAdd(x, null_mut(), k, z)), 161_001);
    for t in [x, y, z] {
        ok(call!(meta.aclDestroyTensor(t)));
    }
    ok(call!(meta.aclDestroyScalar(k)));
    for at in [a.at, b.at, c.at] {
        ok(call!(rt.aclrtFree(at)));
    }
    ok(call!(rt.aclrtDestroyStream(s)));
    ok(call!(acl.aclFinalize()));
    assert_eq!(call!(acl.aclFinalize()), 100_037, "a second end");
}

/// In mode lazy: a copy from page-locked memory takes what is there when its turn comes, one from other memory what is there
/// when it is called; a copy to other memory has happened when the call returns.
fn page_locked_copies_happen_when_their_turn_comes() {
    start(0);
    let s = stream();
    let (a, b) = (Array::new(&[4], F32), Array::new(&[4], F32));
    let (mut locked, mut plain) = (null_mut(), [1.0f32; 4]);
    ok(call!(rt.aclrtMallocHost(&raw mut locked, 16)));
    // SAFETY: 16 bytes of page-locked host memory.
    let held = unsafe { std::slice::from_raw_parts_mut(locked.cast::<f32>(), 4) };
    held.fill(1.0);
    ok(call!(rt.aclrtMemcpyAsync(a.at, 16, locked, 16, 1, s)));
    ok(call!(rt.aclrtMemcpyAsync(b.at, 16, plain.as_ptr().cast(), 16, 1, s)));
    plain.fill(2.0);
    let c = Array::new(&[4], F32);
    ok(call!(rt.aclrtMemcpyAsync(c.at, 16, locked, 16, 1, s)));
    held.fill(3.0);
    let mut out = [0.0f32; 4];
    ok(call!(rt.aclrtMemcpyAsync(out.as_mut_ptr().cast(), 16, c.at, 16, 2, s)));
    assert_eq!(out, [3.0; 4], "drained before it returned");
    assert_eq!(b.read(s), [1.0; 4]);
    // The copy to `b` drained the first one.
    assert_eq!(a.read(s), [1.0; 4]);
}

/// In mode lazy with `CANN_EMU_VIOLATION=log`: nothing was calculated yet.
fn a_copy_that_came_too_early_holds_ones() {
    start(0);
    let s = stream();
    let (a, b, _) = three();
    let c = Array::new(&[4], F32);
    ok(add(s, &a, &b, &c));
    assert!(c.read_now().iter().all(|v| v.is_nan()));
    assert_eq!(c.read(s), [11.0, 22.0, 33.0, 44.0]);
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn allocations_have_their_size_and_place() {
    start(0);
    let mut seen = std::collections::HashSet::new();
    let mut host = [0u8; 256];
    let mut copy = |at: *mut c_void, n: usize| call!(rt.aclrtMemcpy(host.as_mut_ptr().cast(), 256, at, n, 2));
    for n in [1usize, 31, 32, 33, 100] {
        let at = alloc(n);
        assert_eq!(at as usize % 64, 0);
        // Rounded up to 32, and 32 more.
        let whole = n.div_ceil(32) * 32 + 32;
        assert_eq!(copy(at, whole), 0, "{whole} of {n}");
        assert_ne!(copy(at, whole + 1), 0, "{} of {n}", whole + 1);
        ok(call!(rt.aclrtFree(at)));
    }
    for _ in 0..100 {
        let at = alloc(64);
        assert!(seen.insert(at as usize), "an address came back at once");
        ok(call!(rt.aclrtFree(at)));
    }
}

fn ten_calls_leave_a_trace() {
    start(0);
    let (a, b, c) = three();
    let s = stream();
    ok(add(s, &a, &b, &c));
    sync(s);
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn a_profile_has_its_order() {
    start(0);
    let mut device = 0u32;
    let config = call!(prof.aclprofCreateConfig(&raw mut device, 1, 0, std::ptr::null(), 1));
    assert_ne!(call!(prof.aclprofStart(config.cast())), 0, "start before init");
    assert_ne!(call!(prof.aclprofFinalize()), 0, "an end without a beginning");
    let folder = std::env::temp_dir().join(format!("cann-emu-order-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    ok(call!(prof.aclprofInit(path.as_ptr(), path.as_bytes().len())));
    let config = call!(prof.aclprofCreateConfig(&raw mut device, 1, 0, std::ptr::null(), 1));
    assert!(!config.is_null(), "{}", message());
    assert_ne!(call!(prof.aclprofStop(config.cast())), 0, "stop before start");
    ok(call!(prof.aclprofStart(config.cast())));
    assert_ne!(call!(prof.aclprofFinalize()), 0, "an end while it runs");
    ok(call!(prof.aclprofStop(config.cast())));
    ok(call!(prof.aclprofDestroyConfig(config.cast())));
    ok(call!(prof.aclprofFinalize()));
    // A folder of this test alone.
    let _ = std::fs::remove_dir_all(folder);
}

fn a_scalar_destroyed_twice() {
    start(0);
    let k = scalar(1.0);
    ok(call!(meta.aclDestroyScalar(k)));
    ok(call!(meta.aclDestroyScalar(k)));
}

fn an_array_destroyed_twice() {
    start(0);
    let k = ints(&[1, 2]);
    ok(call!(meta.aclDestroyIntArray(k)));
    ok(call!(meta.aclDestroyIntArray(k)));
}

fn an_element_of_a_destroyed_list() {
    start(0);
    let (a, ..) = three();
    let t = a.tensor();
    ok(call!(meta.aclDestroyTensorList(list(&[t]))));
    ok(call!(meta.aclDestroyTensor(t)));
}

fn a_destroyed_tensor_in_use() {
    start(0);
    let (s, (a, b, c)) = (stream(), three());
    let t = a.tensor();
    ok(call!(meta.aclDestroyTensor(t)));
    ok(op!(s, math.aclnnMul(t, b.tensor(), c.tensor())));
}

fn a_storage_outside_its_allocation() {
    start(0);
    let (s, (a, b, c)) = (stream(), three());
    let larger = Array { dims: vec![1000], ..a };
    // The view lies within the storage, the storage does not lie within the memory.
    ok(op!(s, math.aclnnMul(larger.view(&[4], &[1]), b.tensor(), c.tensor())));
}

fn a_workspace_freed_before_it_is_used() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    let w = alloc(size as usize);
    ok(launch(w, size, executor, s.cast()));
    ok(call!(rt.aclrtFree(w)));
}

fn a_workspace_across_two_allocations() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    let w = alloc(16);
    // As if what lies behind belonged to it.
    ok(launch(w, size.max(4096), executor, s.cast()));
}

fn a_copy_to_a_device_without_access() {
    start(1);
    let far = alloc(16);
    start(0);
    let (a, ..) = three();
    ok(call!(rt.aclrtMemcpy(far, 16, a.at, 16, 3)));
}

fn phases_on_two_threads() {
    start(0);
    let s = stream() as usize;
    let (size, executor) = plan();
    let (w, executor) = (alloc(size as usize) as usize, executor as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok(call!(rt.aclrtSetDevice(0)));
            ok(launch(w as _, size, executor as _, s as _));
        });
    });
    sync(s as _);
}

/// 16 bytes behind the start of an allocation: a line of the report, no more.
fn an_address_between_the_lines() {
    start(0);
    let (s, (_, b, c)) = (stream(), three());
    let whole = Array::of(&[8], F32, &[1.0; 8]);
    let behind = Array { at: whole.at.wrapping_byte_add(16), dims: vec![4], dtype: F32 };
    ok(op!(s, math.aclnnMul(behind.tensor(), b.tensor(), c.tensor())));
    sync(s);
}
