//! Round trips, and streams that are truncated or corrupt.

use super::*;
use crate::handler::Row;
use proptest::prelude::*;

fn info() -> StreamInfo {
    StreamInfo {
        style: "sharegpt".into(),
        tokenizer: "00ff".into(),
        vocab_size: 100,
        eod: 7,
        pad: 0,
        seq_length: Some(512),
        packed_name: true,
    }
}

fn stream(columns: usize, rows: &[Row]) -> Vec<u8> {
    let names: Vec<String> = (0..columns).map(|i| format!("c{i}")).collect();
    let mut bytes = Vec::new();
    let mut writer = TokenWriter::new(&mut bytes, "test", &names, &info()).unwrap();
    rows.iter().for_each(|row| writer.push(row.clone()).unwrap());
    writer.finish().unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Row>, String> {
    let reader = TokenReader::new(bytes, "test").map_err(|e| e.to_string())?;
    reader.map(|row| row.map_err(|e| e.to_string())).collect()
}

/// The same in batches.
fn batches(bytes: &[u8]) -> Result<Vec<Row>, String> {
    let mut reader = TokenReader::new(bytes, "test").map_err(|e| e.to_string())?;
    let columns = reader.columns().len();
    let mut all = Vec::new();
    while let Some(rows) = reader.next_rows().map_err(|e| e.to_string())? {
        let own =
            |row| (0..columns).map(|c| rows.sequence(row, c).map(std::borrow::Cow::into_owned)).collect();
        all.extend((0..rows.len()).map(|row| Row::new(own(row))));
    }
    Ok(all)
}

/// The same from a file, by requested rows.
fn mapped(bytes: &[u8]) -> Result<Vec<Row>, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let map = TokenMap::open(file.path()).map_err(|e| e.to_string())?;
    let row = |place| {
        let columns = 0..map.columns().len();
        Row::new(
            columns.map(|column| map.sequence(place, column).map(std::borrow::Cow::into_owned)).collect(),
        )
    };
    let rows: Vec<Row> = map.rows().map(row).collect();
    assert_eq!(rows.len() as u64, map.len());
    Ok(rows)
}

fn small() -> Vec<Row> {
    vec![Row::new(vec![Some(vec![1, -100]), None]), Row::new(vec![Some(vec![]), Some(vec![5])])]
}

#[test]
fn the_schema_carries_what_the_next_program_needs() {
    let bytes = stream(2, &small());
    let reader = TokenReader::new(bytes.as_slice(), "test").unwrap();
    assert_eq!(reader.info(), &info());
    assert_eq!(reader.columns(), ["c0", "c1"]);
    assert_eq!(bytes[bytes.len() - 8..], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
}

#[test]
fn every_cut_of_a_stream_is_refused() {
    let bytes = stream(2, &small());
    assert_eq!(read(&bytes).unwrap(), small());
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "cut to {length} of {}", bytes.len());
        assert!(mapped(&bytes[..length]).is_err(), "mapped, cut to {length} of {}", bytes.len());
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert!(read(&longer).unwrap_err().contains("something follows its end mark"));
    assert!(mapped(&longer).unwrap_err().contains("something follows its end mark"));
    assert!(read(&bytes[..bytes.len() - 8]).unwrap_err().contains("end mark is missing"));
}

#[test]
fn arrows_own_reader_takes_the_stream() {
    let bytes = stream(2, &small());
    let reader = arrow_ipc::reader::StreamReader::try_new(bytes.as_slice(), None).unwrap();
    let rows: usize = reader.map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 2);
}

#[test]
fn another_arrow_stream_is_refused() {
    use arrow_schema::{DataType, Field, Schema};
    let schema = Schema::new(vec![Field::new("a", DataType::Int64, false)]);
    let mut bytes = Vec::new();
    arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &schema).unwrap().finish().unwrap();
    assert!(read(&bytes).unwrap_err().contains("metadata ms.stream"));
    // What only says that it is one, without the checksums that such a schema promises.
    let mut metadata = info().to_metadata();
    let promised = schema.clone().with_metadata(metadata.clone());
    let mut bytes = Vec::new();
    arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &promised).unwrap().finish().unwrap();
    assert!(read(&bytes).unwrap_err().contains("a message has lost its checksum"));
    metadata.remove(super::info::CHECKSUM);
    let schema = schema.with_metadata(metadata);
    let mut bytes = Vec::new();
    arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &schema).unwrap().finish().unwrap();
    assert!(read(&bytes).unwrap_err().contains("expected a list of 32-bit integers"));
}

