//! A group of ranks over HCCL, as a [`ms_dist::Communicator`].

use super::lane::{Lane, Worker};
use super::mail::{self, Letter, Mailbox};
use super::{Run, lock, transport};
use crate::{Buffer, CommOptions, Error, Result};
use half::bf16;
use ms_core::{Arena, DType, Tensor};
use ms_dist::{Communicator, Pending, ReduceOp, volume};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of a call's description when ranks compare theirs.
const CALL: usize = 256;

pub(crate) struct HcclGroup {
    run: Arc<Run>,
    key: String,
    rank: usize,
    size: usize,
    /// Numbers of its members in the run.
    ranks: Vec<usize>,
    /// None for a group of one.
    lane: Option<Arc<Lane>>,
    /// By sender and receiver.
    pairs: Mutex<HashMap<(usize, usize), Arc<Pair>>>,
    /// For what comes from other ranks without a tensor of this one.
    arena: Arena,
    next: AtomicU64,
    sent: AtomicU64,
}

/// Messages of one direction.
struct Pair {
    lane: Arc<Lane>,
    mail: Arc<Mutex<Mailbox>>,
}

impl HcclGroup {
    pub(crate) fn new(
        run: Arc<Run>,
        key: String,
        rank: usize,
        ranks: &[usize],
        lane: Option<Arc<Lane>>,
    ) -> HcclGroup {
        let (size, ranks) = (ranks.len(), ranks.to_vec());
        let (pairs, arena) = (Mutex::default(), Arena::default());
        let (next, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        HcclGroup { run, key, rank, size, ranks, lane, pairs, arena, next, sent }
    }

    fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A collective on `t`, done by the lane; a group of one has its result.
    fn collective(
        &self,
        name: &'static str,
        what: &'static str,
        t: Tensor,
        job: impl FnOnce(&Worker, Tensor) -> Result<Tensor> + Send + 'static,
    ) -> ms_dist::Result<Pending> {
        let Some(lane) = &self.lane else { return Ok(Pending::ready(t)) };
        t.ready()?;
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        let call = format!("{what} of {name} ({} x {})", t.numel(), t.dtype());
        let (run, check) = (self.run.clone(), self.run.options.check_calls);
        let (group, rank) = (self.ranks.clone(), self.ranks[self.rank]);
        let reply = lane.run(name, move |worker| {
            if check && let Some(found) = compare(worker, &call)? {
                return Ok(Err((call, found)));
            }
            job(worker, t).map(Ok)
        })?;
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "collective", what, name).entered();
            reply.wait(&run)?.map_err(|(mine, (other, theirs))| {
                let other = group[other];
                let e = ms_dist::Error::Mismatch { sequence, group, rank, mine, other, theirs };
                run.fail(&e.to_string());
                e
            })
        }))
    }

    /// The lane for messages from one rank of the group to another, one of which is this.
    fn pair(&self, from: usize, to: usize) -> ms_dist::Result<Arc<Pair>> {
        let mut pairs = lock(&self.pairs);
        if let Some(pair) = pairs.get(&(from, to)) {
            return Ok(pair.clone());
        }
        let key = format!("{}-from-{from}-to-{to}", self.key);
        let options =
            CommOptions { buffer_mb: Some(self.run.options.message_buffer_mb), deterministic: false };
        let ranks = vec![self.ranks[from], self.ranks[to]];
        let maker = self.run.maker(key.clone(), ranks, usize::from(self.rank == to), options);
        let pair = Pair { lane: Lane::start(self.run.clone(), key, maker)?, mail: Arc::default() };
        let pair = Arc::new(pair);
        pairs.insert((from, to), pair.clone());
        Ok(pair)
    }

    fn check_rank(&self, other: usize) -> ms_dist::Result<()> {
        if other < self.size && other != self.rank {
            return Ok(());
        }
        let (rank, size) = (self.rank, self.size);
        let text = format!("a message between rank {rank} and rank {other} of {size}");
        Err(transport("message", Error::Rendezvous(text)))
    }
}

