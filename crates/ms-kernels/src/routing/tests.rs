//! Compared with upstream's routers on the same logits, and with finite differences.

use super::*;
use crate::trial::{finite_differences, random, same_everywhere, wide64};
use ms_testing::{assert_close, golden, read_golden};

const PLAIN: Router = Router { score: Score::Softmax, top_k: 4, groups: None, normalise: false, scale: 1.0 };

/// Name in the golden file, router, whether it uses the expert bias.
const CASES: [(&str, Router, bool); 5] = [
    ("softmax_post", Router { normalise: true, ..PLAIN }, false),
    ("softmax_pre", PLAIN, false),
    ("moge", Router { groups: Some((4, 4, GroupScore::Alike)), ..PLAIN }, false),
    (
        "group_limited_greedy",
        Router { groups: Some((4, 2, GroupScore::Best(1))), scale: 16.0, ..PLAIN },
        false,
    ),
    (
        "sigmoid_bias_group",
        Router {
            score: Score::Sigmoid,
            groups: Some((4, 2, GroupScore::Best(2))),
            normalise: true,
            scale: 2.5,
            ..PLAIN
        },
        true,
    ),
];

#[test]
fn an_expert_whose_score_is_no_number_is_picked() {
    let router = Router { score: Score::Sigmoid, top_k: 2, ..PLAIN };
    let (mut experts, mut weights) = ([0; 2], [0f32; 2]);
    let logits = [0.0, 1.0, f32::NAN, 2.0];
    forward(&Cpu::single(), &mut experts, &mut weights, &logits, None, 4, &router).unwrap();
    assert_eq!(experts, [2, 3]);
    assert!(weights[0].is_nan() && weights[1].is_finite(), "{weights:?}");
}

#[test]
fn groups_are_judged_by_the_sum_of_their_best_scores_or_logits() {
    // For the groups (9, -8), (2, 1), (5, 0): the first has the likeliest expert, the last the largest sum of logits.
    let logits = [9.0, -8.0, 2.0, 1.0, 5.0, 0.0f32];
    for (judge, want) in [
        (GroupScore::Best(1), 0),
        (GroupScore::Best(2), 0),
        (GroupScore::BestLogits(1), 0),
        (GroupScore::BestLogits(2), 4),
        // A group has no more.
        (GroupScore::BestLogits(9), 4),
    ] {
        let router = Router { top_k: 1, groups: Some((3, 1, judge)), ..PLAIN };
        let (mut experts, mut weights) = ([0i32], [0f32]);
        forward(&Cpu::single(), &mut experts, &mut weights, &logits, None, 6, &router).unwrap();
        assert_eq!(experts, [want], "{judge:?}");
    }
}

#[test]
fn upstream_routers_pick_the_same_experts_with_the_same_weights_and_gradients() {
    let path = golden("ops/moe_routing.safetensors");
    let (g, meta) = read_golden(&path);
    let logits = g["logits"].f32();
    let (tokens, count) = (g["logits"].shape[0], g["logits"].shape[1]);
    let dense = g["dprobs_dense"].f32();
    let coeff: f32 = meta["aux_coeff"].parse().unwrap();
    let all_bias = g["expert_bias"].f32();
    for (name, router, biased) in CASES {
        let bias = biased.then_some(all_bias.as_slice());
        let k = router.top_k;
        let (experts, weights, dlogits, used) = same_everywhere(name, |cpu| {
            let (mut experts, mut weights) = (vec![0i32; tokens * k], vec![0f32; tokens * k]);
            forward(cpu, &mut experts, &mut weights, &logits, bias, count, &router).unwrap();
            let dweights: Vec<f32> =
                experts.iter().enumerate().map(|(i, &e)| dense[i / k * count + e as usize]).collect();
            let mut dlogits = vec![0f32; logits.len()];
            backward(cpu, &mut dlogits, &dweights, &experts, &logits, count, &router).unwrap();
            let mut used = vec![0u32; count];
            counts(&experts, &mut used).unwrap();
            (experts, weights, dlogits, used)
        });
        // As sets: the order of the picks is upstream's business.
        let (want_experts, want_weights) =
            (g[&format!("{name}.indices")].i64(), &g[&format!("{name}.probs")]);
        for t in 0..tokens {
            let mut got: Vec<(i64, f32)> =
                (0..k).map(|i| (i64::from(experts[t * k + i]), weights[t * k + i])).collect();
            let mut want: Vec<(i64, f64)> =
                (0..k).map(|i| (want_experts[t * k + i], want_weights.values[t * k + i])).collect();
            got.sort_by_key(|p| p.0);
            want.sort_by_key(|p| p.0);
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.0, want.0, "{name}, token {t}");
                assert_close(&format!("{name}, token {t}"), &[got.1], &[want.1], 2e-6, 1e-7);
            }
        }
        let tokens_per_expert: Vec<f32> = used.iter().map(|&c| c as f32).collect();
        assert_close(
            "tokens per expert",
            &tokens_per_expert,
            &g[&format!("{name}.tokens_per_expert")].values,
            0.0,
            1e-9,
        );
        if matches!(name, "softmax_post" | "softmax_pre" | "moge") {
            let mut all = dlogits.clone();
            let n = (logits.len() / count) as f32;
            let factor = coeff * count as f32 / (n * n * router.top_k as f32);
            let weights = used.iter().map(|&n| f64::from(factor) * f64::from(n)).collect();
            let load = Load { weights, groups: 1, ..Load::default() };
            let loss = balance(&Cpu::single(), &mut all, &logits, &load, &router, 1.0).unwrap();
            assert_close("aux loss", &[loss], &g[&format!("{name}.aux_loss")].values, 1e-5, 0.0);
            assert_close("dlogits", &all, &g[&format!("{name}.dlogits")].values, 1e-4, 1e-6);
        }
    }
}

