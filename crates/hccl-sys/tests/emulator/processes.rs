//! Every collective in every type, over ranks that are processes.

use super::scenarios::scenarios;
use super::{Personality, run_in};
use crate::client::{alloc, call, cann, message, ok, start, stream, sync};
use half::{bf16, f16};
use hccl_sys::types::{HcclComm, HcclRootInfo, HcclSendRecvItem, aclrtStream};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::time::Duration;

scenarios! { one_of_processes_that_call_everything a_process_that_holds_memory a_process_that_wants_memory }

#[test]
fn every_collective_in_every_type_over_processes() {
    for (world, mode, personality) in [
        (2, "lazy", Personality::V91),
        (3, "threads", Personality::V81),
        (3, "lazy", Personality::V81),
        (4, "threads", Personality::V91),
        (8, "threads", Personality::V91),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (at, ranks) = (folder.path().to_str().unwrap(), world.to_string());
        let rank = |r: usize| {
            let r = r.to_string();
            let settings = [
                ("CANN_RANK", r.as_str()),
                ("CANN_WORLD", &ranks),
                ("CANN_FOLDER", at),
                ("CANN_EMU_MODE", mode),
            ];
            run_in(personality, "one_of_processes_that_call_everything", &settings)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|r| scope.spawn(move || rank(r))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (r, out) in all.iter().enumerate() {
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "rank {r} of {world} in {mode}:\n{said}");
        }
    }
}

/// Two processes of one session have one device: what one holds the other cannot have, until it has gone. Of other sessions, and
/// of none, each has its own.
#[test]
fn processes_of_a_session_share_their_devices() {
    let folder = tempfile::tempdir().unwrap();
    let session = format!("test-{}", std::process::id());
    let run = |scenario: &str, session: &str, wanted: &str| {
        let settings = [
            ("CANN_EMU_SESSION", session),
            ("CANN_EMU_HBM_MB", "64"),
            ("CANN_FOLDER", folder.path().to_str().unwrap()),
            ("CANN_WANTED", wanted),
        ];
        let out = run_in(Personality::V91, scenario, &settings);
        assert!(out.status.success(), "{scenario}: {}", String::from_utf8_lossy(&out.stderr));
    };
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| run("a_process_that_holds_memory", &session, ""));
        while !folder.path().join("held").exists() && !holder.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        run("a_process_that_wants_memory", &session, "refused");
        run("a_process_that_wants_memory", "", "had");
        run("a_process_that_wants_memory", &format!("{session}-other"), "had");
        std::fs::write(folder.path().join("enough"), "").unwrap();
        holder.join().unwrap();
    });
    run("a_process_that_wants_memory", &session, "had");
    for name in [session.clone(), format!("{session}-other")] {
        // SAFETY: a plain call.
        let file = format!("/dev/shm/cann-emu-{}-{name}-0", unsafe { libc::getuid() });
        std::fs::remove_file(file).unwrap();
    }
}

const FORTY: usize = 40 << 20;

fn a_process_that_holds_memory() {
    let folder = PathBuf::from(std::env::var("CANN_FOLDER").unwrap());
    start(0);
    let at = alloc(FORTY);
    ok(call!(rt.aclrtMemset(at, FORTY, 7, FORTY)));
    std::fs::write(folder.join("held"), "").unwrap();
    while !folder.join("enough").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // What others wrote did not reach it.
    let mut bytes = vec![0u8; FORTY];
    ok(call!(rt.aclrtMemcpy(bytes.as_mut_ptr().cast(), FORTY, at, FORTY, 2)));
    assert!(bytes.iter().all(|b| *b == 7));
}

fn a_process_that_wants_memory() {
    start(0);
    let (mut free, mut all, mut at) = (0usize, 0usize, null_mut());
    ok(call!(rt.aclrtGetMemInfo(0, &raw mut free, &raw mut all)));
    let code = call!(rt.aclrtMalloc(&raw mut at, FORTY, 0));
    if std::env::var("CANN_WANTED").unwrap() == "refused" {
        assert!(free < FORTY && code == 207_001, "{free} free, code {code}");
        assert!(message().contains("by other processes"));
        return;
    }
    assert!(free == all && code == 0, "{free} of {all} free, code {code}");
    ok(call!(rt.aclrtMemset(at, FORTY, 9, FORTY)));
}

/// The root info of rank 0, by a file.
pub(super) fn meet(rank: usize, path: &Path) -> Box<HcclRootInfo> {
    let mut info = Box::new(HcclRootInfo { internal: [0; 4108] });
    if rank == 0 {
        assert_eq!(call!(hccl.HcclGetRootInfo(&raw mut *info)), 0, "{}", message());
        let bytes: Vec<u8> = info.internal.iter().map(|b| *b as u8).collect();
        std::fs::write(path.with_extension("part"), bytes).unwrap();
        std::fs::rename(path.with_extension("part"), path).unwrap();
    } else {
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        for (to, from) in info.internal.iter_mut().zip(std::fs::read(path).unwrap()) {
            *to = from as _;
        }
    }
    info
}

