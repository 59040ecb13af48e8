//! Ranks started by MPI: `mpirun -np 4 PROGRAM`.
//!
//! [`start`] initialises MPI and gives the process its place. Two threads talk to the library, so no rank ever blocks on a
//! send: one sends what the rank posts, in order; the other receives whatever arrives and puts it into the rank's mailbox.
//! Where this would cost more than it saves, the rank does it itself: it sends small messages directly (the library copies
//! them) and polls for messages while it waits for one. Collectives are built from these messages (see `messages`), because
//! the library's own collectives add in an order of their own.
//!
//! Only the safe interface of the `mpi` crate is used. If the library itself detects an error, such as a broken connection,
//! it aborts the whole run, as MPI prescribes. A killed rank is noticed by `mpirun`, which names it and ends the others in
//! its own time (Open MPI 4: after a second); sooner by the ranks on the same machine, which watch each other's processes
//! (see `liveness`) and tell the others.

use crate::liveness::Process;
use crate::mailbox::{Mailbox, Transport};
use crate::messages::MessageFabric;
use crate::{Error, Fabric, Result};
use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::point_to_point::MatchedReceiveVec as _;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Destination as _, Source as _};
use ms_core::{Arena, Tensor};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of one message of the library, whose counts have 31 bits.
const MESSAGE_BYTES: usize = 1 << 28;
/// Messages up to this many bytes are sent together with their length.
const SHORT: usize = 64 << 10;
/// Messages up to this many bytes are sent at once if none is queued: the library copies them.
const AT_ONCE: usize = 3 << 10;
/// How long the receiver sleeps between two polls, and when the rank polls itself.
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);
/// How often a rank checks whether the others on its machine are alive.
const LOOK: Duration = Duration::from_millis(100);
/// How long a rank may take to start to end after a peer is gone, and then to end.
const GRACE: Duration = Duration::from_millis(200);
/// How long a rank that ends without the library waits for its receiver.
const MOMENT: Duration = Duration::from_millis(50);
/// How long a rank that ends waits for the others: those that failed must still say so.
const PATIENCE: Duration = Duration::from_secs(20);

/// The sending side.
struct MpiTransport {
    /// What is to be sent, in order; dropping it ends the sender.
    outbox: Mutex<Sender<(usize, Vec<u8>)>>,
    /// Messages that the sender has not passed to the library yet.
    queued: Arc<AtomicUsize>,
    incoming: Arc<MpiIncoming>,
}

