//! An engine without weights after loading a checkpoint.

use super::*;
use crate::OptimizerForm;
use crate::parity::{Shape, batches};
use crate::saving::Saving;
use crate::scaled::Stored;
use ms_core::{Grid, GridRules, GridSizes};
use ms_dist::{CommCall, CommHook, ParallelCtx, ParallelOptions, Pending, threads};
use ms_spec::{Feed, Layer, ModelConfig, Moe, Router, Score};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Experts with a router that has a bias, and a prediction module.
fn model() -> ModelConfig {
    let router = Router { bias: true, ..Router::plain(Score::Sigmoid) };
    let moe = Moe { experts: 4, top_k: 2, ffn: 24, router, shared: None, zero_experts: 0 };
    let moe = Some(moe);
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 2];
    let c = ModelConfig { layers: 2, hidden: 32, ffn: 48, head_dim: 8, moe, pattern, ..ModelConfig::tiny() };
    ModelConfig { mtp: 1, init_std: 0.2, ..c }.validate().unwrap()
}

/// Counts how often weights are gathered.
#[derive(Default)]
struct Gathered(AtomicUsize);

impl CommHook for Gathered {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        self.0.fetch_add(usize::from(of.name == "weights"), Ordering::Relaxed);
        begin()
    }
}

/// What a rank has of each weight, of what no gradient moves unrounded, and of each state of the optimizer.
type Parts = BTreeMap<String, (Region, Vec<f64>)>;

fn parts(engine: &Engine, rule: UpdateRule) -> Result<Parts> {
    let mut all = Parts::new();
    for (i, spec) in engine.model.specs().iter().enumerate() {
        let id = ParamId(i as u32);
        all.insert(spec.name.clone(), (region(engine, spec)?, engine.store.get(id).to_reals()?));
    }
    for (which, state) in state_names(rule).into_iter().enumerate() {
        for part in engine.optimizer.parts(&engine.device, &engine.store, which, |_| true) {
            let (id, range, values) = part?;
            let spec = &engine.model.specs()[id.0 as usize];
            // By their places in the rank's part.
            let name = format!("{} {}..{}", state_name(state, spec), range.start, range.end);
            all.insert(name, (region(engine, spec)?, values.to_reals()?));
        }
    }
    Ok(all)
}

/// Runs `work` with a blank engine on every rank.
fn on<T: Send>(
    config: &TrainConfig,
    sizes: GridSizes,
    world: usize,
    work: impl Fn(&mut Engine, &Gathered) -> Result<T> + Sync,
) -> Vec<T> {
    let rank = |fabric: threads::ThreadFabric| -> Result<T> {
        let grid = Grid::new(world, &sizes, GridRules::V2)?;
        let gathered = Arc::new(Gathered::default());
        let hook: Arc<dyn CommHook> = gathered.clone();
        let ctx = ParallelCtx::new(grid, ParallelOptions::default(), &fabric)?.with_hook(&hook);
        work(&mut Engine::blank(config, ms_cpu::device(1)?, ctx)?, &gathered)
    };
    threads::run(world, rank).map_err(|(rank, e)| format!("rank {rank}: {e}")).unwrap()
}

