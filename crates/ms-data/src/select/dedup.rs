//! Deduplication of records.

use super::{mix, words};
use crate::{Error, Result};
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};

/// Numbers of a `MinHash` signature.
const BINS: usize = 128;
/// Words of a shingle.
const SHINGLE: usize = 5;

/// How duplicates are found (`--dedup`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dedup {
    /// Texts with the same bytes.
    Exact,
    /// Texts whose sets of five-word phrases have at least this estimated Jaccard similarity.
    MinHash {
        /// From 0 to 1.
        threshold: f64,
    },
}

impl Dedup {
    /// Bytes of memory that a kept record takes, about, in the moment in which tables grow.
    pub fn record_bytes(self) -> u64 {
        match self {
            Self::Exact => 60,
            Self::MinHash { .. } => {
                let bands = BINS / Deduplicator::rows(self);
                (2 * BINS + 40 * bands) as u64
            }
        }
    }

    /// `MinHash` with a threshold.
    ///
    /// # Errors
    /// [`Error::Options`] unless the threshold is above 0.2 and at most 1.
    pub fn min_hash(threshold: f64) -> Result<Self> {
        if !(threshold > 0.2 && threshold <= 1.0) {
            return Err(Error::options(format!(
                "a similarity of {threshold}: expected more than 0.2 and at most 1"
            )));
        }
        Ok(Self::MinHash { threshold })
    }

    /// What is compared of a text.
    pub fn key(self, text: &str) -> DedupKey {
        match self {
            Self::Exact => {
                let digest = Sha256::digest(text.as_bytes());
                DedupKey::Exact(u128::from_le_bytes(digest[..16].try_into().expect("sixteen bytes")))
            }
            Self::MinHash { .. } => DedupKey::Signature(Box::new(signature(text))),
        }
    }
}

/// What two records have in common if they are duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupKey {
    /// The first half of a text's SHA-256.
    Exact(u128),
    /// A text's `MinHash` signature.
    Signature(Box<[u16; BINS]>),
}

impl DedupKey {
    /// As tokens of a column, so that it can travel with its row.
    pub(crate) fn to_ids(&self) -> Vec<i32> {
        match self {
            Self::Exact(hash) => hash
                .to_le_bytes()
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Self::Signature(bins) => bins
                .chunks_exact(2)
                .map(|pair| (u32::from(pair[0]) | u32::from(pair[1]) << 16) as i32)
                .collect(),
        }
    }

    pub(crate) fn from_ids(ids: &[i32]) -> Option<Self> {
        match ids.len() {
            4 => {
                let mut bytes = [0; 16];
                for (out, id) in bytes.chunks_exact_mut(4).zip(ids) {
                    out.copy_from_slice(&id.to_le_bytes());
                }
                Some(Self::Exact(u128::from_le_bytes(bytes)))
            }
            64 => {
                let mut bins = Box::new([0; BINS]);
                for (pair, id) in bins.chunks_exact_mut(2).zip(ids) {
                    pair[0] = *id as u16;
                    pair[1] = (*id as u32 >> 16) as u16;
                }
                Some(Self::Signature(bins))
            }
            _ => None,
        }
    }
}

/// One-permutation `MinHash`: every shingle is hashed once; the upper bits choose a bin, of the rest the smallest value
/// stays. Empty bins borrow from others by a walk that is the same for all texts (Shrivastava, arXiv:1703.04664).
fn signature(text: &str) -> [u16; BINS] {
    let lower = text.to_lowercase();
    let hashes: Vec<u64> = words(&lower).map(hash_bytes).collect();
    let mut bins = [u32::MAX; BINS];
    let mut add = |shingle: &[u64]| {
        let hash = mix(shingle.iter().fold(0, |hash, word| mix(hash ^ word)));
        let bin = &mut bins[(hash >> 57) as usize];
        *bin = (*bin).min(hash as u32 >> 1);
    };
    if hashes.len() < SHINGLE {
        add(&hashes);
    } else {
        hashes.windows(SHINGLE).for_each(&mut add);
    }
    std::array::from_fn(|i| {
        let mut at = i;
        let mut step = 0u64;
        // At least one bin holds a value, and the walk comes by every bin.
        while bins[at] == u32::MAX {
            step += 1;
            at = (mix((i as u64) << 32 | step) >> 57) as usize;
        }
        // The value of a bin, not its smallness, is compared: its low bits are as good as all.
        mix(u64::from(bins[at])) as u16
    })
}

fn hash_bytes(word: &str) -> u64 {
    let mut hash = word.len() as u64;
    for chunk in word.as_bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(bytes));
    }
    hash
}

/// Knows the records that were kept, and refuses their duplicates.
///
/// Memory per kept record, whatever its length: 20 to 40 bytes for exact duplicates, and 60 for the moment in which the table
/// grows. For `MinHash` 256 bytes of signature and 20 to 40 for each of its bands, which are 16 from a threshold of 0.76 on,
/// 32 from 0.47 on, else 64: 600 to 1200 bytes at the default threshold.
#[derive(Debug)]
pub struct Deduplicator {
    kind: Dedup,
    exact: HashSet<u128>,
    signatures: Vec<[u16; BINS]>,
    /// By band and its hash, the first kept record.
    bands: HashMap<u64, u32>,
    /// Bins of a band.
    rows: usize,
}

