//! The table of templates and users' template files.

use super::{Algorithm, Piece, Template, ToolFormat};
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;

/// A row of `table.json`, or an entry of a user's file: only what differs from the defaults.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Row {
    name: String,
    head: bool,
    algorithm: Algorithm,
    prefix: Vec<Piece>,
    system: Option<Vec<Piece>>,
    user: Option<Vec<Piece>>,
    assistant: Option<Vec<Piece>>,
    observation: Option<Vec<Piece>>,
    function: Option<Vec<Piece>>,
    separator: Vec<Piece>,
    tools: ToolFormat,
    default_system: String,
    stop_words: Vec<String>,
    efficient_eos: bool,
    replace_eos: bool,
    thought_words: Option<(String, String)>,
}

/// What most reasoning models put around a thought.
fn think_words() -> (String, String) {
    ("<think>\n".into(), "\n</think>\n\n".into())
}

/// How a row spells a piece.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum PieceRow {
    Text(String),
    Token { token: String },
    Special { special: Special },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Special {
    Bos,
    Eos,
}

impl From<PieceRow> for Piece {
    fn from(row: PieceRow) -> Self {
        match row {
            PieceRow::Text(text) => Self::Text(text),
            PieceRow::Token { token } => Self::Token(token),
            PieceRow::Special { special: Special::Bos } => Self::Bos,
            PieceRow::Special { special: Special::Eos } => Self::Eos,
        }
    }
}

/// With what a list that was left out stands for. An explicit assistant or function list gets no end-of-sequence added.
impl From<Row> for Template {
    fn from(row: Row) -> Self {
        let content = || vec![Piece::Text("{{content}}".into())];
        let ended = |mut pieces: Vec<Piece>| {
            if !row.efficient_eos {
                pieces.push(Piece::Eos);
            }
            pieces
        };
        let user = row.user.unwrap_or_else(content);
        Self {
            name: row.name,
            head_only: row.head,
            algorithm: row.algorithm,
            prefix: row.prefix,
            system: row.system.unwrap_or_else(content),
            assistant: row.assistant.unwrap_or_else(|| ended(content())),
            observation: row.observation.unwrap_or_else(|| user.clone()),
            user,
            function: row.function.unwrap_or_else(|| {
                ended(vec![Piece::Text("Action: {{name}}\nAction Input: {{arguments}}".into())])
            }),
            separator: row.separator,
            tools: row.tools,
            default_system: row.default_system,
            stop_words: row.stop_words,
            efficient_eos: row.efficient_eos,
            replace_eos: row.replace_eos,
            thought_words: row.thought_words.unwrap_or_else(think_words),
            thinking: None,
            effort: None,
            drop_thinking: true,
        }
    }
}

fn table() -> &'static [Template] {
    static TABLE: OnceLock<Vec<Template>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let rows: Vec<Row> = serde_json::from_str(include_str!("table.json"))
            .expect("table.json is part of the build and tested");
        rows.into_iter().map(Template::from).collect()
    })
}

impl Template {
    /// Names of all templates, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        table().iter().map(|template| template.name.as_str())
    }

    /// The template called `name`.
    ///
    /// # Errors
    /// [`Error::UnknownTemplate`].
    pub fn named(name: &str) -> Result<Self> {
        if let Some(template) = table().iter().find(|template| template.name == name) {
            return Ok(template.clone());
        }
        Err(Error::UnknownTemplate { name: name.into(), known: Self::names().collect::<Vec<_>>().join(", ") })
    }

    /// The template called `name` of a user's file (`--prompt-type-path`): a JSON list of objects with `name`, `format_user`
    /// and the like, each with `slots`. The table, which stands for upstream's own file, is not consulted, as upstream.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Json`], [`Error::TemplateFile`]; [`Error::UnknownTemplate`] if the file has no such name.
    pub fn from_file(name: &str, path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        let entries: Vec<Value> =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.into(), source })?;
        // Of several with one name, upstream takes the last.
        let Some(entry) = entries.iter().rev().find(|entry| entry["name"] == name) else {
            let names: Vec<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
            let known = format!("{} in {}", names.join(", "), path.display());
            return Err(Error::UnknownTemplate { name: name.into(), known });
        };
        parse_entry(name, entry).map_err(|reason| Error::TemplateFile {
            path: path.into(),
            name: name.into(),
            reason,
        })
    }
}

/// Whether a text among `pieces` has a place for the value `name`.
fn has_place(pieces: &[Piece], name: &str) -> bool {
    let place = ["{{", name, "}}"].concat();
    pieces.iter().any(|piece| matches!(piece, Piece::Text(text) if text.contains(&place)))
}

