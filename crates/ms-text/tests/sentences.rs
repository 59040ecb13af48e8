//! Sentences compared with NLTK's, for a small model in each of its forms.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::sentence::{Edition, Rules, SentenceSplitter, find_model};
use proptest::prelude::*;
use serde::Deserialize;
use std::ops::Range;
use std::path::PathBuf;

/// Written by `tests/golden/punkt/make_punkt_goldens.py`.
fn golden(name: &str) -> PathBuf {
    ms_testing::workspace_root().join("tests/golden/punkt").join(name)
}

/// A text and its spans, in characters.
#[derive(Deserialize)]
struct Case {
    text: String,
    spans: Vec<(usize, usize)>,
    keep_newlines: Vec<(usize, usize)>,
}

fn characters(text: &str, spans: Vec<Range<usize>>) -> Vec<(usize, usize)> {
    let count = |end: usize| text[..end].chars().count();
    spans.into_iter().map(|span| (count(span.start), count(span.end))).collect()
}

#[test]
fn spans_are_those_of_nltk() {
    for (edition, name) in [(Edition::V3_8, "spans.0.json"), (Edition::V3_10_4, "spans.1.json")] {
        let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap();
        assert_eq!(cases.len(), 207);
        for model in ["tokenizers/punkt_tab/small", "small.0.pickle", "small.3.pickle"] {
            for keep_newlines in [false, true] {
                let rules = Rules { keep_newlines, edition };
                let splitter = SentenceSplitter::load(&golden(model), rules).unwrap();
                for case in &cases {
                    let want = if keep_newlines { &case.keep_newlines } else { &case.spans };
                    let got = characters(&case.text, splitter.spans(&case.text));
                    assert_eq!(&got, want, "{model} {rules:?}: {:?}", case.text);
                }
            }
        }
    }
}

#[test]
fn a_model_is_found_by_its_language() {
    let roots = [golden("nowhere"), golden("")];
    assert_eq!(find_model(&roots, "small").unwrap(), golden("tokenizers/punkt_tab/small"));
    for language in ["large", "", "../punkt_tab/small"] {
        let error = find_model(&roots, language).unwrap_err().to_string();
        assert!(error.contains("no sentence model") && error.contains("punkt_tab"), "{error}");
    }
}

#[test]
fn files_that_are_no_model_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8]| {
        let path = dir.path().join("m.pickle");
        std::fs::write(&path, bytes).unwrap();
        SentenceSplitter::load(&path, Rules::default()).unwrap_err().to_string()
    };
    assert!(refused(b"").contains("byte 0: 1 more bytes are needed"));
    assert!(refused(b"cos\nsystem\n(S'true'\ntR.").contains("a call of os.system is refused"));
    assert!(refused(b"\x80\x05.").contains("protocol 5"));
    assert!(refused(b"N.").contains("_params"));
    // A list inside itself is a value like any other, but no model.
    assert!(refused(b"(lp0\ng0\na.").contains("_params"));

    let folder = dir.path().join("tables");
    std::fs::create_dir(&folder).unwrap();
    let load = || SentenceSplitter::load(&folder, Rules::default()).map(|_| ()).unwrap_err().to_string();
    assert!(load().contains("collocations.tab"));
    for name in ["collocations.tab", "sent_starters.txt", "abbrev_types.txt"] {
        std::fs::write(folder.join(name), "a\r\nb\tc").unwrap();
    }
    std::fs::write(folder.join("ortho_context.tab"), "word\t46\nother\tmany").unwrap();
    assert!(load().contains("line 2: expected a word, a tab and a number"), "{}", load());
}

#[test]
fn the_hash_names_the_model_and_not_its_place() {
    let load = |name: &str| SentenceSplitter::load(&golden(name), Rules::default()).unwrap();
    let (tables, pickle) = (load("tokenizers/punkt_tab/small"), load("small.3.pickle"));
    assert_eq!(tables.content_hash().len(), 64);
    assert_ne!(tables.content_hash(), pickle.content_hash());
    assert_eq!(load("small.3.pickle").content_hash(), pickle.content_hash());
}

proptest! {
    #[test]
    fn damaged_pickles_never_panic(cut in 0usize..5000, at in 0usize..5000, byte in any::<u8>()) {
        for name in ["small.0.pickle", "small.3.pickle"] {
            let mut bytes = std::fs::read(golden(name)).unwrap();
            let (length, at) = (bytes.len(), at % bytes.len());
            bytes[at] = byte;
            bytes.truncate(length - cut % length / 7);
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.pickle");
            std::fs::write(&path, bytes).unwrap();
            let _ = SentenceSplitter::load(&path, Rules::default());
        }
    }

    #[test]
    fn spans_are_in_order_and_leave_out_white_space_alone(text in "([a-zA-Z]{1,3}|[.?!]{1,3}|[ \n]|[\"')»”]|\\PC){0,40}") {
        for edition in [Edition::V3_8, Edition::V3_10_2, Edition::V3_10_4] {
            let model = golden("tokenizers/punkt_tab/small");
            let splitter = SentenceSplitter::load(&model, Rules { keep_newlines: false, edition }).unwrap();
            let mut end = 0;
            for span in splitter.spans(&text) {
                prop_assert!(span.start >= end && span.end > span.start);
                prop_assert!(text[end..span.start].chars().all(char::is_whitespace));
                end = span.end;
            }
            prop_assert!(text[end..].chars().all(char::is_whitespace));
        }
    }
}
