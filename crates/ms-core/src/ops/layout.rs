//! Views, column maps, casts and scaling.

use super::only;
use crate::{
    BackwardCx, Columns, DType, Error, Graph, Noise, Op, Result, Saved, Shape, Tensor, TensorSpec, Var,
};
use std::sync::Arc;

/// Implements [`Op`] for a type with one gradient per input, given as an expression of `self`, `cx` and `dy`; with a rule of
/// [`shard_state`] if it is not [`shard_state::nonlinear`].
macro_rules! op {
    ($type:ty, $name:literal, |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        op!($type, $name, nonlinear, |$this, $cx, $dy| $body);
    };
    ($type:ty, $name:literal, $rule:ident, |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        op!($type, $name, (|_, inputs| crate::shard_state::$rule(inputs)), |$this, $cx, $dy| $body);
    };
    // In which tokens see some of the inputs.
    ($type:ty, $name:literal, sees $seen:expr, |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        op!(
            $type,
            $name,
            (|along, inputs| crate::shard_state::token_mixing(along, inputs, $seen)),
            |$this, $cx, $dy| $body
        );
    };
    // Its backward is little work compared with a product.
    ($type:ty, $name:literal, light $rule:ident, |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        op!($type, $name, (|_, inputs| crate::shard_state::$rule(inputs)), true, |$this, $cx, $dy| $body);
    };
    ($type:ty, $name:literal, ($rule:expr), |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        op!($type, $name, ($rule), false, |$this, $cx, $dy| $body);
    };
    ($type:ty, $name:literal, ($rule:expr), $light:literal, |$this:ident, $cx:ident, $dy:ident| $body:expr) => {
        impl Op for $type {
            fn name(&self) -> &'static str {
                $name
            }

            fn shard_state(
                &self,
                along: crate::Digit,
                inputs: crate::shard_state::InputStates<'_>,
            ) -> crate::shard_state::OutputState {
                use crate::shard_state::{InputStates, OutputState};
                let rule: fn(crate::Digit, InputStates<'_>) -> OutputState = $rule;
                rule(along, inputs)
            }

            fn light(&self) -> bool {
                $light
            }

            fn backward(
                self: Box<Self>,
                $cx: &mut BackwardCx<'_>,
                dys: crate::Grads,
            ) -> Result<crate::Grads> {
                let ($this, $dy) = (*self, only(dys));
                $body
            }
        }
    };
}
pub(super) use op;

struct Reshape(Shape);
op!(Reshape, "reshape", light additive, |op, _cx, dy| Ok(vec![Some(dy.reshape(op.0)?)]));

/// The same elements under another shape. Saves nothing.
///
/// # Errors
/// If the number of elements differs.
pub fn reshape(g: &mut Graph, x: &Var, shape: impl Into<Shape>) -> Result<Var> {
    let before = x.value().shape();
    let y = x.value().reshape(shape)?;
    Ok(g.apply(y, &[x], || Box::new(Reshape(before))))
}

struct Cast(TensorSpec);
op!(Cast, "cast", light additive, |op, cx, dy| {
    let computed = cx.weight_gradient(0, op.0, move |device, grad| {
        let dy = device.cast(&dy, grad.dtype())?;
        device.accumulate(grad, &dy, 1.0)
    })?;
    Ok(vec![computed])
});

/// `x` with elements of another type; a parameter's gradient goes to its f32 main gradient unrounded. Saves `x`'s shape.
///
/// # Errors
/// If there is no such conversion.
pub fn cast(g: &mut Graph, x: &Var, dtype: DType) -> Result<Var> {
    if x.value().dtype() == dtype {
        return Ok(x.clone());
    }
    let y = g.device().cast(x.value(), dtype)?;
    Ok(g.apply(y, &[x], || Box::new(Cast(x.value().into()))))
}

struct Scale(f64);
op!(Scale, "scale", light additive, |op, cx, dy| Ok(vec![Some(scaled(cx.device, &dy, op.0)?)]));

fn scaled(device: &crate::Device, x: &Tensor, factor: f64) -> Result<Tensor> {
    let mut y = x.copied()?;
    device.scale(&mut y, factor)?;
    Ok(y)
}

/// `factor · x`. Saves nothing; a factor of 1 records nothing.
///
/// # Errors
/// If the element type has no kernel.
pub fn scale(g: &mut Graph, x: &Var, factor: f64) -> Result<Var> {
    if factor == 1.0 {
        return Ok(x.clone());
    }
    let y = scaled(g.device(), x.value(), factor)?;
    Ok(g.apply(y, &[x], || Box::new(Scale(factor))))
}

struct Noisy {
    keys: Arc<[u64]>,
    site: u64,
    noise: Noise,
}
op!(Noisy, "noise", light nonlinear, |op, cx, dy| Ok(vec![Some(cx.device.noise(&dy, &op.keys, op.site, op.noise)?)]));

