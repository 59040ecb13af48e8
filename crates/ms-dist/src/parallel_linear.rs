//! Tensor-parallel linear layers that overlap communication with their matrix products.
//!
//! An exchange and the adjacent product are one operation here, so that one can run while the other is in progress: the input
//! gradient is reduced while the weight gradient is computed, and, where products are cut into pieces along the tokens, one
//! piece is computed while another is exchanged. Neither changes a bit: the rows of a product are independent of each other
//! (pieces never get so few rows that kernels would sum in another order), and sums over ranks are element-wise.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/tensor_parallel/layers.py`; pieces: MindSpeed (2026),
//! `mindspeed/core/tensor_parallel/coc_feature`, its default form.

use crate::{AxisGroup, LinearOverlap, ParallelCtx, Pending, PendingEnterTp, ReduceOp, volume};
use ms_core::shard_state::{self, InputStates, OutputState, ShardState};
use ms_core::{BackwardCx, Device, Digit, Grads, Graph, Op, Result, Saved, Shape, Tensor, Var, ops};

/// The ranks that share the weights of a layer, and how they exchange its input or output.
#[derive(Clone)]
pub(crate) struct LinearGroup {
    pub(crate) comm: AxisGroup,
    /// Outside the layer, a rank holds only its shard of the tokens.
    pub(crate) sequence_parallel: bool,
    overlap: LinearOverlap,
}

impl LinearGroup {
    /// A started collective; waited for at once if nothing should overlap with it.
    pub(crate) fn overlapped(&self, pending: Pending) -> Result<Pending> {
        if self.overlap.weight_gradients { Ok(pending) } else { Ok(Pending::ready(pending.wait()?)) }
    }

    /// Starts the sum over the ranks of `t`, for all tokens or for each rank's shard.
    pub(crate) fn begin_sum(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        if !self.sequence_parallel {
            return Ok(self.comm.all_reduce(name, t, ReduceOp::Sum)?);
        }
        let (rows, size) = (t.dim(0), self.comm.size());
        volume::check_parts(name, rows, size)?;
        let mut shape = t.shape().to_vec();
        shape[0] = rows / size;
        let pending = self.comm.reduce_scatter(name, t)?;
        Ok(Pending::new(move || Ok(pending.wait()?.reshape(Shape::new(&shape))?)))
    }

    /// The sharding state outside the layer.
    const fn outside(&self) -> ShardState {
        if self.sequence_parallel { ShardState::Tokens } else { ShardState::Invariant }
    }

    /// Number of token shards outside the layer: one if every rank has all tokens.
    pub(crate) fn shares(&self) -> usize {
        if self.sequence_parallel { self.comm.size() } else { 1 }
    }

    /// The positions of piece `piece` of `pieces` among `rows` rows of all tokens, and the length of its runs: it has one run
    /// from each shard.
    fn places(&self, rows: usize, piece: usize, pieces: usize) -> (Vec<usize>, usize) {
        let shares = self.shares();
        let (share, run) = (rows / shares, rows / shares / pieces);
        ((0..shares).map(|rank| rank * share + piece * run).collect(), run)
    }

    /// Gathers all tokens from the shards `x`, piece by piece: `made` gets the rows of one piece, with their places, while
    /// the next is in transit.
    fn gathered(
        &self,
        name: &'static str,
        x: &Tensor,
        mut made: impl FnMut(Tensor, &[usize], usize) -> Result<()>,
    ) -> Result<()> {
        let (own, all) = (x.dim(0), x.dim(0) * self.comm.size());
        let pieces = self.overlap.pieces.of(all, self.shares());
        let begin = |piece: usize| self.comm.all_gather(name, x.rows(piece * (own / pieces), own / pieces)?);
        let mut next = Some(begin(0)?);
        for piece in 0..pieces {
            let here = next.take().expect("begun the turn before");
            if piece + 1 < pieces {
                next = Some(begin(piece + 1)?);
            }
            let (places, run) = self.places(all, piece, pieces);
            made(here.wait()?, &places, run)?;
        }
        Ok(())
    }

    /// Sums over the ranks the rows that `make` computes from rows of `x`, piece by piece: one is computed while the previous
    /// ones are in transit.
    fn summed(
        &self,
        name: &'static str,
        x: &Tensor,
        make: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (rows, own) = (x.dim(0), x.dim(0) / self.shares());
        let pieces = self.overlap.pieces.of(rows, self.shares());
        if pieces == 1 {
            return Ok(self.begin_sum(name, make(x)?)?.wait()?);
        }
        let mut pending = Vec::with_capacity(pieces);
        for piece in 0..pieces {
            let (places, run) = self.places(rows, piece, pieces);
            pending.push(self.begin_sum(name, make(&take_rows(x, &places, run)?)?)?);
        }
        let mut sum: Option<Tensor> = None;
        for (piece, part) in pending.into_iter().enumerate() {
            let part = part.wait()?;
            let run = own / pieces;
            put_rows(&mut sum, &part, own, &[piece * run], run)?;
        }
        Ok(sum.expect("there is a piece"))
    }
}

