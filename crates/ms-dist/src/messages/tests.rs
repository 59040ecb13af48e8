//! Message-based collectives, tested with ranks that are threads and exchange messages as processes do.

use super::*;
use crate::mailbox::MESSAGE;
use crate::threads;
use std::sync::Mutex;

/// A transport inside a process.
struct LocalTransport {
    from: usize,
    mailboxes: Arc<[Arc<Mailbox>]>,
}

impl Transport for LocalTransport {
    fn post(&self, to: usize, message: Vec<u8>) {
        self.mailboxes[to].deliver(self.from, &message);
    }
}

fn mailboxes(world: usize) -> Arc<[Arc<Mailbox>]> {
    (0..world).map(|_| Arc::default()).collect()
}

fn fabric(mailboxes: &Arc<[Arc<Mailbox>]>, rank: usize) -> MessageFabric {
    let transport = Arc::new(LocalTransport { from: rank, mailboxes: Arc::clone(mailboxes) });
    MessageFabric::new(rank, mailboxes.len(), transport, Arc::clone(&mailboxes[rank]))
}

/// Runs `f` on every rank of a fabric of messages.
fn run<T: Send>(world: usize, f: impl Fn(MessageFabric) -> T + Sync) -> Vec<T> {
    let mailboxes = mailboxes(world);
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (f, mailboxes) = (&f, &mailboxes);
            scope.spawn(move || f(fabric(mailboxes, rank)))
        };
        let handles: Vec<_> = (0..world).map(rank).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// Every collective, on tensors of all types, small and large, and what it gives as bytes.
fn everything(fabric: &dyn Fabric) -> Result<Vec<(String, Vec<u8>)>> {
    let world: Vec<usize> = (0..fabric.world()).collect();
    let comm = fabric.group(&world)?;
    let (rank, size) = (comm.rank(), comm.size());
    let arena = Arena::default();
    let mut out = Vec::new();
    let mut keep =
        |what: String, t: Tensor| out.push((format!("{what} {:?}", t.shape()), t.bytes().to_vec()));
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        // Values of many sizes, so that another order of sums has other bits; numbers that ranks do not divide.
        for numel in [1, size * 7, 12 * size * 1024] {
            let value =
                |i: usize| ((i * 7919 + rank * 104_729) % 1009) as f64 * 10f64.powi((i % 7) as i32 - 3);
            let values: Vec<f64> = (0..numel).map(value).collect();
            let t = Tensor::from_reals(&arena, dtype, [numel], &values)?;
            let at = |what: &str| format!("{what} {dtype} {numel}");
            let odd = Tensor::from_reals(&arena, dtype, [numel + 1], &[&values[..], &[0.1]].concat())?;
            let both =
                (comm.all_reduce("a", t.clone(), ReduceOp::Sum)?, comm.all_reduce("b", odd, ReduceOp::Sum)?);
            keep(at("sum"), both.0.wait()?);
            keep(at("odd sum"), both.1.wait()?);
            keep(at("max"), comm.all_reduce("t", t.clone(), ReduceOp::Max)?.wait()?);
            keep(at("gather"), comm.all_gather("t", t.clone())?.wait()?);
            keep(at("broadcast"), comm.broadcast("t", t.clone(), size - 1)?.wait()?);
            if numel % size == 0 {
                keep(at("scatter"), comm.reduce_scatter("t", t.clone())?.wait()?);
                let rows = t.reshape([size, numel / size])?;
                keep(at("exchange"), comm.all_to_all("t", rows.clone())?.wait()?);
                let mut counts = vec![0; size];
                counts[(rank + 1) % size] = size;
                keep(at("rows"), comm.all_to_all_rows("t", rows, &counts)?.wait()?);
            }
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            comm.send("later", t.clone(), next, 5)?;
            comm.send("now", t.reshape([numel, 1])?, next, 4)?;
            keep(at("message"), comm.recv("now", before, 4, &Arena::default())?.wait()?);
            keep(at("message"), comm.recv("later", before, 5, &Arena::default())?.wait()?);
        }
    }
    let pair: Vec<usize> = world[rank / 2 * 2..(rank / 2 * 2 + 2).min(size)].to_vec();
    for _ in 0..2 {
        let pair = fabric.group(&pair)?;
        let t = Tensor::from_slice(&arena, [2], &[rank as f32, 0.5])?;
        keep("pair".into(), pair.all_gather("p", t)?.wait()?);
    }
    comm.barrier()?;
    out.push(("bytes".into(), comm.sent_bytes().to_le_bytes().to_vec()));
    Ok(out)
}

