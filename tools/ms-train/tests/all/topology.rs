//! `ms-train` on sharded topologies: checkpoints convert between any two, plans say what a run does, impossible sizes are
//! refused.

use crate::tiny;
use crate::tiny::{counting, metrics, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

/// A model that every topology of this file divides: tied embeddings, experts with biases of their routers.
const MODEL: &str = "--num-layers 4 --hidden-size 16 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
    --ffn-hidden-size 16 --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear \
    --vocab-size 64 --padded-vocab-size 64 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 \
    --global-batch-size 8 --seed 7 --hidden-dropout 0 --attention-dropout 0 --num-experts 4 --moe-router-topk 2 \
    --moe-ffn-hidden-size 8 --moe-aux-loss-coeff 0.02 --lr 1e-2 --lr-decay-style constant --init-method-std 0.2";

const TOPOLOGIES: [&str; 5] = [
    "",
    "--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel",
    "--nproc-per-node 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    "--nproc-per-node 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 4 --context-parallel-size 2 --context-parallel-algo megatron_cp_algo --tensor-model-parallel-size 2",
];

/// What Megatron's folders of these topologies are called.
const FOLDERS: [&[&str]; 5] = [
    &["mp_rank_00"],
    &["mp_rank_00", "mp_rank_01"],
    &["mp_rank_00_000", "mp_rank_00_001"],
    &["mp_rank_00_000", "mp_rank_00_001"],
    &["mp_rank_00", "mp_rank_01"],
];

fn train(dir: &Path, data: &Path, topology: &str, iters: usize, more: &[&str]) -> Vec<Value> {
    let file = dir.join(format!("metrics-{iters}-{}.jsonl", more.len() + topology.len()));
    let mut command = ms_train();
    command.args(MODEL.split_whitespace()).args(topology.split_whitespace()).args(more);
    command.args(["--train-iters", &iters.to_string(), "--eval-iters", "0"]);
    command.arg("--data-path").arg(data).arg("--metrics-file").arg(&file).assert().success();
    let rows = metrics(&file);
    std::fs::remove_file(&file).unwrap();
    rows.into_iter().filter(|r| r["iteration"].is_u64()).collect()
}

fn losses(rows: &[Value]) -> Vec<f64> {
    rows.iter().map(|r| r["lm loss"].as_f64().unwrap()).collect()
}

#[test]
fn a_run_stopped_on_one_topology_goes_on_on_another() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 8, counting);
    let straight = losses(&train(dir.path(), &data, "", 6, &[]));
    for (i, first) in TOPOLOGIES.into_iter().enumerate() {
        let save = dir.path().join(format!("save-{i}"));
        let save = save.to_str().unwrap();
        let begun = losses(&train(dir.path(), &data, first, 6, &["--save", save, "--exit-interval", "3"]));
        for second in [TOPOLOGIES[(i + 1) % 5], TOPOLOGIES[(i + 2) % 5]] {
            let rest = losses(&train(dir.path(), &data, second, 6, &["--load", save]));
            assert_eq!(rest.len(), 3, "{first} then {second}");
            for (got, want) in begun.iter().chain(&rest).zip(&straight) {
                assert!((got - want).abs() < 2e-5, "{first} then {second}: {got}, expected {want}");
            }
        }
        // On the same topology the bits are the same.
        let whole = losses(&train(dir.path(), &data, first, 6, &[]));
        let rest = losses(&train(dir.path(), &data, first, 6, &["--load", save]));
        assert_eq!(rest, whole[3..], "{first}");
    }
}

#[test]
fn in_float64_a_run_goes_on_on_another_topology_to_ten_digits() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 8, counting);
    for rule in ["--optimizer adam", "--optimizer sgd --sgd-momentum 0.5"] {
        let with = |more: &[&str]| -> Vec<String> {
            rule.split(' ').chain(["--fp64"]).chain(more.iter().copied()).map(str::to_owned).collect()
        };
        let run = |topology: &str, more: &[&str]| {
            let more = with(more);
            losses(&train(
                dir.path(),
                &data,
                topology,
                6,
                &more.iter().map(String::as_str).collect::<Vec<_>>(),
            ))
        };
        let straight = run("", &[]);
        for (i, first) in TOPOLOGIES.into_iter().enumerate().skip(1) {
            let save = dir.path().join(format!("save-{}-{i}", rule.len()));
            let save = save.to_str().unwrap();
            let begun = run(first, &["--save", save, "--exit-interval", "3", "--ckpt-format", "torch"]);
            let rest = run(TOPOLOGIES[(i + 2) % 5], &["--load", save]);
            assert_eq!(begun.len() + rest.len(), 6, "{rule}: {first}");
            for (got, want) in begun.iter().chain(&rest).zip(&straight) {
                assert!(
                    (got - want).abs() < 1e-10,
                    "{rule}: {first}: {got}, expected {want}: {begun:?} {rest:?} {straight:?}"
                );
            }
        }
    }
}

