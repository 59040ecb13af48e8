//! Runs of models of all kinds resume on other numbers of ranks, and from Megatron's files of rarer topologies alone.

use crate::tiny::{counting, for_megatron, metrics, ms_train, samples_of};
use ms_core::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rows that two, three, five and six ranks can share.
const RUN: &str = "--seq-length 12 --micro-batch-size 1 --global-batch-size 30 --seed 7 --lr 1e-2 --lr-decay-style constant \
    --eval-iters 0 --train-iters 4";

/// Latent attention, experts with shared ones and biases of their router, a prediction module, and dropout.
const LATENT: &str = "--num-layers 4 --hidden-size 16 --ffn-hidden-size 12 --num-attention-heads 4 --normalization RMSNorm --swiglu \
    --position-embedding-type rope --disable-bias-linear --vocab-size 60 --padded-vocab-size 60 --max-position-embeddings 12 \
    --init-method-std 0.2 --multi-latent-attention --q-lora-rank 8 --kv-lora-rank 8 --qk-nope-head-dim 4 --qk-rope-head-dim 2 \
    --v-head-dim 4 --qk-layernorm --mtp-num-layers 1 --num-experts 6 --moe-router-topk 2 --moe-ffn-hidden-size 8 \
    --moe-shared-expert-intermediate-size 8 --moe-router-score-function sigmoid --moe-router-enable-expert-bias \
    --moe-router-load-balancing-type none --moe-router-bias-update-rate 1e-2 --hidden-dropout 0.1 --attention-dropout 0.1";

/// Grouped attention, and experts in all layers.
const EXPERTS: &str = "--num-layers 4 --hidden-size 16 --ffn-hidden-size 16 --num-attention-heads 4 --group-query-attention \
    --num-query-groups 2 --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear --vocab-size 60 \
    --padded-vocab-size 60 --max-position-embeddings 12 --init-method-std 0.2 --num-experts 4 --moe-router-topk 2 \
    --moe-ffn-hidden-size 8 --moe-aux-loss-coeff 0.02 --moe-router-load-balancing-type aux_loss --hidden-dropout 0 \
    --attention-dropout 0";

const EXTENDED: &str =
    "--nproc-per-node 2 --tp 2 --sequence-parallel --moe-tp-extend-ep --moe-token-dispatcher-type alltoall";
const WHOLE_EXPERTS: &str = "--upstream head --nproc-per-node 4 --tp 2 --sequence-parallel --expert-tensor-parallel-size 1 --ep 2 \
    --moe-token-dispatcher-type alltoall";

const OF_LATENT: [&str; 8] = [
    "--nproc-per-node 5 --use-distributed-optimizer",
    "--nproc-per-node 3 --ep 3 --moe-token-dispatcher-type alltoall",
    EXTENDED,
    WHOLE_EXPERTS,
    "--nproc-per-node 6 --pp 2 --schedules-method dualpipev",
    "--nproc-per-node 6 --tp 2 --pp 3 --num-layer-list 1,2,1 --sequence-parallel",
    "--nproc-per-node 4 --pp 2 --ep 2 --schedules-method zero-bubble --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 3 --cp 3 --context-parallel-algo megatron_cp_algo",
];

const OF_HYBRID: [&str; 7] = [
    "--nproc-per-node 3",
    "--nproc-per-node 5 --use-distributed-optimizer --overlap-grad-reduce",
    "--nproc-per-node 6 --tp 2 --sequence-parallel",
    "--nproc-per-node 2 --cp 2 --context-parallel-algo ulysses_cp_algo",
    "--nproc-per-node 2 --pp 2 --schedules-method dualpipev",
    "--nproc-per-node 3 --pp 3 --num-layer-list 1,2,1 --schedules-method zero-bubble",
    "--nproc-per-node 4 --ep 2 --cp 2 --context-parallel-algo kvallgather_cp_algo --moe-token-dispatcher-type alltoall",
];

const OF_SINKS: [&str; 7] = [
    "--nproc-per-node 3 --pp 3",
    "--nproc-per-node 5",
    "--nproc-per-node 6 --tp 2 --sequence-parallel --use-distributed-optimizer",
    "--nproc-per-node 3 --cp 3 --context-parallel-algo megatron_cp_algo",
    EXTENDED,
    "--nproc-per-node 2 --pp 2 --noop-layers 3 --schedules-method dualpipev",
    "--nproc-per-node 4 --pp 2 --noop-layers 1 --schedules-method zero-bubble",
];

/// Loss and norm of every iteration.
fn run(dir: &Path, data: &Path, words: &str) -> Vec<[f64; 2]> {
    let file = dir.join("metrics.jsonl");
    let _ = std::fs::remove_file(&file);
    let mut command = ms_train();
    command.current_dir(dir).args(RUN.split_whitespace()).args(words.split_whitespace());
    command.arg("--data-path").arg(data).arg("--metrics-file").arg(&file).assert().success();
    let rows = metrics(&file);
    let rows = rows.iter().filter(|row| row["iteration"].is_u64());
    rows.map(|row| ["lm loss", "grad norm"].map(|key| row[key].as_f64().unwrap())).collect()
}

