//! Training on delayed devices: the host reads nothing before it has waited for it, so the bits are those of a device that
//! computes at once.

use crate::parity::samples::{MLA, picked, pooled, samples};
use crate::parity::{Case, run, run_on, same, small_experts};
use ms_core::ops::Auxiliary;
use ms_core::{DType, Device, Dispatcher};
use ms_cpu::CpuBackend;
use ms_data::MicroBatch;
use ms_dist::{CommCall, CommHook, ContextParallel, ParallelCtx, Pending};
use ms_kernels::Isa;
use ms_nn::{IndexerObjective, Recompute, SavePolicy, Swapped};
use ms_spec::{Attention, Mixer, Mla, ModelConfig};
use ms_trainer::parity::{Found, ParityError, Shape, batches};
use ms_trainer::{IndexerTraining, LossScale, OptimizerForm, PipelineOrder, Routing};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const SHAPE: Shape = Shape { rows: 2, length: 16, micro: 4, packed: true };

/// Ranks that exchange from device to device: what arrives is written by the device, and not there when the exchange is over.
struct OnDevices;

impl CommHook for OnDevices {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        let pending = begin()?;
        Ok(match of.kind {
            // A message lies in the memory of its sender.
            "send" | "recv" | "barrier" => pending,
            _ => Pending::new(move || Ok(pending.wait()?.copied()?)),
        })
    }
}

/// What a run on delaying devices found, the places that looked too early, and how often each device was waited for.
struct Late {
    found: Result<Found, ParityError>,
    early: BTreeSet<String>,
    waits: Vec<u64>,
}

/// Runs the steps on devices that delay everything and leave out the wait that is given.
fn late(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    left_out: Option<u64>,
) -> Late {
    let made = Mutex::new(Vec::new());
    let device = || {
        let device = Device::delayed(CpuBackend::new(1, Isa::detect())?, left_out);
        made.lock().unwrap().push(device.clone());
        Ok(device)
    };
    let hook: Arc<dyn CommHook> = Arc::new(OnDevices);
    let found = run_on(config, case, routing, steps, &device, &|ctx: ParallelCtx| ctx.with_hook(&hook));
    let made = made.into_inner().unwrap();
    let early = made.iter().flat_map(Device::early).map(|(place, _)| place).collect();
    Late { found, early, waits: made.iter().map(Device::waits).collect() }
}

/// Two steps on devices that delay everything and on such that do not.
#[track_caller]
fn holds(what: &str, config: &ModelConfig, case: &Case, routing: Routing) {
    let steps = batches(config, SHAPE, 2);
    let late = late(config, case, routing, &steps, None);
    assert!(late.early.is_empty(), "{what}: looked at too early: {:#?}, {:?}", late.early, late.found.err());
    assert!(late.waits.iter().all(|&n| n > 0), "{what}: devices delay");
    same(what, &run(config, case, routing, &steps).unwrap(), &late.found.unwrap());
}

/// One rank in f32.
fn single() -> Case {
    Case::single().single_precision()
}

fn of(world: usize, tp: usize, cp: usize, pp: usize, ep: usize) -> Case {
    Case::of(world, tp, cp, pp, ep).single_precision()
}

#[test]
fn every_family_waits_for_what_it_looks_at() {
    let objective = IndexerObjective::Megatron { sparse: false };
    for (name, c) in samples() {
        let indexer = c.indexer.map(|_| IndexerTraining { objective, coeff: 1.0 });
        holds(&name, &c, &Case { indexer, ..single() }, Routing::default());
    }
}

