//! BPE merges: the most frequent pair, again and again.
//!
//! # Source
//! The order of ties, and what a merge does to the counts of its neighbours (overlapping pairs of equal tokens included), are
//! those of the `tokenizers` crate 0.23, `models/bpe/trainer.rs`, so that vocabularies are the same.

use super::Step;
use super::words::Counts;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// A pair of ids, the left one in the high half.
type Pair = u64;

/// A merge: the pair, and the id that it becomes.
pub(super) type Merge = ([u32; 2], u32);

/// Pairs are well spread after one multiplication, and no one chooses them to collide.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

type Map<V> = HashMap<Pair, V, BuildHasherDefault<PairHasher>>;

/// Words as ids, one after the other.
struct Corpus {
    ids: Vec<u32>,
    /// Where each word begins, how long it is now, how often it occurs.
    words: Vec<(usize, u32, i64)>,
}

fn pair(left: u32, right: u32) -> Pair {
    u64::from(left) << 32 | u64::from(right)
}

/// How often each pair occurs, and in which words.
fn count_pairs(corpus: &Corpus, words: std::ops::Range<usize>) -> Map<(i64, Vec<u32>)> {
    let mut found: Map<(i64, Vec<u32>)> = Map::default();
    for word in words {
        let (start, len, count) = corpus.words[word];
        for two in corpus.ids[start..start + len as usize].windows(2) {
            let (sum, places) = found.entry(pair(two[0], two[1])).or_default();
            *sum += count;
            if places.last() != Some(&(word as u32)) {
                places.push(word as u32);
            }
        }
    }
    found
}

impl Corpus {
    /// Merges one pair in one word; gives each change of another pair's count to `changed`.
    fn merge(&mut self, word: usize, [left, right]: [u32; 2], new: u32, mut changed: impl FnMut(Pair, i64)) {
        let (start, len, _) = self.words[word];
        let ids = &mut self.ids[start..start + len as usize];
        let (mut from, mut to) = (0, 0);
        while from < ids.len() {
            let here = ids[from] == left && ids.get(from + 1) == Some(&right);
            if here {
                if to > 0 {
                    changed(pair(ids[to - 1], left), -1);
                    changed(pair(ids[to - 1], new), 1);
                }
                if let Some(&after) = ids.get(from + 2) {
                    changed(pair(right, after), -1);
                    changed(pair(new, after), 1);
                }
            }
            ids[to] = if here { new } else { ids[from] };
            to += 1;
            from += 1 + usize::from(here);
        }
        self.words[word].1 = to as u32;
    }
}

/// Merges pairs until there are `vocab_size` tokens or no pair occurs `min_frequency` times. `tokens` are the texts of the
/// ids so far, and of those that merges add; `byte_ids` the ids of bytes.
pub(super) fn find(
    counts: Counts,
    byte_ids: &[u32; 256],
    tokens: &mut Vec<String>,
    vocab_size: usize,
    min_frequency: u64,
    threads: usize,
    told: &(dyn Fn(Step) + Sync),
) -> Vec<Merge> {
    let mut corpus = Corpus { ids: Vec::new(), words: Vec::new() };
    for (word, count) in counts {
        corpus.words.push((corpus.ids.len(), word.len() as u32, i64::try_from(count).unwrap_or(i64::MAX)));
        corpus.ids.extend(word.bytes().map(|byte| byte_ids[usize::from(byte)]));
    }
    let (mut sums, mut queue) = first_pairs(&corpus, threads);
    let mut known: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
    let mut merges: Vec<Merge> = Vec::new();
    let mut fresh: Map<Vec<u32>> = Map::default();
    let aim = vocab_size.saturating_sub(tokens.len());
    while known.len() < vocab_size {
        let Some((count, Reverse(top), places)) = queue.pop() else { break };
        let now = sums[&top];
        if count != now {
            // Counted before another merge took some of them.
            queue.push((now, Reverse(top), places));
            continue;
        }
        if count < 1 || (count as u64) < min_frequency {
            break;
        }
        let two = [(top >> 32) as u32, top as u32];
        let text = format!("{}{}", tokens[two[0] as usize], tokens[two[1] as usize]);
        let new = *known.entry(text).or_insert_with_key(|text| {
            tokens.push(text.clone());
            tokens.len() as u32 - 1
        });
        merges.push((two, new));
        for word in places {
            let times = corpus.words[word as usize].2;
            corpus.merge(word as usize, two, new, |changed, by| {
                *sums.entry(changed).or_default() += by * times;
                if by > 0 {
                    let places = fresh.entry(changed).or_default();
                    if places.last() != Some(&word) {
                        places.push(word);
                    }
                }
            });
        }
        for (found, places) in fresh.drain() {
            let count = sums[&found];
            if count > 0 {
                queue.push((count, Reverse(found), places));
            }
        }
        if merges.len().is_multiple_of(256) {
            told(Step::Merging { done: merges.len() as u64, of: aim as u64 });
        }
    }
    told(Step::Merging { done: merges.len() as u64, of: aim as u64 });
    merges
}

type Queue = BinaryHeap<(i64, Reverse<Pair>, Vec<u32>)>;

fn first_pairs(corpus: &Corpus, threads: usize) -> (Map<i64>, Queue) {
    let share = corpus.words.len().div_ceil(threads.max(1)).max(1);
    let parts: Vec<Map<(i64, Vec<u32>)>> = std::thread::scope(|scope| {
        let starts = (0..corpus.words.len()).step_by(share);
        let parts: Vec<_> = starts
            .map(|at| scope.spawn(move || count_pairs(corpus, at..corpus.words.len().min(at + share))))
            .collect();
        parts.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    for (found, (count, places)) in parts.flatten() {
        let (sum, known) = all.entry(found).or_default();
        *sum += count;
        known.extend(places);
    }
    let sums = all.iter().map(|(&found, (count, _))| (found, *count)).collect();
    let queue = all.into_iter().map(|(found, (count, places))| (count, Reverse(found), places)).collect();
    (sums, queue)
}
