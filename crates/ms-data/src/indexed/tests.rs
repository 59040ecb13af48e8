//! Round trips, and corrupt files.

use super::*;
use crate::Error;
use proptest::prelude::*;

fn write(prefix: &Path, token_type: TokenType, documents: &[Vec<Vec<i32>>]) {
    let mut writer = IndexedWriter::create(prefix, token_type).unwrap();
    for document in documents {
        for sequence in document {
            writer.sequence(sequence).unwrap();
        }
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
}

fn sequence(set: &IndexedDataset, i: usize) -> Vec<i32> {
    let mut out = Vec::new();
    set.read(i, &mut out).unwrap();
    out
}

#[test]
fn the_index_has_the_documented_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("a.b");
    write(&prefix, TokenType::I32, &[vec![vec![7, -100]], vec![], vec![vec![1], vec![]]]);
    let mut want = b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x04".to_vec();
    want.extend(3u64.to_le_bytes());
    want.extend(4u64.to_le_bytes());
    [2i32, 1, 0].iter().for_each(|n| want.extend(n.to_le_bytes()));
    [0i64, 8, 12].iter().for_each(|n| want.extend(n.to_le_bytes()));
    [0i64, 1, 1, 3].iter().for_each(|n| want.extend(n.to_le_bytes()));
    assert_eq!(std::fs::read(dir.path().join("a.b.idx")).unwrap(), want);
    assert_eq!(std::fs::read(dir.path().join("a.b.bin")).unwrap().len(), 12);
    let set = IndexedDataset::open(&prefix).unwrap();
    assert_eq!((set.len(), set.documents(), set.tokens()), (3, 3, 3));
    assert_eq!(sequence(&set, 0), [7, -100]);
    assert_eq!((set.document(1), set.document(2)), (1..1, 1..3));
}

#[test]
fn nothing_is_visible_before_the_end_and_nothing_is_left_after_an_abort() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("set");
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32).unwrap();
    writer.sequence(&[1, 2, 3]).unwrap();
    assert!(!bin_path(&prefix).exists());
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_token_outside_the_type_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = IndexedWriter::create(dir.path().join("set"), TokenType::U16).unwrap();
    let error = writer.sequence(&[65_535, -1]).unwrap_err();
    assert!(matches!(error, Error::TokenRange { value: -1, dtype: "uint16", .. }), "{error}");
}

#[test]
fn merging_appends_documents_and_refuses_another_type() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
    write(&a, TokenType::I32, &[vec![vec![1, 2]], vec![]]);
    write(&b, TokenType::I32, &[vec![vec![3], vec![4, 5]]]);
    write(&c, TokenType::U16, &[vec![vec![3]]]);
    let mut writer = IndexedWriter::create(dir.path().join("m"), TokenType::I32).unwrap();
    writer.append(&IndexedDataset::open(&a).unwrap()).unwrap();
    writer.append(&IndexedDataset::open(&b).unwrap()).unwrap();
    let error = writer.append(&IndexedDataset::open(&c).unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("token type: expected int32, found uint16"), "{error}");
    writer.finish().unwrap();
    let all = dir.path().join("all");
    write(&all, TokenType::I32, &[vec![vec![1, 2]], vec![], vec![vec![3], vec![4, 5]]]);
    for suffix in [".bin", ".idx"] {
        assert_eq!(
            std::fs::read(with_suffix(&dir.path().join("m"), suffix)).unwrap(),
            std::fs::read(with_suffix(&all, suffix)).unwrap()
        );
    }
}

#[test]
fn every_golden_set_opens_and_is_written_again_with_the_same_bytes() {
    // Upstream's index files of the repository, over made-up tokens, and its sets where they are.
    let (dir, made_up) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    ms_testing::write_data_sets(made_up.path());
    let folders = [Some(made_up.path().to_owned()), ms_testing::shared("goldens/data")];
    let mut count = 0;
    for case in folders.iter().flatten().flat_map(|root| std::fs::read_dir(root).unwrap()) {
        let case = case.unwrap().path();
        if !case.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(case).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_none_or(|e| e != "idx") {
                continue;
            }
            let set = IndexedDataset::open(file.with_extension("")).unwrap();
            let copy = dir.path().join("copy");
            let mut writer = IndexedWriter::create(&copy, set.token_type()).unwrap();
            for d in 0..set.documents() {
                set.document(d).for_each(|i| writer.sequence(&sequence(&set, i)).unwrap());
                writer.end_document().unwrap();
            }
            writer.finish().unwrap();
            assert_eq!(std::fs::read(idx_path(&copy)).unwrap(), std::fs::read(&file).unwrap());
            assert_eq!(
                std::fs::read(bin_path(&copy)).unwrap(),
                std::fs::read(file.with_extension("bin")).unwrap()
            );
            count += 1;
        }
    }
    assert!(count > if folders[1].is_some() { 63 } else { 2 }, "{count}");
}

proptest! {
    #[test]
    fn any_documents_in_any_type_come_back(
        documents in proptest::collection::vec(proptest::collection::vec(proptest::collection::vec(0i32..120, 0..6), 0..4), 0..6),
        which in 0usize..6,
    ) {
        let token_type = [TokenType::U8, TokenType::I8, TokenType::I16, TokenType::I32, TokenType::I64, TokenType::U16][which];
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("set");
        write(&prefix, token_type, &documents);
        let set = IndexedDataset::open(&prefix).unwrap();
        let back: Vec<Vec<Vec<i32>>> =
            (0..set.documents()).map(|d| set.document(d).map(|i| sequence(&set, i)).collect()).collect();
        prop_assert_eq!(back, documents);
    }

    #[test]
    fn a_damaged_index_is_refused_or_read_without_leaving_the_file(
        cut in 0usize..200, flips in proptest::collection::vec((0usize..200, any::<u8>()), 0..4), lie in any::<Option<u64>>(), field in 0usize..2,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("set");
        write(&prefix, TokenType::I32, &[vec![vec![1, 2, 3], vec![4]], vec![], vec![vec![5; 20]]]);
        let mut bytes = std::fs::read(idx_path(&prefix)).unwrap();
        for (at, value) in flips {
            if at < bytes.len() { bytes[at] ^= value; }
        }
        if let Some(value) = lie {
            bytes[18 + 8 * field..26 + 8 * field].copy_from_slice(&value.to_le_bytes());
        }
        if cut < bytes.len() && cut % 3 == 0 { bytes.truncate(cut); }
        let checked = check_index(&bytes, 24 * 4);
        std::fs::write(idx_path(&prefix), bytes).unwrap();
        prop_assert_eq!(checked.is_ok(), IndexedDataset::open(&prefix).is_ok());
        if let Ok(set) = IndexedDataset::open(&prefix) {
            for i in 0..set.len() { sequence(&set, i); }
            for d in 0..set.documents() { prop_assert!(set.document(d).end <= set.len()); }
        }
    }
}
