//! Creating and destroying communicators: what is refused, and which resources are taken and given back.

use super::scenarios::{ranks, scenarios};
use crate::client::{Array, F16, F32, I32, I64, alloc, call, message, ok, start, stream, sync};
use hccl_sys::types::{HcclComm, HcclCommConfig, HcclConfigValue, HcclRootInfo, HcclSendRecvItem};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

scenarios! {
    collectives_refuse_what_their_page_does_not_name a_changed_root_info_is_noticed ranks_that_disagree_are_all_told
    a_rank_that_never_joins_is_a_time_out_of_the_others sums_of_ranks_have_one_order_when_asked
    a_communicator_may_want_to_be_destroyed_twice groups_take_their_memory_from_the_device names_of_groups_differ_and_come_back
    heads_of_configurations_are_read_as_far_as_they_go a_collective_and_another_stream_without_an_event
    buffers_of_a_collective_on_the_host buffers_of_a_collective_on_another_device every_rank_is_told_of_a_mismatch
    every_collective_in_every_type
}

/// `HcclDataType` of a type of these tests.
fn hccl(dtype: i32) -> i32 {
    match dtype {
        F32 => 4,
        F16 => 3,
        I32 => 2,
        I64 => 5,
        other => panic!("no such type here: {other}"),
    }
}

fn root_info() -> Box<HcclRootInfo> {
    let mut info = Box::new(HcclRootInfo { internal: [0; 4108] });
    assert_eq!(call!(hccl.HcclGetRootInfo(&raw mut *info)), 0, "{}", message());
    info
}

fn join(size: u32, info: &HcclRootInfo, rank: u32) -> (i32, HcclComm) {
    let mut comm = null_mut();
    (call!(hccl.HcclCommInitRootInfo(size, info, rank, &raw mut comm)), comm)
}

/// Runs with `CANN_EMU_VIOLATION=error`, so that each refusal is a code.
fn collectives_refuse_what_their_page_does_not_name() {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[8], F32, &[1.0; 8]);
        let b = Array::of(&[8], F32, &[1.0; 8]);
        let refused = |dtype: i32, op: i32| call!(hccl.HcclAllReduce(a.at, b.at, 4, dtype, op, comm, s));
        // f64; unsigned numbers; products of int16 and bf16; and a fifth operation, the average that other libraries have.
        for (dtype, op) in [(10, 0), (6, 0), (7, 0), (8, 0), (9, 0), (1, 1), (11, 1), (4, 4)] {
            assert_eq!(refused(dtype, op), 5, "type {dtype}, operation {op}");
        }
        let beside = a.at.wrapping_byte_add(4);
        assert_eq!(call!(hccl.HcclAlltoAll(a.at, 2, 4, beside, 2, 4, comm, s)), 1);
        let said = message();
        assert!(said.contains("overlap"), "{said}");
        assert_eq!(call!(hccl.HcclSend(a.at, 1, 4, r as u32, comm, s)), 1);
        assert_eq!(call!(hccl.HcclRecv(a.at, 1, 4, r as u32, comm, s)), 1);
        let mut own = [HcclSendRecvItem {
            send_recv_type: 0,
            buf: a.at,
            count: 1,
            data_type: 4,
            remote_rank: r as u32,
        }];
        assert_eq!(call!(hccl.HcclBatchSendRecv(own.as_mut_ptr(), 1, comm, s)), 1);
        assert_eq!(call!(hccl.HcclBroadcast(a.at, 1, 4, 2, comm, s)), 1, "a root that is no rank");

        let (mut parent, mut sub) = (comm, null_mut());
        let mut config = HcclCommConfig::new();
        let mut of = |parent: *mut HcclComm, ids: &mut [u32], rank: u32, config: *mut HcclCommConfig| {
            call!(hccl.HcclCreateSubCommConfig:
                parent, ids.len() as u32, ids.as_mut_ptr(), 7, rank, config, &raw mut sub)
        };
        assert_eq!(
            of(&raw mut parent, &mut [1, 0], 1 - r as u32, &raw mut config),
            1,
            "ranks that do not ascend"
        );
        config.magic = 0;
        assert_eq!(
            of(&raw mut parent, &mut [0, 1], r as u32, &raw mut config),
            1,
            "a head without its magic"
        );
        let said = message();
        assert!(said.contains("magic"), "{said}");
        config = HcclCommConfig::new();
        assert_eq!(of(&raw mut parent, &mut [0, 1], r as u32, &raw mut config), 0, "{}", message());
        let mut child = sub;
        let mut below = null_mut();
        let mut ids = [0u32, 1];
        let code = call!(hccl.HcclCreateSubCommConfig:
            &raw mut child, 2, ids.as_mut_ptr(), 8, r as u32, &raw mut config, &raw mut below);
        assert_eq!(code, 1, "a part of a part");
    });
    // One device for two ranks.
    let info = root_info();
    let codes = std::thread::scope(|scope| {
        let info = &info;
        let of = |rank: u32| {
            scope.spawn(move || {
                ok(call!(rt.aclrtSetDevice(0)));
                join(2, info, rank).0
            })
        };
        [of(0), of(1)].map(|t| t.join().unwrap())
    });
    assert_eq!(codes, [1, 1]);
}

