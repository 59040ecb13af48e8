//! MindSpeed-LLM's prompt templates (`--prompt-type`): how a conversation becomes ids and labels.
//!
//! A template is eight lists of [`Piece`]s. Every piece is tokenized on its own, so tokens never cross from one piece into
//! the next; this is the difference between a prompt template and a chat template. Templates are data: `table.json`, or a
//! user's file ([`Template::from_file`]).
//!
//! Rules: MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/preprocess/{templates,formatter}.py`.

mod cut;
mod deepseek4;
mod encode;
mod message;
mod reasoning;
mod table;
mod tools;

pub use cut::shares;
pub use encode::is_function_call;
pub use message::{Message, Role, ToolCall, Turn};

use crate::{Result, Tokenizer};
use serde::Deserialize;

/// One element of a template.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "table::PieceRow")]
pub enum Piece {
    /// Text with placeholders such as `{{content}}`.
    Text(String),
    /// One token, looked up by its text.
    Token(String),
    /// The tokenizer's beginning-of-sequence token; nothing if it has none.
    Bos,
    /// The tokenizer's end-of-sequence token; nothing if it has none.
    Eos,
}

/// How the pieces of a conversation are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// System pieces come before the first message.
    #[default]
    Basic,
    /// The rendered system text is put in front of the first user text.
    Llama2,
    /// As LlamaFactory does it: no separators, and another cut.
    #[serde(rename = "lf")]
    LlamaFactory,
    /// Basic with thoughts taken out or put in, and `LlamaFactory`'s cut.
    Reasoning,
    /// DeepSeek-V4's rendering of structured messages.
    DeepSeek4,
}

/// How hard the model is asked to think (`--reasoning-effort`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A text that asks for it stands before everything.
    Max,
    /// Nothing is added.
    High,
}

/// How a list of tools becomes part of the system text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolFormat {
    /// The `Action:` / `Action Input:` description.
    #[default]
    Default,
    /// Tools vanish. Upstream's chatglm3 and glm4 name a format whose name is taken apart into letters while
    /// loading, so that none matches; files must agree with that.
    None,
    /// A JSON line per tool, calls as `<tool_call>` blocks. An extension: upstream means this format for `qwen3` and
    /// `bailing_mini` but raises as soon as there are tools.
    Qwen,
}

/// A prompt template in resolved form: nothing is left to defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The name given to `--prompt-type`.
    pub name: String,
    /// Exists only in the August 2026 head of upstream, not in v2.0.0.
    pub head_only: bool,
    /// How pieces are combined.
    pub algorithm: Algorithm,
    /// Before everything else.
    pub prefix: Vec<Piece>,
    /// Around the system text.
    pub system: Vec<Piece>,
    /// Around a user's text.
    pub user: Vec<Piece>,
    /// Around the assistant's text.
    pub assistant: Vec<Piece>,
    /// Around a tool's answer.
    pub observation: Vec<Piece>,
    /// Around the assistant's call of a tool; has `{{name}}` and `{{arguments}}`.
    pub function: Vec<Piece>,
    /// Before every message of the user but the first.
    pub separator: Vec<Piece>,
    /// How tools are described.
    pub tools: ToolFormat,
    /// Used when a conversation brings no system text.
    pub default_system: String,
    /// Tokens that end a turn; they become special tokens.
    pub stop_words: Vec<String>,
    /// The end-of-sequence id is trained only once, at the end, and stands where the next prompt begins.
    pub efficient_eos: bool,
    /// The first stop word becomes the tokenizer's end-of-sequence token.
    pub replace_eos: bool,
    /// What begins and ends a thought.
    pub thought_words: (String, String),
    /// `--enable-thinking`: thoughts are trained, removed, or as they come.
    pub thinking: Option<bool>,
    /// `--reasoning-effort`, for DeepSeek-V4.
    pub effort: Option<Effort>,
    /// `--drop-thinking`, for DeepSeek-V4: thoughts before the last question go.
    pub drop_thinking: bool,
}

impl Template {
    /// Fits the tokenizer to the template, in upstream's order: replace the end-of-sequence token, make one if
    /// there is none, let padding fall back to it, register the remaining stop words.
    /// New tokens get the next free ids.
    ///
    /// # Errors
    /// [`crate::Error::AddToken`].
    pub fn adjust(&self, tokenizer: &mut Tokenizer) -> Result<()> {
        let mut stop_words = self.stop_words.as_slice();
        if self.replace_eos
            && let Some((first, rest)) = stop_words.split_first()
        {
            tokenizer.set_eos(first)?;
            stop_words = rest;
        }
        if tokenizer.eos().is_none() {
            tokenizer.set_eos("<|endoftext|>")?;
        }
        // After the replacement on purpose: Qwen keeps its own padding token, a tokenizer without one pads
        // with the new end of sequence.
        tokenizer.pad_with_eos();
        for word in stop_words {
            tokenizer.add_special(word)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
