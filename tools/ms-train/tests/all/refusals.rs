//! What `ms-train` refuses before the first iteration, and what it says about upstream defaults that it does not have.

use crate::tiny::{SEQ, counting, metrics, model, ms_train, refused, samples};
use ms_data::indexed::{IndexedWriter, TokenType};
use std::path::Path;

/// A pretraining set of `documents` documents of 40 tokens below `below`.
fn indexed(prefix: &Path, documents: usize, below: i32) {
    let mut writer = IndexedWriter::create(prefix, TokenType::U16).unwrap();
    for d in 0..documents {
        let tokens: Vec<i32> = (0..40).map(|t| (d as i32 * 7 + t) % below).collect();
        writer.sequence(&tokens).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
}

fn train(extra: &[&str]) -> assert_cmd::Command {
    let mut command = ms_train();
    command.args(model()).args(["--train-iters", "2", "--lr", "1e-3", "--eval-iters", "0"]).args(extra);
    command
}

#[test]
fn numbers_out_of_range_are_refused_by_the_flags_name() {
    for (flag, value) in [
        ("--clip-grad", "nan"),
        ("--clip-grad", "-1"),
        ("--adam-beta1", "1.5"),
        ("--adam-eps", "0"),
        ("--weight-decay", "-1"),
        ("--init-method-std", "-1"),
        ("--nproc-per-node", "0"),
        ("--pad-to-multiple-of", "0"),
        ("--seq-length", "0"),
        ("--global-batch-size", "0"),
        ("--lr", "inf"),
        ("--min-lr", "-1"),
        ("--lr-warmup-fraction", "1"),
        ("--rotary-base", "0"),
        ("--make-vocab-size-divisible-by", "999999999999"),
    ] {
        let message = refused(train(&["--dry-run"]).arg(format!("{flag}={value}")), 2);
        assert!(message.starts_with(&format!("ms-train: {flag}: expected ")), "{flag} {value}: {message}");
        assert!(message.contains("found "), "{flag} {value}: {message}");
    }
    let dir = tempfile::tempdir().unwrap();
    indexed(&dir.path().join("text"), 20, 64);
    let prefix = dir.path().join("text");
    for split in ["1,nan,1", "1,-2,1", "a", "0,0,0"] {
        let message = refused(train(&["--split", split, "--data-path"]).arg(&prefix), 2);
        assert!(message.contains("--split"), "{split}: {message}");
    }
}

#[test]
fn positions_fewer_than_tokens_of_a_row_are_refused() {
    let message =
        refused(train(&["--dry-run", "--max-position-embeddings", "8"]).args(["--seq-length", "16"]), 2);
    assert!(
        message.contains("--max-position-embeddings: expected at least --seq-length, which is 16"),
        "{message}"
    );
}

#[test]
fn defaults_of_upstreams_that_do_not_hold_are_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    let without = model().filter(|w| !w.contains("dropout") && *w != "0");
    let mut command = ms_train();
    command
        .args(without)
        .args(["--train-iters", "2", "--lr", "1e-3", "--seed", "7", "--data-path"])
        .arg(&data);
    let done = command.assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert_eq!(said.matches("dropout is 0 unless given (upstream's default: 0.1); pass --hidden-dropout 0 --attention-dropout 0 to say so").count(), 1, "{said}");
    let silent = train(&["--data-path"]).arg(&data).assert().success();
    assert!(!String::from_utf8_lossy(&silent.get_output().stderr).contains("dropout"));
    train(&["--attention-dropout", "0.1", "--data-path"]).arg(&data).assert().success();
}

#[test]
fn without_flags_it_is_said_what_a_run_needs() {
    let said = refused(&mut ms_train(), 2);
    assert!(said.starts_with("ms-train: expected flags, found none\n"), "{said}");
    assert!(said.contains("--seq-length") && said.ends_with("says what each means\n"), "{said}");
    // A run that is refused has no defaults worth a warning.
    let said = refused(ms_train().args(["--lr", "1e-3"]), 2);
    assert!(said.contains("--seq-length is required") && !said.contains("dropout"), "{said}");
}

