//! tiktoken's rank files: a line per token, its bytes in base64 and its rank, which is also its id.

use super::{base64, byte_level};
use crate::vocabulary::AddedToken;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Ids of a file are dense but for a few holes; this bounds what is believed.
const MAX_TOKENS: usize = 1 << 22;
const MAX_HOLES: usize = 1 << 12;
/// Most bytes of merges for each byte of a vocabulary: each way to make a token of two others is written out, and tokens that
/// are all made of each other have more than the memory holds. Published vocabularies have one or two.
pub(super) const MOST_MERGED: usize = 128;

pub(super) const TOO_MANY_WAYS: &str = "its tokens are made of each other in too many ways";

/// The tokenizer that a rank file belongs to, which the file does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `qwen.tiktoken` of the first Qwen models.
    Qwen,
    /// `hy.tiktoken` of Hunyuan-Large.
    Hunyuan,
    /// `tiktoken.model` of Kimi.
    Kimi,
    /// `tokenizer.model` of Llama 3, or of another one (GLM-4) whose configuration names the tokens after the ranks.
    Llama3,
}

impl Family {
    /// From the tokenizer's class, then from the file's name.
    pub(super) fn of(class: &str, file_name: &str) -> Self {
        match class {
            "QWenTokenizer" => Self::Qwen,
            "HYTokenizer" | "HunYuanTokenizer" => Self::Hunyuan,
            "TikTokenTokenizer" => Self::Kimi,
            _ if file_name.starts_with("qwen") => Self::Qwen,
            _ if file_name == "hy.tiktoken" => Self::Hunyuan,
            _ if file_name == "tiktoken.model" => Self::Kimi,
            _ => Self::Llama3,
        }
    }

    fn pattern(self) -> &'static str {
        match self {
            Self::Qwen | Self::Hunyuan => byte_level::QWEN,
            Self::Kimi => byte_level::KIMI,
            Self::Llama3 => byte_level::CL100K,
        }
    }

    /// Special tokens after the ranks, in id order; `named` are those that the folder's configuration names.
    fn special(self, first: u32, named: &[(u32, AddedToken)]) -> Vec<String> {
        match self {
            Self::Qwen => with_extras(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
            // `tokenization_hy.py`, published with the weights.
            Self::Hunyuan => {
                with_extras(&["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"])
            }
            Self::Kimi => named_or_reserved(first..first + 256, named),
            // Who names the first one names them all.
            Self::Llama3 if named.iter().any(|(id, _)| *id == first) => {
                let last = named.iter().map(|(id, _)| *id).max().unwrap_or(first);
                named_or_reserved(first..last.saturating_add(1).min(first + MAX_HOLES as u32), named)
            }
            Self::Llama3 => [
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|reserved_special_token_0|>",
                "<|reserved_special_token_1|>",
                "<|finetune_right_pad_id|>",
                "<|reserved_special_token_2|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eom_id|>",
                "<|eot_id|>",
                "<|python_tag|>",
            ]
            .map(str::to_owned)
            .into_iter()
            .chain((3..248).map(|i| format!("<|reserved_special_token_{i}|>")))
            .collect(),
        }
    }

    /// Begin, end, padding.
    pub(super) fn roles(self) -> [Option<&'static str>; 3] {
        match self {
            Self::Qwen => [None, Some("<|endoftext|>"), None],
            Self::Hunyuan => [Some("<|startoftext|>"), Some("<|endoftext|>"), Some("<|pad|>")],
            Self::Kimi => [Some("[BOS]"), Some("[EOS]"), Some("[PAD]")],
            Self::Llama3 => [Some("<|begin_of_text|>"), Some("<|end_of_text|>"), None],
        }
    }
}

/// These, and 205 without a meaning.
fn with_extras(named: &[&str]) -> Vec<String> {
    let named = named.iter().map(|&name| name.to_owned());
    named.chain((0..205).map(|i| format!("<|extra_{i}|>"))).collect()
}

/// The tokens of these ids, as a configuration names them; a text named twice has its first id.
fn named_or_reserved(ids: std::ops::Range<u32>, named: &[(u32, AddedToken)]) -> Vec<String> {
    let mut first = HashMap::new();
    for (id, token) in named {
        first.entry(token.content.as_str()).or_insert(*id);
    }
    let names: HashMap<u32, &str> = first.into_iter().map(|(text, id)| (id, text)).collect();
    let name = |id: u32| names.get(&id).map(|&text| text.to_owned());
    ids.map(|id| name(id).unwrap_or_else(|| format!("<|reserved_token_{id}|>"))).collect()
}

/// Whether `bytes` are such a file: its first line is base64 and a number.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    bytes.len() > line.len() && rank(line).is_some()
}

fn rank(line: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = line.trim_ascii_end();
    let space = line.iter().position(|&b| b == b' ')?;
    let id = std::str::from_utf8(&line[space + 1..]).ok()?.parse().ok()?;
    Some((base64::decode(&line[..space])?, id))
}

