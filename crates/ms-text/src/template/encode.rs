//! Encoding of a conversation into pairs of (prompt, answer) ids.

use super::{Algorithm, Message, Piece, Role, Template, ToolFormat, Turn, cut, deepseek4, reasoning, tools};
use crate::python_json::{self, Members};
use crate::{Error, Result, Tokenizer};
use serde_json::Value;
use std::borrow::Cow;

impl Template {
    /// Encodes a conversation; messages `2k` and `2k+1` are turn `k` (templates of structured messages: whatever leads
    /// to an assistant's message, and it).
    ///
    /// `system` and `tools` (JSON text) may be empty. The turns together hold at most about `cutoff` ids: what does
    /// not fit is cut off turn by turn. `usize::MAX` cuts nothing.
    ///
    /// # Errors
    /// [`Error::Encode`]; [`Error::MissingToken`] if a named token is neither in the vocabulary nor replaced by an
    /// unknown token; [`Error::UnsupportedTemplate`] for tools or roles that the template cannot describe.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        system: &str,
        tools: &str,
        cutoff: usize,
    ) -> Result<Vec<Turn>> {
        let mut turns = match self.algorithm {
            Algorithm::DeepSeek4 => deepseek4::turns(self, tokenizer, messages, system, tools)?,
            Algorithm::Reasoning => {
                let messages = reasoning::thoughts_of_all(self, messages);
                let mut turns = pair(self.each(tokenizer, &messages, system, tools)?);
                for (turn, exchange) in turns.iter_mut().zip(messages.chunks(2)) {
                    reasoning::empty_thought(self, tokenizer, &exchange[1], turn)?;
                }
                turns
            }
            Algorithm::Basic | Algorithm::Llama2 | Algorithm::LlamaFactory => {
                pair(self.each(tokenizer, messages, system, tools)?)
            }
        };
        match self.algorithm {
            Algorithm::Basic | Algorithm::Llama2 => cut::in_proportion(&mut turns, cutoff),
            _ => cut::keeping_short(&mut turns, cutoff),
        }
        Ok(turns)
    }

    /// Encodes a conversation as one exchange: everything up to the last message, and that message. Nothing is cut.
    ///
    /// # Errors
    /// Those of [`Template::encode`].
    pub fn encode_answer(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        system: &str,
        tools: &str,
    ) -> Result<Turn> {
        match self.algorithm {
            Algorithm::DeepSeek4 => deepseek4::answer(self, tokenizer, messages, system, tools),
            Algorithm::Reasoning => {
                let messages = reasoning::thoughts_of_last(self, messages);
                let mut turn = flatten(self.each(tokenizer, &messages, system, tools)?);
                if let Some(last) = messages.last() {
                    reasoning::empty_thought(self, tokenizer, last, &mut turn)?;
                }
                Ok(turn)
            }
            _ => Ok(flatten(self.each(tokenizer, messages, system, tools)?)),
        }
    }

    /// Ids of every message.
    fn each(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        system: &str,
        tools: &str,
    ) -> Result<Vec<Vec<u32>>> {
        let system = if system.is_empty() { self.default_system.as_str() } else { system };
        let mut out = Vec::with_capacity(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let mut ids = Vec::new();
            let mut system_text = Cow::Borrowed("");
            if i == 0 {
                self.pieces(tokenizer, &self.prefix, &[], &mut ids)?;
                if !system.is_empty() || !tools.is_empty() {
                    let content = format!("{system}{}", self.tool_text(tools)?);
                    if self.algorithm == Algorithm::Llama2 {
                        if let Some(Piece::Text(text)) = self.system.first() {
                            system_text = substitute(text, &[("content", &content)]);
                        }
                    } else {
                        self.pieces(tokenizer, &self.system, &[("content", &content)], &mut ids)?;
                    }
                }
            } else if i % 2 == 0 && self.algorithm != Algorithm::LlamaFactory {
                self.pieces(tokenizer, &self.separator, &[], &mut ids)?;
            }
            match message.role {
                Role::User => {
                    let content = if system_text.is_empty() {
                        Cow::Borrowed(message.content.as_str())
                    } else {
                        Cow::Owned([&system_text, message.content.as_str()].concat())
                    };
                    let idx = (i / 2).to_string();
                    let values = [("content", &*content), ("idx", &idx)];
                    // Upstream's class for llama2 passes no number, so a text with `{{idx}}` keeps it.
                    let known = if self.algorithm == Algorithm::Llama2 { 1 } else { values.len() };
                    self.pieces(tokenizer, &self.user, &values[..known], &mut ids)?;
                }
                Role::Assistant => {
                    self.pieces(tokenizer, &self.assistant, &[("content", &message.content)], &mut ids)?;
                }
                Role::Observation => {
                    self.pieces(tokenizer, &self.observation, &[("content", &message.content)], &mut ids)?;
                }
                Role::Function if self.tools == ToolFormat::Qwen => {
                    let content = tools::qwen_call(&message.content);
                    self.pieces(tokenizer, &self.function, &[("content", &content)], &mut ids)?;
                }
                Role::Function => {
                    let (name, arguments) = function_call(&message.content);
                    // Upstream fills a call in wherever it has a place, other texts only once.
                    let filled = self.function.iter().map(|piece| match piece {
                        Piece::Text(text) => {
                            Piece::Text(text.replace("{{name}}", &name).replace("{{arguments}}", &arguments))
                        }
                        other => other.clone(),
                    });
                    self.pieces(tokenizer, &filled.collect::<Vec<_>>(), &[], &mut ids)?;
                }
                Role::System => {
                    return Err(Error::UnsupportedTemplate {
                        name: self.name.clone(),
                        reason: "it has no place for a system message inside a conversation (upstream raises here too)",
                    });
                }
            }
            out.push(ids);
        }
        Ok(out)
    }

    /// Appends the ids of `pieces`, each tokenized on its own.
    fn pieces(
        &self,
        tokenizer: &Tokenizer,
        pieces: &[Piece],
        values: &[(&str, &str)],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    let text = substitute(text, values);
                    if !text.is_empty() {
                        tokenizer.encode_into(&text, ids)?;
                    }
                }
                Piece::Token(token) => {
                    let id = tokenizer.token_to_id(token).or_else(|| tokenizer.unk().map(|unk| unk.id));
                    ids.push(id.ok_or_else(|| Error::MissingToken {
                        what: token.clone(),
                        wanted_by: format!("prompt template {}", self.name),
                    })?);
                }
                Piece::Bos => ids.extend(tokenizer.bos().map(|token| token.id)),
                Piece::Eos => ids.extend(tokenizer.eos().map(|token| token.id)),
            }
        }
        Ok(())
    }

    /// Whether tools that are given would leave no trace in the text.
    pub fn loses_tools(&self, tools: &str) -> bool {
        self.algorithm != Algorithm::DeepSeek4 && self.tool_text(tools).is_ok_and(|text| text.is_empty())
    }

    fn tool_text(&self, tools: &str) -> Result<String> {
        match self.tools {
            _ if tools.is_empty() => Ok(String::new()),
            ToolFormat::Default => Ok(tools::describe(tools)),
            ToolFormat::None => Ok(String::new()),
            ToolFormat::Qwen => tools::qwen(tools).map_err(|reason| Error::Tools { reason }),
        }
    }
}

