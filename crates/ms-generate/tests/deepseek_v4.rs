//! DeepSeek-V4 beyond its sample's logits: several sequences at once, packed or in a cache, and prediction modules.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device, GradBuffer, Graph, Grid, ParamId, ParamLayout, ParamStore, Rng, Tensor, ops};
use ms_dist::ParallelCtx;
use ms_generate::LoadedModel;
use ms_nn::{Batch, Gpt, init_params};
use ms_spec::ModelConfig;
use ms_testing::{assert_close, golden_model, read_golden};
use std::sync::Arc;

fn open(dtype: DType) -> (LoadedModel, Vec<Vec<i32>>, f64) {
    let dir = golden_model("deepseek_v4").unwrap();
    let (reference, _) = read_golden(&dir.join("reference.safetensors"));
    let ids = &reference["input_ids"];
    let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
    let model = LoadedModel::open(&dir, dtype, Device::cpu(1).unwrap(), Some(32)).unwrap();
    let spread = reference["logits"].values.iter().fold(0f64, |m, v| m.max(v.abs()));
    (model, tokens.chunks(ids.shape[1]).map(<[i32]>::to_vec).collect(), spread)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let (m, rows, _) = open(DType::F32);
    // The first is shorter than any window, the second completes one in the middle.
    let parts = [&rows[0][..3], &rows[1][..7], &rows[0][..], &rows[1][2..15]];
    let mut borders = vec![0i32];
    let mut want = Vec::new();
    for part in parts {
        borders.push(borders[borders.len() - 1] + part.len() as i32);
        want.extend(m.logits(part, &[0, part.len() as i32]).unwrap());
    }
    let got = m.logits(&parts.concat(), &borders).unwrap();
    assert_close("packed", &got, &wide(&want), 1e-5, 1e-5);
}

#[test]
fn sequences_grow_side_by_side_in_the_cache_by_any_number_of_tokens() {
    let (m, rows, _) = open(DType::F32);
    let whole: Vec<Vec<f32>> = rows.iter().map(|r| m.logits(r, &[0, r.len() as i32]).unwrap()).collect();
    let vocab = whole[0].len() / rows[0].len();
    let mut cache = m.model.cache(&m.device, DType::F32, 3, 20);
    let mut done = [0usize; 2];
    for (first, second) in [(1, 5), (2, 1), (6, 3), (1, 6), (5, 0), (1, 1)] {
        let mut new: Vec<(usize, &[i32])> = Vec::new();
        for (s, n) in [(1, second), (0, first)] {
            if n > 0 {
                // The sequences stand in slots 2 and 0, in this order.
                new.push((if s == 1 { 2 } else { 0 }, &rows[s][done[s]..done[s] + n]));
            }
        }
        let hidden = m.model.extend(&m.device, &m.store, &m.ctx, &mut cache, &new).unwrap();
        let got = m.logits_of(&hidden).unwrap();
        let mut at = 0;
        for (s, n) in [(1, second), (0, first)] {
            let want = &whole[s][done[s] * vocab..(done[s] + n) * vocab];
            assert_close(
                &format!("sequence {s} from {}", done[s]),
                &got[at..at + want.len()],
                &wide(want),
                1e-4,
                1e-4,
            );
            at += want.len();
            done[s] += n;
        }
    }
    assert_eq!(done, [16, 16]);
}

#[test]
fn bf16_stays_near_and_chooses_the_same_experts_of_hashed_layers() {
    let (m, rows, spread) = open(DType::Bf16);
    let (f, _, _) = open(DType::F32);
    let tokens = &rows[0][..4];
    let got = m.logits(tokens, &[0, 4]).unwrap();
    let want = f.logits(tokens, &[0, 4]).unwrap();
    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(f64::from(far) < 0.1 * spread, "{far} of {spread}");
    let table = m.model.specs().iter().position(|s| s.integral).unwrap();
    assert_eq!(m.store.get(ParamId(table as u32)).dtype(), DType::F32);
}

