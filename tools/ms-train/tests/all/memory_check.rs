//! The memory that a run needs is compared with the available memory before it starts.

use crate::tiny::{counting, model, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

#[test]
fn a_dry_run_shows_what_is_needed_and_what_there_is() {
    let plan = |extra: &[&str]| -> Value {
        let mut command = ms_train();
        command.args(model()).args(["--dry-run", "--json", "--train-iters", "2", "--lr", "1e-3"]).args(extra);
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let small = plan(&[])["memory"].clone();
    let number = |memory: &Value, key: &str| memory[key].as_u64().unwrap();
    let parts = ["weights", "gradients", "optimizer", "snapshot", "activations", "data"];
    assert_eq!(parts.map(|key| number(&small, key)).iter().sum::<u64>(), number(&small, "total"));
    // float32: four bytes a weight, which is its own master copy, four a gradient and eight of moments.
    let weights = number(&small, "weights");
    assert_eq!((number(&small, "gradients"), number(&small, "optimizer")), (weights, 2 * weights));
    let wide = plan(&["--micro-batch-size", "8", "--global-batch-size", "8"])["memory"].clone();
    assert!(number(&wide, "activations") > number(&small, "activations"));
    assert_eq!(number(&wide, "weights"), weights);
}

#[test]
fn the_estimate_is_of_the_size_of_what_a_run_takes() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let flags = "--hidden-size 128 --ffn-hidden-size 384 --num-layers 3 --micro-batch-size 8 --global-batch-size 8 \
                 --train-iters 2 --lr 1e-3";
    let run = |extra: &[&str]| -> Value {
        let mut command = ms_train();
        command.args(model()).args(flags.split_whitespace()).args(extra).arg("--data-path").arg(&data);
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let estimate = run(&["--dry-run", "--json"])["memory"]["total"].as_f64().unwrap();
    let taken = run(&["--json"])["peak_tensor_bytes_per_rank"].as_f64().unwrap();
    assert!(estimate > taken / 2.0 && estimate < taken * 2.0, "estimated {estimate}, taken {taken}");
}

/// What a run with `more` flags says of itself, or with `extra` ones.
fn told(data: &std::path::Path, more: &str, extra: &[&str]) -> Value {
    let flags = "--hidden-size 64 --ffn-hidden-size 192 --num-layers 4 --micro-batch-size 4 --global-batch-size 8 \
                 --train-iters 2 --lr 1e-3 --json";
    let mut command = ms_train();
    command.args(model()).args(flags.split_whitespace()).args(more.split_whitespace()).args(extra);
    command.arg("--data-path").arg(data);
    serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
}

/// A run with `more` flags: its plan, and what it says of itself.
fn planned_and_run(data: &std::path::Path, more: &str) -> [Value; 2] {
    [&["--dry-run"][..], &[]].map(|extra| told(data, more, extra))
}

/// What a plan and a run say of a rank in the same words.
const PLANNED: [&str; 5] =
    ["kept_bytes", "swapped_bytes", "peak_bytes", "peak_block_bytes", "largest_tensor_bytes"];

/// What is more than two percent apart of any rank.
fn far_apart(plan: &Value, run: &Value) -> Vec<String> {
    let (planned, taken) = (plan["ranks"].as_array().unwrap(), run["per_rank"].as_array().unwrap());
    assert_eq!(planned.len(), taken.len());
    let mut far = Vec::new();
    for (rank, (plan, run)) in planned.iter().zip(taken).enumerate() {
        for what in PLANNED {
            let (plan, run) = (plan[what].as_f64().unwrap(), run[what].as_f64().unwrap());
            if (plan - run).abs() / run.max(1.0) >= 0.02 {
                far.push(format!("{what} of rank {rank}: planned {plan}, taken {run}"));
            }
        }
    }
    far
}

/// Checks that what passes of a run with `more` flags keep is what is planned, and returns it.
fn as_planned(data: &std::path::Path, more: &str) -> (u64, Value) {
    let [plan, run] = planned_and_run(data, more);
    let far = far_apart(&plan, &run);
    assert!(far.is_empty(), "{more}: {far:?}");
    (run["kept_bytes_per_rank"].as_u64().unwrap(), run["last_loss"].clone())
}

#[test]
fn what_tensor_parallel_ranks_keep_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let two = "--nproc-per-node 2 --tensor-model-parallel-size 2";
    let latent = "--multi-latent-attention --kv-lora-rank 16 --qk-nope-head-dim 16 --qk-rope-head-dim 8 --v-head-dim 16";
    let experts = "--num-experts 4 --moe-router-topk 2 --n-shared-experts 1 --moe-intermediate-size 64";
    for more in [
        "",
        "--bf16",
        "--recompute-norm",
        "--swap-attention",
        latent,
        &format!("{latent} --q-lora-rank 24"),
        experts,
    ] {
        let (whole, _) = as_planned(&data, &format!("{two} {more}"));
        let (shared, _) = as_planned(&data, &format!("{two} {more} --sequence-parallel"));
        println!("{more}: {whole} bytes, {shared} with shared tokens");
        assert!(shared < whole, "{more}: {shared} {whole}");
    }
}

#[test]
fn what_passes_keep_is_planned_for_every_way_to_keep_less() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let full = "--recompute-granularity full --recompute-method";
    let mut losses = Vec::new();
    let mut kept = Vec::new();
    for more in [
        "",
        "--recompute-granularity selective",
        "--recompute-activation-function",
        "--recompute-activation-function --recompute-activation-function-num-layers 2",
        "--recompute-norm --recompute-norm-num-layers 1",
        &format!("{full} block --recompute-num-layers 1 --recompute-activation-function --recompute-norm"),
        &format!("{full} uniform --recompute-num-layers 1"),
        "--swap-attention",
        "--swap-attention --recompute-num-layers 2",
        "--bf16",
        "--bf16 --recompute-activation-function --swap-attention",
    ] {
        let (bytes, loss) = as_planned(&data, more);
        kept.push(bytes);
        losses.push(loss);
    }
    // The same bits, whatever is kept; every way keeps less.
    assert!(losses[..9].iter().all(|loss| *loss == losses[0]) && losses[9] == losses[10], "{losses:?}");
    assert!(kept[1..9].iter().all(|&bytes| bytes < kept[0]) && kept[10] < kept[9], "{kept:?}");
}