/// Messages two by two; one that is left alone is dropped, as upstream does.
fn pair(messages: Vec<Vec<u32>>) -> Vec<Turn> {
    let mut messages = messages.into_iter();
    let mut turns = Vec::with_capacity(messages.len() / 2);
    while let (Some(source), Some(target)) = (messages.next(), messages.next()) {
        turns.push(Turn { source, target });
    }
    turns
}

fn flatten(mut messages: Vec<Vec<u32>>) -> Turn {
    let target = messages.pop().unwrap_or_default();
    Turn { source: messages.concat(), target }
}

/// Replaces the first occurrence of each `{{name}}`, one name after the other. A text that was filled in is searched
/// again for the later names: upstream does so, and a user's text may hold `{{idx}}`.
fn substitute<'a>(text: &'a str, values: &[(&str, &str)]) -> Cow<'a, str> {
    let mut out = Cow::Borrowed(text);
    for (name, value) in values {
        let placeholder = ["{{", name, "}}"].concat();
        if let Some(at) = out.find(&placeholder) {
            let (before, after) = (&out[..at], &out[at + placeholder.len()..]);
            out = Cow::Owned([before, value, after].concat());
        }
    }
    out
}

/// Whether a text is a call: an object with a name and arguments.
pub fn is_function_call(text: &str) -> bool {
    !function_call(text).1.is_empty()
}

/// Name and re-serialised arguments of a call; both empty if the text is not such a call.
fn function_call(text: &str) -> (String, String) {
    let read = || {
        let call: Members = serde_json::from_str(text)?;
        let (Some(name), Some(arguments)) = (call.get("name"), call.get("arguments")) else {
            return Ok(Default::default());
        };
        let name: Value = serde_json::from_str(name.get())?;
        Ok((python_json::str_of(&name), python_json::rewritten(arguments.get())?))
    };
    read().unwrap_or_else(|_: serde_json::Error| Default::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_text_that_holds_idx_gets_the_turn_number() {
        assert_eq!(
            substitute("{{content}} {{idx}}", &[("content", "say {{idx}}"), ("idx", "3")]),
            "say 3 {{idx}}"
        );
    }

    #[test]
    fn a_call_is_written_again_as_python_writes_it() {
        assert_eq!(
            function_call(r#"{"name":"f","arguments":{"a":1,"b":["é"]}}"#),
            ("f".into(), r#"{"a": 1, "b": ["é"]}"#.into())
        );
        let wei = r#"{"arguments": {"wei": 1000000000000000000000}, "name": "pay"}"#;
        assert_eq!(function_call(wei), ("pay".into(), r#"{"wei": 1000000000000000000000}"#.into()));
        for text in ["no json", "[]", r#"{"name": "f"}"#] {
            assert_eq!(function_call(text), (String::new(), String::new()));
        }
    }
}
