//! `--split-sentences` as a user runs it.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;

use bench::{Bench, text, tool};
use ms_data::indexed::IndexedDataset;
use ms_text::Tokenizer;

/// Folder of NLTK data with a model called `small`.
fn nltk_data() -> std::path::PathBuf {
    ms_testing::workspace_root().join("tests/golden/punkt")
}

const RECORDS: &str = r#"{"text": "Capt. Morrow met Dr. Lind.\n\nThey spoke. \"Fine!\" he said. ", "note": "So. It is."}
{"text": "", "note": "One. Two. Three."}
{"text": " \n ", "note": ""}
{"text": "no end", "note": "a"}
"#;

fn run(bench: &Bench, more: &[&str]) -> std::process::Output {
    std::fs::write(bench.path("s.jsonl"), RECORDS).unwrap();
    let args =
        ["--input", "s.jsonl", "--json-keys", "text", "note", "--split-sentences", "--output-prefix", "x"];
    tool()
        .current_dir(bench.dir.path())
        .env("NLTK_DATA", nltk_data())
        .args(args)
        .args(["--sentence-language", "small", "--tokenizer-name-or-path", "tok"])
        .args(more)
        .output()
        .unwrap()
}

/// Sentences of the documents of a set.
fn documents(bench: &Bench, name: &str) -> Vec<Vec<String>> {
    let set = IndexedDataset::open(bench.path(name)).unwrap();
    let tokenizer = Tokenizer::load(bench.path("tok")).unwrap();
    let sentence = |i: usize| {
        let mut ids = Vec::new();
        set.read(i, &mut ids).unwrap();
        tokenizer.decode(&ids.iter().map(|id| *id as u32).collect::<Vec<_>>(), false).unwrap()
    };
    (0..set.documents()).map(|d| set.document(d).map(sentence).collect()).collect()
}

#[test]
fn every_sentence_is_a_sequence_of_its_document() {
    let bench = Bench::new();
    let done = run(&bench, &["--append-eod"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let end = "<|endoftext|>";
    assert_eq!(
        documents(&bench, "x_text_sentence"),
        [
            vec![
                "Capt. Morrow met Dr. Lind.".to_owned(),
                "They spoke.".into(),
                "\"Fine!\"".into(),
                format!("he said.{end}")
            ],
            vec![format!("no end{end}")],
        ]
    );
    assert_eq!(
        documents(&bench, "x_note_sentence"),
        [
            vec!["So.".to_owned(), format!("It is.{end}")],
            vec!["One.".into(), "Two.".into(), format!("Three.{end}")],
            vec![format!("a{end}")]
        ]
    );
    assert!(!bench.path("x_text_document.idx").exists());
}

#[test]
fn sentences_keep_their_line_breaks_if_asked_to() {
    let bench = Bench::new();
    let done = run(&bench, &["--keep-newlines"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(
        documents(&bench, "x_text_sentence")[0],
        ["Capt. Morrow met Dr. Lind.\n\n", "They spoke. ", "\"Fine!\"", "he said."]
    );
}

#[test]
fn shards_and_workers_give_the_same_sentences() {
    let bench = Bench::new();
    assert!(run(&bench, &[]).status.success());
    let whole = bench.sets("x_");
    assert_eq!(whole.len(), 4);
    for more in [&["--resume", "--force"][..], &["--workers", "3", "--force"], &["--n-subs", "2", "--force"]]
    {
        let done = run(&bench, &[more, &["--no-manifest"]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_eq!(bench.sets("x_"), whole, "{more:?}");
    }
}

#[test]
fn a_missing_model_is_named_with_where_it_was_looked_for() {
    let bench = Bench::new();
    let done = run(&bench, &["--sentence-language", "nowhere"]);
    assert_eq!(done.status.code(), Some(1));
    let words = text(&done.stderr);
    assert!(
        words.contains("no sentence model for \"nowhere\"") && words.contains("tests/golden/punkt"),
        "{words}"
    );
    let done = run(&bench, &["--sentence-model", "tok"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("collocations.tab"), "{}", text(&done.stderr));
}
