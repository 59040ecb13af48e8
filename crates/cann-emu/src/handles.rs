//! Typed handles: values that are not addresses of objects, are never reused, and lie in a range that faults when touched.

use crate::report::{Rule, Site, broken};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many destroyed handles are remembered with their call sites.
const REMEMBERED: usize = 200_000;
const RANGE: usize = 1 << 40;

/// What a handle refers to, as messages name it.
pub trait Handled: Any + Send + Sync {
    /// `aclTensor`
    const NAME: &'static str;
}

struct Live {
    object: Arc<dyn Any + Send + Sync>,
    kind: &'static str,
    made: Site,
}

struct Dead {
    kind: &'static str,
    made: Site,
    destroyed: Site,
}

#[derive(Default)]
struct Table {
    base: usize,
    next: usize,
    live: HashMap<usize, Live>,
    dead: HashMap<usize, Dead>,
    order: VecDeque<usize>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

struct Locked(MutexGuard<'static, Option<Table>>);

impl Locked {
    fn table(&mut self) -> &mut Table {
        self.0.get_or_insert_with(|| Table {
            base: crate::memory::reserve(RANGE, 0x2000_0000_0000),
            ..Table::default()
        })
    }
}

fn lock() -> Locked {
    Locked(TABLE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A new handle of `object`, made by the function `call`.
pub fn make<T: Handled>(object: T, call: &str) -> usize {
    make_shared(Arc::new(object), call)
}

/// As [`make`], of an object that others hold too.
pub fn make_shared<T: Handled>(object: Arc<T>, call: &str) -> usize {
    let mut locked = lock();
    let table = locked.table();
    table.next += 64;
    let handle = table.base + table.next;
    assert!(table.next < RANGE, "a program made more handles than the range holds");
    table.live.insert(handle, Live { object, kind: T::NAME, made: Site::here(call) });
    handle
}

/// Why a handle is not what it should be.
fn complaint<T: Handled>(table: &Table, handle: usize, call: &str) -> String {
    if let Some(live) = table.live.get(&handle) {
        return format!(
            "{call}: expected an {} handle, found an {} made by {}",
            T::NAME,
            live.kind,
            live.made
        );
    }
    match table.dead.get(&handle) {
        Some(dead) => format!(
            "{call}: expected a live {} handle, found {handle:#x}, an {} made by {} and destroyed by {}",
            T::NAME,
            dead.kind,
            dead.made,
            dead.destroyed
        ),
        None => format!("{call}: expected an {} handle, found {handle:#x}, which was never one", T::NAME),
    }
}

/// The object of a handle.
///
/// # Errors
/// `code` after a violation of `rule` if the handle is dead, of another kind, or none.
pub fn get<T: Handled>(handle: usize, call: &str, rule: &'static Rule, code: i32) -> Result<Arc<T>, i32> {
    let message = {
        let mut locked = lock();
        let table = locked.table();
        match table.live.get(&handle).and_then(|live| Arc::clone(&live.object).downcast::<T>().ok()) {
            Some(object) => return Ok(object),
            None => complaint::<T>(table, handle, call),
        }
    };
    broken(rule, code, &message)
}

/// The object of a handle, if it is alive and of this kind; no violation otherwise.
pub fn peek<T: Handled>(handle: usize) -> Option<Arc<T>> {
    let mut locked = lock();
    locked.table().live.get(&handle).and_then(|live| Arc::clone(&live.object).downcast::<T>().ok())
}

/// The first living object of a kind that `wanted` is true of.
pub fn find<T: Handled>(wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
    let mut locked = lock();
    let of_kind = locked.table().live.values().filter(|live| live.kind == T::NAME);
    of_kind.filter_map(|live| Arc::clone(&live.object).downcast::<T>().ok()).find(|object| wanted(object))
}

/// Takes a handle out of the table.
///
/// # Errors
/// As [`get`].
pub fn destroy<T: Handled>(handle: usize, call: &str, rule: &'static Rule, code: i32) -> Result<Arc<T>, i32> {
    let message = {
        let mut locked = lock();
        let table = locked.table();
        let found = table.live.get(&handle).and_then(|live| Arc::clone(&live.object).downcast::<T>().ok());
        match found {
            Some(object) => {
                if let Some(live) = table.live.remove(&handle) {
                    let dead = Dead { kind: live.kind, made: live.made, destroyed: Site::here(call) };
                    table.dead.insert(handle, dead);
                    table.order.push_back(handle);
                    if table.order.len() > REMEMBERED
                        && let Some(old) = table.order.pop_front()
                    {
                        table.dead.remove(&old);
                    }
                }
                return Ok(object);
            }
            None => complaint::<T>(table, handle, call),
        }
    };
    broken(rule, code, &message)
}

/// Live handles of a kind with the call that made each.
pub fn live_of(kind: &str) -> Vec<(usize, String)> {
    let mut locked = lock();
    let mut out: Vec<(usize, String)> = locked
        .table()
        .live
        .iter()
        .filter(|(_, live)| live.kind == kind)
        .map(|(handle, live)| (*handle, live.made.to_string()))
        .collect();
    out.sort_unstable();
    out
}
