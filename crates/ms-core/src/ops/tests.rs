//! The conformance table: every operation on every backend there is, its recorded backward against finite
//! differences of its own forward. A new backend joins by being listed in [`devices`].

mod kept;
mod parts;
mod router_losses;

use super::*;
use crate::{
    AttentionDropout, AttentionOptions, DType, Device, GradBuffer, GradSink, Graph, HeadLayout, Norm,
    ParamId, ParamLayout, ParamStore, Rng, Rotary, Segment, Shape, TensorMut, Var,
};
use std::sync::Arc;

fn device() -> Device {
    Device::cpu(1).unwrap()
}

fn random(device: &Device, name: &str, shape: &[usize], std: f32) -> Tensor {
    let mut values = vec![0f32; shape.iter().product()];
    Rng::named(7, name).fill_normal(&mut values, std);
    Tensor::from_slice(device.arena(), shape, &values).unwrap()
}

/// A function of one input and some parameters; the test turns its output into a scalar with fixed weights.
type Case = dyn Fn(&mut Graph, &ParamStore, &Var) -> crate::Result<Var>;

/// Every backend, in every form that this machine can run.
fn devices() -> Vec<Device> {
    let on = |isa, threads| Device::new(crate::CpuBackend::new(threads, isa).unwrap());
    ms_kernels::Isa::all_available().into_iter().flat_map(|isa| [on(isa, 1), on(isa, 3)]).collect()
}

/// Compares the gradients by the input and by every parameter with central differences of the forward pass, on every
/// backend.
fn check(name: &str, x_shape: &[usize], params: &[(&[usize], f32, f32)], case: &Case) {
    for device in devices() {
        check_on(&device, name, x_shape, params, case);
    }
}

fn check_on(device: &Device, name: &str, x_shape: &[usize], params: &[(&[usize], f32, f32)], case: &Case) {
    let layout = Arc::new(ParamLayout::sequential(params.iter().map(|p| Shape::new(p.0))));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    for (i, (shape, std, mean)) in params.iter().enumerate() {
        let values: Vec<f32> = random(device, &format!("{name}.{i}"), shape, *std)
            .to_f32_vec()
            .unwrap()
            .iter()
            .map(|v| v + mean)
            .collect();
        store.get_mut(ParamId(i as u32)).unwrap().as_mut_slice().unwrap().copy_from_slice(&values);
    }
    let x = random(device, name, x_shape, 1.0);
    let weights = |numel: usize| random(device, &format!("{name}.dy"), &[numel], 1.0);
    let value = |store: &ParamStore, x: &Tensor| -> f64 {
        let mut g = Graph::inference(device);
        let v = g.constant(x.clone());
        let y = case(&mut g, store, &v).unwrap();
        let w = weights(y.value().numel()).to_f32_vec().unwrap();
        y.value().to_f32_vec().unwrap().iter().zip(w).map(|(&y, w)| f64::from(y) * f64::from(w)).sum()
    };

    let mut g = Graph::train(device);
    let v = g.input(x.clone());
    let y = case(&mut g, &store, &v).unwrap();
    let dy = weights(y.value().numel()).reshape(y.value().shape()).unwrap();
    let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout.clone());
    let dx = g.backward(&y, dy, &[&v], &mut grads).unwrap().remove(0).expect("the input has a gradient");

    let step = 1e-2f32;
    let compare = |what: String, got: f32, plus: f64, minus: f64, scale: f64| {
        let want = (plus - minus) / (2.0 * f64::from(step));
        let tolerance = 2e-3 * scale + 2e-2 * want.abs();
        assert!(
            (f64::from(got) - want).abs() < tolerance,
            "{name} on {}: {what}: got {got}, differences say {want}",
            device.name()
        );
    };
    let scale = (dx.numel() as f64).sqrt();
    let x_values = x.to_f32_vec().unwrap();
    let got = dx.to_f32_vec().unwrap();
    for i in (0..x_values.len()).step_by(x_values.len() / 17 + 1) {
        let moved = |by: f32| {
            let mut values = x_values.clone();
            values[i] += by;
            value(&store, &Tensor::from_slice(device.arena(), x.shape(), &values).unwrap())
        };
        compare(format!("input {i}"), got[i], moved(step), moved(-step), scale);
    }
    for id in layout.ids() {
        let got = grads.get(id).to_f32_vec().unwrap();
        for i in (0..got.len()).step_by(got.len() / 13 + 1) {
            let mut moved = |by: f32| {
                store.get_mut(id).unwrap().as_mut_slice::<f32>().unwrap()[i] += by;
                let v = value(&store, &x);
                store.get_mut(id).unwrap().as_mut_slice::<f32>().unwrap()[i] -= by;
                v
            };
            let (plus, minus) = (moved(step), moved(-step));
            compare(format!("parameter {} element {i}", id.0), got[i], plus, minus, scale);
        }
    }
}

