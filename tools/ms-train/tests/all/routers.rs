//! Flags of routers and of measurements, as a user gives them.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use serde_json::Value;

const EXPERTS: &str = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 8 --lr 1e-2 --lr-decay-style constant \
    --init-method-std 0.2 --train-iters 3 --eval-iters 0";

/// The lines of a run of three iterations.
fn lines(flags: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (samples(dir.path(), 3, 4, counting), dir.path().join("m.jsonl"));
    let mut command = ms_train();
    command.args(model()).args(EXPERTS.split_whitespace()).args(flags.split_whitespace());
    command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
    metrics(&file).into_iter().filter(|l| l["iteration"].is_u64()).collect()
}

fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().map(|l| l["lm loss"].as_f64().unwrap()).collect()
}

#[test]
fn deepseek_v2s_losses_and_the_z_loss_are_reported_and_change_the_run() {
    let limited = "--moe-router-load-balancing-type group_limited_greedy --n-group 4 --topk-group 2 --moe-aux-loss-coeff 0.1";
    let plain = lines(limited);
    let all = lines(&format!(
        "{limited} --moe-device-level-aux-loss-coeff 0.5 --moe-comm-aux-loss-coeff 0.2 --moe-z-loss-coeff 0.1"
    ));
    for (i, line) in all.iter().enumerate() {
        for name in [
            "load_balancing_loss",
            "load_balancing_device_level_loss",
            "load_balancing_comm_level_loss",
            "z_loss",
        ] {
            assert!(line[name].as_f64().unwrap() > 0.0, "{name} in {line}");
        }
        assert!(plain[i].get("z_loss").is_none(), "a loss that is not asked for is not reported");
    }
    // The same weights at first, others after the first step.
    assert_eq!(losses(&plain)[0], losses(&all)[0]);
    assert_ne!(losses(&plain)[2], losses(&all)[2]);
    let by_sequence = lines(&format!("{limited} --seq-aux"));
    assert_ne!(plain[0]["load_balancing_loss"], by_sequence[0]["load_balancing_loss"]);
}

#[test]
fn the_log_line_has_the_routers_losses_where_upstreams_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 3, 4, counting);
    let said = |flags: &str, board: bool| {
        let mut command = ms_train();
        command.args(model()).args(EXPERTS.split_whitespace()).args(flags.split_whitespace());
        command.args(["--log-interval", "3", "--data-path"]).arg(&data);
        if board {
            command.arg("--tensorboard-dir").arg(dir.path().join("board"));
        }
        let done = command.assert().success();
        let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        let line = text.lines().find(|line| line.contains(" lm loss: ")).unwrap();
        let names = line.split('|').filter_map(|field| field.split_once(':').map(|(name, _)| name.trim()));
        names.skip_while(|name| *name != "lm loss").skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let balanced =
        "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.02 --moe-z-loss-coeff 0.01";
    assert_eq!(said(balanced, true)[..2], ["z_loss", "load_balancing_loss"]);
    assert_eq!(said(balanced, false)[0], "loss scale");
    let none = "--moe-router-load-balancing-type none";
    assert_eq!(said(none, true)[0], "loss scale");
}

#[test]
fn a_loss_of_groups_without_groups_is_refused_by_its_flag() {
    let limited = "--moe-router-load-balancing-type group_limited_greedy --topk-group 1";
    for (flags, words) in
        [("", "needs --moe-router-load-balancing-type"), (limited, "needs groups of experts")]
    {
        let mut command = ms_train();
        command.args(model()).args(EXPERTS.split_whitespace()).args(flags.split_whitespace());
        command.args(["--moe-device-level-aux-loss-coeff", "0.1", "--dry-run"]);
        let message = refused(&mut command, 2);
        assert!(message.contains(&format!("--moe-device-level-aux-loss-coeff: {words}")), "{message}");
    }
}

#[test]
fn groups_are_those_of_expert_parallel_ranks_where_nothing_else_is_said() {
    let limited =
        "--moe-router-load-balancing-type group_limited_greedy --topk-group 1 --moe-aux-loss-coeff 0.1";
    let named = lines(&format!("{limited} --n-group 2 --nproc-per-node 2 --ep 2 --micro-batch-size 2"));
    let silent = lines(&format!("{limited} --nproc-per-node 2 --ep 2 --micro-batch-size 2"));
    assert_eq!(losses(&named), losses(&silent));
    assert_ne!(losses(&named), losses(&lines(limited)));
    // One rank with as many groups has the same losses.
    let wide = |more: &str| lines(&format!("{limited} --fp64 --micro-batch-size 2 {more}"));
    let (one, two) = (wide("--n-group 2"), wide("--nproc-per-node 2 --ep 2"));
    for name in ["lm loss", "load_balancing_loss", "grad norm"] {
        for (a, b) in one.iter().zip(&two) {
            let [a, b] = [a, b].map(|line| line[name].as_f64().unwrap());
            assert!((a - b).abs() <= 1e-10 * a.abs(), "{name}: {a} {b}");
        }
    }
}

