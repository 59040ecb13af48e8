//! The gradient of every golden family's loss with respect to each of its parameters, including those of a prediction module
//! with random weights: in f64 against finite differences of the loss itself, and in f32, with the CPU's kernels, against the
//! one in f64.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{
    DType, Device, GradBuffer, Graph, Grid, ParamId, ParamLayout, ParamStore, Rng, Tensor, Var, ops,
};
use ms_cpu::{Choice, CpuBackend};
use ms_generate::LoadedModel;
use ms_nn::{Batch, Gpt, init_params};
use ms_spec::{ModelConfig, Part, Role, Slot};
use ms_testing::{form_of, golden_model, read_golden};
use std::sync::Arc;

/// Steps along a direction, relative to the parameter's size; a smaller one where the one before picks other experts or keys.
const STEPS: [f64; 3] = [1e-4, 1e-5, 1e-6];

/// Most that a parameter's gradient in f32 may be away from the one in f64, in lengths of it.
const APART: f64 = 3e-4;

/// Least length of a gradient: of less, differences would say nothing.
const LEAST: f64 = 1e-4;

struct Trial {
    model: LoadedModel,
    layout: Arc<ParamLayout>,
    batch: Batch,
    /// For each position of the batch, the next token in its row, and the one after that.
    ahead: [Tensor; 2],
    weights: Tensor,
}

/// Families without prediction modules: their layers are shortcut blocks, or all of them are recurrent.
const WITHOUT_MODULES: [&str; 4] = ["longcat_flash", "mamba2", "mamba3", "mamba3_mimo"];

/// `c` with a prediction module.
fn predicting(c: &ModelConfig, states_first: bool) -> ModelConfig {
    let c = ModelConfig { mtp: 1, mtp_hidden_first: states_first, init_std: 0.2, ..c.clone() };
    c.validate().unwrap()
}

impl Trial {
    /// `told_apart`: no two keys have one score of an indexer, if there is one, so that every device picks the same.
    fn new(family: &str, dtype: DType, states_first: bool, told_apart: bool) -> Option<Self> {
        let dir = golden_model(family)?;
        let (reference, _) = read_golden(&dir.join("reference.safetensors"));
        let ids = &reference["input_ids"];
        let (rows, seq) = (ids.shape[0], ids.shape[1]);
        let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
        let choice = Choice::of_process(None, None).unwrap();
        let device = match dtype {
            DType::F64 => ms_reference::device(),
            _ => Device::new(CpuBackend::with(1, choice).unwrap()),
        };
        let mut model = LoadedModel::open(&dir, dtype, device, Some(seq)).unwrap();
        let mut config = model.config().clone();
        if !WITHOUT_MODULES.contains(&form_of(family)) {
            config = predicting(&config, states_first);
        }
        if config != *model.config() {
            model = remade(model, &config, seq);
        }
        if told_apart {
            tell_keys_apart(&mut model);
        }
        let arena = model.device.arena();
        let batch = Batch::uniform(arena, &tokens, seq).unwrap();
        let ahead = [1, 2].map(|by| {
            let at = |t: usize| tokens[t / seq * seq + (t % seq + by) % seq];
            let ahead: Vec<i32> = (0..rows * seq).map(at).collect();
            Tensor::from_slice(arena, [ahead.len()], &ahead).unwrap()
        });
        let count = rows * seq;
        let weights = Tensor::from_reals(arena, dtype, [count], &vec![1.0 / count as f64; count]).unwrap();
        let layout = layout_of(&model.model);
        Some(Self { model, layout, batch, ahead, weights })
    }

    /// The loss, and for a prediction module also the loss of the token after the next one.
    fn run(&self, g: &mut Graph) -> Var {
        let LoadedModel { model, store, ctx, .. } = &self.model;
        let [next, after] = &self.ahead;
        let tokens = vec![next.clone(); model.config().mtp];
        let (main, modules) = model.forward_ahead(g, store, ctx, &self.batch, &tokens).unwrap();
        let mut loss = |states: &Var, labels: &Tensor| {
            model.loss(g, store, ctx, states, labels, &self.weights).unwrap().loss
        };
        let (first, second) = (loss(&main, next), modules.first().map(|states| loss(states, after)));
        match second {
            Some(second) => ops::add(g, &first, &second).unwrap(),
            None => first,
        }
    }