/// The first other rank that is about to do something else, with its description.
fn compare(worker: &Worker, call: &str) -> Result<Option<(usize, String)>> {
    let (comm, stream) = (&worker.comm, &worker.stream);
    let mut mine = [0u8; CALL];
    let len = call.len().min(CALL);
    mine[..len].copy_from_slice(&call.as_bytes()[..len]);
    let (from, to) = (Buffer::from_bytes(stream, &mine)?, Buffer::new(stream, CALL * comm.size())?);
    comm.all_gather(stream, &from, &to, CALL, DType::U8)?;
    let mut all = vec![0u8; CALL * comm.size()];
    to.read(0, &mut all)?;
    let other = all.chunks_exact(CALL).position(|theirs| theirs != mine);
    Ok(other.map(|r| {
        let text = String::from_utf8_lossy(&all[r * CALL..(r + 1) * CALL]).into_owned();
        (r, text.trim_end_matches('\0').to_owned())
    }))
}

/// A tensor of the host with the bytes of a buffer.
fn download(buffer: &Buffer, arena: &Arena, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let mut out = Tensor::uninit(arena, dtype, shape);
    buffer.read(0, out.bytes_mut().map_err(|e| core(&e))?)?;
    Ok(out)
}

fn core(e: &ms_core::Error) -> Error {
    Error::Rendezvous(e.to_string())
}

/// Elements that HCCL reduces: bf16 sums go through it as f32, so that they are rounded once; f64, which it refuses, is
/// gathered and added here in rank order.
fn reduces(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::I64 | DType::I32 | DType::I16 | DType::I8)
}

fn widened(t: &Tensor) -> Result<Vec<f32>> {
    Ok(t.as_slice::<bf16>().map_err(|e| core(&e))?.iter().map(|v| v.to_f32()).collect())
}

fn rounded(arena: &Arena, shape: &[usize], values: &[f32]) -> Result<Tensor> {
    let values: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
    Tensor::from_slice(arena, shape, &values).map_err(|e| core(&e))
}

/// Element by element over the parts of all ranks, in rank order.
fn fold_f64(parts: &[f64], len: usize, op: ReduceOp) -> Vec<f64> {
    let mut out = parts[..len].to_vec();
    for part in parts[len..].chunks_exact(len) {
        for (o, v) in out.iter_mut().zip(part) {
            *o = if op == ReduceOp::Max { o.max(*v) } else { *o + v };
        }
    }
    out
}

fn all_reduce(worker: &Worker, t: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let (comm, stream, n) = (&worker.comm, &worker.stream, t.numel());
    let shape = t.shape().to_vec();
    if t.dtype() == DType::F64 {
        let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, n * 8 * comm.size())?);
        comm.all_gather(stream, &from, &to, n, DType::F64)?;
        let mut all = vec![0f64; n * comm.size()];
        to.read(0, bytemuck::cast_slice_mut(&mut all))?;
        return Tensor::from_slice(t.arena(), shape.as_slice(), &fold_f64(&all, n, op)).map_err(|e| core(&e));
    }
    if t.dtype() == DType::Bf16 && op == ReduceOp::Sum {
        let mut values = widened(t)?;
        let buffer = Buffer::from_bytes(stream, bytemuck::cast_slice(&values))?;
        comm.all_reduce(stream, &buffer, &buffer, n, DType::F32, op)?;
        buffer.read(0, bytemuck::cast_slice_mut(&mut values))?;
        return rounded(t.arena(), &shape, &values);
    }
    let buffer = Buffer::from_bytes(stream, t.bytes())?;
    comm.all_reduce(stream, &buffer, &buffer, n, t.dtype(), op)?;
    download(&buffer, t.arena(), t.dtype(), &shape)
}

