//! A question of any benchmark: a prompt, and how its answer is determined.

/// One question of a benchmark.
#[derive(Clone, Debug)]
pub struct Question {
    /// The part of the benchmark it belongs to: a row of the table.
    pub subject: String,
    /// `SUBJECT/NUMBER`, counted from 0.
    pub id: String,
    /// What the model reads.
    pub prompt: String,
    /// Names of the possible answers, by index.
    pub labels: &'static [&'static str],
    /// Index of the right one.
    pub gold: usize,
    /// How the model's answer is found.
    pub answer: Answer,
}

/// How the model's answer to a question is found.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The continuation with the largest log-likelihood. A space stands between prompt and continuation.
    Likeliest {
        /// One continuation per label.
        choices: Vec<String>,
        /// Count it also with every log-likelihood divided by the characters of its continuation (`acc_norm`).
        normalised: bool,
    },
    /// A text is generated, and the label is taken out of it.
    Extracted(fn(&str) -> Option<char>),
    /// The likelier one of the tokens that end `No` and `Yes`: index 1 where `Yes` is at least as likely.
    YesOrNo,
}
