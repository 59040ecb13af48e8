//! Communicators: the collectives and messages of a process group.

use crate::Result;
use ms_core::{Arena, DType, Shape, Tensor};
use std::sync::Arc;

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum, added in rank order.
    Sum,
    /// The largest value.
    Max,
}

/// A collective that was started. Its buffers come back from [`Pending::wait`].
///
/// All ranks of a group wait for their pending collectives in the same order, which may be another one than that in which
/// they started them: a short exchange between long ones, say.
///
/// Between processes a rank's part is in transit once it has begun, so the others finish although it computes on and waits
/// later; but for large all-reduces, whose summed parts a rank passes on when it waits for them. Ranks that are threads read
/// each other's tensors where they lie, and all are waited for.
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
    /// [`crate::Error::PeerFailed`] if a rank fails meanwhile, [`crate::Error::Mismatch`] if ranks disagree
    /// about what they are doing.
    pub fn wait(self) -> Result<Tensor> {
        (self.0)()
    }
}

/// `pending`, the message `name` of rank `from` under `tag`, of which waiting is an error unless what comes is like `expected`.
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
            found => Err(crate::Error::Unlike { tag, from, name, expected, found }),
        }
    })
}

/// A group of ranks. `name` says what a tensor is, for traces and for the error when ranks disagree.
///
/// Every rank of the group calls the same operations in the same order with tensors of one type and size.
/// Sums are formed in rank order: the same bits on every run.
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
    /// Hands rank `r` the next `rows[r]` rows of `t` and returns the rows of all ranks in rank order, for as many rows as
    /// they sent here.
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
    /// Hands a tensor to rank `to` of the group; does not wait for it. `tag` says which of several messages it is.
    ///
    /// # Errors
    /// If a rank failed before.
    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()>;
    /// Gets the next tensor that rank `from` of the group sent here under `tag`, into memory of `arena`.
    ///
    /// # Errors
    /// If a rank failed before; waiting reports the rest, and [`crate::Error::Unexpected`] for a message of another name.
    fn recv(&self, name: &'static str, from: usize, tag: u64, arena: &Arena) -> Result<Pending>;
    /// As [`Communicator::recv`], where it is known what comes: its element type and shape.
    ///
    /// # Errors
    /// As [`Communicator::recv`]; waiting also reports [`crate::Error::Unlike`] for a message of another type or shape.
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
    /// [`crate::Error::PeerFailed`] if a rank fails meanwhile.
    fn barrier(&self) -> Result<()>;
    /// Runs `join`, in which this rank waits for a thread of its own that waits for other ranks: where ranks that wait for
    /// each other are noticed, this wait is counted.
    fn joining(&self, join: &mut dyn FnMut()) {
        join();
    }
}

/// How ranks reach each other: threads of one process, MPI, HCCL.
pub trait Fabric {
    /// This rank's number in the run.
    fn rank(&self) -> usize;
    /// Ranks of the run.
    fn world(&self) -> usize;
    /// A communicator for `ranks`, which all of them ask for in the same order.
    ///
    /// # Errors
    /// [`crate::Error::Group`] if this rank is not in the group or the group names a rank that does not exist.
    fn group(&self, ranks: &[usize]) -> Result<Arc<dyn Communicator>>;
}
