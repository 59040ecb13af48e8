//! Ranks as processes: collectives built from point-to-point messages.
//!
//! A [`Transport`] sends bytes to another process and never blocks; received messages are handed to the [`Mailbox`], which holds
//! them until they are requested. Nothing else is required of a transport, so an in-process channel is enough to test
//! everything here, and MPI provides only its messages.
//!
//! Every sum is computed in rank order by the same function that threaded ranks use, each part on the rank that owns it, so
//! the bits are the same. An all-reduce is a reduce-scatter followed by an all-gather, except that small tensors are sent
//! whole to every rank.

use crate::mailbox::{ENDED, FAILED, LOST, Mailbox, Message, Topic, Transport, encode};
use crate::progress::{By, Progress};
use crate::reduce::{joined, reduce};
use crate::{Communicator, Error, Fabric, Pending, ReduceOp, Requests, Result, volume};
use ms_core::{Arena, DType, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Tensors up to this size go to every rank as a whole.
const SMALL_BYTES: usize = 64 << 10;

/// A process as one rank of a run.
#[derive(Clone)]
pub(crate) struct MessageFabric {
    rank: usize,
    world: usize,
    transport: Arc<dyn Transport>,
    mailbox: Arc<Mailbox>,
    asked: Arc<Requests>,
    progress: Arc<Progress>,
}

impl MessageFabric {
    pub(crate) fn new(
        rank: usize,
        world: usize,
        transport: Arc<dyn Transport>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        Self { rank, world, transport, mailbox, asked: Arc::default(), progress: Arc::default() }
    }

    /// From now on this rank waits for another no longer than `limit`; the error says for what.
    #[cfg_attr(not(any(feature = "mpi", test)), allow(dead_code))] // asked for by who starts processes
    pub(crate) fn wait_at_most(&self, limit: Duration) {
        self.mailbox.wait_at_most(self.rank, limit);
    }

    /// Tells all others that this rank has ended, successfully or for a reason, and waits until they have too, or `patience`
    /// is over; returns whether they have.
    pub(crate) fn end(&self, failure: Option<&str>, patience: Duration) -> bool {
        let mut note = vec![if failure.is_some() { FAILED } else { ENDED }];
        note.extend(failure.unwrap_or_default().as_bytes());
        self.progress.gate.close();
        self.tell(&note);
        self.mailbox.wait_for_ends(self.world - 1, patience)
    }

    /// Notes that `rank` has ended without a message. If that is new, returns what tells all others; it may block for ever,
    /// behind a message to the process that is gone.
    pub(crate) fn lost(&self, rank: usize, reason: &str) -> Option<impl FnOnce() + Send + 'static> {
        let note = [&[LOST][..], &(rank as u64).to_le_bytes(), reason.as_bytes()].concat();
        let fabric = self.clone();
        self.mailbox.lost(rank, reason).then_some(move || fabric.tell(&note))
    }

    /// Whether `rank` has ended, successfully or not.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))] // asked by who watches processes
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        self.mailbox.has_ended(rank)
    }

    /// Ranks that have ended without a message.
    pub(crate) fn lost_ranks(&self) -> BTreeSet<usize> {
        self.mailbox.lost_ranks()
    }

    /// Sends a note to all others that can still read it.
    fn tell(&self, note: &[u8]) {
        let lost = self.mailbox.lost_ranks();
        let others = (0..self.world).filter(|rank| *rank != self.rank && !lost.contains(rank));
        others.for_each(|rank| self.transport.post(rank, note.to_vec()));
    }
}

/// A number that is the same on every rank for the same group and instance.
fn group_key(ranks: &[usize], instance: u64) -> u64 {
    let numbers = ranks.iter().map(|rank| *rank as u64).chain([instance, ranks.len() as u64]);
    numbers.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Fabric for MessageFabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn group(&self, ranks: &[usize]) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(MessageComm {
            group: Group {
                rank: self.place(ranks)?,
                key: group_key(ranks, self.asked.next(ranks)),
                ranks: ranks.into(),
                transport: Arc::clone(&self.transport),
                mailbox: Arc::clone(&self.mailbox),
            },
            progress: Arc::clone(&self.progress),
            next: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }))
    }
}

/// The ranks of a group and the transport to them.
#[derive(Clone)]
struct Group {
    key: u64,
    /// This rank, inside the group.
    rank: usize,
    /// The ranks of the group, by their numbers in the run.
    ranks: Arc<[usize]>,
    transport: Arc<dyn Transport>,
    mailbox: Arc<Mailbox>,
}

impl Group {
    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks.len()).filter(|rank| *rank != self.rank)
    }

    fn post(&self, to: usize, topic: Topic, call: &str, dtype: DType, shape: &[usize], data: &[u8]) {
        self.transport.post(self.ranks[to], encode(self.key, topic, call, dtype, shape, data));
    }

    /// Waits for the message of rank `from` of the group.
    fn wait(&self, from: usize, topic: Topic, by: By) -> Result<Message> {
        self.mailbox.wait((self.key, self.ranks[from], topic), by, &*self.transport)
    }
}

