//! Records of the input: one JSON object, or one line or file of text.
//!
//! A folder gives its files in the order of their names (upstream takes whatever order the folder has).

mod array;
mod discover;
mod reader;

pub use discover::{Documents, Format, InputFile, discover, file_list};
pub use reader::{RawRecord, RecordReader};

/// Longest record that is read, in bytes.
pub const MAX_RECORD_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests;
