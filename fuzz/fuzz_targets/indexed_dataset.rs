//! An `.idx` of any bytes with a small `.bin`: refused, or every sequence can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::indexed::{IndexedDataset, IndexedWriter, TokenType};
use ms_fuzz::{Scratch, seed};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fn seeds() {
    for (dtype, lengths) in [(TokenType::I32, [1000, 20, 4]), (TokenType::U16, [2000, 40, 8])] {
        let prefix = SCRATCH.path("sound");
        let mut writer = IndexedWriter::create(&prefix, dtype).expect("a folder");
        for length in lengths {
            writer.sequence(&vec![7; length]).and_then(|()| writer.end_document()).expect("a small file");
        }
        writer.finish().expect("a small file");
        seed(&lengths[0].to_string(), &std::fs::read(prefix.with_extension("idx")).expect("it was written"));
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    SCRATCH.write("set.bin", &[7; 4096]);
    SCRATCH.write("set.idx", bytes);
    let Ok(set) = IndexedDataset::open(SCRATCH.path("set")) else { return };
    let mut tokens = Vec::new();
    for i in 0..set.len().min(64) {
        tokens.clear();
        set.read(i, &mut tokens).expect("a set that opens can be read");
        assert_eq!(tokens.len(), set.length(i));
    }
    for d in 0..set.documents().min(64) {
        assert!(set.document(d).end <= set.len());
    }
});
