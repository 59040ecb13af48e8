//! A record as a conversation, or the reason why it is not one.

use ms_text::template::Message;

/// A record as a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
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

/// What became of a record.
pub(super) enum Alignment {
    /// A conversation; `oddity` is what upstream does to it without a word, if anything.
    Conversation(Aligned, Option<&'static str>),
    /// Upstream leaves it out, for this reason.
    Dropped(&'static str),
}
