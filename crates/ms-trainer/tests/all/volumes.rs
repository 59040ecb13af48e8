//! Bytes that real runs send, by group, compared with closed formulas, to the byte; including multiples of three ranks and
//! sizes that are not powers of two.

use crate::formulas;
use crate::formulas::{Buffer, Chunks, Dense, Heads, LOSSES, Loads, Matrices};
use crate::parity::samples::{MAMBA2, MLA};
use crate::parity::{Case, run};
use ms_core::{DType, Dispatcher, OptimizerSharding, RankGroup};
use ms_data::MicroBatch;
use ms_dist::ContextParallel;
use ms_spec::{
    Attention, Feed, GatedDelta, Layer, Mamba2, Mixer, Mla, ModelConfig, Moe, Router, Score, SharedExpert,
    Stages,
};
use ms_trainer::parity::{Found, Shape, batches};
use ms_trainer::{PipelineOrder, Routing};
use std::collections::BTreeMap;

fn model(layers: usize, (heads, groups): (usize, usize)) -> ModelConfig {
    ModelConfig { layers, heads, groups, ffn: 18, vocab: 30, padded_vocab: 36, ..ModelConfig::tiny() }
}

fn found(c: &ModelConfig, case: &Case, shape: Shape) -> Found {
    run(c, case, Routing::default(), &batches(c, shape, 2)).unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

/// Micro-batches of two rows for each of a case's data-parallel ranks.
fn shape(case: &Case, length: usize, each: usize) -> Shape {
    let dp = case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
    Shape { rows: 2, length, micro: each * dp, packed: true }
}

fn sent(found: &Found, rank: usize, group: RankGroup) -> usize {
    found.sent[rank].get(&group).map_or(0, |&bytes| bytes as usize)
}

#[test]
fn heads_go_for_tokens_and_blocks_around_a_ring() {
    let hybrid = |ulysses| ContextParallel::Hybrid { ulysses, window: 1 };
    for (cp, context) in [
        (2, ContextParallel::Ulysses),
        (3, ContextParallel::Ulysses),
        (4, ContextParallel::Ulysses),
        (6, ContextParallel::Ulysses),
        (3, ContextParallel::Ring { window: 1 }),
        (4, ContextParallel::Ring { window: 2 }),
        (4, hybrid(2)),
        (6, hybrid(2)),
        (6, hybrid(3)),
        (4, ContextParallel::InOrder { ulysses: 2, window: 1 }),
    ] {
        // Groups that divide among the ranks, one for all, groups whose heads several ranks share, and groups that a border of
        // ranks cuts.
        for (heads, groups) in [(12, 12), (12, 6), (12, 1), (12, 2), (12, 4), (12, 3)] {
            for (tp, dtype) in [(1, DType::F32), (1, DType::Bf16), (2, DType::F32)] {
                let u = context.ulysses(cp);
                if groups % tp != 0 || heads / tp % u != 0 || cp * tp > 8 {
                    continue;
                }
                let (c, case) = (model(2, (heads, groups)), Case::of(cp * tp, tp, cp, 1, 1).context(context));
                let case = Case { dtype, ..case };
                let shape = shape(&case, 24, 2);
                let got = found(&c, &case, shape);
                let of = Heads { heads: heads / tp, groups: groups / tp };
                let (tokens, times) = (shape.rows * shape.length / cp, shape.micro * c.layers);
                let e = dtype.size();
                for rank in 0..case.world {
                    let what = format!("{context:?} of {cp}, {heads} heads, {groups} groups, rank {rank}");
                    let want = times * of.ulysses(tokens, c.head_dim, u, e);
                    assert_eq!(sent(&got, rank, RankGroup::Ulysses), want, "heads for tokens: {what}");
                    let want = times * of.ring(tokens, c.head_dim, (u, cp / u), e);
                    assert_eq!(sent(&got, rank, RankGroup::Ring), want, "around the ring: {what}");
                    assert_eq!(sent(&got, rank, RankGroup::Cp), 0, "{what}");
                }
            }
        }
    }
}

/// A model of recurrent mixers alone.
fn recurrent(mixer: Mixer, of: Heads) -> ModelConfig {
    let Heads { heads, groups } = of;
    let mamba2 = Mamba2 { heads, head_dim: 4, groups, state: 5, ..MAMBA2 };
    let delta = GatedDelta { key_heads: groups, value_heads: heads, key_dim: 6, value_dim: 4, conv: 3 };
    ModelConfig {
        mamba2: (mixer == Mixer::Mamba2).then_some(mamba2),
        gated_delta: (mixer == Mixer::GatedDelta).then_some(delta),
        pattern: vec![Layer { mixer, ..Layer::default() }; 2],
        init_std: 0.05,
        ..model(2, (12, 12))
    }
}

#[test]
fn recurrent_mixers_exchange_their_channels_for_tokens() {
    for mixer in [Mixer::Mamba2, Mixer::GatedDelta] {
        for of in [(12, 12), (12, 2), (12, 4)].map(|(heads, groups)| Heads { heads, groups }) {
            for (tp, cp) in [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3)] {
                for (context, dtype) in [
                    (ContextParallel::Gather, DType::F32),
                    (ContextParallel::Ulysses, DType::Bf16),
                    (ContextParallel::Ring { window: 1 }, DType::F64),
                ] {
                    let c = recurrent(mixer, of);
                    let case = Case { dtype, ..Case::of(tp * cp, tp, cp, 1, 1).context(context) };
                    let shape = shape(&case, 24, 2);
                    let got = found(&c, &case, shape);
                    let own = Heads { heads: of.heads / tp, groups: of.groups / tp };
                    let (tokens, e) = (shape.rows * shape.length / cp, dtype.size());
                    let layer = match mixer {
                        Mixer::Mamba2 => formulas::mamba2(tokens, own, (4, 5), cp, e),
                        _ => formulas::gated_delta(tokens, own, (6, 4), cp, e),
                    };
                    for rank in 0..case.world {
                        let what = format!("{mixer:?} {of:?}, tp {tp}, cp {cp}, {context:?}, rank {rank}");
                        assert_eq!(sent(&got, rank, RankGroup::Cp), shape.micro * c.layers * layer, "{what}");
                        for group in [RankGroup::Ring, RankGroup::Ulysses] {
                            assert_eq!(sent(&got, rank, group), 0, "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn chunks_of_stages_hand_on_as_often_as_they_are_cut() {
    let turn = |pp, each| Stages { pp, layers_per_chunk: Some(each), ..Stages::default() };
    let both = |pp| Stages { pp, dual_pipe: true, ..Stages::default() };
    let plain = |pp| Stages { pp, ..Stages::default() };
    let dual = PipelineOrder::DualPipeV;
    let grouped = |pp: usize| PipelineOrder::Plain { group: Some(2 * pp), forwards_first: false };
    for (layers, stages, chunks, order, micro) in [
        (6, plain(3), Chunks::InTurn(1), PipelineOrder::ZeroBubble { group: None }, 5),
        (6, plain(2), Chunks::InTurn(1), PipelineOrder::default(), 3),
        (8, turn(2, 2), Chunks::InTurn(2), PipelineOrder::default(), 4),
        (6, turn(2, 1), Chunks::InTurn(3), grouped(2), 8),
        (6, turn(3, 1), Chunks::InTurn(2), PipelineOrder::default(), 6),
        (9, turn(3, 1), Chunks::InTurn(3), PipelineOrder::default(), 3),
        (4, both(2), Chunks::BothWays, dual, 5),
        (6, both(3), Chunks::BothWays, dual, 7),
    ] {
        let pp = stages.pp;
        for (tp, cp, sequence_parallel, dtype) in [
            (1, 1, false, DType::F32),
            (1, 1, false, DType::Bf16),
            (2, 1, true, DType::F32),
            (1, 2, false, DType::F32),
        ] {
            let c = model(layers, (4, 2));
            let case = Case { stages: stages.clone(), order, dtype, ..Case::of(tp * cp * pp, tp, cp, pp, 1) };
            let case = if sequence_parallel { case.sequence_parallel() } else { case };
            let shape = shape(&case, 12, micro);
            let got = found(&c, &case, shape);
            let rows = shape.rows * shape.length / cp / if sequence_parallel { tp } else { 1 };
            let stream = rows * c.hidden * dtype.size();
            for rank in 0..case.world {
                let stage = rank / (tp * cp);
                let want = micro * chunks.messages(stage, pp) * stream + formulas::summed(LOSSES, pp);
                assert_eq!(sent(&got, rank, RankGroup::Pp), want, "{case:?}, stage {stage}");
            }
        }
    }
}

#[test]
fn every_group_of_a_dense_model_sends_what_the_formulas_say() {
    let plain = Case::single();
    let ulysses = |case: Case| case.context(ContextParallel::Ulysses);
    let turn = |case: Case, each| {
        let stages = Stages { pp: case.sizes.pp, layers_per_chunk: Some(each), ..Stages::default() };
        Case { stages, ..case }
    };
    let hybrid = ContextParallel::Hybrid { ulysses: 2, window: 1 };
    let both = |case: Case| {
        let stages = Stages { pp: case.sizes.pp, dual_pipe: true, ..Stages::default() };
        Case { stages, order: PipelineOrder::DualPipeV, ..case }
    };
    let one = Chunks::InTurn(1);
    let cases = [
        (plain, one, false),
        (Case::of(2, 1, 1, 1, 1), one, true),
        (Case { bucket_size: Some(300), ..Case::of(3, 1, 1, 1, 1) }, one, false),
        (
            Case { overlap_gather: true, overlap: true, bucket_size: Some(700), ..Case::of(6, 1, 3, 1, 1) },
            one,
            true,
        ),
        (Case::of(3, 3, 1, 1, 1), one, true),
        (Case::of(6, 3, 1, 1, 1).sequence_parallel(), one, false),
        (Case { bucket_size: Some(300), ..Case::of(6, 2, 1, 1, 1).sequence_parallel() }, one, true),
        (Case::of(2, 1, 1, 2, 1), one, true),
        (Case::of(6, 1, 1, 3, 1), one, true),
        (Case::of(6, 3, 1, 2, 1), one, true),
        (Case { bucket_size: Some(300), ..Case::of(8, 2, 1, 2, 1).sequence_parallel() }, one, true),
        (ulysses(Case::of(6, 1, 3, 2, 1)), one, true),
        (Case::of(8, 2, 4, 1, 1).sequence_parallel().context(hybrid), one, false),
        (Case::of(8, 2, 2, 2, 1).context(ContextParallel::Ring { window: 1 }), one, true),
        (turn(Case::of(6, 1, 1, 3, 1), 1), Chunks::InTurn(2), true),
        (turn(Case::of(4, 2, 1, 2, 1), 1), Chunks::InTurn(3), false),
        (both(Case::of(6, 1, 1, 3, 1)), Chunks::BothWays, false),
        (both(Case::of(8, 2, 2, 2, 1)), Chunks::BothWays, false),
    ];
    for (case, chunks, tied) in cases {
        for dtype in [DType::F32, DType::Bf16] {
            let [tp, cp, pp] = [case.sizes.tp, case.sizes.cp, case.sizes.pp];
            let dp = case.world / (tp * cp * pp);
            let layers = if chunks == Chunks::BothWays && pp == 2 { 4 } else { 6 };
            let case = Case { dtype, ..case.clone() };
            let c = ModelConfig { tied, ..model(layers, (12, 6)) };
            let shape = shape(&case, 24, 2 * pp);
            let dense = Dense {
                layers,
                hidden: c.hidden,
                ffn: c.ffn,
                of: Heads { heads: c.heads, groups: c.groups },
                head_dim: c.head_dim,
                vocab: c.padded_vocab,
                tied,
                ranks: [tp, cp, pp, dp],
                ulysses: case.sizes.ulysses,
                sequence_parallel: case.sequence_parallel,
                chunks,
                bucket: case.bucket_size,
                tokens: shape.rows * shape.length,
                micro: shape.micro / dp,
                e: dtype.size(),
            };
            let got = found(&c, &case, shape);
            for (rank, (got, want)) in got.step_sent.into_iter().zip(dense.sent()).enumerate() {
                let got: BTreeMap<_, _> = got.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
                assert_eq!(got, want, "rank {rank}: {case:?}");
            }
        }
    }
}

/// Four layers with heads of eight columns, two of which are rotated. `latents`: latent attention, with query latents of this
/// many columns or without.
fn latent(latents: Option<Option<usize>>, mtp: usize) -> ModelConfig {
    let of = |q_rank| Mla { q_rank, kv_rank: 10, value: 6, q_scale: 1.5, kv_scale: 0.5, ..MLA };
    let attention = latents.map_or(Attention::default(), |rank| Attention::Latent(of(rank)));
    ModelConfig { attention, mtp, hidden: 24, ffn: 24, head_dim: 8, ..model(4, (12, 12)) }
}

#[test]
fn latent_attention_and_prediction_modules_send_what_the_formulas_say() {
    for (latents, mtp) in
        [(Some(Some(14)), 0), (Some(None), 0), (None, 1), (None, 2), (Some(Some(14)), 1), (Some(None), 2)]
    {
        let c = latent(latents, mtp);
        for (tp, sequence_parallel) in [(2, false), (2, true), (3, false), (3, true), (4, true)] {
            for dtype in [DType::F32, DType::Bf16] {
                let case = Case { dtype, ..Case::of(tp, tp, 1, 1, 1) };
                let case = if sequence_parallel { case.sequence_parallel() } else { case };
                let shape = shape(&case, 24, 2);
                let of = Matrices {
                    tp,
                    sequence_parallel,
                    tokens: shape.rows * shape.length,
                    hidden: c.hidden,
                    e: dtype.size(),
                    queries: c.heads * c.head_dim,
                    latents: latents.map(|queries| (queries, 10, 2)),
                };
                let pass = of.embedding() + c.layers * of.layer() + mtp * of.module() + of.loss();
                let want = shape.micro * pass + of.summands(c.layers, mtp);
                let got = found(&c, &case, shape);
                for rank in 0..tp {
                    let what = format!("latents {latents:?}, {mtp} modules, rank {rank}: {case:?}");
                    assert_eq!(sent(&got, rank, RankGroup::Tp), want, "{what}");
                }
            }
        }
    }
}

/// The last stage has the modules, which embed with the table of the first: gradients of both are summed, as of a tied one.
#[test]
fn stages_with_prediction_modules_sum_the_gradients_of_the_table_that_they_embed_with() {
    for (mtp, pp, tied) in [(1, 2, false), (1, 2, true), (2, 2, false), (2, 4, true), (1, 4, false)] {
        for dtype in [DType::F32, DType::Bf16] {
            let c = ModelConfig { tied, ..latent(None, mtp) };
            let case = Case { dtype, ..Case::of(pp, 1, 1, pp, 1) };
            let shape = shape(&case, 12, 2 * pp);
            let got = found(&c, &case, shape);
            let stream = shape.rows * shape.length * c.hidden * dtype.size();
            // Every module has a loss of its own.
            let losses = formulas::summed(LOSSES * (1 + mtp), pp);
            for stage in 0..pp {
                let what = format!("stage {stage}, {mtp} modules, tied {tied}, {dtype}");
                let want = shape.micro * Chunks::InTurn(1).messages(stage, pp) * stream + losses;
                assert_eq!(sent(&got, stage, RankGroup::Pp), want, "{what}");
                let table = if stage == 0 || stage + 1 == pp { c.padded_vocab * c.hidden * 4 } else { 0 };
                assert_eq!(sent(&got, stage, RankGroup::Embedding), formulas::summed(table, 2), "{what}");
            }
        }
    }
}

fn experts(number: usize, top_k: usize) -> ModelConfig {
    let router = Router::plain(Score::SoftmaxOfChosen);
    let shared = Some(SharedExpert { ffn: 6, gate: false, wide_gate: false });
    let moe = Moe { experts: number, top_k, ffn: 6, router, shared, zero_experts: 0 };
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 2];
    ModelConfig { moe: Some(moe), pattern, hidden: 24, init_std: 0.5, ..model(2, (12, 6)) }
}

#[test]
fn ranks_with_the_same_experts_sum_their_gradients() {
    // Data-parallel and, of these, expert-parallel ranks; ranks that share matrices and experts.
    for (tp, dp, ep) in [(1, 4, 2), (1, 6, 2), (1, 6, 3), (2, 4, 2), (1, 3, 1), (3, 2, 1)] {
        for (dtype, rounded) in [(DType::F32, false), (DType::Bf16, false), (DType::Bf16, true)] {
            let c = experts(6, 2);
            let moe = c.moe.as_ref().unwrap();
            let case = Case { dtype, rounded_gradients: rounded, ..Case::of(tp * dp, tp, 1, 1, ep) };
            let got = found(&c, &case, shape(&case, 12, 1));
            // Stacked experts, gate and up together.
            let of_layer = [2 * moe.ffn, moe.ffn].map(|rows| moe.experts / ep * rows / tp * c.hidden);
            let sizes = vec![of_layer; c.layers].concat();
            let buffer = Buffer::new(&sizes, &[], dp / ep, None);
            let (sums, weights) = buffer.sent(if rounded { 2 } else { 4 }, dtype.size());
            for rank in 0..case.world {
                let of = |found: &[BTreeMap<RankGroup, u64>]| {
                    found[rank].get(&RankGroup::ExpertDp).map_or(0, |&bytes| bytes as usize)
                };
                let what = format!("rank {rank}: {case:?}");
                assert_eq!(of(&got.sent), sums, "gradients: {what}");
                assert_eq!(of(&got.step_sent), sums + weights, "and weights: {what}");
            }
        }
    }
}

#[test]
fn instances_sum_inside_and_then_among_each_other() {
    for (tp, dp, ep, n) in
        [(1, 4, 1, 2), (1, 6, 1, 3), (2, 4, 1, 2), (1, 8, 2, 2), (1, 3, 1, 3), (1, 6, 2, 3)]
    {
        for dtype in [DType::F32, DType::Bf16] {
            let c = experts(6, 2);
            let moe = c.moe.as_ref().unwrap();
            let alike = dp / ep;
            let optimizer =
                if n == alike { OptimizerSharding::Replicated } else { OptimizerSharding::Instances(n) };
            let case = Case { dtype, optimizer, ..Case::of(tp * dp, tp, 1, 1, ep) };
            let got = found(&c, &case, shape(&case, 12, 1));
            let of_layer = [2 * moe.ffn, moe.ffn].map(|rows| moe.experts / ep * rows / tp * c.hidden);
            let shards = alike / n;
            let buffer = Buffer::new(&vec![of_layer; c.layers].concat(), &[], shards, None);
            let (inside, weights) = buffer.sent(4, dtype.size());
            let among = formulas::summed(buffer.elements() * 4 / shards, n);
            for rank in 0..case.world {
                let of = |found: &[BTreeMap<RankGroup, u64>], group| {
                    found[rank].get(&group).map_or(0, |&bytes| bytes as usize)
                };
                let what = format!("{n} instances, rank {rank}: {case:?}");
                if shards == 1 {
                    assert_eq!(of(&got.step_sent, RankGroup::ExpertDp), among, "{what}");
                    continue;
                }
                assert_eq!(of(&got.step_sent, RankGroup::ExpertDp), 0, "{what}");
                assert_eq!(of(&got.sent, RankGroup::ExpertDpIntra), inside, "gradients inside: {what}");
                let step_inside = of(&got.step_sent, RankGroup::ExpertDpIntra);
                assert_eq!(step_inside, inside + weights, "and weights: {what}");
                assert_eq!(of(&got.step_sent, RankGroup::ExpertDpInter), among, "among: {what}");
            }
        }
    }
}

/// Rows of `length` tokens that `cp` ranks share, every rank's part of a row a document of its own, so that what a rank
/// routes does not depend on others.
fn apart(mb: &MicroBatch, length: usize, cp: usize) -> MicroBatch {
    let part = length / cp;
    let documents = mb.tokens.len() / part;
    MicroBatch {
        ahead: Vec::new(),
        cu_seqlens: (0..=documents).map(|d| (d * part) as i32).collect(),
        position_ids: (0..mb.tokens.len()).map(|t| (t % part) as i32).collect(),
        ..mb.clone()
    }
}

/// Of rows that are [`apart`] those of rank `k` of `tp`, and of these the part of rank `c` of `cp`.
fn part_of(mb: &MicroBatch, length: usize, (c, cp): (usize, usize), (k, tp): (usize, usize)) -> MicroBatch {
    let (rows, part) = (mb.row_ends.len(), length / cp);
    // A rank's rows, cut over the ranks that share them.
    let mine: Vec<usize> =
        (0..rows).flat_map(|r| r * length + c * part..r * length + (c + 1) * part).collect();
    let each = mine.len() / tp;
    assert!(each.is_multiple_of(part), "a rank's tokens are whole documents");
    let mine = &mine[k * each..(k + 1) * each];
    let ints = |of: &[i32]| mine.iter().map(|&t| of[t]).collect::<Vec<_>>();
    let documents = each / part;
    MicroBatch {
        ahead: Vec::new(),
        tokens: ints(&mb.tokens),
        labels: ints(&mb.labels),
        loss_mask: mine.iter().map(|&t| mb.loss_mask[t]).collect(),
        position_ids: ints(&mb.position_ids),
        cu_seqlens: (0..=documents).map(|d| (d * part) as i32).collect(),
        row_ends: (1..=documents).map(|d| d * part).collect(),
        samples: Vec::new(),
    }
}

/// How many copies routers have for every expert, by layer, found on one rank.
fn routed(c: &ModelConfig, mb: MicroBatch) -> Vec<Vec<usize>> {
    let alone = run(c, &Case::single().single_precision(), Routing::default(), &[vec![mb]]).unwrap();
    let tokens = &alone.reports[0].experts.as_ref().unwrap().tokens;
    tokens.values().map(|counts| counts.iter().map(|&n| n as usize).collect()).collect()
}

#[test]
fn tokens_go_where_their_routers_send_them() {
    let mut least_even = 1.0f64;
    for (c, tp, cp, dp, ep) in [
        (experts(4, 2), 1, 1, 2, 2),
        (experts(6, 2), 1, 1, 3, 3),
        (experts(9, 1), 1, 1, 3, 3),
        (experts(6, 3), 1, 1, 4, 2),
        (experts(6, 2), 2, 1, 3, 3),
        (experts(6, 2), 3, 1, 2, 2),
        (experts(6, 2), 1, 3, 1, 3),
        (experts(8, 3), 2, 2, 2, 4),
        (experts(6, 3), 1, 2, 2, 2),
    ] {
        let (length, each) = (12, 2);
        let micro = each * dp;
        let drawn = batches(&c, Shape { rows: 6, length, micro, packed: false }, 1).remove(0);
        let steps: Vec<MicroBatch> = drawn.iter().map(|mb| apart(mb, length, cp)).collect();
        let top_k = c.moe.as_ref().unwrap().top_k;
        for dispatcher in [Dispatcher::AllToAll, Dispatcher::AllToAllSeq] {
            for sequence_parallel in [false, true] {
                // Ranks with shares of the tokens exchange those for columns first, which is another formula.
                if sequence_parallel && (tp == 1 || dispatcher == Dispatcher::AllToAllSeq) {
                    continue;
                }
                let case = Case { dispatcher, ..Case::of(tp * cp * dp, tp, cp, 1, ep) };
                let case = case.context(ContextParallel::Ulysses).single_precision();
                let case = if sequence_parallel { case.sequence_parallel() } else { case };
                let got = run(&c, &case, Routing::default(), std::slice::from_ref(&steps)).unwrap();
                let mut want = vec![(0, 0); case.world];
                for m in 0..each {
                    // By share of the data, rank that shares matrices, layer.
                    let counts = |i: usize, k: usize| {
                        let (of_cp, d) = (i % cp, i / cp);
                        let shares = if dispatcher == Dispatcher::AllToAll { (k, tp) } else { (0, 1) };
                        routed(&c, part_of(&steps[d + dp * m], length, (of_cp, cp), shares))
                    };
                    let all: Vec<Vec<Vec<Vec<usize>>>> =
                        (0..cp * dp).map(|i| (0..tp).map(|k| counts(i, k)).collect()).collect();
                    for layer in 0..c.layers {
                        let copies: Vec<Vec<Vec<usize>>> =
                            all.iter().map(|ks| ks.iter().map(|of| of[layer].clone()).collect()).collect();
                        let loads = Loads { copies: &copies, ep, hidden: c.hidden, e: 4 };
                        for rank in 0..case.world {
                            let (k, i) = (rank % tp, rank / tp);
                            let (of_ep, of_etp) = match dispatcher {
                                Dispatcher::AllToAll => loads.all_to_all(i, k),
                                _ => loads.all_to_all_seq(i, k),
                            };
                            want[rank] = (want[rank].0 + of_ep, want[rank].1 + of_etp);
                        }
                        for counts in copies.iter().flatten() {
                            let (few, all) = (*counts.iter().min().unwrap(), counts.iter().sum::<usize>());
                            least_even = least_even.min((few * counts.len()) as f64 / all as f64);
                        }
                    }
                }
                for (rank, (of_ep, of_etp)) in want.into_iter().enumerate() {
                    let what = format!("top {top_k}, rank {rank}: {case:?}");
                    assert_eq!(sent(&got, rank, RankGroup::Ep), of_ep, "to other experts: {what}");
                    assert_eq!(sent(&got, rank, RankGroup::ExpertTp), of_etp, "to the same experts: {what}");
                }
            }
        }
    }
    assert!(least_even < 0.5, "loads are uneven: {least_even}");
}
