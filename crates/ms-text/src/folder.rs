//! Settings of a tokenizer folder other than its vocabulary.

use crate::vocabulary::AddedToken;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// The facts of `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja`.
#[derive(Debug, Default)]
pub(crate) struct FolderFacts {
    /// Begin, end, padding, unknown token, where the files or the class speak of them: as `None` if there is none.
    pub(crate) roles: [Option<Option<String>>; 4],
    /// Which of them the class has, and no file speaks of.
    pub(crate) of_class: [bool; 4],
    /// The named tokens besides those four, by their names.
    pub(crate) more_roles: Vec<(&'static str, String)>,
    /// `additional_special_tokens`.
    pub(crate) additional: Vec<String>,
    /// `extra_special_tokens`, by the names that the file gives them.
    pub(crate) extra: Vec<(String, String)>,
    /// `added_tokens_decoder`, or `added_tokens.json` where the configuration has none, by id.
    pub(crate) added: Vec<(u32, AddedToken)>,
    /// Whether it is the former, which says more than `tokenizer.json` on how its tokens match.
    pub(crate) added_in_config: bool,
    /// Special tokens that are not plain texts, by their texts: how they match, if they are added.
    pub(crate) described: BTreeMap<String, AddedToken>,
    /// `split_special_tokens`: texts of special tokens inside a text stay text.
    pub(crate) splits_special: bool,
    /// The name of the file with the chat template, and the template.
    pub(crate) chat_template: Option<(&'static str, String)>,
    /// `add_bos_token`, `add_eos_token`, where the tokenizer class acts on them.
    pub(crate) surround: Option<(bool, bool)>,
    /// What the class puts around a text when the vocabulary file does not say it.
    pub(crate) class_surround: (bool, bool),
    /// Tokens that the class puts before a text.
    pub(crate) class_prefix: &'static [&'static str],
    /// Tokens that the class appends to a SentencePiece model. They have no texts of their own.
    pub(crate) class_tokens: &'static [&'static str],
    /// `tokenizer_class`, also as `config.json` gives it, by itself or by its `model_type`; empty if not given.
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
    /// `strip_accents` and `tokenize_chinese_chars` of BERT's class.
    pub(crate) strip_accents: Option<bool>,
    pub(crate) chinese_chars: Option<bool>,
}

impl FolderFacts {
    /// Whether Llama's class reads the folder, the fast one or the slow one.
    pub(crate) fn is_llama(&self) -> bool {
        LLAMA_CLASSES.contains(&self.class.as_str())
    }

    /// Whether the class makes a tokenizer anew from the model in the folder although there is a `tokenizer.json`: Llama's does
    /// if the configuration speaks of the space before a text.
    pub(crate) fn made_anew(&self, dir: &Path) -> bool {
        self.is_llama() && self.add_prefix_space.is_some() && dir.join("tokenizer.model").is_file()
    }

    /// Whether BERT's class reads the folder.
    pub(crate) fn is_bert(&self) -> bool {
        base(&self.class) == "BertTokenizer"
    }

    /// Whether what stands around a text are the class token and the separator, not begin and end.
    pub(crate) fn separates(&self) -> bool {
        self.is_bert() || base(&self.class) == "RobertaTokenizer"
    }

    /// Whether the class has a `tokenizer.json` do what `add_prefix_space` says, no matter what the file says.
    pub(crate) fn sets_prefix_space(&self) -> bool {
        ["GPT2Tokenizer", "GPTNeoXTokenizer", "RobertaTokenizer"].contains(&base(&self.class))
    }

    /// Whether the class has a text begin with a space, if `add_prefix_space` says so, wherever a `tokenizer.json` decides it.
    pub(crate) fn adds_prefix_space(&self) -> bool {
        self.add_prefix_space == Some(true)
            && ["BloomTokenizer", "CohereTokenizer"].contains(&base(&self.class))
    }

    /// Texts of all special tokens.
    pub(crate) fn special(&self) -> HashSet<&str> {
        let roles = self.roles.iter().flatten().flatten();
        let named = roles.chain(self.more_roles.iter().map(|(_, text)| text));
        let extra = self.extra.iter().map(|(_, text)| text);
        named.chain(&self.additional).chain(extra).map(String::as_str).collect()
    }

