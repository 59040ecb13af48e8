//! What orders work beside streams and events: polls, functions of the host, callbacks; and threads that nothing orders.

use super::scenarios::{scalar, scenarios};
use super::{Personality, passes_in, run_in, settings};
use crate::client::{Array, F32, call, cann, ok, op, start, stream, sync};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

scenarios! {
    a_stream_polled_to_its_end_is_known_to_be_done a_function_of_the_host_tells_the_host
    a_callback_runs_on_the_thread_that_subscribed an_event_that_was_reset_is_not_recorded
    rows_of_a_copy_do_not_reach_into_the_next threads_that_share_the_default_stream
}

#[test]
fn polls_and_callbacks_order() {
    let modes = ["eager", "lazy", "threads"];
    passes_in("a_stream_polled_to_its_end_is_known_to_be_done", &modes, &[]);
    passes_in("a_callback_runs_on_the_thread_that_subscribed", &modes, &[]);
    passes_in("an_event_that_was_reset_is_not_recorded", &modes, &[]);
    passes_in("rows_of_a_copy_do_not_reach_into_the_next", &modes, &[]);
    passes_in("threads_that_share_the_default_stream", &modes, &[]);
    // Where nothing runs before it is asked for, a flag would be waited for in vain.
    passes_in("a_function_of_the_host_tells_the_host", &["eager", "threads"], &[]);
}

/// What only threads of the host leave unordered is a line of the report with a back trace, and ends nothing.
#[test]
fn threads_that_nothing_orders_are_a_line_of_the_report() {
    let lines = settings::report_of("two_threads_that_share_nothing", &[("CANN_EMU_MODE", "threads")]);
    let line =
        lines.iter().find(|l| l.contains("\"rule\":\"RACE-02\"")).unwrap_or_else(|| panic!("{lines:#?}"));
    for says in ["\"severity\":\"cautious\"", "aclrtMemcpy (call ", "aclrtMemsetAsync (call ", "host thread "]
    {
        assert!(line.contains(says) || says.starts_with("host"), "{says}: {line}");
    }
    assert!(!line.contains("\"trace\":\"\""), "a back trace: {line}");
    let out = run_in(Personality::V91, "two_threads_that_share_by_an_event", &[]);
    assert!(out.status.success());
    let ordered = settings::report_of("two_threads_that_share_by_an_event", &[("CANN_EMU_MODE", "threads")]);
    assert!(!ordered.iter().any(|l| l.contains("RACE-02") && l.contains("aclrtMemcpy")), "{ordered:#?}");
}

fn a_stream_polled_to_its_end_is_known_to_be_done() {
    start(0);
    let (a, s) = (Array::new(&[4], F32), stream());
    ok(call!(rt.aclrtMemsetAsync(a.at, 16, 0, 16, s)));
    let mut status = 1i32;
    while status != 0 {
        ok(call!(rt.aclrtStreamQuery(s, (&raw mut status).cast())));
    }
    assert_eq!(a.read_now(), [0.0; 4]);
    ok(call!(rt.aclrtFree(a.at)));
}

/// Four threads at once, in one context, each with its own memory, all on its default stream.
fn threads_that_share_the_default_stream() {
    start(0);
    let together = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for i in 1..=4 {
            let together = &together;
            scope.spawn(move || {
                ok(call!(rt.aclrtSetDevice(0)));
                let own = f64::from(i);
                let (a, b) = (Array::of(&[64], F32, &[own; 64]), Array::new(&[64], F32));
                together.wait();
                for _ in 0..20 {
                    ok(op!(null_mut(), math.aclnnMuls(a.tensor(), scalar(2.0), b.tensor())));
                    ok(op!(null_mut(), math.aclnnMuls(b.tensor(), scalar(0.5), a.tensor())));
                }
                assert_eq!(a.read(null_mut()), [own; 64]);
                assert_eq!(b.read(null_mut()), [2.0 * own; 64]);
            });
        }
    });
}

