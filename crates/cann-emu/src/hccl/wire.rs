//! Messages between a rank and its group's hub.

use std::io::{self, Read, Write};

/// What a rank asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Joins the group named `call`: `count` is the number of ranks, `root` the rank, `dtype` the device, `payload` its server.
    Hello,
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Scatter,
    AllToAll,
    Barrier,
    /// Sends and receives together: `pieces` names them.
    Exchange,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::AllReduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::Scatter,
    Kind::AllToAll,
    Kind::Barrier,
    Kind::Exchange,
];

/// A rank's part in an operation.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    /// The function that was called.
    pub call: String,
    /// The order of sums must be the ranks' own.
    pub fixed: bool,
    /// Elements, as all ranks must say alike.
    pub count: u64,
    pub dtype: i32,
    pub op: i32,
    pub root: u32,
    /// Bytes for each rank, or for exchanges four numbers each: 0 send or 1 receive, peer, bytes, type.
    pub pieces: Vec<u64>,
    /// Bytes that this rank has room for from each rank; none: those that come.
    pub expected: Vec<u64>,
    pub payload: Vec<u8>,
}

/// What the group made of it.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// A number of `HcclResult`.
    pub status: i32,
    pub text: String,
    /// Bytes from each rank or of each receive.
    pub pieces: Vec<u64>,
    pub payload: Vec<u8>,
}

fn put(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn get(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Memory grows with the bytes that come, not with the number that was said.
fn get_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let n = get(from)?;
    let mut bytes = Vec::new();
    match from.take(n).read_to_end(&mut bytes)? as u64 == n {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn get_list(from: &mut impl Read) -> io::Result<Vec<u64>> {
    let n = get(from)?;
    (0..n).map(|_| get(from)).collect()
}

impl Request {
    /// A part in an operation on `count` elements, which sends nothing yet.
    pub fn of(kind: Kind, count: u64, dtype: i32) -> Request {
        Request {
            kind,
            call: String::new(),
            fixed: false,
            count,
            dtype,
            op: 0,
            root: 0,
            pieces: Vec::new(),
            expected: Vec::new(),
            payload: Vec::new(),
        }
    }
    /// The first message of a rank: its number and its group.
    pub fn hello(group: &str, size: u32, rank: u32, device: u32) -> Request {
        Request {
            call: group.to_owned(),
            root: rank,
            payload: crate::knobs::knobs().server.clone().into_bytes(),
            ..Request::of(Kind::Hello, u64::from(size), device as i32)
        }
    }
    /// What must agree among ranks, for messages.
    pub fn describe(&self) -> String {
        let call = if self.call.is_empty() { format!("{:?}", self.kind) } else { self.call.clone() };
        if self.kind == Kind::Exchange {
            let one = |p: &[u64]| {
                let verb = if p[0] == 0 { "sends to" } else { "receives from" };
                format!("{verb} rank {} {} bytes of type {}", p[1], p[2], p[3])
            };
            return format!(
                "{call}, which {}",
                self.pieces.chunks_exact(4).map(one).collect::<Vec<_>>().join(", ")
            );
        }
        format!(
            "{call} of {} elements of type {}, operation {}, root {}",
            self.count, self.dtype, self.op, self.root
        )
    }
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut out = Vec::with_capacity(64 + self.payload.len());
        for v in [
            self.kind as u64,
            self.count,
            self.dtype as u32 as u64,
            self.op as u32 as u64,
            u64::from(self.root),
            u64::from(self.fixed),
        ] {
            put(&mut out, v);
        }
        put(&mut out, self.call.len() as u64);
        out.extend_from_slice(self.call.as_bytes());
        put(&mut out, self.pieces.len() as u64);
        self.pieces.iter().for_each(|v| put(&mut out, *v));
        put(&mut out, self.expected.len() as u64);
        self.expected.iter().for_each(|v| put(&mut out, *v));
        put(&mut out, self.payload.len() as u64);
        out.extend_from_slice(&self.payload);
        to.write_all(&out)
    }
    /// Whether its numbers fit a group of `size` ranks and its bytes.
    pub(super) fn is_sound(&self, size: u32) -> bool {
        let n = size as usize;
        let sum = |list: Vec<u64>| list.into_iter().try_fold(0u64, u64::checked_add);
        let fits = |total: Option<u64>| total == Some(self.payload.len() as u64);
        let expected = self.expected.is_empty() || self.expected.len() == n;
        expected
            && self.root < size
            && match self.kind {
                Kind::Hello => false,
                Kind::Exchange => {
                    let items = || self.pieces.chunks_exact(4);
                    self.pieces.len().is_multiple_of(4)
                        && items().all(|p| p[0] < 2 && p[1] < u64::from(size))
                        && fits(sum(items().filter(|p| p[0] == 0).map(|p| p[2]).collect()))
                }
                Kind::ReduceScatter | Kind::AllToAll => {
                    self.pieces.len() == n && fits(sum(self.pieces.clone()))
                }
                Kind::Scatter => {
                    let whole = self.pieces.len() == n && fits(sum(self.pieces.clone()));
                    whole || (self.pieces.is_empty() && self.payload.is_empty())
                }
                _ => self.pieces.is_empty(),
            }
    }
    pub(super) fn read(from: &mut impl Read) -> io::Result<Request> {
        let kind = *KINDS.get(get(from)? as usize).ok_or_else(|| io::Error::other("unknown message"))?;
        let (count, dtype, op) = (get(from)?, get(from)? as u32 as i32, get(from)? as u32 as i32);
        let (root, fixed) = (get(from)? as u32, get(from)? != 0);
        Ok(Request {
            kind,
            call: String::from_utf8_lossy(&get_bytes(from)?).into_owned(),
            fixed,
            count,
            dtype,
            op,
            root,
            pieces: get_list(from)?,
            expected: get_list(from)?,
            payload: get_bytes(from)?,
        })
    }
}

impl Reply {
    pub(super) fn error(status: i32, text: &str) -> Reply {
        Reply { status, text: text.to_owned(), ..Reply::default() }
    }
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut out = Vec::with_capacity(64 + self.payload.len());
        put(&mut out, self.status as u32 as u64);
        put(&mut out, self.text.len() as u64);
        out.extend_from_slice(self.text.as_bytes());
        put(&mut out, self.pieces.len() as u64);
        self.pieces.iter().for_each(|v| put(&mut out, *v));
        put(&mut out, self.payload.len() as u64);
        out.extend_from_slice(&self.payload);
        to.write_all(&out)
    }
    pub(super) fn read(from: &mut impl Read) -> io::Result<Reply> {
        Ok(Reply {
            status: get(from)? as u32 as i32,
            text: String::from_utf8_lossy(&get_bytes(from)?).into_owned(),
            pieces: get_list(from)?,
            payload: get_bytes(from)?,
        })
    }
}
