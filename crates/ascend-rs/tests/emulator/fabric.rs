//! HCCL through the `Fabric` trait, compared with ranks that are threads.

use crate::{scenarios, toolkit};
use ascend_rs::rendezvous::{InProcess, Over};
use ascend_rs::{Bootstrap, Comm, Device, FabricOptions, HcclFabric, Rendezvous, Stream};
use half::bf16;
use ms_core::{Arena, Tensor};
use ms_dist::{Communicator, Fabric, ReduceOp};
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
    keep("message", &comm.recv("i", (r + n - 1) % n, 7, &Arena::default())?.wait()?);
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
        let late = comm.recv("act", peer, 4, &Arena::default()).unwrap();
        let early = comm.recv("act", peer, 0, &Arena::default()).unwrap();
        let want = |tag: f32| [tag + 10.0 * peer as f32, -(tag + 10.0 * peer as f32)];
        assert_eq!(early.wait().unwrap().as_slice::<f32>().unwrap(), want(0.0));
        assert_eq!(late.wait().unwrap().as_slice::<f32>().unwrap(), want(4.0));
        for tag in [2, 1, 3] {
            let t = comm.recv("act", peer, tag, &Arena::default()).unwrap().wait().unwrap();
            assert_eq!(t.as_slice::<f32>().unwrap(), want(tag as f32));
            assert_eq!(t.shape().to_vec(), [2, 1]);
        }
        let empty = comm.recv("empty", peer, 9, &Arena::default()).unwrap().wait().unwrap();
        assert_eq!((empty.shape().to_vec(), empty.dtype()), (vec![0, 4], ms_core::DType::I64));
        comm.send("one", tensor(0.0), peer, 20).unwrap();
        let e = comm.recv("other", peer, 20, &Arena::default()).unwrap().wait().unwrap_err().to_string();
        assert!(e.contains("expected other, found one"), "{e}");
        comm.send("one", tensor(0.0), peer, 21).unwrap();
        let known = (ms_core::DType::F32, [1, 2].into());
        let e = comm.recv_known("one", (peer, 21), known, &Arena::default()).unwrap().wait().unwrap_err();
        assert!(e.to_string().contains("expected one of f32 [1, 2], found f32 [2, 1]"), "{e}");
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
pub fn rank_table(world: usize) -> String {
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
