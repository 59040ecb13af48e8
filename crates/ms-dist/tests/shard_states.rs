//! A step that omits an exchange along context or expert parallelism, or a parameter table that contradicts a weight's use,
//! fails with the name of the operation and the axes, whatever the values are.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{
    Axis, DType, Device, Graph, Grid, GridRules, GridSizes, Routes, Segment, ShardState, ShardStates, Tensor,
    Var, ops,
};
use ms_dist::{
    GatheredRows, MetaFabric, ParallelCtx, ParallelOptions, Piece, TokenSharding, exchange_rows, gather_rows,
    sum_rows, to_sequences, to_shares,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Tokens of a rank, experts of all ranks and of one, columns.
const TOKENS: usize = 4;
const EXPERTS: usize = 2;
const WIDTH: usize = 8;

/// Rank 0 of two, without values.
struct Rank {
    device: Device,
    ctx: ParallelCtx,
}

impl Rank {
    fn new(sizes: GridSizes) -> Self {
        let grid = Grid::new(2, &sizes, GridRules::V2).unwrap();
        let fabric = MetaFabric::new(0, 2);
        let ctx = ParallelCtx::new(grid, ParallelOptions::default(), &fabric).unwrap();
        Self { device: Device::meta(DType::F32), ctx }
    }

    fn of_context() -> Self {
        Self::new(GridSizes { cp: 2, ..GridSizes::default() })
    }

    /// Experts are spread over ranks that share a sequence.
    fn of_experts() -> Self {
        Self::new(GridSizes { cp: 2, ep: 2, ..GridSizes::default() })
    }

    fn tensor(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(self.device.arena(), DType::F32, shape)
    }

    /// A value with these sharding states.
    fn with_state(&self, g: &mut Graph, shape: &[usize], state: ShardState) -> Var {
        g.input(self.tensor(shape)).with_shard_states(ShardStates::default().with(self.ctx.digits, state))
    }

    fn tokens(&self, g: &mut Graph) -> Var {
        self.with_state(g, &[TOKENS, WIDTH], ShardState::Tokens)
    }

    /// What ranks hold of a value in the end.
    fn state(&self, of: &Var) -> Option<ShardState> {
        of.shard_states().along(self.ctx.digits.each().next().unwrap())
    }

    fn sharding(&self) -> TokenSharding {
        let piece = |rank| vec![Piece { document: 0, place: rank * TOKENS, row: 0, len: TOKENS }];
        TokenSharding {
            documents: vec![Segment::of(0, 2 * TOKENS)],
            pieces: vec![piece(0), piece(1)],
            rows: TOKENS,
            positions: (0..2 * TOKENS as i32).collect(),
        }
    }
}

/// What a step ends with.
fn said<T>(step: impl FnOnce() -> T) -> String {
    let said = catch_unwind(AssertUnwindSafe(step)).err().expect("the step ends");
    *said.downcast::<String>().expect("with words")
}

/// Queries of a rank's tokens that see rows of all.
fn attention(rank: &Rank, g: &mut Graph, q: &Var, rows: &Var) -> Var {
    let far = g.constant(rank.tensor(&[0, WIDTH]));
    let picks = Tensor::uninit(rank.device.arena(), DType::I32, [TOKENS, 2]);
    ops::attention_shared(g, q, [rows, &far], &picks, None, 1.0).unwrap()
}

#[test]
fn keys_are_gathered_before_queries_see_them() {
    let rank = Rank::of_context();
    let mut g = Graph::train(&rank.device);
    let (q, row) = (rank.tokens(&mut g), rank.tokens(&mut g));
    let of = GatheredRows { rows: "rows", again: "rows again", gradients: "gradients of rows" };
    let rows = of.gather(&mut g, &rank.ctx, &row, &rank.sharding()).unwrap();
    assert_eq!(rank.state(&rows), Some(ShardState::Replicated));
    let out = attention(&rank, &mut g, &q, &rows);
    assert_eq!(rank.state(&out), Some(ShardState::Tokens));
    let forgotten = said(|| attention(&rank, &mut g, &q, &row));
    assert_eq!(forgotten, "attention_shared: along cp/edp ranks hold Tokens, Tokens, Constant, Constant");
}

#[test]
fn a_state_along_a_sequence_needs_whole_sequences() {
    let rank = Rank::of_context();
    let mut g = Graph::train(&rank.device);
    let x = rank.tokens(&mut g);
    let weight = |g: &mut Graph, channels| rank.with_state(g, &[channels, 1, 2], ShardState::Replicated);
    let (own, all) = (weight(&mut g, WIDTH / 2), weight(&mut g, WIDTH));
    let segments: Arc<[Segment]> = vec![Segment::of(0, 2 * TOKENS)].into();
    let sequences = to_sequences(&mut g, &rank.ctx, &x, &rank.sharding()).unwrap();
    let y = ops::convolution(&mut g, &sequences, &own, None, None, &segments).unwrap();
    assert_eq!(rank.state(&y), Some(ShardState::Sharded));
    let y = to_shares(&mut g, &rank.ctx, &y, &rank.sharding()).unwrap();
    assert_eq!(rank.state(&y), Some(ShardState::Tokens));
    let segments: Arc<[Segment]> = vec![Segment::of(0, TOKENS)].into();
    let forgotten = said(|| ops::convolution(&mut g, &x, &all, None, None, &segments).unwrap());
    assert_eq!(forgotten, "convolution: along cp/edp ranks hold Tokens, Replicated, Constant");
}

#[test]
fn gradients_of_shares_of_a_sequence_are_summands_of_every_weight() {
    let rank = Rank::of_context();
    let mut g = Graph::train(&rank.device);
    let x = rank.tokens(&mut g);
    let forgotten = rank.with_state(&mut g, &[WIDTH, WIDTH], ShardState::Invariant);
    let forgotten = said(|| ops::linear(&mut g, &x, &forgotten, None).unwrap());
    assert_eq!(forgotten, "linear: along cp/edp ranks hold Tokens, Invariant, Constant");
    let root = said(|| x.assert_root("the loss"));
    assert!(root.starts_with("the loss: along cp/edp ranks hold Some(Tokens)"), "{root}");
}

/// A row of each token, for the experts in turn.
fn routes(rows: usize) -> Arc<Routes> {
    let expert_of: Vec<i32> = (0..rows).map(|row| (row % EXPERTS) as i32).collect();
    Arc::new(Routes::new(&expert_of, 1, EXPERTS).unwrap())
}

fn experts(rank: &Rank, g: &mut Graph, rows: &Var, weights: ShardState) -> Var {
    let w = rank.with_state(g, &[EXPERTS, WIDTH, WIDTH], weights);
    ops::expert_linear(g, rows, &w, None, &routes(rows.value().dim(0))).unwrap()
}

#[test]
fn rows_are_sent_to_their_experts_and_back() {
    let rank = Rank::of_experts();
    let mut g = Graph::train(&rank.device);
    let (x, weights) = (rank.tokens(&mut g), rank.with_state(&mut g, &[TOKENS, 1], ShardState::Tokens));
    let (ep, each) = (rank.ctx.ep_group(), [TOKENS / 2; 2]);
    let sent = exchange_rows(&mut g, &ep, &x, &each, &each).unwrap();
    let out = experts(&rank, &mut g, &sent, ShardState::Sharded);
    assert_eq!(rank.state(&out), Some(ShardState::Routed));
    let back = exchange_rows(&mut g, &ep, &out, &each, &each).unwrap();
    let sum = ops::combine(&mut g, &back, &weights, &routes(TOKENS)).unwrap();
    assert_eq!(rank.state(&sum), Some(ShardState::Tokens));
    let not_sent = said(|| experts(&rank, &mut g, &x, ShardState::Sharded));
    assert_eq!(not_sent, "expert_linear: along cp/ep ranks hold Tokens, Sharded, Constant");
    // The table says that all ranks hold the same experts.
    let same = said(|| experts(&rank, &mut g, &sent, ShardState::Replicated));
    assert_eq!(same, "expert_linear: along cp/ep ranks hold Routed, Replicated, Constant");
    let not_back = said(|| ops::combine(&mut g, &out, &weights, &routes(TOKENS)).unwrap());
    assert_eq!(not_back, "combine: along cp/ep ranks hold Routed, Tokens");
}

#[test]
fn what_experts_make_of_gathered_tokens_is_summed() {
    let rank = Rank::of_experts();
    let mut g = Graph::train(&rank.device);
    let (x, weights) = (rank.tokens(&mut g), rank.with_state(&mut g, &[TOKENS, 1], ShardState::Tokens));
    let (ep, each): (_, Arc<[usize]>) = (rank.ctx.ep_group(), vec![TOKENS; 2].into());
    let all = gather_rows(&mut g, &ep, &x, &each).unwrap();
    let weights = gather_rows(&mut g, &ep, &weights, &each).unwrap();
    let routes = routes(2 * TOKENS);
    let rows = ops::dispatch(&mut g, &all, &routes).unwrap();
    let own = rows.resharded("own rows", ep.over, ShardState::Replicated, ShardState::Routed);
    let out = experts(&rank, &mut g, &own, ShardState::Sharded);
    let sum = ops::combine(&mut g, &out, &weights, &routes).unwrap();
    assert_eq!(rank.state(&sum), Some(ShardState::Partial));
    let stream = sum_rows(&mut g, &ep, &sum, &each).unwrap();
    let stream = ops::add(&mut g, &x, &stream).unwrap();
    assert_eq!(rank.state(&stream), Some(ShardState::Tokens));
    let not_summed = said(|| ops::add(&mut g, &all, &sum).unwrap());
    assert_eq!(not_summed, "add: along cp/ep ranks hold Replicated, Partial");
    let not_gathered =
        said(|| x.clone().resharded("own rows", ep.over, ShardState::Replicated, ShardState::Routed));
    assert!(not_gathered.starts_with("own rows: along cp/ep ranks hold Some(Tokens)"), "{not_gathered}");
    // The ranks are those of both axes.
    assert_eq!(ep.over, rank.ctx.digits.dense(Axis::Cp));
}
