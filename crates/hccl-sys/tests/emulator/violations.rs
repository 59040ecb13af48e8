//! Programs that are wrong: what the emulator must find, and what a rank that stays away or a fault leads to.

use super::scenarios::{add, ranks, scalar, scenarios, three};
use crate::client::{Array, F32, alloc, call, ints, ok, op, start, stream, sync};
use hccl_sys::types::aclrtStream;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

scenarios! {
    a_copy_without_synchronisation two_streams_without_an_event memory_freed_in_flight memory_used_after_free
    memory_freed_twice a_host_pointer_as_tensor the_host_touches_device_memory a_workspace_on_the_host
    a_workspace_that_is_too_small a_workspace_shared_by_two_streams a_view_outside_its_storage a_tensor_destroyed_twice a_scalar_given_as_tensor
    an_executor_run_twice an_executor_of_another_operator a_stream_of_another_context a_stream_after_its_end
    ranks_that_call_different_collectives two_ranks_that_both_send_first a_rank_stays_away report_first_error
    own_operators_come_first one_all_reduce_of_two_ranks two_threads_that_share_by_an_event two_threads_that_share_nothing
}

fn a_copy_without_synchronisation() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    ok(add(s, &a, &b, &c));
    c.read_now();
}

fn two_streams_without_an_event() {
    start(0);
    let (s, t) = (stream(), stream());
    let (a, b, c) = three();
    ok(add(s, &a, &b, &c));
    ok(add(t, &c, &a, &b));
}

fn memory_freed_in_flight() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    ok(add(s, &a, &b, &c));
    ok(call!(rt.aclrtFree(a.at)));
}

fn memory_used_after_free() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    let t = a.tensor();
    ok(call!(rt.aclrtFree(a.at)));
    ok(op!(s, math.aclnnAdd(t, b.tensor(), scalar(1.0), c.tensor())));
}

fn memory_freed_twice() {
    start(0);
    let (a, ..) = three();
    ok(call!(rt.aclrtFree(a.at)));
    ok(call!(rt.aclrtFree(a.at)));
}

fn a_host_pointer_as_tensor() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    let mut host = [0f32; 64];
    let at = (host.as_mut_ptr() as usize).div_ceil(32) * 32;
    let wrong = Array { at: at as *mut c_void, ..a };
    ok(add(s, &wrong, &b, &c));
}

fn the_host_touches_device_memory() {
    start(0);
    let (a, ..) = three();
    // SAFETY: none; this is the fault that the emulator must name.
    let v = unsafe { a.at.cast::<u8>().read_volatile() };
    println!("read {v}");
}

/// A first phase that asks for a workspace: how much depends on the shape.
pub fn plan() -> (u64, *mut hccl_sys::types::aclOpExecutor) {
    let (first, _) = crate::client::cann().math.aclnnAdd.unwrap();
    for n in 4..40 {
        let a: Vec<Array> = (0..3).map(|_| Array::of(&[n], F32, &vec![1.0; n as usize])).collect();
        let (mut size, mut executor) = (0u64, null_mut());
        let (x, y, z) = (a[0].tensor(), a[1].tensor(), a[2].tensor());
        // SAFETY: live handles and out parameters.
        ok(unsafe { first(x, y, scalar(1.0), z, &raw mut size, &raw mut executor) });
        if size > 0 {
            return (size, executor);
        }
    }
    panic!("no shape asks for a workspace");
}

fn run(workspace: *mut c_void, size: u64, executor: *mut hccl_sys::types::aclOpExecutor, s: aclrtStream) {
    let (_, second) = crate::client::cann().math.aclnnAdd.unwrap();
    // SAFETY: what is wrong with the workspace is what the emulator must name.
    ok(unsafe { second(workspace, size, executor, s) });
}

fn a_workspace_on_the_host() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    let mut host = vec![0u8; size as usize];
    run(host.as_mut_ptr().cast(), size, executor, s);
}

fn a_workspace_that_is_too_small() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    run(alloc(16), size - 1, executor, s);
}

fn a_workspace_shared_by_two_streams() {
    start(0);
    let (s, t) = (stream(), stream());
    let ((m, first), (n, second)) = (plan(), plan());
    let shared = alloc(m.max(n) as usize);
    run(shared, m, first, s);
    run(shared, n, second, t);
}

fn a_view_outside_its_storage() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    ok(op!(s, math.aclnnAdd(a.view(&[4], &[2]), b.tensor(), scalar(1.0), c.tensor())));
}

fn a_tensor_destroyed_twice() {
    start(0);
    let (a, ..) = three();
    let t = a.tensor();
    ok(call!(meta.aclDestroyTensor(t)));
    ok(call!(meta.aclDestroyTensor(t)));
}

fn a_scalar_given_as_tensor() {
    start(0);
    let s = stream();
    let (_, b, c) = three();
    ok(op!(s, math.aclnnAdd(scalar(1.0).cast(), b.tensor(), scalar(1.0), c.tensor())));
}

