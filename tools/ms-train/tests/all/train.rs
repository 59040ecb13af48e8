//! `ms-train` as a user runs it.

use assert_cmd::Command;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SEQ: usize = 32;

pub(super) fn ms_train() -> Command {
    let mut command = Command::cargo_bin("ms-train").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command
}

/// Flags of a tiny Qwen3-shaped model.
pub(super) fn model() -> Vec<&'static str> {
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
     --ffn-hidden-size 64 --qk-layernorm --normalization RMSNorm --swiglu --position-embedding-type rope \
     --disable-bias-linear --max-position-embeddings 32 --padded-vocab-size 64 --vocab-size 64 --seq-length 32 \
     --micro-batch-size 2 --global-batch-size 8 --lr 5e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.1 \
     --weight-decay 0.1 --clip-grad 1.0 --seed 7 --log-interval 1"
        .split_whitespace()
        .collect()
}

/// A file of ready samples: `iterations` global batches of 8 rows, each counting upwards from its own start.
pub(super) fn samples(dir: &Path, iterations: usize) -> PathBuf {
    let row = |r: usize| (0..=SEQ).map(move |t| ((r * 13 + t * (1 + r % 3)) % 64) as i32);
    let bytes: Vec<u8> = (0..iterations * 8).flat_map(row).flat_map(i32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::I32, vec![iterations, 8, SEQ + 1], &bytes).unwrap();
    let path = dir.join("data.safetensors");
    std::fs::write(&path, safetensors::serialize([("tokens", view)], None).unwrap()).unwrap();
    path
}

pub(super) fn metrics(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// The training lines without what the clock decides.
pub(super) fn curve(path: &Path) -> Vec<(u64, u64, u64)> {
    let bits = |v: &Value| v.as_f64().unwrap().to_bits();
    metrics(path)
        .iter()
        .filter(|m| m.get("grad norm").is_some())
        .map(|m| (m["iteration"].as_u64().unwrap(), bits(&m["lm loss"]), bits(&m["grad norm"])))
        .collect()
}

/// All bytes of the tensors of a checkpoint.
fn tensors(dir: &Path, iteration: u64) -> Vec<(String, Vec<u8>)> {
    let folder = dir.join(format!("iter_{iteration:07}"));
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let mut all = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "safetensors")) {
        let bytes = std::fs::read(file).unwrap();
        let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<String> = parsed.names().into_iter().map(ToString::to_string).collect();
        names.sort();
        let file = file.file_name().unwrap().to_string_lossy().into_owned();
        all.extend(
            names.into_iter().map(|n| (format!("{file}/{n}"), parsed.tensor(&n).unwrap().data().to_vec())),
        );
    }
    assert!(!all.is_empty());
    all
}