impl Transport for MpiTransport {
    fn post(&self, to: usize, message: Vec<u8>) {
        let outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if message.len() <= AT_ONCE && self.queued.load(Ordering::Acquire) == 0 {
            return send(&SimpleCommunicator::world(), to, &message);
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        // The sender runs until the run has ended; nobody waits for later posts.
        let _ = outbox.send((to, message));
    }

    fn take(&self) -> bool {
        self.incoming.rank_looks.store(true, Ordering::Relaxed);
        self.incoming.take()
    }
}

/// The receiving side, used by one thread at a time.
struct MpiIncoming {
    mailbox: Arc<Mailbox>,
    taking: Mutex<()>,
    /// Whether the rank has polled itself since the receiver last did.
    rank_looks: AtomicBool,
}

impl MpiIncoming {
    /// Takes a message that has arrived; returns whether there was one and nobody else was receiving.
    fn take(&self) -> bool {
        let _taking = match self.taking.try_lock() {
            Ok(taking) => taking,
            Err(TryLockError::Poisoned(taking)) => taking.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let world = SimpleCommunicator::world();
        let Some(arrived) = world.any_process().immediate_matched_probe() else { return false };
        let (mut message, status) = arrived.matched_receive_vec::<u8>();
        let from = status.source_rank();
        let process = world.process_at_rank(from);
        let bytes = message.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize);
        message.drain(..message.len().min(8));
        while message.len() < bytes {
            let (part, _) = process.matched_probe().matched_receive_vec::<u8>();
            if message.is_empty() {
                message = part;
                message.reserve_exact(bytes.saturating_sub(message.len()));
            } else {
                message.extend_from_slice(&part);
            }
        }
        self.mailbox.deliver(from as usize, &message);
        true
    }
}

/// The state of a rank, for its watcher thread.
#[derive(Default)]
struct RankState {
    /// It ends, and waits for the others.
    ending: AtomicBool,
    /// It has ended.
    asleep: AtomicBool,
}

/// A process's part in a run under MPI.
pub struct MpiRun {
    fabric: MessageFabric,
    sender: JoinHandle<()>,
    receiver: JoinHandle<()>,
    watcher: Option<JoinHandle<()>>,
    state: Arc<RankState>,
    stop: Arc<AtomicBool>,
    /// Finalises the library when it is dropped, last of all.
    universe: Universe,
}

impl MpiRun {
    /// From now on this rank waits for another no longer than `limit`, and says for what.
    pub fn wait_at_most(&self, limit: std::time::Duration) {
        self.fabric.wait_at_most(limit);
    }
}

/// Initialises MPI.
///
/// # Errors
/// If it was initialised before, or does not allow calls from several threads.
pub fn start() -> Result<MpiRun> {
    let failed = |reason: &str| Error::Transport { what: "MPI".to_owned(), source: reason.into() };
    let begun = ::mpi::initialize_with_threading(Threading::Multiple);
    let (universe, threading) = begun.ok_or_else(|| failed("it has begun before"))?;
    if threading != Threading::Multiple {
        return Err(failed("the library does not allow calls from several threads (MPI_THREAD_MULTIPLE)"));
    }
    let world = SimpleCommunicator::world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let (outbox, posted) = channel();
    let (mailbox, stop) = (Arc::new(Mailbox::default()), Arc::new(AtomicBool::new(false)));
    let (taking, rank_looks) = (Mutex::default(), AtomicBool::new(false));
    let incoming = Arc::new(MpiIncoming { mailbox: Arc::clone(&mailbox), taking, rank_looks });
    let queued = Arc::new(AtomicUsize::new(0));
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let source =
            |e: std::io::Error| Error::Transport { what: "a thread for MPI".to_owned(), source: e.into() };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(source)
    };
    let sender = {
        let queued = Arc::clone(&queued);
        spawn("mpi send", Box::new(move || send_all(&posted, &queued)))?
    };
    let receiver = {
        let (incoming, stop) = (Arc::clone(&incoming), Arc::clone(&stop));
        spawn("mpi receive", Box::new(move || receive_all(&incoming, &stop)))?
    };
    let transport = Arc::new(MpiTransport { outbox: Mutex::new(outbox), queued, incoming });
    let fabric = MessageFabric::new(rank, size, transport, mailbox);
    let state = Arc::new(RankState::default());
    let watcher = match size {
        1 => None,
        _ => {
            let others = others_here(&fabric)?;
            let (fabric, state) = (fabric.clone(), Arc::clone(&state));
            Some(spawn("mpi watch", Box::new(move || watch(&fabric, &others, &state)))?)
        }
    };
    Ok(MpiRun { fabric, sender, receiver, watcher, state, stop, universe })
}

/// The other ranks on this machine whose processes are visible. Collective over all ranks.
fn others_here(fabric: &MessageFabric) -> Result<Vec<(usize, Process)>> {
    let (rank, world) = (fabric.rank(), fabric.world());
    let own = Process::own();
    let mine = own.map_or([0; 3], |p| [p.machine, p.number, p.began].map(|n| n as i64));
    let mine = Tensor::from_slice(&Arena::default(), [1, 3], &mine)?;
    let all = fabric.group(&(0..world).collect::<Vec<_>>())?.all_gather("processes", mine)?.wait()?;
    let all: Vec<u64> = all.ready()?.as_slice::<i64>()?.iter().map(|&n| n as u64).collect();
    let of = |r: usize| (r, Process { machine: all[3 * r], number: all[3 * r + 1], began: all[3 * r + 2] });
    let here = |process: &Process| own.is_some_and(|own| own.machine == process.machine) && process.lives();
    Ok((0..world).filter(|r| *r != rank).map(of).filter(|(_, process)| here(process)).collect())
}

