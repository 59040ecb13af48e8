//! The tokenizer of a program that computes with a model.

use anyhow::{Context, Result};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_text::Tokenizer;
use std::path::Path;

/// The tokenizer of `--tokenizer-name-or-path`, else of the model's folder `load`.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn tokenizer(args: &Args, load: &Path) -> Result<Tokenizer> {
    let named = args.text("tokenizer_name_or_path").map(Path::new);
    if named.is_none() {
        ms_ckpt::check_folder(load).with_context(|| format!("--load {}", load.display()))?;
    }
    let loaded = Tokenizer::load_kept(named.unwrap_or(load), ms_cli::tokenizer_cache().as_deref());
    loaded.map_err(|error| match error {
        ms_text::Error::NoTokenizer { .. } if named.is_none() => Usage(format!(
            "--load {}: no tokenizer.json there\nhint: pass --tokenizer-name-or-path, the folder of the tokenizer",
            load.display()
        ))
        .into(),
        other => other.into(),
    })
}
