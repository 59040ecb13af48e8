//! The gradient of every golden family's loss by every one of its parameters: in f64 against differences of the loss itself,
//! and in f32, by the CPU's kernels, against the one in f64.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{Choice, DType, GradBuffer, Graph, ParamId, ParamLayout, Rng, Tensor};
use ms_generate::LoadedModel;
use ms_nn::Batch;
use ms_testing::{golden_model, read_golden};
use std::sync::Arc;

/// Steps along a direction, relative to the parameter's size. A step may take an expert or a key out of the picks; a smaller
/// one does not.
const STEPS: [f64; 2] = [1e-4, 1e-5];

struct Trial {
    model: LoadedModel,
    layout: Arc<ParamLayout>,
    batch: Batch,
    labels: Tensor,
    weights: Tensor,
}

impl Trial {
    fn new(family: &str, dtype: DType) -> Option<Self> {
        let dir = golden_model(family)?;
        let (reference, _) = read_golden(&dir.join("reference.safetensors"));
        let ids = &reference["input_ids"];
        let (rows, seq) = (ids.shape[0], ids.shape[1]);
        let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
        let choice = Choice::of_process(None, None).unwrap();
        let device = ms_reference::device_for(dtype, 1, choice).unwrap();
        let model = LoadedModel::open(&dir, dtype, device, Some(seq)).unwrap();
        let arena = model.device.arena();
        let batch = Batch::uniform(arena, &tokens, seq).unwrap();
        let labels: Vec<i32> = (0..rows * seq).map(|t| tokens[t / seq * seq + (t % seq + 1) % seq]).collect();
        let labels = Tensor::from_slice(arena, [labels.len()], &labels).unwrap();
        let count = rows * seq;
        let weights = Tensor::from_reals(arena, dtype, [count], &vec![1.0 / count as f64; count]).unwrap();
        let layout = Arc::new(ParamLayout::sequential(model.model.specs().iter().map(|s| s.shape)));
        Some(Self { model, layout, batch, labels, weights })
    }

    fn loss(&self) -> f64 {
        let m = &self.model;
        let mut g = Graph::inference(&m.device);
        let hidden = m.model.forward(&mut g, &m.store, &m.ctx, &self.batch).unwrap();
        let out = m.model.loss(&mut g, &m.store, &m.ctx, &hidden, &self.labels, &self.weights).unwrap();
        out.loss.value().to_reals().unwrap()[0]
    }

    fn gradient(&self) -> GradBuffer {
        let m = &self.model;
        let mut g = Graph::train(&m.device);
        let hidden = m.model.forward(&mut g, &m.store, &m.ctx, &self.batch).unwrap();
        let out = m.model.loss(&mut g, &m.store, &m.ctx, &hidden, &self.labels, &self.weights).unwrap();
        let mut grads = GradBuffer::zeros(m.device.arena(), m.store.dtype(), self.layout.clone());
        let one = Tensor::from_reals(m.device.arena(), m.store.dtype(), [1], &[1.0]).unwrap();
        g.backward(&out.loss, one, &[], &mut grads).unwrap();
        grads
    }

    /// The loss with parameter `id` moved by `by` along `way`.
    fn moved(&mut self, id: ParamId, before: &[f64], way: &[f64], by: f64) -> f64 {
        let values: Vec<f64> = before.iter().zip(way).map(|(b, w)| b + by * w).collect();
        self.model.store.get_mut(id).unwrap().set_reals(&values).unwrap();
        self.loss()
    }
}

/// Slopes of `at` in 0 by steps of `by`: central of fourth order, and from each side of second order, for where the other side
/// picks other experts.
fn slopes(trial: &mut Trial, at: impl Fn(&mut Trial, f64) -> f64, by: f64) -> [f64; 3] {
    let [back2, back, here, on, on2] = [-2.0, -1.0, 0.0, 1.0, 2.0].map(|n| at(trial, n * by));
    [
        (8.0 * (on - back) - (on2 - back2)) / (12.0 * by),
        (4.0 * on - 3.0 * here - on2) / (2.0 * by),
        (3.0 * here - 4.0 * back + back2) / (2.0 * by),
    ]
}

fn check(family: &str) {
    let Some(mut trial) = Trial::new(family, DType::F64) else { return };
    let grads = trial.gradient();
    let single = Trial::new(family, DType::F32).unwrap().gradient();
    let norm = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let length = norm(&grads.values().to_reals().unwrap());
    assert!(length > 1e-3, "{family}: the gradient is {length}");
    // Of keys with equal scores, often 0, an indexer picks as torch does on the one device and the first on the other.
    let picks = trial.model.model.specs().iter().any(|s| s.name.contains("indexer."));
    let mut wrong = Vec::new();
    for id in trial.layout.ids() {
        let spec = trial.model.model.specs()[id.0 as usize].clone();
        // An indexer has no gradient from the loss of the model, and needs none: which keys it picks is no smooth function.
        if !spec.trained() || spec.name.contains("indexer.") {
            continue;
        }
        let before = trial.model.store.get(id).to_reals().unwrap();
        let gradient = grads.get(id).to_reals().unwrap();
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
        let at = |trial: &mut Trial, by: f64| trial.moved(id, &before, &way, by);
        let slopes = STEPS.map(|by| slopes(&mut trial, at, by)).concat();
        trial.model.store.get_mut(id).unwrap().set_reals(&before).unwrap();
        if !slopes.iter().any(|got| (got - want).abs() <= bound) {
            wrong.push(format!("{}: the gradient says {want:.9e}, differences {slopes:?}", spec.name));
        }
    }
    assert!(wrong.is_empty(), "{family}:\n{}", wrong.join("\n"));
}

ms_testing::golden_model_tests!(check);
