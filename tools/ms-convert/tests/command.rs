//! The program as a user runs it.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

mod made;
mod upstream;

use std::path::Path;

use assert_cmd::Command;
use made::{ms_convert, text};
use ms_testing::tree;

fn stderr(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

fn stdout(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
}

/// A model of our own making, so that these tests need nothing from outside.
fn make_model(dir: &Path, family: &str, tied: bool) {
    let json = serde_json::json!({
        "model_type": family, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 50,
        "tie_word_embeddings": tied
    });
    made::model(dir, &json);
    std::fs::write(dir.join("tokenizer.json"), b"{}").unwrap();
}

#[test]
fn a_folder_goes_to_megatron_and_back_byte_for_byte() {
    for (family, tied) in [("llama", false), ("qwen2", true), ("qwen3", false)] {
        let dir = tempfile::tempdir().unwrap();
        let (hf, mcore, again) = (dir.path().join("hf"), dir.path().join("mcore"), dir.path().join("again"));
        make_model(&hf, family, tied);
        ms_convert(&[
            "hf",
            "mcore",
            "--load",
            text(&hf),
            "--save",
            text(&mcore),
            "--tp",
            "2",
            "--pp",
            "2",
            "--vpp",
            "1",
        ])
        .success();
        assert!(mcore.join("iter_0000001/mp_rank_01_001/model_optim_rng.pt").is_file());
        ms_convert(&["mcore", "hf", "--load", text(&mcore), "--save", text(&again)]).success();
        assert!(tree(&hf) == tree(&again), "{family}: {:?} {:?}", tree(&hf).keys(), tree(&again).keys());
    }
}

#[test]
fn resharding_in_steps_equals_resharding_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"), "qwen3", false);
    let convert = |from: &str, to: &str, load: &str, save: &str, more: &[&str]| {
        let (load, save) = (path(load), path(save));
        let mut args =
            vec![from, to, "--load", text(&load), "--save", text(&save), "--padded-vocab-size", "52"];
        args.extend_from_slice(more);
        ms_convert(&args).success();
    };
    convert("hf", "mcore", "hf", "a", &["--tp", "2", "--pp", "4"]);
    convert("mcore", "mcore", "a", "b", &["--format", "safetensors", "--pp", "2", "--num-layer-list", "1,3"]);
    convert("mcore", "mcore", "b", "c", &["--tp", "1", "--pp", "2", "--noop-layers", "0,5"]);
    convert("hf", "mcore", "hf", "direct", &["--tp", "1", "--pp", "2", "--noop-layers", "0,5"]);
    assert!(tree(&path("c")) == tree(&path("direct")));
}

#[test]
fn a_tokenizer_folder_adds_its_files_to_a_model_made_here() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, mcore, out, tokenizer) = (
        dir.path().join("hf"),
        dir.path().join("mcore"),
        dir.path().join("out"),
        dir.path().join("tokenizer"),
    );
    make_model(&hf, "llama", false);
    std::fs::create_dir(&tokenizer).unwrap();
    std::fs::write(tokenizer.join("tokenizer.json"), b"{\"it\": 1}").unwrap();
    ms_convert(&["hf", "mcore", "--load", text(&hf), "--save", text(&mcore)]).success();
    for beside in ["config.json", "tokenizer.json", "hf_layout.json"] {
        std::fs::remove_file(mcore.join(beside)).unwrap();
    }
    let args =
        ["mcore", "hf", "--load", text(&mcore), "--save", text(&out), "--hf-cfg-dir", text(&tokenizer)];
    ms_convert(&args).success();
    assert_eq!(std::fs::read(out.join("tokenizer.json")).unwrap(), b"{\"it\": 1}");
    assert_eq!(
        std::fs::read(out.join("model.safetensors")).unwrap(),
        std::fs::read(hf.join("model.safetensors")).unwrap()
    );
    assert_eq!(
        std::fs::read(out.join("config.json")).unwrap(),
        std::fs::read(hf.join("config.json")).unwrap()
    );
}

