//! The hub of a group: matches the requests of its ranks and computes the results.

use super::acceptor::Joined;
use super::connection::Connection;
use super::wire::{Kind, Reply, Request};
use crate::knobs::{Release, knobs, noise};
use crate::nn::tensor::Dtype;
use half::{bf16, f16};
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A message that has been sent and not yet received.
struct Message {
    id: u64,
    dtype: u64,
    data: Vec<u8>,
    /// The call that it is a part of.
    of: String,
}

/// An operation in the course of being called.
#[derive(Default)]
struct Round {
    requests: HashMap<u32, Request>,
    replies: HashMap<u32, Reply>,
    /// Why it cannot be any more; ranks that come late hear it too.
    failed: Option<String>,
    answered: u32,
}

/// What a rank in an exchange waits for.
struct Wait {
    /// The call.
    of: String,
    /// Peers, with the message's number where it is to be taken.
    open: Vec<(u32, Option<u64>)>,
}

#[derive(Default)]
struct State {
    rounds: HashMap<u64, Round>,
    /// How many collectives each rank has called.
    called: HashMap<u32, u64>,
    /// Messages under way by (source, destination).
    mail: HashMap<(u32, u32), VecDeque<Message>>,
    sent: u64,
    taken: HashSet<u64>,
    /// Messages that their receiver did not expect so.
    refused: HashMap<u64, String>,
    waits: HashMap<u32, Wait>,
    /// Ranks in an exchange that can never end, and why.
    deadlocked: HashMap<u32, String>,
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

/// Takes the ranks of a group in: all that say they are there, or nobody and why. `next` gives the next rank that comes before a
/// point in time. From the first on the others have `limit`; where ranks disagree, all are told that come within it, as many as
/// the largest number that one of them said.
pub(super) fn gather(
    next: &dyn Fn(Option<Instant>) -> Option<Joined>,
    limit: Duration,
) -> (Vec<Joined>, Option<String>) {
    let mut ranks: Vec<Joined> = Vec::new();
    let mut end = None;
    while ranks.first().is_none_or(|(_, first)| (ranks.len() as u64) < first.count) {
        let Some(joined) = next(end) else {
            return (Vec::new(), Some(format!("only {} ranks came in time", ranks.len())));
        };
        end = end.or_else(|| Some(Instant::now() + limit));
        ranks.push(joined);
        if let Some(text) = disagreement(&ranks, ranks[0].1.count) {
            let reply = Reply::error(1, &text);
            answer_all(&mut ranks, &reply);
            while (ranks.len() as u64) < ranks.iter().map(|(_, hello)| hello.count).max().unwrap_or(0) {
                let Some(late) = next(end) else { break };
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

fn answer_all(ranks: &mut [Joined], reply: &Reply) {
    for (stream, _) in ranks {
        // A rank that has gone is noticed by its reader.
        let _ = reply.write(stream);
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

fn disagreement(ranks: &[Joined], size: u64) -> Option<String> {
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

fn rank(hub: &Hub, mut stream: Connection, me: u32, size: u32, salt: u64) {
    while let Ok(request) = Request::read(&mut stream) {
        let described = request.describe();
        let answer = || match (request.is_sound(size), request.kind) {
            (false, _) => Reply::error(4, &format!("{described}: its numbers do not fit its bytes")),
            (true, Kind::Exchange) => exchange(hub, me, &request),
            (true, _) => collective(hub, me, size, request, salt),
        };
        // Whatever goes wrong with one rank, the others must hear that it is gone.
        let Ok(reply) = catch_unwind(AssertUnwindSafe(answer)) else { break };
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

/// What ranks call that are not of one mind.
fn at_odds(number: u64, a: (u32, &str), b: (u32, &str)) -> String {
    format!("call {number}: rank {} calls {}, rank {} calls {}", a.0, a.1, b.0, b.1)
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
    if round.failed.is_none() && round.requests.len() == size as usize {
        let mut requests: Vec<(u32, &Request)> = round.requests.iter().map(|(r, q)| (*r, q)).collect();
        requests.sort_by_key(|(r, _)| *r);
        let first = requests[0].1.describe();
        match requests.iter().find(|(_, r)| r.describe() != first) {
            Some((r, other)) => round.failed = Some(at_odds(number, (0, &first), (*r, &other.describe()))),
            None => {
                let list: Vec<&Request> = requests.into_iter().map(|(_, r)| r).collect();
                match calculate(&list, salt ^ number) {
                    Ok(replies) => round.replies = (0..).zip(replies).collect(),
                    Err(text) => round.failed = Some(format!("call {number}: {text}")),
                }
            }
        }
        round.requests.values_mut().for_each(|r| r.payload = Vec::new());
        hub.changed.notify_all();
    }
    let end = deadline();
    loop {
        let round = state.rounds.entry(number).or_default();
        let failed = round.failed.as_ref().map(|text| Reply::error(1, text));
        if let Some(reply) = failed.or_else(|| round.replies.remove(&me)) {
            round.answered += 1;
            if round.answered == size {
                state.rounds.remove(&number);
            }
            return reply;
        }
        let missing: Vec<u32> = (0..size).filter(|r| !round.requests.contains_key(r)).collect();
        if let Some(dead) = missing.iter().find(|r| state.gone.contains(r)) {
            return Reply::error(21, &format!("rank {dead} is gone; {described} never completes"));
        }
        // A rank that waits for a message of this one, which cannot send it before the other has come here.
        let elsewhere = missing.iter().find_map(|r| {
            let wait = state.waits.get(r)?;
            let of_me = |(peer, id): &(u32, Option<u64>)| {
                *peer == me
                    && id.is_none_or(|id| !state.taken.contains(&id))
                    && !state.lies_ready(me, *r, *id)
            };
            wait.open.iter().any(of_me).then(|| (*r, wait.of.clone()))
        });
        if let Some((r, of)) = elsewhere {
            let text = at_odds(number, (me, &described), (r, &of));
            state.deadlocked.insert(r, text.clone());
            state.rounds.entry(number).or_default().failed = Some(text);
            hub.changed.notify_all();
            continue;
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
    let of = request.describe();
    let mut at = 0;
    let mut mine = Vec::new();
    let mut wanted = Vec::new();
    for piece in request.pieces.chunks_exact(4) {
        let (peer, bytes) = (piece[1] as u32, piece[2] as usize);
        if piece[0] == 0 {
            state.sent += 1;
            let id = state.sent;
            let data = request.payload[at..at + bytes].to_vec();
            at += bytes;
            let letter = Message { id, dtype: piece[3], data, of: of.clone() };
            state.mail.entry((me, peer)).or_default().push_back(letter);
            mine.push((peer, id));
        } else {
            wanted.push((peer, bytes, piece[3]));
        }
    }
    hub.changed.notify_all();
    let end = deadline();
    let mut got: Vec<Option<Vec<u8>>> = vec![None; wanted.len()];
    let reply = loop {
        if let Some(text) = state.deadlocked.remove(&me) {
            break Reply::error(1, &text);
        }
        let mut odd = None;
        for (i, (peer, bytes, dtype)) in wanted.iter().enumerate() {
            if got[i].is_none()
                && let Some(letter) = state.mail.get_mut(&(*peer, me)).and_then(VecDeque::pop_front)
            {
                hub.changed.notify_all();
                if letter.data.len() != *bytes || letter.dtype != *dtype {
                    let text = format!("rank {peer} calls {}, rank {me} calls {of}", letter.of);
                    state.refused.insert(letter.id, text.clone());
                    odd = Some(text);
                    break;
                }
                state.taken.insert(letter.id);
                got[i] = Some(letter.data);
            }
        }
        if let Some(text) = odd.or_else(|| mine.iter().find_map(|(_, id)| state.refused.remove(id))) {
            break Reply::error(1, &text);
        }
        let open: Vec<(u32, Option<u64>)> = mine
            .iter()
            .filter(|(_, id)| !state.taken.contains(id))
            .map(|(p, id)| (*p, Some(*id)))
            .chain(wanted.iter().zip(&got).filter(|(_, g)| g.is_none()).map(|(w, _)| (w.0, None)))
            .collect();
        if open.is_empty() {
            let pieces = got.iter().flatten().map(|d| d.len() as u64).collect();
            let payload = got.into_iter().flatten().flatten().collect();
            break Reply { pieces, payload, ..Reply::default() };
        }
        if let Some((dead, _)) = open.iter().find(|(p, _)| state.gone.contains(p)) {
            break Reply::error(21, &format!("rank {dead} is gone"));
        }
        let peers: Vec<u32> = open.iter().map(|(p, _)| *p).collect();
        state.waits.insert(me, Wait { of: of.clone(), open });
        if stuck(&state, me) {
            let circle: Vec<(u32, Option<u32>)> =
                state.waits.keys().map(|r| (*r, waits_for(&state, *r))).collect();
            break Reply::error(4, &format!("ranks wait for one another in a circle: {circle:?}"));
        }
        // A collective may wait for this rank in vain: it looks when something changes.
        hub.changed.notify_all();
        let (guard, more) = hub.wait(state, end);
        state = guard;
        if !more {
            break Reply::error(9, &format!("rank {me} waited in vain for ranks {peers:?}"));
        }
    };
    // Others still read who waits for whom in a circle; after any other end this rank waits no more.
    if reply.status != 4 {
        state.waits.remove(&me);
    }
    for (_, id) in &mine {
        state.taken.remove(id);
    }
    hub.changed.notify_all();
    reply
}

impl State {
    /// Whether a message from one rank to another lies ready, which the other only has to take.
    fn lies_ready(&self, from: u32, to: u32, sent: Option<u64>) -> bool {
        sent.is_none() && self.mail.get(&(from, to)).is_some_and(|m| !m.is_empty())
    }
}

/// The first peer that a rank waits for. A message that was taken is waited for no longer, though its sender may not have
/// woken up yet.
fn waits_for(state: &State, rank: u32) -> Option<u32> {
    let open = |(_, id): &&(u32, Option<u64>)| id.is_none_or(|id| !state.taken.contains(&id));
    state.waits.get(&rank)?.open.iter().find(open).map(|(peer, _)| *peer)
}

/// Whether following who waits for whom leads from a rank back to it, with no message that would free one of them.
fn stuck(state: &State, me: u32) -> bool {
    let mut at = me;
    for _ in 0..=state.waits.len() {
        let Some(next) = waits_for(state, at) else { return false };
        // A message that lies ready for one of the two is about to be taken.
        let ready = state.mail.get(&(next, at)).is_some_and(|m| !m.is_empty());
        let receives = state.mail.get(&(at, next)).is_none_or(VecDeque::is_empty);
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

/// Whether a number is one of `HcclDataType`: integers, floats, and those of eight bits that are only moved.
pub fn has_type(code: i32) -> bool {
    // Those of eight bits came after 8.1.
    (0..=12).contains(&code) || (knobs().release != Release::R81 && (14..=17).contains(&code))
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
///
/// # Errors
/// What two ranks say of the same bytes, where it differs.
fn calculate(requests: &[&Request], salt: u64) -> Result<Vec<Reply>, String> {
    let n = requests.len();
    let first = requests[0];
    let order = order_of_sums(n, requests.iter().all(|r| r.fixed), salt);
    let whole = |payload: Vec<u8>| Reply { pieces: vec![payload.len() as u64], payload, ..Reply::default() };
    let piece = |r: &Request, i: usize| -> Vec<u8> {
        let start: u64 = r.pieces[..i].iter().sum();
        r.payload[start as usize..(start + r.pieces[i]) as usize].to_vec()
    };
    let equal = |parts: &[&[u8]], to: &str| match parts.iter().position(|p| p.len() != parts[0].len()) {
        None => Ok(()),
        Some(r) => Err(format!(
            "rank 0 calls {} with {} bytes{to}, rank {r} with {}",
            first.describe(),
            parts[0].len(),
            parts[r].len()
        )),
    };
    // What came to a rank, against what it has room for.
    let expected = |to: usize, parts: &[u64]| {
        let room = &requests[to].expected;
        match parts.iter().zip(room).position(|(came, room)| came != room) {
            None => Ok(()),
            Some(from) => Err(format!(
                "rank {from} calls {} with {} bytes for rank {to}, which calls it with room for {} of rank {from}",
                first.describe(),
                parts[from],
                room[from]
            )),
        }
    };
    Ok(match first.kind {
        Kind::AllReduce | Kind::Reduce => {
            let parts: Vec<&[u8]> = requests.iter().map(|r| r.payload.as_slice()).collect();
            equal(&parts, "")?;
            let out = reduce(&parts, first.dtype, first.op, &order);
            let takes = |r: usize| first.kind == Kind::AllReduce || r as u32 == first.root;
            (0..n).map(|r| whole(if takes(r) { out.clone() } else { Vec::new() })).collect()
        }
        Kind::ReduceScatter => {
            let of = |i: usize| {
                let parts: Vec<Vec<u8>> = requests.iter().map(|r| piece(r, i)).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                equal(&parts, &format!(" for rank {i}"))?;
                Ok(whole(reduce(&parts, first.dtype, first.op, &order)))
            };
            (0..n).map(of).collect::<Result<_, String>>()?
        }
        Kind::AllGather => {
            let pieces: Vec<u64> = requests.iter().map(|r| r.payload.len() as u64).collect();
            (0..n).try_for_each(|r| expected(r, &pieces))?;
            let payload: Vec<u8> = requests.iter().flat_map(|r| r.payload.clone()).collect();
            vec![Reply { pieces, payload, ..Reply::default() }; n]
        }
        Kind::Broadcast => vec![whole(requests[first.root as usize].payload.clone()); n],
        Kind::Scatter => (0..n).map(|i| whole(piece(requests[first.root as usize], i))).collect(),
        Kind::AllToAll => {
            let of = |i: usize| {
                let parts: Vec<Vec<u8>> = requests.iter().map(|r| piece(r, i)).collect();
                let pieces: Vec<u64> = parts.iter().map(|p| p.len() as u64).collect();
                expected(i, &pieces)?;
                Ok(Reply { pieces, payload: parts.concat(), ..Reply::default() })
            };
            (0..n).map(of).collect::<Result<_, String>>()?
        }
        _ => vec![Reply::default(); n],
    })
}
