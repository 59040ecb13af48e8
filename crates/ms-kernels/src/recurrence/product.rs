//! Products of small f32 matrices by one thread, on the tiles of the matrix kernels.
//!
//! The left operand is read in place, the right one is packed. Terms are summed in order, one fused multiply-add each, on
//! every instruction set.

use crate::Isa;
use crate::matmul::kernel::{Kernel, Order, Side, Source, Store, Tile};
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::{Lines, fetch};

/// A matrix in memory: element `(i, j)` at `data[i · row + j · column]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    row: usize,
    column: usize,
}

impl<'a> View<'a> {
    /// Rows `stride` apart.
    pub(crate) fn of(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, column: 1 }
    }

    /// The transposed matrix.
    pub(crate) fn t(self) -> Self {
        Self { data: self.data, row: self.column, column: self.row }
    }

    /// `Σ_j self[i,j] · with[j]`, rows being contiguous.
    pub(crate) fn dot_row(&self, isa: Isa, i: usize, with: &[f32]) -> f32 {
        debug_assert_eq!(self.column, 1, "rows in memory");
        crate::lanes::dot(isa, &self.data[i * self.row..][..with.len()], with)
    }

    /// Whether a matrix of `rows` by `columns` lies in the data.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns == 0 || (rows - 1) * self.row + (columns - 1) * self.column < self.data.len()
    }
}

/// Which terms of a product count for a row of its left operand; the others are zero there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Band {
    /// All.
    All,
    /// Up to the end of the row's own block of this many terms.
    UpTo(usize),
    /// From the beginning of the row's own block of this many terms.
    From(usize),
}

/// Lines that a tile asks for: the processor keeps a dozen requests at a time, and waits with what comes next if it has more.
const AT_ONCE: usize = 8;

/// What is read or written soon, of which each tile of a product asks for some lines.
#[derive(Default)]
pub(crate) struct Ahead {
    parts: Vec<Lines>,
}

impl Ahead {
    /// Wants some parts; what is left of those wanted before is asked for now.
    pub(crate) fn want(&mut self, parts: impl IntoIterator<Item = Lines>) {
        self.parts.drain(..).for_each(|mut part| part.next(usize::MAX, fetch));
        self.parts.extend(parts);
    }

    /// Asks for some lines.
    fn ask(&mut self) {
        let Some(part) = self.parts.last_mut() else { return };
        part.next(AT_ONCE, fetch);
        if part.left() == 0 {
            self.parts.pop();
        }
    }

    /// `c = left · right`, or added to `c`: `[m,n]` with rows `c.1` apart, over `k` terms.
    ///
    /// # Panics
    /// If an operand is too short: a caller's bug.
    pub(crate) fn product<K: Kernel<Packed = f32>>(
        &mut self,
        c: (&mut [f32], usize),
        add: bool,
        left: View<'_>,
        right: View<'_>,
        sizes: [usize; 3],
        band: Band,
    ) {
        tiles::<K>(c, add, [left, right], sizes, band, |_, _| sizes[1], || self.ask());
    }
}

/// [`Ahead::product`] that asks for nothing.
pub(crate) fn product<K: Kernel<Packed = f32>>(
    c: (&mut [f32], usize),
    add: bool,
    left: View<'_>,
    right: View<'_>,
    sizes: [usize; 3],
    band: Band,
) {
    Ahead::default().product::<K>(c, add, left, right, sizes, band);
}

/// `c = left · right` of two matrices of `n` rows of `k` terms, the right one transposed: what a row needs of it, up to the end
/// of its own block of this many columns. Of what lies beyond only that is written which products with `c` in [`Band::UpTo`] or,
/// transposed, in [`Band::From`] the same blocks read.
pub(crate) fn triangle<K: Kernel<Packed = f32>>(
    c: (&mut [f32], usize),
    left: View<'_>,
    right: View<'_>,
    [n, k]: [usize; 2],
    block: usize,
) {
    // A product that reads row `t` transposed has a tile of columns that begins in the block of `t` at the latest.
    let end = |i: usize, rows: usize| (i + rows).next_multiple_of(block).next_multiple_of(K::MR);
    tiles::<K>(c, false, [left, right.t()], [n, n, k], Band::All, end, || {});
}

