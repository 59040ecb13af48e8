//! Message encoding between processes, and the mailbox of received messages.

use crate::progress::By;
use crate::{Error, Result};
use ms_core::{Arena, DType, Tensor};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a wait sleeps before it checks whether a rank has failed.
const POLL: Duration = Duration::from_millis(50);
/// How long a wait polls for messages itself before it sleeps.
const EAGER: Duration = Duration::from_millis(2);
/// Sends bytes to other processes of the run, in order between any two, and passes received messages to [`Mailbox::deliver`].
pub(crate) trait Transport: Send + Sync {
    /// Posts `message` to rank `to`, without waiting for it to be received.
    fn post(&self, to: usize, message: Vec<u8>);

    /// Takes a message that has arrived and passes it to [`Mailbox::deliver`]; returns whether there was one. A rank waiting
    /// for a message polls this, which is faster than being woken.
    fn take(&self) -> bool {
        false
    }
}

/// The address of a message: the key of its group, its sender's number in the run, and its topic.
pub(crate) type Address = (u64, usize, Topic);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// A step of collective `sequence` of the group.
    Collective { sequence: u64, step: u8 },
    /// A message under a tag.
    Message { tag: u64 },
}

/// A tensor in transit.
pub(crate) struct Message {
    /// What the sender called, as text to compare.
    pub(crate) call: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Message {
    pub(crate) fn tensor(&self, arena: &Arena) -> Result<Tensor> {
        let mut out = Tensor::uninit(arena, self.dtype, self.shape.as_slice());
        out.bytes_mut()?.copy_from_slice(&self.data);
        Ok(out)
    }
}

/// Kinds of messages.
pub(crate) const MESSAGE: u8 = 0;
pub(crate) const FAILED: u8 = 1;
pub(crate) const ENDED: u8 = 2;
/// A rank that has ended without a message: its number, and the reason.
pub(crate) const LOST: u8 = 3;

pub(crate) fn encode(
    group: u64,
    topic: Topic,
    call: &str,
    dtype: DType,
    shape: &[usize],
    data: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + call.len() + 64 + 8 * shape.len());
    out.push(MESSAGE);
    out.extend(group.to_le_bytes());
    let (kind, number) = match topic {
        Topic::Collective { sequence, step } => (step, sequence),
        Topic::Message { tag } => (u8::MAX, tag),
    };
    out.push(kind);
    out.extend(number.to_le_bytes());
    out.push(dtype as u8);
    out.push(shape.len() as u8);
    shape.iter().for_each(|dim| out.extend((*dim as u64).to_le_bytes()));
    out.extend((call.len() as u32).to_le_bytes());
    out.extend(call.as_bytes());
    out.extend(data);
    out
}

/// Reads numbers and strings from the front of a message.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    fn message(&mut self) -> Option<(u64, Topic, Message)> {
        let group = self.number()?;
        let (kind, number) = (self.byte()?, self.number()?);
        let topic = match kind {
            u8::MAX => Topic::Message { tag: number },
            step => Topic::Collective { sequence: number, step },
        };
        let dtype = *DType::ALL.get(usize::from(self.byte()?))?;
        let dims = self.byte()?;
        let shape: Vec<usize> =
            (0..dims).map(|_| self.number().map(|n| n as usize)).collect::<Option<_>>()?;
        let length = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        let call = String::from_utf8(self.take(length as usize)?.to_vec()).ok()?;
        let bytes = shape.iter().try_fold(dtype.size(), |n, dim| n.checked_mul(*dim))?;
        let data = (bytes == self.0.len()).then(|| self.0.to_vec())?;
        Some((group, topic, Message { call, dtype, shape, data }))
    }
}

#[derive(Default)]
struct Inbox {
    mail: HashMap<Address, VecDeque<Message>>,
    failed: Option<(usize, String)>,
    /// Ranks that have ended, successfully or not.
    ended: BTreeSet<usize>,
    /// Those of them that did not announce it.
    lost: BTreeSet<usize>,
}

/// The mailbox: received messages wait here until they are requested.
#[derive(Default)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// On waiting for a message, if there is one.
    limit: OnceLock<Limit>,
}

/// The limit on a rank's waiting.
struct Limit {
    rank: usize,
    /// Its own thread. While that has something else to do, the limit does not run for what others wait for on its behalf.
    thread: ThreadId,
    longest: Duration,
    /// Since when it waits for those threads.
    since: Mutex<Option<Instant>>,
}

impl Limit {
    fn of_this_thread(&self) -> bool {
        self.thread == thread::current().id()
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the rank has waited too long for what this thread waits for since `start`.
    fn is_over(&self, start: Instant) -> bool {
        let since =
            if self.of_this_thread() { Some(start) } else { self.since().map(|since| since.max(start)) };
        since.is_some_and(|since| since.elapsed() >= self.longest)
    }
}

impl Mailbox {
    /// From now on this rank, number `rank`, whose own thread calls this, waits for a message no longer than `longest`.
    pub(crate) fn wait_at_most(&self, rank: usize, longest: Duration) {
        let thread = thread::current().id();
        self.limit.get_or_init(|| Limit { rank, thread, longest, since: Mutex::default() });
    }