fn an_executor_run_twice() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    let w = alloc(size as usize);
    run(w, size, executor, s);
    run(w, size, executor, s);
}

fn an_executor_of_another_operator() {
    start(0);
    let s = stream();
    let (size, executor) = plan();
    let (_, second) = crate::client::cann().math.aclnnMul.unwrap();
    // SAFETY: none; the emulator must name it.
    ok(unsafe { second(alloc(size as usize), size, executor, s) });
}

fn a_stream_of_another_context() {
    start(0);
    let s = stream();
    ok(call!(rt.aclrtSetDevice(1)));
    sync(s);
}

fn a_stream_after_its_end() {
    start(0);
    let s = stream();
    ok(call!(rt.aclrtDestroyStream(s)));
    sync(s);
}

fn ranks_that_call_different_collectives() {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[4], F32, &[1.0; 4]);
        let count = if r == 0 { 4 } else { 3 };
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, count, 4, 0, comm, s)), 0);
        sync(s);
    });
}

fn two_ranks_that_both_send_first() {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[3], F32, &[1.0; 3]);
        let b = Array::new(&[3], F32);
        let peer = 1 - r as u32;
        assert_eq!(call!(hccl.HcclSend(a.at, 3, 4, peer, comm, s)), 0);
        assert_eq!(call!(hccl.HcclRecv(b.at, 3, 4, peer, comm, s)), 0);
        sync(s);
    });
}

fn a_rank_stays_away() {
    ranks(2, |r, comm, s| {
        if r == 1 {
            return;
        }
        let a = Array::of(&[4], F32, &[1.0; 4]);
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s)), 0);
        println!("the next synchronise gives {}", call!(rt.aclrtSynchronizeStream(s)));
    });
}

/// Says what each rank's synchronisation gives.
fn one_all_reduce_of_two_ranks() {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[4], F32, &[1.0; 4]);
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s)), 0);
        println!("rank {r}: {}", call!(rt.aclrtSynchronizeStream(s)));
    });
}

/// Says the first code that is not 0 of a short program.
fn report_first_error() {
    let steps = || -> i32 {
        let code = call!(acl.aclInit(null()));
        if code != 0 {
            return code;
        }
        let code = call!(rt.aclrtSetDevice(0));
        if code != 0 {
            return code;
        }
        let mut at = [null_mut(); 3];
        for a in &mut at {
            let code = call!(rt.aclrtMalloc(&raw mut *a, 16, 0));
            if code != 0 {
                return code;
            }
        }
        let s = stream();
        let a: Vec<Array> = at.iter().map(|at| Array { at: *at, dims: vec![4], dtype: F32 }).collect();
        let code = add(s, &a[0], &a[1], &a[2]);
        if code != 0 { code } else { call!(rt.aclrtSynchronizeStream(s)) }
    };
    println!("first error {}", steps());
    let _ = ints(&[1]);
}

/// The library that `ASCEND_CUSTOM_OPP_PATH` names has an addition of its own, and nothing else.
fn own_operators_come_first() {
    start(0);
    let (a, b, c) = three();
    let s = stream();
    assert_eq!(add(s, &a, &b, &c), 4711);
    ok(op!(s, math.aclnnSub(a.tensor(), b.tensor(), scalar(1.0), c.tensor())));
    assert_eq!(c.read(s), [-9.0, -18.0, -27.0, -36.0]);
}

/// One thread fills a buffer, another reads it behind an event that the first has recorded.
fn two_threads_that_share_by_an_event() {
    start(0);
    let (a, s) = (Array::new(&[4], F32), stream());
    let mut event = null_mut();
    ok(call!(rt.aclrtCreateEventExWithFlag(&raw mut event, 1)));
    let (at, first, done) = (a.at as usize, s as usize, event as usize);
    let in_thread = |f: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(f).join().unwrap());
    in_thread(&|| {
        ok(call!(rt.aclrtSetDevice(0)));
        ok(call!(rt.aclrtMemsetAsync(at as *mut _, 16, 0, 16, first as _)));
        ok(call!(rt.aclrtRecordEvent(done as _, first as _)));
    });
    in_thread(&|| {
        ok(call!(rt.aclrtSetDevice(0)));
        ok(call!(rt.aclrtSynchronizeEvent(done as _)));
        assert_eq!(a.read_now(), [0.0; 4]);
    });
}

/// As above, but only the first thread waits for its stream, and tells the second by no means of the device's.
fn two_threads_that_share_nothing() {
    start(0);
    let (a, s) = (Array::new(&[4], F32), stream());
    let (at, first) = (a.at as usize, s as usize);
    let in_thread = |f: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(f).join().unwrap());
    in_thread(&|| {
        ok(call!(rt.aclrtSetDevice(0)));
        ok(call!(rt.aclrtMemsetAsync(at as *mut _, 16, 0, 16, first as _)));
        ok(call!(rt.aclrtSynchronizeStream(first as _)));
    });
    in_thread(&|| {
        ok(call!(rt.aclrtSetDevice(0)));
        a.read_now();
    });
}
