//! What operations save: handles to values that are present, on the host, or recomputed.

use super::*;
use ms_core::Host;

/// What becomes of what a block keeps.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Kept,
    Forgotten,
    Sent,
    /// Forgotten, and the rest sent.
    Both,
}

const WAYS: [Way; 4] = [Way::Kept, Way::Forgotten, Way::Sent, Way::Both];

/// A gated MLP of `[8,16]` after a norm, three times: gradients with respect to the input and the weights, and the bytes of
/// the arena before the backward pass.
fn run(device: &Device, dtype: DType, way: Way, host: &Host) -> (Vec<f32>, Vec<f32>, usize) {
    const T: usize = 64;
    let shapes: [&[usize]; 3] = [&[16], &[96, 16], &[16, 48]];
    let layout = Arc::new(ParamLayout::sequential(shapes.map(Shape::new)));
    let mut store = ParamStore::zeros(device.arena(), dtype, layout.clone());
    for (i, shape) in shapes.iter().enumerate() {
        let values = random(device, &format!("kept.{i}"), shape, 0.4).to_reals().unwrap();
        store.get_mut(ParamId(i as u32)).unwrap().set_reals(&values).unwrap();
    }
    let [n, fc1, fc2] = [0, 1, 2].map(ParamId);
    let mut g = Graph::train(device);
    let x = device.cast(&random(device, "kept.x", &[T, 16], 1.0), dtype).unwrap();
    let first = g.input(x);
    let mut stream = first.clone();
    let mut beside: Option<Var> = None;
    for _ in 0..3 {
        if matches!(way, Way::Sent | Way::Both) {
            g.record_saved(&[]);
        }
        let [n, fc1, fc2] = [n, fc1, fc2].map(|id| g.param(&store, id));
        let normed = match beside.take() {
            None => rms_norm(&mut g, &stream, &n, NORM).unwrap(),
            Some(y) => {
                let (sum, normed) = add_rms_norm(&mut g, &stream, &y, &n, NORM).unwrap();
                stream = sum;
                normed
            }
        };
        let inner = linear(&mut g, &normed, &fc1, None).unwrap();
        let active = swiglu(&mut g, &inner).unwrap();
        beside = Some(linear(&mut g, &active, &fc2, None).unwrap());
        if matches!(way, Way::Forgotten | Way::Both) {
            normed.forget();
            active.forget();
        }
        drop((normed, inner, active));
        if matches!(way, Way::Sent | Way::Both) {
            g.saved_since().iter().for_each(|saved| saved.send(host).unwrap());
        }
    }
    let out = add(&mut g, &stream, &beside.unwrap()).unwrap();
    drop(stream);
    let held = device.arena().stats().in_use_bytes;
    let mut grads = GradBuffer::zeros(device.arena(), dtype, layout);
    let dy = device.cast(&random(device, "kept.dy", &[T, 16], 1.0), dtype).unwrap();
    let dx = g.backward(&out, dy, &[&first], &mut grads).unwrap().remove(0).unwrap();
    (dx.to_f32_vec().unwrap(), grads.values().to_f32_vec().unwrap(), held)
}

#[test]
fn values_forgotten_or_sent_away_come_back_with_the_same_bits_and_take_less() {
    let folder = tempfile::tempdir().unwrap();
    for device in devices() {
        for dtype in [DType::F32, DType::Bf16] {
            let host = Host::in_folder(folder.path()).unwrap();
            let runs = WAYS.map(|way| run(&device, dtype, way, &host));
            for (way, (dx, grads, _)) in WAYS.iter().zip(&runs) {
                assert_eq!((dx, grads), (&runs[0].0, &runs[0].1), "{way:?} on {}", device.name());
            }
            let held = runs.each_ref().map(|r| r.2);
            // In three blocks, norms [64,16] and activations [64,48] are recomputed; the inner rows [64,96] and the stream
            // after the first and the second are swapped.
            let row = 64 * dtype.size();
            assert_eq!(held[0] - held[1], 3 * (16 + 48) * row, "{dtype}");
            assert_eq!(held[1] - held[3], (3 * 96 + 2 * 16) * row, "{dtype}");
            assert!(held[2] < held[0] && held[3] <= held[2], "{held:?}");
            let stats = host.stats();
            assert_eq!((stats.in_use_bytes, stats.sent_bytes), (0, stats.fetched_bytes));
            assert!(stats.sent_bytes > 0);
        }
    }
}

#[test]
fn a_region_whose_output_is_forgotten_runs_again_once() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let device = device();
    let layout = Arc::new(ParamLayout::sequential([Shape::new(&[8, 8])]));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    let values = random(&device, "region.w", &[8, 8], 0.5).to_reals().unwrap();
    store.get_mut(P[0]).unwrap().set_reals(&values).unwrap();
    let mut results = Vec::new();
    for (forgotten, prepared) in [(false, false), (true, false), (true, true)] {
        let runs = Arc::new(AtomicUsize::new(0));
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "region.x", &[4, 8], 1.0));
        let w = g.param(&store, P[0]);
        let counted = runs.clone();
        let twice = move |g: &mut Graph, x: &Var| {
            counted.fetch_add(1, Ordering::Relaxed);
            let y = activation(g, x, ms_core::Activation::GeluTanh, false)?;
            add(g, &y, &y)
        };
        let y = recompute(&mut g, &x, x.shard_states(), twice).unwrap();
        let z = linear(&mut g, &y, &w, None).unwrap();
        if forgotten {
            y.forget();
        }
        drop((y, w));
        if prepared {
            g.prepare_backward().unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 2);
        }
        let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout.clone());
        let dy = random(&device, "region.dy", &[4, 8], 1.0);
        let dx = g.backward(&z, dy, &[&x], &mut grads).unwrap().remove(0).unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        results.push((dx.to_f32_vec().unwrap(), grads.values().to_f32_vec().unwrap()));
    }
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn what_was_kept_before_is_not_among_what_is_kept_since() {
    for device in devices() {
        let mut store = ParamStore::zeros(
            device.arena(),
            DType::F32,
            Arc::new(ParamLayout::sequential([Shape::new(&[16]), Shape::new(&[32, 16])])),
        );
        store.get_mut(ParamId(0)).unwrap().set_reals(&[1.0; 16]).unwrap();
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "kept.before", &[8, 16], 1.0));
        let [n, w] = [0, 1].map(|id| g.param(&store, ParamId(id)));
        let normed = rms_norm(&mut g, &x, &n, NORM).unwrap();
        // The norm keeps `x`; the sum takes it, and keeps nothing.
        g.record_saved(&[&x, &normed]);
        let sum = add(&mut g, &x, &normed).unwrap();
        assert!(g.records_saved() && g.saved_since().is_empty(), "{}", device.name());
        // The layer keeps its input alone, which was there before and kept by nothing.
        g.record_saved(&[&x, &sum]);
        let _out = linear(&mut g, &sum, &w, None).unwrap();
        let kept = g.saved_since();
        assert_eq!(kept.len(), 1, "{}", device.name());
        let bits = |t: &Tensor| t.to_f32_vec().unwrap();
        assert_eq!(bits(&kept[0].get(&device).unwrap()), bits(sum.value()));
        assert!(!g.records_saved() && g.saved_since().is_empty());
    }
}
