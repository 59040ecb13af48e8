//! Settings of a tokenizer folder other than its vocabulary.

use crate::vocabulary::AddedToken;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The facts of `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja`.
#[derive(Debug, Default)]
pub(crate) struct FolderFacts {
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    pub(crate) pad: Option<String>,
    pub(crate) unk: Option<String>,
    /// The named tokens besides those four, by their names.
    pub(crate) more_roles: Vec<(&'static str, String)>,
    /// `additional_special_tokens`.
    pub(crate) additional: Vec<String>,
    /// `added_tokens_decoder`, by id.
    pub(crate) added: Vec<(u32, AddedToken)>,
    pub(crate) chat_template: Option<String>,
    /// `add_bos_token`, `add_eos_token`, where the tokenizer class acts on them.
    pub(crate) surround: Option<(bool, bool)>,
    /// What the class puts around a text when the vocabulary file does not say it.
    pub(crate) class_surround: (bool, bool),
    /// Tokens that the class puts before a text.
    pub(crate) class_prefix: &'static [&'static str],
    /// Tokens that the class appends to a SentencePiece model. They have no texts of their own.
    pub(crate) class_tokens: &'static [&'static str],
    /// `tokenizer_class`, empty if not given.
    pub(crate) class: String,
    /// `legacy` of Llama's class: how white space after special tokens is treated.
    pub(crate) legacy: bool,
    /// Whether Llama's slow class marks the beginning of every text, where the fast one leaves out those that begin with a
    /// mark or a blank (transformers 4.43, `models/llama/tokenization_llama.py`, `tokenize`).
    pub(crate) slow_marks_all: bool,
    /// Whether ids of transformers' slow class are requested.
    pub(crate) slow: bool,
    /// `add_prefix_space` of GPT-2's and Llama's classes.
    pub(crate) add_prefix_space: Option<bool>,
    /// `do_lower_case` of BERT's class.
    pub(crate) lower_case: bool,
}

impl FolderFacts {
    /// Whether Llama's class reads the folder, the fast one or the slow one.
    pub(crate) fn is_llama(&self) -> bool {
        LLAMA_CLASSES.contains(&self.class.as_str())
    }
}

/// The class of the second and the third generation of `ChatGLM`.
const CHATGLM: &str = "ChatGLMTokenizer";

/// Its tokens behind the pieces, in the order of their ids.
///
/// # Source
/// `SPTokenizer` of `tokenization_chatglm.py`, published with ChatGLM3.
const CHATGLM_TOKENS: [&str; 9] = [
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];

/// What GLM's classes put before a text: `get_prefix_tokens` of the same file, and of that published with GLM-4.
fn class_prefix(class: &str) -> &'static [&'static str] {
    match class {
        CHATGLM => &["[gMASK]", "sop"],
        "ChatGLM4Tokenizer" => &["[gMASK]", "<sop>"],
        _ => &[],
    }
}

const LLAMA_CLASSES: [&str; 2] = ["LlamaTokenizer", "LlamaTokenizerFast"];

/// Classes that rebuild their post-processor from `add_bos_token` and `add_eos_token`
/// (transformers 4.43, `models/{llama,gemma}/tokenization_*_fast.py`); others ignore the two.
const SURROUNDING_CLASSES: [&str; 4] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"];

