//! Long short-term memory: Hochreiter and Schmidhuber (1997) with the gates in the order input, forget, cell, output.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Sizes of a call: steps, batch, and the order of the first two dimensions.
struct Shape {
    t: usize,
    n: usize,
    h: usize,
    layers: usize,
    directions: usize,
    batch_first: bool,
    bias: bool,
    /// Steps that each sequence has; behind them nothing happens and outputs are 0.
    lengths: Vec<usize>,
}

impl Shape {
    fn new(k: &Call) -> Result<Shape, Fault> {
        let (x, batch_first) = (k.t("input")?, k.flag("batchFirst")?);
        if k.num("dropout")? != 0.0 && k.flag("train")? {
            return Err(Fault::from("dropout between layers is not in the emulator".to_owned()));
        }
        // How many sequences take part in each step; the input is then `[T·N, I]`, filled up.
        let sizes = match k.opt("batchSizes|batchSizesOptional")? {
            Some(v) => Some(v.load(k.decl.name)?.ints()),
            None => None,
        };
        let (a, b) = (x.dims[0] as usize, x.dims[1] as usize);
        let (t, n, lengths) = match &sizes {
            Some(sizes) => {
                let n = sizes.first().copied().unwrap_or(0);
                let steps = |b: i64| sizes.iter().filter(|s| **s > b).count();
                if a as i64 != n * sizes.len() as i64 || x.dims.len() != 2 {
                    return Err(Fault::from(format!("input {:?} of batchSizes {sizes:?}", x.dims)));
                }
                (sizes.len(), n as usize, (0..n).map(steps).collect())
            }
            None if batch_first => (b, a, vec![b; a]),
            None => (a, b, vec![a; b]),
        };
        let batch_first = batch_first && sizes.is_none();
        let hx = k.list("hx")?;
        let h = hx.first().and_then(|v| v.dims.last().copied()).ok_or("hx is empty")? as usize;
        let directions = if k.flag("bidirectional")? { 2 } else { 1 };
        let (layers, bias) = (k.int("numLayers")? as usize, k.flag("hasBias")?);
        Ok(Shape { t, n, h, layers, directions, batch_first, bias, lengths })
    }

    /// Rows of a sequence as `[t,n,width]` in the order of the tensor, or back.
    fn turned(&self, v: &[f64], width: usize, to_steps: bool) -> Vec<f64> {
        if !self.batch_first {
            return v.to_vec();
        }
        let (a, b) = if to_steps { (self.t, self.n) } else { (self.n, self.t) };
        (0..v.len()).map(|i| v[(i / width % b * a + i / (b * width)) * width + i % width]).collect()
    }

    fn per_layer(&self) -> usize {
        if self.bias { 4 } else { 2 }
    }
}

/// One layer in one direction: its weights, and what it computed by step.
struct Cell {
    w: Vec<f64>,
    u: Vec<f64>,
    b: Vec<f64>,
    width: usize,
}

fn cell(k: &Call, s: &Shape, params: &[&View], index: usize, width: usize) -> Result<Cell, Fault> {
    let at = index * s.per_layer();
    let load = |i: usize| -> Result<Vec<f64>, Fault> { Ok(params[i].load(k.decl.name)?.floats()) };
    let (w, u) = (load(at)?, load(at + 1)?);
    let b = if s.bias {
        load(at + 2)?.iter().zip(load(at + 3)?).map(|(a, b)| a + b).collect()
    } else {
        vec![0.0; 4 * s.h]
    };
    Ok(Cell { w, u, b, width })
}

/// Gates and states of every step, `[t,n,h]` each: input, cell, forget, output, hidden, state, tanh of the state.
struct Trace([Vec<f64>; 7]);

