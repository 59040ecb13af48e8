//! Ranks as threads of one process, with collectives in shared memory.
//!
//! A rank posts its tensor (a reference, not a copy) under the number of the collective, waits until the others have posted
//! theirs, reads what it needs from all of them, and returns when everybody has finished reading, so a buffer is never
//! written while another rank reads it. All of it is safe code: a tensor in a round cannot be written, because the round
//! holds a reference to it.

mod deadlock;
mod failure;
mod member;

use crate::reduce::{joined, reduce};
use crate::{Communicator, Error, Fabric, Pending, ReduceOp, Requests, Result, volume};
use deadlock::{Needs, Waits};
pub use failure::RankFailure;
use failure::panic_message;
use member::GroupMember;
use ms_core::{Arena, Tensor};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A rank that panics is reported through the fabric; the maps themselves are consistent between statements.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of a group, and which of the communicators that they requested this is.
type GroupKey = (Vec<usize>, u64);

/// What all ranks of a run share.
#[derive(Default)]
struct Shared {
    failed: Mutex<Option<(usize, String)>>,
    /// Ranks that have returned, successfully or not.
    ended: Mutex<BTreeSet<usize>>,
    hubs: Mutex<BTreeMap<GroupKey, Arc<Hub>>>,
    /// Waits that have lasted a while.
    waits: Waits,
    /// How long a rank may wait for others.
    limit: Option<Duration>,
    /// Since when ranks wait for threads of their own.
    joining: Mutex<BTreeMap<usize, Instant>>,
}

impl Shared {
    fn check(&self) -> Result<()> {
        match &*lock(&self.failed) {
            Some((rank, reason)) => Err(Error::PeerFailed { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Fails if a rank of the group has returned, since it can no longer do what the caller waits for.
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

/// The shared state of one group.
#[derive(Default)]
struct Hub {
    state: Mutex<HubState>,
    changed: Condvar,
    under_way: Arena,
}

#[derive(Default)]
struct HubState {
    rounds: HashMap<u64, Round>,
    /// Messages in transit by sender, receiver and tag: their names and tensors.
    mail: HashMap<(usize, usize, u64), VecDeque<Message>>,
}

type Message = (&'static str, Tensor);
struct Round {
    posts: Vec<Option<Post>>,
    /// For each rank, whether it has read what it needs.
    finished: Vec<bool>,
}

/// One rank's contribution to a collective.
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
    /// The rank's own thread; it may have others that wait for it.
    thread: ThreadId,
    shared: Arc<Shared>,
    asked: Arc<Requests>,
}

impl ThreadFabric {
    /// The fabric of a run of one rank, on the caller's thread.
    pub fn single() -> Self {
        Self::new(0, 1, Arc::default())
    }

    fn new(rank: usize, world: usize, shared: Arc<Shared>) -> Self {
        Self { rank, world, thread: thread::current().id(), shared, asked: Arc::default() }
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
        let (rank, instance) = (self.place(ranks)?, self.asked.next(ranks));
        let hub = lock(&self.shared.hubs).entry((ranks.to_vec(), instance)).or_default().clone();
        let (world, thread, shared) = (self.world, self.thread, self.shared.clone());
        let member = GroupMember { rank, world, group: ranks.into(), thread, hub, shared };
        Ok(Arc::new(ThreadComm { member, next: AtomicU64::new(0), sent: AtomicU64::new(0) }))
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
    run_within(world, None, f)
}

/// [`run`] in which a rank that has waited for others longer than `limit` fails, with a message about what it waited for.
///
/// # Errors
/// As [`run`].
pub fn run_within<T: Send, E: std::fmt::Display + Send>(
    world: usize,
    limit: Option<Duration>,
    f: impl Fn(ThreadFabric) -> std::result::Result<T, E> + Sync,
) -> std::result::Result<Vec<T>, (usize, RankFailure<E>)> {
    let shared = Arc::new(Shared { limit, ..Shared::default() });
    let mut results: Vec<Option<std::result::Result<T, RankFailure<E>>>> = Vec::new();
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (all, f) = (&shared, &f);
            let shared = shared.clone();
            let body = move || {
                let fabric = ThreadFabric::new(rank, world, shared.clone());
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
            std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, body).map_err(|e| {
                let failure = RankFailure::Unstarted(e);
                all.fail(rank, failure.to_string());
                failure
            })
        };
        let handles: Vec<_> = (0..world).map(start).collect();
        results = handles
            .into_iter()
            .map(|started| match started {
                Ok(handle) => handle.join().ok(),
                Err(failure) => Some(Err(failure)),
            })
            .collect();
    });
    let first = lock(&shared.failed).as_ref().map(|f| f.0);
    let (mut values, mut other) = (Vec::with_capacity(world), None);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Some(Ok(value)) => values.push(value),
            Some(Err(e)) if first == Some(rank) => return Err((rank, e)),
            // The first to fail may be a helper thread of a rank that succeeded.
            Some(Err(e)) => other = other.or(Some((rank, e))),
            None => return Err((rank, RankFailure::Panic("the thread was lost".to_owned()))),
        }
    }
    other.map_or(Ok(values), Err)
}

struct ThreadComm {
    member: GroupMember,
    next: AtomicU64,
    sent: AtomicU64,
}

/// One rank's part in one collective.
struct PendingCollective {
    member: GroupMember,
    sequence: u64,
    call: String,
}

impl PendingCollective {
    /// What is waited for.
    fn at(&self) -> String {
        format!("{}, collective {} of ranks {:?}", self.call, self.sequence, self.member.group)
    }