/// The `tokenizer.json` value of a rank file.
pub(super) fn definition(bytes: &[u8], family: Family, named: &[(u32, AddedToken)]) -> Result<Value, String> {
    let mut rows = Vec::new();
    for (number, line) in bytes.split(|&b| b == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (token, id) =
            rank(line).ok_or_else(|| format!("line {}: expected base64 and a rank", number + 1))?;
        if id >= MAX_TOKENS {
            return Err(format!("line {}: rank {id} is out of range", number + 1));
        }
        rows.push((number + 1, id, token));
    }
    let ranks = rows.iter().map(|(_, id, _)| id + 1).max().unwrap_or(0);
    if ranks > rows.len() + MAX_HOLES {
        return Err(format!("its ranks end at {}, and only {} tokens are there", ranks - 1, rows.len()));
    }
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None; ranks];
    for (line, id, token) in rows {
        if tokens[id].replace(token).is_some() {
            return Err(format!("line {line}: rank {id} is there twice"));
        }
    }
    let first = tokens.len() as u32;
    let ranks: HashMap<&[u8], u32> =
        tokens.iter().enumerate().filter_map(|(id, t)| Some((t.as_deref()?, id as u32))).collect();
    let table: Vec<String> = (0..=255).map(|b| byte_level::stand_in(b).to_string()).collect();
    let spell = |token: &[u8]| token.iter().map(|&b| table[b as usize].as_str()).collect::<String>();
    let mut vocab = Map::new();
    let mut merges = Vec::new();
    let lengths: HashSet<usize> = tokens.iter().flatten().map(Vec::len).collect();
    let mut room = bytes.len().saturating_mul(MOST_MERGED);
    for (id, token) in tokens.iter().enumerate() {
        let Some(token) = token else { continue };
        vocab.insert(spell(token), Value::from(id));
        // Whatever two tokens make this one may be merged into it; among them, the earlier ones first.
        let mut ways: Vec<(u32, u32, usize)> = (1..token.len())
            // A long token is not looked up at every place.
            .filter(|at| lengths.contains(at) && lengths.contains(&(token.len() - at)))
            .filter_map(|at| Some((*ranks.get(&token[..at])?, *ranks.get(&token[at..])?, at)))
            .collect();
        ways.sort_unstable();
        room = room.checked_sub(ways.len() * token.len()).ok_or(TOO_MANY_WAYS)?;
        merges.extend(ways.iter().map(|&(_, _, at)| json!([spell(&token[..at]), spell(&token[at..])])));
    }
    let model = byte_level::bpe(Value::Object(vocab), merges, true);
    let mut out =
        byte_level::definition(model, family.pattern(), matches!(family, Family::Qwen | Family::Hunyuan));
    let special = family.special(first, named);
    out["added_tokens"] =
        special.iter().zip(first..).map(|(text, id)| AddedToken::special(text).json(id)).collect();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&[u8], usize)]) -> Result<Value, String> {
        let line = |(token, id): &(&[u8], usize)| format!("{} {id}\n", base64::encode(token));
        definition(lines.iter().map(line).collect::<String>().as_bytes(), Family::Llama3, &[])
    }

    #[test]
    fn a_rank_that_is_there_twice_and_ranks_that_few_tokens_have_are_refused() {
        assert_eq!(read(&[(b"a", 0), (b"b", 1), (b"c", 1)]).unwrap_err(), "line 3: rank 1 is there twice");
        let holes = read(&[(b"a", 0), (b"b", MAX_TOKENS - 1)]).unwrap_err();
        assert_eq!(holes, "its ranks end at 4194303, and only 2 tokens are there");
        // A few holes are where the tokens are that the program's own code adds.
        assert!(read(&[(b"a", 0), (b"b", 9)]).is_ok());
    }

    #[test]
    fn a_token_of_many_bytes_is_not_looked_up_at_each_of_them() {
        let long = b"ab".repeat(200_000);
        let lines: [(&[u8], usize); 5] = [(b"a", 0), (b"b", 1), (b"ab", 2), (b"aba", 3), (&long, 4)];
        assert_eq!(read(&lines).unwrap()["model"]["merges"], json!([["a", "b"], ["ab", "a"]]));
    }

    #[test]
    fn tokens_that_are_all_made_of_each_other_are_refused() {
        let runs = |most: usize| {
            let texts: Vec<Vec<u8>> = (1..=most).map(|n| b"a".repeat(n)).collect();
            let lines: Vec<(&[u8], usize)> =
                texts.iter().enumerate().map(|(id, text)| (&text[..], id)).collect();
            read(&lines).map(|definition| definition["model"]["merges"].as_array().unwrap().len())
        };
        assert_eq!(runs(200), Ok(199 * 200 / 2));
        assert_eq!(runs(600).unwrap_err(), TOO_MANY_WAYS);
    }
}
