//! How a graph works: what it records, saves, defers and recomputes. The gradients of operations are checked against the
//! reference device, in its crate (`tests/ops`).
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

mod router_losses;
mod saved;

use ms_core::ops::*;
use ms_core::{
    BackwardCx, DType, Device, GradBuffer, GradSink, Grads, Graph, Norm, Op, ParamId, ParamLayout,
    ParamStore, Result, Rng, Shape, Tensor, TensorMut, Var, WeightGradStore,
};
use std::sync::{Arc, Mutex};

fn device() -> Device {
    ms_cpu::device(1).unwrap()
}

fn random(device: &Device, name: &str, shape: &[usize], std: f32) -> Tensor {
    let mut values = vec![0f32; shape.iter().product()];
    Rng::named(7, name).fill_normal(&mut values, std);
    Tensor::from_slice(device.arena(), shape, &values).unwrap()
}

/// Every backend, in every form that this machine can run.
fn devices() -> Vec<Device> {
    let on = |isa, threads| Device::new(ms_cpu::CpuBackend::new(threads, isa).unwrap());
    ms_kernels::Isa::all_available().into_iter().flat_map(|isa| [on(isa, 1), on(isa, 3)]).collect()
}

const NORM: Norm = Norm { eps: 1e-5, unit_offset: false };
const P: [ParamId; 3] = [ParamId(0), ParamId(1), ParamId(2)];

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
            h = if recomputed {
                recompute(&mut g, &h, h.shard_states(), block).unwrap()
            } else {
                block(&mut g, &h).unwrap()
            };
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

/// Gradients, how often something was added to one, and how often a parameter was said to be final.
struct Told(GradBuffer, usize, usize);

impl GradSink for Told {
    fn add(&mut self, p: ParamId, work: &mut dyn FnMut(TensorMut<'_>) -> Result<()>) -> Result<()> {
        assert_eq!(self.2, 0, "nothing is added to what is final");
        self.1 += 1;
        self.0.add(p, work)
    }

    fn finished(&mut self, _: ParamId) -> Result<()> {
        self.2 += 1;
        Ok(())
    }
}

/// What a backward pass does, in order.
type Log = Arc<Mutex<Vec<&'static str>>>;

/// Stands for an exchange, which is waited for at once or not.
struct Exchanges(Log, bool);

impl Op for Exchanges {
    fn name(&self) -> &'static str {
        "exchanges"
    }

    fn exchanges(&self) -> bool {
        self.1
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        self.0.lock().unwrap().push("begun");
        cx.run_held_back()?;
        self.0.lock().unwrap().push("over");
        Ok(dys)
    }
}

/// Writes into the same log when a gradient is added, and when it is said to be all.
struct Logged(GradBuffer, Log);

impl GradSink for Logged {
    fn add(&mut self, p: ParamId, work: &mut dyn FnMut(TensorMut<'_>) -> Result<()>) -> Result<()> {
        self.1.lock().unwrap().push("added");
        self.0.add(p, work)
    }

    fn finished(&mut self, _: ParamId) -> Result<()> {
        self.1.lock().unwrap().push("all");
        Ok(())
    }
}

#[test]
fn gradients_of_weights_are_held_back_until_an_exchange_has_begun() {
    let device = device();
    let layout = Arc::new(ParamLayout::sequential([Shape::new(&[8, 8])]));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    let values = random(&device, "held.w", &[8, 8], 0.5).to_f32_vec().unwrap();
    store.get_mut(P[0]).unwrap().as_mut_slice().unwrap().copy_from_slice(&values);
    // Layers on both sides of the exchange, or only after it; with an exchange that no gradient reached, or with one that is
    // waited for at once.
    let run = |before: bool, reached: bool, beside: bool| {
        let log = Log::default();
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "held.x", &[4, 8], 1.0));
        let w = g.param(&store, P[0]);
        let mut h = if before { linear(&mut g, &x, &w, None).unwrap() } else { x.clone() };
        let exchanged = g.apply(h.value().clone(), &[&h], || Box::new(Exchanges(log.clone(), beside)));
        h = if reached { exchanged } else { h };
        // Rows are only moved.
        let h = reshape(&mut g, &h, [4, 8]).unwrap();
        let y = linear(&mut g, &h, &w, None).unwrap();
        let dy = random(&device, "held.dy", &[4, 8], 1.0);
        let mut grads = Logged(GradBuffer::zeros(device.arena(), DType::F32, layout.clone()), log.clone());
        let dx = g.backward(&y, dy, &[&x], &mut grads).unwrap().remove(0).unwrap();
        let log = log.lock().unwrap().clone();
        (log, dx.to_f32_vec().unwrap(), grads.0.values().to_f32_vec().unwrap())
    };
    for (before, reached, beside, order) in [
        (true, true, true, &["begun", "added", "over", "added", "all"][..]),
        (true, true, false, &["added", "begun", "over", "added", "all"]),
        (true, false, true, &["added", "added", "all"]),
        (false, true, true, &["begun", "added", "all", "over"]),
        (false, true, false, &["added", "all", "begun", "over"]),
        (false, false, true, &["added", "all"]),
    ] {
        let what = format!("before {before}, reached {reached}, beside {beside}");
        let (log, dx, dw) = run(before, reached, beside);
        assert_eq!(log, order, "{what}");
        let (_, dx_at_once, dw_at_once) = run(before, reached, false);
        assert_eq!((dx, dw), (dx_at_once, dw_at_once), "{what}: the same bits");
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
        let mut grads = Told(GradBuffer::zeros(device.arena(), DType::F32, layout.clone()), 0, 0);
        if split {
            let mut deferred = WeightGradStore::default();
            g.backward_from(vec![(&y, dy)], &[&x], &mut grads, Some(&mut deferred)).unwrap();
            assert!(grads.0.values().to_f32_vec().unwrap().iter().all(|&v| v == 0.0));
            assert_eq!((grads.1, grads.2), (0, 0), "nothing yet");
            deferred.run(&device, &mut grads).unwrap();
        } else {
            g.backward(&y, dy, &[&x], &mut grads).unwrap();
        }
        assert_eq!((grads.1, grads.2), (2, 1), "two gradients and the word that they are all");
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

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "ranks hold Some(Invariant), and Some(Sharded) was declared")]
fn what_runs_again_is_compared_with_what_was_declared() {
    use ms_core::{ShardState, ShardStates};
    let device = device();
    let mut g = Graph::train(&device);
    let x = g
        .input(random(&device, "x", &[3, 4], 1.0))
        .with_shard_states(ShardStates::all(Some(ShardState::Invariant)));
    let declared = ShardStates::all(Some(ShardState::Sharded));
    let _y = recompute(&mut g, &x, declared, swiglu).unwrap();
    g.prepare_backward().unwrap();
}
