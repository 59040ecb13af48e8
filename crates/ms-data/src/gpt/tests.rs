//! Sample order and samples compared with upstream's.

use super::*;
use crate::indexed::{IndexedDataset, IndexedWriter, TokenType};
use crate::{Samples, Split, Upstream};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Numbers of a `.npy` file: header text and values widened.
fn npy(path: &Path) -> (String, Vec<i64>) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    let data = &bytes[10 + length..];
    let values = if header.contains("'<i8'") {
        data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
    } else if header.contains("'<i4'") {
        data.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()).into()).collect()
    } else if header.contains("'<u4'") {
        data.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()).into()).collect()
    } else {
        assert!(header.contains("'<i2'"), "{header}");
        data.chunks_exact(2).map(|b| i16::from_le_bytes(b.try_into().unwrap()).into()).collect()
    };
    (header, values)
}

fn words(value: &Value, root: &Path) -> Vec<String> {
    let list = value.as_array().cloned().unwrap_or_default();
    let text = |v: Value| v.as_str().unwrap().to_owned();
    list.into_iter()
        .map(text)
        .map(|w| if w.parse::<f64>().is_ok() { w } else { root.join(w).display().to_string() })
        .collect()
}

#[test]
fn every_golden_order_and_sample_is_reproduced() {
    // The repository's, of made-up tokens, and upstream's own sets where they are.
    let made_up = tempfile::tempdir().unwrap();
    ms_testing::write_data_sets(made_up.path());
    let own = (made_up.path().to_owned(), ms_testing::golden("data/gptdataset"));
    let beside = ms_testing::shared("goldens/data").map(|root| (root.clone(), root.join("gptdataset")));
    for (root, cases) in std::iter::once(own).chain(beside) {
        let mut entries: Vec<_> = std::fs::read_dir(cases).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        assert_eq!(entries.len(), 10);
        for case in entries {
            check_case(&root, &case);
        }
    }
}

