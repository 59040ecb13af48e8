//! Collectives: a communicator is a connection to the hub of its group, a thread in the process that made the root info.

pub mod hub;
pub mod wire;

use crate::handles::Handled;
use crate::knobs::knobs;
use crate::report::{self, fail, violation};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
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
    stream: Mutex<UnixStream>,
    /// The last asynchronous error.
    pub error: AtomicI32,
}
impl Handled for Comm {
    const NAME: &'static str = "HcclComm";
}

/// Listens under a name; the hub runs until its last rank has gone.
pub fn listen(name: &str) -> std::io::Result<()> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    let group = name.to_owned();
    std::thread::Builder::new()
        .name("emu-hccl-hub".to_owned())
        .spawn(move || hub::serve(&listener, &group))?;
    Ok(())
}

/// Joins the group under a name.
///
/// # Errors
/// `HCCL_E_TIMEOUT` when there is no hub or not all ranks come, `HCCL_E_PARA` when ranks disagree.
pub fn join(
    name: &str,
    size: u32,
    rank: u32,
    device: u32,
    charged: i64,
    sub: bool,
    group: &str,
) -> Result<Comm, i32> {
    let limit = std::env::var("HCCL_CONNECT_TIMEOUT").ok().and_then(|v| v.parse().ok()).unwrap_or(120.0);
    let end = Instant::now() + Duration::from_secs_f64(limit);
    let address =
        SocketAddr::from_abstract_name(name).map_err(|e| fail(1, &format!("the group's address: {e}")))?;
    let mut stream = loop {
        match UnixStream::connect_addr(&address) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => {
                return Err(fail(9, &format!("rank {rank}: no answer from the root within {limit} s: {e}")));
            }
        }
    };
    let hello = Request::hello(size, rank, device);
    hello.write(&mut stream).map_err(|e| fail(9, &format!("rank {rank}: {e}")))?;
    let reply = Reply::read(&mut stream)
        .map_err(|e| fail(9, &format!("rank {rank}: the root closed the connection: {e}")))?;
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
        stream: Mutex::new(stream),
        error: AtomicI32::new(0),
    })
}

impl Comm {
    /// Sends a request and waits for what the group makes of it; runs in a stream.
    ///
    /// # Errors
    /// 107020 for a time-out, a mismatch or a dead rank.
    pub fn exchange(&self, request: &Request, what: &str) -> Result<Reply, i32> {
        if let Some(argument) = report::fault("timeout", what)
            && (argument.is_empty() || argument == format!("rank{}", self.rank))
        {
            std::thread::sleep(Duration::from_secs_f64(knobs().hccl_timeout_s + 0.5));
        }
        if report::fault(&format!("kill:rank{}", self.rank), what).is_some() {
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
