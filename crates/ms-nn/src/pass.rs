//! A pass over the layers: the state that one layer passes to the next, and the parallel linear layers that they call.

use crate::Batch;
use crate::batch::NoiseSite;
use crate::feed::{AuxiliaryLoss, RouterLoad};
use crate::params::Linear;
use ms_core::{
    Axis, Columns, Device, Dispatcher, Graph, Host, Noise, ParamId, ParamStore, RingCachePolicy, Saved,
    ShardState, Tensor, Var, ops,
};
use ms_dist::{ContextParallel, GatheredRows, ParallelCtx, PendingEnterTp, TokenSharding};
use ms_spec::{LayerSavePolicy, Swapped};
use std::ops::Range;
use std::sync::Arc;

/// What a layer passes to the next: the residual stream, and values that later layers borrow. It crosses pipeline stage
/// boundaries.
#[derive(Clone)]
pub struct Carry {
    /// The residual stream `[T,H]`, or streams `[T,n·H]`.
    pub stream: Var,
    /// Packed rows of the last layer with keys and values of its own, where later ones borrow them.
    pub shared_kv: Option<Var>,
    /// The keys that the last indexer picked, where later layers borrow them; without a gradient.
    pub picks: Option<Tensor>,
}

/// What a forward pass carries from layer to layer in addition to the stream.
pub(crate) struct Pass<'a> {
    pub(crate) g: &'a mut Graph,
    pub(crate) store: &'a ParamStore,
    pub(crate) ctx: &'a ParallelCtx,
    pub(crate) batch: &'a Batch,
    /// Cache rows of the tokens; empty without a cache.
    pub(crate) places: &'a [usize],
    /// Cache slots of the segments; empty without a cache.
    pub(crate) slots: &'a [usize],
    /// The keys that the last indexer picked.
    pub(crate) picks: Option<Tensor>,
    /// Packed rows of the last layer with keys and values of its own, where later ones borrow them.
    pub(crate) shared_kv: Option<Var>,
    /// What the experts of a shortcut block made, until it joins the stream.
    pub(crate) shortcut: Option<Var>,
    /// The auxiliary loss of routers.
    pub(crate) balance: Option<Arc<AuxiliaryLoss>>,
    /// Where routers report.
    pub(crate) load: Option<Arc<RouterLoad>>,
    /// Number of the current layer.
    pub(crate) layer: usize,
    /// What it keeps less of.
    pub(crate) save_policy: LayerSavePolicy,
    /// Where it sends what leaves the device.
    pub(crate) host: Option<&'a Host>,
    /// Values that are forgotten at the end of the current sublayer.
    pub(crate) recomputed: Vec<Var>,
    /// Values that go to the host there.
    pub(crate) swapped_out: Vec<Saved>,
    /// Rows in transit to experts that are forgotten once these have run.
    pub(crate) dispatched: Vec<Var>,
    /// The shared experts of the current layer.
    pub(crate) shared_experts: Option<SharedExperts>,
    /// Another pass that works while this one waits.
    pub(crate) overlapped: Option<&'a dyn OverlappedPass>,
}

/// Another pass, of another micro-batch, that works while a forward pass would wait for tokens in transit between ranks.
pub trait OverlappedPass {
    /// Goes on until it has sent tokens itself and would wait for them, or to its end.
    ///
    /// # Errors
    /// As what it does.
    fn resume(&self) -> ms_core::Result<()>;
}

/// The work of shared experts, which may be done while tokens are in transit to others.
#[derive(Clone, Debug)]
pub(crate) enum SharedExperts {
    /// Their input.
    Pending(Var),
    /// Their results.
    Done(Var),
}

impl<'a> Pass<'a> {
    /// A pass without a cache.
    pub(crate) fn new(
        g: &'a mut Graph,
        store: &'a ParamStore,
        ctx: &'a ParallelCtx,
        batch: &'a Batch,
    ) -> Self {
        Self {
            g,
            store,
            ctx,
            batch,
            places: &[],
            slots: &[],
            picks: None,
            shared_kv: None,
            shortcut: None,
            balance: batch.balance.clone(),
            load: batch.load.clone(),
            layer: 0,
            save_policy: LayerSavePolicy::default(),
            host: None,
            recomputed: Vec::new(),
            swapped_out: Vec::new(),
            dispatched: Vec::new(),
            shared_experts: None,
            overlapped: None,
        }
    }

    /// Lets the other pass work while tokens are in transit, if there is one.
    pub(crate) fn resume_overlapped(&self) -> ms_core::Result<()> {
        self.overlapped.map_or(Ok(()), OverlappedPass::resume)
    }

