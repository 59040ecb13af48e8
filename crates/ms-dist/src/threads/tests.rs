//! Ranks as threads: results of collectives, and how ranks end that fail or diverge.

use super::member::POLL;
use super::*;

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(&Arena::default(), [values.len()], values).unwrap()
}

fn values(t: &Tensor) -> Vec<f32> {
    t.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn collectives_deliver_what_they_promise() {
    run(3, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1, 2])?;
        let r = comm.rank() as f32;
        let mine = tensor(&[r, 10.0 + r, 20.0 + r]);
        assert_eq!(values(&comm.all_reduce("t", mine.clone(), ReduceOp::Sum)?.wait()?), [3., 33., 63.]);
        assert_eq!(values(&comm.all_reduce("t", mine.clone(), ReduceOp::Max)?.wait()?), [2., 12., 22.]);
        let sums = [3., 33., 63.];
        assert_eq!(values(&comm.reduce_scatter("t", mine.clone())?.wait()?), [sums[comm.rank()]]);
        let all = values(&comm.all_gather("t", tensor(&[r, r]))?.wait()?);
        assert_eq!(all, [0., 0., 1., 1., 2., 2.]);
        assert_eq!(values(&comm.broadcast("t", mine.clone(), 1)?.wait()?), [1., 11., 21.]);
        let swapped = values(&comm.all_to_all("t", mine.clone())?.wait()?);
        assert_eq!(swapped, [0., 1., 2.].map(|other| 10.0 * r + other));
        let next = (comm.rank() + 1) % 3;
        let before = (comm.rank() + 2) % 3;
        comm.send("ring", tensor(&[r + 0.5]), next, 1)?;
        comm.send("ring", tensor(&[r]), next, 0)?;
        assert_eq!(values(&comm.recv("ring", before, 0, &Arena::default())?.wait()?), [(r + 2.0) % 3.0]);
        assert_eq!(
            values(&comm.recv("ring", before, 1, &Arena::default())?.wait()?),
            [(r + 2.0) % 3.0 + 0.5]
        );
        // Rank r sends q rows to rank q: rank 1 gets one from each, rank 2 two.
        let rows = Tensor::from_slice(mine.arena(), [3, 1], &[r, 10.0 + r, 20.0 + r])?;
        let got = comm.all_to_all_rows("rows", rows, &[0, 1, 2])?.wait()?;
        let want = [vec![], vec![0., 1., 2.], vec![10., 20., 11., 21., 12., 22.]];
        assert_eq!(values(&got), want[comm.rank()]);
        comm.barrier()
    })
    .map_err(|(rank, e)| format!("rank {rank}: {e}"))
    .unwrap();
}

#[test]
fn a_buffer_is_free_again_when_the_collective_returns() {
    run(2, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1])?;
        let mut buffer = tensor(&[1.0; 64]);
        for _ in 0..200 {
            let sum = comm.reduce_scatter("grads", buffer.slice_flat(0, [64])?)?.wait()?;
            assert_eq!(sum.numel(), 32);
            buffer.as_mut_slice::<f32>()?.fill(1.0);
        }
        Ok(())
    })
    .map_err(|(rank, e)| format!("rank {rank}: {e}"))
    .unwrap();
}

#[test]
fn a_failing_rank_releases_the_others() {
    let outcome = run(3, |fabric| -> Result<(), String> {
        let comm = fabric.group(&[0, 1, 2]).map_err(|e| e.to_string())?;
        if comm.rank() == 1 {
            return Err("the disk is full".to_owned());
        }
        let e = comm.barrier().unwrap_err();
        assert_eq!(e.to_string(), "rank 1 failed: the disk is full");
        Err(e.to_string())
    });
    let (rank, failure) = outcome.unwrap_err();
    assert_eq!((rank, failure.to_string().as_str()), (1, "the disk is full"));
}

#[test]
fn a_panicking_rank_is_reported_like_a_failing_one() {
    let outcome = run(2, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1])?;
        assert!(comm.rank() == 0, "rank 1 is broken");
        comm.barrier()
    });
    let (rank, failure) = outcome.unwrap_err();
    assert_eq!(rank, 1);
    assert!(failure.to_string().contains("rank 1 is broken"));
}

