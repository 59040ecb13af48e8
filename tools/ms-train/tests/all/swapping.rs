//! What `--swap-modules` and `--smart-swap` move out of a rank's memory, and latents gathered while products are computed, as
//! a user requests them.

use crate::tiny::{counting, model, ms_train, refused, samples_of};
use serde_json::Value;
use std::path::Path;

/// Wide enough that what passes keep is most of what a rank takes.
const RUN: &str = "--hidden-size 64 --ffn-hidden-size 192 --num-layers 4 --train-iters 3 --lr 1e-3 --eval-iters 0 \
                   --micro-batch-size 4 --global-batch-size 8 --seq-length 64 --max-position-embeddings 64";

fn command(more: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(more.split_whitespace());
    command
}

fn json(command: &mut assert_cmd::Command) -> Value {
    let done = command.arg("--json").assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn planned(more: &str) -> Value {
    json(command(more).arg("--dry-run"))
}

fn run(data: &Path, more: &str) -> Value {
    json(command(more).arg("--data-path").arg(data))
}

/// What a plan says besides.
fn warnings(more: &str) -> String {
    let done = command(more).arg("--dry-run").assert().success();
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

fn of_rank(plan: &Value, what: &str) -> f64 {
    plan["ranks"][0][what].as_f64().unwrap()
}

/// Checks that a run takes what is planned, within two percent.
fn as_planned(plan: &Value, run: &Value, what: &str) {
    for (planned, taken) in [
        ("kept_bytes", "kept_bytes"),
        ("swapped_bytes", "swapped_bytes"),
        ("peak_block_bytes", "peak_block_bytes"),
    ] {
        let (planned, taken) = (of_rank(plan, planned), run["per_rank"][0][taken].as_f64().unwrap());
        assert!((planned - taken).abs() <= 0.02 * taken, "{what}: planned {planned}, taken {taken}");
    }
}

#[test]
fn every_part_that_is_named_leaves_and_no_loss_changes() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (3, 8, 64), counting);
    let experts = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --n-shared-experts 1";
    for (model, lists) in [
        (
            "",
            &[
                "input_layernorm",
                "core_attention",
                "linear_qkv,linear_proj",
                "self_attention",
                "linear_fc2",
                "mlp",
            ][..],
        ),
        (experts, &["router", "experts", "shared_experts", "mlp", "self_attention,mlp"]),
    ] {
        let plain = run(&data, model);
        assert_eq!(of_rank(&planned(model), "swapped_bytes"), 0.0);
        let mut sent = Vec::new();
        for list in lists {
            let more = format!("{model} --swap-attention --swap-modules {list}");
            let (plan, run) = (planned(&more), run(&data, &more));
            as_planned(&plan, &run, &more);
            assert_eq!(run["last_loss"], plain["last_loss"], "{more}");
            let kept = |run: &Value| run["kept_bytes_per_rank"].as_f64().unwrap();
            assert!(kept(&run) < kept(&plain), "{more}: keeps {} of {}", kept(&run), kept(&plain));
            sent.push(of_rank(&plan, "swapped_bytes"));
        }
        // Each list but the last of those with experts names other parts.
        let mut apart = sent.clone();
        apart.sort_by(f64::total_cmp);
        apart.dedup();
        assert_eq!(apart.len(), sent.len(), "{lists:?}: {sent:?}");
    }
}

#[test]
fn the_default_is_upstreams_and_names_are_found_as_it_finds_them() {
    let sent = |more: &str| of_rank(&planned(more), "swapped_bytes");
    let of = |list: &str| sent(&format!("--swap-attention --swap-modules {list}"));
    assert_eq!(sent("--swap-attention"), of("input_layernorm,self_attention,pre_cross_attn_layernorm"));
    assert_eq!(sent("--swap-attention"), of("input_layernorm") + of("self_attention"));
    assert_eq!(sent("--upstream head --swap-attention"), of("self_attention"));
    assert_eq!(of("pre_mlp_layernorm"), of("mlp,pre_mlp_layernorm"));
    assert!(of("pre_mlp_layernorm") > of("mlp"));
    let said = |list: &str| warnings(&format!("--swap-attention --swap-modules {list}"));
    let (alone, both) = (said("pre_mlp_layernorm"), said("mlp,pre_mlp_layernorm"));
    assert!(alone.contains("--swap-modules: mlp stands in pre_mlp_layernorm"), "{alone}");
    assert!(!both.contains("stands in"), "{both}");
    let typo = said("mlp,self_atention");
    assert!(typo.contains("--swap-modules: \"self_atention\" names no part of a layer"), "{typo}");
    let (none, elsewhere) = (said("attention"), said("mlp,router"));
    assert!(none.contains("--swap-attention swaps nothing: --swap-modules attention"), "{none}");
    assert_eq!(of("attention"), 0.0);
    assert!(elsewhere.contains("--swap-modules: no layer of the model has the part router"), "{elsewhere}");
    // An MLP that is swapped is not recomputed, as upstream.
    let again = "--recompute-num-layers 2";
    assert_eq!(of(&format!("mlp {again}")), of("mlp"));
    let kept =
        |list: &str| of_rank(&planned(&format!("--swap-attention --swap-modules {list}")), "kept_bytes");
    assert!(kept(&format!("self_attention {again}")) < kept("self_attention"));
}

