//! The auxiliary losses of routers compared with upstream's, with their gradients.

use super::*;
use ms_core::ops::{Auxiliary, Balance, DropPolicy, ExpertCapacity, Routed, RoutingOverride};
use ms_core::ops::{drop_tokens, route, route_to, route_with_override};
use ms_core::{GroupScore, Router, RouterScore};
use ms_testing::{Golden, assert_close, golden, read_golden};
use std::collections::BTreeMap;

const PLAIN: Router =
    Router { score: RouterScore::Softmax, top_k: 4, groups: None, normalise: false, scale: 1.0 };

const TWO: Router = Router { top_k: 2, ..PLAIN };

type Goldens = BTreeMap<String, Golden>;

fn goldens() -> Goldens {
    read_golden(&golden("ops/moe_routing.safetensors")).0
}

/// The losses, and the gradient with respect to the logits: with that of `Σ weights · dprobs`, if it is `weighed`.
fn losses(g: &Goldens, router: &Router, balance: Balance<'_>, weighed: bool) -> (Auxiliary, Vec<f32>) {
    let device = ms_cpu::device(1).unwrap();
    let (tokens, count) = (g["logits"].shape[0], g["logits"].shape[1]);
    let tensor = |name: &str| {
        let shape: Vec<usize> = g[name].shape.clone();
        Tensor::from_slice(device.arena(), &shape[..], &g[name].f32()).unwrap()
    };
    let mut graph = Graph::train(&device);
    let x = graph.input(tensor("logits"));
    let routed = route(&mut graph, &x, None, router, Some(balance)).unwrap();
    let (dense, k) = (g["dprobs_dense"].f32(), router.top_k);
    let mut dy = vec![0f32; tokens * k];
    for e in 0..count {
        for &copy in &routed.routes.copies[routed.routes.range(e)] {
            dy[copy as usize] = if weighed { dense[copy as usize / k * count + e] } else { 0.0 };
        }
    }
    let dy = Tensor::from_slice(device.arena(), [tokens, k], &dy).unwrap();
    let layout = Arc::new(ParamLayout::sequential([]));
    let mut none = GradBuffer::zeros(device.arena(), DType::F32, layout);
    let d = graph.backward(&routed.weights, dy, &[&x], &mut none).unwrap().remove(0).unwrap();
    (routed.balance.unwrap(), d.to_f32_vec().unwrap())
}

fn close(what: &str, g: &Goldens, name: &str, got: f64) {
    assert_close(what, &[got as f32], &g[name].values, 2e-5, 1e-9);
}

#[test]
fn deepseek_v2s_three_losses_are_upstreams() {
    let g = goldens();
    let router = Router { groups: Some((4, 2, GroupScore::Best(1))), scale: 16.0, ..PLAIN };
    let coefficients = Auxiliary { experts: 0.01, devices: 0.05, communication: 0.02, z: 0.0 };
    let (found, d) = losses(&g, &router, Balance { coefficients, ..Balance::whole(0.0, 1.0) }, true);
    close("experts", &g, "group_limited_greedy.l_expert", found.experts);
    close("devices", &g, "group_limited_greedy.l_device", found.devices);
    close("communication", &g, "group_limited_greedy.l_comm", found.communication);
    close("sum", &g, "group_limited_greedy.aux_loss", found.each().iter().sum());
    assert_close("dlogits", &d, &g["group_limited_greedy.dlogits"].values, 1e-4, 2e-6);
}

#[test]
fn losses_of_sequences_are_upstreams() {
    let g = goldens();
    let sequence_of: Vec<u32> = (0..18).map(|t| t / 9).collect();
    let by_sequence = Balance { group_of: &sequence_of, groups: 2, ..Balance::whole(0.01, 1.0) };
    let router = Router { groups: Some((4, 2, GroupScore::Best(1))), normalise: true, ..PLAIN };
    let (found, d) = losses(&g, &router, by_sequence, true);
    close("softmax", &g, "group_limited_seq_aux_norm.aux_loss", found.experts);
    assert_close("dlogits", &d, &g["group_limited_seq_aux_norm.dlogits"].values, 1e-4, 2e-6);
}

#[test]
fn the_z_loss_is_upstreams() {
    let g = goldens();
    let coefficients = Auxiliary { z: 1e-3, ..Auxiliary::default() };
    let (found, d) = losses(&g, &PLAIN, Balance { coefficients, ..Balance::whole(0.0, 1.0) }, false);
    close("z", &g, "z_loss", found.z);
    assert_close("dlogits", &d, &g["z_loss.dlogits"].values, 1e-4, 1e-7);
}

