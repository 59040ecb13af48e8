//! The hub of a group: matches what the ranks ask for and calculates.

use super::line::{Door, Line};
use super::wire::{Kind, Reply, Request};
use crate::knobs::{knobs, noise};
use crate::nn::tensor::Dtype;
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A number and the bytes.
type Message = (u64, Vec<u8>);

/// An operation in the course of being called.
#[derive(Default)]
struct Round {
    requests: HashMap<u32, Request>,
    replies: HashMap<u32, Reply>,
}

#[derive(Default)]
struct State {
    round: u64,
    rounds: HashMap<u64, Round>,
    /// How many collectives each rank has called.
    called: HashMap<u32, u64>,
    /// Messages under way by (source, destination).
    mail: HashMap<(u32, u32), Vec<Message>>,
    sent: u64,
    taken: Vec<u64>,
    /// Peers that a rank waits for, with the message's number where it is to be taken.
    waits: HashMap<u32, Vec<(u32, Option<u64>)>>,
    gone: Vec<u32>,
}

#[derive(Default)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, guard: MutexGuard<'a, State>, end: Instant) -> (MutexGuard<'a, State>, bool) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (guard, false);
        }
        let slice = left.min(Duration::from_millis(200));
        (self.changed.wait_timeout(guard, slice).map_or_else(|e| e.into_inner().0, |r| r.0), true)
    }
}

/// A rank that has introduced itself.
type Joined = (Line, Request);

/// Takes the ranks of a group in: all that say they are there, or nobody and why. From the first on the others have `limit`; where
/// ranks disagree, all are told that come within it, as many as the largest number that one of them said.
pub(super) fn gather(listener: &Door, limit: Duration) -> (Vec<Joined>, Option<String>) {
    let mut ranks: Vec<Joined> = Vec::new();
    let mut end = None;
    while ranks.first().is_none_or(|(_, first)| (ranks.len() as u64) < first.count) {
        let Some(joined) = next(listener, end) else {
            return (Vec::new(), Some(format!("only {} ranks came in time", ranks.len())));
        };
        end = end.or_else(|| Some(Instant::now() + limit));
        ranks.push(joined);
        if let Some(text) = disagreement(&ranks, ranks[0].1.count) {
            let reply = Reply::error(1, &text);
            answer_all(&mut ranks, &reply);
            while (ranks.len() as u64) < ranks.iter().map(|(_, hello)| hello.count).max().unwrap_or(0) {
                let Some(late) = next(listener, end) else { break };
                ranks.push(late);
                let last = ranks.len() - 1;
                answer_all(&mut ranks[last..], &reply);
            }
            return (Vec::new(), Some(text));
        }
    }
    answer_all(&mut ranks, &Reply::default());
    (ranks, None)
}

