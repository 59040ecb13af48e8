//! HCCL through the `Fabric` trait with every rank a process: how they meet, and what the others learn of one that ends.

use crate::fabric::{compare, everything, options, over_threads, rank_table};
use crate::{command, said, toolkit};
use ascend_rs::rendezvous::{Folder, InProcess, TorchStore};
use ascend_rs::{Bootstrap, HcclFabric, Rendezvous};
use cann_emu::tree::Personality;
use ms_core::{Arena, Tensor};
use ms_dist::{Fabric, ReduceOp};
use std::io::{Read, Write};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A scenario of one process among several: rank and world from the variables that launchers set.
pub fn one_of_several_processes() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
    let wait = Duration::from_secs(20);
    let meeting: Arc<dyn Rendezvous> = match std::env::var("MASTER_PORT") {
        Ok(port) => Arc::new(TorchStore::connect("127.0.0.1", port.parse().unwrap(), "run-1", wait).unwrap()),
        Err(_) => Arc::new(Folder::new(std::env::var("MEETING").unwrap().as_ref()).unwrap()),
    };
    let toolkit = toolkit();
    let bootstrap =
        std::env::var("RANK_TABLE").map_or(Bootstrap::RootInfo, |t| Bootstrap::RankTable(t.into()));
    let device = std::env::var("DEVICE").map_or(rank as i32, |v| v.parse().unwrap());
    let fabric = HcclFabric::new(&toolkit, device, rank, world, meeting, bootstrap, options());
    let all: Vec<usize> = (0..world).collect();
    let comm = fabric.group(&all).unwrap();
    let hccl = everything(&*comm).unwrap();
    let threads = over_threads(world, |fabric| everything(&*fabric.group(&all).unwrap()).unwrap());
    compare(&[hccl], &threads[rank..=rank]);
}

/// What a process of each rank said and how it ended.
fn outcomes(
    personality: Personality,
    scenario: &str,
    world: usize,
    settings: &[(&str, &str)],
) -> Vec<Output> {
    let size = world.to_string();
    let start = |rank: usize| {
        let mut settings = settings.to_vec();
        let rank = rank.to_string();
        settings.extend([("RANK", rank.as_str()), ("WORLD_SIZE", size.as_str())]);
        // Two devices on each server that is pretended.
        let place = (rank.parse::<usize>().unwrap() / 2, rank.parse::<usize>().unwrap() % 2);
        let (server, device) = (format!("10.0.0.{}", place.0 + 1), place.1.to_string());
        if let Some(at) = settings.iter().position(|(name, _)| *name == "SERVERS") {
            settings.remove(at);
            settings.extend([("CANN_EMU_SERVER", server.as_str()), ("DEVICE", device.as_str())]);
        }
        let mut c = command(personality, scenario, &settings);
        c.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..world).map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// In both modes, each with a personality of its own.
#[track_caller]
fn processes(world: usize, settings: &[(&str, &str)]) {
    for mode in MODES {
        processes_in(mode, world, settings);
    }
}

/// Modes, each with a release of its own.
const MODES: [(&str, Personality); 2] = [("lazy", Personality::V91), ("threads", Personality::V81)];

#[track_caller]
fn processes_in((mode, personality): (&str, Personality), world: usize, settings: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let mut all = vec![("CANN_EMU_MODE", mode), ("MEETING", folder.path().to_str().unwrap())];
    all.extend(settings);
    for out in outcomes(personality, "one_of_several_processes", world, &all) {
        assert!(out.status.success(), "{mode}: {}", said(&out));
    }
}

/// A rank that ends, the first of them, which holds the group together, one that is late, and one that calls something
/// else: the others end with the code of a collective that failed, and soon.
#[test]
fn a_rank_that_dies_ends_the_others_with_an_error() {
    for (fault, dead) in [
        ("kill:rank1@HcclAllReduce:2", Some(1)),
        ("kill:rank0@step:2", Some(0)),
        ("timeout:rank2@HcclAllReduce:2", None),
    ] {
        for (mode, personality) in [("lazy", Personality::V91), ("threads", Personality::V81)] {
            let folder = tempfile::tempdir().unwrap();
            let settings = [
                ("MEETING", folder.path().to_str().unwrap()),
                ("CANN_EMU_MODE", mode),
                ("CANN_EMU_FAULT", fault),
                ("HCCL_EXEC_TIMEOUT", "2"),
            ];
            let start = Instant::now();
            let ended = outcomes(personality, "one_of_processes_that_add", 3, &settings);
            assert!(start.elapsed() < Duration::from_secs(20), "{fault}: {:?}", start.elapsed());
            for (rank, out) in ended.iter().enumerate() {
                if dead == Some(rank) {
                    assert_eq!(out.status.code(), Some(137), "{fault}: {}", said(out));
                    continue;
                }
                assert_eq!(out.status.code(), Some(3), "{fault}, rank {rank} in mode {mode}: {}", said(out));
                assert!(said(out).contains("107020"), "{fault}, rank {rank} in mode {mode}: {}", said(out));
            }
        }
    }
}

/// One of the processes of [`a_rank_that_dies_ends_the_others_with_an_error`]: four sums.
pub fn one_of_processes_that_add() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
    let meeting: Arc<dyn Rendezvous> =
        Arc::new(Folder::new(std::env::var("MEETING").unwrap().as_ref()).unwrap());
    let toolkit = toolkit();
    let fabric = HcclFabric::new(&toolkit, rank as i32, rank, world, meeting, Bootstrap::RootInfo, options());
    let add = || -> ms_dist::Result<()> {
        let comm = fabric.group(&(0..world).collect::<Vec<_>>())?;
        let t = Tensor::from_slice(&Arena::default(), [4], &[1.0f32; 4])?;
        for _ in 0..4 {
            comm.all_reduce("loss", t.clone(), ReduceOp::Sum)?.wait()?;
        }
        Ok(())
    };
    let Err(e) = add() else { return };
    println!("{e}");
    std::process::exit(3);
}