#[test]
fn a_choice_made_elsewhere_is_balanced_as_it_was_made() {
    let g = goldens();
    // One of each of four groups (mixture of grouped experts).
    let device = ms_cpu::device(1).unwrap();
    let logits = Tensor::from_slice(device.arena(), [18, 16], &g["logits"].f32()).unwrap();
    let picks: Vec<i32> = g["moge.indices"].i64().into_iter().map(|e| e as i32).collect();
    let picks = Tensor::from_slice(device.arena(), [18, 4], &picks).unwrap();
    let mut graph = Graph::train(&device);
    let x = graph.input(logits);
    let Routed { weights, balance, .. } =
        route_to(&mut graph, &x, picks, &PLAIN, Some(Balance::whole(0.01, 1.0))).unwrap();
    close("experts", &g, "moge.aux_loss", balance.unwrap().experts);
    assert_close("weights", &weights.value().to_f32_vec().unwrap(), &g["moge.probs"].values, 2e-6, 1e-7);
}

#[test]
fn copies_beyond_the_capacity_are_upstreams() {
    let path = golden("ops/moe_routing.safetensors");
    let (g, meta) = read_golden(&path);
    let number = |name: &str| meta[name].parse::<f64>().unwrap();
    let (tokens, experts) = (g["logits"].shape[0], g["logits"].shape[1]);
    let router = Router { normalise: true, ..PLAIN };
    let share = tokens as f64 * number("topk") / experts as f64;
    let capacity = (share * number("capacity_factor")).ceil() as usize;
    assert_eq!((capacity, router.top_k), (number("capacity") as usize, number("topk") as usize));
    let device = ms_cpu::device(1).unwrap();
    let logits = Tensor::from_slice(device.arena(), [tokens, experts], &g["logits"].f32()).unwrap();
    let mut graph = Graph::train(&device);
    let x = graph.input(logits);
    let Routed { weights, routes, .. } = route(&mut graph, &x, None, &router, None).unwrap();
    let taken = ExpertCapacity { capacity, share_of: &[], policy: DropPolicy::Weights, places: &[] };
    let (left, dropped) = drop_tokens(&mut graph, &weights, &routes, taken).unwrap();
    let dropped_of = dropped;
    let dropped = dropped_of.iter().sum::<u64>() as usize;
    let left = left.value().to_f32_vec().unwrap();
    let mut dense = vec![0f32; tokens * experts];
    for e in 0..experts {
        for &copy in &routes.copies[routes.range(e)] {
            dense[copy as usize / router.top_k * experts + e] = left[copy as usize];
        }
    }
    assert_close("weights", &dense, &g["capacity.final_probs"].values, 2e-6, 1e-7);
    let kept: Vec<f64> = dense.iter().map(|&w| f64::from(u8::from(w > 0.0))).collect();
    assert_eq!(kept, g["capacity.final_map"].values);
    assert_eq!(dropped, tokens * router.top_k - kept.iter().sum::<f64>() as usize);
    assert!(dropped > 0);
    for (e, &dropped) in dropped_of.iter().enumerate() {
        let left = kept.iter().skip(e).step_by(experts).sum::<f64>() as u64;
        assert_eq!(routes.range(e).len() as u64 - dropped, left, "expert {e}");
    }
    // Each sequence is balanced by what experts take (`sequence_load_balancing_loss_func` of that map).
    let sequence_of: Vec<u32> = (0..tokens).map(|t| u32::from(t >= tokens / 2)).collect();
    let balance =
        Balance { group_of: &sequence_of, groups: 2, taken: Some(taken), ..Balance::whole(0.01, 1.0) };
    let found = route(&mut graph, &x, None, &router, Some(balance)).unwrap().balance.unwrap().experts;
    let scores: Vec<f64> = g["logits"].values.chunks_exact(experts).flat_map(softmax).collect();
    let of_sequence = |s: usize| -> f64 {
        let rows = s * tokens / 2..(s + 1) * tokens / 2;
        let n = rows.len() as f64;
        let sum = |of: &[f64], e: usize| rows.clone().map(|t| of[t * experts + e]).sum::<f64>();
        let share = |e: usize| sum(&kept, e) * experts as f64 / (n * router.top_k as f64);
        (0..experts).map(|e| share(e) * sum(&scores, e) / n).sum()
    };
    let want = 0.01 * (of_sequence(0) + of_sequence(1)) / 2.0;
    assert!((found - want).abs() < 1e-6 * want, "{found} {want}");
    let all = Balance { group_of: &sequence_of, groups: 2, ..Balance::whole(0.01, 1.0) };
    let all = route(&mut graph, &x, None, &router, Some(all)).unwrap().balance.unwrap().experts;
    assert!((all - want).abs() > 1e-3 * want, "{all} {want}");
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let parts: Vec<f64> = logits.iter().map(|x| x.exp()).collect();
    let sum: f64 = parts.iter().sum();
    parts.into_iter().map(|p| p / sum).collect()
}

