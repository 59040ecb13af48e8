//! Collectives: a communicator is a connection to the hub of its group, a thread in the process that made the root info.

pub mod acceptor;
pub mod connection;
pub mod hub;
pub mod wire;

use crate::handles::Handled;
use crate::knobs::knobs;
use crate::report::{self, fail, violation};
use acceptor::{Acceptor, Joined};
use connection::{Address, Connection};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::{Reply, Request};

/// A rank's end of a group.
#[derive(Debug)]
pub struct Comm {
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// The device that it was made for.
    pub device: u32,
    /// The group's name, equal on all ranks.
    pub name: String,
    /// Bytes taken from the device.
    pub charged: i64,
    /// Whether it is a part of another.
    pub sub: bool,
    /// Whether its configuration asks for sums in the ranks' own order.
    pub fixed: bool,
    /// Whether its end was asked for before.
    pub asked: AtomicBool,
    stream: Mutex<Connection>,
    /// The last asynchronous error.
    pub error: AtomicI32,
    /// What it has been used for: [`PLAIN`], [`FUSED`] or [`ROUTES`].
    used: AtomicU8,
}

/// Not yet used, or by collectives.
const PLAIN: u8 = 0;
/// By operators fused with communication, too.
const FUSED: u8 = 1;
/// By tokens on their way to experts.
const ROUTES: u8 = 2;
/// By collectives or fused operators: no longer free for tokens.
const TAKEN: u8 = 4;
impl Handled for Comm {
    const NAME: &'static str = "HcclComm";
}

/// For how long a name stands for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// One world, ever: a root info. Whoever comes when all ranks are there is refused, as long as the process lives.
    Once,
    /// Until all ranks have come; then it may be made again.
    Again,
}

/// A group of this name that others can find: the acceptor, and where it is.
///
/// # Errors
/// If its listener cannot be opened.
pub fn open(name: &str) -> std::io::Result<(Acceptor, Receiver<Joined>, Address)> {
    if !knobs().server.is_empty() {
        return Acceptor::shared(name);
    }
    let place = Address::Local(name.to_owned());
    let (acceptor, ranks) = Acceptor::of_listener(place.open()?, name)?;
    Ok((acceptor, ranks, place))
}

/// Runs the hub of a group until its last rank has gone.
///
/// # Errors
/// If there is no thread for it.
pub fn listen(
    (acceptor, ranks): (Acceptor, Receiver<Joined>),
    name: &str,
    valid: Name,
) -> std::io::Result<()> {
    let group = name.to_owned();
    std::thread::Builder::new().name("emu-hccl-hub".to_owned()).spawn(move || {
        // Ranks that wait give up before the hub does.
        let limit = Duration::from_secs_f64(connect_timeout() + 1.0);
        let (joined, why) = hub::gather(&|end| acceptor::next(&ranks, end), limit);
        match valid {
            Name::Again => acceptor.close(),
            Name::Once => {
                let used = || "the group has had its ranks: its root info was used before".to_owned();
                acceptor.refuse(&why.unwrap_or_else(used), &ranks);
            }
        }
        // Who was accepted too late sees the end of the connection.
        drop(ranks);
        hub::serve(joined, &group);
    })?;
    Ok(())
}

/// Seconds that a rank waits for the root and for the others when a group is made.
fn connect_timeout() -> f64 {
    std::env::var("HCCL_CONNECT_TIMEOUT").ok().and_then(|v| v.parse().ok()).unwrap_or(120.0)
}

/// Joins the group that meets at a place.
///
/// # Errors
/// `HCCL_E_TIMEOUT` when there is no hub or not all ranks come, `HCCL_E_PARA` when ranks disagree.
pub fn join(
    (met, place): (&str, &Address),
    size: u32,
    rank: u32,
    device: u32,
    charged: i64,
    (sub, fixed): (bool, bool),
    group: &str,
) -> Result<Comm, i32> {
    let limit = connect_timeout();
    let end = Instant::now() + Duration::from_secs_f64(limit);
    let mut stream = loop {
        match place.connect() {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => {
                return Err(fail(9, &format!("rank {rank}: no answer from the root within {limit} s: {e}")));
            }
        }
    };
    let hello = Request::hello(met, size, rank, device);
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let waited = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            fail(9, &format!("rank {rank}: not all of {size} ranks came within {limit} s"))
        }
        _ => fail(9, &format!("rank {rank}: the root closed the connection: {e}")),
    };
    let reply = stream
        .set_read_timeout(Some(left))
        .and_then(|()| hello.write(&mut stream))
        .and_then(|()| Reply::read(&mut stream))
        .map_err(waited)?;
    stream.set_read_timeout(None).map_err(|e| fail(4, &format!("rank {rank}: {e}")))?;
    if reply.status != 0 {
        let message = format!("rank {rank} of {size}: {}", reply.text);
        violation(&report::COMM_ROOT_INFO, reply.status, &message);
        return Err(reply.status);
    }
    Ok(Comm {
        rank,
        size,
        device,
        name: group.to_owned(),
        charged,
        sub,
        fixed,
        asked: AtomicBool::new(false),
        stream: Mutex::new(stream),
        error: AtomicI32::new(0),
        used: AtomicU8::new(PLAIN),
    })
}