#[test]
fn weights_are_divided_and_scaled_where_that_version_of_upstream_does() {
    let with =
        |kind: &str, more: &str| losses(&lines(&format!("--moe-router-load-balancing-type {kind} {more}")));
    let (divided, scaled) = ("--norm-topk-prob", "--routed-scaling-factor 2.5");
    let plain = with("softmax_topk", "");
    assert_eq!(plain, with("softmax_topk", &format!("{divided} {scaled}")));
    assert_eq!(plain, with("softmax_topk", "--moe-router-score-function sigmoid"));
    let presoft = "--moe-router-pre-softmax";
    for (kind, unread) in [
        ("aux_loss", "--moe-router-score-function sigmoid"),
        ("aux_loss", "--n-group 2 --topk-group 1"),
        ("none", divided),
        ("pai_megatron_aux_loss", &format!("{divided} {scaled}")),
        ("sinkhorn", scaled),
    ] {
        let balance = if kind == "sinkhorn" { "--moe-aux-loss-coeff 0" } else { "" };
        let without = with(kind, &format!("{presoft} {balance}"));
        assert_eq!(without, with(kind, &format!("{presoft} {balance} {unread}")), "{kind} {unread}");
    }
    assert_ne!(with("none", presoft), with("none", &format!("{presoft} {scaled}")));
    let head = with("softmax_topk", "--upstream head");
    let head_divided = with("softmax_topk", &format!("--upstream head {divided}"));
    assert!(
        head[0] != head_divided[0]
            && head_divided[0]
                != with(
                    "softmax_topk",
                    &format!("--upstream head {divided} --moe-router-topk-scaling-factor 2.5")
                )[0]
    );
    // The head divides what it has scaled.
    let scaled = "--upstream head --moe-router-topk-scaling-factor 2.5";
    assert_eq!(
        with("aux_loss", &format!("--upstream head {divided}")),
        with("aux_loss", &format!("{scaled} {divided}"))
    );
    assert_ne!(with("aux_loss", "--upstream head"), with("aux_loss", scaled));
}

#[test]
fn groups_are_judged_by_as_many_experts_as_that_version_of_upstream_does() {
    let groups = "--moe-router-load-balancing-type aux_loss --moe-router-num-groups 2 --moe-router-group-topk 1 \
        --moe-router-score-function sigmoid --upstream head";
    let with = |more: &str| losses(&lines(&format!("{groups} {more}")));
    // Two experts of one group: the best two, whichever function forms the sum.
    assert_eq!(with(""), with("--topk-softmax-in-fp32"));
    // Three of one group are judged by three, by the other function by two.
    assert_ne!(with("--moe-router-topk 3"), with("--moe-router-topk 3 --topk-softmax-in-fp32"));
    let mut command = ms_train();
    command.args(model()).args(EXPERTS.split_whitespace()).args(groups.split_whitespace());
    command.args("--moe-router-num-groups 4 --moe-router-group-topk 3 --dry-run".split_whitespace());
    let message = refused(&mut command, 2);
    let words =
        "--moe-router-topk, --moe-router-group-topk: model: groups of 2 experts are judged by their best";
    assert!(message.contains(words) && message.contains("expected 1 to 2 of them, found 0"), "{message}");
    // Those that choose in a way of their own look at no such sum.
    let greedy =
        "--moe-router-load-balancing-type group_limited_greedy --n-group 4 --topk-group 3 --upstream head";
    assert_eq!(losses(&lines(greedy)), losses(&lines(&format!("{greedy} --topk-softmax-in-fp32"))));
}

#[test]
fn kinds_without_a_loss_train_and_sequences_are_balanced_where_upstream_does() {
    let with = |kind: &str, more: &str| {
        lines(&format!("--moe-router-load-balancing-type {kind} --moe-aux-loss-coeff 0.5 {more}"))
    };
    for kind in ["none", "softmax_topk", "sparsemixer_topk"] {
        assert_eq!(with(kind, "")[0]["load_balancing_loss"], 0.0, "{kind}");
    }
    let biased = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --seq-aux";
    let (none, noaux) = (with("none", biased), with("noaux_tc", biased));
    assert!(none[0]["load_balancing_loss"].as_f64().unwrap() > 0.0);
    assert_eq!(none[0]["load_balancing_loss"], noaux[0]["load_balancing_loss"]);
    assert_ne!(
        losses(&none)[2],
        losses(&with("none", "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"))[2]
    );
}

