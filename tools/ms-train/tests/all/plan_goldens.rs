//! `--dry-run --json` compared with the expected values of topologies: bytes of ranks, groups, flat buffers, rings.

use crate::tiny::ms_train;
use serde_json::{Map, Value, json};

/// A model whose heads, tokens and experts divide among the ranks of all cases.
const MODEL: &str = "--num-layers 4 --hidden-size 64 --ffn-hidden-size 96 --num-attention-heads 8 --normalization RMSNorm \
    --swiglu --position-embedding-type rope --disable-bias-linear --seq-length 96 --max-position-embeddings 96 \
    --micro-batch-size 1 --train-iters 1 --lr 1e-3";

/// The cases of a file.
fn golden(name: &str) -> Vec<Value> {
    let path = ms_testing::golden(&format!("topology/{name}.json"));
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = cases.as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn plan<'a>(flags: impl IntoIterator<Item = &'a str>) -> Value {
    let mut command = ms_train();
    let done = command.args(flags).args(["--dry-run", "--json"]).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value}: expected a number")) as usize
}

#[test]
fn bytes_of_ranks_are_the_expected_ones() {
    for case in golden("rank_bytes") {
        let argv: Vec<&str> = case["argv"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
        let plan = plan(argv.iter().copied());
        let (got, want) = (plan["ranks"].as_array().unwrap(), case["ranks"].as_array().unwrap());
        assert_eq!(got.len(), want.len(), "{argv:?}");
        for (got, want) in got.iter().zip(want) {
            for key in ["rank", "stage", "layers", "parameters", "weight_bytes", "grad_bytes"] {
                assert_eq!(got[key], want[key], "{key} of {want}: {argv:?}");
            }
            // Shares are rounded up, tensor by tensor: by three numbers of four bytes each at most.
            let (got, want) =
                (got["optimizer_bytes"].as_f64().unwrap(), want["optimizer_bytes"].as_f64().unwrap());
            let tensors: usize =
                plan["zero1"].as_array().unwrap().iter().map(|b| b["shapes"].as_array().unwrap().len()).sum();
            let rounding =
                if argv.contains(&"--use-distributed-optimizer") { 12.0 * tensors as f64 } else { 0.0 };
            assert!((want..=want + rounding).contains(&got), "{got}, expected {want}: {argv:?}");
        }
    }
}

/// Flags of a world of `ranks` with these sizes.
fn spread(ranks: usize, sizes: &[(&str, usize)]) -> String {
    let mut flags =
        format!("{MODEL} --vocab-size 300 --make-vocab-size-divisible-by 4 --nproc-per-node {ranks}");
    for (name, size) in sizes {
        flags += &format!(" --{name} {size}");
        if *name == "expert-model-parallel-size" && *size > 1 {
            flags += " --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --sequence-parallel";
        }
    }
    flags
}

#[test]
fn orders_of_pipelines_are_the_expected_ones() {
    for case in golden("pipeline_orders") {
        let [pp, chunks, micro] = ["pp", "vpp", "num_microbatches"].map(|key| number(&case[key]));
        let sizes = [
            ("pipeline-model-parallel-size", pp),
            ("num-layers", pp * chunks),
            ("global-batch-size", micro),
            ("num-layers-per-virtual-pipeline-stage", 1),
        ];
        let mut flags = spread(pp, if chunks > 1 { &sizes } else { &sizes[..3] });
        // The golden of Megatron's 0.12 is what its later release does.
        flags += if case["version"] == "0.8" { "" } else { " --upstream head" };
        let plan = plan(flags.split_whitespace());
        let pipeline = &plan["pipeline"];
        assert_eq!(pipeline["orders"], case["ops"], "{flags}");
        assert_eq!(pipeline["max_in_flight"], case["max_in_flight"], "{flags}");
        assert_eq!(pipeline["makespan"], case["makespan_f1_b2"], "{flags}");
        let bubble = |value: &Value| value.as_f64().unwrap();
        let apart = bubble(&pipeline["bubble_fraction"]) - bubble(&case["bubble_fraction"]);
        assert!(apart.abs() < 1e-12, "{flags}: {apart}");
    }
}

/// Compares every group that the case lists.
fn same_groups(case: &Value, flags: &str) {
    let plan = plan(flags.split_whitespace());
    assert_eq!(plan["world"], case["world"], "{flags}");
    let mut compared = 0;
    for (name, groups) in case.as_object().unwrap().iter().filter(|(_, value)| value.is_array()) {
        assert_eq!(plan["groups"][name], *groups, "{name}: {flags}");
        compared += 1;
    }
    assert!(compared > 10, "{case}");
}

#[test]
fn groups_of_ranks_are_the_expected_ones() {
    for case in golden("rank_groups") {
        let size = |name: &str| case[name][0].as_array().unwrap().len();
        let sizes = [
            ("tensor-model-parallel-size", size("tp")),
            ("context-parallel-size", size("cp")),
            ("pipeline-model-parallel-size", size("pp")),
            ("expert-model-parallel-size", size("ep")),
        ];
        let mut flags = spread(number(&case["world"]), &sizes);
        flags += match case["hybrid_ulysses_degree"].as_u64() {
            Some(2) => " --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
            Some(other) => panic!("a degree of {other}"),
            None => " --context-parallel-algo megatron_cp_algo",
        };
        if case["order"] == "tp-pp-dp" {
            flags += " --use-tp-pp-dp-mapping";
        }
        same_groups(&case, &flags);
    }
    for case in golden("rank_groups_head") {
        let sizes = case["flags"].as_object().unwrap();
        let sizes: Vec<(&str, usize)> =
            sizes.iter().map(|(name, size)| (name.as_str(), number(size))).collect();
        let flags = spread(number(&case["world"]), &sizes);
        same_groups(&case, &format!("{flags} --upstream head --context-parallel-algo megatron_cp_algo"));
    }
}

/// A flat buffer of these parameters by Megatron's rule, computed here independently: from the last one on, each at a
/// multiple of 64; a bucket ends after the one that fills it, at a multiple of 128 and of the number of ranks, which share
/// every bucket evenly.
fn flat_buffer(shapes: &Value, dp: usize, bucket_size: Option<usize>) -> Value {
    let up = |n: usize, unit: usize| n.div_ceil(unit) * unit;
    let unit = (1..).map(|k| 128 * k).find(|n| n % dp == 0).unwrap();
    let (mut at, mut first, mut buckets, mut params) = (0, 0, Vec::new(), Vec::new());
    for named in shapes.as_array().unwrap().iter().rev() {
        let numel: usize = named[1].as_array().unwrap().iter().map(number).product();
        let start = up(at, 64);
        at = start + numel;
        params.push((named[0].as_str().unwrap(), start, at, buckets.len()));
        if bucket_size.is_some_and(|most| at - first >= most) {
            at = up(at, unit);
            buckets.push([first, at]);
            first = at;
        }
    }
    if at > first {
        at = up(at, unit);
        buckets.push([first, at]);
    }
    let slices = |rank: usize| {
        let mut slices = Vec::new();
        for (bucket, [start, end]) in buckets.iter().enumerate() {
            let each = (end - start) / dp;
            let shard = start + rank * each..start + (rank + 1) * each;
            for (name, from, to, _) in params.iter().filter(|param| param.3 == bucket) {
                let (low, high) = (shard.start.max(*from), shard.end.min(*to));
                if low < high {
                    slices.push(json!([name, low - from, high - from, bucket, low - shard.start]));
                }
            }
        }
        slices
    };
    json!({
        "numel": at,
        "buckets": buckets,
        "params": params.iter().map(|p| (p.0.to_owned(), json!([p.1, p.2, p.3]))).collect::<Map<_, _>>(),
        "rank_slices": (0..dp).map(slices).collect::<Vec<_>>(),
    })
}

#[test]
fn flat_buffers_are_the_expected_ones() {
    for case in golden("zero1_layout") {
        let (dp, bucket_size) = (number(&case["dp"]), case["bucket_size"].as_u64().map(|n| n as usize));
        let keys = ["numel", "buckets", "params", "rank_slices"];
        let want = flat_buffer(&case["shapes"], dp, bucket_size);
        for key in keys {
            assert_eq!(want[key], case[key], "{key} of the rule itself");
        }
        let mut flags = format!(
            "--num-layers 1 --hidden-size 32 --ffn-hidden-size 88 --num-attention-heads 4 --normalization RMSNorm --swiglu \
             --position-embedding-type rope --disable-bias-linear --seq-length 96 --max-position-embeddings 96 \
             --micro-batch-size 1 --train-iters 1 --lr 1e-3 --vocab-size 100 --make-vocab-size-divisible-by 1 \
             --untie-embeddings-and-output-weights --use-distributed-optimizer --nproc-per-node {dp}"
        );
        if let Some(elements) = bucket_size {
            flags += &format!(" --overlap-grad-reduce --ddp-bucket-size {elements}");
        }
        let plan = plan(flags.split_whitespace());
        let [buffer] = &plan["zero1"].as_array().unwrap()[..] else { panic!("{flags}: one buffer") };
        for key in ["dp", "bucket_size", "numel"] {
            assert_eq!(buffer[key], case[key], "{key}: {flags}");
        }
        // The same parameters, in Megatron's order, as the plan says; the expected values list two of attention's the other way
        // round.
        let sorted = |shapes: &Value| {
            let mut all: Vec<String> = shapes.as_array().unwrap().iter().map(Value::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&buffer["shapes"]), sorted(&case["shapes"]));
        let want = flat_buffer(&buffer["shapes"], dp, bucket_size);
        for key in keys {
            assert_eq!(buffer[key], want[key], "{key}: {flags}");
        }
        // Without the distributed optimizer Megatron pads nothing.
        let whole = self::plan(flags.replace("--use-distributed-optimizer", "").split_whitespace());
        let elements = |shape: &Value| shape[1].as_array().unwrap().iter().map(number).product::<usize>();
        let shapes = whole["zero1"][0]["shapes"].as_array().unwrap();
        assert_eq!(
            number(&whole["zero1"][0]["numel"]),
            shapes.iter().map(elements).sum::<usize>(),
            "{flags}"
        );
        // Buckets of Megatron-core 0.12 that end at multiples of 2^16 elements, and of the ranks.
        let wide = format!("{flags} --upstream head --ddp-pad-buckets-for-high-nccl-busbw");
        let wide_plan = self::plan(wide.split_whitespace());
        let buckets = wide_plan["zero1"][0]["buckets"].as_array().unwrap();
        assert!(!buckets.is_empty());
        for end in buckets.iter().map(|b| number(&b[1])) {
            assert_eq!((end % 65_536, end % dp), (0, 0), "{wide}");
        }
    }
}

#[test]
fn shares_of_sequences_are_the_expected_ones() {
    let with = |cp: usize, more: &str| {
        let sizes = [("context-parallel-size", cp)];
        plan(format!("{} {more}", spread(cp, &sizes)).split_whitespace())["cp"].clone()
    };
    for case in golden("cp_maps") {
        let cp = number(&case["cp"]);
        for (window, order) in case["ring_kv_order"].as_object().unwrap() {
            let found =
                with(cp, &format!("--context-parallel-algo megatron_cp_algo --cp-window-size {window}"));
            assert_eq!(found["chunks"], case["zigzag_chunks"], "cp {cp}, window {window}");
            assert_eq!(found["kv_order"], *order, "cp {cp}, window {window}");
        }
    }
    let causal = golden("adaptive_cp").into_iter().filter(|case| case["name"] == "causal");
    for case in causal {
        let cp = number(&case["cp"]);
        let found = with(cp, "--context-parallel-algo adaptive_cp_algo");
        assert_eq!(found["tasks"], case["schedule"], "cp {cp}");
    }
}