#[test]
fn losses_and_gradient_norms_follow_the_golden_runs() {
    for (case, flags) in [
        ("dense", "--lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine --train-iters 10 --weight-decay 0.1"),
        (
            "experts",
            "--lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine --train-iters 10 --weight-decay 0.1 --num-experts 4 \
             --moe-router-topk 2 --moe-aux-loss-coeff 0.02 --moe-router-load-balancing-type aux_loss",
        ),
        ("masked", "--lr 4e-3 --min-lr 0 --lr-decay-style linear --train-iters 10 --weight-decay 0"),
        ("llama-tiny", "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --train-iters 50 --weight-decay 0.1"),
        (
            "mixtral-tiny",
            "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --train-iters 50 --weight-decay 0.1 --num-experts 4 \
             --moe-router-topk 2 --moe-aux-loss-coeff 0.02 --moe-router-load-balancing-type aux_loss",
        ),
        ("llama-tiny-sft", "--lr 5e-4 --min-lr 0 --lr-decay-style linear --train-iters 30 --weight-decay 0"),
    ] {
        // The repository's own, and longer ones outside it.
        let Some(golden) = ms_testing::golden_or_shared(&format!("train/{case}")) else {
            assert!(case.contains("tiny"), "{case} is the repository's own");
            continue;
        };
        // In f32 on one and two ranks; in bf16 in all orders of sums, where what is rounded may go to other experts. The order
        // of aarch64 is the repository's own alone: elsewhere it takes several times as long.
        for (ranks, more) in [
            ("1", ""),
            ("2", ""),
            ("1", "--bf16 --arithmetic pair"),
            ("1", "--bf16 --arithmetic tile32"),
            ("1", "--bf16 --arithmetic bfdot"),
        ] {
            if more.contains("bfdot") && case.contains("tiny") {
                continue;
            }
            let (dir, narrow) = (tempfile::tempdir().unwrap(), !more.is_empty());
            let file = dir.path().join("metrics.jsonl");
            ms_train()
                .args(flags.split_whitespace().chain(more.split_whitespace()))
                .args(
                    "--lr-warmup-fraction 0.1 --global-batch-size 8 --micro-batch-size 2 --clip-grad 1.0"
                        .split(' '),
                )
                .args("--adam-beta1 0.9 --adam-beta2 0.95 --seq-length 64 --log-interval 50".split(' '))
                .args(["--make-vocab-size-divisible-by", "1"])
                .args(["--nproc-per-node", ranks])
                .arg("--load")
                .arg(&golden)
                .arg("--data-path")
                .arg(golden.join("data.safetensors"))
                .arg("--metrics-file")
                .arg(&file)
                .assert()
                .success();
            let want: Value =
                serde_json::from_slice(&std::fs::read(golden.join("golden.json")).unwrap()).unwrap();
            let want = want["steps_f64"].as_array().unwrap();
            let got = metrics(&file);
            assert_eq!(got.len(), want.len());
            for (g, w) in got.iter().zip(want) {
                let (loss, norm) = (g["lm loss"].as_f64().unwrap(), g["grad norm"].as_f64().unwrap());
                let (want_loss, want_norm) =
                    (w["lm_loss"].as_f64().unwrap(), w["grad_norm"].as_f64().unwrap());
                let at = format!("{case}, {ranks} ranks {more}, iteration {}", g["iteration"]);
                let close = if narrow { 2e-2 } else { 2e-5 };
                assert!((loss - want_loss).abs() <= close, "{at}: loss {loss}, want {want_loss}");
                if narrow {
                    continue;
                }
                assert!((norm / want_norm - 1.0).abs() <= 1e-4, "{at}: norm {norm}, want {want_norm}");
                assert_eq!(g["learning rate"].as_f64(), w["lr"].as_f64(), "{at}");
                if let Some(balance) = w["load_balancing_loss"].as_f64() {
                    let got = g["load_balancing_loss"].as_f64().unwrap();
                    assert!((got - balance).abs() <= 2e-5, "{at}: balance {got}, want {balance}");
                    assert_eq!(g["tokens per expert"], w["tokens_per_expert"], "{at}");
                }
            }
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 12);
    for precision in [&[][..], &["--bf16"]] {
        for ranks in ["1", "2"] {
            let at = |name: &str| dir.path().join(format!("{name}{ranks}{}", precision.len()));
            let run = |save: &Path, file: &Path, extra: &[&str]| {
                let mut command = ms_train();
                command.args(model()).args(precision).args([
                    "--nproc-per-node",
                    ranks,
                    "--train-iters",
                    "12",
                ]);
                command.arg("--data-path").arg(&data).arg("--save").arg(save).arg("--load").arg(save);
                command.arg("--metrics-file").arg(file).args(extra).assert().success()
            };
            let (whole, parts) = (at("whole"), at("parts"));
            let (whole_file, parts_file) = (at("whole.jsonl"), at("parts.jsonl"));
            run(&whole, &whole_file, &[]);
            let stopped = run(&parts, &parts_file, &["--exit-interval", "5", "--json"]);
            let summary: Value = serde_json::from_slice(&stopped.get_output().stdout).unwrap();
            assert_eq!((summary["iteration"].as_u64(), summary["stopped"].is_string()), (Some(5), true));
            run(&parts, &parts_file, &[]);
            assert_eq!(curve(&whole_file), curve(&parts_file));
            assert_eq!(tensors(&whole, 12), tensors(&parts, 12));
        }
    }
}

#[test]
fn prediction_modules_and_router_biases_train_and_go_on_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6);
    let more = "--bf16 --mtp-num-layers 2 --mtp-loss-scaling-factor 0.3 --num-experts 4 --moe-router-topk 2 \
                --moe-router-score-function sigmoid --moe-router-enable-expert-bias \
                --moe-router-load-balancing-type none --moe-router-bias-update-rate 1e-4";
    let run = |name: &str, ranks: &str, extra: &[&str]| {
        let (save, file) = (dir.path().join(name), dir.path().join(format!("{name}.jsonl")));
        let mut command = ms_train();
        command.args(model()).args(more.split_whitespace()).args(["--nproc-per-node", ranks]);
        command.args(["--train-iters", "6"]).args(extra);
        command.arg("--data-path").arg(&data).arg("--save").arg(&save).arg("--load").arg(&save);
        let out = command.arg("--metrics-file").arg(&file).assert().success();
        String::from_utf8_lossy(&out.get_output().stdout).into_owned()
            + &String::from_utf8_lossy(&out.get_output().stderr)
    };
    let log = run("whole", "2", &[]);
    assert!(log.contains(" mtp_1 loss: ") && log.contains(" mtp_2 loss: "), "{log}");
    run("parts", "2", &["--exit-interval", "4"]);
    run("parts", "2", &[]);
    let file = |name: &str| dir.path().join(format!("{name}.jsonl"));
    assert_eq!(curve(&file("whole")), curve(&file("parts")));
    assert_eq!(tensors(&dir.path().join("whole"), 6), tensors(&dir.path().join("parts"), 6));
    let (first, last) = (&metrics(&file("whole"))[0], &metrics(&file("whole"))[5]);
    for name in ["lm loss", "mtp_1 loss", "mtp_2 loss"] {
        assert!(last[name].as_f64().unwrap() < first[name].as_f64().unwrap(), "{name}");
    }
    // Steps far below what bf16 tells apart at 1 add up exactly: after six, every bias is a whole number of them.
    let whole = tensors(&dir.path().join("whole"), 6);
    let biases: Vec<f32> = whole
        .iter()
        .filter(|(name, _)| name.ends_with("router.expert_bias") && !name.contains("optimizer"))
        .flat_map(|(_, bytes)| ms_testing::floats(bytes))
        .collect();
    assert!(biases.len() >= 4 * 4 && biases.iter().any(|b| *b != 0.0), "{biases:?}");
    for bias in biases {
        let steps = bias / 1e-4;
        assert!((steps - steps.round()).abs() < 1e-3 && steps.abs() < 6.5, "{bias}");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 10);
    let run = |name: &str, ranks: &str, extra: &[&str]| {
        let (save, file) = (dir.path().join(name), dir.path().join(format!("{name}.jsonl")));
        let mut command = ms_train();
        command.args(model()).args(["--nproc-per-node", ranks, "--train-iters", "10"]).args(extra);
        command.arg("--data-path").arg(&data).arg("--save").arg(&save).arg("--load").arg(&save);
        command.arg("--metrics-file").arg(&file).assert().success();
        metrics(&file)
    };
    let straight = run("straight", "1", &[]);
    run("moved", "2", &["--exit-interval", "4"]);
    let moved = run("moved", "1", &[]);
    assert_eq!(straight.len(), moved.len());
    for (a, b) in straight.iter().zip(&moved) {
        let (a, b) = (a["lm loss"].as_f64().unwrap(), b["lm loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn recomputation_and_thread_count_do_not_change_a_bit() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4);
    let run = |name: &str, extra: &[&str]| {
        let file = dir.path().join(name);
        let mut command = ms_train();
        command.args(model()).args(["--bf16", "--train-iters", "4"]).args(extra);
        command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
        curve(&file)
    };
    let plain = run("plain", &["--threads", "1"]);
    assert_eq!(plain, run("threads", &["--threads", "3"]));
    let full = ["--recompute-granularity", "full", "--recompute-method"];
    assert_eq!(plain, run("block", &[&full[..], &["block", "--recompute-num-layers", "1"]].concat()));
    assert_eq!(plain, run("uniform", &[&full[..], &["uniform", "--recompute-num-layers", "2"]].concat()));
}

#[test]
fn a_killed_run_leaves_only_whole_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 400);
    let save = dir.path().join("save");
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ms-train"));
    command.args(model()).args(["--train-iters", "400", "--save-interval", "1", "--nproc-per-node", "2"]);
    command.arg("--data-path").arg(&data).arg("--save").arg(&save);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let tracker = save.join("latest_checkpointed_iteration.txt");
    let start = Instant::now();
    while !tracker.exists() {
        assert!(start.elapsed() < Duration::from_secs(600), "no checkpoint within ten minutes");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let latest: u64 = std::fs::read_to_string(&tracker).unwrap().trim().parse().unwrap();
    for entry in std::fs::read_dir(&save).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if let Some(number) = name.strip_prefix("iter_").and_then(|n| n.parse().ok()) {
            tensors(&save, number);
        }
    }
    let target = (latest + 1).to_string();
    let mut command = ms_train();
    command.args(model()).args(["--train-iters", "400", "--exit-interval", &target, "--nproc-per-node", "2"]);
    let done =
        command.arg("--data-path").arg(&data).arg("--load").arg(&save).arg("--json").assert().success();
    let summary: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(summary["iteration"].as_u64(), Some(latest + 1));
}

