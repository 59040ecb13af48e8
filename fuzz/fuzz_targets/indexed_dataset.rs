//! An `.idx` of any bytes with a small `.bin`: refused, or every sequence can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::indexed::IndexedDataset;
use ms_fuzz::Scratch;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|bytes: &[u8]| {
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
