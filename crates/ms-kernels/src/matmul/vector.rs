//! Products with few rows, form `Nt`: each row of the weight is read once and met by every row of `a`.

use super::{Dims, Mat, Out};
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element};

/// Up to so many rows of `a` it pays to leave the weight unpacked.
pub(super) const MAX_ROWS: usize = 4;

/// Rows of the weight that a unit takes: about this many elements.
const UNIT_ELEMENTS: usize = 64 * 1024;

mod body {
    use crate::Element;
    use crate::rms_norm::lane_sum;

    const LANES: usize = 16;
    const CHAINS: usize = 32;

    /// `sums[i] = Σ_k a[i][k] · b[k]` for `ROWS` rows of `a`, 32 chains each, added in a fixed tree.
    #[inline(always)]
    fn dots<E: Element, const ROWS: usize>(a: &[f32], b: &[E]) -> [f32; ROWS] {
        let k = b.len();
        let mut acc = [[0f32; CHAINS]; ROWS];
        let (blocks, tail) = b.as_chunks::<CHAINS>();
        for (n, b) in blocks.iter().enumerate() {
            let mut wide = [0f32; CHAINS];
            for l in 0..CHAINS {
                wide[l] = b[l].to_f32();
            }
            for i in 0..ROWS {
                let a = &a[i * k + n * CHAINS..][..CHAINS];
                for l in 0..CHAINS {
                    acc[i][l] = a[l].mul_add(wide[l], acc[i][l]);
                }
            }
        }
        let done = k - tail.len();
        for i in 0..ROWS {
            for (l, b) in tail.iter().enumerate() {
                acc[i][l] = a[i * k + done + l].mul_add(b.to_f32(), acc[i][l]);
            }
        }
        let mut sums = [0f32; ROWS];
        for i in 0..ROWS {
            let mut lanes = [0f32; LANES];
            for l in 0..LANES {
                lanes[l] = acc[i][l] + acc[i][LANES + l];
            }
            sums[i] = lane_sum(lanes);
        }
        sums
    }

    /// Rows of the weight from `b`, `stride` apart; the sums of row `j` go to `sums[j·ROWS..]`.
    #[inline(always)]
    fn rows<E: Element, const ROWS: usize>(sums: &mut [f32], a: &[f32], b: &[E], stride: usize, k: usize) {
        for (j, sums) in sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            *sums = dots::<E, ROWS>(a, &b[j * stride..][..k]);
        }
    }

    #[inline(always)]
    pub(super) fn any_rows<E: Element>(
        sums: &mut [f32],
        a: &[f32],
        b: &[E],
        stride: usize,
        k: usize,
        count: usize,
    ) {
        match count {
            1 => rows::<E, 1>(sums, a, b, stride, k),
            2 => rows::<E, 2>(sums, a, b, stride, k),
            3 => rows::<E, 3>(sums, a, b, stride, k),
            _ => rows::<E, 4>(sums, a, b, stride, k),
        }
    }
}

instances! {
    fn weight_rows<E: Element>(
        sums: &mut [f32], a: &[f32], b: &[E], stride: usize, k: usize, count: usize,
    ) = body::any_rows;
}

/// Computes `A[M,K] · B[N,K]ᵀ` for `M` up to [`MAX_ROWS`]; sizes are checked.
pub(super) fn product<E: Element>(cpu: &Cpu, dims: Dims, a: Mat<'_, E>, b: Mat<'_, E>, out: Out<'_, E>) {
    let Dims { m, n, k } = dims;
    let step = (UNIT_ELEMENTS / k.max(1)).clamp(1, 4096);
    with_scratch(Scratch::PanelsA, m * k, |wide: &mut [f32]| {
        for i in 0..m {
            for (w, v) in wide[i * k..][..k].iter_mut().zip(&a.data[(i * a.stride).min(a.data.len())..]) {
                *w = v.to_f32();
            }
        }
        let wide = &*wide;
        let each = |store: &(dyn Fn(usize, usize, f32) + Sync)| {
            cpu.for_each_unit(n.div_ceil(step), |u| {
                let (first, rows) = (u * step, step.min(n - u * step));
                with_scratch(Scratch::Rows, rows * m, |sums: &mut [f32]| {
                    let weight = &b.data[(first * b.stride).min(b.data.len())..];
                    weight_rows(cpu.isa(), sums, wide, weight, b.stride, k, m);
                    for j in 0..rows {
                        for i in 0..m {
                            store(i, first + j, sums[j * m + i]);
                        }
                    }
                });
            });
        };
        match out {
            Out::Set { data, stride, bias } => {
                let data = Disjoint::new(data);
                each(&|i, j, sum| {
                    let sum = sum + bias.map_or(0.0, |bias| bias[j].to_f32());
                    // SAFETY: a unit takes its own columns of every row.
                    (unsafe { data.part(i * stride + j, 1) })[0] = E::from_f32(sum);
                });
            }
            Out::SetF32 { data, stride } => {
                let data = Disjoint::new(data);
                // SAFETY: a unit takes its own columns of every row.
                each(&|i, j, sum| (unsafe { data.part(i * stride + j, 1) })[0] = sum);
            }
            Out::AddF32 { data, stride } => {
                let data = Disjoint::new(data);
                // SAFETY: a unit takes its own columns of every row.
                each(&|i, j, sum| (unsafe { data.part(i * stride + j, 1) })[0] += sum);
            }
        }
    });
}
