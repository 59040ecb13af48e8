//! A token stream of any bytes: refused, or its rows come out one after the other until its end mark or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::token_stream::TokenReader;
use ms_fuzz::{seed, token_streams};

fn seeds() {
    token_streams().iter().enumerate().for_each(|(number, bytes)| seed(&number.to_string(), bytes));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Ok(reader) = TokenReader::new(bytes, "fuzz") else { return };
    let columns = reader.columns().len();
    for row in reader.take(1000) {
        let Ok(row) = row else { return };
        assert_eq!(row.columns.len(), columns);
    }
});