fn reduce_scatter(worker: &Worker, t: &Tensor) -> Result<Tensor> {
    let (comm, stream) = (&worker.comm, &worker.stream);
    let n = t.numel() / comm.size();
    if t.dtype() == DType::F64 {
        let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, volume::bytes(t))?);
        let counts = vec![n; comm.size()];
        comm.all_to_all(stream, &from, &counts, &to, &counts, DType::F64)?;
        let mut all = vec![0f64; t.numel()];
        to.read(0, bytemuck::cast_slice_mut(&mut all))?;
        return Tensor::from_slice(t.arena(), [n], &fold_f64(&all, n, ReduceOp::Sum)).map_err(|e| core(&e));
    }
    if t.dtype() == DType::Bf16 {
        let from = Buffer::from_bytes(stream, bytemuck::cast_slice(&widened(t)?))?;
        let to = Buffer::new(stream, n * 4)?;
        comm.reduce_scatter(stream, &from, &to, n, DType::F32)?;
        let mut values = vec![0f32; n];
        to.read(0, bytemuck::cast_slice_mut(&mut values))?;
        return rounded(t.arena(), &[n], &values);
    }
    let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, n * t.dtype().size())?);
    comm.reduce_scatter(stream, &from, &to, n, t.dtype())?;
    download(&to, t.arena(), t.dtype(), &[n])
}

/// Rows to every rank, and theirs back; how many come is asked first.
fn exchange_rows(worker: &Worker, t: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let (comm, stream, size) = (&worker.comm, &worker.stream, rows.len());
    let width = t.as_matrix().1;
    let mine: Vec<i64> = rows.iter().map(|n| *n as i64).collect();
    let counts = Buffer::from_bytes(stream, bytemuck::cast_slice(&mine))?;
    let table = Buffer::new(stream, 8 * size * size)?;
    comm.all_gather(stream, &counts, &table, size, DType::I64)?;
    let mut all = vec![0i64; size * size];
    table.read(0, bytemuck::cast_slice_mut(&mut all))?;
    let coming: Vec<usize> = (0..size).map(|r| all[r * size + comm.rank()] as usize).collect();
    let here: usize = coming.iter().sum();
    let row = width * t.dtype().size();
    let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, here * row)?);
    let bytes = |rows: &[usize]| rows.iter().map(|n| n * row).collect::<Vec<usize>>();
    comm.all_to_all(stream, &from, &bytes(rows), &to, &bytes(&coming), DType::U8)?;
    download(&to, t.arena(), t.dtype(), &[here, width])
}

