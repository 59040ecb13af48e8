//! Ranks as threads of one process, collectives in shared memory.
//!
//! A rank posts its tensor (a reference, not a copy) under the number of the collective, waits until the others
//! have posted theirs, reads what it needs from all of them, and returns when everybody has finished reading, so
//! that a buffer is never written while another rank reads it. All of it is safe code: a tensor in a round
//! cannot be written, because the round refers to it.

use crate::{Communicator, Error, Fabric, Pending, ReduceOp, Result};
use half::bf16;
use ms_core::{Arena, DType, Scalar, Tensor};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a wait sleeps before it looks whether a rank of another group has failed.
const POLL: Duration = Duration::from_millis(50);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A rank that panics is reported through the fabric; the maps themselves are consistent between statements.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of a group, and how many communicators they asked for before this one.
type GroupKey = (Vec<usize>, usize);

/// What all ranks of a run share.
#[derive(Default)]
struct Shared {
    failed: Mutex<Option<(usize, String)>>,
    /// Ranks that have returned, well or not.
    ended: Mutex<BTreeSet<usize>>,
    hubs: Mutex<BTreeMap<GroupKey, Arc<Hub>>>,
}

impl Shared {
    fn check(&self) -> Result<()> {
        match &*lock(&self.failed) {
            Some((rank, reason)) => Err(Error::PeerFailed { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Fails if a rank of the group has returned: it will never do what the caller waits for.
    fn check_group(&self, group: &[usize]) -> Result<()> {
        self.check()?;
        let ended = lock(&self.ended);
        match group.iter().find(|rank| ended.contains(rank)) {
            Some(&rank) => {
                let reason = "it has ended while others wait for it".to_owned();
                Err(Error::PeerFailed { rank, reason })
            }
            None => Ok(()),
        }
    }

    fn fail(&self, rank: usize, reason: String) {
        lock(&self.failed).get_or_insert((rank, reason));
        for hub in lock(&self.hubs).values() {
            hub.changed.notify_all();
        }
    }
}

/// One group's meeting place.
#[derive(Default)]
struct Hub {
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Default)]
struct HubState {
    rounds: HashMap<u64, Round>,
    /// Messages under way, by sender, receiver and tag.
    mail: HashMap<(usize, usize, u64), VecDeque<Message>>,
}

/// A message under way: its name and its tensor.
type Message = (&'static str, Tensor);

struct Round {
    posts: Vec<Option<Post>>,
    finished: usize,
}

/// What one rank brought to a collective.
#[derive(Clone)]
struct Post {
    /// What it called, as text to compare.
    call: String,
    tensor: Option<Tensor>,
    /// Rows for each rank, where they differ.
    rows: Vec<usize>,
}

/// A rank's handle to the run it belongs to.
#[derive(Clone)]
pub struct ThreadFabric {
    rank: usize,
    world: usize,
    shared: Arc<Shared>,
    asked: Arc<Mutex<HashMap<Vec<usize>, usize>>>,
}

impl ThreadFabric {
    /// The fabric of a run of one rank, on the caller's thread.
    pub fn single() -> Self {
        Self { rank: 0, world: 1, shared: Arc::default(), asked: Arc::default() }
    }
}

impl Fabric for ThreadFabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn group(&self, ranks: &[usize]) -> Result<Arc<dyn Communicator>> {
        let Some(rank) =
            ranks.iter().position(|&r| r == self.rank).filter(|_| ranks.iter().all(|&r| r < self.world))
        else {
            return Err(Error::Group { rank: self.rank, world: self.world, group: ranks.to_vec() });
        };
        let instance = {
            let mut asked = lock(&self.asked);
            let n = asked.entry(ranks.to_vec()).or_default();
            *n += 1;
            *n
        };
        let hub = lock(&self.shared.hubs).entry((ranks.to_vec(), instance)).or_default().clone();
        let group = ranks.into();
        let (next, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(ThreadComm { rank, group, hub, shared: self.shared.clone(), next, sent }))
    }
}

/// Runs `f` once per rank, each on a thread of its own, and returns the results in rank order.
///
/// # Errors
/// The error of the rank that failed first, with its number; a panic counts as a failure. The other ranks are
/// released from whatever they wait for.
pub fn run<T: Send, E: std::fmt::Display + Send>(
    world: usize,
    f: impl Fn(ThreadFabric) -> std::result::Result<T, E> + Sync,
) -> std::result::Result<Vec<T>, (usize, RankFailure<E>)> {
    let shared = Arc::new(Shared::default());
    let mut results: Vec<Option<std::result::Result<T, RankFailure<E>>>> = Vec::new();
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (shared, f) = (shared.clone(), &f);
            let body = move || {
                let fabric = ThreadFabric { rank, world, shared: shared.clone(), asked: Arc::default() };
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(fabric)));
                let outcome = match outcome {
                    Ok(Ok(value)) => {
                        lock(&shared.ended).insert(rank);
                        return Ok(value);
                    }
                    Ok(Err(e)) => RankFailure::Error(e),
                    Err(panic) => RankFailure::Panic(panic_message(&*panic)),
                };
                shared.fail(rank, outcome.to_string());
                Err(outcome)
            };
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn_scoped(scope, body)
                .expect("the system can start a thread per rank")
        };
        let handles: Vec<_> = (0..world).map(start).collect();
        results = handles.into_iter().map(|h| h.join().ok()).collect();
    });
    let first = lock(&shared.failed).as_ref().map(|f| f.0);
    let mut values = Vec::with_capacity(world);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Some(Ok(value)) => values.push(value),
            Some(Err(e)) if first == Some(rank) => return Err((rank, e)),
            Some(Err(_)) => {}
            None => return Err((rank, RankFailure::Panic("the thread was lost".to_owned()))),
        }
    }
    Ok(values)
}

