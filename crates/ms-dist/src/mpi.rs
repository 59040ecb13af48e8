//! Ranks that MPI starts: `mpirun -np 4 PROGRAM`.
//!
//! [`start`] begins MPI and gives the process its place. Two threads talk to the library, so that no rank ever waits to send:
//! one hands over what the rank posts, in order; the other takes whatever arrives and puts it where the rank looks for it.
//! Collectives are made of such messages (see `messages`), because the library's own form their sums in an order of their own.
//!
//! Only the safe interface of the `mpi` crate is used. Where the library itself finds an error, such as a connection that
//! breaks, it ends the whole run, as MPI has it; a rank that is killed is noticed by `mpirun`, which names it and ends the
//! others.

use crate::messages::MessageFabric;
use crate::office::{Office, Wire};
use crate::{Error, Fabric, Result};
use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::point_to_point::MatchedReceiveVec as _;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Destination as _, Source as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of one message of the library, whose counts have 31 bits.
const MESSAGE_BYTES: usize = 1 << 28;
/// Letters up to this many bytes go in the message of their length.
const SHORT: usize = 64 << 10;
/// How long the receiver looks again and again before it sleeps, and how long it sleeps then.
const EAGER: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(50);
/// How long a rank that ends waits for the others: those that failed must still say so.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be sent, in order; dropping it ends the sender.
struct Outbox(Mutex<Sender<(usize, Vec<u8>)>>);

impl Wire for Outbox {
    fn post(&self, to: usize, letter: Vec<u8>) {
        // The sender lasts until the run has ended; what is posted later nobody waits for.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send((to, letter));
    }
}

/// A process's part in a run under MPI.
pub struct MpiRun {
    fabric: MessageFabric,
    sender: JoinHandle<()>,
    receiver: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Ends the library when it is dropped, last of all.
    universe: Universe,
}

/// Begins MPI.
///
/// # Errors
/// If it has begun before, or does not allow calls from several threads.
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
    let (office, stop) = (Arc::new(Office::default()), Arc::new(AtomicBool::new(false)));
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let source =
            |e: std::io::Error| Error::Transport { what: "a thread for MPI".to_owned(), source: e.into() };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(source)
    };
    let sender = spawn("mpi send", Box::new(move || send_all(&posted)))?;
    let receiver = {
        let (office, stop) = (Arc::clone(&office), Arc::clone(&stop));
        spawn("mpi receive", Box::new(move || receive_all(&office, &stop)))?
    };
    let wire = Arc::new(Outbox(Mutex::new(outbox)));
    Ok(MpiRun { fabric: MessageFabric::new(rank, size, wire, office), sender, receiver, stop, universe })
}

/// Hands over letters until nobody can post another one. A letter's length goes before it, in one message with a short letter;
/// a long one follows in as many as it needs.
fn send_all(posted: &Receiver<(usize, Vec<u8>)>) {
    let world = SimpleCommunicator::world();
    while let Ok((to, letter)) = posted.recv() {
        let process = world.process_at_rank(to as i32);
        let mut first = (letter.len() as u64).to_le_bytes().to_vec();
        if letter.len() <= SHORT {
            first.extend_from_slice(&letter);
            process.send(&first[..]);
        } else {
            process.send(&first[..]);
            letter.chunks(MESSAGE_BYTES).for_each(|part| process.send(part));
        }
    }
}

/// Takes what arrives until it is told to stop.
fn receive_all(office: &Office, stop: &AtomicBool) {
    let world = SimpleCommunicator::world();
    let mut idle = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Some(arrived) = world.any_process().immediate_matched_probe() else {
            if idle.elapsed() > EAGER {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
            continue;
        };
        let (mut letter, status) = arrived.matched_receive_vec::<u8>();
        let from = status.source_rank();
        let process = world.process_at_rank(from);
        let bytes = letter.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize);
        letter.drain(..letter.len().min(8));
        while letter.len() < bytes {
            let (part, _) = process.matched_probe().matched_receive_vec::<u8>();
            if letter.is_empty() {
                letter = part;
                letter.reserve_exact(bytes.saturating_sub(letter.len()));
            } else {
                letter.extend_from_slice(&part);
            }
        }
        office.deliver(from as usize, &letter);
        idle = Instant::now();
    }
}

impl MpiRun {
    /// This process's place.
    pub fn fabric(&self) -> &dyn Fabric {
        &self.fabric
    }

    /// Ranks of this machine, this one among them.
    pub fn ranks_here(&self) -> usize {
        self.universe.world().split_shared(0).size() as usize
    }

    /// Ends this rank's part: tells the others, for a rank that failed with its reason, and waits until they have ended too.
    /// Ranks that do not end though this one has failed are ended with the run.
    pub fn end(self, failure: Option<&str>) {
        let (rank, world) = (self.fabric.rank(), self.fabric.world());
        let ended = self.fabric.end(failure, if failure.is_some() { PATIENCE } else { Duration::MAX });
        if !ended {
            tracing::error!("rank {rank} of {world}: the other ranks do not end, so this one ends the run");
            self.universe.world().abort(1);
        }
        let Self { fabric, sender, receiver, stop, universe } = self;
        drop(fabric);
        // The sender ends with the last communicator, which the caller has dropped before.
        let _ = sender.join();
        stop.store(true, Ordering::Relaxed);
        let _ = receiver.join();
        drop(universe);
    }
}