#[test]
fn losses_of_each_layers_router_are_those_whose_mean_is_logged() {
    let balanced = "--num-layers 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.02";
    let plain = lines(balanced);
    let each = lines(&format!("{balanced} --moe-per-layer-logging"));
    let of_layers = |line: &Value| -> Vec<f64> {
        let named = line.as_object().unwrap().iter();
        named
            .filter(|(name, _)| name.starts_with("moe/load_balancing_loss_layer_"))
            .map(|(_, v)| v.as_f64().unwrap())
            .collect()
    };
    assert_eq!(losses(&plain), losses(&each));
    for (plain, each) in plain.iter().zip(&each) {
        assert!(of_layers(plain).is_empty(), "{plain}");
        let (layers, mean) = (of_layers(each), each["load_balancing_loss"].as_f64().unwrap());
        assert!(layers.len() > 1 && layers.windows(2).any(|pair| pair[0] != pair[1]), "{each}");
        assert!((layers.iter().sum::<f64>() / layers.len() as f64 - mean).abs() < 1e-12, "{each}");
    }
}

#[test]
fn tokens_that_are_spread_evenly_go_the_same_ways_on_any_topology() {
    let even = "--moe-router-load-balancing-type sinkhorn --moe-z-loss-coeff 0.1";
    let (one, other) = (lines(even), lines("--moe-router-load-balancing-type none --moe-router-pre-softmax"));
    assert_ne!(losses(&one), losses(&other));
    let most = |lines: &[Value]| -> u64 {
        let layers = lines[0]["tokens per expert"].as_array().unwrap();
        layers.iter().flat_map(|l| l.as_array().unwrap()).map(|n| n.as_u64().unwrap()).max().unwrap()
    };
    assert!(most(&one) < most(&other), "{} {}", one[0]["tokens per expert"], other[0]["tokens per expert"]);
    for topology in [
        "--nproc-per-node 2 --cp 2",
        "--nproc-per-node 4 --tp 2 --cp 2 --sequence-parallel --moe-token-dispatcher-type alltoall --upstream head",
        "--nproc-per-node 2 --tp 2 --sequence-parallel --moe-tp-extend-ep",
    ] {
        let spread = lines(&format!("{even} {topology}"));
        for (a, b) in losses(&one).into_iter().zip(losses(&spread)) {
            assert!((a - b).abs() < 2e-5 * a, "{topology}: {a} {b}");
        }
        assert_eq!(one[0]["tokens per expert"], spread[0]["tokens per expert"], "{topology}");
    }
    for (more, words) in [
        ("--moe-aux-loss-coeff 0.1", "--moe-aux-loss-coeff: expected 0 beside"),
        (
            "--moe-expert-capacity-factor 1 --moe-token-dispatcher-type alltoall",
            "--moe-expert-capacity-factor: cannot be combined with",
        ),
    ] {
        let mut command = ms_train();
        command.args(model()).args(EXPERTS.split_whitespace()).args(even.split_whitespace());
        let message = refused(command.args(more.split_whitespace()).arg("--dry-run"), 2);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn upstreams_other_flag_switches_jitter_off() {
    let plain = losses(&lines(""));
    assert_eq!(losses(&lines("--moe-input-jitter-eps 0.1 --input-jitter")), plain);
    assert_ne!(losses(&lines("--moe-input-jitter-eps 0.1")), plain);
}

#[test]
fn experts_in_turn_are_the_same_on_any_topology() {
    let one = lines("--fix-router");
    let chosen = lines("");
    assert_ne!(losses(&one)[0], losses(&chosen)[0]);
    // What is reported, and balanced, is what routers would choose.
    assert_eq!(one[0]["tokens per expert"], chosen[0]["tokens per expert"]);
    let spread = lines(
        "--fix-router --nproc-per-node 4 --tp 2 --cp 2 --context-parallel-algo megatron_cp_algo --sequence-parallel",
    );
    for (a, b) in losses(&one).into_iter().zip(losses(&spread)) {
        assert!((a - b).abs() < 2e-5 * a, "{a} {b}");
    }
    assert_eq!(one[0]["tokens per expert"], spread[0]["tokens per expert"]);
}

#[test]
fn stretches_of_one_length_take_the_place_of_documents() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = dir.path().join("tokenizer");
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    ms_text::bpe::train(&options, ["some text".to_owned()]).unwrap().write(&tokenizer).unwrap();
    let fixed = "--upstream head --reset-attention-mask --vocab-size 280 --padded-vocab-size 320 --tokenizer-name-or-path";
    let with = |more: &str| losses(&lines(&format!("{fixed} {} {more}", tokenizer.display())));
    let (whole, halves) = (with("--fix-sub-seq-length 16"), with("--fix-sub-seq-length 8"));
    assert_ne!(whole, halves);
    // Longer than a row: documents count, as without the flag.
    assert_eq!(with(""), with("--fix-sub-seq-length 17"));
}

#[test]
fn a_folder_that_is_not_hugging_faces_is_refused_where_one_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 1, 4, counting);
    let mut command = ms_train();
    command.args(model()).args(EXPERTS.split_whitespace()).args([
        "--upstream",
        "head",
        "--enable-hf2mg-convert",
    ]);
    command.arg("--data-path").arg(&data).arg("--load").arg(dir.path());
    let message = refused(&mut command, 2);
    assert!(
        message.contains("--enable-hf2mg-convert: expected --load to be a Hugging Face folder"),
        "{message}"
    );
}