#[test]
fn what_experts_keep_is_planned_for_every_level_of_zero_memory() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let experts = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --n-shared-experts 1 \
                   --moe-token-dispatcher-type alltoall --moe-alltoall-overlap-comm";
    let (mut losses, mut kept, mut swapped, mut wrong) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for more in [
        "",
        "--moe-zero-memory level0",
        "--moe-zero-memory level1 --moe-zero-memory-num-layers 1",
        "--moe-zero-memory level1",
        "--moe-zero-memory level1 --swap-attention --recompute-norm",
    ] {
        let [plan, run] = planned_and_run(&data, &format!("{experts} {more}"));
        wrong.extend(far_apart(&plan, &run).into_iter().map(|far| format!("{more}: {far}")));
        kept.push(run["kept_bytes_per_rank"].as_u64().unwrap());
        swapped.push(run["swapped_bytes_per_rank"].as_u64().unwrap_or(0));
        losses.push(run["last_loss"].clone());
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Every level keeps less than the one before, and all send the same rows away.
    assert!(kept.windows(2).all(|pair| pair[1] < pair[0]), "{kept:?}");
    assert!(swapped[0] == 0 && swapped[1] > 0 && swapped[1] == swapped[3] && swapped[4] > swapped[3]);
}

#[test]
fn passes_beside_each_other_take_what_is_planned_and_change_no_loss() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let experts = "--upstream head --nproc-per-node 2 --ep 2 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 \
                   --moe-shared-expert-intermediate-size 48 --moe-token-dispatcher-type alltoall --micro-batch-size 1";
    let beside = "--moe-fb-overlap --fix-router";
    let (mut losses, mut wrong, mut swapped, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for more in [
        "--fix-router",
        beside,
        &format!("{beside} --moe-unperm2-mem-optim-swap"),
        &format!("{beside} --moe-zero-memory level1"),
    ] {
        let [plan, run] = planned_and_run(&data, &format!("{experts} {more}"));
        wrong.extend(far_apart(&plan, &run).into_iter().map(|far| format!("{more}: {far}")));
        kept.push(run["kept_bytes_per_rank"].as_u64().unwrap());
        swapped.push(run["swapped_bytes_per_rank"].as_u64().unwrap_or(0));
        losses.push(run["last_loss"].clone());
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(swapped[1] == 0 && swapped[2] > 0 && swapped[3] == swapped[2], "{swapped:?}");
    // What comes out of experts is not kept, nor what goes into them.
    assert!(kept[0] == kept[1] && kept[2] < kept[1] && kept[3] < kept[2], "{kept:?}");
}

#[test]
fn what_passes_keep_is_planned_for_every_module_that_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    // The first layer is dense, the others have experts, one of which is shared.
    let experts = "--upstream head --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --first-k-dense-replace 1 \
                   --moe-shared-expert-intermediate-size 48 --moe-grouped-gemm --moe-token-dispatcher-type alltoall";
    let selective = "--recompute-granularity selective --recompute-modules";
    let (mut losses, mut kept, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for more in [
        String::new(),
        format!("{selective} core_attn"),
        format!("{selective} layernorm"),
        format!("{selective} moe_act"),
        format!("{selective} mlp"),
        format!("{selective} moe"),
        "--moe-layer-recompute".to_owned(),
        format!("{selective} core_attn moe"),
        format!("{selective} core_attn layernorm mlp moe"),
    ] {
        let [plan, run] = planned_and_run(&data, &format!("{experts} {more}"));
        wrong.extend(far_apart(&plan, &run).into_iter().map(|far| format!("{more}: {far}")));
        kept.push(run["kept_bytes_per_rank"].as_u64().unwrap());
        losses.push(run["last_loss"].clone());
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    assert!(kept[1..].iter().all(|&bytes| bytes < kept[0]), "{kept:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Head's older flag means attention and experts; all modules together keep the least.
    assert_eq!(kept[6], kept[7]);
    assert!(kept[1..8].iter().all(|&bytes| bytes > kept[8]), "{kept:?}");
}

#[test]
fn what_latent_attention_and_prediction_modules_keep_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let latent = "--multi-latent-attention --kv-lora-rank 16 --qk-nope-head-dim 16 --qk-rope-head-dim 8 --v-head-dim 16 \
                  --q-lora-rank 24 --mtp-num-layers 1";
    let selective = "--upstream head --multi-latent-attention --kv-lora-rank 16 --qk-head-dim 16 \
                     --qk-pos-emb-head-dim 8 --v-head-dim 16 --q-lora-rank 24 --mtp-num-layers 1 \
                     --recompute-granularity selective --recompute-modules";
    let (mut losses, mut kept) = (Vec::new(), Vec::new());
    for more in [
        latent.to_owned(),
        format!("{selective} mla_up_proj"),
        format!("{latent} --recompute-mla-up-proj"),
        format!("{latent} --mla-zero-memory"),
        format!("{latent} --mla-swap-core-attn-out"),
        format!("{latent} --recompute-mtp-norm"),
        format!("{latent} --recompute-mtp-layer"),
        format!("{latent} --recompute-mtp-layer --recompute-mtp-norm --mla-zero-memory"),
    ] {
        let (bytes, loss) = as_planned(&data, &more);
        kept.push(bytes);
        losses.push(loss);
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    assert_eq!(kept[1], kept[2], "two names of one thing");
    assert!(kept[1..].iter().all(|&bytes| bytes < kept[0]), "{kept:?}");
    assert!(kept[1..7].iter().all(|&bytes| bytes > kept[7]), "{kept:?}");
}

#[test]
fn what_forms_of_the_optimizer_and_orders_of_work_take_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    // Borders between stages, which are memory of the ranks that hand them on, are a small part of these layers.
    let chunks = "--nproc-per-node 2 --pipeline-model-parallel-size 2 --num-layers 16 --ffn-hidden-size 512 \
                  --micro-batch-size 1 --num-layers-per-virtual-pipeline-stage";
    let again = "--recompute-granularity full --recompute-method block --recompute-num-layers 1 --recompute-in-advance";
    for more in [
        "--bf16 --o2-optimizer".to_owned(),
        "--bf16 --o2-gradient --no-gradient-accumulation-fusion".to_owned(),
        "--bf16 --o2-gradient --no-gradient-accumulation-fusion --o2-optimizer --reuse-fp32-param".to_owned(),
        "--nproc-per-node 2 --bf16 --o2-optimizer --o2-gradient --no-gradient-accumulation-fusion".to_owned(),
        "--fp16".to_owned(),
        "--nproc-per-node 2 --tp 2 --sequence-parallel --fp16".to_owned(),
        format!("{chunks} 4 --recompute-in-bubble"),
        format!("{chunks} 4 --recompute-in-bubble --bf16"),
        format!("{chunks} 1 {again}"),
        format!("{chunks} 1 {again} --bf16"),
    ] {
        let [plan, run] = planned_and_run(&data, &more);
        let mut far = far_apart(&plan, &run);
        if more.contains("in-advance") {
            // All that is kept of a layer is what came in, which of ranks that are threads is the sender's, as what went out is;
            // between processes it is there twice, and so it is planned.
            far.retain(|far| !far.starts_with("kept_bytes"));
            for (plan, run) in
                plan["ranks"].as_array().unwrap().iter().zip(run["per_rank"].as_array().unwrap())
            {
                let kept = [&plan["kept_bytes"], &run["kept_bytes"]];
                assert!(kept[0].as_u64() >= kept[1].as_u64(), "{more}: {kept:?}");
            }
        }
        assert!(far.is_empty(), "{more}: {far:?}");
    }
}

#[test]
fn what_ways_to_save_take_on_several_ranks_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    let two = "--nproc-per-node 2";
    let shared = format!("{two} --tp 2 --sequence-parallel --seq-length 16");
    let stages = format!("{two} --pp 2 --micro-batch-size 1");
    let chunks = format!("{stages} --num-layers 8 --num-layers-per-virtual-pipeline-stage 2");
    let both_ends = format!("{stages} --num-layers 8 --schedules-method dualpipev");
    let full = "--recompute-granularity full --recompute-num-layers";
    let mut swapped = 0;
    for more in [
        format!("{chunks} {full} 1 --recompute-method block"),
        format!("{chunks} {full} 1 --recompute-method block --enable-recompute-layers-per-pp-rank"),
        format!("{chunks} {full} 3 --recompute-method block --enable-recompute-layers-per-pp-rank --bf16"),
        format!("{shared} --use-ascend-coc --coc-parallel-num 2"),
        format!("{shared} --use-ascend-coc --coc-parallel-num 8 --bf16"),
        format!("{two} --tp 2 --seq-length 16 --use-ascend-coc --coc-fused-kernel"),
        format!("{shared} --use-ascend-mc2 {full} 1 --recompute-method uniform"),
        format!("{two} --swap-optimizer --bf16"),
        format!("{two} --swap-optimizer --o2-optimizer --bf16"),
        format!("{two} --swap-optimizer --use-distributed-optimizer"),
        format!("{shared} --swap-optimizer --bf16"),
        format!("{stages} --swap-optimizer --swap-attention"),
        format!("{stages} --swap-attention --bf16"),
        format!("{chunks} --swap-attention --recompute-num-layers 1"),
        format!("{both_ends} --swap-attention"),
        format!("{both_ends} {full} 1 --recompute-method block --bf16"),
        format!("{both_ends} {full} 2 --recompute-method uniform --swap-optimizer"),
        format!("{both_ends} --recompute-activation-function --recompute-norm"),
        format!("{two} --cp 2 --context-parallel-algo ulysses_cp_algo --swap-attention"),
    ] {
        let [plan, run] = planned_and_run(&data, &more);
        let far = far_apart(&plan, &run);
        assert!(far.is_empty(), "{more}: {far:?}");
        if more.contains("--swap-attention") {
            let bytes: Vec<_> =
                run["per_rank"].as_array().unwrap().iter().map(|r| r["swapped_bytes"].as_u64()).collect();
            swapped += usize::from(bytes.iter().all(|&n| n > Some(0)));
        }
    }
    assert_eq!(swapped, 5, "what is swapped leaves every rank");
}

/// Checks that ranks take what is planned, and keep it together: what came from another rank is memory of the sender among
/// threads.
fn as_planned_together(plan: &Value, run: &Value) {
    let mut far = far_apart(plan, run);
    far.retain(|far| !far.starts_with("kept_bytes"));
    assert!(far.is_empty(), "{far:?}");
    let kept = |ranks: &Value| -> f64 {
        ranks.as_array().unwrap().iter().map(|rank| rank["kept_bytes"].as_f64().unwrap()).sum()
    };
    let (planned, taken) = (kept(&plan["ranks"]), kept(&run["per_rank"]));
    assert!((planned - taken).abs() < 0.02 * taken, "kept by all: planned {planned}, taken {taken}");
}

#[test]
fn what_ranks_take_that_share_out_what_masks_leave_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    for (cp, more) in [(2, ""), (4, ""), (4, "--bf16")] {
        let flags = format!(
            "--nproc-per-node {cp} --cp {cp} --context-parallel-algo adaptive_cp_algo --ffn-hidden-size 1024 {more}"
        );
        let [plan, run] = planned_and_run(&data, &flags);
        as_planned_together(&plan, &run);
        // Ranks do not send the same: later ones see more.
        let sent = |rank: usize| plan["ranks"][rank]["sent_bytes"]["ring"].as_u64().unwrap();
        assert!((1..cp).any(|rank| sent(rank) != sent(0)), "{plan}");
        assert!(plan["rehearsed_as_if"][0].as_str().unwrap().contains("every row is one document"));
    }
    let groups =
        "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp 2";
    let [plan, run] =
        planned_and_run(&data, &format!("{groups} --num-attention-heads 4 --ffn-hidden-size 1024"));
    as_planned_together(&plan, &run);
    assert_eq!(plan["ranks"][2]["sent_bytes"], plan["ranks"][3]["sent_bytes"], "neighbours are at one place");
}

