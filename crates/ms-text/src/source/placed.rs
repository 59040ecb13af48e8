//! Tokens whose ids engines would not hand out by themselves.

use crate::vocabulary::AddedToken;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Ids farther behind a vocabulary than this are a mistake of the file.
const MAX_GAP: usize = 1 << 16;

/// Puts the tokens that `added_tokens_decoder` names, and that the vocabulary lacks, where it says that they are: in the place
/// of a reserved piece, or behind the vocabulary with gaps. Tokens that follow the vocabulary one by one are left to the engine.
///
/// # Source
/// `InternLM2Converter` published with InternLM2, and transformers' `PreTrainedTokenizer`, whose added tokens have the ids of
/// their `added_tokens_decoder`.
pub(super) fn place(definition: &mut Value, named: &[(u32, AddedToken)]) -> Result<(), String> {
    let added = definition["added_tokens"].as_array().cloned().unwrap_or_default();
    let vocabulary = &definition["model"]["vocab"];
    let known: HashSet<&str> = match vocabulary {
        Value::Object(map) => map.keys().map(String::as_str).collect(),
        Value::Array(list) => list.iter().filter_map(|row| row[0].as_str()).collect(),
        _ => return Ok(()),
    };
    let known_added: HashSet<&str> = added.iter().filter_map(|row| row["content"].as_str()).collect();
    let lacks = |text: &str| !known.contains(text) && !known_added.contains(text);
    let missing: Vec<&(u32, AddedToken)> = named.iter().filter(|(_, token)| lacks(&token.content)).collect();
    let behind = added.iter().filter_map(|row| row["id"].as_u64()).map(|id| id as usize + 1).max();
    let next = known.len().max(behind.unwrap_or(0));
    if missing.iter().zip(next..).all(|((id, _), next)| *id as usize == next) {
        return Ok(());
    }
    if let Some((id, token)) = missing.iter().find(|(id, _)| *id as usize >= next + MAX_GAP) {
        let content = &token.content;
        return Err(format!(
            "added_tokens_decoder: {content:?} has id {id}, far behind the vocabulary of {next}"
        ));
    }
    let mut replaced = HashSet::new();
    let unknown = definition["model"]["unk_token"].as_str().map(str::to_owned);
    match &mut definition["model"]["vocab"] {
        Value::Object(map) => {
            let texts: HashMap<u64, String> =
                map.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone()))).collect();
            for (id, token) in &missing {
                if let Some(text) = texts.get(&u64::from(*id)) {
                    map.remove(text);
                    replaced.insert(text.clone());
                }
                map.insert(token.content.clone(), json!(id));
            }
            let here =
                |text: &String| missing.iter().find(|(id, _)| texts.get(&u64::from(*id)) == Some(text));
            if let Some((_, token)) = unknown.as_ref().and_then(here) {
                definition["model"]["unk_token"] = json!(token.content);
            }
        }
        Value::Array(list) => {
            // Fillers are as unlikely as the unlikeliest piece: an unknown character's score depends on that.
            let score = list.iter().filter_map(|row| row[1].as_f64()).fold(0.0, f64::min);
            for (id, token) in &missing {
                for id in list.len()..=*id as usize {
                    list.push(json!([format!("<|reserved_token_{id}|>"), score]));
                }
                list[*id as usize][0] = json!(token.content);
            }
        }
        _ => {}
    }
    let model = &mut definition["model"];
    if let Some(merges) = model["merges"].as_array_mut().filter(|_| !replaced.is_empty()) {
        merges.retain(|pair| {
            let [left, right] = [0, 1].map(|at| pair[at].as_str().unwrap_or_default());
            ![left, right, &format!("{left}{right}")].iter().any(|text| replaced.contains(*text))
        });
    }
    let here: HashSet<u64> = missing.iter().map(|(id, _)| u64::from(*id)).collect();
    let kept = added.into_iter().filter(|row| !row["id"].as_u64().is_some_and(|id| here.contains(&id)));
    definition["added_tokens"] = kept.chain(missing.iter().map(|(id, token)| token.json(*id))).collect();
    Ok(())
}

/// Appends tokens to a vocabulary of merges: they have ids, but no text is cut into them.
pub(super) fn append(definition: &mut Value, tokens: &[&str]) {
    let Some(map) = definition["model"]["vocab"].as_object_mut() else { return };
    let last = map.values().filter_map(Value::as_u64).max();
    for (&token, id) in tokens.iter().zip(last.map_or(0, |last| last + 1)..) {
        map.entry(token).or_insert(json!(id));
    }
}