/// Loss of a model with a prediction module, and its gradient.
fn run(model: &Gpt, device: &Device, store: &ParamStore, tokens: &[i32], gradient: bool) -> (f64, Vec<f32>) {
    let (ctx, n) = (ParallelCtx::single(), tokens.len());
    let batch = Batch::uniform(device.arena(), tokens, n).unwrap();
    let shifted = |by: usize| {
        let labels: Vec<i32> = (0..n).map(|t| tokens[(t + by) % n]).collect();
        Tensor::from_slice(device.arena(), [n], &labels).unwrap()
    };
    let weights = Tensor::from_slice(device.arena(), [n], &vec![1.0 / n as f32; n]).unwrap();
    let mut g = if gradient { Graph::train(device) } else { Graph::inference(device) };
    let (main, ahead) = model.forward_ahead(&mut g, store, &ctx, &batch, &[shifted(1)]).unwrap();
    let first = model.loss(&mut g, store, &ctx, &main, &shifted(1), &weights).unwrap();
    let second = model.loss(&mut g, store, &ctx, &ahead[0], &shifted(2), &weights).unwrap();
    let nll = [&first.nll, &second.nll].map(|t| t.to_f32_vec().unwrap());
    let loss = nll.iter().flatten().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
    if !gradient {
        return (loss, Vec::new());
    }
    let layout = Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)));
    let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout);
    let both = ops::add(&mut g, &first.loss, &second.loss).unwrap();
    let one = Tensor::from_slice(device.arena(), [1], &[1f32]).unwrap();
    g.backward(&both, one, &[], &mut grads).unwrap();
    (loss, grads.values().to_f32_vec().unwrap())
}

#[test]
fn prediction_modules_have_the_gradient_of_their_loss() {
    let (m, rows, _) = open(DType::F32);
    let config = ModelConfig { mtp: 1, init_std: 0.3, ..m.config().clone() };
    let device = Device::cpu(1).unwrap();
    let model = Gpt::new(&config, &device, 16).unwrap();
    let layout = Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    init_params(&mut store, model.specs(), 4, 0, &Grid::single()).unwrap();
    let (_, gradient) = run(&model, &device, &store, &rows[0], true);
    let before = store.values().to_f32_vec().unwrap();
    for part in ["mtp.", "decoder.", "embedding.", "hc_head.", "mtp.layers.0.hc_head."] {
        let mut way = vec![0f32; before.len()];
        for (id, spec) in layout.ids().zip(model.specs()) {
            if spec.trained() && spec.name.starts_with(part) && !spec.name.contains("indexer.") {
                let to = &mut way[layout.start(id)..][..spec.shape.numel()];
                Rng::named(5, &spec.name).fill_normal(to, 1.0);
            }
        }
        let want: f64 = way.iter().zip(&gradient).map(|(w, g)| f64::from(*w) * f64::from(*g)).sum();
        let mut at = |by: f32| {
            let values = store.values_mut().unwrap().as_mut_slice::<f32>().unwrap();
            values.iter_mut().zip(before.iter().zip(&way)).for_each(|(v, (b, w))| *v = b + by * w);
            run(&model, &device, &store, &rows[0], false).0
        };
        // On one side of the weights another expert may be chosen; one difference that agrees is enough.
        let here = at(0.0);
        let slopes: Vec<f64> = [1e-5f32, 3e-5, 1e-4, 3e-4, 1e-3]
            .iter()
            .flat_map(|&by| {
                let (plus, minus, step) = (at(by), at(-by), f64::from(by));
                [(plus - minus) / (2.0 * step), (plus - here) / step, (here - minus) / step]
            })
            .collect();
        let near = slopes.iter().map(|s| (s - want).abs()).fold(f64::INFINITY, f64::min);
        assert!(near < 0.02 * want.abs() + 2e-3, "{part} the gradient says {want}, differences {slopes:?}");
    }
}
