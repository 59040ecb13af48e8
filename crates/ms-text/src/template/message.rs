//! Messages of a conversation and how they are rendered.

/// The role of the speaker.
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
    /// A system text in the middle of a conversation; only templates of structured messages take it.
    System,
}

/// A tool call that the assistant makes, in structured form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// What results refer to; may be empty.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as they were given: JSON text, or JSON itself.
    pub arguments: serde_json::Value,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The role of the speaker.
    pub role: Role,
    /// The text.
    pub content: String,
    /// Reasoning that was given apart from the text; `Some("")` if the field was there and empty.
    pub reasoning: Option<String>,
    /// Calls in structured form; empty for messages that carry text alone.
    pub calls: Vec<ToolCall>,
    /// The call that an observation answers; may be empty.
    pub answers: String,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), reasoning: None, calls: Vec::new(), answers: String::new() }
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
