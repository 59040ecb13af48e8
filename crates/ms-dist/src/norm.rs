//! Norms over rows whose columns are sharded over ranks.

use crate::{AxisGroup, Communicator, ParallelCtx, ReduceOp};
use ms_core::shard_state::{self, InputStates, OutputState, ShardState};
use ms_core::{BackwardCx, DType, Device, Digit, Grads, Graph, Op, Result, Saved, Tensor, Var, ops};

/// The sum over ranks of a number for each token.
fn sum(comm: &dyn Communicator, t: Tensor) -> Result<Tensor> {
    Ok(comm.all_reduce("statistics of a norm", t, ReduceOp::Sum)?.wait()?)
}

/// `f` of every number of `t[T]`, computed in f64.
fn map(t: &Tensor, f: impl Fn(f64) -> f64) -> Result<Tensor> {
    let values: Vec<f64> = t.ready()?.to_reals()?.into_iter().map(f).collect();
    Tensor::from_reals(t.arena(), t.dtype(), [values.len()], &values)
}

/// `t[T,W/tp]` minus the mean of every whole row.
fn centred(device: &Device, comm: &dyn Communicator, t: &Tensor) -> Result<Tensor> {
    let (rows, width) = t.as_matrix();
    let ones = Tensor::from_reals(device.arena(), t.dtype(), [rows, width], &vec![1.0; rows * width])?;
    let whole = (width * comm.size()) as f64;
    let less = map(&sum(comm, device.row_dot(t, &ones)?)?, |s| -s / whole)?;
    device.add(t, &device.scale_rows(&ones, &less)?)
}

/// The state rule for column-sharded inputs `[x, ..]`: statistics are summed over the ranks.
fn of_columns(ranks: &AxisGroup, along: Digit, inputs: InputStates<'_>) -> OutputState {
    match (ranks.over.contains(along), inputs.first()) {
        (true, Some(Some(state))) if !matches!(state, ShardState::Sharded | ShardState::Constant) => {
            Err(shard_state::StateConflict)
        }
        _ => shard_state::nonlinear(inputs),
    }
}

struct CentreOverTp(AxisGroup);

impl Op for CentreOverTp {
    fn name(&self) -> &'static str {
        "centre_over_tp"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        of_columns(&self.0, along, inputs)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        // Subtracting the mean is a projection, which is its own transpose.
        let back = |dy: Tensor| centred(cx.device, &**self.0, &dy);
        dys.into_iter().map(|dy| dy.map(back).transpose()).collect()
    }
}

struct NormOverTp {
    ranks: AxisGroup,
    x: Saved,
    w: Saved,
    rstd: Tensor,
    width: usize,
}

impl Op for NormOverTp {
    fn name(&self) -> &'static str {
        "rms_norm_over_tp"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        of_columns(&self.ranks, along, inputs)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, mut dys: Grads) -> Result<Grads> {
        let dy = dys.swap_remove(0).expect("a backward runs only where a gradient arrived");
        let Self { ranks, x, w, rstd, width } = *self;
        let device: Device = cx.device.clone();
        let (x, w) = (x.get(&device)?, w.get(&device)?);
        // dx = rstd · (dy · w) − x · rstd³ · mean(dy · w · x), the mean over the whole row.
        let scaled = device.scale_columns(&dy, &w)?;
        let along = sum(&**ranks, device.row_dot(&scaled, &x)?)?;
        let along = along.ready()?.to_reals()?.into_iter().zip(rstd.ready()?.to_reals()?);
        let factor: Vec<f64> = along.map(|(a, r)| -(r * r * r * a / width as f64)).collect();
        let factor = Tensor::from_reals(device.arena(), rstd.dtype(), [factor.len()], &factor)?;
        let dx = device.add(&device.scale_rows(&scaled, &rstd)?, &device.scale_rows(&x, &factor)?)?;
        let dw = cx.weight_gradient(1, &w, move |device, dw| {
            device.scale_columns_backward(dw, &dy, &device.scale_rows(&x, &rstd)?)
        })?;
        Ok(vec![Some(dx), dw])
    }
}

impl ParallelCtx {
    /// RMSNorm of rows whose columns the tensor-parallel ranks share: `x[T,W/tp]` and `w[W/tp]` are this rank's part of each.
    ///
    /// `y[t,i] = x[t,i] · w[i] / sqrt(mean over the whole row of x² + eps)`. Saves `x` and one number per token; one number
    /// per token is summed over the ranks, forward and backward.
    ///
    /// # Errors
    /// If a rank fails or shapes do not fit.
    pub fn rms_norm_over_tp(&self, g: &mut Graph, x: &Var, w: &Var, eps: f64) -> Result<Var> {
        let device = g.device().clone();
        let width = x.value().as_matrix().1 * self.tp.size();
        let squares = sum(&*self.tp, device.row_dot(x.value(), x.value())?)?;
        // Rounded as kernels round it, like the norm of a single rank.
        let eps = if x.value().dtype() == DType::F64 { eps } else { f64::from(eps as f32) };
        let rstd = map(&squares, |s| 1.0 / (s / width as f64 + eps).sqrt())?;
        let y = device.scale_columns(&device.scale_rows(x.value(), &rstd)?, w.value())?;
        Ok(g.apply(y, &[x, w], || {
            let (x, w) = (x.saved(), w.saved());
            Box::new(NormOverTp { ranks: self.tp_group(), x, w, rstd, width })
        }))
    }

    /// LayerNorm of rows whose columns the tensor-parallel ranks share, as [`ParallelCtx::rms_norm_over_tp`]: RMSNorm of the
    /// rows less their means, with `b[W/tp]` added. Two numbers for each token are summed over the ranks, forward and backward.
    ///
    /// # Errors
    /// If a rank fails or shapes do not fit.
    pub fn layer_norm_over_tp(
        &self,
        g: &mut Graph,
        x: &Var,
        w: &Var,
        b: Option<&Var>,
        eps: f64,
    ) -> Result<Var> {
        let less = centred(g.device(), &*self.tp, x.value())?;
        let less = g.apply(less, &[x], || Box::new(CentreOverTp(self.tp_group())));
        let y = self.rms_norm_over_tp(g, &less, w, eps)?;
        match b {
            Some(b) => ops::add_bias(g, &y, b),
            None => Ok(y),
        }
    }
}
