//! Text to tokens and back.
//!
//! - [`Tokenizer`]: a tokenizer folder (`tokenizer.json`, SentencePiece, tiktoken, GPT-2, BERT vocabularies). Every
//!   vocabulary is brought into the form of `tokenizer.json`, which an engine behind the seam [`Encode`] reads.
//! - [`Detokenizer`]: ids to text one id at a time, for streaming; never emits half a character.
//! - [`bpe`]: trains a byte-level BPE and writes such a folder.
//! - [`ChatTemplate`]: the Jinja template of a folder, rendered as Hugging Face renders it.
//! - [`template::Template`]: MindSpeed-LLM's prompt templates (`--prompt-type`), which decide what an
//!   instruction-tuned model is trained on. Not the same thing as a chat template: its pieces are
//!   tokenized one by one.
//! - [`sentence::SentenceSplitter`]: sentences of a text by a trained model of NLTK's Punkt (`--split-sentences`).
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
//! This crate never downloads anything, never prints, and starts no threads of its own: callers that want
//! several threads share a [`Tokenizer`] between them. (Training is the exception: it counts words on the
//! engine's thread pool; the result does not depend on the number of threads.)

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