    fn loss(&self) -> f64 {
        self.run(&mut Graph::inference(&self.model.device)).value().to_reals().unwrap()[0]
    }

    fn gradient(&self) -> GradBuffer {
        let m = &self.model;
        let mut g = Graph::train(&m.device);
        let loss = self.run(&mut g);
        let mut grads = GradBuffer::zeros(m.device.arena(), m.store.dtype(), self.layout.clone());
        let one = Tensor::from_reals(m.device.arena(), m.store.dtype(), [1], &[1.0]).unwrap();
        g.backward(&loss, one, &[], &mut grads).unwrap();
        grads
    }

    /// The loss with parameter `id` moved by `by` along `way`.
    fn moved(&mut self, id: ParamId, before: &[f64], way: &[f64], by: f64) -> f64 {
        let values: Vec<f64> = before.iter().zip(way).map(|(b, w)| b + by * w).collect();
        self.model.store.get_mut(id).unwrap().set_reals(&values).unwrap();
        self.loss()
    }
}

fn layout_of(model: &Gpt) -> Arc<ParamLayout> {
    Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)))
}

/// The model as `config` says, with the weights that it has, and drawn ones: each, too, that training begins with at 0 or 1.
fn remade(model: LoadedModel, config: &ModelConfig, seq: usize) -> LoadedModel {
    let wider = Gpt::new(config, &model.device, seq).unwrap();
    let mut store = ParamStore::zeros(model.device.arena(), model.store.dtype(), layout_of(&wider));
    init_params(&mut store, wider.specs(), 4, (0, &Grid::single()), |_| true).unwrap();
    for (at, spec) in wider.specs().iter().enumerate() {
        let id = ParamId(at as u32);
        let values = match model.model.specs().iter().position(|s| s.name == spec.name) {
            Some(i) => model.store.get(ParamId(i as u32)).to_reals().unwrap(),
            None if spec.trained() => {
                let (drawn, mut noise) = (store.get(id).to_reals().unwrap(), vec![0f32; spec.shape.numel()]);
                Rng::named(2, &spec.name).fill_normal(&mut noise, 0.1);
                drawn.iter().zip(&noise).map(|(d, n)| d + f64::from(*n)).collect()
            }
            None => continue,
        };
        store.get_mut(id).unwrap().set_reals(&values).unwrap();
    }
    LoadedModel { model: wider, store, ..model }
}

/// Makes queries of an indexer's second half of heads the opposite of those of the first: of two such heads one gives every key
/// a score, where rectified products were 0 for many keys.
fn tell_keys_apart(model: &mut LoadedModel) {
    for (at, spec) in model.model.specs().iter().enumerate() {
        let Slot { part: Part::Indexer | Part::EntryIndexer, role: Role::WqB, .. } = spec.slot else {
            continue;
        };
        let id = ParamId(at as u32);
        let mut values = model.store.get(id).to_reals().unwrap();
        let (first, second) = values.split_at_mut(spec.shape.numel() / 2);
        first.iter().zip(second).for_each(|(one, other)| *other = -*one);
        model.store.get_mut(id).unwrap().set_reals(&values).unwrap();
    }
}

/// Which step finds the slope of `at` in 0 to be `want`, up to `bound`, by central differences of fourth order: the largest
/// within which nothing jumps. Else what the differences say.
fn is_slope(mut at: impl FnMut(f64) -> f64, want: f64, bound: f64) -> Result<usize, String> {
    let mut said = Vec::new();
    for (i, by) in STEPS.into_iter().enumerate() {
        let [back2, back, on, on2] = [-2.0, -1.0, 1.0, 2.0].map(|n| at(n * by));
        let slope = (8.0 * (on - back) - (on2 - back2)) / (12.0 * by);
        // Differences carry the rounding of the loss divided by the step.
        if (slope - want).abs() <= bound + 1e-14 / by {
            return Ok(i);
        }
        said.push(format!("{slope:.9e} by steps of {by}"));
    }
    Err(said.join(", "))
}