#[test]
fn weights_have_the_gradient_of_their_formula() {
    let (tokens, count) = (3, 8);
    let logits = random::<f32>(tokens * count, 5);
    let bias = random::<f32>(count, 6);
    let mut routers = vec![
        Router { score: Score::SparseMixer { jitter: 0.3 }, top_k: 2, ..PLAIN },
        Router { score: Score::SqrtSoftplus, top_k: 3, normalise: true, scale: 1.5, ..PLAIN },
    ];
    routers.extend(CASES.map(|c| c.1));
    for router in routers {
        let k = router.top_k;
        let dw = random::<f32>(tokens * k, 7);
        let run = |logits: &[f32]| {
            let (mut experts, mut weights) = (vec![0i32; tokens * k], vec![0f32; tokens * k]);
            forward(&Cpu::single(), &mut experts, &mut weights, logits, Some(&bias), count, &router).unwrap();
            (experts, weights)
        };
        let (experts, _) = run(&logits);
        let mut got = vec![0f32; logits.len()];
        backward(&Cpu::single(), &mut got, &dw, &experts, &logits, count, &router).unwrap();
        let want = finite_differences(&wide64(&logits), |l| {
            // The loss in f32 has noise; a wide step is fine because picks rarely change.
            let l: Vec<f32> = l.iter().map(|&v| v as f32).collect();
            let (e, w) = run(&l);
            assert_eq!(e, experts, "the step changed a pick");
            w.iter().zip(&dw).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        });
        assert_close(&format!("{router:?}"), &got, &want, 5e-2, 2e-2 * router.scale);
    }
}

#[test]
fn a_sparse_mixer_of_zeros_gives_whole_weights() {
    let router = Router { score: Score::SparseMixer { jitter: 0.01 }, top_k: 2, ..PLAIN };
    let (mut experts, mut weights) = ([0; 2], [0.0; 2]);
    forward(&Cpu::single(), &mut experts, &mut weights, &[0.0; 4], None, 4, &router).unwrap();
    assert_eq!((experts, weights), ([0, 1], [1.0, 1.0]));
}

#[test]
fn a_router_that_cannot_pick_enough_is_refused() {
    let router = Router { top_k: 5, groups: Some((4, 1, GroupScore::Best(1))), ..PLAIN };
    let e = forward(&Cpu::single(), &mut [0; 5], &mut [0.0; 5], &[0.0; 16], None, 16, &router).unwrap_err();
    assert!(e.to_string().contains("top_k is 5"), "{e}");
    let router = Router { groups: Some((3, 1, GroupScore::Best(1))), ..PLAIN };
    let e = forward(&Cpu::single(), &mut [0; 4], &mut [0.0; 4], &[0.0; 16], None, 16, &router).unwrap_err();
    assert!(e.to_string().contains("groups is 3"), "{e}");
}

#[test]
fn experts_chosen_by_a_table_have_the_weights_that_the_router_would_give_them() {
    let router = Router { score: Score::SqrtSoftplus, top_k: 2, groups: None, normalise: true, scale: 1.5 };
    let logits = random::<f32>(5 * 6, 3);
    let cpu = Cpu::single();
    let (mut experts, mut want) = (vec![0i32; 10], vec![0f32; 10]);
    forward(&cpu, &mut experts, &mut want, &logits, None, 6, &router).unwrap();
    let mut got = vec![0f32; 10];
    weigh(&cpu, &mut got, &experts, &logits, 6, &router).unwrap();
    assert_eq!(got, want);
    assert!(weigh(&cpu, &mut got, &[6; 10], &logits, 6, &router).is_err());
}

#[test]
fn scores_that_stay_undivided_have_the_loss_and_the_gradient_of_their_sum() {
    // Sigmoids of 1/2 and 3/4; through them the gradient is 1/4 of 1 and 3/16 of 2.
    let logits = [0.0, 3f64.ln()];
    let router = Router { score: Score::Sigmoid, top_k: 1, ..PLAIN };
    let load = Load { weights: vec![1.0, 2.0], groups: 1, undivided: true, ..Load::default() };
    let mut d = [0.0; 2];
    let loss = balance(&Cpu::single(), &mut d, &logits, &load, &router, 1.0).unwrap();
    assert_close("loss", &[loss as f32], &[2.0], 1e-7, 0.0);
    assert_close("dlogits", &d.map(|d| d as f32), &[0.25, 0.375], 1e-7, 0.0);
    // Divided they are 2/5 and 3/5.
    let divided = Load { undivided: false, ..load };
    let loss = balance(&Cpu::single(), &mut [], &logits, &divided, &router, 1.0).unwrap();
    assert_close("loss", &[loss as f32], &[1.6], 1e-7, 0.0);
}
