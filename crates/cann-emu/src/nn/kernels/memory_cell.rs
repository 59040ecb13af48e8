//! Long short-term memory by type name: one layer in one direction, gates in the order input, forget, cell, output.
//! Hochreiter and Schmidhuber (1997) in the form of PyTorch. The older type holds both weights in one matrix.

use crate::nn::by_type::Operands;
use crate::report::fail;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Steps, batch, features, hidden size, and the weights `[I,4H]` and `[H,4H]`.
struct Layer {
    t: usize,
    n: usize,
    i: usize,
    h: usize,
    w: Vec<f64>,
    u: Vec<f64>,
}

impl Layer {
    /// `apart`: the weights are the second and third input, else stacked in the second.
    fn read(k: &Operands, apart: bool) -> Result<Layer, i32> {
        let (x, first) = (k.dims(0), k.dims(1));
        let (t, n, i) = match x[..] {
            [t, n, i] => (t, n, i),
            // The gradient of a cell: one step.
            [n, i] => (1, n, i),
            _ => return Err(fail(100_000, &format!("x of {x:?} is no sequence"))),
        };
        let h = first.get(1).copied().unwrap_or(0) / 4;
        let mut w = k.input(1)?;
        let u = if apart { k.input(2)? } else { w.split_off((i * 4 * h).min(w.len())) };
        if w.len() != i * 4 * h || u.len() != h * 4 * h {
            return Err(fail(100_000, &format!("weights {first:?} for {i} features")));
        }
        Ok(Layer { t, n, i, h, w, u })
    }
}

/// Runs the steps. Inputs after the weights: bias `[4H]`, lengths (left out), initial hidden and cell state. Outputs
/// `[T,B,H]`: y, hidden, cell, input gate, new cell, forget gate, output gate, tanh of the cell.
fn forward(k: &Operands, apart: bool) -> Result<(), i32> {
    let l = Layer::read(k, apart)?;
    let (x, at) = (k.input(0)?, if apart { 3 } else { 2 });
    let (t, n, i, h) = (l.t, l.n, l.i, l.h);
    if k.has(at + 1) {
        return Err(fail(100_024, "a sequence mask is not in the emulator"));
    }
    let b = if k.has(at) { k.input(at)? } else { vec![0.0; 4 * h] };
    let start = |at: usize| if k.has(at) { k.input(at) } else { Ok(vec![0.0; n * h]) };
    let (mut hidden, mut cell) = (start(at + 2)?, start(at + 3)?);
    let mut out: [Vec<f64>; 7] = std::array::from_fn(|_| Vec::with_capacity(t * n * h));
    for step in 0..t {
        let mut next = vec![0.0; n * h];
        for r in 0..n {
            let gate = |g: usize, e: usize| -> f64 {
                let col = g * h + e;
                let a: f64 = (0..i).map(|p| x[(step * n + r) * i + p] * l.w[p * 4 * h + col]).sum();
                let z: f64 = (0..h).map(|p| hidden[r * h + p] * l.u[p * 4 * h + col]).sum();
                a + z + b[col]
            };
            for e in 0..h {
                let (open, keep) = (sigmoid(gate(0, e)), sigmoid(gate(1, e)));
                let (new, show) = (gate(2, e).tanh(), sigmoid(gate(3, e)));
                let c = keep * cell[r * h + e] + open * new;
                cell[r * h + e] = c;
                next[r * h + e] = show * c.tanh();
                let values = [next[r * h + e], c, open, new, keep, show, c.tanh()];
                out.iter_mut().zip(values).for_each(|(list, v)| list.push(v));
            }
        }
        hidden = next;
    }
    k.put(0, out[0].clone())?;
    for (at, values) in out.into_iter().enumerate() {
        k.put(at + 1, values)?;
    }
    Ok(())
}

/// Inputs from the fourth on: y, initial hidden and cell state, hidden and cell states, dy, gradients of the last hidden and
/// cell state, input gate, new cell, forget gate, output gate, tanh of the cell. Outputs: gradients of the weights (one or
/// two), the bias, x, and both initial states.
fn backward(k: &Operands, apart: bool) -> Result<(), i32> {
    let l = Layer::read(k, apart)?;
    let (t, n, i, h) = (l.t, l.n, l.i, l.h);
    let x = k.input(0)?;
    let (h0, c0, hidden, cell) = (k.input(4)?, k.input(5)?, k.input(6)?, k.input(7)?);
    let (dy, mut dh, mut dc) = (k.input(8)?, k.input(9)?, k.input(10)?);
    let (open, new, keep) = (k.input(11)?, k.input(12)?, k.input(13)?);
    let (show, shown) = (k.input(14)?, k.input(15)?);
    let (mut dw, mut du) = (vec![0.0; l.w.len()], vec![0.0; l.u.len()]);
    let (mut db, mut dx) = (vec![0.0; 4 * h], vec![0.0; x.len()]);
    for step in (0..t).rev() {
        let mut before = vec![0.0; n * h];
        for r in 0..n {
            let row = (step * n + r) * h;
            let old = |list: &[f64], first: &[f64], e: usize| {
                if step > 0 { list[row - n * h + e] } else { first[r * h + e] }
            };
            for e in 0..h {
                let (at, own) = (row + e, r * h + e);
                let d = dh[own] + dy[at];
                let dcell = dc[own] + d * show[at] * (1.0 - shown[at] * shown[at]);
                let gates = [
                    dcell * new[at] * open[at] * (1.0 - open[at]),
                    dcell * old(&cell, &c0, e) * keep[at] * (1.0 - keep[at]),
                    dcell * open[at] * (1.0 - new[at] * new[at]),
                    d * shown[at] * show[at] * (1.0 - show[at]),
                ];
                dc[own] = dcell * keep[at];
                for (g, v) in gates.into_iter().enumerate() {
                    let col = g * h + e;
                    db[col] += v;
                    for p in 0..i {
                        dw[p * 4 * h + col] += v * x[(step * n + r) * i + p];
                        dx[(step * n + r) * i + p] += v * l.w[p * 4 * h + col];
                    }
                    for p in 0..h {
                        du[p * 4 * h + col] += v * old(&hidden, &h0, p);
                        before[r * h + p] += v * l.u[p * 4 * h + col];
                    }
                }
            }
        }
        dh = before;
    }
    let weights = if apart { vec![dw, du] } else { vec![[dw, du].concat()] };
    for (at, values) in weights.into_iter().chain([db, dx, dh, dc]).enumerate() {
        k.put(at, values)?;
    }
    Ok(())
}

/// `DynamicRNN`.
pub(in crate::nn) fn stacked(k: &Operands) -> Result<(), i32> {
    forward(k, false)
}

/// `DynamicRNNGrad`.
pub(in crate::nn) fn stacked_grad(k: &Operands) -> Result<(), i32> {
    backward(k, false)
}

/// `DynamicRNNV2`.
pub(in crate::nn) fn apart(k: &Operands) -> Result<(), i32> {
    forward(k, true)
}

/// `DynamicRNNV2Grad`.
pub(in crate::nn) fn apart_grad(k: &Operands) -> Result<(), i32> {
    backward(k, true)
}