fn run(s: &Shape, c: &Cell, x: &[f64], h0: &[f64], c0: &[f64], reverse: bool) -> Trace {
    let size = s.t * s.n * s.h;
    let mut out: [Vec<f64>; 7] = std::array::from_fn(|_| vec![0.0; size]);
    for b in 0..s.n {
        let (mut hidden, mut state) =
            (h0[b * s.h..(b + 1) * s.h].to_vec(), c0[b * s.h..(b + 1) * s.h].to_vec());
        for step in 0..s.lengths[b] {
            let t = if reverse { s.lengths[b] - 1 - step } else { step };
            let row = &x[(t * s.n + b) * c.width..(t * s.n + b + 1) * c.width];
            let gate = |g: usize, e: usize| {
                let r = g * s.h + e;
                let a: f64 = row.iter().zip(&c.w[r * c.width..]).map(|(x, w)| x * w).sum();
                let b: f64 = hidden.iter().zip(&c.u[r * s.h..]).map(|(x, w)| x * w).sum();
                a + b + c.b[r]
            };
            let mut next = vec![0.0; s.h];
            for e in 0..s.h {
                let (i, f) = (sigmoid(gate(0, e)), sigmoid(gate(1, e)));
                let (j, o) = (gate(2, e).tanh(), sigmoid(gate(3, e)));
                state[e] = f * state[e] + i * j;
                next[e] = o * state[e].tanh();
                let at = (t * s.n + b) * s.h + e;
                for (list, v) in out.iter_mut().zip([i, j, f, o, next[e], state[e], state[e].tanh()]) {
                    list[at] = v;
                }
            }
            hidden = next;
        }
    }
    Trace(out)
}

fn forward(k: &Call) -> Outcome {
    let s = Shape::new(k)?;
    let (params, hx) = (k.list("params")?, k.list("hx")?);
    let (h0, c0) = (hx[0].load(k.decl.name)?.floats(), hx[1].load(k.decl.name)?.floats());
    let mut width = *k.t("input")?.dims.last().ok_or("input is no sequence")? as usize;
    let mut x = s.turned(&k.f("input")?, width, true);
    let (mut hy, mut cy) = (Vec::new(), Vec::new());
    let names = ["iOut", "jOut", "fOut", "oOut", "hOut", "cOut", "tanhCOut"];
    let state = s.n * s.h;
    for layer in 0..s.layers {
        let mut next = vec![0.0; s.t * s.n * s.h * s.directions];
        for d in 0..s.directions {
            let index = layer * s.directions + d;
            let c = cell(k, &s, &params, index, width)?;
            let part = index * state..(index + 1) * state;
            let trace = run(&s, &c, &x, &h0[part.clone()], &c0[part], d == 1);
            for (name, values) in names.iter().zip(&trace.0) {
                if let Some(view) = k.list(name)?.get(index).filter(|v| v.numel() > 0) {
                    k.put_view(view, &Values::F(values.clone()))?;
                }
            }
            for b in 0..s.n {
                let last = if d == 1 { 0 } else { s.lengths[b] - 1 };
                let row = (last * s.n + b) * s.h;
                hy.extend_from_slice(&trace.0[4][row..row + s.h]);
                cy.extend_from_slice(&trace.0[5][row..row + s.h]);
            }
            for (i, v) in trace.0[4].iter().enumerate() {
                next[(i / s.h * s.directions + d) * s.h + i % s.h] = *v;
            }
        }
        x = next;
        width = s.h * s.directions;
    }
    k.put("output", &Values::F(s.turned(&x, width, false)))?;
    k.put("hy", &Values::F(hy))?;
    k.put("cy", &Values::F(cy))
}

