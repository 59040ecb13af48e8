//! Alignment of records to one form: prompt messages, responses, system text, tools.

use super::alignment::{Aligned, Alignment};
use super::fields::{AlpacaFields, FieldMap, SharegptFields};
use super::openai;
use crate::Reason;
use ms_text::python_json;
use ms_text::template::{Message, Role};
use serde_json::{Map, Value};

type Record = Map<String, Value>;

/// How the messages of a record are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Prompts and one answer.
    Plain,
    /// Prompts and two answers to choose between.
    Ranking,
    /// OpenAI's structured messages.
    OpenAi,
    /// System, user, assistant, again and again.
    Threes,
}

impl FieldMap {
    /// The conversation of a record, if it has a prompt and an answer and its roles are in order.
    pub(super) fn align(&self, record: &Record, reading: Reading) -> Result<Alignment, Reason> {
        let alignment = match self {
            Self::Alpaca(fields) => fields.align(record, reading)?,
            Self::Sharegpt(fields) => match reading {
                Reading::OpenAi => openai::align(fields, record)?,
                Reading::Threes => fields.align_threes(record)?,
                Reading::Plain | Reading::Ranking => fields.align(record, reading)?,
            },
        };
        Ok(match alignment {
            Alignment::Conversation(aligned, _) if aligned.prompt.is_empty() => {
                Alignment::Dropped("it has no prompt")
            }
            Alignment::Conversation(aligned, _) if aligned.response.is_empty() => {
                Alignment::Dropped("it has no answer")
            }
            other => other,
        })
    }
}