#[test]
fn print_args_gives_upstreams_names_and_refuses_what_upstream_refuses() {
    let line =
        ["--print-args", "--load-model-type", "hf", "--target-tensor-parallel-size", "8", "--w-pack", "True"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&ms_convert(&line).success())).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"load_model_type": "hf", "target_tensor_parallel_size": 8, "w_pack": true})
    );
    assert!(stderr(&ms_convert(&["--print-args", "--save-dir", "x", "\r"]).code(2)).contains("blank word"));
    ms_convert(&["--print-args", "--upstream", "head", "--params-dtype", "bf16"]).code(2);
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    make_model(&hf, "llama", false);
    let args = ["hf", "mcore", "--load", text(&hf), "--save", text(&out), "--tp", "2", "--dry-run", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&ms_convert(&args).success())).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
    assert_eq!(json["files"][0]["tensors"][0]["parameter"], "embedding.word_embeddings.weight");
    assert_eq!(json["files"][0]["tensors"][0]["shape"], serde_json::json!([25, 16]));
    assert!(!out.exists());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn inspect_lists_tensors_and_counts_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let hf = dir.path().join("hf");
    make_model(&hf, "llama", false);
    let shown = stdout(&ms_convert(&["inspect", text(&hf)]).success());
    assert!(shown.contains("model.embed_tokens.weight") && shown.contains("50 x 16"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&ms_convert(&["inspect", text(&hf), "--json"]).success())).unwrap();
    // 2 x 50 x 16 outside the layers, 16 in the last norm; per layer 32 norms, 3 x 16 x 24 and 16 x (32 + 16).
    assert_eq!(json["parameters"]["model"], 2 * 800 + 16 + 4 * (32 + 1152 + 768));
    assert_eq!(json["kind"], "hf");
}

#[test]
fn mistakes_are_named_with_a_way_out_and_the_right_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    make_model(&hf, "llama", false);
    let (hf, out) = (text(&hf), text(&out));
    let case = |args: &[&str], code: i32, want: &str| {
        let assert = ms_convert(args).code(code);
        let got = stderr(&assert);
        assert!(got.contains(want), "{args:?}: {got}");
    };
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--tp", "4"],
        2,
        "--tp: key/value heads: 2 is not divisible by tp 4; 2 divides it",
    );
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--pp", "2", "--num-layer-list", "1,2"],
        2,
        "--num-layer-list: layer list [1, 2]: expected 2 numbers with the sum 4",
    );
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--pp", "2", "--noop-layers", "9"],
        2,
        "--noop-layers: expected empty slots up to",
    );
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--padded-vocab-size", "10"],
        2,
        "--padded-vocab-size 10 is smaller",
    );
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--pp", "3"],
        2,
        "4 layers are not divisible by pipeline size 3; 2 and 4 divide it",
    );
    case(&["mcore", "hf", "--load", hf, "--save", out], 1, "is a Hugging Face folder\nhint: ms-convert hf");
    case(&["hf", "mcore", "--load", "nowhere", "--save", out], 1, "ms-convert: nowhere: no such folder");
    case(&["hf", "zarr", "--load", hf, "--save", out], 2, "unknown form 'zarr'");
    case(&["hf", "mcore", "--save", out], 2, "--load is missing");
    case(&["hf", "mcore", "--load", hf, "--save", out, "--tpp", "2"], 2, "unknown flag --tpp");
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--ep", "2"],
        2,
        "--ep: a model without experts cannot be shared by ep 2: there is nothing to distribute",
    );
    case(
        &["hf", "mcore", "--load", hf, "--save", out, "--tp", "2", "--moe-tp-extend-ep"],
        2,
        "--moe-tp-extend-ep with --tp 2 and --ep 1: a model without experts cannot be shared by ep 2: ",
    );
    let full = dir.path().join("full");
    make_model(&full, "llama", false);
    case(
        &["hf", "mcore", "--load", hf, "--save", text(&full)],
        1,
        "exists already\nhint: --force replaces it",
    );
    assert!(!Path::new(out).exists());
    let plain = dir.path().join("plain");
    let warned = ms_convert(&["hf", "hf", "--load", hf, "--save", text(&plain), "--tp", "2"]).success();
    assert!(stderr(&warned).contains("--tp has no effect: a Hugging Face folder is not cut"));
}

