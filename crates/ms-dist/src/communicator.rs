//! Communicators: the collectives and messages of a process group.

use crate::{Error, Result};
use ms_core::{Arena, DType, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How values of several ranks are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum, added in rank order.
    Sum,
    /// The largest value.
    Max,
}

/// A collective that was started. Its buffers come back from [`Pending::wait`].
///
/// All ranks of a group wait for their pending collectives in the same order, which may differ from the order in which they
/// started them: for example, a short exchange between long ones.
///
/// Between processes, a rank's part is in transit once the collective has started, and a thread reduces its parts of large
/// all-reduces in their order, so the others can finish while it continues to compute and waits later. Threaded ranks read
/// each other's tensors in place, so every rank waits for all.
#[must_use = "a collective finishes only when it is waited for"]
pub struct Pending(Box<dyn FnOnce() -> Result<Tensor> + Send>);

impl Pending {
    /// A collective that `finish` completes.
    pub fn new(finish: impl FnOnce() -> Result<Tensor> + Send + 'static) -> Self {
        Self(Box::new(finish))
    }

    /// A collective that is complete.
    pub fn ready(t: Tensor) -> Self {
        Self::new(move || Ok(t))
    }

    /// Waits for the other ranks and returns the result.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] if a rank fails meanwhile, [`Error::Mismatch`] if ranks disagree about what they are doing.
    pub fn wait(self) -> Result<Tensor> {
        (self.0)()
    }
}

/// `pending`, the message `name` of rank `from` under `tag`; waiting for it is an error unless it matches `expected`.
pub(crate) fn as_known(
    pending: Pending,
    name: &'static str,
    (from, tag): (usize, u64),
    expected: (DType, Shape),
) -> Pending {
    Pending::new(move || {
        let t = pending.wait()?;
        match (t.dtype(), t.shape()) {
            found if found == expected => Ok(t),
            found => Err(Error::Unlike { tag, from, name, expected, found }),
        }
    })
}

/// A process group. `name` says what a tensor is, for traces and for the error message if ranks diverge.
///
/// Every rank of the group calls the same operations in the same order with tensors of one type and size. Sums are computed
/// in rank order: the same bits on every run.
pub trait Communicator: Send + Sync {
    /// Number of this rank inside the group.
    fn rank(&self) -> usize;
    /// Ranks of the group.
    fn size(&self) -> usize;
    /// Every rank gets the reduction of all ranks' tensors. bf16 is summed in f32 and rounded once.
    ///
    /// # Errors
    /// If a rank failed before; waiting reports the rest.
    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending>;
    /// Every rank gets the ranks' tensors one after the other along the first dimension.
    ///
    /// # Errors
    /// If a rank failed before; waiting reports the rest.
    fn all_gather(&self, name: &'static str, t: Tensor) -> Result<Pending>;
    /// Rank `r` gets part `r` of the sum of all ranks' tensors, flattened and cut into equal parts.
    ///
    /// # Errors
    /// If the tensor cannot be cut, or a rank failed before; waiting reports the rest.
    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending>;
    /// Every rank gets the tensor of rank `root`.
    ///
    /// # Errors
    /// If a rank failed before; waiting reports the rest.
    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> Result<Pending>;
    /// Rank `r` gets part `r` of every rank's tensor, in rank order; parts are equal cuts of the first dimension.
    ///
    /// # Errors
    /// If the tensor cannot be cut, or a rank failed before; waiting reports the rest.
    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending>;
    /// Sends the next `rows[r]` rows of `t` to rank `r` and returns the rows received from all ranks in rank order.
    ///
    /// # Errors
    /// If `rows` does not add up to the rows of `t`, or a rank failed before; waiting reports the rest.
    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending>;
    /// As [`Communicator::all_to_all_rows`], where it is known that `receive[r]` rows come from rank `r`.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_rows`].
    fn exchange_known_rows(
        &self,
        name: &'static str,
        t: Tensor,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Pending> {
        let _ = receive;
        self.all_to_all_rows(name, t, send)
    }
    /// Sends a tensor to rank `to` of the group, without waiting. `tag` distinguishes several messages.
    ///
    /// # Errors
    /// If a rank failed before.
    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()>;
    /// Receives the next tensor that rank `from` of the group sends under `tag`, into memory of `arena`.
    ///
    /// # Errors
    /// If a rank failed before; waiting reports the rest, and [`Error::Unexpected`] for a message of another name.
    fn recv(&self, name: &'static str, from: usize, tag: u64, arena: &Arena) -> Result<Pending>;
    /// As [`Communicator::recv`], with known element type and shape.
    ///
    /// # Errors
    /// As [`Communicator::recv`]; waiting also reports [`Error::Unlike`] for a message of another type or shape.
    fn recv_known(
        &self,
        name: &'static str,
        (from, tag): (usize, u64),
        (dtype, shape): (DType, Shape),
        arena: &Arena,
    ) -> Result<Pending> {
        Ok(as_known(self.recv(name, from, tag, arena)?, name, (from, tag), (dtype, shape)))
    }
    /// Bytes that this rank has sent through this group: what the best algorithm must send, not what a transport adds.
    /// Of `n` ranks and `b` bytes a rank: all-reduce `2 b (n-1)/n`, reduce-scatter `b (n-1)/n`, all-gather `b (n-1)`,
    /// broadcast `b` on its root, all-to-all the rows for others, a message its bytes.
    fn sent_bytes(&self) -> u64;
    /// Returns when every rank of the group has called it.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] if a rank fails meanwhile.
    fn barrier(&self) -> Result<()>;
    /// Runs `join`, in which this rank waits for a thread of its own that waits for other ranks. Deadlock detection takes this
    /// wait into account, and the limit on waiting runs for it: what wraps a communicator hands it on.
    fn joining(&self, join: &mut dyn FnMut()) {
        join();
    }
}

/// The transport between ranks: threads of one process, MPI, HCCL.
pub trait Fabric {
    /// This rank's number in the run.
    fn rank(&self) -> usize;
    /// Ranks of the run.
    fn world(&self) -> usize;
    /// A communicator for `ranks`, which all of them must request in the same order.
    ///
    /// # Errors
    /// As [`Fabric::place`].
    fn group(&self, ranks: &[usize]) -> Result<Arc<dyn Communicator>>;
    /// This rank's number in a group of `ranks`.
    ///
    /// # Errors
    /// [`Error::Group`] if this rank is not in the group or the group names a rank that does not exist.
    fn place(&self, ranks: &[usize]) -> Result<usize> {
        let (rank, world) = (self.rank(), self.world());
        let place = ranks.iter().position(|&r| r == rank).filter(|_| ranks.iter().all(|&r| r < world));
        place.ok_or_else(|| Error::Group { rank, world, group: ranks.to_vec() })
    }
}

/// The communicators that a rank has requested, counted by group: the same number on all of its ranks.
#[derive(Debug, Default)]
pub struct Requests(Mutex<HashMap<Vec<usize>, u64>>);

impl Requests {
    /// The number of this request for `ranks`, from 1 on.
    pub fn next(&self, ranks: &[usize]) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(ranks.to_vec()).or_default();
        *count += 1;
        *count
    }
}
