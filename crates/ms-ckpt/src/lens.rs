//! Lenses: how a stored tensor maps to a part of a canonical one.

use ms_core::Region;

/// A part of a canonical tensor and the form in which a file holds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lens {
    /// Which elements, in which order.
    pub(crate) region: Region,
    /// The last two dimensions are swapped in the file.
    pub(crate) transposed: bool,
    /// Dimensions in the file.
    pub(crate) shape: Vec<usize>,
}

impl Lens {
    /// The elements as they are.
    pub(crate) fn plain(region: Region) -> Self {
        let shape = region.local_shape().to_vec();
        Self { region, transposed: false, shape }
    }

    /// One of a stack, without the stack's dimension.
    pub(crate) fn single(region: Region) -> Self {
        let shape = region.local_shape()[1..].to_vec();
        Self { region, transposed: false, shape }
    }

    /// The last two dimensions swapped.
    pub(crate) fn turned(region: Region) -> Self {
        Self { transposed: true, ..Self::plain(region) }.swapped()
    }

    fn swapped(mut self) -> Self {
        let n = self.shape.len();
        self.shape.swap(n - 2, n - 1);
        self
    }

    /// Elements between neighbours of the region's local tensor in a file that holds it in the form of this lens, with
    /// the strides of the stored tensor; `None` if the local tensor lies there row-major.
    ///
    /// # Errors
    /// A stored tensor that has gaps and another number of dimensions than the part.
    pub(crate) fn view(&self, stored: Option<&[usize]>) -> Result<Option<Vec<usize>>, &'static str> {
        let local = self.region.local_shape();
        let n = local.len();
        let mut strides = match stored {
            None if !self.transposed => return Ok(None),
            None => {
                let mut strides = vec![0; n];
                let mut size = 1;
                for i in (0..n).rev() {
                    // Row-major in the order of the file: the last two dimensions are swapped.
                    let dim = if i == n - 1 {
                        local[n - 2]
                    } else if i == n - 2 {
                        local[n - 1]
                    } else {
                        local[i]
                    };
                    strides[i] = size;
                    size *= dim;
                }
                strides
            }
            Some(given) if given.len() == n => given.to_vec(),
            // One of a stack.
            Some(given) if given.len() + 1 == n && local[0] == 1 => [&[0], given].concat(),
            Some(_) => return Err("a view with gaps cannot be taken apart"),
        };
        if self.transposed {
            strides.swap(n - 2, n - 1);
        }
        Ok(Some(strides))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_stack_is_found_element_by_element() {
        // Experts [2, 3, 4], stored as [2, 4, 3].
        let lens = Lens::turned(Region::whole(&[2, 3, 4].into()));
        assert_eq!(lens.shape, [2, 4, 3]);
        assert_eq!(lens.view(None).unwrap().unwrap(), [12, 1, 3]);
        assert_eq!(lens.view(Some(&[20, 5, 1])).unwrap().unwrap(), [20, 1, 5]);
    }

    #[test]
    fn one_of_a_stack_has_no_dimension_for_the_stack() {
        let region =
            Region { lead: Some(1..2), ..Region::along(&[2, 3, 4].into(), 1, std::iter::once(0..3)) };
        let lens = Lens::single(region);
        assert_eq!((lens.shape.clone(), lens.view(None).unwrap()), (vec![3, 4], None));
        assert_eq!(lens.view(Some(&[1, 3])).unwrap().unwrap(), [0, 1, 3]);
        assert!(lens.view(Some(&[1])).is_err());
    }
}
