//! Messages about flags that depend on others, and about sizes that do not fit.

use crate::tiny::{model, ms_train, refused};
use safetensors::{Dtype, tensor::TensorView};

fn planned(flags: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.args(model()).args(["--lr", "1e-3", "--dry-run"]).args(flags.split_whitespace());
    command
}

/// What a plan of these flags warns of.
fn warnings(flags: &str) -> String {
    let done = planned(flags).assert().success();
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

#[test]
fn a_flag_that_changes_nothing_without_another_is_named() {
    for (alone, beside) in [
        ("--cp-window-size 2", "--cp 4 --nproc-per-node 4 --context-parallel-algo megatron_cp_algo"),
        ("--ulysses-degree-in-cp 2", "--cp 4 --nproc-per-node 4 --context-parallel-algo hybrid_cp_algo"),
        ("--recompute-num-layers 1", "--recompute-granularity full --recompute-method uniform"),
        ("--recompute-method block", "--recompute-granularity full --recompute-num-layers 1"),
        ("--recompute-activation-function-num-layers 1", "--recompute-activation-function"),
        ("--recompute-norm-num-layers 1", "--recompute-norm"),
        ("--neat-pack", "--stage sft"),
        ("--num-layer-list 1,1", "--num-layers 2 --pp 2 --nproc-per-node 2"),
        (
            "--num-layers-per-virtual-pipeline-stage 1",
            "--num-layers 4 --pp 2 --nproc-per-node 2 --micro-batch-size 1",
        ),
        ("--swap-modules mlp", "--swap-attention"),
        ("--smart-swap-memory 64GiB", "--smart-swap"),
        ("--ddp-bucket-size 100", "--overlap-grad-reduce"),
        ("--ddp-num-buckets 2", "--overlap-grad-reduce"),
        ("--ddp-pad-buckets-for-high-nccl-busbw --upstream head", "--use-distributed-optimizer"),
        (
            "--moe-shared-expert-overlap --upstream head --num-experts 2 --moe-router-topk 1",
            "--n-shared-experts 1",
        ),
        ("--moe-aux-loss-coeff 0.1", "--num-experts 2 --moe-router-topk 1"),
    ] {
        let flag = alone.split(' ').next().unwrap();
        let expected = format!("{flag} has no effect without");
        let (with, without) = (warnings(&format!("{beside} {alone}")), warnings(alone));
        assert!(without.contains(&expected), "{alone}: {without}");
        assert!(!with.contains(&expected), "{beside} {alone}: {with}");
    }
}

#[test]
fn what_a_trace_does_not_hold_is_named() {
    let flags = ["--profile-record-shapes", "--profile-with-memory", "--profile-with-stack"];
    let said = warnings(&format!("--profile {} --profile-export-type db", flags.join(" ")));
    let held = "have no effect here: traces hold no shapes, call stacks and allocations";
    assert!(said.contains(&format!("{} {held}", flags.join(", "))), "{said}");
    assert!(said.contains("--profile-export-type has no effect here: traces are written as JSON"), "{said}");
    let said = warnings("--profile --profile-export-type text --profile-with-cpu --profile-level level1");
    assert!(!said.contains("--profile"), "{said}");
}

#[test]
fn an_iteration_that_teaches_nothing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.safetensors");
    // The first of two iterations counts no token.
    let (tokens, mask) =
        ([5i32; 2 * 4 * 17].map(i32::to_le_bytes).concat(), [vec![0u8; 4 * 16], vec![1; 4 * 16]].concat());
    let tensors = [
        ("tokens", TensorView::new(Dtype::I32, vec![2, 4, 17], &tokens).unwrap()),
        ("loss_mask", TensorView::new(Dtype::U8, vec![2, 4, 16], &mask).unwrap()),
    ];
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let mut command = ms_train();
    command.args(model()).args(["--lr", "1e-3", "--train-iters", "2", "--eval-iters", "0", "--data-path"]);
    let done = command.arg(&path).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    let named = said.lines().filter(|line| line.contains("none of its tokens counts in the loss")).count();
    assert!(named == 1 && said.contains("iteration 1: none"), "{said}");
}