#[test]
fn processes_that_meet_in_a_folder_equal_threads() {
    processes(3, &[]);
}

/// Two processes on each of two servers, which say the same numbers of devices and share no sockets but TCP's.
#[test]
fn processes_on_two_servers_equal_threads() {
    processes(4, &[("SERVERS", "2")]);
}

#[test]
fn processes_on_two_servers_of_a_rank_table_equal_threads() {
    for (mode, personality) in MODES {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("table.json");
        let entry = |rank: usize| {
            format!(
                r#"{{"device_id": "{}", "device_ip": "192.168.100.{rank}", "rank_id": "{rank}"}}"#,
                rank % 2
            )
        };
        let server = |s: usize| {
            format!(
                r#"{{"server_id": "10.0.0.{}", "device": [{}, {}]}}"#,
                s + 1,
                entry(2 * s),
                entry(2 * s + 1)
            )
        };
        let text = format!(
            r#"{{"version": "1.0", "status": "completed", "server_count": "2", "server_list": [{}, {}]}}"#,
            server(0),
            server(1)
        );
        std::fs::write(&table, of_one_run(&text, folder.path())).unwrap();
        let settings = |servers| {
            vec![
                ("RANK_TABLE", table.to_str().unwrap()),
                ("MEETING", folder.path().to_str().unwrap()),
                ("CANN_EMU_MODE", mode),
                servers,
            ]
        };
        for out in outcomes(personality, "one_of_several_processes", 4, &settings(("SERVERS", "2"))) {
            assert!(out.status.success(), "{mode}: {}", said(&out));
        }
        // On a server that the table does not say.
        let mut elsewhere = settings(("CANN_EMU_SERVER", "10.0.0.9"));
        elsewhere.push(("CANN_EMU_VIOLATION", "error"));
        for out in outcomes(personality, "one_of_several_processes", 4, &elsewhere) {
            assert!(said(&out).contains("COMM-05"), "{mode}: {}", said(&out));
        }
    }
}

