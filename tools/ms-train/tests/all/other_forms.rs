//! A run resumes from the forms that Megatron writes, on another grid of ranks, as if it had not been interrupted.

use crate::tiny;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use ms_ckpt::layout::mcore::{FileGrid, Spelling};
use ms_ckpt::{ArgsForm, Form, Plan, Run, RunOptions, open};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

const SEQ: usize = 32;

fn samples(dir: &Path, iterations: usize) -> PathBuf {
    let row = |r: usize| (0..=SEQ).map(move |t| ((r * 13 + t * (1 + r % 3)) % 64) as i32);
    let bytes: Vec<u8> = (0..iterations * 8).flat_map(row).flat_map(i32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::I32, vec![iterations, 8, SEQ + 1], &bytes).unwrap();
    let path = dir.join("data.safetensors");
    std::fs::write(&path, safetensors::serialize([("tokens", view)], None).unwrap()).unwrap();
    path
}

/// Trains; the loss and gradient norm of each iteration.
fn train(data: &Path, metrics: &Path, extra: &[&str]) -> Vec<(u64, f64, f64)> {
    let model = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
         --ffn-hidden-size 64 --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear \
         --untie-embeddings-and-output-weights --max-position-embeddings 32 --padded-vocab-size 64 --vocab-size 64 \
         --seq-length 32 --micro-batch-size 2 --global-batch-size 8 --lr 5e-3 --min-lr 1e-4 --lr-decay-style cosine \
         --lr-warmup-iters 2 --weight-decay 0.1 --clip-grad 1.0 --seed 7 --log-interval 1 --train-iters 6";
    let mut command = Command::cargo_bin("ms-train").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command.args(model.split_whitespace()).args(extra);
    command.arg("--data-path").arg(data).arg("--metrics-file").arg(metrics).assert().success();
    let text = std::fs::read_to_string(metrics).unwrap();
    let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let number = |m: &Value, key: &str| m[key].as_f64().unwrap();
    lines
        .filter(|m| m.get("grad norm").is_some())
        .map(|m| (m["iteration"].as_u64().unwrap(), number(&m, "lm loss"), number(&m, "grad norm")))
        .collect()
}