    /// Takes up what an earlier chunk passed on.
    pub(crate) fn resume(&mut self, carry: &Carry) {
        self.shared_kv.clone_from(&carry.shared_kv);
        self.picks.clone_from(&carry.picks);
    }

    /// What the next chunk needs in addition to its own weights.
    pub(crate) fn into_carry(self, stream: Var) -> Carry {
        Carry { stream, shared_kv: self.shared_kv, picks: self.picks }
    }

    pub(crate) fn param(&mut self, id: ParamId) -> Var {
        self.g.param(self.store, id)
    }

    /// [`ParallelCtx::enter_tp`]; where norms are recomputed, so is what ranks gather of them.
    pub(crate) fn enter(&mut self, x: &Var) -> ms_core::Result<Var> {
        let entered = self.ctx.enter_tp(self.g, x)?;
        Ok(self.regathered(x, entered))
    }

    /// [`Pass::enter`] of `x`, which has `begun` to.
    pub(crate) fn finish_enter(&mut self, x: &Var, begun: PendingEnterTp) -> ms_core::Result<Var> {
        let entered = self.ctx.finish_enter_tp(self.g, begun)?;
        Ok(self.regathered(x, entered))
    }

    /// `entered`, which ranks have gathered of `x`, and gather again where norms are recomputed.
    fn regathered(&mut self, x: &Var, entered: Var) -> Var {
        let gathered = self.ctx.sequence_parallel && self.ctx.tp.size() > 1;
        if !self.save_policy.recompute_norms || !gathered || !self.g.records() {
            return entered;
        }
        let (ctx, x) = (self.ctx.clone(), x.saved());
        let entered = entered.recomputed_by(move |device| ctx.all_tokens(&x.get(device)?));
        self.recomputed.push(entered.clone());
        entered
    }

    /// `x` without its gradient, of all tokens: ranks that have their share of them gather it, and again in the backward pass.
    pub(crate) fn all_detached(&mut self, x: &Var) -> ms_core::Result<Var> {
        let own = x.detached();
        if own.value().as_matrix().0 == self.batch.len() {
            return Ok(own);
        }
        let of_all = own.shard_states().with(self.ctx.digits.dense(Axis::Tp), ShardState::Constant);
        let all = self.g.constant(self.ctx.all_tokens(own.value())?).with_shard_states(of_all);
        if !self.g.records() {
            return Ok(all);
        }
        let (ctx, own) = (self.ctx.clone(), own.saved());
        let all = all.constant_recomputed_by(move |device| ctx.all_tokens(&own.get(device)?));
        self.recomputed.push(all.clone());
        Ok(all)
    }

    /// A pass over the same batch whose operations nothing records, in the graph `quiet`.
    pub(crate) fn quietly<'b>(&'b self, quiet: &'b mut Graph) -> Pass<'b> {
        Pass {
            places: self.places,
            slots: self.slots,
            layer: self.layer,
            ..Pass::new(quiet, self.store, self.ctx, self.batch)
        }
    }

    /// The rows that queries of the batch may see, gathered from this rank's rows `x` and those of the other context-parallel
    /// ranks, in the order of the whole micro-batch. Unless the layer saves keys and values of other ranks (these rows are
    /// both), they are gathered again in the backward pass.
    pub(crate) fn rows_of_all(&mut self, x: &Var, of: &'static GatheredRows) -> ms_core::Result<Var> {
        let Some(sharding) = self.batch.sharding.clone() else { return Ok(x.clone()) };
        let all = of.gather(self.g, self.ctx, x, &sharding)?;
        if !self.g.records() || self.ctx.ring_cache.of_layer(self.layer) == RingCachePolicy::KeysAndValues {
            return Ok(all);
        }
        let (ctx, x) = (self.ctx.clone(), x.saved());
        let all = all.recomputed_by(move |device| Ok(of.again(device, &ctx, &x.get(device)?, &sharding)?));
        self.recomputed.push(all.clone());
        Ok(all)
    }

    /// How the tokens are spread over ranks that exchange heads for them; `None`: they do not.
    pub(crate) fn heads_for_tokens(&self) -> Option<Arc<TokenSharding>> {
        self.batch.sharding.clone().filter(|_| self.ctx.context == ContextParallel::Ulysses)
    }

    /// [`ParallelCtx::enter_experts`], as [`Pass::enter`] where all tokens come in as they do into dense layers.
    pub(crate) fn enter_experts(&mut self, x: &Var) -> ms_core::Result<Var> {
        let gathered = self.ctx.dispatcher == Dispatcher::AllGather;
        if gathered && self.ctx.etp.size() == self.ctx.tp.size() {
            self.enter(x)
        } else {
            self.ctx.enter_experts(self.g, x)
        }
    }

