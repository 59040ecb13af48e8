//! Routers of both versions of upstream: what its own Python makes of a model and rows that formulas give.
//!
//! The numbers are those of the `topk_router_routing` of MindSpeed-LLM 2.0.0 and of its head (2026), with MindSpeed and
//! Megatron-LM `core_r0.8.0` and `core_v0.12.1` below it, in the place of the router of `transformers`' Mixtral.

use crate::tiny::{metrics, ms_train};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::Path;

const SEQ: usize = 16;
const ROWS: usize = 4;

/// `n` values between -`scale` / 2 and `scale` / 2.
fn drawn(n: usize, salt: usize, scale: f64) -> Vec<f32> {
    let place = |i: usize| (i * i * 31 + i * 7919 + salt * 104_729) % 1999;
    (0..n).map(|i| ((place(i) as f64 / 1999.0 - 0.5) * scale) as f32).collect()
}

/// A Mixtral of two layers and eight experts, in Hugging Face's form.
fn mixtral(dir: &Path) {
    let mut shapes: Vec<(String, Vec<usize>)> =
        ["lm_head.weight", "model.embed_tokens.weight"].map(|name| (name.to_owned(), vec![64, 16])).into();
    shapes.push(("model.norm.weight".into(), vec![16]));
    for layer in 0..2 {
        let mut put = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        for e in 0..8 {
            for (name, shape) in [("w1", [12, 16]), ("w2", [16, 12]), ("w3", [12, 16])] {
                put(&format!("block_sparse_moe.experts.{e}.{name}"), &shape);
            }
        }
        put("block_sparse_moe.gate", &[8, 16]);
        for (name, rows) in [("q_proj", 16), ("k_proj", 8), ("v_proj", 8), ("o_proj", 16)] {
            put(&format!("self_attn.{name}"), &[rows, 16]);
        }
        put("input_layernorm", &[16]);
        put("post_attention_layernorm", &[16]);
    }
    shapes.sort();
    let values = shapes.iter().enumerate().map(|(salt, (name, shape))| {
        let n = shape.iter().product();
        let scale = if name.ends_with("gate.weight") { 4.0 } else { 1.5 };
        let values = if name.contains("norm") { vec![1.0; n] } else { drawn(n, salt, scale) };
        values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    });
    let values: Vec<Vec<u8>> = values.collect();
    let views = shapes.iter().zip(&values).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 64, "hidden_size": 16,
        "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 64, "rope_theta": 1e6,
        "rms_norm_eps": 1e-5, "sliding_window": null, "tie_word_embeddings": false, "hidden_act": "silu",
        "torch_dtype": "float32"
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Rows of which every fifth token does not count.
fn rows(path: &Path, iterations: usize) {
    let tokens =
        (0..iterations * ROWS).flat_map(|r| (0..=SEQ).map(move |t| ((r * 13 + t * (1 + r % 3)) % 64) as i32));
    let counts = (0..iterations * ROWS).flat_map(|r| (0..SEQ).map(move |t| f32::from((r + t) % 5 != 0)));
    let tokens: Vec<u8> = tokens.flat_map(i32::to_le_bytes).collect();
    let counts: Vec<u8> = counts.flat_map(f32::to_le_bytes).collect();
    let views = [
        ("tokens", TensorView::new(Dtype::I32, vec![iterations, ROWS, SEQ + 1], &tokens).unwrap()),
        ("loss_mask", TensorView::new(Dtype::F32, vec![iterations, ROWS, SEQ], &counts).unwrap()),
    ];
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The first iteration of a run with these flags, and what was said.
fn first(flags: &str) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("rows.safetensors"), dir.path().join("m.jsonl"));
    mixtral(dir.path());
    rows(&data, 1);
    let mut command = ms_train();
    command.arg("--load").arg(dir.path()).arg("--data-path").arg(&data).arg("--metrics-file").arg(&file);
    command.args(
        "--finetune --seq-length 16 --global-batch-size 4 --train-iters 1 --lr 0 --min-lr 0 --weight-decay 0 --eval-iters 0 \
         --hidden-dropout 0 --attention-dropout 0 --moe-token-dispatcher-type alltoall"
            .split_whitespace(),
    );
    command.args(["--moe-router-load-balancing-type"]).args(flags.split_whitespace());
    let done = command.assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    (metrics(&file).into_iter().find(|l| l["iteration"].is_u64()).unwrap(), said)
}

