//! Rendezvous: where ranks exchange the few kilobytes by which they find each other (a root's information) and news of a
//! failure.
//!
//! Data never goes this way. Ranks started by MPI meet over MPI: [`Over`] takes its communicator of all ranks.

use crate::{Error, Result};
use ms_core::{Arena, DType, Tensor};
use ms_dist::Communicator;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a key that is not there yet is looked for.
const POLL: Duration = Duration::from_millis(5);

/// A table of bytes that all ranks of a run see.
pub trait Rendezvous: Send + Sync {
    /// Puts `value` under `key`, once.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;

    /// What is under `key`, if anything is.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn peek(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Waits until something is under `key`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when nothing was put there within `timeout`.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            if let Some(value) = self.peek(key)? {
                return Ok(value);
            }
            if start.elapsed() > timeout {
                return Err(Error::Rendezvous(format!("nobody put {key} within {} s", timeout.as_secs())));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Hands the first rank's bytes to all ranks of `what`: by way of the table, unless there is a better one.
    ///
    /// # Errors
    /// As [`Rendezvous::put`] and [`Rendezvous::get`].
    fn share(&self, what: Shared<'_>, timeout: Duration) -> Result<Vec<u8>> {
        match what.value {
            Some(value) => self.put(what.key, value).map(|()| value.to_vec()),
            None => self.get(what.key, timeout),
        }
    }
}

/// What the first of some ranks has for the others of them.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// Names it.
    pub key: &'a str,
    /// The participants.
    pub ranks: &'a [usize],
    /// It, on the first of these ranks.
    pub value: Option<&'a [u8]>,
}

/// For ranks that are threads of one process.
#[derive(Debug, Default)]
pub struct InProcess(Mutex<HashMap<String, Vec<u8>>>);

impl Rendezvous for InProcess {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn peek(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }
}

/// A folder that all ranks see, new for each run.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(path: &Path) -> Result<Folder> {
        std::fs::create_dir_all(path)
            .map_err(|error| Error::Io { what: format!("create {}", path.display()), error })?;
        Ok(Folder(path.to_owned()))
    }

    fn file(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "_"))
    }
}

impl Rendezvous for Folder {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let to = self.file(key);
        let part = to.with_extension(format!("{}.part", std::process::id()));
        // No use of the crate that writes outputs: ranks meet once, so nothing has to be on the disk.
        let write = std::fs::write(&part, value).and_then(|()| std::fs::rename(&part, &to));
        write.map_err(|error| Error::Io { what: format!("write {}", to.display()), error })
    }

    fn peek(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let file = self.file(key);
        match std::fs::read(&file) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::Io { what: format!("read {}", file.display()), error }),
        }
    }
}

/// The store that `torchrun` keeps at `MASTER_ADDR:MASTER_PORT` for the processes that it starts, spoken to by its own
/// protocol: a byte for the request, then words of 64 bits in the machine's order before each text.
#[derive(Debug)]
pub struct TorchStore {
    /// `None` once an answer was cut off: the rest of it would be mistaken for another's.
    stream: Mutex<Option<TcpStream>>,
    prefix: String,
}

/// Requests of the store's protocol.
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const MAGIC: u32 = 0x3c85_f7ce;
/// The store's answer that all keys of a request are there.
const READY: u8 = 0;
/// More bytes than any value of ours has.
const LONGEST: u64 = 1 << 20;

