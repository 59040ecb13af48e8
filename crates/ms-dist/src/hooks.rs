//! Communicators that wrap others: every exchange goes through a hook that can observe, delay, corrupt or drop it. The
//! communication tests are built on these.

use crate::communicator::as_known;
use crate::{Communicator, ParallelCtx, Pending, ReduceOp, Result};
use ms_core::{Arena, DType, Shape, Tensor};
use std::sync::Arc;

/// An exchange that is about to begin.
pub struct CommCall<'a> {
    /// `all_reduce`, `recv`, ...: the function of [`Communicator`].
    pub kind: &'static str,
    /// What the tensor is.
    pub name: &'static str,
    /// What the rank would have if it were alone, if it contributes something.
    pub own: Option<Tensor>,
    /// The group.
    pub group: &'a dyn Communicator,
    /// For a message: the peer in the group, and the tag.
    pub message: Option<(usize, u64)>,
}

/// A hook around every exchange of a rank.
pub trait CommHook: Send + Sync {
    /// Starts the exchange with `begin`, or does something else. For a sent message and for a barrier, the resulting tensor
    /// is meaningless.
    ///
    /// # Errors
    /// Those of the exchange, and what the hook finds.
    fn exchange(&self, of: CommCall<'_>, begin: &mut dyn FnMut() -> Result<Pending>) -> Result<Pending>;
}

/// A communicator around another.
struct HookedComm {
    inner: Arc<dyn Communicator>,
    hook: Arc<dyn CommHook>,
}

impl HookedComm {
    fn exchange(
        &self,
        kind: &'static str,
        name: &'static str,
        own: Option<Tensor>,
        begin: &mut dyn FnMut() -> Result<Pending>,
    ) -> Result<Pending> {
        self.hook.exchange(CommCall { kind, name, own, group: &*self.inner, message: None }, begin)
    }
}

impl Communicator for HookedComm {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending> {
        self.exchange("all_reduce", name, Some(t.clone()), &mut || self.inner.all_reduce(name, t.clone(), op))
    }

    fn all_gather(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        self.exchange("all_gather", name, Some(t.clone()), &mut || self.inner.all_gather(name, t.clone()))
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let part = t.numel() / self.size();
        let own = t.slice_flat(self.rank() * part, [part])?;
        self.exchange("reduce_scatter", name, Some(own), &mut || self.inner.reduce_scatter(name, t.clone()))
    }

    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> Result<Pending> {
        self.exchange("broadcast", name, Some(t.clone()), &mut || self.inner.broadcast(name, t.clone(), root))
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        self.exchange("all_to_all", name, Some(t.clone()), &mut || self.inner.all_to_all(name, t.clone()))
    }

    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending> {
        self.exchange("all_to_all_rows", name, Some(t.clone()), &mut || {
            self.inner.all_to_all_rows(name, t.clone(), rows)
        })
    }

    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> Result<()> {
        let (own, group, message) = (Some(t.clone()), &*self.inner, Some((to, tag)));
        let of = CommCall { kind: "send", name, own, group, message };
        let sent = self.hook.exchange(of, &mut || {
            self.inner.send(name, t.clone(), to, tag)?;
            Ok(Pending::ready(t.clone()))
        });
        sent?.wait().map(drop)
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64, arena: &Arena) -> Result<Pending> {
        let (group, message) = (&*self.inner, Some((from, tag)));
        let of = CommCall { kind: "recv", name, own: None, group, message };
        self.hook.exchange(of, &mut || self.inner.recv(name, from, tag, arena))
    }

    fn recv_known(
        &self,
        name: &'static str,
        (from, tag): (usize, u64),
        known: (DType, Shape),
        arena: &Arena,
    ) -> Result<Pending> {
        let (group, message) = (&*self.inner, Some((from, tag)));
        let of = CommCall { kind: "recv", name, own: None, group, message };
        let begin = &mut || self.inner.recv_known(name, (from, tag), known, arena);
        Ok(as_known(self.hook.exchange(of, begin)?, name, (from, tag), known))
    }

    fn sent_bytes(&self) -> u64 {
        self.inner.sent_bytes()
    }

    fn barrier(&self) -> Result<()> {
        let nothing = || Tensor::zeros(&ms_core::Arena::default(), ms_core::DType::F32, [0]);
        let done = self.exchange("barrier", "ranks", None, &mut || {
            self.inner.barrier()?;
            Ok(Pending::ready(nothing()))
        });
        done?.wait().map(drop)
    }

    fn joining(&self, join: &mut dyn FnMut()) {
        self.inner.joining(join);
    }
}

impl ParallelCtx {
    /// The same context, with `around` hooked into all its groups of more than one rank.
    #[must_use]
    pub fn with_hook(mut self, hook: &Arc<dyn CommHook>) -> Self {
        for group in self.groups_mut() {
            if group.size() > 1 {
                *group = Arc::new(HookedComm { inner: group.clone(), hook: hook.clone() });
            }
        }
        self
    }
}