/// That a run with these flags has upstream's loss, its loss of balance, if there is one, and the norm of its gradient.
fn is_upstreams(flags: &str, [loss, balance, norm]: [f64; 3]) {
    let (line, _) = first(flags);
    for (name, want) in [("lm loss", loss), ("load_balancing_loss", balance), ("grad norm", norm)] {
        let found = line[name].as_f64().unwrap();
        // Sums in f32, in two orders.
        assert!(
            want.is_nan() || (found - want).abs() <= 2e-5 * want,
            "{flags}: {name}: {found}, upstream {want}"
        );
    }
}

const UNREAD: f64 = f64::NAN;

#[test]
fn scores_of_a_single_expert_are_balanced_undivided_by_the_head() {
    for kind in ["aux_loss", "seq_aux_loss"] {
        let flags =
            "--upstream head --moe-aux-loss-coeff .1 --moe-router-topk 1 --moe-router-score-function sigmoid";
        is_upstreams(&format!("{kind} {flags} --micro-batch-size 1"), [5.1709566, 4.8059133, 3.9415384]);
    }
    let old =
        "aux_loss --moe-aux-loss-coeff .1 --moe-router-topk 1 --moe-router-pre-softmax --micro-batch-size 1";
    is_upstreams(old, [5.1499202, 2.2764334, 4.0928712]);
}

#[test]
fn the_last_tokens_of_every_sample_are_beyond_the_capacity() {
    let position = "--moe-expert-capacity-factor .5 --moe-token-drop-policy position";
    let (two, four) = (
        format!("aux_loss --moe-aux-loss-coeff .1 {position} --micro-batch-size 2"),
        format!("none {position} --micro-batch-size 4"),
    );
    is_upstreams(&two, [5.0976491, 1.2997328, 3.2085275]);
    is_upstreams(&format!("{two} --upstream head"), [5.0932239, 1.2997328, 3.2085275]);
    is_upstreams(&four, [5.1314092, UNREAD, 4.3152772]);
    for topology in [
        "--nproc-per-node 2 --tp 2 --sequence-parallel",
        "--nproc-per-node 2 --pp 2",
        "--nproc-per-node 2 --ep 2",
    ] {
        is_upstreams(&format!("{two} {topology}"), [5.0976491, 1.2997328, 3.2085275]);
    }
}

#[test]
fn beside_a_loss_per_token_losses_of_routers_count_as_many_as_that_version_of_upstream_does() {
    let per_token = "--calculate-per-token-loss --moe-z-loss-coeff .1 --micro-batch-size 1";
    is_upstreams(&format!("none {per_token}"), [UNREAD, UNREAD, 5.7697231]);
    is_upstreams(&format!("none {per_token} --upstream head"), [5.1438729, UNREAD, 16.814351]);
    let two = "--moe-aux-loss-coeff .1 --calculate-per-token-loss --micro-batch-size 2";
    for topology in ["", "--nproc-per-node 2", "--nproc-per-node 2 --tp 2 --sequence-parallel"] {
        is_upstreams(&format!("aux_loss {two} {topology}"), [UNREAD, 1.4184923, 5.7649252]);
        let head = format!("{two} {topology} --upstream head");
        is_upstreams(&format!("aux_loss {head}"), [5.143873, 1.4184923, 5.7587243]);
        is_upstreams(&format!("seq_aux_loss {head} --moe-z-loss-coeff .1"), [5.143873, 1.8027744, 16.863571]);
    }
}

