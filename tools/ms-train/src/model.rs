//! The model of a run: from flags, or from a checkpoint with flags in place of what it says.

use anyhow::{Context, Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Program, flags};
use ms_spec::ModelConfig;
use serde_json::{Map, Value};
use std::path::Path;

/// The flag that a model's error is about, where one is known by its words.
fn culprit(args: &Args, error: &ms_spec::Error) -> &'static str {
    let text = error.to_string();
    let about = |words: &str| text.contains(words);
    let field = text.split('`').nth(1).filter(|field| args.has(field));
    if let Some(flag) = field.and_then(|field| args.written(field)) {
        flag
    } else if about("hybrid pattern") && args.has("hybrid_override_pattern") {
        "--hybrid-override-pattern"
    } else if about("rotated elements") && args.has("rotary_percent") {
        "--rotary-percent"
    } else if about("rotated elements") && args.has("kv_channels") {
        "--kv-channels"
    } else if about("hidden size") && about("divide by") {
        "--hidden-size, --num-attention-heads"
    } else if about("query heads do not divide by") {
        "--num-attention-heads, --num-query-groups"
    } else if about("experts per token of") {
        "--moe-router-topk, --num-experts"
    } else if about("gated delta net") && args.has("full_attention_interval") {
        "--full-attention-interval"
    } else {
        ""
    }
}

/// Tokens of a plan's vocabulary where neither flags nor a tokenizer say.
const ASSUMED_VOCABULARY: usize = 65536;

/// The model: from the flags if they describe one, else from the checkpoint, single flags winning over it.
///
/// A model that is only `planned` has [`ASSUMED_VOCABULARY`] where nothing says how large its vocabulary is.
pub(crate) fn model(args: &Args, tokens: Option<usize>, planned: bool) -> Result<(ModelConfig, String)> {
    let upstream = args.upstream();
    let mut map = Map::new();
    let from_flags = args.has("num_layers") || args.has("hidden_size");
    let loaded = args.text("load").filter(|_| !from_flags || args.flag("use_checkpoint_args"));
    if let Some(dir) = loaded {
        let checkpoint = ms_ckpt::open(Path::new(dir)).with_context(|| {
            "the model's shape is read from --load when neither --num-layers nor --hidden-size is given"
                .to_owned()
        })?;
        let mut config = ms_options::model::beside(args, checkpoint.config())?;
        // Ranks that share the vocabulary have equally many rows of it.
        config.padded_vocab = config
            .padded_vocab
            .next_multiple_of(args.size("tensor_model_parallel_size")?.unwrap_or(1).max(1));
        return Ok((config, format!("{dir} ({})", checkpoint.kind().name())));
    }
    for flag in flags(Program::Train, upstream) {
        let dest = flag.dest(upstream);
        if let Some(value) = args.value(dest) {
            map.insert(dest.to_owned(), value.clone());
        }
    }
    for group in ms_options::model::SAME_NUMBER.iter().filter(|group| group.iter().any(|dest| args.has(dest)))
    {
        map.retain(|dest, _| !group.contains(&dest.as_str()) || args.has(dest));
    }
    // v2.0.0's groups are those of expert-parallel ranks where nothing else is said.
    let limited = args.text("moe_router_load_balancing_type") == Some("group_limited_greedy");
    if limited && !args.has("n_group") && !args.has("moe_router_num_groups") {
        let ranks = args.size("expert_model_parallel_size")?.unwrap_or(1);
        map.insert("n_group".into(), ranks.into());
    }
    if !args.has("padded_vocab_size") && !args.has("vocab_size") {
        const PASS: &str = "pass --tokenizer-name-or-path, --vocab-size or --padded-vocab-size";
        let tokens = match tokens {
            Some(tokens) => tokens,
            None if planned => {
                tracing::warn!(
                    "the size of the vocabulary is unknown, planned with {ASSUMED_VOCABULARY} tokens; {PASS}"
                );
                ASSUMED_VOCABULARY
            }
            None => bail!(Usage(format!("the size of the vocabulary is unknown: {PASS}"))),
        };
        map.insert("vocab_size".into(), tokens.into());
    }
    if !args.has("padded_vocab_size") {
        let tp = args.size("tensor_model_parallel_size")?.unwrap_or(1).max(1);
        let multiple = args.size("make_vocab_size_divisible_by")?.unwrap_or(128).max(1).saturating_mul(tp);
        let vocab = map.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
        map.insert("padded_vocab_size".into(), vocab.next_multiple_of(multiple).into());
    }
    let mut config = ms_spec::megatron::from_args(&map).map_err(|e| match culprit(args, &e) {
        "" => Usage(e.to_string()),
        flag => Usage(format!("{flag}: {e}")),
    })?;
    if let Some(std) = args.float("init_method_std") {
        config.init_std = std;
    }
    if tokens.is_some_and(|t| t > config.padded_vocab) {
        let tokens = tokens.unwrap_or(0);
        let flag = if args.has("vocab_size") && !args.has("padded_vocab_size") {
            "--vocab-size"
        } else {
            "--padded-vocab-size"
        };
        bail!(Usage(format!(
            "{flag}: expected at least the tokenizer's {tokens} tokens, found {}",
            config.padded_vocab
        )));
    }
    Ok((config, "flags".into()))
}
