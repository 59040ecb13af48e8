//! A token stream of any bytes in a file, mapped, and the same read batch by batch: both refuse it, or both give the same rows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::token_stream::{TokenMap, TokenReader};
use ms_fuzz::{Scratch, seed, token_streams};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

type Rows = Vec<Vec<Option<Vec<i32>>>>;

fn mapped() -> Option<Rows> {
    let map = TokenMap::open(&SCRATCH.path("stream")).ok()?;
    let columns = map.columns().len();
    let row =
        |place| (0..columns).map(|column| map.sequence(place, column).map(|all| all.to_vec())).collect();
    let rows: Rows = map.rows().map(row).collect();
    assert_eq!(rows.len() as u64, map.len());
    Some(rows)
}

fn batches(bytes: &[u8]) -> Option<Rows> {
    let mut reader = TokenReader::new(bytes, "fuzz").ok()?;
    let columns = reader.columns().len();
    let mut all = Rows::new();
    while let Some(rows) = reader.next_rows().ok()? {
        for row in 0..rows.len() {
            all.push((0..columns).map(|column| rows.sequence(row, column).map(|all| all.to_vec())).collect());
        }
    }
    Some(all)
}

fn seeds() {
    token_streams().iter().enumerate().for_each(|(number, bytes)| seed(&number.to_string(), bytes));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    SCRATCH.write("stream", bytes);
    let (mapped, read) = (mapped(), batches(bytes));
    assert_eq!(mapped, read);
    if let Ok(reader) = TokenReader::new(bytes, "fuzz") {
        let rows: Result<Rows, _> = reader.map(|row| row.map(|row| row.columns)).collect();
        assert_eq!(rows.ok(), read);
    }
});