#[test]
fn different_collectives_are_an_error_with_both_names() {
    let outcome = run(2, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1])?;
        let t = tensor(&[0.0; 4]);
        if comm.rank() == 0 {
            comm.all_reduce("loss", t, ReduceOp::Sum)?.wait()?;
        } else {
            comm.all_gather("weights", t)?.wait()?;
        }
        Ok(())
    });
    let message = outcome.unwrap_err().1.to_string();
    assert!(
        message.contains("all_reduce(sum) of loss") && message.contains("all_gather of weights"),
        "{message}"
    );
}

#[test]
fn a_rank_that_ends_early_does_not_leave_the_others_hanging() {
    let outcome = run(2, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1])?;
        if comm.rank() == 0 { Ok(()) } else { comm.barrier() }
    });
    let (rank, failure) = outcome.unwrap_err();
    assert_eq!(rank, 1);
    assert_eq!(failure.to_string(), "rank 0 failed: it has ended while others wait for it");
}

#[test]
fn groups_of_one_need_no_partner() {
    run(2, |fabric| -> Result<()> {
        let comm = fabric.group(&[fabric.rank()])?;
        assert_eq!(values(&comm.all_gather("t", tensor(&[1.0]))?.wait()?), [1.0]);
        comm.barrier()?;
        assert!(fabric.group(&[1 - fabric.rank()]).is_err());
        Ok(())
    })
    .map_err(|(rank, e)| format!("rank {rank}: {e}"))
    .unwrap();
}

/// The error of a run in which ranks leave something out, and how long it took.
fn said<T: Send>(world: usize, f: impl Fn(ThreadFabric) -> Result<T> + Sync) -> String {
    let begun = std::time::Instant::now();
    let said = run(world, f).map(drop).unwrap_err().1.to_string();
    assert!(begun.elapsed() < Duration::from_secs(20), "it does not hang");
    said
}

#[test]
fn a_rank_that_has_waited_too_long_says_for_what_and_ends_the_others() {
    let late = |limit: Option<Duration>| {
        run_within(2, limit, |fabric| -> Result<()> {
            let pair = fabric.group(&[0, 1])?;
            if fabric.rank() == 0 {
                // It works, and waits for nobody.
                std::thread::sleep(Duration::from_millis(1500));
            }
            pair.all_reduce("loss", tensor(&[0.0]), ReduceOp::Sum)?.wait().map(drop)
        })
    };
    assert!(late(None).is_ok());
    assert!(late(Some(Duration::from_secs(600))).is_ok());
    let (rank, failure) = late(Some(Duration::from_millis(300))).unwrap_err();
    let said = failure.to_string();
    assert_eq!(rank, 1, "{said}");
    assert!(said.starts_with("rank 1 has waited for") && said.contains("loss"), "{said}");
}

#[test]
fn a_collective_that_one_rank_leaves_out_ends_all_and_says_where_each_is() {
    let run = |whose: usize| {
        said(4, |fabric| {
            let (world, pair) = (fabric.group(&[0, 1, 2, 3])?, fabric.rank() / 2 * 2);
            let pair = fabric.group(&[pair, pair + 1])?;
            if fabric.rank() != whose {
                world.all_reduce("overflow", tensor(&[0.0]), ReduceOp::Max)?.wait()?;
            }
            pair.all_gather("rows", tensor(&[0.0; 2]))?.wait()
        })
    };
    for whose in 0..4 {
        let said = run(whose);
        // Its peer is in the cycle; others are reported if they arrive in time.
        let beside = whose ^ 1;
        let at = format!(
            "rank {beside} is at all_reduce(max) of overflow (1 x f32), collective 0 of ranks [0, 1, 2, 3], and needs rank"
        );
        assert!(said.contains(&at), "{said}");
        let pair = [whose / 2 * 2, whose / 2 * 2 + 1];
        let at = format!(
            "rank {whose} is at all_gather of rows (2 x f32), collective 0 of ranks {pair:?}, and needs rank"
        );
        assert!(said.contains(&at), "{said}");
    }
}

#[test]
fn messages_that_nobody_sends_end_all() {
    let said = said(3, |fabric| {
        let comm = fabric.group(&[0, 1, 2])?;
        let before = (comm.rank() + 2) % 3;
        comm.recv("a border", before, 7, &Arena::default())?.wait()
    });
    for (rank, from) in [(0, 2), (1, 0), (2, 1)] {
        let at = format!(
            "rank {rank} is at recv of a border, message 7 from rank {from} of ranks [0, 1, 2], and needs rank {from}"
        );
        assert!(said.contains(&at), "{said}");
    }
}

