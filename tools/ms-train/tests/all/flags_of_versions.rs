//! Model flags that newer upstream versions interpret differently from v2.0.0, or that neither reads.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};

const RUN: &str = "--micro-batch-size 1 --lr 1e-2 --lr-decay-style constant --init-method-std 0.2 --train-iters 2 --eval-iters 0 \
     --fp64";

/// The losses of a run, and what it warned of.
fn run(flags: &str) -> (Vec<f64>, String) {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (samples(dir.path(), 2, 4, counting), dir.path().join("m.jsonl"));
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(flags.split_whitespace());
    let done = command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
    let losses = metrics(&file).iter().filter_map(|l| l["lm loss"].as_f64()).collect();
    (losses, String::from_utf8_lossy(&done.get_output().stderr).into_owned())
}

#[test]
fn flags_that_the_head_hands_to_no_model_change_nothing_there_and_it_is_said() {
    let yarn = "--max-position-embeddings 64 --rope-scaling-type yarn --rope-scaling-original-max-position-embeddings 16";
    let experts = "--num-experts 4 --moe-router-topk 2 --num-layers 2 --moe-ffn-hidden-size 8";
    for (flag, beside, words, acts) in [
        ("--rotary-seq-len-interpolation-factor 4", "", "hands it to no model that it pretrains", true),
        ("--moe-layer-freq 2", experts, "all layers have experts", true),
        ("--rope-scaling-factor 2", yarn, "divides --max-position-embeddings by", true),
        ("--use-rope-scaling", "--rotary-base 500", "", false),
        ("--apply-layernorm-1p", "", "", false),
    ] {
        let head = format!("{beside} --upstream head");
        let (plain, (with, said)) = (run(&head).0, run(&format!("{head} {flag}")));
        assert_eq!(plain, with, "{flag}");
        let name = flag.split(' ').next().unwrap();
        assert!(words.is_empty() || said.contains(&format!("{name} has no effect: ")), "{said}");
        assert!(said.contains(words), "{said}");
        if acts {
            let first = if beside == experts { "--first-k-dense-replace 0" } else { "" };
            assert_ne!(
                run(&format!("{beside} {first}")).0,
                run(&format!("{beside} {first} {flag}")).0,
                "{flag}"
            );
        }
    }
    // What counts instead.
    let longer = yarn.replace("64", "128");
    assert_ne!(run(&format!("{yarn} --upstream head")).0, run(&format!("{longer} --upstream head")).0);
    let given = run(&format!("{yarn} --rope-scaling-factor 4")).0;
    assert_eq!(run(&format!("{yarn} --upstream head")).0, given);
}

#[test]
fn the_magnitude_of_yarn_acts_alone() {
    let yarn = "--max-position-embeddings 64 --rope-scaling-type yarn --rope-scaling-original-max-position-embeddings 4 \
         --rope-scaling-factor 16";
    let (plain, (with, said)) = (run(yarn).0, run(&format!("{yarn} --rope-scaling-mscale 5")));
    assert_ne!(plain, with);
    assert!(!said.contains("has no effect"), "{said}");
}

#[test]
fn biases_of_routers_are_no_parameters_of_a_plan() {
    let plan = |more: &str| -> serde_json::Value {
        let mut command = ms_train();
        command.args(model()).args(RUN.split_whitespace());
        let flags = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 8 --moe-router-score-function sigmoid \
             --upstream head --use-distributed-optimizer --dry-run --json";
        command.args(flags.split_whitespace()).args(more.split_whitespace());
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let (plain, with) = (plan(""), plan("--moe-router-enable-expert-bias"));
    for key in ["parameters", "zero1"] {
        assert_eq!(plain[key], with[key], "{key}");
    }
}

#[test]
fn a_network_without_a_gate_has_none() {
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(["--fc-type", "up_down", "--dry-run"]);
    let said = refused(&mut command, 2);
    assert!(said.contains("--fc-type up_down beside --swiglu"), "{said}");
}

#[test]
fn scores_by_layer_go_not_with_fused_attention_as_upstream_has_it() {
    let flag = "--apply-query-key-layer-scaling";
    assert_eq!(run(flag).0, run("").0);
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args([flag, "--use-flash-attn", "--dry-run"]);
    let said = refused(&mut command, 2);
    assert!(said.contains(flag) && said.contains("--use-flash-attn"), "{said}");
}
