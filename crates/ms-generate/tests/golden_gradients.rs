//! The gradient of every golden family's loss by every one of its parameters, those of a prediction module with drawn weights
//! among them: in f64 against differences of the loss itself, and in f32, by the CPU's kernels, against the one in f64.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{
    DType, Device, GradBuffer, Graph, Grid, ParamId, ParamLayout, ParamStore, Rng, Tensor, Var, ops,
};
use ms_cpu::{Choice, CpuBackend};
use ms_generate::LoadedModel;
use ms_nn::{Batch, Gpt, init_params};
use ms_spec::ModelConfig;
use ms_testing::{form_of, golden_model, read_golden};
use std::sync::Arc;

/// Steps along a direction, relative to the parameter's size; a smaller one where the one before picks other experts or keys.
const STEPS: [f64; 3] = [1e-4, 1e-5, 1e-6];

struct Trial {
    model: LoadedModel,
    layout: Arc<ParamLayout>,
    batch: Batch,
    /// Of each place of the batch the token behind it in its row, and the one behind that.
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
    fn new(family: &str, dtype: DType, states_first: bool) -> Option<Self> {
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
        if !WITHOUT_MODULES.contains(&form_of(family)) {
            let config = predicting(model.config(), states_first);
            model = with_module(model, &config, seq);
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

    /// The loss, and of a prediction module the loss by the token after the next one beside it.
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

/// The model as `config` says, with the weights that it has, and drawn ones.
fn with_module(model: LoadedModel, config: &ModelConfig, seq: usize) -> LoadedModel {
    let wider = Gpt::new(config, &model.device, seq).unwrap();
    let mut store = ParamStore::zeros(model.device.arena(), model.store.dtype(), layout_of(&wider));
    init_params(&mut store, wider.specs(), 4, (0, &Grid::single()), |_| true).unwrap();
    for (i, spec) in model.model.specs().iter().enumerate() {
        let at = wider.specs().iter().position(|s| s.name == spec.name).unwrap();
        let values = model.store.get(ParamId(i as u32)).to_reals().unwrap();
        store.get_mut(ParamId(at as u32)).unwrap().set_reals(&values).unwrap();
    }
    LoadedModel { model: wider, store, ..model }
}

/// Whether the slope of `at` in 0 is `want`, up to `bound`, by central differences of fourth order: of the largest step within
/// which nothing jumps. Else what the differences say.
fn is_slope(mut at: impl FnMut(f64) -> f64, want: f64, bound: f64) -> Result<(), String> {
    let mut said = Vec::new();
    for by in STEPS {
        let [back2, back, on, on2] = [-2.0, -1.0, 1.0, 2.0].map(|n| at(n * by));
        let slope = (8.0 * (on - back) - (on2 - back2)) / (12.0 * by);
        if (slope - want).abs() <= bound {
            return Ok(());
        }
        said.push(format!("{slope:.9e} by steps of {by}"));
    }
    Err(said.join(", "))
}

/// Every parameter whose name begins with `prefix`.
fn check_those(family: &str, prefix: &str, states_first: bool) {
    let Some(mut trial) = Trial::new(family, DType::F64, states_first) else { return };
    let grads = trial.gradient();
    let single = Trial::new(family, DType::F32, states_first).unwrap().gradient();
    let norm = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let length = norm(&grads.values().to_reals().unwrap());
    assert!(length > 1e-3, "{family}: the gradient is {length}");
    // Of keys with equal scores, often 0, an indexer picks as torch does on the one device and the first on the other.
    let picks = trial.model.model.specs().iter().any(|s| s.name.contains("indexer."));
    let (mut wrong, mut looked) = (Vec::new(), 0);
    for id in trial.layout.ids() {
        let spec = trial.model.model.specs()[id.0 as usize].clone();
        if !spec.trained() || !spec.name.starts_with(prefix) {
            continue;
        }
        looked += 1;
        let before = trial.model.store.get(id).to_reals().unwrap();
        let gradient = grads.get(id).to_reals().unwrap();
        // Which keys an indexer picks is no smooth function: it learns by a loss of its own (`ms-trainer`'s tests of indexers).
        if spec.name.contains("indexer.") {
            assert!(gradient.iter().all(|&g| g == 0.0), "{family}: {} has a gradient", spec.name);
            continue;
        }
        let narrow = single.get(id).to_reals().unwrap();
        let apart: Vec<f64> = narrow.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let relative = norm(&apart) / norm(&gradient).max(1e-3 * length);
        if !picks && (relative.is_nan() || relative > 1e-3) {
            wrong.push(format!("{}: f32 and f64 are {relative:.1e} apart", spec.name));
        }
        let mut noise = vec![0f32; before.len()];
        Rng::named(1, &spec.name).fill_normal(&mut noise, 1.0);
        let way: Vec<f64> =
            noise.iter().zip(&before).map(|(n, b)| f64::from(*n) * b.abs().max(1e-2)).collect();
        let want: f64 = way.iter().zip(&gradient).map(|(w, g)| w * g).sum();
        // Differences carry the rounding of the loss divided by the step: some 1e-10.
        let bound = 1e-6 * want.abs().max(0.01 * norm(&way) * norm(&gradient)) + 1e-9;
        if let Err(said) = is_slope(|by| trial.moved(id, &before, &way, by), want, bound) {
            wrong.push(format!("{}: the gradient says {want:.9e}, differences {said}", spec.name));
        }
        trial.model.store.get_mut(id).unwrap().set_reals(&before).unwrap();
    }
    assert!(wrong.is_empty(), "{family}:\n{}", wrong.join("\n"));
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
