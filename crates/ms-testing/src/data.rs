//! Synthetic token datasets with index files that upstream wrote.

use crate::golden;
use std::path::Path;

/// Writes the datasets to which the orders in `tests/golden/data` belong: upstream's index files, and as many tokens,
/// generated as `make.py` there generates them.
///
/// # Panics
/// If a file cannot be read or written.
pub fn write_data_sets(root: &Path) {
    for (name, end) in [
        ("pretrain-gpt2-eod/c4_text_document", Some(50_256)),
        ("pretrain-llama3-empty-docs-eod/shk_text_document", Some(128_001)),
        ("pretrain-llama2-txt/wiki_text_document", None),
    ] {
        let index = std::fs::read(golden(&format!("data/{name}.idx"))).expect("an index can be read");
        // After magic, version and the type of tokens: numbers of sequences and of borders, and the lengths.
        let count = u64::from_le_bytes(index[18..26].try_into().expect("eight bytes")) as usize;
        let mut tokens: Vec<i32> = Vec::new();
        for bytes in index[34..34 + 4 * count].chunks_exact(4) {
            let length = i32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let first = tokens.len() as i32;
            tokens.extend((first..first + length).map(|i| 1000 + i % 1021));
            if let (Some(end), Some(last), true) = (end, tokens.last_mut(), length > 0) {
                *last = end;
            }
        }
        let path = root.join(name);
        let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        std::fs::create_dir_all(path.parent().expect("a set has a folder")).expect("a folder can be made");
        std::fs::write(path.with_extension("bin"), tokens).expect("tokens can be written");
        std::fs::write(path.with_extension("idx"), index).expect("an index can be written");
    }
}