#[test]
fn a_full_output_is_replaced_only_by_force_and_only_if_it_is_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    make_model(&hf, "llama", false);
    let args = ["hf", "mcore", "--load", text(&hf), "--save", text(&out), "--force"];
    ms_convert(&args).success();
    ms_convert(&args).success();
    std::fs::remove_dir_all(&out).unwrap();
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("letters.txt"), b"dear").unwrap();
    assert!(stderr(&ms_convert(&args).code(1)).contains("is not a checkpoint and is not replaced"));
    assert!(out.join("letters.txt").exists());
}

#[test]
fn what_is_read_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, other, ckpt) = (dir.path().join("hf"), dir.path().join("other"), dir.path().join("ckpt"));
    make_model(&hf, "llama", false);
    make_model(&other, "llama", false);
    let before = tree(dir.path());
    let same = hf.join("../hf");
    let refused = |args: &[&str], want: &str| {
        let got = stderr(&ms_convert(args).code(2));
        assert!(got.contains(want), "{got}");
    };
    refused(&["hf", "mcore", "--load", text(&hf), "--save", text(&same), "--force"], "would replace --load");
    refused(&["hf", "mcore", "--load", text(&hf), "--save", text(&hf)], "would replace --load");
    assert!(tree(dir.path()) == before);
    // Nor is a folder around it.
    ms_convert(&["hf", "mcore", "--load", text(&hf), "--save", text(&ckpt)]).success();
    let iteration = ckpt.join("iter_0000001");
    let args = ["mcore", "mcore", "--load", text(&iteration), "--save", text(&ckpt), "--force"];
    refused(&args, "would replace --load");
    // Nor does an output become a part of an iteration, or take the place of a folder that is followed.
    let inside = iteration.join("mp_rank_01");
    refused(&["mcore", "hf", "--load", text(&ckpt), "--save", text(&inside)], "iter_0000001, which is read");
    assert!(!inside.exists());
    let args = [
        "mcore",
        "hf",
        "--load",
        text(&ckpt),
        "--hf-cfg-dir",
        text(&other),
        "--save",
        text(&other),
        "--force",
    ];
    refused(&args, "would replace --hf-cfg-dir");
    // A folder inside is well apart.
    ms_convert(&["hf", "mcore", "--load", text(&hf), "--save", text(&hf.join("mcore"))]).success();
}

#[test]
fn a_distributed_checkpoint_is_converted_inspected_compared_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let sample = ms_testing::workspace_root().join("tests/golden/torch_dist/dense");
    ms_convert(&["torch_dist", "hf", "--load", text(&sample), "--save", text(&path("hf"))]).success();
    ms_convert(&[
        "hf",
        "torch_dist",
        "--load",
        text(&path("hf")),
        "--save",
        text(&path("plain")),
        "--tp",
        "2",
    ])
    .success();
    ms_convert(&["torch_dist", "hf", "--load", text(&path("plain")), "--save", text(&path("back"))])
        .success();
    for file in ["model.safetensors", "config.json"] {
        assert!(
            std::fs::read(path("hf").join(file)).unwrap() == std::fs::read(path("back").join(file)).unwrap()
        );
    }
    let said = |args: &[&str], code| stdout(&ms_convert(args).code(code));
    assert!(
        said(&["diff", text(&path("hf")), text(&path("plain"))], 0).starts_with("9 of 9 tensors are equal")
    );
    assert!(said(&["verify", text(&sample)], 0).contains("torch_dist: 36 tensors"));
    let table = said(&["inspect", text(&sample)], 0);
    assert!(
        table.contains("torch_dist checkpoint, iteration 3") && table.contains("__0_0.distcp"),
        "{table}"
    );
    assert_eq!(table.matches("__0_0.distcp").count(), 1, "the chunks of a file stand together");

    // The optimizer goes along, into whatever form holds it, unless it is told not to.
    let other = path("mcore");
    ms_convert(&["torch_dist", "mcore", "--load", text(&sample), "--save", text(&other), "--tp", "2"])
        .success();
    assert!(said(&["diff", text(&sample), text(&other)], 0).starts_with("36 of 36 tensors are equal"));
    assert!(other.join("iter_0000003/mp_rank_01/distrib_optim.pt").is_file());
    let without = path("without");
    ms_convert(&["mcore", "mcore", "--load", text(&other), "--save", text(&without), "--no-optim"]).success();
    assert!(said(&["diff", text(&path("hf")), text(&without)], 0).starts_with("9 of 9 tensors are equal"));
    // Upstream's own word for the same.
    let args = [
        "--load-model-type",
        "optim",
        "--save-model-type",
        "mg",
        "--use-mcore-models",
        "--model-type",
        "GPT",
    ];
    // Upstream's own way leaves out what to save as.
    for (name, args) in [("optim", &args[..]), ("optim_alone", &[&args[..2], &args[4..]].concat())] {
        let optim = path(name);
        let from_to = ["--load-dir", text(&other), "--save-dir", text(&optim), "--params-dtype", "bf16"];
        ms_convert(&[args, &from_to, &["--target-tensor-parallel-size", "1"]].concat()).success();
        assert!(said(&["diff", text(&sample), text(&optim)], 0).starts_with("36 of 36 tensors are equal"));
    }
    // If a rank lacks its part of it, it is not dropped silently.
    std::fs::remove_file(other.join("iter_0000003/mp_rank_01/distrib_optim.pt")).unwrap();
    let to = path("torn");
    let torn = ["mcore", "torch_dist", "--load", text(&other), "--save", text(&to)];
    let said = stderr(&ms_convert(&torn).code(1));
    assert!(said.contains("only some ranks have optimizer.state."), "{said}");
    assert!(!to.exists());
    ms_convert(&[&torn[..], &["--no-optim"]].concat()).success();
}