#[test]
fn a_set_of_another_tokenizer_is_refused_before_the_first_iteration() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("text");
    indexed(&prefix, 20, 70);
    let message = refused(train(&["--data-path"]).arg(&prefix), 1);
    assert!(
        message.contains("text.bin") && message.contains("token 69") && message.contains("below 64"),
        "{message}"
    );
    // Ready samples are looked at row by row.
    let data = samples(dir.path(), 2, 4, |row, place| if (row, place) == (5, 3) { 64 } else { 1 });
    let message = refused(train(&["--data-path"]).arg(&data), 1);
    assert!(message.contains("sample 5 holds token 64") && message.contains("data.safetensors"), "{message}");
}

#[test]
fn a_manifest_that_names_another_tokenizer_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("text");
    indexed(&prefix, 20, 64);
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    let tokenizer = dir.path().join("tokenizer");
    ms_text::bpe::train(&options, ["some text to make a tokenizer of".to_owned()])
        .unwrap()
        .write(&tokenizer)
        .unwrap();
    let hash = ms_text::Tokenizer::load(&tokenizer).unwrap().content_hash().to_owned();
    let manifest = |hash: &str| {
        let mut manifest =
            ms_data::preprocess::Manifest::new("x".into(), serde_json::Map::new(), hash.to_owned());
        manifest.outputs =
            vec![ms_data::preprocess::OutputRecord::new(&prefix.with_extension("bin")).unwrap()];
        manifest.write(&dir.path().join("text.manifest.json")).unwrap();
    };
    let run = || {
        let mut command = train(&["--padded-vocab-size", "320", "--vocab-size", "280", "--data-path"]);
        command.arg(&prefix).arg("--tokenizer-name-or-path").arg(&tokenizer);
        command
    };
    manifest(&hash);
    run().assert().success();
    manifest("0123");
    let message = refused(&mut run(), 1);
    assert!(message.contains("another tokenizer") && message.contains("text.manifest.json"), "{message}");
}

#[test]
fn flags_about_documents_hold_for_ready_samples() {
    let dir = tempfile::tempdir().unwrap();
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    let tokenizer = dir.path().join("tokenizer");
    ms_text::bpe::train(&options, ["some text".to_owned()]).unwrap().write(&tokenizer).unwrap();
    let eod = ms_text::Tokenizer::load(&tokenizer).unwrap().eod().unwrap() as i32;
    let data =
        samples(dir.path(), 2, 4, |row, place| if place % 5 == 4 { eod } else { counting(row, place) });
    let loss = |flags: &[&str]| {
        let file = dir.path().join("metrics.jsonl");
        let mut command = train(&["--padded-vocab-size", "512", "--vocab-size", "512"]);
        command.arg("--tokenizer-name-or-path").arg(&tokenizer).arg("--data-path").arg(&data);
        command.args(flags).arg("--metrics-file").arg(&file).assert().success();
        metrics(&file)[0]["lm loss"].as_f64().unwrap()
    };
    let plain = loss(&[]);
    for flag in ["--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"] {
        assert_ne!(loss(&[flag]), plain, "{flag}");
    }
    // Newer upstreams rotate by positions that restart only where attention is cut.
    let at_head =
        |flags: &str| loss(&flags.split_whitespace().chain(["--upstream", "head"]).collect::<Vec<_>>());
    let (whole, cut) = (at_head(""), at_head("--reset-attention-mask"));
    assert_eq!(at_head("--reset-position-ids"), whole);
    let both = at_head("--reset-position-ids --reset-attention-mask");
    assert!((both - cut).abs() < 1e-6 && (cut - whole).abs() > 1e-4, "{both} {cut} {whole}");
    // Learned positions restart all the same.
    let learned = |flags: &str| at_head(&format!("{flags} --position-embedding-type learned_absolute"));
    let all = ["", "--reset-position-ids", "--reset-position-ids --reset-attention-mask"].map(learned);
    assert!(all[0] != all[1] && all[1] != all[2], "{all:?}");
    let message = refused(train(&["--reset-position-ids", "--data-path"]).arg(&data), 2);
    assert!(message.contains("need --tokenizer-name-or-path"), "{message}");
    assert_eq!(SEQ, 16);
}

