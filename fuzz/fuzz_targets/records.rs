//! Input files of every format and compression; the first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::records::{Discovery, RecordReader};
use ms_fuzz::{Scratch, caught_from, seed_of, tables};
use std::io::Write;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);
const ENDS: [&str; 10] =
    ["jsonl", "json", "csv", "txt", "parquet", "arrow", "jsonl.gz", "jsonl.zst", "json.xz", "csv.gz"];

const LINES: &[u8] =
    b"{\"a\": \"x\", \"n\": [1, {\"b\": null}]}\n\n{\"text\": \"\\u00e9 \\ud83d\\ude00\"}\r\n";
const ARRAY: &[u8] = b" [ {\"a\": \"x]\\\"},{\"} , {\"b\": [1, {\"c\": null}]}\n ] ";
const CELLS: &[u8] = b"a,b\n1,\"x, \"\"y\"\"\nz\"\n,\n2.5,true\n";

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).and_then(|()| out.finish()).expect("memory")
}

fn seeds() {
    // `records::columns` turns panics of these into errors.
    caught_from(&["/arrow-", "/parquet-", "/flatbuffers-", "/lz4_flex-", "/snap-"]);
    for (number, bytes) in [(0, LINES), (1, ARRAY), (2, CELLS), (3, "a\n\u{e9}\r\nb".as_bytes())] {
        seed_of(number, "plain", bytes);
    }
    for (number, (is_parquet, bytes)) in tables().iter().enumerate() {
        seed_of(if *is_parquet { 4 } else { 5 }, &format!("table-{number}"), bytes);
    }
    seed_of(6, "lines", &gz(LINES));
    seed_of(7, "lines", &zstd::encode_all(LINES, 3).expect("memory"));
    let mut xz =
        lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).expect("memory");
    xz.write_all(ARRAY).expect("memory");
    seed_of(8, "array", &xz.finish().expect("memory"));
    seed_of(9, "cells", &gz(CELLS));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let path = SCRATCH.write(&format!("in.{}", ENDS[usize::from(which) % ENDS.len()]), bytes);
    let Ok(files) = Discovery::default().files(&path) else { return };
    for record in RecordReader::new(files).take(1000) {
        let Ok(record) = record else { return };
        let _ = record.parse();
    }
});
