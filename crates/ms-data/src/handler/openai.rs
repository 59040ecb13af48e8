//! OpenAI messages: reasoning, structured tool calls, tool results.

use super::alignment::{Aligned, Alignment};
use super::fields::SharegptFields;
use crate::Reason;
use ms_text::template::{Message, Role, ToolCall};
use serde_json::{Map, Value};

/// The conversation of a record. Roles need not alternate: several results may follow several calls.
pub(super) fn align(fields: &SharegptFields, record: &Map<String, Value>) -> Result<Alignment, Reason> {
    let (system, messages) = fields.split_system(record)?;
    let mut turns = Vec::with_capacity(messages.len());
    for message in messages {
        let Some(role) = role(fields, message) else {
            return Ok(Alignment::Dropped("a message has an unknown role"));
        };
        // A message that only carries calls has no text.
        let content = fields.content(message)?.unwrap_or_default();
        let text = |name: &str| message.get(name).and_then(Value::as_str).map(str::to_owned);
        turns.push(Message {
            reasoning: text("reasoning_content"),
            calls: calls(message)?,
            answers: text("tool_call_id").unwrap_or_default(),
            ..Message::new(role, content)
        });
    }
    match (turns.first(), turns.last()) {
        (Some(first), _) if !matches!(first.role, Role::User | Role::System) => {
            return Ok(Alignment::Dropped("its first message is neither the user's nor the system's"));
        }
        (_, Some(last)) if last.role != Role::Assistant => {
            return Ok(Alignment::Dropped("its last message is not the assistant's"));
        }
        (None, _) => return Ok(Alignment::Dropped("it has no messages")),
        _ => {}
    }
    let response = turns.split_off(turns.len() - 1);
    let aligned = Aligned { prompt: turns, response, system, tools: fields.tools_of(record) };
    Ok(Alignment::Conversation(aligned, None))
}

fn role(fields: &SharegptFields, message: &Value) -> Option<Role> {
    let role = Some(fields.role(message)?);
    [
        (&fields.user_tag, Role::User),
        (&fields.assistant_tag, Role::Assistant),
        (&fields.observation_tag, Role::Observation),
        (&fields.function_tag, Role::Function),
        (&fields.system_tag, Role::System),
    ]
    .into_iter()
    .find(|(tag, _)| tag.as_deref() == role)
    .map(|(_, role)| role)
}

fn calls(message: &Value) -> Result<Vec<ToolCall>, Reason> {
    let list = match message.get("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("tool_calls: expected a list".into()),
    };
    list.iter()
        .map(|call| {
            let function = &call["function"];
            let name = function["name"].as_str().ok_or("tool_calls: a call has no function.name")?;
            let arguments =
                function.get("arguments").ok_or("tool_calls: a call has no function.arguments")?;
            let id = call["id"].as_str().or(function["id"].as_str()).unwrap_or_default();
            Ok(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.clone() })
        })
        .collect()
}
