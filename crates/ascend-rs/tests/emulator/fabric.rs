//! HCCL behind the ranks' interface, compared with ranks that are threads.

use crate::{command, said, scenarios, toolkit};
use ascend_rs::rendezvous::{Folder, InProcess, Over, TorchStore};
use ascend_rs::{Bootstrap, Comm, Device, FabricOptions, HcclFabric, Rendezvous, Stream};
use cann_emu::tree::Personality;
use half::bf16;
use ms_core::{Arena, Tensor};
use ms_dist::{Communicator, Fabric, ReduceOp};
use std::io::{Read, Write};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

scenarios! {
    eight_ranks_of_one_process_equal_threads
    groups_of_groups_do_not_stand_behind_each_other
    messages_come_by_tag_whoever_sends_first
    all_devices_of_a_process_make_a_fabric
    a_rank_table_makes_a_fabric
    a_subgroup_of_a_communicator_works
    sixteen_ranks_in_groups_along_four_axes
    ranks_that_a_communicator_joins_meet_over_it
    a_failing_rank_releases_the_others
    ranks_that_disagree_are_told_so
}

/// Settings of the tests: small groups, quick time-outs.
pub fn options() -> FabricOptions {
    FabricOptions { message_buffer_mb: 1, timeout: Duration::from_secs(20), ..FabricOptions::default() }
}

/// Runs `f` on a thread per rank, over HCCL in this process.
fn over_hccl<T: Send>(world: usize, options: FabricOptions, f: impl Fn(&HcclFabric) -> T + Sync) -> Vec<T> {
    let toolkit = toolkit();
    let meeting: Arc<dyn Rendezvous> = Arc::new(InProcess::default());
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (toolkit, meeting, f) = (&toolkit, meeting.clone(), &f);
            scope.spawn(move || {
                f(&HcclFabric::new(toolkit, rank as i32, rank, world, meeting, Bootstrap::RootInfo, options))
            })
        };
        let threads: Vec<_> = (0..world).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// As [`over_hccl`], by the communicator of `ms-dist` that shares memory.
pub fn over_threads<T: Send>(world: usize, f: impl Fn(&dyn Fabric) -> T + Sync) -> Vec<T> {
    ms_dist::threads::run(world, |fabric| Ok::<T, String>(f(&fabric)))
        .map_err(|(rank, e)| format!("rank {rank}: {e}"))
        .unwrap()
}

