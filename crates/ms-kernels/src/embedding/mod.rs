//! Embedding table look-up and its gradient.

#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::{Cpu, Element, Error, Result};
pub use ms_operands::VocabShare as Share;

mod body {
    use crate::Element;

    /// `sum += x`.
    #[inline(always)]
    pub(super) fn add_row<E: Element>(sum: &mut [f32], x: &[E]) {
        for (s, x) in sum.iter_mut().zip(x) {
            *s += x.to_f32();
        }
    }
}

instances! {
    fn add_row<E: Element>(sum: &mut [f32], x: &[E]) = body::add_row;
}

fn check_ids(op: &'static str, ids: &[i32], limit: usize) -> Result<()> {
    for (index, &id) in ids.iter().enumerate() {
        if usize::try_from(id).map_or(true, |id| id >= limit) {
            return Err(Error::Range { op, name: "ids", index, value: i64::from(id), limit });
        }
    }
    Ok(())
}

/// `out[t] = table[ids[t] − first]`, or zeros where the table does not hold the id.
///
/// | arg     | shape   | dtype | meaning            |
/// |---------|---------|-------|--------------------|
/// | `out`   | `[T,H]` | `E`   | output             |
/// | `table` | `[V,H]` | `E`   | one row per id     |
/// | `ids`   | `[T]`   | i32   | `0..share.whole`   |
/// | `h`     | -       | -     | `H`                |
/// | `share` | -       | -     | ids of the table   |
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Range`] if an id is outside the vocabulary.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    table: &[E],
    ids: &[i32],
    h: usize,
    share: Share,
) -> Result<()> {
    const OP: &str = "embedding::forward";
    let rows = expect_rows(OP, "table", h, table.len())?;
    expect_len(OP, "out", ids.len() * h, out.len())?;
    check_ids(OP, ids, share.whole)?;
    let step = crate::rms_norm::unit_rows(h);
    let out = Disjoint::new(out);
    cpu.for_each_unit(ids.len().div_ceil(step), |u| {
        let (t, n) = (u * step, step.min(ids.len() - u * step));
        // SAFETY: a unit takes its own rows.
        let out = unsafe { out.part(t * h, n * h) };
        for (i, &id) in ids[t..t + n].iter().enumerate() {
            match share.row(id, rows) {
                Some(row) => out[i * h..][..h].copy_from_slice(&table[row * h..][..h]),
                None => out[i * h..][..h].fill(E::default()),
            }
        }
    });
    Ok(())
}

/// Adds each token's gradient to its table row: `dtable[ids[t] − first] += dy[t]`, in token order; ids that the table does
/// not hold are passed over.
///
/// | arg      | shape   | dtype | meaning                          |
/// |----------|---------|-------|----------------------------------|
/// | `dtable` | `[V,H]` | f32   | added to                         |
/// | `dy`     | `[T,H]` | `E`   | gradient of the looked-up rows   |
/// | `ids`    | `[T]`   | i32   | `0..share.whole`                 |
/// | `h`      | -       | -     | `H`                              |
/// | `share`  | -       | -     | ids of the table                 |
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Range`] if an id is outside the vocabulary.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dtable: &mut [f32],
    dy: &[E],
    ids: &[i32],
    h: usize,
    share: Share,
) -> Result<()> {
    const OP: &str = "embedding::backward";
    let rows = expect_rows(OP, "dtable", h, dtable.len())?;
    expect_len(OP, "dy", ids.len() * h, dy.len())?;
    check_ids(OP, ids, share.whole)?;
    // A unit owns a band of columns of every row: no element is shared, and tokens stay in order.
    let band = h.div_ceil(cpu.threads()).next_multiple_of(64).max(64);
    let dtable = Disjoint::new(dtable);
    cpu.for_each_unit(h.div_ceil(band), |u| {
        let (first, n) = (u * band, band.min(h - u * band));
        for (t, &id) in ids.iter().enumerate() {
            let Some(row) = share.row(id, rows) else { continue };
            // SAFETY: units own different columns; within a unit one part is alive at a time.
            let sum = unsafe { dtable.part(row * h + first, n) };
            add_row(cpu.isa(), sum, &dy[t * h + first..][..n]);
        }
    });
    Ok(())
}
