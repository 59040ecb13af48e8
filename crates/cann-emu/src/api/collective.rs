//! Collectives and messages, entered into streams.

use super::hccl::get;
use super::stream::resolve;
use super::take;
use crate::hccl::Comm;
use crate::hccl::hub::size_of;
use crate::hccl::wire::{Kind, Request};
use crate::memory;
use crate::race::Access;
use crate::report::{self, broken, fail};
use crate::sched::{self, Work};
use std::cell::RefCell;

/// A piece of device memory: address and bytes.
type Piece = (usize, usize);

fn bytes(piece: Piece, what: &str) -> Result<Vec<u8>, i32> {
    let at = memory::alive(piece.0, piece.1, what)?;
    // SAFETY: `alive` found the bytes in one live allocation.
    Ok(unsafe { std::slice::from_raw_parts(at as *const u8, piece.1) }.to_vec())
}

fn put_bytes(piece: Piece, data: &[u8], what: &str) -> Result<(), i32> {
    let at = memory::alive(piece.0, piece.1, what)?;
    // SAFETY: as above. Another writer at the same time is a race of the program's own, reported when it was submitted; the
    // bytes are plain.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len().min(piece.1)) };
    Ok(())
}

fn check_buffers(comm: &Comm, pieces: &[Piece], call: &str) -> Result<(), i32> {
    for (at, len) in pieces.iter().filter(|(_, len)| *len > 0) {
        if memory::find(*at, *len).is_none() || memory::device_of(*at) != Some(comm.device) {
            let message = format!("{call}: {len} bytes at {at:#x}, {}", memory::describe(*at));
            return broken(&report::COMM_BUFFER, 1, &message);
        }
    }
    Ok(())
}

fn check_reduction(dtype: i32, op: i32, call: &str) -> Result<(), i32> {
    if !matches!(dtype, 0..=5 | 11) || !(0..=3).contains(&op) || (op == 1 && matches!(dtype, 1 | 11)) {
        return Err(fail(5, &format!("{call}: operation {op} on type {dtype} is not supported")));
    }
    Ok(())
}

/// A type of `HcclDataType`.
fn check_type(dtype: i32, call: &str) -> Result<(), i32> {
    match crate::hccl::hub::has_type(dtype) {
        true => Ok(()),
        false => Err(fail(1, &format!("{call}: type {dtype} is not one of HcclDataType"))),
    }
}

/// Enters a collective into a stream: reads `from` then, gives the pieces of the answer to `to`.
fn enter(
    comm: usize,
    stream: usize,
    call: &'static str,
    mut request: Request,
    from: Vec<Piece>,
    to: Vec<Piece>,
) -> Result<(), i32> {
    let comm = get(comm, call)?;
    let stream = resolve(stream, call)?;
    check_type(request.dtype, call)?;
    if request.kind == Kind::Exchange {
        request.pieces.chunks_exact(4).try_for_each(|p| check_type(p[3] as i32, call))?;
    }
    let width = size_of(request.dtype);
    let of_exchange = request.kind == Kind::Exchange;
    let mut pieces = from.iter().chain(&to).filter(|p| !of_exchange && p.1 > 0);
    if let Some((at, _)) = pieces.find(|p| p.0 % width != 0) {
        let message = format!("{call}: the buffer at {at:#x} does not begin at a multiple of {width} bytes");
        return broken(&report::COMM_BUFFER, 1, &message);
    }
    comm.used_by(call, false)?;
    request.call = call.to_owned();
    request.fixed = comm.is_deterministic();
    check_buffers(&comm, &from, call)?;
    check_buffers(&comm, &to, call)?;
    let touch = |list: &[Piece], write: bool| -> Vec<Access> {
        list.iter()
            .filter(|(_, len)| *len > 0)
            .map(|(start, len)| Access { start: *start, len: *len, write, view: None })
            .collect()
    };
    let mut accesses = touch(&from, false);
    accesses.extend(touch(&to, true));
    let run = Box::new(move || {
        for piece in &from {
            request.payload.extend(bytes(*piece, call)?);
        }
        let reply = comm.exchange(&request, call)?;
        let mut at = 0;
        for (piece, len) in to.iter().zip(&reply.pieces) {
            let end = at + *len as usize;
            if *len as usize != piece.1 && *len > 0 {
                return broken(
                    &report::COMM_MISMATCH,
                    107_020,
                    &format!("{call}: {len} bytes for a buffer of {}", piece.1),
                );
            }
            put_bytes(*piece, &reply.payload[at..end], call)?;
            at = end;
        }
        Ok(())
    });
    sched::submit(stream.id, &accesses, call, Work::Run(run)).map(drop)
}

