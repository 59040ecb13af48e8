//! `--split-sentences`: which trained model cuts texts into sentences, and where NLTK keeps such models.

use crate::cli::Target;
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::{env_vars, refuse};
use ms_text::sentence::{Edition, Rules, SentenceSplitter, find_model};
use std::path::PathBuf;

options! {
    /// Whether and how texts are cut into sentences.
    pub(crate) struct Sentences in "Input" {
        split: bool = "--split-sentences", "make a sequence of every sentence of a text, with NLTK's trained model (punkt_tab, found where NLTK finds it)";
        keep_newlines: bool = "--keep-newlines", "with --split-sentences: keep the white space after a sentence";
        rules: Option<String> = "--sentence-rules", "with --split-sentences: follow the rules of NLTK from this version on (default: 3.8; with --upstream head 3.10.4); they differ in ’ ” » and rare characters", own = own_of("sentence_rules", "null", "3.8,3.10.2,3.10.4");
        model: Option<PathBuf> = "--sentence-model", "with --split-sentences: folder of a punkt_tab model, or an older pickled one, instead of looking for it", own = own("sentence_model");
        language: String = "--sentence-language", "with --split-sentences: language of NLTK's sentence model", own = own_or("sentence_language", "\"english\"");
    }
}

/// Where NLTK looks last, on every system of this kind.
const SYSTEM_FOLDERS: [&str; 4] =
    ["/usr/share/nltk_data", "/usr/local/share/nltk_data", "/usr/lib/nltk_data", "/usr/local/lib/nltk_data"];

/// The splitter that the flags ask for.
pub(crate) fn splitter(
    o: &Sentences,
    upstream: Upstream,
    target: &Target,
) -> Result<Option<SentenceSplitter>> {
    if !o.split {
        return Ok(None);
    }
    if *target == Target::Stream {
        refuse!(
            "--split-sentences needs --output-prefix: a document of several sequences has no place in a token stream"
        );
    }
    let edition = match (o.rules.as_deref(), upstream) {
        (Some("3.10.4"), _) | (None, Upstream::Head) => Edition::V3_10_4,
        (Some("3.10.2"), _) => Edition::V3_10_2,
        _ => Edition::V3_8,
    };
    let rules = Rules { keep_newlines: o.keep_newlines, edition };
    let path = match &o.model {
        Some(path) => path.clone(),
        None => find_model(&nltk_folders(), &o.language)?,
    };
    tracing::info!("sentences are cut by {}", path.display());
    Ok(Some(SentenceSplitter::load(&path, rules)?))
}

/// Folders of NLTK's data, in the order in which NLTK looks: those of `NLTK_DATA`, the user's, the active Python
/// environment's, the system's.
fn nltk_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os(env_vars::NLTK_DATA)
        .map(|list| std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    folders.extend(std::env::home_dir().map(|home| home.join("nltk_data")));
    for name in [env_vars::VIRTUAL_ENV, env_vars::CONDA_PREFIX] {
        let Some(root) = std::env::var_os(name).filter(|root| !root.is_empty()).map(PathBuf::from) else {
            continue;
        };
        folders.extend(["nltk_data", "share/nltk_data", "lib/nltk_data"].map(|place| root.join(place)));
    }
    folders.extend(SYSTEM_FOLDERS.map(PathBuf::from));
    folders
}