extern "C" fn raise(flag: *mut c_void) {
    // SAFETY: the scenarios pass a flag that lives until they have seen it.
    unsafe { &*flag.cast::<AtomicU32>() }.fetch_add(1, Ordering::Release);
}

fn a_function_of_the_host_tells_the_host() {
    start(0);
    if cann().rt.aclrtLaunchHostFunc.is_none() {
        // It came after 8.1.
        return;
    }
    let (a, s, flag) = (Array::new(&[4], F32), stream(), AtomicU32::new(0));
    ok(call!(rt.aclrtMemsetAsync(a.at, 16, 0, 16, s)));
    let at = (&raw const flag).cast_mut().cast();
    ok(call!(rt.aclrtLaunchHostFunc(s, raise as *mut c_void as _, at)));
    while flag.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(a.read_now(), [0.0; 4]);
}

fn a_callback_runs_on_the_thread_that_subscribed() {
    start(0);
    let (a, s, flag) = (Array::new(&[4], F32), stream(), AtomicU32::new(0));
    let (function, at) = (raise as *mut c_void, (&raw const flag).cast_mut().cast());
    assert_eq!(call!(rt.aclrtLaunchCallback(function as _, at, 1, s)), 107_015, "nobody has subscribed");
    assert_eq!(call!(rt.aclrtProcessReport(1)), 107_012, "this thread has not");
    let (server, stop) = (AtomicU64::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a plain call.
            server.store(unsafe { libc::pthread_self() } as u64, Ordering::Release);
            while stop.load(Ordering::Acquire) == 0 {
                let code = call!(rt.aclrtProcessReport(20));
                assert!([0, 107_012, 107_019].contains(&code), "{code}");
            }
        });
        while server.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let thread = server.load(Ordering::Acquire);
        ok(call!(rt.aclrtSubscribeReport(thread, s)));
        assert_eq!(call!(rt.aclrtSubscribeReport(thread, s)), 107_011, "twice");
        ok(call!(rt.aclrtMemsetAsync(a.at, 16, 0, 16, s)));
        // One that the stream waits for.
        ok(call!(rt.aclrtLaunchCallback(function as _, at, 1, s)));
        sync(s);
        assert_eq!(flag.load(Ordering::Acquire), 1);
        assert_eq!(a.read_now(), [0.0; 4]);
        ok(call!(rt.aclrtUnSubscribeReport(thread, s)));
        stop.store(1, Ordering::Release);
    });
}

fn an_event_that_was_reset_is_not_recorded() {
    start(0);
    let (s, mut event, mut status) = (stream(), null_mut(), 7i32);
    ok(call!(rt.aclrtCreateEventWithFlag(&raw mut event, 1)));
    let mut asked = || {
        ok(call!(rt.aclrtQueryEventStatus(event, (&raw mut status).cast())));
        status
    };
    assert_eq!(asked(), 0, "never recorded");
    ok(call!(rt.aclrtRecordEvent(event, s)));
    sync(s);
    assert_eq!(asked(), 1);
    ok(call!(rt.aclrtResetEvent(event, s)));
    assert_eq!(asked(), 0);
    ok(call!(rt.aclrtRecordEvent(event, s)));
    sync(s);
    assert_eq!(asked(), 1);
}

fn rows_of_a_copy_do_not_reach_into_the_next() {
    start(0);
    let (a, host) = (Array::of(&[8], F32, &[1.0; 8]), [0f32; 8]);
    let from = host.as_ptr().cast();
    assert_eq!(call!(rt.aclrtMemcpy2d(a.at, 8, from, 16, 16, 2, 1)), 107_000);
    assert_eq!(call!(rt.aclrtMemcpy2d(a.at, 16, from, 8, 16, 2, 1)), 107_000);
    ok(call!(rt.aclrtMemcpy2d(a.at, 16, from, 8, 8, 2, 1)));
    assert_eq!(a.read_now(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
}
