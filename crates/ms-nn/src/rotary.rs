//! Tables of rotary position embeddings.

use crate::Result;
use ms_core::{DType, Device, Rotary, Tensor};
use ms_spec::{Frequencies, ModelConfig};

/// Cosines and sines `[Σ rows, R/2]` of the device's type of tables, one below the other: for each pair of a length and rows
/// the first positions of sequences of up to this length. Angles are computed in f32, as in `transformers`, and in f64 for f64
/// tables.
///
/// `layer` is any of those that share the tables. Stretchings that look at the length of a sequence see the length of theirs,
/// as upstream's `--seq-length` has it.
pub(crate) fn tables(
    config: &ModelConfig,
    layer: usize,
    device: &Device,
    lengths: &[(usize, usize)],
) -> Result<Rotary> {
    let of_lengths: Vec<Frequencies> = lengths.iter().map(|&(n, _)| config.frequencies(layer, n)).collect();
    let (rows, pairs) = (lengths.iter().map(|&(_, rows)| rows).sum(), of_lengths[0].inv_freq.len());
    let table = |value: fn(f64) -> f64| {
        let (arena, dtype, shape) = (device.arena(), device.table_dtype(), [rows, pairs]);
        if arena.is_meta() {
            return Ok(Tensor::uninit(arena, dtype, shape));
        }
        let mut values = Vec::with_capacity(rows * pairs);
        for (&(_, rows), frequencies) in lengths.iter().zip(&of_lengths) {
            for p in 0..rows {
                let angles = frequencies.inv_freq.iter().map(|&f| match dtype {
                    DType::F64 => p as f64 * f,
                    _ => f64::from(p as f32 * f as f32),
                });
                values.extend(angles.map(|a| value(a) * frequencies.magnitude));
            }
        }
        Tensor::from_reals(arena, dtype, shape, &values)
    };
    Ok(Rotary {
        cos: table(f64::cos)?,
        sin: table(f64::sin)?,
        dim: 2 * pairs,
        interleaved: config.rope_of(layer).interleaved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_formed_in_the_type_that_is_computed_in() {
        let c = ModelConfig::tiny();
        let frequencies = c.frequencies(0, 40).inv_freq;
        let exact = tables(&c, 0, &ms_reference::device(), &[(40, 40)]).unwrap();
        let rounded = tables(&c, 0, &ms_cpu::device(1).unwrap(), &[(40, 40)]).unwrap();
        let (exact, rounded) = (exact.cos.as_slice::<f64>().unwrap(), rounded.cos.as_slice::<f32>().unwrap());
        let mut differs = false;
        for (i, (&exact, &rounded)) in exact.iter().zip(rounded).enumerate() {
            let (p, f) = (i / frequencies.len(), frequencies[i % frequencies.len()]);
            assert_eq!(exact.to_bits(), (p as f64 * f).cos().to_bits(), "{p} {f}");
            assert_eq!(rounded.to_bits(), (f64::from(p as f32 * f as f32).cos() as f32).to_bits(), "{p} {f}");
            differs |= f64::from(p as f32 * f as f32) != p as f64 * f;
        }
        assert!(differs);
    }
}
