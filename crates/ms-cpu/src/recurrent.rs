//! Recurrent mixers on the CPU.

use super::{CpuBackend, expect, op_span, size};
use ms_core::{DType, DeltaRule, Mamba3Shape, RecurrentBackend, Result, Segment, StateSpace, Tensor};
use ms_kernels::convolution::{self, Convolution};
use ms_kernels::{delta_rule, mamba3, state_space};

fn slice(t: Option<&Tensor>) -> Result<&[f32]> {
    t.map_or(Ok(&[] as &[f32]), Tensor::as_slice)
}

fn slice_mut(t: Option<&mut Tensor>) -> Result<&mut [f32]> {
    match t {
        Some(t) => t.as_mut_slice(),
        None => Ok(&mut []),
    }
}

/// The elements of several operands.
fn slices<const N: usize>(tensors: [&Tensor; N]) -> Result<[&[f32]; N]> {
    let mut slices = [&[] as &[f32]; N];
    for (slice, t) in slices.iter_mut().zip(tensors) {
        *slice = t.as_slice()?;
    }
    Ok(slices)
}

/// Those of several results.
fn slices_mut<const N: usize>(tensors: &mut [Tensor; N]) -> Result<[&mut [f32]; N]> {
    let mut slices = [(); N].map(|()| &mut [] as &mut [f32]);
    for (slice, t) in slices.iter_mut().zip(tensors) {
        *slice = t.as_mut_slice()?;
    }
    Ok(slices)
}

fn scan<'a>(
    inputs: [&'a Tensor; 4],
    weights: [&'a Tensor; 3],
    segments: &'a [Segment],
    shape: &StateSpace,
) -> Result<state_space::Scan<'a>> {
    let ([x, b, c, dt], [a_log, d, dt_bias]) = (slices(inputs)?, slices(weights)?);
    Ok(state_space::Scan { x, b, c, dt, a_log, d, dt_bias, segments, shape: *shape })
}

fn delta<'a>(
    inputs: [&'a Tensor; 5],
    segments: &'a [Segment],
    shape: &DeltaRule,
) -> Result<delta_rule::Scan<'a>> {
    let [q, k, v, g, beta] = slices(inputs)?;
    Ok(delta_rule::Scan { q, k, v, g, beta, segments, shape: *shape })
}

fn mamba3_scan<'a>(
    operands: [&'a Tensor; 15],
    segments: &'a [Segment],
    shape: &Mamba3Shape,
) -> Result<mamba3::Scan<'a>> {
    Ok(mamba3::Scan { operands: mamba3::Operands::of(slices(operands)?), segments, shape: *shape })
}

impl CpuBackend {
    fn zeros_like(&self, t: &Tensor) -> Tensor {
        Tensor::zeros(&self.arena, DType::F32, t.shape())
    }
}

impl RecurrentBackend for CpuBackend {
    fn convolution(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        history: Option<&mut Tensor>,
        segments: &[Segment],
    ) -> Result<Tensor> {
        let mut y = self.uninit(DType::F32, &x.shape());
        op_span!("convolution", 2 * x.numel() * (w.numel() / x.as_matrix().1.max(1)), size(&[x, &y]));
        let (x, w, b, channels) = (x.as_slice()?, w.as_slice()?, slice(b)?, x.as_matrix().1);
        let last = {
            let history = slice(history.as_deref())?;
            let call = Convolution { x, w, b, history, segments, channels };
            convolution::forward(&self.cpu, y.as_mut_slice()?, &call)?;
            if history.is_empty() { None } else { Some(convolution::last_inputs(&call)?) }
        };
        if let (Some(history), Some(last)) = (history, last) {
            history.as_mut_slice()?.copy_from_slice(&last);
        }
        Ok(y)
    }

