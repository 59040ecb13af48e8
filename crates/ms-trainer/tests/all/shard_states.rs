//! The parameter table's sharding states along every axis agree with what the model parts do, for every family: debug builds
//! track them through a forward pass, here of one rank on the meta device. A wrong entry for any single weight is detected.

#![cfg(debug_assertions)]

use crate::parity::samples;
use ms_core::{
    Axis, DType, Device, Digits, Dispatcher, Graph, Grid, GridRules, GridSizes, ParamLayout, ParamStore,
    Segment, ShardState, ShardStates, Tensor, Var,
};
use ms_dist::{
    ContextParallel, MetaFabric, ParallelCtx, ParallelOptions, Piece, TokenMapping, TokenSharding,
};
use ms_nn::{Batch, Gpt, IndexerLoss, IndexerObjective, RankPosition};
use ms_spec::{ModelConfig, ParamSpec, Placement};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

/// Tokens of a micro-batch: one document.
const TOKENS: usize = 32;

/// How ranks share a model.
#[derive(Clone, Copy, Debug)]
struct Cut {
    world: usize,
    sizes: GridSizes,
    sequence_parallel: bool,
    context: ContextParallel,
    dispatcher: Dispatcher,
    overlap: bool,
}

impl Cut {
    fn of(world: usize, tp: usize, cp: usize) -> Self {
        let sizes = GridSizes { tp, cp, ..GridSizes::default() };
        let context = ContextParallel::Gather;
        let dispatcher = Dispatcher::AllGather;
        Self { world, sizes, sequence_parallel: false, context, dispatcher, overlap: false }
    }

    fn sequence_parallel(self) -> Self {
        Self { sequence_parallel: true, ..self }
    }

    fn experts(mut self, ep: usize, etp: usize) -> Self {
        (self.sizes.ep, self.sizes.etp) = (ep, Some(etp));
        self
    }

    fn context(mut self, context: ContextParallel) -> Self {
        self.sizes.ulysses = context.ulysses(self.sizes.cp);
        Self { context, ..self }
    }

    fn sent(self, dispatcher: Dispatcher) -> Self {
        Self { dispatcher, ..self }
    }
}

/// One rank of a model.
struct Rank {
    device: Device,
    ctx: ParallelCtx,
    model: Gpt,
    store: ParamStore,
    states: Vec<ShardStates>,
}

impl Rank {
    /// `None` for a model that cannot be cut so.
    fn new(c: &ModelConfig, cut: &Cut, rank: usize) -> Option<Self> {
        let Cut { world, sizes, context, .. } = *cut;
        let grid = Grid::new(world, &sizes, GridRules::Head).unwrap();
        let (device, placement) = (Device::meta(DType::F32), Placement::whole(c));
        let position = RankPosition { grid: &grid, rank, placement: &placement, context };
        let model = Gpt::part(c, &device, position, 2 * TOKENS).ok()?;
        context.check(c.heads / sizes.tp, sizes.cp, TOKENS).ok()?;
        let fabric = MetaFabric::new(rank, world);
        let Cut { sequence_parallel, dispatcher, overlap: overlap_experts, .. } = *cut;
        let parallel = ParallelOptions {
            sequence_parallel,
            context,
            dispatcher,
            overlap_experts,
            ..ParallelOptions::default()
        };
        let ctx = ParallelCtx::new(grid, parallel, &fabric).unwrap();
        let shapes = model
            .placed_params()
            .iter()
            .map(|p| ms_spec::local(&p.spec, &ctx.grid, rank).unwrap().local_shape());
        let layout = Arc::new(ParamLayout::sequential(shapes));
        let store = ParamStore::zeros(device.arena(), DType::F32, layout);
        let states =
            model.specs().iter().map(|s| s.shard_states(ctx.digits, cut.sequence_parallel)).collect();
        Some(Self { device, ctx, model, store, states })
    }

    /// The rank's tokens.
    fn batch(&self) -> Batch {
        let (arena, cp) = (self.device.arena(), self.ctx.cp.size());
        let all: Vec<i32> = (0..TOKENS as i32).collect();
        if cp == 1 {
            return Batch::new(arena, &[1; TOKENS], &all, &[0, TOKENS as i32]).unwrap();
        }
        let len = TOKENS / self.ctx.context.pieces(cp);
        let pieces = |chunks: &Vec<usize>| -> Vec<Piece> {
            let piece =
                |(i, chunk): (usize, &usize)| Piece { document: 0, place: chunk * len, row: i * len, len };
            chunks.iter().enumerate().map(piece).collect()
        };
        let pieces: Vec<_> = self.ctx.context.chunks(cp).iter().map(pieces).collect();
        let own = |p: &Piece| p.place as i32..(p.place + p.len) as i32;
        let positions: Vec<i32> = pieces[self.ctx.cp.rank()].iter().flat_map(own).collect();
        let documents = vec![Segment::of(0, TOKENS)];
        let sharding = TokenSharding { documents, pieces, rows: TOKENS / cp, positions: all };
        Batch::shared(arena, &vec![1; positions.len()], &positions, Arc::new(sharding)).unwrap()
    }

