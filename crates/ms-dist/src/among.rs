//! A process group together with the digits that tell its ranks apart.

use crate::{Communicator, ParallelCtx};
use ms_core::{Axis, Digits};
use std::ops::Deref;
use std::sync::Arc;

/// A group of ranks, and the digits of their numbers that tell them apart: along those an exchange changes what ranks hold.
#[derive(Clone)]
pub struct Among {
    /// The group.
    pub comm: Arc<dyn Communicator>,
    /// The digits.
    pub over: Digits,
    /// Whether they form gradients of weights while those of values are in transit.
    pub(crate) beside: bool,
}

impl Deref for Among {
    type Target = Arc<dyn Communicator>;

    fn deref(&self) -> &Self::Target {
        &self.comm
    }
}

impl ParallelCtx {
    fn among(&self, comm: &Arc<dyn Communicator>, over: Digits) -> Among {
        Among { comm: comm.clone(), over, beside: self.linears.weight_gradients }
    }

    /// Ranks that hold pieces of one matrix.
    pub fn among_tp(&self) -> Among {
        self.among(&self.tp, self.digits.dense(Axis::Tp))
    }

    /// Ranks that hold pieces of one sequence.
    pub fn among_cp(&self) -> Among {
        self.among(&self.cp, self.digits.dense(Axis::Cp))
    }

    /// Of those, the ranks that exchange heads for tokens.
    pub fn among_ulysses(&self) -> Among {
        self.among(&self.ulysses, self.digits.ulysses())
    }

    /// Of those, the ranks that pass keys and values around.
    pub fn among_ring(&self) -> Among {
        self.among(&self.ring, self.digits.ring())
    }

    /// Ranks that hold different experts.
    pub fn among_ep(&self) -> Among {
        self.among(&self.ep, self.digits.expert(Axis::Ep))
    }

    /// Ranks that hold pieces of one expert.
    pub fn among_etp(&self) -> Among {
        self.among(&self.etp, self.digits.expert(Axis::Tp))
    }

    /// Ranks that together hold all experts.
    pub fn among_tp_ep(&self) -> Among {
        self.among(&self.tp_ep, self.digits.expert(Axis::Tp).or(self.digits.expert(Axis::Ep)))
    }
}
