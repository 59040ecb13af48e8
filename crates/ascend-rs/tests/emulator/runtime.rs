//! Devices, streams, buffers, plans, errors.

use crate::{command, said, scenarios, toolkit};
use ascend_rs::{
    Argument, Array, Buffer, Call, Device, Error, Event, Number, Pinned, Profile, Stream, View, ops,
};
use cann_emu::tree::Personality;
use ms_core::DType;

scenarios! {
    a_thread_has_one_device
    the_toolkit_ends_when_nothing_uses_it
    streams_are_ordered_by_the_buffers_they_share
    buffers_that_are_dropped_in_flight_come_back
    results_can_be_asked_to_be_the_same_on_every_run
    a_full_pool_is_given_back_before_memory_is_short
    pinned_memory_is_copied_without_waiting
    an_error_names_function_code_message_and_shapes
    a_plan_that_does_not_run_leaves_nothing
    a_mode_of_attention_without_its_mask_is_refused
    buffers_stand_where_operators_want_them
    the_workspace_grows_and_follows_the_stream
    events_measure_time
    a_view_outside_its_buffer_is_refused
    a_profile_leaves_its_folder
    threads_work_on_one_device_each
}

pub fn start() -> (ascend_rs::Toolkit, Device, Stream) {
    let toolkit = toolkit();
    let device = Device::bind(&toolkit, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    (toolkit, device, stream)
}

fn add(stream: &Stream, a: &Array, b: &Array, out: &Array) {
    ops::add(stream, a.view().unwrap(), b.view().unwrap(), Number::F32(1.0), out.view().unwrap()).unwrap();
}

fn a_thread_has_one_device() {
    let toolkit = toolkit();
    assert_eq!(toolkit.device_count().unwrap(), 16);
    let device = Device::bind(&toolkit, 3).unwrap();
    assert_eq!((device.id(), device.soc_name().as_str()), (3, "Ascend910B3"));
    let e = Device::bind(&toolkit, 1).unwrap_err();
    assert_eq!(e.to_string(), "device 1 cannot be bound to this thread, which is bound to device 3");
    let stream = Stream::new(&device).unwrap();
    drop(device);
    // The stream holds it.
    assert!(Device::bind(&toolkit, 1).is_err());
    drop(stream);
    assert_eq!(Device::bind(&toolkit, 1).unwrap().id(), 1);
    let e = Device::bind(&toolkit, 99).unwrap_err();
    assert_eq!(e.code(), Some(107_001));
}

fn the_toolkit_ends_when_nothing_uses_it() {
    let (toolkit, device, stream) = start();
    let (minor, text) = (toolkit.versions().runtime.1, toolkit.versions().package);
    assert!((minor == 13 && text.starts_with("8.1")) || (minor == 17 && text.starts_with("9.1")), "{text}");
    let buffer = Buffer::new(&stream, 100).unwrap();
    let other = toolkit.clone();
    assert!(matches!(other.finalise(), Err(Error::InUse { users: 2, .. })));
    drop((buffer, stream, device));
    toolkit.finalise().unwrap();
}

fn streams_are_ordered_by_the_buffers_they_share() {
    let (_, device, s) = start();
    let t = Stream::new(&device).unwrap();
    let a = Array::of(&s, &[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let b = Array::new(&s, DType::F32, &[4]).unwrap();
    for _ in 0..20 {
        // To and fro between the streams: nobody records an event here.
        add(&s, &a, &a, &b);
        add(&t, &b, &a, &a);
        ops::mul_number(&s, a.view().unwrap(), Number::F32(1.0 / 3.0), a.view().unwrap()).unwrap();
    }
    let got = a.to_vec::<f32>().unwrap();
    for (g, w) in got.iter().zip([1.0f32, 2.0, 3.0, 4.0]) {
        assert!((g - w).abs() < 1e-4 * w, "{got:?}");
    }
}

fn buffers_that_are_dropped_in_flight_come_back() {
    let (_, device, s) = start();
    let t = Stream::new(&device).unwrap();
    let a = Array::of(&s, &[1000], &[1.0f32; 1000]).unwrap();
    let before = device.memory().unwrap().free_bytes;
    let mut last = None;
    for i in 0..200 {
        // Each product's memory goes back to the pool while its task may not have begun.
        let stream = if i % 3 == 0 { &t } else { &s };
        let b = Array::new(stream, DType::F32, &[1000]).unwrap();
        add(stream, &a, &a, &b);
        let c = Array::new(stream, DType::F32, &[1000]).unwrap();
        add(stream, &b, &a, &c);
        last = Some(c);
    }
    assert_eq!(last.unwrap().to_vec::<f32>().unwrap(), vec![3.0; 1000]);
    let taken = before - device.memory().unwrap().free_bytes;
    assert!(taken < 100 * 4096, "{taken} bytes for two arrays at a time");
    device.trim().unwrap();
    assert_eq!(device.pooled_bytes(), 0);
}

fn results_can_be_asked_to_be_the_same_on_every_run() {
    let (_, device, s) = start();
    for on in [true, false] {
        device.set_deterministic(on).unwrap();
        let a = Array::new(&s, DType::F32, &[8]).unwrap();
        let b = Array::of(&s, &[8], &[1.0f32; 8]).unwrap();
        add(&s, &b, &b, &a);
        assert_eq!(a.to_vec::<f32>().unwrap(), vec![2.0; 8]);
    }
}

fn a_full_pool_is_given_back_before_memory_is_short() {
    let (_, device, s) = start();
    let total = device.memory().unwrap().total_bytes;
    let half = Buffer::new(&s, total / 2).unwrap();
    half.fill(&s, 1).unwrap();
    drop(half);
    assert!(device.pooled_bytes() >= total / 2);
    // It fits neither into what the pool holds nor next to it.
    let most = Buffer::new(&s, total / 4 * 3).unwrap();
    let e = Buffer::new(&s, total / 2).unwrap_err();
    assert_eq!(e.code(), Some(207_001));
    assert!(e.to_string().contains("out of memory"), "{e}");
    drop(most);
    assert!(Buffer::new(&s, total / 2).is_ok());
}

fn pinned_memory_is_copied_without_waiting() {
    let (_, device, s) = start();
    let t = Stream::new(&device).unwrap();
    let mut from = Pinned::new(&device, 16).unwrap();
    let mut to = Pinned::new(&device, 16).unwrap();
    for i in 0..4u8 {
        from.bytes_mut().unwrap().fill(i + 1);
        let buffer = Buffer::new(&s, 16).unwrap();
        buffer.upload(&s, &from).unwrap();
        buffer.download(&t, &mut to).unwrap();
        assert_eq!(to.bytes().unwrap(), [i + 1; 16]);
    }
    let small = Buffer::new(&s, 8).unwrap();
    assert!(matches!(small.upload(&s, &from), Err(Error::Range { need: 16, have: 8, .. })));
}

fn an_error_names_function_code_message_and_shapes() {
    let (_, _device, s) = start();
    let a = Array::of(&s, &[2, 3], &[0.0f32; 6]).unwrap();
    let e = ops::mm(&s, a.view().unwrap(), a.view().unwrap(), a.view().unwrap(), 0).unwrap_err();
    assert_eq!(e.code(), Some(161_002));
    let text = e.to_string();
    assert!(
        text.starts_with(
            "aclnnMm answered 161002 (shape, element type or layout not accepted) for a f32[2, 3], b f32[2, 3]"
        ),
        "{text}"
    );
    // The library's own words come after the colon.
    assert!(text.contains("aclnnMm: "), "{text}");
    // Failing between the phases leaves nothing behind that a later call would trip over.
    let b = Array::new(&s, DType::F32, &[2, 2]).unwrap();
    ops::mm(&s, a.view().unwrap(), a.view().unwrap().transposed(), b.view().unwrap(), 0).unwrap();
    assert_eq!(b.to_vec::<f32>().unwrap(), [0.0; 4]);
}

fn a_mode_of_attention_without_its_mask_is_refused() {
    let (_, _device, s) = start();
    let a = Array::of(&s, &[1, 2, 4, 8], &[0.5f32; 64]).unwrap();
    let out = Array::new(&s, DType::F32, &[1, 2, 4, 8]).unwrap();
    let (max, sum) = (
        Array::new(&s, DType::F32, &[1, 2, 4, 8]).unwrap(),
        Array::new(&s, DType::F32, &[1, 2, 4, 8]).unwrap(),
    );
    let run = |sparse_mode: i64| {
        ops::FlashAttentionScore {
            of: ops::Attention {
                query: a.view().unwrap(),
                key: a.view().unwrap(),
                value: a.view().unwrap(),
                head_num: 2,
                input_layout: c"BNSD",
                scale_value: 0.3,
                options: ops::AttentionOptions { sparse_mode, ..Default::default() },
            },
            results: ops::AttentionResults {
                softmax_max: max.view().unwrap(),
                softmax_sum: sum.view().unwrap(),
                softmax_out: None,
                attention_out: out.view().unwrap(),
            },
        }
        .run(&s)
    };
    run(0).unwrap();
    for mode in 1..=8 {
        let e = run(mode).unwrap_err().to_string();
        assert!(
            e.starts_with(&format!(
                "aclnnFlashAttentionScore: sparse mode {mode} needs its mask, none was given"
            )),
            "{e}"
        );
    }
}

fn buffers_stand_where_operators_want_them() {
    let (_, _device, s) = start();
    for bytes in [1usize, 31, 32, 33, 511, 512, 513, 5000] {
        let buffer = Buffer::new(&s, bytes).unwrap();
        assert_eq!(buffer.address() as usize % 64, 0, "{bytes} bytes");
        assert_eq!(buffer.len(), bytes);
        // A piece of the pool is an allocation of its own, followed by the 32 bytes that operators may touch.
        buffer.fill(&s, 0).unwrap();
    }
}

/// The emulator's report, which also lists what is left when the runtime ends.
fn report() -> String {
    std::fs::read_to_string(std::env::var("CANN_EMU_REPORT").unwrap()).unwrap_or_default()
}

fn a_plan_that_does_not_run_leaves_nothing() {
    let (toolkit, device, s) = start();
    // Newer than 8.1; all others are in both releases.
    let newer = [
        "aclnnFlashAttentionScoreV3",
        "aclnnFlashAttentionScoreV4",
        "aclnnFlashAttentionScoreGradV3",
        "aclnnFlashAttentionScoreGradV4",
        "aclnnFlashAttentionVarLenScoreV3",
        "aclnnFlashAttentionVarLenScoreV4",
        "aclnnFlashAttentionVarLenScoreV5",
        "aclnnFlashAttentionUnpaddingScoreGradV3",
        "aclnnFlashAttentionUnpaddingScoreGradV4",
        "aclnnFlashAttentionUnpaddingScoreGradV5",
        "aclnnGroupedMatmulV5",
        "aclnnFusedInferAttentionScoreV4",
        "aclnnScatterPaKvCache",
        "aclnnRingAttentionUpdateV2",
    ];
    let old = toolkit.versions().package.starts_with("8.1");
    for (name, there) in ops::available(&toolkit) {
        assert_eq!(there, !(old && newer.contains(&name)), "{name}");
    }
    let a = Array::of(&s, &[2], &[1.0f32, 2.0]).unwrap();
    for run in [false, true] {
        let mut call = Call::new(&s, "aclnnNeg");
        let (x, y) = (a.view().unwrap().pass(&mut call).unwrap(), a.view().unwrap().pass(&mut call).unwrap());
        let functions = toolkit.cann().math.aclnnNeg;
        // SAFETY: the published types; the handles belong to the call.
        let plan =
            call.plan(functions, |first, size, executor| unsafe { first(x, y, size, executor) }).unwrap();
        if run {
            plan.run().unwrap();
        }
    }
    assert_eq!(a.to_vec::<f32>().unwrap(), [-1.0, -2.0]);
    // A plan of an operator that the toolkit lacks is an error that names it.
    let none: Option<(fn(), hccl_sys::SecondPhase)> = None;
    let e = Call::new(&s, "aclnnNeg").plan(none, |_, _, _| 0).unwrap_err();
    assert!(e.to_string().starts_with("aclnnNeg is in none of the toolkit's libraries"), "{e}");
    drop((a, s, device));
    toolkit.finalise().unwrap();
    assert_eq!(report(), "", "nothing is left");
}

fn the_workspace_grows_and_follows_the_stream() {
    let (_, device, s) = start();
    let t = Stream::new(&device).unwrap();
    let mut largest = 0;
    for n in 1..60usize {
        let a = Array::of(&s, &[n * 7], &vec![1.0f32; n * 7]).unwrap();
        for stream in [&s, &t] {
            let b = Array::new(stream, DType::F32, &[n * 7]).unwrap();
            add(stream, &a, &a, &b);
            assert_eq!(b.to_vec::<f32>().unwrap(), vec![2.0; n * 7]);
        }
        assert!(s.workspace_bytes() >= largest, "it does not shrink");
        largest = s.workspace_bytes();
    }
    assert!(largest > 0, "some operator asks for a workspace");
}

fn events_measure_time() {
    let (_, device, s) = start();
    let (a, b) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    a.record(&s).unwrap();
    let x = Array::of(&s, &[64, 64], &[0.5f32; 64 * 64]).unwrap();
    let y = Array::new(&s, DType::F32, &[64, 64]).unwrap();
    ops::mm(&s, x.view().unwrap(), x.view().unwrap(), y.view().unwrap(), 0).unwrap();
    b.record(&s).unwrap();
    b.synchronise().unwrap();
    assert!(a.is_complete().unwrap());
    assert!(a.elapsed_ms(&b).unwrap() >= 0.0);
    assert_eq!(y.to_vec::<f32>().unwrap()[0], 16.0);
}

fn a_view_outside_its_buffer_is_refused() {
    let (_, _device, s) = start();
    let buffer = Buffer::new(&s, 24).unwrap();
    assert!(View::new(&buffer, DType::F32, &[2, 3]).is_ok());
    assert!(View::new(&buffer, DType::F32, &[7]).is_err());
    assert!(View::strided(&buffer, DType::F32, &[3, 2], &[1, 3], 0).is_ok());
    assert!(View::strided(&buffer, DType::F32, &[3, 2], &[1, 3], 1).is_err());
    assert!(View::strided(&buffer, DType::F32, &[3], &[-1], 2).is_ok());
    assert!(View::strided(&buffer, DType::F32, &[3], &[-1], 1).is_err());
    assert!(View::new(&buffer, DType::F32, &[0, 1000]).is_ok(), "no elements, no bytes");
    // Sizes whose bytes, or whose numbers of elements, do not fit into 64 bits.
    let far = 1usize << 62;
    for strides in [[1i64 << 62, 1], [i64::MAX, i64::MAX], [i64::MIN, 1], [1 << 33, 1 << 33]] {
        for shape in [[2, 1], [5, 2], [far, far], [1 << 32, 1 << 32]] {
            let view = View::strided(&buffer, DType::F32, &shape, &strides, 0);
            assert!(view.is_err(), "{shape:?} {strides:?}");
        }
    }
    for shape in [&[2, far][..], &[far, 4, 2], &[1 << 32, 1 << 32], &[usize::MAX], &[1, usize::MAX, 2]] {
        assert!(View::new(&buffer, DType::F32, shape).is_err(), "{shape:?}");
    }
    assert!(View::strided(&buffer, DType::F32, &[1, 1], &[i64::MAX, i64::MIN], i64::MAX).is_err());
}

fn a_profile_leaves_its_folder() {
    let (_, device, s) = start();
    let folder = tempfile::tempdir().unwrap();
    let profile = Profile::start(&device, folder.path()).unwrap();
    let second = Profile::start(&device, folder.path()).unwrap_err();
    assert_eq!(second.code(), Some(148_047));
    let a = Array::of(&s, &[2], &[1.0f32, 2.0]).unwrap();
    add(&s, &a, &a, &a);
    profile.stop(&device).unwrap();
    let names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|n| n.starts_with("PROF_")), "{names:?}");
}

fn threads_work_on_one_device_each() {
    let toolkit = toolkit();
    std::thread::scope(|scope| {
        for id in 0..8 {
            let toolkit = &toolkit;
            scope.spawn(move || {
                // Threads 0 and 1 share a device, as two lanes of a rank do.
                let device = Device::bind(toolkit, id / 2).unwrap();
                let s = Stream::new(&device).unwrap();
                let a = Array::of(&s, &[3], &[id as f32; 3]).unwrap();
                for _ in 0..10 {
                    ops::add_number(
                        &s,
                        a.view().unwrap(),
                        Number::F32(1.0),
                        Number::F32(1.0),
                        a.view().unwrap(),
                    )
                    .unwrap();
                }
                assert_eq!(a.to_vec::<f32>().unwrap(), [id as f32 + 10.0; 3]);
            });
        }
    });
}

#[test]
fn a_fault_of_the_device_comes_out_of_the_next_synchronisation() {
    let settings = [("CANN_EMU_FAULT", "async:507015@op:Add:1")];
    let out = command(Personality::V91, "streams_are_ordered_by_the_buffers_they_share", &settings).output();
    let text = said(&out.unwrap());
    // The first synchronisation after the launch says so, and nothing later hides it.
    assert!(text.contains(r#"function: "aclrtSynchronizeStream", code: 507015"#), "{text}");
}

#[test]
fn memory_that_runs_out_is_an_error() {
    let out = command(
        Personality::V81,
        "a_full_pool_is_given_back_before_memory_is_short",
        &[("CANN_EMU_FAULT", "oom@alloc:1"), ("CANN_EMU_HBM_MB", "64")],
    );
    // The first allocation fails once, the pool is given back (it is empty), and the second try succeeds.
    let text = said(&{ out }.output().unwrap());
    assert!(text.contains("scenario done"), "{text}");
}
