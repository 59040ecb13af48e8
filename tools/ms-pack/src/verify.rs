//! `ms-pack verify`: everything that can be checked.

use crate::cli::Verify;
use crate::inspect::{Input, describe, open};
use crate::record;
use anyhow::{Result, bail};
use ms_cli::Common;
use ms_data::indexed::{IndexedDataset, idx_path};
use ms_data::preprocess::Manifests;
use ms_data::sft::IGNORED;
use ms_text::Tokenizer;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &Verify, common: &Common) -> Result<()> {
    let vocabulary = match &args.tokenizer_name_or_path {
        Some(dir) => {
            Some(Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())?.vocab_size() as i64)
        }
        None => None,
    };
    let mut manifests = Manifests::default();
    let mut out = std::io::stdout().lock();
    for name in &args.names {
        let members = members(name)?;
        let sets: Vec<PathBuf> = if members.is_empty() { vec![name.clone()] } else { members };
        for set in &sets {
            let facts = check(set, vocabulary, &mut manifests)?;
            if common.json {
                writeln!(out, "{facts}")?;
            } else if !common.quiet {
                writeln!(out, "{}: sound", set.display())?;
            }
        }
        agree(&sets)?;
    }
    Ok(())
}

/// The parts of a set that has one per key: `PREFIX_packed_KEY_document`, `PREFIX_KEY_document` or `…_sentence`.
fn members(name: &Path) -> Result<Vec<PathBuf>> {
    let Some(stem) = name.file_name().and_then(|n| n.to_str()) else { return Ok(Vec::new()) };
    if idx_path(name).exists() || name.exists() {
        return Ok(Vec::new());
    }
    let folder = name.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let file = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let rest = file.strip_prefix(stem).and_then(|rest| rest.strip_prefix('_'));
        if rest.is_some_and(|rest| rest.ends_with("_document.idx") || rest.ends_with("_sentence.idx")) {
            found.push(path.with_extension(""));
        }
    }
    found.sort();
    Ok(found)
}

fn check(name: &Path, vocabulary: Option<i64>, manifests: &mut Manifests) -> Result<serde_json::Value> {
    // Opening a dataset checks its whole index; describing a stream reads it to its end mark.
    let mut facts = describe(name)?;
    let Input::Dataset(set) = open(Some(name))? else {
        facts["sound"] = true.into();
        return Ok(facts);
    };
    let name = set.prefix();
    record::check(name, manifests)?;
    let (mut ids, mut least, mut most) = (Vec::new(), i32::MAX, i32::MIN);
    for i in 0..set.len() {
        ids.clear();
        set.read(i, &mut ids)?;
        for &id in &ids {
            if id < 0 && id != IGNORED {
                bail!("{}: sequence {i}: token {id}, expected at least 0, or {IGNORED}", name.display());
            }
            if vocabulary.is_some_and(|size| i64::from(id) >= size) {
                let size = vocabulary.unwrap_or_default();
                bail!("{}: sequence {i}: token {id}, but the tokenizer has {size}", name.display());
            }
            least = least.min(id);
            most = most.max(id);
        }
    }
    if set.tokens() > 0 {
        facts["least_token"] = least.into();
        facts["greatest_token"] = most.into();
    }
    facts["sound"] = true.into();
    Ok(facts)
}

/// Keys whose sequences have the lengths of another key's.
const SAME_LENGTHS: [(&str, &str); 3] = [
    ("_packed_attention_mask_document", "_packed_input_ids_document"),
    ("_packed_chosen_labels_document", "_packed_chosen_input_ids_document"),
    ("_packed_rejected_labels_document", "_packed_rejected_input_ids_document"),
];

/// Parts of one set have the same number of sequences, and lengths where their keys belong together. (Labels need not
/// have those of their inputs: sets for reinforcement learning keep answers apart.)
fn agree(names: &[PathBuf]) -> Result<()> {
    let Some((first, others)) = names.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Ok(());
    };
    let reference = IndexedDataset::open(first)?;
    for name in others {
        let set = IndexedDataset::open(name)?;
        if (set.len(), set.documents()) != (reference.len(), reference.documents()) {
            bail!(
                "{}: {} sequences in {} documents, but {} has {} in {}",
                name.display(),
                set.len(),
                set.documents(),
                first.display(),
                reference.len(),
                reference.documents()
            );
        }
    }
    for name in names {
        let text = name.to_string_lossy();
        for (key, like) in SAME_LENGTHS {
            let Some(stem) = text.strip_suffix(key) else { continue };
            let like = PathBuf::from(format!("{stem}{like}"));
            if !names.contains(&like) {
                bail!("{}: {} is missing", name.display(), like.display());
            }
            let (set, other) = (IndexedDataset::open(name)?, IndexedDataset::open(&like)?);
            if let Some(i) = (0..set.len()).find(|&i| set.length(i) != other.length(i)) {
                let (found, want) = (set.length(i), other.length(i));
                bail!(
                    "{}: sequence {i} has {found} tokens, but {want} in {}",
                    name.display(),
                    like.display()
                );
            }
        }
    }
    Ok(())
}
