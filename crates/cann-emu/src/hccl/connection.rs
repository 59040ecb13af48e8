//! A rank's connection to the hub of its group: a local socket, or TCP if processes simulate several servers.

use crate::knobs::knobs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr as Remote, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// The address of a group's hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On this machine, by the group's name.
    Local(String),
    /// At an address.
    Tcp(Remote),
}

/// An open connection.
#[derive(Debug)]
pub enum Connection {
    Local(UnixStream),
    Tcp(TcpStream),
}

/// Accepts connections of ranks.
#[derive(Debug)]
pub enum Listener {
    Local(UnixListener),
    Tcp(TcpListener),
}

/// The host's address that other servers see.
fn host() -> IpAddr {
    let asked = std::env::var("HCCL_IF_IP").ok().and_then(|v| v.parse().ok());
    asked.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn base_port() -> Option<u16> {
    std::env::var("HCCL_IF_BASE_PORT").ok().and_then(|v| v.parse().ok())
}

impl Address {
    /// The address of a group whose name all its ranks can compute: on this machine, which stands for all servers, below the
    /// ports that the system assigns.
    pub fn of_name(name: &str) -> Address {
        if knobs().server.is_empty() {
            return Address::Local(name.to_owned());
        }
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Address::Tcp(Remote::new(Ipv4Addr::LOCALHOST.into(), 20_000 + (hash % 12_000) as u16))
    }
    /// Opens the listener.
    pub fn open(&self) -> io::Result<Listener> {
        Ok(match self {
            Address::Local(name) => {
                Listener::Local(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?)
            }
            Address::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
        })
    }
    /// A listener at any port that may be used, for groups that publish their address.
    pub fn open_any() -> io::Result<(Listener, Address)> {
        let ports = base_port().map_or(0..=0, |first| first..=first.saturating_add(15));
        let mut last = io::Error::other("no port");
        for port in ports {
            match TcpListener::bind(Remote::new(host(), port)) {
                Ok(listener) => {
                    let address = Address::Tcp(listener.local_addr()?);
                    return Ok((Listener::Tcp(listener), address));
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
    /// One attempt to connect.
    pub fn connect(&self) -> io::Result<Connection> {
        Ok(match self {
            Address::Local(name) => {
                Connection::Local(UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?)
            }
            Address::Tcp(address) => {
                let connection = TcpStream::connect_timeout(address, Duration::from_secs(5))?;
                connection.set_nodelay(true)?;
                Connection::Tcp(connection)
            }
        })
    }
}

impl Listener {
    pub fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Listener::Local(listener) => Connection::Local(listener.accept()?.0),
            Listener::Tcp(listener) => {
                let connection = listener.accept()?.0;
                connection.set_nodelay(true)?;
                Connection::Tcp(connection)
            }
        })
    }
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Listener::Local(listener) => listener.set_nonblocking(on),
            Listener::Tcp(listener) => listener.set_nonblocking(on),
        }
    }
}

impl Connection {
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Connection::Local(connection) => connection.set_read_timeout(limit),
            Connection::Tcp(connection) => connection.set_read_timeout(limit),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Local(connection) => connection.read(to),
            Connection::Tcp(connection) => connection.read(to),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Local(connection) => connection.write(from),
            Connection::Tcp(connection) => connection.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Local(connection) => connection.flush(),
            Connection::Tcp(connection) => connection.flush(),
        }
    }
}
