//! Gated recurrent units by type name: one layer in one direction, the reset gate applied after the product with the hidden
//! state. Cho et al., arXiv:1406.1078, in the form of PyTorch; gates in the order reset, update, new.

use crate::nn::by_type::Operands;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Steps, batch, features, hidden size.
fn sizes(k: &Operands) -> (usize, usize, usize, usize) {
    let (x, u) = (k.dims(0), k.dims(2));
    (x[0], x[1], x[2], u[0])
}

/// Inputs: x `[T,B,I]`, weights `[I,3H]` and `[H,3H]`, two biases `[3H]`, lengths (left out), initial state. Outputs `[T,B,H]`:
/// y, states, update gates, reset gates, new values, and the hidden part of these.
pub(in crate::nn) fn forward(k: &Operands) -> Result<(), i32> {
    let (t, n, i, h) = sizes(k);
    let (x, w, u) = (k.input(0)?, k.input(1)?, k.input(2)?);
    let (b, c) = (k.input(3)?, k.input(4)?);
    let mut state = if k.has(6) { k.input(6)? } else { vec![0.0; n * h] };
    let mut out: [Vec<f64>; 5] = std::array::from_fn(|_| Vec::with_capacity(t * n * h));
    for step in 0..t {
        let mut next = vec![0.0; n * h];
        for r in 0..n {
            let gate = |g: usize, e: usize| -> (f64, f64) {
                let col = g * h + e;
                let a: f64 = (0..i).map(|p| x[(step * n + r) * i + p] * w[p * 3 * h + col]).sum();
                let z: f64 = (0..h).map(|p| state[r * h + p] * u[p * 3 * h + col]).sum();
                (a + b[col], z + c[col])
            };
            for e in 0..h {
                let reset = {
                    let (a, z) = gate(0, e);
                    sigmoid(a + z)
                };
                let update = {
                    let (a, z) = gate(1, e);
                    sigmoid(a + z)
                };
                let (a, hidden) = gate(2, e);
                let new = (a + reset * hidden).tanh();
                next[r * h + e] = (1.0 - update) * new + update * state[r * h + e];
                for (list, v) in out.iter_mut().zip([next[r * h + e], update, reset, new, hidden]) {
                    list.push(v);
                }
            }
        }
        state = next;
    }
    let [y, update, reset, new, hidden] = out;
    k.put(0, y.clone())?;
    for (at, values) in [y, update, reset, new, hidden].into_iter().enumerate() {
        k.put(at + 1, values)?;
    }
    Ok(())
}

/// Inputs: x, both weights, y, initial state, states, dy, gradient of the last state, update, reset, new, hidden part. Outputs:
/// gradients of both weights, both biases, x, and the initial state.
pub(in crate::nn) fn backward(k: &Operands) -> Result<(), i32> {
    let (t, n, i, h) = sizes(k);
    let (x, w, u) = (k.input(0)?, k.input(1)?, k.input(2)?);
    let (first, states, dy) = (k.input(4)?, k.input(5)?, k.input(6)?);
    let mut dh = k.input(7)?;
    let (update, reset, new, hidden) = (k.input(8)?, k.input(9)?, k.input(10)?, k.input(11)?);
    let (mut dw, mut du) = (vec![0.0; w.len()], vec![0.0; u.len()]);
    let (mut db, mut dc, mut dx) = (vec![0.0; 3 * h], vec![0.0; 3 * h], vec![0.0; x.len()]);
    for step in (0..t).rev() {
        let mut before = vec![0.0; n * h];
        for r in 0..n {
            let row = (step * n + r) * h;
            let old = |e: usize| if step > 0 { states[row - n * h + e] } else { first[r * h + e] };
            for e in 0..h {
                let at = row + e;
                let d = dh[r * h + e] + dy[at];
                let (z, g, v) = (update[at], reset[at], new[at]);
                let dv = d * (1.0 - z) * (1.0 - v * v);
                let dz = d * (old(e) - v) * z * (1.0 - z);
                let dg = dv * hidden[at] * g * (1.0 - g);
                before[r * h + e] += d * z;
                for (gate, (by_x, by_h)) in [(dg, dg), (dz, dz), (dv, dv * g)].into_iter().enumerate() {
                    let col = gate * h + e;
                    db[col] += by_x;
                    dc[col] += by_h;
                    for p in 0..i {
                        dw[p * 3 * h + col] += by_x * x[(step * n + r) * i + p];
                        dx[(step * n + r) * i + p] += by_x * w[p * 3 * h + col];
                    }
                    for p in 0..h {
                        du[p * 3 * h + col] += by_h * old(p);
                        before[r * h + p] += by_h * u[p * 3 * h + col];
                    }
                }
            }
        }
        dh = before;
    }
    for (at, values) in [dw, du, db, dc, dx, dh].into_iter().enumerate() {
        k.put(at, values)?;
    }
    Ok(())
}