const NORM: Norm = Norm { eps: 1e-5, unit_offset: false };
const P: [ParamId; 3] = [ParamId(0), ParamId(1), ParamId(2)];

#[test]
fn linear_with_bias() {
    check("linear", &[5, 6], &[(&[7, 6], 0.5, 0.0), (&[7], 0.5, 0.0)], &|g, store, x| {
        let (w, b) = (g.param(store, P[0]), g.param(store, P[1]));
        linear(g, x, &w, Some(&b))
    });
}

#[test]
fn rms_norm_of_rows() {
    check("rms_norm", &[4, 8], &[(&[8], 0.3, 1.0)], &|g, store, x| {
        let w = g.param(store, P[0]);
        rms_norm(g, x, &w, NORM)
    });
}

#[test]
fn add_rms_norm_with_both_outputs_used() {
    check("add_rms_norm", &[4, 8], &[(&[8], 0.3, 1.0), (&[8, 8], 0.4, 0.0)], &|g, store, x| {
        let (w, m) = (g.param(store, P[0]), g.param(store, P[1]));
        let other = linear(g, x, &m, None)?;
        let (sum, y) = add_rms_norm(g, x, &other, &w, NORM)?;
        add(g, &sum, &y)
    });
}

#[test]
fn swiglu_of_gate_and_up() {
    check("swiglu", &[3, 10], &[], &|g, _, x| swiglu(g, x));
}

fn rotary(device: &Device, dim: usize) -> Rotary {
    let angle = |p: usize, i: usize| p as f64 * 100f64.powf(-2.0 * i as f64 / dim as f64);
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f32> =
            (0..16).flat_map(|p| (0..dim / 2).map(move |i| f(angle(p, i)) as f32)).collect();
        Tensor::from_slice(device.arena(), [16, dim / 2], &values).unwrap()
    };
    Rotary { cos: table(f64::cos), sin: table(f64::sin), dim, interleaved: false }
}

#[test]
fn attention_with_head_norms_over_two_documents() {
    let heads = HeadLayout { groups: 2, heads_per_group: 2, head_dim: 4 };
    let segments: Arc<[Segment]> = [(0, 5), (5, 4)]
        .map(|(start, len)| Segment { q_start: start, q_len: len, k_start: start, k_len: len, ahead: 0 })
        .into();
    let options = AttentionOptions { scale: 0.5, window: None, softcap: None, alibi: None };
    for norm in [false, true] {
        let segments = segments.clone();
        let case = move |g: &mut Graph, store: &ParamStore, x: &Var| {
            let device = g.device().clone();
            let positions = Tensor::from_slice(device.arena(), [9], &[0i32, 1, 2, 3, 4, 0, 1, 2, 3])?;
            let (q, k) = (g.param(store, P[0]), g.param(store, P[1]));
            let scales = norm.then_some((&q, &k, 1e-5));
            let qkv = prepare_qkv(g, x, heads, scales, &rotary(&device, 4), &positions)?;
            attention(g, &qkv, heads, None, &segments, options, None)
        };
        check("attention", &[9, 32], &[(&[4], 0.2, 1.0), (&[4], 0.2, 1.0)], &case);
    }
}

#[test]
fn embedding_and_loss_over_a_tied_table() {
    check("loss", &[6, 5], &[(&[9, 5], 0.5, 0.0)], &|g, store, x| {
        let device = g.device().clone();
        let ids = Tensor::from_slice(device.arena(), [6], &[1i32, 8, 3, 1, 0, 7])?;
        let targets = Tensor::from_slice(device.arena(), [6], &[2i32, 0, -100, 8, 4, 4])?;
        let weights = Tensor::from_slice(device.arena(), [6], &[0.5f32, 0.25, 0.0, 1.0, 0.125, 0.5])?;
        let table = g.param(store, P[0]);
        let e = embedding(g, &table, &ids)?;
        let h = add(g, x, &e)?;
        Ok(linear_cross_entropy(g, &h, &Head::plain(&table), &targets, &weights)?.loss)
    });
}