#[test]
fn documents_of_the_golden_run_are_kept_apart() {
    // The repository's own, and a longer one outside it.
    let cases =
        ["documents", "llama-tiny-eod"].map(|case| ms_testing::golden_or_shared(&format!("train/{case}")));
    for golden in cases.into_iter().flatten() {
        let want: serde_json::Value =
            serde_json::from_slice(&std::fs::read(golden.join("golden.json")).unwrap()).unwrap();
        let config = &want["config"];
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("metrics.jsonl");
        let mut command = ms_train();
        command.args(
            "--reset-position-ids --reset-attention-mask --hidden-dropout 0 --attention-dropout 0".split(' '),
        );
        command.args(["--make-vocab-size-divisible-by", "1"]);
        for (flag, key) in [
            ("--global-batch-size", "gbs"),
            ("--micro-batch-size", "mbs"),
            ("--train-iters", "iters"),
            ("--weight-decay", "wd"),
            ("--lr", "lr"),
            ("--min-lr", "min_lr"),
            ("--lr-decay-style", "style"),
            ("--lr-warmup-fraction", "warm"),
            ("--clip-grad", "clip"),
            ("--seq-length", "seq"),
            ("--adam-beta1", "b1"),
            ("--adam-beta2", "b2"),
        ] {
            assert!(!config[key].is_null(), "{key}");
            command.args([flag, config[key].to_string().trim_matches('"')]);
        }
        command.arg("--load").arg(&golden).arg("--tokenizer-name-or-path").arg(&golden);
        command.arg("--data-path").arg(golden.join("data.safetensors")).arg("--metrics-file").arg(&file);
        command.assert().success();
        let got = metrics(&file);
        let want = want["steps_f64"].as_array().unwrap();
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            let off = got["lm loss"].as_f64().unwrap() - want["lm_loss"].as_f64().unwrap();
            assert!(off.abs() <= 2e-5, "iteration {}: loss off by {off:e}", got["iteration"]);
            let norm = got["grad norm"].as_f64().unwrap() / want["grad_norm"].as_f64().unwrap() - 1.0;
            assert!(norm.abs() <= 1e-4, "iteration {}: norm off by {norm:e}", got["iteration"]);
        }
    }
}

#[test]
fn ways_to_recompute_that_exclude_each_other_are_refused_by_the_flags_name() {
    let chunks = "--num-layers 4 --nproc-per-node 2 --pipeline-model-parallel-size 2 --global-batch-size 16 \
                  --num-layers-per-virtual-pipeline-stage 1";
    let full = "--recompute-granularity full --recompute-method";
    for (flags, flag) in [
        ("--recompute-granularity selective --recompute-num-layers 1".to_owned(), "--recompute-num-layers"),
        ("--recompute-granularity selective --recompute-norm".to_owned(), "--recompute-norm"),
        (
            "--recompute-activations --recompute-activation-function".to_owned(),
            "--recompute-activation-function",
        ),
        (format!("{full} uniform --recompute-activation-function"), "--recompute-activation-function"),
        ("--recompute-norm --recompute-norm-num-layers 2".to_owned(), "--recompute-norm-num-layers"),
        ("--recompute-in-bubble".to_owned(), "--recompute-in-bubble"),
        ("--recompute-in-advance --recompute-num-layers 1".to_owned(), "--recompute-in-advance"),
        (
            format!("{chunks} {full} uniform --recompute-num-layers 1 --recompute-in-advance"),
            "--recompute-in-advance",
        ),
        (format!("{chunks} {full} block --recompute-in-advance"), "--recompute-in-advance"),
        (format!("{chunks} --recompute-num-layers 1 --recompute-in-bubble"), "--recompute-in-bubble"),
        (
            "--upstream head --recompute-granularity selective --recompute-modules core_attn mlps".to_owned(),
            "--recompute-modules",
        ),
        (
            "--upstream head --recompute-granularity selective --recompute-modules mla_up_proj".to_owned(),
            "--recompute-modules",
        ),
        ("--recompute-mla-up-proj --mla-zero-memory".to_owned(), "--recompute-mla-up-proj"),
        ("--distribute-saved-activations".to_owned(), "--distribute-saved-activations"),
        (
            format!(
                "--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel {full} block --recompute-num-layers 1 --distribute-saved-activations"
            ),
            "--distribute-saved-activations",
        ),
        (
            format!("--upstream head {full} block --recompute-num-layers 1 --moe-layer-recompute"),
            "--moe-layer-recompute",
        ),
    ] {
        let message = refused(train(&["--dry-run"]).args(flags.split_whitespace()), 2);
        assert!(message.starts_with(&format!("ms-train: {flag}: ")), "{flags}: {message}");
    }
    for flags in [
        format!("{chunks} {full} block --recompute-num-layers 1 --recompute-in-advance"),
        format!("{chunks} --recompute-in-bubble --recompute-activation-function"),
        "--swap-attention --swap-modules input_layernorm,self_attention,pre_cross_attn_layernorm".to_owned(),
        "--upstream head --swap-attention --swap-modules input_norm,self_attention,post_attention_norm"
            .to_owned(),
        "--swap-attention --swap-modules mlp,linear_proj".to_owned(),
    ] {
        train(&["--dry-run"]).args(flags.split_whitespace()).assert().success();
    }
}

