//! The builder that collects the parameters of one part after another.

use ms_core::{Axis, Partition};

use super::{Init, ParamSpec, SumGrad};
use crate::{ModelConfig, Norm, Part, Place, Role, Slot};

pub(crate) struct Table<'a> {
    config: &'a ModelConfig,
    pub(crate) list: Vec<ParamSpec>,
    place: Place,
    part: Part,
    half: Option<usize>,
}

/// A weight of the part that is being described, or what a module of it adds.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    role: Role,
    bias: bool,
}

impl From<Role> for Named {
    fn from(role: Role) -> Self {
        Self { role, bias: false }
    }
}

impl Role {
    /// What the module adds.
    pub(crate) const fn bias(self) -> Named {
        Named { role: self, bias: true }
    }
}

impl<'a> Table<'a> {
    pub(crate) fn new(config: &'a ModelConfig) -> Self {
        Self { config, list: Vec::new(), place: Place::Embedding, part: Part::Embedding, half: None }
    }

    /// What follows belongs to `place`, and to its `part`.
    pub(crate) const fn at(&mut self, place: Place, part: Part) {
        (self.place, self.part, self.half) = (place, part, None);
    }

    /// What follows belongs to this part of the same layer.
    pub(crate) const fn of(&mut self, part: Part) {
        self.part = part;
    }

    /// What follows belongs to a half of the same layer, or to all of it.
    pub(crate) const fn half(&mut self, half: Option<usize>) {
        self.half = half;
    }

    /// Rows cut by tensor-parallel ranks, in `blocks` blocks.
    pub(crate) const fn rows(blocks: usize) -> Partition {
        Partition::Split { axis: Axis::Tp, dim: 0, blocks }
    }

    /// Columns cut by tensor-parallel ranks.
    pub(crate) const fn columns() -> Partition {
        Partition::Split { axis: Axis::Tp, dim: 1, blocks: 1 }
    }

    /// Initial value of a matrix.
    pub(crate) fn std(&self) -> Init {
        Init::Normal { std: self.config.init_std }
    }

    /// Initial value of a matrix whose output goes into the residual stream.
    pub(crate) fn out_std(&self) -> Init {
        let slots = self.config.layers + self.config.empty_slots;
        Init::Normal { std: self.config.init_std / (2.0 * slots as f64).sqrt() }
    }

    /// Pushes a matrix `[rows, columns]` that every rank holds and that begins by Xavier's uniform rule, as upstream's
    /// `LinearNoTP` does.
    ///
    /// # Source
    /// MindSpeed-LLM's head (2026), `mindspeed_llm/core/tensor_parallel/layers.py`; 2.0.0,
    /// `mindspeed_llm/tasks/models/transformer/multi_head_latent_attention.py`.
    pub(crate) fn xavier(&mut self, role: Role, shape: [usize; 2], sum: SumGrad) {
        let bound = (6.0 / (shape[0] + shape[1]) as f64).sqrt();
        self.push(role, &shape, Partition::Replicated, Init::Uniform { bound }, sum);
    }

    pub(crate) fn push(
        &mut self,
        name: impl Into<Named>,
        shape: &[usize],
        partition: Partition,
        init: Init,
        sum: SumGrad,
    ) {
        let Named { role, bias } = name.into();
        let slot = Slot { place: self.place, part: self.part, half: self.half, role, bias };
        self.list.push(ParamSpec {
            slot,
            name: slot.name(),
            shape: ms_core::Shape::new(shape),
            partition,
            init,
            decay: shape.len() > 1,
            sum_grad_over: sum,
            updated_by: ms_core::UpdatedBy::Gradient,
            integral: false,
        });
    }

    pub(crate) fn matrix(
        &mut self,
        name: impl Into<Named>,
        shape: [usize; 2],
        partition: Partition,
        init: Init,
    ) {
        self.push(name, &shape, partition, init, SumGrad::No);
    }

    pub(crate) fn vector(
        &mut self,
        name: impl Into<Named>,
        size: usize,
        partition: Partition,
        init: Init,
        sum: SumGrad,
    ) {
        self.push(name, &[size], partition, init, sum);
    }

    /// A bias that every rank adds.
    pub(crate) fn whole_bias(&mut self, role: Role, size: usize) {
        self.vector(
            role.bias(),
            size,
            Partition::Replicated,
            Init::Zeros,
            SumGrad::OverTpWithSequenceParallel,
        );
    }

    /// A norm of the residual stream, of the model's kind.
    pub(crate) fn norm(&mut self, role: Role, size: usize) {
        self.norm_of(self.config.norm, role, size, SumGrad::OverTpWithSequenceParallel);
    }

    pub(crate) fn norm_of(&mut self, kind: Norm, role: Role, size: usize, sum: SumGrad) {
        let one = if kind == Norm::RmsUnitOffset { Init::Zeros } else { Init::Ones };
        self.vector(role, size, Partition::Replicated, one, sum);
        if kind == Norm::LayerNorm {
            self.vector(role.bias(), size, Partition::Replicated, Init::Zeros, sum);
        }
    }
}
