//! A process group together with the digits that tell its ranks apart.

use crate::{Communicator, ParallelCtx};
use ms_core::{Axis, Digits};
use std::ops::Deref;
use std::sync::Arc;

/// A process group, and the digits of the rank numbers that tell its ranks apart: along these an exchange changes sharding
/// states.
#[derive(Clone)]
pub struct Among {
    /// The group.
    pub comm: Arc<dyn Communicator>,
    /// The digits.
    pub over: Digits,
    /// Whether weight gradients are computed while gradients of values are in transit.
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

    /// The ranks among these that exchange heads for tokens.
    pub fn among_ulysses(&self) -> Among {
        self.among(&self.ulysses, self.digits.ulysses())
    }

    /// The ranks among these that pass keys and values around a ring.
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