/// The next rank that introduces itself, before `end`.
fn next(listener: &Door, end: Option<Instant>) -> Option<Joined> {
    listener.set_nonblocking(end.is_some()).ok()?;
    loop {
        match listener.accept() {
            Ok(mut stream) => {
                // What connects and says nothing, or goes again, is no rank.
                stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
                let Ok(hello) = Request::read(&mut stream) else { continue };
                stream.set_read_timeout(None).ok()?;
                return Some((stream, hello));
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                if end.is_some_and(|end| end <= Instant::now()) {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

fn answer_all(ranks: &mut [Joined], reply: &Reply) {
    for (stream, _) in ranks {
        // A rank that has gone is noticed by its reader.
        let _ = reply.write(stream);
    }
}

/// Tells everyone who still comes that there is no place.
pub(super) fn refuse(listener: &Door, why: &str) {
    while let Some(late) = next(listener, None) {
        answer_all(&mut [late], &Reply::error(1, why));
    }
}

/// Serves each rank of a group until all have gone.
pub(super) fn serve(ranks: Vec<Joined>, group: &str) {
    let size = ranks.len() as u32;
    let hub = Hub::default();
    let salt = group.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    std::thread::scope(|scope| {
        for (stream, hello) in ranks {
            let hub = &hub;
            scope.spawn(move || rank(hub, stream, hello.root, size, salt));
        }
    });
}

fn disagreement(ranks: &[(Line, Request)], size: u64) -> Option<String> {
    let mut seen: HashMap<u32, ()> = HashMap::new();
    let mut devices: HashMap<(&[u8], i32), u32> = HashMap::new();
    for (_, hello) in ranks {
        if hello.count != size {
            return Some(format!("rank {} says {} ranks, another says {size}", hello.root, hello.count));
        }
        if u64::from(hello.root) >= size {
            return Some(format!("rank {} of {size}", hello.root));
        }
        if seen.insert(hello.root, ()).is_some() {
            return Some(format!("rank {} joined twice", hello.root));
        }
        if let Some(other) = devices.insert((&hello.payload, hello.dtype), hello.root) {
            return Some(format!("ranks {other} and {} both use device {}", hello.root, hello.dtype));
        }
    }
    None
}

fn rank(hub: &Hub, mut stream: Line, me: u32, size: u32, salt: u64) {
    while let Ok(request) = Request::read(&mut stream) {
        let reply = if request.kind == Kind::Exchange {
            exchange(hub, me, &request)
        } else {
            collective(hub, me, size, request, salt)
        };
        if reply.write(&mut stream).is_err() {
            break;
        }
    }
    hub.lock().gone.push(me);
    hub.changed.notify_all();
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs_f64(knobs().hccl_timeout_s)
}

fn collective(hub: &Hub, me: u32, size: u32, request: Request, salt: u64) -> Reply {
    let mut state = hub.lock();
    let number = {
        let n = state.called.entry(me).or_insert(0);
        *n += 1;
        *n
    };
    let described = request.describe();
    let round = state.rounds.entry(number).or_default();
    round.requests.insert(me, request);
    if round.requests.len() == size as usize {
        let mut requests: Vec<(u32, Request)> = std::mem::take(&mut round.requests).into_iter().collect();
        requests.sort_by_key(|(r, _)| *r);
        let first = &requests[0].1;
        let odd = requests.iter().find(|(_, r)| r.describe() != first.describe());
        let replies: HashMap<u32, Reply> = match odd {
            Some((r, other)) => {
                let text = format!(
                    "call {number}: rank 0 calls {}, rank {r} calls {}",
                    first.describe(),
                    other.describe()
                );
                requests.iter().map(|(r, _)| (*r, Reply::error(1, &text))).collect()
            }
            None => {
                let list: Vec<Request> = requests.into_iter().map(|(_, r)| r).collect();
                calculate(&list, salt ^ number).into_iter().enumerate().map(|(r, p)| (r as u32, p)).collect()
            }
        };
        round.replies = replies;
        state.round = number;
        hub.changed.notify_all();
    }
    let end = deadline();
    loop {
        if let Some(reply) = state.rounds.get_mut(&number).and_then(|r| r.replies.remove(&me)) {
            return reply;
        }
        let missing: Vec<u32> = {
            let there = state
                .rounds
                .get(&number)
                .map(|r| r.requests.keys().copied().collect::<Vec<_>>())
                .unwrap_or_default();
            (0..size).filter(|r| !there.contains(r)).collect()
        };
        if let Some(dead) = missing.iter().find(|r| state.gone.contains(r)) {
            return Reply::error(21, &format!("rank {dead} is gone; {described} never completes"));
        }
        let (guard, more) = hub.wait(state, end);
        state = guard;
        if !more {
            let text = format!("ranks {missing:?} did not arrive at call {number} ({described}) in time");
            return Reply::error(9, &text);
        }
    }
}

fn exchange(hub: &Hub, me: u32, request: &Request) -> Reply {
    let mut state = hub.lock();
    let mut at = 0;
    let mut mine = Vec::new();
    let mut wanted = Vec::new();
    for piece in request.pieces.chunks(3) {
        let (peer, bytes) = (piece[1] as u32, piece[2] as usize);
        if piece[0] == 0 {
            state.sent += 1;
            let id = state.sent;
            let data = request.payload[at..at + bytes].to_vec();
            at += bytes;
            state.mail.entry((me, peer)).or_default().push((id, data));
            mine.push((peer, id));
        } else {
            wanted.push((peer, bytes));
        }
    }
    hub.changed.notify_all();
    let end = deadline();
    let mut got: Vec<Option<Vec<u8>>> = vec![None; wanted.len()];
    loop {
        for (i, (peer, bytes)) in wanted.iter().enumerate() {
            if got[i].is_none()
                && let Some(queue) = state.mail.get_mut(&(*peer, me))
                && !queue.is_empty()
            {
                let (id, data) = queue.remove(0);
                state.taken.push(id);
                hub.changed.notify_all();
                if data.len() != *bytes {
                    state.waits.remove(&me);
                    let text = format!("rank {peer} sends {} bytes, rank {me} receives {bytes}", data.len());
                    return Reply::error(1, &text);
                }
                got[i] = Some(data);
            }
        }
        let open: Vec<(u32, Option<u64>)> = mine
            .iter()
            .filter(|(_, id)| !state.taken.contains(id))
            .map(|(p, id)| (*p, Some(*id)))
            .chain(wanted.iter().zip(&got).filter(|(_, g)| g.is_none()).map(|((p, _), _)| (*p, None)))
            .collect();
        if open.is_empty() {
            state.waits.remove(&me);
            let pieces = got.iter().flatten().map(|d| d.len() as u64).collect();
            return Reply {
                pieces,
                payload: got.into_iter().flatten().flatten().collect(),
                ..Reply::default()
            };
        }
        if let Some((dead, _)) = open.iter().find(|(p, _)| state.gone.contains(p)) {
            return Reply::error(21, &format!("rank {dead} is gone"));
        }
        state.waits.insert(me, open.clone());
        if stuck(&state, me) {
            hub.changed.notify_all();
            let circle: Vec<(u32, Option<u32>)> =
                state.waits.keys().map(|r| (*r, waits_for(&state, *r))).collect();
            let text = format!("ranks wait for one another in a circle: {circle:?}");
            return Reply::error(4, &text);
        }
        let (guard, more) = hub.wait(state, end);
        state = guard;
        if !more {
            let ranks: Vec<u32> = open.iter().map(|(p, _)| *p).collect();
            return Reply::error(9, &format!("rank {me} waited in vain for ranks {ranks:?}"));
        }
    }
}

/// The first peer that a rank waits for. A message that was taken is waited for no longer, though its sender may not have
/// woken up yet.
fn waits_for(state: &State, rank: u32) -> Option<u32> {
    let open = |(_, id): &&(u32, Option<u64>)| id.is_none_or(|id| !state.taken.contains(&id));
    state.waits.get(&rank)?.iter().find(open).map(|(peer, _)| *peer)
}

/// Whether following who waits for whom leads from a rank back to it, with no message that would free one of them.
fn stuck(state: &State, me: u32) -> bool {
    let mut at = me;
    for _ in 0..=state.waits.len() {
        let Some(next) = waits_for(state, at) else { return false };
        // A message that lies ready for one of the two is about to be taken.
        let ready = state.mail.get(&(next, at)).is_some_and(|m| !m.is_empty());
        let receives = state.mail.get(&(at, next)).is_none_or(Vec::is_empty);
        if ready && receives {
            return false;
        }
        at = next;
        if at == me {
            // Two sends that face each other, or two receives.
            return state.waits.len() > 1 && circle_is_of_one_kind(state, me);
        }
    }
    false
}

fn circle_is_of_one_kind(state: &State, me: u32) -> bool {
    let mut at = me;
    let mut sends = 0;
    let mut steps = 0;
    loop {
        let Some(next) = waits_for(state, at) else { return false };
        sends += usize::from(state.mail.get(&(at, next)).is_some_and(|m| !m.is_empty()));
        steps += 1;
        at = next;
        if at == me {
            return sends == 0 || sends == steps;
        }
    }
}

fn dtype(code: i32) -> Dtype {
    match code {
        0 => Dtype::I8,
        1 => Dtype::I16,
        2 => Dtype::I32,
        3 => Dtype::F16,
        4 => Dtype::F32,
        5 => Dtype::I64,
        6 => Dtype::U64,
        8 => Dtype::U16,
        9 => Dtype::U32,
        10 => Dtype::F64,
        11 => Dtype::Bf16,
        _ => Dtype::U8,
    }
}

/// Bytes of an element of `HcclDataType`.
pub fn size_of(code: i32) -> usize {
    if code == 12 { 16 } else { dtype(code).size() }
}

/// The ranks in the order in which they are added: their own, or one drawn for the call.
fn order_of_sums(ranks: usize, fixed: bool, salt: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ranks).collect();
    if !fixed {
        for i in (1..ranks).rev() {
            order.swap(i, (noise(salt.wrapping_add(i as u64)) % (i as u64 + 1)) as usize);
        }
    }
    order
}

/// Element by element over the ranks in an order.
fn reduce(parts: &[&[u8]], code: i32, op: i32, order: &[usize]) -> Vec<u8> {
    let mut out = Vec::with_capacity(parts[0].len());
    macro_rules! by {
        ($t:ty, $read:expr, $write:expr, $add:expr, $mul:expr) => {{
            let w = std::mem::size_of::<$t>();
            for at in (0..parts[0].len()).step_by(w) {
                let value = |r: usize| {
                    let mut b = [0u8; std::mem::size_of::<$t>()];
                    b.copy_from_slice(&parts[r][at..at + w]);
                    $read(b)
                };
                let mut acc = value(order[0]);
                for r in &order[1..] {
                    let v = value(*r);
                    acc = match op {
                        0 => $add(acc, v),
                        1 => $mul(acc, v),
                        2 => {
                            if v > acc {
                                v
                            } else {
                                acc
                            }
                        }
                        _ => {
                            if v < acc {
                                v
                            } else {
                                acc
                            }
                        }
                    };
                }
                out.extend_from_slice(&$write(acc));
            }
        }};
    }
    let (addf, mulf) = (|a: f32, b: f32| a + b, |a: f32, b: f32| a * b);
    match dtype(code) {
        Dtype::F32 => by!(f32, f32::from_le_bytes, |v: f32| v.to_le_bytes(), addf, mulf),
        Dtype::F16 => {
            by!(u16, |b| f16::from_le_bytes(b).to_f32(), |v| f16::from_f32(v).to_le_bytes(), addf, mulf)
        }
        Dtype::Bf16 => {
            by!(u16, |b| bf16::from_le_bytes(b).to_f32(), |v| bf16::from_f32(v).to_le_bytes(), addf, mulf)
        }
        Dtype::I8 => by!(i8, i8::from_le_bytes, |v: i8| v.to_le_bytes(), i8::wrapping_add, i8::wrapping_mul),
        Dtype::I16 => {
            by!(i16, i16::from_le_bytes, |v: i16| v.to_le_bytes(), i16::wrapping_add, i16::wrapping_mul)
        }
        Dtype::I32 => {
            by!(i32, i32::from_le_bytes, |v: i32| v.to_le_bytes(), i32::wrapping_add, i32::wrapping_mul)
        }
        _ => by!(i64, i64::from_le_bytes, |v: i64| v.to_le_bytes(), i64::wrapping_add, i64::wrapping_mul),
    }
    out
}

/// The reply to each rank.
fn calculate(requests: &[Request], salt: u64) -> Vec<Reply> {
    let n = requests.len();
    let first = &requests[0];
    let order = order_of_sums(n, requests.iter().all(|r| r.fixed), salt);
    let whole = |payload: Vec<u8>| Reply { pieces: vec![payload.len() as u64], payload, ..Reply::default() };
    let piece = |r: &Request, i: usize| -> Vec<u8> {
        let start: u64 = r.pieces[..i].iter().sum();
        r.payload[start as usize..(start + r.pieces[i]) as usize].to_vec()
    };
    match first.kind {
        Kind::AllReduce | Kind::Reduce => {
            let parts: Vec<&[u8]> = requests.iter().map(|r| r.payload.as_slice()).collect();
            if parts.iter().any(|p| p.len() != parts[0].len()) {
                return vec![Reply::error(1, "the ranks' buffers differ in size"); n];
            }
            let out = reduce(&parts, first.dtype, first.op, &order);
            (0..n)
                .map(|r| {
                    if first.kind == Kind::AllReduce || r as u32 == first.root {
                        whole(out.clone())
                    } else {
                        whole(Vec::new())
                    }
                })
                .collect()
        }
        Kind::ReduceScatter => (0..n)
            .map(|i| {
                let parts: Vec<Vec<u8>> = requests.iter().map(|r| piece(r, i)).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                if parts.iter().any(|p| p.len() != parts[0].len()) {
                    return Reply::error(1, "the ranks' pieces differ in size");
                }
                whole(reduce(&parts, first.dtype, first.op, &order))
            })
            .collect(),
        Kind::AllGather => {
            let pieces: Vec<u64> = requests.iter().map(|r| r.payload.len() as u64).collect();
            let payload: Vec<u8> = requests.iter().flat_map(|r| r.payload.clone()).collect();
            vec![Reply { pieces, payload, ..Reply::default() }; n]
        }
        Kind::Broadcast => vec![whole(requests[first.root as usize].payload.clone()); n],
        Kind::Scatter => (0..n).map(|i| whole(piece(&requests[first.root as usize], i))).collect(),
        Kind::AllToAll => (0..n)
            .map(|i| {
                let parts: Vec<Vec<u8>> = requests.iter().map(|r| piece(r, i)).collect();
                let pieces = parts.iter().map(|p| p.len() as u64).collect();
                Reply { pieces, payload: parts.concat(), ..Reply::default() }
            })
            .collect(),
        _ => vec![Reply::default(); n],
    }
}
