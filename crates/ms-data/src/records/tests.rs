//! Reading records, and damaged inputs.

mod xz;

use super::*;
use arrow_array::{
    Array as _, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, StructArray,
};
use parquet::file::properties::{WriterProperties, WriterVersion};
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

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
    let cut = "record 2: not a JSON object: EOF while parsing an object at column 1";
    assert!(error("d.jsonl", b"{}\n{\n").ends_with(cut));
    assert!(error("e.json", b"[{},]").contains("expected an element"));
    assert!(error("f.txt", b"fine\n\xff\xfe\n").contains("record 2: not UTF-8"));
    assert!(error("g.doc", b"").contains("cannot read records of \"doc\" files"));
    assert!(error("h.json", b"[\n{},\n\n3]").contains("record 2: line 4: not a JSON object"));
}

#[cfg(unix)]
#[test]
fn a_pipe_with_a_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let refused = discover(&path, Documents::Records).unwrap_err().to_string();
    assert!(refused.contains("a.jsonl: expected a file, found a pipe"), "{refused}");
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

/// Three rows with a list of messages, as sets of a hub have them.
fn table() -> RecordBatch {
    let role: ArrayRef = Arc::new(StringArray::from(vec!["user", "assistant", "user"]));
    let content: ArrayRef = Arc::new(StringArray::from(vec![Some("hi"), Some("you"), None]));
    let messages = StructArray::try_from(vec![("role", role), ("content", content)]).unwrap();
    let field = Arc::new(arrow_schema::Field::new("item", messages.data_type().clone(), true));
    let lists = arrow_array::ListArray::new(
        field,
        arrow_buffer::OffsetBuffer::from_lengths([2, 0, 1]),
        Arc::new(messages),
        None,
    );
    let times = arrow_array::TimestampSecondArray::from(vec![1, 2, 3]);
    let kinds: arrow_array::DictionaryArray<arrow_array::types::Int8Type> =
        ["x", "y", "x"].into_iter().collect();
    RecordBatch::try_from_iter([
        ("text", Arc::new(StringArray::from(vec![Some("one"), None, Some("drei \u{e9}")])) as ArrayRef),
        ("n", Arc::new(Int64Array::from(vec![1, -2, 3]))),
        ("x", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 1e300]))),
        ("ok", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("when", Arc::new(times)),
        ("kind", Arc::new(kinds)),
        ("messages", Arc::new(lists)),
    ])
    .unwrap()
}

fn rows_of_table() -> Vec<String> {
    [
        r#"{"text":"one","n":1,"x":0.5,"ok":true,"kind":"x","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"you"}]}"#,
        r#"{"text":null,"n":-2,"x":null,"ok":false,"kind":"y","messages":[]}"#,
        "{\"text\":\"drei \u{e9}\",\"n\":3,\"x\":1e+300,\"ok\":true,\"kind\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":null}]}",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn parquet(codec: parquet::basic::Compression) -> Vec<u8> {
    let batch = table();
    let properties = parquet::file::properties::WriterProperties::builder().set_compression(codec).build();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn arrow(as_file: bool, codec: Option<arrow_ipc::CompressionType>) -> Vec<u8> {
    let batch = table();
    let options = arrow_ipc::writer::IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut bytes = Vec::new();
    if as_file {
        let mut writer =
            arrow_ipc::writer::FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options)
                .unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    } else {
        let mut writer =
            arrow_ipc::writer::StreamWriter::try_new_with_options(&mut bytes, &batch.schema(), options)
                .unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }
    bytes
}

#[test]
fn tables_give_the_same_rows_in_every_container_and_codec() {
    use arrow_ipc::CompressionType;
    use parquet::basic::{Compression as Codec, GzipLevel, ZstdLevel};
    let dir = tempfile::tempdir().unwrap();
    for codec in [
        Codec::UNCOMPRESSED,
        Codec::SNAPPY,
        Codec::GZIP(GzipLevel::default()),
        Codec::ZSTD(ZstdLevel::default()),
        Codec::LZ4_RAW,
    ] {
        assert_eq!(read(dir.path(), "a.parquet", &parquet(codec)).unwrap(), rows_of_table(), "{codec:?}");
    }
    for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        assert_eq!(read(dir.path(), "a.feather", &arrow(true, codec)).unwrap(), rows_of_table(), "{codec:?}");
        assert_eq!(read(dir.path(), "a.arrow", &arrow(false, codec)).unwrap(), rows_of_table(), "{codec:?}");
    }
}