#[test]
fn what_a_type_of_router_does_not_look_at_changes_nothing_and_a_warning_says_so() {
    let plain = [5.1017496, UNREAD, 5.339942];
    let (divided, sigmoid) = ("--norm-topk-prob", "--moe-router-score-function sigmoid");
    let scaled = "--moe-router-topk-scaling-factor 2.5";
    let said = |flags: &str, flag: &str, kind: &str| {
        let (line, said) = first(flags);
        let words = format!("{flag} has no effect: upstream's {kind} makes nothing of it in this version");
        assert_eq!(said.matches(&words).count(), 1, "{flags}: {said}");
        line["lm loss"].as_f64().unwrap()
    };
    for (kind, flags) in [
        ("none", format!("{divided} --moe-router-pre-softmax")),
        ("seq_aux_loss", format!("{divided} --moe-router-pre-softmax --moe-aux-loss-coeff 0")),
        ("pai_megatron_aux_loss", format!("{divided} --moe-aux-loss-coeff 0")),
        ("pai_megatron_aux_loss", format!("{scaled} --moe-aux-loss-coeff 0")),
        ("pai_megatron_aux_loss", format!("{sigmoid} --moe-aux-loss-coeff 0")),
        ("softmax_topk", sigmoid.to_owned()),
        ("softmax_topk", "--moe-router-score-function sqrtsoftplus".to_owned()),
    ] {
        let flags = format!("{kind} {flags} --upstream head --micro-batch-size 1");
        is_upstreams(&flags, plain);
        let flag = flags.split(' ').nth(1).unwrap();
        said(&flags, flag, kind);
    }
    // Of a limit of groups in both versions; its loss has another scale upstream.
    let limited = format!("group_limited_greedy {sigmoid} --moe-aux-loss-coeff .1 --micro-batch-size 1");
    let (old, head) = (
        "--n-group 4 --topk-group 2",
        "--moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-topk-scaling-factor 1 --upstream head",
    );
    for (flags, want) in [(old, 5.1064653), (head, 5.1017496)] {
        let flags = format!("{limited} {flags}");
        is_upstreams(&flags, [want, 1.8031692, UNREAD]);
        said(&flags, "--moe-router-score-function", "group_limited_greedy");
    }
    for kind in ["sinkhorn", "sparsemixer_topk"] {
        let flags = format!("{kind} --moe-aux-loss-coeff 0 --upstream head --micro-batch-size 1");
        let without = first(&flags).0["lm loss"].as_f64().unwrap();
        for flag in [divided, scaled] {
            let name = flag.split(' ').next().unwrap();
            assert_eq!(said(&format!("{flags} {flag}"), name, kind), without, "{kind} {flag}");
        }
    }
}

#[test]
fn a_single_expert_whose_weight_is_divided_last_weighs_one() {
    let single = "--norm-topk-prob --moe-router-topk 1 --moe-router-topk-scaling-factor 2.5 --moe-aux-loss-coeff 0 \
         --upstream head --micro-batch-size 1";
    for score in ["--moe-router-score-function sigmoid", "--moe-router-pre-softmax"] {
        let flags = format!("aux_loss {score} {single}");
        is_upstreams(&flags, [5.1991421, UNREAD, 3.6926797]);
        let (_, said) = first(&flags);
        assert!(!said.contains("--norm-topk-prob has no effect"), "{said}");
    }
    let undivided = "aux_loss --moe-router-score-function sigmoid --moe-router-topk 1 --moe-router-topk-scaling-factor 2.5 \
         --moe-aux-loss-coeff 0 --upstream head --micro-batch-size 1";
    is_upstreams(undivided, [5.3372892, UNREAD, 6.1965722]);
    let two = "aux_loss --norm-topk-prob --moe-router-score-function sigmoid --moe-aux-loss-coeff 0 --upstream head --micro-batch-size 1";
    is_upstreams(two, [5.1842402, UNREAD, 4.2613317]);
}