#[cfg(unix)]
#[test]
fn sigterm_saves_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4000);
    let (save, file) = (dir.path().join("save"), dir.path().join("m.jsonl"));
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ms-train"));
    command.args(model()).args(["--train-iters", "4000", "--exit-signal-handler"]);
    command.arg("--data-path").arg(&data).arg("--save").arg(&save).arg("--metrics-file").arg(&file);
    command.stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !std::fs::read_to_string(&file).is_ok_and(|t| t.lines().count() > 2) {
        assert!(start.elapsed() < Duration::from_secs(600), "no iteration within ten minutes");
        std::thread::yield_now();
    }
    let kill = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(kill.success());
    assert!(child.wait().unwrap().success());
    let saved: u64 = std::fs::read_to_string(save.join("latest_checkpointed_iteration.txt"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(saved > 2 && saved < 4000);
}

fn fails(args: &[&str], code: i32) -> String {
    let failed = ms_train().args(args).assert().code(code);
    String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
}

#[test]
fn wrong_flags_are_usage_errors_that_say_what_to_do() {
    let unknown = fails(&["--num-layer", "2"], 2);
    assert!(unknown.contains("--num-layer") && unknown.contains("--num-layers"), "{unknown}");
    let refused =
        fails(&[&model()[..], &["--train-iters", "1", "--tensor-model-parallel-size", "2"]].concat(), 2);
    assert!(refused.contains("--tensor-model-parallel-size"), "{refused}");
    let stage = fails(&[&model()[..], &["--train-iters", "1", "--stage", "dpo"]].concat(), 2);
    assert!(stage.contains("--stage") && stage.contains("dpo"), "{stage}");
    let missing = fails(&["--num-layers", "2"], 2);
    assert!(missing.contains("--seq-length is required"), "{missing}");
    let batch = fails(
        &[&model()[..], &["--train-iters", "1", "--data-path", "x.safetensors", "--nproc-per-node", "3"]]
            .concat(),
        2,
    );
    assert!(batch.contains("--global-batch-size") && batch.contains('8'), "{batch}");
}

#[test]
fn prediction_modules_that_a_checkpoint_lacks_are_a_usage_error() {
    let model = ms_testing::golden_model("gemma").unwrap();
    let flags =
        "--mtp-num-layers 1 --seq-length 8 --micro-batch-size 1 --train-iters 1 --lr 1e-3 --data-path none";
    let mut args = vec!["--load", model.to_str().unwrap()];
    args.extend(flags.split_whitespace());
    let text = fails(&args, 2);
    assert!(text.contains("--mtp-num-layers: expected at most 0, as the model has it, found 1"), "{text}");
}

#[test]
fn missing_and_damaged_data_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.safetensors");
    let args = |path: &Path| {
        let mut args: Vec<String> = model().iter().map(ToString::to_string).collect();
        args.extend(["--train-iters", "2", "--data-path"].map(String::from));
        args.push(path.display().to_string());
        args
    };
    let run = |path: &Path| {
        let failed = ms_train().args(args(path)).assert().code(1);
        String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
    };
    assert!(run(&path).contains("data.safetensors"));
    let whole = samples(dir.path(), 2);
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(run(&path).contains("data.safetensors"));
    let missing = run(&dir.path().join("corpus_text_document"));
    assert!(missing.contains("corpus_text_document"), "{missing}");
}