/// `x[T,W]` with every value multiplied by what the key of its token, the place `site` of the model and its column draw.
/// Saves the keys.
///
/// # Errors
/// If there are not as many keys as rows.
pub fn noise(g: &mut Graph, x: &Var, keys: &Arc<[u64]>, site: u64, noise: Noise) -> Result<Var> {
    let y = g.device().noise(x.value(), keys, site, noise)?;
    Ok(g.apply(y, &[x], || Box::new(Noisy { keys: keys.clone(), site, noise })))
}

struct TakeColumns {
    width: usize,
    runs: Arc<[Columns]>,
}
op!(TakeColumns, "columns", light additive, |op, cx, dy| Ok(vec![Some(
    cx.device.columns_backward(&dy, op.width, &op.runs)?
)]));

/// The runs of columns of each row of `x[T,W]`, one after the other. Saves nothing.
///
/// # Errors
/// If a run reads outside the row.
pub fn columns(g: &mut Graph, x: &Var, runs: &Arc<[Columns]>) -> Result<Var> {
    let width = x.value().as_matrix().1;
    let y = g.device().columns(x.value(), runs)?;
    Ok(g.apply(y, &[x], || Box::new(TakeColumns { width, runs: runs.clone() })))
}

/// `x[T,W]` cut into parts of `widths` columns.
///
/// # Errors
/// If the widths do not add up to `W`.
pub fn split<const N: usize>(g: &mut Graph, x: &Var, widths: [usize; N]) -> Result<[Var; N]> {
    let (all, width) = (widths.iter().sum(), x.value().as_matrix().1);
    if all != width {
        return Err(Error::Range { what: "parts of a row", start: 0, end: all, len: width });
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(N);
    for len in widths {
        parts.push(columns(g, x, &[Columns::Copy { start, len }].into())?);
        start += len;
    }
    Ok(parts.try_into().expect("one part per width"))
}

struct Concat(Vec<usize>);
op!(Concat, "concat", light additive, |op, cx, dy| {
    let (mut start, width) = (0, dy.as_matrix().1);
    op.0.iter()
        .map(|&len| {
            let run = Columns::Copy { start, len };
            start += len;
            // A single part is the whole.
            if len == width { Ok(Some(dy.clone())) } else { cx.device.columns(&dy, &[run]).map(Some) }
        })
        .collect()
});

/// Concatenates matrices with the same number of rows along the columns. Saves their widths.
///
/// # Errors
/// If rows or element types differ.
pub fn concat(g: &mut Graph, parts: &[&Var]) -> Result<Var> {
    let tensors: Vec<&Tensor> = parts.iter().map(|p| p.value()).collect();
    let y = g.device().concat(&tensors)?;
    Ok(g.apply(y, parts, || Box::new(Concat(tensors.iter().map(|t| t.as_matrix().1).collect()))))
}

struct Part {
    whole: TensorSpec,
    start: usize,
}
op!(Part, "part", light additive, |op, cx, dy| {
    let Part { whole, start } = op;
    let dw = cx.weight_gradient(0, whole, move |device, mut grad| {
        let dy = device.cast(&dy, dy.dtype().wide())?;
        device.accumulate(grad.part(start, dy.shape())?, &dy, 1.0)
    })?;
    Ok(vec![dw])
});

/// Elements `start..` of the flattened weight `w` under `shape`: the part of a replicated weight that one of several ranks
/// uses. Saves the shape of `w`.
///
/// # Errors
/// If they are not all there.
pub fn part(g: &mut Graph, w: &Var, start: usize, shape: impl Into<Shape>) -> Result<Var> {
    let y = w.value().slice_flat(start, shape)?;
    Ok(g.apply(y, &[w], || Box::new(Part { whole: w.value().into(), start })))
}

struct ScaleColumns {
    x: Saved,
    s: Saved,
}
op!(ScaleColumns, "scale_columns", product, |op, cx, dy| {
    let (x, s) = (op.x.get(cx.device)?, op.s.get(cx.device)?);
    let dx = cx.device.scale_columns(&dy, &s)?;
    let ds = cx.weight_gradient(1, &s, move |device, grad| device.scale_columns_backward(grad, &dy, &x))?;
    Ok(vec![Some(dx), ds])
});

/// `y[t,w] = x[t,w] · s[w]`. Saves both.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn scale_columns(g: &mut Graph, x: &Var, s: &Var) -> Result<Var> {
    let y = g.device().scale_columns(x.value(), s.value())?;
    Ok(g.apply(y, &[x, s], || Box::new(ScaleColumns { x: x.saved(), s: s.saved() })))
}

struct UnitRows(Saved);
op!(UnitRows, "unit_rows", |op, cx, dy| {
    let x = op.0.get(cx.device)?;
    let like = TensorSpec::from(&x);
    Ok(vec![cx.weight_gradient(0, like, move |device, grad| device.unit_rows_backward(grad, &dy, &x))?])
});

/// Rows scaled to length 1. Saves `x`.
///
/// # Errors
/// If the element type has no kernel.
pub fn unit_rows(g: &mut Graph, x: &Var) -> Result<Var> {
    let y = g.device().unit_rows(x.value())?;
    Ok(g.apply(y, &[x], || Box::new(UnitRows(x.saved()))))
}
