//! A conversation to pairs of (prompt, answer) ids.

use super::{Algorithm, Piece, Template, ToolFormat, tools};
use crate::{Error, Result, Tokenizer, python_json};
use serde_json::Value;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's answer, which stands where a user's message would.
    Observation,
    /// The model's call of a tool: JSON with `name` and `arguments`.
    Function,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// One exchange as ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The prompt: what is not trained.
    pub source: Vec<u32>,
    /// The answer: what is trained.
    pub target: Vec<u32>,
}

impl Template {
    /// Encodes a conversation; messages `2k` and `2k+1` are turn `k`.
    ///
    /// `system` and `tools` (JSON text) may be empty. The turns together hold at most about `cutoff` ids: what does
    /// not fit is cut off turn by turn, in proportion to prompt and answer. `usize::MAX` cuts nothing.
    ///
    /// # Errors
    /// [`Error::Encode`]; [`Error::MissingToken`] if a named token is neither in the vocabulary nor replaced by an
    /// unknown token.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        system: &str,
        tools: &str,
        cutoff: usize,
    ) -> Result<Vec<Turn>> {
        let system = if system.is_empty() { self.default_system.as_str() } else { system };
        let mut turns: Vec<Turn> = Vec::with_capacity(messages.len().div_ceil(2));
        for (i, message) in messages.iter().enumerate() {
            let mut ids = Vec::new();
            let mut system_text = String::new();
            if i == 0 {
                self.pieces(tokenizer, &self.prefix, &[], &mut ids)?;
                if !system.is_empty() || !tools.is_empty() {
                    let content = format!("{system}{}", self.tool_text(tools)?);
                    match self.algorithm {
                        Algorithm::Basic => {
                            self.pieces(tokenizer, &self.system, &[("content", &content)], &mut ids)?;
                        }
                        Algorithm::Llama2 => {
                            if let Some(Piece::Text(text)) = self.system.first() {
                                system_text = substitute(text, &[("content", &content)]);
                            }
                        }
                    }
                }
            } else if i % 2 == 0 {
                self.pieces(tokenizer, &self.separator, &[], &mut ids)?;
            }
            match message.role {
                Role::User => {
                    let content = system_text + &message.content;
                    let idx = (i / 2).to_string();
                    self.pieces(tokenizer, &self.user, &[("content", &content), ("idx", &idx)], &mut ids)?;
                }
                Role::Assistant => {
                    self.pieces(tokenizer, &self.assistant, &[("content", &message.content)], &mut ids)?;
                }
                Role::Observation => {
                    self.pieces(tokenizer, &self.observation, &[("content", &message.content)], &mut ids)?;
                }
                Role::Function => {
                    let (name, arguments) = function_call(&message.content);
                    let values = [("name", name.as_str()), ("arguments", arguments.as_str())];
                    self.pieces(tokenizer, &self.function, &values, &mut ids)?;
                }
            }
            if i % 2 == 0 {
                turns.push(Turn { source: ids, target: Vec::new() });
            } else if let Some(turn) = turns.last_mut() {
                turn.target = ids;
            }
        }
        // Upstream pairs messages up and drops one that is left alone.
        turns.truncate(messages.len() / 2);
        cut(&mut turns, cutoff);
        Ok(turns)
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

    fn tool_text(&self, tools: &str) -> Result<String> {
        match self.tools {
            ToolFormat::Default => Ok(tools::describe(tools)),
            ToolFormat::None => Ok(String::new()),
            ToolFormat::Failing if tools.is_empty() => Ok(String::new()),
            ToolFormat::Failing => Err(Error::UnsupportedTemplate {
                name: self.name.clone(),
                reason: "it cannot describe tools (upstream raises here too)",
            }),
        }
    }
}

/// Replaces the first occurrence of each `{{name}}`, one name after the other. A text that was filled in is searched
/// again for the later names: upstream does so, and a user's text may hold `{{idx}}`.
fn substitute(text: &str, values: &[(&str, &str)]) -> String {
    let mut out = text.to_owned();
    for (name, value) in values {
        let placeholder = ["{{", name, "}}"].concat();
        out = out.replacen(&placeholder, value, 1);
    }
    out
}

/// Name and re-serialised arguments of a call; both empty if the text is not such a call.
fn function_call(text: &str) -> (String, String) {
    let Ok(Value::Object(call)) = serde_json::from_str(text) else { return Default::default() };
    match (call.get("name"), call.get("arguments")) {
        (Some(name), Some(arguments)) => (python_json::str_of(name), python_json::dumps(arguments, None)),
        _ => Default::default(),
    }
}

/// Cuts turns so that the total stays within `cutoff`; turns after that are dropped.
fn cut(turns: &mut Vec<Turn>, cutoff: usize) {
    let mut total = 0;
    let mut kept = 0;
    for turn in turns.iter_mut() {
        if total >= cutoff {
            break;
        }
        let (source, target) = (turn.source.len(), turn.target.len());
        let rest = cutoff - total;
        if source + target > rest {
            // Division first, as upstream's double arithmetic does it; the product is then truncated.
            let share = rest as f64 * (target as f64 / (source + target) as f64);
            let most_target = (share as usize).max(1);
            let most_source = rest - most_target.min(target);
            turn.source.truncate(most_source);
            turn.target.truncate(most_target);
        }
        total += turn.source.len() + turn.target.len();
        kept += 1;
    }
    turns.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(source: usize, target: usize) -> Turn {
        Turn { source: vec![1; source], target: vec![2; target] }
    }

    #[test]
    fn a_cut_shares_the_room_in_proportion() {
        let mut turns = vec![turn(30, 10), turn(30, 10), turn(5, 5)];
        cut(&mut turns, 60);
        let lengths: Vec<_> = turns.iter().map(|t| (t.source.len(), t.target.len())).collect();
        assert_eq!(lengths, [(30, 10), (15, 5)]);
    }

    #[test]
    fn what_fits_is_not_cut() {
        let mut turns = vec![turn(3, 0), turn(0, 4)];
        cut(&mut turns, 7);
        assert_eq!(turns, [turn(3, 0), turn(0, 4)]);
    }

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
        assert_eq!(function_call("no json"), (String::new(), String::new()));
    }
}