#[test]
fn a_loss_that_is_not_a_number_stops_the_run_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 20);
    let mut command = ms_train();
    command.args(model()).args([
        "--train-iters",
        "20",
        "--lr",
        "1e30",
        "--min-lr",
        "1e30",
        "--clip-grad",
        "0",
    ]);
    let failed = command.arg("--data-path").arg(&data).args(["--nproc-per-node", "2"]).assert().code(1);
    let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(message.contains("iteration") && message.contains("--lr"), "{message}");
}

#[test]
fn a_dry_run_plans_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let save = dir.path().join("save");
    let mut command = ms_train();
    command.args(model()).args(["--train-iters", "3", "--dry-run", "--json", "--nproc-per-node", "2"]);
    let done = command.arg("--data-path").arg("x.safetensors").arg("--save").arg(&save).assert().success();
    let plan: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let layer = 32 + 32 * 32 + 64 * 32 + 8 + 8 + 32 + 128 * 32 + 32 * 64;
    // Untied only with --untie-embeddings-and-output-weights.
    assert_eq!(plan["parameters"].as_u64(), Some(64 * 32 + 2 * layer + 32));
    assert_eq!(plan["micro_batches_per_iteration"].as_u64(), Some(2));
    assert!(!save.exists());
}

#[test]
fn a_dry_run_needs_no_data() {
    let mut command = ms_train();
    let done = command.args(model()).args(["--dry-run", "--json"]).assert().success();
    let plan: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(plan["iterations"].as_u64(), Some(0));
    assert!(plan["parameters"].as_u64() > Some(0));
}