    /// The named token of this name besides the four roles.
    pub(crate) fn named(&self, name: &str) -> Option<&str> {
        self.more_roles.iter().find(|(other, _)| *other == name).map(|(_, text)| text.as_str())
    }
}

/// The name of a class without the word that marks its fast form.
fn base(class: &str) -> &str {
    class.strip_suffix("Fast").unwrap_or(class)
}

/// Names of the tokens with a role, in the order in which missing ones are added.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The tokens that a class has in these roles if nothing else is said; "" is none.
///
/// # Source
/// transformers 4.43, the `__init__` of `models/*/tokenization_*_fast.py`.
fn class_roles(class: &str) -> [&'static str; 7] {
    const END: &str = "<|endoftext|>";
    match base(class) {
        "LlamaTokenizer" | "CodeLlamaTokenizer" => ["<s>", "</s>", "<unk>", "", "", "", ""],
        "GemmaTokenizer" => ["<bos>", "<eos>", "<unk>", "", "<pad>", "", ""],
        "GPT2Tokenizer" | "GPTNeoXTokenizer" => [END, END, END, "", "", "", ""],
        "Qwen2Tokenizer" => ["", END, END, "", END, "", ""],
        "BertTokenizer" => ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
        "RobertaTokenizer" => ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
        "CohereTokenizer" => ["<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "", "", "", ""],
        "BloomTokenizer" => ["<s>", "</s>", "<unk>", "", "<pad>", "", ""],
        _ => [""; 7],
    }
}

/// The class of a model's tokenizer where nothing names one.
///
/// # Source
/// transformers 4.43 and 4.57, `models/auto/tokenization_auto.py`.
fn class_of_model(model_type: &str) -> &'static str {
    match model_type {
        "llama" | "mistral" | "mixtral" | "phi3" | "deepseek_v2" | "deepseek_v3" => "LlamaTokenizer",
        "gemma" | "gemma2" => "GemmaTokenizer",
        "gpt2" => "GPT2Tokenizer",
        "gpt_neox" => "GPTNeoXTokenizer",
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => "Qwen2Tokenizer",
        "bert" => "BertTokenizer",
        "roberta" => "RobertaTokenizer",
        "bloom" => "BloomTokenizer",
        _ => "",
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

/// What a class that makes its post-processor itself puts around a text if neither `add_bos_token` nor `add_eos_token` says
/// otherwise; other classes ignore the two (transformers 4.43, `update_post_processor` of
/// `models/{llama,code_llama,gemma,cohere,gpt_neox}/tokenization_*_fast.py`).
fn own_surround(class: &str) -> Option<(bool, bool)> {
    match base(class) {
        "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer" | "CohereTokenizer" => Some((true, false)),
        "GPTNeoXTokenizer" => Some((false, false)),
        _ => None,
    }
}

const CONFIG: &str = "tokenizer_config.json";

pub(crate) fn read(dir: &Path) -> Result<FolderFacts> {
    let config_path = dir.join(CONFIG);
    let config = read_object(&config_path)?.unwrap_or_default();
    let class = class(dir, &config)?;
    let class = class.as_str();
    let mut facts = FolderFacts::default();
    let switch = |name: &str| config.get(name).and_then(Value::as_bool);
    facts.class = class.to_owned();
    facts.add_prefix_space = switch("add_prefix_space");
    facts.added_in_config = config.contains_key("added_tokens_decoder");
    read_roles(dir, &config, &config_path, class, &mut facts)?;
    facts.added = added_tokens(dir, &config, &config_path, &facts)?;
    let own = own_surround(class);
    let asked = |default: (bool, bool)| {
        (switch("add_bos_token").unwrap_or(default.0), switch("add_eos_token").unwrap_or(default.1))
    };
    facts.class_surround = match base(class) {
        _ if class.starts_with("InternLM") => asked((true, false)),
        "BaichuanTokenizer" | "BaiChuanTokenizer" => asked((true, false)),
        "T5Tokenizer" => (false, true),
        "BertTokenizer" | "RobertaTokenizer" | "XLMRobertaTokenizer" => (true, true),
        "GPT2Tokenizer" => (asked((false, false)).0, false),
        "Qwen2Tokenizer" | "BloomTokenizer" => (false, false),
        _ => asked(own.unwrap_or_default()),
    };
    facts.surround = own.map(|_| facts.class_surround);
    facts.splits_special = switch("split_special_tokens").unwrap_or(false);
    facts.legacy = switch("legacy").unwrap_or(true);
    facts.slow_marks_all = LLAMA_CLASSES.contains(&class)
        && !facts.legacy
        && switch("add_prefix_space") != Some(false)
        && dir.join("tokenizer.model").is_file();
    facts.lower_case = switch("do_lower_case").unwrap_or(true);
    facts.strip_accents = switch("strip_accents");
    facts.chinese_chars = switch("tokenize_chinese_chars");
    facts.class_prefix = class_prefix(class);
    if class == CHATGLM {
        facts.class_tokens = &CHATGLM_TOKENS;
        facts.roles[2] = Some(facts.roles[2].take().flatten().or(Some("<unk>".to_owned())));
    }
    facts.chat_template = chat_template(dir, &config, &config_path)?;
    Ok(facts)
}

/// The tokenizer's class: as its configuration names it, else the model's, else by the type of the model. The classes of
/// BERT's kin are BERT's, and so is that of a `vocab.txt` alone.
fn class(dir: &Path, config: &Map<String, Value>) -> Result<String> {
    let text = |object: &Map<String, Value>, name: &str| {
        object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut class = text(config, "tokenizer_class");
    if class.is_empty()
        && let Some(model) = read_object(&dir.join("config.json"))?
    {
        class = text(&model, "tokenizer_class");
        if class.is_empty() {
            class = class_of_model(&text(&model, "model_type")).to_owned();
        }
    }
    let lines_alone = || dir.join("vocab.txt").is_file() && !dir.join("tokenizer.json").is_file();
    match base(&class) {
        "DistilBertTokenizer" | "ElectraTokenizer" => Ok("BertTokenizer".to_owned()),
        "" if lines_alone() => Ok("BertTokenizer".to_owned()),
        _ => Ok(class),
    }
}

/// Reads the special tokens. `special_tokens_map.json` counts only where the configuration has no `added_tokens_decoder`, and
/// then it wins.
///
/// # Source
/// transformers 4.43 and 4.57, `_from_pretrained` of `PreTrainedTokenizerBase`; 4.57, `_set_model_specific_special_tokens`.
fn read_roles(
    dir: &Path,
    config: &Map<String, Value>,
    config_path: &Path,
    class: &str,
    facts: &mut FolderFacts,
) -> Result<()> {
    let map_path = dir.join("special_tokens_map.json");
    let map = if facts.added_in_config { None } else { read_object(&map_path)? }.unwrap_or_default();
    let files = [(&map, &*map_path, false), (config, config_path, true)];
    // Of a token with several roles the first one says how it matches.
    let (mut described, mut seen) = (BTreeMap::new(), HashSet::new());
    let mut token = |value: &Value, path: &Path, name: &str, normalized: bool| {
        let token = special_token(value, path, name, normalized)?;
        let text = token.as_ref().map(|token| token.content.clone());
        if let Some(token) = token.filter(|token| seen.insert(token.content.clone()) && value.is_object()) {
            described.insert(token.content.clone(), token);
        }
        Ok::<_, Error>(text)
    };
    for (name, default) in ROLES.into_iter().zip(class_roles(class)) {
        let default = Value::from(default);
        let said = files.iter().find_map(|(file, path, own)| Some((file.get(name)?, *path, *own)));
        let of_class = said.is_none();
        let said = said.or((default != "").then_some((&default, config_path, true)));
        let said = said.map(|(value, path, own)| token(value, path, name, own)).transpose()?;
        match ["bos_token", "eos_token", "pad_token", "unk_token"].iter().position(|role| *role == name) {
            Some(place) => (facts.roles[place], facts.of_class[place]) = (said, of_class),
            None => facts.more_roles.extend(said.flatten().map(|text| (name, text))),
        }
    }
    let mut listed = HashSet::new();
    for (file, path, own) in files.into_iter().rev() {
        let list = file.get("additional_special_tokens").and_then(Value::as_array);
        for value in list.into_iter().flatten() {
            let text = token(value, path, "additional_special_tokens", own)?;
            facts.additional.extend(text.filter(|text| listed.insert(text.clone()) || own));
        }
    }
    // A list, as transformers 5 writes it, has no names.
    let extra = |name: &str| format!("extra_special_tokens: {name}");
    match config.get("extra_special_tokens") {
        Some(Value::Object(named)) => {
            for (name, value) in named {
                let text = token(value, config_path, &extra(name), true)?;
                facts.extra.extend(text.map(|text| (name.clone(), text)));
            }
        }
        Some(Value::Array(list)) => {
            for (place, value) in list.iter().enumerate() {
                facts.additional.extend(token(value, config_path, &extra(&place.to_string()), true)?);
            }
        }
        _ => {}
    }
    facts.described = described;
    // The only class whose special token is no plain text.
    if base(class) == "RobertaTokenizer"
        && let Some(mask) = facts.named("mask_token")
    {
        let mask = AddedToken { lstrip: true, normalized: true, ..AddedToken::special(mask) };
        facts.described.insert(mask.content.clone(), mask);
    }
    Ok(())
}

/// The tokens of `added_tokens_decoder`, or of `added_tokens.json` and a `tokenizer.json` that is not read, by id.
fn added_tokens(
    dir: &Path,
    config: &Map<String, Value>,
    config_path: &Path,
    facts: &FolderFacts,
) -> Result<Vec<(u32, AddedToken)>> {
    let mut added = Vec::new();
    if let Some(rows) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        for (id, row) in rows {
            let field = || format!("added_tokens_decoder[{id:?}]");
            // One spelling of an id, so that none stands twice.
            let number = id.parse().ok().filter(|number: &u32| number.to_string() == *id);
            let number = number.ok_or_else(|| Error::Field {
                path: config_path.into(),
                field: field(),
                want: "a token id as key",
            })?;
            let row = serde_json::from_value(row.clone()).map_err(|_| Error::Field {
                path: config_path.into(),
                field: field(),
                want: "an object with content and matching flags",
            })?;
            added.push((number, row));
        }
    } else if !facts.added_in_config {
        let path = dir.join("added_tokens.json");
        let with_role = facts.special();
        for (text, id) in read_object(&path)?.unwrap_or_default() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| Error::Field {
                path: path.clone(),
                field: format!("{text:?}"),
                want: "a token id",
            })?;
            let special = with_role.contains(text.as_str());
            added.push((id, AddedToken { special, normalized: !special, ..AddedToken::special(&text) }));
        }
        if facts.made_anew(dir) {
            let path = dir.join("tokenizer.json");
            let definition = read_object(&path)?.unwrap_or_default();
            for row in definition.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
                let id = row["id"].as_u64().and_then(|id| u32::try_from(id).ok());
                let token = serde_json::from_value(row.clone()).ok();
                added.push(id.zip(token).ok_or_else(|| Error::Field {
                    path: path.clone(),
                    field: "added_tokens".into(),
                    want: "objects with id, content and matching flags",
                })?);
            }
        }
    }
    added.sort_by_key(|(id, _)| *id);
    Ok(added)
}

