//! Input files of every format and compression; the first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::records::{Discovery, RecordReader};
use ms_fuzz::Scratch;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);
const ENDS: [&str; 10] =
    ["jsonl", "json", "csv", "txt", "parquet", "arrow", "jsonl.gz", "jsonl.zst", "json.xz", "csv.gz"];

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let path = SCRATCH.write(&format!("in.{}", ENDS[usize::from(which) % ENDS.len()]), bytes);
    let Ok(files) = Discovery::default().files(&path) else { return };
    for record in RecordReader::new(files).take(1000) {
        let Ok(record) = record else { return };
        let _ = record.parse();
    }
});
