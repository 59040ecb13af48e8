//! Products with few rows, form `Nt`: each row of the weight is read once and multiplied with every row of `a`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Dims, Mat, Out};
use crate::cpu::Disjoint;
use crate::element::is_bf16;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element, Isa};
use body::CHAINS;
use half::bf16;

/// Rows of the weight that a unit takes: about this many elements.
const UNIT_ELEMENTS: usize = 64 * 1024;

/// The same where memory is prefetched, which at the end of a unit may be of another thread's.
const UNIT_AHEAD: usize = 256 * 1024;

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

    /// Where term `k` of a step is in a prepared row of `a`: for bf16 weights the even ones first, as they are extracted from
    /// a register of pairs.
    #[inline(always)]
    pub(super) fn position<E: Element>(k: usize) -> usize {
        if is_bf16::<E>() { k % 2 * LANES + k / 2 } else { k }
    }

    /// `sums[c][i] = Σ_k a[i][k] · b[c][k]` for `ROWS` rows of `a`, step by step, and `COLS` of the weight. Each is two times
    /// sixteen chains, which are combined in a fixed tree: for f32, every 32nd term; for bf16, every 64th and the one after
    /// it, the odd one first, as in the dot-product instruction.
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
                if is_bf16::<E>() {
                    let (mut even, mut odd) = ([0f32; LANES], [0f32; LANES]);
                    for l in 0..LANES {
                        even[l] = b[2 * l].to_f32();
                        odd[l] = b[2 * l + 1].to_f32();
                    }
                    for i in 0..ROWS {
                        let (a, acc) = (&a[n * ROWS + i], &mut acc[c][i][n % 2]);
                        for l in 0..LANES {
                            acc[l] = a[l].mul_add(even[l], a[LANES + l].mul_add(odd[l], acc[l]));
                        }
                    }
                    continue;
                }
                for half in 0..2 {
                    let mut wide = [0f32; LANES];
                    for l in 0..LANES {
                        wide[l] = b[half * LANES + l].to_f32();
                    }
                    for i in 0..ROWS {
                        let a = &a[n * ROWS + i][half * LANES..][..LANES];
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

    /// Row `i` of the result from the sums of `m` rows, column by column; `bias` is added in f32.
    #[inline(always)]
    fn narrowed_with<E: Element>(
        to: &mut [E],
        sums: &[f32],
        i: usize,
        m: usize,
        bias: impl Fn(usize) -> f32,
    ) {
        if m == 1 {
            for (j, (to, sum)) in to.iter_mut().zip(sums).enumerate() {
                *to = E::from_f32(sum + bias(j));
            }
            return;
        }
        for (j, (to, sums)) in to.iter_mut().zip(sums.chunks_exact(m)).enumerate() {
            *to = E::from_f32(sums[i] + bias(j));
        }
    }

    /// [`narrowed_with`] a bias, if there is one.
    #[inline(always)]
    pub(super) fn narrowed<E: Element>(to: &mut [E], sums: &[f32], i: usize, m: usize, bias: Option<&[E]>) {
        match bias {
            None => narrowed_with(to, sums, i, m, |_| 0.0),
            Some(bias) => {
                let bias = &bias[..to.len()];
                narrowed_with(to, sums, i, m, |j| bias[j].to_f32());
            }
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
            4 => rows::<E, 4>(sums, a, b, stride, k),
            5 => rows::<E, 5>(sums, a, b, stride, k),
            6 => rows::<E, 6>(sums, a, b, stride, k),
            7 => rows::<E, 7>(sums, a, b, stride, k),
            _ => rows::<E, 8>(sums, a, b, stride, k),
        }
    }
}

instances! {
    fn weight_rows<E: Element>(
        sums: &mut [f32], a: &[[f32; CHAINS]], b: &[E], stride: usize, k: usize, count: usize,
    ) = body::any_rows;
    fn narrowed<E: Element>(to: &mut [E], sums: &[f32], i: usize, m: usize, bias: Option<&[E]>) = body::narrowed;
}

/// Row `i` of the result, from the sums of `m` rows column by column, with the columns' `bias`: rounded once.
pub(crate) fn write_row<E: Element>(
    isa: Isa,
    to: &mut [E],
    sums: &[f32],
    (i, m): (usize, usize),
    bias: Option<&[E]>,
) {
    narrowed(isa, to, sums, i, m, bias);
}

/// The rows of `a`, made ready: a step of all rows, then the next one, so that what is used together stands together. Rows that
/// were whole, a page apart, fell on each other in the first-level cache.
#[derive(Clone, Copy)]
enum Few<'a> {
    /// Widened, each step in the order of [`body::position`]; with AVX2, bf16 as its `quarters` says.
    Wide(&'a [[f32; CHAINS]]),
    /// As they are, for the dot instruction.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Pairs(&'a [[bf16; CHAINS]]),
}

/// A quarter of a step, in which arrangements differ.
const QUARTER: usize = CHAINS / 4;

/// Where the quarters of step `n` of row `i` of `m` stand among rows made ready: together.
fn quarters(m: usize, n: usize, i: usize) -> [usize; 4] {
    std::array::from_fn(|q| (n * m + i) * CHAINS + q * QUARTER)
}

/// Sums of rows of the weight, by the body of the instruction set.
fn sum_rows<E: Element>(
    isa: Isa,
    sums: &mut [f32],
    a: Few<'_>,
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
    match a {
        #[cfg(target_arch = "x86_64")]
        Few::Wide(a) if is_bf16::<E>() && isa >= Isa::Avx512 => {
            // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
            unsafe { avx512::any_rows(sums, a, bytemuck::cast_slice(b), stride, k, count) }
        }
        #[cfg(target_arch = "x86_64")]
        Few::Wide(a) if is_bf16::<E>() && isa == Isa::Avx2 => {
            // SAFETY: as above.
            unsafe { avx2::any_rows(sums, a, bytemuck::cast_slice(b), stride, k, count) }
        }
        #[cfg(target_arch = "aarch64")]
        Few::Wide(a) if is_bf16::<E>() && isa >= Isa::Neon => {
            // SAFETY: as above.
            unsafe { neon::any_rows(sums, a, bytemuck::cast_slice(b), stride, k, count) }
        }
        Few::Wide(a) => weight_rows(isa, sums, a, b, stride, k, count),
        #[cfg(target_arch = "x86_64")]
        Few::Pairs(a) => {
            // SAFETY: as above; rows are left as pairs only where the instruction is.
            unsafe { avx512::any_dot_rows(sums, a, bytemuck::cast_slice(b), stride, k, count) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Few::Pairs(_) => unreachable!("rows are left as pairs only where the dot instruction is"),
    }
}

/// Computes `A[M,K] · B[N,K]ᵀ` for `M` up to [`FEW_ROWS`](super::FEW_ROWS); sizes are checked.
pub(super) fn product<E: Element>(cpu: &Cpu, dims: Dims, a: Mat<'_, E>, b: Mat<'_, E>, out: Out<'_, E>) {
    let Dims { m, k, .. } = dims;
    let padded = k.next_multiple_of(CHAINS);
    let row = |i: usize| if k > 0 { &a.data[i * a.stride..][..k] } else { &[] };
    if is_bf16::<E>() && cpu.isa() >= Isa::Avx512Bf16 {
        with_scratch(Scratch::PanelsA, m * padded, |pairs: &mut [E]| {
            pairs.fill(E::default());
            for i in 0..m {
                for (n, step) in row(i).chunks(CHAINS).enumerate() {
                    pairs[(n * m + i) * CHAINS..][..step.len()].copy_from_slice(step);
                }
            }
            multiply(cpu, dims, Few::Pairs(bytemuck::cast_slice::<E, bf16>(pairs).as_chunks().0), b, out);
        });
        return;
    }
    with_scratch(Scratch::PanelsA, m * padded, |wide: &mut [f32]| {
        wide.fill(0.0);
        for i in 0..m {
            for (n, step) in row(i).chunks(CHAINS).enumerate() {
                let mut widened = [0f32; CHAINS];
                for (t, v) in step.iter().enumerate() {
                    widened[body::position::<E>(t)] = v.to_f32();
                }
                let quarters = match cpu.isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 if is_bf16::<E>() => avx2::quarters(m, padded / CHAINS, n, i),
                    _ => quarters(m, n, i),
                };
                for (at, quarter) in quarters.into_iter().zip(widened.chunks(QUARTER)) {
                    wide[at..][..QUARTER].copy_from_slice(quarter);
                }
            }
        }
        multiply(cpu, dims, Few::Wide(wide.as_chunks().0), b, out);
    });
}

/// Multiplies rows that were made ready with all rows of the weight.
fn multiply<E: Element>(cpu: &Cpu, dims: Dims, a: Few<'_>, b: Mat<'_, E>, out: Out<'_, E>) {
    let Dims { m, n, k } = dims;
    let elements = if m > 1 { UNIT_AHEAD } else { UNIT_ELEMENTS };
    let step = (elements / k.max(1)).clamp(1, 4096);
    // `store` gets a row of the result, the first column and the sums of all rows, column by column.
    let each = |store: &(dyn Fn(usize, usize, &[f32]) + Sync)| {
        cpu.for_each_unit(n.div_ceil(step), |u| {
            let (first, rows) = (u * step, step.min(n - u * step));
            with_scratch(Scratch::Rows, rows * m, |sums: &mut [f32]| {
                let weight = &b.data[(first * b.stride).min(b.data.len())..];
                sum_rows(cpu.isa(), sums, a, weight, b.stride, k, m);
                for i in 0..m {
                    store(i, first, sums);
                }
            });
        });
    };
    match out {
        Out::Set { data, stride, bias } => {
            let data = Disjoint::new(data);
            each(&|i, first, sums| {
                // SAFETY: a unit takes its own columns of every row.
                let to = unsafe { data.part(i * stride + first, sums.len() / m) };
                write_row(cpu.isa(), to, sums, (i, m), bias.map(|bias| &bias[first..]));
            });
        }
        Out::SetF32 { data, stride } => {
            let data = Disjoint::new(data);
            each(&|i, first, sums| {
                // SAFETY: as above.
                let to = unsafe { data.part(i * stride + first, sums.len() / m) };
                for (to, sum) in to.iter_mut().zip(sums.iter().skip(i).step_by(m)) {
                    *to = *sum;
                }
            });
        }
        Out::AddF32 { data, stride } => {
            let data = Disjoint::new(data);
            each(&|i, first, sums| {
                // SAFETY: as above.
                let to = unsafe { data.part(i * stride + first, sums.len() / m) };
                for (to, sum) in to.iter_mut().zip(sums.iter().skip(i).step_by(m)) {
                    *to += *sum;
                }
            });
        }
    }
}
