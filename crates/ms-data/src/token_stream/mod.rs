//! Token rows between two programs: an Arrow IPC stream.
//!
//! One row per document; a nullable `List<Int32>` column per key; the schema's metadata is a [`StreamInfo`]. The stream ends
//! with the end marker `ff ff ff ff 00 00 00 00`, and [`TokenReader`] refuses one without it: a producer that died is an
//! error, not a short dataset. (Arrow's own reader treats the end of the file as the end of the stream.) Every message has a
//! checksum, which the readers here verify.
//!
//! Any Arrow implementation reads these streams. [`TokenReader`] reads streams of this one form and checks every length
//! before it allocates or slices; [`TokenMap`] does the same for a file, with random access to its rows.
//!
//! ```
//! use ms_data::handler::Row;
//! use ms_data::token_stream::{StreamInfo, TokenReader, TokenWriter};
//! let info = StreamInfo { style: "pretrain".into(), tokenizer: "ab12".into(), vocab_size: 10, eod: 0, pad: 0, ..StreamInfo::default() };
//! let mut bytes = Vec::new();
//! let mut writer = TokenWriter::new(&mut bytes, "a vector", &["text".to_string()], &info)?;
//! writer.push(Row::new(vec![Some(vec![1, 2, 3])]))?;
//! writer.push(Row::new(vec![None]))?;
//! writer.finish()?;
//! let rows: Vec<_> = TokenReader::new(bytes.as_slice(), "a vector")?.collect::<Result<_, _>>()?;
//! assert_eq!(rows[0].columns, [Some(vec![1, 2, 3])]);
//! assert_eq!(rows[1].columns, [None]);
//! assert!(TokenReader::new(&bytes[..bytes.len() - 8], "a vector")?.any(|row| row.is_err()));
//! # Ok::<(), ms_data::Error>(())
//! ```

mod batch;
mod info;
mod map;
mod reader;
mod seal;
mod writer;

pub use info::StreamInfo;
pub use map::{RowPlace, TokenMap};
pub use reader::{Rows, TokenReader};
pub use writer::{TokenStreamSink, TokenWriter};

#[cfg(test)]
mod tests;