pub(crate) fn read(dir: &Path) -> Result<FolderFacts> {
    let config_path = dir.join("tokenizer_config.json");
    let config = read_object(&config_path)?.unwrap_or_default();
    let map_path = dir.join("special_tokens_map.json");
    let map = read_object(&map_path)?.unwrap_or_default();
    // tokenizer_config.json wins, also when it says null; the map fills in what it does not mention.
    let token = |name: &str| -> Result<Option<String>> {
        match config.get(name) {
            Some(value) => token_text(value, &config_path, name),
            None => map.get(name).map_or(Ok(None), |value| token_text(value, &map_path, name)),
        }
    };
    let mut facts = FolderFacts {
        bos: token("bos_token")?,
        eos: token("eos_token")?,
        pad: token("pad_token")?,
        unk: token("unk_token")?,
        ..FolderFacts::default()
    };
    for name in ["sep_token", "cls_token", "mask_token"] {
        facts.more_roles.extend(token(name)?.map(|text| (name, text)));
    }
    for (source, path) in [(&config, &config_path), (&map, &map_path)] {
        if let Some(list) = source.get("additional_special_tokens").and_then(Value::as_array) {
            for value in list {
                facts.additional.extend(token_text(value, path, "additional_special_tokens")?);
            }
            break;
        }
    }
    if let Some(rows) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        for (id, row) in rows {
            let field = || format!("added_tokens_decoder[{id:?}]");
            // One spelling of an id, so that none stands twice.
            let number = id.parse().ok().filter(|number: &u32| number.to_string() == *id);
            let number = number.ok_or_else(|| Error::Field {
                path: config_path.clone(),
                field: field(),
                want: "a token id as key",
            })?;
            let row = serde_json::from_value(row.clone()).map_err(|_| Error::Field {
                path: config_path.clone(),
                field: field(),
                want: "an object with content and matching flags",
            })?;
            facts.added.push((number, row));
        }
        facts.added.sort_by_key(|(id, _)| *id);
    }
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let switch = |name: &str| config.get(name).and_then(Value::as_bool);
    if SURROUNDING_CLASSES.contains(&class)
        && (switch("add_bos_token").is_some() || switch("add_eos_token").is_some())
    {
        facts.surround =
            Some((switch("add_bos_token").unwrap_or(true), switch("add_eos_token").unwrap_or(false)));
    }
    let default = match class {
        _ if SURROUNDING_CLASSES.contains(&class) || class.starts_with("InternLM") => (true, false),
        "BaichuanTokenizer" | "BaiChuanTokenizer" => (true, false),
        "T5Tokenizer" | "T5TokenizerFast" => (false, true),
        "XLMRobertaTokenizer" | "XLMRobertaTokenizerFast" => (true, true),
        _ => (false, false),
    };
    facts.class_surround =
        (switch("add_bos_token").unwrap_or(default.0), switch("add_eos_token").unwrap_or(default.1));
    facts.legacy = switch("legacy").unwrap_or(true);
    facts.slow_marks_all = LLAMA_CLASSES.contains(&class)
        && !facts.legacy
        && switch("add_prefix_space") != Some(false)
        && dir.join("tokenizer.model").is_file();
    facts.add_prefix_space = switch("add_prefix_space");
    facts.lower_case = switch("do_lower_case").unwrap_or(true);
    facts.class_prefix = class_prefix(class);
    if class == CHATGLM {
        facts.class_tokens = &CHATGLM_TOKENS;
        facts.pad = facts.pad.take().or(Some("<unk>".to_owned()));
    }
    facts.class = class.to_owned();
    facts.chat_template = chat_template(dir, &config, &config_path)?;
    Ok(facts)
}

/// `chat_template.jinja` wins over `chat_template` in the configuration, which is a text or a list of named ones.
fn chat_template(dir: &Path, config: &Map<String, Value>, config_path: &Path) -> Result<Option<String>> {
    let path = dir.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let bad = || Error::Field {
        path: config_path.into(),
        field: "chat_template".into(),
        want: "a text, or a list of objects with name and template, one of them named default",
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => list
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(|text| Some(text.to_owned()))
            .ok_or_else(bad),
        Some(_) => Err(bad()),
    }
}

fn read_object(path: &PathBuf) -> Result<Option<Map<String, Value>>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { path: path.clone(), source }),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Json { path: path.clone(), source })
}

/// A token is written as its text, or as an object with `content`; null and "" mean there is none.
fn token_text(value: &Value, path: &Path, field: &str) -> Result<Option<String>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => Some(text.as_str()),
        Value::Object(object) => object.get("content").and_then(Value::as_str),
        _ => None,
    };
    match text {
        Some(text) => Ok((!text.is_empty()).then(|| text.to_owned())),
        None => Err(Error::Field {
            path: path.into(),
            field: field.into(),
            want: "a text, or an object with content",
        }),
    }
}