/// A data set of documents, whose samples are shuffled, and the flags that read it.
fn documents(dir: &Path) -> std::path::PathBuf {
    let prefix = dir.join("documents");
    let mut writer =
        ms_data::indexed::IndexedWriter::create(&prefix, ms_data::indexed::TokenType::I32).unwrap();
    for document in 0..60 {
        writer.sequence(&(0..40).map(|place| counting(document, place)).collect::<Vec<_>>()).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    prefix
}

/// All weights of a checkpoint, in float64.
fn weights(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let checkpoint = ms_ckpt::open(folder).unwrap();
    let read = |spec: &ms_spec::ParamSpec| {
        let mut bytes = vec![0u8; 8 * spec.shape.numel()];
        let whole = ms_core::Region::whole(&spec.shape);
        checkpoint.read(spec, &whole, ms_core::DType::F64, &mut bytes).unwrap();
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    };
    ms_spec::params(checkpoint.config()).iter().map(|spec| (spec.name.clone(), read(spec))).collect()
}

/// Three iterations and three more have the losses and norms of six, and leave the same weights, bit by bit.
#[test]
fn every_order_of_a_pipeline_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 8, counting);
    let two = "--nproc-per-node 2 --pp 2";
    let modules = "--mtp-num-layers 2 --untie-embeddings-and-output-weights";
    let interleaved = "--num-layers-per-virtual-pipeline-stage 1";
    for (i, flags) in [
        format!("{two} --schedules-method zero-bubble"),
        format!("{two} --schedules-method zero-bubble --bf16 {modules}"),
        format!("{two} --schedules-method dualpipev"),
        format!("{two} --schedules-method dualpipev --bf16 {modules}"),
        format!("{two} --mtp-num-layers 1"),
        format!("{two} {interleaved} {modules}"),
        format!("--nproc-per-node 4 --pp 2 --use-distributed-optimizer --overlap-grad-reduce {interleaved} --mtp-num-layers 1 --bf16"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = |what: &str| dir.path().join(format!("{what}-{i}")).to_str().unwrap().to_owned();
        let [whole, half, end] = ["whole", "half", "end"].map(path);
        let run = |more: &[&str]| -> Vec<[u64; 2]> {
            let rows = train(dir.path(), &data, &flags, 6, more);
            let bits = |row: &Value, key: &str| row[key].as_f64().unwrap().to_bits();
            rows.iter().map(|row| [bits(row, "lm loss"), bits(row, "grad norm")]).collect()
        };
        let straight = run(&["--save", &whole]);
        let begun = run(&["--save", &half, "--exit-interval", "3"]);
        let rest = run(&["--load", &half, "--save", &end]);
        assert_eq!((straight.len(), &begun[..], &rest[..]), (6, &straight[..3], &straight[3..]), "{flags}");
        let [got, want] = [&end, &whole].map(|folder| weights(Path::new(folder)));
        assert!(got.len() > 20 && got.len() == want.len());
        for ((name, got), (_, want)) in got.iter().zip(&want) {
            assert!(got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{flags}: {name}");
        }
    }
}

#[test]
fn routers_biases_and_a_shuffled_order_go_on_on_another_topology() {
    let dir = tempfile::tempdir().unwrap();
    let data = documents(dir.path());
    let flags = "--fp64 --split 100,0,0 --tokenizer-type NullTokenizer --moe-router-score-function sigmoid \
                 --moe-router-enable-expert-bias --moe-router-load-balancing-type none --moe-router-bias-update-rate 1e-2";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let path = |name: String| dir.path().join(name).to_str().unwrap().to_owned();
    let run = |topology: &str, more: &[&str]| {
        let rows = train(dir.path(), &data, topology, 6, &[&flags, more].concat());
        let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
        rows.iter().map(|row| [number(row, "lm loss"), number(row, "grad norm")]).collect::<Vec<_>>()
    };
    let save = path("straight".into());
    let straight = run("", &["--save", &save]);
    let want = weights(Path::new(&save));
    let biases = want.iter().filter(|(name, _)| name.ends_with("router.expert_bias"));
    assert!(biases.clone().count() == 4 && biases.flat_map(|b| &b.1).any(|b| *b != 0.0), "biases move");
    for (i, first) in TOPOLOGIES.into_iter().enumerate() {
        let second = TOPOLOGIES[(i + 2) % 5];
        let (half, end) = (path(format!("half-{i}")), path(format!("end-{i}")));
        let begun = run(first, &["--save", &half, "--exit-interval", "3"]);
        let rest = run(second, &["--load", &half, "--save", &end]);
        assert_eq!((begun.len(), rest.len()), (3, 3), "{first} then {second}");
        for (got, want) in begun.iter().chain(&rest).zip(&straight) {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-10, "{first} then {second}: {got}, expected {want}");
            }
        }
        for ((name, got), (other, want)) in weights(Path::new(&end)).iter().zip(&want) {
            assert_eq!((name, got.len()), (other, want.len()));
            let apart = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-9, "{first} then {second}: {name} differs by {apart:e}");
        }
    }
}

