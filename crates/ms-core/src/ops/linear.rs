//! Linear layers.

use super::layout::op;
use super::only;
use crate::shard_state::{self, InputStates, OutputState};
use crate::{
    BackwardCx, Columns, Digit, Error, Grads, Graph, Op, Result, Saved, Shape, Tensor, TensorSpec, Var,
};

struct Linear {
    x: Saved,
    w: Saved,
    /// At most a sixteenth as many outputs as inputs.
    few: bool,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn shard_state(&self, _: Digit, inputs: InputStates<'_>) -> OutputState {
        shard_state::linear_layer(inputs)
    }

    /// With few outputs, as a router has.
    fn light(&self) -> bool {
        self.few
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let Self { x, w, .. } = *self;
        let dy = only(dys);
        let device = cx.device.clone();
        let w = w.get(&device)?;
        let dx = device.linear_dx(&dy, &w)?;
        cx.with_gradient(2, |db| db.map_or(Ok(()), |db| device.linear_db(db, &dy)))?;
        let x = x.get(&device)?;
        let dw = cx.weight_gradient(1, &w, move |device, dw| device.linear_dw(dw, &dy, &x))?;
        Ok(vec![Some(dx), dw, None])
    }
}

/// `y[T,N] = x[T,K] · w[N,K]ᵀ (+ bias[N])`. Saves `x` and `w`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn linear(g: &mut Graph, x: &Var, w: &Var, bias: Option<&Var>) -> Result<Var> {
    let y = g.device().linear(x.value(), w.value(), bias.map(Var::value))?;
    let none = g.constant(y.clone());
    let inputs = [x, w, bias.unwrap_or(&none)];
    let (outputs, width) = w.value().as_matrix();
    Ok(g.apply(y, &inputs, || Box::new(Linear { x: x.saved(), w: w.saved(), few: 16 * outputs <= width })))
}

struct AddBias {
    bias: TensorSpec,
}
op!(AddBias, "add_bias", |op, cx, dy| {
    let again = dy.clone();
    let db = cx.weight_gradient(1, op.bias, move |device, db| device.linear_db(db, &again))?;
    Ok(vec![Some(dy), db])
});

/// `y[T,N] = x[T,N] + bias[N]`: the bias of a layer whose product is summed over ranks first. Saves the bias's shape.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn add_bias(g: &mut Graph, x: &Var, bias: &Var) -> Result<Var> {
    let y = g.device().add_bias(x.value(), bias.value())?;
    Ok(g.apply(y, &[x, bias], || Box::new(AddBias { bias: bias.value().into() })))
}

struct GroupedLinear {
    x: Saved,
    w: Saved,
    groups: usize,
}
op!(GroupedLinear, "grouped_linear", |op, cx, dy| {
    let GroupedLinear { x, w, groups } = op;
    let device = cx.device.clone();
    let (x, w) = (x.get(&device)?, w.get(&device)?);
    let (rows, k) = w.as_matrix();
    let n = rows / groups;
    let part =
        |t: &Tensor, g: usize, width| device.columns(t, &[Columns::Copy { start: g * width, len: width }]);
    let mut dxs = Vec::with_capacity(groups);
    for g in 0..groups {
        dxs.push(device.linear_dx(&part(&dy, g, n)?, &w.rows(g * n, n)?)?);
    }
    let dx = device.concat(&dxs.iter().collect::<Vec<_>>())?;
    let dw = cx.weight_gradient(1, &w, move |device, mut dw| {
        for g in 0..groups {
            let [dy, x] = [(&dy, n), (&x, k)]
                .map(|(t, width)| device.columns(t, &[Columns::Copy { start: g * width, len: width }]));
            device.linear_dw(dw.part(g * n * k, [n, k])?, &dy?, &x?)?;
        }
        Ok(())
    })?;
    Ok(vec![Some(dx), dw])
});

/// A linear layer of `groups` blocks: the columns of `x[T,G·K]` of each group through its rows of `w[G·N,K]`, side by side:
/// `[T,G·N]`. Saves `x` and `w`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn grouped_linear(g: &mut Graph, x: &Var, w: &Var, groups: usize) -> Result<Var> {
    let (device, (rows, k)) = (g.device().clone(), w.value().as_matrix());
    let (tokens, width) = x.value().as_matrix();
    if groups == 0 || !rows.is_multiple_of(groups) || width != groups * k {
        let want = Shape::new(&[tokens, groups * k]);
        return Err(Error::Shape { op: "grouped_linear", name: "x", want, got: x.value().shape() });
    }
    let n = rows / groups;
    let mut parts = Vec::with_capacity(groups);
    for i in 0..groups {
        let x = device.columns(x.value(), &[Columns::Copy { start: i * k, len: k }])?;
        parts.push(device.linear(&x, &w.value().rows(i * n, n)?, None)?);
    }
    let y = device.concat(&parts.iter().collect::<Vec<_>>())?;
    Ok(g.apply(y, &[x, w], || Box::new(GroupedLinear { x: x.saved(), w: w.saved(), groups })))
}