impl Communicator for HcclGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> ms_dist::Result<Pending> {
        if t.dtype() != DType::F64 && !reduces(t.dtype()) {
            return Err(ms_core::Error::Unsupported { op: "reduce", dtype: t.dtype() }.into());
        }
        self.count(volume::all_reduce(&t, self.size));
        let what = if op == ReduceOp::Sum { "all_reduce(sum)" } else { "all_reduce(max)" };
        self.collective(name, what, t, move |worker, t| all_reduce(worker, &t, op))
    }

    fn all_gather(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.count(volume::all_gather(&t, self.size));
        self.collective(name, "all_gather", t, |worker, t| {
            let (comm, stream, n) = (&worker.comm, &worker.stream, volume::bytes(&t));
            let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, n * comm.size())?);
            comm.all_gather(stream, &from, &to, n, DType::U8)?;
            download(&to, t.arena(), t.dtype(), &volume::gathered(&t, comm.size()))
        })
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        volume::check_parts(name, t.numel(), self.size)?;
        if t.dtype() != DType::F64 && !reduces(t.dtype()) {
            return Err(ms_core::Error::Unsupported { op: "reduce", dtype: t.dtype() }.into());
        }
        self.count(volume::parts(&t, self.size));
        self.collective(name, "reduce_scatter", t, |worker, t| reduce_scatter(worker, &t))
    }

    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> ms_dist::Result<Pending> {
        self.count(volume::broadcast(&t, self.size, self.rank == root));
        self.collective(name, "broadcast", t, move |worker, t| {
            let n = volume::bytes(&t);
            let buffer = Buffer::from_bytes(&worker.stream, t.bytes())?;
            worker.comm.broadcast(&worker.stream, &buffer, n, DType::U8, root)?;
            download(&buffer, t.arena(), t.dtype(), &t.shape())
        })
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        volume::check_parts(name, t.shape().first().copied().unwrap_or(0), self.size)?;
        self.count(volume::parts(&t, self.size));
        self.collective(name, "all_to_all", t, |worker, t| {
            let (comm, stream, n) = (&worker.comm, &worker.stream, volume::bytes(&t));
            let (from, to) = (Buffer::from_bytes(stream, t.bytes())?, Buffer::new(stream, n)?);
            let counts = vec![n / comm.size(); comm.size()];
            comm.all_to_all(stream, &from, &counts, &to, &counts, DType::U8)?;
            download(&to, t.arena(), t.dtype(), &t.shape())
        })
    }

    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> ms_dist::Result<Pending> {
        volume::check_rows(&t, rows, self.size)?;
        self.count(volume::rows(&t, rows, self.rank));
        let rows = rows.to_vec();
        self.collective(name, "all_to_all_rows", t, move |worker, t| exchange_rows(worker, &t, &rows))
    }

    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> ms_dist::Result<()> {
        self.check_rank(to)?;
        self.count(volume::bytes(&t));
        t.ready()?;
        let pair = self.pair(self.rank, to)?;
        // Nobody waits for it; its failure is announced.
        pair.lane.run(name, move |worker| mail::send(worker, name, tag, &t)).map(drop)
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64, into: &Arena) -> ms_dist::Result<Pending> {
        self.check_rank(from)?;
        let pair = self.pair(from, self.rank)?;
        let (reply, letter) = channel();
        let came = {
            let mut mail = lock(&pair.mail);
            let stored = mail.stored.get_mut(&tag).and_then(VecDeque::pop_front);
            match stored {
                Some(found) => reply.send(Ok(found)).is_ok(),
                None => {
                    mail.wanted.entry(tag).or_default().push_back(reply);
                    false
                }
            }
        };
        if !came {
            let (mail, arena) = (pair.mail.clone(), self.arena.clone());
            // Receives until someone who waits has got a letter, which need not be this one.
            let job = move |worker: &Worker| loop {
                let next = mail::receive(worker, &arena)?;
                if lock(&mail).deliver(next) {
                    return Ok(());
                }
            };
            pair.lane.run(name, job)?;
        }
        let (run, into) = (self.run.clone(), into.clone());
        Ok(Pending::new(move || {
            let _span = tracing::trace_span!(target: "ms_comm", "recv", name).entered();
            // The pair lives until its messages have come.
            let _pair = pair;
            loop {
                let Letter { name: found, tensor, .. } = match letter.recv_timeout(Duration::from_millis(100))
                {
                    Ok(letter) => letter.map_err(|e| transport(name, e))?,
                    Err(RecvTimeoutError::Timeout) => {
                        run.check()?;
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        run.check()?;
                        let gone = Error::Rendezvous("the thread of these messages ended".to_owned());
                        return Err(transport(name, gone));
                    }
                };
                if found != name {
                    let text = format!("message {tag} from rank {from}: expected {name}, found {found}");
                    return Err(transport(name, Error::Rendezvous(text)));
                }
                return Ok(tensor.copied_to(&into)?);
            }
        }))
    }

    fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn barrier(&self) -> ms_dist::Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        let job = |worker: &Worker| {
            worker.comm.barrier(&worker.stream)?;
            worker.stream.synchronise()
        };
        lane.run("barrier", job)?.wait(&self.run)
    }
}