/// A table whose text is that of no other run.
fn of_one_run(table: &str, folder: &std::path::Path) -> String {
    table.replace("\"1.0\"", &format!("{:?}", folder.display().to_string()))
}

#[test]
fn processes_of_a_rank_table_equal_threads() {
    // A table's text is its group's address: one for each run.
    for mode in ["lazy", "threads"] {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("table.json");
        std::fs::write(&table, of_one_run(&rank_table(3), folder.path())).unwrap();
        let settings = [
            ("RANK_TABLE", table.to_str().unwrap()),
            ("MEETING", folder.path().to_str().unwrap()),
            ("CANN_EMU_MODE", mode),
        ];
        for out in outcomes(Personality::V91, "one_of_several_processes", 3, &settings) {
            assert!(out.status.success(), "{mode}: {}", said(&out));
        }
    }
}

#[test]
fn four_and_eight_processes_equal_threads() {
    for world in [4, 8] {
        processes(world, &[]);
    }
}

/// The store of torchrun as far as its protocol is used: a table of bytes, asked by connection.
fn store(listener: &std::net::TcpListener) {
    let table: Arc<std::sync::Mutex<std::collections::HashMap<Vec<u8>, Vec<u8>>>> = Arc::default();
    for stream in listener.incoming() {
        let (mut stream, table) = (stream.unwrap(), table.clone());
        std::thread::spawn(move || -> std::io::Result<()> {
            fn bytes(s: &mut std::net::TcpStream, n: usize) -> std::io::Result<Vec<u8>> {
                let mut out = vec![0; n];
                s.read_exact(&mut out)?;
                Ok(out)
            }
            fn word(s: &mut std::net::TcpStream) -> std::io::Result<usize> {
                Ok(u64::from_le_bytes(bytes(s, 8)?.try_into().unwrap()) as usize)
            }
            assert_eq!(bytes(&mut stream, 5)?, [0, 0xce, 0xf7, 0x85, 0x3c], "the greeting");
            loop {
                let kind = bytes(&mut stream, 1)?[0];
                if kind == 5 {
                    assert_eq!(word(&mut stream)?, 1);
                }
                let n = word(&mut stream)?;
                let key = bytes(&mut stream, n)?;
                assert!(key.starts_with(b"/run-1/"));
                match kind {
                    1 => {
                        let n = word(&mut stream)?;
                        let value = bytes(&mut stream, n)?;
                        table.lock().unwrap().insert(key, value);
                    }
                    3 => {
                        let value = table.lock().unwrap()[&key].clone();
                        stream.write_all(&(value.len() as u64).to_le_bytes())?;
                        stream.write_all(&value)?;
                    }
                    5 => stream.write_all(&[u8::from(!table.lock().unwrap().contains_key(&key))])?,
                    other => panic!("request {other}"),
                }
            }
        });
    }
}

#[test]
fn processes_that_meet_at_a_store_equal_threads() {
    for mode in MODES {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        std::thread::spawn(move || store(&listener));
        processes_in(mode, 2, &[("MASTER_PORT", &port)]);
    }
}

#[test]
fn no_store_is_an_error_that_names_the_place() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let e = TorchStore::connect("127.0.0.1", free, "x", Duration::from_millis(10)).unwrap_err();
    assert!(e.to_string().starts_with(&format!("rendezvous: no store at 127.0.0.1:{free}")), "{e}");
    // One that takes connections and says nothing is no store either, and the wait has an end.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let store = TorchStore::connect("127.0.0.1", port, "x", Duration::from_millis(10)).unwrap();
    assert!(store.peek("root").is_err());
    let e = store.peek("root").unwrap_err();
    assert!(e.to_string().contains("lost before"), "{e}");
    let e = InProcess::default().get("root", Duration::from_millis(10)).unwrap_err();
    assert!(e.to_string().contains("nobody put root"), "{e}");
}
