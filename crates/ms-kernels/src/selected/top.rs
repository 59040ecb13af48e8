//! The largest elements of a list, with the same choice among equals as `torch.topk` on a CPU.
//!
//! torch selects with the C++ library's `nth_element`, or with its `partial_sort` of at least 64 times as many elements as
//! places. Which of several equal elements end up first follows from the steps of these algorithms, so the same steps are taken
//! here in the same order: quickselect with the median of the second, middle and last element as pivot, insertion sort for three
//! elements or fewer, a heap when the recursion is too deep; a heap alone for `partial_sort`.
//!
//! # Source
//! Musser, Introspective Sorting and Selection Algorithms, 1997, and Williams, Algorithm 232, 1964, with Floyd's descent to the
//! bottom, as libstdc++ has them.

/// A score and the position it belongs to.
type Scored = (f32, usize);

/// NaN is before all others, as in torch.
fn before(a: &Scored, b: &Scored) -> bool {
    a.0 > b.0 || (a.0.is_nan() && !b.0.is_nan())
}

/// Brings the `count` largest scores to the front, in no particular order.
pub(super) fn select(list: &mut [Scored], count: usize) {
    if count == 0 || count >= list.len() {
        return;
    }
    if count.saturating_mul(64) <= list.len() {
        return through_heap(list, count);
    }
    let nth = count - 1;
    let (mut first, mut last) = (0, list.len());
    let mut depth = 2 * list.len().ilog2();
    while last - first > 3 {
        if depth == 0 {
            return through_heap(&mut list[first..last], count - first);
        }
        depth -= 1;
        let cut = partition(list, first, last);
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    // Stable for so few: equals, also zeros of either sign, keep their order.
    list[first..last].sort_by(|a, b| before(b, a).cmp(&before(a, b)));
}

/// Brings the `count` largest to the front as a heap with the smallest on top, which a larger one replaces.
fn through_heap(list: &mut [Scored], count: usize) {
    let (heap, rest) = list.split_at_mut(count);
    for place in (0..count / 2).rev() {
        let value = heap[place];
        sink(heap, place, value);
    }
    for other in rest {
        if before(other, &heap[0]) {
            let value = std::mem::replace(other, heap[0]);
            sink(heap, 0, value);
        }
    }
}

/// Fills a place of a heap: the smaller children move up to the bottom, and `value` rises from there.
fn sink(heap: &mut [Scored], place: usize, value: Scored) {
    let mut hole = place;
    while 2 * hole + 1 < heap.len() {
        let (left, right) = (2 * hole + 1, 2 * hole + 2);
        let child = if right == heap.len() || before(&heap[right], &heap[left]) { left } else { right };
        heap[hole] = heap[child];
        hole = child;
    }
    while hole > place && before(&heap[(hole - 1) / 2], &value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
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

    /// Values: PyTorch 2.15 on a CPU, `torch.topk` of zeros with ones at these places, and of 0, 2, 4, 1, 3, 0, ….
    #[test]
    fn of_equals_those_are_picked_that_torch_picks() {
        let picked = |score: &dyn Fn(usize) -> bool, len: usize, count: usize| {
            let mut list: Vec<Scored> = (0..len).map(|i| (f32::from(u8::from(score(i))), i)).collect();
            select(&mut list, count);
            let mut picks: Vec<usize> = list[..count].iter().map(|s| s.1).collect();
            picks.sort_unstable();
            picks
        };
        for (len, ones, want) in [
            (256, &[100][..], &[0, 1, 3, 100][..]),
            (256, &[100, 200], &[1, 3, 100, 200]),
            (512, &[9, 300, 301], &[1, 3, 4, 5, 7, 9, 300, 301]),
            (512, &[400], &[0, 1, 2, 3, 4, 5, 400]),
        ] {
            assert_eq!(picked(&|i| ones.contains(&i), len, want.len()), want, "{ones:?} of {len}");
        }
        let mut list: Vec<Scored> = (0..100).map(|i| ((i * 7 % 5) as f32, i)).collect();
        select(&mut list, 10);
        list.truncate(10);
        list.sort_unstable_by_key(|s| s.1);
        assert_eq!(list.iter().map(|s| s.1).collect::<Vec<_>>(), [17, 27, 42, 47, 52, 67, 72, 77, 82, 87]);
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        let mut list = [(-0.0, 0), (0.0, 1)];
        select(&mut list, 1);
        assert_eq!(list[0].1, 0);
    }

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
