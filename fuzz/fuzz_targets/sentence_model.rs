//! A pickled sentence model of any bytes, and such tables: refused, or they cut a text without leaving its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, seed};
use ms_text::sentence::{Rules, SentenceSplitter};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

const TEXT: &str = "Mr. A met J. S. Bach... \"So!\" he said. It was 3. May, e.g. late.\nFine?) Yes.";

fn seeds() {
    for name in ["small.0.pickle", "small.3.pickle"] {
        seed(name, &golden(&format!("punkt/{name}")));
    }
    for name in ["collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"] {
        seed(name, &golden(&format!("punkt/tokenizers/punkt_tab/small/{name}")));
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    SCRATCH.write("model.pickle", bytes);
    let _ = std::fs::create_dir(SCRATCH.path("tables"));
    for name in ["collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"] {
        SCRATCH.write(&format!("tables/{name}"), bytes);
    }
    for name in ["model.pickle", "tables"] {
        let Ok(splitter) = SentenceSplitter::load(&SCRATCH.path(name), Rules::default()) else { continue };
        assert!(splitter.spans(TEXT).iter().all(|span| TEXT.get(span.clone()).is_some()));
        if let Ok(text) = std::str::from_utf8(bytes) {
            assert!(splitter.spans(text).iter().all(|span| text.get(span.clone()).is_some()));
        }
    }
});