/// How a rank ended when it did not end well.
#[derive(Debug)]
pub enum RankFailure<E> {
    /// It returned an error.
    Error(E),
    /// It panicked, with this message.
    Panic(String),
}

impl<E: std::fmt::Display> std::fmt::Display for RankFailure<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(e) => e.fmt(f),
            Self::Panic(message) => write!(f, "panic: {message}"),
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

struct ThreadComm {
    rank: usize,
    /// The ranks of the group, by their numbers in the run.
    group: Arc<[usize]>,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    next: AtomicU64,
    sent: AtomicU64,
}

/// One rank's part in one collective.
struct Meeting {
    rank: usize,
    group: Arc<[usize]>,
    sequence: u64,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
}

impl Meeting {
    /// Sleeps until `ready` or a failure.
    fn wait_until(&self, ready: impl Fn(&HubState) -> bool) -> Result<MutexGuard<'_, HubState>> {
        let mut state = lock(&self.hub.state);
        loop {
            if ready(&state) {
                return Ok(state);
            }
            self.shared.check_group(&self.group)?;
            state = self.hub.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Meets the other ranks, computes `read` on everybody's tensors and waits until all have done so.
    fn complete(self, read: impl FnOnce(&[Post]) -> Result<Option<Tensor>>) -> Result<Option<Tensor>> {
        let all_posted = |s: &HubState| s.rounds[&self.sequence].posts.iter().all(Option::is_some);
        let posts: Vec<Post> = {
            let state = self.wait_until(all_posted)?;
            let posts = state.rounds[&self.sequence].posts.iter().flatten();
            let calls: Vec<&String> = posts.clone().map(|p| &p.call).collect();
            if let Some(other) = calls.iter().position(|c| *c != calls[self.rank]) {
                return Err(Error::Mismatch {
                    sequence: self.sequence,
                    rank: self.rank,
                    mine: calls[self.rank].clone(),
                    other,
                    theirs: calls[other].clone(),
                });
            }
            posts.cloned().collect()
        };
        let result = read(&posts);
        drop(posts);
        {
            let mut state = lock(&self.hub.state);
            let round = state.rounds.get_mut(&self.sequence).expect("a round lasts until all have finished");
            round.finished += 1;
            if round.finished == self.group.len() {
                state.rounds.remove(&self.sequence);
                self.hub.changed.notify_all();
            }
        }
        drop(self.wait_until(|s| !s.rounds.contains_key(&self.sequence))?);
        result
    }
}

impl ThreadComm {
    fn post(&self, post: Post) -> Result<Meeting> {
        self.shared.check()?;
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.hub.state);
        let round = state
            .rounds
            .entry(sequence)
            .or_insert_with(|| Round { posts: self.group.iter().map(|_| None).collect(), finished: 0 });
        round.posts[self.rank] = Some(post);
        self.hub.changed.notify_all();
        drop(state);
        Ok(self.meeting(sequence))
    }

