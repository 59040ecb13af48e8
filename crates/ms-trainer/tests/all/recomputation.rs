//! Recomputation in latent attention and prediction modules: no bit changes, and the bytes are the planned ones.

use crate::parity::samples::{self, dense, experts, samples};
use crate::parity::{Case, rehearsed, run, same, small_experts};
use ms_core::{DType, Dispatcher};
use ms_dist::ContextParallel;
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{Activations, Attention, Block, Indexer, Mixer, Mla, ModelConfig, Placement, Stages};
use ms_trainer::Routing;
use ms_trainer::parity::{Found, Shape, batches};

const ROWS: usize = 2;
const LENGTH: usize = 32;
const ALL: usize = usize::MAX;

/// Two modules after four layers of latent attention, whose values are narrower than its keys.
fn latent(q_rank: Option<usize>) -> ModelConfig {
    let mla = Mla { q_rank, value: 6, q_scale: 1.5, kv_scale: 0.5, ..samples::MLA };
    ModelConfig { attention: Attention::Latent(mla), mtp: 2, ..samples::latent() }
}

/// Queries pick among more keys than they see.
fn picked() -> ModelConfig {
    let indexer = Indexer { heads: 2, head_dim: 8, top_k: 8, interleaved: false };
    ModelConfig { indexer: Some(indexer), ..latent(Some(16)) }
}

fn ways() -> Vec<(&'static str, SavePolicy)> {
    let none = SavePolicy::default();
    let up = SavePolicy { recompute_operands: true, ..none };
    let outputs = SavePolicy { swap_heads: true, ..none };
    vec![
        ("latents up", up),
        ("latent attention", SavePolicy { recompute_attention: true, ..none }),
        ("outputs of heads", outputs),
        ("latents up, core attention", SavePolicy { recompute_core_attention: true, ..up }),
        ("latents up, outputs of heads", SavePolicy { recompute_operands: true, ..outputs }),
        ("latents up, norms", SavePolicy { recompute_norms: ALL, ..up }),
        ("latents up, swap", SavePolicy { swapped: Swapped::ATTENTION, ..up }),
        (
            "latent attention, norms, networks",
            SavePolicy {
                recompute_attention: true,
                recompute_norms: ALL,
                recompute_dense_networks: true,
                ..none
            },
        ),
    ]
}

/// Parts of layers that go to the host by themselves, among others.
fn parts_away() -> Vec<(&'static str, SavePolicy)> {
    let of = |swapped| SavePolicy { swapped, ..SavePolicy::default() };
    let some = |text| of(Swapped::named_in(text));
    let all = Swapped::ATTENTION.union(Swapped::NETWORK_NORM).union(Swapped::NETWORK);
    vec![
        ("norms before attention away", of(Swapped::INPUT_NORM)),
        ("attention away", of(Swapped::MIXER)),
        ("between projections away", of(Swapped::CORE)),
        ("projections away", some("linear_qkv,linear_proj")),
        ("projections and between them away", some("linear_qkv,core_attention,linear_proj")),
        ("norms before networks away", of(Swapped::NETWORK_NORM)),
        ("networks away", of(Swapped::NETWORK)),
        ("inside networks away", some("linear_fc1,linear_fc2")),
        ("second layers of networks away", of(Swapped::FC2)),
        ("routers away", of(Swapped::ROUTER)),
        ("routed experts away", of(Swapped::EXPERTS)),
        ("shared experts away", of(Swapped::SHARED_EXPERTS)),
        ("norms behind away", some("post_attn_norm,post_mlp_layernorm")),
        ("whole layers away", of(all)),
        ("whole layers away, norms again", SavePolicy { recompute_norms: ALL, ..of(all) }),
        (
            "networks away, some of them and activations again",
            SavePolicy {
                recompute_activations: ALL,
                recompute_networks: 1,
                ..of(Swapped::FC2.union(Swapped::FC1))
            },
        ),
        (
            "inside attention away and again",
            SavePolicy { recompute_core_attention: true, ..some("core_attention,linear_proj") },
        ),
    ]
}

