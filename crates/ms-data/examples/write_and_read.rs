//! Writes a dataset of two documents in Megatron's `.bin/.idx` format and reads it again.
//!
//! ```sh
//! cargo run -p ms-data --example write_and_read -- PREFIX
//! ```

use std::path::Path;

use ms_data::indexed::{IndexedDataset, IndexedWriter, TokenType};

/// Writes `PREFIX.bin` and `PREFIX.idx`; returns the sequences of each document.
pub(crate) fn run(prefix: &Path) -> ms_data::Result<Vec<Vec<i32>>> {
    let mut writer = IndexedWriter::create(prefix, TokenType::U16)?;
    for document in [&[[5, 6, 7].as_slice(), &[8]][..], &[&[9, 10]]] {
        for sequence in document {
            writer.sequence(sequence)?;
        }
        writer.end_document()?;
    }
    writer.finish()?;

    let dataset = IndexedDataset::open(prefix)?; // maps the files; nothing is read before it is asked for
    let mut documents = Vec::new();
    for d in 0..dataset.documents() {
        let mut tokens = Vec::new();
        dataset.document(d).try_for_each(|i| dataset.read(i, &mut tokens))?;
        documents.push(tokens);
    }
    Ok(documents)
}

#[allow(dead_code, clippy::print_stdout)] // unused where a test includes this file; a program that shows
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let prefix = std::env::args_os().nth(1).ok_or("expected the prefix of a dataset to write")?;
    for (d, tokens) in run(Path::new(&prefix))?.iter().enumerate() {
        println!("document {d}: {tokens:?}");
    }
    Ok(())
}
