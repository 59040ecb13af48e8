//! Plans: layouts that fit, the effect of flags, and that planning a very large model takes no time and no memory.

use crate::tiny::{model, ms_train, refused};
use serde_json::Value;

/// The shape of DeepSeek-V3 (671 B), by its flags.
const LARGE: &str = "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 --normalization RMSNorm \
    --swiglu --position-embedding-type rope --disable-bias-linear --vocab-size 129280 --padded-vocab-size 129280 \
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 512 --bf16 \
    --multi-latent-attention --qk-pos-emb-head-dim 64 --qk-head-dim 128 --q-lora-rank 1536 --kv-lora-rank 512 --v-head-dim 128 \
    --qk-layernorm --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --first-k-dense-replace 3 \
    --moe-layer-freq 1 --n-shared-experts 1 --moe-router-score-function sigmoid --moe-router-enable-expert-bias";

fn plan(flags: &str) -> Value {
    let mut command = ms_train();
    let done = command.args(flags.split_whitespace()).args(["--dry-run", "--json"]).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn layouts_that_fit_are_proposed_best_first_and_are_plans_themselves() {
    let found = plan(&format!("{LARGE} --nproc-per-node 512 --fit 64GiB"));
    let best = found["best"].as_array().unwrap();
    assert!(!best.is_empty() && found["fit"].as_u64() < found["layouts"].as_u64(), "{found}");
    let costs: Vec<f64> = best.iter().map(|l| l["cost"].as_f64().unwrap()).collect();
    assert!(costs.is_sorted(), "{costs:?}");
    // Its 61 layers divide among no stages: they get lists.
    assert!(best.iter().any(|l| l["pp"].as_u64() > Some(1)) || found["fit"].as_u64() > Some(10), "{found}");
    for layout in best {
        assert_eq!(layout["tried_out"], true, "{layout}");
        assert!(layout["peak_block_bytes"].as_u64().unwrap() <= 64 << 30, "{layout}");
        assert!((0.9..1.1).contains(&formulas(layout)), "{layout}");
    }
    for layout in &best[..2] {
        let bytes = layout["bytes_per_rank"].as_u64().unwrap();
        // The flags that it names give the plan that it was chosen by.
        let same = plan(&format!("{LARGE} --nproc-per-node 512 {}", layout["flags"].as_str().unwrap()));
        assert_eq!(same["bubble"], layout["bubble"], "{layout}");
        let of = |rank: &Value| {
            let part = |key: &str| rank[key].as_u64().unwrap();
            part("weight_bytes") + part("grad_bytes") + part("optimizer_bytes") + part("activation_bytes")
        };
        // The formula knows what passes keep and nothing of what comes and goes between.
        let most = same["ranks"].as_array().unwrap().iter().map(of).max().unwrap();
        assert!(most >= bytes && most < 2 * bytes, "{most} {layout}");
        assert_eq!(tried_out(&same), numbers(layout), "{layout}");
    }
}

/// Most bytes that a rank of a plan takes in blocks, and most that one sends.
fn tried_out(plan: &Value) -> (u64, u64) {
    let ranks = plan["ranks"].as_array().unwrap();
    let sent = |rank: &Value| {
        rank["sent_bytes"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>()
    };
    let peak = ranks.iter().map(|rank| rank["peak_block_bytes"].as_u64().unwrap()).max().unwrap();
    (peak, ranks.iter().map(sent).max().unwrap())
}

/// The same of a proposed layout.
fn numbers(layout: &Value) -> (u64, u64) {
    (layout["peak_block_bytes"].as_u64().unwrap(), layout["sent_bytes"].as_u64().unwrap())
}

/// What a proposed layout was chosen by, relative to what it sends.
fn formulas(layout: &Value) -> f64 {
    layout["estimated_sent_bytes"].as_f64().unwrap() / layout["sent_bytes"].as_f64().unwrap()
}

/// A model whose context-parallel ranks pass keys and values around.
const RING: &str = "--num-layers 6 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --swiglu \
    --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --seq-length 512 --max-position-embeddings 512 \
    --micro-batch-size 1 --global-batch-size 16 --bf16 --nproc-per-node 16 --context-parallel-algo megatron_cp_algo";

#[test]
fn a_layout_that_fits_by_formula_alone_is_not_shown() {
    let found = plan(&format!("{RING} --fit 64GiB"));
    let best = found["best"].as_array().unwrap();
    for layout in best {
        let same = plan(&format!("{RING} {}", layout["flags"].as_str().unwrap()));
        assert_eq!(tried_out(&same), numbers(layout), "{layout}");
        assert!((0.9..1.1).contains(&formulas(layout)), "{layout}");
    }
    // Less than the largest of them takes when it is tried out, and as much as formulas say that it needs.
    let largest = best.iter().max_by_key(|layout| numbers(layout).0).unwrap();
    let limit = numbers(largest).0 - 1;
    assert!(largest["bytes_per_rank"].as_u64().unwrap() <= limit, "{largest}");
    let found = plan(&format!("{RING} --fit {limit}"));
    let best = found["best"].as_array().unwrap();
    assert!(!best.is_empty());
    for layout in best {
        assert!(numbers(layout).0 <= limit && layout["flags"] != largest["flags"], "{limit} {layout}");
    }
}

#[test]
fn a_layout_of_the_line_is_set_aside_and_named() {
    let plain = plan(&format!("{RING} --fit 64GiB"));
    assert_eq!(plain["set_aside"], serde_json::json!([]));
    let full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
    let chunks = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3";
    let list = "--pipeline-model-parallel-size 2 --num-layer-list 2,4";
    let ends = "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 2";
    let both = "--pipeline-model-parallel-size 2 --schedules-method dualpipev --num-layers 8 --noop-layers 0,7 --cp 4";
    for (given, aside) in [
        (full, &["--recompute-granularity full"][..]),
        (chunks, &["--num-virtual-stages-per-pipeline-rank"]),
        (list, &["--num-layer-list"]),
        (ends, &["--decoder-first-pipeline-num-layers"]),
        (both, &["--noop-layers", "--schedules-method"]),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            &["--num-layers-per-virtual-pipeline-stage"],
        ),
        ("--context-parallel-size 4 --cp-window-size 2", &["--cp-window-size"]),
    ] {
        let found = plan(&format!("{RING} {given} --fit 64GiB"));
        assert_eq!(found["set_aside"], serde_json::json!(aside), "{given}");
        // What is proposed does not depend on what was given; without the empty slots, the line's layers are fewer.
        let mut best = found["best"].clone();
        for layout in best.as_array_mut().unwrap().iter_mut().filter(|_| given.contains("--noop-layers")) {
            let flags = layout["flags"].as_str().unwrap();
            assert!(flags.contains(" --num-layers 6"), "{flags}");
            layout["flags"] = flags.replace(" --num-layers 6", "").into();
        }
        assert_eq!(best, plain["best"], "{given}");
    }
    let mut command = ms_train();
    command.args(RING.split_whitespace()).args(full.split_whitespace()).args(chunks.split_whitespace());
    let done = command.args(["--dry-run", "--fit", "64GiB"]).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    let line = "ignored: --num-virtual-stages-per-pipeline-rank, --recompute-granularity full";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

#[test]
fn a_size_that_nothing_fits_or_that_is_none_is_refused() {
    let with = |size: &str| {
        let mut command = ms_train();
        command.args(LARGE.split_whitespace()).args(["--nproc-per-node", "8", "--dry-run", "--fit", size]);
        refused(&mut command, 2)
    };
    let message = with("64GiB");
    assert!(message.contains("no layout of 8 ranks") && message.contains("the smallest of"), "{message}");
    let mut started = ms_train();
    started.args(LARGE.split_whitespace()).args(["--train-iters", "1", "--lr", "1e-3", "--fit", "1GiB"]);
    assert!(refused(&mut started, 2).contains("--fit: needs --dry-run"));
    for wrong in ["much", "0GiB", "nan"] {
        assert!(with(wrong).contains("--fit: expected a size in bytes, KiB, MiB"), "{wrong}");
    }
    // Small sizes in small units, and the limit as requested.
    let small = |size: &str| {
        let mut command = ms_train();
        command.args(RING.split_whitespace()).args(["--dry-run", "--fit", size]);
        command
    };
    let message = refused(&mut small("500KiB"), 2);
    assert!(message.contains("at most 500KiB a rank") && message.contains(" MiB\n"), "{message}");
    let done = small("16MiB").assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(said.contains("at most 16MiB a rank") && said.contains(" MiB  bubble"), "{said}");
    assert!(!said.contains(" 0.0 GiB") && !said.contains(" 0.0 MiB"), "{said}");
}

#[test]
fn what_is_sent_is_the_most_of_any_stage_and_the_largest_rank_is_named() {
    // The first stage has no experts, the last one has no boundary after it.
    let found = plan(&format!("{LARGE} --nproc-per-node 64 --ep 8 --pp 4 --num-layer-list 3,20,20,18"));
    let ranks = found["ranks"].as_array().unwrap();
    let most = |groups: &[&str]| {
        let of = |rank: &Value| groups.iter().filter_map(|g| rank["sent_bytes"][g].as_u64()).sum::<u64>();
        ranks.iter().map(of).max().unwrap()
    };
    let sent = &found["communication_bytes_per_iteration"];
    for (axis, groups) in [("ep", &["ep", "tp-ep"][..]), ("pp", &["pp", "embedding"])] {
        assert!(most(groups) > 0);
        assert_eq!(sent[axis].as_u64().unwrap(), most(groups), "{axis}");
    }
    assert_eq!(ranks[0]["sent_bytes"]["ep"].as_u64().unwrap_or(0), 0, "{}", ranks[0]);
    let largest = &found["largest_rank"];
    let peak = ranks.iter().map(|rank| rank["peak_bytes"].as_u64().unwrap()).max().unwrap();
    let named = &ranks[largest["rank"].as_u64().unwrap() as usize];
    assert_eq!((largest["peak_bytes"].as_u64(), named["peak_bytes"].as_u64()), (Some(peak), Some(peak)));
    assert_eq!(largest["stage"], named["stage"]);
}

#[test]
fn a_plan_needs_no_tokenizer_for_documents() {
    let mut command = ms_train();
    command
        .args(model())
        .args("--lr 1e-3 --dry-run --reset-position-ids --data-path nowhere".split_whitespace());
    command.assert().success();
}

#[test]
fn a_plan_is_for_as_many_ranks_as_torchrun_would_start() {
    let planned = |world: &str, more: &[&str]| {
        let mut command = ms_train();
        command.args(model()).args([
            "--lr",
            "1e-3",
            "--dry-run",
            "--json",
            "--tensor-model-parallel-size",
            "2",
        ]);
        command.args(["--micro-batch-size", "1"]).args(more).env("WORLD_SIZE", world);
        command
    };
    let world = |command: &mut assert_cmd::Command| -> Value {
        let done = command.assert().success();
        serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()["world"].clone()
    };
    assert_eq!(world(&mut planned("8", &[])), 8);
    assert_eq!(world(&mut planned("8", &["--nproc-per-node", "4"])), 4, "a flag says more");
    for wrong in ["0", "many", "70000"] {
        let said = refused(&mut planned(wrong, &[]), 2);
        assert!(said.contains("the variable WORLD_SIZE: expected a number of ranks up to 65536"), "{said}");
    }
}

#[test]
fn what_a_rank_takes_is_tried_out_also_where_experts_do_not_divide_its_copies() {
    // Two ranks whose tokens have copies for two of six experts: three experts a rank, and no even share for each.
    for dispatcher in ["allgather", "alltoall"] {
        let flags = format!(
            "--num-experts 6 --moe-router-topk 2 --moe-ffn-hidden-size 16 --expert-model-parallel-size 2 \
             --nproc-per-node 2 --moe-token-dispatcher-type {dispatcher} --micro-batch-size 1 --dry-run --json --lr 1e-3"
        );
        let mut command = ms_train();
        let done = command.args(model()).args(flags.split_whitespace()).assert().success();
        let plan: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        for rank in plan["ranks"].as_array().unwrap() {
            for what in ["peak_bytes", "kept_bytes", "activation_bytes"] {
                assert!(rank[what].as_u64().is_some_and(|bytes| bytes > 0), "{dispatcher}: {what} of {rank}");
            }
            assert!(
                rank["sent_bytes"].as_object().is_some_and(|sent| sent.len() > 1),
                "{dispatcher}: {rank}"
            );
        }
    }
}

#[test]
fn more_recomputation_means_fewer_bytes_of_activations() {
    let bytes = |more: &str| {
        let flags = format!(
            "{LARGE} --nproc-per-node 64 --pipeline-model-parallel-size 4 --num-layer-list 16,16,16,13 {more}"
        );
        plan(&flags)["bytes_per_rank"]["activations"].as_u64().unwrap()
    };
    let full = "--recompute-granularity full --recompute-method";
    let (none, block) = (bytes(""), bytes(&format!("{full} block --recompute-num-layers 4")));
    let uniform = bytes(&format!("{full} uniform --recompute-num-layers 1"));
    assert!(uniform < block && block < none, "{uniform} {block} {none}");
}

#[test]
fn flags_above_the_level_of_optimization_are_passed_over_and_named() {
    let flags = "--bf16 --swap-optimizer --recompute-norm --use-ascend-coc --noop-layers 0 --num-layers 2";
    let of = |level: &str, what: &str| -> (Value, String) {
        let mut command = ms_train();
        command.args(model()).args(flags.split_whitespace()).args(["--lr", "1e-3", "--upstream", "head"]);
        let done = command.args(["--optimization-level", level, what, "--json"]).assert().success();
        let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        (serde_json::from_slice(&done.get_output().stdout).unwrap(), said)
    };
    let above = ["--noop-layers", "--recompute-norm", "--swap-optimizer", "--use-ascend-coc"];
    for level in ["0", "1", "2"] {
        let (plan, said) = of(level, "--dry-run");
        let acts = level == "2";
        assert_eq!(plan["bytes_per_rank"]["optimizer"] == 0, acts, "{level}: {plan}");
        let (explained, _) = of(level, "--explain");
        for flag in above {
            let because = format!("no effect here: needs --optimization-level 2, found {level}");
            let named = said.lines().any(|line| line.contains(flag) && line.contains(&because));
            assert_eq!(named, !acts, "{level}: {said}");
            let rows = explained["flags"].as_array().unwrap();
            let row = rows.iter().find(|row| row["flag"] == flag).unwrap();
            assert_eq!(row["status"], if acts { "acts" } else { "no effect" });
            assert!(row["note"].as_str().unwrap().contains("--optimization-level 2"), "{row}");
        }
    }
}

#[test]
fn a_plan_is_told_to_people_in_units_and_to_programs_in_bytes() {
    let shown = |more: &[&str]| {
        let mut command = ms_train();
        command
            .args(model())
            .args("--num-layers 4 --micro-batch-size 1 --nproc-per-node 4 --tp 2 --pp 2".split(' '));
        let done =
            command.args(["--lr", "1e-3", "--train-iters", "10", "--dry-run"]).args(more).assert().success();
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    let text = shown(&[]);
    for part in [
        "Ranks: 4 (tp 2, pp 2), ",
        "\nMemory of a rank, at most:\n",
        "  stage  layers      weights    gradients    optimizer  activations    offloaded         peak\n",
        " KiB",
        "\nPipeline: 2 stages, 4 micro-batches per iteration, bubble 20.0 %\n",
        "  stage 0    F0.0 F1.0 B0.0",
        "\nSent by a rank in an iteration, at most:\n  tp ",
        "\nTraining: 10 iterations of 64 tokens, ",
        "  learning rate 0.001 at first, 0.001 at most, ",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    // A long schedule is told by its ends.
    let long = shown(&["--global-batch-size", "400"]);
    let ends = |line: &&str| {
        line.starts_with("  stage 0    F0.0 F1.0 B0.0 ")
            && line.ends_with(
                " F20.0 (752 more, see --json) B395.0 F397.0 B396.0 F398.0 B397.0 F399.0 B398.0 B399.0",
            )
    };
    assert_eq!(long.lines().filter(ends).count(), 1, "{long}");
    // Hardly more than that is told whole: 50 actions, and not 52.
    let whole = |batch: &str| !shown(&["--global-batch-size", batch]).contains("more, see --json");
    assert_eq!(["25", "26"].map(whole), [true, false]);
    // What there is none of is not told, and no key of the object is.
    assert!(!text.contains("null") && !text.contains('_') && !text.contains("smart"), "{text}");
    // Two figures are called activations there: the object says which is which.
    let plan: Value = serde_json::from_str(&shown(&["--json"])).unwrap();
    let notes = &plan["notes"];
    assert!(notes["bytes_per_rank"].as_str().unwrap().contains("any one rank"), "{notes}");
    assert!(notes["memory"].as_str().unwrap().contains("all ranks together"), "{notes}");
    assert!(plan["bytes_per_rank"]["activations"].is_u64() && plan["memory"]["activations"].is_u64());
}

#[test]
fn the_short_help_is_a_screen() {
    for upstream in ["v2.0.0", "head"] {
        let help = ms_train().args(["--upstream", upstream, "-h"]).assert().success();
        let lines = String::from_utf8_lossy(&help.get_output().stdout).lines().count();
        assert!(lines < 60, "{upstream}: {lines} lines");
    }
}

#[test]
fn every_flag_of_the_highest_level_acts() {
    let listed = include_str!("../../../../crates/ms-cli/src/megatron/levels.rs").lines();
    let listed: Vec<&str> =
        listed.filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")).collect();
    assert!(listed.len() > 20);
    let help = [&["--help"][..], &["--help", "model"]].map(|words| {
        let help = ms_train().args(["--upstream", "head"]).args(words).assert().success();
        String::from_utf8_lossy(&help.get_output().stdout).into_owned()
    });
    let help = help.concat();
    for flag in listed {
        assert!(
            help.split_whitespace().any(|word| word.trim_end_matches(',') == flag),
            "{flag} is no option"
        );
    }
}

#[test]
fn what_becomes_of_every_flag_is_explained() {
    let mut command = ms_train();
    command.args(
        "--explain --json --tensor-model-parallel-size 2 --use-flash-attn --hidden-size 8".split_whitespace(),
    );
    let done = command.assert().success();
    let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let of = |flag: &str| {
        let rows = found["flags"].as_array().unwrap();
        rows.iter().find(|r| r["flag"] == flag).unwrap_or_else(|| panic!("{flag}: {found}"))["status"].clone()
    };
    assert_eq!(of("--tensor-model-parallel-size"), "acts");
    assert_eq!(of("--use-flash-attn"), "no effect");
    let mut command = ms_train();
    let text =
        command.args("--explain --use-torch-fsdp2 --upstream head".split_whitespace()).assert().success();
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    assert!(text.contains("refused") && text.contains("--use-torch-fsdp2"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_plan_of_2048_ranks_takes_less_than_a_second_and_next_to_no_memory() {
    let layers = ["4"; 13].into_iter().chain(["3"; 3]).collect::<Vec<_>>().join(",");
    let spread = format!(
        "--nproc-per-node 2048 --pp 16 --num-layer-list {layers} --ep 32 --use-distributed-optimizer"
    );
    // A process may have two gigabytes of addresses; then the shell says what time its children took.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -v 2000000; \"$0\" \"$@\" > /dev/null && times"]);
    shell.arg(assert_cmd::cargo::cargo_bin("ms-train")).args(LARGE.split_whitespace());
    shell.args(spread.split_whitespace()).args(["--dry-run", "--json"]).env("MS_NO_PROGRESS", "1");
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // `0m0.01s 0m0.00s` of the shell, then of its children: user and system.
    let user = said.lines().nth(1).and_then(|line| line.split_whitespace().next()).unwrap();
    let (minutes, seconds) = user.trim_end_matches('s').split_once('m').unwrap();
    let seconds = 60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap();
    // Without optimization everything takes several times as long.
    let most = if cfg!(debug_assertions) { 5.0 } else { 1.0 };
    println!("{seconds} s of processor time");
    assert!(seconds < most, "{seconds} s of processor time");
}

#[test]
fn a_checkpoint_written_beside_training_is_planned_where_weights_come_late() {
    let flags = "--use-distributed-optimizer --overlap-param-gather --save none --async-save";
    let found = plan(&format!("{RING} --nproc-per-node 2 {flags}"));
    assert!(found["ranks"][0]["snapshot_bytes"].as_u64() > Some(0), "{found}");
}

#[test]
fn every_proposed_layout_is_one_that_the_same_line_can_have() {
    let experts = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 64 --n-shared-experts 1 \
        --moe-token-dispatcher-type alltoall --moe-alltoall-overlap-comm --moe-zero-memory level0";
    for (flags, limit) in [
        ("--recompute-norm", "64GiB"),
        ("--no-overlap-p2p-communication", "64GiB"),
        ("--context-parallel-size 2 --context-parallel-kv-cache-policy half", "64GiB"),
        (experts, "64GiB"),
        ("--global-batch-size 8 --nproc-per-node 6", "1GiB"),
        ("--num-layer-list 9,9 --pipeline-model-parallel-size 2", "1GiB"),
        ("--noop-layers 5", "64GiB"),
        ("--bf16 --virtual-optimizer 1 2 --upstream head --pipeline-model-parallel-size 2", "64GiB"),
        ("--global-batch-size 16 --rampup-batch-size 2 2 100 --train-samples 1000", "64GiB"),
    ] {
        let line = format!("{RING} --nproc-per-node 4 {flags}");
        let found = plan(&format!("{line} --fit {limit}"));
        let best = found["best"].as_array().unwrap();
        assert!(!best.is_empty(), "{flags}");
        for layout in best {
            let line = line.replace("--num-layer-list 9,9", "").replace("--noop-layers 5", "");
            let same = plan(&format!("{line} {}", layout["flags"].as_str().unwrap()));
            assert_eq!(tried_out(&same), numbers(layout), "{flags}: {layout}");
        }
    }
    // Of what no layout can mend, the flags' own refusal.
    for (flags, words) in [
        ("--nproc-per-node 7", "--global-batch-size: expected a multiple of --micro-batch-size 1 x 7"),
        ("--nproc-per-node 4 --recompute-granularity full", "--recompute-granularity full needs"),
    ] {
        let mut command = ms_train();
        command.args(RING.split_whitespace()).args(flags.split_whitespace());
        let said = refused(command.args(["--dry-run", "--fit", "1GiB"]), 2);
        assert!(said.contains(words), "{said}");
    }
}