fn a_changed_root_info_is_noticed() {
    start(0);
    let whole = root_info();
    let mut text = whole.clone();
    // As a string it ends at its first zero.
    let end = text.internal.iter().position(|b| *b == 0).expect("the blob is not a string");
    text.internal[end..].fill(0);
    let mut short = whole.clone();
    short.internal[4000..].fill(0);
    for blob in [&text, &short] {
        assert_eq!(join(1, blob, 0).0, 1);
        let said = message();
        assert!(said.contains("COMM-04"), "{said}");
    }
    assert_eq!(join(1, &whole, 0).0, 0);
}

fn ranks_that_disagree_are_all_told() {
    start(0);
    let info = root_info();
    let codes = std::thread::scope(|scope| {
        let info = &info;
        let of = |size: u32, rank: u32| {
            scope.spawn(move || {
                ok(call!(rt.aclrtSetDevice(rank as i32)));
                join(size, info, rank).0
            })
        };
        // Three say two sizes: the one who comes last is told, too.
        [of(3, 0), of(2, 1), of(3, 2)].map(|t| t.join().unwrap())
    });
    assert_eq!(codes, [1, 1, 1]);
    // A root info is used for one world, also by those that come at the moment in which it is complete.
    for _ in 0..20 {
        let info = root_info();
        assert_eq!(join(1, &info, 0).0, 0);
        assert_eq!(join(1, &info, 0).0, 1);
        let said = message();
        assert!(said.contains("COMM-04") && said.contains("used before"), "{said}");
    }
}

/// Runs with `HCCL_CONNECT_TIMEOUT=1`.
fn a_rank_that_never_joins_is_a_time_out_of_the_others() {
    start(0);
    let info = root_info();
    let before = std::time::Instant::now();
    assert_eq!(join(2, &info, 0).0, 9);
    let said = message();
    assert!(said.contains("not all of 2 ranks came"), "{said}");
    assert!(before.elapsed().as_secs() < 10);
}