/// How far the farthest number is from what it should be, as a share of that.
fn apart(got: &[[f64; 2]], want: &[[f64; 2]]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
}

/// Runs that are begun on drawn topologies and go on on others, all with the losses and norms of one rank to ten digits, and on
/// the topology that they were begun on with the bits of a run that was not interrupted. The model is that of flags, or at first
/// of Hugging Face's files and then of the run's own. `MS_PARITY_SEED` draws others.
fn go_on(load: &str, flags: &str, topologies: &[&str]) {
    let seed = std::env::var("MS_PARITY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut rng = Rng::named(seed, &format!("resumed {}", topologies.len()));
    let mut order = topologies.to_vec();
    for i in (1..order.len()).rev() {
        order.swap(i, ((rng.uniform() * (i + 1) as f64) as usize).min(i));
    }
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (4, 30, 12), |row, place| counting(row, place) % 60);
    let of = |words: String| run(dir.path(), &data, &format!("--fp64 {words}"));
    let straight = of(format!("{load} {flags}"));
    assert!(straight.len() == 4 && straight[3][0] < straight[0][0], "{straight:?}");
    for (i, pair) in order.chunks_exact(2).take(3).enumerate() {
        let [first, second] = pair else { unreachable!("two") };
        let begun = of(format!("{load} {flags} {first} --save save-{i} --exit-interval 2"));
        let rest = of(format!("{flags} {second} --load save-{i}"));
        let what = format!("{first}, then {second}");
        assert_eq!((begun.len(), rest.len()), (2, 2), "{what}");
        let far = apart(&[begun, rest].concat(), &straight);
        println!("{what}: {far:e}");
        assert!(far < 1e-10, "{what}: {far:e}");
        if i == 0 {
            let whole = of(format!("{load} {flags} {first}"));
            assert_eq!(of(format!("{flags} {first} --load save-{i}")), whole[2..], "{first}: the same bits");
        }
    }
}

#[test]
fn latent_attention_experts_and_prediction_go_on_with_dropout() {
    go_on("", LATENT, &OF_LATENT);
}

#[test]
fn delta_nets_go_on() {
    // Heads' norms divide by outputs of nearly nothing: at higher rates what rounding leaves of one topology and another grows
    // tenfold in a step, also where nothing is saved.
    go_on(&sample("qwen3_next"), "--lr 1e-3", &OF_HYBRID);
}

#[test]
fn sinks_and_windows_go_on() {
    go_on(&sample("gpt_oss"), "", &OF_SINKS);
}

fn sample(name: &str) -> String {
    format!("--load {}", ms_testing::golden_model(name).expect("it stands in the repository").display())
}

/// The files of chunks of an iteration, as if there were no others.
fn chunks_alone(save: &Path, alone: &Path) -> usize {
    let iteration = Path::new("iter_0000002");
    std::fs::create_dir_all(alone.join(iteration)).unwrap();
    let mut chunks = 0;
    for file in std::fs::read_dir(save.join(iteration)).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let holds = name.ends_with(".distcp");
        if holds || [".metadata", "metadata.json", "common.pt"].contains(&name.as_str()) {
            std::fs::copy(&file, alone.join(iteration).join(&name)).unwrap();
            chunks += usize::from(holds);
        }
    }
    std::fs::write(alone.join("latest_checkpointed_iteration.txt"), "2").unwrap();
    chunks
}

/// All weights, in float32.
fn weights(folder: &Path) -> (ms_ckpt::Form, BTreeMap<String, Vec<u8>>) {
    let checkpoint = ms_ckpt::open(folder).unwrap();
    let read = |spec: &ms_spec::ParamSpec| {
        let mut values = vec![0; 4 * spec.shape.numel()];
        let whole = ms_core::Region::whole(&spec.shape);
        checkpoint.read(spec, &whole, ms_core::DType::F32, &mut values).unwrap();
        (spec.name.clone(), values)
    };
    (checkpoint.form(), ms_spec::params(checkpoint.config()).iter().map(read).collect())
}