#[test]
fn a_flag_that_describes_nothing_of_the_model_is_named() {
    for (alone, beside) in [
        ("--num-query-groups 1", "--group-query-attention"),
        ("--moe-layer-freq 1", "--num-layers 2 --num-experts 2 --moe-router-topk 1"),
        ("--moe-router-topk 1", "--num-experts 2"),
        (
            "--mamba-state-dim 16",
            "--mamba-head-dim 8 --mamba-num-groups 1 --spec mindspeed_llm.tasks.models.spec.mamba_spec layer_spec",
        ),
        ("--rope-scaling-factor 4", "--rope-scaling-type llama3 --low-freq-factor 1 --high-freq-factor 4"),
        ("--index-topk-pattern FS --upstream head", ""),
    ] {
        let flag = alone.split(' ').next().unwrap();
        let expected = format!("{flag} has no effect: the model is the same with any value of it");
        let without = warnings(alone);
        assert!(without.contains(&expected), "{alone}: {without}");
        if !beside.is_empty() {
            let with = warnings(&format!("{beside} {alone}"));
            assert!(!with.contains(&expected), "{beside} {alone}: {with}");
        }
    }
    // What is said is what another flag or the default would say, and is read.
    let all = warnings("--ffn-hidden-size 32 --norm-epsilon 1e-5 --untie-embeddings-and-output-weights");
    assert!(!all.contains("with any value of it"), "{all}");
}