#[test]
fn messages_give_the_bits_and_counts_of_threads() {
    for world in [1, 2, 3, 5] {
        let threads = threads::run(world, |fabric| everything(&fabric)).map_err(|e| e.1.to_string()).unwrap();
        let messages: Vec<_> = run(world, |fabric| everything(&fabric).unwrap());
        for (rank, (a, b)) in threads.iter().zip(&messages).enumerate() {
            for (a, b) in a.iter().zip(b) {
                assert_eq!(a.0, b.0, "rank {rank} of {world}");
                assert!(a.1 == b.1, "rank {rank} of {world}: {}", a.0);
            }
            assert_eq!(a.len(), b.len());
        }
    }
}

/// What rank 0 begins and does not wait for, on all others.
type Begin = fn(&dyn Communicator, Tensor) -> Result<Pending>;

#[test]
fn what_a_rank_begins_is_over_on_the_others_before_it_waits_for_it() {
    const WORLD: usize = 3;
    let kinds: [(&str, usize, Begin); 9] = [
        ("small sum", 6, |comm, t| comm.all_reduce("t", t, ReduceOp::Sum)),
        ("large sum", 60_001, |comm, t| comm.all_reduce("t", t, ReduceOp::Sum)),
        ("maximum", 6, |comm, t| comm.all_reduce("t", t, ReduceOp::Max)),
        ("gather", 60_000, |comm, t| comm.all_gather("t", t)),
        ("scatter", 60_000, |comm, t| comm.reduce_scatter("t", t)),
        ("broadcast", 60_000, |comm, t| comm.broadcast("t", t, 0)),
        ("exchange", 60_000, |comm, t| comm.all_to_all("t", t)),
        ("rows", 60_000, |comm, t| {
            let rows = [t.numel() - 2, 1, 1];
            comm.all_to_all_rows("t", t.reshape([t.numel(), 1])?, &rows)
        }),
        ("message", 60_000, |comm, t| {
            let (next, before) = ((comm.rank() + 1) % WORLD, (comm.rank() + WORLD - 1) % WORLD);
            comm.send("t", t.clone(), next, 0)?;
            comm.recv("t", before, 0, t.arena())
        }),
    ];
    for (what, numel, begin) in kinds {
        let (told, others) = std::sync::mpsc::channel();
        let others = Mutex::new(others);
        let found = run(WORLD, |fabric| {
            let comm = fabric.group(&[0, 1, 2]).unwrap();
            let values: Vec<f32> = (0..numel).map(|i| (i * WORLD + comm.rank()) as f32).collect();
            let t = Tensor::from_slice(&Arena::default(), [numel], &values).unwrap();
            let begun = begin(&*comm, t).unwrap();
            if comm.rank() == 0 {
                let others = others.lock().unwrap();
                for _ in 1..WORLD {
                    let over = others.recv_timeout(Duration::from_secs(20));
                    over.unwrap_or_else(|_| panic!("{what}: another rank waits for rank 0 to wait"));
                }
            }
            let got = begun.wait().unwrap();
            if comm.rank() != 0 {
                told.send(()).unwrap();
            }
            got.bytes().to_vec()
        });
        // What ranks get is what those get that wait at once.
        let want = threads::run(WORLD, |fabric| {
            let comm = fabric.group(&[0, 1, 2])?;
            let values: Vec<f32> = (0..numel).map(|i| (i * WORLD + comm.rank()) as f32).collect();
            let t = Tensor::from_slice(&Arena::default(), [numel], &values)?;
            Ok::<_, Error>(begin(&*comm, t)?.wait()?.bytes().to_vec())
        });
        assert!(found == want.map_err(|e| e.1.to_string()).unwrap(), "{what}");
    }
}

#[test]
fn a_rank_that_has_ended_sends_no_part_of_what_it_had_begun() {
    let mailboxes = mailboxes(2);
    let t = Tensor::from_slice(&Arena::default(), [60_000], &[1f32; 60_000]).unwrap();
    let first = fabric(&mailboxes, 0);
    let begun = first.group(&[0, 1]).unwrap().all_reduce("t", t, ReduceOp::Sum).unwrap();
    first.end(Some("it failed"), Duration::ZERO);
    // Now the other's part comes, which was on its way.
    let payload = Tensor::from_slice(&Arena::default(), [30_000], &[1f32; 30_000]).unwrap();
    let step = Topic::Collective { sequence: 0, step: 0 };
    let call = "all_reduce(sum) of t (60000 x f32)";
    let bytes = encode(group_key(&[0, 1], 1), step, call, DType::F32, &[30_000], payload.bytes());
    mailboxes[0].deliver(1, &bytes);
    let said = begun.wait().unwrap_err().to_string();
    assert!(said.contains("it has ended"), "{said}");
    let second = fabric(&mailboxes, 1).transport;
    let part = (group_key(&[0, 1], 1), 0, Topic::Collective { sequence: 0, step: 1 });
    assert!(mailboxes[1].wait(part, By::Rank, &*second).is_err(), "a part that came after the end");
}