/// [`product`] of the columns before `end(i, rows)` in a tile of so many rows from row `i` on; `meanwhile` runs with every tile.
fn tiles<K: Kernel<Packed = f32>>(
    c: (&mut [f32], usize),
    add: bool,
    [left, right]: [View<'_>; 2],
    [m, n, k]: [usize; 3],
    band: Band,
    end_of: impl Fn(usize, usize) -> usize,
    mut meanwhile: impl FnMut(),
) {
    if m == 0 || n == 0 {
        return;
    }
    let (c, stride) = c;
    assert!(stride >= n && (m - 1) * stride + n <= c.len(), "room for a product");
    assert!(left.holds(m, k) && right.holds(k, n), "operands of a product");
    assert!(right.column == 1 || right.row == 1, "a right operand is contiguous in one direction");
    let c = c.as_mut_ptr();
    with_scratch(Scratch::PanelsB, n.next_multiple_of(K::NR) * k, |panels: &mut [f32]| {
        let along = right.column == 1;
        let source = Source {
            data: right.data.as_ptr(),
            stride: if along { right.row } else { right.column },
            terms: k,
            filled: k,
            lines: n,
            order: Order::Natural,
        };
        // SAFETY: the right operand was checked to hold k by n elements, the panels have room for whole panels of it.
        unsafe {
            if along {
                K::pack_strided(source, Side::Right, panels.as_mut_ptr());
            } else {
                K::pack_contiguous(source, Side::Right, panels.as_mut_ptr());
            }
        }
        for j in (0..n).step_by(K::NR) {
            for i in (0..m).step_by(K::MR) {
                let rows = K::MR.min(m - i);
                let cols = end_of(i, rows).min(n).saturating_sub(j).min(K::NR);
                if cols == 0 {
                    continue;
                }
                meanwhile();
                let (first, end) = match band {
                    Band::All => (0, k),
                    Band::UpTo(block) => (0, (i + rows).next_multiple_of(block).min(k)),
                    Band::From(block) => ((i / block * block).min(k), k),
                };
                let to = c.wrapping_add(i * stride + j);
                let tile = Tile {
                    steps: end - first,
                    a: left.data.as_ptr().wrapping_add(i * left.row + first * left.column),
                    a_row: left.row,
                    a_step: left.column,
                    b: panels.as_ptr().wrapping_add(j * k + first * K::NR),
                    start: add.then_some((to.cast_const(), stride)),
                    bias: std::ptr::null(),
                    store: Store::F32 { to, stride },
                    next: (to.wrapping_add(K::MR * stride), stride),
                    rows,
                    cols,
                };
                // SAFETY: the operands and the result were checked to hold their sizes, which tiles do not leave; the
                // kernel is of an instruction set that this processor has.
                unsafe { K::tile(&tile) }
            }
        }
    });
}

/// Evaluates `$work` with `$kernel` standing for the kernel of f32 products of an instruction set.
macro_rules! with_f32_kernel {
    ($isa:expr, $kernel:ident => $work:expr) => {{
        use $crate::matmul::kernel;
        match $isa {
            #[cfg(target_arch = "aarch64")]
            $crate::Isa::Neon | $crate::Isa::NeonBf16 => kernel::with!(kernel::neon::Neon, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx2 => kernel::with!(kernel::avx2::Avx2, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx512
            | $crate::Isa::Avx512Convert
            | $crate::Isa::Avx512Bf16
            | $crate::Isa::Amx => kernel::with!(kernel::avx512::Avx512, $kernel => $work),
            _ => kernel::with!(kernel::portable::Portable, $kernel => $work),
        }
    }};
}
pub(crate) use with_f32_kernel;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::trial::random;

    /// Every layout and band, compared with plain sums in the same order.
    #[test]
    fn products_are_those_of_the_definition() {
        for [m, n, k] in [[1, 1, 1], [7, 5, 3], [64, 70, 33], [13, 130, 64]] {
            let (a, b, c) = (random::<f32>(m * k, 1), random::<f32>(k * n, 2), random::<f32>(m * (n + 3), 3));
            for (band, transposed, add) in [
                (Band::All, false, false),
                (Band::UpTo(1), true, true),
                (Band::UpTo(4), false, true),
                (Band::From(3), true, false),
            ] {
                let inside = |i: usize, t: usize| match band {
                    Band::All => true,
                    Band::UpTo(block) => t < (i + 1).next_multiple_of(block),
                    Band::From(block) => t >= i / block * block,
                };
                let (mut left, mut right) = (vec![0f32; m * k], vec![0f32; k * n]);
                for t in 0..k {
                    for i in 0..m {
                        left[if transposed { t * m + i } else { i * k + t }] =
                            if inside(i, t) { a[i * k + t] } else { 0.0 };
                    }
                    for j in 0..n {
                        right[if transposed { j * k + t } else { t * n + j }] = b[t * n + j];
                    }
                }
                let mut want = c.clone();
                for i in 0..m {
                    for j in 0..n {
                        let mut sum = if add { c[i * (n + 3) + j] } else { 0.0 };
                        for t in (0..k).filter(|&t| inside(i, t)) {
                            sum = a[i * k + t].mul_add(b[t * n + j], sum);
                        }
                        want[i * (n + 3) + j] = sum;
                    }
                }
                let views = match transposed {
                    true => (View::of(&left, m).t(), View::of(&right, k).t()),
                    false => (View::of(&left, k), View::of(&right, n)),
                };
                for isa in Isa::all_available() {
                    let mut got = c.clone();
                    with_f32_kernel!(isa, K => product::<K>((&mut got, n + 3), add, views.0, views.1, [m, n, k], band));
                    assert_eq!(got, want, "{isa}, {m} x {n} x {k}, {band:?}");
                }
            }
        }
    }

    /// What is read of a triangle is what a whole product has there, and what is not read may be anything.
    #[test]
    fn triangles_have_what_products_in_bands_read() {
        for ([n, k, p], block) in
            [([64, 64, 64], 1), ([64, 33, 70], 4), ([13, 5, 7], 1), ([62, 16, 9], 2), ([63, 8, 16], 9)]
        {
            let (a, b, v) = (random::<f32>(n * k, 1), random::<f32>(n * k, 2), random::<f32>(n * p, 3));
            for isa in Isa::all_available() {
                let mut found = [vec![f32::NAN; n * n], vec![f32::NAN; n * n]];
                with_f32_kernel!(isa, K => {
                    let (a, b) = (View::of(&a, k), View::of(&b, k));
                    triangle::<K>((&mut found[0], n), a, b, [n, k], block);
                    product::<K>((&mut found[1], n), false, a, b.t(), [n, n, k], Band::All);
                });
                let [read, want] = found.map(|mut of| {
                    for (i, row) in of.chunks_exact_mut(n).enumerate() {
                        let end = (i + 1).next_multiple_of(block).min(n);
                        // As `weigh` does: what is above the diagonal is multiplied by zero.
                        row[end..].iter_mut().for_each(|v| *v *= 0.0);
                    }
                    let mut sums = [vec![0f32; n * p], vec![0f32; n * p]];
                    with_f32_kernel!(isa, K => {
                        let (of, v) = (View::of(&of, n), View::of(&v, p));
                        product::<K>((&mut sums[0], p), false, of, v, [n, p, n], Band::UpTo(block));
                        product::<K>((&mut sums[1], p), false, of.t(), v, [n, p, n], Band::From(block));
                    });
                    sums
                });
                assert_eq!(read, want, "{isa}, {n} x {k} x {p}, {block}");
            }
        }
    }
}