/// What a rank asks for, with the memory that it sends from and gets answers in.
struct Part {
    request: Request,
    from: Vec<Piece>,
    to: Vec<Piece>,
}

/// Enters a collective, as this rank takes part in it.
fn collective(
    comm: usize,
    stream: usize,
    call: &'static str,
    part: impl FnOnce(&Comm) -> Result<Part, i32>,
) -> Result<(), i32> {
    let Part { request, from, to } = part(&*get(comm, call)?)?;
    enter(comm, stream, call, request, from, to)
}

fn size(count: u64, dtype: i32) -> usize {
    count as usize * size_of(dtype)
}

fn lengths(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().map(|p| p.1 as u64).collect()
}

/// Pieces of `n` bytes, one after the other.
fn row(base: usize, n: usize, ranks: u32) -> Vec<Piece> {
    (0..ranks as usize).map(|r| (base + r * n, n)).collect()
}

/// Pieces as lists of counts and places say, both in elements.
fn spread(base: usize, counts: usize, places: usize, dtype: i32, ranks: u32) -> Vec<Piece> {
    let w = size_of(dtype);
    (0..ranks as usize)
        .map(|r| (base + take::<u64>(places, r) as usize * w, take::<u64>(counts, r) as usize * w))
        .collect()
}

calls! {
    HcclAllReduce(send: usize, recv: usize, count: u64, dtype: i32, op: i32, comm: usize, stream: usize) =
        collective(comm, stream, CALL, |_| {
            check_reduction(dtype, op, CALL)?;
            let n = size(count, dtype);
            let request = Request { op, ..Request::of(Kind::AllReduce, count, dtype) };
            Ok(Part { request, from: vec![(send, n)], to: vec![(recv, n)] })
        });

    HcclAllGather(send: usize, recv: usize, count: u64, dtype: i32, comm: usize, stream: usize) =
        collective(comm, stream, CALL, |me| {
            let n = size(count, dtype);
            let request = Request::of(Kind::AllGather, count, dtype);
            Ok(Part { request, from: vec![(send, n)], to: row(recv, n, me.size) })
        });

    HcclAllGatherV(
        send: usize, count: u64, recv: usize, counts: usize, places: usize, dtype: i32, comm: usize,
        stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            let to = spread(recv, counts, places, dtype, me.size);
            let request = Request { expected: lengths(&to), ..Request::of(Kind::AllGather, 0, dtype) };
            Ok(Part { request, from: vec![(send, size(count, dtype))], to })
        });

    HcclReduceScatter(
        send: usize, recv: usize, count: u64, dtype: i32, op: i32, comm: usize, stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            check_reduction(dtype, op, CALL)?;
            let (n, ranks) = (size(count, dtype), me.size as usize);
            let pieces = vec![n as u64; ranks];
            let request = Request { op, pieces, ..Request::of(Kind::ReduceScatter, count, dtype) };
            Ok(Part { request, from: vec![(send, n * ranks)], to: vec![(recv, n)] })
        });

    HcclReduceScatterV(
        send: usize, counts: usize, places: usize, recv: usize, count: u64, dtype: i32, op: i32, comm: usize,
        stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            check_reduction(dtype, op, CALL)?;
            let from = spread(send, counts, places, dtype, me.size);
            let pieces = lengths(&from);
            let request = Request { op, pieces, ..Request::of(Kind::ReduceScatter, 0, dtype) };
            Ok(Part { request, from, to: vec![(recv, size(count, dtype))] })
        });
}

/// Whether this rank is the root, which must be one of the group.
fn is_root(comm: &Comm, root: u32, call: &str) -> Result<bool, i32> {
    if root >= comm.size {
        return Err(fail(1, &format!("{call}: root {root} of {} ranks", comm.size)));
    }
    Ok(comm.rank == root)
}

