//! The conformance table, continued: what only some model families need.

use super::*;
use crate::{
    Activation, Alibi, Columns, DeltaRule, GroupScore, Mixing, Pooling, QkvRows, Router, RouterScore,
    StateSpace, Window,
};

fn documents() -> Arc<[Segment]> {
    [(0, 4), (4, 1), (5, 3)]
        .map(|(start, len)| Segment { q_start: start, q_len: len, k_start: start, k_len: len, ahead: 0 })
        .into()
}

#[test]
fn activations_with_and_without_gate() {
    // Not the squared ReLU, whose kink differences cannot see.
    for kind in [Activation::GeluTanh, Activation::GeluErf, Activation::Silu] {
        check("activation", &[3, 10], &[], &move |g, _, x| activation(g, x, kind, true));
        check("activation", &[3, 10], &[], &move |g, _, x| activation(g, x, kind, false));
    }
}

#[test]
fn a_gate_that_is_clamped() {
    let kind = Activation::Clamped { alpha: 1.7, limit: 0.9 };
    check("activation", &[3, 10], &[], &move |g, _, x| activation(g, x, kind, true));
}

#[test]
fn attention_with_sinks() {
    let heads = HeadLayout { groups: 1, heads_per_group: 2, head_dim: 8 };
    let options = AttentionOptions { scale: 0.4, window: Some(3), softcap: None, alibi: None };
    check("sinks", &[8, 32], &[(&[2], 0.5, 0.2)], &move |g, store, x| {
        let sinks = g.param(store, P[0]);
        attention(g, x, heads, Some(&sinks), &documents(), options, None)
    });
}

#[test]
fn a_gate_for_all_columns_and_one_for_the_row() {
    for width in [6, 1] {
        check("gate", &[4, 6], &[(&[width, 6], 0.5, 0.0)], &move |g, store, x| {
            let w = g.param(store, P[0]);
            let by = linear(g, x, &w, None)?;
            gate(g, x, &by, Activation::Sigmoid)
        });
    }
}

#[test]
fn layer_norm_of_rows() {
    check("layer_norm", &[4, 8], &[(&[8], 0.3, 1.0), (&[8], 0.3, 0.0)], &move |g, store, x| {
        let (w, b) = (g.param(store, P[0]), g.param(store, P[1]));
        layer_norm(g, x, &w, Some(&b), 1e-5)
    });
}

#[test]
fn columns_that_are_split_repeated_padded_and_joined() {
    check("columns", &[3, 7], &[(&[7], 0.5, 1.0)], &move |g, store, x| {
        let s = g.param(store, P[0]);
        let x = scale_columns(g, x, &s)?;
        let [a, b] = split(g, &x, [3, 4])?;
        let runs: Arc<[Columns]> = [
            Columns::Copy { start: 1, len: 2 },
            Columns::Zero { len: 1 },
            Columns::Copy { start: 0, len: 2 },
        ]
        .into();
        let again = columns(g, &b, &runs)?;
        let a = scale(g, &a, 0.5)?;
        let joined = concat(g, &[&again, &a, &b])?;
        reshape(g, &joined, [6, 6])
    });
}

#[test]
fn an_output_layer_of_unit_rows_with_bias_factor_and_cap() {
    for formed_later in [false, true] {
        check("head", &[6, 5], &[(&[9, 5], 0.5, 0.0), (&[9], 0.5, 0.0)], &move |g, store, x| {
            let device = g.device().clone();
            let targets = Tensor::from_slice(device.arena(), [6], &[2i32, 0, -100, 8, 4, 4])?;
            let weights = Tensor::from_slice(device.arena(), [6], &[0.5f32, 0.25, 0.0, 1.0, 0.125, 0.5])?;
            let (w, b) = (g.param(store, P[0]), g.param(store, P[1]));
            let w = unit_rows(g, &w)?;
            let head =
                Head { w: &w, bias: Some(&b), scale: 1.5, softcap: Some(2.0), group: None, formed_later };
            Ok(linear_cross_entropy(g, x, &head, &targets, &weights)?.loss)
        });
    }
}

