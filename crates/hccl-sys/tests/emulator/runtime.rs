//! Streams, events, memory, errors and executors, and ranks that exchange.

use crate::client::{
    Array, BF16, F16, F32, I32, I64, alloc, call, message, noise, ok, op, start, stream, sync,
};
use crate::scenarios::{add, ranks, scalar, scenarios, three};
use hccl_sys::types::aclTensor;
use std::ffi::c_void;
use std::ptr::null_mut;

scenarios! {
    events_order_two_streams a_freed_block_is_reused_on_one_stream pinned_copies_wait_for_the_stream
    errors_have_codes_and_texts what_is_absent_says_so sums_have_the_same_bits_when_determinism_is_asked_for
    a_repeatable_executor_runs_with_new_addresses collectives_of_2_3_and_4_ranks sends_and_receives_match
}

fn event() -> *mut c_void {
    let mut e = null_mut();
    ok(call!(rt.aclrtCreateEventWithFlag(&raw mut e, 8)));
    e
}

fn events_order_two_streams() {
    start(0);
    let (s, t) = (stream(), stream());
    let (a, b, c) = three();
    let d = Array::new(&[4], F32);
    let (first, second) = (event(), event());
    ok(add(s, &a, &b, &c));
    ok(call!(rt.aclrtRecordEvent(first, s)));
    ok(call!(rt.aclrtStreamWaitEvent(t, first)));
    ok(add(t, &c, &a, &d));
    ok(call!(rt.aclrtRecordEvent(second, t)));
    ok(call!(rt.aclrtSynchronizeEvent(second)));
    assert_eq!(d.read_now(), [12.0, 24.0, 36.0, 48.0]);
    let mut ms = -1f32;
    ok(call!(rt.aclrtEventElapsedTime(&raw mut ms, first, second)));
    assert!(ms >= 0.0);
}

fn a_freed_block_is_reused_on_one_stream() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    for _ in 0..20 {
        // The same output again and again: the stream's order is enough.
        ok(add(s, &a, &b, &c));
    }
    assert_eq!(c.read(s), [11.0, 22.0, 33.0, 44.0]);
    ok(call!(rt.aclrtFree(c.at)));
}

fn pinned_copies_wait_for_the_stream() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    let mut host = null_mut();
    ok(call!(rt.aclrtMallocHost(&raw mut host, 16)));
    ok(add(s, &a, &b, &c));
    ok(call!(rt.aclrtMemcpyAsync(host, 16, c.at, 16, 2, s)));
    sync(s);
    // SAFETY: 16 bytes of page-locked host memory, written by the copy that was waited for.
    let got = unsafe { std::slice::from_raw_parts(host.cast::<f32>(), 4) };
    assert_eq!(got, [11.0, 22.0, 33.0, 44.0]);
}

fn errors_have_codes_and_texts() {
    let mut at = null_mut();
    assert_eq!(call!(rt.aclrtMalloc(&raw mut at, 64, 0)), 107_002);
    assert!(message().contains("aclrtSetDevice"));
    start(0);
    assert_eq!(call!(rt.aclrtMalloc(&raw mut at, 0, 0)), 107_000);
    assert_eq!(call!(rt.aclrtSetDevice(99)), 107_001);
    let a = Array::of(&[2, 3], F32, &[0.0; 6]);
    let b = Array::of(&[2, 3], F32, &[0.0; 6]);
    let s = stream();
    let wrong = Array::new(&[5], F32);
    assert_eq!(op!(s, nn.aclnnRmsNorm(a.tensor(), b.tensor(), 1e-5, wrong.tensor(), a.tensor())), 161_002);
    assert!(message().contains("must have one shape"), "the rule's own words");
    let none: *mut aclTensor = null_mut();
    assert_eq!(op!(s, products.aclnnMm(none, b.tensor(), a.tensor(), 0)), 161_001);
    assert_eq!(op!(s, nn.aclnnInverse(a.tensor(), b.tensor())), 561_003, "no kernel here");
    assert!(message().contains("NN-10"), "{}", message());
}

/// The gradient of experts' routing has no kernel, graph capture and shared memory no implementation: each by its rule.
fn what_is_absent_says_so() {
    start(0);
    let ((a, b, c), s) = (three(), stream());
    let code = op!(s, experts.aclnnMoeInitRoutingV2Grad(a.tensor(), b.tensor(), 1, 0, 0, c.tensor()));
    assert_eq!(code, 561_003);
    assert!(message().contains("aclnnMoeInitRoutingV2Grad: NN-10"), "{}", message());
    assert_eq!(call!(model.aclmdlRICaptureBegin(s, 0)), 207_000);
    assert!(message().contains("aclmdlRICaptureBegin: API-01"), "{}", message());
    // 8.1 has it not at all.
    if crate::client::cann().rt.aclrtIpcMemGetExportKey.is_some() {
        let mut key = [0u8; 65];
        assert_eq!(call!(rt.aclrtIpcMemGetExportKey(a.at, 64, key.as_mut_ptr().cast(), 65, 0)), 207_000);
        assert!(message().contains("aclrtIpcMemGetExportKey: API-01"), "{}", message());
    }
}

