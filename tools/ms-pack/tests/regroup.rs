//! `ms-pack`: outputs that appear whole, and manifests beside them.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use assert_cmd::Command;
use ms_data::handler::Row;
use ms_data::indexed::{IndexedWriter, TokenType};
use ms_data::preprocess::{Manifest, OutputRecord};
use ms_data::sink::Sink;
use ms_data::token_stream::{StreamInfo, TokenStreamSink};
use std::path::Path;

/// A set of four documents of one token, with a manifest.
fn set(folder: &Path, name: &str) {
    let prefix = folder.join(name);
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32).unwrap();
    for token in 0..4 {
        writer.sequence(&[token]).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    let mut manifest = Manifest::new("a test".into(), serde_json::Map::new(), "0123".into());
    for ending in ["bin", "idx"] {
        manifest.outputs.push(OutputRecord::new(&prefix.with_extension(ending)).unwrap());
    }
    manifest.write(&folder.join(format!("{name}.manifest.json"))).unwrap();
}

/// What a command says, which ends with `code`.
fn said(folder: &Path, words: &str, code: i32) -> String {
    let mut command = Command::cargo_bin("ms-pack").unwrap();
    let done = command.current_dir(folder).args(words.split_whitespace()).assert().code(code);
    String::from_utf8(done.get_output().stderr.clone()).unwrap()
}

/// Names in a folder that begin so.
fn names(folder: &Path, beginning: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(beginning)).collect();
    names.sort();
    names
}

#[test]
fn of_a_split_that_fails_no_part_stays() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    set(folder, "all");
    // The second part cannot be written.
    std::fs::create_dir(folder.join("part_valid.idx")).unwrap();
    let words = "split all --split 1,1,0 --force --output-prefix part";
    assert!(said(folder, words, 1).contains("part_valid.idx"), "{}", said(folder, words, 1));
    assert_eq!(names(folder, "part"), ["part_valid.idx"]);
    std::fs::remove_dir(folder.join("part_valid.idx")).unwrap();
    said(folder, words, 0);
    assert_eq!(names(folder, "part").len(), 6);
}

#[cfg(target_os = "linux")]
#[test]
fn of_a_split_that_is_interrupted_no_part_stays() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    set(folder, "all");
    let mut command = ms_testing::heeding_signals(assert_cmd::cargo::cargo_bin("ms-pack"));
    command.current_dir(folder).args(["split", "all", "--parts", "50000", "--output-prefix", "part"]);
    let mut child = command.spawn().unwrap();
    let begun = std::time::Instant::now();
    while !folder.join("part_00001_of_50000.idx").exists() {
        assert!(begun.elapsed().as_secs() < 600, "no part within ten minutes");
        std::thread::yield_now();
    }
    std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let parts = names(folder, "part").into_iter().filter(|name| !name.ends_with(".part"));
    assert_eq!(parts.collect::<Vec<_>>(), [] as [String; 0]);
}

#[test]
fn sets_called_by_the_beginning_of_their_names_have_their_manifests() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    set(folder, "a_text_document");
    set(folder, "b_text_document");
    said(folder, "merge --output-prefix all a b_text_document.bin", 0);
    said(folder, "split a --split 1,1,0 --output-prefix part", 0);
    for made in ["all.manifest.json", "part_train.manifest.json", "part_valid.manifest.json"] {
        assert_eq!(names(folder, made), [made]);
    }
    let error = said(folder, "merge --force --output-prefix a_text_document a b", 2);
    assert!(error.contains("it is an input too"), "{error}");
    // Damage gets no new checksum.
    let bin = folder.join("a_text_document.bin");
    let mut bytes = std::fs::read(&bin).unwrap();
    bytes[4] ^= 1;
    std::fs::write(&bin, bytes).unwrap();
    for words in ["merge --output-prefix more a b", "split a --split 1,1,0 --output-prefix more"] {
        let error = said(folder, words, 1);
        assert!(error.contains("a_text_document.bin: its bytes are not those that were written"), "{error}");
        assert_eq!(names(folder, "more"), [""; 0]);
    }
}

#[test]
fn what_is_read_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    set(dir.path(), "all_train");
    let before = std::fs::read(dir.path().join("all_train.bin")).unwrap();
    let error = said(dir.path(), "split all_train --split 1,1,0 --force --output-prefix all", 2);
    assert!(error.contains("--output-prefix all_train: it is an input too"), "{error}");
    let error = said(dir.path(), "merge all_train --force --output-prefix all_train", 2);
    assert!(error.contains("--output-prefix all_train: it is an input too"), "{error}");
    assert_eq!(std::fs::read(dir.path().join("all_train.bin")).unwrap(), before);
}

#[test]
fn the_manifest_of_a_set_stays_where_the_set_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    ["a", "b"].into_iter().for_each(|name| set(dir.path(), name));
    std::fs::write(dir.path().join("b.idx"), b"no index").unwrap();
    set(dir.path(), "c");
    let error = said(dir.path(), "merge a b --force --output-prefix c", 1);
    assert!(error.contains("b.idx"), "{error}");
    assert!(said(dir.path(), "verify c", 0).is_empty());
    let there = ["c.bin", "c.idx", "c.manifest.json"];
    assert_eq!(names(dir.path(), "c"), there);
    // Only the index, which is written last, has no place.
    set(dir.path(), "b");
    std::fs::remove_file(dir.path().join("c.idx")).unwrap();
    std::fs::create_dir(dir.path().join("c.idx")).unwrap();
    let error = said(dir.path(), "merge a b --force --output-prefix c", 1);
    assert!(error.contains("c.idx"), "{error}");
    assert_eq!(names(dir.path(), "c"), there);
}