fn noise(n: usize, seed: usize) -> Vec<f32> {
    let mut z = seed as u64 * 0x9e37_79b9 + 12_345;
    let mut next = || {
        z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (z >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Every operation of the interface once; names, and the bytes of what came out.
pub fn everything(comm: &dyn Communicator) -> ms_dist::Result<Vec<(&'static str, Vec<u8>)>> {
    let (r, n) = (comm.rank(), comm.size());
    let arena = Arena::default();
    let x = noise(n * 6, r + 1);
    let float = Tensor::from_slice(&arena, [n * 2, 3], &x)?;
    let double = Tensor::from_slice(&arena, [n * 6], &x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>())?;
    let short =
        Tensor::from_slice(&arena, [n * 6], &x.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>())?;
    let whole = Tensor::from_slice(&arena, [n], &(0..n).map(|i| (i * 10 + r) as i64).collect::<Vec<_>>())?;
    let mut out = Vec::new();
    let mut keep = |name: &'static str, t: &Tensor| {
        let shape: Vec<u8> = t.shape().iter().map(|d| *d as u8).collect();
        out.push((name, [shape, t.bytes().to_vec()].concat()));
    };
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let sum = op == ReduceOp::Sum;
        keep(if sum { "sum f32" } else { "max f32" }, &comm.all_reduce("a", float.clone(), op)?.wait()?);
        keep(if sum { "sum f64" } else { "max f64" }, &comm.all_reduce("a", double.clone(), op)?.wait()?);
        keep(if sum { "sum bf16" } else { "max bf16" }, &comm.all_reduce("a", short.clone(), op)?.wait()?);
        keep(if sum { "sum i64" } else { "max i64" }, &comm.all_reduce("a", whole.clone(), op)?.wait()?);
    }
    keep("gather f32", &comm.all_gather("b", float.clone())?.wait()?);
    keep("gather bf16", &comm.all_gather("b", short.clone())?.wait()?);
    keep("scatter f32", &comm.reduce_scatter("c", float.clone())?.wait()?);
    keep("scatter f64", &comm.reduce_scatter("c", double)?.wait()?);
    keep("scatter bf16", &comm.reduce_scatter("c", short)?.wait()?);
    keep("broadcast", &comm.broadcast("d", float.clone(), n - 1)?.wait()?);
    keep("all to all", &comm.all_to_all("e", float.clone())?.wait()?);
    // Rank r hands the first rank 2n - 1 rows less one for each other, and one to each of these.
    let mut rows = vec![1; n];
    rows[(r + 1) % n] = n + 1;
    keep("rows", &comm.all_to_all_rows("f", float.clone(), &rows)?.wait()?);
    let mut none = vec![0; n];
    none[0] = 2 * n;
    keep("rows to one", &comm.all_to_all_rows("f", float.clone(), &none)?.wait()?);
    // Two at a time.
    let (first, second) = (comm.all_gather("g", whole.clone())?, comm.all_reduce("h", whole, ReduceOp::Sum)?);
    keep("first", &first.wait()?);
    keep("second", &second.wait()?);
    comm.send("i", float, (r + 1) % n, 7)?;
    keep("message", &comm.recv("i", (r + n - 1) % n, 7)?.wait()?);
    comm.barrier()?;
    Ok(out)
}

/// Groups of this layer are deterministic: sums have the order of ranks, and the bits of the threads.
pub fn compare(hccl: &[Vec<(&'static str, Vec<u8>)>], threads: &[Vec<(&'static str, Vec<u8>)>]) {
    for (rank, (a, b)) in hccl.iter().zip(threads).enumerate() {
        assert_eq!(a.len(), b.len());
        for ((name, x), (other, y)) in a.iter().zip(b) {
            assert_eq!(name, other);
            assert!(x == y, "{name} on rank {rank}: other shapes or bits");
        }
    }
}

fn eight_ranks_of_one_process_equal_threads() {
    for world in [2, 3, 8] {
        let all: Vec<usize> = (0..world).collect();
        let hccl = over_hccl(world, options(), |fabric| {
            let comm = fabric.group(&all).unwrap();
            let out = everything(&*comm).unwrap();
            (out, comm.sent_bytes())
        });
        let threads = over_threads(world, |fabric| {
            let comm = fabric.group(&all).unwrap();
            let out = everything(&*comm).unwrap();
            (out, comm.sent_bytes())
        });
        let parts = |v: &[(Vec<_>, u64)]| -> (Vec<Vec<_>>, Vec<u64>) { v.iter().cloned().unzip() };
        let ((a, sent_a), (b, sent_b)) = (parts(&hccl), parts(&threads));
        compare(&a, &b);
        assert_eq!(sent_a, sent_b, "bytes that were sent");
    }
}

fn groups_of_groups_do_not_stand_behind_each_other() {
    let sums = over_hccl(4, options(), |fabric| {
        let r = fabric.rank();
        let (row, column) = ([r / 2 * 2, r / 2 * 2 + 1], [r % 2, r % 2 + 2]);
        let (a, b) = (fabric.group(&row).unwrap(), fabric.group(&column).unwrap());
        let one = fabric.group(&[r]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [1], &[r as f32]).unwrap();
        // The ranks of a row start theirs in other orders.
        let (x, y) = if r % 2 == 0 {
            let x = a.all_reduce("row", t.clone(), ReduceOp::Sum).unwrap();
            (x, b.all_reduce("column", t.clone(), ReduceOp::Sum).unwrap())
        } else {
            let y = b.all_reduce("column", t.clone(), ReduceOp::Sum).unwrap();
            (a.all_reduce("row", t.clone(), ReduceOp::Sum).unwrap(), y)
        };
        let value = |t: Tensor| t.as_slice::<f32>().unwrap()[0];
        assert_eq!(value(one.all_reduce("own", t, ReduceOp::Sum).unwrap().wait().unwrap()), r as f32);
        assert!(fabric.group(&[(r + 1) % 4]).is_err(), "a group without this rank");
        (value(y.wait().unwrap()), value(x.wait().unwrap()))
    });
    assert_eq!(sums, [(2.0, 1.0), (4.0, 1.0), (2.0, 5.0), (4.0, 5.0)]);
}

fn messages_come_by_tag_whoever_sends_first() {
    over_hccl(2, options(), |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        let peer = 1 - comm.rank();
        let arena = Arena::default();
        let tensor = |v: f32| Tensor::from_slice(&arena, [2, 1], &[v, -v]).unwrap();
        // Both send first, which two bare sends of the library would not survive.
        for tag in 0..5 {
            comm.send("act", tensor(tag as f32 + 10.0 * comm.rank() as f32), peer, tag).unwrap();
        }
        comm.send("empty", Tensor::zeros(&arena, ms_core::DType::I64, [0, 4]), peer, 9).unwrap();
        // Asked for in another order, two at once.
        let late = comm.recv("act", peer, 4).unwrap();
        let early = comm.recv("act", peer, 0).unwrap();
        let want = |tag: f32| [tag + 10.0 * peer as f32, -(tag + 10.0 * peer as f32)];
        assert_eq!(early.wait().unwrap().as_slice::<f32>().unwrap(), want(0.0));
        assert_eq!(late.wait().unwrap().as_slice::<f32>().unwrap(), want(4.0));
        for tag in [2, 1, 3] {
            let t = comm.recv("act", peer, tag).unwrap().wait().unwrap();
            assert_eq!(t.as_slice::<f32>().unwrap(), want(tag as f32));
            assert_eq!(t.shape().to_vec(), [2, 1]);
        }
        let empty = comm.recv("empty", peer, 9).unwrap().wait().unwrap();
        assert_eq!((empty.shape().to_vec(), empty.dtype()), (vec![0, 4], ms_core::DType::I64));
        comm.send("one", tensor(0.0), peer, 20).unwrap();
        let e = comm.recv("other", peer, 20).unwrap().wait().unwrap_err().to_string();
        assert!(e.contains("expected other, found one"), "{e}");
        assert!(comm.send("self", tensor(0.0), comm.rank(), 0).is_err());
        comm.barrier().unwrap();
    });
}