fn sums_of_ranks_have_one_order_when_asked() {
    // Of these four only some orders give the same sum.
    let parts = [1e8, 1.0, -1e8, 0.25];
    let sums = |comm: HcclComm, s, r: usize| -> usize {
        let mut all: Vec<u64> = (0..24)
            .map(|_| {
                let a = Array::of(&[1], F32, &[parts[r]]);
                assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 1, 4, 0, comm, s)), 0);
                a.read(s)[0].to_bits()
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    ranks(4, |r, comm, s| {
        assert!(sums(comm, s, r) > 1, "24 sums in 24 orders");
        // By the configuration of a group.
        let (mut parent, mut sub) = (comm, null_mut());
        let mut config = HcclCommConfig::new();
        config.deterministic = 1;
        let mut ids = [0u32, 1, 2, 3];
        let code = call!(hccl.HcclCreateSubCommConfig:
            &raw mut parent, 4, ids.as_mut_ptr(), 1, r as u32, &raw mut config, &raw mut sub);
        assert_eq!(code, 0);
        assert_eq!(sums(sub, s, r), 1);
    });
    // By the process.
    assert_eq!(call!(hccl.HcclSetConfig(0, HcclConfigValue { value: 1 })), 0);
    ranks(4, |r, comm, s| assert_eq!(sums(comm, s, r), 1));
}

/// Runs with a seed.
fn a_communicator_may_want_to_be_destroyed_twice() {
    let again = std::sync::atomic::AtomicUsize::new(0);
    for n in [1, 2, 3, 4] {
        ranks(n, |_, comm, _| match call!(hccl.HcclCommDestroy(comm)) {
            0 => {}
            code => {
                assert_eq!(code, 20);
                again.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(call!(hccl.HcclCommDestroy(comm)), 0, "the second time it ends");
            }
        });
    }
    let again = again.into_inner();
    assert!((1..10).contains(&again), "{again} of 10 want to be asked again");
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok(call!(rt.aclrtGetMemInfo(1, &raw mut free, &raw mut total)));
    free
}

pub fn destroy(comm: HcclComm) {
    let code = call!(hccl.HcclCommDestroy(comm));
    assert!(code == 0 || (code == 20 && call!(hccl.HcclCommDestroy(comm)) == 0));
}

/// Runs with `HCCL_BUFFSIZE=3`.
fn groups_take_their_memory_from_the_device() {
    start(0);
    let before = free_bytes();
    let info = root_info();
    let (code, world) = join(1, &info, 0);
    assert_eq!(code, 0);
    assert_eq!(before - free_bytes(), 2 * (3 << 20), "two buffers of the variable's size");
    let mut config = HcclCommConfig::new();
    config.buffer_size = 7;
    let (mut parent, mut sub) = (world, null_mut());
    let mut ids = [0u32];
    let code = call!(hccl.HcclCreateSubCommConfig:
        &raw mut parent, 1, ids.as_mut_ptr(), 1, 0, &raw mut config, &raw mut sub);
    assert_eq!(code, 0);
    assert_eq!(before - free_bytes(), 2 * (3 << 20) + 2 * (7 << 20), "and two of the configuration's");
    destroy(sub);
    assert_eq!(before - free_bytes(), 2 * (3 << 20));
    destroy(world);
    assert_eq!(before, free_bytes());
    // A group that does not fit is refused and takes nothing.
    config.buffer_size = u32::MAX - 1;
    let (info, mut comm) = (root_info(), null_mut());
    assert_eq!(
        call!(hccl.HcclCommInitRootInfoConfig(1, &raw const *info, 0, &raw const config, &raw mut comm)),
        3
    );
    assert_eq!(before, free_bytes());
}

fn name_of(comm: HcclComm) -> String {
    let mut name = [0u8; 128];
    assert_eq!(call!(hccl.HcclGetCommName(comm, name.as_mut_ptr().cast())), 0);
    CStr::from_bytes_until_nul(&name).unwrap().to_str().unwrap().to_owned()
}

fn with_config(config: *const c_void) -> (i32, HcclComm) {
    let (info, mut comm) = (root_info(), null_mut());
    let code = call!(hccl.HcclCommInitRootInfoConfig(1, &raw const *info, 0, config.cast(), &raw mut comm));
    (code, comm)
}