#[test]
fn the_manifest_of_another_set_stays_unless_it_is_to_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(format!("{name}.manifest.json"));
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(at(name)).unwrap()).unwrap()
    };
    ["a", "b", "x_text_document", "x_title_document"].into_iter().for_each(|name| set(dir.path(), name));
    // One manifest of two sets.
    let (mut of_both, title) = (read("x_text_document"), read("x_title_document")["outputs"].clone());
    of_both["outputs"].as_array_mut().unwrap().extend(title.as_array().unwrap().clone());
    std::fs::write(at("x"), of_both.to_string()).unwrap();
    ["x_text_document", "x_title_document"].iter().for_each(|name| std::fs::remove_file(at(name)).unwrap());
    let error = said(dir.path(), "merge a b --output-prefix x", 1);
    assert!(
        error.contains("expected no manifest of another dataset, found that of x_text_document.bin"),
        "{error}"
    );
    assert_eq!(read("x"), of_both);
    // Of a set that is replaced it speaks no more.
    said(dir.path(), "merge a b --force --output-prefix x_text_document", 0);
    let (left, own) = (read("x"), read("x_text_document"));
    assert_eq!((&left["outputs"], &left["settings"]["replaced since"]), (&title, &"x_text_document".into()));
    assert_eq!(own["outputs"][0]["name"], "x_text_document.bin");
    ["x_text_document", "x_title_document"]
        .iter()
        .for_each(|name| drop(said(dir.path(), &format!("verify {name}"), 0)));
    said(dir.path(), "merge a b --force --output-prefix x", 0);
    assert_eq!(read("x")["outputs"][0]["name"], "x.bin");
}

#[test]
fn the_manifest_of_a_set_that_is_replaced_goes_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    ["a", "b", "c_text_train", "c_other"].into_iter().for_each(|name| set(dir.path(), name));
    for words in [
        "merge a b --force --output-prefix c_text_train",
        "split a --split 1,0,0 --force --output-prefix c_text",
    ] {
        for other in ["c", "of another name"] {
            set(dir.path(), "c_text_train");
            let renamed = |name: &str| dir.path().join(format!("{name}.manifest.json"));
            std::fs::rename(renamed("c_text_train"), renamed(other)).unwrap();
            said(dir.path(), words, 0);
            assert!(!renamed(other).exists() && renamed("c_other").exists(), "{words}");
            said(dir.path(), "verify c_text_train", 0);
        }
    }
}

#[test]
fn the_manifest_of_a_packed_set_stays_where_the_set_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let info = StreamInfo {
        style: "sharegpt".into(),
        tokenizer: "0123".into(),
        vocab_size: 300,
        eod: 0,
        pad: 0,
        seq_length: Some(8),
        packed_name: true,
    };
    let columns = ["input_ids", "attention_mask", "labels"].map(str::to_owned);
    let file = std::fs::File::create(dir.path().join("rows")).unwrap();
    let mut sink = Box::new(TokenStreamSink::new(file, "rows", &columns, &info).unwrap());
    sink.row(Row::new(vec![Some(vec![1, 2]); 3])).unwrap();
    sink.finish().unwrap();
    for (prefix, more) in [("a", ""), ("b", "--no-pack")] {
        let words = format!("pack --input rows {more} --force --output-prefix {prefix}");
        said(dir.path(), &words, 0);
        let index = format!("{prefix}_packed_labels_document.idx");
        std::fs::remove_file(dir.path().join(&index)).unwrap();
        std::fs::create_dir(dir.path().join(&index)).unwrap();
        let error = said(dir.path(), &words, 1);
        assert!(error.contains(&index), "{error}");
        assert!(names(dir.path(), prefix).contains(&format!("{prefix}.manifest.json")), "{words}");
    }
}

#[test]
fn a_folder_in_the_place_of_a_stream_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for words in ["pack --input . --output-prefix x", "info ."] {
        let error = said(dir.path(), words, 1);
        assert!(error.contains(".: expected a file, found a folder"), "{error}");
    }
}

#[test]
fn a_manifest_that_is_no_json_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    set(dir.path(), "a_text_document");
    said(dir.path(), "verify a_text_document", 0);
    std::fs::remove_file(dir.path().join("a_text_document.manifest.json")).unwrap();
    // Of other sets, and of other programs.
    write("b.manifest.json", "{");
    write("a_text.manifest.json", "{\"name\": 1}");
    said(dir.path(), "verify a_text_document", 0);
    write("a.manifest.json", "{\"version\": 1, ");
    let error = said(dir.path(), "verify a_text_document", 1);
    assert!(
        error.contains("a.manifest.json: expected the manifest of a dataset, found no JSON: EOF"),
        "{error}"
    );
}

#[test]
fn an_empty_dataset_is_spoken_of() {
    use ms_data::token_stream::{StreamInfo, TokenWriter};
    let dir = tempfile::tempdir().unwrap();
    let columns = ["input_ids", "attention_mask", "labels"].map(str::to_owned);
    let info = StreamInfo { style: "sharegpt".into(), vocab_size: 9, ..StreamInfo::default() };
    let file = std::fs::File::create(dir.path().join("chats")).unwrap();
    let mut writer = TokenWriter::new(file, "chats", &columns, &info).unwrap();
    writer.push(ms_data::handler::Row::new(vec![Some(vec![1; 9]); 3])).unwrap();
    writer.finish().unwrap();
    let said = said(dir.path(), "pack --input chats --seq-length 8 --output-prefix none", 0);
    assert!(said.contains("none: the dataset is empty: 1 samples are too long for --seq-length 8"), "{said}");
}