calls! {
    HcclBroadcast(buffer: usize, count: u64, dtype: i32, root: u32, comm: usize, stream: usize) =
        collective(comm, stream, CALL, |me| {
            let n = size(count, dtype);
            let from = if is_root(me, root, CALL)? { vec![(buffer, n)] } else { vec![] };
            let request = Request { root, ..Request::of(Kind::Broadcast, count, dtype) };
            Ok(Part { request, from, to: vec![(buffer, n)] })
        });

    HcclReduce(
        send: usize, recv: usize, count: u64, dtype: i32, op: i32, root: u32, comm: usize, stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            check_reduction(dtype, op, CALL)?;
            let n = size(count, dtype);
            let to = if is_root(me, root, CALL)? { vec![(recv, n)] } else { vec![] };
            let request = Request { op, root, ..Request::of(Kind::Reduce, count, dtype) };
            Ok(Part { request, from: vec![(send, n)], to })
        });

    HcclScatter(send: usize, recv: usize, count: u64, dtype: i32, root: u32, comm: usize, stream: usize) =
        collective(comm, stream, CALL, |me| {
            let (n, ranks) = (size(count, dtype), me.size as usize);
            let (from, pieces) = if is_root(me, root, CALL)? {
                (vec![(send, n * ranks)], vec![n as u64; ranks])
            } else {
                (vec![], vec![])
            };
            let request = Request { root, pieces, ..Request::of(Kind::Scatter, count, dtype) };
            Ok(Part { request, from, to: vec![(recv, n)] })
        });

    HcclAlltoAll(
        send: usize, count: u64, dtype: i32, recv: usize, recv_count: u64, recv_dtype: i32, comm: usize,
        stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            let (n, m) = (size(count, dtype), size(recv_count, recv_dtype));
            let ranks = me.size as usize;
            check_apart((send, n * ranks), (recv, m * ranks), CALL)?;
            let to = row(recv, m, me.size);
            let (pieces, expected) = (vec![n as u64; ranks], lengths(&to));
            let request = Request { pieces, expected, ..Request::of(Kind::AllToAll, count, dtype) };
            Ok(Part { request, from: vec![(send, n * ranks)], to })
        });
}

fn check_apart(a: Piece, b: Piece, call: &str) -> Result<(), i32> {
    if a.1 > 0 && b.1 > 0 && a.0 < b.0 + b.1 && b.0 < a.0 + a.1 {
        return broken(&report::COMM_ARGUMENT, 1, &format!("{call}: the buffers overlap"));
    }
    Ok(())
}

/// An exchange of pieces of any lengths between all ranks.
fn all_to_all(from: Vec<Piece>, to: Vec<Piece>, dtype: i32) -> Part {
    let (pieces, expected) = (lengths(&from), lengths(&to));
    Part { request: Request { pieces, expected, ..Request::of(Kind::AllToAll, 0, dtype) }, from, to }
}

calls! {
    HcclAlltoAllV(
        send: usize, counts: usize, places: usize, dtype: i32, recv: usize, recv_counts: usize,
        recv_places: usize, recv_dtype: i32, comm: usize, stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            let from = spread(send, counts, places, dtype, me.size);
            let to = spread(recv, recv_counts, recv_places, recv_dtype, me.size);
            for a in &from {
                to.iter().try_for_each(|b| check_apart(*a, *b, CALL))?;
            }
            Ok(all_to_all(from, to, dtype))
        });

    HcclAlltoAllVC(
        send: usize, matrix: usize, dtype: i32, recv: usize, recv_dtype: i32, comm: usize, stream: usize
    ) =
        collective(comm, stream, CALL, |me| {
            let (n, r) = (me.size as usize, me.rank as usize);
            let line = |base: usize, dtype: i32, f: &dyn Fn(usize) -> usize| -> Vec<Piece> {
                let mut at = base;
                (0..n)
                    .map(|i| {
                        let len = take::<u64>(matrix, f(i)) as usize * size_of(dtype);
                        at += len;
                        (at - len, len)
                    })
                    .collect()
            };
            let from = line(send, dtype, &|i| r * n + i);
            let to = line(recv, recv_dtype, &|i| i * n + r);
            Ok(all_to_all(from, to, dtype))
        });

    HcclBarrier(comm: usize, stream: usize) =
        collective(comm, stream, CALL, |_| {
            Ok(Part { request: Request::of(Kind::Barrier, 0, 0), from: vec![], to: vec![] })
        });
}

fn check_peer(me: &Comm, peer: u32, call: &str) -> Result<(), i32> {
    if peer >= me.size {
        return Err(fail(1, &format!("{call}: rank {peer} of {}", me.size)));
    }
    Ok(())
}