    /// Weight and bias as values of the graph.
    fn weights(&mut self, layer: Linear) -> (Var, Option<Var>) {
        (self.param(layer.weight), layer.bias.map(|b| self.param(b)))
    }

    pub(crate) fn linear(&mut self, x: &Var, layer: Linear) -> ms_core::Result<Var> {
        let (w, b) = self.weights(layer);
        ops::linear(self.g, x, &w, b.as_ref())
    }

    /// `y`, the output of a linear layer with weight and bias `of` for `x`, which `layer` recomputes if this MLP is
    /// recomputed.
    pub(crate) fn recompute_inner(
        &self,
        y: Var,
        x: &Var,
        of: (&Var, Option<&Var>),
        layer: impl FnOnce(&Device, &Tensor, &Tensor, Option<&Tensor>) -> ms_core::Result<Tensor> + Send + 'static,
    ) -> Var {
        if !self.save_policy.recompute_inner || !self.g.records() {
            return y;
        }
        let (x, w, b) = (x.saved(), of.0.saved(), of.1.map(Var::saved));
        y.recomputed_by(move |device| {
            let b = b.map(|b| b.get(device)).transpose()?;
            layer(device, &x.get(device)?, &w.get(device)?, b.as_ref())
        })
    }

    /// After an MLP has run: forgets the values before and after its activation that are to be recomputed.
    pub(crate) fn forget_inner(&self, before: &Var, behind: &Var) {
        if self.save_policy.recompute_activations {
            behind.forget();
        }
        if self.save_policy.recompute_inner {
            before.forget();
        }
    }

    /// `y`, which `recipe` computes from `x` on the way to experts, and recomputes if rows on that way are not saved.
    pub(crate) fn on_the_way(
        &mut self,
        y: Var,
        x: &Var,
        recipe: impl FnOnce(&Device, Tensor) -> ms_core::Result<Tensor> + Send + 'static,
    ) -> Var {
        if !self.save_policy.recompute_experts || !self.g.records() {
            return y;
        }
        let x = x.saved();
        let y = y.recomputed_by(move |device| recipe(device, x.get(device)?));
        self.dispatched.push(y.clone());
        y
    }

    /// [`ParallelCtx::column_parallel`].
    pub(crate) fn columns_parallel(&mut self, x: &Var, layers: &[Linear]) -> ms_core::Result<Vec<Var>> {
        let layers: Vec<_> = layers.iter().map(|&layer| self.weights(layer)).collect();
        self.ctx.column_parallel(self.g, x, &layers)
    }

    /// [`Pass::columns_parallel`] of a known number of layers.
    pub(crate) fn column_parallel<const N: usize>(
        &mut self,
        x: &Var,
        layers: [Linear; N],
    ) -> ms_core::Result<[Var; N]> {
        let made = self.columns_parallel(x, &layers)?;
        Ok(made.try_into().expect("an output for each layer"))
    }

    /// [`ParallelCtx::column_parallel_entered`] for one layer.
    pub(crate) fn column_parallel_entered(
        &mut self,
        x: PendingEnterTp,
        layer: Linear,
    ) -> ms_core::Result<Var> {
        let layer = self.weights(layer);
        let made = self.ctx.column_parallel_entered(self.g, x, &[layer])?;
        Ok(made.into_iter().next().expect("an output of the layer"))
    }

    /// [`ParallelCtx::row_parallel`].
    pub(crate) fn row_parallel(&mut self, x: &Var, layer: Linear) -> ms_core::Result<Var> {
        let (w, b) = self.weights(layer);
        self.ctx.row_parallel(self.g, x, &w, b.as_ref())
    }

    /// The columns `values` of the heads' outputs, which are taken again from `out` if that is recomputed (`again`) or
    /// swapped.
    pub(crate) fn values_of(
        &mut self,
        out: &Var,
        values: &Arc<[Columns]>,
        again: bool,
    ) -> ms_core::Result<Var> {
        let mut taken = ops::columns(self.g, out, values)?;
        let leaves = self.save_policy.swap_heads && !again;
        if self.g.records() && (again || leaves) {
            let (out_again, values) = (out.saved(), values.clone());
            taken = taken.recomputed_by(move |device| device.columns(&out_again.get(device)?, &values));
            self.recomputed.push(taken.clone());
            if leaves {
                self.swapped_out.push(out.saved());
            }
        }
        Ok(taken)
    }

    /// Does the `work` of a part of the layer on `inputs`. Where the part is swapped, what its operations keep goes to the host
    /// at the end of the sublayer. Parts within others that are swapped go with these.
    pub(crate) fn swapping<T>(
        &mut self,
        part: Swapped,
        inputs: &[&Var],
        work: impl FnOnce(&mut Self) -> ms_core::Result<T>,
    ) -> ms_core::Result<T> {
        let leaves = self.host.is_some() && self.save_policy.swapped.has(part) && !self.g.records_saved();
        if leaves {
            self.g.record_saved(inputs);
        }
        let done = work(self)?;
        if leaves {
            self.swapped_out.extend(self.g.saved_since());
        }
        Ok(done)
    }

