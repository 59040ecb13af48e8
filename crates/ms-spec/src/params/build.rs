//! Collects the parameters of one part after the other.

use ms_core::{Axis, Partition};

use super::{Init, ParamSpec, Place, SumGrad};
use crate::{ModelConfig, Norm};

pub(crate) struct Table<'a> {
    config: &'a ModelConfig,
    pub(crate) list: Vec<ParamSpec>,
    place: Place,
    prefix: String,
}

impl<'a> Table<'a> {
    pub(crate) fn new(config: &'a ModelConfig) -> Self {
        Self { config, list: Vec::new(), place: Place::Embedding, prefix: String::new() }
    }

    /// What follows belongs to `place` and has names that begin with `prefix`.
    pub(crate) fn at(&mut self, place: Place, prefix: &str) {
        self.place = place;
        prefix.clone_into(&mut self.prefix);
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
        Init::Normal { std: self.config.init_std / (2.0 * self.config.layers as f64).sqrt() }
    }

    pub(crate) fn push(
        &mut self,
        name: &str,
        shape: &[usize],
        partition: Partition,
        init: Init,
        sum: SumGrad,
    ) {
        self.list.push(ParamSpec {
            name: format!("{}{name}", self.prefix),
            shape: ms_core::Shape::new(shape),
            partition,
            place: self.place,
            init,
            decay: shape.len() > 1,
            sum_grad_over: sum,
            trained: true,
            integral: false,
        });
    }

    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2], partition: Partition, init: Init) {
        self.push(name, &shape, partition, init, SumGrad::No);
    }

    pub(crate) fn vector(&mut self, name: &str, size: usize, partition: Partition, init: Init, sum: SumGrad) {
        self.push(name, &[size], partition, init, sum);
    }

    /// A bias that every rank adds.
    pub(crate) fn whole_bias(&mut self, name: &str, size: usize) {
        self.vector(name, size, Partition::Replicated, Init::Zeros, SumGrad::OverTpWithSequenceParallel);
    }

    /// A norm of the residual stream, of the model's kind.
    pub(crate) fn norm(&mut self, name: &str, size: usize) {
        self.norm_of(self.config.norm, name, size, SumGrad::OverTpWithSequenceParallel);
    }

    pub(crate) fn norm_of(&mut self, kind: Norm, name: &str, size: usize, sum: SumGrad) {
        let one = if kind == Norm::RmsUnitOffset { Init::Zeros } else { Init::Ones };
        self.vector(&format!("{name}.weight"), size, Partition::Replicated, one, sum);
        if kind == Norm::LayerNorm {
            self.vector(&format!("{name}.bias"), size, Partition::Replicated, Init::Zeros, sum);
        }
    }
}
