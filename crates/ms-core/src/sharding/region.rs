//! A region: one rank's shard of a tensor.

use crate::Shape;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The part of a global tensor that one rank holds: `ranges` of dimension `dim`, concatenated along it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Shape of the global tensor.
    pub shape: Shape,
    /// The sharded dimension.
    pub dim: usize,
    /// Which indices of `dim`, in the order in which the local tensor holds them.
    pub ranges: Vec<Range<usize>>,
    /// Which indices of the first dimension, where `dim` is another one: the experts of stacked weights.
    /// `None`: all.
    pub lead: Option<Range<usize>>,
}

impl Region {
    /// All of a tensor.
    pub fn whole(shape: &Shape) -> Self {
        Self::along(shape, 0, std::iter::once(0..shape.first().copied().unwrap_or(1)))
    }

    /// `ranges` of dimension `dim`.
    pub fn along(shape: &Shape, dim: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self { shape: *shape, dim, ranges: ranges.into_iter().collect(), lead: None }
    }

    /// Shape of the local tensor.
    pub fn local_shape(&self) -> Shape {
        let mut dims = self.shape.to_vec();
        if let Some(d) = dims.get_mut(self.dim) {
            *d = self.ranges.iter().map(ExactSizeIterator::len).sum();
        }
        if let (Some(lead), Some(d)) = (&self.lead, dims.first_mut()) {
            *d = lead.len();
        }
        Shape::new(&dims)
    }

    /// Whether this is the whole tensor in its own order.
    pub fn is_whole(&self) -> bool {
        let size = self.shape.get(self.dim).copied().unwrap_or(1);
        let mut next = 0;
        let lead = self.lead.as_ref().is_none_or(|l| *l == (0..self.shape.first().copied().unwrap_or(1)));
        lead && self.ranges.iter().all(|r| std::mem::replace(&mut next, r.end) == r.start) && next == size
    }

    /// Its first element of the global tensor; 0 without any.
    pub fn first(&self) -> usize {
        self.runs().next().map_or(0, |run| run.0)
    }

    /// The contiguous runs of the global tensor, in the order of the local one: `(first element, elements)`.
    ///
    /// Copying the runs one after the other makes the local tensor of the global one; the reverse puts a local
    /// tensor into its place.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let size = self.shape.get(self.dim).copied().unwrap_or(1);
        let inner: usize = self.shape.iter().skip(self.dim + 1).product();
        let outer: usize = self.shape.iter().take(self.dim).product();
        // Of a region without elements there may be more rows than can be counted.
        let empty = inner == 0 || self.ranges.iter().all(Range::is_empty);
        let outer = match &self.lead {
            _ if empty => 0..0,
            Some(lead) => {
                let per_lead: usize = self.shape.iter().take(self.dim).skip(1).product();
                lead.start * per_lead..lead.end * per_lead
            }
            None => 0..outer,
        };
        outer.flat_map(move |o| {
            self.ranges.iter().map(move |r| ((o * size + r.start) * inner, r.len() * inner))
        })
    }

    /// Copies this region out of the global tensor. Both slices hold elements of `element_bytes` bytes.
    ///
    /// # Panics
    /// If a slice has not exactly the bytes of its tensor.
    pub fn gather(&self, local: &mut [u8], global: &[u8], element_bytes: usize) {
        let mut at = 0;
        for (start, len) in self.runs() {
            let (start, len) = (start * element_bytes, len * element_bytes);
            local[at..at + len].copy_from_slice(&global[start..start + len]);
            at += len;
        }
        assert_eq!(at, local.len(), "the local tensor has the bytes of its region");
    }

    /// Copies a local tensor into its place in the global one. The reverse of [`Region::gather`].
    ///
    /// # Panics
    /// If a slice has not exactly the bytes of its tensor.
    pub fn scatter(&self, global: &mut [u8], local: &[u8], element_bytes: usize) {
        let mut at = 0;
        for (start, len) in self.runs() {
            let (start, len) = (start * element_bytes, len * element_bytes);
            global[start..start + len].copy_from_slice(&local[at..at + len]);
            at += len;
        }
        assert_eq!(at, local.len(), "the local tensor has the bytes of its region");
    }
}

/// How a region is written in a manifest.
#[derive(Serialize, Deserialize)]
struct Stored {
    shape: Vec<usize>,
    dim: usize,
    ranges: Vec<(usize, usize)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lead: Option<(usize, usize)>,
}

