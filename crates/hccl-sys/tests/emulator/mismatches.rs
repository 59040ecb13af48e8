//! Ranks whose collectives do not match: every one of them is told, with what both called.

use super::passes_in;
use super::scenarios::{ranks, scenarios};
use super::settings::report_of;
use crate::client::{Array, F16, F32, call, message, start, stream};
use hccl_sys::types::{HcclComm, HcclCommConfig, HcclRootInfo};
use std::ffi::CString;
use std::io::Write;
use std::net::TcpStream;
use std::ptr::null_mut;

scenarios! {
    sizes_of_an_exchange_that_differ sizes_of_a_gathering_that_differ a_send_and_a_receive_of_other_sizes
    a_send_and_a_receive_of_other_types a_sum_against_a_message a_message_against_a_sum
    types_that_do_not_exist groups_of_devices_that_do_not_exist buffers_that_stand_aslant
    connections_of_other_groups_are_refused many_groups_share_one_listener rank_tables_that_are_none a_name_that_is_taken
}

const ERROR: (&str, &str) = ("CANN_EMU_VIOLATION", "error");

/// Each scenario's ranks all answer 107020 well before their time limit, and the report has a line of each with both calls.
#[test]
fn every_rank_hears_what_both_called() {
    for (scenario, says) in [
        ("sizes_of_an_exchange_that_differ", ["rank 0 calls HcclAlltoAllV", "room for 16 of rank 0"]),
        ("sizes_of_a_gathering_that_differ", ["rank 1 calls HcclAllGatherV", "room for 8 of rank 1"]),
        (
            "a_send_and_a_receive_of_other_sizes",
            ["sends to rank 1 16 bytes", "receives from rank 0 32 bytes"],
        ),
        ("a_send_and_a_receive_of_other_types", ["16 bytes of type 4", "16 bytes of type 3"]),
        ("a_sum_against_a_message", ["rank 0 calls HcclAllReduce", "rank 1 calls HcclSend"]),
        ("a_message_against_a_sum", ["HcclAllReduce of 4 elements", "HcclRecv, which receives from rank 1"]),
    ] {
        for mode in ["lazy", "threads"] {
            let lines = report_of(scenario, &[ERROR, ("CANN_EMU_MODE", mode), ("HCCL_EXEC_TIMEOUT", "60")]);
            let lines: Vec<&String> = lines.iter().filter(|l| l.contains("\"rule\":\"COMM-01\"")).collect();
            assert_eq!(lines.len(), 2, "{scenario} in {mode}: {lines:#?}");
            for (rank, says) in [0, 1].into_iter().flat_map(|r| says.map(|s| (r, s))) {
                let of_rank = format!("on rank {rank} of 2");
                let heard = lines.iter().any(|l| l.contains(&of_rank) && l.contains(says));
                assert!(heard, "{scenario} in {mode}: {says} {of_rank}: {lines:#?}");
            }
        }
    }
}

#[test]
fn arguments_outside_their_range_are_codes() {
    for scenario in
        ["types_that_do_not_exist", "groups_of_devices_that_do_not_exist", "buffers_that_stand_aslant"]
    {
        passes_in(scenario, &["lazy", "threads"], &[ERROR, ("HCCL_BUFFSIZE", "8")]);
    }
}

/// Over TCP anybody can connect: what is no rank of the group neither joins it nor stops it.
#[test]
fn strangers_do_not_keep_ranks_from_meeting() {
    let server = ("CANN_EMU_SERVER", "10.0.0.1");
    passes_in("connections_of_other_groups_are_refused", &["lazy"], &[ERROR, server, ("HCCL_BUFFSIZE", "1")]);
    let port = ("HCCL_IF_BASE_PORT", "26431");
    passes_in("many_groups_share_one_listener", &["lazy"], &[server, port, ("HCCL_BUFFSIZE", "1")]);
}

