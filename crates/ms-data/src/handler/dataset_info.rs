//! LlamaFactory's `dataset_info.json`: names of datasets, their files, their fields.
//!
//! Source: MindSpeed-LLM head, `mindspeed_llm/tasks/preprocess/utils.py`; the format is LlamaFactory's.

use super::{FieldMap, RecordKind};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A dataset as a `dataset_info.json` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedSet {
    /// Its name in the file.
    pub name: String,
    /// File or folder, next to the description.
    pub path: PathBuf,
    /// Where its records have their parts.
    pub fields: FieldMap,
}

/// The datasets `names` of the `dataset_info.json` in `folder`, in the order of the names.
///
/// # Errors
/// [`Error::Io`]; [`Error::Input`] if the file is malformed, a dataset is not in it, or its data is not local.
pub fn described_sets(folder: &Path, names: &[&str]) -> Result<Vec<DescribedSet>> {
    let path = folder.join("dataset_info.json");
    let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
    let bad = |reason: String| Error::Input { path: path.clone(), reason };
    let info: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|e| bad(format!("not a JSON object: {e}")))?;
    names
        .iter()
        .map(|name| {
            let Some(entry) = info.get(*name) else {
                let known: Vec<&str> = info.keys().map(String::as_str).collect();
                return Err(bad(format!("no set {name:?}; it has {}", known.join(", "))));
            };
            described(folder, name, entry).map_err(|reason| bad(format!("{name}: {reason}")))
        })
        .collect()
}

fn described(folder: &Path, name: &str, entry: &Value) -> std::result::Result<DescribedSet, String> {
    if entry.get("hf_hub_url").is_some() || entry.get("ms_hub_url").is_some() {
        return Err("it lies on a hub, and nothing is downloaded here".into());
    }
    if entry.get("script_url").is_some() {
        return Err("it is a script, and scripts are not run here".into());
    }
    let file = entry["file_name"].as_str().ok_or("file_name: expected a text")?;
    if entry["ranking"] == true {
        return Err("it is for ranking; use --style pairwise".into());
    }
    let columns = match &entry["columns"] {
        Value::Null => Map::new(),
        Value::Object(columns) => columns.clone(),
        _ => return Err("columns: expected an object".into()),
    };
    let (kind, taken): (RecordKind, &[&str]) = match entry.get("formatting").and_then(Value::as_str) {
        None | Some("alpaca") => {
            (RecordKind::AlpacaInstruction, &["prompt", "query", "response", "history", "system"])
        }
        // Upstream reads both alike; of sets of OpenAI's form it ignores the tags.
        Some("sharegpt" | "openai") => (RecordKind::SharegptInstruction, &["messages", "system", "tools"]),
        Some(other) => return Err(format!("formatting: {other:?} is neither alpaca, sharegpt nor openai")),
    };
    let mut map = Map::new();
    if !columns.is_empty() {
        // A description that names columns names them all: what it leaves out is not there.
        for key in taken {
            map.insert((*key).to_owned(), columns.get(*key).cloned().unwrap_or(Value::Null));
        }
    }
    if let (Some("sharegpt"), Some(tags)) =
        (entry.get("formatting").and_then(Value::as_str), entry.get("tags"))
    {
        map.insert("tags".into(), tags.clone());
    }
    let fields = FieldMap::new(kind, Some(&map)).map_err(|e| e.to_string())?;
    Ok(DescribedSet { name: name.to_owned(), path: folder.join(file), fields })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(info: &Value, names: &[&str]) -> Result<Vec<DescribedSet>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("dataset_info.json"), info.to_string()).unwrap();
        described_sets(dir.path(), names)
    }

    #[test]
    fn columns_and_tags_say_where_the_parts_are() {
        let info = json!({
            "a": {"file_name": "a.json"},
            "b": {"file_name": "b.jsonl", "formatting": "sharegpt", "columns": {"messages": "chat"},
                  "tags": {"role_tag": "role", "content_tag": "text", "user_tag": "u", "assistant_tag": "m"}},
            "c": {"file_name": "c.json", "columns": {"prompt": "q", "response": "a"}},
        });
        let sets = read(&info, &["b", "a", "c"]).unwrap();
        assert_eq!(sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!(sets[1].fields, FieldMap::new(RecordKind::AlpacaInstruction, None).unwrap());
        let map = json!({"messages": "chat", "system": null, "tools": null,
            "tags": {"role_tag": "role", "content_tag": "text", "user_tag": "u", "assistant_tag": "m"}});
        assert_eq!(sets[0].fields, FieldMap::new(RecordKind::SharegptInstruction, map.as_object()).unwrap());
        let map = json!({"prompt": "q", "response": "a", "query": null, "history": null});
        assert_eq!(sets[2].fields, FieldMap::new(RecordKind::AlpacaInstruction, map.as_object()).unwrap());
    }

    #[test]
    fn what_cannot_be_read_here_says_why() {
        let info = json!({"hub": {"hf_hub_url": "x"}, "rank": {"file_name": "x", "ranking": true}, "f": {"file_name": "x", "formatting": "odd"}});
        for (name, reason) in [
            ("hub", "downloaded"),
            ("rank", "pairwise"),
            ("f", "neither alpaca"),
            ("gone", "it has hub, rank, f"),
        ] {
            let error = read(&info, &[name]).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("dataset_info.json"), "{error}");
        }
    }
}
