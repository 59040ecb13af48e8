//! Tokenizers, chat templates and prompt templates.
//!
//! - [`Tokenizer`]: a tokenizer folder (`tokenizer.json`, SentencePiece, tiktoken, GPT-2, BERT vocabularies). Every
//!   vocabulary is converted to the form of `tokenizer.json`, which an engine behind the trait [`Encode`] reads.
//! - [`Detokenizer`]: ids to text one id at a time, for streaming; never emits half a character.
//! - [`bpe`]: trains a byte-level BPE and writes such a folder.
//! - [`ChatTemplate`]: the Jinja template of a folder, rendered as Hugging Face renders it.
//! - [`template::Template`]: MindSpeed-LLM's prompt templates (`--prompt-type`), which define the text that an
//!   instruction-tuned model is trained on. They differ from chat templates: their pieces are tokenized one by one.
//! - [`sentence::SentenceSplitter`]: splits a text into sentences with a trained Punkt model of NLTK (`--split-sentences`).
//!
//! ```
//! use ms_text::{bpe, Tokenizer};
//! let dir = tempfile::tempdir()?;
//! let text = "the cat sat on the mat. the dog sat on the log. ".repeat(4);
//! bpe::train(&bpe::Options { vocab_size: 280, ..Default::default() }, [text])?.write(dir.path())?;
//! let tokenizer = Tokenizer::load(dir.path())?;
//! let ids = tokenizer.encode("the cat sat")?;
//! assert_eq!(tokenizer.decode(&ids, false)?, "the cat sat");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate never downloads anything and never prints. Encoding starts no threads: callers that want several threads share
//! a [`Tokenizer`] between them. Training counts words and merges on scoped threads of its own; the result does not depend on
//! their number.

pub mod bpe;
mod cache;
mod chat;
mod detokenizer;
mod engine;
mod error;
mod folder;
pub mod python_case;
pub mod python_json;
pub mod sentence;
mod source;
pub mod template;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatTemplate, GenerationPrompt};
pub use detokenizer::Detokenizer;
pub use engine::{Encode, Engine};
pub use error::Error;
pub use tokenizer::{SpecialToken, Tokenizer};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
