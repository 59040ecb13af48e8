//! Every family on split topologies: gradients of all parameters, losses and norms as on one rank.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod parity;

use ms_core::ops::Auxiliary;
use ms_dist::ContextParallel;
use ms_spec::{Mixer, ModelConfig};
use ms_testing::{golden_model, golden_models};
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Shape, batches, compare};
use parity::{Case, run};

fn config(name: &str) -> Option<ModelConfig> {
    let dir = golden_model(name)?;
    let text = std::fs::read_to_string(dir.join("config.json")).ok()?;
    ms_spec::hf::read_config(&ms_spec::hf::parse_json(&text).ok()?).ok()
}

/// Whether a model can be cut so: a refusal names a reason in the rules of its parts.
fn fits(c: &ModelConfig, case: &Case) -> bool {
    let etp = case.sizes.etp.unwrap_or(case.sizes.tp);
    ms_spec::check_cut(c, case.sizes.tp).is_ok()
        && ms_spec::check_expert_cut(c, case.sizes.ep, etp).is_ok()
        && ms_spec::check_context(c, case.sizes.tp, case.sizes.cp).is_ok()
        && ms_spec::Placement::new(c, &case.stages).is_ok()
        && std::iter::once(c.heads).chain(c.windowed.as_ref().map(|w| w.heads)).all(|heads| {
            case.sizes.cp == 1 || case.context.check(heads / case.sizes.tp, case.sizes.cp, 16).is_ok()
        })
}

/// Runs every model on the case; at least one in `share` must fit it.
fn on_all(what: &str, case: &Case, packed: bool, share: usize) {
    let (mut ran, mut wrong) = (0, Vec::new());
    let models = golden_models();
    for name in &models {
        let Some(mut c) = config(name) else { continue };
        let mut case = case.clone();
        let stages = case.sizes.pp;
        if stages > 1 && !c.layers.is_multiple_of(stages) {
            // The last stages have a layer less.
            let slots = |stage| (c.layers + stages - 1 - stage) / stages;
            case.stages.layer_list = Some((0..stages).map(slots).collect());
        }
        let case = &case;
        c.max_positions = c.max_positions.max(64);
        // Wide enough that the gradients of all parts count, and not so wide that a state along the sequence explodes.
        let recurrent = [Mixer::Mamba2, Mixer::Mamba3, Mixer::GatedDelta].into_iter().any(|m| c.has(m));
        c.init_std = if recurrent { 0.05 } else { 0.2 };
        if !fits(&c, case) {
            continue;
        }
        ran += 1;
        let auxiliary = Auxiliary { experts: 0.02, devices: 0.01, communication: 0.01, z: 1e-3 };
        let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
        let steps = batches(&c, Shape { rows: 2, length: 16, micro: 4, packed }, 2);
        let bounds = Bounds::of(case.dtype);
        let outcome = run(&c, &case.alone(), routing, &steps)
            .and_then(|want| run(&c, case, routing, &steps).and_then(|got| compare(&want, &got, bounds)));
        if let Err(e) = outcome {
            wrong.push(format!("{name}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "{what}: {} of {ran} models differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran * share >= models.len(), "{what}: {ran} of {} models fit", models.len());
}

#[test]
fn tensor_parallel() {
    on_all("tp 2", &Case::of(2, 2, 1, 1, 1), true, 4);
}

#[test]
fn tensor_and_sequence_parallel() {
    on_all("tp 2 with sequence parallelism", &Case::of(2, 2, 1, 1, 1).sequence_parallel(), true, 4);
}

#[test]
fn fewer_key_heads_than_ranks() {
    on_all("tp 4", &Case::of(4, 4, 1, 1, 1).sequence_parallel(), true, 4);
    let case = Case::of(4, 2, 2, 1, 1).context(ContextParallel::Ulysses);
    on_all("tp 2 and cp 2, Ulysses", &case, true, 5);
}

#[test]
fn pipeline_parallel() {
    on_all("pp 2", &Case::of(2, 1, 1, 2, 1), true, 2);
}

#[test]
fn expert_parallel() {
    on_all("ep 2", &Case::of(2, 1, 1, 1, 2), true, 10);
}

#[test]
fn experts_whole_on_tensor_parallel_ranks() {
    let case = Case::of(2, 2, 1, 1, 1).experts(2, 1).sequence_parallel();
    on_all("tp 2, ep 2, expert tp 1", &case, true, 15);
}

#[test]
fn context_parallel_ring() {
    let case = Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ring { window: 1 });
    on_all("cp 2, ring", &case, true, 5);
}

#[test]
fn context_parallel_ulysses() {
    on_all("cp 2, Ulysses", &Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses), true, 5);
}