fn names_of_groups_differ_and_come_back() {
    start(0);
    let mut names: Vec<String> = (0..10).map(|_| name_of(join(1, &root_info(), 0).1)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 10);
    let mut config = HcclCommConfig::new();
    for (to, from) in config.comm_name.iter_mut().zip(b"pipeline-3") {
        *to = *from as _;
    }
    assert_eq!(name_of(with_config((&raw const config).cast()).1), "pipeline-3");
}

/// Heads of other versions: what is not within the size that they state, or newer than their version, is not read.
fn heads_of_configurations_are_read_as_far_as_they_go() {
    start(0);
    let before = free_bytes();
    for (size, version, buffer, named) in [
        (24u64, 1u32, 200usize, false),
        (32, 1, 5, false),
        (160, 1, 5, false),
        (160, 2, 5, true),
        (300, 5, 5, true),
        (2240, 10, 5, true),
    ] {
        let mut head = vec![0xffu8; 2240];
        head[..8].copy_from_slice(&size.to_le_bytes());
        head[8..12].copy_from_slice(&0xf0f0_f0f0u32.to_le_bytes());
        head[12..16].copy_from_slice(&version.to_le_bytes());
        head[24..28].copy_from_slice(&5u32.to_le_bytes());
        head[32..288].fill(0);
        head[32..35].copy_from_slice(b"own");
        let (code, comm) = with_config(head.as_ptr().cast());
        assert_eq!(code, 0, "{size} {version}: {}", message());
        assert_eq!(before - free_bytes(), 2 * (buffer << 20), "{size} bytes of version {version}");
        assert_eq!(name_of(comm) == "own", named, "{size} bytes of version {version}");
        destroy(comm);
    }
    let wanted = if call!(hccl.HcclGetCommConfigCapability()) == 5 { "8.1" } else { "9.1" };
    assert!(std::env::var("ASCEND_HOME_PATH").unwrap().contains(wanted));
}

fn a_collective_and_another_stream_without_an_event() {
    ranks(1, |_, comm, s| {
        let (a, t) = (Array::of(&[4], F32, &[1.0; 4]), stream());
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s)), 0);
        let mut host = null_mut();
        ok(call!(rt.aclrtMallocHost(&raw mut host, 16)));
        ok(call!(rt.aclrtMemcpyAsync(host, 16, a.at, 16, 2, t)));
    });
}

fn buffers_of_a_collective_on_the_host() {
    ranks(1, |_, comm, s| {
        let mut host = [0f32; 4];
        let at = host.as_mut_ptr().cast();
        ok(call!(hccl.HcclAllReduce(at, at, 4, 4, 0, comm, s)));
    });
}

fn buffers_of_a_collective_on_another_device() {
    start(1);
    let other = alloc(16) as usize;
    ranks(1, |_, comm, s| {
        let at = other as *mut c_void;
        ok(call!(hccl.HcclAllReduce(at, at, 4, 4, 0, comm, s)));
    });
}

/// Runs with `CANN_EMU_VIOLATION=error`.
fn every_rank_is_told_of_a_mismatch() {
    ranks(3, |r, comm, s| {
        let a = Array::of(&[4], F32, &[1.0; 4]);
        let b = Array::new(&[12], F32);
        if r == 2 {
            assert_eq!(call!(hccl.HcclAllGather(a.at, b.at, 4, 4, comm, s)), 0);
        } else {
            assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s)), 0);
        }
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
        let mut code = 0;
        assert_eq!(call!(hccl.HcclGetCommAsyncError(comm, &raw mut code)), 0);
        assert_eq!(code, 1, "rank {r}");
    });
}