/// Fills everything that is to be loaded with NaN.
fn poison(engine: &mut Engine, states: usize) -> Result<()> {
    for id in engine.store.layout().clone().ids() {
        let n = engine.store.layout().shape(id).numel();
        engine.store.get_mut(id)?.set_reals(&vec![f64::NAN; n])?;
    }
    for which in 0..states {
        engine.optimizer.fill((&engine.device, &mut engine.store), which, |blanks| {
            for mut blank in blanks {
                let n = blank.values.shape().numel();
                blank.values.set_reals(&vec![f64::NAN; n])?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_blank_engine_is_whole_once_a_checkpoint_is_loaded_and_weights_were_gathered_once() {
    let reuse = OptimizerForm { reuse: true, ties_to_even: true, ..OptimizerForm::default() };
    let narrow =
        OptimizerForm { stored: Some([Stored::F16, Stored::F8, Stored::F16]), ..OptimizerForm::default() };
    let forms = [
        (DType::F32, OptimizerForm::default()),
        (DType::Bf16, OptimizerForm::default()),
        (DType::Bf16, reuse),
        (DType::Bf16, narrow),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (i, (dtype, optimizer_form)) in forms.into_iter().enumerate() {
        let mut config = TrainConfig::steps(model(), dtype, 16, 2);
        config.optimizer.form = optimizer_form;
        config.routing.bias_update_rate = 1e-3;
        let rule = config.optimizer.update;
        let dir = folder.path().join(i.to_string());
        let steps = batches(&config.model, Shape { rows: 2, length: 16, micro: 2, packed: false }, 1);
        let save = |engine: &mut Engine, _: &Gathered| {
            let ids = engine.store.layout().ids();
            assert!(
                ids.map(|id| engine.store.get(id).to_reals().unwrap()).all(|w| w.iter().all(|&w| w == 0.0))
            );
            engine.draw(config.seed)?;
            engine.step(1, &steps[0], (1e-2, 0.1))?;
            let state = RunState {
                from: dir.clone(),
                iteration: 1,
                consumed_train_samples: 4,
                scheduled_samples: 4,
                consumed_valid_samples: 0,
                floating_point_operations: 0.0,
                schedule: config.schedule.clone(),
            };
            Saving::begin(&config, engine, &state, &dir, false)?.go_on(engine, true)?;
            parts(engine, rule)
        };
        let whole = on(&config, GridSizes::default(), 1, save).remove(0);
        let two = |axis: &str| match axis {
            "tp" => GridSizes { tp: 2, ..GridSizes::default() },
            "ep" => GridSizes { ep: 2, ..GridSizes::default() },
            "pp" => GridSizes { pp: 2, ..GridSizes::default() },
            _ => GridSizes::default(),
        };
        for (axis, world) in [("", 1), ("dp", 2), ("tp", 2), ("ep", 2), ("pp", 2), ("tp", 4)] {
            for way in ["all", "finetune", "no optimizer"] {
                let mut config = config.clone();
                config.pipeline.stages.pp = if axis == "pp" { 2 } else { 1 };
                config.checkpoint.load = Some(dir.clone());
                config.checkpoint.finetune = way == "finetune";
                config.checkpoint.no_load_optim = way == "no optimizer";
                let loaded = on(&config, two(axis), world, |engine, gathered| {
                    // Moments that are not loaded are those of a new engine.
                    poison(engine, if way == "all" { state_names(rule).len() } else { 1 })?;
                    gathered.0.store(0, Ordering::Relaxed);
                    load(&config, engine)?.expect("there is a checkpoint");
                    // Groups of one rank are not counted.
                    let shared = engine.dp.shards().len();
                    let times = gathered.0.load(Ordering::Relaxed);
                    assert!(
                        times <= shared && (axis != "dp" || times == shared),
                        "{axis}: {times} of {shared}"
                    );
                    parts(engine, rule)
                });
                for (rank, parts) in loaded.iter().enumerate() {
                    let told = |name: &str| format!("{dtype}, {way}, {axis} {world}, rank {rank}: {name}");
                    for (name, (region, values)) in parts {
                        assert!(values.iter().all(|w| w.is_finite()), "{}", told(name));
                        if name.starts_with("optimizer.") {
                            continue;
                        }
                        let all = &whole[name].1;
                        let cut = region.runs().flat_map(|(at, n)| all[at..at + n].to_vec());
                        assert!(cut.eq(values.iter().copied()), "{}", told(name));
                    }
                    if world == 1 && way == "all" {
                        assert!(
                            parts
                                .iter()
                                .map(|(name, p)| (name, &p.1))
                                .eq(whole.iter().map(|(n, p)| (n, &p.1)))
                        );
                    }
                }
            }
        }
    }
}

/// Source: Megatron-LM `core_r0.8.0`, `megatron/core/optimizer_param_scheduler.py`, `state_dict`.
#[test]
fn of_a_schedule_that_is_kept_what_upstreams_files_do_not_hold_is_this_runs() {
    use crate::lr_schedule::WsdStyle;
    let mut config = TrainConfig::steps(model(), ms_core::DType::F32, 8, 1);
    let own = LrSchedule { init_lr: 1e-4, wsd_decay: 3, wsd_style: WsdStyle::Cosine, ..config.schedule };
    let stored = LrSchedule { init_lr: 0.0, wsd_decay: 6, wsd_style: WsdStyle::Linear, ..own.clone() };
    config.schedule = own.clone();
    let chosen = |config: &TrainConfig, stored: &LrSchedule| {
        choose_schedule(config, Path::new("there"), stored.clone()).map_err(|e| e.to_string())
    };
    assert_eq!(chosen(&config, &stored).unwrap(), own, "nothing that is compared differs");
    let longer = LrSchedule { decay: 40, ..stored };
    let said = chosen(&config, &longer).unwrap_err();
    assert!(said.contains("schedule, decay"), "{said}");
    config.checkpoint.use_checkpoint_schedule = true;
    assert_eq!(chosen(&config, &longer).unwrap(), LrSchedule { decay: 40, ..own.clone() });
    // Upstream fails in its first iteration.
    let ending = LrSchedule { style: crate::DecayStyle::Wsd, ..longer };
    assert_eq!(chosen(&config, &ending).unwrap().wsd_decay, 3);
    config.schedule.wsd_decay = 0;
    assert!(chosen(&config, &ending).unwrap_err().contains("--lr-wsd-decay-iters"));
}