    fn meeting(&self, sequence: u64) -> Meeting {
        let (group, hub, shared) = (self.group.clone(), self.hub.clone(), self.shared.clone());
        Meeting { rank: self.rank, group, sequence, hub, shared }
    }

    /// Posts `t` and reads the result from all ranks' tensors when waited for.
    fn collective(
        &self,
        name: &'static str,
        what: &'static str,
        t: Tensor,
        read: impl FnOnce(&Arena, &[Tensor]) -> Result<Tensor> + Send + 'static,
    ) -> Result<Pending> {
        let arena = t.arena().clone();
        let call = format!("{what} of {name} ({} x {})", t.numel(), t.dtype());
        let meeting = self.post(Post { call, tensor: Some(t), rows: Vec::new() })?;
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "collective", what, name).entered();
            let done = meeting.complete(|posts| {
                let tensors: Vec<Tensor> = posts.iter().filter_map(|p| p.tensor.clone()).collect();
                read(&arena, &tensors).map(Some)
            })?;
            Ok(done.expect("a collective on tensors returns one"))
        }))
    }

    /// Counts what this rank sends.
    fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Communicator for ThreadComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.len()
    }

    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending> {
        if self.group.len() == 1 {
            return Ok(Pending::ready(t));
        }
        self.count(2 * t.bytes().len() * (self.group.len() - 1) / self.group.len());
        let what = if op == ReduceOp::Sum { "all_reduce(sum)" } else { "all_reduce(max)" };
        self.collective(name, what, t, move |arena, all| reduce(arena, all, 0, all[0].numel(), op))
    }

    fn all_gather(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        if self.group.len() == 1 {
            return Ok(Pending::ready(t));
        }
        self.count(t.bytes().len() * (self.group.len() - 1));
        self.collective(name, "all_gather", t, move |arena, all| {
            let mut shape = all[0].shape().to_vec();
            match shape.first_mut() {
                Some(rows) => *rows *= all.len(),
                None => shape.push(all.len()),
            }
            let mut out = Tensor::uninit(arena, all[0].dtype(), shape.as_slice());
            let part = all[0].bytes().len();
            for (to, t) in out.bytes_mut()?.chunks_exact_mut(part.max(1)).zip(all) {
                to.copy_from_slice(t.bytes());
            }
            Ok(out)
        })
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, numel) = (self.rank, self.group.len(), t.numel());
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        if numel % size != 0 {
            return Err(Error::Indivisible { name, numel, size });
        }
        let part = numel / size;
        self.count(t.bytes().len() / size * (size - 1));
        self.collective(name, "reduce_scatter", t, move |arena, all| {
            reduce(arena, all, rank * part, part, ReduceOp::Sum)
        })
    }

    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> Result<Pending> {
        if self.group.len() == 1 {
            return Ok(Pending::ready(t));
        }
        if self.rank == root {
            self.count(t.bytes().len());
        }
        self.collective(name, "broadcast", t, move |arena, all| {
            let mut out = Tensor::uninit(arena, all[root].dtype(), all[root].shape());
            out.bytes_mut()?.copy_from_slice(all[root].bytes());
            Ok(out)
        })
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, rows) = (self.rank, self.group.len(), t.shape().first().copied().unwrap_or(0));
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        if rows % size != 0 {
            return Err(Error::Indivisible { name, numel: rows, size });
        }
        self.count(t.bytes().len() / size * (size - 1));
        self.collective(name, "all_to_all", t, move |arena, all| {
            let mut out = Tensor::uninit(arena, all[0].dtype(), all[0].shape());
            let part = all[0].bytes().len() / size;
            for (to, t) in out.bytes_mut()?.chunks_exact_mut(part.max(1)).zip(all) {
                to.copy_from_slice(&t.bytes()[rank * part..(rank + 1) * part]);
            }
            Ok(out)
        })
    }

    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending> {
        let (rank, size) = (self.rank, self.group.len());
        let (all, width) = t.as_matrix();
        let total = rows.iter().sum::<usize>();
        if rows.len() != size || total != all {
            return Err(ms_core::Error::Range { what: "rows to send", start: 0, end: total, len: all }.into());
        }
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        self.count((all - rows[rank]) * width * t.dtype().size());
        let (arena, dtype) = (t.arena().clone(), t.dtype());
        let call = format!("all_to_all_rows of {name} (rows of {width} x {dtype})");
        let meeting = self.post(Post { call, tensor: Some(t), rows: rows.to_vec() })?;
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "all_to_all_rows", name).entered();
            let done = meeting.complete(|posts| {
                let here: usize = posts.iter().map(|p| p.rows[rank]).sum();
                let mut out = Tensor::uninit(&arena, dtype, [here, width]);
                let (row, mut at) = (width * dtype.size(), 0);
                let bytes = out.bytes_mut()?;
                for post in posts {
                    let start = post.rows[..rank].iter().sum::<usize>() * row;
                    let len = post.rows[rank] * row;
                    let from = post.tensor.as_ref().expect("every rank posts rows");
                    bytes[at..at + len].copy_from_slice(&from.bytes()[start..start + len]);
                    at += len;
                }
                Ok(Some(out))
            })?;
            Ok(done.expect("an exchange of rows returns some"))
        }))
    }

    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()> {
        self.shared.check()?;
        self.count(t.bytes().len());
        lock(&self.hub.state).mail.entry((self.rank, to, tag)).or_default().push_back((name, t));
        self.hub.changed.notify_all();
        Ok(())
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64) -> Result<Pending> {
        self.shared.check()?;
        let key = (from, self.rank, tag);
        let meeting = self.meeting(0);
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "recv", name).entered();
            let arrived = |s: &HubState| s.mail.get(&key).is_some_and(|q| !q.is_empty());
            let mut state = meeting.wait_until(arrived)?;
            let queue = state.mail.get_mut(&key).expect("the wait saw a message");
            let (found, t) = queue.pop_front().expect("the wait saw a message");
            if queue.is_empty() {
                state.mail.remove(&key);
            }
            match found == name {
                true => Ok(t),
                false => Err(Error::Unexpected { tag, from, expected: name, found: found.to_owned() }),
            }
        }))
    }

    fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn barrier(&self) -> Result<()> {
        if self.group.len() == 1 {
            return Ok(());
        }
        let call = "barrier of ranks".to_owned();
        self.post(Post { call, tensor: None, rows: Vec::new() })?.complete(|_| Ok(None)).map(drop)
    }
}

