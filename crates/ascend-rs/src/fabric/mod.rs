//! HCCL as a [`Fabric`] of ranks: host tensors are copied to the device, exchanged and copied back.
//!
//! Every communicator has a thread of its own (a lane) with a stream, so a collective of one group never queues behind one of
//! another, and a call only hands a job to a lane. Messages between two ranks use one communicator of these two per
//! direction, made when the first message is sent: HCCL pairs sends with receives in their order and lets a rank wait for its
//! peer, but nothing here waits except the lane.

mod group;
mod lane;
mod mail;

use crate::rendezvous::Shared;
use crate::{CommOptions, Device, Error, Rendezvous, RootInfo, Toolkit, Unbound};
use group::HcclGroup;
use lane::{Lane, Maker};
use ms_dist::{Communicator, Fabric, Requests};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The key under which the first failure of a run is announced.
const FAILED: &str = "failed";

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked is reported through its lane; the maps are consistent between statements.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the communicator of all ranks comes about; those of smaller groups always start from a root's information, which
/// goes through the rendezvous.
#[derive(Debug)]
pub enum Bootstrap {
    /// From the information of rank 0.
    RootInfo,
    /// From a rank table.
    RankTable(PathBuf),
    /// From [`crate::Comm::all_in_process`].
    InProcess(Unbound),
}

/// Settings of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricOptions {
    /// For every communicator of a group.
    pub comm: CommOptions,
    /// Megabytes of each of the two buffers of a communicator for messages between two ranks.
    pub message_buffer_mb: u32,
    /// How long a rank waits for the others to make a group.
    pub timeout: Duration,
    /// Before every collective the ranks compare what they are about to do: one more small collective. Without it, HCCL
    /// hangs or mixes up data when ranks disagree.
    pub check_calls: bool,
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions {
            comm: CommOptions { buffer_mb: None, deterministic: true },
            message_buffer_mb: 16,
            timeout: Duration::from_secs(120),
            check_calls: false,
        }
    }
}

/// A rank's place in a run over HCCL.
#[derive(Clone)]
pub struct HcclFabric(Arc<Run>);

/// What a rank's lanes share.
pub(crate) struct Run {
    toolkit: Toolkit,
    device: i32,
    rank: usize,
    world: usize,
    rendezvous: Arc<dyn Rendezvous>,
    options: FabricOptions,
    bootstrap: Mutex<Bootstrap>,
    asked: Requests,
    /// The rank that failed first, and why.
    failed: Mutex<Option<(usize, String)>>,
}

impl std::fmt::Debug for HcclFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HcclFabric(rank {} of {}, device {})", self.0.rank, self.0.world, self.0.device)
    }
}

impl HcclFabric {
    /// Rank `rank` of `world` on device `device`. Nothing is connected before the first group.
    pub fn new(
        toolkit: &Toolkit,
        device: i32,
        rank: usize,
        world: usize,
        rendezvous: Arc<dyn Rendezvous>,
        bootstrap: Bootstrap,
        options: FabricOptions,
    ) -> HcclFabric {
        HcclFabric(Arc::new(Run {
            toolkit: toolkit.clone(),
            device,
            rank,
            world,
            rendezvous,
            options,
            bootstrap: Mutex::new(bootstrap),
            asked: Requests::default(),
            failed: Mutex::default(),
        }))
    }

    /// Tells the other ranks that this one has failed: whatever they wait for ends within a second.
    pub fn announce_failure(&self, reason: &str) {
        self.0.fail(reason);
    }
}

impl Run {
    /// Fails if a rank has.
    fn check(&self) -> ms_dist::Result<()> {
        let mut failed = lock(&self.failed);
        if failed.is_none()
            && let Ok(Some(bytes)) = self.rendezvous.peek(FAILED)
        {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let (rank, reason) = text.split_once(' ').unwrap_or(("0", &text));
            *failed = Some((rank.parse().unwrap_or(0), reason.to_owned()));
        }
        match &*failed {
            Some((rank, reason)) => Err(ms_dist::Error::PeerFailed { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Announces a failure of this rank, unless one is known.
    fn fail(&self, reason: &str) {
        if self.check().is_err() {
            return;
        }
        *lock(&self.failed) = Some((self.rank, reason.to_owned()));
        // A rank that cannot be told finds out by a time-out.
        let _ = self.rendezvous.put(FAILED, format!("{} {reason}", self.rank).as_bytes());
    }

    /// How a lane creates the communicator of `ranks`, in which this rank is number `place`.
    fn maker(&self, key: String, ranks: Vec<usize>, place: usize, options: CommOptions) -> Maker {
        let (rendezvous, timeout) = (self.rendezvous.clone(), self.options.timeout);
        Box::new(move |device: &Device| {
            let share =
                |value: Option<&[u8]>| rendezvous.share(Shared { key: &key, ranks: &ranks, value }, timeout);
            let own = match place {
                0 => Some(RootInfo::new(device).inspect_err(|_| {
                    // The others wait: nothing tells them that there is none.
                    let _ = share(Some(&[]));
                })?),
                _ => None,
            };
            let bytes = share(own.as_ref().map(RootInfo::bytes))?;
            if bytes.is_empty() {
                let text = format!("rank {} could not make the root's information of {key}", ranks[0]);
                return Err(Error::Rendezvous(text));
            }
            let info = RootInfo::from_bytes(bytes)?;
            crate::Comm::from_root_info(device, &info, ranks.len(), place, options)
        })
    }
}

/// An error of this crate as the ranks' interface has it.
pub(crate) fn transport(what: &str, error: Error) -> ms_dist::Error {
    ms_dist::Error::Transport { what: what.to_owned(), source: Box::new(error) }
}

impl Fabric for HcclFabric {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn world(&self) -> usize {
        self.0.world
    }

    fn group(&self, ranks: &[usize]) -> ms_dist::Result<Arc<dyn Communicator>> {
        let run = &self.0;
        run.check()?;
        let (place, instance) = (self.place(ranks)?, run.asked.next(ranks));
        let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        let key = format!("group-{}-{instance}", names.join("."));
        let lane = if ranks.len() == 1 {
            None
        } else {
            let all = ranks.iter().copied().eq(0..run.world);
            let first = std::mem::replace(&mut *lock(&run.bootstrap), Bootstrap::RootInfo);
            let maker = match first {
                Bootstrap::RankTable(table) if all => {
                    let (rank, options) = (run.rank, run.options.comm);
                    let make =
                        move |device: &Device| crate::Comm::from_rank_table(device, &table, rank, options);
                    Box::new(make) as Maker
                }
                Bootstrap::InProcess(unbound) if all => {
                    Box::new(move |device: &Device| unbound.bind(device)) as Maker
                }
                other => {
                    // Kept for the group of all ranks.
                    *lock(&run.bootstrap) = other;
                    run.maker(key.clone(), ranks.to_vec(), place, run.options.comm)
                }
            };
            let lane = Lane::start(run.clone(), key.clone(), maker)?;
            // Returns when all ranks have come.
            lane.run("making a group", |_| Ok(()))?.wait(run)?;
            Some(lane)
        };
        Ok(Arc::new(HcclGroup::new(run.clone(), key, place, ranks, lane)))
    }
}