/// This rank's part in one collective.
#[derive(Clone)]
struct PendingCollective {
    group: Group,
    sequence: u64,
    call: String,
    by: By,
}

impl PendingCollective {
    fn topic(&self, step: u8) -> Topic {
        Topic::Collective { sequence: self.sequence, step }
    }

    fn post(&self, to: usize, step: u8, dtype: DType, shape: &[usize], data: &[u8]) {
        self.group.post(to, self.topic(step), &self.call, dtype, shape, data);
    }

    /// What rank `from` sent in a step; an error if ranks diverge.
    fn wait(&self, from: usize, step: u8) -> Result<Message> {
        let message = self.group.wait(from, self.topic(step), self.by)?;
        if message.call == self.call {
            return Ok(message);
        }
        Err(Error::Mismatch {
            sequence: self.sequence,
            group: self.group.ranks.to_vec(),
            rank: self.group.ranks[self.group.rank],
            mine: self.call.clone(),
            other: self.group.ranks[from],
            theirs: message.call,
        })
    }

    /// One tensor per rank, in rank order, with `mine` at its place.
    fn all(&self, step: u8, mine: &Tensor, arena: &Arena) -> Result<Vec<Tensor>> {
        (0..self.group.ranks.len())
            .map(|from| {
                if from == self.group.rank { Ok(mine.clone()) } else { self.wait(from, step)?.tensor(arena) }
            })
            .collect()
    }
}

/// Element ranges of the parts that ranks own.
fn part(numel: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    numel * rank / size..numel * (rank + 1) / size
}

struct MessageComm {
    group: Group,
    progress: Arc<Progress>,
    next: AtomicU64,
    sent: AtomicU64,
}

impl MessageComm {
    fn pending(&self, name: &'static str, what: &'static str, about: &str) -> Result<PendingCollective> {
        self.group.mailbox.check()?;
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(PendingCollective {
            group: self.group.clone(),
            sequence,
            call: format!("{what} of {name} ({about})"),
            by: By::Rank,
        })
    }

    fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Posts part `r` of `t`, by `bytes`, to every rank `r`.
    fn scatter(pending: &PendingCollective, t: &Tensor, elements: impl Fn(usize) -> std::ops::Range<usize>) {
        let size = t.dtype().size();
        for to in pending.group.others() {
            let range = elements(to);
            let bytes = &t.bytes()[range.start * size..range.end * size];
            pending.post(to, 0, t.dtype(), &[range.len()], bytes);
        }
    }
}

/// The description of `t` in a collective's call.
fn about(t: &Tensor) -> String {
    format!("{} x {}", t.numel(), t.dtype())
}

fn waiting(
    what: &'static str,
    name: &'static str,
    finish: impl FnOnce() -> Result<Tensor> + Send + 'static,
) -> Pending {
    Pending::new(move || {
        let _span = tracing::trace_span!(target: "ms_comm", "collective", what, name).entered();
        finish()
    })
}

impl Communicator for MessageComm {
    fn rank(&self) -> usize {
        self.group.rank
    }

    fn size(&self) -> usize {
        self.group.ranks.len()
    }

    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending> {
        let (rank, size, numel) = (self.rank(), self.size(), t.numel());
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        self.count(volume::all_reduce(&t, size));
        let what = if op == ReduceOp::Sum { "all_reduce(sum)" } else { "all_reduce(max)" };
        let pending = self.pending(name, what, &about(t.ready()?))?;
        if volume::bytes(&t) <= SMALL_BYTES.max(size * 8) {
            for to in pending.group.others() {
                pending.post(to, 0, t.dtype(), &t.shape(), t.bytes());
            }
            return Ok(waiting(what, name, move || {
                let all = pending.all(0, &t, t.arena())?;
                reduce(t.arena(), &all, 0, numel, op)
            }));
        }
        Self::scatter(&pending, &t, |to| part(numel, to, size));
        let (arena, shape) = (t.arena().clone(), t.shape());
        let reduced = {
            let (mut pending, arena) = (pending.clone(), arena.clone());
            let gate = Arc::clone(&self.progress.gate);
            self.progress.begin(move |by| {
                pending.by = by;
                gate.pass(rank, || ())?;
                let own = part(numel, rank, size);
                let mine = t.slice_flat(own.start, [own.len()])?;
                drop(t);
                let all = pending.all(0, &mine, &arena)?;
                drop(mine);
                let sum = reduce(&arena, &all, 0, own.len(), op)?;
                drop(all);
                let send = |to| pending.post(to, 1, sum.dtype(), &[own.len()], sum.bytes());
                gate.pass(rank, || pending.group.others().for_each(send))?;
                Ok(sum)
            })
        };
        Ok(waiting(what, name, move || {
            let own = pending.group.mailbox.joining(|| reduced.wait())?;
            joined(&arena, &pending.all(1, &own, &arena)?, &shape)
        }))
    }