#[test]
fn attention_with_slopes() {
    let heads = HeadLayout { groups: 3, heads_per_group: 1, head_dim: 4 };
    let options = AttentionOptions {
        scale: 0.5,
        window: None,
        softcap: None,
        alibi: Some(Alibi { heads: 3, first: 0 }),
    };
    check("alibi", &[8, 36], &[], &move |g, _, x| attention(g, x, heads, None, &documents(), options, None));
    let dropout = AttentionDropout { rate: 0.4, site: 3, first_head: 1, keys: (7..15).collect() };
    check("dropped weights", &[8, 36], &[], &move |g, _, x| {
        attention(g, x, heads, None, &documents(), options, Some(dropout.clone()))
    });
}

#[test]
fn attention_over_picked_keys() {
    let heads = HeadLayout { groups: 2, heads_per_group: 2, head_dim: 4 };
    let options = AttentionOptions { scale: 0.5, window: None, softcap: None, alibi: None };
    check("picked", &[4, 32], &[], &move |g, _, x| {
        let picks = [0, -1, 0, 1, 2, 0, 3, 1i32];
        let picks = Tensor::from_slice(g.device().arena(), [4, 2], &picks)?;
        attention_picked(g, QkvRows::Packed(x), heads, &picks, options)
    });
    // Three queries over six keys.
    check("picked apart", &[3, 48], &[], &move |g, _, x| {
        let [q, kv] = split(g, x, [16, 32])?;
        let kv = reshape(g, &kv, [6, 16])?;
        let picks = Tensor::from_slice(g.device().arena(), [3, 2], &[4, -1, 0, 1, 2, 5i32])?;
        attention_picked(g, QkvRows::Apart { q: &q, kv: &kv }, heads, &picks, options)
    });
}

fn router(score: RouterScore) -> Router {
    Router { score, top_k: 2, groups: None, normalise: true, scale: 1.5 }
}

#[test]
fn a_mixture_of_experts_from_router_to_sum() {
    let shapes: [(&[usize], f32, f32); 4] =
        [(&[4, 6], 0.9, 0.0), (&[4, 10, 6], 0.4, 0.0), (&[4, 6, 5], 0.4, 0.0), (&[4, 6], 0.4, 0.0)];
    let limited = Router { groups: Some((2, 1, GroupScore::Best(2))), ..router(RouterScore::Sigmoid) };
    for router in [router(RouterScore::Softmax), limited] {
        check("moe", &[5, 6], &shapes, &move |g, store, x| {
            let [w, fc1, fc2, bias] = [P[0], P[1], P[2], ParamId(3)].map(|id| g.param(store, id));
            let logits = linear(g, x, &w, None)?;
            let routed = route(g, &logits, None, &router, None)?;
            let rows = dispatch(g, x, &routed.routes)?;
            let inner = expert_linear(g, &rows, &fc1, None, &routed.routes)?;
            let inner = swiglu(g, &inner)?;
            let out = expert_linear(g, &inner, &fc2, Some(&bias), &routed.routes)?;
            combine(g, &out, &routed.weights, &routed.routes)
        });
    }
}