/// A message to or from a peer, as [`HcclSend`] and [`HcclRecv`] say. Outside a group nothing of this rank can meet a message
/// to itself: the stream would wait for ever.
fn message(held: Held, count: u64, call: &'static str) -> Result<(), i32> {
    let Held { comm, stream, pieces, buffer } = held;
    let [receives, peer, _, dtype] = pieces;
    let me = get(comm, call)?;
    check_peer(&me, peer as u32, call)?;
    if hold(held) {
        return Ok(());
    }
    if u64::from(me.rank) == peer {
        let message = format!("{call}: rank {peer} to itself, outside HcclGroupStart and HcclGroupEnd");
        return broken(&report::COMM_ARGUMENT, 1, &message);
    }
    let request = Request { pieces: pieces.to_vec(), ..Request::of(Kind::Exchange, count, dtype as i32) };
    let (from, to) = if receives == 0 { (vec![buffer], vec![]) } else { (vec![], vec![buffer]) };
    enter(comm, stream, call, request, from, to)
}

calls! {
    HcclSend(buffer: usize, count: u64, dtype: i32, peer: u32, comm: usize, stream: usize) = {
        let n = size(count, dtype);
        let pieces = [0, u64::from(peer), n as u64, dtype as u64];
        message(Held { comm, stream, pieces, buffer: (buffer, n) }, count, CALL)
    };

    HcclRecv(buffer: usize, count: u64, dtype: i32, peer: u32, comm: usize, stream: usize) = {
        let n = size(count, dtype);
        let pieces = [1, u64::from(peer), n as u64, dtype as u64];
        message(Held { comm, stream, pieces, buffer: (buffer, n) }, count, CALL)
    };

    /// Items of 32 bytes: kind at 0 (0 send, 1 receive), buffer at 8, count at 16, type at 24, peer at 28.
    HcclBatchSendRecv(items: usize, count: u32, comm: usize, stream: usize) =
        collective(comm, stream, CALL, |me| {
            let (mut from, mut to, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
            let mut own = (0, 0);
            for i in 0..count as usize {
                let at = items + 32 * i;
                let (kind, buffer, n): (i32, usize, u64) = (take(at, 0), take(at + 8, 0), take(at + 16, 0));
                let (dtype, peer): (i32, u32) = (take(at + 24, 0), take(at + 28, 0));
                check_peer(me, peer, CALL)?;
                let len = size(n, dtype);
                let (side, of_own) = if kind == 0 { (&mut from, &mut own.0) } else { (&mut to, &mut own.1) };
                side.push((buffer, len));
                *of_own += u32::from(peer == me.rank);
                pieces.extend([u64::from(kind != 0), u64::from(peer), len as u64, dtype as u64]);
            }
            if own.0 != own.1 {
                let message = format!("{CALL}: {} sends to itself, {} receives", own.0, own.1);
                return broken(&report::COMM_ARGUMENT, 1, &message);
            }
            Ok(Part { request: Request { pieces, ..Request::of(Kind::Exchange, 0, 0) }, from, to })
        });
}

/// A send or receive, which may wait for the end of its group.
#[derive(Clone, Copy)]
struct Held {
    comm: usize,
    stream: usize,
    /// 0 send or 1 receive, peer, bytes, type.
    pieces: [u64; 4],
    buffer: Piece,
}

thread_local! {
    static GROUP: RefCell<(u32, Vec<Held>)> = const { RefCell::new((0, Vec::new())) };
}

/// Within a group a send or receive is held back; true if it was.
fn hold(message: Held) -> bool {
    GROUP.with(|g| {
        let mut g = g.borrow_mut();
        if g.0 == 0 {
            return false;
        }
        g.1.push(message);
        true
    })
}

calls! {
    HcclGroupStart() = {
        GROUP.with(|g| g.borrow_mut().0 += 1);
        Ok(())
    };

    /// At the end of the outermost group, what it holds enters as one exchange for each communicator and stream.
    HcclGroupEnd() = {
        let held = GROUP.with(|g| {
            let mut g = g.borrow_mut();
            if g.0 == 0 {
                return None;
            }
            g.0 -= 1;
            Some(if g.0 == 0 { std::mem::take(&mut g.1) } else { Vec::new() })
        });
        let mut held = held.ok_or_else(|| fail(1, &format!("{CALL} without HcclGroupStart")))?;
        while let Some(first) = held.first() {
            let (comm, stream) = (first.comm, first.stream);
            let (mine, rest): (Vec<Held>, Vec<Held>) =
                held.drain(..).partition(|h| (h.comm, h.stream) == (comm, stream));
            held = rest;
            let side =
                |kind: u64| mine.iter().filter(|h| h.pieces[0] == kind).map(|h| h.buffer).collect::<Vec<_>>();
            let pieces = mine.iter().flat_map(|h| h.pieces).collect();
            let request = Request { pieces, ..Request::of(Kind::Exchange, 0, 0) };
            enter(comm, stream, CALL, request, side(0), side(1))?;
        }
        Ok(())
    };
}