#[test]
fn megatrons_files_are_the_same_from_any_topology() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 1, 8, counting);
    let mut tensors = Vec::new();
    for (i, topology) in TOPOLOGIES.into_iter().enumerate() {
        let save = dir.path().join(format!("save-{i}"));
        let more = ["--save", save.to_str().unwrap(), "--ckpt-format", "torch", "--skip-train"];
        // A run without an iteration saves nothing; one iteration at rate 0 keeps the initial weights.
        let more = [&more[..4], &["--lr", "0", "--weight-decay", "0"]].concat();
        train(dir.path(), &data, topology, 1, &more);
        // The rank files alone, as Megatron sees them: cut for the run's own ranks.
        let alone = dir.path().join(format!("alone-{i}"));
        let found = tiny::for_megatron(&save, 1, &alone);
        assert_eq!(found, FOLDERS[i], "{topology}");
        let checkpoint = ms_ckpt::open(&alone).unwrap();
        assert_eq!(checkpoint.form().name(), "mcore", "{topology}");
        let read = |spec: &ms_spec::ParamSpec| {
            let mut values = vec![0; 4 * spec.shape.numel()];
            let whole = ms_core::Region::whole(&spec.shape);
            checkpoint.read(spec, &whole, ms_core::DType::F32, &mut values).unwrap();
            values
        };
        tensors.push(ms_spec::params(checkpoint.config()).iter().map(read).collect::<Vec<_>>());
    }
    for (values, topology) in tensors.iter().zip(TOPOLOGIES) {
        assert_eq!(*values, tensors[0], "initial weights of {topology}");
    }
}

