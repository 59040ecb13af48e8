//! A rank's connection to the hub of its group: a local socket, or TCP if processes simulate several servers.

use crate::knobs::knobs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr as Remote, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Where a group meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this machine, by the group's name.
    Here(String),
    /// At an address.
    At(Remote),
}

/// An open line.
#[derive(Debug)]
pub enum Line {
    Here(UnixStream),
    At(TcpStream),
}

/// Where ranks come in.
#[derive(Debug)]
pub enum Door {
    Here(UnixListener),
    At(TcpListener),
}

/// The host's address that other servers see.
fn host() -> IpAddr {
    let asked = std::env::var("HCCL_IF_IP").ok().and_then(|v| v.parse().ok());
    asked.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn base_port() -> Option<u16> {
    std::env::var("HCCL_IF_BASE_PORT").ok().and_then(|v| v.parse().ok())
}

impl Place {
    /// Where a group meets whose name all its ranks can tell: on this machine, which all servers are, below the ports that a
    /// system gives away.
    pub fn of_name(name: &str) -> Place {
        if knobs().server.is_empty() {
            return Place::Here(name.to_owned());
        }
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Place::At(Remote::new(Ipv4Addr::LOCALHOST.into(), 20_000 + (hash % 12_000) as u16))
    }
    /// Opens the door, and says where it is when any will do.
    pub fn open(&self) -> io::Result<Door> {
        Ok(match self {
            Place::Here(name) => Door::Here(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?),
            Place::At(address) => Door::At(TcpListener::bind(address)?),
        })
    }
    /// A door at any port that may be used, for groups that say themselves where they are.
    pub fn open_any() -> io::Result<(Door, Place)> {
        let ports = base_port().map_or(0..=0, |first| first..=first.saturating_add(15));
        let mut last = io::Error::other("no port");
        for port in ports {
            match TcpListener::bind(Remote::new(host(), port)) {
                Ok(door) => {
                    let place = Place::At(door.local_addr()?);
                    return Ok((Door::At(door), place));
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
    /// One attempt to get in.
    pub fn connect(&self) -> io::Result<Line> {
        Ok(match self {
            Place::Here(name) => {
                Line::Here(UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?)
            }
            Place::At(address) => {
                let line = TcpStream::connect_timeout(address, Duration::from_secs(5))?;
                line.set_nodelay(true)?;
                Line::At(line)
            }
        })
    }
}

impl Door {
    pub fn accept(&self) -> io::Result<Line> {
        Ok(match self {
            Door::Here(door) => Line::Here(door.accept()?.0),
            Door::At(door) => {
                let line = door.accept()?.0;
                line.set_nodelay(true)?;
                Line::At(line)
            }
        })
    }
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Door::Here(door) => door.set_nonblocking(on),
            Door::At(door) => door.set_nonblocking(on),
        }
    }
}

impl Line {
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Line::Here(line) => line.set_read_timeout(limit),
            Line::At(line) => line.set_read_timeout(limit),
        }
    }
}

impl Read for Line {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Line::Here(line) => line.read(to),
            Line::At(line) => line.read(to),
        }
    }
}

impl Write for Line {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Line::Here(line) => line.write(from),
            Line::At(line) => line.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Line::Here(line) => line.flush(),
            Line::At(line) => line.flush(),
        }
    }
}