    /// A forward pass up to the losses.
    fn losses(&self) -> Vec<Var> {
        let mut batch = self.batch();
        // A loss of its own trains what picks keys.
        let objective = IndexerObjective::MindSpeed;
        let losses = Arc::default();
        batch.indexer_loss = Some(Arc::new(IndexerLoss { objective, factor: 1.0, weight: 1.0, losses }));
        let arena = self.device.arena();
        let tokens = Tensor::from_slice(arena, [batch.len()], &vec![1; batch.len()]).unwrap();
        let ahead = vec![tokens.clone(); self.model.config().mtp];
        let weights = Tensor::from_reals(arena, DType::F32, [batch.len()], &vec![1.0; batch.len()]).unwrap();
        let mut g = Graph::train(&self.device);
        let (hidden, ahead) =
            self.model.forward_ahead(&mut g, &self.store, &self.ctx, &batch, &ahead).unwrap();
        let mut loss =
            |x: Var| self.model.loss(&mut g, &self.store, &self.ctx, &x, &tokens, &weights).unwrap().loss;
        std::iter::once(hidden).chain(ahead).map(&mut loss).collect()
    }

    /// What the pass ends with, if ranks that hold so cannot compute it.
    fn clash(&mut self, states: &[ShardStates]) -> Option<String> {
        let names = self.model.specs().iter().map(|spec| spec.name.clone());
        self.store.set_shard_states(names.zip(states.iter().copied()));
        quietly();
        let said = |said: Box<dyn std::any::Any + Send>| *said.downcast::<String>().unwrap();
        let losses = catch_unwind(AssertUnwindSafe(|| self.losses())).map_err(said);
        let rooted =
            |loss: &Var| catch_unwind(AssertUnwindSafe(|| loss.assert_root("the loss"))).map_err(said);
        let done = losses.and_then(|losses| {
            let of_tp = self.ctx.digits.dense(Axis::Tp);
            for loss in &losses {
                rooted(loss)?;
                let known =
                    |digit| if of_tp.contains(digit) { ShardState::Invariant } else { ShardState::Partial };
                let followed = |digit| loss.shard_states().along(digit) == Some(known(digit));
                if !self.ctx.digits.each().all(followed) {
                    return Err(format!("of a loss ranks hold {:?}", loss.shard_states()));
                }
            }
            Ok(())
        });
        done.err()
    }

    /// What a slip of the table along an axis says instead of a weight: a sum is forgotten or one too many, or of each rank's own
    /// experts that all ranks have the same.
    fn slips(&self, spec: &ParamSpec, states: ShardStates) -> Vec<(Axis, ShardStates)> {
        let digits = self.ctx.digits;
        let along = |axis| if spec.of_experts() { digits.expert(axis) } else { digits.dense(axis) };
        let slip = |axis: Axis| {
            let over: Digits = along(axis);
            let other = match states.along(over.each().next()?)? {
                ShardState::Invariant => ShardState::Replicated,
                ShardState::Replicated => ShardState::Invariant,
                ShardState::Sharded if axis == Axis::Ep => ShardState::Replicated,
                _ => return None,
            };
            Some((axis, states.with(over, other)))
        };
        [Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp].into_iter().filter_map(slip).collect()
    }
}

thread_local! {
    /// Whether clashes are what this thread looks for.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// From here on until the test says what it found, this thread does not print what it catches.
fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            if !QUIET.get() {
                loud(what);
            }
        }));
    });
    QUIET.set(true);
}

/// Follows what ranks hold through every sample that can be cut in one of these ways, and through every slip of its table.
fn follow(cuts: &[Cut], fits: impl Fn(&ModelConfig) -> bool, least: usize) {
    let models: Vec<_> = samples::samples().into_iter().filter(|(_, c)| fits(c)).collect();
    follow_those(cuts, &models, "", least);
}