/// `chat_template.jinja` wins over `chat_template` in the configuration, which is a text or a list of named ones.
fn chat_template(
    dir: &Path,
    config: &Map<String, Value>,
    config_path: &Path,
) -> Result<Option<(&'static str, String)>> {
    const FILE: &str = "chat_template.jinja";
    let path = dir.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some((FILE, text))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let bad = || Error::Field {
        path: config_path.into(),
        field: "chat_template".into(),
        want: "a text, or a list of objects with name and template, one of them named default",
    };
    let text = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => Some(text.as_str()),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str())
        }
        Some(_) => None,
    };
    text.map(|text| Some((CONFIG, text.to_owned()))).ok_or_else(bad)
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
fn special_token(value: &Value, path: &Path, field: &str, normalized: bool) -> Result<Option<AddedToken>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => Some(text.as_str()),
        Value::Object(object) => object.get("content").and_then(Value::as_str),
        _ => None,
    };
    let text = text.ok_or_else(|| Error::Field {
        path: path.into(),
        field: field.into(),
        want: "a text, or an object with content",
    })?;
    let flag = |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    let token = AddedToken {
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
        single_word: flag("single_word", false),
        normalized: value.is_object() && flag("normalized", normalized),
        ..AddedToken::special(text)
    };
    Ok((!text.is_empty()).then_some(token))
}
