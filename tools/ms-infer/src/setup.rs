//! What every command needs: model, tokenizer, sampling rule.

use anyhow::Result;
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_core::DType;
use ms_generate::{Limits, LoadedModel, Sampling, Work};
use ms_text::Tokenizer;
use std::path::Path;

/// The folder of the model.
pub(crate) fn model_dir(args: &Args) -> Result<&Path> {
    Ok(Path::new(
        args.text("load").ok_or_else(|| Usage("--load is required: the folder of the model".into()))?,
    ))
}

/// What a command is about to ask of a model.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    /// Continuations of prompts of at most so many tokens, one after the other.
    Continue(usize),
    /// The logits of so many sequences of so many tokens, all held until the end.
    Logits(usize, usize),
}

/// The model, in the element type of `--dtype` (or `default`), with room for what is asked of it.
///
/// # Errors
/// If a flag is wrong, the model cannot be read, or needs more memory than there is.
pub(crate) fn model(args: &Args, default: DType, ask: Ask) -> Result<LoadedModel> {
    let dtype = match args.text("dtype") {
        Some("fp32") => DType::F32,
        Some("fp64") => DType::F64,
        Some("bf16") => DType::Bf16,
        _ if args.flag("bf16") => DType::Bf16,
        _ => default,
    };
    let new = usize::try_from(args.int("max_new_tokens").unwrap_or(128)).unwrap_or(usize::MAX);
    let (positions, work) = match ask {
        Ask::Continue(prompt) => (None, Work { prompt, new, slots: 1, rows: 0, available: None }),
        Ask::Logits(sequences, tokens) => {
            let rows = (sequences as u64).saturating_mul(tokens as u64);
            (Some(tokens.max(1)), Work { prompt: tokens, new: 0, slots: 0, rows, available: None })
        }
    };
    ms_options::load(args, model_dir(args)?, dtype, positions, work, |needs| {
        match (ask, needs.cache > needs.weights) {
            (Ask::Continue(_), true) => {
                "--max-new-tokens, --max-position-embeddings or the length of the prompt"
            }
            _ => "the size of the model or of the input, or pass --dtype bf16",
        }
    })
}

/// The tokenizer of `--tokenizer-name-or-path`, else of the model's folder.
pub(crate) fn tokenizer(args: &Args) -> Result<Tokenizer> {
    // Where the tokenizer is named there may be no model.
    let load = args.text("load").or(args.text("tokenizer_name_or_path"));
    ms_options::tokenizer(args, load.map_or_else(|| model_dir(args), |path| Ok(Path::new(path)))?)
}

/// The sampling rule of the flags.
pub(crate) fn sampling(args: &Args) -> Result<Sampling> {
    let rule = Sampling {
        temperature: args.float("temperature").unwrap_or(1.0),
        top_k: args.int("top_k").unwrap_or(0).max(0) as usize,
        top_p: args.float("top_p").unwrap_or(0.0),
        min_p: args.float("min_p").unwrap_or(0.0),
        repetition_penalty: args.float("repetition_penalty").unwrap_or(1.0),
        seed: args.int("seed").unwrap_or(1234) as u64,
    };
    rule.validate().map_err(|e| Usage(format!("--{e}")))?;
    Ok(rule)
}

/// New tokens at most (-1: as many as fit), and the tokens that end a text: the model's own and the tokenizer's.
pub(crate) fn limits(args: &Args, model: &LoadedModel, tokenizer: &Tokenizer) -> Limits {
    let mut stop_tokens = tokenizer.stop_ids();
    stop_tokens.extend(model.config().eos.iter().filter_map(|&id| u32::try_from(id).ok()));
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    if args.flag("ignore_eos") {
        stop_tokens.clear();
    }
    let most = args.int("max_new_tokens").unwrap_or(128);
    Limits { max_new_tokens: usize::try_from(most).unwrap_or(usize::MAX), stop_tokens }
}