/// Whether a model has nothing that a way of [`parts_away`] sends away.
fn nothing_to_send(way: &str, c: &ModelConfig) -> bool {
    let norms = c.block.norms_inputs();
    match way {
        "routers away" | "routed experts away" | "shared experts away" => c.moe.is_none(),
        "norms behind away" => !c.block.norms_outputs(),
        "norms before attention away" | "norms before networks away" => !norms,
        _ => false,
    }
}

/// A block of two halves, whose experts join the stream after the second.
fn shortcut() -> ModelConfig {
    let pattern = experts().pattern[..2].to_vec();
    ModelConfig { block: Block::Shortcut, layers: 2, pattern, ..experts() }
}

fn ways_of_predictors() -> Vec<(&'static str, SavePolicy)> {
    let none = SavePolicy::default();
    let norms = SavePolicy { recompute_predictor_norms: true, ..none };
    vec![
        ("norms before modules", norms),
        ("layers of modules", SavePolicy { recompute_predictor_layers: true, ..none }),
        ("both", SavePolicy { recompute_predictor_layers: true, ..norms }),
        (
            "both, activations",
            SavePolicy { recompute_predictor_layers: true, recompute_activations: ALL, ..norms },
        ),
    ]
}

fn found(c: &ModelConfig, case: &Case) -> Found {
    let micro = case.sizes.pp * case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
    let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: true };
    run(c, case, Routing::default(), &batches(c, shape, 2)).unwrap()
}

/// What the plan says that the first stage keeps, and sends away.
fn planned(c: &ModelConfig, case: &Case) -> (usize, usize) {
    let activations = Activations {
        tp: case.sizes.tp,
        sequence_parallel: case.sequence_parallel,
        etp: case.sizes.tp,
        ep: case.sizes.ep,
        dispatcher: case.dispatcher,
        recompute: case.recompute,
        save_policy: case.save_policy,
        ..Activations::plain(ROWS * LENGTH, case.dtype.size())
    };
    let activations = Activations { row: LENGTH, ..activations };
    let placement = Placement::new(c, &case.stages).unwrap();
    let pass = activations.of_items(c, &placement.stage(0)[0], (0, 1));
    (pass.kept, pass.sent)
}