#[test]
fn the_balancing_loss_enters_at_the_logits_and_is_reported() {
    for device in devices() {
        let mut g = Graph::train(&device);
        let x = g.input(random(&device, "balance", &[6, 4], 1.0));
        let run =
            |g: &mut Graph, balance| route(g, &x, None, &router(RouterScore::Softmax), balance).unwrap();
        let with = run(&mut g, Some(Balance::whole(0.1, 1.0)));
        assert!(with.balance.unwrap().experts >= 0.05, "at least coeff · K / E for any routing near balance");
        let layout = Arc::new(ParamLayout::sequential([]));
        let mut none = GradBuffer::zeros(device.arena(), DType::F32, layout);
        let dy = Tensor::zeros(device.arena(), DType::F32, [6, 2]);
        let dx = g.backward(&with.weights, dy, &[&x], &mut none).unwrap().remove(0).unwrap();
        // Without a gradient of the weights all that arrives is the loss's own.
        let value = |x: &Tensor| {
            let mut g = Graph::inference(&device);
            let x = g.constant(x.clone());
            let routed =
                route(&mut g, &x, None, &router(RouterScore::Softmax), Some(Balance::whole(0.1, 1.0)));
            routed.unwrap().balance.unwrap().experts
        };
        let values = x.value().to_f32_vec().unwrap();
        for i in 0..24 {
            let moved = |by: f32| {
                let mut v = values.clone();
                v[i] += by;
                value(&Tensor::from_slice(device.arena(), [6, 4], &v).unwrap())
            };
            let want = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let got = f64::from(dx.to_f32_vec().unwrap()[i]);
            assert!((got - want).abs() < 1e-4, "element {i}: {got} for {want}");
        }
    }
}

#[test]
fn a_convolution_over_documents() {
    check("convolution", &[8, 3], &[(&[3, 1, 4], 0.5, 0.0), (&[3], 0.5, 0.0)], &move |g, store, x| {
        let (w, b) = (g.param(store, P[0]), g.param(store, P[1]));
        convolution(g, x, &w, Some(&b), None, &documents())
    });
}

#[test]
fn a_state_space_scan_over_documents() {
    let shape = StateSpace { heads: 2, head_dim: 3, groups: 1, state: 4, step_limit: (0.0, f64::INFINITY) };
    let weights: [(&[usize], f32, f32); 3] = [(&[2], 0.3, 0.0), (&[2], 0.5, 1.0), (&[2], 0.3, 0.0)];
    check("state_space", &[8, 16], &weights, &move |g, store, x| {
        let [x, b, c, dt] = split(g, x, [6, 4, 4, 2])?;
        let params = P.map(|id| g.param(store, id));
        state_space(g, [&x, &b, &c, &dt], params.each_ref(), None, &documents(), &shape)
    });
}

#[test]
fn a_gated_delta_rule_over_documents() {
    let shape = DeltaRule { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 4 };
    check("delta_rule", &[8, 18], &[(&[2], 0.3, 0.0), (&[2], 0.3, 0.0)], &move |g, store, x| {
        let [q, k, v, a, b] = split(g, x, [3, 3, 8, 2, 2])?;
        let (a_log, dt_bias) = (g.param(store, P[0]), g.param(store, P[1]));
        let decay = decay(g, &a, &a_log, &dt_bias)?;
        let beta = activation(g, &b, Activation::Sigmoid, false)?;
        delta_rule(g, [&q, &k, &v, &decay, &beta], None, &documents(), &shape)
    });
}

#[test]
fn a_cast_parameter_gets_its_gradient_unrounded() {
    for device in devices() {
        let layout = Arc::new(ParamLayout::sequential([Shape::new(&[2, 2])]));
        let mut store = ParamStore::zeros(device.arena(), DType::Bf16, layout.clone());
        let ones = [half::bf16::ONE; 4];
        store.get_mut(P[0]).unwrap().as_mut_slice().unwrap().copy_from_slice(&ones);
        let mut g = Graph::train(&device);
        let x = g.input(Tensor::from_slice(device.arena(), [1, 2], &[1.253_906_3f32, 2.0]).unwrap());
        let w = g.param(&store, P[0]);
        let w = cast(&mut g, &w, DType::F32).unwrap();
        let y = linear(&mut g, &x, &w, None).unwrap();
        let dy = Tensor::from_slice(device.arena(), [1, 2], &[1f32, 3.0]).unwrap();
        let mut grads = GradBuffer::zeros(device.arena(), DType::F32, layout);
        g.backward(&y, dy, &[&x], &mut grads).unwrap();
        assert_eq!(grads.get(P[0]).to_f32_vec().unwrap(), [1.253_906_3, 2.0, 3.761_718_8, 6.0]);
    }
}

#[test]
fn a_clamped_silu_gate() {
    let kind = Activation::ClampedSilu { limit: 0.9 };
    check("activation", &[3, 10], &[], &move |g, _, x| activation(g, x, kind, true));
}