impl TorchStore {
    /// Connects to `host:port`, waiting up to `timeout` for it to be there. Keys are placed under `prefix`, so that several
    /// runs on one store, as after a restart, do not interfere.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if nothing answers there.
    pub fn connect(host: &str, port: u16, prefix: &str, timeout: Duration) -> Result<TorchStore> {
        let start = Instant::now();
        let attempt = || {
            // A host that does not answer at all is waited for no longer than one that refuses.
            let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(10));
            let mut last = std::io::Error::other("the name has no address");
            for address in (host, port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, left) {
                    Ok(stream) => return Ok(stream),
                    Err(e) => last = e,
                }
            }
            Err(last)
        };
        let mut stream = loop {
            match attempt() {
                Ok(stream) => break stream,
                Err(e) if start.elapsed() > timeout => {
                    return Err(Error::Rendezvous(format!("no store at {host}:{port}: {e}")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100).min(timeout)),
            }
        };
        let greet = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(timeout.max(Duration::from_secs(1)))))
            .and_then(|()| stream.write_all(&[&[VALIDATE][..], &MAGIC.to_ne_bytes()].concat()));
        greet.map_err(|error| Error::Io { what: format!("greet the store at {host}:{port}"), error })?;
        Ok(TorchStore { stream: Mutex::new(Some(stream)), prefix: format!("/{prefix}/") })
    }

    fn text(&self, key: &str) -> Vec<u8> {
        let key = format!("{}{key}", self.prefix);
        [&(key.len() as u64).to_ne_bytes()[..], key.as_bytes()].concat()
    }

    fn talk<T>(&self, f: impl FnOnce(&mut TcpStream) -> std::io::Result<T>) -> Result<T> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match stream.as_mut() {
            Some(stream) => f(stream),
            None => Err(std::io::Error::other("the connection was lost before")),
        };
        if found.is_err() {
            *stream = None;
        }
        found.map_err(|error| Error::Io { what: "talk to the store of torchrun".to_owned(), error })
    }
}

impl Rendezvous for TorchStore {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = self.text(key);
        self.talk(|s| s.write_all(&[&[SET][..], &key, &(value.len() as u64).to_ne_bytes(), value].concat()))
    }

    fn peek(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = self.text(key);
        self.talk(|s| {
            s.write_all(&[&[CHECK][..], &1u64.to_ne_bytes(), &key].concat())?;
            let mut answer = [0u8];
            s.read_exact(&mut answer)?;
            if answer[0] != READY {
                return Ok(None);
            }
            s.write_all(&[&[GET][..], &key].concat())?;
            let mut length = [0u8; 8];
            s.read_exact(&mut length)?;
            let length = u64::from_ne_bytes(length);
            if length > LONGEST {
                let text = format!("a value of {length} bytes; expected at most {LONGEST}");
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
            }
            let mut value = vec![0; length as usize];
            s.read_exact(&mut value)?;
            Ok(Some(value))
        })
    }
}

/// Ranks that a communicator joins already, such as MPI's of all ranks: a root's information is a message to each other rank
/// of its group. There is no table: nobody learns of a failure here, only by what the communicator itself tells, and a wait is
/// as long as the communicator's own.
#[derive(Clone)]
pub struct Over(Arc<dyn Communicator>);

impl std::fmt::Debug for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Over(rank {} of {})", self.0.rank(), self.0.size())
    }
}

impl Over {
    /// `all`: of every rank of the run, in their order.
    pub fn new(all: Arc<dyn Communicator>) -> Over {
        Over(all)
    }
}

/// FNV-1a: messages for different groups do not mix.
fn tag(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn told(key: &str, e: impl std::fmt::Display) -> Error {
    Error::Rendezvous(format!("{key} over the ranks' communicator: {e}"))
}

impl Rendezvous for Over {
    fn put(&self, key: &str, _value: &[u8]) -> Result<()> {
        Err(told(key, "it has no table; expected a message between ranks"))
    }

    fn peek(&self, _key: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn share(&self, what: Shared<'_>, _timeout: Duration) -> Result<Vec<u8>> {
        const NAME: &str = "a root's information";
        let Some(value) = what.value else {
            let root = what.ranks.first().copied().unwrap_or(0);
            let got =
                self.0.recv(NAME, root, tag(what.key), &Arena::default()).and_then(ms_dist::Pending::wait);
            return Ok(got.map_err(|e| told(what.key, e))?.bytes().to_vec());
        };
        for rank in &what.ranks[1..] {
            let mut t = Tensor::uninit(&Arena::default(), DType::U8, [value.len()]);
            t.bytes_mut().map_err(|e| told(what.key, e))?.copy_from_slice(value);
            self.0.send(NAME, t, *rank, tag(what.key)).map_err(|e| told(what.key, e))?;
        }
        Ok(value.to_vec())
    }
}