#[test]
fn a_run_goes_on_from_megatrons_files_on_another_grid_as_if_uninterrupted() {
    for precision in ["--bf16", "--weight-decay-incr-style=constant"] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        let data = samples(dir.path(), 6);
        let whole = train(&data, &path("whole.jsonl"), &[precision]);
        assert_eq!(whole.len(), 6);
        let first =
            train(&data, &path("first.jsonl"), &[precision, "--save", &text("run"), "--exit-interval", "3"]);
        assert_eq!(first, whole[..3]);

        let source = open(&path("run")).unwrap();
        let dtype = |name: &str| source.dtype(name);
        let c = source.config();
        let sizes = ms_core::GridSizes { tp: 2, ..Default::default() };
        let stages = ms_spec::Stages { pp: 2, ..Default::default() };
        let file_grid = FileGrid::new(&sizes, stages, false).unwrap();
        for (name, kind, distributed) in
            [("flat", Form::Mcore, true), ("each", Form::Mcore, false), ("dist", Form::TorchDist, true)]
        {
            let mut run = Run::of(&source);
            assert!(run.optimizer);
            run.args.insert("use_distributed_optimizer".into(), distributed.into());
            let args = ArgsForm::Namespace;
            let plan = match kind {
                Form::TorchDist => Plan::torch_dist(
                    c,
                    &file_grid,
                    ms_ckpt::layout::torch_dist::Modules::default(),
                    args,
                    &dtype,
                    &run,
                ),
                _ => Plan::mcore(c, &file_grid, Spelling::default(), args, &dtype, &run),
            };
            let options = RunOptions { threads: 1, sync: false, replace: false };
            plan.unwrap().run(&source, &path(name), &options, &|_| ()).unwrap();
            assert_eq!(open(&path(name)).unwrap().form(), kind);
            for ranks in ["1", "2"] {
                let metrics = path(&format!("{name}{ranks}.jsonl"));
                let load = text(name);
                let rest = train(&data, &metrics, &[precision, "--load", &load, "--nproc-per-node", ranks]);
                assert_eq!(rest.iter().map(|r| r.0).collect::<Vec<_>>(), [4, 5, 6], "{name} {ranks}");
                for (got, want) in rest.iter().zip(&whole[3..]) {
                    // One rank repeats the bits; two sum in another order.
                    let most = if ranks == "1" { 0.0 } else { 5e-3 };
                    assert!((got.1 - want.1).abs() <= most * want.1, "{name} {ranks}: {got:?} {want:?}");
                    assert!(
                        (got.2 - want.2).abs() <= 10.0 * most * want.2,
                        "{name} {ranks}: {got:?} {want:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn megatrons_files_of_any_topology_go_on_with_the_optimizer_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let data = samples(dir.path(), 6);
    let whole = train(&data, &path("whole.jsonl"), &[]);
    let two = ["mp_rank_00", "mp_rank_01"].as_slice();
    let pipelined = ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"].as_slice();
    for (i, (topology, folders)) in [
        ("", &["mp_rank_00"][..]),
        ("--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel", two),
        ("--nproc-per-node 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", pipelined),
        (
            "--nproc-per-node 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer",
            pipelined,
        ),
        // Four ranks share two key/value heads, for which Megatron has no cut.
        ("--nproc-per-node 4 --tensor-model-parallel-size 4", &["mp_rank_00"][..]),
    ]
    .into_iter()
    .enumerate()
    {
        let (save, alone) = (text(&format!("save-{i}")), path(&format!("alone-{i}")));
        let more = ["--save", &save, "--exit-interval", "3", "--ckpt-format", "torch"];
        let flags: Vec<&str> = topology.split_whitespace().chain(more).collect();
        let begun = train(&data, &path(&format!("begun-{i}.jsonl")), &flags);
        assert_eq!(begun.len(), 3, "{topology}");
        assert_eq!(tiny::for_megatron(&path(&format!("save-{i}")), 3, &alone), folders, "{topology}");
        let flat = alone.join("iter_0000003").join(folders[0]).join("distrib_optim.pt");
        assert_eq!(flat.is_file(), topology.contains("distributed-optimizer"), "{topology}");
        let source = open(&alone).unwrap();
        assert_eq!((source.form(), source.iteration(), source.has_optimizer()), (Form::Mcore, 3, true));
        for ranks in ["1", "2"] {
            let metrics = path(&format!("rest-{i}-{ranks}.jsonl"));
            let load = alone.to_str().unwrap();
            let rest = train(&data, &metrics, &["--load", load, "--nproc-per-node", ranks]);
            assert_eq!(rest.iter().map(|r| r.0).collect::<Vec<_>>(), [4, 5, 6], "{topology}, {ranks}");
            for (got, want) in begun.iter().chain(&rest).zip(&whole) {
                assert!((got.1 - want.1).abs() < 2e-5, "{topology}, {ranks}: {got:?} {want:?}");
                assert!((got.2 / want.2 - 1.0).abs() < 1e-4, "{topology}, {ranks}: {got:?} {want:?}");
            }
        }
    }
}

#[test]
fn narrow_state_goes_on_with_the_same_bits_and_on_another_topology_nearly() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let data = samples(dir.path(), 6);
    for (i, types) in ["fp16 fp16 fp16", "fp32 fp8 fp8", "fp16 fp8 fp32"].into_iter().enumerate() {
        let [main, first, second] = types.split(' ').collect::<Vec<_>>()[..] else { panic!("three types") };
        let flags = format!(
            "--upstream head --bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16 \
             --main-params-dtype {main} --exp-avg-dtype {first} --exp-avg-sq-dtype {second}"
        );
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let run = |name: &str, more: &[&str]| train(&data, &path(name), &[&flags, more].concat());
        let pairs = ["--nproc-per-node", "2"];
        for topology in [&[][..], &pairs] {
            let save = text(&format!("run-{i}-{}", topology.len()));
            let whole = run("whole", topology);
            let begun = run("first", &[topology, &["--save", &save, "--exit-interval", "3"]].concat());
            assert_eq!(begun, whole[..3], "{types}");
            assert_eq!(run("rest", &[topology, &["--load", &save]].concat()), whole[3..], "{types}");
            for other in
                [&["--nproc-per-node", "2", "--tp", "2"][..], &["--nproc-per-node", "2", "--pp", "2"]]
            {
                let rest = run("other", &[other, &["--load", &save]].concat());
                for ((n, loss, _), (m, want, _)) in rest.iter().zip(&whole[3..]) {
                    assert!(
                        n == m && (loss - want).abs() < 2e-2,
                        "{types} {other:?}: {loss}, expected {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn narrow_state_is_planned_and_what_upstream_refuses_is_named() {
    const PLAN: &str = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 64 --vocab-size 64 \
         --seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --dry-run --json --upstream head";
    let plan = |more: &str| {
        let mut command = Command::cargo_bin("ms-train").unwrap();
        let done = command
            .env_remove("MS_ISA")
            .args(PLAN.split_whitespace())
            .args(more.split_whitespace())
            .output()
            .unwrap();
        let rank = || serde_json::from_slice::<Value>(&done.stdout).unwrap()["ranks"][0].clone();
        if done.status.success() { Ok(rank()) } else { Err(String::from_utf8(done.stderr.clone()).unwrap()) }
    };
    let aware = "--use-distributed-optimizer --use-precision-aware-optimizer";
    for (more, master_and_moments, grads) in [
        ("--bf16", 12, 4),
        ("--bf16 --main-grads-dtype bf16", 12, 2),
        ("--bf16 --main-params-dtype fp16 --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16", 5, 4),
        ("--fp16 --exp-avg-dtype fp16 --exp-avg-sq-dtype fp8", 7, 4),
        ("--exp-avg-dtype fp16 --exp-avg-sq-dtype fp8 --main-params-dtype fp16", 3, 4),
    ] {
        let rank = plan(&format!("{aware} {more}")).unwrap();
        let number = |key: &str| rank[key].as_u64().unwrap();
        let want = [number("parameters") * master_and_moments, number("parameters") * grads];
        assert_eq!([number("optimizer_bytes"), number("grad_bytes")], want, "{more}");
    }
    for (more, said) in [
        ("--exp-avg-dtype fp16", "--exp-avg-dtype: needs --use-precision-aware-optimizer"),
        (
            "--use-precision-aware-optimizer",
            "--use-precision-aware-optimizer: needs --use-distributed-optimizer",
        ),
        (&format!("{aware} --optimizer sgd"), "--use-precision-aware-optimizer: expected --optimizer adam"),
        (&format!("{aware} --main-grads-dtype bf16"), "--main-grads-dtype bf16: needs --bf16"),
        (
            &format!("{aware} --bf16 --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32"),
            "--main-grads-dtype: expected fp32 beside --accumulate-allreduce-grads-in-fp32",
        ),
        (
            &format!("{aware} --bf16 --reuse-fp32-param"),
            "--use-precision-aware-optimizer: cannot be combined with --reuse-fp32-param",
        ),
    ] {
        let message = plan(more).unwrap_err();
        assert!(message.contains(said), "{more}: {message}");
    }
}

/// Whether a file has these bytes anywhere.
fn has(file: &Path, text: &str) -> bool {
    std::fs::read(file).unwrap().windows(text.len()).any(|bytes| bytes == text.as_bytes())
}

#[test]
fn megatrons_files_are_named_as_upstreams_modules_of_the_flags_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let data = samples(dir.path(), 3);
    let halves = "--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel --ckpt-format torch";
    let qkv = "self_attention.linear_qkv.layer_norm_weight";
    for (name, flags, there, absent) in [
        ("each", "", vec!["mlp.experts.local_experts.1.linear_fc1.weight"], vec!["mlp.experts.weight1", qkv]),
        ("grouped", "--moe-grouped-gemm", vec!["mlp.experts.weight1"], vec!["local_experts"]),
        // Whole experts on the ranks that share the other matrices, which one file each holds.
        (
            "spread",
            "--moe-grouped-gemm --moe-tp-extend-ep --moe-token-dispatcher-type alltoall",
            vec!["mlp.experts.weight1"],
            vec!["local_experts"],
        ),
        (
            "engine",
            "--upstream head --moe-grouped-gemm",
            vec![qkv, "linear_fc1.weight1"],
            vec!["experts.weight1"],
        ),
        ("local", "--upstream head --transformer-impl local", vec!["local_experts"], vec![qkv]),
        ("dense", "--upstream head", vec![qkv, "linear_fc1.layer_norm_weight"], vec!["pre_mlp_layernorm"]),
    ] {
        let (save, alone) = (path(name), path(&format!("{name}-alone")));
        let save = save.to_str().unwrap();
        let experts = if name == "dense" { "" } else { "--num-experts 4 --moe-router-topk 2" };
        let flags: Vec<&str> = [experts, halves, flags]
            .into_iter()
            .flat_map(str::split_whitespace)
            .chain(["--save", save, "--exit-interval", "3"])
            .collect();
        let begun = train(&data, &path(&format!("{name}.jsonl")), &flags);
        assert_eq!(begun.len(), 3, "{name}");
        let folders = tiny::for_megatron(&path(name), 3, &alone);
        assert_eq!(folders.len(), 2, "{name}: {folders:?}");
        for folder in &folders {
            let file = alone.join("iter_0000003").join(folder).join("model_optim_rng.pt");
            for text in &there {
                assert!(has(&file, text), "{name}, {folder}: {text}");
            }
            for text in &absent {
                assert!(!has(&file, text), "{name}, {folder}: {text}");
            }
        }
        // What they are called, they are read.
        assert_eq!(open(&alone).unwrap().form(), Form::Mcore);
    }
}
