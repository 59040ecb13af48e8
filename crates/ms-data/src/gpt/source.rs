//! Where a dataset's sequences come from: files, or a rule (mock data).

use crate::Result;
use crate::indexed::IndexedDataset;
use crate::random::DefaultRng;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Megatron's mock dataset: 100 000 sequences of 1 to 4095 tokens, which count 1, 2, 3 … and end with the end of document.
///
/// Source: Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core/datasets/gpt_dataset.py`, `MockGPTLowLevelDataset`.
#[derive(Debug)]
pub struct MockSequences {
    lengths: Vec<i32>,
    eod: i32,
}

impl MockSequences {
    /// Number of sequences.
    const COUNT: usize = 100_000;
    /// Tokens that every sequence has fewer of.
    const BELOW: u32 = 4096;
    /// The greatest token apart from the end of document: the last but one of the longest sequence.
    pub const GREATEST: i32 = Self::BELOW as i32 - 2;

    /// The dataset whose sequences end with `eod`.
    pub fn new(eod: i32) -> Self {
        let mut rng = DefaultRng::new(0).halves();
        let lengths = (0..Self::COUNT).map(|_| 1 + rng.below(Self::BELOW - 1) as i32).collect();
        Self { lengths, eod }
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|&n| n as u64).sum()
    }

    fn read_range(&self, i: usize, range: Range<usize>, out: &mut Vec<i32>) {
        let last = self.lengths[i] as usize - 1;
        out.extend(range.map(|at| if at == last { self.eod } else { at as i32 + 1 }));
    }
}

/// The sequences of a dataset.
#[derive(Clone, Debug)]
pub enum Source {
    /// Those of a `.bin`/`.idx` pair.
    Files(Arc<IndexedDataset>),
    /// Artificial ones.
    Mock(Arc<MockSequences>),
}

impl From<Arc<IndexedDataset>> for Source {
    fn from(set: Arc<IndexedDataset>) -> Self {
        Self::Files(set)
    }
}

impl Source {
    /// The prefix of its files, or what messages call artificial data.
    pub fn name(&self) -> &Path {
        match self {
            Self::Files(set) => set.prefix(),
            Self::Mock(_) => Path::new("mock data"),
        }
    }

    /// Number of sequences.
    pub(super) fn sequences(&self) -> usize {
        match self {
            Self::Files(set) => set.len(),
            Self::Mock(set) => set.sequences(),
        }
    }

    /// Tokens of sequence `i`.
    pub(super) fn length(&self, i: usize) -> usize {
        match self {
            Self::Files(set) => set.length(i),
            Self::Mock(set) => set.lengths[i] as usize,
        }
    }

    /// Appends the tokens `range` of sequence `i` to `out`.
    pub(super) fn read_range(&self, i: usize, range: Range<usize>, out: &mut Vec<i32>) -> Result<()> {
        match self {
            Self::Files(set) => set.read_range(i, range, out),
            Self::Mock(set) => {
                set.read_range(i, range, out);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Samples;
    use crate::gpt::{DataPaths, GptOptions, IndexCache, build};
    use serde_json::Value;
    use sha2::{Digest, Sha256};

    #[test]
    fn artificial_lengths_are_numpys() {
        // numpy 2.4: default_rng(0).integers(low=1, high=4096, size=100000, dtype=int32)
        let set = MockSequences::new(7);
        assert_eq!(set.lengths[..8], [3484, 2609, 2094, 1105, 1261, 168, 309, 68]);
        assert_eq!((set.tokens(), set.lengths.iter().max()), (204_637_097, Some(&4095)));
        let bytes: Vec<u8> = set.lengths.iter().flat_map(|n| n.to_le_bytes()).collect();
        let sum: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(sum, "ed8f44f17361fd0c689e0af757ac685fff85bc309c50f698ffb2aac84ebd4cea");
    }

    #[test]
    fn artificial_samples_and_index_files_are_upstreams() {
        let text = std::fs::read_to_string(ms_testing::golden("data/mock.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 3);
        for case in cases {
            let number = |key: &str| case[key].as_u64().unwrap();
            let flag = |key: &str| case["flags"][key].as_bool().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let options = GptOptions {
                reset_position_ids: flag("reset_position_ids"),
                reset_attention_mask: flag("reset_attention_mask"),
                eod_mask_loss: flag("eod_mask_loss"),
                cache: Some(IndexCache::new(folder.path(), "somewhere")),
                ..GptOptions::new(number("row") as usize, number("seed") as u32, number("eod") as i32)
            };
            let sizes = std::array::from_fn(|k| case["sizes"][k].as_u64());
            let upstream = crate::Upstream::Head;
            // The second time from the files.
            for _ in 0..2 {
                let sets = build(&DataPaths::Mock, sizes, &options, upstream).unwrap();
                for (split, set) in ["train", "valid", "test"].iter().zip(&sets) {
                    check(&case["splits"][split], set.as_ref().unwrap(), number("row") > 64);
                }
            }
            for split in case["splits"].as_object().unwrap().values() {
                for (name, sum) in split["files"].as_object().unwrap() {
                    let path = format!("{}-MockGPTDataset-{name}", split["hash"].as_str().unwrap());
                    let bytes = std::fs::read(folder.path().join(&path)).unwrap();
                    let got: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
                    assert_eq!(got, sum.as_str().unwrap(), "{path}");
                }
            }
        }
    }

    fn check(want: &Value, set: &crate::gpt::GptSet, sums: bool) {
        assert_eq!(set.len(), want["length"].as_u64().unwrap());
        let sequences = set.parts()[0].sequences();
        assert_eq!(serde_json::json!([sequences.start, sequences.end]), want["sequences"]);
        let samples = want["samples"].as_array().unwrap();
        for (number, want) in [0, set.len() - 1].into_iter().zip(samples) {
            let got = set.get(number).unwrap();
            let wide = |values: &[i32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let mask: Vec<f64> = got.loss_mask.iter().map(|&v| v.into()).collect();
            for (key, got) in [
                ("tokens", wide(&got.tokens)),
                ("labels", wide(&got.labels)),
                ("position_ids", wide(&got.position_ids)),
                ("loss_mask", mask),
            ] {
                if sums {
                    assert_eq!(got.iter().sum::<f64>(), want[key].as_f64().unwrap(), "{key} of {number}");
                } else {
                    let list: Vec<f64> =
                        want[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
                    assert_eq!(got, list, "{key} of {number}");
                }
            }
        }
    }
}
