//! Rows are the same with any packing, wherever samples wait.

use super::*;
use proptest::prelude::*;

fn pack(options: PackOptions, samples: &[(Vec<i32>, Vec<i32>)]) -> (Vec<PackedRow>, PackCounts) {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = Vec::new();
    let mut packer = Packer::new(options, dir.path().join("spill"));
    let mut keep = |row: &PackedRow| {
        rows.push(row.clone());
        Ok(())
    };
    for (ids, labels) in samples {
        packer.add(ids, labels, &mut keep).unwrap();
    }
    packer.finish(&mut keep).unwrap();
    (rows, packer.counts())
}

#[test]
fn a_long_sample_is_dropped_or_cut() {
    let samples = [(vec![1, 2, 3, 4], vec![1, 2, 3, 4]), (vec![5], vec![-100])];
    let (plain, counts) = pack(PackOptions::new(4, false, 9), &samples);
    assert_eq!((plain.len(), counts.dropped), (1, 1));
    assert_eq!(plain[0].input_ids, [5, 9, 9, 9]);
    assert_eq!(plain[0].attention_mask, [1, 1, 1, 1]);
    assert_eq!(plain[0].labels, [-100; 4]);
    let (neat, counts) = pack(PackOptions::new(4, true, 9), &samples);
    assert_eq!((neat.len(), counts.dropped, counts.cut, counts.tokens), (2, 0, 1, 4));
    assert_eq!(neat[0].input_ids, [1, 2, 3, 9]);
    assert_eq!(neat[0].attention_mask, [1, 1, 1, 0]);
}

#[test]
fn samples_are_filled_up_to_a_multiple_inside_their_row() {
    let samples = [(vec![1, 2, 3], vec![1, 2, 3]), (vec![5], vec![5])];
    let options = PackOptions { multiple: 4, ..PackOptions::new(10, true, 0) };
    let (rows, counts) = pack(options, &samples);
    assert_eq!(rows[0].input_ids, [5, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
    assert_eq!(rows[0].labels, [5, -100, -100, -100, 1, 2, 3, -100, -100, -100]);
    assert_eq!(rows[0].attention_mask, [1, 1, 1, 1, 2, 2, 2, 2, 0, 0]);
    assert_eq!((counts.fill(10), counts.rows), (0.4, 1));
}

#[test]
fn rows_without_room_and_rows_beyond_i32_are_refused() {
    let check =
        |row_tokens, multiple| PackOptions { multiple, ..PackOptions::new(row_tokens, false, 0) }.check();
    assert!(check(2, 1).is_ok() && check(i32::MAX as usize, 8).is_ok());
    for (row_tokens, multiple) in [(0, 1), (1, 1), (8, 8), (8, 0), (1 << 31, 1), (1 << 33, 1)] {
        assert!(check(row_tokens, multiple).is_err(), "{row_tokens} {multiple}");
    }
}

/// The samples as two streams with columns of labels, masks and ids.
fn maps_of(dir: &std::path::Path, samples: &[(Vec<i32>, Vec<i32>)]) -> Vec<TokenMap> {
    let columns = ["labels", "attention_mask", "input_ids"].map(str::to_owned);
    let half = samples.len() / 2;
    [("a", &samples[..half]), ("b", &samples[half..])]
        .into_iter()
        .map(|(name, samples)| {
            let path = dir.join(name);
            let info = crate::token_stream::StreamInfo::default();
            let file = std::fs::File::create(&path).unwrap();
            let mut writer = crate::token_stream::TokenWriter::new(file, name, &columns, &info).unwrap();
            for (ids, labels) in samples {
                let row = vec![Some(labels.clone()), None, Some(ids.clone())];
                writer.push(crate::handler::Row::new(row)).unwrap();
                writer.push(crate::handler::Row::new(vec![None, Some(vec![1]), Some(vec![1])])).unwrap();
            }
            writer.finish().unwrap();
            TokenMap::open(&path).unwrap()
        })
        .collect()
}

proptest! {
    #[test]
    fn every_packing_keeps_every_sample_whole_and_the_plan_is_right(
        lengths in proptest::collection::vec(0usize..30, 0..60), which in 0usize..3, neat in any::<bool>(),
        window in 1usize..5, multiple in 1usize..4, memory in 0usize..400,
    ) {
        let packing = [Packing::Knapsack, Packing::FirstFit { window }, Packing::BestFit { window }][which];
        let options = PackOptions { packing, multiple, ..PackOptions::new(24, neat, 0) };
        let most = 23 / multiple * multiple;
        // Sample i holds i + 1 everywhere.
        let samples: Vec<(Vec<i32>, Vec<i32>)> =
            lengths.iter().enumerate().map(|(i, &n)| (vec![i as i32 + 1; n], vec![-(i as i32) - 1; n])).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut packer = Packer::new(options, dir.path().join("spill"));
        if let PendingSamples::Store(store, _) = &mut packer.wait { *store = SampleStore::holding(dir.path().join("spill"), memory); }
        let mut rows = Vec::new();
        let mut keep = |row: &PackedRow| { rows.push(row.clone()); Ok(()) };
        for (ids, labels) in &samples {
            packer.add(ids, labels, &mut keep).unwrap();
        }
        packer.finish(&mut keep).unwrap();
        prop_assert_eq!(packer.counts(), plan(&lengths, &options));
        // From a file, in two streams, one of them with rows that are not samples.
        let maps = maps_of(dir.path(), &samples);
        let mut mapped = Packer::new(options, dir.path().join("unused"));
        let mut from_maps = Vec::new();
        mapped.pack_maps(&maps, (2, 0), |row| { from_maps.push(row.clone()); Ok(()) }).unwrap();
        prop_assert_eq!(&from_maps, &rows);
        prop_assert_eq!(mapped.counts(), packer.counts());
        drop(maps);
        std::fs::remove_file(dir.path().join("a")).unwrap();
        std::fs::remove_file(dir.path().join("b")).unwrap();
        drop(packer);
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut seen = std::collections::BTreeMap::new();
        for row in &rows {
            prop_assert_eq!((row.input_ids.len(), row.labels.len(), row.attention_mask.len()), (24, 24, 24));
            let mut number = 0;
            let mut last = 0;
            for (i, &id) in row.input_ids.iter().enumerate() {
                if id != 0 {
                    if id != last { number += 1; prop_assert_eq!(i % multiple, 0); }
                    prop_assert_eq!(row.labels[i], -id);
                    if neat && samples.iter().all(|s| !s.0.is_empty()) { prop_assert_eq!(row.attention_mask[i], number); }
                    *seen.entry(id).or_insert(0usize) += 1;
                    last = id;
                } else { prop_assert_eq!(row.labels[i], -100); }
            }
        }
        for (i, &n) in lengths.iter().enumerate() {
            let want = if n <= most { n } else if neat { most } else { 0 };
            prop_assert_eq!(seen.get(&(i as i32 + 1)).copied().unwrap_or(0), want);
        }
    }
}