fn parse_entry(name: &str, entry: &Value) -> std::result::Result<Template, String> {
    let list = |field: &str| -> std::result::Result<Option<Vec<Piece>>, String> {
        let slots = &entry[field]["slots"];
        let Some(slots) = slots.as_array() else {
            return if slots.is_null() { Ok(None) } else { Err(format!("{field}.slots: expected a list")) };
        };
        slots
            .iter()
            .map(|slot| match slot {
                Value::String(text) => Ok(Piece::Text(text.clone())),
                Value::Object(object) => object
                    .get("token")
                    .and_then(Value::as_str)
                    .map(|token| Piece::Token(token.into()))
                    .ok_or_else(|| format!("{field}.slots: an object needs the key token")),
                Value::Array(one) => match one.first().and_then(Value::as_str) {
                    Some("bos_token") => Ok(Piece::Bos),
                    Some("eos_token") => Ok(Piece::Eos),
                    _ => Err(format!("{field}.slots: a list must be [\"bos_token\"] or [\"eos_token\"]")),
                },
                _ => Err(format!("{field}.slots: expected a text, an object or a list")),
            })
            .collect::<std::result::Result<Vec<_>, _>>()
            .map(Some)
    };
    let flag = |field: &str| entry[field].as_bool().unwrap_or(false);
    // As upstream, which refuses a list without a place for its text and one with a place that nothing fills.
    let filled = |field: &str, names: &[&str]| {
        let pieces = list(field)?;
        match names.iter().find(|name| pieces.as_ref().is_some_and(|pieces| !has_place(pieces, name))) {
            Some(name) => Err(format!("{field}.slots: expected {{{{{name}}}}} in one of its texts")),
            None => Ok(pieces),
        }
    };
    let fixed = |field: &str| {
        let pieces = list(field)?.unwrap_or_default();
        match ["content", "idx", "name", "arguments"].iter().find(|name| has_place(&pieces, name)) {
            Some(name) => Err(format!("{field}.slots: {{{{{name}}}}} has no value there")),
            None => Ok(pieces),
        }
    };
    let tools = match (&entry["format_tools"], entry["format_tools"]["tool_format"].as_str()) {
        (Value::Null, _) => ToolFormat::Default,
        // Upstream's own files say `qwen`, its code knows `qwen3`.
        (_, Some("qwen" | "qwen3" | "ling")) if matches!(name, "qwen3" | "bailing_mini") => ToolFormat::Qwen,
        // Upstream takes the format's name apart into letters, which then match nothing, not even "default".
        _ => ToolFormat::None,
    };
    let call: &[&str] = if tools == ToolFormat::Qwen { &["content"] } else { &["name", "arguments"] };
    let lists = Row {
        prefix: fixed("format_prefix")?,
        system: filled("format_system", &["content"])?,
        user: filled("format_user", &["content"])?,
        assistant: filled("format_assistant", &["content"])?,
        observation: filled("format_observation", &["content"])?,
        function: filled("format_function", call)?,
        separator: fixed("format_separator")?,
        ..Row::default()
    };
    let default_system = match &entry["default_system"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| part.as_str().ok_or("default_system: expected a text, or a list of texts"))
            .collect::<std::result::Result<_, _>>()?,
        _ => return Err("default_system: expected a text, or a list of texts".into()),
    };
    let stop_words = match &entry["stop_words"] {
        Value::Null => Vec::new(),
        Value::Array(words) => words
            .iter()
            .map(|word| word.as_str().map(str::to_owned).ok_or("stop_words: expected texts".to_owned()))
            .collect::<std::result::Result<_, _>>()?,
        _ => return Err("stop_words: expected a list of texts".into()),
    };
    let replace_eos = flag("replace_eos");
    if replace_eos && stop_words.is_empty() {
        return Err(
            "replace_eos: expected a first one of stop_words, which becomes the end of sequence".into()
        );
    }
    let algorithm = match entry["template_class"].as_str() {
        // The class of v2.0.0 goes by the name.
        None if name.starts_with("llama2") => Algorithm::Llama2,
        None | Some("Template") => Algorithm::Basic,
        Some("Llama2Template") => Algorithm::Llama2,
        Some("LFDefaultTemplate") => Algorithm::LlamaFactory,
        Some("ReasoningTemplate") => Algorithm::Reasoning,
        Some("DeepSeek4Template") => Algorithm::DeepSeek4,
        Some(other) => return Err(format!("template_class: unknown class {other:?}")),
    };
    let thought_words = match &entry["thought_words"] {
        Value::Null => None,
        words => match (words[0].as_str(), words[1].as_str()) {
            (Some(open), Some(close)) => Some((open.to_owned(), close.to_owned())),
            _ => return Err("thought_words: expected two texts".into()),
        },
    };
    let (name, efficient_eos) = (name.to_owned(), flag("efficient_eos"));
    let row = Row {
        name,
        algorithm,
        tools,
        default_system,
        stop_words,
        efficient_eos,
        replace_eos,
        thought_words,
        ..lists
    };
    Ok(row.into())
}
