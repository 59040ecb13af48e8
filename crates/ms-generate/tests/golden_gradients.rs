//! The gradient of every golden family's loss against differences of the loss itself.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device, GradBuffer, Graph, ParamLayout, ParamStore, Rng, Tensor};
use ms_generate::LoadedModel;
use ms_nn::Batch;
use ms_testing::{golden_model, read_golden};
use std::sync::Arc;

/// Loss of the model with weights `store`, and its gradient.
fn run(
    m: &LoadedModel,
    store: &ParamStore,
    batch: &Batch,
    labels: &Tensor,
    gradient: bool,
) -> (f64, Vec<f32>) {
    let device = &m.device;
    let tokens = batch.len();
    let weights = Tensor::from_slice(device.arena(), [tokens], &vec![1.0 / tokens as f32; tokens]).unwrap();
    let mut g = if gradient { Graph::train(device) } else { Graph::inference(device) };
    let hidden = m.model.forward(&mut g, store, &m.ctx, batch).unwrap();
    let out = m.model.loss(&mut g, store, &m.ctx, &hidden, labels, &weights).unwrap();
    let nll = out.nll.to_f32_vec().unwrap();
    let loss = nll.iter().map(|&n| f64::from(n)).sum::<f64>() / tokens as f64;
    if !gradient {
        return (loss, Vec::new());
    }
    let layout = Arc::new(ParamLayout::sequential(m.model.specs().iter().map(|s| s.shape)));
    let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout);
    let one = Tensor::from_slice(device.arena(), [1], &[1f32]).unwrap();
    g.backward(&out.loss, one, &[], &mut grads).unwrap();
    (loss, grads.values().to_f32_vec().unwrap())
}

fn check(family: &str) {
    let Some(dir) = golden_model(family) else { return };
    let (reference, _) = read_golden(&dir.join("reference.safetensors"));
    let ids = &reference["input_ids"];
    let (rows, seq) = (ids.shape[0], ids.shape[1]);
    let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
    let mut m = LoadedModel::open(&dir, DType::F32, Device::cpu(1).unwrap(), Some(seq)).unwrap();
    let batch = Batch::uniform(m.device.arena(), &tokens, seq).unwrap();
    let labels: Vec<i32> = (0..rows * seq).map(|t| tokens[t / seq * seq + (t % seq + 1) % seq]).collect();
    let labels = Tensor::from_slice(m.device.arena(), [labels.len()], &labels).unwrap();
    let (_, gradient) = run(&m, &m.store, &batch, &labels, true);

    // Along the gradient itself and along random directions, relative to each weight's size, so that every part of
    // the model takes part.
    let before = m.store.values().to_f32_vec().unwrap();
    let layout = ParamLayout::sequential(m.model.specs().iter().map(|s| s.shape));
    let mut trained = vec![false; before.len()];
    for (id, s) in layout.ids().zip(m.model.specs()) {
        let moved = s.trained && !s.name.contains("indexer.");
        trained[layout.start(id)..][..s.shape.numel()].fill(moved);
    }
    let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    assert!(length > 1e-3, "{family}: the gradient is {length}");
    for direction in 0..3 {
        let way: Vec<f32> = if direction == 0 {
            gradient.iter().map(|g| (f64::from(*g) / length) as f32).collect()
        } else {
            let mut noise = vec![0f32; before.len()];
            Rng::named(direction, family).fill_normal(&mut noise, 1.0);
            let size = |w: f32| w.abs().max(1e-2);
            noise
                .iter()
                .zip(&before)
                .zip(&trained)
                .map(|((n, &w), &t)| if t { n * size(w) } else { 0.0 })
                .collect()
        };
        let want: f64 = way.iter().zip(&gradient).map(|(w, g)| f64::from(*w) * f64::from(*g)).sum();
        let mut moved = |by: f32| {
            let values = m.store.values_mut().unwrap();
            for (v, (b, w)) in values.as_mut_slice::<f32>().unwrap().iter_mut().zip(before.iter().zip(&way)) {
                *v = b + by * w;
            }
            run(&m, &m.store, &batch, &labels, false).0
        };
        // The smaller the step, the less curvature and the more rounding; on one side an expert or key may be picked
        // no more. One difference that agrees is enough, for a wrong gradient agrees with none.
        let here = moved(0.0);
        let slopes: Vec<f64> = [3e-5f32, 1e-4, 3e-4, 1e-3]
            .iter()
            .flat_map(|&by| {
                let (plus, minus, step) = (moved(by), moved(-by), f64::from(by));
                [(plus - minus) / (2.0 * step), (plus - here) / step, (here - minus) / step]
            })
            .collect();
        let near = |a: &&f64, b: &&f64| (**a - want).abs().total_cmp(&(**b - want).abs());
        let got = *slopes.iter().min_by(near).unwrap();
        let tolerance = 0.02 * want.abs() + 5e-4 * length.max(4.0);
        assert!(
            (got - want).abs() < tolerance,
            "{family}, direction {direction}: the gradient says {want}, differences {slopes:?} (length {length})"
        );
    }
}

ms_testing::golden_model_tests!(check);
