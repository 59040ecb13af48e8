//! Records brought to one form: prompt messages, responses, system text, tools.

use super::fields::{AlpacaFields, FieldMap, SharegptFields};
use ms_text::python_json;
use ms_text::template::{Message, Role};
use serde_json::{Map, Value};

type Record = Map<String, Value>;

/// A record as a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Aligned {
    /// Messages up to the one to be answered.
    pub(super) prompt: Vec<Message>,
    /// The answer; chosen and rejected for preference records.
    pub(super) response: Vec<Message>,
    /// System text, may be empty.
    pub(super) system: String,
    /// Tools as JSON text, may be empty.
    pub(super) tools: String,
}

/// What a record's answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Plain,
    Ranking,
}

impl FieldMap {
    /// The conversation of a record; `None` if it has no prompt or no answer, or its roles are out of order.
    pub(super) fn align(&self, record: &Record, answer: Answer) -> Result<Option<Aligned>, String> {
        let aligned = match self {
            Self::Alpaca(fields) => fields.align(record, answer)?,
            Self::Sharegpt(fields) => fields.align(record, answer)?,
        };
        Ok((!aligned.prompt.is_empty() && !aligned.response.is_empty()).then_some(aligned))
    }
}

impl AlpacaFields {
    fn align(&self, record: &Record, answer: Answer) -> Result<Aligned, String> {
        let mut prompt = Vec::new();
        if let Some(Value::Array(pairs)) = self.history.as_ref().and_then(|name| record.get(name)) {
            for pair in pairs {
                let text = |i: usize| {
                    pair.get(i).and_then(Value::as_str).ok_or("history: expected pairs of texts".to_owned())
                };
                prompt.push(Message::new(Role::User, text(0)?));
                prompt.push(Message::new(Role::Assistant, text(1)?));
            }
        }
        let mut parts = Vec::new();
        for name in [&self.prompt, &self.query].into_iter().flatten() {
            let text = text_or_null(record, name)?.unwrap_or_default();
            if !text.is_empty() {
                parts.push(text);
            }
        }
        prompt.push(Message::new(Role::User, parts.join("\n")));
        let response = match answer {
            Answer::Plain => match &self.response {
                Some(name) => answers(record, name)?,
                None => Vec::new(),
            },
            Answer::Ranking => {
                let chosen = self.chosen.as_deref().ok_or("map-keys switches chosen off")?;
                let rejected = self.rejected.as_deref().ok_or("map-keys switches rejected off")?;
                match record.get(chosen) {
                    // Upstream takes the first of one list and the second of the other.
                    Some(Value::Array(_)) => {
                        let take = |name: &str, i: usize| {
                            let text = record.get(name).and_then(|list| list.get(i)).and_then(Value::as_str);
                            text.ok_or_else(|| format!("{name}: expected a list with a text at {i}"))
                        };
                        vec![take(chosen, 0)?.to_owned(), take(rejected, 1)?.to_owned()]
                    }
                    _ => vec![text(record, chosen)?.to_owned(), text(record, rejected)?.to_owned()],
                }
            }
        };
        let system = match &self.system {
            Some(name) => text_or_null(record, name)?.unwrap_or_default().to_owned(),
            None => String::new(),
        };
        let response = response.into_iter().map(|text| Message::new(Role::Assistant, text)).collect();
        Ok(Aligned { prompt, response, system, tools: String::new() })
    }
}

/// One answer, or several; the encoder does not take several.
fn answers(record: &Record, name: &str) -> Result<Vec<String>, String> {
    match record.get(name) {
        Some(Value::Array(list)) => list
            .iter()
            .map(|value| value.as_str().map(str::to_owned).ok_or_else(|| format!("{name}: expected texts")))
            .collect(),
        _ => Ok(vec![text(record, name)?.to_owned()]),
    }
}

impl SharegptFields {
    fn align(&self, record: &Record, answer: Answer) -> Result<Aligned, String> {
        let name = self.messages.as_deref().ok_or("map-keys switches messages off")?;
        let messages = match record.get(name) {
            Some(Value::Array(list)) => list.as_slice(),
            None | Some(Value::Null) => return Err(format!("{name}: missing or null")),
            Some(_) => return Err(format!("{name}: expected a list of messages")),
        };
        let (system, messages) = match messages.split_first() {
            Some((first, rest))
                if self.system_tag.is_some() && self.role(first) == self.system_tag.as_deref() =>
            {
                (self.content(first)?.unwrap_or_default(), rest)
            }
            _ => {
                let system = match &self.system {
                    Some(name) => text_or_null(record, name)?.unwrap_or_default().to_owned(),
                    None => String::new(),
                };
                (system, messages)
            }
        };
        let mut turns = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            // Users and tools speak at even places, the assistant at odd ones.
            let Some(role) = self.role_at(message, i % 2 == 0) else { return Ok(Aligned::default()) };
            if let Some(content) = self.content(message)? {
                turns.push(Message::new(role, content));
            }
        }
        let want_even = answer == Answer::Plain;
        if turns.is_empty() || turns.len().is_multiple_of(2) != want_even {
            return Ok(Aligned::default());
        }
        let response = match answer {
            Answer::Plain => turns.split_off(turns.len() - 1),
            Answer::Ranking => {
                let mut both = Vec::new();
                for name in [&self.chosen, &self.rejected] {
                    let name = name.as_deref().ok_or("map-keys switches chosen or rejected off")?;
                    let message = record.get(name).ok_or_else(|| format!("{name}: missing"))?;
                    let Some(role) = self.role_at(message, false) else { return Ok(Aligned::default()) };
                    let content =
                        self.content(message)?.ok_or_else(|| format!("{name}: its text is null"))?;
                    both.push(Message::new(role, content));
                }
                both
            }
        };
        let tools = match self.tools.as_ref().and_then(|name| record.get(name)) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => python_json::dumps(other, None),
        };
        Ok(Aligned { prompt: turns, response, system, tools })
    }

    fn role<'a>(&self, message: &'a Value) -> Option<&'a str> {
        message.get(self.role_tag.as_deref()?)?.as_str()
    }

    /// The role of a message, if it may stand at an even (or odd) place.
    fn role_at(&self, message: &Value, even: bool) -> Option<Role> {
        let role = Some(self.role(message)?);
        let candidates = if even {
            [(&self.user_tag, Role::User), (&self.observation_tag, Role::Observation)]
        } else {
            [(&self.assistant_tag, Role::Assistant), (&self.function_tag, Role::Function)]
        };
        candidates.into_iter().find(|(tag, _)| tag.as_deref() == role).map(|(_, role)| role)
    }

    fn content(&self, message: &Value) -> Result<Option<String>, String> {
        let tag = self.content_tag.as_deref().ok_or("map-keys switches content_tag off")?;
        match message.get(tag) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("{tag}: expected the text of a message")),
        }
    }
}

/// A field that must be text.
pub(super) fn text<'a>(record: &'a Record, name: &str) -> Result<&'a str, String> {
    text_or_null(record, name)?.ok_or_else(|| format!("{name}: missing or null"))
}

/// A field that may be null or absent.
pub(super) fn text_or_null<'a>(record: &'a Record, name: &str) -> Result<Option<&'a str>, String> {
    match record.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name}: expected a text")),
    }
}