fn all_devices_of_a_process_make_a_fabric() {
    let toolkit = toolkit();
    let unbound = {
        let device = Device::bind(&toolkit, 0).unwrap();
        Comm::all_in_process(&device, &[0, 1, 2]).unwrap()
    };
    let meeting: Arc<dyn Rendezvous> = Arc::new(InProcess::default());
    std::thread::scope(|scope| {
        for (rank, comm) in unbound.into_iter().enumerate() {
            let (toolkit, meeting) = (&toolkit, meeting.clone());
            scope.spawn(move || {
                assert_eq!(comm.device(), rank as i32);
                let start = Bootstrap::InProcess(comm);
                let fabric = HcclFabric::new(toolkit, rank as i32, rank, 3, meeting, start, options());
                let pair = (rank < 2).then(|| fabric.group(&[0, 1]).unwrap());
                let comm = fabric.group(&[0, 1, 2]).unwrap();
                let t = Tensor::from_slice(&Arena::default(), [1], &[rank as f32]).unwrap();
                let all = comm.all_gather("r", t.clone()).unwrap().wait().unwrap();
                assert_eq!(all.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0]);
                if let Some(pair) = pair {
                    let two = pair.all_gather("r", t).unwrap().wait().unwrap();
                    assert_eq!(two.as_slice::<f32>().unwrap(), [0.0, 1.0]);
                }
            });
        }
    });
}

/// A table of ranks on the devices of one server.
fn rank_table(world: usize) -> String {
    let device =
        |r: usize| format!(r#"{{"device_id": "{r}", "device_ip": "192.168.100.{r}", "rank_id": "{r}"}}"#);
    let devices = (0..world).map(device).collect::<Vec<_>>().join(", ");
    format!(
        r#"{{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [{{"server_id": "10.0.0.1", "device": [{devices}]}}]}}"#
    )
}

fn a_rank_table_makes_a_fabric() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.json");
    std::fs::write(&table, rank_table(2)).unwrap();
    let toolkit = toolkit();
    let meeting: Arc<dyn Rendezvous> = Arc::new(InProcess::default());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (toolkit, meeting, table) = (&toolkit, meeting.clone(), table.clone());
            scope.spawn(move || {
                let start = Bootstrap::RankTable(table);
                let fabric = HcclFabric::new(toolkit, rank as i32, rank, 2, meeting, start, options());
                let comm = fabric.group(&[0, 1]).unwrap();
                let t = Tensor::from_slice(&Arena::default(), [1], &[rank as f32 + 1.0]).unwrap();
                let sum = comm.all_reduce("r", t, ReduceOp::Sum).unwrap().wait().unwrap();
                assert_eq!(sum.as_slice::<f32>().unwrap(), [3.0]);
            });
        }
    });
}