/// Whether a gradient of exactly 0 is right: a router of Phi-3.5-MoE whose choices all stand alone, with no other score near
/// them, gives weights of 1, whatever it says.
fn may_be_idle(family: &str, slot: Slot) -> bool {
    form_of(family) == "phimoe" && slot.part == Part::Router
}

/// Every parameter whose name begins with `prefix`.
fn check_those(family: &str, prefix: &str, states_first: bool) {
    let Some(mut trial) = Trial::new(family, DType::F64, states_first, false) else { return };
    let grads = trial.gradient();
    // Of keys with equal scores an indexer picks as torch does on the one device and the first on the other, and every gradient
    // follows from what is picked.
    let of = |dtype| Trial::new(family, dtype, states_first, true).unwrap().gradient();
    let (double, single) = (of(DType::F64), of(DType::F32));
    let norm = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let length = norm(&grads.values().to_reals().unwrap());
    assert!(length > 1e-3, "{family}: the gradient is {length}");
    let (mut wrong, mut looked, mut smallest) = (Vec::new(), 0, Vec::new());
    for id in trial.layout.ids() {
        let spec = trial.model.model.specs()[id.0 as usize].clone();
        if !spec.trained() || !spec.name.starts_with(prefix) {
            continue;
        }
        looked += 1;
        let before = trial.model.store.get(id).to_reals().unwrap();
        let gradient = grads.get(id).to_reals().unwrap();
        // Which keys an indexer picks is not a smooth function: it learns by a loss of its own (`ms-trainer`'s tests of
        // indexers).
        if matches!(spec.slot.part, Part::Indexer | Part::EntryIndexer | Part::EntryIndexerCompressor) {
            assert!(gradient.iter().all(|&g| g == 0.0), "{family}: {} has a gradient", spec.name);
            continue;
        }
        let idle = norm(&gradient) == 0.0 && may_be_idle(family, spec.slot);
        if norm(&gradient) < LEAST && !idle {
            wrong.push(format!("{}: the gradient is {:.1e}", spec.name, norm(&gradient)));
        }
        let [narrow, wide] = [&single, &double].map(|grads| grads.get(id).to_reals().unwrap());
        let apart: Vec<f64> = narrow.iter().zip(&wide).map(|(a, b)| a - b).collect();
        let relative = norm(&apart) / norm(&wide).max(1e-3 * length);
        if relative.is_nan() || relative > APART {
            wrong.push(format!("{}: f32 and f64 are {relative:.1e} apart", spec.name));
        }
        let mut noise = vec![0f32; before.len()];
        Rng::named(1, &spec.name).fill_normal(&mut noise, 1.0);
        let way: Vec<f64> =
            noise.iter().zip(&before).map(|(n, b)| f64::from(*n) * b.abs().max(1e-2)).collect();
        let want: f64 = way.iter().zip(&gradient).map(|(w, g)| w * g).sum();
        let bound = 1e-7 * want.abs().max(0.01 * norm(&way) * norm(&gradient));
        match is_slope(|by| trial.moved(id, &before, &way, by), want, bound) {
            Ok(step) if step + 1 == STEPS.len() => smallest.push(spec.name),
            Ok(_) => {}
            Err(said) => {
                wrong.push(format!("{}: the gradient says {want:.9e}, differences {said}", spec.name));
            }
        }
        trial.model.store.get_mut(id).unwrap().set_reals(&before).unwrap();
    }
    assert!(wrong.is_empty(), "{family}:\n{}", wrong.join("\n"));
    assert!(4 * smallest.len() <= looked, "{family}: so many have jumps so near: {smallest:?}");
    assert!(looked > 0, "{family}: no parameter was looked at");
}

fn check(family: &str) {
    check_those(family, "", false);
}

/// MindSpeed-LLM 2.0.0's modules have the states first in what they join: of each kind of layer one family.
#[test]
fn modules_with_the_states_first() {
    for family in
        ["deepseek_v3", "deepseek_v4", "glm45_air", "hy_v3", "llama3_gqa", "minimax_m2", "qwen3_next"]
    {
        check_those(family, "mtp.", true);
    }
}

ms_testing::golden_model_tests!(check);
