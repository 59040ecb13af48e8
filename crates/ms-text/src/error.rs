//! Errors of tokenizers and templates.

use std::path::PathBuf;

/// What can go wrong between text and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A tokenizer is named that is not there, in the way of a model hub.
    #[error(
        "{path}: no such folder\nhint: names of a hub are not looked up: download {path} (hf download {path} --local-dir DIR) and \
         pass DIR"
    )]
    HubName {
        /// The name.
        path: PathBuf,
    },
    /// A file that must hold JSON does not.
    #[error("{path}: not valid JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A JSON file lacks something or holds it in another form.
    #[error("{path}: {field}: expected {want}")]
    Field {
        /// The file.
        path: PathBuf,
        /// Name of the field.
        field: String,
        /// What was expected of it.
        want: &'static str,
    },
    /// The folder has no tokenizer.
    #[error("{path}: no tokenizer in this folder (looked for {looked_for})")]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
        /// Names of the files that would be one.
        looked_for: &'static str,
    },
    /// A tokenizer file was read but is not one, or the engine does not take it.
    #[error("{path}: not a tokenizer that can be loaded: {reason}")]
    Engine {
        /// The file.
        path: PathBuf,
        /// The engine's message.
        reason: String,
    },
    /// Encoding failed.
    #[error("cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The engine's message.
        reason: String,
    },
    /// Decoding failed.
    #[error("cannot decode {count} ids: {reason}")]
    Decode {
        /// Number of ids.
        count: usize,
        /// The engine's message.
        reason: String,
    },
    /// A token could not be added.
    #[error("cannot add the token {token:?}: {reason}")]
    AddToken {
        /// The token's text.
        token: String,
        /// The engine's message.
        reason: String,
    },
    /// A special token is needed that the tokenizer does not have.
    #[error("the tokenizer has no {what} token, which {wanted_by} needs")]
    MissingToken {
        /// Which one: `end-of-sequence`, or the token's text.
        what: String,
        /// The requester.
        wanted_by: String,
    },
    /// Training a vocabulary failed.
    #[error("cannot train a vocabulary of {vocab_size}: {reason}")]
    Train {
        /// Requested size.
        vocab_size: usize,
        /// Why.
        reason: String,
    },
    /// The folder has no chat template.
    #[error(
        "{path}: no chat template (neither chat_template.jinja nor chat_template in tokenizer_config.json)"
    )]
    NoChatTemplate {
        /// The folder.
        path: PathBuf,
    },
    /// A chat template does not parse or fails while rendering.
    #[error("chat template: {reason}")]
    Chat {
        /// The template engine's message, or what the template itself raised.
        reason: String,
    },
    /// A folder's chat template does not parse.
    #[error("{path}: chat template: {reason}")]
    ChatFile {
        /// The file that holds it.
        path: PathBuf,
        /// The template engine's message.
        reason: String,
    },
    /// `--prompt-type` names no template.
    #[error("unknown prompt template {name:?}; known: {known}")]
    UnknownTemplate {
        /// The name.
        name: String,
        /// All names, comma separated.
        known: String,
    },
    /// The template cannot do what a conversation asks of it.
    #[error("prompt template {name:?}: {reason}")]
    UnsupportedTemplate {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// Tools or tool calls of a conversation are not in the form that the template takes.
    #[error("{reason}")]
    Tools {
        /// What was expected and found.
        reason: String,
    },
    /// A user's template file is not as it must be.
    #[error("{path}: template {name:?}: {reason}")]
    TemplateFile {
        /// The file.
        path: PathBuf,
        /// The entry.
        name: String,
        /// Why.
        reason: String,
    },
    /// A file or folder is no trained model of sentences.
    #[error("{path}: not a sentence model: {reason}")]
    SentenceModel {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// There is no trained model of sentences for a language.
    #[error(
        "no sentence model for {language:?} in {looked_in}\nhint: python -m nltk.downloader punkt_tab brings tokenizers/punkt_tab into a folder \
         of NLTK's data; name that folder in NLTK_DATA, or the model's with --sentence-model"
    )]
    NoSentenceModel {
        /// The language.
        language: String,
        /// Folders of NLTK's data.
        looked_in: String,
    },
}

impl Error {
    /// The reason alone of an [`Error::Engine`], for another one with the same file; of others all that they say.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Engine { reason, .. } => reason,
            other => other.to_string(),
        }
    }
}
