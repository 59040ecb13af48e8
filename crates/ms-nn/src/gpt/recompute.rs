//! Recomputation of layers in the backward pass.

use super::{Chunk, Gpt, Home};
use crate::layer::Layer;
use crate::pass::{Carry, OverlappedPass, Pass};
use crate::{Batch, Result};
use ms_core::{Device, Graph, ParamStore, Var, ops};
use ms_dist::ParallelCtx;
use ms_spec::{Mixer, Recompute};
use std::sync::Arc;

impl Gpt {
    /// How many of a chunk's first layers are recomputed in the backward pass.
    pub(super) fn recomputed(&self, recompute: Recompute, chunk: &Chunk) -> usize {
        let all = chunk.layers.len() / self.halves();
        let spared = usize::from(self.save_policy.spare_last && chunk.ends);
        recompute.layers(all).min(all - spared.min(all)) * self.halves()
    }

    /// Runs the layers that save only their input.
    pub(super) fn recomputed_layers(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        (ctx, overlapped): (&ParallelCtx, Option<&dyn OverlappedPass>),
        batch: &Batch,
        (chunk, recomputed): (&Chunk, usize),
        mut carry: Carry,
    ) -> Result<Carry> {
        let group = match self.recompute {
            Recompute::Uniform(n) => n.max(1),
            _ => 1,
        };
        let groups = chunk.layers[..recomputed].chunks(group.saturating_mul(self.halves()));
        for (i, layers) in groups.enumerate() {
            let number = |home| layers.iter().any(|layer| home == Home::Layer(layer.number()));
            self.await_weights(store, number)?;
            let before = carry.stream.clone();
            carry = self.recompute_group(g, store, (ctx, overlapped), batch, layers, carry)?;
            // What came from elsewhere stays for its gradient.
            if g.records() && (i > 0 || chunk.begins) {
                self.put_away(ctx, &before)?;
            }
        }
        Ok(carry)
    }

    /// Runs layers that save only their inputs: the stream, and what earlier layers lend them.
    fn recompute_group(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        (ctx, overlapped): (&ParallelCtx, Option<&dyn OverlappedPass>),
        batch: &Batch,
        layers: &[Arc<Layer>],
        carry: Carry,
    ) -> Result<Carry> {
        let mixers = || layers.iter().map(|layer| self.config.layer(layer.number()).mixer);
        let shared = self.config.has(Mixer::SharedKv);
        let lends = shared && mixers().any(|m| m == Mixer::Attention);
        let borrows =
            mixers().find(|m| matches!(m, Mixer::Attention | Mixer::SharedKv)) == Some(Mixer::SharedKv);
        let (layers, store, of, batch) = (layers.to_vec(), store.clone(), ctx.clone(), batch.clone());
        let picks = carry.picks.clone();
        let run = move |g: &mut Graph, xs: &[Var], overlapped: Option<&dyn OverlappedPass>| {
            let (shared_kv, picks) = (xs.get(1).cloned(), picks.clone());
            let mut pass = Pass { overlapped, shared_kv, picks, ..Pass::new(g, &store, &of, &batch) };
            let x = layers.iter().try_fold(xs[0].clone(), |x, layer| layer.forward(&mut pass, None, &x))?;
            let shared_kv = pass.shared_kv.filter(|_| lends);
            let made: Vec<Var> = std::iter::once(x).chain(shared_kv).collect();
            Ok::<_, ms_core::Error>((made, pass.picks))
        };
        let run = Arc::new(run);
        let (again, mut picks) = (run.clone(), None);
        let taken = carry.shared_kv.iter().filter(|_| borrows);
        let taken: Vec<&Var> = std::iter::once(&carry.stream).chain(taken).collect();
        let first = |g: &mut Graph, xs: &[Var]| {
            let made: Vec<Var>;
            (made, picks) = run(g, xs, overlapped)?;
            Ok(made)
        };
        let again = Arc::new(move |g: &mut Graph, xs: &[Var]| Ok(again(g, xs, None)?.0));
        let states = [carry.stream.shard_states(), ctx.head_states()];
        let mut made = ops::recompute_behind(g, &taken, &states, first, again)?.into_iter();
        let stream = made.next().expect("the stream continues");
        let shared_kv = made.next();
        Ok(Carry { stream, shared_kv: shared_kv.or(carry.shared_kv), picks })
    }

    /// Saves less of the input of recomputed layers, once they have run.
    fn put_away(&self, ctx: &ParallelCtx, input: &Var) -> Result<()> {
        if let Some(host) = self.host.as_ref().filter(|_| self.save_policy.swap_inputs) {
            return Ok(input.send(host)?);
        }
        let (rank, ranks, n) = (ctx.tp.rank(), ctx.tp.size(), input.value().numel());
        if self.save_policy.inputs_shared && ranks > 1 && n.is_multiple_of(ranks) {
            let part = input.value().slice_flat(rank * (n / ranks), [n / ranks])?.copied()?;
            let (tp, shape) = (ctx.tp.clone(), input.value().shape());
            let whole = move |_: &Device| {
                let whole = tp.all_gather("inputs of layers", part)?.wait()?;
                whole.reshape(shape)
            };
            input.clone().recomputed_by(whole).forget();
        }
        Ok(())
    }
}