/// Watches the processes of `others` that have not ended, until this rank has ended. Once one is lost, a rank that does not
/// start to end, or goes on ending, may be blocked forever inside the library, which never completes a message to a dead
/// process: this process is then terminated.
fn watch(fabric: &MessageFabric, others: &[(usize, Process)], state: &RankState) {
    let mut first_lost: Option<(usize, Instant)> = None;
    // Many processes of a machine look less often: each of them reads about all others.
    let look = LOOK * others.len().div_ceil(32).max(1) as u32;
    while !state.asleep.load(Ordering::Acquire) {
        let gone = |(rank, process): &&(usize, Process)| !fabric.has_ended(*rank) && !process.lives();
        for (rank, process) in others.iter().filter(gone) {
            let reason = format!("{process}, which it was, is gone: it may have been killed");
            if let Some(tell) = fabric.lost(*rank, &reason) {
                // Not from here: it waits while this rank is blocked. Without it, ranks of other machines hear of it from mpirun.
                let _ = std::thread::Builder::new().name("mpi tell".to_owned()).spawn(tell);
            }
        }
        if let Some(&rank) = fabric.lost_ranks().first() {
            let (rank, at) = *first_lost.get_or_insert_with(|| (rank, Instant::now()));
            // A rank that ends waits for others, whose last words may be queued behind a message to the lost one.
            let bound = if state.ending.load(Ordering::Acquire) { 2 * GRACE } else { GRACE };
            if at.elapsed() > bound {
                let (own, world) = (fabric.rank(), fabric.world());
                tracing::error!("rank {own} of {world}: rank {rank} is gone, which this one exchanges with");
                // Its own watcher sees that it is gone, too.
                std::process::exit(1);
            }
        }
        std::thread::park_timeout(look);
    }
}

/// Passes messages to the library until nobody can post another one.
fn send_all(posted: &Receiver<(usize, Vec<u8>)>, queued: &AtomicUsize) {
    let world = SimpleCommunicator::world();
    while let Ok((to, message)) = posted.recv() {
        send(&world, to, &message);
        queued.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Passes a message to the library. Its length goes first, together with a short message; a long one follows in as many parts
/// as needed.
fn send(world: &SimpleCommunicator, to: usize, message: &[u8]) {
    let process = world.process_at_rank(to as i32);
    let mut first = (message.len() as u64).to_le_bytes().to_vec();
    if message.len() <= SHORT {
        first.extend_from_slice(message);
        process.send(&first[..]);
    } else {
        process.send(&first[..]);
        message.chunks(MESSAGE_BYTES).for_each(|part| process.send(part));
    }
}

/// Receives messages until it is told to stop.
fn receive_all(incoming: &MpiIncoming, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if !incoming.take() {
            let nap = if incoming.rank_looks.swap(false, Ordering::Relaxed) { LONG_NAP } else { NAP };
            std::thread::sleep(nap);
        }
    }
}

impl MpiRun {
    /// This process's fabric.
    pub fn fabric(&self) -> &dyn Fabric {
        &self.fabric
    }

    /// This rank's number among those of its machine, and how many these are.
    pub fn place_here(&self) -> (usize, usize) {
        let here = self.universe.world().split_shared(0);
        (here.rank() as usize, here.size() as usize)
    }

    /// Ends this rank's part: tells the others, for a rank that failed with its reason, and waits until they have ended too.
    /// Ranks that do not end although this one has failed are terminated with the run.
    pub fn end(self, failure: Option<&str>) {
        let (rank, world) = (self.fabric.rank(), self.fabric.world());
        self.state.ending.store(true, Ordering::Release);
        let ended = self.fabric.end(failure, if failure.is_some() { PATIENCE } else { Duration::MAX });
        if !ended {
            tracing::error!("rank {rank} of {world}: the other ranks do not end, so this one ends the run");
            self.universe.world().abort(1);
        }
        let Self { fabric, sender, receiver, watcher, state, stop, universe } = self;
        state.asleep.store(true, Ordering::Release);
        if let Some(watcher) = watcher {
            watcher.thread().unpark();
            let _ = watcher.join();
        }
        if !fabric.lost_ranks().is_empty() {
            // Finalising the library would wait for the lost rank: this process ends without it.
            stop.store(true, Ordering::Relaxed);
            let start = Instant::now();
            while !receiver.is_finished() && start.elapsed() < MOMENT {
                std::thread::yield_now();
            }
            return std::mem::forget(universe);
        }
        drop(fabric);
        // The sender ends with the last communicator, which the caller has already dropped, and the last step of one.
        let _ = sender.join();
        stop.store(true, Ordering::Relaxed);
        let _ = receiver.join();
        drop(universe);
    }
}