/// [`follow`] through these models, with wrong entries for the weights whose names begin with `prefix`.
fn follow_those(cuts: &[Cut], models: &[(String, ModelConfig)], prefix: &str, least: usize) {
    let (mut passes, mut slips, mut named, mut unnoticed, mut wrong) = (0, 0, 0, Vec::new(), Vec::new());
    for (name, c) in models {
        for cut in cuts {
            let Some(mut first) = Rank::new(c, cut, 0) else { continue };
            let mut last = Rank::new(c, cut, cut.world - 1).expect("all ranks or none");
            passes += 1;
            let states = first.states.clone();
            if let Some(clash) = first.clash(&states).or_else(|| last.clash(&states)) {
                wrong.push(format!("{name}, {cut:?}: {clash}"));
                continue;
            }
            let specs = first.model.specs().to_vec();
            let slipping = |(_, s): &(usize, &ParamSpec)| s.trained() && s.name.starts_with(prefix);
            for (i, spec) in specs.iter().enumerate().filter(slipping) {
                for (axis, slip) in first.slips(spec, states[i]) {
                    let mut slipped = states.clone();
                    slipped[i] = slip;
                    slips += 1;
                    // The first of the ranks that share an expert adds its bias.
                    match first.clash(&slipped) {
                        Some(said) => named += usize::from(said.contains(&format!("({})", spec.name))),
                        None => unnoticed.push(format!("{name}, {cut:?}: {} along {axis}", spec.name)),
                    }
                }
            }
        }
    }
    QUIET.set(false);
    assert!(wrong.is_empty(), "{} of {passes}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(unnoticed.is_empty(), "{} of {slips}:\n{}", unnoticed.len(), unnoticed.join("\n"));
    assert!(slips >= least, "{slips} slips, {passes} passes");
    // Most clash in the operation that takes the weight, which then names it.
    assert!(2 * named > slips, "{named} of {slips} name the weight");
}

const RING: ContextParallel = ContextParallel::Ring { window: 1 };

#[test]
fn tensor_parallel_ranks_hold_what_the_table_says() {
    let cut = Cut::of(2, 2, 1);
    let shared = cut.sequence_parallel();
    follow(&[cut, shared, shared.sent(Dispatcher::AllToAll)], |_| true, 1000);
}

#[test]
fn context_parallel_ranks_hold_what_the_table_says() {
    let cuts = [
        Cut::of(2, 1, 2).context(RING),
        Cut::of(2, 1, 2).context(ContextParallel::Ulysses),
        Cut::of(4, 2, 2).context(ContextParallel::Gather).sequence_parallel(),
        Cut::of(4, 1, 4).context(ContextParallel::Hybrid { ulysses: 2, window: 1 }),
        Cut::of(4, 1, 2).context(ContextParallel::InOrder { ulysses: 1, window: 1 }),
        Cut::of(2, 1, 2).context(ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder }),
    ];
    follow(&cuts, |_| true, 1000);
}

#[test]
fn ranks_of_experts_hold_what_the_table_says() {
    let ways = [Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq];
    let cuts = [
        Cut::of(2, 1, 1).experts(2, 1),
        Cut::of(4, 2, 1).experts(2, 2),
        Cut::of(4, 2, 1).experts(2, 2).sequence_parallel(),
        // Whole experts on tensor-parallel ranks, and experts that two of four share.
        Cut::of(4, 2, 2).experts(4, 1).sequence_parallel().context(RING),
        Cut::of(4, 4, 1).experts(2, 2),
        Cut::of(4, 4, 1).experts(2, 2).sequence_parallel(),
        Cut { overlap: true, ..Cut::of(4, 1, 2).experts(2, 1).context(RING) },
    ];
    // Ranks that share an expert have tokens of other samples or of other parts of a sequence.
    let across = [
        Cut::of(2, 1, 1).experts(1, 2),
        Cut::of(4, 1, 2).experts(2, 2).context(RING),
        Cut::of(4, 2, 2).experts(1, 4).sequence_parallel().context(RING),
    ];
    let all = cuts.iter().flat_map(|&cut| ways.map(|way| cut.sent(way)));
    let whole_rows = across.iter().flat_map(|&cut| ways[..2].iter().map(move |&way| cut.sent(way)));
    follow(&all.chain(whole_rows).collect::<Vec<_>>(), |c| c.moe.is_some(), 1000);
}

#[test]
fn ranks_hold_of_prediction_modules_what_the_table_says() {
    let with_modules = ["deepseek_v3", "deepseek_v4", "glm45_air", "hy_v3", "llama3_gqa", "qwen3_next"];
    let models = samples::samples().into_iter().filter(|(name, _)| with_modules.contains(&name.as_str()));
    let with = |(name, c): (String, ModelConfig)| (name, ModelConfig { mtp: 1, ..c }.validate().unwrap());
    let models: Vec<_> = models.map(with).collect();
    assert_eq!(models.len(), with_modules.len());
    let cuts = [
        Cut::of(2, 2, 1),
        Cut::of(2, 2, 1).sequence_parallel(),
        Cut::of(2, 1, 2).context(ContextParallel::Ulysses),
        Cut::of(4, 2, 2).sequence_parallel(),
        Cut::of(4, 2, 1).experts(2, 2).sequence_parallel(),
    ];
    follow_those(&cuts, &models, "mtp.", 150);
}
