//! What a rank sends in an iteration, by formulas. Layouts are compared by it before the best of them are rehearsed, and for
//! a run that cannot be rehearsed it is all that a plan says.

use crate::resolve::Resolved;
use crate::resolve::stages;
use anyhow::Result;
use ms_core::{Axis, RingCachePolicy};
use ms_dist::HeadPartition;
use ms_spec::{
    Attention, Block, ExpertBytes, ExpertExchange, Feed, Item, Mixer, PlacedParam, Placement, memory,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Of `bytes` those that are for the others of `ranks` ranks.
fn share(bytes: usize, ranks: usize) -> usize {
    bytes / ranks.max(1) * (ranks - 1)
}

/// Bytes that a rank sends of a layer, forward and backward, by the ranks that they go to.
#[derive(Clone, Copy, Default)]
struct Sent {
    tp: usize,
    cp: usize,
    ep: usize,
    etp: usize,
    tp_ep: usize,
}

impl Sent {
    fn add(&mut self, other: Self) {
        self.tp += other.tp;
        self.cp += other.cp;
        self.ep += other.ep;
        self.etp += other.etp;
        self.tp_ep += other.tp_ep;
    }
}

/// A rank of a run and a micro-batch of it.
struct Rank<'a> {
    r: &'a Resolved,
    /// Tokens that tensor-parallel ranks have together.
    tokens: usize,
    /// Bytes of an element in the compute type, and of a reduced gradient element.
    element: usize,
    wide: usize,
    tp: usize,
    /// Around the experts of a layer.
    experts: ExpertBytes,
}

impl<'a> Rank<'a> {
    fn new(r: &'a Resolved) -> Self {
        let (c, grid) = (&r.config, &r.topology.grid);
        let activations = stages::activations(r, c.seq_length);
        let (tokens, element) = (activations.tokens, activations.element_bytes);
        let experts = ExpertExchange {
            dispatcher: r.topology.parallel.dispatcher,
            tokens,
            element_bytes: element,
            tp: grid.size(Axis::Tp),
            etp: grid.expert().size(Axis::Tp),
            ep: grid.size(Axis::Ep),
            sequence_parallel: r.topology.parallel.sequence_parallel,
        };
        let experts = experts.of_layer(&c.model);
        Self { r, tokens, element, wide: element.max(4), tp: grid.size(Axis::Tp), experts }
    }

    /// Gathering rows of `columns` over tensor-parallel ranks, which is as much as summing and sharing them out.
    fn crossing(&self, columns: usize) -> usize {
        share(self.tokens * columns * self.element, self.tp)
    }

    /// Rows of `columns` that enter what tensor-parallel ranks share: forward and backward, and with sequence parallelism once
    /// more for the gradients of its weights.
    fn enter(&self, columns: usize) -> usize {
        self.crossing(columns) * if self.r.topology.parallel.sequence_parallel { 3 } else { 2 }
    }

    /// The stream that leaves it, forward and backward.
    fn leave(&self) -> usize {
        2 * self.crossing(self.r.config.model.hidden)
    }

    /// A piece of the model.
    fn item(&self, item: Item) -> Sent {
        let c = &self.r.config.model;
        match item {
            Item::Noop { .. } => Sent::default(),
            // The embedding leaves, the output layer is entered.
            Item::Embedding | Item::Head => Sent { tp: self.leave(), ..Sent::default() },
            Item::Layer { layer, .. } => self.layer(layer),
            // Its layer, its use of the output layer, and about as much around the joint projection.
            Item::Predictor(k) => {
                let layer = self.layer(c.layers + k);
                Sent { tp: layer.tp + 2 * self.leave(), ..layer }
            }
        }
    }