    /// Does `wait`, in which whoever calls this waits for a thread that waits for messages: if it is the rank's own thread, the
    /// limit runs meanwhile.
    pub(crate) fn joining<T>(&self, wait: impl FnOnce() -> T) -> T {
        let own = self.limit.get().filter(|limit| limit.of_this_thread());
        let note = |since| own.map(|limit| *limit.since() = since);
        note(Some(Instant::now()));
        let done = wait();
        note(None);
        done
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a message from rank `from`.
    pub(crate) fn deliver(&self, from: usize, bytes: &[u8]) {
        let mut decoder = Decoder(bytes);
        let kind = decoder.byte();
        let mut inbox = self.inbox();
        match kind {
            Some(MESSAGE) => match decoder.message() {
                Some((group, topic, message)) => {
                    inbox.mail.entry((group, from, topic)).or_default().push_back(message);
                }
                None => Self::note(&mut inbox, from, "it sent what cannot be read".to_owned()),
            },
            Some(ENDED) => {
                inbox.ended.insert(from);
            }
            Some(LOST) => match decoder.number() {
                Some(rank) => {
                    let reason = String::from_utf8_lossy(decoder.0).into_owned();
                    Self::lose(&mut inbox, rank as usize, reason);
                }
                None => Self::note(&mut inbox, from, "it sent what cannot be read".to_owned()),
            },
            _ => {
                let reason = String::from_utf8_lossy(decoder.0).into_owned();
                inbox.ended.insert(from);
                Self::note(&mut inbox, from, reason);
            }
        }
        drop(inbox);
        self.changed.notify_all();
    }

    fn note(inbox: &mut Inbox, rank: usize, reason: String) {
        inbox.failed.get_or_insert((rank, reason));
    }

    fn lose(inbox: &mut Inbox, rank: usize, reason: String) {
        // A rank that has announced its end may be gone.
        if inbox.ended.insert(rank) {
            inbox.lost.insert(rank);
            Self::note(inbox, rank, reason);
        }
    }

    /// Notes that `rank` has ended without a message; returns whether that is new.
    pub(crate) fn lost(&self, rank: usize, reason: &str) -> bool {
        let mut inbox = self.inbox();
        let news = !inbox.ended.contains(&rank);
        Self::lose(&mut inbox, rank, reason.to_owned());
        drop(inbox);
        self.changed.notify_all();
        news
    }

    /// Whether `rank` has ended, successfully or not.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))] // asked by who watches processes
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        self.inbox().ended.contains(&rank)
    }

    /// Ranks that have ended without a message.
    pub(crate) fn lost_ranks(&self) -> BTreeSet<usize> {
        self.inbox().lost.clone()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.inbox().failed {
            Some((rank, reason)) => Err(Error::PeerFailed { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Waits for a message; the rank itself at first by taking what has arrived from `transport`.
    pub(crate) fn wait(&self, address: Address, by: By, transport: &dyn Transport) -> Result<Message> {
        let start = Instant::now();
        let mut inbox = self.inbox();
        loop {
            if let Some(queue) = inbox.mail.get_mut(&address)
                && let Some(message) = queue.pop_front()
            {
                if queue.is_empty() {
                    inbox.mail.remove(&address);
                }
                return Ok(message);
            }
            if let Some((rank, reason)) = &inbox.failed {
                return Err(Error::PeerFailed { rank: *rank, reason: reason.clone() });
            }
            if inbox.ended.contains(&address.1) {
                let reason = "it has ended while others wait for it".to_owned();
                return Err(Error::PeerFailed { rank: address.1, reason });
            }
            if let Some(limit) = self.limit.get().filter(|limit| limit.is_over(start)) {
                let at = format!("{:?} of rank {}", address.2, address.1);
                return Err(Error::TimedOut { rank: limit.rank, seconds: limit.longest.as_secs(), at });
            }
            if by == By::Rank && start.elapsed() < EAGER {
                drop(inbox);
                if !transport.take() {
                    std::thread::yield_now();
                }
                inbox = self.inbox();
                continue;
            }
            inbox = self.changed.wait_timeout(inbox, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until `count` other ranks have ended, or `patience` is over; returns whether they have.
    pub(crate) fn wait_for_ends(&self, count: usize, patience: Duration) -> bool {
        let start = Instant::now();
        let mut inbox = self.inbox();
        while inbox.ended.len() < count && start.elapsed() < patience {
            inbox = self.changed.wait_timeout(inbox, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        inbox.ended.len() >= count
    }
}
