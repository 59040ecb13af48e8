//! `ms-pack cat` and `info`.

use crate::cli::Cat;
use crate::pack::open_stream;
use anyhow::Result;
use ms_data::indexed::{IndexedDataset, idx_path};
use ms_text::Tokenizer;
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// What a name on the command line stands for.
pub(crate) enum Input {
    Dataset(IndexedDataset),
    Stream(Option<PathBuf>),
}

/// A dataset if its index is there, also when the name ends in `.bin` or `.idx`; else a stream.
pub(crate) fn open(name: Option<&Path>) -> Result<Input> {
    let Some(name) = name.filter(|name| *name != Path::new("-")) else {
        return Ok(Input::Stream(name.map(PathBuf::from)));
    };
    let stem = match name.extension().and_then(|e| e.to_str()) {
        Some("bin" | "idx") => name.with_extension(""),
        _ => name.to_path_buf(),
    };
    if idx_path(&stem).exists() || !name.exists() {
        return Ok(Input::Dataset(IndexedDataset::open(name)?));
    }
    Ok(Input::Stream(Some(name.into())))
}

pub(crate) fn cat(args: &Cat) -> Result<()> {
    let tokenizer = match &args.tokenizer_name_or_path {
        Some(dir) => Some(Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())?),
        None => None,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let wanted = args.skip..args.rows.map_or(u64::MAX, |rows| args.skip.saturating_add(rows));
    let text = |ids: &[i32]| -> Result<Option<String>> {
        let Some(tokenizer) = &tokenizer else { return Ok(None) };
        let ids: Vec<u32> = ids.iter().filter(|id| **id >= 0).map(|&id| id as u32).collect();
        Ok(Some(tokenizer.decode(&ids, false)?))
    };
    match open(args.input.as_deref())? {
        Input::Dataset(set) => {
            let mut ids = Vec::new();
            for d in 0..set.documents() {
                for i in set.document(d).filter(|&i| wanted.contains(&(i as u64))) {
                    ids.clear();
                    set.read(i, &mut ids)?;
                    let mut row = json!({"document": d, "sequence": i, "ids": ids});
                    if let Some(text) = text(&ids)? {
                        row["text"] = text.into();
                    }
                    writeln!(out, "{row}")?;
                }
            }
        }
        Input::Stream(path) => {
            let stream = open_stream(path.as_deref())?;
            let columns = stream.columns().to_vec();
            // The whole stream is read, so that a cut one is noticed.
            for (i, row) in stream.enumerate() {
                let row = row?;
                if !wanted.contains(&(i as u64)) {
                    continue;
                }
                let mut object = serde_json::Map::new();
                for (key, sequence) in columns.iter().zip(&row.columns) {
                    object.insert(key.clone(), json!(sequence));
                    if let (Some(ids), true) = (sequence, key.ends_with("input_ids") || columns.len() == 1)
                        && let Some(text) = text(ids)?
                    {
                        object.insert(format!("{key}_text"), text.into());
                    }
                }
                writeln!(out, "{}", Value::Object(object))?;
            }
        }
    }
    Ok(out.flush()?)
}

/// The facts of a dataset or stream.
pub(crate) fn describe(name: &Path) -> Result<Value> {
    Ok(match open(Some(name))? {
        Input::Dataset(set) => {
            let lengths = (0..set.len()).map(|i| set.length(i) as u64);
            let is_empty = |d: &usize| set.document(*d).all(|i| set.length(i) == 0);
            let empty = (0..set.documents()).filter(is_empty).count();
            json!({
                "name": name.display().to_string(), "kind": "dataset", "token_type": set.token_type().name(),
                "sequences": set.len(), "documents": set.documents(), "empty_documents": empty,
                "tokens": set.tokens(), "shortest": lengths.clone().min(), "longest": lengths.max(),
            })
        }
        Input::Stream(path) => {
            let stream = open_stream(path.as_deref())?;
            let (columns, info) = (stream.columns().to_vec(), stream.info().clone());
            let (mut rows, mut tokens) = (0u64, 0u64);
            for row in stream {
                rows += 1;
                tokens += row?.columns.iter().flatten().map(|ids| ids.len() as u64).sum::<u64>();
            }
            json!({
                "name": name.display().to_string(), "kind": "stream", "style": info.style, "columns": columns,
                "rows": rows, "tokens": tokens, "tokenizer_sha256": info.tokenizer, "vocab_size": info.vocab_size,
                "eod": info.eod, "pad": info.pad, "seq_length": info.seq_length,
            })
        }
    })
}

pub(crate) fn info(names: &[PathBuf], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for name in names {
        let facts = describe(name)?;
        if json {
            writeln!(out, "{facts}")?;
            continue;
        }
        for (key, value) in facts.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            writeln!(out, "{key:16} {text}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_data::indexed::{IndexedWriter, TokenType};

    #[test]
    fn a_document_of_empty_sequences_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("set");
        let mut writer = IndexedWriter::create(&prefix, TokenType::I32).unwrap();
        for document in [&[&[1, 2][..], &[]][..], &[&[]], &[]] {
            for sequence in document {
                writer.sequence(sequence).unwrap();
            }
            writer.end_document().unwrap();
        }
        writer.finish().unwrap();
        let facts = describe(&prefix).unwrap();
        assert_eq!((facts["documents"].as_u64(), facts["empty_documents"].as_u64()), (Some(3), Some(2)));
    }
}
