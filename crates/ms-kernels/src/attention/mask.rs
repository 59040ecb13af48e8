//! Masks: which keys a query sees.

use super::{Options, Segment};

/// The mask of one segment; queries and keys count from its start.
#[derive(Clone, Copy)]
pub(super) struct Mask {
    q_len: i64,
    k_len: i64,
    ahead: i64,
    causal: bool,
    window: Option<i64>,
}

impl Mask {
    pub(super) fn new(segment: &Segment, options: &Options) -> Self {
        let window = options.window.map(|w| i64::try_from(w).unwrap_or(i64::MAX / 2));
        let (q_len, k_len) = (segment.q_len as i64, segment.k_len as i64);
        Self { q_len, k_len, ahead: segment.ahead, causal: options.causal, window }
    }

    /// Position of query 0 among the keys.
    fn offset(&self) -> i64 {
        self.k_len - self.q_len + self.ahead
    }

    /// First and one past the last query that sees key `j`.
    pub(super) fn queries(&self, j: usize) -> (usize, usize) {
        let own = j as i64 - self.offset();
        let first = if self.causal { own.clamp(0, self.q_len) } else { 0 };
        let end = self.window.map_or(self.q_len, |w| own.saturating_add(w).clamp(first, self.q_len));
        (first as usize, end as usize)
    }

    /// First and one past the last of queries `q0..q0 + queries` that see each of some keys from `j` on, less `q0`.
    #[inline(always)]
    pub(super) fn limits(&self, j: usize, q0: usize, queries: usize, to: &mut [(u32, u32)]) {
        let (own, queries) = (j as i64 - self.offset() - q0 as i64, queries as i64);
        let near = |v: i64| v.clamp(-(to.len() as i64), queries) as i32;
        let first = if self.causal { near(own) } else { -(to.len() as i32) };
        let end = self.window.map_or(queries as i32, |w| near(own.saturating_add(w)));
        let (step, queries) = (i32::from(self.window.is_some()), queries as i32);
        for (row, to) in to.iter_mut().enumerate() {
            let first = (first + row as i32).clamp(0, queries);
            *to = (first as u32, (end + step * row as i32).clamp(first, queries) as u32);
        }
    }

    /// First and one past the last key that some query of `q0..q1` sees.
    pub(super) fn keys(&self, q0: usize, q1: usize) -> (usize, usize) {
        let (first, last) = (q0 as i64 + self.offset(), q1 as i64 - 1 + self.offset());
        let start = self.window.map_or(0, |w| (first - w + 1).clamp(0, self.k_len));
        let end = if self.causal { (last + 1).clamp(start, self.k_len) } else { self.k_len };
        (start as usize, end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::visible;
    use super::*;

    #[test]
    fn ranges_agree_with_the_rule_for_every_pair() {
        for (s, l, ahead) in
            [(1, 1, 0), (5, 5, 0), (3, 9, 0), (9, 3, 0), (4, 0, 0), (7, 6, 0), (4, 5, 7), (5, 5, -2)]
        {
            for causal in [false, true] {
                for window in [None, Some(1), Some(3), Some(100)] {
                    let options = Options { scale: 1.0, window, softcap: None, causal, alibi: None };
                    let mask =
                        Mask::new(&Segment { q_start: 4, q_len: s, k_start: 2, k_len: l, ahead }, &options);
                    for j in 0..l {
                        let (first, end) = mask.queries(j);
                        for i in 0..s {
                            let want = visible(i, j, s, l, ahead, &options);
                            assert_eq!((first..end).contains(&i), want, "{options:?} {s} {l} {i} {j}");
                        }
                    }
                    for (q0, queries) in (0..s).flat_map(|q0| (1..=s - q0).map(move |n| (q0, n))) {
                        for (j, count) in (0..l).flat_map(|j| (1..=l - j).map(move |n| (j, n))) {
                            let mut got = vec![(0, 0); count];
                            mask.limits(j, q0, queries, &mut got);
                            let clip = |v: usize| v.saturating_sub(q0).min(queries) as u32;
                            let want = (j..j + count).map(|j| mask.queries(j));
                            let want: Vec<_> = want.map(|(first, end)| (clip(first), clip(end))).collect();
                            assert_eq!(got, want, "{options:?} {s} {l} {q0}+{queries} {j}");
                        }
                    }
                    for i in 0..s {
                        let (first, end) = mask.keys(i, i + 1);
                        for j in 0..l {
                            let want = visible(i, j, s, l, ahead, &options);
                            assert_eq!((first..end).contains(&j), want, "{options:?} {s} {l} {i} {j}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn keys_behind_all_queries_change_nothing() {
        use super::super::tests::{causal, run, shape};
        use crate::trial::{cpus, random};
        let shape = shape(128, 1, 2, 64);
        let (qkv, dout) = (random::<f32>(128 * shape.width(), 5), random::<f32>(128 * 2 * 64, 6));
        for (q_len, ahead) in [(16, -32), (32, -40), (48, -50), (70, -58)] {
            for cpu in cpus(&[1]) {
                let with = |k_len, ahead| {
                    let segment = [Segment { q_start: 0, q_len, k_start: 0, k_len, ahead }];
                    run(&cpu, &qkv, &dout, &shape, &segment, &causal(64), None)
                };
                let (all, seen) = (with(128, ahead), with((128 + ahead) as usize, 0));
                assert!(
                    all.out == seen.out && all.lse == seen.lse && all.dqkv == seen.dqkv,
                    "{q_len} {cpu:?}"
                );
            }
        }
    }
}