impl AlpacaFields {
    fn align(&self, record: &Record, reading: Reading) -> Result<Alignment, Reason> {
        let mut prompt = Vec::new();
        let mut oddity = None;
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
        let response = match reading {
            Reading::Plain | Reading::OpenAi | Reading::Threes => match &self.response {
                Some(name) => answers(record, name)?,
                None => Vec::new(),
            },
            Reading::Ranking => {
                let chosen = self.chosen.as_deref().ok_or("map-keys switches chosen off")?;
                let rejected = self.rejected.as_deref().ok_or("map-keys switches rejected off")?;
                match record.get(chosen) {
                    None | Some(Value::Null) => Vec::new(),
                    // Upstream takes the first of one list and the second of the other.
                    Some(Value::Array(_)) => {
                        oddity = Some(
                            "of lists of answers, the first chosen and the second rejected one are taken",
                        );
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
        Ok(Alignment::Conversation(Aligned { prompt, response, system, tools: String::new() }, oddity))
    }
}

/// One answer, or several, which the encoder does not take, or none: upstream leaves a record out whose answer is null, as a
/// field reads that only other records have.
fn answers(record: &Record, name: &str) -> Result<Vec<String>, Reason> {
    match record.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list
            .iter()
            .map(|value| {
                value.as_str().map(str::to_owned).ok_or_else(|| format!("{name}: expected texts").into())
            })
            .collect(),
        _ => Ok(vec![text(record, name)?.to_owned()]),
    }
}

impl SharegptFields {
    /// The system text of a record and its messages without it.
    pub(super) fn split_system<'a>(&self, record: &'a Record) -> Result<(String, &'a [Value]), Reason> {
        let name = self.messages.as_deref().ok_or("map-keys switches messages off")?;
        let messages = match record.get(name) {
            Some(Value::Array(list)) => list.as_slice(),
            None | Some(Value::Null) => return Err(Reason::missing(name)),
            Some(_) => return Err(format!("{name}: expected a list of messages").into()),
        };
        if let Some((first, rest)) = messages.split_first()
            && self.system_tag.is_some()
            && self.role(first) == self.system_tag.as_deref()
        {
            return Ok((self.content(first)?.unwrap_or_default(), rest));
        }
        let system = match &self.system {
            Some(name) => text_or_null(record, name)?.unwrap_or_default().to_owned(),
            None => String::new(),
        };
        Ok((system, messages))
    }

    /// The tools of a record as JSON text.
    pub(super) fn tools_of(&self, record: &Record) -> String {
        match self.tools.as_ref().and_then(|name| record.get(name)) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => python_json::dumps(other, None),
        }
    }

    fn align(&self, record: &Record, reading: Reading) -> Result<Alignment, Reason> {
        let (system, messages) = self.split_system(record)?;
        let mut turns = Vec::new();
        let mut oddity = None;
        for (i, message) in messages.iter().enumerate() {
            // Users and tools speak at even places, the assistant at odd ones.
            let Some(role) = self.role_at(message, i % 2 == 0) else {
                return Ok(Alignment::Dropped("its roles do not alternate"));
            };
            match self.content(message)? {
                Some(content) => turns.push(Message::new(role, content)),
                None => oddity = Some("a message without text is left out"),
            }
        }
        let want_even = reading == Reading::Plain;
        if turns.is_empty() {
            return Ok(Alignment::Dropped("it has no messages"));
        }
        if turns.len().is_multiple_of(2) != want_even {
            return Ok(Alignment::Dropped(
                "its last message is not the one to be answered, or has no answer",
            ));
        }
        let response = if want_even {
            turns.split_off(turns.len() - 1)
        } else {
            let mut both = Vec::new();
            for name in [&self.chosen, &self.rejected] {
                let name = name.as_deref().ok_or("map-keys switches chosen or rejected off")?;
                let message = record.get(name).ok_or_else(|| format!("{name}: missing"))?;
                let Some(role) = self.role_at(message, false) else {
                    return Ok(Alignment::Dropped("an answer is not the assistant's"));
                };
                let content = self.content(message)?.ok_or_else(|| format!("{name}: its text is null"))?;
                both.push(Message::new(role, content));
            }
            both
        };
        let aligned = Aligned { prompt: turns, response, system, tools: self.tools_of(record) };
        Ok(Alignment::Conversation(aligned, oddity))
    }

    /// Messages in threes: system, user, assistant.
    fn align_threes(&self, record: &Record) -> Result<Alignment, Reason> {
        let name = self.messages.as_deref().ok_or("map-keys switches messages off")?;
        let messages = record.get(name).and_then(Value::as_array);
        let messages = messages.ok_or_else(|| format!("{name}: expected a list of messages"))?;
        let order = [
            (&self.system_tag, Role::System),
            (&self.user_tag, Role::User),
            (&self.assistant_tag, Role::Assistant),
        ];
        let mut turns = Vec::with_capacity(messages.len());
        for (message, (tag, role)) in messages.iter().zip(order.iter().cycle()) {
            if tag.is_none() || self.role(message) != tag.as_deref() {
                return Ok(Alignment::Dropped("its roles are not system, user, assistant in turn"));
            }
            turns.push(Message::new(*role, self.content(message)?.unwrap_or_default()));
        }
        if turns.is_empty() || turns.len() % 3 != 0 {
            return Ok(Alignment::Dropped("its messages do not come in threes"));
        }
        let response = turns.split_off(turns.len() - 1);
        let aligned = Aligned { prompt: turns, response, ..Aligned::default() };
        Ok(Alignment::Conversation(aligned, None))
    }

    pub(super) fn role<'a>(&self, message: &'a Value) -> Option<&'a str> {
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

    pub(super) fn content(&self, message: &Value) -> Result<Option<String>, Reason> {
        let tag = self.content_tag.as_deref().ok_or("map-keys switches content_tag off")?;
        match message.get(tag) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("{tag}: expected the text of a message").into()),
        }
    }
}

/// A field that must be text.
pub(super) fn text<'a>(record: &'a Record, name: &str) -> Result<&'a str, Reason> {
    text_or_null(record, name)?.ok_or_else(|| Reason::missing(name))
}

/// A field that may be null or absent.
pub(super) fn text_or_null<'a>(record: &'a Record, name: &str) -> Result<Option<&'a str>, Reason> {
    match record.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name}: expected a text").into()),
    }
}
