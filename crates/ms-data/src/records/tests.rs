//! Reading records, and damaged inputs.

use super::*;
use proptest::prelude::*;
use std::path::Path;

fn read(dir: &Path, name: &str, content: &[u8]) -> Result<Vec<String>, String> {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    let files = discover(&path, Documents::Records).map_err(|e| e.to_string())?;
    RecordReader::new(files)
        .map(|record| {
            let object = record.and_then(|r| r.parse()).map_err(|e| e.to_string())?;
            Ok(serde_json::Value::Object(object).to_string())
        })
        .collect()
}

#[test]
fn an_array_and_lines_give_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let want = vec![r#"{"a":"x]\"},{"}"#.to_string(), r#"{"b":[1,{"c":null}]}"#.to_string()];
    let array = br#"  [ {"a": "x]\"},{"} , {"b": [1, {"c": null}]}
    ] "#;
    let lines = b"\xef\xbb\xbf{\"a\": \"x]\\\"},{\"}\n\n  \r\n{\"b\": [1, {\"c\": null}]}";
    assert_eq!(read(dir.path(), "a.json", array).unwrap(), want);
    assert_eq!(read(dir.path(), "b.jsonl", lines).unwrap(), want);
    assert_eq!(read(dir.path(), "c.json", b"[]").unwrap(), Vec::<String>::new());
}

#[test]
fn broken_input_names_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name, content: &[u8]| read(dir.path(), name, content).unwrap_err();
    assert!(error("a.json", b"[{\"a\": 1}, {\"b\"").contains("record 2: the JSON array is cut short"));
    assert!(error("b.json", b"[{\"a\": 1} {}]").contains("record 2: expected , or ]"));
    assert!(error("c.json", b"[{\"a\": 1}] x").contains("something follows"));
    assert!(error("d.jsonl", b"{}\n{\n").contains("record 2: not a JSON object"));
    assert!(error("e.json", b"[{},]").contains("expected an element"));
    assert!(error("f.txt", b"fine\n\xff\xfe\n").contains("record 2: not UTF-8"));
    assert!(error("g.parquet", b"").contains("cannot read records of \"parquet\" files"));
}

#[test]
fn all_three_line_ends_end_a_line_of_text() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |content: &[u8]| read(dir.path(), "t.txt", content).unwrap();
    let text = |t: &str| format!(r#"{{"text":"{t}"}}"#);
    assert_eq!(lines(b"a\r\nb\rc\n\nd"), ["a", "b", "c", "", "d"].map(text));
    assert_eq!(lines(b"a\n"), [text("a")]);
    assert_eq!(lines("a\u{2028}b".as_bytes()), [text("a\u{2028}b")]);
    assert_eq!(lines(b""), Vec::<String>::new());
}

#[test]
fn a_folder_gives_the_most_frequent_known_kind_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.jsonl", "a.jsonl", "c.txt", "d.bin", "e.bin", "f.bin"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
    }
    let names = |documents| -> Vec<String> {
        let files = discover(dir.path(), documents).unwrap();
        files.iter().map(|f| f.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(Documents::Records), ["a.jsonl", "b.jsonl"]);
    assert_eq!(names(Documents::Files), ["a.jsonl", "b.jsonl", "c.txt", "d.bin", "e.bin", "f.bin"]);
}

proptest! {
    #[test]
    fn a_damaged_file_gives_records_or_an_error_but_never_a_panic(
        cut in 0usize..90, at in 0usize..80, value in any::<u8>(), array in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = if array {
            br#"[{"text": "one \u00e9"}, {"text": null, "n": [1, 2.5e3, {"x": true}]}, {"text": ""}]"#.to_vec()
        } else {
            b"{\"text\": \"one\"}\n{\"text\": null, \"n\": [1, {\"x\": true}]}\n{\"text\": \"\\ud83d\"}".to_vec()
        };
        if at < bytes.len() { bytes[at] = value; }
        bytes.truncate(cut.max(1));
        let _ = read(dir.path(), "x.json", &bytes);
    }

    #[test]
    fn any_records_survive_in_both_forms(texts in proptest::collection::vec("\\PC{0,20}", 0..8)) {
        let dir = tempfile::tempdir().unwrap();
        let records: Vec<_> = texts.iter().map(|t| serde_json::json!({"text": t})).collect();
        let want: Vec<String> = records.iter().map(ToString::to_string).collect();
        let array = serde_json::to_string_pretty(&records).unwrap();
        prop_assert_eq!(read(dir.path(), "a.json", array.as_bytes()).unwrap(), want.clone());
        prop_assert_eq!(read(dir.path(), "b.jsonl", want.join("\n").as_bytes()).unwrap(), want);
    }
}