impl Serialize for Region {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let ranges = self.ranges.iter().map(|r| (r.start, r.end)).collect();
        let lead = self.lead.as_ref().map(|l| (l.start, l.end));
        Stored { shape: self.shape.to_vec(), dim: self.dim, ranges, lead }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Region {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let stored = Stored::deserialize(d)?;
        if stored.shape.len() > crate::MAX_RANK {
            return Err(D::Error::custom(format!("a shape has at most {} dimensions", crate::MAX_RANK)));
        }
        let size = match stored.shape.get(stored.dim) {
            Some(&size) => size,
            None if stored.shape.is_empty() && stored.dim == 0 => 1,
            None => {
                return Err(D::Error::custom(format!("no dimension {} in {:?}", stored.dim, stored.shape)));
            }
        };
        if let Some((a, b)) = stored.ranges.iter().find(|(a, b)| a > b || *b > size) {
            return Err(D::Error::custom(format!("range {a}..{b} is outside 0..{size}")));
        }
        if stored.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_none() {
            return Err(D::Error::custom(format!("shape {:?} has too many elements", stored.shape)));
        }
        let all = stored.ranges.iter().try_fold(0usize, |n, (a, b)| n.checked_add(b - a));
        if all.is_none_or(|all| all > size) {
            return Err(D::Error::custom(format!("ranges of more than the {size} of their dimension")));
        }
        if let Some((a, b)) = stored.lead
            && (stored.dim == 0 || a > b || b > stored.shape[0])
        {
            return Err(D::Error::custom(format!(
                "range {a}..{b} of the first dimension of {:?}, cut along {}",
                stored.shape, stored.dim
            )));
        }
        let ranges = stored.ranges.into_iter().map(|(a, b)| a..b).collect();
        let lead = stored.lead.map(|(a, b)| a..b);
        Ok(Self { shape: Shape::new(&stored.shape), dim: stored.dim, ranges, lead })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, AxisPlace, Partition};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_of_all_ranks_make_the_whole(
            ranks in 1usize..5, blocks in 1usize..4, part in 1usize..4, other in 1usize..5, dim in 0usize..2,
        ) {
            let cut = ranks * blocks * part;
            let shape = if dim == 0 { Shape::new(&[cut, other]) } else { Shape::new(&[other, cut]) };
            let partition = Partition::Split { axis: Axis::Tp, dim, blocks };
            let global: Vec<u8> = (0..shape.numel()).map(|i| i as u8).collect();
            let mut back = vec![0u8; global.len()];
            for rank in 0..ranks {
                let region = partition.region("t", &shape, rank, ranks).unwrap();
                let mut local = vec![0u8; region.local_shape().numel()];
                region.gather(&mut local, &global, 1);
                region.scatter(&mut back, &local, 1);
                prop_assert_eq!(region.is_whole(), ranks == 1);
            }
            prop_assert_eq!(global, back);
        }
    }

    #[test]
    fn regions_without_elements_are_gone_through_at_once_and_those_of_more_than_their_tensor_are_refused() {
        let read = |text: &str| serde_json::from_str::<Region>(text).map_err(|e| e.to_string());
        // As many rows as there are addresses, of no elements or cut to none.
        for text in [
            r#"{"shape":[4611686018427387904,0],"dim":1,"ranges":[[0,0]]}"#,
            r#"{"shape":[4611686018427387904,2],"dim":1,"ranges":[]}"#,
            r#"{"shape":[4611686018427387904,1,2],"dim":2,"ranges":[[1,1]],"lead":[1,4611686018427387904]}"#,
        ] {
            assert_eq!(read(text).unwrap().runs().next(), None, "{text}");
        }
        let twice = read(r#"{"shape":[4,3],"dim":0,"ranges":[[0,4],[0,4]]}"#).unwrap_err();
        assert!(twice.contains("ranges of more than the 4 of their dimension"), "{twice}");
        let uncounted = read(r#"{"shape":[0,4611686018427387904,8],"dim":0,"ranges":[[0,0]]}"#).unwrap_err();
        assert!(uncounted.contains("has too many elements"), "{uncounted}");
    }

    #[test]
    fn experts_are_shared_out_whole_and_then_cut_by_rows() {
        // Two of four experts of [gate; up] rows [4, 3], the second half of both blocks.
        let p = Partition::Experts { dim: 1, blocks: 2 };
        let at = |_| AxisPlace { coord: 1, size: 2 };
        let region = p.region_on("fc1", &Shape::new(&[4, 4, 3]), at).unwrap();
        assert_eq!((region.local_shape().to_vec(), region.lead.clone()), (vec![2, 2, 3], Some(2..4)));
        assert_eq!(region.runs().collect::<Vec<_>>(), [(27, 3), (33, 3), (39, 3), (45, 3)]);
    }

    #[test]
    fn sections_of_different_sizes_are_each_cut_evenly() {
        let p = Partition::Sections { axis: Axis::Tp, dim: 0, sizes: [4, 2, 0, 0, 0] };
        let region = p.region("in_proj", &Shape::new(&[6, 2]), 1, 2).unwrap();
        assert_eq!(region.ranges, [2..4, 5..6]);
        assert!(p.region("in_proj", &Shape::new(&[7, 2]), 1, 2).is_err());
        assert!(p.region("in_proj", &Shape::new(&[6, 2]), 1, 4).is_err());
    }

    #[test]
    fn a_cut_that_does_not_divide_is_refused_with_the_numbers() {
        let p = Partition::Split { axis: Axis::Tp, dim: 0, blocks: 2 };
        let e = p.region("fc1", &Shape::new(&[10, 4]), 0, 4).unwrap_err().to_string();
        assert!(e.contains("fc1") && e.contains("10") && e.contains('8'), "{e}");
    }
}