/// The backward pass of a ring holds few gradients of blocks at a time, also of rings inside rings and between ranks that
/// exchange heads.
#[test]
fn what_ranks_take_that_pass_blocks_around_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 8, counting);
    for (cp, more) in [
        (2, "--context-parallel-algo megatron_cp_algo"),
        (4, "--context-parallel-algo megatron_cp_algo"),
        (4, "--context-parallel-algo megatron_cp_algo --cp-window-size 2 --bf16"),
        (4, "--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 --num-attention-heads 4"),
        (4, "--context-parallel-algo kvallgather_cp_algo"),
    ] {
        // Blocks in transit, which are memory of the ranks that send them, are a small part of these layers.
        let flags = format!("--nproc-per-node {cp} --cp {cp} {more} --ffn-hidden-size 1024");
        let [plan, run] = planned_and_run(&data, &flags);
        let far = far_apart(&plan, &run);
        assert!(far.is_empty(), "{flags}: {far:?}");
        for (plan, run) in plan["ranks"].as_array().unwrap().iter().zip(run["per_rank"].as_array().unwrap()) {
            let sent = |of: &Value| of["sent_bytes"].as_object().unwrap().clone();
            assert_eq!(sent(plan), sent(run), "{flags}");
        }
    }
}

/// It is held for at least an iteration, however quick the disk is: of the memory's own folder, where there is one, too.
#[test]
fn what_is_held_for_a_checkpoint_is_in_the_planned_peak() {
    let in_memory = Path::new("/dev/shm");
    let quick =
        if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() }.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    // Of equal copies one is written, so that the other data-parallel rank holds none.
    const COPIES: &str = "--nproc-per-node 2 --micro-batch-size 2";
    for more in
        ["", "--bf16", "--bf16 --o2-optimizer --reuse-fp32-param", "--nproc-per-node 2 --tp 2", COPIES]
    {
        let flags = format!("{more} --train-iters 4 --hidden-size 128 --ffn-hidden-size 384");
        let plain = told(&data, &flags, &["--dry-run"]);
        for folder in [&dir, &quick] {
            let out = folder.path().join("out");
            let _ = std::fs::remove_dir_all(&out);
            let save =
                format!("{flags} --async-save --save-interval 1 --keep-last 1 --save {}", out.display());
            let [plan, run] = planned_and_run(&data, &save);
            let rank = plan["ranks"].as_array().unwrap().len() - 1;
            let of = |plan: &Value| plan["ranks"][rank]["peak_bytes"].as_u64().unwrap();
            if more == COPIES {
                assert_eq!(of(&plan), of(&plain));
            } else {
                assert!(of(&plan) > of(&plain), "{more}: {} {}", of(&plan), of(&plain));
            }
            let far = far_apart(&plan, &run);
            assert!(far.is_empty(), "{more}: {far:?}");
        }
    }
}