impl Deduplicator {
    /// Knows nothing yet.
    pub fn new(kind: Dedup) -> Self {
        let rows = Self::rows(kind);
        Self { kind, exact: HashSet::new(), signatures: Vec::new(), bands: HashMap::new(), rows }
    }

    /// Bins of a band.
    fn rows(kind: Dedup) -> usize {
        match kind {
            Dedup::Exact => BINS,
            // A pair of similarity s shares one of b bands of r bins with probability 1 - (1 - s^r)^b, a step at about
            // (1/b)^(1/r). The step must lie below the threshold: 0.13, 0.42, 0.71 for 2, 4, 8.
            Dedup::MinHash { threshold } if threshold >= 0.76 => 8,
            Dedup::MinHash { threshold } if threshold >= 0.47 => 4,
            Dedup::MinHash { .. } => 2,
        }
    }

    /// Whether a duplicate of it was kept.
    pub fn knows(&self, key: &DedupKey) -> bool {
        match key {
            DedupKey::Exact(hash) => self.exact.contains(hash),
            DedupKey::Signature(bins) => {
                let Dedup::MinHash { threshold } = self.kind else { return false };
                self.band_hashes(bins).any(|band| {
                    self.bands.get(&band).is_some_and(|&kept| {
                        let other = &self.signatures[kept as usize];
                        let same = bins.iter().zip(other).filter(|(a, b)| a == b).count();
                        same as f64 >= threshold * BINS as f64
                    })
                })
            }
        }
    }

    /// Keeps a record unless a duplicate of it was kept; says whether it is kept.
    pub fn admit(&mut self, key: &DedupKey) -> bool {
        if self.knows(key) {
            return false;
        }
        match key {
            DedupKey::Exact(hash) => {
                self.exact.insert(*hash);
            }
            DedupKey::Signature(bins) => {
                let number = self.signatures.len() as u32;
                let bands: Vec<u64> = self.band_hashes(bins).collect();
                for band in bands {
                    self.bands.entry(band).or_insert(number);
                }
                self.signatures.push(**bins);
            }
        }
        true
    }

    fn band_hashes<'a>(&'a self, bins: &'a [u16; BINS]) -> impl Iterator<Item = u64> + 'a {
        bins.chunks_exact(self.rows)
            .zip(0u64..)
            .map(|(band, number)| band.iter().fold(mix(number), |hash, &bin| mix(hash ^ u64::from(bin))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` words, those below `shared` the same in every document.
    fn document(seed: u64, count: u64, shared: u64) -> String {
        (0..count).map(|i| format!("w{} ", mix(if i < shared { i } else { mix(seed) ^ i }) % 5000)).collect()
    }

    #[test]
    fn exact_duplicates_are_those_with_the_same_bytes() {
        let mut dedup = Deduplicator::new(Dedup::Exact);
        let admitted: Vec<bool> =
            ["a", "b", "a", "a ", "", ""].iter().map(|text| dedup.admit(&Dedup::Exact.key(text))).collect();
        assert_eq!(admitted, [true, true, false, true, true, false]);
    }

    #[test]
    fn near_duplicates_are_found_and_others_are_left_alone() {
        let kind = Dedup::min_hash(0.8).unwrap();
        let mut dedup = Deduplicator::new(kind);
        let text = document(1, 400, 0);
        assert!(dedup.admit(&kind.key(&text)));
        // Case and punctuation do not count; one word in a hundred changes five phrases in a hundred.
        assert!(!dedup.admit(&kind.key(&text.to_uppercase().replace(' ', ", "))));
        let changed: Vec<&str> =
            text.split(' ').enumerate().map(|(i, w)| if i % 100 == 50 { "other" } else { w }).collect();
        assert!(!dedup.admit(&kind.key(&changed.join(" "))));
        // Half of the text in common is a similarity of a third.
        let (a, b) = (document(2, 400, 200), document(3, 400, 200));
        assert!(dedup.admit(&kind.key(&a)));
        assert!(dedup.admit(&kind.key(&b)));
        assert!((0..500).all(|i| dedup.admit(&kind.key(&document(10 + i, 60, 0)))));
    }

    #[test]
    fn the_estimate_is_near_the_true_similarity() {
        for (shared, want) in
            [(100u64, 96.0 / 696.0), (200, 196.0 / 596.0), (300, 296.0 / 496.0), (360, 356.0 / 436.0)]
        {
            let mut sum = 0.0;
            for i in 0u64..20 {
                let sign = |seed| signature(&document(1000 * i + seed, 400, shared));
                let (a, b) = (sign(1), sign(2));
                sum += a.iter().zip(&b).filter(|(x, y)| x == y).count() as f64 / BINS as f64 / 20.0;
            }
            assert!((sum - want).abs() < 0.04, "{shared} words shared: {sum} for {want}");
        }
    }

    #[test]
    fn keys_travel_as_ids() {
        for key in [Dedup::Exact.key("x"), Dedup::MinHash { threshold: 0.8 }.key("a b c d e f")] {
            assert_eq!(DedupKey::from_ids(&key.to_ids()), Some(key));
        }
        assert_eq!(DedupKey::from_ids(&[1, 2]), None);
    }
}
