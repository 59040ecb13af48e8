//! The tokenizer of a program that computes with a model.

use anyhow::{Context, Result};
use ms_cli::Usage;
use ms_text::Tokenizer;
use std::path::{Path, PathBuf};

options! {
    /// Where the tokenizer lies.
    pub struct TokenizerFolder in "Data" {
        name_or_path: Option<PathBuf> = "--tokenizer-name-or-path", "folder of the tokenizer";
        model: Option<PathBuf> = "--tokenizer-model", "file of the tokenizer";
    }
}

impl TokenizerFolder {
    /// The folder or file that a flag names.
    pub fn named(&self) -> Option<&Path> {
        self.name_or_path.as_deref().or(self.model.as_deref())
    }

    /// The value of `--tokenizer-name-or-path` as upstream writes it into the description of an index.
    pub fn as_upstream_says(&self) -> &str {
        self.name_or_path.as_deref().and_then(Path::to_str).unwrap_or_default()
    }

    /// The tokenizer that a flag names, else that of the model's folder `load`.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn load(&self, load: &Path) -> Result<Tokenizer> {
        let named = self.named();
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
}