#[test]
fn experts_that_a_table_chose() {
    let router = router(RouterScore::SqrtSoftplus);
    check("route_to", &[4, 3], &[], &move |g, _, x| {
        let experts = Tensor::from_slice(g.device().arena(), [4, 2], &[0i32, 2, 1, 0, 2, 1, 1, 2])?;
        Ok(route_to(g, x, experts, &router, None)?.weights)
    });
}

#[test]
fn a_linear_layer_of_blocks() {
    check("grouped_linear", &[3, 8], &[(&[6, 4], 0.5, 0.0)], &move |g, store, x| {
        let w = g.param(store, P[0]);
        grouped_linear(g, x, &w, 2)
    });
}

#[test]
fn streams_that_make_an_input_and_take_an_output() {
    let mixing = Mixing { streams: 2, rounds: Some(3), eps: 1e-3 };
    let params: &[(&[usize], f32, f32)] = &[(&[8, 6], 0.5, 0.0), (&[8], 0.5, 0.0), (&[3], 0.3, 1.0)];
    check("streams", &[4, 6], params, &move |g, store, x| {
        let [fixed, base, scale] = [P[0], P[1], P[2]].map(|p| g.param(store, p));
        let mixes = linear(g, x, &fixed, None)?;
        let w = stream_weights(g, &mixes, &base, &scale, &mixing)?;
        let input = collapse(g, x, &w, &mixing)?;
        expand(g, x, &input, &w, &mixing)
    });
}

#[test]
fn streams_that_end() {
    let mixing = Mixing { streams: 2, rounds: None, eps: 1e-3 };
    let params: &[(&[usize], f32, f32)] = &[(&[2, 6], 0.5, 0.0), (&[2], 0.5, 0.0), (&[1], 0.3, 1.0)];
    check("streams", &[4, 6], params, &move |g, store, x| {
        let [fixed, base, scale] = [P[0], P[1], P[2]].map(|p| g.param(store, p));
        let mixes = linear(g, x, &fixed, None)?;
        let w = stream_weights(g, &mixes, &base, &scale, &mixing)?;
        collapse(g, x, &w, &mixing)
    });
}

#[test]
fn attention_over_tokens_and_pooled_entries() {
    let shape = Pooling { ratio: 2, dim: 4, overlap: true };
    let params: &[(&[usize], f32, f32)] = &[(&[2, 8], 0.5, 0.0), (&[2], 0.5, 0.2)];
    check("compressed", &[5, 28], params, &move |g, store, x| {
        let arena = g.device().arena().clone();
        let [ape, sinks] = [P[0], P[1]].map(|p| g.param(store, p));
        let [q, near, kv, gate] = split(g, x, [8, 4, 8, 8])?;
        let angles: Vec<f32> = (0..5).map(|p| 0.4 * p as f32).collect();
        let table = |f: fn(f32) -> f32| {
            Tensor::from_slice(&arena, [5, 1], &angles.iter().map(|&a| f(a)).collect::<Vec<_>>())
        };
        let rotary = Rotary { cos: table(f32::cos)?, sin: table(f32::sin)?, dim: 2, interleaved: true };
        let positions = Tensor::from_slice(&arena, [5], &[0i32, 1, 2, 3, 4])?;
        let q = rotate_last(g, &q, 4, &rotary, &positions, false)?;
        let windows: Arc<[Window]> =
            [Window { own: 0, before: None }, Window { own: 2, before: Some(0) }].into();
        let far = pool_windows(g, &kv, &gate, &ape, &windows, &shape)?;
        let picks = [0, -1, -1, 0, 1, 5, 1, 2, 5, 2, 3, 6, 3, 4, 6i32];
        let picks = Tensor::from_slice(&arena, [5, 3], &picks)?;
        let out = attention_shared(g, &q, [&near, &far], &picks, Some(&sinks), 0.5)?;
        rotate_last(g, &out, 4, &rotary, &positions, true)
    });
}
