//! The commands of the program.

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Command {
    Generate,
    Chat,
    Logits,
    /// `--task greedy` of upstream's `inference.py`.
    Greedy,
    /// `--task do_sample`, likewise.
    Sample,
}

/// What commands are called.
pub(crate) const GENERATE: &str = "generate";
pub(crate) const CHAT: &str = "chat";
pub(crate) const LOGITS: &str = "logits";
const GREEDY: &str = "--task greedy";
const SAMPLE: &str = "--task do_sample";

/// All of them; those that make texts, those that draw them, and those that may put turns into a template.
pub(crate) const EVERY: &[&str] = &[GENERATE, CHAT, LOGITS, GREEDY, SAMPLE];
pub(crate) const TEXTS: &[&str] = &[GENERATE, CHAT, GREEDY, SAMPLE];
pub(crate) const DRAWN: &[&str] = &[GENERATE, CHAT, SAMPLE];
pub(crate) const TURNS: &[&str] = &[CHAT, GREEDY, SAMPLE];

impl Command {
    /// What it is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Generate => GENERATE,
            Self::Chat => CHAT,
            Self::Logits => LOGITS,
            Self::Greedy => GREEDY,
            Self::Sample => SAMPLE,
        }
    }
}
