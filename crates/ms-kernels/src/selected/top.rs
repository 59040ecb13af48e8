//! The largest elements of a list, with the same choice among equals as `torch.topk` on a CPU.
//!
//! torch selects with the C++ library's `nth_element`. Which of several equal elements end up first follows from the steps of
//! that algorithm, so the same steps are taken here in the same order: quickselect with the median of the second, middle and
//! last element as pivot, insertion sort for three elements or fewer, heap selection when the recursion is too deep.
//!
//! # Source
//! Musser, Introspective Sorting and Selection Algorithms, 1997, as libstdc++ has it; the sizes for which torch takes another
//! way (at least 64 times as many elements as places): the first of equals win.

/// A score and the position it belongs to.
type Scored = (f32, usize);

fn before(a: &Scored, b: &Scored) -> bool {
    a.0 > b.0
}

/// Brings the `count` largest scores to the front, in no particular order.
pub(super) fn select(list: &mut [Scored], count: usize) {
    if count == 0 || count >= list.len() {
        return;
    }
    if count.saturating_mul(64) <= list.len() {
        list.select_nth_unstable_by(count - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        return;
    }
    let nth = count - 1;
    let (mut first, mut last) = (0, list.len());
    let mut depth = 2 * list.len().ilog2();
    while last - first > 3 {
        if depth == 0 {
            list[first..last]
                .select_nth_unstable_by(nth - first, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            return;
        }
        depth -= 1;
        let cut = partition(list, first, last);
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    // Stable for so few: equals keep their order.
    list[first..last].sort_by(|a, b| b.0.total_cmp(&a.0));
}

/// Partitions `list[first..last]` around a pivot that it puts at `first`; returns where the second part begins.
fn partition(list: &mut [Scored], first: usize, last: usize) -> usize {
    let (a, b, c) = (first + 1, first + (last - first) / 2, last - 1);
    let less = |i: usize, j: usize| before(&list[i], &list[j]);
    let median = if less(a, b) {
        if less(b, c) {
            b
        } else if less(a, c) {
            c
        } else {
            a
        }
    } else if less(a, c) {
        a
    } else if less(b, c) {
        c
    } else {
        b
    };
    list.swap(first, median);
    let pivot = list[first];
    let (mut low, mut high) = (first + 1, last);
    loop {
        while before(&list[low], &pivot) {
            low += 1;
        }
        high -= 1;
        while before(&pivot, &list[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        list.swap(low, high);
        low += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::random;

    #[test]
    fn the_largest_come_first_whatever_the_order_and_the_number_of_equals() {
        for len in [1usize, 2, 3, 4, 5, 24, 100, 700] {
            for steps in [2.0f32, 5.0, 1e6] {
                let scores: Vec<Scored> = random::<f32>(len, len as u64)
                    .iter()
                    .enumerate()
                    .map(|(i, v)| ((v * steps).round() + 0.0, i))
                    .collect();
                let mut sorted: Vec<f32> = scores.iter().map(|s| s.0).collect();
                sorted.sort_by(|a, b| b.total_cmp(a));
                for count in [0, 1, 2, len / 2, len.saturating_sub(1), len] {
                    let mut list = scores.clone();
                    select(&mut list, count.min(len));
                    let mut front: Vec<f32> = list[..count.min(len)].iter().map(|s| s.0).collect();
                    front.sort_by(|a, b| b.total_cmp(a));
                    assert_eq!(front, sorted[..count.min(len)], "{count} of {len}");
                }
            }
        }
    }
}
