//! Whether datasets, tokenizer and model match: checked before the first iteration.

use crate::resolve::data::{DataConfig, DataKind};
use anyhow::{Result, bail};
use ms_cli::refuse;
use ms_data::gpt::{DataPaths, MockSequences};
use ms_data::indexed::{IndexedDataset, bin_path, idx_path};
use ms_data::preprocess::{Manifest, Manifests, OutputRecord};
use ms_data::sft;
use ms_text::Tokenizer;
use std::path::Path;

/// Bytes of tokens of one dataset that are checked before the first iteration; the rest is checked row by row.
const LOOKED_AT: u64 = 4 << 30;

/// Checks that the ids of every indexed dataset are below `rows`, the rows of the embedding, and that no dataset was made
/// with another tokenizer than `tokenizer`.
///
/// # Errors
/// If a dataset cannot be opened, holds an id that the model does not have, or names another tokenizer in its manifest.
pub(crate) fn check(data: &DataConfig, rows: usize, tokenizer: Option<&Tokenizer>) -> Result<()> {
    // Filling is no token, and is not looked up.
    let filler = match &data.kind {
        DataKind::Gpt { options, .. } => options.filler.map(i64::from),
        _ => None,
    };
    let prefixes = match &data.kind {
        DataKind::Safetensors { .. } => return Ok(()), // every row is checked when it is read
        DataKind::Gpt { paths: DataPaths::Mock, options, .. } => {
            let greatest = options.eod.max(MockSequences::GREATEST);
            if greatest as usize >= rows {
                refuse!(
                    "--mock-data: expected a model with more than {greatest} rows in its embedding, found {rows}: artificial \
                     sequences count to {}, and end with token {}",
                    MockSequences::GREATEST,
                    options.eod
                );
            }
            return Ok(());
        }
        DataKind::Gpt { paths, .. } => paths.prefixes(),
        DataKind::Sft { paths, options, .. } => sft::input_prefixes(paths, options),
    };
    let mut manifests = Manifests::default();
    for prefix in prefixes.map_err(|e| data.named(e))? {
        let named = prefix;
        let prefix = ms_data::indexed::resolve(&named).map_err(|e| data.named(e))?;
        if prefix != named {
            tracing::info!("{}: taken for {}", named.display(), prefix.display());
        }
        if let Some((path, manifest)) = manifests.of_output(&bin_path(&prefix))? {
            if let Some(tokenizer) = tokenizer {
                same_tokenizer(&prefix, path, manifest, tokenizer)?;
            }
            same_bytes(&prefix, path, manifest)?;
        }
        let set = IndexedDataset::open(&prefix).map_err(|e| data.named(e))?;
        let Some((least, most)) = set.extremes(LOOKED_AT) else { continue };
        if least < 0 || (most >= rows as i64 && Some(most) != filler) {
            let (found, expected) = if least < 0 { (least, "at least 0") } else { (most, "below") };
            let expected = if least < 0 { expected.to_owned() } else { format!("{expected} {rows}") };
            bail!(
                "{}: it holds token {found}, the model's embedding needs ids {expected}\nhint: was the set made with \
                 another tokenizer?",
                bin_path(&prefix).display()
            );
        }
    }
    Ok(())
}

/// Compares the files of a dataset with the checksums of its manifest, up to the size that is checked.
fn same_bytes(prefix: &Path, path: &Path, manifest: &Manifest) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let own = [bin_path(prefix), idx_path(prefix)].map(|p| p.file_name().map(ToOwned::to_owned));
    let looked_at = |o: &&OutputRecord| own.contains(&Some(o.name.clone().into())) && o.bytes <= LOOKED_AT;
    for output in manifest.outputs.iter().filter(looked_at) {
        if let Some(what) = output.differs(folder)? {
            bail!("{what}\nhint: {} says what it was", path.display());
        }
    }
    Ok(())
}

/// Compares the tokenizer with the one that the manifest of a dataset names.
fn same_tokenizer(prefix: &Path, path: &Path, manifest: &Manifest, tokenizer: &Tokenizer) -> Result<()> {
    let (made, ours) = (manifest.tokenizer_sha256.as_str(), tokenizer.content_hash());
    if made.is_empty() || made == ours {
        return Ok(());
    }
    bail!(
        "{}: it was made with another tokenizer: {} names the fingerprint {made}, that of \
         --tokenizer-name-or-path is {ours}\nhint: if both have the same tokens, remove the manifest",
        bin_path(prefix).display(),
        path.display()
    )
}
