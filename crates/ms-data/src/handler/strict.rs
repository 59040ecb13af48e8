//! Errors for what upstream does silently (`--strict`).

use super::alignment::Aligned;
use super::{Encoded, Handler};
use crate::{Error, Reason, Result as DataResult};
use ms_text::Tokenizer;
use ms_text::template::{Piece, Role, Template, is_function_call};

type Result<T> = std::result::Result<T, Reason>;

/// Refuses a template that names tokens the tokenizer does not have: upstream puts the unknown token there, or nothing.
pub(super) fn check_template(template: &Template, tokenizer: &Tokenizer) -> DataResult<()> {
    let lists = [
        &template.prefix,
        &template.system,
        &template.user,
        &template.assistant,
        &template.observation,
        &template.function,
        &template.separator,
    ];
    for piece in lists.into_iter().flatten() {
        let missing = match piece {
            Piece::Token(token) if tokenizer.token_to_id(token).is_none() => token.as_str(),
            Piece::Bos if tokenizer.bos().is_none() => "beginning-of-sequence",
            _ => continue,
        };
        return Err(Error::options(format!(
            "the prompt template {} needs the token {missing}, which the tokenizer lacks",
            template.name
        )));
    }
    Ok(())
}

impl Handler {
    pub(super) fn check_conversation(&self, aligned: &Aligned, oddity: Option<&str>) -> Result<()> {
        if let Some(oddity) = oddity {
            return Err(oddity.into());
        }
        let Some(template) = &self.template else { return Ok(()) };
        for message in aligned.prompt.iter().chain(&aligned.response) {
            if message.role == Role::User && message.content.contains("{{idx}}") && names_idx(template) {
                return Err("a user's text holds {{idx}}, which becomes a turn number".into());
            }
            if message.role == Role::Function && !is_function_call(&message.content) {
                return Err(
                    "a function message is not JSON with name and arguments, so it becomes an empty call"
                        .into(),
                );
            }
        }
        if let Some(template) = self.loses_tools(aligned) {
            return Err(format!(
                "its tools are not in a form that the template {template} describes, so they vanish"
            )
            .into());
        }
        Ok(())
    }

    /// The name of the template, if the conversation has tools that it does not describe.
    pub(super) fn loses_tools(&self, aligned: &Aligned) -> Option<&str> {
        let template = self.template.as_ref()?;
        (!aligned.tools.is_empty() && template.loses_tools(&aligned.tools)).then_some(&template.name)
    }

    pub(super) fn check_encoded(&self, encoded: &Encoded) -> Result<()> {
        let rows = match encoded {
            Encoded::Row(row) => std::slice::from_ref(row),
            Encoded::Rows(rows) => rows,
            Encoded::Replaced(_) => {
                return Err(
                    "it is not one question and one answer; upstream puts an empty conversation in its place"
                        .into(),
                );
            }
            Encoded::Dropped => return Ok(()),
        };
        let Some(limit) = self.options.seq_length else { return Ok(()) };
        for column in rows.iter().flat_map(|row| &row.columns).flatten() {
            if column.len() >= limit {
                return Err(format!(
                    "it has {} tokens, which is not below --seq-length {limit}; upstream leaves it out",
                    column.len()
                )
                .into());
            }
        }
        Ok(())
    }
}

/// Whether the user pieces are searched for the turn number: they all are, after the content is filled in.
fn names_idx(template: &Template) -> bool {
    template.user.iter().any(|piece| matches!(piece, Piece::Text(text) if text.contains("{{content}}")))
}