/// Runs of `run` rows of `x` from `places` on, one after the other.
fn take_rows(x: &Tensor, places: &[usize], run: usize) -> Result<Tensor> {
    if let [place] = places {
        return x.rows(*place, run);
    }
    let mut shape = x.shape().to_vec();
    shape[0] = places.len() * run;
    let mut taken = Tensor::uninit(x.arena(), x.dtype(), Shape::new(&shape));
    let width = x.numel() / x.dim(0).max(1);
    for (i, &place) in places.iter().enumerate() {
        taken.put(i * run * width, &x.rows(place, run)?)?;
    }
    Ok(taken)
}

/// Writes the rows of `part`, run after run, to their `places` among `rows` rows.
fn put_rows(to: &mut Option<Tensor>, part: &Tensor, rows: usize, places: &[usize], run: usize) -> Result<()> {
    if part.dim(0) == rows && places.len() * run == rows {
        *to = Some(part.clone());
        return Ok(());
    }
    let to = to.get_or_insert_with(|| {
        let mut shape = part.shape().to_vec();
        shape[0] = rows;
        Tensor::uninit(part.arena(), part.dtype(), Shape::new(&shape))
    });
    let width = part.numel() / part.dim(0).max(1);
    for (i, &place) in places.iter().enumerate() {
        to.put(place * width, &part.rows(i * run, run)?)?;
    }
    Ok(())
}

/// Column-parallel layers with the same input.
struct Columns {
    group: LinearGroup,
    /// All tokens, or under sequence parallelism the rank's shard, which is gathered again.
    x: Saved,
    w: Vec<Saved>,
}

impl Op for Columns {
    fn name(&self) -> &'static str {
        "column_parallel"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let over = self.group.comm.over;
        if !over.contains(along) {
            return shard_state::nonlinear(inputs);
        }
        let (x, layers) = inputs.split_at(1);
        let x = over.exchanged(along, x, &[self.group.outside()], ShardState::Replicated)?;
        let of = |layer: &[Option<ShardState>]| shard_state::linear_layer(&[x, layer[0], layer[1]]);
        // If some of the layers are replicated, their outputs are replicated too.
        layers
            .chunks(2)
            .try_fold(Some(ShardState::Replicated), |all, layer| shard_state::nonlinear(&[all, of(layer)?]))
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let Self { group, x, w } = *self;
        let device = cx.device.clone();
        let x = x.get(&device)?;
        let x = if group.sequence_parallel {
            group.overlapped(group.comm.all_gather("gathered again", x)?)?
        } else {
            Pending::ready(x)
        };
        let w = w.iter().map(|w| w.get(&device)).collect::<Result<Vec<_>>>()?;
        let mut dx: Option<Tensor> = None;
        // From the last to the first, like a tape.
        for (dy, w) in dys.iter().zip(&w).rev() {
            let Some(dy) = dy else { continue };
            let part = device.linear_dx(dy, w)?;
            match &mut dx {
                None => dx = Some(part),
                Some(sum) => device.add_assign(sum, &part)?,
            }
        }
        let dx = dx.expect("an output has a gradient");
        let dx = group.overlapped(group.begin_sum("enter_tp", dx)?)?;
        let x = x.wait()?;
        let mut gradients = vec![None; 1 + 2 * w.len()];
        for (k, (dy, w)) in dys.into_iter().zip(&w).enumerate() {
            let Some(dy) = dy else { continue };
            cx.with_gradient(2 + 2 * k, |db| db.map_or(Ok(()), |db| device.linear_db(db, &dy)))?;
            let x = x.clone();
            gradients[1 + 2 * k] =
                cx.weight_gradient(1 + 2 * k, w, move |device, dw| device.linear_dw(dw, &dy, &x))?;
        }
        gradients[0] = Some(dx.wait()?);
        Ok(gradients)
    }
}

/// A row-parallel layer.
struct Rows {
    group: LinearGroup,
    x: Saved,
    w: Saved,
}

impl Rows {
    /// The gradient with respect to the rank's inputs, and that with respect to its outputs for all tokens.
    fn gradients(&self, device: &Device, w: &Tensor, dy: Tensor) -> Result<(Tensor, Tensor)> {
        if !self.group.sequence_parallel {
            return Ok((device.linear_dx(&dy, w)?, dy));
        }
        let all = dy.dim(0) * self.group.comm.size();
        let (mut dx, mut dys) = (None, None);
        self.group.gathered("leave_tp", &dy, |dy, places, run| {
            put_rows(&mut dx, &device.linear_dx(&dy, w)?, all, places, run)?;
            put_rows(&mut dys, &dy, all, places, run)
        })?;
        Ok((dx.expect("there is a piece"), dys.expect("there is a piece")))
    }
}

