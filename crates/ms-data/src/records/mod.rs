//! Input records: JSON objects, table rows, lines or whole text files.
//!
//! [`discover`] says which files an input refers to, [`RecordReader`] reads them one after another, and [`RawRecord::parse`]
//! turns a record into an object, on any thread.
//!
//! | format        | files                         | a record is                                  | memory of the reader                |
//! |---------------|-------------------------------|----------------------------------------------|-------------------------------------|
//! | JSON          | `.json`, `.jsonl`             | an object per line, or an element of an array | the record                          |
//! | text          | `.txt`                        | a line                                       | the record                          |
//! | CSV           | `.csv`, `.tsv`                | a row; the first row names the columns       | the record                          |
//! | Parquet       | `.parquet`                    | a row                                        | a page of every column, some rows   |
//! | Arrow, Feather | `.arrow`, `.feather`, `.ipc` | a row                                        | one record batch of the file        |
//!
//! All of them may have the suffix `.gz`, `.zst` or `.xz`; decompression needs its window in addition (32 KB, or at most
//! 128 MB). A Parquet file that is compressed as a whole, or comes through a pipe, is held in memory.
//!
//! A folder yields its files in the order of their names (upstream takes whatever order the folder has).

mod array;
mod arrow_stream;
mod columns;
mod compressed;
mod csv;
mod discover;
mod flat;
mod groups;
mod pages;
mod reader;

pub use compressed::Compression;
pub use discover::{Discovery, Documents, Format, InputFile, discover, file_list};
pub use reader::{FileDigest, RawRecord, RecordReader};

/// Longest record that is read unless an input says otherwise, in bytes.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// Most bytes of a Parquet file that has to be held in memory, because it is piped or compressed as a whole.
const MAX_HELD_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests;