fn a_subgroup_of_a_communicator_works() {
    let toolkit = toolkit();
    let unbound = {
        let device = Device::bind(&toolkit, 0).unwrap();
        Comm::all_in_process(&device, &[0, 1, 2]).unwrap()
    };
    std::thread::scope(|scope| {
        for (rank, comm) in unbound.into_iter().enumerate() {
            let toolkit = &toolkit;
            scope.spawn(move || {
                let device = Device::bind(toolkit, rank as i32).unwrap();
                let stream = Stream::new(&device).unwrap();
                let world = comm.bind(&device).unwrap();
                world.check().unwrap();
                if rank == 1 {
                    return;
                }
                let sub = world.subgroup(&[0, 2], 5, Default::default()).unwrap();
                assert_eq!((sub.rank(), sub.size()), (rank / 2, 2));
                assert_ne!(sub.name(), world.name());
                let a = ascend_rs::Array::of(&stream, &[1], &[rank as f32]).unwrap();
                sub.all_reduce(&stream, a.buffer(), a.buffer(), 1, a.dtype(), ReduceOp::Sum).unwrap();
                assert_eq!(a.to_vec::<f32>().unwrap(), [2.0]);
                let e = sub.all_reduce(&stream, a.buffer(), a.buffer(), 9, a.dtype(), ReduceOp::Sum);
                assert!(e.unwrap_err().to_string().contains("36 bytes needed, the buffer has 4"));
            });
        }
    });
}

fn a_failing_rank_releases_the_others() {
    over_hccl(3, options(), |fabric| {
        let comm = fabric.group(&[0, 1, 2]).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
            fabric.announce_failure("the disk is full");
            return;
        }
        let start = Instant::now();
        let e = comm.barrier().unwrap_err();
        assert_eq!(e.to_string(), "rank 1 failed: the disk is full");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        // The lanes wait for the library's time-out; nobody waits for them.
    });
}

/// Ranks 2 by 2 by 2: each in a group along every axis, in two planes and in the whole, all at work at once.
/// Tensor, pipeline, data and context parallelism: groups along each axis and across several.
fn sixteen_ranks_in_groups_along_four_axes() {
    let run = |fabric: &dyn Fabric| {
        let rank = fabric.rank();
        let along = |axes: &[usize]| -> Vec<usize> {
            (0..16)
                .filter(|other| (0..4).all(|bit| axes.contains(&bit) || (other ^ rank) >> bit & 1 == 0))
                .collect()
        };
        let groups: Vec<_> = [&[0][..], &[1], &[2], &[3], &[0, 1], &[2, 3], &[0, 1, 2, 3]]
            .iter()
            .map(|axes| fabric.group(&along(axes)).unwrap())
            .collect();
        let out: Vec<_> = groups.iter().flat_map(|group| everything(&**group).unwrap()).collect();
        groups[6].barrier().unwrap();
        out
    };
    compare(&over_hccl(16, options(), |fabric| run(fabric)), &over_threads(16, run));
}

/// As over MPI: groups of groups and messages, with nothing but a communicator of all ranks to meet by.
fn ranks_that_a_communicator_joins_meet_over_it() {
    let toolkit = toolkit();
    let everyone: Vec<usize> = (0..4).collect();
    let run = |fabric: &dyn Fabric| {
        let parts = [fabric.rank() % 2, fabric.rank() % 2 + 2];
        let (all, half) = (fabric.group(&everyone).unwrap(), fabric.group(&parts).unwrap());
        let out = [everything(&*all).unwrap(), everything(&*half).unwrap()].concat();
        // A rank that leaves takes its communicator with it.
        all.barrier().unwrap();
        out
    };
    let hccl = over_threads(4, |fabric| {
        let meeting: Arc<dyn Rendezvous> = Arc::new(Over::new(fabric.group(&everyone).unwrap()));
        let (rank, device) = (fabric.rank(), fabric.rank() as i32);
        run(&HcclFabric::new(&toolkit, device, rank, 4, meeting, Bootstrap::RootInfo, options()))
    });
    compare(&hccl, &over_threads(4, run));
}

fn ranks_that_disagree_are_told_so() {
    let checked = FabricOptions { check_calls: true, ..options() };
    let said = over_hccl(2, checked, |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [4], &[0f32; 4]).unwrap();
        let sum = comm.all_reduce("fine", t.clone(), ReduceOp::Max).unwrap().wait().unwrap();
        assert_eq!(sum.numel(), 4);
        let e = if comm.rank() == 0 {
            comm.all_reduce("loss", t, ReduceOp::Sum).unwrap().wait().unwrap_err()
        } else {
            comm.all_gather("weights", t).unwrap().wait().unwrap_err()
        };
        e.to_string()
    });
    assert!(
        said.iter().any(|t| t.contains("all_reduce(sum) of loss") && t.contains("all_gather of weights")),
        "{said:?}"
    );
}

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
        std::fs::write(&table, text + &format!("\n\n{}", folder.path().display())).unwrap();
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

#[test]
fn processes_of_a_rank_table_equal_threads() {
    // A table's text is its group's address: one for each run.
    for mode in ["lazy", "threads"] {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("table.json");
        std::fs::write(&table, rank_table(3) + &format!("\n\n{}", folder.path().display())).unwrap();
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
