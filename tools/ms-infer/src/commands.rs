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
    /// `--task beam_search`, likewise.
    Beams,
    /// `--task beam_search_with_sampling`, likewise.
    SampledBeams,
}

/// What commands are called.
pub(crate) const GENERATE: &str = "generate";
pub(crate) const CHAT: &str = "chat";
pub(crate) const LOGITS: &str = "logits";
const GREEDY: &str = "--task greedy";
const SAMPLE: &str = "--task do_sample";
const BEAMS: &str = "--task beam_search";
const SAMPLED_BEAMS: &str = "--task beam_search_with_sampling";

/// All of them; those that make texts, those that draw them, and those that may put turns into a template.
pub(crate) const EVERY: &[&str] = &[GENERATE, CHAT, LOGITS, GREEDY, SAMPLE, BEAMS, SAMPLED_BEAMS];
pub(crate) const TEXTS: &[&str] = &[GENERATE, CHAT, GREEDY, SAMPLE, BEAMS, SAMPLED_BEAMS];
pub(crate) const DRAWN: &[&str] = &[GENERATE, CHAT, SAMPLE, SAMPLED_BEAMS];
pub(crate) const TURNS: &[&str] = &[CHAT, GREEDY, SAMPLE, BEAMS, SAMPLED_BEAMS];

impl Command {
    /// What it is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Generate => GENERATE,
            Self::Chat => CHAT,
            Self::Logits => LOGITS,
            Self::Greedy => GREEDY,
            Self::Sample => SAMPLE,
            Self::Beams => BEAMS,
            Self::SampledBeams => SAMPLED_BEAMS,
        }
    }
}
