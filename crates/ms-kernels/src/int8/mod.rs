//! Products with 8-bit weights, for inference.
//!
//! A weight `w[N,K]` becomes rows of bytes: `w[n,k] ≈ scale[n] · code`, codes from -127 to 127, `scale[n]` the row's largest
//! magnitude divided by 127. A row has [`row_bytes`]: its codes, padded to whole cache lines with 0, then a line that begins
//! with the scale in f32.
//!
//! `x` is rounded too: 64 elements at a time to 255 levels with a scale of their own. With at most [`MAX_ROWS`] rows (a
//! decoding step, bound by reading the weight), products of four neighbours are summed exactly in integers, and sixteen lanes
//! add these sums, times the scale of `x`, in f32 over ascending lines of 64; the lanes are combined in a fixed tree. With
//! more rows, the products of a whole line are summed in integers, and one chain adds them (`many`).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod body;
mod many;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::matmul::Dims;
use crate::matmul::vector::write_row;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element, Isa, Result};
use body::{Few, LINE, Line};
pub use ms_operands::int8_row_bytes as row_bytes;

/// Up to this many rows of `x`, the weight is read unpacked.
pub const MAX_ROWS: usize = 8;

/// Rows of the weight that a unit takes: about this many bytes.
const UNIT_BYTES: usize = 128 * 1024;

instances! {
    fn encode<E: Element>(bytes: &mut [u8], row: &[E]) = body::encode;
    fn few_rows<E: Element>(lines: &mut [Line], scales: &mut [f32], x: &[E], i: usize, m: usize) = body::few_rows;
    fn any_products(sums: &mut [f32], x: Few<'_>, rows: &[u8], stride: usize) = body::products;
}

/// Rounds a weight to eight bits, each row by its largest magnitude.
///
/// | arg | shape | dtype | meaning |
/// |-----|-------|-------|---------|
/// | `bytes` | `[N,` [`row_bytes`]`(K)]` | u8 | result |
/// | `w` | `[N,K]` | `E` | weight |
///
/// A row with a NaN or infinite value gets a NaN scale.
///
/// # Errors
/// [`crate::Error::Shape`] if a size does not fit.
pub fn quantize<E: Element>(cpu: &Cpu, bytes: &mut [u8], w: &[E], n: usize, k: usize) -> Result<()> {
    expect_len("int8::quantize", "w", n * k, w.len())?;
    expect_len("int8::quantize", "bytes", n * row_bytes(k), bytes.len())?;
    let width = row_bytes(k);
    cpu.for_each_row(n, 16, (bytes, width), |row, bytes| {
        encode(cpu.isa(), bytes, &w[row * k..][..k]);
    });
    Ok(())
}

/// `y[M,N] = x[M,K] · w[N,K]ᵀ (+ bias[N])` for a weight of [`quantize`]; see the [module](self) for the order of sums.
///
/// | arg | shape | dtype | meaning |
/// |-----|-------|-------|---------|
/// | `y` | `[M,N]` | `E` | result, rounded once |
/// | `x` | `[M,K]` | `E` | activations |
/// | `bytes` | `[N,` [`row_bytes`]`(K)]` | u8 | weight |
/// | `bias` | `[N]` | `E` | added in f32 |
///
/// # Errors
/// [`crate::Error::Shape`] if a size does not fit.
pub fn linear<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    x: &[E],
    bytes: &[u8],
    bias: Option<&[E]>,
    dims: Dims,
) -> Result<()> {
    const OP: &str = "int8::linear";
    let Dims { m, n, k } = dims;
    expect_len(OP, "y", m * n, y.len())?;
    expect_len(OP, "x", m * k, x.len())?;
    expect_len(OP, "bytes", n * row_bytes(k), bytes.len())?;
    if let Some(bias) = bias {
        expect_len(OP, "bias", n, bias.len())?;
    }
    if m > MAX_ROWS {
        many::linear(cpu, y, x, bytes, bias, dims);
        return Ok(());
    }
    let (lines, width) = (k.div_ceil(LINE), row_bytes(k));
    with_scratch(Scratch::PanelsA, m * lines, |codes: &mut [Line]| {
        with_scratch(Scratch::PanelsB, m * lines, |scales: &mut [f32]| {
            for i in 0..m {
                few_rows(cpu.isa(), codes, scales, &x[i * k..][..k], i, m);
            }
            let few = Few { lines: codes, scales };
            let step = (UNIT_BYTES / width).clamp(1, 4096);
            let y = Disjoint::new(y);
            cpu.for_each_unit(n.div_ceil(step), |u| {
                let (first, rows) = (u * step, step.min(n - u * step));
                with_scratch(Scratch::Rows, rows * m, |sums: &mut [f32]| {
                    products(cpu.isa(), sums, few, &bytes[first * width..][..rows * width], width, m);
                    for i in 0..m {
                        // SAFETY: a unit takes its own columns of every row.
                        let y = unsafe { y.part(i * n + first, rows) };
                        write_row(cpu.isa(), y, sums, (i, m), bias.map(|bias| &bias[first..]));
                    }
                });
            });
        });
    });
    Ok(())
}

/// `sums[row, i] = x[i] · weight[row]` by the body of the instruction set, for `m` rows of `x`.
fn products(isa: Isa, sums: &mut [f32], x: Few<'_>, rows: &[u8], width: usize, m: usize) {
    if m == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the instruction sets are there: a `Cpu` is only made for one that this processor has.
        return unsafe { avx512::products(sums, x, rows, width, m) };
    }
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 {
        // SAFETY: as above.
        return unsafe { avx2::products(sums, x, rows, width, m) };
    }
    #[cfg(target_arch = "aarch64")]
    if isa >= Isa::Neon && neon::is_available() {
        // SAFETY: as above.
        return unsafe { neon::products(sums, x, rows, width, m) };
    }
    for (sums, row) in sums.chunks_exact_mut(m).zip(rows.chunks_exact(width)) {
        any_products(isa, sums, x, row, width);
    }
}