/// After one iteration of four rows of 16 tokens with two of eight experts each, of which an expert takes `factor` times 16.
fn biases_after(version: &str, factor: f64, more: &str) -> (Vec<Vec<u64>>, Vec<Vec<f64>>) {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, save) =
        (dir.path().join("rows.safetensors"), dir.path().join("m.jsonl"), dir.path().join("run"));
    rows(&data, 1);
    let mut command = ms_train();
    command.args(
        "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --ffn-hidden-size 16 --normalization RMSNorm --swiglu \
         --position-embedding-type rope --disable-bias-linear --vocab-size 64 --padded-vocab-size 64 --seq-length 16 \
         --max-position-embeddings 16 --micro-batch-size 4 --global-batch-size 4 --seed 7 --init-method-std 0.2 --num-experts 8 \
         --moe-router-topk 2 --moe-router-load-balancing-type none --moe-router-score-function sigmoid --lr 1e-3 --train-iters 1 \
         --eval-iters 0 --moe-router-enable-expert-bias --moe-router-bias-update-rate .05 --moe-token-dispatcher-type alltoall"
            .split_whitespace(),
    );
    command.args(["--upstream", version, "--moe-expert-capacity-factor", &factor.to_string()]);
    command.args(more.split_whitespace()).arg("--save").arg(&save);
    command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).assert().success();
    let line = metrics(&file).into_iter().find(|l| l["iteration"].is_u64()).unwrap();
    let tokens = serde_json::from_value(line["tokens per expert"].clone()).unwrap();
    let checkpoint = ms_ckpt::open(&save).unwrap();
    let params = ms_spec::params(checkpoint.config());
    let biases = params.iter().filter(|spec| spec.name.ends_with("expert_bias")).map(|spec| {
        let mut bytes = vec![0u8; 8 * spec.shape.numel()];
        let whole = ms_core::Region::whole(&spec.shape);
        checkpoint.read(spec, &whole, ms_core::DType::F64, &mut bytes).unwrap();
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    });
    (tokens, biases.collect())
}

#[test]
fn biases_move_by_what_experts_take_at_the_head_and_by_what_was_meant_for_them_before() {
    for (version, factor, more) in [
        ("v2.0.0", 0.5, ""),
        ("head", 0.5, ""),
        ("head", 0.75, ""),
        ("head", 0.5, "--moe-token-drop-policy position"),
        (
            "head",
            0.75,
            "--nproc-per-node 2 --tp 2 --sequence-parallel --moe-token-dispatcher-type alltoall_seq",
        ),
        ("head", 0.5, "--moe-pad-expert-input-to-capacity"),
    ] {
        let (tokens, biases) = biases_after(version, factor, more);
        assert_eq!((tokens.len(), biases.len()), (2, 2));
        let capacity = (16.0 * factor) as u64;
        for (tokens, biases) in tokens.iter().zip(&biases) {
            assert_eq!(tokens.iter().sum::<u64>(), 128);
            assert!(tokens.iter().any(|&n| n > capacity), "{tokens:?}");
            let counted = tokens.iter().map(|&n| match version {
                "head" if more.contains("--moe-pad") => capacity,
                "head" => n.min(capacity),
                _ => n,
            });
            let counted: Vec<f64> = counted.map(|n| n as f64).collect();
            let mean = counted.iter().sum::<f64>() / 8.0;
            let behind = |n: &f64| if mean == *n { 0.0 } else { 0.05 * (mean - n).signum() };
            for (bias, want) in biases.iter().zip(counted.iter().map(behind)) {
                assert!((bias - want).abs() < 1e-8, "{version} {factor} {more}: {tokens:?} {biases:?}");
            }
        }
    }
}
