//! A process group together with the digits that tell its ranks apart.

use crate::{Communicator, ParallelCtx};
use ms_core::{Axis, Digits};
use std::ops::Deref;
use std::sync::Arc;

/// A process group, and the digits of the rank numbers that tell its ranks apart: along these an exchange changes sharding
/// states.
#[derive(Clone)]
pub struct AxisGroup {
    /// The group.
    pub comm: Arc<dyn Communicator>,
    /// The digits.
    pub over: Digits,
    /// Whether weight gradients are computed while gradients of values are in transit.
    pub(crate) overlap: bool,
}

impl Deref for AxisGroup {
    type Target = Arc<dyn Communicator>;

    fn deref(&self) -> &Self::Target {
        &self.comm
    }
}

impl ParallelCtx {
    fn axis_group(&self, comm: &Arc<dyn Communicator>, over: Digits) -> AxisGroup {
        AxisGroup { comm: comm.clone(), over, overlap: self.linears.weight_gradients }
    }

    /// Ranks that hold pieces of one matrix.
    pub fn tp_group(&self) -> AxisGroup {
        self.axis_group(&self.tp, self.digits.dense(Axis::Tp))
    }

    /// Ranks that hold pieces of one sequence.
    pub fn cp_group(&self) -> AxisGroup {
        self.axis_group(&self.cp, self.digits.dense(Axis::Cp))
    }

    /// The ranks among these that exchange heads for tokens.
    pub fn ulysses_group(&self) -> AxisGroup {
        self.axis_group(&self.ulysses, self.digits.ulysses())
    }

    /// The ranks among these that pass keys and values around a ring.
    pub fn ring_group(&self) -> AxisGroup {
        self.axis_group(&self.ring, self.digits.ring())
    }

    /// Ranks that hold different experts.
    pub fn ep_group(&self) -> AxisGroup {
        self.axis_group(&self.ep, self.digits.expert(Axis::Ep))
    }

    /// Ranks that hold pieces of one expert.
    pub fn etp_group(&self) -> AxisGroup {
        self.axis_group(&self.etp, self.digits.expert(Axis::Tp))
    }

    /// Ranks that together hold all experts.
    pub fn tp_ep_group(&self) -> AxisGroup {
        self.axis_group(&self.tp_ep, self.digits.expert(Axis::Tp).or(self.digits.expert(Axis::Ep)))
    }
}