    /// At the end of a sublayer: forgets what is recomputed of it, and its input `normed`, and sends away what leaves.
    pub(crate) fn forget(&mut self, normed: Option<&Var>) -> ms_core::Result<()> {
        let again = normed.filter(|_| self.save_policy.recompute_norms);
        again.into_iter().chain(&self.recomputed).for_each(Var::forget);
        self.recomputed.clear();
        self.send_away()
    }

    /// Sends away what leaves.
    pub(crate) fn send_away(&mut self) -> ms_core::Result<()> {
        let swapped_out = std::mem::take(&mut self.swapped_out);
        self.host.map_or(Ok(()), |host| swapped_out.iter().try_for_each(|saved| saved.send(host)))
    }

    /// `x` with noise by the keys of its tokens: those of the rank's share `[T/tp,·]` under sequence parallelism.
    fn noisy(&mut self, x: &Var, keys: &[u64], place: NoiseSite, noise: Noise) -> ms_core::Result<Var> {
        ops::noise(self.g, x, &keys.into(), place.site(), noise)
    }

    /// `x[T,H]`, or this rank's share of it under sequence parallelism, with values dropped as the batch says.
    pub(crate) fn dropout(&mut self, x: Var, place: NoiseSite) -> ms_core::Result<Var> {
        let Some(noise) = self.batch.noise.as_ref().filter(|c| c.hidden_dropout > 0.0) else {
            return Ok(x);
        };
        let rows = x.value().as_matrix().0;
        let first = if self.ctx.sequence_parallel { self.ctx.tp.rank() * rows } else { 0 };
        let rate = noise.hidden_dropout;
        self.noisy(&x, &noise.keys[first..first + rows], place, Noise::Dropout { rate })
    }

    /// Where weights of the layer's attention are dropped; kernels put the head above it.
    pub(crate) fn attention_site(&self) -> u64 {
        NoiseSite::Mixer(self.layer).site()
    }

    /// The inputs of a router, those of `tokens` of the batch, with the jitter of training.
    pub(crate) fn jitter(&mut self, x: &Var, tokens: Range<usize>) -> ms_core::Result<Var> {
        let Some(noise) = self.batch.noise.as_ref().filter(|c| c.router_jitter > 0.0) else {
            return Ok(x.clone());
        };
        let (eps, place) = (noise.router_jitter, NoiseSite::Router(self.layer));
        self.noisy(x, &noise.keys[tokens], place, Noise::Jitter { eps })
    }

    /// A column-parallel layer whose outputs are gathered: this rank's columns are placed in a row of zeros, and the ranks'
    /// rows are summed.
    pub(crate) fn column_parallel_whole(&mut self, x: &Var, layer: Linear) -> ms_core::Result<Var> {
        let [y] = self.column_parallel(x, [layer])?;
        let (rank, size, width) = (self.ctx.tp.rank(), self.ctx.tp.size(), y.value().as_matrix().1);
        if size == 1 {
            return Ok(y);
        }
        let place = [
            Columns::Zero { len: rank * width },
            Columns::Copy { start: 0, len: width },
            Columns::Zero { len: (size - 1 - rank) * width },
        ];
        // Beside zeros a part is a partial sum of the whole.
        let y = ops::columns(self.g, &y, &place.into())?;
        let y = y.resharded(
            "columns among zeros",
            self.ctx.tp_group().over,
            ShardState::Sharded,
            ShardState::Partial,
        );
        self.ctx.leave_tp(self.g, &y)
    }
}

/// Applies `run` to `x`; the output has the sharding states of `x`. It saves only `x` and is recomputed on its own for its
/// backward.
pub(crate) fn run_recomputed(
    g: &mut Graph,
    x: &Var,
    overlapped: Option<&dyn OverlappedPass>,
    run: impl Fn(&mut Graph, &Var, Option<&dyn OverlappedPass>) -> ms_core::Result<Var> + Send + Sync + 'static,
) -> ms_core::Result<Var> {
    let run = Arc::new(run);
    let again = run.clone();
    let first = |g: &mut Graph, xs: &[Var]| Ok(vec![run(g, &xs[0], overlapped)?]);
    let again = Arc::new(move |g: &mut Graph, xs: &[Var]| Ok(vec![again(g, &xs[0], None)?]));
    Ok(ops::recompute_behind(g, &[x], &[x.shard_states()], first, again)?.remove(0))
}