    fn layer(&self, number: usize) -> Sent {
        let c = &self.r.config.model;
        let kind = c.layer(number);
        let mut sent = Sent::default();
        // Two attentions, and two dense MLPs in addition to the experts.
        let twice = if c.block == Block::Shortcut { 2 } else { 1 };
        if kind.mixer != Mixer::None {
            sent.tp += twice * (self.enter(c.entering(number)) + self.leave() + self.handed(number));
            sent.cp += twice * self.context(number).iter().sum::<usize>();
        }
        let dense = self.enter(c.hidden) + self.leave();
        match kind.feed {
            Feed::None => {}
            Feed::Dense => sent.tp += dense,
            Feed::Moe => {
                // Shared experts are entered as dense MLPs are.
                let shared = c.moe.as_ref().is_some_and(|moe| moe.shared.is_some());
                let again = usize::from(shared && self.r.topology.parallel.sequence_parallel);
                let ExpertBytes { ep, etp, tp_ep, tp } = self.experts;
                sent.add(Sent { tp: tp + again * self.crossing(c.hidden), cp: 0, ep, etp, tp_ep });
            }
        }
        if c.block == Block::Shortcut {
            sent.tp += 2 * dense;
        }
        sent
    }

    /// What a layer, which sends `of_layer`, sends once more if its forward pass is recomputed.
    fn again(&self, number: usize, of_layer: Sent) -> Sent {
        let c = &self.r.config.model;
        let twice = if c.block == Block::Shortcut { 2 } else { 1 };
        let tp = match self.r.topology.parallel.sequence_parallel {
            // Of the five gathers and reduce-scatters of rows for a sublayer, two are in the forward pass.
            true => of_layer.tp * 2 / 5,
            false => of_layer.tp / 2,
        };
        let cp = twice * self.context(number)[0];
        Sent { tp, cp, ep: of_layer.ep / 2, etp: of_layer.etp / 2, tp_ep: of_layer.tp_ep / 2 }
    }

    /// Where key/value heads do not divide among the ranks, these hand each other what their heads need.
    fn handed(&self, number: usize) -> usize {
        let c = &self.r.config.model;
        if c.layer(number).mixer != Mixer::Attention || c.attention != Attention::Grouped {
            return 0;
        }
        let exchange = ms_nn::head_exchange(c, number, 0, self.tp);
        exchange.map_or(0, |exchange| exchange.sent_columns(0) * self.tokens * self.element)
    }

    /// To the ranks that share a sequence: heads for tokens among some, and around a ring of the others blocks of keys and
    /// values, once forward and, unless they are kept, once backward, and the gradient of each block to the rank that it
    /// belongs to. Forward and backward.
    fn context(&self, number: usize) -> [usize; 2] {
        let c = &self.r.config.model;
        let (ulysses, ring) = self.r.topology.ulysses_and_ring();
        if ulysses * ring == 1 || c.layer(number).mixer == Mixer::None {
            return [0; 2];
        }
        if !matches!(c.layer(number).mixer, Mixer::Attention | Mixer::SharedKv) {
            // Heads for tokens and back, near the width of the stream each.
            return [share(2 * self.tokens * c.hidden / self.tp * self.element, ulysses * ring); 2];
        }
        let heads = HeadPartition::new(c.attended(number), self.tp).own;
        let shares = HeadPartition::new(heads, ulysses);
        let columns = ulysses * shares.own.packed_width() + heads.heads() * heads.head_dim;
        let exchanged = share(self.tokens * columns * self.element, ulysses);
        let block = self.tokens * ulysses * 2 * shares.own.groups * shares.own.head_dim;
        let again = match self.r.topology.parallel.ring_cache.of_layer(number) {
            RingCachePolicy::Nothing => block,
            RingCachePolicy::Keys => block / 2,
            RingCachePolicy::KeysAndValues => 0,
        };
        let forward = (ring - 1) * block * self.element;
        [exchanged + forward, exchanged + (ring - 1) * (again * self.element + block * self.wide)]
    }
}

/// How often a micro-batch's stream or its gradient leaves a stage.
fn messages(placement: &Placement, stage: usize) -> usize {
    let order = placement.order();
    let borders = order.windows(2).filter(|pair| pair[0].stage != pair[1].stage);
    borders.map(|pair| usize::from(pair[0].stage == stage) + usize::from(pair[1].stage == stage)).sum()
}