    /// Sleeps until `ready` or a failure; the wait needs all ranks for which `lacks` is true.
    fn wait_until(
        &self,
        ready: impl Fn(&HubState) -> bool,
        lacks: impl Fn(&Round, usize) -> bool + Send + 'static,
    ) -> Result<MutexGuard<'_, HubState>> {
        let sequence = self.sequence;
        let needs = move |state: &HubState| match state.rounds.get(&sequence) {
            Some(round) => (0..round.posts.len()).filter(|&rank| lacks(round, rank)).collect(),
            None => Vec::new(),
        };
        self.member.wait_until(ready, || self.at(), needs)
    }

    /// Waits for the other ranks, computes `read` on all tensors and waits until all have done so.
    fn complete(self, read: impl FnOnce(&[Post]) -> Result<Option<Tensor>>) -> Result<Option<Tensor>> {
        let GroupMember { rank, hub, .. } = &self.member;
        let all_posted = |s: &HubState| s.rounds[&self.sequence].posts.iter().all(Option::is_some);
        let posts: Vec<Post> = {
            let state = self.wait_until(all_posted, |round, rank| round.posts[rank].is_none())?;
            state.rounds[&self.sequence].posts.iter().flatten().cloned().collect()
        };
        let result = read(&posts);
        drop(posts);
        {
            let mut state = lock(&hub.state);
            let round = state.rounds.get_mut(&self.sequence).expect("a round lasts until all have finished");
            round.finished[*rank] = true;
            let all_finished = round.finished.iter().all(|finished| *finished);
            if all_finished {
                state.rounds.remove(&self.sequence);
            }
            drop(state);
            if all_finished {
                hub.changed.notify_all();
                return result;
            }
        }
        let over = |s: &HubState| !s.rounds.contains_key(&self.sequence);
        drop(self.wait_until(over, |round, rank| !round.finished[rank])?);
        result
    }
}

impl ThreadComm {
    /// Posts this rank's part of the next collective. A mismatch with what another rank does ends the run.
    fn post(&self, post: Post) -> Result<PendingCollective> {
        let GroupMember { rank, group, hub, shared, .. } = &self.member;
        shared.check()?;
        let (sequence, call) = (self.next.fetch_add(1, Ordering::Relaxed), post.call.clone());
        let mut state = lock(&hub.state);
        let round = state.rounds.entry(sequence).or_insert_with(|| Round {
            posts: group.iter().map(|_| None).collect(),
            finished: vec![false; group.len()],
        });
        let there = round.posts.iter().enumerate().filter_map(|(other, post)| Some((other, post.as_ref()?)));
        let differs = there.into_iter().find(|(_, post)| post.call != call);
        if let Some((other, theirs)) = differs {
            return Err(Error::Mismatch {
                sequence,
                group: group.to_vec(),
                rank: group[*rank],
                mine: call,
                other: group[other],
                theirs: theirs.call.clone(),
            });
        }
        round.posts[*rank] = Some(post);
        let all_posted = round.posts.iter().all(Option::is_some);
        drop(state);
        // Everybody waits for all posts, and whoever wakes up needs the lock.
        if all_posted {
            hub.changed.notify_all();
        }
        Ok(PendingCollective { member: self.member.clone(), sequence, call })
    }