/// Without, the order of a sum is the call's own.
fn sums_have_the_same_bits_when_determinism_is_asked_for() {
    start(0);
    let s = stream();
    let x = Array::of(&[999], F32, &noise(999, 9));
    let sums = || -> Vec<u64> {
        let one = |_| {
            let y = Array::new(&[1], F32);
            let dims = crate::client::ints(&[0]);
            ok(op!(s, math.aclnnReduceSum(x.tensor(), dims, true, F32, y.tensor())));
            y.read(s)[0].to_bits()
        };
        let mut all: Vec<u64> = (0..16).map(one).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert!(sums().len() > 1, "sixteen sums in sixteen orders");
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    assert_eq!(sums().len(), 1);
}

fn a_repeatable_executor_runs_with_new_addresses() {
    start(0);
    let s = stream();
    let (a, b, c) = three();
    let d = Array::new(&[4], F32);
    let (first, second) = crate::client::cann().math.aclnnAdd.unwrap();
    let (mut size, mut executor) = (0u64, null_mut());
    let out = c.tensor();
    // SAFETY: live handles and out parameters.
    ok(unsafe { first(a.tensor(), b.tensor(), scalar(1.0), out, &raw mut size, &raw mut executor) });
    ok(call!(meta.aclSetAclOpExecutorRepeatable(executor)));
    let w = alloc(size.max(1) as usize);
    // SAFETY: a workspace of the size asked for; the executor is repeatable.
    ok(unsafe { second(w, size, executor, s) });
    ok(call!(meta.aclSetOutputTensorAddr(executor, 0, out, d.at)));
    // SAFETY: as above.
    ok(unsafe { second(w, size, executor, s) });
    assert_eq!(c.read(s), d.read(s));
    ok(call!(meta.aclDestroyAclOpExecutor(executor)));
}

fn collectives_of_2_3_and_4_ranks() {
    for n in [2usize, 3, 4] {
        ranks(n, |r, comm, s| {
            let all: f64 = (0..n).map(|r| r as f64).sum();
            for (code, dtype) in [(4, F32), (3, F16), (11, BF16), (2, I32), (5, I64)] {
                let a = Array::of(&[4], dtype, &[r as f64, 1.0, 2.0, 3.0]);
                assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, code, 0, comm, s)), 0);
                assert_eq!(a.read(s), [all, n as f64, 2.0 * n as f64, 3.0 * n as f64]);
                assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, code, 2, comm, s)), 0);
                assert_eq!(a.read(s)[0], all);
            }
            let mine = Array::of(&[2], F32, &[r as f64, r as f64 + 0.5]);
            let whole = Array::new(&[2 * n as i64], F32);
            assert_eq!(call!(hccl.HcclAllGather(mine.at, whole.at, 2, 4, comm, s)), 0);
            let want: Vec<f64> = (0..n).flat_map(|r| [r as f64, r as f64 + 0.5]).collect();
            assert_eq!(whole.read(s), want);
            let part = Array::new(&[2], F32);
            assert_eq!(call!(hccl.HcclReduceScatter(whole.at, part.at, 2, 4, 0, comm, s)), 0);
            assert_eq!(part.read(s), [(n * r) as f64, n as f64 * (r as f64 + 0.5)]);
            assert_eq!(call!(hccl.HcclBroadcast(mine.at, 2, 4, 1, comm, s)), 0);
            assert_eq!(mine.read(s), [1.0, 1.5]);
            let out = Array::new(&[2 * n as i64], F32);
            assert_eq!(call!(hccl.HcclAlltoAll(whole.at, 2, 4, out.at, 2, 4, comm, s)), 0);
            let want: Vec<f64> = (0..n).flat_map(|_| [r as f64, r as f64 + 0.5]).collect();
            assert_eq!(out.read(s), want);
            // No unsigned numbers in reductions.
            assert_eq!(call!(hccl.HcclAllReduce(mine.at, mine.at, 2, 9, 0, comm, s)), 5);
        });
    }
}

fn sends_and_receives_match() {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[3], F32, &[r as f64; 3]);
        let b = Array::new(&[3], F32);
        let peer = 1 - r as u32;
        let send = || assert_eq!(call!(hccl.HcclSend(a.at, 3, 4, peer, comm, s)), 0);
        let recv = || assert_eq!(call!(hccl.HcclRecv(b.at, 3, 4, peer, comm, s)), 0);
        if r == 0 {
            send();
            recv();
        } else {
            recv();
            send();
        }
        assert_eq!(b.read(s), [f64::from(peer); 3]);
    });
}