impl Op for Rows {
    fn name(&self) -> &'static str {
        "row_parallel"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let product = [shard_state::linear_layer(inputs)?];
        self.group.comm.over.exchanged(along, &product, &[ShardState::Partial], self.group.outside())
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let device = cx.device.clone();
        let w = self.w.get(&device)?;
        let dy = dys.into_iter().flatten().next().expect("the output has a gradient");
        let (dx, dy) = self.gradients(&device, &w, dy)?;
        let x = self.x.get(&device)?;
        let dw = cx.weight_gradient(1, &w, move |device, dw| device.linear_dw(dw, &dy, &x))?;
        Ok(vec![Some(dx), dw])
    }
}

/// The output of a layer for `x`.
fn through(device: &Device, x: &Tensor, (w, b): &(Var, Option<Var>)) -> Result<Tensor> {
    device.linear(x, w.value(), b.as_ref().map(Var::value))
}

impl ParallelCtx {
    pub(crate) fn linear_group(&self) -> LinearGroup {
        let (comm, sequence_parallel, overlap) = (self.tp_group(), self.sequence_parallel, self.linears);
        LinearGroup { comm, sequence_parallel, overlap }
    }

    /// Column-parallel linear layers with one input: from `x[T,H]`, or under sequence parallelism from the ranks' shards
    /// `[T/tp,H]`, to `[T,N/tp]` for each of the `layers`, a weight `[N/tp,H]` and a bias `[N/tp]`. Saves the weights and
    /// `x`; under sequence parallelism, the other ranks' shards are gathered again in the backward pass.
    ///
    /// # Errors
    /// If shapes or element types do not fit, or a rank fails.
    pub fn column_parallel(&self, g: &mut Graph, x: &Var, layers: &[(Var, Option<Var>)]) -> Result<Vec<Var>> {
        if self.tp.size() == 1 {
            return layers.iter().map(|(w, b)| ops::linear(g, x, w, b.as_ref())).collect();
        }
        let group = self.linear_group();
        if !group.sequence_parallel {
            return self.columns_of(g, (x, x.value().clone()), layers);
        }
        let (device, all) = (g.device().clone(), x.value().dim(0) * self.tp.size());
        let mut ys = vec![None; layers.len()];
        group.gathered("enter_tp", x.value(), |x, places, run| {
            let mut made = ys.iter_mut().zip(layers);
            made.try_for_each(|(y, layer)| put_rows(y, &through(&device, &x, layer)?, all, places, run))
        })?;
        let ys = ys.into_iter().map(|y| y.expect("there is a piece")).collect();
        Ok(self.record_columns(g, x, layers, ys))
    }

    /// [`ParallelCtx::column_parallel`] for an input whose gather was started.
    ///
    /// # Errors
    /// As that.
    pub fn column_parallel_entered(
        &self,
        g: &mut Graph,
        x: PendingEnterTp,
        layers: &[(Var, Option<Var>)],
    ) -> Result<Vec<Var>> {
        let (x, all) = x.wait()?;
        match self.tp.size() {
            1 => self.column_parallel(g, &x, layers),
            _ => self.columns_of(g, (&x, all), layers),
        }
    }

    /// Layers of `x`; `all` are the rows of all ranks.
    fn columns_of(
        &self,
        g: &mut Graph,
        (x, all): (&Var, Tensor),
        layers: &[(Var, Option<Var>)],
    ) -> Result<Vec<Var>> {
        let device = g.device().clone();
        let ys = layers.iter().map(|layer| through(&device, &all, layer)).collect::<Result<_>>()?;
        Ok(self.record_columns(g, x, layers, ys))
    }

    fn record_columns(
        &self,
        g: &mut Graph,
        x: &Var,
        layers: &[(Var, Option<Var>)],
        ys: Vec<Tensor>,
    ) -> Vec<Var> {
        let group = self.linear_group();
        let none = g.constant(x.value().clone());
        let weights = layers.iter().flat_map(|(w, b)| [w, b.as_ref().unwrap_or(&none)]);
        let inputs: Vec<&Var> = std::iter::once(x).chain(weights).collect();
        let w = || layers.iter().map(|(w, _)| w.saved()).collect();
        g.apply_each(ys, &inputs, || Box::new(Columns { group, x: x.saved(), w: w() }))
    }

    /// A row-parallel linear layer: the sum over tensor-parallel ranks of `x[T,K/tp] · w[N,K/tp]ᵀ`, whole `[T,N]`, or under
    /// sequence parallelism this rank's shard `[T/tp,N]`, plus `bias[N]`. Saves `x` and `w`.
    ///
    /// # Errors
    /// If shapes or element types do not fit, the tokens do not divide, or a rank fails.
    pub fn row_parallel(&self, g: &mut Graph, x: &Var, w: &Var, bias: Option<&Var>) -> Result<Var> {
        if self.tp.size() == 1 {
            return ops::linear(g, x, w, bias);
        }
        let (group, device) = (self.linear_group(), g.device().clone());
        let y = group.summed("leave_tp", x.value(), |x| device.linear(x, w.value(), None))?;
        let y = g.apply(y, &[x, w], || Box::new(Rows { group, x: x.saved(), w: w.saved() }));
        bias.map_or_else(|| Ok(y.clone()), |bias| ops::add_bias(g, &y, bias))
    }
}

#[cfg(test)]
mod tests;