#[test]
fn megatrons_files_of_rarer_topologies_go_on_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (4, 30, 12), |row, place| counting(row, place) % 60);
    let plain = run(dir.path(), &data, EXPERTS);
    // Empty slots count where initial weights go by the number of layers.
    const SLOTS: &str = "--num-layers 6 --noop-layers 1,4";
    let slots = format!("--nproc-per-node 2 --pp 2 {SLOTS} --num-layers-per-virtual-pipeline-stage 1");
    let with_slots = run(dir.path(), &data, &format!("{EXPERTS} {SLOTS}"));
    assert!(apart(&with_slots, &plain) > 1e-3, "other initial weights");
    for (i, (topology, format, files)) in [
        ("--nproc-per-node 2 --pp 2 --schedules-method dualpipev", "torch", 2),
        (&*slots, "torch", 2),
        // Written whole, with a warning: Megatron cuts such experts only where they are grouped.
        (EXTENDED, "torch", 1),
        (WHOLE_EXPERTS, "torch", 2),
        ("--nproc-per-node 4 --tp 2 --pp 2 --sequence-parallel", "torch_dist", 5),
        ("--nproc-per-node 2 --pp 2 --schedules-method dualpipev", "torch_dist", 3),
        (WHOLE_EXPERTS, "torch_dist", 3),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{format}, {topology}");
        let [save, alone]: [PathBuf; 2] =
            ["save", "alone"].map(|name| dir.path().join(format!("{name}-{i}")));
        let begun = run(
            dir.path(),
            &data,
            &format!("{EXPERTS} {topology} --save save-{i} --exit-interval 2 --ckpt-format {format}"),
        );
        let (form, found) = match format {
            "torch" => (ms_ckpt::Form::Mcore, for_megatron(&save, 2, &alone).len()),
            _ => (ms_ckpt::Form::TorchDist, chunks_alone(&save, &alone)),
        };
        assert_eq!(found, files, "{what}");
        let (native, want) = weights(&save);
        let (read, got) = weights(&alone);
        assert_eq!((native, read), (ms_ckpt::Form::Sharded, form), "{what}");
        assert!(want.len() > 20 && got == want, "{what}: the weights");
        let rest = run(dir.path(), &data, &format!("{EXPERTS} --load alone-{i}"));
        let straight = if topology.contains(SLOTS) { &with_slots } else { &plain };
        let far = apart(&[begun, rest].concat(), straight);
        println!("{what}: {far:e}");
        assert!(far < 5e-5, "{what}: {far:e}");
    }
}

/// A vocabulary that is padded by the rule: for one rank 58 tokens to 60 rows, for two to 64.
const PADDED: &str = "--num-layers 2 --hidden-size 16 --ffn-hidden-size 16 --num-attention-heads 2 --normalization RMSNorm --swiglu \
    --position-embedding-type rope --disable-bias-linear --vocab-size 58 --make-vocab-size-divisible-by 4 \
    --max-position-embeddings 12 --init-method-std 0.2 --hidden-dropout 0 --attention-dropout 0 --fp64";

#[test]
fn a_resumed_run_keeps_its_padded_vocabulary_on_other_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (4, 30, 12), |row, place| counting(row, place) % 58);
    let straight = run(dir.path(), &data, PADDED);
    run(dir.path(), &data, &format!("{PADDED} --save saved --exit-interval 2"));
    let rest = run(dir.path(), &data, &format!("{PADDED} --load saved --nproc-per-node 2 --tp 2"));
    let far = apart(&rest, &straight[2..]);
    assert!(far < 1e-10, "{far:e}");
    // Rows that the ranks cannot share are added to, which the user is told.
    for (flags, rows) in [
        (format!("{PADDED} --load saved --nproc-per-node 8 --tp 8 --num-attention-heads 8"), [64, 60]),
        (format!("{} --nproc-per-node 3 --tp 3", sample("baichuan2_7b")), [129, 128]),
    ] {
        let mut command = ms_train();
        command.current_dir(dir.path()).args(RUN.split_whitespace()).args(flags.split_whitespace());
        let said = command.arg("--dry-run").arg("--data-path").arg(&data).output().unwrap().stderr;
        let said = String::from_utf8_lossy(&said);
        let [padded, there] = rows;
        let want = format!("padded to {padded} rows, that of the checkpoint to {there}");
        assert!(said.contains(&want), "{said}");
    }
}

#[test]
fn a_loaded_model_has_as_many_rows_as_are_asked_for_on_any_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples_of(dir.path(), (4, 30, 12), |row, place| counting(row, place) % 128);
    let with = |more: &str| run(dir.path(), &data, &format!("{} --fp64 {more}", sample("baichuan2_7b")));
    let alone = with("--padded-vocab-size 140");
    let far = apart(&with("--padded-vocab-size 140 --nproc-per-node 2 --tp 2"), &alone);
    assert!(far < 1e-10, "{far:e}");
    // Rows of zeros take part in the loss.
    let far = apart(&with(""), &alone);
    assert!(far > 1e-4, "{far:e}");
}

#[test]
fn the_null_tokenizers_end_of_documents_is_a_token_of_a_loaded_model() {
    for (tokens, fits) in [("127", true), ("126", false)] {
        let mut command = ms_train();
        command.args(RUN.split_whitespace()).args(sample("aquila").split_whitespace());
        command.args(["--tokenizer-type", "NullTokenizer", "--vocab-size", tokens, "--dry-run"]);
        assert_eq!(command.output().unwrap().status.success(), fits, "{tokens}");
    }
}