#[test]
fn pieces_that_do_not_fit_are_refused() {
    let (two, shared) = ("--nproc-per-node 2 --tensor-model-parallel-size 2", "--sequence-parallel");
    for (flags, said) in [
        (
            format!("{two} --use-ascend-coc --coc-parallel-num 3"),
            "--coc-parallel-num: expected 1, 2, 4 or 8, found 3",
        ),
        (
            format!("{two} {shared} --use-ascend-coc --coc-parallel-num 8 --micro-batch-size 1"),
            "--coc-parallel-num: expected a divisor of the 9 tokens",
        ),
        (format!("{two} --upstream head --use-ascend-mc2"), "--use-ascend-mc2: needs"),
        (format!("{two} --upstream head --use-mc2"), "--use-ascend-mc2: needs"),
        (
            format!("{two} {shared} --upstream head --use-ascend-mc2 --use-ascend-coc"),
            "--use-ascend-mc2: cannot be combined with",
        ),
    ] {
        let mut command = train(&["--dry-run", "--seq-length", "18", "--max-position-embeddings", "18"]);
        let message = refused(command.args(flags.split_whitespace()), 2);
        assert!(message.contains(said), "{flags}: {message}");
    }
    for flags in [
        format!("{two} {shared} --use-ascend-coc --coc-fused-kernel"),
        format!("{two} --use-ascend-coc --coc-parallel-num 4"),
        format!("{two} {shared} --upstream head --use-mc2"),
        format!("{two} --use-mc2"),
    ] {
        train(&["--dry-run"]).args(flags.split_whitespace()).assert().success();
    }
}

#[test]
fn what_upstream_cannot_share_either_is_refused_with_that_reason() {
    let ranks = "--nproc-per-node 4 --upstream head --context-parallel-size 4";
    for flags in ["--cp-comm-type p2p p2p", "--cp-comm-type all_gather"] {
        train(&["--dry-run"])
            .args(ranks.split_whitespace())
            .args(flags.split_whitespace())
            .assert()
            .success();
    }
    let flags = format!("{ranks} --cp-comm-type p2p all_gather");
    let message = refused(train(&["--dry-run"]).args(flags.split_whitespace()), 2);
    assert!(
        message.contains("found p2p and all_gather; a list is read one entry too far upstream"),
        "{message}"
    );
    let sample = ms_testing::golden("models/qwen3_next");
    let mut command = ms_train();
    command
        .args(["--dry-run", "--load"])
        .arg(&sample)
        .args("--nproc-per-node 4 --tp 4 --seq-length 16 --micro-batch-size 1".split_whitespace());
    let message = refused(&mut command, 2);
    assert!(
        message.contains("which Megatron-LM does not cut either and MindSpeed-LLM never shares"),
        "{message}"
    );
}

