//! What all ranks hold as one tensor, in rank order, whatever the transport: sums, maxima, and one after the other.

use crate::{ReduceOp, Result, volume};
use half::bf16;
use ms_core::{Arena, DType, Scalar, Tensor};

/// The elements of `all`, one tensor after the other, as a tensor of this shape.
pub(crate) fn joined(arena: &Arena, all: &[Tensor], shape: &[usize]) -> Result<Tensor> {
    let mut out = Tensor::uninit(arena, all[0].dtype(), shape);
    if all[0].is_meta() {
        return Ok(out);
    }
    let mut rest = out.bytes_mut()?;
    for t in all {
        let (to, after) = rest.split_at_mut(volume::bytes(t));
        to.copy_from_slice(t.bytes());
        rest = after;
    }
    Ok(out)
}

/// Elements `start..start + len` of the reduction of `all`, in rank order.
pub(crate) fn reduce(
    arena: &Arena,
    all: &[Tensor],
    start: usize,
    len: usize,
    op: ReduceOp,
) -> Result<Tensor> {
    fn fold<E: Scalar>(
        arena: &Arena,
        all: &[Tensor],
        start: usize,
        len: usize,
        f: impl Fn(E, E) -> E,
    ) -> Result<Tensor> {
        let whole = len == all[0].numel();
        let shape = if whole { all[0].shape() } else { [len].into() };
        let mut out = Tensor::uninit(arena, E::DTYPE, shape);
        let sum = out.as_mut_slice::<E>()?;
        sum.copy_from_slice(&all[0].as_slice::<E>()?[start..start + len]);
        for t in &all[1..] {
            for (s, &x) in sum.iter_mut().zip(&t.as_slice::<E>()?[start..start + len]) {
                *s = f(*s, x);
            }
        }
        Ok(out)
    }
    let max = op == ReduceOp::Max;
    match all[0].dtype() {
        DType::F32 => fold::<f32>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::F64 => fold::<f64>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::I64 => fold::<i64>(arena, all, start, len, |a, b| if max { a.max(b) } else { a + b }),
        DType::Bf16 => {
            let mut out = Tensor::uninit(arena, DType::Bf16, [len]);
            let inputs: Vec<&[bf16]> = all.iter().map(Tensor::as_slice).collect::<ms_core::Result<_>>()?;
            for (i, o) in out.as_mut_slice::<bf16>()?.iter_mut().enumerate() {
                let values = inputs.iter().map(|x| x[start + i].to_f32());
                let first = if max { f32::NEG_INFINITY } else { 0.0 };
                *o = bf16::from_f32(values.fold(first, |a, b| if max { a.max(b) } else { a + b }));
            }
            Ok(if len == all[0].numel() { out.reshape(all[0].shape())? } else { out })
        }
        dtype => Err(ms_core::Error::Unsupported { op: "reduce", dtype }.into()),
    }
}