/// Sums, products, greatest and least, in every type that a reduction takes, and what only moves, in all.
fn every_collective_in_every_type() {
    let n = 3usize;
    ranks(n, |r, comm, s| {
        for dtype in [F32, F16, I32, I64] {
            let t = hccl(dtype);
            let mine = || Array::of(&[n as i64], dtype, &[r as f64 + 1.0, 2.0, 3.0 - r as f64]);
            for (op, want) in
                [(0, [6.0, 6.0, 6.0]), (1, [6.0, 8.0, 6.0]), (2, [3.0, 2.0, 3.0]), (3, [1.0, 2.0, 1.0])]
            {
                let a = mine();
                assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 3, t, op, comm, s)), 0);
                assert_eq!(a.read(s), want, "all-reduce {op} of type {dtype}");
                let (a, b) = (mine(), Array::of(&[3], dtype, &[0.0; 3]));
                assert_eq!(call!(hccl.HcclReduce(a.at, b.at, 3, t, op, 1, comm, s)), 0);
                assert_eq!(b.read(s), if r == 1 { want } else { [0.0; 3] }, "reduce {op} of type {dtype}");
                let (a, b) = (mine(), Array::new(&[1], dtype));
                assert_eq!(call!(hccl.HcclReduceScatter(a.at, b.at, 1, t, op, comm, s)), 0);
                assert_eq!(b.read(s), [want[r]], "reduce-scatter {op} of type {dtype}");
                // Uneven: the first rank has two elements, the second one, the third none.
                let (counts, places) = ([2u64, 1, 0], [0u64, 2, 3]);
                let own = counts[r];
                let (a, b) = (mine(), Array::of(&[2], dtype, &[0.0; 2]));
                let code = call!(hccl.HcclReduceScatterV:
                    a.at, counts.as_ptr().cast(), places.as_ptr().cast(), b.at, own, t, op, comm, s);
                assert_eq!(code, 0);
                let part = &want[places[r] as usize..(places[r] + own) as usize];
                assert_eq!(b.read(s)[..own as usize], *part, "uneven reduce-scatter {op} of type {dtype}");
            }
            let (a, b) = (mine(), Array::new(&[1], dtype));
            assert_eq!(call!(hccl.HcclScatter(a.at, b.at, 1, t, 2, comm, s)), 0);
            assert_eq!(b.read(s), [[3.0, 2.0, 1.0][r]], "scatter of type {dtype}");
            let (counts, places) = ([2u64, 1, 0], [0u64, 2, 3]);
            let (a, b) = (mine(), Array::new(&[3], dtype));
            let code = call!(hccl.HcclAllGatherV:
                a.at, counts[r], b.at, counts.as_ptr().cast(), places.as_ptr().cast(), t, comm, s);
            assert_eq!(code, 0);
            assert_eq!(b.read(s), [1.0, 2.0, 2.0], "uneven all-gather of type {dtype}");
            // Rank i sends i elements to each.
            let matrix: Vec<u64> = (0..9).map(|i| i / 3).collect();
            let (a, b) = (Array::of(&[6], dtype, &[r as f64; 6]), Array::new(&[3], dtype));
            // 8.1 does not have it yet.
            if crate::client::cann().hccl.HcclAlltoAllVC.is_some() {
                let code = call!(hccl.HcclAlltoAllVC(a.at, matrix.as_ptr().cast(), t, b.at, t, comm, s));
                assert_eq!(code, 0);
                assert_eq!(b.read(s), [1.0, 2.0, 2.0], "all-to-all by a matrix of type {dtype}");
            }
            let (peer, before) = (((r + 1) % n) as u32, ((r + n - 1) % n) as u32);
            let (a, b) = (mine(), Array::new(&[1], dtype));
            let item = |kind, buf, remote_rank| HcclSendRecvItem {
                send_recv_type: kind,
                buf,
                count: 1,
                data_type: t,
                remote_rank,
            };
            let mut items = [item(0, a.at, peer), item(1, b.at, before)];
            assert_eq!(call!(hccl.HcclBatchSendRecv(items.as_mut_ptr(), 2, comm, s)), 0);
            assert_eq!(b.read(s), [f64::from(before) + 1.0], "a batch of messages of type {dtype}");
        }
        assert_eq!(call!(hccl.HcclBarrier(comm, s)), 0);
        sync(s);
    });
}
