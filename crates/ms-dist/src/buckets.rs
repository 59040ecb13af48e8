//! Where parameters lie in the flat buffers that data parallelism reduces, bucket by bucket.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/distributed/param_and_grad_buffer.py`; expected values in
//! `tests/golden/topology/zero1_layout.json`.

use ms_core::{ParamLayout, Shape};
use std::ops::Range;
use std::sync::Arc;

/// Every parameter starts at a multiple of this many elements.
const PARAM_ALIGNMENT: usize = 64;

/// One parameter to be placed.
#[derive(Clone, Copy, Debug)]
pub struct BucketParam {
    /// Shape of this rank's part.
    pub shape: Shape,
    /// It gets a bucket of its own (an embedding that is tied to the output layer of another stage).
    pub own_bucket: bool,
}

/// How a flat buffer is divided into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucketing {
    /// Elements at which a bucket closes; `None`: one bucket.
    pub size: Option<usize>,
    /// A bucket is padded to a multiple of this many elements, and of the number of ranks. With 1 nothing is padded and no
    /// parameter has a bucket of its own.
    pub multiple: usize,
}

impl Bucketing {
    /// Megatron's usual multiple.
    pub const MULTIPLE: usize = 128;
    /// The multiple for `--ddp-pad-buckets-for-high-nccl-busbw` (`core_v0.12.1`).
    pub const WIDE_MULTIPLE: usize = 1 << 16;

    /// The multiple for unsharded buffers (without `--use-distributed-optimizer`).
    pub const WHOLE_MULTIPLE: usize = 1;

    /// Buckets of `size` elements or more.
    pub const fn of(size: Option<usize>) -> Self {
        Self { size, multiple: Self::MULTIPLE }
    }
}

/// A flat buffer divided into buckets, each of which is evenly sharded over the data-parallel ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    /// Where each parameter lies, by parameter number.
    pub layout: Arc<ParamLayout>,
    /// The buckets, which follow each other without gaps.
    pub buckets: Vec<Range<usize>>,
    /// Ranks that share each bucket.
    pub dp: usize,
}

/// A part of one parameter inside a rank's shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSlice {
    /// Parameter number.
    pub param: usize,
    /// Elements of the flattened parameter.
    pub range: Range<usize>,
    /// Bucket they are in.
    pub bucket: usize,
    /// First element inside the rank's part of that bucket.
    pub offset: usize,
}

impl BucketPlan {
    /// Places `params` (in registration order) from the last to the first, so that buckets fill up in the order
    /// of the backward pass.
    pub fn new(params: &[BucketParam], dp: usize, bucketing: Bucketing) -> Self {
        let padded = bucketing.multiple != Bucketing::WHOLE_MULTIPLE;
        let (alignment, end_alignment) =
            if padded { (PARAM_ALIGNMENT, lcm(dp, bucketing.multiple)) } else { (1, 1) };
        let mut starts = vec![0; params.len()];
        let mut buckets = Vec::new();
        let (mut bucket_start, mut at) = (0usize, 0usize);
        let mut close = |at: usize, bucket_start: &mut usize| {
            let end = at.next_multiple_of(end_alignment);
            buckets.push(*bucket_start..end);
            *bucket_start = end;
            end
        };
        for (i, param) in params.iter().enumerate().rev() {
            let own_bucket = padded && param.own_bucket;
            let mut start = at.next_multiple_of(alignment);
            if own_bucket && start > bucket_start {
                start = close(start, &mut bucket_start);
            }
            starts[i] = start;
            at = start + param.shape.numel();
            if own_bucket || bucketing.size.is_some_and(|size| at - bucket_start >= size) {
                at = close(at, &mut bucket_start);
            }
        }
        if at > bucket_start {
            at = close(at, &mut bucket_start);
        }
        let slots = starts.into_iter().zip(params).map(|(start, p)| (start, p.shape)).collect();
        let layout = Arc::new(ParamLayout::new(slots, at).expect("parameters were placed inside the buffer"));
        Self { layout, buckets, dp }
    }

    /// Rank `rank`'s part of a bucket.
    pub fn shard(&self, bucket: usize, rank: usize) -> Range<usize> {
        let Range { start, end } = self.buckets[bucket];
        let part = (end - start) / self.dp;
        start + rank * part..start + (rank + 1) * part
    }

