//! Latents of keys and values are processed while those of queries and the shared part of keys are in transit (in simulated
//! time).

use crate::parity::samples;
use crate::simulated_network::{Time, time_of_work_where};
use ms_core::{DType, Grid, GridRules, GridSizes};
use ms_dist::{CommCall, LinearOverlap, ParallelOptions};
use ms_nn::{SavePolicy, Swapped};
use ms_trainer::parity::Trial;
use ms_trainer::{Checks, MemoryConfig, Rates, TrainConfig};

const LENGTH: usize = 64;

/// Four layers, two micro-batches, whose gradients are computed by themselves and in a step.
const PASSES: usize = 4 * 2 * 2;

/// Elements of a token that a rank gathers for up projections: latents of keys and values, of queries, the shared part of keys.
const WIDTHS: [usize; 3] = [8, 16, 2];

/// What a step of two micro-batches takes on the first of two tensor-parallel ranks that share the tokens.
fn time(latents: bool, save_policy: SavePolicy, per_byte: f64) -> Time {
    let model = samples::latent();
    let tp_overlap = LinearOverlap { overlap_gathers: latents, ..LinearOverlap::default() };
    let config = TrainConfig {
        tp_overlap,
        memory: MemoryConfig { save_policy, ..MemoryConfig::default() },
        checks: Checks::NONE,
        ..TrainConfig::steps(model, DType::F64, LENGTH, 1)
    };
    let trial = Trial {
        config,
        grid: Grid::new(2, &GridSizes { tp: 2, ..GridSizes::default() }, GridRules::V2).unwrap(),
        parallel: ParallelOptions { sequence_parallel: true, ..ParallelOptions::default() },
        rates: Rates::from((1e-3, 0.1)),
    };
    let latents = WIDTHS.map(|width| LENGTH / 2 * width * 8);
    let on_wire = move |of: &CommCall<'_>, _: &str| {
        let bytes = of.own.as_ref().map_or(0, |own| own.bytes().len());
        of.kind == "all_gather" && of.name == "enter_tp" && latents.contains(&bytes)
    };
    time_of_work_where(&trial, Box::new(on_wire), per_byte)
}

#[test]
fn a_step_waits_for_less_of_the_latents_that_are_gathered_beside_products() {
    let none = SavePolicy::default();
    // Of each pass through a layer three are gathered, and two again where they are recomputed.
    for (what, save_policy, exchanges) in [
        ("kept", none, 3 * PASSES),
        ("formed again", SavePolicy { recompute_operands: true, ..none }, 5 * PASSES),
        ("swapped", SavePolicy { swapped: Swapped::ATTENTION, ..none }, 3 * PASSES),
    ] {
        let [plain, beside] = [false, true].map(|latents| {
            let quick = time(latents, save_policy, 0.0);
            let per_byte = 0.01 * quick.now / time(latents, save_policy, 1.0).wire;
            let slow = time(latents, save_policy, per_byte);
            assert_eq!(slow.exchanges, exchanges, "{what}");
            ((slow.now - quick.now) / slow.wire, quick.now)
        });
        println!(
            "{what}: a step waits for {:.2} of the wire's time, beside products {:.2}",
            plain.0, beside.0
        );
        assert_eq!(plain.1, beside.1, "{what}: the same products");
        assert!((plain.0 - 1.0).abs() < 1e-9, "{what}: without overlap all of it: {}", plain.0);
        // Latents of keys and values come first, without overlap: 8 of 26 elements.
        assert!(beside.0 < 0.4, "{what}: {}", beside.0);
    }
}