#[test]
fn ranks_that_disagree_are_an_error_with_both_calls() {
    let said = run(2, |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [4], &[0f32; 4]).unwrap();
        let pending = match comm.rank() {
            0 => comm.all_reduce("loss", t, ReduceOp::Sum),
            _ => comm.all_gather("weights", t),
        };
        pending.unwrap().wait().unwrap_err().to_string()
    });
    for said in said {
        assert!(said.contains("all_reduce(sum) of loss") && said.contains("all_gather of weights"), "{said}");
    }
    let said = run(2, |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [1], &[0f32]).unwrap();
        comm.send("a", t, 1 - comm.rank(), 3).unwrap();
        comm.recv("b", 1 - comm.rank(), 3, &Arena::default()).unwrap().wait().unwrap_err().to_string()
    });
    assert_eq!(said[0], "message 3 from rank 1: expected b, found a");
}

/// The errors for messages expected to be `[4,2]` bf16, of which only the last one is.
fn told_of_unlike_messages(fabric: &dyn Fabric) -> Vec<String> {
    let comm = fabric.group(&[0, 1]).unwrap();
    let (arena, other) = (Arena::default(), 1 - comm.rank());
    for (tag, dtype, shape) in [(0, DType::F32, [4, 2]), (1, DType::Bf16, [2, 4]), (2, DType::Bf16, [4, 2])] {
        comm.send("a border", Tensor::zeros(&arena, dtype, shape), other, tag).unwrap();
    }
    let known = (DType::Bf16, [4, 2].into());
    let get = |tag| comm.recv_known("a border", (other, tag), known, &arena).unwrap().wait();
    let told = [0, 1].map(|tag| get(tag).unwrap_err().to_string()).to_vec();
    assert_eq!(get(2).unwrap().shape().to_vec(), [4, 2]);
    told
}

#[test]
fn a_message_of_another_type_or_shape_is_an_error_that_names_both() {
    let want = |other: usize| {
        let expected = "expected a border of bf16 [4, 2], found";
        [
            format!("message 0 from rank {other}: {expected} f32 [4, 2]"),
            format!("message 1 from rank {other}: {expected} bf16 [2, 4]"),
        ]
    };
    let by_messages = run(2, |fabric| told_of_unlike_messages(&fabric));
    let by_threads = threads::run(2, |fabric| Ok::<_, Error>(told_of_unlike_messages(&fabric)));
    for told in [by_messages, by_threads.map_err(|(_, e)| e).unwrap()] {
        (0..2).for_each(|rank| assert_eq!(told[rank], want(1 - rank)));
    }
}

#[test]
fn a_rank_that_fails_or_ends_releases_the_others_with_its_reason() {
    for (reason, want) in [
        (Some("the disk is full"), "rank 1 failed: the disk is full"),
        (None, "rank 1 failed: it has ended while others wait for it"),
    ] {
        let said = run(3, |fabric| {
            let comm = fabric.group(&[0, 1, 2]).unwrap();
            if comm.rank() == 1 {
                drop(comm);
                assert!(fabric.end(reason, Duration::from_secs(20)), "the others end");
                return want.to_owned();
            }
            let said = comm.barrier().unwrap_err().to_string();
            assert!(fabric.end(Some(&said), Duration::from_secs(20)));
            said
        });
        // A rank that hears of a failure from a rank that was told of it names the failed rank.
        assert!(said.iter().any(|said| said == want), "{said:?}");
    }
}

#[test]
fn a_rank_that_is_gone_without_a_word_releases_the_others_that_do_not_wait_for_its_end() {
    let said = run(4, |fabric| {
        let comm = fabric.group(&[0, 1, 2, 3]).unwrap();
        match comm.rank() {
            // It says nothing, and its neighbour sees that it is gone.
            2 => return String::new(),
            1 => fabric.lost(2, "process 7 is gone").expect("it is new")(),
            _ => {}
        }
        let said = comm.barrier().unwrap_err().to_string();
        assert!(fabric.end(Some(&said), Duration::from_secs(20)), "the others end");
        assert_eq!(fabric.lost_ranks(), BTreeSet::from([2]));
        said
    });
    let want = "rank 2 failed: process 7 is gone";
    assert!(said[0].ends_with(want) && said[1] == want && said[3].ends_with(want), "{said:?}");
    // Who has said that it ends is not lost.
    let mailboxes = mailboxes(2);
    mailboxes[0].deliver(1, &[crate::mailbox::ENDED]);
    assert!(!mailboxes[0].lost(1, "it is gone") && mailboxes[0].lost_ranks().is_empty());
    mailboxes[0].check().unwrap();
}