/// Sample models with parts that keep other things than attention and a dense MLP do.
const OTHERS: [&str; 19] = [
    "qwen3_next",
    "mamba2",
    "minimax_m2",
    "mamba3",
    "mamba3_mimo",
    "deepseek_v4",
    "hunyuan_v1_moe",
    "step3p5",
    "gpt_oss",
    "gpt2",
    "plm",
    "longcat_flash",
    "deepseek_v3",
    "deepseek_v32",
    "shared/qwen3_next",
    "shared/mamba2",
    "shared/minimax_m2",
    "shared/deepseek_v3",
    "shared/deepseek_v32",
];

#[test]
fn what_passes_keep_is_planned_for_every_kind_of_mixer() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for model in OTHERS {
        let Some(folder) = ms_testing::golden_model(model) else { continue };
        // Tokens that return their input are as many as a rehearsal takes where experts are taken in turn.
        let turn = if model.contains("longcat") { "--fix-router" } else { "" };
        for more in [turn, &format!("{turn} --bf16 --micro-batch-size 4")] {
            let [plan, run] = [&["--dry-run"][..], &[]].map(|extra| {
                let mut command = ms_train();
                command.arg("--load").arg(&folder).args(extra);
                command.args(
                    "--seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 2 --lr 1e-4 --json".split(' '),
                );
                command.args(["--no-load-optim", "--data-path"]).arg(&data).args(more.split_whitespace());
                let done = command.assert().success();
                serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()
            });
            ran += 1;
            wrong.extend(far_apart(&plan, &run).into_iter().map(|far| format!("{model} {more}: {far}")));
        }
    }
    assert!(ran >= 28 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_ranks_gather_and_exchange_of_documents_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    for model in ["tests/golden/models/glm_moe_dsa", "tests/golden/models/deepseek_v4"] {
        let cuts =
            ["--nproc-per-node 2 --cp 2 --bf16", "--nproc-per-node 4 --cp 2 --tp 2 --sequence-parallel"];
        for (cut, how) in cuts.into_iter().flat_map(|cut| ["kvallgather", "ulysses"].map(|how| (cut, how))) {
            let [plan, run] = [&["--dry-run"][..], &[]].map(|extra| {
                let mut command = ms_train();
                command.arg("--load").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(model));
                command.args(
                    "--seq-length 16 --micro-batch-size 2 --global-batch-size 4 --train-iters 2 --lr 1e-4 --json \
                     --no-load-optim --fix-router"
                        .split_whitespace(),
                );
                command.arg("--context-parallel-algo").arg(format!("{how}_cp_algo"));
                command.args(cut.split(' ')).args(extra).arg("--data-path").arg(&data);
                serde_json::from_slice::<Value>(&command.assert().success().get_output().stdout).unwrap()
            });
            let far = far_apart(&plan, &run);
            assert!(far.is_empty(), "{model} {cut} {how}: {far:?}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_cannot_fit_is_refused_with_what_to_lower() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    // A limit of its own, so that the outcome is not the machine's.
    let run = |extra: &[&str]| {
        let mut command = assert_cmd::Command::new("sh");
        command.args(["-c", "ulimit -v 32000000; exec \"$0\" \"$@\""]).env("MS_NO_PROGRESS", "1");
        command
            .arg(assert_cmd::cargo::cargo_bin("ms-train"))
            .args(model())
            .args(["--train-iters", "2", "--lr", "1e-3", "--data-path"])
            .arg(&data)
            .args(extra);
        command
    };
    for (extra, lower) in [
        (&["--micro-batch-size", "16777216", "--global-batch-size", "16777216"][..], "--micro-batch-size"),
        (&["--seq-length", "268435456", "--max-position-embeddings", "268435456"], "--seq-length"),
        (
            &["--num-layers", "16384", "--hidden-size", "65536", "--ffn-hidden-size", "262144"],
            "the size of the model",
        ),
    ] {
        let message = refused(&mut run(extra), 1);
        assert!(message.contains("memory: this run needs about "), "{message}");
        assert!(message.contains(" are available"), "{message}");
        assert!(message.contains("hint: lower ") && message.contains(lower), "{message}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_address_space_is_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 2, 4, counting);
    let line = format!(
        "ulimit -v 1000000; exec {} {} --train-iters 2 --lr 1e-3 --hidden-size 2048 --ffn-hidden-size 8192 \
         --num-layers 12 --data-path {}",
        assert_cmd::cargo::cargo_bin("ms-train").display(),
        model().collect::<Vec<_>>().join(" "),
        data.display()
    );
    let done = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("memory: this run needs about "), "{said}");
}