#[test]
fn dropout_and_jitter_are_drawn_alike_on_any_topology() {
    let noisy = "--hidden-dropout 0.2 --attention-dropout 0.3 --moe-input-jitter-eps 0.1";
    let (plain, one) = (lines(""), lines(noisy));
    assert_ne!(losses(&plain)[0], losses(&one)[0]);
    assert_ne!(losses(&plain)[0], losses(&lines("--attention-dropout 0.3"))[0]);
    assert_eq!(losses(&one), losses(&lines(noisy)), "a second run");
    for topology in [
        "--nproc-per-node 2 --tp 2 --sequence-parallel",
        "--nproc-per-node 2 --cp 2",
        "--nproc-per-node 4 --micro-batch-size 1",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ] {
        let spread = lines(&format!("{noisy} {topology}"));
        // Micro-batches of one sample give a mean of means over as many counted tokens.
        for (a, b) in losses(&one).into_iter().zip(losses(&spread)) {
            assert!((a - b).abs() < 2e-5 * a, "{topology}: {a} {b}");
        }
    }
    assert_ne!(losses(&one), losses(&lines(&format!("{noisy} --seed 8"))));
}

#[test]
fn every_kind_of_router_trains_on_any_topology_as_on_one_rank() {
    let softmax = "--moe-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.01 --moe-router-load-balancing-type";
    let sigmoid =
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-aux-loss-coeff 0.1";
    for kind in [
        format!("{softmax} aux_loss"),
        format!("{softmax} seq_aux_loss --upstream head"),
        format!("{softmax} softmax_topk"),
        format!("{softmax} pai_megatron_aux_loss"),
        format!("{softmax} sparsemixer_topk"),
        format!(
            "{softmax} group_limited_greedy --n-group 4 --topk-group 2 --moe-device-level-aux-loss-coeff 0.1"
        ),
        format!("{sigmoid} --moe-router-load-balancing-type noaux_tc --n-group 4 --topk-group 2"),
        format!("{sigmoid} --moe-router-load-balancing-type none --seq-aux"),
        "--moe-router-load-balancing-type none --moe-router-balanced-groups --moe-router-num-groups 2"
            .to_owned(),
    ] {
        let run =
            |topology: &str| lines(&format!("--fp64 --num-layers 2 --micro-batch-size 2 {kind} {topology}"));
        let one = run("");
        for topology in [
            "--nproc-per-node 2 --ep 2 --moe-token-dispatcher-type alltoall",
            "--nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
            "--nproc-per-node 4 --pp 2 --cp 2 --ep 2 --context-parallel-algo megatron_cp_algo",
            "--nproc-per-node 2 --tp 2 --sequence-parallel --moe-tp-extend-ep",
        ] {
            let several = run(topology);
            for (a, b) in one.iter().zip(&several) {
                for key in ["lm loss", "grad norm"] {
                    let (a, b) = (a[key].as_f64().unwrap(), b[key].as_f64().unwrap());
                    assert!((a - b).abs() < 1e-10 * a, "{kind} {topology}: {key}: {a} {b}");
                }
                assert_eq!(a["tokens per expert"], b["tokens per expert"], "{kind} {topology}");
            }
        }
    }
}

#[test]
fn of_two_flags_for_one_number_it_is_said_which_counts() {
    let planned = |flags: &str| {
        let mut command = ms_train();
        command.args(model()).args(["--lr", "1e-3", "--train-iters", "2", "--dry-run"]);
        let done = command.args(flags.split_whitespace()).assert().success();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    let said = planned("--rotary-base 1000 --rope-theta 100");
    assert!(
        said.contains("--rotary-base and --rope-theta name one number: that of --rotary-base counts"),
        "{said}"
    );
    assert!(!planned("--rotary-base 1000 --rope-theta 1000").contains("name one number"));
    planned("--rotary-base 9223372036854775807");
}
