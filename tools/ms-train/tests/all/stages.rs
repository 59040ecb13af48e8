//! Stages and chunks with unequal numbers of layers train the same model, and their checkpoints resume anywhere.

use crate::tiny::{counting, for_megatron, metrics, model, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

/// Tied embeddings and a prediction module after four layers, in float64.
const RUN: &str = "--num-layers 4 --micro-batch-size 1 --global-batch-size 8 --lr 1e-2 --fp64 --eval-iters 0 \
    --init-method-std 0.2 --mtp-num-layers 1";

/// Ways to share four layers out, and what each chunk holds, in the order in which a micro-batch passes them.
const WAYS: [(&str, &[usize]); 9] = [
    ("--pp 2 --decoder-first-pipeline-num-layers 1", &[1, 3]),
    ("--pp 3 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1", &[1, 2, 1]),
    ("--pp 3 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", &[1, 2, 1]),
    (
        "--pp 2 --num-virtual-stages-per-pipeline-rank 3 --account-for-embedding-in-pipeline-split \
         --account-for-loss-in-pipeline-split",
        &[0, 1, 1, 1, 1, 0],
    ),
    ("--pp 3 --standalone-embedding-stage", &[0, 2, 2]),
    ("--pp 2 --num-virtual-stages-per-pipeline-rank 2 --decoder-last-pipeline-num-layers 2", &[1, 1, 1, 1]),
    ("--pp 2 --pipeline-model-parallel-layout E|tt||t,tmL", &[0, 2, 0, 2]),
    ("--pp 2 --pipeline-num-transformer-layers [[0,1],[2,1]]", &[0, 2, 1, 1]),
    ("--pp 4 --pipeline-num-transformer-layers [[2],[0]*2,[2]]", &[2, 0, 0, 2]),
];

fn command(dir: &Path, flags: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.current_dir(dir).args(model()).args(RUN.split_whitespace()).args(flags.split_whitespace());
    command
}

fn ranks(way: &str) -> String {
    let pp = way.split_whitespace().nth(1).unwrap();
    format!("{way} --nproc-per-node {pp}")
}

fn losses(dir: &Path, data: &Path, flags: &str) -> Vec<f64> {
    let file = dir.join("m.jsonl");
    let _ = std::fs::remove_file(&file);
    let mut command = command(dir, flags);
    command
        .args(["--train-iters", "4", "--metrics-file", "m.jsonl", "--data-path"])
        .arg(data)
        .assert()
        .success();
    metrics(&file).iter().map(|row| row["lm loss"].as_f64().unwrap()).collect()
}

#[test]
fn however_layers_are_shared_out_the_model_trains_as_on_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    let straight = losses(dir.path(), &data, "");
    for (i, (way, _)) in WAYS.into_iter().enumerate() {
        let save = format!("save-{i}");
        let way = ranks(way);
        let begun =
            losses(dir.path(), &data, &format!("{way} --save {save} --exit-interval 2 --ckpt-format torch"));
        // On one rank.
        let rest = losses(dir.path(), &data, &format!("--load {save}"));
        assert_eq!((begun.len(), rest.len()), (2, 2), "{way}");
        for (got, want) in begun.iter().chain(&rest).zip(&straight) {
            assert!((got - want).abs() < 1e-10, "{way}: {got}, expected {want}");
        }
        // On the same stages, from Megatron's own files alone: weights, to which it has no optimizer in float64.
        let alone = format!("alone-{i}");
        let folders = for_megatron(&dir.path().join(&save), 2, &dir.path().join(&alone));
        assert_eq!(folders.len(), way.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap(), "{way}");
        let [own, theirs] = [&save, &alone].map(|load| {
            losses(dir.path(), &data, &format!("{way} --finetune --no-load-optim --load {load}"))
        });
        assert_eq!((own.len(), &own), (4, &theirs), "{way}: the same bits");
        assert!((own[0] - straight[0]).abs() > 1e-3, "{way}: trained weights");
    }
}

#[test]
fn a_plan_shows_the_layers_of_every_chunk_and_rehearses_them() {
    let dir = tempfile::tempdir().unwrap();
    for (way, want) in WAYS {
        let mut command = command(dir.path(), &format!("{} --dry-run --json", ranks(way)));
        let plan: Value = serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap();
        let ranks = plan["ranks"].as_array().unwrap();
        let mut slots = vec![Vec::new(); ranks.len()];
        let mut next = 0..;
        for (i, &layers) in want.iter().enumerate() {
            slots[i % ranks.len()].extend(next.by_ref().take(layers));
        }
        for (rank, slots) in ranks.iter().zip(slots) {
            let layers: Vec<u64> = serde_json::from_value(rank["layers"].clone()).unwrap();
            assert_eq!(layers, slots, "{way}: {rank}");
            assert!(rank["peak_bytes"].as_u64().unwrap() > 0, "{way}: {rank}");
        }
    }
}