fn backward(k: &Call) -> Outcome {
    let s = Shape::new(k)?;
    let (params, hx) = (k.list("params")?, k.list("hx")?);
    let state = s.n * s.h;
    let all = |name: &str| -> Result<Vec<Vec<f64>>, Fault> {
        k.list(name)?.iter().map(|v| Ok(v.load(k.decl.name)?.floats())).collect()
    };
    let (i, g, f, o) = (all("i")?, all("g")?, all("f")?, all("o")?);
    let (h, c, tanhc) = (all("h")?, all("c")?, all("tanhc")?);
    let (h0, c0) = (hx[0].load(k.decl.name)?.floats(), hx[1].load(k.decl.name)?.floats());
    let zeros = || vec![0.0; s.layers * s.directions * state];
    let (dh_last, dc_last) = (k.opt_f("dh")?.unwrap_or_else(zeros), k.opt_f("dc")?.unwrap_or_else(zeros));
    let wide = s.h * s.directions;
    let mut dy = s.turned(&k.opt_f("dy")?.unwrap_or_else(|| vec![0.0; s.t * s.n * wide]), wide, true);
    let (mut dh0, mut dc0) = (zeros(), zeros());
    let first = *k.t("input")?.dims.last().ok_or("input is no sequence")? as usize;
    let input = s.turned(&k.f("input")?, first, true);
    let grads = k.list("dparamsOut")?;
    for layer in (0..s.layers).rev() {
        let width = if layer == 0 { first } else { wide };
        // What the layer below gave.
        let x: Vec<f64> = if layer == 0 {
            input.clone()
        } else {
            let below = (layer - 1) * s.directions;
            let one = |at: usize| h[below + at / s.h % s.directions][at / wide * s.h + at % s.h];
            (0..s.t * s.n * wide).map(one).collect()
        };
        let mut dx = vec![0.0; s.t * s.n * width];
        for d in 0..s.directions {
            let index = layer * s.directions + d;
            let cell = cell(k, &s, &params, index, width)?;
            let (mut dw, mut du) = (vec![0.0; cell.w.len()], vec![0.0; cell.u.len()]);
            let mut db = vec![0.0; 4 * s.h];
            for b in 0..s.n {
                let own = index * state + b * s.h;
                let mut dh = dh_last[own..own + s.h].to_vec();
                let mut dc = dc_last[own..own + s.h].to_vec();
                for step in (0..s.lengths[b]).rev() {
                    let t = if d == 1 { s.lengths[b] - 1 - step } else { step };
                    let row = (t * s.n + b) * s.h;
                    let before = (step > 0).then(|| {
                        let t = if d == 1 { t + 1 } else { t - 1 };
                        (t * s.n + b) * s.h
                    });
                    let mut gates = vec![0.0; 4 * s.h];
                    for e in 0..s.h {
                        let at = row + e;
                        let dhe = dh[e] + dy[((t * s.n + b) * s.directions + d) * s.h + e];
                        let (iv, gv, fv, ov) = (i[index][at], g[index][at], f[index][at], o[index][at]);
                        let th = tanhc[index][at];
                        let dce = dc[e] + dhe * ov * (1.0 - th * th);
                        let old = before.map_or(c0[own + e], |p| c[index][p + e]);
                        gates[e] = dce * gv * iv * (1.0 - iv);
                        gates[s.h + e] = dce * old * fv * (1.0 - fv);
                        gates[2 * s.h + e] = dce * iv * (1.0 - gv * gv);
                        gates[3 * s.h + e] = dhe * th * ov * (1.0 - ov);
                        dc[e] = dce * fv;
                    }
                    dh = vec![0.0; s.h];
                    for (r, v) in gates.iter().enumerate() {
                        db[r] += v;
                        for e in 0..width {
                            dw[r * width + e] += v * x[(t * s.n + b) * width + e];
                            dx[(t * s.n + b) * width + e] += v * cell.w[r * width + e];
                        }
                        for e in 0..s.h {
                            let old = before.map_or(h0[own + e], |p| h[index][p + e]);
                            du[r * s.h + e] += v * old;
                            dh[e] += v * cell.u[r * s.h + e];
                        }
                    }
                }
                dh0[own..own + s.h].copy_from_slice(&dh);
                dc0[own..own + s.h].copy_from_slice(&dc);
            }
            let list = if s.bias { vec![dw, du, db.clone(), db] } else { vec![dw, du] };
            for (j, values) in list.into_iter().enumerate() {
                if let Some(view) = grads.get(index * s.per_layer() + j).filter(|v| v.numel() > 0) {
                    k.put_view(view, &Values::F(values))?;
                }
            }
        }
        dy = dx;
    }
    k.put_opt("dxOut", &Values::F(s.turned(&dy, first, false)))?;
    k.put_opt("dhPrevOut", &Values::F(dh0))?;
    k.put_opt("dcPrevOut", &Values::F(dc0))
}

pub(super) static OPS: &[Row] = &[
    ("LSTM", "input:F null(batchSizes,iOut,jOut,fOut,oOut,hOut,cOut,tanhCOut)", forward),
    ("LstmBackward", "input:F null(dy,dh,dc,dxOut,dhPrevOut,dcPrevOut,outputMask)", backward),
];
