//! Products with few rows, form `Nt`: each row of the weight is read once and met by every row of `a`.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Dims, Mat, Out};
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element, Isa};
use body::CHAINS;

/// Up to so many rows of `a` it pays to leave the weight unpacked.
pub(super) const MAX_ROWS: usize = 4;

/// Rows of the weight that a unit takes: about this many elements.
const UNIT_ELEMENTS: usize = 64 * 1024;

/// Rows of the weight that are summed at once, so that several streams come from memory.
const COLUMNS: usize = 4;

mod body {
    use super::COLUMNS;
    use crate::Element;
    use crate::element::is_bf16;
    use crate::rms_norm::lane_sum;
    use std::hint::black_box;

    pub(super) const LANES: usize = 16;
    /// Terms of a step: one cache line of bf16.
    pub(super) const CHAINS: usize = 2 * LANES;

    /// Where term `k` of a step stands in a row of `a` that is made ready: beside bf16 the even ones first, as
    /// they fall out of a register of pairs.
    #[inline(always)]
    pub(super) fn position<E: Element>(k: usize) -> usize {
        if is_bf16::<E>() { k % 2 * LANES + k / 2 } else { k }
    }

    /// `sums[c][i] = Σ_k a[i][k] · b[c][k]` for `ROWS` rows of `a` and `COLS` of the weight. Each is two times sixteen chains
    /// of every 32nd term, which meet in a fixed tree.
    #[inline(always)]
    fn dots<E: Element, const ROWS: usize, const COLS: usize>(
        a: &[[f32; CHAINS]],
        b: [&[E]; COLS],
    ) -> [[f32; ROWS]; COLS] {
        let steps = a.len() / ROWS;
        let mut acc = [[[[0f32; LANES]; 2]; ROWS]; COLS];
        let blocks = b.map(|b| b.as_chunks::<CHAINS>());
        for n in 0..steps {
            for c in 0..COLS {
                let (whole, tail) = blocks[c];
                let mut last = [E::default(); CHAINS];
                let b = match whole.get(n) {
                    Some(block) => block,
                    None => {
                        last[..tail.len()].copy_from_slice(tail);
                        &last
                    }
                };
                for half in 0..2 {
                    let mut wide = [0f32; LANES];
                    for l in 0..LANES {
                        wide[l] = b[if is_bf16::<E>() { 2 * l + half } else { half * LANES + l }].to_f32();
                    }
                    for i in 0..ROWS {
                        let a = &a[i * steps + n][half * LANES..][..LANES];
                        for l in 0..LANES {
                            acc[c][i][half][l] = a[l].mul_add(wide[l], acc[c][i][half][l]);
                        }
                    }
                }
            }
        }
        // Seen as arrays in memory the lanes stay in registers above.
        acc.map(|rows| {
            rows.map(|halves| {
                let [even, odd] = black_box(halves);
                let mut lanes = [0f32; LANES];
                for l in 0..LANES {
                    lanes[l] = even[l] + odd[l];
                }
                lane_sum(lanes)
            })
        })
    }

    /// Rows of the weight from `b`, `stride` apart; the sums of row `j` go to `sums[j·ROWS..]`.
    #[inline(always)]
    fn rows<E: Element, const ROWS: usize>(
        sums: &mut [f32],
        a: &[[f32; CHAINS]],
        b: &[E],
        stride: usize,
        k: usize,
    ) {
        let row = |j: usize| &b[j * stride..][..k];
        let (groups, rest) = sums.as_chunks_mut::<ROWS>().0.as_chunks_mut::<COLUMNS>();
        let done = groups.len() * COLUMNS;
        for (g, sums) in groups.iter_mut().enumerate() {
            *sums = dots::<E, ROWS, COLUMNS>(a, std::array::from_fn(|c| row(g * COLUMNS + c)));
        }
        for (j, sums) in rest.iter_mut().enumerate() {
            [*sums] = dots::<E, ROWS, 1>(a, [row(done + j)]);
        }
    }

    #[inline(always)]
    pub(super) fn any_rows<E: Element>(
        sums: &mut [f32],
        a: &[[f32; CHAINS]],
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
        sums: &mut [f32], a: &[[f32; CHAINS]], b: &[E], stride: usize, k: usize, count: usize,
    ) = body::any_rows;
}

/// Sums of rows of the weight, by the body of the instruction set.
fn sum_rows<E: Element>(
    isa: Isa,
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[E],
    stride: usize,
    k: usize,
    count: usize,
) {
    if k == 0 {
        // A weight without columns may have any stride.
        sums.fill(0.0);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if crate::element::is_bf16::<E>() && isa >= Isa::Avx512 {
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        return unsafe { avx512::any_rows(sums, a, bytemuck::cast_slice(b), stride, k, count) };
    }
    weight_rows(isa, sums, a, b, stride, k, count);
}

/// Computes `A[M,K] · B[N,K]ᵀ` for `M` up to [`MAX_ROWS`]; sizes are checked.
pub(super) fn product<E: Element>(cpu: &Cpu, dims: Dims, a: Mat<'_, E>, b: Mat<'_, E>, out: Out<'_, E>) {
    let Dims { m, n, k } = dims;
    let step = (UNIT_ELEMENTS / k.max(1)).clamp(1, 4096);
    let padded = k.next_multiple_of(CHAINS);
    with_scratch(Scratch::PanelsA, m * padded, |wide: &mut [f32]| {
        wide.fill(0.0);
        for i in 0..m {
            let row = &mut wide[i * padded..][..padded];
            for (t, v) in a.data[(i * a.stride).min(a.data.len())..].iter().take(k).enumerate() {
                row[t / CHAINS * CHAINS + body::position::<E>(t % CHAINS)] = v.to_f32();
            }
        }
        let wide = wide.as_chunks::<CHAINS>().0;
        let each = |store: &(dyn Fn(usize, usize, f32) + Sync)| {
            cpu.for_each_unit(n.div_ceil(step), |u| {
                let (first, rows) = (u * step, step.min(n - u * step));
                with_scratch(Scratch::Rows, rows * m, |sums: &mut [f32]| {
                    let weight = &b.data[(first * b.stride).min(b.data.len())..];
                    sum_rows(cpu.isa(), sums, wide, weight, b.stride, k, m);
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