/// Every way on every case: the same bits, less kept on some stage (what a stage has sent back is its memory until the one
/// before has taken it in, so that one number depends on time), and without stages as much as planned.
fn check(c: &ModelConfig, cases: &[Case], ways: &[(&'static str, SavePolicy)]) {
    let mut wrong = Vec::new();
    for case in cases {
        for dtype in [DType::F32, DType::Bf16] {
            let case = Case { dtype, ..case.clone() };
            let plain = found(c, &case);
            for &(way, save_policy) in ways {
                let what = format!("{way}: {:?}, tp {}, pp {}", dtype, case.sizes.tp, case.sizes.pp);
                let case = Case { save_policy, ..case.clone() };
                let less = found(c, &case);
                same(&what, &plain, &less);
                let (kept, sent) = (less.bytes[0].kept, less.bytes[0].host as usize);
                let less_kept = less.bytes.iter().zip(&plain.bytes).any(|(a, b)| a.kept < b.kept);
                assert!(less_kept, "{what}: no stage keeps less");
                // Others are planned by rehearsals alone.
                if case.sizes.cp > 1 || case.sizes.ep > 1 || case.sizes.pp > 1 || c.indexer.is_some() {
                    continue;
                }
                for (name, planned, measured) in
                    [("kept", planned(c, &case).0, kept), ("sent", planned(c, &case).1, sent)]
                {
                    if planned.abs_diff(measured) * 50 > measured {
                        wrong.push(format!("{what}: {name}: planned {planned}, measured {measured}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_made_of_latents_again_gives_the_same_bits() {
    let cases = [
        Case::single(),
        Case::of(2, 2, 1, 1, 1),
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case::of(2, 1, 1, 2, 1),
    ];
    for c in [latent(Some(16)), latent(None)] {
        check(&c, &cases, &ways());
    }
}

#[test]
fn picked_keys_and_shared_documents_too() {
    let ring = Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ring { window: 1 });
    check(&latent(Some(16)), &[ring], &ways());
    check(
        &picked(),
        &[Case::single(), Case::of(2, 1, 2, 1, 1), Case::of(4, 2, 2, 1, 1).sequence_parallel()],
        &ways(),
    );
}

#[test]
fn prediction_modules_that_run_again_give_the_same_bits() {
    let dropped = Case { dropout: 0.1, ..Case::of(2, 2, 1, 1, 1).sequence_parallel() };
    let cases = [Case::single(), dropped, Case::of(2, 1, 1, 2, 1)];
    let dense = ModelConfig { layers: 4, hidden: 32, ffn: 48, head_dim: 8, mtp: 2, ..ModelConfig::tiny() };
    let experts = ModelConfig { mtp: 1, ..small_experts() };
    check(&dense, &cases, &ways_of_predictors());
    check(&latent(Some(16)), &cases[..1], &ways_of_predictors());
    // Loads of routers are counted once although they run twice.
    let (plain, again) = (Case::single().single_precision(), ways_of_predictors()[2].1);
    same(
        "experts",
        &found(&experts, &plain),
        &found(&experts, &Case { save_policy: again, ..plain.clone() }),
    );
}

/// Gradients that borrowing layers return to the lending layer are summed in the order of one pass, whatever is recomputed
/// together.
#[test]
fn layers_that_lend_run_again_with_the_same_bits() {
    let mut seen = 0;
    for (name, c) in samples() {
        let lends = c.has(Mixer::SharedKv) || (0..c.layers).any(|l| c.layer(l).borrows_index);
        if !lends {
            continue;
        }
        seen += 1;
        let again =
            [Recompute::Uniform(1), Recompute::Uniform(2), Recompute::Uniform(3), Recompute::Block(2)];
        for case in [Case::single(), Case::of(2, 1, 1, 2, 1), Case::of(2, 2, 1, 1, 1).sequence_parallel()] {
            let shape = Shape { rows: ROWS, length: 16, micro: case.sizes.pp, packed: true };
            let steps = batches(&c, shape, 2);
            for dtype in [DType::F32, DType::Bf16] {
                let with = |recompute, save_policy| {
                    let case = Case { recompute, save_policy, dtype, ..case.clone() };
                    run(&c, &case, Routing::default(), &steps)
                        .unwrap_or_else(|e| panic!("{name}, {dtype}: {e}"))
                };
                let plain = with(Recompute::None, SavePolicy::default());
                for recompute in again {
                    let what = format!("{name}, {dtype}, pp {}, {recompute:?}", case.sizes.pp);
                    same(&what, &plain, &with(recompute, SavePolicy::default()));
                }
                let away = SavePolicy { swap_inputs: true, ..SavePolicy::default() };
                same(&format!("{name}, sent"), &plain, &with(Recompute::Uniform(1), away));
            }
        }
    }
    assert!(seen >= 2, "keys and values are lent, and picks: {seen}");
}

#[test]
fn inputs_of_layers_that_run_again_are_shared_or_sent_away() {
    let dense = ModelConfig { layers: 4, hidden: 32, ffn: 48, head_dim: 8, ..ModelConfig::tiny() };
    let none = SavePolicy::default();
    let (shared, sent) =
        (SavePolicy { inputs_shared: true, ..none }, SavePolicy { swap_inputs: true, ..none });
    for recompute in [Recompute::Block(2), Recompute::Uniform(1), Recompute::Uniform(2)] {
        let tp = Case { recompute, dropout: 0.1, ..Case::of(2, 2, 1, 1, 1) };
        check(
            &dense,
            &[tp.clone(), Case { stages: Stages { pp: 2, ..Stages::default() }, ..Case::of(4, 2, 1, 2, 1) }]
                .map(|case| Case { recompute, ..case }),
            &[("shared", shared)],
        );
        check(&dense, &[Case { recompute, ..Case::single() }, tp.sequence_parallel()], &[("sent", sent)]);
    }
}

#[test]
fn rehearsals_take_what_runs_take() {
    let (latent, picked) = (latent(Some(16)), picked());
    let none = SavePolicy::default();
    let single = Case::single().single_precision();
    let again = Case { recompute: Recompute::Uniform(1), ..single.clone() };
    let shared = Case { save_policy: SavePolicy { inputs_shared: true, ..none }, ..Case::of(2, 2, 1, 1, 1) };
    let (mixed, halves) = (experts(), shortcut());
    let mut cases = vec![
        (
            "inputs away",
            &latent,
            Case { save_policy: SavePolicy { swap_inputs: true, ..none }, ..again.clone() },
        ),
        ("inputs shared", &latent, Case { recompute: again.recompute, dtype: DType::F32, ..shared }),
    ];
    for c in [&latent, &picked] {
        let ways = ways().into_iter().chain(ways_of_predictors());
        cases.extend(ways.map(|(way, save_policy)| (way, c, Case { save_policy, ..single.clone() })));
    }
    for c in [&latent, &mixed, &halves] {
        let ways = parts_away().into_iter().filter(|(way, _)| !nothing_to_send(way, c));
        cases.extend(ways.map(|(way, save_policy)| (way, c, Case { save_policy, ..single.clone() })));
    }
    let routing = Routing { fixed: true, ..Routing::default() };
    let mut wrong = Vec::new();
    for (way, c, case) in cases {
        let shape = Shape { rows: ROWS, length: LENGTH, micro: 4, packed: false };
        let found = run(c, &case, routing, &batches(c, shape, 3)).unwrap();
        let (taken, planned) = (found.bytes[0], &rehearsed(c, &case, routing, shape).unwrap()[0]);
        for (name, planned, taken) in [
            ("peak", planned.peak_bytes, taken.peak_asked),
            ("peak in blocks", planned.peak_block_bytes, taken.peak),
            ("the largest tensor", planned.largest_bytes, taken.largest),
            ("kept", planned.kept_bytes, taken.kept),
            ("with the host", planned.host_bytes as usize, taken.host as usize),
        ] {
            if planned.abs_diff(taken) * 50 > taken {
                wrong.push(format!("{way}: {name}: planned {planned}, taken {taken}"));
            }
        }
        assert_eq!(planned.sent, found.step_sent[0], "{way}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parts_that_are_named_leave_with_the_same_bits() {
    let grids = |c: &ModelConfig| {
        let shared = Case::of(2, 2, 1, 1, 1).sequence_parallel();
        let mut cases =
            vec![Case::single(), Case::of(2, 2, 1, 1, 1), shared.clone(), Case::of(2, 1, 1, 2, 1)];
        if c.moe.is_some() {
            let sent = [Dispatcher::AllToAll, Dispatcher::AllToAllSeq];
            cases.extend(sent.map(|dispatcher| Case { dispatcher, ..shared.clone() }));
        }
        cases
    };
    let block = |block| ModelConfig { block, ..dense() };
    for c in [dense(), experts(), latent(Some(16)), block(Block::Sandwich), block(Block::Post), shortcut()] {
        let ways: Vec<_> = parts_away().into_iter().filter(|(way, _)| !nothing_to_send(way, &c)).collect();
        check(&c, &grids(&c), &ways);
    }
}

#[test]
fn networks_of_shortcut_blocks_run_again_one_by_one() {
    let none = SavePolicy::default();
    let dense = SavePolicy { recompute_dense_networks: true, ..none };
    let experts = SavePolicy { recompute_expert_networks: true, ..none };
    let both = SavePolicy { recompute_expert_networks: true, ..dense };
    let ways = [
        ("dense networks", dense),
        ("experts", experts),
        ("both", both),
        ("both, and norms", SavePolicy { recompute_norms: ALL, ..both }),
        ("both, and away", SavePolicy { swapped: Swapped::NETWORK, ..both }),
        ("the first two", SavePolicy { swapped: Swapped::ATTENTION, recompute_networks: 1, ..none }),
        ("rows of experts, and dense networks", SavePolicy { recompute_experts: true, ..dense }),
    ];
    let shared = Case::of(2, 2, 1, 1, 1).sequence_parallel();
    let cases = [
        Case::single(),
        shared.clone(),
        Case { dispatcher: Dispatcher::AllToAll, ..shared },
        Case::of(2, 1, 1, 2, 1),
        Case { dropout: 0.1, ..Case::of(2, 1, 1, 1, 2) },
    ];
    check(&shortcut(), &cases, &ways);
}