#[test]
fn skip_train_trains_and_saves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 3);
    let save = dir.path().join("save");
    let mut command = ms_train();
    command.args(model()).args(["--train-iters", "3", "--skip-train", "--json"]);
    let done = command.arg("--data-path").arg(&data).arg("--save").arg(&save).assert().success();
    let summary: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!((summary["iteration"].as_u64(), summary["last_loss"].is_null()), (Some(0), true));
    assert!(!save.exists());
}

#[test]
fn a_profile_is_a_trace_with_operations_and_collectives() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4);
    let mut command = ms_train();
    command.args(model()).args(["--train-iters", "4", "--nproc-per-node", "2", "--json", "--profile"]);
    command.args(["--profile-step-start", "1", "--profile-step-end", "3", "--profile-save-path"]);
    let done = command.arg(dir.path().join("p")).arg("--data-path").arg(&data).assert().success();
    let summary: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let trace = Path::new(summary["trace"].as_str().unwrap());
    let events = ms_trace::chrome::read(trace).unwrap();
    // Host, process, and the time to the millisecond, as Ascend's profiler names its folders.
    let folder = trace.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap();
    let time = folder.strip_suffix("_ascend_pt").unwrap().rsplit('_').next().unwrap();
    assert!(time.len() == 17 && time.starts_with("20") && time.parse::<u64>().is_ok(), "{folder}");
    for rank in 0..2 {
        let count = |name: &str| events.iter().filter(|e| e.rank == rank && e.name == name).count();
        assert_eq!(count("iteration"), 2);
        assert_eq!(count("attention"), 2 * 2 * 2, "two iterations, two micro-batches, two layers");
        assert!(count("collective") > 0 && count("adamw") > 0, "{} {}", count("collective"), count("adamw"));
    }
}