/// Four layers: dense, with experts in every other layer, with latent attention and a prediction module.
fn models() -> [(&'static str, ModelConfig); 3] {
    let dense = ModelConfig { layers: 4, ..ModelConfig::tiny() };
    let pattern = small_experts().pattern;
    let pattern = pattern.iter().chain(&pattern).cloned().collect();
    let experts = ModelConfig { layers: 4, pattern, ..small_experts() };
    let mla = Mla { value: 6, ..MLA };
    let latent =
        ModelConfig { attention: Attention::Latent(mla), mtp: 2, head_dim: 8, groups: 4, ..dense.clone() };
    [("dense", dense), ("experts", experts), ("latent attention", latent)]
}

#[test]
fn ranks_wait_for_what_they_exchange() {
    let cases = [
        ("tp", of(2, 2, 1, 1, 1)),
        ("tp that shares tokens", of(2, 2, 1, 1, 1).sequence_parallel()),
        ("dp beside the backward pass", Case { bucket_size: Some(300), overlap: true, ..of(2, 1, 1, 1, 1) }),
        ("pp", of(2, 1, 1, 2, 1)),
        ("cp", of(2, 1, 2, 1, 1)),
        ("cp in a ring", of(2, 1, 2, 1, 1).context(ContextParallel::Ring { window: 1 })),
        ("recomputation", Case { recompute: Recompute::Block(1), ..of(2, 1, 1, 2, 1) }),
        (
            "swap",
            Case {
                save_policy: SavePolicy { swapped: Swapped::ATTENTION, ..SavePolicy::default() },
                ..single()
            },
        ),
    ];
    for (model, c) in models() {
        for (name, case) in &cases {
            holds(&format!("{model}, {name}"), &c, case, Routing::default());
        }
    }
    let (_, hybrid) = samples().into_iter().find(|(name, _)| name == "hybrid").unwrap();
    assert!(hybrid.has(Mixer::Mamba2));
    for case in [of(2, 2, 1, 1, 1), of(2, 1, 2, 1, 1)] {
        holds("recurrent layers", &hybrid, &case, Routing::default());
    }
    let indexer = Some(IndexerTraining { objective: IndexerObjective::MindSpeed, coeff: 1.0 });
    let by_heads = of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses);
    for case in [of(2, 2, 1, 1, 1).sequence_parallel(), of(2, 1, 2, 1, 1), by_heads] {
        let case = Case { indexer, ..case };
        holds("trained indexers", &picked(), &case, Routing::default());
        holds("trained indexers of entries", &pooled(), &case, Routing::default());
    }
}

#[test]
fn experts_wait_for_their_tokens() {
    let [_, (_, c), _] = models();
    let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
    let routing = Routing { auxiliary, bias_update_rate: 1e-2, ..Routing::default() };
    for dispatcher in [Dispatcher::AllGather, Dispatcher::AllToAll] {
        for case in [of(2, 1, 1, 1, 2), of(2, 2, 1, 1, 1), of(4, 2, 1, 1, 2)] {
            holds(
                &format!("{dispatcher:?} of {} ranks", case.world),
                &c,
                &Case { dispatcher, ..case },
                routing,
            );
        }
    }
}

#[test]
fn optimizers_wait_for_gradients_in_all_their_forms() {
    let [(_, c), ..] = models();
    let bf16 = Case { dtype: DType::Bf16, ..of(2, 1, 1, 1, 1) };
    let form = OptimizerForm::default();
    let dynamic = LossScale::Dynamic { initial: 65536.0, min: 1.0, window: 2, hysteresis: 1 };
    let cases = [
        ("bf16", bf16.clone()),
        ("bf16 gradients", Case { rounded_gradients: true, ..bf16.clone() }),
        ("masters in weights", Case { form: OptimizerForm { reuse: true, ..form }, ..bf16.clone() }),
        ("rounded moments", Case { form: OptimizerForm { rounded_moments: true, ..form }, ..bf16.clone() }),
        ("with the host", Case { form: OptimizerForm { swapped: Some(3), ..form }, ..bf16.clone() }),
        ("float16", Case { dtype: DType::F16, loss_scale: dynamic, ..bf16.clone() }),
        (
            "weights gathered beside",
            Case { bucket_size: Some(300), overlap: true, overlap_gather: true, ..bf16 },
        ),
        ("zero-bubble", Case { order: PipelineOrder::ZeroBubble { group: None }, ..of(2, 1, 1, 2, 1) }),
    ];
    for (name, case) in cases {
        holds(name, &c, &case, Routing::default());
    }
}

/// Of every wait of a step it is found that it is missing: none is there in vain.
#[test]
fn a_wait_that_is_left_out_is_found() {
    let [(_, dense), (_, experts), _] = models();
    for (name, c, case) in [
        ("dense", &dense, single()),
        ("experts", &experts, single()),
        ("dense, tp", &dense, of(2, 2, 1, 1, 1)),
    ] {
        let steps = batches(c, Shape { micro: 2, ..SHAPE }, 1);
        let waits = late(c, &case, Routing::default(), &steps, None).waits.into_iter().min().unwrap();
        assert!(waits > 3, "{name}: {waits}");
        for n in 1..=waits {
            let late = late(c, &case, Routing::default(), &steps, Some(n));
            assert!(!late.early.is_empty(), "{name}: wait {n} of {waits} is in vain");
        }
    }
}