/// Of a map that fills every expert up, Megatron 0.12's `sequence_load_balancing_loss_func` of one sequence is
/// `c · E C / (N K) · Σ_e mean score of e`, and the scores of a token sum to one.
#[test]
fn experts_that_are_filled_up_are_in_balance() {
    let device = ms_cpu::device(1).unwrap();
    let logits: Vec<f32> = (0..24).map(|i| ((i * 7) % 11) as f32 / 4.0).collect();
    let mut graph = Graph::train(&device);
    let x = graph.input(Tensor::from_slice(device.arena(), [6, 4], &logits).unwrap());
    let taken = ExpertCapacity { capacity: 5, share_of: &[], policy: DropPolicy::Weights, places: &[] };
    let balance = Balance { taken: Some(taken), filled: Some(5), ..Balance::whole(0.01, 1.0) };
    let found = route(&mut graph, &x, None, &TWO, Some(balance)).unwrap().balance.unwrap().experts;
    let want = 0.01 * 4.0 * 5.0 / (6.0 * TWO.top_k as f64);
    assert!((found - want).abs() < 1e-6 * want, "{found} {want}");
    // Of several sequences, what is there.
    let sequence_of = [0, 0, 0, 1, 1, 1];
    let of_two = |filled| Balance { group_of: &sequence_of, groups: 2, filled, ..balance };
    let mut of = |balance| route(&mut graph, &x, None, &TWO, Some(balance)).unwrap().balance.unwrap().experts;
    assert_eq!(of(of_two(Some(5))), of(of_two(None)));
    assert_ne!(of(Balance { filled: None, ..balance }), found);
}

/// As MindSpeed-LLM's head has it: the weights of a router stay, its map of experts is another one.
#[test]
fn experts_in_place_of_others_weigh_what_the_router_gives_them() {
    let device = ms_cpu::device(1).unwrap();
    let logits: Vec<f32> = (0..24).map(|i| ((i * 7) % 11) as f32 / 4.0).collect();
    let mut graph = Graph::train(&device);
    let x = graph.input(Tensor::from_slice(device.arena(), [6, 4], &logits).unwrap());
    let dense = |routed: &Routed| {
        let (weights, k) = (routed.weights.value().to_f32_vec().unwrap(), TWO.top_k);
        let mut dense = vec![None; 24];
        for e in 0..4 {
            for &copy in &routed.routes.copies[routed.routes.range(e)] {
                dense[copy as usize / k * 4 + e] = Some(weights[copy as usize]);
            }
        }
        dense
    };
    let chosen = dense(&route(&mut graph, &x, None, &TWO, None).unwrap());
    let in_turn: Vec<i32> = (0..6 * TWO.top_k).map(|i| (i % 4) as i32).collect();
    let experts = Tensor::from_slice(device.arena(), [6, TWO.top_k], &in_turn).unwrap();
    let instead = RoutingOverride { experts: &experts, picked: None, by_expert: true };
    let routed = route_with_override(&mut graph, &x, None, instead, &TWO, None).unwrap();
    let got = dense(&routed);
    let (mut own, mut none) = (0, 0);
    for (t, experts) in in_turn.chunks_exact(TWO.top_k).enumerate() {
        for e in 0..4usize {
            let want = experts.contains(&(e as i32)).then(|| chosen[t * 4 + e].unwrap_or(0.0));
            assert_eq!(got[t * 4 + e], want, "token {t}, expert {e}");
            own += usize::from(want.is_some_and(|w| w > 0.0));
            none += usize::from(want == Some(0.0));
        }
    }
    assert!(own > 0 && none > 0, "{own} {none}");
}

#[test]
fn the_last_copies_are_those_of_the_last_places() {
    // Two samples of two tokens, one expert that takes two copies: the first token of each.
    let device = ms_cpu::device(1).unwrap();
    let mut graph = Graph::train(&device);
    let x = graph.input(Tensor::from_slice(device.arena(), [4, 1], &[1f32; 4]).unwrap());
    let router = Router { top_k: 1, ..PLAIN };
    let Routed { weights, routes, .. } = route(&mut graph, &x, None, &router, None).unwrap();
    for (places, want) in [(&[0, 2, 1, 3][..], [1.0, 0.0, 1.0, 0.0]), (&[], [1.0, 1.0, 0.0, 0.0])] {
        let taken = ExpertCapacity { capacity: 2, share_of: &[], policy: DropPolicy::Position, places };
        let (left, dropped) = drop_tokens(&mut graph, &weights, &routes, taken).unwrap();
        assert_eq!((left.value().to_f32_vec().unwrap(), dropped), (want.to_vec(), vec![2]), "{places:?}");
    }
}