    /// The parts of parameters that `rank` owns, in buffer order.
    pub fn slices(&self, rank: usize) -> Vec<ParamSlice> {
        let mut by_start: Vec<usize> = (0..self.layout.len()).collect();
        let place = |p: usize| {
            let id = ms_core::ParamId(p as u32);
            self.layout.start(id)..self.layout.start(id) + self.layout.shape(id).numel()
        };
        by_start.sort_by_key(|&p| place(p).start);
        let mut slices = Vec::new();
        for bucket in 0..self.buckets.len() {
            let shard = self.shard(bucket, rank);
            for &param in &by_start {
                let own = place(param);
                let (start, end) = (own.start.max(shard.start), own.end.min(shard.end));
                if start < end {
                    let range = start - own.start..end - own.start;
                    slices.push(ParamSlice { param, range, bucket, offset: start - shard.start });
                }
            }
        }
        slices
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn numbers(v: &Value) -> Vec<usize> {
        v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
    }

    #[test]
    fn the_layout_is_megatrons() {
        let path = ms_testing::golden("topology/zero1_layout.json");
        let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let named: Vec<(&str, Shape)> = case["shapes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|s| (s[0].as_str().unwrap(), Shape::new(&numbers(&s[1]))))
                .collect();
            let placed: Vec<BucketParam> =
                named.iter().map(|&(_, shape)| BucketParam { shape, own_bucket: false }).collect();
            let dp = case["dp"].as_u64().unwrap() as usize;
            let bucketing = Bucketing::of(case["bucket_size"].as_u64().map(|n| n as usize));
            let plan = BucketPlan::new(&placed, dp, bucketing);
            assert_eq!(plan.layout.numel() as u64, case["numel"].as_u64().unwrap());
            let buckets: Vec<Vec<usize>> = case["buckets"].as_array().unwrap().iter().map(numbers).collect();
            assert_eq!(plan.buckets.iter().map(|b| vec![b.start, b.end]).collect::<Vec<_>>(), buckets);
            for (i, (name, shape)) in named.iter().enumerate() {
                let want = numbers(&case["params"][name]);
                let start = plan.layout.start(ms_core::ParamId(i as u32));
                assert_eq!(vec![start, start + shape.numel()], want[..2], "{name}");
            }
            for (rank, want) in case["rank_slices"].as_array().unwrap().iter().enumerate() {
                let got: Vec<Value> = plan
                    .slices(rank)
                    .into_iter()
                    .map(|s| {
                        // The golden counts the offset over the whole shard of a rank, bucket after bucket.
                        serde_json::json!([named[s.param].0, s.range.start, s.range.end, s.bucket, s.offset])
                    })
                    .collect();
                assert_eq!(&got, want.as_array().unwrap(), "rank {rank} of {dp}");
            }
        }
    }

    /// `core_v0.12.1`, `_pad_end_of_bucket_if_needed`: lcm(3, 128, 2^16), computed there.
    #[test]
    fn wide_buckets_end_at_multiples_of_a_large_power_of_two_and_of_the_ranks() {
        let placed = [BucketParam { shape: Shape::new(&[200_000]), own_bucket: false }; 2];
        let wide = Bucketing { size: Some(1), multiple: Bucketing::WIDE_MULTIPLE };
        assert_eq!(BucketPlan::new(&placed, 3, wide).buckets, [0..393_216, 393_216..786_432]);
        assert_eq!(
            BucketPlan::new(&placed, 3, Bucketing::of(Some(1))).buckets,
            [0..200_064, 200_064..400_128]
        );
    }

    /// `core_r0.8.0`, `_pad_end_of_bucket_if_needed`, `_pad_start_of_param_if_needed` and `_does_param_require_new_bucket`: all
    /// look at `use_distributed_optimizer`.
    #[test]
    fn nothing_is_padded_where_no_rank_owns_a_part() {
        let p = |n: usize, own_bucket| BucketParam { shape: Shape::new(&[n]), own_bucket };
        let whole = Bucketing { size: Some(75), multiple: Bucketing::WHOLE_MULTIPLE };
        let plan = BucketPlan::new(&[p(100, true), p(70, false), p(10, false)], 1, whole);
        assert_eq!(plan.buckets, [0..80, 80..180]);
        assert_eq!([0, 1, 2].map(|i| plan.layout.start(ms_core::ParamId(i))), [80, 10, 0]);
        assert_eq!(plan.layout.numel(), 180);
    }

    #[test]
    fn an_embedding_with_its_own_bucket_shares_it_with_nothing() {
        let p = |n: usize, own_bucket| BucketParam { shape: Shape::new(&[n]), own_bucket };
        let plan = BucketPlan::new(&[p(100, true), p(70, false), p(10, false)], 2, Bucketing::of(None));
        assert_eq!(plan.buckets, [0..256, 256..384]);
        assert_eq!(plan.layout.start(ms_core::ParamId(0)), 256);
        assert_eq!(plan.layout.numel(), 384);
    }
}