#[test]
fn a_folder_name_with_large_numbers_is_no_reason_to_list_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    make_model(&hf, "llama", false);
    ms_convert(&["hf", "mcore", "--load", text(&hf), "--save", text(&out), "--no-args"]).success();
    let iteration = out.join("iter_0000001");
    std::fs::rename(iteration.join("mp_rank_00"), iteration.join("mp_rank_65535_65535_65535")).unwrap();
    let got = stderr(&ms_convert(&["inspect", text(&out)]).code(1));
    assert!(got.contains("1 of 281474976710656 rank folders are there"), "{got}");
}

#[test]
fn help_man_page_and_completions_come_out_quickly() {
    assert!(stdout(&ms_convert(&["--help"]).success()).contains("Examples:"));
    assert!(stdout(&ms_convert(&["--help"]).success()).contains("--num-layer-list TEXT"));
    for kind in ["man", "complete-bash", "complete-zsh", "complete-fish"] {
        assert!(stdout(&ms_convert(&["--generate", kind]).success()).contains("save"), "{kind}");
    }
}

#[test]
fn diff_sees_through_forms_and_cuts_and_verify_reads_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"), "qwen2", true);
    ms_convert(&[
        "hf",
        "mcore",
        "--load",
        text(&path("hf")),
        "--save",
        text(&path("a")),
        "--tp",
        "2",
        "--pp",
        "2",
    ])
    .success();
    ms_convert(&[
        "hf",
        "mcore",
        "--load",
        text(&path("hf")),
        "--save",
        text(&path("b")),
        "--padded-vocab-size",
        "64",
    ])
    .success();
    for other in ["a", "b"] {
        let same = ms_convert(&["diff", text(&path("hf")), text(&path(other))]).success();
        assert!(stdout(&same).contains("tensors are equal"), "{}", stdout(&same));
    }
    ms_convert(&["verify", text(&path("a"))]).success();
    // One bit of a norm on the second tensor-parallel rank: a copy that is no longer equal; a value in a shard differs.
    let file = path("a").join("iter_0000001/mp_rank_01_000/model_optim_rng.pt");
    let torch = ms_ckpt::torch::TorchFile::open(&file).unwrap();
    let model = torch.root().get("model").unwrap();
    let start = |name: &str| match model.get(name).unwrap() {
        ms_ckpt::torch::Node::Tensor(t) => torch.view(name, t).unwrap().start,
        _ => panic!(),
    };
    let (norm, qkv) = (
        start("decoder.layers.0.input_layernorm.weight"),
        start("decoder.layers.0.self_attention.linear_qkv.weight"),
    );
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[norm] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    // The checksums would be the first to say so.
    std::fs::remove_file(file.with_file_name(ms_ckpt::CHECKSUMS)).unwrap();
    let shown = stdout(&ms_convert(&["verify", text(&path("a"))]).code(1));
    assert!(shown.contains("decoder.layers.0.input_layernorm.weight: the copy in"), "{shown}");
    bytes[qkv] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let shown = stdout(&ms_convert(&["diff", text(&path("hf")), text(&path("a")), "--json"]).code(1));
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let different: Vec<&serde_json::Value> =
        json["tensors"].as_array().unwrap().iter().filter(|t| t["relation"] == "different").collect();
    assert_eq!(different.len(), 1);
    assert_eq!(
        (&different[0]["elements"], &different[0]["name"]),
        (&1.into(), &"decoder.layers.0.self_attention.linear_qkv.weight".into())
    );
}