    fn convolution_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        segments: &[Segment],
    ) -> Result<[Tensor; 3]> {
        let mut dx = self.uninit(DType::F32, &x.shape());
        let mut dw = self.zeros_like(w);
        let mut db = Tensor::zeros(&self.arena, DType::F32, [b.map_or(0, Tensor::numel)]);
        op_span!(
            "convolution_backward",
            6 * x.numel() * (w.numel() / x.as_matrix().1.max(1)),
            3 * size(&[x])
        );
        let channels = x.as_matrix().1;
        let call = Convolution {
            x: x.as_slice()?,
            w: w.as_slice()?,
            b: slice(b)?,
            history: &[],
            segments,
            channels,
        };
        let (to_x, to_w, to_b) = (dx.as_mut_slice()?, dw.as_mut_slice()?, db.as_mut_slice()?);
        convolution::backward(&self.cpu, to_x, to_w, to_b, dy.as_slice()?, &call)?;
        Ok([dx, dw, db])
    }

    fn state_space(
        &self,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<Tensor> {
        let mut y = self.uninit(DType::F32, &inputs[0].shape());
        op_span!("state_space", 5 * y.numel() * shape.state, size(&inputs));
        let scan = scan(inputs, weights, segments, shape)?;
        state_space::forward(&self.cpu, y.as_mut_slice()?, slice_mut(states)?, &scan)?;
        Ok(y)
    }

    fn state_space_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])> {
        op_span!("state_space_backward", 20 * dy.numel() * shape.state, 2 * size(&inputs));
        let (mut by_inputs, mut by_weights) =
            (inputs.map(|t| self.zeros_like(t)), weights.map(|t| self.zeros_like(t)));
        let scan = scan(inputs, weights, segments, shape)?;
        let [x, b, c, dt] = slices_mut(&mut by_inputs)?;
        let [a_log, d, dt_bias] = slices_mut(&mut by_weights)?;
        let grads = state_space::Gradients { x, b, c, dt, a_log, d, dt_bias };
        state_space::backward(&self.cpu, grads, dy.as_slice()?, &scan)?;
        Ok((by_inputs, by_weights))
    }

    fn mamba3(
        &self,
        operands: [&Tensor; 15],
        memory: Option<[&mut Tensor; 2]>,
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<Tensor> {
        let mut y = self.uninit(DType::F32, &operands[0].shape());
        op_span!("mamba3", 7 * y.numel() * shape.state * shape.ranks, size(&operands));
        let (last, states) = match memory {
            Some([last, states]) => (last.as_mut_slice()?, states.as_mut_slice()?),
            None => (&mut [] as &mut [f32], &mut [] as &mut [f32]),
        };
        let scan = mamba3_scan(operands, segments, shape)?;
        mamba3::forward(&self.cpu, y.as_mut_slice()?, last, states, &scan)?;
        Ok(y)
    }

    fn mamba3_backward(
        &self,
        dy: &Tensor,
        operands: [&Tensor; 15],
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<[Tensor; 15]> {
        let work = 28 * dy.numel() * shape.state * shape.ranks;
        op_span!("mamba3_backward", work, 2 * size(&operands));
        let mut grads = operands.map(|t| self.zeros_like(t));
        let (to, scan) = (slices_mut(&mut grads)?, mamba3_scan(operands, segments, shape)?);
        mamba3::backward(&self.cpu, mamba3::Operands::of(to), dy.as_slice()?, &scan)?;
        Ok(grads)
    }

    fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<Tensor> {
        let mut y = self.uninit(DType::F32, &inputs[2].shape());
        op_span!("delta_rule", 8 * y.numel() * shape.key_dim, size(&inputs));
        delta_rule::forward(
            &self.cpu,
            y.as_mut_slice()?,
            slice_mut(states)?,
            &delta(inputs, segments, shape)?,
        )?;
        Ok(y)
    }

    fn delta_rule_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 5],
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<[Tensor; 5]> {
        op_span!("delta_rule_backward", 30 * dy.numel() * shape.key_dim, 2 * size(&inputs));
        let mut grads = inputs.map(|t| self.zeros_like(t));
        let [q, k, v, g, beta] = slices_mut(&mut grads)?;
        let to = delta_rule::Gradients { q, k, v, g, beta };
        delta_rule::backward(&self.cpu, to, dy.as_slice()?, &delta(inputs, segments, shape)?)?;
        Ok(grads)
    }

    fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor> {
        let (t, n) = a.as_matrix();
        expect("decay", "a_log", a_log, DType::F32, &[n])?;
        expect("decay", "dt_bias", dt_bias, DType::F32, &[n])?;
        let mut g = self.uninit(DType::F32, &[t, n]);
        let (a, a_log, dt_bias) = (a.as_slice()?, a_log.as_slice()?, dt_bias.as_slice()?);
        delta_rule::decay(&self.cpu, g.as_mut_slice()?, a, a_log, dt_bias)?;
        Ok(g)
    }

    fn decay_backward(
        &self,
        dy: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let mut grads =
            [self.uninit(DType::F32, &a.shape()), self.zeros_like(a_log), self.zeros_like(dt_bias)];
        let ([da, dlog, dbias], [a, a_log, dt_bias]) =
            (slices_mut(&mut grads)?, slices([a, a_log, dt_bias])?);
        delta_rule::decay_backward(&self.cpu, (da, dlog, dbias), dy.as_slice()?, (a, a_log, dt_bias))?;
        Ok(grads)
    }
}
