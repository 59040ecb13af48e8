//! Errors of generation.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of the sampling rule is not legal.
    #[error("{name}: expected {expected}, found {found}")]
    Sampling {
        /// The number.
        name: &'static str,
        /// What would be legal.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// A prompt without tokens: there is nothing to continue.
    #[error("prompt {index} has no tokens; a model needs at least one to continue from")]
    EmptyPrompt {
        /// Which prompt, from 0.
        index: usize,
    },
    /// The prompt is longer than the model's window.
    #[error("the prompt has {prompt} tokens, the model's window {max}")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the model.
        max: usize,
    },
    /// A token id that the model does not have.
    #[error("token {id} is not in the model's vocabulary of {vocab}; is this the model's own tokenizer?")]
    Token {
        /// The id.
        id: i64,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A model computed NaN or infinite values: nothing can be chosen or scored by them.
    #[error(
        "logits are not finite at token {token} of sequence {sequence}: weights may hold values that are not numbers"
    )]
    NotFinite {
        /// Which sequence, from 0.
        sequence: usize,
        /// Its token after which the logits stand, from 0.
        token: usize,
    },
    /// The machine, or the control group of this process, has too little memory.
    #[error("memory: about {} bytes are needed, {available} are available", needs.total())]
    Memory {
        /// What is needed, by what for.
        needs: crate::MemoryEstimate,
        /// Bytes that can still be taken.
        available: u64,
    },
    /// A model could not be built or run.
    #[error(transparent)]
    Model(#[from] ms_nn::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
    /// The model's description is invalid.
    #[error(transparent)]
    Spec(#[from] ms_spec::Error),
    /// A checkpoint could not be read.
    #[error(transparent)]
    Ckpt(#[from] ms_ckpt::Error),
    /// Text could not be tokenized.
    #[error(transparent)]
    Text(#[from] ms_text::Error),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