#[test]
fn an_interrupted_conversion_goes_on_at_the_files_that_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"), "llama", false);
    let args = |save: &Path| {
        ["hf", "mcore", "--load", text(&path("hf")), "--save", save.to_str().unwrap(), "--tp", "2"]
            .map(str::to_owned)
    };
    let run = |save: &Path| Command::cargo_bin("ms-convert").unwrap().args(args(save)).assert();
    run(&path("whole")).success();
    // What a killed run leaves: the note, one complete file, one half.
    let source = ms_ckpt::open(&path("hf")).unwrap();
    let halves = ms_core::GridSizes { tp: 2, ..Default::default() };
    let plan = ms_ckpt::Plan::mcore(
        source.config(),
        &ms_ckpt::layout::mcore::FileGrid::new(&halves, Default::default(), false).unwrap(),
        Default::default(),
        ms_ckpt::ArgsForm::Namespace,
        &|n| source.dtype(n),
        &ms_ckpt::Run::default(),
    )
    .unwrap();
    let out = path("resumed");
    let options = ms_ckpt::RunOptions { threads: 1, sync: false, replace: false };
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let seen = std::sync::atomic::AtomicU64::new(0);
        let most = plan.files[0].bytes() + 1000;
        plan.run(&source, &out, &options, &|n| {
            let before = seen.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
            assert!(before + n < most, "stopped on purpose");
        })
    }));
    assert!(stopped.is_err() && !out.exists());
    let left = path(".resumed.partial/iter_0000001/mp_rank_00/model_optim_rng.pt");
    let before = std::fs::metadata(&left).unwrap().modified().unwrap();
    plan.run(&source, &out, &options, &|_| ()).unwrap();
    let after = std::fs::metadata(out.join("iter_0000001/mp_rank_00/model_optim_rng.pt")).unwrap();
    assert_eq!(after.modified().unwrap(), before, "the complete file was kept");
    let whole = tree(&path("whole"));
    for (name, bytes) in tree(&out) {
        assert!(bytes == whole[&name], "{}", name.display());
    }
}

#[test]
fn values_that_are_not_finite_are_counted_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("hf"), dir.path().join("mg"));
    make_model(&model, "llama", false);
    let convert = |more: &[&str]| {
        let done = ms_convert(
            &[&["hf", "mcore", "--json", "--load-dir", text(&model), "--save-dir", text(&out)][..], more]
                .concat(),
        )
        .success();
        let report: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        (report["not_finite"].as_u64().unwrap(), stderr(&done))
    };
    let (count, said) = convert(&[]);
    assert!(count == 0 && !said.contains("not finite"), "{said}");
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    // An infinity and a value that is not a number, as bf16.
    bytes[last..].copy_from_slice(&[0x80, 0x7f, 0xc0, 0xff]);
    std::fs::write(&weights, bytes).unwrap();
    std::fs::remove_file(model.join(ms_ckpt::CHECKSUMS)).unwrap();
    // A value that several files hold is counted in each.
    for (more, want) in [
        (&["--force"][..], 2),
        (&["--force", "--tp", "2", "--pp", "2"], 4),
        (&["--force", "--dtype", "fp32"], 2),
    ] {
        let (count, said) = convert(more);
        assert_eq!(count, want, "{more:?}: {said}");
        let line = format!("{want} of the values written are not finite, the first of them in ");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn sizes_that_no_table_has_are_refused_by_the_flags_name() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("hf"), dir.path().join("mg"));
    make_model(&model, "llama", false);
    for flag in ["--make-vocab-size-divisible-by=999999999999", "--tp=0", "--pp=-1", "--padded-vocab-size=0"]
    {
        let failed =
            ms_convert(&["hf", "mcore", "--load-dir", text(&model), "--save-dir", text(&out), flag]).code(2);
        let (name, _) = flag.split_once('=').unwrap();
        assert!(stderr(&failed).contains(&format!("{name}: expected a ")), "{}", stderr(&failed));
        assert!(!out.exists());
    }
}