#[test]
fn with_ckpt_format_torch_or_torch_dist_megatron_reads_the_same_weights_and_the_run_goes_on() {
    written_for_megatron("torch", ms_ckpt::Form::Mcore, &["mp_rank_00/model_optim_rng.pt"], "");
    let files = [".metadata", "metadata.json", "common.pt", "__0_0.distcp", "__0_1.distcp"];
    written_for_megatron("torch_dist", ms_ckpt::Form::TorchDist, &files, "");
    // Biases of routers stay float32 in a bf16 model: their steps would be lost.
    let experts = "--bf16 --num-experts 4 --moe-router-topk 2 --moe-router-score-function sigmoid \
                   --moe-router-enable-expert-bias --moe-router-load-balancing-type none \
                   --moe-router-bias-update-rate 1e-4";
    written_for_megatron("torch", ms_ckpt::Form::Mcore, &["mp_rank_00/model_optim_rng.pt"], experts);
    written_for_megatron("torch_dist", ms_ckpt::Form::TorchDist, &files, experts);
}

fn written_for_megatron(format: &str, kind: ms_ckpt::Form, files: &[&str], more: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (data, save) = (samples(dir.path(), 6), dir.path().join("save"));
    let run = |extra: &[&str]| {
        let mut command = ms_train();
        command.args(model()).args(more.split_whitespace());
        command.args(["--train-iters", "6", "--ckpt-format", format]).args(extra);
        command.arg("--data-path").arg(&data).arg("--save").arg(&save).arg("--load").arg(&save);
        command.assert().success();
    };
    run(&["--exit-interval", "3"]);
    // These files alone, as Megatron would find them.
    let megatron = dir.path().join("megatron");
    for file in files {
        let file = Path::new("iter_0000003").join(file);
        std::fs::create_dir_all(megatron.join(&file).parent().unwrap()).unwrap();
        std::fs::copy(save.join(&file), megatron.join(&file)).unwrap();
    }
    std::fs::write(megatron.join("latest_checkpointed_iteration.txt"), "3").unwrap();
    let (ours, theirs) = (ms_ckpt::open(&save).unwrap(), ms_ckpt::open(&megatron).unwrap());
    assert_eq!((ours.form(), theirs.form()), (ms_ckpt::Form::Sharded, kind));
    assert_eq!(theirs.iteration(), 3);
    for spec in ms_spec::params(ours.config()) {
        let whole = ms_core::Region::whole(&spec.shape);
        let read = |from: &ms_ckpt::Checkpoint| {
            let mut values = vec![0; 4 * spec.shape.numel()];
            from.read(&spec, &whole, ms_core::DType::F32, &mut values).unwrap();
            values
        };
        assert_eq!(read(&ours), read(&theirs), "{}", spec.name);
        let wide = !spec.trained() || !more.contains("--bf16");
        let dtype = if wide { ms_core::DType::F32 } else { ms_core::DType::Bf16 };
        assert_eq!(theirs.dtype(&spec.name).unwrap(), dtype, "{}", spec.name);
    }
    assert_eq!(ms_spec::params(ours.config()).iter().any(|s| !s.trained()), !more.is_empty());
    // Weights alone: the next iteration begins from every one of them.
    let finetuned = dir.path().join("finetuned");
    let mut command = ms_train();
    command.args(model()).args(more.split_whitespace()).args([
        "--train-iters",
        "1",
        "--lr",
        "0",
        "--finetune",
    ]);
    command.args(["--moe-router-bias-update-rate", "0", "--min-lr", "0"]);
    command.arg("--data-path").arg(&data).arg("--load").arg(&megatron).arg("--save").arg(&finetuned);
    command.assert().success();
    let again = ms_ckpt::open(&finetuned).unwrap();
    for spec in ms_spec::params(ours.config()).iter().filter(|s| !s.trained()) {
        let whole = ms_core::Region::whole(&spec.shape);
        let read = |from: &ms_ckpt::Checkpoint| {
            let mut values = vec![0; 4 * spec.shape.numel()];
            from.read(spec, &whole, ms_core::DType::F32, &mut values).unwrap();
            values
        };
        assert!(read(&ours).iter().any(|b| *b != 0));
        assert_eq!(read(&ours), read(&again), "{}", spec.name);
    }
    run(&[]);
    assert_eq!(ms_ckpt::open(&save).unwrap().iteration(), 6);
}
