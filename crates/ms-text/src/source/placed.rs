//! Tokens whose ids engines would not hand out by themselves.

use crate::vocabulary::AddedToken;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Ids farther behind a vocabulary than this are a mistake of the file.
const MAX_GAP: usize = 1 << 16;

/// Gives the tokens that `added_tokens_decoder` names, and that the vocabulary lacks, the ids that it says: in the place of a
/// reserved piece, or behind the vocabulary, whose gaps are filled with tokens of no text. A definition's own tokens that stand
/// beside its vocabulary keep theirs. Tokens that follow the vocabulary one by one are left to the engine.
///
/// # Source
/// `InternLM2Converter` published with InternLM2, and transformers' `PreTrainedTokenizer`, whose added tokens have the ids of
/// their `added_tokens_decoder`.
pub(super) fn place(definition: &mut Value, named: &[(u32, AddedToken)]) -> Result<(), String> {
    let own: Vec<Value> = definition["added_tokens"].as_array().cloned().unwrap_or_default();
    let texts: HashMap<u32, &str> = match &definition["model"]["vocab"] {
        Value::Object(map) => {
            let rows =
                map.iter().filter_map(|(text, id)| Some((u32::try_from(id.as_u64()?).ok()?, text.as_str())));
            rows.collect()
        }
        Value::Array(list) => (0..).zip(list).filter_map(|(id, row)| Some((id, row[0].as_str()?))).collect(),
        _ => return Ok(()),
    };
    let mut known: HashSet<&str> = texts.values().copied().collect();
    let own = own.iter().filter_map(|row| {
        Some((u32::try_from(row["id"].as_u64()?).ok()?, serde_json::from_value(row.clone()).ok()?))
    });
    let own: Vec<(u32, AddedToken)> = own.collect();
    let beside = own.iter().chain(named);
    let (mut new, mut displaced): (BTreeMap<u32, &AddedToken>, bool) = (BTreeMap::new(), false);
    for (id, token) in beside.filter(|(_, token)| known.insert(&token.content)) {
        displaced |= new.insert(*id, token).is_some();
    }
    let next = texts.len() as u32;
    if !displaced && new.keys().copied().eq(next..next + new.len() as u32) {
        return Ok(());
    }
    let says = |id: u32, token: &AddedToken| format!("added_tokens_decoder: {:?} has id {id}", token.content);
    // Of what is there, not of the highest id that it claims: gaps are filled.
    let there = texts.len() + own.len();
    if let Some((&id, token)) = new.iter().find(|(id, _)| **id as usize >= there + MAX_GAP) {
        return Err(format!("{}, far behind the vocabulary of {there}", says(id, token)));
    }
    let replaced: HashSet<String> =
        new.keys().filter_map(|id| texts.get(id)).map(|&text| text.to_owned()).collect();
    let names: HashSet<&str> = named.iter().map(|(_, token)| token.content.as_str()).collect();
    for (id, token) in &new {
        if texts.get(id).is_some_and(|text| names.contains(text)) {
            return Err(format!("{}, which is that of {:?} in the vocabulary", says(*id, token), texts[id]));
        }
    }
    let holes: Vec<u32> = match new.keys().max() {
        Some(&last) => (0..=last).filter(|id| !texts.contains_key(id) && !new.contains_key(id)).collect(),
        None => Vec::new(),
    };
    let unknown = texts.iter().find(|(_, text)| definition["model"]["unk_token"].as_str() == Some(text));
    let unknown = unknown.and_then(|(id, _)| new.get(id)).map(|token| token.content.clone());
    let new: Vec<(u32, AddedToken)> = new.into_iter().map(|(id, token)| (id, token.clone())).collect();
    let reserved = |id: u32| (id, format!("<|reserved_token_{id}|>"));
    let rows =
        holes.into_iter().map(reserved).chain(new.iter().map(|(id, token)| (*id, token.content.clone())));
    match &mut definition["model"]["vocab"] {
        Value::Object(map) => {
            map.retain(|text, _| !replaced.contains(text));
            rows.for_each(|(id, text)| drop(map.insert(text, json!(id))));
        }
        Value::Array(list) => {
            // Fillers are as unlikely as the unlikeliest piece: an unknown character's score depends on that.
            let score = list.iter().filter_map(|row| row[1].as_f64()).fold(0.0, f64::min);
            let mut rows: Vec<(u32, String)> = rows.collect();
            rows.sort_unstable();
            for (id, text) in rows {
                match list.get_mut(id as usize) {
                    Some(row) => row[0] = json!(text),
                    None => list.push(json!([text, score])),
                }
            }
        }
        _ => {}
    }
    let model = &mut definition["model"];
    if let Some(token) = unknown {
        model["unk_token"] = json!(token);
    }
    if let Some(merges) = model["merges"].as_array_mut().filter(|_| !replaced.is_empty()) {
        merges.retain(|pair| {
            let [left, right] = [0, 1].map(|at| pair[at].as_str().unwrap_or_default());
            ![left, right, &format!("{left}{right}")].iter().any(|text| replaced.contains(*text))
        });
    }
    let ids: HashSet<u32> = new.iter().map(|(id, _)| *id).collect();
    let kept = own.iter().filter(|(id, _)| !ids.contains(id));
    definition["added_tokens"] = kept.chain(&new).map(|(id, token)| token.json(*id)).collect();
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