/// What an operator does with a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It calculates and communicates at once.
    Fused,
    /// It brings tokens to experts or back.
    Routes,
    /// Both may go on beside it.
    Any,
}

/// The communicator of a device by the name that `HcclGetCommName` gives.
pub fn named(name: &str, device: u32) -> Option<Arc<Comm>> {
    crate::handles::find::<Comm>(|comm| comm.name == name && comm.device == device)
}

impl Comm {
    /// Whether sums have the ranks' own order: by the communicator's configuration, `HcclSetConfig`, the variable
    /// `HCCL_DETERMINISTIC`, or the runtime's option.
    pub fn is_deterministic(&self) -> bool {
        self.is_deterministic_by_hccl() || crate::api::error::is_deterministic()
    }

    /// As [`Comm::is_deterministic`], but for the runtime's option: operators fused with an all-reduce do not look at it.
    pub fn is_deterministic_by_hccl(&self) -> bool {
        let asked = || std::env::var("HCCL_DETERMINISTIC").unwrap_or_default().to_lowercase();
        self.fixed
            || crate::api::hccl::is_deterministic()
            || matches!(asked().as_str(), "true" | "strict" | "1")
    }

    /// An operator is about to use the communicator.
    ///
    /// # Errors
    /// The code of a violation: another user of a communicator of tokens, or a second communicator of fused operators on A2.
    pub fn claim(&self, call: &str, of: Use) -> Result<(), i32> {
        if of == Use::Any {
            return Ok(());
        }
        self.used_by(call, of == Use::Routes)?;
        let again = || self.used.fetch_or(FUSED, Ordering::Relaxed) & FUSED != 0;
        if of == Use::Routes || again() || crate::knobs::chip() != "A2" {
            return Ok(());
        }
        let other = |c: &Comm| {
            c.device == self.device && c.name != self.name && c.used.load(Ordering::Relaxed) & FUSED != 0
        };
        let Some(other) = crate::handles::find::<Comm>(other) else { return Ok(()) };
        let message = format!("{call}: {} is used, and {} was before", self.name, other.name);
        match violation(&report::COMM_ONE, 161_002, &message) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// A call uses the communicator; tokens on their way to experts share it with nothing else.
    ///
    /// # Errors
    /// The code of a violation.
    pub fn used_by(&self, call: &str, routes: bool) -> Result<(), i32> {
        let (mine, others) = if routes { (ROUTES, TAKEN) } else { (TAKEN, ROUTES) };
        if self.used.fetch_or(mine, Ordering::Relaxed) & others == 0 {
            return Ok(());
        }
        let message = if routes {
            format!("{call}: {} has been used by another operator", self.name)
        } else {
            format!("{call}: tokens go to experts by {}", self.name)
        };
        match violation(&report::COMM_ROUTE, 1, &message) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Sends a request and waits for what the group makes of it; runs in a stream.
    ///
    /// # Errors
    /// 107020 for a time-out, a mismatch or a dead rank.
    pub fn exchange(&self, request: &Request, what: &str) -> Result<Reply, i32> {
        if report::fault_of_rank("timeout", what, self.rank) {
            std::thread::sleep(Duration::from_secs_f64(knobs().hccl_timeout_s + 0.5));
        }
        if ["step", what].iter().any(|site| report::fault_of_rank("kill", site, self.rank)) {
            std::process::exit(137);
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = request.write(&mut *stream).and_then(|()| Reply::read(&mut *stream));
        let (status, text) = match reply {
            Ok(reply) if reply.status == 0 => return Ok(reply),
            Ok(reply) => (reply.status, reply.text),
            Err(e) => (21, format!("the group's root is gone: {e}")),
        };
        self.error.store(status, Ordering::Relaxed);
        let rule = match status {
            1 => &report::COMM_MISMATCH,
            4 => &report::COMM_DEADLOCK,
            _ => &report::COMM_TIMEOUT,
        };
        let message = format!("{what} on rank {} of {} in {}: {text}", self.rank, self.size, self.name);
        if status == 1 || status == 4 {
            violation(rule, 107_020, &message);
        } else {
            report::note(rule, &message);
        }
        Err(fail(107_020, &message))
    }
}
