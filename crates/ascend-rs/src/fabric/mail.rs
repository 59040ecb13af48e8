//! Messages from one rank to another: a fixed-size header, then the bytes.

use super::lane::Worker;
use crate::{Buffer, Error, Result};
use ms_core::{Arena, DType, Tensor};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;

/// Bytes of a head.
const HEAD: usize = 512;
/// Bytes of a head's name.
const NAME: usize = 200;
/// Dimensions that a head holds.
const DIMS: usize = 8;

/// A message that has come.
pub(crate) struct Letter {
    pub(crate) name: String,
    pub(crate) tag: u64,
    pub(crate) tensor: Tensor,
}

/// Messages that arrived before they were requested, and requests that came before their message.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) stored: HashMap<u64, VecDeque<Letter>>,
    pub(crate) wanted: HashMap<u64, VecDeque<Sender<Result<Letter>>>>,
}

impl Mailbox {
    /// Hands a letter to who waits for it, or keeps it; true if someone waited.
    pub(crate) fn deliver(&mut self, letter: Letter) -> bool {
        let waiting = self.wanted.get_mut(&letter.tag).and_then(VecDeque::pop_front);
        match waiting {
            Some(reply) => {
                // A rank that gave up does not listen any more.
                let _ = reply.send(Ok(letter));
                true
            }
            None => {
                self.stored.entry(letter.tag).or_default().push_back(letter);
                false
            }
        }
    }
}

fn head(name: &str, tag: u64, t: &Tensor) -> Result<[u8; HEAD]> {
    let shape = t.shape().to_vec();
    if shape.len() > DIMS || name.len() > NAME {
        let what = format!("a message {name} of {} dimensions", shape.len());
        return Err(Error::Rendezvous(format!("{what}; expected at most {DIMS}, and {NAME} bytes of name")));
    }
    let mut head = [0u8; HEAD];
    let kind = t.dtype() as usize;
    let words = [tag, kind as u64, shape.len() as u64, name.len() as u64];
    let words = words.into_iter().chain(shape.iter().map(|n| *n as u64));
    for (at, word) in head.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    head[HEAD - NAME..][..name.len()].copy_from_slice(name.as_bytes());
    Ok(head)
}

/// Sends a tensor to the other rank of the pair; returns when it has gone.
pub(crate) fn send(worker: &Worker, name: &str, tag: u64, t: &Tensor) -> Result<()> {
    let (comm, stream) = (&worker.comm, &worker.stream);
    let head = Buffer::from_bytes(stream, &head(name, tag, t)?)?;
    let to = 1 - comm.rank();
    comm.send(stream, &head, HEAD, DType::U8, to)?;
    let bytes = t.bytes();
    if !bytes.is_empty() {
        let body = Buffer::from_bytes(stream, bytes)?;
        comm.send(stream, &body, bytes.len(), DType::U8, to)?;
    }
    stream.synchronise()
}

/// Receives the next tensor of the other rank of the pair.
pub(crate) fn receive(worker: &Worker, arena: &Arena) -> Result<Letter> {
    let (comm, stream) = (&worker.comm, &worker.stream);
    let from = 1 - comm.rank();
    let buffer = Buffer::new(stream, HEAD)?;
    comm.recv(stream, &buffer, HEAD, DType::U8, from)?;
    let mut head = [0u8; HEAD];
    buffer.read(0, &mut head)?;
    let word = |i: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&head[8 * i..8 * i + 8]);
        u64::from_le_bytes(bytes)
    };
    let (tag, kind, dims, len) = (word(0), word(1) as usize, word(2) as usize, word(3) as usize);
    if kind >= DType::ALL.len() || dims > DIMS || len > NAME {
        return Err(Error::Rendezvous(format!("the head of a message is broken: {:?}", &head[..32])));
    }
    let shape: Vec<usize> = (0..dims).map(|i| word(4 + i) as usize).collect();
    let name = String::from_utf8_lossy(&head[HEAD - NAME..][..len]).into_owned();
    let mut tensor = Tensor::uninit(arena, DType::ALL[kind], shape.as_slice());
    let n = tensor.bytes().len();
    if n > 0 {
        let body = Buffer::new(stream, n)?;
        comm.recv(stream, &body, n, DType::U8, from)?;
        body.read(0, tensor.bytes_mut().map_err(|e| Error::Rendezvous(e.to_string()))?)?;
    }
    Ok(Letter { name, tag, tensor })
}
