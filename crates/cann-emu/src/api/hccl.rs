//! Communicators: creating, querying, configuring and destroying them.

use super::context::need;
use super::rank_table;
use super::{give, give_text, take};
use crate::handles;
use crate::hccl::acceptor::{Acceptor, Joined};
use crate::hccl::connection::Address;
use crate::hccl::{Comm, Name, join, listen, open};
use crate::knobs::{Release, knobs, noise};
use crate::memory;
use crate::report::{self, broken, fail};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

const ROOT_INFO: usize = 4108;
const MAGIC: [u8; 8] = *b"CANNEMU1";
const CONFIG_MAGIC: u32 = 0xf0f0_f0f0;

static COUNTER: AtomicU64 = AtomicU64::new(0);
static DETERMINISM: AtomicI32 = AtomicI32::new(0);

/// Magic, a number of 8 bytes, the address as text if it is one of TCP, then a pattern of that number up to a checksum: a blob
/// that was cut or taken for a string is found out.
fn make_root_info(call: &str) -> Result<([u8; ROOT_INFO], Root, Ranks), i32> {
    let time =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let id = time ^ (u64::from(std::process::id()) << 40) ^ COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut blob = [0u8; ROOT_INFO];
    blob[..8].copy_from_slice(&MAGIC);
    blob[8..16].copy_from_slice(&id.to_le_bytes());
    for i in 16..ROOT_INFO - 8 {
        blob[i] = (id >> (i % 57)) as u8 ^ i as u8;
    }
    let name = name_of(id);
    let (acceptor, ranks, place) = open(&name).map_err(|e| fail(11, &format!("{call}: {e}")))?;
    blob[ADDRESS].fill(0);
    if let Address::Tcp(address) = &place {
        let text = address.to_string();
        blob[ADDRESS.start..ADDRESS.start + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum = checksum(&blob);
    blob[ROOT_INFO - 8..].copy_from_slice(&sum.to_le_bytes());
    Ok((blob, (name, place), (acceptor, ranks)))
}

/// Where the ranks of a group come in, and those that have.
type Ranks = (Acceptor, Receiver<Joined>);

/// A group's name and where it meets.
type Root = (String, Address);

/// Where an address stands in the blob.
const ADDRESS: std::ops::Range<usize> = 16..80;

fn name_of(id: u64) -> String {
    format!("cann-emu-hccl-{id:016x}")
}

fn checksum(blob: &[u8; ROOT_INFO]) -> u64 {
    blob[..ROOT_INFO - 8]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

fn read_root_info(at: usize, call: &str) -> Result<Root, i32> {
    if at == 0 {
        return Err(fail(2, &format!("{call}: rootInfo is null")));
    }
    let blob: [u8; ROOT_INFO] = take(at, 0);
    let mut id = [0; 8];
    id.copy_from_slice(&blob[8..16]);
    if blob[..8] != MAGIC || blob[ROOT_INFO - 8..] != checksum(&blob).to_le_bytes() {
        return broken(
            &report::COMM_ROOT_INFO,
            1,
            &format!("{call}: the 4108 bytes are not those that HcclGetRootInfo gave"),
        );
    }
    let name = name_of(u64::from_le_bytes(id));
    let text = String::from_utf8_lossy(&blob[ADDRESS]);
    let place = match text.trim_end_matches('\0') {
        "" => Address::Local(name.clone()),
        text => Address::Tcp(text.parse().map_err(|e| fail(1, &format!("{call}: {text}: {e}")))?),
    };
    Ok((name, place))
}

calls! {
    HcclGetRootInfo(at: usize) = {
        need(CALL)?;
        let (blob, (name, _), ranks) = make_root_info(CALL)?;
        listen(ranks, &name, Name::Once).map_err(|e| fail(11, &format!("{CALL}: {e}")))?;
        give(at, blob, CALL)
    };
}

/// What a configuration says.
struct Config {
    /// MB of each of the two buffers.
    buffer: u64,
    /// The group's name, if one is given.
    name: String,
    /// Sums have the ranks' own order.
    fixed: bool,
}

/// Reads a configuration whose head has been initialised.
fn read_config(config: usize, call: &str) -> Result<Config, i32> {
    let mut buffer = knobs().hccl_buffer_mb;
    if config == 0 {
        return Ok(Config { buffer, name: String::new(), fixed: false });
    }
    let (size, magic, version): (u64, u32, u32) =
        (take(config, 0), take(config + 8, 0), take(config + 12, 0));
    if magic != CONFIG_MAGIC {
        let message =
            format!("{call}: expected the magic {CONFIG_MAGIC:#x} in the configuration, found {magic:#x}");
        return broken(&report::COMM_ARGUMENT, 1, &message);
    }
    let own: u64 = if knobs().release == Release::R81 { 300 } else { 2240 };
    let size = size.min(own);
    let asked: u32 = if size >= 28 { take(config + 24, 0) } else { u32::MAX };
    if asked != u32::MAX {
        buffer = u64::from(asked);
    }
    let fixed = size >= 32 && take::<u32>(config + 28, 0) == 1;
    let name = if version >= 2 && size >= 160 {
        let bytes: [u8; 128] = take(config + 32, 0);
        String::from_utf8_lossy(&bytes[..bytes.iter().position(|b| *b == 0).unwrap_or(127)]).into_owned()
    } else {
        String::new()
    };
    Ok(Config { buffer, name, fixed })
}

fn init(
    (name, place): &Root,
    size: u32,
    rank: u32,
    config: usize,
    comm: usize,
    sub: bool,
    call: &str,
) -> Result<(), i32> {
    let (device, _) = need(call)?;
    if size == 0 || rank >= size {
        return Err(fail(1, &format!("{call}: rank {rank} of {size}")));
    }
    let Config { buffer, name: asked, fixed } = read_config(config, call)?;
    let twice = |c: &Comm| !asked.is_empty() && c.name == asked && c.device == device;
    if handles::find::<Comm>(twice).is_some() {
        return Err(fail(1, &format!("{call}: there is a communicator named {asked} on device {device}")));
    }
    let bytes = 2 * (buffer << 20) as i64;
    memory::charge(device, bytes, call).map_err(|_| 3)?;
    let group = if asked.is_empty() { name.trim_start_matches("cann-emu-").to_owned() } else { asked };
    let made = join((name, place), size, rank, device, bytes, (sub, fixed), &group).inspect_err(|_| {
        // What was taken is given back; there is room for it.
        let _ = memory::charge(device, -bytes, call);
    })?;
    give(comm, handles::make(made, call), call)
}

calls! {
    HcclCommInitRootInfo(size: u32, info: usize, rank: u32, comm: usize) =
        init(&read_root_info(info, CALL)?, size, rank, 0, comm, false, CALL);

    HcclCommInitRootInfoConfig(size: u32, info: usize, rank: u32, config: usize, comm: usize) =
        init(&read_root_info(info, CALL)?, size, rank, config, comm, false, CALL);

    /// All ranks of one process; each device must have been named once.
    HcclCommInitAll(count: u32, devices: usize, comms: usize) = {
        if devices == 0 || comms == 0 || count == 0 {
            return Err(fail(2, &format!("{CALL}: a list is null or empty")));
        }
        let list: Vec<i32> = (0..count as usize).map(|i| take(devices, i)).collect();
        let mut named = HashSet::new();
        let there = |d: &i32| (0..super::context::visible() as i32).contains(d);
        if let Some(device) = list.iter().find(|d| !there(d) || !named.insert(**d)) {
            let why = if there(device) { "is named twice" } else { "does not exist" };
            return broken(&report::COMM_ARGUMENT, 1, &format!("{CALL}: device {device} {why}"));
        }
        let (_, (name, place), ranks) = make_root_info(CALL)?;
        listen(ranks, &name, Name::Again).map_err(|e| fail(11, &format!("{CALL}: {e}")))?;
        let group = name.trim_start_matches("cann-emu-").to_owned();
        let bytes = 2 * (knobs().hccl_buffer_mb << 20) as i64;
        // Before there is a rank that others would wait for.
        for (i, device) in list.iter().enumerate() {
            if memory::charge(*device as u32, bytes, CALL).is_err() {
                give_back(&list[..i], bytes, CALL);
                return Err(3);
            }
        }
        let made: Vec<Result<Comm, i32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&list)
                .map(|(rank, device)| {
                    let (place, group, name) = (&place, &group, &name);
                    scope.spawn(move || {
                        join((name, place), count, rank, *device as u32, bytes, (false, false), group)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap_or(Err(4))).collect()
        });
        let made: Vec<Comm> = made.into_iter().collect::<Result<_, _>>().inspect_err(|_| {
            give_back(&list, bytes, CALL);
        })?;
        for (i, comm) in made.into_iter().enumerate() {
            give(comms + 8 * i, handles::make(comm, CALL), CALL)?;
        }
        Ok(())
    };
}

/// Gives back what was taken of devices for a group that could not be formed; there is room for it.
fn give_back(devices: &[i32], bytes: i64, call: &str) {
    for device in devices {
        let _ = memory::charge(*device as u32, -bytes, call);
    }
}

/// The group of a name that all its ranks can tell; the first of them opens the listener.
fn meet(name: String, rank: u32, call: &str) -> Result<Root, i32> {
    let place = Address::of_name(&name);
    if rank == 0 {
        // The listener of a group that has just come together by this name is being taken away.
        let mut tries = 0;
        let listener = loop {
            match place.open() {
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && tries < 100 => {
                    tries += 1;
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                opened => break opened,
            }
        };
        let opened =
            listener.and_then(|listener| listen(Acceptor::of_listener(listener, &name)?, &name, Name::Again));
        opened.map_err(|e| fail(11, &format!("{call}: {e}")))?;
    }
    Ok((name, place))
}

/// The ranks of a rank table; the file's text is the group's address.
fn cluster(path: usize, rank: u32, config: usize, comm: usize, call: &str) -> Result<(), i32> {
    let path = super::text(path);
    let table = std::fs::read_to_string(&path).map_err(|e| fail(10, &format!("{call}: {path}: {e}")))?;
    let ranks = rank_table::read(&table, &path, call)?;
    let hash = table.bytes().fold(7u64, |h, b| h.wrapping_mul(1_099_511_628_211).wrapping_add(u64::from(b)));
    let name = format!("cann-emu-table-{hash:016x}");
    let (device, _) = need(call)?;
    let Some(place) = ranks.get(rank as usize) else {
        return Err(fail(1, &format!("{call}: {path}: rank {rank} of {}", ranks.len())));
    };
    let here = &knobs().server;
    let elsewhere = !here.is_empty() && place.server != *here;
    if elsewhere || place.device != device {
        let message = format!(
            "{call}: {path}: rank {rank} is on device {} of {}, this is device {device} of {}",
            place.device,
            place.server,
            if here.is_empty() { &place.server } else { here }
        );
        return broken(&report::COMM_ARGUMENT, 1, &message);
    }
    read_config(config, call)?;
    let root = meet(name, rank, call)?;
    init(&root, ranks.len() as u32, rank, config, comm, false, call)
}

calls! {
    HcclCommInitClusterInfo(path: usize, rank: u32, comm: usize) = cluster(path, rank, 0, comm, CALL);

    HcclCommInitClusterInfoConfig(path: usize, rank: u32, config: usize, comm: usize) =
        cluster(path, rank, config, comm, CALL);
}

/// Whether `HcclSetConfig` asked for sums in the ranks' own order.
pub(crate) fn is_deterministic() -> bool {
    DETERMINISM.load(Ordering::Relaxed) > 0
}

pub(super) fn get(comm: usize, call: &str) -> Result<Arc<Comm>, i32> {
    if let Some(code) = report::poisoned().filter(|_| call != "HcclCommDestroy") {
        return Err(fail(4, &format!("{call}: the device failed with {code} before")));
    }
    handles::get::<Comm>(comm, call, &report::NN_HANDLE, 1)
}

calls! {
    HcclCreateSubCommConfig(
        parent: usize, count: u32, ranks: usize, id: u64, rank: u32, config: usize, comm: usize
    ) = {
        if parent == 0 {
            return Err(fail(2, &format!("{CALL}: comm is null")));
        }
        let parent = get(take(parent, 0), CALL)?;
        if parent.sub {
            let message = format!("{CALL}: the parent is a sub-communicator itself");
            return broken(&report::COMM_ARGUMENT, 1, &message);
        }
        if ranks == 0 && id == 0xffff_ffff {
            return give(comm, 0usize, CALL);
        }
        let list: Vec<u32> = (0..count as usize).map(|i| take(ranks, i)).collect();
        if list.windows(2).any(|w| w[0] >= w[1]) || list.get(rank as usize) != Some(&parent.rank) {
            let message =
                format!("{CALL}: expected ascending ranks with {} at {rank}, found {list:?}", parent.rank);
            return broken(&report::COMM_ARGUMENT, 1, &message);
        }
        let name = format!("cann-emu-{}-{id:x}-{}", parent.name, list[0]);
        // Before there is a group that others could join.
        read_config(config, CALL)?;
        let root = meet(name, rank, CALL)?;
        init(&root, count, rank, config, comm, true, CALL)
    };

    HcclCommDestroy(comm: usize) = {
        let asked = get(comm, CALL)?;
        // Sometimes the library wants to be asked again.
        let busy = knobs().seed != 0 && noise(asked.charged as u64 ^ u64::from(asked.rank)).is_multiple_of(2);
        if busy && !asked.asked.swap(true, Ordering::Relaxed) {
            return Err(fail(20, &format!("{CALL}: not all work is done yet, call again")));
        }
        drop(asked);
        let gone = handles::destroy::<Comm>(comm, CALL, &report::NN_HANDLE, 1)?;
        memory::charge(gone.device, -gone.charged, CALL).map_err(|_| 3)
    };

    HcclGetRankSize(comm: usize, size: usize) = give(size, get(comm, CALL)?.size, CALL);
    HcclGetRankId(comm: usize, rank: usize) = give(rank, get(comm, CALL)?.rank, CALL);

    HcclGetCommName(comm: usize, name: usize) = {
        give_text(name, 128, &get(comm, CALL)?.name);
        Ok(())
    };

    HcclGetCommAsyncError(comm: usize, error: usize) = {
        let code = get(comm, CALL)?.error.load(Ordering::Relaxed);
        give(error, code, CALL)
    };

    HcclGetErrorString(code: i32) -> usize = {
        let text = match code {
            0 => c"no error",
            1 => c"parameter error",
            2 => c"empty pointer",
            3 => c"memory error",
            5 => c"feature is not supported",
            9 => c"timeout",
            20 => c"call again",
            21 => c"error cqe",
            _ => c"internal error",
        };
        text.as_ptr() as usize
    };

    HcclGetCommConfigCapability() -> u32 = if knobs().release == Release::R81 { 5 } else { 10 };

    HcclSetConfig(which: i32, value: i32) = {
        if which != 0 {
            return Err(fail(1, &format!("{CALL}: expected 0, found {which}")));
        }
        DETERMINISM.store(value, Ordering::Relaxed);
        Ok(())
    };

    HcclGetConfig(which: i32, value: usize) = {
        if which != 0 {
            return Err(fail(1, &format!("{CALL}: expected 0, found {which}")));
        }
        give(value, DETERMINISM.load(Ordering::Relaxed), CALL)
    };

    HcclCommSuspend(comm: usize) = get(comm, CALL).map(drop);
    HcclCommResume(comm: usize) = get(comm, CALL).map(drop);

    HcclCommWorkingDevNicSet(comm: usize, _ranks: usize, _backup: usize, _count: u32) =
        get(comm, CALL).map(drop);
}
