//! Samples waiting for their row: in memory, and in a file when there are many.
//!
//! A sample is stored as its length, its ids, and its labels. If every label is the id at its position or [`IGNORED`], as is
//! nearly always the case, labels are stored as run lengths, starting with ignored positions and then alternating; such a
//! sample takes half the space. A negative length says that the labels themselves follow.

use crate::Result;
use crate::sft::IGNORED;
use ms_files::Spill;
use std::path::PathBuf;

/// Numbers that are held before a file is used: 64 MB.
const HELD_NUMBERS: usize = 16 << 20;

/// Input ids and labels of samples, one after the other.
#[derive(Debug)]
pub(super) struct SampleStore {
    numbers: Spill<i32>,
    /// Where each sample starts, in numbers; one entry more than samples.
    starts: Vec<u64>,
    /// A stored sample, and the labels of the one requested last.
    kept: Vec<i32>,
    labels: Vec<i32>,
}

impl SampleStore {
    pub(super) fn new(path: PathBuf) -> Self {
        Self::holding(path, HELD_NUMBERS)
    }

    /// A store that holds `limit` numbers.
    pub(super) fn holding(path: PathBuf, limit: usize) -> Self {
        Self { numbers: Spill::new(path, limit), starts: vec![0], kept: Vec::new(), labels: Vec::new() }
    }

    /// Keeps a sample, whose ids and labels are as many, and fewer than 2^31.
    pub(super) fn push(&mut self, ids: &[i32], labels: &[i32]) -> Result<()> {
        let length = ids.len() as i32;
        self.kept.clear();
        self.kept.push(length);
        self.kept.extend_from_slice(ids);
        if !push_runs(&mut self.kept, ids, labels) {
            self.kept[0] = -length;
            self.kept.extend_from_slice(labels);
        }
        self.numbers.extend(&self.kept)?;
        self.starts.push(self.numbers.len());
        Ok(())
    }

    /// Ids and labels of sample `i`.
    pub(super) fn sample(&mut self, i: usize) -> Result<(&[i32], &[i32])> {
        let numbers = self.numbers.get(self.starts[i]..self.starts[i + 1])?;
        let length = numbers[0].unsigned_abs() as usize;
        let (ids, rest) = numbers[1..].split_at(length);
        if numbers[0] < 0 {
            return Ok((ids, rest));
        }
        self.labels.clear();
        let mut ignored = true;
        for &run in rest {
            let end = self.labels.len() + run as usize;
            if ignored {
                self.labels.resize(end, IGNORED);
            } else {
                self.labels.extend_from_slice(&ids[self.labels.len()..end]);
            }
            ignored = !ignored;
        }
        Ok((ids, &self.labels))
    }

    /// Forgets all samples.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.starts = vec![0];
    }
}

/// Appends the lengths of the runs of labels that are ignored and that are the ids; false, and nothing appended, if a label is
/// neither.
fn push_runs(out: &mut Vec<i32>, ids: &[i32], labels: &[i32]) -> bool {
    let start = out.len();
    let mut at = 0;
    let mut ignored = true;
    while at < ids.len() {
        let (ids, labels) = (&ids[at..], &labels[at..]);
        let run = if ignored {
            labels.iter().take_while(|label| **label == IGNORED).count()
        } else {
            ids.iter().zip(labels).take_while(|(id, label)| id == label && **label != IGNORED).count()
        };
        if run == 0 && !(ignored && at == 0) {
            out.truncate(start);
            return false;
        }
        out.push(run as i32);
        at += run;
        ignored = !ignored;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels_that_follow_the_ids_take_a_few_numbers() {
        let mut store = SampleStore::new("never-written".into());
        let ids: Vec<i32> = (0..100).collect();
        let labels: Vec<i32> = ids.iter().map(|id| if *id < 60 { IGNORED } else { *id }).collect();
        store.push(&ids, &labels).unwrap();
        assert_eq!(store.numbers.len(), 1 + 100 + 2);
        store.push(&ids, &[7; 100]).unwrap();
        assert_eq!(store.numbers.len(), 103 + 1 + 200);
        assert_eq!(store.sample(0).unwrap(), (&ids[..], &labels[..]));
        assert_eq!(store.sample(1).unwrap(), (&ids[..], &[7; 100][..]));
    }

    proptest! {
        #[test]
        fn samples_come_back_from_memory_and_from_the_file(
            samples in proptest::collection::vec(proptest::collection::vec((-100i32..-97, 0u8..8), 0..12), 0..12),
            limit in 0usize..60,
        ) {
            // Labels are mostly the id or ignored, now and then neither; ids may look like the mark of ignored ones.
            let samples: Vec<(Vec<i32>, Vec<i32>)> = samples
                .into_iter()
                .map(|all| {
                    let label = |id: i32, kind: u8| match kind { 0..=3 => id, 4..=6 => IGNORED, _ => 5 };
                    (all.iter().map(|one| one.0).collect(), all.iter().map(|one| label(one.0, one.1)).collect())
                })
                .collect();
            let dir = tempfile::tempdir().unwrap();
            let mut store = SampleStore::holding(dir.path().join("spill"), limit);
            for _ in 0..2 {
                for (ids, labels) in &samples {
                    store.push(ids, labels).unwrap();
                }
                for (i, (ids, labels)) in samples.iter().enumerate().rev() {
                    prop_assert_eq!(store.sample(i).unwrap(), (&ids[..], &labels[..]));
                }
                store.clear();
            }
        }
    }
}
