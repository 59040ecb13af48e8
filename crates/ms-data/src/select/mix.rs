//! Mixtures: records of several datasets taken in turn (`--mix-strategy`, `--interleave-probs`).

use crate::random::Choice;
use crate::records::RawRecord;
use crate::{Error, Result};

/// How several datasets become one.
///
/// The order is the one of Hugging Face `datasets` 2.x to 5.x, `interleave_datasets` of datasets in memory, whose draws are
/// those of numpy's `default_rng(seed).choice`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Ends when every set was read to its end at least once, and begins those again that end before
    /// (`interleave_over`); otherwise ends with the first one (`interleave_under`).
    pub over: bool,
    /// Share of each set, drawn; one from each in turn without.
    pub probabilities: Option<Vec<f64>>,
    /// Decides the draws.
    pub seed: u64,
}

impl Mix {
    /// The dataset of each record of the mixture, for datasets with these numbers of records. The records of a dataset come
    /// in order, starting over after the last one.
    ///
    /// # Errors
    /// [`Error::Options`] for an empty dataset, a number of probabilities other than that of the datasets, probabilities that
    /// do not add up to 1, or a probability of 0 where every dataset has to end.
    pub fn order(&self, lengths: &[u64]) -> Result<impl Iterator<Item = usize> + use<>> {
        if let Some(empty) = lengths.iter().position(|&length| length == 0) {
            return Err(Error::options(format!("set {} of the mixture has no record", empty + 1)));
        }
        let sets = lengths.len();
        let choice = match &self.probabilities {
            None => None,
            Some(all) if all.len() != sets => {
                return Err(Error::options(format!("{} probabilities for {sets} sets", all.len())));
            }
            Some(all) if self.over && all.contains(&0.0) => {
                return Err(Error::options("a set of probability 0 never ends, and all have to"));
            }
            Some(all) => Some(Choice::new(self.seed, all).map_err(Error::Options)?),
        };
        let (shortest, longest) = (lengths.iter().min(), lengths.iter().max());
        let rounds = if self.over { longest } else { shortest }.copied().unwrap_or(0);
        Ok(match choice {
            None => Order::Turns { sets, turn: 0, left: rounds * sets as u64 },
            Some(choice) => Order::Drawn {
                choice,
                left: lengths.to_vec(),
                // Sets that have to end before the mixture does.
                unended: lengths.iter().map(|_| true).collect(),
                over: self.over,
            },
        })
    }
}

enum Order {
    Turns { sets: usize, turn: usize, left: u64 },
    Drawn { choice: Choice, left: Vec<u64>, unended: Vec<bool>, over: bool },
}

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::Turns { sets, turn, left } => {
                *left = left.checked_sub(1)?;
                let set = *turn;
                *turn = (set + 1) % *sets;
                Some(set)
            }
            Self::Drawn { choice, left, unended, over } => {
                let goes_on = if *over { unended.contains(&true) } else { !unended.contains(&false) };
                if !goes_on {
                    return None;
                }
                let set = choice.next()?;
                if unended[set] {
                    left[set] -= 1;
                    unended[set] = left[set] > 0;
                }
                Some(set)
            }
        }
    }
}

/// The records of datasets in an order of [`Mix::order`]. `open` begins a dataset; it is called again for a dataset that has
/// ended.
pub fn mixed<I: Iterator<Item = Result<RawRecord>>>(
    order: impl Iterator<Item = usize>,
    mut open: impl FnMut(usize) -> I,
) -> impl Iterator<Item = Result<RawRecord>> {
    let mut sets: Vec<Option<I>> = Vec::new();
    order.map(move |set| {
        if sets.len() <= set {
            sets.resize_with(set + 1, || None);
        }
        if let Some(record) = sets[set].as_mut().and_then(Iterator::next) {
            return record;
        }
        sets[set] = Some(open(set));
        let first = sets[set].as_mut().and_then(Iterator::next);
        first.unwrap_or_else(|| Err(Error::options(format!("set {} of the mixture has no record", set + 1))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;

    /// Set and number of each record.
    fn drawn(over: bool, probabilities: Option<&[f64]>, lengths: &[u64]) -> Vec<(usize, u64)> {
        let mix = Mix { over, probabilities: probabilities.map(<[f64]>::to_vec), seed: 42 };
        let path: Arc<Path> = Arc::from(Path::new("x"));
        let open = |set: usize| {
            let path = Arc::clone(&path);
            (0..lengths[set])
                .map(move |i| Ok(RawRecord::of_json(path.clone(), set as u32, i, i, b"{}".to_vec())))
        };
        mixed(mix.order(lengths).unwrap(), open)
            .map(|record| record.map(|record| (record.file as usize, record.number)).unwrap())
            .collect()
    }

    #[test]
    fn the_order_is_the_one_of_hugging_face_datasets() {
        // datasets 5.2.0, numpy 2.4.6: interleave_datasets of sets of 3, 5 and 4 rows, seed 42, p = 0.2, 0.5, 0.3.
        let lengths = [3, 5, 4];
        let p: &[f64] = &[0.2, 0.5, 0.3];
        assert_eq!(
            drawn(false, None, &lengths),
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]
        );
        assert_eq!(
            drawn(true, None, &lengths),
            [
                (0, 0),
                (1, 0),
                (2, 0),
                (0, 1),
                (1, 1),
                (2, 1),
                (0, 2),
                (1, 2),
                (2, 2),
                (0, 0),
                (1, 3),
                (2, 3),
                (0, 1),
                (1, 4),
                (2, 0)
            ]
        );
        assert_eq!(drawn(false, Some(p), &lengths), [(2, 0), (1, 0), (2, 1), (1, 1), (0, 0), (2, 2), (2, 3)]);
        assert_eq!(
            drawn(true, Some(p), &lengths),
            [
                (2, 0),
                (1, 0),
                (2, 1),
                (1, 1),
                (0, 0),
                (2, 2),
                (2, 3),
                (2, 0),
                (0, 1),
                (1, 2),
                (1, 3),
                (2, 1),
                (1, 4),
                (2, 2),
                (1, 0),
                (1, 1),
                (1, 2),
                (0, 2)
            ]
        );
        // More than one piece of numpy's thousand draws.
        let many = drawn(true, Some(&[0.001, 0.999]), &[2, 7]);
        assert_eq!((many.len(), many.iter().filter(|at| at.0 == 0).count()), (1837, 2));
    }

    #[test]
    fn a_mixture_that_cannot_be_is_refused() {
        let refuse = |over, p: &[f64], lengths: &[u64]| {
            let mix = Mix { over, probabilities: Some(p.to_vec()), seed: 1 };
            mix.order(lengths).err().unwrap().to_string()
        };
        assert!(refuse(false, &[0.5, 0.5], &[1, 0]).contains("set 2 of the mixture has no record"));
        assert!(refuse(false, &[1.0], &[1, 1]).contains("1 probabilities for 2 sets"));
        assert!(refuse(false, &[0.5, 0.4], &[1, 1]).contains("add up to 0.9"));
        assert!(refuse(false, &[1.5, -0.5], &[1, 1]).contains("a probability of -0.5"));
        assert!(refuse(true, &[1.0, 0.0], &[1, 1]).contains("never ends"));
    }
}
