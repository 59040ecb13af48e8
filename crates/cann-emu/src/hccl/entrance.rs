//! Accepts the ranks of a group: a connection has to name its rank and group within a time limit, or is closed.
//!
//! A group has a listener of its own, or shares the one listener of its process (root infos over TCP: a process may make more
//! groups than it has ports).

use super::line::{Door, Line, Place};
use super::wire::{Kind, Reply, Request};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rank that has introduced itself.
pub type Joined = (Line, Request);

/// How long what connects has to introduce itself, in all.
const PATIENCE: Duration = Duration::from_secs(5);

enum State {
    Open(Sender<Joined>),
    Refused(String),
    Closed,
}

/// A group's entrance.
#[derive(Clone)]
pub struct Entrance {
    name: String,
    state: Arc<Mutex<State>>,
}

static SHARED: Mutex<Option<(Place, Arc<Mutex<Groups>>)>> = Mutex::new(None);
type Groups = HashMap<String, Entrance>;

/// The one door of this process: where it is, and the groups behind it.
fn shared() -> io::Result<(Place, Arc<Mutex<Groups>>)> {
    let mut guard = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = &*guard {
        return Ok(found.clone());
    }
    let (door, place) = Place::open_any()?;
    let groups = Arc::new(Mutex::new(Groups::new()));
    let known = Arc::clone(&groups);
    spawn("emu-hccl-door", move || {
        while let Ok(line) = door.accept() {
            let known = Arc::clone(&known);
            let _ = spawn("emu-hccl-hello", move || {
                admit(line, |name| known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
            });
        }
    })?;
    *guard = Some((place.clone(), Arc::clone(&groups)));
    Ok((place, groups))
}

fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(f).map(drop)
}

impl Entrance {
    fn new(name: &str) -> (Self, Receiver<Joined>) {
        let (sender, receiver) = channel();
        (Self { name: name.to_owned(), state: Arc::new(Mutex::new(State::Open(sender))) }, receiver)
    }

    /// Of a group with a door of its own.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn behind(door: Door, name: &str) -> io::Result<(Self, Receiver<Joined>)> {
        let (entrance, receiver) = Self::new(name);
        let own = entrance.clone();
        spawn("emu-hccl-door", move || {
            loop {
                // While the group gathers its end must be seen; who comes later is waited for asleep.
                let gathers = match &*own.lock() {
                    State::Open(_) => true,
                    State::Refused(_) => false,
                    State::Closed => return,
                };
                if door.set_nonblocking(gathers).is_err() {
                    return;
                }
                match door.accept() {
                    Ok(line) => {
                        let own = own.clone();
                        let _ = spawn("emu-hccl-hello", move || {
                            admit(line, |name| (name == own.name).then(|| own.clone()))
                        });
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return,
                }
            }
        })?;
        Ok((entrance, receiver))
    }

    /// Of a group behind the one door of this process, and where that is.
    ///
    /// # Errors
    /// If the door cannot be opened.
    pub fn shared(name: &str) -> io::Result<(Self, Receiver<Joined>, Place)> {
        let (place, groups) = shared()?;
        let (entrance, receiver) = Self::new(name);
        groups.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), entrance.clone());
        Ok((entrance, receiver, place))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on everyone who comes is told why there is no place.
    pub fn refuse(&self, why: &str) {
        *self.lock() = State::Refused(why.to_owned());
    }

    /// The door is taken away.
    pub fn close(&self) {
        *self.lock() = State::Closed;
    }
}

/// The next rank of an entrance, before `end`.
pub(super) fn next(receiver: &Receiver<Joined>, end: Option<Instant>) -> Option<Joined> {
    match end {
        None => receiver.recv().ok(),
        Some(end) => receiver.recv_timeout(end.saturating_duration_since(Instant::now())).ok(),
    }
}

/// Reads within a limit that holds for all of it.
struct Hasty<'a>(&'a mut Line, Instant);

impl io::Read for Hasty<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(to)
    }
}

/// What has connected introduces itself, to the entrance of the group that it names.
fn admit(mut line: Line, entrance: impl FnOnce(&str) -> Option<Entrance>) {
    let hello = Request::read(&mut Hasty(&mut line, Instant::now() + PATIENCE));
    // What says nothing, or something else, is no rank.
    let Some(hello) = hello.ok().filter(|h| h.kind == Kind::Hello) else { return };
    let Some(entrance) = entrance(&hello.call) else {
        let _ = Reply::error(1, &format!("there is no group {} here", hello.call)).write(&mut line);
        return;
    };
    if line.set_read_timeout(None).is_err() {
        return;
    }
    let why = match &*entrance.lock() {
        State::Open(sender) => {
            // Nobody listens any more: the group has its ranks.
            let _ = sender.send((line, hello));
            return;
        }
        State::Refused(why) => why.clone(),
        State::Closed => return,
    };
    let _ = Reply::error(1, &why).write(&mut line);
}