#[test]
fn a_flipped_byte_of_a_converted_checkpoint_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    make_model(&hf, "llama", false);
    let forms = [
        ("mcore", &["--tp", "2"][..], "model_optim_rng.pt"),
        ("hf", &[], ".safetensors"),
        ("torch_dist", &[], ".distcp"),
    ];
    for (to, more, ending) in forms {
        let words = ["hf", to, "--force", "--load", text(&hf), "--save", text(&out)];
        ms_convert(&[&words[..], more].concat()).success();
        ms_convert(&["verify", text(&out)]).success();
        // The middle of a file is weights; it stays a file of its form.
        let (file, good) = tree(&out).into_iter().find(|(p, _)| text(p).ends_with(ending)).unwrap();
        let mut bad = good.clone();
        bad[good.len() * 2 / 3] ^= 1;
        std::fs::write(out.join(&file), &bad).unwrap();
        let message = stderr(&ms_convert(&["verify", text(&out)]).code(1));
        assert!(message.contains(file.file_name().unwrap().to_str().unwrap()), "{to}: {message}");
        // A file of torch_dist is many small archives, whose own form may break first.
        if to == "torch_dist" {
            continue;
        }
        assert!(message.contains("not those that were written"), "{to}: {message}");
        // Nor does it get a new checksum.
        let again = dir.path().join("again");
        let words = [to, "torch_dist", "--load", text(&out), "--save", text(&again)];
        let message = stderr(&ms_convert(&words).code(1));
        assert!(message.contains("not those that were written") && !again.exists(), "{to}: {message}");
        // What another program made of it in its place is not ours to judge, once it has no checksums.
        for (path, _) in tree(&out).into_iter().filter(|(p, _)| p.ends_with(ms_ckpt::CHECKSUMS)) {
            std::fs::remove_file(out.join(path)).unwrap();
        }
        ms_convert(&["verify", text(&out)]).success();
    }
}

#[test]
fn what_becomes_of_every_flag_is_explained() {
    let said = stdout(&ms_convert(&["mcore", "hf", "--explain", "--tp", "2", "--loader", "mcore"]).success());
    assert!(said.lines().any(|line| line.starts_with("acts") && line.contains("--tp 2")), "{said}");
    assert!(said.lines().any(|line| line.starts_with("no effect") && line.contains("--loader")), "{said}");
}

#[test]
fn a_form_to_save_as_that_is_not_given_is_the_one_that_help_shows() {
    let help = ms_convert(&["--help"]).success();
    let help = String::from_utf8_lossy(&help.get_output().stdout).into_owned();
    let about = help.split_once("  --save-model-type mg|hf\n").and_then(|(_, rest)| rest.lines().next());
    assert!(about.is_some_and(|line| line.ends_with(" [mg]")), "{about:?}");
    let model = ms_testing::golden("models/llama3_gqa");
    let dir = tempfile::tempdir().unwrap();
    let save = dir.path().join("out");
    let args = ["--load-model-type", "hf", "--use-mcore-models", "--params-dtype", "fp32"];
    ms_convert(&[&args[..], &["--load-dir", text(&model), "--save-dir", text(&save)]].concat()).success();
    assert!(save.join("iter_0000001/mp_rank_00/model_optim_rng.pt").is_file());
}

#[test]
fn commands_forms_and_folders_may_stand_behind_flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"), "llama", false);
    let (hf, out) = (path("hf"), path("out"));
    ms_convert(&["-q", "--load", text(&hf), "hf", "--save", text(&out), "mcore"]).success();
    ms_convert(&["diff", "--json", text(&hf), text(&out)]).success();
    ms_convert(&["--json", "verify", text(&out)]).success();
    let refused = ms_convert(&["inspect", "--json", text(&out), "more"]).code(2);
    assert!(stderr(&refused).contains("unexpected word 'more'"), "{}", stderr(&refused));
}