    /// Posts `t` and reads the result from all ranks' tensors when waited for; `t` is the result of a group of one.
    fn collective(
        &self,
        name: &'static str,
        what: &str,
        t: Tensor,
        read: impl FnOnce(&Arena, &[Tensor]) -> Result<Tensor> + Send + 'static,
    ) -> Result<Pending> {
        if self.size() == 1 {
            return Ok(Pending::ready(t));
        }
        let arena = t.arena().clone();
        let call = format!("{what} of {name} ({} x {})", t.ready()?.numel(), t.dtype());
        let pending = self.post(Post { call, tensor: Some(t), rows: Vec::new() })?;
        let what = what.to_owned();
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "collective", what, name).entered();
            let done = pending.complete(|posts| {
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
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.group.len()
    }

    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending> {
        self.count(volume::all_reduce(&t, self.size()));
        let what = if op == ReduceOp::Sum { "all_reduce(sum)" } else { "all_reduce(max)" };
        self.collective(name, what, t, move |arena, all| reduce(arena, all, 0, all[0].numel(), op))
    }

    fn all_gather(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        self.count(volume::all_gather(&t, self.size()));
        self.collective(name, "all_gather", t, |arena, all| {
            joined(arena, all, &volume::gathered(&all[0], all.len()))
        })
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, numel) = (self.rank(), self.size(), t.numel());
        volume::check_parts(name, numel, size)?;
        let part = numel / size;
        self.count(volume::parts(&t, size));
        self.collective(name, "reduce_scatter", t, move |arena, all| {
            reduce(arena, all, rank * part, part, ReduceOp::Sum)
        })
    }

    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> Result<Pending> {
        self.count(volume::broadcast(&t, self.size(), self.rank() == root));
        let what = format!("broadcast from {root}");
        self.collective(name, &what, t, move |arena, all| Ok(all[root].copied_to(arena)?))
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, rows) = (self.rank(), self.size(), t.shape().first().copied().unwrap_or(0));
        volume::check_parts(name, rows, size)?;
        self.count(volume::parts(&t, size));
        self.collective(name, "all_to_all", t, move |arena, all| {
            let part = all[0].numel() / size;
            let parts: ms_core::Result<Vec<_>> =
                all.iter().map(|t| t.slice_flat(rank * part, [part])).collect();
            joined(arena, &parts?, &all[0].shape())
        })
    }

    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending> {
        let (rank, size) = (self.rank(), self.size());
        volume::check_rows(&t, rows, size)?;
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        let width = t.as_matrix().1;
        self.count(volume::rows(&t, rows, rank));
        let arena = t.arena().clone();
        let call = format!("all_to_all_rows of {name} (rows of {width} x {})", t.ready()?.dtype());
        let pending = self.post(Post { call, tensor: Some(t), rows: rows.to_vec() })?;
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "all_to_all_rows", name).entered();
            let done = pending.complete(|posts| {
                let part = |post: &Post| {
                    let from = post.tensor.as_ref().expect("every rank posts rows");
                    let start = post.rows[..rank].iter().sum::<usize>();
                    from.slice_flat(start * width, [post.rows[rank], width])
                };
                let parts = posts.iter().map(part).collect::<ms_core::Result<Vec<_>>>()?;
                let here = posts.iter().map(|p| p.rows[rank]).sum();
                joined(&arena, &parts, &[here, width]).map(Some)
            })?;
            Ok(done.expect("an exchange of rows returns some"))
        }))
    }

    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()> {
        self.member.shared.check()?;
        self.count(volume::bytes(&t));
        // A message in transit belongs to neither rank, so that no rank's memory depends on when another comes to it.
        let t = t.ready()?.copied_to(&self.member.hub.under_way)?;
        lock(&self.member.hub.state).mail.entry((self.rank(), to, tag)).or_default().push_back((name, t));
        self.member.hub.changed.notify_all();
        Ok(())
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64, arena: &Arena) -> Result<Pending> {
        self.member.shared.check()?;
        let (key, member, arena) = ((from, self.rank(), tag), self.member.clone(), arena.clone());
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "recv", name).entered();
            let arrived = move |s: &HubState| s.mail.get(&key).is_some_and(|q| !q.is_empty());
            let needs = move |s: &HubState| if arrived(s) { Vec::new() } else { vec![from] };
            let at = || {
                format!(
                    "recv of {name}, message {tag} from rank {} of ranks {:?}",
                    member.group[from], member.group
                )
            };
            let mut state = member.wait_until(arrived, at, needs)?;
            let queue = state.mail.get_mut(&key).expect("the wait saw a message");
            let (found, t) = queue.pop_front().expect("the wait saw a message");
            if queue.is_empty() {
                state.mail.remove(&key);
            }
            drop(state);
            if found == name {
                Ok(t.copied_to(&arena)?)
            } else {
                Err(Error::Unexpected { tag, from, expected: name, found: found.to_owned() })
            }
        }))
    }

    fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn barrier(&self) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let call = "barrier of ranks".to_owned();
        self.post(Post { call, tensor: None, rows: Vec::new() })?.complete(|_| Ok(None)).map(drop)
    }

    fn joining(&self, join: &mut dyn FnMut()) {
        let _recorded = self.member.record("a thread of its own".to_owned(), Needs::OwnThreads);
        let (joining, rank) = (&self.member.shared.joining, self.member.group[self.member.rank]);
        lock(joining).insert(rank, Instant::now());
        join();
        lock(joining).remove(&rank);
    }
}

#[cfg(test)]
mod tests;