/// Bytes of some of the parameters `held` on the first rank of `stage`.
fn bytes_of(
    r: &Resolved,
    held: &[PlacedParam],
    stage: usize,
    those: impl Fn(&PlacedParam) -> bool,
) -> Result<memory::Memory> {
    let c = &r.config;
    let held: Vec<PlacedParam> = held.iter().filter(|p| those(p)).cloned().collect();
    let rank = stages::first_of_stage(r, stage);
    Ok(memory::of(&held, &r.topology.grid, rank, c.element_bytes(), c.state_bytes())?)
}

/// Bytes that the first rank of `stage`, whose parameters are `held`, sends in an iteration for data parallelism: gradients
/// that are reduce-scattered, and weights that are all-gathered.
///
/// # Errors
/// If a parameter does not divide.
pub(crate) fn of_data_parallelism(
    r: &Resolved,
    held: &[PlacedParam],
    stage: usize,
) -> Result<(usize, usize)> {
    let grid = &r.topology.grid;
    let dense = bytes_of(r, held, stage, |p| !p.spec.of_experts())?;
    let experts = bytes_of(r, held, stage, |p| p.spec.of_experts())?;
    let (mut gradients, mut weights) = (0, 0);
    for (held, alike) in [(dense, grid.alike(false)), (experts, grid.alike(true))] {
        let (shards, copies) = (grid.optimizer().shards(alike), grid.optimizer().copies(alike));
        // Reduce-scattered inside an instance; then a rank's shard is summed over instances.
        gradients += share(held.gradients, shards) + 2 * share(held.gradients / shards, copies);
        weights += share(held.weights, shards);
    }
    Ok((gradients, weights))
}

/// An estimate of the bytes that the first rank of `stage` sends in an iteration, by axis, counted as
/// `Communicator::sent_bytes` counts: exact for the gradients and weights of data parallelism, near for layers. `held` are the
/// parameters of every stage.
///
/// # Errors
/// If a parameter does not divide.
pub(crate) fn of_stage(
    r: &Resolved,
    placement: &Placement,
    held: &[Vec<PlacedParam>],
    stage: usize,
    micro_batches: usize,
) -> Result<Value> {
    let c = &r.config;
    let (gradients, weights) = of_data_parallelism(r, &held[stage], stage)?;
    let chunks = placement.stage(stage);
    let ends = |item: &Item| !matches!(item, Item::Layer { .. } | Item::Noop { .. });
    let mut summed = 0;
    if chunks.iter().flatten().any(ends) {
        // Gradients of weights held by several stages are summed over them.
        let copies = held.iter().flatten().filter(|p| p.copy).map(|p| p.spec.name.as_str());
        for name in copies.collect::<BTreeSet<_>>() {
            let holds = |held: &&Vec<PlacedParam>| held.iter().any(|p| p.spec.name == name);
            let here = bytes_of(r, &held[stage], stage, |p| p.spec.name == name)?;
            summed += 2 * share(here.gradients, held.iter().filter(holds).count());
        }
    }
    let rank = Rank::new(r);
    let mut sent = Sent::default();
    for (k, items) in chunks.iter().enumerate() {
        let layers = items.iter().filter(|item| matches!(item, Item::Layer { .. })).count();
        let mut again = c.memory.recompute.of_chunk(k, chunks.len()).layers(layers);
        for &item in items {
            let of_item = rank.item(item);
            sent.add(of_item);
            if let Item::Layer { layer, .. } = item
                && again > 0
            {
                again -= 1;
                sent.add(rank.again(layer, of_item));
            }
        }
    }
    let carried = stages::activations(r, c.seq_length).input(&c.model);
    Ok(json!({
        "dp_reduce_scatter": gradients,
        "dp_all_gather": weights,
        "tp": micro_batches * sent.tp,
        "pp": micro_batches * carried * messages(placement, stage) + summed,
        "cp": micro_batches * sent.cp,
        "ep": micro_batches * (sent.ep + sent.tp_ep),
        "expert_tp": micro_batches * sent.etp,
    }))
}