/// Elements `start..start + len` of the reduction of `all`, in rank order.
pub(crate) fn reduce(
    arena: &Arena,
    all: &[Tensor],
    start: usize,
    len: usize,
    op: ReduceOp,
) -> Result<Tensor> {
    fn fold<E: Scalar>(
        arena: &Arena,
        all: &[Tensor],
        start: usize,
        len: usize,
        f: impl Fn(E, E) -> E,
    ) -> Result<Tensor> {
        let whole = len == all[0].numel();
        let shape = if whole { all[0].shape() } else { [len].into() };
        let mut out = Tensor::uninit(arena, E::DTYPE, shape);
        let sum = out.as_mut_slice::<E>()?;
        sum.copy_from_slice(&all[0].as_slice::<E>()?[start..start + len]);
        for t in &all[1..] {
            for (s, &x) in sum.iter_mut().zip(&t.as_slice::<E>()?[start..start + len]) {
                *s = f(*s, x);
            }
        }
        Ok(out)
    }
    let max = op == ReduceOp::Max;
    match all[0].dtype() {
        DType::F32 => fold::<f32>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::F64 => fold::<f64>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::I64 => fold::<i64>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::Bf16 => {
            let mut out = Tensor::uninit(arena, DType::Bf16, [len]);
            let inputs: Vec<&[bf16]> = all.iter().map(Tensor::as_slice).collect::<ms_core::Result<_>>()?;
            for (i, o) in out.as_mut_slice::<bf16>()?.iter_mut().enumerate() {
                let values = inputs.iter().map(|x| x[start + i].to_f32());
                let first = if max { f32::NEG_INFINITY } else { 0.0 };
                *o = bf16::from_f32(values.fold(first, |a, b| if max { a.max(b) } else { a + b }));
            }
            Ok(if len == all[0].numel() { out.reshape(all[0].shape())? } else { out })
        }
        dtype => Err(ms_core::Error::Unsupported { op: "reduce", dtype }.into()),
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(values(&comm.recv("ring", before, 0)?.wait()?), [(r + 2.0) % 3.0]);
            assert_eq!(values(&comm.recv("ring", before, 1)?.wait()?), [(r + 2.0) % 3.0 + 0.5]);
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
}
