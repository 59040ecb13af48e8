//! Rows that are filled as samples arrive, with a bounded number open at a time.

use super::Packing;
use std::collections::VecDeque;

/// Rows with room left. A sample goes into one of them, or into a new one; when there are more than the window allows, the
/// oldest (first fit) or the fullest (best fit) is closed.
#[derive(Debug)]
pub(super) struct Window<T> {
    best: bool,
    size: usize,
    capacity: usize,
    open: VecDeque<Open<T>>,
}

#[derive(Debug)]
struct Open<T> {
    room: usize,
    samples: Vec<T>,
}

impl<T> Window<T> {
    /// A window; `None` for a packing that needs all lengths.
    pub(super) fn new(packing: Packing, capacity: usize) -> Option<Self> {
        let (best, size) = match packing {
            Packing::Knapsack => return None,
            Packing::FirstFit { window } => (false, window),
            Packing::BestFit { window } => (true, window),
        };
        Some(Self { best, size: size.max(1), capacity, open: VecDeque::new() })
    }

    /// Places a sample of `length`; gives the row that is closed for it, if one is.
    ///
    /// # Panics
    /// If the sample is longer than a row.
    pub(super) fn add(&mut self, length: usize, sample: T) -> Option<Vec<T>> {
        assert!(length <= self.capacity, "a sample of {length} tokens does not fit {}", self.capacity);
        let fitting = self.open.iter().enumerate().filter(|(_, row)| row.room >= length);
        let at = if self.best {
            fitting.min_by_key(|(i, row)| (row.room, *i)).map(|(i, _)| i)
        } else {
            fitting.map(|(i, _)| i).next()
        };
        match at {
            Some(at) => {
                self.open[at].room -= length;
                self.open[at].samples.push(sample);
                let full = self.open[at].room == 0;
                full.then(|| self.open.remove(at).expect("found just above").samples)
            }
            None => {
                let closed = if self.open.len() == self.size { self.close_one() } else { None };
                self.open.push_back(Open { room: self.capacity - length, samples: vec![sample] });
                closed
            }
        }
    }

    fn close_one(&mut self) -> Option<Vec<T>> {
        let at = if self.best {
            self.open.iter().enumerate().min_by_key(|(i, row)| (row.room, *i)).map_or(0, |(i, _)| i)
        } else {
            0
        };
        self.open.remove(at).map(|row| row.samples)
    }

    /// The rows that are left, the oldest first.
    pub(super) fn finish(&mut self) -> impl Iterator<Item = Vec<T>> + '_ {
        self.open.drain(..).map(|row| row.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(packing: Packing, lengths: &[usize]) -> Vec<Vec<usize>> {
        let mut window = Window::new(packing, 10).unwrap();
        let mut rows: Vec<Vec<usize>> =
            lengths.iter().enumerate().filter_map(|(i, &length)| window.add(length, i)).collect();
        rows.extend(window.finish());
        rows
    }

    #[test]
    fn first_fit_takes_the_oldest_row_and_best_fit_the_tightest() {
        let lengths = [6, 5, 3, 4, 7, 2];
        assert_eq!(rows(Packing::FirstFit { window: 9 }, &lengths), [vec![0, 2], vec![1, 3], vec![4, 5]]);
        assert_eq!(rows(Packing::BestFit { window: 9 }, &lengths), [vec![0, 2], vec![1, 3], vec![4, 5]]);
        let lengths = [5, 6, 4, 5];
        assert_eq!(rows(Packing::FirstFit { window: 9 }, &lengths), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(rows(Packing::BestFit { window: 9 }, &lengths), [vec![1, 2], vec![0, 3]]);
    }

    #[test]
    fn the_window_bounds_the_open_rows() {
        let lengths = [9, 8, 7, 6, 1, 2];
        assert_eq!(
            rows(Packing::FirstFit { window: 2 }, &lengths),
            [vec![0], vec![1], vec![2, 4, 5], vec![3]],
            "the oldest rows are closed for the third and fourth sample"
        );
        assert_eq!(
            rows(Packing::BestFit { window: 2 }, &lengths),
            [vec![0], vec![1], vec![2, 4, 5], vec![3]]
        );
    }
}