/// Types of `HcclDataType` with their bytes, and whether they are added up.
const TYPES: [(i32, usize, bool); 12] = [
    (0, 1, true),
    (1, 2, true),
    (2, 4, true),
    (3, 2, true),
    (4, 4, true),
    (5, 8, true),
    (6, 8, false),
    (7, 1, false),
    (8, 2, false),
    (9, 4, false),
    (10, 8, false),
    (11, 2, true),
];

fn encode(values: &[f64], t: i32) -> Vec<u8> {
    let each = |v: &f64| match t {
        0 => (*v as i8).to_le_bytes().to_vec(),
        1 => (*v as i16).to_le_bytes().to_vec(),
        2 => (*v as i32).to_le_bytes().to_vec(),
        3 => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
        4 => (*v as f32).to_le_bytes().to_vec(),
        5 => (*v as i64).to_le_bytes().to_vec(),
        6 => (*v as u64).to_le_bytes().to_vec(),
        7 => (*v as u8).to_le_bytes().to_vec(),
        8 => (*v as u16).to_le_bytes().to_vec(),
        9 => (*v as u32).to_le_bytes().to_vec(),
        10 => v.to_le_bytes().to_vec(),
        _ => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

/// Values of a type on the device.
struct Values {
    at: *mut c_void,
    bytes: usize,
}

impl Values {
    fn of(values: &[f64], t: i32) -> Values {
        let bytes = encode(values, t);
        let at = alloc(bytes.len());
        ok(call!(rt.aclrtMemcpy(at, bytes.len(), bytes.as_ptr().cast(), bytes.len(), 1)));
        Values { at, bytes: bytes.len() }
    }

    /// As many zeros.
    fn room(n: usize, t: i32) -> Values {
        Values::of(&vec![0.0; n], t)
    }

    #[track_caller]
    fn are(&self, s: aclrtStream, want: &[f64], t: i32, what: &str) {
        sync(s);
        let mut bytes = vec![0u8; self.bytes];
        ok(call!(rt.aclrtMemcpy(bytes.as_mut_ptr().cast(), self.bytes, self.at, self.bytes, 2)));
        assert!(bytes == encode(want, t), "{what} of type {t}: {bytes:?}, expected {want:?}");
    }
}

/// What rank `r` has: ones and twos, so that no product of eight leaves a type.
fn mine(r: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| if (r + i).is_multiple_of(3) { 2.0 } else { 1.0 }).collect()
}

/// What an operation makes of all ranks' values.
fn reduced(op: i32, n: usize) -> Vec<f64> {
    let of = |i: usize| (0..n).map(move |r| mine(r, n)[i]);
    (0..n)
        .map(|i| match op {
            0 => of(i).sum(),
            1 => of(i).product(),
            2 => of(i).fold(0.0, f64::max),
            _ => of(i).fold(9.0, f64::min),
        })
        .collect()
}

fn one_of_processes_that_call_everything() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (r, n) = (number("CANN_RANK"), number("CANN_WORLD"));
    let folder = PathBuf::from(std::env::var("CANN_FOLDER").unwrap());
    start(r as i32);
    let (info, mut comm, s) = (meet(r, &folder.join("root")), null_mut(), stream());
    assert_eq!(call!(hccl.HcclCommInitRootInfo(n as u32, &raw const *info, r as u32, &raw mut comm)), 0);
    for (t, _, _) in TYPES.iter().filter(|t| t.2) {
        reductions(r, n, *t, comm, s);
    }
    for (t, width, _) in TYPES {
        copies(r, n, (t, width), comm, s);
    }
    // The process of rank 0 has the group's hub; it leaves last.
    std::fs::write(folder.join(format!("left{r}")), "").unwrap();
    while r == 0 && !(1..n).all(|r| folder.join(format!("left{r}")).exists()) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Uneven: the first rank has two elements, the last none.
fn uneven(n: usize) -> (Vec<u64>, Vec<u64>) {
    let counts: Vec<u64> = (0..n).map(|i| if i == 0 { 2 } else { u64::from(i + 1 < n) }).collect();
    let places = (0..n).map(|i| counts[..i].iter().sum()).collect();
    (counts, places)
}

fn reductions(r: usize, n: usize, t: i32, comm: HcclComm, s: aclrtStream) {
    let (counts, places) = uneven(n);
    for op in 0..4 {
        if op == 1 && matches!(t, 1 | 11) {
            // Products of these are refused by the pages.
            continue;
        }
        let want = reduced(op, n);
        let a = Values::of(&mine(r, n), t);
        ok(call!(hccl.HcclAllReduce(a.at, a.at, n as u64, t, op, comm, s)));
        a.are(s, &want, t, "all-reduce");
        let (a, b) = (Values::of(&mine(r, n), t), Values::room(n, t));
        ok(call!(hccl.HcclReduce(a.at, b.at, n as u64, t, op, 1, comm, s)));
        b.are(s, &if r == 1 { want.clone() } else { vec![0.0; n] }, t, "reduce");
        let b = Values::room(1, t);
        ok(call!(hccl.HcclReduceScatter(a.at, b.at, 1, t, op, comm, s)));
        b.are(s, &want[r..=r], t, "reduce-scatter");
        let (own, b) = (counts[r] as usize, Values::room(2, t));
        let (c, p) = (counts.as_ptr().cast(), places.as_ptr().cast());
        ok(call!(hccl.HcclReduceScatterV(a.at, c, p, b.at, own as u64, t, op, comm, s)));
        let mut part = want[places[r] as usize..][..own].to_vec();
        part.resize(2, 0.0);
        b.are(s, &part, t, "uneven reduce-scatter");
    }
}

fn copies(r: usize, n: usize, (t, width): (i32, usize), comm: HcclComm, s: aclrtStream) {
    let a = Values::of(&mine(r, n), t);
    let own = a.at;
    let all: Vec<f64> = (0..n).flat_map(|r| mine(r, 2)).collect();
    let b = Values::room(2 * n, t);
    ok(call!(hccl.HcclAllGather(own, b.at, 2, t, comm, s)));
    b.are(s, &all, t, "all-gather");
    let (counts, places) = uneven(n);
    let (c, p) = (counts.as_ptr().cast(), places.as_ptr().cast());
    let b = Values::room(n, t);
    ok(call!(hccl.HcclAllGatherV(own, counts[r], b.at, c, p, t, comm, s)));
    let each = (0..n).flat_map(|r| mine(r, n)[..counts[r] as usize].to_vec());
    b.are(s, &each.collect::<Vec<_>>(), t, "uneven all-gather");
    let root = n - 1;
    let b = Values::of(&mine(r, n), t);
    ok(call!(hccl.HcclBroadcast(b.at, n as u64, t, root as u32, comm, s)));
    b.are(s, &mine(root, n), t, "broadcast");
    let b = Values::room(1, t);
    ok(call!(hccl.HcclScatter(own, b.at, 1, t, root as u32, comm, s)));
    b.are(s, &mine(root, n)[r..=r], t, "scatter");
    let b = Values::room(n, t);
    ok(call!(hccl.HcclAlltoAll(own, 1, t, b.at, 1, t, comm, s)));
    b.are(s, &(0..n).map(|from| mine(from, n)[r]).collect::<Vec<_>>(), t, "all-to-all");
    // Rank i sends i % 3 of its elements to each.
    let (sent, from): (Vec<u64>, Vec<u64>) = (vec![(r % 3).min(n) as u64; n], (0..n).map(|_| 0).collect());
    let came: Vec<u64> = (0..n).map(|i| (i % 3).min(n) as u64).collect();
    let to: Vec<u64> = (0..n).map(|i| came[..i].iter().sum()).collect();
    let want: Vec<f64> = (0..n).flat_map(|i| mine(i, n)[..came[i] as usize].to_vec()).collect();
    let b = Values::room(want.len().max(1), t);
    let at = |list: &[u64]| list.as_ptr().cast();
    ok(call!(hccl.HcclAlltoAllV(own, at(&sent), at(&from), t, b.at, at(&came), at(&to), t, comm, s)));
    let or_none = |want: Vec<f64>| if want.is_empty() { vec![0.0] } else { want };
    b.are(s, &or_none(want), t, "uneven all-to-all");
    // 8.1 does not have it yet.
    if cann().hccl.HcclAlltoAllVC.is_some() {
        let matrix = vec![1u64; n * n];
        let b = Values::room(n, t);
        ok(call!(hccl.HcclAlltoAllVC(own, matrix.as_ptr().cast(), t, b.at, t, comm, s)));
        b.are(s, &(0..n).map(|from| mine(from, n)[r]).collect::<Vec<_>>(), t, "all-to-all by a matrix");
    }
    let (next, before) = ((r + 1) % n, (r + n - 1) % n);
    let b = Values::room(n, t);
    let item = |kind, buf, peer: usize| HcclSendRecvItem {
        send_recv_type: kind,
        buf,
        count: n as u64,
        data_type: t,
        remote_rank: peer as u32,
    };
    let mut items = [item(0, own, next), item(1, b.at, before)];
    ok(call!(hccl.HcclBatchSendRecv(items.as_mut_ptr(), 2, comm, s)));
    b.are(s, &mine(before, n), t, "a batch of messages");
    // Round the ring one after the other; the second element of each.
    let b = Values::room(1, t);
    let second = own.wrapping_byte_add(width);
    let send = || ok(call!(hccl.HcclSend(second, 1, t, next as u32, comm, s)));
    if r == 0 {
        send();
    }
    ok(call!(hccl.HcclRecv(b.at, 1, t, before as u32, comm, s)));
    if r != 0 {
        send();
    }
    b.are(s, &mine(before, n)[1..2], t, "a message");
    ok(call!(hccl.HcclBarrier(comm, s)));
    sync(s);
}
