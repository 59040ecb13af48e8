//! Words of a command line and, behind 0xFF, a TOML file of flags: the first byte chooses the program, or a file in which a
//! training run's data is named. Refused, or every option can be read; for a training run, also how it is spread: stages'
//! lists and layouts, ranges, blends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_cli::megatron::{Line, Upstream, parse};
use ms_fuzz::{Scratch, joined, parts, seed_of};
use ms_options::training::{self, Options, Purpose};
use std::path::Path;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

/// Flags of files that name the data.
const FILES: [&str; 2] = ["--per-split-data-args-path", "--data-args-path"];

const LINES: [fn() -> &'static Line; 5] =
    [ms_train::line, ms_convert::line, ms_infer::line, ms_eval::line, ms_preprocess::line];

/// A small model and its data, to which the words are added.
const RUN: &str = "--num-layers 8 --hidden-size 16 --num-attention-heads 4 --ffn-hidden-size 16 --normalization RMSNorm \
    --swiglu --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 64 \
    --make-vocab-size-divisible-by 1 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 --lr 1e-3 --train-iters 4";

const SEEDS: [&str; 14] = [
    "--pipeline-model-parallel-size 2 --num-layer-list 3,5 --bf16",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|(tt|)*3,tL --upstream head",
    "--pipeline-model-parallel-size 2 --pipeline-num-transformer-layers [[2,2],[1,3]] --upstream head",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --noop-layers 0,7",
    "--tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 --context-parallel-algo ulysses_cp_algo",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2 --swap-attention --swap-modules router",
    "--num-experts 4 --moe-router-topk 2 --expert-model-parallel-size 2 --moe-layer-freq [1]*8 --moe-grouped-gemm",
    "--data-path 0.3 a 0.7 b --split 90,5,5 --rampup-batch-size 2 2 8 --global-batch-size 4 --train-samples 32",
    "--train-data-path a b --valid-data-path 1 c --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 7",
    "--stage sft --is-instruction-dataset --lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv linear_fc1",
    "--rope-scaling-type yarn --rope-scaling-factor 4 --rope-scaling-original-max-position-embeddings 8",
    "--multi-latent-attention --kv-lora-rank 8 --q-lora-rank 8 --qk-head-dim 4 --qk-pos-emb-head-dim 4 --v-head-dim 4",
    "--schedules-method dualpipev --pipeline-model-parallel-size 2 --mtp-num-layers 1",
    "--fp16 --loss-scale-window 5 --lr-decay-style WSD --lr-wsd-decay-style cosine --lr-wsd-decay-iters 1",
];

fn seeds() {
    for (number, words) in SEEDS.iter().enumerate() {
        seed_of(
            0,
            &number.to_string(),
            &joined(&[words.as_bytes(), b"[batch]\nglobal-batch-size = 4\nfp16 = false\n"]),
        );
    }
    seed_of(1, "convert", b"--model-type GPT --load-model-type hf --save-model-type mg --target-tensor-parallel-size 2 --load-dir a --save-dir b");
    seed_of(2, "infer", b"--load a --prompt x y --max-new-tokens 8 --temperature 0.5 --top-k 3 --dtype fp32");
    seed_of(3, "eval", b"--task mmlu --task-data-path a --load b --num-fewshot 3");
    seed_of(
        4,
        "prepare",
        b"--input a b --style alpaca --map-keys {\"prompt\":\"q\"} --seq-length 16 --pack --output-prefix c",
    );
    seed_of(5, "splits", br#"{"train": ["0.3", "a", 0.7, "b"], "valid": ["c"], "test": []}"#);
    seed_of(6, "blend", b"0.3 a\n0.7 b\n");
    for (number, line) in LINES.iter().enumerate() {
        // Every flag once, for mutations to take them from.
        let words: Vec<&str> =
            line().flags(Upstream::Head).chain(line().flags(Upstream::V2_0_0)).map(|f| f.flag).collect();
        for (part, words) in words.chunks(40).enumerate() {
            seed_of(number as u8, &format!("flags-{part}"), words.join(" ").as_bytes());
        }
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let [words, toml] = parts(bytes);
    let (Ok(words), Ok(toml)) = (std::str::from_utf8(words), std::str::from_utf8(toml)) else { return };
    // What is named must not be there: nothing is read but flags.
    if [words, toml].iter().any(|text| text.contains(['/', '\\'])) {
        return;
    }
    let which = usize::from(which) % (LINES.len() + FILES.len());
    let file = which.checked_sub(LINES.len()).map(|file| {
        let path = SCRATCH.write("data", words.as_bytes());
        format!("{} {}", FILES[file], path.display())
    });
    let words = file.as_deref().unwrap_or(words);
    let line = LINES.get(which).unwrap_or(&LINES[0])();
    let trains = line.name == "ms-train";
    let run = RUN.split_whitespace().filter(|_| trains);
    let Ok(mut args) = parse(line, run.chain(words.split_whitespace())) else { return };
    if !toml.is_empty() && args.layer_toml(toml, Path::new("flags.toml")).is_err() {
        return;
    }
    let _ = (args.explained(), args.without_effect(), args.upstream_values(), args.to_shell(), args.all().count());
    if args.check().is_err() || !trains || training::check(&args).is_err() {
        return;
    }
    args.keep_to_level(2);
    let Ok(options) = args.read::<Options>() else { return };
    let Ok(options) = options.with_sizes_of_checkpoint(&mut args) else { return };
    if let Ok(resolved) = training::resolve(&options, Purpose::Outline, None) {
        assert!(resolved.world > 0 && resolved.config.model.layers > 0);
    }
});