#[test]
fn a_rank_that_waits_too_long_says_for_what() {
    let said = run(2, |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        if comm.rank() == 1 {
            // It is busy with something else for as long as the other waits.
            let told = comm.recv("a border", 0, 4, &Arena::default()).unwrap().wait().unwrap_err();
            fabric.end(Some(&told.to_string()), Duration::from_secs(20));
            return told.to_string();
        }
        fabric.wait_at_most(Duration::from_millis(200));
        let late = comm.recv("a border", 1, 3, &Arena::default()).unwrap().wait().unwrap_err().to_string();
        assert!(fabric.end(Some(&late), Duration::from_secs(20)));
        late
    });
    assert_eq!(
        said[0],
        "rank 0 has waited for 0 s, the longest that a run may wait: Message { tag: 3 } of rank 1"
    );
    assert!(said[1].starts_with("rank 0 failed: rank 0 has waited"), "{said:?}");
}

#[test]
fn a_rank_that_computes_does_not_wait_too_long_for_what_it_has_begun() {
    let (told, other) = std::sync::mpsc::channel();
    let other = Mutex::new(other);
    run(2, |fabric| {
        let comm = fabric.group(&[0, 1]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [60_000], &[1f32; 60_000]).unwrap();
        let begin = |t| comm.all_reduce("t", t, ReduceOp::Sum).unwrap();
        if comm.rank() == 0 {
            fabric.wait_at_most(Duration::ZERO);
            let begun = begin(t);
            // It computes until all that it waits for is there.
            other.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("the other has its sum");
            begun.wait().unwrap();
        } else {
            // Long after the other.
            let late = Mailbox::default();
            late.wait_at_most(1, Duration::from_millis(100));
            let nothing = (0, 0, Topic::Message { tag: 0 });
            assert!(late.wait(nothing, By::Rank, &*fabric.transport).is_err());
            begin(t).wait().unwrap();
            told.send(()).unwrap();
        }
    });
}

#[test]
fn a_rank_that_computes_does_not_wait_too_long_for_what_a_thread_waits_for() {
    // A sum of many elements is begun by the thread that makes progress, and waited for by another one.
    for size in [2, 60_000] {
        let mailboxes = mailboxes(2);
        let comms = [0, 1].map(|rank| (fabric(&mailboxes, rank), [0, 1]));
        let begin = |rank: usize| {
            let (fabric, ranks) = &comms[rank];
            let t = Tensor::from_slice(&Arena::default(), [size], &vec![1f32; size]).unwrap();
            fabric.group(ranks).unwrap().all_reduce("t", t, ReduceOp::Sum).unwrap()
        };
        let longest = Duration::from_millis(100);
        comms[0].0.wait_at_most(longest);
        let sum = begin(0);
        let waiter = std::thread::spawn(move || sum.wait());
        // It computes for longer than it may wait.
        std::thread::sleep(3 * longest);
        assert!(!waiter.is_finished());
        let other = begin(1);
        assert!(waiter.join().unwrap().is_ok());
        other.wait().unwrap();
        // When it waits for the thread, the limit runs.
        let comm = comms[0].0.group(&[0, 1]).unwrap();
        let t = Tensor::from_slice(&Arena::default(), [size], &vec![1f32; size]).unwrap();
        let sum = comm.all_reduce("t", t, ReduceOp::Sum).unwrap();
        let (mut waiter, mut said) = (Some(std::thread::spawn(move || sum.wait())), None);
        comm.joining(&mut || said = waiter.take().map(|waiter| waiter.join().unwrap()));
        let said = said.unwrap().unwrap_err().to_string();
        assert!(said.contains("the longest that a run may wait"), "{size}: {said}");
    }
}

#[test]
fn a_rank_waits_no_longer_for_what_it_has_begun_than_for_anything_else() {
    let mailboxes = mailboxes(2);
    let first = fabric(&mailboxes, 0);
    first.wait_at_most(Duration::ZERO);
    let t = Tensor::from_slice(&Arena::default(), [60_000], &[1f32; 60_000]).unwrap();
    let begun = first.group(&[0, 1]).unwrap().all_reduce("t", t, ReduceOp::Sum).unwrap();
    assert!(begun.wait().unwrap_err().to_string().contains("the longest that a run may wait"));
}

#[test]
fn what_is_no_letter_is_an_error_and_no_panic() {
    let mailboxes = mailboxes(2);
    let comm = fabric(&mailboxes, 0).group(&[0, 1]).unwrap();
    for bytes in [&[][..], &[MESSAGE], &[MESSAGE; 40], &[LOST; 4], &[7; 9]] {
        mailboxes[0].deliver(1, bytes);
        let said = comm.recv("t", 1, 0, &Arena::default()).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("rank 1 failed"), "{said}");
    }
}