#[test]
fn ways_that_exclude_each_other_are_refused_by_the_flags_name() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, flag, why) in [
        (
            "--pp 2 --num-layer-list 1,3 --decoder-first-pipeline-num-layers 1",
            "--decoder-first-pipeline-num-layers",
            "--num-layer-list",
        ),
        ("--pp 2 --num-layer-list 1,1,1,1", "--num-layer-list", "2 stages"),
        (
            "--pp 2 --schedules-method dualpipev --standalone-embedding-stage",
            "--standalone-embedding-stage",
            "dualpipev",
        ),
        (
            "--pp 2 --decoder-first-pipeline-num-layers 1 --account-for-loss-in-pipeline-split",
            "--decoder-first-pipeline-num-layers",
            "--account-for-loss",
        ),
        (
            "--pp 2 --noop-layers 1 --pipeline-model-parallel-layout Ett|ttmL",
            "--pipeline-model-parallel-layout",
            "--noop-layers",
        ),
        (
            "--pp 2 --pipeline-model-parallel-layout Ettm|ttL",
            "--pipeline-model-parallel-layout",
            "output layer",
        ),
        ("--pp 2 --account-for-loss-in-pipeline-split", "--account-for-loss-in-pipeline-split", "5 places"),
        ("--decoder-last-pipeline-num-layers 1", "--decoder-last-pipeline-num-layers", "several stages"),
    ] {
        let message = refused(&mut command(dir.path(), &format!("{flags} --dry-run")), 2);
        assert!(
            message.contains(&format!("ms-train: {flag}: ")) && message.contains(why),
            "{flags}: {message}"
        );
    }
}

#[test]
fn layers_share_keys_by_flags_on_stages_as_on_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 3, 4, counting);
    let run = |flags: &str| {
        let file = dir.path().join("metrics.jsonl");
        let _ = std::fs::remove_file(&file);
        let mut command = ms_train();
        command
            .args(model())
            .args("--num-layers 4 --micro-batch-size 1 --train-iters 3 --fp64 --eval-iters 0".split(' '));
        command
            .args("--lr 1e-2 --lr-decay-style constant --qk-layernorm".split(' '))
            .args(flags.split_whitespace());
        command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
        metrics(&file).iter().map(|row| row["lm loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let shared = "--cla-share-factor 2 --share-kvstates --spec mindspeed_llm.tasks.models.spec.hunyuan_spec layer_spec";
    let (alone, plain) = (run(shared), run(""));
    assert!(alone.iter().zip(&plain).all(|(a, b)| (a - b).abs() > 1e-6), "{alone:?} {plain:?}");
    for topology in ["--tp 2 --sequence-parallel", "--pp 2", "--pp 2 --num-layer-list 1,3", "--cp 2"] {
        let several = run(&format!("{shared} {topology} --nproc-per-node 2"));
        let apart = several.iter().zip(&alone).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-10, "{topology}: {apart}");
    }
    let said = refused(ms_train().args(model()).args(["--cla-share-factor", "2", "--dry-run"]), 2);
    assert!(said.contains("--cla-share-factor: needs --share-kvstates"), "{said}");
}

/// Stages that wait for what they hand each other train the same, and what upstream refuses of it is refused.
#[test]
fn stages_that_wait_for_each_other_have_the_same_losses() {
    const WAIT: &str = "--no-overlap-p2p-communication";
    const ENDS: &str = "--overlap-p2p-communication-warmup-flush";
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    let chunks = "--pp 2 --num-layers-per-virtual-pipeline-stage 1";
    for way in ["--pp 2", "--pp 4", "--pp 2 --schedules-method zero-bubble", chunks] {
        let flags = ranks(way);
        let waiting = losses(dir.path(), &data, &format!("{flags} {WAIT}"));
        assert_eq!(losses(dir.path(), &data, &flags), waiting, "{way}");
    }
    let head = format!("{chunks} --nproc-per-node 2 --dry-run --upstream head {ENDS}");
    command(dir.path(), &head).assert().success();
    let counted = "--pp 2 --num-virtual-stages-per-pipeline-rank 2 --nproc-per-node 2 --dry-run";
    for (flags, said) in [
        (format!("{counted} {WAIT}"), "--no-overlap-p2p-communication: expected more than two stages"),
        (
            format!("{head} {WAIT}"),
            "--overlap-p2p-communication-warmup-flush: expected stages of several chunks",
        ),
        (
            format!("--pp 2 --nproc-per-node 2 --dry-run --upstream head {ENDS}"),
            "--overlap-p2p-communication-warmup-flush: expected stages of several chunks",
        ),
    ] {
        let message = refused(&mut command(dir.path(), &flags), 2);
        assert!(message.contains(said), "{flags}: {message}");
    }
}