#[test]
fn recomputation_gives_the_same_bits_and_keeps_less() {
    let device = device();
    let layout = Arc::new(ParamLayout::sequential([Shape::new(&[8, 8]), Shape::new(&[8])]));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    for (id, shape) in [(P[0], vec![8, 8]), (P[1], vec![8])] {
        let values = random(&device, &format!("recompute.{}", id.0), &shape, 0.5).to_f32_vec().unwrap();
        store.get_mut(id).unwrap().as_mut_slice().unwrap().copy_from_slice(&values);
    }
    let run = |recomputed: bool| {
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "recompute.x", &[4, 8], 1.0));
        let mut h = x.clone();
        for _ in 0..3 {
            let store = store.clone();
            let block = move |g: &mut Graph, x: &Var| {
                let (w, n) = (g.param(&store, P[0]), g.param(&store, P[1]));
                let y = linear(g, x, &w, None)?;
                let y = rms_norm(g, &y, &n, NORM)?;
                add(g, x, &y)
            };
            h = if recomputed { recompute(&mut g, &h, block).unwrap() } else { block(&mut g, &h).unwrap() };
        }
        let recorded = g.len();
        let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout.clone());
        let dy = random(&device, "recompute.dy", &[4, 8], 1.0);
        let dx = g.backward(&h, dy, &[&x], &mut grads).unwrap().remove(0).unwrap();
        (recorded, dx.to_f32_vec().unwrap(), grads.values().to_f32_vec().unwrap())
    };
    let (plain, recomputed) = (run(false), run(true));
    assert_eq!((plain.0, recomputed.0), (9, 3));
    assert_eq!(plain.1, recomputed.1);
    assert_eq!(plain.2, recomputed.2);
}

/// Gradients, and how often a parameter was said to be final.
struct Told(GradBuffer, usize);

impl GradSink for Told {
    fn add(&mut self, p: ParamId, work: &mut dyn FnMut(TensorMut<'_>) -> Result<()>) -> Result<()> {
        assert_eq!(self.1, 0, "nothing is added to what is final");
        self.0.add(p, work)
    }

    fn finished(&mut self, _: ParamId) -> Result<()> {
        self.1 += 1;
        Ok(())
    }
}

#[test]
fn deferred_weight_gradients_give_the_same_bits_and_are_final_when_they_are_formed() {
    let device = device();
    let layout = Arc::new(ParamLayout::sequential([Shape::new(&[8, 8])]));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    let values = random(&device, "deferred.w", &[8, 8], 0.5).to_f32_vec().unwrap();
    store.get_mut(P[0]).unwrap().as_mut_slice().unwrap().copy_from_slice(&values);
    let mut results = Vec::new();
    for split in [false, true] {
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "deferred.x", &[4, 8], 1.0));
        let w = g.param(&store, P[0]);
        let h = linear(&mut g, &x, &w, None).unwrap();
        let y = linear(&mut g, &h, &w, None).unwrap();
        let dy = random(&device, "deferred.dy", &[4, 8], 1.0);
        let mut grads = Told(GradBuffer::zeros(device.arena(), DType::F32, layout.clone()), 0);
        if split {
            let mut later = crate::Later::default();
            g.backward_from(vec![(&y, dy)], &[&x], &mut grads, Some(&mut later)).unwrap();
            assert!(grads.0.values().to_f32_vec().unwrap().iter().all(|&v| v == 0.0));
            assert_eq!((later.len(), grads.1), (3, 0), "two gradients and the word that they are all");
            later.run(&device, &mut grads).unwrap();
        } else {
            g.backward(&y, dy, &[&x], &mut grads).unwrap();
        }
        assert_eq!(grads.1, 1);
        results.push(grads.0.values().to_f32_vec().unwrap());
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn weights_cannot_change_while_a_graph_lives() {
    let device = device();
    let layout = Arc::new(ParamLayout::sequential([Shape::new(&[2, 2])]));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout);
    let mut g = Graph::train(&device);
    let x = g.input(random(&device, "x", &[3, 2], 1.0));
    let w = g.param(&store, P[0]);
    let y = linear(&mut g, &x, &w, None).unwrap();
    assert!(store.values_mut().is_err());
    drop((g, w, y));
    assert!(store.values_mut().is_ok());
}

#[test]
fn inference_records_nothing() {
    let device = device();
    let mut g = Graph::inference(&device);
    let x = g.input(random(&device, "x", &[3, 4], 1.0));
    swiglu(&mut g, &x).unwrap();
    assert!(g.is_empty());
}