#[test]
fn a_plan_needs_no_data_and_says_what_every_rank_holds() {
    let mut command = ms_train();
    command.args(MODEL.split_whitespace()).args(["--dry-run", "--json", "--bf16"]);
    command.args("--nproc-per-node 8 --tp 2 --pp 2 --ep 2 --use-distributed-optimizer".split_whitespace());
    let out = command.assert().success();
    let plan: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    assert_eq!(plan["world"], 8);
    assert_eq!(plan["groups"]["pp"][0], serde_json::json!([0, 4]));
    assert_eq!(plan["groups"]["ep"][0], serde_json::json!([0, 2]));
    assert_eq!(plan["pipeline"]["orders"].as_array().unwrap().len(), 2);
    assert_eq!(plan["zero1"].as_array().unwrap().len(), 2, "dense and experts");
    let ranks = plan["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 8);
    assert_eq!(
        (&ranks[0]["layers"], &ranks[4]["layers"]),
        (&serde_json::json!([0, 1]), &serde_json::json!([2, 3]))
    );
    for rank in ranks {
        assert_eq!(rank["weight_bytes"].as_u64().unwrap(), 2 * rank["parameters"].as_u64().unwrap());
        assert!(rank["activation_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_their_flag() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 1, 8, counting);
    for (flags, words) in [
        ("--nproc-per-node 3 --tp 2", "2 or 4 ranks fit"),
        ("--tp 2", "2 ranks fit"),
        (
            "--nproc-per-node 8 --tp 8 --num-attention-heads 4",
            "query heads: 4 is not divisible by tp 8; 4 divides it",
        ),
        ("--nproc-per-node 3 --pp 3", "4 layers are not divisible by pipeline size 3; 2 and 4 divide it"),
        ("--nproc-per-node 2 --pp 2 --num-layer-list 3,2", "expected 2 numbers with the sum 4"),
        (
            "--nproc-per-node 3 --ep 3 --global-batch-size 9",
            "experts: 4 is not divisible by ep 3; 2 and 4 divide it",
        ),
        (
            "--nproc-per-node 6 --tp 2 --ep 3 --global-batch-size 9 --sequence-parallel --moe-tp-extend-ep",
            "--moe-tp-extend-ep with --tensor-model-parallel-size 2 and --expert-model-parallel-size 3: experts: 4 is not divisible \
             by ep 6",
        ),
        (
            "--nproc-per-node 2 --pp 2 --schedules-method dualpipev --global-batch-size 2",
            "at least 3 micro-batches",
        ),
        (
            "--nproc-per-node 3 --cp 3 --context-parallel-algo megatron_cp_algo",
            "16 tokens are not divisible into 6 chunks for 3 ranks; 12 and 18 do (--seq-length)",
        ),
        ("--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_cp_algo", "--ulysses-degree-in-cp: "),
        (
            "--nproc-per-node 8 --cp 8 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 --cp-window-size 3 \
             --global-batch-size 8",
            "--cp-window-size: expected a divisor of the ring",
        ),
        (
            "--upstream head --nproc-per-node 2 --expert-tensor-parallel-size 2 --moe-token-dispatcher-type alltoall_seq",
            "--expert-tensor-parallel-size: expected a divisor",
        ),
        (
            "--nproc-per-node 3 --cp 3 --context-parallel-algo adaptive_cp_algo",
            "16 tokens are not divisible into 3 chunks",
        ),
        (
            "--nproc-per-node 2 --cp 2 --context-parallel-algo adaptive_cp_algo --adaptive-cp-manually-set-mask-list",
            "--adaptive-cp-manually-set-mask-list",
        ),
        (
            "--nproc-per-node 3 --tp 3 --num-attention-heads 6 --num-query-groups 6 --hidden-size 20 --kv-channels 4 --ffn-hidden-size 24 \
             --moe-ffn-hidden-size 9 --padded-vocab-size 96 --moe-token-dispatcher-type alltoall --seq-length 18 \
             --max-position-embeddings 18",
            "--moe-token-dispatcher-type: 20 columns are not divisible by the 3 ranks",
        ),
        (
            "--upstream head --nproc-per-node 3 --tp 3 --num-attention-heads 6 --num-query-groups 6 --hidden-size 24 --kv-channels 4 \
             --ffn-hidden-size 24 --moe-ffn-hidden-size 9 --padded-vocab-size 96 --moe-token-dispatcher-type alltoall \
             --micro-batch-size 1",
            "--moe-token-dispatcher-type alltoall: 16 tokens of a micro-batch are not divisible",
        ),
        (
            "--upstream head --context-parallel-kv-cache-policy full",
            "expected --context-parallel-size above 1",
        ),
        ("--upstream head --context-parallel-cache-interval 1", "needs --context-parallel-kv-cache-policy"),
        (
            "--upstream head --nproc-per-node 2 --cp 2 --context-parallel-algo megatron_cp_algo \
             --context-parallel-kv-cache-policy half --context-parallel-cache-interval 4",
            "--context-parallel-cache-interval: expected less than the 4 layers",
        ),
        ("--moe-expert-capacity-factor 1", "expected --moe-token-dispatcher-type alltoall"),
        ("--moe-alltoall-overlap-comm", "expected --moe-token-dispatcher-type alltoall"),
        (
            "--moe-token-dispatcher-type alltoall --moe-allgather-overlap-comm",
            "--moe-allgather-overlap-comm: expected --moe-token-dispatcher-type allgather",
        ),
        ("--moe-zero-memory level0", "--moe-zero-memory: needs --moe-alltoall-overlap-comm"),
        ("--moe-fb-overlap", "--moe-fb-overlap: expected --moe-token-dispatcher-type alltoall"),
        (
            "--moe-token-dispatcher-type alltoall --moe-fb-overlap --moe-alltoall-overlap-comm",
            "--moe-fb-overlap: cannot be combined with --moe-alltoall-overlap-comm",
        ),
        (
            "--moe-token-dispatcher-type alltoall --moe-fb-overlap --overlap-grad-reduce",
            "--moe-fb-overlap: cannot be combined with --overlap-grad-reduce, as in upstream",
        ),
        (
            "--moe-token-dispatcher-type alltoall --moe-fb-overlap --moe-zero-memory level1",
            "--moe-fb-overlap: cannot be combined with --moe-zero-memory level1",
        ),
        (
            "--upstream head --moe-token-dispatcher-type alltoall_seq --moe-fb-overlap",
            "--moe-fb-overlap: expected --moe-token-dispatcher-type alltoall, as in upstream, found alltoall_seq",
        ),
        (
            "--upstream head --moe-token-dispatcher-type alltoall --moe-fb-overlap",
            "--moe-fb-overlap: expected --expert-model-parallel-size above 1, as in upstream, found 1",
        ),
        (
            "--upstream head --nproc-per-node 4 --pp 2 --ep 2 --moe-token-dispatcher-type alltoall --moe-fb-overlap",
            "--moe-fb-overlap: expected --pipeline-model-parallel-size 1, stages of several chunks",
        ),
        (
            "--upstream head --nproc-per-node 4 --pp 2 --ep 2 --num-layers-per-virtual-pipeline-stage 1 \
             --moe-token-dispatcher-type alltoall --moe-fb-overlap --micro-batch-size 1 --global-batch-size 4",
            "--moe-fb-overlap: expected at least 4 micro-batches in an iteration",
        ),
        (
            "--upstream head --moe-token-dispatcher-type alltoall --moe-unperm2-mem-optim-swap",
            "--moe-unperm2-mem-optim-swap: needs --moe-fb-overlap",
        ),
        ("--moe-zero-memory-num-layers 1", "needs --moe-zero-memory"),
        (
            "--moe-token-dispatcher-type alltoall --moe-alltoall-overlap-comm --moe-zero-memory level1 \
             --recompute-granularity full --recompute-method uniform",
            "--moe-zero-memory: cannot be combined with --recompute-granularity full",
        ),
        (
            "--moe-token-dispatcher-type alltoall --moe-alltoall-overlap-comm --moe-zero-memory level1 \
             --moe-zero-memory-num-layers 5",
            "expected at most the 4 layers of a stage, found 5",
        ),
    ] {
        let mut command = ms_train();
        command.args(MODEL.split_whitespace()).args(flags.split_whitespace());
        command.args(["--train-iters", "1", "--data-path"]).arg(&data);
        let message = refused(&mut command, 2);
        assert!(message.contains(words), "{flags}: {message}");
    }
}

#[test]
fn a_layer_that_finds_no_place_is_refused_under_the_flag_that_is_wrong() {
    let run = |flags: &str| {
        let mut command = ms_train();
        command.args(MODEL.split_whitespace()).args(flags.split_whitespace());
        command.args(["--train-iters", "2", "--dry-run", "--nproc-per-node", "2", "--pp", "2"]);
        refused(&mut command, 2)
    };
    for (flags, flag) in [
        (
            "--num-layers-per-virtual-pipeline-stage 3",
            "--num-layers-per-virtual-pipeline-stage: chunks of 3 layers",
        ),
        ("--num-virtual-stages-per-pipeline-rank 3", "--num-virtual-stages-per-pipeline-rank 3: 4 layers"),
        ("--num-layers 5", "--pipeline-model-parallel-size: 5 layers"),
        ("--num-layer-list 3,2", "--num-layer-list: layer list [3, 2]"),
        ("--noop-layers 4", "--noop-layers, --num-layers: model: empty slots: expected numbers below"),
        ("--noop-layers 0,1,2,3", "--noop-layers, --num-layers: model: all 4 layers are empty slots"),
        ("--num-layers 6 --schedules-method dualpipev", "--schedules-method: 6 layers"),
    ] {
        let message = run(flags);
        assert!(message.contains(flag), "{flags}: {message}");
    }
}

#[test]
fn tables_of_words_and_experts_follow_their_own_rates_on_every_topology() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    let rates = "--fp64 --decoupled-lr 0.05 --decoupled-min-lr 0.01 --weight-decay 0.3";
    let untied = "--untie-embeddings-and-output-weights";
    for tied in ["", untied] as [&'static str; 2] {
        let with = |flags: &'static str| -> Vec<&'static str> {
            flags.split(' ').chain(tied.split_whitespace()).collect()
        };
        let one = losses(&train(dir.path(), &data, "", 4, &with(rates)));
        for other in [
            "--fp64 --weight-decay 0.3",
            "--fp64 --decoupled-lr 0.05 --decoupled-min-lr 0.01 --weight-decay 0",
        ] {
            assert_ne!(one, losses(&train(dir.path(), &data, "", 4, &with(other))), "{other} {tied}");
        }
        for topology in TOPOLOGIES[1..].iter().copied().chain([
            "--nproc-per-node 4 --pipeline-model-parallel-size 4 --use-distributed-optimizer",
            "--nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        ]) {
            let several = losses(&train(dir.path(), &data, topology, 4, &with(rates)));
            for (a, b) in one.iter().zip(&several) {
                assert!((a - b).abs() < 1e-10 * a, "{topology} {tied}: {one:?} {several:?}");
            }
        }
    }
}

#[test]
fn a_run_has_the_sizes_of_the_one_that_saved_where_that_is_asked_for() {
    const FLAG: &str = "--use-mp-args-from-checkpoint-args";
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    let topology = "--nproc-per-node 4 --tp 2 --pp 2 --num-layers-per-virtual-pipeline-stage 1 --ep 1";
    for format in ["safetensors", "torch"] {
        let save = dir.path().join(format);
        let save = save.to_str().unwrap();
        train(
            dir.path(),
            &data,
            topology,
            4,
            &["--save", save, "--exit-interval", "2", "--ckpt-format", format],
        );
        let plan = |more: &str| -> Value {
            let mut command = ms_train();
            command.args(MODEL.split_whitespace()).args([
                "--dry-run",
                "--json",
                "--load",
                save,
                "--nproc-per-node",
                "4",
            ]);
            let done = command.args(more.split_whitespace()).assert().success();
            serde_json::from_slice(&done.get_output().stdout).unwrap()
        };
        let grid = |plan: &Value| {
            let groups = |name: &str| plan["groups"][name][0].as_array().unwrap().len();
            (groups("tp"), groups("pp"), plan["layers_per_stage"].clone(), plan["pipeline"]["orders"].clone())
        };
        let (asked, without) = (plan(FLAG), plan(""));
        assert_eq!(grid(&asked), grid(&plan(topology)), "{format}");
        // Whatever the flags say of the sizes, but not of the layers of a chunk.
        assert_eq!(grid(&plan(&format!("{FLAG} --tp 4 --pp 1"))), grid(&asked), "{format}");
        assert_ne!(grid(&without), grid(&asked), "{format}");
    }
    let mut command = ms_train();
    let said = refused(command.args(MODEL.split_whitespace()).args([FLAG, "--dry-run"]), 2);
    assert!(said.contains(&format!("{FLAG}: expected --load")), "{said}");
}

#[test]
fn artificial_data_trains_alike_on_every_topology_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.jsonl");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // 4095 words and the end of documents: 4096 rows, as upstream's tokenizer without words counts.
    let model = MODEL
        .replace("--vocab-size 64 --padded-vocab-size 64 --seq-length 16 --max-position-embeddings 16", "");
    let data = "--vocab-size 4095 --make-vocab-size-divisible-by 1 --seq-length 64 --max-position-embeddings 64 --mock-data \
                --tokenizer-type NullTokenizer --fp64 --train-iters 4 --eval-iters 1 --eval-interval 4";
    let run = |topology: &str, more: &[&str]| {
        let mut command = ms_train();
        command
            .args(model.split_whitespace())
            .args(data.split_whitespace())
            .args(topology.split_whitespace());
        command.args(more).arg("--metrics-file").arg(&file).assert().success();
        let rows = metrics(&file);
        std::fs::remove_file(&file).unwrap();
        let found = |key: &str| rows.iter().filter_map(|r| r[key].as_f64()).collect::<Vec<_>>();
        (found("lm loss"), found("grad norm"))
    };
    let (losses, norms) = run("", &["--save", &path("whole")]);
    assert!(losses.len() >= 4 && norms.len() == 4 && norms.iter().all(|n| *n > 0.0), "{losses:?}");
    let close = |got: &[f64], want: &[f64]| {
        got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-10)
    };
    for (i, topology) in TOPOLOGIES.into_iter().enumerate().skip(1) {
        let half = path(&format!("half-{i}"));
        let first = run(topology, &["--save", &half, "--exit-interval", "2"]);
        assert!(close(&first.0, &losses[..2]), "{topology}: {first:?}, expected {losses:?}");
        let rest = run(TOPOLOGIES[(i + 1) % 5], &["--load", &half]);
        assert!(close(&rest.0, &losses[2..]), "{topology}, gone on: {rest:?}, expected {losses:?}");
        assert!(close(&[first.1, rest.1].concat(), &norms), "{topology}: expected {norms:?}");
    }
    let plan = ms_train()
        .args(model.split_whitespace())
        .args(data.split_whitespace())
        .args(["--dry-run", "--json"])
        .output()
        .unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let table = 4096 * 16;
    let without =
        MODEL.replace("--vocab-size 64 --padded-vocab-size 64", "--padded-vocab-size 1 --vocab-size 1");
    let other = ms_train()
        .args(without.split_whitespace())
        .args(["--train-iters", "4", "--dry-run", "--json"])
        .output()
        .unwrap();
    let other: Value = serde_json::from_slice(&other.stdout).unwrap();
    let parameters = |plan: &Value| plan["ranks"][0]["parameters"].as_u64().unwrap();
    // Embedding and head are one table.
    assert_eq!(parameters(&plan) - parameters(&other), table - 16);
}

#[test]
fn artificial_data_says_what_it_needs() {
    let refuse =
        |more: &str| refused(ms_train().args(MODEL.split_whitespace()).args(more.split_whitespace()), 2);
    let text = refuse("--train-iters 1 --mock-data");
    assert!(text.contains("--mock-data: needs --tokenizer-name-or-path"), "{text}");
    let text = refuse("--train-iters 1 --mock-data --tokenizer-type NullTokenizer");
    assert!(
        text.contains("--mock-data: expected a model with more than 4094 rows in its embedding, found 64"),
        "{text}"
    );
    let text =
        refuse("--train-iters 1 --mock-data --tokenizer-type NullTokenizer --data-path x --upstream head");
    assert!(text.contains("--mock-data: cannot be combined with --data-path"), "{text}");
    let text = refuse("--train-iters 1 --mock-data --tokenizer-type NullTokenizer --stage sft");
    assert!(text.contains("--mock-data: needs pretraining data"), "{text}");
}

#[test]
fn the_gradient_of_the_output_layer_can_wait_for_other_stages() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    let stages = TOPOLOGIES[2];
    let of_all = |more: &str| {
        let rows = train(dir.path(), &data, stages, 4, &more.split_whitespace().collect::<Vec<_>>());
        rows.iter().map(|row| [row["lm loss"].clone(), row["grad norm"].clone()]).collect::<Vec<_>>()
    };
    assert_eq!(of_all(""), of_all("--defer-embedding-wgrad-compute"), "the same bits");
    let plan = |more: &str| {
        let words = format!(
            "{MODEL} {stages} --train-iters 4 --dry-run --json --vocab-size 4096 --padded-vocab-size 4096 {more}"
        );
        let done = ms_train().args(words.split_whitespace()).output().unwrap();
        let plan: Value = serde_json::from_slice(&done.stdout).unwrap();
        plan["ranks"][2]["activation_bytes"].as_u64().unwrap()
    };
    let [none, one, all] = ["", "--wgrad-deferral-limit 1 ", ""].map(str::to_owned);
    let later = "--defer-embedding-wgrad-compute";
    let (one, all) = (plan(&format!("{one}{later}")), plan(&format!("{all}{later}")));
    // Gradients with respect to logits of 16 tokens, four micro-batches a rank.
    assert!(plan(&none) < all && one + 2 * 16 * 4096 * 4 < all, "{} {one} {all}", plan(&none));
    for (more, said) in [
        ("", "--defer-embedding-wgrad-compute: needs --pipeline-model-parallel-size of 2 or more"),
        (
            "--no-gradient-accumulation-fusion",
            "--defer-embedding-wgrad-compute: cannot be combined with --no-gradient-accumulation-fusion",
        ),
    ] {
        let topology = if more.is_empty() { "" } else { stages };
        let line = format!("{MODEL} {topology} {more} {later} --train-iters 1 --data-path x.safetensors");
        let text = refused(ms_train().args(line.split_whitespace()), 2);
        assert!(text.contains(said), "{text}");
    }
}