/// Megatron's own FSDP, as far as it shards the optimizer state or nothing.
#[test]
fn what_replicas_share_out_is_what_the_strategy_says() {
    const RUN: &str = "--nproc-per-node 2 --micro-batch-size 2 --upstream head --dry-run --json";
    const ALL: &str = "--use-custom-fsdp --use-distributed-optimizer";
    let state = |flags: &str| -> u64 {
        let mut command = train(&[]);
        command.args(RUN.split_whitespace()).args(flags.split_whitespace());
        let plan: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        plan["ranks"][0]["optimizer_bytes"].as_u64().unwrap()
    };
    let (whole, part) = (state(""), state("--use-distributed-optimizer"));
    assert_eq!(whole, 2 * part);
    assert_eq!(state(ALL), whole);
    assert_eq!(state(&format!("{ALL} --data-parallel-sharding-strategy no_shard")), whole);
    assert_eq!(state(&format!("{ALL} --data-parallel-sharding-strategy optim")), part);
    for (flags, said) in [
        ("--use-custom-fsdp".to_owned(), "--use-custom-fsdp: needs --use-distributed-optimizer"),
        (
            format!("{ALL} --data-parallel-sharding-strategy optim_grads"),
            "--data-parallel-sharding-strategy optim_grads: gradients and weights are not sharded",
        ),
        (
            format!("{ALL} --data-parallel-sharding-strategy optim_grads_params"),
            "--data-parallel-sharding-strategy optim_grads_params: gradients and weights are not sharded",
        ),
        (
            format!("{ALL} --num-distributed-optimizer-instances 2"),
            "--num-distributed-optimizer-instances: expected",
        ),
        (format!("{ALL} --overlap-param-gather --overlap-grad-reduce"), "--overlap-param-gather: needs"),
    ] {
        let mut command = train(&[]);
        let message = refused(command.args(RUN.split_whitespace()).args(flags.split_whitespace()), 2);
        assert!(message.contains(said), "{flags}: {message}");
    }
}

#[test]
fn a_folder_for_what_is_swapped_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    let mut command = train(&["--swap-attention", "--swap-dir", "/nowhere/at/all", "--data-path"]);
    let message = refused(command.arg(&data), 1);
    assert!(message.contains("swap file in /nowhere/at/all: "), "{message}");
}

#[test]
fn where_reports_cannot_be_written_the_flag_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let under = at("file/deeper/m.jsonl");
    for (flag, path, want) in [
        ("--metrics-file", dir.path().display().to_string(), "expected a file, found a folder".to_owned()),
        ("--metrics-file", "-".to_owned(), "expected the name of a file".to_owned()),
        ("--metrics-file", under.clone(), format!("expected a file, found a file at {}", at("file"))),
        ("--tensorboard-dir", "-".to_owned(), "expected the name of a folder".to_owned()),
        ("--profile-save-path", "-".to_owned(), "expected the name of a folder".to_owned()),
        ("--tensorboard-dir", at("file"), "expected a folder, found a file".to_owned()),
        ("--tensorboard-dir", under, format!("expected a folder, found a file at {}", at("file"))),
        ("--profile-save-path", at("file"), "expected a folder, found a file".to_owned()),
    ] {
        let said = refused(train(&["--profile", flag, &path, "--data-path"]).arg(&data), 2);
        assert!(said.contains(&format!("{flag} {path}: {want}")), "{said}");
    }
    let written = at("new/folder/m.jsonl");
    train(&["--metrics-file", &written, "--data-path"]).arg(&data).assert().success();
    assert_eq!(metrics(Path::new(&written)).len(), 2);
}

#[test]
fn files_of_upstreams_that_cannot_be_are_refused() {
    const MODEL: &str = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 64 --vocab-size 64 --seq-length 32 \
         --max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --dry-run";
    for (more, said) in [
        (
            "--num-experts 4 --moe-router-topk 2 --moe-grouped-gemm --ckpt-format torch",
            "--moe-grouped-gemm: upstream's grouped experts have no biases: needs --disable-bias-linear",
        ),
        (
            "--upstream head --enable-hf2mg-convert",
            "--enable-hf2mg-convert: needs --load, which names a Hugging Face folder",
        ),
        ("--keep-last 2", "--keep-last: needs --save"),
    ] {
        let mut command = ms_train();
        let message = refused(command.args(MODEL.split_whitespace()).args(more.split_whitespace()), 2);
        assert!(message.contains(said), "{more}: {message}");
    }
}