#[test]
fn many_rows_cross_batches() {
    let rows: Vec<Row> = (0..10_000).map(|i| Row::new(vec![Some(vec![i; (i % 50) as usize])])).collect();
    assert_eq!(read(&stream(1, &rows)).unwrap(), rows);
    assert_eq!(mapped(&stream(1, &rows)).unwrap(), rows);
}

proptest! {
    #[test]
    fn any_rows_come_back(rows in proptest::collection::vec(proptest::collection::vec(proptest::option::of(proptest::collection::vec(any::<i32>(), 0..9)), 3), 0..20)) {
        let rows: Vec<Row> = rows.into_iter().map(Row::new).collect();
        prop_assert_eq!(&read(&stream(3, &rows)).unwrap(), &rows);
        prop_assert_eq!(&batches(&stream(3, &rows)).unwrap(), &rows);
        prop_assert_eq!(mapped(&stream(3, &rows)).unwrap(), rows);
    }

    #[test]
    fn a_damaged_stream_is_an_error_or_rows_but_never_a_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        lie in proptest::option::of((any::<prop::sample::Index>(), any::<u32>())), open: bool,
    ) {
        let sealed = stream(2, &small());
        let mut bytes = if open { unsealed(&sealed) } else { sealed };
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let Some((at, value)) = lie {
            let at = at.index(bytes.len() - 4);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        // All read the same of it, or both refuse it.
        prop_assert_eq!(read(&bytes).ok(), mapped(&bytes).ok());
        prop_assert_eq!(read(&bytes).ok(), batches(&bytes).ok());
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let bytes = stream(2, &small());
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        assert!(read(&bad).is_err() && batches(&bad).is_err() && mapped(&bad).is_err(), "byte {at}");
    }
    let mut old = unsealed(&bytes);
    assert_eq!((read(&old).unwrap(), mapped(&old).unwrap()), (small(), small()));
    let promise = old.windows(11).position(|text| text == b"ls.checksum").unwrap();
    old[promise] ^= 1;
    assert!(read(&old).unwrap_err().contains("has lost its checksum"));
}

/// The stream as earlier versions wrote it: it has no checksums, promises none, and is read.
fn unsealed(bytes: &[u8]) -> Vec<u8> {
    let mut old = Vec::new();
    let mut at = 0;
    while at + 8 < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        let header = &bytes[at + 8..at + 8 + length - 64];
        let body = super::batch::body_bytes(header).unwrap() as usize;
        old.extend([0xff; 4]);
        old.extend((length as u32 - 64).to_le_bytes());
        old.extend(header);
        old.extend(&bytes[at + 8 + length..at + 8 + length + body]);
        at += 8 + length + body;
    }
    old.extend(&bytes[at..]);
    let promise = super::info::CHECKSUM.as_bytes();
    let place = old.windows(promise.len()).position(|text| text == promise).unwrap();
    old[place] ^= 1;
    old
}

#[test]
fn columns_that_share_their_bytes_are_refused() {
    // Of two columns the second is the first again: what is sent once would be read for each of them.
    let rows = [Row::new(vec![Some(vec![5; 100]), Some(vec![])])];
    let mut bytes = unsealed(&stream(2, &rows));
    assert_eq!(read(&bytes).unwrap(), rows);
    let place = |bytes: &[u8], length: i64| {
        bytes.windows(8).rposition(|word| word == length.to_le_bytes()).expect("a buffer of that length")
    };
    // Offset and length of the first column's tokens; of the buffers the last is the second column's tokens, of none.
    let tokens = place(&bytes, 400) - 8;
    let first: Vec<u8> = bytes[tokens..tokens + 16].to_vec();
    bytes[tokens + 64..tokens + 80].copy_from_slice(&first);
    for said in [read(&bytes), mapped(&bytes), batches(&bytes)] {
        assert!(said.unwrap_err().contains("its columns claim more than the"));
    }
}