#[test]
fn smart_swap_swaps_what_it_must_and_no_loss_changes() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (3, 8, 64), counting);
    let plain = run(&data, "");
    let peak = |plan: &Value| of_rank(plan, "peak_block_bytes");
    let all = "input_layernorm,self_attention,pre_mlp_layernorm,mlp";
    let steps: Vec<f64> = ["", "--swap-attention", &format!("--swap-attention --swap-modules {all}")]
        .into_iter()
        .map(|more| peak(&planned(more)))
        .chain([peak(&planned(&format!("--swap-attention --swap-modules {all} --swap-optimizer")))])
        .collect();
    assert!(steps.windows(2).all(|pair| pair[1] < pair[0]), "each takes less than the one before: {steps:?}");
    let all: Vec<&str> = all.split(',').collect();
    for (i, (parts, optimizer)) in
        [(&[][..], false), (&all[..2], false), (&all[..], false), (&all[..], true)].into_iter().enumerate()
    {
        let more = format!("--smart-swap --smart-swap-memory {}", steps[i]);
        let plan = planned(&more);
        let chosen = &plan["smart_swap"];
        assert_eq!(chosen["swapped"], serde_json::json!(parts), "{more}: {chosen}");
        assert_eq!(chosen["optimizer"], optimizer, "{more}");
        assert_eq!(chosen["limit_bytes"].as_f64().unwrap(), steps[i]);
        assert_eq!(chosen["without_bytes"].as_f64().unwrap(), steps[0]);
        assert_eq!((peak(&plan), chosen["peak_block_bytes"].as_f64().unwrap()), (steps[i], steps[i]));
        let run = run(&data, &more);
        as_planned(&plan, &run, &more);
        assert_eq!(run["last_loss"], plain["last_loss"], "{more}");
    }
    // One byte less than the least is too little; where nothing is said there is enough.
    let least = steps[3] - 1.0;
    let said = refused(command(&format!("--smart-swap --smart-swap-memory {least}")).arg("--dry-run"), 2);
    assert!(said.starts_with("ms-train: --smart-swap-memory: with all swapped"), "{said}");
    let said = refused(command("--smart-swap --smart-swap-memory lots").arg("--dry-run"), 2);
    assert!(said.starts_with("ms-train: --smart-swap-memory: expected a size"), "{said}");
    assert_eq!(planned("--smart-swap")["smart_swap"]["swapped"], serde_json::json!([]));
    assert_eq!(planned("")["smart_swap"], Value::Null);
    // What the flags say already stays swapped; state in the weights cannot leave.
    let more = format!("--swap-attention --smart-swap --smart-swap-memory {}", steps[0]);
    assert_eq!(planned(&more)["smart_swap"]["swapped"], serde_json::json!(&all[..2]));
    let halves = "--bf16 --reuse-fp32-param --smart-swap --smart-swap-memory 1KiB";
    assert!(refused(command(halves).arg("--dry-run"), 2).contains("--smart-swap-memory: with all swapped"));
}

#[test]
fn latents_gathered_beside_products_give_the_same_losses() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (3, 8, 64), counting);
    let latent = "--upstream head --multi-latent-attention --kv-lora-rank 16 --qk-head-dim 16 --qk-pos-emb-head-dim 8 \
                  --v-head-dim 16";
    let queries = format!("{latent} --q-lora-rank 24");
    let two = "--nproc-per-node 2 --tensor-model-parallel-size 2";
    let shared = format!("{queries} {two} --sequence-parallel");
    let overlap = "--mla-up-proj-tp-overlap --mla-mm-split";
    let (plain, beside) = (run(&data, &shared), run(&data, &format!("{shared} {overlap}")));
    assert_eq!(plain["last_loss"], beside["last_loss"]);
    as_planned(&planned(&format!("{shared} {overlap}")), &beside, overlap);
    for (more, flag) in [
        (format!("{shared} --mla-up-proj-tp-overlap"), "--mla-mm-split"),
        (format!("{queries} {two} {overlap}"), "--sequence-parallel"),
    ] {
        let said = refused(command(&more).arg("--dry-run"), 2);
        assert!(said.starts_with(&format!("ms-train: --mla-up-proj-tp-overlap: needs {flag}")), "{said}");
    }
    for (more, why) in [
        (format!("--upstream head {overlap}"), "the model has no latent attention"),
        (format!("{latent} {two} --sequence-parallel {overlap}"), "queries without latents"),
    ] {
        let said = warnings(&more);
        assert!(
            said.contains("--mla-up-proj-tp-overlap has no effect") && said.contains(why),
            "{more}: {said}"
        );
    }
    assert!(!warnings(&format!("{shared} {overlap}")).contains("--mla-up-proj-tp-overlap has no effect"));
}
