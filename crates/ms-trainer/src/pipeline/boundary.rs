//! Stage boundaries: activations passed from chunk to chunk, and gradients on the way back.

use super::messages::{MessagePart, PARTS};
use super::{Iteration, Output};
use crate::Result;
use ms_core::{DType, Shape, Tensor};
use ms_dist::schedule::{Message, Rendezvous};

/// Values, or gradients, at the border of two chunks: the stream and what later layers borrow.
#[derive(Clone)]
pub(super) struct BoundaryTensors {
    pub(super) stream: Tensor,
    pub(super) shared_kv: Option<Tensor>,
    pub(super) picks: Option<Tensor>,
}

impl Iteration<'_> {
    /// What a chunk before this one passed on.
    pub(super) fn input(&mut self, micro: usize, chunk: usize) -> Result<Option<BoundaryTensors>> {
        let at = self.position(chunk);
        (at > 0).then(|| self.fetch(micro, at - 1, at, false)).transpose()
    }

    pub(super) fn send_output(&mut self, output: &Output, micro: usize, chunk: usize) -> Result<()> {
        let Output::Activations(carry) = output else { return Ok(()) };
        let at = self.position(chunk);
        let boundary = BoundaryTensors {
            stream: carry.stream.value().clone(),
            shared_kv: carry.shared_kv.as_ref().map(|v| v.value().clone()),
            picks: carry.picks.clone(),
        };
        self.deliver(micro, at, at + 1, false, boundary)
    }

    pub(super) fn position(&self, chunk: usize) -> usize {
        self.this.chain.position(self.stage, chunk)
    }

    /// What a message is called: the micro-batch, the place in the chain it is for, and which of its parts.
    pub(super) fn tag(&self, micro: usize, to: usize, gradient: bool, part: usize) -> u64 {
        (((micro * self.this.chain.len() + to) * 2 + usize::from(gradient)) * PARTS + part) as u64
    }

    /// Gives `border` from place `from` of the chain to place `to`.
    pub(super) fn deliver(
        &mut self,
        micro: usize,
        from: usize,
        to: usize,
        gradient: bool,
        boundary: BoundaryTensors,
    ) -> Result<()> {
        debug_assert_eq!(self.this.chain[from].stage, self.stage);
        let stage = self.this.chain[to].stage;
        if stage == self.stage {
            self.local.insert((micro, to, gradient), boundary);
            return Ok(());
        }
        let pp = &self.ctx.pp;
        let name = if gradient { "gradients of a border" } else { "a border" };
        let tag = |part| self.tag(micro, to, gradient, part);
        let empty = |dtype| Tensor::zeros(self.device.arena(), dtype, [0]);
        pp.send(name, boundary.stream.clone(), stage, tag(0))?;
        if self.this.sends_more {
            pp.send(
                name,
                boundary.shared_kv.unwrap_or_else(|| empty(boundary.stream.dtype())),
                stage,
                tag(1),
            )?;
            pp.send(name, boundary.picks.unwrap_or_else(|| empty(DType::I32)), stage, tag(2))?;
        }
        Ok(())
    }

    /// Takes what place `from` of the chain gave to place `to`.
    pub(super) fn fetch(
        &mut self,
        micro: usize,
        from: usize,
        to: usize,
        gradient: bool,
    ) -> Result<BoundaryTensors> {
        let stage = self.this.chain[from].stage;
        if let Some(boundary) = self.local.remove(&(micro, to, gradient)) {
            return Ok(boundary);
        }
        assert_ne!(stage, self.stage, "the schedule was checked");
        let (pp, this) = (&self.ctx.pp, self.this);
        let name = if gradient { "gradients of a border" } else { "a border" };
        let trains = this.config.loss.indexer.is_some() && self.iteration.is_some();
        let get = |part| -> Result<Tensor> {
            let message = MessagePart { part, before: from.max(to), gradient };
            let known = this.messages.like(message, self.sizes[micro], self.ctx, trains);
            let tag = self.tag(micro, to, gradient, part);
            Ok(pp.recv_known(name, (stage, tag), known, self.device.arena())?.wait()?)
        };
        let stream = get(0)?;
        let more = |part| -> Result<Option<Tensor>> {
            if !self.this.sends_more {
                return Ok(None);
            }
            Ok(Some(get(part)?).filter(|t| t.numel() > 0))
        };
        Ok(BoundaryTensors { stream, shared_kv: more(1)?, picks: more(2)? })
    }
}

impl Iteration<'_> {
    /// Takes what other stages have sent, and waits until they have taken what this one has.
    pub(super) fn wait_for(&mut self, rendezvous: Option<&Vec<Rendezvous>>) -> Result<()> {
        for &what in rendezvous.into_iter().flatten() {
            let (Rendezvous::Receive(message) | Rendezvous::WaitSent(message)) = what;
            let Message { micro, from, to } = message;
            let gradient = to < from;
            let (tag, arena) = (self.tag(micro, to, gradient, 0), self.device.arena());
            if let Rendezvous::Receive(_) = what {
                let boundary = self.fetch(micro, from, to, gradient)?;
                self.local.insert((micro, to, gradient), boundary);
                let word = Tensor::zeros(self.device.arena(), DType::I32, [0]);
                self.ctx.pp.send(TAKEN, word, self.this.chain[from].stage, tag)?;
            } else {
                let known = (DType::I32, Shape::new(&[0]));
                self.ctx.pp.recv_known(TAKEN, (self.this.chain[to].stage, tag), known, arena)?.wait()?;
            }
        }
        Ok(())
    }
}

/// What says that a border has been taken.
const TAKEN: &str = "a border taken";