#[test]
fn names_and_tables_are_checked() {
    passes_in("rank_tables_that_are_none", &["lazy"], &[ERROR, ("HCCL_BUFFSIZE", "1")]);
    passes_in("a_name_that_is_taken", &["lazy"], &[ERROR, ("HCCL_BUFFSIZE", "1")]);
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

/// Where a group over TCP meets: a text in its root info.
fn address(info: &HcclRootInfo) -> String {
    let text: Vec<u8> = info.internal[16..80].iter().map(|b| *b as u8).take_while(|b| *b != 0).collect();
    String::from_utf8(text).unwrap()
}

fn connections_of_other_groups_are_refused() {
    start(0);
    let info = root_info();
    let words = |list: &[u64]| list.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    // A hello: kind, ranks, device, two numbers, rank, a flag; the group's name by its length and bytes; two lists; a payload.
    let named = |name: &[u8], bytes: u64| [words(&[0, 2, 0, 0, 0, 0, bytes]), name.to_vec()].concat();
    let mut open = Vec::new();
    for said in [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        named(b"", 1 << 62),
        named(b"", 1 << 40),
        [named(b"another", 7), words(&[0, 0, 0])].concat(),
        [words(&[1, 4, 4, 0, 0, 0, 0]), words(&[0, 0, 4]), vec![0; 4]].concat(),
    ] {
        let mut line = TcpStream::connect(address(&info)).unwrap();
        line.write_all(&said).unwrap();
        // They stay connected.
        open.push(line);
    }
    std::thread::scope(|scope| {
        for r in 0..2 {
            let info = &info;
            scope.spawn(move || {
                assert_eq!(call!(rt.aclrtSetDevice(r as i32)), 0);
                let (code, comm) = join(2, info, r);
                assert_eq!(code, 0, "{}", message());
                let (a, s) = (Array::of(&[2], F32, &[1.0, 2.0]), stream());
                assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 2, 4, 0, comm, s)), 0);
                assert_eq!(a.read(s), [2.0, 4.0]);
            });
        }
    });
    // The group has had its ranks.
    assert_eq!(join(2, &info, 0).0, 1);
}

/// More groups than the ports that a process may use.
fn many_groups_share_one_listener() {
    start(0);
    let infos: Vec<_> = (0..40).map(|_| root_info()).collect();
    let comms: Vec<HcclComm> = infos
        .iter()
        .map(|info| {
            let (code, comm) = join(1, info, 0);
            assert_eq!(code, 0, "{}", message());
            comm
        })
        .collect();
    let s = stream();
    for comm in comms {
        let a = Array::of(&[1], F32, &[3.0]);
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 1, 4, 0, comm, s)), 0);
        assert_eq!(a.read(s), [3.0]);
    }
}

