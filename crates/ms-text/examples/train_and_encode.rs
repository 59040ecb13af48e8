//! Trains a byte-level BPE on the lines of a text, writes it, and encodes with it.
//!
//! ```sh
//! cargo run -p ms-text --example train_and_encode -- FOLDER "some text"
//! ```

use std::path::Path;

use ms_text::{Result, Tokenizer, bpe};

/// Writes `tokenizer.json` and what belongs to it into `folder`; returns the pieces of `text`.
pub(crate) fn run(folder: &Path, text: &str) -> Result<Vec<String>> {
    let lines = ["the cat sat on the mat", "the dog sat on the log"].map(String::from);
    let options = bpe::Options { vocab_size: 280, min_frequency: 2 };
    bpe::train(&options, lines)?.write(folder)?;

    let tokenizer = Tokenizer::load(folder)?; // any other kind of vocabulary is loaded the same way
    let ids = tokenizer.encode(text)?;
    assert_eq!(tokenizer.decode(&ids, false)?, text);
    Ok(ids.iter().filter_map(|&id| tokenizer.id_to_token(id)).collect())
}

#[allow(dead_code, clippy::print_stdout)] // unused where a test includes this file; a program that shows
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(text)) = (args.next(), args.next()) else {
        return Err("expected a folder and a text".into());
    };
    println!("{:?}", run(Path::new(&folder), &text)?);
    Ok(())
}
