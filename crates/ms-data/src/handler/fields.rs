//! Which field of a record holds what (`--map-keys`).

use super::RecordKind;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Field names; `None` switches a field off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldMap {
    /// Fields of Alpaca records.
    Alpaca(AlpacaFields),
    /// Fields of lists of messages.
    Sharegpt(SharegptFields),
}

/// Where an Alpaca record has its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlpacaFields {
    pub(super) prompt: Option<String>,
    pub(super) query: Option<String>,
    pub(super) response: Option<String>,
    pub(super) history: Option<String>,
    pub(super) system: Option<String>,
    pub(super) chosen: Option<String>,
    pub(super) rejected: Option<String>,
}

/// Where a list of messages has its parts, and how roles are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharegptFields {
    pub(super) messages: Option<String>,
    pub(super) system: Option<String>,
    pub(super) tools: Option<String>,
    pub(super) chosen: Option<String>,
    pub(super) rejected: Option<String>,
    pub(super) role_tag: Option<String>,
    pub(super) content_tag: Option<String>,
    pub(super) user_tag: Option<String>,
    pub(super) assistant_tag: Option<String>,
    pub(super) observation_tag: Option<String>,
    pub(super) function_tag: Option<String>,
    pub(super) system_tag: Option<String>,
}

impl FieldMap {
    /// The default fields of a kind, changed by `map_keys`.
    ///
    /// # Errors
    /// [`Error::Options`] for an unknown key or a value that is not a text.
    pub fn new(kind: RecordKind, map_keys: Option<&Map<String, Value>>) -> Result<Self> {
        let some = |name: &str| Some(name.to_owned());
        let empty = Map::new();
        let map = map_keys.unwrap_or(&empty);
        if kind.alpaca() {
            let known = ["prompt", "query", "response", "history", "system", "chosen", "rejected", "tags"];
            check_keys(map, &known)?;
            return Ok(Self::Alpaca(AlpacaFields {
                prompt: field(map, "prompt", some("instruction"))?,
                query: field(map, "query", some("input"))?,
                response: field(map, "response", some("output"))?,
                history: field(map, "history", None)?,
                system: field(map, "system", None)?,
                chosen: field(map, "chosen", some("chosen"))?,
                rejected: field(map, "rejected", some("rejected"))?,
            }));
        }
        let known = ["messages", "tags", "system", "tools", "chosen", "rejected", "kto_tag"];
        if kind.aligned() {
            check_keys(map, &known)?;
        }
        // Tags that a given list does not mention are switched off.
        let tags = match map.get("tags") {
            None | Some(Value::Null) => None,
            Some(Value::Object(tags)) => Some(tags),
            Some(_) => return Err(Error::options("map-keys: tags: expected an object")),
        };
        let tag = |name: &str, default: &str| match tags {
            Some(tags) => field(tags, name, None),
            None => Ok(some(default)),
        };
        let openai = kind == RecordKind::OpenAiInstruction;
        let default =
            |openai_name: &str, name: &str| if openai { openai_name.to_owned() } else { name.to_owned() };
        Ok(Self::Sharegpt(SharegptFields {
            messages: field(map, "messages", Some(default("messages", "conversations")))?,
            system: field(map, "system", None)?,
            tools: field(map, "tools", openai.then(|| "tools".to_owned()))?,
            chosen: field(map, "chosen", some("chosen"))?,
            rejected: field(map, "rejected", some("rejected"))?,
            role_tag: tag("role_tag", &default("role", "from"))?,
            content_tag: tag("content_tag", &default("content", "value"))?,
            user_tag: tag("user_tag", &default("user", "human"))?,
            assistant_tag: tag("assistant_tag", &default("assistant", "gpt"))?,
            observation_tag: tag("observation_tag", &default("tool", "observation"))?,
            function_tag: tag("function_tag", "function_call")?,
            system_tag: tag("system_tag", "system")?,
        }))
    }
}

fn check_keys(map: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            Err(Error::options(format!("map-keys: unknown key {key:?}; known: {}", known.join(", "))))
        }
    }
}

fn field(map: &Map<String, Value>, name: &str, default: Option<String>) -> Result<Option<String>> {
    match map.get(name) {
        None => Ok(default),
        Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok((!text.is_empty()).then(|| text.clone())),
        Some(_) => Err(Error::options(format!("map-keys: {name}: expected the name of a field"))),
    }
}
