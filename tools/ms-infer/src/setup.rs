//! Setup common to all commands: model, tokenizer, sampling.

use crate::options::Options;
use anyhow::Result;
use ms_cli::refuse;
use ms_core::DType;
use ms_generate::{Error, Limits, LoadedModel, MemoryRequest};
use ms_text::Tokenizer;

/// What a command is about to ask of a model.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    /// Continuations of prompts of at most this many tokens, this many at a time.
    Continue(usize, usize),
    /// The logits of this many sequences of this many tokens, all held until the end.
    Logits(usize, usize),
}

/// The model, in the element type of `--dtype` (or `default`), with room for what is asked of it.
///
/// # Errors
/// If a flag is wrong, the model cannot be read, or needs more memory than there is.
pub(crate) fn model(o: &Options, default: DType, ask: Ask) -> Result<LoadedModel> {
    let default = if o.generation.bf16 { DType::Bf16 } else { default };
    let new = usize::try_from(o.generation.max_new_tokens).unwrap_or(usize::MAX);
    let (positions, work) = match ask {
        Ask::Continue(prompt, slots) => {
            (None, MemoryRequest { prompt, new, slots, rows: 0, available: None })
        }
        Ask::Logits(sequences, tokens) => {
            let rows = (sequences as u64).saturating_mul(tokens as u64);
            (Some(tokens.max(1)), MemoryRequest { prompt: tokens, new: 0, slots: 0, rows, available: None })
        }
    };
    o.loading.load(default, positions, work, |needs| match (ask, needs.cache > needs.weights) {
        (Ask::Continue(_, 2..), true) => "--prompts-at-once",
        (Ask::Continue(..), true) => {
            "--max-new-tokens, --max-position-embeddings or the length of the prompt"
        }
        _ => "the size of the model or of the input, or pass --dtype bf16",
    })
}

/// The tokenizer of `--tokenizer-name-or-path`, else of the model's folder.
pub(crate) fn tokenizer(o: &Options) -> Result<Tokenizer> {
    // Where the tokenizer is named there may be no model.
    let load = o.loading.source.folder().or(o.tokenizer.named());
    o.tokenizer.load(load.map_or_else(|| o.loading.source.model_folder(), Ok)?)
}

/// Checks before anything is shown that a prompt can be continued.
///
/// # Errors
/// If it is longer than the model's window or has tokens that the model does not know.
pub(crate) fn fits(model: &LoadedModel, prompt: &[u32]) -> Result<()> {
    let (window, vocab) = (model.model.max_position(), model.config().vocab);
    if prompt.len() > window {
        refuse!("--prompt: it has {} tokens, the model's window {window}", prompt.len());
    }
    match prompt.iter().find(|&&id| id as usize >= vocab) {
        Some(&id) => Err(Error::Token { id: i64::from(id), vocab }.into()),
        None => Ok(()),
    }
}

/// New tokens at most (-1: as many as fit), and the tokens that end a text: the model's own and the tokenizer's.
pub(crate) fn limits(o: &Options, model: &LoadedModel, tokenizer: &Tokenizer) -> Limits {
    let stop_tokens = if o.generation.ignore_eos { Vec::new() } else { model.stop_tokens(tokenizer) };
    Limits { max_new_tokens: usize::try_from(o.generation.max_new_tokens).unwrap_or(usize::MAX), stop_tokens }
}