    fn all_gather(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let size = self.size();
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        self.count(volume::all_gather(&t, size));
        let pending = self.pending(name, "all_gather", &about(t.ready()?))?;
        for to in pending.group.others() {
            pending.post(to, 0, t.dtype(), &t.shape(), t.bytes());
        }
        Ok(waiting("all_gather", name, move || {
            joined(t.arena(), &pending.all(0, &t, t.arena())?, &volume::gathered(&t, size))
        }))
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, numel) = (self.rank(), self.size(), t.numel());
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        volume::check_parts(name, numel, size)?;
        self.count(volume::parts(&t, size));
        let pending = self.pending(name, "reduce_scatter", &about(t.ready()?))?;
        Self::scatter(&pending, &t, |to| part(numel, to, size));
        Ok(waiting("reduce_scatter", name, move || {
            let (arena, own) = (t.arena().clone(), part(numel, rank, size));
            let mine = t.slice_flat(own.start, [own.len()])?;
            drop(t);
            let all = pending.all(0, &mine, &arena)?;
            drop(mine);
            reduce(&arena, &all, 0, own.len(), ReduceOp::Sum)
        }))
    }

    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> Result<Pending> {
        if self.size() == 1 {
            return Ok(Pending::ready(t));
        }
        let pending = self.pending(name, "broadcast", &about(t.ready()?))?;
        self.count(volume::broadcast(&t, self.size(), self.rank() == root));
        if self.rank() == root {
            for to in pending.group.others() {
                pending.post(to, 0, t.dtype(), &t.shape(), t.bytes());
            }
            return Ok(Pending::ready(t));
        }
        Ok(waiting("broadcast", name, move || pending.wait(root, 0)?.tensor(t.arena())))
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, rows) = (self.rank(), self.size(), t.shape().first().copied().unwrap_or(0));
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        volume::check_parts(name, rows, size)?;
        self.count(volume::parts(&t, size));
        let numel = t.numel();
        let pending = self.pending(name, "all_to_all", &about(t.ready()?))?;
        Self::scatter(&pending, &t, |to| part(numel, to, size));
        Ok(waiting("all_to_all", name, move || {
            let own = part(numel, rank, size);
            let mine = t.slice_flat(own.start, [own.len()])?;
            joined(t.arena(), &pending.all(0, &mine, t.arena())?, &t.shape())
        }))
    }

    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending> {
        let (rank, size) = (self.rank(), self.size());
        volume::check_rows(&t, rows, size)?;
        if size == 1 {
            return Ok(Pending::ready(t));
        }
        let width = t.as_matrix().1;
        let row = width * t.dtype().size();
        self.count(volume::rows(&t, rows, rank));
        let pending = self.pending(name, "all_to_all_rows", &format!("rows of {width} x {}", t.dtype()))?;
        let starts: Vec<usize> = rows
            .iter()
            .scan(0, |at, count| {
                *at += count;
                Some(*at - count)
            })
            .collect();
        t.ready()?;
        for to in pending.group.others() {
            let bytes = &t.bytes()[starts[to] * row..(starts[to] + rows[to]) * row];
            pending.post(to, 0, t.dtype(), &[rows[to], width], bytes);
        }
        let mine = t.slice_flat(starts[rank] * width, [rows[rank], width])?;
        Ok(waiting("all_to_all_rows", name, move || {
            let arena = mine.arena().clone();
            let all = pending.all(0, &mine, &arena)?;
            let here: usize = all.iter().map(|t| t.dim(0)).sum();
            joined(&arena, &all, &[here, width])
        }))
    }

    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()> {
        self.group.mailbox.check()?;
        self.count(volume::bytes(&t));
        self.group.post(to, Topic::Message { tag }, name, t.dtype(), &t.shape(), t.ready()?.bytes());
        Ok(())
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64, arena: &Arena) -> Result<Pending> {
        self.group.mailbox.check()?;
        let (group, arena) = (self.group.clone(), arena.clone());
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "recv", name).entered();
            let message = group.wait(from, Topic::Message { tag }, By::Rank)?;
            if message.call == name {
                message.tensor(&arena)
            } else {
                Err(Error::Unexpected { tag, from, expected: name, found: message.call })
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
        let pending = self.pending("ranks", "barrier", "all")?;
        pending.group.others().for_each(|to| pending.post(to, 0, DType::F32, &[0], &[]));
        pending.group.others().try_for_each(|from| pending.wait(from, 0).map(drop))
    }

    fn joining(&self, join: &mut dyn FnMut()) {
        self.group.mailbox.joining(join);
    }
}

#[cfg(test)]
mod tests;
