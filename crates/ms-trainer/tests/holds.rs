//! What the table of parameters says of tensor-parallel ranks agrees with what the parts of a model do, for every family: debug
//! builds follow it through a forward pass, here of a rank alone and without values. A table that says otherwise of one weight,
//! whichever, is noticed.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

#[path = "parity/samples.rs"]
mod samples;

use ms_core::{
    DType, Device, Dispatcher, Graph, Grid, GridRules, GridSizes, Hold, ParamLayout, ParamStore, Tensor,
};
use ms_dist::{ContextParallel, MetaFabric, ParallelCtx};
use ms_nn::{Batch, Gpt, IndexerLoss, IndexerObjective, Seat};
use ms_spec::{ModelConfig, Placement};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One of two ranks of a model.
struct Rank {
    device: Device,
    ctx: ParallelCtx,
    model: Gpt,
    store: ParamStore,
    holds: Vec<Option<Hold>>,
}

impl Rank {
    /// `None` for a model that cannot be cut so.
    fn new(c: &ModelConfig, sequence_parallel: bool, dispatcher: Dispatcher) -> Option<Self> {
        let sizes = GridSizes { tp: 2, ..GridSizes::default() };
        let grid = Grid::new(2, &sizes, GridRules::V2).unwrap();
        let (device, placement) = (Device::meta(DType::F32), Placement::whole(c));
        let context = ContextParallel::Gather;
        let model =
            Gpt::part(c, &device, Seat { grid: &grid, rank: 1, placement: &placement, context }, 64).ok()?;
        let fabric = MetaFabric::new(1, 2, Arc::new(|_, _| None));
        let ctx = ParallelCtx::new(grid, sequence_parallel, context, &fabric).unwrap();
        let ctx = ctx.with_dispatcher(dispatcher, false);
        let shapes =
            model.held().iter().map(|p| ms_spec::local(&p.spec, &ctx.grid, 1).unwrap().local_shape());
        let layout = Arc::new(ParamLayout::sequential(shapes));
        let store = ParamStore::zeros(device.arena(), DType::F32, layout);
        let holds = model.specs().iter().map(|s| s.hold(sequence_parallel)).collect();
        Some(Self { device, ctx, model, store, holds })
    }

    /// What the pass ends with, if ranks that hold so cannot compute it.
    fn clash(&mut self, holds: &[Option<Hold>]) -> Option<String> {
        self.store.set_holds(holds.iter().copied());
        let tokens = [1; 16];
        let positions: Vec<i32> = (0..16).collect();
        let mut batch = Batch::new(self.device.arena(), &tokens, &positions, &[0, 16]).unwrap();
        // A loss of its own trains what picks keys.
        let objective = IndexerObjective::MindSpeed;
        let losses = Arc::default();
        batch.indexer_loss = Some(Arc::new(IndexerLoss { objective, factor: 1.0, weight: 1.0, losses }));
        let ahead = Tensor::from_slice(self.device.arena(), [16], &tokens).unwrap();
        let ahead = vec![ahead; self.model.config().mtp];
        let mut g = Graph::train(&self.device);
        let pass = || self.model.forward_ahead(&mut g, &self.store, &self.ctx, &batch, &ahead).map(drop);
        match catch_unwind(AssertUnwindSafe(pass)) {
            Ok(done) => {
                done.unwrap();
                None
            }
            Err(said) => Some(*said.downcast::<String>().unwrap()),
        }
    }
}

#[test]
fn whose_gradients_are_summands_is_what_the_parts_of_every_family_need() {
    // Clashes are what is looked for.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut slips, mut unnoticed, mut wrong) = (0, Vec::new(), Vec::new());
    for (name, c) in samples::samples() {
        for (sequence_parallel, dispatcher) in
            [(false, Dispatcher::AllGather), (true, Dispatcher::AllGather), (true, Dispatcher::AllToAll)]
        {
            let Some(mut rank) = Rank::new(&c, sequence_parallel, dispatcher) else { continue };
            let holds = rank.holds.clone();
            if let Some(clash) = rank.clash(&holds) {
                wrong.push(format!("{name}, {sequence_parallel} {dispatcher:?}: {clash}"));
                continue;
            }
            let specs = rank.model.specs().to_vec();
            for (i, spec) in specs.iter().enumerate().filter(|(_, s)| s.trained()) {
                let other = match holds[i] {
                    Some(Hold::Invariant) => Hold::Replicated,
                    Some(Hold::Replicated) => Hold::Invariant,
                    _ => continue,
                };
                let mut slipped = holds.clone();
                slipped[i] = Some(other);
                slips += 1;
                if rank.clash(&slipped).is_none() {
                    let weight = &spec.name;
                    unnoticed.push(format!("{name}, {sequence_parallel} {dispatcher:?}: {weight} {other:?}"));
                }
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unnoticed.is_empty(), "{} of {slips}:\n{}", unnoticed.len(), unnoticed.join("\n"));
    println!("{slips} slips of the table, all noticed");
}
