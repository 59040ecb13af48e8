//! Tensor-parallel communication as operations of a graph.
//!
//! A model calls only [`ParallelCtx::enter_tp`] and [`ParallelCtx::leave_tp`]; groups of one rank record
//! nothing, so a model has no `if tp > 1`.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/tensor_parallel/mappings.py`.

use crate::{Communicator, ParallelCtx, ReduceOp};
use ms_core::{BackwardCx, Graph, Op, Result, Tensor, Var};
use std::sync::Arc;

struct CopyToTp(Arc<dyn Communicator>);

impl Op for CopyToTp {
    fn name(&self) -> &'static str {
        "copy_to_tp"
    }

    fn backward(
        self: Box<Self>,
        _: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let sum = |dy| Ok(self.0.all_reduce("input gradient", dy, ReduceOp::Sum)?.wait()?);
        dys.into_iter().map(|dy| dy.map(sum).transpose()).collect()
    }
}

struct ReduceFromTp;

impl Op for ReduceFromTp {
    fn name(&self) -> &'static str {
        "reduce_from_tp"
    }

    fn backward(
        self: Box<Self>,
        _: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        Ok(dys)
    }
}

impl ParallelCtx {
    /// `x` as the input of layers whose rows are shared out over tensor-parallel ranks: the value as it is;
    /// its gradient is summed over the ranks.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn enter_tp(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        if self.tp.size() == 1 {
            return Ok(x.clone());
        }
        Ok(g.apply(x.value().clone(), &[x], || Box::new(CopyToTp(self.tp.clone()))))
    }

    /// The sum over tensor-parallel ranks of their partial products; the gradient passes as it is.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn leave_tp(&self, g: &mut Graph, y: &Var) -> Result<Var> {
        if self.tp.size() == 1 {
            return Ok(y.clone());
        }
        let sum = self.tp.all_reduce("layer output", y.value().clone(), ReduceOp::Sum)?.wait()?;
        Ok(g.apply(sum, &[y], || Box::new(ReduceFromTp)))
    }
}
