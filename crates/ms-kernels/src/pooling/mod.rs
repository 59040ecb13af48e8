//! Pooling of windows of tokens into one entry each (the compressors of DeepSeek-V4's attention).
//!
//! A window has `ratio` tokens, its slots. Without overlap an entry is pooled from its own window; with overlap also from the
//! preceding window, using the first `D` columns of its tokens and the last `D` columns of the entry's own tokens.

#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::exp;
use crate::isa::instances;
use crate::{Cpu, Element, Error, Result};
pub use ms_operands::{Pooling, Window};

mod body {
    use super::exp;
    use crate::Element;

    const LANES: usize = 8;

    /// Rows of one slot: values, gates, and what is added to the gates.
    pub(super) type Slot<'a, E> = (&'a [E], &'a [E], &'a [f32]);

    #[inline(always)]
    fn block<E: Element>(
        slots: &[Slot<'_, E>],
        at: usize,
        n: usize,
        mut each: impl FnMut(usize, usize, f32, f32),
    ) -> [f32; LANES] {
        let mut max = [f32::NEG_INFINITY; LANES];
        for (_, gate, add) in slots {
            for l in 0..n {
                let g = gate[at + l].to_f32() + add[at + l];
                max[l] = if g > max[l] { g } else { max[l] };
            }
        }
        let (mut sum, mut mixed) = ([0f32; LANES], [0f32; LANES]);
        for (value, gate, add) in slots {
            for l in 0..n {
                let p = exp(gate[at + l].to_f32() + add[at + l] - max[l]);
                sum[l] += p;
                mixed[l] = p.mul_add(value[at + l].to_f32(), mixed[l]);
            }
        }
        for l in 0..n {
            mixed[l] /= sum[l];
        }
        for (s, (_, gate, add)) in slots.iter().enumerate() {
            for l in 0..n {
                each(s, l, exp(gate[at + l].to_f32() + add[at + l] - max[l]) / sum[l], mixed[l]);
            }
        }
        mixed
    }

    #[inline(always)]
    pub(super) fn forward<E: Element>(out: &mut [E], slots: &[Slot<'_, E>]) {
        for at in (0..out.len()).step_by(LANES) {
            let n = LANES.min(out.len() - at);
            let mixed = block(slots, at, n, |_, _, _, _| {});
            for l in 0..n {
                out[at + l] = E::from_f32(mixed[l]);
            }
        }
    }

    /// Gradients by each slot's values and gates, `[slots, D]` each.
    #[inline(always)]
    pub(super) fn backward<E: Element>(
        dvalue: &mut [f32],
        dgate: &mut [f32],
        dout: &[E],
        slots: &[Slot<'_, E>],
    ) {
        let dim = dout.len();
        for at in (0..dim).step_by(LANES) {
            let n = LANES.min(dim - at);
            block(slots, at, n, |s, l, p, mixed| {
                let d = p * dout[at + l].to_f32();
                dvalue[s * dim + at + l] = d;
                dgate[s * dim + at + l] = d * (slots[s].0[at + l].to_f32() - mixed);
            });
        }
    }
}

instances! {
    fn forward_window<E: Element>(out: &mut [E], slots: &[body::Slot<'_, E>]) = body::forward;
    fn backward_window<E: Element>(
        dvalue: &mut [f32], dgate: &mut [f32], dout: &[E], slots: &[body::Slot<'_, E>],
    ) = body::backward;
}

/// Row and first column of every slot of a window, in the order of tokens.
fn slots(shape: &Pooling, window: Window) -> impl Iterator<Item = (usize, usize, usize)> {
    let (ratio, own) = (shape.ratio, if shape.overlap { shape.dim } else { 0 });
    let before = window.before.filter(|_| shape.overlap);
    let earlier = before.into_iter().flat_map(move |first| (0..ratio).map(move |i| (first + i, i, 0)));
    earlier.chain((0..ratio).map(move |i| (window.own + i, i, own)))
}

fn rows<'a, E>(kv: &'a [E], gate: &'a [E], ape: &'a [f32], s: &Pooling, w: Window) -> Vec<body::Slot<'a, E>> {
    let (width, dim) = (s.width(), s.dim);
    slots(s, w)
        .map(|(row, i, column)| {
            let at = row * width + column;
            (&kv[at..at + dim], &gate[at..at + dim], &ape[i * width + column..][..dim])
        })
        .collect()
}

fn check<E>(
    op: &'static str,
    kv: &[E],
    gate: &[E],
    ape: &[f32],
    windows: &[Window],
    shape: &Pooling,
) -> Result<()> {
    for (name, got) in [("ratio", shape.ratio), ("dim", shape.dim)] {
        if got == 0 {
            return Err(Error::Size { op, name, want: "at least 1", got });
        }
    }
    let limit = expect_rows(op, "kv", shape.width(), kv.len())?;
    expect_len(op, "gate", kv.len(), gate.len())?;
    expect_len(op, "ape", shape.ratio * shape.width(), ape.len())?;
    for (index, w) in windows.iter().enumerate() {
        for first in std::iter::once(w.own).chain(w.before) {
            let value = i64::try_from(first).unwrap_or(i64::MAX);
            if first.saturating_add(shape.ratio) > limit {
                return Err(Error::Range { op, name: "windows", index, value, limit });
            }
        }
    }
    Ok(())
}

/// One entry for each window: `out[w,d] = Σ_s softmax_s(gate[s,d] + ape[s,d]) · kv[s,d]` over its slots.
///
/// | arg       | shape        | dtype | meaning                                                     |
/// |-----------|--------------|-------|-------------------------------------------------------------|
/// | `out`     | `[W,D]`      | `E`   | output                                                      |
/// | `kv`      | `[R,width]`  | `E`   | what tokens give; `width` is [`Pooling::width`]             |
/// | `gate`    | `[R,width]`  | `E`   | how much of it                                              |
/// | `ape`     | `[ratio,width]` | f32 | added to the gates by the token's place in its window       |
/// | `windows` | `[W]`        | -     | rows of `kv` that each entry is made of                     |
///
/// # Errors
/// [`Error::Shape`], [`Error::Size`] or [`Error::Range`] if an operand does not fit.
///
/// # Source
/// DeepSeek-V4 in transformers 5.23, `modeling_deepseek_v4.py`, both compressors.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    kv: &[E],
    gate: &[E],
    ape: &[f32],
    windows: &[Window],
    shape: &Pooling,
) -> Result<()> {
    const OP: &str = "pooling::forward";
    check(OP, kv, gate, ape, windows, shape)?;
    expect_len(OP, "out", windows.len() * shape.dim, out.len())?;
    cpu.for_each_row(windows.len(), 1, (out, shape.dim), |w, out| {
        forward_window(cpu.isa(), out, &rows(kv, gate, ape, shape, windows[w]));
    });
    Ok(())
}

/// Gradients of [`forward`] with respect to `kv` and `gate` (0 where no window reads), and that with respect to `ape`, added
/// to `dape`.
///
/// No two windows may read the same columns of a row, as those of a sequence do not.
///
/// # Errors
/// As [`forward`]; [`Error::Range`] naming a window that reads what an earlier one reads.
pub fn backward<E: Element>(
    cpu: &Cpu,
    (dkv, dgate, dape): (&mut [E], &mut [E], &mut [f32]),
    dout: &[E],
    kv: &[E],
    gate: &[E],
    ape: &[f32],
    windows: &[Window],
    shape: &Pooling,
) -> Result<()> {
    const OP: &str = "pooling::backward";
    check(OP, kv, gate, ape, windows, shape)?;
    let (width, dim) = (shape.width(), shape.dim);
    expect_len(OP, "dkv", kv.len(), dkv.len())?;
    expect_len(OP, "dgate", kv.len(), dgate.len())?;
    expect_len(OP, "dape", ape.len(), dape.len())?;
    expect_len(OP, "dout", windows.len() * dim, dout.len())?;
    let mut read = vec![false; 2 * kv.len() / width.max(1)];
    for (index, w) in windows.iter().enumerate() {
        for (row, _, column) in slots(shape, *w) {
            if std::mem::replace(&mut read[2 * row + usize::from(column > 0)], true) {
                let (value, limit) = (row as i64, kv.len() / width);
                return Err(Error::Range { op: OP, name: "windows read again", index, value, limit });
            }
        }
    }
    dkv.fill(E::default());
    dgate.fill(E::default());
    let gradients = |w: usize| {
        let slots = rows(kv, gate, ape, shape, windows[w]);
        let (mut dvalue, mut dg) = (vec![0f32; slots.len() * dim], vec![0f32; slots.len() * dim]);
        backward_window(cpu.isa(), &mut dvalue, &mut dg, &dout[w * dim..][..dim], &slots);
        (dvalue, dg)
    };
    let (dkv, dgate) = (Disjoint::new(dkv), Disjoint::new(dgate));
    cpu.for_each_unit(windows.len(), |w| {
        let (dvalue, dg) = gradients(w);
        for (s, (row, _, column)) in slots(shape, windows[w]).enumerate() {
            let at = row * width + column;
            // SAFETY: no two windows read the same columns of a row; that was checked above.
            let (to_value, to_gate) = unsafe { (dkv.part(at, dim), dgate.part(at, dim)) };
            to_value.iter_mut().zip(&dvalue[s * dim..]).for_each(|(o, d)| *o = E::from_f32(*d));
            to_gate.iter_mut().zip(&dg[s * dim..]).for_each(|(o, d)| *o = E::from_f32(*d));
        }
    });
    cpu.sum_rows(dape, windows.len(), |w, sum| {
        let (_, dg) = gradients(w);
        for (s, (_, i, column)) in slots(shape, windows[w]).enumerate() {
            let to = &mut sum[i * width + column..][..dim];
            to.iter_mut().zip(&dg[s * dim..]).for_each(|(o, d)| *o += d);
        }
    });
    Ok(())
}