fn check_case(root: &Path, case: &Path) {
    let name = case.file_name().unwrap().to_str().unwrap();
    let spec: Value = serde_json::from_slice(&std::fs::read(case.join("spec.json")).unwrap()).unwrap();
    let upstream = if name.starts_with("head-") { Upstream::Head } else { Upstream::V2_0_0 };
    let flag = |key: &str| spec[key].as_bool().unwrap();
    let number = |key: &str| spec[key].as_i64().unwrap();
    let options = GptOptions {
        pad: spec["pad"].as_i64().map(|id| id as i32),
        reset_position_ids: flag("reset_position_ids"),
        reset_attention_mask: flag("reset_attention_mask"),
        eod_mask_loss: flag("eod_mask_loss"),
        ..GptOptions::new(
            (number("sequence_length") + number("mtp_extra")) as usize,
            number("seed") as u32,
            number("eod") as i32,
        )
    };
    let paths = if spec["blend"].is_null() {
        DataPaths::PerSplit(std::array::from_fn(|k| words(&spec["blend_per_split"][k], root)))
    } else {
        let split = Split::parse(spec["split"].as_str().unwrap()).unwrap();
        DataPaths::Split { paths: words(&spec["blend"], root), split }
    };
    let sizes = std::array::from_fn(|k| spec["sizes"][k].as_u64());
    let sets = build(&paths, sizes, &options, upstream).unwrap();
    check_cache(root, case, &spec, sizes, &options, upstream);
    for (split, set) in ["train", "valid", "test"].iter().zip(&sets) {
        let want = &spec["splits"][split];
        if want.is_null() {
            assert!(set.is_none(), "{name} {split}");
            continue;
        }
        let set = set.as_ref().unwrap();
        assert_eq!(set.len(), want["len"].as_u64().unwrap(), "{name} {split} length");
        for (p, part) in set.parts().iter().enumerate() {
            let index = part.index();
            let file = |what: &str| npy(&case.join(format!("{split}-{p}-{what}_index.npy"))).1;
            let wide = |values: &[i32]| values.iter().map(|&v| i64::from(v)).collect::<Vec<_>>();
            assert_eq!(wide(&index.documents), file("document"), "{name} {split} {p} documents");
            let samples: Vec<i64> = index.samples.iter().flat_map(|&(a, b)| [a, b]).collect();
            assert_eq!(samples, file("sample"), "{name} {split} {p} samples");
            let shuffle: Vec<i64> = index.shuffle.iter().map(|&v| v.into()).collect();
            assert_eq!(shuffle, file("shuffle"), "{name} {split} {p} shuffle");
            assert_eq!(index.epochs, want["parts"][p]["num_epochs"].as_i64().unwrap());
            assert_eq!(index.tokens_per_epoch, want["parts"][p]["num_tokens_per_epoch"].as_i64().unwrap());
        }
        if let GptSet::Blend(blend) = set {
            let file = |what: &str| npy(&case.join(format!("{split}-blend-{what}_index.npy"))).1;
            let dataset: Vec<i64> = blend.index.dataset.iter().map(|&v| v.into()).collect();
            assert_eq!(dataset, file("dataset"), "{name} {split} blend");
            assert_eq!(blend.index.sample, file("dataset_sample"), "{name} {split} blend");
            assert_eq!(serde_json::json!(blend.weights), want["weights"], "{name} {split} weights");
        }
        for (i, sample) in want["samples"].as_array().unwrap().iter().enumerate() {
            let got = set.get(i as u64).unwrap();
            let list = |key: &str| {
                sample[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
            };
            let ints = |values: &[i32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            assert_eq!(ints(&got.tokens), list("tokens"), "{name} {split} sample {i} tokens");
            assert_eq!(ints(&got.labels), list("labels"), "{name} {split} sample {i} labels");
            assert_eq!(ints(&got.position_ids), list("position_ids"), "{name} {split} sample {i} positions");
            let mask: Vec<f64> = got.loss_mask.iter().map(|&v| v.into()).collect();
            assert_eq!(mask, list("loss_mask"), "{name} {split} sample {i} loss mask");
        }
    }
}

/// Index files have upstream's names and bytes; and upstream's files are read.
fn check_cache(
    root: &Path,
    case: &Path,
    spec: &Value,
    sizes: [Option<u64>; 3],
    options: &GptOptions,
    upstream: Upstream,
) {
    let name = case.display();
    let dir = tempfile::tempdir().unwrap();
    // Names depend on paths as they were given, and upstream was given relative ones.
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let paths = if spec["blend"].is_null() {
        DataPaths::PerSplit(std::array::from_fn(|k| words(&spec["blend_per_split"][k])))
    } else {
        let split = Split::parse(spec["split"].as_str().unwrap()).unwrap();
        DataPaths::Split { paths: words(&spec["blend"]), split }
    };
    let cache = IndexCache::new(dir.path().join("cache"), spec["tokenizer"].as_str().unwrap());
    let options = GptOptions { cache: Some(cache), ..options.clone() };
    let built = super::blend::build_at(root, &paths, sizes, &options, upstream).unwrap();
    let mut written: Vec<String> = std::fs::read_dir(dir.path().join("cache"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    assert_eq!(written, words(&spec["cache_files"]), "{name}");
    for (file, text) in spec["description_example"].as_object().unwrap() {
        let got = std::fs::read_to_string(dir.path().join("cache").join(file)).unwrap();
        assert_eq!(got, text.as_str().unwrap(), "{name}");
    }
    for (split, value) in spec["splits"].as_object().unwrap() {
        for (p, part) in value["parts"].as_array().into_iter().flatten().enumerate() {
            for what in ["document", "sample", "shuffle"] {
                let hash = part["hash"].as_str().unwrap();
                let got = dir.path().join("cache").join(format!("{hash}-GPTDataset-{what}_index.npy"));
                let want = case.join(format!("{split}-{p}-{what}_index.npy"));
                assert!(
                    std::fs::read(&got).unwrap() == std::fs::read(&want).unwrap(),
                    "{name} {split} {p} {what}"
                );
            }
        }
        if let Some(hash) = value["hash"].as_str() {
            for what in ["dataset", "dataset_sample"] {
                let got =
                    dir.path().join("cache").join(format!("{hash}-BlendedDataset-{split}-{what}_index.npy"));
                let want = case.join(format!("{split}-blend-{what}_index.npy"));
                assert!(
                    std::fs::read(&got).unwrap() == std::fs::read(&want).unwrap(),
                    "{name} {split} {what}"
                );
            }
        }
    }
    // An order that is there is taken: one sample is exchanged with another.
    let hash = spec["splits"]["train"]["parts"][0]["hash"].as_str().unwrap();
    let shuffle = dir.path().join("cache").join(format!("{hash}-GPTDataset-shuffle_index.npy"));
    let mut bytes = std::fs::read(&shuffle).unwrap();
    let end = bytes.len();
    let (a, b) = bytes.split_at_mut(end - 4);
    let at = a.len() - 4;
    a[at..].swap_with_slice(b);
    std::fs::write(&shuffle, &bytes).unwrap();
    let again = super::blend::build_at(root, &paths, sizes, &options, upstream).unwrap();
    let order = |sets: &[Option<GptSet>; 3]| sets[0].as_ref().unwrap().parts()[0].index().shuffle.clone();
    let (before, after) = (order(&built), order(&again));
    let n = before.len();
    assert_eq!((before[n - 1], before[n - 2]), (after[n - 2], after[n - 1]), "{name}");
    // One that cannot be is not: the last sample twice.
    let last = bytes[end - 4..].to_vec();
    bytes[end - 8..end - 4].copy_from_slice(&last);
    std::fs::write(&shuffle, &bytes).unwrap();
    let again = super::blend::build_at(root, &paths, sizes, &options, upstream).unwrap();
    assert_eq!(order(&again), before, "{name}");
}

fn small_set(dir: &Path, sequences: &[Vec<i32>]) -> Arc<IndexedDataset> {
    let prefix = dir.join("set");
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32).unwrap();
    for sequence in sequences {
        writer.sequence(sequence).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    Arc::new(IndexedDataset::open(prefix).unwrap())
}

#[test]
fn consecutive_samples_share_one_token_and_cover_every_token() {
    let dir = tempfile::tempdir().unwrap();
    let sequences: Vec<Vec<i32>> = vec![(0..5).collect(), vec![], (5..12).collect(), (12..22).collect()];
    let set = small_set(dir.path(), &sequences);
    let n = set.len();
    let data = GptDataset::new(set, "train", 0..n, None, GptOptions::new(4, 1, -1)).unwrap();
    let order: Vec<i32> =
        data.index().documents.iter().flat_map(|&d| sequences[d as usize].clone()).collect();
    assert_eq!(Samples::len(&data), 5);
    for (sample, &row) in data.index().shuffle.iter().enumerate() {
        let got = data.get(sample as u64).unwrap();
        let start = row as usize * 4;
        assert_eq!(got.tokens, order[start..start + 4]);
        assert_eq!(got.labels, order[start + 1..start + 5]);
        assert_eq!(got.segment_ends, [4]);
    }
}

/// Megatron-core 0.8.0 and 0.12.1, compared on random lists, look at the number of prefixes alone there.
#[test]
fn a_prefix_that_is_alone_in_its_split_is_no_blend_whatever_its_weight() {
    let dir = tempfile::tempdir().unwrap();
    small_set(dir.path(), &[(0..40).collect(), (40..90).collect()]);
    let prefix = dir.path().join("set").display().to_string();
    let words = vec!["0.3".to_owned(), prefix];
    let options = GptOptions::new(4, 1, -1);
    let build = |paths: &DataPaths, upstream| {
        build(paths, [Some(30), None, None], &options, upstream).unwrap().into_iter().next().unwrap().unwrap()
    };
    for upstream in [Upstream::V2_0_0, Upstream::Head] {
        let alone = DataPaths::PerSplit([words.clone(), vec![], vec![]]);
        assert!(matches!(build(&alone, upstream), GptSet::Single(set) if Samples::len(&set) == 44));
        let cut = DataPaths::Split { paths: words.clone(), split: Split::parse("1,0,0").unwrap() };
        let blend = build(&cut, upstream);
        assert!(matches!(&blend, GptSet::Blend(blend) if blend.parts[0].index().epochs == 2));
        assert_eq!(blend.len(), if upstream == Upstream::Head { 30 } else { 31 });
    }
}

/// Megatron-core 0.8.0 draws a blend as long as all its parts, which have half a percent more, rounded up.
#[test]
fn what_a_blend_draws_beyond_the_samples_of_the_run_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    // Twelve samples an epoch, as many as the first set is asked for.
    small_set(dir.path(), &[(0..49).collect()]);
    let prefix = dir.path().join("set").display().to_string();
    let weights = std::iter::once("8").chain(["0.8"; 8]);
    let words: Vec<String> = weights.flat_map(|weight| [weight.to_owned(), prefix.clone()]).collect();
    let paths = DataPaths::PerSplit([words, vec![], vec![]]);
    let built = build(&paths, [Some(20), None, None], &GptOptions::new(4, 1, -1), Upstream::V2_0_0).unwrap();
    let [Some(GptSet::Blend(blend)), ..] = built else { panic!("a blend") };
    let beyond = |&(&set, &sample): &(&i16, &i64)| sample as u64 >= Samples::len(&blend.parts[set as usize]);
    let draws = || blend.index.dataset.iter().zip(&blend.index.sample);
    assert!(draws().take(20).all(|draw| !beyond(&draw)) && draws().any(|draw| beyond(&draw)));
    assert!((0..20).all(|i| blend.get(i).is_ok()) && (20..blend.len()).any(|i| blend.get(i).is_err()));
}

/// Megatron-core 0.8.0's description for `--split 0,1,0`: Python adds 0.0 to the integer 0.
#[test]
fn a_split_behind_an_empty_one_begins_at_a_float() {
    let dir = tempfile::tempdir().unwrap();
    small_set(dir.path(), &[(0..40).collect()]);
    let cache = IndexCache::new(dir.path().join("cache"), "tokenizer");
    let options = GptOptions { cache: Some(cache), ..GptOptions::new(4, 1, -1) };
    let paths = DataPaths::Split {
        paths: vec![dir.path().join("set").display().to_string()],
        split: Split::parse("0,1,0").unwrap(),
    };
    build(&paths, [None, Some(3), None], &options, Upstream::V2_0_0).unwrap();
    let files = std::fs::read_dir(dir.path().join("cache")).unwrap().map(|e| e.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().ends_with("description.txt"));
    let description = files.next().unwrap();
    let text: String = std::fs::read_to_string(description).unwrap().split_whitespace().collect();
    assert!(text.contains(r#""split_matrix":[null,[0.0,1.0],null]"#), "{text}");
}

#[test]
fn an_empty_split_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let set = small_set(dir.path(), &[vec![], vec![]]);
    let error =
        GptDataset::new(set, "valid", 0..2, Some(3), GptOptions::new(4, 1, 0)).unwrap_err().to_string();
    assert!(error.contains("the valid split holds no tokens, but 3 samples"), "{error}");
}

#[test]
fn ends_of_documents_cut_segments_and_reset_positions() {
    let dir = tempfile::tempdir().unwrap();
    let set = small_set(dir.path(), &[vec![5, 9, 6, 7, 9, 8]]);
    let options = GptOptions {
        reset_position_ids: true,
        reset_attention_mask: true,
        eod_mask_loss: true,
        pad: Some(9),
        pad_tokens: PadTokens::Keep,
        ..GptOptions::new(5, 1, 9)
    };
    let got = GptDataset::new(set, "train", 0..1, None, options).unwrap().get(0).unwrap();
    assert_eq!(got.tokens, [5, 9, 6, 7, 9]);
    assert_eq!(got.labels, [9, 6, 7, 9, 8]);
    assert_eq!(got.position_ids, [0, 1, 0, 1, 2]);
    assert_eq!(got.loss_mask, [1.0, 0.0, 1.0, 1.0, 0.0]);
    assert_eq!(got.segment_ends, [2, 5]);
}

/// By hand of MindSpeed's `eod_gptdataset_getitem`; that trains on id 0 where a filling follows, too.
#[test]
fn filling_is_neither_a_token_nor_a_position() {
    let dir = tempfile::tempdir().unwrap();
    let set = small_set(dir.path(), &[vec![5, 6, 7, 64, 64, 9, 8, 64, 9, 4, 3]]);
    let options = GptOptions {
        reset_position_ids: true,
        reset_attention_mask: true,
        filler: Some(64),
        ..GptOptions::new(10, 1, 9)
    };
    let sample =
        |options| GptDataset::new(set.clone(), "train", 0..1, None, options).unwrap().get(0).unwrap();
    let got = sample(options.clone());
    assert_eq!(got.tokens, [5, 6, 7, 0, 0, 9, 8, 0, 9, 4]);
    assert_eq!(got.labels, [6, 7, 0, 0, 9, 8, 0, 9, 4, 3]);
    assert_eq!(got.position_ids, [0, 1, 2, 0, 0, 3, 0, 0, 1, 0]);
    assert_eq!(got.loss_mask, [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(got.segment_ends, [6, 9, 10]);
    let counted = sample(GptOptions { reset_position_ids: false, ..options });
    assert_eq!(counted.position_ids, [0, 1, 2, 0, 0, 3, 4, 0, 5, 6]);
}

#[test]
fn a_blend_refuses_a_mixture_of_weights_and_prefixes() {
    let words = ["0.5", "a", "b", "c"].map(String::from).to_vec();
    let paths = DataPaths::Split { paths: words, split: Split::only(0) };
    let error = build(&paths, [None; 3], &GptOptions::new(4, 1, 0), Upstream::Head).unwrap_err().to_string();
    assert!(error.contains("every second word"), "{error}");
}

#[test]
fn an_exhaustive_blend_uses_every_sample_once() {
    let index = BlendIndex::exhaustive(&[3, 0, 5]);
    let mut drawn: Vec<(i16, i64)> =
        index.dataset.iter().copied().zip(index.sample.iter().copied()).collect();
    drawn.sort_unstable();
    assert_eq!(drawn, [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]);
}

#[test]
fn epochs_of_more_sequences_than_can_be_counted_are_refused() {
    let length = |i: usize| usize::from(i == 0);
    let refused = GptIndex::build(0..1000, length, 1 << 22, Some(1_000_000_000_000), 1).unwrap_err();
    assert!(refused.contains("are too many"), "{refused}");
}