#[test]
fn bytes_without_a_name_are_told_apart_by_their_start() {
    for bytes in [
        parquet(parquet::basic::Compression::SNAPPY),
        arrow(true, None),
        arrow(false, None),
        packed(Compression::Zstd, &arrow(true, None)),
        rows_of_table().join("\n").into_bytes(),
        packed(Compression::Gzip, format!("[{}]", rows_of_table().join(",")).as_bytes()),
    ] {
        let records = RecordReader::of_bytes(Format::Unknown, bytes).unwrap();
        let objects =
            records.map(|record| serde_json::Value::Object(record.unwrap().parse().unwrap()).to_string());
        assert_eq!(objects.collect::<Vec<_>>(), rows_of_table());
    }
}

#[test]
fn an_arrow_file_without_its_end_mark_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = arrow(false, None);
    let error = read(dir.path(), "a.arrow", &bytes[..bytes.len() - 8]).unwrap_err();
    assert!(error.contains("its end mark is missing"), "{error}");
    let error = read(dir.path(), "b.feather", b"FEA1 and more bytes").unwrap_err();
    assert!(error.contains("Feather version 1"), "{error}");
}

#[test]
fn a_list_of_items_without_bytes_may_only_be_empty() {
    let read_list = |lengths: [usize; 2]| {
        let field = Arc::new(arrow_schema::Field::new("item", arrow_schema::DataType::Null, true));
        let items = Arc::new(arrow_array::NullArray::new(lengths.iter().sum()));
        let offsets = arrow_buffer::OffsetBuffer::from_lengths(lengths);
        let lists: ArrayRef = Arc::new(arrow_array::ListArray::new(field, offsets, items, None));
        let batch = RecordBatch::try_from_iter([("a", lists)]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        read(tempfile::tempdir().unwrap().path(), "a.arrow", &bytes)
    };
    assert_eq!(read_list([0, 0]).unwrap(), [r#"{"a":[]}"#; 2]);
    let error = read_list([0, 1 << 30]).unwrap_err();
    assert!(error.contains("a: a list of 1073741824 items that hold nothing"), "{error}");
}

#[test]
fn csv_cells_may_hold_separators_line_ends_and_quotes() {
    let dir = tempfile::tempdir().unwrap();
    let content =
        b"\xef\xbb\xbftext, n\r\n\"a, \"\"b\"\"\nc\",1\r\n\r\n \t \r\nplain 5\" pipe,\n\"\",x\nshort";
    assert_eq!(
        read(dir.path(), "a.csv", content).unwrap(),
        [
            r#"{"text":"a, \"b\"\nc","n":"1"}"#,
            r#"{"text":"plain 5\" pipe","n":null}"#,
            r#"{"text":null,"n":"x"}"#,
            r#"{"text":"short","n":null}"#
        ]
    );
    assert_eq!(read(dir.path(), "a.tsv", b"a\tb\n1,2\t3\n").unwrap(), [r#"{"a":"1,2","b":"3"}"#]);
    assert_eq!(read(dir.path(), "b.csv", b"").unwrap(), Vec::<String>::new());
    let error = |content: &[u8]| read(dir.path(), "c.csv", content).unwrap_err();
    assert!(error(b"a,b\n\"x\ny\",1\n1,2,3\n").contains("record 2: line 4: expected 2 cells, found 3"));
    assert!(error(b"a,a\n").contains("two columns are called \"a\""));
    assert!(error(b"a\n\"open\n").contains("record 1: the file ends inside quotes"));
}

fn packed(kind: Compression, bytes: &[u8]) -> Vec<u8> {
    match kind {
        Compression::Gzip => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        Compression::Zstd => zstd::encode_all(bytes, 3).unwrap(),
        Compression::Xz => {
            let mut out =
                lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
    }
}

#[test]
fn every_format_is_read_through_every_compression() {
    let dir = tempfile::tempdir().unwrap();
    let text = b"{\"text\":\"one\"}\n{\"text\":\"two\"}\n".to_vec();
    let json = vec![r#"{"text":"one"}"#.to_owned(), r#"{"text":"two"}"#.to_owned()];
    let inputs: [(&str, Vec<u8>, Vec<String>); 6] = [
        ("a.jsonl", text.clone(), json.clone()),
        ("a.json", br#"[{"text":"one"},{"text":"two"}]"#.to_vec(), json.clone()),
        ("a.txt", b"one\ntwo\n".to_vec(), json.clone()),
        ("a.csv", b"text\none\ntwo\n".to_vec(), json.clone()),
        ("a.parquet", parquet(parquet::basic::Compression::SNAPPY), rows_of_table()),
        ("a.arrow", arrow(true, None), rows_of_table()),
    ];
    for (suffix, kind) in [("gz", Compression::Gzip), ("zst", Compression::Zstd), ("xz", Compression::Xz)] {
        for (name, bytes, want) in &inputs {
            let name = format!("{name}.{suffix}");
            let bytes = packed(kind, bytes);
            assert_eq!(&read(dir.path(), &name, &bytes).unwrap(), want, "{name}");
            // Whatever is cut off, the reader says so.
            assert!(read(dir.path(), &name, &bytes[..bytes.len() - 5]).is_err(), "{name} cut short");
        }
        // Members, frames and streams follow each other.
        let twice = [packed(kind, &text), packed(kind, &text)].concat();
        assert_eq!(read(dir.path(), &format!("b.jsonl.{suffix}"), &twice).unwrap().len(), 4, "{suffix}");
    }
}

#[test]
fn digests_cover_whole_files_also_behind_their_last_record() {
    use sha2::Digest as _;
    let dir = tempfile::tempdir().unwrap();
    let files: [(&str, Vec<u8>); 4] = [
        ("a.jsonl", b"{}\n{}\n".to_vec()),
        ("b.feather", arrow(true, None)),
        ("c.parquet", parquet(parquet::basic::Compression::SNAPPY)),
        ("d.txt.gz", packed(Compression::Gzip, b"x\n")),
    ];
    let mut inputs = Vec::new();
    for (name, bytes) in &files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        inputs.extend(discover(&dir.path().join(name), Documents::Records).unwrap());
    }
    let digests = Arc::default();
    let reader = RecordReader::new(inputs).with_digests(Arc::clone(&digests));
    assert_eq!(reader.map(Result::unwrap).map(|r| r.file).max(), Some(3));
    let digests = digests.lock().unwrap();
    for ((name, bytes), digest) in files.iter().zip(digests.iter()) {
        let want: String = sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!((digest.bytes, &digest.sha256), (bytes.len() as u64, &want), "{name}");
    }
}

#[test]
fn a_hubs_folder_gives_the_train_split_with_all_its_shards() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(dir.path().join("README.md"), "").unwrap();
    let touch = |name: &str| std::fs::write(dir.path().join("data").join(name), b"{}\n").unwrap();
    for name in
        ["train-00001-of-00002.jsonl.zst", "train-00000-of-00002.jsonl.zst", "test-00000-of-00001.jsonl.zst"]
    {
        touch(name);
    }
    let names = |split: Option<&str>| -> Result<Vec<String>, String> {
        let how = Discovery { split: split.map(str::to_owned), ..Discovery::default() };
        let files = how.files(dir.path()).map_err(|e| e.to_string())?;
        Ok(files.iter().map(|f| f.path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    };
    assert_eq!(names(None).unwrap(), ["train-00000-of-00002.jsonl.zst", "train-00001-of-00002.jsonl.zst"]);
    assert_eq!(names(Some("test")).unwrap(), ["test-00000-of-00001.jsonl.zst"]);
    assert!(names(Some("dev")).unwrap_err().contains(r#"no files of the split "dev"; it has test, train"#));
    std::fs::remove_file(dir.path().join("data/train-00000-of-00002.jsonl.zst")).unwrap();
    assert!(names(None).unwrap_err().contains("shard train-00000-of-00002 is missing"));
}

#[test]
fn a_pattern_gives_its_files_by_name_and_one_without_files_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b1.jsonl", "a2.jsonl.gz", "a1.txt"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
    }
    let files = discover(&dir.path().join("*[12].jsonl*"), Documents::Records).unwrap();
    let names: Vec<_> = files.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a2.jsonl.gz", "b1.jsonl"]);
    let error = discover(&dir.path().join("x*.jsonl"), Documents::Records).unwrap_err().to_string();
    assert!(error.contains("no file matches this pattern"), "{error}");
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
    for hidden in ["._a.jsonl", ".g.txt", ".h.txt", ".i.txt"] {
        std::fs::write(dir.path().join(hidden), b"\0").unwrap();
    }
    assert_eq!(names(Documents::Records), ["a.jsonl", "b.jsonl"]);
    let matched =
        |pattern: &str| discover(&dir.path().join(pattern), Documents::Records).map(|files| files.len());
    assert_eq!(matched("*.jsonl").unwrap(), 2);
    // A pattern that spells the dot means hidden files, as a shell's does; names need be no text.
    assert_eq!((matched("._*.jsonl").unwrap(), matched(".[_h]*").unwrap()), (1, 2));
    assert!(matched("?_a.jsonl").is_err());
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        std::fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.txt")), b"").unwrap();
        assert_eq!(matched("*.jsonl").unwrap(), 2);
    }
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
    fn a_damaged_table_gives_rows_or_an_error_but_never_ends_the_program(
        which in 0usize..5, flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (name, mut bytes) = match which {
            0 => ("a.parquet", parquet(parquet::basic::Compression::SNAPPY)),
            1 => ("a.parquet", parquet(parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default()))),
            2 => ("a.arrow", arrow(false, None)),
            3 => ("a.arrow", arrow(true, Some(arrow_ipc::CompressionType::LZ4_FRAME))),
            _ => ("a.arrow", arrow(true, Some(arrow_ipc::CompressionType::ZSTD))),
        };
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let Some(cut) = cut { bytes.truncate(cut.index(bytes.len())); }
        let _ = read(dir.path(), name, &bytes);
    }

    #[test]
    fn cells_survive_quoting(cells in proptest::collection::vec(proptest::collection::vec("[ab,\"\r\n;\u{e9}]{0,6}", 2), 1..6)) {
        let dir = tempfile::tempdir().unwrap();
        let quote = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let mut text = "a,b\r\n".to_owned();
        let mut want = Vec::new();
        for row in &cells {
            text.push_str(&format!("{},{}\r\n", quote(&row[0]), quote(&row[1])));
            let value = |cell: &String| if cell.is_empty() { serde_json::Value::Null } else { cell.as_str().into() };
            want.push(serde_json::json!({"a": value(&row[0]), "b": value(&row[1])}).to_string());
        }
        prop_assert_eq!(read(dir.path(), "a.csv", text.as_bytes()).unwrap(), want);
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

#[test]
fn a_page_that_unpacks_to_more_than_it_may_is_refused_before_it_is_unpacked() {
    use parquet::basic::{Compression as Codec, ZstdLevel};
    let dir = tempfile::tempdir().unwrap();
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(3_000_000)]));
    let batch = RecordBatch::try_from_iter([("text", values)]).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_compression(Codec::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .build();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(bytes.len() < 100_000, "it is small as a file");
    let path = dir.path().join("a.parquet");
    std::fs::write(&path, &bytes).unwrap();
    let read = |most: usize| {
        let files = discover(&path, Documents::Records).unwrap();
        let files = files.into_iter().map(|file| InputFile { most_bytes: most, ..file });
        RecordReader::new(files).map(|record| record.map(|r| r.size())).collect::<crate::Result<Vec<_>>>()
    };
    assert_eq!(read(4_000_000).unwrap().len(), 1);
    let message = read(500_000).unwrap_err().to_string();
    assert!(message.contains("a page of it unpacks to 3000"), "{message}");
}

/// A Parquet file of one column, and what reading it gives: sizes of rows, or the error.
fn sizes_of(column: ArrayRef, properties: WriterProperties, most: usize) -> crate::Result<Vec<usize>> {
    let dir = tempfile::tempdir().unwrap();
    let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let path = dir.path().join("a.parquet");
    std::fs::write(&path, &bytes).unwrap();
    let files = discover(&path, Documents::Records).unwrap();
    let files = files.into_iter().map(|file| InputFile { most_bytes: most, ..file });
    let record = |record: RawRecord| match record.parse() {
        Ok(_) => Ok(record.size()),
        Err(error) => Err(error),
    };
    RecordReader::new(files).map(|r| r.and_then(record)).collect()
}

#[test]
fn a_dictionarys_value_stands_in_memory_once_however_many_rows_have_it() {
    // A batch of copies of it would take eight gigabytes.
    let long = "a".repeat(8 << 20);
    let values: ArrayRef = Arc::new(StringArray::from(vec![long.as_str(), "b"]));
    let keys = arrow_array::Int32Array::from_iter_values((0..1000).map(|row| i32::from(row % 500 == 1)));
    let column: ArrayRef = Arc::new(arrow_array::DictionaryArray::new(keys, values));
    let properties = WriterProperties::builder().set_dictionary_page_size_limit(1 << 30).build();
    let dir = tempfile::tempdir().unwrap();
    let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let path = dir.path().join("a.parquet");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut table =
        super::columns::Table::parquet_file(std::fs::File::open(&path).unwrap(), 64_000_000).unwrap();
    let mut rows = 0;
    while let Some(batch) = table.next().unwrap() {
        rows += batch.num_rows();
        let held = batch.get_array_memory_size();
        assert!(held < 64 << 20, "{} rows take {held} bytes", batch.num_rows());
        let bytes = super::columns::row_bytes(&batch, 0, usize::MAX);
        assert!(bytes == 8 << 20 || bytes == 1, "{bytes}");
    }
    assert_eq!(rows, 1000);
}

#[test]
fn a_row_of_a_table_has_the_bound_of_any_record() {
    let text = "a".repeat(200_000);
    let column: ArrayRef = Arc::new(StringArray::from(vec![text.as_str(), "b", text.as_str()]));
    let plain = || WriterProperties::builder().build();
    assert_eq!(sizes_of(Arc::clone(&column), plain(), 200_000).unwrap(), [200_000, 1, 200_000]);
    let message = sizes_of(column, plain(), 199_999).unwrap_err().to_string();
    assert!(message.contains("longer than 199999 bytes"), "{message}");
}

#[test]
fn lists_of_more_values_than_a_row_may_have_are_refused_before_they_are_read() {
    use arrow_array::types::Int32Type;
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for (long, refused) in [(16_000, false), (17_000, true)] {
            let row = |n: usize| Some(vec![Some(7); n]);
            let lists = (0..50).map(|i| row(if i == 20 { long } else { i % 3 }));
            let column: ArrayRef =
                Arc::new(arrow_array::ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
            let properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_data_page_row_count_limit(7)
                .build();
            let read = sizes_of(column, properties, 1 << 16);
            match read {
                Ok(sizes) => assert!(!refused && sizes.len() == 50, "{sizes:?}"),
                Err(error) => {
                    let message = error.to_string();
                    let said = message.contains("holds 17000 values, at most 16384 are taken")
                        && message.contains("hint: raise --max-record-bytes");
                    assert!(refused && said, "{message}");
                }
            }
        }
    }
}

#[test]
fn values_that_share_their_beginnings_are_read_a_few_at_a_time() {
    let begin = "a".repeat(100_000);
    let texts: Vec<String> = (0..3000).map(|i| format!("{begin}{i}")).collect();
    let column: ArrayRef = Arc::new(StringArray::from(texts));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(parquet::basic::Encoding::DELTA_BYTE_ARRAY)
        .build();
    let dir = tempfile::tempdir().unwrap();
    let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let path = dir.path().join("a.parquet");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(path.metadata().unwrap().len() < 2_000_000, "it is small as a file");
    let mut table =
        super::columns::Table::parquet_file(std::fs::File::open(&path).unwrap(), 64_000_000).unwrap();
    let mut rows = 0;
    while let Some(batch) = table.next().unwrap() {
        rows += batch.num_rows();
        let held = batch.get_array_memory_size();
        assert!(held < 96 << 20, "{} rows take {held} bytes", batch.num_rows());
    }
    assert_eq!(rows, 3000);
}

#[test]
fn columns_that_no_object_can_hold_are_not_read() {
    use arrow_array::{BinaryArray, Int64Array, StructArray, TimestampSecondArray};
    use arrow_schema::{DataType, Field};
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"\xff", b"\xfe"]));
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![5, 6]));
    let pair = StructArray::from(vec![
        (Arc::new(Field::new("n", DataType::Int64, false)), Arc::clone(&inner)),
        (Arc::new(Field::new("raw", DataType::Binary, false)), Arc::clone(&bytes)),
    ]);
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let time: ArrayRef = Arc::new(TimestampSecondArray::from(vec![1, 2]));
    let columns: [(&str, ArrayRef); 4] =
        [("raw", bytes), ("pair", Arc::new(pair)), ("text", text), ("at", time)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let want = [r#"{"pair":{"n":5},"text":"x"}"#, r#"{"pair":{"n":6},"text":"y"}"#];
    assert_eq!(read(dir.path(), "a.parquet", &file).unwrap(), want);
}