#[test]
fn two_groups_in_different_orders_end_all() {
    let said = said(2, |fabric| {
        let groups = [fabric.group(&[0, 1])?, fabric.group(&[0, 1])?];
        let order = if fabric.rank() == 0 { [0, 1] } else { [1, 0] };
        for group in order {
            groups[group].barrier()?;
        }
        Ok(())
    });
    assert!(
        said.contains("deadlock: rank 0 is at barrier") && said.contains("rank 1 is at barrier"),
        "{said}"
    );
}

#[test]
fn what_ranks_disagree_about_is_named_as_soon_as_they_meet() {
    // The third rank never comes: the first two need not wait for it.
    let said = said(3, |fabric| {
        let comm = fabric.group(&[0, 1, 2])?;
        match comm.rank() {
            0 => comm.all_reduce("loss", tensor(&[0.0; 4]), ReduceOp::Sum)?.wait(),
            1 => comm.all_reduce("loss", tensor(&[0.0; 3]), ReduceOp::Sum)?.wait(),
            _ => fabric.group(&[2, 0])?.recv("never", 1, 0, &Arena::default())?.wait(),
        }
    });
    assert!(said.contains("collective 0 of ranks [0, 1, 2] does not match"), "{said}");
    for at in
        ["rank 0 called all_reduce(sum) of loss (4 x f32)", "rank 1 called all_reduce(sum) of loss (3 x f32)"]
    {
        assert!(said.contains(at), "{said}");
    }
}

#[test]
fn a_rank_that_computes_for_long_is_waited_for() {
    // Rank 1 continues after the others have waited long enough to look for deadlocks; a thread of rank 0 waits as well.
    run(3, |fabric| -> Result<()> {
        let comm = fabric.group(&[0, 1, 2])?;
        if comm.rank() == 1 {
            thread::sleep(6 * POLL);
        }
        let sum = comm.all_reduce("t", tensor(&[1.0]), ReduceOp::Sum)?;
        let waiter = thread::spawn(move || sum.wait());
        let mut sum = None;
        let mut waiter = Some(waiter);
        comm.joining(&mut || sum = waiter.take().and_then(|waiter| waiter.join().ok()));
        assert_eq!(values(&sum.unwrap()?), [3.0]);
        comm.barrier()
    })
    .map_err(|(rank, e)| format!("rank {rank}: {e}"))
    .unwrap();
}

#[test]
fn a_rank_that_computes_does_not_wait_too_long_for_what_its_thread_waits_for() {
    let limit = Duration::from_millis(300);
    // How long the ranks compute after they have begun and before.
    let summed = |after: u32, before: u32| {
        run_within(2, Some(limit), |fabric| -> Result<()> {
            let comm = fabric.group(&[0, 1])?;
            if comm.rank() == 1 {
                thread::sleep(limit * before);
                return comm.all_reduce("t", tensor(&[1.0]), ReduceOp::Sum)?.wait().map(drop);
            }
            let sum = comm.all_reduce("t", tensor(&[1.0]), ReduceOp::Sum)?;
            let (mut waiter, mut got) = (Some(thread::spawn(move || sum.wait())), None);
            thread::sleep(limit * after);
            comm.joining(&mut || got = waiter.take().and_then(|waiter| waiter.join().ok()));
            got.unwrap().map(drop)
        })
    };
    assert!(summed(4, 3).is_ok());
    let (rank, failure) = summed(0, 5).unwrap_err();
    assert!(rank == 0 && failure.to_string().starts_with("rank 0 has waited for"), "{failure}");
}

#[test]
fn a_thread_beside_its_rank_is_part_of_a_circle() {
    // Rank 1 leaves the sum out and waits for a message, while rank 0 waits for the thread that waits for the sum.
    let said = said(2, |fabric| {
        let comm = fabric.group(&[0, 1])?;
        if comm.rank() == 1 {
            return comm.recv("a border", 0, 0, &Arena::default())?.wait();
        }
        let sum = comm.all_reduce("gradients", tensor(&[1.0]), ReduceOp::Sum)?;
        let (mut waiter, mut got) = (Some(thread::spawn(move || sum.wait())), None);
        comm.joining(&mut || got = waiter.take().and_then(|waiter| waiter.join().ok()));
        got.unwrap()
    });
    assert!(said.contains("rank 0 is at all_reduce(sum) of gradients"), "{said}");
    assert!(said.contains("rank 1 is at recv of a border"), "{said}");
}