#[test]
fn sizes_of_mixers_with_a_state_are_named_by_the_flags_that_make_them() {
    const MAMBA: &str =
        "--spec mindspeed_llm.tasks.models.spec.mamba_spec layer_spec --hybrid-override-pattern MM";
    for (flags, says) in [
        (
            "--mamba-d-ssm 8 --mamba-head-dim 64 --mamba-num-groups 1",
            "--mamba-d-ssm, --mamba-head-dim: model: size of the state-space mixer: expected 1 to",
        ),
        (
            "--mamba-d-ssm 32 --mamba-head-dim 8 --mamba-num-groups 3",
            "--mamba-num-groups, --mamba-d-ssm, --mamba-head-dim: model: 4 state-space heads are not divisible by 3 groups",
        ),
    ] {
        let said = refused(&mut planned(&format!("--num-layers 2 {MAMBA} {flags}")), 2);
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn what_is_missing_of_a_model_is_named_by_its_flag() {
    let said = refused(&mut planned("--kv-compress --upstream head"), 2);
    assert!(
        said.contains("--q-lora-rank is missing: the model that the other flags describe needs it"),
        "{said}"
    );
    let model = ms_testing::golden_model("qwen3").expect("the sample stands in the repository");
    let mut command = ms_train();
    command.args([
        "--num-layers",
        "3",
        "--seq-length",
        "8",
        "--micro-batch-size",
        "1",
        "--dry-run",
        "--load",
    ]);
    let said = refused(command.arg(model), 2);
    let words = "is missing: with --num-layers the flags must describe the whole model; without, it is that of --load";
    assert!(said.contains("--hidden-size") && said.contains(words), "{said}");
}

#[test]
fn a_layer_list_changes_nothing_beside_empty_slots() {
    let said = warnings("--num-layers 4 --pp 2 --nproc-per-node 2 --num-layer-list 1,3 --noop-layers 0,3");
    assert!(said.contains("--num-layer-list has no effect beside --noop-layers"), "{said}");
}

#[test]
fn the_help_of_parity_is_its_own() {
    let done = ms_train().args(["parity", "--help"]).assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(text.starts_with("ms-train parity FLAGS: ") && text.lines().count() < 20, "{text}");
}

#[test]
fn what_upstream_takes_is_planned_and_layers_of_ones_own_are_refused() {
    let experts = |n: usize| {
        format!(
            "--num-experts {n} --moe-router-topk 1 --expert-model-parallel-size {n} --global-batch-size 16"
        )
    };
    for flags in [
        "--num-layers 4 --noop-layers 0,3 --recompute-norm --recompute-norm-num-layers 4",
        "--upstream head --bf16 --o2-gradient",
        "--moe-router-topk 6",
        "--spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec",
        &format!(
            "--nproc-per-node 4 {} --moe-router-load-balancing-type noaux_tc --topk-group 2",
            experts(4)
        ),
    ] {
        planned(flags).assert().success();
    }
    let mut without_rate = ms_train();
    without_rate.args(model()).args(["--min-lr", "1e-5", "--dry-run"]).assert().success();
    for rule in ["muon", "dist_muon"] {
        let said = refused(&mut planned(&format!("--optimizer {rule} --upstream head")), 2);
        let known =
            format!("--optimizer: expected adam or sgd, found {rule}, which is not part of this version");
        assert!(said.contains(&known), "{said}");
        let said = refused(&mut planned(&format!("--optimizer {rule}")), 2);
        assert!(said.contains("expected one of adam, sgd"), "v2.0.0 has none: {said}");
    }
    let said = refused(&mut planned("--spec my.own.module layer_spec"), 2);
    assert!(said.contains("--spec: expected a module of ") && said.contains("my.own.module"), "{said}");
    let said = refused(&mut planned("--bf16 --o2-gradient"), 2);
    assert!(said.contains("--o2-gradient: needs --no-gradient-accumulation-fusion"), "{said}");
    // v2.0.0 takes as many groups as ranks share the experts: more than there are cannot stay open.
    let groups =
        format!("--nproc-per-node 4 {} --moe-router-load-balancing-type noaux_tc --topk-group 5", experts(4));
    assert!(refused(&mut planned(&groups), 2).contains("--topk-group"));
}

#[test]
fn buckets_are_as_many_as_told() {
    let sizes = |flags: &str| {
        let mut command = planned(&format!(
            "{flags} --num-layers 4 --json --overlap-grad-reduce --use-distributed-optimizer"
        ));
        let done = command.args(["--micro-batch-size", "1", "--nproc-per-node", "2"]).assert().success();
        let plan: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        let buckets: Vec<u64> = plan["zero1"][0]["params"]
            .as_object()
            .unwrap()
            .values()
            .map(|p| p[2].as_u64().unwrap())
            .collect();
        (buckets.into_iter().max().unwrap() + 1, plan["ranks"][0]["parameters"].as_u64().unwrap())
    };
    let (one, elements) = sizes("");
    assert_eq!(one, 1);
    // As a size: each closes when it has as much or more.
    for number in [2, 5] {
        let (several, _) = sizes(&format!("--ddp-num-buckets {number}"));
        assert_eq!(several, sizes(&format!("--ddp-bucket-size {}", elements / number)).0);
        assert!((2..=number).contains(&several), "{several}");
    }
    let said = refused(&mut planned("--ddp-num-buckets 2 --ddp-bucket-size 10"), 2);
    assert!(said.contains("--ddp-num-buckets: cannot be combined with --ddp-bucket-size"), "{said}");
}

#[test]
fn what_does_not_fit_is_named_as_it_was_given() {
    let said = refused(planned("--tp 2").env("WORLD_SIZE", "7"), 2);
    assert!(
        said.contains("WORLD_SIZE 7, a variable of torchrun, with --tensor-model-parallel-size 2"),
        "{said}"
    );
    assert!(!said.contains("--nproc-per-node"), "{said}");
    let mut started = ms_train();
    started.args(model()).args("--lr 1e-3 --train-iters 1 --tp 2".split_whitespace());
    let said = refused(&mut started, 2);
    assert!(said.contains("--nproc-per-node 1 (the default) with --tensor-model-parallel-size 2"), "{said}");
    let said = refused(&mut planned("--pp 3 --num-layers 8 --nproc-per-node 3 --micro-batch-size 1"), 2);
    assert!(
        said.contains("8 layers are not divisible by pipeline size 3")
            && said.contains("--num-layer-list 3,3,2"),
        "{said}"
    );
    let interleaved = "--pp 3 --num-layers 6 --nproc-per-node 3 --micro-batch-size 1 --num-layers-per-virtual-pipeline-stage 1";
    let said = refused(&mut planned(&format!("{interleaved} --global-batch-size 7")), 2);
    assert!(said.contains("found 7 micro-batches") && said.contains("; 6 or 9 would do"), "{said}");
    for fits in [6, 9] {
        planned(&format!("{interleaved} --global-batch-size {fits}")).assert().success();
    }
}

#[test]
fn parity_runs_and_plans_nothing() {
    let mut command = ms_train();
    command.arg("parity").args(model()).args(["--dry-run"]);
    let said = refused(&mut command, 2);
    assert!(said.contains("--dry-run: parity runs what it compares"), "{said}");
}

#[test]
fn what_a_model_cannot_be_is_refused_before_it_is_planned() {
    let experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 8 --n-group 4";
    let limited = "--moe-router-load-balancing-type group_limited_greedy --topk-group";
    let said = refused(&mut planned(&format!("{experts} {limited} 9")), 2);
    assert!(said.contains("--topk-group: ") && said.contains("9 open groups of 4 groups"), "{said}");
    planned(&format!("{experts} {limited} 4")).assert().success();
    for sample in ["deepseek_v4", "deepseek_v3"] {
        let folder = ms_testing::golden_model(sample).expect("the sample stands in the repository");
        for positions in ["none", "alibi"] {
            let mut command = ms_train();
            command
                .args("--dry-run --lr 1e-3 --seq-length 16 --micro-batch-size 1".split(' '))
                .arg("--load")
                .arg(&folder);
            let said = refused(command.args(["--position-embedding-type", positions]), 2);
            assert!(
                said.contains("--position-embedding-type") && said.contains("expected rotary positions"),
                "{said}"
            );
        }
    }
}

#[test]
fn two_names_of_one_value_both_act() {
    for flag in ["--save-interval", "--persistent-save-interval"] {
        let mut command = ms_train();
        let done = command.args(["--explain", "--json", "--upstream", "head", flag, "10"]).assert().success();
        let found: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(found["flags"][0]["status"], "acts", "{flag}: {found}");
    }
}

#[test]
fn a_plan_says_that_no_iteration_overflows() {
    let assumed = |flags: &str| {
        let done = planned(&format!("--json {flags}")).assert().success();
        let plan: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        plan["rehearsed_as_if"].to_string()
    };
    assert!(assumed("--fp16").contains("no iteration is skipped"));
    assert!(!assumed("--fp16 --loss-scale 8").contains("skipped") && !assumed("--bf16").contains("skipped"));
}

#[test]
fn sizes_are_refused_under_flags_that_can_change_them() {
    const EXPERTS: &str = "--num-experts 4 --moe-router-topk 3 --moe-ffn-hidden-size 16";
    let wide = format!(
        "{EXPERTS} --num-attention-heads 6 --hidden-size 24 --kv-channels 4 --ffn-hidden-size 24 --padded-vocab-size 96"
    );
    let hybrid = "--context-parallel-algo hybrid_cp_algo";
    for (flags, message) in [
        (
            format!("{wide} --nproc-per-node 3 --tp 3"),
            "--tensor-model-parallel-size: expert ffn size: 16 is not divisible by tp 3",
        ),
        (
            format!("{wide} --nproc-per-node 3 --upstream head --expert-tensor-parallel-size 3"),
            "--expert-tensor-parallel-size: expert ffn size: 16 is not divisible by tp 3",
        ),
        (
            format!("{wide} --nproc-per-node 3 --tp 3 --moe-extended-tp"),
            "--moe-extended-tp with --tensor-model-parallel-size 3 and --expert-model-parallel-size 1: expert ffn size: 16",
        ),
        (
            format!("--nproc-per-node 2 --cp 2 {hybrid} --ulysses-degree-in-cp 2"),
            "--context-parallel-algo hybrid_cp_algo: expected a --context-parallel-size that is a product of two degrees above \
             1, found 2",
        ),
        (
            "--nproc-per-node 2 --cp 2 --use-tp-pp-dp-mapping".into(),
            "--expert-model-parallel-size 1, --use-tp-pp-dp-mapping: ",
        ),
        (
            format!("{EXPERTS} --upstream head --moe-fb-overlap"),
            "--moe-fb-overlap: expected --moe-token-dispatcher-type alltoall, as in upstream, found allgather",
        ),
        (
            format!(
                "{EXPERTS} --moe-router-load-balancing-type group_limited_greedy --n-group 2 --topk-group 1"
            ),
            "--moe-router-topk, --n-group, --topk-group: model: expected at most 2 experts per token, as 1 open groups of 2 have, found 3",
        ),
        (
            format!(
                "{EXPERTS} --moe-router-load-balancing-type none --upstream head --moe-router-num-groups 2 \
                 --moe-router-group-topk 1 --moe-router-score-function sigmoid"
            ),
            "--moe-router-topk, --moe-router-group-topk: model: groups of 2 experts are judged by their best: expected 1 to 2 of them",
        ),
    ] {
        let said = refused(&mut planned(&flags), 2);
        assert!(said.contains(message), "{flags}: {said}");
    }
    // As in upstream, one rank needs no degree.
    planned(hybrid).assert().success();
}

#[test]
fn megatrons_files_without_the_state_of_the_optimizer_are_named() {
    let says = "Megatron's files are written without the state of the optimizer";
    for (flags, named) in [
        ("--fp64 --ckpt-format torch", true),
        ("--optimizer sgd --ckpt-format torch_dist", true),
        ("--ckpt-format torch", false),
        ("--fp64", false),
        ("--fp64 --ckpt-format torch --no-save-optim", false),
    ] {
        let said = warnings(&format!("--save none {flags}"));
        assert_eq!(said.matches(says).count(), usize::from(named), "{flags}: {said}");
    }
}
