//! Accepts the ranks of a group: a connection has to name its rank and group within a time limit, or is closed.
//!
//! A group has a listener of its own, or shares the one listener of its process (root infos over TCP: a process may make more
//! groups than it has ports).

use super::connection::{Address, Connection, Listener};
use super::wire::{Kind, Reply, Request};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An accepted rank: its connection, and the request that names its rank and group.
pub type Joined = (Connection, Request);

/// How long a new connection has to name its rank and group, in all.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

enum State {
    Open(Sender<Joined>),
    Refused(String),
    Closed,
}

/// Accepts the ranks of one group.
#[derive(Clone)]
pub struct Acceptor {
    name: String,
    state: Arc<Mutex<State>>,
}

static SHARED: Mutex<Option<(Address, Arc<Mutex<Groups>>)>> = Mutex::new(None);
type Groups = HashMap<String, Acceptor>;

/// The one listener of this process: its address, and the groups that share it.
fn shared() -> io::Result<(Address, Arc<Mutex<Groups>>)> {
    let mut guard = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = &*guard {
        return Ok(found.clone());
    }
    let (listener, address) = Address::open_any()?;
    let groups = Arc::new(Mutex::new(Groups::new()));
    let known = Arc::clone(&groups);
    spawn("emu-hccl-accept", move || {
        while let Ok(connection) = listener.accept() {
            let known = Arc::clone(&known);
            let _ = spawn("emu-hccl-hello", move || {
                admit(connection, |name| {
                    known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
                })
            });
        }
    })?;
    *guard = Some((address.clone(), Arc::clone(&groups)));
    Ok((address, groups))
}

fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(f).map(drop)
}

impl Acceptor {
    fn new(name: &str) -> (Self, Receiver<Joined>) {
        let (sender, receiver) = channel();
        (Self { name: name.to_owned(), state: Arc::new(Mutex::new(State::Open(sender))) }, receiver)
    }

    /// Of a group with a listener of its own.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn of_listener(listener: Listener, name: &str) -> io::Result<(Self, Receiver<Joined>)> {
        let (acceptor, receiver) = Self::new(name);
        let own = acceptor.clone();
        spawn("emu-hccl-accept", move || {
            loop {
                // While the group gathers its end must be seen; later connections are waited for without polling.
                let gathers = match &*own.lock() {
                    State::Open(_) => true,
                    State::Refused(_) => false,
                    State::Closed => return,
                };
                if listener.set_nonblocking(gathers).is_err() {
                    return;
                }
                match listener.accept() {
                    Ok(connection) => {
                        let own = own.clone();
                        let _ = spawn("emu-hccl-hello", move || {
                            admit(connection, |name| (name == own.name).then(|| own.clone()))
                        });
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return,
                }
            }
        })?;
        Ok((acceptor, receiver))
    }

    /// Of a group that shares the one listener of this process, with its address.
    ///
    /// # Errors
    /// If the listener cannot be opened.
    pub fn shared(name: &str) -> io::Result<(Self, Receiver<Joined>, Address)> {
        let (address, groups) = shared()?;
        let (acceptor, receiver) = Self::new(name);
        groups.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), acceptor.clone());
        Ok((acceptor, receiver, address))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on every rank that connects is told why it is refused, as are those that were accepted and not taken in.
    pub fn refuse(&self, why: &str, accepted: &Receiver<Joined>) {
        *self.lock() = State::Refused(why.to_owned());
        for (mut connection, _) in accepted.try_iter() {
            let _ = Reply::error(1, why).write(&mut connection);
        }
    }

    /// Stops accepting.
    pub fn close(&self) {
        *self.lock() = State::Closed;
    }
}

/// The next rank that is accepted, before `end`.
pub(super) fn next(receiver: &Receiver<Joined>, end: Option<Instant>) -> Option<Joined> {
    match end {
        None => receiver.recv().ok(),
        Some(end) => receiver.recv_timeout(end.saturating_duration_since(Instant::now())).ok(),
    }
}

/// Reads within a limit that holds for all of it.
struct Limited<'a>(&'a mut Connection, Instant);

impl io::Read for Limited<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(to)
    }
}

/// Hands a new connection to the acceptor of the group that it names.
fn admit(mut connection: Connection, acceptor: impl FnOnce(&str) -> Option<Acceptor>) {
    let hello = Request::read(&mut Limited(&mut connection, Instant::now() + HELLO_LIMIT));
    // A connection that sends nothing, or something else, is no rank.
    let Some(hello) = hello.ok().filter(|h| h.kind == Kind::Hello) else { return };
    let Some(acceptor) = acceptor(&hello.call) else {
        let _ = Reply::error(1, &format!("there is no group {} here", hello.call)).write(&mut connection);
        return;
    };
    if connection.set_read_timeout(None).is_err() {
        return;
    }
    let why = match &*acceptor.lock() {
        State::Open(sender) => {
            // The receiver is gone: the group is complete.
            let _ = sender.send((connection, hello));
            return;
        }
        State::Refused(why) => why.clone(),
        State::Closed => return,
    };
    let _ = Reply::error(1, &why).write(&mut connection);
}