fn rank_tables_that_are_none() {
    start(0);
    let folder = tempfile::tempdir().unwrap();
    let device = r#"{"device_id": "0", "device_ip": "10.0.0.2", "rank_id": "0"}"#;
    let table = |status: &str, devices: &str| {
        let servers = format!(r#"[{{"server_id": "10.0.0.1", "device": [{devices}]}}]"#);
        format!(
            r#"{{"version": "1.0", "status": "{status}", "server_count": "1", "server_list": {servers}}}"#
        )
    };
    let join = |text: &str| {
        let path = folder.path().join("table.json");
        std::fs::write(&path, text).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut comm = null_mut();
        call!(hccl.HcclCommInitClusterInfo(path.as_ptr(), 0, &raw mut comm))
    };
    let whole = table("completed", device);
    for (text, says) in [
        (whole[..whole.len() - 1].to_owned(), "EOF"),
        (table("initializing", device), "found the status"),
        (table("completed", &format!("{device}, {device}")), "rank 0 twice"),
        (table("completed", &device.replace(r#""rank_id": "0""#, r#""rank_id": "1""#)), "found the ranks"),
        (table("completed", &device.replace(r#""rank_id": "0""#, r#""rank_id": 0"#)), "found rank_id 0"),
        (table("completed", ""), "found the ranks"),
        (r#"{"status": "completed", "rank_id": "rank_id"}"#.to_owned(), "no server_list"),
        (table("completed", &device.replace(r#""device_id": "0""#, r#""device_id": "3""#)), "on device 3"),
    ] {
        assert_eq!(join(&text), 1, "{text}");
        let said = message();
        assert!(said.contains(says), "expected {says}, found {said}");
    }
    assert_eq!(join(&whole), 0, "{}", message());
}

fn a_name_that_is_taken() {
    start(0);
    let mut config = HcclCommConfig::new();
    for (to, from) in config.comm_name.iter_mut().zip(b"pipeline") {
        *to = *from as _;
    }
    let named = || {
        let (info, mut comm) = (root_info(), null_mut());
        (
            call!(hccl.HcclCommInitRootInfoConfig(1, &raw const *info, 0, &raw const config, &raw mut comm)),
            comm,
        )
    };
    let (code, first) = named();
    assert_eq!(code, 0, "{}", message());
    assert_eq!(named().0, 1);
    assert!(message().contains("named pipeline"), "{}", message());
    while call!(hccl.HcclCommDestroy(first)) != 0 {}
    assert_eq!(named().0, 0, "{}", message());
}

fn sizes_of_an_exchange_that_differ() {
    ranks(2, |r, comm, s| {
        let (a, b) = (Array::of(&[8], F32, &[1.0; 8]), Array::new(&[8], F32));
        // Rank 0 sends nothing to rank 1, which has room for four.
        let (send, recv) = if r == 0 { ([4u64, 0], [4u64, 4]) } else { ([4, 4], [4, 4]) };
        let places = [0u64, 4];
        let at = |list: &[u64; 2]| list.as_ptr().cast();
        let code = call!(hccl.HcclAlltoAllV:
            a.at, at(&send), at(&places), 4, b.at, at(&recv), at(&places), 4, comm, s);
        assert_eq!(code, 0);
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
    });
}

fn sizes_of_a_gathering_that_differ() {
    ranks(2, |r, comm, s| {
        let (a, b) = (Array::of(&[4], F32, &[1.0; 4]), Array::new(&[8], F32));
        let (counts, places) = ([4u64, 2], [0u64, 4]);
        let mine = if r == 0 { 4 } else { 0 };
        let (counts, places) = (counts.as_ptr().cast(), places.as_ptr().cast());
        assert_eq!(call!(hccl.HcclAllGatherV(a.at, mine, b.at, counts, places, 4, comm, s)), 0);
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
    });
}

/// Rank 0 sends, rank 1 receives, as many of these types.
fn from_rank_0(sent: (u64, i32), received: (u64, i32)) {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[8], F32, &[1.0; 8]);
        let code = match r {
            0 => call!(hccl.HcclSend(a.at, sent.0, sent.1, 1, comm, s)),
            _ => call!(hccl.HcclRecv(a.at, received.0, received.1, 0, comm, s)),
        };
        assert_eq!(code, 0);
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
    });
}

fn a_send_and_a_receive_of_other_sizes() {
    from_rank_0((4, 4), (8, 4));
}

fn a_send_and_a_receive_of_other_types() {
    from_rank_0((4, 4), (8, 3));
}

/// Rank 0 sums with both, rank 1 sends or receives.
fn against(message: impl Fn(&Array, HcclComm, *mut std::ffi::c_void) -> i32 + Sync, other: usize) {
    ranks(2, |r, comm, s| {
        let a = Array::of(&[4], F32, &[1.0; 4]);
        let code = match r == other {
            true => message(&a, comm, s.cast()),
            false => call!(hccl.HcclAllReduce(a.at, a.at, 4, 4, 0, comm, s)),
        };
        assert_eq!(code, 0);
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 107_020);
    });
}

fn a_sum_against_a_message() {
    against(|a, comm, s| call!(hccl.HcclSend(a.at, 4, 4, 0, comm, s.cast())), 1);
}

fn a_message_against_a_sum() {
    against(|a, comm, s| call!(hccl.HcclRecv(a.at, 4, 4, 1, comm, s.cast())), 0);
}

fn types_that_do_not_exist() {
    ranks(2, |_, comm, s| {
        let (a, b) = (Array::of(&[4], F16, &[1.0; 4]), Array::new(&[16], F32));
        for code in [13, 99, -1] {
            assert_ne!(call!(hccl.HcclAllGather(a.at, b.at, 4, code, comm, s)), 0, "type {code}");
            assert_ne!(call!(hccl.HcclSend(a.at, 4, code, 0, comm, s)), 0, "type {code}");
        }
    });
}

fn buffers_that_stand_aslant() {
    ranks(1, |_, comm, s| {
        let a = Array::of(&[8], F32, &[1.0; 8]);
        let aslant = a.at.wrapping_byte_add(2);
        assert_ne!(call!(hccl.HcclAllReduce(aslant, aslant, 4, 4, 0, comm, s)), 0);
        assert_eq!(call!(hccl.HcclAllReduce(aslant, aslant, 4, 3, 0, comm, s)), 0);
        assert_eq!(call!(rt.aclrtSynchronizeStream(s)), 0);
    });
}

fn groups_of_devices_that_do_not_exist() {
    start(0);
    let free = || {
        let (mut free, mut all) = (0usize, 0usize);
        assert_eq!(call!(rt.aclrtGetMemInfo(0, &raw mut free, &raw mut all)), 0);
        free
    };
    let before = free();
    for mut devices in [[0, 99], [0, -1], [0, 0]] {
        let mut comms: [HcclComm; 2] = [null_mut(); 2];
        let code = call!(hccl.HcclCommInitAll(2, devices.as_mut_ptr(), comms.as_mut_ptr()));
        assert_eq!(code, 1, "{devices:?}");
        assert_eq!(free(), before);
    }
    let (mut devices, mut comms) = ([0, 1], [null_mut(); 2]);
    assert_eq!(call!(hccl.HcclCommInitAll(2, devices.as_mut_ptr(), comms.as_mut_ptr())), 0);
    assert_eq!(free(), before - (16 << 20));
}
